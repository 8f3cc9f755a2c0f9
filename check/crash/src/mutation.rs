//! Proof that the checker sees what it is there for: every flush and fence of the source is taken
//! out in turn, and some crash state must then come back wrong.
//!
//! The list comes from the source itself, so that none is forgotten: every line of the engine that
//! calls `fence`, `write_back` or `settle`; and every line that stores, whose stores are moved
//! behind the next fence. A line is taken out of a recorded run by leaving out the instructions
//! that were executed below it; the engine does not look at whether a flush has happened, so it
//! would have gone on the same.

use crate::case::Case;
use crate::explore::{Extent, Outcome, explore};
use crate::log::{Event, Log, Place};
use crate::record::stacks::repository;
use crate::states::Focus;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;

/// Directories of the engine.
const ENGINE: [&str; 3] = ["base", "media", "core"];
/// Calls that flush or fence, as they stand in the source.
const CALLS: [&str; 3] = ["fence()", "write_back(", "settle("];

/// Stores that may come after the fence that follows them, by file and function, and why.
pub(crate) const EXPLAINED: [(&str, &str, &str); 2] = [
    (
        "core/file/src/pieces.rs",
        "for_each_piece",
        "what the program itself stores through a mapping: its call returns before the fence of the one that follows it",
    ),
    (
        "core/file/src/table.rs",
        "store_new",
        "the next fence is not the one that counts: nothing refers to the record before has_name, which writes the line back",
    ),
];

/// A line of the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) text: String,
    /// The function it stands in.
    pub(crate) function: String,
}

/// Every line of the engine that flushes or fences.
pub(crate) fn sites() -> Result<Vec<Site>, String> {
    let mut sites = BTreeSet::new();
    let root = repository();
    let mut pending: Vec<_> = ENGINE.iter().map(|top| Path::new(&root).join(top)).collect();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if !matches!(entry.file_name().to_str(), Some("tests" | "examples" | "target")) {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && path.file_name().is_some_and(|name| name != "tests.rs")
            {
                let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                let file = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
                sites.extend(lines(&file, &text));
            }
        }
    }
    Ok(sites.into_iter().collect())
}

fn lines(file: &str, text: &str) -> Vec<Site> {
    let before_tests = text.lines().take_while(|line| !line.contains("#[cfg(test)]"));
    let is_call = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        let declares = code.contains("fn ") || code.trim_start().starts_with("pub use") || code.trim_start().starts_with("use ");
        // Of the names log that is another thing; the others are calls of methods that hold the
        // flush and fence themselves.
        let others = ["settle(&record)", "self.write_back(", "lanes.settle(", "self.settle(lane"];
        let is_other = others.iter().any(|other| code.contains(other));
        !declares && !is_other && CALLS.iter().any(|call| code.contains(call))
    };
    (1..).zip(before_tests).filter(|(_, line)| is_call(line)).map(|(number, _)| site(file, number, text)).collect()
}

/// A line of a source file.
fn site(file: &str, line: u32, text: &str) -> Site {
    let before: Vec<&str> = text.lines().take(line as usize).collect();
    let name = |line: &&str| {
        let (_, rest) = line.split_once("fn ")?;
        Some(rest.split(['(', '<']).next()?.to_owned())
    };
    let function = before.iter().rev().find_map(name).unwrap_or_default();
    Site { file: file.to_owned(), line, text: before.last().copied().unwrap_or_default().trim().to_owned(), function }
}

/// For each stack of a log, whether it passes through a site.
fn passes(log: &Log, site: &Site) -> Vec<bool> {
    let is_site = |place: &Place| place.line == site.line && place.file == site.file;
    (0..log.stacks.len()).map(|stack| log.places(stack).iter().any(is_site)).collect()
}

/// The lines of the engine that store to members in these runs: where a kernel is called, or a word
/// is stored.
pub(crate) fn store_sites(runs: &[(Case, Log)]) -> Vec<Site> {
    let mut sites = BTreeSet::new();
    for (_, log) in runs {
        for event in &log.events {
            let Event::Store { stack, .. } = event else { continue };
            let places = log.places(*stack);
            let place = places.iter().find(|place| place.file.starts_with("core/"));
            sites.extend(place.map(|place| site(&place.file, place.line, &source(place))));
        }
    }
    sites.into_iter().collect()
}

fn source(place: &Place) -> String {
    fs::read_to_string(Path::new(&repository()).join(&place.file)).unwrap_or_default()
}

/// The run as it would have been with the stores of a site (of the stacks `below` it) after the
/// fences that follow them, and what events these are then.
fn delayed(log: &Log, below: &[bool]) -> Option<(Log, HashSet<usize>)> {
    let mut events = Vec::new();
    let mut held: Vec<Event> = Vec::new();
    let mut moved = HashSet::new();
    fn release(events: &mut Vec<Event>, held: &mut Vec<Event>, moved: &mut HashSet<usize>) {
        moved.extend(events.len()..events.len() + held.len());
        events.append(held);
    }
    let mut is_behind = false;
    for event in &log.events {
        // Fences in a row are one: each member's `persist` begins with one.
        if is_behind && !matches!(event, Event::Fence { .. }) || matches!(event, Event::End { .. }) {
            release(&mut events, &mut held, &mut moved);
        }
        is_behind = matches!(event, Event::Fence { .. });
        match event {
            Event::Store { stack, .. } | Event::Flush { stack, .. } if below[*stack] => held.push(event.clone()),
            _ => events.push(event.clone()),
        }
    }
    release(&mut events, &mut held, &mut moved);
    (!moved.is_empty()).then(|| (Log { events, ..log.clone() }, moved))
}

/// What became of a site that was taken out.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// Nothing recorded went through it.
    NotReached,
    /// A state came back wrong.
    Seen { case: String, states: usize, failure: String },
    /// Nothing came of it.
    Unseen { events: usize, states: usize },
}

impl Verdict {
    /// After more runs.
    pub(crate) fn and(self, later: Self) -> Self {
        match (self, later) {
            (Self::Unseen { events, states }, Self::Unseen { events: more, states: further }) => {
                Self::Unseen { events: events + more, states: states + further }
            }
            (before, Self::NotReached) => before,
            (_, later) => later,
        }
    }
}

/// Takes a flush or fence out of every recorded run in turn, until one fails.
pub(crate) fn without(site: &Site, runs: &[(Case, Log)], extent: &Extent, ground: &Path) -> Result<Verdict, String> {
    search(runs, |case, log| {
        let below = passes(log, site);
        let is_below = |event: &Event| match event {
            Event::Flush { stack, .. } | Event::Fence { stack, .. } => below[*stack],
            _ => false,
        };
        let count = log.events.iter().filter(|event| is_below(event)).count();
        if count == 0 {
            Ok(None)
        } else {
            explore(case, log, extent, ground, &is_below, &Focus::Overdue).map(|outcome| Some((count, outcome)))
        }
    })
}

/// Moves a site's stores behind the fence that follows them, in every recorded run in turn, until
/// one fails.
pub(crate) fn reordered(site: &Site, runs: &[(Case, Log)], extent: &Extent, ground: &Path) -> Result<Verdict, String> {
    search(runs, |case, log| {
        let Some((log, moved)) = delayed(log, &passes(log, site)) else { return Ok(None) };
        let count = moved.len();
        explore(case, &log, extent, ground, &|_| false, &Focus::Missing(moved)).map(|outcome| Some((count, outcome)))
    })
}

/// Tries runs until one fails; `attempt` gives the events concerned and what became of it, or None
/// for a run without any.
fn search(
    runs: &[(Case, Log)],
    mut attempt: impl FnMut(&Case, &Log) -> Result<Option<(usize, Outcome)>, String>,
) -> Result<Verdict, String> {
    let (mut events, mut states) = (0, 0);
    for (case, log) in runs {
        let Some((count, outcome)) = attempt(case, log)? else { continue };
        events += count;
        states += outcome.states;
        if let Some(failure) = outcome.failures.first() {
            return Ok(Verdict::Seen { case: case.to_string(), states, failure: failure.clone() });
        }
    }
    Ok(if events == 0 { Verdict::NotReached } else { Verdict::Unseen { events, states } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_and_declarations_are_not() {
        let text = "use persist::fence();\nfn settle(x) {\n    persist::fence();\n    // fence()\n    self.settle(a);\n}\n#[cfg(test)]\nfence();";
        let found: Vec<u32> = lines("x.rs", text).iter().map(|site| site.line).collect();
        assert_eq!(found, [3, 5]);
    }

    #[test]
    fn stores_are_moved_behind_all_fences_in_a_row() {
        let store = |at| Event::Store { thread: 0, object: 0, at, bytes: vec![1; 8], streamed: true, stack: 0 };
        let fence = || Event::Fence { thread: 0, stack: 1 };
        let end = Event::End { operation: 0, value: 0 };
        let later = Event::Store { thread: 0, object: 0, at: 64, bytes: vec![2; 8], streamed: true, stack: 1 };
        let events = vec![store(0), fence(), fence(), later, store(8), end];
        let log = Log { events, ..Log::default() };
        let (log, moved) = delayed(&log, &[true, false]).unwrap();
        let places: Vec<Option<u64>> =
            log.events.iter().map(|event| if let Event::Store { at, .. } = event { Some(*at) } else { None }).collect();
        assert_eq!(places, [None, None, Some(0), Some(64), Some(8), None]);
        assert_eq!(moved, HashSet::from([2, 4]));
    }

    #[test]
    fn the_engine_has_sites() {
        let sites = sites().unwrap();
        for file in ["core/intent/src/lib.rs", "core/file/src/table.rs", "base/persist/src/kernels.rs"] {
            assert!(sites.iter().any(|site| site.file == file), "{file}");
        }
    }
}
