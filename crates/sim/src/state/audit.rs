//! How far the audit of the cluster at rest is.

/// What the audit has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// All free tokens of a quota are acquired at a site, and given back.
    Acquire { book: usize, site: usize },
    /// A quota that refills is taken whole at a site, and once more as soon as it is full again.
    Refill { book: usize, site: usize },
    /// A quota that does not exist, whatever became of attempts to create it, is created at a site.
    Create { book: usize, site: usize },
    /// A site counts a quota.
    Show { book: usize, site: usize },
}

/// The task that was begun last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    /// The task.
    pub(crate) task: Task,
    /// When it was begun.
    pub(crate) since: u64,
    /// True if what it counts was answered.
    pub(crate) is_shown: bool,
}

/// What the audit does when it has no task left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Step {
    /// Looks at the books, then plans to acquire and to create.
    #[default]
    Acquires,
    /// Looks at the books again, then plans to count.
    Counts,
    /// Judges what is left, and ends the run.
    Ends,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// When everything that was wrong had ended.
    pub(crate) healed_at: u64,
    /// The time since which clients have done everything but what callers have to do; zero before.
    pub(crate) hurried_at: u64,
    /// The cluster is left alone before this.
    pub(crate) resting_until: u64,
    /// When the last task ended; none while there are tasks.
    pub(crate) idle_since: Option<u64>,
    /// What comes after the last of these.
    pub(crate) step: Step,
    /// What is to be done; the next task last.
    pub(crate) tasks: Vec<Task>,
    /// What is being done.
    pub(crate) current: Option<Current>,
    /// The tokens that the present acquire asks for.
    pub(crate) amount: i64,
    /// Which quotas were seen at rest.
    pub(crate) rested: Vec<bool>,
    /// Nothing is asked before this.
    pub(crate) pause_until: u64,
    /// The number of times that tokens were found under way before the present acquire.
    pub(crate) restless: u64,
    /// The number of times that the present task was refused.
    pub(crate) refused: u64,
}
