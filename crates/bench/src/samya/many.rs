//! Experiments about many quotas of the product: `storm`, in which all are short at once, and `idle`, in which all are at rest.

use slackline_core::api::{Operation, Outcome, Response};
use slackline_core::avantan::Charter;
use slackline_core::clock::SECOND;
use slackline_sim::Costs;

use super::ask::{Ask, System, Told};
use super::clients::DEADLINE;
use super::config::Config;
use super::geography::{Geography, Globe, REGIONS};
use super::product::Product;
use crate::histogram::Histogram;
use crate::report::{Latency, Run};

/// Quotas that are created at a time.
const WAVE: usize = 1_000;
/// The tokens of each quota.
const LIMIT: i64 = 100;
/// The tokens that are asked for where a fifth of the limit is.
const WANTED: i64 = 40;
/// Quotas come to rest for so long before messages are counted.
const RESTS: u64 = 120 * SECOND;

fn name(number: usize) -> String {
    format!("q{number}")
}

/// Sites that have these quotas.
fn prepare(config: Config, place: &Geography, quotas: usize, costs: Costs, seed: u64) -> Result<Product, String> {
    let mut product = Product::without_quota(place, costs, seed, config.ways());
    let mut session = product.open(0);
    for first in (0..quotas).step_by(WAVE) {
        let wave = first..quotas.min(first + WAVE);
        let now = product.now();
        let charter = Charter { agreement: config.ways().agreement, ..Charter::default() };
        let create = |number| Operation::Create { quota: name(number), limit: LIMIT, charter };
        let requests: Vec<_> =
            wave.clone().map(|number| (0, session.submit(create(number), 60 * SECOND, now))).collect();

        let mut responses = product.exchange(now, requests.into_iter());
        let mut created = 0;
        while created < wave.len() {
            for response in responses.drain(..) {
                let Response::Batch { answers, .. } = response else {
                    return Err(format!("a creation is answered by {response:?}"));
                };
                for answer in answers {
                    if answer.outcome != (Outcome::Created { limit: LIMIT }) {
                        return Err(format!("a creation ends as {:?}", answer.outcome));
                    }
                    session.answer(answer.sequence);
                    created += 1;
                }
            }
            if product.now() > now + 60 * SECOND {
                return Err("quotas are not created in a minute".into());
            }
            product.run(SECOND / 100);
            responses = product.exchange(now, std::iter::empty());
        }
    }
    product.settle_down();
    Ok(product)
}

/// Every quota is short in the same region at the same time.
pub(super) fn storm(
    config: Config,
    globe: &Globe,
    quotas: usize,
    costs: Costs,
    seed: u64,
) -> Result<(Run, Histogram), String> {
    let place = globe.shared(REGIONS);
    let mut product = prepare(config, &place, quotas, costs, seed)?;
    let began = product.now();
    let deadline = began + DEADLINE;
    for number in 0..quotas {
        product.ask_of(name(number), 0, number as u32, Ask::Acquire { amount: WANTED, deadline });
    }

    let mut latencies = Histogram::default();
    let (mut local, mut heard, mut refused) = (0, Vec::new(), 0);
    while product.now() < deadline {
        product.advance(deadline, &mut heard);
        for answer in heard.drain(..) {
            if answer.told != Told::Granted {
                refused += 1;
                continue;
            }
            latencies.note((product.now() - began) * 1_000);
            local += u64::from(answer.is_local);
        }
    }

    let granted = latencies.count();
    let counts = product.counts();
    let mut run = Run::new(config.name());
    run.committed = granted;
    run.refused = quotas as u64 - granted;
    run.latency_ms = Latency::from(&latencies);
    run.local_ratio = Some(local as f64 / quotas as f64);
    run.wan_messages = Some(counts.wan_messages);
    for number in 0..quotas {
        let shown = product.show(&name(number))?;
        run.rebalances += shown.work.rebalances;
        run.gifts += shown.work.gifts;
    }
    let run = run.took(latencies.max() as f64 / 1e9);
    assert!(refused <= run.refused, "what is refused is not granted");
    let refused = run.refused;
    Ok((run.with("refused_acquires", refused).with("limit", LIMIT), latencies))
}

/// Quotas that nobody asks for anything.
pub(super) fn idle(
    config: Config,
    globe: &Globe,
    quotas: usize,
    seconds: f64,
    costs: Costs,
    seed: u64,
) -> Result<Run, String> {
    let place = globe.shared(REGIONS);
    let mut product = prepare(config, &place, quotas, costs, seed)?;
    product.run(RESTS);
    let before = product.counts();
    product.run((seconds * 1e6) as u64);
    let after = product.counts();

    let mut run = Run::new(config.name());
    run.wan_messages = Some(after.wan_messages - before.wan_messages);
    let syncs = after.syncs - before.syncs;
    Ok(run.took(seconds).with("limit", LIMIT).with("syncs", syncs))
}
