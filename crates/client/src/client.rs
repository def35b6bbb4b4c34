//! The client: which sites there are, which is nearest, and where a call goes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use slackline_core::api::{self, PeerStatus, Readiness};
use slackline_core::id::{GrantId, Incarnation, OperationId, SiteId};
use slackline_wire::{lane_of, v1};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep_until, timeout};
use tonic::transport::Channel;

use crate::book::{Act, CallKey, Finished, NotTaken, Reply, Terms};
use crate::call::{Call, Patience, Place, ReleaseGrant};
use crate::explain::Explanation;
use crate::left::Left;
use crate::link::{self, Link};
use crate::outcome::{ConnectError, Outcome, ReadError, Reason, Refused, Unknown, WhyUnknown};
use crate::quota::Quota;
use crate::topology::Topology;
use crate::txn::memo::Memos;

/// A call's deadline, unless it or the client says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// How long a hold, and the release of one, stay with a site that says nothing, unless the call or the client says otherwise.
pub const DEFAULT_PATIENCE: Duration = crate::book::PATIENCE;
/// Sites whose round trips differ from the nearest one's by no more than this count as equally near.
const NEARLY: Duration = Duration::from_millis(1);
/// The least time that is given to the other sites to answer once the first has.
const STRAGGLERS: Duration = Duration::from_millis(50);
/// The least error of a site's clock that is reckoned with, whatever the sites say.
const EPSILON: Duration = Duration::from_millis(10);
/// The pause before a call that no site would take is offered to them again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long one site is given at first to say what became of an operation; twice as long each time.
const FIRST_ASK: Duration = Duration::from_millis(500);
/// A client leaves no session where a site has more than so many: a tenth of what it keeps.
const CROWDED: u64 = slackline_core::session::SESSIONS as u64 / 10;
/// How many quotas are asked for at once; the most that a site tells.
const PAGE: u32 = 1000;

/// A connection to a cluster. Cheap to clone; clones share the connections.
///
/// A client belongs to the tokio runtime in which it was connected.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slackline::Client;
///
/// let client = Client::connect(["127.0.0.1:7400", "127.0.0.1:7401"]).await?;
/// let gpus = client.quota("gpus");
/// gpus.create(5000).await.done()?;
/// let grant = gpus.acquire(3).await.done()?;
/// grant.release().await.done()?;
/// client.close().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

/// How a client connects and what its calls do by default.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call may take, unless it says otherwise. 10 s.
    pub deadline: Duration,
    /// How long connecting may take. 5 s.
    pub connect: Duration,
    /// The region to use as long as it can be reached; otherwise the nearest, measured when the client connects.
    pub region: Option<String>,
    /// How long acquires and releases stay with a site that says nothing, unless they say otherwise.
    pub patience: Patience,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: DEFAULT_DEADLINE,
            connect: Duration::from_secs(5),
            region: None,
            patience: Patience::default(),
        }
    }
}

pub(crate) struct Shared {
    pub(crate) topology: Topology,
    /// For each lane its sites, nearest first.
    pub(crate) lanes: Vec<Vec<Arc<Link>>>,
    pub(crate) deadline: Duration,
    pub(crate) patience: Patience,
    /// The bound on the error of the sites' clocks.
    pub(crate) epsilon: Duration,
    /// Whether some site had too many sessions for any to be left there; see [`Client::leave`].
    is_crowded: bool,
    /// The memoized functions that it knows.
    pub(crate) memos: Memos,
}

impl Client {
    /// Connects to the cluster that has sites at these addresses (`host:port`). One would do, several make it likelier
    /// that one answers; the others are learned from it. Calls go to the nearest site by measured round trip.
    ///
    /// # Errors
    ///
    /// No site answers within 5 s, or an address cannot be read.
    pub async fn connect<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>) -> Result<Self, ConnectError> {
        Self::connect_with(addresses, Options::default()).await
    }

    /// As [`Client::connect`], with options.
    pub async fn connect_with<A: AsRef<str>>(
        addresses: impl IntoIterator<Item = A>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        let addresses: Vec<String> = addresses.into_iter().map(|address| address.as_ref().trim().to_owned()).collect();
        let topology = learn_topology(&addresses, options.connect).await?;
        let preferred = match &options.region {
            None => None,
            Some(region) => Some(topology.region(region).ok_or_else(|| ConnectError::UnknownRegion {
                region: region.clone(),
                known: topology.regions.clone(),
            })?),
        };
        let mut channels = Vec::with_capacity(topology.sites.len());
        for site in &topology.sites {
            let channel = link::channel(&site.address);
            channels.push((site, channel.ok_or_else(|| ConnectError::InvalidAddress(site.address.clone()))?));
        }
        let probes = channels.iter().filter(|(site, _)| site.id.lane == channels[0].0.id.lane);
        let probes = probes.map(|(site, channel)| (site.id.region, channel.clone())).collect();
        let measured = measure(probes, options.connect).await;
        let epsilon = measured.iter().map(|probe| probe.epsilon).max().unwrap_or_default().max(EPSILON);
        let is_crowded = measured.iter().any(|probe| probe.sessions > CROWDED);
        let mut regions = by_nearness(&measured, &topology, &addresses);
        if let Some(preferred) = preferred {
            regions.retain(|region| *region != preferred);
            regions.insert(0, preferred);
        }
        let lanes = (0..topology.lanes).map(|lane| links_of(lane, &channels, &regions)).collect();
        let Options { deadline, patience, .. } = options;
        let memos = Memos::default();
        Ok(Self { shared: Arc::new(Shared { topology, lanes, deadline, patience, epsilon, is_crowded, memos }) })
    }

    /// What transactions of this client stand on; for benchmarks.
    #[doc(hidden)]
    pub fn port(&self) -> Arc<dyn crate::port::Port> {
        self.shared.clone()
    }

    /// The cluster's map.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// The region that calls go to while it can be reached.
    pub fn nearest(&self) -> &str {
        let nearest = self.shared.lanes.iter().flatten().next();
        nearest.map_or("", |link| &self.shared.topology.regions[usize::from(link.site.region)])
    }

    /// The quota of this name. Nothing is sent yet.
    pub fn quota(&self, name: impl AsRef<str>) -> Quota {
        let name = name.as_ref();
        Quota::new(self.clone(), Arc::from(name), lane_of(name, self.shared.topology.lanes))
    }

    /// Gives a tracked grant back by its id, at the site that granted it. A second time is refused. Returns how many
    /// tokens are back.
    pub fn release_grant(&self, grant: GrantId) -> Call<ReleaseGrant> {
        Call::new(self.clone(), grant.site.lane, Act::ReleaseGrant { grant }, Place::Site(grant.site))
    }

    /// The quotas of the cluster, in the order of their names, as the nearest site of each lane knows them.
    ///
    /// # Errors
    ///
    /// No site of a lane answers before the client's deadline.
    pub async fn list(&self) -> Result<Vec<Listed>, ReadError> {
        let mut listed = Vec::new();
        for lane in 0..self.shared.topology.lanes {
            let mut after = String::new();
            loop {
                let request = v1::ListQuotasRequest { after: after.clone(), limit: PAGE };
                let ask = |channel| {
                    let request = request.clone();
                    async move { link::stub(channel).list_quotas(request).await }
                };
                let (reply, site) = self.read(lane, &Place::Nearest, self.shared.deadline, ask, |_| true).await?;
                let page = Vec::<api::Listed>::try_from(reply).map_err(|error| senseless(&site, error))?;
                let is_last = page.len() < PAGE as usize;
                after = page.last().map(|last| last.name.clone()).unwrap_or_default();
                listed.extend(page.into_iter().map(|api::Listed { name, limit, tokens }| Listed {
                    name,
                    limit,
                    tokens,
                    site: site.clone(),
                }));
                if is_last {
                    break;
                }
            }
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listed)
    }

    /// The state of every site. Sites that do not answer within `wait` are reported as down.
    pub async fn status(&self, wait: Duration) -> Vec<SiteStatus> {
        let mut asked = JoinSet::new();
        for (position, site) in self.shared.topology.sites.iter().enumerate() {
            let Some(link) = self.link(site.id) else { continue };
            let channel = link.channel.clone();
            asked.spawn(async move {
                let reply = timeout(wait, async { link::stub(channel).status(v1::StatusRequest {}).await }).await;
                let state = reply.ok().and_then(Result::ok).map(tonic::Response::into_inner);
                (position, state.and_then(|state| api::Status::try_from(state).ok()))
            });
        }
        let mut states = vec![None; self.shared.topology.sites.len()];
        while let Some(answer) = asked.join_next().await {
            if let Ok((position, state)) = answer {
                states[position] = state;
            }
        }
        let sites = self.shared.topology.sites.iter().zip(states);
        sites
            .map(|(site, state)| SiteStatus { site: site.name.clone(), address: site.address.clone(), state })
            .collect()
    }

    /// What became of an operation? Asks the one site that knows, through another if need be.
    ///
    /// **Asking settles it**: if the site has not seen the operation, it refuses it for ever
    /// ([`Reason::Withdrawn`]), so a copy that is still under way has no effect.
    pub async fn outcome_of(&self, operation: OperationId) -> Outcome<Effect> {
        let until = after(Instant::now(), self.shared.deadline);
        let mut patience = FIRST_ASK;
        loop {
            let why = match self.ask(operation, until, patience).await {
                Ok(outcome) => return self.shared.effect(outcome, operation),
                Err(why) => why,
            };
            if Instant::now() + PAUSE >= until {
                return Outcome::Unknown(self.shared.unknown(operation, why));
            }
            tokio::time::sleep(PAUSE).await;
            patience = (patience * 2).min(self.shared.deadline);
        }
    }

    /// The course of a transaction: which rights it used, which sites took part, what each answered, and when. None if
    /// nothing is known of it any more: the site that coordinated it remembers its last 4,096 transactions, in memory.
    ///
    /// # Errors
    ///
    /// That site does not answer before the client's deadline, neither directly nor through another.
    pub async fn explain(&self, operation: OperationId) -> Result<Option<Explanation>, ReadError> {
        let site = operation.site;
        let unreachable =
            |why: &str| ReadError::Unreachable { asked: vec![(self.shared.topology.name(site), why.to_owned())] };
        if self.link(site).is_none() {
            return Err(unreachable("the cluster has no such site"));
        }
        let ask = |channel| async move {
            let ask = v1::Ask { operation: Some(operation.into()) };
            link::stub(channel).explain(ask).await
        };
        // Half of the time for the site itself; another may reach it where this client does not.
        let turn = self.shared.deadline / 2;
        let reply = match self.read(site.lane, &Place::Site(site), turn, ask, |_| true).await {
            Ok(reply) => reply,
            // Where nobody can tell, it is the site itself that does not answer; the others only say that they do not reach it.
            Err(why) => self.read(site.lane, &Place::Nearest, turn, ask, |_| true).await.map_err(|_| why)?,
        };
        let (reply, by) = reply;
        let (_, trace): (OperationId, Result<_, api::Doubt>) =
            reply.try_into().map_err(|error| senseless(&by, error))?;
        match trace {
            Ok(trace) => Ok(Some(Explanation::new(operation, *trace, &self.shared.topology))),
            Err(api::Doubt::SiteUnreachable | api::Doubt::Undecided) => {
                Err(unreachable(&format!("{by} does not reach it")))
            }
            Err(_) => Ok(None),
        }
    }

    /// Asks the operation's site once, and then others that may reach it, each for no longer than `patience`: a site that
    /// died with the question answers nobody, and may be back long before the deadline.
    async fn ask(
        &self,
        operation: OperationId,
        until: Instant,
        patience: Duration,
    ) -> Result<api::Outcome, WhyUnknown> {
        let mut why = WhyUnknown::SiteUnreachable;
        let links = self.shared.lanes.get(usize::from(operation.site.lane)).map(Vec::as_slice).unwrap_or_default();
        let own = links.iter().filter(|link| link.site == operation.site);
        let others = links.iter().filter(|link| link.site != operation.site && link.is_usable());
        let mut turns = u32::try_from(links.len()).unwrap_or(u32::MAX);
        for link in own.chain(others) {
            let ask = v1::Ask { operation: Some(operation.into()) };
            let channel = link.channel.clone();
            let turn = (until.saturating_duration_since(Instant::now()) / turns.max(1)).min(patience);
            turns = turns.saturating_sub(1);
            let Ok(Ok(reply)) = timeout(turn, async { link::stub(channel).outcome_of(ask).await }).await else {
                continue;
            };
            match <(OperationId, api::Outcome)>::try_from(reply.into_inner()) {
                // Later it may tell.
                Ok((_, api::Outcome::Unknown(doubt)))
                    if !matches!(doubt, api::Doubt::IncarnationLost | api::Doubt::Forgotten | api::Doubt::HomeLost) =>
                {
                    why = doubt.into();
                }
                Ok((_, outcome)) => return Ok(outcome),
                Err(_) => why = WhyUnknown::Senseless,
            }
        }
        Err(why)
    }

    /// Ends the client and all its clones: what is under way is given half a second, then sessions are closed. Calls
    /// that are still waiting end as refused or unknown. Dropping the last clone does the same in the background.
    ///
    /// Returns what is [left](Client::left). Nobody sees to that any more.
    pub async fn close(self) -> Vec<Left> {
        let links = || self.shared.lanes.iter().flatten();
        links().for_each(|link| link.shut());
        for link in links() {
            link.ended().await;
        }
        self.left_as(WhyUnknown::Closed)
    }

    /// What the client sees to for callers that do not wait for it: acquires that were left behind or dropped, releases that were
    /// handed over (see [`Patience`]). With what it could not settle, because nobody knows any more what became of it, or because
    /// the site refused a release; of that the last 1,024 for each site. Empty if nothing is left.
    pub fn left(&self) -> Vec<Left> {
        self.left_as(WhyUnknown::HandedOver)
    }

    /// The same; what is still open is unknown for this reason.
    fn left_as(&self, why: WhyUnknown) -> Vec<Left> {
        let links = self.shared.lanes.iter().flatten();
        let left = links.flat_map(|link| {
            let left = link.left().into_iter();
            left.map(move |left| Left::new(left, why, link.site, &self.shared.topology))
        });
        left.collect()
    }

    /// Ends the client as [`Client::close`] does, but leaves its sessions: their sites end them when they have been silent for ten
    /// minutes, and until then tell what became of the operations. A site keeps 100,000 sessions at most; so this closes them all
    /// the same if some site had over 10,000 when the client connected.
    pub async fn leave(self) -> Vec<Left> {
        if !self.shared.is_crowded {
            self.shared.lanes.iter().flatten().for_each(|link| link.leave());
        }
        self.close().await
    }

    /// The place that a region's name stands for.
    pub(crate) fn place(&self, region: &str) -> Place {
        self.shared.topology.place(region)
    }

    /// Why nothing can be done at a place that the cluster does not have.
    pub(crate) fn no_such_place(&self, place: &Place) -> Option<Reason> {
        let topology = &self.shared.topology;
        let region = match place {
            Place::Nowhere(region) => region.clone(),
            Place::Site(site) if self.link(*site).is_none() => topology.name(*site),
            _ => return None,
        };
        Some(Reason::UnknownRegion { region, known: topology.regions.clone() })
    }

    fn link(&self, site: SiteId) -> Option<&Arc<Link>> {
        self.shared.lanes.get(usize::from(site.lane))?.iter().find(|link| link.site == site)
    }

    /// Asks the sites of a lane, nearest first, until one gives an answer that will do (`does`). Returns that answer and the site's
    /// name; where none will do, the last that came.
    pub(crate) async fn read<T, F: Future<Output = Result<tonic::Response<T>, tonic::Status>>>(
        &self,
        lane: u16,
        place: &Place,
        deadline: Duration,
        ask: impl Fn(Channel) -> F,
        does: impl Fn(&T) -> bool,
    ) -> Result<(T, String), ReadError> {
        let until = after(Instant::now(), deadline);
        let links = self.shared.lanes[usize::from(lane)].iter();
        let mut links: Vec<_> = links.filter(|link| place.admits(link.site)).collect();
        links.sort_by_key(|link| !link.is_usable());
        let (mut asked, mut answer) = (Vec::new(), None);
        for (index, link) in links.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            // Half of the time for this one, as long as there are others.
            let turn = if index + 1 < links.len() { left / 2 } else { left };
            let why = match timeout(turn, ask(link.channel.clone())).await {
                Ok(Ok(reply)) => {
                    let reply = reply.into_inner();
                    if does(&reply) {
                        return Ok((reply, link.name.clone()));
                    }
                    answer = Some((reply, link.name.clone()));
                    continue;
                }
                Ok(Err(status)) => explain(&status),
                Err(_) => format!("nothing came within {turn:.1?}"),
            };
            asked.push((link.name.clone(), why));
        }
        answer.ok_or(ReadError::Unreachable { asked })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("cluster", &self.shared.topology.cluster).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.lanes.iter().flatten().for_each(|link| link.shut());
    }
}

impl Shared {
    pub(crate) fn unknown(&self, operation: OperationId, why: WhyUnknown) -> Unknown {
        self.topology.unknown(operation, why)
    }

    fn effect(&self, outcome: api::Outcome, operation: OperationId) -> Outcome<Effect> {
        match outcome {
            api::Outcome::Granted { grant, lasts } => {
                Outcome::Done(Effect::Granted { grant, lasts: lasts.map(Duration::from_micros) })
            }
            api::Outcome::Released { amount } => Outcome::Done(Effect::Released { amount }),
            api::Outcome::Created { limit } => Outcome::Done(Effect::Created { limit }),
            api::Outcome::Deleted => Outcome::Done(Effect::Deleted),
            api::Outcome::Committed { phases } => Outcome::Done(Effect::Committed { phases }),
            api::Outcome::LossAccepted => Outcome::Done(Effect::LossAccepted),
            api::Outcome::Aborted(abort) => Outcome::Refused(Refused {
                reason: Reason::of_abort(*abort, &self.topology),
                operation: Some(operation),
            }),
            api::Outcome::Refused(refusal) => Outcome::Refused(Refused {
                reason: Reason::of(refusal, operation.site.lane, &self.topology),
                operation: Some(operation),
            }),
            api::Outcome::Unknown(doubt) => Outcome::Unknown(self.unknown(operation, doubt.into())),
        }
    }
}

/// What an operation did, as [`Client::outcome_of`] tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// It took tokens.
    Granted {
        /// The grant; release it with [`Client::release_grant`] if it is tracked.
        grant: GrantId,
        /// For a hold with an end: how long it lasts, from when the request was sent.
        lasts: Option<Duration>,
    },
    /// It gave this many tokens back.
    Released {
        /// How many.
        amount: i64,
    },
    /// The quota exists, with this limit.
    Created {
        /// How many tokens there are.
        limit: i64,
    },
    /// The quota is gone.
    Deleted,
    /// The transaction took effect.
    Committed {
        /// In how many phases: 0 if its site judged it alone and it wrote nothing, 1 if one site did, 2 if several.
        phases: u8,
    },
    /// A site has noted that the objects of its lost storage are gone for good.
    LossAccepted,
}

/// A quota, as one site knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// How many tokens there are.
    pub limit: i64,
    /// How many of them are at the site.
    pub tokens: i64,
    /// The site that told.
    pub site: String,
}

/// The state of a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteStatus {
    /// Its name.
    pub site: String,
    /// Where clients reach it.
    pub address: String,
    /// What it says of itself; none if it did not answer.
    pub state: Option<api::Status>,
}

impl SiteStatus {
    /// Whether it answered.
    pub fn is_up(&self) -> bool {
        self.state.is_some()
    }

    /// Whether it serves.
    pub fn is_ready(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.readiness == Readiness::Ready)
    }

    /// Its incarnation, if it answered.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.state.as_ref().map(|state| state.incarnation)
    }

    /// What it knows of the others.
    pub fn peers(&self) -> &[PeerStatus] {
        self.state.as_ref().map(|state| &state.peers[..]).unwrap_or_default()
    }
}

/// One call on its way: offered to sites until one takes it, then waited for.
pub(crate) struct Journey {
    client: Client,
    lane: u16,
    place: Place,
    terms: Terms,
    /// Which of the lane's sites would not take it in this round of offers.
    tried: u64,
    last: NotTaken,
    /// Where it was left behind last, and under which id.
    left_behind: Option<(usize, OperationId)>,
    stage: Stage,
}

enum Stage {
    /// To be offered to a site.
    Offer(Act),
    /// A site's link has it: its position in the lane, and the key.
    Taken(usize, CallKey),
    /// No site would take it just now.
    Pause(Act, Pin<Box<Sleep>>),
    /// It has ended.
    Over,
}

/// How a journey ended.
pub(crate) enum Verdict {
    /// A site took it; this is what its link says.
    Finished(Finished),
    /// No site took it.
    Stranded(NotTaken),
}

impl Journey {
    pub(crate) fn new(client: Client, lane: u16, act: Act, place: Place, terms: Terms) -> Self {
        let stage = Stage::Offer(act);
        Self { client, lane, place, terms, tried: 0, last: NotTaken::Unreachable, left_behind: None, stage }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.terms.deadline
    }

    pub(crate) fn lane(&self) -> u16 {
        self.lane
    }

    /// The names of the sites that would do.
    pub(crate) fn candidates(&self) -> Vec<String> {
        self.links().iter().filter(|link| self.place.admits(link.site)).map(|link| link.name.clone()).collect()
    }

    fn links(&self) -> &[Arc<Link>] {
        self.client.shared.lanes.get(usize::from(self.lane)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The nearest site that would do and has not been tried; one that says nothing comes after those that do.
    fn choose(&self) -> Option<usize> {
        let pinned = self.terms.pinned;
        let links = self.links().iter().enumerate().filter(|(position, link)| {
            self.tried >> position & 1 == 0 && self.place.admits(link.site) && (pinned || link.is_usable())
        });
        let nearest = links.min_by_key(|(position, link)| (!pinned && link.is_silent(), *position));
        nearest.map(|(position, _)| position)
    }

    /// Whether another site than the one at `position` would take it, as far as its link knows.
    fn has_elsewhere(&self, position: usize) -> bool {
        let mut others = self.links().iter().enumerate().filter(|(other, _)| *other != position);
        others.any(|(_, link)| self.place.admits(link.site) && link.is_usable() && !link.is_silent())
    }

    /// How it ends. If no site took it at last, and it was left behind somewhere, its caller is told that id: refused would say that
    /// it never left.
    fn end(&mut self, verdict: Verdict) -> Verdict {
        let not_taken = match &verdict {
            Verdict::Stranded(_) => true,
            Verdict::Finished(finished) => matches!(finished.reply, Reply::NotTaken(_)),
        };
        let left_behind = if not_taken { self.left_behind.take() } else { None };
        let reclaimed = left_behind.and_then(|(position, id)| self.links()[position].reclaim(id));
        reclaimed.map_or(verdict, Verdict::Finished)
    }

    /// What to do with a call that came back: `None` to go on, or how it ended.
    fn returned(&mut self, position: usize, finished: Finished) -> Option<Verdict> {
        match finished.reply {
            Reply::LeftBehind => {
                self.left_behind = finished.id.map(|id| (position, id));
                self.tried = 1 << position;
            }
            // It is settled that the first copy has no effect, so a new one may go anywhere, even there.
            Reply::NotTaken(NotTaken::Refused(api::Refusal::Withdrawn)) => {}
            Reply::NotTaken(NotTaken::Refused(api::Refusal::StorageFull)) if self.terms.pinned => {
                return Some(Verdict::Finished(finished));
            }
            Reply::NotTaken(why @ (NotTaken::Unreachable | NotTaken::Refused(_))) => {
                self.tried |= 1 << position;
                // A site that says why it does not take the call tells more than one that cannot be reached.
                if why != NotTaken::Unreachable || !matches!(self.last, NotTaken::Refused(_)) {
                    self.last = why;
                }
            }
            Reply::NotTaken(_) | Reply::Answered(_) | Reply::InDoubt | Reply::HandedOver(_) => {
                return Some(Verdict::Finished(finished));
            }
        }
        self.stage = Stage::Offer(finished.act);
        None
    }

    /// No site would take it in this round of offers: pause, unless it is over.
    fn pause(&mut self, act: Act) -> Option<Verdict> {
        let now = Instant::now();
        let full = self.last == NotTaken::Refused(api::Refusal::StorageFull);
        if now >= self.terms.deadline || full || self.links().is_empty() {
            return Some(Verdict::Stranded(self.last));
        }
        self.tried = 0;
        let until = (now + PAUSE).min(self.terms.deadline);
        self.stage = Stage::Pause(act, Box::pin(sleep_until(until.into())));
        None
    }
}

impl Future for Journey {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Verdict> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Offer(act) => {
                    let Some(position) = self.choose() else {
                        match self.pause(act) {
                            Some(verdict) => return Poll::Ready(self.end(verdict)),
                            None => continue,
                        }
                    };
                    match self.links()[position].submit(act, self.terms) {
                        Ok(key) => self.stage = Stage::Taken(position, key),
                        Err((why, _)) => return Poll::Ready(self.end(Verdict::Stranded(why))),
                    }
                }
                Stage::Taken(position, key) => {
                    let may_leave = || self.has_elsewhere(position);
                    let Poll::Ready(finished) = self.links()[position].poll(key, context, may_leave) else {
                        self.stage = Stage::Taken(position, key);
                        return Poll::Pending;
                    };
                    if let Some(verdict) = self.returned(position, finished) {
                        return Poll::Ready(self.end(verdict));
                    }
                }
                Stage::Pause(act, mut sleep) => {
                    if sleep.as_mut().poll(context).is_pending() {
                        self.stage = Stage::Pause(act, sleep);
                        return Poll::Pending;
                    }
                    self.stage = Stage::Offer(act);
                }
                Stage::Over => panic!("polled after it had ended"),
            }
        }
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        if let Stage::Taken(position, key) = self.stage {
            self.links()[position].abandon(key);
        }
    }
}

pub(crate) fn senseless(site: &str, error: slackline_wire::Invalid) -> ReadError {
    ReadError::Unreachable { asked: vec![(site.to_owned(), error.to_string())] }
}

/// A gRPC status in a few words.
fn explain(status: &tonic::Status) -> String {
    let mut deepest: &dyn std::error::Error = status;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    if std::ptr::eq(deepest, std::ptr::from_ref(status) as *const dyn std::error::Error) {
        status.message().to_owned()
    } else {
        deepest.to_string()
    }
}

/// The first map that any of the addresses gives.
async fn learn_topology(addresses: &[String], patience: Duration) -> Result<Topology, ConnectError> {
    if addresses.iter().all(String::is_empty) {
        return Err(ConnectError::NoAddress);
    }
    let mut asked = JoinSet::new();
    for address in addresses {
        let invalid = || ConnectError::InvalidAddress(address.clone());
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err(invalid());
        }
        let channel = link::channel(address).ok_or_else(invalid)?;
        asked.spawn(async move {
            let reply = link::stub(channel).topology(v1::TopologyRequest {}).await;
            let reply = reply.map_err(|status| explain(&status))?.into_inner();
            Topology::read(reply).ok_or_else(|| "its map of the cluster makes no sense".to_owned())
        });
    }
    let mut why = format!("no answer within {patience:?}");
    let first = timeout(patience, async {
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(topology)) => return Some(topology),
                Ok(Err(error)) => why = error,
                Err(_) => {}
            }
        }
        None
    });
    match first.await {
        Ok(Some(topology)) => Ok(topology),
        _ => Err(ConnectError::Unreachable { addresses: addresses.join(", "), why }),
    }
}

/// What was learned of a region by asking one of its sites.
struct Probe {
    region: u16,
    round_trip: Duration,
    epsilon: Duration,
    /// How many sessions are open there.
    sessions: u64,
}

/// The round trip to each region that answers; those that take much longer than the first to answer are left out.
async fn measure(probes: Vec<(u16, Channel)>, patience: Duration) -> Vec<Probe> {
    let mut asked = JoinSet::new();
    for (region, channel) in probes {
        asked.spawn(async move {
            let mut stub = link::stub(channel);
            // The first call connects, the others are measured.
            let state = stub.status(v1::StatusRequest {}).await.ok()?;
            let epsilon = Duration::from_micros(state.get_ref().epsilon_us);
            let sessions = state.get_ref().sessions;
            let mut round_trip = Duration::MAX;
            for _ in 0..2 {
                let since = Instant::now();
                stub.topology(v1::TopologyRequest {}).await.ok()?;
                round_trip = round_trip.min(since.elapsed());
            }
            Some(Probe { region, round_trip, epsilon, sessions })
        });
    }
    let since = Instant::now();
    let mut until = since + patience;
    let mut measured = Vec::new();
    while let Ok(Some(answer)) = tokio::time::timeout_at(until.into(), asked.join_next()).await {
        let Ok(Some(answer)) = answer else { continue };
        if measured.is_empty() {
            until = until.min(Instant::now() + since.elapsed().max(STRAGGLERS));
        }
        measured.push(answer);
    }
    measured
}

/// Regions from near to far. Those about as near as the nearest come in the order in which their addresses were given.
fn by_nearness(measured: &[Probe], topology: &Topology, addresses: &[String]) -> Vec<u16> {
    let nearest = measured.iter().map(|probe| probe.round_trip).min().unwrap_or_default();
    let given = |region: u16| {
        let mut sites = topology.sites.iter().filter(|site| site.id.region == region);
        let position = sites.find_map(|site| addresses.iter().position(|address| *address == site.address));
        position.unwrap_or(usize::MAX)
    };
    let distance = |region: u16| {
        let probe = measured.iter().find(|probe| probe.region == region);
        let round_trip = probe.map_or(Duration::MAX, |probe| probe.round_trip);
        if round_trip <= nearest + NEARLY { Duration::ZERO } else { round_trip }
    };
    let mut regions: Vec<u16> = (0..topology.regions.len()).filter_map(|region| u16::try_from(region).ok()).collect();
    regions.sort_by_key(|region| (distance(*region), given(*region), *region));
    regions
}

fn links_of(lane: u16, channels: &[(&crate::topology::Site, Channel)], regions: &[u16]) -> Vec<Arc<Link>> {
    let members = || channels.iter().filter(|(site, _)| site.id.lane == lane);
    let mut links: Vec<_> = members()
        .map(|(site, channel)| {
            let others = members().filter(|(other, _)| other.id != site.id);
            let relays = others.map(|(_, channel)| channel.clone()).collect();
            Arc::new(Link::new(site.id, site.name.clone(), channel.clone(), relays))
        })
        .collect();
    links.sort_by_key(|link| regions.iter().position(|region| *region == link.site.region));
    links
}

/// The instant at which so much time will have passed; some centuries are as good as for ever.
pub(crate) fn after(now: Instant, span: Duration) -> Instant {
    now.checked_add(span).unwrap_or(now + Duration::from_secs(1 << 33))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Site;

    #[test]
    fn nearly_equal_regions_keep_the_order_of_their_addresses() {
        let regions = ["us", "eu", "ap", "sa"].map(String::from).to_vec();
        let sites = (0..4u16)
            .map(|region| Site {
                id: SiteId::new(region, 0),
                name: regions[usize::from(region)].clone(),
                address: format!("host:{region}"),
            })
            .collect();
        let topology = Topology { cluster: String::new(), regions, lanes: 1, sites };
        let addresses = ["host:2".to_owned(), "host:1".to_owned()];
        let probe = |(region, micros)| Probe {
            region,
            round_trip: Duration::from_micros(micros),
            epsilon: Duration::ZERO,
            sessions: 0,
        };
        let measured: Vec<Probe> = [(0, 90_000), (1, 300), (2, 900)].map(probe).into_iter().collect();
        // 2 and 1 are equally near, 3 did not answer.
        assert_eq!(by_nearness(&measured, &topology, &addresses), [2, 1, 0, 3]);
    }
}
