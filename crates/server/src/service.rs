//! The public gRPC service.
//!
//! The stream is its own reader: polling it for replies takes the client's requests in, so that a batch goes from the
//! connection to the machine without a task of its own. A stream is not read on while the machine's queue is full or the
//! client does not take its replies; that is the back-pressure.
//!
//! A request to a site that the cluster does not have, or to another lane, is refused here as INVALID_ARGUMENT. The machine would
//! answer that it cannot reach the site, as if trying again might help.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use slackline_core::api::{Batch, Operation, Read, Request, Response, SeatChange, TreatiesHere};
use slackline_core::id::{OperationId, SiteId};
use slackline_wire::v1::slackline_server::Slackline;
use slackline_wire::{Invalid, WATCH_ALIVE, lane_of, v1};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::demand::DemandDesk;
use crate::mailbox::{Mailbox, Phase, Registration, overloaded, stopping};
use crate::topology::Topology;

/// The lane in which objects live.
const OBJECT_LANE: u16 = 0;
/// The most replies that wait for one stream's client to take them; beyond it the stream is not read on.
const STREAM_REPLIES: usize = 4_096;

/// The pause between two looks at treaties that are watched.
const WATCH: Duration = Duration::from_millis(250);

/// Answers clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientService {
    pub(crate) topology: Arc<Topology>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) demand: Arc<DemandDesk>,
}

type Answer<T> = Result<tonic::Response<T>, Status>;

#[tonic::async_trait]
impl Slackline for ClientService {
    type SessionStream = SessionStream;
    type WatchTreatiesStream = ReceiverStream<Result<v1::ShowTreatiesReply, Status>>;

    async fn session(&self, request: tonic::Request<Streaming<v1::SessionRequest>>) -> Answer<SessionStream> {
        let registration = self.mailbox.register()?;
        Ok(tonic::Response::new(SessionStream {
            topology: Arc::clone(&self.topology),
            requests: Some(request.into_inner()),
            registration,
            held_back: None,
            outstanding: 0,
        }))
    }

    async fn open_session(&self, _: tonic::Request<v1::OpenSessionRequest>) -> Answer<v1::Opened> {
        match self.call(Request::Open).await? {
            Response::Opened { site, incarnation, session } => Ok(tonic::Response::new(v1::Opened {
                site: Some(site.into()),
                incarnation: incarnation.0,
                session: session.0,
            })),
            Response::NotOpened(refusal) => Err(Status::unavailable(refusal.to_string())),
            other => Err(unexpected(&other)),
        }
    }

    async fn close_session(&self, request: tonic::Request<v1::Close>) -> Answer<v1::Closed> {
        let request = Request::try_from(request.into_inner()).map_err(invalid)?;
        match self.call(request).await? {
            Response::Closed => Ok(tonic::Response::new(v1::Closed {})),
            other => Err(unexpected(&other)),
        }
    }

    async fn acquire(&self, request: tonic::Request<v1::AcquireRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn release(&self, request: tonic::Request<v1::ReleaseRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn release_grant(&self, request: tonic::Request<v1::ReleaseGrantRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn settle_grant(&self, request: tonic::Request<v1::SettleGrantRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn extend_grant(&self, request: tonic::Request<v1::ExtendGrantRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn create_quota(&self, request: tonic::Request<v1::CreateQuotaRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn set_limit(&self, request: tonic::Request<v1::SetLimitRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn reclaim_quota(&self, request: tonic::Request<v1::ReclaimQuotaRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn delete_quota(&self, request: tonic::Request<v1::DeleteQuotaRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn read_objects(&self, request: tonic::Request<v1::Read>) -> Answer<v1::Reading> {
        let read = Read::try_from(request.into_inner()).map_err(invalid)?;
        match self.call(Request::Read(Box::new(read))).await? {
            Response::Read(reading) => Ok(tonic::Response::new((*reading).into())),
            other => Err(unexpected(&other)),
        }
    }

    async fn commit_transaction(
        &self,
        request: tonic::Request<v1::CommitTransactionRequest>,
    ) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn change_members(&self, request: tonic::Request<v1::ChangeMembersRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn accept_loss(&self, request: tonic::Request<v1::AcceptLossRequest>) -> Answer<v1::OutcomeReply> {
        self.operate(request.into_inner()).await
    }

    async fn outcome_of(&self, request: tonic::Request<v1::Ask>) -> Answer<v1::OutcomeReply> {
        let request = Request::try_from(request.into_inner()).map_err(invalid)?;
        match self.call(request).await? {
            Response::Asked { operation, outcome } => Ok(tonic::Response::new((operation, outcome).into())),
            other => Err(unexpected(&other)),
        }
    }

    async fn explain(&self, request: tonic::Request<v1::Ask>) -> Answer<v1::Explained> {
        let operation = slackline_wire::operation_id(request.into_inner().operation).map_err(invalid)?;
        match self.call(Request::Explain { operation }).await? {
            Response::Explained { operation, trace } => Ok(tonic::Response::new((operation, trace).into())),
            other => Err(unexpected(&other)),
        }
    }

    async fn show_treaties(&self, request: tonic::Request<v1::ShowTreatiesRequest>) -> Answer<v1::ShowTreatiesReply> {
        let request = request.into_inner().try_into().map_err(invalid)?;
        Ok(tonic::Response::new(self.treaties(request).await?.into()))
    }

    async fn watch_treaties(
        &self,
        request: tonic::Request<v1::ShowTreatiesRequest>,
    ) -> Answer<Self::WatchTreatiesStream> {
        let request: Request = request.into_inner().try_into().map_err(invalid)?;
        // One that its client has not taken yet: the next look waits for that.
        let (tell, told) = mpsc::channel(1);
        tokio::spawn(self.clone().watch(request, tell));
        Ok(tonic::Response::new(ReceiverStream::new(told)))
    }

    async fn show_quota(&self, request: tonic::Request<v1::ShowQuotaRequest>) -> Answer<v1::ShowQuotaReply> {
        match self.call(request.into_inner().into()).await? {
            Response::Shown(shown) => Ok(tonic::Response::new(shown.map(|shown| *shown).into())),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_quotas(&self, request: tonic::Request<v1::ListQuotasRequest>) -> Answer<v1::ListQuotasReply> {
        match self.call(request.into_inner().into()).await? {
            Response::Listed(quotas) => Ok(tonic::Response::new(quotas.into())),
            Response::NotOpened(refusal) => Err(Status::unavailable(refusal.to_string())),
            other => Err(unexpected(&other)),
        }
    }

    async fn show_demand(&self, request: tonic::Request<v1::ShowDemandRequest>) -> Answer<v1::ShowDemandReply> {
        // Not of the machine: it counts, and the minutes are kept beside it.
        let shown = self.demand.show(&request.into_inner().quota);
        let minute = |(period_s, count)| v1::DemandMinute { period_s, count };
        Ok(tonic::Response::new(v1::ShowDemandReply {
            kept: shown.is_some(),
            minutes: shown.into_iter().flatten().map(minute).collect(),
        }))
    }

    async fn status(&self, _: tonic::Request<v1::StatusRequest>) -> Answer<v1::StatusReply> {
        match self.call(Request::Status).await? {
            Response::Status(status) => Ok(tonic::Response::new((*status).into())),
            other => Err(unexpected(&other)),
        }
    }

    async fn topology(&self, _: tonic::Request<v1::TopologyRequest>) -> Answer<v1::TopologyReply> {
        Ok(tonic::Response::new(self.topology.reply()))
    }
}

impl ClientService {
    /// Asks the machine one thing and waits for the answer.
    async fn call(&self, request: Request) -> Result<Response, Status> {
        check(&self.topology, &request)?;

        // Registered before it asks: an answer to a client that is not registered is dropped.
        let registration = match request {
            Request::Status => self.mailbox.register_to_look()?,
            _ => self.mailbox.register()?,
        };
        self.mailbox.ask(registration.id, request, None).map_err(|_| overloaded())?;
        loop {
            match poll_fn(|context| registration.poll(context)).await? {
                // An empty batch says only that the operation waits; its outcome follows.
                Response::Batch { answers, .. } if answers.is_empty() => {}
                response => return Ok(response),
            }
        }
    }

    /// Asks the machine for treaties.
    async fn treaties(&self, request: Request) -> Result<TreatiesHere, Status> {
        let is_of_one = matches!(request, Request::Treaties { treaty: Some(_) });
        match self.call(request).await? {
            // Of one treaty there is never more than an answer has room for, but it was not told: too much waits to be sent.
            Response::Treaties(here) if is_of_one && here.has_more => Err(overloaded()),
            Response::Treaties(here) => Ok(*here),
            Response::NotOpened(refusal) => Err(Status::unavailable(refusal.to_string())),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells of treaties when they have changed, and now and then, until the client goes away or there is an error.
    async fn watch(self, request: Request, tell: mpsc::Sender<Result<v1::ShowTreatiesReply, Status>>) {
        let mut told: Option<(TreatiesHere, Instant)> = None;
        loop {
            // A sync may keep the answer back for long: whoever does not wait for it any more gives its place free.
            let asked = tokio::select! {
                () = tell.closed() => return,
                asked = self.treaties(request.clone()) => asked,
            };
            let now = match asked {
                Ok(now) => now,
                Err(status) => return drop(tell.send(Err(status)).await),
            };
            if told.as_ref().is_none_or(|(before, at)| *before != now || at.elapsed() >= WATCH_ALIVE) {
                if tell.send(Ok(now.clone().into())).await.is_err() {
                    return;
                }
                told = Some((now, Instant::now()));
            }
            tokio::select! {
                () = tell.closed() => return,
                () = tokio::time::sleep(WATCH) => {}
            }
        }
    }

    /// Carries out a unary operation: a batch of one.
    async fn operate<T>(&self, request: T) -> Answer<v1::OutcomeReply>
    where
        Batch: TryFrom<T, Error = Invalid>,
    {
        let batch = Batch::try_from(request).map_err(invalid)?;
        let (site, incarnation, session) = (batch.site, batch.incarnation, batch.session);
        match self.call(Request::Batch(batch)).await? {
            Response::Batch { answers, .. } => match answers.into_iter().next() {
                Some(answer) => {
                    let sequence = answer.sequence;
                    let id = OperationId { site, incarnation, session, sequence };
                    Ok(tonic::Response::new((id, answer.outcome).into()))
                }
                None => Err(Status::internal("the site gave no outcome; ask for it with the operation's id")),
            },
            other => Err(unexpected(&other)),
        }
    }
}

fn invalid(invalid: Invalid) -> Status {
    Status::invalid_argument(invalid.to_string())
}

fn unexpected(response: &Response) -> Status {
    Status::internal(format!("the site answered with something else: {response:?}"))
}

/// Checks that a request makes sense at this site: each site that it names is of the cluster and of this lane, and so is each quota.
fn check(topology: &Topology, request: &Request) -> Result<(), Status> {
    match request {
        Request::Batch(batch) => {
            check_member(topology, batch.site)?;
            check_operations(topology, batch)
        }
        Request::Ask { operation } | Request::Explain { operation } => check_member(topology, operation.site),
        Request::Close { site, .. } => check_member(topology, *site),
        // A region that the cluster does not have is the machine's to refuse, object by object (CAUSE_UNKNOWN_REGION): an error here
        // would end the stream, and with it what others ask on it.
        Request::Read(_) | Request::Treaties { .. } => check_objects(topology),
        Request::Show { quota, .. } => check_lane(topology, quota),
        Request::Open | Request::List { .. } | Request::Status | Request::Drain { .. } | Request::Expect(_) => Ok(()),
    }
}

/// Checks that a site is this one, or one to which this site can pass a request on.
fn check_member(topology: &Topology, site: SiteId) -> Result<(), Status> {
    if !topology.has(site) {
        return Err(Status::invalid_argument(format!(
            "there is no site of region {}, lane {}: the cluster has {} regions and {} lanes, from 0 (see Topology)",
            site.region,
            site.lane,
            topology.regions().len(),
            topology.lanes
        )));
    }

    if site.lane != topology.me.lane {
        return Err(Status::invalid_argument(format!(
            "site {} is of lane {}, and this is a site of lane {}: ask a site of that lane (see Topology)",
            topology.name(site),
            site.lane,
            topology.me.lane
        )));
    }

    Ok(())
}

/// Checks that the operations of a batch make sense here: numbered from 1, each quota in this site's lane, and each grant at the
/// site that is to take it back.
fn check_operations(topology: &Topology, batch: &Batch) -> Result<(), Status> {
    for submission in &batch.operations {
        if submission.sequence == 0 {
            return Err(Status::invalid_argument(
                "sequence 0 names no operation: those of a session are numbered from 1",
            ));
        }

        match &submission.operation {
            // Only the site that granted has the grant's row; any other would say that there is no such grant.
            Operation::ReleaseGrant { grant, .. } | Operation::ExtendGrant { grant, .. }
                if grant.site != batch.site =>
            {
                return Err(Status::invalid_argument(format!(
                    "grant {grant} can be released or extended only by its site: use an operation id of a session at site {}, not at {}",
                    grant.site, batch.site
                )));
            }
            // All quotas and objects are in the only lane, so no name needs to be hashed.
            operation if topology.lanes == 1 && !matches!(operation, Operation::Seat { .. }) => {}
            Operation::Acquire { quota, .. }
            | Operation::Release { quota, .. }
            | Operation::Create { quota, .. }
            | Operation::SetLimit { quota, .. }
            | Operation::Reclaim { quota, .. }
            | Operation::Delete { quota } => check_lane(topology, quota)?,
            Operation::Seat { site, .. } if site.lane != topology.me.lane => {
                return Err(Status::invalid_argument(format!(
                    "site {site} is of another lane than this one: ask a site of its own"
                )));
            }
            Operation::Seat { site, change: SeatChange::Joins, label } => {
                topology.objection(*site, label).map_or(Ok(()), |why| Err(Status::invalid_argument(why)))?;
            }
            Operation::Seat { .. } => {}
            Operation::Commit(_) | Operation::AcceptLoss => check_objects(topology)?,
            Operation::ReleaseGrant { .. } | Operation::ExtendGrant { .. } => {}
        }
    }
    Ok(())
}

/// Checks that objects live in this site's lane.
fn check_objects(topology: &Topology) -> Result<(), Status> {
    if topology.me.lane == OBJECT_LANE {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "objects live in lane {OBJECT_LANE}, and this is a site of lane {}: ask a site of that lane (see Topology)",
        topology.me.lane
    )))
}

/// Checks that a quota lives in this site's lane.
fn check_lane(topology: &Topology, quota: &str) -> Result<(), Status> {
    let lane = lane_of(quota, topology.lanes);
    if lane == topology.me.lane {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "quota {quota:?} lives in lane {lane}, and this is a site of lane {}: ask a site of that lane (see Topology)",
        topology.me.lane
    )))
}

/// A session stream, seen from the side of its replies.
pub(crate) struct SessionStream {
    topology: Arc<Topology>,
    /// The client's requests, until it has sent its last one.
    requests: Option<Streaming<v1::SessionRequest>>,
    registration: Registration,
    /// A request that found the machine's queue full. No further one is read while it waits.
    held_back: Option<Request>,
    /// The number of answers that the client has not been given, from when a request is taken in. An operation has one.
    outstanding: usize,
}

impl Stream for SessionStream {
    type Item = Result<v1::SessionReply, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Err(status) = this.take_requests(context) {
            return Poll::Ready(Some(Err(status)));
        }

        // Replies after requests, so that a wake-up for either finds both.
        match this.registration.poll(context) {
            Poll::Ready(Ok(response)) => {
                this.outstanding = this.outstanding.saturating_sub(answers(&response));
                Poll::Ready(Some(response.try_into().map_err(|error: Invalid| Status::internal(error.to_string()))))
            }
            Poll::Ready(Err(status)) => Poll::Ready(Some(Err(status))),
            // The client has sent its last request, and each is answered.
            Poll::Pending if this.requests.is_none() && this.outstanding == 0 => Poll::Ready(None),
            // A site that stops ends a stream only when nothing is owed on it: an answer that is cut off is an unknown outcome.
            Poll::Pending if this.outstanding == 0 && this.registration.mailbox().phase() != Phase::Open => {
                Poll::Ready(Some(Err(stopping())))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl SessionStream {
    /// Hands the client's requests to the machine, until its queue is full.
    fn take_requests(&mut self, context: &mut Context) -> Result<(), Status> {
        // In order: the requests of a stream reach the machine as they were sent.
        if let Some(request) = self.held_back.take()
            && !self.ask(request, context)
        {
            return Ok(());
        }

        while self.registration.backlog() < STREAM_REPLIES {
            let Some(requests) = &mut self.requests else { return Ok(()) };
            // What is not read here was never taken: the client may send it elsewhere under new ids.
            if self.registration.mailbox().phase() != Phase::Open {
                return Ok(());
            }

            match Pin::new(requests).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => {
                    let request = Request::try_from(message).map_err(invalid)?;
                    check(&self.topology, &request)?;
                    self.outstanding += answers_owed(&request);
                    if !self.ask(request, context) {
                        return Ok(());
                    }
                }
                Poll::Ready(Some(Err(status))) => return Err(status),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    /// Queues a request, or holds it back if the queue is full. Returns true if it is queued.
    fn ask(&mut self, request: Request, context: &Context) -> bool {
        match self.registration.mailbox().ask(self.registration.id, request, Some(context.waker())) {
            Ok(()) => true,
            Err(request) => {
                self.held_back = Some(request);
                false
            }
        }
    }
}

/// The number of answers that a request gets.
fn answers_owed(request: &Request) -> usize {
    match request {
        Request::Batch(batch) => batch.operations.len(),
        _ => 1,
    }
}

/// The number of answers in a response.
fn answers(response: &Response) -> usize {
    match response {
        Response::Batch { answers, .. } => answers.len(),
        _ => 1,
    }
}
