//! `cargo x tidy`: the rules of ARCHITECTURE.md and CONTRIBUTING.md that a program can check.
//!
//! Each rule gives complaints of the form `file: what is wrong`; none of them changes anything.

mod arrows;
mod modules;
mod sources;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Everything wrong with the tree at `root`; `files` are relative to it, `metadata` is cargo's.
pub(crate) fn check(root: &Path, metadata: &[u8], files: &[PathBuf]) -> Result<Vec<String>, String> {
    let crates = arrows::crates(metadata)?;
    let mut complaints = arrows::check(&crates);
    let mut modules = modules::Arrows::default();
    for file in files {
        // Deleted and not yet committed, or not text: nothing to read.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        complaints.extend(sources::check(file, &text));
        modules.add(file, &text);
    }
    complaints.extend(modules.check());
    complaints.sort();
    Ok(complaints)
}
