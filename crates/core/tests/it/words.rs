//! What sites take in and hand out, in words: a line each, as the scripts show it. Left out is what a reader would have to look past:
//! tokens that only name a question, times that only space repetitions, and what every site says every second.

use std::fmt::Write as _;

use slackline_core::api::{
    Answer, Forecast, Hold, LeafHere, Operation, Outcome, Refusal, Request, Response, SESSION_WINDOW,
};
use slackline_core::avantan::{self, Lifecycle, Scope};
use slackline_core::clock::{MILLISECOND, Now};
use slackline_core::id::{Incarnation, OperationId, SiteId, SiteSet};
use slackline_core::machine::{Effect, Input};
use slackline_core::node::Node;
use slackline_core::object::message::{Message, Says, Vote};
use slackline_core::object::treaty::{Treaty, treaty_name};
use slackline_core::object::{Abort, Change, Dependency, ObjectKey, Part, Seen, Span, Value};
use slackline_core::peer::quota::{Digest, Forget, QuotaMessage};
use slackline_core::peer::{Body, RelayMessage, SiteMessage};
use slackline_core::rows;
use slackline_core::txn::Txns;

/// The regions of scripts, by position.
pub(crate) const REGIONS: [&str; 5] = ["us", "eu", "ap", "sa", "jp"];

/// One input at a site, and what came of it, in words.
pub(crate) struct Handled {
    pub(crate) at: usize,
    /// The cluster's time.
    pub(crate) when: u64,
    /// What came in; none if that is not worth a line.
    pub(crate) took: Option<String>,
    pub(crate) gave: Vec<String>,
}

/// What came in.
pub(crate) fn took(now: Now, input: &Input<Node>) -> Option<String> {
    match input {
        Input::Tick => None,
        Input::Request { request, .. } => Some(format!("asked    {}", request_words(request))),
        Input::Message { from, message } => {
            body(now, &message.body).map(|said| format!("hears    {}: {said}", site(*from)))
        }
    }
}

/// What came of it, a line each.
pub(crate) fn gave(now: Now, effects: &[Effect<Node>]) -> Vec<String> {
    let mut lines = Vec::new();
    // What is said to several sites alike stands in one line.
    let mut said: Vec<(String, Vec<&str>)> = Vec::new();
    for effect in effects {
        match effect {
            Effect::Persist(batch) => {
                let written = batch.iter().filter_map(|(key, value)| row(key, value));
                lines.extend(written.map(|row| format!("writes   {row}")));
            }
            Effect::Send { to, message } => {
                let Some(words) = body(now, &message.body) else { continue };
                match said.iter_mut().find(|(known, _)| *known == words) {
                    Some((_, sites)) => sites.push(site(*to)),
                    None => said.push((words, vec![site(*to)])),
                }
            }
            Effect::Respond { response, .. } => lines.push(format!("answers  {}", response_words(response))),
        }
    }
    let sends = said.into_iter().map(|(words, sites)| format!("tells    {}: {words}", sites.join(", ")));
    lines.extend(sends);
    lines
}

pub(crate) fn site(site: SiteId) -> &'static str {
    REGIONS[usize::from(site.region)]
}

fn sites(of: impl IntoIterator<Item = SiteId>) -> String {
    of.into_iter().map(site).collect::<Vec<_>>().join(", ")
}

fn set(of: SiteSet) -> String {
    of.positions().map(|position| REGIONS[position]).collect::<Vec<_>>().join(", ")
}

/// Some of the participants.
fn among(participants: &[(SiteId, Incarnation)], set: SiteSet) -> String {
    sites(participants.iter().enumerate().filter(|(position, _)| set.contains(*position)).map(|(_, (site, _))| *site))
}

/// An operation: its site, and its number in the session. Scripts have one session a site and life.
fn id(id: OperationId) -> String {
    format!("{} #{}", site(id.site), id.sequence)
}

fn key(key: &ObjectKey) -> String {
    format!("{}/{}", REGIONS[usize::from(key.home)], name(&key.name))
}

/// A call's name begins with a mark that no object's has.
fn name(name: &str) -> String {
    name.replace("\u{1}treaty/", "treaty-").replace('\u{1}', "call-")
}

fn millis(micros: u64) -> String {
    format!("{} ms", micros.div_ceil(MILLISECOND))
}

/// How long from now on.
fn left(now: Now, until: i64) -> String {
    match u64::try_from(until - now.wall) {
        Ok(left) => format!("in {}", millis(left)),
        Err(_) => format!("{} ago", millis(now.wall.abs_diff(until))),
    }
}

pub(crate) fn value(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(Value::Counter(count)) => count.to_string(),
        Some(value @ Value::Derived(_)) if Treaty::of_value(value).is_ok() => {
            let is_valid = Treaty::of_value(value).is_ok_and(|treaty| treaty.is_valid);
            if is_valid { "valid".to_owned() } else { "retracted".to_owned() }
        }
        Some(Value::Derived(derived)) => format!("result {}", String::from_utf8_lossy(&derived.bytes)),
    }
}

fn seen(seen: &Seen) -> String {
    format!("{} @{}", value(seen.value.as_ref()), seen.version.number)
}

fn change(of: &str, change: &Change) -> String {
    match change {
        Change::Put(put) => format!("{}={}", name(of), value(Some(put))),
        Change::Delete => format!("delete {}", name(of)),
        Change::Add(delta) => format!("{}{delta:+}", name(of)),
    }
}

fn span(span: &Span) -> String {
    format!("{}*", name(&span.prefix))
}

fn part(part: &Part) -> String {
    let mut words = Vec::new();
    let joined = |list: Vec<String>| list.join(", ");
    if !part.reads.is_empty() {
        let reads = part.reads.iter().map(|(of, number)| format!("{} @{number}", name(of)));
        words.push(format!("read {}", joined(reads.collect())));
    }
    if !part.scans.is_empty() {
        words.push(format!("scanned {}", joined(part.scans.iter().map(|(of, _)| span(of)).collect())));
    }
    if !part.writes.is_empty() {
        words.push(format!("puts {}", joined(part.writes.iter().map(|(of, to)| change(of, to)).collect())));
    }
    if !part.covers.is_empty() {
        words.push(format!("covers {}", joined(part.covers.iter().map(key).collect())));
    }
    if !part.depends.is_empty() {
        let depends = part.depends.iter().map(|(dependency, call)| match dependency {
            Dependency::Name(of) => format!("{} on {}", key(call), name(of)),
            Dependency::Span(of) => format!("{} on {}", key(call), span(of)),
        });
        words.push(format!("notes {}", joined(depends.collect())));
    }
    if !part.forgets.is_empty() {
        words.push(format!("forgets {}", joined(part.forgets.iter().map(key).collect())));
    }
    for note in &part.notes {
        let bounds = note.clauses.iter().map(|(_, terms, bound)| {
            let terms =
                terms.iter().map(|term| if term.weight < 0 { format!("-{}", term.name) } else { term.name.clone() });
            format!("{} >= {bound}", terms.collect::<Vec<_>>().join(" + "))
        });
        words.push(format!("keeps {} for {}", joined(bounds.collect()), key(&note.treaty)));
    }
    if !part.relies.is_empty() {
        words.push(format!("relies on {}", joined(part.relies.iter().map(key).collect())));
    }
    words.join("; ")
}

pub(crate) fn abort(abort: &Abort) -> String {
    let mut words = format!("{:?}", abort.cause).to_lowercase();
    if let Some(about) = &abort.key {
        let _ = write!(words, " {}", key(about));
    }
    if let Some(by) = abort.site.filter(|_| abort.key.is_none()) {
        let _ = write!(words, " ({})", site(by));
    }
    if !abort.holders.is_empty() {
        let is_treaty = abort.key.as_ref().is_some_and(|key| treaty_name(&key.name).is_some());
        let what = if is_treaty { "slack" } else { "rights" };
        let _ = write!(words, ", {what} of {}", sites(abort.holders.iter().copied()));
    }
    if !abort.calls.is_empty() {
        let calls: Vec<String> = abort.calls.iter().map(key).collect();
        let _ = write!(words, ": {}", calls.join(", "));
    }
    words
}

fn refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::Exhausted { asked, .. } => format!("exhausted (asked {})", set(asked)),
        Refusal::Unreachable { missing } => format!("unreachable: {}", set(missing)),
        other => format!("{other:?}"),
    }
}

pub(crate) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted { grant, lasts: None } => format!("granted {}", grant.number),
        Outcome::Granted { grant, lasts: Some(lasts) } => format!("granted {} for {}", grant.number, millis(*lasts)),
        Outcome::Released { amount } => format!("released {amount}"),
        Outcome::Created { limit } => format!("created with {limit}"),
        Outcome::Extended { lasts } => format!("lasts {}", millis(*lasts)),
        Outcome::LimitSet { limit, excess: 0 } => format!("limit set to {limit}"),
        Outcome::LimitSet { limit, excess } => format!("limit set to {limit}, {excess} in excess"),
        Outcome::Reclaimed { brought, in_use } => format!("reclaimed {brought}, {in_use} in use"),
        Outcome::Seated { number } => format!("members of change {number}"),
        Outcome::Deleted => "deleted".to_owned(),
        Outcome::Committed { phases: 1 } => "committed in 1 phase".to_owned(),
        Outcome::Committed { phases } => format!("committed in {phases} phases"),
        Outcome::Aborted(why) => format!("aborted: {}", abort(why)),
        Outcome::LossAccepted => "the loss is accepted".to_owned(),
        Outcome::Refused(why) => format!("refused: {}", refusal(*why)),
        Outcome::Unknown(doubt) => format!("unknown: {doubt:?}"),
    }
}

fn operation(operation: &Operation) -> String {
    match operation {
        Operation::Acquire { quota, amount, hold, waits } => {
            let stays = if *waits { ", in line" } else { "" };
            match hold {
                Hold::Counted => format!("acquire {amount} of {quota}{stays}"),
                Hold::Open => format!("acquire {amount} of {quota}, tracked{stays}"),
                Hold::For(micros) => format!("acquire {amount} of {quota} for {}{stays}", millis(*micros)),
            }
        }
        Operation::Release { quota, amount } => format!("release {amount} of {quota}"),
        Operation::ReleaseGrant { grant, used: 0 } => format!("release grant {}", grant.number),
        Operation::ReleaseGrant { grant, used } => format!("settle grant {}, {used} used", grant.number),
        Operation::ExtendGrant { grant, micros } => format!("extend grant {} by {}", grant.number, millis(*micros)),
        Operation::Create { quota, limit, .. } => format!("create {quota} with {limit}"),
        Operation::SetLimit { quota, limit } => format!("set the limit of {quota} to {limit}"),
        Operation::Reclaim { quota, lost, in_use } => {
            let lost: Vec<String> = lost.iter().map(|(of, at)| format!("{}-{}", site(*of), at.0)).collect();
            format!("reclaim {quota} of {}, {in_use} in use", lost.join(", "))
        }
        Operation::Delete { quota } => format!("delete {quota}"),
        Operation::Seat { site: of, change, .. } => format!("site {} {change:?}", site(*of)),
        Operation::AcceptLoss => "accept the loss".to_owned(),
        Operation::Commit(transaction) => {
            let homes = transaction.homes.iter();
            let parts = homes.map(|home| format!("{}: {}", REGIONS[usize::from(home.region)], part(&home.part)));
            format!("commit {}", parts.collect::<Vec<_>>().join(" | "))
        }
    }
}

fn request_words(request: &Request) -> String {
    match request {
        Request::Open => "open a session".to_owned(),
        Request::Batch(batch) => {
            let each = batch.operations.iter();
            let each = each.map(|one| format!("{} #{} {}", site(batch.site), one.sequence, operation(&one.operation)));
            each.collect::<Vec<_>>().join(", ")
        }
        Request::Ask { operation } => format!("what became of {}?", id(*operation)),
        Request::Explain { operation } => format!("explain {}", id(*operation)),
        Request::Close { .. } => "close the session".to_owned(),
        Request::Read(read) => {
            let gets = read.gets.iter().map(key);
            let scans = read.scans.iter().map(|(home, of)| format!("{}/{}", REGIONS[usize::from(*home)], span(of)));
            format!("read {}", gets.chain(scans).collect::<Vec<_>>().join(", "))
        }
        Request::Show { quota, local: true, .. } => format!("show what is known of {quota}"),
        Request::Show { quota, .. } => format!("show {quota}"),
        Request::List { .. } => "list quotas".to_owned(),
        Request::Treaties { .. } => "treaties".to_owned(),
        Request::Status => "status".to_owned(),
        Request::Drain { .. } => "drain".to_owned(),
        Request::Expect(forecasts) => {
            let each = forecasts.iter().map(|Forecast { quota, tokens, micros }| {
                format!("expect {tokens} of {quota} within {} s", micros / 1_000_000)
            });
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

fn answers(answers: &[Answer]) -> String {
    let each = answers.iter().map(|answer| format!("#{} {}", answer.sequence, outcome(&answer.outcome)));
    each.collect::<Vec<_>>().join(", ")
}

fn response_words(response: &Response) -> String {
    match response {
        Response::Opened { .. } => "a session".to_owned(),
        Response::NotOpened(why) => format!("no session: {}", refusal(*why)),
        Response::Batch { answers: none, .. } if none.is_empty() => "later".to_owned(),
        Response::Batch { answers: all, .. } => answers(all),
        Response::Asked { operation, outcome: of } => format!("{} {}", id(*operation), outcome(of)),
        Response::Explained { operation, .. } => format!("the course of {}", id(*operation)),
        Response::Closed => "closed".to_owned(),
        Response::Read(reading) => {
            let gets = reading.gets.iter().map(|got| got.as_ref().map_or_else(abort, seen));
            let scans = reading.scans.iter().map(|scanned| match scanned {
                Ok(rows) => {
                    let rows = rows.iter().map(|(of, found)| format!("{}={}", name(of), seen(found)));
                    format!("[{}]", rows.collect::<Vec<_>>().join(", "))
                }
                Err(why) => abort(why),
            });
            gets.chain(scans).collect::<Vec<_>>().join(", ")
        }
        Response::Shown(Ok(shown)) if shown.in_use_min == shown.in_use_max => {
            format!("{} of {} in use", shown.in_use_min, shown.limit)
        }
        Response::Shown(Ok(shown)) => {
            format!("{} to {} of {} in use", shown.in_use_min, shown.in_use_max, shown.limit)
        }
        Response::Shown(Err(why)) => format!("refused: {}", refusal(*why)),
        Response::Listed(quotas) => {
            let quotas = quotas.iter().map(|quota| format!("{}: {} of {}", quota.name, quota.tokens, quota.limit));
            quotas.collect::<Vec<_>>().join(", ")
        }
        Response::Treaties(here) => {
            let clause = |leaf: &LeafHere| {
                leaf.clauses.iter().map(|one| format!("{} >= {}", one.value, one.bound)).collect::<Vec<_>>().join(", ")
            };
            let homes = here.homes.iter().map(|one| format!("{} is {}", name(&one.name), value(Some(&one.value))));
            let leaves = here.leaves.iter().map(|leaf| format!("{} keeps {}", key(&leaf.treaty), clause(leaf)));
            homes.chain(leaves).collect::<Vec<_>>().join("; ")
        }
        Response::Status(status) => format!("{:?}", status.readiness).to_lowercase(),
        Response::Drained => "drained".to_owned(),
    }
}

/// A row that is written or removed; none for those that change every second.
fn row(key: &[u8], value: Option<&[u8]>) -> Option<String> {
    let number = |from: usize| u64::from_be_bytes(key[from..from + 8].try_into().expect("eight bytes"));
    let what = match key[0] {
        rows::META => "the site".to_owned(),
        rows::PEER => format!("the peer {}", REGIONS[usize::from(key[1])]),
        rows::QUOTA_COLD => "the quota".to_owned(),
        rows::QUOTA_HOT => "the quota's tokens".to_owned(),
        rows::OUTCOME => {
            let slot = u64::from(u16::from_be_bytes([key[9], key[10]]));
            if slot < SESSION_WINDOW { format!("outcome #{slot}") } else { "the session's mark".to_owned() }
        }
        rows::NUMBERS => "the home's numbers".to_owned(),
        rows::PARTICIPANT => {
            let of = format!("part of {} #{}", REGIONS[usize::from(key[2])], number(17));
            match value.map(|value| Txns::stage_of_row(key, value)) {
                Some(Ok(Some((_, stage)))) => format!("{of}: {}", format!("{stage:?}").to_lowercase()),
                _ => of,
            }
        }
        rows::COORDINATOR => format!("coordinator's row of #{}", number(9)),
        rows::DEPENDENT => "a call's dependence".to_owned(),
        rows::LEAF if key.ends_with(&[0xff; 8]) => "the leaf of a treaty".to_owned(),
        rows::LEAF => "a clause of a leaf".to_owned(),
        rows::FORGOTTEN => "forgotten names".to_owned(),
        rows::GRANT => format!("grant {}", number(5)),
        rows::DUE => format!("end of grant {}", number(13)),
        rows::OBJECT | rows::CALL => format!("object {}", name(&String::from_utf8_lossy(&key[5..]))),
        other => panic!("no row has the tag {other}"),
    };
    Some(if value.is_some() { what } else { format!("{what}: gone") })
}

/// What a message says; none for what every site says every second.
fn body(now: Now, body: &Body) -> Option<String> {
    Some(match body {
        Body::Site(SiteMessage::Ping { .. } | SiteMessage::Pong { .. }) => return None,
        Body::Site(SiteMessage::Hello { is_new, replaces, .. }) => match (is_new, replaces.is_some()) {
            (true, true) => "Hello, with new storage as a person has said".to_owned(),
            (true, false) => "Hello, with new storage".to_owned(),
            (false, _) => "Hello, with known storage".to_owned(),
        },
        Body::Site(SiteMessage::Welcome { known, noted, .. }) => {
            let known = if known.0 == 0 { "none".to_owned() } else { known.0.to_string() };
            let noted = if noted.0 == 0 { "noted none".to_owned() } else { format!("noted {}", noted.0) };
            format!("Welcome, knows incarnation {known}, {noted}")
        }
        Body::Relay(RelayMessage::Ask { request, .. }) => format!("Relay {}", request_words(request)),
        Body::Relay(RelayMessage::Answer { response, .. }) => format!("Relayed {}", response_words(response)),
        Body::Quota(message) => quota(message),
        Body::Txn(message) => txn(now, message),
    })
}

fn quota(message: &QuotaMessage) -> String {
    match message {
        QuotaMessage::Avantan { quota, message } => format!("{quota}: {}", agreement(message)),
        QuotaMessage::Subset { quota, message } => format!("{quota}: {}", subset(message)),
        QuotaMessage::Digests(digests) => {
            let digests: Vec<String> = digests.iter().map(digest).collect();
            format!("Digest {}", digests.join(", "))
        }
        QuotaMessage::Lookup { quota, .. } => format!("Lookup {quota}"),
        QuotaMessage::NotKnown { quota, .. } => format!("NotKnown {quota}"),
        QuotaMessage::NoVote { quota, answer } => match &answer.accepted {
            None => format!("NoVote {quota}"),
            Some(_) => format!("NoVote {quota}, but for the value that was accepted"),
        },
        QuotaMessage::Forget(message) => match &**message {
            Forget::Propose { number, names, .. } => format!("Propose {number} to forget {}", names.join(", ")),
            Forget::Agree { number, names, .. } => format!("Agree {number} to forget {}", names.join(", ")),
            Forget::Cancel { number } => format!("Cancel {number}"),
            Forget::Forgotten(forgotten) => format!("Forgotten {}: {}", forgotten.epoch, forgotten.names.join(", ")),
        },
        QuotaMessage::Count { quota, .. } => format!("Count {quota}"),
        QuotaMessage::Counted { tally: None, .. } => "Counted: not known".to_owned(),
        QuotaMessage::Counted { tally: Some(tally), .. } => {
            format!("Counted {} of {}, {} out", tally.tokens, tally.limit.0, tally.acquired - tally.released)
        }
    }
}

fn digest(digest: &Digest) -> String {
    let Digest { quota, free, short, first, given, received, .. } = digest;
    let mut words = format!("{quota} free {free}");
    let amounts = [i128::from(*short), i128::from(*first), *given as i128, *received as i128];
    for (what, amount) in ["short", "first", "given", "received"].into_iter().zip(amounts) {
        if amount != 0 {
            let _ = write!(words, " {what} {amount}");
        }
    }
    words
}

fn agreement(message: &avantan::Message) -> String {
    use avantan::Message as M;
    match message {
        M::Election { instance, ballot, scope, .. } => {
            let scope = match scope {
                Scope::Nothing => "record only",
                Scope::Spare => "offer what is spare",
                Scope::All => "offer all",
                Scope::Closing => "offer all and grant nothing",
            };
            format!("Election {instance} ballot {}.{}: {scope}", ballot.number, site(ballot.site))
        }
        M::Report { instance, report, .. } => {
            let line = &report.line;
            let promise = if report.promises { "" } else { ", no promise" };
            let accepted = if report.accepted.is_some() { ", has accepted a value" } else { "" };
            let (held, kept, needed, wanted) = (line.held, line.kept, line.needed, line.wanted);
            let used = if line.used.is_some() { "" } else { ", no books" };
            format!(
                "Report {instance}: offers {held}, keeps {kept}, needs {needed}, wants {wanted}{used}{promise}{accepted}"
            )
        }
        M::Accept { instance, ballot, value } => {
            format!("Accept {instance} ballot {}.{}: {}", ballot.number, site(ballot.site), agreed(value))
        }
        M::Accepted { instance, ballot } => {
            format!("Accepted {instance} ballot {}.{}", ballot.number, site(ballot.site))
        }
        M::Refuse { instance, promised } => {
            format!("Refuse {instance}, promised {}.{}", promised.number, site(promised.site))
        }
        M::Decided { instance, table } => match table.limit {
            Some(limit) => {
                let rows = table.rows().iter().map(|settled| (settled.row.site, settled.row.after));
                let rows: Vec<String> = rows.map(|(of, after)| format!("{} {after}", site(of))).collect();
                let excess = if table.is_over() { format!(", excess {}", table.excess) } else { String::new() };
                format!("Decided {instance}: limit {limit}{excess}, {}", rows.join(", "))
            }
            None => format!("Decided {instance}: no quota"),
        },
        M::Withdraw { instance, .. } => format!("Withdraw {instance}"),
        M::Behind { applied } => format!("Behind, has {applied}"),
    }
}

fn subset(message: &avantan::subset::Message) -> String {
    use avantan::subset::Message as M;
    let key = message.key();
    let again = if key.incarnation > Incarnation(1) { format!(" of {}", key.incarnation.0) } else { String::new() };
    let round = format!("{}{again}#{}", site(key.leader), key.sequence);
    let dead = |dead: &[(SiteId, Incarnation)]| -> String {
        dead.iter().map(|(of, newest)| format!(", {} is {} by now", site(*of), newest.0)).collect()
    };
    match message {
        M::Election { gathers, .. } => format!("Election {round}{}", if *gathers { ": offer all" } else { "" }),
        M::Report { line, .. } => {
            let (held, kept, needed, wanted) = (line.held, line.kept, line.needed, line.wanted);
            format!("Report {round}: offers {held}, keeps {kept}, needs {needed}, wants {wanted}")
        }
        M::Busy { .. } => format!("Busy {round}"),
        M::Accept { rows, dead: gone, .. } => {
            let rows: Vec<String> =
                rows.iter().map(|row| format!("{} {}->{}", site(row.site), row.before, row.after)).collect();
            format!("Accept {round}: {}{}", rows.join(", "), dead(gone))
        }
        M::Accepted { dead: gone, .. } => format!("Accepted {round}{}", dead(gone)),
        M::Refuse { .. } => format!("Refuse {round}"),
        M::Lost { .. } => format!("Lost {round}"),
        M::Decided { worse, .. } => format!("Decided {round}{}", if *worse { ", for the worse" } else { "" }),
        M::Withdraw { .. } => format!("Withdraw {round}"),
    }
}

fn agreed(value: &avantan::Value) -> String {
    let rows = value.rows.iter().map(|row| format!("{} {}->{}", site(row.site), row.before, row.after));
    let rows = rows.collect::<Vec<_>>().join(", ");
    match value.lifecycle {
        Lifecycle::Keep => rows,
        Lifecycle::Create { limit, .. } => format!("create with {limit}, {rows}"),
        Lifecycle::Delete => format!("delete, {rows}"),
        Lifecycle::Seat { site: of, gone: false } => format!("{} joins, {rows}", site(of)),
        Lifecycle::Seat { site: of, gone: true } => format!("{} is gone, {rows}", site(of)),
        Lifecycle::Resize { limit } => format!("limit {limit}, {rows}"),
        Lifecycle::Reclaim { brought, in_use } => format!("reclaim {brought}, {in_use} in use, {rows}"),
    }
}

fn txn(now: Now, message: &Message) -> String {
    match message {
        Message::Fetch(fetch) => {
            let gets = fetch.gets.iter().map(|(of, _)| name(of)).chain(fetch.scans.iter().map(span));
            let rights = if fetch.rights { ", with rights" } else { "" };
            format!("Fetch {}{rights}", gets.collect::<Vec<_>>().join(", "))
        }
        Message::Fetched(fetched) => {
            let gets = fetched.gets.iter().map(|got| match got {
                Ok(given) => match given.right {
                    Some(right) => format!("{}, a right that ends {}", seen(&given.seen), left(now, right.expiry)),
                    None => seen(&given.seen),
                },
                Err(why) => abort(why),
            });
            let scans = fetched.scans.iter().map(|scanned| match scanned {
                Ok(found) => format!("{} rows", found.len()),
                Err(why) => abort(why),
            });
            format!("Fetched {}", gets.chain(scans).collect::<Vec<_>>().join(" | "))
        }
        Message::Revoke { rights, .. } => format!("Revoke {}", names(rights)),
        Message::Revoked { rights, .. } => format!("Revoked {}", names(rights)),
        Message::Prepare(prepare) => {
            let check = if prepare.is_check { "Check" } else { "Prepare" };
            let prepared = match among(&prepare.participants, prepare.prepared) {
                none if none.is_empty() => none,
                some => format!(" (prepared: {some})"),
            };
            let ends = left(now, prepare.deadline);
            format!("{check} {}: {}{prepared}, refuse {ends}", id(prepare.id), part(&prepare.part))
        }
        Message::Vote { id: of, vote } => match vote {
            Vote::Prepared => format!("Vote {} prepared", id(*of)),
            Vote::Committed => format!("Vote {} committed", id(*of)),
            Vote::Refused(why) => format!("Vote {} refused: {}", id(*of), abort(why)),
            Vote::Waiting { name: over, holders, until } => {
                let (holders, over_by) = (sites(holders.iter().copied()), left(now, *until));
                match treaty_name(over) {
                    Some(_) => {
                        format!("Vote {} waits for slack of {}, at {holders}, over {over_by}", id(*of), name(over))
                    }
                    None => {
                        format!("Vote {} waits for rights of {holders} over {}, over {over_by}", id(*of), name(over))
                    }
                }
            }
        },
        Message::Decide { id: of, commit } => {
            format!("Decide {} {}", id(*of), if *commit { "commit" } else { "abort" })
        }
        Message::Decided { id: of } => format!("Decided {}", id(*of)),
        Message::Forget { id: of } => format!("Forget {}", id(*of)),
        Message::ProbeCalls { names, .. } => {
            format!("ProbeCalls {}", names.iter().map(|of| name(of)).collect::<Vec<_>>().join(", "))
        }
        Message::AbsentCalls { names, .. } => {
            format!("AbsentCalls {}", names.iter().map(|of| name(of)).collect::<Vec<_>>().join(", "))
        }
        Message::Treaty { treaty, says, .. } => {
            let of = key(treaty);
            match says {
                Says::Ask { .. } => format!("Ask for slack of {of}"),
                Says::Report { lines, .. } => {
                    let slacks = lines.iter().map(|line| line.slack.to_string()).collect::<Vec<_>>();
                    format!("Report slack of {of}: {}", none(slacks.join(", ")))
                }
                Says::Give { gives, awaited } => {
                    let gives =
                        gives.iter().map(|give| format!("{} to {}", give.amount, REGIONS[usize::from(give.to)]));
                    let ahead = if *awaited { "" } else { ", ahead" };
                    format!("Give slack of {of}{ahead}: {}", gives.collect::<Vec<_>>().join(", "))
                }
                Says::Gifts { gifts } => {
                    let totals = gifts.iter().map(|gift| gift.total.to_string()).collect::<Vec<_>>();
                    format!("Gifts of {of}: {} in all", totals.join(", "))
                }
                Says::Retract { is_question: false } => format!("Retract {of}"),
                Says::Retract { is_question: true } => format!("Is {of} retracted?"),
                Says::Retracted => format!("Retracted {of}"),
            }
        }
        Message::Inquire { id: of, participants, prepared, .. } => {
            format!("Inquire {}: knows prepared {}", id(*of), none(among(participants, *prepared)))
        }
        Message::Inquired { id: of, known, .. } => {
            format!("Inquired {}: {}", id(*of), format!("{known:?}").to_lowercase())
        }
    }
}

fn names<T>(rights: &[(String, T)]) -> String {
    rights.iter().map(|(of, _)| name(of)).collect::<Vec<_>>().join(", ")
}

fn none(words: String) -> String {
    if words.is_empty() { "none".to_owned() } else { words }
}
