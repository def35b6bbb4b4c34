//! Quotas in trees, for `--levels`: each quota that is asked for has so many above it that it has as many levels, all its own.

use slackline_core::api::{Charter, Parent};
use slackline_session::command::Command;

/// The name of the quota that is asked for, of which the first of its tree has this name.
pub(crate) fn leaf(name: &str, levels: usize) -> String {
    name.to_owned() + &"/x".repeat(levels.saturating_sub(1))
}

/// The creations of a quota and of those above it; those above come first.
pub(crate) fn creations(leaf: &str, limit: i64) -> Vec<Command> {
    let ends = leaf.match_indices('/').map(|(at, _)| at).chain([leaf.len()]);
    let mut parent = None;
    let create = |end: usize| {
        let charter = Charter { parent: parent.replace(end).map(below), ..Charter::default() };
        Command::Create { quota: leaf[..end].into(), limit, charter }
    };
    ends.map(create).collect()
}

/// The quota whose name has so many bytes, as the one above another.
fn below(end: usize) -> Parent {
    Parent { length: end as u16, generation: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_above_come_first() {
        let parts: Vec<_> = creations(&leaf("q-1", 3), 9).iter().map(|command| format!("{command:?}")).collect();
        assert_eq!(parts.len(), 3);
        assert!(parts[0].contains("\"q-1\"") && parts[0].contains("parent: None"), "{}", parts[0]);
        assert!(parts[2].contains("\"q-1/x/x\"") && parts[2].contains("length: 5"), "{}", parts[2]);
    }
}
