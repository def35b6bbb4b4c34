//! A replicated counter: a leader has every change accepted by a majority before it answers.
//!
//! | | `multi-paxos` | `quorum` |
//! | --- | --- | --- |
//! | commits | one at a time, of one request | as many as there are, each of all requests of a millisecond |
//! | requests that can no longer be in time | are committed all the same, and their grants are given back | are dropped |
//! | acquires that come when many wait | are refused | wait |
//!
//! Reads are answered by the leader alone: in their turn in `multi-paxos`, as in the paper, and at once in `quorum`. The leader does
//! not change: experiments let the others fail first.

use std::collections::{BTreeMap, VecDeque};

use super::ask::{Ask, Told};
use super::line::{Line, Waiting};
use super::modelled::{Books, Protocol};
use super::net::{Call, Net};

/// The site that leads.
const LEADER: usize = 0;
/// For so long `quorum` collects requests into one commit, in microseconds.
const BATCH: u64 = 1_000;
/// Requests that wait for their commit at `multi-paxos`; with more, acquires are refused. A commit takes 62 ms, so those in line are in
/// time. In a line without a bound every acquire would be late as soon as more come than can be committed.
const LINE: usize = 16;
/// The timer that ends a batch.
const BATCH_ENDS: u64 = 0;
/// The timer of an acquire whose time is over.
const LATE: u64 = 1;

/// What the leader and the others say to each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// Accept the commit of this number.
    Accept(u64),
    /// It is accepted.
    Accepted(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Paxos {
    free: i64,
    in_use: i64,
    /// Requests whose turn has not come.
    arrived: VecDeque<Call>,
    /// Acquires that had their turn and wait for tokens.
    line: Line,
    /// Commits under way, by number: sites that have accepted, and the requests in it.
    commits: BTreeMap<u64, (usize, Vec<Call>)>,
    /// The number of the last commit.
    last: u64,
    /// True if the timer of a batch runs.
    is_batching: bool,
    /// True for `quorum`.
    is_pipelined: bool,
    /// The time of a commit, in microseconds: the round trip to the last site that a majority needs.
    commit_takes: u64,
}

impl Paxos {
    /// A counter of this many tokens.
    pub(super) fn new(net: &Net<Message>, limit: i64, is_pipelined: bool) -> Self {
        let mut trips: Vec<u64> = (0..net.sites()).map(|site| 2 * net.geography().between(LEADER, site)).collect();
        trips.sort_unstable();
        Self {
            commit_takes: trips[net.sites() / 2],
            free: limit,
            in_use: 0,
            arrived: VecDeque::new(),
            line: Line::default(),
            commits: BTreeMap::new(),
            last: 0,
            is_batching: false,
            is_pipelined,
        }
    }

    /// Orders requests for a commit. What is ordered counts from here on, because commits take effect in their order.
    fn order(&mut self, net: &mut Net<Message>, ordered: Vec<Call>) {
        if ordered.is_empty() {
            return;
        }
        self.last += 1;
        self.commits.insert(self.last, (1, ordered));
        net.write();
        (0..net.sites()).filter(|&site| site != LEADER).for_each(|site| net.send(site, Message::Accept(self.last)));
    }

    /// Takes tokens for an acquire, or puts it into the line. True if it is to be committed.
    fn take(&mut self, net: &mut Net<Message>, call: Call, amount: i64, deadline: u64) -> bool {
        if self.line.is_empty() && amount <= self.free {
            self.free -= amount;
            self.in_use += amount;
            return true;
        }
        let latest = if self.is_pipelined { self.latest(net, call, deadline) } else { u64::MAX };
        self.line.push(Waiting { call, amount, latest });
        if self.is_pipelined {
            net.wake(LEADER, latest + 1, LATE);
        }
        false
    }

    /// The last time at which the commit of an acquire may begin.
    fn latest(&self, net: &Net<Message>, call: Call, deadline: u64) -> u64 {
        net.latest(LEADER, call.region, deadline).saturating_sub(self.commit_takes)
    }

    /// Gives tokens that came back to those that wait for them, and returns these.
    fn serve(&mut self, net: &Net<Message>, most: usize) -> Vec<Call> {
        let mut served = Vec::new();
        self.line.drop_late(net.now());
        while served.len() < most
            && let Some(Waiting { call, amount, .. }) = self.line.take_within(self.free)
        {
            self.free -= amount;
            self.in_use += amount;
            served.push(call);
        }
        served
    }

    /// The turn of one request comes. True if it is to be committed.
    fn turn(&mut self, net: &mut Net<Message>, call: Call) -> bool {
        match call.ask {
            Ask::Acquire { amount, deadline } => self.take(net, call, amount, deadline),
            Ask::Release { amount } => {
                self.free += amount;
                self.in_use -= amount;
                true
            }
            Ask::Read => {
                net.answer(call, Told::Done, false);
                false
            }
        }
    }

    /// `multi-paxos`: the next commit begins when the last one has ended.
    fn go_on(&mut self, net: &mut Net<Message>) {
        while self.commits.is_empty() {
            let mut ordered = self.serve(net, 1);
            if ordered.is_empty() {
                let Some(call) = self.arrived.pop_front() else { return };
                ordered.extend(self.turn(net, call).then_some(call));
            }
            self.order(net, ordered);
        }
    }

    /// `quorum`: everything that has arrived is committed together.
    fn end_batch(&mut self, net: &mut Net<Message>) {
        self.is_batching = false;
        let mut ordered = Vec::new();
        for call in std::mem::take(&mut self.arrived) {
            // The client will not wait for the commit, or has not waited.
            if let Ask::Acquire { deadline, .. } = call.ask
                && self.latest(net, call, deadline) < net.now()
            {
                continue;
            }
            ordered.extend(self.turn(net, call).then_some(call));
        }
        ordered.extend(self.serve(net, usize::MAX));
        self.order(net, ordered);
    }
}

impl Protocol for Paxos {
    type Message = Message;

    fn site_of(&self, _: usize) -> usize {
        LEADER
    }

    fn request(&mut self, net: &mut Net<Message>, _: usize, call: Call) {
        let is_acquire = matches!(call.ask, Ask::Acquire { .. });
        if self.is_pipelined && call.ask == Ask::Read {
            return net.answer(call, Told::Done, false);
        }
        if !self.is_pipelined && is_acquire && self.arrived.len() + self.line.len() >= LINE {
            return net.answer(call, Told::Refused, false);
        }

        self.arrived.push_back(call);
        if !self.is_pipelined {
            self.go_on(net);
        } else if !self.is_batching {
            self.is_batching = true;
            net.wake(LEADER, net.now() + BATCH, BATCH_ENDS);
        }
    }

    fn message(&mut self, net: &mut Net<Message>, _: usize, from: usize, message: Message) {
        match message {
            Message::Accept(number) => {
                net.write();
                net.send(from, Message::Accepted(number));
            }
            Message::Accepted(number) => {
                let majority = net.sites() / 2 + 1;
                let Some((accepted, _)) = self.commits.get_mut(&number) else { return };
                *accepted += 1;

                // The leader has written it down before it asked anybody, so its own vote counts.
                if *accepted < majority {
                    return;
                }
                let (_, calls) = self.commits.remove(&number).expect("looked at above");
                for call in calls {
                    let is_acquire = matches!(call.ask, Ask::Acquire { .. });
                    net.answer(call, if is_acquire { Told::Granted } else { Told::Done }, false);
                }
                if !self.is_pipelined {
                    self.go_on(net);
                }
            }
        }
    }

    fn timer(&mut self, net: &mut Net<Message>, _: usize, token: u64) {
        if token == BATCH_ENDS {
            return self.end_batch(net);
        }
        let served = self.serve(net, usize::MAX);
        self.order(net, served);
    }

    fn books(&self) -> Books {
        Books { free: self.free, under_way: 0, in_use: self.in_use }
    }

    fn moves(&self) -> (u64, u64) {
        (0, 0)
    }
}
