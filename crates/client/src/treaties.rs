//! Treaties of a client: making them, looking at them, ending them. Relying on one, and requiring what it says, are parts of
//! transactions: [`Txn::holds`](crate::Txn::holds), [`Txn::require`](crate::Txn::require).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use slackline_core::api::SynchronizationCause;
use slackline_core::api::{LeafHere, Synchronization, TreatiesHere, TreatyHere};
use slackline_core::id::SiteId;
use slackline_core::object::treaty::{self, treaty_key, treaty_name};
use slackline_core::object::{ObjectKey, Value};
use slackline_core::stats::split::{Outlook, lasts};
use slackline_core::stats::trend::Motion;
use slackline_session::call::Place;
use slackline_session::metric::Statement;
use slackline_session::outcome::{Outcome, ReadError, Reason, Refused, TreatyRefusal};
use slackline_session::topology::OBJECTS_LANE;
use slackline_session::txn::treaties::{self, Existing, Order, Placed};
use slackline_wire::{WATCH_ALIVE, v1};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::client::{Client, senseless};
use crate::connection;

/// The most synchronizations that are told of a treaty.
const SYNCHRONIZATIONS: usize = 64;
/// What the sites of a treaty tell within this time is shown together.
const TOGETHER: Duration = Duration::from_millis(100);
/// A site that tells nothing for so long does not answer: it should have told something twice, a second ago.
const SILENT: Duration = WATCH_ALIVE.saturating_mul(2).saturating_add(Duration::from_secs(1));
/// The pause before a site is watched again that does not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The treaties of a cluster; see [`Client::treaties`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TreatiesFound {
    /// In the order of their names.
    pub found: Vec<TreatyFound>,
    /// The regions whose sites do not answer: treaties that have their homes there are not among them.
    pub missing: Vec<String>,
    /// The regions that have more treaties than one answer has room for: not all of them are among them.
    pub incomplete: Vec<String>,
}

/// One of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TreatyFound {
    /// The treaty.
    pub treaty: Treaty,
    /// The region of its home.
    pub home: String,
    /// True if a write has retracted it, and nobody has made it again.
    pub is_retracted: bool,
}

/// A treaty: a statement about counters of several regions that the regions keep true alone. Cheap to clone.
///
/// ```no_run
/// # async fn example(client: slackline::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let margin = |region: &str| client.object(region, "votes/a").metric() - client.object(region, "votes/b").metric();
/// let leads = client.treaty("a-leads", (margin("us") + margin("eu") + margin("ap")).at_least(1));
/// let a_leads = client
///     .transact(|txn| {
///         let leads = leads.clone();
///         async move { txn.holds(&leads).await }
///     })
///     .await?
///     .done()?;
/// println!("{}", if a_leads { "A leads" } else { "A does not lead" });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Treaty {
    client: Client,
    treaty: treaties::Treaty,
}

impl Deref for Treaty {
    type Target = treaties::Treaty;

    fn deref(&self) -> &treaties::Treaty {
        &self.treaty
    }
}

impl From<&Treaty> for treaties::Treaty {
    fn from(treaty: &Treaty) -> Self {
        treaty.treaty.clone()
    }
}

/// A treaty as its home and its leaves see it.
#[derive(Clone, PartialEq, Debug)]
pub struct TreatyShown {
    /// Its name.
    pub name: String,
    /// The region of its home.
    pub home: String,
    /// Its statement.
    pub statement: Statement,
    /// True if the statement is kept true, and every home that it rests on answers.
    pub valid: bool,
    /// True if a write has retracted it, and nobody has made it again.
    pub is_retracted: bool,
    /// The regions whose sites do not answer, or have lost what they kept for it.
    pub down: Vec<String>,
    /// The sites that hold a right over it.
    pub holders: Vec<String>,
    /// The times that slack was divided again because somebody waited for it, since the sites started.
    pub rebalances: u64,
    /// The gifts of slack, but for those that were given by a standing order.
    pub gifts: u64,
    /// The gifts of slack that were given by a standing order.
    pub extensions: u64,
    /// The number of times that it was retracted.
    pub retracts: u64,
    /// For each clause its sum, and then its leaves; the clauses with the least slack first.
    pub nodes: Vec<TreatyNode>,
}

/// A transaction that waited at a home for slack of a treaty, and so for another site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreatySynchronization {
    /// When it waited no more, by the wall clock of its home.
    pub at: SystemTime,
    /// How that ended.
    pub cause: SynchronizationCause,
    /// Where it waited: the region, and which clause if there are several.
    pub node: String,
    /// The sites that were asked.
    pub sites: Vec<String>,
    /// For how long it waited.
    pub waited: Duration,
}

/// A sum of a treaty, or the part of a sum at one home.
#[derive(Clone, PartialEq, Debug)]
pub struct TreatyNode {
    /// Its name: that of a clause, or of a region in it.
    pub node: String,
    /// The name of its clause; none for the clause itself.
    pub parent: Option<String>,
    /// The site that keeps it.
    pub site: String,
    /// What it has come to, as if every undecided decrement had happened and no undecided increment.
    pub value: i64,
    /// The least that it may come to.
    pub bound: i64,
    /// How fast the bound rises by standing orders, a second.
    pub rate_per_s: f64,
    /// By how much it is above its bound.
    pub slack: i64,
    /// How fast it moves, a second.
    pub velocity_per_s: f64,
    /// The standard deviation after one second.
    pub noise: f64,
    /// How long it is expected to last; none if it is not expected to fail.
    pub fails_in: Option<Duration>,
    /// True if its site answers.
    pub up: bool,
}

impl Client {
    /// The treaty of this name over this statement. Nothing happens before it is used.
    pub fn treaty(&self, name: &str, statement: Statement) -> Treaty {
        Treaty { client: self.clone(), treaty: treaties::Treaty::new(name, statement) }
    }

    /// The treaties of the cluster, in the order of their names.
    ///
    /// # Errors
    ///
    /// No site answers.
    pub async fn treaties(&self) -> Result<TreatiesFound, ReadError> {
        let topology = self.topology();
        let mut all = TreatiesFound { found: Vec::new(), missing: Vec::new(), incomplete: Vec::new() };
        let (mut regions, mut asked) = (self.ask_all(|_| None), Vec::new());
        while let Some((home, here)) = regions.join_next().await.transpose().expect("it does not panic") {
            let region = &topology.regions[usize::from(home)];
            match here {
                Ok(here) => {
                    let found = here.homes.iter().filter_map(|there| {
                        let there_is = treaty::Treaty::of_value(&there.value).ok()?;
                        let treaty = self.known(treaty_name(&there.name)?, region, &there_is);
                        Some(TreatyFound { treaty, home: region.clone(), is_retracted: !there_is.is_valid })
                    });
                    all.found.extend(found);
                    all.incomplete.extend(here.has_more.then(|| region.clone()));
                }
                Err(ReadError::Unreachable { asked: silent }) => {
                    all.missing.push(region.clone());
                    asked.extend(silent);
                }
                Err(error) => return Err(error),
            }
        }
        if all.missing.len() == topology.homes().len() {
            return Err(ReadError::Unreachable { asked });
        }
        all.found.sort_by(|one, other| one.treaty.name().cmp(other.treaty.name()));
        all.missing.sort();
        all.incomplete.sort();
        Ok(all)
    }

    /// The treaty that has this name, wherever its home is; none if there is none. The first site that knows it is enough: one that does not
    /// answer keeps nobody waiting.
    ///
    /// # Errors
    ///
    /// Those that answer do not know it, and one does not answer: it might be its home.
    pub async fn find_treaty(&self, name: &str) -> Result<Option<Treaty>, ReadError> {
        let (mut regions, mut silent) = (self.ask_all(|home| Some(treaty_key(home, name))), None);
        while let Some((home, here)) = regions.join_next().await.transpose().expect("it does not panic") {
            match here {
                Ok(here) => {
                    let there = here.homes.first().and_then(|there| treaty::Treaty::of_value(&there.value).ok());
                    if let Some(treaty) = there {
                        let region = &self.topology().regions[usize::from(home)];
                        return Ok(Some(self.known(name, region, &treaty)));
                    }
                }
                Err(error) => silent = Some(error),
            }
        }
        silent.map_or(Ok(None), Err)
    }

    /// Asks the sites of all regions at once what they know of treaties: of one that each region may be the home of, or of all.
    fn ask_all(&self, key: impl Fn(u16) -> Option<ObjectKey>) -> JoinSet<(u16, Result<TreatiesHere, ReadError>)> {
        self.ask_homes(self.topology().homes().into_iter().map(|home| (home, key(home))))
    }

    /// Asks the sites of regions at once what they know of treaties: of one each, or of all.
    fn ask_homes(
        &self,
        homes: impl IntoIterator<Item = (u16, Option<ObjectKey>)>,
    ) -> JoinSet<(u16, Result<TreatiesHere, ReadError>)> {
        let mut asked = JoinSet::new();
        for (home, key) in homes {
            let client = self.clone();
            asked.spawn(async move { (home, client.treaties_at(home, key.as_ref()).await) });
        }
        asked
    }

    /// The handle of a treaty that is there.
    fn known(&self, name: &str, region: &str, treaty: &treaty::Treaty) -> Treaty {
        let topology = self.topology();
        let order = match &treaty.tree {
            treaty::Tree::Flat => Order::Flat,
            treaty::Tree::Near => Order::Near,
            treaty::Tree::Given(groups) => {
                let region = |home: &u16| topology.name(SiteId::new(*home, OBJECTS_LANE));
                Order::Given(groups.iter().map(|group| group.iter().map(region).collect()).collect())
            }
        };
        self.treaty(name, Statement::named(&treaty.statement, topology)).home(region).order(order)
    }

    /// The treaties of which the site of a region knows.
    async fn treaties_at(&self, home: u16, treaty: Option<&ObjectKey>) -> Result<TreatiesHere, ReadError> {
        let site = SiteId::new(home, OBJECTS_LANE);
        let ask = |channel| {
            let request = v1::ShowTreatiesRequest { treaty: treaty.cloned().map(Into::into) };
            async move { connection::stub(channel).show_treaties(request).await }
        };
        let turn = self.shared.deadline() / 2;
        let (reply, by) = self.read(OBJECTS_LANE, &Place::Site(site), turn, ask, |_| true).await?;
        reply.try_into().map_err(|error| senseless(&by, error))
    }

    /// The same, again and again as it changes.
    async fn treaties_watched_at(
        &self,
        home: u16,
        treaty: &ObjectKey,
    ) -> Result<Streaming<v1::ShowTreatiesReply>, ReadError> {
        let site = SiteId::new(home, OBJECTS_LANE);
        let ask = |channel| {
            let request = v1::ShowTreatiesRequest { treaty: Some(treaty.clone().into()) };
            async move { connection::stub(channel).watch_treaties(request).await }
        };
        let turn = self.shared.deadline() / 2;
        Ok(self.read(OBJECTS_LANE, &Place::Site(site), turn, ask, |_| true).await?.0)
    }

    /// The nearest site that can be reached.
    fn nearest_site(&self) -> SiteId {
        let port = self.port();
        let links = port.links(OBJECTS_LANE);
        links.iter().find(|link| link.is_usable()).or(links.first()).expect("a lane has sites").site
    }
}

impl Treaty {
    /// Sets its home; see [`treaties::Treaty::home`].
    pub fn home(self, region: &str) -> Self {
        Self { treaty: self.treaty.home(region), ..self }
    }

    /// Sets which regions are asked for slack first; see [`treaties::Treaty::order`].
    pub fn order(self, order: Order) -> Self {
        Self { treaty: self.treaty.order(order), ..self }
    }

    /// Makes it: every home notes what it must keep, at once. To rely on it need not be preceded by this; [`Txn::holds`](crate::Txn::holds)
    /// makes it where it should.
    ///
    /// Refused if the statement is not true ([`TreatyRefusal::NotTrue`]), cannot be kept, or another treaty has the name; and if a region does
    /// not answer, because one of that name may have its home there.
    pub async fn create(&self) -> Outcome<()> {
        self.make(Existing::Refused).await
    }

    /// Makes it in place of the treaty that has its name now, whatever that says; or as [`Treaty::create`], if there is none. Slack is divided
    /// anew. The one that was there is true until the new one is.
    ///
    /// Refused as [`Treaty::create`], but for a name that is taken; it still is if that treaty's home is another one.
    pub async fn replace(&self) -> Outcome<()> {
        self.make(Existing::Replaced).await
    }

    async fn make(&self, existing: Existing) -> Outcome<()> {
        let refuse = |reason| Outcome::Refused(Refused { reason, operation: None });
        // Such a name is of a treaty that a client makes for itself: it would be deleted when it is not used for a while.
        if self.is_unnamed() {
            return refuse(Reason::Treaty(TreatyRefusal::InvalidName));
        }
        let (port, deadline) = (self.client.port(), self.client.deadline_now());
        let placed = match self.treaty.place(self.client.topology()) {
            Ok(placed) => placed,
            Err(reason) => return refuse(reason),
        };
        match self.is_elsewhere(placed.home()).await {
            Ok(false) => {}
            Ok(true) => return refuse(Reason::Treaty(TreatyRefusal::NameTaken)),
            Err(reason) => return refuse(reason),
        }
        let site = self.client.nearest_site();
        let made = treaties::make(port.clone(), site, &placed, existing, deadline).await.map(|_| ());

        // Two that are made at once at different homes have not seen each other before. The one that is made last does now. Where both do,
        // both go: which of them a name stands for must not depend on who is asked.
        if made.is_done() && self.is_elsewhere(placed.home()).await == Ok(true) {
            return match self.end(&placed).await {
                Outcome::Done(()) => refuse(Reason::Treaty(TreatyRefusal::NameTaken)),
                not_ended => not_ended,
            };
        }
        made
    }

    /// True if a treaty of its name has another home than this one.
    async fn is_elsewhere(&self, home: u16) -> Result<bool, Reason> {
        let topology = self.client.topology();
        let others = topology.homes().into_iter().filter(|other| *other != home);
        let key = |other| (other, Some(treaty_key(other, self.name())));
        let (mut asked, mut missing) = (self.client.ask_homes(others.map(key)), Vec::new());
        while let Some((other, here)) = asked.join_next().await.transpose().expect("it does not panic") {
            match here {
                Ok(here) if here.homes.is_empty() => {}
                Ok(_) => return Ok(true),
                Err(_) => missing.push(topology.name(SiteId::new(other, OBJECTS_LANE))),
            }
        }
        missing.sort();
        if missing.is_empty() { Ok(false) } else { Err(Reason::Unreachable { missing }) }
    }

    /// True if the statement is kept true now, as far as its home can tell.
    ///
    /// # Errors
    ///
    /// Its home, or one that it rests on, does not answer; the treaty is not there.
    pub async fn valid(&self) -> Result<bool, Reason> {
        let placed = self.treaty.place(self.client.topology())?;
        let (_, found) = self.look(&placed).await;
        let found = found?.ok_or(Reason::Treaty(TreatyRefusal::Unknown))?;
        Ok(found.is_valid && found.statement == *placed.statement())
    }

    /// Ends it: once nobody relies on it any more, its object is gone, and its leaves keep nothing for it; one that cannot be reached then
    /// asks every minute, and finds out.
    pub async fn drop(&self) -> Outcome<()> {
        let placed = match self.treaty.place(self.client.topology()) {
            Ok(placed) => placed,
            Err(reason) => return Outcome::Refused(Refused { reason, operation: None }),
        };
        self.end(&placed).await
    }

    async fn end(&self, placed: &Placed) -> Outcome<()> {
        let (port, deadline) = (self.client.port(), self.client.deadline_now());
        let (site, _) = self.look(placed).await;
        treaties::end(port, site, placed.object(), deadline).await.map(|_| ())
    }

    /// The treaty as its home has it now, and the site through which that is asked: itself, since others may not serve. Where this client does
    /// not reach it, or it says nothing for half of the time, the nearest may.
    async fn look(&self, placed: &Placed) -> (SiteId, Result<Option<treaty::Treaty>, Reason>) {
        let (port, deadline) = (self.client.port(), self.client.deadline_now());
        let half = port.now() + self.client.shared.deadline() / 2;
        let find = async |site, until| {
            let found = treaties::find(&*port, site, placed.object(), until).await;
            (site, found.map(|found| found.map(|(treaty, _)| treaty)))
        };
        match find(placed.site(), half).await {
            (_, Err(Reason::NotSent { .. })) => find(self.client.nearest_site(), deadline).await,
            found => found,
        }
    }

    /// What its home and its leaves know of it. A leaf whose site does not answer is shown with what the others know.
    ///
    /// # Errors
    ///
    /// Its home does not answer, or the treaty is not there.
    pub async fn show(&self) -> Result<TreatyShown, Reason> {
        Ok(self.explain().await?.0)
    }

    /// As [`Treaty::show`]; and the transactions that waited for slack of it last, at most 64, the oldest first. Each of its sites
    /// remembers its own since it was started.
    ///
    /// # Errors
    ///
    /// As [`Treaty::show`].
    pub async fn explain(&self) -> Result<(TreatyShown, Vec<TreatySynchronization>), Reason> {
        let key = self.treaty.place(self.client.topology())?.object().clone();
        let mut known = BTreeMap::new();
        known.insert(key.home, self.client.treaties_at(key.home, Some(&key)).await.ok());
        let others = homes(&known, key.home).into_iter().filter(|home| *home != key.home);
        let mut others = self.client.ask_homes(others.map(|home| (home, Some(key.clone()))));
        while let Some((home, here)) = others.join_next().await.transpose().expect("it does not panic") {
            known.insert(home, here.ok());
        }
        self.compose(&key, &known)
    }

    /// What [`Treaty::show`] shows, again and again as it changes. Each of its sites tells of a change by itself.
    ///
    /// # Errors
    ///
    /// Its home is no region of the cluster.
    pub fn watch(&self) -> Result<TreatyWatch, Reason> {
        let key = self.treaty.place(self.client.topology())?.object().clone();
        let (tell, told) = mpsc::channel(16);
        let (treaty, known, watched) = (self.clone(), BTreeMap::new(), BTreeSet::new());
        Ok(TreatyWatch { treaty, key, known, has_changed: false, watched, tasks: JoinSet::new(), tell, told })
    }

    /// Puts together what its sites know of it; those that do not answer know nothing.
    fn compose(
        &self,
        key: &ObjectKey,
        known: &BTreeMap<u16, Option<TreatiesHere>>,
    ) -> Result<(TreatyShown, Vec<TreatySynchronization>), Reason> {
        let topology = self.client.topology();
        let name = |region: u16| topology.name(SiteId::new(region, OBJECTS_LANE));
        let here = known.get(&key.home).and_then(Option::as_ref);
        let here = here.ok_or_else(|| Reason::Unreachable { missing: vec![name(key.home)] })?;
        let there = here.homes.first().ok_or(Reason::Treaty(TreatyRefusal::Unknown))?;
        let found = treaty::Treaty::of_value(&there.value).map_err(|_| Reason::Treaty(TreatyRefusal::Unknown))?;

        let (mut leaves, mut waited) = (BTreeMap::new(), Vec::new());
        let homes = homes(known, key.home);
        for (home, known) in known.iter().filter(|(home, _)| homes.contains(home)) {
            let Some(known) = known else {
                leaves.insert(*home, None);
                continue;
            };
            waited.extend(known.synchronizations.iter().map(|synchronization| (*home, synchronization.clone())));
            let leaf = known.leaves.iter().find(|leaf| leaf.nonce == found.nonce);

            // A home that lost its storage keeps nothing, and nobody relies on the treaty any more.
            let is_missing = found.is_valid && rests_on(there).any(|rests| rests == *home);
            if leaf.is_some() || is_missing {
                leaves.insert(*home, leaf.cloned());
            }
        }

        let all_up = leaves.values().all(Option::is_some);
        let sum = |count: fn(&LeafHere) -> u64| leaves.values().flatten().map(count).sum();
        let shown = TreatyShown {
            name: self.name().to_owned(),
            home: name(key.home),
            statement: Statement::named(&found.statement, topology),
            valid: found.is_valid && all_up,
            is_retracted: !found.is_valid,
            down: leaves.iter().filter(|(_, leaf)| leaf.is_none()).map(|(home, _)| name(*home)).collect(),
            holders: there.holders.iter().map(|site| topology.name(*site)).collect(),
            rebalances: sum(|leaf| leaf.rebalances),
            gifts: sum(|leaf| leaf.gifts),
            extensions: sum(|leaf| leaf.extensions),
            retracts: found.retracts,
            nodes: nodes(&leaves, key.home, name),
        };

        waited.sort_by_key(|(_, synchronization)| synchronization.at);
        let surplus = waited.len().saturating_sub(SYNCHRONIZATIONS);
        let many = waited.iter().any(|(_, synchronization)| synchronization.clause > 0);
        let synchronization = |(home, of): (u16, Synchronization)| TreatySynchronization {
            at: SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(of.at).unwrap_or(0)),
            cause: of.cause,
            node: if many { format!("{}, clause {}", name(home), of.clause) } else { name(home) },
            sites: of.sites.into_iter().map(|site| topology.name(site)).collect(),
            waited: Duration::from_micros(of.waited),
        };
        Ok((shown, waited.into_iter().skip(surplus).map(synchronization).collect()))
    }
}

/// What a treaty's sites tell of it, as it changes; see [`Treaty::watch`].
#[derive(Debug)]
pub struct TreatyWatch {
    treaty: Treaty,
    /// Its object.
    key: ObjectKey,
    /// What each of its sites has told last; none of one that does not answer.
    known: BTreeMap<u16, Option<TreatiesHere>>,
    /// True if something was told that is not shown yet.
    has_changed: bool,
    /// The homes whose sites are watched.
    watched: BTreeSet<u16>,
    /// A task for each of them. They end with this.
    tasks: JoinSet<()>,
    /// What the tasks tell, each of its home. A sender is kept for homes that the treaty rests on later.
    tell: mpsc::Sender<(u16, Option<TreatiesHere>)>,
    told: mpsc::Receiver<(u16, Option<TreatiesHere>)>,
}

impl TreatyWatch {
    /// Waits until it has changed since the last call, and tells how it is now; the first call tells at once. At most ten times a second.
    ///
    /// Dropping the future loses no change.
    ///
    /// # Errors
    ///
    /// Its home does not answer, or the treaty is not there. It may be called again: it waits then until that has changed.
    pub async fn next(&mut self) -> Result<TreatyShown, Reason> {
        loop {
            // Those that it rests on are known only once its home has told.
            let homes = homes(&self.known, self.key.home);
            for home in &homes {
                if self.watched.insert(*home) {
                    let (client, key, tell) = (self.treaty.client.clone(), self.key.clone(), self.tell.clone());
                    self.tasks.spawn(watch_at(client, *home, key, tell));
                }
            }
            if self.has_changed && homes.iter().all(|home| self.known.contains_key(home)) {
                // What happens at one site is often told by several.
                tokio::time::sleep(TOGETHER).await;
                while let Ok((home, here)) = self.told.try_recv() {
                    self.known.insert(home, here);
                }
                self.has_changed = false;
                return Ok(self.treaty.compose(&self.key, &self.known)?.0);
            }
            let (home, here) = self.told.recv().await.expect("this holds a sender itself");
            self.known.insert(home, here);
            self.has_changed = true;
        }
    }
}

/// Tells what the site of a region knows of a treaty whenever that changes; none when the site no longer answers.
async fn watch_at(client: Client, home: u16, key: ObjectKey, tell: mpsc::Sender<(u16, Option<TreatiesHere>)>) {
    let mut before = None;
    loop {
        if let Ok(mut stream) = client.treaties_watched_at(home, &key).await {
            // One that is frozen ends no stream.
            while let Ok(Ok(Some(reply))) = tokio::time::timeout(SILENT, stream.message()).await {
                let Ok(here) = TreatiesHere::try_from(reply) else { break };
                if !tell_change(&tell, &mut before, (home, Some(here))).await {
                    return;
                }
            }
        }
        if !tell_change(&tell, &mut before, (home, None)).await {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Tells what is known of a home, unless it is what was told before; false if nobody listens.
async fn tell_change(
    tell: &mpsc::Sender<(u16, Option<TreatiesHere>)>,
    before: &mut Option<Option<TreatiesHere>>,
    (home, now): (u16, Option<TreatiesHere>),
) -> bool {
    if before.as_ref() == Some(&now) {
        return true;
    }
    *before = Some(now.clone());
    tell.send((home, now)).await.is_ok()
}

/// The homes that a treaty rests on, and its own, as far as that one has told.
fn homes(known: &BTreeMap<u16, Option<TreatiesHere>>, home: u16) -> BTreeSet<u16> {
    let there = known.get(&home).and_then(|here| here.as_ref()?.homes.first());
    there.into_iter().flat_map(rests_on).chain([home]).collect()
}

/// The homes that a treaty rests on: those of its counters.
fn rests_on(there: &TreatyHere) -> impl Iterator<Item = u16> {
    let rests = if let Value::Derived(derived) = &there.value { &derived.homes[..] } else { &[] };
    rests.iter().map(|(home, _)| *home)
}

/// The sums and their parts, those with the least slack first.
fn nodes(leaves: &BTreeMap<u16, Option<LeafHere>>, home: u16, name: impl Fn(u16) -> String) -> Vec<TreatyNode> {
    let mut clauses: BTreeMap<u32, Vec<TreatyNode>> = BTreeMap::new();
    let many = leaves.values().flatten().any(|leaf| leaf.clauses.len() > 1);
    let label = |clause: u32| if many { format!("clause {clause}") } else { "all".to_owned() };
    for (region, leaf) in leaves {
        for clause in leaf.iter().flat_map(|leaf| &leaf.clauses) {
            let motion = Motion { velocity: clause.velocity, noise: clause.noise };
            let slack = clause.value.saturating_sub(clause.bound);
            clauses.entry(clause.clause).or_default().push(TreatyNode {
                node: name(*region),
                parent: Some(label(clause.clause)),
                site: name(*region),
                value: clause.value,
                bound: clause.bound,
                rate_per_s: clause.rate as f64 / 1e6,
                slack,
                velocity_per_s: clause.velocity as f64 / 1e6,
                noise: clause.noise as f64 / 1e6,
                fails_in: lasts(&Outlook { slack, motion }, clause.rate).map(Duration::from_micros),
                up: true,
            });
        }
    }

    let silent: Vec<u16> = leaves.iter().filter(|(_, leaf)| leaf.is_none()).map(|(region, _)| *region).collect();
    let mut all: Vec<Vec<TreatyNode>> = Vec::new();
    for (clause, parts) in clauses {
        let sum = |of: fn(&TreatyNode) -> i64| parts.iter().map(of).fold(0i64, i64::saturating_add);
        let velocity: f64 = parts.iter().map(|part| part.velocity_per_s).sum();
        let noise = parts.iter().map(|part| part.noise * part.noise).sum::<f64>().sqrt();
        let slack = sum(|part| part.slack);
        let motion = Motion { velocity: (velocity * 1e6) as i64, noise: (noise * 1e6) as i64 };
        let whole = TreatyNode {
            node: label(clause),
            parent: None,
            site: name(home),
            value: sum(|part| part.value),
            bound: sum(|part| part.bound),
            rate_per_s: 0.0,
            slack,
            velocity_per_s: velocity,
            noise,
            fails_in: lasts(&Outlook { slack, motion }, 0).map(Duration::from_micros),
            up: silent.is_empty(),
        };
        let missing = silent.iter().map(|region| TreatyNode {
            node: name(*region),
            parent: Some(label(clause)),
            site: name(*region),
            value: 0,
            bound: 0,
            rate_per_s: 0.0,
            slack: 0,
            velocity_per_s: 0.0,
            noise: 0.0,
            fails_in: None,
            up: false,
        });
        all.push([whole].into_iter().chain(parts).chain(missing).collect());
    }
    all.sort_by_key(|nodes| nodes[0].slack);
    all.into_iter().flatten().collect()
}

impl Client {
    /// The time at which a call that begins now is given up.
    fn deadline_now(&self) -> slackline_session::time::Time {
        Arc::clone(&self.port()).now() + self.shared.deadline()
    }
}
