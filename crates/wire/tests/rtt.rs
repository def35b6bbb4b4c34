//! Tables of round-trip times.

use std::path::PathBuf;
use std::time::Duration;

use slackline_wire::rtt::RttTable;

/// A file that is gone with the value.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackline-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("a temporary file");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn built_in_tables_are_complete_and_symmetric() {
    for table in [RttTable::aws(), RttTable::gcp()] {
        assert_eq!(table.regions().len(), 5);
        assert!(table.source().contains("fantoch"));
        for from in table.regions() {
            for to in table.regions() {
                let rtt = table.rtt(from, to).expect("known");
                assert_eq!(Some(rtt), table.rtt(to, from));
                assert_eq!(rtt < Duration::from_millis(1), from == to);
            }
        }
    }
    assert_eq!(RttTable::aws().rtt("us", "eu"), Some(Duration::from_millis(70)));
    assert_eq!(RttTable::aws().rtt("us", "mars"), None);
}

#[test]
fn file_may_leave_out_the_way_back() {
    let file = File::new("good.csv", "from,to,rtt_ms\n# a comment\n\nus,eu,70.5\nus,ap, 150\nap,us,155\n");
    let table = RttTable::from_csv(&file.0).expect("well formed");
    assert_eq!(table.regions(), ["us", "eu", "ap"]);
    assert_eq!(table.rtt("eu", "us"), Some(Duration::from_micros(70_500)));
    assert_eq!(table.rtt("us", "ap"), Some(Duration::from_millis(150)));
    assert_eq!(table.rtt("ap", "us"), Some(Duration::from_millis(155)));
    assert_eq!(table.rtt("eu", "ap"), None);
}

#[test]
fn direction_given_twice_must_be_the_same() {
    let file = File::new("same.csv", "us,eu,70\neu,us,71\nus,eu,70.0\n");
    let table = RttTable::from_csv(&file.0).expect("nothing differs");
    assert_eq!(table.rtt("us", "eu"), Some(Duration::from_millis(70)));
    let file = File::new("differs.csv", "us,eu,70.5\neu,us,71\nus,eu,80\n");
    let error = RttTable::from_csv(&file.0).expect_err("must be refused").to_string();
    assert!(error.contains("differs.csv line 3: from us to eu it is 70.5 ms on line 1"), "{error}");
}

#[test]
fn malformed_line_is_named() {
    for (line, problem) in [
        ("us,eu", "2 fields"),
        ("us,eu,fast", "\"fast\" is not a number"),
        ("us,eu,-1", "not between"),
        ("us,eu,NaN", "not between"),
        (",eu,1", "is empty"),
    ] {
        let file = File::new("bad.csv", &format!("us,ap,1\n{line}\n"));
        let error = RttTable::from_csv(&file.0).expect_err("must be refused").to_string();
        assert!(error.contains("bad.csv line 2") && error.contains(problem), "{error}");
    }
    let empty = File::new("empty.csv", "from,to,rtt_ms\n");
    assert!(RttTable::from_csv(&empty.0).expect_err("must be refused").to_string().contains("no round-trip time"));
    let error = RttTable::from_csv("/nowhere.csv").expect_err("must be refused").to_string();
    assert!(error.contains("/nowhere.csv"), "{error}");
}
