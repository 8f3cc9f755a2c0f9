//! `scrub`: everything that members hold is read and compared, while programs work.
//!
//! First what lies under `.cxlraid` is read as files (`tables`); then the array is attached as by any program, and of each directory the names (`namespace::scrub_directory`), of each file copies and parity are compared (`file::Inode::scrub`).
//!
//! A check changes nothing but what every program that opens a file changes: what a dead process left is made good, and a damaged inode record is made anew from another member's. A file that waits to be rebuilt is opened for
//! reading only, so that a check does not rebuild; and so is one of which bytes wait for resync, which would make parity from whatever the data are by now: the lanes name what was written last also after an orderly end.

mod report;
mod tables;

use crate::{
    args::Scrub,
    commands::absolute,
    events,
    failure::{Exit, Failure},
    files::ArrayFiles,
    inspect,
    rebuild::step_back,
    spec::Source,
    view::MemberState,
};
use array::{Array, events::EventKind};
use file::{FileRef, ScrubMode, Watch};
use format::Attribute;
use indicatif::{ProgressBar, ProgressStyle};
use namespace::{FileType, Scanned};
use report::{DataView, NameView, Report, TableView, unread};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{self, IsTerminal as _, stderr},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use sys::OsError;
use tables::{Fault, Place};

/// Signals that end a scrub: it tells what it has found so far.
const ENDING: [i32; 2] = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];

/// Compares what is asked for. Returns what is to be printed, and the exit status.
pub(crate) fn scrub(source: &Source, thing: &str, arguments: &Scrub) -> Result<(String, Exit), Failure> {
    let begun = Instant::now();
    step_back();
    let is_ended = ending(thing)?;
    let config = inspect::config(source)?;
    let view = inspect::view(source)?;
    let superblock = inspect::newest(source, thing)?;
    let paths = arguments.paths().map(absolute).collect::<Result<Vec<_>, _>>()?;
    let members: Vec<String> = view.members.iter().map(|member| member.path.clone()).collect();
    let look = || {
        let is_read = |state| matches!(state, MemberState::InSync | MemberState::Rebuilding);
        let places: Vec<Place> = view
            .members
            .iter()
            .filter(|member| is_read(member.state))
            .map(|member| Place::new(member.slot, Path::new(&member.path)))
            .collect();
        let journal = superblock.journal.and_then(|journal| journal.path);
        let journal = journal.as_ref().map(|path| Path::new(OsStr::from_bytes(path.as_bytes())));
        if paths.is_empty() { tables::look(&places, superblock.array_uuid, journal) } else { Vec::new() }
    };
    let faults = look();
    let array = match Array::attach(&config) {
        Ok(array) => array,
        Err(error) => {
            // What the tables show may be why.
            faults.iter().for_each(|fault| eprintln!("{}", TableView::new(fault.clone(), false).line()));
            return Err(inspect::refused(thing, &error.to_string()));
        }
    };
    let files = ArrayFiles::open(array.telling(events::begin(source, thing, superblock.array_uuid)))?;
    paths.iter().try_for_each(|path| files.require_inside(path))?;
    let core = files.core();
    let cannot = |error: OsError| inspect::refused(thing, &io::Error::from(error).to_string());
    let waiting = core.unbuilt().map_err(cannot)?.iter().map(|file| file.attribute.inode).collect();
    let resync = core.waiting_for_resync().map_err(cannot)?.into_iter().collect();
    let mode = if arguments.repair { "repair" } else { "check" };
    // A scrub of some paths says nothing of the array.
    let is_whole = paths.is_empty();
    if is_whole {
        events::tell(EventKind::ScrubStarted, None, None, mode);
    }
    let mut walk = Walk {
        files: &files,
        repair: arguments.repair,
        waiting,
        resync,
        seen: BTreeSet::new(),
        report: Report::new(thing, superblock.array_uuid.to_string(), arguments.repair),
        progress: progress(&files, &paths),
        is_ended: &is_ended,
    };
    let roots = if paths.is_empty() { files.prefixes() } else { paths.clone() };
    for root in roots {
        walk.from(&root, !paths.is_empty())?;
    }
    let Walk { mut report, progress, .. } = walk;
    progress.finish_and_clear();
    let mended = if arguments.repair && !faults.is_empty() { Some(mend_tables(&files, look)) } else { None };
    report.tables = tables_of(faults, mended.as_deref());
    let out = core.array().members().iter().map(|member| member.slot).filter(|&slot| !core.array().in_use().contains(slot));
    report.out = out.collect();
    report.interrupted = is_ended.load(Ordering::Relaxed);
    report.seconds = begun.elapsed().as_secs_f64();
    report.tell(is_whole, &members);
    let exit = match (report.is_fine(), report.interrupted && report.wrong() == 0) {
        (true, _) => Exit::Fine,
        (_, true) => Exit::Error,
        _ => Exit::Degraded,
    };
    if arguments.json {
        return Ok((report.json(), exit));
    }
    let lines = report.lines(&members).into_iter().chain([report.summary()]);
    Ok((lines.map(|line| line + "\n").collect(), exit))
}

/// A flag that is set by a signal which asks the command to end. A second signal ends it at once.
pub(crate) fn ending(thing: &str) -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        let second = signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag));
        second
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| Failure::new(thing, error, ""))?;
    }
    Ok(flag)
}

/// What of the tables can be mended while programs run is mended. Returns what is wrong afterwards.
fn mend_tables(files: &ArrayFiles, look: impl FnOnce() -> Vec<Fault>) -> Vec<Fault> {
    let core = files.core();
    // What cannot be mended shows in the second look.
    let _ = core.mend_records();
    let _ = files.names().equalise_log();
    let _ = core.array().renew_superblocks();
    look()
}

/// What is told of faults: which of them are gone by now. Without a second look none is said to be.
fn tables_of(faults: Vec<Fault>, after: Option<&[Fault]>) -> Vec<TableView> {
    let is_same = |fault: &Fault, other: &Fault| fault.file == other.file && fault.offset == other.offset;
    let is_gone = |fault: &Fault| after.is_some_and(|after| !after.iter().any(|other| is_same(fault, other)));
    faults.into_iter().map(|fault| (is_gone(&fault), fault)).map(|(is_gone, fault)| TableView::new(fault, is_gone)).collect()
}

/// A walk over the array's files.
struct Walk<'a> {
    files: &'a ArrayFiles,
    repair: bool,
    /// The inodes that wait to be rebuilt.
    waiting: BTreeSet<u64>,
    /// The inodes of files of which bytes wait for resync.
    resync: BTreeSet<u64>,
    /// The inodes, with their generations, that were compared: a file may have several names.
    seen: BTreeSet<(u64, u64)>,
    report: Report,
    progress: ProgressBar,
    is_ended: &'a AtomicBool,
}

impl Walk<'_> {
    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    /// Compares a path and all below it. What somebody has asked for must be there.
    fn from(&mut self, root: &Path, must_exist: bool) -> Result<(), Failure> {
        let (names, report) = (self.files.names(), &mut self.report);
        let path = root.as_os_str().as_bytes();
        let scanned = names.scrub_name(path, self.repair, &mut |found| report.names.push(NameView::new(&found)));
        match scanned {
            Ok(Some(scanned)) => self.below(scanned),
            Ok(None) if must_exist => {
                return Err(Failure::new(root.display(), "no such file or directory", "name a path on the array"));
            }
            Ok(None) => {}
            Err(error) => self.report.unread.push(unread(root, &error.into())),
        }
        Ok(())
    }

    fn below(&mut self, first: Scanned) {
        let mut pending = vec![first];
        while let Some(Scanned { path, kind, attribute }) = pending.pop().filter(|_| !self.is_ended()) {
            match (kind, attribute) {
                (FileType::RegularFile, Some(attribute)) => self.file(&path, attribute),
                (FileType::Directory, _) => {
                    let report = &mut self.report;
                    let mut found = |found| report.names.push(NameView::new(&found));
                    let scanned =
                        self.files.names().scrub_directory(&path, self.repair, &mut found, &mut |scanned| pending.push(scanned));
                    if let Err(error) = scanned {
                        self.report.unread.push(unread(Path::new(OsStr::from_bytes(&path)), &error.into()));
                    }
                }
                _ => {}
            }
        }
    }

    fn file(&mut self, path: &[u8], attribute: Attribute) {
        if !self.seen.insert((attribute.inode, attribute.generation)) {
            return;
        }
        let waits = self.waiting.contains(&attribute.inode);
        let waits_for_resync = self.resync.contains(&attribute.inode);
        let path = Path::new(OsStr::from_bytes(path));
        if waits_for_resync {
            let names = self.files.names();
            let as_it_is = |for_writing| names.open_as_it_is(path.as_os_str().as_bytes(), attribute, for_writing);
            match self.repair.then(|| as_it_is(true)) {
                Some(Ok(file)) => self.compare(path, &file, ScrubMode::RepairWaiting),
                _ => {
                    let Some(file) = self.told(path, as_it_is(false).map(Some).map_err(io::Error::from)) else { return };
                    self.compare(path, &file, ScrubMode::CheckWaiting);
                }
            }
        }
        if !waits_for_resync || self.repair && !self.is_ended() {
            let opened = if waits {
                let opened = self.files.names().open_as_it_is(path.as_os_str().as_bytes(), attribute, false);
                opened.map(Some).map_err(io::Error::from)
            } else {
                self.files.open_to_scrub(path)
            };
            let Some(file) = self.told(path, opened) else { return };
            self.compare(path, &file, if self.repair { ScrubMode::Repair } else { ScrubMode::Check });
        }
        self.report.files += 1;
        self.report.waiting_files += u64::from(waits);
    }

    /// None, and it is told, if a file could not be opened; None, too, if it went, or another file took its place, since its name was compared.
    fn told(&mut self, path: &Path, opened: io::Result<Option<FileRef>>) -> Option<FileRef> {
        match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.report.unread.push(unread(path, &error));
                None
            }
        }
    }

    fn compare(&mut self, path: &Path, file: &FileRef, mode: ScrubMode) {
        let (report, progress, is_ended) = (&mut self.report, &self.progress, self.is_ended);
        let mut found =
            |mismatch: &array::Mismatch, mended| report.add(DataView::new(path.as_os_str().as_bytes(), mismatch, mended, mode));
        let mut goes_on = |bytes, hole| {
            progress.inc(bytes);
            progress.set_length(progress.length().unwrap_or(0).saturating_sub(hole));
            !is_ended.load(Ordering::Relaxed)
        };
        match file.scrub(mode, &mut Watch { found: &mut found, goes_on: &mut goes_on }) {
            Ok(scrubbed) => {
                self.report.bytes += scrubbed.bytes;
                self.report.unsettled_bytes += scrubbed.unsettled_bytes;
            }
            Err(error) => self.report.unread.push(unread(path, &error.into())),
        }
    }
}

/// A bar of bytes of files, on a terminal. Holes are taken off its length when they are met.
fn progress(files: &ArrayFiles, paths: &[PathBuf]) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let lowest = files.core().array().first_in_use().ok().map(|slot| files.core().array().members()[slot].path.clone());
    let bytes = match lowest {
        Some(member) if !paths.is_empty() => {
            // Each file's part of the bytes; a guess for the bar alone.
            let count = files.core().array().geometry().data_columns() as u64;
            let on_member = |path: &PathBuf| Path::new(OsStr::from_bytes(&member)).join(path.strip_prefix("/").unwrap_or(path));
            paths.iter().map(|path| bytes_below(&on_member(path)) * count).sum()
        }
        _ => files.core().bytes().unwrap_or(0),
    };
    let style =
        ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} to go");
    let bar = ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn bytes_below(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| bytes_below(&entry.path())).sum()
        }
        Ok(metadata) if metadata.is_file() => metadata.size(),
        _ => 0,
    }
}
