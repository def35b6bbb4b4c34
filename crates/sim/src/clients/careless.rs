//! What clients do that nobody should: they move on further than a session's window reaches, close sessions with operations under
//! way, and repeat what they were told of. Sites must keep to what they told them all the same, across crashes.

use slackline_core::api::{Hold, Operation, Outcome, Refusal, Request, SESSION_WINDOW, Submission};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::peer::Body;
use slackline_core::peer::quota::{Forget, QuotaMessage};

use super::{ENDED, FLEETING, KINDS, Open, PLENTY, Purpose, RECENT, Session, is_fleeting};
use crate::invariants::answers::is_of_one_copy;
use crate::oracle::Op;
use crate::run::{Phase, Simulation, Timer};
use crate::world::World;

/// Whether an operation may wait at its site.
fn ops_wait(op: &Op) -> bool {
    op.told.is_none() && !op.skipped && matches!(op.operation, Operation::Acquire { .. } | Operation::Commit(_))
}

impl Simulation {
    /// Sends nothing new in a session; it is closed when everything in it is answered, or at once.
    pub(super) fn retire_session(&mut self, world: &mut World, at: usize, site: usize) {
        self.flush(world, at, site);
        let Some(session) = self.clients[at].sites[site].session.take() else { return };
        let is_of = |open: &&Open| {
            let id = self.oracle.ops[open.op as usize].id;
            (id.session, id.incarnation) == (session.id, session.incarnation)
                && self.oracle.ops[open.op as usize].site == site
        };
        let under_way: Vec<u32> = self.clients[at].open.iter().filter(is_of).map(|open| open.op).collect();
        let commits = |op: &u32| matches!(self.oracle.ops[*op as usize].operation, Operation::Commit(_));
        let has_commit = under_way.iter().any(commits);
        if under_way.is_empty() || !self.rng.one_in(if has_commit { 2 } else { 4 }) {
            return self.clients[at].retired.push((site, session));
        }
        self.probes.hit("client: closes a session with operations under way");
        let arrives = self.close(world, at, site, session);
        if has_commit && self.phase == Phase::Faults && self.rng.one_in(2) {
            let soon = arrives + 1 + self.rng.below(200 * MILLISECOND);
            world.wake_at(soon, Timer::Closed(site).token());
        }
    }

    /// Closes a session; when the site is told so.
    pub(super) fn close(&mut self, world: &mut World, at: usize, site: usize, session: Session) -> u64 {
        let arrives = world.now() + self.latency(world, at, site);
        let request =
            Request::Close { site: self.members[site], incarnation: session.incarnation, session: session.id };
        self.ask_site(world, arrives, site, Purpose::Close, request);
        let ended = &mut self.clients[at].ended;
        if ended.len() == ENDED {
            ended.remove(0);
        }
        ended.push((site, session));
        arrives
    }

    /// Whether no client says anything now.
    pub(super) fn is_silent(&self, now: u64) -> bool {
        self.silence.is_some_and(|(from, until)| (from..until).contains(&now))
    }

    /// No client says anything until then.
    pub(super) fn fall_silent(&mut self, world: &mut World, at: usize, until: u64) {
        self.probes.hit("client: silent for longer than outcomes are kept");
        let sessions = self.clients[at].sites.iter_mut().filter_map(|site| site.session.as_mut());
        sessions.for_each(|session| session.is_stale = true);
        let next = until + self.rng.below(SECOND);
        world.wake_at(next, Timer::Client(at).token());
    }

    /// Somebody wants a name at the very moment when a site proposes to forget it: nobody may take part in that any more who has
    /// agreed to forget it.
    pub(crate) fn want_what_is_proposed(&mut self, world: &mut World, site: usize, effects: &[Effect<Node>]) {
        let proposed = effects.iter().find_map(|effect| match effect {
            Effect::Send { message, .. } => match &message.body {
                Body::Quota(QuotaMessage::Forget(forget)) => match &**forget {
                    Forget::Propose { names, .. } => names.iter().find(|name| is_fleeting(name)).cloned(),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        });
        let may_speak = self.phase == Phase::Faults && !self.is_silent(world.now());
        let Some(quota) = proposed.filter(|_| may_speak && self.rng.one_in(3)) else { return };
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let through = if self.rng.one_in(2) { site } else { self.clients[at].home };
        let limit = KINDS[FLEETING].limit;
        if self.submit(world, at, through, Operation::Create { quota, limit }, 5 * SECOND).is_some() {
            self.probes.hit("client: wants a name that is being forgotten");
            self.flush(world, at, through);
        }
    }

    /// Numbers an operation so that the session's window just reaches, or just does not reach, one that waits or was done; what is
    /// in between is passed over.
    pub(super) fn jump(&mut self, world: &mut World, at: usize, site: usize) {
        self.flush(world, at, site);
        let Some(session) = self.clients[at].sites[site].session.filter(|session| !session.is_stale) else { return };
        let floor = session.low.max(session.floor);
        let span = session.next - floor;
        if span == 0 {
            return;
        }
        let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
        let waiting = |sequence: &u64| ops_wait(&self.oracle.ops[ops[*sequence as usize - 1] as usize]);
        let victim = (floor..session.next).rev().find(waiting).filter(|_| !self.rng.one_in(3));
        if victim.is_some() {
            self.probes.hit("client: jumps its window over what waits");
        }
        let victim = victim.unwrap_or_else(|| floor + self.rng.below(span));
        let waits = ops_wait(&self.oracle.ops[ops[victim as usize - 1] as usize]);
        let beyond = if self.rng.one_in(4) { 600 } else { 3 };
        let target = victim + SESSION_WINDOW - 1 + self.rng.below(beyond);
        if target < session.next {
            return;
        }
        self.probes.hit("client: jumps its window");
        let victim = ops[victim as usize - 1];
        for sequence in session.next..target {
            let operation = Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 0, hold: Hold::Counted };
            let op = self.register(world, site, session.incarnation, session.id, sequence, operation, SECOND);
            self.oracle.ops[op as usize].skipped = true;
        }
        let floor = session.floor.max(target + 1 - SESSION_WINDOW);
        self.clients[at].sites[site].session = Some(Session { next: target, floor, ..session });
        // One that waits leaves no row that would tell how far the window has moved.
        let (name, amount) = if self.rng.one_in(2) { ("scarce", 7) } else { (PLENTY.name, 1) };
        let operation = Operation::Acquire { quota: name.to_owned(), amount, hold: Hold::Counted };
        let Some(leap) = self.enqueue(world, at, site, operation, 5 * SECOND) else { return };
        self.clients[at].leaps.push((victim, leap));
        self.flush(world, at, site);

        // The site crashes when it has told of what left the window, and before anything else is written in the session. What it
        // has told of comes again, before the operation that moved the window does.
        if waits && self.phase == Phase::Faults && self.rng.one_in(2) {
            let arrives = world.now() + self.latency(world, at, site);
            let soon = arrives + 50 * MILLISECOND + self.rng.below(400 * MILLISECOND);
            world.wake_at(soon, Timer::Closed(site).token());
            let below = self.oracle.ops[leap as usize].id.sequence + 1 - floor;
            let passed = (below <= u64::from(leap)).then(|| leap - below as u32);
            let passed = passed.filter(|op| self.oracle.ops[*op as usize].skipped);
            let until = soon + 4 * SECOND;
            self.clients[at].pressing.extend(passed.map(|op| (op, arrives, until)));
            self.clients[at].pressing.push((victim, soon, until));
            return self.set_aside(at, site);
        }
        if self.rng.one_in(2) {
            self.retire_session(world, at, site);
        }
    }

    /// Sends nothing new in a session, which is closed when everything in it is answered.
    fn set_aside(&mut self, at: usize, site: usize) {
        let session = self.clients[at].sites[site].session.take();
        self.clients[at].retired.extend(session.map(|session| (site, session)));
    }

    /// Sends again, now, what a site was told of before it crashed.
    pub(super) fn press(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        self.clients[at].pressing.retain(|(_, _, until)| *until > now);
        for (op, from, _) in self.clients[at].pressing.clone() {
            if from <= now {
                self.send_again(world, at, op);
            }
        }
    }

    /// Sends again what it, or somebody else, was told of: that must not have any effect.
    pub(super) fn repeat_told(&mut self, world: &mut World, at: usize) {
        let op = match self.rng.below(4) {
            // What its window has jumped over, or would have.
            0 if !self.clients[at].leaps.is_empty() => {
                let which = self.rng.below(self.clients[at].leaps.len() as u64) as usize;
                let (victim, leap) = self.clients[at].leaps[which];
                if self.clients[at].leaps.len() > ENDED {
                    self.clients[at].leaps.remove(which);
                }
                // One of those in between, now and then.
                let between = leap - victim;
                if self.rng.one_in(2) && between > 0 {
                    victim + self.rng.below(u64::from(between)) as u32
                } else {
                    victim
                }
            }
            1 | 2 if !self.clients[at].ended.is_empty() => {
                let which = self.rng.below(self.clients[at].ended.len() as u64) as usize;
                let (site, session) = self.clients[at].ended[which];
                let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
                let Some(last) = (ops.len() as u64).checked_sub(1) else { return };
                ops[self.rng.below(last + 1) as usize]
            }
            _ => {
                let recent = (self.oracle.ops.len() as u64).min(RECENT);
                (self.oracle.ops.len() as u64 - 1 - self.rng.below(recent)) as u32
            }
        };
        self.send_again(world, at, op);
    }

    /// Sends an operation again that was told of, or for the first time if it was passed over.
    fn send_again(&mut self, world: &mut World, at: usize, op: u32) {
        let known = &self.oracle.ops[op as usize];
        let is_first = known.skipped && known.sent == 0;
        match &known.told {
            Some(told) if is_of_one_copy(told) => return,
            Some(Outcome::Refused(Refusal::Withdrawn)) => self.probes.hit("client: repeats what was withdrawn"),
            Some(_) if known.sent > 0 => self.probes.hit("client: repeats what it was told of"),
            None if is_first => self.probes.hit("client: sends what it passed over"),
            _ => return,
        }
        let known = &mut self.oracle.ops[op as usize];
        known.sent += 1;
        let (site, id, timeout) = (known.site, known.id, known.timeout);
        let submission = Submission { sequence: id.sequence, timeout, operation: known.operation.clone() };
        let is_ended = |ended: &(usize, Session)| {
            ended.0 == site && (ended.1.id, ended.1.incarnation) == (id.session, id.incarnation)
        };
        if self.clients[at].ended.iter().any(is_ended) {
            self.probes.hit("client: repeats in a session that ended");
        }
        let through = if self.rng.one_in(4) { self.rng.below(world.len() as u64) as usize } else { site };
        self.oracle.ops[op as usize].relayed |= through != site;
        if is_first {
            let look_at = world.now() + timeout + self.patience(world, at, site);
            self.clients[at].open.push(Open { op, look_at, tries: 0, asks_only: false });
        }
        self.send_batch(world, at, site, through, id.incarnation, id.session, 1, vec![submission], false);
    }
}
