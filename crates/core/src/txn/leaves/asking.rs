//! Asking for slack: who is asked, in which order, and how what they have is divided.

use std::collections::{BTreeMap, BTreeSet};

use super::held::NEVER_ENOUGH;
use super::{Asking, Held, Lack, Leaf, Leaves, Making, Purpose, Stage, TRIES, Timer, WAITED, WAITED_SHOWN, Want, say};
use crate::api::{Synchronization, SynchronizationCause};
use crate::clock::{MILLISECOND, SECOND};
use crate::codec::clamped;
use crate::config::Slack;
use crate::id::{OperationId, SiteId};
use crate::object::message::{Reported, Says, Wanted};
use crate::object::treaty::{self, Tree};
use crate::object::{ObjectKey, Part};
use crate::stats::split::{Outlook, Share, fixed, moving, sure};
use crate::stats::trend::Motion;
use crate::turn::Turn;
use crate::txn::locks::Locks;

/// So many groups of leaves are asked at a time for slack that is lacking.
const AT_A_TIME: usize = 2;
/// Near leaves alone share what they have if they will still have what is lacking after this time, in microseconds. If they had less,
/// each of them would be short soon, and ask the others.
const COMFORT: u64 = SECOND;

impl Asking {
    /// True if parts wait for it.
    fn is_awaited(&self) -> bool {
        self.purpose == Purpose::Awaited
    }

    /// What those that have answered have told of a clause, each with its home.
    fn outlooks(&self, clause: u32) -> impl Iterator<Item = (u16, Outlook)> {
        let lines = self.reports.iter().filter_map(move |(home, lines)| Some((*home, lines.get(&clause)?)));
        lines.map(|(home, line)| {
            let motion = Motion { velocity: line.velocity, noise: line.noise };
            (home, Outlook { slack: line.slack, motion })
        })
    }

    /// What those that have answered have of a clause.
    fn spare(&self, clause: u32) -> i128 {
        self.outlooks(clause).map(|(_, told)| i128::from(told.slack.max(0))).sum()
    }
}

impl Leaves {
    /// Notes what a part waits for, and asks for it.
    pub(in crate::txn) fn want(&mut self, turn: &mut Turn, locks: &Locks, id: OperationId, part: &Part) {
        let (me, now) = (turn.here.site.me, turn.here.now);
        let before = self.wants.get(id);
        let (since, was_spared) = before.map_or((now, false), |want| (want.since, want.was_spared));
        let mut confirmed = before.map(|want| want.doubted.clone()).unwrap_or_default();
        let mut want = Want { since, me, relies: part.relies.clone(), was_spared, ..Want::default() };
        for Lack { making, clause, takes, is_put } in self.lacks(locks, part) {
            want.takes.insert((making, clause), (takes, is_put));
        }
        let makings: BTreeSet<Making> = want.takes.keys().map(|(making, _)| making.clone()).collect();
        if want.takes.is_empty() {
            return self.end_want(now.mono, id, false);
        }
        confirmed.retain(|making| makings.contains(making));
        want.confirmed.clone_from(&confirmed);
        self.wants.insert(id, want);
        makings.iter().for_each(|making| self.ask_for_wanted(turn, locks, making));

        // It was looked at for this: what the others have told still stands, if they were not asked anew.
        for making in confirmed {
            let leaf = self.leaves.get(&making).filter(|leaf| leaf.stage == Stage::Kept);
            if leaf.and_then(|leaf| leaf.asking.as_ref()).is_some_and(|asking| asking.is_planned) {
                self.give_up(turn, locks, &making);
            }
        }
    }

    /// A part that does not wait for slack any longer is refused. Its client will come again, and should find the slack; or, where there is
    /// not enough, the treaty retracted: no client without patience could ever break a treaty otherwise. So the slack is asked for as if
    /// the part waited. For one that relies on the treaty it is not retracted.
    pub(in crate::txn) fn press(&mut self, turn: &mut Turn, locks: &Locks, part: &Part) {
        let mut makings = BTreeSet::new();
        for Lack { making, clause, takes, .. } in self.lacks(locks, part) {
            let leaf = self.leaves.get_mut(&making).expect("it lacks slack");

            // Of a treaty that is being made or retracted there is nothing to ask for.
            if leaf.stage != Stage::Kept {
                continue;
            }
            let pressed = leaf.pressed.entry((clause, part.relies.contains(&making.0))).or_default();
            *pressed = takes.max(*pressed);
            makings.insert(making);
        }
        makings.iter().for_each(|making| self.ask_for_wanted(turn, locks, making));
    }

    /// There is more slack of a leaf than there was: those that wait for it are looked at again, and those that were refused and would find
    /// what they take now are forgotten.
    pub(super) fn slack_came(&mut self, locks: &Locks, making: &Making) {
        self.wake(making);
        let Self { leaves, noted, .. } = self;
        let Some(leaf) = leaves.get_mut(making) else { return };
        let clauses = &leaf.clauses;
        let lacks = |clause: u32, takes: i128| clauses.get(clause).is_some_and(|held| held.slack(noted, locks) < takes);
        leaf.pressed.retain(|(clause, _), takes| lacks(*clause, *takes));
    }

    /// A part that waited is judged now.
    pub(in crate::txn) fn waits_no_more(&mut self, mono: u64, id: OperationId) {
        self.end_want(mono, id, false);
    }

    /// A part waits for slack no more: for how long it did, and how that ended, is kept for whoever asks.
    pub(super) fn end_want(&mut self, mono: u64, id: OperationId, is_refused: bool) {
        let Some(Want { since, me, takes, .. }) = self.wants.remove(id) else { return };
        let waited = mono.saturating_sub(since.mono);
        let at = since.wall.saturating_add_unsigned(waited);

        // Of the clauses that it lacked of a treaty the first one is named: whoever asks sees the parts that waited.
        let mut lacked: Vec<(Making, u32)> = takes.into_keys().collect();
        lacked.dedup_by(|(later, _), (first, _)| later == first);
        for (making, clause) in lacked {
            // A leaf that is kept still has the slack that came; where it is not, the treaty went instead.
            let mut leaf = self.leaves.get_mut(&making).filter(|leaf| leaf.stage == Stage::Kept);

            // Tries in vain are counted, and this was none. While parts come as fast as others are met, one question follows upon the
            // other, and the treaty would be retracted after some of them, although there was enough each time.
            let asking = leaf.as_mut().and_then(|leaf| leaf.asking.as_mut()).filter(|asking| asking.is_awaited());
            if let Some(asking) = asking.filter(|_| !is_refused) {
                asking.tries = 0;
            }
            let cause = match leaf {
                _ if is_refused => SynchronizationCause::Refused,
                Some(_) => SynchronizationCause::Slack,
                None => SynchronizationCause::Retraction,
            };
            let asked: BTreeSet<u16> = match leaf {
                Some(Leaf { asking: Some(asking), .. }) => {
                    asking.reports.keys().chain(&asking.missing).copied().collect()
                }
                Some(leaf) => leaf.homes.iter().map(|(home, _)| *home).collect(),
                None => BTreeSet::from([making.0.home]),
            };
            let others = asked.into_iter().filter(|home| *home != me.region);
            let sites = others.map(|home| SiteId::new(home, me.lane)).collect();

            // Only the last are remembered, in memory: they explain, and nothing rests on them.
            if self.waited.len() >= WAITED {
                self.waited.pop_front();
            }
            self.waited.push_back((making.0, Synchronization { at, cause, clause, sites, waited }));
        }
    }

    /// The last parts that waited for slack of a treaty, the oldest first.
    pub(in crate::txn) fn waited_for(&self, treaty: &ObjectKey) -> Vec<Synchronization> {
        let of = self.waited.iter().filter(|(other, _)| other == treaty).map(|(_, synchronization)| synchronization);
        let mut last: Vec<Synchronization> = of.rev().take(WAITED_SHOWN).cloned().collect();
        last.reverse();
        last
    }

    /// The treaty that a part relies upon and for which there is not enough slack: it is refused.
    pub(in crate::txn) fn take_denied(&mut self, id: OperationId) -> Option<ObjectKey> {
        self.denied.remove(&id)
    }

    /// True if a treaty is to be retracted for a part as soon as that was looked at.
    pub(in crate::txn) fn is_doubted(&self, id: OperationId) -> bool {
        self.wants.get(id).is_some_and(|want| !want.doubted.is_empty())
    }

    /// The parts that are to be looked at again.
    pub(in crate::txn) fn take_woken(&mut self) -> BTreeSet<OperationId> {
        std::mem::take(&mut self.woken)
    }

    /// What is lacking of each clause of a leaf: what the parts take that wait, together, or the most that one takes which was refused and
    /// will come again, if that is more (it may be one of those that wait); less the slack that is there, or more what is missing of it
    /// while something is undecided.
    pub(super) fn wanted(&self, locks: &Locks, making: &Making) -> BTreeMap<u32, i128> {
        let mut taken = self.wants.taken(making);
        let Some(leaf) = self.leaves.get(making) else { return BTreeMap::new() };
        for ((clause, _), takes) in &leaf.pressed {
            let sum = taken.entry(*clause).or_default();
            *sum = (*sum).max(*takes);
        }
        let lacking = taken.into_iter().filter_map(|(clause, takes)| {
            // A making of this name went and came again with other clauses, and who waited for the former was not looked at yet.
            let slack = leaf.clauses.get(clause)?.slack(&self.noted, locks);
            // What nobody can have is lacking whatever there is.
            Some((clause, if takes < NEVER_ENOUGH { takes - slack } else { takes }))
        });
        lacking.filter(|(_, lacking)| *lacking > 0).collect()
    }

    /// Wakes the parts that wait for a leaf.
    pub(super) fn wake(&mut self, making: &Making) {
        self.woken.extend(self.wants.of(making).map(|(id, _)| id));
    }

    /// Asks for the slack that parts lack, if nobody is asked yet. A question that leaves out a clause of which something is lacking now is
    /// asked anew.
    pub(super) fn ask_for_wanted(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let Some(leaf) = self.leaves.get(making) else { return };
        match leaf.stage {
            Stage::Prepared | Stage::Free => return,
            // While the treaty is being retracted, there is nothing to divide.
            Stage::Retracting(_) | Stage::Leaving(_) => return self.deny(turn.here.now.mono, making),
            Stage::Kept => {}
        }
        let clauses: BTreeSet<u32> = self.wanted(locks, making).into_keys().collect();
        let asking = leaf.asking.as_ref().filter(|asking| asking.is_awaited());
        let is_asked = asking.is_some_and(|asking| clauses.is_subset(&asking.clauses));
        if !clauses.is_empty() && !is_asked {
            self.ask(turn, locks, making, clauses, Purpose::Awaited);
        }
    }

    /// Asks the other leaves what slack they have.
    pub(super) fn ask(
        &mut self,
        turn: &mut Turn,
        locks: &Locks,
        making: &Making,
        clauses: BTreeSet<u32>,
        purpose: Purpose,
    ) {
        self.tokens += 1;
        let token = self.tokens;
        let leaf = self.leaves.get_mut(making).expect("looked up by the caller");

        // A question that takes the place of another one for what is waited for goes on counting: it is to end.
        let goes_on = |asking: &&Asking| asking.is_awaited() && purpose == Purpose::Awaited;
        let tries = leaf.asking.as_ref().filter(goes_on).map_or(0, |asking| asking.tries);
        leaf.asking = Some(Asking {
            token,
            clauses,
            purpose,
            groups: leaf.groups(&turn.here).into(),
            missing: BTreeSet::new(),
            reports: BTreeMap::new(),
            is_planned: false,
            tries,
            until: 0,
        });
        self.ask_more(turn, locks, making);
    }

    /// Asks one more group of leaves; if there is none, divides what is told, or gives up.
    pub(super) fn ask_more(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let lane = turn.here.site.me.lane;
        loop {
            let leaf = self.leaves.get_mut(making).expect("looked up by the caller");
            let asking = leaf.asking.as_mut().expect("somebody is asked");
            if asking.groups.is_empty() {
                // The last of them is down. What the others have told is divided as if there were no more of them.
                let is_told = !asking.reports.is_empty();
                return if is_told { self.divide(turn, locks, making) } else { self.give_up(turn, locks, making) };
            }

            // For what is lacking two groups at a time are asked: if the nearer one has not enough, what the other one has is on its way
            // already. Where the whole slack is divided again, all are.
            let is_for_all = asking.purpose == Purpose::Divide;
            let count = if is_for_all { asking.groups.len() } else { AT_A_TIME.min(asking.groups.len()) };

            // Also those that are not heard of yet because this home was started just now: to take them for gone would retract a treaty of
            // which they have plenty.
            let is_there = |home: &u16| turn.here.may_be_reachable(SiteId::new(*home, lane));
            let next: Vec<u16> = asking.groups.drain(..count).flatten().filter(is_there).collect();
            if next.is_empty() {
                continue;
            }

            let farthest = next.iter().map(|home| turn.here.round_trip(SiteId::new(*home, lane))).max().unwrap_or(0);
            asking.missing = next.iter().copied().collect();
            asking.until = turn.here.now.mono + 2 * farthest + 50 * MILLISECOND;
            self.timers.insert((asking.until, Timer::Asked(making.clone())));
            let clauses: Vec<u32> = asking.clauses.iter().copied().collect();
            let says = Says::Ask { token: asking.token, clauses: clauses.clone() };
            let (is_awaited, gave_at) = (asking.is_awaited(), leaf.gave_at);
            for home in next {
                // One that has come back since may have missed a gift, and nobody else would tell it: a part here must not find that all
                // together have too little while slack lies between the two.
                if is_awaited && turn.here.up_since(SiteId::new(home, lane)) >= gave_at {
                    self.tell_given(turn, making, home, &clauses);
                }
                say(&mut turn.out, SiteId::new(home, lane), making, says.clone());
            }
            return;
        }
    }

    /// Takes a report. When all have answered, slack is divided.
    pub(super) fn reported(
        &mut self,
        turn: &mut Turn,
        locks: &Locks,
        making: &Making,
        from: u16,
        token: u64,
        lines: Vec<Reported>,
    ) {
        let Some(asking) = self.leaves.get_mut(making).and_then(|leaf| leaf.asking.as_mut()) else { return };
        if asking.token != token || asking.is_planned || !asking.missing.remove(&from) {
            return;
        }
        asking.reports.insert(from, lines.into_iter().map(|line| (line.clause, line)).collect());
        if asking.missing.is_empty() || self.has_enough(turn, locks, making) {
            self.divide(turn, locks, making);
        }
    }

    /// What is lacking here of each clause that is asked about: what parts wait for, or what is wanted ahead.
    fn lacking(&self, locks: &Locks, making: &Making) -> BTreeMap<u32, i128> {
        match self.leaves[making].asking.as_ref().map(|asking| &asking.purpose) {
            Some(Purpose::Ahead(needs)) => needs.clone(),
            Some(Purpose::Divide) => BTreeMap::new(),
            Some(Purpose::Awaited) | None => self.wanted(locks, making),
        }
    }

    /// True if those that have answered have what is lacking here, and will still have it when they are told to give it: the near ones come
    /// first, and no more answers are waited for.
    fn has_enough(&self, turn: &Turn, locks: &Locks, making: &Making) -> bool {
        let leaf = &self.leaves[making];
        let asking = leaf.asking.as_ref().expect("somebody is asked");
        if asking.purpose == Purpose::Divide || leaf.tree == Tree::Flat {
            return false;
        }
        let lacking = self.lacking(locks, making);
        let spare = |clause: u32| -> i128 {
            let told = asking.outlooks(clause).map(|(home, told)| {
                let trip = turn.here.round_trip(SiteId::new(home, turn.here.site.me.lane));
                i128::from(sure(&told, trip.max(COMFORT)))
            });
            told.sum()
        };
        asking.clauses.iter().all(|clause| spare(*clause) >= lacking.get(clause).copied().unwrap_or(0))
    }

    /// Divides the slack of those that have answered: tells each what to give to whom. Asks more if it is not enough.
    pub(super) fn divide(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let (me, now) = (turn.here.site.me, turn.here.now);
        let lacking = self.lacking(locks, making);
        let Self { leaves, noted, .. } = self;
        let leaf = leaves.get_mut(making).expect("looked up by the caller");
        let asking = leaf.asking.as_mut().expect("somebody was asked");

        // Where the others have not what parts wait for, more are asked, and it is no use to ask anybody for some of it. What is wanted ahead
        // is divided then as it is.
        let has_too_little = |clause: &u32| asking.spare(*clause) < lacking.get(clause).copied().unwrap_or(0);
        let short: BTreeSet<u32> = asking.clauses.iter().copied().filter(has_too_little).collect();
        if !short.is_empty() && !asking.groups.is_empty() {
            return self.ask_more(turn, locks, making);
        }
        let is_short = !short.is_empty() && asking.is_awaited();

        let mut gives: BTreeMap<u16, Vec<Wanted>> = BTreeMap::new();
        for clause in asking.clauses.iter().filter(|clause| !is_short || !short.contains(clause)) {
            let Some(held) = leaf.clauses.get_mut(*clause) else { continue };
            let lack = lacking.get(clause).copied().unwrap_or(0);
            let mut parts = vec![(me.region, held.outlook(now, noted, locks))];
            parts.extend(asking.outlooks(*clause));

            // What parts wait for comes first, and only the rest is divided. What is wanted ahead does not: the others may want it as much.
            let first = if asking.is_awaited() { lack } else { 0 };
            let mut rest: Vec<Outlook> = parts.iter().map(|(_, part)| *part).collect();
            let own = rest[0].slack;
            if first > 0 {
                // Nor does the shortage of one that is below its bound for a moment: nothing that anybody waits for is to go there.
                rest.iter_mut().for_each(|part| part.slack = part.slack.max(0));
                rest[0].slack = clamped(-first);
            }
            let mut shares: Vec<Share> = match turn.here.config.slack {
                Slack::Fixed => fixed(&rest).into_iter().map(|slack| Share { slack, rate: 0 }).collect(),
                _ => moving(&rest),
            };
            if first > 0 {
                shares[0].slack = shares[0].slack.saturating_add(own).saturating_add(clamped(first));
            }
            let mut of_clause = plan(*clause, &parts, &shares);
            end_unplanned(*clause, held, me.region, &parts, &mut of_clause);
            of_clause.into_iter().for_each(|(home, more)| gives.entry(home).or_default().extend(more));
        }

        asking.is_planned = true;
        asking.tries += 1;
        let farthest = gives.keys().map(|home| turn.here.round_trip(SiteId::new(*home, me.lane))).max().unwrap_or(0);
        asking.until = now.mono + 2 * farthest + 50 * MILLISECOND;
        let until = asking.until;
        if asking.is_awaited() && asking.tries == 1 && !gives.is_empty() {
            leaf.counts.rebalances += 1;
        }
        let awaited = asking.is_awaited();
        if !awaited {
            leaf.asking = None;
        } else {
            self.timers.insert((until, Timer::Asked(making.clone())));
        }
        for (home, gives) in gives {
            if home == me.region {
                self.give(turn, locks, making, gives, &BTreeSet::new());
                continue;
            }

            // A donor may be told of several receivers for each clause, and a message names no more than there can be clauses. What is given of
            // one clause is told at once: the rest of it would look as if it rested on an outdated report.
            let mut left = &gives[..];
            while !left.is_empty() {
                let next = left.get(treaty::CLAUSES).map(|next| next.clause);
                let count = next.map_or(left.len(), |next| left.partition_point(|give| give.clause < next));
                let (now, later) = left.split_at(count);
                say(&mut turn.out, SiteId::new(home, me.lane), making, Says::Give { gives: now.to_vec(), awaited });
                left = later;
            }
        }

        // Who waits for nothing else has it now, or soon. Those that lack what there is too little of do not wait for it.
        if is_short {
            self.give_up(turn, locks, making);
        }
    }

    /// A question has waited for long enough.
    pub(super) fn asked_for_long(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let Some(leaf) = self.leaves.get_mut(making) else { return };
        let Some(asking) = leaf.asking.as_mut().filter(|asking| asking.until <= turn.here.now.mono) else { return };

        // Those that have not answered are left out: a site that has crashed does not stop the others.
        if !asking.is_planned {
            asking.missing.clear();
            return self.divide(turn, locks, making);
        }

        // Donors have given to others meanwhile, or what they said was lost. They are asked again, a few times.
        let (clauses, tries) = (asking.clauses.clone(), asking.tries);
        let is_wanted = self.wanted(locks, making).keys().any(|clause| clauses.contains(clause));
        match is_wanted {
            false => self.leaves.get_mut(making).expect("looked up above").asking = None,
            true if tries >= TRIES => self.give_up(turn, locks, making),
            true => {
                let clauses = self.wanted(locks, making).into_keys().collect();
                self.ask(turn, locks, making, clauses, Purpose::Awaited);
            }
        }
    }

    /// There is not enough slack: parts that rely on the treaty are refused, and for the others it is retracted.
    pub(super) fn give_up(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let leaf = self.leaves.get_mut(making).expect("looked up by the caller");
        let is_awaited = leaf.asking.as_ref().is_some_and(Asking::is_awaited);
        let Some(asking) = leaf.asking.take().filter(|_| is_awaited) else { return };

        // Nobody is refused because a part that was refused already, and relies on the treaty, would take too much. It is forgotten first; what
        // is left may be there.
        let noted = &self.noted;
        let clauses = &leaf.clauses;
        let is_hopeless = |clause: u32, takes: i128| takes - clauses[clause].slack(noted, locks) > asking.spare(clause);
        let count = leaf.pressed.len();
        leaf.pressed.retain(|(clause, relies), takes| !relies || !is_hopeless(*clause, *takes));
        let is_eased = leaf.pressed.len() < count;

        // Only what lacks slack of a clause of which there is not enough is judged. Where donors had enough each time, and gave it to others,
        // nobody knows which clause that is.
        let wanted = self.wanted(locks, making);
        let has_too_little = |(clause, lack): &(&u32, &i128)| asking.spare(**clause) < **lack;
        let mut short: BTreeSet<u32> = wanted.iter().filter(has_too_little).map(|(clause, _)| *clause).collect();
        // Nor where the one that took too much was looked at once more meanwhile, and is gone: for the others there is enough.
        if short.is_empty() && (is_eased || asking.tries < TRIES) {
            return self.ask_for_wanted(turn, locks, making);
        }
        if short.is_empty() {
            short.extend(wanted.keys());
        }

        // Often the first one that is told adds to what there is too little of. Then the others find enough; if all were told at once, all
        // would add, and be in each other's way. So they wait for as long as that may take, once.
        let mut lacking: Vec<(u64, OperationId)> = self
            .wants
            .of(making)
            .filter(|(_, want)| want.relies_on(&making.0) && want.lacks_some(making, &short))
            .map(|(id, want)| (want.since.mono, id))
            .collect();
        lacking.sort_unstable();
        let oldest = lacking.first().map(|(_, id)| *id);
        let mut spared: Vec<OperationId> = lacking.into_iter().map(|(_, id)| id).collect();
        let is_refused =
            |id: &mut OperationId| Some(*id) == oldest || self.wants.get(*id).is_some_and(|want| want.was_spared);
        let refused: Vec<OperationId> = spared.extract_if(.., is_refused).collect();
        spared.iter().for_each(|id| self.wants.spare(*id));
        self.refuse(turn.here.now.mono, making, refused.into_iter());

        // What a part read may have changed while it waited: nothing is retracted for one that can never be committed. Who breaks the treaty
        // is looked at once more first, with the rows that it needs.
        let breaking = self.wants.of(making);
        let breaking: Vec<(OperationId, &Want)> =
            breaking.filter(|(_, want)| want.lacks_some(making, &short) && !want.relies_on(&making.0)).collect();
        let is_pending = breaking.iter().any(|(_, want)| want.doubted.contains(making));
        let is_confirmed = !is_pending && breaking.iter().any(|(_, want)| want.confirmed.contains(making));
        if !is_pending && !is_confirmed {
            let doubted: Vec<OperationId> = breaking.into_iter().map(|(id, _)| id).collect();
            doubted.iter().for_each(|id| self.wants.doubt(*id, making));
            self.woken.extend(doubted);
        }

        let leaf = self.leaves.get_mut(making).expect("looked up above");
        let breaks_later = |(clause, relies): &(u32, bool)| short.contains(clause) && !relies;
        let is_broken = leaf.pressed.keys().any(breaks_later) || is_confirmed;
        leaf.pressed.retain(|(clause, relies), _| !short.contains(clause) || !relies);
        if is_broken && leaf.stage == Stage::Kept {
            leaf.stage = Stage::Retracting(turn.here.now.mono);
            return self.ask_to_retract(turn, making);
        }

        // The others have what they lack on its way to them; or they were spared, or are looked at first.
        if !self.wanted(locks, making).is_empty() {
            let until = turn.here.now.mono + 2 * turn.here.longest_round_trip() + 50 * MILLISECOND;
            let tries = if spared.is_empty() { asking.tries } else { 0 };
            let leaf = self.leaves.get_mut(making).expect("looked up above");
            leaf.asking = Some(Asking { is_planned: true, missing: BTreeSet::new(), tries, until, ..asking });
            self.timers.insert((until, Timer::Asked(making.clone())));
        }
    }

    /// Refuses all parts that lack slack of a treaty on which they rely.
    pub(super) fn deny(&mut self, mono: u64, making: &Making) {
        let denied: Vec<OperationId> =
            self.wants.of(making).filter(|(_, want)| want.relies_on(&making.0)).map(|(id, _)| id).collect();
        self.refuse(mono, making, denied.into_iter());
    }

    /// Refuses parts: they are told so when they are looked at next.
    fn refuse(&mut self, mono: u64, making: &Making, denied: impl Iterator<Item = OperationId>) {
        for id in denied {
            self.end_want(mono, id, true);
            self.denied.insert(id, making.0.clone());
            self.woken.insert(id);
        }
    }
}

/// Adds to the plan of a clause the end of each standing order that it leaves out: what that has one home give to another would come on top.
fn end_unplanned(
    clause: u32,
    held: &mut Held,
    me: u16,
    parts: &[(u16, Outlook)],
    gives: &mut BTreeMap<u16, Vec<Wanted>>,
) {
    let takes_part = |home: u16| parts.iter().any(|(other, _)| *other == home);
    for (from, to) in std::mem::take(&mut held.planned) {
        if !takes_part(from) || !takes_part(to) {
            held.planned.insert((from, to));
            continue;
        }
        if !gives.get(&from).is_some_and(|gives| names(gives, to)) {
            gives.entry(from).or_default().push(Wanted { clause, to, amount: 0, rate: 0 });
        }
    }
    let orders = gives.iter().flat_map(|(from, gives)| gives.iter().map(move |give| (*from, give)));
    let orders = orders.filter(|(_, give)| give.rate > 0);
    held.planned.extend(orders.map(|(from, give)| (from, give.to)));

    // One to this home, which another one has planned, is not counted on from now on. If the donor does not hear of that, its next gift
    // says that it goes on.
    held.incoming.retain(|donor, _| {
        let gives = gives.entry(*donor).or_default();
        let is_planned = names(gives, me);
        if !is_planned {
            gives.push(Wanted { clause, to: me, amount: 0, rate: 0 });
        }
        is_planned
    });
}

/// True if a donor's part of the plan of a clause says what it gives to a home, even if that is nothing.
fn names(gives: &[Wanted], to: u16) -> bool {
    gives.iter().any(|give| give.to == to)
}

/// Who gives what of a clause to whom so that everybody has its share, by donor.
fn plan(clause: u32, parts: &[(u16, Outlook)], shares: &[Share]) -> BTreeMap<u16, Vec<Wanted>> {
    let mut gives: BTreeMap<u16, Vec<Wanted>> = BTreeMap::new();
    let mut more: Vec<(u16, i128, i128)> = Vec::new();
    let mut less: Vec<(u16, i128, i128)> = Vec::new();
    for ((home, part), share) in parts.iter().zip(shares) {
        let (slack, rate) = (i128::from(share.slack) - i128::from(part.slack), i128::from(share.rate));
        more.push((*home, slack.max(0), (-rate).max(0)));
        less.push((*home, (-slack).max(0), rate.max(0)));
    }

    // From each that has too much to each that has too little, in order, until nobody has. The same for rates.
    for (from, has, gains) in &mut less {
        for (to, lacks, falls) in more.iter_mut().filter(|(to, ..)| to != from) {
            let (amount, rate) = ((*has).min(*lacks), (*gains).min(*falls));
            (*has, *lacks) = (*has - amount, *lacks - amount);
            (*gains, *falls) = (*gains - rate, *falls - rate);
            if amount > 0 || rate > 0 {
                let wanted = Wanted { clause, to: *to, amount: clamped(amount) as u64, rate: clamped(rate) as u64 };
                gives.entry(*from).or_default().push(wanted);
            }
        }
    }

    gives
}
