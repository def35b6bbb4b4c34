//! `bench courses`: a course management system. It is generated: courses, students, assignments with deadlines, submissions
//! and grades, with many more reads than writes, and a burst of submissions before each deadline.
//!
//! A course and all that belongs to it is at one store; a student uses the store that is near, and takes courses anywhere.
//! Three of four transactions are a student's dashboard: their courses, the assignments of these, what they have handed in
//! and their grades. Every `PERIOD` one assignment of each course is due; in the last fifth of it one in five transactions
//! hands it in, otherwise one in fifty.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `coursework` | the transactions |
//! | `relational` | the same ones on PostgreSQL, to compare with |
//! | `statements` | their SQL |

mod coursework;
mod relational;
mod statements;

use super::run::{run, run_each};
use super::setting::{Config, Terms, TxnsError};
use super::tally;
use crate::named::named;
use crate::postgres::Installation;
use crate::report::{Report, runs_and_figure};
use coursework::{ASSIGNMENTS, COURSES, Courses, PERIOD, TAKEN};
use statements::Checked;

/// A system that Slackline is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Baseline {
    /// Optimistic locking by version columns, on PostgreSQL.
    Postgres,
}

named!(Baseline is a "baseline": Postgres "postgres");

/// Options of `bench courses`.
#[derive(Clone, Debug)]
pub struct CoursesOptions {
    /// The sites and clients, and the length of a run.
    pub terms: Terms,
    /// The number of stores.
    pub stores: usize,
    /// The number of students in all.
    pub students: usize,
    /// A system that is run besides, on the same seed; only live.
    pub baseline: Option<Baseline>,
}

impl Default for CoursesOptions {
    fn default() -> Self {
        Self { terms: Terms::new(&Config::PLAIN, 12, 20, 20_000), stores: 3, students: 300, baseline: None }
    }
}

/// Runs `bench courses`.
pub fn courses(options: &CoursesOptions) -> Result<Report, TxnsError> {
    options.terms.refuse_computation()?;
    if !(1..=8).contains(&options.stores) || options.students < options.stores || options.terms.clients_per_store == 0 {
        return Err(TxnsError::Option("there must be 1 to 8 stores, with students and clients".into()));
    }
    if let (Some(baseline), None) = (options.baseline, &options.terms.live) {
        return Err(TxnsError::Option(format!("{baseline} takes real time: this must be live")));
    }

    // Looked for first, so that nothing runs in vain where it is missing.
    let installation = options.baseline.map(|Baseline::Postgres| Installation::find()).transpose()?;

    // The first deadline passes before anything is counted.
    let setting = |config| options.terms.setting(config, options.stores, options.terms.measure / 4);
    let workload = || Courses::new(options.stores, options.students);
    let mut measured =
        run_each(&options.terms.configs, options.terms.live.is_some(), |config| run(&setting(*config), workload()))?;
    if let Some(installation) = &installation {
        for checked in Checked::ALL {
            measured.push(relational::run(&setting(Config::Occ), workload(), installation, checked)?);
        }
    }
    let (runs, figure) = runs_and_figure("courses-latency", measured);

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
    Ok(tally::report("courses", &setting, setting.costs(), runs, facts, vec![figure]))
}
