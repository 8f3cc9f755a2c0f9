//! read, write and their relatives on files of the array: the hot path.
//!
//! A call on something else than a regular file (a directory, a fifo in the tree) goes to the kernel: the descriptor is real.

use super::node::Held;
use super::{OPEN, events, limit};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::program;
use file::FileRef;
use heap::vec::Vec;
use namespace::Node;
use sys::{OsError, RawFd};

/// The most bytes the kernel moves in one call.
const BYTES_MAX: usize = 0x7fff_f000;
/// The most buffers of one vectored call.
const VECTOR_COUNT_MAX: usize = 1024;
/// A vectored write up to this size is gathered first, so that others see it whole.
const GATHER_BYTES_MAX: usize = 1 << 20;

const RWF_DSYNC: usize = 2;
const RWF_SYNC: usize = 4;
const RWF_APPEND: usize = 0x10;
/// HIPRI, DSYNC, SYNC, NOWAIT, APPEND, NOAPPEND, DONTCACHE, NOSIGNAL: of these HIPRI, NOWAIT, DONTCACHE and NOSIGNAL change nothing in
/// memory. ATOMIC is refused, as by a file system without it.
const RWF_KNOWN: usize = 0x1bf;
const RWF_NOAPPEND: usize = 0x20;

/// No program has memory behind it: with five levels of page tables its half of the address space ends there.
const ADDRESS_MAX: usize = 1 << 56;

type Answer = Result<usize, OsError>;

/// One buffer of the program.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

impl Buffer {
    /// What is not the program's half of the address space is bad whether it is touched or not.
    #[inline]
    fn check(self) -> Result<(), OsError> {
        match self.address.checked_add(self.bytes) {
            Some(end) if end <= ADDRESS_MAX => Ok(()),
            _ => Err(OsError::FAULT),
        }
    }
}

/// Where a call reads or writes.
#[derive(Clone, Copy)]
enum At {
    /// At the position of the descriptor, which moves.
    Position,
    Offset(u64),
}

pub(crate) fn read(call: &mut Call) -> Verdict {
    let verdict = on_file(call, |held, file, call| {
        let buffer = Buffer { address: call.args[1], bytes: call.args[2] };
        readable(held)?;
        held.with_position(call.descriptor(0), file, |position| {
            let count = read_one(file, *position, buffer)?;
            let count = events::accessed(call.descriptor(0), file, count)?;
            *position += count as u64;
            Ok(count)
        })
    });
    if verdict == Verdict::Pass { events::read(call) } else { verdict }
}

pub(crate) fn pread(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let offset = offset(call.args[3])?;
        readable(held)?;
        let count = read_one(file, offset, Buffer { address: call.args[1], bytes: call.args[2] })?;
        events::accessed(call.descriptor(0), file, count)
    })
}

pub(crate) fn write(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        write_buffers(held, file, call.descriptor(0), At::Position, &[Buffer { address: call.args[1], bytes: call.args[2] }], 0)
    })
}

pub(crate) fn pwrite(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let at = At::Offset(offset(call.args[3])?);
        write_buffers(held, file, call.descriptor(0), at, &[Buffer { address: call.args[1], bytes: call.args[2] }], 0)
    })
}

pub(crate) fn readv(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        readable(held)?;
        read_buffers(held, file, call.descriptor(0), At::Position, &buffers(call)?)
    })
}

pub(crate) fn writev(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        writable(held)?;
        write_buffers(held, file, call.descriptor(0), At::Position, &buffers(call)?, 0)
    })
}

/// preadv, and preadv2 with its flags in the sixth argument.
pub(crate) fn preadv(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let at = vectored_at(call)?;
        readable(held)?;
        let buffers = buffers(call)?;
        if buffers.iter().all(|buffer| buffer.bytes == 0) {
            return Ok(0);
        }
        verify_all(at, &buffers)?;
        vectored_flags(call)?;
        read_buffers(held, file, call.descriptor(0), at, &buffers)
    })
}

/// pwritev, and pwritev2 with its flags in the sixth argument.
pub(crate) fn pwritev(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let at = vectored_at(call)?;
        writable(held)?;
        let buffers = buffers(call)?;
        if buffers.iter().all(|buffer| buffer.bytes == 0) {
            return Ok(0);
        }
        verify_all(at, &buffers)?;
        write_buffers(held, file, call.descriptor(0), at, &buffers, vectored_flags(call)?)
    })
}

/// Where a vectored call begins; on x86-64 the whole offset is in the low word. -1 means the position, in the newer calls.
fn vectored_at(call: &Call) -> Result<At, OsError> {
    if is_newer(call) && call.args[3] == usize::MAX { Ok(At::Position) } else { Ok(At::Offset(offset(call.args[3])?)) }
}

/// Whether a vectored call has flags.
fn is_newer(call: &Call) -> bool {
    matches!(call.number, 327 | 328)
}

/// The flags of a vectored call that moves anything: with nothing to be moved the kernel does not look at them.
fn vectored_flags(call: &Call) -> Result<usize, OsError> {
    let flags = if is_newer(call) { call.args[5] & 0xffff_ffff } else { 0 };
    if flags & !RWF_KNOWN != 0 {
        return Err(OsError::OPNOTSUPP);
    }
    if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(OsError::INVAL);
    }
    Ok(flags)
}

/// Runs `act` if the first argument is a regular file of the array; the kernel serves everything else.
#[inline]
pub(crate) fn on_file(call: &mut Call, act: impl FnOnce(&Held, &FileRef, &Call) -> Answer) -> Verdict {
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    match held.node() {
        Node::File(file) => limit::answer(act(&held, file, call)),
        Node::Lost => Verdict::error(array::lost()),
        _ => Verdict::Pass,
    }
}

fn readable(held: &Held) -> Result<(), OsError> {
    if held.is_readable() { Ok(()) } else { Err(OsError::BADF) }
}

fn writable(held: &Held) -> Result<(), OsError> {
    if held.is_writable() { Ok(()) } else { Err(OsError::BADF) }
}

fn offset(argument: usize) -> Result<u64, OsError> {
    if (argument as isize) < 0 { Err(OsError::INVAL) } else { Ok(argument as u64) }
}

/// Refuses a range that no file can have (rw_verify_area of the kernel): it may not end behind the largest offset.
#[inline]
pub(crate) fn verify(offset: u64, bytes: usize) -> Result<(), OsError> {
    // Of two numbers below 2^62 the sum is below 2^63.
    let is_small = (offset | bytes as u64) >> 62 == 0;
    if is_small || offset.checked_add(bytes as u64).is_some_and(|end| end <= i64::MAX as u64) {
        Ok(())
    } else {
        Err(OsError::INVAL)
    }
}

/// Checks the range of a vectored call that says where it begins.
fn verify_all(at: At, buffers: &[Buffer]) -> Result<(), OsError> {
    match at {
        At::Offset(offset) => verify(offset, buffers.iter().map(|buffer| buffer.bytes).sum()),
        At::Position => Ok(()),
    }
}

fn read_one(file: &FileRef, offset: u64, buffer: Buffer) -> Answer {
    buffer.check()?;
    verify(offset, buffer.bytes)?;
    let bytes = buffer.bytes.min(BYTES_MAX);
    // SAFETY: the buffer is the program's, which asked for it to be written.
    as_far_as_there_is_memory(buffer.address, bytes, true, |bytes| unsafe {
        file.read_at(offset, buffer.address as *mut u8, bytes)
    })
}

/// Moves bytes to the program's memory (`stores`) or from it. If not all of that memory is there, as many bytes are moved as there is memory from the first byte on.
#[inline(always)]
fn as_far_as_there_is_memory<T>(
    address: usize,
    bytes: usize,
    stores: bool,
    act: impl Fn(usize) -> Result<T, OsError>,
) -> Result<T, OsError> {
    match act(bytes) {
        Err(OsError::FAULT) => as_far_as_reachable(address, bytes, stores, act),
        result => result,
    }
}

/// Moves the bytes again that there is memory for.
#[cold]
#[inline(never)]
fn as_far_as_reachable<T>(
    address: usize,
    bytes: usize,
    stores: bool,
    act: impl Fn(usize) -> Result<T, OsError>,
) -> Result<T, OsError> {
    match program::reachable(address, bytes, stores) {
        0 => Err(OsError::FAULT),
        room => act(room),
    }
}

fn read_buffers(held: &Held, file: &FileRef, fd: RawFd, at: At, buffers: &[Buffer]) -> Answer {
    readable(held)?;
    let fill = |mut offset: u64| {
        let mut total = 0;
        for buffer in buffers {
            let count = match read_one(file, offset, *buffer) {
                Ok(count) => count,
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            };
            total += count;
            offset += count as u64;
            if count < buffer.bytes {
                break;
            }
        }
        events::accessed(fd, file, total)
    };
    match at {
        At::Offset(offset) => fill(offset),
        At::Position => held.with_position(fd, file, |position| {
            let total = fill(*position)?;
            *position += total as u64;
            Ok(total)
        }),
    }
}

fn write_buffers(held: &Held, file: &FileRef, fd: RawFd, at: At, buffers: &[Buffer], flags: usize) -> Answer {
    writable(held)?;
    let append = (held.appends(fd, file) || flags & RWF_APPEND != 0) && flags & RWF_NOAPPEND == 0;
    let mut gathered = Vec::new();
    let whole = match buffers {
        [one] => {
            one.check()?;
            *one
        }
        _ => match gather(buffers, &mut gathered) {
            Err(OsError::FAULT) if begins_behind_limit(held, file, fd, at, append)? => return Err(OsError::FBIG),
            whole => whole?,
        },
    };
    let written = match at {
        // A pwrite to a descriptor that appends appends, and leaves the position alone (pwrite(2), BUGS).
        At::Offset(offset) if !append => put(file, offset, whole)?,
        At::Offset(offset) => {
            verify(offset, whole.bytes)?;
            append_one(file, whole)?.1
        }
        At::Position if append => held.with_position(fd, file, |position| {
            let (end, count) = append_one(file, whole)?;
            // Nothing written moves nothing.
            if count > 0 {
                *position = end;
            }
            Ok(count)
        })?,
        At::Position => held.with_position(fd, file, |position| {
            let count = put(file, *position, whole)?;
            *position += count as u64;
            Ok(count)
        })?,
    };
    if written > 0 {
        events::modified(fd, file);
    }
    if held.is_synchronous() || flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        file.sync()?;
    }
    Ok(written)
}

/// Whether a write would begin where the process may have no file reach (RLIMIT_FSIZE): that the kernel says before it looks at the bytes.
#[cold]
fn begins_behind_limit(held: &Held, file: &FileRef, fd: RawFd, at: At, append: bool) -> Result<bool, OsError> {
    let start = match at {
        _ if append => file.size(),
        At::Offset(offset) => offset,
        At::Position => held.with_position(fd, file, |position| Ok(*position))?,
    };
    Ok(start >= sys::file_limit::bytes())
}

/// The address to write from. A null pointer means zeros for the core, so another address takes its place where there is no memory either.
fn source(buffer: Buffer) -> usize {
    /// The last page below the end of what a program can have with four levels of page tables: the kernel gives it to nobody.
    const NOWHERE: usize = (1 << 47) - 4096;
    if buffer.address == 0 { NOWHERE } else { buffer.address }
}

fn put(file: &FileRef, offset: u64, buffer: Buffer) -> Answer {
    verify(offset, buffer.bytes)?;
    let (address, bytes) = (source(buffer), buffer.bytes.min(BYTES_MAX));
    // SAFETY: the buffer is the program's; it may be bad.
    as_far_as_there_is_memory(address, bytes, false, |bytes| unsafe { file.write_at(offset, address as *const u8, bytes) })
}

/// Returns the offset after the last byte and the count.
fn append_one(file: &FileRef, buffer: Buffer) -> Result<(u64, usize), OsError> {
    let (address, bytes) = (source(buffer), buffer.bytes.min(BYTES_MAX));
    // SAFETY: the buffer is the program's; it may be bad.
    as_far_as_there_is_memory(address, bytes, false, |bytes| unsafe { file.append(address as *const u8, bytes) })
}

/// Makes one buffer of several. What does not fit is left out, as in a short write.
fn gather(buffers: &[Buffer], gathered: &mut Vec<u8>) -> Result<Buffer, OsError> {
    for buffer in buffers {
        let room = GATHER_BYTES_MAX - gathered.len();
        if room == 0 {
            break;
        }
        match program::read_bytes(buffer.address, buffer.bytes.min(room)) {
            Ok(bytes) => gathered.extend_from_slice(&bytes),
            // As much as there is memory.
            Err(_) => {
                let bytes = program::reachable(buffer.address, buffer.bytes.min(room), false);
                gathered.extend_from_slice(&program::read_bytes(buffer.address, bytes)?);
                if gathered.is_empty() {
                    return Err(OsError::FAULT);
                }
                break;
            }
        }
    }
    Ok(Buffer { address: gathered.as_ptr() as usize, bytes: gathered.len() })
}

/// The buffers of a vectored call: arguments 1 and 2.
pub(crate) fn buffers(call: &Call) -> Result<Vec<Buffer>, OsError> {
    let count = call.args[2];
    if count > VECTOR_COUNT_MAX {
        return Err(OsError::INVAL);
    }
    let read = |index: usize| {
        let buffer: Buffer = program::read(call.args[1].wrapping_add(index * size_of::<Buffer>()))?;
        // Each is looked at before the next one is read.
        if (buffer.bytes as isize) < 0 { Err(OsError::INVAL) } else { Ok(buffer) }
    };
    let mut buffers: Vec<Buffer> = (0..count).map(read).collect::<Result<_, _>>()?;
    let mut room = BYTES_MAX;
    for buffer in &mut buffers {
        buffer.check()?;
        buffer.bytes = buffer.bytes.min(room);
        room -= buffer.bytes;
    }
    Ok(buffers)
}
