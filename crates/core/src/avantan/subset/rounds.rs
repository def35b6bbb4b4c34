//! One entity's rounds among subsets at one site. The rules are in the essay of [`super`].

use super::super::agreement::{Avantan, Offer};
use super::super::amount::Amount;
use super::super::member::Membership;
use super::super::state::Share;
use super::super::value::{Line, Row};
use super::known::Known;
use super::message::{Key, Message};
use super::record::Part;
use super::role::{Role, Vote};
use crate::id::{Incarnation, SiteId};

/// What a step did, for the caller to persist and to send.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step<A = i64> {
    /// True if the durable state changed; it must be persisted before the messages leave. So must what [`Known`] has learned.
    pub changed: bool,
    /// The rows of the value that was decided, if one was: the share may have moved.
    pub decided: Option<Vec<Row<A>>>,
    /// True if the site has left its round: what was set aside is free again.
    pub left: bool,
    /// True if the message fitted no rule, or broke one.
    pub ignored: bool,
    /// The messages to be sent, with the sites that they are for.
    pub sends: Vec<(SiteId, Message<A>)>,
}

/// How a round ends at a member that applies its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Each row is applied.
    Commit,
    /// Each member loses what its row takes, and nobody gains.
    Worse,
}

/// The rounds among subsets of one entity at one site, for the length of a step. Every message that it handles is of the newest
/// incarnation of its sender that [`Known`] has: what an older one sent is dropped before.
pub struct Subset<'a, A: Amount = i64> {
    /// The agreement that has the share.
    pub avantan: &'a mut Avantan<A>,
    /// The site and the members of the entity.
    pub site: Membership<'a>,
    /// The newest incarnations that it has heard of.
    pub known: &'a mut Known,
    /// What the step does.
    pub step: &'a mut Step<A>,
}

impl<A: Amount> Subset<'_, A> {
    /// True if the site may lead or join a round: it is in no other one of either kind, and there is something to move.
    pub fn is_free(&self) -> bool {
        let share = &self.avantan.share;

        // A share is in one round at a time, of whichever kind. A round of the majority may count on the line that was reported to it
        // for what this site has, or for the books; one in which the entity is closed waits for all others to end.
        let exists = share.table.limit.is_some() && !share.table.is_over();
        exists && share.part().is_none() && !share.is_offered()
    }

    /// Leads a round. Does nothing where the site is in one.
    pub fn start(&mut self, offer: Offer<A>, gathers: bool) {
        if !self.is_free() {
            self.step.ignored = true;
            return;
        }

        // The number is durable before the election leaves: one round has one leader, and at most one value.
        let me = self.site.me;
        let generation = self.avantan.share.table.generation;
        let sequence = match self.avantan.share.subset.as_ref().map(|record| record.seen(me)) {
            Some((incarnation, sequence)) if incarnation == self.site.incarnation => sequence + 1,
            _ => 1,
        };
        let key = Key { generation, leader: me, incarnation: self.site.incarnation, sequence };
        let line = self.join(key, offer);
        self.avantan.subset = Role::Electing { reports: vec![line], busy: Vec::new(), gathers };
        let election = Message::Election { key, gathers };
        self.step.sends.extend(self.site.others().map(|to| (to, election.clone())));
        self.build_if_all_answered();
    }

    /// Handles a message. `offer` is what the site would say to a round now.
    pub fn handle(&mut self, from: SiteId, message: Message<A>, offer: impl FnOnce(&Share<A>) -> Offer<A>) {
        match message {
            Message::Election { key, gathers } => {
                let kept = |offer: Offer<A>| if gathers { A::default() } else { offer.kept };
                self.elect(from, key, |share| {
                    let offer = offer(share);
                    Offer { kept: kept(offer), ..offer }
                });
            }
            Message::Report { key, line } => self.hear_report(from, key, line),
            Message::Busy { key } => self.hear_busy(from, key),
            Message::Accept { key, rows, dead } => self.vote(from, key, rows, &dead),
            Message::Accepted { key, dead } => self.hear_vote(from, key, dead),
            Message::Refuse { key } => self.hear_refusal(key),
            Message::Lost { key } if self.is_collecting(key) => self.tell_of(from),
            Message::Lost { .. } => self.step.ignored = true,
            Message::Decided { key, worse } => self.hear_outcome(key, worse),
            Message::Withdraw { key } => match self.part() {
                Some(part) if part.key == key && part.accepted.is_none() => self.leave(),
                _ => self.step.ignored = true,
            },
        }

        self.avantan.check();
    }

    /// A leader asks for a line.
    fn elect(&mut self, from: SiteId, key: Key, offer: impl FnOnce(&Share<A>) -> Offer<A>) {
        if key.leader != from {
            self.step.ignored = true;
            return;
        }

        // The same election again: the report may have been lost, and what is set aside for it still is.
        if let Some(part) = self.part()
            && part.key == key
        {
            if part.accepted.is_none() {
                let held = part.held;
                let line = self.line(held, offer(&self.avantan.share));
                self.step.sends.push((from, Message::Report { key, line }));
            }
            return;
        }

        // Once only: a site that left may have said that it never votes in this round.
        let seen = self.avantan.share.subset.as_ref().map_or((Incarnation(0), 0), |record| record.seen(from));
        if (key.incarnation, key.sequence) <= seen {
            self.step.ignored = true;
            return;
        }

        // Of two leaders that wait for reports, the one with the higher id gives way and joins the other.
        if matches!(self.avantan.subset, Role::Electing { .. }) && from < self.site.me {
            self.withdraw();
        }
        if !self.is_free() || key.generation != self.avantan.share.table.generation {
            self.step.sends.push((from, Message::Busy { key }));
            return;
        }
        let line = self.join(key, offer(&self.avantan.share));
        self.step.sends.push((from, Message::Report { key, line }));
    }

    /// A site answers this site's election.
    fn hear_report(&mut self, from: SiteId, key: Key, line: Line<A>) {
        let is_sound = line.site == from && line.held.is_sound();
        let part = self.avantan.share.part().filter(|part| part.key == key);
        let is_member =
            |rows: &Vec<Row<A>>| rows.iter().any(|row| row.site == from && row.incarnation == line.incarnation);
        if let Some(part) = part
            && part.accepted.is_none()
            && let Role::Electing { reports, .. } = &mut self.avantan.subset
            && is_sound
        {
            // One line of each site: the first, or that of a newer incarnation. A value that takes the line of a dead one is refused.
            match reports.iter_mut().find(|report| report.site == from) {
                Some(report) if report.incarnation < line.incarnation => *report = line,
                Some(_) => self.step.ignored = true,
                None => reports.push(line),
            }
            return self.build_if_all_answered();
        }

        // Too late: no value names it, so it may leave at once. A member is not told so, or it would leave a value that is out.
        if key.leader == self.site.me && !part.and_then(|part| part.accepted.as_ref()).is_some_and(is_member) {
            self.step.sends.push((from, Message::Withdraw { key }));
        }

        self.step.ignored = true;
    }

    /// A site does not join this site's round.
    fn hear_busy(&mut self, from: SiteId, key: Key) {
        let is_it = self.part().is_some_and(|part| part.key == key);
        match &mut self.avantan.subset {
            Role::Electing { busy, reports, .. } if is_it && !reports.iter().any(|line| line.site == from) => {
                if !busy.contains(&from) {
                    busy.push(from);
                }
                self.build_if_all_answered();
            }
            _ => self.step.ignored = true,
        }
    }

    fn build_if_all_answered(&mut self) {
        let Role::Electing { reports, busy, .. } = &self.avantan.subset else { return };
        if reports.len() + busy.len() == self.site.count() && !self.build() {
            self.withdraw();
        }
    }

    /// Builds the value of the lines that came in; the caller says when to stop waiting for the rest. Returns false and does nothing
    /// with fewer than two.
    pub fn build(&mut self) -> bool {
        let Role::Electing { reports, .. } = &self.avantan.subset else { return false };

        // The line of an incarnation that is dead is left out: no member would vote for a value that has it.
        let living = |line: &&Line<A>| !self.known.is_dead(line.site, line.incarnation);
        let mut lines: Vec<Line<A>> = reports.iter().filter(living).cloned().collect();
        if lines.len() < 2 {
            return false;
        }
        lines.sort_by_key(|line| line.site);
        let after = A::reallocate(&lines, A::total(lines.iter().map(|line| line.held)));
        let row = |(line, after): (&Line<A>, A)| Row {
            site: line.site,
            incarnation: line.incarnation,
            share: line.share,
            before: line.held,
            after,
            kept: if line.kept.is_sound() { line.kept } else { A::default() },
            away: line.away,
        };
        let rows: Vec<Row<A>> = lines.iter().zip(after).map(row).collect();

        // The leader votes first, durably, before anybody hears of the value: if it dies, its vote is known.
        let key = self.part().expect("an electing site is in its own round").key;
        if !is_sound(key, &rows, self.site.members) {
            return false;
        }
        self.accept(rows);
        self.collect();
        true
    }

    /// Asks the other members for their votes.
    fn collect(&mut self) {
        self.avantan.subset = Role::Collecting { votes: Vec::new() };
        self.repeat();
    }

    /// Asks again for the answers that are missing, and tells who is known to be dead by now.
    pub fn repeat(&mut self) {
        let Some(part) = self.part() else { return };
        let (key, me) = (part.key, self.site.me);
        match (&self.avantan.subset, &part.accepted) {
            (Role::Electing { reports, busy, gathers }, _) => {
                let gathers = *gathers;
                let is_missing = |to: &SiteId| !busy.contains(to) && !reports.iter().any(|line| line.site == *to);
                let sends = self.site.others().filter(is_missing).map(|to| (to, Message::Election { key, gathers }));
                self.step.sends.extend(sends);
            }
            (Role::Collecting { .. }, Some(rows)) => {
                let members = rows.iter().map(|row| row.site).filter(|site| *site != me).collect();
                self.bring(key, rows.clone(), members);
            }
            _ => {}
        }
    }

    /// A member of the round is dead. That its site is new was noted already, by the incarnation in its message; the others are to know as
    /// well, but for those that have said so. Nothing goes to the new one: it would say the same again, and be told again, for ever.
    fn tell_of(&mut self, new: SiteId) {
        let Role::Collecting { votes } = &self.avantan.subset else { return };
        let Some((key, rows)) = self.part().and_then(|part| Some((part.key, part.accepted.clone()?))) else { return };
        let knows = |site: SiteId| votes.iter().any(|vote| vote.site == site && vote.dead.contains(&new));
        let others = rows.iter().map(|row| row.site).filter(|site| *site != self.site.me && *site != new);
        let untold = others.filter(|site| !knows(*site)).collect();
        self.bring(key, rows, untold);
    }

    /// Brings the value to members, with who is known to be dead by now.
    fn bring(&mut self, key: Key, rows: Vec<Row<A>>, to: Vec<SiteId>) {
        let accept = Message::Accept { key, rows, dead: self.told_dead() };
        self.step.sends.extend(to.into_iter().map(|to| (to, accept.clone())));
        self.tally();
    }

    /// A leader, or a member that recovers the round, asks for a vote.
    fn vote(&mut self, from: SiteId, key: Key, rows: Vec<Row<A>>, dead: &[(SiteId, Incarnation)]) {
        self.bury(&rows, dead);

        // In this order. Whoever knows the outcome tells it, also to a member whose answer it no longer needs.
        let outcome = self.avantan.share.subset.as_ref().and_then(|record| record.outcome(from, key));
        if let Some(worse) = outcome {
            return self.step.sends.push((from, Message::Decided { key, worse }));
        }
        let Some(mine) = rows.iter().find(|row| row.site == self.site.me) else {
            self.step.ignored = true;
            return;
        };

        // What its predecessor answered, or did, is not known here: that it never voted would be a lie.
        if mine.incarnation != self.site.incarnation {
            return self.step.sends.push((from, Message::Lost { key }));
        }
        let Some(part) = self.part().filter(|part| part.key == key) else {
            return self.step.sends.push((from, Message::Refuse { key }));
        };

        if part.accepted.is_none() {
            // No vote for a value with a dead member: that one's successor may be in later rounds with this site already, whose outcome
            // would overwrite what is remembered of an earlier one.
            if rows.iter().any(|row| self.known.is_dead(row.site, row.incarnation)) {
                self.leave();
                return self.step.sends.push((from, Message::Refuse { key }));
            }

            // Whatever the leader has computed, it is not decided if it makes or loses something, or takes what was not reported.
            let is_its = mine.share == part.share && mine.before == part.held;
            if !is_its || !is_sound(key, &rows, self.site.members) {
                self.step.ignored = true;
                return;
            }
            self.accept(rows);
        }
        let dead = self.told_dead();
        self.step.sends.push((from, Message::Accepted { key, dead }));
    }

    /// A member has voted.
    fn hear_vote(&mut self, from: SiteId, key: Key, dead: Vec<(SiteId, Incarnation)>) {
        let rows = self.part().filter(|part| part.key == key).and_then(|part| part.accepted.clone());
        let Some(rows) = rows.filter(|rows| rows.iter().any(|row| row.site == from)) else {
            self.step.ignored = true;
            return;
        };
        self.bury(&rows, &dead);
        let Role::Collecting { votes } = &mut self.avantan.subset else {
            self.step.ignored = true;
            return;
        };

        // Answers come in any order. What a member has said to know it goes on knowing.
        let is_told = |row: &&Row<A>| dead.iter().any(|(site, newest)| *site == row.site && *newest > row.incarnation);
        let told = rows.iter().filter(is_told).map(|row| row.site);
        let at = votes.binary_search_by_key(&from, |vote| vote.site).unwrap_or_else(|at| {
            votes.insert(at, Vote { site: from, dead: Vec::new() });
            at
        });
        let known = &mut votes[at].dead;
        known.extend(told);
        known.sort_unstable();
        known.dedup();
        self.tally();
    }

    /// A member is out of the round and never voted, or the round was aborted there: nobody decides it.
    fn hear_refusal(&mut self, key: Key) {
        match self.part() {
            Some(part) if part.key == key && part.accepted.is_some() => {
                // The others need not find out one by one.
                if key.leader == self.site.me {
                    self.tell_abort();
                }
                self.leave();
            }
            _ => self.step.ignored = true,
        }
    }

    /// Tells the other members that this site is out of the round, before it leaves.
    fn tell_abort(&mut self) {
        let me = self.site.me;
        let Some((key, rows)) = self.part().and_then(|part| Some((part.key, part.accepted.as_ref()?))) else { return };
        let members: Vec<SiteId> = rows.iter().map(|row| row.site).filter(|site| *site != me).collect();
        self.step.sends.extend(members.into_iter().map(|to| (to, Message::Refuse { key })));
    }

    /// A member knows the outcome.
    fn hear_outcome(&mut self, key: Key, worse: bool) {
        match self.part() {
            Some(part) if part.key == key && part.accepted.is_some() => {
                self.settle(if worse { End::Worse } else { End::Commit }, false);
            }
            // Decided without this site's vote: its row is not in the value.
            Some(part) if part.key == key => self.leave(),
            _ => self.step.ignored = true,
        }
    }

    /// Ends the round once that is certain.
    fn tally(&mut self) {
        let Role::Collecting { votes } = &self.avantan.subset else { return };
        let Some((key, rows)) = self.part().and_then(|part| Some((part.key, part.accepted.as_ref()?))) else { return };
        let dead = self.dead();
        let vote = |site: SiteId| votes.iter().find(|vote| vote.site == site);

        // Decided if all have accepted. The leader did before it sent the value to anybody, so its vote is known, dead or alive. A vote
        // of another dead member no longer counts, even if it came before: this site may have told others that it never will.
        let has_voted = |site: SiteId| {
            site == self.site.me || site == key.leader || (vote(site).is_some() && !dead.contains(&site))
        };
        if rows.iter().all(|row| has_voted(row.site)) {
            return self.settle(End::Commit, true);
        }

        // A dead member's vote is unknown, and will be permanently. The round ends without it when all the others, the leader too, have
        // said that they know it to be dead: none of them has an outcome, nor takes one from what the dead have sent.
        let knows = |row: &Row<A>| {
            let site = row.site;
            let says = |vote: &Vote| dead.iter().all(|site| vote.dead.contains(site));
            site == self.site.me || dead.contains(&site) || vote(site).is_some_and(says)
        };
        if dead.iter().all(|site| *site == key.leader) || !rows.iter().all(knows) {
            return;
        }

        // The value alone says how, so that all members end alike. A dead member may have applied a row by which it gains, and spent
        // that: the round is committed. It may have left, and spent what its row gives: aborted. Either errs at its own cost only.
        let nothing = A::default();
        let mut lost = rows.iter().filter(|row| dead.contains(&row.site));
        let gives = lost.clone().any(|row| A::given(row.before, row.after) != nothing);
        let gains = lost.any(|row| A::given(row.after, row.before) != nothing);
        match (gives, gains) {
            (false, _) => self.settle(End::Commit, true),
            (true, false) => {
                self.tell_abort();
                self.leave();
            }
            (true, true) => self.settle(End::Worse, true),
        }
    }

    /// Applies the value, and leaves the round in the same write: so it is applied once. The others are told if they may not have been.
    fn settle(&mut self, end: End, tells: bool) {
        let me = self.site.me;
        let share = &mut self.avantan.share;
        let record = share.subset.as_mut().expect("a site that settles a round is in one");
        let part = record.part.take().expect("a site that settles a round is in one");
        let rows = part.accepted.expect("a site that settles a round has accepted its value");
        let mine = rows.iter().find(|row| row.site == me).expect("a site accepts only values that name it");

        share.tokens = share.tokens.minus(A::given(mine.before, mine.after));
        if end == End::Commit {
            share.tokens = share.tokens.plus(A::given(mine.after, mine.before));
        }
        let worse = end == End::Worse;
        rows.iter().for_each(|row| record.settle((row.site, row.incarnation), part.key, worse));
        self.avantan.subset = Role::Idle;

        // Its leader tells those too who reported too late to be named.
        let is_leader = part.key.leader == me;
        let is_told = |to: &SiteId| tells && (is_leader || rows.iter().any(|row| row.site == *to));
        let decided = Message::Decided { key: part.key, worse };
        self.step.sends.extend(self.site.others().filter(is_told).map(|to| (to, decided.clone())));
        self.step.changed = true;
        self.step.decided = Some(rows);
        self.avantan.check();
    }

    /// Leaves the round before the vote, and takes back what was reported: from now on this site refuses every value of it.
    pub fn withdraw(&mut self) {
        let Some(part) = self.part().filter(|part| part.accepted.is_none()) else { return };
        let key = part.key;
        if key.leader == self.site.me {
            self.step.sends.extend(self.site.others().map(|to| (to, Message::Withdraw { key })));
        }
        self.leave();
    }

    /// Brings the value that this site has accepted to the other members: its leader is silent, or has been for a restart.
    pub fn recover(&mut self) {
        if self.avantan.subset == Role::Idle && self.part().is_some_and(|part| part.accepted.is_some()) {
            self.collect();
        }
    }

    /// Leaves for good: what was seen of the leader forbids to join this round again.
    fn leave(&mut self) {
        if let Some(record) = &mut self.avantan.share.subset {
            record.part = None;
        }
        self.avantan.subset = Role::Idle;
        (self.step.changed, self.step.left) = (true, true);
        self.avantan.check();
    }

    fn join(&mut self, key: Key, offer: Offer<A>) -> Line<A> {
        let share = &mut self.avantan.share;
        let held = share.tokens.spare(offer.kept);
        let record = share.subset.get_or_insert_default();
        record.see(key);
        record.part = Some(Part { key, share: share.number, held, accepted: None });
        self.step.changed = true;
        self.line(held, offer)
    }

    fn line(&self, held: A, offer: Offer<A>) -> Line<A> {
        let share = &self.avantan.share;
        Line {
            site: self.site.me,
            incarnation: self.site.incarnation,
            share: share.number,
            held,
            kept: share.tokens.minus(held),
            away: offer.away,
            // The books are asked for by the majority alone.
            used: None,
            closing: false,
            needed: offer.needed,
            wanted: offer.wanted,
        }
    }

    /// Accepts a value. What it gives stays set aside until the outcome; the rest of what was reported serves again.
    fn accept(&mut self, rows: Vec<Row<A>>) {
        let me = self.site.me;
        let record = self.avantan.share.subset.as_mut().expect("a site that accepts a value is in a round");
        let part = record.part.as_mut().expect("a site that accepts a value is in a round");
        let mine = rows.iter().find(|row| row.site == me).expect("a site accepts only values that name it");
        part.held = A::given(mine.before, mine.after);
        part.accepted = Some(rows);
        self.step.changed = true;
    }

    /// Notes that members are dead, as another site has said.
    fn bury(&mut self, rows: &[Row<A>], dead: &[(SiteId, Incarnation)]) {
        let is_member = |site: SiteId| site != self.site.me && rows.iter().any(|row| row.site == site);
        for (site, newest) in dead.iter().filter(|(site, _)| is_member(*site)) {
            self.known.note(*site, *newest);
        }
    }

    /// The same as [`Subset::dead`], as it is told to others.
    fn told_dead(&self) -> Vec<(SiteId, Incarnation)> {
        self.dead().into_iter().map(|site| (site, self.known.newest(site))).collect()
    }

    /// The members of the accepted value that are known to be dead.
    fn dead(&self) -> Vec<SiteId> {
        let rows = self.part().and_then(|part| part.accepted.as_ref());
        let is_dead = |row: &&Row<A>| self.known.is_dead(row.site, row.incarnation);
        rows.into_iter().flatten().filter(is_dead).map(|row| row.site).collect()
    }

    fn part(&self) -> Option<&Part<A>> {
        self.avantan.share.part()
    }

    fn is_collecting(&self, key: Key) -> bool {
        let is_it = self.part().is_some_and(|part| part.key == key);
        is_it && matches!(self.avantan.subset, Role::Collecting { .. })
    }
}

/// True if a value may be voted for: a row for each of some members, the leader among them, and nothing is made or lost.
fn is_sound<A: Amount>(key: Key, rows: &[Row<A>], members: &[SiteId]) -> bool {
    let in_order = rows.windows(2).all(|pair| pair[0].site < pair[1].site);
    let amounts = rows.iter().all(|row| row.before.is_sound() && row.after.is_sound() && members.contains(&row.site));
    let has_leader = rows.iter().any(|row| row.site == key.leader && row.incarnation == key.incarnation);
    let total = |amount: fn(&Row<A>) -> A| A::total(rows.iter().map(amount));
    in_order && amounts && has_leader && rows.len() > 1 && total(|row| row.before) == total(|row| row.after)
}
