//! The host's side: from packages to machines, and the scenes that are played on them.

mod cut;
mod kernel;
mod machine;
mod packages;
mod root;
mod scenes;
mod tool;

use crate::{Outcome, options::Options};

/// Everything asked for. Whether all of it passed.
pub(crate) fn run(options: &Options) -> Outcome<bool> {
    scenes::run(options)
}
