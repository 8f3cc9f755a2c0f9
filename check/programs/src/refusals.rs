//! Bad input.
use crate::{options::Options, place::Ground, report::Report};
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    [].into_iter()
}
pub(crate) fn run(_ground: &Ground, _options: &Options, _report: &Report) {}
