//! The layering: which crate may depend on which, which module of `core` may use which, and that files stay readable.
//! ARCHITECTURE.md draws the same map. What is checked of the pages for people is in [`crate::pages`].

use std::fs;
use std::path::Path;

use crate::files::files;
use crate::pages::pages;
use crate::{cargo, root};

/// Each crate with those of our own that it may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("slackline-core", &[]),
    ("slackline-storage", &["slackline-core"]),
    ("slackline-session", &["slackline-core"]),
    ("slackline-sim", &["slackline-core", "slackline-session"]),
    ("slackline-model", &["slackline-core"]),
    ("slackline-wire", &["slackline-core"]),
    ("slackline-server", &["slackline-core", "slackline-storage", "slackline-wire"]),
    ("slackline", &["slackline-core", "slackline-session", "slackline-wire"]),
    (
        "slackline-bench",
        &[
            "slackline-core",
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
        &["slackline-core", "slackline-sim", "slackline-wire", "slackline-server", "slackline", "slackline-bench"],
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

/// The node names each chapter in one list, and nowhere else: what it does with one it does with all.
fn chapters(findings: &mut Vec<String>) {
    let source = root().join("crates/core/src");
    let text_of = |file: &Path| fs::read_to_string(file).unwrap_or_default();
    let mut chapters: Vec<String> = Vec::new();
    for file in files(&source, &|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let text = text_of(&file);
        let named = text.lines().filter_map(|line| line.strip_prefix("impl Chapter for "));
        chapters.extend(named.map(|rest| rest.trim_end_matches(" {").to_owned()));
    }
    if chapters.is_empty() {
        findings.push(
            "crates/core/src: nothing implements Chapter; what finds chapters (xtask/src/tidy.rs) is out of date"
                .into(),
        );
    }

    let list = text_of(&source.join("node").join(LIST));
    for chapter in &chapters {
        let fields = list.matches(&format!(": {chapter},")).count();
        if fields != 1 {
            findings.push(format!("crates/core/src/node/{LIST}: {chapter} is {fields} times in the list of chapters"));
        }
    }
    for file in files(&source.join("node"), &|path| path.file_name().is_some_and(|name| name != LIST)) {
        let shown = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        for (number, line) in text_of(&file).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let mut words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            if let Some(chapter) = words.find(|word| chapters.iter().any(|chapter| chapter == word)) {
                findings.push(format!("{shown}:{}: {chapter} is named outside of {LIST}", number + 1));
            }
        }
    }
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
    fn the_workspace_is_in_order() {
        assert_eq!(super::tidy(), Vec::<String>::new());
    }
}
