//! The pages for people: the map of the code names functions that exist, the book's pages are listed and what they include is
//! there, and every block of Rust is compiled or compared by some test.

use std::fs;
use std::path::Path;

use crate::files::files;
use crate::root;

/// The page that maps the code.
const MAP: &str = "ARCHITECTURE.md";
/// Where a path of the map may begin, below the root of the workspace.
const BEGINNINGS: &[&str] = &["", "crates", "crates/core/src"];

/// What is not in order with the pages, a sentence each.
pub(crate) fn pages(findings: &mut Vec<String>) {
    let root = root();
    let map = fs::read_to_string(root.join(MAP)).unwrap_or_default();
    check_map(&map, &|path| text_of(&root, path), findings);

    let book = root.join("docs/src");
    let listed = fs::read_to_string(book.join("SUMMARY.md")).unwrap_or_default();
    let mut pages = files(&book, &|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.retain(|page| !page.ends_with("SUMMARY.md"));
    for page in &pages {
        let shown = shown(&root, page);
        let below = page.strip_prefix(&book).unwrap_or(page).display().to_string();
        if !listed.contains(&format!("({below})")) {
            findings.push(format!("{shown}: not in docs/src/SUMMARY.md"));
        }

        let text = fs::read_to_string(page).unwrap_or_default();
        for include in between(&text, "{{#include ", "}}") {
            let included = page.parent().unwrap_or(&book).join(include.split(':').next().unwrap_or(include).trim());
            if !included.is_file() {
                findings.push(format!("{shown}: includes {include}, which does not exist"));
            }
        }
    }

    pages.push(root.join("README.md"));
    let sources = files(&root.join("crates"), &|path| path.extension().is_some_and(|extension| extension == "rs"));
    let sources: Vec<String> = sources.iter().filter_map(|source| fs::read_to_string(source).ok()).collect();
    for page in &pages {
        let shown = shown(&root, page);
        let has_rust = fs::read_to_string(page).unwrap_or_default().contains("```rust");
        let is_tested = |source: &String| between(source, "include_str!(\"", "\")").any(|path| path.ends_with(&shown));
        if has_rust && !sources.iter().any(is_tested) {
            findings.push(format!("{shown}: its Rust is in no test; see the end of crates/client/src/lib.rs"));
        }
    }
}

/// Checks that the map names files that exist, and functions and types that stand in the file named with them: written as
/// `` `Type::function` (`path.rs`) ``.
fn check_map(map: &str, read: &dyn Fn(&str) -> Option<String>, findings: &mut Vec<String>) {
    let words = map.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut named = 0;
    // Quoted pieces are at odd places, the prose between them at even ones.
    let pieces: Vec<&str> = words.split('`').collect();
    for (at, path) in pieces.iter().enumerate().skip(1).step_by(2).filter(|(_, piece)| is_source(piece)) {
        let Some(source) = read(path) else {
            findings.push(format!("{MAP}: there is no file {path}"));
            continue;
        };
        if at < 3 || pieces[at - 1] != " (" || !is_name(pieces[at - 2]) {
            continue;
        }
        named += 1;
        if !stands_in(pieces[at - 2], &source) {
            findings.push(format!("{MAP}: {} does not stand in {path}", pieces[at - 2]));
        }
    }
    if named == 0 {
        findings.push(format!(
            "{MAP}: names no function with its file; what finds them (xtask/src/pages.rs) is out of date"
        ));
    }
}

/// True for the path of a source file.
fn is_source(text: &str) -> bool {
    text.ends_with(".rs") && !text.contains([' ', '*'])
}

/// True for the name of a function or a type, with its type before it or not.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | ':'))
}

/// True if a source defines this: a function, of the type before it if there is one; or a type.
fn stands_in(name: &str, source: &str) -> bool {
    let (of, name) = name.rsplit_once("::").map_or((None, name), |(of, name)| (Some(of), name));
    let defines = |word: &str, name: &str| {
        source.match_indices(&format!("{word} {name}")).any(|(at, found)| {
            let after = source[at + found.len()..].chars().next();
            !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
        })
    };
    let is_there = ["fn", "struct", "enum", "trait"].iter().any(|word| defines(word, name));
    let is_of = |of: &str| {
        source.lines().any(|line| {
            line.starts_with("impl") && line.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == of)
        })
    };
    is_there && of.is_none_or(is_of)
}

/// The text of a file that the map names.
fn text_of(root: &Path, path: &str) -> Option<String> {
    BEGINNINGS.iter().find_map(|beginning| fs::read_to_string(root.join(beginning).join(path)).ok())
}

/// The texts between two marks.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
}

fn shown(root: &Path, page: &Path) -> String {
    page.strip_prefix(root).unwrap_or(page).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_that_has_moved_is_named() {
        let source = "impl<M: Machine> Gate<M> {\n    pub fn admit(&mut self) {}\n}\nfn decide<T>() {}\n";
        let found = |map: &str| {
            let mut findings = Vec::new();
            check_map(map, &|path| (path == "a.rs").then(|| source.to_owned()), &mut findings);
            findings
        };
        assert_eq!(found("`Gate::admit` (`a.rs`) and `decide`\n(`a.rs`)"), Vec::<String>::new());
        for (map, says) in [
            ("`Gate::admits` (`a.rs`)", "Gate::admits does not stand in a.rs"),
            ("`Port::admit` (`a.rs`)", "Port::admit does not stand in a.rs"),
            ("`admi` (`a.rs`)", "admi does not stand in a.rs"),
            ("`admit` (`b.rs`); `admit` (`a.rs`)", "there is no file b.rs"),
            ("`a.rs` alone", "names no function"),
        ] {
            let findings = found(map);
            assert!(findings.len() == 1 && findings[0].contains(says), "{map}: {findings:?}");
        }
    }
}
