//! What callers do that follow no trace.

use slackline_core::stats::Rng;

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Script {
    /// 64 callers a region take one token and give it back.
    Hot,
    /// 8 callers a region take 1 to 7 tokens, hold them for 50 to 200 ms and give them back.
    Small,
    /// As [`Script::Hot`], but this part of 100 of the calls are reads.
    Reads(u64),
}

impl Script {
    /// The number of callers in each region.
    pub(super) fn callers(self) -> usize {
        match self {
            Script::Hot | Script::Reads(_) => 64,
            Script::Small => 8,
        }
    }

    /// True if the next call is a read.
    pub(super) fn reads(self, rng: &mut Rng) -> bool {
        matches!(self, Script::Reads(percent) if rng.below(100) < percent)
    }

    /// The tokens that the next acquire wants.
    pub(super) fn amount(self, rng: &mut Rng) -> i64 {
        match self {
            Script::Hot | Script::Reads(_) => 1,
            Script::Small => 1 + rng.below(7) as i64,
        }
    }

    /// The time for which they are held, in microseconds.
    pub(super) fn hold(self, rng: &mut Rng) -> u64 {
        match self {
            Script::Hot | Script::Reads(_) => 0,
            Script::Small => 50_000 + rng.below(150_001),
        }
    }
}
