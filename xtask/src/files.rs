//! Files of the checkout.

use std::fs;
use std::path::{Path, PathBuf};

/// The files below `folder` that `wanted` wants, in order; what is built is passed over.
pub(crate) fn files(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            found.extend(files(&path, wanted));
        } else if path.is_file() && wanted(&path) {
            found.push(path);
        }
    }
    found.sort();
    found
}
