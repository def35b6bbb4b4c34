//! What computing and syncing cost, so that virtual time passes at a site as it would at a real one.

use slackline_core::api::{Operation, Request};
use slackline_core::machine::Input;
use slackline_core::node::Node;
use slackline_core::object::Part;
use slackline_core::object::message::Message;
use slackline_core::peer::Body;

/// Times that work takes at a site. A site does one thing at a time; its disk syncs beside it, one sync at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Handling one input, in nanoseconds.
    pub input_ns: u64,
    /// Handling one operation of a batch, in nanoseconds, besides its input.
    pub operation_ns: u64,
    /// Handling one object that is read, asked for, told, validated or written, in nanoseconds, besides.
    pub object_ns: u64,
    /// Sending one message or response, in nanoseconds.
    pub send_ns: u64,
    /// Handing out one byte of a batch, in nanoseconds.
    pub byte_ns: u64,
    /// One sync, in microseconds.
    pub sync_us: u64,
    /// Syncing one byte, in nanoseconds, besides.
    pub sync_byte_ns: u64,
}

impl Costs {
    /// Nothing costs time.
    pub const NONE: Self =
        Self { input_ns: 0, operation_ns: 0, object_ns: 0, send_ns: 0, byte_ns: 0, sync_us: 0, sync_byte_ns: 0 };

    /// Handling an input, in nanoseconds, without what comes of it.
    #[inline]
    pub(crate) fn of_input(&self, input: &Input<Node>) -> u64 {
        let mut cost = self.input_ns;
        if let Input::Request { request: Request::Batch(batch), .. } = input {
            cost += self.operation_ns * batch.operations.len() as u64;
        }
        // To count objects takes real time, which a world without such a cost need not spend.
        if self.object_ns > 0 {
            cost += self.object_ns * objects_of(input);
        }
        cost
    }
}

impl Default for Costs {
    /// A small server with a fast disk. Objects cost nothing: what measures transactions says what they cost.
    fn default() -> Self {
        Self {
            input_ns: 2_000,
            operation_ns: 500,
            object_ns: 0,
            send_ns: 1_000,
            byte_ns: 1,
            sync_us: 120,
            sync_byte_ns: 1,
        }
    }
}

/// Returns the number of objects that an input is about.
fn objects_of(input: &Input<Node>) -> u64 {
    let of_part = |part: &Part| {
        let scanned: usize = part.scans.iter().map(|(_, numbers)| 1 + numbers.len()).sum();
        part.reads.len() + scanned + part.writes.len()
    };
    let count = match input {
        Input::Request { request: Request::Read(read), .. } => read.gets.len() + read.scans.len(),
        Input::Request { request: Request::Batch(batch), .. } => {
            let commits = batch.operations.iter().filter_map(|submission| match &submission.operation {
                Operation::Commit(transaction) => Some(transaction),
                _ => None,
            });
            commits.flat_map(|transaction| &transaction.homes).map(|home| of_part(&home.part)).sum()
        }
        Input::Message { message, .. } => match &message.body {
            Body::Txn(message) => match &**message {
                Message::Fetch(fetch) => fetch.gets.len() + fetch.scans.len(),
                Message::Fetched(fetched) => {
                    let rows = fetched.scans.iter().flatten().map(Vec::len).sum::<usize>();
                    fetched.gets.len() + fetched.scans.len() + rows
                }
                Message::Prepare(prepare) => of_part(&prepare.part),
                Message::ProbeCalls { names, .. } | Message::AbsentCalls { names, .. } => names.len(),
                _ => 0,
            },
            _ => 0,
        },
        _ => 0,
    };
    count as u64
}
