//! Reads: of this site's objects from storage, of others' from copies, or from their homes.
//!
//! A batch of reads is answered when all of it is there. All questions to one home travel in one message. An answer may
//! bring a right over each value. Reads under a right need no message until it ends; a right that is about to end is
//! renewed in the background while the object is in use. A home that is up and has not answered in time is reported as
//! late, one of which nothing is heard as unreachable.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::cache::{Cache, Used};
use super::calls::Calls;
use super::participant::Participant;
use super::serve::{Room, rows_bytes, seen_bytes, uses_rights};
use super::table::{Table, is_name};
use crate::api::{self, Reading, Response};
use crate::bounds::{AT_ONCE, ENTRY_BYTES, READ_ITEMS};
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::id::{OperationId, SiteId};
use crate::machine::ClientId;
use crate::object::message::{Claim, Fetch, Fetched, Message};
use crate::object::trace::Proof;
use crate::object::{self, Abort, Cause, Dependency, ObjectKey, Rank, Seen, Span, Version, is_call};
use crate::right::{Start, WarrantyNumber};
use crate::turn::{Here, Turn};

/// The most reads that wait for other sites.
const READS: usize = 65_536;
/// The most bytes that these hold: what was found of them until now, and the names that are asked for.
const READS_BYTES: usize = 256 << 20;
/// The most questions that are kept, answered reads' included: a home that is heard and hears nothing answers none.
const QUESTIONS: usize = 2 * READS;
/// The most bytes of the names in them.
const QUESTIONS_BYTES: usize = 256 << 20;
/// The most that a message takes besides its way, in microseconds: a right that ends sooner is not worth resting on.
const SLACK: u64 = 20 * MILLISECOND;
/// The time for which an answer is still taken after its reads were given up, in microseconds.
const LATE: u64 = 5 * SECOND;
/// The pause between two looks for rights over treaties that are to be renewed, in microseconds.
const UPKEEP: u64 = SECOND;
/// The most rights that one question renews.
const RENEWED_AT_ONCE: usize = 256;
/// The longest time that reads wait for other sites, in microseconds.
const LONGEST_READ: u64 = 60 * SECOND;

/// Reads that wait for other sites.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// The client that asked.
    client: ClientId,
    /// The answer as far as it is known. A place that is still asked for holds the abort that is told if no answer
    /// comes.
    reading: Reading,
    /// The number of its questions under way; at least one.
    missing: usize,
    /// True if one home is asked for all of it.
    is_of_one: bool,
    /// The time at which it is answered in any case, in monotonic microseconds.
    until: u64,
    /// The bytes that it holds, about.
    bytes: usize,
}

/// A question to a home.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The reads that wait for it; none for a question that only renews rights.
    reads: Option<u64>,
    /// True if its reads count as uses of the objects.
    counts: bool,
    /// The site that is asked.
    home: SiteId,
    /// The names, each with its place among the reads' gets.
    gets: Vec<(String, usize)>,
    /// The places of its spans among the reads' scans.
    scans: Vec<usize>,
    /// The spans, in the same order; empty once it is sent.
    spans: Vec<Span>,
    /// The monotonic time at which it is sent: rights in its answer count from there.
    asked: u64,
    /// The monotonic time after which its answer is no longer taken.
    until: u64,
    /// True if the answer may wait for prepared writes.
    waits: bool,
    /// The claim of the program that wants its turn; none once it is sent.
    claim: Option<Claim>,
}

impl Question {
    fn new(home: SiteId, asked: u64, counts: bool) -> Self {
        let (gets, scans, spans) = Default::default();
        Self { reads: None, counts, home, gets, scans, spans, asked, until: 0, waits: false, claim: None }
    }

    /// The bytes of the names that it asks for, about.
    fn bytes(&self) -> usize {
        self.gets.iter().map(|(name, _)| name.len() + ENTRY_BYTES).sum()
    }

    /// The number of objects and spans that it asks for.
    fn items(&self) -> usize {
        self.gets.len() + self.scans.len()
    }
}

type Result<T> = std::result::Result<T, Abort>;

/// A timer of a reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// Reads whose time is over.
    Read(u64),
    /// A question that no site answered in time.
    Question(u64),
    /// Rights over treaties are to be renewed.
    Treaties,
}

/// The reads of this site's clients: copies of other sites' objects, the rights held over them, and questions under
/// way.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// The site's start: rights are issued to it.
    pub(super) start: Start,
    /// Copies of other sites' objects, with the rights held over them.
    pub(super) cache: Cache,
    /// Reads that wait for answers, by token.
    waiting: FxHashMap<u64, Waiting>,
    /// The bytes that these hold; at most [`READS_BYTES`] and what came for them since.
    waiting_bytes: usize,
    /// Questions under way, by token.
    questions: BTreeMap<u64, Question>,
    /// The bytes of the names in these; at most [`QUESTIONS_BYTES`] and one question.
    questions_bytes: usize,
    /// True while there is a timer for the renewal of rights over treaties.
    has_upkeep: bool,
    /// When reads and questions are over, in monotonic microseconds. A timer of something that has ended is ignored.
    timers: BTreeSet<(u64, Timer)>,
    /// The last token that was given, to reads or to a question.
    tokens: u64,
}

/// This site's own objects, for its own clients.
pub(super) struct Home<'a> {
    /// The objects' locks, rights and claims.
    pub(super) participant: &'a mut Participant,
    /// The calls, whose uses are counted.
    pub(super) calls: &'a mut Calls,
    /// The objects as storage has them, as far as the view goes.
    pub(super) table: &'a Table<'a>,
}

impl Reader {
    /// A reader without copies; `token` is where the tokens of reads and questions begin.
    pub(super) fn new(token: u64) -> Self {
        Self {
            start: Start::default(),
            cache: Cache::default(),
            waiting: FxHashMap::default(),
            waiting_bytes: 0,
            questions: BTreeMap::new(),
            questions_bytes: 0,
            has_upkeep: false,
            timers: BTreeSet::new(),
            tokens: token,
        }
    }
}

/// The abort that stands where a home is asked and has not answered.
fn unread(home: SiteId) -> Abort {
    Abort { site: Some(home), ..Abort::of(Cause::DeadlinePassed) }
}

/// The bytes of what was found until now.
fn found_bytes(reading: &Reading) -> usize {
    let gets = reading.gets.iter().flatten().map(seen_bytes);
    gets.chain(reading.scans.iter().flatten().map(|rows| rows_bytes(rows))).sum()
}

/// What came for reads that wait for more, if there is room for it.
fn held<T>(result: Result<T>, room: &mut usize, bytes: impl Fn(&T) -> usize) -> Result<T> {
    let found = result?;
    *room = room.checked_sub(bytes(&found)).ok_or_else(|| Abort::of(Cause::Overloaded))?;
    Ok(found)
}

/// A batch of reads while it is sorted by who has the objects.
struct Looking {
    /// True if copies without a right do not count.
    fresh: bool,
    /// True if the reads are no use of the objects.
    upkeep: bool,
    /// The turn that the program wants, if it wants one.
    claim: Option<api::Claim>,
    /// The program's place in the order, if it has a claim.
    rank: Option<Rank>,
    /// The monotonic time of the call.
    asked: u64,
    /// The room that is left in the answer.
    room: Room,
    /// One question for each home that is to be asked.
    questions: Vec<Question>,
    /// Copies whose rights are to be renewed.
    renewals: Vec<ObjectKey>,
}

impl Looking {
    /// True if it is for a program that runs again and wants its turn at each home that it reads from.
    fn is_again(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.again)
    }

    /// The question to a home; begins one if there is none.
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

impl Reader {
    /// Reads objects for a client.
    pub(super) fn read(&mut self, turn: &mut Turn, home: &mut Home, client: ClientId, read: api::Read) {
        let api::Read { token, gets, scans, fresh, upkeep, timeout, claim } = read;
        let mut reading = Reading { token, gets: Vec::new(), scans: Vec::new(), is_whole: false };
        let items = gets.len() + scans.len();
        if items > READ_ITEMS {
            reading.gets.extend(gets.first().map(|_| Err(Abort::of(Cause::TooMuch))));
            return turn.out.responses.push((client, Response::Read(Box::new(reading))));
        }

        // Each read is answered here, from a copy, or becomes part of the one question to its home.
        let rank = claim.as_ref().map(|claim| Rank::of(claim.origin, turn.here.now.wall));
        let (questions, renewals, room) = (Vec::new(), Vec::new(), Room::new());
        let mut looking = Looking { fresh, upkeep, claim, rank, asked: turn.here.now.mono, room, questions, renewals };
        for (place, key) in gets.into_iter().enumerate() {
            let got = self.look_for(&turn.here, home, &mut looking, place, key);
            reading.gets.push(got);
        }
        for (place, (region, span)) in scans.into_iter().enumerate() {
            let scanned = self.look_in(&turn.here, home, &mut looking, place, region, span);
            reading.scans.push(scanned);
        }

        // A program that reads at one home with one question, and writes nothing, may need no check (see
        // `Reading::is_whole`): nothing else would end its claim.
        let asked: usize = looking.questions.iter().map(Question::items).sum();
        self.claim_turns(&turn.here, &mut looking);
        let Looking { mut questions, renewals, .. } = looking;
        let is_of_one = questions.len() == 1 && asked == items;
        if is_of_one && let Some(claim) = questions[0].claim.as_mut().filter(|claim| claim.writes.is_empty()) {
            claim.ends = true;
        }

        self.renew(turn, renewals);
        if questions.is_empty() {
            return turn.out.responses.push((client, Response::Read(Box::new(reading))));
        }
        let bytes = found_bytes(&reading) + questions.iter().map(Question::bytes).sum::<usize>();
        if self.waiting.len() >= READS || self.waiting_bytes + bytes > READS_BYTES {
            let overloaded = || Abort::of(Cause::Overloaded);
            for Question { gets, scans, .. } in questions {
                gets.into_iter().for_each(|(_, place)| reading.gets[place] = Err(overloaded()));
                scans.into_iter().for_each(|place| reading.scans[place] = Err(overloaded()));
            }
            return turn.out.responses.push((client, Response::Read(Box::new(reading))));
        }
        self.waiting_bytes += bytes;

        // The client gets an answer when its time is up, whatever the homes do. So a home may wait for prepared writes
        // for half of that time only: after it, it answers with the value as it is, and the answer has to come back.
        let name = self.next_token();
        let timeout = timeout.clamp(MILLISECOND, LONGEST_READ);
        let until = turn.here.now.mono + timeout;
        self.waiting.insert(name, Waiting { client, reading, missing: questions.len(), is_of_one, until, bytes });
        self.timers.insert((until, Timer::Read(name)));
        for mut question in questions {
            question.reads = Some(name);
            self.ask_home(turn, question, timeout / 2);
        }
    }

    /// Reads an object here, or adds it to the question to its home.
    fn look_for(
        &mut self,
        here: &Here,
        own: &mut Home,
        looking: &mut Looking,
        place: usize,
        key: ObjectKey,
    ) -> Result<Seen> {
        if !is_name(&key.name) {
            return Err(Abort::of(Cause::InvalidKey));
        }
        let home = match self.home_of(here, key.home) {
            Ok(home) => home,
            Err(abort) => return Err(Abort { key: Some(key), ..abort }),
        };

        // This site's own objects are read at once, unless the read may have to wait: then this site is asked like any
        // other home, so that the reads of all programs wait in one queue.
        let is_doubted = self.cache.is_doubted(&key);
        if home == here.site.me && !looking.is_again() && !is_doubted {
            let wanted = (&*key.name, looking.upkeep);
            return own.participant.read_here(here, own.table, own.calls, wanted, &mut looking.room);
        }

        // A copy may be stale without harm: a transaction that used it without a right is validated at its home.
        let Looking { fresh, upkeep, .. } = *looking;
        if let Some(Used { seen, renew }) = self.cache.read(here.now, here.config.epsilon, &key, fresh, upkeep) {
            let seen = looking.room.hold(|| Ok(seen.clone()), seen_bytes);
            if renew {
                looking.renewals.push(key);
            }
            return seen;
        }
        if !here.is_reachable(home) {
            return Err(Abort { key: Some(key), site: Some(home), ..Abort::of(Cause::Unreachable) });
        }

        // Where it is contended, the read waits for its turn, and claims the object for writing: a program that reads
        // it may well write it. The result of a memoized function is changed by every writer of what it rests on, so
        // its turn never comes.
        let question = looking.ask(home);
        if is_doubted && !is_call(&key.name) {
            question.waits = true;
            question.claim.iter_mut().for_each(|claim| claim.writes.push(key.name.clone()));
        }
        question.gets.push((key.name, place));
        Err(unread(home))
    }

    /// Scans a span here, or adds it to the question to its home.
    fn look_in(
        &mut self,
        here: &Here,
        own: &Home,
        looking: &mut Looking,
        place: usize,
        region: u16,
        span: Span,
    ) -> Result<Vec<(String, Seen)>> {
        if !span.is_sound() {
            return Err(Abort::of(Cause::Malformed));
        }

        // Doubts about a span are kept under its prefix. A span is never answered from copies: these do not show what
        // is missing.
        let home = self.home_of(here, region)?;
        let prefix = ObjectKey { home: region, name: span.prefix.clone() };
        let is_doubted = self.cache.is_doubted(&prefix);
        if home == here.site.me && !looking.is_again() && !is_doubted {
            return looking.room.scan(own.table, &span);
        }
        if !here.is_reachable(home) {
            return Err(Abort { site: Some(home), ..Abort::of(Cause::Unreachable) });
        }

        // A program that only reads a contended span bars others from its second run on: some row of it changes in
        // every run, so without that the program would never end.
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

    /// Adds the objects that the program is to write to its claims.
    fn claim_turns(&self, here: &Here, looking: &mut Looking) {
        // In a first run, only a question that waits where it is contended has a claim: most first runs need no turn.
        if !looking.is_again() {
            for question in &mut looking.questions {
                question.claim = question.claim.take().filter(|_| question.waits);
            }
        }

        let writes = looking.claim.as_mut().map(|claim| std::mem::take(&mut claim.writes));
        for key in writes.into_iter().flatten().take(READ_ITEMS) {
            if let Ok(home) = self.home_of(here, key.home)
                && here.is_reachable(home)
            {
                let question = looking.ask(home);
                question.claim.iter_mut().for_each(|claim| claim.writes.push(key.name.clone()));
            }
        }
    }

    /// The site of a region; an abort if there is none.
    fn home_of(&self, here: &Here, region: u16) -> Result<SiteId> {
        let site = SiteId::new(region, here.site.me.lane);
        if here.site.is_present(site) { Ok(site) } else { Err(Abort::of(Cause::UnknownRegion)) }
    }

    /// Sends a question to its home, which may wait for up to `patience` microseconds before it answers.
    fn ask_home(&mut self, turn: &mut Turn, mut question: Question, patience: u64) {
        let token = self.next_token();
        let home = question.home;

        // The home hears how often its objects were read from copies: it issues rights by that.
        let mut is_contended = false;
        let gets = question.gets.iter().map(|(name, _)| {
            let key = ObjectKey { home: home.region, name: name.clone() };
            let reads = self.cache.take_reads(&key);
            is_contended |= self.cache.is_contended(&key);
            (key.name, reads + u32::from(question.counts))
        });
        let gets: Vec<(String, u32)> = gets.collect();
        let (scans, claim) = (std::mem::take(&mut question.spans), question.claim.take());

        // A right over an object that is written all the time would have to be asked back at once.
        let rights = home != turn.here.site.me && !(question.waits && is_contended) && uses_rights(&turn.here);
        let patience = if question.waits || claim.is_some() { patience } else { 0 };
        let fetch = Fetch { token, start: self.start, gets, scans, rights, patience, claim };

        // Beyond the bounds the oldest one goes. If its reads still wait, they are answered when their time is up.
        while (self.questions.len() >= QUESTIONS || self.questions_bytes > QUESTIONS_BYTES)
            && let Some((&oldest, question)) = self.questions.first_key_value()
        {
            self.timers.remove(&(question.until, Timer::Question(oldest)));
            self.give_up_question(oldest);
        }

        // The question outlives its reads: a late answer still brings copies and rights.
        question.until = turn.here.now.mono + LONGEST_READ + LATE;
        self.timers.insert((question.until, Timer::Question(token)));
        self.questions_bytes += question.bytes();
        self.questions.insert(token, question);
        turn.out.metrics.fetches += u64::from(home != turn.here.site.me);
        turn.out.send(home, Message::Fetch(Box::new(fetch)));
    }

    /// Asks the homes of copies that are in use for new rights over them.
    fn renew(&mut self, turn: &mut Turn, keys: Vec<ObjectKey>) {
        if !uses_rights(&turn.here) {
            // Not now: the clock is wrong perhaps. At a later use it is asked.
            return keys.iter().for_each(|key| self.cache.not_renewed(key));
        }

        // A question of its own, for which no reads wait: the client has its answer from the copy already.
        let mut questions: Vec<Question> = Vec::new();
        for ObjectKey { home, name } in keys {
            let home = SiteId::new(home, turn.here.site.me.lane);
            let has_room = |question: &&mut Question| question.home == home && question.gets.len() < RENEWED_AT_ONCE;
            match questions.iter_mut().find(has_room) {
                Some(question) => question.gets.push((name, 0)),
                None => {
                    let question = Question::new(home, turn.here.now.mono, false);
                    questions.push(Question { gets: vec![(name, 0)], ..question });
                }
            }
        }

        for question in questions {
            self.ask_home(turn, question, 0);
        }
    }

    /// Renews rights over treaties that were used here lately: who relies on one now and then should not have to ask each time.
    fn renew_treaties(&mut self, turn: &mut Turn) {
        self.has_upkeep = self.cache.has_treaties();
        if self.has_upkeep {
            self.timers.insert((turn.here.now.mono + UPKEEP, Timer::Treaties));
            let due = self.cache.treaties_to_renew(turn.here.now, turn.here.config.epsilon);
            self.renew(turn, due);
        }
    }

    /// Gives up a question that was not answered in time.
    pub(super) fn give_up_question(&mut self, token: u64) {
        let Some(question) = self.take_question(token).filter(|question| question.reads.is_none()) else { return };

        // A renewal that was lost may be asked for again. Else one lost message would end the use of the right.
        for (name, _) in question.gets {
            self.cache.not_renewed(&ObjectKey { home: question.home.region, name });
        }
    }

    /// Removes a question, if it is there.
    fn take_question(&mut self, token: u64) -> Option<Question> {
        let question = self.questions.remove(&token)?;
        self.questions_bytes -= question.bytes();
        Some(question)
    }

    /// Takes a home's answer.
    pub(super) fn fetched(&mut self, turn: &mut Turn, from: SiteId, fetched: Fetched) {
        let Fetched { token, start, gets, scans, is_whole } = fetched;
        let Some(question) = self.take_question(token) else { return };
        self.timers.remove(&(question.until, Timer::Question(token)));

        // Rights are issued to one start of this site, and values stand in the order in which they were asked for. An
        // answer to another start's question could give this one a right that the home takes for another's.
        if question.home != from
            || start != self.start
            || gets.len() != question.gets.len()
            || scans.len() != question.scans.len()
        {
            turn.out.metrics.ignored += 1;
            return;
        }

        let mut waiting = question.reads.and_then(|name| self.waiting.get_mut(&name));

        // What comes while too much is held is not held as well. With their last answer the reads are complete, and held no longer.
        let is_last = waiting.as_ref().is_some_and(|waiting| waiting.missing == 1);
        let mut room = if is_last { usize::MAX } else { READS_BYTES.saturating_sub(self.waiting_bytes) };

        // A right counts from when the question was sent: the home counts it from a later time, when it issued it, so
        // this site stops relying on it first.
        for ((name, place), result) in question.gets.into_iter().zip(gets) {
            let key = ObjectKey { home: from.region, name };
            let result = match result {
                Ok(given) => {
                    let seen = given.seen.clone();
                    if from != turn.here.site.me {
                        self.cache.store(turn.here.now, turn.here.config.epsilon, key, given, question.asked);
                    }
                    Ok(seen)
                }
                Err(abort) => {
                    self.cache.not_renewed(&key);
                    Err(abort)
                }
            };
            if let Some(waiting) = &mut waiting {
                waiting.reading.gets[place] = held(result, &mut room, seen_bytes);
            }
        }

        if !self.has_upkeep && self.cache.has_treaties() {
            self.has_upkeep = true;
            self.timers.insert((turn.here.now.mono + UPKEEP, Timer::Treaties));
        }

        let Some(waiting) = waiting else { return };
        for (place, result) in question.scans.into_iter().zip(scans) {
            waiting.reading.scans[place] = held(result, &mut room, |rows| rows_bytes(rows));
        }
        let bytes = found_bytes(&waiting.reading).max(waiting.bytes);
        self.waiting_bytes += bytes - std::mem::replace(&mut waiting.bytes, bytes);
        assert!(waiting.missing > 0, "reads that were answered in full wait for an answer");
        waiting.missing -= 1;

        // Whole only if one home answered all of it at one instant, with nothing prepared that changes it. Reads of two
        // homes are of two instants, and have to be checked.
        waiting.reading.is_whole = is_whole && waiting.is_of_one;
        if waiting.missing == 0 {
            self.answer_read(turn, question.reads.expect("it waits"));
        }
    }

    /// Answers reads with the values that have come. A missing value is reported as late, or as of an unreachable home.
    pub(super) fn answer_read(&mut self, turn: &mut Turn, name: u64) {
        let Some(mut waiting) = self.waiting.remove(&name) else { return };
        self.waiting_bytes -= waiting.bytes;
        self.timers.remove(&(waiting.until, Timer::Read(name)));

        // A client may do different things: ask again, or go on without a home that is down.
        if waiting.missing > 0 {
            let Reading { gets, scans, .. } = &mut waiting.reading;
            let unread = gets.iter_mut().filter_map(|got| got.as_mut().err());
            for abort in unread.chain(scans.iter_mut().filter_map(|got| got.as_mut().err())) {
                if abort.cause == Cause::DeadlinePassed && abort.site.is_some_and(|home| !turn.here.is_reachable(home))
                {
                    abort.cause = Cause::Unreachable;
                }
            }
        }

        turn.out.responses.push((waiting.client, Response::Read(Box::new(waiting.reading))));
    }

    /// Takes the reads out of a part that live warranties prove, and lowers `until` to the end of the earliest of
    /// these.
    pub(super) fn rest_on_rights(
        &self,
        here: &Here,
        home: &mut object::Home,
        way: u64,
        rests: &mut Vec<Proof>,
        until: &mut i64,
    ) {
        // A right ends by the wall clocks of two sites. If they are known to disagree, the issuer may have let it end
        // already.
        let issuer = SiteId::new(home.region, here.site.me.lane);
        if !uses_rights(here) || !here.agrees_with(issuer) {
            return;
        }

        let object::Home { region, incarnation, part } = home;
        let mut kept = Vec::new();
        for (name, number) in std::mem::take(&mut part.reads) {
            // Objects that the transaction writes, or on which a call depends, are validated at home and never under a
            // right: its locks must hold there until the decision.
            let key = ObjectKey { home: *region, name };
            let is_written = part.writes.binary_search_by(|(other, _)| other.cmp(&key.name)).is_ok()
                || part.depends.iter().any(|(dependency, _)| *dependency == Dependency::Name(key.name.clone()));

            // The right must be over the very version that was read, and last until the other participants can have
            // prepared.
            let version = Version { incarnation: *incarnation, number };
            let right = self.cache.right(here.now, here.config.epsilon, &key, version);
            let needed = if way == 0 { 0 } else { way + SLACK };
            match right.filter(|right| !is_written && right.left(here.now, here.config.epsilon) > needed) {
                Some(right) => {
                    let relied_until = right.relied_until(here.config.epsilon);
                    *until = (*until).min(right.expiry);
                    rests.push(Proof { key, until: relied_until });
                }
                None => kept.push((key.name, number)),
            }
        }

        part.reads = kept;
    }

    /// Drops the copy that a transaction found stale, and counts a doubt: later copies of the object are used with more
    /// care.
    pub(super) fn note_stale(&mut self, abort: &Abort) {
        if let Some(key) = abort.key.as_ref().filter(|_| matches!(abort.cause, Cause::Changed | Cause::Busy)) {
            self.cache.doubt(key);
            if abort.cause == Cause::Changed {
                self.cache.drop_copy(key);
            }
        }
    }

    /// Gives up rights that a home asks back, except those on which a transaction under way rests.
    pub(super) fn revoke(
        &mut self,
        turn: &mut Turn,
        from: SiteId,
        holder: Start,
        rights: Vec<(String, WarrantyNumber)>,
    ) {
        // Never for an earlier life: a transaction that it sent may still rest on the right, and this life does not
        // know. The home waits for the right's end.
        if holder != self.start {
            return;
        }

        // A pinned right is given up later, when its transaction is decided, by a message of its own.
        let mut given_up = Vec::with_capacity(rights.len());
        for (name, number) in rights {
            let key = ObjectKey { home: from.region, name };
            if self.cache.give_up(turn.here.now, &key, number) {
                given_up.push((key.name, number));
            }
        }

        if !given_up.is_empty() {
            turn.out.send(from, Message::Revoked { holder, rights: given_up });
        }
    }

    /// Tells a home that a right it has asked back is given up: nothing rests on it any more.
    fn acknowledge(&mut self, turn: &mut Turn, key: ObjectKey, number: WarrantyNumber) {
        let home = SiteId::new(key.home, turn.here.site.me.lane);
        turn.out.send(home, Message::Revoked { holder: self.start, rights: vec![(key.name, number)] });
    }

    /// Pins the rights on which a transaction rests, until it is decided or its deadline is past by both clocks.
    pub(super) fn pin(&mut self, here: &Here, id: OperationId, rests: &[ObjectKey], deadline: i64) {
        // Participants refuse before the deadline, by the true time. This clock shows that it is past within 2ε: it may be slow, or fast now and
        // be set right.
        let left = u64::try_from(deadline.saturating_sub(here.now.wall)).unwrap_or(0) + 2 * here.config.epsilon;
        let until = Now { wall: here.now.wall.saturating_add_unsigned(left), mono: here.now.mono.saturating_add(left) };
        rests.iter().for_each(|key| self.cache.pin(key, id, until));
    }

    /// Ends the pins of a decided transaction, and gives up the rights that were asked back meanwhile.
    pub(super) fn unpin(&mut self, turn: &mut Turn, id: OperationId, rests: &[ObjectKey]) {
        for key in rests {
            if let Some(number) = self.cache.unpin(turn.here.now, key, id) {
                self.acknowledge(turn, key.clone(), number);
            }
        }
    }

    /// The earliest time at which something comes due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due, at most [`AT_ONCE`] things a call.
    pub(super) fn tick(&mut self, turn: &mut Turn) {
        let due = self.timers.iter().copied().take_while(|(at, _)| *at <= turn.here.now.mono);
        let due: Vec<(u64, Timer)> = due.take(AT_ONCE).collect();
        for (at, timer) in due {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Read(name) => self.answer_read(turn, name),
                Timer::Question(token) => self.give_up_question(token),
                Timer::Treaties => self.renew_treaties(turn),
            }
        }
    }

    /// Gives the next token. No token is given twice in a life, so that an old answer is never taken for a new one.
    fn next_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }
}
