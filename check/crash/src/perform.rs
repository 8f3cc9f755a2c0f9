//! The program of a recorded run: does a workload's operations on an array by the engine.

use crate::case::{PREFIX, Shape};
use crate::record;
use crate::workload::{Operation, Workload, content};
use array::Array;
use file::{FileRef, Files, Mapped};
use namespace::{Content, Namespace, Node, OFlags, Opened, Reached, RenameFlags, XattrFlags};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use units::MemberSet;

/// A program with its descriptors.
struct Program<'a> {
    /// The array: another one when a member has come back.
    namespace: Mutex<Namespace>,
    shape: &'a Shape,
    home: &'a Path,
    window_bytes: Option<u64>,
    open: Mutex<HashMap<String, Opened>>,
    maps: Mutex<HashMap<String, Map>>,
}

/// A file that the program has mapped.
struct Map {
    mapped: Mapped,
    /// Pages stored to since they were last followed: the library knows them by the kernel's
    /// tracking.
    stored: BTreeSet<u64>,
}

const PAGE: u64 = 4096;

/// Attaches to the array below `home`, creating it if it is not there. The backing files that are
/// opened then are mapped in windows of `window_bytes`.
pub(crate) fn attach(shape: &Shape, home: &Path, window_bytes: Option<u64>) -> Result<Namespace, String> {
    // Lanes and journals lie in one window each.
    dax::set_window_bytes(None);
    let array = Array::attach(&shape.config(home)?).map_err(|error| error.to_string())?;
    let files = Files::new(array).map_err(|error| format!("the array's tables: {error}"))?;
    let namespace = Namespace::new(files).map_err(|error| format!("the array's names: {error}"))?;
    dax::set_window_bytes(window_bytes);
    Ok(namespace)
}

/// What was reached in the array.
pub(crate) fn inside<T, H>(result: sys::Result<Reached<T, H>>) -> Result<T, String> {
    match result {
        Ok(Reached::Array(value)) => Ok(value),
        Ok(Reached::Host(_)) => Err("led out of the array".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// The path of a file of the array.
pub(crate) fn path(name: &str) -> Vec<u8> {
    format!("{PREFIX}/{name}").into_bytes()
}

/// Does a workload on the array below `home`, recording its operations. This process records
/// (`record::begin`).
pub(crate) fn perform(workload: &Workload, shape: &Shape, home: &Path) -> Result<(), String> {
    let namespace = attach(shape, home, workload.window_bytes)?;
    let program = Program {
        namespace: Mutex::new(namespace),
        shape,
        home,
        window_bytes: workload.window_bytes,
        open: Mutex::default(),
        maps: Mutex::default(),
    };
    for operation in &workload.before {
        program.act(operation).map_err(|error| format!("{operation:?}: {error}"))?;
    }
    if workload.threads.iter().flatten().any(|operation| matches!(operation, Operation::TakeOut(_))) {
        // As after an orderly end nothing is under way that a lane names, and the member that goes
        // has all files whole.
        program.attach_anew(|| Ok(()))?;
    }
    record::start(workload.threads.len())?;
    let mut first = 0;
    let parts: Vec<_> = workload
        .threads
        .iter()
        .map(|operations| {
            first += operations.len();
            (first - operations.len(), operations)
        })
        .collect();
    let program = &program;
    let result = if let [(_, operations)] = parts[..] {
        program.run(0, operations)
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0u8..)
                .zip(&parts)
                .map(|(number, &(first, operations))| {
                    scope.spawn(move || {
                        record::turns::enter(number);
                        let result = program.run(first, operations);
                        record::turns::leave();
                        result
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
        })
    };
    program.leave_open()?;
    result
}

/// Does operations, the first of which has the number `first`, on an array that has been recovered,
/// recording them.
pub(crate) fn go_on(
    (namespace, shape, home): (Namespace, &Shape, &Path),
    first: usize,
    operations: &[Operation],
) -> Result<(), String> {
    let namespace = Mutex::new(namespace);
    let program = Program { namespace, shape, home, window_bytes: None, open: Mutex::default(), maps: Mutex::default() };
    let result = program.run(first, operations);
    program.leave_open()?;
    result
}

/// Stores `data` (whole words) at `within` of a piece, as a program does that has it mapped.
fn store_words(piece: &file::Piece<'_>, within: u64, data: &[u8]) -> Result<(), String> {
    let held = piece.backing.fd().map_err(|error| format!("a piece has no descriptor: {error}"))?;
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, held.as_raw_fd());
    let offset = piece.member_offset as libc::off_t;
    // SAFETY: a new mapping wherever the kernel likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), piece.bytes as usize, protection, libc::MAP_SHARED, fd, offset) };
    if start == libc::MAP_FAILED {
        return Err(format!("mmap: {}", std::io::Error::last_os_error()));
    }
    for (index, word) in data.as_chunks().0.iter().enumerate() {
        // SAFETY: within the mapping, which begins at a page; the file reaches there, or has its
        // last page there.
        unsafe { start.byte_add(within as usize).cast::<u64>().add(index).write_volatile(u64::from_le_bytes(*word)) };
    }
    // SAFETY: mapped above, and nobody else knows of it.
    unsafe { libc::munmap(start, piece.bytes as usize) };
    Ok(())
}

impl Map {
    /// What msync and munmap do first: copies and parity follow.
    fn follow(&mut self) -> Result<(), String> {
        let stored = std::mem::take(&mut self.stored).into_iter().map(|page| (page, page + PAGE));
        self.mapped.follow(stored).map_err(|error| error.to_string())
    }
}

impl Program<'_> {
    fn names(&self) -> Namespace {
        *self.namespace.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Leaves the array, does something, and uses the array again.
    fn attach_anew(&self, meanwhile: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        self.open_files().clear();
        self.names().files().detach();
        self.names().files().array().abandon();
        meanwhile()?;
        let names = attach(self.shape, self.home, self.window_bytes)?;
        *self.namespace.lock().map_err(|_| "a thread panicked")? = names;
        Ok(())
    }

    /// Brings a member back that was taken out: the array is left, the member filled, and its files
    /// are computed by a new use.
    fn re_add(&self, slot: usize) -> Result<(), String> {
        let config = self.shape.config(self.home)?;
        self.attach_anew(|| namespace::fill(&config, slot, Content::Kept).map_err(|error| error.to_string()))?;
        let names = self.names();
        for name in ["a", "b", "c", "d", "e", "f"] {
            if inside(names.stat(&path(name), false)).is_ok() {
                drop(inside(names.open(&path(name), OFlags::RDWR | OFlags::CLOEXEC, 0))?);
            }
        }
        let rebuilt = MemberSet::EMPTY.with(slot);
        names.files().array().end_rebuild(rebuilt).map_err(|error| error.to_string())
    }

    /// Does operations, the first of which has the number `first`, and records that.
    fn run(&self, first: usize, operations: &[Operation]) -> Result<(), String> {
        operations.iter().enumerate().try_for_each(|(index, operation)| {
            record::operation_begins(first + index);
            let value = self.act(operation).map_err(|error| format!("{operation:?}: {error}"))?;
            record::operation_ends(first + index, value);
            Ok(())
        })
    }

    /// The machine stops with everything open.
    fn leave_open(&self) -> Result<(), String> {
        std::mem::forget(std::mem::take(&mut *self.open.lock().map_err(|_| "a thread panicked")?));
        Ok(())
    }

    /// Does one operation. Returns what the call returned, where that tells something: an append
    /// its end.
    fn act(&self, operation: &Operation) -> Result<u64, String> {
        let names = &self.names();
        let write_bytes = |name: &str, at: Option<u64>, bytes: u64, seed: u64| {
            let data = content(seed, bytes);
            let file = self.file(name)?;
            // SAFETY: the buffer is ours.
            let written = unsafe {
                match at {
                    Some(at) => file.write_at(at, data.as_ptr(), data.len()).map(|count| count as u64),
                    None => file.append(data.as_ptr(), data.len()).map(|(end, _)| end),
                }
            };
            written.map_err(|error| error.to_string())
        };
        let done = |result: sys::Result<()>| result.map(|()| 0).map_err(|error| error.to_string());
        match *operation {
            Operation::Create(name) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let opened = inside(names.open(&path(name), flags, 0o644))?;
                self.keep(name, opened);
                Ok(0)
            }
            Operation::Write { name, at, bytes, seed } => write_bytes(name, Some(at), bytes, seed),
            Operation::Append { name, bytes, seed } => write_bytes(name, None, bytes, seed),
            Operation::Truncate { name, bytes } => done(self.file(name)?.truncate(bytes)),
            Operation::Punch { name, at, bytes } => done(self.file(name)?.punch(at, bytes, false)),
            Operation::Allocate { name, at, bytes } => done(self.file(name)?.allocate(at, bytes, false)),
            Operation::Sync(name) => done(self.file(name)?.sync()),
            Operation::Map(name) => self.map(name).map(|()| 0),
            Operation::Store { name, at, bytes, seed } => self.store(name, at, &content(seed, bytes)).map(|()| 0),
            Operation::Msync(name) => {
                let mut maps = self.mapped_files();
                let map = maps.get_mut(name).ok_or("it is not mapped")?;
                map.follow()?;
                done(map.mapped.file().sync())
            }
            Operation::Unmap(name) => {
                let mut map = self.mapped_files().remove(name).ok_or("it is not mapped")?;
                map.follow().map(|()| 0)
            }
            Operation::Close(name) => {
                drop(self.open_files().remove(name));
                Ok(0)
            }
            Operation::Fail(member) => done(names.files().array().fail_member(member)),
            Operation::TakeOut(member) => done(names.files().array().take_out(member, |_| true, || ())),
            Operation::ReAdd(member) => self.re_add(member).map(|()| 0),
            Operation::Mkdir(name) => inside(names.mkdir(&path(name), 0o755)).map(|()| 0),
            Operation::Rmdir(name) => inside(names.rmdir(&path(name))).map(|()| 0),
            Operation::Symlink { target, name } => inside(names.symlink(target.as_bytes(), &path(name))).map(|()| 0),
            Operation::Link { from, to } => inside(names.link(&path(from), &path(to), false)).map(|()| 0),
            Operation::Rename { from, to } => {
                inside(names.rename(&path(from), &path(to), RenameFlags::empty()))?;
                self.renamed(from, to);
                Ok(0)
            }
            Operation::Exchange { one, other } => {
                inside(names.rename(&path(one), &path(other), RenameFlags::EXCHANGE))?;
                self.open_files().clear();
                Ok(0)
            }
            Operation::Unlink(name) => {
                inside(names.unlink(&path(name)))?;
                // Open as before, under a name that nobody uses.
                self.renamed(name, &format!("{name} (deleted)"));
                Ok(0)
            }
            Operation::Chmod { name, mode } => inside(names.chmod(&path(name), mode, true)).map(|()| 0),
            Operation::Note { name, value: "" } => inside(names.removexattr(&path(name), b"user.note", true)).map(|()| 0),
            Operation::Note { name, value } => {
                inside(names.setxattr(&path(name), b"user.note", value.as_bytes(), XattrFlags::empty(), true)).map(|()| 0)
            }
        }
    }

    fn mapped_files(&self) -> std::sync::MutexGuard<'_, HashMap<String, Map>> {
        self.maps.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Maps a file as the library does for mmap: stores land on the members, or in a shared copy
    /// where they cannot.
    fn map(&self, name: &str) -> Result<(), String> {
        let file = self.file(name)?;
        let end = file.size().next_multiple_of(PAGE);
        let mapped = Mapped::new(&file).map_err(|error| error.to_string())?;
        let shown =
            if file.stores_into_copy() || file.piece_count(end).is_none() { file.share_copy() } else { mapped.store_directly() };
        let announced = shown.and_then(|()| mapped.cover(0, end)).and_then(|()| file.provide(0, end));
        announced.map_err(|error| error.to_string())?;
        self.mapped_files().insert(name.to_owned(), Map { mapped, stored: BTreeSet::new() });
        Ok(())
    }

    /// Stores whole words where the mapping shows them.
    fn store(&self, name: &str, at: u64, data: &[u8]) -> Result<(), String> {
        let mut maps = self.mapped_files();
        let map = maps.get_mut(name).ok_or("it is not mapped")?;
        let (first, end) = (at / PAGE * PAGE, (at + data.len() as u64).next_multiple_of(PAGE));
        map.stored.extend((first..end).step_by(PAGE as usize));
        let file = map.mapped.file();
        let mut piece_at = first;
        let whole = file.for_each_piece(file.is_copied(), first, end - first, |piece| {
            let (start, stop) = (at.max(piece_at), (at + data.len() as u64).min(piece_at + piece.bytes));
            if start < stop {
                let bytes = &data[(start - at) as usize..(stop - at) as usize];
                store_words(&piece, start - piece_at, bytes)?;
            }
            piece_at += piece.bytes;
            Ok::<_, String>(())
        })?;
        if whole { Ok(()) } else { Err("its pieces changed".into()) }
    }

    fn open_files(&self) -> std::sync::MutexGuard<'_, HashMap<String, Opened>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn keep(&self, name: &str, opened: Opened) {
        self.open_files().insert(name.to_owned(), opened);
    }

    fn renamed(&self, from: &str, to: &str) {
        let opened = self.open_files().remove(from);
        if let Some(opened) = opened {
            self.keep(to, opened);
        }
    }

    /// The file `name`, opened on first use.
    fn file(&self, name: &str) -> Result<FileRef, String> {
        if let Some(Opened { node: Node::File(file), .. }) = self.open_files().get(name) {
            return Ok(file.clone());
        }
        let opened = inside(self.names().open(&path(name), OFlags::RDWR | OFlags::CLOEXEC, 0))?;
        let Node::File(file) = &opened.node else { return Err("not a file".into()) };
        let file = file.clone();
        self.keep(name, opened);
        Ok(file)
    }
}
