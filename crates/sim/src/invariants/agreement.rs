//! Agreement per round: no two sites come to different tables for the same instance of the same quota.

use std::collections::BTreeMap;

use slackline_core::avantan::{Row, Table};

/// The invariant's name.
pub const NAME: &str = "agreement";

/// What every decided instance of one quota came to.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// The table of each instance that somebody applied.
    tables: BTreeMap<u64, Table>,
}

impl Decisions {
    /// A site has applied every instance up to `instance`, and says that they came to `table`.
    pub fn note(&mut self, instance: u64, table: &Table) -> Result<(), String> {
        if instance == 0 {
            return Ok(());
        }
        if let Some(known) = self.tables.get(&instance) {
            if known != table {
                return Err(format!("instance {instance} was applied as {table:?} and as {known:?}"));
            }
            return Ok(());
        }

        // While a limit stays, what is out beyond it only falls.
        let before = self.tables.range(..instance).next_back().filter(|(_, before)| before.limited == table.limited);
        if let Some((at, before)) = before.filter(|(_, before)| before.excess < table.excess) {
            let (was, is) = (before.excess, table.excess);
            return Err(format!("an excess has risen: from {was} in instance {at} to {is} in instance {instance}"));
        }
        self.tables.insert(instance, table.clone());
        Ok(())
    }

    /// The newest instance that somebody applied, and its table.
    pub fn newest(&self) -> Option<(u64, &Table)> {
        self.tables.last_key_value().map(|(instance, table)| (*instance, table))
    }

    /// The table of one instance.
    pub fn table(&self, instance: u64) -> Option<&Table> {
        self.tables.get(&instance)
    }

    /// The rows decided after `applied`, with their instances.
    pub fn rows_after(&self, applied: u64) -> impl Iterator<Item = (u64, &Row)> {
        self.tables.range(applied + 1..).flat_map(|(&instance, table)| {
            table.rows().iter().filter(move |last| last.instance == instance).map(move |last| (instance, &last.row))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::avantan::Settled;
    use slackline_core::id::SiteId;

    fn table(after: i64) -> Table {
        let row = Row { site: SiteId::new(0, 0), after, ..Row::default() };
        Table::from_parts(1, 1, Some(10), vec![Settled { instance: 1, row }])
    }

    #[test]
    fn two_outcomes_of_one_instance_are_noticed() {
        let mut decisions = Decisions::default();
        assert_eq!(decisions.note(1, &table(10)), Ok(()));
        assert_eq!(decisions.note(1, &table(10)), Ok(()));
        assert!(decisions.note(1, &table(9)).is_err());
        assert_eq!(decisions.rows_after(0).count(), 1);
        assert_eq!(decisions.rows_after(1).count(), 0);
    }
}
