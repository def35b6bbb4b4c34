//! Bounded refusal: what those could do who were up and connected all the time is done within a stated time. Faults of others are
//! no excuse, nor is a fault that is over.
//!
//! - A site is **well** while it is up and serves, is not held up (by a pause, a slow disk or a slow fetch), and its clocks are right.
//! - A group of sites is **sound** since the time from which each of them was well and each two were connected both ways, without
//!   delay by a fault and without a burst of losses.
//! - Its clocks are **settled** if they were right for [`CLOCKS`]: what a site promised by a clock that was ahead by some seconds is
//!   over by then. One that was ahead by an hour must not block anybody for an hour.
//!
//! | what | who must be sound | the bound, and what it rests on |
//! | --- | --- | --- |
//! | a transaction with a time of [`TIME`] or more is not refused as late or unreachable, nor left undecided | its coordinator and its homes, since [`SETTLED`] before it was sent, with settled clocks | a home counts as reachable from its first ping on, which comes each second; two phases take two round trips, and what is lost is sent again within two |
//! | objects are not said to be unreachable, nor late | the site and their homes, for as long | a read takes one round trip, and has two seconds |
//! | a part that is prepared does not stay in doubt | its home, the other participants and the coordinator | [`DOUBT`] after the deadline: whoever is in doubt asks at least every 2 s, and one answer of each suffices |
//! | a part that waits for rights gives up in time | its home | [`WAIT`] after the deadline: a timer of its own |
//! | an acquire is not refused that would leave as much as all sites wait for | its site, and those that have the free tokens, for [`TOKENS`] | digests are told within a second of news, and asked for after one round trip; after a round in vain nothing is asked for 2 s |
//! | a site that is new to a quota is recorded by a round; before, its acquires are not judged | all sites | [`RECORDED`]: who would lead it may have put it off for up to 17 s |
//! | a write that may not wait is refused, and the rights over what it writes are asked back | its home | [`ASKED_BACK`]; one that ends by itself within [`SOON`] is left |
//! | an acquire that stays in line is not refused as exhausted | nobody | it waits until its time is up |
//! | a quota is created or deleted | all sites, for [`SETTLED`] | two round trips after at most two rounds of others |
//!
//! What has its own reason is no refusal in this sense: that what was read has changed, that another transaction is in the way,
//! that rights of others have not ended (they last [`LONGEST`] at most), that storage was lost.

use slackline_core::api::{Operation, Outcome, Refusal, UnknownReason};
use slackline_core::clock::SECOND;
use slackline_core::object::{Abort, Cause, is_call};
use slackline_core::txn::Stage;
use slackline_core::warranty::LONGEST;

/// The invariant's name.
pub const NAME: &str = "bounded refusal";
/// For so long a group was sound before it must serve.
pub const SETTLED: u64 = 3 * SECOND;
/// For so long clocks were right before nothing that rests on them counts any more: a mark that a wrong clock has left stands no
/// farther ahead than the longest deadline.
pub const CLOCKS: u64 = LONGEST + 2 * SECOND;
/// A transaction that may take so long is judged.
pub const TIME: u64 = 3 * SECOND;
/// The longest time that a prepared part may be in doubt after its deadline.
pub const DOUBT: u64 = 8 * SECOND;
/// The longest time that a part may wait after its deadline.
pub const WAIT: u64 = 2 * SECOND;
/// For so long enough tokens were within reach before an acquire must be served.
pub const TOKENS: u64 = 4 * SECOND;
/// A round records a site that is new to a quota within this time, while all sites are sound: those that would lead it may have put it off
/// for as long as they do at most before.
pub const RECORDED: u64 = 40 * SECOND;
/// An acquire that may wait for so long is judged if it was refused as late.
pub const PATIENCE: u64 = 2 * SECOND;
/// A holder that was asked to give a right up so lately need not be asked again.
pub const ASKED_BACK: u64 = SECOND;
/// A right that ends so soon is not asked back.
pub const SOON: i64 = SECOND as i64;

/// Since when sites have been well, and pairs connected.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Since when each site has been well.
    sites: Vec<Option<u64>>,
    /// Since when both clocks of each site have been right.
    clocks: Vec<Option<u64>>,
    /// Since when each pair of sites has been connected, by both numbers, the lower first.
    links: Vec<Option<u64>>,
    /// When a message between them was lost last.
    lost: Vec<u64>,
}

impl Standing {
    /// Of so many sites, none of which was seen yet.
    pub fn new(sites: usize) -> Self {
        let links = sites * sites;
        Self { sites: vec![None; sites], clocks: vec![None; sites], links: vec![None; links], lost: vec![0; links] }
    }

    /// Where a pair of sites is found.
    fn link(&self, one: usize, other: usize) -> usize {
        one.min(other) * self.sites.len() + one.max(other)
    }

    /// Returns true if a site is well at `now`, its clocks aside.
    pub fn note_site(&mut self, now: u64, site: usize, is_well: bool) {
        self.sites[site] = is_well.then(|| self.sites[site].unwrap_or(now));
    }

    /// Returns true if a site's clocks are right at `now`.
    pub fn note_clocks(&mut self, now: u64, site: usize, are_right: bool) {
        self.clocks[site] = are_right.then(|| self.clocks[site].unwrap_or(now));
    }

    /// Returns true if two sites are connected at `now`.
    pub fn note_link(&mut self, now: u64, one: usize, other: usize, is_sound: bool) {
        let at = self.link(one, other);
        self.links[at] = is_sound.then(|| self.links[at].unwrap_or(now));
    }

    /// A message between two sites was lost at `now`.
    pub fn note_loss(&mut self, now: u64, one: usize, other: usize) {
        let at = self.link(one, other);
        self.lost[at] = now;
    }

    /// Since when a group is sound, if it is.
    pub fn sound_since(&self, group: &[usize]) -> Option<u64> {
        let mut since = 0;
        for (at, &site) in group.iter().enumerate() {
            since = since.max(self.sites[site]?).max(self.clocks[site]?);
            for &other in group[..at].iter().filter(|other| **other != site) {
                since = since.max(self.links[self.link(site, other)]?);
            }
        }
        Some(since)
    }

    /// Returns true if the clocks of a group have been right for long at `when`.
    pub fn is_settled(&self, group: &[usize], when: u64) -> bool {
        group.iter().all(|site| self.clocks[*site].is_some_and(|since| since == 0 || since + CLOCKS <= when))
    }

    /// Returns true if a message within a group was lost since.
    pub fn has_lost(&self, group: &[usize], since: u64) -> bool {
        group.iter().any(|&one| group.iter().any(|&other| self.lost[self.link(one, other)] >= since))
    }

    /// Returns true if a group must serve what was sent at `sent`: it was sound before, and is, with settled clocks, and lost
    /// nothing since.
    pub fn must_serve(&self, group: &[usize], sent: u64) -> bool {
        let is_sound = self.sound_since(group).is_some_and(|since| since + SETTLED <= sent);
        is_sound && self.is_settled(group, sent) && !self.has_lost(group, sent)
    }
}

/// Returns true if a cause says that somebody was late, or out of reach. That a call cannot be judged now is no such thing: its
/// function is run; nor that rights have not ended.
fn is_unserved(abort: &Abort) -> bool {
    let about_call = abort.key.as_ref().is_some_and(|key| is_call(&key.name));
    let about_rights = !abort.holders.is_empty() || abort.until.is_some();
    matches!(abort.cause, Cause::DeadlinePassed | Cause::Unreachable | Cause::NotReady) && !about_call && !about_rights
}

/// Judges what came of a transaction that a group had to serve.
pub fn check_transaction(outcome: &Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Aborted(abort) if is_unserved(abort) => {
            Err(format!("its homes were up and connected, and it ended as {abort:?}"))
        }
        Outcome::Unknown(UnknownReason::Undecided) => {
            Err("its homes were up and connected, and it is undecided".to_owned())
        }
        _ => Ok(()),
    }
}

/// Judges a read that a group had to serve.
pub fn check_read(abort: &Abort) -> Result<(), String> {
    if is_unserved(abort) {
        Err(format!("its home was up and connected, and it was not read: {abort:?}"))
    } else {
        Ok(())
    }
}

/// Judges a part that is not decided: `deadline` is the true time of its deadline, `sound` since when all are sound whom it needs.
pub fn check_part(now: u64, stage: Stage, deadline: u64, sound: Option<u64>) -> Result<(), String> {
    let bound = if stage == Stage::Prepared { DOUBT } else { WAIT };
    match sound {
        Some(sound) if now > sound.max(deadline) + bound => Err(format!(
            "it is {stage:?} at {now}, its deadline was {deadline}, and all whom it needs are sound since {sound}"
        )),
        _ => Ok(()),
    }
}

/// Judges a write that was refused because it may not wait for a right that lasts for another `left`: when one of those who are
/// in its way was asked to give that up last.
pub fn check_asked_back(now: u64, left: i64, asked: Option<u64>) -> Result<(), String> {
    if left < SOON || asked.is_some_and(|asked| asked + ASKED_BACK >= now) {
        return Ok(());
    }
    Err(format!("a write may not wait for rights that last for {left} us, and nobody was asked to give them up"))
}

/// Judges a site that is new to a quota `since` then, if it is; all sites are sound since `sound`.
pub fn check_new(now: u64, since: Option<u64>, sound: Option<u64>) -> Result<(), String> {
    match since.zip(sound) {
        Some((since, sound)) if now > since.max(sound) + RECORDED => {
            Err(format!("it is new since {since}, and no round has recorded it, though all are sound since {sound}"))
        }
        _ => Ok(()),
    }
}

/// Judges what came of an acquire, a creation or a deletion that was sent when its site, and others, could serve it; `timeout` is
/// how long it might wait.
pub fn check_operation(outcome: &Outcome, timeout: u64) -> Result<(), String> {
    let refused = match outcome {
        Outcome::Refused(Refusal::Exhausted { .. }) => true,
        Outcome::Refused(Refusal::Unreachable { .. } | Refusal::DeadlinePassed)
        | Outcome::Unknown(UnknownReason::Undecided) => timeout >= PATIENCE,
        _ => false,
    };
    if refused { Err(format!("those who had to serve it could, and it ended as {outcome:?}")) } else { Ok(()) }
}

/// Judges what came of an acquire that stays in line: its time alone may end that, or the quota's end.
pub fn check_in_line(operation: &Operation, outcome: &Outcome) -> Result<(), String> {
    let stays = matches!(operation, Operation::Acquire { waits: true, .. });
    match outcome {
        Outcome::Refused(Refusal::Exhausted { .. }) if stays => Err("it stays in line, and is exhausted".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::api::Hold;
    use slackline_core::id::SiteSet;
    use slackline_core::object::ObjectKey;

    /// Three sites, all sound since the start.
    fn standing() -> Standing {
        let mut standing = Standing::new(3);
        for site in 0..3 {
            standing.note_site(0, site, true);
            standing.note_clocks(0, site, true);
            (0..site).for_each(|other| standing.note_link(0, site, other, true));
        }
        standing
    }

    #[test]
    fn faults_of_others_are_no_excuse_and_own_ones_are_for_a_while() {
        let mut standing = standing();
        let now = 60 * SECOND;
        standing.note_site(now, 2, false);
        standing.note_link(now, 0, 2, false);
        assert!(standing.must_serve(&[0, 1], now));
        assert!(!standing.must_serve(&[0, 2], now));
        standing.note_site(now, 1, false);
        standing.note_site(now + 1, 1, true);
        assert!(!standing.must_serve(&[0, 1], now + SETTLED));
        assert!(standing.must_serve(&[0, 1], now + 1 + SETTLED));
        standing.note_loss(now + 2, 1, 0);
        assert!(!standing.must_serve(&[0, 1], now + 1));
        assert!(standing.must_serve(&[1], now + SETTLED + 1));
    }

    #[test]
    fn clock_that_was_wrong_is_an_excuse_for_as_long_as_a_deadline_lasts() {
        let mut standing = standing();
        let now = 60 * SECOND;
        standing.note_clocks(now, 0, false);
        standing.note_clocks(now + 1, 0, true);
        assert!(!standing.must_serve(&[0, 1], now + CLOCKS));
        assert!(standing.must_serve(&[0, 1], now + 1 + CLOCKS));
    }

    #[test]
    fn refusals_without_a_reason_are_noticed() {
        let abort = |cause| Outcome::Aborted(Box::new(Abort::of(cause)));
        assert!(check_transaction(&abort(Cause::DeadlinePassed)).is_err());
        assert!(check_transaction(&Outcome::Unknown(UnknownReason::Undecided)).is_err());
        assert!(check_transaction(&abort(Cause::Busy)).is_ok());
        let waits = Abort { until: Some(1), ..Abort::of(Cause::DeadlinePassed) };
        assert!(check_transaction(&Outcome::Aborted(Box::new(waits))).is_ok());
        assert!(check_read(&Abort::of(Cause::Unreachable)).is_err());
        let of_call = Abort { key: Some(ObjectKey::new(0, "\u{1}f()")), ..Abort::of(Cause::Unreachable) };
        assert!(check_read(&of_call).is_ok());
        assert!(check_part(60 * SECOND, Stage::Prepared, SECOND, Some(40 * SECOND)).is_err());
        assert!(check_part(60 * SECOND, Stage::Prepared, SECOND, Some(55 * SECOND)).is_ok());
        assert!(check_part(60 * SECOND, Stage::Defending, 55 * SECOND, Some(0)).is_err());
        assert!(check_part(60 * SECOND, Stage::Prepared, SECOND, None).is_ok());
        assert!(check_asked_back(9 * SECOND, SOON, None).is_err());
        assert!(check_asked_back(9 * SECOND, SOON, Some(7 * SECOND)).is_err());
        assert!(check_asked_back(9 * SECOND, SOON, Some(8 * SECOND)).is_ok());
        assert!(check_asked_back(9 * SECOND, SOON - 1, None).is_ok());
        assert!(check_operation(&Outcome::Refused(Refusal::DeadlinePassed), SECOND).is_ok());
        assert!(check_operation(&Outcome::Refused(Refusal::DeadlinePassed), PATIENCE).is_err());
        let acquire = |waits| Operation::Acquire { quota: "gpus".into(), amount: 1, hold: Hold::Counted, waits };
        let exhausted = Outcome::Refused(Refusal::Exhausted { asked: SiteSet::default(), retry_after: None, level: 0 });
        assert!(
            check_in_line(&acquire(true), &exhausted).is_err() && check_in_line(&acquire(false), &exhausted).is_ok()
        );
    }
}
