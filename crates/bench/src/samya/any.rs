//! The paper's system with its any-subset version of Avantan: sites that have parts of the limit, and share them out among whoever
//! answers.
//!
//! As in `avantan`, a site that predicts more demand than it has tokens for, or is asked for more than it has, leads a round; every site
//! that takes part offers all its tokens and queues all its clients until the round ends for it; tokens are divided by Algorithm 2. The
//! rounds are the product's own ([`slackline_core::avantan::subset`]): what it mends of the paper's protocol makes it safe. A leader builds as
//! soon as what was reported meets what it wants.

use std::collections::BTreeSet;

use slackline_core::avantan::subset::{Key, Known, Message, Role, Step, Subset};
use slackline_core::avantan::{Amount, Avantan, Line as Reported, Membership, Offer as Offered, Share, Table};
use slackline_core::clock::SECOND;
use slackline_core::codec::{Cursor, Malformed};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::stats::{Demand, Rng};

use super::alone::equal_parts;
use super::ask::{Ask, Told};
use super::avantan::{EPOCH, LATE, Offer, PATIENCE, PAUSE, RECOVERY, SEEK, reallocate};
use super::line::{Line, Waiting};
use super::modelled::{Books, Protocol};
use super::net::{Call, Net};

/// Tokens that Algorithm 2 divides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Tokens(i64);

impl Amount for Tokens {
    type Total = i128;

    fn total(amounts: impl Iterator<Item = Self>) -> i128 {
        amounts.map(|tokens| i128::from(tokens.0)).sum()
    }

    fn is_sound(self) -> bool {
        self.0 >= 0
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    fn minus(self, part: Self) -> Self {
        Self(self.0 - part.0)
    }

    fn given(before: Self, after: Self) -> Self {
        Self((before.0 - after.0).max(0))
    }

    fn spare(self, kept: Self) -> Self {
        Self(self.0 - kept.0)
    }

    fn reallocate(lines: &[Reported<Self>], _: i128) -> Vec<Self> {
        let offer = |(site, line): (usize, &Reported<Self>)| Offer { site, held: line.held.0, wanted: line.wanted.0 };
        let offers: Vec<Offer> = lines.iter().enumerate().map(offer).collect();
        reallocate(&offers).into_iter().map(|(_, tokens)| Self(tokens)).collect()
    }

    fn encode(self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        i64::decode(cursor).map(Self)
    }
}

/// What sites say to each other.
#[derive(Clone, Debug)]
pub(super) enum Said {
    /// Of a round.
    Round(Box<Message<Tokens>>),
    /// A read of all sites' tokens.
    Count(u64),
    /// The answer.
    Counted(u64),
}

/// One site.
#[derive(Debug)]
struct Site {
    /// Its tokens, and the round that it is in.
    avantan: Avantan<Tokens>,
    /// Granted and not taken back here.
    in_use: i64,
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
    /// Reads under way: their number, the call, and the answers that are awaited.
    reads: Vec<(u64, Call, usize)>,
    /// The number of the last read.
    last_read: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SamyaAny {
    sites: Vec<Site>,
    members: Vec<SiteId>,
    /// What the rounds that sites applied have changed at those, all together: not zero while one is applied at some of its members only.
    moved: i64,
    /// The rounds that were decided.
    decided: BTreeSet<Key>,
    /// True if sites lead rounds ahead of need.
    foresees: bool,
    rng: Rng,
}

impl Site {
    fn new(left: i64, table: Table<Tokens>) -> Self {
        let share = Share { tokens: Tokens(left), number: 1, applied: 1, table, ..Share::default() };
        Self {
            avantan: Avantan::restore(share),
            in_use: 0,
            line: Line::default(),
            releases: Vec::new(),
            demand: (Demand::new(0), Demand::new(0)),
            may_lead_at: 0,
            may_foresee_at: 0,
            seek_at: 0,
            timer: 0,
            reads: Vec::new(),
            last_read: 0,
        }
    }

    fn left(&self) -> i64 {
        self.avantan.share.tokens.0
    }

    /// True while it is in a round, so that its clients are queued.
    fn is_queuing(&self) -> bool {
        self.avantan.share.part().is_some()
    }

    /// The tokens that are likely to be asked for in the next epoch beyond those that come back.
    fn forecast(&self) -> i64 {
        (self.demand.0.forecast(EPOCH) - self.demand.1.forecast(EPOCH)).max(0)
    }

    fn grant(&mut self, net: &mut Net<Said>, call: Call, amount: i64, is_local: bool) {
        self.avantan.share.tokens.0 -= amount;
        self.in_use += amount;
        net.write();
        net.answer(call, Told::Granted, is_local);
    }

    fn take_back(&mut self, net: &mut Net<Said>, call: Call, is_local: bool) {
        let Ask::Release { amount } = call.ask else { unreachable!("only releases are queued here") };
        self.avantan.share.tokens.0 += amount;
        self.in_use -= amount;
        net.write();
        net.answer(call, Told::Done, is_local);
    }
}

impl SamyaAny {
    /// Sites with equal parts of a limit.
    pub(super) fn new(sites: usize, limit: i64, foresees: bool, seed: u64) -> Self {
        let table = Table::from_parts(1, 1, Some(Tokens(limit)), Vec::new());
        let list = equal_parts(sites, limit).map(|left| Site::new(left, table.clone())).collect();
        let members = (0..sites).map(|site| SiteId::new(site as u16, 0)).collect();
        let rng = Rng::new(seed ^ 0x7361_6d79);
        Self { sites: list, members, moved: 0, decided: BTreeSet::new(), foresees, rng }
    }

    /// A step of a site's rounds.
    fn step(&mut self, net: &mut Net<Said>, at: usize, act: impl FnOnce(&mut Subset<Tokens>, Offered<Tokens>)) {
        let site = &mut self.sites[at];
        let predicted = if self.foresees { site.forecast() } else { 0 };
        let wanted = Tokens(predicted.max(site.line.needed()));
        let offer = Offered { needed: wanted, wanted, ..Offered::default() };
        let before = (site.left(), site.avantan.share.part().map(|part| part.key));
        let elects = matches!(site.avantan.role_in_subset(), Role::Electing { .. });

        // No site comes back with another incarnation here.
        let (mut known, mut step) = (Known::default(), Step::default());
        let membership = Membership::first(self.members[at], Incarnation(1), &self.members);
        let mut subset = Subset { avantan: &mut site.avantan, site: membership, known: &mut known, step: &mut step };
        act(&mut subset, offer);
        if let Role::Electing { reports, .. } = subset.avantan.role_in_subset()
            && reports.iter().map(|line| line.held.0).sum::<i64>() >= reports[0].wanted.0
        {
            subset.build();
        }

        if step.changed {
            net.write();
        }
        for (to, message) in step.sends {
            net.send(usize::from(to.region), Said::Round(Box::new(message)));
        }
        let site = &mut self.sites[at];
        if step.decided.is_some() {
            self.moved += site.left() - before.0;
            self.decided.extend(before.1);
        } else if step.left && elects {
            site.may_lead_at = net.now() + EPOCH;
        }
        if site.is_queuing() {
            if step.changed {
                let leads = *site.avantan.role_in_subset() != Role::Idle;
                let after = if leads { PATIENCE } else { RECOVERY + self.rng.below(SECOND) };
                self.set_timer(net, at, after);
            }
        } else if before.1.is_some() {
            self.go_on(net, at);
        }
    }

    /// Sets the timer of a site's round; an earlier one counts no longer.
    fn set_timer(&mut self, net: &mut Net<Said>, at: usize, after: u64) {
        let site = &mut self.sites[at];
        site.timer += 1;
        net.wake(at, net.now() + after, site.timer);
    }

    /// Leads a round because somebody waits for more than there is.
    fn seek(&mut self, net: &mut Net<Said>, at: usize) {
        let site = &mut self.sites[at];
        if site.line.needed() <= site.left() || site.is_queuing() {
            return;
        }
        if net.now() >= site.may_lead_at {
            self.step(net, at, |subset, offer| subset.start(offer, true));
        } else if site.seek_at <= net.now() {
            site.seek_at = site.may_lead_at;
            net.wake(at, site.seek_at, SEEK);
        }
    }

    /// Leads a round because less is there than is predicted to be asked for.
    fn foresee(&mut self, net: &mut Net<Said>, at: usize) {
        let site = &mut self.sites[at];
        let now = net.now();
        let may = self.foresees && now >= site.may_foresee_at.max(site.may_lead_at) && !site.is_queuing();
        if may && site.forecast() > site.left() {
            site.may_foresee_at = now + EPOCH;
            self.step(net, at, |subset, offer| subset.start(offer, true));
        }
    }

    /// Serves the clients that were queued. Where somebody still waits, the next round comes after a pause.
    fn go_on(&mut self, net: &mut Net<Said>, at: usize) {
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
    fn serve(&mut self, net: &mut Net<Said>, at: usize) {
        let site = &mut self.sites[at];
        site.line.drop_late(net.now());
        if site.is_queuing() {
            return;
        }
        while let Some(Waiting { call, amount, .. }) = site.line.take_within(site.left()) {
            site.grant(net, call, amount, false);
        }
    }

    /// The timer of a site's round.
    fn round_timer(&mut self, net: &mut Net<Said>, at: usize) {
        self.step(net, at, |subset, _| match subset.avantan.role_in_subset() {
            Role::Electing { .. } => {
                if !subset.build() {
                    subset.withdraw();
                }
            }
            Role::Collecting { .. } => subset.repeat(),
            Role::Idle => match subset.avantan.share.part().is_some_and(|part| part.accepted.is_some()) {
                true => subset.recover(),
                false => subset.withdraw(),
            },
        });
        if self.sites[at].is_queuing() {
            self.set_timer(net, at, PATIENCE);
        }
    }
}

impl Protocol for SamyaAny {
    type Message = Said;

    fn site_of(&self, region: usize) -> usize {
        region
    }

    fn request(&mut self, net: &mut Net<Said>, at: usize, call: Call) {
        let site = &mut self.sites[at];
        let is_queuing = site.is_queuing();
        match call.ask {
            Ask::Acquire { amount, deadline } => {
                site.demand.0.note(amount);
                site.demand.0.fold(net.now());
                site.demand.1.fold(net.now());
                if !is_queuing && site.line.is_empty() && amount <= site.left() {
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
                let number = site.last_read;
                site.reads.push((number, call, net.sites() - 1));
                (0..net.sites()).filter(|to| *to != at).for_each(|to| net.send(to, Said::Count(number)));
            }
        }
    }

    fn message(&mut self, net: &mut Net<Said>, at: usize, from: usize, message: Said) {
        match message {
            Said::Round(message) => {
                let from = self.members[from];
                self.step(net, at, |subset, offer| subset.handle(from, *message, |_| offer));
            }
            Said::Count(number) => net.send(from, Said::Counted(number)),
            Said::Counted(number) => {
                let reads = &mut self.sites[at].reads;
                let Some(place) = reads.iter().position(|(read, ..)| *read == number) else { return };
                reads[place].2 -= 1;
                if reads[place].2 == 0 {
                    let (_, call, _) = reads.remove(place);
                    net.answer(call, Told::Done, false);
                }
            }
        }
    }

    fn timer(&mut self, net: &mut Net<Said>, at: usize, token: u64) {
        match token {
            LATE => self.serve(net, at),
            SEEK => self.seek(net, at),
            token if token == self.sites[at].timer => self.round_timer(net, at),
            _ => {}
        }
    }

    fn books(&self) -> Books {
        // What is decided counts, whether or not a site has applied it.
        let free = self.sites.iter().map(Site::left).sum::<i64>() - self.moved;
        Books { free, under_way: 0, in_use: self.sites.iter().map(|site| site.in_use).sum() }
    }

    fn moves(&self) -> (u64, u64) {
        (self.decided.len() as u64, 0)
    }
}
