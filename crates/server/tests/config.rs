//! The configuration file.

use std::path::Path;

use slackline_server::{ServeConfig, Site, Storage};
use slackline_wire::lane_of;

const EXAMPLE: &str = include_str!("../site.example.toml");

fn refused(text: &str) -> String {
    ServeConfig::parse(text, Path::new("site.toml")).expect_err("must be refused").to_string()
}

#[test]
fn example_file_is_a_configuration() {
    let config = ServeConfig::parse(EXAMPLE, Path::new("site.example.toml")).expect("the example is right");
    assert_eq!((config.region.as_str(), config.lane, config.sites.len()), ("us", 0, 3));
    // The keys that are commented out are right too.
    let all: String = EXAMPLE
        .lines()
        .map(|line| {
            let is_key = line.strip_prefix("# ").filter(|rest| {
                let is_key = |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                rest.starts_with("[[") || rest.split_once(" = ").is_some_and(|(key, _)| is_key(key))
            });
            is_key.unwrap_or(line).to_owned() + "\n"
        })
        .collect();
    let config = ServeConfig::parse(&all, Path::new("site.example.toml")).expect("the example's options are right");
    assert_eq!((config.epsilon_us, config.drain_seconds), (Some(10_000), 10));
    let watched: Vec<_> = config.demand.iter().map(|watched| (watched.quota.as_str(), watched.step_seconds)).collect();
    assert_eq!(watched, [("gpus", 60)]);
}

#[test]
fn demand_of_what_is_no_quota_or_stands_twice_is_refused() {
    let with = |demand: &str| refused(&format!("{EXAMPLE}\n{demand}"));
    let twice = with("[[demand]]\nquota = \"gpus\"\n[[demand]]\nquota = \"gpus\"\n");
    assert!(twice.contains("demand[1].quota") && twice.contains("twice"), "{twice}");
    let nameless = with("[[demand]]\nquota = \"\"\n");
    assert!(nameless.contains("demand[0].quota") && nameless.contains("no name"), "{nameless}");
    let step = with("[[demand]]\nquota = \"gpus\"\nstep_seconds = 0\n");
    assert!(step.contains("demand[0].step_seconds"), "{step}");
}

/// Nothing would ever be kept of it, and nobody would know why.
#[test]
fn demand_of_a_quota_of_another_lane_is_refused() {
    const LANES: &str = "cluster = \"c\"\nregions = [\"us\"]\nregion = \"us\"\ndata = \"d\"\nlisten = \"0:1\"\n[[sites]]\nregion = \"us\"\n\
        address = \"a:1\"\n[[sites]]\nregion = \"us\"\nlane = 1\naddress = \"b:1\"\n";
    let of_lane = |lane| (0..).map(|number| format!("q{number}")).find(|name| lane_of(name, 2) == lane).expect("one");
    let with = |quota: String| format!("{LANES}[[demand]]\nquota = \"{quota}\"\n");
    ServeConfig::parse(&with(of_lane(0)), Path::new("site.toml")).expect("a configuration");
    let other = refused(&with(of_lane(1)));
    assert!(other.contains("demand[0].quota") && other.contains("is of lane 1"), "{other}");
}

#[test]
fn mistake_is_named_with_its_line_and_key() {
    let unknown = refused(&EXAMPLE.replace("http = ", "htp = "));
    assert!(unknown.starts_with("site.toml line ") && unknown.contains("unknown field `htp`"), "{unknown}");
    assert_eq!(unknown.lines().count(), 1);
    let line = EXAMPLE.lines().position(|line| line.starts_with("http")).expect("there is one") + 1;
    assert!(unknown.contains(&format!("line {line}:")), "{unknown}");
    assert!(refused("cluster = ").starts_with("site.toml line 1: "));
}

#[test]
fn wrong_type_is_named_with_its_line_and_key() {
    const TWO: &str = "cluster = \"c\"\nregions = [\"us\", \"eu\"]\nregion = \"us\"\ndata = \"d\"\nlisten = \"0:1\"\n\
        [[sites]]\nregion = \"us\"\naddress = \"a:1\"\n[[sites]]\nregion = \"eu\"\naddress = \"b:1\"\n";
    ServeConfig::parse(TWO, Path::new("site.toml")).expect("a configuration");
    let cases = [
        (
            "region = \"us\"\ndata",
            "region = 3\ndata",
            "site.toml line 3: `region`: invalid type: integer `3`, expected",
        ),
        ("\"us\", \"eu\"", "\"us\", true", "site.toml line 2: `regions[1]`: invalid type: boolean `true`, expected"),
        ("data", "lane = -1\ndata", "site.toml line 4: `lane`: invalid value: integer `-1`, expected u16"),
        ("\"b:1\"", "7", "site.toml line 11: `sites[1].address`: invalid type: integer `7`, expected"),
        ("address = \"b:1\"", "addres = \"b:1\"", "site.toml line 11: unknown field `addres`, expected"),
        ("address = \"b:1\"\n", "", "site.toml line 9: `sites[1]`: missing field `address`"),
        ("data = \"d\"\n", "", "site.toml: missing field `data`"),
        ("\"d\"", "\"d", "site.toml line 4: "),
    ];
    for (from, to, expected) in cases {
        let error = refused(&TWO.replacen(from, to, 1));
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn senseless_value_is_named_with_its_key() {
    let line = |text: &str| EXAMPLE.lines().position(|line| line.starts_with(text)).expect("there is one") + 1;
    let (first_site, second) = (line("[[sites]]"), line("region = \"eu\""));
    let cases = [
        (
            "region = \"us\"\n\n",
            "region = \"mars\"\n\n",
            line("region ="),
            "`region` cannot be used: region \"mars\" is not in",
        ),
        ("[\"us\", \"eu\", \"ap\"]", "[\"us\", \"eu\"]", second + 4, "`sites[2].region` cannot be used: region \"ap\""),
        ("[\"us\", \"eu\", \"ap\"]", "[\"us\", \"eu\", \"ap\", \"sa\"]", first_site, "site sa is missing"),
        ("[\"us\", \"eu\", \"ap\"]", "[\"us\", \"eu\", \"ap\", \"us\"]", line("regions"), "stands there twice"),
        ("# lane = 0", "lane = 3", line("# lane"), "`lane` cannot be used"),
        (
            "# epsilon_us = 10000",
            "epsilon_us = 0",
            line("# epsilon_us"),
            "`epsilon_us` cannot be used: it must be 1 to",
        ),
        ("# drain_seconds = 10", "drain_seconds = 9999", line("# drain"), "`drain_seconds` cannot be used"),
        ("\"production\"", "\"\"", line("cluster"), "`cluster` cannot be used"),
        ("0.0.0.0:7400", "0.0.0.0", line("listen"), "`listen` cannot be used: \"0.0.0.0\" is not an address"),
        (
            "0.0.0.0:7500",
            "0.0.0.0:7400",
            line("http"),
            "`http` cannot be used: \"0.0.0.0:7400\" is what the site listens on",
        ),
        ("eu.slackline.internal:7400", "eu.slackline.internal", second + 1, "`sites[1].address` cannot be used"),
        ("eu.slackline.internal:7400", "2001:db8::1:7400", second + 1, "is not an address"),
        ("eu.slackline.internal:7400", "a:b:7400", second + 1, "is not an address"),
        ("eu.slackline.internal:7400", "eu.slackline.internal:+7400", second + 1, "is not an address"),
        ("eu.slackline.internal:7400", "eu.slackline.internal:0", second + 1, "has port 0"),
        ("eu.slackline.internal", "us.slackline.internal", second + 1, "two sites have the address"),
    ];
    for (from, to, line, expected) in cases {
        let text = EXAMPLE.replacen(from, to, 1);
        assert_ne!(text, EXAMPLE, "{from}");
        let error = refused(&text);
        assert!(error.starts_with(&format!("site.toml line {line}: ")) && error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn site_says_what_keeps_it_from_starting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let text = EXAMPLE.replace("0.0.0.0:7400", &address).replace("http = ", "# http = ");
    let mut config = ServeConfig::parse(&text, Path::new("site.toml")).expect("a configuration").site();
    config.storage = Storage::Memory;
    let error = Site::start(config).expect_err("the address is taken").to_string();
    assert!(error.contains(&address) && error.contains("in use"), "{error}");
}
