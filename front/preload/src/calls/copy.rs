//! Copies between two descriptors: sendfile and copy_file_range, with at least one end in the
//! array; the ends are splice's too.

use super::node::Held;
use super::{OPEN, events, limit};
use crate::array;
use crate::call::{Call, Verdict};
use crate::counts;
use crate::mappings::fault;
use crate::program;
use crate::uapi::{KCMP_FILE, MAX_RW_COUNT, SEEK_CUR};
use file::FileRef;
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_kcmp, __NR_pread64, __NR_pwrite64, __NR_read, __NR_write, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG};
use namespace::Node;
use sys::raw::{check, syscall};
use sys::rustix::fs::{OFlags, fcntl_getfl, fstat};
use sys::{OsError, RawFd};
use units::PAGE_BYTES;

/// Bytes moved at a time.
const STEP_BYTES: usize = 256 << 10;

/// Without memory for more, so many bytes are moved at a time.
const LEAST_BYTES: usize = 4096;

/// Room for `bytes` bytes, or for fewer where there is no memory for so many.
pub(super) fn room(bytes: usize) -> Result<Vec<u8>, OsError> {
    let mut wanted = bytes;
    loop {
        let mut room = Vec::new();
        match room.try_reserve_exact(wanted) {
            Ok(()) => {
                room.extend(core::iter::repeat_n(0, wanted));
                return Ok(room);
            }
            Err(_) if wanted <= LEAST_BYTES => return Err(OsError::NOMEM),
            Err(_) => wanted = (wanted / 4).max(LEAST_BYTES),
        }
    }
}

/// One end of a copy.
pub(super) struct End {
    fd: RawFd,
    held: Option<Held>,
    /// The program's offset variable, if the position is to stay.
    offset_address: usize,
    offset: Option<u64>,
    /// Whether the offset is the descriptor's position, which whoever copies moves.
    is_counted_here: bool,
}

impl End {
    fn new(fd: RawFd, offset_address: usize) -> Result<Self, OsError> {
        let offset = if offset_address == 0 { None } else { Some(program::read::<i64>(offset_address)?) };
        let offset = offset.map(|offset| u64::try_from(offset).map_err(|_| OsError::INVAL)).transpose()?;
        let held = OPEN.lookup(fd);
        if held.as_ref().is_some_and(|held| matches!(held.node(), Node::Lost)) {
            return Err(array::lost());
        }
        Ok(Self { fd, held, offset_address, offset, is_counted_here: false })
    }

    /// A file to read from by splice.
    pub(super) fn reading(fd: RawFd, offset_address: usize) -> Result<Self, OsError> {
        let end = Self::new(fd, offset_address)?;
        if end.file().is_some_and(|(held, _)| !held.is_readable()) { Err(OsError::BADF) } else { Ok(end) }
    }

    /// A file to write to by splice.
    pub(super) fn writing(fd: RawFd, offset_address: usize) -> Result<Self, OsError> {
        let end = Self::new(fd, offset_address)?;
        match end.file() {
            Some((held, _)) if !held.is_writable() => Err(OsError::BADF),
            Some((held, file)) if held.appends(fd, file) => Err(OsError::INVAL),
            _ => Ok(end),
        }
    }

    fn file(&self) -> Option<(&Held, &FileRef)> {
        let held = self.held.as_ref()?;
        match held.node() {
            Node::File(file) => Some((held, file)),
            _ => None,
        }
    }

    /// Where in a file of ours it begins.
    fn start(&self, held: &Held, file: &FileRef) -> Result<u64, OsError> {
        self.offset.map_or_else(|| held.with_position(self.fd, file, |position| Ok(*position)), Ok)
    }

    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, OsError> {
        let address = bytes.as_mut_ptr();
        let count = match (self.file(), self.offset) {
            // SAFETY: the buffer is ours.
            (Some((_, file)), Some(offset)) => unsafe { file.read_at(offset, address, bytes.len()) }?,
            (Some((held, file)), None) => held.with_position(self.fd, file, |position| {
                // SAFETY: the buffer is ours.
                let count = unsafe { file.read_at(*position, address, bytes.len()) }?;
                *position += count as u64;
                Ok(count)
            })?,
            (None, offset) => self.kernel(offset, [__NR_pread64, __NR_read], address as usize, bytes.len())?,
        };
        if let Some((_, file)) = self.file() {
            events::accessed(self.fd, file, count)?;
            counts::read(count);
        }
        self.offset = self.offset.map(|offset| offset + count as u64);
        Ok(count)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, OsError> {
        let address = bytes.as_ptr();
        let count = match (self.file(), self.offset) {
            // SAFETY: the buffer is ours.
            (Some((_, file)), Some(offset)) => unsafe { file.write_at(offset, address, bytes.len()) }?,
            (Some((held, file)), None) => held.with_position(self.fd, file, |position| {
                // SAFETY: the buffer is ours.
                let count = unsafe { file.write_at(*position, address, bytes.len()) }?;
                *position += count as u64;
                Ok(count)
            })?,
            (None, offset) => self.kernel(offset, [__NR_pwrite64, __NR_write], address as usize, bytes.len())?,
        };
        if let Some((held, file)) = self.file() {
            counts::written(count);
            if count > 0 {
                events::modified(self.fd, file);
                if held.is_synchronous() {
                    file.sync()?;
                }
            }
        }
        self.offset = self.offset.map(|offset| offset + count as u64);
        Ok(count)
    }

    /// Writes as many bytes as there is room for. Returns how many these are, and the error that
    /// came after them. A limit that only shows after some bytes is told by its signal, as the
    /// kernel does, which tries to go on.
    pub(super) fn write_on(&mut self, bytes: &[u8]) -> (usize, Option<OsError>) {
        let mut count = 0;
        while count < bytes.len() {
            match self.write(&bytes[count..]) {
                Ok(0) => break,
                Ok(written) => count += written,
                Err(error) => {
                    if error == OsError::FBIG && count > 0 && self.file().is_some() {
                        limit::exceeded();
                    }
                    return (count, Some(error));
                }
            }
        }
        (count, None)
    }

    /// `numbers` are the calls with and without an offset.
    fn kernel(&self, offset: Option<u64>, numbers: [u32; 2], address: usize, bytes: usize) -> Result<usize, OsError> {
        let number = numbers[usize::from(offset.is_none())] as usize;
        let offset = offset.unwrap_or(0) as usize;
        // SAFETY: the buffer is ours and `bytes` long.
        check(unsafe { syscall(number, [self.fd as usize, address, bytes, offset, 0, 0]) })
    }

    /// Steps back over what was read and could not be written.
    pub(super) fn unread(&mut self, count: usize) {
        self.step(-(count as i64));
    }

    /// Moves the position of an end by so many bytes.
    fn step(&mut self, bytes: i64) {
        if bytes == 0 {
            return;
        }
        match (self.file(), self.offset) {
            (_, Some(offset)) => self.offset = Some(offset.wrapping_add_signed(bytes)),
            (Some((held, file)), None) => {
                let _ = held.with_position(self.fd, file, |position| {
                    *position = position.wrapping_add_signed(bytes);
                    Ok(0)
                });
            }
            (None, None) => {
                let args = [self.fd as usize, bytes as usize, SEEK_CUR, 0, 0, 0];
                // SAFETY: moves the position of the program's descriptor.
                let _ = unsafe { syscall(linux_raw_sys::general::__NR_lseek as usize, args) };
            }
        }
    }

    /// Has this end count from where the descriptor's position is now. The position stays there until
    /// [`Self::settle`]: whoever shares it misses no bytes if this process dies while it waits.
    pub(super) fn count_here(&mut self) -> Result<(), OsError> {
        if self.offset.is_none()
            && let Some((held, file)) = self.file()
        {
            self.offset = Some(self.start(held, file)?);
            self.is_counted_here = true;
        }
        Ok(())
    }

    /// Moves the descriptor's position on by `count` bytes that were moved, or stores the program's
    /// offset. If somebody else has moved the position meanwhile, it stays where that has left it.
    pub(super) fn settle(&self, count: usize) -> Result<(), OsError> {
        let (Some(offset), true, Some((held, file))) = (self.offset, self.is_counted_here, self.file()) else {
            return self.store_offset();
        };
        // If another thread has closed the number meanwhile, there is no position to move.
        let _ = held.with_position(self.fd, file, |position| {
            if *position + count as u64 == offset {
                *position = offset;
            }
            Ok(())
        });
        Ok(())
    }

    pub(super) fn store_offset(&self) -> Result<(), OsError> {
        let Some(offset) = self.offset.filter(|_| !self.is_counted_here) else { return Ok(()) };
        // The bytes are moved: a call that answered EFAULT now would be made once more.
        loop {
            fault::forget();
            match program::write(self.offset_address, &(offset as i64)) {
                Err(OsError::FAULT) if fault::last().is_some_and(fault::resolve_for_call) => {}
                stored => {
                    fault::forget();
                    return stored;
                }
            }
        }
    }
}

pub(crate) fn sendfile(call: &mut Call) -> Verdict {
    let (output, input) = (call.descriptor(0), call.descriptor(1));
    if !super::is_ours(input) && !super::is_ours(output) {
        return Verdict::Pass;
    }
    if kind(input) == S_IFDIR && kind(output) != S_IFREG {
        // The kernel refuses a directory when it has looked at everything else, and waited for the
        // pipe.
        return Verdict::Pass;
    }
    let (address, bytes) = (call.args[2], call.args[3]);
    let kept = match address {
        0 => None,
        _ => match program::read::<i64>(address) {
            Ok(offset) => Some(offset),
            Err(error) => return Verdict::error(error),
        },
    };
    // The kernel stores the offset also where nothing was sent.
    let told = |verdict: Verdict| match kept {
        Some(offset) if program::write(address, &offset).is_err() => Verdict::error(OsError::FAULT),
        _ => verdict,
    };
    if let Some(refusal) = refusal_of_sendfile(call, kept) {
        return told(refusal);
    }
    // Also a pipe or device of the array is the kernel's.
    if kind(output) != S_IFREG {
        if !super::is_ours(input) {
            return Verdict::Pass;
        }
        return match super::splice::send(call, input, output) {
            // Of what was sent the offset is stored already.
            nothing @ Verdict::Done(..=0) => told(nothing),
            verdict => verdict,
        };
    }
    let send = || {
        let (input, output) = (End::new(input, call.args[2])?, End::new(output, 0)?);
        copy(input, output, bytes)
    };
    match send() {
        Ok(count @ 1..) => Verdict::Done(count as isize),
        result => told(limit::answer(result)),
    }
}

/// The kernel's refusal of a sendfile, if it refuses it. It is asked with no bytes to be sent,
/// which moves nothing; the number of bytes is looked at here, between what it says of the input
/// and of the output.
fn refusal_of_sendfile(call: &Call, kept: Option<i64>) -> Option<Verdict> {
    const BAD: isize = -(OsError::BADF.raw_os_error() as isize);
    let [output, input, offset, bytes, ..] = call.args;
    let ask = |output: usize| {
        let mut copy = kept;
        let place = copy.as_mut().map_or(0, |copy| core::ptr::from_mut(copy) as usize);
        // SAFETY: no bytes are moved; the offset is a copy of the program's.
        unsafe { syscall(call.number, [output, input, place, 0, 0, 0]) }
    };
    let without_output = ask(usize::MAX);
    if without_output != BAD {
        return Some(Verdict::Done(without_output));
    }
    let fd = input as RawFd;
    if let Err(error) = check_open(fd, false).and_then(|()| verify_from(fd, offset, bytes)) {
        return Some(Verdict::error(error));
    }
    // A pipe that is full would have to be waited for.
    let result = if kind(output as RawFd) == S_IFIFO { 0 } else { ask(output) };
    match check_open(output as RawFd, true) {
        Err(error) => Some(Verdict::error(error)),
        Ok(()) if result == 0 && bytes > 0 && kind(fd) == S_IFDIR => Some(Verdict::error(OsError::INVAL)),
        Ok(()) => (result < 0 || bytes == 0).then_some(Verdict::Done(result)),
    }
}

/// Refuses a range that no file can have, from an offset of the program's or the descriptor's
/// position.
pub(super) fn verify_from(fd: RawFd, offset: usize, bytes: usize) -> Result<(), OsError> {
    let end = End::new(fd, offset)?;
    let start = match (end.offset, end.file()) {
        (Some(offset), _) => offset,
        (None, Some((held, file))) => end.start(held, file)?,
        (None, None) => 0,
    };
    super::data::verify(start, bytes)
}

pub(crate) fn copy_file_range(call: &mut Call) -> Verdict {
    let (input, output) = (call.descriptor(0), call.descriptor(2));
    if !super::is_ours(input) && !super::is_ours(output) {
        return Verdict::Pass;
    }
    // What is wrong with anything but the range the kernel says, of no bytes.
    let [first, from, second, to, _, flags] = call.args;
    // SAFETY: no bytes are moved; the offsets are the program's, and are only read then.
    let result = unsafe { syscall(call.number, [first, from, second, to, 0, flags]) };
    // An offset before the beginning is found when it is known whether the range ends behind all
    // offsets.
    let is_bad_offset = || {
        // SAFETY: no bytes are moved.
        let without = unsafe { syscall(call.number, [first, 0, second, 0, 0, flags]) };
        without == 0 && result == -(OsError::INVAL.raw_os_error() as isize)
    };
    // The kernel says first that a range ends behind all offsets, and a range of no bytes does not.
    let is_too_far = result == -(OsError::FBIG.raw_os_error() as isize) && super::is_ours(input) && super::is_ours(output);
    if result < 0 && !is_too_far && !is_bad_offset() {
        return Verdict::Done(result);
    }
    if !super::is_ours(input) || !super::is_ours(output) {
        // Two file systems, also where a member lies on the host's.
        return Verdict::error(OsError::XDEV);
    }
    limit::answer(copy_range(input, output, call, is_too_far))
}

/// `is_too_far`: the kernel has said that the copy would begin behind the last offset of a file.
fn copy_range(input: RawFd, output: RawFd, call: &Call, is_too_far: bool) -> Result<usize, OsError> {
    for address in [call.args[1], call.args[3]].into_iter().filter(|&address| address != 0) {
        if program::read::<u64>(address)?.checked_add(call.args[4] as u64).is_none() {
            return Err(OsError::OVERFLOW);
        }
    }
    let (input, output) = (End::new(input, call.args[1])?, End::new(output, call.args[3])?);
    let (Some((source_held, source)), Some((target_held, target))) = (input.file(), output.file()) else {
        return Err(OsError::XDEV);
    };
    // What the source holds now is copied, not what the copy adds to it.
    let (from, to) = (input.start(source_held, source)?, output.start(target_held, target)?);
    if [from, to].iter().any(|start| start.checked_add(call.args[4] as u64).is_none()) {
        return Err(OsError::OVERFLOW);
    }
    if is_too_far {
        return Err(OsError::FBIG);
    }
    // The limit for files comes before what the source has, also if that is nothing, and before
    // what the ranges have in common.
    let room = sys::file_limit::bytes().checked_sub(to).filter(|&room| room > 0).ok_or(OsError::FBIG)?;
    let bytes = (call.args[4] as u64).min(source.size().saturating_sub(from)).min(room);
    if source.number() == target.number() && from.abs_diff(to) < bytes {
        return Err(OsError::INVAL);
    }
    copy(input, output, bytes as usize)
}

/// Refuses descriptors that are not open, or only name something.
pub(super) fn check_named(descriptor: RawFd) -> Result<(), OsError> {
    let is_open =
        descriptor >= 0 && fcntl_getfl(super::directory::borrow(descriptor)).is_ok_and(|flags| !flags.contains(OFlags::PATH));
    if is_open { Ok(()) } else { Err(OsError::BADF) }
}

/// Refuses those, and descriptors that do not read or write what a copy reads or writes.
pub(super) fn check_open(descriptor: RawFd, writes: bool) -> Result<(), OsError> {
    check_named(descriptor)?;
    let flags = fcntl_getfl(super::directory::borrow(descriptor)).map_err(|_| OsError::BADF)?;
    let is_wrong = match flags & OFlags::RWMODE {
        OFlags::RDONLY => writes,
        OFlags::WRONLY => !writes,
        OFlags::RDWR => false,
        // Neither.
        _ => true,
    };
    if is_wrong { Err(OsError::BADF) } else { Ok(()) }
}

/// Whether what is written to a descriptor goes to the end of its file.
pub(super) fn appends(descriptor: RawFd) -> bool {
    fcntl_getfl(super::directory::borrow(descriptor)).is_ok_and(|flags| flags.contains(OFlags::APPEND))
}

/// The type of what a descriptor is open on; 0 if it is not.
pub(super) fn kind(descriptor: RawFd) -> u32 {
    fstat(super::directory::borrow(descriptor)).map_or(0, |stat| stat.st_mode & S_IFMT)
}

/// Copies from one end to the other. Where both are one description with one position, each end
/// counts from where that was, as in the kernel.
fn copy(mut input: End, mut output: End, bytes: usize) -> Result<usize, OsError> {
    let shared = match (input.file(), output.file()) {
        (Some((held, file)), Some((other, copied)))
            if input.offset.is_none()
                && output.offset.is_none()
                && file.number() == copied.number()
                && (core::ptr::eq(&raw const **held, &raw const **other) || is_one_description(input.fd, output.fd)) =>
        {
            Some((held.clone(), file.clone(), input.start(held, file)?))
        }
        _ => None,
    };
    let Some((held, file, start)) = shared else { return move_bytes(input, output, bytes) };
    (input.offset, output.offset) = (Some(start), Some(start));
    (input.is_counted_here, output.is_counted_here) = (true, true);
    let fd = input.fd;
    let moved = move_bytes(input, output, bytes)?;
    // The bytes are moved; if another thread has closed the number meanwhile, there is no position
    // to move.
    let _ = held.with_position(fd, &file, |position| {
        *position = start + moved as u64;
        Ok(())
    });
    Ok(moved)
}

/// Whether two descriptors are one open file description, as they may be that the process was
/// started with. Where the kernel does not tell they are not.
fn is_one_description(one: RawFd, other: RawFd) -> bool {
    let process = crate::process::getpid() as usize;
    // SAFETY: looks at descriptors and changes nothing.
    unsafe { syscall(__NR_kcmp as usize, [process, process, KCMP_FILE, one as usize, other as usize, 0]) == 0 }
}

/// How many bytes an output of fewer than `bytes` lies ahead of the input in the same file, if it
/// does: what is copied is copied again then.
fn overlap(input: &End, output: &End, bytes: usize) -> Result<Option<usize>, OsError> {
    let (Some((source_held, source)), Some((target_held, target))) = (input.file(), output.file()) else { return Ok(None) };
    if source.number() != target.number() {
        return Ok(None);
    }
    let (from, to) = (input.start(source_held, source)?, output.start(target_held, target)?);
    Ok(to.checked_sub(from).map(|ahead| ahead as usize).filter(|ahead| (1..bytes).contains(ahead)))
}

/// The bytes of a pipe, if nobody has changed its size (pipe(7)).
pub(super) const PIPE_BYTES: usize = 16 * PAGE_BYTES;

/// How many bytes the kernel takes from a file at once when it copies them by way of a pipe: as
/// many pages as the pipe holds, as far as the file reaches.
pub(super) fn piece_bytes(input: &End, pipe_bytes: usize) -> Result<usize, OsError> {
    let Some((held, file)) = input.file() else { return Ok(pipe_bytes) };
    let start = input.start(held, file)?;
    let rest = usize::try_from(file.size().saturating_sub(start)).unwrap_or(usize::MAX);
    Ok(rest.min(pipe_bytes - start as usize % PAGE_BYTES))
}

fn move_bytes(mut input: End, mut output: End, bytes: usize) -> Result<usize, OsError> {
    let mut buffer = room(bytes.min(STEP_BYTES))?;
    let bytes = bytes.min(MAX_RW_COUNT);
    let ahead = overlap(&input, &output, bytes)?;
    let mut total = 0;
    while total < bytes {
        let step = buffer.len().min(bytes - total);
        let read = match ahead {
            Some(ahead) => {
                piece_bytes(&input, PIPE_BYTES).and_then(|piece| read_ahead(&mut input, &mut buffer[..step.min(piece)], ahead))
            }
            None => input.read(&mut buffer[..step]),
        };
        let count = match read {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        };
        let (written, error) = output.write_on(&buffer[..count]);
        input.unread(count - written);
        let is_first = total == 0 && written == 0;
        total += written;
        match error {
            Some(error) if is_first => return Err(error),
            Some(OsError::FBIG) if written == 0 && output.file().is_some() => {
                limit::exceeded();
                break;
            }
            Some(_) => break,
            None if written < count => break,
            None => {}
        }
    }
    // What was not moved, the kernel has stored when it was asked.
    if total > 0 {
        input.store_offset()?;
        output.store_offset()?;
    }
    Ok(total)
}

/// Reads a piece of a file that is about to be written `ahead` bytes further on. The kernel's pipe
/// holds the file's own pages: what it writes at the beginning of a piece it reads behind that.
fn read_ahead(input: &mut End, piece: &mut [u8], ahead: usize) -> Result<usize, OsError> {
    let first = piece.len().min(ahead);
    if first == 0 {
        return Ok(0);
    }
    let count = input.read(&mut piece[..first])?;
    if count < first {
        return Ok(count);
    }
    for index in first..piece.len() {
        piece[index] = piece[index - first];
    }
    input.step((piece.len() - first) as i64);
    Ok(piece.len())
}
