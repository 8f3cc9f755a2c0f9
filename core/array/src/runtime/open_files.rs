//! Files that processes have open, in the runtime segment: one entry per file, found by its key. It
//! counts the processes that have the file open and those that only keep its backing files ready.

use super::attach::slot_of;
use super::{Anchors, OPEN_FILE_COUNT, OPEN_WORDS, Runtime, STRIPE_LOCK_COUNT};
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::{OwnedLock, StripeLock};

/// Files that all processes together keep so: the entries of the others are for files that are
/// open.
const IDLE_COUNT_ALL: u32 = OPEN_FILE_COUNT as u32 / 4;
/// Where an open file may lie after the place its number hashes to.
const PROBE_COUNT: usize = 64;

/// What all processes share of one open file. All zeros: nobody has it open.
#[repr(C, align(64))]
pub struct SharedFile {
    /// Processes that have it open.
    pub users: AtomicU32,
    /// Held while the size or the allocation changes.
    pub size_lock: OwnedLock,
    /// Held by read() and write() while they use an offset that processes share.
    pub position_lock: OwnedLock,
    /// Raised when space is given back: what a process believed to be allocated may be a hole.
    pub allocation_epoch: AtomicU32,
    /// Backing bytes from the end of the file's data to here are allocated, on every member in use.
    pub allocated_end: AtomicU64,
    /// Time of the last write that is not yet in the members' mtime, ns since 1970; 0 for none.
    pub modified_ns: AtomicU64,
    /// The file's logical size in bytes; as in the inode table, kept here so that reading it cannot
    /// fault.
    pub size: AtomicU64,
    /// The record's flags (`format::InodeFlags`).
    pub flags: AtomicU32,
    /// The members that count as out for this file alone, as bits: its owner has cut its backing
    /// files there.
    pub cut: AtomicU32,
    /// The members that count as out for this file alone until the last process has closed it, as
    /// bits: they joined while it was open, and processes have backing files of it on the others
    /// only.
    pub without: AtomicU32,
    /// The members whose bytes of this file are being made anew, as bits, or were when that failed:
    /// mappings do not show them. Set before the members are taken out of [`Self::cut`], and 0
    /// again when their bytes are there.
    pub anew: AtomicU32,
    /// Whether the file is known to give no privileges to whoever executes it; see core/file's
    /// `privileges`.
    pub privileges: AtomicU32,
    /// 1 once the last name is gone.
    pub unlinked: AtomicU32,
    /// How many processes have writable mappings of it, or died with them and were not followed
    /// yet: see [`crate::mapped`].
    pub mapped: AtomicU32,
    /// How many processes have mappings of it of any kind, at most: each hears when something
    /// happens to the file.
    pub shown: AtomicU32,
    /// How many processes let the kernel keep pages of it that programs may store to:
    /// [`super::caching`].
    pub cached: AtomicU32,
    /// Not 0 while bytes of the file wait for resync, as the inode table tells; 2 if only for a
    /// member that is away.
    pub resync_waits: AtomicU32,
    /// 1 while what lies behind the end of the file may be something else than zeros: a process
    /// died while the file grew or shrank.
    pub tail_unfinished: AtomicU32,
    /// Processes that keep its backing files open although they have closed it: whoever removes the
    /// file must cut them, and the kernel does not execute them (ETXTBSY).
    pub idle: AtomicU32,
    /// Descriptors without a name that were sent to another process and not received yet; each
    /// counts among the users.
    pub in_flight: AtomicU32,
    /// The stripe locks, one bit each, behind which redundancy may not fit: inherited by a process
    /// that could not repair it.
    pub stripes_unfinished: AtomicU64,
    /// Raised when a process changes status flags (F_SETFL) of a description that others may share:
    /// they look at the kernel's then.
    pub status_changes: AtomicU32,
    /// Odd while mappings show a shared copy and not the members; another number for each copy.
    pub copy: AtomicU32,
    /// The last part of the name of the newest shared copy, drawn at random; 0 if there was none.
    pub copy_name: AtomicU64,
    /// Its inode number, on the file system of the segment.
    pub copy_inode: AtomicU64,
    /// 1 while somebody waits for all mappings to leave the members for a shared copy.
    pub copy_wanted: AtomicU32,
    /// Raised when processes with mappings are to look at the file now: see [`crate::mapped`].
    pub calls: AtomicU32,
    /// The number of the copy that all mappings of all processes have come to.
    pub gathered: AtomicU32,
    /// Which file was marked as changed without the members that were out, and when: see
    /// `array::changed`.
    pub change_noted: AtomicU64,
    /// What programs' descriptors lie on.
    pub anchors: Anchors,
    /// Held while a lock is asked for on a file whose descriptors lie on several backing files.
    pub locking_lock: OwnedLock,
    /// One for each lock block index modulo [`STRIPE_LOCK_COUNT`].
    pub stripes: [StripeLock; STRIPE_LOCK_COUNT],
}

impl SharedFile {
    /// The file's logical size in bytes, as far as a file can be that long.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire).min(i64::MAX as u64)
    }

    /// [`Self::allocated_end`], as far as a file can be that long.
    #[inline]
    pub fn allocated_end(&self) -> u64 {
        self.allocated_end.load(Ordering::Acquire).min(i64::MAX as u64)
    }

    /// Whether reads and writes must mind mappings: where their stores land, or a shared copy. A
    /// copy may outlive the last mapping by a moment, and somebody may begin to use it again in
    /// that moment; so it is minded as long as it exists.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapped.load(Ordering::Acquire) | self.copy.load(Ordering::Acquire) & 1 != 0
    }

    /// Whether copies of the file's bytes may differ where no writer is at work: what a process that
    /// died has left, or a crash, waits to be made good.
    #[inline(always)]
    pub fn is_unsettled(&self) -> bool {
        self.resync_waits.load(Ordering::Acquire) != 0 || self.stripes_unfinished.load(Ordering::Acquire) != 0
    }

    /// Whether nobody has the file open and no process died in the middle of a change of it.
    /// Otherwise the next one to open it must still learn of that.
    fn is_forgettable(&self) -> bool {
        let unlinked = self.unlinked.load(Ordering::Relaxed) != 0;
        let whole = self.tail_unfinished.load(Ordering::Relaxed) == 0
            && self.stripes_unfinished.load(Ordering::Relaxed) == 0
            && !self.is_mapped();
        let free = || self.size_lock.owner().is_none() && self.stripes.iter().all(|lock| lock.owner().is_none());
        let unused = self.users.load(Ordering::Acquire) == 0 && self.idle.load(Ordering::Acquire) == 0;
        unused && (unlinked || whole && free())
    }
}

/// The entry of an open file and where it lies.
#[derive(Clone, Copy)]
pub struct FileEntry {
    pub(super) index: usize,
    /// Whether no process had it open before.
    pub first: bool,
    /// The key of the file that was in this place before, if another was; what it left of mappings
    /// goes with it.
    pub replaced: Option<NonZeroU64>,
}

impl FileEntry {
    /// Whether both are the same place.
    #[must_use]
    pub const fn is_at(self, other: Self) -> bool {
        self.index == other.index
    }
}

impl Runtime {
    /// Finds or makes the entry of file `key` (never 0) and counts this process as a user. None if
    /// too many files are open. The caller holds the open-files lock and calls this once per
    /// process and file.
    pub fn enter_file(&self, key: u64) -> Option<FileEntry> {
        let segment = self.segment();
        let start = hash(key);
        let mut reusable = None;
        let mut found = None;
        for step in 0..PROBE_COUNT {
            let index = (start + step) % OPEN_FILE_COUNT;
            let present = segment.keys[index].load(Ordering::Acquire);
            if present == key {
                found = Some(index);
                break;
            }
            if reusable.is_none() && (present == 0 || segment.files[index].is_forgettable()) {
                reusable = Some(index);
            }
            if present == 0 {
                break;
            }
        }
        let index = found.or(reusable)?;
        let file = &segment.files[index];
        let first = file.users.load(Ordering::Acquire) == 0;
        if first {
            file.anchors.clear();
            file.privileges.store(0, Ordering::Release);
            file.without.store(0, Ordering::Release);
        }
        let mut replaced = None;
        if found.is_none() {
            replaced = NonZeroU64::new(segment.keys[index].load(Ordering::Relaxed));
            segment.used[index / 4096].fetch_or(1 << (index / 64 % 64), Ordering::Relaxed);
            segment.keys[index].store(key, Ordering::Release);
            file.modified_ns.store(0, Ordering::Relaxed);
            file.unlinked.store(0, Ordering::Relaxed);
            file.cut.store(0, Ordering::Relaxed);
            file.anew.store(0, Ordering::Relaxed);
            file.mapped.store(0, Ordering::Relaxed);
            file.shown.store(0, Ordering::Relaxed);
            file.cached.store(0, Ordering::Relaxed);
            // A copy of the file that was here before.
            file.copy.fetch_add(file.copy.load(Ordering::Relaxed) & 1, Ordering::Relaxed);
            file.copy_wanted.store(0, Ordering::Relaxed);
            file.calls.store(0, Ordering::Relaxed);
            file.tail_unfinished.store(0, Ordering::Relaxed);
            file.resync_waits.store(0, Ordering::Relaxed);
            file.in_flight.store(0, Ordering::Relaxed);
            file.stripes_unfinished.store(0, Ordering::Relaxed);
            file.change_noted.store(0, Ordering::Relaxed);
            file.allocation_epoch.fetch_add(1, Ordering::Relaxed);
        }
        file.users.fetch_add(1, Ordering::AcqRel);
        let slot = slot_of(self.me());
        segment.open_by_slot[slot][index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        Some(FileEntry { index, first, replaced })
    }

    /// The entry of a file that some process has open, without becoming a user.
    pub fn find_file(&self, key: u64) -> Option<&SharedFile> {
        let segment = self.segment();
        let start = hash(key);
        for step in 0..PROBE_COUNT {
            let index = (start + step) % OPEN_FILE_COUNT;
            match segment.keys[index].load(Ordering::Acquire) {
                0 => return None,
                present if present == key => return Some(&segment.files[index]),
                _ => {}
            }
        }
        None
    }

    /// The places of entries that may have been used, in ascending order.
    pub(super) fn used_entries(&self) -> impl Iterator<Item = usize> {
        let used = &self.segment().used;
        let is_used = |block: &usize| used[block / 64].load(Ordering::Relaxed) >> (block % 64) & 1 == 1;
        (0..OPEN_WORDS).filter(is_used).flat_map(|block| block * 64..(block + 1) * 64)
    }

    /// Every entry that may be that of a file.
    pub fn entered_files(&self) -> impl Iterator<Item = &SharedFile> {
        self.used_entries().map(|index| &self.segment().files[index])
    }

    /// The files that processes have open, or that are on their way to one: their keys, and what is
    /// shared of them. The caller holds the open-files lock.
    pub fn open_files(&self) -> impl Iterator<Item = (u64, &SharedFile)> {
        let segment = self.segment();
        let files = self.used_entries().map(|index| (segment.keys[index].load(Ordering::Acquire), &segment.files[index]));
        files.filter(|(key, file)| *key != 0 && file.users.load(Ordering::Acquire) != 0)
    }

    /// The key of an open file of which a descriptor lies on a backing file with this inode number,
    /// and this device number if that is known.
    #[must_use]
    pub fn file_with_anchor(&self, device: Option<u64>, inode: u64) -> Option<u64> {
        let segment = self.segment();
        let is_it =
            |[found_device, found_inode]: [u64; 2]| found_inode == inode && device.is_none_or(|device| found_device == device);
        self.used_entries().find_map(|index| {
            let (key, file) = (segment.keys[index].load(Ordering::Acquire), &segment.files[index]);
            (key != 0 && file.users.load(Ordering::Acquire) != 0 && file.anchors.all().any(is_it)).then_some(key)
        })
    }

    /// Where the entry of a file lies.
    pub(super) fn index_of(&self, file: &SharedFile) -> usize {
        let first = self.segment().files.as_ptr() as usize;
        (core::ptr::from_ref(file) as usize - first) / size_of::<SharedFile>()
    }

    /// Counts a user in advance: the child that is about to be forked. See [`Self::claim_file`].
    pub fn promise_file(&self, entry: FileEntry) {
        self.segment().files[entry.index].users.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes a promise this process' own: called in the child for every file its parent had open.
    pub fn claim_file(&self, entry: FileEntry) {
        let slot = slot_of(self.me());
        self.segment().open_by_slot[slot][entry.index / 64].fetch_or(1 << (entry.index % 64), Ordering::AcqRel);
    }

    /// Takes a promise back: the fork failed.
    pub fn withdraw_promise(&self, entry: FileEntry) {
        self.segment().files[entry.index].users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a descriptor that is on its way to another process as a user, until it is received.
    pub fn send_file(&self, entry: FileEntry) {
        self.promise_file(entry);
        self.segment().files[entry.index].in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// One has arrived, or was not sent after all. This process has the file open.
    pub fn receive_file(&self, entry: FileEntry) {
        let file = &self.segment().files[entry.index];
        let one_less = |count: u32| count.checked_sub(1);
        if file.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less).is_ok() {
            self.withdraw_promise(entry);
        }
    }

    /// Gives a file's entry back. Returns true if no process has it open any more. The caller holds
    /// the open-files lock.
    pub fn leave_file(&self, entry: FileEntry) -> bool {
        let segment = self.segment();
        let slot = slot_of(self.me());
        let bit = 1 << (entry.index % 64);
        if segment.open_by_slot[slot][entry.index / 64].fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return false;
        }
        segment.files[entry.index].users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    // --- files kept ready

    /// Notes at `place` (below [`IDLE_COUNT`]) that this process keeps a file's backing files open
    /// without having it open. False if that must not be, because too many are kept already. The
    /// caller holds the open-files lock and has given the entry back.
    pub fn begin_idle(&self, place: usize, entry: FileEntry) -> bool {
        let segment = self.segment();
        if segment.idle_count.fetch_add(1, Ordering::AcqRel) >= IDLE_COUNT_ALL {
            segment.idle_count.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        segment.idle_by_slot[slot_of(self.me())][place].store(entry.index as u32 + 1, Ordering::Release);
        segment.files[entry.index].idle.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Ends that. The caller has closed the backing files, or has entered the file again.
    pub fn end_idle(&self, place: usize) {
        self.end_idle_in(&self.segment().idle_by_slot[slot_of(self.me())][place]);
    }

    pub(super) fn end_idle_in(&self, place: &AtomicU32) {
        let Some(index) = place.swap(0, Ordering::AcqRel).checked_sub(1) else { return };
        let Some(file) = self.segment().files.get(index as usize) else { return };
        file.idle.fetch_sub(1, Ordering::AcqRel);
        self.segment().idle_count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Asks every process to let go of what it keeps when it next opens or closes a file.
    pub fn recall_idle(&self) {
        self.segment().idle_recalls.fetch_add(1, Ordering::AcqRel);
    }

    /// How often that was asked.
    pub fn idle_recalls(&self) -> u32 {
        self.segment().idle_recalls.load(Ordering::Acquire)
    }

    /// What is shared of an entered file.
    #[inline]
    pub fn file(&self, entry: FileEntry) -> &SharedFile {
        &self.segment().files[entry.index]
    }
}

fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % OPEN_FILE_COUNT
}
