//! What clients are told: it is judged by the oracle and by what they were told before, and they act on it.

use slackline_core::api::{Answer, Hold, NoSeat, Operation, Outcome, Refusal, Response, Shown, UnknownReason};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{GrantId, OperationId};
use slackline_core::machine::ClientId;
use slackline_core::session::as_kept;

use crate::clock::EPSILON;
use crate::invariants::answers::{self, Standing, is_definitive, is_of_one_copy};
use crate::invariants::{limit, once, refusal, survival};
use crate::oracle::Op;
use crate::quotas::{KINDS, PLENTY, PRUNED, TREE, is_elastic};
use crate::state::Simulation;
use crate::state::clients::{Holding, Open, Session};
use crate::state::post::Purpose;
use crate::state::timer::Timer;
use crate::world::World;

/// Whoever was granted tokens so late stood in line: no round trip takes as long.
const IN_LINE: u64 = 500 * MILLISECOND;

impl Simulation {
    /// A response leaves a site for its client.
    pub(crate) fn mail_out(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        let purpose = self.post.purpose(client);
        let at = match purpose {
            Purpose::Open { client, .. } | Purpose::Batch { client, .. } | Purpose::Read { client, .. } => client,
            // A stream delivers in order.
            Purpose::Caller { wire, .. } => {
                let arrives = self.caller_mail(world, wire, site);
                return self.deliver_at(world, arrives, client, response);
            }
            _ => site,
        };
        let delay = self.latency(world, at, site);
        // The driver is at the site itself.
        let of_driver = matches!(purpose, Purpose::Drain { .. });
        if self.client_loses() && !of_driver {
            return;
        }
        self.deliver_at(world, world.now() + delay, client, response);
    }

    /// Has a response reach its client at that time.
    fn deliver_at(&mut self, world: &mut World, at: u64, client: ClientId, response: Response) {
        let slot = self.post.put(client, response);
        world.wake_at(at, Timer::Mail(slot).token());
    }

    /// A response reaches its client.
    pub(crate) fn delivered(&mut self, world: &mut World, client: ClientId, response: Response) {
        let purpose = self.post.purpose(client);
        match (purpose, response) {
            (Purpose::Open { client, site }, Response::Opened { incarnation, session, .. }) => {
                // What is opened while all are silent may be forgotten before it is used.
                let is_stale = self.settings.is_silent(world.now());
                let of_site = &mut self.clients.all[client].sites[site];
                if of_site.session.is_none() {
                    of_site.session = Some(Session { is_stale, ..Session::new(incarnation, session) });
                    of_site.opening_until = 0;
                    self.oracle.sessions.entry((site, incarnation, session)).or_default();
                }
            }
            (Purpose::Open { client, site }, Response::NotOpened(refusal)) => {
                self.count_refusal(refusal);
                let of_site = &mut self.clients.all[client].sites[site];
                of_site.opening_until = 0;
                of_site.suspect_until = world.now() + SECOND / 2;
            }
            (Purpose::Batch { client, site, incarnation, session, reused }, Response::Batch { answers, .. }) => {
                for Answer { sequence, outcome } in answers {
                    let ops = &self.oracle.sessions[&(site, incarnation, session)];
                    let Some(&op) = ops.get(sequence as usize - 1) else { continue };
                    if reused {
                        self.answered_reuse(op, &outcome);
                    } else {
                        self.answered_with(world, client, op, outcome, false);
                    }
                }
            }
            (Purpose::Ask { op }, Response::Asked { outcome, .. }) => {
                let client =
                    (0..self.clients.all.len()).find(|&at| self.clients.all[at].open.iter().any(|o| o.op == op));
                self.answered_with(world, client.unwrap_or(0), op, outcome, true);
            }
            (Purpose::Read { label, .. }, Response::Read(reading)) => self.read(world, label, *reading),
            (Purpose::Show { book }, Response::Shown(shown)) => self.shown(client, book, shown),
            (Purpose::Audit { book, site }, Response::Shown(shown)) => self.audited_show(world, book, site, shown),
            (Purpose::Drain { site }, Response::Drained) => self.drained(world, site),
            (Purpose::Caller { wire, stream }, response) => self.caller_receives(world, wire, stream, response),
            (Purpose::Look, Response::Status(status)) if !status.clock.is_trusted => {
                self.probes.hit("site: clock distrusted");
            }
            _ => {}
        }
    }

    /// A count reaches its client: it must lie between what was least and most in use meanwhile.
    fn shown(&mut self, request: ClientId, book: usize, shown: Result<Box<Shown>, Refusal>) {
        let counting = self.oracle.end_counting(book, request);
        let Ok(shown) = shown else { return };
        let exact = shown.in_use_min == shown.in_use_max;
        self.probes.hit(if exact { "show: exact" } else { "show: an interval" });
        if !shown.missing.is_empty() {
            self.probes.hit("show: sites missing");
        }
        let Some(counting) = counting else { return };

        // Tokens of lost incarnations count as in use; when they were lost is not looked at.
        let lost = self.oracle.sums(book).ok().flatten().map_or(0, |(_, sums)| sums.lost);
        let (least, most) = (i128::from(shown.in_use_min), i128::from(shown.in_use_max));
        let in_lost = !self.oracle.lost.is_empty();
        let sound = least <= counting.most + lost && most >= counting.least && least <= most;

        // An incarnation may have been lost in the midst of the count, which then has some of its tokens on both sides.
        if !sound && !in_lost {
            let name = self.oracle.books[book].name.clone();
            let what = format!("{counting:?} were in use while show counted {shown:?}");
            self.oracle.blame("show tells the truth", Err(what), &name);
        }
    }

    /// An answer to an id that was used again for other content: nothing may have been done.
    fn answered_reuse(&mut self, op: u32, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome {
            self.count_refusal(*refusal);
        }
        if once::is_done(outcome) {
            let about = self.oracle.ops[op as usize].id;
            let what = format!("its id was used again for other content, and answered {outcome:?}");
            self.oracle.blame(once::NAME, Err(what), about);
        }
    }

    /// An answer about an operation reaches its client.
    fn answered_with(&mut self, world: &mut World, at: usize, op: u32, outcome: Outcome, asked: bool) {
        let now = world.now();
        let id = self.oracle.ops[op as usize].id;
        let site = self.oracle.ops[op as usize].site;
        let current = self.clients.all.iter().find_map(|client| client.sites[site].session.filter(|of| of.has(id)));
        self.judge_answer(now, op, &outcome, current);

        // Of the only copy that was sent, the site says that it did nothing.
        let known = &self.oracle.ops[op as usize];
        let is_first = known.told.is_none();
        let is_only_copy = known.sent.times == 1 && !known.sent.relayed && !asked;
        let is_kept = current.is_some_and(|session| id.sequence >= session.floor);
        let outcome = match outcome {
            Outcome::Unknown(UnknownReason::Forgotten) if is_only_copy && is_kept => {
                Outcome::Refused(Refusal::SessionEnded)
            }
            outcome => outcome,
        };
        let did_nothing = is_only_copy && is_of_one_copy(&outcome);
        // Of one whose session the client has closed, or whose window it has moved on, it is told only that it is not known yet.
        if is_only_copy && (is_kept || outcome != Outcome::Unknown(UnknownReason::Undecided)) {
            self.judge_refusal(world, op, &outcome);
        }
        self.note_trouble(now, at, op, &outcome);

        // What is known for good ends the operation. Anything else makes the client look at it again soon.
        let is_final = did_nothing || ends_doubt(&outcome, asked);
        if !is_first || !is_final {
            if !is_final && let Some(open) = self.clients.all[at].open.iter_mut().find(|open| open.op == op) {
                open.look_at = open.look_at.min(now + 500 * MILLISECOND);
            }
            return;
        }

        if asked {
            self.probes.hit("unknown: resolved by asking");
        }
        self.oracle.ops[op as usize].told = Some(as_kept(outcome.clone()));
        self.clients.all[at].open.retain(|open| open.op != op);

        // What its site did not take it may send elsewhere: to the client that is a refusal.
        let outcome = match outcome {
            Outcome::Unknown(_) if did_nothing => Outcome::Refused(Refusal::NotReady),
            outcome => outcome,
        };
        self.conclude(world, at, op, &outcome);
    }

    /// Judges an answer that has reached a client by what that was told before, by what is durable, and by what the client has
    /// a right to know.
    fn judge_answer(&mut self, now: u64, op: u32, outcome: &Outcome, current: Option<Session>) {
        // The names of calls are told once, and not kept.
        let outcome = &as_kept(outcome.clone());
        let known = &self.oracle.ops[op as usize];
        let (id, site) = (known.id, known.site);
        let low = current.filter(|session| !session.is_stale).map(|session| session.low.max(session.floor));

        // Of a caller in doubt the product's client promises to keep the outcome from being forgotten.
        let is_wanted = self.callers.wanted.get(&op).is_some_and(|until| now < *until);
        let standing = Standing {
            home_lost: self.has_lost_home(&known.operation),
            lost: self.oracle.lost.contains(&(site, id.incarnation)),
            // A session that left no record may be taken for one whose records are forgotten.
            // And a creation that was undecided cannot be told of once what was created is deleted.
            forgotten: !is_wanted && low.is_none_or(|low| id.sequence < low)
                || known.durable == Some(Outcome::Unknown(UnknownReason::Forgotten))
                || !self.oracle.recorded(site, id.incarnation, id.session, 1),
        };

        let found = answers::check(known.told.as_ref(), outcome, standing);
        let survived = survival::check_answer(known.durable.as_ref(), outcome);
        let created = known.book.map(|book| &self.oracle.books[book]).filter(|book| !book.deletable);
        let created = created.and_then(|book| book.created);
        let exists = answers::check_known(created, known.sent.first, outcome);
        self.oracle.blame(answers::NAME, found, id);
        self.oracle.blame(answers::NAME, exists, id);

        // Only what is recorded is looked for: a session that ended has no records any more.
        if !standing.lost && !standing.forgotten {
            self.oracle.blame(survival::NAME, survived, id);
        }
        if let Some(low) = low.filter(|_| !standing.lost) {
            let recorded = self.oracle.recorded(site, id.incarnation, id.session, low);
            self.oracle.blame(survival::NAME, survival::check_session(recorded, outcome), id);
        }
    }

    /// True if a home of a transaction has lost its storage, or has left.
    pub(crate) fn has_lost_home(&self, operation: &Operation) -> bool {
        let Operation::Commit(transaction) = operation else { return false };
        let is_lost = |at: usize| self.is_gone(at) || self.oracle.lost.iter().any(|(site, _)| *site == at);
        transaction.homes.iter().any(|home| is_lost(usize::from(home.region)))
    }

    /// A client notes what an answer says of its session and of the site.
    fn note_trouble(&mut self, now: u64, at: usize, op: u32, outcome: &Outcome) {
        let Op { id, site, .. } = self.oracle.ops[op as usize];
        match outcome {
            Outcome::Refused(refusal) => {
                self.count_refusal(*refusal);
                if matches!(refusal, Refusal::SessionEnded | Refusal::NotReady | Refusal::StorageFull) {
                    let of_site = &mut self.clients.all[at].sites[site];
                    of_site.suspect_until = of_site.suspect_until.max(now + SECOND / 2);
                }
                if *refusal == Refusal::SessionEnded {
                    self.drop_session(at, site, id);
                }
            }
            Outcome::Unknown(doubt) => {
                self.probes.hit(&format!("unknown: {}", doubt.code()));
                if *doubt == UnknownReason::IncarnationLost {
                    self.drop_session(at, site, id);
                }
            }
            _ => {}
        }
    }

    /// The session of an operation is no more: what waits to be sent in it is not sent.
    fn drop_session(&mut self, at: usize, site: usize, id: OperationId) {
        let of_site = &mut self.clients.all[at].sites[site];

        if of_site.session.is_some_and(|session| session.has(id)) {
            of_site.session = None;
            // They were never sent; their ids are not used again.
            let unsent: Vec<u64> = of_site.outbox.drain(..).map(|submission| submission.sequence).collect();
            let ops = self.oracle.sessions[&(site, id.incarnation, id.session)].clone();
            for sequence in unsent {
                let op = ops[sequence as usize - 1];
                self.clients.all[at].open.retain(|open| open.op != op);
                let refused = Outcome::Refused(Refusal::SessionEnded);
                self.oracle.ops[op as usize].told = Some(refused);
            }
        }
    }

    /// What a client makes of the definitive answer to an operation.
    fn conclude(&mut self, world: &mut World, at: usize, op: u32, outcome: &Outcome) {
        let now = world.now();
        let known = &self.oracle.ops[op as usize];
        let (operation, id, book, first_sent) = (known.operation.clone(), known.id, known.book, known.sent.first);
        self.oracle.blame(refusal::NAME, refusal::check_in_line(&operation, outcome), id);

        match (&operation, outcome) {
            (Operation::Commit(_), outcome) => self.transaction_ended(world, op, outcome),
            (Operation::AcceptLoss, Outcome::LossAccepted) => self.probes.hit("object: loss accepted"),
            (Operation::Acquire { waits: true, .. }, Outcome::Refused(Refusal::DeadlinePassed)) => {
                self.probes.hit("operation: in line until its time was up");
            }
            (Operation::Acquire { amount, hold, waits, .. }, Outcome::Granted { grant, lasts }) => {
                if *waits && now > first_sent + IN_LINE {
                    self.probes.hit("operation: granted after a time in line");
                }
                if book.is_some_and(|book| self.oracle.above(book).is_some()) {
                    self.probes.hit("tree: granted at several levels");
                }
                if book.is_some_and(|book| self.oracle.books[book].refills) {
                    return self.probes.hit("operation: granted by a quota that refills");
                }
                let tracked = (*hold != Hold::Counted).then_some(*grant);
                self.granted(now, at, op, *amount, (tracked, *lasts));
            }
            (Operation::Release { .. }, Outcome::Refused(Refusal::Refills)) => {}
            (Operation::Release { amount, quota }, outcome) => match outcome {
                Outcome::Released { .. } => self.probes.hit("operation: released by amount"),
                // Its limit was raised, and the site may not know.
                Outcome::Refused(Refusal::AboveOut { .. }) if is_elastic(quota) => {
                    self.hold_again(now, at, op, *amount);
                }
                Outcome::Refused(Refusal::AboveOut { .. }) if *amount <= PLENTY.limit || quota == "huge" => {
                    let what = "a client released what it held, and was told that it is above what is out";
                    self.oracle.blame(limit::NAME, Err(what.to_owned()), id);
                }
                // It was meant to be.
                Outcome::Refused(Refusal::AboveOut { .. }) => {}
                // Not done, so the tokens are still this client's.
                Outcome::Refused(_) => self.hold_again(now, at, op, *amount),
                _ => {}
            },
            (Operation::ExtendGrant { .. }, Outcome::Extended { .. }) => self.probes.hit("operation: extended"),
            (Operation::ReleaseGrant { grant, used: 1.. }, Outcome::Released { .. }) => {
                self.probes.hit("operation: settled");
                // A release of the rest that was sent after it may have been refused while this was in doubt.
                self.release_grant_again(world, at, *grant);
            }
            (Operation::ReleaseGrant { grant, .. }, outcome) => match outcome {
                Outcome::Released { .. } => self.probes.hit("operation: released by grant"),
                Outcome::Refused(Refusal::UnknownGrant | Refusal::QuotaDeleted) => {
                    self.judge_unknown(op, *grant, outcome)
                }
                // Not done either.
                Outcome::Refused(_) => self.release_grant_again(world, at, *grant),
                _ => {}
            },
            (Operation::Create { .. }, Outcome::Created { .. }) => self.created(now, book),
            (Operation::SetLimit { quota, .. }, Outcome::LimitSet { excess, .. }) => {
                if TREE.iter().any(|kind| kind.name == quota) {
                    self.probes.hit("tree: limit set");
                }
                self.probes.hit(match excess {
                    0 => "operation: limit set",
                    _ => "operation: limit set below what is in use",
                });
            }
            (Operation::Reclaim { .. }, Outcome::Reclaimed { brought, .. }) => self.probes.hit(match brought {
                0 => "operation: reclaimed nothing",
                _ => "operation: reclaimed",
            }),
            (Operation::Seat { .. }, Outcome::Seated { .. }) => self.probes.hit("members: a site joined"),
            (Operation::Seat { .. }, Outcome::Refused(Refusal::NoSeat { why: NoSeat::Unrecorded, .. })) => {
                self.probes.hit("members: refused as the last change is not recorded");
            }
            (Operation::Delete { quota }, Outcome::Deleted) => {
                self.probes.hit(if quota == PRUNED { "tree: deleted" } else { "operation: deleted" });
            }
            _ => {}
        }
    }

    /// An acquire was granted: the client holds the tokens, tracked under a grant or not, for as long as `lasts` says.
    fn granted(&mut self, now: u64, at: usize, op: u32, amount: i64, (tracked, lasts): (Option<GrantId>, Option<u64>)) {
        let (first_sent, book) = (self.oracle.ops[op as usize].sent.first, self.oracle.ops[op as usize].book);
        // It counts from when it first sent the request, and stops early by what the two clocks may err, so that it never uses
        // what its site has taken back.
        let until = lasts.map(|lasts| first_sent + lasts.saturating_sub(EPSILON as u64));

        let hold = self.oracle.hold(now, op, amount, until);

        let kind = KINDS.iter().chain(&TREE).find(|kind| Some(self.oracle.book(kind.name)) == book);
        let mean = kind.map_or(2_000, |kind| kind.held) * MILLISECOND;
        // A few timed holds are given back early, the others end by themselves.
        let early = until.is_none() || self.rng.one_in(3);
        let release_at = if early { now + self.rng.below(2 * mean) } else { u64::MAX };
        self.clients.all[at].holdings.push(Holding { op, hold, amount, tracked, until, release_at });
    }

    /// A quota was created: from now on nobody may be told that it is unknown.
    fn created(&mut self, now: u64, book: Option<usize>) {
        self.probes.hit("operation: created");
        let generation = book.and_then(|book| {
            let book = &mut self.oracle.books[book];
            book.created.get_or_insert(now);
            book.decisions.newest().map(|(_, table)| table.generation)
        });

        if generation > Some(1) {
            self.probes.hit("operation: deleted and created again");
        }
        if book.is_some_and(|book| self.oracle.books[book].life > 0) {
            self.probes.hit("quota: forgotten and created again");
        }
    }

    /// A release was refused for good: the client holds the tokens again.
    pub(crate) fn hold_again(&mut self, now: u64, at: usize, release: u32, amount: i64) {
        let known = &self.oracle.ops[release as usize];
        let book = known.book.expect("a release names a quota");
        if amount > KINDS.iter().find(|kind| kind.name == self.oracle.books[book].name).map_or(40, |kind| kind.limit) {
            return;
        }
        // Any grant of the quota tells which generation it is; this quota is never deleted.
        let table = self.oracle.books[book].decisions.newest().map_or(0, |(_, table)| table.generation);
        self.oracle.ops[release as usize].generation = table;
        let hold = self.oracle.hold(now, release, amount, None);

        let release_at = now + self.rng.below(SECOND);
        let holding = Holding { op: release, hold, amount, tracked: None, until: None, release_at };
        self.clients.all[at].holdings.push(holding);
    }

    /// A release of a grant was refused for good: the client holds the tokens again, unless they are over.
    fn release_grant_again(&mut self, world: &mut World, at: usize, grant: GrantId) {
        let now = world.now();
        let Some(op) = self.oracle.grant(grant) else { return };
        let known = &self.oracle.ops[op as usize];
        let Some(tracked) = known.tracked else { return };
        let amount = tracked.amount;
        if tracked.ended || tracked.until.is_some_and(|until| until <= now) {
            return;
        }

        // Another release of the same grant may still be carried out.
        let releases = |open: &Open| {
            let operation = &self.oracle.ops[open.op as usize].operation;
            matches!(operation, Operation::ReleaseGrant { grant: of, .. } if *of == grant)
        };
        let client = &self.clients.all[at];
        let is_held = client.holdings.iter().any(|holding| holding.tracked == Some(grant));
        if is_held || client.open.iter().any(releases) {
            return;
        }
        let until = tracked.until;
        let hold = self.oracle.hold(now, op, amount, until);
        let release_at = now + self.rng.below(SECOND);
        let holding = Holding { op, hold, amount, tracked: Some(grant), until, release_at };
        self.clients.all[at].holdings.push(holding);
    }

    /// A grant is said not to be out: is that so?
    fn judge_unknown(&mut self, release: u32, grant: GrantId, outcome: &Outcome) {
        let Some(op) = self.oracle.grant(grant) else { return };
        let known = &self.oracle.ops[op as usize];
        let lost = self.oracle.lost.contains(&(known.site, known.id.incarnation));
        let deletable = known.book.is_some_and(|book| self.oracle.books[book].deletable);
        let ended = known.tracked.is_none_or(|tracked| tracked.ended);
        if lost || deletable || ended {
            return;
        }
        let about = self.oracle.ops[release as usize].id;
        self.oracle.blame(survival::NAME, survival::check_release(outcome), about);
    }

    fn count_refusal(&mut self, refusal: Refusal) {
        match refusal {
            // Its bounds are higher than what a run reaches; they have tests of their own.
            Refusal::Overloaded => {}
            // Operators here say too much, never too little.
            Refusal::BelowReleased { at_least } => {
                let found =
                    Err(format!("an operator's true word is refused: at least {at_least} are said to be in use"));
                self.oracle.blame(refusal::NAME, found, "a word about lost storage");
            }
            Refusal::Exhausted { level: 1.., .. } => self.probes.hit("tree: a level above is short"),
            Refusal::Exhausted { .. } => self.probes.hit("refused: exhausted"),
            // Most of these only sound requests meet; see `joins`.
            Refusal::NoSeat { .. } => {}
            _ => self.probes.hit(&format!("refused: {}", refusal.code())),
        }
    }
}

/// Returns true if a client that is told this asks no more: nothing that comes later can differ, or nobody can know.
fn ends_doubt(outcome: &Outcome, asked: bool) -> bool {
    match outcome {
        Outcome::Unknown(UnknownReason::IncarnationLost | UnknownReason::Forgotten | UnknownReason::HomeLost) => true,
        // Who asks is told what is durable.
        Outcome::Refused(Refusal::StorageFull) if asked => true,
        outcome => is_definitive(outcome),
    }
}
