//! Names of the values of an enumeration, as options and reports have them.

/// Writes and reads the values of an enumeration by these names.
macro_rules! named {
    ($type:ident is a $what:literal: $one:ident $name:literal $(, $other:ident $others:literal)*) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    Self::$one => $name,
                    $(Self::$other => $others,)*
                })
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $name => Ok(Self::$one),
                    $($others => Ok(Self::$other),)*
                    _ => {
                        let names = [$name $(, $others)*].join(" or ");
                        Err(format!("{text:?} is no {}: use {names}", $what))
                    }
                }
            }
        }
    };
}
pub(crate) use named;
