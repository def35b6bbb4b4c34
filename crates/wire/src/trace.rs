//! Conversions of the courses of transactions, as their coordinators remember them.

use slackline_core::api::UnknownReason;
use slackline_core::id::OperationId;
use slackline_core::object::trace::{End, Event, Proof, Share, Step, Trace};
use slackline_core::txn::{EVENTS, RIGHTS};

use crate::check::{Invalid, MEMBERS, convert, inner, required};
use crate::fields::{Field, lists, nested, same_fields};
use crate::proto::v1;

same_fields! {
    Trace = v1::Trace { proved, rights, parts, events, left_out, end; began = began_us }
    Proof = v1::TraceRight { key; until = until_us }
    Share = v1::TracePart { site, reads, scans, writes }
}

nested!(slackline_core::object::ObjectKey = v1::ObjectKey);

lists! {
    Proof = v1::TraceRight, at most RIGHTS;
    Share = v1::TracePart, at most MEMBERS;
    Event = v1::TraceEvent, at most EVENTS;
}

/// The content of a step that has no details.
const MARK: v1::TraceMark = v1::TraceMark {};

impl From<Event> for v1::TraceEvent {
    fn from(event: Event) -> Self {
        use v1::trace_event::Step as Kind;
        let Event { at, times, site, step } = event;
        let step = match step {
            Step::Asked => Kind::Asked(MARK),
            Step::Waits { name, holders, until } => {
                Kind::Waits(v1::TraceWait { name, holders: holders.to_wire(), until_us: until })
            }
            Step::Prepared => Kind::Prepared(MARK),
            Step::Committed => Kind::Committed(MARK),
            Step::Refused(abort) => Kind::Refused((*abort).into()),
            Step::Inquired => Kind::Inquired(MARK),
            Step::Undecided => Kind::Undecided(MARK),
            Step::Noted => Kind::Noted(MARK),
        };

        Self { at_us: at, times, site: Some(site.into()), step: Some(step) }
    }
}

impl TryFrom<v1::TraceEvent> for Event {
    type Error = Invalid;

    fn try_from(event: v1::TraceEvent) -> Result<Self, Invalid> {
        use v1::trace_event::Step as Kind;
        let step = match required(event.step, "step")? {
            Kind::Asked(_) => Step::Asked,
            Kind::Waits(v1::TraceWait { name, holders, until_us }) => {
                Step::Waits { name, holders: Field::from_wire(holders, "waits.holders")?, until: until_us }
            }
            Kind::Prepared(_) => Step::Prepared,
            Kind::Committed(_) => Step::Committed,
            Kind::Refused(abort) => Step::Refused(Box::new(inner(abort, "refused")?)),
            Kind::Inquired(_) => Step::Inquired,
            Kind::Undecided(_) => Step::Undecided,
            Kind::Noted(_) => Step::Noted,
        };

        Ok(Self { at: event.at_us, times: event.times, site: convert(event.site, "site")?, step })
    }
}

/// The time and the decision; absent while there is none.
impl Field<Option<v1::TraceEnd>> for Option<(u64, End)> {
    fn to_wire(self) -> Option<v1::TraceEnd> {
        use v1::trace_end::Result as Kind;
        let (at_us, end) = self?;
        let result = match end {
            End::Committed { phases } => Kind::Committed(v1::Committed { phases: phases.into() }),
            End::Aborted(abort) => Kind::Aborted((*abort).into()),
            End::Lost => Kind::Lost(MARK),
        };
        Some(v1::TraceEnd { at_us, result: Some(result) })
    }

    fn from_wire(wire: Option<v1::TraceEnd>, name: &str) -> Result<Self, Invalid> {
        use v1::trace_end::Result as Kind;
        let Some(end) = wire else { return Ok(None) };
        let result = required(end.result, "result").map_err(|invalid| invalid.within(name))?;
        let ended = match result {
            Kind::Committed(committed) => {
                let phases = u8::try_from(committed.phases);
                End::Committed { phases: phases.map_err(|_| Invalid::new("end.committed.phases", "is above 255"))? }
            }
            Kind::Aborted(abort) => End::Aborted(Box::new(inner(abort, "end.aborted")?)),
            Kind::Lost(_) => End::Lost,
        };
        Ok(Some((end.at_us, ended)))
    }
}

type Explained = (OperationId, Result<Box<Trace>, UnknownReason>);

impl From<Explained> for v1::Explained {
    fn from((operation, trace): Explained) -> Self {
        use v1::explained::Result as Kind;
        let result = match trace {
            Ok(trace) => Kind::Trace((*trace).into()),
            Err(doubt) => Kind::Unknown(doubt.to_wire()),
        };
        Self { operation: Some(operation.into()), result: Some(result) }
    }
}

impl TryFrom<v1::Explained> for Explained {
    type Error = Invalid;

    fn try_from(explained: v1::Explained) -> Result<Self, Invalid> {
        use v1::explained::Result as Kind;
        let trace = match required(explained.result, "result")? {
            Kind::Trace(trace) => Ok(Box::new(inner(trace, "trace")?)),
            Kind::Unknown(doubt) => Err(Field::from_wire(doubt, "unknown")?),
        };
        Ok((convert(explained.operation, "operation")?, trace))
    }
}
