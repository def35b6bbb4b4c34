//! Programs in virtual time: the callers of a [`Desk`], and a world of sites.
//!
//! A request reaches the client's site half a [`NEAR`] after it was sent; what the site responds comes back as late after the processor has
//! made it. Nothing is lost. The same seed gives the same run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use slackline_core::api::{Readiness, Response};
use slackline_core::clock::SECOND;
use slackline_core::id::{OperationId, SiteId};
use slackline_core::machine::{ClientId, Effect};
use slackline_core::node::Node;
use slackline_session::port::Port;
use slackline_session::topology::Topology;
use slackline_sim::Costs;
use slackline_sim::desk::{Desk, Errand};
use slackline_sim::world::{After, Host, Options, World};
use slackline_wire::rtt::RttTable;

use super::setting::{OBJECT_NS, TxnsError};
use crate::EPSILON;

/// From a client to the site of its region, and back, in microseconds.
pub(super) const NEAR: u64 = 300;
/// The longest that sites may take to become ready, or tasks to end, in microseconds.
const PATIENCE: u64 = 600 * SECOND;
/// Tokens of the world with this bit are responses on their way; the others are names of the desk.
const RESPONSE: u64 = 1 << 63;
/// And those with this bit start a site again.
const RESTART: u64 = 1 << 62;
/// The stream's number in the id that a site knows a client by; the wire's is below.
const STREAM: u32 = 32;

/// A task that was begun by another.
type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Looks at what a site does in a turn, at a time, and says whether it crashes then.
type Watch = Box<dyn FnMut(u64, usize, &[Effect<Node>]) -> After>;

/// Tasks that others have begun, until the stage takes them.
#[derive(Clone, Default)]
pub(super) struct Nursery(Rc<RefCell<Vec<Task>>>);

impl Nursery {
    /// Begins a task beside the one that runs.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.borrow_mut().push(Box::pin(task));
    }
}

/// The time for which the parts of transactions waited for warranties to end, or for slack: of each the longest, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Delays(Mutex<BTreeMap<OperationId, u64>>);

impl Delays {
    /// Takes out the delay of a transaction, in microseconds.
    pub(super) fn take(&self, id: OperationId) -> u64 {
        self.all().remove(&id).unwrap_or(0)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<OperationId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) struct Stage {
    /// The sites.
    pub(super) world: World,
    /// The callers, and what is on its way to them.
    hall: Hall,
    /// The port of each client.
    clients: Vec<Arc<dyn Port>>,
}

/// The desk, and what is between it and the world.
struct Hall {
    /// The clients' links, and the callers' tasks.
    desk: Desk,
    /// The delays of transactions.
    delays: Arc<Delays>,
    /// Responses on their way to clients: wire, stream, response.
    arriving: BTreeMap<u64, (usize, u64, Response)>,
    /// Responses so far, to name each on its way.
    arrivals: u64,
    /// By site: since when parts of transactions wait there for warranties to end.
    defending: Vec<BTreeMap<OperationId, u64>>,
    /// Tasks that others have begun.
    nursery: Nursery,
    /// Who else looks at what sites do.
    watch: Option<Watch>,
    /// The time for which a site is down that crashes, in microseconds.
    down: u64,
}

/// The costs of sites in virtual time.
pub(super) fn costs() -> Costs {
    Costs { object_ns: OBJECT_NS, ..Costs::default() }
}

/// The round trips of the *Predictive Treaties* paper's evaluation.
pub(super) static EC2: LazyLock<RttTable> = LazyLock::new(RttTable::ec2);

/// A region of the *Predictive Treaties* paper's evaluation.
pub(super) fn ec2_region(at: usize) -> String {
    EC2.regions()[at].clone()
}

/// A stage over the first regions of that paper, as far apart as it gives; the clients at these sites.
///
/// # Errors
///
/// It has not so many regions.
pub(super) fn over_ec2(
    count: usize,
    clients: &[usize],
    seed: u64,
    with: impl FnOnce(&mut Options),
) -> Result<Stage, TxnsError> {
    let most = EC2.regions().len();
    if count > most {
        return Err(TxnsError::Option(format!("there are round trips between {most} regions, and no more")));
    }
    let between = |from: usize, to: usize| EC2.rtt(&ec2_region(from), &ec2_region(to)).unwrap_or_default();
    let micros = |from: usize, to: usize| if from == to { 0 } else { between(from, to).as_micros() as u64 };
    let rtt = (0..count).map(|from| (0..count).map(|to| micros(from, to)).collect()).collect();
    let mut options = Options { costs: costs(), epsilon: EPSILON, ..Options::new(rtt, seed) };
    with(&mut options);

    let regions = (0..count).map(ec2_region).collect();
    let sites = (0..count as u16).map(|at| (SiteId::new(at, 0), String::new())).collect();
    let topology = Topology::new("bench".into(), regions, 1, sites).expect("a site for each of the regions");
    Ok(Stage::new(options, Arc::new(topology), clients))
}

impl Stage {
    /// Sites that serve, and clients at these sites.
    pub(super) fn new(options: Options, topology: Arc<Topology>, clients: &[usize]) -> Self {
        let mut desk = Desk::new(topology, options.seed);
        let clients = clients.iter().map(|site| desk.client(&[*site]).0 as Arc<dyn Port>).collect();
        let hall = Hall {
            desk,
            delays: Arc::default(),
            arriving: BTreeMap::new(),
            arrivals: 0,
            defending: vec![BTreeMap::new(); options.rtt.len()],
            nursery: Nursery::default(),
            watch: None,
            down: SECOND,
        };

        let mut stage = Self { world: World::new(options), hall, clients };
        stage.wait(|stage| {
            let mut nodes = (0..stage.world.len()).map(|site| stage.world.node(site));
            nodes.all(|node| node.is_some_and(|node| node.readiness() == Readiness::Ready))
        });
        stage
    }

    /// The port of a client, on which its transactions stand.
    pub(super) fn port(&self, client: usize) -> Arc<dyn Port> {
        Arc::clone(&self.clients[client])
    }

    /// The delays of transactions.
    pub(super) fn delays(&self) -> Arc<Delays> {
        Arc::clone(&self.hall.delays)
    }

    /// Has somebody look at what sites do; a site that crashes then is down for so many microseconds.
    pub(super) fn watch(&mut self, down: u64, watch: Watch) {
        (self.hall.watch, self.hall.down) = (Some(watch), down);
    }

    /// Where tasks begin others.
    pub(super) fn nursery(&self) -> Nursery {
        self.hall.nursery.clone()
    }

    /// Adds a task.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.hall.desk.spawn(task);
        self.hall.work(&mut self.world);
    }

    /// Lets time pass until all tasks have ended.
    pub(super) fn finish(&mut self) {
        self.wait(|stage| stage.hall.desk.open() == 0);
        self.hall.desk.clear();
    }

    /// Lets this many microseconds pass.
    pub(super) fn pass(&mut self, micros: u64) {
        let until = self.world.now() + micros;
        // The world stops early when the last task has ended.
        while self.world.now() < until {
            self.world.run(&mut self.hall, until);
        }
    }

    /// Lets time pass until something holds.
    fn wait(&mut self, is_over: impl Fn(&Self) -> bool) {
        let patience = self.world.now() + PATIENCE;
        while !is_over(self) {
            assert!(self.world.now() < patience, "what is simulated must come to an end");
            self.world.run(&mut self.hall, self.world.now() + SECOND / 100);
        }
    }
}

impl Hall {
    /// Lets the callers act, and does what they ask for.
    fn work(&mut self, world: &mut World) {
        let before = self.desk.open();
        loop {
            let errands = self.desk.work(world.now());
            let begun = std::mem::take(&mut *self.nursery.0.borrow_mut());
            if errands.is_empty() && begun.is_empty() {
                break;
            }
            begun.into_iter().for_each(|task| self.desk.spawn(task));
            for errand in errands {
                match errand {
                    // No stream breaks but that of a site that crashes.
                    Errand::Connect { wire, through } if world.node(through).is_none() => {
                        self.desk.broken(world.now(), wire);
                    }
                    Errand::Connect { wire, .. } => self.desk.connected(world.now(), wire),
                    Errand::Send { wire, stream, through, request } => {
                        let client = ClientId(stream << STREAM | wire as u64);
                        world.request(world.now() + NEAR / 2, through, client, request);
                    }
                    Errand::WakeAt { at, name } => world.wake_at(at, name),
                }
            }
        }

        // Nothing more is to be simulated for these tasks.
        if before > 0 && self.desk.open() == 0 {
            world.stop();
        }
    }
}

impl Host for Hall {
    const WATCHES: bool = true;

    fn wake(&mut self, world: &mut World, token: u64) {
        if token & RESTART != 0 && token & RESPONSE == 0 {
            world.start((token & !RESTART) as usize);
            return;
        }
        match self.arriving.remove(&token) {
            Some((wire, stream, response)) => self.desk.receive(world.now(), wire, stream, response),
            None => self.desk.rings(world.now(), token),
        }
        self.work(world);
    }

    /// A response leaves its site when the processor has made it, and is then on its way to the client.
    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        let (wire, stream) = ((client.0 & ((1 << STREAM) - 1)) as usize, client.0 >> STREAM);

        self.arrivals += 1;
        let token = RESPONSE | self.arrivals;
        self.arriving.insert(token, (wire, stream, response));
        world.wake_at(world.free_at(site) + NEAR / 2, token);
    }

    /// A site that crashes is started again after a while. Its clients' streams break.
    fn crashed(&mut self, world: &mut World, site: usize, _: u64) {
        for wire in self.desk.wires_to(site) {
            self.desk.broken(world.now(), wire);
        }
        world.wake_at(world.now() + self.down, RESTART | site as u64);
    }

    /// Notes how long parts are defended.
    fn after(&mut self, world: &mut World, site: usize, effects: &[Effect<Node>]) -> After {
        let after = self.watch.as_mut().map_or(After::Go, |watch| watch(world.now(), site, effects));
        let (Some(node), known) = (world.node(site), &mut self.defending[site]) else { return after };
        let mut present = node.chapters().txns.defending().peekable();
        if known.is_empty() && present.peek().is_none() {
            return after;
        }

        // What is defended no longer has ended its delay. Of the parts of one transaction the longest counts.
        let present: Vec<OperationId> = present.collect();
        let mut delays = self.delays.all();
        known.retain(|id, since| {
            let is_there = present.binary_search(id).is_ok();
            if !is_there {
                let delay = delays.entry(*id).or_default();
                *delay = (*delay).max(world.now() - *since);
            }
            is_there
        });

        for id in present {
            known.entry(id).or_insert(world.now());
        }
        after
    }
}
