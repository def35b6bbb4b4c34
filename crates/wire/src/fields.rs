//! Structs that have the same fields in core and on the wire: each list of fields stands once, for both directions.

use slackline_core::id::{Incarnation, Life, SessionId, SiteSet};

use crate::check::Invalid;

/// A field's content in core, which travels as a `W`.
pub(crate) trait Field<W>: Sized {
    fn to_wire(self) -> W;

    /// The content, or the problem with it; `name` is the field's.
    fn from_wire(wire: W, name: &str) -> Result<Self, Invalid>;
}

/// Makes conversions between structs of core and messages: `Core = Wire { same names; core_name = wire_name }`. What core keeps in one
/// field and the message in several stands behind `and`: `and field: Part { part_name = wire_name }`.
macro_rules! same_fields {
    ($(
        $core:ty = $wire:ty {
            $($field:ident),*
            $(; $($ours:ident = $theirs:ident),*)?
            $(and $group:ident: $part:ident { $($inner:ident = $flat:ident),* })?
        }
    )*) => {$(
        impl From<$core> for $wire {
            fn from(ours: $core) -> Self {
                use crate::fields::Field;
                Self {
                    $($field: ours.$field.to_wire(),)*
                    $($($theirs: ours.$ours.to_wire(),)*)?
                    $($($flat: ours.$group.$inner.to_wire(),)*)?
                }
            }
        }

        impl TryFrom<$wire> for $core {
            type Error = Invalid;

            fn try_from(wire: $wire) -> Result<Self, Invalid> {
                use crate::fields::Field;
                Ok(Self {
                    $($field: Field::from_wire(wire.$field, stringify!($field))?,)*
                    $($($ours: Field::from_wire(wire.$theirs, stringify!($theirs))?,)*)?
                    $($group: $part { $($inner: Field::from_wire(wire.$flat, stringify!($flat))?),* },)?
                })
            }
        }
    )*};
}

/// Makes conversions between enums with the same variants; on the wire there is `Unspecified` too.
macro_rules! same_variants {
    ($($core:ident = $module:ident::$wire:ident { $($variant:ident),* })*) => {$(
        impl crate::fields::Field<i32> for $core {
            fn to_wire(self) -> i32 {
                match self {
                    $($core::$variant => $module::$wire::$variant.into(),)*
                }
            }

            fn from_wire(wire: i32, name: &str) -> Result<Self, Invalid> {
                match $module::$wire::try_from(wire) {
                    $(Ok($module::$wire::$variant) => Ok($core::$variant),)*
                    Ok($module::$wire::Unspecified) => Err(Invalid::new(name, "is missing")),
                    Err(_) => Err(Invalid::new(name, "has an unknown value")),
                }
            }
        }
    )*};
}

/// Makes fields of values that travel as messages of their own.
macro_rules! nested {
    ($($core:ty = $wire:ty),*) => {$(
        impl crate::fields::Field<Option<$wire>> for $core {
            fn to_wire(self) -> Option<$wire> {
                Some(self.into())
            }

            fn from_wire(wire: Option<$wire>, name: &str) -> Result<Self, Invalid> {
                crate::check::convert(wire, name)
            }
        }
    )*};
}

/// Makes optional fields.
macro_rules! maybe {
    ($($core:ty = $wire:ty),*) => {$(
        impl crate::fields::Field<Option<$wire>> for Option<$core> {
            fn to_wire(self) -> Option<$wire> {
                self.map(Into::into)
            }

            fn from_wire(wire: Option<$wire>, name: &str) -> Result<Self, Invalid> {
                crate::check::optional(wire, name)
            }
        }
    )*};
}

/// Makes fields of lists of messages, each with the most entries that are taken.
macro_rules! lists {
    ($($core:ty = $wire:ty, at most $most:expr;)*) => {$(
        impl crate::fields::Field<Vec<$wire>> for Vec<$core> {
            fn to_wire(self) -> Vec<$wire> {
                self.into_iter().map(Into::into).collect()
            }

            fn from_wire(wire: Vec<$wire>, name: &str) -> Result<Self, Invalid> {
                crate::check::convert_all(wire, $most, name)
            }
        }
    )*};
}

pub(crate) use {lists, maybe, nested, same_fields, same_variants};

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Field<$type> for $type {
            fn to_wire(self) -> $type {
                self
            }

            fn from_wire(wire: $type, _: &str) -> Result<Self, Invalid> {
                Ok(wire)
            }
        }
    )*};
}

macro_rules! numbers {
    ($($core:ident = $wire:ty),*) => {$(
        impl Field<$wire> for $core {
            fn to_wire(self) -> $wire {
                self.0
            }

            fn from_wire(wire: $wire, _: &str) -> Result<Self, Invalid> {
                Ok(Self(wire))
            }
        }
    )*};
}

plain!(bool, u32, u64, i64, String, Option<u64>, Option<i64>);
numbers!(Incarnation = u32, Life = u64, SessionId = u64, SiteSet = u64);

/// The shortest number on the wire has 32 bits.
impl Field<u32> for u16 {
    fn to_wire(self) -> u32 {
        self.into()
    }

    fn from_wire(wire: u32, name: &str) -> Result<Self, Invalid> {
        wire.try_into().map_err(|_| Invalid::new(name, "is above 65535"))
    }
}
