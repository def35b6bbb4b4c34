//! Memoized functions: what they are, and which of them a client knows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_core::object::{CALL_MARK, ObjectKey, is_call};

use super::port::Pending;
use super::{Txn, TxnError};
use crate::topology::Topology;

/// The first pause before a call whose registration failed is proposed again, and the longest; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The most calls whose failed proposals are remembered, and proposals under way.
const REFUSED: usize = 4096;
const PROPOSALS: usize = 64;
/// How often a function is run twice when its result is proposed, to see whether it is deterministic: the first few times,
/// then one time in this many.
const FIRST_CHECKS: u32 = 3;
const CHECK_ONE_IN: u32 = 64;

/// A function whose results are kept for everybody, and stay right: a **computation warranty** (Warranties, NSDI 2014).
///
/// Whoever [calls](Txn::call) it with arguments with which somebody has called it before reads one object, its result, often
/// without leaving the region. Whoever writes what the function has read runs it anew, in the same transaction; so a result
/// is never stale, and a write that does not change the result disturbs nobody.
///
/// It must be **deterministic**, with no effects: it reads through its [`Txn`] and writes nothing. One that writes fails
/// ([`TxnError::NotMemoizable`]); one that gives different results on the same reads is found out now and then, and then
/// runs like any other function ([`crate::Client::not_deterministic`]).
///
/// The macro [`memoized!`](crate::memoized) declares one, with the fingerprint of its code. Clients that write what it reads
/// should know it too ([`crate::Client::memoize`]): one that does not deletes its results.
pub struct Memo<A, T> {
    name: &'static str,
    fingerprint: u64,
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

/// A fingerprint of code, for [`Memo::new`] (FNV-1a).
///
/// Every byte of a literal or a comment counts. Elsewhere white space counts only where it separates two tokens that would be
/// another token side by side, so the layout of code does not change its fingerprint.
pub const fn fingerprint(code: &str) -> u64 {
    let code = code.as_bytes();
    let (mut hash, mut at) = (FNV_BASIS, 0);
    while at < code.len() {
        if code[at].is_ascii_whitespace() {
            let from = at;
            while at < code.len() && code[at].is_ascii_whitespace() {
                at += 1;
            }
            if from > 0 && at < code.len() && is_one_token(code[from - 1], code[at]) {
                hash = fnv(hash, b' ');
            }
            continue;
        }

        // Inside a literal nothing is left out: programs that differ there must not share results.
        let end = end_of_token(code, at);
        while at < end {
            hash = fnv(hash, code[at]);
            at += 1;
        }
    }
    hash
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3)
}

/// Spreads names over regions (FNV-1a of all bytes).
fn spread(name: &str) -> u64 {
    name.bytes().fold(FNV_BASIS, fnv)
}

/// Tells whether two bytes side by side belong to one token, or to a literal and its prefix.
const fn is_one_token(left: u8, right: u8) -> bool {
    match (left, right) {
        (b'&' | b'|' | b'<' | b'>' | b'.' | b':' | b'=', _) if left == right => true,
        (b'-' | b'=', b'>') | (b'<', b'-') => true,
        (b'+' | b'-' | b'*' | b'/' | b'%' | b'^' | b'&' | b'|' | b'<' | b'>' | b'!' | b'.', b'=') => true,
        (b'/', b'/' | b'*') => true,
        _ => is_word(left) && (is_word(right) || matches!(right, b'"' | b'\'' | b'#')),
    }
}

/// Tells whether a byte can be part of an identifier, a keyword or a number.
const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Where the token that begins at `at` ends: a literal, a comment or a word as a whole, anything else byte by byte. What is
/// not closed goes on to the end.
const fn end_of_token(code: &[u8], at: usize) -> usize {
    match code[at] {
        b'"' => end_of_quoted(code, at + 1, b'"'),
        b'\'' if is_char(code, at) => end_of_quoted(code, at + 1, b'\''),
        b'/' if has(code, at + 1, b'/') => {
            let mut end = at;
            while end < code.len() && code[end] != b'\n' {
                end += 1;
            }
            // The line break is what ends it.
            if end < code.len() { end + 1 } else { end }
        }
        b'/' if has(code, at + 1, b'*') => end_of_block_comment(code, at),
        byte if is_word(byte) => {
            let mut end = at;
            while end < code.len() && is_word(code[end]) {
                end += 1;
            }
            // `r"…"`, `br#"…"#`, `cr"…"`: there a backslash means nothing, and as many `#` as it begins with end it.
            let is_raw = code[end - 1] == b'r' && (end - at == 1 || (end - at == 2 && matches!(code[at], b'b' | b'c')));
            let mut hashes = 0;
            while is_raw && has(code, end + hashes, b'#') {
                hashes += 1;
            }
            if is_raw && has(code, end + hashes, b'"') { end_of_raw(code, end + hashes + 1, hashes) } else { end }
        }
        _ => at + 1,
    }
}

const fn has(code: &[u8], at: usize, byte: u8) -> bool {
    at < code.len() && code[at] == byte
}

/// Tells whether a quote begins a character, and not a lifetime or a label.
const fn is_char(code: &[u8], at: usize) -> bool {
    if has(code, at + 1, b'\\') {
        return true;
    }
    // One character, of up to four bytes, and the quote that ends it.
    let mut end = at + 2;
    while end < code.len() && code[end] & 0xc0 == 0x80 {
        end += 1;
    }
    at + 1 < code.len() && has(code, end, b'\'')
}

const fn end_of_quoted(code: &[u8], mut at: usize, quote: u8) -> usize {
    while at < code.len() {
        match code[at] {
            byte if byte == quote => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    code.len()
}

const fn end_of_raw(code: &[u8], mut at: usize, hashes: usize) -> usize {
    while at < code.len() {
        let mut closing = 0;
        while code[at] == b'"' && closing < hashes && has(code, at + 1 + closing, b'#') {
            closing += 1;
        }
        if code[at] == b'"' && closing == hashes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    code.len()
}

const fn end_of_block_comment(code: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < code.len() {
        if code[at] == b'/' && has(code, at + 1, b'*') {
            (depth, at) = (depth + 1, at + 2);
        } else if code[at] == b'*' && has(code, at + 1, b'/') {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// Declares memoized functions: see [`Memo`].
///
/// ```
/// use slackline::{Txn, TxnError, memoized};
///
/// memoized! {
///     /// How many votes there are in these precincts.
///     pub static VOTES: async fn(txn: Txn, from: u32, to: u32) -> Result<i64, TxnError> {
///         if to - from > 1 {
///             let middle = from + (to - from) / 2;
///             let lower = txn.call(&VOTES, (from, middle)).await?;
///             return Ok(lower + txn.call(&VOTES, (middle, to)).await?);
///         }
///         txn.count(&slackline::Key::new("us", format!("votes/{from}"))).await
///     }
/// }
/// ```
///
/// The fingerprint is of the text of the function itself; if it calls others that are not memoized and that change, change its
/// text too, or its name. `=> |arguments| region;` behind it says in which region a result is kept ([`Memo::at`]).
#[macro_export]
macro_rules! memoized {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: async fn($txn:ident: Txn $(, $argument:ident: $of:ty)* $(,)?)
        -> Result<$out:ty, TxnError> $body:block $(=> $home:expr;)?)*) => {$(
        $(#[$meta])*
        $vis static $name: $crate::Memo<($($of,)*), $out> = $crate::Memo::new(
            stringify!($name),
            $crate::fingerprint(stringify!(($($argument: $of),*) -> $out $body)),
            |$txn: $crate::Txn, ($($argument,)*): ($($of,)*)| {
                Box::pin(async move { let ended: ::std::result::Result<$out, $crate::TxnError> = async move $body.await; ended })
            },
        )$(.at($home))?;
    )*};
}

/// A memoized function whose types are not known.
pub(super) trait Function: Send + Sync {
    fn name(&self) -> &'static str;
    fn fingerprint(&self) -> u64;
    /// Runs it, with arguments and result as JSON.
    fn run(&self, txn: Txn, arguments: &str) -> Pending<Result<Vec<u8>, TxnError>>;
}

impl<A: DeserializeOwned + 'static, T: Serialize + 'static> Function for Memo<A, T> {
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
        let name = format!("{CALL_MARK}{}#{:016x}{json}", self.name, self.fingerprint);
        let region = match self.home {
            Some(home) => topology.region(&home(arguments))?,
            None => (spread(&name) % topology.regions.len().max(1) as u64) as u16,
        };
        is_call(&name).then(|| ObjectKey::new(region, name))
    }
}

/// A function's name and fingerprint.
type Id = (String, u64);

/// Which function a call is of, and its arguments, as the call's name has them.
pub(super) fn parse(call: &str) -> Option<(Id, &str)> {
    let (name, rest) = call.strip_prefix(CALL_MARK)?.split_once('#')?;
    let (fingerprint, arguments) = rest.split_at_checked(16)?;
    Some(((name.to_owned(), u64::from_str_radix(fingerprint, 16).ok()?), arguments))
}

/// The memoized functions that a client knows.
#[derive(Default)]
pub struct Memos {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    functions: BTreeMap<Id, Entry>,
    /// Calls that were proposed in vain: until when they are left alone, and for how long the next time.
    refused: BTreeMap<ObjectKey, (Instant, Duration)>,
    under_way: usize,
    is_off: bool,
}

struct Entry {
    function: &'static dyn Function,
    is_deterministic: bool,
    proposals: u32,
}

impl fmt::Debug for Memos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memos").field("functions", &self.known().functions.keys()).finish_non_exhaustive()
    }
}

impl Memos {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a function in; whether its results may be kept.
    pub(super) fn add(&self, function: &'static dyn Function) -> bool {
        let mut known = self.known();
        let id = (function.name().to_owned(), function.fingerprint());
        let entry = Entry { function, is_deterministic: true, proposals: 0 };
        let is_deterministic = known.functions.entry(id).or_insert(entry).is_deterministic;
        is_deterministic && !known.is_off
    }

    /// The function of a call, if it is known and deterministic as far as is known.
    pub(super) fn find(&self, id: &Id) -> Option<&'static dyn Function> {
        let known = self.known();
        known.functions.get(id).filter(|entry| entry.is_deterministic).map(|entry| entry.function)
    }

    /// Counts a result that is to be proposed. True if this one is to be computed twice.
    pub(super) fn count_for_check(&self, id: &Id) -> bool {
        let mut known = self.known();
        let Some(entry) = known.functions.get_mut(id) else { return false };
        entry.proposals = entry.proposals.wrapping_add(1);
        entry.proposals <= FIRST_CHECKS || entry.proposals.is_multiple_of(CHECK_ONE_IN)
    }

    /// A function gave two results on the same reads.
    pub(super) fn distrust(&self, id: &Id) {
        if let Some(entry) = self.known().functions.get_mut(id) {
            entry.is_deterministic = false;
        }
    }

    /// The names of functions that gave different results on the same reads.
    pub fn not_deterministic(&self) -> Vec<String> {
        let known = self.known();
        let found = known.functions.iter().filter(|(_, entry)| !entry.is_deterministic);
        found.map(|((name, _), _)| name.clone()).collect()
    }

    /// Functions run as if they were no memoized ones, and what others have kept is not used; for comparisons.
    pub fn turn_off(&self) {
        self.known().is_off = true;
    }

    /// Reserves a place for a proposal of a call, if it may be proposed now. Then [`Memos::proposed`] must follow.
    pub(super) fn reserve_proposal(&self, call: &ObjectKey, now: Instant) -> bool {
        let mut known = self.known();
        let waits = known.refused.get(call).is_some_and(|(until, _)| now < *until);
        let may = !waits && known.under_way < PROPOSALS;
        known.under_way += usize::from(may);
        may
    }

    /// A call was proposed; whether it was registered.
    /// `random` spreads clients that proposed the same.
    pub(super) fn proposed(&self, call: &ObjectKey, now: Instant, random: u64, was_registered: bool) {
        let mut known = self.known();
        known.under_way -= 1;
        if was_registered {
            known.refused.remove(call);
            return;
        }
        if known.refused.len() >= REFUSED {
            known.refused.retain(|_, (until, _)| now < *until);
        }
        if known.refused.len() < REFUSED {
            let entry = known.refused.entry(call.clone()).or_insert((now, PAUSES.0));
            let pause = entry.1 / 2 + entry.1 / 2 * (random % 1024) as u32 / 1024;
            *entry = (now + pause, (entry.1 * 2).min(PAUSES.1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static DOUBLE: Memo<(u32, String), u32> =
        Memo::new("double", fingerprint("a"), |_, (number, _)| Box::pin(async move { Ok(2 * number) }));

    #[test]
    fn fingerprint_of_code_that_differs_inside_a_literal_is_another() {
        let different: &[&[&str]] = &[
            &[r#"{ f("a b") }"#, r#"{ f("ab") }"#, r#"{ f("a  b") }"#, "{ f(\"a\nb\") }"],
            &[r#"f("\" ", b)"#, r#"f("\"", b)"#],
            &[r#"f("\\", " b")"#, r#"f("\\", "b")"#],
            &[r##"f(r#"a " b"#)"##, r##"f(r#"a "b"#)"##],
            &[r#"f(r"\", " b")"#, r#"f(r"\", "b")"#],
            &[r#"f(br"a b")"#, r#"f(br"ab")"#],
            &[r#"f(b"a b")"#, r#"f(b"ab")"#],
            &[r"split(' ')", r"split('\t')", "split('\t')"],
            &[r#"(b'"', " ", b'"')"#, r#"(b'"', "", b'"')"#],
            &[r#"('\'', " ")"#, r#"('\'', "")"#],
            &[r#"('é', "é é")"#, r#"('é', "éé")"#],
            &[r#"fn f<'a>(x: &'a str) { g("a b") }"#, r#"fn f<'a>(x: &'a str) { g("ab") }"#],
            &["// it's\nf(\"a b\")", "// it's\nf(\"ab\")"],
            &["/* \" /* */ */ f(\"a b\")", "/* \" /* */ */ f(\"ab\")"],
            &[r##"f(r#fn, "a b")"##, r##"f(r#fn, "ab")"##],
            // Tokens, and not their bytes, make the program.
            &["a & &b", "a && b"],
            &["return x", "returnx"],
            &["1 .. 2", "1 . . 2"],
        ];
        for texts in different {
            for (at, one) in texts.iter().enumerate() {
                texts[..at].iter().for_each(|other| assert_ne!(fingerprint(one), fingerprint(other), "{one} {other}"));
            }
        }
        for unfinished in ["\"", "\"\\", "r#\"", "'\\", "/*", "//", "'", "r", "é"] {
            assert_ne!(fingerprint(unfinished), fingerprint(""), "{unfinished}");
        }
    }

    #[test]
    fn fingerprint_of_code_that_is_laid_out_anew_is_the_same() {
        let one = r#"{let x=f("a b",' ');if x<-1&&y{return x..z}g(&mut x,*y)?.await}"#;
        let other = r#"{
            let x = f( "a b", ' ' );
            if x < -1 && y {
                return x .. z
            }
            g(&mut x, * y)?
                .await
        }"#;
        // What is glued to another sign counts as one token.
        assert_eq!(fingerprint(&one.replace("<-", "< -")), fingerprint(other));
    }

    mod before {
        crate::memoized! {
            pub(super) static NAME: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> { Ok(format!("Mr  {at}")) }
        }
    }
    mod after {
        crate::memoized! {
            pub(super) static NAME: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> { Ok(format!("Mr {at}")) }
        }
    }
    mod laid_out {
        crate::memoized! {
            pub(super) static NAME: async fn(_txn: Txn, at: u32) -> Result<String, TxnError> {
                Ok( format!( "Mr {at}" ) )
            }
        }
    }

    #[test]
    fn versions_of_a_function_that_differ_in_white_space_of_a_literal_share_no_results() {
        assert_ne!(before::NAME.fingerprint, after::NAME.fingerprint);
        assert_eq!(after::NAME.fingerprint, laid_out::NAME.fingerprint);
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

    #[test]
    fn call_that_was_not_registered_is_left_alone_for_longer_and_longer() {
        let (memos, call, now) = (Memos::default(), ObjectKey::new(0, "\u{1}f"), Instant::now());
        assert!(memos.reserve_proposal(&call, now));
        memos.proposed(&call, now, 1023, false);
        assert!(!memos.reserve_proposal(&call, now + PAUSES.0 / 2));
        assert!(memos.reserve_proposal(&call, now + PAUSES.0));
        memos.proposed(&call, now + PAUSES.0, 1023, false);
        assert!(!memos.reserve_proposal(&call, now + PAUSES.0 * 2));
        assert!(memos.reserve_proposal(&call, now + PAUSES.0 * 3));
        memos.proposed(&call, now, 0, true);
        assert!(memos.reserve_proposal(&call, now));
    }
}
