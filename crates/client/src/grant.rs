//! Tokens that a caller has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::api;
use slackline_core::id::{GrantId, Incarnation};
use slackline_core::right::held_until;
use slackline_session::call::{Done, Place};
use slackline_session::command::Command;
use slackline_session::time::Time;

use crate::call::{Acquire, Call, Kind, Release, ReleaseGrant};
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
            Call::new(client, lane, Command::ReleaseGrant { grant: self.id }, Place::Site(self.id.site))
        } else {
            Call::new(client, lane, Command::Release { quota: self.quota.clone(), amount: self.amount }, Place::Nearest)
        };
        call.of_hold(self.expires_at.is_some())
    }
}

impl Client {
    /// Gives a tracked grant back by its id, at the site that granted it. A second time is refused. Returns how many
    /// tokens are back.
    pub fn release_grant(&self, grant: GrantId) -> Call<ReleaseGrant> {
        Call::new(self.clone(), grant.site.lane, Command::ReleaseGrant { grant }, Place::Site(grant.site))
    }
}

impl Kind for Acquire {
    type Value = Grant;

    fn read(client: &Client, done: Done) -> Option<Grant> {
        let api::Outcome::Granted { grant, lasts } = done.outcome else { return None };
        let Command::Acquire { quota, amount, hold } = done.command else { return None };
        let tracked = hold != api::Hold::Counted;

        let epsilon = u64::try_from(client.shared.epsilon.as_micros()).unwrap_or(u64::MAX);
        let until = |(lasts, sent_at): (u64, Time)| Time(held_until(sent_at.0, lasts, epsilon));
        let expires_at = lasts.zip(done.sent_at).map(until).map(|until| client.shared.clock.instant(until));
        Some(Grant { client: client.clone(), id: grant, quota, amount, tracked, expires_at })
    }
}
