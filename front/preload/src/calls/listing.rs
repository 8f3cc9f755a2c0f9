//! Listings of this process' own descriptors, which /proc keeps as directories. The library's own
//! descriptors are left out, so that a program finds what it has opened and no more.
//!
//! The kernel makes the listing, and the library looks at its result. A name that is the number of
//! one of the library's descriptors is left out only if the directory is such a listing; only then
//! is the kernel asked about the directory. Nothing here allocates: a child that shares its
//! parent's memory lists its descriptors to close them.

use super::node::{Held, Node};
use super::{OPEN, directory};
use crate::call::{Call, Verdict};
use crate::{process, program};
use linux_raw_sys::general::{__NR_fstatfs, __NR_getdents, __NR_getdents64, __NR_readlinkat, PROC_SUPER_MAGIC};
use sys::raw::{check, syscall};
use sys::{AsRawFd, OsError, RawFd, high_fd};

/// Where in an entry its length and its name lie: behind the inode's number, the next entry's
/// offset and the length, and in the newer form behind the type.
const LENGTH_AT: usize = 16;
const NAME_AT: [usize; 2] = [18, 19];
/// No entry of such a listing is longer.
const ENTRY_BYTES_MAX: usize = 64;
/// As long as the path of such a directory may be.
const LINK_BYTES_MAX: usize = 256;

/// `getdents` and `getdents64`.
pub(crate) fn list(call: &mut Call) -> Verdict {
    if let Some(held) = OPEN.lookup(call.descriptor(0)) {
        // The anchor's directory holds the same names as on every member in use.
        return by_twin(call, &held);
    }
    call.then = Some(listed);
    Verdict::PassWith { number: call.number, args: call.args }
}

/// Makes a call that lists a directory, or moves the position in a listing, on what lists the
/// directory since its member was lost. Otherwise the kernel serves the call.
pub(crate) fn by_twin(call: &Call, held: &Held) -> Verdict {
    let first = directory::borrow(call.descriptor(0));
    let Node::Directory(Some(twin)) = held.node() else { return Verdict::Pass };
    let Some(listed) = twin.listed(first) else { return Verdict::Pass };
    let mut args = call.args;
    args[0] = listed.as_raw_fd() as usize;
    // SAFETY: the call is the program's, on a descriptor of the same directory, which stays open
    // for as long as `held`.
    Verdict::Done(unsafe { syscall(call.number, args) })
}

/// Whether a number is that of a call that lists a directory.
pub(crate) const fn lists(number: usize) -> bool {
    number == __NR_getdents as usize || number == __NR_getdents64 as usize
}

/// The kernel has listed.
pub(crate) fn listed(call: &mut Call) -> isize {
    let (fd, address, result) = (call.descriptor(0), call.args[1], call.result);
    let Ok(bytes) = usize::try_from(result) else { return result };
    let name_at = NAME_AT[usize::from(call.number != __NR_getdents as usize)];
    let is_found = Entries { address, bytes, at: 0 }.any(|entry| is_own(address + entry.at + name_at));
    if !is_found || !is_listing(fd) {
        return result;
    }
    match leave_out(address, bytes, name_at) {
        // All that fitted was ours: a program takes 0 for the end.
        Ok(0) => {
            call.instead[0] = call.number;
            call.instead[1..].copy_from_slice(&call.args);
            call.then = Some(listed);
            0
        }
        Ok(kept) => kept as isize,
        Err(error) => -(error.raw_os_error() as isize),
    }
}

/// The entries that the kernel has stored at an address.
struct Entries {
    address: usize,
    bytes: usize,
    at: usize,
}

/// Where an entry lies behind the first one, and how long it is.
struct Entry {
    at: usize,
    bytes: usize,
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let at = self.at;
        if at >= self.bytes {
            return None;
        }
        let bytes = usize::from(program::read::<u16>(self.address + at + LENGTH_AT).ok()?);
        // Another thread of the program may store there meanwhile.
        let is_whole = bytes > NAME_AT[1] && bytes <= self.bytes - at;
        self.at = at + bytes;
        is_whole.then_some(Entry { at, bytes })
    }
}

/// Whether the name at an address is the number of a descriptor of the library's own.
fn is_own(name: usize) -> bool {
    const DIGIT_COUNT_MAX: usize = 9;
    let mut number: RawFd = 0;
    for index in 0..=DIGIT_COUNT_MAX {
        match program::read::<u8>(name + index) {
            Ok(digit @ b'0'..=b'9') if index < DIGIT_COUNT_MAX => number = number * 10 + RawFd::from(digit - b'0'),
            Ok(0) if index > 0 => return high_fd::is_raised(number),
            _ => return false,
        }
    }
    false
}

/// Moves the entries that are not ours together. How many bytes they take.
fn leave_out(address: usize, bytes: usize, name_at: usize) -> Result<usize, OsError> {
    let mut kept = 0;
    for entry in (Entries { address, bytes, at: 0 }) {
        let from = address + entry.at;
        if is_own(from + name_at) {
            continue;
        }
        if kept != entry.at {
            let mut copy = [0; ENTRY_BYTES_MAX];
            let copy = copy.get_mut(..entry.bytes).ok_or(OsError::IO)?;
            for (index, byte) in copy.iter_mut().enumerate() {
                *byte = program::read(from + index)?;
            }
            program::write_bytes(address + kept, copy)?;
        }
        kept += entry.bytes;
    }
    Ok(kept)
}

/// Whether a descriptor is open on a listing of this process' descriptors: `fd` or `fdinfo` of the
/// process or one of its threads.
fn is_listing(fd: RawFd) -> bool {
    // `struct statfs` begins with the kind of the file system.
    let mut kind = [0_u64; 16];
    // SAFETY: there is room for the structure, which is 120 bytes long.
    let asked = unsafe { syscall(__NR_fstatfs as usize, [fd as usize, kind.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    if asked < 0 || kind[0] != u64::from(PROC_SUPER_MAGIC) {
        return false;
    }
    let mut name = *b"/proc/thread-self/fd/0000000000\0";
    let mut rest = fd as u32;
    for digit in name.iter_mut().rev().skip(1).take(10) {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The link's name has no zeros before it.
    let digits = name.len() - 1 - number_of_digits(fd as u32);
    let start = name.len() - 1 - 10;
    name.copy_within(digits.., start);
    let mut link = [0; LINK_BYTES_MAX];
    let args = [usize::MAX, name.as_ptr() as usize, link.as_mut_ptr() as usize, link.len(), 0, 0];
    // SAFETY: the path is absolute and ends with a NUL, and there is that much room.
    let read = check(unsafe { syscall(__NR_readlinkat as usize, args) });
    read.is_ok_and(|length| lists_process(&link[..length], process::getpid()))
}

fn number_of_digits(number: u32) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Whether a path under /proc, wherever that is mounted, is a listing of a process' descriptors.
fn lists_process(path: &[u8], pid: u32) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/');
    let is_pid =
        |part: Option<&[u8]>| part.and_then(|part| core::str::from_utf8(part).ok()).is_some_and(|part| part.parse() == Ok(pid));
    if !matches!(parts.next(), Some(b"fd" | b"fdinfo")) {
        return false;
    }
    let owner = parts.next();
    is_pid(owner) && path.starts_with(b"/") || parts.next() == Some(b"task") && is_pid(parts.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_of_the_process_are_told_from_others() {
        for own in ["/proc/7/fd", "/proc/7/fdinfo", "/proc/7/task/9/fd", "/proc/7/task/9/fdinfo", "/elsewhere/7/fd"] {
            assert!(lists_process(own.as_bytes(), 7), "{own}");
        }
        for other in
            ["/proc/8/fd", "/proc/8/task/7x/fd", "/proc/8/task/9/fd", "/proc/7", "/proc/7/ns", "/proc/7/task/9/ns", "fd", ""]
        {
            assert!(!lists_process(other.as_bytes(), 7), "{other}");
        }
        assert_eq!([0, 9, 10, 99_999, u32::MAX].map(number_of_digits), [1, 1, 2, 5, 10]);
    }

    /// What getdents64 gives of these names.
    fn entries(names: &[&str]) -> std::vec::Vec<u8> {
        let mut bytes = std::vec::Vec::new();
        for name in names {
            let length = (NAME_AT[1] + name.len() + 1).next_multiple_of(8);
            let mut entry = std::vec![0; length];
            entry[LENGTH_AT..][..2].copy_from_slice(&(length as u16).to_ne_bytes());
            entry[NAME_AT[1]..][..name.len()].copy_from_slice(name.as_bytes());
            bytes.extend(entry);
        }
        bytes
    }

    #[test]
    fn only_our_numbers_are_left_out() {
        // Far from what other tests are given.
        let (one, two) = (60_001, 60_002);
        high_fd::keep(one);
        high_fd::keep(two);
        let mut listed = entries(&[".", "..", "3", "60001", "60003", "60002", "600010", "x60001"]);
        let kept = leave_out(listed.as_mut_ptr() as usize, listed.len(), NAME_AT[1]).unwrap();
        assert_eq!(listed[..kept], entries(&[".", "..", "3", "60003", "600010", "x60001"]));
        let mut ours = entries(&["60001", "60002"]);
        assert_eq!(leave_out(ours.as_mut_ptr() as usize, ours.len(), NAME_AT[1]), Ok(0));
        high_fd::forget(one);
        high_fd::forget(two);
        assert!(
            !is_own(c"60001".as_ptr() as usize) && !is_own(c"".as_ptr() as usize) && !is_own(c"99999999999".as_ptr() as usize)
        );
    }

    #[test]
    fn only_a_listing_is_one() {
        for (path, is_one) in [("/proc/self/fd", true), ("/proc/thread-self/fdinfo", true), ("/proc/self", false), ("/", false)] {
            let directory = std::fs::File::open(path).unwrap();
            assert_eq!(is_listing(std::os::fd::AsRawFd::as_raw_fd(&directory)), is_one, "{path}");
        }
    }
}
