//! Conversions of the messages between sites, but for those about objects.

use slackline_core::api::{Forecast, LABEL_BYTES, Parent, Refusal, Request, Response, Shown, Work};
use slackline_core::avantan::{
    Ballot, Charter, Lifecycle, Line, Message, NoVote, Reclaimed, Report, Roster, Row, Scope, Seat, Settled, Table,
    Value,
};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::peer::quota::{Backlog, DIGESTS, Digest, Forget, Forgotten, NAMES, QuotaMessage, Rounds, Tally};
use slackline_core::peer::{Body, PeerMessage, RelayMessage, SiteMessage};

use crate::check::{Invalid, MEMBERS, convert, convert_all, inner, optional, required};
use crate::fields::{Field, lists, maybe, nested, same_fields, same_variants};
use crate::proto::{internal, v1};
use crate::public::{answers, asked, close, opened};
use crate::subset::subset;

impl From<PeerMessage> for internal::PeerMessage {
    fn from(message: PeerMessage) -> Self {
        use internal::peer_message::Body as Kind;
        let body = match message.body {
            Body::Site(SiteMessage::Hello { nonce, start, is_new, replaces }) => {
                let (permitted, replaces) = (replaces.is_some(), replaces.map(|highest| highest.0));
                Kind::Hello(internal::Hello { nonce, start, is_new, permitted, replaces })
            }
            Body::Site(SiteMessage::Welcome {
                nonce,
                start,
                established,
                known,
                noted,
                position,
                forgotten,
                roster,
            }) => {
                let (known, noted) = (known.0, noted.0);
                let roster = roster.map(|roster| (*roster).into());
                let forgotten = (*forgotten != Forgotten::default()).then(|| (*forgotten).into());
                Kind::Welcome(internal::Welcome {
                    nonce,
                    start,
                    established,
                    known,
                    noted,
                    position,
                    forgotten,
                    roster,
                })
            }
            Body::Site(SiteMessage::Ping { mono, wall, leaving, known, position, noted: (noted, noted_for), asks }) => {
                let (known, noted) = (known.0, noted.0);
                Kind::Ping(internal::Ping { mono, wall, leaving, known, position, noted, noted_for, asks })
            }
            Body::Site(SiteMessage::Pong { mono, wall, there, withholds, attests }) => {
                Kind::Pong(internal::Pong { mono, wall, there, withholds, attests })
            }
            Body::Quota(QuotaMessage::Avantan { quota, message }) => Kind::Avantan(avantan(quota, *message)),
            Body::Quota(QuotaMessage::Subset { quota, message }) => Kind::Subset(subset(quota, *message)),
            Body::Quota(QuotaMessage::Digests(digests)) => {
                Kind::Digests(internal::Digests { digests: digests.into_iter().map(Into::into).collect() })
            }
            Body::Quota(QuotaMessage::Lookup { token, quota }) => Kind::Lookup(internal::Name { token, quota }),
            Body::Quota(QuotaMessage::NotKnown { token, quota }) => Kind::NotKnown(internal::Name { token, quota }),
            Body::Quota(QuotaMessage::NoVote { quota, answer }) => {
                let NoVote { token, applied, accepted, promised, reborn } = *answer;
                let (accepted, promised) = (accepted.map(Into::into), promised.map(Into::into));
                Kind::NoVote(internal::NoVote { token, quota, applied, accepted, promised, reborn: reborn.to_wire() })
            }
            Body::Quota(QuotaMessage::Count { token, quota }) => Kind::Count(internal::Count { token, quota }),
            Body::Quota(QuotaMessage::Counted { token, tally }) => {
                Kind::Counted(internal::Counted { token, tally: tally.map(|tally| (*tally).into()) })
            }
            Body::Txn(message) => Kind::Object((*message).into()),
            Body::Quota(QuotaMessage::Forget(message)) => forget(*message),
            Body::Relay(RelayMessage::Ask { token, request }) => {
                Kind::Relay(internal::Relay { token, request: Some((*request).into()) })
            }
            Body::Relay(RelayMessage::Answer { token, response }) => {
                Kind::Relayed(internal::Relayed { token, response: Some((*response).into()) })
            }
        };

        let PeerMessage { incarnation, position, epoch, members, .. } = message;
        Self { incarnation: incarnation.0, position, epoch, members, body: Some(body) }
    }
}

impl TryFrom<internal::PeerMessage> for PeerMessage {
    type Error = Invalid;

    fn try_from(message: internal::PeerMessage) -> Result<Self, Invalid> {
        use internal::peer_message::Body as Kind;
        let body = match required(message.body, "body")? {
            Kind::Hello(hello) => Body::Site(SiteMessage::Hello {
                nonce: hello.nonce,
                start: hello.start,
                is_new: hello.is_new,
                replaces: hello.permitted.then(|| Incarnation(hello.replaces.unwrap_or(u32::MAX))),
            }),
            Kind::Welcome(welcome) => Body::Site(SiteMessage::Welcome {
                nonce: welcome.nonce,
                start: welcome.start,
                established: welcome.established,
                known: Incarnation(welcome.known),
                noted: Incarnation(welcome.noted),
                position: welcome.position,
                forgotten: Box::new(optional(welcome.forgotten, "welcome.forgotten")?.unwrap_or_default()),
                roster: optional(welcome.roster, "welcome.roster")?.map(Box::new),
            }),
            Kind::Ping(internal::Ping { mono, wall, leaving, known, position, noted, noted_for, asks }) => {
                let (known, noted) = (Incarnation(known), (Incarnation(noted), noted_for));
                Body::Site(SiteMessage::Ping { mono, wall, leaving, known, position, noted, asks })
            }
            Kind::Pong(internal::Pong { mono, wall, there, withholds, attests }) => {
                Body::Site(SiteMessage::Pong { mono, wall, there, withholds, attests })
            }
            Kind::Avantan(mut avantan) => {
                let quota = std::mem::take(&mut avantan.quota);
                Body::Quota(QuotaMessage::Avantan { quota, message: Box::new(inner(avantan, "avantan")?) })
            }
            Kind::Subset(mut subset) => {
                let quota = std::mem::take(&mut subset.quota);
                Body::Quota(QuotaMessage::Subset { quota, message: Box::new(inner(subset, "subset")?) })
            }
            Kind::Digests(digests) => {
                Body::Quota(QuotaMessage::Digests(convert_all(digests.digests, DIGESTS, "digests")?))
            }
            Kind::Lookup(name) => Body::Quota(QuotaMessage::Lookup { token: name.token, quota: name.quota }),
            Kind::NotKnown(name) => Body::Quota(QuotaMessage::NotKnown { token: name.token, quota: name.quota }),
            Kind::NoVote(vote) => {
                let accepted = optional(vote.accepted, "no_vote.accepted")?;
                let promised = optional(vote.promised, "no_vote.promised")?;
                let reborn = Field::from_wire(vote.reborn, "no_vote.reborn")?;
                let answer = NoVote { token: vote.token, applied: vote.applied, accepted, promised, reborn };
                Body::Quota(QuotaMessage::NoVote { quota: vote.quota, answer: Box::new(answer) })
            }
            Kind::Count(count) => Body::Quota(QuotaMessage::Count { token: count.token, quota: count.quota }),
            Kind::Counted(counted) => {
                let tally = optional(counted.tally, "counted.tally")?.map(Box::new);
                Body::Quota(QuotaMessage::Counted { token: counted.token, tally })
            }
            Kind::Object(message) => Body::Txn(Box::new(inner(message, "object")?)),
            Kind::Propose(propose) => {
                let view: Vec<Incarnation> = propose.view.into_iter().map(Incarnation).collect();
                if view.len() > MEMBERS {
                    return Err(Invalid::new("propose.view", "is too long"));
                }
                let names = names(propose.names, "propose.names")?;
                Body::Quota(QuotaMessage::Forget(Box::new(Forget::Propose { number: propose.number, view, names })))
            }
            Kind::Agree(agree) => {
                let incarnation = Incarnation(agree.incarnation);
                let names = names(agree.names, "agree.names")?;
                Body::Quota(QuotaMessage::Forget(Box::new(Forget::Agree { number: agree.number, incarnation, names })))
            }
            Kind::Cancel(number) => Body::Quota(QuotaMessage::Forget(Box::new(Forget::Cancel { number }))),
            Kind::Forgotten(forgotten) => {
                Body::Quota(QuotaMessage::Forget(Box::new(Forget::Forgotten(inner(forgotten, "forgotten")?))))
            }
            Kind::Relay(relay) => Body::Relay(RelayMessage::Ask {
                token: relay.token,
                request: Box::new(convert(relay.request, "relay.request")?),
            }),
            Kind::Relayed(relayed) => Body::Relay(RelayMessage::Answer {
                token: relayed.token,
                response: Box::new(convert(relayed.response, "relayed.response")?),
            }),
        };

        let internal::PeerMessage { incarnation, position, epoch, members, .. } = message;
        Ok(Self { incarnation: Incarnation(incarnation), position, epoch, members, body })
    }
}

// Names of deleted quotas that are forgotten.

/// A message about forgetting names, as it travels: each kind is a body of its own.
fn forget(message: Forget) -> internal::peer_message::Body {
    use internal::peer_message::Body as Kind;
    match message {
        Forget::Propose { number, view, names } => {
            Kind::Propose(internal::Propose { number, view: view.into_iter().map(|of| of.0).collect(), names })
        }
        Forget::Agree { number, incarnation, names } => {
            Kind::Agree(internal::Agree { number, incarnation: incarnation.0, names })
        }
        Forget::Cancel { number } => Kind::Cancel(number),
        Forget::Forgotten(forgotten) => Kind::Forgotten(forgotten.into()),
    }
}

/// Names, at most [`NAMES`], in ascending order and each once.
fn names(names: Vec<String>, field: &str) -> Result<Vec<String>, Invalid> {
    if names.len() > NAMES {
        return Err(Invalid::new(field, "are too many"));
    }

    // The receiver relies on the order to find a name without looking at all of them.
    if names.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(Invalid::new(field, "are not in ascending order"));
    }
    Ok(names)
}

impl From<Forgotten> for internal::Forgotten {
    fn from(forgotten: Forgotten) -> Self {
        Self { epoch: forgotten.epoch, names: forgotten.names }
    }
}

impl TryFrom<internal::Forgotten> for Forgotten {
    type Error = Invalid;

    fn try_from(forgotten: internal::Forgotten) -> Result<Self, Invalid> {
        Ok(Self { epoch: forgotten.epoch, names: names(forgotten.names, "names")? })
    }
}

// The agreement.

/// A message of a quota's agreement, as it travels: the instance, which each kind has, stands outside.
fn avantan(quota: String, message: Message) -> internal::Avantan {
    use internal::avantan::Message as Kind;
    let (instance, message) = match message {
        Message::Election { instance, ballot, scope, table } => {
            let election =
                internal::Election { ballot: Some(ballot.into()), scope: scope.to_wire(), table: Some(table.into()) };
            (instance, Kind::Election(election))
        }
        Message::Report { instance, ballot, report } => {
            let report = internal::Report {
                ballot: Some(ballot.into()),
                line: Some(report.line.into()),
                accepted: report.accepted.map(Into::into),
                promises: report.promises,
            };
            (instance, Kind::Report(report))
        }
        Message::Accept { instance, ballot, value } => {
            (instance, Kind::Accept(internal::Accept { ballot: Some(ballot.into()), value: Some(value.into()) }))
        }
        Message::Accepted { instance, ballot } => (instance, Kind::Accepted(ballot.into())),
        Message::Refuse { instance, promised } => (instance, Kind::Refuse(promised.into())),
        Message::Decided { instance, table } => (instance, Kind::Decided(table.into())),
        Message::Withdraw { instance, ballot } => (instance, Kind::Withdraw(ballot.into())),
        Message::Behind { applied } => (applied, Kind::Behind(internal::Behind {})),
    };

    internal::Avantan { quota, instance, message: Some(message) }
}

impl TryFrom<internal::Avantan> for Message {
    type Error = Invalid;

    fn try_from(avantan: internal::Avantan) -> Result<Self, Invalid> {
        use internal::avantan::Message as Kind;
        let instance = avantan.instance;
        Ok(match required(avantan.message, "message")? {
            Kind::Election(election) => Message::Election {
                instance,
                ballot: convert(election.ballot, "election.ballot")?,
                scope: Field::from_wire(election.scope, "election.scope")?,
                table: convert(election.table, "election.table")?,
            },
            Kind::Report(report) => Message::Report {
                instance,
                ballot: convert(report.ballot, "report.ballot")?,
                report: Report {
                    line: convert(report.line, "report.line")?,
                    accepted: optional(report.accepted, "report.accepted")?,
                    promises: report.promises,
                },
            },
            Kind::Accept(accept) => Message::Accept {
                instance,
                ballot: convert(accept.ballot, "accept.ballot")?,
                value: convert(accept.value, "accept.value")?,
            },
            Kind::Accepted(accepted) => Message::Accepted { instance, ballot: inner(accepted, "accepted")? },
            Kind::Refuse(promised) => Message::Refuse { instance, promised: inner(promised, "refuse")? },
            Kind::Decided(table) => Message::Decided { instance, table: inner(table, "decided")? },
            Kind::Withdraw(withdrawn) => Message::Withdraw { instance, ballot: inner(withdrawn, "withdraw")? },
            Kind::Behind(_) => Message::Behind { applied: instance },
        })
    }
}

same_variants! {
    Scope = internal::Scope { Spare, All, Closing, Nothing }
}

same_fields! {
    Ballot = internal::Ballot { number, site }
    Line = internal::Line { site, incarnation, share, held, kept, away, used, closing, needed, wanted }
    Row = internal::Row { site, incarnation, share, before, kept, away, after }
    Settled = internal::Settled { instance, row }
}

nested!(Row = internal::Row);
maybe!(Backlog = internal::Backlog);
maybe!(Parent = internal::Parent);

impl From<(Ballot, Value)> for internal::Proposal {
    fn from((ballot, value): (Ballot, Value)) -> Self {
        Self { ballot: Some(ballot.into()), value: Some(value.into()) }
    }
}

impl TryFrom<internal::Proposal> for (Ballot, Value) {
    type Error = Invalid;

    fn try_from(proposal: internal::Proposal) -> Result<Self, Invalid> {
        Ok((convert(proposal.ballot, "ballot")?, convert(proposal.value, "value")?))
    }
}

impl From<Value> for internal::Value {
    fn from(value: Value) -> Self {
        use internal::value::Lifecycle as Kind;
        let lifecycle = match value.lifecycle {
            Lifecycle::Keep => Kind::Keep(internal::Keep {}),
            Lifecycle::Create { limit, charter } if charter == Charter::default() => Kind::Create(limit),
            Lifecycle::Create { limit, charter } => {
                Kind::CreateAs(internal::CreateAs { limit, charter: Some(charter.into()) })
            }
            Lifecycle::Delete => Kind::Delete(internal::Delete {}),
            Lifecycle::Resize { limit } => Kind::Resize(limit),
            Lifecycle::Reclaim { brought, in_use } => Kind::Reclaim(internal::Reclaim { brought, in_use }),
            Lifecycle::Seat { site, gone } => Kind::Seat(Seat { site, since: 0, gone, label: value.label }.into()),
        };
        let membership = value.membership;
        Self { lifecycle: Some(lifecycle), membership, rows: value.rows.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<internal::Value> for Value {
    type Error = Invalid;

    fn try_from(value: internal::Value) -> Result<Self, Invalid> {
        use internal::value::Lifecycle as Kind;
        let mut said = Default::default();
        let lifecycle = match required(value.lifecycle, "lifecycle")? {
            Kind::Keep(_) => Lifecycle::Keep,
            Kind::Create(limit) => Lifecycle::Create { limit, charter: Charter::default() },
            Kind::CreateAs(internal::CreateAs { limit, charter }) => {
                Lifecycle::Create { limit, charter: convert(charter, "charter")? }
            }
            Kind::Delete(_) => Lifecycle::Delete,
            Kind::Resize(limit) => Lifecycle::Resize { limit },
            Kind::Reclaim(internal::Reclaim { brought, in_use }) => Lifecycle::Reclaim { brought, in_use },
            Kind::Seat(seat) => {
                let Seat { site, gone, label, .. } = inner(seat, "seat")?;
                said = label;
                Lifecycle::Seat { site, gone }
            }
        };
        Ok(Self {
            lifecycle,
            membership: value.membership,
            label: said,
            rows: convert_all(value.rows, MEMBERS, "rows")?,
        })
    }
}

impl From<Table> for internal::Table {
    fn from(table: Table) -> Self {
        Self {
            generation: table.generation,
            created: table.created,
            limit: table.limit,
            limited: if table.limited == table.created { 0 } else { table.limited },
            charter: (table.charter != Charter::default()).then(|| table.charter.into()),
            excess: table.excess,
            reclaimed: table.reclaimed.as_deref().cloned().map(Into::into),
            rows: table.rows().iter().cloned().map(Into::into).collect(),
            membership: table.membership,
            created_in: table.created_in,
            roster: table.roster.as_deref().cloned().map(Into::into),
        }
    }
}

impl From<Seat> for internal::Seat {
    fn from(seat: Seat) -> Self {
        Self {
            site: Some(seat.site.into()),
            since: seat.since,
            gone: if seat.gone { Incarnation::GONE.0 } else { 0 },
            label: seat.label.to_string(),
        }
    }
}

impl TryFrom<internal::Seat> for Seat {
    type Error = Invalid;

    fn try_from(seat: internal::Seat) -> Result<Self, Invalid> {
        if seat.label.len() > LABEL_BYTES {
            return Err(Invalid::new("label", "is too long"));
        }
        Ok(Self { site: convert(seat.site, "site")?, since: seat.since, gone: seat.gone > 0, label: seat.label.into() })
    }
}

impl From<Roster> for internal::Roster {
    fn from(roster: Roster) -> Self {
        Self { number: roster.number, seats: roster.seats.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<internal::Roster> for Roster {
    type Error = Invalid;

    fn try_from(roster: internal::Roster) -> Result<Self, Invalid> {
        let seats: Vec<Seat> = convert_all(roster.seats, MEMBERS, "seats")?;
        if seats.is_empty() || seats.windows(2).any(|pair| pair[0].site >= pair[1].site) {
            return Err(Invalid::new("seats", "are none, or not in ascending order of sites"));
        }
        if roster.number == 0 {
            return Err(Invalid::new("number", "is that of no change"));
        }
        Ok(Self { number: roster.number, seats })
    }
}

impl TryFrom<internal::Table> for Table {
    type Error = Invalid;

    fn try_from(table: internal::Table) -> Result<Self, Invalid> {
        // A table is evidence of everything decided so far, and the machine builds on it. One that no round can have decided must not
        // get there.
        if table.limit.is_some_and(|limit| limit < 1) {
            return Err(Invalid::new("limit", "is below 1"));
        }
        if table.excess < 0 || (table.excess > 0 && table.limit.is_none()) {
            return Err(Invalid::new("excess", "is below 0, or of nothing"));
        }
        let rows: Vec<Settled> = convert_all(table.rows, MEMBERS, "rows")?;
        if rows.windows(2).any(|pair| pair[0].row.site >= pair[1].row.site) {
            return Err(Invalid::new("rows", "are not in ascending order of sites"));
        }
        let limited = if table.limited == 0 { table.created } else { table.limited };
        let reclaimed = optional(table.reclaimed, "reclaimed")?.map(Box::new);
        if reclaimed.is_some() && table.limit.is_none() {
            return Err(Invalid::new("reclaimed", "is of nothing"));
        }
        let mut read = Self::from_parts(table.generation, table.created, table.limit, rows);
        read.reclaimed = reclaimed;
        read.charter = optional(table.charter, "charter")?.unwrap_or_default();
        if read.charter != Charter::default() && read.limit.is_none() {
            return Err(Invalid::new("charter", "is of nothing"));
        }
        (read.membership, read.created_in) = (table.membership, table.created_in);
        read.roster = optional(table.roster, "roster")?.map(Box::new);
        Ok(read.resized(limited, table.excess))
    }
}

impl From<Reclaimed> for internal::Reclaimed {
    fn from(reclaimed: Reclaimed) -> Self {
        Self {
            instance: reclaimed.instance,
            brought: reclaimed.brought,
            in_use: reclaimed.in_use,
            all_brought: reclaimed.all_brought,
            all_in_use: reclaimed.all_in_use,
            known: reclaimed.known.to_wire(),
        }
    }
}

impl TryFrom<internal::Reclaimed> for Reclaimed {
    type Error = Invalid;

    fn try_from(reclaimed: internal::Reclaimed) -> Result<Self, Invalid> {
        Ok(Self {
            instance: reclaimed.instance,
            brought: reclaimed.brought,
            in_use: reclaimed.in_use,
            all_brought: reclaimed.all_brought,
            all_in_use: reclaimed.all_in_use,
            known: Field::from_wire(reclaimed.known, "known")?,
        })
    }
}

impl From<(SiteId, Incarnation)> for internal::SiteIncarnation {
    fn from((site, incarnation): (SiteId, Incarnation)) -> Self {
        Self { site: Some(site.into()), incarnation: incarnation.0 }
    }
}

impl TryFrom<internal::SiteIncarnation> for (SiteId, Incarnation) {
    type Error = Invalid;

    fn try_from(wire: internal::SiteIncarnation) -> Result<Self, Invalid> {
        Ok((convert(wire.site, "site")?, Incarnation(wire.incarnation)))
    }
}

same_fields! {
    Charter = internal::Charter { agreement, refill, parent }
    Parent = internal::Parent { length, generation }
}

// Digests and tallies.

same_fields! {
    Backlog = internal::Backlog { here, given, given_to, received, received_from }
    Digest = internal::Digest {
        quota, generation, applied, free, short, first, rate, given, given_to, received, received_from, backlog
    }
}

impl From<Tally> for internal::Tally {
    fn from(tally: Tally) -> Self {
        let Work { local, rebalances, gifts } = tally.work;
        Self {
            site: tally.site.to_wire(),
            generation: tally.generation,
            limit: tally.limit.0,
            excess: tally.limit.1,
            applied: tally.rounds.applied,
            in_round: tally.rounds.is_open,
            tokens: tally.tokens,
            held: tally.held,
            acquired: tally.acquired.to_wire(),
            released: tally.released.to_wire(),
            given: tally.given.to_wire(),
            received: tally.received.to_wire(),
            agreement: tally.agreement.to_wire(),
            rounds: tally.rounds.subset,
            local,
            rebalances,
            gifts,
        }
    }
}

impl TryFrom<internal::Tally> for Tally {
    type Error = Invalid;

    fn try_from(tally: internal::Tally) -> Result<Self, Invalid> {
        let internal::Tally { local, rebalances, gifts, .. } = tally;
        Ok(Self {
            site: Field::from_wire(tally.site, "site")?,
            generation: tally.generation,
            limit: (tally.limit, tally.excess),
            rounds: Rounds {
                applied: tally.applied,
                is_open: tally.in_round,
                subset: match tally.rounds.len() {
                    0..=MEMBERS => tally.rounds,
                    _ => return Err(Invalid::new("rounds", "has too many entries")),
                },
            },
            tokens: tally.tokens,
            held: tally.held,
            acquired: Field::from_wire(tally.acquired, "acquired")?,
            released: Field::from_wire(tally.released, "released")?,
            given: Field::from_wire(tally.given, "given")?,
            received: Field::from_wire(tally.received, "received")?,
            agreement: Field::from_wire(tally.agreement, "agreement")?,
            work: Work { local, rebalances, gifts },
        })
    }
}

impl From<(Incarnation, u128)> for internal::Gifts {
    fn from((incarnation, total): (Incarnation, u128)) -> Self {
        Self { incarnation: incarnation.0, total: Some(total.into()) }
    }
}

impl TryFrom<internal::Gifts> for (Incarnation, u128) {
    type Error = Invalid;

    fn try_from(gifts: internal::Gifts) -> Result<Self, Invalid> {
        Ok((Incarnation(gifts.incarnation), Field::from_wire(gifts.total, "total")?))
    }
}

lists! {
    (Incarnation, u128) = internal::Gifts, at most MEMBERS;
    (SiteId, Incarnation) = internal::SiteIncarnation, at most MEMBERS;
}

impl Field<Option<internal::U128>> for u128 {
    fn to_wire(self) -> Option<internal::U128> {
        Some(self.into())
    }

    fn from_wire(wire: Option<internal::U128>, name: &str) -> Result<Self, Invalid> {
        required(wire, name).map(Into::into)
    }
}

impl From<u128> for internal::U128 {
    fn from(number: u128) -> Self {
        Self { high: (number >> 64) as u64, low: number as u64 }
    }
}

impl From<internal::U128> for u128 {
    fn from(number: internal::U128) -> Self {
        u128::from(number.high) << 64 | u128::from(number.low)
    }
}

// Relayed requests and responses.

impl From<Request> for internal::Request {
    fn from(request: Request) -> Self {
        use internal::request::Request as Kind;
        let request = match request {
            Request::Open => Kind::Open(v1::Open {}),
            Request::Batch(batch) => Kind::Batch(batch.into()),
            Request::Ask { operation } => Kind::Ask(v1::Ask { operation: Some(operation.into()) }),
            Request::Close { site, incarnation, session } => Kind::Close(close(site, incarnation, session)),
            Request::Read(read) => Kind::Read((*read).into()),
            Request::Explain { operation } => Kind::Explain(v1::Ask { operation: Some(operation.into()) }),
            Request::Show { quota, timeout, local } => {
                Kind::Show(v1::ShowQuotaRequest { quota, timeout_us: timeout, local })
            }
            Request::List { after, limit } => Kind::List(v1::ListQuotasRequest { after, limit }),
            Request::Treaties { treaty } => Kind::Treaties(v1::ShowTreatiesRequest { treaty: treaty.map(Into::into) }),
            Request::Status => Kind::Status(v1::StatusRequest {}),
            Request::Drain { within } => Kind::Drain(internal::Drain { within_us: within }),
            Request::Expect(forecasts) => {
                let forecasts = forecasts.into_iter().map(|Forecast { quota, tokens, micros }| internal::Forecast {
                    quota,
                    tokens,
                    lasts_us: micros,
                });
                Kind::Expect(internal::Expect { forecasts: forecasts.collect() })
            }
        };

        Self { request: Some(request) }
    }
}

impl TryFrom<internal::Request> for Request {
    type Error = Invalid;

    fn try_from(request: internal::Request) -> Result<Self, Invalid> {
        use internal::request::Request as Kind;
        match required(request.request, "request")? {
            Kind::Open(_) => Ok(Request::Open),
            Kind::Batch(batch) => Ok(Request::Batch(inner(batch, "batch")?)),
            Kind::Ask(ask) => inner(ask, "ask"),
            Kind::Close(close) => inner(close, "close"),
            Kind::Read(read) => Ok(Request::Read(Box::new(inner(read, "read")?))),
            Kind::Explain(ask) => Ok(Request::Explain { operation: convert(ask.operation, "explain.operation")? }),
            Kind::Show(show) => Ok(show.into()),
            Kind::List(list) => Ok(list.into()),
            Kind::Treaties(treaties) => inner(treaties, "treaties"),
            Kind::Status(_) => Ok(Request::Status),
            Kind::Drain(internal::Drain { within_us }) => Ok(Request::Drain { within: within_us }),
            Kind::Expect(internal::Expect { forecasts }) => {
                let forecast =
                    |internal::Forecast { quota, tokens, lasts_us }| Forecast { quota, tokens, micros: lasts_us };
                Ok(Request::Expect(forecasts.into_iter().map(forecast).collect()))
            }
        }
    }
}

impl From<Response> for internal::Response {
    fn from(response: Response) -> Self {
        use internal::response::Response as Kind;
        let response = match response {
            Response::Opened { site, incarnation, session } => Kind::Opened(opened(site, incarnation, session)),
            Response::NotOpened(refusal) => Kind::NotOpened(refusal.into()),
            Response::Batch { session, answers: all } => Kind::Batch(answers(session, all)),
            Response::Asked { operation, outcome } => Kind::Asked((operation, outcome).into()),
            Response::Closed => Kind::Closed(v1::Closed {}),
            Response::Read(reading) => Kind::Read((*reading).into()),
            Response::Explained { operation, trace } => Kind::Explained((operation, trace).into()),
            Response::Shown(shown) => Kind::Shown(shown.map(|shown| *shown).into()),
            Response::Listed(quotas) => Kind::Listed(quotas.into()),
            Response::Treaties(here) => Kind::Treaties((*here).into()),
            Response::Status(status) => Kind::Status((*status).into()),
            Response::Drained => Kind::Drained(internal::Drain { within_us: 0 }),
        };

        Self { response: Some(response) }
    }
}

impl TryFrom<internal::Response> for Response {
    type Error = Invalid;

    fn try_from(response: internal::Response) -> Result<Self, Invalid> {
        use internal::response::Response as Kind;
        match required(response.response, "response")? {
            Kind::Opened(opened) => inner(opened, "opened"),
            Kind::NotOpened(refusal) => Ok(Response::NotOpened(inner(refusal, "not_opened")?)),
            Kind::Batch(answers) => inner(answers, "batch"),
            Kind::Asked(reply) => asked(reply),
            Kind::Closed(_) => Ok(Response::Closed),
            Kind::Read(reading) => Ok(Response::Read(Box::new(inner(reading, "read")?))),
            Kind::Explained(reply) => {
                let (operation, trace) = inner(reply, "explained")?;
                Ok(Response::Explained { operation, trace })
            }
            Kind::Shown(reply) => {
                let shown: Result<Shown, Refusal> = inner(reply, "shown")?;
                Ok(Response::Shown(shown.map(Box::new)))
            }
            Kind::Listed(reply) => Ok(Response::Listed(inner(reply, "listed")?)),
            Kind::Treaties(reply) => Ok(Response::Treaties(Box::new(inner(reply, "treaties")?))),
            Kind::Status(reply) => Ok(Response::Status(Box::new(inner(reply, "status")?))),
            Kind::Drained(_) => Ok(Response::Drained),
        }
    }
}
