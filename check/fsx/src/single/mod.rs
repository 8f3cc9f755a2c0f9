//! One process on several files through many descriptors and names, against an exact model.
//!
//! Every operation is done on the model and by calls of the C library, and the answers are compared
//! at once. A seed and a number of operations repeat a run exactly; the first difference ends it,
//! with the last operations printed.

mod known;
mod maps;
mod names;
mod plan;
mod world;

use crate::call::{self, Answer, Fd};
use crate::expected;
use oracle::Rng;
use plan::Abilities;
use std::collections::VecDeque;
use std::path::PathBuf;
use world::{Operation, Outcome, World};

/// How many operations a failure shows.
const LOG_COUNT: usize = 60;
/// All bytes of all files are compared this often.
const COMPARE_EVERY: u64 = 2_000;

/// What the worker is told.
pub(crate) struct Orders {
    /// Where the files lie.
    pub(crate) directory: PathBuf,
    pub(crate) seed: u64,
    pub(crate) operations: u64,
    pub(crate) chunk: u64,
    /// The array is one (a plain directory otherwise).
    pub(crate) array: bool,
    /// Whether shared mappings show what is written later: with a member out they are copies.
    pub(crate) coherent_maps: bool,
    /// Whether files are stored to through mappings that are held.
    pub(crate) maps: bool,
    /// The member whose files are cut short after half of the operations.
    pub(crate) cut: Option<PathBuf>,
    /// Where what the files must hold is written in the end.
    pub(crate) expected: Option<PathBuf>,
}

struct Run {
    orders: Orders,
    rng: Rng,
    world: World,
    /// Mappings that are stored to.
    held: Vec<maps::Held>,
    log: VecDeque<String>,
    /// Operations done.
    count: u64,
}

/// Runs; the message of an error says what differed.
pub(crate) fn run(orders: Orders) -> Result<u64, String> {
    let rng = Rng::new(orders.seed);
    let mut run = Run { orders, rng, world: World::default(), held: Vec::new(), log: VecDeque::new(), count: 0 };
    run.go().map(|()| run.count).map_err(|message| {
        let log: Vec<String> = run.log.iter().cloned().collect();
        format!("{}\n  operation {}: {message}", log.join("\n"), run.count)
    })
}

impl Run {
    fn go(&mut self) -> Result<(), String> {
        self.known()?;
        while self.count < self.orders.operations {
            self.count += 1;
            if self.count == self.orders.operations / 2
                && let Some(member) = self.orders.cut.clone()
            {
                self.cut_member(&member)?;
            }
            if self.count.is_multiple_of(COMPARE_EVERY) {
                self.compare_all()?;
            }
            match self.rng.below(200) {
                0..8 => self.change_names()?,
                8 => self.in_child()?,
                9..34 if self.orders.maps => self.use_maps()?,
                _ => {
                    let chunk = self.orders.chunk;
                    let abilities = Abilities { zero_range: self.orders.array };
                    match plan::operation(&mut self.rng, &mut self.world, chunk, abilities) {
                        Some(operation) => self.step(&operation)?,
                        None => self.change_names()?,
                    }
                }
            }
        }
        self.compare_all()?;
        self.finish()
    }

    fn note(&mut self, line: impl std::fmt::Display) {
        if self.log.len() == LOG_COUNT {
            self.log.pop_front();
        }
        self.log.push_back(format!("  {:>7} {line}", self.count));
    }

    /// One operation on the model and in reality.
    fn step(&mut self, operation: &Operation) -> Result<(), String> {
        let described = self.describe(operation);
        self.note(described);
        let expected = self.world.apply(operation);
        let got = perform(operation);
        match (&expected, operation) {
            (Outcome::AnyExtent, &Operation::Seek { fd, offset, whence }) => {
                let Outcome::Answer(answer) = &got else { return Err(format!("{operation:?} gave {got:?}")) };
                if self.world.accept_seek(fd, offset, whence, answer) {
                    Ok(())
                } else {
                    Err(format!("{operation:?} gave {got:?}"))
                }
            }
            _ if expected == got => self.look_again(operation),
            (Outcome::Bytes(expected), _) if let Outcome::Bytes(got) = &got => {
                Err(format!("{operation:?}: {}", expected::difference(expected, got)))
            }
            _ => Err(format!("{operation:?} gave {got:?}, not {expected:?}")),
        }
    }

    fn describe(&mut self, operation: &Operation) -> String {
        let fd = *match operation {
            Operation::Read { fd, .. }
            | Operation::ReadVector { fd, .. }
            | Operation::Write { fd, .. }
            | Operation::WriteVector { fd, .. }
            | Operation::Seek { fd, .. }
            | Operation::Truncate { fd, .. }
            | Operation::Allocate { fd, .. }
            | Operation::Map { fd, .. }
            | Operation::Stat { fd }
            | Operation::Sync { fd, .. }
            | Operation::SetAppend { fd, .. } => fd,
            Operation::CopyRange { to, .. } | Operation::SendFile { to, .. } => to,
        };
        let description = self.world.description(fd).clone();
        let size = self.world.file_of(fd).contents.size();
        let append = if description.append { " append" } else { "" };
        format!("{operation:?} [file {} size {size} position {}{append}]", description.file, description.position)
    }

    /// Shared mappings show what is written through descriptors.
    fn look_again(&mut self, operation: &Operation) -> Result<(), String> {
        let &Operation::Map { fd, page, bytes, shared: true } = operation else { return Ok(()) };
        let description = self.world.description(fd).clone();
        if !self.orders.coherent_maps || !description.writable || description.append || !description.readable {
            return Ok(());
        }
        let size = self.world.file_of(fd).contents.size();
        let offset = page * 4096;
        if offset >= size {
            return Ok(());
        }
        let count = (bytes as u64).min(size - offset);
        let map = call::Mapping::new(fd, offset, bytes, true).map_err(|errno| format!("mmap: errno {errno}"))?;
        let at = offset + self.rng.below(count);
        let data = world::Data { seed: self.rng.word(), bytes: self.rng.below(offset + count - at).min(9000) as usize };
        self.step(&Operation::Write { fd, at: Some(at as i64), data })?;
        let expected = self.world.file_of(fd).contents.read(offset, count as usize);
        let got = map.copy(count as usize);
        if got == expected { Ok(()) } else { Err(format!("mapping: {}", expected::difference(&expected, &got))) }
    }

    /// Some operations in a child, through the descriptors it inherits. The model then follows.
    fn in_child(&mut self) -> Result<(), String> {
        let (seed, count) = (self.rng.word(), 1 + self.rng.below(20));
        self.note(format!("fork: {count} operations in the child"));
        let pid = call::fork(|| match self.child_operations(seed, count, true) {
            Ok(()) => true,
            Err(message) => {
                eprintln!("in the child: {message}");
                false
            }
        });
        let status = pid.and_then(call::wait).map_err(|errno| format!("fork: errno {errno}"))?;
        if status != 0 {
            return Err(format!("the child ended with status {status:#x}"));
        }
        self.child_operations(seed, count, false)
    }

    fn child_operations(&mut self, seed: u64, count: u64, really: bool) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        for _ in 0..count {
            let abilities = Abilities { zero_range: self.orders.array };
            let Some(operation) = plan::operation(&mut rng, &mut self.world, self.orders.chunk, abilities) else { break };
            // Answers that the model cannot foretell would not be known to the parent.
            let foretold =
                !matches!(operation, Operation::Seek { whence: libc::SEEK_DATA | libc::SEEK_HOLE, .. } | Operation::Map { .. });
            if foretold && really {
                self.step(&operation)?;
            } else if foretold {
                let described = self.describe(&operation);
                self.note(format!("child: {described}"));
                self.world.apply(&operation);
            }
        }
        Ok(())
    }

    /// Compares everything that can be reached, by names and by descriptors.
    fn compare_all(&mut self) -> Result<(), String> {
        self.note("compare all");
        for name in 0..world::NAME_COUNT {
            let path = self.path(name);
            let Some(file) = self.world.names[name] else {
                if call::stat(Err(&path)) != Err(libc::ENOENT) {
                    return Err(format!("{} is there", path.display()));
                }
                continue;
            };
            let fd = call::open(&path, libc::O_RDONLY, 0).map_err(|errno| format!("{}: errno {errno}", path.display()))? as Fd;
            let result = self.compare(fd, file);
            call::close(fd).map_err(|errno| format!("close: errno {errno}"))?;
            result?;
        }
        let open: Vec<Fd> = self.world.descriptors.keys().copied().collect();
        for fd in open {
            let description = self.world.description(fd).clone();
            if description.readable {
                self.compare(fd, description.file)?;
            }
            let position = call::lseek(fd, 0, libc::SEEK_CUR);
            if position != Ok(description.position as i64) {
                return Err(format!("descriptor {fd} is at {position:?}, not at {}", description.position));
            }
        }
        self.compare_maps()
    }

    fn compare(&mut self, fd: Fd, file: usize) -> Result<(), String> {
        let file = &self.world.files[file];
        let stat = call::stat(Ok(fd));
        if stat != Ok((file.contents.size(), file.name_count)) {
            return Err(format!("stat gives {stat:?}, not size {} and {} names", file.contents.size(), file.name_count));
        }
        for (offset, expected) in file.contents.extents() {
            let mut got = vec![0; expected.len()];
            let count = call::pread(fd, &mut got, offset as i64);
            if count != Ok(got.len() as i64) || got != expected {
                return Err(format!("from {offset} on, {count:?} read: {}", expected::difference(&expected, &got)));
            }
        }
        Ok(())
    }
}

/// The operation in reality.
fn perform(operation: &Operation) -> Outcome {
    let bytes = |buffer: Vec<u8>, answer: Answer| match answer {
        Ok(count) => Outcome::Bytes(buffer[..count as usize].to_vec()),
        Err(_) => Outcome::Answer(answer),
    };
    match *operation {
        Operation::Read { fd, at, bytes: count } => {
            let mut buffer = vec![0xee; count];
            let answer = match at {
                None => call::read(fd, &mut buffer),
                Some(at) => call::pread(fd, &mut buffer, at),
            };
            bytes(buffer, answer)
        }
        Operation::ReadVector { fd, bytes: count, ref cuts, how } => {
            let mut buffer = vec![0xee; count];
            let answer = call::read_vector(fd, &mut buffer, cuts, how);
            bytes(buffer, answer)
        }
        Operation::Write { fd, at, data } => {
            let data = data.bytes();
            Outcome::Answer(at.map_or_else(|| call::write(fd, &data), |at| call::pwrite(fd, &data, at)))
        }
        Operation::WriteVector { fd, data, ref cuts, how } => Outcome::Answer(call::write_vector(fd, &data.bytes(), cuts, how)),
        Operation::Seek { fd, offset, whence } => Outcome::Answer(call::lseek(fd, offset, whence)),
        Operation::Truncate { fd, size } => Outcome::Answer(call::ftruncate(fd, size)),
        Operation::Allocate { fd, mode, offset, bytes } => Outcome::Answer(call::fallocate(fd, mode, offset, bytes)),
        Operation::CopyRange { from, mut from_at, to, mut to_at, bytes } => {
            let answer = call::copy_range(from, &mut from_at, to, &mut to_at, bytes);
            Outcome::Offsets(answer, from_at, to_at)
        }
        Operation::SendFile { to, from, mut at, bytes } => {
            let answer = call::sendfile(to, from, &mut at, bytes);
            Outcome::Offsets(answer, at, None)
        }
        Operation::Map { fd, page, bytes, shared } => map(fd, page, bytes, shared),
        Operation::Stat { fd } => match call::stat(Ok(fd)) {
            Ok((size, names)) => Outcome::Stat(size, names),
            Err(errno) => Outcome::Answer(Err(errno)),
        },
        Operation::Sync { fd, data_only } => Outcome::Answer(if data_only { call::fdatasync(fd) } else { call::fsync(fd) }),
        Operation::SetAppend { fd, append } => Outcome::Answer(call::set_flags(fd, if append { libc::O_APPEND } else { 0 })),
    }
}

fn map(fd: Fd, page: u64, bytes: usize, shared: bool) -> Outcome {
    let size = match call::stat(Ok(fd)) {
        Ok((size, _)) => size,
        Err(errno) => return Outcome::Answer(Err(errno)),
    };
    // Pages behind the end are not to be touched.
    let count = (bytes as u64).min(size.saturating_sub(page * 4096)) as usize;
    match call::Mapping::new(fd, page * 4096, bytes, shared) {
        Ok(map) => Outcome::Bytes(map.copy(count)),
        Err(errno) => Outcome::Answer(Err(errno)),
    }
}
