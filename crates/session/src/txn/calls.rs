//! Calls of memoized functions in a transaction: using results, computing and proposing them, and computing those again that
//! depend on what the transaction writes. What there is to know about a call is in [`slackline_core::draft`].

use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_core::draft::buffer::ROOT;
use slackline_core::draft::{Lookup, Recomputed};
use slackline_core::object::ObjectKey;
use slackline_core::txn::READ_ITEMS;

use super::failure::TxnError;
use super::handle::{Scope, Txn};
use super::memo::Memo;
use super::registry::{Function, parse};
use crate::port::Pending;
use crate::reads::Wanted;

/// The deepest that calls may nest.
const DEPTH: u32 = 64;

impl Txn {
    /// What a memoized function gives for these arguments, which is what it would give if it were run now.
    ///
    /// A transaction that has already written something runs it like any other function.
    ///
    /// # Errors
    ///
    /// The function's own; it writes, or its arguments or result cannot be written as JSON ([`TxnError::NotMemoizable`]).
    pub async fn call<A, T>(&self, memo: &'static Memo<A, T>, arguments: A) -> Result<T, TxnError>
    where
        A: Serialize + DeserializeOwned + 'static,
        T: Serialize + DeserializeOwned + 'static,
    {
        let name = memo.name();
        let not_memoizable = |why: String| TxnError::NotMemoizable { name, why };
        if self.scope.depth >= DEPTH {
            return Err(not_memoizable(format!("calls nest more than {DEPTH} deep")));
        }

        // A call has no object if its arguments make no name or its function is not to be trusted; nor may its result be used on what the
        // program has written by now. Then it is run here, as if it were not memoized.
        let json = serde_json::to_string(&arguments).map_err(|error| not_memoizable(error.to_string()))?;
        let is_kept = self.run.memos.add(memo);
        let place = memo.place(self.run.port.topology(), &arguments, &json);
        let is_clean = self.is_clean()?;
        let Some(place) = place.filter(|_| is_kept && is_clean) else {
            return memo.run(self.inline(name), arguments).await;
        };

        match self.result_of(&place, memo, &json).await? {
            Some(result) => serde_json::from_slice(&result).map_err(|error| not_memoizable(error.to_string())),
            None => memo.run(self.inline(name), arguments).await,
        }
    }

    /// The result of a call; none if the function is to run as if it were not memoized.
    async fn result_of(
        &self,
        place: &ObjectKey,
        function: &'static dyn Function<Txn>,
        arguments: &str,
    ) -> Result<Option<Vec<u8>>, TxnError> {
        loop {
            let lookup = self.state()?.draft.lookup(place);
            match lookup {
                Lookup::Known(result) => {
                    if let Some(frame) = self.scope.frame {
                        self.state()?.draft.note_use(frame, place);
                    }
                    return Ok(Some(result));
                }
                Lookup::Fetch if !self.fetch_call(place).await? => {
                    // What used it would be registered on all that this one reads, and computed again by writes that leave this
                    // one's result as it is.
                    self.state()?.may_propose = false;
                    return Ok(None);
                }
                Lookup::Fetch => {}
                // The program has written what the call depends on: its result is computed again before it is used.
                Lookup::Pending => self.treat(place.clone()).await?,
                Lookup::Compute if self.compute(place, function, arguments).await?.is_none() => return Ok(None),
                Lookup::Compute => {}
                Lookup::Inline => return Ok(None),
            }
        }
    }

    /// The handle of a function that runs as a part of what called it.
    fn inline(&self, name: &'static str) -> Txn {
        Txn { scope: Scope { function: Some(name), depth: self.scope.depth + 1, ..self.scope }, ..self.clone() }
    }

    /// Reads a call's object. False if that cannot be read.
    async fn fetch_call(&self, place: &ObjectKey) -> Result<bool, TxnError> {
        let ahead = self.state()?.ahead.gets.remove(place);
        let seen = match ahead {
            Some(seen) => Some(Ok(seen)),
            // That there is none is not validated, so nobody would find out that a copy of this is old.
            None => {
                let wanted = Wanted { gets: vec![place.clone()], fresh: true, ..Wanted::default() };
                self.read(wanted).await?.gets.into_iter().next()
            }
        };
        match seen {
            Some(Ok(seen)) => {
                let noted = self.state()?.draft.note_call(place, seen);
                noted.map_err(|contradiction| self.contradiction(contradiction)).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Reads the objects of all calls that are to be treated at once. Those that cannot be read stay as they are.
    async fn fetch_pending(&self) -> Result<(), TxnError> {
        let gets: Vec<ObjectKey> = {
            let state = self.state()?;
            let is_new = |place: &&ObjectKey| !state.ahead.gets.contains_key(*place);
            state.draft.unread().filter(is_new).take(READ_ITEMS).cloned().collect()
        };
        if gets.len() < 2 {
            return Ok(());
        }
        let reading = self.read(Wanted { gets: gets.clone(), fresh: true, ..Wanted::default() }).await?;
        for (place, seen) in gets.iter().zip(reading.gets) {
            let Ok(seen) = seen else { continue };
            let noted = self.state()?.draft.note_call(place, seen);
            noted.map_err(|contradiction| self.contradiction(contradiction))?;
        }
        Ok(())
    }

    /// Runs a function in a frame of its own. None if the program wrote something meanwhile, in another branch of it: then
    /// the function may have read what is never committed, or not by itself.
    async fn compute(
        &self,
        place: &ObjectKey,
        function: &'static dyn Function<Txn>,
        arguments: &str,
    ) -> Result<Option<Vec<u8>>, TxnError> {
        let frame = self.state()?.draft.open(place.clone());
        let scope = Scope { frame: Some(frame), function: Some(function.name()), depth: self.scope.depth + 1 };
        let result = function.run(Txn { scope, ..self.clone() }, arguments).await?;

        // The frame is not closed, so its result is neither used again nor proposed.
        if !self.is_clean()? {
            return Ok(None);
        }
        self.state()?.draft.close(frame, result.clone());
        Ok(Some(result))
    }

    /// True if functions read what was committed, or what is about to be, all of it.
    fn is_clean(&self) -> Result<bool, TxnError> {
        Ok(self.run.is_treating || self.state()?.draft.buffer.is_empty(self.layer))
    }

    /// Runs a function again on what it read before, and compares.
    async fn is_deterministic(&self, place: &ObjectKey, result: &[u8]) -> Result<bool, TxnError> {
        let Some((id, arguments)) = parse(&place.name) else { return Ok(true) };
        let Some(function) = self.run.memos.find(&id) else { return Ok(true) };
        let scope = Scope { frame: None, function: Some(function.name()), depth: self.scope.depth + 1 };
        let again = function.run(Txn { scope, ..self.clone() }, arguments).await?;

        // The snapshot gave both the same: that they differ is the function's own doing, and its results are worth nothing.
        let is_same = again == result;
        if !is_same {
            self.run.memos.distrust(&id);
        }
        Ok(is_same)
    }

    /// Computes a call again that depends on what the transaction writes.
    fn treat(&self, place: ObjectKey) -> Pending<Result<(), TxnError>> {
        let txn = self.clone();
        Box::pin(async move {
            let is_there = txn.state()?.draft.is_there(&place);
            if is_there.is_none() && !txn.fetch_call(&place).await? {
                txn.state()?.draft.revoke(&place);
                return Ok(());
            }

            // It has no result that could be wrong from now on.
            if txn.state()?.draft.is_there(&place) == Some(false) {
                txn.state()?.draft.settle_absent(&place);
                return Ok(());
            }

            // A result that this client cannot compute again goes: a result that is absent is never wrong.
            let function = parse(&place.name).and_then(|(id, arguments)| {
                let function = txn.run.memos.find(&id)?;
                Some((function, arguments.to_owned()))
            });
            let Some((function, arguments)) = function.filter(|_| txn.scope.depth < DEPTH) else {
                txn.state()?.draft.revoke(&place);
                return Ok(());
            };

            let deeper = Txn { scope: Scope { depth: txn.scope.depth + 1, ..Scope::default() }, ..txn.clone() };
            let result = match deeper.compute(&place, function, &arguments).await {
                Ok(result) => result.expect("what is written is all there"),
                Err(error) if txn.state()?.failure.is_some() => return Err(error),
                // It has no result on what is there now.
                Err(_) => {
                    txn.state()?.draft.revoke(&place);
                    return Ok(());
                }
            };

            // A change of the result is passed on to what was computed with it. One that is no change of what was read is not believed.
            let recomputed = txn.state()?.draft.settle(&place);
            if recomputed == Recomputed::Changed && !deeper.is_deterministic(&place, &result).await? {
                txn.state()?.draft.revoke(&place);
            }
            Ok(())
        })
    }

    /// Computes all calls again that depend on what the transaction writes, and those that depend on these.
    pub(super) async fn treat_all(&self) -> Result<(), TxnError> {
        loop {
            self.fetch_pending().await?;
            let Some(place) = self.state()?.draft.next_pending() else { return Ok(()) };
            self.treat(place).await?;
        }
    }

    /// True if what was computed may be proposed: functions that are not deterministic are found out now and then.
    pub(super) async fn check_computed(&self) -> Result<bool, TxnError> {
        let computed = match &self.state()?.draft {
            draft if draft.buffer.is_empty(ROOT) => draft.computed(),
            // On what the program wrote after that they may well give something else.
            _ => Vec::new(),
        };
        for (place, result) in computed {
            let is_to_be_checked = parse(&place.name).is_some_and(|(id, _)| self.run.memos.count_for_check(&id));
            if is_to_be_checked && !self.is_deterministic(&place, &result).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
