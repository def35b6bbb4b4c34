//! Trains a small recurrent net: gradients by backpropagation through time, steps by Adam.

use slackline_forecast::{Lstm, Seen, State, tanh};

use crate::rng::Rng;

/// The samples whose gradients are added up for one step.
const BATCH: usize = 32;
/// The decay of Adam's means of the gradient and of its square.
const DECAY: (f64, f64) = (0.9, 0.999);
/// An error of less than about this much, in the scale of the net, counts as its square, so that the gradient has no jump at 0.
const SMOOTH: f64 = 0.05;
/// The longest step of a batch, by the norm of its mean gradient.
const LONGEST: f64 = 1.0;
/// How fast the weights of the recurrent part shrink, as a share of the step size: it is to say only what many samples say. Those of the
/// regression beside it are few, and do not.
const SHRINKS: f64 = 0.3;

/// What the net should say of one window.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) seen: Seen,
    /// The change of the logarithm, divided by the window's scale.
    pub(crate) target: f64,
    /// How much an error counts; 1 on average.
    pub(crate) weight: f64,
}

/// How long and how fast a net learns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    /// The times that every sample is used.
    pub(crate) epochs: usize,
    /// The step size at the beginning; it falls to nothing at the end, along half a cosine.
    pub(crate) rate: f64,
}

/// Makes a net that says that the last step comes again.
pub(crate) fn blank(net: &mut Lstm, rng: &mut Rng) {
    let (hidden, bound) = (net.hidden, 1.0 / (net.hidden as f64).sqrt());
    net.gates.iter_mut().for_each(|weight| *weight = bound * rng.symmetric());
    // Forget gates that are open at the beginning let the gradient reach the first steps.
    let constant = net.gates.len() - 4 * hidden;
    net.gates[constant..].fill(0.0);
    net.gates[constant + hidden..constant + 2 * hidden].fill(1.0);
    net.output.fill(0.0);
}

/// Teaches a net the samples.
pub(crate) fn train(net: &mut Lstm, samples: &[Sample], course: Course, rng: &mut Rng) {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    let mut learner = Learner::new(net);
    let batches = course.epochs * samples.len().div_ceil(BATCH);
    let mut done = 0;
    for _ in 0..course.epochs {
        rng.shuffle(&mut order);
        for batch in order.chunks(BATCH) {
            learner.gradient.fill(0.0);
            for sample in batch {
                learner.add(net, &samples[*sample]);
            }
            let progress = done as f64 / batches as f64;
            learner.step(net, course.rate * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()), batch.len());
            done += 1;
        }
    }
}

/// What training keeps beside the net.
struct Learner {
    /// The states along one window, from the one before the first step on.
    states: Vec<State>,
    /// The sum of gradients: of the gates' weights, then of the output's.
    gradient: Vec<f64>,
    /// Adam's mean of each gradient, and of its square.
    means: Vec<(f64, f64)>,
    /// The steps so far.
    steps: i32,
    /// Room for the gradient of a step's gates, before their functions.
    gates: Vec<f64>,
    /// Room for the gradients of the hidden state, and of the memory.
    shown: Vec<f64>,
    kept: Vec<f64>,
}

impl Learner {
    fn new(net: &Lstm) -> Self {
        let weights = net.gates.len() + net.output.len();
        Self {
            states: vec![State::new(net.hidden); net.features.length + 1],
            gradient: vec![0.0; weights],
            means: vec![(0.0, 0.0); weights],
            steps: 0,
            gates: vec![0.0; 4 * net.hidden],
            shown: vec![0.0; net.hidden],
            kept: vec![0.0; net.hidden],
        }
    }

    /// Runs the net over a sample, and adds the gradient of its error.
    fn add(&mut self, net: &Lstm, sample: &Sample) {
        let rows = sample.seen.rows.chunks_exact(net.features.width());
        for (at, row) in rows.enumerate() {
            let (before, next) = self.states.split_at_mut(at + 1);
            net.step(row, &before[at], &mut next[0]);
        }
        let last = &self.states[net.features.length];
        let error = net.read_out(&last.shown, &sample.seen.beside) - sample.target;
        let slope = sample.weight * error / error.hypot(SMOOTH);
        self.add_back(net, &sample.seen, slope);
    }

    /// Goes back over the states, with `slope` for the derivative of the loss by the output.
    fn add_back(&mut self, net: &Lstm, seen: &Seen, slope: f64) {
        let hidden = net.hidden;
        let (of_gates, of_output) = self.gradient.split_at_mut(net.gates.len());
        let inputs = self.states[net.features.length].shown.iter().chain(&seen.beside).chain([&1.0]);
        for (sum, input) in of_output.iter_mut().zip(inputs) {
            *sum += slope * input;
        }
        for (shown, weight) in self.shown.iter_mut().zip(&net.output) {
            *shown = slope * weight;
        }
        self.kept.fill(0.0);

        for (at, row) in seen.rows.chunks_exact(net.features.width()).enumerate().rev() {
            let (before, now) = (&self.states[at], &self.states[at + 1]);
            for unit in 0..hidden {
                let [admit, keep, candidate, show] = [0, 1, 2, 3].map(|gate| now.gates[gate * hidden + unit]);
                let kept = tanh(now.kept[unit]);
                let of_kept = self.kept[unit] + self.shown[unit] * show * (1.0 - kept * kept);
                self.gates[unit] = of_kept * candidate * admit * (1.0 - admit);
                self.gates[hidden + unit] = of_kept * before.kept[unit] * keep * (1.0 - keep);
                self.gates[2 * hidden + unit] = of_kept * admit * (1.0 - candidate * candidate);
                self.gates[3 * hidden + unit] = self.shown[unit] * kept * show * (1.0 - show);
                self.kept[unit] = of_kept * keep;
            }

            let inputs = row.iter().chain(&before.shown).chain([&1.0]);
            for (sums, input) in of_gates.chunks_exact_mut(4 * hidden).zip(inputs) {
                for (sum, gate) in sums.iter_mut().zip(&self.gates) {
                    *sum += input * gate;
                }
            }
            let weights = net.gates.chunks_exact(4 * hidden).skip(row.len());
            for (shown, weights) in self.shown.iter_mut().zip(weights) {
                *shown = weights.iter().zip(&self.gates).map(|(weight, gate)| weight * gate).sum();
            }
        }
    }

    /// Moves the weights against the mean gradient of a batch.
    fn step(&mut self, net: &mut Lstm, rate: f64, samples: usize) {
        let norm = self.gradient.iter().map(|sum| sum * sum).sum::<f64>().sqrt() / samples as f64;
        let factor = 1.0 / samples as f64 * if norm > LONGEST { LONGEST / norm } else { 1.0 };
        self.steps += 1;
        let (of_mean, of_square) = (1.0 - DECAY.0.powi(self.steps), 1.0 - DECAY.1.powi(self.steps));
        let recurrent = net.gates.len() + net.hidden;
        let weights = net.gates.iter_mut().chain(&mut net.output).enumerate();
        for (((at, weight), sum), (mean, square)) in weights.zip(&self.gradient).zip(&mut self.means) {
            if at < recurrent {
                *weight -= rate * SHRINKS * *weight;
            }
            let gradient = sum * factor;
            *mean += (1.0 - DECAY.0) * (gradient - *mean);
            *square += (1.0 - DECAY.1) * (gradient * gradient - *square);
            *weight -= rate * (*mean / of_mean) / ((*square / of_square).sqrt() + 1e-8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_forecast::Features;

    /// A net whose cells see one number a row, over four steps.
    fn net(rng: &mut Rng) -> Lstm {
        let features = Features { length: 4, days: Vec::new() };
        let gates = vec![0.0; Lstm::gate_weights(&features, 3)];
        let output = vec![0.0; Lstm::output_weights(&features, 3)];
        let mut net = Lstm { features, hidden: 3, gates, output };
        blank(&mut net, rng);
        net.output.iter_mut().for_each(|weight| *weight = rng.symmetric());
        net
    }

    fn sample(rng: &mut Rng) -> Sample {
        let mut numbers = |count| (0..count).map(|_| rng.symmetric()).collect::<Vec<f64>>();
        let (rows, beside) = (numbers(4), numbers(3));
        let target = 0.5 * rows[0] - 0.3 * rows[3];
        Sample { seen: Seen { rows, beside, scale: 1.0 }, target, weight: 1.0 }
    }

    fn loss(net: &Lstm, sample: &Sample) -> f64 {
        let mut learner = Learner::new(net);
        for (at, row) in sample.seen.rows.iter().enumerate() {
            let (before, next) = learner.states.split_at_mut(at + 1);
            net.step(&[*row], &before[at], &mut next[0]);
        }
        let said = net.read_out(&learner.states[4].shown, &sample.seen.beside);
        // The integral of what `add` takes for the slope.
        (said - sample.target).hypot(SMOOTH)
    }

    #[test]
    fn gradient_is_the_slope_of_the_loss_in_every_weight() {
        let mut rng = Rng::new(7);
        let (net, sample) = (net(&mut rng), sample(&mut rng));
        let mut learner = Learner::new(&net);
        learner.add(&net, &sample);

        let small = 1e-6;
        let moved = |at: usize, by: f64| {
            let mut net = net.clone();
            let gates = net.gates.len();
            if at < gates {
                net.gates[at] += by
            } else {
                net.output[at - gates] += by
            }
            loss(&net, &sample)
        };
        for (at, gradient) in learner.gradient.iter().enumerate() {
            let slope = (moved(at, small) - moved(at, -small)) / (2.0 * small);
            assert!((gradient - slope).abs() < 1e-6 * (1.0 + slope.abs()), "weight {at}: {gradient} is not {slope}");
        }
        assert!(learner.gradient.iter().filter(|gradient| gradient.abs() > 1e-6).count() > 50, "most weights matter");
    }

    #[test]
    fn net_learns_what_the_first_step_of_its_window_says() {
        let mut rng = Rng::new(3);
        let samples: Vec<Sample> = (0..500).map(|_| sample(&mut rng)).collect();
        let mut net = net(&mut rng);
        let mean = |net: &Lstm| samples.iter().map(|sample| loss(net, sample)).sum::<f64>() / samples.len() as f64;
        let before = mean(&net);
        train(&mut net, &samples, Course { epochs: 30, rate: 0.01 }, &mut rng);
        let after = mean(&net);
        // The loss of a net that is right is SMOOTH.
        assert!(before > 0.3 && after < 0.12, "{before} to {after}");
    }
}
