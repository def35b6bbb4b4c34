//! A fault that needs exact timing: a site has lost its storage, and the home of a call that rests on what was there has not
//! heard of it. It goes by what it was told before ([`VOUCHED`]), and issues rights that outlast that.
//!
//! ```text
//!   lost     ✕ joins as new storage          changes nothing for LEASE │ the loss is accepted, a write
//!   keeper   ─ told "all is well" ── VOUCHED ─┤
//!   reader     asks the keeper, and gets rights ┄┄ uses them ┄┄┄┄┄┄┄┤
//! ```
//!
//! If the lost site's successor wrote before the rights are over, the reader would go on with what the call was before.

use slackline_core::clock::MILLISECOND;
use slackline_core::warranty::{LEASE, LONGEST, VOUCHED};

use crate::calls::{Functions, REGISTERS};
use crate::state::Simulation;
use crate::state::faults::Unheard;
use crate::state::timer::Timer;
use crate::world::World;

/// The time between two reads or writes.
const STEP: u64 = 200 * MILLISECOND;
/// For how long: a keeper that was suspended might go by what it was told, and issue rights, for longer than the lost site waits.
const LASTS: u64 = LEASE + VOUCHED + LONGEST;

impl Simulation {
    /// From now on calls are read that rest on the lost site.
    pub(crate) fn read_what_was_lost(&mut self, world: &mut World, lost: usize, keeper: usize) {
        if !self.settings.has_warranties || self.faults.losses.unheard.is_some() {
            return;
        }

        self.trace(world, format_args!("site {keeper} has not heard that site {lost} has lost its storage"));
        self.faults.losses.unheard = Some(Unheard { lost, keeper, since: world.now() });
        world.wake_at(world.now() + STEP, Timer::Unheard.token());
    }

    /// Somebody reads a call under a right, or renews that; later on somebody at the lost site writes what the call read.
    pub(crate) fn meet_unheard(&mut self, world: &mut World) {
        let now = world.now();
        let Some(Unheard { lost, keeper, since }) = self.faults.losses.unheard else { return };
        if self.faults.healed || now > since + LASTS {
            self.faults.losses.unheard = None;
            return;
        }

        // Neither of the two: it reads by rights alone. It goes on asking for new ones: the keeper may have been suspended.
        let sites = world.len() as u64;
        let readers: Vec<usize> = (0..world.len()).filter(|site| ![lost, keeper].contains(site)).collect();
        if readers.is_empty() {
            return;
        }
        let reader = readers[self.rng.below(readers.len() as u64) as usize];
        let renews = now < since + VOUCHED || self.rng.one_in(2);

        let functions = Functions { sites };
        for (call, registers) in (0..REGISTERS).flat_map(|number| functions.of_registers(number)) {
            let rests = registers.into_iter().find(|read| usize::from(read.home) == lost);
            let Some(read) = rests.filter(|_| usize::from(call.home) == keeper) else { continue };
            self.begin_call(world, reader, call, renews);
            if now >= since + VOUCHED {
                self.begin_for_one(world, lost, read, true);
            }
        }

        world.wake_at(now + STEP, Timer::Unheard.token());
    }
}
