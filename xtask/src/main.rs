//! `cargo xtask COMMAND`: the project's own commands. `verify` never writes to the checkout, `fix` does.

mod files;
mod measure;
mod mutants;
mod pages;
mod tidy;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  verify             formatting, layering, lints, every test, the docs: what CI runs (the README's test command)
  fix                formats, applies the lints' suggestions, and writes the golden scripts again
  tidy               the layering (which crate and which module may use which), and that the pages name what exists
  measure            how the code reads, as far as a script can see: lengths, comments, assertions, import circles
  mutants [NAME…]    plants each known bug (xtask/mutants/*.patch) into a copy, and runs the sweep that must catch it
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let passed = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["verify"] => verify::verify(),
        ["fix"] => verify::fix(),
        ["tidy"] => {
            let findings = tidy::tidy();
            findings.iter().for_each(|finding| eprintln!("{finding}"));
            findings.is_empty()
        }
        ["measure"] => match measure::measure() {
            Ok(()) => true,
            Err(error) => {
                eprintln!("{error}");
                false
            }
        },
        ["mutants", ref names @ ..] => mutants::mutants(names),
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            true
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    ExitCode::from(u8::from(!passed))
}

/// The root of the workspace.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("this crate lies in the workspace").to_path_buf()
}

/// The cargo that runs us.
fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(root());
    command
}
