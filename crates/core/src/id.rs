//! Names of sites, lives, sessions, operations and grants.
//!
//! An **operation id** is (site, incarnation, session, sequence). It names the one site that may carry the operation
//! out; every other site may only relay it there. That is why an operation can be repeated, by a client or by the
//! network, without taking effect twice: exactly one log remembers it.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};
use std::str::FromStr;

/// One region's process for one lane. Ordered: ties between sites go to the lower id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SiteId {
    /// Position of the region in the cluster's list of regions.
    pub region: u16,
    /// The lane; keys are hashed to lanes, and lanes know nothing of each other.
    pub lane: u16,
}

impl SiteId {
    /// The site of `region` in `lane`.
    pub const fn new(region: u16, lane: u16) -> Self {
        Self { region, lane }
    }
}

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lane == 0 { write!(f, "{}", self.region) } else { write!(f, "{}:{}", self.region, self.lane) }
    }
}

/// Which storage a site lives on: 1 for the first, higher after each loss. Tokens and votes belong to an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// Stands for the last one of a member that is gone for good, wherever incarnations are recorded. It is later than any that a storage
    /// is ever given, so whoever records it need not know which ones the member had.
    pub const GONE: Self = Self(u32::MAX);
}

/// Counts the starts of one incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Life(pub u64);

/// A client's session at one site. The site numbers sessions upwards and never reuses a number, so a number below its
/// mark that it does not know is a session it has forgotten, not a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId(pub u64);

/// Names one operation permanently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OperationId {
    /// The only site that may carry it out.
    pub site: SiteId,
    /// That site's incarnation when the session was opened.
    pub incarnation: Incarnation,
    /// The session.
    pub session: SessionId,
    /// The operation's number within its session, from 1.
    pub sequence: u64,
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.site, self.incarnation.0, self.session.0, self.sequence)
    }
}

/// Names one grant. Grants of one site are numbered upwards over all its quotas, across restarts, and a new incarnation
/// starts a new, higher series: an outside resource may use (incarnation, number) of a site as a fence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GrantId {
    /// The site that granted it, the only one that can take it back.
    pub site: SiteId,
    /// That site's incarnation.
    pub incarnation: Incarnation,
    /// Rises with every grant of the site.
    pub number: u64,
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.site, self.incarnation.0, self.number)
    }
}

/// Some of a list of at most 64 sites, by their positions in it: of a lane's members, ascending, or of a transaction's
/// participants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SiteSet(pub u64);

impl SiteSet {
    /// The first `count` of the list.
    pub fn first(count: usize) -> Self {
        Self(1u64.checked_shl(count as u32).map_or(u64::MAX, |above| above - 1))
    }

    /// The site at `position` alone.
    pub fn of(position: usize) -> Self {
        Self(1 << position)
    }

    /// Adds the site at `position`.
    pub fn insert(&mut self, position: usize) {
        self.0 |= 1 << position;
    }

    /// Returns true if it has the site at `position`.
    pub fn contains(self, position: usize) -> bool {
        self.0 >> position & 1 == 1
    }

    /// Returns true if it has all that the other has.
    pub fn has_all(self, other: Self) -> bool {
        self & other == other
    }

    /// Returns true if it has nobody.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The positions in it, ascending.
    pub fn positions(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&position| self.contains(position))
    }
}

impl BitOr for SiteSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for SiteSet {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl BitAnd for SiteSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The text is not an id of this kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id: expected a site and numbers joined by '-', as it was printed")
    }
}

impl std::error::Error for ParseIdError {}

/// A number as ids have it: no sign, no leading zero, so that an id has one spelling.
fn number<T: FromStr + ToString>(text: &str) -> Result<T, ParseIdError> {
    let number: Option<T> = text.parse().ok();
    number.filter(|number| number.to_string() == text).ok_or(ParseIdError)
}

impl FromStr for SiteId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let Some((region, lane)) = text.split_once(':') else { return Ok(SiteId { region: number(text)?, lane: 0 }) };
        let site = SiteId { region: number(region)?, lane: number(lane)? };

        // Lane 0 is left out where it is printed.
        if site.lane > 0 { Ok(site) } else { Err(ParseIdError) }
    }
}

impl FromStr for GrantId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let parts: Vec<&str> = text.split('-').collect();
        let [site, incarnation, last] = parts[..] else { return Err(ParseIdError) };
        Ok(GrantId { site: site.parse()?, incarnation: Incarnation(number(incarnation)?), number: number(last)? })
    }
}

impl FromStr for OperationId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let parts: Vec<&str> = text.split('-').collect();
        let [site, incarnation, session, sequence] = parts[..] else { return Err(ParseIdError) };
        Ok(OperationId {
            site: site.parse()?,
            incarnation: Incarnation(number(incarnation)?),
            session: SessionId(number(session)?),
            sequence: number(sequence)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_way_through_text() {
        let grant = GrantId { site: SiteId::new(2, 1), incarnation: Incarnation(3), number: 77 };
        assert_eq!(grant.to_string(), "2:1-3-77");
        assert_eq!(grant.to_string().parse(), Ok(grant));
        let operation =
            OperationId { site: SiteId::new(0, 0), incarnation: Incarnation(1), session: SessionId(9), sequence: 12 };
        assert_eq!(operation.to_string().parse(), Ok(operation));
        for bad in ["", "1", "1-2", "a-1-2", "1-2-3-4-5", "-1-2-3", "+1-1-1", "1-01-1", "1:0-1-1"] {
            assert_eq!(bad.parse::<GrantId>(), Err(ParseIdError), "{bad}");
        }
    }
}
