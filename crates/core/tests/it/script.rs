//! Golden scripts: one scenario a file in `tests/scripts`, with what every site takes in, writes, tells and answers.
//!
//! A script is commands and, below `---`, what happened. `cargo xtask fix` writes that again; then it is read, as any change is.
//!
//! | command | meaning |
//! | --- | --- |
//! | `cluster SITES` | that many sites, joined; `unjoined SITES` for the first time |
//! | `SITE create QUOTA N`, `acquire QUOTA N`, `release QUOTA N`, `delete QUOTA` | an operation there; `any=yes` to create it with that agreement; `for=60s` or `tracked=yes`, `wait=yes`, `timeout=2s` |
//! | `SITE release grant=N` | gives a tracked grant back |
//! | `SITE read KEY… [scan=PREFIX] [fresh=yes]` | reads; a key is `REGION/NAME`, or `REGION/call-NAME` for a memoized call |
//! | `SITE commit KEY… KEY=VALUE… [add.KEY=N] [delete=KEY] [scan=PREFIX]` | commits: reads what it has read, puts, adds |
//! | `… [call=CALL of="KEY KEY" gives=N] [covers=CALL] [forgets=CALL]` | memoized calls: registers, covers, forgets one |
//! | `… [treaty=KEY bounds="KEY:N -KEY:N"] [relies=KEY]` | makes a treaty over a sum of counters, with a bound for each home; relies on one. Its key is `REGION/treaty-NAME` |
//! | `… [timeout=2s] [max_wait=60s]` | how long it may take, and wait for rights |
//! | `SITE repeat [at=SITE]`, `SITE ask [N] [at=SITE]` | sends the last operation again; asks what became of it |
//! | `SITE show QUOTA`, `SITE treaties`, `SITE accept_loss`, `SITE drain` | |
//! | `SITE expect QUOTA N [for=60s]` | tells it what a model expects |
//! | `run SPAN` | lets time pass |
//! | `warm SITE KEY SPAN` | reads an object again and again for so long: its home gives ever longer rights over it |
//!
//! What a command in parentheses brings about is not shown: it prepares the scene.
//!
//! | command | meaning |
//! | --- | --- |
//! | `cut SITE SITE`, `heal` | no messages between two sites; all again |
//! | `kill SITE`, `start SITE`, `lose SITE`, `copy SITE`, `restore SITE`, `aside SITE` | processes and disks |
//! | `suspend SITE SPAN`, `clock SITE SPAN` | a machine sleeps; its wall clock is set ahead |

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use goldenscript::{Argument, Command, Context};
use slackline_core::api::{Agreement, Batch, Forecast, Hold, Operation, Read, Request, Response, Submission};
use slackline_core::avantan::Charter;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{GrantId, Incarnation, OperationId, SiteId};
use slackline_core::machine::ClientId;
use slackline_core::object::treaty::{Metric, Note, Statement, Term, Treaty, Tree, treaty_key};
use slackline_core::object::{
    CALL_MARK, Change, Dependency, Derived, Home, ObjectKey, Part, Seen, Span, Transaction, Value, Version,
};

use crate::cluster::Cluster;
use crate::words::{Handled, REGIONS};

type Outcome<T> = Result<T, Box<dyn Error>>;
type Rows = (BTreeMap<Vec<u8>, Vec<u8>>, u64);

/// Plays a script.
struct Stage {
    cluster: Cluster,
    /// When the script began.
    began: u64,
    /// What each site has read last.
    seen: BTreeMap<(usize, ObjectKey), Version>,
    /// What each site has scanned last.
    scanned: BTreeMap<(usize, u16, String), Vec<u64>>,
    /// The last operation of each site's session.
    last: BTreeMap<usize, (Batch, SiteId)>,
    copies: BTreeMap<usize, Rows>,
    /// The number of treaties that were made: the nonce of the last.
    made: u64,
}

#[test]
fn scripts_go_as_they_are_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("there").map(|entry| entry.expect("readable").path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "no script in {}", folder.display());
    let is_updating = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let mut wrong = Vec::new();
    for script in &scripts {
        let name = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(script).expect("readable");
        let played = catch_unwind(AssertUnwindSafe(|| goldenscript::generate(&mut Stage::new(), &text)));
        match played {
            Ok(Ok(new)) if new == text => {}
            Ok(Ok(new)) if is_updating => std::fs::write(script, new).expect("writable"),
            Ok(Ok(new)) => wrong.push(format!("{name}: {}", first_difference(&text, &new))),
            Ok(Err(error)) => wrong.push(format!("{name}: {error}")),
            Err(_) => wrong.push(format!("{name}: panicked")),
        }
    }
    assert!(wrong.is_empty(), "`cargo xtask fix` writes scripts again:\n{}", wrong.join("\n"));
}

fn first_difference(old: &str, new: &str) -> String {
    let differs = old.lines().zip(new.lines()).enumerate().find(|(_, (old, new))| old != new);
    match differs {
        Some((at, (old, new))) => format!("line {}: {new:?}, and it says {old:?}", at + 1),
        None => "one is longer than the other".to_owned(),
    }
}

impl Stage {
    fn new() -> Self {
        Self {
            cluster: Cluster::new(1),
            began: 0,
            seen: BTreeMap::new(),
            scanned: BTreeMap::new(),
            last: BTreeMap::new(),
            copies: BTreeMap::new(),
            made: 0,
        }
    }

    fn begin(&mut self, cluster: Cluster) {
        *self = Self { began: cluster.now, cluster, ..Self::new() };
        self.cluster.record = Some(Vec::new());
    }

    /// Something that a client asks a site for.
    fn at_site(&mut self, at: usize, args: &[Argument]) -> Outcome<()> {
        let mut args = Args::new(args);
        let what = args.word()?;
        let timeout = args.span("timeout", 2 * SECOND)?;
        let operation = match what.as_str() {
            "create" => {
                let agreement = if args.take("any").is_some() { Agreement::Any } else { Agreement::Majority };
                let charter = Charter { agreement, ..Charter::default() };
                Operation::Create { quota: args.word()?, limit: args.number()?, charter }
            }
            "acquire" => {
                let hold = match args.take("for") {
                    Some(text) => Hold::For(span(&text)?),
                    None if args.take("tracked").is_some() => Hold::Open,
                    None => Hold::Counted,
                };
                let waits = args.take("wait").is_some();
                Operation::Acquire { quota: args.word()?, amount: args.number()?, hold, waits }
            }
            "release" => match args.take("grant") {
                Some(number) => {
                    let (site, incarnation, _) = self.cluster.session(at);
                    let used = args.take("used").map_or(Ok(0), |text| text.parse())?;
                    Operation::ReleaseGrant { grant: GrantId { site, incarnation, number: number.parse()? }, used }
                }
                None => Operation::Release { quota: args.word()?, amount: args.number()? },
            },
            "set" => Operation::SetLimit { quota: args.word()?, limit: args.number()? },
            "extend" => {
                let (site, incarnation, _) = self.cluster.session(at);
                let grant = GrantId { site, incarnation, number: args.number()? as u64 };
                Operation::ExtendGrant { grant, micros: args.span("for", SECOND)? }
            }
            "reclaim" => {
                let of = region(&args.take("of").ok_or("reclaim of whom?")?)?;
                let lost = vec![(Cluster::site(of), Incarnation(1))];
                Operation::Reclaim { quota: args.word()?, lost, in_use: args.number()? }
            }
            "delete" => Operation::Delete { quota: args.word()? },
            "accept_loss" => Operation::AcceptLoss,
            "commit" => Operation::Commit(Box::new(self.transaction(at, &mut args)?)),
            _ => return self.request(at, &what, args),
        };
        args.end()?;
        let (site, incarnation, session) = self.cluster.session(at);
        let sequence = self
            .last
            .get(&at)
            .filter(|(batch, _)| batch.session == session)
            .map_or(0, |(batch, _)| batch.operations.last().map_or(0, |last| last.sequence));
        let operations = vec![Submission { sequence: sequence + 1, timeout, operation }];
        let batch = Batch { site, incarnation, session, low: 1, operations };
        self.last.insert(at, (batch.clone(), site));
        self.cluster.request(at, 1, Request::Batch(batch));
        Ok(())
    }

    /// What is no operation.
    fn request(&mut self, at: usize, what: &str, mut args: Args) -> Outcome<()> {
        let by = args.take("at").map(|name| region(&name)).transpose()?.unwrap_or(at);
        let request = match what {
            "read" => {
                let mut scans = Vec::new();
                while let Some(prefix) = args.take("scan") {
                    let ObjectKey { home, name } = key(&prefix)?;
                    scans.push((home, Span { prefix: name, after: String::new(), limit: 100 }));
                }
                let fresh = args.take("fresh").is_some();
                let timeout = args.span("timeout", SECOND)?;
                let gets = args.rest().iter().map(|text| key(text)).collect::<Outcome<_>>()?;
                let read = Read { token: 7, gets, scans, fresh, upkeep: false, timeout, claim: None };
                return self.read(at, read);
            }
            "repeat" => Request::Batch(self.last.get(&at).ok_or("nothing to repeat")?.0.clone()),
            "ask" => Request::Ask { operation: self.operation(at, args.take("of"))? },
            "treaties" => Request::Treaties { treaty: None },
            "show" => Request::Show { quota: args.word()?, timeout: SECOND, local: args.take("local").is_some() },
            "close" => {
                let (site, incarnation, session) = self.cluster.session(at);
                Request::Close { site, incarnation, session }
            }
            "drain" => Request::Drain { within: args.span("within", 5 * SECOND)? },
            "expect" => {
                let (quota, tokens) = (args.word()?, args.number()?);
                Request::Expect(vec![Forecast { quota, tokens, micros: args.span("for", 60 * SECOND)? }])
            }
            _ => return Err(format!("a site does not know {what:?}").into()),
        };
        args.end()?;
        self.cluster.request(by, 1, request);
        Ok(())
    }

    /// The last operation of a site, or one by its number.
    fn operation(&self, at: usize, sequence: Option<String>) -> Outcome<OperationId> {
        let (batch, site) = self.last.get(&at).ok_or("it has no operation")?;
        let last = batch.operations.last().map_or(0, |last| last.sequence);
        let sequence = sequence.map_or(Ok(last), |text| text.parse())?;
        let (incarnation, session) = (batch.incarnation, batch.session);
        Ok(OperationId { site: *site, incarnation, session, sequence })
    }

    /// Reads, and waits for the answer: what follows may rest on it.
    fn read(&mut self, at: usize, read: Read) -> Outcome<()> {
        let (gets, scans) = (read.gets.clone(), read.scans.clone());
        self.cluster.request(at, 70, Request::Read(Box::new(read)));
        for _ in 0..300 {
            let found =
                self.cluster.responses.iter().position(|(host, client, _)| (*host, *client) == (at, ClientId(70)));
            let Some(found) = found else {
                self.cluster.run(10 * MILLISECOND);
                continue;
            };
            let (_, _, Response::Read(reading)) = self.cluster.responses.remove(found) else {
                return Err("asked to read".into());
            };
            for (key, got) in gets.into_iter().zip(reading.gets) {
                if let Ok(Seen { version, .. }) = got {
                    self.seen.insert((at, key), version);
                }
            }
            for ((home, span), rows) in scans.into_iter().zip(reading.scans) {
                let numbers = rows.unwrap_or_default().iter().map(|(_, seen)| seen.version.number).collect();
                self.scanned.insert((at, home, span.prefix), numbers);
            }
            return Ok(());
        }
        Err("no answer".into())
    }

    /// A transaction over what the site has read.
    fn transaction(&mut self, at: usize, args: &mut Args) -> Outcome<Transaction> {
        let max_wait = args.span("max_wait", 60 * SECOND)?;
        let mut parts: BTreeMap<u16, (Incarnation, Part)> = BTreeMap::new();
        let call = args.take("call").map(|text| key(&text)).transpose()?;
        let (of, gives) = (args.take("of").unwrap_or_default(), args.take("gives").unwrap_or_default());
        let (covers, forgets) = (args.take("covers"), args.take("forgets"));
        let relies = args.take("relies").map(|text| key(&text)).transpose()?;
        let treaty = args.take("treaty").map(|text| key(&text)).transpose()?;
        let bounds = args.take("bounds").unwrap_or_default();
        while let Some(text) = args.take("delete") {
            let key = key(&text)?;
            parts.entry(key.home).or_default().1.writes.push((key.name, Change::Delete));
        }
        while let Some(text) = args.take("scan") {
            let ObjectKey { home, name } = key(&text)?;
            let numbers = self.scanned.get(&(at, home, name.clone())).ok_or("it has not scanned that")?.clone();
            let span = Span { prefix: name, after: String::new(), limit: 100 };
            parts.entry(home).or_default().1.scans.push((span, numbers));
        }
        for (of, to) in args.keyed() {
            let (key, change) = match of.strip_prefix("add.") {
                Some(of) => (key(of)?, Change::Add(to.parse()?)),
                None => (key(&of)?, Change::Put(Value::Bytes(to.into_bytes().into()))),
            };
            parts.entry(key.home).or_default().1.writes.push((key.name, change));
        }
        let mut reads: Vec<ObjectKey> = args.rest().iter().map(|text| key(text)).collect::<Outcome<_>>()?;
        reads.extend(call.iter().cloned());
        for key in reads {
            let version =
                *self.seen.get(&(at, key.clone())).unwrap_or(&Version { incarnation: Incarnation(1), number: 0 });
            let (incarnation, part) = parts.entry(key.home).or_default();
            *incarnation = version.incarnation;
            part.reads.push((key.name, version.number));
        }
        if let Some(call) = &call {
            let of: Vec<ObjectKey> = of.split_whitespace().map(key).collect::<Outcome<_>>()?;
            let mut homes: Vec<(u16, Incarnation)> = of.iter().map(|key| (key.home, Incarnation(1))).collect();
            homes.retain(|(home, _)| *home != call.home);
            homes.dedup();
            let derived = Derived { bytes: gives.into_bytes().into(), homes };
            let put = Change::Put(Value::Derived(derived));
            parts.entry(call.home).or_default().1.writes.push((call.name.clone(), put));
            for key in of {
                let depends = (Dependency::Name(key.name), call.clone());
                parts.entry(key.home).or_default().1.depends.push(depends);
            }
        }
        for (text, is_cover) in covers.map(|text| (text, true)).into_iter().chain(forgets.map(|text| (text, false))) {
            let call = key(&text)?;
            for (_, part) in parts.values_mut() {
                let list = if is_cover { &mut part.covers } else { &mut part.forgets };
                list.push(call.clone());
            }
        }
        if let Some(treaty) = treaty {
            self.make(&treaty, &bounds, &mut parts)?;
        }
        let homes = parts.into_iter().map(|(region, (incarnation, mut part))| {
            part.relies.extend(relies.iter().cloned());
            part.writes.sort_by(|one, other| one.0.cmp(&other.0));
            part.reads.sort();
            Home { region, incarnation, part }
        });
        Ok(Transaction { homes: homes.collect(), max_wait, ..Transaction::default() })
    }

    /// Adds what makes a treaty: that a sum of counters is at least what the bounds of its homes add up to.
    fn make(
        &mut self,
        key_of: &ObjectKey,
        bounds: &str,
        parts: &mut BTreeMap<u16, (Incarnation, Part)>,
    ) -> Outcome<()> {
        let mut homes: BTreeMap<u16, (Vec<Term>, i64)> = BTreeMap::new();
        let mut sum = Vec::new();
        for bound in bounds.split_whitespace() {
            let (of, number) = bound.rsplit_once(':').map_or((bound, "0"), |split| split);
            let (weight, of) = of.strip_prefix('-').map_or((1, of), |of| (-1, of));
            let counter = key(of)?;
            let term = Term { name: counter.name.clone(), is_log: false, weight };
            let (terms, least) = homes.entry(counter.home).or_default();
            terms.push(term);
            *least += number.parse::<i64>()?;
            sum.push(Metric::Times(weight, Box::new(Metric::Counter(counter))));
        }
        self.made += 1;
        let least = homes.values().map(|(_, least)| least).sum();
        let statement = Statement::AtLeast(Metric::Sum(sum), least);
        let treaty = Treaty { nonce: self.made, is_valid: true, retracts: 0, statement, tree: Tree::Flat };
        let rests: Vec<(u16, Incarnation)> = homes.keys().map(|home| (*home, Incarnation(1))).collect();
        for (home, (terms, least)) in homes {
            let note = Note {
                treaty: key_of.clone(),
                nonce: treaty.nonce,
                homes: rests.clone(),
                tree: Tree::Flat,
                clauses: vec![(0, terms, least)],
            };
            parts.entry(home).or_default().1.notes.push(note);
        }
        let put = Change::Put(treaty.to_value(key_of, &rests));
        parts.entry(key_of.home).or_default().1.writes.push((key_of.name.clone(), put));
        Ok(())
    }

    /// What happened since this was asked last.
    fn told(&mut self) -> String {
        let mut text = String::new();
        for Handled { at, when, took, gave } in self.cluster.record.iter_mut().flat_map(std::mem::take) {
            if took.as_ref().is_some_and(|took| took.ends_with("open a session")) {
                continue;
            }
            // What a site notes of itself and of its peers tells something only where one starts.
            let is_greeting = took.as_ref().is_some_and(|took| took.contains("Hello") || took.contains("Welcome"));
            let is_note = |line: &str| line.starts_with("writes   the site") || line.starts_with("writes   the peer");
            let gave = gave.into_iter().filter(|line| is_greeting || !is_note(line));
            let millis = (when - self.began) as f64 / MILLISECOND as f64;
            let mut head = format!("{millis:>7.1} {:<3}", REGIONS[at]);
            for line in took.into_iter().chain(gave) {
                let _ = writeln!(text, "{head} {line}");
                head = " ".repeat(11);
            }
        }
        text
    }
}

impl goldenscript::Runner for Stage {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Outcome<String> {
        let mut args = Args::new(&command.args);
        match command.name.as_str() {
            "cluster" => self.begin(Cluster::new(args.word()?.parse()?)),
            "unjoined" => self.begin(Cluster::unjoined(args.word()?.parse()?)),
            "run" => {
                let span = span(&args.word()?)?;
                self.cluster.run(span);
            }
            "cut" => {
                let (one, other) = (region(&args.word()?)?, region(&args.word()?)?);
                self.cluster.cut.extend([(one, other), (other, one)]);
            }
            "heal" => self.cluster.cut.clear(),
            "warm" => {
                let (at, key) = (region(&args.word()?)?, key(&args.word()?)?);
                let until = self.cluster.now + span(&args.word()?)?;
                while self.cluster.now < until {
                    let (gets, scans) = (vec![key.clone()], Vec::new());
                    self.read(
                        at,
                        Read { token: 7, gets, scans, fresh: true, upkeep: false, timeout: SECOND, claim: None },
                    )?;
                    self.cluster.run(20 * MILLISECOND);
                }
            }
            "kill" => {
                let at = region(&args.word()?)?;
                self.cluster.kill(at);
            }
            "start" => {
                let at = region(&args.word()?)?;
                self.cluster.hosts[at].new_storage = args.take("new_storage").is_none_or(|word| word == "yes");
                self.cluster.start(at);
            }
            "lose" => {
                let at = region(&args.word()?)?;
                self.cluster.kill(at);
                self.cluster.hosts[at].put_back(Rows::default());
            }
            "copy" => {
                let at = region(&args.word()?)?;
                self.copies.insert(at, self.cluster.hosts[at].copy());
            }
            "restore" => {
                let at = region(&args.word()?)?;
                self.cluster.kill(at);
                let copy = self.copies.get(&at).ok_or("there is no copy")?.clone();
                self.cluster.hosts[at].put_back(copy);
            }
            "aside" => {
                let at = region(&args.word()?)?;
                self.cluster.put_aside_old_copy(at);
            }
            "suspend" => {
                let (at, span) = (region(&args.word()?)?, span(&args.word()?)?);
                self.cluster.suspend(at, span, true);
            }
            "clock" => {
                let (at, span) = (region(&args.word()?)?, span(&args.word()?)?);
                self.cluster.hosts[at].wall += span as i64;
            }
            name => {
                let at = region(name)?;
                self.at_site(at, &command.args)?;
                return Ok(self.told());
            }
        }
        args.end()?;
        Ok(self.told())
    }
}

/// The arguments of a command, taken one after the other.
struct Args {
    words: std::collections::VecDeque<String>,
    keyed: Vec<(String, String)>,
}

impl Args {
    fn new(args: &[Argument]) -> Self {
        let mut taken = Self { words: Default::default(), keyed: Vec::new() };
        for arg in args {
            match arg {
                Argument::Positional(word) => taken.words.push_back(word.clone()),
                Argument::KeyValue(key, value) => taken.keyed.push((key.clone(), value.clone())),
                other => panic!("no script has such an argument: {other:?}"),
            }
        }
        taken
    }

    fn word(&mut self) -> Outcome<String> {
        self.words.pop_front().ok_or_else(|| "a word is missing".into())
    }

    fn number(&mut self) -> Outcome<i64> {
        Ok(self.word()?.parse()?)
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.keyed.iter().position(|(known, _)| known == key)?;
        Some(self.keyed.remove(at).1)
    }

    fn span(&mut self, key: &str, default: u64) -> Outcome<u64> {
        self.take(key).map_or(Ok(default), |text| span(&text))
    }

    fn keyed(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.keyed)
    }

    fn rest(&mut self) -> Vec<String> {
        std::mem::take(&mut self.words).into()
    }

    fn end(&self) -> Outcome<()> {
        match (self.words.front(), self.keyed.first()) {
            (Some(word), _) => Err(format!("{word:?} is too much").into()),
            (_, Some((key, _))) => Err(format!("{key}= is not known").into()),
            _ => Ok(()),
        }
    }
}

fn region(name: &str) -> Outcome<usize> {
    REGIONS.iter().position(|region| *region == name).ok_or_else(|| format!("no command or region is {name:?}").into())
}

fn key(text: &str) -> Outcome<ObjectKey> {
    let (home, name) = text.split_once('/').ok_or_else(|| format!("{text:?} is no REGION/NAME"))?;
    let home = region(home)? as u16;
    if let Some(treaty) = name.strip_prefix("treaty-") {
        return Ok(treaty_key(home, treaty));
    }
    Ok(match name.strip_prefix("call-") {
        Some(call) => ObjectKey::new(home, format!("{CALL_MARK}{call}")),
        None => ObjectKey::new(home, name),
    })
}

fn span(text: &str) -> Outcome<u64> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, MILLISECOND),
        None => (text.strip_suffix('s').ok_or_else(|| format!("{text:?} is no span, such as 40ms or 2s"))?, SECOND),
    };
    Ok(number.parse::<u64>()? * unit)
}
