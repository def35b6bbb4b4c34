//! Transactions are strictly serializable: in some order, true to real time, each sees what those before it have written.

use crate::history::{History, check as judge};

/// The invariant's name.
pub const NAME: &str = "strict serializability";

/// What clients were told fits together.
pub fn check(history: &History) -> Result<(), String> {
    judge(history).map(drop).map_err(|anomaly| anomaly.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Fate, Op, Transaction};

    #[test]
    fn stale_read_is_noticed() {
        let mut history = History::new();
        let key = history.key("x");
        let mut push = |label, invoked, ops| {
            let (process, completed, fate) = (label, Some(invoked + 1), Fate::Committed);
            history.push(Transaction { label, process, invoked, completed, fate, ops });
        };
        push(1, 10, vec![Op::Append { key, element: 1 }]);
        push(2, 20, vec![Op::List { key, elements: vec![] }]);
        assert!(check(&history).is_err());
    }
}
