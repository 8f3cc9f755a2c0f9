//! Programs that run without this library, and what they are not given of the array.
//!
//! The fault this exists for: such a program writes to what it inherits without anybody's
//! knowledge. An anchor is one member's backing file, and a working directory of the array is a
//! directory of one member: what is written or made there is on that member alone, past redundancy.
//! So before such a program is executed, its anchors are marked close-on-exec, and it is started in
//! another directory ([`PLACES`]). If the setting `CXLRAID_UNREACHED` is `refuse`, it is not
//! executed. One line on standard error says so. If the exec fails, everything is as it was before.
//!
//! ld.so loads the library. So the library is not loaded into a program that is linked statically,
//! or is for another processor than ld.so's (a 32-bit one), or gains rights by being executed
//! (ld.so(8), secure-execution mode). In a program that is linked with another C library than
//! glibc, the library stands aside.

use crate::calls::{OPEN, directory};
use crate::exec::{Target, descriptor_flags};
use crate::patch::elf::{Header, headers_of, interpreter};
use crate::report::report;
use crate::{deputy, guest, process, program};
use core::ffi::CStr;
use core::fmt;
use heap::vec::Vec;
use linux_raw_sys::general::{AT_EMPTY_PATH, F_GETFD, F_SETFD, FD_CLOEXEC};
use sys::rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, getxattr, openat};
use sys::rustix::io::{dup, pread};
use sys::rustix::process::{getegid, geteuid, getgid, getuid};
use sys::rustix::thread::no_new_privs;
use sys::{AsRawFd, BorrowedFd, OsError, OwnedFd, RawFd};
use units::{PAGE_BYTES, Shown};

const PATH_BYTES_MAX: usize = 4096;
/// The kernel's limit for `#!` lines that name scripts.
const INTERPRETER_DEPTH_MAX: usize = 5;
/// The setting that refuses such programs.
const SETTING: &[u8] = b"CXLRAID_UNREACHED";

/// Where such a program is started: the first of these that is there. Nothing can be made in them, not by root either. The first one is empty.
const PLACES: [&CStr; 3] = [c"/proc/tty/ldisc", c"/proc/fs", c"/proc"];

/// Why a program runs without the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// It has no dynamic linker.
    Static,
    /// It is not for x86-64.
    OtherProcessor,
    /// It is executed with rights that its caller lacks.
    Rights,
    /// Its C library is not glibc, and the library stands aside in it ([`crate::loader`]).
    OtherLibrary,
}

impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Static => "is linked statically",
            Self::OtherProcessor => "is not a 64-bit program",
            Self::Rights => "gains rights when it is executed",
            Self::OtherLibrary => "is not linked with glibc",
        })
    }
}

/// The descriptors and the directory that a process gives up before it executes a program without the library, to have them again if the exec fails.
#[derive(Default)]
pub(crate) struct Withheld {
    /// Anchors that are closed by the exec.
    anchors: Vec<RawFd>,
    /// The directory of the array that the process was in.
    directory: Option<RawFd>,
}

impl Withheld {
    pub(crate) fn is_empty(&self) -> bool {
        self.anchors.is_empty() && self.directory.is_none()
    }

    /// Gives it back: the exec failed.
    pub(crate) fn give_back(&self) {
        for &descriptor in &self.anchors {
            let flags = descriptor_flags(descriptor, F_GETFD, 0);
            descriptor_flags(descriptor, F_SETFD, flags as usize & !(FD_CLOEXEC as usize));
        }
        if let Some(directory) = self.directory {
            directory::return_to(directory);
        }
    }
}

/// Why the program to be executed will run without the library; None if it will not, or cannot be executed.
pub(crate) fn why(target: Target) -> Option<Why> {
    why_file(&file_of(target)?, 0)
}

/// Keeps from a program what it must not have of the array.
///
/// # Errors
/// EACCES if the settings refuse such a program, or there is no directory to start it in.
pub(crate) fn withhold(target: Target, why: Why) -> Result<Withheld, OsError> {
    let anchors = inherited_anchors();
    let is_inside = directory::is_ours(directory::AT_FDCWD);
    if anchors.is_empty() && !is_inside {
        return Ok(Withheld::default());
    }
    let mut buffer = [0; PATH_BYTES_MAX];
    let name = Shown(name_of(target, &mut buffer));
    if crate::start::environment().get(SETTING) == Some(b"refuse") {
        report!(
            "{name}: refused, since it {why} and would work on one member alone; start it outside the array, without files of it open"
        );
        return Err(OsError::ACCESS);
    }
    let mut withheld = Withheld::default();
    let (inside, place) = if is_inside {
        let inside = directory::path_of(directory::AT_FDCWD).unwrap_or_default();
        match PLACES.iter().find_map(|place| Some((directory::leave_for(place).ok()?, *place))) {
            Some((before, place)) => {
                withheld.directory = Some(before);
                (inside, place)
            }
            None => {
                report!(
                    "{name}: refused, since it {why} and would work on one member alone, and there is no /proc to start it in; start it outside the array"
                );
                return Err(OsError::ACCESS);
            }
        }
    } else {
        (Vec::new(), c"")
    };
    for &descriptor in &anchors {
        let flags = descriptor_flags(descriptor, F_GETFD, 0);
        descriptor_flags(descriptor, F_SETFD, flags as usize | FD_CLOEXEC as usize);
    }
    let (count, place, inside) = (anchors.len(), Shown(place.to_bytes()), Shown(&inside));
    withheld.anchors = anchors;
    let moved = format_args!("it starts in {place}, where nothing can be made, and not in {inside}");
    match (is_inside, count) {
        (true, 0) => report!("{name}: {why} and runs without cxlraid: {moved}"),
        (true, _) => {
            report!("{name}: {why} and runs without cxlraid: {count} open files of arrays are closed for it, and {moved}")
        }
        (false, _) => report!("{name}: {why} and runs without cxlraid: {count} open files of arrays are closed for it"),
    }
    Ok(withheld)
}

/// The anchors that the next program would inherit.
fn inherited_anchors() -> Vec<RawFd> {
    let mut anchors = if process::owns_tables() && !process::shares_tables() && !deputy::is_active() {
        OPEN.all().map(|(descriptor, _)| descriptor).collect()
    } else {
        guest::anchors()
    };
    anchors.retain(|&descriptor| {
        let flags = descriptor_flags(descriptor, F_GETFD, 0);
        flags >= 0 && flags as u32 & FD_CLOEXEC == 0
    });
    anchors
}

/// What the program is called in a message.
fn name_of(target: Target, buffer: &mut [u8; PATH_BYTES_MAX]) -> &[u8] {
    let (Target::Path(path) | Target::At(_, path, _)) = target;
    match program::read_string(path, buffer) {
        Ok(name) if !name.is_empty() => name,
        _ => b"the program to be executed",
    }
}

/// The file to be executed.
pub(crate) fn file_of(target: Target) -> Option<OwnedFd> {
    let mut buffer = [0; PATH_BYTES_MAX];
    match target {
        Target::Path(path) => match program::read_string(path, &mut buffer) {
            Ok(_) => open(CWD, &buffer),
            Err(_) => None,
        },
        Target::At(directory, path, flags) => {
            let directory = directory::borrow(directory);
            match program::read_string(path, &mut buffer) {
                Ok([]) if flags & AT_EMPTY_PATH != 0 => reopened(directory),
                Ok(_) => open(directory, &buffer),
                Err(_) => None,
            }
        }
    }
}

/// A file that is executed by its descriptor, which may be one of O_PATH.
fn reopened(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    let link = heap::format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let opened = openat(CWD, link.as_str(), OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    opened.or_else(|_| dup(file)).ok()
}

/// Opens a file to read it, or, if only its owner may, to ask about it.
fn open(directory: BorrowedFd<'_>, path: &[u8]) -> Option<OwnedFd> {
    let path = CStr::from_bytes_until_nul(path).ok()?;
    let opened = |flags| openat(directory, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    opened(OFlags::RDONLY).or_else(|_| opened(OFlags::PATH)).ok()
}

fn why_file(file: &OwnedFd, depth: usize) -> Option<Why> {
    let mut start = [0u8; PAGE_BYTES];
    let Ok(count) = pread(file, &mut start[..PAGE_BYTES - 1], 0) else {
        return gains_rights(file).then_some(Why::Rights);
    };
    if let Some(line) = start[..count].strip_prefix(b"#!") {
        let name = line.split(|byte| *byte == b'\n').next().unwrap_or(b"").trim_ascii_start();
        let length = name.iter().position(u8::is_ascii_whitespace).unwrap_or(name.len());
        let path = [&name[..length], b"\0"].concat();
        return if depth < INTERPRETER_DEPTH_MAX { why_file(&open(CWD, &path)?, depth + 1) } else { None };
    }
    if gains_rights(file) {
        return Some(Why::Rights);
    }
    if count < size_of::<Header>() || !start.starts_with(b"\x7fELF") {
        return None;
    }
    // SAFETY: the page is longer than a header, which is plain numbers.
    let header = unsafe { start.as_ptr().cast::<Header>().read_unaligned() };
    if !header.is_ours() {
        return Some(Why::OtherProcessor);
    }
    match interpreter(&headers_of(file, &header)?) {
        None => Some(Why::Static),
        Some(place) => is_of_other_library(file, place).then_some(Why::OtherLibrary),
    }
}

/// Whether the kernel tells ld.so that the file is executed with rights that the caller lacks (AT_SECURE).
fn gains_rights(file: &OwnedFd) -> bool {
    let (user, group) = (getuid(), getgid());
    if geteuid() != user || getegid() != group {
        return true;
    }
    let is_ignored = no_new_privs().unwrap_or(false)
        || fstatvfs(file).is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::NOSUID));
    if is_ignored {
        return false;
    }
    let changes = fstat(file).is_ok_and(|stat| {
        let sets_user = stat.st_mode & 0o4000 != 0 && stat.st_uid != user.as_raw();
        let sets_group = stat.st_mode & 0o2010 == 0o2010 && stat.st_gid != group.as_raw();
        sets_user || sets_group
    });
    let has_capabilities = || {
        let link = heap::format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        getxattr(link.as_str(), c"security.capability", &mut [0u8; 64]).is_ok()
    };
    changes || !user.is_root() && has_capabilities()
}

/// Whether a program asks for a dynamic linker of another C library than glibc.
fn is_of_other_library(file: &OwnedFd, place: core::ops::Range<u64>) -> bool {
    let mut path = [0; PATH_BYTES_MAX];
    let length = usize::try_from(place.end - place.start).unwrap_or(0).min(PATH_BYTES_MAX);
    let count = pread(file, &mut path[..length], place.start).unwrap_or(0);
    let path = path[..count].split(|&byte| byte == 0).next().unwrap_or(b"");
    !crate::loader::is_glibc_linker(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::elf::ProgramHeader;
    use std::os::unix::ffi::OsStrExt;
    use std::vec::Vec;

    fn of_bytes(name: &str, bytes: &[u8]) -> Option<Why> {
        let path = std::env::temp_dir().join(std::format!("cxlraid-unreached-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = openat(CWD, path.as_os_str().as_bytes(), OFlags::RDONLY, Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        why_file(&file, 0)
    }

    #[test]
    fn programs_without_the_library_are_told_apart() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(of_bytes("own", &own[..PAGE_BYTES]), None);
        let mut other = own[..PAGE_BYTES].to_vec();
        other[4] = 1;
        assert_eq!(of_bytes("32", &other), Some(Why::OtherProcessor));
        // Without the entry that names the dynamic linker (PT_INTERP, 3).
        let mut alone = own[..PAGE_BYTES].to_vec();
        let (offset, count) = (64, usize::from(own[56]));
        let kinds: Vec<usize> = (0..count).map(|index| offset + index * size_of::<ProgramHeader>()).collect();
        let interpreter = *kinds.iter().find(|&&at| own[at] == 3).unwrap();
        let place = u64::from_le_bytes(own[interpreter + 8..interpreter + 16].try_into().unwrap()) as usize;
        let mut musl = own[..PAGE_BYTES].to_vec();
        musl[place..place + 25].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(of_bytes("musl", &musl), Some(Why::OtherLibrary));
        alone[interpreter] = 0;
        assert_eq!(of_bytes("static", &alone), Some(Why::Static));
        assert_eq!(of_bytes("script", b"#! /bin/sh -e\n"), None);
        assert_eq!(of_bytes("text", b"neither"), None);
    }

    #[test]
    fn headers_behind_the_first_page_are_found() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let headers = own[64..64 + usize::from(own[56]) * size_of::<ProgramHeader>()].to_vec();
        let mut moved = own[..64].to_vec();
        moved.resize(3 * PAGE_BYTES, 0);
        moved[32..40].copy_from_slice(&(3 * PAGE_BYTES as u64).to_le_bytes());
        moved.extend(headers);
        assert_eq!(of_bytes("moved", &moved), None);
        moved.truncate(3 * PAGE_BYTES);
        assert_eq!(of_bytes("none", &moved), Some(Why::Static));
    }
}
