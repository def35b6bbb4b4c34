//! Sessions of clients: operations get their ids, leave in batches, and are repeated or asked about until they are answered.

use slackline_core::api::{self, Batch, Operation, Read, Request, Submission};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::OperationId;

use crate::oracle::{Op, Origin};
use crate::state::clients::{Open, Session};
use crate::state::post::Purpose;
use crate::state::{Phase, Simulation};
use crate::world::World;

/// From a client to the site of its region, and back, in microseconds.
pub(super) const NEAR: u64 = 400;
/// Requests and responses that are lost between a client and a site while faults strike, in millionths.
const CLIENT_LOSS: u64 = 8_000;
/// The number of answered operations that a client goes on caring about, at most.
const KEPT: u64 = 60;

impl Simulation {
    /// Returns true if the client has a session at a site. If not, it asks for one, unless it has asked lately.
    pub(crate) fn ensure_session(&mut self, world: &mut World, at: usize, site: usize) -> bool {
        self.session(world, at, site).is_some()
    }

    /// The client's session at a site. If it has none, it asks for one, unless it has asked lately.
    fn session(&mut self, world: &mut World, at: usize, site: usize) -> Option<Session> {
        let now = world.now();
        let of_site = &mut self.clients.all[at].sites[site];
        if of_site.session.is_some() || of_site.opening_until > now {
            return of_site.session;
        }

        if of_site.opening_until > 0 {
            // The last try was not answered.
            of_site.suspect_until = now + SECOND;
        }

        of_site.opening_until = now + SECOND;
        self.send(world, at, site, Purpose::Open { client: at, site }, Request::Open);
        None
    }

    /// Sends what a transaction reads.
    pub(crate) fn send_read(&mut self, world: &mut World, at: usize, site: usize, label: u64, read: Read) {
        self.send(world, at, site, Purpose::Read { client: at, label }, Request::Read(Box::new(read)));
    }

    /// Gives an operation an id and puts it into the next batch, if the session's window and the batch have room; its name.
    pub(crate) fn submit(
        &mut self,
        world: &World,
        at: usize,
        site: usize,
        operation: Operation,
        timeout: u64,
    ) -> Option<u32> {
        let session = self.clients.all[at].sites[site].session?;
        if session.is_full() {
            self.raise_low(at, site);
        }

        let of_site = &self.clients.all[at].sites[site];
        if of_site.session?.is_full() || of_site.outbox.len() >= api::BATCH_OPERATIONS {
            return None;
        }
        self.enqueue(world, at, site, operation, timeout)
    }

    /// The same, however far the session's window reaches.
    pub(super) fn enqueue(
        &mut self,
        world: &World,
        at: usize,
        site: usize,
        operation: Operation,
        timeout: u64,
    ) -> Option<u32> {
        let of_site = &mut self.clients.all[at].sites[site];
        let session = of_site.session.as_mut()?;
        let sequence = session.next;
        session.next += 1;
        of_site.outbox.push(Submission { sequence, timeout, operation: operation.clone() });

        self.clients.transactions += u64::from(matches!(operation, Operation::Commit(_) | Operation::AcceptLoss));
        self.clients.submitted += 1;

        let id = OperationId {
            site: self.settings.members[site],
            incarnation: session.incarnation,
            session: session.id,
            sequence,
        };
        let op = self.oracle.register(world.now(), id, operation, timeout, Origin::Client);

        self.oracle.ops[op as usize].sent.again(false);
        let look_at = world.now() + timeout + self.patience(world, at, site);
        self.clients.all[at].open.push(Open { op, look_at, tries: 0, asks_only: false });
        Some(op)
    }

    /// Sends what waits in the outbox for a site.
    pub(crate) fn flush(&mut self, world: &mut World, at: usize, site: usize) {
        let of_site = &mut self.clients.all[at].sites[site];
        if of_site.outbox.is_empty() {
            return;
        }
        let operations = std::mem::take(&mut of_site.outbox);
        let Session { incarnation, id: session, .. } = of_site.session.expect("an outbox belongs to a session");

        // The mark goes with the batch: what is below it the site may forget.
        self.raise_low(at, site);
        let low = self.clients.all[at].sites[site].session.map_or(1, |session| session.low);
        let batch = Batch { site: self.settings.members[site], incarnation, session, low, operations };
        self.send_batch(world, at, site, batch, false);
    }

    /// The client no longer cares about operations that were answered long enough ago. One in doubt holds its mark back, so that the
    /// site keeps what there is to ask about.
    pub(super) fn raise_low(&mut self, at: usize, site: usize) {
        let Some(session) = self.clients.all[at].sites[site].session else { return };
        let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
        let mut low = session.low;
        while low + KEPT < session.next && self.oracle.ops[ops[low as usize - 1] as usize].is_over() {
            low += 1;
        }
        // Not always as soon as it could.
        if (self.rng.one_in(3) || session.is_full())
            && let Some(session) = &mut self.clients.all[at].sites[site].session
        {
            session.low = low;
        }
    }

    /// Sends a batch, to its site or through another one.
    pub(super) fn send_batch(&mut self, world: &mut World, at: usize, through: usize, batch: Batch, reused: bool) {
        let Batch { site, incarnation, session, .. } = batch;
        let site = usize::from(site.region);
        let purpose = Purpose::Batch { client: at, site, incarnation, session, reused };
        self.send(world, at, through, purpose, Request::Batch(batch));
    }

    /// A batch that names one operation under the id that it has. The client cares about nothing below `low`.
    pub(super) fn repeated(&self, op: u32, low: u64) -> Batch {
        let Op { id, timeout, operation, .. } = &self.oracle.ops[op as usize];
        let OperationId { site, incarnation, session, sequence } = *id;
        let submission = Submission { sequence, timeout: *timeout, operation: operation.clone() };
        Batch { site, incarnation, session, low, operations: vec![submission] }
    }

    /// Sends a request, which may be lost on its way while faults strike.
    pub(super) fn send(&mut self, world: &mut World, at: usize, to: usize, purpose: Purpose, request: Request) {
        let arrives = world.now() + self.latency(world, at, to);
        if !self.client_loses() {
            self.ask_site(world, arrives, to, purpose, request);
        }
    }

    /// Asks a site, perhaps through another one, what became of an operation.
    pub(super) fn ask_about(&mut self, world: &mut World, at: usize, through: usize, op: u32) {
        let operation = self.oracle.ops[op as usize].id;
        self.send(world, at, through, Purpose::Ask { op }, Request::Ask { operation });
    }

    /// Repeats, or asks about, operations that were not answered in time.
    pub(super) fn see_to_open(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        let mut position = 0;
        while position < self.clients.all[at].open.len() {
            let open = self.clients.all[at].open[position];
            let op = &self.oracle.ops[open.op as usize];
            if op.told.is_some() {
                self.clients.all[at].open.swap_remove(position);
                continue;
            }
            position += 1;
            if open.look_at > now {
                continue;
            }

            let (site, timeout, is_unsent) = (op.site, op.timeout, op.sent.times == 0);
            if open.tries == 0 {
                self.clients.all[at].sites[site].suspect_until = now + SECOND;
            }

            // The operation's own site is asked by another one, or repeated to, if the way there is cut.
            let through = if self.rng.one_in(3) { self.rng.below(world.len() as u64) as usize } else { site };
            // A question about what was never sent would withdraw it: only who means to do that asks first.
            if open.asks_only || self.rng.one_in(3) && !is_unsent {
                self.probes.hit(if through != site { "client: asks through another site" } else { "client: asks" });
                self.ask_about(world, at, through, open.op);
            } else {
                self.repeat(world, at, through, open.op);
            }

            let patience = self.patience(world, at, through) + timeout.min(SECOND);
            let open = &mut self.clients.all[at].open[position - 1];
            open.tries += 1;
            open.look_at = now + (patience << open.tries.min(3)).min(8 * SECOND);
        }
    }

    /// Sends an operation again, under its id.
    fn repeat(&mut self, world: &mut World, at: usize, through: usize, op: u32) {
        let Op { id, site, .. } = self.oracle.ops[op as usize];
        let relayed = through != site;
        self.probes.hit(if relayed { "client: repeats through another site" } else { "client: repeats" });

        self.oracle.ops[op as usize].sent.again(relayed);
        let current = self.clients.all[at].sites[site].session.filter(|session| session.has(id));
        let batch = self.repeated(op, current.map_or(1, |session| session.low));
        self.send_batch(world, at, through, batch, false);
    }

    /// Returns the longest time that an answer may take besides the time that the operation may wait.
    pub(super) fn patience(&mut self, world: &World, at: usize, site: usize) -> u64 {
        let home = self.clients.all[at].home;
        300 * MILLISECOND + 3 * world.delay(home, site) + self.rng.below(700 * MILLISECOND)
    }

    /// Returns the time for which a request or a response of a client is under way, in microseconds.
    pub(super) fn latency(&mut self, world: &World, at: usize, site: usize) -> u64 {
        let far = world.delay(self.clients.all[at].home, site);
        NEAR + far + self.rng.below(1 + far / 10 + NEAR)
    }

    /// Returns true if a request or response between a client and a site is lost.
    pub(super) fn client_loses(&mut self) -> bool {
        self.phase == Phase::Faults && self.rng.below(1_000_000) < CLIENT_LOSS
    }
}
