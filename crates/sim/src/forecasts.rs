//! Models that are wrong: in half of the runs, sites are told to expect what has nothing to do with their demand.
//!
//! A forecast decides when tokens move, never what exists or what is granted. So all invariants hold with any. It is drawn from a
//! generator of its own: in the other runs nothing changes.

use slackline_core::api::{Forecast, Request};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::stats::Rng;

use crate::quotas::KINDS;
use crate::state::post::Purpose;
use crate::state::timer::Timer;
use crate::state::{Phase, Simulation};
use crate::world::World;

/// The time from one forecast to the next, in the mean.
const PAUSE: u64 = 2 * SECOND;
/// The quotas of which a site is told something at a time.
const QUOTAS: usize = 3;

impl Simulation {
    /// Begins to tell forecasts, in a run that has some.
    pub(crate) fn begin_forecasts(&mut self, world: &mut World) {
        if self.settings.forecasts.is_some() {
            world.wake_at(5 * SECOND, Timer::Forecast.token());
        }
    }

    /// Tells a site what to expect, and comes again.
    pub(crate) fn tell_forecasts(&mut self, world: &mut World) {
        let Some(seed) = self.settings.forecasts.filter(|_| self.phase == Phase::Faults) else { return };
        let mut rng = Rng::new(seed ^ world.now());
        let site = rng.below(world.len() as u64) as usize;
        let forecasts: Vec<Forecast> = (0..QUOTAS).map(|_| self.draw_forecast(&mut rng)).collect();
        let now = world.now();
        self.trace(world, format_args!("site {site} is told to expect {forecasts:?}"));
        self.ask_site(world, now, site, Purpose::Look, Request::Expect(forecasts));
        world.wake_at(now + PAUSE / 2 + rng.below(PAUSE), Timer::Forecast.token());
    }

    fn draw_forecast(&mut self, rng: &mut Rng) -> Forecast {
        let kind = KINDS[rng.below(KINDS.len() as u64) as usize];
        let (tokens, probe) = match rng.below(5) {
            0 => (0, "forecast: nothing"),
            1 => (rng.below(kind.limit as u64) as i64, "forecast: up to all tokens"),
            2 => (kind.limit.saturating_mul(1_000), "forecast: a thousand times all tokens"),
            3 => (i64::MAX, "forecast: senseless"),
            _ => (i64::MIN, "forecast: senseless"),
        };
        self.probes.hit(probe);
        let micros = [0, 10 * MILLISECOND, SECOND, 20 * SECOND][rng.below(4) as usize];
        Forecast { quota: kind.name.to_owned(), tokens, micros }
    }
}
