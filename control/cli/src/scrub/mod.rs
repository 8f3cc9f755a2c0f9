//! `scrub`: everything that members hold is read and compared, while programs work.
//!
//! First what lies under `.cxlraid` is read as files (`tables`); then the array is attached as by
//! any program, and of each directory the names (`namespace::scrub_directory`), of each file copies
//! and parity are compared (`file::Inode::scrub`).
//!
//! A check changes nothing but what every program that opens a file changes: what a dead process
//! left is made good, a damaged inode record is made anew from another member's, and a member that
//! lacks a file, or has it shorter than its size asks for, gets its bytes from the others; the
//! report tells both that it lacked them and that it got them. A file that waits to be rebuilt is
//! opened for reading only, so that a check does not rebuild; and so is one of which bytes wait for
//! resync, which would make parity from whatever the data are by now: the lanes name what was
//! written last also after an orderly end.

mod report;
mod tables;

use crate::{
    args::Scrub,
    commands::absolute,
    compute::{Progress, step_back},
    events,
    failure::{Exit, Failure},
    files::ArrayFiles,
    inspect, job,
    repairing::{self, Repairing},
    spec::Source,
    view::{ArrayView, MemberState, MemberView},
};
use array::{Array, events::EventKind, runtime::JobKind};
use file::{FileRef, ScrubMode, Watch};
use format::Attribute;
use namespace::{Difference, FileType, NameMismatch, Scanned};
use report::{DataView, NameView, Report, TableView, unread};
use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    thread,
    time::Instant,
};
use sys::OsError;
use tables::{Fault, Place};
use units::{MemberSet, Slot};

/// Signals that end a scrub: it tells what it has found so far.
const ENDING: [i32; 2] = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];

/// How often the tables are looked at again at most since members come and go.
const LOOK_COUNT: u32 = 5;

/// Compares what is asked for. Returns what is to be printed, and the exit status.
pub(crate) fn scrub(source: &Source, thing: &str, arguments: &Scrub) -> Result<(String, Exit), Failure> {
    let begun = Instant::now();
    step_back();
    let is_ended = ending(thing)?;
    job::end_with(&is_ended);
    let config = inspect::config(source)?;
    let view = inspect::view(source)?;
    let superblock = inspect::newest(source, thing)?;
    let paths = arguments.paths().map(absolute).collect::<Result<Vec<_>, _>>()?;
    let members: Vec<String> = view.members.iter().map(|member| member.path.clone()).collect();
    let look = |used: &[Used]| {
        let places: Vec<Place> = used.iter().map(|member| Place::new(member.slot, Path::new(&member.path))).collect();
        let journal = superblock.journal.and_then(|journal| journal.path);
        let journal = journal.as_ref().map(|path| Path::new(OsStr::from_bytes(path.as_bytes())));
        if paths.is_empty() { tables::look(&places, superblock.array_uuid, journal) } else { Vec::new() }
    };
    let mut used = used_in(&view);
    let faults = faults_of_used(&mut used, look, || Ok(used_in(&inspect::view(source)?)))?;
    let tell_faults = |failure: Failure| {
        // What the tables show may be why.
        faults.iter().for_each(|fault| say!("{}", TableView::new(fault.clone(), false).line()));
        failure
    };
    let (kind, pace) = (if arguments.repair { JobKind::Repair } else { JobKind::Check }, arguments.pace.pace());
    let begun_job = Repairing::begin(source, thing, kind, MemberSet::EMPTY, pace).map_err(tell_faults)?;
    let repairing = begun_job.map_err(|holder| repairing::refused(thing, &holder, ""))?;
    let array = Array::attach(&config).map_err(|error| tell_faults(inspect::refused(thing, &error.to_string())))?;
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
        core.clear_sums();
    }
    let roots = if paths.is_empty() { files.prefixes() } else { paths.clone() };
    let (count, bytes) =
        roots.iter().map(|root| estimate_below(&files, root)).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    job::set_totals(count, bytes);
    repairing.works();
    let progress = Progress::begin();
    let walk = Walk {
        files: &files,
        repair: arguments.repair,
        waiting,
        resync,
        report: Mutex::new(Report::new(thing, superblock.array_uuid.to_string(), arguments.repair)),
        lacking: Mutex::default(),
        queue: Mutex::new(Queue::default()),
        more: Condvar::new(),
    };
    let walked = thread::scope(|scope| {
        let make = |_| thread::Builder::new().spawn_scoped(scope, || walk.work()).ok();
        // Where no thread can be made this one does all.
        let others: Vec<_> = (1..pace.workers).map_while(make).collect();
        let walked = walk.roots(&roots, !paths.is_empty(), 4 * (others.len() + 1));
        walk.work();
        walked
    });
    walked?;
    let mut report = walk.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.sort();
    drop(progress);
    let mended = if arguments.repair && !faults.is_empty() { Some(mend_tables(&files, || look(&used))) } else { None };
    report.tables = tables_of(faults, mended.as_deref());
    let out = core.array().members().iter().map(|member| member.slot).filter(|&slot| !core.array().in_use().contains(slot));
    report.out = out.collect();
    report.interrupted = job::is_ended();
    report.seconds = begun.elapsed().as_secs_f64();
    crate::runtime::unless_lost(Ok(()))?;
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

/// A member in use, of which the tables are read.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Used {
    slot: Slot,
    path: String,
    event_count: Option<u64>,
}

fn used_in(view: &ArrayView) -> Vec<Used> {
    let is_used = |member: &&MemberView| matches!(member.state, MemberState::InSync | MemberState::Rebuilding);
    let used = |member: &MemberView| Used { slot: member.slot, path: member.path.clone(), event_count: member.event_count };
    view.members.iter().filter(is_used).map(used).collect()
}

/// What is wrong with the tables of the members in use, as `look` finds it. A member that goes out
/// meanwhile falls behind the others, which is no fault of its tables: if members came, went or
/// changed their superblocks, they are looked at again, and what is said of one that is out by then
/// is dropped. Afterwards `used` has the members that were looked at last.
fn faults_of_used(
    used: &mut Vec<Used>,
    mut look: impl FnMut(&[Used]) -> Vec<Fault>,
    mut now: impl FnMut() -> Result<Vec<Used>, Failure>,
) -> Result<Vec<Fault>, Failure> {
    for _ in 0..LOOK_COUNT {
        let faults = look(used);
        if faults.is_empty() {
            return Ok(faults);
        }
        let after = now()?;
        if after == *used {
            return Ok(faults);
        }
        *used = after;
    }
    let mut faults = look(used);
    let after = now()?;
    faults.retain(|fault| fault.slot.is_none_or(|slot| after.iter().any(|member| member.slot == slot)));
    Ok(faults)
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
    let _ = core.array().mend_headers();
    let _ = core.mend_records();
    core.mend_backings();
    let _ = files.names().equalise_log();
    let _ = core.array().renew_superblocks();
    let _ = core.array().mend_changed();
    look()
}

/// What is told of faults: which of them are gone by now. Without a second look none is said to be.
fn tables_of(faults: Vec<Fault>, after: Option<&[Fault]>) -> Vec<TableView> {
    let is_same = |fault: &Fault, other: &Fault| fault.file == other.file && fault.offset == other.offset;
    let is_gone = |fault: &Fault| after.is_some_and(|after| !after.iter().any(|other| is_same(fault, other)));
    faults.into_iter().map(|fault| (is_gone(&fault), fault)).map(|(is_gone, fault)| TableView::new(fault, is_gone)).collect()
}

/// A walk over the array's files. One thread compares names and puts files into the queue, out of
/// which all take them.
struct Walk<'a> {
    files: &'a ArrayFiles,
    repair: bool,
    /// The inodes that wait to be rebuilt.
    waiting: BTreeSet<u64>,
    /// The inodes of files of which bytes wait for resync.
    resync: BTreeSet<u64>,
    report: Mutex<Report>,
    /// The paths of files that a member lacks, or has too short.
    lacking: Mutex<BTreeSet<Vec<u8>>>,
    queue: Mutex<Queue>,
    /// The queue has got a file, or gets no more.
    more: Condvar,
}

/// Files that are to be compared.
#[derive(Default)]
struct Queue {
    files: VecDeque<(Vec<u8>, Attribute)>,
    /// No file comes any more.
    is_complete: bool,
}

impl Walk<'_> {
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the files of the queue until no more come.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if let Some((path, attribute)) = queue.files.pop_front() {
                drop(queue);
                if !job::is_ended() {
                    self.file(&path, attribute);
                }
                queue = self.queue();
            } else if queue.is_complete {
                return;
            } else {
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Compares the names below these paths, and has the files compared. What somebody has asked
    /// for must be there.
    fn roots(&self, roots: &[PathBuf], must_exist: bool, ahead: usize) -> Result<(), Failure> {
        // The inodes, with their generations, that were met: a file may have several names.
        let mut seen = BTreeSet::new();
        let walked = roots.iter().try_for_each(|root| {
            let path = root.as_os_str().as_bytes();
            let scanned = self.files.names().scrub_name(path, self.repair, &mut |found| self.add_name(&found));
            match scanned {
                Ok(Some(scanned)) => self.below(scanned, &mut seen, ahead),
                Ok(None) if must_exist => {
                    return Err(Failure::new(root.display(), "no such file or directory", "name a path on the array"));
                }
                Ok(None) => {}
                Err(error) => self.report().unread.push(unread(root, &error.into())),
            }
            Ok(())
        });
        self.queue().is_complete = true;
        self.more.notify_all();
        walked
    }

    fn below(&self, first: Scanned, seen: &mut BTreeSet<(u64, u64)>, ahead: usize) {
        let mut pending = vec![first];
        while let Some(Scanned { path, kind, attribute }) = pending.pop().filter(|_| !job::is_ended()) {
            match (kind, attribute) {
                (FileType::RegularFile, Some(attribute)) if seen.insert((attribute.inode, attribute.generation)) => {
                    self.add(path, attribute, ahead);
                }
                (FileType::Directory, _) => {
                    let mut found = |found| self.add_name(&found);
                    let scanned =
                        self.files.names().scrub_directory(&path, self.repair, &mut found, &mut |scanned| pending.push(scanned));
                    if let Err(error) = scanned {
                        self.report().unread.push(unread(Path::new(OsStr::from_bytes(&path)), &error.into()));
                    }
                }
                _ => {}
            }
        }
    }

    /// Notes a name that members have differently.
    fn add_name(&self, found: &NameMismatch) {
        if matches!(found.difference, Difference::Missing | Difference::Short) {
            self.lacking.lock().unwrap_or_else(PoisonError::into_inner).insert(found.path.clone());
        }
        self.report().names.push(NameView::new(found));
    }

    /// Looks again at a file that a member lacked, or had too short, and that has been opened: that
    /// gives the member the bytes.
    fn look_again(&self, path: &[u8]) {
        if !self.lacking.lock().unwrap_or_else(PoisonError::into_inner).remove(path) {
            return;
        }
        let mut left = Vec::new();
        let looked = self.files.names().scrub_name(path, false, &mut |found| left.push(NameView::new(&found)));
        if looked.is_ok_and(|there| there.is_some()) {
            self.report().note_given_back(path, &left);
        }
    }

    /// Puts a file into the queue. If that holds so many that names are known far ahead of the
    /// files that are compared, this thread compares one.
    fn add(&self, path: Vec<u8>, attribute: Attribute, ahead: usize) {
        let mut queue = self.queue();
        queue.files.push_back((path, attribute));
        let first = if queue.files.len() >= ahead { queue.files.pop_front() } else { None };
        drop(queue);
        match first {
            Some((path, attribute)) => self.file(&path, attribute),
            None => self.more.notify_one(),
        }
    }

    fn file(&self, path: &[u8], attribute: Attribute) {
        // Before the file is open: it may be long until the job goes on that is paused.
        if job::step(0).is_err() {
            return;
        }
        let waits = self.waiting.contains(&attribute.inode);
        let waits_for_resync = self.resync.contains(&attribute.inode);
        let path = Path::new(OsStr::from_bytes(path));
        let (_, bytes) = estimate(self.files, path);
        let is_compared = self.compare_file(path, attribute, waits, waits_for_resync);
        job::end_file(bytes, is_compared);
        if is_compared {
            let mut report = self.report();
            report.files += 1;
            report.waiting_files += u64::from(waits);
        }
    }

    /// Returns false if the file could not be opened.
    fn compare_file(&self, path: &Path, attribute: Attribute, waits: bool, waits_for_resync: bool) -> bool {
        if waits_for_resync {
            let names = self.files.names();
            let as_it_is = |for_writing| names.open_as_it_is(path.as_os_str().as_bytes(), attribute, for_writing);
            match self.repair.then(|| as_it_is(true)) {
                Some(Ok(file)) => self.compare(path, &file, ScrubMode::RepairWaiting),
                _ => {
                    let Some(file) = self.told(path, as_it_is(false).map(Some).map_err(io::Error::from)) else { return false };
                    self.compare(path, &file, ScrubMode::CheckWaiting);
                }
            }
        }
        if !waits_for_resync || self.repair && !job::is_ended() {
            let opened = if waits {
                let opened = self.files.names().open_as_it_is(path.as_os_str().as_bytes(), attribute, false);
                opened.map(Some).map_err(io::Error::from)
            } else {
                self.files.open_to_scrub(path)
            };
            let Some(file) = self.told(path, opened) else { return false };
            self.look_again(path.as_os_str().as_bytes());
            self.compare(path, &file, if self.repair { ScrubMode::Repair } else { ScrubMode::Check });
        }
        true
    }

    /// None, and it is told, if a file could not be opened; None, too, if it went, or another file
    /// took its place, since its name was compared.
    fn told(&self, path: &Path, opened: io::Result<Option<FileRef>>) -> Option<FileRef> {
        match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.report().unread.push(unread(path, &error));
                None
            }
        }
    }

    fn compare(&self, path: &Path, file: &FileRef, mode: ScrubMode) {
        let mut ranges = Vec::new();
        let mut found = |mismatch: &array::Mismatch, mended| {
            report::add(&mut ranges, DataView::new(path.as_os_str().as_bytes(), mismatch, mended, mode));
        };
        let mut goes_on = |bytes, _hole| {
            job::count_bytes(bytes);
            job::step(bytes).is_ok()
        };
        let scrubbed = file.scrub(mode, &mut Watch { found: &mut found, goes_on: &mut goes_on });
        let mut report = self.report();
        report.mismatches.append(&mut ranges);
        match scrubbed {
            Ok(scrubbed) => {
                report.bytes += scrubbed.bytes;
                report.unsettled_bytes += scrubbed.unsettled_bytes;
            }
            Err(error) => report.unread.push(unread(path, &error.into())),
        }
    }
}

/// How many files, and about how many bytes of data in them, are at a path and below it.
fn estimate_below(files: &ArrayFiles, path: &Path) -> (u64, u64) {
    let mut pending = vec![path.to_owned()];
    let (mut count, mut bytes) = (0, 0u64);
    let Some(member) = lowest(files) else { return (0, 0) };
    while let Some(path) = pending.pop() {
        let on_member = member.join(path.strip_prefix("/").unwrap_or(&path));
        match fs::symlink_metadata(&on_member) {
            Ok(metadata) if metadata.is_dir() => {
                let entries = fs::read_dir(&on_member).into_iter().flatten().flatten();
                pending.extend(entries.map(|entry| path.join(entry.file_name())));
            }
            _ => {
                let (is_file, own) = estimate(files, &path);
                count += u64::from(is_file);
                bytes = bytes.saturating_add(own);
            }
        }
    }
    (count, bytes)
}

/// Whether a path leads to a file, and about how many bytes of data it has, by its backing file on
/// one member: holes are none of them.
fn estimate(files: &ArrayFiles, path: &Path) -> (bool, u64) {
    let geometry = files.core().array().default_geometry();
    let on_member = |member: PathBuf| member.join(path.strip_prefix("/").unwrap_or(path));
    match lowest(files).map(on_member).and_then(|path| fs::symlink_metadata(path).ok()) {
        // A file that does not fill its first chunk is as long as its backing files.
        Some(metadata) if metadata.is_file() && metadata.size() < geometry.chunk().bytes() => (true, metadata.size()),
        Some(metadata) if metadata.is_file() => {
            let bytes = metadata.size().min(metadata.blocks() * 512);
            (true, bytes.saturating_mul(geometry.data_columns() as u64))
        }
        _ => (false, 0),
    }
}

/// The directory of the lowest member in use.
fn lowest(files: &ArrayFiles) -> Option<PathBuf> {
    let array = files.core().array();
    let slot = array.first_in_use().ok()?;
    Some(Path::new(OsStr::from_bytes(&array.members()[slot].path)).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(slot: Slot, event_count: u64) -> Used {
        Used { slot, path: format!("/m{slot}"), event_count: Some(event_count) }
    }

    fn fault(slot: Slot) -> Fault {
        Fault { slot: Some(slot), file: format!("/m{slot}"), offset: 0, bytes: 64, what: "is behind".to_owned() }
    }

    /// Says of each member that is behind the first that something is wrong with it.
    fn behind(used: &[Used], newest: u64) -> Vec<Fault> {
        used.iter().filter(|member| member.event_count != Some(newest)).map(|member| fault(member.slot)).collect()
    }

    #[test]
    fn a_member_that_goes_out_while_it_is_looked_at_is_not_accused() {
        let mut members = vec![used(0, 7), used(1, 7), used(2, 7)];
        let (mut looks, mut views) = (0, 0);
        let look = |used: &[Used]| {
            looks += 1;
            behind(used, 8)
        };
        let now = || {
            views += 1;
            Ok(vec![used(0, 8), used(2, 8)])
        };
        assert_eq!(faults_of_used(&mut members, look, now).unwrap(), []);
        assert_eq!((looks, views, members), (2, 1, vec![used(0, 8), used(2, 8)]));
    }

    #[test]
    fn what_is_wrong_with_a_member_in_use_is_told() {
        let mut members = vec![used(0, 7), used(1, 6)];
        let same = || Ok(vec![used(0, 7), used(1, 6)]);
        assert_eq!(faults_of_used(&mut members, |used| behind(used, 7), same).unwrap(), [fault(1)]);
        // Where members go on changing the looks end, and only those in use are accused.
        let mut members = vec![used(0, 1), used(1, 1), used(2, 0)];
        let mut count = 1;
        let changing = || {
            count += 1;
            Ok(vec![used(0, count), used(2, 0)])
        };
        let looked = |_: &[Used]| vec![fault(1), fault(2)];
        assert_eq!(faults_of_used(&mut members, looked, changing).unwrap(), [fault(2)]);
    }
}
