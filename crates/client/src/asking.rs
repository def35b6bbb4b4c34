//! Questions that any site answers: what became of an operation, how the sites are.

use std::time::Duration;

use slackline_core::api::{self, PeerStatus, Readiness};
use slackline_core::id::{GrantId, Incarnation, OperationId, SiteId};
use slackline_session::outcome::{Outcome, Unknown, UnknownReason};
use slackline_session::port::Port as _;
use slackline_session::time::Time;
use slackline_wire::v1;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::Client;
use crate::connection;

/// The pause before an operation's site is asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// The time for which one site is given at first to say what became of an operation; twice as long each time.
const FIRST_ASK: Duration = Duration::from_millis(500);

impl Client {
    /// The state of every site. Sites that do not answer within `wait` are reported as down.
    pub async fn status(&self, wait: Duration) -> Vec<SiteStatus> {
        let mut asked = JoinSet::new();
        for (position, site) in self.shared.topology.sites.iter().enumerate() {
            let Some(connection) = self.connection(site.id) else { continue };
            let channel = connection.channel.clone();
            asked.spawn(async move {
                let reply = timeout(wait, async { connection::stub(channel).status(v1::StatusRequest {}).await }).await;
                let state = reply.ok().and_then(Result::ok).map(tonic::Response::into_inner);
                (position, state.and_then(|state| api::Status::try_from(state).ok()))
            });
        }

        // Those that do not answer in time stay as they are: down, as far as can be told.
        let mut states = vec![None; self.shared.topology.sites.len()];
        while let Some(answer) = asked.join_next().await {
            if let Ok((position, state)) = answer {
                states[position] = state;
            }
        }

        let sites = self.shared.topology.sites.iter().zip(states);
        sites
            .map(|(site, state)| SiteStatus {
                id: site.id,
                site: site.name.clone(),
                address: site.address.clone(),
                is_gone: site.is_gone,
                state,
            })
            .collect()
    }

    /// Tells what became of an operation: asks the one site that knows, through another if need be.
    ///
    /// **Asking settles it**: if the site has not seen the operation, it refuses it permanently
    /// ([`Reason::Withdrawn`](crate::Reason::Withdrawn)), so a copy that is still under way has no effect.
    pub async fn outcome_of(&self, operation: OperationId) -> Outcome<Effect> {
        let until = self.shared.now() + self.shared.deadline();
        let mut patience = FIRST_ASK;
        loop {
            let why = match self.ask(operation, until, patience).await {
                Ok(outcome) => return Outcome::of_site(outcome, operation, &self.shared.topology).map(Effect::of),
                Err(why) => why,
            };

            // It stays unknown, and nothing is lost: whoever asks later is told.
            if self.shared.now() + PAUSE >= until {
                return Outcome::Unknown(Unknown::new(&self.shared.topology, operation, why));
            }
            tokio::time::sleep(PAUSE).await;
            patience = patience.saturating_mul(2).min(self.shared.deadline());
        }
    }

    /// Asks the operation's site once, and then others that may reach it, each for no longer than `patience`: a site that
    /// died with the question answers nobody, and may be back long before the deadline.
    async fn ask(
        &self,
        operation: OperationId,
        until: Time,
        patience: Duration,
    ) -> Result<api::Outcome, UnknownReason> {
        // The site itself first; the others only relay the question, and only a site that can be reached does so at once.
        let mut why = UnknownReason::SiteUnreachable;
        let all = self.connections(operation.site.lane);
        let own = all.iter().filter(|to| to.link.site == operation.site);
        let others = all.iter().filter(|to| to.link.site != operation.site && to.link.is_usable());
        let mut turns = u32::try_from(all.len()).unwrap_or(u32::MAX);
        for to in own.chain(others) {
            let ask = v1::Ask { operation: Some(operation.into()) };
            let channel = to.channel.clone();

            // Each has its part of the time that is left.
            let turn = (until.saturating_duration_since(self.shared.now()) / turns.max(1)).min(patience);
            turns = turns.saturating_sub(1);
            let Ok(Ok(reply)) = timeout(turn, async { connection::stub(channel).outcome_of(ask).await }).await else {
                continue;
            };
            match <(OperationId, api::Outcome)>::try_from(reply.into_inner()) {
                // Later it may tell.
                Ok((_, api::Outcome::Unknown(doubt)))
                    if !matches!(
                        doubt,
                        api::UnknownReason::IncarnationLost
                            | api::UnknownReason::Forgotten
                            | api::UnknownReason::HomeLost
                    ) =>
                {
                    why = doubt.into();
                }
                Ok((_, outcome)) => return Ok(outcome),
                Err(_) => why = UnknownReason::Senseless,
            }
        }
        Err(why)
    }
}

impl Effect {
    /// What an operation did whose outcome is none of those that have no effect.
    fn of(outcome: api::Outcome) -> Self {
        match outcome {
            api::Outcome::Granted { grant, lasts } => {
                Effect::Granted { grant, lasts: lasts.map(Duration::from_micros) }
            }
            api::Outcome::Released { amount } => Effect::Released { amount },
            api::Outcome::Created { limit } => Effect::Created { limit },
            api::Outcome::Extended { lasts } => Effect::Extended { lasts: Duration::from_micros(lasts) },
            api::Outcome::LimitSet { limit, excess } => Effect::LimitSet { limit, excess },
            api::Outcome::Reclaimed { brought, in_use } => Effect::Reclaimed { brought, in_use },
            api::Outcome::Seated { number } => Effect::Seated { number },
            api::Outcome::Deleted => Effect::Deleted,
            api::Outcome::Committed { phases } => Effect::Committed { phases },
            api::Outcome::LossAccepted => Effect::LossAccepted,
            api::Outcome::Refused(_) | api::Outcome::Aborted(_) | api::Outcome::Unknown(_) => {
                unreachable!("`Outcome::of_site` tells these from what took effect")
            }
        }
    }
}

/// What an operation did, as [`Client::outcome_of`] tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// It took tokens.
    Granted {
        /// The grant; release it with [`Client::release_grant`] if it is tracked.
        grant: GrantId,
        /// For a hold with an end: how long it lasts, from when the request was sent.
        lasts: Option<Duration>,
    },
    /// It gave this many tokens back.
    Released {
        /// The number of tokens.
        amount: i64,
    },
    /// It put the end of a hold off.
    Extended {
        /// How long the hold lasts, from when the request was sent.
        lasts: Duration,
    },
    /// The quota exists, with this limit.
    Created {
        /// The number of its tokens.
        limit: i64,
    },
    /// The quota has this limit.
    LimitSet {
        /// The number of its tokens.
        limit: i64,
        /// The number of tokens that were out beyond it.
        excess: i64,
    },
    /// What lost incarnations had is shared out again.
    Reclaimed {
        /// The number of tokens that came back.
        brought: i64,
        /// The number of tokens that they had granted and that were still in use.
        in_use: i64,
    },
    /// The members are as was asked for.
    Seated {
        /// The number of the last change of them.
        number: u64,
    },
    /// The quota is gone.
    Deleted,
    /// The transaction took effect.
    Committed {
        /// In how many phases: 0 if its site judged it alone and it wrote nothing, 1 if one site did, 2 if several.
        phases: u8,
    },
    /// A site has noted that the objects of its lost storage are gone for good.
    LossAccepted,
}

/// The state of a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteStatus {
    /// The site.
    pub id: SiteId,
    /// Its name.
    pub site: String,
    /// Where clients reach it.
    pub address: String,
    /// True if it is a member no longer.
    pub is_gone: bool,
    /// What it says of itself; none if it did not answer.
    pub state: Option<api::Status>,
}

impl SiteStatus {
    /// Returns true if it answered.
    pub fn is_up(&self) -> bool {
        self.state.is_some()
    }

    /// Returns true if it serves.
    pub fn is_ready(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.readiness == Readiness::Ready)
    }

    /// Its incarnation, if it answered.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.state.as_ref().map(|state| state.incarnation)
    }

    /// The number of quotas of which no round has recorded its incarnation, by whoever of the answers in `all` knows most: it has no
    /// tokens of these yet, and does not vote on them. None as long as it has not answered, or so few others of its lane have that none
    /// of them may know some quota, or one of these has not heard of this incarnation.
    pub fn unrecorded(&self, all: &[SiteStatus]) -> Option<u64> {
        let own = self.state.as_ref()?;
        let lane = || all.iter().filter(|other| other.id.lane == own.site.lane);
        // One that is a member no longer has nothing to say about those that are.
        let others = lane().filter_map(|other| other.state.as_ref());
        let others = others.filter(|other| other.site != own.site && other.readiness != Readiness::Stale);
        let (mut most, mut answers) = (own.unrecorded, 0);
        for other in others {
            let known = other.peers.iter().find(|peer| peer.site == own.site)?;
            if known.incarnation != own.incarnation {
                return None;
            }
            most = most.max(known.unrecorded);
            answers += 1;
        }
        // A majority has decided each quota. It may have counted this site, which has lost what it knew.
        let members = own.peers.len() + 1;
        let majority = members / 2 + 1;
        (answers >= (members - majority + 1).min(members - 1)).then_some(most)
    }

    /// What it knows of the others.
    pub fn peers(&self) -> &[PeerStatus] {
        self.state.as_ref().map(|state| &state.peers[..]).unwrap_or_default()
    }
}
