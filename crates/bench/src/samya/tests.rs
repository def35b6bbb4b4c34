//! Each model in cases that are small enough to be reckoned by hand, and all of them on random demand.

use slackline_core::stats::Rng;
use slackline_sim::Costs;

use super::ask::{Ask, Fault, Heard, System, Told};
use super::clients::{Clients, Work};
use super::config::Config;
use super::course::SamyaOptions;
use super::experiment::Experiment;
use super::geography::Globe;
use super::ledger::{Ledger, Phase};
use super::play::play;
use super::run::samya;
use super::script::Script;
use crate::report::Run;
use crate::rtt::Rtt;
use crate::trace::{Event, Kind, Trace};

fn globe() -> Globe {
    Globe::new(&Rtt::Gcp).expect("built in")
}

/// A system on machines that take no time.
fn start(config: Config, limit: i64) -> Box<dyn System> {
    config.start(&globe(), 5, limit, Costs::NONE, 1)
}

/// An answer, and how long it took, in milliseconds.
type Answer = (u32, Told, bool, u64);

/// Asks at times in milliseconds since the start, and returns what is heard within ten seconds.
fn ask(system: &mut dyn System, asks: &[(u64, usize, Ask)]) -> Vec<Answer> {
    let began = system.now();
    let mut sent = Vec::new();
    let mut answers = Vec::new();
    let mut hear = |system: &mut dyn System, until: u64, sent: &[u64]| {
        let mut heard = Vec::new();
        while system.now() < until {
            system.advance(until, &mut heard);
            for Heard { call, told, is_local } in heard.drain(..) {
                let took = (system.now() - sent[call as usize] + 500) / 1_000;
                answers.push((call, told, is_local, took));
            }
            system.audit().expect("the books are right");
        }
    };
    for (call, (at, region, ask)) in asks.iter().enumerate() {
        hear(system, began + at * 1_000, &sent);
        sent.push(system.now());
        let ask = match ask {
            Ask::Acquire { amount, .. } => Ask::Acquire { amount: *amount, deadline: system.now() + 2_000_000 },
            other => *other,
        };
        system.ask(*region, call as u32, ask);
    }
    hear(system, began + 10_000_000, &sent);
    answers
}

fn acquire(amount: i64) -> Ask {
    Ask::Acquire { amount, deadline: 0 }
}

fn release(amount: i64) -> Ask {
    Ask::Release { amount }
}

#[test]
fn alone_a_site_has_its_part_and_no_more() {
    let asks = [(0, 0, acquire(20)), (10, 0, acquire(1)), (500, 0, release(3)), (600, 1, acquire(21))];
    let heard = ask(&mut *start(Config::NoRedistribution, 100), &asks);
    assert_eq!(heard[0], (0, Told::Granted, true, 0));
    assert_eq!(heard[1], (2, Told::Done, true, 0));
    assert_eq!(heard[2], (1, Told::Granted, true, 490), "it waits for what comes back to its own site");
    assert_eq!(heard.len(), 3, "nobody else's tokens come: {heard:?}");
    let heard = ask(&mut *start(Config::NoConstraint, 100), &asks);
    assert_eq!(heard.iter().filter(|answer| answer.1 == Told::Granted).count(), 3);
}

#[test]
fn counter_refuses_at_once_or_lets_wait_and_takes_a_round_trip() {
    let asks = [(0, 1, acquire(100)), (200, 4, acquire(1)), (1_000, 1, release(1))];
    let heard = ask(&mut *start(Config::Central, 100), &asks);
    assert_eq!(heard, [(0, Told::Granted, false, 131), (1, Told::Refused, false, 172), (2, Told::Done, false, 131)]);
    let heard = ask(&mut *start(Config::CentralWaiting, 100), &asks);
    // The release is there after 65.5 ms, and the grant 86 ms later at its client: 951 ms after that asked.
    assert_eq!(heard, [(0, Told::Granted, false, 131), (2, Told::Done, false, 131), (1, Told::Granted, false, 952)]);
}

#[test]
fn paxos_commits_one_at_a_time_and_quorum_all_together() {
    // A majority of the replicas is 62 ms away from the leader, which is where the first region's clients are.
    let asks: Vec<_> = (0..4).map(|_| (0, 0, acquire(1))).collect();
    let took = |config| ask(&mut *start(config, 100), &asks).iter().map(|answer| answer.3).collect::<Vec<_>>();
    assert_eq!(took(Config::MultiPaxos), [62, 124, 186, 248]);
    assert_eq!(took(Config::Quorum), [63, 63, 63, 63], "a batch is collected for a millisecond");

    let crowd: Vec<_> = (0..40).map(|_| (0, 0, acquire(1))).collect();
    let heard = ask(&mut *start(Config::MultiPaxos, 100), &crowd);
    let refused = heard.iter().filter(|answer| answer.1 == Told::Refused && answer.3 == 0).count();
    assert_eq!((heard.len(), refused), (40, 23), "one is in its commit and sixteen wait");
}

#[test]
fn replicated_counter_ends_with_its_majority() {
    for config in [Config::MultiPaxos, Config::Quorum] {
        let mut system = start(config, 100);
        [4, 3].into_iter().for_each(|region| system.strike(Fault::Lose(region)));
        assert_eq!(ask(&mut *system, &[(0, 0, acquire(1))]).len(), 1, "{config}");
        system.strike(Fault::Lose(2));
        assert_eq!(ask(&mut *system, &[(0, 0, acquire(1))]).len(), 0, "{config}");
    }
}

#[test]
fn borrower_asks_near_peers_first_or_all_at_once() {
    // Each has 20. From us-west1, Europe is the nearest, 126 ms away, then Asia (131), Australia (161) and South America (172).
    let asks = [(0, 0, acquire(20)), (1, 0, acquire(1)), (1_000, 0, acquire(30))];
    let heard = ask(&mut *start(Config::Demarcation, 100), &asks);
    assert_eq!(heard[1], (1, Told::Granted, false, 126));
    // Europe has 19 left, and Asia 20: one after the other.
    assert_eq!(heard[2], (2, Told::Granted, false, 126 + 131));
    let heard = ask(&mut *start(Config::Escrow, 100), &asks);
    // Each of the four lends half of its 20, and the first needs one of them.
    assert_eq!(heard[1], (1, Told::Granted, false, 126));
    assert!(heard[2].3 < 126, "what was lent beyond the need is there: {heard:?}");
}

#[test]
fn round_moves_tokens_and_queues_all_clients() {
    let mut system = start(Config::SamyaMajorityReactive, 100);
    let asks =
        [(0, 0, acquire(20)), (10, 0, acquire(15)), (100, 2, acquire(1)), (110, 2, release(1)), (900, 2, acquire(1))];
    let heard = ask(&mut *system, &asks);
    let took = |call| heard.iter().find(|answer| answer.0 == call).map(|answer| (answer.2, answer.3));
    // Two of the others make a majority: reports after 131 ms, votes after 131 more.
    assert_eq!(took(1), Some((false, 262)));
    // Europe reports at 73 ms and hears the outcome at 335: its clients are queued meanwhile.
    assert_eq!((took(2), took(3)), (Some((false, 235)), Some((false, 225))));
    assert_eq!(took(4), Some((true, 0)));
    assert_eq!((system.counts().rebalances, system.counts().gifts), (1, 0));
    system.close(Some(20 + 15 + 1)).expect("35 and one are in use");
}

#[test]
fn round_without_a_majority_ends_and_what_was_offered_is_free_again() {
    let mut system = start(Config::SamyaMajorityReactive, 100);
    system.strike(Fault::Part(true));
    // Asia and Europe are cut off from the others.
    let asks = [(0, 1, acquire(20)), (10, 1, acquire(1)), (1_500, 2, acquire(20)), (2_600, 0, acquire(25))];
    let heard = ask(&mut *system, &asks);
    let granted: Vec<u32> = heard.iter().map(|answer| answer.0).collect();
    assert_eq!(granted, [0, 2, 3], "{heard:?}");
    assert_eq!(system.counts().rebalances, 1, "the three have a round of their own");
    system.strike(Fault::Part(false));
    assert_eq!(ask(&mut *system, &[(0, 1, acquire(10))]).len(), 1, "whole again, it has what the others have");
}

/// What becomes of the messages of one configuration must not depend on what another did: each is run by itself.
fn run(config: Config, work: Work, length: u64, limit: i64, faults: &[(u64, Fault)], seed: u64) -> Run {
    let globe = globe();
    let mut system = config.start(&globe, 5, limit, Costs::default(), seed);
    let place = globe.shared(5);
    let in_two = (0..5).map(|region| place.is_region_in_two(region)).collect();
    let phases = vec![Phase { from: 0, is_parted: false }];
    let ledger = Ledger::new(config.is_limited().then_some(limit), length, phases);
    let mut clients = Clients::new(work, in_two, system.now(), ledger, seed);
    play(&mut *system, &mut clients, faults).unwrap_or_else(|what| panic!("{config}, seed {seed}: {what}"));
    clients.ledger.run(config.name())
}

/// Acquires of every kind, at any region, of a limit that is too small for them.
fn random_trace(seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let (mut events, mut at, mut jobs) = (Vec::new(), 0, 0);
    for key in 0..600 {
        at += rng.below(40_000);
        let site = Some(rng.below(5) as usize);
        let amount = 1 + rng.below(12) as i64;
        let kind = match rng.below(5) {
            0 => Kind::Acquire { amount },
            1 => Kind::Hold { amount, micros: 1 + rng.below(3_000_000) },
            2 => Kind::Release { amount },
            _ => {
                jobs += 1;
                Kind::Begin { amount, job: jobs - 1 }
            }
        };
        events.push(Event { at, site, key, kind });
        if let Kind::Begin { job, .. } = kind {
            events.push(Event { at: at + rng.below(3_000_000), site, key, kind: Kind::End { job } });
        }
    }
    events.sort_by_key(|event| (event.at, event.kind.wanted().is_some()));
    Trace { data: "generated".into(), events, jobs, skipped: 0 }
}

/// Every configuration that has a limit keeps it and loses no token: its books are audited after every event, and again in the end
/// against what clients have.
#[test]
fn books_of_every_configuration_hold_on_random_demand() {
    for config in Config::ALL {
        for seed in 1..=6 {
            let trace = random_trace(seed);
            for callers in [None, Some(2)] {
                let found = run(config, Work::Trace(&trace, callers), trace.length(), 60, &[], seed);
                assert!(found.committed > 20 && found.unknown == 0, "{config}, seed {seed}: {found:?}");
                assert_eq!(found.refused > 0, config.is_limited(), "{config}, seed {seed}: {found:?}");
            }
        }
        let found = run(config, Work::Script(Script::Small, None, 4_000_000), 4_000_000, 200, &[], 1);
        assert!(found.committed > 60, "{config}: {found:?}");
    }
}

#[test]
fn books_hold_when_the_network_is_in_two_parts_for_a_while() {
    let trace = random_trace(9);
    let length = trace.length();
    let faults = [(length / 4, Fault::Part(true)), (length / 2, Fault::Part(false))];
    let may = |config: &Config| !matches!(config, Config::Demarcation | Config::Escrow);
    for config in Config::ALL.into_iter().filter(may) {
        for seed in 1..=4 {
            let found = run(config, Work::Trace(&trace, None), length, 80, &faults, seed);
            assert_eq!(found.unknown, 0, "{config}: {found:?}");
        }
    }
}

#[test]
fn books_hold_when_regions_are_lost() {
    let trace = random_trace(10);
    let length = trace.length();
    let faults: Vec<_> = (1..5).map(|number| (length * number / 5, Fault::Lose(5 - number as usize))).collect();
    let may = |config: &Config| !matches!(config, Config::Demarcation | Config::Escrow);
    for config in Config::ALL.into_iter().filter(may) {
        let found = run(config, Work::Trace(&trace, None), length, 80, &faults, 1);
        assert!(found.committed > 50, "{config}: {found:?}");
    }
}

/// Without forecasts the product moves nothing as long as nobody waits.
#[test]
fn reactive_product_makes_no_gift_ahead_of_need() {
    let configs = vec![Config::Slackline, Config::SlacklineReactive];
    let options = SamyaOptions { configs, seconds: Some(30.0), ..SamyaOptions::new(Experiment::Latency) };
    let report = samya(&options).expect("it runs");
    let [ours, reactive] = &report.runs[..] else { unreachable!("there are two") };
    assert_eq!((ours.local_ratio, reactive.local_ratio), (Some(1.0), Some(1.0)), "nobody waits");
    assert!(ours.gifts > 0 && (reactive.gifts, reactive.rebalances) == (0, 0), "{ours:?} {reactive:?}");
}

/// A late grant is given back, and its acquire counts as refused.
#[test]
fn late_grant_is_given_back() {
    let hold = |at, amount| Event { at, site: Some(0), key: at, kind: Kind::Hold { amount, micros: 3_000_000 } };
    // The second waits for what the first gives back after three seconds; the third can only have what the second gave back.
    let events = vec![hold(0, 10), hold(100_000, 5), hold(6_000_000, 10)];
    let trace = Trace { data: "generated".into(), events, jobs: 0, skipped: 0 };
    let found = run(Config::MultiPaxos, Work::Trace(&trace, None), trace.length(), 10, &[], 1);
    assert_eq!((found.committed, found.refused, found.figure("late_grants")), (3, 1, Some(1.0)));

    // One that drops what is late refuses as much, and grants nothing late.
    let found = run(Config::Quorum, Work::Trace(&trace, None), trace.length(), 10, &[], 1);
    assert_eq!((found.committed, found.refused, found.figure("late_grants")), (3, 1, Some(0.0)));
}

/// With callers, a region asks no more at a time than it has callers; nobody else is held up.
#[test]
fn callers_wait_for_their_answers() {
    let event = |at, site| Event { at, site: Some(site), key: at, kind: Kind::Acquire { amount: 1 } };
    let events = vec![event(0, 4), event(1_000, 4), event(2_000, 4), event(3_000, 0), event(1_000_000, 0)];
    let trace = Trace { data: "generated".into(), events, jobs: 0, skipped: 0 };
    let longest = |callers| {
        let found = run(Config::CentralWaiting, Work::Trace(&trace, callers), trace.length(), 100, &[], 1);
        assert_eq!((found.committed, found.refused), (5, 0));
        found.latency_ms.max
    };
    // A latency counts from when the caller asks, so it does not grow; the run takes as long as ever.
    assert!((172.0..174.0).contains(&longest(None)) && (172.0..174.0).contains(&longest(Some(1))));
    let paxos =
        |callers| run(Config::MultiPaxos, Work::Trace(&trace, callers), trace.length(), 100, &[], 1).latency_ms.max;
    assert!(paxos(None) > paxos(Some(1)) + 60.0, "three of one region do not stand in line behind each other");
}
