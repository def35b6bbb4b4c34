//! The release rule: nothing leaves a site before everything that was handed out before it is durable.

use slackline_core::machine::Seq;

/// The invariant's name.
pub const NAME: &str = "release rule";

/// A message that was made when the log had got to `position` leaves a site whose log is durable up to `durable`.
pub fn check(position: Seq, durable: Seq) -> Result<(), String> {
    if position > durable {
        return Err(format!(
            "a message that rests on batch {position} leaves while batch {durable} is the last durable"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_message_is_noticed() {
        assert_eq!(check(7, 7), Ok(()));
        assert!(check(8, 7).is_err());
    }
}
