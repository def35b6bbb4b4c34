//! The queues between the network and the machine.
//!
//! All tasks of a site but its log run on one thread, so the locks here are never contended; they are there because
//! the gRPC library wants services that could move between threads.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustc_hash::FxHashMap;
use slackline_core::api::{Answer, Batch, Operation, Reading, Request, Response, TreatiesHere};
use slackline_core::id::SiteId;
use slackline_core::machine::ClientId;
use slackline_core::object::{Abort, Cause};
use slackline_core::peer::PeerMessage;
use slackline_wire::{limit_reading, message_bytes, request_bytes};
use tokio::sync::Notify;
use tonic::Status;

/// The most operations (or other requests) of clients that wait for the machine. At the bound a stream is not read on and a
/// unary call is answered RESOURCE_EXHAUSTED.
pub(crate) const QUEUE_OPERATIONS: usize = 16_384;
/// The bytes of names and values that count as one operation more: at most 64 MiB of them wait, and one request.
const OPERATION_BYTES: usize = 4 << 10;
/// About the most rows that the machine is handed transactions about in one call: a batch about more is handed over in parts. Each is looked
/// up in storage, and a call of seconds is taken for a process that was held up; what a call writes has to fit a segment of the log.
const OBJECTS_AT_A_TIME: usize = 16_384;
/// The most messages of other sites that wait for the machine; beyond it the oldest is dropped, as the network may do.
pub(crate) const QUEUE_MESSAGES: usize = 16_384;
/// The most bytes of objects in these messages, and one message.
const QUEUE_BYTES: usize = 64 << 20;
/// The bytes of objects, waiting to be sent to a client, that count as one reply more.
const REPLY_BYTES: usize = 4 << 10;
/// The most bytes of objects that wait to be sent to one client, and to all: 64 and 256 MiB. A read beyond that is answered as
/// overloaded. Otherwise a client that asks and does not read fills the memory: one question is a thousandth of its answer.
const CLIENT_REPLIES: usize = (64 << 20) / REPLY_BYTES;
const ALL_REPLIES: usize = (256 << 20) / REPLY_BYTES;
/// About the bytes of a quota in a list, but for its name.
const LISTED_BYTES: usize = 64;
/// About the bytes of an answer that shows a quota or a transaction.
const TOLD_BYTES: usize = 16 << 10;
/// The most session streams and unary calls of one site at a time.
pub(crate) const CLIENTS: usize = 16_384;

/// The driver itself, as a client of its own machine.
pub(crate) const DRIVER: ClientId = ClientId(0);

/// The queues in front of one site's machine.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// What waits for the machine.
    queues: Mutex<Queues>,
    /// The clients that are connected.
    clients: Mutex<FxHashMap<ClientId, Arc<Client>>>,
    /// What waits to be sent to clients.
    load: Load,
    /// Wakes the machine.
    pub(crate) wake: Notify,
}

#[derive(Debug)]
struct Queues {
    /// Messages of other sites, oldest first, each with the bytes of objects in it.
    messages: VecDeque<(SiteId, PeerMessage, usize)>,
    /// The bytes of objects in `messages`: always the sum of theirs.
    message_bytes: usize,
    /// The number of messages that were dropped because the queue was full, since the start.
    messages_dropped: u64,
    /// Requests of clients, oldest first, each with its weight.
    requests: VecDeque<(ClientId, Request, usize)>,
    /// The weight of `requests`: always the sum of theirs.
    operations: usize,
    /// The streams that hold a request back until there is room.
    waiting: BTreeMap<ClientId, Waker>,
    /// The number of the next client. None is used twice, so a late answer reaches nobody else.
    next_client: u64,
    /// Whether clients may ask.
    phase: Phase,
}

/// The mailbox's phase: it decides if clients may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Clients may ask.
    Open,
    /// No new request is taken; those that were taken are being finished.
    Draining,
    /// The machine is gone.
    Stopped,
}

/// The lengths of the queues.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Lengths {
    /// The number of messages that wait.
    pub(crate) messages: usize,
    /// The number that was dropped because the queue was full, since the start.
    pub(crate) messages_dropped: u64,
    /// The weight of the requests that wait.
    pub(crate) operations: usize,
    /// The number of clients that are connected.
    pub(crate) clients: usize,
}

impl Mailbox {
    pub(crate) fn new() -> Self {
        let queues = Queues {
            messages: VecDeque::new(),
            message_bytes: 0,
            messages_dropped: 0,
            requests: VecDeque::new(),
            operations: 0,
            waiting: BTreeMap::new(),
            next_client: DRIVER.0 + 1,
            phase: Phase::Open,
        };

        Self { queues: Mutex::new(queues), clients: Mutex::default(), load: Load::default(), wake: Notify::new() }
    }

    // From the network.

    /// Registers a new client: a stream or a unary call. The error is the client's answer.
    pub(crate) fn register(self: &Arc<Self>) -> Result<Registration, Status> {
        self.register_in(&[Phase::Open])
    }

    /// The same for one that only looks at the site's state: a site that drains says so.
    pub(crate) fn register_to_look(self: &Arc<Self>) -> Result<Registration, Status> {
        self.register_in(&[Phase::Open, Phase::Draining])
    }

    fn register_in(self: &Arc<Self>, phases: &[Phase]) -> Result<Registration, Status> {
        let mut queues = self.queues();
        if !phases.contains(&queues.phase) {
            return Err(stopping());
        }

        let mut clients = self.clients();
        if clients.len() >= CLIENTS {
            return Err(overloaded());
        }

        let id = ClientId(queues.next_client);
        queues.next_client += 1;
        let client = Arc::new(Client::default());
        clients.insert(id, Arc::clone(&client));
        Ok(Registration { id, client, mailbox: Arc::clone(self) })
    }

    /// Queues a request. If the queue is full, the request comes back, and the waker is woken when there is room.
    pub(crate) fn ask(&self, client: ClientId, request: Request, waker: Option<&Waker>) -> Result<(), Request> {
        let mut queues = self.queues();
        // The bound of the clients' queue. Messages of sites have a queue of their own, so that clients cannot crowd them out.
        if queues.operations >= QUEUE_OPERATIONS {
            if let Some(waker) = waker {
                queues.waiting.insert(client, waker.clone());
            }
            return Err(request);
        }

        let weight = weight(&request);
        queues.operations += weight;
        queues.requests.push_back((client, request, weight));
        drop(queues);
        self.wake.notify_one();
        Ok(())
    }

    /// Queues a message of another site.
    pub(crate) fn tell(&self, from: SiteId, message: PeerMessage) {
        let bytes = message_bytes(&message);
        let mut queues = self.queues();

        // The oldest goes, as if the network had lost it: the protocols repeat what matters, and the newest tells most.
        while queues.messages.len() >= QUEUE_MESSAGES || queues.message_bytes > QUEUE_BYTES {
            queues.pop_message();
            queues.messages_dropped += 1;
        }
        queues.message_bytes += bytes;
        queues.messages.push_back((from, message, bytes));
        drop(queues);
        self.wake.notify_one();
    }

    // From the machine's side.

    pub(crate) fn next_message(&self) -> Option<(SiteId, PeerMessage)> {
        self.queues().pop_message()
    }

    /// Takes the next request, with its weight; of a batch about many objects, its first part. Wakes the streams that wait for room once there is some.
    pub(crate) fn next_request(&self) -> Option<(ClientId, Request, usize)> {
        let mut queues = self.queues();
        let (client, mut request, mut weight) = queues.requests.pop_front()?;
        if let Some(rest) = split(&mut request) {
            let rest_weight = self::weight(&rest).min(weight - 1);
            queues.requests.push_front((client, rest, rest_weight));
            weight -= rest_weight;
        }
        queues.operations -= weight;
        debug_assert!(!queues.requests.is_empty() || queues.operations == 0, "an empty queue must have no weight");

        // Only at half: streams that were woken for each single place would be woken mostly in vain.
        if queues.operations < QUEUE_OPERATIONS / 2 {
            mem::take(&mut queues.waiting).into_values().for_each(Waker::wake);
        }
        Some((client, request, weight))
    }

    pub(crate) fn is_empty(&self) -> bool {
        let queues = self.queues();
        queues.messages.is_empty() && queues.requests.is_empty()
    }

    /// Hands responses to their clients. A response to a client that is gone is dropped.
    pub(crate) fn deliver(&self, responses: &mut Vec<(ClientId, Response)>) {
        if responses.is_empty() {
            return;
        }
        let clients = self.clients();
        for (id, response) in responses.drain(..) {
            if let Some(client) = clients.get(&id) {
                client.deliver(response, &self.load);
            }
        }
    }

    /// The bytes of answers that were taken and have not left.
    pub(crate) fn unsent(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.load.unsent)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.queues().phase
    }

    /// Takes no request from now on.
    pub(crate) fn drain(&self) {
        let mut queues = self.queues();
        if queues.phase == Phase::Open {
            queues.phase = Phase::Draining;
        }
        drop(queues);

        // A stream that waits for its client would not see the new phase.
        self.clients().values().for_each(|client| client.wake());
        self.wake.notify_one();
    }

    /// Drops all that waits and ends every stream and call. The outcomes of operations that these had asked for are unknown to
    /// their clients.
    pub(crate) fn hang_up(&self, phase: Phase) {
        // A machine that starts again from storage has forgotten who waits for which answer. So every stream and call ends, and the
        // clients ask again with their ids.
        let mut queues = self.queues();
        queues.phase = phase;
        queues.messages.clear();
        queues.message_bytes = 0;
        queues.requests.clear();
        queues.operations = 0;
        mem::take(&mut queues.waiting).into_values().for_each(Waker::wake);
        drop(queues);
        self.clients().values().for_each(|client| client.end());
    }

    pub(crate) fn lengths(&self) -> Lengths {
        let queues = self.queues();
        Lengths {
            messages: queues.messages.len(),
            messages_dropped: queues.messages_dropped,
            operations: queues.operations,
            clients: self.clients().len(),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, FxHashMap<ClientId, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn pop_message(&mut self) -> Option<(SiteId, PeerMessage)> {
        let (from, message, bytes) = self.messages.pop_front()?;
        self.message_bytes -= bytes;
        Some((from, message))
    }
}

/// Replaces all that was read by the refusal `overloaded`. Reading has no effect, so the client may ask again.
fn refuse(reading: &mut Reading) {
    reading.gets.iter_mut().for_each(|got| *got = Err(Abort::of(Cause::Overloaded)));
    reading.scans.iter_mut().for_each(|rows| *rows = Err(Abort::of(Cause::Overloaded)));
}

/// Leaves the first operations of a batch in it that are about [`OBJECTS_AT_A_TIME`] objects, and returns the others; none if these are all.
fn split(request: &mut Request) -> Option<Request> {
    let Request::Batch(batch) = request else { return None };
    let mut objects = 0;
    let over = batch.operations.iter().position(|submission| {
        objects += if let Operation::Commit(transaction) = &submission.operation { transaction.rows() } else { 0 };
        objects > OBJECTS_AT_A_TIME
    });
    let operations = batch.operations.split_off(over?.max(1));
    (!operations.is_empty()).then(|| Request::Batch(Batch { operations, ..*batch }))
}

/// The share of the queue that a request takes up: the number of its operations or reads, and more if they are large.
fn weight(request: &Request) -> usize {
    let count = match request {
        Request::Batch(batch) => batch.operations.len(),
        Request::Read(read) => read.gets.len() + read.scans.len(),
        _ => 1,
    };
    count.max(1) + request_bytes(request) / OPERATION_BYTES
}

/// About the bytes of an answer that nobody has room kept for. Answers to operations are not counted: as many sessions as there are have as
/// many under way. A read is cut to what a message has room for.
pub(crate) fn held_bytes(response: &mut Response) -> usize {
    match response {
        Response::Read(reading) => limit_reading(reading),
        Response::Listed(listed) => listed.iter().map(|one| one.name.len() + LISTED_BYTES).sum(),
        Response::Treaties(here) => here.bytes(),
        Response::Explained { .. } | Response::Shown(_) => TOLD_BYTES,
        _ => 0,
    }
}

/// The answer to a client when a queue is full.
pub(crate) fn overloaded() -> Status {
    Status::resource_exhausted("overloaded: a queue of the site is full; this request was not taken, try again later")
}

/// The answer to a client when the site stops.
pub(crate) fn stopping() -> Status {
    Status::unavailable("the site is stopping; use another site, or try again later")
}

/// One stream's or call's place in the mailbox, until the value is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) id: ClientId,
    client: Arc<Client>,
    mailbox: Arc<Mailbox>,
}

impl Registration {
    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Takes the next response, if there is one. An error says that there will be none.
    pub(crate) fn poll(&self, context: &Context) -> Poll<Result<Response, Status>> {
        self.client.poll(context, &self.mailbox.load)
    }

    /// The number of responses that wait to be sent; large ones count as several.
    pub(crate) fn backlog(&self) -> usize {
        self.client.state().weight
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Who has gone waits for no room: while a disk hangs, clients come and go.
        self.mailbox.queues().waiting.remove(&self.id);
        // Removed first: from then on nothing is delivered to it, and the weight that is given back here stays the same.
        self.mailbox.clients().remove(&self.id);
        self.mailbox.load.replies.fetch_sub(self.client.state().weight, Ordering::Relaxed);
    }
}

/// What waits to be sent to all clients.
#[derive(Default, Debug)]
struct Load {
    /// The weight of the replies that were not taken yet.
    replies: AtomicUsize,
    /// The bytes of those that were, and have not left.
    unsent: Arc<AtomicUsize>,
}

impl Load {
    /// The weight of both.
    fn weight(&self) -> usize {
        self.replies.load(Ordering::Relaxed) + self.unsent.load(Ordering::Relaxed) / REPLY_BYTES
    }
}

/// The responses that wait to be sent to one client.
#[derive(Default, Debug)]
struct Client {
    state: Mutex<Replies>,
}

#[derive(Default, Debug)]
struct Replies {
    /// Responses, oldest first, each with its weight.
    replies: VecDeque<(Response, usize)>,
    /// The weight of `replies`: always the sum of theirs.
    weight: usize,
    /// Wakes the stream or call, if it waits.
    waker: Option<Waker>,
    /// True once no response will follow. Never false again.
    ended: bool,
}

impl Client {
    /// Adds a response to those that wait to be sent; `load` is what waits for all clients.
    fn deliver(&self, mut response: Response, load: &Load) {
        let mut state = self.state();

        // Only what was read is refused at the bound. Outcomes are always delivered: the client has to know them, but not the names of calls
        // beside them.
        let named = |answers: &[Answer]| answers.iter().map(Answer::named_bytes).sum();
        let bytes =
            if let Response::Batch { answers, .. } = &response { named(answers) } else { held_bytes(&mut response) };
        let mut weight = 1 + bytes / REPLY_BYTES;
        if state.weight + weight > CLIENT_REPLIES || load.weight() + weight > ALL_REPLIES {
            weight = match &mut response {
                Response::Read(reading) => {
                    refuse(reading);
                    1
                }
                Response::Batch { answers, .. } => {
                    Answer::limit_names(answers, 0);
                    1
                }
                Response::Treaties(here) => {
                    **here = TreatiesHere { has_more: true, ..TreatiesHere::default() };
                    1
                }
                _ => weight,
            };
        }

        state.weight += weight;
        load.replies.fetch_add(weight, Ordering::Relaxed);
        state.replies.push_back((response, weight));
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn poll(&self, context: &Context, load: &Load) -> Poll<Result<Response, Status>> {
        let mut state = self.state();
        if let Some((response, weight)) = state.replies.pop_front() {
            state.weight -= weight;
            load.replies.fetch_sub(weight, Ordering::Relaxed);
            return Poll::Ready(Ok(response));
        }

        // After the responses that are there: those left the machine before it stopped, and they are durable.
        if state.ended {
            return Poll::Ready(Err(Status::unavailable(
                "the site stopped before it could answer; repeat the operation with its id, or ask for its outcome",
            )));
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn wake(&self) {
        if let Some(waker) = self.state().waker.take() {
            waker.wake();
        }
    }

    fn end(&self) {
        self.state().ended = true;
        self.wake();
    }

    fn state(&self) -> MutexGuard<'_, Replies> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use slackline_core::api::{Outcome, Submission, TreatyHere};
    use slackline_core::id::{Incarnation, SessionId};
    use slackline_core::object::{Home, ObjectKey, Part, Transaction, Value};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn stream_that_found_no_room_is_woken_once_half_of_it_is_free() {
        let (mailbox, woken) = (Mailbox::new(), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        for _ in 0..QUEUE_OPERATIONS {
            mailbox.ask(ClientId(5), Request::Open, Some(&waker)).expect("there is room");
        }
        mailbox.ask(ClientId(6), Request::Open, Some(&waker)).expect_err("there is none");
        let take = |count: usize| (0..count).for_each(|_| drop(mailbox.next_request()));
        take(QUEUE_OPERATIONS / 2);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        take(1);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it would wait for ever");
        mailbox.ask(ClientId(6), Request::Open, Some(&waker)).expect("there is room again");
    }

    #[test]
    fn batch_about_many_objects_is_handed_over_in_parts() {
        let part = |reads: u64| Part { reads: (0..reads).map(|n| (n.to_string(), 0)).collect(), ..Part::default() };
        let commit = |reads| {
            let home = Home { region: 0, incarnation: Incarnation(1), part: part(reads) };
            Operation::Commit(Box::new(Transaction { homes: vec![home], ..Transaction::default() }))
        };
        let submission = |sequence, operation| Submission { sequence, timeout: 1, operation };
        let mailbox = Mailbox::new();
        let reads = [4096, 4096, 4096, 4096, 1, 4096, 0];
        let operations: Vec<_> =
            (1..).zip(reads).map(|(sequence, reads)| submission(sequence, commit(reads))).collect();
        let (site, session) = (SiteId::new(0, 0), SessionId(1));
        let batch = Batch { site, incarnation: Incarnation(1), session, low: 1, operations };
        mailbox.ask(ClientId(5), Request::Batch(batch.clone()), None).expect("there is room");
        mailbox.ask(ClientId(6), Request::Open, None).expect("there is room");
        let parts: Vec<_> = std::iter::from_fn(|| mailbox.next_request()).collect();
        let operations = parts.iter().filter_map(|(_, request, _)| match request {
            Request::Batch(batch) => Some(batch.operations.clone()),
            _ => None,
        });
        let operations: Vec<Vec<Submission>> = operations.collect();
        assert_eq!(operations.iter().map(Vec::len).collect::<Vec<_>>(), [4, 3]);
        assert_eq!(operations.concat(), batch.operations, "in order, and before what came later");
        assert_eq!(parts.last().map(|(client, ..)| *client), Some(ClientId(6)));
        assert_eq!(mailbox.lengths().operations, 0);
    }

    #[test]
    fn names_of_calls_are_left_out_for_a_client_that_does_not_read() {
        let call = ObjectKey::new(0, "x".repeat(1000));
        let abort = Abort { calls: vec![call; 256], ..Abort::of(Cause::Depended) };
        let answer = Answer { sequence: 1, outcome: Outcome::Aborted(Box::new(abort)) };
        let (client, load) = (Client::default(), Load::default());
        for _ in 0..1000 {
            client.deliver(Response::Batch { session: SessionId(1), answers: vec![answer.clone()] }, &load);
        }
        let state = client.state();
        assert_eq!(state.weight, load.weight());
        let named = |(response, _): &(Response, usize)| match response {
            Response::Batch { answers, .. } => answers.iter().map(Answer::named_bytes).sum::<usize>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(state.replies.len(), 1000, "each is told its outcome");
        assert!(named(&state.replies[0]) > 0 && named(&state.replies[999]) == 0);
        assert!(state.replies.iter().map(named).sum::<usize>() <= CLIENT_REPLIES * REPLY_BYTES);
    }

    #[test]
    fn treaties_are_not_told_to_a_client_that_does_not_read() {
        let value = Value::Bytes(vec![0u8; 250_000].into());
        let home = TreatyHere { name: "\u{1}treaty/t".into(), value, holders: Vec::new() };
        let told = TreatiesHere { homes: vec![home; 16], ..TreatiesHere::default() };
        let (client, load) = (Client::default(), Load::default());
        for _ in 0..100 {
            client.deliver(Response::Treaties(Box::new(told.clone())), &load);
        }
        let state = client.state();
        assert_eq!((state.replies.len(), state.weight), (100, load.weight()), "each is answered");
        assert!(state.weight <= CLIENT_REPLIES + 100);
        let Some((Response::Treaties(last), 1)) = state.replies.back() else { panic!("it weighs nothing") };
        assert!(last.has_more && last.homes.is_empty());
    }
}
