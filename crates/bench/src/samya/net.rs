//! Virtual time for models: messages, timers, and at each site a processor and a disk that take as long as the product's do.
//!
//! A site handles one event at a time. What it sends and answers leaves it when its processor is done and everything that it has
//! written is durable, as the product's gate has it. Many writes share a sync: what is written while one goes on is in the next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use slackline_sim::Costs;

use super::ask::{Ask, Heard, Told};
use super::geography::Geography;

/// The bytes that a write of a model has: about what the product logs for an acquire.
const BYTES: u64 = 100;
/// An answer at the last moment would be late by a sync: a site grants nothing later than this before a deadline, in microseconds.
const MARGIN: u64 = 1_000;

/// A request at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    /// Its number.
    pub(super) call: u32,
    /// The region of its client.
    pub(super) region: usize,
    /// What is asked.
    pub(super) ask: Ask,
}

/// What happens next.
#[derive(Debug)]
pub(super) enum Event<M> {
    /// A client's request arrives at a site.
    Request {
        /// The site.
        site: usize,
        /// The request.
        call: Call,
    },
    /// A message arrives.
    Message {
        /// The receiver.
        to: usize,
        /// The sender.
        from: usize,
        /// The message.
        message: M,
    },
    /// A timer of a site fires.
    Timer {
        /// The site.
        site: usize,
        /// What it was set with.
        token: u64,
    },
    /// A client of a region hears an answer.
    Hear {
        /// The region.
        region: usize,
        /// The answer.
        heard: Heard,
    },
}

/// An event with its time; of the same time, the one that was planned first is first.
#[derive(Debug)]
struct Planned<M> {
    at: u64,
    order: u64,
    event: Event<M>,
}

impl<M> PartialEq for Planned<M> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<M> Eq for Planned<M> {}

impl<M> PartialOrd for Planned<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Planned<M> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives its greatest first.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// A site's processor and disk.
#[derive(Clone, Copy, Debug, Default)]
struct Station {
    /// The processor is busy until then, in nanoseconds.
    busy: u64,
    /// When the last sync that is planned begins, in microseconds.
    sync_from: u64,
    /// When it ends: everything that was written is durable then.
    sync_to: u64,
    /// It has ended for good.
    is_lost: bool,
}

/// What a site sends in the turn of one event.
#[derive(Debug)]
enum Output<M> {
    Message(usize, M),
    Answer(Call, Told, bool),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Net<M> {
    /// The time, in microseconds.
    now: u64,
    /// Counts what was planned.
    order: u64,
    /// What is to happen.
    queue: BinaryHeap<Planned<M>>,
    /// What work costs.
    costs: Costs,
    /// Where everybody is.
    geography: Geography,
    /// The sites.
    stations: Vec<Station>,
    /// Regions whose clients have ended.
    lost_regions: Vec<bool>,
    /// True while the network is in two parts.
    is_parted: bool,
    /// Releases and answers that clients repeat until they get through, which is when the network is whole again.
    repeated: Vec<(u64, Event<M>)>,
    /// What the site sends whose turn it is.
    outputs: Vec<Output<M>>,
    /// True if it has written something in this turn.
    has_written: bool,
    /// Messages that left a region.
    pub(super) wan_messages: u64,
    /// Syncs.
    pub(super) syncs: u64,
}

impl<M> Net<M> {
    /// At time zero nothing has happened.
    pub(super) fn new(geography: Geography, costs: Costs) -> Self {
        Self {
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            costs,
            stations: vec![Station::default(); geography.sites()],
            lost_regions: vec![false; geography.regions()],
            geography,
            is_parted: false,
            repeated: Vec::new(),
            outputs: Vec::new(),
            has_written: false,
            wan_messages: 0,
            syncs: 0,
        }
    }

    /// The time, in microseconds.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The number of sites.
    pub(super) fn sites(&self) -> usize {
        self.stations.len()
    }

    /// Where everybody is.
    pub(super) fn geography(&self) -> &Geography {
        &self.geography
    }

    /// The last time at which this site may grant what is asked by then.
    pub(super) fn latest(&self, site: usize, region: usize, deadline: u64) -> u64 {
        deadline.saturating_sub(self.geography.access(region, site) + MARGIN)
    }

    /// A client sends a request to a site.
    pub(super) fn request(&mut self, site: usize, call: Call) {
        let is_wide = self.geography.is_wide(call.region, site);
        self.wan_messages += u64::from(is_wide);
        let (takes, event) = (self.geography.access(call.region, site), Event::Request { site, call });
        if !self.is_cut(self.geography.is_region_in_two(call.region), self.geography.is_site_in_two(site)) {
            self.plan(self.now + takes, event);
        } else if !matches!(call.ask, Ask::Acquire { .. }) {
            self.repeated.push((takes, event));
        }
    }

    /// The site whose turn it is sends a message, when all that it has written is durable.
    pub(super) fn send(&mut self, to: usize, message: M) {
        self.outputs.push(Output::Message(to, message));
    }

    /// The site whose turn it is answers a call, when all that it has written is durable.
    pub(super) fn answer(&mut self, call: Call, told: Told, is_local: bool) {
        self.outputs.push(Output::Answer(call, told, is_local));
    }

    /// The site whose turn it is writes something down.
    pub(super) fn write(&mut self) {
        self.has_written = true;
    }

    /// A timer of a site.
    pub(super) fn wake(&mut self, site: usize, at: u64, token: u64) {
        self.plan(at, Event::Timer { site, token });
    }

    /// Takes the next event up to `until`, whose site's turn it is then; or lets time pass up to there.
    pub(super) fn next(&mut self, until: u64) -> Option<Event<M>> {
        while self.queue.peek().is_some_and(|planned| planned.at <= until) {
            let Planned { at, event, .. } = self.queue.pop().expect("looked at above");
            self.now = at;
            let is_lost = match &event {
                Event::Request { site, .. } | Event::Timer { site, .. } => self.stations[*site].is_lost,
                Event::Message { to, .. } => self.stations[*to].is_lost,
                Event::Hear { region, .. } => self.lost_regions[*region],
            };
            if !is_lost {
                return Some(event);
            }
        }
        self.now = self.now.max(until);
        None
    }

    /// Ends the turn of a site: what it sends leaves when its processor is done and its writes are durable.
    pub(super) fn finish(&mut self, site: usize, operations: u64) {
        let Costs { input_ns, operation_ns, send_ns, byte_ns, .. } = self.costs;
        let bytes = if self.has_written { BYTES } else { 0 };
        let cost = input_ns + operation_ns * operations + send_ns * self.outputs.len() as u64 + byte_ns * bytes;
        let station = &mut self.stations[site];
        station.busy = station.busy.max(self.now * 1_000) + cost;

        let done = station.busy.div_ceil(1_000);
        if std::mem::take(&mut self.has_written) {
            self.sync(site, done);
        }
        let leaves = done.max(self.stations[site].sync_to);
        for output in std::mem::take(&mut self.outputs) {
            self.let_out(site, leaves, output);
        }
    }

    /// What a site has written by `at` becomes durable with the sync that begins then or next.
    fn sync(&mut self, site: usize, at: u64) {
        let takes = self.costs.sync_us + self.costs.sync_byte_ns * BYTES / 1_000;
        let station = &mut self.stations[site];
        if at > station.sync_from {
            station.sync_from = at.max(station.sync_to);
            station.sync_to = station.sync_from + takes;
            self.syncs += 1;
        }
    }

    fn let_out(&mut self, site: usize, leaves: u64, output: Output<M>) {
        let from = self.geography.is_site_in_two(site);
        match output {
            Output::Message(to, message) => {
                self.wan_messages += 1;
                if !self.is_cut(from, self.geography.is_site_in_two(to)) {
                    let arrives = leaves + self.geography.between(site, to);
                    self.plan(arrives, Event::Message { to, from: site, message });
                }
            }
            Output::Answer(call, told, is_local) => {
                self.wan_messages += u64::from(self.geography.is_wide(call.region, site));
                let heard = Heard { call: call.call, told, is_local };
                let (takes, event) =
                    (self.geography.access(call.region, site), Event::Hear { region: call.region, heard });
                if self.is_cut(from, self.geography.is_region_in_two(call.region)) {
                    self.repeated.push((takes, event));
                } else {
                    self.plan(leaves + takes, event);
                }
            }
        }
    }

    /// A site ends, for good.
    pub(super) fn lose_site(&mut self, site: usize) {
        self.stations[site].is_lost = true;
    }

    /// The clients of a region end, for good.
    pub(super) fn lose_clients(&mut self, region: usize) {
        self.lost_regions[region] = true;
    }

    /// The network falls into two parts, or is whole again.
    pub(super) fn part(&mut self, is_parted: bool) {
        self.is_parted = is_parted;
        if !is_parted {
            for (takes, event) in std::mem::take(&mut self.repeated) {
                self.plan(self.now + takes, event);
            }
        }
    }

    fn is_cut(&self, from_in_two: bool, to_in_two: bool) -> bool {
        self.is_parted && from_in_two != to_in_two
    }

    fn plan(&mut self, at: u64, event: Event<M>) {
        self.order += 1;
        self.queue.push(Planned { at, order: self.order, event });
    }
}
