//! Magic links: the paths under /proc that lead to what a descriptor is open on.
//!
//! The kernel follows such a link to the open file itself, whatever its name is by now and whatever
//! has its old name. A call that follows its path does likewise here: it acts on the open file. A
//! call that does not follow its path meets the link, which is the kernel's.
//!
//! A link of this process leads to a description of ours. A link of another process, or one written
//! in a way that is not recognised as ours, is opened first (O_PATH), which also asks the kernel
//! whether it may be followed.

use super::node::Held;
use super::paths::AT_FDCWD;
use super::{OPEN, directory};
use crate::uapi::PATH_MAX;
use crate::{array, process, program};
use heap::vec::Vec;
use namespace::{Node, OFlags};
use sys::high_fd::Raised;
use sys::rustix::fs::{CWD, Mode, openat};
use sys::{AsFd, BorrowedFd, RawFd};

/// The text of a magic link.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// Of a descriptor of this process.
    Own(RawFd),
    /// Of another process, or written otherwise: the absolute path.
    Other(Vec<u8>),
}

/// A magic link that leads to something of the array.
pub(crate) enum Link {
    Own(RawFd, Held),
    /// Opened with O_PATH, at a number that the program's call is not to be given.
    Other(Raised),
}

impl Link {
    /// A descriptor of what the link leads to.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor, _) => directory::borrow(*descriptor),
            Self::Other(fd) => fd.as_fd(),
        }
    }

    /// What that descriptor stands for.
    pub(crate) fn node(&self) -> &Node {
        match self {
            Self::Own(_, held) => held.node(),
            Self::Other(_) => &Node::Path(None),
        }
    }
}

impl Name {
    /// What the link leads to, if that is something of the array.
    pub(crate) fn follow(self) -> Option<Link> {
        match self {
            Self::Own(descriptor) => OPEN.lookup(descriptor).map(|held| Link::Own(descriptor, held)),
            Self::Other(path) => {
                let fd = openat(CWD, path.as_slice(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
                let fd = Raised::new(fd).ok()?;
                let is_ours = array::namespace().ok()?.is_open_on(fd.as_fd());
                is_ours.then_some(Link::Other(fd))
            }
        }
    }
}

/// The magic link that the path at `address`, relative to `base`, is the text of.
#[inline]
pub(crate) fn name(base: RawFd, address: usize) -> Option<Name> {
    // The shortest one is longer than what is looked at first.
    let may_be = match program::read::<u8>(address).ok()? {
        b'/' => match program::read::<[u8; 5]>(address).ok()? {
            [b'/', b'/' | b'.', ..] => true,
            start => matches!(&start, b"/proc" | b"/dev/"),
        },
        first => first.is_ascii_digit() || base != AT_FDCWD && !directory::is_ours(base),
    };
    if may_be { named_at(base, address) } else { None }
}

fn named_at(base: RawFd, address: usize) -> Option<Name> {
    let mut buffer = [0; PATH_MAX];
    named(base, program::read_string(address, &mut buffer).ok()?)
}

/// The magic link that `path`, relative to `base`, is the text of. `path` lies in the library's
/// memory, not in the program's.
pub(crate) fn named(base: RawFd, path: &[u8]) -> Option<Name> {
    let last = path.rsplit(|&byte| byte == b'/').next()?;
    let is_number = !last.is_empty() && last.iter().all(u8::is_ascii_digit);
    if !is_number && !last.starts_with(b"std") || super::root::is_elsewhere() {
        return None;
    }
    if path.starts_with(b"/") {
        return of_absolute(path);
    }
    if !is_number || directory::is_ours(base) {
        return None;
    }
    // Only a directory under /proc can have it.
    let start = directory::path_of(base).filter(|start| start.starts_with(b"/proc"))?;
    of_absolute(&[start.as_slice(), b"/", path].concat())
}

fn of_absolute(path: &[u8]) -> Option<Name> {
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let (first, second) = (parts.next()?, parts.next()?);
    let (owner, is_thread, descriptor) = match (first, second, parts.next(), parts.next(), parts.next()) {
        (b"dev", b"stdin", None, ..) => return Some(Name::Own(0)),
        (b"dev", b"stdout", None, ..) => return Some(Name::Own(1)),
        (b"dev", b"stderr", None, ..) => return Some(Name::Own(2)),
        (b"dev", b"fd", Some(descriptor), None, _) => return number(descriptor).map(Name::Own),
        (b"proc", owner, Some(b"fd"), Some(descriptor), None) => (owner, false, number(descriptor)?),
        (b"proc", owner, Some(b"task"), Some(_), Some(b"fd")) => {
            let descriptor = number(parts.next()?)?;
            if parts.next().is_some() {
                return None;
            }
            (owner, true, descriptor)
        }
        _ => return None,
    };
    Some(if is_this_process(owner)? && !is_thread { Name::Own(descriptor) } else { Name::Other(path.to_vec()) })
}

/// A number in a path under /proc, as the kernel reads it: without a sign, and without a zero
/// before another digit.
fn number(part: &[u8]) -> Option<RawFd> {
    let is_plain = part == b"0" || matches!(part.first(), Some(b'1'..=b'9'));
    core::str::from_utf8(part).ok().filter(|_| is_plain)?.parse().ok()
}

/// Whether a directory of /proc is this process'; None if it is no process'.
fn is_this_process(owner: &[u8]) -> Option<bool> {
    match owner {
        b"self" | b"thread-self" => Some(true),
        pid => Some(number(pid)? as u32 == process::getpid()),
    }
}

/// A descriptor's number in a directory of /proc, if that is this process'.
pub(crate) fn own_number(owner: &[u8], descriptor: &[u8]) -> Option<RawFd> {
    number(descriptor).filter(|_| is_this_process(owner) == Some(true))
}

/// What the path at `address`, relative to `base`, leads to, if it is a magic link to something of
/// the array.
pub(crate) fn at(base: RawFd, address: usize) -> Option<Link> {
    name(base, address)?.follow()
}

/// Whether a path of the host is the text of a magic link.
pub(crate) fn names(path: &[u8]) -> bool {
    named(AT_FDCWD, path).is_some()
}

/// What a path of the host leads to, if it is a magic link to something of the array. Such a path
/// comes of a symlink of the array that led out of it.
pub(crate) fn at_host(path: &[u8]) -> Option<Link> {
    named(AT_FDCWD, path)?.follow()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_from_other_paths() {
        let pid = process::getpid();
        for own in
            ["/proc/self/fd/7", "/dev/fd/7", "/proc/thread-self/fd/7", "//proc/./self//fd/7", &std::format!("/proc/{pid}/fd/7")]
        {
            assert_eq!(named(AT_FDCWD, own.as_bytes()), Some(Name::Own(7)), "{own}");
        }
        for (name, number) in [("/dev/stdin", 0), ("/dev/stdout", 1), ("//dev/stderr", 2)] {
            assert_eq!(named(AT_FDCWD, name.as_bytes()), Some(Name::Own(number)));
        }
        for other in ["/proc/1/fd/7", "/proc/self/task/1/fd/7"] {
            assert_eq!(named(AT_FDCWD, other.as_bytes()), Some(Name::Other(other.as_bytes().to_vec())));
        }
        for none in [
            "/proc/self/fd/7/",
            "/proc/self/fd",
            "/proc/self/fd/x",
            "/proc/self/fd/07",
            "/dev/fd/00",
            "/proc/+1/fd/7",
            "/proc/self/fd/7/1",
            "/proc/self/fdinfo/7",
            "/dev/sda1",
            "/7",
            "7",
        ] {
            assert_eq!(named(AT_FDCWD, none.as_bytes()), None, "{none}");
        }
    }
}
