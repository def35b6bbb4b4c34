//! What a load makes each site do, counted by the simulator itself: a world in which nothing costs time but one term.

use slackline_core::api::{Readiness, Response};
use slackline_core::machine::ClientId;
use slackline_session::time::Time;
use slackline_sim::Costs;
use slackline_sim::world::{Host, Options, World};

use super::fit::{Counts, TERMS};
use super::load::{Caller, Load};

/// The number of requests that are counted.
const REQUESTS: u64 = 400;
/// Between sites, and between a client's answer and its next request, in microseconds.
const PAUSE: u64 = 100;
/// The time for which sites are watched without load, in microseconds: what they do of themselves is not the load's.
const IDLE: u64 = 2_000_000;
/// The time that anything may take, in microseconds.
const PATIENCE: u64 = 120_000_000;

/// A world in which each thing of one term takes a microsecond.
fn unit(term: usize) -> Costs {
    let nanos = |of: usize| if of == term { 1_000 } else { 0 };
    Costs {
        input_ns: nanos(0),
        operation_ns: nanos(1),
        object_ns: nanos(2),
        send_ns: nanos(3),
        byte_ns: nanos(4),
        ..Costs::NONE
    }
}

/// The client.
struct Client {
    /// Its requests.
    caller: Caller,
    /// Requests that were answered since the caller is ready.
    done: u64,
    /// The number of those that are wanted.
    most: u64,
    /// The first thing that went wrong.
    failure: Option<String>,
}

impl Host for Client {
    fn wake(&mut self, world: &mut World, _: u64) {
        match self.caller.request(Time(world.now())) {
            Ok(request) => world.request(world.now(), 0, ClientId(1), request),
            Err(failure) => self.failure = Some(failure),
        }
    }

    fn respond(&mut self, world: &mut World, _: usize, _: ClientId, response: Response) {
        let was_going = self.caller.is_going();
        match self.caller.take(response, Time(world.now())) {
            Ok(true) => self.done += u64::from(was_going),
            Ok(false) => return,
            Err(failure) => self.failure = Some(failure),
        }

        // When it is ready it waits, so that the sites can be watched doing nothing.
        let begins = !was_going && self.caller.is_going();
        if self.failure.is_none() && !begins && self.done < self.most {
            world.wake_at(world.now() + PAUSE, 0);
        }
    }
}

/// Counts what one request of a load makes each of two sites do; the client is at the first.
///
/// # Errors
///
/// The load cannot be carried out.
pub(super) fn count(load: &Load) -> Result<[Counts; 2], String> {
    let (mut here, mut there) = ([0.0; TERMS], [0.0; TERMS]);
    for (term, (here, there)) in here.iter_mut().zip(&mut there).enumerate() {
        [*here, *there] = count_term(load, term)?;
    }
    Ok([here, there])
}

/// The same, in one term alone.
fn count_term(load: &Load, term: usize) -> Result<[f64; 2], String> {
    let mut world = World::new(Options { costs: unit(term), ..Options::uniform(2, PAUSE, 1) });
    // Named as the callers of a real site are, so that rows are as long.
    let caller = Caller::new(load.kind, "a-00-00".into(), world.id(0));
    let mut client = Client { caller, done: 0, most: REQUESTS, failure: None };
    let pass = |world: &mut World, client: &mut Client, until: &dyn Fn(&World, &Client) -> bool| {
        let end = world.now() + PATIENCE;
        while !until(world, client) {
            if let Some(failure) = client.failure.take() {
                return Err(failure);
            }
            if world.now() >= end {
                return Err(format!("{} takes too long in virtual time", load.name));
            }
            world.run(client, world.now() + 10_000);
        }
        Ok(())
    };

    let is_ready = |world: &World, at| world.node(at).is_some_and(|node| node.readiness() == Readiness::Ready);
    pass(&mut world, &mut client, &|world, _| is_ready(world, 0) && is_ready(world, 1))?;
    world.wake_at(world.now(), 0);
    pass(&mut world, &mut client, &|_, client| client.caller.is_going())?;

    let worked = |world: &World| [world.worked(0) as f64, world.worked(1) as f64];
    let after = |micros: u64, from: u64| move |world: &World, _: &Client| world.now() >= from + micros;

    // Until what getting ready brought with it is over.
    let now = world.now();
    pass(&mut world, &mut client, &after(IDLE, now))?;

    // What the sites do of themselves in this time is taken off what they do under load.
    let (before, began) = (worked(&world), world.now());
    pass(&mut world, &mut client, &after(IDLE, began))?;
    let (between, begins) = (worked(&world), world.now());
    world.wake_at(begins, 0);
    pass(&mut world, &mut client, &|_, client| client.done >= REQUESTS)?;
    // What follows a request later is counted too.
    let settles = world.now();
    pass(&mut world, &mut client, &after(IDLE, settles))?;
    let (ended, share) = (worked(&world), (world.now() - begins) as f64 / (begins - began) as f64);
    let each = |site: usize| (ended[site] - between[site] - share * (between[site] - before[site])) / REQUESTS as f64;

    // Ticks do not come evenly; a tenth is not the load's.
    let rounded = |count: f64| if count < 0.1 { 0.0 } else { (count * 10.0).round() / 10.0 };
    Ok([rounded(each(0)), rounded(each(1))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::load::{Kind, LOADS};

    #[test]
    fn loads_differ_in_what_they_say() {
        for load in &LOADS {
            let [here, there] = count(load).unwrap_or_else(|problem| panic!("{}: {problem}", load.name));
            let [input, operation, object, send, byte] = here;
            assert!(input >= 1.0 && send >= 1.0, "{load:?}: {here:?}");
            match load.kind {
                Kind::Acquire { operations } => {
                    assert_eq!((operation, object), (operations as f64, 0.0), "{load:?}");
                    assert!(byte > 20.0 && there[0] == 0.0, "{load:?}: {here:?} {there:?}");
                }
                Kind::Read { objects } => assert_eq!([operation, object, byte], [0.0, objects as f64, 0.0], "{load:?}"),
                Kind::Validate { objects } => assert_eq!([operation, object], [1.0, objects as f64], "{load:?}"),
                Kind::Write { objects, bytes, region } => {
                    let home = [here, there][usize::from(region)];
                    assert_eq!([operation, home[2]], [1.0, objects as f64], "{load:?}: {here:?} {there:?}");
                    assert!(home[4] > (objects * bytes) as f64, "{load:?}: {home:?}");
                    assert_eq!(there[0] > 0.0, region == 1, "{load:?}: {there:?}");
                }
            }
        }
    }
}
