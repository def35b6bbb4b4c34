//! A few nodes on one thread: a network that delivers in order after a fixed delay, and disks that sync at once. Enough to
//! write scenarios; the simulator does the rest.

use std::collections::BTreeMap;

use slackline_core::api::{Answer, Batch, Operation, Outcome, Readiness, Request, Response, Shown, Submission};
use slackline_core::avantan::Share;
use slackline_core::clock::{MILLISECOND, Now};
use slackline_core::config::NAMES_KEPT;
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::machine::{ClientId, Effect, Input, Machine, Overlay, View};
use slackline_core::node::{Config, Node};
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;

use crate::words;

/// One way between any two sites.
pub(crate) const DELAY: u64 = 40 * MILLISECOND;

pub(crate) struct Host {
    pub(crate) node: Option<Node>,
    pub(crate) rows: BTreeMap<Vec<u8>, Vec<u8>>,
    batches: u64,
    pub(crate) wall: i64,
    /// How long its monotonic clock has stood still while others' went on, in microseconds.
    pub(crate) stood: u64,
    pub(crate) session: Option<(SiteId, Incarnation, SessionId)>,
    sequence: u64,
    /// Whether a person says, at each start, that the storage of every earlier incarnation is lost.
    pub(crate) new_storage: bool,
    /// How many sites its configuration names, from the first on.
    named: usize,
}

pub(crate) struct Cluster {
    pub(crate) hosts: Vec<Host>,
    pub(crate) now: u64,
    network: BTreeMap<(u64, u64), (usize, SiteId, PeerMessage)>,
    sent: u64,
    pub(crate) responses: Vec<(usize, ClientId, Response)>,
    pub(crate) cut: Vec<(usize, usize)>,
    /// Every message that was sent, if they are to be had later.
    pub(crate) log: Option<Vec<(usize, SiteId, PeerMessage)>>,
    /// What the sites took in and handed out, if that is to be had later.
    pub(crate) record: Option<Vec<words::Handled>>,
    /// How long a site waits for the rows that an input needs, in microseconds. No other input is handled meanwhile.
    pub(crate) storage_takes: u64,
    /// What is done to messages: some are lost, repeated, and overtaken by others. None of that without.
    pub(crate) unruly: Option<Rng>,
    names_kept: u64,
    /// The number of the first session on new storage.
    pub(crate) first_session: u64,
    seed: u64,
}

impl Host {
    /// A copy of the disk, and how many batches it holds.
    pub(crate) fn copy(&self) -> (BTreeMap<Vec<u8>, Vec<u8>>, u64) {
        (self.rows.clone(), self.batches)
    }

    /// The disk is that copy.
    pub(crate) fn put_back(&mut self, copy: (BTreeMap<Vec<u8>, Vec<u8>>, u64)) {
        (self.rows, self.batches) = copy;
    }
}

impl Cluster {
    /// A cluster whose sites have joined.
    pub(crate) fn new(sites: usize) -> Self {
        let mut cluster = Self::unjoined(sites);
        cluster.run(500 * MILLISECOND);
        cluster
    }

    /// A cluster whose sites have joined, and keep names of deleted quotas for so long.
    pub(crate) fn keeping(sites: usize, names_kept: u64) -> Self {
        let mut cluster = Self::started(sites, names_kept);
        cluster.run(500 * MILLISECOND);
        cluster
    }

    /// A cluster whose sites were just started for the first time.
    pub(crate) fn unjoined(sites: usize) -> Self {
        Self::started(sites, NAMES_KEPT)
    }

    fn started(sites: usize, names_kept: u64) -> Self {
        let host = |_| Host {
            node: None,
            rows: BTreeMap::new(),
            batches: 0,
            wall: 1 << 50,
            stood: 0,
            session: None,
            sequence: 0,
            new_storage: true,
            named: sites,
        };
        let mut cluster = Self {
            hosts: (0..sites).map(host).collect(),
            now: 1_000_000,
            network: BTreeMap::new(),
            sent: 0,
            responses: Vec::new(),
            cut: Vec::new(),
            log: None,
            record: None,
            names_kept,
            first_session: 1,
            storage_takes: 0,
            unruly: None,
            seed: 1,
        };
        (0..sites).for_each(|at| cluster.start(at));
        cluster
    }

    pub(crate) fn site(at: usize) -> SiteId {
        SiteId::new(at as u16, 0)
    }

    /// Starts a site that is to join; the configurations of the others do not name it.
    pub(crate) fn add_host(&mut self) -> usize {
        let at = self.hosts.len();
        let Host { wall, .. } = self.hosts[0];
        self.hosts.push(Host {
            node: None,
            rows: BTreeMap::new(),
            batches: 0,
            wall,
            stood: 0,
            session: None,
            sequence: 0,
            new_storage: false,
            named: at + 1,
        });
        self.start(at);
        at
    }

    /// Starts a site on its rows.
    pub(crate) fn start(&mut self, at: usize) {
        let members: Vec<SiteId> = (0..self.hosts[at].named).map(Self::site).collect();
        self.seed += 1;
        let now = self.time(at);
        let host = &mut self.hosts[at];
        let mut config = Config::new(Self::site(at), members);
        config.new_storage = host.new_storage;
        config.names_kept = self.names_kept;
        config.first_session = self.first_session;
        host.node = Some(Node::open(config, self.seed, host.batches, &host.rows, now).expect("rows are sound"));
        host.session = None;
    }

    /// Kills a site; everything handed out so far is on its disk.
    pub(crate) fn kill(&mut self, at: usize) {
        self.hosts[at].node = None;
    }

    /// A site has found that its storage is an old copy, and stopped: its driver opens it on new storage.
    pub(crate) fn put_aside_old_copy(&mut self, at: usize) {
        let node = self.hosts[at].node.take().expect("runs");
        assert_eq!(node.readiness(), Readiness::Stale);
        self.hosts[at].put_back(Default::default());
        self.start(at);
    }

    /// What the clocks of a site show.
    pub(crate) fn time(&self, at: usize) -> Now {
        let Host { wall, stood, .. } = self.hosts[at];
        Now { wall: wall + self.now as i64, mono: self.now - stood }
    }

    pub(crate) fn feed(&mut self, at: usize, input: Input<Node>) {
        let mut now = self.time(at);
        let Some(node) = &self.hosts[at].node else { return };
        let needed = node.working_set(now, &input);
        if !needed.is_empty() {
            self.now += self.storage_takes;
            now = self.time(at);
        }
        // Whoever is said to take part in something may be nowhere.
        let sites = self.hosts.len();
        let host = &mut self.hosts[at];
        let node = host.node.as_mut().expect("looked at above");
        let view = View::prepare(needed, &Overlay::default(), &host.rows).expect("in memory");
        let mut out = Vec::new();
        let took = self.record.is_some().then(|| words::took(now, &input));
        node.handle(now, input, &view, &mut out);
        if let (Some(record), Some(took)) = (&mut self.record, took) {
            record.push(words::Handled { at, when: self.now, took, gave: words::gave(now, &out) });
        }
        for effect in out {
            match effect {
                Effect::Persist(batch) => {
                    host.batches += 1;
                    for (key, value) in batch.iter() {
                        match value {
                            Some(value) => host.rows.insert(key.to_vec(), value.to_vec()),
                            None => host.rows.remove(key),
                        };
                    }
                }
                Effect::Send { to, message } => {
                    let to = to.region as usize;
                    if let Some(log) = &mut self.log {
                        log.push((to, Self::site(at), message.clone()));
                    }
                    if self.cut.contains(&(at, to)) || to >= sites {
                        continue;
                    }
                    let mut delays = vec![DELAY];
                    if let Some(rng) = &mut self.unruly {
                        let copies = [1, 1, 1, 1, 1, 1, 1, 1, 0, 2][rng.below(10) as usize];
                        delays =
                            (0..copies).map(|_| DELAY + rng.below(4).saturating_sub(2) * rng.below(300_000)).collect();
                    }
                    for delay in delays {
                        self.sent += 1;
                        self.network.insert((self.now + delay, self.sent), (to, Self::site(at), message.clone()));
                    }
                }
                Effect::Respond { client, response } => self.responses.push((at, client, response)),
            }
        }
    }

    /// Lets virtual time pass in which nothing happens anywhere.
    pub(crate) fn stand_still(&mut self, span: u64) {
        self.now += span;
        let under_way = std::mem::take(&mut self.network).into_iter();
        self.network = under_way.map(|((at, order), message)| ((at + span, order), message)).collect();
    }

    /// A machine is suspended, and goes on where it stood: its wall clock has gone on meanwhile, its monotonic clock only if it
    /// counts such time. What was sent to it is lost.
    pub(crate) fn suspend(&mut self, at: usize, span: u64, is_counted: bool) {
        let node = self.hosts[at].node.take();
        self.run(span);
        self.hosts[at].node = node;
        self.hosts[at].stood += if is_counted { 0 } else { span };
    }

    /// When a site wants to be woken.
    fn due(&self, at: usize) -> Option<u64> {
        let deadline = self.hosts[at].node.as_ref()?.deadline()?;
        Some(deadline.saturating_add(self.hosts[at].stood))
    }

    /// Lets virtual time pass.
    pub(crate) fn run(&mut self, span: u64) {
        self.run_and_look(span, |_| ());
    }

    /// Lets virtual time pass, and looks at the cluster whenever a site has handled something.
    pub(crate) fn run_and_look(&mut self, span: u64, mut look: impl FnMut(&Self)) {
        let end = self.now + span;
        let mut at_once = 0;
        loop {
            let tick = (0..self.hosts.len()).filter_map(|at| Some((self.due(at)?.max(self.now), at))).min();
            let message = self.network.first_key_value().map(|((at, order), _)| (*at, *order));
            let next = tick.map(|(at, _)| at).into_iter().chain(message.map(|(at, _)| at)).min().unwrap_or(end);
            if next > end {
                break;
            }
            at_once = if self.now == next { at_once + 1 } else { 0 };
            assert!(
                at_once < 10_000,
                "a site asks to be woken again and again: {tick:?} {:?}",
                self.hosts[tick.map_or(0, |t| t.1)].node
            );
            self.now = self.now.max(next);
            match (message, tick) {
                (Some(key), _) if key.0 <= next => {
                    let (to, from, message) = self.network.remove(&key).expect("looked at above");
                    self.feed(to, Input::Message { from, message });
                }
                (_, Some((_, at))) => self.feed(at, Input::Tick),
                _ => break,
            }
            look(self);
        }
        self.now = self.now.max(end);
    }

    pub(crate) fn request(&mut self, at: usize, client: u64, request: Request) {
        self.feed(at, Input::Request { client: ClientId(client), request });
    }

    pub(crate) fn session(&mut self, at: usize) -> (SiteId, Incarnation, SessionId) {
        if let Some(session) = self.hosts[at].session {
            return session;
        }
        self.request(at, 1, Request::Open);
        let (_, _, response) = self.responses.pop().expect("opened at once");
        let Response::Opened { site, incarnation, session } = response else { panic!("{response:?}") };
        self.hosts[at].session = Some((site, incarnation, session));
        self.hosts[at].sequence = 0;
        (site, incarnation, session)
    }

    /// Submits an operation; returns its sequence.
    pub(crate) fn submit(&mut self, at: usize, operation: Operation) -> u64 {
        self.submit_for(at, operation, 2_000_000)
    }

    /// Submits an operation that may wait for so long; returns its sequence.
    pub(crate) fn submit_for(&mut self, at: usize, operation: Operation, timeout: u64) -> u64 {
        let (site, incarnation, session) = self.session(at);
        self.hosts[at].sequence += 1;
        let sequence = self.hosts[at].sequence;
        let operations = vec![Submission { sequence, timeout, operation }];
        self.request(at, 1, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
        sequence
    }

    /// Submits operations in one batch.
    pub(crate) fn submit_all(&mut self, at: usize, operations: impl IntoIterator<Item = Operation>) {
        let (site, incarnation, session) = self.session(at);
        let mut next = || {
            self.hosts[at].sequence += 1;
            self.hosts[at].sequence
        };
        let operations = operations.into_iter();
        let operations = operations.map(|operation| Submission { sequence: next(), timeout: 2_000_000, operation });
        let operations = operations.collect();
        self.request(at, 1, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
    }

    /// The outcome of a submitted operation, if it is there.
    pub(crate) fn outcome(&mut self, at: usize, sequence: u64) -> Option<Outcome> {
        self.responses.iter().find_map(|(host, _, response)| match response {
            Response::Batch { session, answers }
                if *host == at && Some(*session) == self.hosts[at].session.map(|s| s.2) =>
            {
                answers.iter().find(|answer| answer.sequence == sequence).map(|answer: &Answer| answer.outcome.clone())
            }
            _ => None,
        })
    }

    /// Submits an operation and lets time pass until it has an outcome.
    pub(crate) fn done(&mut self, at: usize, operation: Operation) -> Outcome {
        let sequence = self.submit(at, operation);
        for _ in 0..400 {
            if let Some(outcome) = self.outcome(at, sequence) {
                return outcome;
            }
            self.run(10 * MILLISECOND);
        }
        panic!("no outcome");
    }

    pub(crate) fn show(&mut self, at: usize, quota: &str) -> Shown {
        self.request(at, 77, Request::Show { quota: quota.into(), timeout: 1_000_000, local: false });
        for _ in 0..200 {
            let found = self.responses.iter().rposition(|(_, client, _)| *client == ClientId(77));
            if let Some(found) = found {
                let (_, _, Response::Shown(shown)) = self.responses.remove(found) else { panic!("asked to show") };
                return *shown.expect("the quota exists");
            }
            self.run(10 * MILLISECOND);
        }
        panic!("no answer");
    }

    /// What one site knows of a quota: it answers at once.
    pub(crate) fn known(&mut self, at: usize, quota: &str) -> Shown {
        self.request(at, 78, Request::Show { quota: quota.into(), timeout: 0, local: true });
        let found = self.responses.iter().rposition(|(_, client, _)| *client == ClientId(78));
        let (_, _, response) = self.responses.remove(found.expect("answered at once"));
        let Response::Shown(shown) = response else { panic!("asked to show") };
        *shown.expect("the quota exists")
    }

    /// A site's share of a quota that it knows.
    pub(crate) fn share(&self, at: usize, quota: &str) -> &Share {
        let node = self.hosts[at].node.as_ref().expect("runs");
        &node.chapters().quotas.find(quota).expect("known").avantan().share
    }

    /// The tokens of a quota that a site could grant now.
    pub(crate) fn free(&self, at: usize, quota: &str) -> i64 {
        let node = self.hosts[at].node.as_ref().expect("runs");
        self.share(at, quota).free(node.membership())
    }

    pub(crate) fn tokens(&self, at: usize, quota: &str) -> i64 {
        let node = self.hosts[at].node.as_ref().expect("runs");
        node.chapters().quotas.find(quota).map_or(0, |quota| quota.avantan().share.tokens)
    }
}
