//! A participant in doubt: it has prepared, and does not know what became of the transaction. It asks the other
//! participants and the coordinator, answers them, and decides by what they say.
//!
//! The rule is that of implicit commit: a transaction is committed exactly when every participant has durably prepared
//! in time. So the answer is with the participants, and nobody stays in doubt who can reach all of them, coordinator or
//! not.

use super::calls::Calls;
use super::participant::{ASK, Participant};
use super::participation::{Participation, State};
use super::row;
use crate::id::{Incarnation, OperationId, SiteId, SiteSet};
use crate::object::message::{Known, Message};
use crate::object::{Abort, Cause};
use crate::turn::Turn;

impl Participant {
    /// Asks the others about a transaction in doubt, once its deadline has passed or nothing is heard of its
    /// coordinator.
    pub(super) fn ask_about(&mut self, turn: &mut Turn, id: OperationId) {
        let others = self.others(&turn.here, id);
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        let State::Prepared(doubt) = &mut entry.state else { return };
        let coordinator = turn.here.peers.iter().find(|peer| peer.site == id.site);
        let is_orphan = coordinator.is_none_or(|peer| !peer.is_up(turn.here.now) || peer.incarnation != id.incarnation);

        // Not earlier: a question makes each site refuse that has not prepared yet, and would abort a transaction that
        // is on its way. The monotonic clock counts too, because a wall clock that was set back shows a deadline as
        // ahead that is past. About its own transactions the site asks as their coordinator.
        let is_late = entry.deadline < turn.here.now.wall || entry.late_at < turn.here.now.mono;
        if id.site != turn.here.site.me && (is_late || is_orphan) {
            doubt.asked += 1;
            for site in others {
                let (deadline, prepared, participants) = (entry.deadline, doubt.known, entry.participants.clone());
                turn.out.send(site, Message::Inquire { id, deadline, participants, prepared });
            }
        }

        let wait = (ASK << doubt.asked.min(3)).max(turn.here.longest_round_trip());
        self.look_at(id, turn.here.now.mono + wait);
    }

    /// Notes the participants that another site knows to have prepared.
    pub(super) fn note_prepared(&mut self, turn: &mut Turn, id: OperationId, prepared: SiteSet) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let all = entry.all();
        let State::Prepared(doubt) = &mut entry.state else { return };
        let before = doubt.known;
        doubt.known |= prepared & all;

        // It is durable before anybody is told of it: a site that asks may find out from the answer that the
        // transaction took effect, show that, and lose its storage before anybody else has heard. For the same reason
        // this site does not carry its part out on that knowledge: nobody else may have it.
        if doubt.known != before {
            turn.out.batch.put(&row::participant_key(id), &entry.row());
        }
    }

    /// The participants that are known here to have prepared.
    pub(super) fn prepared_known(&self, id: OperationId) -> SiteSet {
        self.entries.get(&id).and_then(Participation::doubt).map_or(SiteSet::default(), |doubt| doubt.known)
    }

    /// Answers an inquiry about a transaction. One that this site has not prepared is refused by being asked about.
    pub(super) fn known_here(
        &mut self,
        turn: &mut Turn,
        id: OperationId,
        deadline: i64,
        participants: &[(SiteId, Incarnation)],
    ) -> Known {
        let Some((_, incarnation)) = participants.iter().find(|(site, _)| *site == turn.here.site.me) else {
            return Known::Nothing;
        };

        // This incarnation cannot say what its predecessor promised. To answer `Refused` could undo a committed
        // transaction.
        if *incarnation != turn.here.site.incarnation {
            return Known::Lost;
        }

        match self.entries.get(&id).map(|entry| &entry.state) {
            Some(State::Prepared(doubt)) if doubt.lost.is_empty() => Known::Prepared,
            Some(State::Prepared(_)) => Known::KnowsOfLoss,
            Some(State::Committed { .. }) => Known::Committed,
            Some(State::Refused { .. }) => Known::Refused,
            // It is not prepared, and the asking site will act on that: so it is refused durably, before the answer
            // leaves.
            Some(State::Defending(_)) => {
                let is_late = deadline < turn.here.now.wall;
                let abort = if is_late { self.late(&turn.here, id) } else { Abort::of(Cause::Withdrawn) };
                let vote = self.refuse_part(turn, id, abort);
                self.tell_vote(turn, id, vote);
                Known::Refused
            }
            // The same holds for one that never arrived: its `Prepare` may still come. The mark refuses it then, or
            // else a row does.
            None => {
                if deadline > self.numbers.deadline {
                    let of = (deadline, participants.to_vec());
                    self.refuse_unseen(turn, id, of, Abort::of(Cause::Withdrawn));
                }
                Known::Refused
            }
        }
    }

    /// Takes an answer to [`Participant::ask_about`].
    pub(super) fn inquired(
        &mut self,
        turn: &mut Turn,
        calls: &mut Calls,
        from: SiteId,
        id: OperationId,
        (known, prepared): (Known, SiteSet),
    ) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let (other, mine, all) = (entry.only(id, from), entry.only(id, turn.here.site.me), entry.all());
        let everybody = all | entry.only(id, id.site);
        let State::Prepared(doubt) = &mut entry.state else { return };

        // One that knows the outcome settles it: both outcomes are durable there. Else the answer tells who has
        // prepared. Only a participant's word counts for that; a coordinator without a part has nothing to prepare.
        match known {
            Known::Committed => return self.recover_part(turn, calls, id, true),
            Known::Refused => return self.recover_part(turn, calls, id, false),
            Known::Prepared | Known::KnowsOfLoss if !(other & all).is_empty() => {
                doubt.confirmed |= other | prepared;
                if known == Known::KnowsOfLoss {
                    doubt.know_of_loss |= other;
                }
            }
            Known::KnowsOfLoss => doubt.know_of_loss |= other,
            Known::Lost => doubt.lost |= other,
            Known::Prepared | Known::Nothing => {}
        }
        let before = doubt.known;
        doubt.known |= doubt.confirmed & all;
        let (has_learned, knows_all) = (doubt.known != before, doubt.known == all);
        let are_confirmed = (doubt.confirmed | mine).has_all(all);
        let has_lost = !doubt.lost.is_empty();
        let can_have_been_shown = !(doubt.lost | doubt.know_of_loss | mine).has_all(everybody);

        // All have prepared, and each of the others has told so itself, or it is durable at one that has. So another
        // site knows it, or can tell from what it has, and this one may show the effects: a lost disk here would not
        // take them back.
        if are_confirmed {
            return self.recover_part(turn, calls, id, true);
        }

        // What was learned is durable before anybody is told of it, for the reasons of `note_prepared`.
        if has_learned {
            turn.out.batch.put(&row::participant_key(id), &entry.row());
        }

        // What a participant knew is lost. If this site knows that all were prepared, the lost one may have known it
        // too, and have shown the effects: then it is committed. Only when everybody who is left is in doubt, knows of
        // the loss, and has told since that it does not know of all, nobody can have shown anything: then it is
        // aborted. Anything else waits.
        if has_lost && knows_all {
            self.recover_part(turn, calls, id, true);
        } else if has_lost && !can_have_been_shown {
            self.recover_part(turn, calls, id, false);
        }
    }

    /// Ends the doubt about a transaction.
    fn recover_part(&mut self, turn: &mut Turn, calls: &mut Calls, id: OperationId, commit: bool) {
        turn.out.metrics.doubts_resolved += 1;
        if commit {
            self.commit_part(turn, None, calls, id);
        } else {
            self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
        }

        // The others may be in doubt for the same reason. What they are told is in this call's batch, and durable
        // before it leaves.
        for site in self.others(&turn.here, id) {
            turn.out.send(site, Message::Decide { id, commit });
        }
    }
}
