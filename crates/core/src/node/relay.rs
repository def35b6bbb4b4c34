//! Requests about another site's sessions: passed on to that site, and its responses passed back. The site that a client
//! happens to reach never carries out what another site's id names.

use std::collections::BTreeMap;

use crate::api::Response;
use crate::clock::{Now, SECOND};
use crate::id::SiteId;
use crate::machine::ClientId;

/// The most requests under way in each direction.
const RELAYS: usize = 65_536;
/// How long responses are passed back.
const PATIENCE: u64 = 60 * SECOND;
/// Marks the client ids of requests that another site passed on to us.
const RELAYED: u64 = 1 << 63;

/// Requests that pass through.
#[derive(Debug, Default)]
pub(super) struct Relays {
    next: u64,
    /// Passed on: token, who asked, until when.
    sent: BTreeMap<u64, (ClientId, u64)>,
    /// Served for another site: our name for it, the site, its token, until when.
    served: BTreeMap<u64, (SiteId, u64, u64)>,
    /// Clients that asked for the site's status in this turn.
    pub(super) status: Vec<ClientId>,
}

/// Whether the client is another site's.
pub(super) fn is_relayed(client: ClientId) -> bool {
    client.0 & RELAYED != 0
}

impl Relays {
    /// Names requests from here on: another number in each life, or a late response of an earlier life would go to whoever
    /// has its name now.
    pub(super) fn starting(from: u64) -> Self {
        Self { next: from, ..Self::default() }
    }

    /// A request is passed on; the token for it, unless too many are.
    pub(super) fn begin(&mut self, now: Now, client: ClientId) -> Option<u64> {
        if self.sent.len() >= RELAYS || is_relayed(client) {
            return None;
        }
        self.next += 1;
        self.sent.insert(self.next, (client, now.mono + PATIENCE));
        Some(self.next)
    }

    /// Whom a passed-back response is for. A batch may have several.
    pub(super) fn finish(&mut self, token: u64, response: &Response) -> Option<ClientId> {
        match response {
            Response::Batch { .. } => self.sent.get(&token).map(|(client, _)| *client),
            _ => self.sent.remove(&token).map(|(client, _)| client),
        }
    }

    /// Another site passes a request on; the client to name in its responses.
    pub(super) fn serve(&mut self, now: Now, site: SiteId, token: u64) -> Option<ClientId> {
        if self.served.len() >= RELAYS {
            return None;
        }
        self.next += 1;
        self.served.insert(self.next, (site, token, now.mono + PATIENCE));
        Some(ClientId(RELAYED | self.next))
    }

    /// The site and token that a response goes back to, if the client is another site's.
    pub(super) fn origin(&mut self, client: ClientId, response: &Response) -> Option<(SiteId, u64)> {
        if !is_relayed(client) {
            return None;
        }
        let at = client.0 & !RELAYED;
        let found = match response {
            Response::Batch { .. } => self.served.get(&at).copied(),
            _ => self.served.remove(&at),
        };
        found.map(|(site, token, _)| (site, token))
    }

    /// Forgets what nobody waits for any more.
    pub(super) fn tick(&mut self, now: Now) {
        while let Some(first) = self.sent.first_entry().filter(|entry| entry.get().1 <= now.mono) {
            first.remove();
        }
        while let Some(first) = self.served.first_entry().filter(|entry| entry.get().2 <= now.mono) {
            first.remove();
        }
    }
}
