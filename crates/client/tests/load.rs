//! Steady load on a cluster through faults, and the ledger of what its clients were told.
//!
//! The tests that kill processes (`cli/tests/kills.rs`), that change the members (`cli/tests/members.rs`) and that cut the power
//! (`server/tests/power.rs`) share it, so that there is one account of what is promised. At each site there are callers of
//! several habits, one call under way each: they fill up with grants, then give them back, and keep some to the end. The quota
//! is smaller than what they would like to have. What is checked while it goes on:
//!
//! - what clients were told that they hold, and have not begun to give back, is never more than the limit;
//! - no grant is handed out twice, and a release of what is held is done, with its amount;
//! - every outcome that is unknown is settled by asking;
//! - `show` is never beyond the limit.
//!
//! Sites may join and leave meanwhile. When one is drained, all give back what it had granted; when one is lost, what it had granted
//! and clients still have is counted, for the operator's word, and given back by amount at the end.
//!
//! And at the end, by [`Load::finish`]: the books are exactly what the clients hold; each grant that they kept is given back
//! once and not twice; then the whole limit can be acquired again, and no token more.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline::{
    Client, Effect, GrantId, OperationId, Options, Outcome, Quota, Reason, Refused, SiteId, UnknownReason,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The quota's name.
const NAME: &str = "seats";
/// Its tokens: a multiple of the number of sites.
const LIMIT: i64 = 600;
/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A deadline that outlasts a site's absence, and one that does not, so that calls under way become unknown.
const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_millis(200);
/// How long one attempt at asking what became of an operation, or at counting, may take.
const ASKING: Duration = Duration::from_secs(2);
/// Holds that no test outlives, and holds that end by themselves.
const LONG: Duration = Duration::from_secs(3600);
const BRIEF: Duration = Duration::from_millis(500);
/// A caller's pause between calls.
const PAUSE: Duration = Duration::from_millis(1);
/// How many grants a caller keeps to the end, at most.
const KEEPSAKES: usize = 8;
/// So many more grants at a site show that it goes on.
const PROGRESS: u64 = 50;
/// No test has more regions, those that join included.
const REGIONS: usize = 16;

/// What a caller acquires, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    /// Without a time, at its own site; given back by grant.
    Tracked,
    /// For a time that does not end before it is given back by grant; at its own site.
    Held,
    /// For a short time, at its own site; not given back.
    Brief,
    /// Without a grant of its own, at any site; given back by amount.
    Counted,
    /// As `Tracked`, at any site; a call in doubt is issued again at another one.
    Roaming,
}

/// The callers at each site, with the deadline of their calls.
const CALLERS: [(Habit, Duration); 6] = [
    (Habit::Tracked, PATIENT),
    (Habit::Tracked, IMPATIENT),
    (Habit::Held, IMPATIENT),
    (Habit::Brief, IMPATIENT),
    (Habit::Counted, IMPATIENT),
    (Habit::Roaming, PATIENT),
];

/// Load on a cluster, from callers at all of its sites.
pub(crate) struct Load {
    shared: Arc<Shared>,
    /// Of each region, as many as are members.
    clients: BTreeMap<usize, Client>,
    callers: Vec<JoinHandle<Vec<Held>>>,
}

/// How a site leaves.
#[allow(dead_code, reason = "only the tests of members need it")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaves {
    /// It is drained: what it granted must be given back to it.
    Drained,
    /// It is gone for good, with all that it knew.
    Lost,
}

/// How calls ended, in all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// Grants, by region.
    pub(crate) granted: Vec<u64>,
    /// Refused acquires.
    pub(crate) refused: u64,
    /// Calls whose outcome was unknown and had to be asked for.
    pub(crate) unknown: u64,
    /// Grants that were kept to the end.
    pub(crate) kept: usize,
}

impl Load {
    /// Creates the quota and starts the callers.
    pub(crate) async fn start(addresses: &[String]) -> Self {
        let options = Options { deadline: ASKING, connect: PATIENCE, ..Options::default() };
        let first = Client::connect_with(addresses, options.clone()).await.expect("the cluster answers");
        let regions = first.topology().regions.clone();
        let until = Instant::now() + PATIENCE;
        loop {
            match first.quota(NAME).create(LIMIT).deadline(PATIENCE).await {
                Outcome::Refused(refused) if may_be_tried_again(&refused) && Instant::now() < until => {
                    sleep(PAUSE).await;
                }
                created => break assert_eq!(created, Outcome::Done(LIMIT)),
            }
        }
        first.close().await;

        let ledger = Ledger { told: Told { granted: vec![0; REGIONS], ..Told::default() }, ..Ledger::default() };
        let (stop, doomed) = (AtomicBool::new(false), AtomicUsize::new(usize::MAX));
        let shared = Arc::new(Shared { stop, phase: AtomicUsize::new(0), doomed, ledger: ledger.into() });
        let mut load = Self { shared, clients: BTreeMap::new(), callers: Vec::new() };
        for region in regions {
            load.join(addresses, &region).await;
        }
        load
    }

    /// Starts the callers of a region. Those that call at any site do so at the sites that their client knows: all that were members
    /// when it connected.
    pub(crate) async fn join(&mut self, addresses: &[String], region: &str) {
        let options =
            Options { deadline: ASKING, connect: PATIENCE, region: Some(region.to_owned()), ..Options::default() };
        let client = Client::connect_with(addresses, options).await.expect("the cluster answers");
        let number = client.topology().regions.iter().position(|name| name == region).expect("a site of this region");
        for (position, (habit, deadline)) in CALLERS.into_iter().enumerate() {
            let (shared, client, region) = (Arc::clone(&self.shared), client.clone(), region.to_owned());
            let quota = client.quota(NAME);
            let caller = Caller { shared, client, quota, region, number, habit, deadline, most: 8 + 4 * position };
            self.shared.ledger().calling += 1;
            self.callers.push(tokio::spawn(caller.run()));
        }
        self.clients.insert(number, client);
    }

    /// From now on all is given back to the site that granted it, also where no grant tells which: the site of the `doomed` region will
    /// be lost. So it is known how much of what it granted it has not taken back; what others took back counts.
    #[allow(dead_code, reason = "only the tests of members need it")]
    pub(crate) fn return_where_granted(&self, doomed: usize) {
        self.shared.doomed.store(doomed, Ordering::Relaxed);
    }

    /// Ends the callers of a region whose site leaves, and has all others part with what that site granted. Returns how many tokens of
    /// a lost one's grants clients have still.
    #[allow(dead_code, reason = "only the tests of members need it")]
    pub(crate) async fn leave(&mut self, region: usize, how: Leaves) -> i64 {
        {
            let mut ledger = self.shared.ledger();
            ledger.left.insert(region, how);
            ledger.parted = 0;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let (parted, calling) = self.shared.ledger().parting();
            if parted >= calling {
                break;
            }
            assert!(Instant::now() < until, "{parted} of {calling} callers have parted with what {region} granted");
            sleep(Duration::from_millis(20)).await;
        }
        if let Some(client) = self.clients.remove(&region) {
            client.close().await;
        }
        let ledger = self.shared.ledger();
        ledger.strays.iter().filter(|held| usize::from(held.grant.site.region) == region).map(|held| held.amount).sum()
    }

    /// Waits until each of these sites has granted more than before.
    pub(crate) async fn goes_on(&self, regions: &[usize]) {
        self.shared.phase.fetch_add(1, Ordering::Relaxed);
        let before = self.shared.ledger().told.granted.clone();
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.shared.ledger().told.granted.clone();
            if regions.iter().all(|region| now[*region] >= before[*region] + PROGRESS) {
                return;
            }
            let ended = self.callers.iter().filter(|caller| caller.is_finished()).count();
            assert!(ended + self.shared.ledger().calling <= self.callers.len(), "a caller has panicked");
            assert!(Instant::now() < until, "sites {regions:?} do not grant: from {before:?} to {now:?}");
            // Whichever site answers; none, if all are away.
            if let Ok(shown) = self.first().quota(NAME).show_within(Duration::from_secs(1)).await {
                assert!(0 <= shown.in_use.min && shown.in_use.max <= LIMIT, "{shown:?}");
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A client, of a region whose site stays.
    fn first(&self) -> &Client {
        self.clients.values().next().expect("a site stays")
    }

    /// Ends the load, with all members up, and checks that nothing is lost and nothing is counted twice.
    pub(crate) async fn finish(self) -> Told {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut kept = Vec::new();
        for caller in self.callers {
            kept.extend(caller.await.expect("no caller panics"));
        }
        kept.append(&mut self.shared.ledger().strays);
        let clients: Vec<Client> = self.clients.into_values().collect();
        let held = kept.iter().map(|held| held.amount).sum();
        assert_eq!(held, self.shared.ledger().held);
        books_show(&clients[0], held).await;

        for (position, held) in kept.iter().enumerate() {
            // Any site's client can give it back that has connected since the site was a member.
            let knows = |client: &&Client| client.topology().regions.len() > usize::from(held.grant.site.region);
            let client = clients.iter().cycle().skip(position % clients.len()).find(knows).expect("its own knows it");
            self.shared.give_back(client, held, PATIENT).await;
            if held.is_tracked {
                let again = client.release_grant(held.grant).deadline(PATIENCE).await;
                assert_eq!(again.refusal(), Some(&Reason::UnknownGrant), "{held:?}: {again:?}");
            }
        }
        books_show(&clients[0], 0).await;

        let share = LIMIT / clients.len() as i64;
        for client in &clients {
            take(client, share).await;
        }
        books_show(&clients[0], LIMIT).await;
        let more = clients[0].quota(NAME).acquire(1).deadline(IMPATIENT).await;
        assert!(more.is_refused(), "beyond the limit: {more:?}");

        for client in clients {
            client.close().await;
        }
        let told = self.shared.ledger().told.clone();
        Told { kept: kept.len(), ..told }
    }
}

/// Tokens that a caller was told it has.
#[derive(Clone, Copy, Debug)]
struct Held {
    grant: GrantId,
    amount: i64,
    is_tracked: bool,
    /// Whether its site was lost since.
    is_stray: bool,
}

struct Shared {
    stop: AtomicBool,
    /// Rises with each stretch of the load; callers keep a grant of each.
    phase: AtomicUsize,
    /// The region of the site that will be lost; `usize::MAX` for none. If there is one, what was granted without a grant of its own is
    /// given back where it was granted; else at any site.
    doomed: AtomicUsize,
    ledger: Mutex<Ledger>,
}

/// What all clients together were told.
#[derive(Default)]
struct Ledger {
    /// Tokens that are held, as far as no release of them has begun.
    held: i64,
    /// Tokens that are held for a short time, and until when.
    brief: Vec<(Instant, i64)>,
    grants: HashSet<GrantId>,
    told: Told,
    /// The sites that leave, by their regions.
    left: BTreeMap<usize, Leaves>,
    /// Callers that have not ended.
    calling: usize,
    /// Callers that have parted with what the last site to leave had granted, of those that have not ended.
    parted: usize,
    /// What lost sites had granted and clients still have; part of `held`.
    strays: Vec<Held>,
}

impl Ledger {
    /// How many callers have parted with what the last site to leave had granted, of how many.
    fn parting(&self) -> (usize, usize) {
        (self.parted, self.calling)
    }

    fn granted(&mut self, held: &Held, until: Option<Instant>) {
        assert!(self.grants.insert(held.grant), "handed out twice: {held:?}");
        self.told.granted[usize::from(held.grant.site.region)] += 1;
        match until {
            Some(until) => self.brief.push((until, held.amount)),
            None => self.held += held.amount,
        }
        self.check_limit();
    }

    fn check_limit(&mut self) {
        let now = Instant::now();
        self.brief.retain(|(until, _)| now < *until);
        let held = self.held + self.brief.iter().map(|(_, amount)| amount).sum::<i64>();
        assert!(held <= LIMIT, "{held} tokens are acknowledged, of {LIMIT}");
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A caller that has panicked has said why.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this site is gone for good.
    fn is_lost(&self, site: SiteId) -> bool {
        self.ledger().left.get(&usize::from(site.region)) == Some(&Leaves::Lost)
    }

    /// Whether this site leaves or has left.
    fn has_left(&self, site: SiteId) -> bool {
        self.ledger().left.contains_key(&usize::from(site.region))
    }

    /// Gives tokens back, however long it takes, exactly once. What a lost site granted is kept for the end, by amount: nobody else knows
    /// that grant.
    async fn give_back(&self, client: &Client, held: &Held, deadline: Duration) {
        // From here on they may be back at any moment.
        self.ledger().held -= held.amount;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.is_lost(held.grant.site) && !held.is_stray {
                let mut ledger = self.ledger();
                ledger.held += held.amount;
                return ledger.strays.push(Held { is_tracked: false, is_stray: true, ..*held });
            }
            let outcome = match held.is_tracked {
                true => client.release_grant(held.grant).deadline(deadline).await,
                false => {
                    let release = client.quota(NAME).release(held.amount).deadline(deadline);
                    let granted_at = client.topology().regions.get(usize::from(held.grant.site.region));
                    let returns = self.doomed.load(Ordering::Relaxed) != usize::MAX && !self.has_left(held.grant.site);
                    match granted_at.filter(|_| returns) {
                        Some(region) => release.at(region).await,
                        None => release.await,
                    }
                }
            };
            let settled = match outcome {
                Outcome::Done(amount) => Outcome::Done(Effect::Released { amount }),
                Outcome::Refused(refused) => Outcome::Refused(refused),
                Outcome::Unknown(unknown) => match self.settle(client, unknown.operation).await {
                    Some(settled) => settled,
                    // The lost site took it back, or nobody ever will: it counts as lost.
                    None => return,
                },
            };
            match settled {
                Outcome::Done(Effect::Released { amount }) => return assert_eq!(amount, held.amount, "{held:?}"),
                Outcome::Refused(refused) if may_be_tried_again(&refused) => sleep(PAUSE).await,
                other => panic!("what was acknowledged cannot be given back: {held:?}: {other:?}"),
            }
        }
        panic!("not given back in time: {held:?}");
    }

    /// What became of an operation: asks until that is known. None if its site is lost: then nobody will ever know.
    async fn settle(&self, client: &Client, operation: OperationId) -> Option<Outcome<Effect>> {
        self.ledger().told.unknown += 1;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.is_lost(operation.site) {
                return None;
            }
            match client.outcome_of(operation).await {
                Outcome::Unknown(_) if self.is_lost(operation.site) => {}
                // It was declared lost just now.
                Outcome::Unknown(unknown)
                    if unknown.why == UnknownReason::IncarnationLost
                        && usize::from(operation.site.region) == self.doomed.load(Ordering::Relaxed) =>
                {
                    return None;
                }
                Outcome::Unknown(unknown) => {
                    let lost = matches!(unknown.why, UnknownReason::IncarnationLost | UnknownReason::Forgotten);
                    assert!(!lost && unknown.why != UnknownReason::Senseless, "{unknown:?}");
                }
                outcome => return Some(outcome),
            }
        }
        panic!("not settled in time: {operation:?}");
    }
}

struct Caller {
    shared: Arc<Shared>,
    client: Client,
    quota: Quota,
    region: String,
    number: usize,
    habit: Habit,
    deadline: Duration,
    /// How many grants it fills up to.
    most: usize,
}

impl Caller {
    /// Calls until the load ends. Returns what it holds then.
    async fn run(self) -> Vec<Held> {
        let (mut held, mut keepsakes) = (VecDeque::new(), Vec::new());
        let (mut fills, mut phase, mut left) = (true, 0, 0);
        for number in 0i64.. {
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let leaving = self.shared.ledger().left.clone();
            if leaving.len() != left {
                left = leaving.len();
                let is_of_one = |held: &Held| leaving.contains_key(&usize::from(held.grant.site.region));
                let (parted, stay): (VecDeque<Held>, VecDeque<Held>) = held.into_iter().partition(is_of_one);
                let (also_parted, keep): (Vec<Held>, Vec<Held>) = keepsakes.into_iter().partition(is_of_one);
                (held, keepsakes) = (stay, keep);
                for held in parted.iter().chain(&also_parted) {
                    self.shared.give_back(&self.client, held, self.deadline).await;
                }
                if leaving.contains_key(&self.number) {
                    break;
                }
                self.shared.ledger().parted += 1;
            }
            sleep(PAUSE).await;
            if fills {
                let granted = self.acquire(1 + number % 3).await;
                let now = self.shared.phase.load(Ordering::Relaxed);
                match granted {
                    Some(granted) if now != phase && keepsakes.len() < KEEPSAKES => {
                        phase = now;
                        keepsakes.push(granted);
                    }
                    Some(granted) => held.push_back(granted),
                    None => {}
                }
                fills = held.is_empty() || granted.is_some() && held.len() < self.most;
            } else if let Some(oldest) = held.pop_front() {
                self.shared.give_back(&self.client, &oldest, self.deadline).await;
                fills = held.is_empty();
            }
        }
        self.shared.ledger().calling -= 1;
        keepsakes.extend(held);
        keepsakes
    }

    /// Acquires; returns what is to be given back.
    async fn acquire(&self, amount: i64) -> Option<Held> {
        let call = self.quota.acquire(amount).deadline(self.deadline);
        let call = match self.habit {
            Habit::Tracked => call.tracked().at(&self.region),
            Habit::Held => call.hold_for(LONG).at(&self.region),
            Habit::Brief => call.hold_for(BRIEF).at(&self.region),
            Habit::Counted => call,
            Habit::Roaming => call.tracked().patience(IMPATIENT),
        };
        let held = |grant| Held { grant, amount, is_tracked: self.habit != Habit::Counted, is_stray: false };
        let (granted, until) = match call.await {
            Outcome::Done(grant) => (held(grant.id()), grant.expires_at()),
            Outcome::Refused(refused) => return self.refused(&refused),
            Outcome::Unknown(unknown) => match self.shared.settle(&self.client, unknown.operation).await {
                // When a brief hold began is not known any more: it counts as over.
                Some(Outcome::Done(Effect::Granted { grant, .. })) => (held(grant), Some(Instant::now())),
                Some(Outcome::Refused(refused)) => return self.refused(&refused),
                // Whatever it was granted, it does not know of.
                None => return None,
                other => panic!("not an outcome of an acquire: {other:?}"),
            },
        };
        if self.habit != Habit::Brief {
            self.shared.ledger().granted(&granted, None);
            return Some(granted);
        }
        self.shared.ledger().granted(&granted, until);
        sleep(BRIEF / 10).await;
        None
    }

    fn refused(&self, refused: &Refused) -> Option<Held> {
        let exhausted = matches!(refused.reason, Reason::Exhausted { .. });
        assert!(exhausted || may_be_tried_again(refused), "{:?} at {}: {refused:?}", self.habit, self.region);
        self.shared.ledger().told.refused += 1;
        None
    }
}

/// Whether it was refused because of what happens around it, and not because of what it asked for.
fn may_be_tried_again(refused: &Refused) -> bool {
    matches!(
        refused.reason,
        Reason::NotSent { .. }
            | Reason::NotReady
            | Reason::Unreachable { .. }
            | Reason::DeadlinePassed
            | Reason::Overloaded
            | Reason::StorageFull
            | Reason::Withdrawn
    )
}

/// Waits until the books show that so many tokens are in use, exactly, and all others at the sites.
async fn books_show(client: &Client, in_use: i64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let shown = client.quota(NAME).show().await;
        if let Ok(shown) = &shown {
            assert_eq!((shown.limit, shown.released_above), (LIMIT, 0), "{shown:?}");
            let tokens: i64 = shown.sites.iter().map(|site| site.tokens).sum();
            let is_quiet = shown.missing.is_empty() && shown.sites.iter().all(|site| site.set_aside == 0);
            if is_quiet && shown.in_use.exact() == Some(in_use) && tokens + in_use == LIMIT {
                return;
            }
        }
        assert!(Instant::now() < until, "{in_use} tokens should be in use: {shown:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Acquires at the client's own site, which may have to get the tokens from the others first.
async fn take(client: &Client, amount: i64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let outcome = client.quota(NAME).acquire(amount).at(client.nearest()).deadline(PATIENT).await;
        if outcome.is_done() {
            return;
        }
        assert!(outcome.is_refused() && Instant::now() < until, "{amount} tokens are to be had: {outcome:?}");
        sleep(Duration::from_millis(50)).await;
    }
}
