//! Forgetting: all sites forget the same names in the same step, and none of a quota that exists. What is left of names that do not
//! exist any more is bounded.

use std::collections::BTreeMap;

use slackline_core::avantan::Table;
use slackline_core::clock::SECOND;

/// The invariant's name.
pub const NAME: &str = "forgetting";

/// For so long, beyond the time for which names are kept, a site may know one that does not exist, if all sites are up.
pub const SLACK: u64 = 60 * SECOND;

/// One step: the names that were forgotten in it.
#[derive(Clone, Debug)]
struct Step {
    /// The names.
    names: Vec<String>,
    /// The site that took it first.
    by: usize,
    /// True if some site has it durably, so that others may have been told.
    is_durable: bool,
    /// True if another site has taken it, too.
    is_told: bool,
}

/// What was forgotten, by epoch.
#[derive(Clone, Debug, Default)]
pub struct Steps(BTreeMap<u64, Step>);

impl Steps {
    /// A site enters an epoch, in a batch that it hands out. True if nobody did before.
    pub fn enter(&mut self, site: usize, epoch: u64, names: &[String]) -> Result<bool, String> {
        match self.0.get_mut(&epoch) {
            Some(known) if known.names == names => {
                known.is_told |= known.by != site;
                Ok(false)
            }
            Some(known) if known.is_durable => {
                Err(format!("in epoch {epoch}, {names:?} were forgotten, and elsewhere {:?}", known.names))
            }
            _ => {
                self.0.insert(epoch, Step { names: names.to_vec(), by: site, is_durable: false, is_told: false });
                Ok(true)
            }
        }
    }

    /// Notes that the batch with this step is durable.
    pub fn became_durable(&mut self, epoch: u64) {
        if let Some(step) = self.0.get_mut(&epoch) {
            step.is_durable = true;
        }
    }

    /// A site crashed: what it had decided and not made durable was never told.
    pub fn crashed(&mut self, site: usize) {
        self.0.retain(|_, step| step.is_durable || step.by != site);
    }

    /// A site has lost its disk: what it had decided, and nobody has heard, nobody ever will. The others decide anew.
    pub fn lost(&mut self, site: usize) {
        self.0.retain(|_, step| step.is_told || step.by != site);
    }

    /// Returns the number of times that a name was forgotten up to an epoch.
    pub fn life(&self, name: &str, epoch: u64) -> u32 {
        let steps = self.0.range(..=epoch);
        steps.filter(|(_, step)| step.names.iter().any(|known| known == name)).count() as u32
    }
}

/// Judges that a name is forgotten whose newest table is this.
pub fn check_forgotten(newest: Option<&Table>) -> Result<(), String> {
    match newest.and_then(|table| table.limit) {
        None => Ok(()),
        Some(limit) => Err(format!("it is forgotten, and exists with the limit {limit}")),
    }
}

/// Judges a name that a site knows although no quota of it exists, and of which nothing has changed for so long.
pub fn check_left(absent: u64, kept: u64) -> Result<(), String> {
    if absent <= kept + SLACK {
        return Ok(());
    }
    Err(format!("it does not exist, and is known {} s after it last changed", absent / SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_outcomes_of_one_step_are_noticed_unless_nobody_can_know_of_the_first() {
        let one = vec!["one".to_owned()];
        let mut steps = Steps::default();
        assert_eq!(steps.enter(0, 1, &one), Ok(true));
        steps.crashed(0);
        assert_eq!(steps.life("one", 1), 0);
        assert_eq!(steps.enter(0, 1, &[]), Ok(true));
        assert_eq!(steps.enter(1, 1, &one), Ok(true));
        steps.became_durable(1);
        assert_eq!(steps.enter(2, 1, &one), Ok(false));
        assert!(steps.enter(2, 1, &[]).is_err());
        assert_eq!((steps.life("one", 0), steps.life("one", 1), steps.life("two", 1)), (0, 1, 0));

        // What only a lost disk knew is decided anew; what another site has heard stays.
        steps.lost(1);
        assert!(steps.enter(0, 1, &[]).is_err());
        assert_eq!(steps.enter(0, 2, &one), Ok(true));
        steps.became_durable(2);
        steps.lost(0);
        assert_eq!(steps.enter(1, 2, &[]), Ok(true));
    }

    #[test]
    fn forgotten_quota_that_exists_and_name_that_stays_are_noticed() {
        assert!(check_forgotten(Some(&Table::from_parts(1, 1, Some(5), Vec::new()))).is_err());
        assert_eq!(check_forgotten(Some(&Table::from_parts(1, 1, None, Vec::new()))), Ok(()));
        assert_eq!(check_left(SLACK, 1), Ok(()));
        assert!(check_left(SLACK + 2, 1).is_err());
    }
}
