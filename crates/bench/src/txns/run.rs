//! Runs of workloads: simulated here, live in `real`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use slackline_sim::world::Options;

use super::real;
use super::setting::{Setting, TxnsError};
use super::stage::Stage;
use super::tally::{self, Tally, Window};
use super::tasks::{client, load, verify};
use super::workload::{Seat, Workload};
use crate::EPSILON;
use crate::report::Measured;

/// Runs a workload, and checks its data.
pub(super) fn run<W: Workload>(setting: &Setting, workload: W) -> Result<Measured, TxnsError> {
    match &setting.live {
        Some(directory) => real::run(setting, workload, directory),
        None => simulate(setting, workload),
    }
}

/// Runs a workload in virtual time.
fn simulate<W: Workload>(setting: &Setting, workload: W) -> Result<Measured, TxnsError> {
    let options = Options {
        costs: setting.costs().unwrap_or_default(),
        epsilon: EPSILON,
        warranties: setting.config.warranties(),
        ..Options::uniform(setting.stores, setting.rtt.as_micros() as u64, setting.seed)
    };
    let mut stage = Stage::new(options, Arc::new(setting.topology()), &setting.clients());
    let workload = Rc::new(workload);
    let tally = Rc::new(RefCell::new(Tally::new(Some(stage.delays()))));
    let seat = |(at, &site): (usize, &usize)| Seat::new(at, site, stage.port(at), setting.memos());
    let seats: Vec<Seat> = setting.clients().iter().enumerate().map(seat).collect();

    // The first clients sit at one store each, so each loads the objects of its own store.
    for (store, seat) in seats.iter().take(setting.stores).enumerate() {
        stage.spawn(load(Rc::clone(&workload), seat.clone(), store, Rc::clone(&tally)));
    }
    stage.finish();

    let window = Window::after(seats[0].now(), setting.warm, setting.measure);
    for seat in &seats {
        stage.spawn(client(Rc::clone(&workload), seat.clone(), setting.rng(seat.client), window, Rc::clone(&tally)));
    }
    stage.pass(setting.warm.as_micros() as u64);

    // What the world counts is counted for the same time as transactions are.
    let worked = |stage: &Stage| -> Vec<u64> { (0..setting.stores).map(|site| stage.world.worked(site)).collect() };
    let (sent, busy, inputs, clock) =
        (stage.world.wan_messages(), worked(&stage), stage.world.inputs(), Instant::now());
    stage.pass(setting.measure.as_micros() as u64);
    let sent = stage.world.wan_messages() - sent;
    let busiest = worked(&stage).iter().zip(&busy).map(|(after, before)| after - before).max().unwrap_or(0);
    let speed = (stage.world.inputs() - inputs) as f64 / clock.elapsed().as_secs_f64();

    // Transactions under way end before the data are read, so the check sees what clients were told.
    stage.finish();
    stage.spawn(verify(Rc::clone(&workload), seats[0].clone(), Rc::clone(&tally)));
    stage.finish();

    let tally = tally.take();
    tally.failure.clone().map_or(Ok(()), |what| Err(setting.wrong(what)))?;
    let (run, latencies) = tally.report(setting, Some(sent));
    let share = busiest as f64 / setting.measure.as_micros() as f64;
    let run = run.with("store_cpu_share", tally::rounded(share)).with("sim_inputs_per_s", speed as u64);
    Ok((workload.tell(run), latencies))
}

/// Runs each of several jobs, in virtual time as many at once as there are processors. Returns what they found, in their order.
///
/// # Errors
///
/// That of the first job, in their order, that found nothing out.
pub(super) fn run_each<T: Sync, R: Send>(
    jobs: &[T],
    is_live: bool,
    run: impl Fn(&T) -> Result<R, TxnsError> + Sync,
) -> Result<Vec<R>, TxnsError> {
    // Real sites would take each other's processors.
    let at_once = if is_live { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    let found = run(job);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, found));
                }
            });
        }
    });

    // Jobs end in any order.
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, found)| found).collect()
}
