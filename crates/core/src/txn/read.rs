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
use crate::api::{self, Reading, Response};
use crate::clock::{MILLISECOND, SECOND};
use crate::id::{Incarnation, SiteId};
use crate::machine::{ClientId, KeySet};
use crate::object::message::{Claim, Fetch, Fetched, Given, Message};
use crate::object::{Abort, Cause, ObjectKey, Rank, Seen, Span, Value, is_call, is_key};
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
    /// Whether one home is asked for all of it.
    is_of_one: bool,
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
    /// These, until they are asked for.
    spans: Vec<Span>,
    asked: u64,
    until: u64,
    /// Whether the answer may wait for what is prepared.
    waits: bool,
    /// The program that wants its turn, until it is asked for.
    claim: Option<Claim>,
}

impl Question {
    fn new(home: SiteId, asked: u64, counts: bool) -> Self {
        let (gets, scans, spans) = Default::default();
        Self { reads: None, counts, home, gets, scans, spans, asked, until: 0, waits: false, claim: None }
    }

    /// How many objects and spans it asks for.
    fn items(&self) -> usize {
        self.gets.len() + self.scans.len()
    }
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

fn unread(home: SiteId) -> Abort {
    Abort { site: Some(home), ..Abort::of(Cause::DeadlinePassed) }
}

/// What a client reads, while it is found out who has it.
struct Looking {
    fresh: bool,
    upkeep: bool,
    claim: Option<api::Claim>,
    rank: Option<Rank>,
    asked: u64,
    room: Room,
    questions: Vec<Question>,
    renewals: Vec<ObjectKey>,
}

impl Looking {
    /// Whether it is for a program that wants its turn wherever it reads.
    fn is_again(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.again)
    }

    /// The question to a home.
    fn ask(&mut self, home: SiteId) -> &mut Question {
        let found = self.questions.iter().position(|question| question.home == home);
        let at = found.unwrap_or_else(|| {
            let bars = self.claim.as_ref().is_some_and(|claim| claim.bars);
            let claim = self.rank.map(|rank| Claim { rank, bars, ..Claim::default() });
            self.questions.push(Question { claim, ..Question::new(home, self.asked, !self.upkeep) });
            self.questions.len() - 1
        });
        &mut self.questions[at]
    }
}

fn seen_bytes(seen: &Seen) -> usize {
    seen.value.as_ref().map_or(0, Value::size) + ENTRY_BYTES
}

impl Txns {
    /// Reads objects for a client.
    pub fn read(&mut self, turn: &mut Turn, table: &Table, client: ClientId, read: api::Read) {
        let api::Read { token, gets, scans, fresh, upkeep, timeout, claim } = read;
        let mut reading = Reading { token, gets: Vec::new(), scans: Vec::new(), is_whole: false };
        let items = gets.len() + scans.len();
        if items > READ_ITEMS {
            reading.gets.extend(gets.first().map(|_| Err(Abort::of(Cause::TooMuch))));
            return turn.responses.push((client, Response::Read(Box::new(reading))));
        }
        let rank = claim.as_ref().map(|claim| Rank::of(claim.origin, turn.now.wall));
        let (questions, renewals, room) = (Vec::new(), Vec::new(), Room(READ_BYTES));
        let mut looking = Looking { fresh, upkeep, claim, rank, asked: turn.now.mono, room, questions, renewals };
        for (place, key) in gets.into_iter().enumerate() {
            let got = self.look_for(turn, table, &mut looking, place, key);
            reading.gets.push(got);
        }
        for (place, (region, span)) in scans.into_iter().enumerate() {
            let scanned = self.look_in(turn, table, &mut looking, place, region, span);
            reading.scans.push(scanned);
        }
        let asked: usize = looking.questions.iter().map(Question::items).sum();
        self.claim_turns(turn, &mut looking);
        let Looking { mut questions, renewals, .. } = looking;
        let is_of_one = questions.len() == 1 && asked == items;
        if is_of_one && let Some(claim) = questions[0].claim.as_mut().filter(|claim| claim.writes.is_empty()) {
            // That may need no judgement, so nothing else would end the claim.
            claim.ends = true;
        }
        self.renew(turn, table, renewals);
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
        let timeout = timeout.clamp(MILLISECOND, LONGEST_READ);
        let until = turn.now.mono + timeout;
        self.waiting.insert(name, Waiting { client, reading, missing: questions.len(), is_of_one, until });
        self.timers.insert((until, Timer::Read(name)));
        for mut question in questions {
            question.reads = Some(name);
            // What waits at its home for too long is to be read as it is, and has to come back in time.
            self.ask_home(turn, table, question, timeout / 2);
        }
    }

    /// Reads an object here, or notes that its home is to be asked.
    fn look_for(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        looking: &mut Looking,
        place: usize,
        key: ObjectKey,
    ) -> Result<Seen> {
        if !is_name(&key.name) {
            return Err(Abort::of(Cause::InvalidKey));
        }
        let home = match self.home_of(turn, key.home) {
            Ok(home) => home,
            Err(abort) => return Err(Abort { key: Some(key), ..abort }),
        };
        let is_doubted = self.cache.is_doubted(&key);
        // What waits here is asked for as at any other home.
        if home == turn.site.me && !looking.is_again() && !is_doubted {
            if !looking.upkeep {
                self.backer.note_reads(turn.now, &key.name, 1);
                self.uses.note(turn.now, &key.name);
            }
            return looking.room.get(table, &key.name);
        }
        let Looking { fresh, upkeep, .. } = *looking;
        if let Some(Used { seen, renew }) = self.cache.read(turn.now, turn.config.epsilon, &key, fresh, upkeep) {
            let seen = looking.room.hold(|| Ok(seen.clone()), seen_bytes);
            if renew {
                looking.renewals.push(key);
            }
            return seen;
        }
        if !turn.is_reachable(home) {
            return Err(Abort { key: Some(key), site: Some(home), ..Abort::of(Cause::Unreachable) });
        }
        let question = looking.ask(home);
        // Results of memoized functions are changed by whoever writes what they rest on: to wait for these is not worth it.
        if is_doubted && !is_call(&key.name) {
            question.waits = true;
            // Whoever reads it may well write it.
            question.claim.iter_mut().for_each(|claim| claim.writes.push(key.name.clone()));
        }
        question.gets.push((key.name, place));
        Err(unread(home))
    }

    /// Scans a span here, or notes that its home is to be asked.
    fn look_in(
        &mut self,
        turn: &Turn,
        table: &Table,
        looking: &mut Looking,
        place: usize,
        region: u16,
        span: Span,
    ) -> Result<Vec<(String, Seen)>> {
        if !span.is_sound() {
            return Err(Abort::of(Cause::Malformed));
        }
        let home = self.home_of(turn, region)?;
        // How doubts about a span are kept: by what its names begin with.
        let prefix = ObjectKey { home: region, name: span.prefix.clone() };
        let is_doubted = self.cache.is_doubted(&prefix);
        if home == turn.site.me && !looking.is_again() && !is_doubted {
            return looking.room.scan(table, &span);
        }
        if !turn.is_reachable(home) {
            return Err(Abort { site: Some(home), ..Abort::of(Cause::Unreachable) });
        }
        // Who only reads a contended span bars others from its second run on: one of many rows is changed each time.
        let is_reader = looking.claim.as_ref().is_some_and(|claim| claim.again && claim.writes.is_empty());
        let question = looking.ask(home);
        question.waits |= is_doubted;
        if is_reader && self.cache.is_contended(&prefix) {
            question.claim.iter_mut().for_each(|claim| claim.bars = true);
        }
        question.scans.push(place);
        question.spans.push(span);
        Err(unread(home))
    }

    /// Asks for turns over what is to be written, too. In a first run only those have a claim that wait where it is contended.
    fn claim_turns(&self, turn: &Turn, looking: &mut Looking) {
        if !looking.is_again() {
            for question in &mut looking.questions {
                question.claim = question.claim.take().filter(|_| question.waits);
            }
        }
        let writes = looking.claim.as_mut().map(|claim| std::mem::take(&mut claim.writes));
        for key in writes.into_iter().flatten().take(READ_ITEMS) {
            if let Ok(home) = self.home_of(turn, key.home)
                && turn.is_reachable(home)
            {
                let question = looking.ask(home);
                question.claim.iter_mut().for_each(|claim| claim.writes.push(key.name.clone()));
            }
        }
    }

    /// The site of a region, if there is one.
    fn home_of(&self, turn: &Turn, region: u16) -> Result<SiteId> {
        let site = SiteId::new(region, turn.site.me.lane);
        if turn.site.members.contains(&site) { Ok(site) } else { Err(Abort::of(Cause::UnknownRegion)) }
    }

    /// Asks a home, which may wait for so long before it answers where that is worth it.
    fn ask_home(&mut self, turn: &mut Turn, table: &Table, mut question: Question, patience: u64) {
        let token = self.next_token();
        let home = question.home;
        let mut is_contended = false;
        let gets = question.gets.iter().map(|(name, _)| {
            let key = ObjectKey { home: home.region, name: name.clone() };
            let reads = self.cache.take_reads(&key);
            is_contended |= self.cache.is_contended(&key);
            (key.name, reads + u32::from(question.counts))
        });
        let gets: Vec<(String, u32)> = gets.collect();
        let (scans, claim) = (std::mem::take(&mut question.spans), question.claim.take());
        // A right over what is written all the time would have to be asked back at once.
        let rights = home != turn.site.me && !(question.waits && is_contended) && self.uses_rights(turn);
        let patience = if question.waits || claim.is_some() { patience } else { 0 };
        let fetch = Fetch { token, start: self.start, gets, scans, rights, patience, claim };
        question.until = turn.now.mono + LONGEST_READ + LATE;
        self.timers.insert((question.until, Timer::Question(token)));
        self.questions.insert(token, question);
        if home == turn.site.me {
            return self.fetch(turn, table, home, fetch);
        }
        turn.metrics.fetches += 1;
        turn.send_object(home, Message::Fetch(Box::new(fetch)));
    }

    /// Asks for rights over copies that are in use.
    fn renew(&mut self, turn: &mut Turn, table: &Table, keys: Vec<ObjectKey>) {
        if keys.is_empty() || !self.uses_rights(turn) {
            return;
        }
        let mut questions: Vec<Question> = Vec::new();
        for ObjectKey { home, name } in keys {
            let home = SiteId::new(home, turn.site.me.lane);
            match questions.iter_mut().find(|question| question.home == home) {
                Some(question) => question.gets.push((name, 0)),
                None => {
                    let question = Question::new(home, turn.now.mono, false);
                    questions.push(Question { gets: vec![(name, 0)], ..question });
                }
            }
        }
        for question in questions {
            self.ask_home(turn, table, question, 0);
        }
    }

    /// Another site asks for values.
    pub(super) fn fetch(&mut self, turn: &mut Turn, table: &Table, from: SiteId, fetch: Fetch) {
        let claimed = fetch.claim.as_ref().map_or(0, |claim| claim.writes.len());
        if fetch.gets.len() + fetch.scans.len() > READ_ITEMS || claimed > READ_ITEMS {
            turn.metrics.ignored += 1;
            return;
        }
        let fetch = if fetch.patience > 0 { self.park(turn, from, fetch) } else { Some(fetch) };
        if let Some(fetch) = fetch {
            self.answer_fetch(turn, table, from, fetch);
        }
    }

    /// Answers with what is there.
    pub(super) fn answer_fetch(&mut self, turn: &mut Turn, table: &Table, from: SiteId, fetch: Fetch) {
        let Fetch { token, start, gets, scans, rights, claim, .. } = fetch;
        let rights = rights && self.uses_rights(turn);
        let is_whole = !gets.iter().any(|(name, _)| is_call(name) || self.locks.is_changing(name))
            && !scans.iter().any(|span| self.locks.changing_in(span).next().is_some());
        if let Some(claim) = claim.filter(|claim| claim.ends && is_whole) {
            self.end_claim(turn.now.mono, claim.rank.nonce);
        }
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
                let may = rights && !is_missing && !self.locks.is_changing(&name) && !self.claims.is_claimed(&name);
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
        let fetched = Fetched { token, start, gets: given, scans, is_whole };
        if from == turn.site.me {
            return self.fetched(turn, from, fetched);
        }
        turn.send_object(from, Message::Fetched(Box::new(fetched)));
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
        let Fetched { token, start, gets, scans, is_whole } = fetched;
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
                if from != turn.site.me {
                    self.cache.store(turn.now, turn.config.epsilon, key, given, question.asked);
                }
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
        waiting.reading.is_whole = is_whole && waiting.is_of_one;
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
