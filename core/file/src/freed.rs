//! How long files were that have no name and are no longer open, but for descriptors opened with
//! O_PATH: these do not keep a file open, and fstat(2) may still ask.
//!
//! A freed record in the inode table keeps the length until its number is given to another file.
//! The last lengths that this process itself has freed are remembered beyond that, if the process
//! has ever had such a descriptor.
//!
//! Invariant: no locks, so that a fork finds nothing held.

use crate::Files;
use crate::inode::key;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use format::Attribute;

const COUNT: usize = 16;

/// The last lengths freed.
pub(crate) struct Freed {
    is_wanted: AtomicBool,
    next: AtomicUsize,
    /// The file's key, 0 while the entry changes, and its bytes.
    entries: [[AtomicU64; 2]; COUNT],
}

impl Freed {
    pub(crate) const fn new() -> Self {
        Self {
            is_wanted: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            entries: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; COUNT],
        }
    }

    fn note(&self, key: u64, bytes: u64) {
        let Some([of, length]) = self.entries.get(self.next.fetch_add(1, Ordering::Relaxed) % COUNT) else { return };
        of.store(0, Ordering::SeqCst);
        length.store(bytes, Ordering::SeqCst);
        of.store(key, Ordering::SeqCst);
    }

    fn bytes(&self, key: u64) -> Option<u64> {
        let found = self.entries.iter().find(|[of, _]| of.load(Ordering::SeqCst) == key)?;
        let bytes = found[1].load(Ordering::SeqCst);
        (found[0].load(Ordering::SeqCst) == key).then_some(bytes)
    }
}

impl Files {
    /// From now on this process has a descriptor of a file that was opened with O_PATH.
    pub fn note_path_opened(&self) {
        self.freed().is_wanted.store(true, Ordering::Relaxed);
    }

    /// To be called before an inode is freed whose file this long is.
    pub(crate) fn note_freed(&self, attribute: Attribute, bytes: u64) {
        if self.freed().is_wanted.load(Ordering::Relaxed) {
            self.freed().note(key(attribute.inode, attribute.generation), bytes);
        }
    }

    /// How long a file was whose inode is freed, if that is still known.
    pub(crate) fn bytes_of_freed(&self, attribute: Attribute) -> Option<u64> {
        let in_table = || self.table().bytes_of_freed(self.array(), attribute);
        self.freed().bytes(key(attribute.inode, attribute.generation)).or_else(in_table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lengths_are_remembered() {
        let freed = Freed::new();
        assert_eq!(freed.bytes(1), None);
        (1..=20).for_each(|key| freed.note(key, key * 100));
        assert_eq!(freed.bytes(4), None);
        assert!((5..=20).all(|key| freed.bytes(key) == Some(key * 100)));
    }
}
