//! What a script can see of how the code reads, for each crate and for `core` in parts. Tests are left out.
//!
//! | figure | how it is counted |
//! | --- | --- |
//! | lines | of files below `src`, without items under `#[cfg(test)]` |
//! | functions | from the signature to the closing brace; median, 90 % and longest. Lines of a function inside another count for both |
//! | comments, blank | the share of lines between a function's braces that hold only a comment, or nothing |
//! | assertions | `assert…!` and `debug_assert…!`, for 1,000 lines |
//! | fields | of the largest structs |
//! | parameters | functions with more than [`MOST_PARAMETERS`], `self` included |
//! | circles | sets of files that name each other's items (by `use`, or by a path in the code), directly or through others (strongly connected components) |

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::files::files;
use crate::root;

/// A function with more parameters than this is listed.
const MOST_PARAMETERS: usize = 7;
/// A struct with more fields than this is listed.
const MOST_FIELDS: usize = 12;
/// A function with more lines than this is listed.
const MOST_LINES: usize = 90;

/// What is found in a set of files.
#[derive(Default)]
struct Figures {
    lines: usize,
    functions: Vec<Function>,
    assertions: usize,
    structs: Vec<(usize, String)>,
    circles: Vec<Vec<String>>,
}

struct Function {
    name: String,
    lines: usize,
    parameters: usize,
    body_lines: usize,
    comment_lines: usize,
    blank_lines: usize,
}

/// The crates, with the folders of their sources.
fn crates() -> Result<Vec<(String, PathBuf)>, String> {
    let mut parts: Vec<(String, PathBuf)> = Vec::new();
    let crates = fs::read_dir(root().join("crates")).map_err(|error| format!("crates: {error}"))?;
    for folder in crates.flatten().map(|entry| entry.path()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        parts.push((name, folder.join("src")));
    }
    parts.push(("xtask".into(), root().join("xtask/src")));
    Ok(parts)
}

/// Files of a crate that import from each other, a sentence for each circle: what two files need of each other is a third, below both.
pub(crate) fn import_circles() -> Vec<String> {
    let circles = || -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for (name, folder) in crates()? {
            let circles = figures(&folder)?.circles;
            found.extend(
                circles.iter().map(|files| format!("{name}: these import from each other: {}", files.join(", "))),
            );
        }
        Ok(found)
    };
    circles().unwrap_or_else(|error| vec![error])
}

/// Prints the figures of each crate, and of each module of `core` that is a folder.
///
/// # Errors
///
/// A sentence, where a file cannot be read or is not Rust.
pub(crate) fn measure() -> Result<(), String> {
    let mut parts = crates()?;
    for module in fs::read_dir(root().join("crates/core/src")).into_iter().flatten().flatten() {
        if module.path().is_dir() {
            parts.push((format!("core/{}", module.file_name().to_string_lossy()), module.path()));
        }
    }
    parts.sort();

    let measured: Vec<(String, Figures)> =
        parts.into_iter().map(|(name, folder)| Ok((name, figures(&folder)?))).collect::<Result<_, String>>()?;
    print_table(&measured);
    print_lists(&measured);
    Ok(())
}

fn print_table(measured: &[(String, Figures)]) {
    println!("              lines  functions  median  90 %  longest  comments  blank  assertions");
    println!("                                                       in bodies       per 1,000");
    for (name, figures) in measured {
        let mut lines: Vec<usize> = figures.functions.iter().map(|function| function.lines).collect();
        lines.sort_unstable();
        let at = |percent: usize| lines.get((lines.len() * percent / 100).min(lines.len().saturating_sub(1)));
        let of_bodies = |count: fn(&Function) -> usize| {
            let bodies: usize = figures.functions.iter().map(|function| function.body_lines).sum();
            100.0 * figures.functions.iter().map(count).sum::<usize>() as f64 / bodies.max(1) as f64
        };
        println!(
            "{name:<13} {:>5} {:>10} {:>7} {:>5} {:>8} {:>7.1} % {:>4.1} % {:>11.1}",
            figures.lines,
            lines.len(),
            at(50).copied().unwrap_or(0),
            at(90).copied().unwrap_or(0),
            lines.last().copied().unwrap_or(0),
            of_bodies(|function| function.comment_lines),
            of_bodies(|function| function.blank_lines),
            1000.0 * figures.assertions as f64 / figures.lines.max(1) as f64,
        );
    }
}

/// What is above a bound. A module's figures are among its crate's, so only crates are listed.
fn print_lists(measured: &[(String, Figures)]) {
    for (name, figures) in measured.iter().filter(|(name, _)| !name.contains('/')) {
        for function in figures.functions.iter().filter(|function| function.lines > MOST_LINES) {
            println!("{name}: {} has {} lines", function.name, function.lines);
        }
        for function in figures.functions.iter().filter(|function| function.parameters > MOST_PARAMETERS) {
            println!("{name}: {} has {} parameters", function.name, function.parameters);
        }
        for (fields, of) in figures.structs.iter().filter(|(fields, _)| *fields > MOST_FIELDS) {
            println!("{name}: {of} has {fields} fields");
        }
        for circle in &figures.circles {
            println!("{name}: {} files import from each other: {}", circle.len(), circle.join(", "));
        }
    }
}

/// Measures all files below a folder.
fn figures(folder: &Path) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut modules: BTreeMap<Vec<String>, (String, BTreeSet<Vec<String>>)> = BTreeMap::new();
    for path in files(folder, &|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let within = path.strip_prefix(folder).unwrap_or(&path).to_path_buf();
        let shown = within.display().to_string();
        if shown.split('/').any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("{shown}: {error}"))?;
        let file = syn::parse_file(&text).map_err(|error| format!("{shown}: {error}"))?;
        let module = module_of(&within);
        let mut reader =
            Reader { text: text.lines().collect(), file: &shown, module: &module, ..Reader::new(&mut figures) };
        reader.visit_file(&file);
        let (tests, imports) = (reader.test_lines, reader.imports);
        figures.lines += text.lines().count() - tests;
        modules.insert(module, (shown, imports));
    }
    figures.structs.sort_by(|one, other| other.cmp(one));
    figures.circles = circles(&modules);
    Ok(figures)
}

/// The path of the module that a file is, within its crate (or the folder that is measured).
fn module_of(within: &Path) -> Vec<String> {
    let mut module: Vec<String> = within.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// Reads one file.
struct Reader<'a> {
    text: Vec<&'a str>,
    file: &'a str,
    module: &'a [String],
    /// Paths of what is imported, from the crate's root.
    imports: BTreeSet<Vec<String>>,
    test_lines: usize,
    figures: &'a mut Figures,
}

impl<'a> Reader<'a> {
    fn new(figures: &'a mut Figures) -> Self {
        Self { text: Vec::new(), file: "", module: &[], imports: BTreeSet::new(), test_lines: 0, figures }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.span().start().line, block.span().end().line);
        let opened = block.span().start().line;
        // Lines are counted from 1; the body is what stands between those with the braces.
        let body = self.text.get(opened..last.saturating_sub(1)).unwrap_or_default();
        self.figures.functions.push(Function {
            name: format!("{} ({})", signature.ident, self.file),
            lines: last + 1 - first,
            parameters: signature.inputs.len(),
            body_lines: body.len(),
            comment_lines: body.iter().filter(|line| line.trim_start().starts_with("//")).count(),
            blank_lines: body.iter().filter(|line| line.trim().is_empty()).count(),
        });
    }

    /// Notes what a `use` names.
    fn import(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.import(&step.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path)),
            syn::UseTree::Name(name) => self.note_import(path, Some(name.ident.to_string())),
            syn::UseTree::Rename(rename) => self.note_import(path, Some(rename.ident.to_string())),
            _ => self.note_import(path, None),
        }
    }

    fn note_import(&mut self, path: &[String], name: Option<String>) {
        let mut steps = path.iter().cloned().chain(name).peekable();
        let mut from = match steps.peek().map(String::as_str) {
            Some("crate") => {
                steps.next();
                Vec::new()
            }
            _ => self.module.to_vec(),
        };
        for step in steps {
            match step.as_str() {
                "self" => {}
                "super" => drop(from.pop()),
                _ => from.push(step),
            }
        }
        self.imports.insert(from);
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    let is_cfg_test = |attribute: &syn::Attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    };
    attributes.iter().any(is_cfg_test)
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            let span = item.span();
            self.test_lines += span.end().line + 1 - span.start().line;
            return;
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&item.tree, &mut Vec::new());
        }
    }

    /// A path within the crate that no `use` has named is an import, too.
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let steps: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if steps.len() > 1 && matches!(steps[0].as_str(), "crate" | "super" | "self") {
            self.note_import(&steps, None);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.figures.structs.push((item.fields.len(), format!("{} ({})", item.ident, self.file)));
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let name = call.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
        self.figures.assertions += usize::from(name.starts_with("assert") || name.starts_with("debug_assert"));
    }
}

/// The sets of files that can be reached from each other along their imports.
fn circles(modules: &BTreeMap<Vec<String>, (String, BTreeSet<Vec<String>>)>) -> Vec<Vec<String>> {
    // An import names an item, or a module: the file is that of the longest path that is a module.
    let file_of = |path: &Vec<String>| {
        let lengths = (0..=path.len()).rev();
        lengths.map(|length| path[..length].to_vec()).find(|module| modules.contains_key(module))
    };
    let mut reached: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = modules
        .iter()
        .map(|(module, (_, imports))| {
            let mut direct: BTreeSet<Vec<String>> = imports.iter().filter_map(file_of).collect();
            direct.remove(module);
            (module, direct)
        })
        .collect();
    // What is reached over each file in turn (Warshall's transitive closure).
    for via in modules.keys() {
        let beyond = reached[via].clone();
        for reached in reached.values_mut().filter(|reached| reached.contains(via)) {
            reached.extend(beyond.iter().cloned());
        }
    }
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, theirs) in reached.iter().filter(|(module, theirs)| theirs.contains(**module)) {
        let together = theirs.iter().filter(|other| *other == *module || reached[*other].contains(*module));
        found.insert(together.map(|other| modules[other].0.clone()).collect());
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_import_from_each_other_are_a_circle() {
        let module = |name: &str| vec![name.to_owned()];
        let imports = |names: &[&[&str]]| -> BTreeSet<Vec<String>> {
            names.iter().map(|path| path.iter().map(|step| (*step).to_owned()).collect()).collect()
        };
        let modules = BTreeMap::from([
            (module("a"), ("a.rs".to_owned(), imports(&[&["b", "Item"]]))),
            (module("b"), ("b.rs".to_owned(), imports(&[&["c"]]))),
            (module("c"), ("c.rs".to_owned(), imports(&[&["a", "Other"], &["std", "fmt"]]))),
            (module("d"), ("d.rs".to_owned(), imports(&[&["a", "Item"]]))),
        ]);
        assert_eq!(circles(&modules), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn bodies_are_counted_without_their_braces_and_tests_not_at_all() {
        let text = "fn one(a: u8) -> u8 {\n    // Why.\n    assert!(a > 0);\n\n    a\n}\n\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\n";
        let mut figures = Figures::default();
        let mut reader = Reader { text: text.lines().collect(), ..Reader::new(&mut figures) };
        reader.visit_file(&syn::parse_file(text).expect("it is Rust"));
        assert_eq!(reader.test_lines, 4);
        let [function] = &figures.functions[..] else { panic!("one function is no test") };
        let counted = (function.lines, function.body_lines, function.comment_lines, function.blank_lines);
        assert_eq!((counted, figures.assertions), ((6, 4, 1, 1), 1));
    }
}
