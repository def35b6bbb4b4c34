//! Runs of workloads against real sites.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use slackline_server::RttTable;
use tokio::task::LocalSet;

use super::setting::{Setting, TxnsError, region};
use super::tally::{Tally, Window};
use super::tasks::{client, load, verify};
use super::workload::{Seat, Workload};
use crate::cluster::{self, Cluster};
use crate::live::{LiveError, Scratch, runtime};
use crate::report::Measured;

/// Runs a workload, and checks its data.
pub(super) fn run<W: Workload>(setting: &Setting, workload: W, directory: &Path) -> Result<Measured, TxnsError> {
    let regions: Vec<String> = (0..setting.stores).map(region).collect();
    let terms = cluster::Terms {
        rtt: table(setting, &regions, directory)?,
        regions,
        redistribute: true,
        warranties: setting.config.warranties(),
    };
    let cluster = Cluster::start(directory, terms)?;
    let runtime = runtime()?;
    let tally = Rc::new(RefCell::new(Tally::new(None)));
    let workload = Rc::new(workload);

    // The first clients sit at one store each, so each loads the objects of its own store.
    let seats = runtime.block_on(LocalSet::new().run_until(async {
        let seats = seats(setting, &cluster).await?;
        for (store, seat) in seats.iter().take(setting.stores).enumerate() {
            load(Rc::clone(&workload), seat.clone(), store, Rc::clone(&tally)).await;
        }
        Ok::<_, TxnsError>(seats)
    }))?;

    let window = Window::after(seats[0].now(), setting.warm, setting.measure);
    let sent = runtime.block_on(LocalSet::new().run_until(async {
        let step = |seat: &Seat| {
            let (rng, tally) = (setting.rng(seat.client), Rc::clone(&tally));
            tokio::task::spawn_local(client(Rc::clone(&workload), seat.clone(), rng, window, tally))
        };
        let clients: Vec<_> = seats.iter().map(step).collect();

        // Messages are counted for the same time as transactions are.
        seats[0].port.sleep_until(window.from).await;
        let before = cluster.total(SENT)?;
        seats[0].port.sleep_until(window.end).await;
        let sent = cluster.total(SENT)? - before;

        // Transactions under way end before the data are read, so the check sees what clients were told.
        for client in clients {
            client.await.map_err(LiveError::failed)?;
        }
        verify(Rc::clone(&workload), seats[0].clone(), Rc::clone(&tally)).await;
        Ok::<_, TxnsError>(sent)
    }))?;
    let file_system = cluster.file_system().to_owned();

    // Clients first: a site that drains waits for their connections.
    drop(seats);
    drop(runtime);
    cluster.drain()?;

    let tally = tally.take();
    tally.failure.clone().map_or(Ok(()), |what| Err(setting.wrong(what)))?;
    let (run, latencies) = tally.report(setting, Some(sent as u64));
    Ok((workload.tell(run.with("file_system", file_system)), latencies))
}

/// The metric that counts messages between sites.
const SENT: &str = "slackline_messages_sent_total";

/// A table in which all regions are equally far from each other.
fn table(setting: &Setting, regions: &[String], directory: &Path) -> Result<RttTable, LiveError> {
    let mut text = String::new();
    for (order, from) in regions.iter().enumerate() {
        for to in &regions[order..] {
            let ms = if from == to { 0.0 } else { setting.rtt.as_secs_f64() * 1e3 };
            text += &format!("{from},{to},{ms}\n");
        }
    }

    let scratch = Scratch::below(directory)?;
    let file = scratch.path().join("rtt.csv");
    fs::write(&file, text).map_err(LiveError::system(format!("write {}", file.display())))?;
    RttTable::from_csv(&file).map_err(LiveError::failed)
}

/// The seats of all clients; those of a store share one connection.
async fn seats(setting: &Setting, cluster: &Cluster) -> Result<Vec<Seat>, LiveError> {
    let clients = cluster.clients().await?;
    let shared: Vec<_> = clients.iter().map(|client| (client.port(), setting.memos())).collect();
    let seat = |(at, site): (usize, usize)| {
        let (port, memos) = shared[site].clone();
        Seat::new(at, site, port, memos)
    };
    Ok(setting.clients().into_iter().enumerate().map(seat).collect())
}
