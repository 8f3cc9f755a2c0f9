//! One file of the array as this process has it open.

use crate::copy_view::CopyView;
use crate::files::Files;
use crate::nameless::Name;
use crate::told::Told;
use alloc::vec::Vec;
use array::Striper;
pub(crate) use array::runtime::TICK_NS;
use array::{FileEntry, SharedFile};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use dax::{Backing, Held, PersistenceDomain};
use format::{Attribute, InodeRecord};
use layout::Geometry;
use sys::rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens};
use sys::{BorrowedFd, OsError};
use units::{MemberSet, Slot};

/// A file of the array that is open in this process. All descriptors of the process on the file share
/// one of these.
pub struct Inode {
    pub(crate) files: &'static Files,
    pub(crate) number: u64,
    pub(crate) generation: u64,
    pub(crate) geometry: Geometry,
    /// The backing files by slot; None where the member is out.
    pub(crate) backing: Vec<Option<Backing>>,
    /// The members whose backing files are not open here.
    absent: MemberSet,
    /// Whether the blocks of the backing files have sums.
    pub(crate) has_sums: bool,
    pub(crate) entry: FileEntry,
    shared: &'static SharedFile,
    pub(crate) writable: bool,
    /// The state of members and names when the backing files were opened (`Runtime::epochs`).
    pub(crate) opened_in: Option<[u64; 2]>,
    /// Whether the backing files may stay open when the program has closed the file.
    pub(crate) may_stay: AtomicBool,
    /// The allocation epoch that this process' knowledge of allocated space belongs to.
    pub(crate) allocation_epoch: AtomicU32,
    /// Whether the backing files were told that the file may have holes.
    minds_holes: AtomicBool,
    pub(crate) copy_view: CopyView,
    /// The members, as a [`MemberSet`], on whose backing files this process may have process locks
    /// (fcntl(2) F_SETLK).
    pub(crate) process_locks_on: AtomicU32,
    /// Those members of `process_locks_on` on which a process lock is safe: no thread has a fetched
    /// descriptor of the backing file any more, whose closing would end the process' locks.
    pub(crate) settled_for_locks: AtomicU32,
    /// The pending time of the last write (see [`pending`]) when the kernel last heard of a read by
    /// this process; a number that is none before that.
    pub(crate) access_heard: AtomicU64,
    /// When this process gave the members the time of a write, ns since 1970.
    times_given_ns: AtomicU64,
    /// How many times this process has let a small file grow.
    pub(crate) growths: AtomicU32,
    /// The last rotten block that a read of this process met and put into the log of events; 0 if
    /// there was none.
    pub(crate) rot_told: AtomicU64,
}

/// Returns the word that tells a file from every other that ever had the same inode number. The
/// runtime segment knows the file by it. Never 0.
#[must_use]
pub fn key(number: u64, generation: u64) -> u64 {
    number << 24 | generation & 0xff_ffff
}

/// The inode number in a [`key`].
pub(crate) const fn number_of(key: u64) -> u64 {
    key >> 24
}

/// A bit of a pending time (`SharedFile::modified_ns`), which is the time of the last write as long
/// as the members do not have it as their mtime. The bit says that somebody was told the time, so
/// it must not become a later one.
const TOLD: u64 = 1 << 63;

/// The longest that volatile members do not hear of a synced write after they heard of another one. The
/// kernel's clock stands still for as long, so the kernel may give both writes the same time.
const TIME_WAITS_NS: u64 = TICK_NS;

/// Returns a pending time without the bit [`TOLD`].
const fn pending(ns: u64) -> u64 {
    ns & !TOLD
}

/// Returns the time of the last write if the members do not have it yet, in ns since 1970, and
/// marks it as told: it does not change until the next write.
pub(crate) fn tell_pending(shared: &SharedFile) -> Option<u64> {
    let modified_ns = shared.modified_ns.load(Ordering::Acquire);
    if modified_ns == 0 {
        return None;
    }
    if modified_ns & TOLD == 0 {
        // If the word has changed meanwhile, the time was told a moment before the change.
        let _ = shared.modified_ns.compare_exchange(modified_ns, modified_ns | TOLD, Ordering::AcqRel, Ordering::Relaxed);
    }
    Some(pending(modified_ns))
}

/// The time of modification that is given to all backing files of a file, one after the other.
pub(crate) struct Modification(Cell<Option<Timespec>>);

impl Modification {
    /// `time` is None for the present. The kernel says what the present is at the first backing file,
    /// and the others get the same time.
    pub(crate) const fn new(time: Option<Timespec>) -> Self {
        Self(Cell::new(time))
    }

    /// Only the file's owner may choose a time, or set this one alone (EPERM). Who may write may set
    /// both times of a file to the present. That is done for anybody else: the time that stands there
    /// could be that of an earlier write, and a program that compares times would miss this one.
    pub(crate) fn set(&self, backing: &Backing) {
        let Ok(fd) = backing.fd() else { return };
        let [omitted, present] = [UTIME_OMIT, UTIME_NOW].map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        let set = |last_access, last_modification| futimens(&fd, &Timestamps { last_access, last_modification });
        let chosen = self.0.get();
        let done = set(omitted, chosen.unwrap_or(present));
        if done == Err(OsError::PERM) {
            let _ = set(present, present);
        } else if done.is_ok()
            && chosen.is_none()
            && let Ok(stat) = fstat(&fd)
        {
            self.0.set(Some(Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 }));
        }
    }
}

impl Inode {
    /// Tells whether the kernel has to hear that this process reads the file, so that it can keep the
    /// time of access. It has not heard of a read since the file was opened, or last written.
    #[inline]
    #[must_use]
    pub fn access_is_unheard(&self) -> bool {
        pending(self.shared().modified_ns.load(Ordering::Relaxed)) != self.access_heard.load(Ordering::Relaxed)
    }

    /// Notes what a member says of the file's times, in ns since 1970. If both are the same and a
    /// little later than the pending time, the last write has made the backing file grow, and the
    /// kernel has set both times then. The pending time becomes that time, unless it was told.
    pub fn note_times(&self, modified_ns: u64, changed_ns: u64) {
        let word = &self.shared().modified_ns;
        let known = word.load(Ordering::Acquire);
        let is_later = modified_ns > pending(known) && modified_ns - pending(known) <= TICK_NS;
        if known != 0 && known & TOLD == 0 && modified_ns == changed_ns && is_later {
            let _ = word.compare_exchange(known, modified_ns, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel hears of a read by this process.
    pub(crate) fn note_access_heard(&self) {
        self.access_heard.store(pending(self.shared().modified_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    pub(crate) fn new(
        files: &'static Files,
        number: u64,
        record: &InodeRecord,
        backing: Vec<Option<Backing>>,
        entry: FileEntry,
        writable: bool,
        opened_in: Option<[u64; 2]>,
    ) -> Self {
        Self {
            files,
            number,
            generation: record.generation,
            geometry: record.geometry(),
            absent: array::absent(&backing),
            has_sums: files.has_sums(&record.geometry()),
            backing,
            entry,
            shared: files.array().runtime().file(entry),
            writable,
            opened_in,
            may_stay: AtomicBool::new(false),
            allocation_epoch: AtomicU32::new(0),
            minds_holes: AtomicBool::new(false),
            copy_view: CopyView::new(),
            process_locks_on: AtomicU32::new(0),
            settled_for_locks: AtomicU32::new(0),
            access_heard: AtomicU64::new(u64::MAX),
            times_given_ns: AtomicU64::new(0),
            growths: AtomicU32::new(0),
            rot_told: AtomicU64::new(0),
        }
    }

    /// What all processes share of this file.
    #[inline]
    pub(crate) const fn shared(&self) -> &'static SharedFile {
        self.shared
    }

    /// The inode number in the array's table.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the attribute that the file's backing files carry.
    #[must_use]
    pub const fn attribute(&self) -> Attribute {
        Attribute { inode: self.number, generation: self.generation }
    }

    /// Returns the backing file on a member, if the member is in use for this file.
    #[must_use]
    pub fn backing_on(&self, slot: Slot) -> Option<&Backing> {
        self.in_use().find(|&(found, _)| found == slot).map(|(_, backing)| backing)
    }

    /// Returns a descriptor that knows what happens to the file: that of the backing file on the
    /// lowest member, or `fd`, a descriptor of a program, if it lies on that backing file, too.
    ///
    /// # Errors
    /// Those of [`Backing::fd`].
    pub fn current<'a>(&'a self, fd: BorrowedFd<'a>) -> Result<Held<'a>, OsError> {
        match self.in_use().next() {
            // If no member has come or gone, the program's descriptor lies on that backing file.
            Some((_, backing)) if !backing.is_parked() || !self.out().is_empty() || self.has_locks_apart() => backing.fd(),
            _ => Ok(Held::borrowed(fd)),
        }
    }

    /// The logical size in bytes.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shared().size()
    }

    /// Level, members and chunk.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether this process may store into the backing files.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Runs `act` while no other process uses an offset of this file that processes share.
    pub fn with_shared_position<T>(&self, act: impl FnOnce() -> T) -> T {
        self.files.array().runtime().with_lock(&self.shared().position_lock, |_| act())
    }

    /// How often a process has changed the status flags (F_SETFL) of a description of this file that
    /// other processes share.
    #[inline]
    #[must_use]
    pub fn status_changes(&self) -> &AtomicU32 {
        &self.shared().status_changes
    }

    /// The members whose backing files cannot be used: those that are out, those whose backing file is
    /// not open here or was cut by the file's owner, and those that joined while the file was open.
    /// The members that are out are asked for first: a member that joins is left out of the open files
    /// before it comes into use, so one of the two answers has it.
    #[inline]
    pub(crate) fn out(&self) -> MemberSet {
        self.files.array().runtime().out().union(self.absent).union(self.left_out())
    }

    #[inline]
    pub(crate) fn striper(&self, out: MemberSet) -> Striper<'_, Backing> {
        if self.has_holes() {
            self.mind_holes();
        }
        let (geometry, kernels, reading) = (&self.geometry, self.files.kernels(), self.files.array().runtime().reading());
        let sums = self.summing();
        Striper { geometry, members: &self.backing, out, turn: self.number, reading, kernels, undo: None, sums }
    }

    /// Sees to it that what this process reads of the file moves no time of access of its own accord: a
    /// program has it open with O_NOATIME.
    pub fn keep_access_time(&self) {
        self.backing.iter().flatten().for_each(Backing::keep_access_time);
    }

    /// Sees to it that loads take no space for holes: a user who may only read could fill the
    /// members.
    #[inline(never)]
    pub(crate) fn mind_holes(&self) {
        if !self.minds_holes.load(Ordering::Relaxed) {
            self.backing.iter().flatten().for_each(Backing::mind_holes);
            self.minds_holes.store(true, Ordering::Relaxed);
        }
        // Ranges that this process knows to have space may be holes by now.
        self.refresh_allocations();
    }

    /// The backing files of the members in use. The first one is that of the lowest member, on which
    /// the programs' descriptors lie.
    pub fn in_use(&self) -> impl Iterator<Item = (Slot, &Backing)> {
        let members = MemberSet::first(self.backing.len()).minus(self.out());
        self.files.array().in_order(members).filter_map(|slot| self.backing[slot].as_ref().map(|backing| (slot, backing)))
    }

    /// The members that are in use for this file and whose backing file this process does not have
    /// open. Such a member joined after the process had opened the backing files, and before the
    /// process entered the file in the runtime segment.
    #[inline]
    pub(crate) fn missed(&self) -> MemberSet {
        if self.absent.is_empty() {
            return MemberSet::EMPTY;
        }
        let runtime = self.files.array().runtime();
        let lacking = self.absent.minus(runtime.out()).minus(self.left_out());
        lacking.minus(lacking.minus(runtime.joined()))
    }

    /// Space taken on all members, in units of 512 bytes (stat(2)).
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.in_use().filter_map(|(_, backing)| backing.fd().and_then(fstat).ok()).map(|stat| stat.st_blocks as u64).sum()
    }

    /// Returns the time of what happens now, ns since 1970.
    #[inline]
    fn stamp_ns(&self) -> u64 {
        self.files.array().runtime().not_before_told(sys::clock::realtime_coarse_ns())
    }

    /// Notes that the file was written now; the members' mtime follows at the latest when the last
    /// process closes it.
    #[inline]
    pub(crate) fn touch(&self) {
        // The clock moves every few milliseconds. To store the same time again would take the cache
        // line from every other thread.
        let (modified_ns, now_ns) = (&self.shared().modified_ns, pending(self.stamp_ns()));
        // Whoever was told the time was told of an earlier write, so the mark goes.
        if modified_ns.load(Ordering::Relaxed) != now_ns {
            modified_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Gives the members the time of the last write. Returns whether they got the present instead.
    /// They get it if nobody was told the time and the kernel's clock has hardly moved since: then
    /// the kernel sets mtime and ctime to one time, as after a write by the kernel.
    pub fn flush_times(&self) -> bool {
        let modified_ns = self.shared().modified_ns.swap(0, Ordering::AcqRel);
        if modified_ns == 0 {
            return false;
        }
        let (is_told, modified_ns) = (modified_ns & TOLD != 0, pending(modified_ns));
        let now_ns = self.stamp_ns();
        self.times_given_ns.store(now_ns, Ordering::Relaxed);
        let is_present = !is_told && now_ns.abs_diff(modified_ns) <= TICK_NS;
        let time = Timespec { tv_sec: (modified_ns / 1_000_000_000) as i64, tv_nsec: (modified_ns % 1_000_000_000) as i64 };
        let modification = Modification::new(if is_present { None } else { Some(time) });
        for (_, backing) in self.in_use() {
            modification.set(backing);
        }
        if let (true, Some(given)) = (is_present, modification.0.get()) {
            // The kernel has chosen it, and stamps no file by an earlier one from now on.
            self.files.array().runtime().note_told_time(given.tv_sec as u64 * 1_000_000_000 + given.tv_nsec as u64);
        }
        is_present
    }

    /// Gives the file what closing it would, and keeps it open. A file that other processes have open
    /// too is theirs to care for.
    pub(crate) fn settle(&self) {
        let is_present = self.flush_times();
        if self.name() == Name::Has && self.shared().users.load(Ordering::Acquire) == 1 {
            let _ = self.with_size_locked(|_| self.lock_all_stripes().map(|_held| self.trim(is_present)));
        }
    }

    /// Returns the time of the last write if the members do not have it yet, in ns since 1970, and
    /// marks it as told.
    #[must_use]
    pub fn pending_modified_ns(&self) -> Option<u64> {
        tell_pending(self.shared())
    }

    /// Returns what programs are told of the file (stat(2)) that its backing files do not say.
    #[must_use]
    pub fn told(&self) -> Told {
        Told {
            size: self.settled_size(),
            modified_ns: self.pending_modified_ns(),
            identity: self.shared().anchors.identity(),
            data_columns: self.geometry.data_columns() as u64,
        }
    }

    /// Forgets a pending time: the program has set another one.
    pub fn discard_pending_times(&self) {
        self.access_heard.store(u64::MAX, Ordering::Relaxed);
        self.shared().modified_ns.store(0, Ordering::Release);
    }

    /// Tells whether the time of the last write may wait at an fsync: no member keeps anything, and the
    /// members were given a time a moment ago. A program that syncs each of its writes would pay more
    /// for the times than for the bytes otherwise: 3.5 µs where the write takes 0.5.
    fn time_may_wait(&self) -> bool {
        let given_ns = self.times_given_ns.load(Ordering::Relaxed);
        let is_recent = sys::clock::realtime_coarse_ns().wrapping_sub(given_ns) < TIME_WAITS_NS;
        is_recent && self.in_use().all(|(_, backing)| backing.domain() == PersistenceDomain::Volatile)
    }

    /// Makes data, size and times durable, as far as the members can (fsync(2)). Bytes stored by way
    /// of MAP_SYNC are durable already. But that a backing file exists, its length and its attributes
    /// are in the journal of the member's file system, which only a system call commits.
    pub fn sync(&self) -> Result<(), OsError> {
        if !self.time_may_wait() {
            self.flush_times();
        }
        self.settle_dead();
        for (slot, backing) in self.in_use() {
            self.files.array().after_call(slot, backing.persist_whole())?;
        }
        self.files.array().before_change()?;
        self.files.table().persist(self.files.array(), self.number)?;
        // The file may do without a member that the array has in use.
        let holding = self.in_use().map(|(slot, _)| slot).collect();
        self.files.array().require_backing(holding)
    }
}
