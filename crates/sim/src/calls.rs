//! Memoized functions of the simulated clients, run over a [`Draft`] as far as what they read is there.
//!
//! | call | what it reads | result |
//! | --- | --- | --- |
//! | `pick(i)` | register `i`; by its parity one of two others | the parity, and what the other register holds |
//! | `both(i)` | `pick(i)`, `pick(i + 3)` | the two results |
//! | `count(set)` | the set's span, page after page | how many members it has |
//!
//! So a write may change what a call reads, its result, both or neither, and a change may go up or stop. What a result tells
//! of registers and sets goes into the history like a read: one that its function would not give is an anomaly.

use std::collections::BTreeSet;

use slackline_core::draft::buffer::{ROOT, apply};
use slackline_core::draft::{Draft, FrameId, Lookup, Recomputed};
use slackline_core::object::{CALL_MARK, Change, ObjectKey, Seen, Span, Value};

/// Registers, by number; `pick` and `both` have one call for each.
pub(crate) const REGISTERS: u64 = 8;

/// The members of a page that `count` reads.
const PAGE: usize = 16;

/// What must be read before a function can go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// An object.
    Get(ObjectKey),
    /// A span.
    Scan(u16, Span),
    /// A call.
    Call(ObjectKey),
    /// The transaction contradicts itself: it cannot be committed.
    Void,
}

/// What became of the calls that depended on what a transaction writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Treated {
    /// Calls that were computed again, to the same result.
    pub(crate) kept: u32,
    /// Calls that were computed again, to another result.
    pub(crate) changed: u32,
    /// Calls that were deleted.
    pub(crate) revoked: u32,
    /// Calls that were not there.
    pub(crate) absent: u32,
}

/// What a result tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    /// A register holds this; the incarnation of its home.
    Holds { register: u64, value: Option<u64>, incarnation: u32 },
    /// A set has so many members; the incarnation of its home.
    Counts { prefix: String, count: u64, incarnation: u32 },
}

/// The functions, for a number of sites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) sites: u64,
}

/// The register of a number.
pub(crate) fn register(sites: u64, number: u64) -> ObjectKey {
    ObjectKey::new((number % sites) as u16, format!("r{number}"))
}

/// Which other register `pick` of a number reads.
pub(crate) fn picked(number: u64, parity: u64) -> u64 {
    (number + 1 + 2 * parity) % REGISTERS
}

/// The value of a register.
fn value_of(value: Option<&Value>) -> Option<u64> {
    match value {
        Some(Value::Bytes(bytes)) => bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        _ => None,
    }
}

impl Functions {
    /// The call `pick(i)`.
    pub(crate) fn pick(self, number: u64) -> ObjectKey {
        self.named(number, &format!("pick#1({number})"))
    }

    /// The call `both(i)`.
    pub(crate) fn both(self, number: u64) -> ObjectKey {
        self.named(number + 1, &format!("both#1({number})"))
    }

    /// The calls `pick(i)` and `both(i)`, and the registers that each may read.
    pub(crate) fn of_registers(self, number: u64) -> [(ObjectKey, Vec<ObjectKey>); 2] {
        let of_pick =
            |number: u64| [number, picked(number, 0), picked(number, 1)].map(|read| register(self.sites, read));
        let of_both = [of_pick(number), of_pick((number + 3) % REGISTERS)].concat();
        [(self.pick(number), of_pick(number).to_vec()), (self.both(number), of_both)]
    }

    /// The call `count(set)` for a set at a home.
    pub(crate) fn count(self, home: u16, prefix: &str) -> ObjectKey {
        self.named(u64::from(home) + 1, &format!("count#1({home},{prefix})"))
    }

    /// A call by its name; its home goes by a number.
    fn named(self, number: u64, name: &str) -> ObjectKey {
        ObjectKey::new((number % self.sites) as u16, format!("{CALL_MARK}{name}"))
    }

    /// The result of a call, used in a frame or by the program itself.
    pub(crate) fn call(self, draft: &mut Draft, frame: Option<FrameId>, call: &ObjectKey) -> Result<Vec<u8>, Missing> {
        let result = match draft.lookup(call) {
            // It was read, or was computed before in this transaction.
            Lookup::Known(result) => result,
            // Somebody may have registered it.
            Lookup::Fetch => return Err(Missing::Call(call.clone())),
            // What this transaction writes has changed what it rests on: it is computed again before it is used.
            Lookup::Pending => {
                self.treat(draft, call, false)?;
                return self.call(draft, frame, call);
            }
            Lookup::Compute => self.compute(draft, call)?,
            // It will be deleted: the function runs as if it were not memoized.
            Lookup::Inline => return self.run(draft, frame, call),
        };

        // Who used it depends on all that it depends on.
        if let Some(frame) = frame {
            draft.note_use(frame, call);
        }
        Ok(result)
    }

    /// Runs a function in a frame of its own, and keeps the result.
    fn compute(self, draft: &mut Draft, call: &ObjectKey) -> Result<Vec<u8>, Missing> {
        let frame = draft.open(call.clone());
        let result = self.run(draft, Some(frame), call)?;
        draft.close(frame, result.clone());
        Ok(result)
    }

    /// Treats a pending call; what has become of it.
    pub(crate) fn treat(self, draft: &mut Draft, call: &ObjectKey, revoke: bool) -> Result<Treated, Missing> {
        let mut treated = Treated::default();
        match draft.is_there(call) {
            None => return Err(Missing::Call(call.clone())),
            Some(false) => {
                draft.settle_absent(call);
                treated.absent += 1;
            }
            Some(true) if revoke => {
                draft.revoke(call);
                treated.revoked += 1;
            }
            Some(true) => {
                self.compute(draft, call)?;
                match draft.settle(call) {
                    Recomputed::Kept => treated.kept += 1,
                    Recomputed::Changed => treated.changed += 1,
                }
            }
        }
        Ok(treated)
    }

    /// Runs the function itself.
    fn run(self, draft: &mut Draft, frame: Option<FrameId>, call: &ObjectKey) -> Result<Vec<u8>, Missing> {
        let name = call.name.trim_start_matches(CALL_MARK);
        let (function, arguments) = name.trim_end_matches(')').split_once("#1(").expect("a call's name");
        let number = || arguments.parse::<u64>().expect("a number");
        match function {
            "pick" => {
                let number = number();
                let parity = self.read(draft, frame, number)?.0.unwrap_or(0) & 1;
                let other = picked(number, parity);
                let (value, incarnation) = self.read(draft, frame, other)?;
                let words = [parity, other, u64::from(value.is_some()), value.unwrap_or(0), incarnation];
                Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
            }
            "both" => {
                let number = number();
                let mut one = self.call(draft, frame, &self.pick(number))?;
                one.extend(self.call(draft, frame, &self.pick((number + 3) % REGISTERS))?);
                Ok(one)
            }
            _ => {
                let (home, prefix) = arguments.split_once(',').expect("a home and a prefix");
                let home: u16 = home.parse().expect("a number");

                // Page after page, so that what it rests on is several spans.
                let (mut names, mut after) = (BTreeSet::new(), String::new());
                loop {
                    let span = Span { prefix: prefix.to_owned(), after, limit: PAGE as u32 };
                    let page = draft.snapshot.scanned(home, &span).ok_or_else(|| Missing::Scan(home, span.clone()))?;
                    if let Some(frame) = frame {
                        draft.note_span(frame, home, &span);
                    }
                    after = page.last().map(|(name, _)| name.clone()).unwrap_or_default();
                    let is_full = page.len() >= PAGE;
                    names.extend(page.into_iter().map(|(name, _)| name));
                    if !is_full {
                        break;
                    }
                }

                // What the transaction itself writes counts, too.
                let changed = draft.buffer.changed(ROOT, home, |name| name.starts_with(prefix));
                for (key, change) in changed.expect("the root is there") {
                    if change == Change::Delete {
                        names.remove(&key.name)
                    } else {
                        names.insert(key.name)
                    };
                }

                let count = names.len() as u64;
                let incarnation = u64::from(draft.snapshot.incarnation(home).0);
                Ok([count, incarnation].iter().flat_map(|word| word.to_le_bytes()).collect())
            }
        }
    }

    /// What a register holds, with what the transaction wrote, and the incarnation of its home.
    fn read(self, draft: &mut Draft, frame: Option<FrameId>, number: u64) -> Result<(Option<u64>, u64), Missing> {
        let key = register(self.sites, number);
        let Some(base) = draft.snapshot.known(&key) else { return Err(Missing::Get(key)) };
        let incarnation = u64::from(draft.snapshot.incarnation(key.home).0);

        let change = draft.buffer.change(ROOT, &key).expect("the root is there");
        let value = change.map_or(Ok(base.clone()), |change| apply(base, &change)).expect("a register is put");
        if let Some(frame) = frame {
            draft.note(frame, &key);
        }
        Ok((value_of(value.as_ref()), incarnation))
    }
}

/// What the result of a call tells.
pub(crate) fn facts(call: &ObjectKey, result: &[u8]) -> Vec<Fact> {
    let words: Vec<u64> =
        result.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
    let incarnation = |word: u64| u32::try_from(word).expect("an incarnation");
    if let Some((_, arguments)) = call.name.split_once("count#1(") {
        // A set in which nothing is tells of no incarnation.
        let prefix = arguments.split_once(',').expect("a home and a prefix").1.trim_end_matches(')');
        let fact = Fact::Counts { prefix: prefix.to_owned(), count: words[0], incarnation: incarnation(words[1]) };
        return if words[1] == 0 { Vec::new() } else { vec![fact] };
    }
    let fact = |words: &[u64]| {
        let value = (words[2] == 1).then_some(words[3]);
        Fact::Holds { register: words[1], value, incarnation: incarnation(words[4]) }
    };
    words.chunks_exact(5).map(fact).collect()
}

/// Takes what was read in; whether it fits what was read before.
pub(crate) fn note(draft: &mut Draft, key: &ObjectKey, seen: Seen) -> Result<(), Missing> {
    let noted =
        if key.name.starts_with(CALL_MARK) { draft.note_call(key, seen) } else { draft.snapshot.note_get(key, seen) };
    noted.map_err(|_| Missing::Void)
}
