//! The layering: which crate may depend on which, which module of `core` may use which, that no files of a crate import from each
//! other; that files stay readable; and that the patches of planted bugs fit. ARCHITECTURE.md draws the same map. What is checked of
//! the pages for people is in [`crate::pages`].

use std::fs;
use std::path::Path;

use crate::files::files;
use crate::pages::pages;
use crate::{cargo, root};

/// Each crate with those of our own that it may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("slackline-core", &[]),
    ("slackline-forecast", &[]),
    ("slackline-figure", &[]),
    ("slackline-train", &["slackline-forecast", "slackline-figure"]),
    ("slackline-storage", &["slackline-core"]),
    ("slackline-session", &["slackline-core"]),
    ("slackline-sim", &["slackline-core", "slackline-session"]),
    ("slackline-model", &["slackline-core"]),
    ("slackline-wire", &["slackline-core"]),
    ("slackline-server", &["slackline-core", "slackline-forecast", "slackline-storage", "slackline-wire"]),
    ("slackline", &["slackline-core", "slackline-session", "slackline-wire"]),
    (
        "slackline-bench",
        &[
            "slackline-core",
            "slackline-figure",
            "slackline-session",
            "slackline-storage",
            "slackline-sim",
            "slackline-wire",
            "slackline-server",
            "slackline",
        ],
    ),
    (
        "slackline-cli",
        &[
            "slackline-core",
            "slackline-forecast",
            "slackline-sim",
            "slackline-wire",
            "slackline-server",
            "slackline",
            "slackline-bench",
        ],
    ),
    ("xtask", &[]),
];

/// The modules of `core`; each may use those before it.
const MODULES: &[&str] = &[
    "bounds", "id", "codec", "clock", "machine", "rows", "right", "object", "draft", "api", "stats", "gift",
    "warranty", "avantan", "words", "peer", "session", "config", "metrics", "turn", "chapter", "txn", "quota", "node",
];

/// The only file of `node` that names the chapters.
const LIST: &str = "chapters.rs";

/// Crates that `core` must not know: it has no clock, socket, disk, thread or random source.
const FORBIDDEN_IN_CORE: &[&str] =
    &["std::time", "std::net", "std::fs", "std::thread", "tokio", "SystemTime", "Instant::now"];

/// Lines that a source file may have before it should be two.
const LINES: usize = 1200;

/// What is not in order, a sentence each.
pub(crate) fn tidy() -> Vec<String> {
    let mut findings = Vec::new();
    crates(&mut findings);
    modules(&mut findings);
    chapters(&mut findings);
    lengths(&root(), &mut findings);
    pages(&mut findings);
    findings.extend(crate::measure::import_circles());
    findings.extend(crate::mutants::stale());
    findings
}

fn crates(findings: &mut Vec<String>) {
    let output = cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output();
    let metadata = output.ok().and_then(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout).ok());
    let Some(metadata) = metadata else {
        findings.push("cargo metadata does not answer".into());
        return;
    };
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            findings.push(format!("{name}: not in the map of crates (xtask/src/tidy.rs, ARCHITECTURE.md)"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let uses = dependency["name"].as_str().unwrap_or_default();
            let ours = CRATES.iter().any(|(known, _)| *known == uses);
            // Tests may look at anything.
            if ours && dependency["kind"].is_null() && !allowed.contains(&uses) {
                findings.push(format!("{name}: must not depend on {uses}; dependencies point downwards only"));
            }
        }
    }
}

fn modules(findings: &mut Vec<String>) {
    let source = root().join("crates/core/src");
    for (order, module) in MODULES.iter().enumerate() {
        for file in
            files(&source, &|path| path == source.join(format!("{module}.rs")) || path.starts_with(source.join(module)))
        {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let shown = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                for (used, name) in MODULES.iter().enumerate() {
                    if used > order && code.contains(&format!("crate::{name}::")) {
                        findings
                            .push(format!("{shown}:{}: {module} must not use {name}, which comes later", number + 1));
                    }
                }
                for forbidden in FORBIDDEN_IN_CORE.iter().filter(|forbidden| code.contains(**forbidden)) {
                    findings.push(format!("{shown}:{}: core must not know {forbidden}", number + 1));
                }
            }
        }
    }
    // The table that readers begin with has the same modules, in the same order.
    let front = fs::read_to_string(source.join("lib.rs")).unwrap_or_default();
    let cells = front.lines().filter_map(|line| line.strip_prefix("//! | ")?.split(" | ").next());
    let told: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    if told != MODULES {
        findings.push(format!("crates/core/src/lib.rs: its table of modules must be {}", MODULES.join(", ")));
    }

    for entry in fs::read_dir(&source).into_iter().flatten().flatten() {
        let name = entry.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name != "lib" && !MODULES.contains(&name.as_str()) {
            findings.push(format!("crates/core/src/{name}: not in the list of modules (xtask/src/tidy.rs)"));
        }
    }
}

/// The node names each chapter in one list, and nowhere else: what it does with one it does with all. No chapter knows another.
fn chapters(findings: &mut Vec<String>) {
    let source = root().join("crates/core/src");
    let text_of = |file: &Path| fs::read_to_string(file).unwrap_or_default();

    // The chapters by their modules: a folder of this crate, in which a type implements the face.
    let mut chapters: Vec<(String, String)> = Vec::new();
    for file in files(&source, &|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let inner = file.strip_prefix(&source).unwrap_or(&file);
        let module = inner.iter().next().unwrap_or_default().to_string_lossy().trim_end_matches(".rs").to_owned();
        for line in text_of(&file).lines().map(code_of) {
            let Some((before, rest)) = line.split_once("Chapter for ") else { continue };
            if before.trim_start().starts_with("impl") {
                chapters.push((module.clone(), rest.trim_end_matches(" {").to_owned()));
            }
        }
    }
    if chapters.is_empty() {
        findings.push(
            "crates/core/src: nothing implements Chapter; what finds chapters (xtask/src/tidy.rs) is out of date"
                .into(),
        );
    }

    // Each is a field of the list, and stands in both of its orders.
    let list = text_of(&source.join("node").join(LIST));
    let mut fields = Vec::new();
    for (_, chapter) in &chapters {
        let named: Vec<&str> =
            list.lines().filter_map(|line| line.split_once(&format!(": {chapter},"))).map(|(name, _)| name).collect();
        let &[name] = &named[..] else {
            let times = named.len();
            findings.push(format!("crates/core/src/node/{LIST}: {chapter} is {times} times in the list of chapters"));
            continue;
        };
        let field = name.trim().trim_start_matches("pub ").to_owned();
        for order in ["[&self.", "[&mut self."] {
            let all = list.lines().find(|line| line.trim_start().starts_with(order)).unwrap_or_default();
            if !all.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == field) {
                findings.push(format!("crates/core/src/node/{LIST}: {field} is not in the order `{order}…]`"));
            }
        }
        fields.push(field);
    }

    for file in files(&source, &|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let inner = file.strip_prefix(&source).unwrap_or(&file);
        let module = inner.iter().next().unwrap_or_default().to_string_lossy().into_owned();
        let is_list = inner == Path::new("node").join(LIST);
        let is_node = module == "node" && !is_list;
        let own = chapters.iter().any(|(of, _)| *of == module);
        if !is_node && !own {
            continue;
        }

        // The node may say neither the type, nor its field, nor its module; a chapter may not say another's module.
        for (number, line) in text_of(&file).lines().map(code_of).enumerate() {
            let words: Vec<&str> = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
            let foreign = chapters.iter().zip(&fields).find(|((of, chapter), field)| {
                let module_is_named = *of != module && names_module(line, of);
                let is_named = words.contains(&chapter.as_str()) || line.contains(&format!(".{field}"));
                module_is_named || is_node && is_named
            });
            if let Some(((_, chapter), _)) = foreign {
                let shown = file.strip_prefix(root()).unwrap_or(&file).display();
                findings.push(format!("{shown}:{}: the chapter {chapter} is named outside of {LIST}", number + 1));
            }
        }
    }
}

/// The code of a line, without its comment.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// True if a line of code names a module of the crate, in a path or in a list of imports.
fn names_module(line: &str, module: &str) -> bool {
    let path = format!("crate::{module}");
    let follows = |rest: &str| !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let in_path = line.match_indices(&path).any(|(at, _)| follows(&line[at + path.len()..]));
    let in_list = line.split_once("crate::{").is_some_and(|(_, list)| {
        list.split([',', '{', '}']).any(|item| item.trim().strip_prefix(module).is_some_and(follows))
    });
    in_path || in_list
}

fn lengths(root: &Path, findings: &mut Vec<String>) {
    for file in files(root, &|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let lines = fs::read_to_string(&file).unwrap_or_default().lines().count();
        if lines > LINES {
            let shown = file.strip_prefix(root).unwrap_or(&file).display();
            findings.push(format!("{shown}: {lines} lines; two files would read better"));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn module_is_named_in_a_path_and_in_a_list_of_imports() {
        for line in ["use crate::txn::Txns;", "use crate::txn::*;", "    crate::txn", "use crate::{api, txn::Txns};"] {
            assert!(super::names_module(line, "txn"), "{line}");
        }
        for line in ["use crate::txns::X;", "use crate::{api, turn::Turn};", "use super::txn::Txns;"] {
            assert!(!super::names_module(line, "txn"), "{line}");
        }
    }

    #[test]
    fn the_workspace_is_in_order() {
        assert_eq!(super::tidy(), Vec::<String>::new());
    }
}
