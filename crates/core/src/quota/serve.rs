//! Acquire, release, holds and their end: what a site does on its own, and what it does when tokens arrive.

use std::collections::BTreeSet;

use super::book::{Break, Place, Quotas, RELAXED_TICK, TICK};
use super::line::Waiting;
use super::one::{Activity, Admin, Dirty, NEVER, PeerShare, Quota};
use super::row::grant_key;
use super::row::{EXPIRIES, Grant, due_key, due_uptime, read_due_key};
use super::tree::{Path, is_name_below};
use crate::api::{HOLD_MICROS, Hold, Operation, Outcome, Refusal, is_name};
use crate::avantan::{Charter, Lifecycle};
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::codec::Malformed;
use crate::id::{GrantId, SessionId, SiteSet};
use crate::machine::View;
use crate::right::{POSTPONED, Term};
use crate::rows::DUE;
use crate::turn::{Here, Ticket, Turn};

/// The number of rounds in a row that must have ended in vain before requests are refused without asking again.
const IN_VAIN: u32 = 1;

/// Two clocks that run freely stay together to within this part of the time.
const DRIFT: u64 = 1_000;

/// The time for which a request that came at `came` has waited at least, in microseconds. One clock is no measure of it: whichever shows less,
/// less what a wall clock may err at both ends, and what its holder's clock may be slower.
fn has_waited(here: &Here, came: Now) -> u64 {
    let by_mono = here.now.mono.saturating_sub(came.mono);
    let by_wall = u64::try_from(here.now.wall.saturating_sub(came.wall)).unwrap_or(0);
    let least = by_mono.min(by_wall);
    least.saturating_sub(least / DRIFT + 2 * here.config.epsilon)
}

/// How a request comes to the line of a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comes {
    /// It has just been asked for.
    New,
    /// From the line of another level, to the end; of one below, if it stays.
    Up,
    /// It stays, and comes from the line of a level above: it was here before all others.
    Down,
}

impl Quotas {
    /// Carries out an operation, or lets it wait (`None`): its outcome then comes by `Out::finished`.
    #[inline]
    pub(super) fn carry_out(
        &mut self,
        turn: &mut Turn,
        view: &View,
        ticket: Ticket,
        operation: &Operation,
        timeout: u64,
    ) -> Option<Outcome> {
        let deadline = turn.here.now.mono.saturating_add(timeout);
        match operation {
            Operation::Acquire { quota, amount, hold, waits } => {
                let Some(at) = self.living(quota) else {
                    return self.unknown_name(turn, quota, ticket, operation, timeout);
                };
                let path = self.path(at);
                let path = match &path {
                    Ok(path) => path,
                    Err(missing) => return self.without_parent(turn, quota, *missing, ticket, operation, timeout),
                };
                let stays = waits.then_some(turn.here.now);
                let (number, generation) = (self.list[at].number, self.list[at].avantan.share.table.generation);
                let request =
                    Waiting { ticket, amount: *amount, hold: *hold, deadline, stays, quota: number, generation };
                self.acquire(turn, path, &request)
            }
            Operation::Release { quota, amount } => {
                // Another of this name may have been created since, and what it granted be released here. Its tokens would go with the
                // share of the one that is gone.
                let Some(at) = self.living(quota).filter(|&at| !self.list[at].may_be_gone(&turn.here)) else {
                    return self.unknown_name(turn, quota, ticket, operation, timeout);
                };

                // What is above one that was deleted has nothing of this any more.
                match self.climb(at) {
                    (_, Some(unheard @ Break::Unheard(_))) => {
                        self.without_parent(turn, quota, unheard, ticket, operation, timeout)
                    }
                    (path, _) => Some(self.release(turn, &path, *amount)),
                }
            }
            Operation::ReleaseGrant { grant, used } => Some(self.release_grant(turn, view, *grant, *used)),
            Operation::ExtendGrant { grant, micros } => Some(self.extend_grant(turn, view, *grant, *micros)),
            Operation::Create { quota, limit, charter } => {
                if !is_name(quota) {
                    return Some(Outcome::Refused(Refusal::InvalidName));
                }
                if *limit < 1 {
                    return Some(Outcome::Refused(Refusal::InvalidAmount));
                }
                if !charter.parent.is_none_or(|parent| is_name_below(quota, usize::from(parent.length))) {
                    return Some(Outcome::Refused(Refusal::InvalidParent));
                }
                let known = self.position(quota).filter(|&at| !self.list[at].may_be_gone(&turn.here));
                if let Some(at) = known
                    && let Some(outcome) = created(&self.list[at], *limit, *charter)
                {
                    self.ask_for_news(turn, at);

                    // Below a quota that was deleted it can grant nothing, and is not what was asked for.
                    return match self.path(at) {
                        Err(missing) if matches!(outcome, Outcome::Created { .. }) => {
                            self.without_parent(turn, quota, missing, ticket, operation, timeout)
                        }
                        _ => Some(outcome),
                    };
                }
                let charter = match self.charter_below(&turn.here, quota, *charter) {
                    Ok(charter) => charter,
                    Err(missing) => return self.without_parent(turn, quota, missing, ticket, operation, timeout),
                };
                let Some(at) = self.position_or_new(&turn.here, quota) else {
                    return Some(Outcome::Refused(Refusal::Overloaded));
                };
                let change = Lifecycle::Create { limit: *limit, charter };
                self.administer(turn, at, Admin::new(ticket, change, deadline));
                None
            }
            Operation::SetLimit { quota, limit } => {
                if *limit < 1 {
                    return Some(Outcome::Refused(Refusal::InvalidAmount));
                }
                let Some(at) = self.living(quota) else {
                    return self.unknown_name(turn, quota, ticket, operation, timeout);
                };

                // By a round even if it is the limit already: elsewhere it may have been changed since.
                self.administer(turn, at, Admin::new(ticket, Lifecycle::Resize { limit: *limit }, deadline));
                None
            }
            Operation::Reclaim { quota, lost, in_use } => {
                if *in_use < 0 {
                    return Some(Outcome::Refused(Refusal::InvalidAmount));
                }
                let Some(at) = self.living(quota) else {
                    return self.unknown_name(turn, quota, ticket, operation, timeout);
                };

                // Nobody would give these back.
                if *in_use > 0 && self.list[at].refills() {
                    return Some(Outcome::Refused(Refusal::Refills));
                }
                let change = Lifecycle::Reclaim { brought: 0, in_use: *in_use };
                self.administer(turn, at, Admin { lost: lost.clone(), ..Admin::new(ticket, change, deadline) });
                None
            }
            Operation::Seat { site, change, label } => {
                self.change_members(turn, view, ticket, (*site, *change, label), deadline)
            }
            Operation::Commit(_) | Operation::AcceptLoss => unreachable!("it is not about quotas"),
            Operation::Delete { quota } => {
                let Some(at) = self.living(quota) else {
                    return self.unknown_name(turn, quota, ticket, operation, timeout);
                };
                if self.has_children(at) {
                    return Some(Outcome::Refused(Refusal::HasChildren));
                }
                self.administer(turn, at, Admin::new(ticket, Lifecycle::Delete, deadline));
                None
            }
        }
    }

    /// Grants at once what fits the free tokens of all levels. What does not fit waits for tokens of other sites, unless it is known
    /// that there are none.
    #[inline]
    fn acquire(&mut self, turn: &mut Turn, path: &Path, request: &Waiting) -> Option<Outcome> {
        let Waiting { amount, hold, .. } = *request;
        if amount < 1 || matches!(hold, Hold::For(micros) if !(MILLISECOND..=HOLD_MICROS).contains(&micros)) {
            return Some(Outcome::Refused(Refusal::InvalidAmount));
        }

        // What can never be granted is no demand that anybody could meet.
        if let Some(refusal) = self.above_limit(path, request) {
            path.levels().for_each(|at| self.ask_for_news(turn, at));
            return Some(Outcome::Refused(refusal));
        }

        // It is to be emptied: another site grants it.
        if turn.here.drained.is_some() {
            return Some(Outcome::Refused(Refusal::NotReady));
        }

        // What comes back by itself is held by nobody: no grant of it has an end.
        if self.list[path.leaf()].refills() && matches!(hold, Hold::For(_)) {
            return Some(Outcome::Refused(Refusal::Refills));
        }
        for at in path.levels() {
            self.refill(&turn.here, at);
            self.note_demand(turn, at, amount);
        }

        // Free tokens are this site's alone, so it need ask nobody.
        let Some(short) = self.short_level(&turn.here, path, amount) else {
            turn.out.metrics.granted_local += 1;
            path.levels().for_each(|at| self.list[at].counters.work.local += 1);
            return Some(self.grant(turn, path, amount, hold));
        };
        let refused = self.stand_in_line(turn, short, *request, Comes::New);
        if refused.is_none() {
            self.spare(&turn.here, path, short, amount);
        }

        refused
    }

    /// A request came for tokens of a quota, or of one below it.
    #[inline]
    fn note_demand(&mut self, turn: &mut Turn, at: usize, amount: i64) {
        // The timer tells enough, and stands beside what is written here. What goes on in the quota is somewhere else in memory, and more often
        // than not in no cache.
        let soon = turn.here.now.mono + RELAXED_TICK;
        if self.list[at].activity.is_none() || self.list[at].wake > soon {
            let activity = self.activity(&turn.here, at);
            activity.active_at = turn.here.now.mono;
            activity.tick_at = activity.tick_at.min(soon);
            self.schedule(at);
        }
        let quota = &mut self.list[at];
        quota.asked.tokens = quota.asked.tokens.saturating_add(amount.unsigned_abs());
        quota.asked.size.note(amount);
    }

    /// Lets a request wait at the level that is short, holding nothing of any, or refuses it. One that is not new stood in the line of
    /// another level before.
    fn stand_in_line(&mut self, turn: &mut Turn, at: usize, request: Waiting, comes: Comes) -> Option<Outcome> {
        let Waiting { ticket, amount, deadline, stays, .. } = request;
        let now = turn.here.now.mono;
        self.activity(&turn.here, at);
        let quota = &mut self.list[at];

        // More is out than the limit, wherever one asks; what comes back is not for this request.
        if quota.avantan.share.table.is_over() && stays.is_none() {
            self.ask_for_news(turn, at);
            turn.out.metrics.refused_local += 1;
            let mut asked = SiteSet::default();
            asked.insert(turn.here.position);
            return Some(Outcome::Refused(self.exhausted(&turn.here, at, asked, &request)));
        }

        // After a round in vain nothing is asked again for a while, unless what others have said since is enough for this
        // request behind those that wait.
        let alone = turn.here.is_alone();
        let activity = quota.activity.as_mut().expect("made above");
        let all = quota.avantan.share.tokens.saturating_add(activity.known_free(&turn.here));
        let in_vain = !activity.leader.may_start(now) && activity.leader.failures() >= IN_VAIN;
        let hopeless = in_vain && all.saturating_sub(activity.needed()) < amount;
        if (alone || hopeless) && stays.is_none() {
            turn.out.metrics.refused_local += 1;
            let mut asked = SiteSet::default();
            asked.insert(turn.here.position);
            if !alone {
                (0..turn.here.peers.len())
                    .filter(|&peer| turn.here.peers[peer].is_up(turn.here.now))
                    .for_each(|p| asked.insert(p));
            }
            return Some(Outcome::Refused(self.exhausted(&turn.here, at, asked, &request)));
        }

        // It waits, in the order of arrival, for gifts or the outcome of a round.
        if comes == Comes::New && !turn.out.admit() {
            return Some(Outcome::Refused(Refusal::Overloaded));
        }
        if activity.waiting.is_empty() {
            activity.shortage.hopes_until = None;
        }
        let arrival = match comes {
            Comes::New | Comes::Up => activity.waiting.push(request),
            Comes::Down => activity.waiting.push_front(request),
        };
        quota.queued = true;
        activity.deadline_at = activity.deadline_at.min(deadline);
        self.waits.places.insert(ticket, Place::Line { at: at as u32, arrival });
        self.seek(turn, at);
        self.schedule(at);
        None
    }

    /// What is out beyond the limit may be back already, or the limit be another one, by a round that this site has missed, and at rest nobody
    /// would tell. Who hears which instance is the newest here tells which is the newest there, and is asked for it then.
    fn ask_for_news(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let activity = self.activity(&turn.here, at);
        let is_old = |peer: usize| now >= activity.peers[peer].told.at.saturating_add(SECOND);
        let others = (0..turn.here.peers.len()).filter(|&peer| peer != turn.here.position);
        let old: Vec<usize> =
            others.filter(|&peer| turn.here.peers[peer].is_up(turn.here.now) && is_old(peer)).collect();
        for peer in old {
            self.tell(turn, at, peer);
        }
    }

    /// Grants tokens that are free: fewer tokens at all levels, the grant's number and its row become durable in one batch with the
    /// outcome of the operation.
    ///
    /// In line, so that the outcome is made where it goes: copied just after its small fields were written, it takes longer than all of this.
    #[inline(always)]
    fn grant(&mut self, turn: &mut Turn, path: &Path, amount: i64, hold: Hold) -> Outcome {
        let number = self.grants.next;
        self.grants.next += 1;
        for at in path.levels() {
            self.touch(at, Dirty::Hot);
            let Quota { avantan, counters, .. } = &mut self.list[at];
            avantan.share.tokens -= amount;
            assert!(avantan.share.tokens >= avantan.share.held(), "only free tokens are granted");
            counters.acquired += amount as u128;
            assert!(counters.last_grant < number, "a grant's number is given out again");
            counters.last_grant = number;
        }

        let quota = &self.list[path.leaf()];
        let of = quota.number;
        let incarnation = turn.here.site.incarnation;
        let generation = quota.avantan.share.table.generation;
        let lasts = match hold {
            Hold::Counted => None,
            // Nobody gives it back, so it need not be known apart.
            Hold::Open if quota.refills() => None,
            Hold::Open => {
                let grant = Grant { quota: of, generation, amount, term: None, settled: false };
                self.put_grant(turn, number, &grant);
                None
            }
            Hold::For(micros) => {
                let term = Some(self.term(turn, micros));
                self.put_grant(turn, number, &Grant { quota: of, generation, amount, term, settled: false });
                Some(micros)
            }
        };
        Outcome::Granted { grant: GrantId { site: turn.here.site.me, incarnation, number }, lasts }
    }

    fn release(&mut self, turn: &mut Turn, path: &Path, amount: i64) -> Outcome {
        if amount < 1 {
            return Outcome::Refused(Refusal::InvalidAmount);
        }
        if self.list[path.leaf()].refills() {
            return Outcome::Refused(Refusal::Refills);
        }

        // Whatever is here is not out; what is set aside for a round may be elsewhere by now, and out.
        let at_most = path.levels().map(|at| {
            let quota = &self.list[at];
            let share = &quota.avantan.share;
            quota.all().expect("looked at by the caller").saturating_sub(share.tokens - share.held()).max(0)
        });
        let at_most = at_most.min().unwrap_or(0);
        if amount > at_most {
            path.levels().for_each(|at| self.ask_for_news(turn, at));
            return Outcome::Refused(Refusal::AboveOut { at_most });
        }

        // It goes back where it is released, wherever it was granted: tokens do not remember.
        turn.out.metrics.released += 1;
        path.levels().for_each(|at| self.list[at].counters.work.local += 1);
        self.reclaim(turn, path, amount);
        Outcome::Released { amount }
    }

    /// Gives a tracked grant back but for what is `used` of it.
    fn release_grant(&mut self, turn: &mut Turn, view: &View, id: GrantId, used: i64) -> Outcome {
        let grant = match self.tracked(turn, view, id) {
            Some(_) if used < 0 => return Outcome::Refused(Refusal::InvalidAmount),
            Some(grant) if used > grant.amount => {
                return Outcome::Refused(Refusal::AboveGrant { amount: grant.amount });
            }
            Some(grant) if used > 0 && grant.settled => return Outcome::Refused(Refusal::Settled),
            Some(grant) => grant,
            None => return Outcome::Refused(Refusal::UnknownGrant),
        };

        // The tokens of a generation that is gone went with it, and a name that was forgotten was deleted before.
        let Some(at) = self.position_alive(&grant) else {
            self.change_grant(turn, id.number, &grant, None);
            return Outcome::Refused(Refusal::QuotaDeleted);
        };

        // The grant goes in the write that gives its tokens back, or shrinks in it, so that no release or end of it can do so again.
        let left = (used > 0).then_some(Grant { amount: used, settled: true, ..grant });
        self.change_grant(turn, id.number, &grant, left);
        let (path, _) = self.climb(at);
        turn.out.metrics.released += 1;
        path.levels().for_each(|at| self.list[at].counters.work.local += 1);
        let amount = grant.amount - used;
        if amount > 0 {
            self.reclaim(turn, &path, amount);
        } else {
            path.levels().for_each(|at| self.touch(at, Dirty::Hot));
        }

        Outcome::Released { amount }
    }

    /// Puts the end of a hold off.
    fn extend_grant(&mut self, turn: &mut Turn, view: &View, id: GrantId, micros: u64) -> Outcome {
        let grant = match self.tracked(turn, view, id) {
            _ if !(MILLISECOND..=HOLD_MICROS).contains(&micros) => {
                return Outcome::Refused(Refusal::InvalidAmount);
            }
            Some(grant) => grant,
            None => return Outcome::Refused(Refusal::UnknownGrant),
        };
        let Some(before) = grant.term else { return Outcome::Refused(Refusal::NoEnd) };
        let Some(at) = self.position_alive(&grant) else {
            self.change_grant(turn, id.number, &grant, None);
            return Outcome::Refused(Refusal::QuotaDeleted);
        };

        // Whoever closes for a deletion grants nothing beyond it, and that is no longer than was said. It may be decided by now, and the
        // tokens granted by the next quota of that name.
        if self.list[at].may_be_gone(&turn.here) {
            return Outcome::Refused(Refusal::Unreachable { missing: SiteSet::default() });
        }

        // Its holder was told of the earlier end as well, and may rely on whichever is later.
        let term = self.term(turn, micros);
        let term = Term { uptime: term.uptime.max(before.uptime), wall: term.wall.max(before.wall) };
        self.change_grant(turn, id.number, &grant, Some(Grant { term: Some(term), ..grant }));
        Outcome::Extended { lasts: micros }
    }

    /// A tracked grant of this site's, as it is by now.
    fn tracked(&self, turn: &Turn, view: &View, id: GrantId) -> Option<Grant> {
        if id.site != turn.here.site.me || id.incarnation != turn.here.site.incarnation {
            return None;
        }

        // The view is from before this turn, which may have changed the grant already.
        match self.grants.touched.get(&id.number) {
            Some(grant) => *grant,
            None => view.get(&grant_key(id.incarnation, id.number)).and_then(|value| Grant::decode(value).ok()),
        }
    }

    /// The position of a grant's quota, if that is still the one that it was granted of.
    fn position_alive(&self, grant: &Grant) -> Option<usize> {
        let at = self.position_of(grant.quota)?;
        let quota = &self.list[at];
        let is_alive = quota.limit().is_some() && quota.avantan.share.table.generation == grant.generation;
        is_alive.then_some(at)
    }

    /// The term of a hold that begins now.
    fn term(&self, turn: &Turn, micros: u64) -> Term {
        // Where no majority of the clocks agrees, none of them says anything: all but one may be wrong.
        let agreed = turn.here.agreed_at_most().filter(|_| turn.here.has_majority_within(POSTPONED));
        Term::starting(turn.here.now, agreed, turn.here.uptime, micros, turn.here.config.epsilon)
    }

    /// Puts another grant in the place of a tracked one, or none. What the same turn still asks of it is asked of that.
    fn change_grant(&mut self, turn: &mut Turn, number: u64, before: &Grant, after: Option<Grant>) {
        match &after {
            None => self.remove_grant(turn, number, before),
            Some(after) => {
                let earlier = before.term.filter(|_| after.term != before.term);
                if let Some(term) = earlier {
                    turn.out.batch.delete(&due_key(term.uptime, turn.here.site.incarnation, number));
                }
                self.put_grant(turn, number, after);
            }
        }

        self.grants.touched.insert(number, after);
    }

    /// Writes the rows of a tracked grant.
    fn put_grant(&mut self, turn: &mut Turn, number: u64, grant: &Grant) {
        let (incarnation, value) = (turn.here.site.incarnation, grant.encode());
        turn.out.batch.put(&grant_key(incarnation, number), &value);
        if let Some(term) = grant.term {
            turn.out.batch.put(&due_key(term.uptime, incarnation, number), &value);
            self.note_due(term.uptime);
        }
    }

    /// Ends the holds in the first of the ranges that [`due_ranges`](super::row::due_ranges) named, if the view has them.
    pub(super) fn expire(&mut self, turn: &mut Turn, view: &View) -> Result<(), Malformed> {
        if !view.covers(&[DUE]) {
            return Ok(());
        }

        // They come first; transactions may need others. Reads that are due as well may have left no room for the second: they are answered
        // with this, and the next tick has both.
        let [due, after, ..] = view.ranges() else { return Ok(()) };
        self.grants.next_due = None;
        let mut ended = 0;
        for (key, value) in view.range(&due.from) {
            let (_, incarnation, number) = read_due_key(key)?;
            ended += 1;
            let grant = Grant::decode(value)?;
            let term = grant.term.ok_or(Malformed)?;

            // An earlier incarnation's tokens are lost with it.
            if incarnation != turn.here.site.incarnation {
                turn.out.batch.delete(key);
                turn.out.batch.delete(&grant_key(incarnation, number));
                continue;
            }

            // Its holder may still rely on it, by the wall clock.
            if !term.is_over(turn.here.now, turn.here.uptime) {
                let later = Grant { term: Some(term.postponed(turn.here.now, turn.here.uptime)), ..grant };
                let later_uptime = later.term.map_or(turn.here.uptime, |term| term.uptime);
                turn.out.batch.delete(key);
                turn.out.batch.put(&due_key(later_uptime, incarnation, number), &later.encode());
                turn.out.batch.put(&grant_key(incarnation, number), &later.encode());
                self.note_due(later_uptime);
                continue;
            }

            // Tokens of a generation that is gone went with it.
            self.remove_grant(turn, number, &grant);
            if let Some(at) = self.position_alive(&grant) {
                turn.out.metrics.expired += 1;
                let (path, _) = self.climb(at);
                self.reclaim(turn, &path, grant.amount);
            }
        }

        // A full range may have left some behind.
        let left = match ended == EXPIRIES {
            true => Some(turn.here.uptime),
            false => view.range(&after.from).next().map(|(key, _)| due_uptime(key)).transpose()?,
        };
        left.into_iter().for_each(|due| self.note_due(due));
        Ok(())
    }

    /// Removes the rows of a tracked grant.
    fn remove_grant(&mut self, turn: &mut Turn, number: u64, grant: &Grant) {
        turn.out.batch.delete(&grant_key(turn.here.site.incarnation, number));
        if let Some(term) = grant.term {
            turn.out.batch.delete(&due_key(term.uptime, turn.here.site.incarnation, number));
        }
    }

    /// Puts tokens back into the shares of all levels.
    fn reclaim(&mut self, turn: &mut Turn, path: &Path, amount: i64) {
        assert!(amount > 0, "what is given back is less than nothing");
        for at in path.levels() {
            self.touch(at, Dirty::Hot);

            // Beyond `i64` only if clients released what they never had; the books then show it.
            let Quota { avantan, counters, .. } = &mut self.list[at];
            avantan.share.tokens = avantan.share.tokens.saturating_add(amount);
            counters.released += amount as u128;
        }

        // Only now may anybody be served: who waits at one level needs the others, too.
        path.levels().for_each(|at| self.note_return(turn, at, amount));
    }

    /// Tokens came back into the share.
    fn note_return(&mut self, turn: &mut Turn, at: usize, amount: i64) {
        // What waits here may fit now; or it is over the limit, and is to be taken; or it is what others wait for.
        let owes = self.list[at].owes();
        if owes {
            self.activity(&turn.here, at);
        }

        if let Some(activity) = &mut self.list[at].activity {
            activity.returns.note(amount);
            let is_awaited = activity.waiting.is_empty() && activity.peers.iter().any(|peer| peer.short > 0);
            let pause = if is_awaited { TICK } else { RELAXED_TICK };
            let soon = turn.here.now.mono + pause;
            if (owes || is_awaited) && activity.tick_at > soon {
                activity.tick_at = soon;
                self.schedule(at);
            }
            self.serve(turn, at);
        }
    }

    /// Grants what now fits to requests that wait, in the order of their arrival; a large one does not hold up the small
    /// ones behind it, because what it waits for comes by a round that has its need, unless it stays in line.
    pub(super) fn serve(&mut self, turn: &mut Turn, at: usize) {
        let mut others = Vec::new();
        self.serve_line(turn, at, &mut others);

        // Where one is granted that came from the line of another level, those behind it there may follow.
        while let Some(level) = others.pop() {
            if self.list[level].activity.as_ref().is_some_and(|activity| !activity.waiting.is_empty()) {
                self.serve_line(turn, level, &mut others);
            }
        }
    }

    /// Serves the line of one level; adds the other levels at which it has granted something.
    fn serve_line(&mut self, turn: &mut Turn, at: usize, others: &mut Vec<usize>) {
        // Before anything is granted: the time until now is not that of what is granted now.
        self.refill(&turn.here, at);
        let mut down = Vec::new();
        loop {
            let Quota { avantan, activity: Some(activity), .. } = &mut self.list[at] else { return };
            if avantan.share.table.limit.is_none() {
                let refused: Vec<Waiting> = activity.waiting.take_all().collect();
                for request in refused {
                    let refusal = self.refusal_of_deleted(at, &request);
                    self.finish(turn, request.ticket, Outcome::Refused(refusal));
                }
                break;
            }

            // What is free only shrinks by this, so nobody before the one that is found has come to fit meanwhile.
            let Some(request) = activity.waiting.take_first_within(avantan.share.free(turn.here.site)) else { break };
            let path = match self.path_of(&request) {
                Ok(path) => path,
                Err(refusal) => {
                    self.finish(turn, request.ticket, Outcome::Refused(refusal));
                    continue;
                }
            };

            // The limit of another level may have been lowered meanwhile.
            if let Some(refusal) = self.above_limit(&path, &request) {
                self.finish(turn, request.ticket, Outcome::Refused(refusal));
                continue;
            }

            // It was first here; where another level is short, it waits there.
            path.levels().filter(|&level| level != at).for_each(|level| self.refill(&turn.here, level));
            if let Some(short) = self.short_level_beside(&turn.here, &path, at, request.amount) {
                let is_above = self.is_below(at, short);
                if !is_above && request.stays.is_some() {
                    down.push((short, path, request));
                    continue;
                }
                match self.stand_in_line(turn, short, request, Comes::Up) {
                    Some(outcome) => self.finish(turn, request.ticket, outcome),
                    None => self.spare(&turn.here, &path, short, request.amount),
                }

                // All that is behind it needs tokens of a level above, too, and can have none before it. Where more wait there already than
                // there is to be had, it goes no further: else each token that comes back would move the whole line there and back.
                if is_above && request.stays.is_some() && self.waits_for_more_than_there_is(&turn.here, short) {
                    break;
                }
                continue;
            }
            for level in path.levels().filter(|&level| level != at) {
                if !others.contains(&level) {
                    others.push(level);
                }
            }
            turn.out.metrics.granted_waited += 1;
            let mut outcome = self.grant(turn, &path, request.amount, request.hold);

            // A hold lasts from now on, and its holder counts from when it asked.
            if let (Outcome::Granted { lasts: Some(lasts), .. }, Some(came)) = (&mut outcome, request.stays) {
                *lasts = lasts.saturating_add(has_waited(&turn.here, came));
            }
            self.finish(turn, request.ticket, outcome);
        }

        // Those that come down were there before all who wait there now, in this order.
        for (short, path, request) in down.into_iter().rev() {
            let outcome = self.stand_in_line(turn, short, request, Comes::Down);
            assert!(outcome.is_none(), "one that stays in line is refused: {outcome:?}");
            self.spare(&turn.here, &path, short, request.amount);
        }

        let Some(activity) = &mut self.list[at].activity else { return };
        activity.note_deadlines();
        if activity.waiting.is_empty() {
            activity.shortage.asked_for_gifts = false;
            activity.shortage.hopes_until = None;
        }
    }

    /// True if requests wait at a level for more tokens than this site and the others are known to have.
    fn waits_for_more_than_there_is(&self, here: &Here, at: usize) -> bool {
        let Quota { avantan, activity, .. } = &self.list[at];
        let known = |activity: &Activity| avantan.share.free(here.site).saturating_add(activity.known_free(here));
        activity.as_ref().is_some_and(|activity| activity.needed() > known(activity))
    }

    /// Withdraws operations of a session that wait. Returns those for which nothing was done, nor will be.
    pub(super) fn withdraw_waiting(
        &mut self,
        turn: &mut Turn,
        session: SessionId,
        sequences: &BTreeSet<u64>,
    ) -> BTreeSet<u64> {
        let places = sequences.iter().filter_map(|&sequence| {
            let ticket = Ticket { session, sequence };
            self.waits.places.get(&ticket).map(|place| (ticket, place.clone()))
        });

        // Creations and deletions leave last. With the last of them their round may end, and that serves the waiting line, in which
        // nobody may stand any more who is told that nothing will be done.
        let (admins, mut order): (Vec<_>, Vec<_>) = places.partition(|(_, place)| matches!(place, Place::Admin { .. }));
        order.extend(admins);

        let (mut withdrawn, mut left) = (BTreeSet::new(), BTreeSet::new());
        for (ticket, place) in order {
            let has_left = match place {
                Place::Line { at, arrival } => {
                    let activity = self.list[at as usize].activity.as_mut();
                    let activity = activity.expect("a quota where somebody waits is active");
                    let has_left = activity.waiting.remove(arrival).is_some();
                    activity.note_deadlines();
                    left.insert(at as usize);
                    has_left
                }
                Place::Admin { at } => self.withdraw_admin(turn, at as usize, ticket),
                Place::Name { name, arrival } => self.lookups.withdraw(&name, arrival),
            };
            if has_left {
                self.waits.places.remove(&ticket);
                withdrawn.insert(ticket.sequence);
            }
        }

        // One that stayed in line may have held up those behind it. None of them is one that was just withdrawn.
        for at in left {
            self.serve(turn, at);
            self.schedule(at);
        }

        withdrawn
    }
}

impl Activity {
    /// Free tokens of the other members that are up, as far as they said: those of one that is down nobody can have. Those that one saves for
    /// somebody who stays in line are not free.
    pub(super) fn known_free(&self, here: &Here) -> i64 {
        let others = self.peers.iter().zip(here.peers).enumerate();
        let has_some =
            |at: usize, share: &PeerShare, peer| at != here.position && share.first <= 0 && here.may_be_up(peer);
        let others = others.filter(|(at, (share, peer))| has_some(*at, share, peer));
        others.fold(0i64, |sum, (_, (share, _))| sum.saturating_add(share.free.max(0)))
    }

    /// Tokens that requests wait for.
    pub(super) fn needed(&self) -> i64 {
        self.waiting.needed()
    }

    /// Tokens that requests wait for beyond what is `free`, and that are not hoped to come back here.
    pub(super) fn short(&self, free: i64, now: u64) -> i64 {
        if self.shortage.hopes_until.is_some_and(|until| now < until) {
            return 0;
        }
        (self.needed() - free.max(0)).max(0)
    }

    /// Tokens beyond what is `free` that the first of those that stay in line lacks; zero if none stays.
    pub(super) fn first_short(&self, free: i64) -> i64 {
        (self.waiting.first_staying() - free.max(0)).max(0)
    }

    /// Notes the earliest deadline of what waits.
    pub(super) fn note_deadlines(&mut self) {
        let admin = self.admin.iter().map(|admin| admin.deadline);
        self.deadline_at = self.waiting.deadline().into_iter().chain(admin).min().unwrap_or(NEVER);
    }
}

/// The outcome of creating a quota that exists.
pub(super) fn created(quota: &Quota, limit: i64, charter: Charter) -> Option<Outcome> {
    let (present, has) = (quota.limit()?, quota.avantan.share.table.charter);
    let Charter { agreement, refill, parent } = has;
    // A request does not tell the generation of the one above it.
    let is_below = match (parent, charter.parent) {
        (Some(has), Some(parent)) => has.length == parent.length && [0, has.generation].contains(&parent.generation),
        (has, parent) => has == parent,
    };
    Some(match () {
        () if present != limit => Outcome::Refused(Refusal::LimitDiffers { limit: present }),
        () if !is_below => Outcome::Refused(Refusal::ParentDiffers),
        () if agreement != charter.agreement => Outcome::Refused(Refusal::AgreementDiffers { agreement }),
        () if refill != charter.refill => Outcome::Refused(Refusal::RefillDiffers { refill }),
        () => Outcome::Created { limit },
    })
}
