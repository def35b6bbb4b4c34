//! The marker: which pages are the most requested, by one treaty (*Predictive Treaties*, EuroSys 2019, section 7.2).
//!
//! The marker is a number between the requests of the last page of the top and those of the first one below it. The treaty says that each
//! page of the top has as many or more, and each other page as many or less. While it is valid, the top is what it was, and whoever asks
//! for it asks nobody. A site that counts a request knows nothing of all this.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use slackline::{Metric, Outcome, Statement, Transaction, Txn, Value};
use slackline_core::id::SiteId;
use slackline_core::object::ObjectKey;
use slackline_session::port::Port;
use slackline_session::txn::Memos;
use slackline_session::txn::treaties::{Existing, Treaty, make, read_all};

/// The time that making the treaty may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The pause before counters are read again that could not be read.
const PAUSE: Duration = Duration::from_millis(100);
/// The treaty is made anew when its age is this part of the time since the counting began: the counts have grown, and with them the slack
/// that there is.
const AGES: u64 = 50;

/// The counter of a page's requests, in each region.
pub(super) fn counter(page: usize) -> String {
    format!("p/{page}")
}

/// The one who asks for the top, at its site.
pub(super) struct Marker {
    pub(super) port: Arc<dyn Port>,
    pub(super) memos: Arc<Memos>,
    pub(super) site: SiteId,
    pub(super) pages: usize,
    /// The size of the top.
    pub(super) size: usize,
    /// When the counting began, in microseconds.
    pub(super) began: u64,
    /// The treaty, the top that it speaks of, and when it was made.
    pub(super) kept: Option<(Treaty, Vec<usize>, u64)>,
    /// What was counted, if it was read just now.
    pub(super) seen: Option<Vec<i64>>,
    /// The number of times that the treaty was made.
    pub(super) makings: u64,
}

impl Marker {
    /// The pages of the top, as they are now, and whether that was known without asking another site. Nothing if it could not be found out
    /// in time.
    pub(super) async fn top(&mut self) -> Option<(Vec<usize>, bool)> {
        if let Some((treaty, top, _)) = &self.kept {
            let valid = |txn: Txn| async move { txn.valid(treaty).await };
            let transaction = Transaction::over(Arc::clone(&self.port), Arc::clone(&self.memos));
            if matches!(transaction.run(valid).await, Ok(Outcome::Done(true))) {
                return Some((top.clone(), true));
            }
        }
        self.kept = None;
        let deadline = self.port.now() + DEADLINE;
        while self.port.now() < deadline {
            // Requests only add up. So between two readings each page had as many as in the first at least, and as many as in the second
            // at most.
            let (before, after) = (self.counts().await?, self.counts().await?);
            let ranked = ranked(&before, &after);
            let (top, others) = ranked.split_at(self.size);
            if top.iter().map(|page| before[*page]).min() >= others.iter().map(|page| after[*page]).max() {
                self.seen = Some(after);
                return Some((top.to_vec(), false));
            }
        }
        None
    }

    /// Makes the treaty, or makes it anew, if that is worth it by now. It is not while servers have no slack to count one request each: they
    /// would wait more often than who asks for the top.
    pub(super) async fn renew(&mut self) {
        let now = self.port.now().0;
        if self.kept.as_ref().is_some_and(|(.., made)| (now - made) * AGES < now - self.began) {
            return;
        }
        let counts = match self.seen.take() {
            Some(seen) => Some(seen),
            None => self.counts().await,
        };
        let Some(counts) = counts else { return };
        let ranked = ranked(&counts, &counts);
        let (top, others) = ranked.split_at(self.size);
        let marker = counts[*top.last().expect("the top is not empty")];
        let topology = self.port.topology();
        if marker < topology.regions.len() as i64 {
            return;
        }
        let metric = |page: &usize| Metric::everywhere(counter(*page));
        let above = top.iter().map(|page| metric(page).at_least(marker));
        let below = others.iter().map(|page| metric(page).at_most(marker));
        let statement = Statement::all(below.chain(above));

        let treaty = Treaty::new("top", statement).home(&topology.regions[usize::from(self.site.region)]);
        let placed = treaty.place(topology).expect("regions and names that there are");
        let deadline = self.port.now() + DEADLINE;
        let making = make(Arc::clone(&self.port), self.site, &placed, Existing::Replaced, deadline);
        if let Outcome::Done(_) = making.await {
            self.makings += 1;
            self.kept = Some((treaty, top.to_vec(), self.port.now().0));
        }
    }

    /// The requests of each page, in all regions, each as it is at some time.
    async fn counts(&self) -> Option<Vec<i64>> {
        let regions = self.port.topology().regions.len();
        let name = |at: usize| ObjectKey::new((at / self.pages) as u16, counter(at % self.pages));
        let keys: Vec<ObjectKey> = (0..regions * self.pages).map(name).collect();
        let mut counts = vec![0; self.pages];
        let deadline = self.port.now() + DEADLINE;
        let seen = loop {
            match read_all(&*self.port, self.site, &keys, deadline).await {
                Ok(seen) => break seen,
                // A region that has just begun to serve is not known to everybody yet.
                Err(_) if self.port.now() < deadline => self.port.sleep_until(self.port.now() + PAUSE).await,
                Err(_) => return None,
            }
        };
        for (at, seen) in seen.into_iter().enumerate() {
            counts[at % self.pages] += if let Some(Value::Counter(count)) = seen.value { count } else { 0 };
        }
        Some(counts)
    }
}

/// All pages in descending order of what was counted later, and else of what was before.
fn ranked(before: &[i64], after: &[i64]) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..after.len()).collect();
    pages.sort_by_key(|page| Reverse((after[*page], before[*page])));
    pages
}
