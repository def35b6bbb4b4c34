//! One quota: acquire, release, create, set its limit, delete, count.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use slackline_core::api::{self, Agreement, Hold, Refusal, is_name};
use slackline_core::avantan::Charter;
use slackline_core::id::{Incarnation, SiteId};
use slackline_session::call::Place;
use slackline_session::command::Command;
use slackline_session::outcome::{ReadError, Reason};
use slackline_wire::{lane_of, v1};

use crate::call::{Acquire, Call, Create, Delete, Reclaim, Release, SetLimit};
use crate::client::{Client, senseless};
use crate::connection;

/// The quotas that are asked for at once; the most that a site tells.
const PAGE: u32 = 1000;

/// A quota of a cluster, by name. Cheap to clone.
///
/// ```no_run
/// # async fn example(client: slackline::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use slackline::{Outcome, Reason};
///
/// let gpus = client.quota("gpus");
/// match gpus.acquire(3).hold_for(Duration::from_secs(60)).await {
///     Outcome::Done(grant) => println!("{} of {} until {:?}", grant.amount(), grant.quota(), grant.expires_at()),
///     Outcome::Refused(refused) if matches!(refused.reason, Reason::Exhausted { .. }) => println!("come again later"),
///     Outcome::Refused(refused) => return Err(refused.into()),
///     // It may have been granted: ask, which settles it.
///     Outcome::Unknown(unknown) => println!("{:?}", client.outcome_of(unknown.operation).await),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Quota {
    client: Client,
    name: Arc<str>,
    /// The lane that its name is hashed to.
    lane: u16,
    /// The sites at which it is used.
    place: Place,
}

impl Client {
    /// The quota of this name. Nothing is sent yet.
    pub fn quota(&self, name: impl AsRef<str>) -> Quota {
        let name = name.as_ref();
        let lane = lane_of(name, self.shared.topology.lanes);
        Quota { client: self.clone(), name: Arc::from(name), lane, place: Place::Nearest }
    }

    /// The quotas of the cluster, in the order of their names, as the nearest site of each lane knows them.
    ///
    /// # Errors
    ///
    /// No site of a lane answers before the client's deadline.
    pub async fn list(&self) -> Result<Vec<Listed>, ReadError> {
        let until = self.shared.clock.now() + self.shared.deadline();
        let mut listed = Vec::new();
        for lane in 0..self.shared.topology.lanes {
            let mut after = String::new();
            loop {
                let request = v1::ListQuotasRequest { after: after.clone(), limit: PAGE };
                let ask = |channel| {
                    let request = request.clone();
                    async move { connection::stub(channel).list_quotas(request).await }
                };
                let left = until.saturating_duration_since(self.shared.clock.now());
                let (reply, site) = self.read(lane, &Place::Nearest, left, ask, |_| true).await?;

                // Names go up from page to page, so one that comes or goes meanwhile is listed once or not.
                let page = Vec::<api::Listed>::try_from(reply).map_err(|error| senseless(&site, error))?;
                let is_last = page.len() < PAGE as usize;
                after = page.last().map(|last| last.name.clone()).unwrap_or_default();
                listed.extend(page.into_iter().map(|api::Listed { name, limit, tokens, parent }| Listed {
                    parent: name.get(..usize::from(parent)).filter(|parent| !parent.is_empty()).map(str::to_owned),
                    name,
                    limit,
                    tokens,
                    site: site.clone(),
                }));
                if is_last {
                    break;
                }
            }
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listed)
    }
}

impl Quota {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same quota, used in this region and nowhere else. A single call can be sent there with [`Call::at`].
    pub fn at(mut self, region: &str) -> Self {
        self.place = self.client.place(region);
        self
    }

    /// Takes tokens. Unless the call says otherwise they are only counted: any release of as many, by anyone at any
    /// site, gives them back.
    pub fn acquire(&self, amount: i64) -> Call<Acquire> {
        self.call(Command::Acquire { quota: self.name.clone(), amount, hold: Hold::Counted, waits: false })
    }

    /// Gives tokens back by amount.
    pub fn release(&self, amount: i64) -> Call<Release> {
        self.call(Command::Release { quota: self.name.clone(), amount })
    }

    /// Creates the quota with so many tokens. Creating it again with the same limit, [refill](Call::refill),
    /// [agreement](Call::agreement) and [parent](Call::below) is done, with others refused.
    pub fn create(&self, limit: i64) -> Call<Create> {
        self.call(Command::Create { quota: self.name.clone(), limit, charter: Charter::default() })
    }

    /// Gives the quota another limit, at once, while it is in use. Needs a majority of the sites. If more is in use than a lower limit,
    /// nothing is granted until the excess is back.
    pub fn set_limit(&self, limit: i64) -> Call<SetLimit> {
        self.call(Command::SetLimit { quota: self.name.clone(), limit })
    }

    /// Brings back what lost incarnations of sites had of the quota, but for `in_use` tokens: those that they had granted and not taken back
    /// when they were lost, whether these are in use or were released at other sites since. `lost` are the newest lost incarnations of
    /// the sites that have one ([`Topology::parse_incarnation`](crate::Topology::parse_incarnation)). Done once; needs every site.
    ///
    /// This is an operator's word, and nobody can check it: if more is in use than it says, so much more than the limit may be granted.
    pub fn reclaim(&self, lost: impl IntoIterator<Item = (SiteId, Incarnation)>, in_use: i64) -> Call<Reclaim> {
        let lost = lost.into_iter().collect();
        self.call(Command::Reclaim { quota: self.name.clone(), lost, in_use })
    }

    /// Deletes the quota, with all that is granted of it. Needs every site.
    pub fn delete(&self) -> Call<Delete> {
        self.call(Command::Delete { quota: self.name.clone() })
    }

    /// Returns the number of tokens in use, over all sites.
    ///
    /// # Errors
    ///
    /// See [`Quota::show`].
    pub async fn total(&self) -> Result<Total, ReadError> {
        Ok(self.show().await?.in_use)
    }

    /// Counts the quota over all sites, within the client's deadline.
    ///
    /// # Errors
    ///
    /// There is no such quota, or no site answers.
    pub async fn show(&self) -> Result<Shown, ReadError> {
        self.show_within(self.client.shared.deadline()).await
    }

    /// As [`Quota::show`], within this time. Sites that have not answered by then are [`Shown::missing`].
    ///
    /// # Errors
    ///
    /// See [`Quota::show`].
    pub async fn show_within(&self, deadline: Duration) -> Result<Shown, ReadError> {
        let (shown, site) = self.shown(deadline, false).await?;
        Ok(Shown::new(shown, site, self.lane, &self.client))
    }

    /// Tells what the nearest site knows of the quota. It asks no other, so it answers while all others are down or out of reach.
    ///
    /// # Errors
    ///
    /// The site knows no such quota, which another may know; or no site answers.
    pub async fn known(&self) -> Result<Known, ReadError> {
        let (shown, site) = self.shown(self.client.shared.deadline(), true).await?;
        Ok(Known::new(shown, site, &self.client))
    }

    /// Tells how many tokens were asked for at the nearest site that keeps it, minute by minute. None if no site does: its configuration
    /// names the quotas whose demand it keeps.
    ///
    /// # Errors
    ///
    /// No site answers.
    pub async fn demand(&self) -> Result<Option<Demand>, ReadError> {
        if let Some(reason) = self.client.no_such_place(&self.place) {
            return Err(ReadError::Refused(reason));
        }
        let request = v1::ShowDemandRequest { quota: self.name.to_string() };
        let ask = |channel, _| {
            let request = request.clone();
            async move { connection::stub(channel).show_demand(request).await }
        };
        let deadline = self.client.shared.deadline();
        let (answer, asked) = self.client.seek(self.lane, &self.place, deadline, ask, |reply| reply.kept).await;

        // That no site keeps it is known once all have said so.
        let (reply, site) = match answer {
            Some((reply, site)) if reply.kept || asked.is_empty() => (reply, site),
            _ => return Err(ReadError::Unreachable { asked }),
        };
        let minute = |minute: v1::DemandMinute| {
            let since = Duration::from_secs(u64::try_from(minute.period_s).unwrap_or(0));
            DemandMinute { began: SystemTime::UNIX_EPOCH + since, count: minute.count }
        };
        Ok(reply.kept.then(|| Demand {
            name: self.name.to_string(),
            minutes: reply.minutes.into_iter().map(minute).collect(),
            site,
        }))
    }

    /// What a site answers that counts the quota, or tells what it knows, and the site's name.
    async fn shown(&self, deadline: Duration, local: bool) -> Result<(api::Shown, String), ReadError> {
        // What no site would answer is not asked.
        let refused = |refusal| ReadError::Refused(Reason::of(refusal, self.lane, self.client.topology()));
        if !is_name(&self.name) {
            return Err(refused(Refusal::InvalidName));
        }
        if let Some(reason) = self.client.no_such_place(&self.place) {
            return Err(ReadError::Refused(reason));
        }

        let ask = |channel, turn: Duration| {
            // The site waits for the others for half as long as we wait for it.
            let timeout_us = u64::try_from((turn / 2).as_micros()).unwrap_or(u64::MAX);
            let request = v1::ShowQuotaRequest { quota: self.name.to_string(), timeout_us, local };
            async move { connection::stub(channel).show_quota(request).await }
        };

        // One that does not serve counts nothing; another site can.
        let serves = |reply: &v1::ShowQuotaReply| match &reply.result {
            Some(v1::show_quota_reply::Result::Refused(refusal)) => refusal.reason() != v1::Reason::NotReady,
            _ => true,
        };
        let (answer, asked) = self.client.seek(self.lane, &self.place, deadline, ask, serves).await;
        let (reply, site) = answer.ok_or(ReadError::Unreachable { asked })?;
        match Result::<api::Shown, Refusal>::try_from(reply) {
            Ok(Ok(shown)) => Ok((shown, site)),
            Ok(Err(refusal)) => Err(refused(refusal)),
            Err(error) => Err(senseless(&site, error)),
        }
    }

    fn call<K: crate::call::Kind>(&self, command: Command) -> Call<K> {
        Call::new(self.client.clone(), self.lane, command, self.place.clone())
    }
}

/// The number of tokens in use: at least `min`, at most `max`, and the same when nothing moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Total {
    /// At least this many.
    pub min: i64,
    /// At most this many.
    pub max: i64,
}

impl Total {
    /// The number, if it is known exactly.
    pub fn exact(self) -> Option<i64> {
        (self.min == self.max).then_some(self.min)
    }
}

/// A quota, counted over all sites.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// The number of its tokens.
    pub limit: i64,
    /// How they move between sites.
    pub agreement: Agreement,
    /// The number that is out beyond the limit, since that was lowered. Nothing is granted until it is zero.
    pub excess: i64,
    /// The number in use.
    pub in_use: Total,
    /// What each site that answered has.
    pub sites: Vec<ShownSite>,
    /// The sites that did not answer in time.
    pub missing: Vec<String>,
    /// Operations that sites answered on their own.
    pub local: u64,
    /// Rounds that moved tokens.
    pub rebalances: u64,
    /// Gifts sent.
    pub gifts: u64,
    /// Releases beyond what was acquired, as far as the sites can tell: some client released what it never had.
    pub released_above: i64,
    /// The rate at which it refills, in millionths of a token a second; zero if it does not.
    pub refill: u64,
    /// The site that counted.
    pub counted_by: String,
}

/// One site's share of a quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownSite {
    /// The site's name.
    pub site: String,
    /// Tokens there, those set aside included.
    pub tokens: i64,
    /// Tokens set aside for a round.
    pub set_aside: i64,
    /// The site's incarnation.
    pub incarnation: Incarnation,
}

impl Shown {
    fn new(shown: api::Shown, counted_by: String, lane: u16, client: &Client) -> Self {
        let topology = client.topology();
        let site = |row: api::ShownSite| ShownSite {
            site: topology.name(row.site),
            tokens: row.tokens,
            set_aside: row.set_aside,
            incarnation: row.incarnation,
        };
        Self {
            name: shown.name,
            limit: shown.limit,
            agreement: shown.agreement,
            in_use: Total { min: shown.in_use_min, max: shown.in_use_max },
            sites: shown.sites.into_iter().map(site).collect(),
            missing: topology.names(shown.missing, lane),
            local: shown.work.local,
            rebalances: shown.work.rebalances,
            gifts: shown.work.gifts,
            excess: shown.excess,
            released_above: shown.released_above,
            refill: shown.refill,
            counted_by,
        }
    }
}

/// What one site knows of a quota, by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// The number of its tokens, as far as the site has heard.
    pub limit: i64,
    /// The number that is out beyond the limit, since that was lowered.
    pub excess: i64,
    /// No more are in use, as what is free at the site is not; unless the limit was raised, or the quota was deleted and created
    /// again, and the site has not heard of it.
    pub at_most: i64,
    /// The number in use, by what each site last said that it has.
    pub estimate: i64,
    /// The rate at which it refills, in millionths of a token a second; zero if it does not.
    pub refill: u64,
    /// What is known of each site.
    pub sites: Vec<KnownSite>,
    /// The site that told.
    pub told_by: String,
}

/// What is known of one site's share of a quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownSite {
    /// The site's name.
    pub site: String,
    /// Tokens there.
    pub tokens: i64,
    /// How long ago it had so many; none if it has said nothing lately, and this is what the last round left it.
    pub age: Option<Duration>,
}

impl Known {
    fn new(shown: api::Shown, told_by: String, client: &Client) -> Self {
        let site = |row: api::ShownSite| KnownSite {
            site: client.topology().name(row.site),
            tokens: row.tokens,
            age: row.age.map(Duration::from_micros),
        };
        Self {
            name: shown.name,
            limit: shown.limit,
            excess: shown.excess,
            at_most: shown.in_use_max,
            // A site of the version before counts.
            estimate: shown.estimate.unwrap_or(shown.in_use_max),
            refill: shown.refill,
            sites: shown.sites.into_iter().map(site).collect(),
            told_by,
        }
    }
}

/// The demand for a quota at one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The quota's name.
    pub name: String,
    /// The site.
    pub site: String,
    /// The minutes that are known, in their order. One that is missing was not observed.
    pub minutes: Vec<DemandMinute>,
}

/// The demand of one minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DemandMinute {
    /// When it began.
    pub began: SystemTime,
    /// The tokens that were asked for in it, granted or not.
    pub count: u64,
}

/// A quota, as one site knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// The number of its tokens.
    pub limit: i64,
    /// The number of them at the site.
    pub tokens: i64,
    /// The site that told.
    pub site: String,
    /// The quota above it, if it has one.
    pub parent: Option<String>,
}
