//! What earlier looks at names have shown, so that they need not be repeated: which directories are
//! reached without symlinks, and which file a backing file belongs to.
//!
//! The kernel still walks every path with the program's own rights. What is saved is asking whether
//! there is a symlink on the way, and reading the attribute. Both answers are good for one state of
//! the array's tree. Any process that changes where directories or symlinks lie raises the names'
//! epoch (`Runtime::restructuring`), and a change of members raises the members' epoch. An entry
//! carries both epochs in its token.
//!
//! Of one file the path is remembered: of that which this process made last, or changed last by its
//! descriptor. Such a change is logged with the path, so that a start after a crash looks at the
//! file, and the path must lead to the file then. A process that has the namespace lock asks the
//! kernel for it only if a name was changed since, by whomever: a change of names that the log has
//! a record of raises the log's sequence, which is in this entry's token. What brings one member
//! after another to the same names, and has no record, raises an epoch.
//!
//! Invariants: no locks, so that a fork finds nothing held; an entry that is torn does not fit its
//! token. An attribute is only used as long as the inode table says that the file has a name: its
//! backing file is gone before the number is given out again.

use crate::Namespace;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use format::Attribute;

const DIRECTORY_COUNT: usize = 128;
const FILE_COUNT: usize = 8192;
const CONFIRMED_COUNT: usize = 512;
/// Longer paths of places are not remembered.
const PLACE_BYTES_MAX: usize = 256;

/// Kept for the life of a process.
pub(crate) struct Remembered {
    /// Tokens of directories, by hash.
    directories: [AtomicU64; DIRECTORY_COUNT],
    /// Tokens of what other members were found to agree about, by hash (`absent`).
    confirmed: [AtomicU64; CONFIRMED_COUNT],
    /// Inode number, generation and token, by hash of the backing file.
    files: [[AtomicU64; 3]; FILE_COUNT],
    place: Place,
}

/// Holds where one file lies.
struct Place {
    token: AtomicU64,
    path_bytes: AtomicU64,
    path: [AtomicU64; PLACE_BYTES_MAX / 8],
}

/// A state of the array's names and members.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epochs {
    names: u64,
    members: u64,
}

impl Remembered {
    pub(crate) const fn new() -> Self {
        Self {
            directories: [const { AtomicU64::new(0) }; DIRECTORY_COUNT],
            confirmed: [const { AtomicU64::new(0) }; CONFIRMED_COUNT],
            files: [const { [const { AtomicU64::new(0) }; 3] }; FILE_COUNT],
            place: Place {
                token: AtomicU64::new(0),
                path_bytes: AtomicU64::new(0),
                path: [const { AtomicU64::new(0) }; PLACE_BYTES_MAX / 8],
            },
        }
    }
}

impl Namespace {
    /// The present state; None while the tree is being changed.
    pub(crate) fn epochs(&self) -> Option<Epochs> {
        let runtime = self.array().runtime();
        Some(Epochs { names: runtime.names_epoch()?, members: runtime.epoch() })
    }

    /// The directory of a path in the array that is written in the plainest way: its text, if it
    /// needs no normalising.
    pub(crate) fn plain_parent<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let cut = path.iter().rposition(|&byte| byte == b'/').filter(|_| is_normal(path))?;
        Some(&path[..cut]).filter(|parent| self.owns(parent))
    }

    /// Whether a directory was found to be reached without symlinks.
    pub(crate) fn is_remembered(&self, directory: &[u8], epochs: Epochs) -> bool {
        let hash = hash(directory);
        self.remembered.directories[hash as usize % DIRECTORY_COUNT].load(Ordering::Relaxed) == token(&[hash], epochs)
    }

    /// Notes that a directory was reached without symlinks, by a look that began when `epochs` were
    /// present.
    pub(crate) fn remember_directory(&self, directory: &[u8], epochs: Epochs) {
        let hash = hash(directory);
        self.remembered.directories[hash as usize % DIRECTORY_COUNT].store(token(&[hash], epochs), Ordering::Relaxed);
    }

    /// Whether other members were found to say the same of what has these words.
    pub(crate) fn is_confirmed(&self, words: &[u64], epochs: Epochs) -> bool {
        let hash = hash_words(words);
        self.remembered.confirmed[hash as usize % CONFIRMED_COUNT].load(Ordering::Relaxed) == token(&[hash], epochs)
    }

    /// Notes that, in a look that began when `epochs` were present.
    pub(crate) fn confirm(&self, words: &[u64], epochs: Epochs) {
        let hash = hash_words(words);
        self.remembered.confirmed[hash as usize % CONFIRMED_COUNT].store(token(&[hash], epochs), Ordering::Relaxed);
    }

    /// The attribute of the backing file (device and inode of the member's file system).
    pub(crate) fn remembered_attribute(&self, backing: [u64; 2], epochs: Epochs) -> Option<Attribute> {
        let words = self.file_words(backing);
        let [inode, generation, found] = [0, 1, 2].map(|index| words[index].load(Ordering::Relaxed));
        (found == token(&[backing[0], backing[1], inode, generation], epochs)).then_some(Attribute { inode, generation })
    }

    pub(crate) fn remember_attribute(&self, backing: [u64; 2], attribute: Attribute, epochs: Epochs) {
        let Attribute { inode, generation } = attribute;
        let kept = [inode, generation, token(&[backing[0], backing[1], inode, generation], epochs)];
        for (word, value) in self.file_words(backing).iter().zip(kept) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns where a file lies, if that was noted and no name can have changed since. The
    /// namespace lock is held.
    pub(crate) fn remembered_place(&self, file: Attribute) -> Option<Vec<u8>> {
        let (place, epochs) = (&self.remembered.place, self.epochs()?);
        let path_bytes = place.path_bytes.load(Ordering::Relaxed) as usize;
        let words = place.path.get(..path_bytes.div_ceil(8))?;
        let mut path: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        path.truncate(path_bytes);
        (place.token.load(Ordering::Relaxed) == self.place_token(file, &path, epochs)).then_some(path)
    }

    /// Notes the logical path of a file, which leads to it. The namespace lock is held.
    pub(crate) fn remember_place(&self, file: Attribute, path: &[u8]) {
        let (place, Some(epochs)) = (&self.remembered.place, self.epochs()) else { return };
        if path.len() > PLACE_BYTES_MAX {
            return;
        }
        for (word, bytes) in place.path.iter().zip(path.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
        place.path_bytes.store(path.len() as u64, Ordering::Relaxed);
        place.token.store(self.place_token(file, path, epochs), Ordering::Relaxed);
    }

    /// The number of the last change of names that the log has a record of.
    pub(crate) fn names_sequence(&self) -> u64 {
        self.array().runtime().names_log().sequence.load(Ordering::Acquire)
    }

    fn place_token(&self, file: Attribute, path: &[u8], epochs: Epochs) -> u64 {
        token(&[file.inode, file.generation, self.names_sequence(), hash(path)], epochs)
    }

    fn file_words(&self, [device, inode]: [u64; 2]) -> &'static [AtomicU64; 3] {
        &self.remembered.files[mix(device, inode) as usize % FILE_COUNT]
    }
}

/// Whether a path is absolute and has no empty, `.` or `..` component and no slash at its end.
fn is_normal(path: &[u8]) -> bool {
    let Some(names) = path.strip_prefix(b"/") else { return false };
    names.split(|&byte| byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
}

fn token(words: &[u64], epochs: Epochs) -> u64 {
    let start = mix(epochs.names, epochs.members);
    // Zero is what an empty entry holds.
    words.iter().fold(start, |seed, &word| mix(seed, word)) | 1
}

pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let start = words.by_ref().fold(bytes.len() as u64, |seed, word| mix(seed, word.try_into().map_or(0, u64::from_le_bytes)));
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(start, u64::from_le_bytes(last))
}

fn hash_words(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |seed, &word| mix(seed, word))
}

/// A multiplication whose halves are folded, as in wyhash.
fn mix(one: u64, two: u64) -> u64 {
    let product = u128::from(one ^ 0x9e37_79b9_7f4a_7c15) * u128::from(two ^ 0xe703_7ed1_a0b4_28db);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_taken() {
        for plain in [&b"/a"[..], b"/a/b", b"/a/.b/..c", b"/a/b."] {
            assert!(is_normal(plain));
        }
        for other in [&b""[..], b"/", b"a", b"/a/", b"//a", b"/a//b", b"/./a", b"/a/..", b"/a/../b", b"/a/."] {
            assert!(!is_normal(other));
        }
    }

    #[test]
    fn tokens_tell_words_and_epochs_apart() {
        let epochs = |names, members| Epochs { names, members };
        let tokens = [
            token(&[hash(b"/data/a")], epochs(2, 1)),
            token(&[hash(b"/data/b")], epochs(2, 1)),
            token(&[hash(b"/data/a\0")], epochs(2, 1)),
            token(&[hash(b"/data/a")], epochs(4, 1)),
            token(&[hash(b"/data/a")], epochs(2, 2)),
            token(&[1, 2], epochs(2, 2)),
            token(&[2, 1], epochs(2, 2)),
        ];
        for (index, one) in tokens.iter().enumerate() {
            assert!(tokens[index + 1..].iter().all(|other| other != one));
        }
    }
}
