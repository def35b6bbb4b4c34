//! The experiments: which configurations they compare, and by what.

use std::fmt;
use std::str::FromStr;

use super::config::Config;

/// See the module. The figures are those of the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Table 2b: latencies over an hour.
    Latency,
    /// Figure 3b: throughput over an hour.
    Throughput,
    /// Figure 3c: a region is lost again and again.
    Crash,
    /// Figure 3d: the network falls into two parts.
    Partition,
    /// Figure 3e: against no constraint and no redistribution.
    Bounds,
    /// Figure 3f: with and without forecasts.
    Prediction,
    /// Figure 3g: 5 to 20 sites.
    Sites,
    /// Figure 3h: more and more reads.
    Reads,
    /// Section 5.9: other limits.
    Limit,
    /// Section 5.9: fewer requests.
    Rate,
    /// One token is taken and given back, as fast as it goes.
    Hot,
    /// A few tokens that many want.
    Small,
    /// Many quotas are short at once.
    Storm,
    /// Many quotas are at rest.
    Idle,
}

use Config::{
    Central, CentralWaiting, Demarcation, Escrow, MultiPaxos, NoConstraint, NoRedistribution, Quorum, SamyaAny,
    SamyaMajority, SamyaMajorityReactive, Slackline, SlacklineAny, SlacklineLocal, SlacklineReactive,
};

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 14] = [
        Experiment::Latency,
        Experiment::Throughput,
        Experiment::Crash,
        Experiment::Partition,
        Experiment::Bounds,
        Experiment::Prediction,
        Experiment::Sites,
        Experiment::Reads,
        Experiment::Limit,
        Experiment::Rate,
        Experiment::Hot,
        Experiment::Small,
        Experiment::Storm,
        Experiment::Idle,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Latency => "latency",
            Experiment::Throughput => "throughput",
            Experiment::Crash => "crash",
            Experiment::Partition => "partition",
            Experiment::Bounds => "bounds",
            Experiment::Prediction => "prediction",
            Experiment::Sites => "sites",
            Experiment::Reads => "reads",
            Experiment::Limit => "limit",
            Experiment::Rate => "rate",
            Experiment::Hot => "hot",
            Experiment::Small => "small",
            Experiment::Storm => "storm",
            Experiment::Idle => "idle",
        }
    }

    /// The configurations that it compares unless told otherwise.
    pub(super) fn usual(self) -> &'static [Config] {
        match self {
            Experiment::Latency => &[
                Slackline,
                SlacklineAny,
                SamyaMajority,
                SamyaMajorityReactive,
                SamyaAny,
                Demarcation,
                Escrow,
                MultiPaxos,
                Quorum,
                Central,
                CentralWaiting,
            ],
            Experiment::Throughput => &[Slackline, SamyaMajority, Demarcation, Escrow, MultiPaxos, Quorum],
            Experiment::Crash | Experiment::Partition => {
                &[Slackline, SlacklineAny, SamyaMajority, SamyaAny, MultiPaxos, Quorum]
            }
            Experiment::Bounds => &[NoConstraint, Slackline, SamyaMajority, NoRedistribution],
            Experiment::Prediction => &[Slackline, SlacklineReactive, SamyaMajority, SamyaMajorityReactive],
            Experiment::Sites | Experiment::Limit => &[Slackline, SamyaMajority],
            Experiment::Reads => &[Slackline, SlacklineLocal, SamyaMajority, MultiPaxos, Quorum],
            Experiment::Rate => &[Slackline, SamyaMajority, MultiPaxos, Quorum],
            Experiment::Hot => &[Slackline, SamyaMajority, Demarcation, Escrow, CentralWaiting, Quorum, MultiPaxos],
            Experiment::Small => {
                &[Slackline, NoConstraint, SamyaMajority, Demarcation, Escrow, CentralWaiting, Quorum, NoRedistribution]
            }
            Experiment::Storm | Experiment::Idle => &[Slackline, SlacklineReactive],
        }
    }

    /// Why a configuration has no place in it; none if it has one.
    pub(super) fn excludes(self, config: Config) -> Option<&'static str> {
        let borrows = matches!(config, Demarcation | Escrow);
        match self {
            Experiment::Storm | Experiment::Idle if !config.is_product() => Some("it is about the product alone"),
            Experiment::Crash | Experiment::Partition if borrows => {
                Some("sites that borrow lose tokens when a message is lost")
            }
            Experiment::Reads => None,
            _ if config == SlacklineLocal => Some("nothing is read in it"),
            _ => None,
        }
    }

    /// True if what is asked comes from a trace, so that it may be another one.
    pub(super) fn has_trace(self) -> bool {
        !matches!(
            self,
            Experiment::Sites
                | Experiment::Reads
                | Experiment::Hot
                | Experiment::Small
                | Experiment::Storm
                | Experiment::Idle
        )
    }

    /// True if it is about many quotas.
    pub(super) fn has_quotas(self) -> bool {
        matches!(self, Experiment::Storm | Experiment::Idle)
    }

    /// The time that it plays of a trace, or lets pass, in seconds.
    pub(super) fn seconds(self) -> f64 {
        match self {
            Experiment::Latency | Experiment::Throughput | Experiment::Bounds => 3_600.0,
            Experiment::Crash => 3_000.0,
            Experiment::Partition => 2_400.0,
            Experiment::Prediction | Experiment::Limit => 1_800.0,
            Experiment::Sites | Experiment::Idle => 600.0,
            Experiment::Rate => 720.0,
            Experiment::Reads => 2.0,
            Experiment::Hot => 5.0,
            Experiment::Small => 60.0,
            Experiment::Storm => 0.0,
        }
    }

    /// What `x` of its runs is; none if they have none.
    pub(super) fn axis(self) -> Option<&'static str> {
        match self {
            Experiment::Sites => Some("sites"),
            Experiment::Reads => Some("reads, in percent of all calls"),
            Experiment::Limit => Some("limit, in tokens"),
            Experiment::Rate => Some("seconds in which five minutes of the paper's data are played"),
            Experiment::Storm | Experiment::Idle => Some("quotas"),
            _ => None,
        }
    }

    /// The values of `x` unless told otherwise.
    pub(super) fn points(self) -> &'static [u64] {
        match self {
            Experiment::Sites => &[5, 10, 15, 20],
            Experiment::Reads => &[0, 20, 40, 60, 80, 90, 95, 99, 100],
            Experiment::Limit => &[1_000, 2_000, 3_000, 4_000, 5_000, 6_000],
            Experiment::Rate => &[5, 15, 60, 300],
            Experiment::Storm => &[1, 10, 100, 1_000],
            Experiment::Idle => &[100, 1_000, 10_000],
            _ => &[],
        }
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Experiment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|experiment| experiment.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Experiment::name).join(", ");
            format!("{text:?} is not an experiment: use {names}")
        })
    }
}
