//! Conversions of the messages between clients and sites.

use slackline_core::api::{
    Agreement, Answer, BATCH_OPERATIONS, Batch, ClockStatus, Hold, Listed, NoSeat, Operation, Outcome, Parent,
    PeerStatus, Readiness, Refusal, Request, Response, SeatChange, Shown, ShownSite, Status, Submission,
    SynchronizationCause, UnknownReason, Work,
};
use slackline_core::avantan::Charter;
use slackline_core::id::{GrantId, Incarnation, OperationId, SessionId, SiteId, SiteSet};

use crate::check::{Invalid, MEMBERS, convert, convert_all, inner, required};
use crate::fields::{Field, lists, nested, same_fields, same_variants};
use crate::proto::v1;

/// The most entries of a list of quotas.
const LISTED: usize = 1000;

/// The quota above one that is to be created. Which generation of it that is, only sites know.
fn parent(bytes: u32) -> Result<Option<Parent>, Invalid> {
    let length = u16::try_from(bytes).map_err(|_| Invalid::new("parent_bytes", "is out of range"))?;
    Ok((length > 0).then_some(Parent { length, generation: 0 }))
}

/// The lane that a quota of this name lives in: the 64-bit FNV-1a hash of the name's bytes up to the first `/`, modulo `lanes`. So all
/// quotas of a tree live in one lane.
pub fn lane_of(quota: &str, lanes: u16) -> u16 {
    // Clients in other languages compute the same, and a quota lives in its lane permanently: this hash does not change any more.
    let hash = quota
        .bytes()
        .take_while(|byte| *byte != b'/')
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash % u64::from(lanes.max(1))) as u16
}

/// The batch of one operation that a unary call stands for.
pub fn single(id: OperationId, low: u64, timeout: u64, operation: Operation) -> Batch {
    let OperationId { site, incarnation, session, sequence } = id;
    Batch { site, incarnation, session, low, operations: vec![Submission { sequence, timeout, operation }] }
}

/// Reads the id of a unary call's operation.
pub fn operation_id(id: Option<v1::OperationId>) -> Result<OperationId, Invalid> {
    convert(id, "operation")
}

// Names.

same_fields! {
    SiteId = v1::SiteId { region, lane }
    OperationId = v1::OperationId { site, incarnation, session, sequence }
}

nested!(SiteId = v1::SiteId);

impl From<GrantId> for v1::GrantId {
    fn from(grant: GrantId) -> Self {
        Self {
            region: grant.site.region.into(),
            lane: grant.site.lane.into(),
            incarnation: grant.incarnation.0,
            number: grant.number,
        }
    }
}

impl TryFrom<v1::GrantId> for GrantId {
    type Error = Invalid;

    fn try_from(grant: v1::GrantId) -> Result<Self, Invalid> {
        Ok(Self {
            site: v1::SiteId { region: grant.region, lane: grant.lane }.try_into()?,
            incarnation: Incarnation(grant.incarnation),
            number: grant.number,
        })
    }
}

// Requests.

/// The hold of an acquire.
fn hold(hold: i32, duration: u64) -> Result<Hold, Invalid> {
    // A duration without HOLD_FOR is a client that forgot the kind: its tokens would be out without an end.
    match (v1::Hold::try_from(hold), duration) {
        (Ok(v1::Hold::For), duration) => Ok(Hold::For(duration)),
        (Ok(v1::Hold::Counted), 0) => Ok(Hold::Counted),
        (Ok(v1::Hold::Open), 0) => Ok(Hold::Open),
        (Ok(_), _) => Err(Invalid::new("hold_us", "is given but hold is not HOLD_FOR")),
        (Err(_), _) => Err(Invalid::new("hold", "has an unknown value")),
    }
}

fn lost_to_wire((site, incarnation): (SiteId, Incarnation)) -> v1::LostIncarnation {
    v1::LostIncarnation { site: Some(site.into()), incarnation: incarnation.0 }
}

fn lost_incarnations(lost: Vec<v1::LostIncarnation>) -> Result<Vec<(SiteId, Incarnation)>, Invalid> {
    if lost.is_empty() || lost.len() > MEMBERS {
        return Err(Invalid::new("lost", "names 1 to 64 incarnations"));
    }
    lost.into_iter().map(|lost| Ok((convert(lost.site, "lost.site")?, Incarnation(lost.incarnation)))).collect()
}

impl From<Submission> for v1::Operation {
    fn from(submission: Submission) -> Self {
        let mut flat =
            v1::Operation { sequence: submission.sequence, timeout_us: submission.timeout, ..Default::default() };
        match submission.operation {
            Operation::Acquire { quota, amount, hold, waits } => {
                flat.set_kind(v1::OperationKind::Acquire);
                flat.quota = quota;
                flat.amount = amount;
                flat.wait = waits;
                match hold {
                    Hold::Counted => flat.set_hold(v1::Hold::Counted),
                    Hold::Open => flat.set_hold(v1::Hold::Open),
                    Hold::For(duration) => {
                        flat.set_hold(v1::Hold::For);
                        flat.hold_us = duration;
                    }
                }
            }
            Operation::Release { quota, amount } => {
                flat.set_kind(v1::OperationKind::Release);
                flat.quota = quota;
                flat.amount = amount;
            }
            Operation::ReleaseGrant { grant, used } => {
                // A kind of its own: a site that does not know it must not take it for a release of all.
                flat.set_kind(match used {
                    0 => v1::OperationKind::ReleaseGrant,
                    _ => v1::OperationKind::SettleGrant,
                });
                flat.grant = Some(grant.into());
                flat.amount = used;
            }
            Operation::ExtendGrant { grant, micros } => {
                flat.set_kind(v1::OperationKind::ExtendGrant);
                flat.grant = Some(grant.into());
                flat.hold_us = micros;
            }
            Operation::Create { quota, limit, charter } => {
                flat.set_kind(v1::OperationKind::Create);
                flat.quota = quota;
                flat.amount = limit;
                flat.agreement = charter.agreement.to_wire();
                flat.refill_millionths = charter.refill;
                flat.parent_bytes = charter.parent.map_or(0, |parent| parent.length.into());
            }
            Operation::SetLimit { quota, limit } => {
                flat.set_kind(v1::OperationKind::SetLimit);
                flat.quota = quota;
                flat.amount = limit;
            }
            Operation::Reclaim { quota, lost, in_use } => {
                flat.set_kind(v1::OperationKind::Reclaim);
                flat.quota = quota;
                flat.amount = in_use;
                flat.lost = lost.into_iter().map(lost_to_wire).collect();
            }
            Operation::Seat { site, change, label } => {
                flat.set_kind(v1::OperationKind::Seat);
                flat.site = Some(site.into());
                flat.seat = change.to_wire();
                flat.label = label;
            }
            Operation::Delete { quota } => {
                flat.set_kind(v1::OperationKind::Delete);
                flat.quota = quota;
            }
            Operation::Commit(transaction) => {
                flat.set_kind(v1::OperationKind::Commit);
                flat.transaction = Some(Box::new((*transaction).into()));
            }
            Operation::AcceptLoss => flat.set_kind(v1::OperationKind::AcceptLoss),
        }

        flat
    }
}

impl TryFrom<v1::Operation> for Submission {
    type Error = Invalid;

    fn try_from(flat: v1::Operation) -> Result<Self, Invalid> {
        let (quota, amount) = (flat.quota, flat.amount);
        let operation = match v1::OperationKind::try_from(flat.kind) {
            Ok(v1::OperationKind::Acquire) => {
                Operation::Acquire { quota, amount, hold: hold(flat.hold, flat.hold_us)?, waits: flat.wait }
            }
            Ok(v1::OperationKind::Release) => Operation::Release { quota, amount },
            Ok(v1::OperationKind::ReleaseGrant) => {
                Operation::ReleaseGrant { grant: convert(flat.grant, "grant")?, used: 0 }
            }
            Ok(v1::OperationKind::SettleGrant) => {
                Operation::ReleaseGrant { grant: convert(flat.grant, "grant")?, used: amount }
            }
            Ok(v1::OperationKind::ExtendGrant) => {
                Operation::ExtendGrant { grant: convert(flat.grant, "grant")?, micros: flat.hold_us }
            }
            Ok(v1::OperationKind::Create) => {
                let agreement = Field::from_wire(flat.agreement, "agreement")?;
                let parent = parent(flat.parent_bytes)?;
                let charter = Charter { agreement, refill: flat.refill_millionths, parent };
                Operation::Create { quota, limit: amount, charter }
            }
            Ok(v1::OperationKind::SetLimit) => Operation::SetLimit { quota, limit: amount },
            Ok(v1::OperationKind::Reclaim) => {
                Operation::Reclaim { quota, lost: lost_incarnations(flat.lost)?, in_use: amount }
            }
            Ok(v1::OperationKind::Seat) => {
                let change = Field::from_wire(flat.seat, "seat")?;
                Operation::Seat { site: convert(flat.site, "site")?, change, label: flat.label }
            }
            Ok(v1::OperationKind::Delete) => Operation::Delete { quota },
            Ok(v1::OperationKind::Commit) => {
                let transaction = flat.transaction.map(|transaction| *transaction);
                Operation::Commit(Box::new(convert(transaction, "transaction")?))
            }
            Ok(v1::OperationKind::AcceptLoss) => Operation::AcceptLoss,
            Ok(v1::OperationKind::Unspecified) => return Err(Invalid::new("kind", "is missing")),
            Err(_) => return Err(Invalid::new("kind", "has an unknown value")),
        };

        Ok(Self { sequence: flat.sequence, timeout: flat.timeout_us, operation })
    }
}

same_fields! {
    Batch = v1::Batch { site, incarnation, session, low, operations }
}

lists! {
    Submission = v1::Operation, at most BATCH_OPERATIONS;
}

pub(crate) fn close(site: SiteId, incarnation: Incarnation, session: SessionId) -> v1::Close {
    v1::Close { site: Some(site.into()), incarnation: incarnation.0, session: session.0 }
}

impl TryFrom<v1::Close> for Request {
    type Error = Invalid;

    fn try_from(close: v1::Close) -> Result<Self, Invalid> {
        Ok(Request::Close {
            site: convert(close.site, "site")?,
            incarnation: Incarnation(close.incarnation),
            session: SessionId(close.session),
        })
    }
}

impl TryFrom<v1::Ask> for Request {
    type Error = Invalid;

    fn try_from(ask: v1::Ask) -> Result<Self, Invalid> {
        Ok(Request::Ask { operation: convert(ask.operation, "operation")? })
    }
}

impl From<v1::ShowQuotaRequest> for Request {
    fn from(show: v1::ShowQuotaRequest) -> Self {
        Request::Show { quota: show.quota, timeout: show.timeout_us, local: show.local }
    }
}

impl From<v1::ListQuotasRequest> for Request {
    fn from(list: v1::ListQuotasRequest) -> Self {
        Request::List { after: list.after, limit: list.limit }
    }
}

impl TryFrom<v1::SessionRequest> for Request {
    type Error = Invalid;

    fn try_from(message: v1::SessionRequest) -> Result<Self, Invalid> {
        use v1::session_request::Request as Kind;
        match required(message.request, "request")? {
            Kind::Open(_) => Ok(Request::Open),
            Kind::Batch(batch) => Ok(Request::Batch(inner(batch, "batch")?)),
            Kind::Ask(ask) => inner(ask, "ask"),
            Kind::Close(close) => inner(close, "close"),
            Kind::Read(read) => Ok(Request::Read(Box::new(inner(read, "read")?))),
        }
    }
}

/// Fails for requests that have a unary call only.
impl TryFrom<Request> for v1::SessionRequest {
    type Error = Invalid;

    fn try_from(request: Request) -> Result<Self, Invalid> {
        use v1::session_request::Request as Kind;
        let request = match request {
            Request::Open => Kind::Open(v1::Open {}),
            Request::Batch(batch) => Kind::Batch(batch.into()),
            Request::Ask { operation } => Kind::Ask(v1::Ask { operation: Some(operation.into()) }),
            Request::Close { site, incarnation, session } => Kind::Close(close(site, incarnation, session)),
            Request::Read(read) => Kind::Read((*read).into()),
            Request::Explain { .. }
            | Request::Show { .. }
            | Request::List { .. }
            | Request::Treaties { .. }
            | Request::Status
            | Request::Drain { .. }
            | Request::Expect(_) => {
                return Err(Invalid::new("request", "does not travel on a session stream"));
            }
        };

        Ok(Self { request: Some(request) })
    }
}

// Responses.

impl From<Refusal> for v1::Refusal {
    fn from(refusal: Refusal) -> Self {
        let (reason, amount, sites) = match refusal {
            Refusal::UnknownQuota => (v1::Reason::UnknownQuota, 0, 0),
            Refusal::Exhausted { asked, .. } => (v1::Reason::Exhausted, 0, asked.0),
            Refusal::RefillDiffers { refill } => (v1::Reason::RefillDiffers, refill as i64, 0),
            Refusal::Refills => (v1::Reason::Refills, 0, 0),
            Refusal::InvalidAmount => (v1::Reason::InvalidAmount, 0, 0),
            Refusal::InvalidName => (v1::Reason::InvalidName, 0, 0),
            Refusal::LimitDiffers { limit } => (v1::Reason::LimitDiffers, limit, 0),
            Refusal::AgreementDiffers { agreement } => {
                (v1::Reason::AgreementDiffers, i64::from(agreement.to_wire()), 0)
            }
            Refusal::AboveOut { at_most } => (v1::Reason::AboveOut, at_most, 0),
            Refusal::AboveLimit { limit, .. } => (v1::Reason::AboveLimit, limit, 0),
            Refusal::InvalidParent => (v1::Reason::InvalidParent, 0, 0),
            Refusal::NoParent => (v1::Reason::NoParent, 0, 0),
            Refusal::ParentDiffers => (v1::Reason::ParentDiffers, 0, 0),
            Refusal::MixedRefill => (v1::Reason::MixedRefill, 0, 0),
            Refusal::TooDeep => (v1::Reason::TooDeep, 0, 0),
            Refusal::HasChildren => (v1::Reason::HasChildren, 0, 0),
            Refusal::InUse { amount } => (v1::Reason::InUse, amount, 0),
            Refusal::UnknownGrant => (v1::Reason::UnknownGrant, 0, 0),
            Refusal::QuotaDeleted => (v1::Reason::QuotaDeleted, 0, 0),
            Refusal::Overloaded => (v1::Reason::Overloaded, 0, 0),
            Refusal::DeadlinePassed => (v1::Reason::DeadlinePassed, 0, 0),
            Refusal::Unreachable { missing } => (v1::Reason::Unreachable, 0, missing.0),
            Refusal::Withdrawn => (v1::Reason::Withdrawn, 0, 0),
            Refusal::OtherContent => (v1::Reason::OtherContent, 0, 0),
            Refusal::SessionEnded => (v1::Reason::SessionEnded, 0, 0),
            Refusal::NotReady => (v1::Reason::NotReady, 0, 0),
            Refusal::StorageFull => (v1::Reason::StorageFull, 0, 0),
            Refusal::AboveGrant { amount } => (v1::Reason::AboveGrant, amount, 0),
            Refusal::Settled => (v1::Reason::Settled, 0, 0),
            Refusal::NoEnd => (v1::Reason::NoEnd, 0, 0),
            Refusal::IncarnationLives => (v1::Reason::IncarnationLives, 0, 0),
            Refusal::NothingLost => (v1::Reason::NothingLost, 0, 0),
            Refusal::AlsoLost { sites } => (v1::Reason::AlsoLost, 0, sites.0),
            Refusal::AboveLost { at_most } => (v1::Reason::AboveLost, at_most, 0),
            Refusal::NoSeat { why, count } => (reason_of_no_seat(why), i64::try_from(count).unwrap_or(i64::MAX), 0),
            Refusal::BelowReleased { at_least } => (v1::Reason::BelowReleased, at_least, 0),
        };

        let (retry_after_ms, level) = match refusal {
            Refusal::Exhausted { retry_after, level, .. } => (retry_after, level),
            Refusal::AboveLimit { level, .. } => (None, level),
            _ => (None, 0),
        };
        Self { reason: reason.into(), amount, sites, retry_after_ms, level_bytes: level.into() }
    }
}

impl TryFrom<v1::Refusal> for Refusal {
    type Error = Invalid;

    fn try_from(refusal: v1::Refusal) -> Result<Self, Invalid> {
        let level = u16::try_from(refusal.level_bytes).map_err(|_| Invalid::new("level_bytes", "is out of range"))?;
        let no_seat = |why| Refusal::NoSeat { why, count: u64::try_from(refusal.amount).unwrap_or(0) };
        Ok(match v1::Reason::try_from(refusal.reason) {
            Ok(v1::Reason::WasMember) => no_seat(NoSeat::WasMember),
            Ok(v1::Reason::TooManySites) => no_seat(NoSeat::Full),
            Ok(v1::Reason::NotNext) => no_seat(NoSeat::NotNext),
            Ok(v1::Reason::NoMember) => no_seat(NoSeat::NoMember),
            Ok(v1::Reason::SiteLives) => no_seat(NoSeat::Lives),
            Ok(v1::Reason::Unrecorded) => no_seat(NoSeat::Unrecorded),
            Ok(v1::Reason::Forgetting) => no_seat(NoSeat::Forgetting),
            Ok(v1::Reason::OtherSite) => no_seat(NoSeat::OtherSite),
            Ok(v1::Reason::NotDrained) => no_seat(NoSeat::NotDrained),
            Ok(v1::Reason::HasTokens) => no_seat(NoSeat::HasTokens),
            Ok(v1::Reason::HasGrants) => no_seat(NoSeat::HasGrants),
            Ok(v1::Reason::HasObjects) => no_seat(NoSeat::HasObjects),
            Ok(v1::Reason::HasTransactions) => no_seat(NoSeat::HasTransactions),
            Ok(v1::Reason::LastMember) => no_seat(NoSeat::Last),
            Ok(v1::Reason::Unheard) => no_seat(NoSeat::Unheard),
            Ok(v1::Reason::InvalidParent) => Refusal::InvalidParent,
            Ok(v1::Reason::NoParent) => Refusal::NoParent,
            Ok(v1::Reason::ParentDiffers) => Refusal::ParentDiffers,
            Ok(v1::Reason::MixedRefill) => Refusal::MixedRefill,
            Ok(v1::Reason::TooDeep) => Refusal::TooDeep,
            Ok(v1::Reason::HasChildren) => Refusal::HasChildren,
            Ok(v1::Reason::InUse) => Refusal::InUse { amount: refusal.amount },
            Ok(v1::Reason::UnknownQuota) => Refusal::UnknownQuota,
            Ok(v1::Reason::Exhausted) => {
                Refusal::Exhausted { asked: SiteSet(refusal.sites), retry_after: refusal.retry_after_ms, level }
            }
            Ok(v1::Reason::RefillDiffers) => Refusal::RefillDiffers { refill: refusal.amount as u64 },
            Ok(v1::Reason::Refills) => Refusal::Refills,
            Ok(v1::Reason::InvalidAmount) => Refusal::InvalidAmount,
            Ok(v1::Reason::InvalidName) => Refusal::InvalidName,
            Ok(v1::Reason::LimitDiffers) => Refusal::LimitDiffers { limit: refusal.amount },
            Ok(v1::Reason::AgreementDiffers) => {
                let agreement = i32::try_from(refusal.amount).unwrap_or(-1);
                Refusal::AgreementDiffers { agreement: Field::from_wire(agreement, "amount")? }
            }
            Ok(v1::Reason::AboveOut) => Refusal::AboveOut { at_most: refusal.amount },
            Ok(v1::Reason::AboveLimit) => Refusal::AboveLimit { limit: refusal.amount, level },
            Ok(v1::Reason::UnknownGrant) => Refusal::UnknownGrant,
            Ok(v1::Reason::QuotaDeleted) => Refusal::QuotaDeleted,
            Ok(v1::Reason::Overloaded) => Refusal::Overloaded,
            Ok(v1::Reason::DeadlinePassed) => Refusal::DeadlinePassed,
            Ok(v1::Reason::Unreachable) => Refusal::Unreachable { missing: SiteSet(refusal.sites) },
            Ok(v1::Reason::Withdrawn) => Refusal::Withdrawn,
            Ok(v1::Reason::OtherContent) => Refusal::OtherContent,
            Ok(v1::Reason::SessionEnded) => Refusal::SessionEnded,
            Ok(v1::Reason::NotReady) => Refusal::NotReady,
            Ok(v1::Reason::StorageFull) => Refusal::StorageFull,
            Ok(v1::Reason::AboveGrant) => Refusal::AboveGrant { amount: refusal.amount },
            Ok(v1::Reason::Settled) => Refusal::Settled,
            Ok(v1::Reason::NoEnd) => Refusal::NoEnd,
            Ok(v1::Reason::IncarnationLives) => Refusal::IncarnationLives,
            Ok(v1::Reason::NothingLost) => Refusal::NothingLost,
            Ok(v1::Reason::AlsoLost) => Refusal::AlsoLost { sites: SiteSet(refusal.sites) },
            Ok(v1::Reason::AboveLost) => Refusal::AboveLost { at_most: refusal.amount },
            Ok(v1::Reason::BelowReleased) => Refusal::BelowReleased { at_least: refusal.amount },
            Ok(v1::Reason::Unspecified) => return Err(Invalid::new("reason", "is missing")),
            Err(_) => return Err(Invalid::new("reason", "has an unknown value")),
        })
    }
}

/// The reason that stands for why the members do not change.
fn reason_of_no_seat(why: NoSeat) -> v1::Reason {
    match why {
        NoSeat::WasMember => v1::Reason::WasMember,
        NoSeat::Full => v1::Reason::TooManySites,
        NoSeat::NotNext => v1::Reason::NotNext,
        NoSeat::NoMember => v1::Reason::NoMember,
        NoSeat::Lives => v1::Reason::SiteLives,
        NoSeat::Unrecorded => v1::Reason::Unrecorded,
        NoSeat::Forgetting => v1::Reason::Forgetting,
        NoSeat::OtherSite => v1::Reason::OtherSite,
        NoSeat::NotDrained => v1::Reason::NotDrained,
        NoSeat::HasTokens => v1::Reason::HasTokens,
        NoSeat::HasGrants => v1::Reason::HasGrants,
        NoSeat::HasObjects => v1::Reason::HasObjects,
        NoSeat::HasTransactions => v1::Reason::HasTransactions,
        NoSeat::Last => v1::Reason::LastMember,
        NoSeat::Unheard => v1::Reason::Unheard,
    }
}

same_variants! {
    SeatChange = v1::SeatChange { Joins, Lost, Drains, Serves, Leaves }
    UnknownReason = v1::Doubt { SiteUnreachable, IncarnationLost, Forgotten, Undecided, HomeLost, NotReady, StorageFull }
    SynchronizationCause = v1::SynchronizationCause { Slack, Retraction, Refused }
    Readiness = v1::Readiness { Joining, Confirming, Ready, Stale, Draining, AwaitingNewStorage, StorageFull }
}

impl From<Answer> for v1::Outcome {
    fn from(answer: Answer) -> Self {
        use v1::outcome::Result as Kind;
        let result = match answer.outcome {
            Outcome::Granted { grant, lasts } => {
                Kind::Granted(v1::Granted { grant: Some(grant.into()), lasts_us: lasts })
            }
            Outcome::Released { amount } => Kind::Released(amount),
            Outcome::Created { limit } => Kind::Created(limit),
            Outcome::Extended { lasts } => Kind::ExtendedUs(lasts),
            Outcome::LimitSet { limit, excess } => Kind::LimitSet(v1::LimitSet { limit, excess }),
            Outcome::Reclaimed { brought, in_use } => Kind::Reclaimed(v1::Reclaimed { brought, in_use }),
            Outcome::Seated { number } => Kind::Seated(number),
            Outcome::Deleted => Kind::Deleted(v1::Deleted {}),
            Outcome::Committed { phases } => Kind::Committed(v1::Committed { phases: phases.into() }),
            Outcome::Aborted(abort) => Kind::Aborted(Box::new((*abort).into())),
            Outcome::LossAccepted => Kind::LossAccepted(v1::LossAccepted {}),
            Outcome::Refused(refusal) => Kind::Refused(refusal.into()),
            Outcome::Unknown(doubt) => Kind::Unknown(doubt.to_wire()),
        };

        Self { sequence: answer.sequence, result: Some(result) }
    }
}

impl TryFrom<v1::Outcome> for Answer {
    type Error = Invalid;

    fn try_from(outcome: v1::Outcome) -> Result<Self, Invalid> {
        use v1::outcome::Result as Kind;
        let sequence = outcome.sequence;
        let outcome = match required(outcome.result, "result")? {
            Kind::Granted(granted) => {
                Outcome::Granted { grant: convert(granted.grant, "granted.grant")?, lasts: granted.lasts_us }
            }
            Kind::Released(amount) => Outcome::Released { amount },
            Kind::Created(limit) => Outcome::Created { limit },
            Kind::ExtendedUs(lasts) => Outcome::Extended { lasts },
            Kind::LimitSet(v1::LimitSet { limit, excess }) => Outcome::LimitSet { limit, excess },
            Kind::Reclaimed(v1::Reclaimed { brought, in_use }) => Outcome::Reclaimed { brought, in_use },
            Kind::Seated(number) => Outcome::Seated { number },
            Kind::Deleted(_) => Outcome::Deleted,
            Kind::Committed(committed) => {
                let phases = u8::try_from(committed.phases);
                Outcome::Committed { phases: phases.map_err(|_| Invalid::new("committed.phases", "is above 255"))? }
            }
            Kind::Aborted(abort) => Outcome::Aborted(Box::new(inner(*abort, "aborted")?)),
            Kind::LossAccepted(_) => Outcome::LossAccepted,
            Kind::Refused(refusal) => Outcome::Refused(inner(refusal, "refused")?),
            Kind::Unknown(doubt) => Outcome::Unknown(Field::from_wire(doubt, "unknown")?),
        };

        Ok(Self { sequence, outcome })
    }
}

impl From<(OperationId, Outcome)> for v1::OutcomeReply {
    fn from((operation, outcome): (OperationId, Outcome)) -> Self {
        let answer = Answer { sequence: operation.sequence, outcome };
        Self { operation: Some(operation.into()), outcome: Some(answer.into()) }
    }
}

impl TryFrom<v1::OutcomeReply> for (OperationId, Outcome) {
    type Error = Invalid;

    fn try_from(reply: v1::OutcomeReply) -> Result<Self, Invalid> {
        let answer: Answer = convert(reply.outcome, "outcome")?;
        Ok((convert(reply.operation, "operation")?, answer.outcome))
    }
}

pub(crate) fn asked(reply: v1::OutcomeReply) -> Result<Response, Invalid> {
    let (operation, outcome) = inner(reply, "asked")?;
    Ok(Response::Asked { operation, outcome })
}

pub(crate) fn opened(site: SiteId, incarnation: Incarnation, session: SessionId) -> v1::Opened {
    v1::Opened { site: Some(site.into()), incarnation: incarnation.0, session: session.0 }
}

impl TryFrom<v1::Opened> for Response {
    type Error = Invalid;

    fn try_from(opened: v1::Opened) -> Result<Self, Invalid> {
        Ok(Response::Opened {
            site: convert(opened.site, "site")?,
            incarnation: Incarnation(opened.incarnation),
            session: SessionId(opened.session),
        })
    }
}

pub(crate) fn answers(session: SessionId, answers: Vec<Answer>) -> v1::Answers {
    v1::Answers { session: session.0, outcomes: answers.into_iter().map(Into::into).collect() }
}

impl TryFrom<v1::Answers> for Response {
    type Error = Invalid;

    fn try_from(answers: v1::Answers) -> Result<Self, Invalid> {
        Ok(Response::Batch {
            session: SessionId(answers.session),
            answers: convert_all(answers.outcomes, usize::MAX, "outcomes")?,
        })
    }
}

impl TryFrom<v1::SessionReply> for Response {
    type Error = Invalid;

    fn try_from(message: v1::SessionReply) -> Result<Self, Invalid> {
        use v1::session_reply::Reply as Kind;
        match required(message.reply, "reply")? {
            Kind::Opened(opened) => inner(opened, "opened"),
            Kind::NotOpened(refusal) => Ok(Response::NotOpened(inner(refusal, "not_opened")?)),
            Kind::Batch(answers) => inner(answers, "batch"),
            Kind::Asked(reply) => asked(reply),
            Kind::Closed(_) => Ok(Response::Closed),
            Kind::Read(reading) => Ok(Response::Read(Box::new(inner(reading, "read")?))),
        }
    }
}

/// Fails for responses to unary calls.
impl TryFrom<Response> for v1::SessionReply {
    type Error = Invalid;

    fn try_from(response: Response) -> Result<Self, Invalid> {
        use v1::session_reply::Reply as Kind;
        let reply = match response {
            Response::Opened { site, incarnation, session } => Kind::Opened(opened(site, incarnation, session)),
            Response::NotOpened(refusal) => Kind::NotOpened(refusal.into()),
            Response::Batch { session, answers: all } => Kind::Batch(answers(session, all)),
            Response::Asked { operation, outcome } => Kind::Asked((operation, outcome).into()),
            Response::Closed => Kind::Closed(v1::Closed {}),
            Response::Read(reading) => Kind::Read((*reading).into()),
            Response::Explained { .. }
            | Response::Shown(_)
            | Response::Listed(_)
            | Response::Treaties(_)
            | Response::Status(_)
            | Response::Drained => {
                return Err(Invalid::new("reply", "does not travel on a session stream"));
            }
        };

        Ok(Self { reply: Some(reply) })
    }
}

impl From<Result<Shown, Refusal>> for v1::ShowQuotaReply {
    fn from(shown: Result<Shown, Refusal>) -> Self {
        use v1::show_quota_reply::Result as Kind;
        Self {
            result: Some(match shown {
                Ok(shown) => Kind::Shown(shown.into()),
                Err(refusal) => Kind::Refused(refusal.into()),
            }),
        }
    }
}

impl TryFrom<v1::ShowQuotaReply> for Result<Shown, Refusal> {
    type Error = Invalid;

    fn try_from(reply: v1::ShowQuotaReply) -> Result<Self, Invalid> {
        use v1::show_quota_reply::Result as Kind;
        Ok(match required(reply.result, "result")? {
            Kind::Shown(shown) => Ok(inner(shown, "shown")?),
            Kind::Refused(refusal) => Err(inner(refusal, "refused")?),
        })
    }
}

impl Field<i32> for Agreement {
    fn to_wire(self) -> i32 {
        match self {
            Agreement::Majority => v1::Agreement::Majority.into(),
            Agreement::Any => v1::Agreement::Any.into(),
        }
    }

    fn from_wire(wire: i32, name: &str) -> Result<Self, Invalid> {
        // What is left out is what it always was.
        match v1::Agreement::try_from(wire) {
            Ok(v1::Agreement::Majority) => Ok(Agreement::Majority),
            Ok(v1::Agreement::Any) => Ok(Agreement::Any),
            Err(_) => Err(Invalid::new(name, "has an unknown value")),
        }
    }
}

same_fields! {
    Shown = v1::Shown {
        name, limit, agreement, excess, in_use_min, in_use_max, estimate, sites, missing, released_above;
        refill = refill_millionths
        and work: Work { local = local, rebalances = rebalances, gifts = gifts }
    }
    ShownSite = v1::ShownSite { site, tokens, set_aside, incarnation; age = age_us }
    Listed = v1::Listed { name, limit, tokens; parent = parent_bytes }
    Status = v1::StatusReply {
        site, incarnation, life, readiness, waiting_for, peers, quotas, unrecorded, sessions, membership,
        drained
        and clock: ClockStatus { epsilon = epsilon_us, error = clock_error_us, is_trusted = clock_trusted }
    }
    PeerStatus = v1::PeerStatus { site, up, incarnation, unrecorded; rtt = rtt_us, offset = offset_us }
}

lists! {
    ShownSite = v1::ShownSite, at most MEMBERS;
    PeerStatus = v1::PeerStatus, at most MEMBERS;
    Listed = v1::Listed, at most LISTED;
}

impl From<Vec<Listed>> for v1::ListQuotasReply {
    fn from(quotas: Vec<Listed>) -> Self {
        Self { quotas: quotas.to_wire() }
    }
}

impl TryFrom<v1::ListQuotasReply> for Vec<Listed> {
    type Error = Invalid;

    fn try_from(reply: v1::ListQuotasReply) -> Result<Self, Invalid> {
        Field::from_wire(reply.quotas, "quotas")
    }
}

// Unary calls: the operation that each stands for.

impl TryFrom<v1::AcquireRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::AcquireRequest) -> Result<Self, Invalid> {
        let hold = hold(call.hold, call.hold_us)?;
        let operation = Operation::Acquire { quota: call.quota, amount: call.amount, hold, waits: call.wait };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::ReleaseRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::ReleaseRequest) -> Result<Self, Invalid> {
        let operation = Operation::Release { quota: call.quota, amount: call.amount };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::ReleaseGrantRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::ReleaseGrantRequest) -> Result<Self, Invalid> {
        let operation = Operation::ReleaseGrant { grant: convert(call.grant, "grant")?, used: 0 };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::SettleGrantRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::SettleGrantRequest) -> Result<Self, Invalid> {
        let operation = Operation::ReleaseGrant { grant: convert(call.grant, "grant")?, used: call.used };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::ExtendGrantRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::ExtendGrantRequest) -> Result<Self, Invalid> {
        let operation = Operation::ExtendGrant { grant: convert(call.grant, "grant")?, micros: call.hold_us };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::CreateQuotaRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::CreateQuotaRequest) -> Result<Self, Invalid> {
        let agreement = Field::from_wire(call.agreement, "agreement")?;
        let parent = parent(call.parent_bytes)?;
        let charter = Charter { agreement, refill: call.refill_millionths, parent };
        let operation = Operation::Create { quota: call.quota, limit: call.limit, charter };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::SetLimitRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::SetLimitRequest) -> Result<Self, Invalid> {
        let operation = Operation::SetLimit { quota: call.quota, limit: call.limit };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::ReclaimQuotaRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::ReclaimQuotaRequest) -> Result<Self, Invalid> {
        let lost = lost_incarnations(call.lost)?;
        let operation = Operation::Reclaim { quota: call.quota, lost, in_use: call.in_use };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::ChangeMembersRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::ChangeMembersRequest) -> Result<Self, Invalid> {
        let (site, change) = (convert(call.site, "site")?, Field::from_wire(call.seat, "seat")?);
        Ok(single(
            operation_id(call.operation)?,
            call.low,
            call.timeout_us,
            Operation::Seat { site, change, label: call.label },
        ))
    }
}

impl TryFrom<v1::DeleteQuotaRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::DeleteQuotaRequest) -> Result<Self, Invalid> {
        let operation = Operation::Delete { quota: call.quota };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::CommitTransactionRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::CommitTransactionRequest) -> Result<Self, Invalid> {
        let operation = Operation::Commit(Box::new(convert(call.transaction, "transaction")?));
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::AcceptLossRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::AcceptLossRequest) -> Result<Self, Invalid> {
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, Operation::AcceptLoss))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sites, clients and people have put quotas into these lanes: another hash would look for them elsewhere.
    #[test]
    fn lane_of_a_name_is_the_same_for_ever() {
        for (quota, lanes, lane) in [("gpus", 7, 4), ("acme/web", 16, 15), ("eu-tokens", 1_000, 552)] {
            assert_eq!(lane_of(quota, lanes), lane, "{quota} among {lanes}");
        }
    }
}
