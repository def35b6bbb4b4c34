//! The network between sites: a matrix of round trips, and what may go wrong on each link.

use slackline_core::stats::Rng;

/// Parts in which probabilities are counted.
pub(crate) const MILLION: u64 = 1_000_000;

/// One direction between two sites.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// One way, in microseconds.
    pub(crate) delay: u64,
    /// The number of faults that cut it.
    pub(crate) cut: u32,
    /// What faults add to the delay.
    pub(crate) slow: u64,
    /// The latest arrival of what was sent so far.
    pub(crate) latest: u64,
}

/// What may go wrong with any message, in millionths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Messages that are lost.
    pub(crate) loss: u64,
    /// Messages that arrive twice.
    pub(crate) duplication: u64,
    /// Messages that take a detour of up to [`Weather::detour`].
    pub(crate) reordering: u64,
    /// The longest detour, in microseconds.
    pub(crate) detour: u64,
    /// The most that any delay varies, in thousandths.
    pub(crate) jitter: u64,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fate {
    /// It is on its way.
    Sent,
    /// It was lost: by chance, by a cut link, or because the receiver was down.
    Lost,
    /// It is on its way twice.
    Duplicated,
    /// It overtakes one that was sent before it.
    Reordered,
}

/// What is between all sites.
#[derive(Debug)]
pub(crate) struct Network {
    /// The number of sites.
    sites: usize,
    /// One direction between each two; by sender, then by receiver.
    links: Vec<Link>,
    /// What may go wrong everywhere.
    pub(crate) weather: Weather,
    /// Feeds what goes wrong.
    rng: Rng,
}

impl Network {
    /// `rtt[i][j]` is the round trip between two sites in microseconds.
    pub(crate) fn new(rtt: &[Vec<u64>], seed: u64) -> Self {
        let sites = rtt.len();
        let delays = (0..sites * sites).map(|at| rtt[at / sites][at % sites] / 2);
        let links = delays.map(|delay| Link { delay, ..Link::default() }).collect();
        Self { sites, links, weather: Weather::default(), rng: Rng::new(seed) }
    }

    /// One direction between two sites.
    pub(crate) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.sites + to]
    }

    /// One way between two sites without faults, in microseconds.
    pub(crate) fn delay(&self, from: usize, to: usize) -> u64 {
        self.links[from * self.sites + to].delay
    }

    /// When a message that leaves at `now` arrives: not at all, once or twice; and whether it overtakes another.
    #[inline]
    pub(crate) fn carry(&mut self, now: u64, from: usize, to: usize) -> (Option<u64>, Option<u64>, bool) {
        let weather = self.weather;
        let link = self.links[from * self.sites + to];
        let mut chance = |part: u64| part > 0 && self.rng.below(MILLION) < part;

        if link.cut > 0 || chance(weather.loss) {
            return (None, None, false);
        }

        let twice = chance(weather.duplication);
        let detour = chance(weather.reordering);

        let mut arrival = |detour: bool| {
            let base = link.delay + link.slow;
            let jitter = base * weather.jitter / 1000;
            let jitter = if jitter > 0 { self.rng.below(jitter) } else { 0 };
            let detour = if detour { self.rng.below(weather.detour.max(1)) } else { 0 };
            now + base + jitter + detour
        };

        let first = arrival(detour);
        let second = twice.then(|| arrival(true));

        // It overtakes if it arrives before the latest of those that were sent earlier.
        let link = &mut self.links[from * self.sites + to];
        let overtakes = first < link.latest;
        link.latest = link.latest.max(first);
        (Some(first), second, overtakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_network_takes_half_the_round_trip_and_a_cut_one_loses_all() {
        let mut network = Network::new(&[vec![0, 80_000], vec![80_000, 0]], 1);
        assert_eq!(network.carry(5, 0, 1), (Some(40_005), None, false));
        network.link(0, 1).cut += 1;
        assert_eq!(network.carry(5, 0, 1), (None, None, false));
        assert_eq!(network.carry(6, 1, 0), (Some(40_006), None, false));
    }

    #[test]
    fn bad_weather_loses_duplicates_and_reorders() {
        let mut network = Network::new(&[vec![0, 80_000], vec![80_000, 0]], 1);
        network.weather =
            Weather { loss: 100_000, duplication: 100_000, reordering: 100_000, detour: 200_000, jitter: 100 };
        let fates: Vec<_> = (0..1000).map(|at| network.carry(at * 1000, 0, 1)).collect();
        type Sent = (Option<u64>, Option<u64>, bool);
        let count = |test: &dyn Fn(&Sent) -> bool| fates.iter().filter(|f| test(f)).count();
        assert!((50..200).contains(&count(&|fate| fate.0.is_none())));
        assert!((50..200).contains(&count(&|fate| fate.1.is_some())));
        assert!(count(&|fate| fate.2) > 100);
    }
}
