//! The configurations: the product, the paper's system, its rivals, and bounds.

use std::fmt;
use std::str::FromStr;

use slackline_core::api::Agreement;
use slackline_sim::Costs;

use super::alone::Alone;
use super::any::SamyaAny;
use super::ask::System;
use super::avantan::Samya;
use super::borrow::Borrow;
use super::counter::Counter;
use super::geography::Globe;
use super::modelled::Modelled;
use super::net::Net;
use super::paxos::Paxos;
use super::product::{Product, Ways};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Config {
    /// The product.
    Slackline,
    /// The product; tokens move by rounds among any sites that answer.
    SlacklineAny,
    /// The product; it moves no tokens ahead of need.
    SlacklineReactive,
    /// The product; reads are what one site knows.
    SlacklineLocal,
    /// The paper's system with the majority version of Avantan, mended for safety only.
    SamyaMajority,
    /// The same; no round is led ahead of need.
    SamyaMajorityReactive,
    /// The same with the any-subset version.
    SamyaAny,
    /// The same; no round is led ahead of need.
    SamyaAnyReactive,
    /// A replicated counter: one commit at a time.
    MultiPaxos,
    /// The same at its best: pipelined, batched, late requests dropped.
    Quorum,
    /// Sites that borrow from one peer after another.
    Demarcation,
    /// The same at their best: from several at once.
    Escrow,
    /// Sites that grant whatever is asked of them.
    NoConstraint,
    /// Sites that have their part of the limit and no more.
    NoRedistribution,
    /// One counter that all regions ask, and that refuses at once.
    Central,
    /// The same; what does not fit waits.
    CentralWaiting,
}

impl Config {
    /// All of them.
    pub const ALL: [Config; 16] = [
        Config::Slackline,
        Config::SlacklineAny,
        Config::SlacklineReactive,
        Config::SlacklineLocal,
        Config::SamyaMajority,
        Config::SamyaMajorityReactive,
        Config::SamyaAny,
        Config::SamyaAnyReactive,
        Config::MultiPaxos,
        Config::Quorum,
        Config::Demarcation,
        Config::Escrow,
        Config::NoConstraint,
        Config::NoRedistribution,
        Config::Central,
        Config::CentralWaiting,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Config::Slackline => "slackline",
            Config::SlacklineAny => "slackline-any",
            Config::SlacklineReactive => "slackline-reactive",
            Config::SlacklineLocal => "slackline-local",
            Config::SamyaMajority => "samya-majority",
            Config::SamyaMajorityReactive => "samya-majority-reactive",
            Config::SamyaAny => "samya-any",
            Config::SamyaAnyReactive => "samya-any-reactive",
            Config::MultiPaxos => "multi-paxos",
            Config::Quorum => "quorum",
            Config::Demarcation => "demarcation",
            Config::Escrow => "escrow",
            Config::NoConstraint => "no-constraint",
            Config::NoRedistribution => "no-redistribution",
            Config::Central => "central",
            Config::CentralWaiting => "central-waiting",
        }
    }

    /// A short name, for tables.
    pub(super) fn short(self) -> &'static str {
        match self {
            Config::SlacklineAny => "any",
            Config::SlacklineReactive => "reactive",
            Config::SlacklineLocal => "local",
            Config::SamyaMajority => "samya",
            Config::SamyaMajorityReactive => "samya-reactive",
            Config::SamyaAnyReactive => "samya-any-re.",
            Config::NoRedistribution => "no-redistr.",
            Config::CentralWaiting => "waiting",
            other => other.name(),
        }
    }

    /// True if the sites of regions answer their clients themselves.
    pub(super) fn has_own_sites(self) -> bool {
        !matches!(self, Config::MultiPaxos | Config::Quorum | Config::Central | Config::CentralWaiting)
    }

    /// True if it is the product.
    pub(super) fn is_product(self) -> bool {
        matches!(self, Config::Slackline | Config::SlacklineAny | Config::SlacklineReactive | Config::SlacklineLocal)
    }

    /// True if it has a limit.
    pub(super) fn is_limited(self) -> bool {
        self != Config::NoConstraint
    }

    /// How the product is run.
    pub(super) fn ways(self) -> Ways {
        Ways {
            is_ahead: self != Config::SlacklineReactive,
            reads_locally: self == Config::SlacklineLocal,
            agreement: if self == Config::SlacklineAny { Agreement::Any } else { Agreement::Majority },
        }
    }

    /// A system of this configuration with a site for each of so many regions, or with the sites of a replicated database.
    pub(super) fn start(self, globe: &Globe, sites: usize, limit: i64, costs: Costs, seed: u64) -> Box<dyn System> {
        let place = if self.has_own_sites() { globe.shared(sites) } else { globe.replicated(sites) };
        let of = Some(limit);
        match self {
            Config::Slackline | Config::SlacklineAny | Config::SlacklineReactive | Config::SlacklineLocal => {
                Box::new(Product::new(&place, costs, seed, limit, self.ways()))
            }
            Config::SamyaMajority | Config::SamyaMajorityReactive => {
                let foresees = self == Config::SamyaMajority;
                Box::new(Modelled::new(Net::new(place, costs), Samya::new(sites, limit, foresees, seed), of))
            }
            Config::SamyaAny | Config::SamyaAnyReactive => {
                let foresees = self == Config::SamyaAny;
                Box::new(Modelled::new(Net::new(place, costs), SamyaAny::new(sites, limit, foresees, seed), of))
            }
            Config::MultiPaxos | Config::Quorum => {
                let net = Net::new(place, costs);
                let paxos = Paxos::new(&net, limit, self == Config::Quorum);
                Box::new(Modelled::new(net, paxos, of))
            }
            Config::Demarcation | Config::Escrow => {
                let net = Net::new(place, costs);
                let borrow = Borrow::new(&net, limit, self == Config::Escrow);
                Box::new(Modelled::new(net, borrow, of))
            }
            Config::NoConstraint => Box::new(Modelled::new(Net::new(place, costs), Alone::unlimited(sites), None)),
            Config::NoRedistribution => {
                Box::new(Modelled::new(Net::new(place, costs), Alone::divided(sites, limit), of))
            }
            Config::Central | Config::CentralWaiting => {
                let counter = Counter::new(limit, self == Config::CentralWaiting);
                Box::new(Modelled::new(Net::new(place, costs), counter, of))
            }
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(found) = Self::ALL.into_iter().find(|config| config.name() == text) {
            return Ok(found);
        }
        let names = Self::ALL.map(Config::name).join(", ");
        Err(format!("{text:?} is not a configuration: use {names}"))
    }
}
