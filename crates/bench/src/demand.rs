//! Generated demand, from a seed.

use slackline_core::stats::Rng;

use crate::trace::{Event, Kind, Trace};

/// A day of the paper's virtual machines, which it plays in 24 minutes (section 5.1.2), in seconds.
const DAY: f64 = 1_440.0;
/// Acquires a second over all regions: the paper replays 820,000 acquires and releases in an hour (section 5.3).
const RATE: f64 = 114.0;
/// By how much a region's rate rises and falls around its mean over a day.
const SWING: f64 = 0.8;
/// The mean life of a virtual machine, in seconds of the replay.
pub(crate) const LIFE: f64 = 35.0;

/// Nearly periodic demand with a phase for each region, like the paper's: virtual machines are created, each takes a token,
/// and lives for a while. `events` acquires and releases in all, over `sites` regions.
pub fn periodic(events: usize, sites: usize, seed: u64) -> Trace {
    let mut rng = Rng::new(seed ^ 0x7065_7269);
    let mut out = Vec::with_capacity(events);
    let (mut at, mut jobs) = (0.0, 0);
    // No region's rate is ever above this: events are drawn at it, and kept with the probability of the real rate.
    let fastest = RATE * (1.0 + SWING) * 1.3;
    // A slow random walk, so that no day is like the other.
    let mut weather = vec![1.0f64; sites];
    let mut next_weather = 0.0;
    while out.len() < events {
        at += exponential(&mut rng, 1.0 / fastest);
        while at >= next_weather {
            next_weather += DAY / 48.0;
            for level in &mut weather {
                *level = (*level + (unit(&mut rng) - 0.5) * 0.2).clamp(0.7, 1.3);
            }
        }

        // Regions are as far apart in their day as on a globe.
        let site = rng.below(sites as u64) as usize;
        let phase = at / DAY + site as f64 / sites as f64;
        let rate = RATE * (1.0 + SWING * (phase * std::f64::consts::TAU).sin()) * weather[site];
        if unit(&mut rng) * fastest > rate {
            continue;
        }

        let life = exponential(&mut rng, LIFE);
        let event = |at: f64, kind| Event { at: (at * 1e6) as u64, site: Some(site), key: u64::from(jobs), kind };
        out.push(event(at, Kind::Begin { amount: 1, job: jobs }));
        out.push(event(at + life, Kind::End { job: jobs }));
        jobs += 1;
    }
    finish(out, jobs)
}

/// Bursty requests of a code assistant, like the other trace of the Azure set: long contexts, short outputs, silence between
/// bursts. One hour has about 8,800 requests.
pub fn bursty(requests: usize, seed: u64) -> Trace {
    let mut rng = Rng::new(seed ^ 0x6275_7273);
    let mut out = Vec::with_capacity(requests);
    let mut at = 0.0;
    let (mut busy, mut until) = (true, 4.0);
    while out.len() < requests {
        let rate = if busy { 9.0 } else { 0.35 };
        let next = at + exponential(&mut rng, 1.0 / rate);
        // The draw is thrown away where the rate changes before it: times between events have no memory.
        if next >= until {
            at = until;
            busy = !busy;
            until = at + exponential(&mut rng, if busy { 4.0 } else { 12.0 });
            continue;
        }
        at = next;

        // Long-tailed contexts, short outputs; both are held for a minute, as limits there are tokens a minute.
        let context = (1_400.0 * (0.9 * normal(&mut rng)).exp()).clamp(3.0, 7_500.0);
        let generated = 1.0 + exponential(&mut rng, 27.0);
        let amount = (context + generated) as i64;
        let kind = Kind::Hold { amount, micros: 60_000_000 };
        out.push(Event { at: (at * 1e6) as u64, site: None, key: out.len() as u64, kind });
    }
    finish(out, 0)
}

/// A trace of events in any order. What ends makes room before what begins at the same time.
pub(crate) fn finish(mut events: Vec<Event>, jobs: u32) -> Trace {
    events.sort_by_key(|event| (event.at, event.kind.wanted().is_some()));
    Trace { data: "generated".into(), events, jobs, skipped: 0 }
}

/// Above zero, below one.
pub(crate) fn unit(rng: &mut Rng) -> f64 {
    ((rng.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Of an exponential distribution.
pub(crate) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * unit(rng).ln()
}

/// Of mean zero and variance one (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * unit(rng).ln()).sqrt() * (std::f64::consts::TAU * unit(rng)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_demand_and_regions_peak_at_different_times() {
        let trace = periodic(400_000, 2, 7);
        assert_eq!(trace.events, periodic(400_000, 2, 7).events);
        assert_ne!(trace.events, periodic(400_000, 2, 8).events);
        // Half a day apart: in the first quarter of each day the first region asks for more than the second.
        let mut asked = [0u32; 2];
        for event in trace.events.iter().filter(|event| event.kind.wanted().is_some()) {
            if (event.at as f64 / 1e6 / DAY).fract() < 0.5 {
                asked[event.site.expect("named")] += 1;
            }
        }
        assert!(asked[0] > 2 * asked[1], "{asked:?}");
    }

    #[test]
    fn bursts_are_bursty_and_large() {
        let trace = bursty(8_000, 1);
        let minutes = trace.length() as f64 / 60e6;
        assert!((40.0..90.0).contains(&minutes), "{minutes}");
        let amounts: Vec<i64> = trace.events.iter().filter_map(|event| event.kind.wanted()).collect();
        let mean = amounts.iter().sum::<i64>() as f64 / amounts.len() as f64;
        assert!((1_600.0..2_400.0).contains(&mean), "{mean}");
        let mut seconds = vec![0f64; trace.length() as usize / 1_000_000 + 1];
        trace.events.iter().for_each(|event| seconds[event.at as usize / 1_000_000] += 1.0);
        let rate = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let variance = seconds.iter().map(|count| (count - rate).powi(2)).sum::<f64>() / seconds.len() as f64;
        assert!(variance > 4.0 * rate, "{variance} {rate}");
    }
}
