//! Members that change, as an operator meets them: processes, their commands and `slackline status`.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::eventually;
use crate::process::{Ended, Server, configs};

/// All regions; the last joins.
const REGIONS: [&str; 4] = ["us", "eu", "ap", "sa"];

struct Cluster {
    configs: Vec<(String, String)>,
    servers: Vec<Option<Server>>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    /// Three sites whose configurations do not name the fourth.
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let configs = configs(folder.path(), &REGIONS);
        for (path, _) in &configs[..3] {
            let text = std::fs::read_to_string(path).expect("written");
            let (text, _) = text.rsplit_once("\n[[sites]]").expect("the fourth is the last");
            std::fs::write(path, text.replace(", \"sa\"]", "]")).expect("written");
        }
        let mut cluster = Self { configs, servers: vec![None, None, None, None], _folder: folder };
        (0..3).for_each(|site| cluster.serve(site));
        cluster.wait("us");
        cluster
    }

    fn serve(&mut self, site: usize) {
        let (path, address) = &self.configs[site];
        let mut server = Server::start_with(&["serve", "--json", "--config", path], Stdio::null());
        server.connect = address.clone();
        self.servers[site] = Some(server);
    }

    fn run(&self, words: &[&str]) -> Ended {
        self.servers[0].as_ref().expect("it runs").run(words)
    }

    fn wait(&self, site: &str) {
        let waited = self.run(&["site", "wait", site, "--timeout", "30s", "--json"]);
        assert_eq!(waited.status, 0, "{waited:?}");
    }

    /// The number in use, once that is exact; and the tokens of each site.
    fn settled(&self) -> (i64, Value) {
        let show = || self.run(&["quota", "show", "gpus", "--json"]).json();
        let shown = eventually("the quota is at rest", show, |shown| shown["in_use"].is_i64());
        (shown["in_use"].as_i64().expect("a number"), shown["sites"].clone())
    }

    /// Takes tokens at a site; the grant.
    fn acquire(&self, amount: &str, site: &str) -> String {
        let words = ["quota", "acquire", "gpus", amount, "--site", site, "--json"];
        let acquired = eventually("tokens are granted", || self.run(&words), |acquired| acquired.status == 0);
        acquired.json()["grant"].as_str().expect("granted").to_owned()
    }
}

#[test]
fn site_is_added_and_another_lost_while_the_books_stay_exact() {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.run(&["quota", "create", "gpus", "--limit", "90"]).status, 0);
    cluster.acquire("5", "ap");

    // A site that does not run is not added, nor one that says that it is another.
    let address = cluster.configs[3].1.clone();
    let add = ["site", "add", "sa", "--address", &address, "--json"];
    let refused = cluster.run(&add);
    assert!(refused.status == 1 && refused.stderr.contains("start the site there first"), "{refused:?}");
    let refused = cluster.run(&["site", "add", "sa", "--address", &cluster.configs[1].1.clone()]);
    assert!(refused.status == 1 && refused.stderr.contains("it is site eu"), "{refused:?}");

    cluster.serve(3);
    let added = cluster.run(&add);
    assert_eq!((added.status, added.json()["membership"].clone()), (0, json!(1)), "{added:?}");
    cluster.wait("sa");
    let grant = cluster.acquire("7", "sa");
    assert_eq!(cluster.settled().0, 12);
    assert_eq!(cluster.run(&add).json()["membership"], json!(1), "it is a member already");

    // One that answers is not lost.
    let refused = cluster.run(&["site", "lost", "ap"]);
    assert!(refused.status == 1 && refused.stderr.contains("heard from lately"), "{refused:?}");
    cluster.servers[2].take().expect("it runs").kill();
    let lost = || cluster.run(&["site", "lost", "ap", "--json"]);
    let lost = eventually("ap counts as down", lost, |lost| lost.status == 0);
    assert_eq!(lost.json()["membership"], json!(2));

    // What it had cannot be told from what it had granted.
    let (in_use, sites) = cluster.settled();
    let names: Vec<&Value> = sites.as_array().expect("sites").iter().map(|site| &site["site"]).collect();
    assert_eq!(names, ["us", "eu", "sa"]);
    cluster.wait("us");
    let reclaim = ["quota", "reclaim", "gpus", "--of", "ap-1", "--still-in-use", "5", "--json"];
    let reclaimed = eventually("it is reclaimed", || cluster.run(&reclaim), |reclaimed| reclaimed.status == 0);
    assert_eq!(reclaimed.json()["reclaimed"], json!(in_use - 12));
    assert_eq!(cluster.settled().0, 12);

    // It returns, and does nothing. Another starts again with the configuration of before, and goes on.
    cluster.serve(2);
    let status = || cluster.run(&["status", "--json"]).json();
    eventually("ap is stale", status, |status| status["sites"][2]["readiness"] == "stale");
    cluster.servers[1].take().expect("it runs").kill();
    cluster.serve(1);
    cluster.acquire("1", "eu");
    let status = cluster.run(&["status", "--json"]).json();
    assert_eq!((&status["membership"], &status["sites"][1]["membership"]), (&json!(2), &json!(2)));
    assert_eq!(cluster.settled().0, 13);

    // One that is well leaves when nothing is left there.
    let remove = ["site", "remove", "sa", "--json"];
    assert_eq!(cluster.run(&remove).json()["reason"], json!("not_drained"));
    assert_eq!(cluster.run(&["site", "drain", "sa"]).status, 0);
    let refused = || cluster.run(&remove);
    let refused = eventually("its tokens are elsewhere", refused, |refused| refused.json()["reason"] != "has_tokens");
    assert_eq!((refused.status, refused.json()["reason"].clone()), (1, json!("has_grants")), "{refused:?}");
    assert_eq!(cluster.run(&["quota", "release", "--grant", &grant]).status, 0);
    let removed = cluster.run(&remove);
    assert_eq!((removed.status, removed.json()["membership"].clone()), (0, json!(3)), "{removed:?}");
    let (in_use, sites) = cluster.settled();
    assert_eq!((in_use, sites.as_array().map(Vec::len)), (6, Some(2)));
}
