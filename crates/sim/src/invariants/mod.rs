//! What must hold in every run, one property a file. Each is plain data and functions, so that its test can show it a
//! broken state.

pub mod agreement;
pub mod answers;
pub mod bounded_work;
pub mod callers;
pub mod clock_errors;
pub mod clock_marks;
pub mod conservation;
pub mod forgetting;
pub mod holds;
pub mod limit;
pub mod liveness;
pub mod lives;
pub mod looked_after;
pub mod once;
pub mod quorums;
pub mod refill;
pub mod refusal;
pub mod release;
pub mod serializable;
pub mod survival;
pub mod treaties;
pub mod turns;

/// An invariant that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which one.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

impl Violation {
    /// Names the invariant that a check says does not hold.
    pub fn of(invariant: &'static str) -> impl Fn(String) -> Violation {
        move |what| Violation { invariant, what }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}
