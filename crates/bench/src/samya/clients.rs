//! The clients of a run. They ask each system in the same way, and count what they are told in the same way.
//!
//! - An acquire waits for tokens until a deadline by its client's clock. What is not granted by then is refused; a grant that comes
//!   later is given back.
//! - Clients of a **trace** ask when it says so, whether or not earlier calls are answered; or, with callers, when it says so and
//!   one of the region's callers has nothing else to do.
//! - Callers of a **script** ask again and again, as fast as they are answered.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use slackline_core::stats::Rng;

use super::ask::{Ask, Fault, Heard, System, Told};
use super::ledger::{Done, Ledger};
use super::script::Script;
use crate::trace::{Kind, Trace};

/// The time that an acquire may wait for tokens, in microseconds.
pub(super) const DEADLINE: u64 = 2_000_000;
/// Late grants are heard, and given back, for so long after the last deadline.
const DRAIN: u64 = 8_000_000;
/// Calls that are not answered by then never will be.
const PATIENCE: u64 = 60_000_000;

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    /// What a trace says, with this number of callers in each region; none if nobody waits for answers.
    Trace(&'a Trace, Option<usize>),
    /// Callers in each region, as many as the script has unless told otherwise, follow it for so long, in microseconds.
    Script(Script, Option<usize>, u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Clients<'a> {
    work: Work<'a>,
    /// The time at which the run began.
    began: u64,
    /// The regions, by position.
    regions: Vec<Region>,
    /// All calls so far.
    calls: Vec<Call>,
    /// Deadlines of acquires, in their order.
    deadlines: VecDeque<(u64, u32)>,
    /// What is to be done later.
    timers: BinaryHeap<Reverse<(u64, u64, Later)>>,
    /// Counts timers.
    order: u64,
    /// The next event of the trace.
    next: usize,
    /// The jobs of the trace.
    jobs: Vec<Job>,
    /// Tokens that clients have and give back by amount.
    counted: i64,
    /// The callers.
    callers: Vec<Caller>,
    rng: Rng,
    pub(super) ledger: Ledger,
}

/// The clients of one region.
#[derive(Debug, Default)]
struct Region {
    is_in_two: bool,
    is_lost: bool,
    /// Calls that are not answered, and whose deadline has not come.
    open: u64,
    /// Callers that have nothing to do.
    idle: Vec<u32>,
    /// What is due and waits for a caller.
    due: VecDeque<Due>,
}

/// One caller.
#[derive(Clone, Copy, Debug)]
struct Caller {
    region: usize,
    /// The tokens that it has.
    holds: i64,
    /// True if its last acquire was refused: the next thing that it does is one, too. By drawing again what it does, it would have done
    /// more reads in the end, the more acquires a system refuses.
    was_refused: bool,
}

/// A call.
#[derive(Clone, Copy, Debug)]
struct Call {
    sent: u64,
    region: usize,
    /// False once it is answered, or its deadline has come.
    is_open: bool,
    /// False if it came after the end of the run, or gives a late grant back.
    is_counted: bool,
    kind: Asked,
    /// The caller that waits for it.
    caller: Option<u32>,
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Acquire { amount: i64, then: Then },
    Release,
    Read,
}

/// What follows a grant.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// Its job may end.
    Job(u32),
    /// It is given back after so many microseconds.
    Hold(u64),
    /// Clients have so much more to give back by amount.
    Counted,
    /// Its caller goes on.
    Caller,
}

/// The stages of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Job {
    /// Its acquire has no answer yet.
    #[default]
    Asked,
    /// The same, and its end has come.
    Ended,
    /// It has so many tokens.
    Granted(i64),
    /// It was refused, or gives its tokens back.
    Over,
}

/// Something that is due.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// An event of the trace.
    Event(usize),
    /// So many tokens go back.
    Back(i64),
}

/// Something to be done later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Later {
    /// Tokens go back, in this region.
    Back(usize, i64),
    /// A caller goes on.
    GoOn(u32),
}

impl<'a> Clients<'a> {
    /// Clients of regions, of which those are told that are in the smaller part of a parted network.
    pub(super) fn new(work: Work<'a>, in_two: Vec<bool>, began: u64, ledger: Ledger, seed: u64) -> Self {
        let region = |is_in_two: &bool| Region { is_in_two: *is_in_two, ..Region::default() };
        let jobs = if let Work::Trace(trace, _) = work { trace.jobs as usize } else { 0 };
        let mut clients = Self {
            work,
            began,
            regions: in_two.iter().map(region).collect(),
            calls: Vec::new(),
            deadlines: VecDeque::new(),
            timers: BinaryHeap::new(),
            order: 0,
            next: 0,
            jobs: vec![Job::default(); jobs],
            counted: 0,
            callers: Vec::new(),
            rng: Rng::new(seed ^ 0x636c_6965),
            ledger,
        };

        let each = match work {
            Work::Trace(_, callers) => callers.unwrap_or(0),
            Work::Script(script, callers, _) => callers.unwrap_or(script.callers()),
        };
        for number in 0..each * in_two.len() {
            let region = number / each;
            clients.callers.push(Caller { region, holds: 0, was_refused: false });
            match work {
                Work::Trace(..) => clients.regions[region].idle.push(number as u32),
                // They do not begin all at once.
                Work::Script(..) => {
                    let at = began + clients.rng.below(1_000);
                    clients.later(at, Later::GoOn(number as u32));
                }
            }
        }
        clients
    }

    /// The end of the run: what is asked later is not counted.
    fn end(&self) -> u64 {
        self.began + self.ledger.length()
    }

    /// When clients do something next by themselves.
    pub(super) fn next_at(&self) -> u64 {
        let event = match self.work {
            Work::Trace(trace, _) => trace.events.get(self.next).map(|event| self.began + event.at),
            Work::Script(..) => None,
        };
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.deadlines.front().map(|(at, _)| *at);
        let last = self.end() + DEADLINE;
        [event, timer, deadline].into_iter().flatten().min().unwrap_or(last)
    }

    /// True if the run is over: all that was asked before its end is answered, or never will be.
    pub(super) fn is_done(&self, now: u64) -> bool {
        let open: u64 = self.regions.iter().map(|region| region.open).sum();
        now >= self.end() && (open == 0 || now >= self.end() + PATIENCE)
    }

    /// Hears late answers after the end, and gives late grants back.
    pub(super) fn drain(&mut self, system: &mut dyn System) -> Result<(), String> {
        let open = self.regions.iter().map(|region| region.open).sum();
        self.ledger.note_unknown(open);
        let until = system.now() + DRAIN;
        let mut heard = Vec::new();
        while system.now() < until {
            system.advance(until, &mut heard);
            for answer in heard.drain(..) {
                self.hear(system, answer)?;
            }
        }
        Ok(())
    }

    /// The clients of a region end.
    pub(super) fn strike(&mut self, fault: Fault) {
        if let Fault::Lose(region) = fault {
            let region = &mut self.regions[region];
            region.is_lost = true;
            self.ledger.note_unknown(std::mem::take(&mut region.open));
        }
    }

    /// Does everything that is due by now.
    pub(super) fn act(&mut self, system: &mut dyn System) {
        let now = system.now();
        while let Some(&(_, call)) = self.deadlines.front().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_front();
            self.give_up(system, call);
        }
        while self.timers.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Reverse((_, _, later)) = self.timers.pop().expect("looked at above");
            match later {
                Later::Back(region, amount) => self.meet(system, region, Due::Back(amount)),
                Later::GoOn(caller) => self.go_on(system, caller),
            }
        }
        if let Work::Trace(trace, _) = self.work {
            while let Some(event) = trace.events.get(self.next).filter(|event| self.began + event.at <= now) {
                self.next += 1;
                self.meet(system, event.site.expect("every event has its place"), Due::Event(self.next - 1));
            }
        }
    }

    /// Something is due in a region: it is done at once, or when a caller is free.
    fn meet(&mut self, system: &mut dyn System, at: usize, due: Due) {
        if self.regions[at].is_lost {
            return;
        }
        if let Work::Trace(_, None) = self.work {
            self.perform(system, at, due, None);
            return;
        }
        let region = &mut self.regions[at];
        let Some(caller) = region.idle.pop() else { return region.due.push_back(due) };
        if !self.perform(system, at, due, Some(caller)) {
            self.regions[at].idle.push(caller);
        }
    }

    /// Does what is due. Returns false if nothing was to be asked for it.
    fn perform(&mut self, system: &mut dyn System, region: usize, due: Due, caller: Option<u32>) -> bool {
        let event = match (due, self.work) {
            (Due::Event(event), Work::Trace(trace, _)) => &trace.events[event],
            (Due::Back(amount), _) => {
                self.release(system, region, amount, caller);
                return true;
            }
            (Due::Event(_), Work::Script(..)) => unreachable!("a script has no events"),
        };
        match event.kind {
            Kind::Acquire { amount } => self.acquire(system, region, amount, Then::Counted, caller),
            Kind::Hold { amount, micros } => self.acquire(system, region, amount, Then::Hold(micros), caller),
            Kind::Begin { amount, job } => self.acquire(system, region, amount, Then::Job(job), caller),
            // Clients that were refused have nothing to give back, whatever the trace says.
            Kind::Release { amount } if amount > self.counted => {
                self.ledger.note_refused_release();
                return false;
            }
            Kind::Release { amount } => {
                self.counted -= amount;
                self.release(system, region, amount, caller);
            }
            Kind::End { job } => match std::mem::replace(&mut self.jobs[job as usize], Job::Over) {
                Job::Granted(amount) => self.release(system, region, amount, caller),
                Job::Asked => {
                    self.jobs[job as usize] = Job::Ended;
                    return false;
                }
                Job::Ended | Job::Over => return false,
            },
        }
        true
    }

    fn acquire(&mut self, system: &mut dyn System, region: usize, amount: i64, then: Then, caller: Option<u32>) {
        let deadline = system.now() + DEADLINE;
        let call = self.call(system, region, Asked::Acquire { amount, then }, caller);
        self.deadlines.push_back((deadline, call));
        system.ask(region, call, Ask::Acquire { amount, deadline });
    }

    fn release(&mut self, system: &mut dyn System, region: usize, amount: i64, caller: Option<u32>) {
        self.ledger.give_back(amount);
        let call = self.call(system, region, Asked::Release, caller);
        system.ask(region, call, Ask::Release { amount });
    }

    fn call(&mut self, system: &dyn System, region: usize, kind: Asked, caller: Option<u32>) -> u32 {
        let sent = system.now();
        let is_counted = sent <= self.end();
        self.regions[region].open += 1;
        self.calls.push(Call { sent, region, is_open: true, is_counted, kind, caller });
        self.calls.len() as u32 - 1
    }

    /// Closes a call, if it is open; returns it.
    fn close(&mut self, call: u32) -> Option<Call> {
        let call = &mut self.calls[call as usize];
        let region = &mut self.regions[call.region];
        if !std::mem::replace(&mut call.is_open, false) || region.is_lost {
            return None;
        }
        region.open -= 1;
        Some(*call)
    }

    /// An acquire's deadline has come.
    fn give_up(&mut self, system: &mut dyn System, call: u32) {
        if let Some(call) = self.close(call) {
            self.refused(system, call, false);
        }
    }

    /// A client hears an answer.
    pub(super) fn hear(&mut self, system: &mut dyn System, heard: Heard) -> Result<(), String> {
        let Heard { call: number, told, is_local } = heard;
        let closed = self.close(number);
        if told == Told::Granted {
            let Asked::Acquire { amount, .. } = self.calls[number as usize].kind else {
                return Err("what was not asked for is granted".into());
            };
            self.ledger.take(amount)?;
            if closed.is_none() {
                return self.give_late_back(system, number, amount);
            }
        }
        let Some(call) = closed else { return Ok(()) };
        let (at, took) = (system.now() - self.began, system.now() - call.sent);
        let in_two = self.regions[call.region].is_in_two;
        let done = match (call.kind, told) {
            (Asked::Acquire { .. }, Told::Refused) => {
                self.refused(system, call, is_local);
                return Ok(());
            }
            (Asked::Acquire { .. }, Told::Granted) => Done::Granted(is_local),
            (Asked::Release, Told::Done) => Done::Released,
            (Asked::Read, Told::Done) => Done::Read,
            (asked, told) => return Err(format!("{asked:?} is answered by {told:?}")),
        };
        if call.is_counted {
            self.ledger.commit(at, took, in_two, done);
        }
        if let Asked::Acquire { amount, then } = call.kind {
            self.granted(system, call, amount, then);
        } else {
            self.go_on_after(system, call);
        }
        Ok(())
    }

    /// The client has gone on without these tokens.
    fn give_late_back(&mut self, system: &mut dyn System, number: u32, amount: i64) -> Result<(), String> {
        let region = self.calls[number as usize].region;
        if self.regions[region].is_lost {
            return Ok(());
        }
        self.ledger.note_late();
        self.release(system, region, amount, None);
        let last = self.calls.last_mut().expect("it was just made");
        last.is_counted = false;
        Ok(())
    }

    /// An acquire was granted in time.
    fn granted(&mut self, system: &mut dyn System, call: Call, amount: i64, then: Then) {
        match then {
            Then::Job(job) => match std::mem::replace(&mut self.jobs[job as usize], Job::Granted(amount)) {
                Job::Asked => {}
                Job::Ended => {
                    self.jobs[job as usize] = Job::Over;
                    self.meet(system, call.region, Due::Back(amount));
                }
                state => unreachable!("a job that is granted is not {state:?}"),
            },
            Then::Hold(micros) => self.later(system.now() + micros, Later::Back(call.region, amount)),
            Then::Counted => self.counted += amount,
            Then::Caller => self.callers[call.caller.expect("a script has callers") as usize].holds = amount,
        }
        self.go_on_after(system, call);
    }

    /// An acquire was not granted in time.
    fn refused(&mut self, system: &mut dyn System, call: Call, is_local: bool) {
        if call.is_counted {
            let in_two = self.regions[call.region].is_in_two;
            self.ledger.refuse(system.now() - self.began, system.now() - call.sent, in_two, is_local);
        }
        if let Asked::Acquire { then: Then::Job(job), .. } = call.kind {
            self.jobs[job as usize] = Job::Over;
        }
        if let Some(caller) = call.caller {
            self.callers[caller as usize].was_refused = true;
        }
        self.go_on_after(system, call);
    }

    /// The caller of a call that is over has time for something else.
    fn go_on_after(&mut self, system: &mut dyn System, call: Call) {
        let Some(caller) = call.caller else { return };
        match self.work {
            Work::Trace(..) => {
                while let Some(due) = self.regions[call.region].due.pop_front() {
                    if system.now() < self.end() && self.perform(system, call.region, due, Some(caller)) {
                        return;
                    }
                }
                self.regions[call.region].idle.push(caller);
            }
            Work::Script(script, ..) => {
                let holds = self.callers[caller as usize].holds > 0;
                let pause =
                    if matches!(call.kind, Asked::Acquire { .. }) && holds { script.hold(&mut self.rng) } else { 0 };
                if pause > 0 {
                    self.later(system.now() + pause, Later::GoOn(caller));
                } else {
                    self.go_on(system, caller);
                }
            }
        }
    }

    /// A caller of a script does what comes next.
    fn go_on(&mut self, system: &mut dyn System, number: u32) {
        let Work::Script(script, ..) = self.work else { unreachable!("only scripts say what comes next") };
        let Caller { region, holds, .. } = self.callers[number as usize];
        let was_refused = std::mem::take(&mut self.callers[number as usize].was_refused);
        let is_over = system.now() >= self.end();
        if self.regions[region].is_lost || (is_over && holds == 0) {
            return;
        }
        if !is_over && !was_refused && script.reads(&mut self.rng) {
            let call = self.call(system, region, Asked::Read, Some(number));
            return system.ask(region, call, Ask::Read);
        }
        if holds > 0 {
            self.callers[number as usize].holds = 0;
            return self.release(system, region, holds, Some(number));
        }
        let amount = script.amount(&mut self.rng);
        self.acquire(system, region, amount, Then::Caller, Some(number));
    }

    fn later(&mut self, at: u64, later: Later) {
        self.order += 1;
        self.timers.push(Reverse((at, self.order, later)));
    }
}
