//! Requests of clients and messages of other sites: each goes to the part of the node that it concerns.

use super::chapters::{Chapters, owner_of_message, owner_of_request};
use super::identity::Identity;
use super::relay::Relays;
use crate::api::{Answer, Outcome, Readiness, Reading, Refusal, Request, Response, UnknownReason};
use crate::id::SiteId;
use crate::machine::{ClientId, View};
use crate::object::{Abort, Cause};
use crate::peer::{Body, RelayMessage};
use crate::session::{Opened, Sessions};
use crate::turn::Turn;

/// The parts of a node that a turn changes, borrowed apart from those that it only reads.
pub(super) struct Desk<'a> {
    /// The name of the storage, and how far it is confirmed.
    pub(super) identity: &'a mut Identity,
    /// The sessions of this site, with the outcomes that are kept.
    pub(super) sessions: &'a mut Sessions,
    /// What carries operations out.
    pub(super) chapters: &'a mut Chapters,
    /// Requests under way between sites.
    pub(super) relays: &'a mut Relays,
    /// The paged rows that the input needs.
    pub(super) view: &'a View,
    /// Room to encode rows in; what it holds between two uses means nothing.
    pub(super) scratch: &'a mut Vec<u8>,
}

impl Desk<'_> {
    /// Handles a message of another site.
    pub(super) fn message(&mut self, turn: &mut Turn, from: usize, epoch: u64, body: Option<Body>) {
        // Each chapter hears of every message, before the one that it is for handles it: that a site speaks, and in
        // which epoch of names, decides how the message is to be taken.
        self.chapters.all_mut().into_iter().for_each(|chapter| chapter.hear(turn, from, epoch));
        let peer = turn.here.peers[from].site;

        match body {
            // Handled before the turn, see [`super::lives`].
            None | Some(Body::Site(_)) => {}
            Some(Body::Relay(RelayMessage::Ask { token, request })) => {
                // A relayed request must be about this site's own sessions. Another would be passed on again, and could
                // go round.
                let is_ours = site_of(&request) == Some(turn.here.site.me);
                let client = is_ours.then(|| self.relays.serve(turn.here.now, peer, token, &request)).flatten();
                if let Some(client) = client {
                    self.request(turn, client, *request);
                }
            }
            Some(Body::Relay(RelayMessage::Answer { token, response })) => {
                if let Some(client) = self.relays.finish(token, &response) {
                    turn.out.responses.push((client, *response));
                }
            }
            Some(body) => {
                let owner = owner_of_message(&body);
                let chapter = self.chapters.of_mut(Some(owner)).expect("all else is a chapter's");
                chapter.message(turn, self.view, from, epoch, body);
            }
        }
    }

    /// Carries out a request, or lets it wait.
    pub(super) fn request(&mut self, turn: &mut Turn, client: ClientId, request: Request) {
        let me = turn.here.site.me;

        // While it may be leaving, it begins nothing.
        let is_ready = self.identity.readiness == Readiness::Ready;
        let ready = is_ready && !self.chapters.leaves(me);
        let serving = is_ready || self.identity.readiness == Readiness::Draining;

        // Another site's session: that site alone may carry out an operation of it, and answer for one. Else an
        // operation that is sent to two sites could take effect twice.
        if let Some(site) = site_of(&request).filter(|site| *site != me) {
            if let Err(request) = self.pass_on(turn, serving, client, site, request) {
                // Nobody will ever know what only a site knew that is a member no longer.
                let is_gone = turn.here.peers.iter().any(|peer| peer.site == site && peer.gone);
                let doubt = if is_gone { UnknownReason::IncarnationLost } else { UnknownReason::SiteUnreachable };
                turn.out.responses.push((client, unanswered(me, request, doubt)));
            }
            return;
        }

        // A site without room tells that first: it is what a person can mend.
        if request == Request::Open {
            let response = self.open(turn, ready);
            turn.out.responses.push((client, response));
            return;
        }

        // Nobody has vouched for this storage yet. It may be an old copy, in which outcomes and objects of later on are
        // missing.
        if !serving {
            turn.out.responses.push((client, unanswered(me, request, UnknownReason::NotReady)));
            return;
        }

        match request {
            // A session of an earlier incarnation: its operations may have taken effect on storage that is lost.
            Request::Batch(batch) if batch.incarnation != turn.here.site.incarnation => {
                let lost = unanswered(me, Request::Batch(batch), UnknownReason::IncarnationLost);
                turn.out.responses.push((client, lost));
            }
            Request::Batch(batch) => self.submit(turn, ready, client, batch),
            Request::Ask { operation } => {
                let outcome = self.ask(turn, operation);
                turn.out.responses.push((client, Response::Asked { operation, outcome }));
            }
            Request::Close { incarnation, session, .. } => {
                // If the end cannot be noted durably, the session stays open and ends by its retention.
                if turn.here.has_room && incarnation == turn.here.site.incarnation {
                    self.close(turn, session);
                }
                turn.out.responses.push((client, Response::Closed));
            }
            // Handled above; and what only the driver asks, which the node answers itself.
            Request::Open | Request::Status | Request::Drain { .. } => {}
            request => {
                let owner = owner_of_request(&request);
                let chapter = self.chapters.of_mut(Some(owner)).expect("all else is a chapter's");
                chapter.request(turn, self.view, client, request);
            }
        }
    }

    /// Opens a session, unless the site stops or storage has no room.
    fn open(&mut self, turn: &Turn, ready: bool) -> Response {
        if !turn.here.has_room {
            return Response::NotOpened(Refusal::StorageFull);
        }
        if !ready {
            return Response::NotOpened(Refusal::NotReady);
        }

        // The number's reservation is durable before the client hears of it: no later start gives the number to another
        // session.
        match self.sessions.open(turn.here.now.mono) {
            Opened::Full => Response::NotOpened(Refusal::Overloaded),
            Opened::Within(session) | Opened::Reserving(session) => {
                self.identity.note_marks(self.sessions);
                Response::Opened { site: turn.here.site.me, incarnation: turn.here.site.incarnation, session }
            }
        }
    }

    /// Passes a request on to the site that it is about; returns it if that site is not up, or at the bound.
    fn pass_on(
        &mut self,
        turn: &mut Turn,
        serving: bool,
        client: ClientId,
        to: SiteId,
        request: Request,
    ) -> Result<(), Request> {
        let up = serving && turn.here.peers.iter().any(|peer| peer.site == to && peer.is_up(turn.here.now));
        let Some(token) = up.then(|| self.relays.begin(turn.here.now, client, &request)).flatten() else {
            return Err(request);
        };
        turn.out.send(to, RelayMessage::Ask { token, request: Box::new(request) });
        Ok(())
    }
}

/// The site whose session a request is about; none if it is about no session.
fn site_of(request: &Request) -> Option<SiteId> {
    match request {
        Request::Batch(batch) => Some(batch.site),
        Request::Ask { operation } | Request::Explain { operation } => Some(operation.site),
        Request::Close { site, .. } => Some(*site),
        _ => None,
    }
}

/// The response to a request that this site cannot answer, with the reason.
fn unanswered(me: SiteId, request: Request, doubt: UnknownReason) -> Response {
    match request {
        Request::Batch(batch) => {
            let answer = |sequence| Answer { sequence, outcome: Outcome::Unknown(doubt) };
            let answers = batch.operations.iter().map(|submission| answer(submission.sequence)).collect();
            Response::Batch { session: batch.session, answers }
        }
        Request::Ask { operation } => Response::Asked { operation, outcome: Outcome::Unknown(doubt) },
        Request::Explain { operation } => Response::Explained { operation, trace: Err(doubt) },
        // If the session's site cannot be told, the session ends by its retention.
        Request::Close { .. } => Response::Closed,
        Request::Read(read) => {
            let abort = || Abort { site: Some(me), ..Abort::of(Cause::NotReady) };
            let gets = read.gets.iter().map(|_| Err(abort())).collect();
            let scans = read.scans.iter().map(|_| Err(abort())).collect();
            Response::Read(Box::new(Reading { token: read.token, gets, scans, is_whole: false }))
        }
        Request::Show { .. } => Response::Shown(Err(Refusal::NotReady)),
        // An empty list would read as if there were no quotas.
        Request::List { .. }
        | Request::Treaties { .. }
        | Request::Open
        | Request::Status
        | Request::Drain { .. }
        | Request::Expect(_) => Response::NotOpened(Refusal::NotReady),
    }
}
