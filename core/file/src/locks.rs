//! Locks of programs (fcntl(2), flock(2)) on a file whose descriptors lie on several backing files.
//!
//! The kernel keeps a lock on the backing file that the descriptor is open on ([`array::Anchors`]).
//! While all descriptors of a file lie on one backing file, nothing is to be done here. When the
//! lowest member in use was lost, or came back, while the file was open, older descriptors lie on
//! another backing file than younger ones. A process that asks for a lock then first asks the
//! kernel (proc(5), `/proc/locks`) for the locks on the other backing files, while no other process
//! asks for one on the file. The locks themselves stay the kernel's: they go when their process
//! dies or closes the file, and with a description wherever that goes.
//!
//! `/proc/locks` lacks the locks of other PID namespaces. Outside the first namespace it also lacks
//! every lock by flock(2) whose taker has ended while another process still has the description.
//! The kernel gives `/proc/locks` in steps, and a lock can be missing from it if other locks were
//! given back between two steps. So the library reads it twice where it is long. It also looks at
//! the descriptors of the attached processes, as far as this process may: those tell of every lock.

use crate::files::Files;
use crate::inode::Inode;
use alloc::vec::Vec;
use array::proc_file;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use dax::Held;
use format::Attribute;
use sync::LocalLock;
use sys::rustix::fs::{AtFlags, Dir, Mode, OFlags, fcntl_getfl, fstat, makedev, open, statat};
use sys::rustix::io::{FdFlags, fcntl_setfd};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, RawFd, high_fd, ofd_lock};
use units::MemberSet;

/// Locks of programs end before this offset. The bytes from here on are the library's: it locks one
/// of them by a descriptor to recognise the descriptor later.
pub const RESERVED_OFFSET: i64 = i64::MAX - 2;
/// The byte that is locked by a descriptor which was kept open over an exec for the sake of the
/// process' locks.
const KEPT_OFFSET: i64 = RESERVED_OFFSET;

/// How many processes that wait for one another are looked at. The kernel looks at as many.
const CIRCLE_MAX: usize = 10;

/// The kind of a lock: who owns it, and what it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// The lock of an open file description on the whole file: flock(2).
    Flock,
    /// The lock of a process on a range, a *process lock*: fcntl(2) F_SETLK.
    Process,
    /// The lock of an open file description on a range: fcntl(2) F_OFD_SETLK.
    Description,
}

/// A lock that somebody holds or asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// Its kind.
    pub kind: LockKind,
    /// Whether the lock is exclusive. A shared lock excludes exclusive locks only.
    pub excludes: bool,
    /// The process that took it; -1 for [`LockKind::Description`].
    pub process: i32,
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for all there may ever be.
    pub last: u64,
}

impl FileLock {
    /// Whether a lock that this process asks for cannot be given because of `held`.
    fn conflicts_with(&self, held: &Self) -> bool {
        let same_owner = self.kind == LockKind::Process && held.kind == LockKind::Process && held.process == self.process;
        let same_family = (self.kind == LockKind::Flock) == (held.kind == LockKind::Flock);
        same_family && !same_owner && (self.excludes || held.excludes) && self.start <= held.last && held.start <= self.last
    }
}

/// Backing files that a process' former program left open for the sake of the process' locks. The
/// kernel takes away all process locks on a backing file as soon as the process closes any
/// descriptor of the file. An exec would close the library's descriptors. Opening the backing file
/// anew would close one, too: the low number that the kernel gives before the library raises it. So
/// the library in the next program uses the descriptors that the former one had. Where it had two of a
/// backing file, one of which can only read, that one stays here until the process closes the file.
pub(crate) struct KeptOverExec(LocalLock<Vec<OwnedFd>>);

impl KeptOverExec {
    pub(crate) const fn new() -> Self {
        Self(LocalLock::new(Vec::new()))
    }

    /// Closes what is left of a file that this process has closed.
    pub(crate) fn closed(&self, inode: &Inode) {
        let mut kept = self.0.lock();
        if !kept.is_empty() {
            let own: Vec<_> = inode.resident_fds().filter_map(|held| identity(held.as_fd())).collect();
            kept.retain(|fd| {
                let stays = identity(fd.as_fd()).is_none_or(|identity| !own.contains(&identity));
                if !stays {
                    high_fd::forget(fd.as_raw_fd());
                }
                stays
            });
        }
    }
}

/// Returns the device and inode number of what a descriptor is open on.
fn identity(fd: BorrowedFd<'_>) -> Option<[u64; 2]> {
    fstat(fd).ok().map(|stat| [stat.st_dev, stat.st_ino])
}

/// Tells whether a descriptor is open for reading and writing.
fn can_write(fd: &OwnedFd) -> bool {
    fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
}

impl Files {
    /// Sees to it that the process' locks on files outlive an exec that leaves `anchors` open: the
    /// library's descriptors on the same backing files stay open, too. Returns these descriptors for
    /// [`Files::end_keeping`], which makes them close-on-exec again if the exec fails.
    #[must_use]
    pub fn keep_locks(&self, anchors: &[BorrowedFd<'_>]) -> Vec<RawFd> {
        let mut kept = Vec::new();
        self.for_each_set(|inode| {
            if !inode.process_locks().is_empty() {
                inode.keep_locks(anchors, &mut kept);
            }
        });
        let left = self.kept_over_exec().0.lock();
        if !left.is_empty() {
            let inherited: Vec<_> = anchors.iter().filter_map(|&anchor| identity(anchor)).collect();
            let is_inherited = |fd: &OwnedFd| identity(fd.as_fd()).is_some_and(|identity| inherited.contains(&identity));
            let left = left.iter().filter(|fd| is_inherited(fd) && fcntl_setfd(fd, FdFlags::empty()).is_ok());
            kept.extend(left.map(AsRawFd::as_raw_fd));
        }
        kept
    }

    /// Takes back what [`Files::keep_locks`] has done.
    pub fn end_keeping(&self, kept: &[RawFd]) {
        self.for_each_set(|inode| {
            // What is kept stays open, so it is not parked.
            for fd in inode.resident_fds().filter(|fd| kept.contains(&fd.as_raw_fd())) {
                let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
            }
        });
        let left = self.kept_over_exec().0.lock();
        left.iter().filter(|fd| kept.contains(&fd.as_raw_fd())).for_each(|fd| _ = fcntl_setfd(fd, FdFlags::CLOEXEC));
    }

    /// Takes over a descriptor for which [`keeps_locks`] holds.
    pub fn take_over(&self, fd: OwnedFd) {
        let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
        self.kept_over_exec().0.lock().push(fd);
    }

    /// Tells whether descriptors were taken over of files that this process has not opened since.
    #[must_use]
    pub fn has_taken_over(&self) -> bool {
        !self.kept_over_exec().0.lock().is_empty()
    }

    /// Returns the descriptor taken over that is open on a backing file, and forgets it; one that can
    /// only read is not returned `for_writing`, nor if there is one that can write. Tells with it
    /// whether it can write. `identify` gives the backing file's device and inode number.
    pub fn taken_over(&self, for_writing: bool, identify: impl FnOnce() -> Option<[u64; 2]>) -> Option<(OwnedFd, bool)> {
        let mut kept = self.kept_over_exec().0.lock();
        if kept.is_empty() {
            return None;
        }
        let wanted = identify()?;
        let fits = |fd: &OwnedFd| identity(fd.as_fd()) == Some(wanted);
        if let Some(place) = kept.iter().position(|fd| fits(fd) && can_write(fd)) {
            return Some((kept.swap_remove(place), true));
        }
        let place = kept.iter().position(fits).filter(|_| !for_writing)?;
        Some((kept.swap_remove(place), false))
    }
}

/// Whether a descriptor was kept open over an exec for the sake of locks.
#[must_use]
pub fn keeps_locks(fd: impl AsFd) -> bool {
    has_locked(fd, KEPT_OFFSET)
}

/// Tells whether the description of `fd` holds a lock that begins at `offset`. The library asks proc(5)
/// and does not open the file anew, because closing that descriptor would take the process locks on
/// the file away.
#[must_use]
pub fn has_locked(fd: impl AsFd, offset: i64) -> bool {
    let text = proc_file::read(&alloc::format!("/proc/thread-self/fdinfo/{}", fd.as_fd().as_raw_fd()));
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"lock:"));
    lines.filter_map(parse).any(|(_, held)| held.kind == LockKind::Description && held.start == offset as u64)
}

impl Inode {
    /// Notes that this process is about to ask for a process lock. From then on no descriptor of a
    /// backing file is closed before the file itself is closed.
    ///
    /// # Errors
    /// `MFILE` and what else keeps a parked file from getting a descriptor.
    #[inline]
    pub fn note_process_lock(&self) -> Result<(), OsError> {
        // The program's descriptors lie on the lowest member's backing file, unless members have
        // gone or come.
        let is_simple = self.out().is_empty() && !self.has_locks_apart();
        let members = MemberSet::first(self.backing.len());
        let lying_on =
            if is_simple { self.in_use().next().map_or(members, |(slot, _)| MemberSet::EMPTY.with(slot)) } else { members };
        let settled = MemberSet::from_bits(self.settled_for_locks.load(Ordering::Acquire));
        if lying_on.minus(settled).is_empty() { Ok(()) } else { self.stay_for_locks(lying_on) }
    }

    /// Sees to it that no descriptor of the backing files on `members` is closed before the file is.
    #[cold]
    fn stay_for_locks(&self, members: MemberSet) -> Result<(), OsError> {
        {
            // Nothing is parked meanwhile.
            let held = self.files.held().lock();
            match self.stay_on(members) {
                Err(OsError::MFILE) if held.park() => self.stay_on(members)?,
                result => result?,
            }
        }
        // A thread that holds a fetched descriptor may wait for the lock of open files. So that lock
        // is not held here.
        self.backings_on(members).for_each(dax::Backing::wait_for_holders);
        self.settled_for_locks.fetch_or(members.bits(), Ordering::Release);
        Ok(())
    }

    fn backings_on(&self, members: MemberSet) -> impl Iterator<Item = &dax::Backing> {
        let all = self.backing.iter().enumerate().filter(move |(slot, _)| members.contains(*slot));
        all.filter_map(|(_, backing)| backing.as_ref())
    }

    /// Returns the members on whose backing files this process may have process locks.
    pub(crate) fn process_locks(&self) -> MemberSet {
        MemberSet::from_bits(self.process_locks_on.load(Ordering::Acquire))
    }

    /// Sees to it that the backing files on these members have descriptors, and are not parked any
    /// more. The lock of open files is held.
    pub(crate) fn stay_on(&self, members: MemberSet) -> Result<(), OsError> {
        self.backings_on(members).try_for_each(dax::Backing::keep)?;
        self.process_locks_on.fetch_or(members.bits(), Ordering::Release);
        Ok(())
    }

    /// The descriptors of those backing files of the file that have one. Backing files on lost
    /// members are among them, because locks outlive the loss of a member.
    fn resident_fds(&self) -> impl Iterator<Item = Held<'_>> {
        self.backing.iter().flatten().filter(|backing| !backing.is_parked()).filter_map(|backing| backing.fd().ok())
    }

    fn keep_locks(&self, anchors: &[BorrowedFd<'_>], kept: &mut Vec<RawFd>) {
        let inherited: Vec<_> = anchors.iter().map(|&anchor| self.own_anchor(anchor)).filter(Option::is_some).collect();
        for held in self.resident_fds() {
            let fd = held.as_fd();
            let holds = || has_locked(fd, KEPT_OFFSET) || ofd_lock::hold(fd, KEPT_OFFSET, 1).is_ok();
            if inherited.contains(&self.own_anchor(fd)) && holds() && fcntl_setfd(fd, FdFlags::empty()).is_ok() {
                kept.push(fd.as_raw_fd());
            }
        }
    }

    /// Notes that a program has, or is about to have, a descriptor on a backing file of this file,
    /// by its device and inode number.
    #[inline]
    pub fn note_anchor(&self, identity: [u64; 2]) {
        self.shared().anchors.note(identity);
    }

    /// Whether locks of this file lie on several backing files.
    #[inline]
    #[must_use]
    pub fn has_locks_apart(&self) -> bool {
        self.shared().anchors.are_several()
    }

    /// Runs `act` while no other process asks for a lock on this file. Used where the file's locks
    /// lie apart.
    pub fn with_locks_held<T>(&self, act: impl FnOnce() -> T) -> T {
        self.files.array().runtime().with_lock(&self.shared().locking_lock, |_| act())
    }

    /// Returns a lock because of which `wanted` cannot be given, on another backing file than the one
    /// that `anchor` is open on; None if there is none.
    #[must_use]
    pub fn conflict_elsewhere(&self, anchor: BorrowedFd<'_>, wanted: &FileLock) -> Option<FileLock> {
        let own = self.own_anchor(anchor);
        let others: Vec<_> = self.shared().anchors.all().filter(|&other| Some(other) != own).collect();
        let found = Cell::new(None);
        let mut visit = |held: FileLock| {
            if wanted.conflicts_with(&held) {
                found.set(Some(held));
            }
        };
        each_lock(&others, &mut visit);
        if found.get().is_none() {
            self.files.array().runtime().attached().for_each(|pid| each_lock_of(pid, &others, &mut visit));
        }
        found.get()
    }

    /// Notes that this process waits for a lock that the process `holder` has on another backing
    /// file. Returns whether that wait would last for ever, because the holder waits, itself or by
    /// way of others, for a lock of this process; then nothing is noted. At most `CIRCLE_MAX`
    /// processes are looked at.
    #[must_use]
    pub fn waits_in_a_circle(&self, holder: u32, myself: u32) -> bool {
        let runtime = self.files.array().runtime();
        runtime.with_waits(|| {
            runtime.note_wait(holder);
            let blocked = waits_in_kernel(&proc_file::read("/proc/locks"));
            let next = |process: u32| {
                let in_kernel = || blocked.iter().find(|(waiter, _)| *waiter == process).map(|&(_, holder)| holder);
                runtime.waits_for(process).or_else(in_kernel)
            };
            let is_circle =
                core::iter::successors(Some(holder), |&process| next(process)).take(CIRCLE_MAX).any(|process| process == myself);
            if is_circle {
                runtime.end_wait();
            }
            is_circle
        })
    }

    /// Notes that this process waits for no lock on another backing file any more.
    pub fn end_wait(&self) {
        self.files.array().runtime().end_wait();
    }

    /// Whether two descriptors of this file lie on the same backing file.
    #[must_use]
    pub fn lie_together(&self, one: BorrowedFd<'_>, two: BorrowedFd<'_>) -> bool {
        self.own_anchor(one) == self.own_anchor(two)
    }

    /// Returns the device and inode number of the backing file on which a descriptor of this file is
    /// open.
    fn own_anchor(&self, anchor: BorrowedFd<'_>) -> Option<[u64; 2]> {
        if let Ok(stat) = fstat(anchor) {
            return Some([stat.st_dev, stat.st_ino]);
        }
        let inode = inode_in_proc(anchor)?;
        self.shared().anchors.all().find(|known| known[1] == inode)
    }
}

impl Files {
    /// Returns the attribute of the open file on whose backing file a descriptor lies, by what
    /// processes have noted of their descriptors ([`Inode::note_anchor`]). Used where the file system
    /// of the member does not answer any more.
    #[must_use]
    pub fn attribute_of_anchor(&self, anchor: BorrowedFd<'_>) -> Option<Attribute> {
        let stat = fstat(anchor).ok();
        let inode = stat.map_or_else(|| inode_in_proc(anchor), |stat| Some(stat.st_ino))?;
        let key = self.array().runtime().file_with_anchor(stat.map(|stat| stat.st_dev), inode)?;
        self.attribute_of(key)
    }
}

/// Returns the inode number of the file on which a descriptor is open. proc(5) tells it even where
/// the file system does not answer any more.
fn inode_in_proc(fd: BorrowedFd<'_>) -> Option<u64> {
    let text = proc_file::read(&alloc::format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()));
    let mut lines = core::str::from_utf8(&text).ok()?.lines();
    lines.find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

/// Calls `visit` with every lock on one of `files`, by device and inode number, that the kernel
/// tells of.
fn each_lock(files: &[[u64; 2]], visit: &mut impl FnMut(FileLock)) {
    let text = proc_file::read("/proc/locks");
    // The kernel gives a long list in steps. Between two steps a lock may move from the part that
    // is still to come to the part that was given already.
    let again = if text.len() < proc_file::STEP_BYTES / 2 { Vec::new() } else { proc_file::read("/proc/locks") };
    for line in [text, again].iter().flat_map(|text| text.split(|&byte| byte == b'\n')) {
        if let Some((identity, held)) = parse(line)
            && files.contains(&identity)
        {
            visit(held);
        }
    }
}

/// Calls `visit` with the locks on `files` that /proc tells of one process' descriptors, as far as
/// this process may look at them.
fn each_lock_of(pid: u32, files: &[[u64; 2]], visit: &mut impl FnMut(FileLock)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open(alloc::format!("/proc/{pid}/fd").as_str(), flags, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_one = || statat(&directory, name, AtFlags::empty()).is_ok_and(|stat| files.contains(&[stat.st_dev, stat.st_ino]));
        if name.to_bytes().first().is_some_and(u8::is_ascii_digit) && is_one() {
            let number = name.to_string_lossy();
            let text = proc_file::read(&alloc::format!("/proc/{pid}/fdinfo/{number}"));
            let lines = text.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"lock:"));
            lines.filter_map(parse).for_each(|(_, held)| visit(held));
        }
    }
}

/// Returns pairs of processes of which the first waits in the kernel for a lock of the second
/// (fcntl(2) F_SETLKW). In the text of `/proc/locks` a request that waits stands below what it waits
/// for, further to the right: `1: -> POSIX ADVISORY WRITE 5678 00:13:11254 0 EOF`.
fn waits_in_kernel(text: &[u8]) -> Vec<(u32, u32)> {
    let mut waits = Vec::new();
    // The lines above for which the next one may wait: how far to the right each begins, and its
    // process.
    let mut above: Vec<(usize, u32)> = Vec::new();
    for line in text.split(|&byte| byte == b'\n').filter_map(|line| core::str::from_utf8(line).ok()) {
        let Some((_, lock)) = line.split_once(':') else { continue };
        let (indent, lock) = lock.split_once("->").map_or((0, lock), |(before, lock)| (before.len() + 1, lock));
        let mut words = lock.split_ascii_whitespace();
        above.retain(|&(other, _)| other < indent);
        if words.next() != Some("POSIX") {
            continue;
        }
        let Some(process) = words.nth(2).and_then(|word| word.parse().ok()) else { continue };
        if let Some(&(_, holder)) = above.last() {
            waits.push((process, holder));
        }
        above.push((indent, process));
    }
    waits
}

/// Reads one line of `/proc/locks`, such as `2: OFDLCK ADVISORY READ -1 00:13:11254 0 EOF`. Returns
/// the file's device and inode number, and the lock. None for a request that waits, a lease and the
/// like.
fn parse(line: &[u8]) -> Option<([u64; 2], FileLock)> {
    let line = core::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace().skip(1);
    let kind = match words.next()? {
        "FLOCK" => LockKind::Flock,
        "POSIX" => LockKind::Process,
        "OFDLCK" => LockKind::Description,
        _ => return None,
    };
    let mode = words.nth(1)?;
    let process = words.next()?.parse().ok()?;
    let mut place = words.next()?.split(':');
    let (major, minor) = (hexadecimal(place.next()?)?, hexadecimal(place.next()?)?);
    let inode = place.next()?.parse().ok()?;
    let start = words.next()?.parse().ok()?;
    let last = match words.next()? {
        "EOF" => u64::MAX,
        last => last.parse().ok()?,
    };
    let lock = FileLock { kind, excludes: mode == "WRITE", process, start, last };
    Some(([makedev(major, minor), inode], lock))
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_stands_behind_what_it_waits_for() {
        let text = b"1: POSIX  ADVISORY  WRITE 100 00:13:1 0 0\n\
            1:  -> POSIX  ADVISORY  WRITE 200 00:13:1 0 0\n\
            1:   -> POSIX  ADVISORY  WRITE 300 00:13:1 0 0\n\
            1:  -> POSIX  ADVISORY  READ 400 00:13:1 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 500 00:13:1 0 EOF\n\
            2:  -> FLOCK  ADVISORY  WRITE 600 00:13:1 0 EOF\n\
            3: POSIX  ADVISORY  READ 700 00:13:2 0 EOF\n";
        assert_eq!(waits_in_kernel(text), [(200, 100), (300, 200), (400, 100)]);
        assert_eq!(waits_in_kernel(b""), []);
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let (file, lock) = parse(b"1: POSIX  ADVISORY  WRITE 3568 fd:00:2531452 100 199").unwrap();
        assert_eq!(file, [makedev(0xfd, 0), 2_531_452]);
        assert_eq!(lock, FileLock { kind: LockKind::Process, excludes: true, process: 3568, start: 100, last: 199 });
        let (file, lock) = parse(b"\t12: OFDLCK ADVISORY  READ  -1 00:13:11254 0 EOF").unwrap();
        assert_eq!(file, [makedev(0, 0x13), 11_254]);
        assert_eq!(lock, FileLock { kind: LockKind::Description, excludes: false, process: -1, start: 0, last: u64::MAX });
        assert_eq!(parse(b"2: FLOCK  ADVISORY  WRITE 0 00:05:1234 0 EOF").unwrap().1.kind, LockKind::Flock);
        for other in
            ["2: -> FLOCK  ADVISORY  WRITE 2 00:05:1234 0 EOF", "3: LEASE  ACTIVE    READ 1 08:01:5 0 EOF", "", "1: POSIX"]
        {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn who_excludes_whom() {
        let lock = |kind, excludes, process, start, last| FileLock { kind, excludes, process, start, last };
        let wanted = lock(LockKind::Process, true, 7, 10, 19);
        for (held, conflict) in [
            (lock(LockKind::Process, true, 8, 19, 30), true),
            (lock(LockKind::Process, false, 8, 0, 10), true),
            (lock(LockKind::Process, true, 7, 10, 19), false),
            (lock(LockKind::Process, true, 8, 20, 30), false),
            (lock(LockKind::Description, true, -1, 0, u64::MAX), true),
            (lock(LockKind::Flock, true, 8, 0, u64::MAX), false),
        ] {
            assert_eq!(wanted.conflicts_with(&held), conflict, "{held:?}");
        }
        let shared = FileLock { excludes: false, ..wanted };
        assert!(!shared.conflicts_with(&lock(LockKind::Description, false, -1, 0, u64::MAX)));
    }

    #[test]
    fn a_lock_of_a_dead_process_is_found_in_a_description() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = fstat(file.as_file()).unwrap();
        sys::rustix::fs::flock(file.as_file(), sys::rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut found = Vec::new();
        each_lock_of(std::process::id(), &[[stat.st_dev, stat.st_ino]], &mut |lock| found.push(lock));
        assert!(found.iter().any(|lock| lock.kind == LockKind::Flock && lock.excludes), "{found:?}");
    }
}
