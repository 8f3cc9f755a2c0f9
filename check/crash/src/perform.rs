//! The program of a recorded run: does a workload's operations on an array by the engine.

use crate::case::{PREFIX, Shape};
use crate::record;
use crate::workload::{Operation, Workload, content};
use array::Array;
use file::{FileRef, Files};
use namespace::{Namespace, Node, OFlags, Opened, Reached, RenameFlags, XattrFlags};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

/// A program with its descriptors.
struct Program {
    namespace: Namespace,
    open: Mutex<HashMap<String, Opened>>,
}

/// Attaches to the array below `home`, creating it if it is not there.
pub(crate) fn attach(shape: &Shape, home: &Path) -> Result<Namespace, String> {
    let array = Array::attach(&shape.config(home)?).map_err(|error| error.to_string())?;
    let files = Files::new(array).map_err(|error| format!("the array's tables: {error}"))?;
    Namespace::new(files).map_err(|error| format!("the array's names: {error}"))
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

/// Does a workload on the array below `home`, recording its operations. This process records (`record::begin`).
pub(crate) fn perform(workload: &Workload, shape: &Shape, home: &Path) -> Result<(), String> {
    let program = Program { namespace: attach(shape, home)?, open: Mutex::new(HashMap::new()) };
    for operation in &workload.before {
        program.act(operation).map_err(|error| format!("{operation:?}: {error}"))?;
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
    let run = |first: usize, operations: &[Operation]| {
        operations.iter().enumerate().try_for_each(|(index, operation)| {
            record::operation_begins(first + index);
            let value = program.act(operation).map_err(|error| format!("{operation:?}: {error}"))?;
            record::operation_ends(first + index, value);
            Ok(())
        })
    };
    let (run, program) = (&run, &program);
    let result = if let [(_, operations)] = parts[..] {
        run(0, operations)
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0u8..)
                .zip(&parts)
                .map(|(number, &(first, operations))| {
                    scope.spawn(move || {
                        record::turns::enter(number);
                        let result = run(first, operations);
                        record::turns::leave();
                        result
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
        })
    };
    std::mem::forget(std::mem::take(&mut *program.open.lock().map_err(|_| "a thread panicked")?));
    result
}

impl Program {
    /// Does one operation. Returns what the call returned, where that tells something: an append its end.
    fn act(&self, operation: &Operation) -> Result<u64, String> {
        let names = &self.namespace;
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
            Operation::Close(name) => {
                drop(self.open_files().remove(name));
                Ok(0)
            }
            Operation::Fail(member) => done(names.files().array().fail_member(member)),
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
        let opened = inside(self.namespace.open(&path(name), OFlags::RDWR | OFlags::CLOEXEC, 0))?;
        let Node::File(file) = &opened.node else { return Err("not a file".into()) };
        let file = file.clone();
        self.keep(name, opened);
        Ok(file)
    }
}
