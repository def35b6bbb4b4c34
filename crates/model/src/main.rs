//! `slackline-model [STATES [WORD]]`: explores every setup, or those with this word in their names, up to this number of states
//! each (3,000,000 by default), and prints the results. A setup in which something never happens that is to happen in it shows nothing:
//! that is a failure too, unless it was explored less far than by default.

use std::process::ExitCode;

use slackline_model::setups;

/// The number of states of each setup by default.
const STATES: usize = 3_000_000;

fn main() -> ExitCode {
    // A failed assertion of the product is a finding, and is printed as one.
    std::panic::set_hook(Box::new(|_| {}));

    let mut arguments = std::env::args().skip(1);
    let most = match arguments.next().map(|states| states.parse()) {
        None => STATES,
        Some(Ok(states)) => states,
        Some(Err(_)) => {
            eprintln!("usage: slackline-model [STATES [WORD]]   (STATES is a number, {STATES} by default)");
            return ExitCode::from(2);
        }
    };
    let word = arguments.next().unwrap_or_default();

    let (mut passed, mut failed) = (0, 0);
    for setup in setups().into_iter().filter(|setup| setup.name().contains(&word)) {
        let explored = setup.explore(most);
        let reach = if explored.exhausted { "all of them" } else { "breadth-first, not exhausted" };
        match explored.violation {
            None if !explored.missed.is_empty() && (explored.exhausted || most >= STATES) => {
                failed += 1;
                let (name, unique, missed) = (explored.name, explored.unique, explored.missed.join(", "));
                println!("{name}: FAILS: in {unique} unique states ({reach}) this never happens: {missed}");
            }
            None => {
                passed += 1;
                let missed = if explored.missed.is_empty() { "" } else { "; not seen so far: " };
                let missed = format!("{missed}{}", explored.missed.join(", "));
                println!("{}: {} unique states ({reach}): holds{missed}", explored.name, explored.unique);
            }
            Some(violation) => {
                failed += 1;
                println!("{}: {} FAILS after {} steps:", explored.name, violation.property, violation.trace.len());
                violation.trace.iter().enumerate().for_each(|(number, line)| println!("  {:>2}. {line}", number + 1));
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
