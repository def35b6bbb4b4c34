//! Loads: what a client asks of a site again and again. A real site and a simulated one are asked the very same.

use slackline_core::api::{Batch, Hold, Operation, Outcome, Read, Request, Response, Submission};
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::object::{Change, Home, ObjectKey, Part, Transaction, Value};

/// One load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    /// Its name in reports.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

/// What each request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A batch of so many acquires.
    Acquire { operations: usize },
    /// A read of so many small objects of this site.
    Read { objects: usize },
    /// A transaction that read so many small objects of this site, and writes none.
    Validate { objects: usize },
    /// A transaction that writes so many objects of so many bytes of this region, unread.
    Write { objects: usize, bytes: usize, region: u16 },
}

/// Loads that differ in one thing at a time.
pub(super) const LOADS: [Load; 12] = [
    Load { name: "acquire-1", kind: Kind::Acquire { operations: 1 } },
    Load { name: "acquire-16", kind: Kind::Acquire { operations: 16 } },
    Load { name: "acquire-128", kind: Kind::Acquire { operations: 128 } },
    Load { name: "read-1", kind: Kind::Read { objects: 1 } },
    Load { name: "read-128", kind: Kind::Read { objects: 128 } },
    Load { name: "validate-1", kind: Kind::Validate { objects: 1 } },
    Load { name: "validate-128", kind: Kind::Validate { objects: 128 } },
    Load { name: "write-1", kind: Kind::Write { objects: 1, bytes: SMALL, region: 0 } },
    Load { name: "write-32", kind: Kind::Write { objects: 32, bytes: SMALL, region: 0 } },
    Load { name: "write-16k", kind: Kind::Write { objects: 1, bytes: 16 << 10, region: 0 } },
    Load { name: "remote-1", kind: Kind::Write { objects: 1, bytes: SMALL, region: 1 } },
    Load { name: "remote-32", kind: Kind::Write { objects: 32, bytes: SMALL, region: 1 } },
];

/// Bytes of a small object.
const SMALL: usize = 64;
/// Tokens of each quota: more than all acquires together.
const LIMIT: i64 = 1 << 50;
/// How long an operation may take, in microseconds.
const TIMEOUT: u64 = 10_000_000;

/// A client of one session with one request under way. First it makes what its load needs; then it asks the same again and
/// again.
#[derive(Debug)]
pub(super) struct Caller {
    kind: Kind,
    /// What its quota and its objects are named after, so that no two callers meet.
    name: String,
    stage: Stage,
    session: Option<(SiteId, Incarnation, SessionId)>,
    /// The next sequence, and how many operations have no answer yet.
    next: u64,
    open: usize,
    /// What was read, for those that validate it.
    incarnation: Incarnation,
    read: Vec<(String, u64)>,
}

/// How far a caller is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Opens its session.
    Open,
    /// Creates its quota.
    Create,
    /// Writes its objects.
    Fill,
    /// Reads their versions.
    Look,
    /// Is ready, and asks what it is there for.
    Going,
}

impl Caller {
    /// A caller of a load, with a name of its own.
    pub(super) fn new(kind: Kind, name: String) -> Self {
        let (incarnation, read) = (Incarnation::default(), Vec::new());
        Self { kind, name, stage: Stage::Open, session: None, next: 1, open: 0, incarnation, read }
    }

    /// Whether everything is there that its load needs.
    pub(super) fn is_going(&self) -> bool {
        self.stage == Stage::Going
    }

    /// What it asks next. Everything before must be answered.
    pub(super) fn request(&mut self) -> Request {
        match self.stage {
            Stage::Open => Request::Open,
            Stage::Create => self.batch(vec![Operation::Create { quota: self.name.clone(), limit: LIMIT }]),
            Stage::Fill => self.write(),
            Stage::Look => self.look(),
            Stage::Going => match self.kind {
                Kind::Acquire { operations } => {
                    let acquire = || Operation::Acquire { quota: self.name.clone(), amount: 1, hold: Hold::Counted };
                    self.batch((0..operations).map(|_| acquire()).collect())
                }
                Kind::Read { .. } => self.look(),
                Kind::Validate { .. } => {
                    let part = Part { reads: self.read.clone(), ..Part::default() };
                    self.commit(Home { region: 0, incarnation: self.incarnation, part })
                }
                Kind::Write { .. } => self.write(),
            },
        }
    }

    /// Takes a response in: whether all that was asked is answered now.
    ///
    /// # Errors
    ///
    /// Something was not done: how it ended.
    pub(super) fn take(&mut self, response: Response) -> Result<bool, String> {
        match response {
            Response::Opened { site, incarnation, session } => {
                self.session = Some((site, incarnation, session));
                let is_quota = matches!(self.kind, Kind::Acquire { .. });
                self.stage = if is_quota { Stage::Create } else { Stage::Fill };
            }
            Response::Batch { answers, .. } => {
                let is_done = |outcome: &Outcome| {
                    matches!(outcome, Outcome::Granted { .. } | Outcome::Created { .. } | Outcome::Committed { .. })
                };
                if let Some(answer) = answers.iter().find(|answer| !is_done(&answer.outcome)) {
                    return Err(format!("an operation was not done: {:?}", answer.outcome));
                }
                self.open = self.open.saturating_sub(answers.len());
                if self.open > 0 {
                    return Ok(false);
                }
                let reads = matches!(self.kind, Kind::Read { .. } | Kind::Validate { .. });
                self.stage = if reads && self.stage == Stage::Fill { Stage::Look } else { Stage::Going };
            }
            Response::Read(reading) => {
                self.read.clear();
                for (at, seen) in reading.gets.into_iter().enumerate() {
                    let seen = seen.map_err(|abort| format!("an object was not read: {abort:?}"))?;
                    self.incarnation = seen.version.incarnation;
                    self.read.push((self.object(at), seen.version.number));
                }
                self.stage = Stage::Going;
            }
            other => return Err(format!("an answer to nothing: {other:?}")),
        }
        Ok(true)
    }

    /// The quota that it acquires of, if it does, and the tokens that it was granted.
    pub(super) fn granted(&self) -> Option<(&str, u64)> {
        // Its first operation created the quota; each of the others acquired a token.
        matches!(self.kind, Kind::Acquire { .. }).then(|| (self.name.as_str(), self.next - 2))
    }

    fn objects(&self) -> usize {
        match self.kind {
            Kind::Acquire { .. } => 0,
            Kind::Read { objects } | Kind::Validate { objects } | Kind::Write { objects, .. } => objects,
        }
    }

    fn object(&self, at: usize) -> String {
        format!("{}/{at:03}", self.name)
    }

    fn look(&self) -> Request {
        let gets = (0..self.objects()).map(|at| ObjectKey::new(0, self.object(at))).collect();
        Request::Read(Box::new(Read { gets, timeout: TIMEOUT, ..Read::default() }))
    }

    fn write(&mut self) -> Request {
        let (bytes, region) = match self.kind {
            Kind::Write { bytes, region, .. } => (bytes, region),
            Kind::Acquire { .. } | Kind::Read { .. } | Kind::Validate { .. } => (SMALL, 0),
        };
        let put = |at| (self.object(at), Change::Put(Value::Bytes(vec![b'x'; bytes].into())));
        let part = Part { writes: (0..self.objects()).map(put).collect(), ..Part::default() };
        self.commit(Home { region, incarnation: Incarnation::default(), part })
    }

    fn commit(&mut self, home: Home) -> Request {
        let transaction = Transaction { homes: vec![home], max_wait: TIMEOUT, ..Transaction::default() };
        self.batch(vec![Operation::Commit(Box::new(transaction))])
    }

    fn batch(&mut self, operations: Vec<Operation>) -> Request {
        let (site, incarnation, session) = self.session.unwrap_or_default();
        let low = self.next;
        let submission = |(order, operation)| Submission { sequence: low + order as u64, timeout: TIMEOUT, operation };
        let operations: Vec<_> = operations.into_iter().enumerate().map(submission).collect();
        self.next += operations.len() as u64;
        self.open = operations.len();
        Request::Batch(Batch { site, incarnation, session, low, operations })
    }
}
