//! Planted bugs: each patch in `xtask/mutants` is applied to a copy of the checkout, which is built, and the ordinary sweep of
//! the simulator (or the model check) must catch it, by the invariant that the patch names in advance.
//!
//! A patch starts with lines of the form `key: value`, then `---`, then the diff:
//!
//! - `bug`: what it does wrong, in a sentence;
//! - `check`: `sweep`, `model`, or tests whose paths have TEST in them: `CRATE TEST` (those in the folder `tests` of `crates/CRATE`) or
//!   `CRATE lib TEST` (unit tests);
//! - `setups`: for the model check, a word in the names of the setups that are explored (all without);
//! - `states`: how many states of each of these are explored, if not 400,000;
//! - `seeds`: the seeds within which the sweep must catch it, if they are not 1..200;
//! - `invariant`: the name that the report must have; several, separated by `|`, where one bug may show as either.
//!
//! `seeds.txt` beside the patches has the seed of the sweep that caught each one last. That seed is tried first, and the others only
//! if it does not catch it any more; each run writes the file anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::files::files;
use crate::{cargo, root};

/// The seeds within which the sweep must catch a bug that does not say.
const SEEDS: &str = "1..200";
/// How many states of each setup are explored where `setups` names some, and the patch does not say.
const MODEL_STATES: &str = "400000";
/// The seed of the sweep that caught each bug last.
const CAUGHT: &str = "xtask/mutants/seeds.txt";
/// How many bugs are planted at the same time, each in a copy of its own. While one is compiled, which is mostly the work of one
/// thread, the sweep of another has the other cores.
const AT_ONCE: usize = 2;

struct Mutant {
    name: String,
    bug: String,
    check: String,
    seeds: String,
    /// A word in the names of the setups of the model check; all without.
    setups: Option<String>,
    /// How many states of each of those are explored.
    states: String,
    invariants: Vec<String>,
    diff: String,
}

impl Mutant {
    /// True if a seed is one of those within which the sweep must catch it.
    fn has_seed(&self, seed: &str) -> bool {
        let ends =
            self.seeds.split_once("..").and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        let seed: Option<u64> = seed.parse().ok();
        ends.zip(seed).is_some_and(|((first, last), seed)| (first..=last).contains(&seed))
    }

    /// True if a line tells of an invariant that was named in advance.
    fn names(&self, line: &str) -> bool {
        self.invariants.iter().any(|invariant| line.contains(invariant.as_str()))
    }
}

/// Plants each bug (or those named); true if every one was caught as it should be.
pub(crate) fn mutants(names: &[&str]) -> bool {
    let mutants = match read(names) {
        Ok(mutants) => mutants,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let caught = Mutex::new(read_caught());
    println!("{:<34} {:<28} {:>6}  result", "mutant", "invariant", "time");
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let (mutants, next, failed, caught) = (&mutants, &next, &failed, &caught);
            scope.spawn(move || {
                let work = root().join(format!("target/mutants/{worker}"));
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    failed.fetch_add(usize::from(!report(mutant, &work, caught)), Ordering::Relaxed);
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} passed, {failed} failed", mutants.len() - failed);
    failed == 0
}

/// Plants one bug, and prints a line about it; true if it was caught as it should be.
fn report(mutant: &Mutant, work: &Path, caught: &Mutex<BTreeMap<String, String>>) -> bool {
    let start = Instant::now();
    let last = caught.lock().expect("nobody panics with it").get(&mutant.name).cloned();
    let result = plant(mutant, work, last);
    let seed = result.as_ref().ok().and_then(|said| said.strip_prefix("seed ")?.split_once(':'));
    if let Some((seed, _)) = seed {
        note_caught(&mut caught.lock().expect("nobody panics with it"), &mutant.name, seed);
    }
    let seconds = start.elapsed().as_secs();
    let is_good = result.is_ok();
    println!(
        "{:<34} {:<28} {seconds:>4} s  {}{}",
        mutant.name,
        mutant.invariants.join("|"),
        if is_good { "" } else { "FAILED: " },
        result.unwrap_or_else(|error| error),
    );
    is_good
}

/// The planted bugs whose patches fit the checkout no longer, a sentence each. Without git nothing is known, and that is said.
pub(crate) fn stale() -> Vec<String> {
    let mutants = match read(&[]) {
        Ok(mutants) => mutants,
        Err(error) => return vec![error],
    };
    let applies = |mutant: &Mutant| -> io::Result<String> {
        let mut git = Command::new("git")
            .args(["apply", "--check", "--whitespace=nowarn", "-"])
            .current_dir(root())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        git.stdin.take().expect("it is piped").write_all(mutant.diff.as_bytes())?;
        Ok(String::from_utf8_lossy(&git.wait_with_output()?.stderr).into_owned())
    };
    let mut stale = Vec::new();
    for mutant in &mutants {
        match applies(mutant) {
            Ok(said) if said.contains("does not apply") || said.contains("No such file") => {
                stale.push(format!("xtask/mutants/{}.patch does not fit the code any more", mutant.name));
            }
            Ok(_) => {}
            Err(error) => {
                eprintln!("planted bugs are not looked at: git does not start: {error}");
                break;
            }
        }
    }
    stale
}

fn read(names: &[&str]) -> Result<Vec<Mutant>, String> {
    let folder = root().join("xtask/mutants");
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    paths.sort();
    let mut mutants = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if names.is_empty() || names.contains(&name.as_str()) {
            mutants.push(parse(
                name,
                &fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?,
            )?);
        }
    }
    match names.iter().find(|name| !mutants.iter().any(|mutant| mutant.name == **name)) {
        Some(missing) => Err(format!("no mutant is called {missing}; see xtask/mutants")),
        None => Ok(mutants),
    }
}

fn parse(name: String, text: &str) -> Result<Mutant, String> {
    let (header, diff) = text.split_once("\n---\n").ok_or(format!("{name}: no line `---` between header and diff"))?;
    let field = |key: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
        line.map(str::to_owned).ok_or(format!("{name}: the header has no `{key}:`"))
    };
    Ok(Mutant {
        bug: field("bug")?,
        check: field("check")?,
        seeds: field("seeds").unwrap_or(SEEDS.to_owned()),
        setups: field("setups").ok(),
        states: field("states").unwrap_or(MODEL_STATES.to_owned()),
        invariants: field("invariant")?.split('|').map(|one| one.trim().to_owned()).collect(),
        diff: diff.to_owned(),
        name,
    })
}

/// The seed that caught each bug last, by its name; none where there is no such file.
fn read_caught() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join(CAUGHT)).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, seed)| (name.to_owned(), seed.trim().to_owned())).collect()
}

/// Notes the seed that caught a bug. It only says where to look first, so a file that cannot be written is no failure.
fn note_caught(caught: &mut BTreeMap<String, String>, name: &str, seed: &str) {
    if caught.insert(name.to_owned(), seed.to_owned()).as_deref() != Some(seed) {
        caught.retain(|name, _| root().join(format!("xtask/mutants/{name}.patch")).exists());
        let lines: String = caught.iter().map(|(name, seed)| format!("{name} {seed}\n")).collect();
        let _ = fs::write(root().join(CAUGHT), lines);
    }
}

/// Builds a copy with the bug in it, and runs the check, in the sweep with the seed first that caught it `last`. What caught it, or why it
/// was not caught.
fn plant(mutant: &Mutant, work: &Path, last: Option<String>) -> Result<String, String> {
    let copy = work.join("source");
    copy_checkout(&copy)?;
    let patch = work.join("planted.patch");
    fs::write(&patch, &mutant.diff).map_err(|error| format!("{}: {error}", patch.display()))?;
    // A name of its own keeps git from taking the copy for a part of this checkout.
    let applied = Command::new("git")
        .args(["apply", "--whitespace=nowarn"])
        .arg(&patch)
        .current_dir(&copy)
        .env("GIT_CEILING_DIRECTORIES", work)
        .output()
        .map_err(|error| format!("git does not start: {error}"))?;
    if !applied.status.success() {
        return Err(format!("the patch does not apply: {}", String::from_utf8_lossy(&applied.stderr).trim()));
    }
    let target = work.join("target");
    let (package, binary) = match mutant.check.as_str() {
        "sweep" => ("slackline-sim", "sweep"),
        "model" => ("slackline-model", "slackline-model"),
        other => {
            // One kind of tests: the other would compile the whole crate once more.
            let (name, kind, test) = match *other.split(' ').collect::<Vec<_>>() {
                // The command line is a program alone.
                ["cli", "lib", test] => ("cli", ["--bins"].as_slice(), test),
                [name, "lib", test] => (name, ["--lib"].as_slice(), test),
                [name, test] => (name, ["--test", "it"].as_slice(), test),
                _ => return Err(format!("`check: {other}` is none that the head of `mutants.rs` names")),
            };
            let manifest = copy.join(format!("crates/{name}/Cargo.toml"));
            let mut cargo = cargo();
            cargo.args(["test", "--quiet", "--no-fail-fast", "--manifest-path"]).arg(manifest).args(kind).arg(test);
            if name == "storage" {
                cargo.args(["--features", "faults"]);
            }
            // A few scenarios run in no time, while the optimizer would take most of a minute for each bug.
            for profile in ["DEV", "TEST"] {
                cargo.env(format!("CARGO_PROFILE_{profile}_OPT_LEVEL"), "0");
                cargo.env(format!("CARGO_PROFILE_{profile}_DEBUG"), "0");
            }
            return by_test(mutant, cargo.current_dir(&copy).env("CARGO_TARGET_DIR", &target));
        }
    };
    let built = cargo()
        .args(["build", "--profile", "hunt", "--quiet", "-p", package, "--bin", binary])
        .env("CARGO_TARGET_DIR", &target)
        // A patch changes a few lines: what they do not touch is not compiled again. The optimizer would take most of a minute
        // for each; with a little of it most of the speed of a seed is there (20 s of 17), and a change is compiled in 10 s.
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_HUNT_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_HUNT_DEBUG", "0")
        .current_dir(&copy)
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !built.status.success() {
        return Err(format!("does not build: {}", String::from_utf8_lossy(&built.stderr).trim()));
    }
    // Another invariant may notice it first: the one that was named in advance must do so too, in a later seed.
    let program = target.join("hunt").join(binary);
    let run = |arguments: &[&str]| {
        let found = findings(&program, arguments, |line| mutant.names(line));
        found.map_err(|error| format!("{binary} does not run: {error}"))
    };
    let sweep = |seeds: &str| run(&[seeds, "--no-probes", "--keep-going"]);
    let (named, first) = match (&*mutant.check, &mutant.setups) {
        ("model", Some(word)) => run(&[mutant.states.as_str(), word.as_str()])?,
        ("model", None) => run(&[])?,
        _ => {
            let last = last.filter(|last| mutant.has_seed(last));
            let again = last.map(|last| sweep(&last)).transpose()?.filter(|(named, _)| named.is_some());
            again.map_or_else(|| sweep(&mutant.seeds), Ok)?
        }
    };
    match (named, first) {
        (Some(named), _) => Ok(named.chars().take(90).collect()),
        (None, Some(first)) => Err(format!("caught by another invariant: {first}")),
        (None, None) => Err(format!("NOT CAUGHT ({})", mutant.bug)),
    }
}

/// Runs tests on a copy with a bug in it. What they say, if the invariant that was named in advance is in it.
fn by_test(mutant: &Mutant, tests: &mut Command) -> Result<String, String> {
    let output =
        tests.env("CARGO_INCREMENTAL", "1").output().map_err(|error| format!("cargo does not start: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Err(format!("NOT CAUGHT ({})", mutant.bug));
    }
    if !printed.contains("panicked at") {
        return Err(format!("does not build: {}", printed.trim()));
    }
    let said = printed.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or_default();
    let named = printed.lines().find(|line| mutant.names(line)).map(|line| line.chars().take(90).collect());
    named.ok_or_else(|| format!("caught by another invariant: {said}"))
}

/// Runs a check until it tells of a finding that is looked for: that one, and the first of all.
fn findings(
    program: &Path,
    arguments: &[&str],
    is_sought: impl Fn(&str) -> bool,
) -> io::Result<(Option<String>, Option<String>)> {
    // It tells of findings on either stream, at once.
    let (errors, output) = io::pipe()?;
    let mut check = Command::new(program);
    check.args(arguments).stdout(output.try_clone()?).stderr(output);
    let mut running = check.spawn()?;
    // The pipe ends when nobody else can write to it.
    drop(check);
    let lines = BufReader::new(errors).lines().map_while(Result::ok).map(|line| line.trim().to_owned());
    let mut first = None;
    let mut found = lines.filter(|line| line.starts_with("seed ") || line.contains("FAILS"));
    let sought = found.find(|line| {
        first.get_or_insert_with(|| line.clone());
        is_sought(line)
    });
    if sought.is_some() {
        running.kill()?;
    }

    // A program that was ended by something else than a finding has shown nothing.
    let status = running.wait()?;
    if sought.is_none() && first.is_none() && !status.success() {
        return Err(io::Error::other(format!("it ends with {status}, and tells of nothing")));
    }
    Ok((sought, first))
}

/// Makes the copy what git knows of, and leaves files alone that have not changed, so that little is built again.
fn copy_checkout(copy: &Path) -> Result<(), String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git does not start: {error}"))?;
    let mut kept = BTreeSet::new();
    for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let Ok(content) = fs::read(root().join(&name)) else { continue };
        let to = copy.join(&name);
        kept.insert(to.clone());
        if fs::read(&to).is_ok_and(|present| present == content) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(copy)).map_err(|error| format!("{}: {error}", to.display()))?;
        fs::write(&to, content).map_err(|error| format!("{}: {error}", to.display()))?;
    }

    // A module that was moved would be there twice, and what an earlier patch added would be in every later copy.
    for stale in files(copy, &|path| !kept.contains(path)) {
        fs::remove_file(&stale).map_err(|error| format!("{}: {error}", stale.display()))?;
    }
    Ok(())
}
