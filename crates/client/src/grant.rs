//! Tokens that a caller has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::api;
use slackline_core::id::{GrantId, Incarnation};
use slackline_core::right::held_until;
use slackline_session::call::{Done, Place};
use slackline_session::command::Command;
use slackline_session::time::Time;

use crate::call::{Acquire, Call, Extend, Kind, Release, ReleaseGrant};
use crate::client::Client;

/// Tokens of a quota that are the caller's until it releases them, or until their time is up.
///
/// Dropping it gives nothing back: tokens are held until they are released or their time is up, not as long as a variable
/// lives. One that is only counted need not be kept: [`Quota::release`](crate::Quota::release) does as well.
#[derive(Clone, Debug)]
pub struct Grant {
    client: Client,
    id: GrantId,
    quota: Arc<str>,
    amount: i64,
    /// True if its site keeps it singly, so that it is released by its id, once.
    tracked: bool,
    /// Never later than its site takes it back; none if it does not do so by itself.
    expires_at: Option<Instant>,
}

/// A number that rises with every grant of a site, also across restarts and the loss of its disk. An outside resource
/// that remembers the highest fence it has seen **from a site** can turn an older holder away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence {
    /// The site's incarnation.
    pub incarnation: Incarnation,
    /// The grant's number within it.
    pub number: u64,
}

impl Grant {
    /// Its id.
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// Its id as it is written for people, such as `eu-1-17`.
    pub fn name(&self) -> String {
        self.client.topology().grant_text(self.id)
    }

    /// Its fence among the grants of [`Grant::site`].
    pub fn fence(&self) -> Fence {
        Fence { incarnation: self.id.incarnation, number: self.id.number }
    }

    /// The name of the site that granted it.
    pub fn site(&self) -> String {
        self.client.topology().name(self.id.site)
    }

    /// The quota's name.
    pub fn quota(&self) -> &str {
        &self.quota
    }

    /// Returns the number of tokens.
    pub fn amount(&self) -> i64 {
        self.amount
    }

    /// Returns true if it can be released by its id, once.
    pub fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// For a hold with an end: the instant from which the tokens are no longer the caller's. Counted from before the
    /// request was sent, less the error of the site's clock, so the site never takes them back earlier.
    pub fn expires_at(&self) -> Option<Instant> {
        self.expires_at
    }

    /// For a hold with an end: how much of it is left.
    pub fn remaining(&self) -> Option<Duration> {
        self.expires_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Gives the tokens back. A tracked grant goes back to the site that granted it, through another one if need be; one
    /// that is only counted goes to the nearest site. Returns how many tokens are back.
    ///
    /// The release of a hold with an end is [handed over](crate::Patience) to the client if its site says nothing for a second.
    pub fn release(&self) -> Call<Release> {
        // A tracked grant is known to its site alone. Tokens that are only counted are as good at any site, so those go to the nearest.
        let (lane, client) = (self.id.site.lane, self.client.clone());
        let call = if self.tracked {
            Call::new(client, lane, Command::ReleaseGrant { grant: self.id, used: 0 }, Place::Site(self.id.site))
        } else {
            Call::new(client, lane, Command::Release { quota: self.quota.clone(), amount: self.amount }, Place::Nearest)
        };
        call.of_hold(self.expires_at.is_some())
    }

    /// Gives back, once, what is not used of a tracked grant: reserve the most first, then settle. What is used stays granted, to the end
    /// of the hold or until it is released. Returns how many tokens are back.
    ///
    /// Refused as [`UnknownGrant`](crate::Reason::UnknownGrant) for a grant that is only counted: release what was not used of that by amount.
    pub fn settle(&self, used: i64) -> Call<ReleaseGrant> {
        self.client.settle_grant(self.id, used).of_hold(self.expires_at.is_some())
    }

    /// Puts the end of a hold off: it lasts for this long from now on, or to its earlier end if that is later. The value is the instant
    /// from which the tokens are no longer the caller's by this; [`Grant::expires_at`] stays what it was.
    pub fn extend(&self, duration: Duration) -> Call<Extend> {
        self.client.extend_grant(self.id, duration)
    }
}

impl Client {
    /// Gives a tracked grant back by its id, at the site that granted it. A second time is refused. Returns how many
    /// tokens are back.
    pub fn release_grant(&self, grant: GrantId) -> Call<ReleaseGrant> {
        self.settle_grant(grant, 0)
    }

    /// Gives back, once, what is not used of a tracked grant; see [`Grant::settle`].
    pub fn settle_grant(&self, grant: GrantId, used: i64) -> Call<ReleaseGrant> {
        Call::new(self.clone(), grant.site.lane, Command::ReleaseGrant { grant, used }, Place::Site(grant.site))
    }

    /// Puts the end of a hold off by its id; see [`Grant::extend`].
    pub fn extend_grant(&self, grant: GrantId, duration: Duration) -> Call<Extend> {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Call::new(self.clone(), grant.site.lane, Command::ExtendGrant { grant, micros }, Place::Site(grant.site))
    }
}

/// The instant from which a hold is no longer the caller's that lasts for a time from when the request was sent.
fn ends_at(client: &Client, (lasts, sent_at): (u64, Time)) -> Instant {
    let epsilon = u64::try_from(client.shared.epsilon.as_micros()).unwrap_or(u64::MAX);
    client.shared.clock.instant(Time(held_until(sent_at.0, lasts, epsilon)))
}

impl Kind for Extend {
    type Value = Instant;

    fn read(client: &Client, done: Done) -> Option<Instant> {
        let api::Outcome::Extended { lasts } = done.outcome else { return None };
        Some(ends_at(client, (lasts, done.sent_at?)))
    }
}

impl Kind for Acquire {
    type Value = Grant;

    fn read(client: &Client, done: Done) -> Option<Grant> {
        let api::Outcome::Granted { grant, lasts } = done.outcome else { return None };
        let Command::Acquire { quota, amount, hold, .. } = done.command else { return None };
        let tracked = hold != api::Hold::Counted;

        let expires_at = lasts.zip(done.sent_at).map(|end| ends_at(client, end));
        Some(Grant { client: client.clone(), id: grant, quota, amount, tracked, expires_at })
    }
}
