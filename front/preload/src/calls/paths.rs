//! What a path argument means: a name of the array, or the host's affair.
//!
//! Most paths of most programs are not ours, so that is decided first and from few bytes: an absolute path whose first component
//! begins no prefix, or a relative one that can neither climb (`..`) nor come upon a prefix from where it starts.
//!
//! A path the program cannot even be read from is the host's: the kernel answers EFAULT or ENAMETOOLONG as it would.

use crate::calls::array;
use core::mem::MaybeUninit;
use heap::vec::Vec;
use namespace::Namespace;
use sys::{BorrowedFd, OsError, RawFd};

/// The longest path the kernel takes, with its NUL.
const PATH_BYTES_MAX: usize = 4096;
/// The number that means the current directory.
pub(crate) const AT_FDCWD: RawFd = -100;

/// Where a path leads as far as its text says; symlinks are core/namespace's.
pub(crate) enum Where {
    /// To this absolute, unresolved path of the array.
    Array(Vec<u8>),
    /// Elsewhere.
    Host,
}

/// A C string of the program, copied.
struct Text {
    bytes: [MaybeUninit<u8>; PATH_BYTES_MAX],
    length: usize,
}

impl Text {
    /// None if the memory cannot be read or the string is too long.
    fn copy(pointer: usize) -> Option<Self> {
        let mut text = Self { bytes: [const { MaybeUninit::uninit() }; PATH_BYTES_MAX], length: 0 };
        let (source, target) = (pointer as *const u8, text.bytes.as_mut_ptr().cast::<u8>());
        let mut length = PATH_BYTES_MAX;
        let found = &raw mut length;
        // SAFETY: reads the program's memory byte by byte up to the first NUL, inside the guard; the target is as long as the loop.
        let copied = unsafe {
            persist::fault::guard(|| {
                for index in 0..PATH_BYTES_MAX {
                    let byte = source.add(index).read_volatile();
                    if byte == 0 {
                        found.write(index);
                        break;
                    }
                    target.add(index).write(byte);
                }
            })
        };
        text.length = length;
        (copied.is_ok() && length < PATH_BYTES_MAX).then_some(text)
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: `copy` has written `length` bytes.
        unsafe { core::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.length) }
    }
}

/// What the path at `pointer`, relative to `directory`, means.
pub(crate) fn locate(directory: RawFd, pointer: usize) -> Where {
    let Some(namespace) = array() else { return Where::Host };
    let Some(text) = Text::copy(pointer) else { return Where::Host };
    locate_text(&namespace, directory, text.as_bytes())
}

/// The bytes of a path that is not a name to be resolved (a symlink's target). FAULT if it cannot be read.
pub(crate) fn text(pointer: usize) -> Result<Vec<u8>, OsError> {
    Text::copy(pointer).map(|text| text.as_bytes().to_vec()).ok_or(OsError::FAULT)
}

fn locate_text(namespace: &Namespace, directory: RawFd, path: &[u8]) -> Where {
    if path.is_empty() {
        return Where::Host;
    }
    let absolute = if path[0] == b'/' {
        if let Some(descriptor) = descriptor_path(path) {
            return locate_descriptor(namespace, descriptor);
        }
        if !may_reach_prefix(namespace, path, true) {
            return Where::Host;
        }
        path.to_vec()
    } else {
        let in_array = directory_is_ours(directory);
        if !in_array && !may_reach_prefix(namespace, path, false) {
            return Where::Host;
        }
        let Some(mut base) = directory_path(namespace, directory) else { return Where::Host };
        base.push(b'/');
        base.extend_from_slice(path);
        base
    };
    if namespace.owns(&::array::config::normalise(&absolute)) || passes_through_ours(namespace, &absolute) {
        Where::Array(absolute)
    } else {
        Where::Host
    }
}

/// Whether a path with `..` enters the array on its way: symlinks may then keep it there.
fn passes_through_ours(namespace: &Namespace, path: &[u8]) -> bool {
    let Some(climb) = path.windows(3).position(|part| part == b"/..") else { return false };
    namespace.owns(&::array::config::normalise(&path[..climb]))
}

/// Whether a path could lead to a prefix, judged by its first component. A relative one is judged from a host directory that may be on
/// the way to a prefix.
fn may_reach_prefix(namespace: &Namespace, path: &[u8], absolute: bool) -> bool {
    let first = path.split(|&byte| byte == b'/').find(|part| !part.is_empty() && *part != b".").unwrap_or(b"");
    if first == b".." || path.windows(3).any(|part| part == b"/..") {
        return true;
    }
    let prefixes = &namespace.files().array().config().prefixes;
    prefixes.iter().any(|prefix| {
        let mut components = prefix[1..].split(|&byte| byte == b'/');
        if absolute { components.next() == Some(first) } else { components.any(|component| component == first) }
    })
}

/// Whether a directory argument is a directory of the array.
fn directory_is_ours(directory: RawFd) -> bool {
    if directory == AT_FDCWD { super::directory::cwd_is_ours() } else { super::is_ours(directory) }
}

/// The absolute path of a directory argument, as the program knows it.
fn directory_path(namespace: &Namespace, directory: RawFd) -> Option<Vec<u8>> {
    if directory == AT_FDCWD {
        return super::directory::cwd(namespace);
    }
    // SAFETY: only asked about; a number that is not open gives an error.
    let fd = unsafe { BorrowedFd::borrow_raw(directory) };
    match namespace.logical_path_of(fd) {
        Ok(Some(path)) => Some(path),
        _ => super::directory::link_target(directory),
    }
}

/// The descriptor that a path under /proc/self/fd or /dev/fd names.
fn descriptor_path(path: &[u8]) -> Option<RawFd> {
    let number = [&b"/proc/self/fd/"[..], b"/dev/fd/", b"/proc/thread-self/fd/"].iter().find_map(|start| path.strip_prefix(*start))?;
    core::str::from_utf8(number).ok()?.parse().ok()
}

/// Opening such a path opens the file behind the descriptor anew: by its name, if the array has it.
fn locate_descriptor(namespace: &Namespace, descriptor: RawFd) -> Where {
    if !super::is_ours(descriptor) {
        return Where::Host;
    }
    // SAFETY: only asked about.
    let fd = unsafe { BorrowedFd::borrow_raw(descriptor) };
    match namespace.logical_path_of(fd) {
        Ok(Some(path)) => Where::Array(path),
        _ => Where::Host,
    }
}

