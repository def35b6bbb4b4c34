//! What names the code of a memoized function: a hash of its tokens.

/// A fingerprint of code, for [`Memo::new`](super::Memo::new) (FNV-1a).
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
pub(super) fn spread(name: &str) -> u64 {
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
        // A quote ends it only with as many `#` behind it as there were before the first.
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
    // Comments may stand within comments; the outermost ends it.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
