//! Sites that have parts of the limit and borrow from each other, without agreement and without forecasts.
//!
//! | | `demarcation` | `escrow` |
//! | --- | --- | --- |
//! | a site that is short asks | one peer after another, near ones first | all peers at once |
//! | a peer lends | what is missing, if it has it | that, or half of what it has if that is more |
//!
//! A peer where somebody waits lends nothing. When all were asked and somebody still waits, the site asks again after a pause. A
//! lost message would lose tokens, so these run on a network that loses none, as in the paper.

use super::alone::equal_parts;
use super::ask::{Ask, Told};
use super::line::{Line, Waiting};
use super::modelled::{Books, Protocol};
use super::net::{Call, Net};

/// A site that all peers could not help asks again after so long, in microseconds.
const PAUSE: u64 = 100_000;
/// The timer of an acquire whose time is over.
const LATE: u64 = 0;
/// The timer of a site that asks again.
const AGAIN: u64 = 1;

/// What sites say to each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// So many tokens are missing here.
    Borrow(i64),
    /// So many are lent.
    Lend(i64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Borrow {
    sites: Vec<Site>,
    /// Tokens in messages.
    under_way: i64,
    /// Loans of at least one token.
    loans: u64,
    /// True for `escrow`.
    is_at_once: bool,
}

/// One site.
#[derive(Debug)]
struct Site {
    free: i64,
    /// Granted and not taken back here.
    in_use: i64,
    line: Line,
    /// The other sites, near ones first.
    peers: Vec<usize>,
    /// Where it is in asking the others.
    asking: Asking,
}

/// Where a site is in asking its peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asking {
    /// It asks nobody.
    Idle,
    /// It waits for so many answers, and has asked so many peers.
    Awaits { answers: usize, asked: usize },
    /// All were asked; it pauses.
    Pauses,
}

impl Borrow {
    /// Sites with equal parts of a limit.
    pub(super) fn new(net: &Net<Message>, limit: i64, is_at_once: bool) -> Self {
        let sites = net.sites();
        let peers = |site: usize| {
            let mut peers: Vec<usize> = (0..sites).filter(|&peer| peer != site).collect();
            peers.sort_by_key(|&peer| net.geography().between(site, peer));
            peers
        };
        let site =
            |(site, free)| Site { free, in_use: 0, line: Line::default(), peers: peers(site), asking: Asking::Idle };
        let sites = equal_parts(sites, limit).enumerate().map(site).collect();
        Self { sites, under_way: 0, loans: 0, is_at_once }
    }

    /// Asks peers, if somebody waits and nobody is asked.
    fn seek(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        let missing = site.line.needed() - site.free;
        if site.asking != Asking::Idle || missing <= 0 || site.peers.is_empty() {
            return;
        }
        let asked = if self.is_at_once { site.peers.len() } else { 1 };
        site.asking = Asking::Awaits { answers: asked, asked };
        site.peers[..asked].iter().for_each(|&peer| net.send(peer, Message::Borrow(missing)));
    }

    /// An answer has come: goes on with the next peer, or pauses when all were asked.
    fn go_on(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        let Asking::Awaits { answers, asked } = site.asking else { unreachable!("it was asked for") };
        if answers > 1 {
            site.asking = Asking::Awaits { answers: answers - 1, asked };
            return;
        }

        let missing = site.line.needed() - site.free;
        if missing <= 0 {
            site.asking = Asking::Idle;
        } else if asked < site.peers.len() {
            site.asking = Asking::Awaits { answers: 1, asked: asked + 1 };
            net.send(site.peers[asked], Message::Borrow(missing));
        } else {
            site.asking = Asking::Pauses;
            net.wake(at, net.now() + PAUSE, AGAIN);
        }
    }

    /// Serves those that wait, as far as the tokens go.
    fn serve(&mut self, net: &mut Net<Message>, at: usize) {
        let site = &mut self.sites[at];
        site.line.drop_late(net.now());
        while let Some(Waiting { call, amount, .. }) = site.line.take_within(site.free) {
            site.free -= amount;
            site.in_use += amount;
            net.write();
            net.answer(call, Told::Granted, false);
        }
    }
}

impl Protocol for Borrow {
    type Message = Message;

    fn site_of(&self, region: usize) -> usize {
        region
    }

    fn request(&mut self, net: &mut Net<Message>, at: usize, call: Call) {
        let site = &mut self.sites[at];
        match call.ask {
            Ask::Acquire { amount, .. } if site.line.is_empty() && amount <= site.free => {
                site.free -= amount;
                site.in_use += amount;
                net.write();
                net.answer(call, Told::Granted, true);
            }
            Ask::Acquire { amount, deadline } => {
                let latest = net.latest(at, call.region, deadline);
                site.line.push(Waiting { call, amount, latest });
                net.wake(at, latest + 1, LATE);
                self.seek(net, at);
            }
            Ask::Release { amount } => {
                site.free += amount;
                site.in_use -= amount;
                net.write();
                net.answer(call, Told::Done, true);
                self.serve(net, at);
            }
            Ask::Read => net.answer(call, Told::Done, true),
        }
    }

    fn message(&mut self, net: &mut Net<Message>, at: usize, from: usize, message: Message) {
        match message {
            Message::Borrow(missing) => {
                let site = &mut self.sites[at];
                let half = if self.is_at_once { site.free / 2 } else { 0 };
                let lent = if site.line.is_empty() { missing.max(half).min(site.free) } else { 0 };

                // Written down before it is told, so that a token is never in two places.
                site.free -= lent;
                self.under_way += lent;
                self.loans += u64::from(lent > 0);
                net.write();
                net.send(from, Message::Lend(lent));
            }
            Message::Lend(lent) => {
                self.under_way -= lent;
                self.sites[at].free += lent;
                net.write();
                self.serve(net, at);
                self.go_on(net, at);
            }
        }
    }

    fn timer(&mut self, net: &mut Net<Message>, at: usize, token: u64) {
        if token == AGAIN {
            self.sites[at].asking = Asking::Idle;
        }
        self.serve(net, at);
        self.seek(net, at);
    }

    fn books(&self) -> Books {
        let sum = |of: fn(&Site) -> i64| self.sites.iter().map(of).sum();
        Books { free: sum(|site| site.free), under_way: self.under_way, in_use: sum(|site| site.in_use) }
    }

    fn moves(&self) -> (u64, u64) {
        (0, self.loans)
    }
}
