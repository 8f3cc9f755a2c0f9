//! What members that are made anew have lost of files is computed, by several threads and at the
//! pace that was asked for.
//!
//! The core computes a file's bytes when it opens the file for writing. This opens one file after
//! the other that waits, by the inode tables. So whatever ends the command, the tables say what is
//! left, and the next command goes on there.

use crate::{
    events,
    failure::Failure,
    files::ArrayFiles,
    inspect,
    job::{self, Cancelled},
    rebuild::Begin,
    repairing::Repairing,
    spec::Source,
    view::bytes_text,
};
use array::{Array, events::EventKind, runtime::JobKind};
use file::{Files, Unbuilt};
use format::Attribute;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    io::{self, IsTerminal as _, stderr},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use sys::{OsError, rustix::fs::lgetxattr};
use units::{MemberSet, Shown, Slot};

/// A scrub and a computation of lost bytes add this to their nice value (nice(2)). Where such a
/// process and a program of the usual priority want one processor, the process gets a tenth of it.
const NICE: i32 = 10;
/// How long a command that waits for files to be closed sleeps before it looks again.
const PERIOD: Duration = Duration::from_millis(200);
/// So often it is tried at least to open the files that wait, which programs may rename meanwhile.
const TRY_COUNT: u32 = 5;

/// Lets programs have the processors first. The priority is higher than that of an idle process:
/// the bytes of a file are computed under the file's locks, and a program that waits for such a
/// lock must not wait until a processor is idle.
pub(crate) fn step_back() {
    // Where that is refused, the work is done all the same.
    let _ = sys::rustix::process::nice(NICE);
}

/// A file that waits.
struct Waiting {
    path: PathBuf,
    /// Whose it is, if that could be told.
    attribute: Option<Attribute>,
    /// The bytes of its data: holes are none.
    bytes: u64,
}

/// Has the bytes of all files that wait computed, and says in the superblocks that the members are
/// in sync. Files that were open when a member joined are waited for.
pub(crate) fn compute(
    source: &Source,
    thing: &str,
    kind: JobKind,
    begin: &Begin,
    repairing: &Repairing,
) -> Result<String, Failure> {
    step_back();
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let cannot = |error: OsError| inspect::refused(thing, &std::io::Error::from(error).to_string());
    let rebuilding: MemberSet = array.members().iter().filter(|member| member.is_rebuilding).map(|member| member.slot).collect();
    let tell = array::Tell { computing: job::computing, ..events::begin(source, thing, array.uuid()) };
    let files = ArrayFiles::open(array.telling(tell))?;
    let core = files.core();
    let waits =
        |files: Vec<Unbuilt>| -> BTreeMap<u64, u64> { files.iter().map(|file| (file.attribute.inode, file.bytes)).collect() };
    let mut left = waits(core.unbuilt().map_err(cannot)?);
    let (count, bytes, begun) = (left.len(), left.values().sum::<u64>(), Instant::now());
    repairing.works();
    let progress = Progress::begin();
    let tell_of = |kind, count: usize, what: &str| {
        for slot in rebuilding.iter() {
            events::tell(kind, Some(&core.array().members()[slot].path), Some(count as u64), what);
        }
    };
    let waits_for_what = match kind {
        JobKind::ReAdd(None) => "files changed while the member was away, and wait to be computed",
        _ => "files wait to be computed",
    };
    tell_of(EventKind::RebuildStarted, count, waits_for_what);
    let cancelled = |left: usize| {
        let what = format!("the {} was cancelled; {left} of {count} files still wait to be computed", noun(kind));
        Failure::new(thing, what, "'cxlraid rebuild' goes on")
    };
    let mut misses = 0;
    let mut failed = None;
    let left = loop {
        let ended = each_waiting(&files, rebuilding, &left, begin.pace.workers, &mut failed);
        let unbuilt: Vec<Unbuilt> =
            core.unbuilt().map_err(cannot)?.into_iter().filter(|file| !core.is_about_to_go(file.attribute)).collect();
        if ended.is_err() && !unbuilt.is_empty() {
            return Err(cancelled(unbuilt.len()));
        }
        // The last process that closes such a file leaves it to whoever opens it next.
        let are_open = unbuilt.iter().all(|file| core.goes_without(file.attribute));
        misses = if are_open { 0 } else { misses + 1 };
        if unbuilt.is_empty() || misses == TRY_COUNT || are_open && begin.is_over() {
            break unbuilt;
        }
        if misses == 1 {
            // A crash may have left records of files without a name, which nobody can open.
            let _ = files.names().match_records();
        }
        left = waits(unbuilt);
        job::set_done(count.saturating_sub(left.len()) as u64, bytes.saturating_sub(left.values().sum()));
        thread::sleep(PERIOD);
        files.names().forget_dead();
    };
    drop(progress);
    if !left.is_empty() && left.iter().all(|file| core.goes_without(file.attribute)) {
        let what =
            format!("{} of {count} files are open since before the member came into use, and go on without it", left.len());
        let todo = "give the command again when their programs have closed them; --wait SECONDS waits for that";
        return Err(Failure::new(thing, what, todo));
    }
    if !left.is_empty() {
        return Err(unfinished(thing, core, rebuilding, &left, count, failed));
    }
    crate::runtime::unless_lost(Ok(()))?;
    core.array().end_rebuild(rebuilding).map_err(cannot)?;
    // A computation without a member ends that file's note of lost bytes, so a member that went out
    // meanwhile has nothing left that waits.
    let members = core.array().members();
    if let Some(slot) = rebuilding.minus(core.array().in_use()).lowest() {
        let todo = "'cxlraid events' tells why; see to it that its device works, and try again";
        return Err(Failure::new(members[slot].shown(), "went out of use while it was rebuilt", todo));
    }
    tell_of(EventKind::RebuildFinished, count, "the member is in sync");
    let seconds = begun.elapsed().as_secs_f64();
    let names: Vec<String> = rebuilding.iter().map(|slot| Shown(&members[slot].path).to_string()).collect();
    // Of a file without a name nobody can compute anything while its programs have it open.
    let nameless = core.unbuilt().map_err(cannot)?.iter().filter(|file| core.goes_without(file.attribute)).count();
    let without = if nameless == 0 { String::new() } else { beside_nameless(nameless) };
    Ok(format!(
        "{thing}: {} in sync; {count} files, {} computed in {seconds:.1} s{without}\n",
        names.join(", "),
        bytes_text(bytes)
    ))
}

/// Returns what is said of files without a name that the member has nothing of, although it is in sync.
fn beside_nameless(count: usize) -> String {
    let [files, are, they, them] = if count == 1 {
        ["file without a name that a program has", "is", "it", "it"]
    } else {
        ["files without names that programs have", "are", "they", "them"]
    };
    format!(
        "; {count} {files} open since before {are} not on it: should another member go out before the program closes {them}, \
         {they} may be lost"
    )
}

/// Says why files are left that still wait: `failed` is one of them, and what happened to it.
fn unfinished(
    thing: &str,
    core: &Files,
    rebuilding: MemberSet,
    left: &[Unbuilt],
    count: usize,
    failed: Option<(PathBuf, io::Error)>,
) -> Failure {
    let bytes = bytes_text(left.iter().map(|file| file.bytes).sum());
    let what = format!("{} of {count} files still wait to be rebuilt ({bytes})", left.len());
    let array = core.array();
    let columns = array.default_geometry().data_columns() as u64;
    let needed: u64 = left.iter().map(|file| file.bytes.div_ceil(columns)).sum();
    let free = |slot: Slot| {
        let directory = Path::new(OsStr::from_bytes(&array.members()[slot].path));
        crate::runtime::capacity(directory).map_or(u64::MAX, |(_, free)| free)
    };
    let emptiest = |slots: MemberSet| slots.iter().map(|slot| (free(slot), slot)).min();
    // Those that are made anew get bytes; of another one holes are filled that are read.
    let too_full = emptiest(rebuilding).filter(|&(free, _)| free < needed);
    // A file is opened also if a member has no room for what it has lost, and goes on without it.
    let kind = match &failed {
        Some((_, error)) => error.kind(),
        None if too_full.is_some() => io::ErrorKind::StorageFull,
        None => {
            return Failure::new(thing, what, "run it as a user who may write to every file, with all other members in use");
        }
    };
    if let Some((path, error)) = failed.filter(|_| !matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
        let todo = match kind {
            io::ErrorKind::PermissionDenied => "run it as a user who may write to every file",
            _ => "see to it that all other members are in use and work, and give the command again",
        };
        let path = Shown(path.as_os_str().as_bytes()).to_string();
        return Failure::new(thing, format!("{what}, since {path} cannot be opened: {error}"), todo);
    }
    let full = too_full.or_else(|| emptiest(array.in_use()));
    let todo = "make room there, and 'cxlraid rebuild' goes on; or 'cxlraid fail' it, and 'cxlraid replace' it by a larger one";
    match full {
        Some((_, slot)) if kind == io::ErrorKind::QuotaExceeded => {
            Failure::new(array.members()[slot].shown(), format!("its disk quota is exceeded: {what}"), todo)
        }
        Some((free, slot)) if free < needed => {
            let lack = bytes_text(needed - free);
            Failure::new(array.members()[slot].shown(), format!("is full: {what}, for which it lacks about {lack}"), todo)
        }
        Some((_, slot)) => Failure::new(array.members()[slot].shown(), format!("is full: {what}"), todo),
        None => Failure::new(thing, format!("a member is full: {what}"), "make room on it, and 'cxlraid rebuild' goes on"),
    }
}

/// What the job is called in messages.
pub(crate) const fn noun(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Rebuild => "rebuild",
        JobKind::Replace => "replacement",
        JobKind::Check | JobKind::Repair => "scrub",
        JobKind::ReAdd(_) => "re-add",
    }
}

/// Opens each file whose inode is among those in `left`, and so has its bytes computed. Fails if
/// the job is to end. `failed` is the first file of which that could not be done, and why.
fn each_waiting(
    files: &ArrayFiles,
    rebuilding: MemberSet,
    left: &BTreeMap<u64, u64>,
    workers: usize,
    failed: &mut Option<(PathBuf, io::Error)>,
) -> Result<(), Cancelled> {
    *failed = None;
    let failed = Mutex::new(failed);
    job::step(0)?;
    let mut waiting = listed(files, rebuilding, left);
    job::set_totals(waiting.len() as u64, waiting.iter().map(|file| file.bytes).sum());
    // The largest come first, so that no thread begins one of them when the others have nothing
    // left to do.
    waiting.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let (next, is_ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        while let Some(file) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
            if compute_file(files, file, &failed).is_err() {
                is_ended.store(true, Ordering::Relaxed);
                return;
            }
        }
    };
    thread::scope(|scope| {
        // Where no thread can be made the others, or this one, do the work.
        let make = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..workers.min(waiting.len())).map_while(make).collect();
        work();
        drop(others);
    });
    if is_ended.load(Ordering::Relaxed) { Err(Cancelled) } else { Ok(()) }
}

/// Opens a file for writing, if that can be done, and so has its bytes computed. Where the job is
/// paused meanwhile, that is begun again.
fn compute_file(files: &ArrayFiles, file: &Waiting, failed: &Mutex<&mut Option<(PathBuf, io::Error)>>) -> Result<(), Cancelled> {
    loop {
        job::step(0)?;
        let done = files.make_good(&file.path, file.attribute);
        let is_done = done.is_ok();
        // A file that has another name by now is met again.
        if let Some(error) = done.err().filter(|error| error.kind() != io::ErrorKind::NotFound) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| (file.path.clone(), error));
        }
        if !job::end_file(file.bytes, is_done) {
            return Ok(());
        }
    }
}

/// The files that have names, and of which the inodes are among those in `left`. What cannot be
/// told of a file's inode here its opening tells.
fn listed(files: &ArrayFiles, rebuilding: MemberSet, left: &BTreeMap<u64, u64>) -> Vec<Waiting> {
    let core = files.core();
    let whole = core.array().in_use().minus(rebuilding).lowest().map(|slot| core.array().members()[slot].path.clone());
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    files.each_file(|path| {
        let backing = whole.as_ref().map(|member| below(member, path));
        let attribute = backing.as_ref().and_then(|backing| attribute_of(backing));
        let inode = attribute.map(|attribute| attribute.inode);
        // A file with several names is computed once.
        if inode.is_some_and(|inode| !left.contains_key(&inode) || !known.insert(inode)) {
            return true;
        }
        let size = inode.and_then(|inode| left.get(&inode).copied()).unwrap_or(0);
        let bytes = backing.map_or(size, |backing| data_bytes(core, &backing, size));
        found.push(Waiting { path: path.to_owned(), attribute, bytes });
        true
    });
    found
}

fn below(member: &[u8], path: &Path) -> PathBuf {
    Path::new(OsStr::from_bytes(member)).join(path.strip_prefix("/").unwrap_or(path))
}

fn attribute_of(backing: &Path) -> Option<Attribute> {
    let mut bytes = [0; format::ATTRIBUTE_BYTES];
    lgetxattr(backing, format::ATTRIBUTE_NAME, &mut bytes[..]).ok()?;
    Attribute::decode(&bytes).ok()
}

/// How many bytes of data a file of this size has, by what a backing file of it takes: holes are
/// none of them.
pub(crate) fn data_bytes(core: &Files, backing: &Path, size: u64) -> u64 {
    let geometry = core.array().default_geometry();
    match fs::symlink_metadata(backing) {
        // Of a file of one stripe the backing file may hold nothing that others hold.
        Ok(metadata) if size > geometry.stripe_bytes() => {
            size.min((metadata.blocks() * 512).saturating_mul(geometry.data_columns() as u64))
        }
        _ => size,
    }
}

/// A bar of bytes of files, on a terminal.
pub(crate) struct Progress(Option<(ProgressBar, Arc<AtomicBool>, thread::JoinHandle<()>)>);

impl Progress {
    /// Shows how far the job of this process has come until it is dropped.
    pub(crate) fn begin() -> Self {
        if !stderr().is_terminal() {
            return Self(None);
        }
        let style =
            ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} to go");
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (shown, over) = (bar.clone(), Arc::clone(&is_over));
        let shows = move || {
            while !over.load(Ordering::Relaxed) {
                let (done, total) = job::bytes();
                shown.set_length(total);
                shown.set_position(done.min(total));
                thread::park_timeout(PERIOD);
            }
        };
        Self(thread::Builder::new().spawn(shows).ok().map(|thread| (bar, is_over, thread)))
    }

    /// Says something beside the bar.
    pub(crate) fn beside(&self, say: impl FnOnce()) {
        match &self.0 {
            Some((bar, ..)) => bar.suspend(say),
            None => say(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((bar, is_over, thread)) = self.0.take() {
            is_over.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            let _ = thread.join();
            bar.finish_and_clear();
        }
    }
}
