//! Three sites that are set up: they hear each other at once, and their disks need no time.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::api::{Outcome, Readiness, Response, SESSION_WINDOW};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::machine::{ClientId, Effect, Input};
use slackline_core::node::{Config, Node};
use slackline_core::object::treaty::{Metric, Statement, Treaty, Tree, equally, treaty_key};
use slackline_core::object::{Change, Home, ObjectKey, Part, Transaction, Version};
use slackline_core::peer::PeerMessage;
use slackline_session::command::Command;
use slackline_session::time::Time;
use slackline_session::txn::treaties::making;

use crate::client::SiteClient;
use crate::driven::Driven;
use crate::levels;

/// Member positions.
const SITES: usize = 3;
/// Tokens of each quota: more than all acquires of a run together.
const LIMIT: i64 = 1 << 40;
/// The time that the creation of a quota may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages on their way: from, to, and what.
pub(super) type Mail = Vec<(SiteId, SiteId, PeerMessage)>;

/// The configuration of a site.
pub(super) fn config(position: usize) -> Config {
    let members: Vec<SiteId> = (0..SITES as u16).map(|region| SiteId::new(region, 0)).collect();
    Config::new(members[position], members)
}

/// See the module.
pub(super) struct Trio {
    /// The site that is to be measured.
    pub(super) first: Driven,
    /// The others.
    pub(super) others: Vec<Driven>,
    /// The time of all clocks, in microseconds.
    pub(super) now: u64,
    /// Messages on their way.
    mail: Mail,
    /// Responses of the first site that nobody has taken.
    responses: Vec<Response>,
}

impl Trio {
    /// Sites that serve, know of each other and have compared their clocks.
    pub(super) fn ready(seed: u64) -> Self {
        let now = SECOND;
        let seed = |position: usize| seed.wrapping_mul(SITES as u64).wrapping_add(position as u64);
        let open = |position| Driven::open(config(position), seed(position), now);
        let (first, others) = (open(0), (1..SITES).map(open).collect());
        let mut trio = Self { first, others, now, mail: Vec::new(), responses: Vec::new() };

        let serves = |node: &Node| node.readiness() == Readiness::Ready;
        while !serves(&trio.first.node) || !trio.others.iter().all(|other| serves(&other.node)) {
            assert!(trio.now < 60 * SECOND, "the sites must become ready");
            trio.pass(10 * MILLISECOND);
        }

        // They serve before they know each other well: every site is heard of, and clocks are compared.
        (0..300).for_each(|_| trio.pass(10 * MILLISECOND));
        trio
    }

    /// Creates the quotas, and those above them, by rounds among the three sites.
    pub(super) fn create_all(&mut self, names: &[String]) {
        let mut client = SiteClient::new(self.first.node.config().me, PATIENCE);

        // Half a session's window at a time, so that one session is enough.
        for some in names.chunks(SESSION_WINDOW as usize / 2) {
            // Level by level: one above must be there.
            let mut creations: Vec<_> = some.iter().map(|name| levels::creations(name, LIMIT).into_iter()).collect();
            loop {
                let level: Vec<_> = creations.iter_mut().filter_map(Iterator::next).collect();
                if level.is_empty() {
                    break;
                }
                for create in level {
                    client.submit(create, Time(self.now)).expect("fewer creations than the client takes in");
                }
                self.settle(&mut client, |outcome| matches!(outcome, Outcome::Created { .. }));
            }
        }
    }

    /// Lets time pass until everything that a client was asked for has ended as it should.
    fn settle(&mut self, client: &mut SiteClient, is_done: fn(&Outcome) -> bool) {
        let patience = self.now + PATIENCE.as_micros() as u64;
        self.send(client, is_done);
        while !client.is_idle() {
            assert!(self.now < patience, "everything must be done in time");
            self.pass(10 * MILLISECOND);
            self.send(client, is_done);
        }
    }

    /// Has counters of the three sites hold this much each, and makes a treaty over each three that says that their sum is not negative.
    pub(super) fn make_treaties(&mut self, names: &[String], count: i64) {
        let mut client = SiteClient::new(self.first.node.config().me, PATIENCE);
        let homes: BTreeMap<u16, Incarnation> = (0..SITES as u16).map(|home| (home, Incarnation(1))).collect();
        for some in names.chunks(SESSION_WINDOW as usize / 4) {
            for name in some {
                let counter = |home| ObjectKey::new(home, name.clone());
                let sum = Metric::Sum((0..SITES as u16).map(|home| Metric::Counter(counter(home))).collect());
                let treaty = Treaty {
                    nonce: 1,
                    is_valid: true,
                    retracts: 0,
                    statement: Statement::AtLeast(sum, 0),
                    tree: Tree::Flat,
                };
                // At home at another site than the one that is measured.
                let key = treaty_key(1, name);
                let notes = treaty.notes(&key, &homes, &|_| count, &equally).expect("a statement that is true");
                let nothing = Version { incarnation: Incarnation(1), number: 0 };
                self.commit(&mut client, making(&key, &treaty, notes, nothing, &homes));
            }
            self.settle(&mut client, |outcome| matches!(outcome, Outcome::Committed { .. }));
        }
    }

    /// Adds an amount to counters of all three sites.
    pub(super) fn add_to_all(&mut self, names: &[String], amount: i64) {
        let mut client = SiteClient::new(self.first.node.config().me, PATIENCE);
        for some in names.chunks(SESSION_WINDOW as usize / 4) {
            for name in some {
                let home = |region| {
                    let part = Part { writes: vec![(name.clone(), Change::Add(amount))], ..Part::default() };
                    Home { region, incarnation: Incarnation(1), part }
                };
                let homes = (0..SITES as u16).map(home).collect();
                self.commit(&mut client, Transaction { homes, max_wait: SECOND, ..Transaction::default() });
            }
            self.settle(&mut client, |outcome| matches!(outcome, Outcome::Committed { .. }));
        }
    }

    fn commit(&mut self, client: &mut SiteClient, transaction: Transaction) {
        client.submit(Command::commit(transaction), Time(self.now)).expect("fewer than the client takes in");
    }

    /// Lets a client send what it has to send, and hear what was responded, until both are still.
    fn send(&mut self, client: &mut SiteClient, is_done: fn(&Outcome) -> bool) {
        let now = Time(self.now);
        loop {
            for response in std::mem::take(&mut self.responses) {
                let ended = client.receive(response, now).expect("the site does what it is asked");
                assert!(ended.iter().all(|call| is_done(&call.outcome)), "everything must be done: {ended:?}");
            }
            let Some(request) = client.next_request(now) else { return };
            self.feed(Input::Request { client: ClientId(1), request });
        }
    }

    /// Lets time pass, and delivers what comes of it.
    fn pass(&mut self, span: u64) {
        self.now += span;
        let me = self.first.node.config().me;
        loop {
            // Mail first: a tick may find that what it waits for has come.
            let is_due = self.first.is_due(self.now);
            let to_first = self.mail.iter().position(|(_, to, _)| *to == me);
            match to_first {
                Some(at) => {
                    let (from, _, message) = self.mail.remove(at);
                    self.feed(Input::Message { from, message });
                }
                None if is_due => self.feed(Input::Tick),
                None => deliver(&mut self.others, self.now, &mut self.mail),
            }
            if self.mail.is_empty() && !is_due {
                break;
            }
        }
    }

    /// Hands an input to the first site, and syncs what comes of it.
    fn feed(&mut self, input: Input<Node>) {
        let Self { first, mail, responses, .. } = self;
        let me = first.node.config().me;
        let mut release = |effect| match effect {
            Effect::Send { to, message } => mail.push((me, to, message)),
            Effect::Respond { response, .. } => responses.push(response),
            Effect::Persist(_) => {}
        };
        first.input(self.now, input, &mut release);
        first.sync(release);
    }
}

/// Wakes sites that want it and delivers mail, until only mail for others is left.
pub(super) fn deliver(sites: &mut [Driven], mono: u64, mail: &mut Mail) {
    for site in sites.iter_mut().filter(|site| site.is_due(mono)) {
        post(site, mono, Input::Tick, mail);
    }

    let mut left = Vec::new();
    while !mail.is_empty() {
        for (from, to, message) in std::mem::take(mail) {
            match sites.iter_mut().find(|site| site.node.config().me == to) {
                Some(site) => post(site, mono, Input::Message { from, message }, mail),
                None => left.push((from, to, message)),
            }
        }
    }
    *mail = left;
}

/// Hands an input to a site, and takes the messages that come of it; what is answered is of no interest here.
fn post(site: &mut Driven, mono: u64, input: Input<Node>, mail: &mut Mail) {
    let from = site.node.config().me;
    let mut release = |effect| {
        if let Effect::Send { to, message } = effect {
            mail.push((from, to, message));
        }
    };
    site.input(mono, input, &mut release);
    site.sync(release);
}
