//! Programs against real sites: real storage and gRPC over loopback, with the distances put in by the links.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use slackline::{Client, Options};
use slackline_core::stats::Rng;
use slackline_server::{Dev, DevConfig, Ports, RttTable};
use tokio::task::LocalSet;

use super::tally::{Tally, Window};
use super::{EPSILON, Seat, Setting, TxnsError, Workload, client, load, region, verify};
use crate::histogram::Histogram;
use crate::live::{LiveError, Scratch, metric};
use crate::report::Run;

/// How long sites may take to become ready, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a workload, and checks its data.
pub(super) fn run<W: Workload>(
    setting: &Setting,
    workload: W,
    directory: &Path,
) -> Result<(Run, Histogram), TxnsError> {
    let scratch = Scratch::below(directory)?;
    let regions: Vec<String> = (0..setting.stores).map(region).collect();
    let config = DevConfig {
        regions: regions.clone(),
        lanes: 1,
        data: Some(scratch.path().join("sites")),
        rtt: Some(table(setting, &regions, scratch.path())?),
        epsilon: EPSILON,
        ports: Ports::Free,
        redistribute: true,
        warranties: setting.config.warranties(),
    };
    let cluster = Dev::start(config).map_err(failed)?;
    if !cluster.wait_ready(PATIENCE) {
        return Err(LiveError::Failed("the sites did not become ready".into()).into());
    }
    let sent = || -> Result<f64, LiveError> {
        let pages = cluster.sites().iter().filter_map(|site| site.http_address());
        pages.map(|http| metric(http, "slackline_messages_sent_total")).sum()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let tally = Rc::new(RefCell::new(Tally::new(None)));
    let workload = Rc::new(workload);
    let seats = runtime.block_on(LocalSet::new().run_until(async {
        let seats = seats(setting, &cluster, &regions).await?;
        for (store, seat) in seats.iter().take(setting.stores).enumerate() {
            load(Rc::clone(&workload), seat.clone(), store, Rc::clone(&tally)).await;
        }
        Ok::<_, TxnsError>(seats)
    }))?;
    let window = Window::after(seats[0].now(), setting.warm, setting.measure);
    let counted = runtime.block_on(LocalSet::new().run_until(async {
        let step = |seat: &Seat| {
            let rng = Rng::new(setting.seed ^ (seat.client as u64 + 1) << 20);
            tokio::task::spawn_local(client(Rc::clone(&workload), seat.clone(), rng, window, Rc::clone(&tally)))
        };
        let clients: Vec<_> = seats.iter().map(step).collect();
        seats[0].port.sleep_until(window.from).await;
        let before = sent()?;
        seats[0].port.sleep_until(window.end).await;
        let counted = sent()? - before;
        for client in clients {
            client.await.map_err(failed)?;
        }
        verify(Rc::clone(&workload), seats[0].clone(), Rc::clone(&tally)).await;
        Ok::<_, TxnsError>(counted)
    }))?;
    drop(seats);
    drop(runtime);
    cluster.drain(Duration::from_secs(10)).map_err(failed)?;
    let tally = tally.take();
    tally.failure.clone().map_or(Ok(()), |what| Err(setting.wrong(what)))?;
    let (run, latencies) = tally.report(setting, Some(counted as u64));
    Ok((workload.tell(run.with("file_system", scratch.file_system.clone())), latencies))
}

/// A table in which all regions are equally far from each other.
fn table(setting: &Setting, regions: &[String], directory: &Path) -> Result<RttTable, TxnsError> {
    let mut text = String::new();
    for (order, from) in regions.iter().enumerate() {
        for to in &regions[order..] {
            let ms = if from == to { 0.0 } else { setting.rtt.as_secs_f64() * 1e3 };
            text += &format!("{from},{to},{ms}\n");
        }
    }
    let file = directory.join("rtt.csv");
    fs::write(&file, text).map_err(failed)?;
    RttTable::from_csv(&file).map_err(failed)
}

/// One connection for all clients of a store.
async fn seats(setting: &Setting, cluster: &Dev, regions: &[String]) -> Result<Vec<Seat>, TxnsError> {
    let mut ports = Vec::with_capacity(regions.len());
    for (site, region) in cluster.sites().iter().zip(regions) {
        let options = Options { region: Some(region.clone()), ..Options::default() };
        let client = Client::connect_with([site.address().to_string()], options).await.map_err(failed)?;
        ports.push((client.port(), setting.memos()));
    }
    let seat = |(at, site): (usize, usize)| {
        let (port, memos) = ports[site].clone();
        Seat::new(at, site, port, memos)
    };
    Ok(setting.clients().into_iter().enumerate().map(seat).collect())
}

fn failed(error: impl std::fmt::Display) -> TxnsError {
    LiveError::Failed(error.to_string()).into()
}
