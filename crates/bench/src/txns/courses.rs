//! `bench courses`: a course management system. It is generated: courses, students, assignments with deadlines, submissions
//! and grades, with many more reads than writes, and a burst of submissions before each deadline.
//!
//! A course and all that belongs to it is at one store; a student uses the store that is near, and takes courses anywhere.
//! Three of four transactions are a student's dashboard: their courses, the assignments of these, what they have handed in
//! and their grades. Every [`PERIOD`] one assignment of each course is due; in the last fifth of it one in five transactions
//! hands it in, otherwise one in fifty.
//!
//! `relational` has the same transactions on PostgreSQL, to compare with.

mod relational;

use std::cell::Cell;
use std::time::Duration;

use serde_json::json;
use slackline::{Committed, Key, Outcome, Txn, TxnError, Value};
use slackline_core::stats::Rng;
use slackline_session::time::Time;

use super::{Config, Seat, Step, Terms, TxnsError, Workload, named, read_all, region, run_each, tally};
use crate::postgres::Installation;
use crate::report::{Report, latency_figure};
use relational::Checked;

/// What Slackline is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Baseline {
    /// Optimistic locking by version columns, on PostgreSQL.
    Postgres,
}

named!(Baseline is a "baseline": Postgres "postgres");

/// What `bench courses` is told.
#[derive(Clone, Debug)]
pub struct CoursesOptions {
    /// How it is run.
    pub terms: Terms,
    /// How many stores there are.
    pub stores: usize,
    /// How many students there are in all.
    pub students: usize,
    /// What is run besides, on the same seed; only live.
    pub baseline: Option<Baseline>,
}

impl Default for CoursesOptions {
    fn default() -> Self {
        Self { terms: Terms::new(&Config::PLAIN, 12, 20, 20_000), stores: 3, students: 300, baseline: None }
    }
}

/// From one deadline to the next.
const PERIOD: Duration = Duration::from_secs(5);
const COURSES: usize = 12;
const ASSIGNMENTS: usize = 6;
/// A student takes so many courses.
const TAKEN: usize = 4;

/// Runs `bench courses`.
pub fn courses(options: &CoursesOptions) -> Result<Report, TxnsError> {
    options.terms.refuse_computation()?;
    if !(1..=8).contains(&options.stores) || options.students < options.stores || options.terms.clients_per_store == 0 {
        return Err(TxnsError::Option("there must be 1 to 8 stores, with students and clients".into()));
    }
    if let (Some(baseline), None) = (options.baseline, &options.terms.live) {
        return Err(TxnsError::Option(format!("{baseline} takes real time: this must be live")));
    }
    let installation = options.baseline.map(|Baseline::Postgres| Installation::find()).transpose()?;
    let setting = |config| options.terms.setting(config, options.stores, options.terms.measure / 4);
    let run = |config: &Config| setting(*config).run(Courses::new(options));
    let runs = run_each(&options.terms.configs, options.terms.live.is_some(), run);
    let mut runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    if let Some(installation) = &installation {
        for checked in Checked::ALL {
            runs.push(relational::run(&setting(Config::Occ), Courses::new(options), installation, checked)?);
        }
    }
    let figure = latency_figure("courses-latency", runs.iter().map(|(run, latencies)| (&*run.config, latencies)));
    let setting = setting(Config::State);
    let mut facts = vec![
        (
            "workload",
            format!(
                "{COURSES} courses with {ASSIGNMENTS} assignments each, {} students with {TAKEN} courses each; a deadline every \
                 {} s, and a burst of submissions before it",
                options.students,
                PERIOD.as_secs()
            ),
        ),
        (
            "paper",
            "the Cornell course management system with a trace of 2013 that is not public, against an optimistic object \
             store on a relational database: no figures in the text"
                .to_owned(),
        ),
    ];
    facts.extend(options.baseline.map(|Baseline::Postgres| ("baseline", relational::fact())));
    let runs = runs.into_iter().map(|(run, _)| run).collect();
    Ok(tally::report("courses", &setting, setting.costs(), runs, facts, vec![figure]))
}

/// What a client does for a student.
#[derive(Clone, Copy)]
enum Act {
    /// The student looks at everything.
    Dashboard,
    /// Hands in an assignment of a course.
    HandIn(usize, usize),
    /// What was handed in for an assignment of a course is graded.
    Grade(usize, usize),
}

impl Act {
    fn writes(self) -> bool {
        !matches!(self, Self::Dashboard)
    }
}

/// The workload.
struct Courses {
    stores: usize,
    students: usize,
    began: Cell<Option<Time>>,
    /// Submissions that were told to be done (those handed in again included), and those of which it is not known.
    handed_in: Cell<u64>,
    unknown: Cell<u64>,
}

impl Courses {
    fn new(options: &CoursesOptions) -> Self {
        let (began, handed_in, unknown) = (Cell::new(None), Cell::new(0), Cell::new(0));
        Self { stores: options.stores, students: options.students, began, handed_in, unknown }
    }

    fn of_course(&self, course: usize, name: String) -> Key {
        Key::new(region(course % self.stores), name)
    }

    fn course(&self, course: usize) -> Key {
        self.of_course(course, format!("course/{course:02}"))
    }

    fn assignment(&self, course: usize, order: usize) -> Key {
        self.of_course(course, format!("assignment/{course:02}/{order}"))
    }

    /// How often something was handed in for an assignment: a counter.
    fn count(&self, course: usize, order: usize) -> Key {
        self.of_course(course, format!("count/{course:02}/{order}"))
    }

    /// What a student has handed in: how often.
    fn submission(&self, course: usize, order: usize, student: usize) -> Key {
        self.of_course(course, format!("submission/{course:02}/{order}/{student:05}"))
    }

    /// A student's grades in a course: for each assignment, which submission was graded.
    fn grades(&self, course: usize, student: usize) -> Key {
        self.of_course(course, format!("grades/{course:02}/{student:05}"))
    }

    fn taken(student: usize) -> impl Iterator<Item = usize> {
        (0..TAKEN).map(move |order| (student * 5 + order * 7) % COURSES)
    }

    /// The assignment that is due next, and whether that is soon.
    fn due(&self, now: Time) -> (usize, bool) {
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        let (passed, period) = ((now - began).as_micros(), PERIOD.as_micros());
        ((passed / period) as usize % ASSIGNMENTS, passed % period >= period * 4 / 5)
    }

    /// What a client at a store does next, and for which student.
    fn next(&self, now: Time, store: usize, rng: &mut Rng) -> (Act, usize) {
        let (due, is_soon) = self.due(now);
        let near = rng.below((self.students / self.stores) as u64) as usize;
        let student = near * self.stores + store;
        let course = Self::taken(student).nth(rng.below(TAKEN as u64) as usize).unwrap_or(0);
        let (kind, hands_in) = (rng.below(100), if is_soon { 20 } else { 2 });
        let act = match kind {
            _ if kind < hands_in => Act::HandIn(course, due),
            _ if kind < hands_in + 2 => Act::Grade(course, rng.below(ASSIGNMENTS as u64) as usize),
            _ => Act::Dashboard,
        };
        (act, student)
    }

    /// Notes how it ended.
    fn note(&self, act: Act, outcome: &Outcome<Committed<()>>) {
        match (act, outcome) {
            (Act::HandIn(..), Outcome::Done(_)) => self.handed_in.set(self.handed_in.get() + 1),
            (Act::HandIn(..), Outcome::Unknown(_)) => self.unknown.set(self.unknown.get() + 1),
            _ => {}
        }
    }

    /// Whether as much is counted as clients were told.
    fn check_told(&self, total: u64) -> Result<(), String> {
        let (told, unknown) = (self.handed_in.get(), self.unknown.get());
        if total < told || total > told + unknown {
            return Err(format!("{total} are counted, {told} were told ({unknown} are unknown)"));
        }
        Ok(())
    }

    async fn dashboard(&self, txn: Txn, student: usize) -> Result<(), TxnError> {
        let courses: Vec<Key> = Self::taken(student).map(|course| self.course(course)).collect();
        let found: Vec<Option<usize>> = txn.get_many(&courses).await?;
        let each = found.into_iter().flatten().flat_map(|course| (0..ASSIGNMENTS).map(move |order| (course, order)));
        let mut keys: Vec<Key> = each.clone().map(|(course, order)| self.assignment(course, order)).collect();
        keys.extend(each.map(|(course, order)| self.submission(course, order, student)));
        keys.extend(Self::taken(student).map(|course| self.grades(course, student)));
        txn.values(&keys).await.map(drop)
    }

    async fn hand_in(&self, txn: Txn, course: usize, order: usize, student: usize) -> Result<(), TxnError> {
        let (assignment, submission) = (self.assignment(course, order), self.submission(course, order, student));
        let read = [assignment.clone(), submission.clone()];
        let values: Vec<Option<u64>> = txn.get_many(&read).await?;
        let [Some(_), before] = values[..] else {
            return Err(TxnError::Unexpected { key: assignment, why: "there is no such assignment".into() });
        };
        txn.put(&submission, &(before.unwrap_or(0) + 1))?;
        txn.add(&self.count(course, order), 1)
    }

    /// Grades what a student has handed in, and looks at the others of the assignment.
    async fn grade(&self, txn: Txn, course: usize, order: usize, student: usize) -> Result<(), TxnError> {
        let others = self.of_course(course, format!("submission/{course:02}/{order}/"));
        let handed_in = txn.scan_as::<u64>(&others).await?;
        let submission = self.submission(course, order, student);
        let Some((_, version)) = handed_in.into_iter().find(|(key, _)| *key == submission) else { return Ok(()) };
        let grades = self.grades(course, student);
        let mut all: Vec<u64> = txn.get(&grades).await?.unwrap_or_else(|| vec![0; ASSIGNMENTS]);
        all[order] = version;
        txn.put(&grades, &all)
    }
}

impl Workload for Courses {
    fn objects(&self, store: usize) -> Vec<(Key, Value)> {
        let bytes = |value: serde_json::Value| Value::Bytes(value.to_string().into_bytes().into());
        let mut objects = Vec::new();
        for course in (store..COURSES).step_by(self.stores) {
            objects.push((self.course(course), bytes(json!(course))));
            for order in 0..ASSIGNMENTS {
                objects.push((self.assignment(course, order), bytes(json!(order))));
                objects.push((self.count(course, order), Value::Counter(0)));
            }
            let mine = (0..self.students).filter(|student| Self::taken(*student).any(|taken| taken == course));
            objects.extend(mine.map(|student| (self.grades(course, student), bytes(json!(vec![0; ASSIGNMENTS])))));
        }
        objects
    }

    async fn step(&self, seat: &Seat, rng: &mut Rng) -> Result<Step, TxnError> {
        let (act, student) = self.next(seat.now(), seat.site, rng);
        let transaction = seat.transaction();
        let outcome: Outcome<Committed<()>> = match act {
            Act::Dashboard => transaction.run_and_tell(|txn| self.dashboard(txn, student)).await?,
            Act::HandIn(course, order) => {
                transaction.run_and_tell(|txn| self.hand_in(txn, course, order, student)).await?
            }
            Act::Grade(course, order) => {
                transaction.run_and_tell(|txn| self.grade(txn, course, order, student)).await?
            }
        };
        self.note(act, &outcome);
        Ok(Step { outcome, writes: act.writes() })
    }

    /// What was handed in is what the counters say and clients were told, and nothing was graded that is not there.
    async fn verify(&self, seat: &Seat) -> Result<(), String> {
        let mut total = 0;
        for course in 0..COURSES {
            let students: Vec<usize> =
                (0..self.students).filter(|student| Self::taken(*student).any(|taken| taken == course)).collect();
            let keys: Vec<Key> = students.iter().map(|student| self.grades(course, *student)).collect();
            let grades = read_all(seat, &keys).await?;
            for order in 0..ASSIGNMENTS {
                let keys: Vec<Key> = students.iter().map(|student| self.submission(course, order, *student)).collect();
                let versions: Vec<u64> = read_all(seat, &keys).await?.iter().map(number).collect();
                let counted = match read_all(seat, &[self.count(course, order)]).await?[0] {
                    Some(Value::Counter(count)) => count as u64,
                    _ => return Err("a counter is missing".into()),
                };
                let sum: u64 = versions.iter().sum();
                if sum != counted {
                    return Err(format!("{sum} were handed in for {course}/{order}, {counted} are counted"));
                }
                let graded = grades.iter().map(|grades| list(grades).get(order).copied().unwrap_or(0));
                if graded.zip(&versions).any(|(graded, version)| graded > *version) {
                    return Err(format!("something is graded for {course}/{order} that was not handed in"));
                }
                total += counted;
            }
        }
        self.check_told(total)
    }
}

fn number(value: &Option<Value>) -> u64 {
    match value {
        Some(Value::Bytes(bytes)) => serde_json::from_slice(bytes).unwrap_or(u64::MAX / 4),
        _ => 0,
    }
}

fn list(value: &Option<Value>) -> Vec<u64> {
    match value {
        Some(Value::Bytes(bytes)) => serde_json::from_slice(bytes).unwrap_or_default(),
        _ => Vec::new(),
    }
}
