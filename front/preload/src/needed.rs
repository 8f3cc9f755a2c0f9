//! Libraries stored on the array that a program needs from its first instruction on.
//!
//! ld.so maps what a program needs (DT_NEEDED) before any constructor runs, so it would look for
//! libraries of the array in vain. They are found before the exec, where ld.so(8) says it looks,
//! and named in the next program's LD_PRELOAD by their descriptors: ld.so maps those first, and
//! knows them by their SONAME when they are needed. The next process' constructor takes the names
//! out again and closes the descriptors.
//!
//! A library without a SONAME cannot be found this way; ld.so says that it is missing.

use crate::array;
use crate::calls::paths::{AT_FDCWD, Where, locate_bytes};
use crate::stored;
use core::ffi::{CStr, c_char};
use heap::vec::Vec;
use namespace::{Node, OFlags, Opened, Reached};
use sys::rustix::fs::{CWD, Mode, openat};
use sys::rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, pread};
use sys::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// How the descriptors are written in LD_PRELOAD: as nobody else writes them.
const BY_NUMBER: &[u8] = b"/proc/self/./fd/";
const SEPARATOR: &[u8] = b":/proc/self/./fd/";
const PRELOAD: &[u8] = b"LD_PRELOAD=";

const LIBRARY_COUNT_MAX: usize = 256;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PROGRAM_HEADER_COUNT_MAX: usize = 64;
const DYNAMIC_BYTES_MAX: usize = 1 << 16;
const STRING_BYTES_MAX: usize = 4096;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// Where an object's bytes are.
pub(crate) enum Source<'a> {
    Stored(&'a file::FileRef),
    Host(&'a OwnedFd),
}

impl Source<'_> {
    /// Up to `count` bytes at `offset`.
    fn read(&self, offset: u64, count: usize) -> Vec<u8> {
        let mut bytes = heap::vec![0; count];
        let read = match self {
            // SAFETY: the buffer is ours.
            Self::Stored(file) => unsafe { file.read_at(offset, bytes.as_mut_ptr(), count) }.unwrap_or(0),
            Self::Host(file) => pread(file, &mut bytes[..], offset).unwrap_or(0),
        };
        bytes.truncate(read);
        bytes
    }
}

/// What an object's dynamic section says.
#[derive(Default, Debug, PartialEq, Eq)]
struct Dynamic {
    needed: Vec<Vec<u8>>,
    soname: Option<Vec<u8>>,
    rpath: Option<Vec<u8>>,
    runpath: Option<Vec<u8>>,
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    Some(bytes.get(at..at + width)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

impl Dynamic {
    /// None if it is no ELF object of ours, or has no dynamic section. A malformed one may give
    /// less than it says.
    fn of(read: &dyn Fn(u64, usize) -> Vec<u8>) -> Option<Self> {
        let header = read(0, HEADER_BYTES);
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let count = (number(&header, 56, 2)? as usize).min(PROGRAM_HEADER_COUNT_MAX);
        let table = read(number(&header, 32, 8)?, count * PROGRAM_HEADER_BYTES);
        let headers: Vec<[u64; 4]> = table
            .chunks_exact(PROGRAM_HEADER_BYTES)
            .filter_map(|entry| Some([number(entry, 0, 4)?, number(entry, 8, 8)?, number(entry, 16, 8)?, number(entry, 32, 8)?]))
            .collect();
        let &[_, offset, _, bytes] = headers.iter().find(|header| header[0] == PT_DYNAMIC)?;
        let section = read(offset, (bytes as usize).min(DYNAMIC_BYTES_MAX));
        let entries: Vec<(u64, u64)> = section
            .chunks_exact(16)
            .filter_map(|entry| Some((number(entry, 0, 8)?, number(entry, 8, 8)?)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let address = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
        let strings = headers.iter().find_map(|&[kind, offset, start, bytes]| {
            let within = address.checked_sub(start).filter(|distance| kind == PT_LOAD && *distance < bytes)?;
            offset.checked_add(within)
        })?;
        let text = |at: u64| {
            let bytes = read(strings.checked_add(at)?, STRING_BYTES_MAX);
            CStr::from_bytes_until_nul(&bytes).ok().map(|text| text.to_bytes().to_vec())
        };
        let one = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).and_then(|&(_, at)| text(at));
        Some(Self {
            needed: entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(|&(_, at)| text(at)).collect(),
            soname: one(DT_SONAME),
            rpath: one(DT_RPATH),
            runpath: one(DT_RUNPATH),
        })
    }
}

/// The directories of a search path, `$ORIGIN` replaced. Those with other tokens lead to the host's
/// own libraries.
fn directories(list: &[u8], origin: &[u8]) -> Vec<Vec<u8>> {
    let replaced = |element: &[u8]| {
        for token in [&b"${ORIGIN}"[..], b"$ORIGIN"] {
            if let Some(rest) = element.strip_prefix(token) {
                return [origin, rest].concat();
            }
        }
        if element.is_empty() { b".".to_vec() } else { element.to_vec() }
    };
    list.split(|byte| matches!(byte, b':' | b';')).map(replaced).filter(|path| !path.contains(&b'$')).collect()
}

/// The directory of a path.
fn parent(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|&byte| byte == b'/').unwrap_or(0)]
}

/// Whether one of the directories of LD_LIBRARY_PATH is on the array.
pub(crate) fn concerns_array(library_path: &[u8]) -> bool {
    directories(library_path, b"").iter().any(|directory| matches!(locate_bytes(AT_FDCWD, directory), Where::Array(_)))
}

/// A library of the array.
struct Library {
    opened: Opened,
    path: Vec<u8>,
}

/// The library that ld.so would find in the first of `places` that has one, if that is on the
/// array.
fn look(places: &[Vec<u8>]) -> Option<Library> {
    for place in places {
        let host = match locate_bytes(AT_FDCWD, place) {
            Where::Host => place.clone(),
            Where::Array(path) => match array::namespace().ok()?.open(path.path(), OFlags::RDONLY | OFlags::CLOEXEC, 0) {
                Ok(Reached::Array(opened)) if matches!(opened.node, Node::File(_)) => {
                    return Some(Library { opened, path: path.text().to_vec() });
                }
                Ok(Reached::Host(host)) => host,
                _ => continue,
            },
        };
        if openat(CWD, &host[..], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok() {
            return None;
        }
    }
    None
}

/// The elements that LD_PRELOAD must have for a program at `path`, which is executed with this
/// LD_LIBRARY_PATH.
pub(crate) fn elements(program: &Source<'_>, path: &[u8], library_path: Option<&[u8]>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let Some(dynamic) = Dynamic::of(&|offset, count| program.read(offset, count)) else { return found };
    let inherited = dynamic.rpath.as_deref().map_or_else(Vec::new, |list| directories(list, parent(path)));
    let mut waiting = heap::vec![(dynamic, parent(path).to_vec())];
    while let Some((object, origin)) = waiting.pop() {
        let search = search_path(&object, &origin, &inherited, library_path);
        for name in &object.needed {
            if seen.contains(name) || seen.len() >= LIBRARY_COUNT_MAX {
                continue;
            }
            seen.push(name.clone());
            let places: Vec<Vec<u8>> = if name.contains(&b'/') {
                directories(name, &origin)
            } else {
                search.iter().map(|directory| [directory, &b"/"[..], name].concat()).collect()
            };
            let Some(library) = look(&places) else { continue };
            let Node::File(file) = &library.opened.node else { continue };
            let Some(dynamic) = Dynamic::of(&|offset, count| Source::Stored(file).read(offset, count)) else { continue };
            if dynamic.soname.as_ref() != Some(name) {
                continue;
            }
            waiting.push((dynamic, parent(&library.path).to_vec()));
            found.extend(stored::image(library.opened.anchor, file).and_then(|image| hand_down(&image)).ok());
        }
    }
    found
}

/// ld.so(8), "If the shared object name does not contain a slash": RPATH unless there is a RUNPATH,
/// LD_LIBRARY_PATH, RUNPATH.
fn search_path(object: &Dynamic, origin: &[u8], inherited: &[Vec<u8>], library_path: Option<&[u8]>) -> Vec<Vec<u8>> {
    let list = |list: Option<&[u8]>| list.map_or_else(Vec::new, |list| directories(list, origin));
    let mut search = Vec::new();
    if object.runpath.is_none() {
        search.extend(list(object.rpath.as_deref()));
        search.extend(inherited.iter().cloned());
    }
    search.extend(list(library_path.filter(|path| !path.is_empty())));
    search.extend(list(object.runpath.as_deref()));
    search
}

/// A descriptor that the next program is born with, out of the way of its own.
fn hand_down(image: &OwnedFd) -> sys::Result<Vec<u8>> {
    let high = fcntl_dupfd_cloexec(image, sys::high_fd::base() as i32)?;
    fcntl_setfd(&high, FdFlags::empty())?;
    // Closed by the next process' constructor.
    Ok([BY_NUMBER, heap::format!("{}", high.into_raw_fd()).as_bytes()].concat())
}

/// Takes what [`elements`] gave out of LD_PRELOAD, where it lies, and closes the descriptors: ld.so
/// has mapped the libraries.
///
/// # Safety
/// `list` is the environment on the first stack; nobody else uses it meanwhile.
pub(crate) unsafe fn take_back(list: *const *const c_char) {
    let mut at = list;
    // SAFETY: the caller's promise: pointers to strings that are this process' own to write to,
    // ending with null.
    unsafe {
        while !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            let names = entry.windows(SEPARATOR.len()).position(|part| part == SEPARATOR);
            if let Some(start) = names.filter(|_| entry.starts_with(PRELOAD)) {
                for descriptor in numbers(&entry[start..]) {
                    drop(OwnedFd::from_raw_fd(descriptor));
                }
                (*at).add(start).cast_mut().write(0);
            }
            at = at.add(1);
        }
    }
}

/// The descriptors that `elements` names.
fn numbers(elements: &[u8]) -> Vec<RawFd> {
    let parse = |element: &[u8]| core::str::from_utf8(element.strip_prefix(BY_NUMBER)?).ok()?.parse().ok();
    elements.split(|&byte| byte == b':').filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_says_what_it_needs() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let read = |offset: u64, count: usize| {
            let start = (offset as usize).min(own.len());
            own[start..(start + count).min(own.len())].to_vec()
        };
        let dynamic = Dynamic::of(&read).unwrap();
        assert!(dynamic.needed.contains(&b"libc.so.6".to_vec()), "{dynamic:?}");
        assert_eq!(dynamic.soname, None);
        assert_eq!(Dynamic::of(&|_, _| b"#!/bin/sh".to_vec()), None);
        // Cut short anywhere it gives less, and does not fail.
        for length in (0..own.len()).step_by(own.len() / 50) {
            let cut = |offset: u64, count: usize| {
                let start = (offset as usize).min(length);
                own[start..(start + count).min(length)].to_vec()
            };
            let _ = Dynamic::of(&cut);
        }
    }

    #[test]
    fn search_paths_are_those_of_the_linker() {
        let found = directories(b"$ORIGIN/../lib:/usr/$LIB::${ORIGIN}", b"/data/bin");
        assert_eq!(found, [&b"/data/bin/../lib"[..], b".", b"/data/bin"]);
        assert_eq!(parent(b"/data/bin/program"), b"/data/bin");
        let object = Dynamic { rpath: Some(b"/r".to_vec()), ..Dynamic::default() };
        assert_eq!(search_path(&object, b"", &[b"/i".to_vec()], Some(b"/l")), [b"/r", b"/i", b"/l"]);
        let object = Dynamic { runpath: Some(b"/u".to_vec()), ..object };
        assert_eq!(search_path(&object, b"", &[b"/i".to_vec()], Some(b"/l")), [b"/l", b"/u"]);
    }

    #[test]
    fn names_are_taken_back() {
        let low = openat(CWD, c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let element = hand_down(&low).unwrap();
        let descriptor = numbers(&element)[0];
        assert!(descriptor as u32 >= sys::high_fd::base());
        let mut entry = [b"LD_PRELOAD=/lib/cxlraid.so:", &element[..], b"\0"].concat();
        let other = c"HOME=/";
        let list = [other.as_ptr(), entry.as_mut_ptr().cast::<c_char>().cast_const(), core::ptr::null()];
        // SAFETY: a list of strings that ends with null; the one that is changed is ours.
        unsafe { take_back(list.as_ptr()) };
        assert_eq!(CStr::from_bytes_until_nul(&entry).unwrap(), c"LD_PRELOAD=/lib/cxlraid.so");
        assert!(std::fs::metadata(std::format!("/proc/self/fd/{descriptor}")).is_err());
    }
}
