//! `bench twitter`: who are the five most followed users? And now and then somebody follows or unfollows somebody.
//!
//! The question is asked all the time, and its answer hardly ever changes, though numbers of followers do. It is computed by
//! divide and conquer over 1,000 users, whose homes are spread over the stores: [`TOP`] of a range is the best of the tops of
//! its halves. A client that writes has an account of its own with the list of those it follows, at its own store, and
//! changes the number of followers of one user anywhere.

use std::cell::Cell;

use slackline::{Key, Outcome, TxnError, Value, memoized};
use slackline_core::stats::Rng;

use super::run::{run, run_each};
use super::setting::{Config, Setting, Terms, TxnsError, region};
use super::tally;
use super::workload::{Seat, Step, Workload, both, read_all, without_value};
use crate::report::{Report, runs_and_figure};

/// Options of `bench twitter`.
#[derive(Clone, Debug)]
pub struct TwitterOptions {
    /// The sites and clients, and the length of a run.
    pub terms: Terms,
    /// The number of users.
    pub users: usize,
}

impl Default for TwitterOptions {
    fn default() -> Self {
        Self { terms: Terms::new(&Config::ALL, 8, 80, 40_000), users: 1_000 }
    }
}

/// As the paper has it.
const STORES: usize = 3;
/// The percentage of transactions that follow or unfollow.
const WRITES: u64 = 2;
/// The number of users that are sought.
const TOP_USERS: usize = 5;
/// Ranges of no more users are read as they are.
const LEAF: usize = 16;

/// Runs `bench twitter`.
pub fn twitter(options: &TwitterOptions) -> Result<Report, TxnsError> {
    if options.users < TOP_USERS || options.terms.clients_per_store == 0 {
        return Err(TxnsError::Option(format!("there must be clients, and at least {TOP_USERS} users")));
    }
    let setting = |config| options.terms.setting(config, STORES, options.terms.measure / 2);
    let measured = run_each(&options.terms.configs, options.terms.live.is_some(), |config| {
        let setting = setting(*config);
        run(&setting, Twitter::new(options.users, &setting))
    })?;
    let (runs, figure) = runs_and_figure("twitter-latency", measured);

    let setting = setting(Config::State);
    let facts = vec![
        (
            "workload",
            format!(
                "{} users; {} % of transactions compute the {TOP_USERS} most followed, {WRITES} % follow or unfollow somebody",
                options.users,
                100 - WRITES
            ),
        ),
        (
            "paper",
            "at 80 ms: Fabric 17 ± 4 a second, median 568 ms; state warranties 26 ± 5, 1,239 ms, 95th percentile of write \
             delay 623 ms; computation warranties 343 ± 10, 12 ms, 16 ms"
                .to_owned(),
        ),
    ];
    Ok(tally::report("twitter", &setting, setting.costs(), runs, facts, vec![figure]))
}

/// The workload.
struct Twitter {
    /// Numbers of followers, counters.
    users: Vec<Key>,
    /// The number of clients; each has an account once it has written.
    clients: usize,
    /// Follows less unfollows that were told to be done.
    follows: Cell<i64>,
    /// Follows and unfollows of which it is not known how they ended.
    unknown: Cell<i64>,
}

impl Twitter {
    /// Users, of whom nobody has followed anybody yet.
    fn new(users: usize, setting: &Setting) -> Self {
        Self {
            users: (0..users).map(user).collect(),
            clients: setting.clients().len(),
            follows: Cell::new(0),
            unknown: Cell::new(0),
        }
    }

    /// Whom a client follows, a list of numbers at its own store.
    fn account(&self, client: usize) -> Key {
        Key::new(region(client % STORES), format!("accounts/{client:04}"))
    }

    /// Follows somebody, or unfollows somebody who is followed.
    async fn follow(&self, seat: &Seat, whom: usize) -> Result<Step, TxnError> {
        let account = self.account(seat.client);
        let (account, user) = (&account, &self.users[whom]);

        // The change goes with the outcome: a program that is run again may find another list.
        let done = seat.transaction().run_and_tell(|txn| async move {
            let mut followed: Vec<usize> = txn.get(account).await?.unwrap_or_default();
            let change = match followed.iter().position(|other| *other == whom) {
                Some(at) => {
                    followed.swap_remove(at);
                    -1
                }
                None => {
                    followed.push(whom);
                    1
                }
            };

            // The number is added to, not read, so two clients who follow the same user do not conflict.
            txn.put(account, &followed)?;
            txn.add(user, change)?;
            Ok::<_, TxnError>(change)
        });

        let outcome = done.await?;
        match &outcome {
            Outcome::Done(committed) => self.follows.set(self.follows.get() + committed.value),
            Outcome::Refused(_) => {}
            Outcome::Unknown(_) => self.unknown.set(self.unknown.get() + 1),
        }
        Ok(Step { outcome: outcome.map(without_value), writes: true })
    }
}

impl Workload for Twitter {
    fn objects(&self, store: usize) -> Vec<(Key, Value)> {
        // Followers by a power law, so that the top hardly changes.
        let followers = |user: usize| Value::Counter(100_000 / (1 + (user as i64 * 7_919) % self.users.len() as i64));
        let mine = self.users.iter().enumerate().filter(|(user, _)| user % STORES == store);
        mine.map(|(user, key)| (key.clone(), followers(user))).collect()
    }

    async fn step(&self, seat: &Seat, rng: &mut Rng) -> Result<Step, TxnError> {
        if rng.below(100) < WRITES {
            return self.follow(seat, rng.below(self.users.len() as u64) as usize).await;
        }

        let users = self.users.len();
        let found = seat.transaction().run_and_tell(|txn| async move { txn.call(&TOP, (0, users)).await }).await?;
        Ok(Step { outcome: found.map(without_value), writes: false })
    }

    async fn verify(&self, seat: &Seat) -> Result<(), String> {
        let begun: i64 = (0..STORES).flat_map(|store| self.objects(store)).map(|(_, value)| count(&Some(value))).sum();
        let total: i64 = read_all(seat, &self.users).await?.iter().map(count).sum();
        let accounts: Vec<Key> = (0..self.clients).map(|client| self.account(client)).collect();
        let followed: i64 = read_all(seat, &accounts).await?.iter().map(length).sum();

        // What users gained is what accounts follow, and that is what clients were told.
        let (told, unknown) = (self.follows.get(), self.unknown.get());
        if total - begun != followed || (followed - told).abs() > unknown {
            let gained = total - begun;
            return Err(format!(
                "users gained {gained} followers, accounts follow {followed}, and {told} follows were told ({unknown} are unknown)"
            ));
        }
        Ok(())
    }
}

/// The value of a counter; 0 if it is not there.
fn count(value: &Option<Value>) -> i64 {
    match value {
        Some(Value::Counter(count)) => *count,
        _ => 0,
    }
}

/// The number of users that an account follows. A value that is no list counts as less than nothing, so that the check fails.
fn length(value: &Option<Value>) -> i64 {
    match value {
        Some(Value::Bytes(bytes)) => serde_json::from_slice::<Vec<u64>>(bytes).map_or(-1, |list| list.len() as i64),
        _ => 0,
    }
}

/// The number of a user's followers.
fn user(number: usize) -> Key {
    Key::new(region(number % STORES), format!("users/{number:06}"))
}

memoized! {
    /// The most followed of the users `from..to`, with their numbers of followers; the first ones first.
    static TOP: async fn(txn: Txn, from: usize, to: usize) -> Result<Vec<(i64, usize)>, TxnError> {
        let mut found: Vec<(i64, usize)> = if to - from <= LEAF {
            let users: Vec<Key> = (from..to).map(user).collect();
            txn.values(&users).await?.iter().zip(from..).map(|(value, user)| (count(value), user)).collect()
        } else {
            let middle = from.midpoint(to);
            // Both halves at once: a client waits for the longer of two chains of round trips, not for their sum.
            let (low, high) = both(txn.call(&TOP, (from, middle)), txn.call(&TOP, (middle, to))).await;
            [low?, high?].concat()
        };
        found.sort_unstable_by_key(|(followers, user)| (std::cmp::Reverse(*followers), *user));
        found.truncate(TOP_USERS);
        Ok(found)
    }
}
