//! A large error of a wall clock is noticed soon: the site that has it distrusts its clock.
//!
//! - **Error**: the distance of a site's wall clock from true time. It is *large* if it is at least 3ε and the shortest round
//!   trip to a majority: a peer's clock may itself be ε off, two clocks within ε of true time explain 2ε, and a lopsided way
//!   explains half the round trip on top of the half that it adds.
//! - **Exchange period**: how often a site asks each peer for its time, [`PING`].
//! - **Majority**: more than half of all sites, and a site cannot disagree with itself: so many *others*. The shortest round
//!   trip to a majority is that to the farthest of the nearest so many, as it was in the last exchange.
//! - A site **can hear** a peer, if both are up, serve and are not held up (by a pause, or by a slow disk, which every message
//!   waits for), nothing is wrong with the links between them, none of their pings and answers is lost, and the peer's own
//!   clock is within ε.
//!
//! A site that has had a large error for two exchange periods, and could hear a majority in all that time, must distrust its
//! clock.

use slackline_core::clock::{Now, SECOND};

/// The invariant's name.
pub const NAME: &str = "clock errors are noticed";
/// The exchange period, in microseconds.
pub use slackline_core::node::PING;
/// A clock that moved by this against the other one of its site since the last look was stepped, in microseconds.
const STEP: u64 = SECOND / 4;

/// What is known of one site's clock, and of whom it can hear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ear {
    /// Since when its clock has been off by more than 3ε, and the least that it was off by since.
    error: Option<(u64, u64)>,
    /// By peer, whom it can hear: since when, and the round trip of the last exchange.
    peers: Vec<Option<(u64, u64)>>,
    /// By how much its wall clock is ahead of its monotonic one, and since when, but for drift.
    lead: (i64, u64),
}

impl Ear {
    /// A site with a good clock that has heard nobody yet.
    pub fn new(sites: usize) -> Self {
        Self { error: None, peers: vec![None; sites], lead: (0, 0) }
    }

    /// Its clock is off by this much at `now`.
    pub fn note_error(&mut self, now: u64, error: u64, epsilon: u64) {
        self.error = (error > 3 * epsilon).then(|| {
            let (since, least) = self.error.unwrap_or((now, error));
            (since, least.min(error))
        });
    }

    /// What its clocks show at `now`. If the one was stepped, or the other stood, what it knew of others' clocks is void.
    pub fn note_time(&mut self, now: u64, shown: Now) {
        let lead = shown.wall.saturating_sub_unsigned(shown.mono);
        let is_stepped = lead.abs_diff(self.lead.0) > STEP;
        self.lead = (lead, if is_stepped { now } else { self.lead.1 });
    }

    /// Returns true if it can hear a peer at `now`, with at least this round trip.
    pub fn note_peer(&mut self, now: u64, peer: usize, can_hear: bool, rtt: u64) {
        self.peers[peer] = can_hear.then(|| self.peers[peer].unwrap_or((now, rtt)));
    }

    /// An exchange with a peer has taken this long.
    pub fn note_exchange(&mut self, peer: usize, rtt: u64) {
        if let Some((_, last)) = &mut self.peers[peer] {
            *last = rtt;
        }
    }

    /// Returns true if its error must have been noticed by `now`.
    pub fn must_distrust(&self, now: u64, epsilon: u64) -> bool {
        let Some((since, least)) = self.error else { return false };
        let heard = self.peers.iter().flatten().filter(|(from, _)| now >= since.max(*from) + 2 * PING);

        let mut rtts: Vec<u64> = heard.map(|(_, rtt)| *rtt).collect();
        rtts.sort_unstable();

        // Each exchange tells the time to within its round trip: of a majority, the slowest decides how large an error must be to show.
        let majority = self.peers.len() / 2 + 1;
        rtts.get(majority - 1).is_some_and(|rtt| least >= 3 * epsilon + rtt)
    }

    /// Returns true if it could hear a majority, so many others, for two exchange periods in which its clock was not stepped.
    pub fn hears_majority(&self, now: u64) -> bool {
        let heard = self.peers.iter().flatten().filter(|(since, _)| now >= self.lead.1.max(*since) + 2 * PING).count();
        heard > self.peers.len() / 2
    }

    /// Returns true if its clock is off.
    pub fn is_off(&self) -> bool {
        self.error.is_some()
    }

    /// Judges whether the site trusts its clock at `now`; true if it distrusts it as it must.
    pub fn check(&self, now: u64, epsilon: u64, is_trusted: bool) -> Result<bool, String> {
        match (self.must_distrust(now, epsilon), is_trusted) {
            (true, true) => Err(format!("it trusts its clock at {now}: {self:?}")),
            (must, _) => Ok(must),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPSILON: u64 = 10_000;

    /// One of five sites that can hear the first `peers` others since 1 s, and whose clock is off since then.
    fn ear(error: u64, peers: usize) -> Ear {
        let mut ear = Ear::new(5);
        ear.note_error(SECOND, error, EPSILON);
        (0..peers).for_each(|peer| ear.note_peer(SECOND, peer, true, (peer as u64 + 1) * 40_000));
        ear
    }

    #[test]
    fn large_error_that_is_not_noticed_in_two_periods_is_blamed() {
        let ear = ear(150_000, 3);
        assert_eq!(ear.check(3 * SECOND - 1, EPSILON, true), Ok(false));
        assert_eq!(ear.check(3 * SECOND, EPSILON, false), Ok(true));
        assert!(ear.check(3 * SECOND, EPSILON, true).is_err());
    }

    #[test]
    fn error_that_a_round_trip_explains_or_that_no_majority_can_show_is_not() {
        let is_fine = |ear: &Ear| ear.check(9 * SECOND, EPSILON, true) == Ok(false);
        assert!(is_fine(&ear(149_999, 3)), "the third round trip takes 120 ms");
        assert!(is_fine(&ear(20_000_000, 2)), "two others of five are no majority");
        let mut slow = ear(150_000, 3);
        slow.note_exchange(1, 300_000);
        assert!(is_fine(&slow));
        let mut cut = ear(150_000, 3);
        cut.note_peer(8 * SECOND, 0, false, 0);
        cut.note_peer(8 * SECOND + 1, 0, true, 40_000);
        assert!(is_fine(&cut), "it can hear a majority for a second only");
        let mut mended = ear(150_000, 3);
        mended.note_error(8 * SECOND, 5_000, EPSILON);
        mended.note_error(8 * SECOND + 1, 150_000, EPSILON);
        assert!(is_fine(&mended));
    }

    #[test]
    fn site_hears_a_majority_anew_after_its_clock_was_stepped() {
        let mut ear = ear(0, 3);
        let shows = |now: u64, ahead: i64| Now { wall: now as i64 + ahead, mono: now };
        ear.note_time(SECOND, shows(SECOND, 0));
        ear.note_time(2 * SECOND, shows(2 * SECOND, 1_000));
        assert!(!ear.hears_majority(3 * SECOND - 1) && ear.hears_majority(3 * SECOND));
        ear.note_time(3 * SECOND, shows(3 * SECOND, -2_000_000));
        assert!(!ear.hears_majority(5 * SECOND - 1) && ear.hears_majority(5 * SECOND));
    }
}
