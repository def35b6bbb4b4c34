//! Conversions of messages about objects and transactions, between clients and sites and between sites; and their sizes.

use std::collections::BTreeSet;

use bytes::Bytes;
use slackline_core::api::{
    Claim, ClauseHere, LeafHere, Operation, Read, Reading, Request, Synchronization, TreatiesHere, TreatyHere,
};
use slackline_core::bounds::READING_BYTES;
use slackline_core::id::{Incarnation, OperationId, SiteId, SiteSet};
use slackline_core::object::message::{
    self, Fetch, Fetched, Gave, Given, Known, Message, Offer, Prepare, Reported, Says, Vote, Wanted,
};
use slackline_core::object::treaty::{CLAUSES, Note, TERMS, Term, Tree};
use slackline_core::object::{
    Abort, Cause, Change, Dependency, Derived, ENTRY_BYTES, Home, ObjectKey, Origin, Part, Rank, SCAN_ROWS, Seen, Span,
    TRANSACTION_OPERATIONS, Transaction, Value, Version,
};
use slackline_core::peer::{Body, PeerMessage, RelayMessage};
use slackline_core::right::{Start, WarrantyNumber};
use slackline_core::txn::READ_ITEMS;

use crate::check::{Invalid, MEMBERS, convert, inner, optional, required};
use crate::fields::{Field, lists, maybe, nested, same_fields, same_variants};
use crate::proto::{internal, v1};

// Sizes.

/// About the bytes of objects in a message between sites. Messages without objects are small, and count as 0.
pub fn message_bytes(message: &PeerMessage) -> usize {
    match &message.body {
        Body::Txn(message) => object_bytes(message),
        Body::Relay(RelayMessage::Ask { request, .. }) => request_bytes(request),
        _ => 0,
    }
}

/// About the bytes of the transactions and reads in a request.
pub fn request_bytes(request: &Request) -> usize {
    match request {
        Request::Batch(batch) => batch.operations.iter().map(|submission| operation_bytes(&submission.operation)).sum(),
        Request::Read(read) => {
            let claimed = read.claim.iter().flat_map(|claim| &claim.writes);
            let gets = read.gets.iter().chain(claimed).map(|key| key.name.len() + ENTRY_BYTES);
            gets.chain(read.scans.iter().map(|(_, span)| span_bytes(span))).sum()
        }
        // A name that is far too long is refused where it is looked up, and lies in the queue before that.
        Request::Show { quota: name, .. } | Request::List { after: name, .. } => name.len(),
        Request::Treaties { treaty: Some(ObjectKey { name, .. }) } => name.len(),
        _ => 0,
    }
}

/// About the bytes of a transaction, or of the name in another operation.
pub fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Commit(transaction) => transaction.bytes(),
        Operation::Acquire { quota: name, .. }
        | Operation::Release { quota: name, .. }
        | Operation::Create { quota: name, .. }
        | Operation::SetLimit { quota: name, .. }
        | Operation::Reclaim { quota: name, .. }
        | Operation::Delete { quota: name }
        | Operation::Seat { label: name, .. } => name.len(),
        _ => 0,
    }
}

fn span_bytes(span: &Span) -> usize {
    span.prefix.len() + span.after.len() + ENTRY_BYTES
}

fn object_bytes(message: &Message) -> usize {
    match message {
        Message::Prepare(prepare) => prepare.part.bytes(),
        Message::Fetched(fetched) => {
            let gets = fetched.gets.iter().flatten().map(|given| seen_bytes(&given.seen));
            gets.sum::<usize>() + fetched.scans.iter().flatten().map(|rows| rows_bytes(rows)).sum::<usize>()
        }
        Message::Fetch(fetch) => {
            let claimed = fetch.claim.iter().flat_map(|claim| &claim.writes);
            let gets = fetch.gets.iter().map(|(name, _)| name).chain(claimed).map(|name| name.len() + ENTRY_BYTES);
            gets.chain(fetch.scans.iter().map(span_bytes)).sum()
        }
        Message::Revoke { rights, .. } | Message::Revoked { rights, .. } => {
            rights.iter().map(|(name, _)| name.len() + ENTRY_BYTES).sum()
        }
        Message::Treaty { treaty, says, .. } => treaty.name.len() + says_entries(says) * ENTRY_BYTES,
        Message::ProbeCalls { names, .. } | Message::AbsentCalls { names, .. } => {
            names.iter().map(|name| name.len() + ENTRY_BYTES).sum()
        }
        _ => 0,
    }
}

/// The number of entries in what is said of a treaty.
fn says_entries(says: &Says) -> usize {
    match says {
        Says::Ask { clauses, .. } => clauses.len(),
        Says::Report { lines, .. } => lines.len(),
        Says::Give { gives, .. } => gives.len(),
        Says::Gifts { gifts } => gifts.len(),
        Says::Retract { .. } | Says::Retracted => 0,
    }
}

/// Cuts a message with the values of objects to [`READING_BYTES`]: see [`limit_reading`].
pub fn limit_message(message: &mut PeerMessage) {
    if let Body::Txn(message) = &mut message.body
        && let Message::Fetched(fetched) = &mut **message
    {
        // A value here may bring a right, so it takes more than in an answer to a client.
        let mut room = READING_BYTES;
        limit(&mut fetched.gets, &mut room, |given| seen_bytes(&given.seen) + 2 * ENTRY_BYTES);
        limit(&mut fetched.scans, &mut room, |rows| rows_bytes(rows));
    }
}

/// Cuts an answer to reads to [`READING_BYTES`]: [`Cause::TooMuch`] replaces each value that does not fit. The first get
/// always fits, and so does the first span if it has one row; so a client that asks again for the rest makes progress. Returns
/// about the bytes that remain. A second call changes nothing, and returns the same.
pub fn limit_reading(reading: &mut Reading) -> usize {
    let mut room = READING_BYTES;
    limit(&mut reading.gets, &mut room, seen_bytes);
    limit(&mut reading.scans, &mut room, |rows| rows_bytes(rows));

    // A refusal is small, and thousands of them are not.
    let refused = reading.gets.iter().filter(|got| got.is_err()).count();
    let refused = refused + reading.scans.iter().filter(|rows| rows.is_err()).count();
    READING_BYTES - room + refused * std::mem::size_of::<Abort>()
}

fn limit<T>(results: &mut [Result<T, Abort>], room: &mut usize, bytes: impl Fn(&T) -> usize) {
    for result in results {
        let Ok(found) = result else { continue };
        // A smaller value behind one that does not fit may still fit: each is judged by the room that is left.
        match room.checked_sub(bytes(found)) {
            Some(left) => *room = left,
            None => *result = Err(Abort::of(Cause::TooMuch)),
        }
    }
}

fn seen_bytes(seen: &Seen) -> usize {
    seen.value.as_ref().map_or(0, Value::size) + ENTRY_BYTES
}

fn rows_bytes(rows: &[(String, Seen)]) -> usize {
    rows.iter().map(|(name, seen)| name.len() + seen_bytes(seen)).sum()
}

// Objects.

same_fields! {
    ObjectKey = v1::ObjectKey { name; home = region }
    Span = v1::Span { prefix, after, limit }
    Read = v1::Read { token, gets, scans, fresh, upkeep, claim; timeout = timeout_us }
    Reading = v1::Reading { token, gets, scans, is_whole }
    Origin = v1::Origin { nonce; age = age_us }
    Note = v1::Leaf { treaty, nonce, homes, tree, clauses }
    Term = v1::Term { name, is_log, weight }
    Reported = internal::SlackLine { clause, slack, velocity, noise }
    Wanted = internal::WantedSlack { clause, to, amount, rate }
    Gave = internal::SlackGift { clause, total, rate }
    TreatiesHere = v1::ShowTreatiesReply { homes, leaves, synchronizations, has_more }
    Synchronization = v1::Synchronization { cause, clause, sites; at = at_unix_us, waited = waited_us }
    TreatyHere = v1::TreatyHere { name, value, holders }
    LeafHere = v1::LeafHere { treaty, nonce, clauses, rebalances, gifts, extensions }
    ClauseHere = v1::ClauseHere { clause, value, bound, velocity, noise, rate }
}

lists! {
    ObjectKey = v1::ObjectKey, at most READ_ITEMS;
    (u16, Span) = v1::RegionSpan, at most READ_ITEMS;
    Result<Seen, Abort> = v1::GetResult, at most READ_ITEMS;
    Result<Vec<(String, Seen)>, Abort> = v1::ScanResult, at most READ_ITEMS;
    (String, Seen) = v1::Row, at most SCAN_ROWS;
    Home = v1::Part, at most MEMBERS;
    (String, u64) = v1::ReadVersion, at most TRANSACTION_OPERATIONS;
    (Span, Vec<u64>) = v1::ScanVersions, at most TRANSACTION_OPERATIONS;
    (String, Change) = v1::Write, at most TRANSACTION_OPERATIONS;
    SiteId = v1::SiteId, at most MEMBERS;
    (u16, Incarnation) = v1::RegionIncarnation, at most MEMBERS;
    (Dependency, ObjectKey) = v1::Dependence, at most TRANSACTION_OPERATIONS;
    Note = v1::Leaf, at most TRANSACTION_OPERATIONS;
    (u32, Vec<Term>, i64) = v1::LeafClause, at most CLAUSES;
    Term = v1::Term, at most TERMS;
    Reported = internal::SlackLine, at most CLAUSES;
    Wanted = internal::WantedSlack, at most CLAUSES;
    Gave = internal::SlackGift, at most CLAUSES;
    TreatyHere = v1::TreatyHere, at most READ_ITEMS;
    LeafHere = v1::LeafHere, at most READ_ITEMS;
    ClauseHere = v1::ClauseHere, at most CLAUSES;
    Synchronization = v1::Synchronization, at most READ_ITEMS;
}

nested!(Transaction = v1::Transaction, Value = v1::Value);
maybe!(Claim = v1::Claim, message::Claim = internal::Claim);

impl From<Transaction> for v1::Transaction {
    fn from(transaction: Transaction) -> Self {
        let Transaction { homes, max_wait, origin } = transaction;
        // A program without a turn names none, so that its messages stay as short as before there were turns.
        let origin = (origin != Origin::default()).then(|| origin.into());
        Self { parts: homes.to_wire(), max_wait_us: max_wait, origin }
    }
}

impl TryFrom<v1::Transaction> for Transaction {
    type Error = Invalid;

    fn try_from(transaction: v1::Transaction) -> Result<Self, Invalid> {
        Ok(Self {
            homes: Field::from_wire(transaction.parts, "parts")?,
            max_wait: transaction.max_wait_us,
            origin: optional(transaction.origin, "origin")?.unwrap_or_default(),
        })
    }
}

impl From<Claim> for v1::Claim {
    fn from(Claim { origin, writes, again, bars }: Claim) -> Self {
        Self { origin: Some(origin.into()), writes: writes.to_wire(), again, bars }
    }
}

impl TryFrom<v1::Claim> for Claim {
    type Error = Invalid;

    fn try_from(v1::Claim { origin, writes, again, bars }: v1::Claim) -> Result<Self, Invalid> {
        Ok(Self { origin: convert(origin, "origin")?, writes: Field::from_wire(writes, "writes")?, again, bars })
    }
}

impl From<Value> for v1::Value {
    fn from(value: Value) -> Self {
        use v1::value::Kind;
        let kind = match value {
            Value::Bytes(bytes) => Kind::Bytes(bytes),
            Value::Counter(count) => Kind::Counter(count),
            Value::Derived(Derived { bytes, homes }) => Kind::Derived(v1::Derived { bytes, homes: homes.to_wire() }),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::Value> for Value {
    type Error = Invalid;

    fn try_from(value: v1::Value) -> Result<Self, Invalid> {
        use v1::value::Kind;
        Ok(match required(value.kind, "kind")? {
            // A slice of the message would keep all of it in memory for as long as the value is kept.
            Kind::Bytes(bytes) => Value::Bytes(Bytes::copy_from_slice(&bytes)),
            Kind::Counter(count) => Value::Counter(count),
            Kind::Derived(v1::Derived { bytes, homes }) => {
                let bytes = Bytes::copy_from_slice(&bytes);
                Value::Derived(Derived { bytes, homes: Field::from_wire(homes, "derived.homes")? })
            }
        })
    }
}

impl From<Seen> for v1::Seen {
    fn from(seen: Seen) -> Self {
        let Version { incarnation, number } = seen.version;
        Self { incarnation: incarnation.0, number, value: seen.value.map(Into::into) }
    }
}

impl TryFrom<v1::Seen> for Seen {
    type Error = Invalid;

    fn try_from(seen: v1::Seen) -> Result<Self, Invalid> {
        let version = Version { incarnation: Incarnation(seen.incarnation), number: seen.number };
        Ok(Self { version, value: optional(seen.value, "value")? })
    }
}

// Reads.

impl From<(u16, Span)> for v1::RegionSpan {
    fn from((region, span): (u16, Span)) -> Self {
        Self { region: region.into(), span: Some(span.into()) }
    }
}

impl TryFrom<v1::RegionSpan> for (u16, Span) {
    type Error = Invalid;

    fn try_from(scan: v1::RegionSpan) -> Result<Self, Invalid> {
        Ok((Field::from_wire(scan.region, "region")?, convert(scan.span, "span")?))
    }
}

impl From<Result<Seen, Abort>> for v1::GetResult {
    fn from(result: Result<Seen, Abort>) -> Self {
        use v1::get_result::Result as Kind;
        let result = match result {
            Ok(seen) => Kind::Seen(seen.into()),
            Err(abort) => Kind::Failed(abort.into()),
        };
        Self { result: Some(result) }
    }
}

impl TryFrom<v1::GetResult> for Result<Seen, Abort> {
    type Error = Invalid;

    fn try_from(result: v1::GetResult) -> Result<Self, Invalid> {
        use v1::get_result::Result as Kind;
        Ok(match required(result.result, "result")? {
            Kind::Seen(seen) => Ok(inner(seen, "seen")?),
            Kind::Failed(abort) => Err(inner(abort, "failed")?),
        })
    }
}

impl From<(String, Seen)> for v1::Row {
    fn from((name, seen): (String, Seen)) -> Self {
        Self { name, seen: Some(seen.into()) }
    }
}

impl TryFrom<v1::Row> for (String, Seen) {
    type Error = Invalid;

    fn try_from(row: v1::Row) -> Result<Self, Invalid> {
        Ok((row.name, convert(row.seen, "seen")?))
    }
}

impl From<Result<Vec<(String, Seen)>, Abort>> for v1::ScanResult {
    fn from(result: Result<Vec<(String, Seen)>, Abort>) -> Self {
        use v1::scan_result::Result as Kind;
        let result = match result {
            Ok(rows) => Kind::Rows(v1::Rows { rows: rows.to_wire() }),
            Err(abort) => Kind::Failed(abort.into()),
        };
        Self { result: Some(result) }
    }
}

impl TryFrom<v1::ScanResult> for Result<Vec<(String, Seen)>, Abort> {
    type Error = Invalid;

    fn try_from(result: v1::ScanResult) -> Result<Self, Invalid> {
        use v1::scan_result::Result as Kind;
        Ok(match required(result.result, "result")? {
            Kind::Rows(rows) => Ok(Field::from_wire(rows.rows, "rows.rows")?),
            Kind::Failed(abort) => Err(inner(abort, "failed")?),
        })
    }
}

// Transactions.

impl From<Home> for v1::Part {
    fn from(home: Home) -> Self {
        let Home { region, incarnation, part } = home;
        let Part { reads, scans, writes, covers, forgets, depends, notes, relies } = part;
        Self {
            region: region.into(),
            incarnation: incarnation.0,
            reads: reads.to_wire(),
            scans: scans.to_wire(),
            writes: writes.to_wire(),
            covers: covers.to_wire(),
            forgets: forgets.to_wire(),
            depends: depends.to_wire(),
            leaves: notes.to_wire(),
            relies: relies.to_wire(),
        }
    }
}

impl TryFrom<v1::Part> for Home {
    type Error = Invalid;

    fn try_from(part: v1::Part) -> Result<Self, Invalid> {
        Ok(Self {
            region: Field::from_wire(part.region, "region")?,
            incarnation: Incarnation(part.incarnation),
            part: Part {
                reads: Field::from_wire(part.reads, "reads")?,
                scans: Field::from_wire(part.scans, "scans")?,
                writes: Field::from_wire(part.writes, "writes")?,
                covers: Field::from_wire(part.covers, "covers")?,
                forgets: Field::from_wire(part.forgets, "forgets")?,
                depends: Field::from_wire(part.depends, "depends")?,
                notes: Field::from_wire(part.leaves, "leaves")?,
                relies: Field::from_wire(part.relies, "relies")?,
            },
        })
    }
}

impl TryFrom<v1::ShowTreatiesRequest> for Request {
    type Error = Invalid;

    fn try_from(request: v1::ShowTreatiesRequest) -> Result<Self, Invalid> {
        Ok(Request::Treaties { treaty: optional(request.treaty, "treaty")? })
    }
}

impl Field<Option<v1::Tree>> for Tree {
    fn to_wire(self) -> Option<v1::Tree> {
        use v1::tree::Order;
        let group = |group: BTreeSet<u16>| v1::Group { regions: group.into_iter().map(u32::from).collect() };
        match self {
            Tree::Flat => None,
            Tree::Near => Some(v1::Tree { order: Some(Order::Near(v1::Near {})) }),
            Tree::Given(groups) => {
                let groups = groups.into_iter().map(group).collect();
                Some(v1::Tree { order: Some(Order::Given(v1::Groups { groups })) })
            }
        }
    }

    fn from_wire(tree: Option<v1::Tree>, name: &str) -> Result<Self, Invalid> {
        use v1::tree::Order;
        match tree.and_then(|tree| tree.order) {
            None => Ok(Tree::Flat),
            Some(Order::Near(_)) => Ok(Tree::Near),
            Some(Order::Given(given)) => {
                let groups = at_most(given.groups, CLAUSES, name)?;
                let region = |region: u32| Field::from_wire(region, name);
                let group = |group: v1::Group| at_most(group.regions, MEMBERS, name)?.into_iter().map(region).collect();
                Ok(Tree::Given(groups.into_iter().map(group).collect::<Result<_, _>>()?))
            }
        }
    }
}

impl From<(u32, Vec<Term>, i64)> for v1::LeafClause {
    fn from((clause, terms, bound): (u32, Vec<Term>, i64)) -> Self {
        Self { clause, terms: terms.to_wire(), bound }
    }
}

impl TryFrom<v1::LeafClause> for (u32, Vec<Term>, i64) {
    type Error = Invalid;

    fn try_from(clause: v1::LeafClause) -> Result<Self, Invalid> {
        Ok((clause.clause, Field::from_wire(clause.terms, "terms")?, clause.bound))
    }
}

impl From<Says> for internal::treaty::Says {
    fn from(says: Says) -> Self {
        match says {
            Says::Ask { token, clauses } => Self::Ask(internal::AskSlack { token, clauses }),
            Says::Report { token, lines } => Self::Report(internal::ReportSlack { token, lines: lines.to_wire() }),
            Says::Give { gives, awaited } => {
                Self::Give(internal::GiveSlack { gives: gives.to_wire(), ahead: !awaited })
            }
            Says::Gifts { gifts } => Self::Gifts(internal::SlackGifts { gifts: gifts.to_wire() }),
            Says::Retract { is_question: false } => Self::Retract(internal::Retract {}),
            Says::Retract { is_question: true } => Self::IsRetracted(internal::Retract {}),
            Says::Retracted => Self::Retracted(internal::Retract {}),
        }
    }
}

impl TryFrom<internal::treaty::Says> for Says {
    type Error = Invalid;

    fn try_from(says: internal::treaty::Says) -> Result<Self, Invalid> {
        use internal::treaty::Says as Kind;
        Ok(match says {
            Kind::Ask(ask) => Says::Ask { token: ask.token, clauses: at_most(ask.clauses, CLAUSES, "ask.clauses")? },
            Kind::Report(report) => {
                Says::Report { token: report.token, lines: Field::from_wire(report.lines, "report.lines")? }
            }
            Kind::Give(give) => Says::Give { gives: Field::from_wire(give.gives, "give.gives")?, awaited: !give.ahead },
            Kind::Gifts(gifts) => Says::Gifts { gifts: Field::from_wire(gifts.gifts, "gifts.gifts")? },
            Kind::Retract(_) => Says::Retract { is_question: false },
            Kind::IsRetracted(_) => Says::Retract { is_question: true },
            Kind::Retracted(_) => Says::Retracted,
        })
    }
}

impl From<(u16, Incarnation)> for v1::RegionIncarnation {
    fn from((region, incarnation): (u16, Incarnation)) -> Self {
        Self { region: region.into(), incarnation: incarnation.0 }
    }
}

impl TryFrom<v1::RegionIncarnation> for (u16, Incarnation) {
    type Error = Invalid;

    fn try_from(home: v1::RegionIncarnation) -> Result<Self, Invalid> {
        Ok((Field::from_wire(home.region, "region")?, Incarnation(home.incarnation)))
    }
}

impl From<(Dependency, ObjectKey)> for v1::Dependence {
    fn from((subject, call): (Dependency, ObjectKey)) -> Self {
        use v1::dependence::Subject as Kind;
        let subject = match subject {
            Dependency::Name(name) => Kind::Name(name),
            Dependency::Span(span) => Kind::Span(span.into()),
        };
        Self { subject: Some(subject), call: Some(call.into()) }
    }
}

impl TryFrom<v1::Dependence> for (Dependency, ObjectKey) {
    type Error = Invalid;

    fn try_from(dependence: v1::Dependence) -> Result<Self, Invalid> {
        use v1::dependence::Subject as Kind;
        let subject = match required(dependence.subject, "subject")? {
            Kind::Name(name) => Dependency::Name(name),
            Kind::Span(span) => Dependency::Span(inner(span, "span")?),
        };
        Ok((subject, convert(dependence.call, "call")?))
    }
}

impl From<(String, u64)> for v1::ReadVersion {
    fn from((name, number): (String, u64)) -> Self {
        Self { name, number }
    }
}

impl TryFrom<v1::ReadVersion> for (String, u64) {
    type Error = Invalid;

    fn try_from(read: v1::ReadVersion) -> Result<Self, Invalid> {
        Ok((read.name, read.number))
    }
}

impl From<(Span, Vec<u64>)> for v1::ScanVersions {
    fn from((span, numbers): (Span, Vec<u64>)) -> Self {
        Self { span: Some(span.into()), numbers }
    }
}

impl TryFrom<v1::ScanVersions> for (Span, Vec<u64>) {
    type Error = Invalid;

    fn try_from(scan: v1::ScanVersions) -> Result<Self, Invalid> {
        if scan.numbers.len() > SCAN_ROWS {
            return Err(Invalid::new("numbers", "has too many entries"));
        }
        Ok((convert(scan.span, "span")?, scan.numbers))
    }
}

impl From<(String, Change)> for v1::Write {
    fn from((name, change): (String, Change)) -> Self {
        use v1::write::Change as Kind;
        let change = match change {
            Change::Put(value) => Kind::Put(value.into()),
            Change::Delete => Kind::Remove(v1::Remove {}),
            Change::Add(delta) => Kind::Add(delta),
        };
        Self { name, change: Some(change) }
    }
}

impl TryFrom<v1::Write> for (String, Change) {
    type Error = Invalid;

    fn try_from(write: v1::Write) -> Result<Self, Invalid> {
        use v1::write::Change as Kind;
        let change = match required(write.change, "change")? {
            Kind::Put(value) => Change::Put(inner(value, "put")?),
            Kind::Remove(_) => Change::Delete,
            Kind::Add(delta) => Change::Add(delta),
        };
        Ok((write.name, change))
    }
}

same_variants! {
    Cause = v1::Cause {
        Changed, Busy, WouldWait, DeadlinePassed, NotACounter, OutOfRange, Lost, Unreachable, InvalidKey, UnknownRegion,
        TooLarge, TooMuch, Malformed, Overloaded, NotReady, Withdrawn, Depended, ClocksDisagree,
        NotMet, TooManyTreaties
    }
}

impl From<Abort> for v1::Abort {
    fn from(abort: Abort) -> Self {
        Self {
            cause: abort.cause.to_wire(),
            key: abort.key.map(Into::into),
            site: abort.site.map(Into::into),
            holders: abort.holders.to_wire(),
            until_us: abort.until,
            calls: abort.calls.to_wire(),
        }
    }
}

impl TryFrom<v1::Abort> for Abort {
    type Error = Invalid;

    fn try_from(abort: v1::Abort) -> Result<Self, Invalid> {
        Ok(Self {
            cause: Field::from_wire(abort.cause, "cause")?,
            key: optional(abort.key, "key")?,
            site: optional(abort.site, "site")?,
            holders: Field::from_wire(abort.holders, "holders")?,
            until: abort.until_us,
            calls: Field::from_wire(abort.calls, "calls")?,
        })
    }
}

// Messages between sites.

same_fields! {
    Start = internal::Start { incarnation, life }
    WarrantyNumber = internal::RightNumber { start, count }
    Offer = internal::Offer { number; expiry = expiry_us, duration = duration_us }
    Fetch = internal::Fetch { token, start, gets, scans, rights, claim; patience = patience_us }
    Rank = internal::Rank { nonce; began = began_us }
    Fetched = internal::Fetched { token, start, gets, scans, is_whole }
}

nested!(Start = internal::Start, WarrantyNumber = internal::RightNumber, OperationId = v1::OperationId);

lists! {
    (String, u32) = internal::Get, at most READ_ITEMS;
    Span = v1::Span, at most READ_ITEMS;
    Result<Given, Abort> = internal::GivenResult, at most READ_ITEMS;
    (String, WarrantyNumber) = internal::Right, at most TRANSACTION_OPERATIONS;
}

impl From<message::Claim> for internal::Claim {
    fn from(message::Claim { rank, writes, bars, ends }: message::Claim) -> Self {
        Self { rank: Some(rank.into()), writes, bars, ends }
    }
}

impl TryFrom<internal::Claim> for message::Claim {
    type Error = Invalid;

    fn try_from(internal::Claim { rank, writes, bars, ends }: internal::Claim) -> Result<Self, Invalid> {
        Ok(Self { rank: convert(rank, "rank")?, writes: at_most(writes, READ_ITEMS, "writes")?, bars, ends })
    }
}

impl From<(String, u32)> for internal::Get {
    fn from((name, reads): (String, u32)) -> Self {
        Self { name, reads }
    }
}

impl TryFrom<internal::Get> for (String, u32) {
    type Error = Invalid;

    fn try_from(get: internal::Get) -> Result<Self, Invalid> {
        Ok((get.name, get.reads))
    }
}

impl From<Result<Given, Abort>> for internal::GivenResult {
    fn from(result: Result<Given, Abort>) -> Self {
        use internal::given_result::Result as Kind;
        let result = match result {
            Ok(Given { seen, right }) => {
                Kind::Given(internal::Given { seen: Some(seen.into()), right: right.map(Into::into) })
            }
            Err(abort) => Kind::Failed(abort.into()),
        };
        Self { result: Some(result) }
    }
}

impl TryFrom<internal::GivenResult> for Result<Given, Abort> {
    type Error = Invalid;

    fn try_from(result: internal::GivenResult) -> Result<Self, Invalid> {
        use internal::given_result::Result as Kind;
        Ok(match required(result.result, "result")? {
            Kind::Given(given) => {
                Ok(Given { seen: convert(given.seen, "given.seen")?, right: optional(given.right, "given.right")? })
            }
            Kind::Failed(abort) => Err(inner(abort, "failed")?),
        })
    }
}

impl From<(String, WarrantyNumber)> for internal::Right {
    fn from((name, number): (String, WarrantyNumber)) -> Self {
        Self { name, number: Some(number.into()) }
    }
}

impl TryFrom<internal::Right> for (String, WarrantyNumber) {
    type Error = Invalid;

    fn try_from(right: internal::Right) -> Result<Self, Invalid> {
        Ok((right.name, convert(right.number, "number")?))
    }
}

impl From<Prepare> for internal::Prepare {
    fn from(prepare: Prepare) -> Self {
        let (holder, released) = prepare.released;
        Self {
            id: Some(prepare.id.into()),
            deadline_us: prepare.deadline,
            participants: prepare.participants.to_wire(),
            prepared: prepare.prepared.0,
            // The receiver knows its own region and incarnation: these fields stay empty.
            part: Some(Home { part: prepare.part, ..Home::default() }.into()),
            max_wait_us: prepare.max_wait,
            holder: Some(holder.into()),
            released: Some(released.into()),
            rank: (prepare.rank != Rank::LAST).then(|| prepare.rank.into()),
            is_check: prepare.is_check,
        }
    }
}

impl TryFrom<internal::Prepare> for Prepare {
    type Error = Invalid;

    fn try_from(prepare: internal::Prepare) -> Result<Self, Invalid> {
        let home: Home = convert(prepare.part, "part")?;
        Ok(Self {
            id: convert(prepare.id, "id")?,
            deadline: prepare.deadline_us,
            participants: Field::from_wire(prepare.participants, "participants")?,
            prepared: SiteSet(prepare.prepared),
            part: home.part,
            max_wait: prepare.max_wait_us,
            released: (convert(prepare.holder, "holder")?, convert(prepare.released, "released")?),
            rank: optional(prepare.rank, "rank")?.unwrap_or_default(),
            is_check: prepare.is_check,
            is_untimed: false,
        })
    }
}

/// A vote, as it travels.
fn vote(id: OperationId, vote: Vote) -> internal::Vote {
    use internal::vote::Vote as Kind;
    let vote = match vote {
        Vote::Prepared => Kind::Prepared(internal::Prepared {}),
        Vote::Committed => Kind::Committed(v1::Committed::default()),
        Vote::Refused(abort) => Kind::Refused((*abort).into()),
        Vote::Waiting { name, holders, until } => {
            Kind::Waiting(v1::TraceWait { name, holders: holders.to_wire(), until_us: until })
        }
    };
    internal::Vote { id: Some(id.into()), vote: Some(vote) }
}

impl TryFrom<internal::vote::Vote> for Vote {
    type Error = Invalid;

    fn try_from(vote: internal::vote::Vote) -> Result<Self, Invalid> {
        use internal::vote::Vote as Kind;
        Ok(match vote {
            Kind::Prepared(_) => Vote::Prepared,
            Kind::Committed(_) => Vote::Committed,
            Kind::Refused(abort) => Vote::Refused(Box::new(inner(abort, "refused")?)),
            Kind::Waiting(v1::TraceWait { name, holders, until_us }) => {
                Vote::Waiting { name, holders: Field::from_wire(holders, "waiting.holders")?, until: until_us }
            }
        })
    }
}

same_variants! {
    Known = internal::Known { Prepared, KnowsOfLoss, Committed, Refused, Lost, Nothing }
}

impl From<Message> for internal::ObjectMessage {
    fn from(message: Message) -> Self {
        use internal::object_message::Message as Kind;
        let message = match message {
            Message::Fetch(fetch) => Kind::Fetch((*fetch).into()),
            Message::Fetched(fetched) => Kind::Fetched((*fetched).into()),
            Message::Revoke { holder, rights } => {
                Kind::Revoke(internal::Rights { holder: Some(holder.into()), rights: rights.to_wire() })
            }
            Message::Revoked { holder, rights } => {
                Kind::Revoked(internal::Rights { holder: Some(holder.into()), rights: rights.to_wire() })
            }
            Message::Prepare(prepare) => Kind::Prepare((*prepare).into()),
            Message::Vote { id, vote: ours } => Kind::Vote(vote(id, ours)),
            Message::Decide { id, commit } => Kind::Decide(internal::Decide { id: Some(id.into()), commit }),
            Message::Decided { id } => Kind::Decided(id.into()),
            Message::Forget { id } => Kind::Forget(id.into()),
            Message::Inquire { id, deadline, participants, prepared } => Kind::Inquire(internal::Inquire {
                id: Some(id.into()),
                deadline_us: deadline,
                participants: participants.to_wire(),
                prepared: prepared.0,
            }),
            Message::Inquired { id, known, prepared } => {
                Kind::Inquired(internal::Inquired { id: Some(id.into()), known: known.to_wire(), prepared: prepared.0 })
            }
            Message::ProbeCalls { start, stamp, names } => {
                Kind::ProbeCalls(internal::Calls { start: Some(start.into()), stamp, names })
            }
            Message::AbsentCalls { start, stamp, names } => {
                Kind::AbsentCalls(internal::Calls { start: Some(start.into()), stamp, names })
            }
            Message::Treaty { treaty, nonce, says } => {
                Kind::Treaty(internal::Treaty { treaty: Some(treaty.into()), nonce, says: Some(says.into()) })
            }
        };

        Self { message: Some(message) }
    }
}

/// A list, if it has at most `most` entries.
fn at_most<T>(list: Vec<T>, most: usize, field: &str) -> Result<Vec<T>, Invalid> {
    if list.len() > most { Err(Invalid::new(field, "has too many entries")) } else { Ok(list) }
}

impl TryFrom<internal::ObjectMessage> for Message {
    type Error = Invalid;

    fn try_from(message: internal::ObjectMessage) -> Result<Self, Invalid> {
        use internal::object_message::Message as Kind;
        Ok(match required(message.message, "message")? {
            Kind::Fetch(fetch) => Message::Fetch(Box::new(inner(fetch, "fetch")?)),
            Kind::Fetched(fetched) => Message::Fetched(Box::new(inner(fetched, "fetched")?)),
            Kind::Revoke(revoke) => Message::Revoke {
                holder: convert(revoke.holder, "revoke.holder")?,
                rights: Field::from_wire(revoke.rights, "revoke.rights")?,
            },
            Kind::Revoked(revoked) => Message::Revoked {
                holder: convert(revoked.holder, "revoked.holder")?,
                rights: Field::from_wire(revoked.rights, "revoked.rights")?,
            },
            Kind::Prepare(prepare) => Message::Prepare(Box::new(inner(prepare, "prepare")?)),
            Kind::Vote(vote) => {
                Message::Vote { id: convert(vote.id, "vote.id")?, vote: convert(vote.vote, "vote.vote")? }
            }
            Kind::Decide(decide) => Message::Decide { id: convert(decide.id, "decide.id")?, commit: decide.commit },
            Kind::Decided(id) => Message::Decided { id: inner(id, "decided")? },
            Kind::Forget(id) => Message::Forget { id: inner(id, "forget")? },
            Kind::Inquire(inquire) => Message::Inquire {
                id: convert(inquire.id, "inquire.id")?,
                deadline: inquire.deadline_us,
                participants: Field::from_wire(inquire.participants, "inquire.participants")?,
                prepared: SiteSet(inquire.prepared),
            },
            Kind::Inquired(inquired) => Message::Inquired {
                id: convert(inquired.id, "inquired.id")?,
                known: Field::from_wire(inquired.known, "inquired.known")?,
                prepared: SiteSet(inquired.prepared),
            },
            Kind::ProbeCalls(internal::Calls { start, stamp, names }) => Message::ProbeCalls {
                start: convert(start, "probe_calls.start")?,
                stamp,
                names: at_most(names, READ_ITEMS, "probe_calls.names")?,
            },
            Kind::AbsentCalls(internal::Calls { start, stamp, names }) => Message::AbsentCalls {
                start: convert(start, "absent_calls.start")?,
                stamp,
                names: at_most(names, READ_ITEMS, "absent_calls.names")?,
            },
            Kind::Treaty(internal::Treaty { treaty, nonce, says }) => Message::Treaty {
                treaty: convert(treaty, "treaty.treaty")?,
                nonce,
                says: convert(says, "treaty.says")?,
            },
        })
    }
}
