//! Sequences of operations that once gave something else than on a plain directory. They come
//! before the random ones.

use super::Run;
use super::world::{Data, Operation};
use crate::call::{self, Fd, Vectored};

const RWF_APPEND: i32 = 0x10;

impl Run {
    /// Runs them all, each on files of its own.
    pub(super) fn known(&mut self) -> Result<(), String> {
        self.append_of_nothing_moves_nothing()?;
        self.copies_take_what_the_source_holds()?;
        self.errors_come_in_the_order_of_the_kernel()?;
        self.a_child_changes_how_its_parent_writes()
    }

    /// Opens a name anew; the descriptor is closed by `forget`.
    fn fresh(&mut self, name: usize, flags: i32) -> Result<Fd, String> {
        let path = self.path(name);
        let flags = flags | libc::O_CREAT | libc::O_TRUNC;
        let fd = call::open(&path, flags, 0o640).map_err(|errno| format!("{}: errno {errno}", path.display()))? as Fd;
        let file = self.world.names[name].unwrap_or_else(|| self.world.new_file());
        self.world.names[name] = Some(file);
        self.world.files[file].name_count = 1;
        self.world.files[file].contents.truncate(0);
        self.describe_descriptor(fd, file, flags);
        Ok(fd)
    }

    fn steps(&mut self, operations: &[Operation]) -> Result<(), String> {
        operations.iter().try_for_each(|operation| self.step(operation))
    }

    fn append_of_nothing_moves_nothing(&mut self) -> Result<(), String> {
        let (fd, appending) = (self.fresh(0, libc::O_RDWR)?, self.fresh(1, libc::O_RDWR | libc::O_APPEND)?);
        let some = Data { seed: 1, bytes: 5000 };
        let none = Data { seed: 1, bytes: 0 };
        self.steps(&[
            Operation::Write { fd, at: None, data: some },
            Operation::Seek { fd, offset: 10, whence: libc::SEEK_SET },
            Operation::WriteVector { fd, data: none, cuts: vec![0, 0], how: Vectored::Flags(-1, RWF_APPEND) },
            Operation::Read { fd, at: None, bytes: 100 },
            Operation::Write { fd: appending, at: None, data: some },
            Operation::Seek { fd: appending, offset: 10, whence: libc::SEEK_SET },
            Operation::Write { fd: appending, at: None, data: none },
            Operation::Read { fd: appending, at: None, bytes: 100 },
        ])
    }

    fn copies_take_what_the_source_holds(&mut self) -> Result<(), String> {
        let (fd, appending) = (self.fresh(0, libc::O_RDWR)?, self.fresh(1, libc::O_WRONLY | libc::O_APPEND)?);
        self.steps(&[
            Operation::Write { fd, at: None, data: Data { seed: 2, bytes: 5000 } },
            // Reaches the end, where it appends to its own source.
            Operation::CopyRange { from: fd, from_at: Some(4900), to: fd, to_at: None, bytes: 400 },
            // The positions overlap, given or not.
            Operation::Seek { fd, offset: 50, whence: libc::SEEK_SET },
            Operation::CopyRange { from: fd, from_at: None, to: fd, to_at: Some(100), bytes: 100 },
            Operation::CopyRange { from: fd, from_at: Some(10), to: fd, to_at: None, bytes: 100 },
            Operation::CopyRange { from: fd, from_at: Some(1 << 40), to: fd, to_at: Some(1 << 40), bytes: 100 },
            Operation::CopyRange { from: fd, from_at: None, to: appending, to_at: None, bytes: 100 },
            Operation::SendFile { to: appending, from: fd, at: None, bytes: 100 },
            Operation::SendFile { to: fd, from: appending, at: None, bytes: 100 },
        ])
    }

    fn errors_come_in_the_order_of_the_kernel(&mut self) -> Result<(), String> {
        let writable = self.fresh(0, libc::O_RDWR)?;
        let path = self.path(0);
        let fd = call::open(&path, libc::O_RDONLY, 0).map_err(|errno| format!("open: errno {errno}"))? as Fd;
        let file = self.world.description(writable).file;
        self.describe_descriptor(fd, file, libc::O_RDONLY);
        self.steps(&[
            Operation::Allocate { fd, mode: 0, offset: 0, bytes: 0 },
            Operation::Allocate { fd, mode: 0, offset: 0, bytes: 1 },
            Operation::Allocate { fd: writable, mode: 0, offset: -1, bytes: 1 },
        ])
    }

    fn a_child_changes_how_its_parent_writes(&mut self) -> Result<(), String> {
        let fd = self.fresh(0, libc::O_RDWR)?;
        self.steps(&[Operation::Write { fd, at: None, data: Data { seed: 3, bytes: 1000 } }])?;
        for append in [true, false] {
            let change = Operation::SetAppend { fd, append };
            let pid = call::fork(|| self.step(&change).is_ok());
            let status = pid.and_then(call::wait).map_err(|errno| format!("fork: errno {errno}"))?;
            if status != 0 {
                return Err(format!("the child ended with status {status:#x}"));
            }
            self.world.apply(&change);
            self.steps(&[Operation::Write { fd, at: Some(0), data: Data { seed: 4, bytes: 10 } }, Operation::Stat { fd }])?;
        }
        Ok(())
    }
}
