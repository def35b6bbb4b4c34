//! The chapters of a site, in one list.

use std::collections::BTreeSet;

use crate::api::{Operation, Outcome, Request};
use crate::avantan::Roster;
use crate::chapter::{Chapter, Fate, Leaving, Order};
use crate::id::{Incarnation, SessionId, SiteId};
use crate::machine::View;
use crate::peer::Body;
use crate::peer::quota::Forgotten;
use crate::quota::Quotas;
use crate::rows::Owner;
use crate::session::Aim;
use crate::stats::Rng;
use crate::turn::{Here, Turn};
use crate::txn::Txns;

/// The chapters of a site. One more is a field here, and a place in its two lists.
#[derive(Debug)]
pub struct Chapters {
    /// Tokens of shared resources.
    pub quotas: Quotas,
    /// Objects and transactions.
    pub txns: Txns,
}

impl Chapters {
    /// The chapters of a site with new storage. Each names what it asks from another number in each life.
    pub(super) fn new(me: SiteId, rng: &mut Rng) -> Self {
        let txns = Txns::new(me, rng.draw() >> 16);
        Self { quotas: Quotas::new(rng.draw() >> 16), txns }
    }

    /// All of them, in the order in which they are called.
    pub(super) fn all(&self) -> [&dyn Chapter; 2] {
        [&self.quotas, &self.txns]
    }

    /// All of them in the same order, mutable.
    pub(super) fn all_mut(&mut self) -> [&mut dyn Chapter; 2] {
        [&mut self.quotas, &mut self.txns]
    }

    /// The chapter of an owner; none if the owner is no chapter.
    pub(super) fn of(&self, owner: Option<Owner>) -> Option<&dyn Chapter> {
        self.all().into_iter().find(|chapter| Some(chapter.owner()) == owner)
    }

    /// The chapter of an owner, mutable.
    pub(super) fn of_mut(&mut self, owner: Option<Owner>) -> Option<&mut dyn Chapter> {
        self.all_mut().into_iter().find(|chapter| Some(chapter.owner()) == owner)
    }

    /// The names that were forgotten last. Every site must know them before it serves.
    pub(super) fn forgotten(&self) -> &Forgotten {
        &self.quotas.forgetting().decided
    }

    /// The seats, if the members ever changed.
    pub(super) fn roster(&self) -> Option<&Roster> {
        self.quotas.roster()
    }

    /// The transactions that this site coordinates, and those that it has a part of.
    pub(super) fn under_way(&self) -> usize {
        let (coordinated, parts) = self.txns.under_way();
        coordinated + parts
    }

    /// True if everything that is known here has recorded the last change of the members.
    pub(super) fn are_settled(&self) -> bool {
        self.quotas.is_settled()
    }

    /// True if a change that concerns a site's seat may be decided.
    pub(super) fn is_changing(&self, site: SiteId) -> bool {
        self.quotas.is_changing(site)
    }

    /// True if this site may be deciding that it leaves.
    pub(super) fn leaves(&self, me: SiteId) -> bool {
        self.quotas.is_leaving(me)
    }

    /// True if everything that is known here has recorded the last change of the members, and this incarnation of another site.
    pub(super) fn attests(&self, site: SiteId, incarnation: Incarnation) -> bool {
        self.quotas.attests(site, incarnation)
    }

    /// Notes that the member at a position has said so of this site. Returns how many have.
    pub(super) fn note_attested(&mut self, position: usize) -> usize {
        self.quotas.note_attested(position)
    }

    /// True if the member at a position has said so.
    pub(super) fn has_attested(&self, position: usize) -> bool {
        self.quotas.has_attested(position)
    }

    /// What to say to a site that knows other members: what is decided here, or, to one that knows of more, what is not.
    pub(super) fn members_news(&self, is_known: bool) -> Body {
        self.quotas.members_news(is_known).into()
    }

    /// Takes over the names that a site which let this one join has forgotten.
    pub(super) fn take_over(&mut self, forgotten: Forgotten) {
        self.quotas.take_over_names(forgotten);
    }

    /// The earliest time at which something is due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.all().into_iter().filter_map(Chapter::deadline).min()
    }

    /// The number of operations that wait.
    pub(super) fn waiting(&self) -> usize {
        self.all().into_iter().map(Chapter::waiting).sum()
    }

    /// True if this site must not vouch for its storage to the member at a position.
    pub(super) fn withholds_from(&self, here: &Here, position: usize) -> bool {
        self.all().into_iter().any(|chapter| chapter.withholds_from(here, position))
    }

    /// True if something durable ends by the site's uptime.
    pub(super) fn counts_uptime(&self) -> bool {
        self.all().into_iter().any(Chapter::counts_uptime)
    }

    /// Carries out an operation; none if it waits.
    #[inline]
    pub(super) fn execute(&mut self, turn: &mut Turn, view: &View, order: Order) -> Option<Outcome> {
        let owner = owner_of_operation(order.operation);
        self.of_mut(Some(owner)).expect("every operation is a chapter's").execute(turn, view, order)
    }

    /// Gives up operations of a session that wait. Returns the sequences of those that will never take effect.
    pub(super) fn withdraw(&mut self, turn: &mut Turn, session: SessionId, sequences: &BTreeSet<u64>) -> BTreeSet<u64> {
        self.all_mut().into_iter().flat_map(|chapter| chapter.withdraw(turn, session, sequences)).collect()
    }

    /// The fate of an operation that was undecided.
    pub(super) fn fate(&self, aim: Aim) -> Fate {
        let known = self.all().into_iter().map(|chapter| chapter.fate(aim)).find(|fate| *fate != Fate::Open);
        known.unwrap_or(Fate::Open)
    }

    /// Gives away what other sites can use. Returns the answer of the chapter that has most left to do.
    pub(super) fn leave(&mut self, turn: &mut Turn) -> Leaving {
        self.all_mut().into_iter().map(|chapter| chapter.leave(turn)).max().unwrap_or(Leaving::Done)
    }
}

/// True if a message is of the agreement about who the members are.
pub(super) fn is_about_members(body: &Body) -> bool {
    matches!(body, Body::Quota(message) if message.is_about_members())
}

/// True if what a message says counts by the members of now: rounds of the majority, and what all members or a majority of them say.
pub(super) fn counts_members(body: &Body) -> bool {
    matches!(body, Body::Quota(message) if message.counts_members())
}

/// The owner of a message.
pub(super) fn owner_of_message(body: &Body) -> Owner {
    match body {
        Body::Site(_) => Owner::Site,
        Body::Relay(_) => Owner::Sessions,
        Body::Quota(_) => Owner::Quota,
        Body::Txn(_) => Owner::Txn,
    }
}

/// The owner of a request.
pub(super) fn owner_of_request(request: &Request) -> Owner {
    match request {
        Request::Status | Request::Drain { .. } => Owner::Site,
        Request::Open | Request::Batch(_) | Request::Ask { .. } | Request::Close { .. } => Owner::Sessions,
        Request::Show { .. } | Request::List { .. } | Request::Expect(_) => Owner::Quota,
        Request::Read(_) | Request::Explain { .. } | Request::Treaties { .. } => Owner::Txn,
    }
}

/// The chapter of an operation.
fn owner_of_operation(operation: &Operation) -> Owner {
    match operation {
        Operation::Acquire { .. }
        | Operation::Release { .. }
        | Operation::ReleaseGrant { .. }
        | Operation::ExtendGrant { .. }
        | Operation::Create { .. }
        | Operation::SetLimit { .. }
        | Operation::Reclaim { .. }
        | Operation::Seat { .. }
        | Operation::Delete { .. } => Owner::Quota,
        Operation::Commit(_) | Operation::AcceptLoss => Owner::Txn,
    }
}
