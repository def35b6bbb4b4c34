//! The crash points of a build without them: each call does nothing.

use slackline_core::id::SiteId;
use slackline_core::machine::{Effect, Input};
use slackline_core::node::Node;

use crate::config::ConfigError;
use crate::links::Links;

#[derive(Debug)]
pub(crate) struct CrashPoints;

impl CrashPoints {
    pub(crate) fn from_environment(_: SiteId) -> Result<Self, ConfigError> {
        Ok(Self)
    }

    #[inline]
    pub(crate) fn arrived(&self, _: &Input<Node>) {}

    #[inline]
    pub(crate) fn gathered(&self, _: &[Effect<Node>]) {}

    #[inline]
    pub(crate) fn leaving(&self, _: &mut Vec<Effect<Node>>) {}

    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        false
    }

    pub(crate) async fn end(&self, _: &Links) {}
}
