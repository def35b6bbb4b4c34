//! Members that join while faults strike: in some runs one or two of five sites are no members at first.
//!
//! Their configurations name themselves and all before them, those of the others do not name them. Somebody asks for one to be a
//! member, at a site that may be down, again and again until it is; then for the next. Each run ends only when all have joined.

use slackline_core::api::{Operation, SeatChange};
use slackline_core::clock::SECOND;

use crate::state::{Phase, Simulation};
use crate::world::World;

/// The time that such a request may take.
const PATIENCE: u64 = 10 * SECOND;

impl Simulation {
    /// Asks for the next site to be a member, if it is time.
    pub(crate) fn let_join(&mut self, world: &World) {
        let now = world.now();
        if self.phase == Phase::Over || now < self.faults.joining.unwrap_or(u64::MAX) {
            return;
        }
        let Some(next) = (self.settings.first..world.len()).find(|site| !is_member(world, *site)) else {
            self.faults.joining = None;
            return;
        };

        // Soon again, so that requests for the same meet, and for the next before every quota has recorded the last.
        self.faults.joining = Some(now + SECOND / 8 + self.rng.below(3 * SECOND));
        let client = self.rng.below(self.clients.all.len() as u64) as usize;
        let at = self.rng.below(self.settings.first as u64) as usize;
        let operation =
            Operation::Seat { site: world.id(next), change: SeatChange::Joins, label: format!("site {next}") };
        self.submit(world, client, at, operation, PATIENCE);
    }
}

/// True if some site knows that one is a member.
fn is_member(world: &World, site: usize) -> bool {
    let knows = |other: usize| {
        let roster = world.node(other).map(|node| node.roster());
        roster.is_some_and(|roster| roster.number > 0 && roster.members().any(|member| member == world.id(site)))
    };
    (0..world.len()).any(knows)
}
