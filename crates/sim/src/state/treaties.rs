//! Treaties, and what is known of their counters: what each has come to by the batches of its home, and when each statement
//! was true.

use std::collections::BTreeMap;

use slackline_core::id::Incarnation;
use slackline_core::object::ObjectKey;
use slackline_core::object::treaty::Statement;
use slackline_session::txn::treaties::Treaty;

use crate::disk::Rows;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Treaties {
    /// One of each kind.
    pub(crate) all: Vec<Watched>,
    /// What a counter has come to, by its home's batches: the incarnation that wrote it last, and the number.
    pub(crate) counts: BTreeMap<ObjectKey, (Incarnation, i64)>,
    /// True if treaties are used.
    pub(crate) has_begun: bool,
}

/// A treaty, as it is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    /// What programs use.
    pub(crate) treaty: Treaty,
    /// Its object.
    pub(crate) key: ObjectKey,
    /// What it says.
    pub(crate) statement: Statement,
    /// Its counters.
    pub(crate) counters: Vec<ObjectKey>,
    /// When it became true or false, and which.
    pub(crate) turns: Vec<(u64, bool)>,
    /// The time up to which nobody can tell what its counters are: a home was lost, and has not written since. The end of time while that
    /// is so.
    pub(crate) blurred_until: u64,
    /// True if every program requires it that could break it, and no home was lost.
    pub(crate) is_guarded: bool,
    /// The bounds of each clause by home, as they were seen last, by the nonce of the making.
    pub(crate) bounds: BTreeMap<(u64, u32), BTreeMap<u16, i64>>,
    /// Of each clause, the number that it must be at least, and at how many homes it has terms.
    pub(crate) clauses: Vec<(i64, usize)>,
}

impl Watched {
    /// True if one of its counters is at a home.
    pub(crate) fn rests_on(&self, home: u16) -> bool {
        self.counters.iter().any(|key| key.home == home)
    }

    /// True if the statement is true now, as far as is known.
    pub(crate) fn is_true(&self) -> bool {
        self.turns.last().is_some_and(|(_, is_true)| *is_true)
    }
}

impl Treaties {
    /// What the counters of a treaty have come to.
    pub(crate) fn counts_of(&self, at: usize) -> Vec<(u16, i64)> {
        self.all[at].counters.iter().map(|key| (key.home, self.count(key))).collect()
    }

    /// What a counter has come to.
    pub(crate) fn count(&self, key: &ObjectKey) -> i64 {
        self.counts.get(key).map_or(0, |(_, count)| *count)
    }

    /// A counter is written. True if it is one of a treaty's.
    pub(crate) fn note(&mut self, key: &ObjectKey, incarnation: Incarnation, count: i64) -> bool {
        match self.counts.get_mut(key) {
            Some(known) => {
                *known = (incarnation, count);
                true
            }
            None => false,
        }
    }

    /// A home crashed: its counters are what its storage has.
    pub(crate) fn reread(&mut self, home: u16, incarnation: Incarnation, rows: &Rows) {
        let mut found: BTreeMap<&str, i64> = BTreeMap::new();
        for (key, row) in rows {
            if let Some((of, name, count)) = slackline_core::txn::counter_of_row(key, Some(row))
                && of == incarnation
            {
                found.insert(name, count);
            }
        }
        for (key, known) in self.counts.iter_mut().filter(|(key, _)| key.home == home) {
            // What an earlier incarnation had, and this one has not written yet, stays as it was.
            match found.get(&*key.name) {
                Some(count) => *known = (incarnation, *count),
                None if known.0 == incarnation => known.1 = 0,
                None => {}
            }
        }
    }
}
