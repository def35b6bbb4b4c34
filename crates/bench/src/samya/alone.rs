//! The bounds: sites that never speak to each other. With no constraint each grants whatever is asked of it; with no
//! redistribution each has its part of the limit, and an acquire waits for tokens that come back to its own site.

use super::ask::{Ask, Told};
use super::line::{Line, Waiting};
use super::modelled::{Books, Protocol};
use super::net::{Call, Net};

/// See the module.
#[derive(Debug)]
pub(super) struct Alone {
    /// The sites.
    sites: Vec<Site>,
    /// True if there is no limit.
    is_unlimited: bool,
}

/// One site.
#[derive(Debug, Default)]
struct Site {
    /// Its tokens.
    free: i64,
    /// Granted and not taken back here.
    in_use: i64,
    /// Those that wait.
    line: Line,
}

impl Alone {
    /// Sites that grant whatever they are asked for.
    pub(super) fn unlimited(sites: usize) -> Self {
        let sites = (0..sites).map(|_| Site::default()).collect();
        Self { sites, is_unlimited: true }
    }

    /// Sites that have equal parts of a limit.
    pub(super) fn divided(sites: usize, limit: i64) -> Self {
        let sites = equal_parts(sites, limit).map(|free| Site { free, ..Site::default() }).collect();
        Self { sites, is_unlimited: false }
    }
}

/// A limit in equal parts; the first sites have what is left over.
pub(super) fn equal_parts(sites: usize, limit: i64) -> impl Iterator<Item = i64> {
    let (each, extra) = (limit / sites as i64, limit % sites as i64);
    (0..sites as i64).map(move |site| each + i64::from(site < extra))
}

impl Protocol for Alone {
    type Message = ();

    fn site_of(&self, region: usize) -> usize {
        region
    }

    fn request(&mut self, net: &mut Net<()>, at: usize, call: Call) {
        let site = &mut self.sites[at];
        match call.ask {
            Ask::Acquire { amount, .. } if self.is_unlimited => {
                site.in_use += amount;
                net.write();
                net.answer(call, Told::Granted, true);
            }
            Ask::Acquire { amount, .. } if site.line.is_empty() && amount <= site.free => {
                site.free -= amount;
                site.in_use += amount;
                net.write();
                net.answer(call, Told::Granted, true);
            }
            Ask::Acquire { amount, deadline } => {
                let latest = net.latest(at, call.region, deadline);
                site.line.push(Waiting { call, amount, latest });
                net.wake(at, latest + 1, 0);
            }
            Ask::Release { amount } => {
                site.in_use -= amount;
                site.free += if self.is_unlimited { 0 } else { amount };
                net.write();
                net.answer(call, Told::Done, true);
                site.serve(net);
            }
            Ask::Read => net.answer(call, Told::Done, true),
        }
    }

    fn message(&mut self, _: &mut Net<()>, _: usize, _: usize, (): ()) {
        unreachable!("these sites send nothing");
    }

    fn timer(&mut self, net: &mut Net<()>, at: usize, _: u64) {
        self.sites[at].serve(net);
    }

    fn books(&self) -> Books {
        let sum = |of: fn(&Site) -> i64| self.sites.iter().map(of).sum();
        Books { free: sum(|site| site.free), under_way: 0, in_use: sum(|site| site.in_use) }
    }

    fn moves(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl Site {
    /// Serves those that wait, as far as the tokens go.
    fn serve(&mut self, net: &mut Net<()>) {
        self.line.drop_late(net.now());
        while let Some(Waiting { call, amount, .. }) = self.line.take_within(self.free) {
            self.free -= amount;
            self.in_use += amount;
            net.write();
            net.answer(call, Told::Granted, true);
        }
    }
}
