//! Names of deleted quotas go, at all sites together.
//!
//! What is known of a name (its generation, its newest instance) is what makes late messages harmless: a vote or a gift of a
//! quota that is deleted finds the table that outdates it. So no site may forget a name alone. All forget the same names
//! in one step, and count these steps: the count is the **epoch**. Every message tells its sender's epoch, and what it says
//! of a name counts only if that name was not forgotten between the sender's epoch and the receiver's. A name that was forgotten
//! is then new to everybody, and nothing of its former life is ever taken again. Nothing is kept of it.
//!
//! ```text
//!   leader                     each other site                    durable before it is sent
//!     │─Propose(t, view, names)─▶│                                 own freeze
//!     │◀─Agree(t, names')────────│                                 freeze of names'
//!     │   all have agreed: forget what all have frozen            the decision, epoch + 1
//!     │─Forgotten(epoch + 1)────▶│                                 the same
//! ```
//!
//! # Rules
//!
//! - **Freeze.** A site agrees to a name if, here, the quota is deleted or was never created, no round of it has a value, nothing
//!   waits for it, and that has been so for [`Config::names_kept`](crate::config::Config::names_kept); or if it does not know
//!   the name. From then on it takes nothing that is said of the name, and leads nothing for it.
//! - **All.** Only if all members have agreed, the leader decides. So no site has a part in anything that concerns these names.
//! - **One at a time.** A site that has agreed to a proposal agrees to no other, until it knows the outcome. So at most one
//!   decision follows each epoch.
//! - **One view.** A site agrees only if it has heard of the same incarnations of all members as the leader. So once all have agreed,
//!   nobody takes what an incarnation says that was lost before.
//! - **New storage** has forgotten what its site agreed to. But it neither votes nor leads where no quota exists before every
//!   other site has said that no vote of its predecessors counts there ([`Clearance`](crate::avantan::Clearance)), and where a name
//!   is frozen, a site does not say that. The leader has frozen all names until it knows the outcome.
//! - **A leader that lost its disk** may have decided. Then what it had frozen stays so at the others until all members have agreed
//!   to another proposal, by whomever: none of them knows of a decision, then, and none will learn of one any more. It may be about
//!   no name at all.
//! - **Giving up.** A leader that has not decided may give up, durably, and says so. It does so after a few round trips, when
//!   a member is new, and when it was restarted. Sites with something frozen go on telling the leader that they have agreed; it
//!   answers with what became of it.
//!
//! Only the last decision is kept: the next needs everybody to have entered the epoch of this one.

use std::collections::VecDeque;

use smol_str::SmolStr;

use super::book::Quotas;
use super::names::{Absent, Forgetting, Freeze, Leading, Names, has};
use super::one::{Admin, Dirty, Quota};
use crate::api::{Outcome, Refusal, UnknownReason};
use crate::avantan::{Lifecycle, Message};
use crate::clock::{MILLISECOND, SECOND};
use crate::codec::{Cursor, Malformed, put_bytes, put_u64};
use crate::id::{Incarnation, SiteId, SiteSet};
use crate::machine::Batch;
use crate::peer::quota::{Forget, Forgotten, NAMES, QuotaMessage};
use crate::rows::FORGOTTEN;
use crate::turn::{Here, Turn};

/// Names are proposed at most once in this part of the time for which they are kept; without a pause while there are many.
const PAUSES: u64 = 10;
/// The pause after a proposal of as many names as one may have.
const SHORT_PAUSE: u64 = SECOND;
/// For so long a site lets the ones before it propose first: they will mostly propose the same names.
const PRECEDENCE: u64 = SECOND;
/// The time between two questions of a site with something frozen, to the leader, what became of it.
const ASK_AGAIN: u64 = 2 * SECOND;
/// The most names that one look at those that are due goes through.
const LOOKED_AT: usize = 4 * NAMES;
/// More grants than a site can have given out: so many take nine years at a million a second.
const GRANTS_BEFORE: u64 = 1 << 48;

impl Quotas {
    /// Returns the number of times that names were forgotten.
    pub fn epoch(&self) -> u64 {
        self.forgetting.kept.decided.epoch
    }

    /// What was forgotten last, and what is frozen.
    pub fn forgetting(&self) -> &Forgetting {
        &self.forgetting.kept
    }

    /// Returns true if a name takes part in nothing until it is known whether it is forgotten.
    #[inline]
    pub(super) fn is_frozen(&self, name: &str) -> bool {
        !self.forgetting.kept.frozen.is_empty() && self.forgetting.is_frozen(name)
    }

    /// Returns true if what a site says in `epoch` of the quota of this name is about the one that this site knows by it.
    #[inline]
    pub fn is_of_this_life(&self, epoch: u64, name: &str) -> bool {
        let decided = &self.forgetting.kept.decided;
        let is_of_the_epoch_before = epoch.checked_add(1) == Some(decided.epoch);
        epoch == decided.epoch || (is_of_the_epoch_before && !has(&decided.names, name))
    }

    /// A member says something in this epoch. One that has missed the last decision is told of it.
    pub(super) fn meet_epoch(&mut self, turn: &mut Turn, from: usize, epoch: u64) {
        let Names { kept, told_at, .. } = &mut self.forgetting;
        if epoch.checked_add(1) != Some(kept.decided.epoch) || !turn.here.peers[from].is_up(turn.here.now) {
            return;
        }

        // Everything that it sends is in its old epoch until it hears, so it is told once in a while, not by each answer.
        told_at.resize(turn.here.peers.len(), 0);
        if turn.here.now.mono >= told_at[from] {
            told_at[from] = turn.here.now.mono + 2 * turn.here.longest_round_trip();
            let told = Forget::Forgotten(kept.decided.clone());
            turn.out.send(turn.here.peers[from].site, told);
        }
    }

    /// Handles a message about forgetting names, which `from` has sent in `epoch`.
    pub(super) fn forget(&mut self, turn: &mut Turn, from: usize, epoch: u64, message: Forget) {
        let is_of_this_epoch = epoch == self.epoch();
        match message {
            Forget::Propose { number, view, names } if is_of_this_epoch => self.agree(turn, from, number, &view, names),
            Forget::Agree { number, incarnation, names } if is_of_this_epoch => {
                self.agreed(turn, from, number, incarnation, &names);
            }
            // Whoever gives a proposal up has not decided it, and never will.
            Forget::Cancel { number } if is_of_this_epoch => {
                let (leader, incarnation) = (turn.here.peers[from].site, turn.here.peers[from].incarnation);
                self.thaw(|freeze| (freeze.leader, freeze.incarnation, freeze.number) == (leader, incarnation, number));
            }
            Forget::Forgotten(decided) if decided.epoch == self.epoch() + 1 => self.enter(turn, decided),
            _ => turn.out.metrics.ignored += 1,
        }
    }

    /// A leader asks this site to freeze names.
    fn agree(&mut self, turn: &mut Turn, from: usize, number: u64, view: &[Incarnation], names: Vec<String>) {
        // One that knows of another incarnation than the leader may have taken what a lost one said. And who all are must not change
        // before this is decided.
        if view != view_of(&turn.here) || self.is_changing_any() {
            return;
        }

        // Of two that propose at the same time, the one that comes first goes on.
        if self.forgetting.leading.is_some() && from < turn.here.position {
            self.give_up(turn);
        }

        let (leader, incarnation) = (turn.here.peers[from].site, turn.here.peers[from].incarnation);
        let is_its = |freeze: &Freeze| (freeze.leader, freeze.incarnation) == (leader, incarnation);
        let frozen = &self.forgetting.kept.frozen;
        let known = frozen.iter().find(|freeze| is_its(freeze)).map_or(0, |freeze| freeze.number);

        // One that was given up may come late. Nothing but the loss of another leader's disk makes room beside its proposal; what
        // that one froze stays frozen until all have agreed.
        let is_taken = frozen.iter().any(|freeze| !is_its(freeze) && !is_orphan(&turn.here, freeze));
        if is_taken || number < known {
            return;
        }

        // The freeze is durable before the agreement leaves: from there on nothing is done with these names here.
        if number > known {
            // It has given up the one before.
            self.thaw(is_its);
            let names = names.into_iter().filter(|name| self.may_forget(&turn.here, name)).collect();
            self.freeze(&turn.here, Freeze { leader, incarnation, number, names });
        }

        self.say_agreed(turn);
    }

    /// Durably freezes names. Whatever is said or done about them from here on waits, or counts as lost.
    fn freeze(&mut self, here: &Here, mut freeze: Freeze) {
        freeze.names.sort();
        freeze.names.dedup();
        self.forgetting.kept.frozen.push(freeze);
        self.forgetting.is_dirty = true;
        self.forgetting.ask_at = here.now.mono + ASK_AGAIN;
    }

    /// Ends the freezes that are over.
    fn thaw(&mut self, is_over: impl Fn(&Freeze) -> bool) {
        let before = self.forgetting.kept.frozen.len();
        self.forgetting.kept.frozen.retain(|freeze| !is_over(freeze));
        self.forgetting.is_dirty |= self.forgetting.kept.frozen.len() < before;
    }

    /// Tells the leaders of what is frozen here, if they are still there.
    fn say_agreed(&self, turn: &mut Turn) {
        for freeze in &self.forgetting.kept.frozen {
            if freeze.leader != turn.here.site.me && !is_orphan(&turn.here, freeze) {
                let Freeze { leader, incarnation, number, names } = freeze.clone();
                turn.out.send(leader, Forget::Agree { number, incarnation, names });
            }
        }
    }

    /// Returns true if nothing at this site needs the name any more.
    fn may_forget(&self, here: &Here, name: &str) -> bool {
        self.position(name).is_none_or(|at| self.is_forgettable(here, at))
    }

    /// True if nothing at this site needs the quota at a position any more.
    fn is_forgettable(&self, here: &Here, at: usize) -> bool {
        let quota = &self.list[at];
        let absent = self.forgetting.absent.get(&quota.number);
        let waits =
            quota.activity.as_ref().is_some_and(|activity| !activity.admin.is_empty() || !activity.waiting.is_empty());

        // An accepted value may be a creation that is decided elsewhere. A mere promise binds nothing.
        // A quota below it names its generation, which would be another's when the name begins anew.
        quota.limit().is_none()
            && quota.avantan.is_idle()
            && !waits
            && !self.has_children(at)
            && absent.is_some_and(|absent| absent.since + here.config.names_kept <= here.now.mono)
    }

    /// A member has frozen names of a proposal.
    fn agreed(&mut self, turn: &mut Turn, from: usize, number: u64, incarnation: Incarnation, names: &[String]) {
        // What a predecessor proposed it may have decided: that is not this site's to give up.
        if incarnation != turn.here.site.incarnation {
            return;
        }

        // A proposal of this incarnation that it leads no more was given up, durably, or decided: then the epoch would be another.
        let Some(leading) = self.forgetting.leading.as_mut().filter(|leading| leading.number == number) else {
            return turn.out.send(turn.here.peers[from].site, Forget::Cancel { number });
        };
        if leading.view.get(from) != Some(&turn.here.peers[from].incarnation) {
            return;
        }

        leading.agreed.insert(from);
        leading.common.retain(|name| has(names, name));

        // It may know of a creation that this site has missed. Were it not asked, the name would be proposed permanently.
        let missed: Vec<String> = leading.names.iter().filter(|name| !has(names, name)).cloned().collect();
        for quota in missed {
            let applied = self.find(&quota).map_or(0, |quota| quota.avantan.share.applied);
            turn.out.send(turn.here.peers[from].site, QuotaMessage::agreement(quota, Message::Behind { applied }));
        }

        self.decide_if_all_agree(turn);
    }

    /// Decides the proposal once every member has frozen what is left of it.
    fn decide_if_all_agree(&mut self, turn: &mut Turn) {
        let Some(leading) = &self.forgetting.leading else { return };

        // A member that is new since then may not have frozen anything.
        if leading.agreed.positions().count() < turn.here.site.count() || leading.view != view_of(&turn.here) {
            return;
        }

        // A decision about no name at all still thaws what a lost leader froze.
        let orphans = self.forgetting.kept.frozen.len() > 1;
        if leading.common.is_empty() && !orphans {
            return self.give_up(turn);
        }

        // All have frozen these names, so no site has a part in anything that concerns them, nor will: they may go.
        let epoch = self.epoch() + 1;
        let names: Vec<String> = leading.common.iter().cloned().collect();
        let is_full = leading.names.len() == NAMES;
        let decided = Forgotten { epoch, names };
        self.enter(turn, decided.clone());
        if is_full {
            self.forgetting.propose_at = turn.here.now.mono + SHORT_PAUSE.min(pause(&turn.here));
        }

        // The decision is durable before anybody hears of it: a leader that forgot it would give the proposal up.
        let others = turn.here.site.members.iter().filter(|&&site| site != turn.here.site.me);
        others.for_each(|&site| turn.out.send(site, Forget::Forgotten(decided.clone())));
    }

    /// Gives up the proposal that this site leads, durably: it will not be decided.
    fn give_up(&mut self, turn: &mut Turn) {
        self.forgetting.leading = None;
        self.forgetting.propose_at = turn.here.now.mono + pause(&turn.here) + turn.out.rng.below(pause(&turn.here));

        let me = (turn.here.site.me, turn.here.site.incarnation);
        let own = self.forgetting.kept.frozen.iter().find(|freeze| (freeze.leader, freeze.incarnation) == me);
        let Some(number) = own.map(|freeze| freeze.number) else { return };

        // What a lost leader froze may have the same number.
        self.thaw(|freeze| (freeze.leader, freeze.incarnation, freeze.number) == (me.0, me.1, number));
        let others = turn.here.site.members.iter().filter(|&&site| site != turn.here.site.me);
        others.for_each(|&site| turn.out.send(site, Forget::Cancel { number }));
    }

    /// Enters the next epoch: drops the names, thaws the others.
    fn enter(&mut self, turn: &mut Turn, decided: Forgotten) {
        // One step for each site: a name that is half forgotten would be taken for one that is new.
        assert_eq!(decided.epoch, self.epoch() + 1, "an epoch of names is left out");
        for name in &decided.names {
            self.drop_name(turn, name);
        }

        turn.out.metrics.forgotten += decided.names.len() as u64;
        let names = &mut self.forgetting;
        names.kept = Forgetting { decided, frozen: Vec::new() };
        names.is_dirty = true;
        names.leading = None;

        // Others may have had the same names in mind, and would propose what is left of them all at once.
        names.propose_at =
            names.propose_at.max(turn.here.now.mono + turn.out.rng.below(SHORT_PAUSE.min(pause(&turn.here))));
    }

    /// Forgets one name, and what was known of it. A creation that waits for it goes on, as that of a name that is new.
    fn drop_name(&mut self, turn: &mut Turn, name: &str) {
        let Some(at) = self.position(name) else { return };
        let name = self.list[at].name.clone();
        let number = self.list[at].number;

        // Its rows go in the batch of the decision, with the number of its last grant; that of the next stands in the row about
        // forgotten names.
        super::row::delete(&mut turn.out.batch, number);
        self.note_present(at);
        self.forget_seats(number);
        self.index.moved.remove(&number);
        self.drop_name_of(at);
        self.drop_child(&name, self.list[at].above.length);
        let mut gone = std::mem::replace(&mut self.list[at], Quota::vacant());

        // Requests for its tokens are refused, and a deletion has come true.
        let mut creations = VecDeque::new();
        if let Some(activity) = &mut gone.activity {
            let waiting: Vec<_> = activity.waiting.take_all().collect();
            for request in waiting {
                self.finish(turn, request.ticket, Outcome::Refused(Refusal::QuotaDeleted));
            }
            for admin in std::mem::take(&mut activity.admin) {
                match (admin.change, admin.aim) {
                    (Lifecycle::Create { .. }, _) => creations.push_back(Admin { aim: None, ..admin }),
                    (Lifecycle::Delete | Lifecycle::Keep | Lifecycle::Seat { .. }, _) => {
                        self.finish(turn, admin.ticket, Outcome::Deleted)
                    }
                    (Lifecycle::Resize { .. } | Lifecycle::Reclaim { .. }, None) => {
                        self.finish(turn, admin.ticket, Outcome::Refused(Refusal::QuotaDeleted));
                    }
                    // It may have been done before it was deleted.
                    (Lifecycle::Resize { .. } | Lifecycle::Reclaim { .. }, Some(_)) => {
                        self.finish(turn, admin.ticket, Outcome::Unknown(UnknownReason::Forgotten));
                    }
                }
            }
        }
        if creations.is_empty() {
            return self.index.vacant.push(at as u32);
        }

        // The name is new to everybody now, and so is its quota.
        self.occupy(&turn.here, at, name);
        let activity = self.activity(&turn.here, at);
        activity.admin = creations;
        activity.leader.look_at(turn.here.now.mono);
        activity.note_deadlines();
        self.schedule(at);
    }

    /// A quota does not exist, yet or any more, from now on.
    pub(super) fn note_absent(&mut self, here: &Here, at: usize) {
        self.note_present(at);

        // Who the members are is never forgotten.
        if self.list[at].is_of_members() {
            return;
        }
        let since = here.now.mono;
        self.look_again(self.list[at].number, Absent { since, due: since + here.config.names_kept });
    }

    /// Notes when to look at an absent quota again.
    fn look_again(&mut self, number: u64, absent: Absent) {
        let Names { absent: known, due, .. } = &mut self.forgetting;
        known.insert(number, absent);
        due.insert((absent.due, number));
        assert_eq!(known.len(), due.len(), "each absent quota is looked at again at one time");
    }

    /// A quota exists, or is forgotten.
    pub(super) fn note_present(&mut self, at: usize) {
        let number = self.list[at].number;
        if let Some(absent) = self.forgetting.absent.remove(&number) {
            self.forgetting.due.remove(&(absent.due, number));
        }
    }

    /// Does what is due.
    pub(super) fn tend_names(&mut self, turn: &mut Turn) {
        let now = turn.here.now.mono;
        if self.forgetting.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        if let Some(leading) = &mut self.forgetting.leading {
            if now >= leading.give_up_at || leading.view != view_of(&turn.here) {
                return self.give_up(turn);
            }
            leading.repeat_at = now + repeat_after(&turn.here);
            return self.propose(turn);
        }

        // The leader may have gone on without this site's agreement, or without its knowledge of the outcome.
        let has_frozen = !self.forgetting.kept.frozen.is_empty();
        if has_frozen {
            self.forgetting.ask_at = now + ASK_AGAIN;

            // This site proposed it, and was restarted since.
            self.give_up_own(turn);
            self.say_agreed(turn);
            let frozen = &self.forgetting.kept.frozen;
            if frozen.is_empty() || !frozen.iter().all(|freeze| is_orphan(&turn.here, freeze)) {
                return;
            }
        }

        // What no leader can end any more is not left waiting.
        if has_frozen || now >= self.forgetting.propose_at {
            self.lead_proposal(turn, has_frozen);
        }
    }

    /// Gives up what this incarnation proposed before it was restarted, and has not decided.
    fn give_up_own(&mut self, turn: &mut Turn) {
        let me = (turn.here.site.me, turn.here.site.incarnation);
        if self.forgetting.kept.frozen.iter().any(|freeze| (freeze.leader, freeze.incarnation) == me) {
            self.give_up(turn);
        }
    }

    /// Proposes what may be forgotten; also nothing, where something is frozen whose leader has lost its disk.
    fn lead_proposal(&mut self, turn: &mut Turn, has_orphans: bool) {
        let now = turn.here.now.mono;
        let due = self.due_positions(&turn.here);
        if due.is_empty() && !has_orphans {
            return;
        }

        // One that is away would agree to nothing: what is frozen meanwhile could not be created again.
        let is_away = |(position, peer): (usize, &crate::turn::Peer)| {
            position != turn.here.position && !peer.gone && !peer.is_up(turn.here.now)
        };
        self.forgetting.propose_at = now + pause(&turn.here) + turn.out.rng.below(1 + pause(&turn.here) / 4);
        if self.gifts.leaving.is_some() || self.is_changing_any() || turn.here.peers.iter().enumerate().any(is_away) {
            return;
        }

        // Rises also across restarts: whoever is asked can tell a proposal that was given up from the one after it.
        let names: Vec<String> = due.into_iter().map(|at| self.list[at].name.to_string()).collect();
        self.forgetting.last_proposal += 1;
        let number = self.forgetting.last_proposal;
        let (leader, incarnation) = (turn.here.site.me, turn.here.site.incarnation);

        // This site agrees first, durably.
        self.freeze(&turn.here, Freeze { leader, incarnation, number, names: names.clone() });
        let mut agreed = SiteSet::default();
        agreed.insert(turn.here.position);
        self.forgetting.leading = Some(Leading {
            number,
            view: view_of(&turn.here),
            common: names.iter().cloned().collect(),
            names,
            agreed,
            give_up_at: now + 4 * turn.here.longest_round_trip() + 500 * MILLISECOND,
            repeat_at: now + repeat_after(&turn.here),
        });
        self.propose(turn);
        self.decide_if_all_agree(turn);
    }

    /// Asks those that have not agreed.
    fn propose(&self, turn: &mut Turn) {
        let Some(leading) = &self.forgetting.leading else { return };
        let Leading { number, view, names, agreed, .. } = leading;
        for peer in (0..turn.here.peers.len()).filter(|&peer| !agreed.contains(peer)) {
            let propose = Forget::Propose { number: *number, view: view.clone(), names: names.clone() };
            turn.out.send(turn.here.peers[peer].site, propose);
        }
    }

    /// The positions of quotas that are due to be forgotten, at most as many as one proposal may have.
    fn due_positions(&mut self, here: &Here) -> Vec<usize> {
        let now = here.now.mono;
        let precedence = PRECEDENCE.min(here.config.names_kept) * (here.position as u64 + 1);
        let mut found = Vec::new();
        for _ in 0..LOOKED_AT {
            let first = self.forgetting.due.first().copied();
            let Some((_, number)) = first.filter(|(due, _)| *due <= now && found.len() < NAMES) else { break };
            self.forgetting.due.pop_first();

            // A site farther down the list waits for the ones before it, which mostly propose the same.
            let Absent { since, .. } = self.forgetting.absent[&number];
            let at = self.position_of(number).expect("what is absent is known");

            let earliest = since + here.config.names_kept + precedence;
            let due = if earliest > now { earliest } else { now + pause(here) };
            self.look_again(number, Absent { since, due });
            if earliest <= now && self.is_forgettable(here, at) {
                found.push(at);
            }
        }

        found
    }

    /// New storage takes over what a site that let it join has forgotten, if it is the newest.
    pub fn take_over_names(&mut self, forgotten: Forgotten) {
        // It knows of no quota yet, so no name has to be dropped.
        if forgotten.epoch > self.epoch() {
            self.forgetting.kept = Forgetting { decided: forgotten, frozen: Vec::new() };
            self.forgetting.is_dirty = true;
        }
    }

    /// The site serves again: how long its quotas have not existed counts from now.
    pub(super) fn resume_names(&mut self, here: &Here) {
        for at in 0..self.list.len() {
            if self.list[at].limit().is_none() && !self.list[at].is_vacant() {
                self.note_absent(here, at);
            }
        }
    }

    /// Takes in the row about what was forgotten.
    pub(super) fn restore_names(&mut self, value: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor(value);
        let (next, last_proposal) = (cursor.u64()?, cursor.u64()?);
        let decided = Forgotten { epoch: cursor.u64()?, names: read_names(&mut cursor)? };
        let mut frozen = Vec::new();
        for _ in 0..cursor.u64()? {
            let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
            let leader = SiteId { region: part()?, lane: part()? };
            let (incarnation, number) = (Incarnation(cursor.u32()?), cursor.u64()?);
            frozen.push(Freeze { leader, incarnation, number, names: read_names(&mut cursor)? });
        }

        // Storage that was written before the number of the next grant stood here may have forgotten quotas whose grants
        // had higher numbers than any that is left. So the numbers go on above all that it can have given out.
        let next_grant = match cursor.0.is_empty() {
            false => cursor.u64()?,
            true if decided.epoch > 0 => GRANTS_BEFORE,
            true => 0,
        };
        cursor.end()?;
        self.grants.next = self.grants.next.max(next_grant);

        // Else each start would leave out as many numbers again.
        self.forgetting.is_dirty = next_grant == GRANTS_BEFORE;
        self.index.next_number = self.index.next_number.max(next);
        self.forgetting.last_proposal = last_proposal;
        self.forgetting.kept = Forgetting { decided, frozen };
        Ok(())
    }

    /// Writes that row, if it has changed.
    pub(super) fn persist_names(&mut self, batch: &mut Batch) {
        if !std::mem::take(&mut self.forgetting.is_dirty) {
            return;
        }
        let Forgetting { decided, frozen } = &self.forgetting.kept;
        let mut row = Vec::new();
        put_u64(&mut row, self.index.next_number);
        put_u64(&mut row, self.forgetting.last_proposal);
        put_u64(&mut row, decided.epoch);
        put_names(&mut row, &decided.names);
        put_u64(&mut row, frozen.len() as u64);
        for freeze in frozen {
            put_u64(&mut row, u64::from(freeze.leader.region));
            put_u64(&mut row, u64::from(freeze.leader.lane));
            put_u64(&mut row, u64::from(freeze.incarnation.0));
            put_u64(&mut row, freeze.number);
            put_names(&mut row, &freeze.names);
        }

        // The hot row of a quota that is forgotten goes in this very batch, and with it the number of its last grant.
        put_u64(&mut row, self.grants.next);
        batch.put(&[FORGOTTEN], &row);
    }

    /// Puts a quota of this name at a free position, under a number that was never used before: grants and undecided operations
    /// of a former life, which name that one's, find nothing.
    pub(super) fn occupy(&mut self, here: &Here, at: usize, name: SmolStr) {
        let number = self.index.next_number;
        self.index.next_number += 1;
        assert!(self.list[at].is_vacant(), "a quota takes the place of another");
        if number != at as u64 {
            self.index.moved.insert(number, at as u32);
        }
        self.list[at] = Quota::new(name, number);
        self.note_name(at);
        if self.list[at].is_of_members() {
            self.index.members = Some(at as u32);
        }
        self.note_absent(here, at);

        // Its rows are written even if nothing comes of it, so that no restart gives its number to another.
        self.touch(at, Dirty::All);
    }
}

/// The incarnations of all members that this site has heard of.
fn view_of(here: &Here) -> Vec<Incarnation> {
    let known = here.peers.iter().enumerate().map(|(position, peer)| match position == here.position {
        true => here.site.incarnation,
        false => peer.incarnation,
    });
    known.collect()
}

/// Returns true if the leader of what is frozen has lost its disk since.
fn is_orphan(here: &Here, freeze: &Freeze) -> bool {
    here.incarnation_of(freeze.leader) > freeze.incarnation
}

fn pause(here: &Here) -> u64 {
    (here.config.names_kept / PAUSES).max(1)
}

fn repeat_after(here: &Here) -> u64 {
    2 * here.longest_round_trip() + 20 * MILLISECOND
}

fn put_names(out: &mut Vec<u8>, names: &[String]) {
    put_u64(out, names.len() as u64);
    names.iter().for_each(|name| put_bytes(out, name.as_bytes()));
}

fn read_names(cursor: &mut Cursor) -> Result<Vec<String>, Malformed> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Malformed);
    (0..cursor.u64()?).map(|_| text(cursor.bytes()?)).collect()
}
