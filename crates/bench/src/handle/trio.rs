//! Three sites that are set up: they hear each other at once, and their disks need no time.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::api::{Outcome, Readiness, Response, SESSION_WINDOW};
use slackline_core::clock::{MILLISECOND, Now, SECOND};
use slackline_core::id::SiteId;
use slackline_core::machine::{ClientId, Effect, Input, Machine, View};
use slackline_core::node::{Config, Node};
use slackline_core::peer::PeerMessage;
use slackline_session::command::Command;
use slackline_session::time::Time;

use crate::client::SiteClient;
use crate::driven::{Driven, clock};

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
    /// The others. Nobody looks at what they persist.
    pub(super) others: Vec<Node>,
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
        let (now, nothing) = (SECOND, BTreeMap::new());
        let seed = |position: usize| seed.wrapping_mul(SITES as u64).wrapping_add(position as u64);
        let open = |position| {
            let node = Node::open(config(position), seed(position), 0, &nothing, clock(now));
            node.expect("new storage and a sound configuration")
        };
        let first = Driven::open(config(0), seed(0), now);
        let others = (1..SITES).map(open).collect();
        let mut trio = Self { first, others, now, mail: Vec::new(), responses: Vec::new() };

        let serves = |node: &Node| node.readiness() == Readiness::Ready;
        while !serves(&trio.first.node) || !trio.others.iter().all(serves) {
            assert!(trio.now < 60 * SECOND, "the sites must become ready");
            trio.pass(10 * MILLISECOND);
        }

        // They serve before they know each other well: every site is heard of, and clocks are compared.
        (0..300).for_each(|_| trio.pass(10 * MILLISECOND));
        trio
    }

    /// Creates the quotas, by rounds among the three sites.
    pub(super) fn create_all(&mut self, names: &[String]) {
        let mut client = SiteClient::new(self.first.node.config().me, PATIENCE);
        self.send(&mut client);

        // Half a session's window at a time, so that one session is enough.
        for some in names.chunks(SESSION_WINDOW as usize / 2) {
            for name in some {
                let create = Command::Create { quota: name.as_str().into(), limit: LIMIT };
                client.submit(create, Time(self.now)).expect("fewer creations than the client takes in");
            }

            let patience = self.now + PATIENCE.as_micros() as u64;
            self.send(&mut client);
            while !client.is_idle() {
                assert!(self.now < patience, "every quota must be created");
                self.pass(10 * MILLISECOND);
                self.send(&mut client);
            }
        }
    }

    /// Lets a client send what it has to send, and hear what was responded, until both are still.
    fn send(&mut self, client: &mut SiteClient) {
        let now = Time(self.now);
        loop {
            for response in std::mem::take(&mut self.responses) {
                let ended = client.receive(response, now).expect("the site does what it is asked");
                let is_created = |outcome: &Outcome| matches!(outcome, Outcome::Created { .. });
                assert!(ended.iter().all(|call| is_created(&call.outcome)), "every quota must be created: {ended:?}");
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
                None => deliver(&mut self.others, clock(self.now), &mut self.mail),
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
pub(super) fn deliver(nodes: &mut [Node], now: Now, mail: &mut Mail) {
    let mut effects = Vec::new();
    for node in nodes.iter_mut().filter(|node| node.deadline().is_some_and(|deadline| deadline <= now.mono)) {
        node.handle(now, Input::Tick, &View::empty(), &mut effects);
        post(node.config().me, &mut effects, mail);
    }

    let mut left = Vec::new();
    while !mail.is_empty() {
        for (from, to, message) in std::mem::take(mail) {
            match nodes.iter_mut().find(|node| node.config().me == to) {
                Some(node) => {
                    node.handle(now, Input::Message { from, message }, &View::empty(), &mut effects);
                    post(to, &mut effects, mail);
                }
                None => left.push((from, to, message)),
            }
        }
    }
    *mail = left;
}

/// Takes the messages out of effects; what is persisted and answered is of no interest here.
fn post(from: SiteId, effects: &mut Vec<Effect<Node>>, mail: &mut Mail) {
    for effect in effects.drain(..) {
        if let Effect::Send { to, message } = effect {
            mail.push((from, to, message));
        }
    }
}
