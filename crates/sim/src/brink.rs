//! Faults that need exact timing: a transaction that rests on a right is kept from a participant until the brink of its
//! time, or beyond, while somebody else writes the object under the right.
//!
//! ```text
//!   coordinator ── Prepare, held back ────────────────────────▶ participant: in time, by its clock?
//!   issuer      ── Revoke ──▶ coordinator: pinned, stays silent
//!   issuer:        the right is over, the write is done         a reader comes before the Prepare does
//! ```
//!
//! If the participant took the part after the write was done, the reader would have seen the one and not the other, and the
//! transaction would be both before the write and after it. By chance alone a message is hardly ever held back for just so
//! long, and hardly ever on clocks that stand just so.
//!
//! | way | what happens |
//! | --- | --- |
//! | [`Way::Late`] | the message arrives after its deadline, when the write is done; where wall clocks err, that of the participant is set back meanwhile |
//! | [`Way::Last`] | it arrives in the last moment that the participant's clock allows, or that it would allow without its margin; the clocks of participant and issuer are at the two ends of ε, and the issuer's monotonic clock runs fast |
//! | [`Way::Anew`] | it arrives in time, but its coordinator has crashed when the right was asked back, and is there again |
//! | [`Way::Fetched`] | it arrives in time, and storage takes until after the deadline to fetch what it needs |
//!
//! In one more way no time runs out, [`Way::Overtaken`]: a call has come to read another register, and the home of the former
//! one, which has prepared to forget the call, is not told how it ended. Others write until the call would read the former
//! register again, and then somebody writes that one. If its home noted the call before it carried out the older part, it
//! would have forgotten it.

use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::OperationId;
use slackline_core::machine::{Effect, Input};
use slackline_core::node::Node;
use slackline_core::object::ObjectKey;
use slackline_core::object::message::{Message, Prepare};
use slackline_core::peer::{Body, PeerMessage};

use crate::calls::{Functions, REGISTERS, picked, register};
use crate::clock::{EPOCH, EPSILON};
use crate::state::brink::{Held, Way};
use crate::state::faults::Fault;
use crate::state::timer::Timer;
use crate::state::{Phase, Simulation};
use crate::world::{Keep, World};

/// The shortest and the longest time to its deadline for which a message is held back.
const SHORTEST: u64 = 20 * MILLISECOND;
const LONGEST: u64 = 3 * SECOND;
/// A monotonic clock that runs fast must have gained more than the margins when the right ends.
const GAINED: u64 = 400 * MILLISECOND;
/// By how much it runs fast, in millionths.
const FAST: i64 = 200_000;
/// What a site takes to crash, to come back and to be asked for a right once more.
const BACK: u64 = 900 * MILLISECOND;
/// Within so long all sites have compared their clocks.
const COMPARED: u64 = SECOND + 200 * MILLISECOND;
/// Readers that come in the time that matters.
const READERS: u64 = 8;
/// The most coordinators that crash this way in a run.
const CRASHES: u32 = 4;
/// For how long nobody tells a home how a transaction ended; how many write in this time, and how long it takes them.
const UNTOLD: u64 = 600 * MILLISECOND;
const WRITERS: u64 = 4;
const WRITTEN: u64 = 150 * MILLISECOND;

/// The transaction that a message is about.
fn about(message: &PeerMessage) -> Option<OperationId> {
    let Body::Txn(message) = &message.body else { return None };
    match &**message {
        Message::Prepare(prepare) => Some(prepare.id),
        Message::Inquire { id, .. } | Message::Inquired { id, .. } | Message::Decide { id, .. } => Some(*id),
        _ => None,
    }
}

fn prepare_in(message: &PeerMessage) -> Option<&Prepare> {
    let Body::Txn(message) = &message.body else { return None };
    if let Message::Prepare(prepare) = &**message { Some(prepare) } else { None }
}

/// Which register decides what a call reads, if this part only says that the call does not read one of this home any more;
/// and that one.
fn moved(sites: u64, home: usize, prepare: &Prepare) -> Option<(ObjectKey, ObjectKey)> {
    let functions = Functions { sites };
    let part = &prepare.part;
    if !part.writes.is_empty() || !part.depends.is_empty() {
        return None;
    }

    let number = (0..REGISTERS).find(|number| part.forgets.contains(&functions.pick(*number)))?;
    let mut others = [0, 1].map(|parity| register(sites, picked(number, parity))).into_iter();
    Some((register(sites, number), others.find(|key| usize::from(key.home) == home)?))
}

impl Simulation {
    /// Looks at what a site has just handed out: whether a transaction can be brought to its brink, or goes on.
    pub(crate) fn look_at_brink(&mut self, world: &mut World, site: usize, effects: &[Effect<Node>]) {
        if !self.settings.has_warranties || self.phase != Phase::Faults {
            return;
        }

        // One at a time: what happens to it must be what decides. The next one may be when nobody can see anything of it any more.
        if self.faults.brink.held.as_ref().is_some_and(|held| held.until + EPSILON as u64 <= world.now()) {
            self.faults.brink.held = None;
        }

        for effect in effects {
            let Effect::Send { to, message } = effect else { continue };
            let Ok(to) = self.settings.members.binary_search(to) else { continue };
            if self.faults.brink.held.is_some() {
                self.crash_when_asked_back(world, to, message);
            } else if let Some(prepare) = prepare_in(message).filter(|_| self.faults.brink.next <= world.now()) {
                match moved(self.settings.members.len() as u64, to, prepare) {
                    Some((under, written)) if self.faults.brink.rng.one_in(3) => {
                        self.leave_untold(world, site, to, prepare.id, (under, written));
                    }
                    _ => self.hold_back(world, site, to, prepare),
                }
            }
        }
    }

    /// Sees to it that a participant does not hear for a while how a transaction ended.
    fn leave_untold(
        &mut self,
        world: &mut World,
        coordinator: usize,
        participant: usize,
        id: OperationId,
        (under, written): (ObjectKey, ObjectKey),
    ) {
        let now = world.now();
        let until = now + UNTOLD + WRITTEN;
        self.trace(
            world,
            format_args!("{id} is not told to site {participant}; {under:?} and {written:?} are written"),
        );
        let (way, has_left, has_crashed) = (Way::Overtaken, false, false);
        let held = Held { way, id, coordinator, participant, under, written, until, has_left, has_crashed };
        self.faults.brink.held = Some(held);

        self.faults.brink.next = until + self.faults.brink.rng.below(2 * SECOND);

        // The writers come while the home does not know how the transaction ended, those of what it writes in the last moments of that.
        for writer in 1..=WRITERS {
            world.wake_at(now + writer * UNTOLD / (WRITERS + 1), Timer::Brink(true).token());
            world.wake_at(now + UNTOLD + writer * WRITTEN / (WRITERS + 1), Timer::Brink(false).token());
        }
    }

    /// Holds a message back, if its transaction rests on a right.
    fn hold_back(&mut self, world: &mut World, coordinator: usize, participant: usize, prepare: &Prepare) {
        let Some(node) = world.node(coordinator) else { return };
        let Some((under, ends_it)) = node.chapters().txns.rests_on(prepare.id) else { return };
        let (under, now) = (under.clone(), world.now());

        let Some((name, _)) = prepare.part.writes.first() else { return };
        let written = ObjectKey::new(participant as u16, name.clone());
        let deadline = prepare.deadline - EPOCH;
        let left = u64::try_from(deadline).unwrap_or(0).saturating_sub(now);

        let needs_storage = !prepare.part.reads.is_empty();
        let issuer = usize::from(under.home);
        // Of a site's two clocks at most one errs in all the run: what was granted by one that did may not have ended yet.
        let may_be_fast =
            (self.faults.sites[issuer].errs_mono || self.settings.txns_from == 0) && !self.faults.errs_walls;
        let is_calm = !self.faults.errs(issuer) && !self.faults.errs(participant) && may_be_fast;

        // A site that crashes must not take with it what alone betrays an impostor, and is not crashed too often; and a right that ends
        // at another time than the transaction's deadline cannot bring it to its brink.
        let way = match self.faults.brink.rng.below(8) {
            _ if !(SHORTEST..LONGEST).contains(&left) || issuer == participant => return,
            0..=1 if left > BACK && self.faults.brink.crashes < CRASHES && self.faults.may_crash() => Way::Anew,
            _ if !ends_it => return,
            0..=3 if left > GAINED && is_calm => Way::Last,
            4..=5 if needs_storage => Way::Fetched,
            _ => Way::Late,
        };
        let (deadline, epsilon) = (now + left, EPSILON as u64);

        // Not much later: a participant that settles another transaction with a later deadline refuses those before it.
        let more = if self.faults.brink.rng.one_in(4) { 400 } else { 40 };
        let after = deadline + 4 * epsilon + 10 * MILLISECOND + self.faults.brink.rng.below(more * MILLISECOND);
        // From when on somebody may have seen the write, and when the participant is to judge.
        let (from, until) = match way {
            Way::Late | Way::Fetched => (deadline + 3 * epsilon, after),
            // In time, or late by the error that its clock has: it must not seem to be in time.
            Way::Last if self.faults.brink.rng.one_in(2) => (deadline - epsilon, deadline - MILLISECOND),
            Way::Last => (deadline, deadline + epsilon - MILLISECOND),
            Way::Anew => (now + left / 3, deadline - 2 * epsilon),
            Way::Overtaken => return,
        };

        if way == Way::Last {
            self.part_clocks(world, issuer, participant, until - now);
        }
        if way == Way::Late && self.faults.errs_walls {
            self.mislead(world, (coordinator, participant), left, until - now);
        }

        self.trace(world, format_args!("{} is held back until {until}: {way:?}, under {under:?}", prepare.id));
        let (id, has_left, has_crashed) = (prepare.id, false, false);
        let held = Held { way, id, coordinator, participant, under, written, until, has_left, has_crashed };
        self.faults.brink.held = Some(held);

        self.faults.brink.next = until + self.faults.brink.rng.below(2 * SECOND);
        world.wake_at(now, Timer::Brink(true).token());
        for reader in 1..READERS {
            world.wake_at(from + reader * (until - from) / READERS, Timer::Brink(false).token());
        }
    }

    /// The participant's wall clock is set back, so that a message that arrives after its deadline seems to be in time. `left`
    /// is what is left of that, and the message is judged in `lasts`.
    fn mislead(&mut self, world: &mut World, (coordinator, participant): (usize, usize), left: u64, lasts: u64) {
        let may_compare = left > COMPARED && self.faults.may_step(coordinator);
        if may_compare && self.faults.brink.rng.one_in(2) {
            // The coordinator's is set right, and the participant's wrong, just before the message arrives.
            self.set_wall_back(world, coordinator, lasts - 5 * MILLISECOND);
            self.faults.passes_on = Some((coordinator, participant));
        } else if self.faults.may_step(participant) {
            self.set_wall_back(world, participant, lasts + SECOND);
            // By as much, so that the two agree with each other.
            if left > COMPARED && self.faults.may_step(coordinator) {
                self.set_wall_back(world, coordinator, lasts + SECOND);
            }
        }
    }

    /// The issuer's wall clock goes to one end of ε, and its other clock runs fast; the participant's goes to the other end.
    fn part_clocks(&mut self, world: &mut World, issuer: usize, participant: usize, lasts: u64) {
        // Both stay within what sites are told that clocks may err: the margins must bear it.
        let now = world.now();
        world.clock(issuer).set_wall(now, EPSILON, 0);
        world.clock(issuer).set_mono_drift(now, FAST);
        world.reschedule(issuer);
        world.clock(participant).set_wall(now, -EPSILON, 0);
        for site in [issuer, participant] {
            self.begin(world, Fault::Clock { site }, lasts + 100 * MILLISECOND);
        }
    }

    /// The coordinator crashes, if this message asks it to give up what its transaction rests on.
    fn crash_when_asked_back(&mut self, world: &mut World, to: usize, message: &PeerMessage) {
        let Body::Txn(message) = &message.body else { return };
        let Message::Revoke { rights, .. } = &**message else { return };
        let may_crash = self.faults.may_crash();

        let Some(held) = &mut self.faults.brink.held else { return };
        let is_asked = held.coordinator == to && rights.iter().any(|(name, _)| *name == held.under.name);
        if !is_asked
            || held.way != Way::Anew
            || !held.has_left
            || held.has_crashed
            || !may_crash
            || world.node(to).is_none()
        {
            return;
        }

        held.has_crashed = true;
        self.faults.brink.crashes += 1;
        let down_for = 5 * MILLISECOND + self.faults.brink.rng.below(20 * MILLISECOND);
        self.probes.hit("fault: holder starts again when a right is asked back");
        self.crash_for(world, to, Keep::Everything, down_for);
    }

    /// Somebody writes at a site what others are likely to hold rights over, and it knows of nobody's doubts about its clock yet.
    pub(crate) fn meet_at_home(&mut self, world: &mut World, site: usize) {
        for key in self.popular_at(site) {
            self.begin_for_one(world, site, key, true);
        }
    }

    /// A writer of what the transaction rests on begins, or a reader of what it writes.
    pub(crate) fn meet_at_brink(&mut self, world: &mut World, writes: bool) {
        let Some(held) = self.faults.brink.held.clone().filter(|held| held.until > world.now()) else { return };

        // Where a call has come to read another register, both come as writers.
        let key = if writes { held.under } else { held.written };
        let writes = writes || held.way == Way::Overtaken;
        let at = usize::from(key.home);
        self.begin_for_one(world, at, key, writes);
    }

    /// Until when the network keeps a message.
    pub(crate) fn kept_by_network(&mut self, to: usize, message: &PeerMessage) -> u64 {
        let Some(held) = &mut self.faults.brink.held else { return 0 };
        if held.participant != to || about(message) != Some(held.id) {
            return 0;
        }
        // What it says comes first; questions about it come after, in the order in which they were sent.
        let is_prepare = prepare_in(message).is_some();
        held.has_left |= is_prepare;

        match held.way {
            Way::Fetched if is_prepare => 0,
            Way::Fetched => held.until + 1,
            Way::Overtaken if is_prepare => 0,
            Way::Overtaken => {
                self.probes.hit("fault: outcome held back");
                held.until - WRITTEN
            }
            way => {
                if is_prepare {
                    self.probes.hit(match way {
                        Way::Late => "fault: prepare after its deadline",
                        Way::Last => "fault: prepare in the last moment",
                        _ => "fault: prepare held back",
                    });
                }
                held.until
            }
        }
    }

    /// Returns the time that storage takes to fetch what a message needs.
    pub(crate) fn kept_by_storage(&mut self, world: &World, site: usize, input: &Input<Node>) -> u64 {
        let Input::Message { message, .. } = input else { return 0 };
        let Some(held) = &self.faults.brink.held else { return 0 };
        let is_held = held.way == Way::Fetched && held.participant == site;
        if !is_held || prepare_in(message).is_none_or(|prepare| prepare.id != held.id) {
            return 0;
        }

        let takes = held.until.saturating_sub(world.now());
        if takes > 0 {
            self.probes.hit("fault: fetched after the deadline");
        }
        takes
    }
}
