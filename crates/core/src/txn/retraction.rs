//! What a participant and the treaties at it both need to know: a retraction under way, and the rows of what a part brings and deletes.

use std::collections::BTreeSet;

use super::leaves::{Leaves, say};
use super::table::{Table, need_head, row_key, treaty_in_head};
use crate::id::{Incarnation, SiteId};
use crate::machine::KeySet;
use crate::object::message::Says;
use crate::object::treaty::{Treaty, treaty_name};
use crate::object::{Change, ObjectKey, Part, Value};
use crate::turn::Turn;

/// A treaty of this home that a leaf asks to retract, or asks about.
#[derive(Clone, Debug)]
pub(super) struct Retraction {
    /// The name of the treaty's object.
    pub(super) name: String,
    /// The making that is retracted.
    pub(super) nonce: u64,
    /// The homes that have asked for it, or whether it was done.
    pub(super) asked_by: BTreeSet<u16>,
    /// True if one of them has asked for it.
    pub(super) is_wanted: bool,
    /// True from when new rights over the treaty are blocked, and no part that reads it is prepared.
    pub(super) is_begun: bool,
    /// The monotonic time of the timer that counts; zero before the first. It has no other: leaves ask again and again.
    pub(super) look_at: u64,
}

/// The heads of the counters of the leaves that a part brings.
pub(super) fn note_needs(part: &Part, incarnation: Incarnation, set: &mut KeySet) {
    Leaves::names(part).for_each(|name| need_head(incarnation, name, set));
}

/// The treaties of this home that a part deletes.
pub(super) fn deleted_treaties(part: &Part) -> impl Iterator<Item = &String> {
    let deletes = part.writes.iter().filter(|(_, change)| matches!(change, Change::Delete));
    deletes.map(|(name, _)| name).filter(|name| treaty_name(name).is_some())
}

/// Tells the leaves of a treaty that is deleted in this call. As with any write no right over it is left, and they hear it when the
/// deletion is durable: they are free then. Where its row is not at hand they ask for themselves in a while.
pub(super) fn tell_deleted(turn: &mut Turn, table: Option<&Table>, name: &str) {
    let Some(table) = table.filter(|table| table.view.knows_head(&row_key(table.incarnation, name))) else { return };
    let head = table.view.head(&row_key(table.incarnation, name));
    let Some((nonce, homes)) = head.and_then(treaty_in_head) else { return };
    let me = turn.here.site.me;
    let making = (ObjectKey::new(me.region, name), nonce);
    for home in homes.into_iter().map(|(home, _)| home).chain([me.region]) {
        say(&mut turn.out, SiteId::new(home, me.lane), &making, Says::Retracted);
    }
}

/// The treaty of this home, as its object has it; whatever became of the homes that it rests on.
pub(super) fn treaty_here(table: &Table, name: &str) -> Option<(Treaty, Vec<(u16, Incarnation)>)> {
    let value = table.as_written(name)?;
    let treaty = Treaty::of_value(&value).ok()?;
    let homes = if let Value::Derived(derived) = value { derived.homes } else { Vec::new() };
    Some((treaty, homes))
}
