//! What models expect of the demand here, and what it was.

use super::book::{Quotas, TICK};
use crate::api::Forecast;
use crate::turn::Turn;

impl Quotas {
    /// Takes over what models expect. It changes what this site tells the others of its demand, and when it leads a round: which site
    /// owns a token is for gifts and rounds to say, and what may be granted for the share alone. So a forecast of any number is safe.
    pub(super) fn expect(&mut self, turn: &mut Turn, forecasts: Vec<Forecast>) {
        let now = turn.here.now.mono;
        for Forecast { quota, tokens, micros } in forecasts {
            // One that is not known here, or not created, has no demand.
            let Some(at) = self.living(&quota) else { continue };
            let activity = self.activity(&turn.here, at);
            activity.demand.expect(now, tokens, micros);
            activity.tick_at = activity.tick_at.min(now + TICK);
            self.schedule(at);
        }
    }

    /// The tokens that were asked for here since this site was opened, of a quota that exists.
    pub fn asked(&self, name: &str) -> Option<u64> {
        self.find(name).filter(|quota| quota.limit().is_some()).map(|quota| quota.asked.tokens)
    }
}
