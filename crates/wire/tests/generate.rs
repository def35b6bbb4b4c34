//! Random values of everything that travels, from a seed.

use slackline_core::api::{
    Agreement, Answer, Batch, Claim, ClauseHere, ClockStatus, Forecast, Hold, LeafHere, Listed, NoSeat, Operation,
    Outcome, Parent, PeerStatus, Read, Readiness, Reading, Refusal, Request, Response, SeatChange, Shown, ShownSite,
    Status, Submission, Synchronization, SynchronizationCause, TreatiesHere, TreatyHere, UnknownReason, Work,
};
use slackline_core::avantan::subset;
use slackline_core::avantan::{
    Ballot, Charter, Lifecycle, Line, Message, NoVote, Reclaimed, Report, Roster, Row, Scope, Seat, Settled, Table,
    Value,
};
use slackline_core::id::{GrantId, Incarnation, Life, OperationId, SessionId, SiteId, SiteSet};
use slackline_core::object::message::{
    self, Fetch, Fetched, Gave, Given, Known, Offer, Prepare, Reported, Says, Vote, Wanted,
};
use slackline_core::object::trace::{End, Event, Proof, Share, Step, Trace};
use slackline_core::object::treaty::{Note, Term, Tree};
use slackline_core::object::{
    Abort, Cause, Change, Dependency, Derived, Home, ObjectKey, Origin, Part, Rank, Seen, Span, Transaction,
    Value as Content, Version,
};
use slackline_core::peer::quota::{Backlog, Digest, Forget, Forgotten, QuotaMessage, Rounds, Tally};
use slackline_core::peer::{Body, PeerMessage, RelayMessage, SiteMessage};
use slackline_core::right::{Start, WarrantyNumber};

/// A small generator of random values.
pub(crate) struct Generator(u64);

/// How many kinds of each value there are, so that a test can go through them all.
pub(crate) const REQUESTS: u64 = 12;
pub(crate) const RESPONSES: u64 = 12;
pub(crate) const BODIES: u64 = 14;

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Small, large and extreme numbers.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(3),
            1 => self.below(1_000),
            2 => u64::MAX - self.below(2),
            _ => self.next(),
        }
    }

    fn amount(&mut self) -> i64 {
        match self.below(5) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => self.number() as i64,
        }
    }

    fn incarnation(&mut self) -> Incarnation {
        Incarnation(self.number() as u32)
    }

    fn site(&mut self) -> SiteId {
        SiteId::new(self.number() as u16, self.number() as u16)
    }

    fn name(&mut self) -> String {
        let characters = ['a', 'Z', '0', '-', '\0', '"', 'é', '😀'];
        (0..self.below(6)).map(|_| characters[self.below(8) as usize]).collect()
    }

    fn several<T>(&mut self, most: u64, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| one(self)).collect()
    }

    fn grant(&mut self) -> GrantId {
        GrantId { site: self.site(), incarnation: self.incarnation(), number: self.number() }
    }

    fn operation_id(&mut self) -> OperationId {
        OperationId {
            site: self.site(),
            incarnation: self.incarnation(),
            session: SessionId(self.number()),
            sequence: self.number(),
        }
    }

    fn operation(&mut self) -> Operation {
        let (quota, amount) = (self.name(), self.amount());
        match self.below(12) {
            0 => Operation::Acquire { quota, amount, hold: Hold::Counted, waits: false },
            1 => Operation::Acquire { quota, amount, hold: Hold::Open, waits: true },
            2 => Operation::Acquire { quota, amount, hold: Hold::For(self.number()), waits: false },
            3 => Operation::Release { quota, amount },
            4 => Operation::ReleaseGrant { grant: self.grant(), used: amount },
            9 => Operation::ExtendGrant { grant: self.grant(), micros: self.number() },
            5 => {
                // A request does not tell the generation of the one above it.
                let mut charter = self.charter();
                charter
                    .parent
                    .iter_mut()
                    .for_each(|parent| *parent = Parent { length: parent.length.max(1), generation: 0 });
                Operation::Create { quota, limit: amount, charter }
            }
            6 => Operation::AcceptLoss,
            11 => Operation::Seat { site: self.site(), change: self.seat_change(), label: self.name() },
            7 => Operation::Commit(Box::new(self.transaction())),
            8 => Operation::SetLimit { quota, limit: amount },
            10 => {
                let mut lost = self.several(3, |random| (random.site(), random.incarnation()));
                lost.push((self.site(), self.incarnation()));
                Operation::Reclaim { quota, lost, in_use: amount }
            }
            _ => Operation::Delete { quota },
        }
    }

    pub(crate) fn transaction(&mut self) -> Transaction {
        let homes = self.several(3, |random| Home {
            region: random.number() as u16,
            incarnation: random.incarnation(),
            part: random.part(),
        });
        Transaction { homes, max_wait: self.number(), origin: self.origin() }
    }

    fn part(&mut self) -> Part {
        Part {
            reads: self.several(4, |random| (random.name(), random.number())),
            scans: self.several(2, |random| (random.span(), random.several(4, Self::number))),
            writes: self.several(4, |random| (random.name(), random.change())),
            covers: self.several(2, Self::key),
            forgets: self.several(2, Self::key),
            depends: self.several(2, |random| (random.subject(), random.key())),
            notes: self.several(2, Self::leaf),
            relies: self.several(2, Self::key),
        }
    }

    fn leaf(&mut self) -> Note {
        let tree = match self.below(3) {
            0 => Tree::Flat,
            1 => Tree::Near,
            _ => Tree::Given(
                self.several(2, |random| random.several(3, |random| random.number() as u16).into_iter().collect()),
            ),
        };
        let term = |random: &mut Self| Term { name: random.name(), is_log: random.flag(), weight: random.amount() };
        Note {
            treaty: self.key(),
            nonce: self.number(),
            homes: self.several(3, |random| (random.number() as u16, random.incarnation())),
            tree,
            clauses: self.several(3, |random| (random.number() as u32, random.several(2, term), random.amount())),
        }
    }

    fn says(&mut self) -> Says {
        match self.below(7) {
            0 => Says::Ask { token: self.number(), clauses: self.several(4, |random| random.number() as u32) },
            1 => Says::Report {
                token: self.number(),
                lines: self.several(3, |random| Reported {
                    clause: random.number() as u32,
                    slack: random.amount(),
                    velocity: random.amount(),
                    noise: random.amount(),
                }),
            },
            2 => Says::Give {
                awaited: self.flag(),
                gives: self.several(3, |random| Wanted {
                    clause: random.number() as u32,
                    to: random.number() as u16,
                    amount: random.number(),
                    rate: random.number(),
                }),
            },
            3 => Says::Gifts {
                gifts: self.several(3, |random| Gave {
                    clause: random.number() as u32,
                    total: u128::from(random.number()) << 40,
                    rate: random.number(),
                }),
            },
            4 => Says::Retract { is_question: self.flag() },
            _ => Says::Retracted,
        }
    }

    fn treaties_here(&mut self) -> TreatiesHere {
        let clause = |random: &mut Self| ClauseHere {
            clause: random.number() as u32,
            value: random.amount(),
            bound: random.amount(),
            velocity: random.amount(),
            noise: random.amount(),
            rate: random.amount(),
        };
        TreatiesHere {
            homes: self.several(2, |random| TreatyHere {
                name: random.name(),
                value: random.content(),
                holders: random.several(3, Self::site),
            }),
            leaves: self.several(2, |random| LeafHere {
                treaty: random.key(),
                nonce: random.number(),
                clauses: random.several(2, clause),
                rebalances: random.number(),
                gifts: random.number(),
                extensions: random.number(),
            }),
            synchronizations: self.several(2, |random| Synchronization {
                at: random.amount(),
                cause: match random.number() % 3 {
                    0 => SynchronizationCause::Slack,
                    1 => SynchronizationCause::Retraction,
                    _ => SynchronizationCause::Refused,
                },
                clause: random.number() as u32,
                sites: random.several(3, Self::site),
                waited: random.number(),
            }),
            has_more: self.flag(),
        }
    }

    fn subject(&mut self) -> Dependency {
        if self.flag() { Dependency::Name(self.name()) } else { Dependency::Span(self.span()) }
    }

    fn span(&mut self) -> Span {
        Span { prefix: self.name(), after: self.name(), limit: self.number() as u32 }
    }

    fn change(&mut self) -> Change {
        match self.below(3) {
            0 => Change::Put(self.content()),
            1 => Change::Delete,
            _ => Change::Add(self.amount()),
        }
    }

    fn content(&mut self) -> Content {
        match self.below(3) {
            0 => Content::Bytes(self.several(9, |random| random.next() as u8).into()),
            1 => Content::Counter(self.amount()),
            _ => Content::Derived(Derived {
                bytes: self.several(9, |random| random.next() as u8).into(),
                homes: self.several(3, |random| (random.number() as u16, random.incarnation())),
            }),
        }
    }

    fn key(&mut self) -> ObjectKey {
        ObjectKey::new(self.number() as u16, self.name())
    }

    fn seen(&mut self) -> Seen {
        let version = Version { incarnation: self.incarnation(), number: self.number() };
        Seen { version, value: self.flag().then(|| self.content()) }
    }

    fn abort(&mut self) -> Abort {
        Abort {
            cause: Cause::numbered(self.below(20) as u8).expect("there are twenty causes"),
            key: self.flag().then(|| self.key()),
            site: self.flag().then(|| self.site()),
            holders: self.several(3, Self::site),
            until: self.flag().then(|| self.amount()),
            calls: self.several(3, Self::key),
        }
    }

    fn rows(&mut self) -> Result<Vec<(String, Seen)>, Abort> {
        if self.flag() { Ok(self.several(4, |random| (random.name(), random.seen()))) } else { Err(self.abort()) }
    }

    fn read(&mut self) -> Read {
        Read {
            token: self.number(),
            gets: self.several(4, Self::key),
            scans: self.several(2, |random| (random.number() as u16, random.span())),
            fresh: self.flag(),
            upkeep: self.flag(),
            timeout: self.number(),
            claim: self.flag().then(|| self.claim()),
        }
    }

    fn origin(&mut self) -> Origin {
        Origin { nonce: self.number(), age: self.number() }
    }

    fn claim(&mut self) -> Claim {
        Claim { origin: self.origin(), writes: self.several(3, Self::key), again: self.flag(), bars: self.flag() }
    }

    fn rank(&mut self) -> Rank {
        Rank { began: self.amount(), nonce: self.number() }
    }

    fn reading(&mut self) -> Reading {
        Reading {
            token: self.number(),
            gets: self.several(4, |random| if random.flag() { Ok(random.seen()) } else { Err(random.abort()) }),
            scans: self.several(2, Self::rows),
            is_whole: self.flag(),
        }
    }

    fn start(&mut self) -> Start {
        Start { incarnation: self.incarnation(), life: Life(self.number()) }
    }

    fn right(&mut self) -> WarrantyNumber {
        WarrantyNumber { start: self.start(), count: self.number() }
    }

    fn rights(&mut self) -> Vec<(String, WarrantyNumber)> {
        self.several(3, |random| (random.name(), random.right()))
    }

    fn participants(&mut self) -> Vec<(SiteId, Incarnation)> {
        self.several(4, |random| (random.site(), random.incarnation()))
    }

    fn given(&mut self) -> Given {
        let seen = self.seen();
        let offer =
            |random: &mut Self| Offer { number: random.right(), expiry: random.amount(), duration: random.number() };
        Given { seen, right: self.flag().then(|| offer(self)) }
    }

    /// What sites say about objects: eleven kinds.
    fn object(&mut self) -> message::Message {
        use message::Message;
        let id = self.operation_id();
        match self.below(14) {
            0 => Message::Fetch(Box::new(Fetch {
                token: self.number(),
                start: self.start(),
                gets: self.several(4, |random| (random.name(), random.number() as u32)),
                scans: self.several(2, Self::span),
                rights: self.flag(),
                patience: self.number(),
                claim: self.flag().then(|| message::Claim {
                    rank: self.rank(),
                    writes: self.several(3, Self::name),
                    bars: self.flag(),
                    ends: self.flag(),
                }),
            })),
            1 => Message::Fetched(Box::new(Fetched {
                token: self.number(),
                start: self.start(),
                gets: self.several(4, |random| if random.flag() { Ok(random.given()) } else { Err(random.abort()) }),
                scans: self.several(2, Self::rows),
                is_whole: self.flag(),
            })),
            2 => Message::Revoke { holder: self.start(), rights: self.rights() },
            3 => Message::Revoked { holder: self.start(), rights: self.rights() },
            4 => Message::Prepare(Box::new(Prepare {
                id,
                deadline: self.amount(),
                participants: self.participants(),
                prepared: SiteSet(self.number()),
                part: self.part(),
                max_wait: self.number(),
                released: (self.start(), self.right()),
                rank: self.rank(),
                is_check: self.flag(),
                is_untimed: false,
            })),
            5 => {
                let vote = match self.below(4) {
                    0 => Vote::Prepared,
                    1 => Vote::Committed,
                    2 => Vote::Refused(Box::new(self.abort())),
                    _ => {
                        let holders = self.several(3, Self::site);
                        Vote::Waiting { name: self.name(), holders, until: self.amount() }
                    }
                };
                Message::Vote { id, vote }
            }
            6 => Message::Decide { id, commit: self.flag() },
            7 => Message::Decided { id },
            8 => Message::Forget { id },
            11 => Message::ProbeCalls { start: self.start(), stamp: self.number(), names: self.several(4, Self::name) },
            12 => {
                Message::AbsentCalls { start: self.start(), stamp: self.number(), names: self.several(4, Self::name) }
            }
            13 => Message::Treaty { treaty: self.key(), nonce: self.number(), says: self.says() },
            9 => Message::Inquire {
                id,
                deadline: self.amount(),
                participants: self.participants(),
                prepared: SiteSet(self.number()),
            },
            _ => {
                let known = [
                    Known::Prepared,
                    Known::KnowsOfLoss,
                    Known::Committed,
                    Known::Refused,
                    Known::Lost,
                    Known::Nothing,
                ];
                Message::Inquired { id, known: known[self.below(6) as usize], prepared: SiteSet(self.number()) }
            }
        }
    }

    pub(crate) fn batch(&mut self) -> Batch {
        Batch {
            site: self.site(),
            incarnation: self.incarnation(),
            session: SessionId(self.number()),
            low: self.number(),
            operations: self.several(8, |random| Submission {
                sequence: random.number(),
                timeout: random.number(),
                operation: random.operation(),
            }),
        }
    }

    pub(crate) fn request(&mut self, kind: u64) -> Request {
        match kind {
            0 => Request::Open,
            1 => Request::Batch(self.batch()),
            2 => Request::Ask { operation: self.operation_id() },
            3 => {
                let (site, incarnation) = (self.site(), self.incarnation());
                Request::Close { site, incarnation, session: SessionId(self.number()) }
            }
            4 => Request::Show { quota: self.name(), timeout: self.number(), local: self.flag() },
            5 => Request::List { after: self.name(), limit: self.number() as u32 },
            6 => Request::Status,
            7 => Request::Read(Box::new(self.read())),
            8 => Request::Explain { operation: self.operation_id() },
            9 => Request::Treaties { treaty: self.flag().then(|| self.key()) },
            10 => Request::Expect(vec![Forecast {
                quota: self.name(),
                tokens: self.number() as i64,
                micros: self.number(),
            }]),
            _ => Request::Drain { within: self.number() },
        }
    }

    fn refusal(&mut self) -> Refusal {
        match self.below(36) {
            0 => Refusal::UnknownQuota,
            1 => Refusal::Exhausted {
                asked: SiteSet(self.number()),
                retry_after: self.flag().then(|| self.number() as u32),
                level: self.number() as u16,
            },
            27 => Refusal::InvalidParent,
            28 => Refusal::NoParent,
            29 => Refusal::ParentDiffers,
            30 => Refusal::MixedRefill,
            31 => Refusal::TooDeep,
            32 => Refusal::HasChildren,
            33 => Refusal::InUse { amount: self.amount() },
            2 => Refusal::InvalidAmount,
            3 => Refusal::InvalidName,
            4 => Refusal::LimitDiffers { limit: self.amount() },
            26 => Refusal::AgreementDiffers { agreement: self.agreement() },
            5 => Refusal::AboveOut { at_most: self.amount() },
            6 => Refusal::UnknownGrant,
            7 => Refusal::QuotaDeleted,
            8 => Refusal::Overloaded,
            9 => Refusal::DeadlinePassed,
            10 => Refusal::Unreachable { missing: SiteSet(self.number()) },
            11 => Refusal::Withdrawn,
            12 => Refusal::OtherContent,
            13 => Refusal::SessionEnded,
            14 => Refusal::NotReady,
            15 => Refusal::AboveLimit { limit: self.amount(), level: self.number() as u16 },
            16 => Refusal::AboveGrant { amount: self.amount() },
            17 => Refusal::Settled,
            18 => Refusal::NoEnd,
            19 => Refusal::IncarnationLives,
            20 => Refusal::NothingLost,
            21 => Refusal::AlsoLost { sites: SiteSet(self.number()) },
            22 => Refusal::AboveLost { at_most: self.amount() },
            23 => Refusal::BelowReleased { at_least: self.amount() },
            24 => Refusal::RefillDiffers { refill: self.number() },
            25 => Refusal::Refills,
            34 => {
                let why = NoSeat::ALL[self.below(NoSeat::ALL.len() as u64) as usize];
                Refusal::NoSeat { why, count: self.number() >> 1 }
            }
            _ => Refusal::StorageFull,
        }
    }

    fn outcome(&mut self) -> Outcome {
        match self.below(16) {
            12 => Outcome::Seated { number: self.number() },
            0 => Outcome::Granted { grant: self.grant(), lasts: None },
            1 => Outcome::Granted { grant: self.grant(), lasts: Some(self.number()) },
            2 => Outcome::Released { amount: self.amount() },
            3 => Outcome::Created { limit: self.amount() },
            4 => Outcome::Deleted,
            5 => Outcome::Unknown(self.doubt()),
            6 => Outcome::Committed { phases: self.number() as u8 },
            7 => Outcome::Aborted(Box::new(self.abort())),
            8 => Outcome::LossAccepted,
            10 => Outcome::Extended { lasts: self.number() },
            9 => Outcome::LimitSet { limit: self.amount(), excess: self.amount() },
            11 => Outcome::Reclaimed { brought: self.amount(), in_use: self.amount() },
            _ => Outcome::Refused(self.refusal()),
        }
    }

    pub(crate) fn response(&mut self, kind: u64) -> Response {
        match kind {
            0 => {
                let (site, incarnation) = (self.site(), self.incarnation());
                Response::Opened { site, incarnation, session: SessionId(self.number()) }
            }
            1 => Response::NotOpened(self.refusal()),
            2 => Response::Batch {
                session: SessionId(self.number()),
                answers: self.several(8, |random| Answer { sequence: random.number(), outcome: random.outcome() }),
            },
            3 => Response::Asked { operation: self.operation_id(), outcome: self.outcome() },
            4 => Response::Closed,
            5 if self.flag() => Response::Shown(Err(self.refusal())),
            5 => Response::Shown(Ok(Box::new(self.shown()))),
            6 => Response::Listed(self.several(5, |random| Listed {
                name: random.name(),
                limit: random.amount(),
                tokens: random.amount(),
                parent: random.number() as u16,
            })),
            7 => Response::Status(Box::new(self.status())),
            8 => Response::Read(Box::new(self.reading())),
            9 => {
                let trace = if self.flag() { Ok(Box::new(self.trace())) } else { Err(self.doubt()) };
                Response::Explained { operation: self.operation_id(), trace }
            }
            10 => Response::Treaties(Box::new(self.treaties_here())),
            _ => Response::Drained,
        }
    }

    fn doubt(&mut self) -> UnknownReason {
        let doubts = [
            UnknownReason::SiteUnreachable,
            UnknownReason::IncarnationLost,
            UnknownReason::Forgotten,
            UnknownReason::Undecided,
            UnknownReason::HomeLost,
            UnknownReason::NotReady,
            UnknownReason::StorageFull,
        ];
        doubts[self.below(7) as usize]
    }

    fn step(&mut self) -> Step {
        match self.below(8) {
            0 => Step::Asked,
            1 => {
                let holders = self.several(3, Self::site);
                Step::Waits { name: self.name(), holders, until: self.amount() }
            }
            2 => Step::Prepared,
            3 => Step::Committed,
            4 => Step::Refused(Box::new(self.abort())),
            5 => Step::Inquired,
            6 => Step::Undecided,
            _ => Step::Noted,
        }
    }

    fn trace(&mut self) -> Trace {
        let end = match self.below(4) {
            0 => None,
            1 => Some(End::Committed { phases: self.number() as u8 }),
            2 => Some(End::Aborted(Box::new(self.abort()))),
            _ => Some(End::Lost),
        };
        Trace {
            began: self.amount(),
            proved: self.number() as u32,
            rights: self.several(3, |random| {
                let key = ObjectKey { home: random.number() as u16, name: random.name() };
                Proof { key, until: random.amount() }
            }),
            parts: self.several(3, |random| Share {
                site: random.site(),
                reads: random.number() as u32,
                scans: random.number() as u32,
                writes: random.number() as u32,
            }),
            events: self.several(6, |random| Event {
                at: random.number(),
                times: random.number() as u32,
                site: random.site(),
                step: random.step(),
            }),
            left_out: self.number() as u32,
            end: end.map(|end| (self.number(), end)),
        }
    }

    fn agreement(&mut self) -> Agreement {
        if self.flag() { Agreement::Any } else { Agreement::Majority }
    }

    fn shown(&mut self) -> Shown {
        Shown {
            name: self.name(),
            limit: self.amount(),
            agreement: self.agreement(),
            excess: self.amount(),
            in_use_min: self.amount(),
            in_use_max: self.amount(),
            estimate: self.flag().then(|| self.amount()),
            sites: self.several(5, |random| ShownSite {
                site: random.site(),
                tokens: random.amount(),
                set_aside: random.amount(),
                incarnation: random.incarnation(),
                age: random.flag().then(|| random.number()),
            }),
            missing: SiteSet(self.number()),
            work: Work { local: self.number(), rebalances: self.number(), gifts: self.number() },
            released_above: self.amount(),
            refill: self.number(),
        }
    }

    fn status(&mut self) -> Status {
        let readiness = [
            Readiness::Joining,
            Readiness::Confirming,
            Readiness::Ready,
            Readiness::Stale,
            Readiness::Draining,
            Readiness::AwaitingNewStorage,
            Readiness::StorageFull,
        ];
        Status {
            site: self.site(),
            incarnation: self.incarnation(),
            life: Life(self.number()),
            readiness: readiness[self.below(7) as usize],
            waiting_for: self.several(3, Self::site),
            clock: ClockStatus { epsilon: self.number(), error: self.number(), is_trusted: self.flag() },
            peers: self.several(4, |random| PeerStatus {
                site: random.site(),
                up: random.flag(),
                rtt: random.flag().then(|| random.number()),
                offset: random.flag().then(|| random.amount()),
                incarnation: random.incarnation(),
                unrecorded: random.number(),
            }),
            quotas: self.number(),
            unrecorded: self.number(),
            sessions: self.number(),
            membership: self.number(),
            drained: self.flag(),
        }
    }

    fn ballot(&mut self) -> Ballot {
        Ballot { number: self.number(), site: self.site() }
    }

    fn row(&mut self) -> Row {
        Row {
            site: self.site(),
            incarnation: self.incarnation(),
            share: self.number(),
            before: self.amount(),
            after: self.amount(),
            kept: self.amount(),
            away: self.amount(),
        }
    }

    fn value(&mut self) -> Value {
        let lifecycle = match self.below(6) {
            4 => Lifecycle::Seat { site: self.site(), gone: self.flag() },
            0 => Lifecycle::Keep,
            2 => Lifecycle::Resize { limit: self.amount() },
            3 => Lifecycle::Reclaim { brought: self.amount(), in_use: self.amount() },
            1 => Lifecycle::Create { limit: self.amount(), charter: self.charter() },
            _ => Lifecycle::Delete,
        };
        let label = if let Lifecycle::Seat { .. } = lifecycle { self.name().into() } else { Default::default() };
        Value { lifecycle, membership: self.number(), label, rows: self.several(5, Self::row) }
    }

    fn seat_change(&mut self) -> SeatChange {
        use SeatChange::{Drains, Joins, Leaves, Lost, Serves};
        [Joins, Lost, Drains, Serves, Leaves][self.below(5) as usize]
    }

    fn roster(&mut self) -> Roster {
        let mut seats = self.several(4, |random| {
            let gone = random.flag();
            Seat { site: random.site(), since: random.number(), gone, label: random.name().into() }
        });
        seats.push(Seat { site: self.site(), ..Seat::default() });
        seats.sort_by_key(|seat| seat.site);
        seats.dedup_by_key(|seat| seat.site);
        Roster { number: self.number().max(1), seats }
    }

    /// What an entity was created as: often nothing special.
    fn charter(&mut self) -> Charter {
        let parent = |random: &mut Self| Parent { length: random.number() as u16, generation: random.number() as u32 };
        Charter {
            agreement: self.agreement(),
            refill: if self.flag() { self.number() } else { 0 },
            parent: self.flag().then(|| parent(self)),
        }
    }

    fn line(&mut self) -> Line {
        Line {
            site: self.site(),
            incarnation: self.incarnation(),
            share: self.number(),
            held: self.amount(),
            kept: self.amount(),
            away: self.amount(),
            used: self.flag().then(|| self.amount()),
            closing: self.flag(),
            needed: self.amount(),
            wanted: self.amount(),
        }
    }

    fn subset(&mut self) -> subset::Message {
        let (generation, incarnation) = (self.number() as u32, self.incarnation());
        let key = subset::Key { generation, leader: self.site(), incarnation, sequence: self.number() };
        let dead = self.several(3, |random| (random.site(), random.incarnation()));
        match self.below(9) {
            0 => subset::Message::Election { key, gathers: self.flag() },
            1 => subset::Message::Report { key, line: self.line() },
            2 => subset::Message::Busy { key },
            3 => subset::Message::Accept { key, rows: self.several(5, Self::row), dead },
            4 => subset::Message::Accepted { key, dead },
            5 => subset::Message::Refuse { key },
            6 => subset::Message::Lost { key },
            7 => subset::Message::Decided { key, worse: self.flag() },
            _ => subset::Message::Withdraw { key },
        }
    }

    fn table(&mut self) -> Table {
        let mut rows = self.several(5, |random| Settled { instance: random.number(), row: random.row() });
        rows.sort_by_key(|settled| settled.row.site);
        rows.dedup_by_key(|settled| settled.row.site);
        let limit = self.flag().then(|| self.amount().saturating_abs().max(1));
        let mut table = Table::from_parts(self.number() as u32, self.number(), limit, rows);
        if limit.is_some() && self.flag() {
            let reclaimed = Reclaimed {
                instance: self.number(),
                brought: self.amount(),
                in_use: self.amount(),
                all_brought: self.amount(),
                all_in_use: self.amount(),
                known: self.several(3, |random| (random.site(), random.incarnation())),
            };
            table.reclaimed = Some(Box::new(reclaimed));
        }
        if limit.is_some() {
            table.charter = self.charter();
        }
        (table.membership, table.created_in) = (self.number(), self.number());
        table.roster = self.flag().then(|| Box::new(self.roster()));
        match limit {
            Some(_) if self.flag() => table.resized(self.number().max(1), self.amount().saturating_abs()),
            _ => table,
        }
    }

    fn avantan(&mut self) -> Message {
        let (instance, ballot) = (self.number(), self.ballot());
        match self.below(8) {
            0 => {
                let scope = [Scope::Spare, Scope::All, Scope::Closing, Scope::Nothing][self.below(4) as usize];
                Message::Election { instance, ballot, scope, table: self.table() }
            }
            1 => {
                let line = self.line();
                let accepted = self.flag().then(|| (self.ballot(), self.value()));
                Message::Report { instance, ballot, report: Report { line, accepted, promises: self.flag() } }
            }
            2 => Message::Accept { instance, ballot, value: self.value() },
            3 => Message::Accepted { instance, ballot },
            4 => Message::Refuse { instance, promised: ballot },
            5 => Message::Decided { instance, table: self.table() },
            6 => Message::Withdraw { instance, ballot },
            _ => Message::Behind { applied: instance },
        }
    }

    fn digest(&mut self) -> Digest {
        Digest {
            quota: self.name(),
            generation: self.number() as u32,
            applied: self.number(),
            free: self.amount(),
            short: self.amount(),
            first: self.amount(),
            rate: self.number(),
            given: self.wide(),
            given_to: self.incarnation(),
            received: self.wide(),
            received_from: self.incarnation(),
            backlog: self.flag().then(|| self.backlog()),
        }
    }

    fn backlog(&mut self) -> Backlog {
        Backlog {
            here: self.amount(),
            given: self.wide(),
            given_to: self.incarnation(),
            received: self.wide(),
            received_from: self.incarnation(),
        }
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.number()) << 64 | u128::from(self.number())
    }

    fn tally(&mut self) -> Tally {
        Tally {
            site: self.site(),
            generation: self.number() as u32,
            limit: (self.amount(), self.amount()),
            rounds: Rounds { applied: self.number(), is_open: self.flag(), subset: self.several(4, Self::number) },
            tokens: self.amount(),
            held: self.amount(),
            acquired: self.wide(),
            released: self.wide(),
            given: self.several(4, |random| (random.incarnation(), random.wide())),
            received: self.several(4, |random| (random.incarnation(), random.wide())),
            agreement: self.agreement(),
            work: Work { local: self.number(), rebalances: self.number(), gifts: self.number() },
        }
    }

    fn names(&mut self) -> Vec<String> {
        let mut names = self.several(5, Self::name);
        names.sort();
        names.dedup();
        names
    }

    fn forgotten(&mut self) -> Forgotten {
        Forgotten { epoch: self.number(), names: self.names() }
    }

    fn forget(&mut self) -> Forget {
        match self.below(4) {
            0 => {
                let view = self.several(5, Self::incarnation);
                Forget::Propose { number: self.number(), view, names: self.names() }
            }
            1 => Forget::Agree { number: self.number(), incarnation: self.incarnation(), names: self.names() },
            2 => Forget::Cancel { number: self.number() },
            _ => Forget::Forgotten(self.forgotten()),
        }
    }

    pub(crate) fn message(&mut self, kind: u64) -> PeerMessage {
        let body = match kind {
            0 => Body::Site(SiteMessage::Hello {
                nonce: self.number(),
                start: self.number(),
                is_new: self.flag(),
                replaces: self.flag().then(|| self.incarnation()),
            }),
            1 => Body::Site(SiteMessage::Welcome {
                nonce: self.number(),
                start: self.number(),
                established: self.flag(),
                known: self.incarnation(),
                noted: self.incarnation(),
                position: self.number(),
                forgotten: Box::new(self.forgotten()),
                roster: self.flag().then(|| Box::new(self.roster())),
            }),
            2 => Body::Site(SiteMessage::Ping {
                mono: self.number(),
                wall: self.amount(),
                leaving: self.flag(),
                known: self.incarnation(),
                position: self.number(),
                noted: (self.incarnation(), self.number()),
                asks: self.flag(),
            }),
            3 => Body::Site(SiteMessage::Pong {
                mono: self.number(),
                wall: self.amount(),
                there: self.amount(),
                withholds: self.flag(),
                attests: self.number(),
            }),
            4 => Body::Quota(QuotaMessage::Avantan { quota: self.name(), message: Box::new(self.avantan()) }),
            5 => Body::Quota(QuotaMessage::Digests(self.several(5, Self::digest))),
            6 => Body::Quota(QuotaMessage::Lookup { token: self.number(), quota: self.name() }),
            7 => Body::Quota(QuotaMessage::NotKnown { token: self.number(), quota: self.name() }),
            8 => Body::Quota(QuotaMessage::Count { token: self.number(), quota: self.name() }),
            9 => Body::Quota(QuotaMessage::Counted {
                token: self.number(),
                tally: self.flag().then(|| Box::new(self.tally())),
            }),
            10 => {
                let kind = self.below(REQUESTS);
                Body::Relay(RelayMessage::Ask { token: self.number(), request: Box::new(self.request(kind)) })
            }
            11 => {
                let accepted = self.flag().then(|| (self.ballot(), self.value()));
                let promised = self.flag().then(|| self.ballot());
                let reborn = self.several(3, |random| (random.site(), random.incarnation()));
                let answer = NoVote { token: self.number(), applied: self.number(), accepted, promised, reborn };
                Body::Quota(QuotaMessage::NoVote { quota: self.name(), answer: Box::new(answer) })
            }
            12 => Body::Txn(Box::new(self.object())),
            13 => Body::Quota(QuotaMessage::Forget(Box::new(self.forget()))),
            14 => Body::Quota(QuotaMessage::Subset { quota: self.name(), message: Box::new(self.subset()) }),
            _ => {
                let kind = self.below(RESPONSES);
                Body::Relay(RelayMessage::Answer { token: self.number(), response: Box::new(self.response(kind)) })
            }
        };
        PeerMessage {
            incarnation: self.incarnation(),
            position: self.number(),
            epoch: self.number(),
            members: self.number(),
            body,
        }
    }
}
