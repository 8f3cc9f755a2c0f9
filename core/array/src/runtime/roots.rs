//! The roots of members, remembered beyond the loss of a member.
//!
//! A program's descriptors and its working directory are objects in the tree of the lowest member
//! in use. When that member is lost, perhaps because its directory was renamed or another file
//! system lies over it, processes that start afterwards cannot open its root, and yet inherit such
//! objects. They recognise these objects by the root's device and inode number, which the segment
//! keeps.
//!
//! The segment also keeps which directory each member was in the use of the array that goes on, or
//! that ended when its last process was killed. A copy of such a directory, made in that use and
//! put in its place, has the same superblock and lacks what was stored since. By this it is told
//! apart for as long as the machine runs.

use super::{MAGIC, Runtime, Segment, VERSION, find_segment};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use format::{Access, Uuid};
use sys::rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags, statx};
use sys::rustix::io::pread;
use sys::{AsFd, BorrowedFd};
use units::{MEMBER_COUNT_MAX, Slot};

/// How many roots are remembered: twice as many as an array can have members. When members were
/// replaced so often that there are more, the oldest root is forgotten.
const ROOT_COUNT: usize = 64;

/// The device and inode numbers of the roots. Whoever holds the segment's file lock writes them,
/// and anybody reads them.
pub(super) struct Roots {
    /// How many were ever noted.
    count: AtomicU32,
    identities: [[AtomicU64; 2]; ROOT_COUNT],
}

/// The directory that a member is, whatever path or mount leads to it: a number made of the inode
/// numbers of its root and of its `.cxlraid`, and of the times when these were made. 0 says that it
/// is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Directory(u64);

impl Directory {
    /// The directory with this root and this `.cxlraid`.
    #[must_use]
    pub(crate) fn of(root: impl AsFd, meta: impl AsFd) -> Self {
        let parts = [root.as_fd(), meta.as_fd()].map(Self::parts_of);
        if parts.iter().any(Option::is_none) {
            return Self::default();
        }
        // FNV-1a, by words.
        let add = |sum: u64, part: u64| (sum ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        Self(parts.into_iter().flatten().flatten().fold(0xcbf2_9ce4_8422_2325, add).max(1))
    }

    fn parts_of(fd: BorrowedFd<'_>) -> Option<[u64; 3]> {
        let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME).ok()?;
        // A file system that does not keep this time gives 0.
        Some([found.stx_ino, found.stx_btime.tv_sec as u64, found.stx_btime.tv_nsec.into()])
    }

    /// Whether this directory and the other are both known, and are not the same.
    #[must_use]
    pub(crate) const fn differs_from(self, other: Self) -> bool {
        self.is_known() && other.is_known() && self.0 != other.0
    }

    /// Whether it is known which directory this is.
    #[must_use]
    pub(crate) const fn is_known(self) -> bool {
        self.0 != 0
    }
}

/// The directories that the members were, by slot, in the use of an array that has this mark
/// ([`format::Superblock::use_count`]) and did not end in order, or goes on. None if the machine
/// was started since, or the segment knows of another use, or this user may not use the array.
/// Nothing in it is locked, and its processes may belong to another PID namespace.
pub(crate) fn directories_in_use(uuid: Uuid, access: Access, use_count: u64) -> Option<[Directory; MEMBER_COUNT_MAX]> {
    let path = find_segment(uuid, access)?;
    let file =
        fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty()).ok()?;
    let [magic, version] = words_at(&file, offset_of!(Segment, magic))?;
    let [found, directories @ ..]: [u64; 1 + MEMBER_COUNT_MAX] = words_at(&file, offset_of!(Segment, directories))?;
    // The version is the lower half of its word.
    let is_ours = magic == MAGIC && version as u32 == VERSION;
    let is_of_use = use_count != 0 && found == use_count;
    (is_ours && is_of_use).then(|| directories.map(Directory))
}

/// Words of a file from an offset on, in bytes. None if the file is shorter, or cannot be read.
fn words_at<const COUNT: usize>(file: impl AsFd, offset: usize) -> Option<[u64; COUNT]> {
    let mut words = [[0; size_of::<u64>()]; COUNT];
    let count = pread(file, words.as_flattened_mut(), offset as u64).ok()?;
    (count == size_of_val(&words)).then(|| words.map(u64::from_ne_bytes))
}

/// Which directory each member is in a use of the array. [`directories_in_use`] reads these words
/// in this order.
#[repr(C)]
pub(super) struct Directories {
    /// The mark of that use. An orderly end gives the array another mark, so that these are past.
    use_count: AtomicU64,
    /// A [`Directory`] each.
    by_slot: [AtomicU64; MEMBER_COUNT_MAX],
}

impl Runtime {
    /// Notes which directories members are, before the use of the array is put on record.
    pub(crate) fn note_directories(&self, directories: impl Iterator<Item = (Slot, Directory)>) {
        let known = &self.segment().directories;
        known.use_count.store(0, Ordering::SeqCst);
        known.by_slot.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        directories.for_each(|(slot, directory)| self.note_directory(slot, directory));
    }

    /// Notes that the use of the array is on record in which the members are the directories noted.
    pub(crate) fn end_noting_directories(&self) {
        self.segment().directories.use_count.store(self.use_count(), Ordering::SeqCst);
    }

    /// Notes which directory a member is in this use of the array.
    pub(crate) fn note_directory(&self, slot: Slot, directory: Directory) {
        if let Some(word) = self.segment().directories.by_slot.get(slot) {
            word.store(directory.0, Ordering::SeqCst);
        }
    }

    /// The directory that a member is in this use of the array.
    pub(crate) fn directory(&self, slot: Slot) -> Directory {
        let known = &self.segment().directories;
        let is_of_this_use = known.use_count.load(Ordering::SeqCst) == self.use_count();
        let word = known.by_slot.get(slot).filter(|_| is_of_this_use);
        word.map_or_else(Directory::default, |word| Directory(word.load(Ordering::SeqCst)))
    }

    /// Notes the root of a member in use, by device and inode number. The segment's file lock is
    /// held: see [`Runtime::open`].
    pub fn note_root(&self, device: u64, inode: u64) {
        let roots = &self.segment().roots;
        if self.is_root(device, inode) {
            return;
        }
        let count = roots.count.load(Ordering::Relaxed);
        let entry = &roots.identities[count as usize % ROOT_COUNT];
        // Half an entry must match nothing: no inode has number 0.
        entry[1].store(0, Ordering::Release);
        entry[0].store(device, Ordering::Release);
        entry[1].store(inode, Ordering::Release);
        roots.count.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Whether the directory with this device and inode number is, or was, the root of a member.
    #[must_use]
    pub fn is_root(&self, device: u64, inode: u64) -> bool {
        let identities = &self.segment().roots.identities;
        inode != 0
            && identities
                .iter()
                .any(|entry| entry[1].load(Ordering::Acquire) == inode && entry[0].load(Ordering::Acquire) == device)
    }

    /// Tells whether the root of a member is, or was, on the device with this number.
    #[must_use]
    pub fn has_root_on(&self, device: u64) -> bool {
        let is_on_it =
            |entry: &[AtomicU64; 2]| entry[1].load(Ordering::Acquire) != 0 && entry[0].load(Ordering::Acquire) == device;
        self.segment().roots.identities.iter().any(is_on_it)
    }

    /// How many directories were roots of members since the segment was made.
    #[must_use]
    pub fn root_count(&self) -> usize {
        self.segment().roots.count.load(Ordering::Acquire) as usize
    }
}
