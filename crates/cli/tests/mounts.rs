//! A volume that is not mounted when its site starts, and one that is found again, as an operator meets them: processes, their logs
//! and `slackline status`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::{Ended, Server, slackline, three_configs};
use crate::{eventually, show};

/// The site whose volume comes and goes.
const EU: usize = 1;

/// Three sites as processes, with their configurations.
struct Cluster {
    folder: tempfile::TempDir,
    configs: Vec<(String, String)>,
    servers: Vec<Option<Server>>,
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let configs = three_configs(folder.path());
        let mut cluster = Self { folder, configs, servers: vec![None, None, None] };
        (0..3).for_each(|site| cluster.serve(site, &[]));
        cluster.wait_for("ready", 1);
        cluster
    }

    fn serve(&mut self, site: usize, more: &[&str]) {
        let (path, address) = &self.configs[site];
        let words = [&["serve", "--json", "--config", path], more].concat();
        let mut server = Server::start_with(&words, Stdio::piped());
        server.connect = address.clone();
        self.servers[site] = Some(server);
    }

    /// Ends `eu` as a service manager would, and tells what it has logged.
    fn stop(&mut self) -> String {
        let Ended { status, stderr, .. } = self.servers[EU].take().expect("it runs").terminate();
        assert_eq!(status, 0, "{stderr}");
        stderr
    }

    fn site(&self, site: usize) -> &Server {
        self.servers[site].as_ref().expect("it runs")
    }

    /// What `status` tells of `eu`, once that is in this state and incarnation and the others serve.
    fn wait_for(&self, readiness: &str, incarnation: u32) -> Value {
        let status = || self.site(0).run(&["status", "--json"]).json()["sites"].clone();
        let is_so = |sites: &Value| {
            let eu = &sites[EU];
            let others = sites[0]["ready"] == true && sites[2]["ready"] == true;
            others && eu["readiness"] == *readiness && eu["incarnation"] == json!(incarnation)
        };
        eventually(&format!("eu is {readiness}"), status, is_so)[EU].clone()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("eu")
    }

    /// The names beside the data directories.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.retain(|name| name.starts_with("eu") && name != "eu.toml");
        names.sort();
        names
    }
}

/// Copies a directory with all that is below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let to = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).expect("copied");
        }
    }
}

/// Tokens, a grant of some of them and an object are at the site whose volume goes; the grant.
fn fill(us: &Server, limit: &str, amount: &str) -> String {
    assert_eq!(us.run(&["quota", "create", "gpus", "--limit", limit]).status, 0);
    let grant = us.run(&["quota", "acquire", "gpus", amount, "--site", "eu", "--json"]).json()["grant"].clone();
    assert_eq!(us.run(&["put", "eu:x", "7"]).status, 0);
    grant.as_str().expect("granted").to_owned()
}

/// A grant, an object and tokens are on a volume that is not mounted when the site starts again.
#[test]
fn volume_that_is_not_mounted_is_waited_for_and_comes_back_whole() {
    let mut cluster = Cluster::start();
    let us = cluster.site(0);
    let grant = fill(us, "3000", "700");
    cluster.stop();

    // What is left is the mount point, empty.
    let volume = cluster.folder.path().join("volume");
    fs::rename(cluster.data(), &volume).expect("unmounted");
    fs::create_dir(cluster.data()).expect("the mount point");
    for _ in 0..2 {
        cluster.serve(EU, &[]);
        let eu = cluster.wait_for("awaiting_new_storage", 0);
        assert_eq!(
            (&eu["up"], &eu["ready"], &eu["because"]),
            (&json!(true), &json!(false), &json!("awaiting_new_storage"))
        );
        // Whoever is asked says it.
        for asked in [0, EU] {
            let text = cluster.site(asked).run(&["status"]).stdout;
            assert!(text.contains("awaiting_new_storage") && text.contains("Is its volume mounted"), "{text}");
        }
        let refused =
            cluster.site(0).run(&["quota", "acquire", "gpus", "1", "--site", "eu", "--deadline", "1s", "--json"]);
        assert_eq!((refused.status, &refused.json()["reason"]), (1, &json!("not_ready")), "{refused:?}");

        // Nobody takes what it does not know for what there is not: others are asked.
        let eu = cluster.site(EU);
        let listed = eu.run(&["quota", "list", "--json"]);
        assert_eq!(listed.json()["quotas"].as_array().map(Vec::len), Some(1), "{listed:?}");
        assert_eq!(eu.run(&["quota", "show", "gpus", "--json"]).json()["limit"], json!(3000));

        // One sentence says what to look at first, and what to do if that is in vain.
        let said = cluster.stop();
        let errors: Vec<&str> = said.lines().filter(|line| line.contains("ERROR")).collect();
        let [error] = errors[..] else { panic!("{said}") };
        assert!(error.contains("Is its volume mounted") && error.contains("--new-storage"), "{error}");
    }

    // The volume is mounted: nothing has happened.
    fs::remove_dir_all(cluster.data()).expect("what is beneath the mount");
    fs::rename(&volume, cluster.data()).expect("mounted");
    cluster.serve(EU, &[]);
    let eu = cluster.wait_for("ready", 1);
    assert_eq!(eu["lost_incarnations"], json!(0));
    let us = cluster.site(0);
    eventually("the grant is counted", || show(us), |shown| shown["in_use"] == json!(700));
    assert_eq!(us.run(&["get", "eu:x", "--json"]).json()["value"], json!(7));
    assert_eq!(us.run(&["quota", "release", "--grant", &grant]).status, 0, "it is known where it was granted");
    let all = us.run(&["quota", "acquire", "gpus", "3000", "--site", "eu", "--deadline", "30s"]);
    assert_eq!(all.status, 0, "no token is missing: {all:?}");
    assert_eq!(cluster.names(), ["eu"]);
}

/// A person says that the volume is lost for good, and then it is found after all.
#[test]
fn volume_that_is_found_after_a_persons_word_is_moved_aside_whole() {
    let mut cluster = Cluster::start();
    let us = cluster.site(0);
    let grant = fill(us, "300", "70");

    // The word is for what is new: said of the volume itself it is refused, and harms nothing.
    cluster.stop();
    let path = cluster.configs[EU].0.clone();
    let refused = slackline(&["serve", "--config", &path, "--new-storage"]);
    assert_eq!((refused.status, refused.stderr.lines().count()), (2, 1), "{refused:?}");
    assert!(refused.stderr.contains("is not new, it is incarnation 1 of site eu"), "{refused:?}");

    // What the others had then is kept, to see in the end that nothing is missing from the volume.
    let place = |name: &str| cluster.folder.path().join(name);
    let (volume, second, stale) = (place("volume"), place("second"), place("eu.stale-1"));
    let others = [(0, place("us"), place("us-then")), (2, place("ap"), place("ap-then"))];
    for (site, data, then) in &others {
        cluster.servers[*site].take().expect("it runs").terminate();
        copy(data, then);
    }
    cluster.serve(0, &[]);
    cluster.serve(2, &[]);
    fs::rename(cluster.data(), &volume).expect("lost");
    cluster.serve(EU, &["--new-storage"]);
    let eu = cluster.wait_for("ready", 2);
    assert_eq!(eu["lost_incarnations"], json!(1));
    let text = cluster.site(0).run(&["status"]).stdout;
    assert!(text.contains("eu: 1 earlier incarnation was lost"), "{text}");

    // Every quota has recorded it in the end, and it says so.
    let waited = cluster.site(0).run(&["site", "wait", "eu", "--json"]).json();
    assert_eq!(
        (&waited["outcome"], &waited["incarnation"], &waited["unrecorded"]),
        (&json!("done"), &json!(2), &json!(0))
    );
    let status = cluster.site(0).run(&["status", "--json"]).json();
    assert_eq!(status["sites"][EU]["unrecorded"], json!(0), "{status}");
    let unknown = cluster.site(0).run(&["site", "wait", "mars"]);
    assert_eq!(unknown.status, 2, "{unknown:?}");
    cluster.stop();

    fs::rename(cluster.data(), &second).expect("set aside");
    fs::rename(&volume, cluster.data()).expect("found");
    cluster.serve(EU, &[]);
    cluster.wait_for("awaiting_new_storage", 0);
    assert_eq!(cluster.names(), ["eu", "eu.stale-1"]);
    let said = cluster.stop();
    assert!(said.contains("is an old copy of the site's data") && said.contains("eu.stale-1"), "{said}");

    // Where the newest one is mounted, the site goes on with it.
    fs::remove_dir_all(cluster.data()).expect("new and empty");
    fs::rename(&second, cluster.data()).expect("mounted");
    cluster.serve(EU, &[]);
    cluster.wait_for("ready", 2);
    assert_eq!(cluster.names(), ["eu", "eu.stale-1"]);

    // Among others that are as they were then, what was moved aside is the site that it was.
    cluster.stop();
    for (site, data, then) in &others {
        cluster.servers[*site].take().expect("it runs").terminate();
        fs::remove_dir_all(data).expect("given up");
        fs::rename(then, data).expect("put back");
    }
    fs::remove_dir_all(cluster.data()).expect("given up");
    fs::rename(&stale, cluster.data()).expect("put back");
    (0..3).for_each(|site| cluster.serve(site, &[]));
    cluster.wait_for("ready", 1);
    let us = cluster.site(0);
    assert_eq!(us.run(&["get", "eu:x", "--json"]).json()["value"], json!(7));
    assert_eq!(us.run(&["quota", "release", "--grant", &grant]).status, 0);
    eventually("no token is missing", || show(us), |shown| shown["in_use"] == json!(0));
}

/// A copy is put back while the only one that knows better is away; then that one comes back.
#[test]
fn old_copy_that_serves_stops_when_one_is_back_that_knows_better() {
    let mut cluster = Cluster::start();
    fill(cluster.site(0), "300", "70");
    cluster.stop();
    let place = |name: &str| cluster.folder.path().join(name);
    let (then, newest) = (place("then"), place("newest"));
    copy(&cluster.data(), &then);
    cluster.serve(EU, &[]);
    cluster.wait_for("ready", 1);

    // Only `us` hears of what `eu` does now.
    cluster.servers[2].take().expect("it runs").terminate();
    for _ in 0..40 {
        let us = cluster.site(0);
        assert_eq!(us.run(&["quota", "acquire", "gpus", "1", "--site", "eu"]).status, 0);
    }
    // A site notes where the others are within about a second, if they write much.
    std::thread::sleep(Duration::from_secs(3));
    cluster.stop();
    cluster.servers[0].take().expect("it runs").terminate();
    fs::rename(cluster.data(), &newest).expect("set aside");
    fs::rename(&then, cluster.data()).expect("put back");
    cluster.serve(2, &[]);
    cluster.serve(EU, &[]);
    let status = || cluster.site(2).run(&["status", "--json"]).json()["sites"][EU]["readiness"].clone();
    eventually("eu is ready", status, |readiness| *readiness == json!("ready"));

    cluster.serve(0, &[]);
    cluster.wait_for("awaiting_new_storage", 0);
    assert_eq!(cluster.names(), ["eu", "eu.stale-1"]);
    let said = cluster.stop();
    assert!(said.contains("is an old copy of the site's data") && said.contains("eu.stale-1"), "{said}");
}

/// The volume is lost for good. What was on it comes back, but for what somebody uses.
#[test]
fn tokens_of_a_volume_that_is_lost_for_good_are_reclaimed() {
    let mut cluster = Cluster::start();
    let us = cluster.site(0);
    assert_eq!(us.run(&["quota", "create", "gpus", "--limit", "3000"]).status, 0);
    assert_eq!(us.run(&["quota", "create", "seats", "--limit", "90"]).status, 0);
    assert_eq!(us.run(&["quota", "acquire", "gpus", "40", "--site", "eu"]).status, 0);
    cluster.servers[EU].take().expect("it runs").kill();
    fs::remove_dir_all(cluster.data()).expect("lost");
    cluster.serve(EU, &["--new-storage"]);
    cluster.wait_for("ready", 2);

    let us = cluster.site(0);
    let reclaim = |more: &[&str]| us.run(&[&["quota", "reclaim", "--json"], more].concat());
    for (words, reason) in [
        (["gpus", "--of", "eu-2", "--still-in-use", "40"], "incarnation_lives"),
        (["gpus", "--of", "ap-1", "--still-in-use", "40"], "incarnation_lives"),
        (["gpus", "--of", "eu-7", "--still-in-use", "40"], "nothing_lost"),
        (["gpus", "--of", "eu-1", "--still-in-use", "3001"], "above_lost"),
        (["gupus", "--of", "eu-1", "--still-in-use", "0"], "unknown_quota"),
    ] {
        let refused = reclaim(&words);
        assert_eq!((refused.status, &refused.json()["reason"]), (1, &json!(reason)), "{refused:?}");
    }
    for words in [
        &["gpus", "--of", "eu", "--still-in-use", "40"][..],
        &["gpus", "--of", "mars-1", "--still-in-use", "40"],
        &["gpus", "--of", "eu-1", "--still-in-use", "-1"],
        &["gpus", "--of", "eu-1"],
        &["--all", "--of", "eu-1", "--still-in-use", "1"],
        &["gpus", "--all", "--of", "eu-1", "--still-in-use", "0"],
    ] {
        assert_eq!(reclaim(words).status, 2, "{words:?}");
    }

    let done = reclaim(&["gpus", "--of", "eu-1", "--still-in-use", "40"]).json();
    assert_eq!((&done["outcome"], &done["still_in_use"]), (&json!("done"), &json!(40)));
    assert!(done["reclaimed"].as_i64() > Some(0), "{done}");
    eventually("40 are in use", || show(us), |shown| shown["in_use"] == json!(40));
    assert_eq!(reclaim(&["gpus", "--of", "eu-1", "--still-in-use", "0"]).json()["reason"], json!("nothing_lost"));

    // Of every quota that has something left: the one that was done is not done again.
    let all = reclaim(&["--all", "--of", "eu-1", "--still-in-use", "0"]).json();
    assert_eq!((&all["outcome"], &all["refused"]), (&json!("done"), &json!([])));
    assert_eq!((&all["quotas"][0]["quota"], all["quotas"].as_array().map(Vec::len)), (&json!("seats"), Some(1)));
    assert_eq!(us.run(&["quota", "acquire", "seats", "90", "--deadline", "30s"]).status, 0);
    assert_eq!(us.run(&["quota", "acquire", "gpus", "2960", "--site", "eu", "--deadline", "30s"]).status, 0);
}
