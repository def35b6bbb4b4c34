//! `kill -9`, one site after the other and two at once, under load.

use std::time::Duration;

use super::process::{Server, three_configs};
use crate::load::Load;

/// How long a killed site stays away at least: longer than the deadline of the impatient callers.
const AWAY: Duration = Duration::from_millis(500);
/// Who is killed, in turn.
const VICTIMS: [&[usize]; 7] = [&[0], &[1], &[2], &[0, 2], &[1], &[1, 2], &[0]];

/// What was acknowledged survives `kill -9`: grants still count and can be given back once, unknown outcomes can be
/// settled, and no token is lost or made.
#[test]
fn sites_killed_under_load_lose_nothing_acknowledged() {
    let folder = tempfile::tempdir().expect("a directory");
    let configs = three_configs(folder.path());
    let addresses: Vec<String> = configs.iter().map(|(_, address)| address.clone()).collect();
    let serve = |site: usize| {
        let path = configs[site].0.clone();
        move || Server::start(&["serve", "--json", "--config", &path])
    };
    // Dropped, a server is killed: none is left behind if this test fails.
    let mut servers: Vec<Option<Server>> = (0..3).map(|site| Some(serve(site)())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let told = runtime.block_on(async {
        let load = Load::start(&addresses).await;
        for victims in VICTIMS {
            load.goes_on(&[0, 1, 2]).await;
            for victim in victims {
                servers[*victim].take().expect("it runs").kill();
            }
            tokio::time::sleep(AWAY).await;
            if let [alone] = victims {
                // A majority is left: it goes on.
                load.goes_on(&[(alone + 1) % 3, (alone + 2) % 3]).await;
            }
            for victim in victims {
                let server = tokio::task::spawn_blocking(serve(*victim)).await;
                servers[*victim] = Some(server.expect("it starts again"));
            }
        }
        load.goes_on(&[0, 1, 2]).await;
        load.finish().await
    });
    assert!(told.unknown > 0 && told.refused > 0 && told.kept > 20, "hardly tested: {told:?}");
}
