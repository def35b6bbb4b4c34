//! `bench bank`: transfers between accounts of different stores, audits of the total, and scans. What every client saw is put
//! through the checker of strict serializability ([`slackline_sim::history`]).
//!
//! Every balance is written with a number that is used once, so a transaction that reads it names its writer: to the checker,
//! accounts are registers. Some transfers leave a receipt under a prefix that others scan.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use slackline::{Committed, Key, Outcome, Txn, TxnError, Value};
use slackline_core::stats::Rng;
use slackline_session::time::Time;
use slackline_sim::history::{Fate, History, Op, Transaction, check};

use super::run::{run, run_each};
use super::setting::{Config, Terms, TxnsError, region};
use super::tally;
use super::workload::{Seat, Step, Workload, read_all, without_value};
use crate::report::{Report, Run, runs_and_figure};

/// Options of `bench bank`.
#[derive(Clone, Debug)]
pub struct BankOptions {
    /// The sites and clients, and the length of a run.
    pub terms: Terms,
    /// The number of stores.
    pub stores: usize,
    /// The number of accounts of each.
    pub accounts: usize,
}

impl Default for BankOptions {
    fn default() -> Self {
        Self { terms: Terms::new(&Config::PLAIN, 8, 80, 30_000), stores: 3, accounts: 40 }
    }
}

/// The balance of each account in the beginning.
const BALANCE: i64 = 1_000;
/// The number of receipts at which a prefix is left for the next one.
const RECEIPTS: u64 = 40;

/// Runs `bench bank`.
pub fn bank(options: &BankOptions) -> Result<Report, TxnsError> {
    options.terms.refuse_computation()?;
    if !(2..=8).contains(&options.stores) || options.accounts == 0 || options.terms.clients_per_store == 0 {
        return Err(TxnsError::Option("there must be 2 to 8 stores, with accounts and clients".into()));
    }

    let setting = |config| options.terms.setting(config, options.stores, options.terms.measure / 10);
    let measured = run_each(&options.terms.configs, options.terms.live.is_some(), |config| {
        run(&setting(*config), Bank::new(options.stores, options.accounts))
    })?;
    let (runs, figure) = runs_and_figure("bank-latency", measured);

    let judged: Vec<String> =
        runs.iter().map(|run| format!("{} of {}", run.figure("judged").unwrap_or(0.0), run.config)).collect();
    let setting = setting(Config::State);
    let facts = vec![
        (
            "workload",
            format!(
                "{} accounts per store; 65 % transfers between stores, 15 % statements of one store by scan, 10 % audits of \
                 the total, 10 % scans of receipts",
                options.accounts
            ),
        ),
        ("checker", format!("strictly serializable: transactions {}", judged.join(", "))),
        ("paper", "this is the checker's workload; the paper has none like it".to_owned()),
    ];
    Ok(tally::report("bank", &setting, setting.costs(), runs, facts, vec![figure]))
}

/// A balance, and the number of this version of it.
type Account = (i64, u64);

/// The workload, and what its clients have seen.
struct Bank {
    /// The number of stores.
    stores: usize,
    /// The number of accounts of each store.
    accounts: usize,
    /// Numbers of versions given out so far, those of the first versions left out.
    stamps: Cell<u64>,
    /// Receipts written at each store.
    receipts: RefCell<Vec<u64>>,
    /// The reads and writes of all clients.
    record: RefCell<Record>,
    /// The first wrong total that a committed audit saw.
    wrong: RefCell<Option<String>>,
    /// The time of the first step; none before.
    began: Cell<Option<Time>>,
}

/// The checker's input.
#[derive(Default)]
struct Record {
    /// The transactions.
    history: History,
    /// The number of them; each has its own as its label.
    labels: u64,
}

/// The reads and writes of one run of a program; the last run counts.
type Ops = Rc<RefCell<Vec<Op>>>;

impl Bank {
    fn new(stores: usize, accounts: usize) -> Self {
        let bank = Self {
            stores,
            accounts,
            stamps: Cell::new(0),
            receipts: RefCell::new(vec![0; stores]),
            record: RefCell::default(),
            wrong: RefCell::default(),
            began: Cell::new(None),
        };

        // To the checker, what is loaded is a transaction before all others.
        for store in 0..stores {
            let written =
                (0..accounts).map(|order| bank.write_of(&bank.account(store, order), bank.first(store, order)));
            let ops = written.collect();
            bank.record(0, 0, Some(1), Fate::Committed, ops);
        }
        bank
    }

    /// The key of an account.
    fn account(&self, store: usize, order: usize) -> Key {
        Key::new(region(store), format!("accounts/{order:04}"))
    }

    /// The number of an account's first version; later ones are above.
    fn first(&self, store: usize, order: usize) -> u64 {
        (store * self.accounts + order) as u64
    }

    /// A number for a new version, used once.
    fn stamp(&self) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        (self.stores * self.accounts) as u64 + self.stamps.get()
    }

    /// The total of all accounts, at any time.
    fn total(&self) -> i64 {
        (self.stores * self.accounts) as i64 * BALANCE
    }

    /// For the checker: that an account was written with a number.
    fn write_of(&self, account: &Key, value: u64) -> Op {
        Op::Write { key: self.record.borrow_mut().history.key(&account.to_string()), value }
    }

    /// For the checker: that an account was read with a number.
    fn read_of(&self, account: &Key, value: u64) -> Op {
        Op::Read { key: self.record.borrow_mut().history.key(&account.to_string()), value: Some(value) }
    }

    /// Records a transaction for the checker.
    fn record(&self, process: usize, invoked: u64, completed: Option<u64>, fate: Fate, ops: Vec<Op>) {
        let mut record = self.record.borrow_mut();
        record.labels += 1;
        let (label, process) = (record.labels, process as u64);
        record.history.push(Transaction { label, process, invoked, completed, fate, ops });
    }

    /// Microseconds since the first step, later than what loading took in the history.
    fn time(&self, now: Time) -> u64 {
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        (now - began).as_micros() as u64 + 10
    }

    /// The prefix of the receipts at a store.
    fn receipts(&self, store: usize) -> Key {
        let epoch = self.receipts.borrow()[store] / RECEIPTS;
        Key::new(region(store), format!("receipts/{epoch:06}/"))
    }

    /// Moves an amount, and leaves a receipt if there is to be one.
    async fn transfer(&self, txn: Txn, ops: Ops, plan: &Transfer) -> Result<(), TxnError> {
        // An earlier run of this program left nothing behind but these.
        ops.borrow_mut().clear();
        let keys = [plan.from.clone(), plan.to.clone()];
        let accounts: Vec<Option<Account>> = txn.get_many(&keys).await?;
        for ((key, account), change) in keys.iter().zip(accounts).zip([-plan.amount, plan.amount]) {
            let Some((balance, stamp)) = account else {
                return Err(TxnError::Unexpected { key: key.clone(), why: "there is no such account".into() });
            };
            let (read, next) = (self.read_of(key, stamp), self.stamp());
            txn.put(key, &(balance + change, next))?;
            ops.borrow_mut().extend([read, self.write_of(key, next)]);
        }

        if let Some((prefix, element)) = &plan.receipt {
            txn.put(&Key::new(prefix.region(), format!("{}{element}", prefix.name())), &plan.amount)?;
            let prefix = self.record.borrow_mut().history.key(&prefix.to_string());
            ops.borrow_mut().push(Op::Insert { prefix, element: *element });
        }
        Ok(())
    }

    /// Scans the accounts of some stores; the sum of their balances.
    async fn sum(&self, txn: Txn, ops: Ops, stores: std::ops::Range<usize>) -> Result<i64, TxnError> {
        ops.borrow_mut().clear();
        let mut sum = 0;
        for store in stores {
            for (key, (balance, stamp)) in txn.scan_as::<Account>(&Key::new(region(store), "accounts/")).await? {
                sum += balance;
                let read = self.read_of(&key, stamp);
                ops.borrow_mut().push(read);
            }
        }
        Ok(sum)
    }

    /// Scans the receipts under a prefix.
    async fn list(&self, txn: Txn, ops: Ops, prefix: &Key) -> Result<(), TxnError> {
        ops.borrow_mut().clear();
        let rows = txn.scan(prefix).await?;
        let element = |(key, _): &(Key, Value)| key.name().rsplit('/').next().and_then(|text| text.parse().ok());
        let elements = rows.iter().filter_map(element).collect();
        let prefix = self.record.borrow_mut().history.key(&prefix.to_string());
        ops.borrow_mut().push(Op::Members { prefix, elements });
        Ok(())
    }

    /// Notes what a transaction did, and how it ended.
    fn noted<T>(&self, seat: &Seat, invoked: u64, ops: Ops, outcome: &Outcome<T>) {
        let (fate, completed) = match outcome {
            Outcome::Done(_) => (Fate::Committed, Some(self.time(seat.now()))),
            // It had no effect, and what it saw need not be a state that ever was.
            Outcome::Refused(_) => return,
            Outcome::Unknown(_) => (Fate::Unknown, None),
        };
        self.record(seat.client, invoked, completed, fate, ops.take());
    }
}

/// One transfer.
struct Transfer {
    /// The account that pays.
    from: Key,
    /// The account that is paid, at another store.
    to: Key,
    /// The amount.
    amount: i64,
    /// A prefix, and an element to be put there.
    receipt: Option<(Key, u64)>,
}

impl Workload for Bank {
    fn objects(&self, store: usize) -> Vec<(Key, Value)> {
        let account = |order| {
            let value = serde_json::json!([BALANCE, self.first(store, order)]).to_string();
            (self.account(store, order), Value::Bytes(value.into_bytes().into()))
        };
        (0..self.accounts).map(account).collect()
    }

    async fn step(&self, seat: &Seat, rng: &mut Rng) -> Result<Step, TxnError> {
        let ops = &Ops::default();
        let below = |rng: &mut Rng, bound: usize| rng.below(bound as u64) as usize;
        let (kind, store) = (rng.below(100), below(rng, self.stores));
        let invoked = self.time(seat.now());
        let transaction = seat.transaction();

        let outcome: Outcome<Committed<()>> = match kind {
            // A transfer, to an account of another store.
            0..65 => {
                let other = (store + 1 + below(rng, self.stores - 1)) % self.stores;
                let receipt = rng.one_in(4).then(|| {
                    // Full prefixes are left, so that a scan does not grow with the run.
                    let prefix = self.receipts(store);
                    self.receipts.borrow_mut()[store] += 1;
                    (prefix, self.stamp())
                });
                let (from, to) = (below(rng, self.accounts), below(rng, self.accounts));
                let (from, to) = (self.account(store, from), self.account(other, to));
                let plan = &Transfer { from, to, amount: 1 + rng.below(50) as i64, receipt };
                transaction.run_and_tell(|txn| self.transfer(txn, Rc::clone(ops), plan)).await?
            }
            // A statement of one store, or an audit of all.
            65..90 => {
                let stores = if kind < 80 { store..store + 1 } else { 0..self.stores };
                let run = transaction.run_and_tell(|txn| self.sum(txn, Rc::clone(ops), stores.clone()));
                run.await?.map(|committed| {
                    let sum = committed.value;
                    if stores.len() == self.stores && sum != self.total() {
                        self.wrong.replace(Some(format!("an audit found {sum} in all, not {}", self.total())));
                    }
                    without_value(committed)
                })
            }
            // What was paid.
            _ => {
                let prefix = &self.receipts(store);
                transaction.run_and_tell(|txn| self.list(txn, Rc::clone(ops), prefix)).await?
            }
        };

        self.noted(seat, invoked, Rc::clone(ops), &outcome);
        Ok(Step { outcome, writes: kind < 65 })
    }

    async fn verify(&self, seat: &Seat) -> Result<(), String> {
        let keys = |store| (0..self.accounts).map(move |order| self.account(store, order));
        let keys: Vec<Key> = (0..self.stores).flat_map(keys).collect();

        let mut total = 0;
        for value in read_all(seat, &keys).await? {
            let Some(Value::Bytes(bytes)) = value else { return Err("an account is missing".into()) };
            let (balance, _): Account = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
            total += balance;
        }
        if total != self.total() {
            return Err(format!("the accounts have {total} in all, not {}", self.total()));
        }
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        check(&self.record.borrow().history).map(drop).map_err(|anomaly| format!("no serial order: {anomaly}"))
    }

    fn tell(&self, run: Run) -> Run {
        run.with("judged", self.record.borrow().labels).with("strictly_serializable", true)
    }
}
