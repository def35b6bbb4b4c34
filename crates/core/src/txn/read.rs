//! Reads: of this site's objects from storage, of others' from copies, or from their homes.
//!
//! A batch of reads is answered when all of it is there. What is asked of one home travels together. An answer may bring a
//! right over each value; reads under rights cost nothing until they end, and one that is about to end is renewed in the
//! background while the object is in use. A home that is up and has not answered when the time is up is told apart from one
//! of which nothing is heard.
//!
//! However much is asked for, about [`READ_BYTES`] are read and answered at a time. In place of the rest stands
//! [`Cause::TooMuch`], and whoever wants it asks again.

use super::cache::Used;
use super::table::{Table, row_key, row_range};
use super::{Timer, Txns};
use crate::api::{Reading, Response};
use crate::clock::{MILLISECOND, SECOND};
use crate::id::{Incarnation, SiteId};
use crate::machine::{ClientId, KeySet};
use crate::object::message::{Fetch, Fetched, Given, Message};
use crate::object::{Abort, Cause, ObjectKey, Seen, Span, Value, is_call, is_key};
use crate::turn::Turn;

/// The most reads that wait for other sites.
const READS: usize = 65_536;
/// The most gets and scans in one batch.
pub const READ_ITEMS: usize = 4096;
/// About how much is read from storage, and answered, at a time, in bytes. More than an answer carries in the end, so that
/// nothing is left out here that would fit it if it was all that is asked for.
const READ_BYTES: usize = 8 << 20;
/// What a value takes in an answer besides its bytes, and its name in a span, about.
const ENTRY_BYTES: usize = 64;
/// An answer to what nobody waits for any more is waited for this long.
const LATE: u64 = 5 * SECOND;
/// The longest that reads wait for other sites.
const LONGEST_READ: u64 = 60 * SECOND;

/// Reads that wait for other sites.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    client: ClientId,
    reading: Reading,
    /// Questions under way.
    missing: usize,
    until: u64,
}

/// A question to a home.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The reads that wait for it; none for one that renews.
    reads: Option<u64>,
    /// Whether what they read is used.
    counts: bool,
    home: SiteId,
    /// Names, each with its place among the reads' gets.
    gets: Vec<(String, usize)>,
    /// Places among the reads' scans.
    scans: Vec<usize>,
    asked: u64,
    until: u64,
}

type Result<T> = std::result::Result<T, Abort>;

fn is_name(name: &str) -> bool {
    is_key(name) || is_call(name)
}

/// What storage reads need. What is not sound is refused without a look at it.
pub(super) fn needs<'a>(
    gets: impl Iterator<Item = &'a str>,
    scans: impl Iterator<Item = &'a Span>,
    incarnation: Incarnation,
    set: &mut KeySet,
) {
    set.keys.extend(gets.filter(|name| is_name(name)).map(|name| row_key(incarnation, name)));
    set.ranges.extend(scans.filter(|span| span.is_sound()).map(|span| row_range(incarnation, span)));
    set.room = Some(READ_BYTES);
}

/// The room that is left in an answer. What is asked for twice is in it twice, and copies of others' objects are too.
struct Room(usize);

impl Room {
    /// Reads what there is room for. After the first for which there is none, nothing is looked at any more.
    fn hold<T>(&mut self, read: impl FnOnce() -> Result<T>, bytes: impl FnOnce(&T) -> usize) -> Result<T> {
        if self.0 == 0 {
            return Err(Abort::of(Cause::TooMuch));
        }
        let found = read()?;
        let left = self.0.checked_sub(bytes(&found));
        self.0 = left.unwrap_or(0);
        left.map(|_| found).ok_or_else(|| Abort::of(Cause::TooMuch))
    }

    fn get(&mut self, table: &Table, name: &str) -> Result<Seen> {
        self.hold(|| table.get(name), seen_bytes)
    }

    fn scan(&mut self, table: &Table, span: &Span) -> Result<Vec<(String, Seen)>> {
        let bytes = |rows: &Vec<(String, Seen)>| rows.iter().map(|(name, seen)| name.len() + seen_bytes(seen)).sum();
        self.hold(|| table.scan(span), bytes)
    }
}

fn seen_bytes(seen: &Seen) -> usize {
    seen.value.as_ref().map_or(0, Value::size) + ENTRY_BYTES
}

impl Txns {
    /// Reads objects for a client.
    pub fn read(&mut self, turn: &mut Turn, table: &Table, client: ClientId, read: crate::api::Read) {
        let crate::api::Read { token, gets, scans, fresh, upkeep, timeout } = read;
        let unread = |home| Abort { site: Some(home), ..Abort::of(Cause::DeadlinePassed) };
        let mut reading = Reading {
            token,
            gets: vec![Err(unread(turn.site.me)); gets.len()],
            scans: scans.iter().map(|_| Err(unread(turn.site.me))).collect(),
        };
        if gets.len() + scans.len() > READ_ITEMS {
            let too_much = || Err(Abort::of(Cause::TooMuch));
            let reading = Reading { token, gets: vec![too_much(); gets.len().min(1)], scans: Vec::new() };
            return turn.responses.push((client, Response::Read(Box::new(reading))));
        }
        let mut questions: Vec<Question> = Vec::new();
        let mut spans: Vec<Vec<Span>> = Vec::new();
        let mut renewals: Vec<ObjectKey> = Vec::new();
        let mut room = Room(READ_BYTES);
        let reads_at = turn.now.mono;
        let question = |questions: &mut Vec<Question>, spans: &mut Vec<Vec<Span>>, home: SiteId| {
            questions.iter().position(|question| question.home == home).unwrap_or_else(|| {
                questions.push(Question {
                    reads: None,
                    counts: !upkeep,
                    home,
                    gets: Vec::new(),
                    scans: Vec::new(),
                    asked: reads_at,
                    until: 0,
                });
                spans.push(Vec::new());
                questions.len() - 1
            })
        };
        for (place, key) in gets.into_iter().enumerate() {
            reading.gets[place] = match self.home_of(turn, key.home) {
                _ if !is_name(&key.name) => Err(Abort::of(Cause::InvalidKey)),
                Err(abort) => Err(Abort { key: Some(key), ..abort }),
                Ok(home) if home == turn.site.me => {
                    if !upkeep {
                        self.backer.note_reads(turn.now, &key.name, 1);
                        self.uses.note(turn.now, &key.name);
                    }
                    room.get(table, &key.name)
                }
                Ok(home) => match self.cache.read(turn.now, turn.config.epsilon, &key, fresh, upkeep) {
                    Some(Used { seen, renew }) => {
                        let seen = room.hold(|| Ok(seen.clone()), seen_bytes);
                        if renew {
                            renewals.push(key);
                        }
                        seen
                    }
                    None if !turn.is_reachable(home) => {
                        Err(Abort { key: Some(key), site: Some(home), ..Abort::of(Cause::Unreachable) })
                    }
                    None => {
                        let at = question(&mut questions, &mut spans, home);
                        questions[at].gets.push((key.name, place));
                        Err(unread(home))
                    }
                },
            };
        }
        for (place, (region, span)) in scans.into_iter().enumerate() {
            reading.scans[place] = match self.home_of(turn, region) {
                _ if !span.is_sound() => Err(Abort::of(Cause::Malformed)),
                Err(abort) => Err(abort),
                Ok(home) if home == turn.site.me => room.scan(table, &span),
                Ok(home) if !turn.is_reachable(home) => {
                    Err(Abort { site: Some(home), ..Abort::of(Cause::Unreachable) })
                }
                Ok(home) => {
                    let at = question(&mut questions, &mut spans, home);
                    questions[at].scans.push(place);
                    spans[at].push(span);
                    Err(unread(home))
                }
            };
        }
        self.renew(turn, renewals);
        if questions.is_empty() {
            return turn.responses.push((client, Response::Read(Box::new(reading))));
        }
        if self.waiting.len() >= READS {
            let overloaded = || Abort::of(Cause::Overloaded);
            reading.gets.iter_mut().filter(|got| got.is_err()).for_each(|got| *got = Err(overloaded()));
            reading.scans.iter_mut().filter(|got| got.is_err()).for_each(|got| *got = Err(overloaded()));
            return turn.responses.push((client, Response::Read(Box::new(reading))));
        }
        let name = self.next_token();
        let until = turn.now.mono + timeout.clamp(MILLISECOND, LONGEST_READ);
        self.waiting.insert(name, Waiting { client, reading, missing: questions.len(), until });
        self.timers.insert((until, Timer::Read(name)));
        for (mut question, spans) in questions.into_iter().zip(spans) {
            question.reads = Some(name);
            self.ask_home(turn, question, spans);
        }
    }

    /// The site of a region, if there is one.
    fn home_of(&self, turn: &Turn, region: u16) -> Result<SiteId> {
        let site = SiteId::new(region, turn.site.me.lane);
        if turn.site.members.contains(&site) { Ok(site) } else { Err(Abort::of(Cause::UnknownRegion)) }
    }

    fn ask_home(&mut self, turn: &mut Turn, mut question: Question, scans: Vec<Span>) {
        let token = self.next_token();
        let gets = question.gets.iter().map(|(name, _)| {
            let key = ObjectKey { home: question.home.region, name: name.clone() };
            let reads = self.cache.take_reads(&key);
            (key.name, reads + u32::from(question.counts))
        });
        let fetch = Fetch { token, start: self.start, gets: gets.collect(), scans, rights: self.uses_rights(turn) };
        turn.metrics.fetches += 1;
        turn.send_object(question.home, Message::Fetch(Box::new(fetch)));
        question.until = turn.now.mono + LONGEST_READ + LATE;
        self.timers.insert((question.until, Timer::Question(token)));
        self.questions.insert(token, question);
    }

    /// Asks for rights over copies that are in use.
    fn renew(&mut self, turn: &mut Turn, keys: Vec<ObjectKey>) {
        if keys.is_empty() || !self.uses_rights(turn) {
            return;
        }
        let mut questions: Vec<Question> = Vec::new();
        for ObjectKey { home, name } in keys {
            let home = SiteId::new(home, turn.site.me.lane);
            match questions.iter_mut().find(|question| question.home == home) {
                Some(question) => question.gets.push((name, 0)),
                None => {
                    let (gets, scans) = (vec![(name, 0)], Vec::new());
                    let (reads, counts) = (None, false);
                    questions.push(Question { reads, counts, home, gets, scans, asked: turn.now.mono, until: 0 });
                }
            }
        }
        for question in questions {
            self.ask_home(turn, question, Vec::new());
        }
    }

    /// Another site asks for values.
    pub(super) fn fetch(&mut self, turn: &mut Turn, table: &Table, from: SiteId, fetch: Fetch) {
        let Fetch { token, start, gets, scans, rights } = fetch;
        if gets.len() + scans.len() > READ_ITEMS {
            turn.metrics.ignored += 1;
            return;
        }
        let rights = rights && self.uses_rights(turn);
        let mut room = Room(READ_BYTES);
        let mut given = Vec::with_capacity(gets.len());
        for (name, reads) in gets {
            if !is_name(&name) {
                given.push(Err(Abort::of(Cause::InvalidKey)));
                continue;
            }
            if reads > 0 {
                self.backer.note_reads(turn.now, &name, reads);
                self.uses.note(turn.now, &name);
            }
            given.push(room.get(table, &name).map(|seen| {
                // That a call is not there yet is not worth a right: somebody is about to put it.
                let is_missing = seen.value.is_none() && is_call(&name);
                let may = rights && !is_missing && !self.locks.is_changing(&name);
                let right = may.then(|| self.backer.issue(turn.now, turn.config.epsilon, &name, from, start)).flatten();
                turn.metrics.rights_issued += u64::from(right.is_some());
                Given { seen, right }
            }));
        }
        let scan = |span: &Span| match span.is_sound() {
            true => room.scan(table, span),
            false => Err(Abort::of(Cause::Malformed)),
        };
        let scans = scans.iter().map(scan).collect();
        turn.send_object(from, Message::Fetched(Box::new(Fetched { token, start, gets: given, scans })));
    }

    /// Nobody waits for an answer any more.
    pub(super) fn give_up_question(&mut self, token: u64) {
        let Some(question) = self.questions.remove(&token).filter(|question| question.reads.is_none()) else { return };
        for (name, _) in question.gets {
            self.cache.not_renewed(&ObjectKey { home: question.home.region, name });
        }
    }

    /// A home answers.
    pub(super) fn fetched(&mut self, turn: &mut Turn, from: SiteId, fetched: Fetched) {
        let Fetched { token, start, gets, scans } = fetched;
        let Some(question) = self.questions.remove(&token) else { return };
        self.timers.remove(&(question.until, Timer::Question(token)));
        if question.home != from
            || start != self.start
            || gets.len() != question.gets.len()
            || scans.len() != question.scans.len()
        {
            turn.metrics.ignored += 1;
            return;
        }
        let mut waiting = question.reads.and_then(|name| self.waiting.get_mut(&name));
        for ((name, place), result) in question.gets.into_iter().zip(gets) {
            let result = result.map(|given| {
                let seen = given.seen.clone();
                let key = ObjectKey { home: from.region, name };
                self.cache.store(turn.now, turn.config.epsilon, key, given, question.asked);
                seen
            });
            if let Some(waiting) = &mut waiting {
                waiting.reading.gets[place] = result;
            }
        }
        let Some(waiting) = waiting else { return };
        for (place, result) in question.scans.into_iter().zip(scans) {
            waiting.reading.scans[place] = result;
        }
        waiting.missing -= 1;
        if waiting.missing == 0 {
            self.answer_read(turn, question.reads.expect("it waits"));
        }
    }

    /// Answers reads with what is there. What is not is late, or its home is not to be reached.
    pub(super) fn answer_read(&mut self, turn: &mut Turn, name: u64) {
        let Some(mut waiting) = self.waiting.remove(&name) else { return };
        self.timers.remove(&(waiting.until, Timer::Read(name)));
        if waiting.missing > 0 {
            let Reading { gets, scans, .. } = &mut waiting.reading;
            let unread = gets.iter_mut().filter_map(|got| got.as_mut().err());
            for abort in unread.chain(scans.iter_mut().filter_map(|got| got.as_mut().err())) {
                if abort.cause == Cause::DeadlinePassed && abort.site.is_some_and(|home| !turn.is_reachable(home)) {
                    abort.cause = Cause::Unreachable;
                }
            }
        }
        turn.responses.push((waiting.client, Response::Read(Box::new(waiting.reading))));
    }

    /// Another site has a new incarnation.
    pub fn forget_home(&mut self, site: SiteId, incarnation: Incarnation) {
        self.cache.forget_home(site.region, incarnation);
    }
}
