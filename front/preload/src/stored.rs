//! Programs stored on the array: what the kernel is given to execute instead of a path it does not
//! know.
//!
//! - A script names its interpreter. The interpreter is executed, with the script's path as the
//!   program knows it, and opens the script through the library.
//! - A binary whose backing file is the plain file (RAID 1) is executed from there. A binary that
//!   is spread over members is copied into a memfd first. So is one whose backing file a process
//!   still keeps open for writing (the kernel would say ETXTBSY).
//!
//! Anything else is ENOEXEC, as from the kernel.

use crate::array;
use crate::calls::magic::{self, Link};
use crate::calls::paths::{self, Asked, Where};
use crate::calls::{directory, links};
use crate::environment::Auxiliary;
use crate::needed::{self, Source};
use crate::thread::word;
use crate::uapi::PR_SET_NAME;
use crate::{deputy, exec, program, unreached};
use heap::vec::Vec;
use layout::Level;
use linux_raw_sys::general::{__NR_execve, __NR_execveat, __NR_prctl, AT_EMPTY_PATH};
use namespace::{Access, AtFlags, FileType, Node, OFlags, Opened, Reached};
use sys::raw::syscall;
use sys::rustix::fs::{CWD, MemfdFlags, accessat, memfd_create, readlinkat, statat};
use sys::rustix::io::{FdFlags, fcntl_setfd, pread};
use sys::{AsFd, IntoRawFd, OsError, OwnedFd, RawFd};

const NO_FOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;
const MAGIC: &[u8] = b"\x7fELF";
/// How much of a file is looked at: the kernel's BINPRM_BUF_SIZE.
const START_BYTES: usize = 256;
/// The kernel's limit for interpreters that are scripts themselves.
const DEPTH_MAX: usize = 5;
const COPY_BYTES: usize = 1 << 20;
const ARGUMENT_COUNT_MAX: usize = 1 << 20;

/// A program of the array, made executable for the kernel.
pub(crate) struct Stored {
    /// The call to make, with the program's environment still in it.
    pub(crate) number: usize,
    pub(crate) args: [usize; 6],
    /// Which argument is the environment.
    pub(crate) environment: usize,
    /// What LD_PRELOAD must have besides ([`needed`]).
    pub(crate) libraries: Vec<Vec<u8>>,
    /// The logical path of the file, if the program is no script with an interpreter of the host.
    pub(crate) file: Option<Vec<u8>>,
    /// The descriptors that were opened for the next program: of the file that the kernel executes, and
    /// of the one that a copy was made of. The library closes them if the exec fails.
    pub(crate) opened: [Option<RawFd>; 2],
}

/// If argument `path` (relative to `directory`) is a program of the array: the call to make
/// instead. `arguments` and `environment` are the addresses the program passed.
pub(crate) fn find(directory: RawFd, path: usize, arguments: usize, environment: usize) -> Option<Result<Stored, OsError>> {
    let by_link = |link: Link| Some(paths::text(path).and_then(|name| prepare_open(&link, name, arguments, environment)));
    if let Some(link) = magic::at(directory, path) {
        return by_link(link);
    }
    match paths::locate(directory, path) {
        Where::Host => {
            if let Some(link) = links::link_behind(directory, path) {
                return by_link(link);
            }
            let Some(mut found) = links::entered(directory, path, true, false) else {
                let script = Script::of_host(directory, path)?;
                return Some(prepare_first(None, script.interpreter, script.name, script.inserted, arguments, environment));
            };
            found.pop();
            Some(paths::text(path).and_then(|name| prepare(Asked::absolute(found), name, arguments, environment)))
        }
        Where::Array(found) => Some(paths::text(path).and_then(|name| {
            // An interpreter looks for the script that it is told of from the current directory.
            let is_elsewhere = directory != directory::AT_FDCWD && !name.starts_with(b"/");
            let name = if is_elsewhere { found.path().text().to_vec() } else { name };
            prepare(found, name, arguments, environment)
        })),
    }
}

/// Whether a path of the host leads to a program of the array, or to a script whose interpreter is
/// one.
pub(crate) fn is_reached_from_host(directory: RawFd, path: usize) -> bool {
    links::entered(directory, path, true, false).is_some() || Script::of_host(directory, path).is_some()
}

/// A script of the host whose interpreter is stored on the array.
struct Script {
    interpreter: Asked,
    name: Vec<u8>,
    inserted: Vec<Vec<u8>>,
}

impl Script {
    /// None if that is not what lies at a path, or it may not be executed: the kernel says so.
    fn of_host(directory: RawFd, path: usize) -> Option<Self> {
        array::prefixes()?;
        let text = paths::text(path).ok()?;
        // Relative to a descriptor a script has no path that it could be told.
        if directory != directory::AT_FDCWD && !text.starts_with(b"/") {
            return None;
        }
        let mut start = [0u8; START_BYTES];
        let file = unreached::file_of(exec::Target::Path(path))?;
        pread(&file, &mut start, 0).ok()?;
        let (interpreter, argument) = script(&start)?;
        let found = located(interpreter)?;
        accessat(CWD, text.as_slice(), Access::EXEC_OK, AtFlags::EACCESS).ok()?;
        let mut inserted = Vec::new();
        insert_script(&mut inserted, interpreter, argument, text);
        Some(Self { interpreter: found, name: interpreter.to_vec(), inserted })
    }
}

/// Where on the array a path leads that a script gives.
fn located(path: &[u8]) -> Option<Asked> {
    match paths::locate_bytes(directory::AT_FDCWD, path) {
        Where::Array(found) => Some(found),
        Where::Host => {
            let mut found = links::entered_by_text(directory::AT_FDCWD, path, true, false)?;
            // Its NUL.
            found.pop();
            Some(Asked::absolute(found))
        }
    }
}

/// Whether a path ends with a symlink: of the array, or of the host.
pub(crate) fn is_symlink(directory: RawFd, path: usize) -> bool {
    let mode = match paths::locate(directory, path) {
        Where::Array(asked) => match array::namespace().and_then(|namespace| namespace.stat(asked.path(), false)) {
            Ok(Reached::Array(stat)) => stat.st_mode,
            _ => return false,
        },
        Where::Host => {
            let found = paths::text(path).and_then(|path| statat(directory::borrow(directory), path, NO_FOLLOW));
            found.map_or(0, |stat| stat.st_mode)
        }
    };
    FileType::from_raw_mode(mode) == FileType::Symlink
}

/// The call that executes the array's program at `path`, which the program calls `name`.
fn prepare(path: Asked, name: Vec<u8>, arguments: usize, environment: usize) -> Result<Stored, OsError> {
    prepare_first(None, path, name, Vec::new(), arguments, environment)
}

/// Prepares the execution of the program that an open file holds, whatever the file is called by
/// now.
pub(crate) fn prepare_open(link: &Link, name: Vec<u8>, arguments: usize, environment: usize) -> Result<Stored, OsError> {
    let path = array::namespace()?.logical_path_of(link.descriptor())?.ok_or(OsError::ACCESS)?;
    prepare_first(Some(link), Asked::known(path), name, Vec::new(), arguments, environment)
}

fn prepare_first(
    mut first: Option<&Link>,
    mut path: Asked,
    mut name: Vec<u8>,
    mut inserted: Vec<Vec<u8>>,
    arguments: usize,
    environment: usize,
) -> Result<Stored, OsError> {
    let namespace = array::namespace()?;
    for _ in 0..=DEPTH_MAX {
        let opened = match first.take() {
            Some(link) => {
                let (fd, node) = (link.descriptor(), link.node());
                namespace.access_open(fd, node, Access::EXEC_OK, AtFlags::EACCESS)?;
                Reached::Array(namespace.reopen(fd, node, OFlags::RDONLY | OFlags::CLOEXEC, 0)?)
            }
            None => {
                // This comes before anything is opened: to close a file takes the process' record
                // locks on it away, and an exec that is refused must leave them.
                let permitted = namespace.access(path.path(), Access::EXEC_OK, AtFlags::EACCESS, true)?;
                // What is no regular file is refused, and not waited for.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let opened = namespace.open(path.path(), flags, 0).map_err(|error| match error {
                    OsError::NXIO | OsError::NODEV => OsError::ACCESS,
                    error => error,
                })?;
                if matches!((&opened, permitted), (Reached::Array(Opened { node: Node::File(_), .. }), Reached::Host(_))) {
                    return Err(OsError::ACCESS);
                }
                opened
            }
        };
        let host = match opened {
            Reached::Host(host) => host,
            Reached::Array(Opened { anchor, node: Node::File(file), .. }) => {
                let mut start = [0u8; START_BYTES];
                // SAFETY: the buffer is ours.
                unsafe { file.read_at(0, start.as_mut_ptr(), START_BYTES) }?;
                if start.starts_with(MAGIC) {
                    let wanted = exec::variable(environment, b"LD_LIBRARY_PATH");
                    let libraries = needed::elements(&Source::Stored(&file), path.text(), wanted.as_deref());
                    let name = namespace.logical_path_of(anchor.as_fd())?.unwrap_or_default();
                    let program = Program { anchor, file: &file, name: &name };
                    return binary(program, &inserted, arguments, environment, libraries);
                }
                let (interpreter, argument) = script(&start).ok_or(OsError::NOEXEC)?;
                insert_script(&mut inserted, interpreter, argument, core::mem::take(&mut name));
                interpreter.to_vec()
            }
            Reached::Array(_) => return Err(OsError::ACCESS),
        };
        let Some(found) = located(&host) else { return interpreted(&host, &inserted, arguments, environment) };
        (name, path) = (host, found);
    }
    Err(OsError::LOOP)
}

/// What a `#!` line names: the interpreter and the rest of the line as one argument. The kernel's
/// load_script is the model. Only spaces and tabs part words; a line that goes on behind what is
/// looked at is cut, and an interpreter that may have been cut is none. What is looked at of a
/// shorter file ends with zeros.
fn script(start: &[u8; START_BYTES]) -> Option<(&[u8], Option<&[u8]>)> {
    let text = start.strip_prefix(b"#!")?;
    let whole_line = text.iter().position(|&byte| byte == b'\n').and_then(|end| text.get(..end));
    if whole_line.is_none() && !without_blanks(text).iter().any(ends_word) {
        return None;
    }
    let line = whole_line.or_else(|| text.split_last().map(|(_, rest)| rest))?;
    let end = line.iter().rposition(|byte| !is_blank(byte)).map_or(0, |last| last + 1);
    let line = without_blanks(line.get(..end)?);
    if line.is_empty() {
        return None;
    }
    let until_nul = |text: &'_ [u8]| text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let gap = line.iter().position(ends_word).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at_checked(gap)?;
    let rest = without_blanks(rest);
    let argument = rest.get(..until_nul(rest)).filter(|argument| !argument.is_empty());
    Some((interpreter, argument.filter(|_| line.get(gap).is_some_and(is_blank))))
}

const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

const fn ends_word(byte: &u8) -> bool {
    is_blank(byte) || *byte == 0
}

/// A text without the blanks that it begins with.
fn without_blanks(text: &[u8]) -> &[u8] {
    text.iter().position(|byte| !is_blank(byte)).and_then(|start| text.get(start..)).unwrap_or(&[])
}

/// The arguments that come before the program's own, which lose their first: interpreter, its
/// argument, the script.
fn insert_script(inserted: &mut Vec<Vec<u8>>, interpreter: &[u8], argument: Option<&[u8]>, script: Vec<u8>) {
    // A script that is itself an interpreter is an argument already.
    if !inserted.is_empty() {
        inserted.remove(0);
    }
    let mut front: Vec<Vec<u8>> = heap::vec![interpreter.to_vec()];
    front.extend(argument.map(<[u8]>::to_vec));
    front.push(script);
    front.append(inserted);
    *inserted = front;
}

fn interpreted(host: &[u8], inserted: &[Vec<u8>], arguments: usize, environment: usize) -> Result<Stored, OsError> {
    let list = argument_list(inserted, Some(host), arguments)?;
    // The first string behind the list is the host path.
    let path = list.strings;
    Ok(Stored {
        number: __NR_execve as usize,
        args: [path, list.address, environment, 0, 0, 0],
        environment: 2,
        libraries: Vec::new(),
        file: None,
        opened: [None; 2],
    })
}

/// A program that is no script.
struct Program<'a> {
    anchor: OwnedFd,
    file: &'a file::FileRef,
    /// Its path.
    name: &'a [u8],
}

fn binary(
    Program { anchor, file, name }: Program<'_>,
    inserted: &[Vec<u8>],
    arguments: usize,
    environment: usize,
    libraries: Vec<Vec<u8>>,
) -> Result<Stored, OsError> {
    let kept = || array::namespace().is_ok_and(|namespace| namespace.files().is_kept_elsewhere(file.attribute()));
    let list = if inserted.is_empty() { arguments } else { argument_list(inserted, None, arguments)?.address };
    let (image, held) = if is_plain(file) && !kept() { (anchor, None) } else { (copy(file, name)?, Some(hold(anchor)?)) };
    let image = sys::high_fd::raise(image)?.into_raw_fd();
    let held = held.map(IntoRawFd::into_raw_fd);
    for descriptor in [Some(image), held].into_iter().flatten() {
        deputy::hand_over(descriptor);
    }
    let empty = c"".as_ptr() as usize;
    let args = [image as usize, empty, list, environment, AT_EMPTY_PATH as usize, 0];
    let file = Some(name.to_vec()).filter(|name| !name.is_empty());
    Ok(Stored { number: __NR_execveat as usize, args, environment: 3, libraries, file, opened: [Some(image), held] })
}

/// Whether the backing file is the file itself.
fn is_plain(file: &file::FileRef) -> bool {
    file.geometry().level() == Level::Raid1
}

/// What the kernel can map as the file's content: the backing file, or a copy.
pub(crate) fn image(anchor: OwnedFd, file: &file::FileRef) -> Result<OwnedFd, OsError> {
    if is_plain(file) { Ok(anchor) } else { copy(file, b"") }
}

/// Keeps a file that is executed as a copy from being written to, in the process that the exec
/// makes and its children. Returns the descriptor by which it is kept: the next program's library
/// knows it by its lock.
fn hold(anchor: OwnedFd) -> Result<OwnedFd, OsError> {
    namespace::hold_text(&anchor)?;
    let anchor = sys::high_fd::raise(anchor)?;
    fcntl_setfd(&anchor, FdFlags::empty())?;
    Ok(anchor)
}

/// What the kernel calls a copy, before the path of the file: `/memfd:cxlraid:/data/program
/// (deleted)`.
const COPY_NAME: &[u8] = b"cxlraid:";
/// The longest name of a memfd (memfd_create(2)).
const COPY_NAME_BYTES_MAX: usize = 249;

/// The path of the file that a program was copied from, by what the kernel calls the copy.
pub(crate) fn path_of_copy(link: &[u8]) -> Option<&[u8]> {
    link.strip_prefix(b"/memfd:")?.strip_prefix(COPY_NAME)?.strip_suffix(b" (deleted)").filter(|path| path.starts_with(b"/"))
}

/// At the start of a program that is such a copy: the kernel has named its thread after the copy
/// (prctl(2), PR_SET_NAME), and is told the file's name.
pub(crate) fn take_name(auxiliary: &Auxiliary) {
    const BY_DESCRIPTOR: &[u8; 8] = b"/dev/fd/";
    if auxiliary.name == 0 || program::read::<[u8; 8]>(auxiliary.name) != Ok(*BY_DESCRIPTOR) {
        return;
    }
    let Ok(link) = readlinkat(CWD, "/proc/self/exe", Vec::new()) else { return };
    if let Some(path) = path_of_copy(link.as_bytes()) {
        let name = [path.rsplit(|&byte| byte == b'/').next().unwrap_or(path), b"\0"].concat();
        // SAFETY: the kernel reads a string that ends with a NUL, and of that at most 16 bytes.
        unsafe { syscall(__NR_prctl as usize, [PR_SET_NAME, name.as_ptr() as usize, 0, 0, 0, 0]) };
    }
}

/// The file's bytes in memory of their own, which is called by the file's path if that is not too
/// long.
fn copy(file: &file::FileRef, path: &[u8]) -> Result<OwnedFd, OsError> {
    let mut name = [COPY_NAME, path].concat();
    if name.len() > COPY_NAME_BYTES_MAX {
        name.truncate(COPY_NAME.len());
    }
    let image = memfd_create(name, MemfdFlags::CLOEXEC)?;
    let mut buffer = heap::vec![0; COPY_BYTES];
    let mut offset = 0;
    loop {
        // SAFETY: the buffer is ours.
        let count = unsafe { file.read_at(offset, buffer.as_mut_ptr(), COPY_BYTES) }?;
        if count == 0 {
            return Ok(image);
        }
        let mut written = 0;
        while written < count {
            written += sys::rustix::io::write(&image, &buffer[written..count])?;
        }
        offset += count as u64;
    }
}

/// An argument list in the thread's memory for this.
struct List {
    address: usize,
    /// Where the inserted strings lie, the path first if there is one.
    strings: usize,
}

/// `inserted` in front of the program's arguments but the first, which they replace.
fn argument_list(inserted: &[Vec<u8>], path: Option<&[u8]>, arguments: usize) -> Result<List, OsError> {
    let mut pointers: Vec<usize> = Vec::new();
    for index in 0..if arguments == 0 { 0 } else { ARGUMENT_COUNT_MAX } {
        match program::read::<usize>(arguments + 8 * index)? {
            0 => break,
            pointer => pointers.push(pointer),
        }
    }
    // Without a script (a symbolic link out of the array) all arguments are the program's own.
    let own = if inserted.is_empty() { &pointers[..] } else { pointers.get(1..).unwrap_or(&[]) };
    let words = inserted.len() + own.len() + 1;
    let texts: usize = path.into_iter().chain(inserted.iter().map(Vec::as_slice)).map(|text| text.len() + 1).sum();
    let base = scratch(words * 8 + texts)?;
    let strings = base + words * 8;
    let mut text = strings;
    let mut place = |bytes: &[u8]| {
        let start = text;
        // SAFETY: `scratch` gave room for the list and all texts with their NULs; it is this
        // thread's alone.
        unsafe {
            (start as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            (start as *mut u8).add(bytes.len()).write(0);
        }
        text = start + bytes.len() + 1;
        start
    };
    if let Some(path) = path {
        place(path);
    }
    let list: Vec<usize> = inserted.iter().map(|bytes| place(bytes)).chain(own.iter().copied()).chain([0]).collect();
    // SAFETY: as above; the list has `words` entries.
    unsafe { (base as *mut usize).copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    Ok(List { address: base, strings })
}

/// This thread's memory for argument lists.
fn scratch(bytes: usize) -> Result<usize, OsError> {
    let (address, length) = (word(word::ARGUMENT_SCRATCH), word(word::ARGUMENT_SCRATCH_BYTES));
    exec::scratch_in(address, length, bytes).ok_or(OsError::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &[u8]) -> [u8; START_BYTES] {
        let mut start = [0; START_BYTES];
        let count = text.len().min(START_BYTES);
        start[..count].copy_from_slice(&text[..count]);
        start
    }

    #[test]
    fn interpreters_are_read_as_the_kernel_reads_them() {
        let long = [b"#!/bin/".to_vec(), std::vec![b'a'; 400]].concat();
        let late = [b"#!".to_vec(), std::vec![b' '; 300], b"/bin/sh\n".to_vec()].concat();
        for none in [&b"#!\n"[..], b"#! \t \n", b"# !/bin/sh\n", b"", b"echo\n", &long, &late] {
            assert_eq!(script(&line(none)), None, "{none:?}");
        }
        let told = |text: &[u8], interpreter: &[u8], argument: Option<&[u8]>| {
            assert_eq!(script(&line(text)), Some((interpreter, argument)), "{text:?}");
        };
        told(b"#!", b"", None);
        told(b"#!/bin/sh\n", b"/bin/sh", None);
        told(b"#!/bin/sh", b"/bin/sh", None);
        told(b"#! \t/bin/sh  \t\nx y", b"/bin/sh", None);
        told(b"#!/bin/sh -x y \nz", b"/bin/sh", Some(b"-x y"));
        // Only spaces and tabs part words, and a NUL ends them.
        told(b"#!/bin/sh\r\n", b"/bin/sh\r", None);
        told(b"#!/bin/sh\x0cx\n", b"/bin/sh\x0cx", None);
        told(b"#!/bin/sh a\0b\n", b"/bin/sh", Some(b"a"));
        told(b"#!/bin/sh\0 a\n", b"/bin/sh", None);
        // Behind what is looked at an argument is cut, an interpreter is not guessed.
        let cut = [b"#!/bin/sh ".to_vec(), std::vec![b'a'; 400]].concat();
        told(&cut, b"/bin/sh", Some(&[b'a'; START_BYTES - 1 - 10]));
    }

    #[test]
    fn copies_are_called_by_their_files() {
        let name = |link: &'static str| path_of_copy(link.as_bytes());
        assert_eq!(name("/memfd:cxlraid:/data/a (deleted)"), Some(&b"/data/a"[..]));
        assert_eq!(name("/memfd:cxlraid: (deleted)"), None);
        assert_eq!(name("/memfd:other (deleted)"), None);
    }
}
