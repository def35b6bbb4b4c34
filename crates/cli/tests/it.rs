//! Runs the real binary.

mod bank;
mod elsewhere;
mod explain;
mod full_disk;
mod kills;
#[path = "../../client/tests/load.rs"]
mod load;
mod members;
mod mounts;
mod process;
mod transfers;

use std::process::Stdio;
use std::time::{Duration, Instant};

use process::{Ended, Server, configs, free_ports, slackline, slackline_in, slackline_with, three_configs};
use serde_json::{Value, json};
use slackline_bench::live::metric;

/// How long things that must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn dev(data: &std::path::Path) -> Server {
    Server::start(&["dev", "--port", "0", "--json", "--data", data.to_str().expect("a path of this test")])
}

/// Repeats until `check` holds.
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> T, check: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
{
    let until = Instant::now() + PATIENCE;
    loop {
        let found = attempt();
        if check(&found) {
            return found;
        }
        assert!(Instant::now() < until, "not in time: {what}: {found:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn show(server: &Server) -> Value {
    server.run(&["quota", "show", "gpus", "--json"]).json()
}

fn tokens(shown: &Value) -> i64 {
    let sites = shown["sites"].as_array().expect("sites");
    sites.iter().map(|site| site["tokens"].as_i64().expect("a number")).sum()
}

/// The help of a command, and of every command below it, with the words that name them.
fn helps(words: &[&str]) -> Vec<(String, Ended)> {
    let help = slackline(&[words, &["--help"]].concat());
    let listed = help.stdout.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let below: Vec<_> =
        listed.filter(|word| *word != "help").flat_map(|word| helps(&[words, &[word]].concat())).collect();
    std::iter::once((["slackline"].iter().chain(words).copied().collect::<Vec<_>>().join(" "), help))
        .chain(below)
        .collect()
}

#[test]
fn help_has_an_example_for_every_command() {
    let helps = helps(&[]);
    for command in ["slackline", "slackline bench", "slackline bench footprint", "slackline quota list"] {
        assert!(helps.iter().any(|(name, _)| name == command), "{command} is not looked at");
    }
    for (command, help) in helps {
        assert_eq!((help.status, help.stderr.as_str()), (0, ""), "{command}");
        let after = help.stdout.lines().skip_while(|line| !line.starts_with("Example") && !line.starts_with("A first"));
        let after: Vec<&str> = after.collect();
        assert!(after.iter().any(|line| line.starts_with(&format!("  {command}"))), "{command}: {}", help.stdout);
        // Nothing of it is wrapped in a terminal of 80 columns.
        let too_long: Vec<&str> = help.stdout.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(too_long.is_empty(), "{command}: {too_long:?}");
        // What is longer does not begin by saying the same again.
        let mut paragraphs = help.stdout.split("\n\n");
        let (first, second) = (paragraphs.next().unwrap_or_default(), paragraphs.next().unwrap_or_default());
        assert!(!second.starts_with(first), "{command}: {second}");
    }
    assert!(slackline(&["--version"]).stdout.starts_with("slackline "));
}

#[test]
fn wrong_use_is_one_line_and_status_2() {
    let site = tempfile::tempdir().expect("a directory");
    std::fs::write(site.path().join("IDENTITY"), "").expect("written");
    let site_path = site.path().to_str().expect("a path of this test");
    for (words, says) in [
        (&["quota", "acquire", "gpus", "0"][..], "1 to 9223372036854775807"),
        (&["quota", "acquire", "gpus", "-3"], "1 to 9223372036854775807"),
        (&["quota", "acquire", "gpus", "9223372036854775808"], "1 to 9223372036854775807"),
        (&["quota", "acquire", "gpus", "three"], "1 to 9223372036854775807"),
        (&["quota", "acquire", "gpus"], "<AMOUNT>"),
        (&["quota", "acquire", "gpus", "1", "--for", "60"], "like 60s"),
        (&["quota", "acquire", "gpus", "1", "--for", "401d"], "1ms to 400d"),
        (&["quota", "create", "gpus"], "--limit"),
        (&["quota", "create", "gpus", "--limit", "0"], "1 to 9223372036854775807"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "5"], "1500/1s"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "0/1s"], "a rate of 0"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "-5/1s"], "not a number of tokens"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "5/60"], "is not a duration"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "5/0s"], "more than nothing"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "99999999999999/1ms"], "as fast"),
        (&["quota", "create", "gpus", "--limit", "9", "--refill", "1/12d"], "1000000s"),
        (&["quota", "set", "gpus", "--limit", "0"], "1 to 9223372036854775807"),
        (&["quota", "set", "gpus"], "--limit"),
        (&["quota", "settle", "--grant", "eu-1-1", "--used", "-1"], "0 to 9223372036854775807"),
        (&["quota", "settle", "--used", "1"], "--grant"),
        (&["quota", "extend", "--grant", "eu-1-1", "--for", "60"], "like 60s"),
        (&["quota", "create", "", "--limit", "1"], "1 to 256 bytes"),
        (&["site", "wait"], "<SITE>"),
        (&["site", "wait", "us", "--timeout", "0s"], "longer than nothing"),
        (&["quota", "release"], "--grant ID"),
        (&["quota", "release", "gpus"], "--grant ID"),
        (&["quota", "release", "gpus", "1", "--grant", "eu-1-1"], "--grant"),
        (&["quota", "frobnicate"], "frobnicate"),
        (&["quota", "acquir"], "'acquir'; tip: a similar subcommand exists: 'acquire'; see"),
        (&["status", "--deadline", "0s"], "longer than nothing"),
        (&["status", "--connect", "nonsense"], "host:port"),
        (&["dev", "--sites", "0"], "a number from 1 to 64 is wanted"),
        (&["dev", "--sites", "64", "--memory"], "regions"),
        (&["dev", "--memory", "--data", "x"], "--memory"),
        (&["dev", "--data", site_path], "one site's directory"),
        (&["dev", "--rtt", "/nonexistent.csv", "--memory"], "/nonexistent.csv"),
        (&["serve"], "--config"),
        (&["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["bench", "quota", "--events", "0"], "--events"),
        (&["bench", "quota", "--sites", "0"], "from 1 to 64"),
        (&["bench", "quota", "--speed", "0"], "--speed"),
        (&["bench", "quota", "--limit", "0"], "is not a limit"),
        (&["bench", "quota", "--rtt", "mars"], "mars is neither aws nor gcp nor a file"),
        (&["bench", "quota", "--trace", "/nonexistent.csv", "--format", "events"], "/nonexistent.csv"),
        (&["bench", "quota", "--trace", "/nonexistent.csv"], "--format"),
        (&["bench", "quota", "--trace", "x", "--format", "mars"], "is not a trace format"),
        (&["bench", "samya"], "<EXPERIMENT>"),
        (&["bench", "samya", "mars"], "is not an experiment: use latency, throughput"),
        (&["bench", "samya", "latency", "--config", "mars"], "is not a configuration: use slackline"),
        (&["bench", "samya", "crash", "--config", "escrow"], "crash does not run escrow"),
        (&["bench", "samya", "latency", "--config", "slackline-local"], "nothing is read in it"),
        (&["bench", "samya", "hot", "--speed", "3"], "leave --trace and --speed out"),
        (&["bench", "samya", "idle", "--callers", "3"], "leave --callers out"),
        (&["bench", "samya", "limit", "--limit", "3"], "leave --limit out"),
        (&["bench", "samya", "hot", "--limit", "auto:1"], "give --limit as a number of tokens"),
        (&["bench", "samya", "latency", "--quotas", "3"], "leave --quotas out"),
        (&["bench", "samya", "idle", "--quotas", "0"], "--quotas is from 1 to 1000000"),
        (&["bench", "samya", "latency", "--callers", "0"], "--callers is from 1 to 1000"),
        (&["bench", "samya", "rate", "--speed", "2"], "leave --speed out"),
        (&["bench", "samya", "latency", "--trace", "/nonexistent.csv", "--format", "series"], "/nonexistent.csv"),
        (&["bench", "hot", "--callers", "0"], "--callers"),
        (&["bench", "core", "--quotas", "0"], "--quotas"),
        (&["bench", "footprint", "--quotas", "0"], "--quotas"),
        (&["bench", "calibrate", "--rounds", "0"], "from 1 to 100"),
        (&["bench", "oo7", "--stores", "1..9"], "9 is not from 1 to 8"),
        (&["bench", "oo7", "--stores", "4..1"], "write 1..4"),
        (&["bench", "oo7", "--write-shares", "2,101"], "101 is not from 0 to 100"),
        (&["bench", "oo7", "--config", "computation"], "use --config occ or --config state"),
        (&["bench", "courses", "--baseline", "mars"], "is no baseline: use postgres"),
        (&["get", "alice"], "eu:users/alice"),
        (&["put", "eu:x"], "<VALUE>"),
        (&["put", "eu:x", "{oops"], "the value is no JSON: key must be a string at line 1 column 2"),
        (&["put", "eu:x", r#"{"a": 1, "a": 2}"#], "the value: the key \"a\" stands twice"),
        (&["put", "eu:x", "1e400"], "the value: number out of range at line 1 column 5; --raw"),
        (&["put", "eu:x", "1", "--max-wait", "-1s"], "\"-1s\" is not a duration"),
        (&["put", "eu:x", "1", "--counter", "1"], "--counter"),
        (&["add", "eu:x", "1.5"], "1.5"),
        (&["scan", "eu", "--limit", "0"], "from 1 to 1024"),
        (&["accept-loss"], "--site"),
        (&["txn", "/nonexistent.json"], "/nonexistent.json: cannot be read"),
        (&["txn"], "<FILE>"),
        (&["sim"], "<--seed <N>|--seeds <A..B>>"),
        (&["sim", "--seed", "one"], "it is not a whole number"),
        (&["quota", "delete", "gpus", "--site", "us"], "unexpected argument '--site' found; see"),
        (&["txn", "explain"], "<ID>"),
    ] {
        let ended = slackline(words);
        assert_eq!(ended.status, 2, "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(says), "{words:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{words:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty());
    }
    let long = "x".repeat(257);
    assert_eq!(slackline(&["quota", "show", &long]).status, 2);
}

/// A script must not take what was done, or refused, for a crash because nobody reads what is said of it.
#[cfg(target_os = "linux")]
#[test]
fn standard_error_that_cannot_be_written_changes_no_status() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slackline"));
    let status = command.args(["status", "--json", "--connect", "127.0.0.1:1", "--deadline", "100ms"]).stderr(full);
    let ended = status.output().expect("the binary runs");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(serde_json::from_slice::<serde_json::Value>(&ended.stdout).is_ok(), "{ended:?}");
}

/// Nobody else knows the id of a grant: one that goes into a pipe which nobody reads is told on standard error, and is no success.
#[test]
fn grant_that_nobody_reads_is_told_on_standard_error() {
    let cluster = Server::start(&["dev", "--port", "0", "--json", "--memory"]);
    assert_eq!(cluster.run(&["quota", "create", "gpus", "--limit", "9"]).status, 0);
    let script = r#"{ "$0" quota acquire gpus 1 --connect "$1"; echo "status $?" >&2; } | true"#;
    let unread = std::process::Command::new("sh")
        .args(["-c", &format!("sleep 0.2; {script}"), env!("CARGO_BIN_EXE_slackline"), &cluster.connect])
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&unread.stderr);
    assert!(said.contains("granted 1 of gpus") && said.contains("status 1"), "{said}");
}

/// The disk on which the logs are may be the one that is full, and the terminal that started the site gone. It serves all the same.
#[cfg(target_os = "linux")]
#[test]
fn site_whose_output_cannot_be_written_serves_and_ends_as_another() {
    let folder = tempfile::tempdir().expect("a directory");
    let (path, address) = configs(folder.path(), &["us"]).remove(0);
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut serve = std::process::Command::new(env!("CARGO_BIN_EXE_slackline"));
    serve.args(["serve", "--config", &path]).env("RUST_LOG", "debug").stdout(full()).stderr(full());
    let site = Server::start_silent(serve, address);
    eventually("it serves", || site.run(&["status", "--json"]).json(), |status| status["sites"][0]["ready"] == true);
    assert_eq!(site.run(&["quota", "create", "gpus", "--limit", "9"]).status, 0);
    site.reload();
    assert_eq!(site.run(&["quota", "acquire", "gpus", "1"]).status, 0);
    assert_eq!(site.terminate().status, 0);
}

#[test]
fn wrong_config_key_is_named() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("site.toml");
    std::fs::write(&path, "cluster = \"a\"\nfrobnicate = 3\n").expect("written");
    let ended = slackline(&["serve", "--config", path.to_str().expect("a path of this test")]);
    assert_eq!((ended.status, ended.stderr.lines().count()), (2, 1));
    assert!(ended.stderr.contains("frobnicate") && ended.stderr.contains("line 2"), "{}", ended.stderr);
}

#[test]
fn line_of_a_file_that_is_wrong_is_named_and_status_2() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path of this test").to_owned()
    };
    let trace = file("trace.csv", "time_s,site,op,amount\n1,0,acquire,3\n2,0,borrow,3\n");
    let back = file("back.csv", "period,count\n1998-04-30 21:30:00,2\n1998-04-30 21:29:00,2\n");
    let short = file("short.csv", "1998-04-30 21:30:00,2\n1998-04-30 21:31:00,2\n");
    let three = file("three.csv", "us,eu,70\nus,ap,150\neu,ap,200\n");
    let twice = file("twice.csv", "us,eu,70\neu,us,71\nus,eu,80\n");
    for (words, says) in [
        (&["bench", "quota", "--format", "events", "--trace", &trace][..], "trace.csv line 3: \"borrow\""),
        (
            &["bench", "samya", "latency", "--format", "series", "--trace", &back],
            "back.csv line 3: the time is not after",
        ),
        (&["bench", "quota", "--format", "series", "--trace", &short], "short.csv has 2 minutes, and 4680 are needed"),
        (&["bench", "samya", "hot", "--rtt", &twice], "twice.csv line 3: from us to eu it is 70 ms on line 1"),
        (&["bench", "samya", "hot", "--rtt", &three], "three.csv has 3: use --rtt gcp or a table with five"),
        (&["bench", "quota", "--rtt", &twice], "twice.csv line 3: from us to eu it is 70 ms on line 1"),
        (&["dev", "--memory", "--rtt", &twice], "twice.csv line 3: from us to eu it is 70 ms on line 1"),
    ] {
        let ended = slackline(words);
        assert_eq!((ended.status, ended.stderr.lines().count()), (2, 1), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(says), "{words:?}: {}", ended.stderr);
    }
}

#[test]
fn empty_variable_is_as_good_as_none() {
    let ended = slackline_with("SLACKLINE_CONNECT", "", &["status", "--deadline", "1s"]);
    assert!(ended.status != 2, "the default is tried: {ended:?}");
    let ended = slackline_with("SLACKLINE_CONNECT", "nonsense", &["status"]);
    assert_eq!((ended.status, ended.stderr.contains("SLACKLINE_CONNECT: ")), (2, true), "{ended:?}");
    assert_eq!(slackline(&["status", "--connect", ""]).status, 2);
}

#[test]
fn no_cluster_is_a_failure_that_says_what_to_do() {
    let address = format!("127.0.0.1:{}", free_ports(1)[0]);
    let ended = slackline(&["quota", "list", "--json", "--connect", &address]);
    assert_eq!((ended.status, ended.stderr.lines().count()), (1, 1));
    assert!(ended.stderr.contains(&address) && ended.stderr.contains("`listen`"), "{}", ended.stderr);
    assert_eq!(ended.json()["outcome"], "failed");
}

#[test]
fn quota_that_refills_grants_its_rate_and_says_when_to_ask_again() {
    let data = tempfile::tempdir().expect("a directory");
    let cluster = dev(data.path());
    let create = ["quota", "create", "api", "--limit", "90", "--refill", "30/1s", "--json"];
    assert_eq!(cluster.run(&create).json()["refill_per_second"], json!(30.0));
    assert_eq!(cluster.run(&create).status, 0, "the same again is done");
    let other = cluster.run(&["quota", "create", "api", "--limit", "90", "--json"]).json();
    assert_eq!((&other["reason"], &other["refill_per_second"]), (&json!("refill_differs"), &json!(30.0)));

    // All at once, in one region; then what comes back, in another.
    let acquire = |amount: &str, more: &[&str]| {
        cluster.run(&[&["quota", "acquire", "api", amount, "--site", "eu", "--json"], more].concat()).json()
    };
    let all = cluster.run(&["quota", "acquire", "api", "90", "--site", "us", "--json"]).json();
    assert_eq!(all["outcome"], json!("done"), "{all}");
    let refused = acquire("60", &[]);
    let after = refused["retry_after_ms"].as_u64().unwrap_or_else(|| panic!("a time: {refused}"));
    assert!(refused["reason"] == json!("exhausted") && (1..=2_000).contains(&after), "{refused}");
    let said = cluster.run(&["quota", "acquire", "api", "60", "--site", "eu"]);
    assert!(said.status == 1 && said.stderr.contains("refilled: try again in"), "{said:?}");
    let waited = acquire("60", &["--wait", "--deadline", "20s"]);
    assert_eq!((&waited["outcome"], &waited["site"]), (&json!("done"), &json!("eu")), "{waited}");
    let one = cluster.run(&["quota", "acquire", "api", "1", "--wait"]);
    assert!(one.status == 0 && one.stdout.contains("refills by itself"), "{one:?}");

    for refused in [acquire("1", &["--for", "5s"]), cluster.run(&["quota", "release", "api", "1", "--json"]).json()] {
        assert_eq!(refused["reason"], json!("refills"));
    }
    let shown = || cluster.run(&["quota", "show", "api", "--json"]).json();
    eventually("it is full again", shown, |shown| shown["in_use"] == json!(0));
    assert_eq!(shown()["refill_per_second"], json!(30.0));
    let text = cluster.run(&["quota", "show", "api"]).stdout;
    assert!(text.starts_with("api: 0 of 90 in use, refills 30 a second\n"), "{text}");
    assert_eq!(cluster.run(&["quota", "delete", "api"]).status, 0);
}

#[test]
fn quotas_in_a_tree_count_at_all_levels_across_regions() {
    let data = tempfile::tempdir().expect("a directory");
    let cluster = dev(data.path());
    let create = |name: &str, limit: &str, parent: &[&str]| {
        cluster.run(&[&["quota", "create", name, "--limit", limit, "--json"], parent].concat()).json()
    };
    assert_eq!(create("acme", "30", &[])["parent"], json!(null));
    assert_eq!(create("acme/web", "20", &["--parent", "acme"])["parent"], json!("acme"));
    assert_eq!(create("acme/batch", "30", &["--parent", "acme"])["outcome"], json!("done"));
    assert_eq!(create("acme/web", "20", &[])["reason"], json!("parent_differs"));
    assert_eq!(create("other", "20", &["--parent", "acme"])["reason"], json!("invalid_parent"));
    let orphan = create("none/web", "20", &["--parent", "none"]);
    assert_eq!(orphan["reason"], json!("no_parent"));
    let message = orphan["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("refused: none/web cannot count in none: that, or a quota above it, does not exist"),
        "{message}"
    );

    // At one level, then at the next, with the tokens of all regions.
    let acquire = |name: &str, amount: &str, site: &str| {
        cluster.run(&["quota", "acquire", name, amount, "--site", site, "--json"]).json()
    };
    let web = acquire("acme/web", "18", "us");
    assert_eq!(web["outcome"], json!("done"), "{web}");
    let batch = acquire("acme/batch", "10", "eu");
    assert_eq!(batch["outcome"], json!("done"), "{batch}");
    let short = acquire("acme/batch", "3", "ap");
    assert_eq!((&short["reason"], &short["quota"]), (&json!("exhausted"), &json!("acme")), "{short}");
    let own = acquire("acme/web", "3", "ap");
    assert_eq!((&own["reason"], &own["quota"]), (&json!("exhausted"), &json!(null)), "{own}");
    let said = cluster.run(&["quota", "acquire", "acme/batch", "3"]);
    assert!(said.status == 1 && said.stderr.contains("acme has not enough tokens"), "{said:?}");

    let in_use = |tree: &Value| -> Vec<Value> {
        let quotas = tree["quotas"].as_array().expect("a list").iter();
        quotas.map(|quota| json!([quota["name"], quota["in_use"]["min"], quota["in_use"]["max"]])).collect()
    };
    let tree = || cluster.run(&["quota", "tree", "acme", "--json"]).json();
    let expected = [json!(["acme", 28, 28]), json!(["acme/batch", 10, 10]), json!(["acme/web", 18, 18])];
    eventually("all levels are counted", tree, |tree| in_use(tree) == expected);
    let text = cluster.run(&["quota", "tree", "acme"]).stdout;
    assert!(text.contains("\n  acme/batch ") && text.contains("\n  acme/web "), "{text}");

    let refused = |args: &[&str]| cluster.run(args).json()["reason"].clone();
    assert_eq!(refused(&["quota", "delete", "acme", "--json"]), json!("has_children"));
    let in_use = cluster.run(&["quota", "delete", "acme/web", "--json"]).json();
    assert_eq!((&in_use["reason"], &in_use["amount"]), (&json!("in_use"), &json!(18)));

    let grant = web["grant"].as_str().expect("an id");
    assert_eq!(cluster.run(&["quota", "release", "--grant", grant]).status, 0);
    let released = cluster.run(&["quota", "release", "acme/batch", "10", "--json"]).json();
    assert_eq!(released["outcome"], json!("done"), "{released}");
    for name in ["acme/web", "acme/batch"] {
        let deleted = cluster.run(&["quota", "delete", name, "--json"]).json();
        assert_eq!(deleted["outcome"], json!("done"), "{name}: {deleted}");
    }
    // Another site may be asked this time, which hears of those deletions a moment later.
    let delete = || cluster.run(&["quota", "delete", "acme", "--json"]).json();
    eventually("acme is deleted", delete, |deleted| deleted["outcome"] == json!("done"));
}

#[test]
fn dev_cluster_serves_quotas_end_to_end() {
    let data = tempfile::tempdir().expect("a directory");
    let cluster = dev(data.path());
    let create = &["quota", "create", "gpus", "--limit", "5000"];
    assert_eq!(cluster.run(create).status, 0);
    assert_eq!(cluster.run(create).status, 0, "the same again is done");
    let other = cluster.run(&["quota", "create", "gpus", "--limit", "6"]);
    assert!(other.status == 1 && other.stderr.contains("5000"), "{other:?}");
    let other = cluster.run(&["quota", "create", "gpus", "--limit", "6", "--json"]).json();
    assert_eq!((&other["reason"], &other["limit"]), (&json!("limit_differs"), &json!(5000)));
    let other = cluster.run(&["quota", "create", "gpus", "--limit", "5000", "--agreement", "any", "--json"]).json();
    assert_eq!((&other["reason"], &other["agreement"]), (&json!("agreement_differs"), &json!("majority")));
    let other = cluster.run(&["quota", "create", "gpus", "--limit", "5000", "--agreement", "most"]);
    assert!(other.status == 2 && other.stderr.contains("an agreement is `majority` or `any`, not `most`"), "{other:?}");

    let granted = cluster.run(&["quota", "acquire", "gpus", "3", "--site", "eu", "--json"]).json();
    assert_eq!((&granted["site"], &granted["amount"]), (&json!("eu"), &json!(3)));
    let grant = granted["grant"].as_str().expect("a grant").to_owned();
    assert!(grant.starts_with("eu-1-"), "{grant}");
    assert!(granted["fence"]["number"].as_u64().expect("a fence") > 0);
    let shown = eventually("in use is exact", || show(&cluster), |shown| shown["in_use"] == json!(3));
    assert_eq!((&shown["name"], &shown["limit"]), (&json!("gpus"), &json!(5000)));
    assert_eq!(shown["agreement"], json!("majority"));
    assert_eq!(tokens(&shown), 4997);
    assert_eq!(shown["missing"], json!([]));
    for key in ["local", "rebalances", "gifts"] {
        assert!(shown[key].is_u64(), "{key}");
    }
    for key in ["site", "tokens", "set_aside", "incarnation"] {
        assert!(!shown["sites"][0][key].is_null(), "{key}");
    }

    assert_eq!(cluster.run(&["quota", "release", "--grant", &grant]).status, 0);
    let again = cluster.run(&["quota", "release", "--grant", &grant, "--json"]);
    assert_eq!((again.status, &again.json()["reason"]), (1, &json!("unknown_grant")));

    let held = cluster.run(&["quota", "acquire", "gpus", "7", "--site", "ap", "--for", "1s", "--json"]).json();
    assert!(held["expires_in_ms"].as_u64().expect("a hold") <= 1000);
    eventually("the hold ends by itself", || show(&cluster), |shown| shown["in_use"] == json!(0));

    let many = cluster.run(&["quota", "acquire", "gpus", "4000", "--site", "us"]);
    assert_eq!(many.status, 0, "the others' tokens are moved there: {many:?}");
    let exhausted = cluster.run(&["quota", "acquire", "gpus", "4000", "--site", "ap", "--json"]);
    assert_eq!(exhausted.status, 1, "{exhausted:?}");
    assert!(["exhausted", "deadline_passed"].contains(&exhausted.json()["reason"].as_str().expect("a reason")));
    assert_eq!(cluster.run(&["quota", "release", "gpus", "4000", "--site", "ap"]).status, 0);

    for (words, status, says) in [
        (&["quota", "acquire", "nope", "1"][..], 1, "quota create"),
        (&["quota", "show", "nope"], 1, "no quota"),
        (&["quota", "acquire", "gpus", "1", "--site", "mars"], 2, "us, eu, ap"),
        (&["quota", "release", "--grant", "mars-1-1"], 2, "us, eu, ap"),
        (&["quota", "release", "--grant", "nonsense"], 2, "eu-1-17"),
        (&["quota", "release", "--grant", "us-+1-+1"], 2, "eu-1-17"),
        (&["quota", "release", "gpus", "9000"], 1, "cannot release so many tokens"),
        (&["outcome", "nonsense"], 2, "\"nonsense\" is not an operation's id: expected a region and three numbers"),
        (&["outcome", ""], 2, "\"\" is not an operation's id"),
        (&["outcome", "mars-1-1-1"], 2, "us, eu, ap"),
        // Neither so many lives nor, in one of them, so many sessions.
        (&["outcome", "us-99-1-1"], 1, "nothing is known of us-99-1-1: there never was such an operation at us"),
        (&["outcome", "us-1-99999999999-1"], 1, "there never was such an operation at us"),
        (&["outcome", "eu-1-17"], 2, "\"eu-1-17\" is a grant's id, and not an operation's"),
    ] {
        let ended = cluster.run(words);
        assert_eq!(ended.status, status, "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(says) && ended.stderr.lines().count() == 1, "{words:?}: {}", ended.stderr);
    }
    let withdrawn = cluster.run(&["outcome", "eu-1-999999-1", "--json"]);
    assert_eq!((withdrawn.status, &withdrawn.json()["reason"]), (1, &json!("withdrawn")));
    assert!(
        withdrawn.stderr.contains("its site has carried out no operation eu-1-999999-1, and never will"),
        "{withdrawn:?}"
    );

    // A limit below what is in use, a grant of which a part was not used, and a hold that is to last for longer.
    let many = cluster.run(&["quota", "acquire", "gpus", "3000", "--site", "eu", "--json"]).json();
    let many = many["grant"].as_str().expect("a grant").to_owned();
    let lowered = cluster.run(&["quota", "set", "gpus", "--limit", "1000", "--json"]).json();
    assert_eq!((&lowered["outcome"], &lowered["limit"]), (&json!("done"), &json!(1000)));
    assert!(lowered["excess"].as_i64().expect("tokens") >= 2000, "{lowered}");
    let paid = |shown: &Value| (&shown["excess"], &shown["in_use"]) == (&json!(2000), &json!(3000));
    eventually("free tokens are taken", || show(&cluster), paid);
    let refused = cluster.run(&["quota", "acquire", "gpus", "1", "--json"]).json();
    assert_eq!(refused["reason"], json!("exhausted"));
    let settle = |used: &str| cluster.run(&["quota", "settle", "--grant", &many, "--used", used, "--json"]).json();
    assert_eq!(settle("3001")["reason"], json!("above_grant"));
    assert_eq!(settle("740")["amount"], json!(2260));
    assert_eq!(settle("740")["reason"], json!("settled"));
    let paid = |shown: &Value| (&shown["excess"], &shown["in_use"]) == (&json!(0), &json!(740));
    eventually("what came back is taken", || show(&cluster), paid);
    let held = cluster.run(&["quota", "acquire", "gpus", "2", "--site", "us", "--for", "2s", "--json"]).json();
    let held = held["grant"].as_str().expect("a grant").to_owned();
    let extended = cluster.run(&["quota", "extend", "--grant", &held, "--for", "5s", "--json"]).json();
    assert!(extended["expires_in_ms"].as_u64().expect("a hold") > 3000, "{extended}");
    let endless = cluster.run(&["quota", "extend", "--grant", &many, "--for", "5s", "--json"]).json();
    assert_eq!(endless["reason"], json!("no_end"));
    assert_eq!(cluster.run(&["quota", "set", "gpus", "--limit", "5000"]).status, 0);
    assert_eq!(cluster.run(&["quota", "set", "nope", "--limit", "5"]).status, 1);

    // What does not fit is refused, unless it stays in line: until its time is up, or what it lacks comes back.
    let rest = cluster.run(&["quota", "acquire", "gpus", "4250", "--site", "ap", "--json"]).json();
    assert_eq!(rest["outcome"], json!("done"), "{rest}");
    let asked = ["quota", "acquire", "gpus", "40", "--site", "eu", "--json"];
    assert_eq!(cluster.run(&asked).json()["reason"], json!("exhausted"));
    let late = cluster.run(&[&asked[..], &["--wait", "--deadline", "1s"]].concat());
    assert_eq!((late.status, &late.json()["reason"]), (1, &json!("deadline_passed")), "{late:?}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cluster.run(&[&asked[..], &["--wait", "--deadline", "30s"]].concat()).json());
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(cluster.run(&["quota", "release", "gpus", "100", "--site", "us"]).status, 0);
        let granted = waits.join().expect("no panic");
        assert_eq!((&granted["outcome"], &granted["site"]), (&json!("done"), &json!("eu")), "{granted}");
    });

    // What one site knows, which asks nobody: never too little.
    let known = cluster.run(&["quota", "show", "gpus", "--local", "--site", "us", "--json"]).json();
    let number = |key: &str| known[key].as_i64().unwrap_or_else(|| panic!("{key} of {known}"));
    let in_use = show(&cluster)["in_use"].as_i64().expect("nothing moves");
    assert!(in_use <= number("at_most") && number("at_most") <= number("limit"), "{known}, {in_use} in use");
    assert!(number("estimate") <= number("at_most") && known["sites"].as_array().is_some_and(|sites| sites.len() == 3));
    let text = cluster.run(&["quota", "show", "gpus", "--local"]);
    assert!(text.stdout.contains("at most") && text.stderr.contains("without asking another region"), "{text:?}");
    let unknown = cluster.run(&["quota", "show", "nope", "--local", "--json"]);
    assert_eq!((unknown.status, &unknown.json()["reason"]), (1, &json!("unknown_quota")));

    assert_eq!(cluster.run(&["quota", "list", "--json"]).json()["quotas"][0]["name"], "gpus");
    assert!(cluster.run(&["quota", "list"]).stdout.contains("gpus"));
    assert!(cluster.run(&["quota", "show", "gpus"]).stdout.lines().all(|line| line.chars().count() <= 80));
    assert_eq!(cluster.run(&["quota", "delete", "gpus"]).status, 0);
    // The nearest site may not have heard of it yet.
    let listed = || cluster.run(&["quota", "list", "--json"]).json();
    eventually("it is gone", listed, |listed| *listed == json!({ "quotas": [] }));
}

#[test]
fn objects_are_written_and_read_in_one_transaction_each_or_several_in_one() {
    let cluster = Server::start(&["dev", "--memory", "--port", "0", "--json"]);
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path of this test").to_owned()
    };
    let said = |words: &[&str]| {
        let ended = cluster.run(words);
        assert_eq!(ended.status, 0, "{words:?}: {ended:?}");
        ended.stdout.trim_end().to_owned()
    };
    assert_eq!(said(&["get", "eu:x"]), "nothing is there");
    assert_eq!(said(&["put", "eu:x", "{\"b\": 1.50, \"a\": -2}"]), "eu:x is written");
    assert_eq!(said(&["get", "eu:x"]), "{\"b\": 1.50, \"a\": -2}", "as it was written");
    assert_eq!(cluster.run(&["get", "eu:x", "--json"]).json()["value"], json!({ "a": -2, "b": 1.5 }));
    assert_eq!(said(&["put", "eu:raw", "--raw", "good morning"]), "eu:raw is written");
    assert_eq!(said(&["get", "eu:raw", "--raw"]), "good morning");
    assert!(said(&["get", "eu:raw"]).contains("--raw"));
    said(&["put", "eu:n", "-7"]);
    assert_eq!(said(&["get", "eu:n"]), "-7");
    assert_eq!(said(&["put", "us:count", "--counter", "-7"]), "us:count is written");
    assert_eq!(said(&["add", "us:count", "-3", "--site", "ap"]), "added -3 to us:count");
    assert_eq!(said(&["get", "us:count"]), "-10");
    assert_eq!(said(&["delete", "eu:raw"]), "eu:raw is deleted");
    assert_eq!(said(&["scan", "eu", "--limit", "1"]), "eu:n  -7\nthere may be more, with --after 'n'");
    assert_eq!(said(&["scan", "eu", "--after", "n"]), "eu:x  {\"b\": 1.50, \"a\": -2}");
    // What cannot be printed is no success.
    let full = std::process::Command::new("sh")
        .args([
            "-c",
            r#""$0" get eu:x --raw --connect "$1" > /dev/full"#,
            env!("CARGO_BIN_EXE_slackline"),
            &cluster.connect,
        ])
        .output();
    let full = full.expect("a shell");
    assert!(!full.status.success() && String::from_utf8_lossy(&full.stderr).contains("No space left"), "{full:?}");
    assert_eq!(said(&["scan", "eu:x"]), "eu:x  {\"b\": 1.50, \"a\": -2}");
    assert_eq!(said(&["scan", "ap"]), "nothing is there");

    let good = file(
        "good.json",
        r#"{"operations": [
            {"expect": "eu:n", "value": -7}, {"expect": "ap:y", "absent": true},
            {"put": "ap:y", "value": [1]}, {"add": "us:count", "delta": 1}, {"delete": "eu:n"},
            {"get": "us:count"}, {"scan": "ap:"}
        ]}"#,
    );
    let done = cluster.run(&["txn", &good, "--json"]).json();
    assert_eq!((&done["outcome"], &done["phases"], &done["runs"]), (&json!("done"), &json!(2), &json!(1)), "{done}");
    assert_eq!(done["results"][5], json!({ "key": "us:count", "kind": "counter", "value": -9 }));
    assert_eq!(done["results"][6]["rows"], json!([{ "key": "ap:y", "kind": "json", "value": [1] }]));
    let operation = done["operation"].as_str().expect("an id");
    let outcome = cluster.run(&["outcome", operation, "--json"]);
    assert_eq!((outcome.status, &outcome.json()["effect"]), (0, &json!({ "committed": 2 })), "{outcome:?}");
    for words in [&["put", "eu:a", "1"][..], &["add", "us:a", "1"], &["delete", "eu:a"]] {
        let done = cluster.run(&[words, &["--json"]].concat()).json();
        let operation = done["operation"].as_str().expect("an id");
        assert_eq!(said(&["outcome", operation]), "committed", "{words:?}");
        assert!(said(&["txn", "explain", operation]).starts_with(operation), "{words:?}");
    }
    let again = cluster.run(&["txn", &good, "--json"]);
    assert_eq!((again.status, &again.json()["reason"]), (1, &json!("not_as_expected")), "{again:?}");
    assert_eq!(again.json()["found"], json!({ "key": "eu:n", "kind": "absent", "value": null }));
    assert!(again.stderr.contains("nothing is there") && again.stderr.lines().count() == 1);
    assert_eq!(said(&["get", "us:count"]), "-9", "nothing of it was written");

    let (no_json, wrong) =
        (file("no.json", "{\n \"operations\": [}"), file("wrong.json", r#"{"operations": [{"git": "eu:x"}]}"#));
    for (words, status, says) in [
        (&["txn", &no_json][..], 2, "no.json: no JSON: expected value at line 2 column 17"),
        (&["txn", &wrong], 2, "operations[0]: none of get, put"),
        (&["get", "mars:x"], 2, "us, eu, ap"),
        (&["put", "eu:", "1"], 2, "the key is not valid"),
        (&["add", "eu:x", "1"], 1, "refused: the object is no counter (eu:x)"),
        (&["put", "eu:x", "1", "--site", "mars"], 2, "us, eu, ap"),
    ] {
        let ended = cluster.run(words);
        assert_eq!(ended.status, status, "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(says) && ended.stderr.lines().count() == 1, "{words:?}: {}", ended.stderr);
    }
    let accepted = "the objects that eu has lost count as absent, from 21 s after its start on";
    assert_eq!(said(&["accept-loss", "--site", "eu"]), accepted);
}

#[test]
fn value_comes_from_standard_input_and_a_scan_goes_on_after_a_key_as_it_is_printed() {
    let data = tempfile::tempdir().expect("a directory");
    let cluster = dev(data.path());
    let put = |words: &[&str], input: &[u8]| cluster.run_with(words, input);
    let raw = put(&["put", "us:r", "--raw", "-"], b"\xff\x00\n");
    assert_eq!(raw.status, 0, "{raw:?}");
    let wrong = put(&["put", "us:r", "-"], b"\xff");
    assert_eq!((wrong.status, wrong.stderr.lines().count()), (2, 1), "{wrong:?}");
    assert_eq!(put(&["put", "us:s/0", "-"], b"{\"a\": 1}\n").status, 0);
    for name in ["us:s/1", "us:s/2", "us:t"] {
        assert_eq!(cluster.run(&["put", name, "1"]).status, 0);
    }
    let scan = |after: &str| cluster.run(&["scan", "us:s/", "--limit", "1", "--after", after]);
    for after in ["s/0", "us:s/0"] {
        let page = scan(after);
        assert!(page.status == 0 && page.stdout.starts_with("us:s/1"), "{page:?}");
    }
    let elsewhere = scan("eu:s/0");
    assert_eq!((elsewhere.status, elsewhere.stderr.lines().count()), (2, 1), "{elsewhere:?}");
    assert!(elsewhere.stderr.contains("all names begin with s/"), "{elsewhere:?}");
}

#[test]
fn person_is_told_how_long_an_answer_took_and_what_it_waited_for() {
    let cluster = Server::start(&["dev", "--memory", "--port", "0", "--json"]);
    let told = |words: &[&str]| {
        let ended = cluster.run(words);
        assert_eq!((ended.status, ended.stderr.lines().count()), (0, 1), "{words:?}: {ended:?}");
        ended.stderr.trim_end().to_owned()
    };
    assert!(told(&["quota", "create", "gpus", "--limit", "5000"]).starts_with("answered in "));

    // A busy machine may make a site slow. What it says then claims less, and is never wrong.
    let alone = || told(&["quota", "acquire", "gpus", "1", "--site", "eu"]);
    let ends = ", without waiting for another region";
    let alone = eventually("an answer at once", alone, |line: &String| line.ends_with(ends));
    assert!(alone.starts_with("answered by eu in ") && alone.contains(" ms, "), "{alone}");
    let moved = told(&["quota", "acquire", "gpus", "3000", "--site", "ap"]);
    assert!(moved.ends_with(", long enough to ask another region"), "{moved}");
    assert!(told(&["quota", "show", "gpus"]).ends_with(", after asking every site"));

    let put = told(&["put", "eu:x", "1", "--site", "us"]);
    assert!(put.starts_with("answered by us in ") && put.ends_with(", after asking eu"), "{put}");
    let read = told(&["get", "eu:x", "--site", "ap"]);
    assert!(read.ends_with(", long enough to ask eu, its home"), "{read}");
    assert_eq!(cluster.run(&["put", "eu:x", "2", "--json"]).stderr, "");
}

#[test]
fn values_of_a_file_keep_their_digits_and_what_is_wrong_with_it_has_a_reason() {
    let cluster = Server::start(&["dev", "--memory", "--port", "0", "--json"]);
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("txn.json");
    let path = path.to_str().expect("a path of this test");
    let run = |operations: &str, more: &[&str]| {
        std::fs::write(path, format!("{{\"operations\": [{operations}]}}")).expect("written");
        cluster.run(&[&["txn", path], more].concat())
    };
    let big = "123456789012345678901234567890";
    let written = run(&format!("{{\"put\": \"eu:big\", \"value\": {{\"n\": {big},\n \"b\": 1.50}}}}"), &[]);
    assert_eq!((written.status, written.stdout.trim_end()), (0, "committed"), "{written:?}");
    assert_eq!(cluster.run(&["put", "eu:raw", "--raw", "x\u{1b}[2J"]).status, 0);
    assert_eq!(cluster.run(&["put", "eu:shown", "\"\u{9b}2J\""]).status, 0);

    let row = format!("eu:big  {{\"n\":{big},\"b\":1.50}}\n");
    let bytes = "eu:raw  5 bytes that are no JSON: `get --raw` prints them\n";
    let read = run("{\"scan\": \"eu:\"}", &[]);
    assert_eq!(read.stdout, format!("{row}{bytes}eu:shown  \"\\u009b2J\"\ncommitted\n"), "{read:?}");
    assert_eq!(
        cluster.run(&["scan", "eu", "--limit", "2"]).stdout.lines().take(2).collect::<Vec<_>>().join("\n") + "\n",
        format!("{row}{bytes}")
    );
    assert_eq!(cluster.run(&["get", "eu:shown"]).stdout, "\"\\u009b2J\"\n");
    for ended in [
        run("{\"get\": \"eu:big\"}", &["--json"]),
        cluster.run(&["get", "eu:big", "--json"]),
        cluster.run(&["scan", "eu", "--json"]),
    ] {
        assert!(ended.stdout.contains(&format!("\"value\":{{\"n\":{big},\"b\":1.50}}")), "{ended:?}");
        ended.json();
    }
    let expects = |last: &str| {
        format!("{{\"expect\": \"eu:big\", \"value\": {{\"b\": 1.5, \"n\": 12345678901234567890123456789{last}}}}}")
    };
    assert_eq!(run(&expects("0"), &[]).status, 0);
    let unmet = run(&expects("1"), &["--json"]);
    assert!(unmet.stderr.contains(&format!("it holds {{\"n\":{big},\"b\":1.50}}")), "{unmet:?}");
    assert!(unmet.stdout.contains(&format!("\"value\":{{\"n\":{big},")) && unmet.json()["reason"] == "not_as_expected");

    for (operations, status, reason, key, says) in [
        (
            "{\"put\": \"eu:n\", \"counter\": 9223372036854775807}, {\"add\": \"eu:n\", \"delta\": 1}",
            1,
            json!("out_of_range"),
            json!("eu:n"),
            "(eu:n)",
        ),
        (
            "{\"put\": \"eu:n\", \"value\": 1}, {\"add\": \"eu:n\", \"delta\": 1}",
            1,
            json!("not_a_counter"),
            json!("eu:n"),
            "refused: the object is no counter (eu:n)",
        ),
        (
            "{\"get\": \"eu:n\", \"get\": \"eu:m\"}",
            2,
            json!(null),
            json!(null),
            "txn.json: the key \"get\" stands twice in one object at line 1",
        ),
        (
            "{\"put\": \"eu:n\", \"value\": {\"a\": 1, \"a\": 2}}",
            2,
            json!(null),
            json!(null),
            "the key \"a\" stands twice",
        ),
    ] {
        let ended = run(operations, &["--json"]);
        let object = ended.json();
        assert_eq!((ended.status, &object["reason"], &object["key"]), (status, &reason, &key), "{ended:?}");
        assert!(ended.stderr.contains(says) && ended.stderr.lines().count() == 1, "{ended:?}");
    }
}

/// The keys of an object and of those in it, but for names of sites.
fn keys(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(object) => {
            let inner = object.iter().filter(|(key, _)| *key != "rtt_ms").flat_map(|(_, value)| keys(value));
            object.keys().map(String::as_str).chain(inner).collect()
        }
        Value::Array(values) => values.iter().flat_map(keys).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn book_explains_every_key_of_json() {
    let book = include_str!("../../../docs/src/json.md");
    let cluster = Server::start(&["dev", "--memory", "--port", "0", "--json"]);
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path of this test").to_owned()
    };
    let transaction = &*file("read.json", r#"{"operations": [{"get": "eu:n"}, {"scan": "eu:"}]}"#);
    let expecting = &*file("expect.json", r#"{"operations": [{"expect": "eu:n", "absent": true}]}"#);
    let mut said = vec![cluster.said.clone(), slackline(&["sim", "--seed", "1", "--json"]).json()];
    for words in [
        &["quota", "create", "gpus", "--limit", "5000"][..],
        &["quota", "create", "gpus", "--limit", "6"],
        &["quota", "acquire", "gpus", "3", "--site", "us", "--for", "60s"],
        &["quota", "acquire", "gpus", "9000"],
        &["quota", "acquire", "gpus", "1", "--site", "mars"],
        &["quota", "extend", "--grant", "us-1-1", "--for", "70s"],
        &["quota", "settle", "--grant", "us-1-1", "--used", "1"],
        &["quota", "settle", "--grant", "us-1-1", "--used", "2"],
        &["quota", "release", "--grant", "us-1-1"],
        &["quota", "release", "gpus", "9000"],
        &["quota", "set", "gpus", "--limit", "6000"],
        &["quota", "show", "gpus"],
        &["quota", "show", "gpus", "--local"],
        &["quota", "list"],
        &["quota", "delete", "gpus"],
        &["site", "wait", "us"],
        &["outcome", "us-1-1-1"],
        &["status"],
        &["put", "eu:x", "1"],
        &["get", "eu:x"],
        &["add", "eu:x", "1"],
        &["add", "eu:n", "1"],
        &["scan", "eu"],
        &["delete", "eu:x"],
        &["txn", transaction],
        &["txn", expecting],
        &["accept-loss", "--site", "us"],
    ] {
        said.push(cluster.run(&[words, &["--json"]].concat()).json());
    }
    for object in &said {
        for key in keys(object) {
            assert!(book.contains(&format!("{key}`")), "{key} of {object}");
        }
    }
}

#[test]
fn status_names_every_site() {
    let data = tempfile::tempdir().expect("a directory");
    let cluster = dev(data.path());
    let status = eventually(
        "round trips are measured",
        || cluster.run(&["status", "--json"]).json(),
        |status| {
            status["sites"]
                .as_array()
                .is_some_and(|s| s.iter().all(|s| s["rtt_ms"].as_object().is_some_and(|r| r.len() == 2)))
        },
    );
    for (site, name) in status["sites"].as_array().expect("sites").iter().zip(["us", "eu", "ap"]) {
        assert_eq!((&site["site"], &site["up"], &site["ready"]), (&json!(name), &json!(true), &json!(true)));
        assert!(site["clock_error_us"].is_u64() && site["address"].is_string());
    }
    // The delays are those of the table that the binary carries.
    assert!(status["sites"][0]["rtt_ms"]["ap"].as_f64().expect("a number") > 50.0);
    let table = cluster.run(&["status"]).stdout;
    assert!(table.contains("ready") && table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

#[test]
fn dev_goes_on_where_it_stopped_also_after_kill_9() {
    let data = tempfile::tempdir().expect("a directory");
    let cluster = dev(data.path());
    assert_eq!(cluster.run(&["quota", "create", "gpus", "--limit", "100"]).status, 0);
    let granted = cluster.run(&["quota", "acquire", "gpus", "3", "--site", "eu", "--json"]).json();
    let grant = granted["grant"].as_str().expect("a grant").to_owned();
    cluster.kill();

    let cluster = dev(data.path());
    eventually("it is there again", || show(&cluster), |shown| shown["in_use"] == json!(3));
    assert_eq!(cluster.run(&["quota", "release", "--grant", &grant]).status, 0);
    assert_eq!(cluster.run(&["quota", "acquire", "gpus", "5", "--site", "us"]).status, 0);
    let ended = cluster.interrupt();
    assert_eq!(ended.status, 0, "{ended:?}");

    let cluster = dev(data.path());
    eventually("it is there again", || show(&cluster), |shown| shown["in_use"] == json!(5));
    assert_eq!(cluster.run(&["quota", "release", "--grant", &grant]).status, 1, "a second time");
}

#[test]
fn data_directory_in_use_is_refused() {
    let data = tempfile::tempdir().expect("a directory");
    let path = data.path().to_str().expect("a path of this test");
    let cluster = dev(data.path());
    let second = slackline(&["dev", "--port", "0", "--data", path]);
    assert_eq!((second.status, second.stderr.lines().count()), (1, 1), "{second:?}");
    assert!(second.stderr.contains(path), "{}", second.stderr);
    assert_eq!(cluster.run(&["status"]).status, 0, "the first is not disturbed");
}

#[test]
fn dev_in_memory_with_lanes_and_a_table_of_its_own() {
    let folder = tempfile::tempdir().expect("a directory");
    let table = folder.path().join("rtt.csv");
    std::fs::write(&table, "from,to,rtt_ms\nhere-in-the-very-middle,there,10\n").expect("written");
    let table = table.to_str().expect("a path of this test");
    let cluster =
        Server::start(&["dev", "--port", "0", "--json", "--memory", "--sites", "2", "--lanes", "2", "--rtt", table]);
    let sites: Vec<_> = cluster.said["sites"].as_array().expect("sites").iter().map(|site| &site["site"]).collect();
    assert_eq!(sites.len(), 4);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(cluster.run(&["quota", "create", name, "--limit", "10"]).status, 0);
        assert_eq!(cluster.run(&["quota", "acquire", name, "2", "--site", "there"]).status, 0);
    }
    assert_eq!(cluster.run(&["quota", "list", "--json"]).json()["quotas"].as_array().map(Vec::len), Some(4));
    // Four columns of these names would not fit.
    assert!(cluster.run(&["status"]).stdout.ends_with("\n\n(round trips: see --json)\n"));
    assert_eq!(cluster.interrupt().status, 0);
}

#[test]
fn dev_says_that_it_drains() {
    for end in [Server::interrupt, Server::hang_up] {
        let cluster = Server::start_with(&["dev", "--port", "0", "--json", "--memory"], Stdio::piped());
        let ended = end(cluster);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, "draining…\n"));
    }
}

#[test]
fn three_serve_processes_form_a_cluster_and_survive_the_loss_of_one() {
    let folder = tempfile::tempdir().expect("a directory");
    let configs = three_configs(folder.path());
    let serve = |(path, address): &(String, String)| {
        let mut server = Server::start(&["serve", "--json", "--config", path]);
        server.connect = address.clone();
        server
    };
    let mut servers: Vec<Server> = configs.iter().map(serve).collect();
    let all_ready = |status: &Value| {
        let sites = status["sites"].as_array();
        sites.is_some_and(|sites| sites.len() == 3 && sites.iter().all(|site| site["ready"] == true))
    };
    eventually("all are ready", || servers[0].run(&["status", "--json"]).json(), all_ready);
    assert_eq!(servers[0].run(&["quota", "create", "gpus", "--limit", "300"]).status, 0);
    assert_eq!(servers[1].run(&["quota", "acquire", "gpus", "4", "--site", "ap"]).status, 0);

    servers.pop().expect("three").kill();
    let status = servers[0].run(&["status", "--json"]).json();
    assert_eq!((&status["sites"][2]["site"], &status["sites"][2]["up"]), (&json!("ap"), &json!(false)));
    let cut_off = servers[0].run(&["quota", "acquire", "gpus", "1", "--site", "ap", "--deadline", "1s", "--json"]);
    assert_eq!((cut_off.status, &cut_off.json()["reason"]), (1, &json!("not_sent")), "{cut_off:?}");
    assert_eq!(servers[0].run(&["quota", "acquire", "gpus", "1"]).status, 0, "the others go on");
    let shown = servers[0].run(&["quota", "show", "gpus", "--deadline", "2s", "--json"]).json();
    assert_eq!(shown["missing"], json!(["ap"]));
    assert!(shown["in_use"]["min"].is_i64() && shown["in_use"]["max"].is_i64(), "{shown}");

    servers.push(serve(&configs[2]));
    eventually("it is back", || servers[0].run(&["status", "--json"]).json(), all_ready);
    eventually("all are counted", || show(&servers[0]), |shown| shown["in_use"] == json!(5));
    for server in servers {
        let ended: Ended = server.terminate();
        assert_eq!(ended.status, 0, "{ended:?}");
    }
}

/// Status 3 and the operation's id say that an acquire may have been granted or not; with the id, `outcome` settles which.
#[test]
fn site_frozen_before_its_answer_is_status_3_and_outcome_settles_it() {
    let folder = tempfile::tempdir().expect("a directory");
    let servers = three_configs(folder.path()).into_iter().map(|(path, address)| {
        let mut server = Server::start(&["serve", "--json", "--config", &path]);
        server.connect = address;
        server
    });
    let servers: Vec<Server> = servers.collect();
    let us = &servers[0];
    assert_eq!(us.run(&["quota", "create", "gpus", "--limit", "300", "--deadline", "30s"]).status, 0);

    // What this site does not have it must wait for, as the others are frozen. Once it waits, it is frozen too.
    servers[1..].iter().for_each(Server::freeze);
    let unknown = std::thread::scope(|scope| {
        let acquire = &["quota", "acquire", "gpus", "200", "--site", "us", "--deadline", "10s", "--json"];
        let acquire = scope.spawn(|| us.run(acquire));
        let http = us.said["http"].as_str().expect("an address").parse().expect("an address");
        let waiting = || metric(http, "slackline_queue_length{queue=\"waiting_for_tokens\"}").expect("a metric");
        eventually("the acquire waits", waiting, |waiting| *waiting == 1.0);
        us.freeze();
        acquire.join().expect("no panic")
    });
    assert_eq!((unknown.status, &unknown.json()["outcome"]), (3, &json!("unknown")), "{unknown:?}");
    let operation = unknown.json()["operation"].as_str().expect("an id").to_owned();
    assert_eq!(unknown.stderr.lines().count(), 1, "{unknown:?}");
    assert!(unknown.stderr.contains(&format!("slackline outcome {operation}")), "{unknown:?}");

    servers.iter().for_each(Server::thaw);
    let settled = us.run(&["outcome", &operation, "--deadline", "30s", "--json"]);
    assert!([0, 1].contains(&settled.status), "{settled:?}");
    let in_use = if settled.status == 0 { 200 } else { 0 };
    eventually("the books agree", || show(us), |shown| shown["in_use"] == json!(in_use));
    assert_eq!(us.run(&["outcome", &operation, "--json"]).json(), settled.json(), "it stays so");
}

/// A region that says nothing is shown as down, and keeps nobody from what the others know.
#[test]
fn treaty_with_a_frozen_region_is_found_shown_and_listed() {
    let folder = tempfile::tempdir().expect("a directory");
    let servers = three_configs(folder.path()).into_iter().map(|(path, address)| {
        let mut server = Server::start(&["serve", "--json", "--config", &path]);
        server.connect = address;
        server
    });
    let servers: Vec<Server> = servers.collect();
    let us = &servers[0];
    for region in ["us", "eu", "ap"] {
        assert_eq!(us.run(&["add", &format!("{region}:votes"), "10", "--deadline", "30s"]).status, 0);
    }
    let file = folder.path().join("enough.json");
    std::fs::write(&file, r#"{"metric": "*:votes", "at_least": 3}"#).expect("written");
    let made = us.run(&["treaty", "create", "enough", file.to_str().expect("a path of this test")]);
    assert_eq!(made.status, 0, "{made:?}");
    let unfit = us.run(&["treaty", "create", "=enough", file.to_str().expect("a path of this test")]);
    assert!(unfit.status == 2 && unfit.stderr.contains("name"), "{unfit:?}");
    let all = us.run(&["treaty", "list", "--json"]).json();
    assert_eq!((&all["treaties"][0]["home"], &all["missing"]), (&json!("us"), &json!([])));

    servers[2].freeze();
    let shown = us.run(&["treaty", "show", "enough", "--deadline", "4s", "--json"]);
    assert_eq!(shown.status, 0, "{shown:?}");
    let shown = shown.json();
    let up = |region: &str| {
        let nodes = shown["nodes"].as_array().expect("a list");
        nodes.iter().find(|node| node["node"] == json!(region)).expect("a region of it")["up"].clone()
    };
    assert_eq!((up("us"), up("eu"), up("ap")), (json!(true), json!(true), json!(false)));

    let told = us.run(&["treaty", "show", "enough", "--deadline", "4s"]);
    let says = ["not known to hold at us: no answer from ap", "unknown", "down"];
    assert!(says.iter().all(|says| told.stdout.contains(says)), "{told:?}");
    assert!(told.stderr.ends_with(", by each site itself that answers\n"), "{told:?}");

    let listed = us.run(&["treaty", "list", "--deadline", "4s"]);
    let expected = listed.status == 0 && listed.stdout.contains("enough") && listed.stdout.contains("not those of ap");
    assert!(expected, "{listed:?}");
    let listed = us.run(&["treaty", "list", "--deadline", "4s", "--json"]).json();
    assert_eq!((&listed["treaties"][0]["name"], &listed["missing"]), (&json!("enough"), &json!(["ap"])));

    // It may have its home where nobody answers.
    let unknown = us.run(&["treaty", "show", "other", "--deadline", "4s"]);
    assert!(unknown.status != 0 && unknown.stderr.contains("ap: "), "{unknown:?}");
    let other = us.run(&["treaty", "create", "other", file.to_str().expect("a path of this test"), "--deadline", "4s"]);
    assert!(other.status == 1 && other.stderr.contains("ap"), "{other:?}");

    servers[2].thaw();
    let missing = || us.run(&["treaty", "list", "--json"]).json()["missing"].clone();
    eventually("all answer", missing, |missing| *missing == json!([]));
    assert_eq!(us.run(&["treaty", "show", "other"]).status, 1);

    // What takes more than there is retracts it, and it stays there. A requirement that is not met names it.
    assert_eq!(us.run(&["add", "us:votes", "-100", "--deadline", "60s"]).status, 0);
    let retracted = || us.run(&["treaty", "list", "--json"]).json()["treaties"][0]["retracted"].clone();
    assert_eq!(retracted(), json!(true));
    let told = us.run(&["treaty", "show", "enough"]);
    assert!(told.stdout.contains("not valid at us: a write retracted it"), "{told:?}");
    let requires = folder.path().join("requires.json");
    std::fs::write(&requires, r#"{"operations": [{"require": "enough"}]}"#).expect("written");
    let requires = requires.to_str().expect("a path of this test");
    let refused = us.run(&["txn", requires]);
    assert!(refused.status == 1 && refused.stderr.contains("(treaty enough)"), "{refused:?}");
    assert_eq!(us.run(&["txn", requires, "--json"]).json()["treaty"], json!("enough"));
}

/// Three regions, `a` to `c`, each as far from each other; and the folder of their table.
fn far_apart(rtt_ms: u32) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a directory");
    let table = folder.path().join("rtt.csv");
    let lines = ["a,b", "b,c", "a,c"].map(|pair| format!("{pair},{rtt_ms}\n"));
    std::fs::write(&table, format!("from,to,rtt_ms\n{}", lines.concat())).expect("written");
    let table = table.to_str().expect("a path of this test");
    let cluster = Server::start(&["dev", "--json", "--port", "0", "--memory", "--rtt", table]);
    (folder, cluster)
}

#[test]
fn acquire_that_is_broken_off_holds_nothing() {
    let (_folder, cluster) = far_apart(800);
    assert_eq!(cluster.run(&["quota", "create", "gpus", "--limit", "300", "--deadline", "50s"]).status, 0);
    // It waits for tokens of the others for a second or so.
    let acquire = ["quota", "acquire", "gpus", "200", "--site", "a", "--deadline", "30s"];
    let broken_off = cluster.run_interrupted(&acquire, Duration::from_millis(400));
    assert_eq!(broken_off.status, 3, "{broken_off:?}");
    assert!(broken_off.stderr.contains("interrupted") && broken_off.stderr.lines().count() == 1, "{broken_off:?}");
    std::thread::sleep(Duration::from_secs(3));
    eventually("nothing is held", || show(&cluster), |shown| shown["in_use"] == json!(0));
    let whole = cluster.run(&["quota", "acquire", "gpus", "300", "--deadline", "50s"]);
    assert_eq!(whole.status, 0, "{whole:?}");
}

/// The outcome takes longer than it waits for it, and somebody must be able to ask.
#[test]
fn change_that_is_broken_off_names_its_operation() {
    let (_folder, cluster) = far_apart(1_600);
    eventually("all serve", || cluster.run(&["status", "--json"]).status, |status| *status == 0);
    let create = ["quota", "create", "gpus", "--limit", "300", "--deadline", "50s", "--json"];
    let broken_off = cluster.run_interrupted(&create, Duration::from_millis(400));
    assert_eq!(broken_off.status, 3, "{broken_off:?}");
    let json = broken_off.json();
    assert_eq!((&json["outcome"], &json["why"]), (&json!("unknown"), &json!("interrupted")));
    let operation = json["left"][0]["operation"].as_str().expect("an id").to_owned();
    assert!(broken_off.stderr.contains(&format!("slackline outcome {operation}")), "{broken_off:?}");
    let settled = cluster.run(&["outcome", &operation, "--deadline", "50s"]);
    // To ask ends what still waits for an agreement.
    assert!(settled.status == 0 || settled.stderr.contains("and never will"), "{settled:?}");
}

/// What `--json` promises of every benchmark: one object, with these keys, and the books verified.
#[track_caller]
fn bench(words: &[&str]) -> Value {
    // On the disk that the tests are built on: in memory nothing durable can be measured.
    let ended = slackline_in(env!("CARGO_TARGET_TMPDIR").as_ref(), &[&["bench"], words, &["--json"]].concat());
    assert_eq!(ended.status, 0, "{ended:?}");
    let report = ended.json();
    let keys: Vec<_> = report.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["cost_model", "data", "epsilon_us", "mode", "runs", "seed", "verified", "workload"]);
    assert_eq!((&report["workload"], &report["verified"]), (&json!(words[0]), &json!(true)));
    for run in report["runs"].as_array().expect("a list") {
        for key in ["committed", "refused", "unknown", "rebalances", "gifts", "retracts", "wan_messages"] {
            assert!(run[key].is_u64(), "{key}: {run}");
        }
        for key in ["duration_s", "throughput_per_s", "local_ratio"] {
            assert!(run[key].is_f64(), "{key}: {run}");
        }
        for key in ["p50", "p90", "p95", "p99", "p999", "max"] {
            assert!(run["latency_ms"][key].is_f64(), "{key}: {run}");
        }
    }
    report
}

#[test]
fn bench_samya_prints_one_object() {
    let report = bench(&["samya", "latency", "--seconds", "20", "--config", "slackline,central", "--seed", "7"]);
    let runs = report["runs"].as_array().expect("a list");
    let configs: Vec<_> = runs.iter().map(|run| (&run["config"], &run["experiment"])).collect();
    assert_eq!(configs, [(&json!("slackline"), &json!("latency")), (&json!("central"), &json!("latency"))]);
    for run in runs {
        assert!(run["committed"].as_u64() > Some(2_000) && run["refused_acquires"] == json!(0), "{run}");
    }
    let parted = bench(&["samya", "partition", "--seconds", "40", "--config", "quorum"]);
    let parts: Vec<_> =
        parted["runs"][0]["phases"].as_array().expect("a list").iter().map(|phase| &phase["part"]).collect();
    assert_eq!(parts, ["all", "three", "two", "all"]);
    assert_eq!(parted["runs"][0]["phases"][2]["committed"], json!(0));
    let reads = bench(&["samya", "sites", "--seconds", "5", "--config", "samya-majority"]);
    let sites: Vec<_> = reads["runs"].as_array().expect("a list").iter().map(|run| &run["x"]).collect();
    assert_eq!(sites, [5, 10, 15, 20]);
}

#[test]
fn bench_hot_prints_one_object() {
    let simulated = bench(&["hot", "--callers", "1,2", "--seed", "7"]);
    assert_eq!((&simulated["mode"], &simulated["seed"]), (&json!("sim"), &json!(7)));
    let callers: Vec<_> = simulated["runs"].as_array().expect("a list").iter().map(|run| &run["callers"]).collect();
    assert_eq!(callers, [1, 2]);

    let live = bench(&["hot", "--live", "--callers", "1"]);
    assert_eq!((&live["mode"], live["runs"].as_array().map(Vec::len)), (&json!("live"), Some(2)));
    let run = &live["runs"][0];
    assert_eq!((&run["config"], &live["runs"][1]["config"]), (&json!("callers-1"), &json!("floor-1")));
    assert!(run["floor_ratio"].as_f64() > Some(0.0), "{run}");
    assert!(run["committed"].as_u64() > Some(0) && run["syncs"].as_u64() > Some(0), "{run}");
}

#[test]
fn bench_of_transactions_tells_its_defaults_and_that_nothing_was_committed() {
    for (workload, defaults, configs) in [
        ("twitter", ["80", "8", "40000"], "occ, state or computation"),
        ("oo7", ["1", "36", "500"], "occ or state"),
        ("bank", ["80", "8", "30000"], "occ or state"),
        ("courses", ["20", "12", "20000"], "occ or state"),
    ] {
        let help = slackline(&["bench", workload, "--help"]).stdout;
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for (option, default) in ["--rtt", "--clients", "--measure"].into_iter().zip(defaults) {
            let of_option = words.split_once(&format!("{option} <")).and_then(|(_, after)| after.split(']').next());
            assert!(of_option.is_some_and(|text| text.ends_with(&format!("[default: {default}"))), "{option}: {help}");
        }
        assert!(words.contains(&format!("Only this configuration: {configs}; by default")), "{help}");
    }
    let bank = slackline(&["bench", "bank", "--measure", "1", "--config", "occ", "--json"]);
    assert_eq!((bank.status, &bank.json()["runs"][0]["committed"]), (1, &json!(0)), "{bank:?}");
    assert!(bank.stderr.contains("nothing was committed while it was counted, in occ"), "{bank:?}");
}

#[test]
fn bench_writes_needs_no_live_and_says_nothing_else() {
    let ended = slackline_in(env!("CARGO_TARGET_TMPDIR").as_ref(), &["bench", "writes", "--callers", "1", "--json"]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert_eq!(ended.json()["mode"], "live");
}

#[test]
fn bench_calibrate_prints_one_object_with_every_term() {
    let report = bench(&["calibrate", "--rounds", "1", "--length", "20"]);
    let terms = &report["runs"][0];
    for name in ["input_ns", "operation_ns", "object_ns", "send_ns", "byte_ns", "sync_us", "sync_byte_ns"] {
        for key in ["measured", "least", "most", "ratio"] {
            assert!(terms[name][key].as_f64() >= Some(0.0), "{name} {key}: {terms}");
        }
    }
    assert!(terms["sync_us"]["measured"].as_f64() > Some(0.0), "{terms}");
    assert_eq!((&report["mode"], &report["runs"][1]["config"]), (&json!("live"), &json!("acquire-1")));
}

#[test]
fn bench_footprint_prints_one_object() {
    let report = bench(&["footprint", "--quotas", "20"]);
    let run = &report["runs"][0];
    assert_eq!((&report["mode"], &run["quotas"], &run["committed"]), (&json!("live"), &json!(20), &json!(40)));
    for key in ["rss_mb", "rss_before_restart_mb", "ready_s"] {
        assert!(run[key].as_f64() > Some(0.0), "{key}: {run}");
    }
}

#[test]
fn address_in_use_is_named() {
    let folder = tempfile::tempdir().expect("a directory");
    // Somebody else may take an address before it is bound here, and give it back while the site starts: then others are tried.
    let (configs, _taken) = std::iter::repeat_with(|| three_configs(folder.path()))
        .find_map(|configs| std::net::TcpListener::bind(&configs[0].1).ok().map(|taken| (configs, taken)))
        .expect("an address that nobody takes");
    let ended = slackline(&["serve", "--config", &configs[0].0]);
    assert_eq!(ended.status, 1);
    assert!(ended.stderr.lines().last().is_some_and(|line| line.contains(&configs[0].1)), "{}", ended.stderr);
}
