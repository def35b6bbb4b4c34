//! The calls that are under way at one site, each in a slot, and who waits for it.

use std::ops::{Index, IndexMut};
use std::task::Waker;
use std::time::Duration;

use slackline_core::api::Refusal;
use slackline_core::id::OperationId;

use crate::command::{CallKey, Command, Finished, Reply, Terms};
use crate::time::Time;

/// The time for which a hold and the release of one stay with a site that says nothing, unless the caller says otherwise; so
/// does any call that has not left, and may go elsewhere.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The most calls that are left behind at one site, or handed over to it, at a time.
pub const WATCHED: usize = 4096;

/// A call from when it is taken in until its caller has fetched the reply, or it has ended and nobody waits for it.
#[derive(Debug)]
pub(super) struct Call {
    /// What is to be done.
    pub(super) command: Command,
    /// What its caller asked for. Once the call is watched, its deadline no longer counts.
    pub(super) terms: Terms,
    /// None until it first leaves or is handed over; none again once it is settled that it never takes effect under its id, and
    /// it is to be issued under another. A call with an id that has not ended is in its session's window.
    pub(super) id: Option<OperationId>,
    /// When it first left under this id; none if it has not. The time of a hold runs from here, whichever copy is carried out.
    pub(super) sent_at: Option<Time>,
    /// The number of times that it has left under this id. What a site says of one copy settles a call only if there was no
    /// other (rule 3).
    pub(super) times_sent: u32,
    /// Since when nothing is heard of it (rule 6): from when it is taken in, from when it first leaves, and from when the
    /// connection is lost. None while the site is known to have it.
    pub(super) quiet_since: Option<Time>,
    /// True from when its patience has passed until the site is known to have it: it leaves when another site would take it.
    pub(super) restless: bool,
    /// True if it has no deadline and counts among [`WATCHED`] (rule 8). No caller waits for it then.
    watched: bool,
    /// True if it is a release whose caller was told its id when it was handed over (rule 7).
    pub(super) known: bool,
    /// True while a queue of calls that are to be issued holds its key. The slot stays in use as long, so that the key there
    /// names no other call.
    pub(super) queued: bool,
    /// Why its site refused it last, for now, and did not carry it out; none if it never did.
    pub(super) refused: Option<Refusal>,
    /// Who waits for it.
    pub(super) audience: Audience,
}

/// Who waits for a call.
#[derive(Debug)]
pub(super) enum Audience {
    /// A caller waits, and is woken by this once it has asked.
    Waiting(Option<Waker>),
    /// The call has ended so, and its caller has not fetched that yet.
    Told(Reply),
    /// Nobody waits; what it is granted is given back.
    Gone,
    /// Nobody waits, but it is to be carried out: a release.
    Detached,
}

impl Call {
    /// A call that is taken in now, and put into the queue of those that are to leave.
    pub(super) fn fresh(command: Command, terms: Terms, audience: Audience, now: Time) -> Self {
        Self {
            command,
            terms,
            id: None,
            sent_at: None,
            times_sent: 0,
            quiet_since: Some(now),
            restless: false,
            watched: false,
            known: false,
            queued: true,
            refused: None,
            audience,
        }
    }

    /// The same release under this id, for nobody in particular; its caller knows the id.
    pub(super) fn handed_over(&self, id: OperationId) -> Self {
        Self {
            command: self.command.clone(),
            terms: self.terms,
            id: Some(id),
            sent_at: self.sent_at,
            times_sent: self.times_sent,
            quiet_since: None,
            restless: false,
            watched: false,
            known: true,
            queued: false,
            refused: None,
            audience: Audience::Detached,
        }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    /// True while a caller waits for the reply.
    pub(super) fn is_waited_for(&self) -> bool {
        matches!(self.audience, Audience::Waiting(_))
    }

    /// When it is to be taken from a site that says nothing; none if it stays there.
    pub(super) fn patience_ends(&self) -> Option<Time> {
        if !self.is_waited_for() {
            return None;
        }
        let patience = match self.id {
            None if !self.terms.pinned => PATIENCE.min(self.terms.patience.unwrap_or(PATIENCE)),
            _ if self.command.is_release() => self.terms.patience?,
            Some(_) if self.command.is_acquire() && !self.terms.pinned => self.terms.patience?,
            _ => return None,
        };
        Some(self.quiet_since? + patience)
    }

    /// True if it is worth sending through another site before it has left: that may turn a call that nobody has seen into one
    /// that is in doubt, so only what can be done nowhere else.
    pub(super) fn may_be_relayed(&self) -> bool {
        matches!(self.command, Command::ReleaseGrant { .. } | Command::ExtendGrant { .. })
    }

    /// It has never been carried out and never will be under its id: it is as if it had never left. Whoever calls this puts it
    /// into a queue.
    pub(super) fn start_again(&mut self) {
        (self.id, self.times_sent, self.sent_at, self.queued) = (None, 0, None, true);
    }
}

/// The calls under way at one site, in slots that are used again.
#[derive(Debug, Default)]
pub(super) struct Calls {
    slots: Vec<Option<Call>>,
    /// The empty slots, each once.
    free: Vec<CallKey>,
    /// The number of calls that are watched; at most [`WATCHED`], and what is given back beyond them.
    watched: usize,
}

impl Calls {
    pub(super) fn insert(&mut self, call: Call) -> CallKey {
        match self.free.pop() {
            Some(key) => {
                self.slots[key] = Some(call);
                key
            }
            None => {
                self.slots.push(Some(call));
                self.slots.len() - 1
            }
        }
    }

    /// Empties a slot. No queue and no window holds its key any more.
    pub(super) fn remove(&mut self, key: CallKey) -> Call {
        let call = self.slots[key].take().expect("a key names a call until it is removed");
        self.watched -= usize::from(call.watched);
        self.free.push(key);
        call
    }

    /// Fetches the reply of a call that was told, for its caller.
    pub(super) fn take(&mut self, key: CallKey) -> Finished {
        let call = &mut self[key];
        let Audience::Told(reply) = std::mem::replace(&mut call.audience, Audience::Gone) else {
            unreachable!("a reply is fetched after it was told")
        };

        // A queue that holds the key empties the slot when it comes upon it.
        if call.queued {
            return Finished { reply, command: call.command.clone(), id: call.id, sent_at: call.sent_at };
        }
        let Call { command, id, sent_at, .. } = self.remove(key);
        Finished { reply, command, id, sent_at }
    }

    /// Rule 8: from here on the call has no deadline.
    pub(super) fn watch(&mut self, key: CallKey) {
        let call = &mut self[key];
        assert!(!call.is_waited_for(), "a watched call has no deadline, so no caller may wait for it");
        let was_watched = std::mem::replace(&mut call.watched, true);
        self.watched += usize::from(!was_watched);
    }

    /// The number of calls that are watched.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.watched
    }

    /// True if another call may be left behind or handed over (rule 8).
    pub(super) fn may_watch(&self) -> bool {
        self.watched < WATCHED
    }

    /// The keys of all slots, of which some may be empty.
    pub(super) fn keys(&self) -> std::ops::Range<CallKey> {
        0..self.slots.len()
    }

    pub(super) fn get(&self, key: CallKey) -> Option<&Call> {
        self.slots.get(key)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CallKey, &Call)> {
        self.slots.iter().enumerate().filter_map(|(key, call)| Some((key, call.as_ref()?)))
    }

    /// Asserts what always holds between the fields.
    pub(super) fn check(&self) {
        let empty = self.slots.iter().filter(|slot| slot.is_none()).count();
        assert_eq!(self.free.len(), empty, "each empty slot is free, once");
        assert!(self.free.iter().all(|key| self.slots[*key].is_none()), "a slot that is free is empty");
        let watched = self.iter().filter(|(_, call)| call.watched).count();
        assert_eq!(self.watched, watched, "watched calls are counted");
        for (_, call) in self.iter() {
            assert!(!call.watched || !call.is_waited_for(), "no caller waits for a watched call: {call:?}");
            assert_eq!(call.times_sent > 0, call.sent_at.is_some(), "a call leaves at a time: {call:?}");
            assert!(call.times_sent == 0 || call.id.is_some(), "what has left has an id: {call:?}");
        }
    }
}

impl Index<CallKey> for Calls {
    type Output = Call;

    fn index(&self, key: CallKey) -> &Call {
        self.slots[key].as_ref().expect("a key names a call until it is removed")
    }
}

impl IndexMut<CallKey> for Calls {
    fn index_mut(&mut self, key: CallKey) -> &mut Call {
        self.slots[key].as_mut().expect("a key names a call until it is removed")
    }
}
