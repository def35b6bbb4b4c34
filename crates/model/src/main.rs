//! `slackline-model [STATES [WORD]]`: explores every setup, or those with this word in their names, up to this number of states
//! each (3,000,000 by default), and prints the results.

use std::process::ExitCode;

use slackline_model::setups;

fn main() -> ExitCode {
    // A failed assertion of the product is a finding, and is printed as one.
    std::panic::set_hook(Box::new(|_| {}));

    let mut arguments = std::env::args().skip(1);
    let most = match arguments.next().map(|states| states.parse()) {
        None => 3_000_000,
        Some(Ok(states)) => states,
        Some(Err(_)) => {
            eprintln!("usage: slackline-model [STATES [WORD]]   (STATES is a number, 3000000 by default)");
            return ExitCode::from(2);
        }
    };
    let word = arguments.next().unwrap_or_default();

    let (mut passed, mut failed) = (0, 0);
    for setup in setups().into_iter().filter(|setup| setup.name().contains(&word)) {
        let explored = setup.explore(most);
        let reach = if explored.exhausted { "all of them" } else { "breadth-first, not exhausted" };
        match explored.violation {
            None => {
                passed += 1;
                println!("{}: {} unique states ({reach}): holds", explored.name, explored.unique);
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
