//! One file of the array as this process has it open.

use crate::files::{Files, Told};
use crate::shared_copy::CopyView;
use alloc::vec::Vec;
use array::Striper;
use array::{FileEntry, SharedFile};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use dax::{Backing, PersistenceDomain};
use format::{Attribute, InodeRecord};
use layout::Geometry;
use medium::Medium;
use sys::rustix::fs::{Timespec, Timestamps, UTIME_OMIT, fsync, futimens};
use sys::rustix::io::retry_on_intr;
use sys::{BorrowedFd, OsError};
use units::{MemberSet, Slot};

/// A file. Shared by all descriptors of this process on it.
pub struct Inode {
    pub(crate) files: &'static Files,
    pub(crate) number: u64,
    pub(crate) generation: u64,
    pub(crate) geometry: Geometry,
    /// By slot; None where the member is out.
    pub(crate) backing: Vec<Option<Backing>>,
    /// The members whose backing files are not open here.
    absent: MemberSet,
    pub(crate) entry: FileEntry,
    shared: &'static SharedFile,
    pub(crate) writable: bool,
    /// The state of members and names when the backing files were opened (`Runtime::epochs`).
    pub(crate) opened_in: Option<[u64; 2]>,
    /// Whether the backing files may stay open when the program has closed the file.
    pub(crate) may_stay: AtomicBool,
    /// The allocation epoch that this process' knowledge of allocated space belongs to.
    pub(crate) allocation_epoch: AtomicU32,
    pub(crate) copy_view: CopyView,
    /// Whether this process has asked for locks of its own (fcntl(2) F_SETLK) on the file.
    pub(crate) has_process_locks: AtomicBool,
}

/// What tells one file from every other that ever had its number, in one word: also the key in the runtime segment.
/// Never 0.
#[must_use]
pub fn key(number: u64, generation: u64) -> u64 {
    number << 24 | generation & 0xff_ffff
}

/// The inode number in a [`key`].
pub(crate) const fn number_of(key: u64) -> u64 {
    key >> 24
}

impl Inode {
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
            backing,
            entry,
            shared: files.array().runtime().file(entry),
            writable,
            opened_in,
            may_stay: AtomicBool::new(false),
            allocation_epoch: AtomicU32::new(0),
            copy_view: CopyView::new(),
            has_process_locks: AtomicBool::new(false),
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

    /// What its backing files carry.
    #[must_use]
    pub const fn attribute(&self) -> Attribute {
        Attribute { inode: self.number, generation: self.generation }
    }

    /// The descriptors of the backing files of the members in use.
    pub fn backing_fds(&self) -> impl Iterator<Item = (Slot, BorrowedFd<'_>)> {
        self.in_use().map(|(slot, backing)| (slot, backing.fd()))
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

    /// Runs `act` alone among all processes that share an offset of this file.
    pub fn with_shared_position<T>(&self, act: impl FnOnce() -> T) -> T {
        self.files.array().runtime().with_lock(&self.shared().position_lock, |_| act())
    }

    /// How often status flags of descriptions of this file were changed that processes share.
    #[inline]
    #[must_use]
    pub fn status_changes(&self) -> &AtomicU32 {
        &self.shared().status_changes
    }

    /// The members whose backing files cannot be used: out of use, not open here, or cut by the file's owner.
    #[inline]
    pub(crate) fn out(&self) -> MemberSet {
        self.files.array().runtime().out().union(self.absent).union(self.left_out())
    }

    #[inline]
    pub(crate) fn striper(&self, out: MemberSet) -> Striper<'_, Backing> {
        Striper { geometry: &self.geometry, members: &self.backing, out, kernels: self.files.kernels(), undo: None }
    }

    /// The backing files of the members in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (Slot, &Backing)> {
        let out = self.out();
        self.backing
            .iter()
            .enumerate()
            .filter(move |(slot, _)| !out.contains(*slot))
            .filter_map(|(slot, backing)| backing.as_ref().map(|backing| (slot, backing)))
    }

    /// Space taken on all members, in units of 512 bytes (stat(2)).
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.in_use().filter_map(|(_, backing)| sys::rustix::fs::fstat(backing.fd()).ok()).map(|stat| stat.st_blocks as u64).sum()
    }

    /// Notes that the file was written now; the members' mtime follows at the latest when the last process closes it.
    #[inline]
    pub(crate) fn touch(&self) {
        // The clock moves every few milliseconds; storing the same again would take the line from every other thread.
        let (modified_ns, now_ns) = (&self.shared().modified_ns, sys::clock::realtime_coarse_ns());
        if modified_ns.load(Ordering::Relaxed) != now_ns {
            modified_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Gives the members the time of the last write.
    pub fn flush_times(&self) {
        let modified_ns = self.shared().modified_ns.swap(0, Ordering::AcqRel);
        if modified_ns == 0 {
            return;
        }
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: (modified_ns / 1_000_000_000) as i64,
                tv_nsec: (modified_ns % 1_000_000_000) as i64,
            },
        };
        for (_, backing) in self.in_use() {
            let _ = futimens(backing.fd(), &times);
        }
    }

    /// The time of the last write, if the members do not know it yet; ns since 1970.
    #[must_use]
    pub fn pending_modified_ns(&self) -> Option<u64> {
        Some(self.shared().modified_ns.load(Ordering::Acquire)).filter(|&ns| ns != 0)
    }

    /// What the array tells of the file.
    #[must_use]
    pub fn told(&self) -> Told {
        Told { size: self.settled_size(), modified_ns: self.pending_modified_ns(), identity: self.shared().anchors.identity() }
    }

    /// Forgets a pending time: the program has set another one.
    pub fn discard_pending_times(&self) {
        self.shared().modified_ns.store(0, Ordering::Release);
    }

    /// Makes data, size and times durable, as far as the members can (fsync(2)). Bytes stored by way of MAP_SYNC are durable already; that
    /// the backing file exists, how long it is and its attributes are in each member's journal, which only a system call commits.
    pub fn sync(&self) -> Result<(), OsError> {
        self.flush_times();
        self.settle_dead();
        let size = self.geometry.member_bytes(self.size());
        for (slot, backing) in self.in_use() {
            let kept = backing.domain() != PersistenceDomain::Volatile;
            if backing.persist(0, size).and_then(|()| if kept { retry_on_intr(|| fsync(backing.fd())) } else { Ok(()) }).is_err()
            {
                self.files.array().fail_member(slot)?;
            }
        }
        self.files.array().before_change()?;
        self.files.table().persist(self.files.array(), self.number)
    }
}
