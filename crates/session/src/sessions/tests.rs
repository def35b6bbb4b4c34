//! Scripts: what callers and the site do, and what leaves.

use std::task::{Wake, Waker};

use slackline_core::object::{Change, Home, ObjectKey, Part, Transaction, Value};

use std::sync::Arc;

use slackline_core::api::{Answer, Batch, Hold, Operation, Outcome, SESSION_WINDOW, UnknownReason};
use slackline_core::id::GrantId;

use super::windows::SESSIONS;
use super::*;

mod patience;

const SITE: SiteId = SiteId::new(1, 0);
const INCARNATION: Incarnation = Incarnation(1);
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// A book, and a clock for it. What happens to the book leaves it in order, which is checked each time.
struct Script {
    book: Sessions,
    now: Time,
    wakers: Vec<Waker>,
    sessions: u64,
    /// Whether another site would take a call.
    elsewhere: bool,
}

impl Script {
    fn new() -> Self {
        Self { book: Sessions::new(SITE), now: Time(1_000_000_000), wakers: Vec::new(), sessions: 0, elsewhere: false }
    }

    /// With a stream, and a session on it.
    fn connected() -> Self {
        let mut script = Self::new();
        script.connect();
        script
    }

    fn connect(&mut self) {
        self.book.connected(false);
        self.open();
    }

    /// Lets the book open sessions for as long as it asks for one.
    fn open(&mut self) {
        while let Some(request) = self.book.queue.outbox.pop_front() {
            match request {
                Request::Open => {
                    self.sessions += 1;
                    self.book.opened(INCARNATION, SessionId(self.sessions));
                }
                other => {
                    self.book.queue.outbox.push_front(other);
                    return;
                }
            }
        }
    }

    /// Opens all sessions that there may be, and does this to the windows and the position of each.
    fn with_every_session(mut self, does: impl Fn(&mut Windows, usize)) -> Self {
        for session in 1..=SESSIONS as u64 {
            if session > 1 {
                self.book.opened(INCARNATION, SessionId(session));
            }
            let windows = &mut self.book.windows;
            let position = windows.position(SessionId(session)).expect("it is open");
            does(windows, position);
        }
        self
    }

    /// Opens a session if the book wants one for what is to leave.
    fn open_if_wanted(&mut self) {
        if self.book.has_something_to_send() && self.book.wants_session() {
            assert_eq!(self.book.next_request(self.now), Some(Request::Open));
            self.sessions += 1;
            self.book.opened(INCARNATION, SessionId(self.sessions));
        }
    }

    fn terms(&self) -> Terms {
        Terms { deadline: self.now + 10 * SECOND, pinned: false, patience: None }
    }

    /// With a patience of one second, and another site at hand.
    fn impatient(&mut self) -> Terms {
        self.elsewhere = true;
        Terms { patience: Some(SECOND), ..self.terms() }
    }

    fn submit(&mut self, command: Command) -> CallKey {
        let terms = self.terms();
        self.submit_on(command, terms)
    }

    fn submit_on(&mut self, command: Command, terms: Terms) -> CallKey {
        let key = self.book.submit(command, terms, self.now).expect("there is room");
        assert!(self.poll(key).is_none());
        key
    }

    fn poll(&mut self, key: CallKey) -> Option<Finished> {
        self.book.poll(key, &Waker::from(Arc::new(Nobody)), || self.elsewhere)
    }

    /// True if a call has ended, and was granted its tokens.
    fn is_granted(&mut self, key: CallKey) -> bool {
        matches!(self.poll(key).expect("its end").reply, Reply::Answered(Outcome::Granted { .. }))
    }

    /// The next message, which must be a batch.
    fn batch(&mut self) -> Option<Batch> {
        match self.request()? {
            Request::Batch(batch) => Some(batch),
            other => panic!("not a batch: {other:?}"),
        }
    }

    fn answer(&mut self, session: u64, answers: &[(u64, Outcome)]) {
        let answers =
            answers.iter().map(|(sequence, outcome)| Answer { sequence: *sequence, outcome: outcome.clone() });
        self.book.answers(SessionId(session), answers.collect(), self.now, &mut self.wakers);
        self.book.check();
    }

    fn disconnect(&mut self) {
        self.book.disconnected(self.now, &mut self.wakers);
        self.book.check();
    }

    fn asked(&mut self, operation: OperationId, outcome: Outcome) {
        self.book.asked(operation, outcome, self.now, &mut self.wakers);
        self.book.check();
    }

    fn request(&mut self) -> Option<Request> {
        let request = self.book.next_request(self.now);
        self.book.check();
        request
    }

    /// What is left for the client to see to, as (id, outcome).
    fn left(&self) -> Vec<(Option<OperationId>, Option<Outcome>)> {
        self.book.left().into_iter().map(|left| (left.id, left.outcome)).collect()
    }

    fn sweep(&mut self, after: Duration) -> Option<Time> {
        self.now += after;
        let next = self.book.sweep(self.now, &mut self.wakers);
        self.book.check();
        next
    }
}

fn acquire(amount: i64) -> Command {
    Command::Acquire { quota: "gpus".into(), amount, hold: Hold::Counted, waits: false }
}

/// An acquire that stays in line.
fn stay(amount: i64) -> Command {
    Command::Acquire { quota: "gpus".into(), amount, hold: Hold::Counted, waits: true }
}

fn release(amount: i64) -> Command {
    Command::Release { quota: "gpus".into(), amount }
}

fn granted(number: u64) -> Outcome {
    Outcome::Granted { grant: GrantId { site: SITE, incarnation: INCARNATION, number }, lasts: None }
}

fn id(session: u64, sequence: u64) -> OperationId {
    OperationId { site: SITE, incarnation: INCARNATION, session: SessionId(session), sequence }
}

fn sequences(batch: &Batch) -> Vec<u64> {
    batch.operations.iter().map(|submission| submission.sequence).collect()
}

#[test]
fn calls_during_a_batch_travel_together_in_the_next() {
    let mut script = Script::connected();
    let first = script.submit(acquire(1));
    let batch = script.batch().expect("nothing is under way");
    assert_eq!((sequences(&batch), batch.low), (vec![1], 1));
    let later: Vec<CallKey> = (0..3).map(|_| script.submit(acquire(1))).collect();
    assert_eq!(script.batch(), None, "one batch in flight");
    script.answer(1, &[(1, granted(1))]);
    assert!(matches!(script.poll(first).expect("answered").reply, Reply::Answered(Outcome::Granted { .. })));
    let batch = script.batch().expect("the first has its answer");
    assert_eq!((sequences(&batch), batch.low), (vec![2, 3, 4], 2));
    script.answer(1, &[(4, granted(4)), (2, granted(2))]);
    assert!(script.poll(later[1]).is_none() && script.poll(later[2]).is_some());
}

#[test]
fn crowd_travels_in_three_parts() {
    let mut script = Script::connected();
    for _ in 0..600 {
        script.submit(acquire(1));
    }
    let parts: Vec<_> = std::iter::from_fn(|| script.batch()).map(|part| part.operations.len()).collect();
    assert_eq!(parts, [200, 200, 200]);
    for _ in 0..200 {
        script.submit(acquire(1));
    }
    assert_eq!(script.batch(), None, "no more than three");
    let answers: Vec<_> = (1..=200).map(|sequence| (sequence, granted(sequence))).collect();
    script.answer(1, &answers);
    assert_eq!(script.batch().expect("one has its answer").operations.len(), 200);
}

#[test]
fn calls_that_wait_at_the_site_hold_nothing_up() {
    let mut script = Script::connected();
    let slow = script.submit(acquire(1000));
    script.batch().expect("nothing is under way");
    script.answer(1, &[]);
    // Its sequence stays at the low mark until the session's window is used up; then another session takes over.
    for round in 0..3000 {
        let key = script.submit(acquire(1));
        script.open_if_wanted();
        let batch = script.batch().unwrap_or_else(|| panic!("stuck in round {round}"));
        assert!(batch.operations[0].sequence < batch.low + SESSION_WINDOW, "beyond the window");
        script.answer(batch.session.0, &[(batch.operations[0].sequence, granted(round))]);
        assert!(script.poll(key).is_some());
    }
    assert_eq!(script.book.windows.len(), 2);
    script.answer(1, &[(1, granted(9000))]);
    assert!(script.poll(slow).is_some());
}

/// Each time one acquire stays in line, and more other calls come and go than a window holds. Before the two kinds had sessions of their
/// own, one that stayed kept each of the 64 windows from moving on, and the releases that they waited for did not leave any more.
#[test]
fn acquires_that_stay_in_line_keep_no_release_from_leaving() {
    let mut script = Script::connected();
    for _ in 0..70 {
        script.submit(stay(1));
        script.open_if_wanted();
        let batch = script.batch().expect("it leaves");
        script.answer(batch.session.0, &[]);
        script.submit(release(1));
        script.open_if_wanted();
        let batch = script.batch().expect("it leaves");
        script.answer(batch.session.0, &[(batch.operations[0].sequence, Outcome::Released { amount: 1 })]);
        for _ in 0..1100 {
            let windows = &mut script.book.windows;
            let position = windows.roomiest(false).expect("there is room");
            let sequence = windows[position].give(0, false);
            windows[position].settle(sequence);
        }
    }
    script.submit(release(1));
    script.open_if_wanted();
    let batch = script.batch().expect("the release leaves");
    assert!(matches!(batch.operations[0].operation, Operation::Release { .. }));
    assert_eq!(script.book.windows.len(), 2, "one for each kind");
}

#[test]
fn a_call_that_stays_and_others_leave_in_turn() {
    let mut script = Script::connected();
    let releases: Vec<bool> = (0..6)
        .map(|_| {
            script.submit(stay(1));
            script.submit(release(1));
            script.open_if_wanted();
            let batch = script.batch().expect("something leaves");
            script.answer(batch.session.0, &[]);
            matches!(batch.operations[0].operation, Operation::Release { .. })
        })
        .collect();
    assert_eq!(releases, [false, true, false, true, false, true]);
}

/// Other calls are under way in every session that there may be: one that stays leaves all the same.
#[test]
fn call_that_stays_leaves_though_others_are_in_every_session() {
    let mut script = Script::connected().with_every_session(|windows, position| {
        windows[position].give(0, false);
    });
    let doubted = script.book.windows.operation(0, 1);
    script.book.windows.doubt(doubted, script.now);
    script.submit(stay(1));
    // Not checked: no call here has the sequences that were given.
    let request = script.book.next_request(script.now);
    assert!(matches!(request, Some(Request::Batch(batch)) if batch.operations.len() == 1));
    assert!(script.book.windows.take_up(doubted, 0), "what may be asked about is not let go of in vain");
}

#[test]
fn connection_lost_unsent_calls_go_elsewhere_and_sent_ones_keep_their_id() {
    let mut script = Script::connected();
    let sent = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    let fresh = script.submit(acquire(2));
    let pinned = script.submit_on(acquire(3), Terms { pinned: true, ..script.terms() });
    script.disconnect();
    let finished = script.poll(fresh).expect("turned away");
    assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Unreachable)) && finished.id.is_none());
    script.connect();
    let batch = script.batch().expect("the call in doubt");
    assert_eq!(sequences(&batch), [1]);
    script.answer(1, &[(1, granted(1))]);
    assert_eq!(script.poll(sent).expect("answered").id, Some(id(1, 1)));
    let batch = script.batch().expect("the pinned call has waited");
    assert_eq!(sequences(&batch), [2]);
    script.answer(1, &[(2, granted(2))]);
    assert!(script.poll(pinned).is_some());
}

#[test]
fn deadline_passed_is_unknown_for_what_was_sent_and_not_taken_for_what_was_not() {
    let mut script = Script::connected();
    let sent = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    let fresh = script.submit(acquire(1));
    script.sweep(11 * SECOND);
    let finished = script.poll(sent).expect("told");
    assert!(matches!(finished.reply, Reply::InDoubt));
    assert_eq!(finished.id, Some(id(1, 1)));
    assert!(matches!(script.poll(fresh).expect("told").reply, Reply::NotTaken(NotTaken::DeadlinePassed)));
    // The mark does not pass what somebody may still ask about, nor does a late answer move it.
    script.answer(1, &[(1, granted(1))]);
    script.submit(acquire(1));
    assert_eq!(script.batch().expect("answered").low, 1);
    script.answer(1, &[(2, granted(2))]);
    script.sweep(WATCH);
    script.submit(acquire(1));
    assert_eq!(script.batch().expect("answered").low, 3);
}

#[test]
fn unrecorded_refusal_is_final_only_for_what_was_sent_once() {
    let mut script = Script::connected();
    let once = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.answer(1, &[(1, Outcome::Refused(Refusal::NotReady))]);
    let finished = script.poll(once).expect("final");
    assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Refused(Refusal::NotReady))));

    let twice = script.submit(acquire(1));
    script.batch().expect("answered");
    script.disconnect();
    script.connect();
    assert_eq!(sequences(&script.batch().expect("in doubt")), [2]);
    script.answer(1, &[(2, Outcome::Refused(Refusal::NotReady))]);
    assert!(script.poll(twice).is_none());
    assert_eq!(script.book.next_request(script.now), Some(Request::Ask { operation: id(1, 2) }));
    // The site cannot look yet, so it is asked again.
    script.book.asked(id(1, 2), Outcome::Unknown(UnknownReason::NotReady), script.now, &mut script.wakers);
    script.sweep(SECOND);
    assert_eq!(script.book.next_request(script.now), Some(Request::Ask { operation: id(1, 2) }));
    script.book.asked(id(1, 2), granted(7), script.now, &mut script.wakers);
    assert!(matches!(script.poll(twice).expect("settled").reply, Reply::Answered(Outcome::Granted { .. })));
}

/// What a site says of the only copy that left is not passed on as unknown: the call was not taken.
#[test]
fn site_that_cannot_look_leaves_what_was_sent_once_free_to_go_elsewhere() {
    for (doubt, why) in
        [(UnknownReason::NotReady, Refusal::NotReady), (UnknownReason::StorageFull, Refusal::StorageFull)]
    {
        let mut script = Script::connected();
        let once = script.submit(acquire(1));
        script.batch().expect("nothing is under way");
        script.answer(1, &[(1, Outcome::Unknown(doubt))]);
        let finished = script.poll(once).expect("final");
        assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Refused(refusal)) if refusal == why));

        let twice = script.submit(acquire(1));
        script.batch().expect("answered");
        script.disconnect();
        script.connect();
        script.batch().expect("in doubt");
        script.answer(1, &[(2, Outcome::Unknown(doubt))]);
        assert!(script.poll(twice).is_none(), "an earlier copy may have been carried out");
        assert_eq!(script.book.next_request(script.now), Some(Request::Ask { operation: id(1, 2) }));
        script.book.asked(id(1, 2), Outcome::Refused(why), script.now, &mut script.wakers);
        let finished = script.poll(twice).expect("settled");
        assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Refused(refusal)) if refusal == why));
    }
}

#[test]
fn session_forgotten_reissues_what_was_sent_once_under_a_new_id() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::Forgotten))]);
    assert!(script.poll(key).is_none());
    assert_eq!(script.book.next_request(script.now), Some(Request::Open));
    script.book.opened(INCARNATION, SessionId(2));
    assert_eq!(script.batch().expect("a new session").session, SessionId(2));

    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.connect();
    script.batch().expect("in doubt");
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::Forgotten))]);
    let finished = script.poll(key).expect("all that will ever be known");
    assert!(matches!(finished.reply, Reply::Answered(Outcome::Unknown(UnknownReason::Forgotten))));
}

#[test]
fn session_ended_reissues_what_was_sent_once_under_a_new_id() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.answer(1, &[(1, Outcome::Refused(Refusal::SessionEnded))]);
    assert!(script.poll(key).is_none());
    assert_eq!(script.book.next_request(script.now), Some(Request::Open));
    script.book.opened(INCARNATION, SessionId(2));
    let batch = script.batch().expect("a new session");
    assert_eq!((batch.session, sequences(&batch)), (SessionId(2), vec![1]));
    script.answer(2, &[(1, granted(1))]);
    assert_eq!(script.poll(key).expect("granted").id, Some(id(2, 1)));
}

#[test]
fn session_ended_for_what_was_sent_twice_is_unknown() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.connect();
    script.batch().expect("in doubt");
    script.answer(1, &[(1, Outcome::Refused(Refusal::SessionEnded))]);
    let ask = Request::Ask { operation: id(1, 1) };
    let mut asked = false;
    while let Some(request) = script.book.next_request(script.now) {
        asked |= request == ask;
        if request == Request::Open {
            script.book.opened(INCARNATION, SessionId(2));
        }
    }
    assert!(asked);
    script.book.asked(id(1, 1), Outcome::Refused(Refusal::SessionEnded), script.now, &mut script.wakers);
    let finished = script.poll(key).expect("settled");
    assert!(matches!(finished.reply, Reply::Answered(Outcome::Unknown(UnknownReason::Forgotten))));
}

#[test]
fn dropped_acquire_is_given_back_when_it_turns_out_granted() {
    let mut script = Script::connected();
    let key = script.submit(acquire(5));
    script.batch().expect("nothing is under way");
    script.book.abandon(key, script.now);
    // If it waits for tokens, that is over.
    assert_eq!(script.book.next_request(script.now), Some(Request::Ask { operation: id(1, 1) }));
    script.answer(1, &[(1, granted(1))]);
    script.book.asked(id(1, 1), granted(1), script.now, &mut script.wakers);
    let batch = script.batch().expect("the undoing");
    assert_eq!(batch.operations[0].operation, Operation::Release { quota: "gpus".into(), amount: 5 });
    script.answer(1, &[(2, Outcome::Released { amount: 5 })]);
    assert!(!script.book.has_work());
    assert!(script.book.calls.iter().next().is_none());
}

#[test]
fn dropped_acquire_with_its_reply_unread_is_given_back() {
    let mut script = Script::connected();
    let command = Command::Acquire { quota: "gpus".into(), amount: 5, hold: Hold::Open, waits: false };
    let key = script.submit(command);
    script.batch().expect("nothing is under way");
    script.answer(1, &[(1, granted(33))]);
    script.book.abandon(key, script.now);
    let batch = script.batch().expect("the undoing");
    assert!(matches!(batch.operations[0].operation, Operation::ReleaseGrant { grant, .. } if grant.number == 33));
}

/// The time at which its caller goes away is that of its deadline.
#[test]
fn dropped_acquire_with_its_doubt_unread_is_given_back_when_it_turns_out_granted() {
    let mut script = Script::connected();
    let key = script.submit(acquire(5));
    script.batch().expect("nothing is under way");
    script.sweep(11 * SECOND);
    script.book.abandon(key, script.now);
    let asks = std::iter::from_fn(|| script.book.next_request(script.now));
    assert!(asks.into_iter().any(|request| request == Request::Ask { operation: id(1, 1) }), "it is asked about");
    script.answer(1, &[(1, granted(1))]);
    let batch = script.batch().expect("the undoing");
    assert_eq!(batch.operations[0].operation, Operation::Release { quota: "gpus".into(), amount: 5 });
}

/// The first call of each window is in doubt, and holds its mark back.
#[test]
fn doubts_that_fill_every_session_do_not_keep_a_call_from_leaving() {
    let script = Script::connected();
    let now = script.now;
    let mut script = script.with_every_session(|windows, position| {
        for _ in 0..SESSION_WINDOW {
            windows[position].give(0, false);
        }
        (2..=SESSION_WINDOW).for_each(|sequence| windows[position].settle(sequence));
        windows.doubt(windows.operation(position, 1), now);
        assert_eq!(windows[position].room(), 0);
    });
    script.submit(acquire(1));
    assert!(script.book.has_something_to_send());
    let batch = script.batch().expect("a healthy site is sent a call");
    assert_eq!((batch.session, sequences(&batch)), (SessionId(1), vec![SESSION_WINDOW + 1]), "the oldest is let go of");
}

#[test]
fn dropped_acquire_in_doubt_is_asked_about_and_not_repeated() {
    let mut script = Script::connected();
    let key = script.submit(acquire(5));
    script.batch().expect("nothing is under way");
    script.book.abandon(key, script.now);
    script.disconnect();
    script.connect();
    assert_eq!(script.book.next_request(script.now), Some(Request::Ask { operation: id(1, 1) }));
    script.book.asked(id(1, 1), Outcome::Refused(Refusal::Withdrawn), script.now, &mut script.wakers);
    assert_eq!(script.book.next_request(script.now), None);
    assert!(!script.book.has_work());
}

#[test]
fn dropped_unsent_acquire_never_leaves_but_a_release_does() {
    let mut script = Script::new();
    let doomed = script.submit(acquire(1));
    let kept = script.submit(release(2));
    script.book.abandon(doomed, script.now);
    script.book.abandon(kept, script.now);
    script.connect();
    let batch = script.batch().expect("the release");
    assert_eq!(batch.operations.len(), 1);
    assert_eq!(batch.operations[0].operation, Operation::Release { quota: "gpus".into(), amount: 2 });
}

#[test]
fn site_that_opened_no_session_is_asked_again_though_no_call_waits_for_it() {
    let mut script = Script::new();
    script.book.connected(false);
    assert_eq!(script.book.next_request(script.now), Some(Request::Open));
    for refusal in [Refusal::NotReady, Refusal::StorageFull] {
        script.book.not_opened(refusal, script.now, &mut script.wakers);
        assert_eq!(script.book.next_request(script.now), None, "not at once");
        script.sweep(SECOND);
        assert_eq!(script.book.next_request(script.now), Some(Request::Open));
        assert_eq!(script.book.next_request(script.now), None, "once at a time");
    }
    script.book.opened(INCARNATION, SessionId(1));
    script.sweep(SECOND);
    assert_eq!(script.book.next_request(script.now), None, "there is one now");
}

#[test]
fn site_that_is_not_ready_turns_away_but_keeps_the_pinned() {
    let mut script = Script::new();
    script.book.connected(false);
    let free = script.submit(acquire(1));
    let pinned = script.submit_on(acquire(2), Terms { pinned: true, ..script.terms() });
    assert_eq!(script.book.next_request(script.now), Some(Request::Open));
    script.book.not_opened(Refusal::NotReady, script.now, &mut script.wakers);
    let finished = script.poll(free).expect("turned away");
    assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Refused(Refusal::NotReady))));
    assert_eq!(script.book.next_request(script.now), None, "not at once");
    script.sweep(SECOND);
    assert_eq!(script.book.next_request(script.now), Some(Request::Open));
    script.book.opened(INCARNATION, SessionId(1));
    assert_eq!(sequences(&script.batch().expect("ready now")), [1]);
    // It got a session, but stops before it takes the call: the pinned call is put off, under a new id.
    script.answer(1, &[(1, Outcome::Refused(Refusal::NotReady))]);
    assert!(script.poll(pinned).is_none());
    script.sweep(SECOND);
    assert_eq!(sequences(&script.batch().expect("put off")), [2]);
    // Its caller hears at the deadline what the site has said, and not that there was no connection.
    script.answer(1, &[(2, Outcome::Refused(Refusal::NotReady))]);
    script.sweep(3_600 * SECOND);
    let finished = script.poll(pinned).expect("its time is up");
    assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Refused(Refusal::NotReady))));
}

#[test]
fn relay_carries_known_sessions_and_says_when_it_lost_the_site() {
    let mut script = Script::connected();
    let key = script.submit(release(1));
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.book.connected(true);
    let batch = script.batch().expect("in doubt");
    assert_eq!(batch.site, SITE);
    let lost = vec![Answer { sequence: 1, outcome: Outcome::Unknown(UnknownReason::SiteUnreachable) }];
    assert!(script.book.answers(SessionId(1), lost, script.now, &mut script.wakers));
    assert!(script.poll(key).is_none(), "still in doubt");
    script.disconnect();
    script.book.connected(true);
    script.batch().expect("in doubt");
    script.answer(1, &[(1, Outcome::Released { amount: 1 })]);
    assert!(script.poll(key).is_some());
}

#[test]
fn lost_incarnation_is_unknown_and_its_session_is_over() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.book.connected(false);
    script.batch().expect("in doubt");
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::IncarnationLost))]);
    assert!(matches!(
        script.poll(key).expect("told").reply,
        Reply::Answered(Outcome::Unknown(UnknownReason::IncarnationLost))
    ));
    script.submit(acquire(1));
    assert_eq!(script.book.next_request(script.now), Some(Request::Open));
}

/// The client has not heard that the site has new storage, and sends a call in a session of before: nobody has carried it out.
#[test]
fn only_copy_in_a_session_of_a_lost_incarnation_leaves_again_in_another() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::IncarnationLost))]);
    assert!(script.poll(key).is_none(), "it goes on");
    assert_eq!(script.request(), Some(Request::Open));
    script.book.opened(Incarnation(2), SessionId(7));
    let again = script.batch().expect("the same call");
    assert_eq!((again.incarnation, again.session), (Incarnation(2), SessionId(7)));
    script.answer(7, &[(1, granted(9))]);
    assert!(script.is_granted(key));
}

#[test]
fn session_with_the_number_of_one_in_use_is_closed_and_another_opened() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch();
    script.disconnect();

    // The site is back on new storage, and numbers its sessions from 1 again.
    script.book.connected(false);
    script.book.opened(Incarnation(2), SessionId(1));
    assert!(!script.book.has_session());
    let close = Request::Close { site: SITE, incarnation: Incarnation(2), session: SessionId(1) };
    assert_eq!(script.request(), Some(close));
    assert_eq!(script.request(), Some(Request::Open));
    script.book.opened(Incarnation(2), SessionId(2));

    // What is said of the first session is said of the call that was sent in it.
    let other = script.submit(acquire(2));
    let repeated = script.batch().expect("the call that was sent");
    assert_eq!((repeated.incarnation, repeated.session), (INCARNATION, SessionId(1)));
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::IncarnationLost))]);
    let finished = script.poll(key).expect("its end");
    assert!(matches!(finished.reply, Reply::Answered(Outcome::Unknown(UnknownReason::IncarnationLost))));
    let fresh = script.batch().expect("the new call");
    assert_eq!((fresh.incarnation, fresh.session), (Incarnation(2), SessionId(2)));
    script.answer(2, &[(1, granted(9))]);
    assert!(matches!(script.poll(other).expect("its end").reply, Reply::Answered(Outcome::Granted { .. })));
}

/// A question about an operation of a lost incarnation was still on its way when its session was forgotten, and another one opened that has
/// the number of that. There an operation has its sequence.
#[test]
fn word_of_a_lost_incarnation_is_not_taken_for_one_about_a_call_of_the_present_one() {
    let mut script = Script::connected();
    script.submit(acquire(1));
    script.batch();
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::IncarnationLost))]);
    assert_eq!(script.request(), Some(Request::Open));
    script.book.opened(Incarnation(2), SessionId(1));
    let key = script.submit(acquire(2));
    let batch = script.batch().expect("the call that goes on, and the new one");
    assert_eq!((batch.incarnation, sequences(&batch)), (Incarnation(2), vec![1, 2]));
    script.asked(id(1, 2), Outcome::Unknown(UnknownReason::IncarnationLost));
    assert!(script.poll(key).is_none(), "told what became of an operation that is not its own");
    assert!(script.book.reclaim(id(1, 2), script.now).is_none(), "another caller's call is taken back");
    script.answer(1, &[(2, granted(9))]);
    assert!(script.is_granted(key));
}

/// Other sites are agreeing on it, and will soon know: its caller goes on waiting, and the client asks again.
#[test]
fn answer_that_is_undecided_is_asked_for_again() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch();
    for _ in 0..3 {
        script.answer(1, &[(1, Outcome::Unknown(UnknownReason::Undecided))]);
        script.asked(id(1, 1), Outcome::Unknown(UnknownReason::Undecided));
        assert!(script.poll(key).is_none(), "told that it is undecided, although the site will know");
        script.sweep(NOT_READY_PAUSE);
        assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
        while script.request().is_some() {}
    }
    script.asked(id(1, 1), granted(7));
    assert!(script.is_granted(key));
}

/// The site counts the time of a hold from when it carried out the copy that came first.
#[test]
fn time_at_which_a_call_was_sent_is_that_of_its_first_copy() {
    let mut script = Script::connected();
    let key = script.submit(acquire(1));
    script.batch();
    let first = script.now;
    script.disconnect();
    script.now += SECOND;
    script.book.connected(false);
    script.batch().expect("in doubt");
    script.answer(1, &[(1, granted(1))]);
    assert_eq!(script.poll(key).expect("its end").sent_at, Some(first), "a hold is used beyond its end");
}

/// The stream is open, and the site says nothing.
#[test]
fn site_that_answers_nothing_on_an_open_stream_is_given_up() {
    let mut script = Script::connected();
    script.submit(acquire(1));
    script.batch();
    script.sweep(STALLED - MILLISECOND);
    assert!(!script.book.is_stalled(script.now));
    script.sweep(MILLISECOND);
    assert!(script.book.is_stalled(script.now), "a stream without a word is kept for ever");
}

#[test]
fn queue_at_its_bound_is_overloaded() {
    let mut script = Script::new();
    for _ in 0..FRESH {
        script.book.submit(acquire(1), script.terms(), script.now).expect("there is room");
    }
    let refused = script.book.submit(acquire(1), script.terms(), script.now).expect_err("full");
    assert_eq!(refused.0, NotTaken::Overloaded);
}

#[test]
fn sites_get_less_time_than_the_caller_has() {
    let mut script = Script::connected();
    script.book.stream.round_trip = Duration::from_millis(200);
    script.submit(acquire(1));
    let batch = script.batch().expect("nothing is under way");
    assert_eq!(batch.operations[0].timeout, 10_000_000 - 200_000 - 50_000);
}

#[test]
fn closing_tells_waiting_callers_and_closes_idle_sessions() {
    let mut script = Script::connected();
    let sent = script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    let fresh = script.submit(acquire(1));
    assert_eq!(script.book.close(script.now, &mut script.wakers), 0, "an outcome may still be asked for");
    assert!(matches!(script.poll(sent).expect("told").reply, Reply::InDoubt));
    assert!(matches!(script.poll(fresh).expect("told").reply, Reply::NotTaken(NotTaken::Closed)));

    let mut script = Script::connected();
    assert_eq!(script.book.close(script.now, &mut script.wakers), 1);
    assert!(matches!(script.book.next_request(script.now), Some(Request::Close { session: SessionId(1), .. })));
    let refused = script.book.submit(acquire(1), script.terms(), script.now).expect_err("closed");
    assert_eq!(refused.0, NotTaken::Closed);

    let mut script = Script::connected();
    script.book.leave(script.now, &mut script.wakers);
    assert!(script.book.next_request(script.now).is_none(), "the session stays");
    assert!(script.book.submit(acquire(1), script.terms(), script.now).is_err());
}

#[test]
fn sent_call_whose_caller_was_told_on_closing_is_told_once_whatever_comes_then() {
    for is_fetched in [true, false] {
        let mut script = Script::connected();
        let key = script.submit(acquire(1));
        script.batch().expect("nothing is under way");
        script.book.leave(script.now, &mut script.wakers);
        if is_fetched {
            assert!(matches!(script.poll(key).expect("told").reply, Reply::InDoubt));
        }
        script.answer(1, &[(1, granted(1))]);
        script.asked(id(1, 1), granted(1));
        script.sweep(20 * SECOND);
        script.disconnect();
        if !is_fetched {
            assert!(matches!(script.poll(key).expect("told").reply, Reply::InDoubt));
        }
        assert!(!script.book.has_outstanding(), "what became of it is the caller's to ask");
    }
}

/// Random callers and a random site: no call is forgotten, no slot is used twice, no window is exceeded.
#[test]
fn every_call_ends_whatever_the_connection_does() {
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut script = Script::new();
    let mut waiting: Vec<CallKey> = Vec::new();
    let mut at_site: Vec<(u64, u64)> = Vec::new();
    let mut ended = 0;
    for _ in 0..60_000 {
        match random(12) {
            0..4 => {
                let command = if random(2) == 0 { acquire(1) } else { release(1) };
                let terms = Terms {
                    deadline: script.now + Duration::from_millis(1 + random(4000)),
                    pinned: random(3) == 0,
                    patience: (random(3) == 0).then(|| Duration::from_millis(random(1000))),
                };
                script.elsewhere = random(2) == 0;
                waiting.push(script.submit_on(command, terms));
            }
            4..7 => match script.book.next_request(script.now) {
                Some(Request::Open) if random(4) == 0 => {
                    script.book.not_opened(Refusal::NotReady, script.now, &mut script.wakers);
                }
                Some(Request::Open) => {
                    script.sessions += 1;
                    script.book.opened(INCARNATION, SessionId(script.sessions));
                }
                Some(Request::Batch(batch)) => {
                    for submission in &batch.operations {
                        assert!(submission.sequence < batch.low + SESSION_WINDOW);
                        at_site.push((batch.session.0, submission.sequence));
                    }
                    script.answer(batch.session.0, &[]);
                }
                Some(Request::Ask { operation }) => {
                    let outcome = match random(3) {
                        0 => granted(1),
                        1 => Outcome::Refused(Refusal::Withdrawn),
                        _ => Outcome::Unknown(UnknownReason::NotReady),
                    };
                    script.book.asked(operation, outcome, script.now, &mut script.wakers);
                }
                _ => {}
            },
            7..10 if !at_site.is_empty() => {
                let (session, sequence) = at_site.swap_remove(random(at_site.len() as u64) as usize);
                let outcome = match random(8) {
                    0 => Outcome::Unknown(UnknownReason::NotReady),
                    1 => Outcome::Refused(Refusal::SessionEnded),
                    2 => {
                        Outcome::Refused(Refusal::Exhausted { asked: Default::default(), retry_after: None, level: 0 })
                    }
                    3 => Outcome::Unknown(UnknownReason::SiteUnreachable),
                    _ => granted(1),
                };
                script.answer(session, &[(sequence, outcome)]);
            }
            10 if !waiting.is_empty() && random(4) == 0 => {
                let key = waiting.swap_remove(random(waiting.len() as u64) as usize);
                script.book.abandon(key, script.now);
                ended += 1;
            }
            10 if random(50) == 0 => {
                script.disconnect();
                script.book.connected(random(3) == 0);
            }
            _ => {
                script.sweep(Duration::from_millis(random(40)));
            }
        }
        for index in (0..waiting.len()).rev() {
            if script.poll(waiting[index]).is_some() {
                waiting.swap_remove(index);
                ended += 1;
            }
        }
    }
    script.sweep(5 * SECOND);
    waiting.retain(|key| script.poll(*key).is_none());
    assert!(waiting.is_empty() && ended > 10_000, "{} wait, {ended} ended", waiting.len());
    // What is seen to for nobody ends when the site says what became of it, however late.
    script.sweep(WATCH * 2);
    script.disconnect();
    script.book.connected(false);
    while let Some(request) = script.request() {
        match request {
            Request::Batch(batch) => {
                let answers = sequences(&batch).into_iter().map(|sequence| (sequence, Outcome::Released { amount: 1 }));
                script.answer(batch.session.0, &answers.collect::<Vec<_>>());
            }
            Request::Ask { operation } => script.asked(operation, granted(1)),
            Request::Open => {
                script.sessions += 1;
                script.book.opened(INCARNATION, SessionId(script.sessions));
            }
            other => panic!("nobody asked for it: {other:?}"),
        }
    }
    script.sweep(WATCH * 2);
    assert_eq!(script.book.calls.iter().filter(|(_, call)| !call.queued).count(), 0);
    assert_eq!(script.book.calls.watched(), 0);
}

fn commit(size: usize) -> Command {
    let write = (format!("{size}"), Change::Put(Value::Bytes(vec![0; size].into())));
    let part = Part { writes: vec![write], ..Part::default() };
    Command::commit(Transaction {
        homes: vec![Home { part, ..Home::default() }],
        max_wait: 0,
        ..Transaction::default()
    })
}

fn wanted(name: &str) -> Wanted {
    Wanted { gets: vec![ObjectKey::new(0, name)], ..Wanted::default() }
}

#[test]
fn large_transactions_travel_in_batches_that_fit_a_message() {
    let mut script = Script::connected();
    for _ in 0..20 {
        script.submit(commit(900 << 10));
    }
    script.submit(acquire(1));
    let mut sent = 0;
    while let Some(batch) = script.batch() {
        let sizes = batch.operations.iter().map(|submission| match &submission.operation {
            Operation::Commit(transaction) => transaction.bytes(),
            _ => 0,
        });
        assert!(sizes.sum::<usize>() < 3 << 20, "{} operations", batch.operations.len());
        sent += batch.operations.len();
        let answers: Vec<_> =
            sequences(&batch).into_iter().map(|sequence| (sequence, Outcome::Committed { phases: 1 })).collect();
        script.answer(1, &answers);
    }
    assert_eq!(sent, 21);
    // Sent again after the connection was lost, too.
    for _ in 0..6 {
        script.submit(commit(900 << 10));
    }
    assert_eq!(script.batch().expect("it leaves").operations.len(), 3);
    script.answer(1, &[]);
    assert_eq!(script.batch().expect("it leaves").operations.len(), 3);
    script.disconnect();
    script.connect();
    assert_eq!(script.batch().expect("the same again").operations.len(), 3);
}

#[test]
fn reads_go_beside_batches_and_end_with_the_stream() {
    let mut script = Script::connected();
    let waker = Waker::from(Arc::new(Nobody));
    let deadline = script.now + 10 * SECOND;
    script.submit(acquire(1));
    assert!(script.batch().is_some());
    let tokens = ["a", "b", "c"].map(|name| script.book.read(wanted(name), deadline).expect("there is room"));
    script.book.abandon_read(tokens[1]);
    assert!(script.book.has_something_to_send(), "though a batch is under way");
    let mut sent = Vec::new();
    while let Some(Request::Read(read)) = script.book.next_request(script.now) {
        assert!(read.timeout < 10_000_000);
        sent.push(read.token);
    }
    assert_eq!(sent, [tokens[0], tokens[2]], "nobody waits for the other one");
    let found = |token| Box::new(Reading { token, gets: Vec::new(), scans: Vec::new(), is_whole: false });
    script.book.found(found(tokens[2]), &mut script.wakers);
    script.book.found(found(tokens[1]), &mut script.wakers);
    assert!(script.book.poll_read(tokens[0], &waker).is_none());
    assert_eq!(script.book.poll_read(tokens[2], &waker), Some(Ok(found(tokens[2]))));
    script.disconnect();
    assert_eq!(script.book.poll_read(tokens[0], &waker), Some(Err(NotTaken::Unreachable)));

    // Another site reads for itself, so it is of no use.
    let token = script.book.read(wanted("d"), script.now + SECOND).expect("there is room");
    script.book.connected(true);
    assert!(!matches!(script.book.next_request(script.now), Some(Request::Read(_))));
    script.sweep(2 * SECOND);
    assert_eq!(script.book.poll_read(token, &waker), Some(Err(NotTaken::Unreachable)), "it never left");
    script.book.connected(false);
    let token = script.book.read(wanted("e"), script.now + SECOND).expect("there is room");
    while script.book.next_request(script.now).is_some_and(|request| !matches!(request, Request::Read(_))) {}
    script.sweep(2 * SECOND);
    assert_eq!(script.book.poll_read(token, &waker), Some(Err(NotTaken::DeadlinePassed)));
    let token = script.book.read(wanted("f"), script.now + SECOND).expect("there is room");
    script.book.close(script.now, &mut script.wakers);
    assert_eq!(script.book.poll_read(token, &waker), Some(Err(NotTaken::Closed)));
    assert_eq!(script.book.read(wanted("g"), deadline), Err(NotTaken::Closed));
}

/// What a client may still ask about, its site must know, though it has not heard of the session for as long again.
#[test]
fn call_is_remembered_for_half_the_time_for_which_its_site_knows_it_at_most() {
    assert!(2 * WATCH <= Duration::from_micros(slackline_core::session::RETENTION));
}
