//! `bench courses` on PostgreSQL: optimistic locking by version columns, as object-relational mappers have it.
//!
//! A client has a connection of its own to the one server, which is in the region of the first store. What a transaction reads, it
//! reads outside of any transaction of the database. At its end one statement, a transaction of the database at read committed, writes
//! if rows have the versions that were read. A row that has another, or that somebody else has inserted, is a conflict, and all is
//! done again.
//!
//! | run | what is checked at the end |
//! | --- | --- |
//! | `postgres` | the versions of rows that are written: what a mapper does unless told otherwise. A dashboard checks nothing; it may show rows of different times |
//! | `postgres-validated` | and the versions of all rows that were read. Serializable but for phantoms: rows that were not there are not looked for again |
//!
//! Why the second is serializable: rows that were read are share-locked and compared, those written are locked, all until the
//! commit; a transaction that only reads compares all in one statement, which sees one snapshot, and snapshots follow the order
//! of commits. The counter is added to by the database, as by Slackline's `add`, and is not read.
//!
//! **Round trips.** Reads that do not depend on each other are one, sent together on the connection; the statement at the end is
//! another. Clients of other stores wait for half of `--rtt` before each, and after.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use slackline::{Committed, Outcome, Reason, Refused};
use slackline_core::stats::Rng;
use slackline_session::time::Time;
use tokio::task::LocalSet;
use tokio::time::sleep;
use tokio::try_join;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Error, Row, Statement};

use super::super::setting::{DEADLINE, Setting, TxnsError};
use super::super::tally::{Tally, Window, share};
use super::super::workload::Step;
use super::coursework::{ASSIGNMENTS, Act, COURSES, Courses};
use super::statements::{Checked, Dashboard, Grade, HandIn, SCHEMA, Statements};
use crate::live::{LiveError, runtime};
use crate::postgres::{Installation, Server};
use crate::report::Measured;

/// The first pause before a transaction is run again, and the longest: those of Slackline's client.
const PAUSES: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(500));

/// The fact that explains these runs, for a report.
pub(super) fn fact() -> String {
    "PostgreSQL with its defaults for durability, in a folder of its own for each run; it is in the region of the first store, and \
     each client has a connection, over a Unix socket; those of other stores sleep for half a round trip before and after each \
     request. Measured in real time, so all of this report is live"
        .into()
}

/// Runs the workload, and checks its data.
pub(super) fn run(
    setting: &Setting,
    workload: Courses,
    installation: &Installation,
    checked: Checked,
) -> Result<Measured, TxnsError> {
    let clients = setting.clients();
    let server = Server::start(installation, clients.len())?;
    let runtime = runtime()?;
    let (tally, workload) = (Rc::new(RefCell::new(Tally::new(None))), Rc::new(workload));
    let (trips, version) = runtime.block_on(LocalSet::new().run_until(async {
        let own = server.connect().await?;
        load(&own, &workload).await.map_err(failed)?;
        let mut sessions = Vec::with_capacity(clients.len());
        for (client, &store) in clients.iter().enumerate() {
            let rng = Rng::new(setting.seed ^ (client as u64 + 1) << 40);
            let connection = server.connect().await?;
            sessions.push(Session::new(connection, setting, store, checked, rng).await.map_err(failed)?);
        }

        let start = Instant::now();
        let window = Window::after(Time::default(), setting.warm, setting.measure);
        let begin = |(client, session): (usize, Session)| {
            let (workload, tally) = (Rc::clone(&workload), Rc::clone(&tally));
            tokio::task::spawn_local(self::client(workload, session, setting.rng(client), (start, window), tally))
        };
        let clients: Vec<_> = sessions.into_iter().enumerate().map(begin).collect();

        let mut trips = 0;
        for client in clients {
            trips += client.await.map_err(failed)?;
        }
        if let Err(what) = verify(&own, &workload).await.map_err(failed)? {
            tally.borrow_mut().fail(what);
        }
        let version = own.query_one("SHOW server_version", &[]).await.map_err(failed)?;
        Ok::<_, TxnsError>((trips, version.try_get::<_, String>(0).map_err(failed)?))
    }))?;

    drop(runtime);
    let tally = tally.take();
    if let Some(what) = tally.failure.clone() {
        return Err(TxnsError::Wrong { config: checked.config().into(), what });
    }

    let mut run = tally.figures(checked.config().into(), setting);
    // There are no sites, and no messages between them.
    (run.local_ratio, run.wan_messages) = (None, None);
    let per_txn = share(trips, run.committed);
    let run = run
        .with("round_trips_per_txn", per_txn)
        .with("server_version", version)
        .with("file_system", server.file_system());
    Ok((run, tally.latencies()))
}

/// Makes the tables, with the rows that are there before the first step.
async fn load(client: &Client, workload: &Courses) -> Result<(), Error> {
    let (last_course, last_assignment) = (COURSES - 1, ASSIGNMENTS - 1);
    let each =
        format!("generate_series(0, {last_course}) AS course, generate_series(0, {last_assignment}) AS assignment");
    let tables = format!(
        "{SCHEMA}
         INSERT INTO courses SELECT course, 1 FROM generate_series(0, {last_course}) AS course;
         INSERT INTO assignments SELECT course, assignment, 1 FROM {each};
         INSERT INTO counts SELECT course, assignment, 0 FROM {each};"
    );
    client.batch_execute(&tables).await?;

    let taken = (0..workload.students).flat_map(|student| Courses::taken(student).map(move |course| (student, course)));
    let (students, courses): (Vec<i32>, Vec<i32>) = taken.map(|(student, course)| (id(student), id(course))).unzip();
    let grades =
        "INSERT INTO grades SELECT student, course, $3, 1 FROM unnest($1::int[], $2::int[]) AS taken(student, course)";
    client.execute(grades, &[&students, &courses, &vec![0_i64; ASSIGNMENTS]]).await?;

    // Without statistics the first plans would be poor ones, and would stay with the prepared statements.
    client.batch_execute("VACUUM ANALYZE").await
}

/// One client: step after step, until the window is over. Returns its round trips in the window.
async fn client(
    workload: Rc<Courses>,
    mut session: Session,
    mut rng: Rng,
    (start, window): (Instant, Window),
    tally: Rc<RefCell<Tally>>,
) -> u64 {
    let mut trips = 0;
    loop {
        let began = Time::default() + start.elapsed();
        if began >= window.end {
            return trips;
        }

        let (act, student) = workload.next(began, session.store, &mut rng);
        let before = session.trips.get();
        let outcome = match session.transact(act, student).await {
            Ok(outcome) => outcome,
            Err(error) => {
                tally.borrow_mut().fail(said(&error));
                return trips;
            }
        };

        let ended = Time::default() + start.elapsed();
        workload.note(act, &outcome);
        tally.borrow_mut().note(window, session.store, (began, ended), Ok(Step { outcome, writes: act.writes() }));
        if window.counts(ended) {
            trips += session.trips.get() - before;
        }
    }
}

/// A client's connection, and its statements.
struct Session {
    /// The position of the client's store; the server is at the first.
    store: usize,
    /// The time from the client to the server, and back again.
    way: Duration,
    /// The checks at the end of a transaction.
    checked: Checked,
    /// Of pauses.
    rng: Rng,
    /// Round trips so far.
    trips: Cell<u64>,
    /// The connection.
    client: Client,
    /// All that it can ask.
    statements: Statements,
}

impl Session {
    async fn new(client: Client, setting: &Setting, store: usize, checked: Checked, rng: Rng) -> Result<Self, Error> {
        let way = if store == 0 { Duration::ZERO } else { setting.rtt / 2 };
        let statements = Statements::prepare(&client, checked).await?;
        Ok(Self { store, way, checked, rng, trips: Cell::new(0), client, statements })
    }

    /// Runs a transaction, again and again until it is committed or its deadline has passed.
    async fn transact(&mut self, act: Act, student: usize) -> Result<Outcome<Committed<()>>, Error> {
        let (deadline, student) = (Instant::now() + DEADLINE, id(student));
        let (mut pause, mut runs) = (PAUSES.0, 0);
        loop {
            runs += 1;
            let ended = match act {
                Act::Dashboard => self.dashboard(student).await,
                Act::HandIn(course, order) => self.hand_in(id(course), id(order), student).await,
                Act::Grade(course, order) => self.grade(id(course), order, student).await,
            };
            if is_committed(ended)? {
                // No phases of Slackline's: they are not reported.
                return Ok(Outcome::Done(Committed { value: (), phases: 0, runs, operation: None }));
            }

            // Those that met in a conflict must not meet again after the pause.
            let rest = pause / 2 + pause / 2 * self.rng.below(1024) as u32 / 1024;
            if Instant::now() + rest >= deadline {
                return Ok(Outcome::Refused(Refused { reason: Reason::DeadlinePassed, operation: None }));
            }
            sleep(rest).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// One round trip: what is sent together.
    async fn trip<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.trips.set(self.trips.get() + 1);
        self.travel().await;
        let answer = request.await;
        self.travel().await;
        answer
    }

    async fn travel(&self) {
        if !self.way.is_zero() {
            sleep(self.way).await;
        }
    }

    /// Asks whether the rows that were read, `read` in all, are as they were, as one statement counts them.
    async fn are_unchanged(&self, read: usize, statement: &Statement, rows: Parameters<'_>) -> Result<bool, Error> {
        let row = self.trip(self.client.query_one(statement, rows)).await?;
        Ok(row.try_get::<_, i64>(0)? == read as i64)
    }

    async fn dashboard(&self, student: i32) -> Result<bool, Error> {
        let Dashboard { courses, assignments, submissions, grades, unchanged } = &self.statements.dashboard;
        let taken: Vec<i32> = Courses::taken(student as usize).map(id).collect();
        let courses = self.trip(self.client.query(courses, &[&taken])).await?;
        let found: Vec<i32> = column(&courses, 0)?;
        let (of_courses, of_student): (Parameters<'_>, Parameters<'_>) = (&[&found], &[&student, &found]);
        let (assignments, submissions, grades) = self
            .trip(async {
                try_join!(
                    self.client.query(assignments, of_courses),
                    self.client.query(submissions, of_student),
                    self.client.query(grades, of_student),
                )
            })
            .await?;
        if self.checked == Checked::Written {
            return Ok(true);
        }

        // One statement sees one snapshot: what is unchanged in it was there together.
        let read = courses.len() + assignments.len() + submissions.len() + grades.len();
        let rows: Parameters<'_> = &[
            &student,
            &found,
            &column::<i64>(&courses, 1)?,
            &column::<i32>(&assignments, 0)?,
            &column::<i32>(&assignments, 1)?,
            &column::<i64>(&assignments, 2)?,
            &column::<i32>(&submissions, 0)?,
            &column::<i32>(&submissions, 1)?,
            &column::<i64>(&submissions, 2)?,
            &column::<i32>(&grades, 0)?,
            &column::<i64>(&grades, 1)?,
        ];
        self.are_unchanged(read, unchanged, rows).await
    }

    async fn hand_in(&self, course: i32, order: i32, student: i32) -> Result<bool, Error> {
        let HandIn { assignment, submission, first, again } = &self.statements.hand_in;
        let (of_course, of_student): (Parameters<'_>, Parameters<'_>) =
            (&[&course, &order], &[&course, &order, &student]);
        let (assignment, submission) = self
            .trip(async {
                try_join!(self.client.query_one(assignment, of_course), self.client.query_opt(submission, of_student),)
            })
            .await?;

        let (statement, times, version) = match submission {
            Some(row) => (again, row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?),
            None => (first, 0, 0),
        };
        let all: Parameters<'_> =
            &[&course, &order, &student, &(times + 1), &version, &assignment.try_get::<_, i64>(0)?];
        let counted = self.trip(self.client.execute(statement, &all[..statement.params().len()])).await?;
        Ok(counted == 1)
    }

    async fn grade(&self, course: i32, order: usize, student: i32) -> Result<bool, Error> {
        let Grade { submissions, grades, grade, unchanged } = &self.statements.grade;
        let assignment = id(order);
        let handed_in = self.trip(self.client.query(submissions, &[&course, &assignment])).await?;
        let (students, versions): (Vec<i32>, Vec<i64>) = (column(&handed_in, 0)?, column(&handed_in, 1)?);
        let times: Vec<i64> = column(&handed_in, 2)?;

        // A student who has handed nothing in is not graded, but that was read and is checked as well.
        let Some(at) = students.iter().position(|other| *other == student) else {
            return match self.checked {
                Checked::Written => Ok(true),
                Checked::Read => {
                    let rows: Parameters<'_> = &[&course, &assignment, &students, &versions];
                    self.are_unchanged(students.len(), unchanged, rows).await
                }
            };
        };

        let row = self.trip(self.client.query_one(grades, &[&student, &course])).await?;
        let (mut graded, version): (Vec<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
        graded[order] = times[at];
        let all: Parameters<'_> = &[&student, &course, &graded, &version, &assignment, &students, &versions];
        let written = self.trip(self.client.execute(grade, &all[..grade.params().len()])).await?;
        Ok(written == 1)
    }
}

/// Values for the parameters of a statement.
type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// True if a run of a transaction was committed. A conflict that the database itself finds is one like any other.
fn is_committed(ended: Result<bool, Error>) -> Result<bool, Error> {
    let conflicts = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    ended
        .or_else(|error| if error.code().is_some_and(|code| conflicts.contains(code)) { Ok(false) } else { Err(error) })
}

/// Checks that what was handed in is what the counters say and clients were told, and that nothing was graded that is not there.
async fn verify(client: &Client, workload: &Courses) -> Result<Result<(), String>, Error> {
    let counts = "SELECT course, assignment, handed_in, coalesce(sum(times), 0)::bigint FROM counts
        LEFT JOIN submissions USING (course, assignment) GROUP BY course, assignment";
    let mut total = 0;
    for row in client.query(counts, &[]).await? {
        let (course, order, counted, sum): (i32, i32, i64, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        if sum != counted {
            return Ok(Err(format!("{sum} were handed in for {course}/{order}, {counted} are counted")));
        }
        total += counted as u64;
    }

    // Arrays count from 1.
    let graded = "SELECT count(*) FROM grades CROSS JOIN unnest(graded) WITH ORDINALITY AS mark(version, place)
        LEFT JOIN submissions ON submissions.student = grades.student AND submissions.course = grades.course
            AND submissions.assignment = place - 1
        WHERE mark.version > coalesce(times, 0)";
    if client.query_one(graded, &[]).await?.try_get::<_, i64>(0)? > 0 {
        return Ok(Err("something is graded that was not handed in".into()));
    }
    Ok(workload.handed_in.check(total, "submissions"))
}

fn column<T: FromSqlOwned>(rows: &[Row], at: usize) -> Result<Vec<T>, Error> {
    rows.iter().map(|row| row.try_get(at)).collect()
}

/// A number, as the tables have it: there are at most some thousands of anything.
fn id(number: usize) -> i32 {
    number as i32
}

/// An error, with what the server says of it.
fn said(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

fn failed(error: impl std::error::Error) -> TxnsError {
    LiveError::failed(format!("PostgreSQL: {}", said(&error))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txns::Config;

    /// Long against what the machine needs for a request, so that it is known what meets what.
    const RTT: Duration = Duration::from_millis(120);

    /// A server with the tables, and sessions of clients in another region, or in its own.
    struct Stand {
        setting: Setting,
        workload: Courses,
        server: Server,
        own: Client,
    }

    impl Stand {
        async fn new(installation: &Installation) -> Self {
            let setting = Setting {
                config: Config::Occ,
                stores: 2,
                clients_per_store: 4,
                rtt: RTT,
                warm: Duration::ZERO,
                measure: Duration::ZERO,
                seed: 1,
                live: None,
            };
            let workload = Courses::new(3, 24);
            let server = Server::start(installation, 8).expect("it starts");
            let own = server.connect().await.expect("it serves");
            load(&own, &workload).await.expect("the tables are made");
            Self { setting, workload, server, own }
        }

        async fn session(&self, store: usize, checked: Checked) -> Session {
            let client = self.server.connect().await.expect("it serves");
            Session::new(client, &self.setting, store, checked, Rng::new(1)).await.expect("the statements make sense")
        }

        /// Runs a transaction after a while; tells how often it was run.
        async fn runs(&self, session: &mut Session, after: Duration, act: Act, student: usize) -> u32 {
            sleep(after).await;
            let outcome = session.transact(act, student).await.expect("the server answers");
            self.workload.note(act, &outcome);
            outcome.done().expect("it is committed").runs
        }

        async fn verify(&self) {
            assert_eq!(verify(&self.own, &self.workload).await.expect("the server answers"), Ok(()));
        }
    }

    /// Runs a test where there is PostgreSQL.
    fn on_postgres(test: impl AsyncFnOnce(Installation)) {
        let Some(installation) = Installation::find_or_install() else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(LocalSet::new().run_until(test(installation)));
    }

    #[test]
    fn submission_that_two_hand_in_at_once_is_handed_in_twice() {
        on_postgres(async |installation| {
            for checked in Checked::ALL {
                let stand = Stand::new(&installation).await;
                let (mut one, mut other) = (stand.session(1, checked).await, stand.session(1, checked).await);
                // First both insert it, then both have its version.
                for _ in 0..2 {
                    let (now, act) = (Duration::ZERO, Act::HandIn(0, 2));
                    let (one, other) =
                        tokio::join!(stand.runs(&mut one, now, act, 0), stand.runs(&mut other, now, act, 0));
                    assert_eq!(one + other, 3, "{checked:?}: one of them is run again");
                }
                assert_eq!(stand.workload.handed_in.done.get(), 4);
                stand.verify().await;
            }
        });
    }

    #[test]
    fn what_was_read_is_compared_only_where_that_is_asked_for() {
        on_postgres(async |installation| {
            for (checked, runs) in [(Checked::Written, 1), (Checked::Read, 2)] {
                let stand = Stand::new(&installation).await;
                let (mut one, mut other) = (stand.session(1, checked).await, stand.session(1, checked).await);
                for student in [0, 12] {
                    stand.runs(&mut other, Duration::ZERO, Act::HandIn(0, 2), student).await;
                }
                // Between what these read and their ends, something of it is handed in again.
                for (act, student) in [(Act::Grade(0, 2), 12), (Act::Dashboard, 0)] {
                    let (one, _) = tokio::join!(
                        stand.runs(&mut one, Duration::ZERO, act, student),
                        stand.runs(&mut other, RTT / 2, Act::HandIn(0, 2), 0),
                    );
                    assert_eq!(one, runs, "{checked:?}");
                }
                stand.verify().await;
            }
        });
    }

    #[test]
    fn counter_of_many_at_once_is_right_without_a_conflict() {
        on_postgres(async |installation| {
            for checked in Checked::ALL {
                let stand = Rc::new(Stand::new(&installation).await);
                let hand_in = |student: usize| {
                    let stand = Rc::clone(&stand);
                    tokio::task::spawn_local(async move {
                        let mut session = stand.session(0, checked).await;
                        for _ in 0..100 {
                            assert_eq!(stand.runs(&mut session, Duration::ZERO, Act::HandIn(0, 2), student).await, 1);
                        }
                    })
                };
                let students: Vec<_> = (0..6).map(hand_in).collect();
                for student in students {
                    student.await.expect("it has no conflict");
                }
                assert_eq!(stand.workload.handed_in.done.get(), 600);
                stand.verify().await;
            }
        });
    }
}
