//! The course of a transaction, as the site that coordinated it saw it.

use std::time::{Duration, SystemTime};

use slackline_core::api;
use slackline_core::id::OperationId;
use slackline_core::object::{ObjectKey, trace};
use slackline_session::call::Place;
use slackline_session::key::Key;
use slackline_session::outcome::{Aborted, ReadError};
use slackline_session::topology::Topology;
use slackline_wire::v1;

use crate::client::{Client, senseless};
use crate::connection;

impl Client {
    /// The course of a transaction: which rights it used, which sites took part, what each answered, and when. None if
    /// nothing is known of it any more: the site that coordinated it remembers its last 4,096 transactions, in memory.
    ///
    /// # Errors
    ///
    /// That site does not answer before the client's deadline, neither directly nor through another.
    pub async fn explain(&self, operation: OperationId) -> Result<Option<Explanation>, ReadError> {
        let site = operation.site;
        let unreachable =
            |why: &str| ReadError::Unreachable { asked: vec![(self.shared.topology.name(site), why.to_owned())] };
        if self.connection(site).is_none() {
            return Err(unreachable("the cluster has no such site"));
        }
        let ask = |channel| async move {
            let ask = v1::Ask { operation: Some(operation.into()) };
            connection::stub(channel).explain(ask).await
        };

        // Half of the time for the site itself; another may reach it where this client does not.
        let turn = self.shared.deadline() / 2;
        let reply = match self.read(site.lane, &Place::Site(site), turn, ask, |_| true).await {
            Ok(reply) => reply,
            // Where nobody can tell, it is the site itself that does not answer; the others only say that they do not reach it.
            Err(why) => self.read(site.lane, &Place::Nearest, turn, ask, |_| true).await.map_err(|_| why)?,
        };

        let (reply, by) = reply;
        let (_, trace): (OperationId, Result<_, api::UnknownReason>) =
            reply.try_into().map_err(|error| senseless(&by, error))?;
        match trace {
            Ok(trace) => Ok(Some(Explanation::new(operation, *trace, &self.shared.topology))),
            Err(api::UnknownReason::SiteUnreachable | api::UnknownReason::Undecided) => {
                Err(unreachable(&format!("{by} does not reach it")))
            }
            Err(_) => Ok(None),
        }
    }
}

/// Why a transaction ended as it did, and what took its time; see [`Client::explain`](crate::Client::explain).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The operation that committed it, such as `us-1-9-12`.
    pub operation: String,
    /// The site that coordinated it.
    pub site: String,
    /// When that site was asked to commit it, by its clock.
    pub began: SystemTime,
    /// The number of its reads that rights proved, so that nobody was asked.
    pub proved: u32,
    /// The first eight of those.
    pub rights: Vec<RightUsed>,
    /// The sites that took part, and how much each was asked for.
    pub parts: Vec<PartAsked>,
    /// What happened, in order.
    pub steps: Vec<Step>,
    /// Steps of which there were too many to be remembered.
    pub left_out: u32,
    /// The decision, and the time from the beginning until then; none while it is under way.
    pub end: Option<(Duration, End)>,
}

/// A right that proved a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RightUsed {
    /// The object.
    pub key: Key,
    /// Until when the site relied on the right.
    pub until: SystemTime,
}

/// The part of a transaction that a site was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartAsked {
    /// The site.
    pub site: String,
    /// Objects whose versions it checked.
    pub reads: u32,
    /// Spans whose contents it checked.
    pub scans: u32,
    /// Objects that it was to change.
    pub writes: u32,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The time after the beginning; the first time, if it was repeated.
    pub after: Duration,
    /// The number of times.
    pub times: u32,
    /// The site that was asked or that answered.
    pub site: String,
    /// What it was.
    pub what: What,
}

/// What a coordinator asks and is told.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum What {
    /// The site was asked to prepare its part.
    Asked,
    /// The site's writes had to wait for rights of others to end.
    Waits {
        /// The object whose rights last longest.
        key: Key,
        /// Who held them. Nobody is named where the site did not know, because it had started again.
        holders: Vec<String>,
        /// When the last of them would end by itself.
        until: SystemTime,
    },
    /// The site's part was durable.
    Prepared,
    /// The site had carried its part out.
    Committed,
    /// The site refused it.
    Refused(Aborted),
    /// The site was asked what became of it: its answer did not come in time.
    Inquired,
    /// The client was told that it is undecided.
    Undecided,
    /// The site had noted the decision.
    Noted,
}

/// The decision about a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum End {
    /// It took effect.
    Committed {
        /// In how many phases: 0 if its site judged it alone and it wrote nothing, 1 if one site did, 2 if several.
        phases: u8,
    },
    /// It had no effect.
    Aborted(Aborted),
    /// The only site that took part has lost what it knew.
    Lost,
}

fn time(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

impl Explanation {
    pub(crate) fn new(operation: OperationId, trace: trace::Trace, topology: &Topology) -> Self {
        let trace::Trace { began, proved, rights, parts, events, left_out, end } = trace;
        let right = |right: trace::Proof| RightUsed { key: topology.key(&right.key), until: time(right.until) };
        let part = |part: trace::Share| {
            let trace::Share { site, reads, scans, writes } = part;
            PartAsked { site: topology.name(site), reads, scans, writes }
        };
        let ended = |(at, end)| {
            let end = match end {
                trace::End::Committed { phases } => End::Committed { phases },
                trace::End::Aborted(abort) => End::Aborted(Aborted::new(*abort, topology)),
                trace::End::Lost => End::Lost,
            };
            (Duration::from_micros(at), end)
        };
        Self {
            operation: topology.operation_text(operation),
            site: topology.name(operation.site),
            began: time(began),
            proved,
            rights: rights.into_iter().map(right).collect(),
            parts: parts.into_iter().map(part).collect(),
            steps: events.into_iter().map(|event| Step::new(event, topology)).collect(),
            left_out,
            end: end.map(ended),
        }
    }
}

impl Step {
    fn new(event: trace::Event, topology: &Topology) -> Self {
        let trace::Event { at, times, site, step } = event;
        let what = match step {
            trace::Step::Asked => What::Asked,
            trace::Step::Waits { name, holders, until } => What::Waits {
                key: topology.key(&ObjectKey { home: site.region, name }),
                holders: holders.into_iter().map(|site| topology.name(site)).collect(),
                until: time(until),
            },
            trace::Step::Prepared => What::Prepared,
            trace::Step::Committed => What::Committed,
            trace::Step::Refused(abort) => What::Refused(Aborted::new(*abort, topology)),
            trace::Step::Inquired => What::Inquired,
            trace::Step::Undecided => What::Undecided,
            trace::Step::Noted => What::Noted,
        };
        Self { after: Duration::from_micros(at), times, site: topology.name(site), what }
    }
}
