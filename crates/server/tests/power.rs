//! Power cuts under load: what a site had written and not synced is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use slackline_server::{RunError, ServeConfig, Site, SiteHandle, Storage};
use slackline_storage::Faults;

use crate::load::Load;
use crate::support::small_log;

const REGIONS: [&str; 3] = ["us", "eu", "ap"];
/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a site stays away at least: longer than the deadline of the impatient callers.
const AWAY: Duration = Duration::from_millis(500);
/// Whose power is cut, in turn; and whether in the middle of a sync, so that a part of it is on the disk.
const CUTS: [(&[usize], bool); 7] = [
    (&[0], false),
    (&[1], true),
    (&[2], true),
    (&[0, 1, 2], false),
    (&[0, 1], true),
    (&[2], false),
    (&[0, 1, 2], true),
];

/// A running site on a disk that loses what was not synced when the power is cut.
struct Powered {
    site: SiteHandle,
    faults: Faults,
}

impl Powered {
    fn start(data: &Path, region: usize, addresses: &[String]) -> Self {
        let sites = REGIONS.iter().zip(addresses);
        let sites: String =
            sites.map(|(name, at)| format!("[[sites]]\nregion = \"{name}\"\naddress = \"{at}\"\n")).collect();
        let text = format!(
            "cluster = \"test\"\nregions = {REGIONS:?}\nregion = {:?}\ndata = \"unused\"\nlisten = {:?}\n{sites}",
            REGIONS[region], addresses[region]
        );
        let faults = Faults::new();
        let mut config = ServeConfig::parse(&text, Path::new("site.toml")).expect("a configuration").site();
        config.storage = Storage::Directory(data.join(REGIONS[region]));
        config.storage_options = small_log(&faults);
        Self { site: Site::start(config).expect("starts on what survived"), faults }
    }

    /// Cuts the power at once, or in a sync that is still to come.
    fn cut(&self, in_a_sync: Option<u64>) {
        match in_a_sync {
            Some(seed) => self.faults.crash_in_sync(seed, seed),
            None => self.faults.crash(),
        }
    }

    /// Waits until the site has noticed: it cannot write any more, so it says no more.
    async fn has_stopped(self) {
        let until = Instant::now() + PATIENCE;
        while !self.site.has_stopped() {
            assert!(Instant::now() < until, "it goes on without power");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let error = self.site.drain(Duration::ZERO).expect_err("it stopped by itself");
        assert!(matches!(error, RunError::Sync { .. } | RunError::Read { .. }), "{error}");
    }
}

/// Nothing leaves a site before it is durable: what was acknowledged survives power cuts, also of all sites at once.
#[test]
fn power_cuts_under_load_lose_nothing_acknowledged() {
    let data = tempfile::tempdir().expect("a directory");
    let ports = slackline_server::ports::free(REGIONS.len()).expect("free ports");
    let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let start = |site: usize| Powered::start(data.path(), site, &addresses);
    let mut sites: Vec<_> = (0..REGIONS.len()).map(|site| Some(start(site))).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let told = runtime.block_on(async {
        let load = Load::start(&addresses).await;
        for (number, (victims, in_a_sync)) in CUTS.into_iter().enumerate() {
            load.goes_on(&[0, 1, 2]).await;
            for victim in victims {
                let seed = (10 * number + victim) as u64;
                sites[*victim].as_ref().expect("it runs").cut(in_a_sync.then_some(seed));
            }
            for victim in victims {
                sites[*victim].take().expect("it runs").has_stopped().await;
            }
            tokio::time::sleep(AWAY).await;
            victims.iter().for_each(|victim| sites[*victim] = Some(start(*victim)));
        }
        load.goes_on(&[0, 1, 2]).await;
        load.finish().await
    });
    assert!(told.unknown > 0 && told.refused > 0 && told.kept > 20, "hardly tested: {told:?}");
    for site in sites.into_iter().flatten() {
        site.site.drain(Duration::from_secs(5)).expect("drains");
    }
}
