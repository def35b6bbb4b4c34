//! What goes on is looked after: a quota that is not at rest at a site has a timer there. Without one, what waits is never answered, and a gift
//! that long arrived counts as under way for good.

use slackline_core::quota::Quota;

/// The invariant's name.
pub const NAME: &str = "what goes on is looked after";

/// All quotas of a site, between two turns.
pub fn check<'a>(mut quotas: impl Iterator<Item = &'a Quota>) -> Result<(), String> {
    match quotas.find(|quota| !quota.is_looked_after()) {
        Some(quota) => Err(format!("quota {} is not at rest, and nothing looks after it in time", quota.name())),
        None => Ok(()),
    }
}
