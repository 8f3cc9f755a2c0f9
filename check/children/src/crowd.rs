//! The random crowd.

use crate::{ground::Ground, options::Options, report::Report};

/// One row of the table.
pub(crate) struct Crowd {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) is_default: bool,
}

pub(crate) const CROWDS: [Crowd; 0] = [];

pub(crate) fn run(_: &Ground, _: &Crowd, options: &Options, _: &Report) {
    let _ = (options.spawns, options.seed);
}
