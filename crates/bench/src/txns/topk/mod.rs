//! `bench topk`: which pages of a web site are the most requested (*Predictive Treaties*, EuroSys 2019, section 7.2, figure 12).
//!
//! The site is served from 33 servers in four regions, and each counts the requests of its pages. Once a second somebody asks for the 20
//! most requested ones, and is told what is true then. That is done by a treaty with a marker (`marker`), and by the algorithm of
//! Babcock and Olston (`babcock`), which was made for the purpose.
//!
//! The requests of each minute are those of the site of the 1998 World Cup. Which pages were asked for at which server is not to be had:
//! that is drawn.

mod babcock;
mod marker;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slackline::{Outcome, Transaction, TxnError};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{OperationId, SiteId};
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::peer::Body;
use slackline_core::stats::Rng;
use slackline_core::txn::counter_of_row;
use slackline_session::port::Port;
use slackline_session::time::Time;
use slackline_session::topology::Topology;
use slackline_session::txn::Memos;
use slackline_sim::world::{After, Options};

use self::babcock::Babcock;
use self::marker::Marker;
use super::setting::TxnsError;
use super::stage::{EC2, Nursery, Stage, costs, ec2_region};
use crate::EPSILON;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::histogram::Histogram;
use crate::named::named;
use crate::report::{Latency, Mode, Report, Run};
use crate::series;
use crate::zipf::Zipf;

/// The servers of each region.
const SERVERS: [usize; 4] = [9, 8, 8, 8];
/// The round trip between two servers of a region, in microseconds.
const INSIDE: u64 = MILLISECOND;
/// The time that counting a request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The pages that are the top.
const TOP: usize = 20;
/// The minutes of the trace that are replayed, and the first of them.
const MINUTES: usize = 60;
const FROM: &str = "1998-05-18 20:19:00";
/// The requests of these minutes.
const REQUESTS: usize = 84_398;
/// By how much a region's interest in a page differs from that of all: up to twice as much, or half.
const TASTE: f64 = 2.0;
/// The shares of slack that the coordinator of Babcock and Olston is tried with.
const SHARES: [f64; 3] = [0.0, 0.2, 0.5];

/// How it is known which pages are the top.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// By one treaty.
    Marker,
    /// By the algorithm of Babcock and Olston, with the coordinator's share that is best.
    BabcockOlston,
}

named!(Method is a "configuration": Marker "marker", BabcockOlston "babcock-olston");

impl Method {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Marker, Self::BabcockOlston];
}

/// Options of `bench topk`.
#[derive(Clone, Debug)]
pub struct TopkOptions {
    /// The configurations.
    pub methods: Vec<Method>,
    /// The number of pages, at least 21.
    pub pages: usize,
    /// The requests of each minute: a CSV file, `period,count`. Without one there are as many each minute.
    pub requests: Option<PathBuf>,
    /// The minutes that are replayed, up to 60.
    pub minutes: usize,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Default for TopkOptions {
    fn default() -> Self {
        Self { methods: Method::ALL.to_vec(), pages: 2_000, requests: None, minutes: MINUTES, seed: 1 }
    }
}

/// A request for a page.
#[derive(Clone, Copy, Debug)]
struct Hit {
    /// When it came, in microseconds.
    at: u64,
    server: usize,
    page: usize,
}

/// Runs `bench topk`.
///
/// # Errors
///
/// The requests cannot be read.
pub fn topk(options: &TopkOptions) -> Result<Report, TxnsError> {
    let hits = hits(options)?;
    let found = super::run::run_each(&options.methods, false, |method| match method {
        Method::Marker => Ok(Trial::new(options, &hits).run()),
        Method::BabcockOlston => Ok(baseline(options, &hits)),
    })?;
    let verified = found.iter().all(|(run, _)| run.figure("wrong_answers") == Some(0.0));
    let (runs, series): (Vec<Run>, Vec<Series>) = found.into_iter().unzip();
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let data = options.requests.as_ref().map_or("generated".into(), |path| format!("real: {}", name(path)));
    Ok(Report {
        workload: "topk".into(),
        mode: Mode::Sim,
        seed: options.seed,
        data,
        epsilon_us: EPSILON,
        cost_model: Some(costs()),
        runs,
        verified,
        facts: vec![
            (
                "requests".into(),
                format!(
                    "{} at {} servers, for {} pages by Zipf's law",
                    hits.len(),
                    SERVERS.iter().sum::<usize>(),
                    options.pages
                ),
            ),
            ("round trips".into(), format!("1 ms in a region, 64 to 285 ms between two ({})", EC2.source())),
            ("paper".into(), "figure 12: with a treaty fewer synchronizations by the end of the hour".into()),
        ],
        figures: vec![Figure {
            name: "topk".into(),
            title: "Operations that waited for another server".into(),
            x: Axis::new("seconds", Scale::Linear),
            y: Axis::new("so far", Scale::Linear),
            series,
        }],
    })
}

/// Writes the requests: `time_us,site,page`.
///
/// # Errors
///
/// The requests of each minute cannot be read, or the file cannot be written.
pub fn write_hits(options: &TopkOptions, path: &Path) -> Result<(), TxnsError> {
    let hits = hits(options)?;
    let write = || -> io::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        writeln!(out, "time_us,site,page")?;
        for Hit { at, server, page } in hits {
            writeln!(out, "{at},{},{}", server + 1, page + 1)?;
        }
        out.flush()
    };
    write().map_err(|error| TxnsError::Option(format!("{}: cannot be written: {error}", path.display())))
}

/// The region of a server.
fn region_of(server: usize) -> usize {
    let ends = SERVERS.iter().scan(0, |end, servers| {
        *end += servers;
        Some(*end)
    });
    ends.take_while(|end| *end <= server).count()
}

/// The requests of each minute.
fn minutes(options: &TopkOptions) -> Result<Vec<usize>, TxnsError> {
    let Some(path) = &options.requests else {
        let until = |minute: usize| REQUESTS * minute / MINUTES;
        return Ok((0..options.minutes).map(|minute| until(minute + 1) - until(minute)).collect());
    };
    let fail = |what: String| TxnsError::Option(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
    // Each minute once: one that is missing or comes twice would move those behind it.
    let (mut counts, mut last) = (Vec::with_capacity(options.minutes), None);
    for line in text.lines().skip_while(|line| !line.starts_with(FROM)).take(options.minutes) {
        let (minute, count) = series::minute(line).map_err(|why| fail(format!("{line:?}: {why}")))?;
        if last.is_some_and(|last| minute != last + 1) {
            return Err(fail(format!("{line:?} does not come one minute after the line before it")));
        }
        counts.push(count as usize);
        last = Some(minute);
    }
    if counts.len() < options.minutes {
        return Err(fail(format!("there are not {} minutes from {FROM} on", options.minutes)));
    }
    Ok(counts)
}

/// The requests, in their order.
fn hits(options: &TopkOptions) -> Result<Vec<Hit>, TxnsError> {
    let mut rng = Rng::new(options.seed ^ 0x746f_706b);
    let weights = |rng: &mut Rng| -> Vec<f64> {
        let unit = |rng: &mut Rng| (rng.draw() >> 11) as f64 / (1u64 << 53) as f64;
        (1..=options.pages).map(|rank| TASTE.powf(2.0 * unit(rng) - 1.0) / rank as f64).collect()
    };
    let tastes: Vec<Zipf> = SERVERS.iter().map(|_| Zipf::weighted(&weights(&mut rng))).collect();
    let servers = SERVERS.iter().sum::<usize>() as u64;
    let mut hits = Vec::new();
    for (minute, count) in minutes(options)?.into_iter().enumerate() {
        let mut times: Vec<u64> = (0..count).map(|_| rng.below(60 * SECOND)).collect();
        times.sort_unstable();
        for time in times {
            let server = rng.below(servers) as usize;
            let page = tastes[region_of(server)].draw(&mut rng);
            hits.push(Hit { at: minute as u64 * 60 * SECOND + time, server, page });
        }
    }
    Ok(hits)
}

/// True if no other page has more requests than one of these.
fn is_top(top: &[usize], counts: &[i64]) -> bool {
    let is_in = |page: &usize| top.contains(page);
    let least = top.iter().map(|page| counts[*page]).min();
    let most = (0..counts.len()).filter(|page| !is_in(page)).map(|page| counts[page]).max();
    least >= most
}

/// The line of a figure: how many there were so far, each second.
fn so_far(of: &[u64], name: &str) -> Series {
    let sums = of.iter().scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    Series::new(name, sums.enumerate().map(|(second, sum)| (second as f64, sum as f64)).collect())
}

/// The algorithm of Babcock and Olston, with the share of the coordinator that synchronizes least.
fn baseline(options: &TopkOptions, hits: &[Hit]) -> (Run, Series) {
    let seconds = options.minutes * 60;
    let tries = SHARES.map(|share| {
        let mut nodes = Babcock::new(SERVERS.iter().sum(), options.pages, TOP, share);
        let (mut counts, mut series, mut wrong) = (vec![0; options.pages], vec![0; seconds], 0);
        let mut second = 0;
        for hit in hits {
            while second <= (hit.at / SECOND) as usize {
                wrong += u64::from(!is_top(nodes.top(), &counts));
                second += 1;
            }
            let before = nodes.synchronizations;
            nodes.count(hit.server, hit.page);
            counts[hit.page] += 1;
            series[(hit.at / SECOND) as usize] += nodes.synchronizations - before;
        }
        (share, nodes, series, wrong)
    });
    let of = |nodes: &Babcock| serde_json::json!({ "synchronizations": nodes.synchronizations, "treaty_messages": nodes.messages });
    let by_share = tries.iter().map(|(share, nodes, ..)| (share.to_string(), of(nodes))).collect();
    let (share, nodes, series, wrong) =
        tries.into_iter().min_by_key(|(_, nodes, ..)| nodes.synchronizations).expect("three were tried");

    let mut run = Run::new(Method::BabcockOlston.to_string());
    run.committed = (hits.len() + seconds) as u64;
    run.local_ratio = None;
    let run = run
        .took(seconds as f64)
        .with("synchronizations", nodes.synchronizations)
        .with("treaty_messages", nodes.messages)
        .with("coordinator_share", share)
        .with("by_coordinator_share", serde_json::Value::Object(by_share))
        .with("wrong_answers", wrong);
    (run, so_far(&series, "babcock-olston"))
}

/// What is known of the counters, by what their sites write.
#[derive(Default)]
struct Truth {
    /// The last count of each page at each server.
    parts: BTreeMap<(usize, usize), i64>,
    /// Their sums.
    counts: Vec<i64>,
    /// What was counted of late: when, of which page, and how many.
    changes: Vec<(u64, usize, i64)>,
    /// Messages between servers, but for what they tell each other of their being there.
    messages: u64,
}

impl Truth {
    /// Looks at what a server does.
    fn look(&mut self, now: u64, server: usize, effects: &[Effect<Node>]) {
        for effect in effects {
            match effect {
                Effect::Persist(batch) => {
                    for (key, row) in batch.iter() {
                        let Some((_, name, count)) = counter_of_row(key, row) else { continue };
                        let page = name.strip_prefix("p/").and_then(|page| page.parse::<usize>().ok());
                        let Some(page) = page else { continue };
                        let before = self.parts.insert((server, page), count).unwrap_or(0);
                        self.counts[page] += count - before;
                        self.changes.push((now, page, count - before));
                    }
                }
                Effect::Send { message, .. } => self.messages += u64::from(matches!(message.body, Body::Txn(_))),
                Effect::Respond { .. } => {}
            }
        }
    }

    /// True if these were the top at some time from `began` on. What came before it is forgotten.
    fn was_top(&mut self, top: &[usize], began: u64) -> bool {
        let mut counts = self.counts.clone();
        let mut was = is_top(top, &counts);
        for (_, page, change) in self.changes.iter().rev().take_while(|(at, ..)| *at >= began) {
            counts[*page] -= change;
            was |= is_top(top, &counts);
        }
        self.changes.clear();
        was
    }
}

/// What a trial counts.
#[derive(Default)]
struct Counted {
    hits: Histogram,
    queries: Histogram,
    refused: u64,
    unknown: u64,
    wrong: u64,
    makings: u64,
    /// The operations that waited for another server, by the second in which they began.
    synchronized: Vec<u64>,
    waited: u64,
    asked: u64,
    /// The requests of which the wait is still to be looked up, and when they came.
    committed: Vec<(u64, OperationId)>,
}

/// A run with the marker.
struct Trial<'a> {
    stage: Stage,
    hits: &'a [Hit],
    truth: Rc<RefCell<Truth>>,
    counted: Rc<RefCell<Counted>>,
    pages: usize,
    seconds: u64,
}

/// The name of a server's region, as the product has it: each server is one of its own.
fn name_of(server: usize) -> String {
    format!("{}-{}", ec2_region(region_of(server)), server + 1)
}

impl<'a> Trial<'a> {
    fn new(options: &TopkOptions, hits: &'a [Hit]) -> Self {
        let servers: usize = SERVERS.iter().sum();
        let micros = |from: usize, to: usize| match (region_of(from), region_of(to)) {
            _ if from == to => 0,
            (one, other) if one == other => INSIDE,
            (one, other) => EC2.rtt(&ec2_region(one), &ec2_region(other)).unwrap_or_default().as_micros() as u64,
        };
        let rtt = (0..servers).map(|from| (0..servers).map(|to| micros(from, to)).collect()).collect();
        let world = Options { costs: costs(), epsilon: EPSILON, ..Options::new(rtt, options.seed) };
        let sites = (0..servers as u16).map(|at| (SiteId::new(at, 0), String::new())).collect();
        let topology = Topology::new("bench".into(), (0..servers).map(name_of).collect(), 1, sites);
        let topology = Arc::new(topology.expect("a site for each of the regions"));
        let clients: Vec<usize> = (0..servers).collect();

        let seconds = options.minutes as u64 * 60;
        let truth = Truth { counts: vec![0; options.pages], ..Truth::default() };
        let counted = Counted { synchronized: vec![0; seconds as usize], ..Counted::default() };
        Self {
            stage: Stage::new(world, topology, &clients),
            hits,
            truth: Rc::new(RefCell::new(truth)),
            counted: Rc::new(RefCell::new(counted)),
            pages: options.pages,
            seconds,
        }
    }

    fn run(mut self) -> (Run, Series) {
        let began = self.stage.world.now();
        let truth = Rc::clone(&self.truth);
        self.stage.watch(
            SECOND,
            Box::new(move |now, server, effects| {
                truth.borrow_mut().look(now, server, effects);
                After::Go
            }),
        );

        let asker = Asker { began, truth: Rc::clone(&self.truth), counted: Rc::clone(&self.counted) };
        let marker = Marker {
            port: self.stage.port(0),
            memos: Arc::default(),
            site: SiteId::new(0, 0),
            pages: self.pages,
            size: TOP,
            began,
            kept: None,
            seen: None,
            makings: 0,
        };
        self.stage.spawn(asker.ask(marker, self.seconds));

        // Requests come whether or not those before them were counted.
        let servers: usize = SERVERS.iter().sum();
        let ports: Vec<Arc<dyn Port>> = (0..servers).map(|server| self.stage.port(server)).collect();
        let server = Server {
            began,
            ports,
            memos: Arc::default(),
            counted: Rc::clone(&self.counted),
            nursery: self.stage.nursery(),
        };
        self.stage.spawn(server.count(self.hits.to_vec()));

        let delays = self.stage.delays();
        let look_up = |counted: &mut Counted| {
            for (at, id) in std::mem::take(&mut counted.committed) {
                if delays.take(id) > 0 {
                    counted.waited += 1;
                    counted.synchronized[(at / SECOND) as usize] += 1;
                }
            }
        };
        for _ in 0..self.seconds {
            self.stage.pass(SECOND);
            look_up(&mut self.counted.borrow_mut());
        }
        self.stage.finish();
        look_up(&mut self.counted.borrow_mut());
        self.report()
    }

    fn report(&self) -> (Run, Series) {
        let counted = self.counted.borrow();
        let mut all = counted.hits.clone();
        all.add(&counted.queries);
        let mut run = Run::new(Method::Marker.to_string());
        (run.committed, run.refused, run.unknown) = (all.count(), counted.refused, counted.unknown);
        run.latency_ms = Latency::from(&all);
        run.wan_messages = Some(self.stage.world.wan_messages());
        let synchronizations: u64 = counted.synchronized.iter().sum();
        run.local_ratio = Some(1.0 - synchronizations as f64 / all.count().max(1) as f64);
        let p99 = |of: &Histogram| of.quantile(0.99) as f64 / 1e6;
        let run = run
            .took(self.seconds as f64)
            .with("synchronizations", synchronizations)
            .with("synchronized_requests", counted.waited)
            .with("synchronized_queries", counted.asked)
            .with("treaty_messages", self.truth.borrow().messages)
            .with("treaties_made", counted.makings)
            .with("query_p99_ms", p99(&counted.queries))
            .with("wrong_answers", counted.wrong);
        (run, so_far(&counted.synchronized, "marker"))
    }
}

/// Who asks for the top.
struct Asker {
    began: u64,
    truth: Rc<RefCell<Truth>>,
    counted: Rc<RefCell<Counted>>,
}

impl Asker {
    /// Asks once a second. A question that comes while another one is being answered waits for that.
    async fn ask(self, mut marker: Marker, seconds: u64) {
        for second in 0..seconds {
            let due = self.began + second * SECOND;
            let is_late = marker.port.now().0 > due;
            marker.port.sleep_until(Time(due)).await;
            let began = marker.port.now().0;
            let found = marker.top().await;
            let ended = marker.port.now().0;
            {
                let mut counted = self.counted.borrow_mut();
                match found {
                    Some((top, is_known)) => {
                        counted.queries.note((ended - due) * 1_000);
                        counted.wrong += u64::from(!self.truth.borrow_mut().was_top(&top, began));
                        let has_waited = is_late || !is_known;
                        counted.asked += u64::from(has_waited);
                        counted.synchronized[second as usize] += u64::from(has_waited);
                    }
                    None => counted.refused += 1,
                }
            }
            marker.renew().await;
            self.counted.borrow_mut().makings = marker.makings;
        }
    }
}

/// The servers, which count requests.
struct Server {
    began: u64,
    ports: Vec<Arc<dyn Port>>,
    memos: Arc<Memos>,
    counted: Rc<RefCell<Counted>>,
    nursery: Nursery,
}

impl Server {
    async fn count(self, hits: Vec<Hit>) {
        for Hit { at, server, page } in hits {
            self.ports[0].sleep_until(Time(self.began + at)).await;
            let port = Arc::clone(&self.ports[server]);
            let (memos, counted) = (Arc::clone(&self.memos), Rc::clone(&self.counted));
            self.nursery.spawn(async move {
                let began = port.now().0;
                let key = slackline::Key::new(name_of(server), marker::counter(page));
                let count = |txn: slackline::Txn| {
                    let key = &key;
                    async move { txn.add(key, 1) }
                };
                let transaction = Transaction::over(Arc::clone(&port), memos).at(&name_of(server)).deadline(DEADLINE);
                let ended: Result<Outcome<_>, TxnError> = transaction.run_and_tell(count).await;
                let mut counted = counted.borrow_mut();
                match ended {
                    Ok(Outcome::Done(committed)) => {
                        counted.hits.note((port.now().0 - began) * 1_000);
                        counted.committed.extend(committed.operation.map(|id| (at, id)));
                    }
                    Ok(Outcome::Unknown(_)) => counted.unknown += 1,
                    _ => counted.refused += 1,
                }
            });
        }
    }
}
