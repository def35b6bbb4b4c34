//! Spans that somebody has scanned, found by a name that is in them.
//!
//! A write looks whether it is in one. There may be tens of thousands, of transactions in doubt while a site is down, and thousands of
//! writes in one call: so nothing here compares one with the other. The prefix of a span is a prefix of each name in it, and of spans with
//! one prefix those come first that begin first.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{CALL_MARK, Span};

/// Spans, each with whom it is of.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Spans<T> {
    /// By prefix: after which name each begins, and whom it is of. No set is empty.
    by_prefix: BTreeMap<String, BTreeSet<(String, T)>>,
}

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Self { by_prefix: BTreeMap::new() }
    }
}

impl<T: Ord> Spans<T> {
    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_prefix.is_empty()
    }

    /// Adds a span. How many rows of it were asked for is no matter: all of it is taken to be scanned.
    pub(super) fn insert(&mut self, span: &Span, of: T) {
        self.by_prefix.entry(span.prefix.clone()).or_default().insert((span.after.clone(), of));
    }

    /// Removes a span of somebody, with any other one that begins where it does.
    pub(super) fn remove(&mut self, span: &Span, of: T) {
        if let Some(spans) = self.by_prefix.get_mut(&span.prefix) {
            spans.remove(&(span.after.clone(), of));
            if spans.is_empty() {
                self.by_prefix.remove(&span.prefix);
            }
        }
    }

    /// Those who have a span that this name is in; one that has several may be named as often.
    pub(super) fn over<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a T> + 'a {
        let is_scanned = !self.is_empty() && !name.starts_with(CALL_MARK);
        let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]).filter(move |_| is_scanned);
        let spans = ends.filter_map(|end| self.by_prefix.get(&name[..end]));
        spans.flat_map(move |spans| spans.iter().take_while(move |(after, _)| after.as_str() < name).map(|(_, of)| of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::table::is_within;

    #[test]
    fn name_is_in_the_spans_in_which_a_look_at_each_finds_it() {
        let span = |prefix: &str, after: &str| Span { prefix: prefix.into(), after: after.into(), limit: 3 };
        let all = [("", ""), ("", "a/x"), ("a", ""), ("a/", ""), ("a/", "a/x"), ("a/é", ""), ("b", "a"), ("b", "bb")];
        let mut spans = Spans::default();
        all.iter().zip(0..).for_each(|((prefix, after), of)| spans.insert(&span(prefix, after), of));
        for name in ["a", "a/", "a/x", "a/x1", "a/é", "a/éa", "b", "bb", "bbb", "c", "\u{1}call"] {
            let within = all.iter().zip(0..).filter(|((prefix, after), _)| is_within(&span(prefix, after), name));
            let within: BTreeSet<i32> = within.map(|(_, of)| of).collect();
            assert_eq!(spans.over(name).copied().collect::<BTreeSet<_>>(), within, "{name}");
        }

        all.iter().zip(0..).for_each(|((prefix, after), of)| spans.remove(&span(prefix, after), of));
        assert!(spans.is_empty() && spans.over("a").next().is_none());
    }
}
