//! Sites that keep sessions, one count of tokens and objects each, and break when told to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use slackline_core::api::{
    Answer, Batch, Hold, Listed, Operation, Outcome, Read, Reading, Refusal, Request, Response, UnknownReason,
};
use slackline_core::id::{GrantId, Incarnation, OperationId, SessionId, SiteId};
use slackline_core::object::{Abort, Cause, Change, ObjectKey, Seen, Span, Transaction, Value, Version};
use slackline_wire::v1::{self, slackline_server};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request as Call, Response as Reply, Status, Streaming};

/// What each site has at the start.
pub(crate) const TOKENS: i64 = 100;

/// What goes wrong with the next batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    /// The stream breaks before the batch is carried out.
    BreakBeforeExecuting,
    /// The stream breaks before the answer leaves.
    BreakAfterExecuting,
    /// Nothing is carried out and nothing is said any more.
    MuteBeforeExecuting,
    /// The batch is carried out, and nothing is said any more.
    MuteAfterExecuting,
    /// The stream breaks at the next read.
    BreakBeforeReading,
    /// Nothing is said from the next read on.
    MuteBeforeReading,
}

/// An address of this machine that nobody listens at.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

pub(crate) struct Cluster {
    sites: Vec<Site>,
}

impl Cluster {
    pub(crate) fn start(regions: &[&str], lanes: u16) -> Self {
        let mut topology = v1::TopologyReply {
            cluster: "test".into(),
            regions: regions.iter().map(|region| (*region).to_owned()).collect(),
            lanes: lanes.into(),
            ..Default::default()
        };
        let mut listeners = Vec::new();
        for (position, region) in (0..).zip(regions) {
            for lane in 0..lanes {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
                let address = listener.local_addr().expect("bound");
                let id = SiteId::new(position, lane);
                topology.sites.push(v1::TopologySite {
                    gone: false,
                    site: Some(id.into()),
                    region: (*region).to_owned(),
                    lane: lane.into(),
                    address: address.to_string(),
                });
                let name = if lane == 0 { (*region).to_owned() } else { format!("{region}:{lane}") };
                listeners.push((id, name, address, listener));
            }
        }
        let all = Arc::default();
        let sites = listeners.into_iter().map(|(id, name, address, listener)| {
            let model = Model::new(id, topology.clone(), Arc::clone(&all));
            all.lock().expect("no test panics in here").push(model.state.clone());
            let mut site = Site { name, address, model, runtime: None };
            site.serve(listener);
            site
        });
        Self { sites: sites.collect() }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.sites.iter().map(|site| site.address.to_string()).collect()
    }

    pub(crate) fn site(&self, name: &str) -> &Site {
        self.sites.iter().find(|site| site.name == name).expect("a site of the cluster")
    }

    /// Ends the site's sockets; what it knows stays.
    pub(crate) fn kill(&mut self, name: &str) {
        let site = self.sites.iter_mut().find(|site| site.name == name).expect("a site of the cluster");
        site.runtime.take().expect("it runs").shutdown_background();
        // Its listener is gone when nobody answers any more.
        while std::net::TcpStream::connect(site.address).is_ok() {
            std::thread::yield_now();
        }
        site.set_fault(Fault::None);
    }

    pub(crate) fn restart(&mut self, name: &str) {
        let site = self.sites.iter_mut().find(|site| site.name == name).expect("a site of the cluster");
        let listener = TcpListener::bind(site.address).expect("its own port");
        site.serve(listener);
    }
}

pub(crate) struct Site {
    name: String,
    address: SocketAddr,
    model: Model,
    runtime: Option<Runtime>,
}

impl Site {
    fn serve(&mut self, listener: TcpListener) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let service = slackline_server::SlacklineServer::new(self.model.clone());
        listener.set_nonblocking(true).expect("a socket");
        runtime.spawn(async move {
            let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).expect("a socket"));
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await
        });
        self.runtime = Some(runtime);
    }

    pub(crate) fn tokens(&self) -> i64 {
        self.model.state().tokens
    }

    /// How many operations were carried out, each once.
    pub(crate) fn executed(&self) -> usize {
        self.model.state().executed
    }

    pub(crate) fn batches(&self) -> usize {
        self.model.state().batches
    }

    pub(crate) fn open_sessions(&self) -> usize {
        self.model.state().sessions.len()
    }

    /// How many calls wait.
    pub(crate) fn slow(&self) -> usize {
        self.model.state().slow.len()
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.model.state().fault = fault;
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.model.state().ready = ready;
    }

    /// Whether the other sites can reach it, also while clients cannot.
    pub(crate) fn set_relayed(&self, relayed: bool) {
        self.model.state().relayed = relayed;
    }

    /// Changes an object behind everybody's back.
    pub(crate) fn put(&self, key: ObjectKey, value: Value) {
        self.model.state().write(&key, &Change::Put(value));
    }

    /// What an object holds.
    pub(crate) fn object(&self, key: &ObjectKey) -> Option<Value> {
        self.model.state().objects.get(key).and_then(|seen| seen.value.clone())
    }

    /// The next transactions are aborted for these causes; the last is the first.
    pub(crate) fn set_aborts(&self, aborts: &[Cause]) {
        self.model.state().aborts = aborts.to_vec();
    }

    /// No answer to a read has more objects than this.
    pub(crate) fn set_most_read(&self, most: usize) {
        self.model.state().most_read = most;
    }

    /// The names of the quotas that it lists, and how these change once a page was told.
    pub(crate) fn set_quotas(
        &self,
        names: impl IntoIterator<Item = String>,
        between_pages: Option<fn(&mut BTreeSet<String>)>,
    ) {
        let mut state = self.model.state();
        (state.quotas, state.between_pages) = (names.into_iter().collect(), between_pages);
    }

    /// The reads that came.
    pub(crate) fn reads(&self) -> Vec<Read> {
        self.model.state().reads.clone()
    }

    /// The transactions that came, those that were aborted too.
    pub(crate) fn transactions(&self) -> Vec<Transaction> {
        self.model.state().transactions.clone()
    }

    /// Answers the calls on the quota `slow`.
    pub(crate) fn answer_slow(&self) {
        let mut state = self.model.state();
        for (session, sequence, operation, sender) in std::mem::take(&mut state.slow) {
            let outcome = state.execute(session, sequence, &operation);
            let answers = vec![Answer { sequence, outcome }];
            send(&sender, Response::Batch { session: SessionId(session), answers });
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Sender = mpsc::UnboundedSender<Result<v1::SessionReply, Status>>;

#[derive(Clone)]
struct Model {
    topology: v1::TopologyReply,
    state: Arc<Mutex<State>>,
    /// All sites of the cluster.
    all: Arc<Mutex<Vec<Arc<Mutex<State>>>>>,
}

struct State {
    site: SiteId,
    ready: bool,
    /// Whether the others can reach it.
    relayed: bool,
    fault: Fault,
    tokens: i64,
    sessions: BTreeMap<u64, BTreeMap<u64, Outcome>>,
    next_session: u64,
    grants: u64,
    tracked: BTreeMap<u64, i64>,
    slow: Vec<(u64, u64, Operation, Sender)>,
    executed: usize,
    batches: usize,
    objects: BTreeMap<ObjectKey, Seen>,
    versions: u64,
    aborts: Vec<Cause>,
    most_read: usize,
    reads: Vec<Read>,
    transactions: Vec<Transaction>,
    quotas: BTreeSet<String>,
    /// Done once a page of quotas was told: what changes between two pages.
    between_pages: Option<fn(&mut BTreeSet<String>)>,
}

fn send(sender: &Sender, response: Response) {
    let reply = response.try_into().expect("travels on streams");
    // Whoever has gone hears nothing.
    let _ = sender.send(Ok(reply));
}

impl Model {
    fn new(site: SiteId, topology: v1::TopologyReply, all: Arc<Mutex<Vec<Arc<Mutex<State>>>>>) -> Self {
        let state = State {
            site,
            ready: true,
            relayed: false,
            fault: Fault::None,
            tokens: TOKENS,
            sessions: BTreeMap::new(),
            next_session: 1,
            grants: 0,
            tracked: BTreeMap::new(),
            slow: Vec::new(),
            executed: 0,
            batches: 0,
            objects: BTreeMap::new(),
            versions: 0,
            aborts: Vec::new(),
            most_read: usize::MAX,
            reads: Vec::new(),
            transactions: Vec::new(),
            quotas: BTreeSet::new(),
            between_pages: None,
        };
        Self {
            topology: v1::TopologyReply { site: Some(site.into()), ..topology },
            state: Arc::new(Mutex::new(state)),
            all,
        }
    }

    /// The site that an operation names, if it can be reached from here.
    fn home(&self, site: SiteId) -> Option<Arc<Mutex<State>>> {
        if self.state().site == site {
            return Some(self.state.clone());
        }
        let all = self.all.lock().expect("no test panics in here");
        let home = all.iter().find(|state| state.lock().expect("no test panics in here").site == site)?;
        home.lock().expect("no test panics in here").relayed.then(|| home.clone())
    }

    fn ask(&self, operation: OperationId) -> Outcome {
        match self.home(operation.site) {
            Some(home) => home.lock().expect("no test panics in here").ask(operation),
            None => Outcome::Unknown(UnknownReason::SiteUnreachable),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics in here")
    }

    /// Handles one message; `false` if the stream is to break, `None` if it is to fall silent.
    fn receive(&self, request: Request, sender: &Sender) -> Option<bool> {
        if let Request::Ask { operation } = request {
            send(sender, Response::Asked { operation, outcome: self.ask(operation) });
            return Some(true);
        }
        let home = match &request {
            Request::Batch(batch) => self.home(batch.site),
            _ => Some(self.state.clone()),
        };
        let Some(home) = home else {
            let Request::Batch(batch) = request else { unreachable!("only batches name a site") };
            let lost = |sequence| Answer { sequence, outcome: Outcome::Unknown(UnknownReason::SiteUnreachable) };
            let answers = batch.operations.iter().map(|submission| lost(submission.sequence)).collect();
            send(sender, Response::Batch { session: batch.session, answers });
            return Some(true);
        };
        let mut state = home.lock().expect("no test panics in here");
        match request {
            Request::Open if !state.ready => send(sender, Response::NotOpened(Refusal::NotReady)),
            Request::Open => {
                let session = state.next_session;
                state.next_session += 1;
                state.sessions.insert(session, BTreeMap::new());
                let (site, incarnation) = (state.site, Incarnation(1));
                send(sender, Response::Opened { site, incarnation, session: SessionId(session) });
            }
            Request::Batch(batch) => {
                let fault = match state.fault {
                    Fault::BreakBeforeReading | Fault::MuteBeforeReading => Fault::None,
                    fault => fault,
                };
                if fault != Fault::None {
                    state.fault = Fault::None;
                }
                match fault {
                    Fault::BreakBeforeExecuting => return Some(false),
                    Fault::MuteBeforeExecuting => return None,
                    _ => {}
                }
                let answers = state.carry_out(&batch, sender);
                match fault {
                    Fault::BreakAfterExecuting => return Some(false),
                    Fault::MuteAfterExecuting => return None,
                    _ => send(sender, Response::Batch { session: batch.session, answers }),
                }
            }
            Request::Close { session, .. } => {
                state.sessions.remove(&session.0);
                send(sender, Response::Closed);
            }
            Request::Read(read) => {
                let fault = state.fault;
                if matches!(fault, Fault::BreakBeforeReading | Fault::MuteBeforeReading) {
                    state.fault = Fault::None;
                    return (fault == Fault::BreakBeforeReading).then_some(false);
                }
                let reading = state.read(*read);
                send(sender, Response::Read(Box::new(reading)));
            }
            other => panic!("not on a stream: {other:?}"),
        }
        Some(true)
    }
}

impl State {
    fn carry_out(&mut self, batch: &Batch, sender: &Sender) -> Vec<Answer> {
        self.batches += 1;
        let session = batch.session.0;
        let mut answers = Vec::new();
        for submission in &batch.operations {
            let sequence = submission.sequence;
            assert!(sequence < batch.low + 1024, "beyond the window");
            let Some(known) = self.sessions.get_mut(&session) else {
                answers.push(Answer { sequence, outcome: Outcome::Refused(Refusal::SessionEnded) });
                continue;
            };
            known.retain(|sequence, _| *sequence >= batch.low);
            if let Some(outcome) = known.get(&sequence) {
                answers.push(Answer { sequence, outcome: outcome.clone() });
                continue;
            }
            if matches!(&submission.operation, Operation::Acquire { quota, .. } if quota == "slow") {
                self.slow.push((session, sequence, submission.operation.clone(), sender.clone()));
                continue;
            }
            let outcome = self.execute(session, sequence, &submission.operation);
            answers.push(Answer { sequence, outcome });
        }
        answers
    }

    fn execute(&mut self, session: u64, sequence: u64, operation: &Operation) -> Outcome {
        self.executed += 1;
        let outcome = match operation {
            Operation::Acquire { amount, hold, .. } => {
                self.tokens -= amount;
                self.grants += 1;
                let grant = GrantId { site: self.site, incarnation: Incarnation(1), number: self.grants };
                if *hold != Hold::Counted {
                    self.tracked.insert(grant.number, *amount);
                }
                let lasts = match hold {
                    Hold::For(micros) => Some(*micros),
                    _ => None,
                };
                Outcome::Granted { grant, lasts }
            }
            Operation::Release { amount, .. } => {
                self.tokens += amount;
                Outcome::Released { amount: *amount }
            }
            Operation::ReleaseGrant { grant, used: 0 } => match self.tracked.remove(&grant.number) {
                Some(amount) => {
                    self.tokens += amount;
                    Outcome::Released { amount }
                }
                None => Outcome::Refused(Refusal::UnknownGrant),
            },
            Operation::Create { limit, .. } => Outcome::Created { limit: *limit },
            Operation::ReleaseGrant { .. } => Outcome::Refused(Refusal::UnknownGrant),
            Operation::ExtendGrant { micros, .. } => Outcome::Extended { lasts: *micros },
            Operation::Reclaim { in_use, .. } => Outcome::Reclaimed { brought: 0, in_use: *in_use },
            Operation::SetLimit { limit, .. } => Outcome::LimitSet { limit: *limit, excess: 0 },
            Operation::Delete { .. } => Outcome::Deleted,
            Operation::AcceptLoss => Outcome::LossAccepted,
            Operation::Seat { .. } => Outcome::Seated { number: 1 },
            Operation::Commit(transaction) => self.commit(transaction),
        };
        let known = self.sessions.get_mut(&session).expect("looked at before");
        known.insert(sequence, outcome.clone());
        outcome
    }

    fn seen(&self, key: &ObjectKey) -> Seen {
        let nothing = Seen { version: Version { incarnation: Incarnation(1), number: 0 }, value: None };
        self.objects.get(key).cloned().unwrap_or(nothing)
    }

    fn rows(&self, home: u16, span: &Span) -> Vec<(String, Seen)> {
        let within = |key: &ObjectKey| key.home == home && key.name.starts_with(&span.prefix) && key.name > span.after;
        let rows = self.objects.iter().filter(|(key, seen)| within(key) && seen.value.is_some());
        rows.take(span.limit as usize).map(|(key, seen)| (key.name.clone(), seen.clone())).collect()
    }

    fn read(&mut self, read: Read) -> Reading {
        self.reads.push(read.clone());
        let Read { token, gets, scans, .. } = read;
        let mut most = self.most_read;
        let mut fits = |size: usize| {
            let fits = size <= most;
            most -= if fits { size } else { 0 };
            if fits { Ok(()) } else { Err(Abort::of(Cause::TooMuch)) }
        };
        let gets = gets.iter().map(|key| fits(1).map(|()| self.seen(key))).collect();
        let scans = scans.iter().map(|(home, span)| {
            let rows = self.rows(*home, span);
            fits(rows.len()).map(|()| rows)
        });
        Reading { token, gets, scans: scans.collect(), is_whole: false }
    }

    fn write(&mut self, key: &ObjectKey, change: &Change) {
        self.versions += 1;
        let value = match (change, self.seen(key).value) {
            (Change::Put(value), _) => Some(value.clone()),
            (Change::Delete, _) => None,
            (Change::Add(delta), Some(Value::Counter(count))) => Some(Value::Counter(count + delta)),
            (Change::Add(delta), _) => Some(Value::Counter(*delta)),
        };
        let number = if value.is_some() { self.versions } else { 0 };
        self.objects.insert(key.clone(), Seen { version: Version { incarnation: Incarnation(1), number }, value });
    }

    fn commit(&mut self, transaction: &Transaction) -> Outcome {
        self.transactions.push(transaction.clone());
        if let Some(cause) = self.aborts.pop() {
            return Outcome::Aborted(Box::new(Abort::about(cause, self.site, "x")));
        }
        for home in &transaction.homes {
            let of = |name: &String| ObjectKey::new(home.region, name.clone());
            for (name, number) in &home.part.reads {
                if self.seen(&of(name)).version.number != *number {
                    return Outcome::Aborted(Box::new(Abort::about(Cause::Changed, self.site, name)));
                }
            }
            for (span, numbers) in &home.part.scans {
                let rows = self.rows(home.region, span);
                if !rows.iter().map(|(_, seen)| seen.version.number).eq(numbers.iter().copied()) {
                    return Outcome::Aborted(Box::new(Abort::about(Cause::Changed, self.site, &span.prefix)));
                }
            }
        }
        for home in &transaction.homes {
            for (name, change) in &home.part.writes {
                self.write(&ObjectKey::new(home.region, name.clone()), change);
            }
        }
        let writes = transaction.homes.iter().any(|home| !home.part.writes.is_empty());
        Outcome::Committed { phases: u8::from(writes) }
    }

    fn ask(&mut self, operation: OperationId) -> Outcome {
        let withdrawn = Outcome::Refused(Refusal::Withdrawn);
        self.slow.retain(|(session, sequence, ..)| (*session, *sequence) != (operation.session.0, operation.sequence));
        match self.sessions.get_mut(&operation.session.0) {
            Some(known) => known.entry(operation.sequence).or_insert(withdrawn).clone(),
            None => withdrawn,
        }
    }
}

#[tonic::async_trait]
impl slackline_server::Slackline for Model {
    type SessionStream = UnboundedReceiverStream<Result<v1::SessionReply, Status>>;
    type WatchTreatiesStream = UnboundedReceiverStream<Result<v1::ShowTreatiesReply, Status>>;

    async fn session(
        &self,
        request: Call<Streaming<v1::SessionRequest>>,
    ) -> Result<Reply<Self::SessionStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (model, mut inbound) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(message)) = inbound.message().await {
                let request = message.try_into().expect("well formed");
                match model.receive(request, &sender) {
                    Some(true) => {}
                    Some(false) => {
                        let _ = sender.send(Err(Status::unavailable("broken by the test")));
                        return;
                    }
                    None => std::future::pending().await,
                }
            }
        });
        Ok(Reply::new(UnboundedReceiverStream::new(receiver)))
    }

    async fn outcome_of(&self, request: Call<v1::Ask>) -> Result<Reply<v1::OutcomeReply>, Status> {
        let Request::Ask { operation } = request.into_inner().try_into().expect("well formed") else {
            unreachable!("an ask")
        };
        let outcome = self.ask(operation);
        Ok(Reply::new((operation, outcome).into()))
    }

    async fn topology(&self, _: Call<v1::TopologyRequest>) -> Result<Reply<v1::TopologyReply>, Status> {
        Ok(Reply::new(self.topology.clone()))
    }

    async fn status(&self, _: Call<v1::StatusRequest>) -> Result<Reply<v1::StatusReply>, Status> {
        let readiness = if self.state().ready { v1::Readiness::Ready } else { v1::Readiness::Joining };
        Ok(Reply::new(v1::StatusReply {
            site: self.topology.site,
            incarnation: 1,
            readiness: readiness.into(),
            epsilon_us: 100_000,
            ..Default::default()
        }))
    }

    async fn open_session(&self, _: Call<v1::OpenSessionRequest>) -> Result<Reply<v1::Opened>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn close_session(&self, _: Call<v1::Close>) -> Result<Reply<v1::Closed>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn acquire(&self, _: Call<v1::AcquireRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn release(&self, _: Call<v1::ReleaseRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn release_grant(&self, _: Call<v1::ReleaseGrantRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn create_quota(&self, _: Call<v1::CreateQuotaRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn settle_grant(&self, _: Call<v1::SettleGrantRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn extend_grant(&self, _: Call<v1::ExtendGrantRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn reclaim_quota(&self, _: Call<v1::ReclaimQuotaRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn set_limit(&self, _: Call<v1::SetLimitRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn delete_quota(&self, _: Call<v1::DeleteQuotaRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn read_objects(&self, _: Call<v1::Read>) -> Result<Reply<v1::Reading>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn commit_transaction(
        &self,
        _: Call<v1::CommitTransactionRequest>,
    ) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn change_members(&self, _: Call<v1::ChangeMembersRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn accept_loss(&self, _: Call<v1::AcceptLossRequest>) -> Result<Reply<v1::OutcomeReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn explain(&self, _: Call<v1::Ask>) -> Result<Reply<v1::Explained>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn show_treaties(&self, _: Call<v1::ShowTreatiesRequest>) -> Result<Reply<v1::ShowTreatiesReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn watch_treaties(
        &self,
        _: Call<v1::ShowTreatiesRequest>,
    ) -> Result<Reply<Self::WatchTreatiesStream>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn show_quota(&self, _: Call<v1::ShowQuotaRequest>) -> Result<Reply<v1::ShowQuotaReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn show_demand(&self, _: Call<v1::ShowDemandRequest>) -> Result<Reply<v1::ShowDemandReply>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn list_quotas(&self, call: Call<v1::ListQuotasRequest>) -> Result<Reply<v1::ListQuotasReply>, Status> {
        let v1::ListQuotasRequest { after, limit } = call.into_inner();
        let mut state = self.state();
        let listed = |name: &String| Listed { name: name.clone(), limit: 9, tokens: 3, parent: 0 };
        let names = state.quotas.range::<str, _>((Bound::Excluded(&*after), Bound::Unbounded));
        let page: Vec<Listed> = names.take(limit as usize).map(listed).collect();
        if let Some(change) = state.between_pages.take() {
            change(&mut state.quotas);
        }
        Ok(Reply::new(page.into()))
    }
}
