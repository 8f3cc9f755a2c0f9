//! The roots of members, remembered beyond the loss of a member.
//!
//! A program's descriptors and its working directory are objects in the tree of the lowest member
//! in use. When that member is lost, perhaps because its directory was renamed or another file
//! system lies over it, processes that start afterwards cannot open its root, and yet inherit such
//! objects. They recognise these objects by the root's device and inode number, which the segment
//! keeps.

use super::Runtime;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many roots are remembered: twice as many as an array can have members. When members were replaced so often that there are more, the oldest root is
/// forgotten.
const ROOT_COUNT: usize = 64;

/// The device and inode numbers of the roots. Whoever holds the segment's file lock writes them, and anybody reads them.
pub(super) struct Roots {
    /// How many were ever noted.
    count: AtomicU32,
    identities: [[AtomicU64; 2]; ROOT_COUNT],
}

impl Runtime {
    /// Notes the root of a member in use, by device and inode number. The segment's file lock is held: see [`Runtime::open`].
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

    /// How many directories were roots of members since the segment was made.
    #[must_use]
    pub fn root_count(&self) -> usize {
        self.segment().roots.count.load(Ordering::Acquire) as usize
    }
}
