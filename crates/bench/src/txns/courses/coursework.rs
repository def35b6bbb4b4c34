//! The transactions of students and teachers, and what must be there in the end.

use std::cell::Cell;
use std::time::Duration;

use serde_json::json;
use slackline::{Committed, Key, Outcome, Txn, TxnError, Value};
use slackline_core::stats::Rng;
use slackline_session::time::Time;

use super::super::setting::region;
use super::super::workload::{Seat, Step, Told, Workload, read_all};

/// From one deadline to the next.
pub(super) const PERIOD: Duration = Duration::from_secs(5);
/// The number of courses.
pub(super) const COURSES: usize = 12;
/// The number of assignments of each course.
pub(super) const ASSIGNMENTS: usize = 6;
/// The number of courses that a student takes.
pub(super) const TAKEN: usize = 4;

/// The act of a client for a student.
#[derive(Clone, Copy)]
pub(super) enum Act {
    /// The student looks at everything.
    Dashboard,
    /// Hands in an assignment of a course.
    HandIn(usize, usize),
    /// A teacher grades what was handed in for an assignment of a course.
    Grade(usize, usize),
}

impl Act {
    /// True if its transaction is to write.
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Dashboard)
    }
}

/// The workload.
pub(super) struct Courses {
    /// The number of stores.
    stores: usize,
    /// The number of students at all of them.
    pub(super) students: usize,
    /// The time of the first step, from which periods are counted; none before.
    began: Cell<Option<Time>>,
    /// Submissions, those handed in again included.
    pub(super) handed_in: Told,
}

impl Courses {
    /// Students at some stores, of whom nobody has done anything yet.
    pub(super) fn new(stores: usize, students: usize) -> Self {
        Self { stores, students, began: Cell::new(None), handed_in: Told::default() }
    }

    /// The key of an object that belongs to a course, so it is at the course's store.
    fn of_course(&self, course: usize, name: String) -> Key {
        Key::new(region(course % self.stores), name)
    }

    fn course(&self, course: usize) -> Key {
        self.of_course(course, format!("course/{course:02}"))
    }

    fn assignment(&self, course: usize, order: usize) -> Key {
        self.of_course(course, format!("assignment/{course:02}/{order}"))
    }

    /// The number of times that something was handed in for an assignment: a counter.
    fn count(&self, course: usize, order: usize) -> Key {
        self.of_course(course, format!("count/{course:02}/{order}"))
    }

    /// The number of times that a student has handed an assignment in.
    fn submission(&self, course: usize, order: usize, student: usize) -> Key {
        self.of_course(course, format!("submission/{course:02}/{order}/{student:05}"))
    }

    /// A student's grades in a course: for each assignment, which submission was graded.
    fn grades(&self, course: usize, student: usize) -> Key {
        self.of_course(course, format!("grades/{course:02}/{student:05}"))
    }

    /// The courses that a student takes.
    pub(super) fn taken(student: usize) -> impl Iterator<Item = usize> {
        (0..TAKEN).map(move |order| (student * 5 + order * 7) % COURSES)
    }

    /// The assignment that is due next, and whether that is soon.
    fn due(&self, now: Time) -> (usize, bool) {
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        let (passed, period) = ((now - began).as_micros(), PERIOD.as_micros());
        ((passed / period) as usize % ASSIGNMENTS, passed % period >= period * 4 / 5)
    }

    /// Draws the next act of a client at a store, and its student.
    pub(super) fn next(&self, now: Time, store: usize, rng: &mut Rng) -> (Act, usize) {
        let (due, is_soon) = self.due(now);
        let near = rng.below((self.students / self.stores) as u64) as usize;
        let student = near * self.stores + store;

        // Before a deadline one in five transactions hands in, otherwise one in fifty.
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
    pub(super) fn note(&self, act: Act, outcome: &Outcome<Committed<()>>) {
        if let Act::HandIn(..) = act {
            self.handed_in.note(outcome);
        }
    }

    /// The students who take a course.
    fn students_of(&self, course: usize) -> impl Iterator<Item = usize> {
        (0..self.students).filter(move |student| Self::taken(*student).any(|taken| taken == course))
    }

    async fn dashboard(&self, txn: Txn, student: usize) -> Result<(), TxnError> {
        // The courses first: what else there is depends on what they hold.
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

        // The count is added to, not read, so students who hand in at once do not conflict over it.
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
            objects.extend(
                self.students_of(course)
                    .map(|student| (self.grades(course, student), bytes(json!(vec![0; ASSIGNMENTS])))),
            );
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

    /// Checks that what was handed in is what the counters say and clients were told, and that nothing was graded that is not there.
    async fn verify(&self, seat: &Seat) -> Result<(), String> {
        let mut total = 0;
        for course in 0..COURSES {
            let students: Vec<usize> = self.students_of(course).collect();
            let keys: Vec<Key> = students.iter().map(|student| self.grades(course, *student)).collect();
            let grades = read_all(seat, &keys).await?;
            for order in 0..ASSIGNMENTS {
                let keys: Vec<Key> = students.iter().map(|student| self.submission(course, order, *student)).collect();
                let versions: Vec<u64> = read_all(seat, &keys).await?.iter().map(number).collect();
                let counted = match read_all(seat, &[self.count(course, order)]).await?[0] {
                    Some(Value::Counter(count)) => count as u64,
                    _ => return Err("a counter is missing".into()),
                };

                // Each submission holds how often it was handed in, and each time the counter was added to.
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
        self.handed_in.check(total, "submissions")
    }
}

/// The number of times that a submission was handed in. A value that is no number counts as more than any run can have.
fn number(value: &Option<Value>) -> u64 {
    match value {
        Some(Value::Bytes(bytes)) => serde_json::from_slice(bytes).unwrap_or(u64::MAX / 4),
        _ => 0,
    }
}

/// The grades of a student in a course.
fn list(value: &Option<Value>) -> Vec<u64> {
    match value {
        Some(Value::Bytes(bytes)) => serde_json::from_slice(bytes).unwrap_or_default(),
        _ => Vec::new(),
    }
}
