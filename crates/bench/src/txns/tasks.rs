//! The tasks of a run, in virtual time or real: each writes objects, is a client, or checks the data.

use std::cell::RefCell;
use std::rc::Rc;

use slackline::{Outcome, TxnError, Value};
use slackline_core::stats::Rng;

use super::tally::{Tally, Window};
use super::workload::{Seat, Workload};

/// The number of objects that one loading transaction writes.
const LOAD: usize = 500;

/// Writes the objects of a store.
pub(super) async fn load<W: Workload>(workload: Rc<W>, seat: Seat, store: usize, tally: Rc<RefCell<Tally>>) {
    let objects = workload.objects(store);
    for chunk in objects.chunks(LOAD) {
        // Many in one transaction: each is a round trip or more.
        let written = seat.transaction().run(|txn| async move {
            for (key, value) in chunk {
                match value {
                    Value::Bytes(bytes) => txn.put_bytes(key, bytes.clone())?,
                    Value::Counter(count) => txn.put_count(key, *count)?,
                    Value::Derived(_) => unreachable!("no workload begins with one"),
                }
            }
            Ok::<_, TxnError>(())
        });

        match written.await {
            Ok(Outcome::Done(())) => {}
            other => return tally.borrow_mut().fail(format!("the objects cannot be written: {other:?}")),
        }
    }
}

/// One client: step after step, until the window is over.
pub(super) async fn client<W: Workload>(
    workload: Rc<W>,
    seat: Seat,
    mut rng: Rng,
    window: Window,
    tally: Rc<RefCell<Tally>>,
) {
    loop {
        // One transaction is under way at a time, so a slow one delays the next: a closed loop.
        let began = seat.now();
        if began >= window.end {
            return;
        }

        let step = workload.step(&seat, &mut rng).await;
        tally.borrow_mut().note(window, seat.site, (began, seat.now()), step);
    }
}

/// Checks the data, from one client's seat.
pub(super) async fn verify<W: Workload>(workload: Rc<W>, seat: Seat, tally: Rc<RefCell<Tally>>) {
    if let Err(what) = workload.verify(&seat).await {
        tally.borrow_mut().fail(what);
    }
}
