//! Finds files under /dev/shm that belong to nobody: segments of arrays that nobody uses, and
//! shared copies of files that no segment names.
//!
//! Invariants: no file is removed that a living process uses, or that alone knows what a dead
//! process left unfinished. A file that cannot be judged stays. Names in /dev/shm may be anybody's:
//! only regular files of this user are looked into (of every user for root, if asked), their locks
//! are not waited for, and what is in them is believed no more than what is in a segment in use.

use super::entry::{DIRECTORY, OPEN, UNNAMED};
use super::unused::remove_name;
use super::{MAGIC, Runtime, Segment, VERSION, pid_namespace};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use format::Uuid;
use sys::high_fd::Raised;
use sys::rustix::fs::{self, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use sys::rustix::process::geteuid;

/// One file, and what became of it.
pub struct Litter {
    /// Its path.
    pub path: String,
    /// The array that it is named after.
    pub array: Uuid,
    /// The memory that it takes.
    pub bytes: u64,
    /// Why it stays; None if nobody needs it.
    pub kept: Option<Kept>,
}

/// Why a file stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Processes use the file. These are the ones that are known.
    InUse(Vec<u32>),
    /// The file alone knows what this many writes, or files, of dead processes need.
    Unfinished(usize),
    /// Processes of another PID namespace used it last: whether they live cannot be told.
    OtherNamespace,
    /// Another version of cxlraid made the file, or it is no segment.
    OtherVersion,
    /// The file is another user's.
    OtherUser(u32),
    /// The file was used, or made, a short time ago.
    Recent,
    /// The file could not be looked into or removed.
    Error(sys::OsError),
}

/// The work that a search for litter is asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Whether nothing is to be removed.
    pub dry_run: bool,
    /// Files that were used within so many seconds stay.
    pub idle_seconds: i64,
    /// Whether other users' files are looked into as well, which only root may.
    pub of_all_users: bool,
    /// The array whose files alone are looked at; None for those of all arrays.
    pub only: Option<Uuid>,
}

/// Up to this age a file may be one that is being made: nothing else shows that.
const NEW_SECONDS: i64 = 60;

/// A shared copy of a file: the array's first segment path, this, and a random number.
const COPY: &str = "-map-";

/// For how long at least a segment stays that nobody needs: a start that finds one is faster.
const KEPT_SECONDS: i64 = 3600;

/// Removes the litter of all arrays. The first process of an array does this for the others, since
/// no process comes to the segments of arrays that are not used any more.
pub(super) fn sweep_after_long() {
    let _ = sweep(Sweep { dry_run: false, idle_seconds: KEPT_SECONDS, of_all_users: false, only: None });
}

/// Looks through /dev/shm and removes what belongs to nobody. Returns the files in ascending order.
#[must_use]
pub fn sweep(sweep: Sweep) -> Vec<Litter> {
    let mut by_array: BTreeMap<[u8; 16], Vec<(String, Stat)>> = BTreeMap::new();
    for (name, uuid) in names().into_iter().filter(|(_, uuid)| sweep.only.is_none_or(|only| only == *uuid)) {
        let path = format!("{DIRECTORY}/{name}");
        let Ok(stat) = fs::lstat(path.as_str()) else { continue };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            by_array.entry(uuid.0).or_default().push((path, stat));
        }
    }
    by_array.into_iter().flat_map(|(uuid, files)| sweep_array(sweep, Uuid(uuid), &files)).collect()
}

/// The names under /dev/shm that are an array's, with its UUID.
fn names() -> Vec<(String, Uuid)> {
    let open = fs::open(DIRECTORY, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(entries) = open.and_then(|directory| Dir::read_from(&directory)) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().to_str().ok()?.to_string();
            let uuid = Uuid::parse(name.strip_prefix("cxlraid-")?.get(..36)?.as_bytes())?;
            matches!(name.get(44..).map(|rest| rest.get(..5)), Some(None | Some("-run-" | UNNAMED | COPY)))
                .then_some((name, uuid))
        })
        .collect();
    names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    names
}

fn sweep_array(sweep: Sweep, uuid: Uuid, files: &[(String, Stat)]) -> Vec<Litter> {
    let mut found = judge_array(sweep, uuid, files);
    if !sweep.dry_run {
        remove_others(&mut found);
    }
    found
}

fn is_kind(litter_path: &str, uuid: Uuid, kind: &str) -> bool {
    litter_path.contains(&format!("{uuid}{kind}"))
}

/// Says of each file why it stays. Segments that do not stay are removed here, while their locks
/// are held.
fn judge_array(sweep: Sweep, uuid: Uuid, files: &[(String, Stat)]) -> Vec<Litter> {
    let now = sys::clock::realtime_coarse_ns() as i64 / 1_000_000_000;
    let (mut found, mut named, mut unknown, mut has_segment) = (Vec::new(), Vec::new(), false, false);
    // Why the copies stay that a segment names.
    let mut because = Kept::InUse(Vec::new());
    let bytes = |stat: &Stat| stat.st_blocks as u64 * 512;
    let mut judge = |path: &String, stat: &Stat, kept: Option<Kept>| {
        found.push(Litter { path: path.clone(), array: uuid, bytes: bytes(stat), kept });
    };
    let if_idle = |stat: &Stat| (age_seconds(now, stat.st_mtime) < sweep.idle_seconds).then_some(Kept::Recent);
    for (path, stat) in files.iter().filter(|(path, _)| !is_kind(path, uuid, COPY)) {
        if is_kind(path, uuid, UNNAMED) {
            let kept = if may_look(sweep, stat) {
                (now - stat.st_mtime < NEW_SECONDS).then_some(Kept::Recent).or_else(|| if_idle(stat))
            } else {
                Some(Kept::OtherUser(stat.st_uid))
            };
            judge(path, stat, kept);
            continue;
        }
        let looked = if !may_look(sweep, stat) {
            Looked::unknown(Kept::OtherUser(stat.st_uid))
        } else if let Some(recent) = if_idle(stat) {
            // The segment is not looked into: this process would seem to use it while it has it
            // mapped.
            Looked::unknown(recent)
        } else {
            look(sweep, path, now, &mut named)
        };
        has_segment = true;
        unknown |= !looked.copies_known;
        if let Some(kept @ (Kept::Unfinished(_) | Kept::OtherNamespace)) = &looked.kept {
            because = kept.clone();
        }
        judge(path, stat, looked.kept);
    }
    // The directory was listed before the segments were looked into, and a segment names a copy
    // before the copy is made. So nobody needs a copy that no segment names.
    for (path, stat) in files.iter().filter(|(path, _)| is_kind(path, uuid, COPY)) {
        let number = path.rsplit('-').next().and_then(|text| u64::from_str_radix(text, 16).ok());
        let kept = if !may_look(sweep, stat) {
            Some(Kept::OtherUser(stat.st_uid))
        } else if unknown || number.is_some_and(|number| named.contains(&number)) {
            Some(because.clone())
        } else {
            (!has_segment && now - stat.st_mtime < NEW_SECONDS).then_some(Kept::Recent).or_else(|| if_idle(stat))
        };
        judge(path, stat, kept);
    }
    found
}

/// Removes the files that nobody needs and that are no segments. Their names are random and not
/// used twice. A segment's name is: as soon as a segment is removed and its lock let go, another
/// process may have made a new one of the same name.
fn remove_others(found: &mut [Litter]) {
    let is_other = |litter: &Litter| [UNNAMED, COPY].iter().any(|kind| is_kind(&litter.path, litter.array, kind));
    for litter in found.iter_mut().filter(|litter| litter.kept.is_none() && is_other(litter)) {
        match fs::unlink(litter.path.as_str()) {
            Ok(()) | Err(sys::OsError::NOENT) => {}
            Err(error) => litter.kept = Some(Kept::Error(error)),
        }
    }
}

/// How long ago a file was modified. Kernels give files times that the coarse clock has not reached
/// yet.
fn age_seconds(now: i64, modified: i64) -> i64 {
    now.saturating_sub(modified).max(0)
}

fn may_look(sweep: Sweep, stat: &Stat) -> bool {
    stat.st_uid == geteuid().as_raw() || sweep.of_all_users && geteuid().is_root()
}

/// What a look into a segment gave.
struct Looked {
    /// Why the segment stays; None if nobody needs it.
    kept: Option<Kept>,
    /// Whether all copies that the segment names are known.
    copies_known: bool,
}

impl Looked {
    /// The segment stays, and nobody knows which copies it names.
    const fn unknown(kept: Kept) -> Self {
        Self { kept: Some(kept), copies_known: false }
    }
}

/// Says why a segment stays. A segment that does not stay is removed here, while its lock is held.
/// If it stays, the names of the copies that it knows are added to `named`.
fn look(sweep: Sweep, path: &str, now: i64, named: &mut Vec<u64>) -> Looked {
    let opened = fs::open(path, OPEN, Mode::empty()).and_then(Raised::new);
    let file = match opened {
        Ok(file) => file,
        Err(error) => return Looked::unknown(Kept::Error(error)),
    };
    if fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        // A process is about to use the array. Others may use the array too, and its copies.
        return Looked::unknown(Kept::InUse(Vec::new()));
    }
    match fs::fstat(&file) {
        Ok(stat) if stat.st_size as usize == size_of::<Segment>() => {}
        // The process that made the file died before it made a segment of it.
        Ok(stat) if stat.st_size == 0 && now - stat.st_mtime >= NEW_SECONDS => return remove(sweep, || remove_name(&file, path)),
        _ => return Looked::unknown(Kept::OtherVersion),
    }
    // Mapped, it could take room that shared memory does not have.
    let runtime = match Runtime::copy(file, path.to_string()) {
        Ok(runtime) => runtime,
        Err(error) => return Looked::unknown(Kept::Error(error)),
    };
    let segment = runtime.segment();
    if segment.magic.load(Ordering::Relaxed) != MAGIC || segment.version.load(Ordering::Relaxed) != VERSION {
        return Looked::unknown(Kept::OtherVersion);
    }
    let attached: Vec<u32> = runtime.attached().collect();
    let kept = if !attached.is_empty() || runtime.is_held_by_others() {
        Some(Kept::InUse(attached))
    } else if segment.pid_namespace.load(Ordering::Relaxed) != pid_namespace() {
        Some(Kept::OtherNamespace)
    } else if !runtime.is_unused() {
        Some(Kept::Unfinished(runtime.known_here_alone().max(1)))
    } else {
        let used = fs::fstat(&runtime.file).map_or(now, |stat| stat.st_mtime);
        (age_seconds(now, used) < sweep.idle_seconds).then_some(Kept::Recent)
    };
    let Some(kept) = kept else {
        // A process that waits for the lock then finds that the segment is gone, and makes another.
        return remove(sweep, || runtime.remove());
    };
    named.extend(
        runtime.used_entries().map(|index| segment.files[index].copy_name.load(Ordering::Acquire)).filter(|&name| name != 0),
    );
    // Copies of a segment that nobody uses may be needed all the same.
    let copies_known = matches!(kept, Kept::InUse(_));
    Looked { kept: Some(kept), copies_known }
}

/// Removes a segment that nobody needs, whose lock is held.
fn remove(sweep: Sweep, remove: impl FnOnce() -> sys::Result<()>) -> Looked {
    let removed = if sweep.dry_run { Ok(()) } else { remove() };
    Looked { kept: removed.err().map(Kept::Error), copies_known: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs as files;

    const ALL: Sweep = Sweep { dry_run: false, idle_seconds: 0, of_all_users: false, only: None };

    const OLD_SECONDS: u64 = 2 * NEW_SECONDS as u64;
    const _: () = assert!(OLD_SECONDS < KEPT_SECONDS as u64 / 2);

    fn uuid() -> Uuid {
        Uuid(sys::random::bytes().unwrap())
    }

    fn listed(uuid: Uuid) -> Vec<(String, Stat)> {
        let path = |(name, _)| format!("{DIRECTORY}/{name}");
        let paths = names().into_iter().filter(|(_, of)| *of == uuid).map(path);
        paths.map(|path| (path.clone(), fs::lstat(path.as_str()).unwrap())).collect()
    }

    /// A file that is too old to be one that is being made. A start sweeps the litter of all arrays
    /// that is older than [`KEPT_SECONDS`], and other tests start arrays meanwhile: they must not
    /// come to this file.
    fn make_old(path: &str, bytes: u64) {
        let file = files::File::create(path).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(std::time::SystemTime::now() - core::time::Duration::from_secs(OLD_SECONDS)).unwrap();
    }

    #[test]
    fn what_is_newer_than_the_clock_is_of_now() {
        assert_eq!([age_seconds(10, 11), age_seconds(10, 10), age_seconds(10, 7), age_seconds(0, i64::MIN)], [0, 0, 3, i64::MAX]);
    }

    #[test]
    fn a_segment_made_anew_keeps_its_name() {
        // A file that was to be a segment, and a segment that its maker left before it was one.
        for bytes in [0, size_of::<Segment>() as u64] {
            let uuid = uuid();
            let path = super::super::segment_path(uuid);
            make_old(&path, bytes);
            if bytes != 0 {
                let file = Raised::new(fs::open(path.as_str(), OPEN, Mode::empty()).unwrap()).unwrap();
                let runtime = Runtime::map(file, path.clone()).unwrap();
                let segment = runtime.segment();
                segment.magic.store(MAGIC, Ordering::Relaxed);
                segment.version.store(VERSION, Ordering::Relaxed);
                segment.pid_namespace.store(pid_namespace(), Ordering::Relaxed);
            }
            let files = listed(uuid);
            assert!(judge_array(Sweep { dry_run: true, ..ALL }, uuid, &files)[0].kept.is_none());
            assert!(files::exists(&path).unwrap());
            let mut found = judge_array(ALL, uuid, &files);
            assert!(found[0].kept.is_none() && !files::exists(&path).unwrap(), "{bytes}");
            // The process that waited for the lock makes its segment.
            files::write(&path, "").unwrap();
            remove_others(&mut found);
            files::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_copy_of_what_a_dead_process_left_stays_for_that_reason() {
        let uuid = uuid();
        let path = super::super::segment_path(uuid);
        let copy = format!("{path}-map-00000000000000ff");
        make_old(&path, size_of::<Segment>() as u64);
        make_old(&copy, 1);
        let file = Raised::new(fs::open(path.as_str(), OPEN, Mode::empty()).unwrap()).unwrap();
        let runtime = Runtime::map(file, path.clone()).unwrap();
        let segment = runtime.segment();
        segment.magic.store(MAGIC, Ordering::Relaxed);
        segment.version.store(VERSION, Ordering::Relaxed);
        segment.pid_namespace.store(pid_namespace(), Ordering::Relaxed);
        let (key, entry) = (7 << 24 | 1, &segment.files[3]);
        segment.used[0].store(1, Ordering::Relaxed);
        segment.keys[3].store(key, Ordering::Relaxed);
        entry.copy_name.store(0xff, Ordering::Relaxed);
        entry.mapped.store(1, Ordering::Relaxed);
        assert!(segment.mapped.take(sync::OwnerId::new(5).unwrap(), key).is_some());
        drop(runtime);
        let found = sweep_array(ALL, uuid, &listed(uuid));
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|litter| litter.kept == Some(Kept::Unfinished(1))));
        files::remove_file(&copy).unwrap();
        files::remove_file(&path).unwrap();
    }

    #[test]
    fn copies_stay_while_a_process_of_the_array_starts() {
        let uuid = uuid();
        let path = super::super::segment_path(uuid);
        let copy = format!("{path}-map-00000000000000ff");
        make_old(&path, size_of::<Segment>() as u64);
        make_old(&copy, 1);
        let starting = files::File::open(&path).unwrap();
        starting.lock().unwrap();
        let found = sweep_array(ALL, uuid, &listed(uuid));
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|litter| litter.kept == Some(Kept::InUse(Vec::new()))));
        assert!(files::exists(&path).unwrap());
        files::remove_file(&copy).unwrap();
        files::remove_file(&path).unwrap();
    }
}
