//! Floors: what a benchmark's figures are compared with, in the same run.
//!
//! A floor is a site that does nothing but log and answer ([`slackline_server::floor`] says what it leaves out), asked by the same
//! client for the same operations, on the same disk. Absolute figures depend on the hour; the ratio to the floor does not: the two
//! have their rounds at the same time, in short slices by turns ([`SLICES`]), so that both have the machine at its best and at its
//! worst.
//!
//! A floor appends as many bytes as a site logs. How many those are is found out before each run: a machine in this process, of
//! the same code, is handed requests of one and of many of these operations, and its batches are measured.

use slackline_core::api::{Agreement, Hold, Operation, Readiness, Request, Response};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::machine::{ClientId, Effect, Input};
use slackline_core::node::{Config, Node};
use slackline_core::object::{Change, Home, Part, Transaction, Value};
use slackline_server::floor::Load;

use crate::ahead::Ahead;
use crate::driven::Driven;
use crate::live::LiveError;
use crate::median;
use crate::report::Run;

/// The number of slices of a round; after each of a site comes one of its floor.
pub(crate) const SLICES: u32 = 4;

/// The operation that a site is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Acquires of one token of one quota.
    Acquires,
    /// Reads, of which nothing is logged.
    Reads,
    /// Transactions that write one object each.
    Writes {
        /// The size of its value.
        bytes: usize,
    },
}

/// The fact that explains floors, for a report.
pub(crate) fn fact() -> (String, String) {
    let what = "a server that does nothing but append as many bytes and answer, asked by the same client by turns; \
                floor_ratio is the median of the rounds' ratios";
    ("floor".into(), what.into())
}

/// Notes in a site's run how it compares with its floor.
///
/// # Errors
///
/// As [`ratio`].
pub(crate) fn compare(run: Run, site: &[f64], floor: &[f64]) -> Result<Run, LiveError> {
    Ok(run.with("floor_ratio", ratio(site, floor)?))
}

/// The median ratio of what was done in a second, over rounds side by side, in thousandths.
///
/// # Errors
///
/// Nothing was done in a round.
pub(crate) fn ratio(these: &[f64], others: &[f64]) -> Result<f64, LiveError> {
    if these.iter().chain(others).any(|speed| *speed <= 0.0) {
        return Err(LiveError::Failed("nothing was done in a round".into()));
    }

    // Of rounds side by side, so that what else the machine did in that time falls on both.
    let ratios: Vec<f64> = these.iter().zip(others).map(|(this, other)| this / other).collect();
    Ok((median(ratios, |ratio| *ratio) * 1e3).round() / 1e3)
}

/// Notes in a floor's run what it appends. It answers nothing by a right of its own, and sends nothing to another region.
pub(crate) fn mark(mut run: Run, load: Load) -> Run {
    run.local_ratio = Some(0.0);
    run.wan_messages = Some(0);
    run.with("request_bytes", load.request_bytes).with("operation_bytes", load.operation_bytes)
}

/// Finds out what a site logs of what callers ask. Each has a row: the object that it writes, or the outcome of its call.
///
/// # Errors
///
/// The machine does not do what it is asked.
pub(crate) fn load(asked: Asked, callers: usize) -> Result<Load, LiveError> {
    if asked == Asked::Reads {
        return Ok(Load::default());
    }
    let failed = |problem| LiveError::Failed(format!("what a site logs cannot be found out: {problem}"));

    // The same code that a site runs, so that a change of what it logs changes its floor.
    let mut sample = Sample::ready().map_err(failed)?;
    let few = sample.mean_bytes(asked, 1).map_err(failed)?;
    let many = sample.mean_bytes(asked, MANY).map_err(failed)?;

    // Both lie on a line: what each request brings with it, and what each operation adds.
    let operation = (many - few) / (MANY - 1) as f64;
    let request = few - operation;
    let rows = u16::try_from(callers).unwrap_or(u16::MAX);
    Ok(Load { request_bytes: request.max(0.0).round() as usize, operation_bytes: operation.round() as usize, rows })
}

/// Operations of a large request.
const MANY: usize = 65;
/// The requests that are measured of each size.
const REQUESTS: usize = 64;
/// The first sequence: numbers are as long as they are in the midst of a run.
const FIRST: u64 = 1 << 20;
/// The time that an operation may take, in microseconds.
const TIMEOUT: u64 = 10 * SECOND;
/// The quota that is acquired of.
const QUOTA: &str = "hot";
/// Its tokens: more than all requests take.
const LIMIT: i64 = 1 << 50;

/// A machine, and what is needed to ask it.
struct Sample {
    /// A site without others.
    site: Driven,
    /// Its clock, in microseconds.
    now: u64,
    /// The session of all requests, once it is open.
    session: Option<Ahead>,
}

impl Sample {
    /// A site without others, with a session and a quota.
    fn ready() -> Result<Self, String> {
        let site = SiteId::new(0, 0);
        let mut sample =
            Self { site: Driven::open(Config::new(site, vec![site]), 1, SECOND), now: SECOND, session: None };
        while sample.site.node.readiness() != Readiness::Ready {
            if sample.now > 60 * SECOND {
                return Err("it does not become ready".into());
            }
            sample.feed(Input::Tick);
        }

        let opened = sample.ask(Request::Open);
        let session = opened.iter().find_map(Ahead::opened).map(|session| session.after(FIRST - 1));
        sample.session = Some(session.ok_or_else(|| format!("it opens no session: {opened:?}"))?);
        sample.carry_out(vec![Operation::Create {
            quota: QUOTA.into(),
            limit: LIMIT,
            agreement: Agreement::Majority,
        }])?;
        Ok(sample)
    }

    /// The mean of the bytes that it logs of a request with this number of operations.
    fn mean_bytes(&mut self, asked: Asked, operations: usize) -> Result<f64, String> {
        let operation = |at| match asked {
            Asked::Acquires => Operation::Acquire { quota: QUOTA.into(), amount: 1, hold: Hold::Counted, waits: false },
            Asked::Reads | Asked::Writes { .. } => write(at, asked),
        };
        // Rows that only the first of them write are not of every request.
        self.carry_out((0..operations).map(operation).collect())?;

        let before = self.site.logged();
        for _ in 0..REQUESTS {
            self.carry_out((0..operations).map(operation).collect())?;
        }
        Ok((self.site.logged() - before) as f64 / REQUESTS as f64)
    }

    /// Has operations carried out by one request.
    fn carry_out(&mut self, operations: Vec<Operation>) -> Result<(), String> {
        let expected = operations.len();
        let session = self.session.as_mut().ok_or("no session is open")?;
        let request = session.request(operations, expected as u64, TIMEOUT);
        let responses = self.ask(request);

        // Alone, it waits for nobody, so all answers are there.
        let answers = responses.iter().map(|response| match response {
            Response::Batch { answers, .. } => answers.len(),
            _ => 0,
        });
        match answers.sum::<usize>() == expected {
            true => Ok(()),
            false => Err(format!("of {expected} operations not all were answered: {responses:?}")),
        }
    }

    fn ask(&mut self, request: Request) -> Vec<Response> {
        self.feed(Input::Request { client: ClientId(1), request })
    }

    /// Hands the machine an input, and syncs what comes of it. Returns the responses.
    fn feed(&mut self, input: Input<Node>) -> Vec<Response> {
        // A site that joins waits for time to pass, so its clock goes on with every input.
        self.now += MILLISECOND;
        let mut responses = Vec::new();
        let mut release = |effect| {
            if let Effect::Respond { response, .. } = effect {
                responses.push(response);
            }
        };
        self.site.input(self.now, input, &mut release);
        self.site.sync(release);
        responses
    }
}

/// A transaction that writes one object, of its own among those of a request.
fn write(at: usize, asked: Asked) -> Operation {
    let bytes = if let Asked::Writes { bytes } = asked { bytes } else { 0 };
    let put = (format!("object/{at:04}"), Change::Put(Value::Bytes(vec![b'7'; bytes].into())));
    let part = Part { writes: vec![put], ..Part::default() };
    let home = Home { region: 0, incarnation: Incarnation::default(), part };
    Operation::Commit(Box::new(Transaction { homes: vec![home], max_wait: TIMEOUT, ..Transaction::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_grows_with_what_is_written() {
        let of = |asked| load(asked, 64).expect("a machine alone answers");
        let (acquires, small, large) =
            (of(Asked::Acquires), of(Asked::Writes { bytes: 64 }), of(Asked::Writes { bytes: 65_536 }));
        assert!((10..100).contains(&acquires.request_bytes), "the quota's row: {acquires:?}");
        assert!((10..100).contains(&acquires.operation_bytes), "the outcome's row: {acquires:?}");
        assert!((64..300).contains(&small.operation_bytes), "the object and the outcome: {small:?}");
        assert!((65_536 - 64..65_700).contains(&(large.operation_bytes - small.operation_bytes + 64)), "{large:?}");
        assert_eq!(of(Asked::Reads), Load::default());
    }
}
