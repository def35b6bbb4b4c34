//! The configuration file.

use std::path::Path;

use slackline_server::{ServeConfig, Site, Storage};

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
                rest.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            });
            is_key.unwrap_or(line).to_owned() + "\n"
        })
        .collect();
    let config = ServeConfig::parse(&all, Path::new("site.example.toml")).expect("the example's options are right");
    assert_eq!((config.epsilon_us, config.drain_seconds), (Some(10_000), 10));
}

#[test]
fn mistake_is_named_with_its_line_and_key() {
    let unknown = refused(&EXAMPLE.replace("http = ", "htp = "));
    assert!(unknown.starts_with("site.toml line ") && unknown.contains("unknown field `htp`"), "{unknown}");
    assert_eq!(unknown.lines().count(), 1);
    let line = EXAMPLE.lines().position(|line| line.starts_with("http")).expect("there is one") + 1;
    assert!(unknown.contains(&format!("line {line}:")), "{unknown}");
    let wrong_type = refused(&EXAMPLE.replace("region = \"us\"\n\n", "region = 3\n\n"));
    assert!(wrong_type.contains("line "), "{wrong_type}");
    assert!(refused("cluster = ").contains("line 1"));
}

#[test]
fn senseless_value_is_named_with_its_key() {
    let cases = [
        (
            "region = \"us\"\n\n",
            "region = \"mars\"\n\n",
            "`region` cannot be used: region \"mars\" is not in `regions`",
        ),
        ("[\"us\", \"eu\", \"ap\"]", "[\"us\", \"eu\"]", "`sites` cannot be used: region \"ap\""),
        ("[\"us\", \"eu\", \"ap\"]", "[\"us\", \"eu\", \"ap\", \"sa\"]", "site sa is missing"),
        ("[\"us\", \"eu\", \"ap\"]", "[\"us\", \"eu\", \"ap\", \"us\"]", "stands there twice"),
        ("# lane = 0", "lane = 3", "`lane` cannot be used"),
        ("# epsilon_us = 10000", "epsilon_us = 0", "`epsilon_us` cannot be used"),
        ("\"production\"", "\"\"", "`cluster` cannot be used"),
        ("eu.slackline.internal:7400", "eu.slackline.internal", "is not an address"),
        ("eu.slackline.internal:7400", "us.slackline.internal:7400", "two sites have the address"),
    ];
    for (from, to, expected) in cases {
        let text = EXAMPLE.replacen(from, to, 1);
        assert_ne!(text, EXAMPLE, "{from}");
        let error = refused(&text);
        assert!(error.contains(expected), "{error}");
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
