//! The SQL of `bench courses`, prepared on a connection.

use tokio_postgres::{Client, Error, Statement};

/// The checks at the end of a transaction; see `relational`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checked {
    /// The versions of what is written.
    Written,
    /// And of what was read.
    Read,
}

impl Checked {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Written, Self::Read];

    /// The name of the run.
    pub(super) fn config(self) -> &'static str {
        match self {
            Self::Written => "postgres",
            Self::Read => "postgres-validated",
        }
    }
}

/// The statements of a client, by what it does.
pub(super) struct Statements {
    /// A student looks at everything.
    pub(super) dashboard: Dashboard,
    /// A student hands something in.
    pub(super) hand_in: HandIn,
    /// A submission is graded.
    pub(super) grade: Grade,
}

/// The statements of a dashboard.
pub(super) struct Dashboard {
    /// Reads the courses that are taken.
    pub(super) courses: Statement,
    /// Reads the assignments of courses.
    pub(super) assignments: Statement,
    /// Reads what the student has handed in for courses.
    pub(super) submissions: Statement,
    /// Reads the student's grades in courses.
    pub(super) grades: Statement,
    /// Counts the rows that are as they were read.
    pub(super) unchanged: Statement,
}

/// The statements that hand something in.
pub(super) struct HandIn {
    /// Reads the assignment.
    pub(super) assignment: Statement,
    /// Reads what the student has handed in for it.
    pub(super) submission: Statement,
    /// Hands in for the first time.
    pub(super) first: Statement,
    /// Hands in again.
    pub(super) again: Statement,
}

/// The statements that grade a submission.
pub(super) struct Grade {
    /// Reads all that was handed in for an assignment.
    pub(super) submissions: Statement,
    /// Reads the grades of a student in a course.
    pub(super) grades: Statement,
    /// Writes them.
    pub(super) grade: Statement,
    /// Counts the submissions that are as they were read.
    pub(super) unchanged: Statement,
}

impl Statements {
    /// Prepares all of them; those that write check what they are told to.
    pub(super) async fn prepare(client: &Client, checked: Checked) -> Result<Self, Error> {
        let dashboard = Dashboard {
            courses: client.prepare(COURSES_OF).await?,
            assignments: client.prepare(ASSIGNMENTS_OF).await?,
            submissions: client.prepare(SUBMISSIONS_OF).await?,
            grades: client.prepare(GRADES_OF).await?,
            unchanged: client.prepare(UNCHANGED).await?,
        };

        // Two statements: an insert that meets a row is a conflict, and so is an update that meets none.
        let hand_in = HandIn {
            assignment: client.prepare(ASSIGNMENT).await?,
            submission: client.prepare(SUBMISSION).await?,
            first: client.prepare(&hand_in(checked, true)).await?,
            again: client.prepare(&hand_in(checked, false)).await?,
        };

        let grade = if checked == Checked::Read { GRADE_VALIDATED } else { GRADE };
        let grade = Grade {
            submissions: client.prepare(HANDED_IN).await?,
            grades: client.prepare(GRADES).await?,
            grade: client.prepare(grade).await?,
            unchanged: client.prepare(UNCHANGED_SUBMISSIONS).await?,
        };
        Ok(Self { dashboard, hand_in, grade })
    }
}

/// Makes the tables. Each row that a transaction may check has a version.
pub(super) const SCHEMA: &str = "
CREATE TABLE courses (course int PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE assignments (course int, assignment int, version bigint NOT NULL, PRIMARY KEY (course, assignment));
CREATE TABLE counts (course int, assignment int, handed_in bigint NOT NULL, PRIMARY KEY (course, assignment));
CREATE TABLE submissions (student int, course int, assignment int, times bigint NOT NULL, version bigint NOT NULL,
    PRIMARY KEY (student, course, assignment));
CREATE INDEX ON submissions (course, assignment);
CREATE TABLE grades (student int, course int, graded bigint[] NOT NULL, version bigint NOT NULL,
    PRIMARY KEY (student, course));
";

/// The reads of a dashboard: first the courses, then what belongs to them.
const COURSES_OF: &str = "SELECT course, version FROM courses WHERE course = ANY($1)";
const ASSIGNMENTS_OF: &str = "SELECT course, assignment, version FROM assignments WHERE course = ANY($1)";
const SUBMISSIONS_OF: &str =
    "SELECT course, assignment, version, times FROM submissions WHERE student = $1 AND course = ANY($2)";
const GRADES_OF: &str = "SELECT course, version, graded FROM grades WHERE student = $1 AND course = ANY($2)";
/// Counts the rows that are as a dashboard read them.
const UNCHANGED: &str = "SELECT
    (SELECT count(*) FROM courses JOIN unnest($2::int[], $3::bigint[]) AS read(course, version) USING (course, version))
  + (SELECT count(*) FROM assignments JOIN unnest($4::int[], $5::int[], $6::bigint[]) AS read(course, assignment, version)
        USING (course, assignment, version))
  + (SELECT count(*) FROM submissions JOIN unnest($7::int[], $8::int[], $9::bigint[]) AS read(course, assignment, version)
        USING (course, assignment, version) WHERE student = $1)
  + (SELECT count(*) FROM grades JOIN unnest($10::int[], $11::bigint[]) AS read(course, version)
        USING (course, version) WHERE student = $1)";

/// The reads before something is handed in.
const ASSIGNMENT: &str = "SELECT version FROM assignments WHERE course = $1 AND assignment = $2";
const SUBMISSION: &str =
    "SELECT times, version FROM submissions WHERE course = $1 AND assignment = $2 AND student = $3";

/// The reads before something is graded.
const HANDED_IN: &str = "SELECT student, version, times FROM submissions WHERE course = $1 AND assignment = $2";
const GRADES: &str = "SELECT graded, version FROM grades WHERE student = $1 AND course = $2";
/// Writes the grades that were read, if nobody has written them since.
const GRADE: &str = "UPDATE grades SET graded = $3, version = version + 1
    WHERE student = $1 AND course = $2 AND version = $4";
/// As before; and what was scanned is share-locked, in an order, and compared.
const GRADE_VALIDATED: &str = "WITH read AS (
        SELECT FROM submissions JOIN unnest($6::int[], $7::bigint[]) AS read(student, version) USING (student, version)
        WHERE course = $2 AND assignment = $5 ORDER BY student FOR SHARE OF submissions)
    UPDATE grades SET graded = $3, version = version + 1
    WHERE student = $1 AND course = $2 AND version = $4 AND (SELECT count(*) FROM read) = cardinality($6)";
/// Counts the submissions that are as they were scanned.
const UNCHANGED_SUBMISSIONS: &str = "SELECT count(*) FROM submissions
    JOIN unnest($3::int[], $4::bigint[]) AS read(student, version) USING (student, version)
    WHERE course = $1 AND assignment = $2";

/// Hands in for the first time, or again; counts that if it was done. What was read of the assignment is parameter 6.
fn hand_in(checked: Checked, is_first: bool) -> String {
    let (read, holds) = match checked {
        Checked::Written => ("", "TRUE"),
        Checked::Read => (
            "read AS (SELECT FROM assignments WHERE course = $1 AND assignment = $2 AND version = $6 FOR SHARE), ",
            "EXISTS (SELECT FROM read)",
        ),
    };

    let write = match is_first {
        true => format!(
            "INSERT INTO submissions (course, assignment, student, times, version)
             SELECT $1, $2, $3::int, $4::bigint, $5::bigint + 1 WHERE {holds} ON CONFLICT DO NOTHING"
        ),
        false => format!(
            "UPDATE submissions SET times = $4, version = version + 1
             WHERE course = $1 AND assignment = $2 AND student = $3 AND version = $5 AND {holds}"
        ),
    };

    // All in one statement: the count goes up if and only if the submission was written.
    format!(
        "WITH {read}written AS ({write} RETURNING TRUE)
         UPDATE counts SET handed_in = handed_in + 1
         WHERE course = $1 AND assignment = $2 AND EXISTS (SELECT FROM written)"
    )
}
