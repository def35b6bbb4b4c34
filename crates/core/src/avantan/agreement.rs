//! One entity's agreement at one site: what it takes part in, leads and has decided. The rules are in the essay of
//! [`super`](crate::avantan).

use std::sync::Arc;

use super::amount::Amount;
use super::member::Membership;
use super::message::{Message, Report, Scope};
use super::state::{Round, Share, Table, Unfit};
use super::subset::role as subset;
use super::value::{Ballot, Lifecycle, Line, Row, Value};
use crate::api::Charter;
use crate::id::{Incarnation, SiteId};

/// Why a round is led.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Intent<A = i64> {
    /// Move shares to where they are wanted; also to finish what a silent leader began.
    Move,
    /// The same, and no site keeps a part of its share out of the round: one where they did has not met what requests wait
    /// for.
    Gather,
    /// Record new incarnations. No share moves, so nothing is set aside.
    Record,
    /// Create the entity with this limit.
    Create {
        /// The amount of all shares together.
        limit: A,
        /// What else is agreed on about it.
        charter: Charter,
    },
    /// Delete the entity; needs a line from every member.
    Delete,
    /// Give the entity another limit.
    Resize {
        /// The new one.
        limit: A,
    },
    /// Share out again what lost incarnations had; needs a line from every member.
    Reclaim {
        /// The amount of it that is in use.
        in_use: A,
    },
    /// A site becomes a member, or is one no longer.
    Seat {
        /// The site.
        site: SiteId,
        /// As in [`Lifecycle::Seat`].
        gone: bool,
    },
}

impl<A: Amount> Intent<A> {
    /// Returns the amount that the sites are to set aside of an entity that has this limit.
    fn scope(&self, present: Option<A>) -> Scope {
        match self {
            Intent::Move | Intent::Create { .. } | Intent::Reclaim { .. } => Scope::Spare,
            // Nobody need stop for an amount that is added. One that is taken away is taken from all that there is: what a site kept
            // would be in excess, though it is free.
            Intent::Resize { limit } if present.is_none_or(|present| present <= *limit) => Scope::Spare,
            Intent::Resize { .. } | Intent::Gather => Scope::All,
            Intent::Record | Intent::Seat { .. } => Scope::Nothing,
            Intent::Delete => Scope::Closing,
        }
    }
}

/// What a site is ready to say about its share when a round asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Offer<A = i64> {
    /// The part of the share to keep out of the round and go on serving from; the rest is set aside.
    pub kept: A,
    /// What was given to other sites less what was received; see [`Line::away`].
    pub away: A,
    /// What was spent here less what came back; see [`Line::used`].
    pub used: Option<A>,
    /// The amount without which requests that wait here cannot be served.
    pub needed: A,
    /// The level to hold afterwards, until the next epoch: `needed` and the forecast together, not the difference to
    /// what is there.
    pub wanted: A,
    /// True if the entity is not to be deleted, as something here rests on it.
    pub stays: bool,
}

/// What the site is doing in the current instance. Volatile: a restart is idle.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role<A = i64> {
    /// Nothing of its own under way (it may still be in another leader's round).
    #[default]
    Idle,
    /// Asking for reports.
    Electing {
        /// The site's ballot; always the highest that it has promised.
        ballot: Ballot,
        /// Why it leads.
        intent: Intent<A>,
        /// The reports that came in, its own first; one for each site, the first counts.
        reports: Vec<Report<A>>,
    },
    /// Asking for votes.
    Collecting {
        /// The site's ballot. The value accepted last at the site is the one that it built at this ballot.
        ballot: Ballot,
        /// The sites that accepted, this one included.
        votes: Vec<SiteId>,
    },
}

/// What a step did, for the caller to persist and to send.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step<A = i64> {
    /// True if the durable state changed; it must be persisted before the messages leave.
    pub changed: bool,
    /// True if an instance was adopted: the share may have moved.
    pub adopted: bool,
    /// True if the message fitted no rule, or broke one.
    pub ignored: bool,
    /// Why what was to be reclaimed is not, where the books of all sites say so.
    pub unfit: Option<Unfit<A>>,
    /// The messages to be sent, with the sites that they are for.
    pub sends: Vec<(SiteId, Message<A>)>,
}

/// One entity's agreement at one site. In memory the share comes first, as it is looked at most.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct Avantan<A = i64> {
    /// What survives a crash.
    pub share: Share<A>,
    /// What this site does in the next instance.
    role: Role<A>,
    /// What it does in a round among a subset.
    pub(super) subset: subset::Role<A>,
    /// The highest ballot number that a refusal told of, in the next instance: a hint for the next ballot.
    refused: u64,
    /// What drivers have to know to reach the site that a change of members lets join which is led from here.
    pub label: Arc<str>,
}

/// The number of members that have promised the ballot which asked for these reports.
fn promises<A>(reports: &[Report<A>], site: Membership) -> usize {
    reports.iter().filter(|report| report.promises && site.is_present(report.line.site)).count()
}

/// An election as its leader asks for it.
#[derive(Clone, Copy)]
struct Election {
    /// The instance: the one after the last that this site applied.
    instance: u64,
    /// Its ballot, which names the leader.
    ballot: Ballot,
    /// How much the others are asked to set aside.
    scope: Scope,
}

impl<A: Amount> Avantan<A> {
    /// The agreement as it was left on storage.
    pub fn restore(share: Share<A>) -> Self {
        Self { share, ..Self::default() }
    }

    /// What this site is doing.
    pub fn role(&self) -> &Role<A> {
        &self.role
    }

    /// What this site is doing in a round among a subset.
    pub fn role_in_subset(&self) -> &subset::Role<A> {
        &self.subset
    }

    /// True if it collects votes for a ballot that some site will not vote for, having promised a higher one.
    pub fn is_outbid(&self) -> bool {
        matches!(&self.role, Role::Collecting { ballot, .. } if ballot.number <= self.refused)
    }

    /// Takes over a value that others have accepted in the next instance, as if this site had voted for it at `ballot`.
    pub(super) fn take_over(&mut self, site: Membership, ballot: Ballot, value: Value<A>) {
        if !self.is_acceptable(site, &value) {
            return;
        }

        // Of several, that of the highest ballot is the one that may be chosen.
        let round = self.promise(ballot);
        if round.accepted.as_ref().is_none_or(|(accepted, _)| *accepted < ballot) {
            round.accepted = Some((ballot, value));
        }
        self.check();
    }

    /// Promises in the next instance what another site has promised there, or more; the round.
    pub(super) fn promise(&mut self, ballot: Ballot) -> &mut Round<A> {
        let instance = self.share.applied + 1;
        let round = self.share.round.get_or_insert_with(|| Box::new(Round::new(instance, ballot)));
        round.promised = round.promised.max(ballot);
        round
    }

    /// True if it leads an election that has a report of `site` in an incarnation before this one.
    pub(super) fn has_report_before(&self, site: SiteId, incarnation: Incarnation) -> bool {
        let Role::Electing { reports, .. } = &self.role else { return false };
        reports.iter().any(|report| report.line.site == site && report.line.incarnation < incarnation)
    }

    /// True if it has offered or accepted something in an instance that is not decided yet: only the outcome, or the
    /// withdrawal of the one ballot that it offered to, ends that. A mere promise binds nothing, nor does an offer where
    /// there is nothing to offer, because the entity does not exist: the site that wanted to create it may be gone for good.
    pub fn in_round(&self) -> bool {
        let exists = self.share.table.limit.is_some();
        let round = self.share.round.as_ref();
        round.is_some_and(|round| round.accepted.is_some() || (round.first.is_some() && exists))
    }

    /// True if nothing is under way: it leads no round, and is in nobody's.
    pub fn is_idle(&self) -> bool {
        self.role == Role::Idle && !self.in_round()
    }

    /// True if it is in a round that it does not lead.
    pub fn follows(&self) -> bool {
        self.role == Role::Idle && self.in_round()
    }

    /// True if it has offered something to a round that it does not lead, and did not close for it: a round that is to close it can only come
    /// to something once that one has ended.
    pub fn has_offered_open(&self) -> bool {
        self.follows() && self.share.round.as_ref().is_some_and(|round| round.first.is_some() && !round.closing)
    }

    /// True if this incarnation may vote: the first may, a later one once a decided instance recorded it, or once every other
    /// site has said that no vote of its predecessors counts ([`Share::fresh`]). A site without an incarnation may not.
    pub fn may_vote(&self, site: Membership) -> bool {
        let cleared = self.share.fresh == site.incarnation && site.incarnation > Incarnation(0);
        cleared || self.may_offer(site)
    }

    /// True if rounds know this incarnation: only then its share takes part.
    fn may_offer(&self, site: Membership) -> bool {
        site.incarnation == Incarnation(1)
            || self.share.table.settled(site.me).is_some_and(|last| last.row.incarnation == site.incarnation)
    }

    /// Leads: a new round, or a higher ballot of the round that the site is in. Does nothing where it may not vote.
    pub fn start(&mut self, site: Membership, intent: Intent<A>, offer: Offer<A>, step: &mut Step<A>) {
        if !self.may_vote(site) {
            step.ignored = true;
            return;
        }

        // Higher than what this site promised, or it would break that promise by its own ballot.
        let instance = self.share.applied + 1;
        let promised = self.share.round.as_ref().map_or(0, |round| round.promised.number);
        let ballot = Ballot { number: promised.max(self.refused) + 1, site: site.me };
        let asked = Election { instance, ballot, scope: intent.scope(self.share.table.limit) };
        let line = self.join(site, asked, offer);

        // The leader is a site of its own round: it promises and reports as the others do, before they are asked.
        let accepted = self.share.round.as_ref().and_then(|round| round.accepted.clone());
        self.role = Role::Electing { ballot, intent, reports: vec![Report { line, accepted, promises: true }] };
        step.changed = true;
        let election = Message::Election { instance, ballot, scope: asked.scope, table: self.share.table.clone() };
        step.sends.extend(site.others().map(|to| (to, election.clone())));
        self.build_if_all_reported(site, step);
        self.check();
    }

    /// Handles a message of this entity. `offer` is what the site would say to a round now.
    pub fn handle(
        &mut self,
        site: Membership,
        from: SiteId,
        message: Message<A>,
        offer: impl FnOnce(&Share<A>) -> Offer<A>,
        step: &mut Step<A>,
    ) {
        match message {
            Message::Election { instance, ballot, scope, table } => {
                // The table proves every instance before this one: never report a state from before it.
                let is_news = instance > self.share.applied + 1;
                if is_news {
                    self.adopt(site, instance - 1, table, step);
                }
                if instance <= self.share.applied {
                    return self.tell_decided(from, step);
                }
                let mut offer = offer(&self.share);

                // By the incarnations that the earlier table knows.
                if is_news {
                    offer.used = None;
                }
                self.elect(site, from, Election { instance, ballot, scope }, offer, step);
            }
            Message::Report { instance, ballot, report } => {
                self.hear_report(site, from, instance, ballot, report, step)
            }
            Message::Accept { instance, ballot, value } => self.vote(site, from, instance, ballot, value, step),
            Message::Accepted { instance, ballot } => self.hear_vote(site, from, instance, ballot, step),
            Message::Refuse { instance, promised } => self.hear_refusal(site, instance, promised, step),
            Message::Decided { instance, table } => self.adopt(site, instance, table, step),
            Message::Withdraw { instance, ballot } => self.free_offer(instance, ballot, step),
            // A voter that missed instances asks for them.
            Message::Behind { applied } if applied < self.share.applied => self.tell_decided(from, step),
            Message::Behind { .. } => {}
        }

        self.check();
    }

    /// A leader asks for a promise and a line in the next instance.
    fn elect(&mut self, site: Membership, from: SiteId, asked: Election, offer: Offer<A>, step: &mut Step<A>) {
        let Election { instance, ballot, .. } = asked;
        if !self.may_vote(site) {
            // Without a promise and with nothing set aside, only so that the leader can record this incarnation.
            let line = self.line(site, A::default(), offer);
            let report = Report { line, accepted: None, promises: false };
            return step.sends.push((from, Message::Report { instance, ballot, report }));
        }

        if let Some(round) = &self.share.round
            && ballot <= round.promised
        {
            // The same election again: the first report may have been lost, and it still stands.
            if ballot == round.promised && ballot.site == from {
                let line = self.line(site, round.held, offer);
                let report = Report { line, accepted: round.accepted.clone(), promises: true };
                return step.sends.push((from, Message::Report { instance, ballot, report }));
            }
            return step.sends.push((from, Message::Refuse { instance, promised: round.promised }));
        }

        // An election of this site's own ends with the promise: its reports could build a value below that.
        if matches!(self.role, Role::Electing { .. }) {
            self.role = Role::Idle;
        }

        // Paxos, phase 1: the promise, what was accepted before, and what is set aside become durable before the report
        // leaves, or a crash could spend what the leader counts on.
        let line = self.join(site, asked, offer);
        let accepted = self.share.round.as_ref().and_then(|round| round.accepted.clone());
        let report = Report { line, accepted, promises: true };
        step.changed = true;
        step.sends.push((from, Message::Report { instance, ballot, report }));
    }

    /// An answer to this site's election; the first of each site counts.
    fn hear_report(
        &mut self,
        site: Membership,
        from: SiteId,
        instance: u64,
        ballot: Ballot,
        report: Report<A>,
        step: &mut Step<A>,
    ) {
        let expected = self.share.applied + 1;
        let accepted = report.accepted.as_ref();
        let sound = report.line.held.is_sound() && accepted.is_none_or(|(_, value)| self.is_acceptable(site, value));
        let Role::Electing { ballot: ours, reports, .. } = &mut self.role else {
            step.ignored = true;
            return;
        };

        // A second report of a site would count what it offers twice, and the site as two of a majority.
        let known = reports.iter().any(|other| other.line.site == from);
        if instance != expected || ballot != *ours || report.line.site != from || known || !sound {
            step.ignored = true;
            return;
        }
        reports.push(report);
        self.build_if_all_reported(site, step);
    }

    /// A leader asks for a vote.
    fn vote(
        &mut self,
        site: Membership,
        from: SiteId,
        instance: u64,
        ballot: Ballot,
        value: Value<A>,
        step: &mut Step<A>,
    ) {
        if instance <= self.share.applied {
            return self.tell_decided(from, step);
        }
        if instance > self.share.applied + 1 {
            return step.sends.push((from, Message::Behind { applied: self.share.applied }));
        }

        // A forgotten vote of an earlier incarnation may be for another value of this instance.
        if !self.may_vote(site) {
            step.ignored = true;
            return;
        }
        if let Some(round) = &self.share.round
            && ballot < round.promised
        {
            return step.sends.push((from, Message::Refuse { instance, promised: round.promised }));
        }

        // Whatever the leader has computed, it is not chosen with this vote if it makes or loses something, or takes from this
        // share what it has not offered.
        if !self.is_acceptable(site, &value) {
            step.ignored = true;
            return;
        }

        // Not before all that it knows of is decided among the members of now: with the next change those of before would have no
        // site in common with the majorities to come.
        if matches!(value.lifecycle, Lifecycle::Seat { .. }) && !site.settled {
            step.ignored = true;
            return;
        }

        // Paxos, phase 2. A site that did not report holds nothing aside and goes on serving, but votes.
        let round = self.share.round.get_or_insert_with(|| Box::new(Round::new(instance, ballot)));
        round.promised = ballot;
        round.accepted = Some((ballot, value));
        if matches!(&self.role, Role::Electing { ballot: ours, .. } | Role::Collecting { ballot: ours, .. } if *ours < ballot)
        {
            self.role = Role::Idle;
        }
        step.changed = true;
        step.sends.push((from, Message::Accepted { instance, ballot }));
    }

    /// A vote for this site's value.
    fn hear_vote(&mut self, site: Membership, from: SiteId, instance: u64, ballot: Ballot, step: &mut Step<A>) {
        let expected = self.share.applied + 1;
        let Role::Collecting { ballot: ours, votes } = &mut self.role else {
            step.ignored = true;
            return;
        };
        if instance != expected || ballot != *ours || votes.contains(&from) {
            step.ignored = true;
            return;
        }
        votes.push(from);
        self.decide_if_chosen(site, step);
    }

    /// A site has promised a higher ballot than this site's.
    fn hear_refusal(&mut self, site: Membership, instance: u64, promised: Ballot, step: &mut Step<A>) {
        if instance != self.share.applied + 1 {
            step.ignored = true;
            return;
        }

        // An election may be given up for that. A value that is out may not: others may have accepted it already.
        self.refused = self.refused.max(promised.number);
        if matches!(&self.role, Role::Electing { ballot, .. } if *ballot < promised) {
            self.withdraw(site, step);
        }
    }

    /// The leader of this ballot never built a value and never will at this ballot: if this site's line was reported to that
    /// ballot alone, the report is void.
    fn free_offer(&mut self, instance: u64, ballot: Ballot, step: &mut Step<A>) {
        let Some(round) = &mut self.share.round else {
            step.ignored = true;
            return;
        };

        // The line by which a site forgets an offer, only when it may: with a higher promise, a later leader has the offer too, and may
        // have built a value with it.
        if round.instance == instance && round.promised == ballot && round.first == Some(ballot) {
            round.take_back();
            step.changed = true;
        }
    }

    /// Builds the value once enough sites have reported; the caller says when to stop waiting for the rest. Returns false and
    /// does nothing without promises from a majority.
    pub fn build(&mut self, site: Membership, step: &mut Step<A>) -> bool {
        let Role::Electing { ballot, intent, reports } = &self.role else { return false };
        let (ballot, intent) = (*ballot, *intent);
        let round = self.share.round.as_ref().expect("an electing site has joined its own round");
        assert_eq!(round.promised, ballot, "a site that promises another ballot stops electing");
        if promises(reports, site) < site.majority() {
            return false;
        }

        // Paxos: if anything may have been chosen in this instance, it is the accepted value of the highest ballot.
        let adopted = reports.iter().filter_map(|report| report.accepted.as_ref()).max_by_key(|(ballot, _)| *ballot);
        let value = match adopted {
            Some((_, value)) => value.clone(),
            None => match self.propose(site, intent, reports) {
                Ok(value) if self.is_acceptable(site, &value) => value,
                // The intent came to nothing (another site created it), or a report made no sense.
                proposed => {
                    step.unfit = proposed.err().flatten();
                    self.withdraw(site, step);
                    return true;
                }
            },
        };

        // It is the first that votes, and is bound as every other.
        if matches!(value.lifecycle, Lifecycle::Seat { .. }) && !site.settled {
            self.withdraw(site, step);
            return true;
        }

        // The leader votes first, durably. So whoever asks later what was accepted hears of every value that may be chosen,
        // even if all votes but this one are lost; the answer to a new incarnation rests on that.
        let round = self.share.round.as_mut().expect("looked at above");
        round.accepted = Some((ballot, value.clone()));
        self.role = Role::Collecting { ballot, votes: vec![site.me] };
        step.changed = true;
        let accept = Message::Accept { instance: round.instance, ballot, value };
        step.sends.extend(site.others().map(|to| (to, accept.clone())));
        self.decide_if_chosen(site, step);
        self.check();
        true
    }

    /// Asks again for the reports or the votes that are missing.
    pub fn repeat(&self, site: Membership, step: &mut Step<A>) {
        let Some(round) = &self.share.round else { return };
        match &self.role {
            Role::Collecting { ballot, votes } => {
                let Some((_, value)) = &round.accepted else { return };
                for to in site.others().filter(|to| !votes.contains(to)) {
                    let accept = Message::Accept { instance: round.instance, ballot: *ballot, value: value.clone() };
                    step.sends.push((to, accept));
                }
            }
            // The table goes along: who missed instances takes it up before it reports to the next.
            Role::Electing { ballot, intent, reports } => {
                for to in site.others().filter(|to| !reports.iter().any(|report| report.line.site == *to)) {
                    let election = Message::Election {
                        instance: round.instance,
                        ballot: *ballot,
                        scope: intent.scope(self.share.table.limit),
                        table: self.share.table.clone(),
                    };
                    step.sends.push((to, election));
                }
            }
            Role::Idle => {}
        }
    }

    /// Gives up an election. Nothing was ever sent at this ballot but the election itself, so what was reported to it
    /// alone is free again, here and everywhere.
    pub fn withdraw(&mut self, site: Membership, step: &mut Step<A>) {
        let Role::Electing { ballot, .. } = self.role else { return };
        self.role = Role::Idle;
        let Some(round) = &mut self.share.round else { return };
        if round.promised != ballot || round.accepted.as_ref().is_some_and(|(accepted, _)| *accepted == ballot) {
            return;
        }

        // The promise stays: a later election of this site has a higher ballot, so none can build a value at this one after
        // the withdrawal is durable, and has left.
        if round.first == Some(ballot) {
            round.take_back();
        }
        step.changed = true;
        let withdraw = Message::Withdraw { instance: round.instance, ballot };
        step.sends.extend(site.others().map(|to| (to, withdraw.clone())));
        self.check();
    }

    /// Sends the message that brings `to` up to date.
    pub fn tell_decided(&self, to: SiteId, step: &mut Step<A>) {
        step.sends.push((to, Message::Decided { instance: self.share.applied, table: self.share.table.clone() }));
    }

    /// Promises the ballot and sets a part of the share aside, unless something is set aside for this instance already: a line
    /// once reported stands for every ballot of the instance.
    fn join(&mut self, site: Membership, asked: Election, offer: Offer<A>) -> Line<A> {
        let nothing = A::default();

        // A share is in one round at a time. To the majority's it offers nothing, and does not close, while it is in one among a subset:
        // that one counts on what is set aside, and may still add to the share.
        let is_in_subset = self.share.part().is_some();
        let share = if self.may_offer(site) && !is_in_subset { self.share.tokens } else { nothing };
        let round = self.share.round.get_or_insert_with(|| Box::new(Round::new(asked.instance, asked.ballot)));
        assert_eq!(round.instance, asked.instance, "an election joined in another instance than the next");
        round.promised = asked.ballot;

        // Two leaders may count on the line. Were it another for the second, the value of the first could take what is no
        // longer set aside.
        if round.first.is_none() {
            round.first = Some(asked.ballot);
            round.closing = asked.scope == Scope::Closing && !is_in_subset && !offer.stays;
            round.held = match asked.scope {
                Scope::Nothing => nothing,
                // It goes on serving.
                Scope::Closing if offer.stays => nothing,
                // What is over is taken from the shares, and nobody serves from them until it is gone.
                Scope::Spare if !self.share.table.is_over() => share.spare(offer.kept),
                Scope::Spare | Scope::All | Scope::Closing => share,
            };
        }
        let held = round.held;
        self.line(site, held, offer)
    }

    /// What this site reports, with `held` set aside.
    fn line(&self, site: Membership, held: A, offer: Offer<A>) -> Line<A> {
        Line {
            site: site.me,
            incarnation: site.incarnation,
            share: self.share.number,
            held,
            kept: self.share.tokens.minus(held),
            away: offer.away,
            // While a round among a subset is open, what it moves may be applied at one site and not yet at another.
            used: offer.used.filter(|_| self.share.part().is_none()),
            closing: self.share.round.as_ref().is_some_and(|round| round.closing),
            needed: offer.needed,
            wanted: offer.wanted,
        }
    }

    fn build_if_all_reported(&mut self, site: Membership, step: &mut Step<A>) {
        let Role::Electing { reports, .. } = &self.role else { return };
        if reports.iter().filter(|report| site.is_present(report.line.site)).count() == site.count() {
            self.build(site, step);
        }
    }

    /// The value for an instance in which nothing is accepted, or nothing if the intent makes no sense (any more), and why.
    fn propose(
        &self,
        site: Membership,
        intent: Intent<A>,
        reports: &[Report<A>],
    ) -> Result<Value<A>, Option<Unfit<A>>> {
        let lines = reports.iter().map(|report| &report.line);
        let mut lines: Vec<Line<A>> = lines.filter(|line| site.is_present(line.site)).cloned().collect();
        lines.sort_by_key(|line| line.site);
        let exists = self.share.table.limit.is_some();
        let settled = |lifecycle| {
            let table = &self.share.table;
            let settled = table.settle(lines.iter().map(|line| line.held), lifecycle);
            settled.map(|(after, _)| (lifecycle, A::reallocate(&lines, after))).ok_or(None)
        };
        let (lifecycle, after) = match intent {
            Intent::Move | Intent::Gather | Intent::Record if exists => settled(Lifecycle::Keep)?,
            Intent::Record => (Lifecycle::Keep, vec![A::default(); lines.len()]),
            Intent::Seat { site: changed, gone } if !exists => {
                (Lifecycle::Seat { site: changed, gone }, vec![A::default(); lines.len()])
            }
            Intent::Resize { limit } if exists => settled(Lifecycle::Resize { limit })?,
            // Every site says what it accounts for, or what it has would be taken for what was lost. So does one that was a member when the
            // election began: what it had is lost from when a round has recorded that it is gone, and an operator is to say what of it is
            // in use.
            Intent::Reclaim { in_use } if exists && lines.len() == site.count() => {
                if site.gone.iter().any(|gone| self.share.table.recorded(*gone) < Incarnation::GONE) {
                    return Err(None);
                }
                settled(self.share.table.reclaim(&lines, in_use)?)?
            }
            Intent::Create { limit, charter } if !exists => {
                (Lifecycle::Create { limit, charter }, A::reallocate(&lines, A::total([limit].into_iter())))
            }
            // Every site has set everything aside and refuses new grants, or there would be grants after the deletion.
            Intent::Delete if exists => {
                if lines.len() < site.count() || !lines.iter().all(|line| line.closing) {
                    return Err(None);
                }

                // What is in use of it is in use of the one above it as well, where nobody could give it back any more. Who refills
                // gives nothing back.
                let charter = self.share.table.charter;
                if charter.parent.is_some() && charter.refill == 0 {
                    let amount = self.share.table.in_use(&lines).ok_or(None)?;
                    if amount > A::default() {
                        return Err(Some(Unfit::InUse { amount }));
                    }
                }
                (Lifecycle::Delete, vec![A::default(); lines.len()])
            }
            _ => return Err(None),
        };

        let mut rows: Vec<_> = lines
            .iter()
            .zip(after)
            .map(|(line, after)| Row {
                site: line.site,
                incarnation: line.incarnation,
                share: line.share,
                before: line.held,
                kept: if line.kept.is_sound() { line.kept } else { A::default() },
                away: line.away,
                after,
            })
            .collect();

        // In place of who is gone, a later incarnation: so no round counts on it, and what it had counts as lost.
        for &gone in site.gone.iter().filter(|gone| self.share.table.recorded(**gone) < Incarnation::GONE) {
            let at = rows.partition_point(|row: &Row<A>| row.site < gone);
            rows.insert(at, Row { site: gone, incarnation: Incarnation::GONE, ..Row::default() });
        }
        let label = if let Lifecycle::Seat { .. } = lifecycle { self.label.clone() } else { Arc::default() };
        Ok(Value { lifecycle, membership: site.number, label, rows })
    }

    /// What an acceptor checks: the value fits the table before it, conserves, and names this site with what it offered.
    fn is_acceptable(&self, site: Membership, value: &Value<A>) -> bool {
        if !value.fits(&self.share.table, site) {
            return false;
        }
        let Some(row) = value.rows.iter().find(|row| row.site == site.me) else { return true };

        // A row of a predecessor takes what is lost anyway. One of a later incarnation would not be this site's to judge.
        if row.incarnation != site.incarnation {
            return row.incarnation < site.incarnation;
        }
        let round = self.share.round.as_ref().filter(|round| round.first.is_some());
        let offered = round.map_or(A::default(), |round| round.held);
        row.share == self.share.number && row.before == offered
    }

    fn decide_if_chosen(&mut self, site: Membership, step: &mut Step<A>) {
        let Role::Collecting { votes, .. } = &self.role else { return };

        // Of a member that is gone by now no vote counts: its vote may be older than the change, and those of the others, who were asked
        // again, newer.
        if votes.iter().filter(|vote| site.is_present(**vote)).count() < site.majority() {
            return;
        }

        // A majority has accepted the value, durably: any later leader of this instance hears of it, so the outcome can no
        // longer change.
        let round = self.share.round.as_ref().expect("a collecting site is in a round");
        let (_, value) = round.accepted.as_ref().expect("a collecting site has accepted its own value");
        let instance = round.instance;
        let table = self.share.table.after(site, instance, value);
        self.adopt(site, instance, table.clone(), step);
        let decided = Message::Decided { instance, table };
        step.sends.extend(site.others().map(|to| (to, decided.clone())));
    }

    /// Takes over the outcome of every instance up to `instance`: applies the row that names this share, if it is the
    /// next one, and forgets the round, in one write.
    fn adopt(&mut self, site: Membership, instance: u64, table: Table<A>, step: &mut Step<A>) {
        if instance <= self.share.applied {
            step.ignored = true;
            return;
        }

        // The ballots of an instance that is over mean nothing in the next.
        self.share.adopt(site, instance, table);
        self.role = Role::Idle;
        if self.share.part().is_none() {
            self.subset = subset::Role::Idle;
        }
        self.refused = 0;
        step.changed = true;
        step.adopted = true;
    }

    /// Asserts what holds between any two steps.
    pub(super) fn check(&self) {
        self.share.check();
        let part = self.share.part();
        match &self.subset {
            subset::Role::Idle => {}
            subset::Role::Electing { .. } => {
                let waits = part.is_some_and(|part| part.accepted.is_none());
                assert!(waits, "a site asks for reports to a round that it is not in");
            }
            subset::Role::Collecting { .. } => {
                let has_accepted = part.is_some_and(|part| part.accepted.is_some());
                assert!(has_accepted, "a site collects votes for a value that it has not accepted itself");
            }
        }

        // Roles are of this life, and rounds are durable: after a crash a site is in a round that it does not lead.
        let round = self.share.round.as_ref();
        match &self.role {
            Role::Idle => {}
            Role::Electing { ballot, .. } => {
                let is_its = round.is_some_and(|round| round.promised == *ballot);
                assert!(is_its, "a site leads an election at another ballot than it has promised");
            }
            Role::Collecting { ballot, .. } => {
                let accepted = round.and_then(|round| round.accepted.as_ref()).map(|(accepted, _)| *accepted);
                assert_eq!(
                    accepted,
                    Some(*ballot),
                    "a site collects votes for a value that it has not accepted itself"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::avantan::{Row, Settled, Share, Table};
    use crate::id::Incarnation;

    /// Rounds that it was not asked by may have ended the entity.
    #[test]
    fn site_has_nothing_free_before_a_round_knows_its_incarnation_and_that_it_joined() {
        let members: Vec<SiteId> = (0..3).map(|region| SiteId::new(region, 0)).collect();
        let seen = |membership: u64, recorded: u32, since: u64, incarnation: u32| {
            let row = Row { site: members[0], incarnation: Incarnation(recorded), ..Row::default() };
            let mut table = Table::from_parts(1, 1, Some(60), vec![Settled { instance: 1, row }]);
            table.membership = membership;
            let share = Share { tokens: 10, number: 1, applied: 1, table, ..Share::default() };
            share.free(Membership {
                number: 2,
                since,
                ..Membership::first(members[0], Incarnation(incarnation), &members)
            })
        };
        assert_eq!([seen(0, 1, 0, 1), seen(2, 1, 2, 1), seen(1, 3, 1, 3)], [10; 3]);
        assert_eq!([seen(1, 1, 2, 1), seen(0, 1, 1, 1)], [0; 2], "it has joined since");
        assert_eq!([seen(0, 1, 0, 2), seen(0, 2, 0, 3)], [0; 2], "its incarnation is not recorded");
    }

    /// Six sites, of which one is declared lost while a value is out. What was asked for before the change is asked for again after it, so
    /// that the votes that a leader has may be older and newer than it. Three of the five that are left have not voted yet: they may choose
    /// another value.
    #[test]
    fn vote_of_a_member_that_is_gone_by_now_does_not_count() {
        let members: Vec<SiteId> = (0..6).map(|region| SiteId::new(region, 0)).collect();
        let row = |&site: &SiteId| Row { site, incarnation: Incarnation(1), after: 10, ..Row::default() };
        let rows = members.iter().map(|site| Settled { instance: 1, row: row(site) }).collect();
        let table = Table::from_parts(1, 1, Some(60), rows);
        let share = Share { tokens: 10, number: 1, applied: 1, table, ..Share::default() };
        let mut sites: Vec<Avantan> = members.iter().map(|_| Avantan::restore(share.clone())).collect();
        let gone = [members[1]];
        let before = |at: usize| Membership::first(members[at], Incarnation(1), &members);
        let after = |at: usize| Membership { number: 1, gone: &gone, ..before(at) };
        let sent_to = |step: Step, to: usize| {
            let mut sends = step.sends.into_iter().filter(|(site, _)| *site == members[to]);
            sends.next().expect("something was sent to it").1
        };

        // The leader has the reports of a majority of six, and builds.
        let mut step = Step::default();
        sites[0].start(before(0), Intent::Move, Offer::default(), &mut step);
        let election = sent_to(step, 1);
        for at in 1..4 {
            let mut step = Step::default();
            sites[at].handle(before(at), members[0], election.clone(), |_| Offer::default(), &mut step);
            let report = sent_to(step, 0);
            sites[0].handle(before(0), members[at], report, |_| Offer::default(), &mut Step::default());
        }
        let mut step = Step::default();
        assert!(sites[0].build(before(0), &mut step));
        let accept = sent_to(step, 1);

        // The site that is lost has voted before anybody knew, the others after.
        let mut has_decided = |at: usize, leader: Membership, voter: Membership| {
            let mut step = Step::default();
            sites[at].handle(voter, members[0], accept.clone(), |_| Offer::default(), &mut step);
            let accepted = sent_to(step, 0);
            let mut step = Step::default();
            sites[0].handle(leader, members[at], accepted, |_| Offer::default(), &mut step);
            step.adopted
        };
        assert!(!has_decided(1, before(0), before(1)));
        assert!(!has_decided(2, after(0), after(2)), "the vote of a member that is gone counts");
        assert!(has_decided(3, after(0), after(3)), "three of five have voted");
    }
}
