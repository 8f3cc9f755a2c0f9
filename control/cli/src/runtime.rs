//! What the running system knows of an array: its processes, and the file systems under its
//! members.

use crate::{failure::Failure, files::ArrayFiles, inspect, journal, spec::Source};
use array::{Array, AttachError, Runtime, runtime::Loss};
use format::Uuid;
use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    sync::atomic::Ordering,
};
use sys::{OsError, rustix::fs::OFlags};

/// Where shared memory lies.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";

/// The processes that have the array's runtime segment mapped, as far as this user may look into
/// them. In another mount namespace the segment's directory may be called otherwise: its name is
/// what they know it by, in which the array's UUID is.
pub(crate) fn attached(uuid: Uuid) -> Vec<u32> {
    let name = |path: String| path.rsplit_once('/').map_or_else(|| format!("/{path}"), |(_, name)| format!("/{name}"));
    let segments: Vec<String> = array::runtime::segment_paths(uuid).into_iter().map(name).collect();
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|&pid| pid != own && maps(pid, &segments)).collect();
    pids.sort_unstable();
    pids
}

fn maps(pid: u32, files: &[String]) -> bool {
    // A process may end while it is looked at.
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else { return false };
    let lines = BufReader::new(maps).split(b'\n').map_while(Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).any(|line| files.iter().any(|file| line.ends_with(file)))
}

/// Tells whether a process has no memory any more: it is on its way out, or gone.
pub(crate) fn is_ending(pid: u32) -> bool {
    match fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps.is_empty(),
        Err(error) => error.raw_os_error() == Some(OsError::SRCH.raw_os_error()) || error.kind() == io::ErrorKind::NotFound,
    }
}

/// Bytes of a file system, and those an ordinary user may still fill.
pub(crate) fn capacity(directory: &Path) -> Option<(u64, u64)> {
    let stat = sys::rustix::fs::statvfs(directory).ok()?;
    Some((stat.f_blocks.checked_mul(stat.f_frsize)?, stat.f_bavail.checked_mul(stat.f_frsize)?))
}

/// What a store needs to survive power loss there.
pub(crate) fn persistence(directory: &Path) -> Option<String> {
    // A member or a journal may name what is no directory, and would be waited for.
    let root = File::options().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(directory).ok()?;
    let domain = dax::detect(root.as_fd());
    Some(
        match domain {
            dax::PersistenceDomain::Volatile => "volatile",
            dax::PersistenceDomain::PageCache => "page cache",
            dax::PersistenceDomain::Adr => "persistent (ADR)",
            dax::PersistenceDomain::Eadr => "persistent (eADR)",
        }
        .to_owned(),
    )
}

/// Tells whether a directory lies in memory that a restart of the machine empties.
pub(crate) fn is_volatile(directory: &Path) -> bool {
    persistence(directory).is_some_and(|domain| domain == "volatile")
}

/// What a command has done, unless it lost the array's shared memory meanwhile: then all members
/// seemed to be out, and whatever it did or said came of that.
pub(crate) fn unless_lost<T>(done: Result<T, Failure>) -> Result<T, Failure> {
    match array::runtime::loss() {
        None => done,
        Some(Loss::Full) => Err(full("")),
        Some(Loss::Cut) => {
            let what = "the file of the array's shared memory was cut short";
            Err(Failure::new(SHARED_MEMORY, what, "end the array's programs, 'cxlraid stop' it, and give the command again"))
        }
    }
}

/// Shared memory has no room for what a command needs, and `why` that matters.
fn full(why: &str) -> Failure {
    Failure::new(SHARED_MEMORY, format!("shared memory is full{why}"), "make room in /dev/shm, and give the command again")
}

/// Removes the shared copies of mapped files that processes left beside the segment when they died.
fn forget_copies(segment: &Path) {
    for copy in crate::mapped::copies(segment) {
        let _ = fs::remove_file(copy);
    }
}

/// Makes good what the segment alone knows of processes that died: what they were storing with a
/// member out is undone, and what they had stored through mappings reaches the members.
fn make_good(source: &Source, thing: &str) -> Result<(), Failure> {
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let files = ArrayFiles::open(array)?;
    let left = || {
        // Frees the records that nothing is left of.
        let _ = files.core().unfinished_changes();
        files.core().array().runtime().known_here_alone()
    };
    files.open_each_to_write(|_| left() != 0);
    let left = left();
    if left == 0 {
        return Ok(());
    }
    let what = format!(
        "processes died in the middle of {left} writes or with files mapped, and the files cannot be opened to make that good"
    );
    Err(Failure::new(thing, what, "run it as a user who may write to every file"))
}

/// Replays what processes had committed to the journal when they died: behind a page cache it is
/// believed no more once the segment is gone.
fn replay(source: &Source, thing: &str) -> Result<(), Failure> {
    let refused = |error: AttachError| {
        let text = error.to_string();
        let (what, todo) = text.rsplit_once("; ").unwrap_or((&text, ""));
        Failure::new(
            thing,
            format!("processes died in the middle of writes that wait in its journal to be replayed; {what}"),
            todo,
        )
    };
    let array = Array::attach(&inspect::config(source)?).map_err(refused)?;
    journal::replay(array, thing).map(|_| ())
}

/// Whether processes that are gone left lanes of the journal that a record may wait in.
fn may_wait(runtime: &Runtime) -> bool {
    runtime.journal_lanes().iter().any(|lane| lane.0.load(Ordering::Acquire) != 0)
}

/// Removes the runtime segment of an array that no process uses. Returns whether there was one.
pub(crate) fn stop(source: &Source, thing: &str) -> Result<bool, Failure> {
    end_use(source, thing)?;
    stop_after(source, thing, false)
}

/// Makes copies of members stale that were made while the array was in use, if it was and nobody
/// uses it any more; and, if nothing waits to be made good, says on the members that the array was
/// ended in order. What prevents that is no reason not to stop the array.
fn end_use(source: &Source, thing: &str) -> Result<(), Failure> {
    let superblock = inspect::newest(source, thing)?;
    let (uuid, access) = (superblock.array_uuid, superblock.access);
    if array::runtime::find_segment(uuid, access).is_none() || !attached(uuid).is_empty() {
        return Ok(());
    }
    let was_changed =
        Runtime::open(uuid, access, |_, _| Ok(true)).is_ok_and(|(runtime, alone)| alone && runtime.is_use_recorded());
    if was_changed && let Ok(array) = Array::attach_holding(&inspect::config(source)?) {
        if !array.was_alone() {
            array.let_in();
            return Ok(());
        }
        match ArrayFiles::open(array) {
            Ok(files) => {
                let core = files.core();
                let is_clean = core.end_in_order() == Ok(true);
                if array::runtime::loss().is_none() {
                    let _ = core.array().end_use(is_clean);
                }
                core.array().let_in();
            }
            Err(failure) if array::runtime::loss().is_none() => say!("{failure}"),
            Err(_) => {}
        }
    }
    Ok(())
}

/// The processes that use an array, as messages name them.
pub(crate) fn users(pids: &[u32]) -> String {
    match pids {
        [] => "others".to_owned(),
        [pid] => format!("process {pid}"),
        pids => format!("processes {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn stop_after(source: &Source, thing: &str, replayed: bool) -> Result<bool, Failure> {
    let superblock = inspect::newest(source, thing)?;
    let Some(segment) = array::runtime::find_segment(superblock.array_uuid, superblock.access) else { return Ok(false) };
    let mut pids = attached(superblock.array_uuid);
    // While this is held nobody else attaches. A segment of another version of cxlraid cannot be
    // opened; it goes if nobody maps it. Whoever uses it from another PID namespace has it mapped
    // too.
    let mut runtime = Runtime::open(superblock.array_uuid, superblock.access, |_, _| Ok(true)).map(|(runtime, _)| runtime);
    let is_full = matches!(runtime, Err(OsError::NOSPC));
    if is_full {
        runtime = Runtime::look(superblock.array_uuid, superblock.access);
        if runtime.is_err() {
            return Err(full(""));
        }
    }
    if let Ok(runtime) = &runtime {
        pids.extend(runtime.attached().filter(|&pid| pid != std::process::id()));
        pids.sort_unstable();
        pids.dedup();
    }
    if !pids.is_empty() {
        return Err(Failure::new(thing, format!("in use by {}", users(&pids)), "end them first"));
    }
    if is_full
        && let Ok(held) = &runtime
        && (may_wait(held) || held.known_here_alone() != 0)
    {
        return Err(full(", and writes of processes that died wait there to be made good"));
    }
    // Looked at again: who held the segment until now may have changed the journal.
    if let Ok(held) = &runtime
        && inspect::newest(source, thing)?.journal.is_some()
        && may_wait(held)
    {
        if replayed {
            return Err(Failure::new(
                thing,
                "writes wait in its journal again",
                "end the programs that use it, and stop it again",
            ));
        }
        held.note_deaths();
        drop(runtime);
        replay(source, thing)?;
        return stop_after(source, thing, true);
    }
    if let Ok(held) = &runtime
        && held.known_here_alone() != 0
    {
        drop(runtime);
        make_good(source, thing)?;
        return stop_after(source, thing, replayed);
    }
    fs::remove_file(&segment).map_err(|error| Failure::new(&segment, error, "run as the user who owns the array"))?;
    forget_copies(Path::new(&array::runtime::segment_path(superblock.array_uuid)));
    // Not before: who attaches meanwhile would use a segment that nobody else finds.
    drop(runtime);
    Ok(true)
}
