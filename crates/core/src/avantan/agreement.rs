//! One entity's agreement at one site: what it takes part in, leads and has decided. The rules are in the essay of
//! [`super`](crate::avantan).

use super::member::Membership;
use super::message::{Line, Message, Report, Scope};
use super::reallocate::{Bound, reallocate};
use super::state::{Round, Share, Table};
use super::value::{Ballot, Lifecycle, Row, Value};
use crate::id::{Incarnation, SiteId};

/// Why a round is led.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Intent {
    /// Move tokens to where they are wanted; also to finish what a silent leader began.
    Move,
    /// The same, and no site keeps tokens out of the round: one where they did has not met what requests wait for.
    Gather,
    /// Record new incarnations. No token moves, so none is set aside.
    Record,
    /// Create the entity with this limit.
    Create {
        /// How many tokens there shall be.
        limit: i64,
    },
    /// Delete the entity; needs a line from every member.
    Delete,
}

impl Intent {
    /// How much the sites are to set aside.
    fn scope(self) -> Scope {
        match self {
            Intent::Move | Intent::Create { .. } => Scope::Spare,
            Intent::Gather => Scope::All,
            Intent::Record => Scope::Nothing,
            Intent::Delete => Scope::Closing,
        }
    }
}

/// What a site is ready to say about its share when a round asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Offer {
    /// Tokens to keep out of the round and go on serving from; the rest is set aside.
    pub kept: i64,
    /// Tokens given to other sites less tokens received, modulo 2⁶⁴: over all sites it adds up to what is under way.
    pub away: i64,
    /// Tokens without which requests that wait here cannot be served.
    pub needed: i64,
    /// The level to hold afterwards, until the next epoch: `needed` and the forecast together, not the difference to
    /// what is there.
    pub wanted: i64,
}

/// What the site is doing in the current instance. Volatile: a restart is idle.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role {
    /// Nothing of its own under way (it may still be in another leader's round).
    #[default]
    Idle,
    /// Asking for reports.
    Electing {
        /// Its ballot.
        ballot: Ballot,
        /// Why.
        intent: Intent,
        /// What came in, its own line first; one for each site, the first counts.
        reports: Vec<Report>,
    },
    /// Asking for votes.
    Collecting {
        /// Its ballot.
        ballot: Ballot,
        /// The sites that accepted.
        votes: Vec<SiteId>,
    },
}

/// What a step did, for the caller to persist and to send.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The durable state changed; it must be persisted before the messages leave.
    pub changed: bool,
    /// An instance was adopted: the share may have moved.
    pub adopted: bool,
    /// The message fitted no rule, or broke one.
    pub ignored: bool,
    /// To be sent.
    pub sends: Vec<(SiteId, Message)>,
}

/// One entity's agreement at one site.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Avantan {
    /// What survives a crash.
    pub share: Share,
    role: Role,
    /// The highest ballot number that a refusal told of, a hint for the next ballot.
    refused: u64,
}

impl Avantan {
    /// The agreement as it was left on storage.
    pub fn restore(share: Share) -> Self {
        Self { share, role: Role::Idle, refused: 0 }
    }

    /// What this site is doing.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Whether it collects votes for a ballot that somebody will not vote for, having promised a higher one.
    pub fn is_outbid(&self) -> bool {
        matches!(&self.role, Role::Collecting { ballot, .. } if ballot.number <= self.refused)
    }

    /// Takes over a value that others have accepted in the next instance, as if this site had voted for it at `ballot`.
    pub(super) fn take_over(&mut self, site: Membership, ballot: Ballot, value: Value) {
        if !self.is_acceptable(site, &value) {
            return;
        }
        let instance = self.share.applied + 1;
        let round = self.share.round.get_or_insert_with(|| Round::new(instance, ballot));
        round.promised = round.promised.max(ballot);
        if round.accepted.as_ref().is_none_or(|(accepted, _)| *accepted < ballot) {
            round.accepted = Some((ballot, value));
        }
    }

    /// Whether it leads an election that has a report of `site` in an incarnation before this one.
    pub(super) fn has_report_before(&self, site: SiteId, incarnation: Incarnation) -> bool {
        let Role::Electing { reports, .. } = &self.role else { return false };
        reports.iter().any(|report| report.line.site == site && report.line.incarnation < incarnation)
    }

    /// Whether it has offered or accepted something in an instance that is not decided yet: only the outcome, or the
    /// withdrawal of the one ballot that it offered to, ends that. A mere promise binds nothing, nor does an offer where
    /// there is nothing to offer, because the entity does not exist: whoever wanted to create it may be gone for good.
    pub fn in_round(&self) -> bool {
        let exists = self.share.table.limit.is_some();
        let round = self.share.round.as_ref();
        round.is_some_and(|round| round.accepted.is_some() || (round.first.is_some() && exists))
    }

    /// Whether this incarnation may vote: the first may, a later one once a decided instance recorded it, or once every other
    /// site has said that no vote of its predecessors counts ([`Share::fresh`]). A site without an incarnation may not.
    pub fn may_vote(&self, site: Membership) -> bool {
        let cleared = self.share.fresh == site.incarnation && site.incarnation > Incarnation(0);
        cleared || self.may_offer(site)
    }

    /// Whether rounds know this incarnation: only then its tokens take part.
    fn may_offer(&self, site: Membership) -> bool {
        site.incarnation == Incarnation(1)
            || self.share.table.settled(site.me).is_some_and(|last| last.row.incarnation == site.incarnation)
    }

    /// Leads: a new round, or a higher ballot of the round that the site is in. Does nothing where it may not vote.
    pub fn start(&mut self, site: Membership, intent: Intent, offer: Offer, step: &mut Step) {
        if !self.may_vote(site) {
            step.ignored = true;
            return;
        }
        let instance = self.share.applied + 1;
        let promised = self.share.round.as_ref().map_or(0, |round| round.promised.number);
        let ballot = Ballot { number: promised.max(self.refused) + 1, site: site.me };
        let scope = intent.scope();
        let line = self.join(site, instance, ballot, scope, offer);
        let accepted = self.share.round.as_ref().and_then(|round| round.accepted.clone());
        self.role = Role::Electing { ballot, intent, reports: vec![Report { line, accepted, promises: true }] };
        step.changed = true;
        let election = Message::Election { instance, ballot, scope, table: self.share.table.clone() };
        step.sends.extend(site.others().map(|to| (to, election.clone())));
        self.build_if_all_reported(site, step);
    }

    /// Handles a message of this entity. `offer` is what the site would say to a round now.
    pub fn handle(
        &mut self,
        site: Membership,
        from: SiteId,
        message: Message,
        offer: impl FnOnce(&Share) -> Offer,
        step: &mut Step,
    ) {
        match message {
            Message::Election { instance, ballot, scope, table } => {
                // The table proves every instance before this one: never report a state from before it.
                if instance > self.share.applied + 1 {
                    self.adopt(site, instance - 1, table, step);
                }
                if instance <= self.share.applied {
                    return self.tell_decided(from, step);
                }
                let offer = offer(&self.share);
                self.elect(site, from, instance, ballot, scope, offer, step);
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
    }

    /// A leader asks for a promise and a line in the next instance.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    fn elect(
        &mut self,
        site: Membership,
        from: SiteId,
        instance: u64,
        ballot: Ballot,
        scope: Scope,
        offer: Offer,
        step: &mut Step,
    ) {
        if !self.may_vote(site) {
            // Without a promise and with nothing set aside, only so that the leader can record us.
            let line = self.line(site, 0, offer);
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
        if matches!(self.role, Role::Electing { .. }) {
            self.role = Role::Idle;
        }
        let line = self.join(site, instance, ballot, scope, offer);
        let accepted = self.share.round.as_ref().and_then(|round| round.accepted.clone());
        let report = Report { line, accepted, promises: true };
        step.changed = true;
        step.sends.push((from, Message::Report { instance, ballot, report }));
    }

    /// An answer to our election; the first of each site counts.
    fn hear_report(
        &mut self,
        site: Membership,
        from: SiteId,
        instance: u64,
        ballot: Ballot,
        report: Report,
        step: &mut Step,
    ) {
        let expected = self.share.applied + 1;
        let sound =
            report.line.held >= 0 && report.accepted.as_ref().is_none_or(|(_, value)| self.is_acceptable(site, value));
        let Role::Electing { ballot: ours, reports, .. } = &mut self.role else {
            step.ignored = true;
            return;
        };
        let known = reports.iter().any(|other| other.line.site == from);
        if instance != expected || ballot != *ours || report.line.site != from || known || !sound {
            step.ignored = true;
            return;
        }
        reports.push(report);
        self.build_if_all_reported(site, step);
    }

    /// A leader asks for a vote.
    fn vote(&mut self, site: Membership, from: SiteId, instance: u64, ballot: Ballot, value: Value, step: &mut Step) {
        if instance <= self.share.applied {
            return self.tell_decided(from, step);
        }
        if instance > self.share.applied + 1 {
            return step.sends.push((from, Message::Behind { applied: self.share.applied }));
        }
        if !self.may_vote(site) {
            step.ignored = true;
            return;
        }
        if let Some(round) = &self.share.round
            && ballot < round.promised
        {
            return step.sends.push((from, Message::Refuse { instance, promised: round.promised }));
        }
        if !self.is_acceptable(site, &value) {
            step.ignored = true;
            return;
        }
        // Not a member of the round: holds nothing, goes on serving, but votes.
        let round = self.share.round.get_or_insert_with(|| Round::new(instance, ballot));
        round.promised = ballot;
        round.accepted = Some((ballot, value));
        if matches!(&self.role, Role::Electing { ballot: ours, .. } | Role::Collecting { ballot: ours, .. } if *ours < ballot)
        {
            self.role = Role::Idle;
        }
        step.changed = true;
        step.sends.push((from, Message::Accepted { instance, ballot }));
    }

    /// A vote for our value.
    fn hear_vote(&mut self, site: Membership, from: SiteId, instance: u64, ballot: Ballot, step: &mut Step) {
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

    /// Somebody promised a higher ballot than ours.
    fn hear_refusal(&mut self, site: Membership, instance: u64, promised: Ballot, step: &mut Step) {
        if instance != self.share.applied + 1 {
            step.ignored = true;
            return;
        }
        self.refused = self.refused.max(promised.number);
        if matches!(&self.role, Role::Electing { ballot, .. } if *ballot < promised) {
            self.withdraw(site, step);
        }
    }

    /// The leader of this ballot never built a value and never will at this ballot: if our line was reported to that ballot
    /// alone, the report is void.
    fn free_offer(&mut self, instance: u64, ballot: Ballot, step: &mut Step) {
        let Some(round) = &mut self.share.round else {
            step.ignored = true;
            return;
        };
        if round.instance == instance && round.promised == ballot && round.first == Some(ballot) {
            round.first = None;
            round.held = 0;
            round.closing = false;
            step.changed = true;
        }
    }

    /// Builds the value once enough sites have reported; the caller says when to stop waiting for the rest. Without
    /// promises from a majority, does nothing and says so.
    pub fn build(&mut self, site: Membership, step: &mut Step) -> bool {
        let Role::Electing { ballot, intent, reports } = &self.role else { return false };
        let (ballot, intent) = (*ballot, *intent);
        let round = self.share.round.as_ref().expect("an electing site has joined its own round");
        assert_eq!(round.promised, ballot, "a site that promises another ballot stops electing");
        if reports.iter().filter(|report| report.promises).count() < site.majority() {
            return false;
        }
        // Paxos: if anything may have been chosen in this instance, it is the accepted value of the highest ballot.
        let adopted = reports.iter().filter_map(|report| report.accepted.as_ref()).max_by_key(|(ballot, _)| *ballot);
        let value = match adopted {
            Some((_, value)) => value.clone(),
            None => match self.propose(site, intent, reports) {
                Some(value) if self.is_acceptable(site, &value) => value,
                // The intent came to nothing (somebody else created it), or a report made no sense.
                _ => {
                    self.withdraw(site, step);
                    return true;
                }
            },
        };
        let round = self.share.round.as_mut().expect("looked at above");
        round.accepted = Some((ballot, value.clone()));
        self.role = Role::Collecting { ballot, votes: vec![site.me] };
        step.changed = true;
        let accept = Message::Accept { instance: round.instance, ballot, value };
        step.sends.extend(site.others().map(|to| (to, accept.clone())));
        self.decide_if_chosen(site, step);
        true
    }

    /// Asks again for the votes that are missing.
    pub fn repeat(&self, site: Membership, step: &mut Step) {
        let Some(round) = &self.share.round else { return };
        match &self.role {
            Role::Collecting { ballot, votes } => {
                let Some((_, value)) = &round.accepted else { return };
                for to in site.others().filter(|to| !votes.contains(to)) {
                    let accept = Message::Accept { instance: round.instance, ballot: *ballot, value: value.clone() };
                    step.sends.push((to, accept));
                }
            }
            Role::Electing { ballot, intent, reports } => {
                for to in site.others().filter(|to| !reports.iter().any(|report| report.line.site == *to)) {
                    let election = Message::Election {
                        instance: round.instance,
                        ballot: *ballot,
                        scope: intent.scope(),
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
    pub fn withdraw(&mut self, site: Membership, step: &mut Step) {
        let Role::Electing { ballot, .. } = self.role else { return };
        self.role = Role::Idle;
        let Some(round) = &mut self.share.round else { return };
        if round.promised != ballot || round.accepted.as_ref().is_some_and(|(accepted, _)| *accepted == ballot) {
            return;
        }
        if round.first == Some(ballot) {
            round.first = None;
            round.held = 0;
            round.closing = false;
        }
        step.changed = true;
        let withdraw = Message::Withdraw { instance: round.instance, ballot };
        step.sends.extend(site.others().map(|to| (to, withdraw.clone())));
    }

    /// The message that brings `to` up to date.
    pub fn tell_decided(&self, to: SiteId, step: &mut Step) {
        step.sends.push((to, Message::Decided { instance: self.share.applied, table: self.share.table.clone() }));
    }

    /// Promises `ballot` and sets tokens aside, unless something is set aside for this instance already: a line once
    /// reported stands for every ballot of the instance.
    fn join(&mut self, site: Membership, instance: u64, ballot: Ballot, scope: Scope, offer: Offer) -> Line {
        let tokens = if self.may_offer(site) { self.share.tokens } else { 0 };
        let round = self.share.round.get_or_insert_with(|| Round::new(instance, ballot));
        debug_assert_eq!(round.instance, instance);
        round.promised = ballot;
        if round.first.is_none() {
            round.first = Some(ballot);
            round.closing = scope == Scope::Closing;
            round.held = match scope {
                Scope::Nothing => 0,
                Scope::Spare => tokens - offer.kept.clamp(0, tokens),
                Scope::All | Scope::Closing => tokens,
            };
        }
        let held = round.held;
        self.line(site, held, offer)
    }

    fn line(&self, site: Membership, held: i64, offer: Offer) -> Line {
        Line {
            site: site.me,
            incarnation: site.incarnation,
            share: self.share.number,
            held,
            kept: self.share.tokens - held,
            away: offer.away,
            closing: self.share.round.as_ref().is_some_and(|round| round.closing),
            needed: offer.needed,
            wanted: offer.wanted,
        }
    }

    fn build_if_all_reported(&mut self, site: Membership, step: &mut Step) {
        if matches!(&self.role, Role::Electing { reports, .. } if reports.len() == site.members.len()) {
            self.build(site, step);
        }
    }

    /// The value for a fresh instance, or nothing if the intent makes no sense (any more).
    fn propose(&self, site: Membership, intent: Intent, reports: &[Report]) -> Option<Value> {
        let mut lines: Vec<Line> = reports.iter().map(|report| report.line.clone()).collect();
        lines.sort_by_key(|line| line.site);
        let exists = self.share.table.limit.is_some();
        let (lifecycle, after) = match intent {
            Intent::Move | Intent::Gather | Intent::Record if exists => {
                (Lifecycle::Keep, reallocate(&lines, Bound::Conserve))
            }
            Intent::Create { limit } if !exists => {
                (Lifecycle::Create { limit }, reallocate(&lines, Bound::Total(limit)))
            }
            // Everybody has set everything aside and refuses new grants, or there would be grants after the deletion.
            Intent::Delete if exists => {
                if lines.len() < site.members.len() || !lines.iter().all(|line| line.closing) {
                    return None;
                }
                (Lifecycle::Delete, vec![0; lines.len()])
            }
            _ => return None,
        };
        let rows = lines
            .iter()
            .zip(after)
            .map(|(line, after)| Row {
                site: line.site,
                incarnation: line.incarnation,
                share: line.share,
                before: line.held,
                kept: line.kept.max(0),
                away: line.away,
                after,
            })
            .collect();
        Some(Value { lifecycle, rows })
    }

    /// What an acceptor checks: the value fits the table before it, conserves, and names us with what we offered.
    fn is_acceptable(&self, site: Membership, value: &Value) -> bool {
        if !value.fits(&self.share.table, site.members) {
            return false;
        }
        let Some(row) = value.rows.iter().find(|row| row.site == site.me) else { return true };
        if row.incarnation != site.incarnation {
            return row.incarnation < site.incarnation;
        }
        let offered = self.share.round.as_ref().filter(|round| round.first.is_some()).map_or(0, |round| round.held);
        row.share == self.share.number && row.before == offered
    }

    fn decide_if_chosen(&mut self, site: Membership, step: &mut Step) {
        let Role::Collecting { votes, .. } = &self.role else { return };
        if votes.len() < site.majority() {
            return;
        }
        let round = self.share.round.as_ref().expect("a collecting site is in a round");
        let (_, value) = round.accepted.as_ref().expect("a collecting site has accepted its own value");
        let instance = round.instance;
        let table = self.share.table.after(instance, value);
        self.adopt(site, instance, table.clone(), step);
        let decided = Message::Decided { instance, table };
        step.sends.extend(site.others().map(|to| (to, decided.clone())));
    }

    /// Takes over the outcome of every instance up to `instance`: applies the row that names this share, if it is the
    /// next one, and forgets the round, in one write.
    fn adopt(&mut self, site: Membership, instance: u64, table: Table, step: &mut Step) {
        if instance <= self.share.applied {
            step.ignored = true;
            return;
        }
        self.share.adopt(site, instance, table);
        self.role = Role::Idle;
        self.refused = 0;
        step.changed = true;
        step.adopted = true;
    }
}
