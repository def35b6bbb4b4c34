//! What every refusal, doubt and cause of an abort is called: a code for programs, which stays the same, and a sentence for
//! people.

use std::fmt;

use crate::api::{COUNTED, NoSeat, Refusal, UnknownReason};
use crate::avantan::Agreement;
use crate::object::Cause;

impl Refusal {
    /// Its name in JSON, in scripts and among the simulator's probes; stable.
    pub fn code(self) -> &'static str {
        self.words().0
    }

    /// The code, and the sentence where that says all.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Refusal::UnknownQuota => ("unknown_quota", "no quota has this name"),
            Refusal::Exhausted { .. } => ("exhausted", "exhausted: there are not enough tokens"),
            Refusal::InvalidAmount => (
                "invalid_amount",
                "the amount is out of range: amounts and limits are 1 to 9223372036854775807, holds 1 ms to 400 days",
            ),
            Refusal::InvalidName => {
                ("invalid_name", "the name is not valid: use 1 to 256 bytes without control characters")
            }
            Refusal::LimitDiffers { .. } => ("limit_differs", "the quota exists with another limit"),
            Refusal::RefillDiffers { .. } => ("refill_differs", "the quota exists with another refill"),
            Refusal::Refills => {
                ("refills", "the quota refills by itself: nothing of it is held for a time, settled or released")
            }
            Refusal::AgreementDiffers { .. } => ("agreement_differs", "the quota exists with another agreement"),
            Refusal::NoSeat { why, .. } => match why {
                NoSeat::WasMember => ("was_member", "the site was a member before, and none is twice"),
                NoSeat::Full => ("too_many_sites", "the lane has as many sites as it can have"),
                NoSeat::NotNext => ("not_next", "the site's region does not come after those of all members"),
                NoSeat::NoMember => ("no_member", "the site is no member"),
                NoSeat::Lives => ("site_lives", "the site was heard from lately, so it is not lost"),
                NoSeat::Unrecorded => (
                    "unrecorded",
                    "not every quota has recorded the last change of the members, or the new storage of one",
                ),
                NoSeat::Forgetting => ("forgetting", "names of deleted quotas are being forgotten, by all members"),
                NoSeat::OtherSite => ("other_site", "only the site itself can be asked for that"),
                NoSeat::NotDrained => ("not_drained", "the site has not been drained"),
                NoSeat::HasTokens => ("has_tokens", "the site still has tokens"),
                NoSeat::HasGrants => ("has_grants", "grants of the site are out"),
                NoSeat::HasObjects => ("has_objects", "objects are at home at the site"),
                NoSeat::HasTransactions => ("has_transactions", "transactions are under way at the site"),
                NoSeat::Unheard => ("unheard", "not every site has heard yet that this one drains"),
                NoSeat::Last => ("last_member", "the site is the only member"),
            },
            Refusal::InvalidParent => {
                ("invalid_parent", "the name does not begin with that of the quota above it and a slash")
            }
            Refusal::NoParent => ("no_parent", "the quota above it does not exist, or was deleted"),
            Refusal::ParentDiffers => ("parent_differs", "the quota exists, but not below this one"),
            Refusal::MixedRefill => {
                ("mixed_refill", "in a tree all quotas refill or none does, and this one and the one above it differ")
            }
            Refusal::TooDeep => ("too_deep", "a tree has at most eight levels"),
            Refusal::HasChildren => ("has_children", "the quota has others below it: delete those first"),
            Refusal::InUse { .. } => ("in_use", "tokens of it are in use, and count in the quota above it, too"),
            Refusal::AboveOut { .. } => ("above_out", "cannot release more tokens than are granted"),
            Refusal::AboveLimit { .. } => ("above_limit", "more tokens than the quota has"),
            Refusal::UnknownGrant => (
                "unknown_grant",
                "no such grant is out: it was released already, its time is up, its site lost its disk, or it never was",
            ),
            Refusal::AboveGrant { .. } => ("above_grant", "more is said to be used than was granted"),
            Refusal::Settled => ("settled", "the grant was settled already: what was not used of it is back"),
            Refusal::NoEnd => ("no_end", "the grant has no end that could be put off: it lasts until it is released"),
            Refusal::IncarnationLives => (
                "incarnation_lives",
                "that is the incarnation in which the site serves: only what an earlier one had is lost",
            ),
            Refusal::NothingLost => {
                ("nothing_lost", "no such incarnation is lost, or what it had of this quota was reclaimed already")
            }
            Refusal::AlsoLost { .. } => (
                "also_lost",
                "other incarnations are lost, too, and nobody can tell what each had: name the newest lost one of each site",
            ),
            Refusal::AboveLost { .. } => ("above_lost", "more is said to be in use than was lost"),
            Refusal::BelowReleased { .. } => {
                ("below_released", "less is said to be in use than was released elsewhere")
            }
            Refusal::QuotaDeleted => ("quota_deleted", "the quota was deleted"),
            Refusal::Overloaded => ("overloaded", "overloaded: a queue is full; try again later"),
            Refusal::DeadlinePassed => ("deadline_passed", "the deadline passed before tokens could be had"),
            Refusal::Unreachable { .. } => ("unreachable", "sites that this needs did not answer"),
            Refusal::Withdrawn => ("withdrawn", "withdrawn: it was asked about before it was carried out"),
            Refusal::OtherContent => ("other_content", "this operation id was used for another operation"),
            Refusal::SessionEnded => ("session_ended", "the session has ended; open another"),
            Refusal::NotReady => ("not_ready", "the site is not ready"),
            Refusal::StorageFull => ("storage_full", "the site's disk is full; make room in its data directory"),
        }
    }
}

/// A rate in millionths a second, as a decimal number a second.
pub fn per_second(millionths: u64) -> String {
    let (whole, part) = (millionths / 1_000_000, millionths % 1_000_000);
    match part {
        0 => whole.to_string(),
        _ => format!("{whole}.{}", format!("{part:06}").trim_end_matches('0')),
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::AboveLimit { limit, level: 0 } => {
                write!(f, "more tokens than the quota has: its limit is {limit}")
            }
            Refusal::AboveLimit { limit, .. } => {
                write!(f, "more tokens than a quota above it has: the limit of that is {limit}")
            }
            Refusal::Exhausted { level: 1.., .. } => f.write_str("exhausted: a quota above it has not enough tokens"),
            Refusal::InUse { amount } => {
                write!(f, "{amount} tokens of it are in use, and count in the quota above it, too: delete it when they are back")
            }
            Refusal::LimitDiffers { limit } => write!(f, "the quota exists already, with the limit {limit}"),
            Refusal::RefillDiffers { refill: 0 } => f.write_str("the quota exists already, and does not refill"),
            Refusal::RefillDiffers { refill } => {
                write!(f, "the quota exists already, and refills at {} tokens a second", per_second(*refill))
            }
            Refusal::AgreementDiffers { agreement: Agreement::Any } => {
                f.write_str("the quota exists already, with the agreement any")
            }
            Refusal::AgreementDiffers { agreement: Agreement::Majority } => {
                f.write_str("the quota exists already, with the agreement majority")
            }
            Refusal::NoSeat { why: NoSeat::Unrecorded, count } => {
                let quotas = counted(*count, "quota has", "quotas have");
                write!(f, "{quotas} not recorded the last change of the members, as far as this site knows")
            }
            Refusal::NoSeat { why: NoSeat::HasTokens, count } => {
                let quotas = counted(*count, "quota", "quotas");
                write!(f, "the site still has tokens of {quotas}: they are given away when another site is up")
            }
            Refusal::NoSeat { why: NoSeat::HasGrants, count } => {
                let grants = at_least(*count, "grant of the site is", "grants of the site are");
                write!(f, "{grants} out, which it alone can take back")
            }
            Refusal::NoSeat { why: NoSeat::HasObjects, count } => {
                write!(f, "{} at home at the site", at_least(*count, "object is", "objects are"))
            }
            Refusal::NoSeat { why: NoSeat::HasTransactions, count } => {
                let transactions = counted(*count, "transaction is", "transactions are");
                write!(f, "{transactions} under way at the site, or ended in the last seconds: try again")
            }
            Refusal::AboveOut { at_most } => {
                write!(f, "cannot release so many tokens: at most {at_most} are granted, as far as its site can tell")
            }
            Refusal::AboveGrant { amount } => {
                write!(f, "more is said to be used than was granted: the grant has {amount}")
            }
            Refusal::AboveLost { at_most: i64::MIN..0 } => f.write_str(
                "nothing can be reclaimed: the lost sites had taken back more than they had and had granted, of other sites' grants",
            ),
            Refusal::AboveLost { at_most } => {
                write!(f, "more is said to be in use than was lost: the lost sites had and had granted {at_most}")
            }
            Refusal::BelowReleased { at_least } => {
                write!(
                    f,
                    "less is said to be in use than other sites took back since: the lost sites had granted at least {at_least}"
                )
            }
            _ => f.write_str(self.words().1),
        }
    }
}

impl UnknownReason {
    /// Its name in JSON, in scripts and among the simulator's probes; stable.
    pub fn code(self) -> &'static str {
        self.words().0
    }

    /// Its code and its sentence.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            UnknownReason::SiteUnreachable => ("site_unreachable", "the one site that knows cannot be reached"),
            UnknownReason::IncarnationLost => ("incarnation_lost", "the storage that knew is lost"),
            UnknownReason::Forgotten => ("forgotten", "the outcome is no longer kept"),
            UnknownReason::Undecided => ("undecided", "the sites are still agreeing on it"),
            UnknownReason::HomeLost => ("home_lost", "the home that took part has lost its storage, and its objects"),
            UnknownReason::NotReady => ("not_ready", "the one site that knows is not ready yet"),
            UnknownReason::StorageFull => ("storage_full", "the disk of the one site that knows is full"),
        }
    }
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

impl Cause {
    /// Its name in JSON, in scripts and among the simulator's probes; stable.
    pub fn code(self) -> &'static str {
        self.words().0
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Cause::Changed => ("changed", "what was read has been changed since"),
            Cause::Busy => ("busy", "another transaction is about to change or relies on the same object"),
            Cause::WouldWait => ("would_wait", "others hold rights over what it writes, for longer than it may wait"),
            Cause::DeadlinePassed => ("not_in_time", "the deadline passed before every site had answered"),
            Cause::NotACounter => ("not_a_counter", "the object is no counter"),
            Cause::OutOfRange => ("out_of_range", "the counter would leave the range of 64-bit integers"),
            Cause::Lost => ("lost", "lost: the home lost its storage; write again what was there, or accept the loss"),
            Cause::Unreachable => ("home_unreachable", "the object's home does not answer"),
            Cause::InvalidKey => ("invalid_key", "the key is not valid: use 1 to 512 bytes without control characters"),
            Cause::UnknownRegion => ("no_such_home", "there is no such region"),
            Cause::TooLarge => ("too_large", "the value is too large: at most 262144 bytes"),
            Cause::TooMuch => (
                "too_much",
                "the transaction is too large: at most 4096 reads, scanned objects, scans and writes together, and \
                 1048576 bytes written, 2097152 of treaties",
            ),
            Cause::Malformed => ("malformed", "the transaction is malformed"),
            Cause::Overloaded => ("home_overloaded", "overloaded: a queue is full; try again later"),
            Cause::NotReady => ("home_not_ready", "the site is not ready"),
            Cause::Withdrawn => ("asked_too_early", "withdrawn: it was asked about before every site was prepared"),
            Cause::Depended => ("calls_depend", "results of memoized functions depend on what it writes"),
            Cause::ClocksDisagree => {
                ("clocks_disagree", "the clocks of two sites are too far apart for a deadline to mean the same to both")
            }
            Cause::NotMet => ("not_met", "what it requires would not be true after it"),
            Cause::TooManyTreaties => ("too_many_treaties", "too many treaties rest on a counter: at most 16"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

/// A count, with the words that fit one or several.
fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The same of what is looked for no farther than a thousand.
fn at_least(count: u64, one: &str, several: &str) -> String {
    if count < COUNTED { counted(count, one, several) } else { format!("{count} or more {several}") }
}
