//! Serves read(2), write(2) and their variants on regular files of the array. This is the hot path.
//!
//! A call on a directory, a fifo or the like of the array goes to the kernel: the anchor is open on
//! that very thing. A call on a descriptor whose array cannot be used any more ([`Node::Lost`])
//! fails.

use super::node::Held;
use super::{OPEN, events, limit};
use crate::array;
use crate::call::{Call, Verdict};
use crate::counts;
use crate::program;
use crate::uapi::{MAX_RW_COUNT, RWF_APPEND, RWF_DONTCACHE, RWF_DSYNC, RWF_NOAPPEND, RWF_NOSIGNAL, RWF_SYNC, UIO_MAXIOV};
use file::FileRef;
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_getrandom, __NR_munmap, __NR_preadv2, __NR_pwritev2, GRND_INSECURE, RWF_HIPRI, RWF_NOWAIT};
use namespace::Node;
use sys::raw::syscall;
use sys::{OsError, RawFd};
use units::PAGE_BYTES;

/// The most bytes of a vectored write that are gathered on the library's heap.
const HEAP_BYTES_MAX: usize = 1 << 20;

/// The flags that are accepted. HIPRI, NOWAIT, DONTCACHE and NOSIGNAL have no effect, since the
/// files are memory. ATOMIC is refused, as by a file system without it.
pub(super) const RWF_KNOWN: usize =
    (RWF_HIPRI | RWF_NOWAIT) as usize | RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOAPPEND | RWF_DONTCACHE | RWF_NOSIGNAL;

/// The kernel takes every address below this one for the program's: with four levels of page
/// tables, the fewest that processors have, the program's half of the address space ends here.
const ADDRESS_LOW: usize = (1 << 47) - PAGE_BYTES;

type Answer = Result<usize, OsError>;

/// A buffer of the program, laid out as `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

impl Buffer {
    /// Refuses a buffer that reaches out of the program's half of the address space, even if no
    /// byte of it will be touched.
    #[inline]
    pub(super) fn check(self) -> Result<(), OsError> {
        match self.address.checked_add(self.bytes) {
            Some(end) if end <= ADDRESS_LOW || may_be_program_s(end) => Ok(()),
            _ => Err(OsError::FAULT),
        }
    }
}

/// Whether the kernel takes a high address for the program's. Where the program's half of the
/// address space ends differs by processor (five levels of page tables, address bits that are
/// masked), so the kernel is asked: it checks also the address of a buffer without bytes.
#[cold]
#[inline(never)]
fn may_be_program_s(end: usize) -> bool {
    // SAFETY: no byte is stored.
    unsafe { syscall(__NR_getrandom as usize, [end, 0, GRND_INSECURE as usize, 0, 0, 0]) == 0 }
}

/// Where a call reads or writes.
#[derive(Clone, Copy)]
enum At {
    /// At the offset of the description, which the call then moves.
    Position,
    Offset(u64),
}

pub(crate) fn read(call: &mut Call) -> Verdict {
    let verdict = on_file(call, |held, file, call| {
        let buffer = Buffer { address: call.args[1], bytes: call.args[2] };
        readable(held)?;
        held.with_position(call.descriptor(0), file, |position| {
            let count = read_one(file, *position, buffer)?;
            // Whoever watches the file (inotify) is told.
            let count = events::accessed(call.descriptor(0), file, count)?;
            *position += count as u64;
            counts::read(count);
            Ok(count)
        })
    });
    or_events(call, verdict)
}

/// The verdict on a call that reads, which may be one of a fanotify group if it is of no file.
#[inline(always)]
fn or_events(call: &mut Call, verdict: Verdict) -> Verdict {
    if verdict == Verdict::Pass { events::read(call) } else { verdict }
}

pub(crate) fn pread(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let offset = offset(call.args[3])?;
        readable(held)?;
        let count = read_one(file, offset, Buffer { address: call.args[1], bytes: call.args[2] })?;
        let count = events::accessed(call.descriptor(0), file, count)?;
        counts::read(count);
        Ok(count)
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
    let verdict = on_file(call, |held, file, call| {
        // As in the kernel, BADF comes before errors of the vector; so in every vectored call.
        readable(held)?;
        read_buffers(held, file, call.descriptor(0), At::Position, &buffers(call)?)
    });
    or_events(call, verdict)
}

pub(crate) fn writev(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        writable(held)?;
        write_buffers(held, file, call.descriptor(0), At::Position, &buffers(call)?, 0)
    })
}

/// preadv, and preadv2 with its flags in the sixth argument.
pub(crate) fn preadv(call: &mut Call) -> Verdict {
    let verdict = on_file(call, |held, file, call| {
        let at = vectored_at(call)?;
        readable(held)?;
        let buffers = buffers(call)?;
        if buffers.iter().all(|buffer| buffer.bytes == 0) {
            counts::read(0);
            return Ok(0);
        }
        verify_all(at, &buffers)?;
        vectored_flags(call)?;
        read_buffers(held, file, call.descriptor(0), at, &buffers)
    });
    or_events(call, verdict)
}

/// pwritev, and pwritev2 with its flags in the sixth argument.
pub(crate) fn pwritev(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let at = vectored_at(call)?;
        writable(held)?;
        let buffers = buffers(call)?;
        if buffers.iter().all(|buffer| buffer.bytes == 0) {
            counts::written(0);
            return Ok(0);
        }
        verify_all(at, &buffers)?;
        write_buffers(held, file, call.descriptor(0), at, &buffers, vectored_flags(call)?)
    })
}

/// Where a vectored call reads or writes. On x86-64 the fourth argument holds the whole offset. For
/// preadv2 and pwritev2, -1 means the description's offset.
fn vectored_at(call: &Call) -> Result<At, OsError> {
    if has_flags(call) && call.args[3] == usize::MAX { Ok(At::Position) } else { Ok(At::Offset(offset(call.args[3])?)) }
}

/// Whether a vectored call has an argument of flags: it is preadv2 or pwritev2.
fn has_flags(call: &Call) -> bool {
    [__NR_preadv2, __NR_pwritev2].contains(&(call.number as u32))
}

/// The checked flags of a vectored call. Not to be called if all buffers are empty: the kernel does
/// not look at the flags then.
fn vectored_flags(call: &Call) -> Result<usize, OsError> {
    let flags = if has_flags(call) { call.args[5] & 0xffff_ffff } else { 0 };
    if flags & !RWF_KNOWN != 0 {
        return Err(OsError::OPNOTSUPP);
    }
    if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(OsError::INVAL);
    }
    Ok(flags)
}

/// Runs `act` if the first argument is a descriptor of a regular file of the array. A descriptor
/// whose array cannot be used any more gets an error. All other calls pass to the kernel. If the
/// answer is FBIG, the process also gets SIGXFSZ ([`limit::answer`]).
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

/// Refuses a range that ends after the largest offset that a file can have, as the kernel's
/// rw_verify_area does.
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

/// Checks the range of a vectored call with an offset. A range at the description's offset is
/// checked when that is known.
fn verify_all(at: At, buffers: &[Buffer]) -> Result<(), OsError> {
    match at {
        At::Offset(offset) => verify(offset, bytes_of(buffers)),
        At::Position => Ok(()),
    }
}

fn read_one(file: &FileRef, offset: u64, buffer: Buffer) -> Answer {
    buffer.check()?;
    verify(offset, buffer.bytes)?;
    let (address, bytes) = (somewhere(buffer), buffer.bytes.min(MAX_RW_COUNT));
    // SAFETY: the program asked for its buffer to be written. If the address is bad, `read_at`
    // returns FAULT.
    whole_or_reachable(address, bytes, true, |bytes| unsafe { file.read_at(offset, address as *mut u8, bytes) })
}

/// Calls `act` with the number of bytes to move. If that returns FAULT, calls it again with the
/// number of bytes before the first page that the program cannot access. An `act` that returns
/// FAULT has had no effect that the second call does not repeat. `stores`: `act` stores to the
/// program's memory.
#[inline(always)]
fn whole_or_reachable<T>(
    address: usize,
    bytes: usize,
    stores: bool,
    act: impl Fn(usize) -> Result<T, OsError>,
) -> Result<T, OsError> {
    match act(bytes) {
        Err(OsError::FAULT) => reachable_part(address, bytes, stores, act),
        result => result,
    }
}

/// The second try of [`whole_or_reachable`].
#[cold]
#[inline(never)]
fn reachable_part<T>(
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

/// Reads into the buffers one after another, and stops at the first that is not filled. An error
/// after the first bytes ends the call with the number of bytes read.
fn read_buffers(held: &Held, file: &FileRef, fd: RawFd, at: At, buffers: &[Buffer]) -> Answer {
    readable(held)?;
    let fill = |mut offset: u64| {
        verify(offset, bytes_of(buffers))?;
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
        let total = events::accessed(fd, file, total)?;
        counts::read(total);
        Ok(total)
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

/// Writes the buffers at `at`, or at the end of the file if the description appends (RWF_APPEND and
/// RWF_NOAPPEND override that). Returns the number of bytes written. If syncing fails, the call
/// fails though the bytes are written, as in the kernel.
fn write_buffers(held: &Held, file: &FileRef, fd: RawFd, at: At, buffers: &[Buffer], flags: usize) -> Answer {
    writable(held)?;
    let total = bytes_of(buffers);
    let append = (held.appends(fd, file) || flags & RWF_APPEND != 0) && flags & RWF_NOAPPEND == 0;
    let gathered;
    let source = match buffers {
        [one] => {
            one.check()?;
            *one
        }
        _ => {
            gathered = match Gathered::new(buffers) {
                Err(OsError::FAULT) => {
                    check_place(held, file, fd, at, append, total)?;
                    return Err(OsError::FAULT);
                }
                gathered => gathered?,
            };
            gathered.buffer
        }
    };
    let written = match at {
        At::Offset(offset) if !append => put(file, offset, source)?,
        // In append mode pwrite ignores its offset, appends, and does not move the description's
        // offset (pwrite(2), BUGS).
        At::Offset(offset) => {
            verify(offset, source.bytes)?;
            append_one(file, source)?.1
        }
        At::Position if append => held.with_position(fd, file, |position| {
            verify(*position, total)?;
            let (end, count) = append_one(file, source)?;
            // An append of no bytes leaves the offset where it was.
            if count > 0 {
                *position = end;
            }
            Ok(count)
        })?,
        At::Position => held.with_position(fd, file, |position| {
            verify(*position, total)?;
            let count = put(file, *position, source)?;
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
    counts::written(written);
    Ok(written)
}

/// Checks where a write begins before its buffers are read, as the kernel does: INVAL if it would
/// end after the largest offset that a file can have, FBIG if it would begin at or after the
/// process' limit of file sizes (RLIMIT_FSIZE). Both win over FAULT.
#[cold]
fn check_place(held: &Held, file: &FileRef, fd: RawFd, at: At, append: bool, total: usize) -> Result<(), OsError> {
    let start = match at {
        At::Offset(offset) => offset,
        At::Position => held.with_position(fd, file, |position| Ok(*position))?,
    };
    verify(start, total)?;
    let start = if append { file.size() } else { start };
    if start >= sys::file_limit::bytes() { Err(OsError::FBIG) } else { Ok(()) }
}

/// The number of bytes of all buffers. Those of a vectored call have at most [`MAX_RW_COUNT`]
/// together.
pub(super) fn bytes_of(buffers: &[Buffer]) -> usize {
    buffers.iter().fold(0, |total: usize, buffer| total.saturating_add(buffer.bytes))
}

/// The address of a buffer. `write_at` and `append` take a null pointer for "write zeros", and none
/// may be copied to, so a null pointer of the program is replaced by another address at which no
/// program can have memory.
fn somewhere(buffer: Buffer) -> usize {
    /// In the kernel's half of the address space, with four and with five levels of page tables.
    const NOWHERE: usize = 0xffff_8000_0000_0000;
    if buffer.address == 0 { NOWHERE } else { buffer.address }
}

/// Writes the buffer at `offset`.
fn put(file: &FileRef, offset: u64, buffer: Buffer) -> Answer {
    verify(offset, buffer.bytes)?;
    let (address, bytes) = (somewhere(buffer), buffer.bytes.min(MAX_RW_COUNT));
    // SAFETY: the address may be bad: then the call returns FAULT. If it is good, the program asked
    // for these bytes to be written.
    whole_or_reachable(address, bytes, false, |bytes| unsafe { file.write_at(offset, address as *const u8, bytes) })
}

/// Appends the buffer. Returns the file's new end and the number of bytes.
fn append_one(file: &FileRef, buffer: Buffer) -> Result<(u64, usize), OsError> {
    let (address, bytes) = (somewhere(buffer), buffer.bytes.min(MAX_RW_COUNT));
    // SAFETY: the address may be bad: then the call returns FAULT. If it is good, the program asked
    // for these bytes to be written.
    whole_or_reachable(address, bytes, false, |bytes| unsafe { file.append(address as *const u8, bytes) })
}

/// A copy of the buffers of a vectored write, so that one write makes them all: others see it
/// whole, and an append is in one place.
struct Gathered {
    /// Lies in `heap` or in `mapped`.
    buffer: Buffer,
    heap: Vec<u8>,
    /// Memory of its own for many bytes: what the heap once got from the kernel it keeps.
    mapped: Option<Buffer>,
}

impl Gathered {
    /// Copies the buffers, up to the first byte that the program cannot access. Without memory for
    /// all of them it copies the first [`HEAP_BYTES_MAX`] bytes, and the write is short.
    ///
    /// # Errors
    /// FAULT if the program cannot access the first byte. NOMEM.
    fn new(buffers: &[Buffer]) -> Result<Self, OsError> {
        let total: usize = buffers.iter().map(|buffer| buffer.bytes).sum();
        let mut gathered = Self { buffer: Buffer { address: 0, bytes: 0 }, heap: Vec::new(), mapped: None };
        let mapped = if total > HEAP_BYTES_MAX { crate::alloc::map_anonymous(total).ok() } else { None };
        let room = match mapped {
            Some(address) => {
                gathered.mapped = Some(Buffer { address, bytes: total });
                gathered.buffer.address = address;
                total
            }
            None => {
                let room = total.min(HEAP_BYTES_MAX);
                gathered.heap.try_reserve_exact(room).map_err(|_| OsError::NOMEM)?;
                gathered.buffer.address = gathered.heap.as_mut_ptr() as usize;
                room
            }
        };
        for buffer in buffers {
            let done = gathered.buffer.bytes;
            let (wanted, target) = (buffer.bytes.min(room - done), (gathered.buffer.address + done) as *mut u8);
            // SAFETY: `target` has room for `room - done` bytes, in the heap's memory or in the
            // mapping.
            let copy = |bytes: usize| unsafe { program::copy(buffer.address, target, bytes) }.map(|()| bytes);
            match whole_or_reachable(buffer.address, wanted, false, copy) {
                Ok(bytes) => gathered.buffer.bytes += bytes,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            if gathered.buffer.bytes < done + buffer.bytes {
                break;
            }
        }
        Ok(gathered)
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        if let Some(Buffer { address, bytes }) = self.mapped {
            // SAFETY: the mapping was made by `new`, and nobody uses it any more.
            unsafe { syscall(__NR_munmap as usize, [address, bytes, 0, 0, 0, 0]) };
        }
    }
}

/// The buffers of a vectored call, from its second and third arguments, cut so that together they
/// have at most [`MAX_RW_COUNT`].
pub(crate) fn buffers(call: &Call) -> Result<Vec<Buffer>, OsError> {
    // The kernel's import_iovec takes a count of 32 bits, and its callers cut off what is above
    // them.
    let count = call.args[2] as u32 as usize;
    if count > UIO_MAXIOV {
        return Err(OsError::INVAL);
    }
    let read = |index: usize| {
        let buffer: Buffer = program::read(call.args[1].wrapping_add(index * size_of::<Buffer>()))?;
        // The kernel checks the length of one before it reads the next: that decides between INVAL
        // and FAULT.
        if (buffer.bytes as isize) < 0 { Err(OsError::INVAL) } else { Ok(buffer) }
    };
    let mut buffers: Vec<Buffer> = (0..count).map(read).collect::<Result<_, _>>()?;
    let mut room = MAX_RW_COUNT;
    for buffer in &mut buffers {
        buffer.check()?;
        buffer.bytes = buffer.bytes.min(room);
        room -= buffer.bytes;
    }
    Ok(buffers)
}
