//! The subcommands of `cxlraid journal`: they show an array's journal, replay its records, and add,
//! empty and remove it.
//!
//! [`show`], [`summary`] and [`summary_of_member`] only read files. The others work on an attached
//! array. Attaching replays nothing: a record waits until the file to which its bytes belong is
//! opened for writing. [`replay`] opens every file for which a record waits.
//!
//! In all of them `thing` is what the operator called the array, for messages.

use crate::{
    failure::{Exit, Failure, without_numbers},
    files::ArrayFiles,
    inspect, runtime,
    spec::Source,
    view::{JournalSummary, shown},
};
use array::{Array, AttachError, Config, JournalPlace, SaidBy};
use file::Files;
use format::{JOURNAL_RECORD_BYTES, JournalEntry, JournalError, JournalHeader, JournalRecord, Superblock};
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

/// What `show --json` prints. Within a version keys are added, and never removed or changed.
#[derive(Serialize, Debug)]
struct JournalView {
    version: u32,
    array: String,
    /// `internal`, a path, or null for an array without a journal.
    place: Option<String>,
    uuid: Option<String>,
    state: State,
    /// What is wrong with the first copy that cannot be used.
    problem: Option<String>,
    lanes: usize,
    lane_bytes: usize,
    /// The persistence domain of the journal's file (of its first copy): "volatile", "page cache",
    /// and so on.
    persistence: Option<String>,
    waiting: Vec<WaitingView>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The array has no journal.
    None,
    /// No record waits.
    Clean,
    /// Records wait to be replayed, because a death or a crash cut their writes short; or they
    /// belong to writes that are under way.
    Waiting,
    /// The array cannot be attached, because of its journal: no copy of it can be used, or a copy
    /// is not the journal that the array was last used with.
    Lost,
}

/// A record that waits: which bytes of which file it holds.
#[derive(Serialize, Debug)]
struct WaitingView {
    inode: u64,
    generation: u64,
    offset: u64,
    bytes: u64,
}

/// Why a copy of the journal cannot be used.
#[derive(Debug)]
struct Unusable {
    what: String,
    /// Whether the member has only lost it, and the array is attached with the other copies; else
    /// attaching is refused.
    is_lost: bool,
}

/// The text or JSON of the journal's state, and the exit code that goes with it.
pub(crate) fn show(source: &Source, thing: &str, as_json: bool) -> Result<(String, Exit), Failure> {
    let superblock = inspect::newest(source, thing)?;
    let view = view(&inspect::config(source)?, &superblock, thing);
    let exit = match view.state {
        State::Lost => Exit::Error,
        State::Waiting => Exit::Degraded,
        State::None | State::Clean if view.problem.is_some() => Exit::Degraded,
        State::None | State::Clean => Exit::Fine,
    };
    let text = if as_json { serde_json::to_string_pretty(&view).unwrap_or_default() + "\n" } else { view.text() };
    Ok((text, exit))
}

/// Where an array's journal is, and in which state; None without one.
pub(crate) fn summary(config: &Config, superblock: &Superblock) -> Option<JournalSummary> {
    let entry = superblock.journal.as_ref()?;
    let paths = paths(config, superblock, entry);
    if paths.is_empty() {
        // It is not lost: what is wrong is the members.
        return Some(unread("on members that cannot be used"));
    }
    summary_of_view(view_of(superblock, "", &paths))
}

/// Where an array's journal is, and in which state, as one member shows it: of a journal on the
/// members only this member's copy is read.
pub(crate) fn summary_of_member(member: &Path, superblock: &Superblock) -> Option<JournalSummary> {
    let path = |entry: &JournalEntry| match &entry.path {
        Some(path) => PathBuf::from(OsStr::from_bytes(path.as_bytes())),
        None => member.join(".cxlraid/journal"),
    };
    // A journal at a path can be read whatever the member.
    let is_readable = |entry: &JournalEntry| {
        let holders = superblock.geometry().map(|geometry| array::journal::holders(&geometry));
        entry.path.is_some() || holders.is_ok_and(|holders| holders.contains(superblock.slot))
    };
    let entry = superblock.journal.as_ref()?;
    if is_readable(entry) {
        return summary_of_view(view_of(superblock, "", &[path(entry)]));
    }
    Some(unread("on other members"))
}

/// Of a journal on members that are not read.
fn unread(state: &str) -> JournalSummary {
    JournalSummary { place: "internal".to_owned(), state: state.to_owned(), lanes: 0, lanes_waiting: 0 }
}

/// The lines of other commands' views for a journal; None if there is none.
fn summary_of_view(view: JournalView) -> Option<JournalSummary> {
    let (lanes, lanes_waiting) = (view.lanes, view.waiting.len());
    let with_problem = |state: String| {
        view.problem.as_ref().map_or_else(|| state.clone(), |problem| format!("{state}; a copy is lost: {problem}"))
    };
    let state = match (view.state, &view.problem) {
        (State::None, _) => return None,
        (State::Clean, _) => with_problem("clean".to_owned()),
        (State::Waiting, _) => with_problem(format!("{lanes_waiting} writes wait to be replayed")),
        (State::Lost, problem) => format!("lost: {}", problem.as_deref().unwrap_or("no copy is there")),
    };
    Some(JournalSummary { place: view.place?, state, lanes, lanes_waiting })
}

fn view(config: &Config, superblock: &Superblock, thing: &str) -> JournalView {
    let paths = superblock.journal.as_ref().map(|entry| paths(config, superblock, entry));
    view_of(superblock, thing, &paths.unwrap_or_default())
}

/// What the copies of the journal at `paths` show.
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
    let unusable: Vec<_> = opened.iter().filter_map(|(path, opened)| Some((path, opened.as_ref().err()?))).collect();
    view.problem = unusable.first().map(|(path, unusable)| format!("{}: {}", path.display(), unusable.what));
    if paths.is_empty() {
        view.problem = Some("the members that hold it cannot be used".to_owned());
    }
    let Some((_, header)) = copies.first() else {
        view.state = State::Lost;
        return view;
    };
    (view.lanes, view.lane_bytes) = (header.lane_count, header.lane_bytes);
    view.waiting = (0..header.lane_count).filter_map(|lane| waiting(&copies, lane)).collect();
    view.state = match view.waiting.is_empty() {
        _ if unusable.iter().any(|(_, unusable)| !unusable.is_lost) => State::Lost,
        true => State::Clean,
        false => State::Waiting,
    };
    view
}

/// The paths of the journal's copies: that of the superblock's entry, or one for each holder that
/// is in sync and found. A holder that is out has no copy that counts; `status` shows that it is
/// out.
fn paths(config: &Config, superblock: &Superblock, entry: &JournalEntry) -> Vec<PathBuf> {
    if let Some(path) = &entry.path {
        return vec![PathBuf::from(OsStr::from_bytes(path.as_bytes()))];
    }
    let Ok(geometry) = superblock.geometry() else { return Vec::new() };
    // The configuration lists members in any order; a member's superblock has its slot.
    let members = config.mounts.iter().map(|mount| Path::new(OsStr::from_bytes(mount)));
    let slots: BTreeMap<usize, &Path> = members
        .filter_map(|member| match inspect::look(member) {
            inspect::Found::Member(found) if found.is_current(superblock) => Some((found.slot, member)),
            _ => None,
        })
        .collect();
    let in_sync = |slot: &usize| superblock.members[*slot].state == format::MemberState::InSync;
    let held = array::journal::holders(&geometry);
    held.iter().filter(in_sync).filter_map(|slot| Some(slots.get(&slot)?.join(".cxlraid/journal"))).collect()
}

/// Opens the copy of the journal at `path`, and checks that it is whole and the journal that the
/// superblock names.
fn open(path: &Path, superblock: &Superblock, entry: &JournalEntry) -> Result<(File, JournalHeader), Unusable> {
    let cannot = |error: io::Error| Unusable {
        is_lost: error.kind() != io::ErrorKind::PermissionDenied,
        what: without_numbers(format!("cannot be read: {error}")),
    };
    let unfit = |error: JournalError| Unusable {
        is_lost: matches!(error, JournalError::NotAJournal | JournalError::BadChecksum | JournalError::Cut { .. }),
        what: error.to_string(),
    };
    let mut file = inspect::open_regular(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    (&mut file).take(format::JOURNAL_HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(cannot)?;
    let header = JournalHeader::decode(&bytes).map_err(unfit)?;
    header.check(superblock.array_uuid, entry.uuid).map_err(unfit)?;
    header.check_bytes(file.metadata().map_err(cannot)?.len()).map_err(unfit)?;
    Ok((file, header))
}

/// The newest record of lane number `lane` on all copies, if no copy has it settled. A copy of
/// which the lane cannot be read is passed over.
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
                "volatile" => ": it protects against deaths of processes only, and is lost in a crash of the machine",
                "page cache" => {
                    ": it protects against deaths of processes only, and is not believed after a crash of the machine"
                }
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

/// Opens every file for which records wait, for writing; opening replays them. Returns how many
/// records waited before.
pub(crate) fn replay(array: Array, thing: &str) -> Result<usize, Failure> {
    if array.journal().is_none() {
        return Err(Failure::new(thing, "has no journal", "make one with 'cxlraid journal add'"));
    }
    let files = ArrayFiles::open(array)?;
    // Records of files that exist no longer wait for nothing.
    files.core().forget_gone_records().map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))?;
    let before = files.core().waiting_records().len();
    // Goes on while a record waits. A file that cannot be opened keeps its records waiting; they
    // are counted below.
    files.open_each_to_write(|_| !files.core().waiting_records().is_empty());
    let left = files.core().waiting_records().len();
    if left == 0 {
        return Ok(before);
    }
    let what = format!("{left} of {before} writes still wait: their files cannot be opened for writing");
    Err(Failure::new(thing, what, "run it as a user who may write to every file"))
}

/// `config` with the journal at `place`, which the operator typed. The core's message for a bad
/// place begins with `CXLRAID_JOURNAL: `, the variable by which programs name the place; the
/// operator did not set it, so that is cut off.
pub(crate) fn with_place(config: &Config, place: &JournalPlace) -> Result<Config, Failure> {
    config.clone().with_journal(place).map_err(|error| {
        inspect::refused("journal", &error.to_string().replacen("CXLRAID_JOURNAL: ", "", 1)).with_exit(Exit::Usage)
    })
}

/// Refuses an array that other processes use.
fn check_alone(array: &Array, thing: &str) -> Result<(), Failure> {
    let processes = runtime::attached(array.uuid()).len();
    if array.was_alone() && processes == 0 {
        return Ok(());
    }
    let users = if processes == 0 { "another process".to_owned() } else { format!("{processes} processes") };
    Err(Failure::new(thing, format!("is in use by {users}"), "stop them first"))
}

/// Attaches, and keeps other processes from attaching until [`set`] lets them in or this process
/// ends: a process that attached earlier would go on with the old journal.
fn attach_holding(config: &Config, thing: &str) -> Result<Array, Failure> {
    Array::attach_holding(config).map_err(|error| inspect::refused(thing, &error.to_string()))
}

/// The files of the array, for the rest of this process' life.
fn files_of(array: Array, thing: &str) -> Result<&'static Files, Failure> {
    let cannot = |error: sys::OsError| inspect::refused(thing, &io::Error::from(error).to_string());
    persist::fault::install_handlers().map_err(cannot)?;
    // A process can end in order while one of its threads is in the middle of a write. The record
    // of such a write counts as waiting, too.
    array.runtime().note_deaths();
    Files::new(array).map_err(cannot)
}

/// Writes `place` into the superblocks as that of the journal (None: there is no journal any more).
/// Then, also if that failed, detaches and lets other processes attach.
fn set(files: &Files, place: Option<(&JournalPlace, SaidBy)>, thing: &str) -> Result<(), Failure> {
    let done = files.array().set_journal(place).map_err(|error| inspect::refused(thing, &error.to_string()));
    files.detach();
    files.array().let_in();
    done
}

/// Empties the journal, by making a new one: the records that wait are given up, and copies and
/// parity are computed anew from the data as it is now.
///
/// A journal that is lost, or in whose place there is another one, is replaced by a new one as
/// well. At a path outside the members that is done only if `to` names the path, or if a journal of
/// this array lies there.
pub(crate) fn clear(config: &Config, to: Option<&JournalPlace>, thing: &str) -> Result<String, Failure> {
    let cannot = |error: sys::OsError| inspect::refused(thing, &io::Error::from(error).to_string());
    if let Some(to) = to {
        // Refuses a bad place before anything is done.
        with_place(&Config { journal: None, ..config.clone() }, to)?;
    }
    // Not by the function `attach_holding`: which error it is decides.
    let (array, lost) = match Array::attach_holding(config) {
        Ok(array) => (array, None),
        Err(error @ (AttachError::JournalLost { .. } | AttachError::JournalForeign { .. })) => {
            let array = Array::attach_holding_without_journal(config);
            let array = array.map_err(|error| inspect::refused(thing, &error.to_string()))?;
            (array, Some(error))
        }
        Err(error) => return Err(inspect::refused(thing, &error.to_string())),
    };
    check_alone(&array, thing)?;
    let place = array.journal_place().map_err(cannot)?;
    let place = place.ok_or_else(|| Failure::new(thing, "has no journal", "make one with 'cxlraid journal add'"))?;
    // Superblocks may be forged. That they name a path is not enough to make a file there, or to
    // change the owner of one.
    let (to, said_by) = to.map_or((&place, SaidBy::Superblocks), |to| (to, SaidBy::Operator));
    array.check_journal_place(to, said_by).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let files = files_of(array, thing)?;
    let given_up = files.give_up_journal(lost.is_some()).map_err(cannot)?;
    set(files, Some((to, said_by)), thing)?;
    let what = match lost {
        None => format!("{given_up} writes given up"),
        Some(_) => "the lost one is given up; every file is compared when it is next opened".to_owned(),
    };
    Ok(format!("{thing}: journal {} is new and empty; {what}\n", Shown(to.shown())))
}

/// Adds a journal to an array without one.
pub(crate) fn add(config: &Config, place: &JournalPlace, thing: &str) -> Result<String, Failure> {
    // The array is attached as it is, without the journal that is to be made.
    let config = Config { journal: None, ..config.clone() };
    let checked = with_place(&config, place)?;
    let array = attach_holding(&config, thing)?;
    check_alone(&array, thing)?;
    if array.journal().is_some() {
        return Err(Failure::new(thing, "has a journal", "'cxlraid journal show' says where; remove it first"));
    }
    let files = files_of(array, thing)?;
    set(files, checked.journal.as_ref().map(|place| (place, SaidBy::Operator)), thing)?;
    Ok(format!("{thing}: journal {}\n", Shown(place.shown())))
}

/// Removes the journal from an array; refuses while records wait in it.
pub(crate) fn remove(config: &Config, thing: &str) -> Result<String, Failure> {
    let array = attach_holding(config, thing)?;
    check_alone(&array, thing)?;
    if array.journal().is_none() {
        return Err(Failure::new(thing, "has no journal", ""));
    }
    let files = files_of(array, thing)?;
    let waiting = files.waiting_records().len();
    if waiting > 0 {
        // Others may attach when this process has ended.
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
