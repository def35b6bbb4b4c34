//! `bench tpcc`: orders of a stock that several regions share (*Predictive Treaties*, EuroSys 2019, section 7.3, figures 13 and 14).
//!
//! The variant of TPC-C is the paper's, which is that of Roy et al. (*The Homeostasis Protocol*, SIGMOD 2015). There are 10
//! warehouses of 1,000 items each, and the stock of an item lies at all regions: what is in stock is the sum. Of the
//! transactions, 95 % are orders of 1 to 5 pieces of one item, and 5 % deliver the oldest order of a district. Where there is
//! less in stock than is ordered, 100 pieces are added first. Orders are numbered by the client that takes them, for each
//! district: what the paper does for each region.
//!
//! | configuration | an order |
//! | --- | --- |
//! | `lazy` | takes from its region's part if that has enough. Else it reads all parts, and divides what is left equally |
//! | `preconditions` | asks whether there are as many as are ordered, by a treaty for each number, and takes them then |
//! | `predictive` | takes them, and requires that the sum is not negative, by one treaty for each item: the paper's treaties |
//! | `slackline` | likewise; slack moves ahead of need, too |
//!
//! An order **synchronizes** if its site waited for another one before it answered: it took half of the shortest round trip between two
//! regions, as nothing else does; or its site held it back until slack came or a right was given up, and that was on its way already.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slackline::{Key, Metric, Outcome, Transaction, Txn, TxnError};
use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::stats::Rng;
use slackline_core::txn::counter_of_row;
use slackline_session::port::Port;
use slackline_session::txn::treaties::Treaty;
use slackline_session::txn::{Committed, Memos};
use slackline_sim::world::After;

use super::setting::TxnsError;
use super::stage::{EC2, Stage, costs, ec2_region, over_ec2};
use crate::EPSILON;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::histogram::Histogram;
use crate::named::named;
use crate::report::{Latency, Mode, Report, Run};
use crate::voting::Strategy;

/// Warehouses, and districts of each.
const WAREHOUSES: usize = 10;
const DISTRICTS: usize = 10;
/// Clients of each region.
const CLIENTS: usize = 8;
/// The most of an item that is in stock at first, and what is added when there is not enough.
const STOCK: i64 = 100;
/// The largest order.
const LARGEST: i64 = 5;
/// Of so many transactions, one delivers an order.
const DELIVERY: u64 = 20;
/// Of so many items one is hot, where some are.
const HOT: usize = 100;
/// Items that are loaded at a time.
const LOADED: usize = 100;
/// The time that a transaction may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The sums of an item that are remembered, to judge what orders were told.
const REMEMBERED: usize = 64;

/// Which items are ordered where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skew {
    /// Half of all orders, wherever, are of 1 % of the items.
    Hot,
    /// The items are divided evenly among regions; 70 % of a region's orders are of its own.
    Local70,
    /// Likewise 90 %.
    Local90,
}

named!(Skew is a "skew": Hot "hot", Local70 "local70", Local90 "local90");

/// How it is made sure that there is enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balance {
    /// By hand: what is left is divided equally when one region has not enough.
    Lazy,
    /// A treaty for each item and number of pieces, before they are taken.
    Preconditions,
    /// One treaty for each item, required after they were taken.
    Predictive,
    /// Likewise, and slack moves ahead of need.
    Slackline,
}

named!(Balance is a "configuration": Lazy "lazy", Preconditions "preconditions", Predictive "predictive", Slackline "slackline");

impl Balance {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lazy, Self::Preconditions, Self::Predictive, Self::Slackline];
}

/// Options of `bench tpcc`.
#[derive(Clone, Debug)]
pub struct TpccOptions {
    /// The numbers of regions, 2 to 5.
    pub replicas: Vec<usize>,
    /// Which items are ordered where.
    pub skews: Vec<Skew>,
    /// The configurations.
    pub balances: Vec<Balance>,
    /// Orders that are counted; as many come before.
    pub orders: u64,
    /// The items of each warehouse.
    pub items: usize,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Default for TpccOptions {
    fn default() -> Self {
        Self {
            replicas: vec![2, 5],
            skews: vec![Skew::Hot, Skew::Local70, Skew::Local90],
            balances: Balance::ALL.to_vec(),
            orders: 500_000,
            items: 1_000,
            seed: 1,
        }
    }
}

/// Runs `bench tpcc`.
///
/// # Errors
///
/// There are more replicas than regions; or the books are wrong afterwards.
pub fn tpcc(options: &TpccOptions) -> Result<Report, TxnsError> {
    let mut jobs = Vec::new();
    for &replicas in &options.replicas {
        for &skew in &options.skews {
            jobs.extend(options.balances.iter().map(|&balance| (replicas, skew, balance)));
        }
    }
    let found = super::run::run_each(&jobs, false, |&(replicas, skew, balance)| {
        Trial::new(options, replicas, skew, balance)?.run()
    })?;

    let verified = found.iter().all(|(run, _)| run.figure("wrong_answers") == Some(0.0));
    let (runs, series): (Vec<Run>, Vec<Series>) = found.into_iter().unzip();
    let paper = "figure 14, 2 replicas: 10.5 and 12.5 % of lazy's orders synchronize at local70 and local90, 8 and 7.5 % with treaties; \
                 figure 13, hot: with treaties about as lazy";
    Ok(Report {
        workload: "tpcc".into(),
        mode: Mode::Sim,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: EPSILON,
        cost_model: Some(costs()),
        runs,
        verified,
        facts: vec![
            (
                "orders".into(),
                format!("{} after as many; {WAREHOUSES} warehouses of {} items", options.orders, options.items),
            ),
            ("round trips".into(), format!("64 to 372 ms ({})", EC2.source())),
            ("paper".into(), paper.into()),
        ],
        figures: vec![Figure {
            name: "tpcc".into(),
            title: "Latency of orders".into(),
            x: Axis::new("share of orders", Scale::Linear),
            y: Axis::new("ms", Scale::Log),
            series,
        }],
    })
}

/// A region's part of an item's stock.
fn stock(region: usize, item: usize) -> Key {
    Key::new(ec2_region(region), format!("stock/{item}"))
}

/// What is in stock of an item in all regions.
fn in_stock(replicas: usize, item: usize) -> Metric {
    (0..replicas).map(|region| stock(region, item).metric()).sum()
}

/// What an order is of.
#[derive(Clone, Copy, Debug)]
struct Order {
    item: usize,
    pieces: i64,
    district: usize,
}

/// What is known of the stock, by what sites write.
struct Truth {
    /// The parts of each item.
    parts: Vec<Vec<i64>>,
    /// The last sums of each item, each with the time from which it was so.
    sums: Vec<VecDeque<(u64, i64)>>,
    /// The times that a sum was negative.
    negative: u64,
}

impl Truth {
    fn new(replicas: usize, items: usize) -> Self {
        Self { parts: vec![vec![0; replicas]; items], sums: vec![VecDeque::new(); items], negative: 0 }
    }

    /// Looks at what a site writes.
    fn look(&mut self, now: u64, site: usize, effects: &[Effect<Node>]) {
        for effect in effects {
            let Effect::Persist(batch) = effect else { continue };
            for (key, row) in batch.iter() {
                let Some((_, name, count)) = counter_of_row(key, row) else { continue };
                let Some(item) = name.strip_prefix("stock/").and_then(|item| item.parse::<usize>().ok()) else {
                    continue;
                };
                self.parts[item][site] = count;
                let sum = self.parts[item].iter().sum();
                let sums = &mut self.sums[item];
                if sums.len() == REMEMBERED {
                    sums.pop_front();
                }
                sums.push_back((now, sum));
                self.negative += u64::from(sum < 0);
            }
        }
    }

    /// True if at some time from `began` on there were fewer of an item than these, as far as is remembered.
    fn was_less(&self, item: usize, pieces: i64, began: u64) -> bool {
        let sums = &self.sums[item];
        let first = sums.partition_point(|(at, _)| *at <= began).saturating_sub(1);
        let is_forgotten = sums.len() == REMEMBERED && first == 0;
        is_forgotten || sums.iter().skip(first).any(|(_, sum)| *sum < pieces)
    }
}

/// What a run counts.
#[derive(Default)]
struct Counted {
    /// Orders that have begun.
    begun: u64,
    /// Orders that count and are committed, and what they took.
    orders: u64,
    latencies: Histogram,
    /// When the first of them began and the last one ended, in microseconds; none before that.
    span: Option<(u64, u64)>,
    synchronized: u64,
    /// Orders that ended since the last look; true if it is yet to be told whether they waited for another site.
    ended: Vec<(OperationId, bool)>,
    refused: u64,
    unknown: u64,
    /// All that was added to the stock and ordered, whether it counts or not; by item, in pieces.
    moved: Vec<i64>,
    replenished: u64,
    delivered: u64,
    wrong: u64,
}

/// One run.
struct Trial {
    stage: Stage,
    truth: Rc<RefCell<Truth>>,
    counted: Rc<RefCell<Counted>>,
    replicas: usize,
    skew: Skew,
    balance: Balance,
    options: TpccOptions,
}

impl Trial {
    fn new(options: &TpccOptions, replicas: usize, skew: Skew, balance: Balance) -> Result<Self, TxnsError> {
        let strategy = if balance == Balance::Slackline { Strategy::Slackline } else { Strategy::Predictive };
        let clients: Vec<usize> = (0..replicas * CLIENTS).map(|client| client % replicas).collect();
        let stage = over_ec2(replicas, &clients, options.seed, |world| world.slack = strategy.slack())?;
        let items = WAREHOUSES * options.items;
        let truth = Rc::new(RefCell::new(Truth::new(replicas, items)));
        let counted = Counted { moved: vec![0; items], ..Counted::default() };
        let counted = Rc::new(RefCell::new(counted));
        Ok(Self { stage, truth, counted, replicas, skew, balance, options: options.clone() })
    }

    fn run(mut self) -> Result<(Run, Series), TxnsError> {
        let truth = Rc::clone(&self.truth);
        self.stage.watch(
            SECOND,
            Box::new(move |now, site, effects| {
                truth.borrow_mut().look(now, site, effects);
                After::Go
            }),
        );
        let treaties = self.treaties();
        let clients: Vec<Client> = (0..self.replicas * CLIENTS).map(|at| self.client(at, &treaties)).collect();
        for client in clients.iter().take(self.replicas) {
            self.stage.spawn(client.clone().load());
        }
        self.stage.finish();

        // The books begin with what is there now.
        let items = WAREHOUSES * self.options.items;
        let loaded: Vec<i64> = (0..items).map(|item| self.truth.borrow().parts[item].iter().sum()).collect();
        for client in &clients {
            let rng = Rng::new(self.options.seed ^ (client.at as u64 + 1) << 20);
            self.stage.spawn(client.clone().work(rng));
        }
        loop {
            let before = self.counted.borrow().begun;
            self.stage.pass(60 * SECOND);
            self.look_up();
            let begun = self.counted.borrow().begun;
            if begun >= 2 * self.options.orders {
                break;
            }
            assert!(begun > before, "for a minute nobody began an order");
        }
        self.stage.finish();
        self.look_up();

        let (truth, counted) = (self.truth.borrow(), self.counted.take());
        for (item, loaded) in loaded.into_iter().enumerate() {
            let (is, should) = (truth.parts[item].iter().sum::<i64>(), loaded + counted.moved[item]);
            if counted.unknown == 0 && is != should {
                let what = format!("there are {is} of item {item}, and {should} by what was ordered");
                return Err(TxnsError::Wrong { config: self.balance.to_string(), what });
            }
        }
        Ok(self.report(&counted, truth.negative))
    }

    /// Counts the orders that ended since the last look, and were held back for less time than their latency would tell.
    fn look_up(&self) {
        let delays = self.stage.delays();
        let mut counted = self.counted.borrow_mut();
        for (id, is_open) in std::mem::take(&mut counted.ended) {
            let was_held_back = delays.take(id) > 0;
            counted.synchronized += u64::from(is_open && was_held_back);
        }
    }

    /// The treaty of each item: its stock is not negative.
    fn treaties(&self) -> Rc<[Treaty]> {
        let treaty = |item: usize| {
            let name = format!("stock/{item}");
            Treaty::new(&name, in_stock(self.replicas, item).at_least(0))
        };
        (0..WAREHOUSES * self.options.items).map(treaty).collect()
    }

    fn client(&self, at: usize, treaties: &Rc<[Treaty]>) -> Client {
        Client {
            at,
            region: at % self.replicas,
            replicas: self.replicas,
            skew: self.skew,
            balance: self.balance,
            items: treaties.len(),
            limits: (self.options.orders, 2 * self.options.orders),
            seed: self.options.seed,
            shortest: shortest(at % self.replicas, self.replicas),
            treaties: Rc::clone(treaties),
            port: self.stage.port(at),
            memos: Arc::default(),
            truth: Rc::clone(&self.truth),
            counted: Rc::clone(&self.counted),
        }
    }

    fn report(&self, counted: &Counted, negative: u64) -> (Run, Series) {
        let name = format!("{} {}, {}", self.balance, self.replicas, self.skew);
        let mut run = Run::new(self.balance.to_string());
        run.label = Some(name.clone());
        (run.committed, run.refused, run.unknown) = (counted.orders, counted.refused, counted.unknown);
        run.latency_ms = Latency::from(&counted.latencies);
        run.wan_messages = Some(self.stage.world.wan_messages());
        let seconds = counted.span.map_or(0.0, |(first, last)| (last - first) as f64 / SECOND as f64);
        let share = counted.synchronized as f64 / counted.orders.max(1) as f64;
        run.local_ratio = Some(1.0 - share);
        let run = run
            .took(seconds)
            .with("replicas", self.replicas as u64)
            .with("skew", self.skew.to_string())
            .with("sync_per_order", share)
            .with("replenished", counted.replenished)
            .with("delivered", counted.delivered)
            .with("wrong_answers", counted.wrong + negative);
        let line = counted.latencies.shares().into_iter().map(|(nanos, share)| (share, nanos as f64 / 1e6)).collect();
        (run, Series::new(&name, line))
    }
}

/// The shortest round trip from a region to another one, in microseconds.
fn shortest(region: usize, replicas: usize) -> u64 {
    let others = (0..replicas).filter(|other| *other != region);
    let trips = others.filter_map(|other| EC2.rtt(&ec2_region(region), &ec2_region(other)));
    trips.min().map_or(0, |rtt| rtt.as_micros() as u64)
}

/// A client of a region.
#[derive(Clone)]
struct Client {
    at: usize,
    region: usize,
    replicas: usize,
    skew: Skew,
    balance: Balance,
    items: usize,
    /// The orders before those that count, and with them.
    limits: (u64, u64),
    seed: u64,
    shortest: u64,
    /// One for each item.
    treaties: Rc<[Treaty]>,
    port: Arc<dyn Port>,
    memos: Arc<Memos>,
    truth: Rc<RefCell<Truth>>,
    counted: Rc<RefCell<Counted>>,
}

impl Client {
    fn transaction(&self) -> Transaction {
        let own = ec2_region(self.region);
        Transaction::over(Arc::clone(&self.port), Arc::clone(&self.memos)).at(&own).deadline(DEADLINE)
    }

    /// Puts this region's parts there.
    async fn load(self) {
        for from in (0..self.items).step_by(LOADED) {
            let put = |txn: Txn| async move {
                for item in from..(from + LOADED).min(self.items) {
                    // As much in every run, and divided equally.
                    let all = Rng::new(self.seed << 32 ^ item as u64).below(STOCK as u64 + 1) as usize;
                    let extra = usize::from(self.region < all % self.replicas);
                    txn.put_count(&stock(self.region, item), (all / self.replicas + extra) as i64)?;
                }
                Ok::<_, TxnError>(())
            };
            let loaded = self.transaction().run(put).await;
            assert!(matches!(loaded, Ok(Outcome::Done(()))), "nobody else is there: {loaded:?}");
        }
    }

    /// Orders and delivers, until there were enough orders.
    async fn work(self, mut rng: Rng) {
        let mut numbers = vec![0u64; WAREHOUSES * DISTRICTS];
        while self.counted.borrow().begun < self.limits.1 {
            if rng.one_in(DELIVERY) {
                let district = rng.below((WAREHOUSES * DISTRICTS) as u64) as usize;
                self.deliver(district).await;
                continue;
            }
            let begun = {
                let mut counted = self.counted.borrow_mut();
                counted.begun += 1;
                counted.begun
            };
            let order = self.draw(&mut rng);
            self.order(order, &mut numbers[order.district], begun > self.limits.0).await;
        }
    }

    fn draw(&self, rng: &mut Rng) -> Order {
        let below = |rng: &mut Rng, bound: usize| rng.below(bound as u64) as usize;
        let local = |rng: &mut Rng, percent: u64| {
            let own = rng.below(100) < percent;
            let other = (self.region + 1 + below(rng, self.replicas - 1)) % self.replicas;
            let region = if own { self.region } else { other };
            below(rng, self.items / self.replicas) * self.replicas + region
        };
        let item = match self.skew {
            Skew::Hot if rng.one_in(2) => below(rng, (self.items / HOT).max(1)) * HOT,
            Skew::Hot => below(rng, self.items),
            Skew::Local70 => local(rng, 70),
            Skew::Local90 => local(rng, 90),
        };
        let pieces = 1 + rng.below(LARGEST as u64) as i64;
        Order { item, pieces, district: below(rng, WAREHOUSES * DISTRICTS) }
    }

    /// The order of this number that a client took in a district.
    fn order_key(&self, client: usize, district: usize, number: u64) -> Key {
        Key::new(ec2_region(client % self.replicas), format!("order/{district}/{client}/{number}"))
    }

    /// The number of orders that were delivered of those that a client took in a district.
    fn delivered_key(&self, client: usize, district: usize) -> Key {
        Key::new(ec2_region(client % self.replicas), format!("delivered/{district}/{client}"))
    }

    async fn order(&self, order: Order, number: &mut u64, counts: bool) {
        let began = self.port.now().0;
        let run_began = std::cell::Cell::new(began);
        let row = self.order_key(self.at, order.district, *number);
        let program = |txn: Txn| {
            run_began.set(self.port.now().0);
            let row = &row;
            async move {
                txn.put(row, &(order.item, order.pieces))?;
                match self.balance {
                    Balance::Lazy => self.take_lazily(&txn, order).await,
                    Balance::Preconditions => self.take_if_there(&txn, order).await,
                    Balance::Predictive | Balance::Slackline => self.take_and_require(&txn, order).await,
                }
            }
        };
        let ended = self.transaction().run_and_tell(program).await;
        let took = self.port.now().0 - began;
        let mut counted = self.counted.borrow_mut();
        match ended {
            Ok(Outcome::Done(Committed { value: added, operation, .. })) => {
                *number += 1;
                counted.moved[order.item] += added - order.pieces;
                if added > 0 {
                    let was_less = self.truth.borrow().was_less(order.item, order.pieces, run_began.get());
                    counted.wrong += u64::from(!was_less);
                }
                if counts {
                    counted.orders += 1;
                    let (first, last) = counted.span.unwrap_or((began, began));
                    counted.span = Some((first.min(began), last.max(began + took)));
                    counted.replenished += u64::from(added > 0);
                    counted.latencies.note(took * 1_000);
                }
                let is_long = took >= self.shortest / 2;
                counted.synchronized += u64::from(counts && is_long);
                counted.ended.extend(operation.map(|id| (id, counts && !is_long)));
            }
            // Its number may be taken.
            Ok(Outcome::Unknown(_)) => {
                *number += 1;
                counted.unknown += 1;
            }
            _ => counted.refused += u64::from(counts),
        }
    }

    /// Takes from this region's part if that has enough; else from all, and divides what is left. Returns what was added first.
    async fn take_lazily(&self, txn: &Txn, order: Order) -> Result<i64, TxnError> {
        let own = stock(self.region, order.item);
        let here = txn.count(&own).await?;
        if here >= order.pieces {
            txn.add(&own, -order.pieces)?;
            return Ok(0);
        }
        let keys: Vec<Key> = (0..self.replicas).map(|region| stock(region, order.item)).collect();
        let parts: Vec<i64> = txn.values(&keys).await?.into_iter().map(count).collect();
        let all: i64 = parts.iter().sum();
        let added = if all < order.pieces { STOCK } else { 0 };
        let left = all + added - order.pieces;
        let replicas = self.replicas as i64;
        for (region, (key, part)) in keys.iter().zip(parts).enumerate() {
            txn.add(key, left / replicas + i64::from((region as i64) < left % replicas) - part)?;
        }
        Ok(added)
    }

    /// Asks first if there is enough.
    async fn take_if_there(&self, txn: &Txn, order: Order) -> Result<i64, TxnError> {
        let enough = in_stock(self.replicas, order.item).at_least(order.pieces);
        let name = format!("stock/{}/{}", order.item, order.pieces);
        let added = if txn.holds(&Treaty::new(&name, enough)).await? { 0 } else { STOCK };
        txn.add(&stock(self.region, order.item), added - order.pieces)?;
        Ok(added)
    }

    /// Takes first, and requires that there was enough.
    async fn take_and_require(&self, txn: &Txn, order: Order) -> Result<i64, TxnError> {
        let own = stock(self.region, order.item);
        let taken = txn
            .atomic(|txn| {
                let own = &own;
                async move {
                    txn.add(own, -order.pieces)?;
                    txn.require(&self.treaties[order.item]).await
                }
            })
            .await;
        match taken {
            Ok(()) => Ok(0),
            Err(TxnError::NotMet(_)) => {
                txn.add(&own, STOCK - order.pieces)?;
                Ok(STOCK)
            }
            Err(error) => Err(error),
        }
    }

    /// Delivers the oldest order of a district; then it is fulfilled, in a transaction of its own.
    async fn deliver(&self, district: usize) {
        let clients = self.replicas * CLIENTS;
        let oldest = |txn: Txn| async move {
            let delivered: Vec<Key> = (0..clients).map(|client| self.delivered_key(client, district)).collect();
            let numbers: Vec<i64> = txn.values(&delivered).await?.into_iter().map(count).collect();
            let next = |(client, number): (usize, &i64)| self.order_key(client, district, *number as u64);
            let orders: Vec<Key> = numbers.iter().enumerate().map(next).collect();
            let rows = txn.values(&orders).await?;

            // Of those with the lowest number, the first client's.
            let there = (0..clients).filter(|client| rows[*client].is_some());
            let Some(first) = there.min_by_key(|client| numbers[*client]) else { return Ok(None) };
            txn.add(&delivered[first], 1)?;
            txn.put(&Key::new(orders[first].region(), format!("queue/{}", orders[first].name())), &district)?;
            Ok::<_, TxnError>(Some(orders[first].clone()))
        };
        let Ok(Outcome::Done(Some(row))) = self.transaction().run(oldest).await else { return };
        let fulfil = |txn: Txn| {
            let row = &row;
            async move {
                let order: Option<(usize, i64)> = txn.get(row).await?;
                let pieces = order.map_or(0, |(_, pieces)| pieces);
                txn.delete(row)?;
                txn.delete(&Key::new(row.region(), format!("queue/{}", row.name())))?;
                txn.add(&Key::new(row.region(), format!("customer/{district}")), pieces)
            }
        };
        if matches!(self.transaction().run(fulfil).await, Ok(Outcome::Done(()))) {
            self.counted.borrow_mut().delivered += 1;
        }
    }
}

/// The number that a counter has come to.
fn count(value: Option<slackline::Value>) -> i64 {
    if let Some(slackline::Value::Counter(count)) = value { count } else { 0 }
}
