//! One counter in one place that all regions ask. It refuses at once what does not fit (`central`), or lets it wait in line
//! (`central-waiting`).

use super::ask::{Ask, Told};
use super::line::{Line, Waiting};
use super::modelled::{Books, Protocol};
use super::net::{Call, Net};

/// The site that has the counter.
const SERVER: usize = 0;

/// See the module.
#[derive(Debug)]
pub(super) struct Counter {
    free: i64,
    in_use: i64,
    line: Line,
    /// True if what does not fit waits.
    waits: bool,
}

impl Counter {
    /// A counter of this many tokens.
    pub(super) fn new(limit: i64, waits: bool) -> Self {
        Self { free: limit, in_use: 0, line: Line::default(), waits }
    }

    fn grant(&mut self, net: &mut Net<()>, call: Call, amount: i64, is_local: bool) {
        self.free -= amount;
        self.in_use += amount;
        net.write();
        net.answer(call, Told::Granted, is_local);
    }

    /// Serves those that wait, as far as the tokens go.
    fn serve(&mut self, net: &mut Net<()>) {
        self.line.drop_late(net.now());
        while let Some(Waiting { call, amount, .. }) = self.line.take_within(self.free) {
            self.grant(net, call, amount, false);
        }
    }
}

impl Protocol for Counter {
    type Message = ();

    fn site_of(&self, _: usize) -> usize {
        SERVER
    }

    fn request(&mut self, net: &mut Net<()>, at: usize, call: Call) {
        // Clients beside it wait for nothing that is far away.
        let is_local = !net.geography().is_wide(call.region, at);
        match call.ask {
            Ask::Acquire { amount, .. } if self.line.is_empty() && amount <= self.free => {
                self.grant(net, call, amount, is_local);
            }
            Ask::Acquire { .. } if !self.waits => net.answer(call, Told::Refused, is_local),
            Ask::Acquire { amount, deadline } => {
                let latest = net.latest(at, call.region, deadline);
                self.line.push(Waiting { call, amount, latest });
                net.wake(at, latest + 1, 0);
            }
            Ask::Release { amount } => {
                self.free += amount;
                self.in_use -= amount;
                net.write();
                net.answer(call, Told::Done, is_local);
                self.serve(net);
            }
            Ask::Read => net.answer(call, Told::Done, is_local),
        }
    }

    fn message(&mut self, _: &mut Net<()>, _: usize, _: usize, (): ()) {
        unreachable!("the counter is alone");
    }

    fn timer(&mut self, net: &mut Net<()>, _: usize, _: u64) {
        self.serve(net);
    }

    fn books(&self) -> Books {
        Books { free: self.free, under_way: 0, in_use: self.in_use }
    }

    fn moves(&self) -> (u64, u64) {
        (0, 0)
    }
}
