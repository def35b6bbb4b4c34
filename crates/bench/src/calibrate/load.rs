//! Loads: what a client asks of a site again and again. A real site and a simulated one are asked the very same.

use std::sync::Arc;
use std::time::Duration;

use slackline_core::api::{Agreement, Hold, Outcome, Reading, Request, Response};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::object::{Change, Home, ObjectKey, Part, Transaction, Value};
use slackline_session::command::Command;
use slackline_session::reads::Wanted;
use slackline_session::time::Time;

use crate::client::SiteClient;

/// One load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    /// Its name in reports.
    pub(super) name: &'static str,
    /// The kind of request.
    pub(super) kind: Kind,
}

/// The kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A batch of acquires.
    Acquire {
        /// The number of acquires.
        operations: usize,
    },
    /// A read of small objects of this site.
    Read {
        /// The number of objects.
        objects: usize,
    },
    /// A transaction that read small objects of this site, and writes none.
    Validate {
        /// The number of objects.
        objects: usize,
    },
    /// A transaction that writes objects that it has not read.
    Write {
        /// The number of objects.
        objects: usize,
        /// The size of each.
        bytes: usize,
        /// The home of all of them.
        region: u16,
    },
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
/// The time that an operation may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client with one request under way. First it makes what its load needs; then it asks the same again and again.
#[derive(Debug)]
pub(super) struct Caller {
    /// The kind of request that it repeats.
    kind: Kind,
    /// The name of its quota, and the prefix of its objects; no two callers have the same.
    name: String,
    /// Its stage.
    stage: Stage,
    /// The product's client.
    client: SiteClient,
    /// Acquires that were granted.
    granted: u64,
    /// The home's incarnation that the last read found; for those that validate what they read.
    incarnation: Incarnation,
    /// The versions that the last read found, by the objects' names.
    read: Vec<(String, u64)>,
}

/// The stages of a caller.
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
    /// A caller of a load at a site, with a name of its own.
    pub(super) fn new(kind: Kind, name: String, site: SiteId) -> Self {
        let (incarnation, read) = (Incarnation::default(), Vec::new());
        Self { kind, name, stage: Stage::Open, client: SiteClient::new(site, TIMEOUT), granted: 0, incarnation, read }
    }

    /// True once everything is there that its load needs.
    pub(super) fn is_going(&self) -> bool {
        self.stage == Stage::Going
    }

    /// Makes its next request. Everything before must be answered.
    ///
    /// # Errors
    ///
    /// Nothing may be asked now.
    pub(super) fn request(&mut self, now: Time) -> Result<Request, String> {
        match self.stage {
            // The client opens its session by itself.
            Stage::Open => {}
            Stage::Create => self
                .client
                .submit(Command::Create { quota: self.quota(), limit: LIMIT, agreement: Agreement::Majority }, now)?,
            Stage::Fill => self.write(now)?,
            Stage::Look => self.look(now)?,
            Stage::Going => match self.kind {
                Kind::Acquire { operations } => {
                    let quota = self.quota();
                    for _ in 0..operations {
                        let acquire = Command::Acquire {
                            quota: Arc::clone(&quota),
                            amount: 1,
                            hold: Hold::Counted,
                            waits: false,
                        };
                        self.client.submit(acquire, now)?;
                    }
                }
                Kind::Read { .. } => self.look(now)?,
                // What it once read is still there, so nothing but the check is done.
                Kind::Validate { .. } => {
                    let part = Part { reads: self.read.clone(), ..Part::default() };
                    self.commit(Home { region: 0, incarnation: self.incarnation, part }, now)?;
                }
                Kind::Write { .. } => self.write(now)?,
            },
        }

        // All that was submitted leaves in one request: no load is a crowd.
        self.client.next_request(now).ok_or_else(|| "the client has nothing to ask".into())
    }

    /// Takes a response in: whether all that was asked is answered now.
    ///
    /// # Errors
    ///
    /// Something was not done: how it ended.
    pub(super) fn take(&mut self, response: Response, now: Time) -> Result<bool, String> {
        // An operation that waits at its site is answered by a later response.
        for ended in self.client.receive(response, now)? {
            match ended.outcome {
                Outcome::Granted { .. } => self.granted += 1,
                Outcome::Created { .. } | Outcome::Committed { .. } => {}
                other => return Err(format!("an operation was not done: {other:?}")),
            }
        }
        if let Some(reading) = self.client.found()? {
            self.note_versions(*reading)?;
        }
        if !self.client.is_idle() {
            return Ok(false);
        }

        let reads = matches!(self.kind, Kind::Read { .. } | Kind::Validate { .. });
        self.stage = match self.stage {
            Stage::Open if matches!(self.kind, Kind::Acquire { .. }) => Stage::Create,
            Stage::Open => Stage::Fill,
            Stage::Fill if reads => Stage::Look,
            Stage::Create | Stage::Fill | Stage::Look | Stage::Going => Stage::Going,
        };
        Ok(true)
    }

    /// The quota that it acquires of, if it does, and the tokens that it was granted.
    pub(super) fn granted(&self) -> Option<(&str, u64)> {
        matches!(self.kind, Kind::Acquire { .. }).then_some((self.name.as_str(), self.granted))
    }

    /// Notes what a read found.
    fn note_versions(&mut self, reading: Reading) -> Result<(), String> {
        // Those of the last read only: they are in the order in which they were asked for.
        self.read.clear();
        for (at, seen) in reading.gets.into_iter().enumerate() {
            let seen = seen.map_err(|abort| format!("an object was not read: {abort:?}"))?;
            self.incarnation = seen.version.incarnation;
            self.read.push((self.object(at), seen.version.number));
        }
        Ok(())
    }

    /// The quota's name.
    fn quota(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    /// The number of its objects.
    fn objects(&self) -> usize {
        match self.kind {
            Kind::Acquire { .. } => 0,
            Kind::Read { objects } | Kind::Validate { objects } | Kind::Write { objects, .. } => objects,
        }
    }

    /// The name of one of its objects.
    fn object(&self, at: usize) -> String {
        format!("{}/{at:03}", self.name)
    }

    /// Reads all objects.
    fn look(&mut self, now: Time) -> Result<(), String> {
        let gets = (0..self.objects()).map(|at| ObjectKey::new(0, self.object(at))).collect();
        self.client.read(Wanted { gets, ..Wanted::default() }, now)
    }

    /// Writes all objects.
    fn write(&mut self, now: Time) -> Result<(), String> {
        let (bytes, region) = match self.kind {
            Kind::Write { bytes, region, .. } => (bytes, region),
            Kind::Acquire { .. } | Kind::Read { .. } | Kind::Validate { .. } => (SMALL, 0),
        };
        let put = |at| (self.object(at), Change::Put(Value::Bytes(vec![b'x'; bytes].into())));
        let part = Part { writes: (0..self.objects()).map(put).collect(), ..Part::default() };
        self.commit(Home { region, incarnation: Incarnation::default(), part }, now)
    }

    /// Commits a transaction at one home.
    fn commit(&mut self, home: Home, now: Time) -> Result<(), String> {
        let max_wait = TIMEOUT.as_micros() as u64;
        let transaction = Transaction { homes: vec![home], max_wait, ..Transaction::default() };
        self.client.submit(Command::commit(transaction), now)
    }
}
