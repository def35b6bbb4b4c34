//! The demand per minute of the quotas that the configuration names, and what models expect of it.
//!
//! A thread of its own closes the minutes and runs the models, beside the site's thread, which does two things for it: it says once a
//! minute how many tokens were asked for, and takes the forecasts in as a request of its driver. Neither waits for the other.
//!
//! ```text
//!   site's thread ──tokens asked for so far, once a minute──▶ forecaster ──▶ minutes ──▶ ShowDemand
//!        ▲                                                        │
//!        └─────────────── Request::Expect ◀── models ◀────────────┘
//! ```
//!
//! A minute in which the site was not there from the beginning to the end is a gap: nothing is known of it. Minutes are kept in memory, so
//! a site that was started again forecasts once it has the demand that its model reads.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{io, mem};

use serde::Deserialize;
use slackline_core::api::{Forecast, Request};
use slackline_forecast::{Fitted, LONGEST_WINDOW, Series, time::MINUTE};
use tracing::{info, warn};

use crate::mailbox::{DRIVER, Mailbox};

/// The most quotas whose demand a site keeps.
pub(crate) const WATCHED: usize = 1_000;
/// The minutes that are kept of each: two weeks, 8 bytes each.
const KEPT: usize = LONGEST_WINDOW;
/// The time that the site's thread may take to say what was asked for. What it says later is of no whole minute.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time for which a site that ends waits for its forecaster.
const LEAVE: Duration = Duration::from_secs(1);
/// By so many minutes a clock is set back that was wrong before. What was counted then is of other minutes than it seemed.
const SET_BACK: i64 = 60;
/// What stands for a minute that was not observed. No quota has as many tokens.
const GAP: u64 = u64::MAX;

/// A quota whose demand is kept.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watched {
    /// Its name.
    pub quota: String,
    /// The file of the model that forecasts it; without one its demand is only kept.
    pub model: Option<PathBuf>,
    /// The length of the steps that the model must be for, in seconds.
    #[serde(default = "Watched::minute")]
    pub step_seconds: u64,
}

impl Watched {
    fn minute() -> u64 {
        MINUTE as u64
    }
}

/// What the site's thread, its forecaster and its services share.
#[derive(Debug)]
pub(crate) struct DemandDesk {
    watched: Vec<Watched>,
    /// The demand of each watched quota.
    minutes: Mutex<Vec<Minutes>>,
    /// True from a question to the site's thread until that has seen it.
    is_wanted: AtomicBool,
    state: Mutex<State>,
    /// Wakes the forecaster.
    bell: Condvar,
}

/// What the forecaster is to do, and what it was told.
#[derive(Default, Debug)]
struct State {
    stop: bool,
    reload: bool,
    told: Option<Told>,
}

/// What the site's thread said.
#[derive(Clone, Debug)]
struct Told {
    /// Since when the machine serves: from then on it counts.
    opened: Instant,
    /// The tokens that were asked for of each watched quota since; none of one that does not exist.
    asked: Vec<Option<u64>>,
}

/// Why the forecaster woke up.
#[derive(PartialEq, Eq, Debug)]
enum Woken {
    Stop,
    Reload,
    Time,
}

impl DemandDesk {
    pub(crate) fn new(watched: Vec<Watched>) -> Self {
        let minutes = Mutex::new(vec![Minutes::default(); watched.len()]);
        Self { watched, minutes, is_wanted: AtomicBool::new(false), state: Mutex::default(), bell: Condvar::new() }
    }

    /// The site's thread: answers the question, if one was asked since the last call.
    #[inline]
    pub(crate) fn answer(&self, opened: Instant, asked: impl Fn(&str) -> Option<u64>) {
        if !self.is_wanted.load(Ordering::Relaxed) || !self.is_wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let asked = self.watched.iter().map(|watched| asked(&watched.quota)).collect();
        self.state().told = Some(Told { opened, asked });
        self.bell.notify_all();
    }

    /// Has the models loaded again.
    pub(crate) fn reload(&self) {
        self.state().reload = true;
        self.bell.notify_all();
    }

    /// Ends the forecaster.
    fn stop(&self) {
        self.state().stop = true;
        self.bell.notify_all();
    }

    /// The minutes of a quota that are known, each with the time at which it began, in seconds since 1970. None if the quota is not
    /// watched here.
    pub(crate) fn show(&self, quota: &str) -> Option<Vec<(i64, u64)>> {
        let at = self.watched.iter().position(|watched| watched.quota == quota)?;
        Some(self.minutes()[at].known())
    }

    /// Waits for this long, or until there is something to do.
    fn wait(&self, most: Duration) -> Woken {
        let idle = |state: &mut State| !state.stop && !state.reload;
        let waited = self.bell.wait_timeout_while(self.state(), most, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match () {
            () if state.stop => Woken::Stop,
            () if mem::take(&mut state.reload) => Woken::Reload,
            () => Woken::Time,
        }
    }

    /// Asks the site's thread what was asked for. None if it does not say so in time.
    fn ask(&self, mailbox: &Mailbox) -> Option<Told> {
        self.state().told = None;
        self.is_wanted.store(true, Ordering::Relaxed);
        mailbox.wake.notify_one();

        let waits = |state: &mut State| !state.stop && state.told.is_none();
        let waited = self.bell.wait_timeout_while(self.state(), PATIENCE, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.told.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn minutes(&self) -> MutexGuard<'_, Vec<Minutes>> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last minutes of one quota, without a break; a minute that was not observed is [`GAP`].
#[derive(Clone, Default, Debug)]
struct Minutes {
    /// The number of the minute after the last, counted from 1970.
    end: i64,
    values: VecDeque<u64>,
}

impl Minutes {
    /// Adds a minute; true if it did. One that is not later than the last is dropped: the clock was set back a little. If it was set back
    /// by much, what is kept is of a time that has not come yet, and goes: else nothing would be kept until then.
    fn push(&mut self, minute: i64, count: Option<u64>) -> bool {
        if minute < self.end - SET_BACK {
            self.values.clear();
        }
        if minute < self.end && !self.values.is_empty() {
            return false;
        }
        let missed = usize::try_from(minute - self.end).unwrap_or(0);
        if self.values.is_empty() || missed >= KEPT {
            self.values.clear();
        } else {
            (0..missed).for_each(|_| self.add(GAP));
        }
        self.add(count.unwrap_or(GAP));
        self.end = minute + 1;
        true
    }

    /// Adds a value; the oldest goes for it once all are there.
    fn add(&mut self, value: u64) {
        if self.values.len() == KEPT {
            self.values.pop_front();
        }

        // By doubling it would come to have room for over half as many again.
        if self.values.len() == self.values.capacity() && 2 * self.values.capacity() > KEPT {
            self.values.reserve_exact(KEPT - self.values.len());
        }
        self.values.push_back(value);
    }

    fn known(&self) -> Vec<(i64, u64)> {
        let start = self.end - self.values.len() as i64;
        let all = (start..).zip(&self.values).filter(|(_, count)| **count != GAP);
        all.map(|(minute, count)| (minute * MINUTE, *count)).collect()
    }

    /// The last of them, as many as this, as a series.
    fn series(&self, most: usize) -> Series {
        let first = self.values.len().saturating_sub(most);
        let value = |count: &u64| (*count != GAP).then_some(*count as f64);
        let values: Vec<Option<f64>> = self.values.range(first..).map(value).collect();
        Series::new((self.end - values.len() as i64) * MINUTE, MINUTE as u64, values)
    }
}

/// The forecaster's thread. Dropping this ends it.
pub(crate) struct Forecaster {
    desk: Arc<DemandDesk>,
    thread: Option<JoinHandle<()>>,
}

impl Forecaster {
    /// Starts it; there is nothing to do where no quota is watched.
    pub(crate) fn start(desk: &Arc<DemandDesk>, mailbox: &Arc<Mailbox>, name: &str) -> io::Result<Self> {
        if desk.watched.is_empty() {
            return Ok(Self { desk: Arc::clone(desk), thread: None });
        }
        let loop_of = Loop {
            models: desk.watched.iter().map(|_| None).collect(),
            desk: Arc::clone(desk),
            mailbox: Arc::clone(mailbox),
            before: None,
        };
        let span = tracing::error_span!("site", name = %name);
        let thread = thread::Builder::new().name(format!("demand-{name}")).spawn(move || {
            let _named = span.entered();
            loop_of.run();
        })?;
        Ok(Self { desk: Arc::clone(desk), thread: Some(thread) })
    }
}

impl Drop for Forecaster {
    fn drop(&mut self) {
        self.desk.stop();
        if let Some(thread) = self.thread.take() {
            // A file may be on a disk that does not answer, and a net takes its time: the site does not wait for that.
            let until = Instant::now() + LEAVE;
            while !thread.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() {
                // A panic there was printed, and the site does without forecasts.
                let _ = thread.join();
            }
        }
    }
}

/// What the forecaster's thread has.
struct Loop {
    desk: Arc<DemandDesk>,
    mailbox: Arc<Mailbox>,
    /// The model of each watched quota, if it has one that makes sense.
    models: Vec<Option<Fitted>>,
    /// What was told at the beginning of the minute that is under way, and the number of that minute.
    before: Option<(i64, Told)>,
}

impl Loop {
    fn run(mut self) {
        self.load();
        loop {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let minute = since.as_secs() / MINUTE as u64;
            let next = Duration::from_secs((minute + 1) * MINUTE as u64);
            match self.desk.wait(next - since) {
                Woken::Stop => return,
                Woken::Reload => self.load(),
                Woken::Time => {
                    // It may have woken a little early.
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    if now >= next {
                        let told = if now < next + PATIENCE { self.desk.ask(&self.mailbox) } else { None };
                        // What was expected of a minute is not said again of another.
                        if self.close(minute as i64, told) {
                            self.forecast();
                        }
                    }
                }
            }
        }
    }

    /// Loads the models. One that is missing or makes no sense is reported, and the one before stays.
    fn load(&mut self) {
        for (watched, model) in self.desk.watched.iter().zip(&mut self.models) {
            let Some(path) = &watched.model else { continue };
            let step_minutes = watched.step_seconds as usize / MINUTE as usize;
            let loaded = Fitted::load(path, watched.step_seconds).map_err(|error| error.to_string());
            let loaded = loaded.and_then(|loaded| match loaded.window() * step_minutes {
                ..=KEPT => Ok(loaded),
                window => Err(format!("the model {} reads {window} minutes, and {KEPT} are kept", path.display())),
            });
            match loaded {
                Ok(loaded) => {
                    let (kind, window) = (loaded.kind(), loaded.window() * step_minutes);
                    info!("{}: {kind} forecasts its demand, once {window} minutes of it are known", watched.quota);
                    *model = Some(loaded);
                }
                Err(problem) => {
                    let instead = if model.is_some() { "the model before stays" } else { "there is no forecast" };
                    warn!("{}: {problem}; {instead}", watched.quota);
                }
            }
        }
    }

    /// Closes a minute with what is told just after it; true if it is a new one.
    fn close(&mut self, minute: i64, told: Option<Told>) -> bool {
        let before = self.before.take().filter(|(began, _)| *began == minute).map(|(_, told)| told);
        let mut minutes = self.desk.minutes();
        let mut is_new = false;
        for (at, minutes) in minutes.iter_mut().enumerate() {
            is_new |= minutes.push(minute, count(before.as_ref(), told.as_ref(), at));
        }
        drop(minutes);
        self.before = told.map(|told| (minute + 1, told));
        is_new
    }

    /// Runs the models whose step has just ended, and hands the site what they expect.
    fn forecast(&self) {
        let mut forecasts = Vec::new();
        for (at, (watched, model)) in self.desk.watched.iter().zip(&self.models).enumerate() {
            let Some(model) = model else { continue };
            if self.desk.state().stop {
                return;
            }
            // A model may take seconds, and meanwhile the site's thread may be asked for these minutes: it gets what it reads, and no lock.
            let Some((series, end)) = read_by(model, &self.desk.minutes()[at]) else { continue };

            // What it said before is of a time of which it knows nothing any more.
            let none = Forecast { quota: watched.quota.clone(), tokens: 0, micros: 0 };
            forecasts.push(expected(watched, model, &series, end).unwrap_or(none));
        }

        // A queue that is full leaves no room for a forecast, and the site does without.
        if !forecasts.is_empty() {
            let _ = self.mailbox.ask(DRIVER, Request::Expect(forecasts), None);
        }
    }
}

/// The tokens that were asked for of a quota between two times. None if the quota was not there at either, or if the machine was opened
/// again between them.
fn count(before: Option<&Told>, now: Option<&Told>, at: usize) -> Option<u64> {
    let (before, now) = (before?, now?);
    let (first, last) = (before.asked[at]?, now.asked[at]?);
    if before.opened == now.opened { last.checked_sub(first) } else { None }
}

/// What a model reads, and when that ends, if the last minute ended a step.
fn read_by(model: &Fitted, minutes: &Minutes) -> Option<(Series, i64)> {
    let frame = model.frame();
    let end = minutes.end * MINUTE;
    let window = model.window() * (frame.step_s as usize / MINUTE as usize);
    (end % frame.step_s as i64 == 0).then(|| (minutes.series(window), end))
}

/// What a model expects after what it reads.
fn expected(watched: &Watched, model: &Fitted, series: &Series, end: i64) -> Option<Forecast> {
    let frame = model.frame();
    let tokens = model.forecast(series.in_steps(frame.step_s).values(), end)?;

    // As many a second for as long as the next forecast may take to come: between the two, the site would give tokens away, and want them back.
    let step = frame.step_s.saturating_mul(frame.horizon as u64);
    let seconds = step.saturating_add(PATIENCE.as_secs());
    let tokens = tokens * seconds as f64 / step as f64;
    // The conversion is saturating.
    Some(Forecast {
        quota: watched.quota.clone(),
        tokens: tokens.round() as i64,
        micros: seconds.saturating_mul(1_000_000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(step_seconds: u64) -> Watched {
        Watched { quota: "gpus".into(), model: None, step_seconds }
    }

    fn told(opened: Instant, asked: &[Option<u64>]) -> Option<Told> {
        Some(Told { opened, asked: asked.to_vec() })
    }

    #[test]
    fn minute_counts_what_was_asked_for_between_its_ends() {
        let opened = Instant::now();
        let (first, last) = (told(opened, &[Some(5), None, Some(9)]), told(opened, &[Some(12), Some(3), Some(9)]));
        let count = |at| count(first.as_ref(), last.as_ref(), at);
        assert_eq!([count(0), count(1), count(2)], [Some(7), None, Some(0)], "the second quota is new");
    }

    #[test]
    fn minute_in_which_the_machine_was_opened_is_a_gap() {
        let opened = Instant::now();
        let first = told(opened, &[Some(5)]);
        let last = told(opened + Duration::from_millis(1), &[Some(12)]);
        assert_eq!(count(first.as_ref(), last.as_ref(), 0), None);
        assert_eq!(count(None, last.as_ref(), 0), None);
        assert_eq!(count(first.as_ref(), None, 0), None);
    }

    #[test]
    fn missed_minutes_are_gaps_and_those_of_a_clock_set_back_are_dropped() {
        let mut minutes = Minutes::default();
        minutes.push(100, Some(7));
        minutes.push(103, Some(0));
        minutes.push(102, Some(9));
        minutes.push(104, None);
        assert_eq!(minutes.known(), [(6_000, 7), (6_180, 0)]);
        assert_eq!(minutes.series(4).values(), [None, None, Some(0.0), None]);
        minutes.push(104 + 2 * KEPT as i64, Some(1));
        assert_eq!(minutes.values.len(), 1, "what lies too far back is forgotten");
        for minute in 0..2 * KEPT as i64 {
            minutes.push(200_000 + minute, Some(1));
        }
        assert_eq!(minutes.values.len(), KEPT);
        assert!(minutes.values.capacity() < KEPT + KEPT / 10, "room for {}", minutes.values.capacity());
    }

    #[test]
    fn minutes_of_a_clock_that_was_far_ahead_go_when_it_is_set_right() {
        let mut minutes = Minutes::default();
        assert!(minutes.push(100_000, Some(7)) && minutes.push(100_001, Some(8)));
        assert!(!minutes.push(100_001 - SET_BACK + 1, Some(9)), "a little back");
        assert!(
            minutes.push(1_000, Some(9)),
            "far back: it is right now, or was before, and nothing of the two goes together"
        );
        assert!(minutes.push(1_001, Some(10)));
        assert_eq!(minutes.known(), [(60_000, 9), (60_060, 10)]);
    }

    #[test]
    fn forecast_is_made_when_a_step_ends() {
        let json = r#"{"kind":"random-walk","step_s":300,"horizon":2,"parameters":{}}"#;
        let model = Fitted::parse(json).expect("it makes sense");
        let forecast = |minutes: &Minutes| {
            let (series, end) = read_by(&model, minutes)?;
            expected(&watched(300), &model, &series, end)
        };
        let mut minutes = Minutes::default();
        let mut said = Vec::new();
        for minute in 0..10 {
            minutes.push(1_000 + minute, Some(4));
            said.extend(forecast(&minutes));
        }
        // Five minutes of 4 are 20, and 40 are expected of the next ten.
        let expected = Forecast { quota: "gpus".into(), tokens: 40, micros: 605_000_000 };
        assert_eq!(said, [expected.clone(), expected]);
        minutes.push(1_010, None);
        for minute in 11..15 {
            minutes.push(1_000 + minute, Some(4));
        }
        assert_eq!(forecast(&minutes), None, "the last step has a gap");
    }

    #[test]
    fn model_that_makes_no_sense_leaves_the_one_before() {
        let path = std::env::temp_dir().join(format!("slackline-demand-{}.json", std::process::id()));
        let good = r#"{"kind":"ewma","step_s":60,"horizon":1,"parameters":{"weight":0.5}}"#;
        let desk = Arc::new(DemandDesk::new(vec![Watched { model: Some(path.clone()), ..watched(60) }]));
        let mailbox = Arc::new(Mailbox::new());
        let mut forecaster = Loop { models: vec![None], desk, mailbox, before: None };

        forecaster.load();
        assert_eq!(forecaster.models, [None], "the file is missing");
        std::fs::write(&path, good).expect("it is written");
        forecaster.load();
        assert!(forecaster.models[0].is_some());
        for bad in ["", &good.replace("0.5", "NaN"), &good.replace(":60", ":120")] {
            std::fs::write(&path, bad).expect("it is written");
            forecaster.load();
            assert!(forecaster.models[0].is_some(), "{bad}");
        }
        std::fs::remove_file(&path).expect("it is removed");
        forecaster.load();
        assert!(forecaster.models[0].is_some());
    }
}
