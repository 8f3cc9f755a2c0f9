//! `cxlraid journal`: what the journal holds, its replay, and the operator's decision to give it up (thesis section 4.14).
//!
//! `show` reads files only, as `status` does. Everything else attaches, which replays nothing by itself: a record waits until its file is opened for writing, and `replay` opens
//! every one that waits.

use crate::{
    failure::{Exit, Failure, without_numbers},
    files::ArrayFiles,
    inspect, runtime,
    spec::Source,
    view::{JournalSummary, shown},
};
use array::{Array, AttachError, Config, JournalPlace, SaidBy};
use file::Files;
use format::{JOURNAL_RECORD_BYTES, JournalEntry, JournalHeader, JournalRecord, Superblock};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
    path::{Path, PathBuf},
};
use units::Shown;

/// What `show` prints; its keys only ever grow within a version.
#[derive(Serialize, Debug)]
struct JournalView {
    version: u32,
    array: String,
    /// `internal`, a path, or null for an array without a journal.
    place: Option<String>,
    uuid: Option<String>,
    state: State,
    /// What is wrong, if it is lost.
    problem: Option<String>,
    lanes: usize,
    lane_bytes: usize,
    /// What a store to it needs to survive power loss.
    persistence: Option<String>,
    waiting: Vec<WaitingView>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The array has no journal.
    None,
    /// Nothing waits.
    Clean,
    /// Writes that a crash cut short wait to be replayed, or are under way at this moment.
    Waiting,
    /// It is not there, or not this array's.
    Lost,
}

#[derive(Serialize, Debug)]
struct WaitingView {
    inode: u64,
    generation: u64,
    offset: u64,
    bytes: u64,
}

/// Prints what the journal is and holds.
pub(crate) fn show(source: &Source, thing: &str, as_json: bool) -> Result<(String, Exit), Failure> {
    let superblock = inspect::newest(source, thing)?;
    let view = view(&inspect::config(source)?, &superblock, thing);
    let exit = match view.state {
        State::None | State::Clean => Exit::Fine,
        State::Waiting => Exit::Degraded,
        State::Lost => Exit::Error,
    };
    let text = if as_json { serde_json::to_string_pretty(&view).unwrap_or_default() + "\n" } else { view.text() };
    Ok((text, exit))
}

/// Where an array's journal is, and in which state; None without one.
pub(crate) fn summary(config: &Config, superblock: &Superblock) -> Option<JournalSummary> {
    let entry = superblock.journal.as_ref()?;
    summed(view_of(superblock, "", &paths(config, superblock, entry)))
}

/// The same as one member shows it: by its own copy, if the journal is on the members.
pub(crate) fn summary_of_member(member: &Path, superblock: &Superblock) -> Option<JournalSummary> {
    let path = |entry: &JournalEntry| match &entry.path {
        Some(path) => PathBuf::from(OsStr::from_bytes(path.as_bytes())),
        None => member.join(".cxlraid/journal"),
    };
    let is_holder = |entry: &JournalEntry| {
        let holders = superblock.geometry().map(|geometry| array::journal::holders(&geometry));
        entry.path.is_some() || holders.is_ok_and(|holders| holders.contains(superblock.slot))
    };
    let entry = superblock.journal.as_ref()?;
    if is_holder(entry) {
        return summed(view_of(superblock, "", &[path(entry)]));
    }
    Some(JournalSummary { place: "internal".to_owned(), state: "on other members".to_owned(), lanes: 0, lanes_waiting: 0 })
}

fn summed(view: JournalView) -> Option<JournalSummary> {
    let (lanes, lanes_waiting) = (view.lanes, view.waiting.len());
    let state = match (view.state, &view.problem) {
        (State::None, _) => return None,
        (State::Clean, _) => "clean".to_owned(),
        (State::Waiting, _) => format!("{lanes_waiting} writes wait to be replayed"),
        (State::Lost, problem) => format!("lost: {}", problem.as_deref().unwrap_or("no copy is there")),
    };
    Some(JournalSummary { place: view.place?, state, lanes, lanes_waiting })
}

fn view(config: &Config, superblock: &Superblock, thing: &str) -> JournalView {
    let paths = superblock.journal.as_ref().map(|entry| paths(config, superblock, entry));
    view_of(superblock, thing, &paths.unwrap_or_default())
}

/// What the journal's files at `paths` show.
fn view_of(superblock: &Superblock, thing: &str, paths: &[PathBuf]) -> JournalView {
    let mut view = JournalView {
        version: 1,
        array: thing.to_owned(),
        place: None,
        uuid: None,
        state: State::None,
        problem: None,
        lanes: 0,
        lane_bytes: 0,
        persistence: None,
        waiting: Vec::new(),
    };
    let Some(entry) = &superblock.journal else { return view };
    view.place =
        Some(entry.path.map_or_else(|| "internal".to_owned(), |path| String::from_utf8_lossy(path.as_bytes()).into_owned()));
    view.uuid = Some(entry.uuid.to_string());
    view.persistence = paths.first().and_then(|path| runtime::persistence(path.parent()?));
    let opened: Vec<_> = paths.iter().map(|path| (path, open(path, superblock, entry))).collect();
    let copies: Vec<_> = opened.iter().filter_map(|(_, opened)| opened.as_ref().ok()).collect();
    view.problem = opened.iter().find_map(|(path, opened)| Some(format!("{}: {}", path.display(), opened.as_ref().err()?)));
    let Some((_, header)) = copies.first() else {
        view.state = State::Lost;
        return view;
    };
    (view.lanes, view.lane_bytes) = (header.lane_count, header.lane_bytes);
    view.waiting = (0..header.lane_count).filter_map(|lane| waiting(&copies, lane)).collect();
    view.state = match (&view.problem, view.waiting.is_empty()) {
        (Some(_), _) => State::Lost,
        (None, true) => State::Clean,
        (None, false) => State::Waiting,
    };
    view
}

/// The files of the journal that are to be there.
fn paths(config: &Config, superblock: &Superblock, entry: &JournalEntry) -> Vec<PathBuf> {
    if let Some(path) = &entry.path {
        return vec![PathBuf::from(OsStr::from_bytes(path.as_bytes()))];
    }
    let Ok(geometry) = superblock.geometry() else { return Vec::new() };
    // Members are given in any order; a superblock says which one it is.
    let members = config.mounts.iter().map(|mount| Path::new(OsStr::from_bytes(mount)));
    let slots: BTreeMap<usize, &Path> = members
        .filter_map(|member| match inspect::look(member) {
            inspect::Found::Member(found) => Some((found.slot, member)),
            _ => None,
        })
        .collect();
    let in_sync = |slot: &usize| superblock.members[*slot].state == format::MemberState::InSync;
    let held = array::journal::holders(&geometry);
    held.iter().filter(in_sync).filter_map(|slot| Some(slots.get(&slot)?.join(".cxlraid/journal"))).collect()
}

fn open(path: &Path, superblock: &Superblock, entry: &JournalEntry) -> Result<(File, JournalHeader), String> {
    let cannot = |error: io::Error| without_numbers(format!("cannot be read: {error}"));
    let mut file = inspect::open_regular(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    (&mut file).take(format::JOURNAL_HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(cannot)?;
    let header = JournalHeader::decode(&bytes).map_err(|error| error.to_string())?;
    header.check(superblock.array_uuid, entry.uuid).map_err(|error| error.to_string())?;
    header.check_bytes(file.metadata().map_err(cannot)?.len()).map_err(|error| error.to_string())?;
    Ok((file, header))
}

/// The record of a lane that is not settled on any copy.
fn waiting(copies: &[&(File, JournalHeader)], lane: usize) -> Option<WaitingView> {
    let record = |(file, header): &&(File, JournalHeader)| {
        let mut bytes = [0; JOURNAL_RECORD_BYTES];
        file.read_exact_at(&mut bytes, header.lane_offset(lane)).ok()?;
        JournalRecord::decode(&bytes, header.seed())
    };
    let (record, settled) = copies.iter().filter_map(record).max_by_key(|(record, settled)| (record.sequence, *settled))?;
    let JournalRecord { inode, generation, offset, length, .. } = record;
    (!settled).then_some(WaitingView { inode, generation, offset, bytes: length as u64 })
}

impl JournalView {
    fn text(&self) -> String {
        let Some(place) = &self.place else { return format!("{}: no journal\n", self.array) };
        let state = match self.state {
            State::None | State::Clean => "clean",
            State::Waiting => "writes wait to be replayed",
            State::Lost => "lost",
        };
        let mut text = format!("{}: journal {}, {state}\n", self.array, shown(place));
        text += &format!("  UUID:        {}\n", self.uuid.as_deref().unwrap_or_default());
        if let Some(problem) = &self.problem {
            text += &format!("  problem:     {}\n", shown(problem));
        }
        if self.lanes > 0 {
            text += &format!("  lanes:       {} of {} bytes\n", self.lanes, self.lane_bytes);
        }
        if let Some(persistence) = &self.persistence {
            let note = match persistence.as_str() {
                "volatile" => ": for deaths of processes only, a crash of the machine takes it",
                "page cache" => ": for deaths of processes only, it is not believed after a crash of the machine",
                _ => "",
            };
            text += &format!("  persistence: {persistence}{note}\n");
        }
        for WaitingView { inode, generation, offset, bytes } in &self.waiting {
            text += &format!("  waiting:     {bytes} bytes at {offset} of inode {inode}, generation {generation}\n");
        }
        text
    }
}

/// Opens every file that something waits for, which replays it. Returns how many records that were.
pub(crate) fn replay(array: Array, thing: &str) -> Result<usize, Failure> {
    if array.journal().is_none() {
        return Err(Failure::new(thing, "has no journal", "make one with 'cxlraid journal add'"));
    }
    let files = ArrayFiles::open(array)?;
    files.core().forget_gone_records().map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))?;
    let before = files.core().waiting_records().len();
    // What cannot be opened keeps waiting, and is counted below.
    files.open_each_to_write(|_| !files.core().waiting_records().is_empty());
    let left = files.core().waiting_records().len();
    if left == 0 {
        return Ok(before);
    }
    let what = format!("{left} of {before} writes still wait: their files cannot be opened for writing");
    Err(Failure::new(thing, what, "run it as a user who may write to every file"))
}

/// A configuration with a journal at a place that was typed. What the core says of it names the variable that programs have for it, which nobody set here.
pub(crate) fn with_place(config: &Config, place: &JournalPlace) -> Result<Config, Failure> {
    config.clone().with_journal(place).map_err(|error| {
        inspect::refused("journal", &error.to_string().replacen("CXLRAID_JOURNAL: ", "", 1)).with_exit(Exit::Usage)
    })
}

fn alone(array: &Array, thing: &str) -> Result<(), Failure> {
    let processes = runtime::attached(array.uuid()).len();
    if array.was_alone() && processes == 0 {
        return Ok(());
    }
    Err(Failure::new(thing, format!("is in use by {processes} processes"), "stop them first"))
}

/// Nobody else comes in until this process ends or the journal is set: who did would go on with the old one.
fn hold(config: &Config, thing: &str) -> Result<Array, Failure> {
    Array::attach_holding(config).map_err(|error| inspect::refused(thing, &error.to_string()))
}

fn take(array: Array, thing: &str) -> Result<&'static Files, Failure> {
    let cannot = |error: sys::OsError| inspect::refused(thing, &io::Error::from(error).to_string());
    persist::fault::install_handlers().map_err(cannot)?;
    // Also what a thread was in the middle of whose process ended in order is found to wait.
    array.runtime().note_deaths();
    Files::new(array).map_err(cannot)
}

fn set(files: &Files, place: Option<(&JournalPlace, SaidBy)>, thing: &str) -> Result<(), Failure> {
    let done = files.array().set_journal(place).map_err(|error| inspect::refused(thing, &error.to_string()));
    files.detach();
    files.array().let_in();
    done
}

/// Empties the journal: what waits in it is given up, and redundancy follows the data as that is. A lost or foreign journal is replaced by a new one, at a
/// path only if `to` names it or the array's journal is there.
pub(crate) fn clear(config: &Config, to: Option<&JournalPlace>, thing: &str) -> Result<String, Failure> {
    let cannot = |error: sys::OsError| inspect::refused(thing, &io::Error::from(error).to_string());
    if let Some(to) = to {
        with_place(&Config { journal: None, ..config.clone() }, to)?;
    }
    let (array, lost) = match Array::attach_holding(config) {
        Ok(array) => (array, None),
        Err(error @ (AttachError::JournalLost { .. } | AttachError::JournalForeign { .. })) => {
            let array = Array::attach_holding_without_journal(config);
            let array = array.map_err(|error| inspect::refused(thing, &error.to_string()))?;
            (array, Some(error))
        }
        Err(error) => return Err(inspect::refused(thing, &error.to_string())),
    };
    alone(&array, thing)?;
    let place = array.journal_place().map_err(cannot)?;
    let place = place.ok_or_else(|| Failure::new(thing, "has no journal", "make one with 'cxlraid journal add'"))?;
    // What superblocks say is not enough to make a file somewhere, or to give one away.
    let (to, said_by) = to.map_or((&place, SaidBy::Superblocks), |to| (to, SaidBy::Operator));
    array.check_journal_place(to, said_by).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let files = take(array, thing)?;
    let given_up = files.give_up_journal(lost.is_some()).map_err(cannot)?;
    set(files, Some((to, said_by)), thing)?;
    let what = match lost {
        None => format!("{given_up} writes given up"),
        Some(_) => "the lost one is given up; every file is compared when it is next opened".to_owned(),
    };
    Ok(format!("{thing}: journal {} is new and empty; {what}\n", Shown(to.shown())))
}

/// Gives an array that has none a journal.
pub(crate) fn add(config: &Config, place: &JournalPlace, thing: &str) -> Result<String, Failure> {
    let config = Config { journal: None, ..config.clone() };
    let checked = with_place(&config, place)?;
    let array = hold(&config, thing)?;
    alone(&array, thing)?;
    if array.journal().is_some() {
        return Err(Failure::new(thing, "has a journal", "'cxlraid journal show' says where; remove it first"));
    }
    let files = take(array, thing)?;
    set(files, checked.journal.as_ref().map(|place| (place, SaidBy::Operator)), thing)?;
    Ok(format!("{thing}: journal {}\n", Shown(place.shown())))
}

/// Takes an array's journal away, once nothing waits in it.
pub(crate) fn remove(config: &Config, thing: &str) -> Result<String, Failure> {
    let array = hold(config, thing)?;
    alone(&array, thing)?;
    if array.journal().is_none() {
        return Err(Failure::new(thing, "has no journal", ""));
    }
    let files = take(array, thing)?;
    let waiting = files.waiting_records().len();
    if waiting > 0 {
        files.detach();
        let what = format!("{waiting} writes wait in the journal");
        return Err(Failure::new(thing, what, "'cxlraid journal replay' first, or 'cxlraid journal clear --force'"));
    }
    set(files, None, thing)?;
    Ok(format!("{thing}: has no journal any more\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_directs_no_terminal() {
        let view = JournalView {
            version: 1,
            array: "db".to_owned(),
            place: Some("/j\u{1b}]0;x\u{7}\n\u{202e}".to_owned()),
            uuid: None,
            state: State::Lost,
            problem: Some("/j\n: gone".to_owned()),
            lanes: 0,
            lane_bytes: 0,
            persistence: None,
            waiting: Vec::new(),
        };
        let expected = "db: journal /j\\x1b]0;x\\x07\\n\\u{202e}, lost\n  UUID:        \n  problem:     /j\\n: gone\n";
        assert_eq!(view.text(), expected);
    }
}
