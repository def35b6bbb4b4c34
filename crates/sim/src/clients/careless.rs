//! What clients do that nobody should: they move on further than a session's window reaches, close sessions with operations under
//! way, and repeat what they were told of. Sites must keep to what they told them all the same, across crashes.

use slackline_core::api::{Batch, Hold, Operation, Outcome, Refusal, Request, SESSION_WINDOW, Submission};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::OperationId;
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::peer::Body;
use slackline_core::peer::quota::{Forget, QuotaMessage};
use slackline_core::session::is_kept;

use crate::invariants::answers::{is_definitive, is_of_one_copy};
use crate::invariants::once;
use crate::oracle::{Op, Origin};
use crate::quotas::{FLEETING, KINDS, PLENTY, creation, is_fleeting};
use crate::state::clients::{Open, Session};
use crate::state::post::Purpose;
use crate::state::timer::Timer;
use crate::state::{Phase, Simulation};
use crate::world::World;

/// The most ended sessions that a client remembers, and leaps that it repeats.
const ENDED: usize = 4;
/// From so many of the newest operations clients choose what they repeat.
const RECENT: u64 = 3_000;

/// Returns true if an operation may wait at its site.
fn ops_wait(op: &Op) -> bool {
    !op.is_over() && matches!(op.operation, Operation::Acquire { .. } | Operation::Commit(_))
}

impl Simulation {
    /// Asks about an operation that it then sends: it must not be carried out.
    pub(super) fn ask_before_sending(&mut self, world: &mut World, at: usize, site: usize) {
        self.flush(world, at, site);
        let Some(session) = self.clients.all[at].sites[site].session.filter(|session| !session.is_full()) else {
            return;
        };
        self.probes.hit("client: asks before sending");
        let operation =
            Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 1, hold: Hold::Counted, waits: false };
        let op = self.number(world, site, session, session.next, operation, Origin::Client);
        self.clients.all[at].sites[site].session = Some(Session { next: session.next + 1, ..session });
        self.ask_about(world, at, site, op);
        self.clients.submitted += 1;
        let look_at = world.now() + self.rng.below(SECOND);
        self.clients.all[at].open.push(Open { op, look_at, tries: 0, asks_only: false });
    }

    /// Numbers an operation that is not sent now.
    fn number(
        &mut self,
        world: &World,
        site: usize,
        session: Session,
        sequence: u64,
        operation: Operation,
        origin: Origin,
    ) -> u32 {
        let Session { incarnation, id, .. } = session;
        let id = OperationId { site: self.settings.members[site], incarnation, session: id, sequence };
        self.oracle.register(world.now(), id, operation, SECOND, origin)
    }

    /// Asks about what was answered, or sends it once more.
    pub(super) fn ask_again(&mut self, world: &mut World, at: usize, site: usize) {
        let Some((op, session)) = self.answered(at, site) else { return };
        self.probes.hit("client: asks about what was answered");
        let known = &self.oracle.ops[op as usize];
        if self.rng.one_in(2) {
            let operation = known.id;
            let arrives = world.now() + self.latency(world, at, site);
            self.ask_site(world, arrives, site, Purpose::Ask { op }, Request::Ask { operation });
        } else if known.sent.times > 0 && known.told.as_ref().is_some_and(is_definitive) {
            let batch = self.repeated(op, session.low);
            self.send_batch(world, at, site, batch, false);
        }
    }

    /// Uses an id again for other content, after it was done.
    pub(super) fn reuse_id(&mut self, world: &mut World, at: usize, site: usize) {
        let Some((op, session)) = self.answered(at, site) else { return };
        let known = &self.oracle.ops[op as usize];
        // An id whose outcome is not kept would be taken for a new one after a restart.
        if !known.told.as_ref().is_some_and(|told| once::is_done(told) && is_kept(told)) {
            return;
        }

        self.probes.hit("client: reuses an id");
        let operation =
            Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 77_777, hold: Hold::Counted, waits: false };
        let OperationId { site: of, incarnation, session: id, sequence } = known.id;
        let operations = vec![Submission { sequence, timeout: SECOND, operation }];
        let batch = Batch { site: of, incarnation, session: id, low: session.low, operations };
        self.send_batch(world, at, site, batch, true);
    }

    /// An operation of this session that was answered, and that the client still cares about.
    fn answered(&mut self, at: usize, site: usize) -> Option<(u32, Session)> {
        let session = self.clients.all[at].sites[site].session?;
        let span = session.next - session.low;
        if span == 0 {
            return None;
        }

        let sequence = session.low + self.rng.below(span);
        let op = self.oracle.sessions[&(site, session.incarnation, session.id)][sequence as usize - 1];
        self.oracle.ops[op as usize].told.is_some().then_some((op, session))
    }

    /// Closes a retired session of which nothing is in doubt any more, and asks about an operation of it afterwards.
    pub(super) fn close_retired(&mut self, world: &mut World, at: usize) {
        let answered = |&(site, session): &(usize, Session)| {
            let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
            ops.iter().all(|&op| self.oracle.ops[op as usize].is_over())
        };
        let Some(position) = self.clients.all[at].retired.iter().position(answered) else { return };
        let (site, session) = self.clients.all[at].retired.swap_remove(position);

        let last = self.oracle.sessions[&(site, session.incarnation, session.id)].last().copied();
        self.probes.hit("client: closes a session");
        let arrives = self.close(world, at, site, session);

        // The question comes after the close: what was told and durable must be told again, or be forgotten by right.
        if let Some(op) = last {
            let operation = self.oracle.ops[op as usize].id;
            self.ask_site(world, arrives + 1, site, Purpose::Ask { op }, Request::Ask { operation });
        }
    }

    /// Sends nothing new in a session; it is closed when everything in it is answered, or at once.
    pub(super) fn retire_session(&mut self, world: &mut World, at: usize, site: usize) {
        self.flush(world, at, site);
        let Some(session) = self.clients.all[at].sites[site].session.take() else { return };

        let is_of = |open: &&Open| {
            let op = &self.oracle.ops[open.op as usize];
            session.has(op.id) && op.site == site
        };
        let under_way: Vec<u32> = self.clients.all[at].open.iter().filter(is_of).map(|open| open.op).collect();
        let commits = |op: &u32| matches!(self.oracle.ops[*op as usize].operation, Operation::Commit(_));
        let has_commit = under_way.iter().any(commits);

        // Nearly all wait until nothing is in doubt. A session that ends with a commit under way must not leave locks behind.
        if under_way.is_empty() || !self.rng.one_in(if has_commit { 2 } else { 4 }) {
            return self.clients.all[at].retired.push((site, session));
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
            Request::Close { site: self.settings.members[site], incarnation: session.incarnation, session: session.id };
        self.ask_site(world, arrives, site, Purpose::Close, request);

        let ended = &mut self.clients.all[at].ended;
        if ended.len() == ENDED {
            ended.remove(0);
        }
        ended.push((site, session));
        arrives
    }

    /// No client says anything until then.
    pub(super) fn fall_silent(&mut self, world: &mut World, at: usize, until: u64) {
        self.probes.hit("client: silent for longer than outcomes are kept");
        let sessions = self.clients.all[at].sites.iter_mut().filter_map(|site| site.session.as_mut());
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

        let may_speak = self.phase == Phase::Faults && !self.settings.is_silent(world.now());
        let Some(quota) = proposed.filter(|_| may_speak && self.rng.one_in(3)) else { return };

        let at = self.rng.below(self.clients.all.len() as u64) as usize;
        let through = if self.rng.one_in(2) { site } else { self.clients.all[at].home };
        if self.submit(world, at, through, creation(&quota, KINDS[FLEETING].limit), 5 * SECOND).is_some() {
            self.probes.hit("client: wants a name that is being forgotten");
            self.flush(world, at, through);
        }
    }

    /// Numbers an operation so that the session's window just reaches, or just does not reach, one that waits or was done; what is
    /// in between is passed over.
    pub(super) fn jump(&mut self, world: &mut World, at: usize, site: usize) {
        self.flush(world, at, site);
        let Some(session) = self.clients.all[at].sites[site].session.filter(|session| !session.is_stale) else {
            return;
        };
        let floor = session.low.max(session.floor);
        let span = session.next - floor;
        if span == 0 {
            return;
        }

        let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
        let op = |sequence: u64| &self.oracle.ops[ops[sequence as usize - 1] as usize];

        // A client stays within a window of what the site has answered: it does not jump again before its last jump was. That a site is not
        // ready says nothing of the session.
        let has_jumped = session.floor > 1;
        let landed_from = if has_jumped { session.floor + SESSION_WINDOW - 1 } else { 1 };
        if !(landed_from..session.next).any(|sequence| op(sequence).told.as_ref().is_some_and(is_definitive)) {
            return;
        }
        let waiting = |sequence: &u64| ops_wait(op(*sequence));
        let victim = (floor..session.next).rev().find(waiting).filter(|_| !self.rng.one_in(3));
        if victim.is_some() {
            self.probes.hit("client: jumps its window over what waits");
        }

        let victim = victim.unwrap_or_else(|| floor + self.rng.below(span));
        let waits = ops_wait(op(victim));
        let beyond = if self.rng.one_in(4) { 600 } else { 3 };
        // Nor so far that the site takes the number for a mistyped one. It has seen one that is a window above the floor.
        let far = session.floor + 2 * SESSION_WINDOW;
        let target = (victim + SESSION_WINDOW - 1 + self.rng.below(beyond)).min(far);
        if target < session.next {
            return;
        }

        self.probes.hit("client: jumps its window");
        let victim = ops[victim as usize - 1];
        for sequence in session.next..target {
            let operation =
                Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 0, hold: Hold::Counted, waits: false };
            self.number(world, site, session, sequence, operation, Origin::PassedOver);
        }

        // Below the new floor the site may have forgotten everything.
        let floor = session.floor.max(target + 1 - SESSION_WINDOW);
        self.clients.all[at].sites[site].session = Some(Session { next: target, floor, ..session });

        // One that waits leaves no row that would tell how far the window has moved.
        let (name, amount) = if self.rng.one_in(2) { ("scarce", 7) } else { (PLENTY.name, 1) };
        let operation = Operation::Acquire { quota: name.to_owned(), amount, hold: Hold::Counted, waits: false };
        let Some(leap) = self.enqueue(world, at, site, operation, 5 * SECOND) else { return };
        self.clients.all[at].leaps.push((victim, leap));
        self.flush(world, at, site);

        // The site crashes when it has told of what left the window, and before anything else is written in the session. What it
        // has told of comes again, before the operation that moved the window does.
        if waits && self.phase == Phase::Faults && self.rng.one_in(2) {
            let arrives = world.now() + self.latency(world, at, site);
            let soon = arrives + 50 * MILLISECOND + self.rng.below(400 * MILLISECOND);
            world.wake_at(soon, Timer::Closed(site).token());

            let below = self.oracle.ops[leap as usize].id.sequence + 1 - floor;
            let passed = (below <= u64::from(leap)).then(|| leap - below as u32);
            let passed = passed.filter(|op| self.oracle.ops[*op as usize].origin == Origin::PassedOver);
            let until = soon + 4 * SECOND;
            self.clients.all[at].pressing.extend(passed.map(|op| (op, arrives, until)));
            self.clients.all[at].pressing.push((victim, soon, until));
            return self.set_aside(at, site);
        }
        if self.rng.one_in(2) {
            self.retire_session(world, at, site);
        }
    }

    /// Sends nothing new in a session, which is closed when everything in it is answered.
    fn set_aside(&mut self, at: usize, site: usize) {
        let session = self.clients.all[at].sites[site].session.take();
        self.clients.all[at].retired.extend(session.map(|session| (site, session)));
    }

    /// Sends again, now, what a site was told of before it crashed.
    pub(super) fn press(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        self.clients.all[at].pressing.retain(|(_, _, until)| *until > now);
        for (op, from, _) in self.clients.all[at].pressing.clone() {
            if from <= now {
                self.send_again(world, at, op);
            }
        }
    }

    /// Sends again what it, or somebody else, was told of: that must not have any effect.
    pub(super) fn repeat_told(&mut self, world: &mut World, at: usize) {
        let op = match self.rng.below(4) {
            // What its window has jumped over, or would have.
            0 if !self.clients.all[at].leaps.is_empty() => {
                let which = self.rng.below(self.clients.all[at].leaps.len() as u64) as usize;
                let (victim, leap) = self.clients.all[at].leaps[which];
                if self.clients.all[at].leaps.len() > ENDED {
                    self.clients.all[at].leaps.remove(which);
                }

                // One of those in between, now and then.
                let between = leap - victim;
                if self.rng.one_in(2) && between > 0 {
                    victim + self.rng.below(u64::from(between)) as u32
                } else {
                    victim
                }
            }
            1 | 2 if !self.clients.all[at].ended.is_empty() => {
                let which = self.rng.below(self.clients.all[at].ended.len() as u64) as usize;
                let (site, session) = self.clients.all[at].ended[which];
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
        let is_first = known.origin == Origin::PassedOver && known.sent.times == 0;
        match &known.told {
            Some(told) if is_of_one_copy(told) => return,
            Some(Outcome::Refused(Refusal::Withdrawn)) => self.probes.hit("client: repeats what was withdrawn"),
            Some(_) if known.sent.times > 0 => self.probes.hit("client: repeats what it was told of"),
            None if is_first => self.probes.hit("client: sends what it passed over"),
            _ => return,
        }

        let Op { id, site, timeout, .. } = self.oracle.ops[op as usize];
        let is_ended = |(of, session): &(usize, Session)| *of == site && session.has(id);
        if self.clients.all[at].ended.iter().any(is_ended) {
            self.probes.hit("client: repeats in a session that ended");
        }

        let through = if self.rng.one_in(4) { self.rng.below(world.len() as u64) as usize } else { site };
        self.oracle.ops[op as usize].sent.again(through != site);
        if is_first {
            let look_at = world.now() + timeout + self.patience(world, at, site);
            self.clients.all[at].open.push(Open { op, look_at, tries: 0, asks_only: false });
        }
        let batch = self.repeated(op, 1);
        self.send_batch(world, at, through, batch, false);
    }
}
