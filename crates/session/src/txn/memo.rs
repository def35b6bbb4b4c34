//! Memoized functions: what they are, and how one is declared.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_core::object::{CALL_MARK, ObjectKey, is_call};

use super::failure::TxnError;
use super::fingerprint::spread;
use super::handle::Txn;
use super::registry::Function;
use crate::port::Pending;
use crate::topology::Topology;

/// A function whose results are kept for everybody, and stay right: a **computation warranty** (Warranties, NSDI 2014).
///
/// Whoever [calls](Txn::call) it with arguments with which somebody has called it before reads one object, its result, often
/// without leaving the region. Whoever writes what the function has read runs it again, in the same transaction; so a result
/// is never stale, and a write that does not change the result disturbs nobody.
///
/// It must be **deterministic**, with no effects: it reads through its [`Txn`] and writes nothing. One that writes fails
/// ([`TxnError::NotMemoizable`]); one that gives different results on the same reads is found out now and then, and then
/// runs like any other function (the client tells which).
///
/// The macro [`memoized!`](crate::memoized) declares one, with the fingerprint of its code. Clients that write what it reads
/// should know it too: one that does not deletes its results.
pub struct Memo<A, T> {
    name: &'static str,
    /// Names its code; see [`Memo::new`].
    fingerprint: u64,
    /// The region of a result, from the arguments; none: by a hash of the call.
    home: Option<fn(&A) -> String>,
    run: fn(Txn, A) -> Pending<Result<T, TxnError>>,
}

impl<A, T> fmt::Debug for Memo<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memo").field("name", &self.name).field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl<A, T> Memo<A, T> {
    /// A function of this name. The fingerprint names its code: programs in which it differs do not share results.
    pub const fn new(name: &'static str, fingerprint: u64, run: fn(Txn, A) -> Pending<Result<T, TxnError>>) -> Self {
        Self { name, fingerprint, home: None, run }
    }

    /// The region in which a result is kept, from the arguments; best where most of what the function reads lives. Without, it
    /// is spread over the regions by a hash.
    pub const fn at(mut self, home: fn(&A) -> String) -> Self {
        self.home = Some(home);
        self
    }
}

/// Declares memoized functions: see [`Memo`].
///
/// ```
/// use slackline_session::key::Key;
/// use slackline_session::memoized;
/// use slackline_session::txn::{Txn, TxnError};
///
/// memoized! {
///     /// How many votes there are in these precincts.
///     pub static VOTES: async fn(txn: Txn, from: u32, to: u32) -> Result<i64, TxnError> {
///         if to - from > 1 {
///             let middle = from + (to - from) / 2;
///             let lower = txn.call(&VOTES, (from, middle)).await?;
///             return Ok(lower + txn.call(&VOTES, (middle, to)).await?);
///         }
///         txn.count(&Key::new("us", format!("votes/{from}"))).await
///     }
/// }
/// ```
///
/// The fingerprint is of the text of the function itself and of its module's path. If what it names changes and is not memoized itself (a
/// function, a constant, a type, an import), change its text too, or its name. `=> |arguments| region;` behind it says in which region a result is kept ([`Memo::at`]).
#[macro_export]
macro_rules! memoized {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: async fn($txn:ident: Txn $(, $argument:ident: $of:ty)* $(,)?)
        -> Result<$out:ty, TxnError> $body:block $(=> $home:expr;)?)*) => {$(
        $(#[$meta])*
        $vis static $name: $crate::txn::Memo<($($of,)*), $out> = $crate::txn::Memo::new(
            stringify!($name),
            // Of the module, too: what a name in the text means depends on where it stands.
            $crate::txn::fingerprint(concat!(module_path!(), " ", stringify!(($($argument: $of),*) -> $out $body))),
            |$txn: $crate::txn::Txn, ($($argument,)*): ($($of,)*)| {
                Box::pin(async move { let ended: ::std::result::Result<$out, $crate::txn::TxnError> = async move $body.await; ended })
            },
        )$(.at($home))?;
    )*};
}

impl<A: DeserializeOwned + 'static, T: Serialize + 'static> Function<Txn> for Memo<A, T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn run(&self, txn: Txn, arguments: &str) -> Pending<Result<Vec<u8>, TxnError>> {
        let name = self.name;
        let not_memoizable = move |why: serde_json::Error| TxnError::NotMemoizable { name, why: why.to_string() };
        match serde_json::from_str::<A>(arguments) {
            Ok(arguments) => {
                let result = (self.run)(txn, arguments);
                Box::pin(async move { serde_json::to_vec(&result.await?).map_err(not_memoizable) })
            }
            Err(error) => Box::pin(std::future::ready(Err(not_memoizable(error)))),
        }
    }
}

impl<A: Serialize, T> Memo<A, T> {
    pub(super) fn run(&self, txn: Txn, arguments: A) -> Pending<Result<T, TxnError>> {
        (self.run)(txn, arguments)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The object of a call; none if its arguments make no name.
    pub(super) fn place(&self, topology: &Topology, arguments: &A, json: &str) -> Option<ObjectKey> {
        // Code and arguments are all in the name, so another version of the function never finds this result.
        let name = format!("{CALL_MARK}{}#{:016x}{json}", self.name, self.fingerprint);

        let region = match self.home {
            Some(home) => topology.region(&home(arguments))?,
            // Only what was at home in a region that is gone goes elsewhere.
            None => {
                let at = |count: usize| (spread(&name) % count.max(1) as u64) as usize;
                match at(topology.regions.len()) as u16 {
                    first if topology.is_home(first) => first,
                    _ => {
                        let homes = topology.homes();
                        *homes.get(at(homes.len()))?
                    }
                }
            }
        };
        is_call(&name).then(|| ObjectKey::new(region, name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::fingerprint;
    use super::super::registry::parse;
    use super::*;

    static DOUBLE: Memo<(u32, String), u32> =
        Memo::new("double", fingerprint("a"), |_, (number, _)| Box::pin(async move { Ok(2 * number) }));

    mod before {
        crate::memoized! {
            pub(super) static NAME: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> { Ok(format!("Mr  {at}")) }
        }
    }
    mod after {
        crate::memoized! {
            pub(super) static NAME: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> { Ok(format!("Mr {at}")) }
            pub(super) static LAID_OUT: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> {
                Ok( format!( "Mr {at}" ) )
            }
        }
    }
    mod elsewhere {
        crate::memoized! {
            pub(super) static NAME: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> { Ok(format!("Mr {at}")) }
        }
    }

    fn of_module(name: &str) -> u64 {
        let text = stringify!((at: u32) -> String { Ok(format!("Mr {at}")) });
        fingerprint(&format!("{}::{name} {text}", module_path!()))
    }

    #[test]
    fn versions_of_a_function_that_differ_in_white_space_of_a_literal_share_no_results() {
        let path = [before::NAME.fingerprint, after::NAME.fingerprint];
        assert_eq!(path[1], of_module("after"));
        assert_ne!(path[0], of_module("before"), "it has two blanks there");
        assert_eq!(after::NAME.fingerprint, after::LAID_OUT.fingerprint);
    }

    /// A constant that it names may be another one there.
    #[test]
    fn functions_of_one_text_in_two_modules_share_no_results() {
        assert_ne!(after::NAME.fingerprint, elsewhere::NAME.fingerprint);
    }

    #[test]
    fn call_is_named_by_function_code_and_arguments() {
        assert_ne!(fingerprint("a + b"), fingerprint("a - b"));
        assert_eq!(fingerprint("a + b"), fingerprint("a  +\n b"));
        let regions = vec!["us".into(), "eu".into()];
        let topology = Topology { cluster: String::new(), regions, lanes: 1, sites: Vec::new() };
        let arguments = (3, "x#\u{7}".to_owned());
        let json = serde_json::to_string(&arguments).expect("JSON");
        let place = DOUBLE.place(&topology, &arguments, &json).expect("a name");
        let (id, found) = parse(&place.name).expect("as it was made");
        assert_eq!((id, found), (("double".to_owned(), fingerprint("a")), json.as_str()));
        let long = (3, "x".repeat(2000));
        let json = serde_json::to_string(&long).expect("JSON");
        assert_eq!(DOUBLE.place(&topology, &long, &json), None);
        assert_eq!(parse("users/alice"), None);
        assert_eq!(parse("\u{1}double#123"), None);
    }
}
