//! The durable state of one entity's agreement at one site, and its row on storage.

use super::amount::Amount;
use super::bytes::{put_ballot, put_row, put_site, put_value, read_ballot, read_row, read_site, read_value};
use super::member::{Membership, Roster, Sight, may_follow};
use super::subset::record::{Part, Record};
use super::value::{Ballot, Lifecycle, Line, Row, Value};
use crate::api::Charter;
use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::{Incarnation, SiteId};

/// The instance that this site has promised, offered or accepted something in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Round<A = i64> {
    /// The instance; always the one after the last applied.
    pub instance: u64,
    /// The highest ballot promised, at least as high as `first` and that of `accepted`.
    pub promised: Ballot,
    /// The first ballot to which a line was reported that still counts; none if nothing is offered.
    pub first: Option<Ballot>,
    /// The amount set aside, not spent until the outcome is known; nothing while `first` is none.
    pub held: A,
    /// True if nothing is granted until the outcome is known.
    pub closing: bool,
    /// The value accepted last, with its ballot.
    pub accepted: Option<(Ballot, Value<A>)>,
}

impl<A: Amount> Round<A> {
    /// A round in which nothing is reported or accepted yet.
    pub fn new(instance: u64, promised: Ballot) -> Self {
        Self { instance, promised, first: None, held: A::default(), closing: false, accepted: None }
    }

    /// Takes back what was offered. Only once no value that takes it can have been built.
    pub(super) fn take_back(&mut self) {
        assert!(self.first == Some(self.promised), "an offer is taken back that another leader may count on");
        (self.first, self.held, self.closing) = (None, A::default(), false);
    }
}

/// The last decided row that names a site.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Settled<A = i64> {
    /// The instance that decided it.
    pub instance: u64,
    /// The row.
    pub row: Row<A>,
}

/// What was reclaimed, on operators' words, of what lost incarnations had of the present generation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Reclaimed<A = i64> {
    /// The instance that did it last; zero if none did.
    pub instance: u64,
    /// What it brought back to the shares.
    pub brought: A,
    /// What it left in use.
    pub in_use: A,
    /// What all such instances brought back: a running total.
    pub all_brought: A,
    /// What they left in use, a running total: part of what the books of the sites do not account for, and not lost.
    pub all_in_use: A,
    /// The incarnation of each site whose predecessors have nothing left that could be reclaimed, in ascending order of sites: recorded
    /// when it was done last, or when the entity was created. Left out where it is the first.
    pub known: Vec<(SiteId, Incarnation)>,
}

/// What the books of all sites say against a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit<A = i64> {
    /// More is said to be in use than lost incarnations had.
    Above {
        /// The most; less than nothing where lost incarnations took back more than they granted.
        most: A,
    },
    /// Less is said to be in use than came back to other sites since.
    Below {
        /// The least.
        least: A,
    },
    /// Something is in use of what can be deleted only when nothing is.
    InUse {
        /// How much.
        amount: A,
    },
}

/// What all decided instances came to. Its fields stand in memory in this order: what tells whether the amount may be used comes first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(C)]
pub struct Table<A = i64> {
    /// The limit of the present generation; none if it does not exist (yet, or any more).
    pub limit: Option<A>,
    /// What is out beyond the limit since that was lowered. Shares and what is in use add up to the limit and this. It only falls
    /// while the limit stays: each round takes from the shares what it can.
    pub excess: A,
    /// The number of creations of this name.
    pub generation: u32,
    /// The last change of the members that this entity has recorded: a leader that knew it built the value of the last instance. Zero
    /// for none.
    pub membership: u64,
    /// What the present generation was created as.
    pub charter: Charter,
    /// The last decided row of each site that has one, in ascending order of sites.
    rows: Vec<Settled<A>>,
    /// The instance that created the present generation.
    pub created: u64,
    /// The instance that gave it that limit.
    pub limited: u64,
    /// The last change that the leader knew of which created the present generation.
    pub created_in: u64,
    /// What was reclaimed; none if nothing was, and no site is known to have had a predecessor when the entity was created.
    pub reclaimed: Option<Box<Reclaimed<A>>>,
    /// The seats, if this is the entity by which members agree on them, and they did.
    pub roster: Option<Box<Roster>>,
}

impl<A: Amount> Table<A> {
    /// A table from its parts, as a message brings them.
    pub fn from_parts(generation: u32, created: u64, limit: Option<A>, mut rows: Vec<Settled<A>>) -> Self {
        rows.sort_by_key(|settled| settled.row.site);
        Self { generation, created, limit, limited: created, rows, ..Self::default() }
    }

    /// The same entity, which got its limit in a later instance, and of which this is in excess.
    pub fn resized(self, limited: u64, excess: A) -> Self {
        Self { limited, excess, ..self }
    }

    /// True if more is out than the limit: nothing is granted.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.excess != A::default()
    }

    /// What a round leaves of an entity that exists before and after it, which takes `before` from the shares: the amount that it
    /// gives back to them, and what is in excess then. None if that cannot be.
    pub fn settle(&self, before: impl Iterator<Item = A>, lifecycle: Lifecycle<A>) -> Option<(A::Total, A)> {
        let limit = self.limit?;
        let (to, brought) = match lifecycle {
            Lifecycle::Keep => (limit, A::default()),
            Lifecycle::Seat { .. } => return None,
            Lifecycle::Resize { limit } => (limit, A::default()),
            Lifecycle::Reclaim { brought, .. } => (limit, brought),
            Lifecycle::Create { .. } | Lifecycle::Delete => return None,
        };
        A::resize(A::total(before.chain([brought])), limit, self.excess, to)
    }

    /// What is to be done so that lost incarnations have nothing left, if `in_use` of what they had is in use, by the lines of all
    /// sites.
    pub(super) fn reclaim(&self, lines: &[Line<A>], in_use: A) -> Result<Lifecycle<A>, Option<Unfit<A>>> {
        let accounts = A::account(A::total(self.limit.into_iter().chain([self.excess])), lines).ok_or(None)?;
        let before = self.reclaimed.as_ref().map_or(A::default(), |reclaimed| reclaimed.all_in_use);

        // What an earlier word left in use is not accounted for either, and nobody has lost it.
        let most = accounts.lost.wrapping_minus(before);
        if in_use > most {
            return Err(Some(Unfit::Above { most }));
        }

        // What was granted by a lost incarnation, and released elsewhere, is back already. In use is never less than nothing.
        let least = A::default().wrapping_minus(accounts.spent.wrapping_plus(before));
        if in_use < least {
            return Err(Some(Unfit::Below { least }));
        }

        Ok(Lifecycle::Reclaim { brought: most.minus(in_use), in_use })
    }

    /// What is in use, by the lines of all sites: what lost incarnations had counts as in use until it is reclaimed. None if the lines
    /// do not tell.
    pub(super) fn in_use(&self, lines: &[Line<A>]) -> Option<A> {
        let accounts = A::account(A::total(self.limit.into_iter().chain([self.excess])), lines)?;
        Some(accounts.lost.wrapping_plus(accounts.spent))
    }

    /// The newest lost incarnation of each site of which something may not be reclaimed yet, in ascending order of sites. Of a site that is
    /// gone: any that it had, as nobody need know which was the newest.
    pub fn lost(&self) -> impl Iterator<Item = (SiteId, Incarnation)> {
        let recorded = self.rows.iter().map(|settled| (settled.row.site, settled.row.incarnation));
        let is_lost = |(site, incarnation): &(SiteId, Incarnation)| *incarnation > self.known_for(*site);
        recorded.filter(is_lost).map(|(site, incarnation)| (site, Incarnation(incarnation.0 - 1)))
    }

    /// The incarnation of a site whose predecessors have nothing left that could be reclaimed.
    fn known_for(&self, site: SiteId) -> Incarnation {
        let known = self.reclaimed.iter().flat_map(|reclaimed| &reclaimed.known);
        known.into_iter().find(|known| known.0 == site).map_or(Incarnation(1), |known| known.1)
    }

    /// The incarnations that rounds know, of the sites of which that is not the first.
    fn reborn(&self) -> Vec<(SiteId, Incarnation)> {
        let recorded = self.rows.iter().map(|settled| (settled.row.site, settled.row.incarnation));
        recorded.filter(|(_, incarnation)| *incarnation > Incarnation(1)).collect()
    }

    /// The last decided row of each site that has one, in ascending order.
    pub fn rows(&self) -> &[Settled<A>] {
        &self.rows
    }

    /// True if its limit is not the one that it was created with, or something is in excess.
    fn is_resized(&self) -> bool {
        self.limited != self.created || self.is_over()
    }

    /// The last decided row that names `site`.
    pub fn settled(&self, site: SiteId) -> Option<&Settled<A>> {
        self.rows.iter().find(|settled| settled.row.site == site)
    }

    /// The incarnation of `site` that rounds know: the one in the last decided row that names it, or else the first.
    pub fn recorded(&self, site: SiteId) -> Incarnation {
        self.settled(site).map_or(Incarnation(1), |last| last.row.incarnation)
    }

    /// True if it is a new incarnation of the site, which no round has recorded.
    #[inline]
    fn is_after_recorded(&self, site: SiteId, incarnation: Incarnation) -> bool {
        // A first incarnation is never new; who asks at each acquire does not look for its row.
        incarnation > Incarnation(1) && incarnation > self.recorded(site)
    }

    /// True if rounds record new incarnations: it exists, or is the one by which members agree on who they are.
    fn records(&self) -> bool {
        self.limit.is_some() || self.roster.is_some()
    }

    /// True if this is a new incarnation of a site which rounds are to record, and none has.
    #[inline]
    pub fn lacks(&self, site: SiteId, incarnation: Incarnation) -> bool {
        self.records() && self.is_after_recorded(site, incarnation)
    }

    /// The same of this site.
    #[inline]
    pub fn is_unrecorded(&self, site: Membership) -> bool {
        self.lacks(site.me, site.incarnation)
    }

    /// True if the entity may be gone by a round that asked somebody else: the incarnation of this site before this one, or all but this site,
    /// if it has joined since. Until a later round is applied here, which tells of that, this site grants nothing and nobody gives it anything.
    #[inline]
    pub fn is_new(&self, site: Membership) -> bool {
        self.is_new_at(site.me, site.incarnation, site.since)
    }

    /// The same of any site, by what is known of its incarnation, and of the change by which it became a member.
    #[inline]
    pub fn is_new_at(&self, site: SiteId, incarnation: Incarnation, since: u64) -> bool {
        self.limit.is_some() && (self.membership < since || self.is_after_recorded(site, incarnation))
    }

    /// True if another member that is up is such an incarnation.
    pub fn has_unrecorded(&self, site: Membership, sight: impl Sight) -> bool {
        site.others_up(sight).any(|(other, incarnation)| self.lacks(other, incarnation))
    }

    /// True if no instance was decided since the members changed last.
    pub fn is_before(&self, site: Membership) -> bool {
        self.membership < site.number
    }

    /// True if enough members that may vote are up for an election to come to anything, as far as can be told from here. A
    /// new incarnation that is not recorded may vote only if every other site has told it so: that can be while all are up,
    /// and one that it has happened to knows.
    pub fn has_majority(&self, site: Membership, sight: impl Sight) -> bool {
        let (mut up, mut recorded) = (1, 1);
        for (other, incarnation) in site.others_up(sight) {
            up += 1;
            recorded += usize::from(incarnation <= self.recorded(other));
        }
        let may_be_cleared = self.is_unrecorded(site) || up == site.count();
        site.majority() <= if may_be_cleared { up } else { recorded }
    }

    /// The table after `instance` decided `value`.
    pub fn after(&self, site: Membership, instance: u64, value: &Value<A>) -> Self {
        let mut table = self.clone();
        table.membership = table.membership.max(value.membership);
        let settled = self.settle(value.rows.iter().map(|row| row.before), value.lifecycle);
        table.excess = settled.map_or(A::default(), |(_, excess)| excess);
        match value.lifecycle {
            Lifecycle::Keep | Lifecycle::Reclaim { .. } => {}
            Lifecycle::Create { limit, charter } => {
                table.generation += 1;
                (table.created, table.limited) = (instance, instance);
                (table.limit, table.charter) = (Some(limit), charter);
                table.created_in = value.membership;
            }
            Lifecycle::Delete => (table.limit, table.charter, table.created_in) = (None, Charter::default(), 0),
            // The members of this instance are those that the table before it names, or, before any change, the first ones.
            Lifecycle::Seat { site: changed, gone } => {
                let roster = match &table.roster {
                    Some(roster) => roster.after(changed, gone, &value.label),
                    None => Roster::first(site, changed, gone, &value.label),
                };
                table.roster = Some(Box::new(roster));
            }
            Lifecycle::Resize { limit } => (table.limit, table.limited) = (Some(limit), instance),
        }

        // A site that this value does not name keeps its last row: it may not have applied that yet.
        for row in &value.rows {
            let settled = Settled { instance, row: row.clone() };
            match table.rows.binary_search_by_key(&row.site, |settled| settled.row.site) {
                Ok(at) => table.rows[at] = settled,
                Err(at) => table.rows.insert(at, settled),
            }
        }

        // By the rows of this instance: every site has one in it.
        match value.lifecycle {
            Lifecycle::Keep | Lifecycle::Resize { .. } | Lifecycle::Seat { .. } => {}
            Lifecycle::Delete => table.reclaimed = None,
            Lifecycle::Create { .. } => {
                // Nobody who is gone had anything of a generation that is new.
                let known = table.reborn();
                let is_known = !known.is_empty();
                table.reclaimed = is_known.then(|| Box::new(Reclaimed { known, ..Reclaimed::default() }));
            }
            Lifecycle::Reclaim { brought, in_use } => {
                let (all_brought, all_in_use) = match &self.reclaimed {
                    Some(before) => {
                        (before.all_brought.wrapping_plus(brought), before.all_in_use.wrapping_plus(in_use))
                    }
                    None => (brought, in_use),
                };
                let known = table.reborn();
                let reclaimed = Reclaimed { instance, brought, in_use, all_brought, all_in_use, known };
                table.reclaimed = Some(Box::new(reclaimed));
            }
        }

        table
    }
}

/// One site's share of one entity. Every change is one atomic write. Its fields stand in memory in this order, as those of [`Table`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(C)]
pub struct Share<A = i64> {
    /// The amount here, that set aside included. Of a quota: tokens.
    pub tokens: A,
    /// The instance under way, if this site has a part in it. Seldom there is one, so that it takes no room in between.
    pub round: Option<Box<Round<A>>>,
    /// What it keeps of rounds among subsets; none if it was in none.
    pub subset: Option<Box<Record<A>>>,
    /// What the instances up to `applied` came to.
    pub table: Table<A>,
    /// The number of decided rows applied in this incarnation.
    pub number: u64,
    /// Every instance up to this one is decided, and applied if it names this share.
    pub applied: u64,
    /// The incarnation of this site that may vote although no decided instance recorded it: every other site has said that no
    /// vote of its predecessors counts there.
    pub fresh: Incarnation,
}

impl<A: Amount> Share<A> {
    /// The amount set aside, for a round of either kind.
    #[inline]
    pub fn held(&self) -> A {
        self.round.as_ref().map_or(A::default(), |round| round.held).plus(self.held_by_subset())
    }

    /// The round among a subset that the site is in.
    #[inline]
    pub fn part(&self) -> Option<&Part<A>> {
        self.subset.as_ref()?.part.as_ref()
    }

    /// True if a round of the majority may count on a line of this share.
    pub fn is_offered(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.first.is_some())
    }

    /// The amount that may be granted or given away now. A site that is new to the entity has nothing.
    #[inline]
    pub fn free(&self, site: Membership) -> A {
        match &self.round {
            _ if self.table.is_over() || self.table.is_new(site) => A::default(),
            Some(round) if round.closing => A::default(),
            Some(round) => self.tokens.minus(round.held).minus(self.held_by_subset()),
            None => self.tokens.minus(self.held_by_subset()),
        }
    }

    /// The amount set aside for a round among a subset.
    #[inline]
    fn held_by_subset(&self) -> A {
        self.part().map_or(A::default(), |part| part.held)
    }

    /// Takes over the outcome of the instances up to `instance`.
    pub(super) fn adopt(&mut self, site: Membership, instance: u64, table: Table<A>) {
        assert!(instance > self.applied, "an instance is applied a second time");

        // Exactly once: a row changes the share whose number it names, and the number counts up in the same write. The newest
        // table has every row that this site has not applied, since a site is in no later instance before it has.
        let mut change = None;
        if let Some(settled) = table.settled(site.me)
            && settled.row.incarnation == site.incarnation
            && settled.row.share == self.number
        {
            let round = self.round.as_ref().filter(|round| round.instance == settled.instance);
            let held = round.map_or(A::default(), |round| round.held);
            assert_eq!(held, settled.row.before, "a decided row takes what was set aside for it");

            // The share of a generation that is gone went with it.
            change = (settled.instance >= table.created).then_some((settled.row.before, settled.row.after));
            self.number += 1;
        }

        // Nothing of an earlier generation is left in a later one, nor in an entity that was deleted.
        let was_new = self.table.is_new(site);
        if table.generation != self.table.generation || table.limit.is_none() {
            self.tokens = A::default();

            // No value of it can be out: whoever votes for one is in a round among a subset, and a generation ends only when every
            // member has said that it is in none. One that is new to it was not asked, and joins none; an earlier version did.
            if let Some(record) = &mut self.subset
                && let Some(part) = record.part.take()
            {
                let is_open = part.accepted.is_some() && !was_new;
                assert!(!is_open, "a generation ends while a round among a subset is open");
            }
        }
        if let Some((before, after)) = change.filter(|_| table.limit.is_some()) {
            self.tokens = self.tokens.minus(before).plus(after);
        }
        self.applied = instance;
        self.table = table;
        self.round = None;
        self.check();
    }

    /// Asserts what holds between any two steps.
    pub(super) fn check(&self) {
        assert!(self.tokens.is_sound(), "a share is never negative");
        if let Some(part) = self.part() {
            assert!(self.tokens.minus(part.held).is_sound(), "more is set aside than there is");

            // A round of the majority that a site reported to while it was in this one has a line of nothing.
            let other = self.round.as_ref().map_or((A::default(), false), |round| (round.held, round.closing));
            assert_eq!(other, (A::default(), false), "a share is in two rounds");
        }
        let Some(round) = &self.round else { return };
        assert!(round.instance == self.applied + 1, "a site takes part in an instance only after the one before");
        assert!(self.tokens.minus(round.held).is_sound(), "more is set aside than there is");
        assert!(round.first.is_none_or(|first| first <= round.promised), "an offer to a ballot that was not promised");
        assert!(round.first.is_some() || round.held == A::default(), "what is set aside was offered to some ballot");
        let accepted = round.accepted.as_ref();
        assert!(accepted.is_none_or(|(ballot, _)| *ballot <= round.promised), "a vote below a promise");
    }

    /// Appends everything but `tokens`, which stands in the quota's hot row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.number);
        put_u64(out, self.applied);
        put_u64(out, u64::from(self.fresh.0));
        put_table(out, &self.table);
        let resized = self.table.is_resized();
        let reclaimed = self.table.reclaimed.as_ref();
        let subset = self.subset.as_ref();
        let is_changed = self.table.membership > 0 || self.table.roster.is_some();
        let is_chartered = self.table.charter != Charter::default();
        let flags = [
            (resized, RESIZED),
            (reclaimed.is_some(), RECLAIMED),
            (is_chartered, CHARTERED),
            (subset.is_some(), SUBSET),
            (is_changed, CHANGED),
        ];
        let flag = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum::<u8>();
        match &self.round {
            None => out.push(flag),
            Some(round) => {
                out.push(flag + 1 + u8::from(round.closing));
                put_u64(out, round.instance);
                put_ballot(out, round.promised);
                put_ballot(out, round.first.unwrap_or_default());
                round.held.encode(out);
                match &round.accepted {
                    None => out.push(0),
                    Some((ballot, value)) => {
                        out.push(1);
                        put_ballot(out, *ballot);
                        put_value(out, value);
                    }
                }
            }
        }
        if resized {
            put_u64(out, self.table.limited);
            self.table.excess.encode(out);
        }
        if let Some(reclaimed) = reclaimed {
            reclaimed.encode(out);
        }
        if is_chartered {
            self.table.charter.encode(out);
        }
        if let Some(record) = subset {
            record.encode(out);
        }

        if is_changed {
            put_u64(out, self.table.membership);
            put_u64(out, self.table.created_in);
            out.push(u8::from(self.table.roster.is_some()));
            self.table.roster.iter().for_each(|roster| roster.encode(out));
        }
    }

    /// Reads what [`Share::encode`] wrote; `tokens` comes from the hot row.
    pub fn decode(cursor: &mut Cursor, tokens: A) -> Result<Self, Malformed> {
        // A restart takes up the round where it was: what was promised, set aside and accepted binds this life too.
        let (number, applied) = (cursor.u64()?, cursor.u64()?);
        let (fresh, mut table) = (Incarnation(cursor.u32()?), read_table(cursor)?);
        let flags = cursor.u8()?;
        let kind = flags & !(RESIZED | RECLAIMED | CHARTERED | SUBSET | CHANGED);
        let round = match kind {
            0 => None,
            1 | 2 => {
                let (instance, promised, first) = (cursor.u64()?, read_ballot(cursor)?, read_ballot(cursor)?);
                let held = A::decode(cursor)?;
                let accepted = match cursor.u8()? {
                    0 => None,
                    1 => Some((read_ballot(cursor)?, read_value(cursor)?)),
                    _ => return Err(Malformed),
                };

                // Ballot numbers start at 1, so number 0 stands for "none".
                let first = (first.number > 0).then_some(first);
                Some(Box::new(Round { instance, promised, first, held, closing: kind == 2, accepted }))
            }
            _ => return Err(Malformed),
        };
        if flags & RESIZED > 0 {
            (table.limited, table.excess) = (cursor.u64()?, A::decode(cursor)?);
        }
        if flags & RECLAIMED > 0 {
            table.reclaimed = Some(Box::new(Reclaimed::decode(cursor)?));
        }
        if flags & CHARTERED > 0 {
            table.charter = Charter::decode(cursor)?;
        }
        let subset = if flags & SUBSET > 0 { Some(Box::new(Record::decode(cursor)?)) } else { None };
        if flags & CHANGED > 0 {
            (table.membership, table.created_in) = (cursor.u64()?, cursor.u64()?);
            table.roster = match cursor.u8()? {
                0 => None,
                1 => Some(Box::new(Roster::decode(cursor)?)),
                _ => return Err(Malformed),
            };
        }

        Ok(Self { tokens, number, applied, table, round, fresh, subset })
    }
}

/// Set in the byte that says what round a share is in, if what [`Table::is_resized`] tells of follows the round. Rows of quotas whose
/// limit never changed are as they always were.
const RESIZED: u8 = 4;
/// Set in the same byte, if [`Table::reclaimed`] follows that.
const RECLAIMED: u8 = 8;
/// Set in the same byte, if [`Table::charter`] follows that.
const CHARTERED: u8 = 16;
/// Set in the same byte, if what the site keeps of rounds among subsets follows that.
const SUBSET: u8 = 32;
/// Set in the same byte, if what the entity has recorded of changes of the members follows that.
const CHANGED: u8 = 64;

impl<A: Amount> Reclaimed<A> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.instance);
        [self.brought, self.in_use, self.all_brought, self.all_in_use].into_iter().for_each(|part| part.encode(out));
        put_u64(out, self.known.len() as u64);
        for (site, incarnation) in &self.known {
            put_site(out, *site);
            put_u64(out, u64::from(incarnation.0));
        }
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        Ok(Self {
            instance: cursor.u64()?,
            brought: A::decode(cursor)?,
            in_use: A::decode(cursor)?,
            all_brought: A::decode(cursor)?,
            all_in_use: A::decode(cursor)?,
            known: (0..cursor.u64()?)
                .map(|_| Ok((read_site(cursor)?, Incarnation(cursor.u32()?))))
                .collect::<Result<_, Malformed>>()?,
        })
    }
}

fn put_table<A: Amount>(out: &mut Vec<u8>, table: &Table<A>) {
    put_u64(out, u64::from(table.generation));
    put_u64(out, table.created);
    table.limit.unwrap_or_default().encode(out);
    put_u64(out, table.rows.len() as u64);
    for settled in &table.rows {
        put_u64(out, settled.instance);
        put_row(out, &settled.row);
    }
}

fn read_table<A: Amount>(cursor: &mut Cursor) -> Result<Table<A>, Malformed> {
    let (generation, created, limit) = (cursor.u32()?, cursor.u64()?, A::decode(cursor)?);
    let rows = (0..cursor.u64()?)
        .map(|_| Ok(Settled { instance: cursor.u64()?, row: read_row(cursor)? }))
        .collect::<Result<_, Malformed>>()?;
    // No limit is nothing, so that stands for "none".
    let limit = (limit != A::default()).then_some(limit);
    Ok(Table::from_parts(generation, created, limit, rows))
}

impl<A: Amount> Value<A> {
    /// True if the value may follow `table`: rows are of members, in order, with the share numbers that the table implies; each
    /// amount is one that a site may hold; the rows add up.
    pub fn fits(&self, table: &Table<A>, site: Membership) -> bool {
        let nothing = A::default();

        // One that was built before the members changed may be chosen already: it is judged by the members of its time.
        let is_earlier = self.membership < site.number;

        // Each site at most once: a second row of a site would be counted in the sum, and never be applied.
        let in_order = self.rows.windows(2).all(|pair| pair[0].site < pair[1].site);
        let sound = self.rows.iter().all(|row| {
            let expected = match table.settled(row.site) {
                Some(last) if last.row.incarnation == row.incarnation => row.share == last.row.share + 1,
                // A new incarnation starts with nothing; its predecessor's share counts as spent.
                Some(last) => row.incarnation > last.row.incarnation && row.share == 0 && row.before == nothing,
                // No round has named it yet; gifts it may have.
                None => row.share == 0 && (row.before == nothing || row.incarnation == Incarnation(1)),
            };
            let amounts = [row.before, row.after, row.kept];

            // In place of who is gone a later incarnation is recorded, which has nothing. What was there is lost.
            let is_seated = match site.gone.contains(&row.site) {
                true if !is_earlier => row.incarnation == Incarnation::GONE && row.after == nothing,
                _ => site.members.contains(&row.site),
            };
            expected && amounts.iter().all(|amount| amount.is_sound()) && is_seated
        });

        // Conservation: whatever the leader computed, nothing is made and nothing lost by it.
        let before = A::total(self.rows.iter().map(|row| row.before));
        let after = A::total(self.rows.iter().map(|row| row.after));
        let none = || A::total([].into_iter());
        let is_limit = |limit: A| limit.is_sound() && limit != nothing;
        let settled = table.settle(self.rows.iter().map(|row| row.before), self.lifecycle);
        let leaves = settled.map(|(after, _)| after);
        let adds_up = match self.lifecycle {
            // Of what does not exist, too, a round records who the members are.
            Lifecycle::Keep if table.limit.is_none() => before == none() && after == none(),
            Lifecycle::Keep => leaves == Some(after),
            Lifecycle::Seat { site: changed, gone } => {
                let is_nothing = before == none() && after == none();
                is_nothing && table.limit.is_none() && may_follow(site, changed, gone)
            }
            Lifecycle::Resize { limit } => is_limit(limit) && leaves == Some(after),
            // Acceptors do not have every site's books: they take the leader's word for what is lost. But it is of the incarnations that
            // are recorded.
            Lifecycle::Reclaim { brought, in_use } => {
                let is_recorded = |row: &Row<A>| row.incarnation == table.recorded(row.site);
                self.covers(site)
                    && self.rows.iter().all(is_recorded)
                    && brought.is_sound()
                    && in_use.is_sound()
                    && leaves == Some(after)
            }
            Lifecycle::Create { limit, .. } => {
                let is_new = table.limit.is_none() && before == none();
                is_new && is_limit(limit) && after == A::total([limit].into_iter())
            }
            Lifecycle::Delete => table.limit.is_some() && after == none() && self.covers(site),
        };
        in_order && sound && adds_up && !self.rows.is_empty() && self.membership <= site.number
    }

    /// True if it has a row of every member, of those of its time.
    fn covers(&self, site: Membership) -> bool {
        self.membership < site.number
            || self.rows.iter().filter(|row| site.is_present(row.site)).count() == site.count()
    }
}
