//! `bench oo7`: many users of one design library, after the multi-user OO7 benchmark.
//!
//! Each store has a module: a tree of assemblies, the leaves of which (*base assemblies*) refer to composite parts of the
//! module's library; a composite part has 20 atomic parts. A transaction draws seven base assemblies of all modules by a power
//! law, which puts most of the popular ones into the first module, walks down to them, and reads all their parts: about 460
//! objects, level by level. It is reads that are popular: a transaction that writes draws its base assemblies evenly, and swaps
//! the coordinates of the atomic parts of one composite that it has read.

use slackline::{Key, Txn, TxnError, Value};
use slackline_core::stats::Rng;

use super::run::{run, run_each};
use super::setting::{Config, Terms, TxnsError, region};
use super::tally;
use super::workload::{Seat, Step, Told, Workload, read_all};
use crate::figure::{Axis, Figure, Scale, Series};
use crate::report::{Report, Run};
use crate::zipf::Zipf;

/// Options of `bench oo7`.
#[derive(Clone, Debug)]
pub struct Oo7Options {
    /// The sites and clients, and the length of a run.
    pub terms: Terms,
    /// The numbers of stores; a run for each number and configuration.
    pub stores: Vec<usize>,
    /// Percentages of transactions that write; a run for each too.
    pub write_shares: Vec<u8>,
    /// The number of composite parts of each module.
    pub composites: usize,
}

impl Default for Oo7Options {
    fn default() -> Self {
        Self {
            terms: Terms::new(&Config::PLAIN, 36, 1, 500),
            stores: vec![1, 2, 3, 4],
            write_shares: vec![2],
            composites: 500,
        }
    }
}

/// The children of an assembly. Those on the last level are base assemblies, and have none.
const CHILDREN: usize = 3;
/// The number of levels; the root is on the first.
const LEVELS: u32 = 6;
/// Base assemblies of a module.
const BASES: usize = CHILDREN.pow(LEVELS - 1);
/// The number of composite parts that a base assembly refers to.
const REFERS: usize = 3;
/// The number of atomic parts of a composite part.
const ATOMIC: usize = 20;
/// The number of base assemblies that a transaction draws.
const DRAWN: usize = 7;
/// The exponent of the power law.
const SKEW: f64 = 1.0;

/// Runs `bench oo7`.
pub fn oo7(options: &Oo7Options) -> Result<Report, TxnsError> {
    options.terms.refuse_computation()?;
    let wrong = |what: &str| Err(TxnsError::Option(what.into()));
    if options.stores.iter().any(|stores| !(1..=8).contains(stores)) || options.stores.is_empty() {
        return wrong("the number of stores is 1 to 8: use --stores 1,2,4 or --stores 1..8");
    }
    if options.write_shares.iter().any(|share| *share > 100) || options.write_shares.is_empty() {
        return wrong("a write share is 0 to 100: use --write-shares 0,10,50");
    }
    if options.terms.clients_per_store == 0 || options.composites < REFERS {
        return wrong("there must be clients and composite parts");
    }

    // Caches fill and warranties grow before anything is counted.
    let setting = |config, stores| options.terms.setting(config, stores, options.terms.measure * 4);

    let mut jobs = Vec::new();
    for &config in &options.terms.configs {
        for &stores in &options.stores {
            jobs.extend(options.write_shares.iter().map(|writes| (config, stores, *writes)));
        }
    }
    let runs = run_each(&jobs, options.terms.live.is_some(), |&(config, stores, writes)| {
        let (mut run, _) = run(&setting(config, stores), Oo7::new(options, stores, writes))?;

        // Runs are told apart by what a report has several of.
        let by_stores = if options.stores.len() > 1 { format!("/{stores}") } else { String::new() };
        let by_writes = if options.write_shares.len() > 1 { format!("/{writes}%") } else { String::new() };
        run.label = Some(format!("{config}{by_stores}{by_writes}"));
        Ok(run.with("write_percent", writes))
    })?;

    let figures = figures(options, &runs);
    let setting = setting(Config::State, options.stores[0]);
    let facts = vec![
        (
            "workload",
            format!(
                "a module of {BASES} base assemblies and {} composite parts per store; a transaction reads about 460 \
                 objects, drawn by a power law with exponent {SKEW}, or evenly if it writes",
                options.composites
            ),
        ),
        (
            "paper",
            "on a local network: about 400 transactions a second more for each store with warranties, little more without: \
             the stores with popular objects are the bottleneck"
                .to_owned(),
        ),
    ];
    Ok(tally::report("oo7", &setting, setting.costs(), runs, facts, figures))
}

/// Throughput by stores, and by the share of writes, where a report has several of them.
fn figures(options: &Oo7Options, runs: &[Run]) -> Vec<Figure> {
    let line = |config: &Config, over: &str, fixed: &str, value: f64| {
        let of_it = runs.iter().filter(|run| run.config == config.to_string() && run.figure(fixed) == Some(value));
        let points = of_it.filter_map(|run| Some((run.figure(over)?, run.throughput_per_s)));
        Series::new(&config.to_string(), points.collect())
    };
    let figure = |name: &str, title: String, x: &str, series| Figure {
        name: name.into(),
        title,
        x: Axis::new(x, Scale::Whole),
        y: Axis::new("transactions a second", Scale::Linear),
        series,
    };

    let mut figures = Vec::new();
    let writes = options.write_shares[0];
    if options.stores.len() > 1 {
        let lines =
            options.terms.configs.iter().map(|config| line(config, "stores", "write_percent", f64::from(writes)));
        let title = format!("OO7: throughput by stores, {writes} % of transactions write");
        figures.push(figure("oo7-stores", title, "stores", lines.collect()));
    }

    let stores = options.stores[0];
    if options.write_shares.len() > 1 {
        let lines = options.terms.configs.iter().map(|config| line(config, "write_percent", "stores", stores as f64));
        let title = format!("OO7: throughput by share of writes, {stores} stores");
        figures.push(figure("oo7-writes", title, "transactions that write, in percent", lines.collect()));
    }
    figures
}

/// The workload.
struct Oo7 {
    /// The number of stores, with a module each.
    stores: usize,
    /// The number of composite parts of each module.
    composites: usize,
    /// The percentage of transactions that write.
    writes: u8,
    /// Of the base assemblies of all modules.
    popularity: Zipf,
    /// Swaps of coordinates.
    swaps: Told,
}

/// The content of an atomic part: two coordinates, and the number of times that they were swapped.
type Atomic = (i64, i64, u64);

impl Oo7 {
    fn new(options: &Oo7Options, stores: usize, writes: u8) -> Self {
        let (composites, popularity) = (options.composites, Zipf::new(BASES * stores, SKEW));
        Self { stores, composites, writes, popularity, swaps: Told::default() }
    }

    /// An assembly of a module: level 0 is its root, the last has the base assemblies.
    fn assembly(module: usize, level: u32, order: usize) -> Key {
        Key::new(region(module), format!("assembly/{level}/{order:03}"))
    }

    /// A composite part of a module.
    fn composite(module: usize, order: usize) -> Key {
        Key::new(region(module), format!("composite/{order:04}"))
    }

    /// The atomic parts of a composite part.
    fn atomic(module: usize, composite: usize) -> impl Iterator<Item = Key> {
        (0..ATOMIC).map(move |order| Key::new(region(module), format!("atomic/{composite:04}/{order:02}")))
    }

    /// The composite parts to which a base assembly refers; drawn once, so that the whole library is used.
    fn refers(&self, module: usize, base: usize) -> Vec<usize> {
        let mut rng = Rng::new((module * BASES + base) as u64);
        (0..REFERS).map(|_| rng.below(self.composites as u64) as usize).collect()
    }

    /// Base assemblies with their modules, each once: the popular ones for who only reads, any for who writes.
    fn draw(&self, rng: &mut Rng, writes: bool) -> Vec<(usize, usize)> {
        let all = (BASES * self.stores) as u64;
        // Reads are popular, writes are not: a conflict over a popular part would be most of what is measured.
        let rank = (0..DRAWN).map(|_| if writes { rng.below(all) as usize } else { self.popularity.draw(rng) });
        let mut drawn: Vec<(usize, usize)> = rank.map(|rank| (rank / BASES, rank % BASES)).collect();
        drawn.sort_unstable();
        drawn.dedup();
        drawn
    }
}

impl Workload for Oo7 {
    fn objects(&self, store: usize) -> Vec<(Key, Value)> {
        let json = |value: serde_json::Value| Value::Bytes(value.to_string().into_bytes().into());
        let mut objects = Vec::new();
        for level in 0..LEVELS - 1 {
            let count = CHILDREN.pow(level);
            let inner = |order: usize| {
                let children: Vec<usize> = (0..CHILDREN).map(|child| order * CHILDREN + child).collect();
                (Self::assembly(store, level, order), json(children.into()))
            };
            objects.extend((0..count).map(inner));
        }

        let base = |order| (Self::assembly(store, LEVELS - 1, order), json(self.refers(store, order).into()));
        objects.extend((0..BASES).map(base));

        // The coordinates of a part are its order and the negative of that: a swap turns them round, a torn write shows.
        for composite in 0..self.composites {
            objects.push((Self::composite(store, composite), json(composite.into())));
            let atomic = Self::atomic(store, composite).zip(0i64..);
            objects.extend(atomic.map(|(key, order)| (key, json(serde_json::json!([order, -order, 0])))));
        }
        objects
    }

    async fn step(&self, seat: &Seat, rng: &mut Rng) -> Result<Step, TxnError> {
        let swap = (rng.below(100) < u64::from(self.writes)).then(|| rng.draw() as usize);
        // Both are drawn before the program runs: one that is run again does the same.
        let drawn = &self.draw(rng, swap.is_some());
        let outcome = seat.transaction().run_and_tell(|txn| traverse(txn, drawn, swap)).await?;
        if swap.is_some() {
            self.swaps.note(&outcome);
        }
        Ok(Step { outcome, writes: swap.is_some() })
    }

    async fn verify(&self, seat: &Seat) -> Result<(), String> {
        let mut swaps = 0;
        for module in 0..self.stores {
            for composite in (0..self.composites).collect::<Vec<_>>().chunks(100) {
                let keys: Vec<Key> = composite.iter().flat_map(|order| Self::atomic(module, *order)).collect();
                for parts in read_all(seat, &keys).await?.chunks(ATOMIC) {
                    swaps += swaps_of(parts).ok_or_else(|| format!("composite parts are torn: {parts:?}"))?;
                }
            }
        }
        self.swaps.check(swaps, "swaps")
    }
}

/// Walks down to the base assemblies and reads all their parts; swaps the coordinates of one composite part's, if asked.
async fn traverse(txn: Txn, drawn: &[(usize, usize)], swap: Option<usize>) -> Result<(), TxnError> {
    // Level by level: the objects of one are read together.
    for level in 0..LEVELS - 1 {
        let above = CHILDREN.pow(LEVELS - 1 - level);
        let mut keys: Vec<Key> =
            drawn.iter().map(|(module, base)| Oo7::assembly(*module, level, base / above)).collect();
        keys.dedup();
        txn.values(&keys).await?;
    }

    let bases: Vec<Key> = drawn.iter().map(|(module, base)| Oo7::assembly(*module, LEVELS - 1, *base)).collect();
    let refers: Vec<Option<Vec<usize>>> = txn.get_many(&bases).await?;

    // A composite part that several base assemblies refer to is read once.
    let with_module = drawn.iter().zip(refers);
    let mut composites: Vec<(usize, usize)> = with_module
        .flat_map(|((module, _), refers)| refers.unwrap_or_default().into_iter().map(|order| (*module, order)))
        .collect();
    composites.sort_unstable();
    composites.dedup();

    let keys: Vec<Key> = composites.iter().map(|(module, order)| Oo7::composite(*module, *order)).collect();
    txn.values(&keys).await?;
    let keys: Vec<Key> = composites.iter().flat_map(|(module, order)| Oo7::atomic(*module, *order)).collect();
    let parts: Vec<Option<Atomic>> = txn.get_many(&keys).await?;

    if let Some(swap) = swap {
        let at = swap % composites.len().max(1) * ATOMIC;
        for (key, part) in keys.iter().zip(parts).skip(at).take(ATOMIC) {
            let (x, y, swaps) = part.unwrap_or_default();
            txn.put(key, &(y, x, swaps + 1))?;
        }
    }
    Ok(())
}

/// The number of times that the parts of a composite were swapped, if it is the same for all.
fn swaps_of(parts: &[Option<Value>]) -> Option<u64> {
    let mut swaps = None;
    for (part, order) in parts.iter().zip(0i64..) {
        let Some(Value::Bytes(bytes)) = part else { return None };
        let (x, y, count): Atomic = serde_json::from_slice(bytes).ok()?;
        let expected = if count % 2 == 0 { (order, -order) } else { (-order, order) };
        if (x, y) != expected || swaps.is_some_and(|swaps| swaps != count) {
            return None;
        }
        swaps = Some(count);
    }
    swaps
}
