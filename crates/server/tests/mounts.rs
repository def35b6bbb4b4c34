//! A data directory that is not there when the site starts, is an old copy, or is damaged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slackline_server::{Listen, NewStorage, ServeConfig, Site, SiteHandle, StartError, Storage};
use slackline_wire::v1;
use slackline_wire::v1::outcome::Result as Outcome;
use slackline_wire::v1::slackline_client::SlacklineClient;

use crate::http::http;
use crate::support::{Client, block_on, channel, put};

const REGIONS: [&str; 3] = ["us", "eu", "ap"];
const PATIENCE: Duration = Duration::from_secs(20);

/// Three sites as `serve` runs them, each with its directory in one that stands for its volume.
struct Places {
    root: tempfile::TempDir,
    ports: Vec<u16>,
}

impl Places {
    fn new() -> Self {
        let ports = slackline_server::ports::free(REGIONS.len()).expect("free ports");
        Self { root: tempfile::tempdir().expect("a directory"), ports }
    }

    fn data(&self, at: usize) -> PathBuf {
        self.root.path().join(REGIONS[at]).join("data")
    }

    fn try_start(&self, at: usize, new_storage: NewStorage) -> Result<SiteHandle, StartError> {
        self.try_start_at((at, self.ports[at]), self.data(at), new_storage)
    }

    fn try_start_at(
        &self,
        (at, port): (usize, u16),
        data: PathBuf,
        new_storage: NewStorage,
    ) -> Result<SiteHandle, StartError> {
        let sites = REGIONS.iter().zip(&self.ports);
        let sites: Vec<String> = sites
            .map(|(region, port)| format!("{{ region = \"{region}\", address = \"127.0.0.1:{port}\" }}"))
            .collect();
        let text = format!(
            "cluster = \"test\"\nregions = [\"us\", \"eu\", \"ap\"]\nregion = \"{}\"\ndata = \"unused\"\n\
             listen = \"127.0.0.1:{}\"\nsites = [{}]\n",
            REGIONS[at],
            port,
            sites.join(", ")
        );
        let mut config = ServeConfig::parse(&text, Path::new("site.toml")).expect("a configuration").site();
        std::fs::create_dir_all(&data).expect("a directory");
        config.storage = Storage::Directory(data);
        config.storage_options.segment_bytes = 16 << 20;
        config.http = Some(Listen::On("127.0.0.1:0".to_owned()));
        config.new_storage = new_storage;
        Site::start(config)
    }

    fn start(&self, at: usize) -> SiteHandle {
        self.try_start(at, NewStorage::Waits).expect("starts")
    }

    fn start_ready(&self, at: usize) -> SiteHandle {
        let site = self.start(at);
        assert!(site.wait_ready(PATIENCE), "{}", http(&site, "/healthz"));
        site
    }

    fn start_all(&self) -> [SiteHandle; 3] {
        let sites = [0, 1, 2].map(|at| self.start(at));
        assert!(sites.iter().all(|site| site.wait_ready(PATIENCE)));
        sites
    }

    /// The names beside the data directory.
    fn beside(&self, at: usize) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.root.path().join(REGIONS[at])).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    }
}

fn drain(site: SiteHandle) {
    site.drain(Duration::from_secs(5)).expect("drains");
}

async fn readiness(site: &SiteHandle) -> v1::Readiness {
    let mut rpc = SlacklineClient::new(channel(site).await);
    rpc.status(v1::StatusRequest {}).await.expect("an answer").into_inner().readiness()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A grant, an object and the tokens of a quota are at `eu`, whose volume is not mounted when it starts again.
#[test]
fn empty_mount_joins_nothing_and_the_volume_comes_back_whole() {
    let places = Places::new();
    let us = places.start(0);
    // The first start waits for the others, and names them.
    let health = http(&us, "/healthz");
    assert!(health.contains("\"because\":\"joining\",\"waiting_for\":[\"eu\",\"ap\"]"), "{health}");
    let (eu, ap) = (places.start(1), places.start(2));
    assert!([&us, &eu, &ap].iter().all(|site| site.wait_ready(PATIENCE)));
    let grant = block_on(async {
        let mut client = Client::connect(&eu).await;
        client.create("seats", 3_000).await;
        let mut request = client.acquire_request("seats", 700);
        request.set_hold(v1::Hold::Open);
        let granted = client.rpc.acquire(request).await.expect("an answer").into_inner();
        let Outcome::Granted(granted) = crate::support::result(granted) else { panic!("not granted") };
        assert!(matches!(client.commit(vec![put(1, "x", vec![7])]).await, Outcome::Committed(_)));
        granted.grant
    });
    drain(eu);

    // Nothing is there but an empty directory.
    let volume = places.root.path().join("volume");
    std::fs::rename(places.data(1), &volume).expect("unmounted");
    for _ in 0..2 {
        let eu = places.start(1);
        wait_for("it waits for a person", || {
            http(&eu, "/healthz").contains("\"ready\":false,\"because\":\"awaiting_new_storage\"")
        });
        assert_eq!(block_on(readiness(&eu)), v1::Readiness::AwaitingNewStorage);
        assert!(http(&eu, "/metrics").contains("slackline_incarnation 0\n"), "nothing is joined");
        drain(eu);
    }
    std::fs::remove_dir_all(places.data(1)).expect("what is beneath the mount");
    std::fs::rename(&volume, places.data(1)).expect("mounted");

    let eu = places.start_ready(1);
    assert!(http(&eu, "/metrics").contains("slackline_incarnation 1\n"));
    block_on(async {
        let mut client = Client::connect(&eu).await;
        assert_eq!(client.show("seats").await.in_use_max, 700);
        let value = client.read(&[(1, "x")]).await;
        assert!(format!("{value:?}").contains("Bytes(b\"\\x07\")"), "{value:?}");
        let release = v1::ReleaseGrantRequest { operation: client.id(), low: 1, timeout_us: 5_000_000, grant };
        let released = client.rpc.release_grant(release).await.expect("an answer").into_inner();
        assert!(matches!(crate::support::result(released), Outcome::Released(_)));
        // It takes some rounds, each with syncs at three sites of one disk.
        let request = v1::AcquireRequest { timeout_us: 30_000_000, ..client.acquire_request("seats", 3_000) };
        let all = crate::support::result(client.rpc.acquire(request).await.expect("an answer").into_inner());
        assert!(matches!(all, Outcome::Granted(_)), "all tokens are there: {all:?}");
    });
    assert_eq!(places.beside(1), BTreeSet::from(["data".to_owned()]));
    [us, eu, ap].into_iter().for_each(drain);
}

/// A person says that the earlier storage is lost; then it is found after all.
#[test]
fn lost_storage_that_comes_back_is_moved_aside_whole() {
    let places = Places::new();
    let [us, eu, ap] = places.start_all();
    drain(eu);

    // The word is for storage that is new.
    let error = places.try_start(1, NewStorage::Permitted).expect_err("it is not new").to_string();
    assert!(error.contains("is not new, it is incarnation 1 of site eu"), "{error}");

    let lost = places.root.path().join("lost");
    std::fs::rename(places.data(1), &lost).expect("lost");
    let eu = places.try_start(1, NewStorage::Permitted).expect("starts");
    assert!(eu.wait_ready(PATIENCE));
    let metrics = http(&eu, "/metrics");
    assert!(metrics.contains("slackline_incarnation 2\n") && metrics.contains("slackline_incarnations_lost 1\n"));
    drain(eu);

    std::fs::rename(places.data(1), places.root.path().join("second")).expect("set aside");
    std::fs::rename(&lost, places.data(1)).expect("found");
    let eu = places.start(1);
    wait_for("it is moved aside", || places.beside(1).contains("data.stale-1"));
    wait_for("what is new waits", || http(&eu, "/healthz").contains("awaiting_new_storage"));
    drain(eu);
    let kept = places.root.path().join("eu").join("data.stale-1");
    assert!(kept.join("IDENTITY").exists() && kept.join("table.redb").exists());

    // The newest one is as it was.
    std::fs::remove_dir_all(places.data(1)).expect("new and empty");
    std::fs::rename(places.root.path().join("second"), places.data(1)).expect("put back");
    let eu = places.start_ready(1);
    assert!(http(&eu, "/metrics").contains("slackline_incarnation 2\n"));
    [us, eu, ap].into_iter().for_each(drain);
}

/// The configuration names a link to the directory on the volume.
#[test]
fn old_copy_behind_a_link_is_moved_aside_on_its_volume() {
    let places = Places::new();
    let volume = places.root.path().join("volume");
    let (real, lost) = (volume.join("data"), volume.join("lost"));
    std::fs::create_dir_all(&real).expect("a volume");
    std::fs::create_dir_all(places.data(1).parent().expect("a directory of its own")).expect("made");
    std::os::unix::fs::symlink(&real, places.data(1)).expect("a link");
    let [us, eu, ap] = places.start_all();
    drain(eu);
    std::fs::rename(&real, &lost).expect("lost");
    std::fs::create_dir(&real).expect("empty");
    let eu = places.try_start(1, NewStorage::Permitted).expect("starts");
    assert!(eu.wait_ready(PATIENCE));
    drain(eu);

    std::fs::remove_dir_all(&real).expect("the newest one is kept nowhere");
    std::fs::rename(&lost, &real).expect("found");
    let eu = places.start(1);
    wait_for("it is moved aside", || volume.join("data.stale-1").join("IDENTITY").exists());
    wait_for("what is new waits", || http(&eu, "/healthz").contains("awaiting_new_storage"));
    assert!(places.data(1).is_symlink() && real.join("LOCK").exists(), "what is new is on the volume");
    drain(eu);
    [us, ap].into_iter().for_each(drain);
}

/// Two processes are one site by mistake, and of both a person has said that what was before is lost. The answers of the others go to the
/// address of the site, so the second never hears what it would take the place of.
#[test]
fn second_process_with_a_persons_word_takes_the_place_of_nothing() {
    let places = Places::new();
    let [us, eu, ap] = places.start_all();
    drain(eu);
    std::fs::remove_dir_all(places.data(1)).expect("lost");
    let eu = places.try_start(1, NewStorage::Permitted).expect("starts");
    assert!(eu.wait_ready(PATIENCE));

    let port = slackline_server::ports::free(1).expect("a free port")[0];
    let elsewhere = places.root.path().join("elsewhere").join("data");
    let second = places.try_start_at((1, port), elsewhere, NewStorage::Permitted).expect("starts");
    std::thread::sleep(Duration::from_secs(3));
    assert!(http(&second, "/healthz").contains("joining"), "{}", http(&second, "/healthz"));
    let names = places.beside(1);
    assert!(names.iter().map(String::as_str).eq(["data"]), "something was moved aside: {names:?}");
    assert_eq!(block_on(readiness(&eu)), v1::Readiness::Ready);
    drain(second);
    [us, eu, ap].into_iter().for_each(drain);
}

/// It looks like a write that was cut short; but the others have heard of what cannot be read.
#[test]
fn flipped_bit_in_the_last_block_of_the_log_is_damage_and_is_named() {
    let places = Places::new();
    let [us, eu, ap] = places.start_all();
    block_on(async {
        let mut client = Client::connect(&eu).await;
        client.create("seats", 300).await;
        assert!(matches!(client.acquire("seats", 5).await, Outcome::Granted(_)));
    });
    // The others hear of the last position with the next ping.
    std::thread::sleep(Duration::from_millis(1_500));
    drain(eu);
    let log = places.data(1).join("log");
    let segments = std::fs::read_dir(&log).expect("the log").map(|entry| entry.expect("an entry").path());
    // The last block that holds anything; what segments have that are only kept ready is their header.
    let written = segments.map(|path| {
        let bytes = std::fs::read(&path).expect("a segment");
        let blocks = bytes.chunks(4096).enumerate().skip(1).filter(|(_, block)| block.iter().any(|byte| *byte != 0));
        (blocks.map(|(at, _)| at * 4096).max(), path, bytes)
    });
    let (block, segment, mut bytes) = written.max_by_key(|(block, ..)| *block).expect("one is written");
    let block = block.expect("something is written");
    bytes[block + 20] ^= 1;
    std::fs::write(&segment, bytes).expect("spoilt");

    for _ in 0..2 {
        let eu = places.start(1);
        wait_for("it stops", || eu.has_stopped());
        let error = eu.drain(Duration::from_secs(5)).expect_err("it stopped by itself").to_string();
        let place = format!("{} is damaged at byte {block}:", segment.display());
        assert!(error.contains(&place), "{error}, not {place}");
        assert_eq!(places.beside(1), BTreeSet::from(["data".to_owned()]));
    }
    [us, ap].into_iter().for_each(drain);
}
