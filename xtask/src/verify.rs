//! `verify` and `fix`.

use std::time::Instant;

use crate::{cargo, tidy};

/// The binary that can be told to crash in the middle of a two-phase commit.
const CRASH_POINTS: &str = "slackline-cli/crash-points";

/// Runs every check; true if all passed.
pub(crate) fn verify() -> bool {
    let mut passed = 0;
    let mut failed = Vec::new();
    let mut check = |name: &'static str, run: &dyn Fn() -> bool| {
        println!("== {name}");
        let start = Instant::now();
        let good = run();
        println!("== {name}: {} ({:.0} s)", if good { "passed" } else { "FAILED" }, start.elapsed().as_secs_f64());
        if good { passed += 1 } else { failed.push(name) }
    };
    check("formatting", &|| run(&["fmt", "--all", "--check"], &[]));
    check("layering", &|| {
        let findings = tidy::tidy();
        findings.iter().for_each(|finding| println!("{finding}"));
        findings.is_empty()
    });
    check("lints", &|| run(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]));
    check("lints of the fault layer", &|| {
        run(&["clippy", "-p", "slackline-storage", "--all-targets", "--all-features", "--", "-D", "warnings"], &[])
    });
    check("lints of the crash points", &|| {
        run(&["clippy", "--workspace", "--all-targets", "--features", CRASH_POINTS, "--", "-D", "warnings"], &[])
    });
    // The command line under test is the one in the same build.
    check("tests", &|| run(&["test", "--workspace", "--no-fail-fast"], &[]));
    check("tests of the fault layer", &|| run(&["test", "-p", "slackline-storage", "--all-features"], &[]));
    // The workspace as above but for this feature, so that only what has it is built again.
    check("crash points", &|| run(&["test", "--workspace", "--features", CRASH_POINTS, "--test", "crash_points"], &[]));
    check("docs", &|| run(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")]));
    println!();
    failed.iter().for_each(|name| println!("failed: {name}"));
    println!("{passed} passed, {} failed", failed.len());
    failed.is_empty()
}

/// Formats, and applies what clippy suggests.
pub(crate) fn fix() -> bool {
    run(&["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"], &[])
        && run(&["fmt", "--all"], &[])
        && run(&["test", "-p", "slackline-core", "--test", "it", "scripts"], &[("UPDATE_SCRIPTS", "1")])
}

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> bool {
    let mut command = cargo();
    command.args(arguments).envs(environment.iter().copied());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cargo does not start: {error}");
            false
        }
    }
}
