//! `slackline txn explain`: what a transaction waited for, and who refused it.

use serde_json::{Value, json};

use super::process::{Ended, Server};
use super::{eventually, keys};

/// What is told of an operation, as an object and as text.
fn explain(cluster: &Server, operation: &Value) -> (Value, String) {
    let operation = operation.as_str().expect("an id");
    let told = cluster.run(&["txn", "explain", operation, "--json"]);
    assert_eq!(told.status, 0, "{told:?}");
    let told = told.json();
    assert_eq!((&told["outcome"], &told["operation"]), (&json!("done"), &json!(operation)));
    let book = include_str!("../../../docs/src/json.md");
    for key in keys(&told) {
        assert!(book.contains(&format!("{key}`")), "{key} of {told}");
    }
    let text = cluster.run(&["txn", "explain", operation]).stdout;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    (told, text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The steps at a site: each one's word, and the object that tells of it.
fn steps<'a>(told: &'a Value, site: &str) -> Vec<(&'a str, &'a Value)> {
    let steps = told["steps"].as_array().expect("a list").iter().filter(|step| step["site"] == site);
    steps.map(|step| (step["step"].as_str().expect("a word"), step)).collect()
}

/// A write of an object while another site holds a right over it; the reads for that go on until it does.
fn write_against_a_right(cluster: &Server, more: &[&str], check: impl Fn(&Ended) -> bool) -> Ended {
    let write = || {
        for _ in 0..8 {
            assert_eq!(cluster.run(&["get", "eu:x", "--site", "ap"]).status, 0);
        }
        cluster.run(&[&["put", "eu:x", "2", "--site", "us", "--json"], more].concat())
    };
    eventually("the home issues a right", write, check)
}

#[test]
fn explain_tells_phases_rights_and_refusals() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("both.json");
    std::fs::write(&file, r#"{"operations": [{"put": "us:a", "value": 1}, {"put": "eu:x", "value": 1}]}"#)
        .expect("written");
    let file = file.to_str().expect("a path of this test");
    let cluster = Server::start(&["dev", "--memory", "--port", "0", "--json"]);

    let both = cluster.run(&["txn", file, "--site", "us", "--json"]).json();
    let (told, text) = explain(&cluster, &both["operation"]);
    let part = |site: &str| json!({ "site": site, "reads": 0, "scans": 0, "writes": 1 });
    assert_eq!((&told["parts"], &told["end"]["phases"]), (&json!([part("us"), part("eu")]), &json!(2)));
    let words: Vec<&str> = steps(&told, "eu").into_iter().map(|(word, _)| word).collect();
    assert!(words.starts_with(&["asked", "prepared"]), "{told}");
    assert!(text.contains("eu asked to prepare 1 write") && text.contains("us committed in 2 phases"), "{text}");

    // Another site's right, and no time to wait for its end.
    let refused = write_against_a_right(&cluster, &["--max-wait", "0ms"], |ended| ended.status == 1);
    let object = refused.json();
    assert_eq!((&object["reason"], &object["holders"]), (&json!("would_wait"), &json!(["ap"])), "{refused:?}");
    let operation = object["operation"].as_str().expect("an id");
    assert!(refused.stderr.contains(&format!("`slackline txn explain {operation}`")), "{refused:?}");
    let (told, text) = explain(&cluster, &object["operation"]);
    let aborted = &told["end"]["aborted"];
    for key in ["reason", "key", "site", "holders", "until_unix_ms"] {
        assert_eq!(aborted[key], object[key], "{key} of {told}");
    }
    assert!(steps(&told, "eu").iter().any(|(word, step)| *word == "refused" && step["refused"] == *aborted), "{told}");
    assert!(text.contains("they are held by ap until") && text.contains("us aborted"), "{text}");

    // With time, it waits.
    let waited = |ended: &Ended| {
        assert_eq!(ended.status, 0, "{ended:?}");
        steps(&explain(&cluster, &ended.json()["operation"]).0, "eu").iter().any(|(word, _)| *word == "waits")
    };
    let written = write_against_a_right(&cluster, &[], waited).json();
    let (told, text) = explain(&cluster, &written["operation"]);
    let [("asked", asked), ("waits", waits), ("committed", done)] = steps(&told, "eu")[..] else { panic!("{told}") };
    assert_eq!((&waits["key"], &waits["holders"]), (&json!("eu:x"), &json!(["ap"])));
    let after = |step: &Value| step["after_us"].as_u64().expect("a number");
    assert!(after(asked) < after(waits) && after(waits) < after(done), "{told}");
    assert!(text.contains("waits for rights over eu:x held by ap, at most until"), "{text}");

    // Its options may stand before it.
    let operation = written["operation"].as_str().expect("an id");
    let before = cluster.run(&["txn", "--json", "--deadline", "9s", "explain", operation]);
    assert_eq!((before.status, before.json()), (0, told), "{before:?}");
    let wrong = cluster.run(&["txn", file, "explain", operation]);
    assert_eq!((wrong.status, wrong.stderr.lines().count()), (2, 1), "{wrong:?}");
    assert!(wrong.stderr.contains("explain takes the id of a transaction, and no file"), "{wrong:?}");

    // A long key fits the line.
    let long = format!("ap:{}", "k".repeat(500));
    let refused = cluster.run(&["put", &long, "1", "--json"]).json();
    explain(&cluster, &refused["operation"]);
    cluster.run(&["add", &long, "1"]);
    let refused = cluster.run(&["add", &long, "1", "--json"]).json();
    assert_eq!(refused["reason"], "not_a_counter");
    let (told, text) = explain(&cluster, &refused["operation"]);
    assert_eq!((&told["end"]["aborted"]["key"], text.contains('…')), (&json!(long), true), "{text}");

    for (id, says) in [
        ("us-1-99999999999-1", "there never was such an operation at us"),
        ("us-7-1-1", "there never was such an operation at us"),
        ("us-1-1-1000", "it is no transaction, or us does not remember it any more"),
    ] {
        let never = cluster.run(&["txn", "explain", id]);
        assert_eq!((never.status, never.stderr.lines().count()), (1, 1), "{never:?}");
        assert!(never.stderr.contains(&format!("nothing is known of {id}: {says}")), "{never:?}");
    }
}
