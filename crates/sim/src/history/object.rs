//! What transactions use: names, each as one shape.

/// A name that transactions use, as its [`History`](super::History) numbers it: of a list, a register, a prefix or a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub(super) u32);

/// What an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    List,
    Register,
    Set,
    Counter,
    Home,
}

/// One key as one shape.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Object(u32);

impl Object {
    /// Where an edge needs none.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// A key as a shape.
    pub(super) fn new(key: Key, shape: Shape) -> Self {
        Self(key.0 << 3 | shape as u32)
    }

    /// The key.
    pub(super) fn key(self) -> Key {
        Key(self.0 >> 3)
    }

    /// The shape.
    pub(super) fn shape(self) -> Shape {
        [Shape::List, Shape::Register, Shape::Set, Shape::Counter, Shape::Home][self.0 as usize & 7]
    }
}
