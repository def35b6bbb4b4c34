//! The paper's system: sites that have parts of the limit, and the majority version of Avantan to share them out again.
//!
//! It follows section 4 of the paper. A site that predicts more demand than it has tokens for, or is asked for more than it has,
//! leads a round. Every site that takes part offers **all** its tokens and queues all its clients until the round is decided. The
//! tokens are divided by Algorithm 2: each gets what it wants, and an equal part of the rest.
//!
//! Only what makes the paper's protocol unsafe is mended: instances are numbered and decided in their order, a site keeps what it
//! has promised, reported and accepted until its instance is decided, a decision carries the results, and Algorithm 2 conserves
//! tokens.
//!
//! | message | from, to | why |
//! | --- | --- | --- |
//! | `Election` | leader, all | report what you have; promise this ballot |
//! | `Report` | site, leader | what it offers and wants, and what it has accepted |
//! | `Accept`, `Accepted` | leader, all, and back | vote for the value |
//! | `Decided` | who knows, all | the outcome, and that of all instances before |
//! | `Refuse`, `Behind` | site, leader | a higher ballot is known; an instance is missing |
//! | `Withdraw` | leader, all | nothing was and will be sent at this ballot |
//! | `Count`, `Counted` | site, all, and back | a read of all sites' tokens |
//!
//! **Forecast.** The prediction is that of the net demand of the next epoch, by the product's own estimator (the paper's network is
//! trained on data that are not to be had). An epoch is 5 s, which is the 5 minutes of the paper's data at its speed. A site leads
//! at most one round ahead of need in an epoch.

use std::collections::BTreeMap;

use slackline_core::clock::SECOND;
use slackline_core::stats::{Demand, Rng};

use super::alone::equal_parts;
use super::ask::{Ask, Told};
use super::line::{Line, Waiting};
use super::modelled::{Books, Protocol};
use super::net::{Call, Net};

/// The time for which demand is predicted.
pub(super) const EPOCH: u64 = 5 * SECOND;
/// A leader waits for so long for reports, and then again for votes.
pub(super) const PATIENCE: u64 = SECOND;
/// A site in a round whose outcome does not come leads a higher ballot after so long, and up to a second more.
pub(super) const RECOVERY: u64 = 2 * SECOND;
/// Where somebody still waits after a round, the site leads the next after so long, and up to as long again.
pub(super) const PAUSE: u64 = SECOND / 2;
/// The timer of an acquire whose time is over. Those of rounds are numbered from 1.
pub(super) const LATE: u64 = 0;
/// The timer of a site that may lead again.
pub(super) const SEEK: u64 = u64::MAX;

/// A ballot: its number, and its leader.
type Ballot = (u32, usize);

/// What a site puts into a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    pub(super) site: usize,
    /// Its tokens, all of them.
    pub(super) held: i64,
    /// The number that it wants to have afterwards.
    pub(super) wanted: i64,
}

/// A value with the ballot at which it was accepted.
type Accepted = Option<(Ballot, Vec<Offer>)>;

/// The last decided instance that names a site, and what it changed there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Settled {
    instance: u64,
    change: i64,
}

/// The outcome of all instances so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outcomes {
    /// The last decided instance.
    applied: u64,
    /// By site.
    settled: Vec<Settled>,
}

/// What sites say to each other; see the module.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Election { ballot: Ballot, before: Outcomes },
    Report { instance: u64, ballot: Ballot, offer: Offer, accepted: Accepted },
    Accept { instance: u64, ballot: Ballot, value: Vec<Offer> },
    Accepted { instance: u64, ballot: Ballot },
    Refuse(Ballot),
    Decided(Outcomes),
    Behind,
    Withdraw { instance: u64, ballot: Ballot },
    Count(u64),
    Counted(u64),
}

/// A site's part in the instance that follows those it has applied. All of it is durable.
#[derive(Clone, Debug)]
struct Round {
    /// It takes part in no lower ballot.
    promised: Ballot,
    /// The first ballot at which its tokens were reported; none if no report of them counts. While there is one, they are not spent.
    first: Option<Ballot>,
    /// The tokens that were reported.
    held: i64,
    /// The value that it voted for last.
    accepted: Accepted,
}

/// What a site does as a leader. It forgets that when it gives up.
#[derive(Clone, Debug)]
enum Role {
    Idle,
    Electing { ballot: Ballot, reports: Vec<(Offer, Accepted)> },
    Collecting { ballot: Ballot, value: Vec<Offer>, votes: u64 },
}

/// One site.
#[derive(Debug)]
struct Site {
    /// Its tokens, those included that are reported to a round.
    left: i64,
    /// Granted and not taken back here.
    in_use: i64,
    /// The outcomes that it has applied.
    outcomes: Outcomes,
    round: Option<Round>,
    role: Role,
    /// The highest number of a ballot that it has heard of.
    highest: u32,
    /// Acquires that wait.
    line: Line,
    /// Releases that wait for the end of a round.
    releases: Vec<Call>,
    /// Tokens asked for, and given back.
    demand: (Demand, Demand),
    /// It leads no round before this time.
    may_lead_at: u64,
    /// It leads no round ahead of need before this time.
    may_foresee_at: u64,
    /// A timer is set for then that has it seek tokens.
    seek_at: u64,
    /// The number of the last timer that was set for its round.
    timer: u64,
    /// Reads under way: the call, and the answers that are awaited.
    reads: BTreeMap<u64, (Call, usize)>,
    /// The number of the last read.
    last_read: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Samya {
    sites: Vec<Site>,
    /// The outcomes of all instances that are decided.
    newest: Outcomes,
    /// True if sites lead rounds ahead of need.
    foresees: bool,
    rng: Rng,
}

/// Divides what the members of a round have: the largest wish that still fits first, and the rest in equal parts. Returns each
/// member's tokens afterwards. (Algorithm 2, with its tokens conserved.)
pub(super) fn reallocate(offers: &[Offer]) -> Vec<(usize, i64)> {
    let mut rest: i64 = offers.iter().map(|offer| offer.held).sum();
    let mut by_wish: Vec<&Offer> = offers.iter().collect();
    by_wish.sort_by_key(|offer| (-offer.wanted, offer.site));

    let mut granted: Vec<(usize, i64)> = Vec::with_capacity(offers.len());
    for offer in by_wish {
        let fits = if offer.wanted <= rest { offer.wanted } else { 0 };
        rest -= fits;
        granted.push((offer.site, fits));
    }
    granted.sort_unstable();
    let parts = equal_parts(granted.len(), rest);
    granted.iter_mut().zip(parts).for_each(|((_, tokens), part)| *tokens += part);
    granted
}

impl Site {
    fn new(sites: usize, left: i64) -> Self {
        Self {
            left,
            in_use: 0,
            outcomes: Outcomes { applied: 0, settled: vec![Settled::default(); sites] },
            round: None,
            role: Role::Idle,
            highest: 0,
            line: Line::default(),
            releases: Vec::new(),
            demand: (Demand::new(0), Demand::new(0)),
            may_lead_at: 0,
            may_foresee_at: 0,
            seek_at: 0,
            timer: 0,
            reads: BTreeMap::new(),
            last_read: 0,
        }
    }

    /// The instance that it may take part in.
    fn instance(&self) -> u64 {
        self.outcomes.applied + 1
    }

    /// True while its tokens are reported to a round, so that its clients are queued.
    fn is_queuing(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.first.is_some())
    }

    /// The tokens that are likely to be asked for in the next epoch beyond those that come back.
    fn forecast(&self) -> i64 {
        (self.demand.0.forecast(EPOCH) - self.demand.1.forecast(EPOCH)).max(0)
    }

    fn grant(&mut self, net: &mut Net<Message>, call: Call, amount: i64, is_local: bool) {
        self.left -= amount;
        self.in_use += amount;
        net.write();
        net.answer(call, Told::Granted, is_local);
    }

    fn take_back(&mut self, net: &mut Net<Message>, call: Call, is_local: bool) {
        let Ask::Release { amount } = call.ask else { unreachable!("only releases are queued here") };
        self.left += amount;
        self.in_use -= amount;
        net.write();
        net.answer(call, Told::Done, is_local);
    }

    /// Sets the timer of its round; an earlier one counts no longer.
    fn set_timer(&mut self, net: &mut Net<Message>, at: usize, after: u64) {
        self.timer += 1;
        net.wake(at, net.now() + after, self.timer);
    }

    /// It does not lead in a lower ballot than this one that it has promised or voted in.
    fn yield_to(&mut self, ballot: Ballot) {
        if matches!(&self.role, Role::Electing { ballot: mine, .. } if *mine < ballot) {
            self.role = Role::Idle;
        }
    }
}

impl Samya {
    /// Sites with equal parts of a limit.
    pub(super) fn new(sites: usize, limit: i64, foresees: bool, seed: u64) -> Self {
        let list: Vec<Site> = equal_parts(sites, limit).map(|left| Site::new(sites, left)).collect();
        let newest = list[0].outcomes.clone();
        Self { sites: list, newest, foresees, rng: Rng::new(seed ^ 0x7361_6d79) }
    }

    fn others(net: &Net<Message>, at: usize) -> impl Iterator<Item = usize> + use<> {
        (0..net.sites()).filter(move |&site| site != at)
    }

    fn tell_all(net: &mut Net<Message>, at: usize, message: &Message) {
        Self::others(net, at).for_each(|site| net.send(site, message.clone()));
    }

    /// Leads a round because somebody waits for more than there is.
    fn seek(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        if site.line.needed() <= site.left || site.is_queuing() || !matches!(site.role, Role::Idle) {
            return;
        }
        if net.now() >= site.may_lead_at {
            self.lead(net, at);
        } else if site.seek_at <= net.now() {
            site.seek_at = site.may_lead_at;
            net.wake(at, site.seek_at, SEEK);
        }
    }

    /// Leads a round because less is there than is predicted to be asked for.
    fn foresee(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        let now = net.now();
        let may = self.foresees && now >= site.may_foresee_at.max(site.may_lead_at) && site.round.is_none();
        if may && matches!(site.role, Role::Idle) && site.forecast() > site.left {
            site.may_foresee_at = now + EPOCH;
            self.lead(net, at);
        }
    }

    /// Begins a ballot of the next instance.
    fn lead(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &self.sites[at];
        let promised = site.round.as_ref().map_or(0, |round| round.promised.0);
        let ballot = (1 + promised.max(site.highest), at);
        let before = site.outcomes.clone();
        let offer = self.join(at, ballot);

        let site = &mut self.sites[at];
        let accepted = site.round.as_ref().expect("it has just joined").accepted.clone();
        site.role = Role::Electing { ballot, reports: vec![(offer, accepted)] };
        net.write();
        site.set_timer(net, at, PATIENCE);
        Self::tell_all(net, at, &Message::Election { ballot, before });
        self.build(net, at);
    }

    /// Promises a ballot and offers all tokens. They stay reported until the instance is decided, or the only leader that they were
    /// reported to withdraws.
    fn join(&mut self, at: usize, ballot: Ballot) -> Offer {
        let site = &mut self.sites[at];
        let predicted = if self.foresees { site.forecast() } else { 0 };
        let wanted = predicted.max(site.line.needed());
        let left = site.left;
        let round = site.round.get_or_insert(Round { promised: ballot, first: None, held: 0, accepted: None });
        round.promised = ballot;
        if round.first.is_none() {
            round.first = Some(ballot);
            round.held = left;
        }
        site.highest = site.highest.max(ballot.0);
        Offer { site: at, held: round.held, wanted }
    }

    fn election(&mut self, net: &mut Net<Message>, at: usize, from: usize, ballot: Ballot, before: Outcomes) {
        // A state from before the instance must never be reported to it.
        let instance = before.applied + 1;
        self.adopt(net, at, before);
        let site = &mut self.sites[at];
        if instance < site.instance() {
            return net.send(from, Message::Decided(site.outcomes.clone()));
        }
        if let Some(round) = site.round.as_ref().filter(|round| ballot <= round.promised) {
            return net.send(from, Message::Refuse(round.promised));
        }

        site.yield_to(ballot);
        let offer = self.join(at, ballot);
        let accepted = self.sites[at].round.as_ref().expect("it has just joined").accepted.clone();
        net.write();
        net.send(from, Message::Report { instance, ballot, offer, accepted });
        self.await_outcome(net, at);
    }

    /// A site in a round is to hear of its outcome in time, or leads itself.
    fn await_outcome(&mut self, net: &mut Net<Message>, at: usize) {
        let after = RECOVERY + self.rng.below(SECOND);
        self.sites[at].set_timer(net, at, after);
    }

    /// Builds the value, if a majority has reported: one that may have been decided, or that of all reports.
    fn build(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        let Role::Electing { ballot, reports } = &site.role else { return };
        if reports.len() <= net.sites() / 2 {
            return;
        }
        let ballot = *ballot;
        let accepted = reports.iter().filter_map(|(_, accepted)| accepted.as_ref());
        let value = match accepted.max_by_key(|(ballot, _)| *ballot) {
            Some((_, value)) => value.clone(),
            None => reports.iter().map(|(offer, _)| *offer).collect(),
        };

        let (instance, round) = (site.outcomes.applied + 1, site.round.as_mut().expect("a leader is in its round"));
        assert_eq!(round.promised, ballot, "a leader that promised a higher ballot has yielded");
        round.accepted = Some((ballot, value.clone()));
        site.role = Role::Collecting { ballot, value: value.clone(), votes: 1 << at };
        net.write();
        site.set_timer(net, at, PATIENCE);
        Self::tell_all(net, at, &Message::Accept { instance, ballot, value });
        self.decide(net, at);
    }

    fn accept(&mut self, net: &mut Net<Message>, at: usize, from: usize, instance: u64, voted: (Ballot, Vec<Offer>)) {
        let site = &mut self.sites[at];
        let ballot = voted.0;
        if instance < site.instance() {
            return net.send(from, Message::Decided(site.outcomes.clone()));
        }
        if instance > site.instance() {
            return net.send(from, Message::Behind);
        }
        if let Some(round) = site.round.as_ref().filter(|round| ballot < round.promised) {
            return net.send(from, Message::Refuse(round.promised));
        }

        // One that reported nothing is no member: it votes, and goes on serving.
        let round = site.round.get_or_insert(Round { promised: ballot, first: None, held: 0, accepted: None });
        round.promised = ballot;
        round.accepted = Some(voted);
        site.highest = site.highest.max(ballot.0);
        site.yield_to(ballot);
        net.write();
        net.send(from, Message::Accepted { instance, ballot });
        self.await_outcome(net, at);
    }

    /// Decides, if a majority has voted.
    fn decide(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &self.sites[at];
        let Role::Collecting { value, votes, .. } = &site.role else { return };
        if votes.count_ones() as usize <= net.sites() / 2 {
            return;
        }

        let mut outcomes = site.outcomes.clone();
        outcomes.applied += 1;
        for (member, tokens) in reallocate(value) {
            let held = value.iter().find(|offer| offer.site == member).expect("a member has an offer").held;
            outcomes.settled[member] = Settled { instance: outcomes.applied, change: tokens - held };
        }
        Self::tell_all(net, at, &Message::Decided(outcomes.clone()));
        self.adopt(net, at, outcomes);
    }

    /// Applies the outcomes of instances that the site has not applied.
    fn adopt(&mut self, net: &mut Net<Message>, at: usize, outcomes: Outcomes) {
        let site = &mut self.sites[at];
        if outcomes.applied <= site.outcomes.applied {
            return;
        }
        if outcomes.applied > self.newest.applied {
            self.newest = outcomes.clone();
        }

        // At most one of them names it: it reports to an instance only after all before that.
        let last = outcomes.settled[at];
        if last.instance > site.outcomes.settled[at].instance {
            assert!(site.is_queuing(), "what a decision takes from a site is still reported there");
            site.left += last.change;
            assert!(site.left >= 0, "a decision takes no more than was reported");
        }
        site.outcomes = outcomes;
        site.round = None;
        site.role = Role::Idle;
        net.write();
        self.go_on(net, at);
    }

    /// The leader gives up: nothing was sent at this ballot but the question, so what was reported to it alone is free.
    fn withdraw(&mut self, net: &mut Net<Message>, at: usize, ballot: Ballot) {
        let site = &mut self.sites[at];
        site.role = Role::Idle;
        site.may_lead_at = net.now() + EPOCH;
        let instance = site.instance();
        net.write();
        Self::tell_all(net, at, &Message::Withdraw { instance, ballot });
        self.free(net, at, ballot);
    }

    /// What was reported to this ballot, and to no other, is free again.
    fn free(&mut self, net: &mut Net<Message>, at: usize, ballot: Ballot) {
        let Some(round) = &mut self.sites[at].round else { return };
        if round.promised == ballot && round.first == Some(ballot) {
            (round.first, round.held) = (None, 0);
            net.write();
            self.go_on(net, at);
        }
        if self.sites[at].round.as_ref().is_some_and(|round| round.first.is_some() || round.accepted.is_some()) {
            self.await_outcome(net, at);
        }
    }

    /// Serves the clients that were queued. Where somebody still waits, the next round comes after a pause.
    fn go_on(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        for call in std::mem::take(&mut site.releases) {
            site.take_back(net, call, false);
        }
        self.serve(net, at);
        if !self.sites[at].line.is_empty() {
            let again = net.now() + PAUSE + self.rng.below(PAUSE);
            let site = &mut self.sites[at];
            site.may_lead_at = site.may_lead_at.max(again);
            self.seek(net, at);
        }
    }

    /// Serves those that wait, as far as the tokens go.
    fn serve(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        site.line.drop_late(net.now());
        if site.is_queuing() {
            return;
        }
        while let Some(Waiting { call, amount, .. }) = site.line.take_within(site.left) {
            site.grant(net, call, amount, false);
        }
    }

    /// The timer of a site's round.
    fn round_timer(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        let instance = site.instance();
        match site.role.clone() {
            Role::Electing { ballot, .. } => self.withdraw(net, at, ballot),
            Role::Collecting { ballot, value, .. } => {
                site.set_timer(net, at, PATIENCE);
                Self::tell_all(net, at, &Message::Accept { instance, ballot, value });
            }
            Role::Idle => {
                let in_doubt = |round: &Round| round.first.is_some() || round.accepted.is_some();
                if site.round.as_ref().is_some_and(in_doubt) {
                    self.lead(net, at);
                }
            }
        }
    }
}

impl Protocol for Samya {
    type Message = Message;

    fn site_of(&self, region: usize) -> usize {
        region
    }

    fn request(&mut self, net: &mut Net<Message>, at: usize, call: Call) {
        let site = &mut self.sites[at];
        let is_queuing = site.is_queuing();
        match call.ask {
            Ask::Acquire { amount, deadline } => {
                site.demand.0.note(amount);
                site.demand.0.fold(net.now());
                site.demand.1.fold(net.now());
                if !is_queuing && site.line.is_empty() && amount <= site.left {
                    site.grant(net, call, amount, true);
                    return self.foresee(net, at);
                }
                let latest = net.latest(at, call.region, deadline);
                site.line.push(Waiting { call, amount, latest });
                net.wake(at, latest + 1, LATE);
                self.seek(net, at);
            }
            Ask::Release { amount } => {
                site.demand.1.note(amount);
                if is_queuing {
                    return site.releases.push(call);
                }
                site.take_back(net, call, true);
                self.serve(net, at);
            }
            Ask::Read => {
                site.last_read += 1;
                site.reads.insert(site.last_read, (call, net.sites() - 1));
                let number = site.last_read;
                Self::tell_all(net, at, &Message::Count(number));
            }
        }
    }

    fn message(&mut self, net: &mut Net<Message>, at: usize, from: usize, message: Message) {
        let site = &mut self.sites[at];
        match message {
            Message::Election { ballot, before } => self.election(net, at, from, ballot, before),
            Message::Report { instance, ballot, offer, accepted } => {
                let is_present = instance == site.instance();
                if let Role::Electing { ballot: mine, reports } = &mut site.role
                    && is_present
                    && *mine == ballot
                    && reports.iter().all(|(other, _)| other.site != offer.site)
                {
                    reports.push((offer, accepted));
                    self.build(net, at);
                }
            }
            Message::Accept { instance, ballot, value } => self.accept(net, at, from, instance, (ballot, value)),
            Message::Accepted { instance, ballot } => {
                let is_present = instance == site.instance();
                if let Role::Collecting { ballot: mine, votes, .. } = &mut site.role
                    && is_present
                    && *mine == ballot
                {
                    *votes |= 1 << from;
                    self.decide(net, at);
                }
            }
            Message::Refuse(promised) => site.highest = site.highest.max(promised.0),
            Message::Decided(outcomes) => self.adopt(net, at, outcomes),
            Message::Behind => net.send(from, Message::Decided(site.outcomes.clone())),
            Message::Withdraw { instance, ballot } => {
                if instance == site.instance() {
                    self.free(net, at, ballot);
                }
            }
            Message::Count(number) => net.send(from, Message::Counted(number)),
            Message::Counted(number) => {
                let Some((call, awaited)) = site.reads.get_mut(&number) else { return };
                *awaited -= 1;
                if *awaited == 0 {
                    net.answer(*call, Told::Done, false);
                    site.reads.remove(&number);
                }
            }
        }
    }

    fn timer(&mut self, net: &mut Net<Message>, at: usize, token: u64) {
        match token {
            LATE => self.serve(net, at),
            SEEK => self.seek(net, at),
            token if token == self.sites[at].timer => self.round_timer(net, at),
            _ => {}
        }
    }

    fn books(&self) -> Books {
        // What is decided counts, whether or not a site has applied it.
        let owned = |(at, site): (usize, &Site)| {
            let last = self.newest.settled[at];
            let is_missed = last.instance > site.outcomes.settled[at].instance;
            let owned = site.left + if is_missed { last.change } else { 0 };
            assert!(owned >= 0, "a site owes tokens");
            owned
        };
        let free = self.sites.iter().enumerate().map(owned).sum();
        Books { free, under_way: 0, in_use: self.sites.iter().map(|site| site.in_use).sum() }
    }

    fn moves(&self) -> (u64, u64) {
        (self.newest.applied, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(site: usize, held: i64, wanted: i64) -> Offer {
        Offer { site, held, wanted }
    }

    #[test]
    fn algorithm_2_conserves_and_meets_wishes_that_all_fit() {
        assert_eq!(reallocate(&[offer(0, 1, 2)]), [(0, 1)], "as printed it makes a token here");
        assert_eq!(reallocate(&[offer(0, 0, 0), offer(1, 1, 0)]), [(0, 1), (1, 0)], "as printed it loses one");
        assert_eq!(reallocate(&[offer(0, 0, 0), offer(1, 2, 1)]), [(0, 1), (1, 1)]);
        assert_eq!(reallocate(&[offer(0, 0, 1), offer(1, 1, 2)]), [(0, 1), (1, 0)]);
        let mut rng = Rng::new(5);
        for _ in 0..5_000 {
            let offers: Vec<Offer> = (0..1 + rng.below(6) as usize)
                .map(|site| offer(site, rng.below(9) as i64, rng.below(9) as i64))
                .collect();
            let after = reallocate(&offers);
            let held: i64 = offers.iter().map(|offer| offer.held).sum();
            assert_eq!(after.iter().map(|(_, tokens)| tokens).sum::<i64>(), held, "{offers:?}");
            assert!(after.iter().all(|(_, tokens)| *tokens >= 0), "{offers:?}");
            let wanted: i64 = offers.iter().map(|offer| offer.wanted).sum();
            let met = after.iter().zip(&offers).all(|((_, tokens), offer)| *tokens >= offer.wanted);
            assert!(met || wanted > held, "{offers:?}");
        }
    }
}
