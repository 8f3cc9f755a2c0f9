//! On which backing files the programs' descriptors of an open file lie.
//!
//! The kernel keeps record locks and flock(2) on the backing file that a program's descriptor is
//! open on: the one of the member that was the lowest in use when the file was opened. If members
//! went or came while the file was open, descriptors lie on several backing files, and the kernel
//! does not compare a lock on one with locks on the others. A process that locks such a file
//! therefore also asks for the locks on the other backing files.
//!
//! Programs identify files by device and inode number (stat(2)). Of an open file they are told the
//! numbers of its first backing file, also when that member is out. Otherwise a process would take
//! the file that it has open for another file than the one of that name (SQLite then writes no
//! more).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many are remembered of one file. When members went and came so often while it was open that
/// there are more, the oldest but the first is forgotten.
const ANCHOR_COUNT: usize = 4;

/// The device and inode numbers of the backing files. All zeros: none.
#[derive(Default)]
pub struct Anchors {
    /// How many were ever noted.
    count: AtomicU32,
    identities: [[AtomicU64; 2]; ANCHOR_COUNT],
}

impl Anchors {
    /// Notes a backing file, by device and inode number, that a program has, or is about to have, a
    /// descriptor of.
    #[inline]
    pub fn note(&self, identity: [u64; 2]) {
        let first = &self.identities[0];
        if first[1].load(Ordering::Acquire) != identity[1] || first[0].load(Ordering::Relaxed) != identity[0] {
            self.note_slowly(identity);
        }
    }

    #[cold]
    fn note_slowly(&self, identity: [u64; 2]) {
        if self.all().any(|known| known == identity) {
            return;
        }
        // Two processes that note the same at once leave it twice, which harms nobody.
        let place = match self.count.fetch_add(1, Ordering::AcqRel) as usize {
            0 => 0,
            later => 1 + (later - 1) % (ANCHOR_COUNT - 1),
        };
        let place = &self.identities[place];
        // Half an entry must match nothing: no inode has number 0.
        place[1].store(0, Ordering::Release);
        place[0].store(identity[0], Ordering::Release);
        // Sequentially consistent, as a lock of the kernel's is: of two processes, one that notes
        // its backing file and then looks for locks, and one that takes a lock and then looks for
        // backing files, at least one sees the other.
        place[1].store(identity[1], Ordering::SeqCst);
    }

    /// Whether descriptors lie, or lay, on several backing files.
    #[inline]
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.identities[1][1].load(Ordering::SeqCst) != 0
    }

    /// The first one: what programs are told the file is, while anybody has it open. None if none
    /// is noted yet.
    #[inline]
    #[must_use]
    pub fn identity(&self) -> Option<[u64; 2]> {
        let [device, inode] = &self.identities[0];
        let inode = inode.load(Ordering::Acquire);
        (inode != 0).then(|| [device.load(Ordering::Relaxed), inode])
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = [u64; 2]> {
        let known = self.identities.iter().map(|[device, inode]| [device, inode].map(|word| word.load(Ordering::SeqCst)));
        known.filter(|identity| identity[1] != 0)
    }

    /// Forgets all: nobody has the file open.
    pub(super) fn clear(&self) {
        if self.count.swap(0, Ordering::Relaxed) != 0 {
            self.identities.iter().for_each(|identity| identity[1].store(0, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_noted_once_and_the_oldest_forgotten() {
        let anchors = Anchors::default();
        for identity in [[1, 10], [1, 10], [2, 10], [1, 10]] {
            anchors.note(identity);
        }
        assert!(anchors.are_several());
        assert_eq!(anchors.all().collect::<Vec<_>>(), [[1, 10], [2, 10]]);
        (0..3).for_each(|inode| anchors.note([3, 30 + inode]));
        let all = anchors.all().collect::<Vec<_>>();
        assert!(all.len() == ANCHOR_COUNT && !all.contains(&[2, 10]) && all.contains(&[3, 32]), "{all:?}");
        assert_eq!(anchors.identity(), Some([1, 10]));
        anchors.clear();
        assert!(!anchors.are_several() && anchors.all().next().is_none());
    }
}
