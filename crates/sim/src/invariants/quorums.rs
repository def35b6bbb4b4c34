//! Quorums: a value is put to the vote only at a ballot that a majority of *different* sites has promised. Agreement rests on it: of
//! what an earlier majority may have accepted, one of those who promise tells. That the same site is not counted twice shows
//! nowhere else, or once in many thousand rounds.

use std::collections::BTreeMap;

use slackline_core::avantan::Ballot;
use slackline_core::id::SiteSet;

/// The invariant's name.
pub const NAME: &str = "quorums";

/// Who has promised which ballots.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// By quota, in its newest instance.
    quotas: BTreeMap<String, (u64, BTreeMap<Ballot, SiteSet>)>,
}

impl Promises {
    /// A site sends its promise of a ballot to the ballot's leader.
    pub fn note(&mut self, quota: &str, instance: u64, ballot: Ballot, site: usize) {
        let of_quota = self.quotas.entry(quota.to_owned()).or_default();
        if instance > of_quota.0 {
            *of_quota = (instance, BTreeMap::new());
        }
        if instance == of_quota.0 {
            of_quota.1.entry(ballot).or_default().insert(site);
        }
    }

    /// Judges a leader, one of so many sites, that asks for votes at its ballot.
    pub fn check(&self, quota: &str, instance: u64, ballot: Ballot, leader: usize, sites: usize) -> Result<(), String> {
        // What is asked in an instance that others have left behind decides nothing any more.
        let Some((_, ballots)) = self.quotas.get(quota).filter(|(newest, _)| *newest <= instance) else {
            return Ok(());
        };

        // A leader promises its own ballot without telling itself.
        let promised = ballots.get(&ballot).copied().unwrap_or_default() | SiteSet::of(leader);
        if promised.positions().count() <= sites / 2 {
            let promised: Vec<usize> = promised.positions().collect();
            return Err(format!(
                "instance {instance}: a value is out at {ballot:?}, which {promised:?} of {sites} have promised"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::id::SiteId;

    #[test]
    fn value_without_promises_of_a_majority_is_noticed() {
        let ballot = Ballot { number: 3, site: SiteId::new(0, 0) };
        let mut promises = Promises::default();
        promises.note("gpus", 7, ballot, 1);
        promises.note("gpus", 7, ballot, 1);
        promises.note("gpus", 7, Ballot { number: 2, ..ballot }, 2);
        assert!(promises.check("gpus", 7, ballot, 0, 5).is_err(), "the same site twice");
        promises.note("gpus", 7, ballot, 4);
        assert_eq!(promises.check("gpus", 7, ballot, 0, 5), Ok(()));
        promises.note("gpus", 8, ballot, 4);
        assert_eq!(promises.check("gpus", 7, ballot, 0, 5), Ok(()), "nobody is in it any more");
        assert!(promises.check("gpus", 8, ballot, 0, 5).is_err());
    }
}
