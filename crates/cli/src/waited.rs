//! The time that an answer took, and the regions that it waited for: the line that a person sees after an answer.
//!
//! No answer says whether its site asked others, but for a transaction, whose course its site remembers. For the rest the time
//! is evidence: an answer that came sooner than half of the shortest round trip between two sites waited for none of them.

use std::time::Duration;

use slackline::{Client, OperationId, SiteStatus, What};
use tokio::time::timeout;

/// The time that sites may take to tell their round trips. One that is farther away is not waited for.
const ROUND_TRIPS: Duration = Duration::from_millis(50);
/// The time that a transaction's site may take to tell whom it asked. The transaction is done, and its command is to end.
const COURSE: Duration = Duration::from_secs(1);

/// Where the shortest round trip is below this, a busy site takes as long by itself, and the time of an answer says nothing.
const FAR: Duration = Duration::from_millis(10);

/// What a command knows of the sites that its answer came from.
pub(crate) struct Answered {
    /// The site that answered; none where the command does not know it.
    pub(crate) by: Option<String>,
    /// The sites that this one may have waited for.
    pub(crate) waited: Waited,
}

/// The sites that an answer may have waited for.
pub(crate) enum Waited {
    /// Any site.
    Any,
    /// None but this one, an object's home.
    Home(String),
    /// None.
    Nobody,
    /// Every site: the one that answered asked all others.
    Every,
    /// Every site, of which each was asked by the command itself; some may not have answered.
    Each {
        /// True if some did not.
        has_silent: bool,
    },
    /// Those that took part in a transaction. Its site remembers them.
    Transaction(OperationId),
}

impl Answered {
    /// The answer of a site that may have asked any other.
    pub(crate) fn by(site: Option<String>) -> Self {
        Self { by: site, waited: Waited::Any }
    }

    /// The line for a person; `took` is the time from the question to the answer.
    pub(crate) async fn line(self, client: &Client, took: Duration) -> String {
        let Self { by, waited } = self;
        let shortest = match waited {
            Waited::Nobody | Waited::Every | Waited::Each { .. } => None,
            _ => shortest(&client.status(ROUND_TRIPS).await),
        };
        let asked = match waited {
            Waited::Transaction(operation) => timeout(COURSE, asked(client, operation)).await.unwrap_or_default(),
            _ => Vec::new(),
        };

        let by = by.map(|site| format!(" by {site}")).unwrap_or_default();
        format!("answered{by} in {}{}", span(took), waiting(&waited, &asked, took, shortest))
    }
}

/// The end of the line: the sites that the answer waited for, as far as that is known.
fn waiting(waited: &Waited, asked: &[String], took: Duration, shortest: Option<Duration>) -> String {
    match (waited, shortest) {
        (Waited::Nobody, _) => ", without asking another region".to_owned(),
        (Waited::Every, _) => ", after asking every site".to_owned(),
        (Waited::Each { has_silent: false }, _) => ", by each site itself".to_owned(),
        (Waited::Each { has_silent: true }, _) => ", by each site itself that answers".to_owned(),
        _ if !asked.is_empty() => format!(", after asking {}", asked.join(" and ")),
        // A measured round trip may be too long by the time that a busy site took to answer, hence the half.
        (_, Some(shortest)) if took < shortest / 2 => ", without waiting for another region".to_owned(),
        (_, Some(shortest)) if took < shortest || shortest < FAR => String::new(),
        (Waited::Home(home), Some(_)) => format!(", long enough to ask {home}, its home"),
        (_, Some(_)) => ", long enough to ask another region".to_owned(),
        (_, None) => String::new(),
    }
}

/// The shortest round trip that a site has measured to another.
fn shortest(sites: &[SiteStatus]) -> Option<Duration> {
    let round_trips = sites.iter().flat_map(SiteStatus::peers).filter_map(|peer| peer.rtt);
    round_trips.min().map(Duration::from_micros)
}

/// The other sites that the site of a transaction asked to take part in it.
async fn asked(client: &Client, operation: OperationId) -> Vec<String> {
    let mut asked = Vec::new();
    if let Ok(Some(explanation)) = client.explain(operation).await {
        for step in explanation.steps {
            if step.what == What::Asked && step.site != explanation.site && !asked.contains(&step.site) {
                asked.push(step.site);
            }
        }
    }
    asked
}

/// A time in milliseconds: with a decimal where that says something, and in seconds from 10 s on.
fn span(took: Duration) -> String {
    let millis = took.as_secs_f64() * 1e3;
    match millis {
        ..99.95 => format!("{millis:.1} ms"),
        ..9_999.5 => format!("{millis:.0} ms"),
        _ => format!("{:.1} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_claims_no_more_than_its_evidence() {
        let millis = Duration::from_millis;
        let home = || Waited::Home("eu".to_owned());
        let both = ["eu".to_owned(), "ap".to_owned()];
        for (waited, asked, took, shortest, says) in [
            (Waited::Any, &[][..], 1, Some(70), ", without waiting for another region"),
            (home(), &[], 1, Some(70), ", without waiting for another region"),
            (Waited::Any, &[], 35, Some(70), ""),
            (home(), &[], 69, Some(70), ""),
            (Waited::Any, &[], 70, Some(70), ", long enough to ask another region"),
            (home(), &[], 70, Some(70), ", long enough to ask eu, its home"),
            (Waited::Any, &[], 1, None, ""),
            (Waited::Any, &[], 20, Some(2), ""),
            (home(), &[], 20, Some(2), ""),
            (Waited::Any, &both, 152, Some(70), ", after asking eu and ap"),
            (Waited::Every, &[], 1, None, ", after asking every site"),
            (Waited::Each { has_silent: false }, &[], 1, Some(70), ", by each site itself"),
            (Waited::Each { has_silent: true }, &[], 1, Some(70), ", by each site itself that answers"),
        ] {
            assert_eq!(waiting(&waited, asked, millis(took), shortest.map(millis)), says);
        }
        for (micros, says) in [(412, "0.4 ms"), (99_949, "99.9 ms"), (151_600, "152 ms"), (10_000_000, "10.0 s")] {
            assert_eq!(span(Duration::from_micros(micros)), says);
        }
    }
}
