//! Which operation comes next: from a generator of random numbers and the state, so that a seed and
//! a count repeat a run.

use super::world::{Data, Operation, World};
use crate::call::{Fd, Vectored};
use oracle::Rng;

/// Where most files are worked on.
const NEAR_BYTES: u64 = 300_000;
/// Past 4 GiB.
const FAR: u64 = 5 << 30;
const RWF_DSYNC: i32 = 2;
const RWF_APPEND: i32 = 0x10;
const RWF_NOAPPEND: i32 = 0x20;
/// The most bytes of one operation.
const BYTES_MAX: u64 = 150_000;

/// What the kernel below can do: on a plain directory not everything.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    pub(crate) zero_range: bool,
}

/// An operation on descriptors, or None if none is open.
pub(crate) fn operation(rng: &mut Rng, world: &mut World, chunk: u64, abilities: Abilities) -> Option<Operation> {
    let fd = any_fd(rng, world)?;
    let mut plan = Plan { rng, world, chunk };
    let operation = match plan.rng.below(100) {
        0..18 => Operation::Read { fd, at: None, bytes: plan.bytes() },
        18..36 => Operation::Read { fd, at: Some(plan.offset(fd)), bytes: plan.bytes() },
        36..40 => {
            let bytes = plan.bytes();
            Operation::ReadVector { fd, bytes, cuts: plan.cuts(bytes), how: plan.vectored(fd, &[0]) }
        }
        40..54 => Operation::Write { fd, at: None, data: plan.data() },
        54..70 => Operation::Write { fd, at: Some(plan.offset(fd)), data: plan.data() },
        70..75 => {
            let data = plan.data();
            let how = plan.vectored(fd, &[0, RWF_DSYNC, RWF_APPEND, RWF_NOAPPEND]);
            Operation::WriteVector { fd, data, cuts: plan.cuts(data.bytes), how }
        }
        75..81 => plan.seek(fd),
        81..85 => Operation::Truncate { fd, size: if plan.rng.one_in(50) { -1 } else { plan.offset(fd) } },
        85..89 => plan.allocate(fd, abilities),
        89..92 => plan.copy_range(fd),
        92..94 => plan.sendfile(fd),
        94..96 => {
            let page = plan.offset(fd) as u64 / 4096;
            Operation::Map { fd, page, bytes: plan.bytes().max(1), shared: plan.rng.one_in(2) }
        }
        96..98 => Operation::Stat { fd },
        98 => Operation::Sync { fd, data_only: plan.rng.one_in(2) },
        _ => Operation::SetAppend { fd, append: plan.rng.one_in(4) },
    };
    Some(operation)
}

/// One of the descriptors.
pub(crate) fn any_fd(rng: &mut Rng, world: &World) -> Option<Fd> {
    let count = world.descriptors.len() as u64;
    if count == 0 { None } else { world.descriptors.keys().nth(rng.below(count) as usize).copied() }
}

struct Plan<'a> {
    rng: &'a mut Rng,
    world: &'a mut World,
    chunk: u64,
}

impl Plan<'_> {
    /// A length: mostly small, sometimes of whole pages or chunks, sometimes large.
    fn bytes(&mut self) -> usize {
        let bytes = match self.rng.below(16) {
            0 => self.rng.below(3),
            1..7 => self.rng.below(300),
            7..10 => 4096 * (1 + self.rng.below(3)),
            10..12 => self.chunk * (1 + self.rng.below(6)),
            12..15 => self.rng.below(20_000),
            _ => self.rng.below(BYTES_MAX),
        };
        bytes.min(BYTES_MAX) as usize
    }

    fn data(&mut self) -> Data {
        Data { seed: self.rng.word(), bytes: self.bytes() }
    }

    /// An offset: anywhere, at the end, at borders; rarely beyond 4 GiB.
    fn offset(&mut self, fd: Fd) -> i64 {
        let size = self.world.file_of(fd).contents.size();
        let near = match self.rng.below(16) {
            0 => size,
            1 => size.saturating_sub(self.rng.below(200)),
            2 => size + self.rng.below(100_000),
            3..5 => self.rng.below(NEAR_BYTES) / 4096 * 4096,
            5..7 => self.rng.below(NEAR_BYTES) / self.chunk * self.chunk,
            7 => (self.rng.below(NEAR_BYTES) / self.chunk * self.chunk + self.chunk).saturating_sub(1 + self.rng.below(64)),
            8 => self.rng.below(200),
            _ => self.rng.below(NEAR_BYTES.min(size.max(4096))),
        };
        // What lies far is visited until the file is cut.
        let far = if size > FAR { 3 } else { 500 };
        let near = if near > 8 * NEAR_BYTES && size < FAR { self.rng.below(NEAR_BYTES) } else { near };
        if near < FAR && self.rng.one_in(far) { (FAR + near) as i64 } else { near.min(FAR + 8 * NEAR_BYTES) as i64 }
    }

    /// Where a vector is cut.
    fn cuts(&mut self, bytes: usize) -> Vec<usize> {
        (0..self.rng.below(5)).map(|_| self.rng.below(bytes as u64 / 2 + 1) as usize).collect()
    }

    fn vectored(&mut self, fd: Fd, flags: &[i32]) -> Vectored {
        match self.rng.below(3) {
            0 => Vectored::Position,
            1 => Vectored::Offset(self.offset(fd)),
            _ => {
                let flags = flags[self.rng.below(flags.len() as u64) as usize];
                Vectored::Flags(if self.rng.one_in(2) { -1 } else { self.offset(fd) }, flags)
            }
        }
    }

    fn seek(&mut self, fd: Fd) -> Operation {
        let (offset, whence) = match self.rng.below(8) {
            0..3 => (self.offset(fd), libc::SEEK_SET),
            3 => (self.rng.below(20_000) as i64 - 10_000, libc::SEEK_CUR),
            4 => (self.rng.below(20_000) as i64 - 15_000, libc::SEEK_END),
            5 => (self.offset(fd), libc::SEEK_DATA),
            6 => (self.offset(fd), libc::SEEK_HOLE),
            _ => (-1 - self.rng.below(10) as i64, libc::SEEK_DATA),
        };
        Operation::Seek { fd, offset, whence }
    }

    fn allocate(&mut self, fd: Fd, abilities: Abilities) -> Operation {
        let mode = match self.rng.below(if abilities.zero_range { 6 } else { 4 }) {
            0 => 0,
            1 => libc::FALLOC_FL_KEEP_SIZE,
            2 | 3 => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            4 => libc::FALLOC_FL_ZERO_RANGE,
            _ => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        };
        Operation::Allocate { fd, mode, offset: self.offset(fd), bytes: self.bytes() as i64 }
    }

    fn copy_range(&mut self, from: Fd) -> Operation {
        let to = any_fd(self.rng, self.world).unwrap_or(from);
        let mut place = |fd| if self.rng.one_in(3) { None } else { Some(self.offset(fd)) };
        let (from_at, to_at) = (place(from), place(to));
        Operation::CopyRange { from, from_at, to, to_at, bytes: self.bytes() }
    }

    /// Within one file the ranges are kept apart: what happens otherwise depends on how much the
    /// kernel moves at a time.
    fn sendfile(&mut self, from: Fd) -> Operation {
        let to = any_fd(self.rng, self.world).unwrap_or(from);
        let at = if self.rng.one_in(3) { None } else { Some(self.offset(from)) };
        let bytes = self.bytes();
        let (source, target) = (self.world.description(from).clone(), self.world.description(to).clone());
        let start = at.map_or(source.position, |at| at as u64);
        let end = start + bytes as u64;
        let apart = start.abs_diff(target.position) > bytes as u64 && end <= self.world.file_of(from).contents.size();
        if source.file == target.file && !apart {
            return Operation::Stat { fd: from };
        }
        Operation::SendFile { to, from, at, bytes }
    }
}
