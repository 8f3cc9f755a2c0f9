//! What a path argument means: a name of the array, or the host's affair.
//!
//! Most paths of most programs are not ours, so that is decided first and from few bytes: an absolute path whose first component
//! begins no prefix, or a relative one that can neither climb (`..`) nor come upon a prefix from where it starts.
//!
//! A path that cannot be read from the program's memory is the host's: the kernel answers EFAULT or ENAMETOOLONG as it would.

use super::directory;
use crate::array::{Prefixes, prefixes};
use crate::program;
use ::array::config::normalise;
use heap::vec::Vec;
use sys::{OsError, RawFd};

/// The longest path the kernel takes, with its NUL.
pub(crate) const PATH_BYTES_MAX: usize = 4096;
/// The number that means the current directory.
pub(crate) const AT_FDCWD: RawFd = -100;

/// Where a path leads as far as its text says; symlinks are core/namespace's, and links under /proc those of [`super::magic`].
pub(crate) enum Where {
    /// To this absolute, unresolved path of the array; an empty one leads nowhere (ENOENT).
    Array(Vec<u8>),
    /// Elsewhere.
    Host,
}

/// What the path at `address`, relative to `directory`, means.
pub(crate) fn locate(directory: RawFd, address: usize) -> Where {
    let Some(prefixes) = prefixes() else { return Where::Host };
    let mut buffer = [0; PATH_BYTES_MAX];
    match program::read_string(address, &mut buffer) {
        Ok(path) => locate_text(prefixes, directory, path),
        Err(_) => Where::Host,
    }
}

/// The same of a path that is not a string of the program's.
pub(crate) fn locate_bytes(directory: RawFd, path: &[u8]) -> Where {
    prefixes().map_or(Where::Host, |prefixes| locate_text(prefixes, directory, path))
}

/// The bytes of a string that is not a path to be resolved (a symlink's target).
pub(crate) fn text(address: usize) -> Result<Vec<u8>, OsError> {
    let mut buffer = [0; PATH_BYTES_MAX];
    program::read_string(address, &mut buffer).map(<[u8]>::to_vec)
}

/// Whether the string at `address` is empty: with AT_EMPTY_PATH the descriptor itself is meant.
pub(crate) fn is_empty(address: usize) -> bool {
    address == 0 || program::read::<u8>(address) == Ok(0)
}

fn locate_text(prefixes: &Prefixes, base: RawFd, path: &[u8]) -> Where {
    if path.is_empty() {
        return Where::Host;
    }
    let absolute = if path[0] == b'/' {
        if super::root::is_elsewhere() || !may_reach(prefixes, path, true) {
            return Where::Host;
        }
        path.to_vec()
    } else {
        let ours = directory::is_ours(base);
        if super::root::is_elsewhere() {
            // The kernel would look in a member.
            return if ours { Where::Array(Vec::new()) } else { Where::Host };
        }
        if !ours && !may_reach(prefixes, path, false) {
            return Where::Host;
        }
        let Some(mut absolute) = directory::path_of(base) else { return Where::Host };
        absolute.push(b'/');
        absolute.extend_from_slice(path);
        absolute
    };
    let ours = prefixes.own(&normalise(&absolute)) || enters_on_its_way(prefixes, &absolute);
    if ours { Where::Array(absolute) } else { Where::Host }
}

/// Whether a path with `..` is in the array before it climbs: symlinks may keep it there.
fn enters_on_its_way(prefixes: &Prefixes, path: &[u8]) -> bool {
    path.windows(3).position(|part| part == b"/..").is_some_and(|climb| prefixes.own(&normalise(&path[..climb])))
}

/// Whether a path could lead to a prefix, judged by its first component. A relative one starts from a host directory that may be on
/// the way to a prefix.
fn may_reach(prefixes: &Prefixes, path: &[u8], absolute: bool) -> bool {
    let first = path.split(|&byte| byte == b'/').find(|part| !part.is_empty() && *part != b".").unwrap_or(b"");
    first == b".." || prefixes.may_begin_with(first, absolute) || path.windows(3).any(|part| part == b"/..")
}
