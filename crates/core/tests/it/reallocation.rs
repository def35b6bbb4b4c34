//! Reallocation against a slow, obvious oracle, on every small input: the inputs on which the paper's Algorithm 2 creates
//! tokens, loses them, and lets the needy end with less.

use slackline_core::avantan::{Line, reallocate};
use slackline_core::id::SiteId;

fn line(at: usize, held: i64, wanted: i64) -> Line {
    Line { site: SiteId::new(at as u16, 0), held, needed: wanted, wanted, ..Line::default() }
}

/// What ascending rejection with the total lowered meets.
fn met_by_rejecting_the_smallest(lines: &[Line], total: i64) -> i64 {
    let mut needs: Vec<i64> = lines.iter().map(|line| line.needed).collect();
    needs.sort_unstable();
    let mut asked: i64 = needs.iter().sum();
    for need in &needs {
        if asked <= total {
            break;
        }
        asked -= need;
    }
    asked
}

fn check(lines: &[Line]) {
    let total: i64 = lines.iter().map(|line| line.held).sum();
    let after = reallocate(lines, total.into());
    assert_eq!(after.iter().sum::<i64>(), total, "{lines:?}: {after:?}");
    assert!(after.iter().all(|&tokens| tokens >= 0), "{lines:?}: {after:?}");
    let met: i64 =
        lines.iter().zip(&after).filter(|(line, has)| **has >= line.needed).map(|(line, _)| line.needed).sum();
    if lines.iter().map(|line| line.needed).sum::<i64>() <= total {
        assert!(lines.iter().zip(&after).all(|(line, has)| *has >= line.needed), "all fit: {lines:?}: {after:?}");
    }
    assert!(met >= met_by_rejecting_the_smallest(lines, total), "{lines:?}: {after:?}");
}

#[test]
fn every_small_input_is_conserved_and_met_as_far_as_rejecting_the_smallest_meets_it() {
    let mut inputs = 0;
    for (sites, most) in [(1usize, 5i64), (2, 5), (3, 5), (4, 3)] {
        for code in 0..most.pow(2 * sites as u32) {
            let mut digits = code;
            let mut digit = || {
                let digit = digits % most;
                digits /= most;
                digit
            };
            let lines: Vec<Line> = (0..sites).map(|at| line(at, digit(), digit())).collect();
            check(&lines);
            inputs += 1;
        }
    }
    assert_eq!(inputs, 25 + 625 + 15_625 + 6_561);
}

#[test]
fn what_a_site_keeps_counts_towards_its_need() {
    let keeps = Line { kept: 5, needed: 5, wanted: 5, held: 4, ..line(0, 4, 5) };
    let lacks = line(1, 0, 4);
    assert_eq!(reallocate(&[keeps, lacks], 4), [0, 4]);
}

#[test]
fn amounts_at_the_edge_neither_overflow_nor_vanish() {
    let lines = [line(0, i64::MAX, i64::MAX), line(1, 0, i64::MAX), line(2, 0, 7)];
    assert_eq!(reallocate(&lines, i64::MAX.into()).iter().sum::<i64>(), i64::MAX);
    assert_eq!(reallocate(&[line(0, 0, 0), line(1, 0, 0)], i64::MAX.into()).iter().sum::<i64>(), i64::MAX);
}
