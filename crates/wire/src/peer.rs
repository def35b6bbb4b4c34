//! Conversions of what sites say to each other.

use slackline_core::api::{Request, Response};
use slackline_core::avantan::{Ballot, Lifecycle, Line, Message, Report, Row, Scope, Settled, Table, Value};
use slackline_core::id::{Incarnation, Life};
use slackline_core::peer::{Body, DIGESTS, Digest, PeerMessage, Tally};

use crate::{Invalid, convert, convert_all, internal, required, v1};

/// The most members of a lane.
const MEMBERS: usize = 64;

impl From<PeerMessage> for internal::PeerMessage {
    fn from(message: PeerMessage) -> Self {
        use internal::peer_message::Body as Kind;
        let body = match message.body {
            Body::Hello { nonce, start, is_new } => Kind::Hello(internal::Hello { nonce, start, is_new }),
            Body::Welcome { nonce, start, established, known, noted, position } => {
                Kind::Welcome(internal::Welcome { nonce, start, established, known: known.0, noted: noted.0, position })
            }
            Body::Ping { mono, wall, life } => Kind::Ping(internal::Ping { mono, wall, life: life.0 }),
            Body::Pong { mono, wall, there } => Kind::Pong(internal::Pong { mono, wall, there }),
            Body::Avantan { quota, message } => Kind::Avantan(avantan(quota, *message)),
            Body::Digests(digests) => {
                Kind::Digests(internal::Digests { digests: digests.into_iter().map(Into::into).collect() })
            }
            Body::Lookup { token, quota } => Kind::Lookup(internal::Name { token, quota }),
            Body::NotKnown { token, quota } => Kind::NotKnown(internal::Name { token, quota }),
            Body::NoVote { token, quota, applied, accepted } => {
                let accepted = accepted.map(|accepted| {
                    let (ballot, value) = *accepted;
                    internal::Proposal { ballot: Some(ballot.into()), value: Some(value.into()) }
                });
                Kind::NoVote(internal::NoVote { token, quota, applied, accepted })
            }
            Body::Count { token, quota } => Kind::Count(internal::Count { token, quota }),
            Body::Counted { token, tally } => {
                Kind::Counted(internal::Counted { token, tally: tally.map(|tally| (*tally).into()) })
            }
            Body::Relay { token, request } => Kind::Relay(internal::Relay { token, request: Some((*request).into()) }),
            Body::Relayed { token, response } => {
                Kind::Relayed(internal::Relayed { token, response: Some((*response).into()) })
            }
        };
        Self { incarnation: message.incarnation.0, position: message.position, body: Some(body) }
    }
}

impl TryFrom<internal::PeerMessage> for PeerMessage {
    type Error = Invalid;

    fn try_from(message: internal::PeerMessage) -> Result<Self, Invalid> {
        use internal::peer_message::Body as Kind;
        let body = match required(message.body, "body")? {
            Kind::Hello(hello) => Body::Hello { nonce: hello.nonce, start: hello.start, is_new: hello.is_new },
            Kind::Welcome(welcome) => Body::Welcome {
                nonce: welcome.nonce,
                start: welcome.start,
                established: welcome.established,
                known: Incarnation(welcome.known),
                noted: Incarnation(welcome.noted),
                position: welcome.position,
            },
            Kind::Ping(ping) => Body::Ping { mono: ping.mono, wall: ping.wall, life: Life(ping.life) },
            Kind::Pong(pong) => Body::Pong { mono: pong.mono, wall: pong.wall, there: pong.there },
            Kind::Avantan(mut avantan) => {
                let quota = std::mem::take(&mut avantan.quota);
                let message = avantan.try_into().map_err(|invalid: Invalid| invalid.within("avantan"))?;
                Body::Avantan { quota, message: Box::new(message) }
            }
            Kind::Digests(digests) => Body::Digests(convert_all(digests.digests, DIGESTS, "digests")?),
            Kind::Lookup(name) => Body::Lookup { token: name.token, quota: name.quota },
            Kind::NotKnown(name) => Body::NotKnown { token: name.token, quota: name.quota },
            Kind::NoVote(vote) => Body::NoVote {
                token: vote.token,
                quota: vote.quota,
                applied: vote.applied,
                accepted: match vote.accepted {
                    None => None,
                    Some(proposal) => Some(Box::new((
                        convert(proposal.ballot, "no_vote.accepted.ballot")?,
                        convert(proposal.value, "no_vote.accepted.value")?,
                    ))),
                },
            },
            Kind::Count(count) => Body::Count { token: count.token, quota: count.quota },
            Kind::Counted(counted) => {
                let tally = counted.tally.map(|tally| Tally::try_from(tally).map(Box::new)).transpose();
                Body::Counted { token: counted.token, tally: tally.map_err(|invalid| invalid.within("counted.tally"))? }
            }
            Kind::Relay(relay) => Body::Relay {
                token: relay.token,
                request: Box::new(convert(relay.request, "request").map_err(|invalid| invalid.within("relay"))?),
            },
            Kind::Relayed(relayed) => Body::Relayed {
                token: relayed.token,
                response: Box::new(convert(relayed.response, "response").map_err(|invalid| invalid.within("relayed"))?),
            },
        };
        Ok(Self { incarnation: Incarnation(message.incarnation), position: message.position, body })
    }
}

// The agreement.

fn avantan(quota: String, message: Message) -> internal::Avantan {
    use internal::avantan::Message as Kind;
    let (instance, message) = match message {
        Message::Election { instance, ballot, scope, table } => {
            let scope = match scope {
                Scope::Spare => internal::Scope::Spare,
                Scope::All => internal::Scope::All,
                Scope::Closing => internal::Scope::Closing,
            };
            let election =
                internal::Election { ballot: Some(ballot.into()), scope: scope.into(), table: Some(table.into()) };
            (instance, Kind::Election(election))
        }
        Message::Report { instance, ballot, report } => {
            let accepted = report
                .accepted
                .map(|(ballot, value)| internal::Proposal { ballot: Some(ballot.into()), value: Some(value.into()) });
            let report = internal::Report {
                ballot: Some(ballot.into()),
                line: Some(report.line.into()),
                accepted,
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
        let ballot = |ballot: internal::Ballot, field: &str| {
            Ballot::try_from(ballot).map_err(|invalid: Invalid| invalid.within(field))
        };
        Ok(match required(avantan.message, "message")? {
            Kind::Election(election) => Message::Election {
                instance,
                ballot: convert(election.ballot, "election.ballot")?,
                scope: match internal::Scope::try_from(election.scope) {
                    Ok(internal::Scope::Spare) => Scope::Spare,
                    Ok(internal::Scope::All) => Scope::All,
                    Ok(internal::Scope::Closing) => Scope::Closing,
                    Ok(internal::Scope::Unspecified) | Err(_) => {
                        return Err(Invalid::new("election.scope", "has an unknown value"));
                    }
                },
                table: convert(election.table, "election.table")?,
            },
            Kind::Report(report) => Message::Report {
                instance,
                ballot: convert(report.ballot, "report.ballot")?,
                report: Report {
                    line: convert(report.line, "report.line")?,
                    accepted: match report.accepted {
                        None => None,
                        Some(proposal) => Some((
                            convert(proposal.ballot, "report.accepted.ballot")?,
                            convert(proposal.value, "report.accepted.value")?,
                        )),
                    },
                    promises: report.promises,
                },
            },
            Kind::Accept(accept) => Message::Accept {
                instance,
                ballot: convert(accept.ballot, "accept.ballot")?,
                value: convert(accept.value, "accept.value")?,
            },
            Kind::Accepted(accepted) => Message::Accepted { instance, ballot: ballot(accepted, "accepted")? },
            Kind::Refuse(promised) => Message::Refuse { instance, promised: ballot(promised, "refuse")? },
            Kind::Decided(table) => Message::Decided {
                instance,
                table: table.try_into().map_err(|invalid: Invalid| invalid.within("decided"))?,
            },
            Kind::Withdraw(withdrawn) => Message::Withdraw { instance, ballot: ballot(withdrawn, "withdraw")? },
            Kind::Behind(_) => Message::Behind { applied: instance },
        })
    }
}

impl From<Ballot> for internal::Ballot {
    fn from(ballot: Ballot) -> Self {
        Self { number: ballot.number, site: Some(ballot.site.into()) }
    }
}

impl TryFrom<internal::Ballot> for Ballot {
    type Error = Invalid;

    fn try_from(ballot: internal::Ballot) -> Result<Self, Invalid> {
        Ok(Self { number: ballot.number, site: convert(ballot.site, "site")? })
    }
}

impl From<Line> for internal::Line {
    fn from(line: Line) -> Self {
        Self {
            site: Some(line.site.into()),
            incarnation: line.incarnation.0,
            share: line.share,
            held: line.held,
            kept: line.kept,
            away: line.away,
            closing: line.closing,
            needed: line.needed,
            wanted: line.wanted,
        }
    }
}

impl TryFrom<internal::Line> for Line {
    type Error = Invalid;

    fn try_from(line: internal::Line) -> Result<Self, Invalid> {
        Ok(Self {
            site: convert(line.site, "site")?,
            incarnation: Incarnation(line.incarnation),
            share: line.share,
            held: line.held,
            kept: line.kept,
            away: line.away,
            closing: line.closing,
            needed: line.needed,
            wanted: line.wanted,
        })
    }
}

impl From<Row> for internal::Row {
    fn from(row: Row) -> Self {
        Self {
            site: Some(row.site.into()),
            incarnation: row.incarnation.0,
            share: row.share,
            before: row.before,
            kept: row.kept,
            away: row.away,
            after: row.after,
        }
    }
}

impl TryFrom<internal::Row> for Row {
    type Error = Invalid;

    fn try_from(row: internal::Row) -> Result<Self, Invalid> {
        Ok(Self {
            site: convert(row.site, "site")?,
            incarnation: Incarnation(row.incarnation),
            share: row.share,
            before: row.before,
            kept: row.kept,
            away: row.away,
            after: row.after,
        })
    }
}

impl From<Value> for internal::Value {
    fn from(value: Value) -> Self {
        use internal::value::Lifecycle as Kind;
        let lifecycle = match value.lifecycle {
            Lifecycle::Keep => Kind::Keep(internal::Keep {}),
            Lifecycle::Create { limit } => Kind::Create(limit),
            Lifecycle::Delete => Kind::Delete(internal::Delete {}),
        };
        Self { lifecycle: Some(lifecycle), rows: value.rows.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<internal::Value> for Value {
    type Error = Invalid;

    fn try_from(value: internal::Value) -> Result<Self, Invalid> {
        use internal::value::Lifecycle as Kind;
        let lifecycle = match required(value.lifecycle, "lifecycle")? {
            Kind::Keep(_) => Lifecycle::Keep,
            Kind::Create(limit) => Lifecycle::Create { limit },
            Kind::Delete(_) => Lifecycle::Delete,
        };
        Ok(Self { lifecycle, rows: convert_all(value.rows, MEMBERS, "rows")? })
    }
}

impl From<Table> for internal::Table {
    fn from(table: Table) -> Self {
        let settled =
            |settled: &Settled| internal::Settled { instance: settled.instance, row: Some(settled.row.clone().into()) };
        Self {
            generation: table.generation,
            created: table.created,
            limit: table.limit,
            rows: table.rows().iter().map(settled).collect(),
        }
    }
}

impl TryFrom<internal::Table> for Table {
    type Error = Invalid;

    fn try_from(table: internal::Table) -> Result<Self, Invalid> {
        if table.limit.is_some_and(|limit| limit < 1) {
            return Err(Invalid::new("limit", "is below 1"));
        }
        let rows: Vec<Settled> = convert_all(table.rows, MEMBERS, "rows")?;
        if rows.windows(2).any(|pair| pair[0].row.site >= pair[1].row.site) {
            return Err(Invalid::new("rows", "are not in ascending order of sites"));
        }
        Ok(Self::from_parts(table.generation, table.created, table.limit, rows))
    }
}

impl TryFrom<internal::Settled> for Settled {
    type Error = Invalid;

    fn try_from(settled: internal::Settled) -> Result<Self, Invalid> {
        Ok(Self { instance: settled.instance, row: convert(settled.row, "row")? })
    }
}

// Digests and tallies.

impl From<Digest> for internal::Digest {
    fn from(digest: Digest) -> Self {
        Self {
            quota: digest.quota,
            generation: digest.generation,
            applied: digest.applied,
            free: digest.free,
            short: digest.short,
            rate: digest.rate,
            given: Some(digest.given.into()),
            given_to: digest.given_to.0,
            received: Some(digest.received.into()),
            received_from: digest.received_from.0,
        }
    }
}

impl TryFrom<internal::Digest> for Digest {
    type Error = Invalid;

    fn try_from(digest: internal::Digest) -> Result<Self, Invalid> {
        Ok(Self {
            quota: digest.quota,
            generation: digest.generation,
            applied: digest.applied,
            free: digest.free,
            short: digest.short,
            rate: digest.rate,
            given: required(digest.given, "given")?.into(),
            given_to: Incarnation(digest.given_to),
            received: required(digest.received, "received")?.into(),
            received_from: Incarnation(digest.received_from),
        })
    }
}

impl From<Tally> for internal::Tally {
    fn from(tally: Tally) -> Self {
        let gifts = |(incarnation, total): (Incarnation, u128)| internal::Gifts {
            incarnation: incarnation.0,
            total: Some(total.into()),
        };
        Self {
            site: Some(tally.site.into()),
            generation: tally.generation,
            limit: tally.limit,
            applied: tally.applied,
            in_round: tally.in_round,
            tokens: tally.tokens,
            held: tally.held,
            acquired: Some(tally.acquired.into()),
            released: Some(tally.released.into()),
            given: tally.given.into_iter().map(gifts).collect(),
            received: tally.received.into_iter().map(gifts).collect(),
            local: tally.local,
            rebalances: tally.rebalances,
            gifts: tally.gifts,
        }
    }
}

impl TryFrom<internal::Tally> for Tally {
    type Error = Invalid;

    fn try_from(tally: internal::Tally) -> Result<Self, Invalid> {
        Ok(Self {
            site: convert(tally.site, "site")?,
            generation: tally.generation,
            limit: tally.limit,
            applied: tally.applied,
            in_round: tally.in_round,
            tokens: tally.tokens,
            held: tally.held,
            acquired: required(tally.acquired, "acquired")?.into(),
            released: required(tally.released, "released")?.into(),
            given: gifts(tally.given, "given")?,
            received: gifts(tally.received, "received")?,
            local: tally.local,
            rebalances: tally.rebalances,
            gifts: tally.gifts,
        })
    }
}

fn gifts(gifts: Vec<internal::Gifts>, field: &str) -> Result<Vec<(Incarnation, u128)>, Invalid> {
    if gifts.len() > MEMBERS {
        return Err(Invalid::new(field, "has too many entries"));
    }
    gifts.into_iter().map(|gifts| Ok((Incarnation(gifts.incarnation), required(gifts.total, field)?.into()))).collect()
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
            Request::Close { site, incarnation, session } => {
                Kind::Close(v1::Close { site: Some(site.into()), incarnation: incarnation.0, session: session.0 })
            }
            Request::Show { quota, timeout } => Kind::Show(v1::ShowQuotaRequest { quota, timeout_us: timeout }),
            Request::List { after, limit } => Kind::List(v1::ListQuotasRequest { after, limit }),
            Request::Status => Kind::Status(v1::StatusRequest {}),
            Request::Drain => Kind::Drain(internal::Drain {}),
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
            Kind::Batch(batch) => {
                batch.try_into().map(Request::Batch).map_err(|invalid: Invalid| invalid.within("batch"))
            }
            Kind::Ask(ask) => ask.try_into().map_err(|invalid: Invalid| invalid.within("ask")),
            Kind::Close(close) => close.try_into().map_err(|invalid: Invalid| invalid.within("close")),
            Kind::Show(show) => Ok(show.into()),
            Kind::List(list) => Ok(list.into()),
            Kind::Status(_) => Ok(Request::Status),
            Kind::Drain(_) => Ok(Request::Drain),
        }
    }
}

impl From<Response> for internal::Response {
    fn from(response: Response) -> Self {
        use internal::response::Response as Kind;
        let response = match response {
            Response::Opened { site, incarnation, session } => {
                Kind::Opened(v1::Opened { site: Some(site.into()), incarnation: incarnation.0, session: session.0 })
            }
            Response::NotOpened(refusal) => Kind::NotOpened(refusal.into()),
            Response::Batch { session, answers } => {
                Kind::Batch(v1::Answers { session: session.0, outcomes: answers.into_iter().map(Into::into).collect() })
            }
            Response::Asked { operation, outcome } => Kind::Asked((operation, outcome).into()),
            Response::Closed => Kind::Closed(v1::Closed {}),
            Response::Shown(shown) => Kind::Shown(shown.into()),
            Response::Listed(quotas) => Kind::Listed(quotas.into()),
            Response::Status(status) => Kind::Status(status.into()),
            Response::Drained => Kind::Drained(internal::Drain {}),
        };
        Self { response: Some(response) }
    }
}

impl TryFrom<internal::Response> for Response {
    type Error = Invalid;

    fn try_from(response: internal::Response) -> Result<Self, Invalid> {
        use internal::response::Response as Kind;
        match required(response.response, "response")? {
            Kind::Opened(opened) => opened.try_into().map_err(|invalid: Invalid| invalid.within("opened")),
            Kind::NotOpened(refusal) => {
                refusal.try_into().map(Response::NotOpened).map_err(|invalid: Invalid| invalid.within("not_opened"))
            }
            Kind::Batch(answers) => answers.try_into().map_err(|invalid: Invalid| invalid.within("batch")),
            Kind::Asked(reply) => {
                let (operation, outcome) = reply.try_into().map_err(|invalid: Invalid| invalid.within("asked"))?;
                Ok(Response::Asked { operation, outcome })
            }
            Kind::Closed(_) => Ok(Response::Closed),
            Kind::Shown(reply) => {
                reply.try_into().map(Response::Shown).map_err(|invalid: Invalid| invalid.within("shown"))
            }
            Kind::Listed(reply) => {
                reply.try_into().map(Response::Listed).map_err(|invalid: Invalid| invalid.within("listed"))
            }
            Kind::Status(reply) => {
                reply.try_into().map(Response::Status).map_err(|invalid: Invalid| invalid.within("status"))
            }
            Kind::Drained(_) => Ok(Response::Drained),
        }
    }
}
