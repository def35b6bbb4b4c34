//! Transactions over objects of several homes, one rule a scenario.

use slackline_core::api::{
    Batch, Hold, Operation, Outcome, Read, Reading, Request, Response, Submission, UnknownReason,
};
use slackline_core::bounds::READ_BYTES;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::config::Config;
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId, SiteSet};
use slackline_core::machine::{ClientId, Input, KeySet, Machine, Overlay, View};
use slackline_core::node::Node;
use slackline_core::object::message::{Fetch, Known, Message, Prepare};
use slackline_core::object::trace::{End, Step, Trace};
use slackline_core::object::{
    Abort, Cause, Change, Home, ObjectKey, Origin, Part, Rank, Seen, Span, Transaction, VALUE_BYTES, Value,
};
use slackline_core::peer::{Body, PeerMessage};
use slackline_core::right::Start;
use slackline_core::rows::OBJECT;
use slackline_core::warranty::LEASE;

use crate::cluster::{Cluster, DELAY};
use crate::reclaim::lose;

/// A transaction in the making.
#[derive(Clone, Default)]
pub(crate) struct Txn(pub(crate) Transaction);

impl Txn {
    pub(crate) fn new() -> Self {
        Self(Transaction { homes: Vec::new(), max_wait: 60 * SECOND, ..Transaction::default() })
    }

    fn home(&mut self, region: u16) -> &mut Home {
        let homes = &mut self.0.homes;
        let at = homes.iter().position(|home| home.region == region).unwrap_or_else(|| {
            homes.push(Home { region, ..Home::default() });
            homes.len() - 1
        });
        &mut homes[at]
    }

    pub(crate) fn of(mut self, origin: Origin) -> Self {
        self.0.origin = origin;
        self
    }

    pub(crate) fn read(mut self, key: &ObjectKey, seen: &Seen) -> Self {
        let home = self.home(key.home);
        home.incarnation = seen.version.incarnation;
        home.part.reads.push((key.name.clone(), seen.version.number));
        self
    }

    fn scanned(mut self, region: u16, span: &Span, found: &[(String, Seen)]) -> Self {
        let numbers = found.iter().map(|(_, seen)| seen.version.number).collect();
        self.home(region).part.scans.push((span.clone(), numbers));
        self
    }

    pub(crate) fn write(mut self, key: &ObjectKey, change: Change) -> Self {
        self.home(key.home).part.writes.push((key.name.clone(), change));
        self
    }

    pub(crate) fn put(self, key: &ObjectKey, value: &str) -> Self {
        self.write(key, Change::Put(bytes(value)))
    }

    pub(crate) fn operation(self) -> Operation {
        Operation::Commit(Box::new(self.0))
    }
}

pub(crate) fn bytes(value: &str) -> Value {
    Value::Bytes(value.as_bytes().to_vec().into())
}

pub(crate) fn key(home: u16, name: &str) -> ObjectKey {
    ObjectKey::new(home, name)
}

/// An operation that a site never sees: others are asked in its name.
pub(crate) fn asked_by(at: usize) -> OperationId {
    OperationId { site: Cluster::site(at), incarnation: Incarnation(1), session: SessionId(99), sequence: 1 }
}

/// What a participant is asked by the site of `id`.
pub(crate) fn prepare(id: OperationId, deadline: i64, participants: &[(SiteId, Incarnation)], part: Part) -> Prepare {
    Prepare {
        id,
        deadline,
        participants: participants.to_vec(),
        prepared: SiteSet::default(),
        part,
        max_wait: 0,
        released: Default::default(),
        rank: Rank::LAST,
        is_check: false,
        is_untimed: false,
    }
}

/// A site is told something about transactions by another, whatever that has said so far.
pub(crate) fn tell(cluster: &mut Cluster, from: usize, at: usize, message: Message) {
    let body = Body::Txn(Box::new(message));
    let message = PeerMessage { incarnation: Incarnation(1), position: 0, epoch: 0, members: 0, body };
    cluster.feed(at, Input::Message { from: Cluster::site(from), message });
}

fn begin_read(cluster: &mut Cluster, at: usize, gets: &[ObjectKey], scans: Vec<(u16, Span)>, fresh: bool) {
    let read = Read { token: 7, gets: gets.to_vec(), scans, fresh, upkeep: false, timeout: SECOND, claim: None };
    cluster.request(at, 70, Request::Read(Box::new(read)));
}

pub(crate) fn end_read(cluster: &mut Cluster, at: usize) -> Reading {
    for _ in 0..300 {
        let found = cluster.responses.iter().position(|(host, client, _)| (*host, *client) == (at, ClientId(70)));
        if let Some(found) = found {
            let (_, _, Response::Read(reading)) = cluster.responses.remove(found) else { panic!("asked to read") };
            return *reading;
        }
        cluster.run(10 * MILLISECOND);
    }
    panic!("no answer");
}

pub(crate) fn get(cluster: &mut Cluster, at: usize, key: &ObjectKey) -> Result<Seen, Abort> {
    begin_read(cluster, at, std::slice::from_ref(key), Vec::new(), false);
    end_read(cluster, at).gets.remove(0)
}

pub(crate) fn scan(cluster: &mut Cluster, at: usize, home: u16, prefix: &str) -> (Span, Vec<(String, Seen)>) {
    let span = Span { prefix: prefix.into(), after: String::new(), limit: 100 };
    begin_read(cluster, at, &[], vec![(home, span.clone())], false);
    let found = end_read(cluster, at).scans.remove(0).expect("scanned");
    (span, found)
}

/// What an object's home says, or a live right.
pub(crate) fn fresh(cluster: &mut Cluster, at: usize, key: &ObjectKey) -> Result<Seen, Abort> {
    begin_read(cluster, at, std::slice::from_ref(key), Vec::new(), true);
    end_read(cluster, at).gets.remove(0)
}

/// The same, without using it.
pub(crate) fn look(cluster: &mut Cluster, at: usize, key: &ObjectKey) -> Result<Seen, Abort> {
    let gets = vec![key.clone()];
    let read = Read { token: 7, gets, scans: Vec::new(), fresh: true, upkeep: true, timeout: SECOND, claim: None };
    cluster.request(at, 70, Request::Read(Box::new(read)));
    end_read(cluster, at).gets.remove(0)
}

pub(crate) fn value(cluster: &mut Cluster, at: usize, key: &ObjectKey) -> Option<Value> {
    fresh(cluster, at, key).expect("read").value
}

/// Hands a transaction over and does not wait for it; its sequence.
pub(crate) fn begin(cluster: &mut Cluster, at: usize, txn: Txn) -> u64 {
    cluster.submit(at, txn.operation())
}

pub(crate) fn commit(cluster: &mut Cluster, at: usize, txn: Txn) -> Outcome {
    cluster.done(at, txn.operation())
}

pub(crate) fn committed(phases: u8) -> Outcome {
    Outcome::Committed { phases }
}

pub(crate) fn cause(outcome: &Outcome) -> Option<Cause> {
    match outcome {
        Outcome::Aborted(abort) => Some(abort.cause),
        _ => None,
    }
}

/// Reads an object often enough that its home issues a right over it.
pub(crate) fn warm(cluster: &mut Cluster, at: usize, key: &ObjectKey) -> Seen {
    warm_for(cluster, at, key, 10 * SECOND)
}

fn warm_for(cluster: &mut Cluster, at: usize, key: &ObjectKey, span: u64) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..span / (100 * MILLISECOND) {
        cluster.run(100 * MILLISECOND);
        begin_read(cluster, at, std::slice::from_ref(key), Vec::new(), true);
        seen = end_read(cluster, at).gets.remove(0).expect("read");
    }
    seen
}

/// Reads an object until a right over it was issued or extended that lasts for long.
fn hold_long(cluster: &mut Cluster, at: usize, key: &ObjectKey) {
    for _ in 0..300 {
        let seen = warm_for(cluster, at, key, 200 * MILLISECOND);
        let read = cluster.submit(at, Txn::new().read(key, &seen).operation());
        let trace = explain(cluster, at, at, read).expect("remembered");
        if trace.rights.first().is_some_and(|right| right.until > cluster.time(at).wall + 9 * SECOND as i64) {
            return;
        }
    }
    panic!("no right is long");
}

#[test]
fn transaction_takes_as_many_phases_as_it_has_homes_left() {
    let mut cluster = Cluster::new(3);
    let (here, there, beyond) = (key(0, "a"), key(1, "b"), key(2, "c"));
    assert_eq!(commit(&mut cluster, 0, Txn::new().put(&here, "1")), committed(1));
    assert_eq!(commit(&mut cluster, 0, Txn::new().put(&there, "2")), committed(1));
    assert_eq!(commit(&mut cluster, 0, Txn::new().put(&here, "3").put(&there, "3").put(&beyond, "3")), committed(2));
    for at in 0..3 {
        for key in [&here, &there, &beyond] {
            assert_eq!(value(&mut cluster, at, key), Some(bytes("3")), "{key} from {at}");
        }
    }
    let seen = get(&mut cluster, 0, &here).expect("read");
    let before = cluster.hosts[0].rows.clone();
    assert_eq!(commit(&mut cluster, 0, Txn::new().read(&here, &seen)), committed(0));
    assert!(cluster.hosts[0].rows == before, "it leaves no row, so nobody waits for a sync");
    let seen = get(&mut cluster, 0, &there).expect("read");
    assert_eq!(commit(&mut cluster, 0, Txn::new().read(&there, &seen)), committed(1), "validated at its home");
    cluster.run(30 * SECOND);
    for host in &cluster.hosts {
        let txns = &host.node.as_ref().expect("runs").chapters().txns;
        assert_eq!(txns.under_way(), (0, 0), "nothing is left of it");
        assert!(host.rows.keys().all(|key| !(0x07..=0x08).contains(&key[0])));
    }
}

#[test]
fn prepared_write_excludes_reads_and_writes_but_adds_pass_adds() {
    let mut cluster = Cluster::new(3);
    let (counter, other) = (key(0, "n"), key(1, "m"));
    // From site 2, so that the participants need a second message each.
    let far = key(2, "far");
    let three = Txn::new().write(&counter, Change::Add(5)).write(&other, Change::Add(1)).put(&far, "x");
    let first = cluster.submit(2, three.operation());
    cluster.run(DELAY + MILLISECOND);
    let second = cluster.submit(0, Txn::new().write(&counter, Change::Add(7)).operation());
    assert_eq!(cluster.outcome(0, second), Some(committed(1)), "adds commute");
    // Read before anybody was refused: later reads would wait.
    let seen = get(&mut cluster, 0, &counter).expect("read");
    let put = cluster.submit(0, Txn::new().write(&counter, Change::Put(Value::Counter(0))).operation());
    assert_eq!(cause(&cluster.outcome(0, put).expect("at once")), Some(Cause::Busy));
    let read = cluster.submit(0, Txn::new().read(&counter, &seen).operation());
    assert_eq!(cause(&cluster.outcome(0, read).expect("at once")), Some(Cause::Busy));
    cluster.run(4 * DELAY);
    assert_eq!(cluster.outcome(2, first), Some(committed(2)));
    assert_eq!(value(&mut cluster, 1, &counter), Some(Value::Counter(12)));
}

#[test]
fn insert_is_refused_while_a_scan_is_prepared() {
    let mut cluster = Cluster::new(3);
    let row = |name: &str| key(1, &format!("list/{name}"));
    commit(&mut cluster, 1, Txn::new().put(&row("b"), "1").put(&row("d"), "1").put(&key(1, "other"), "1"));
    let (span, found) = scan(&mut cluster, 0, 1, "list/");
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["list/b", "list/d"]);
    let counted = Txn::new().scanned(1, &span, &found).put(&key(0, "total"), "2").put(&key(2, "total"), "2");
    let counted = cluster.submit(0, counted.operation());
    cluster.run(DELAY + MILLISECOND);
    let insert = cluster.submit(1, Txn::new().put(&row("e"), "1").operation());
    assert_eq!(cause(&cluster.outcome(1, insert).expect("at once")), Some(Cause::Busy));
    cluster.run(4 * DELAY);
    assert_eq!(cluster.outcome(0, counted), Some(committed(2)));
    assert_eq!(commit(&mut cluster, 1, Txn::new().put(&row("e"), "1")), committed(1));
}

#[test]
fn read_under_a_warranty_costs_nothing_and_its_write_waits() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    let seen = warm(&mut cluster, 0, &x);
    let before = cluster.now;
    assert_eq!(commit(&mut cluster, 0, Txn::new().read(&x, &seen)), committed(0));
    assert_eq!(cluster.now, before, "judged at once");
    // The home's own write asks the holder first.
    let write = cluster.submit(1, Txn::new().put(&x, "2").operation());
    assert_eq!(cluster.outcome(1, write), None);
    cluster.run(DELAY - MILLISECOND);
    assert_eq!(commit(&mut cluster, 0, Txn::new().read(&x, &seen)), committed(0), "it has not heard yet");
    cluster.run(DELAY / 2);
    assert_eq!(cluster.outcome(1, write), None);
    let late = cluster.submit(0, Txn::new().read(&x, &seen).operation());
    assert_eq!(cluster.outcome(0, late), None, "given up: the home is asked");
    cluster.run(DELAY);
    assert_eq!(cluster.outcome(1, write), Some(committed(1)), "one round trip, not the end of the right");
    cluster.run(4 * DELAY);
    assert_eq!(cause(&cluster.outcome(0, late).expect("answered")), Some(Cause::Changed));
    assert_eq!(value(&mut cluster, 0, &x), Some(bytes("2")));
}

#[test]
fn write_waits_for_the_end_of_a_right_whose_holder_is_silent() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    let seen = warm(&mut cluster, 0, &x);
    cluster.cut = vec![(0, 1), (1, 0)];
    let began = cluster.now;
    let write = cluster.submit(1, Txn::new().put(&x, "2").operation());
    let mut last = 0;
    while cluster.outcome(1, write).is_none() {
        cluster.run(50 * MILLISECOND);
        let read = cluster.submit(0, Txn::new().read(&x, &seen).operation());
        if cluster.outcome(0, read) == Some(committed(0)) {
            last = cluster.now;
            assert_eq!(cluster.outcome(1, write), None, "a read of the old value after its write was done");
        }
        assert!(cluster.now < began + 15 * SECOND);
    }
    assert!(last > began + SECOND, "the right was of use to its holder");
    let Some(Outcome::Aborted(abort)) = cluster.outcome(1, write) else { panic!("it would have to wait longer") };
    assert_eq!((abort.cause, abort.key), (Cause::DeadlinePassed, Some(x)));
    assert_eq!(abort.holders, [Cluster::site(0)], "it says for whom it waited");
}

#[test]
fn read_tells_a_home_that_is_late_from_one_that_is_silent() {
    let mut cluster = Cluster::new(3);
    let ask = |cluster: &mut Cluster, timeout| {
        let gets = vec![key(1, "x")];
        let scans = vec![(1, Span { limit: 9, ..Span::default() })];
        cluster.request(
            0,
            70,
            Request::Read(Box::new(Read { token: 7, gets, scans, fresh: true, upkeep: false, timeout, claim: None })),
        );
        cluster.run(timeout);
        let Reading { mut gets, mut scans, .. } = end_read(cluster, 0);
        let (got, scanned) = (gets.remove(0).expect_err("unread"), scans.remove(0).expect_err("unread"));
        assert_eq!((got.cause, got.site), (scanned.cause, Some(Cluster::site(1))));
        got.cause
    };
    assert_eq!(ask(&mut cluster, DELAY), Cause::DeadlinePassed);
    cluster.cut = vec![(0, 1), (1, 0)];
    assert_eq!(ask(&mut cluster, 10 * SECOND), Cause::Unreachable, "nothing is heard of it when the time is up");
    assert_eq!(ask(&mut cluster, 10 * SECOND), Cause::Unreachable, "nor when it is asked for");
}

#[test]
fn write_that_may_not_wait_says_who_holds_what_until_when() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    warm(&mut cluster, 0, &x);
    let mut txn = Txn::new().put(&x, "2");
    txn.0.max_wait = MILLISECOND;
    let Outcome::Aborted(abort) = commit(&mut cluster, 2, txn) else { panic!("it would have to wait") };
    assert_eq!((abort.cause, abort.key), (Cause::WouldWait, Some(x)));
    assert_eq!(abort.holders, [Cluster::site(0)]);
    assert!(abort.until.expect("said") > cluster.time(1).wall);
}

#[test]
fn write_waits_no_longer_than_it_may_for_a_holder_that_does_not_answer() {
    // The holder crashes just now; or so long ago that its silence is known.
    for silence in [0, 5 * SECOND] {
        let mut cluster = Cluster::new(3);
        let x = key(1, "x");
        commit(&mut cluster, 1, Txn::new().put(&x, "1"));
        cluster.run(20 * SECOND);
        hold_long(&mut cluster, 0, &x);
        cluster.kill(0);
        cluster.run(silence);
        let began = cluster.now;
        let mut txn = Txn::new().put(&x, "2");
        txn.0.max_wait = 200 * MILLISECOND;
        let Outcome::Aborted(abort) = commit(&mut cluster, 2, txn) else { panic!("it would have to wait") };
        assert_eq!((abort.cause, abort.key), (Cause::WouldWait, Some(x)));
        assert_eq!(abort.holders, [Cluster::site(0)]);
        assert!(abort.until.expect("said") > cluster.time(1).wall);
        let most = if silence == 0 { 200 * MILLISECOND } else { 0 } + 2 * DELAY + 20 * MILLISECOND;
        assert!(cluster.now - began <= most, "refused after {} of {most}", cluster.now - began);
    }
}

#[test]
fn write_that_may_not_wait_for_a_round_trip_gets_through_though_others_read_all_the_time() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    hold_long(&mut cluster, 0, &x);
    let mut refused = 0;
    // Before each attempt, readers at the site that holds the right read for a while.
    let written = (0..5).any(|_| {
        let mut txn = Txn::new().put(&x, "2");
        txn.0.max_wait = DELAY;
        let outcome = commit(&mut cluster, 2, txn);
        if outcome == committed(1) {
            return true;
        }
        assert_eq!(cause(&outcome), Some(Cause::WouldWait));
        refused += 1;
        warm_for(&mut cluster, 0, &x, 500 * MILLISECOND);
        false
    });
    assert!(written, "refused {refused} times");
    assert!(refused > 0, "the first has to wait");
    // Readers get a right again.
    cluster.run(20 * SECOND);
    hold_long(&mut cluster, 0, &x);
}

#[test]
fn right_that_is_over_by_one_of_two_clocks_alone_is_asked_back() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    hold_long(&mut cluster, 0, &x);
    cluster.hosts[1].wall -= 15 * SECOND as i64;
    cluster.run(11 * SECOND);
    let began = cluster.now;
    assert_eq!(commit(&mut cluster, 1, Txn::new().put(&x, "2")), committed(1));
    assert!(cluster.now - began < SECOND, "it waited for {} us", cluster.now - began);
}

#[test]
fn part_that_is_prepared_is_not_refused_for_having_waited() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(2, "y"));
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    commit(&mut cluster, 2, Txn::new().put(&y, "1"));
    cluster.run(20 * SECOND);
    for _ in 0..2 {
        warm(&mut cluster, 0, &x);
        warm(&mut cluster, 0, &y);
    }
    // The right over `x` is given up, and its home prepares; it cannot ask the home of `y` for longer than it may wait.
    let mut txn = Txn::new().put(&x, "2").put(&y, "2");
    txn.0.max_wait = 3 * DELAY;
    let sequence = cluster.submit(1, txn.operation());
    cluster.cut = vec![(1, 2), (2, 1)];
    cluster.run(12 * DELAY);
    assert_eq!(cluster.outcome(1, sequence), None);
    cluster.cut.clear();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcome(1, sequence), Some(committed(2)));
    assert_eq!((value(&mut cluster, 0, &x), value(&mut cluster, 0, &y)), (Some(bytes("2")), Some(bytes("2"))));
}

#[test]
fn write_that_may_not_wait_waits_neither_for_rights_of_an_earlier_life() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(1, "y"));
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    hold_long(&mut cluster, 0, &x);
    cluster.kill(1);
    cluster.start(1);
    cluster.run(500 * MILLISECOND);
    // Of this life there is a right, too, which its holder would give up soon.
    warm_for(&mut cluster, 0, &y, 3 * SECOND);
    let began = cluster.now;
    let mut txn = Txn::new().put(&y, "2");
    txn.0.max_wait = 3 * DELAY;
    let outcome = commit(&mut cluster, 2, txn);
    let Outcome::Aborted(abort) = outcome else { panic!("it would have to wait") };
    assert_eq!((abort.cause, &abort.holders[..]), (Cause::WouldWait, &[Cluster::site(0)][..]));
    assert!(cluster.now - began <= 2 * DELAY + 20 * MILLISECOND, "refused at once");
}

/// What the site `at` is told about an operation of the site `by`.
fn explain(cluster: &mut Cluster, at: usize, by: usize, sequence: u64) -> Result<Box<Trace>, UnknownReason> {
    let (site, incarnation, session) = cluster.session(by);
    let operation = OperationId { site, incarnation, session, sequence };
    cluster.request(at, 71, Request::Explain { operation });
    for _ in 0..300 {
        let found = cluster.responses.iter().position(|(host, client, _)| (*host, *client) == (at, ClientId(71)));
        if let Some(found) = found {
            let (_, _, Response::Explained { operation: about, trace }) = cluster.responses.remove(found) else {
                panic!("asked to explain")
            };
            assert_eq!(about, operation);
            return trace;
        }
        cluster.run(10 * MILLISECOND);
    }
    panic!("no answer");
}

#[test]
fn trace_of_a_defended_write_says_who_held_the_right_and_how_long_it_waited() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(2, "y"));
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    warm(&mut cluster, 0, &x);
    let wall = cluster.time(2).wall;
    let write = cluster.submit(2, Txn::new().put(&x, "2").put(&y, "2").operation());
    cluster.run(10 * DELAY);
    assert_eq!(cluster.outcome(2, write), Some(committed(2)));
    // Another site passes the question on.
    let trace = explain(&mut cluster, 0, 2, write).expect("remembered");
    assert_eq!((trace.began, trace.proved), (wall, 0));
    let parts: Vec<_> = trace.parts.iter().map(|part| (part.site, part.reads, part.scans, part.writes)).collect();
    assert_eq!(parts, [(Cluster::site(1), 0, 0, 1), (Cluster::site(2), 0, 0, 1)]);
    let of_home = trace.events.iter().filter(|event| event.site == Cluster::site(1));
    let [asked, waits, done, ..] = &of_home.collect::<Vec<_>>()[..] else { panic!("{trace:?}") };
    assert_eq!(asked.step, Step::Asked);
    let Step::Waits { name, holders, until } = &waits.step else { panic!("{trace:?}") };
    assert_eq!((name.as_str(), &holders[..]), ("x", &[Cluster::site(0)][..]));
    assert!(*until > wall, "the right would have gone on");
    assert!(matches!(done.step, Step::Prepared | Step::Committed), "{trace:?}");
    let waited = done.at - waits.at;
    assert!((2 * DELAY..3 * DELAY).contains(&waited), "as long as the holder takes to give it up: {waited}");
    assert_eq!(trace.end, Some((done.at, End::Committed { phases: 2 })));
    assert_eq!(trace.events.last().map(|event| &event.step), Some(&Step::Noted));
}

#[test]
fn trace_names_rights_that_proved_reads_and_who_refused() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    let seen = warm(&mut cluster, 0, &x);
    let read = cluster.submit(0, Txn::new().read(&x, &seen).operation());
    let trace = explain(&mut cluster, 0, 0, read).expect("remembered");
    assert_eq!((trace.proved, trace.parts.len(), trace.events.len()), (1, 0, 0));
    assert_eq!((&trace.rights[0].key, trace.rights[0].until > trace.began), (&x, true));
    assert_eq!(trace.end, Some((0, End::Committed { phases: 0 })));

    let mut hasty = Txn::new().put(&x, "2");
    hasty.0.max_wait = MILLISECOND;
    let hasty = cluster.submit(2, hasty.operation());
    cluster.run(4 * DELAY);
    let Some(Outcome::Aborted(abort)) = cluster.outcome(2, hasty) else { panic!("it would have to wait") };
    let trace = explain(&mut cluster, 2, 2, hasty).expect("remembered");
    let refused = trace.events.iter().find(|event| event.step == Step::Refused(abort.clone()));
    let refused = refused.unwrap_or_else(|| panic!("{trace:?}"));
    assert_eq!((refused.site, refused.times), (Cluster::site(1), 1));
    assert_eq!(trace.end, Some((refused.at, End::Aborted(abort))));

    // It is in memory only, and of transactions that there were.
    assert_eq!(explain(&mut cluster, 2, 2, hasty + 1), Err(UnknownReason::Forgotten));
    let session = cluster.hosts[2].session;
    cluster.kill(2);
    cluster.run(5 * SECOND);
    assert_eq!(explain(&mut cluster, 0, 2, hasty), Err(UnknownReason::SiteUnreachable));
    cluster.start(2);
    cluster.hosts[2].session = session;
    cluster.run(5 * SECOND);
    assert_eq!(explain(&mut cluster, 2, 2, hasty), Err(UnknownReason::Forgotten));
}

#[test]
fn participants_find_out_without_their_coordinator() {
    for (after, takes_effect) in [(MILLISECOND, None), (DELAY + MILLISECOND, Some(true)), (3 * DELAY, Some(true))] {
        let mut cluster = Cluster::new(3);
        let (x, y) = (key(1, "x"), key(2, "y"));
        cluster.submit(0, Txn::new().put(&x, "1").put(&y, "1").operation());
        cluster.run(after);
        cluster.kill(0);
        cluster.run(20 * SECOND);
        let values = [value(&mut cluster, 1, &x), value(&mut cluster, 2, &y)];
        assert_eq!(values[0], values[1], "all or nothing");
        if let Some(takes_effect) = takes_effect {
            assert_eq!(values[0].is_some(), takes_effect, "killed after {after}");
        }
        for at in 1..3 {
            assert!(cluster.hosts[at].node.as_ref().expect("runs").chapters().txns.is_settled(), "nothing is in doubt");
        }
    }
}

#[test]
fn coordinator_that_comes_back_knows_whom_to_ask() {
    for after in [0, MILLISECOND, DELAY + MILLISECOND, 3 * DELAY] {
        let mut cluster = Cluster::new(3);
        let (x, y) = (key(1, "x"), key(2, "y"));
        let (site, incarnation, session) = cluster.session(0);
        let sequence = cluster.submit(0, Txn::new().put(&x, "1").put(&y, "1").operation());
        cluster.run(after);
        cluster.kill(0);
        cluster.start(0);
        cluster.run(12 * SECOND);
        let operation = OperationId { site, incarnation, session, sequence };
        cluster.request(0, 5, Request::Ask { operation });
        let asked = cluster.responses.iter().rev().find_map(|(_, client, response)| match response {
            Response::Asked { outcome, .. } if *client == ClientId(5) => Some(outcome.clone()),
            _ => None,
        });
        let takes_effect = match asked.expect("answered") {
            Outcome::Committed { .. } => true,
            Outcome::Aborted(_) => false,
            other => panic!("{other:?}"),
        };
        for (at, key) in [(1, &x), (2, &y)] {
            assert_eq!(value(&mut cluster, at, key).is_some(), takes_effect, "restarted after {after}");
        }
    }
}

/// The client is told, and no participant hears it for minutes. Then one of them loses its disk, and cannot say any more that it had prepared.
#[test]
fn decision_is_kept_until_the_participants_have_heard_it() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(2, "y"));
    let write = begin(&mut cluster, 0, Txn::new().put(&x, "1").put(&y, "1"));
    cluster.run(DELAY + MILLISECOND);
    cluster.cut = vec![(0, 1), (0, 2), (1, 2), (2, 1)];
    cluster.run(2 * DELAY);
    assert_eq!(cluster.outcome(0, write), Some(committed(2)));
    cluster.run(200 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(Default::default());
    cluster.cut.clear();
    cluster.start(2);
    cluster.run(60 * SECOND);
    assert_eq!(value(&mut cluster, 1, &x), Some(bytes("1")), "a decision was forgotten that a client knows");
}

#[test]
fn what_one_site_lost_is_refused_until_it_is_written_anew() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(1, "y"));
    commit(&mut cluster, 1, Txn::new().put(&x, "1").put(&y, "1"));
    cluster.run(2 * SECOND);
    cluster.kill(1);
    cluster.hosts[1].rows.clear();
    cluster.hosts[1].put_back(Default::default());
    cluster.start(1);
    cluster.responses.clear();
    cluster.run(3 * SECOND);
    assert_eq!(get(&mut cluster, 0, &x).map_err(|abort| abort.cause), Err(Cause::Lost));
    let written = cluster.submit(0, Txn::new().put(&x, "2").operation());
    assert_eq!(cluster.outcome(0, written), None);
    // What its former life warranted, and what others derived from it, may be relied upon for as long as that lasts.
    cluster.run(LEASE + SECOND);
    let outcome = cluster.outcome(0, written).expect("answered");
    if outcome != committed(1) {
        assert_eq!(cause(&outcome), Some(Cause::DeadlinePassed));
        assert_eq!(commit(&mut cluster, 0, Txn::new().put(&x, "2")), committed(1));
    }
    assert_eq!(value(&mut cluster, 0, &x), Some(bytes("2")));
    assert_eq!(get(&mut cluster, 0, &y).map_err(|abort| abort.cause), Err(Cause::Lost));
    assert_eq!(cluster.done(1, Operation::AcceptLoss), Outcome::LossAccepted);
    assert_eq!(get(&mut cluster, 0, &y).map(|seen| seen.value), Ok(None));
}

/// Site 1 has lost its storage and serves again.
fn lose_storage(cluster: &mut Cluster) {
    cluster.kill(1);
    cluster.hosts[1].rows.clear();
    cluster.hosts[1].put_back(Default::default());
    cluster.start(1);
    cluster.responses.clear();
}

#[test]
fn loss_that_is_accepted_at_once_shows_nothing_until_rights_over_what_was_lost_are_over() {
    let mut cluster = Cluster::new(5);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    warm(&mut cluster, 0, &x);

    // Site 0 has a right over `x`, and does not hear of the loss.
    cluster.cut = vec![(0, 1), (1, 0)];
    lose_storage(&mut cluster);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.done(1, Operation::AcceptLoss), Outcome::LossAccepted);
    let held = begin_and_end(&mut cluster, 0, &x).expect("under a right").value;
    assert_eq!(held, Some(bytes("1")), "somebody may still show it");
    let lost = |got: Result<Seen, Abort>| got.map_err(|abort| abort.cause) == Err(Cause::Lost);
    let span = Span { prefix: "x".into(), after: String::new(), limit: 9 };
    assert!(lost(begin_and_end(&mut cluster, 1, &x)));
    begin_read(&mut cluster, 1, &[], vec![(1, span)], true);
    assert_eq!(end_read(&mut cluster, 1).scans[0].as_ref().map_err(|abort| abort.cause), Err(Cause::Lost));

    // That it was accepted survives a restart, and so does that the rights are not over.
    cluster.kill(1);
    cluster.start(1);
    cluster.run(SECOND);
    assert!(lost(begin_and_end(&mut cluster, 1, &x)));
    cluster.cut.clear();
    cluster.run(LEASE + SECOND);
    assert_eq!(get(&mut cluster, 1, &x).map(|seen| seen.value), Ok(None));

    // A later restart does not ask for the operator's word again.
    cluster.kill(1);
    cluster.start(1);
    cluster.run(SECOND);
    assert_eq!(begin_and_end(&mut cluster, 1, &x).map(|seen| seen.value), Ok(None));
}

fn begin_and_end(cluster: &mut Cluster, at: usize, key: &ObjectKey) -> Result<Seen, Abort> {
    begin_read(cluster, at, std::slice::from_ref(key), Vec::new(), false);
    end_read(cluster, at).gets.remove(0)
}

#[test]
fn question_about_what_is_undecided_does_not_end_it_falsely() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(2, "y"));
    let (site, incarnation, session) = cluster.session(0);
    assert_eq!(incarnation, Incarnation(1));
    let sequence = cluster.submit(0, Txn::new().put(&x, "1").put(&y, "1").operation());
    let operation = OperationId { site, incarnation, session, sequence };
    // The question arrives at the participants after what asks them to prepare.
    cluster.run(MILLISECOND);
    cluster.request(0, 5, Request::Ask { operation });
    let (_, _, response) = cluster.responses.pop().expect("answered at once");
    assert_eq!(response, Response::Asked { operation, outcome: Outcome::Unknown(UnknownReason::Undecided) });
    cluster.run(4 * DELAY);
    assert_eq!(cluster.outcome(0, sequence), Some(committed(2)));
}

#[test]
fn bad_transaction_is_refused_and_nothing_of_it_is_applied() {
    let mut cluster = Cluster::new(3);
    let good = key(0, "good");
    for (bad, expected) in [
        (Txn::new().put(&key(9, "x"), "1"), Cause::UnknownRegion),
        (Txn::new().put(&key(1, "a\nb"), "1"), Cause::InvalidKey),
        (Txn::new().put(&key(1, ""), "1"), Cause::InvalidKey),
        (Txn::new().write(&key(1, "x"), Change::Put(Value::Bytes(vec![0; 300_000].into()))), Cause::TooLarge),
        (Txn::new().put(&good, "1"), Cause::Malformed),
    ] {
        assert_eq!(cause(&commit(&mut cluster, 0, bad.put(&good, "1"))), Some(expected));
    }
    commit(&mut cluster, 0, Txn::new().put(&key(0, "bytes"), "1"));
    let add = Txn::new().write(&key(0, "bytes"), Change::Add(1)).put(&good, "1");
    assert_eq!(cause(&commit(&mut cluster, 0, add)), Some(Cause::NotACounter));
    commit(&mut cluster, 0, Txn::new().write(&key(0, "n"), Change::Put(Value::Counter(i64::MAX))));
    let add = Txn::new().write(&key(0, "n"), Change::Add(1)).put(&good, "1");
    assert_eq!(cause(&commit(&mut cluster, 0, add)), Some(Cause::OutOfRange));
    assert_eq!(value(&mut cluster, 0, &good), None);
    let part = Part { reads: vec![("x".into(), 1)], ..Part::default() };
    let homes = vec![Home { region: 1, incarnation: Incarnation(9), part }];
    let ahead = Operation::Commit(Box::new(Transaction { homes, max_wait: 0, ..Transaction::default() }));
    assert_eq!(cause(&cluster.done(0, ahead)), Some(Cause::Changed));
}

#[test]
fn commits_of_one_batch_see_each_other() {
    let mut cluster = Cluster::new(3);
    let x = key(0, "x");
    let nothing = get(&mut cluster, 0, &x).expect("read");
    let (site, incarnation, session) = cluster.session(0);
    let twice = [1, 2].map(|sequence| {
        let txn = Txn::new().read(&x, &nothing).put(&x, &sequence.to_string());
        Submission { sequence, timeout: SECOND, operation: txn.operation() }
    });
    let batch = Batch { site, incarnation, session, low: 1, operations: twice.to_vec() };
    cluster.request(0, 1, Request::Batch(batch));
    assert_eq!(cluster.outcome(0, 1), Some(committed(1)));
    assert_eq!(cluster.outcome(0, 2).as_ref().and_then(cause), Some(Cause::Changed));
    assert_eq!(value(&mut cluster, 0, &x), Some(bytes("1")));
}

#[test]
fn writes_that_waited_for_the_same_right_exclude_each_other() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    let seen = warm(&mut cluster, 0, &x);
    // Both wait until the holder has given the right up, and are looked at in one tick.
    let rivals = ["2", "3"].map(|value| {
        let txn = Txn::new().read(&x, &seen).put(&x, value);
        cluster.submit(1, txn.operation())
    });
    assert!(rivals.iter().all(|rival| cluster.outcome(1, *rival).is_none()));
    cluster.run(4 * DELAY);
    let outcomes = rivals.map(|sequence| cluster.outcome(1, sequence).expect("answered"));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == committed(1)).count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().any(|outcome| cause(outcome) == Some(Cause::Changed)), "{outcomes:?}");
}

#[test]
fn participant_that_loses_its_disk_leaves_all_of_a_transaction_or_nothing() {
    for after in [MILLISECOND, DELAY + MILLISECOND, 2 * DELAY + MILLISECOND, 3 * DELAY + MILLISECOND] {
        for silent in [vec![], vec![(2, 0)], vec![(1, 0)], vec![(0, 1), (0, 2)]] {
            let mut cluster = Cluster::new(3);
            let (here, x, y) = (key(0, "x"), key(1, "x"), key(2, "y"));
            cluster.run(2 * SECOND);
            let txn = Txn::new().put(&here, "1").put(&x, "1").put(&y, "1");
            let sequence = cluster.submit(0, txn.operation());
            cluster.cut = silent;
            cluster.run(after);
            cluster.kill(2);
            cluster.hosts[2].put_back(Default::default());
            cluster.run(SECOND);
            cluster.cut.clear();
            cluster.start(2);
            cluster.run(40 * SECOND);
            let left = [value(&mut cluster, 0, &here), value(&mut cluster, 1, &x)];
            assert_eq!(left[0], left[1], "lost after {after} us");
            let told = cluster.outcome(0, sequence);
            if let Some(outcome) = &told {
                let claims = matches!(outcome, Outcome::Committed { .. });
                let denies = matches!(outcome, Outcome::Aborted(_));
                assert!(
                    claims && left[0].is_some() || denies && left[0].is_none() || !claims && !denies,
                    "{outcome:?}"
                );
            }
            for at in [0, 1] {
                assert!(
                    cluster.hosts[at].node.as_ref().expect("runs").chapters().txns.is_settled(),
                    "lost after {after} us"
                );
            }
        }
    }
}

#[test]
fn commit_whose_only_home_is_lost_is_unknown() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    cluster.run(2 * SECOND);
    let sequence = cluster.submit(0, Txn::new().put(&x, "1").operation());
    cluster.cut = vec![(1, 0)];
    cluster.run(DELAY + MILLISECOND);
    cluster.kill(1);
    cluster.hosts[1].put_back(Default::default());
    cluster.cut.clear();
    cluster.start(1);
    cluster.run(30 * SECOND);
    assert_eq!(cluster.outcome(0, sequence), Some(Outcome::Unknown(UnknownReason::HomeLost)));
}

/// What a tick reads for transactions is not in the way of what it reads for holds.
#[test]
fn hold_ends_while_a_scan_waits_for_a_right_to_end() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, Operation::create("gpus", 90));
    let x = key(1, "x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    cluster.run(20 * SECOND);
    warm(&mut cluster, 0, &x);
    let hold = Hold::For(SECOND);
    let acquire = Operation::Acquire { quota: "gpus".into(), amount: 30, hold, waits: false };
    assert!(matches!(cluster.done(1, acquire), Outcome::Granted { .. }));
    assert_eq!(cluster.tokens(1, "gpus"), 0);
    let (span, found) = scan(&mut cluster, 1, 1, "list/");
    cluster.cut = vec![(0, 1), (1, 0)];
    cluster.submit(1, Txn::new().scanned(1, &span, &found).put(&x, "2").operation());
    cluster.run(DELAY);
    // Everything stands still for a while, so that both are due in one tick.
    cluster.stand_still(2 * SECOND);
    cluster.run(SECOND);
    assert_eq!(cluster.hosts[1].node.as_ref().expect("runs").metrics().expired, 1);
}

/// Somebody asks for what comes after all names of a prefix: nothing, and nobody is upset.
#[test]
fn span_that_begins_behind_its_end_is_empty() {
    let mut cluster = Cluster::new(3);
    let x = key(1, "a/x");
    commit(&mut cluster, 1, Txn::new().put(&x, "1"));
    let span = Span { prefix: "a/".into(), after: "b".into(), limit: 10 };
    for at in [1, 0] {
        begin_read(&mut cluster, at, std::slice::from_ref(&x), vec![(1, span.clone())], true);
        let reading = end_read(&mut cluster, at);
        assert_eq!((reading.gets[0].is_ok(), &reading.scans[0]), (true, &Ok(Vec::new())));
    }
    let y = key(0, "y");
    commit(&mut cluster, 0, Txn::new().scanned(1, &span, &[]).put(&y, "1"));
    assert_eq!(value(&mut cluster, 1, &y), Some(Value::Bytes("1".into())));
}

/// What a site reads from storage to handle this.
fn needed(cluster: &Cluster, at: usize, input: &Input<Node>) -> KeySet {
    cluster.hosts[at].node.as_ref().expect("runs").working_set(cluster.time(at), input)
}

fn to_read(gets: &[ObjectKey], scans: Vec<(u16, Span)>) -> Request {
    let read = Read { token: 7, gets: gets.to_vec(), scans, timeout: SECOND, ..Read::default() };
    Request::Read(Box::new(read))
}

#[test]
fn what_is_not_sound_is_refused_without_a_look_at_storage() {
    let mut cluster = Cluster::new(2);
    let span = |prefix: &str, limit: u32| Span { prefix: prefix.into(), after: String::new(), limit };
    let spans = [span("", u32::MAX), span("", 1025), span("", 0), span("\n", 1)];
    let client = ClientId(70);
    for span in spans {
        let request = || to_read(&[key(0, "")], vec![(0, span.clone())]);
        let set = needed(&cluster, 0, &Input::Request { client, request: request() });
        assert!(set.is_empty(), "{set:?}");
        cluster.request(0, 70, request());
        let reading = end_read(&mut cluster, 0);
        assert_eq!(reading.scans, [Err(Abort::of(Cause::Malformed))]);

        // The same between sites.
        let fetch = Fetch {
            token: 9,
            start: Start::default(),
            gets: vec![(String::new(), 1)],
            scans: vec![span.clone()],
            rights: true,
            patience: 0,
            claim: None,
        };
        let part = Part { scans: vec![(span.clone(), Vec::new())], ..Part::default() };
        let id =
            OperationId { site: Cluster::site(1), incarnation: Incarnation(1), session: SessionId(1), sequence: 1 };
        let prepare = prepare(id, i64::MAX, &[(Cluster::site(0), Incarnation(1))], part.clone());
        let messages = [Message::Fetch(Box::new(fetch)), Message::Prepare(Box::new(prepare))];
        for message in messages {
            let body = Body::Txn(Box::new(message));
            let message = PeerMessage { incarnation: Incarnation(1), position: 0, epoch: 0, members: 0, body };
            let input = Input::Message { from: Cluster::site(1), message };
            let set = needed(&cluster, 0, &input);
            assert!(set.is_empty(), "{set:?}");
            cluster.feed(0, input);
        }

        let (site, incarnation, session) = cluster.session(0);
        let homes = vec![Home { region: 0, incarnation: Incarnation(1), part }];
        let operation = Operation::Commit(Box::new(Transaction { homes, max_wait: 0, ..Transaction::default() }));
        let operations = vec![Submission { sequence: 1, timeout: SECOND, operation: operation.clone() }];
        let request = Request::Batch(Batch { site, incarnation, session, low: 1, operations });
        let set = needed(&cluster, 0, &Input::Request { client, request });
        assert!(set.is_empty(), "{set:?}");
        assert_eq!(cause(&cluster.done(0, operation)), Some(Cause::Malformed));
    }
}

#[test]
fn to_judge_a_span_no_more_of_it_is_read_than_what_it_held() {
    let mut cluster = Cluster::new(1);
    let row = |at: usize| key(0, &format!("p/{at:03}"));
    let puts = (0..200).fold(Txn::new(), |txn, at| txn.put(&row(at), "x"));
    assert_eq!(commit(&mut cluster, 0, puts), committed(1));
    let span = Span { prefix: "p/".into(), after: "p/197".into(), limit: 1000 };
    begin_read(&mut cluster, 0, &[], vec![(0, span.clone())], false);
    let found = end_read(&mut cluster, 0).scans.remove(0).expect("scanned");
    assert_eq!(found.len(), 2);
    let transaction = Txn::new().scanned(0, &span, &found).put(&row(900), "y");
    let (site, incarnation, session) = cluster.session(0);
    let operations = vec![Submission { sequence: 9, timeout: SECOND, operation: transaction.clone().operation() }];
    let request = Request::Batch(Batch { site, incarnation, session, low: 1, operations });
    let set = needed(&cluster, 0, &Input::Request { client: ClientId(70), request });
    assert_eq!(set.head_ranges.iter().map(|(range, _)| range.limit).collect::<Vec<_>>(), [3]);

    // More than it held, and less: both are seen.
    let fewer = Txn::new().scanned(0, &span, &found[..1]).put(&row(900), "y");
    assert_eq!(cause(&commit(&mut cluster, 0, fewer)), Some(Cause::Changed));
    assert_eq!(commit(&mut cluster, 0, transaction.clone()), committed(1));
    assert_eq!(cause(&commit(&mut cluster, 0, transaction)), Some(Cause::Changed));
    let delete = Txn::new().write(&row(198), Change::Delete).write(&row(900), Change::Delete);
    assert_eq!(commit(&mut cluster, 0, delete), committed(1));
    let late = Txn::new().scanned(0, &span, &found).put(&row(1), "y");
    assert_eq!(cause(&commit(&mut cluster, 0, late)), Some(Cause::Changed));
}

#[test]
fn to_judge_a_transaction_no_values_are_loaded_however_large_they_are() {
    let mut cluster = Cluster::new(1);
    let large = |at: usize| key(0, &format!("large/{at:03}"));
    for at in 0..200 {
        let value = Change::Put(Value::Bytes(vec![1; VALUE_BYTES].into()));
        assert_eq!(commit(&mut cluster, 0, Txn::new().write(&large(at), value)), committed(1));
    }
    let seen: Vec<Seen> = (0..200).map(|at| get(&mut cluster, 0, &large(at)).expect("read")).collect();
    let span = Span { prefix: "large/".into(), after: "large/099".into(), limit: 1024 };
    let rows: Vec<(String, Seen)> = (100..200).map(|at| (large(at).name, seen[at].clone())).collect();
    let reads = (0..100).fold(Txn::new(), |txn, at| txn.read(&large(at), &seen[at]));
    let transaction = reads.scanned(0, &span, &rows).put(&key(0, "written"), "1").write(&key(0, "n"), Change::Add(1));

    let (site, incarnation, session) = cluster.session(0);
    let operations = vec![Submission { sequence: 900, timeout: SECOND, operation: transaction.clone().operation() }];
    let request = Request::Batch(Batch { site, incarnation, session, low: 1, operations });
    let set = needed(&cluster, 0, &Input::Request { client: ClientId(70), request });
    let view = View::prepare(set, &Overlay::default(), &cluster.hosts[0].rows).expect("in memory");
    assert!(view.size() < 200 * 128, "{} bytes are loaded to compare 200 versions", view.size());

    // It is judged by that all the same.
    assert_eq!(commit(&mut cluster, 0, transaction.clone()), committed(1));
    commit(&mut cluster, 0, Txn::new().put(&large(150), "2"));
    assert_eq!(cause(&commit(&mut cluster, 0, transaction)), Some(Cause::Changed));
}

#[test]
fn one_request_reads_a_bounded_part_of_what_is_there() {
    const MIB: usize = 1 << 20;
    let mut cluster = Cluster::new(2);
    let large = |at: usize| key(0, &format!("large/{at:03}"));
    for at in 0..80 {
        let value = Change::Put(Value::Bytes(vec![1; VALUE_BYTES].into()));
        assert_eq!(commit(&mut cluster, 0, Txn::new().write(&large(at), value)), committed(1));
    }
    let bytes_of = |cluster: &Cluster, request: Request| {
        let set = needed(cluster, 0, &Input::Request { client: ClientId(70), request });
        let view = View::prepare(set, &Overlay::default(), &cluster.hosts[0].rows).expect("in memory");
        view.size()
    };
    let span = |limit| (0, Span { prefix: "large/".into(), after: String::new(), limit });
    let all: Vec<ObjectKey> = (0..80).map(large).chain([key(0, "none")]).collect();
    assert!(bytes_of(&cluster, to_read(&all, Vec::new())) < 9 * MIB);
    assert!(bytes_of(&cluster, to_read(&[], vec![span(1024)])) < 26 * MIB);
    let too_much = Abort::of(Cause::TooMuch);
    for at in 0..2 {
        begin_read(&mut cluster, at, &all, vec![span(3), span(1)], false);
        let reading = end_read(&mut cluster, at);
        let got = reading.gets.iter().take_while(|result| result.is_ok()).count();
        assert!((16..40).contains(&got), "{got}");
        // What was not looked at is not said to be absent.
        assert!(reading.gets[got..].iter().all(|result| result.as_ref() == Err(&too_much)));
        assert!(reading.scans.iter().all(|result| result.as_ref() == Err(&too_much)));

        // Who asks again for what was left out gets on.
        let mut left = all.clone();
        for _ in 0..5 {
            begin_read(&mut cluster, at, &left, Vec::new(), false);
            let gets = end_read(&mut cluster, at).gets;
            left = left.into_iter().zip(gets).filter(|(_, got)| got.is_err()).map(|(key, _)| key).collect();
        }
        assert_eq!(left, []);

        // The same thing many times, and spans that lie in each other.
        begin_read(&mut cluster, at, &vec![large(0); 4096], Vec::new(), false);
        assert!(end_read(&mut cluster, at).gets.iter().filter(|got| got.is_ok()).count() < 40);
        begin_read(&mut cluster, at, &[], vec![span(1), span(16), span(1024), span(16), span(1)], false);
        let scans = end_read(&mut cluster, at).scans;
        let rows: Vec<usize> = scans.iter().map(|rows| rows.as_ref().map_or(0, Vec::len)).collect();
        assert_eq!(rows, [1, 16, 0, 0, 0]);
    }
}

/// It has the vote of one that has lost its disk since, and not yet that of one that it cannot reach: it may hear of that yet, and commit. So
/// nobody may conclude from its answer that all who are left will abort.
#[test]
fn coordinator_that_has_the_vote_of_a_lost_participant_does_not_say_that_nobody_can_know_of_all() {
    let mut cluster = Cluster::new(5);
    let write = Txn::new().put(&key(1, "a"), "1").put(&key(2, "b"), "1").put(&key(3, "c"), "1");
    // The third's vote reaches nobody.
    cluster.cut = [(3, 0), (3, 2)].into();
    let write = begin(&mut cluster, 0, write);
    cluster.run(2 * DELAY + MILLISECOND);
    cluster.cut.extend([(0, 3), (2, 3)]);
    cluster.log = Some(Vec::new());
    lose(&mut cluster, 1);
    cluster.run(30 * SECOND);
    assert_ne!(cluster.outcome(0, write), Some(committed(2)));
    let is_told = |(to, from, message): &(usize, SiteId, PeerMessage)| match &message.body {
        Body::Txn(message) => match &**message {
            Message::Inquired { known, .. } => (*to == 2 && *from == Cluster::site(0)).then_some(*known),
            _ => None,
        },
        _ => None,
    };
    let told: Vec<Known> = cluster.log.iter().flatten().filter_map(is_told).collect();
    assert!(!told.is_empty() && told.iter().all(|known| *known == Known::Nothing), "{told:?}");

    // Once it is heard, all of them end alike.
    cluster.cut.clear();
    cluster.run(30 * SECOND);
    assert_eq!(value(&mut cluster, 2, &key(2, "b")), value(&mut cluster, 3, &key(3, "c")));
}

/// A read waits for a prepared write, and when it gives up, its rows take up nearly all the room that there is for reads. A hold ends in
/// the same tick, which looks at two ranges: there is room for the first only.
#[test]
fn hold_that_ends_with_a_read_that_takes_up_all_room_harms_nobody() {
    let mut cluster = Cluster::new(2);
    cluster.done(0, Operation::create("gpus", 1));
    let many: Vec<ObjectKey> = (0..32).map(|at| key(0, &format!("many/{at}"))).collect();
    for key in &many[1..] {
        let value = Change::Put(Value::Bytes(vec![b'x'; VALUE_BYTES].into()));
        assert_eq!(commit(&mut cluster, 0, Txn::new().write(key, value)), committed(1));
    }
    let taken = |cluster: &Cluster, key: &ObjectKey| {
        let mut rows = cluster.hosts[0].rows.iter();
        let row = rows.find(|(row, _)| row[0] == OBJECT && row.ends_with(key.name.as_bytes()));
        row.map_or(0, |(_, value)| value.len())
    };
    let put = |cluster: &mut Cluster, bytes: usize| {
        let value = Change::Put(Value::Bytes(vec![b'x'; bytes].into()));
        assert_eq!(commit(cluster, 0, Txn::new().write(&many[0], value)), committed(1));
        taken(cluster, &many[0]) - bytes
    };
    let others: usize = many[1..].iter().map(|key| taken(&cluster, key)).sum();
    let frame = put(&mut cluster, 1000);

    // However much room is left.
    for spare in (1..130).step_by(9) {
        put(&mut cluster, READ_BYTES - others - frame - spare);
        let hold = Operation::Acquire { quota: "gpus".into(), amount: 1, hold: Hold::For(10 * SECOND), waits: false };
        assert!(matches!(cluster.done(0, hold), Outcome::Granted { .. }));
        let x = key(0, "x");
        let id = OperationId {
            site: Cluster::site(1),
            incarnation: Incarnation(1),
            session: SessionId(9),
            sequence: spare as u64,
        };
        let participants = [0, 1].map(|at| (Cluster::site(at), Incarnation(1)));
        let part = Part { writes: vec![(x.name.clone(), Change::Put(bytes("1")))], ..Part::default() };
        let asked = prepare(id, cluster.time(0).wall + 5 * SECOND as i64, &participants, part);
        let gets = many.iter().chain([&x]).map(|key| (key.name.clone(), 1)).collect();
        let fetch = Fetch {
            token: 9,
            start: Start::default(),
            gets,
            scans: Vec::new(),
            rights: false,
            patience: 11 * SECOND,
            claim: None,
        };
        for message in [Message::Prepare(Box::new(asked)), Message::Fetch(Box::new(fetch))] {
            let body = Body::Txn(Box::new(message));
            let message = PeerMessage { incarnation: Incarnation(1), position: 0, epoch: 0, members: 0, body };
            cluster.feed(0, Input::Message { from: Cluster::site(1), message });
        }

        // Both are due when the site is looked after next.
        cluster.stand_still(30 * SECOND);
        cluster.feed(0, Input::Tick);
        cluster.run(90 * SECOND);
        assert_eq!(cluster.free(0, "gpus") + cluster.free(1, "gpus"), 1, "the hold has ended");
    }
}

/// Its clock may be slow by its own error, of which the coordinator knows nothing: what the transaction rests on may be over already.
#[test]
fn part_whose_deadline_may_be_past_by_the_clock_of_its_home_is_refused() {
    let mut cluster = Cluster::new(2);
    cluster.run(2 * SECOND);
    let epsilon = Config::new(Cluster::site(0), []).epsilon as i64;
    for (sequence, left, is_taken) in [(1, epsilon, false), (2, epsilon + 1, true)] {
        let id = OperationId { sequence, ..asked_by(1) };
        let part = Part { writes: vec![("x".into(), Change::Put(bytes("written")))], ..Part::default() };
        let asked = prepare(id, cluster.time(0).wall + left, &[(Cluster::site(0), Incarnation(1))], part);
        tell(&mut cluster, 1, 0, Message::Prepare(Box::new(asked)));
        assert_eq!(value(&mut cluster, 0, &key(0, "x")).is_some(), is_taken, "prepared when it may be too late");
    }
}

/// What room is left is for what is under way. It is refused at once, so that nothing is locked elsewhere for it, with a row that is short.
#[test]
fn part_of_another_site_is_not_taken_where_the_disk_is_full() {
    let mut cluster = Cluster::new(2);
    cluster.run(2 * SECOND);
    let deadline = cluster.time(0).wall + 5 * SECOND as i64;
    for (sequence, has_room) in [(1, false), (2, true)] {
        cluster.hosts[0].node.as_mut().expect("runs").set_room(has_room);
        let part = Part { writes: vec![("x".into(), Change::Put(bytes("written")))], ..Part::default() };
        let id = OperationId { sequence, ..asked_by(1) };
        let asked = prepare(id, deadline, &[(Cluster::site(0), Incarnation(1))], part);
        let batches = cluster.hosts[0].rows.len();
        tell(&mut cluster, 1, 0, Message::Prepare(Box::new(asked)));
        let written = cluster.hosts[0].rows.values().any(|row| row.windows(7).any(|bytes| bytes == b"written"));
        assert_eq!(written, has_room, "written to a disk that is full");
        assert!(cluster.hosts[0].rows.len() > batches, "that it is refused is durable");
        assert_eq!(value(&mut cluster, 0, &key(0, "x")).is_some(), has_room);
    }
}

/// This site is told that the other one has prepared, and then prepares itself: all have. But nobody else knows that, so until the coordinator has
/// decided nothing of it is shown, and the coordinator may abort it.
#[test]
fn participant_that_alone_knows_that_all_have_prepared_shows_nothing() {
    let mut cluster = Cluster::new(3);
    let participants = [0, 1].map(|at| (Cluster::site(at), Incarnation(1)));
    let writes = vec![("x".to_owned(), Change::Put(bytes("new")))];
    let deadline = cluster.time(0).wall + 5 * SECOND as i64;
    let mut asked = prepare(asked_by(2), deadline, &participants, Part { writes, ..Part::default() });
    asked.prepared.insert(1);
    tell(&mut cluster, 2, 0, Message::Prepare(Box::new(asked)));

    for is_decided in [false, true] {
        if is_decided {
            tell(&mut cluster, 2, 0, Message::Decide { id: asked_by(2), commit: false });
        }
        begin_read(&mut cluster, 0, &[key(0, "x")], Vec::new(), true);
        let read = end_read(&mut cluster, 0);
        assert_eq!(read.gets[0].as_ref().expect("it is read").value, None, "it is shown before it is decided");
    }
}
