//! Conversions of what clients and sites say to each other.

use slackline_core::api::{
    Answer, BATCH_OPERATIONS, Batch, Doubt, Hold, Listed, Operation, Outcome, PeerStatus, Readiness, Refusal, Request,
    Response, Shown, ShownSite, SiteSet, Status, Submission,
};
use slackline_core::id::{GrantId, Incarnation, Life, OperationId, SessionId, SiteId};

use crate::{Invalid, convert, convert_all, required, v1};

/// The most members of a lane.
const MEMBERS: usize = 64;
/// The most entries of a list of quotas.
const LISTED: usize = 1000;

/// The lane that a quota of this name lives in: the 64-bit FNV-1a hash of the name's bytes, modulo `lanes`.
pub fn lane_of(quota: &str, lanes: u16) -> u16 {
    let hash = quota
        .bytes()
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

impl From<SiteId> for v1::SiteId {
    fn from(site: SiteId) -> Self {
        Self { region: site.region.into(), lane: site.lane.into() }
    }
}

impl TryFrom<v1::SiteId> for SiteId {
    type Error = Invalid;

    fn try_from(site: v1::SiteId) -> Result<Self, Invalid> {
        Ok(Self { region: short(site.region, "region")?, lane: short(site.lane, "lane")? })
    }
}

fn short(value: u32, field: &str) -> Result<u16, Invalid> {
    u16::try_from(value).map_err(|_| Invalid::new(field, "is above 65535"))
}

impl From<OperationId> for v1::OperationId {
    fn from(id: OperationId) -> Self {
        Self { site: Some(id.site.into()), incarnation: id.incarnation.0, session: id.session.0, sequence: id.sequence }
    }
}

impl TryFrom<v1::OperationId> for OperationId {
    type Error = Invalid;

    fn try_from(id: v1::OperationId) -> Result<Self, Invalid> {
        Ok(Self {
            site: convert(id.site, "site")?,
            incarnation: Incarnation(id.incarnation),
            session: SessionId(id.session),
            sequence: id.sequence,
        })
    }
}

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
            site: SiteId { region: short(grant.region, "region")?, lane: short(grant.lane, "lane")? },
            incarnation: Incarnation(grant.incarnation),
            number: grant.number,
        })
    }
}

// Requests.

fn hold(hold: i32, duration: u64) -> Result<Hold, Invalid> {
    match (v1::Hold::try_from(hold), duration) {
        (Ok(v1::Hold::For), duration) => Ok(Hold::For(duration)),
        (Ok(v1::Hold::Counted), 0) => Ok(Hold::Counted),
        (Ok(v1::Hold::Open), 0) => Ok(Hold::Open),
        (Ok(_), _) => Err(Invalid::new("hold_us", "is given but hold is not HOLD_FOR")),
        (Err(_), _) => Err(Invalid::new("hold", "has an unknown value")),
    }
}

impl From<Submission> for v1::Operation {
    fn from(submission: Submission) -> Self {
        let mut flat =
            v1::Operation { sequence: submission.sequence, timeout_us: submission.timeout, ..Default::default() };
        match submission.operation {
            Operation::Acquire { quota, amount, hold } => {
                flat.set_kind(v1::OperationKind::Acquire);
                flat.quota = quota;
                flat.amount = amount;
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
            Operation::ReleaseGrant { grant } => {
                flat.set_kind(v1::OperationKind::ReleaseGrant);
                flat.grant = Some(grant.into());
            }
            Operation::Create { quota, limit } => {
                flat.set_kind(v1::OperationKind::Create);
                flat.quota = quota;
                flat.amount = limit;
            }
            Operation::Delete { quota } => {
                flat.set_kind(v1::OperationKind::Delete);
                flat.quota = quota;
            }
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
                Operation::Acquire { quota, amount, hold: hold(flat.hold, flat.hold_us)? }
            }
            Ok(v1::OperationKind::Release) => Operation::Release { quota, amount },
            Ok(v1::OperationKind::ReleaseGrant) => Operation::ReleaseGrant { grant: convert(flat.grant, "grant")? },
            Ok(v1::OperationKind::Create) => Operation::Create { quota, limit: amount },
            Ok(v1::OperationKind::Delete) => Operation::Delete { quota },
            Ok(v1::OperationKind::Unspecified) => return Err(Invalid::new("kind", "is missing")),
            Err(_) => return Err(Invalid::new("kind", "has an unknown value")),
        };
        Ok(Self { sequence: flat.sequence, timeout: flat.timeout_us, operation })
    }
}

impl From<Batch> for v1::Batch {
    fn from(batch: Batch) -> Self {
        Self {
            site: Some(batch.site.into()),
            incarnation: batch.incarnation.0,
            session: batch.session.0,
            low: batch.low,
            operations: batch.operations.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Batch> for Batch {
    type Error = Invalid;

    fn try_from(batch: v1::Batch) -> Result<Self, Invalid> {
        Ok(Self {
            site: convert(batch.site, "site")?,
            incarnation: Incarnation(batch.incarnation),
            session: SessionId(batch.session),
            low: batch.low,
            operations: convert_all(batch.operations, BATCH_OPERATIONS, "operations")?,
        })
    }
}

fn close(close: v1::Close) -> Result<Request, Invalid> {
    Ok(Request::Close {
        site: convert(close.site, "site")?,
        incarnation: Incarnation(close.incarnation),
        session: SessionId(close.session),
    })
}

impl TryFrom<v1::Close> for Request {
    type Error = Invalid;

    fn try_from(message: v1::Close) -> Result<Self, Invalid> {
        close(message)
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
        Request::Show { quota: show.quota, timeout: show.timeout_us }
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
            Kind::Batch(batch) => {
                batch.try_into().map(Request::Batch).map_err(|invalid: Invalid| invalid.within("batch"))
            }
            Kind::Ask(ask) => ask.try_into().map_err(|invalid: Invalid| invalid.within("ask")),
            Kind::Close(message) => close(message).map_err(|invalid| invalid.within("close")),
        }
    }
}

/// A request that travels on a session stream; none of the others does.
impl TryFrom<Request> for v1::SessionRequest {
    type Error = Invalid;

    fn try_from(request: Request) -> Result<Self, Invalid> {
        use v1::session_request::Request as Kind;
        let request = match request {
            Request::Open => Kind::Open(v1::Open {}),
            Request::Batch(batch) => Kind::Batch(batch.into()),
            Request::Ask { operation } => Kind::Ask(v1::Ask { operation: Some(operation.into()) }),
            Request::Close { site, incarnation, session } => {
                Kind::Close(v1::Close { site: Some(site.into()), incarnation: incarnation.0, session: session.0 })
            }
            Request::Show { .. } | Request::List { .. } | Request::Status | Request::Drain => {
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
            Refusal::Exhausted { asked } => (v1::Reason::Exhausted, 0, asked.0),
            Refusal::InvalidAmount => (v1::Reason::InvalidAmount, 0, 0),
            Refusal::InvalidName => (v1::Reason::InvalidName, 0, 0),
            Refusal::LimitDiffers { limit } => (v1::Reason::LimitDiffers, limit, 0),
            Refusal::AboveOut { at_most } => (v1::Reason::AboveOut, at_most, 0),
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
        };
        Self { reason: reason.into(), amount, sites }
    }
}

impl TryFrom<v1::Refusal> for Refusal {
    type Error = Invalid;

    fn try_from(refusal: v1::Refusal) -> Result<Self, Invalid> {
        Ok(match v1::Reason::try_from(refusal.reason) {
            Ok(v1::Reason::UnknownQuota) => Refusal::UnknownQuota,
            Ok(v1::Reason::Exhausted) => Refusal::Exhausted { asked: SiteSet(refusal.sites) },
            Ok(v1::Reason::InvalidAmount) => Refusal::InvalidAmount,
            Ok(v1::Reason::InvalidName) => Refusal::InvalidName,
            Ok(v1::Reason::LimitDiffers) => Refusal::LimitDiffers { limit: refusal.amount },
            Ok(v1::Reason::AboveOut) => Refusal::AboveOut { at_most: refusal.amount },
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
            Ok(v1::Reason::Unspecified) => return Err(Invalid::new("reason", "is missing")),
            Err(_) => return Err(Invalid::new("reason", "has an unknown value")),
        })
    }
}

impl From<Doubt> for v1::Doubt {
    fn from(doubt: Doubt) -> Self {
        match doubt {
            Doubt::SiteUnreachable => v1::Doubt::SiteUnreachable,
            Doubt::IncarnationLost => v1::Doubt::IncarnationLost,
            Doubt::Forgotten => v1::Doubt::Forgotten,
            Doubt::Undecided => v1::Doubt::Undecided,
        }
    }
}

fn doubt(doubt: i32) -> Result<Doubt, Invalid> {
    match v1::Doubt::try_from(doubt) {
        Ok(v1::Doubt::SiteUnreachable) => Ok(Doubt::SiteUnreachable),
        Ok(v1::Doubt::IncarnationLost) => Ok(Doubt::IncarnationLost),
        Ok(v1::Doubt::Forgotten) => Ok(Doubt::Forgotten),
        Ok(v1::Doubt::Undecided) => Ok(Doubt::Undecided),
        Ok(v1::Doubt::Unspecified) => Err(Invalid::new("unknown", "is missing")),
        Err(_) => Err(Invalid::new("unknown", "has an unknown value")),
    }
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
            Outcome::Deleted => Kind::Deleted(v1::Deleted {}),
            Outcome::Refused(refusal) => Kind::Refused(refusal.into()),
            Outcome::Unknown(doubt) => Kind::Unknown(v1::Doubt::from(doubt).into()),
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
                let grant = convert(granted.grant, "grant").map_err(|invalid| invalid.within("granted"))?;
                Outcome::Granted { grant, lasts: granted.lasts_us }
            }
            Kind::Released(amount) => Outcome::Released { amount },
            Kind::Created(limit) => Outcome::Created { limit },
            Kind::Deleted(_) => Outcome::Deleted,
            Kind::Refused(refusal) => {
                Outcome::Refused(refusal.try_into().map_err(|invalid: Invalid| invalid.within("refused"))?)
            }
            Kind::Unknown(kind) => Outcome::Unknown(doubt(kind)?),
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

fn opened(opened: v1::Opened) -> Result<Response, Invalid> {
    Ok(Response::Opened {
        site: convert(opened.site, "site")?,
        incarnation: Incarnation(opened.incarnation),
        session: SessionId(opened.session),
    })
}

impl TryFrom<v1::Opened> for Response {
    type Error = Invalid;

    fn try_from(message: v1::Opened) -> Result<Self, Invalid> {
        opened(message)
    }
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
            Kind::Opened(message) => opened(message).map_err(|invalid| invalid.within("opened")),
            Kind::NotOpened(refusal) => {
                refusal.try_into().map(Response::NotOpened).map_err(|invalid: Invalid| invalid.within("not_opened"))
            }
            Kind::Batch(answers) => answers.try_into().map_err(|invalid: Invalid| invalid.within("batch")),
            Kind::Asked(reply) => {
                let (operation, outcome) = reply.try_into().map_err(|invalid: Invalid| invalid.within("asked"))?;
                Ok(Response::Asked { operation, outcome })
            }
            Kind::Closed(_) => Ok(Response::Closed),
        }
    }
}

/// A response that travels on a session stream; none of the others does.
impl TryFrom<Response> for v1::SessionReply {
    type Error = Invalid;

    fn try_from(response: Response) -> Result<Self, Invalid> {
        use v1::session_reply::Reply as Kind;
        let reply = match response {
            Response::Opened { site, incarnation, session } => {
                Kind::Opened(v1::Opened { site: Some(site.into()), incarnation: incarnation.0, session: session.0 })
            }
            Response::NotOpened(refusal) => Kind::NotOpened(refusal.into()),
            Response::Batch { session, answers } => {
                Kind::Batch(v1::Answers { session: session.0, outcomes: answers.into_iter().map(Into::into).collect() })
            }
            Response::Asked { operation, outcome } => Kind::Asked((operation, outcome).into()),
            Response::Closed => Kind::Closed(v1::Closed {}),
            Response::Shown(_) | Response::Listed(_) | Response::Status(_) | Response::Drained => {
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
            Kind::Shown(shown) => Ok(shown.try_into().map_err(|invalid: Invalid| invalid.within("shown"))?),
            Kind::Refused(refusal) => Err(refusal.try_into().map_err(|invalid: Invalid| invalid.within("refused"))?),
        })
    }
}

impl From<Shown> for v1::Shown {
    fn from(shown: Shown) -> Self {
        let site = |site: ShownSite| v1::ShownSite {
            site: Some(site.site.into()),
            tokens: site.tokens,
            set_aside: site.set_aside,
            incarnation: site.incarnation.0,
        };
        Self {
            name: shown.name,
            limit: shown.limit,
            in_use_min: shown.in_use_min,
            in_use_max: shown.in_use_max,
            sites: shown.sites.into_iter().map(site).collect(),
            missing: shown.missing.0,
            local: shown.local,
            rebalances: shown.rebalances,
            gifts: shown.gifts,
            released_above: shown.released_above,
        }
    }
}

impl TryFrom<v1::Shown> for Shown {
    type Error = Invalid;

    fn try_from(shown: v1::Shown) -> Result<Self, Invalid> {
        Ok(Self {
            name: shown.name,
            limit: shown.limit,
            in_use_min: shown.in_use_min,
            in_use_max: shown.in_use_max,
            sites: convert_all(shown.sites, MEMBERS, "sites")?,
            missing: SiteSet(shown.missing),
            local: shown.local,
            rebalances: shown.rebalances,
            gifts: shown.gifts,
            released_above: shown.released_above,
        })
    }
}

impl TryFrom<v1::ShownSite> for ShownSite {
    type Error = Invalid;

    fn try_from(site: v1::ShownSite) -> Result<Self, Invalid> {
        Ok(Self {
            site: convert(site.site, "site")?,
            tokens: site.tokens,
            set_aside: site.set_aside,
            incarnation: Incarnation(site.incarnation),
        })
    }
}

impl From<Vec<Listed>> for v1::ListQuotasReply {
    fn from(quotas: Vec<Listed>) -> Self {
        let listed = |quota: Listed| v1::Listed { name: quota.name, limit: quota.limit, tokens: quota.tokens };
        Self { quotas: quotas.into_iter().map(listed).collect() }
    }
}

impl TryFrom<v1::ListQuotasReply> for Vec<Listed> {
    type Error = Invalid;

    fn try_from(reply: v1::ListQuotasReply) -> Result<Self, Invalid> {
        if reply.quotas.len() > LISTED {
            return Err(Invalid::new("quotas", "has too many entries"));
        }
        let listed = |quota: v1::Listed| Listed { name: quota.name, limit: quota.limit, tokens: quota.tokens };
        Ok(reply.quotas.into_iter().map(listed).collect())
    }
}

impl From<Status> for v1::StatusReply {
    fn from(status: Status) -> Self {
        let readiness = match status.readiness {
            Readiness::Joining => v1::Readiness::Joining,
            Readiness::Confirming => v1::Readiness::Confirming,
            Readiness::Ready => v1::Readiness::Ready,
            Readiness::Stale => v1::Readiness::Stale,
            Readiness::Draining => v1::Readiness::Draining,
        };
        let peer = |peer: PeerStatus| v1::PeerStatus {
            site: Some(peer.site.into()),
            up: peer.up,
            rtt_us: peer.rtt,
            offset_us: peer.offset,
        };
        Self {
            site: Some(status.site.into()),
            incarnation: status.incarnation.0,
            life: status.life.0,
            readiness: readiness.into(),
            epsilon_us: status.epsilon,
            clock_error_us: status.clock_error,
            clock_trusted: status.clock_trusted,
            peers: status.peers.into_iter().map(peer).collect(),
            quotas: status.quotas,
            sessions: status.sessions,
        }
    }
}

impl TryFrom<v1::StatusReply> for Status {
    type Error = Invalid;

    fn try_from(reply: v1::StatusReply) -> Result<Self, Invalid> {
        let readiness = match v1::Readiness::try_from(reply.readiness) {
            Ok(v1::Readiness::Joining) => Readiness::Joining,
            Ok(v1::Readiness::Confirming) => Readiness::Confirming,
            Ok(v1::Readiness::Ready) => Readiness::Ready,
            Ok(v1::Readiness::Stale) => Readiness::Stale,
            Ok(v1::Readiness::Draining) => Readiness::Draining,
            Ok(v1::Readiness::Unspecified) => return Err(Invalid::new("readiness", "is missing")),
            Err(_) => return Err(Invalid::new("readiness", "has an unknown value")),
        };
        Ok(Self {
            site: convert(reply.site, "site")?,
            incarnation: Incarnation(reply.incarnation),
            life: Life(reply.life),
            readiness,
            epsilon: reply.epsilon_us,
            clock_error: reply.clock_error_us,
            clock_trusted: reply.clock_trusted,
            peers: convert_all(reply.peers, MEMBERS, "peers")?,
            quotas: reply.quotas,
            sessions: reply.sessions,
        })
    }
}

impl TryFrom<v1::PeerStatus> for PeerStatus {
    type Error = Invalid;

    fn try_from(peer: v1::PeerStatus) -> Result<Self, Invalid> {
        Ok(Self { site: convert(peer.site, "site")?, up: peer.up, rtt: peer.rtt_us, offset: peer.offset_us })
    }
}

// Unary calls: the operation that each stands for.

impl TryFrom<v1::AcquireRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::AcquireRequest) -> Result<Self, Invalid> {
        let hold = hold(call.hold, call.hold_us)?;
        let operation = Operation::Acquire { quota: call.quota, amount: call.amount, hold };
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
        let operation = Operation::ReleaseGrant { grant: convert(call.grant, "grant")? };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::CreateQuotaRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::CreateQuotaRequest) -> Result<Self, Invalid> {
        let operation = Operation::Create { quota: call.quota, limit: call.limit };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}

impl TryFrom<v1::DeleteQuotaRequest> for Batch {
    type Error = Invalid;

    fn try_from(call: v1::DeleteQuotaRequest) -> Result<Self, Invalid> {
        let operation = Operation::Delete { quota: call.quota };
        Ok(single(operation_id(call.operation)?, call.low, call.timeout_us, operation))
    }
}
