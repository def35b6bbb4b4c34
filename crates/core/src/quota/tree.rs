//! Trees of quotas. A grant of a quota counts in all that are above it, and so does what is given back.
//!
//! A site takes the tokens of all levels from its own shares, in one write: no message goes from level to level, and no crash comes
//! between two of them. While one level is short, the request waits in the line of that level alone, and holds nothing; when it could be
//! served there, all levels are looked at again. So a tree has no lock, and no order in which levels would have to be taken.
//!
//! A quota is bound to the **generation** of the one above it ([`Parent`]). A site closes none of which it knows one below, so a quota that
//! has others below it is not deleted. A creation may still cross the deletion, where a site has closed the one above before it votes for
//! the one below: then that grants nothing, and can only be emptied and deleted.
//!
//! A quota below another is deleted when nothing of it is in use, by the lines of all sites: what was in use would stay so above it, where
//! nobody could give it back.

use super::book::{Break, Place, Quotas};
use super::line::Waiting;
use super::one::{Above, Quota};
use crate::api::{Charter, LEVELS, Operation, Outcome, Parent, Refusal};
use crate::avantan::Lifecycle;
use crate::clock::SECOND;
use crate::turn::{Here, Ticket, Turn};

/// The positions of a quota and of those above it, the quota first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// The positions; those beyond `len` mean nothing.
    at: [u32; LEVELS],
    /// The number of levels.
    len: usize,
}

impl Path {
    fn of(at: usize) -> Self {
        let mut path = Self { at: [0; LEVELS], len: 1 };
        path.at[0] = at as u32;
        path
    }

    /// The quota itself.
    #[inline]
    pub(super) fn leaf(&self) -> usize {
        self.at[0] as usize
    }

    /// All levels, from the quota up.
    #[inline]
    pub(super) fn levels(&self) -> impl Iterator<Item = usize> {
        self.at[..self.len].iter().map(|at| *at as usize)
    }
}

/// The round trips for which a site keeps what a request needs at one level while it waits at another: two rounds, of which the second
/// gathers all, and the gifts that are waited for before.
const SPARED: u64 = 8;

/// One above was deleted.
const GONE: Break = Break::Refused(Refusal::NoParent);

/// True if a name is that of a quota above it, which has so many bytes, `/` and more.
pub(super) fn is_name_below(name: &str, length: usize) -> bool {
    length > 0 && name.get(length..).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
}

impl Quotas {
    /// The quota at a position, and all above it.
    #[inline]
    pub(super) fn path(&self, at: usize) -> Result<Path, Break> {
        let (path, missing) = self.climb(at);
        missing.map_or(Ok(path), Err)
    }

    /// The quota at a position and those above it up to the first that is not there, and why it is not.
    #[inline]
    pub(super) fn climb(&self, at: usize) -> (Path, Option<Break>) {
        let mut path = Path::of(at);
        let mut below = at;
        while let Some(Parent { length, generation }) = self.list[below].parent() {
            // Nearly always it is known by its number, and no name has to be looked up. A charter of this turn may name another.
            let Quota { name, above, .. } = &self.list[below];
            let noted = above.number.filter(|_| above.length == length).and_then(|number| self.position_of(number));
            let length = usize::from(length);

            // Whatever a member has said, a name is longer than that of the one above it: nothing is its own parent.
            if noted.is_none() && !is_name_below(name, length) {
                return (path, Some(GONE));
            }
            let above = noted.or_else(|| self.position(&name[..length]));
            let Some(above) = above else { return (path, Some(Break::Unheard(length))) };
            let table = &self.list[above].avantan.share.table;
            match () {
                () if table.generation < generation => return (path, Some(Break::Unheard(length))),
                () if table.generation > generation || table.limit.is_none() => return (path, Some(GONE)),
                () if path.len == LEVELS => return (path, Some(GONE)),
                () => {}
            }
            path.at[path.len] = above as u32;
            path.len += 1;
            below = above;
        }

        (path, None)
    }

    /// Why a request can never be granted: it is above the limit of a level.
    #[inline]
    pub(super) fn above_limit(&self, path: &Path, request: &Waiting) -> Option<Refusal> {
        path.levels().find_map(|at| {
            let limit = self.list[at].limit().filter(|limit| request.amount > *limit)?;
            Some(Refusal::AboveLimit { limit, level: self.level_name(at, request.quota) })
        })
    }

    /// The first level that cannot grant so much now.
    #[inline]
    pub(super) fn short_level(&self, here: &Here, path: &Path, amount: i64) -> Option<usize> {
        path.levels().find(|&at| self.is_short(here, at, amount))
    }

    /// True if a level cannot grant so much now.
    #[inline]
    fn is_short(&self, here: &Here, at: usize, amount: i64) -> bool {
        let Quota { avantan, activity, queued, .. } = &self.list[at];

        // What is too little for one that stays in line is saved for it.
        let is_saved = *queued && activity.as_ref().is_some_and(|activity| activity.waiting.has_staying());
        amount > avantan.share.free(here.site) || is_saved
    }

    /// The same for the first in the line of one level, for the others of its path. Who waits at a level below came later than this one, or stayed
    /// there when it went up: what is free there is not saved for them.
    pub(super) fn short_level_beside(&self, here: &Here, path: &Path, at: usize, amount: i64) -> Option<usize> {
        let lacks = |level: usize| amount > self.list[level].avantan.share.free(here.site);
        path.levels().filter(|&level| level != at).find(|&level| match self.is_below(level, at) {
            true => lacks(level),
            false => self.is_short(here, level, amount),
        })
    }

    /// True if one level of a path is below another one.
    pub(super) fn is_below(&self, level: usize, other: usize) -> bool {
        self.list[level].name.len() > self.list[other].name.len()
    }

    /// A request goes to the line of the level that is `short`. What it needs at the others stays at the site for a while, where anybody may be
    /// granted it: else a level that has gathered enough would have given it away by the time that the next one has, again and again.
    pub(super) fn spare(&mut self, here: &Here, path: &Path, short: usize, amount: i64) {
        let until = here.now.mono + SPARED * here.longest_round_trip() + SECOND;
        for at in path.levels().filter(|&level| level != short) {
            let activity = self.activity(here, at);
            let spared = activity.spared(here.now.mono).max(amount);
            activity.shortage.spared = (spared, until);
        }
    }

    /// How a refusal names the level at which a request was refused.
    pub(super) fn level_name(&self, at: usize, asked_for: u64) -> u16 {
        let quota = &self.list[at];
        if quota.number == asked_for { 0 } else { quota.name.len() as u16 }
    }

    /// The levels of which a request that waits wants tokens, or why it gets none.
    pub(super) fn path_of(&self, request: &Waiting) -> Result<Path, Refusal> {
        let leaf = self.position_of(request.quota).filter(|&at| {
            let table = &self.list[at].avantan.share.table;
            table.limit.is_some() && table.generation == request.generation
        });
        let leaf = leaf.ok_or(Refusal::QuotaDeleted)?;
        self.path(leaf).map_err(|_| Refusal::NoParent)
    }

    /// Why a request that waits gets nothing, where the quota of whose line it is was deleted.
    pub(super) fn refusal_of_deleted(&self, at: usize, request: &Waiting) -> Refusal {
        if self.list[at].number == request.quota { Refusal::QuotaDeleted } else { Refusal::NoParent }
    }

    /// Lets an operation wait until a quota above another is heard of, or refuses it.
    pub(super) fn without_parent(
        &mut self,
        turn: &mut Turn,
        name: &str,
        missing: Break,
        ticket: Ticket,
        operation: &Operation,
        timeout: u64,
    ) -> Option<Outcome> {
        match missing {
            // A length that a path has was looked at against the name.
            Break::Unheard(length) => self.unknown_name(turn, &name[..length], ticket, operation, timeout),
            Break::Refused(refusal) => Some(Outcome::Refused(refusal)),
        }
    }

    /// What is to be agreed on of a quota that is to be created, once the one above it is known; or why it is not created.
    pub(super) fn charter_below(&self, here: &Here, name: &str, charter: Charter) -> Result<Charter, Break> {
        let Some(parent) = charter.parent else { return Ok(charter) };
        let length = usize::from(parent.length);
        let Some(at) = self.living(&name[..length]) else { return Err(Break::Unheard(length)) };

        // Another one may be there by now.
        if self.list[at].may_be_gone(here) {
            return Err(Break::Unheard(length));
        }
        let above = self.path(at)?;
        let generation = self.list[at].avantan.share.table.generation;
        match () {
            () if parent.generation != 0 && parent.generation != generation => Err(Break::Refused(Refusal::NoParent)),
            () if (charter.refill > 0) != self.list[at].refills() => Err(Break::Refused(Refusal::MixedRefill)),
            () if above.len == LEVELS => Err(Break::Refused(Refusal::TooDeep)),
            () => Ok(Charter { parent: Some(Parent { generation, ..parent }), ..charter }),
        }
    }

    /// True if this site knows of a quota right below the one at a position, of whichever generation of it, or has voted for the creation of one.
    /// A creation takes the votes of a majority, and a deletion the word of all.
    pub(super) fn has_children(&self, at: usize) -> bool {
        self.index.children.contains_key(&self.list[at].name)
    }

    /// Notes that a quota is below another, or no longer. What it is below changes with the row that says so.
    pub(super) fn note_parent(&mut self, at: usize) {
        let quota = &self.list[at];
        let (counted, bound) = (quota.above.length, quota.bound_below());
        if counted == bound {
            return;
        }
        let name = quota.name.clone();
        self.drop_child(&name, counted);
        if bound > 0 {
            *self.index.children.entry(name[..usize::from(bound)].into()).or_default() += 1;
        }
        let number = self.position(&name[..usize::from(bound)]).map(|above| self.list[above].number);
        self.list[at].above = Above { length: bound, number };
    }

    /// A quota of this name no longer counts as below the one whose name has so many bytes; zero for none.
    pub(super) fn drop_child(&mut self, name: &str, counted: u16) {
        let above = &name[..usize::from(counted)];
        if let Some(children) = self.index.children.get_mut(above) {
            *children -= 1;
            if *children == 0 {
                self.index.children.remove(above);
            }
        }
    }

    /// Refuses those that wait in the lines of other levels: for a quota that is gone, or for more than its limit, their own quota being this one
    /// or below it.
    pub(super) fn refuse_elsewhere(&mut self, turn: &mut Turn, at: usize, generation: u32) {
        let (number, limit) = (self.list[at].number, self.list[at].limit());
        let is_gone = limit.is_none() || self.list[at].avantan.share.table.generation != generation;
        let refusal = |quotas: &Self, request: &Waiting| match limit {
            _ if is_gone => {
                let is_of_it = request.quota == number && request.generation == generation;
                is_of_it.then_some(Refusal::QuotaDeleted)
            }
            Some(limit) if request.amount > limit => {
                let path = quotas.path_of(request).ok()?;
                let level = quotas.level_name(at, request.quota);
                path.levels().any(|level| level == at).then_some(Refusal::AboveLimit { limit, level })
            }
            _ => None,
        };
        let places = self.waits.places.values().filter_map(|place| match place {
            Place::Line { at: level, arrival } if *level as usize != at => Some((*level as usize, *arrival)),
            _ => None,
        });
        let over = places.filter_map(|(level, arrival)| {
            let request = self.list[level].activity.as_ref()?.waiting.get(arrival)?;
            Some((level, arrival, refusal(self, request)?))
        });
        let mut over: Vec<(usize, u64, Refusal)> = over.collect();
        over.sort_unstable_by_key(|(level, arrival, _)| (*level, *arrival));
        let mut levels: Vec<usize> = over.iter().map(|(level, ..)| *level).collect();
        levels.dedup();
        for (level, arrival, refusal) in over {
            let activity = self.list[level].activity.as_mut();
            let Some(request) = activity.and_then(|activity| activity.waiting.remove(arrival)) else { continue };
            turn.out.metrics.refused_waited += 1;
            self.finish(turn, request.ticket, Outcome::Refused(refusal));
        }

        // They may have held up those behind them.
        for level in levels {
            self.serve(turn, level);
            self.schedule(level);
        }
    }
}

impl Quota {
    /// The quota above it.
    #[inline]
    pub(super) fn parent(&self) -> Option<Parent> {
        self.avantan.share.table.charter.parent
    }

    /// The number of bytes of the name of the quota above it, or above the one for whose creation this site has voted; zero for none.
    fn bound_below(&self) -> u16 {
        let share = &self.avantan.share;
        let value = share.round.as_ref().and_then(|round| round.accepted.as_ref()).map(|(_, value)| value.lifecycle);
        let created = match value {
            Some(Lifecycle::Create { charter, .. }) => charter.parent,
            _ => None,
        };
        let length = self.parent().or(created).map_or(0, |parent| parent.length);
        if is_name_below(&self.name, usize::from(length)) { length } else { 0 }
    }
}
