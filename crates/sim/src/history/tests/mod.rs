//! Histories written by hand: each kind of anomaly once, caught as that kind, and good ones beside them.

mod brute;
mod random;
mod store;

use super::*;

/// Short forms of ops.
mod ops {
    use super::{Key, Op};

    pub(super) fn append(key: Key, element: u64) -> Op {
        Op::Append { key, element }
    }

    pub(super) fn list(key: Key, elements: &[u64]) -> Op {
        Op::List { key, elements: elements.to_vec() }
    }

    pub(super) fn write(key: Key, value: u64) -> Op {
        Op::Write { key, value }
    }

    pub(super) fn read(key: Key, value: u64) -> Op {
        Op::Read { key, value: Some(value) }
    }

    pub(super) fn absent(key: Key) -> Op {
        Op::Read { key, value: None }
    }

    pub(super) fn delete(key: Key) -> Op {
        Op::Delete { key }
    }

    pub(super) fn remove(prefix: Key, element: u64) -> Op {
        Op::Remove { prefix, element }
    }

    pub(super) fn page(prefix: Key, from: u64, to: u64, elements: &[u64]) -> Op {
        Op::Page { prefix, from, to, elements: elements.to_vec() }
    }

    pub(super) fn since(key: Key, sum: i64) -> Op {
        Op::Since { key, sum }
    }

    pub(super) fn insert(prefix: Key, element: u64) -> Op {
        Op::Insert { prefix, element }
    }

    pub(super) fn scan(prefix: Key, elements: &[u64]) -> Op {
        Op::Members { prefix, elements: elements.to_vec() }
    }

    pub(super) fn count(prefix: Key, count: u64) -> Op {
        Op::Count { prefix, count }
    }

    pub(super) fn add(key: Key, delta: i64) -> Op {
        Op::Add { key, delta }
    }

    pub(super) fn sum(key: Key, value: i64) -> Op {
        Op::Sum { key, value }
    }

    pub(super) fn saw(home: Key, number: u64) -> Op {
        Op::Incarnation { home, number }
    }
}

use ops::*;

/// A history in the making: labels from 1, one client each.
struct Script {
    history: History,
    /// Whether all are concurrent, whatever times the script says.
    timeless: bool,
}

impl Script {
    fn new() -> Self {
        Self { history: History::new(), timeless: false }
    }

    fn push(&mut self, fate: Fate, invoked: u64, completed: Option<u64>, ops: Vec<Op>) -> &mut Self {
        let label = self.history.transactions.len() as u64 + 1;
        let (invoked, completed) =
            if self.timeless { (0, completed.map(|_| u64::MAX - 1)) } else { (invoked, completed) };
        self.history.push(Transaction { label, process: label, invoked, completed, fate, ops });
        self
    }

    /// Committed, between two times.
    fn at(&mut self, invoked: u64, completed: u64, ops: impl Into<Vec<Op>>) -> &mut Self {
        self.push(Fate::Committed, invoked, Some(completed), ops.into())
    }

    /// Committed, concurrent with all others.
    fn ok(&mut self, ops: impl Into<Vec<Op>>) -> &mut Self {
        self.at(0, 1_000, ops)
    }

    fn aborted(&mut self, ops: impl Into<Vec<Op>>) -> &mut Self {
        self.push(Fate::Aborted, 0, Some(1_000), ops.into())
    }

    fn unknown(&mut self, invoked: u64, ops: impl Into<Vec<Op>>) -> &mut Self {
        self.push(Fate::Unknown, invoked, None, ops.into())
    }
}

/// The verdict on a history over the keys x and y.
fn verdict(timeless: bool, write: impl Fn(&mut Script, Key, Key)) -> Result<Summary, Anomaly> {
    let mut script = Script { timeless, ..Script::new() };
    let (x, y) = (script.history.key("x"), script.history.key("y"));
    write(&mut script, x, y);
    check(&script.history)
}

fn passes(write: impl Fn(&mut Script, Key, Key)) {
    let verdict = verdict(false, write);
    assert!(verdict.is_ok(), "{}", verdict.expect_err("it is not"));
}

/// Caught as this kind, needing no real time.
#[track_caller]
fn caught(kind: Kind, write: impl Fn(&mut Script, Key, Key)) -> Anomaly {
    let found = verdict(false, write).expect_err("an anomaly");
    assert_eq!((found.kind, found.realtime), (kind, false), "{found}");
    found
}

/// Caught as this kind, and nothing is wrong with it if all transactions are concurrent.
#[track_caller]
fn caught_in_real_time(kind: Kind, write: impl Fn(&mut Script, Key, Key)) -> Anomaly {
    let timeless = verdict(true, &write);
    assert!(timeless.is_ok(), "without times: {}", timeless.expect_err("it is not"));
    let found = verdict(false, write).expect_err("an anomaly");
    assert_eq!((found.kind, found.realtime), (kind, true), "{found}");
    found
}

#[test]
fn nothing_and_reads_of_nothing_pass() {
    passes(|_, _, _| {});
    passes(|t, x, y| {
        t.ok([list(x, &[]), absent(x), scan(x, &[]), count(x, 0), sum(x, 0)]).ok([list(y, &[]), absent(x)]);
    });
}

#[test]
fn homes_whose_incarnations_only_rise_pass() {
    passes(|t, x, y| {
        t.at(0, 5, [saw(x, 1), append(x, 1)]).at(10, 30, [saw(x, 1), saw(y, 2)]).at(20, 40, [saw(x, 3), saw(y, 2)]);
        t.at(20, 40, [saw(x, 3), saw(y, 4)]).at(41, 45, [saw(x, 3), saw(y, 4)]).at(0, 50, [saw(x, 2)]);
    });
    // One that was aborted, or of which nobody knows whether it committed, may have seen anything.
    passes(|t, x, _| {
        t.at(0, 5, [saw(x, 2)])
            .push(Fate::Aborted, 10, Some(20), vec![saw(x, 1)])
            .unknown(10, [saw(x, 1), append(x, 1)]);
    });
}

#[test]
fn what_was_lost_is_seen_again_after_the_loss_was_seen() {
    caught_in_real_time(Kind::GSingle, |t, x, _| _ = t.at(0, 5, [saw(x, 2)]).at(6, 9, [saw(x, 1)]));
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        _ = t.at(0, 5, [saw(x, 4)]).at(0, 9, [saw(x, 2)]).at(6, 9, [saw(x, 1)])
    });
    // By what one saw of the other, without times.
    caught(Kind::GSingle, |t, x, y| _ = t.ok([saw(x, 2), append(y, 1)]).ok([saw(x, 1), list(y, &[1])]));
    caught(Kind::G2, |t, x, y| _ = t.ok([saw(x, 1), saw(y, 2)]).ok([saw(x, 2), saw(y, 1)]));
    caught(Kind::G2, |t, x, y| _ = t.ok([saw(x, 2), list(y, &[])]).ok([saw(x, 1), append(y, 1)]).ok([list(y, &[1])]));
    caught(Kind::GSingle, |t, x, y| {
        t.ok([saw(x, 2), append(y, 1)]).unknown(0, [saw(x, 1), list(y, &[1]), append(y, 2)]).ok([list(y, &[1, 2])]);
    });
    caught(Kind::Internal, |t, x, _| _ = t.ok([saw(x, 1), saw(x, 2)]));
}

#[test]
fn transactions_that_see_their_own_writes_pass() {
    passes(|t, x, _| {
        t.at(0, 5, [append(x, 1), list(x, &[1]), append(x, 2), list(x, &[1, 2])]);
        t.at(10, 15, [list(x, &[1, 2]), append(x, 3), list(x, &[1, 2, 3]), append(x, 4)]);
        t.at(20, 25, [write(x, 1), write(x, 2), read(x, 2)]);
        t.at(30, 35, [read(x, 2), write(x, 3), read(x, 3), read(x, 3)]);
        t.at(40, 45, [count(x, 0), insert(x, 1), count(x, 1), scan(x, &[1]), insert(x, 2), scan(x, &[2, 1])]);
        t.at(50, 55, [add(x, -5), sum(x, -5), add(x, 2), sum(x, -3)]);
        t.at(60, 65, [sum(x, -3), scan(x, &[1, 2]), read(x, 3), list(x, &[1, 2, 3, 4])]);
    });
}

#[test]
fn key_names_one_object_of_each_shape() {
    passes(|t, x, _| {
        t.ok([append(x, 7), write(x, 7), insert(x, 7), add(x, 7)]);
        t.ok([list(x, &[7]), read(x, 7), scan(x, &[7]), count(x, 1), sum(x, 7)]);
    });
}

#[test]
fn reads_that_contradict_their_own_transaction_are_internal() {
    let contradictions: [fn(Key) -> Vec<Op>; 11] = [
        |x| vec![append(x, 9), list(x, &[])],
        |x| vec![list(x, &[]), append(x, 9), list(x, &[1, 9])],
        |x| vec![list(x, &[1]), list(x, &[])],
        |x| vec![list(x, &[9]), append(x, 9)],
        |x| vec![write(x, 9), read(x, 1)],
        |x| vec![read(x, 1), absent(x)],
        |x| vec![insert(x, 9), scan(x, &[1])],
        |x| vec![scan(x, &[1]), count(x, 2)],
        |x| vec![insert(x, 9), count(x, 0)],
        |x| vec![count(x, 0), insert(x, 9), scan(x, &[1, 9])],
        |x| vec![sum(x, 0), add(x, 2), sum(x, 1)],
    ];
    for ops in contradictions {
        caught(Kind::Internal, |t, x, _| {
            t.ok([append(x, 1), write(x, 1), insert(x, 1), add(x, 1)]).ok(ops(x));
        });
    }
}

#[test]
fn value_that_nobody_wrote_is_garbage() {
    caught(Kind::Garbage, |t, x, _| _ = t.ok([read(x, 1)]));
    caught(Kind::Garbage, |t, x, _| _ = t.ok([append(x, 1)]).ok([list(x, &[2])]));
    caught(Kind::Garbage, |t, x, y| _ = t.ok([insert(x, 1)]).ok([scan(y, &[1])]));
}

#[test]
fn element_read_twice_is_a_duplicate() {
    caught(Kind::Duplicate, |t, x, _| _ = t.ok([append(x, 1)]).ok([append(x, 2)]).ok([list(x, &[1, 2, 1])]));
    caught(Kind::Duplicate, |t, x, _| _ = t.ok([insert(x, 1)]).ok([scan(x, &[1, 1])]));
}

#[test]
fn aborted_write_that_is_read_is_g1a() {
    caught(Kind::AbortedRead, |t, x, _| _ = t.aborted([append(x, 1)]).ok([list(x, &[1])]));
    caught(Kind::AbortedRead, |t, x, _| _ = t.aborted([write(x, 1)]).ok([read(x, 1)]));
    caught(Kind::AbortedRead, |t, x, _| _ = t.aborted([insert(x, 1)]).ok([scan(x, &[1])]));
}

#[test]
fn value_that_was_tried_again_after_an_abort_passes() {
    passes(|t, x, _| _ = t.aborted([append(x, 1), append(x, 2)]).ok([append(x, 1)]).ok([list(x, &[1])]));
    passes(|t, x, _| _ = t.ok([write(x, 1)]).aborted([write(x, 1), write(x, 2)]).ok([read(x, 1)]));
}

#[test]
fn write_that_its_transaction_went_on_from_is_g1b_if_read() {
    caught(Kind::IntermediateRead, |t, x, _| _ = t.ok([append(x, 1), append(x, 2)]).ok([list(x, &[1])]));
    caught(Kind::IntermediateRead, |t, x, _| _ = t.ok([write(x, 1), write(x, 2)]).ok([read(x, 1)]));
}

#[test]
fn lists_of_which_neither_is_a_prefix_are_an_incompatible_order() {
    let found = caught(Kind::IncompatibleOrder, |t, x, _| {
        t.ok([append(x, 1)]).ok([append(x, 2)]).ok([list(x, &[1, 2])]).ok([list(x, &[2])]);
    });
    assert_eq!(found.labels, [4, 3]);
    caught(Kind::IncompatibleOrder, |t, x, _| _ = t.ok([append(x, 1), append(x, 2)]).ok([list(x, &[2])]));
    caught(Kind::IncompatibleOrder, |t, x, _| {
        t.ok([append(x, 1), append(x, 2)]).ok([append(x, 3)]).ok([list(x, &[2, 1, 3])]);
    });
}

#[test]
fn writes_in_opposite_orders_are_g0() {
    caught(Kind::G0, |t, x, y| {
        t.ok([append(x, 1), append(y, 1)]).ok([append(x, 2), append(y, 2)]).ok([list(x, &[1, 2]), list(y, &[2, 1])]);
    });
}

#[test]
fn write_amid_the_writes_of_another_is_g0() {
    caught(Kind::G0, |t, x, _| _ = t.ok([append(x, 1), append(x, 2)]).ok([append(x, 3)]).ok([list(x, &[1, 3, 2])]));
    // The last element was lost, and others went on without it.
    caught(Kind::G0, |t, x, _| _ = t.ok([append(x, 1), append(x, 2)]).ok([append(x, 3)]).ok([list(x, &[1, 3])]));
}

#[test]
fn transactions_that_read_each_other_are_g1c() {
    caught(Kind::G1c, |t, x, y| _ = t.ok([append(x, 1), list(y, &[1])]).ok([append(y, 1), list(x, &[1])]));
    caught(Kind::G1c, |t, x, y| _ = t.ok([write(x, 1), read(y, 1)]).ok([write(y, 1), read(x, 1)]));
    let found = caught(Kind::G1c, |t, x, y| {
        t.ok([insert(x, 1), scan(y, &[1])]).ok([insert(y, 1), read(x, 1)]).ok([write(x, 1), scan(x, &[1])]);
    });
    assert_eq!(found.labels.len(), 3);
}

#[test]
fn half_of_a_transaction_seen_is_g_single() {
    caught(Kind::GSingle, |t, x, y| _ = t.ok([append(x, 1), append(y, 1)]).ok([list(x, &[1]), list(y, &[])]));
    caught(Kind::GSingle, |t, x, y| _ = t.ok([write(x, 1), write(y, 1)]).ok([read(x, 1), absent(y)]));
    caught(Kind::GSingle, |t, x, y| {
        t.ok([write(x, 1)]).ok([read(x, 1), write(x, 2), write(y, 2)]).ok([read(x, 1), read(y, 2)]);
    });
}

#[test]
fn write_skew_is_g2() {
    let found = caught(Kind::G2, |t, x, y| {
        t.ok([list(x, &[]), list(y, &[]), append(x, 1)]).ok([list(x, &[]), list(y, &[]), append(y, 1)]);
        t.ok([list(x, &[1]), list(y, &[1])]);
    });
    let said = "G2\n  T1 before T2 (rw, list y): T1 read []; T2 read [], append 1\n  \
                T2 before T1 (rw, list x): T2 read []; T1 read [], append 1";
    assert_eq!(found.to_string(), said);
    caught(Kind::G2, |t, x, y| _ = t.ok([absent(y), write(x, 1)]).ok([absent(x), write(y, 1)]));
}

#[test]
fn long_fork_is_g2() {
    caught(Kind::G2, |t, x, y| {
        t.ok([write(x, 1)]).ok([write(y, 1)]).ok([absent(x), read(y, 1)]).ok([read(x, 1), absent(y)]);
    });
    caught(Kind::G2, |t, x, y| {
        t.ok([append(x, 1)]).ok([append(y, 1)]).ok([list(x, &[]), list(y, &[1])]).ok([list(x, &[1]), list(y, &[])]);
    });
}

#[test]
fn two_updates_of_the_same_version_are_a_lost_update() {
    caught(Kind::LostUpdate, |t, x, _| {
        t.ok([write(x, 1)]).ok([read(x, 1), write(x, 2)]).ok([read(x, 1), write(x, 3)]);
    });
    caught(Kind::LostUpdate, |t, x, _| _ = t.ok([absent(x), write(x, 2)]).ok([absent(x), write(x, 3)]));
    caught(Kind::LostUpdate, |t, x, _| {
        t.ok([list(x, &[]), append(x, 1)]).ok([list(x, &[]), append(x, 2)]).ok([list(x, &[2])]);
    });
    caught(Kind::LostUpdate, |t, x, _| _ = t.ok([sum(x, 0), add(x, 1)]).ok([sum(x, 0), add(x, 2)]));
}

#[test]
fn blind_write_between_a_read_and_its_write_is_g_single() {
    // Read, and lost: what came before the third is what came before the second.
    caught(Kind::GSingle, |t, x, _| {
        t.ok([append(x, 1)]).ok([append(x, 2)]).ok([list(x, &[1]), append(x, 3)]).ok([list(x, &[1, 2, 3])]);
    });
}

#[test]
fn stale_read_is_g_single_in_real_time() {
    let found = caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 10, [append(x, 1)]).at(20, 30, [list(x, &[])]).at(40, 50, [list(x, &[1])]);
    });
    assert!(found.to_string().contains("T1 before T2 (real time): completed at 10, invoked at 20"), "{found}");
    caught_in_real_time(Kind::GSingle, |t, x, _| _ = t.at(0, 10, [write(x, 1)]).at(20, 30, [absent(x)]));
}

#[test]
fn stale_read_of_a_register_that_is_written_blindly_is_g_single_in_real_time() {
    let found = caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 10, [write(x, 1)]).at(20, 30, [write(x, 2)]).at(40, 50, [read(x, 1)]);
    });
    assert!(found.to_string().contains("rw, register x, by the times"), "{found}");
    // The read-modify-write leaves no room for the other write.
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 10, [write(x, 1)]).at(20, 30, [write(x, 2)]).at(40, 50, [read(x, 1), write(x, 3)]);
    });
    // Nor does one whose only trace is that somebody read it, before the stale read.
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 90, [write(x, 1)]).at(0, 90, [write(x, 2)]);
        t.at(10, 20, [read(x, 1)]).at(30, 40, [read(x, 2)]).at(50, 60, [read(x, 1)]);
    });
}

#[test]
fn writes_against_real_time_are_g0_in_real_time() {
    caught_in_real_time(Kind::G0, |t, x, _| {
        t.at(0, 10, [append(x, 1)]).at(20, 30, [append(x, 2)]).at(40, 50, [list(x, &[2, 1])]);
    });
}

#[test]
fn read_of_the_future_is_g1c_in_real_time() {
    caught_in_real_time(Kind::G1c, |t, x, _| _ = t.at(0, 10, [read(x, 1)]).at(20, 30, [write(x, 1)]));
}

#[test]
fn write_skew_by_way_of_real_time_is_g2_in_real_time() {
    caught_in_real_time(Kind::G2, |t, x, y| {
        t.at(0, 10, [write(y, 1)]).at(20, 30, [absent(x)]);
        t.at(0, 30, [write(x, 1), append(x, 1)]).at(0, 30, [list(x, &[1]), absent(y)]);
    });
}

#[test]
fn scan_that_misses_what_others_insert_is_a_phantom() {
    // Predicate write skew: each saw nothing under the prefix, and inserted.
    caught(Kind::Phantom, |t, x, _| _ = t.ok([scan(x, &[]), insert(x, 1)]).ok([scan(x, &[]), insert(x, 2)]));
    caught(Kind::Phantom, |t, x, _| _ = t.ok([count(x, 0), insert(x, 1)]).ok([count(x, 0), insert(x, 2)]));
    // Half of a transaction's inserts.
    caught(Kind::Phantom, |t, x, _| _ = t.ok([insert(x, 1), insert(x, 2)]).ok([scan(x, &[2])]));
    caught(Kind::Phantom, |t, x, y| _ = t.ok([insert(x, 1), write(y, 1)]).ok([read(y, 1), scan(x, &[])]));
    caught_in_real_time(Kind::Phantom, |t, x, _| {
        t.at(0, 10, [insert(x, 1)]).at(5, 15, [insert(x, 2)]).at(20, 30, [scan(x, &[2])]);
    });
}

#[test]
fn counts_in_opposite_orders_are_phantoms() {
    caught(Kind::Phantom, |t, x, y| {
        t.ok([insert(x, 1)]).ok([insert(y, 1)]).ok([count(x, 0), count(y, 1)]).ok([count(x, 1), count(y, 0)]);
    });
    // One counted 1 and left 3 behind; there is no room for another's 2.
    caught(Kind::Phantom, |t, x, _| {
        t.ok([insert(x, 1)]).ok([count(x, 1), insert(x, 2), insert(x, 3)]).ok([insert(x, 4)]).ok([count(x, 2)]);
    });
}

#[test]
fn stale_count_is_out_of_bounds_in_real_time() {
    caught_in_real_time(Kind::Bounds, |t, x, _| {
        t.at(0, 10, [insert(x, 1)]).at(5, 12, [insert(x, 2)]).at(20, 30, [count(x, 1)]);
    });
    caught_in_real_time(Kind::Bounds, |t, x, _| _ = t.at(0, 10, [count(x, 1)]).at(20, 30, [insert(x, 1)]));
    caught(Kind::Bounds, |t, x, _| _ = t.ok([insert(x, 1)]).ok([count(x, 2)]));
    passes(|t, x, _| _ = t.at(0, 10, [insert(x, 1)]).at(5, 25, [insert(x, 2)]).at(20, 30, [count(x, 1)]));
}

#[test]
fn sum_that_no_choice_of_changes_gives_is_out_of_bounds() {
    caught(Kind::Bounds, |t, x, _| _ = t.ok([add(x, 5)]).ok([add(x, -3)]).ok([sum(x, 6)]));
    caught_in_real_time(Kind::Bounds, |t, x, _| {
        t.at(0, 10, [add(x, 5)]).at(0, 10, [add(x, -3)]).at(5, 30, [add(x, 4)]).at(20, 30, [sum(x, 1)]);
    });
    passes(|t, x, _| {
        t.at(0, 10, [add(x, 5)]).at(0, 10, [add(x, -3)]).at(5, 30, [add(x, 4)]);
        t.at(20, 30, [sum(x, 2)]).at(20, 30, [sum(x, 6)]);
    });
}

#[test]
fn registers_that_are_deleted_and_written_again_pass() {
    passes(|t, x, _| {
        t.at(0, 5, [delete(x), absent(x)]).at(10, 15, [absent(x), write(x, 1)]).at(20, 25, [read(x, 1), delete(x)]);
        t.at(30, 35, [absent(x), delete(x), absent(x)]).at(40, 45, [write(x, 2), delete(x), write(x, 3)]);
        t.at(50, 55, [read(x, 3)]);
    });
    // Which deletion was met, nobody knows.
    passes(|t, x, _| _ = t.ok([delete(x)]).ok([write(x, 1)]).ok([write(x, 2)]).ok([delete(x)]).ok([absent(x)]));
    passes(|t, x, _| _ = t.at(0, 10, [write(x, 1)]).unknown(0, [delete(x)]).at(20, 30, [absent(x)]));
}

#[test]
fn read_of_what_was_deleted_is_g_single_in_real_time() {
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 10, [write(x, 1)]).at(20, 30, [delete(x)]).at(40, 50, [read(x, 1)]);
    });
}

#[test]
fn nothing_found_where_something_was_all_the_time_is_g_single_in_real_time() {
    // Nobody has deleted it yet.
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 10, [write(x, 1)]).at(20, 30, [absent(x)]).at(40, 50, [delete(x)]);
    });
    // It was written again.
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 10, [write(x, 1)]).at(20, 30, [delete(x)]).at(40, 50, [write(x, 2)]).at(60, 70, [absent(x)]);
    });
}

#[test]
fn delete_that_ignores_who_read_is_write_skew() {
    caught(Kind::G2, |t, x, y| {
        t.ok([write(x, 1), write(y, 1)]);
        t.ok([read(x, 1), read(y, 1), delete(x)]).ok([read(x, 1), read(y, 1), write(y, 2)]);
    });
    caught(Kind::LostUpdate, |t, x, _| {
        _ = t.ok([write(x, 1)]).ok([read(x, 1), delete(x)]).ok([read(x, 1), write(x, 2)])
    });
    // Both found that it had been deleted, and wrote it. Time tells that it was that deletion.
    caught(Kind::LostUpdate, |t, x, _| {
        t.at(0, 5, [write(x, 1)]).at(10, 15, [delete(x)]);
        t.at(20, 30, [absent(x), write(x, 2)]).at(20, 30, [absent(x), write(x, 3)]);
    });
}

#[test]
fn elements_that_are_taken_out_are_gone_from_then_on() {
    passes(|t, x, _| {
        t.at(0, 5, [insert(x, 1), insert(x, 2)]).at(
            10,
            15,
            [scan(x, &[1, 2]), remove(x, 1), scan(x, &[2]), count(x, 1)],
        );
        t.at(20, 25, [scan(x, &[2]), count(x, 1)]).at(30, 35, [page(x, 1, 1, &[]), remove(x, 2)]).at(
            40,
            45,
            [count(x, 0)],
        );
    });
    passes(|t, x, _| _ = t.at(0, 5, [insert(x, 1)]).at(10, 20, [remove(x, 1)]).at(15, 25, [scan(x, &[1])]));
    passes(|t, x, _| _ = t.at(0, 5, [insert(x, 1)]).unknown(0, [remove(x, 1)]).at(15, 25, [scan(x, &[])]));
    caught_in_real_time(Kind::Phantom, |t, x, _| {
        t.at(0, 5, [insert(x, 1)]).at(10, 15, [remove(x, 1)]).at(20, 25, [scan(x, &[1])]);
    });
    caught_in_real_time(Kind::Phantom, |t, x, _| _ = t.at(0, 5, [insert(x, 1)]).at(10, 15, [page(x, 1, 9, &[])]));
    // Taken out only later.
    caught_in_real_time(Kind::Phantom, |t, x, _| {
        t.at(0, 5, [insert(x, 1)]).at(10, 15, [scan(x, &[])]).at(20, 25, [remove(x, 1)]);
    });
    caught_in_real_time(Kind::Bounds, |t, x, _| {
        t.at(0, 5, [insert(x, 1), insert(x, 2)]).at(10, 15, [remove(x, 1)]).at(20, 25, [count(x, 2)]);
    });
}

#[test]
fn element_that_is_taken_out_twice_or_was_never_there_is_caught() {
    caught(Kind::LostUpdate, |t, x, _| _ = t.ok([insert(x, 1)]).ok([remove(x, 1)]).ok([remove(x, 1)]));
    caught(Kind::Garbage, |t, x, _| _ = t.ok([remove(x, 1)]));
    caught(Kind::AbortedRead, |t, x, _| _ = t.aborted([insert(x, 1)]).ok([remove(x, 1)]));
    caught(Kind::Internal, |t, x, _| _ = t.ok([insert(x, 1)]).ok([scan(x, &[1]), remove(x, 1), scan(x, &[1])]));
    caught(Kind::G2, |t, x, y| {
        // Each saw that the other one's was still there. The one that read a name alone is no phantom's.
        t.ok([write(x, 1), write(y, 1)]).ok([read(x, 1), read(y, 1), delete(x)]).ok([
            read(x, 1),
            read(y, 1),
            delete(y),
        ]);
    });
    caught(Kind::Phantom, |t, x, y| {
        t.ok([insert(x, 1), insert(y, 1)]);
        t.ok([page(x, 1, 1, &[1]), remove(y, 1)]).ok([page(y, 1, 1, &[1]), remove(x, 1)]);
    });
}

#[test]
fn page_tells_of_what_is_within_it_and_of_nothing_else() {
    passes(|t, x, _| {
        t.at(0, 5, [insert(x, 1), insert(x, 5), insert(x, 9)]);
        t.at(10, 15, [page(x, 1, 4, &[1])]).at(10, 15, [page(x, 2, 8, &[5])]).at(10, 15, [page(x, 6, u64::MAX, &[9])]);
        t.at(20, 25, [page(x, 2, 9, &[5, 9]), insert(x, 7), count(x, 4)]);
    });
    caught_in_real_time(Kind::Phantom, |t, x, _| {
        t.at(0, 5, [insert(x, 1), insert(x, 5)]).at(10, 15, [page(x, 1, 4, &[])]);
    });
    caught(Kind::Phantom, |t, x, _| {
        t.ok([page(x, 1, 4, &[]), insert(x, 6)]).ok([page(x, 5, 8, &[]), insert(x, 2)]);
    });
    caught(Kind::Internal, |t, x, _| _ = t.ok([insert(x, 5)]).ok([page(x, 1, 4, &[5])]));
    caught(Kind::Garbage, |t, x, _| _ = t.ok([insert(x, 5)]).ok([page(x, 1, 4, &[3])]));
}

#[test]
fn sum_since_a_write_has_what_was_added_since() {
    passes(|t, x, _| {
        t.at(0, 5, [add(x, 4)]).at(10, 15, [absent(x), since(x, 4)]).at(20, 25, [write(x, 1)]).at(30, 35, [add(x, -3)]);
        t.at(40, 45, [read(x, 1), since(x, -3), add(x, 1), since(x, -2)]).at(50, 55, [delete(x)]);
        t.at(60, 65, [absent(x), since(x, 0)]);
    });
    // What is under way with the write may come before or after it.
    passes(|t, x, _| _ = t.at(0, 9, [write(x, 1)]).at(0, 9, [add(x, 5)]).at(10, 15, [read(x, 1), since(x, 5)]));
    passes(|t, x, _| _ = t.at(0, 9, [write(x, 1)]).at(0, 9, [add(x, 5)]).at(10, 15, [read(x, 1), since(x, 0)]));
    // Lost; and kept though it was written since.
    caught_in_real_time(Kind::Bounds, |t, x, _| {
        t.at(0, 5, [write(x, 1)]).at(10, 15, [add(x, 5)]).at(20, 25, [read(x, 1), since(x, 0)]);
    });
    caught_in_real_time(Kind::Bounds, |t, x, _| {
        t.at(0, 5, [add(x, 5)]).at(10, 15, [write(x, 1)]).at(20, 25, [read(x, 1), since(x, 5)]);
    });
}

#[test]
fn sums_that_went_back_are_caught_only_if_nothing_was_taken_away() {
    let back = |t: &mut Script, x: Key, delta: i64| {
        t.at(0, 100, [add(x, 5)]).at(0, 100, [add(x, delta)]).at(0, 100, [add(x, 7)]);
        t.at(10, 20, [sum(x, 7)]).at(30, 40, [sum(x, 5)]);
    };
    caught_in_real_time(Kind::GSingle, |t, x, _| back(t, x, 2));
    passes(|t, x, _| back(t, x, -2));
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.at(0, 100, [add(x, -5)]).at(10, 20, [sum(x, -5)]).at(30, 40, [sum(x, 0)]);
    });
}

#[test]
fn short_cycle_in_real_time_is_told_rather_than_a_long_one_without() {
    let stale = |t: &mut Script, x: Key, y: Key| {
        t.at(0, 10, [write(x, 1), append(y, 1)]).at(0, 50, [list(y, &[1]), insert(y, 1)]);
        t.at(0, 50, [scan(y, &[1]), insert(x, 1)]).at(0, 50, [scan(x, &[1]), write(y, 1)]);
        t.at(20, 50, [read(y, 1), absent(x)]);
    };
    let long = verdict(true, stale).expect_err("a cycle");
    assert_eq!((long.kind, long.realtime, long.labels.len()), (Kind::GSingle, false, 5), "{long}");
    let short = verdict(false, stale).expect_err("a cycle");
    assert_eq!((short.kind, short.realtime, short.labels.len()), (Kind::GSingle, true, 2), "{short}");
}

#[test]
fn unknown_transaction_is_judged_only_once_it_is_seen() {
    passes(|t, x, _| _ = t.unknown(0, [append(x, 1), list(x, &[7])]).at(10, 20, [list(x, &[])]));
    passes(|t, x, _| _ = t.unknown(0, [write(x, 1)]).at(10, 20, [absent(x)]).at(30, 40, [read(x, 1)]));
    passes(|t, x, _| _ = t.unknown(0, [insert(x, 1)]).at(10, 20, [count(x, 0)]).at(30, 40, [count(x, 1)]));
    passes(|t, x, _| _ = t.unknown(0, [add(x, 1)]).at(10, 20, [sum(x, 0)]).at(30, 40, [sum(x, 1)]));
    caught(Kind::GSingle, |t, x, y| {
        t.unknown(0, [append(x, 1), append(y, 1)]).at(10, 20, [list(x, &[1]), list(y, &[])]);
    });
    caught_in_real_time(Kind::G1c, |t, x, _| _ = t.at(10, 20, [read(x, 1)]).unknown(30, [write(x, 1)]));
    caught(Kind::G1c, |t, x, y| {
        // Seen by one that was only seen itself.
        t.unknown(0, [write(x, 1), read(y, 1)]).unknown(0, [write(y, 1), read(x, 1)]).ok([read(x, 1)]);
    });
}

#[test]
fn unknown_transaction_that_was_seen_once_must_stay_seen() {
    caught_in_real_time(Kind::GSingle, |t, x, _| {
        t.unknown(0, [append(x, 1)]).at(10, 20, [list(x, &[1])]).at(30, 40, [list(x, &[])]);
    });
}

#[test]
fn aborted_reads_are_not_judged() {
    passes(|t, x, _| _ = t.aborted([read(x, 9), list(x, &[1, 1]), count(x, 5)]).ok([absent(x)]));
}

#[test]
fn times_that_are_equal_order_nothing() {
    passes(|t, x, _| _ = t.at(0, 10, [write(x, 1)]).at(10, 20, [absent(x)]));
}

#[test]
fn summary_counts_what_was_judged() {
    let summary = verdict(false, |t, x, _| {
        t.at(0, 1, [append(x, 1)]).unknown(2, [append(x, 2)]).unknown(2, [append(x, 3)]).aborted([append(x, 4)]);
        t.at(5, 6, [list(x, &[1, 2])]);
    });
    let Ok(Summary { nodes, revealed, reads, .. }) = summary else { panic!("a good history") };
    assert_eq!((nodes, revealed, reads), (3, 1, 1));
}

#[test]
#[should_panic(expected = "T1 and T2 both write 1 to x")]
fn value_written_twice_panics() {
    _ = verdict(false, |t, x, _| _ = t.ok([write(x, 1)]).unknown(0, [write(x, 1)]));
}

#[test]
fn chain_of_a_hundred_thousand_reads_does_not_use_up_the_stack() {
    let verdict = verdict(false, |t, x, _| {
        t.ok([absent(x), write(x, 1)]);
        for value in 1..100_000 {
            t.ok([read(x, value), write(x, value + 1)]);
        }
    });
    assert!(verdict.is_ok());
}

#[test]
fn edn_has_one_model_and_processes_that_do_one_thing_at_a_time() {
    let mut script = Script::new();
    let (x, y) = (script.history.key("x"), script.history.key("a \"y\""));
    script.at(1, 4, [append(x, 1), write(x, 9)]).at(4, 6, [list(x, &[1]), list(y, &[])]).unknown(5, [append(y, 2)]);
    script.aborted([append(x, 3), list(x, &[1])]).at(7, 9, [read(x, 9), absent(y), write(y, 5)]);
    script.at(2_000, 2_001, [append(x, 6)]);
    script.history.transactions.iter_mut().for_each(|txn| txn.process = txn.label % 2);
    let edn = |model| {
        let mut out = Vec::new();
        script.history.to_edn(model, &mut out).expect("a vector takes all");
        String::from_utf8(out).expect("text")
    };
    let lists = r#"{:index 0, :time 0, :process 0, :type :invoke, :f :txn, :value [[:append "x" 3] [:r "x" nil]]}
{:index 1, :time 1000, :process 1, :type :invoke, :f :txn, :value [[:append "x" 1]]}
{:index 2, :time 4000, :process 2, :type :invoke, :f :txn, :value [[:r "x" nil] [:r "a \"y\"" nil]]}
{:index 3, :time 4000, :process 1, :type :ok, :f :txn, :value [[:append "x" 1]]}
{:index 4, :time 5000, :process 1, :type :invoke, :f :txn, :value [[:append "a \"y\"" 2]]}
{:index 5, :time 6000, :process 2, :type :ok, :f :txn, :value [[:r "x" [1]] [:r "a \"y\"" []]]}
{:index 6, :time 1000000, :process 0, :type :fail, :f :txn, :value [[:append "x" 3] [:r "x" nil]]}
{:index 7, :time 2000000, :process 0, :type :invoke, :f :txn, :value [[:append "x" 6]]}
{:index 8, :time 2001000, :process 0, :type :ok, :f :txn, :value [[:append "x" 6]]}
{:index 9, :time 2001000, :process 1, :type :info, :f :txn, :value [[:append "a \"y\"" 2]]}
"#;
    assert_eq!(edn(Model::ListAppend), lists);
    let registers = r#"{:index 0, :time 1000, :process 0, :type :invoke, :f :txn, :value [[:w "x" 9]]}
{:index 1, :time 4000, :process 0, :type :ok, :f :txn, :value [[:w "x" 9]]}
{:index 2, :time 7000, :process 0, :type :invoke, :f :txn, :value [[:r "x" nil] [:r "a \"y\"" nil] [:w "a \"y\"" 5]]}
{:index 3, :time 9000, :process 0, :type :ok, :f :txn, :value [[:r "x" 9] [:r "a \"y\"" nil] [:w "a \"y\"" 5]]}
"#;
    assert_eq!(edn(Model::RwRegister), registers);
}
