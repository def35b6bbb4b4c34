//! Members that change, as an operator meets them: processes, their commands and `slackline status`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::eventually;
use crate::load::{Leaves, Load};
use crate::process::{Ended, Server, configs};

struct Cluster {
    configs: Vec<(String, String)>,
    servers: Vec<Option<Server>>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Sites of all these regions but the last, whose configurations do not name it.
    fn start(regions: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let configs = configs(folder.path(), regions);
        let (last, first) = regions.split_last().expect("regions");
        for (path, _) in &configs[..first.len()] {
            let text = std::fs::read_to_string(path).expect("written");
            let (text, _) = text.rsplit_once("\n[[sites]]").expect("it is the last");
            std::fs::write(path, text.replace(&format!(", \"{last}\"]"), "]")).expect("written");
        }
        let mut cluster = Self { configs, servers: regions.iter().map(|_| None).collect(), folder };
        (0..first.len()).for_each(|site| cluster.serve(site));
        cluster.wait(first[0]);
        cluster
    }

    /// Ends a site as a crash would.
    fn kill(&mut self, site: usize) {
        self.servers[site].take().expect("it runs").kill();
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
    let mut cluster = Cluster::start(&["us", "eu", "ap", "sa"]);
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
    cluster.kill(2);
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

    // Treaties are over the regions that are left, and ask these alone.
    for region in ["us", "eu"] {
        assert_eq!(cluster.run(&["add", &format!("{region}:votes"), "10", "--deadline", "30s"]).status, 0);
    }
    let file = cluster.folder.path().join("enough.json");
    std::fs::write(&file, r#"{"metric": "*:votes", "at_least": 3}"#).expect("written");
    let made = cluster.run(&["treaty", "create", "enough", file.to_str().expect("a path of this test")]);
    assert_eq!(made.status, 0, "{made:?}");
    let all = cluster.run(&["treaty", "list", "--json"]).json();
    assert_eq!((&all["missing"], all["treaties"].as_array().map(Vec::len)), (&json!([]), Some(1)), "{all}");
    let status = cluster.run(&["status", "--json"]).json();
    let members: Vec<&Value> = status["sites"].as_array().expect("sites").iter().map(|site| &site["member"]).collect();
    assert_eq!(members, [true, true, false, true]);
    assert_eq!(cluster.run(&["treaty", "drop", "enough"]).status, 0);

    // It returns, and does nothing. Another starts again with the configuration of before, and goes on.
    cluster.serve(2);
    let status = || cluster.run(&["status", "--json"]).json();
    eventually("ap is stale", status, |status| status["sites"][2]["readiness"] == "stale");
    cluster.kill(1);
    cluster.serve(1);
    cluster.acquire("1", "eu");
    let status = cluster.run(&["status", "--json"]).json();
    assert_eq!((&status["membership"], &status["sites"][1]["membership"]), (&json!(2), &json!(2)));
    assert_eq!(cluster.settled().0, 13);

    // One that is well leaves when nothing is left there.
    let remove = ["site", "remove", "sa", "--json"];
    assert_eq!(cluster.run(&remove).json()["reason"], json!("not_drained"));
    assert_eq!(cluster.run(&["site", "drain", "sa"]).status, 0);
    let status = cluster.run(&["status", "--json"]).json();
    let drained: Vec<&Value> =
        status["sites"].as_array().expect("sites").iter().filter(|site| site["drained"] == json!(true)).collect();
    assert_eq!(drained.iter().map(|site| &site["site"]).collect::<Vec<_>>(), [&json!("sa")]);
    let alone = cluster.run(&["quota", "acquire", "gpus", "1", "--site", "sa", "--deadline", "1s", "--json"]);
    assert_eq!((alone.status, &alone.json()["reason"]), (1, &json!("not_ready")), "{alone:?}");
    let refused = || cluster.run(&remove);
    let refused = eventually("its tokens are elsewhere", refused, |refused| refused.json()["reason"] != "has_tokens");
    assert_eq!((refused.status, refused.json()["reason"].clone()), (1, json!("has_grants")), "{refused:?}");
    assert_eq!(cluster.run(&["quota", "release", "--grant", &grant]).status, 0);
    // What is known of a transaction is kept until its deadline.
    let removed = || cluster.run(&remove);
    let removed =
        eventually("its transactions are over", removed, |removed| removed.json()["reason"] != "has_transactions");
    assert_eq!((removed.status, removed.json()["membership"].clone()), (0, json!(3)), "{removed:?}");
    let (in_use, sites) = cluster.settled();
    assert_eq!((in_use, sites.as_array().map(Vec::len)), (6, Some(2)));
}

/// Its data directory is that of a site with the same name in another cluster of the same name.
#[test]
fn site_with_the_storage_of_another_cluster_is_not_added() {
    let regions = ["us", "eu", "ap", "sa"];
    let mut other = Cluster::start(&["us", "eu", "ap", "sa", "oc"]);
    other.wait("sa");
    (0..4).for_each(|site| other.kill(site));

    let mut cluster = Cluster::start(&regions);
    std::fs::rename(other.folder.path().join("sa"), cluster.folder.path().join("sa")).expect("moved");
    cluster.serve(3);
    let add = ["site", "add", "sa", "--address", &cluster.configs[3].1.clone()];
    let refused = cluster.run(&add);
    assert!(refused.status == 1 && refused.stderr.contains("start it on an empty directory"), "{refused:?}");

    // On an empty one it is.
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.folder.path().join("sa")).expect("there");
    cluster.serve(3);
    let added = cluster.run(&add);
    assert_eq!(added.status, 0, "{added:?}");
    cluster.wait("sa");
}

/// Two of five sites are killed at once, and one of them never comes back; it is declared lost and reclaimed, another is added, and one is
/// removed. All the while clients of every region acquire and release.
#[test]
fn members_come_and_go_under_load_and_the_ledger_of_the_clients_is_right() {
    let mut cluster = Cluster::start(&["us", "eu", "ap", "sa", "oc", "af"]);
    let addresses: Vec<String> = cluster.configs.iter().map(|(_, address)| address.clone()).collect();
    // Callers have threads of their own: a command that is waited for here does not stop them.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let told = runtime.expect("a runtime").block_on(async {
        let mut load = Load::start(&addresses[..5]).await;
        load.return_where_granted(2);
        load.goes_on(&[0, 1, 2, 3, 4]).await;
        cluster.kill(2);
        cluster.kill(3);
        load.goes_on(&[0, 1, 4]).await;
        cluster.serve(3);
        load.goes_on(&[0, 1, 3, 4]).await;

        let lost = || cluster.run(&["site", "lost", "ap", "--json"]);
        eventually("ap counts as down", lost, |lost| lost.status == 0);
        let still_in_use = load.leave(2, Leaves::Lost).await.to_string();
        let reclaim = ["quota", "reclaim", "seats", "--of", "ap-1", "--still-in-use", &still_in_use, "--json"];
        let reclaimed = eventually("it is reclaimed", || cluster.run(&reclaim), |reclaimed| reclaimed.status == 0);
        assert!(reclaimed.json()["reclaimed"].as_i64() >= Some(0), "{reclaimed:?}");
        load.goes_on(&[0, 1, 3, 4]).await;

        cluster.serve(5);
        let add = ["site", "add", "af", "--address", &addresses[5], "--json"];
        let added = eventually("af is added", || cluster.run(&add), |added| added.status == 0);
        assert_eq!(added.json()["membership"], json!(2), "{added:?}");
        cluster.wait("af");
        load.join(&addresses, "af").await;
        load.goes_on(&[0, 1, 3, 4, 5]).await;

        assert_eq!(cluster.run(&["site", "drain", "oc"]).status, 0);
        load.leave(4, Leaves::Drained).await;
        let remove = || cluster.run(&["site", "remove", "oc", "--json"]);
        let removed = eventually("nothing is left at oc", remove, |removed| removed.status == 0);
        assert_eq!(removed.json()["membership"], json!(3), "{removed:?}");
        load.goes_on(&[0, 1, 3, 5]).await;
        load.finish().await
    });
    assert!(told.unknown > 0 && told.kept > 10, "hardly tested: {told:?}");
}

/// A site stands still, is declared lost meanwhile, and goes on. It learns that it is gone; whoever waits in line there is told, and does
/// not wait for its deadline.
#[test]
fn caller_in_line_at_a_site_that_was_declared_lost_is_told() {
    let cluster = Cluster::start(&["us", "eu", "ap", "sa"]);
    assert_eq!(cluster.run(&["quota", "create", "gpus", "--limit", "9"]).status, 0);
    cluster.acquire("9", "eu");
    let wait = ["quota", "acquire", "gpus", "9", "--site", "ap", "--wait", "--deadline", "50s", "--json"];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| (cluster.run(&wait), Instant::now()));
        std::thread::sleep(Duration::from_secs(2));
        let ap = cluster.servers[2].as_ref().expect("it runs");
        ap.freeze();
        let lost = || cluster.run(&["site", "lost", "ap", "--json"]);
        eventually("ap counts as down", lost, |lost| lost.status == 0);
        assert!(!waits.is_finished(), "it waits for ap");
        let told_from = Instant::now();
        ap.thaw();
        let (ended, at) = waits.join().expect("it ends");
        assert!(at - told_from < Duration::from_secs(20), "it waited for its deadline: {ended:?}");
        assert_ne!(ended.status, 0, "{ended:?}");
    });
}
