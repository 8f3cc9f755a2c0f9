//! What the process of the single mode knows: files, names, descriptions and descriptors, and what
//! each operation must give.

use crate::call::{Answer, Fd, Vectored};
use crate::model::Contents;
use std::collections::BTreeMap;

/// Names in the directory that is worked in.
pub(crate) const NAME_COUNT: usize = 6;
const RWF_APPEND: i32 = 0x10;
const RWF_NOAPPEND: i32 = 0x20;

/// One file.
#[derive(Default, Clone)]
pub(crate) struct File {
    pub(crate) contents: Contents,
    pub(crate) name_count: u64,
}

/// An open file description.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) file: usize,
    pub(crate) position: u64,
    pub(crate) append: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The state of everything.
#[derive(Default, Clone)]
pub(crate) struct World {
    pub(crate) files: Vec<File>,
    pub(crate) names: [Option<usize>; NAME_COUNT],
    pub(crate) descriptions: BTreeMap<usize, Description>,
    /// Which description a descriptor refers to.
    pub(crate) descriptors: BTreeMap<Fd, usize>,
    /// The file of every mapping that is held.
    pub(crate) mapped: Vec<usize>,
}

/// An operation on what descriptors refer to. Offsets of None are the position.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Read { fd: Fd, at: Option<i64>, bytes: usize },
    ReadVector { fd: Fd, bytes: usize, cuts: Vec<usize>, how: Vectored },
    Write { fd: Fd, at: Option<i64>, data: Data },
    WriteVector { fd: Fd, data: Data, cuts: Vec<usize>, how: Vectored },
    Seek { fd: Fd, offset: i64, whence: i32 },
    Truncate { fd: Fd, size: i64 },
    Allocate { fd: Fd, mode: i32, offset: i64, bytes: i64 },
    CopyRange { from: Fd, from_at: Option<i64>, to: Fd, to_at: Option<i64>, bytes: usize },
    SendFile { to: Fd, from: Fd, at: Option<i64>, bytes: usize },
    Map { fd: Fd, page: u64, bytes: usize, shared: bool },
    Stat { fd: Fd },
    Sync { fd: Fd, data_only: bool },
    SetAppend { fd: Fd, append: bool },
}

/// Bytes to be written, made from a seed: so that an operation is short when printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    pub(crate) seed: u64,
    pub(crate) bytes: usize,
}

impl Data {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        oracle::Rng::new(self.seed).fill(&mut bytes);
        bytes
    }
}

/// What an operation gives.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Answer),
    Bytes(Vec<u8>),
    /// Size and names.
    Stat(u64, u64),
    /// The answer, and the offsets that a copy left.
    Offsets(Answer, Option<i64>, Option<i64>),
    /// SEEK_DATA and SEEK_HOLE may answer in several ways: see [`World::accept_seek`].
    AnyExtent,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Answer(answer) => write!(f, "{answer:?}"),
            Self::Bytes(bytes) => write!(f, "{} bytes {:02x?}..", bytes.len(), &bytes[..bytes.len().min(16)]),
            Self::Stat(size, names) => write!(f, "size {size}, {names} names"),
            Self::Offsets(answer, from, to) => write!(f, "{answer:?}, offsets {from:?} and {to:?}"),
            Self::AnyExtent => f.write_str("an extent"),
        }
    }
}

impl World {
    pub(crate) fn description(&mut self, fd: Fd) -> &mut Description {
        let key = self.descriptors[&fd];
        self.descriptions.get_mut(&key).expect("descriptors refer to descriptions")
    }

    pub(crate) fn file_of(&mut self, fd: Fd) -> &mut File {
        let file = self.description(fd).file;
        &mut self.files[file]
    }

    fn size_of(&mut self, fd: Fd) -> u64 {
        self.file_of(fd).contents.size()
    }

    /// Does `operation` on the model and says what it must give.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Read { fd, at, bytes } => self.read(fd, at, bytes),
            Operation::ReadVector { fd, bytes, how, .. } => self.read(fd, place(how).0, bytes),
            Operation::Write { fd, at, data } => Outcome::Answer(self.write(fd, at, &data.bytes(), 0)),
            Operation::WriteVector { fd, data, how, .. } => {
                let (at, flags) = place(how);
                Outcome::Answer(self.write(fd, at, &data.bytes(), flags))
            }
            Operation::Seek { fd, offset, whence } => self.seek(fd, offset, whence),
            Operation::Truncate { fd, size } => Outcome::Answer(self.truncate(fd, size)),
            Operation::Allocate { fd, mode, offset, bytes } => Outcome::Answer(self.allocate(fd, mode, offset, bytes)),
            Operation::CopyRange { from, from_at, to, to_at, bytes } => self.copy_range(from, from_at, to, to_at, bytes),
            Operation::SendFile { to, from, at, bytes } => self.sendfile(to, from, at, bytes),
            Operation::Map { fd, page, bytes, .. } => {
                if !self.description(fd).readable {
                    return Outcome::Answer(Err(libc::EACCES));
                }
                Outcome::Bytes(self.file_of(fd).contents.read(page * 4096, bytes))
            }
            Operation::Stat { fd } => {
                let file = self.file_of(fd);
                Outcome::Stat(file.contents.size(), file.name_count)
            }
            Operation::Sync { .. } => Outcome::Answer(Ok(0)),
            Operation::SetAppend { fd, append } => {
                self.description(fd).append = append;
                Outcome::Answer(Ok(0))
            }
        }
    }

    fn read(&mut self, fd: Fd, at: Option<i64>, bytes: usize) -> Outcome {
        let description = self.description(fd).clone();
        if !description.readable {
            return Outcome::Answer(Err(libc::EBADF));
        }
        let offset = at.map_or(description.position, |at| at as u64);
        let read = self.file_of(fd).contents.read(offset, bytes);
        if at.is_none() {
            self.description(fd).position += read.len() as u64;
        }
        Outcome::Bytes(read)
    }

    fn write(&mut self, fd: Fd, at: Option<i64>, bytes: &[u8], flags: i32) -> Answer {
        let description = self.description(fd).clone();
        if !description.writable {
            return Err(libc::EBADF);
        }
        let append = (description.append || flags & RWF_APPEND != 0) && flags & RWF_NOAPPEND == 0;
        let contents = &mut self.file_of(fd).contents;
        let offset = match at {
            _ if append => contents.size(),
            Some(at) => at as u64,
            None => description.position,
        };
        contents.write(offset, bytes);
        if at.is_none() && !bytes.is_empty() {
            self.description(fd).position = offset + bytes.len() as u64;
        }
        Ok(bytes.len() as i64)
    }

    fn seek(&mut self, fd: Fd, offset: i64, whence: i32) -> Outcome {
        let size = self.size_of(fd) as i64;
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.description(fd).position as i64,
            libc::SEEK_END => size,
            _ if offset < 0 || offset >= size => return Outcome::Answer(Err(libc::ENXIO)),
            _ => return Outcome::AnyExtent,
        };
        let target = base + offset;
        if target < 0 {
            return Outcome::Answer(Err(libc::EINVAL));
        }
        self.description(fd).position = target as u64;
        Outcome::Answer(Ok(target))
    }

    /// Whether SEEK_DATA or SEEK_HOLE may give `got`; takes it over if so. A hole may be called
    /// data, but data never a hole.
    pub(crate) fn accept_seek(&mut self, fd: Fd, offset: i64, whence: i32, got: &Answer) -> bool {
        let contents = &self.file_of(fd).contents;
        let (offset, size) = (offset as u64, contents.size());
        let fits = match *got {
            Ok(got) if whence == libc::SEEK_DATA => {
                let got = got as u64;
                offset <= got && got < size && contents.is_zero(offset, got)
            }
            Ok(got) => {
                let got = got as u64;
                offset <= got && (got == size || got < size && contents.is_zero(got, got + 1))
            }
            // No data behind the offset.
            Err(libc::ENXIO) => whence == libc::SEEK_DATA && contents.is_zero(offset, size),
            Err(_) => false,
        };
        if let (true, Ok(got)) = (fits, *got) {
            self.description(fd).position = got as u64;
        }
        fits
    }

    fn truncate(&mut self, fd: Fd, size: i64) -> Answer {
        if !self.description(fd).writable || size < 0 {
            return Err(libc::EINVAL);
        }
        self.file_of(fd).contents.truncate(size as u64);
        Ok(0)
    }

    fn allocate(&mut self, fd: Fd, mode: i32, offset: i64, bytes: i64) -> Answer {
        if offset < 0 || bytes <= 0 {
            return Err(libc::EINVAL);
        }
        if !self.description(fd).writable {
            return Err(libc::EBADF);
        }
        let contents = &mut self.file_of(fd).contents;
        let (offset, bytes) = (offset as u64, bytes as u64);
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && offset + bytes > contents.size() {
            contents.truncate(offset + bytes);
        }
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            contents.zero(offset, bytes);
        }
        Ok(0)
    }

    fn copy_range(&mut self, from: Fd, from_at: Option<i64>, to: Fd, to_at: Option<i64>, bytes: usize) -> Outcome {
        let (source, target) = (self.description(from).clone(), self.description(to).clone());
        let refused = |errno| Outcome::Offsets(Err(errno), from_at, to_at);
        if !source.readable || !target.writable || target.append {
            return refused(libc::EBADF);
        }
        let start = from_at.map_or(source.position, |at| at as u64);
        let end = to_at.map_or(target.position, |at| at as u64);
        let copied = self.file_of(from).contents.read(start, bytes);
        let count = copied.len() as u64;
        if source.file == target.file && end + count > start && end < start + count {
            return refused(libc::EINVAL);
        }
        self.file_of(to).contents.write(end, &copied);
        if from_at.is_none() {
            self.description(from).position += count;
        }
        if to_at.is_none() {
            self.description(to).position += count;
        }
        let moved = |at: Option<i64>| at.map(|at| at + count as i64);
        Outcome::Offsets(Ok(count as i64), moved(from_at), moved(to_at))
    }

    fn sendfile(&mut self, to: Fd, from: Fd, at: Option<i64>, bytes: usize) -> Outcome {
        let (source, target) = (self.description(from).clone(), self.description(to).clone());
        if !source.readable || !target.writable {
            return Outcome::Offsets(Err(libc::EBADF), at, None);
        }
        if target.append {
            return Outcome::Offsets(Err(libc::EINVAL), at, None);
        }
        let copied = self.file_of(from).contents.read(at.map_or(source.position, |at| at as u64), bytes);
        let count = copied.len() as u64;
        self.file_of(to).contents.write(target.position, &copied);
        if at.is_none() {
            self.description(from).position += count;
        }
        self.description(to).position += count;
        Outcome::Offsets(Ok(count as i64), at.map(|at| at + count as i64), None)
    }

    /// Forgets descriptions that no descriptor refers to.
    pub(crate) fn sweep(&mut self) {
        let Self { descriptions, descriptors, .. } = self;
        descriptions.retain(|key, _| descriptors.values().any(|used| used == key));
        for file in 0..self.files.len() {
            if !self.is_used(file) {
                self.files[file].contents = Contents::default();
            }
        }
    }

    /// Whether anything refers to a file still: a mapping may be the last to do so.
    fn is_used(&self, file: usize) -> bool {
        self.mapped.contains(&file) || self.names.contains(&Some(file)) || self.descriptions.values().any(|one| one.file == file)
    }

    /// A number for a new file.
    pub(crate) fn new_file(&mut self) -> usize {
        let free = (0..self.files.len()).find(|&file| !self.is_used(file));
        let file = free.unwrap_or_else(|| {
            self.files.push(File::default());
            self.files.len() - 1
        });
        self.files[file] = File::default();
        file
    }
}

/// Offset (None: the position) and flags of a vectored call.
fn place(how: Vectored) -> (Option<i64>, i32) {
    match how {
        Vectored::Position | Vectored::Flags(-1, 0) => (None, 0),
        Vectored::Offset(offset) => (Some(offset), 0),
        Vectored::Flags(offset, flags) => ((offset != -1).then_some(offset), flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_only_a_mapping_holds_is_not_taken_for_a_new_one() {
        let mut world = World::default();
        let file = world.new_file();
        world.files[file].contents.write(0, b"mapped");
        world.mapped.push(file);
        world.sweep();
        assert_ne!(world.new_file(), file);
        assert_eq!(world.files[file].contents.size(), 6);
        world.mapped.clear();
        world.sweep();
        assert_eq!(world.files[file].contents.size(), 0);
        assert_eq!(world.new_file(), file);
    }
}
