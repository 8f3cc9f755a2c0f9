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
use crate::needed::{self, Source};
use crate::thread::word;
use crate::{deputy, exec, program};
use heap::vec::Vec;
use layout::Level;
use linux_raw_sys::general::{__NR_execve, __NR_execveat, AT_EMPTY_PATH};
use namespace::{Access, AtFlags, FileType, Node, OFlags, Opened, Reached};
use sys::rustix::fs::{MemfdFlags, memfd_create, statat};
use sys::rustix::io::{FdFlags, fcntl_setfd};
use sys::{IntoRawFd, OsError, OwnedFd, RawFd};

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
}

/// If argument `path` (relative to `directory`) is a program of the array: the call to make instead. `arguments` and `environment` are the
/// addresses the program passed.
pub(crate) fn find(directory: RawFd, path: usize, arguments: usize, environment: usize) -> Option<Result<Stored, OsError>> {
    if let Some(link) = magic::at(directory, path) {
        return Some(paths::text(path).and_then(|name| prepare_open(&link, name, arguments, environment)));
    }
    match paths::locate(directory, path) {
        Where::Host => {
            let mut found = links::entered(directory, path, true, false)?;
            found.pop();
            Some(paths::text(path).and_then(|name| prepare(Asked::absolute(found), name, arguments, environment)))
        }
        Where::Array(found) => Some(paths::text(path).and_then(|name| prepare(found, name, arguments, environment))),
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
    prepare_first(None, path, name, arguments, environment)
}

/// Prepares the execution of the program that an open file holds, whatever the file is called by now.
pub(crate) fn prepare_open(link: &Link, name: Vec<u8>, arguments: usize, environment: usize) -> Result<Stored, OsError> {
    let path = array::namespace()?.logical_path_of(link.descriptor())?.ok_or(OsError::ACCESS)?;
    prepare_first(Some(link), Asked::known(path), name, arguments, environment)
}

fn prepare_first(
    mut first: Option<&Link>,
    mut path: Asked,
    mut name: Vec<u8>,
    arguments: usize,
    environment: usize,
) -> Result<Stored, OsError> {
    let namespace = array::namespace()?;
    let mut inserted: Vec<Vec<u8>> = Vec::new();
    for _ in 0..=DEPTH_MAX {
        let opened = match first.take() {
            Some(link) => {
                let (fd, node) = (link.descriptor(), link.node());
                namespace.access_open(fd, node, Access::EXEC_OK, AtFlags::EACCESS)?;
                Reached::Array(namespace.reopen(fd, node, OFlags::RDONLY | OFlags::CLOEXEC, 0)?)
            }
            None => {
                let opened = namespace.open(path.path(), OFlags::RDONLY | OFlags::CLOEXEC, 0)?;
                if matches!(&opened, Reached::Array(Opened { node: Node::File(_), .. }))
                    && let Reached::Host(_) = namespace.access(path.path(), Access::EXEC_OK, AtFlags::EACCESS, true)?
                {
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
                let count = unsafe { file.read_at(0, start.as_mut_ptr(), START_BYTES) }?;
                if start.starts_with(MAGIC) {
                    let wanted = exec::variable(environment, b"LD_LIBRARY_PATH");
                    let libraries = needed::elements(&Source::Stored(&file), path.text(), wanted.as_deref());
                    return binary(anchor, &file, &inserted, arguments, environment, libraries);
                }
                let (interpreter, argument) = script(&start[..count]).ok_or(OsError::NOEXEC)?;
                insert_script(&mut inserted, interpreter, argument, core::mem::take(&mut name));
                interpreter.to_vec()
            }
            Reached::Array(_) => return Err(OsError::ACCESS),
        };
        if !array::prefixes().is_some_and(|prefixes| prefixes.own(&::array::config::normalise(&host))) {
            return interpreted(&host, &inserted, arguments, environment);
        }
        name.clone_from(&host);
        path = Asked::absolute(host);
    }
    Err(OsError::LOOP)
}

/// What a `#!` line names: the interpreter and the rest of the line as one argument.
fn script(start: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = start.strip_prefix(b"#!")?;
    let end = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
    let line = line[..end].trim_ascii();
    let split = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let argument = line[split..].trim_ascii();
    (split != 0).then_some((&line[..split], (!argument.is_empty()).then_some(argument)))
}

/// The arguments that come before the program's own, which lose their first: interpreter, its argument, the script.
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
    })
}

fn binary(
    anchor: OwnedFd,
    file: &file::FileRef,
    inserted: &[Vec<u8>],
    arguments: usize,
    environment: usize,
    libraries: Vec<Vec<u8>>,
) -> Result<Stored, OsError> {
    let kept = || array::namespace().is_ok_and(|namespace| namespace.files().is_kept_elsewhere(file.attribute()));
    let image = if is_plain(file) && !kept() { anchor } else { copy(file).and_then(|image| hold(anchor).map(|()| image))? };
    let list = if inserted.is_empty() { arguments } else { argument_list(inserted, None, arguments)?.address };
    // Closed by the exec; if that fails, by the exit of the child that tried it.
    let image = sys::high_fd::raise(image)?.into_raw_fd();
    deputy::hand_over(image);
    let empty = c"".as_ptr() as usize;
    let args = [image as usize, empty, list, environment, AT_EMPTY_PATH as usize, 0];
    Ok(Stored { number: __NR_execveat as usize, args, environment: 3, libraries })
}

/// Whether the backing file is the file itself.
fn is_plain(file: &file::FileRef) -> bool {
    file.geometry().level() == Level::Raid1
}

/// What the kernel can map as the file's content: the backing file, or a copy.
pub(crate) fn image(anchor: OwnedFd, file: &file::FileRef) -> Result<OwnedFd, OsError> {
    if is_plain(file) { Ok(anchor) } else { copy(file) }
}

/// Keeps a file that is executed as a copy from being written to, in the process that the exec makes and its children.
fn hold(anchor: OwnedFd) -> Result<(), OsError> {
    namespace::hold_text(&anchor)?;
    let anchor = sys::high_fd::raise(anchor)?;
    fcntl_setfd(&anchor, FdFlags::empty())?;
    // The next program's library knows it by its lock.
    deputy::hand_over(anchor.into_raw_fd());
    Ok(())
}

/// The file's bytes in memory of their own.
fn copy(file: &file::FileRef) -> Result<OwnedFd, OsError> {
    let image = memfd_create(c"cxlraid-program", MemfdFlags::CLOEXEC)?;
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
        // SAFETY: `scratch` gave room for the list and all texts with their NULs; it is this thread's alone.
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
