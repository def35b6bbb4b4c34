//! A run: clients and a system, until all that was asked is answered.

use super::ask::{Fault, System};
use super::clients::Clients;

/// When nothing is to be done next, answers are looked for after so long, in microseconds.
const LOOK: u64 = 100_000;

/// Plays a run, with faults at times since its beginning, and checks the books.
pub(super) fn play(system: &mut dyn System, clients: &mut Clients, faults: &[(u64, Fault)]) -> Result<(), String> {
    let began = system.now();
    let mut heard = Vec::new();
    let mut faults_left = faults.iter().peekable();
    while !clients.is_done(system.now()) {
        let now = system.now();
        let mut next = clients.next_at();
        if let Some((at, _)) = faults_left.peek() {
            next = next.min(began + at);
        }
        let until = if next > now { next } else { now + LOOK };

        system.advance(until, &mut heard);
        for answer in heard.drain(..) {
            clients.hear(system, answer)?;
        }
        while let Some((_, fault)) = faults_left.next_if(|(at, _)| began + at <= system.now()) {
            clients.strike(*fault);
            system.strike(*fault);
        }
        clients.act(system);
        system.audit()?;
    }
    clients.drain(system)?;

    // What clients of a lost region were granted they may not have heard.
    let is_known = !faults.iter().any(|(_, fault)| matches!(fault, Fault::Lose(_)));
    system.close(is_known.then(|| clients.ledger.held()))
}
