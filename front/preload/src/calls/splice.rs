//! splice(2) between a pipe and a file of the array, and sendfile(2) from a file of the array to
//! something that is no file. The kernel would move pages of the anchor, so the library copies the
//! bytes.
//!
//! Inside the library the pipe is asked without waiting (RWF_NOWAIT). If it is not ready and the
//! call may wait, the stub waits in the program's stead, where signals arrive: it writes as much as
//! a pipe takes at once, or waits for what comes first.

use super::copy::{End, PIPE_BYTES, check_named, check_open, kind, piece_bytes, room, verify_from};
use super::limit;
use crate::call::{Call, Verdict};
use crate::uapi::{MAX_RW_COUNT, SIGPIPE, SO_TYPE, SOL_SOCKET, SPLICE_F_NONBLOCK};
use crate::{program, signals};
use heap::boxed::Box;
use heap::vec::Vec;
use linux_raw_sys::general;
use linux_raw_sys::general::{
    __NR_fcntl, __NR_getsockopt, __NR_pipe2, __NR_poll, __NR_pwritev2, __NR_read, __NR_splice, __NR_tee, __NR_write,
    F_GETPIPE_SZ, F_SETPIPE_SZ, O_CLOEXEC, POLLERR, POLLOUT, RWF_NOWAIT, S_IFDIR, S_IFIFO, SPLICE_F_GIFT, SPLICE_F_MORE,
    SPLICE_F_MOVE,
};
use linux_raw_sys::net::SOCK_STREAM;
use sys::high_fd::Raised;
use sys::raw::{check, syscall};
use sys::rustix::fs::{OFlags, fcntl_getfl};
use sys::{AsRawFd as _, FromRawFd as _, OsError, OwnedFd, RawFd};
use units::PAGE_BYTES;

/// What a pipe takes whole once there is room for anything.
const AT_ONCE_BYTES: usize = 4096;
/// The flags of splice(2).
const FLAGS_KNOWN: u32 = SPLICE_F_MOVE | general::SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
/// So much of a file is read at once for a sendfile to what is no pipe.
const STEP_BYTES: usize = 1 << 20;

/// A splice that waits for the pipe.
struct Waiting {
    file: End,
    bytes: Vec<u8>,
    /// What comes from the pipe is doubled here.
    double: Option<Double>,
}

pub(crate) fn splice(call: &mut Call) -> Verdict {
    let (input, output) = (call.descriptor(0), call.descriptor(2));
    if !super::is_ours(input) && !super::is_ours(output) {
        return Verdict::Pass;
    }
    if [input, output].into_iter().any(|fd| kind(fd) == S_IFDIR) {
        // The kernel refuses it when it has looked at everything else, and waited for the pipe.
        return Verdict::Pass;
    }
    let [_, input_offset, _, output_offset, bytes, flags] = call.args;
    let (whole, waits) = (bytes, flags & SPLICE_F_NONBLOCK == 0);
    if bytes == 0 {
        return Verdict::Done(0);
    }
    if flags as u32 & !(FLAGS_KNOWN) != 0 {
        return Verdict::error(OsError::INVAL);
    }
    if let Err(error) = check_named(input).and_then(|()| check_named(output)) {
        return Verdict::error(error);
    }
    let pipes = [is_pipe(input), is_pipe(output)];
    let offsets = [input_offset, output_offset];
    if (0..2).any(|end| pipes[end] && offsets[end] != 0) {
        return Verdict::error(OsError::SPIPE);
    }
    let mut offsets = [output_offset, input_offset].into_iter().filter(|&address| address != 0);
    let read = offsets.try_for_each(|address| program::read::<i64>(address).map(drop));
    if let Err(error) = read.and_then(|()| check_open(input, false)).and_then(|()| check_open(output, true)) {
        return Verdict::error(error);
    }
    let verified = match pipes {
        [true, false] => verify_from(output, output_offset, whole),
        [false, true] => verify_from(input, input_offset, whole),
        _ => Ok(()),
    };
    if let Err(error) = verified {
        return Verdict::error(error);
    }
    let bytes = whole.min(pipe_bytes(if pipes[0] { input } else { output }));
    match pipes {
        // A pipe of the array and a file of the host: both are the kernel's.
        [true, false] if !super::is_ours(output) => Verdict::Pass,
        [false, true] if !super::is_ours(input) => Verdict::Pass,
        [true, false] => from_pipe(call, input, output, output_offset, bytes, waits),
        [false, true] => to_pipe(call, input, input_offset, output, bytes, waits),
        // A pipe of the array and another pipe: both are the kernel's.
        [true, true] => Verdict::Pass,
        [false, false] => Verdict::error(OsError::INVAL),
    }
}

/// Whether what is written to a descriptor goes on where the last write has ended: to a socket it
/// may be a message of its own.
fn is_stream(descriptor: RawFd) -> bool {
    let (mut kind, mut bytes) = (SOCK_STREAM, size_of::<u32>() as u32);
    let args = [descriptor as usize, SOL_SOCKET as usize, SO_TYPE, &raw mut kind as usize, &raw mut bytes as usize, 0];
    // SAFETY: asks a descriptor what it is; there is room for the answer, which is not stored of
    // what is no socket.
    let _ = unsafe { syscall(__NR_getsockopt as usize, args) };
    kind == SOCK_STREAM
}

fn is_pipe(descriptor: RawFd) -> bool {
    kind(descriptor) == S_IFIFO
}

/// How much a pipe holds (fcntl(2), F_GETPIPE_SZ).
fn pipe_bytes(pipe: RawFd) -> usize {
    // SAFETY: asks a descriptor for a number.
    let bytes = unsafe { syscall(__NR_fcntl as usize, [pipe as usize, F_GETPIPE_SZ as usize, 0, 0, 0, 0]) };
    check(bytes).map_or(PIPE_BYTES, |bytes| bytes.max(PAGE_BYTES))
}

/// What the kernel says of a pipe before it looks at what is to be put into it: nobody reads from
/// it, or it is full and the call does not wait.
fn refusal_of_pipe(pipe: RawFd, waits: bool) -> Option<Verdict> {
    match poll(pipe, POLLOUT) {
        Ok(found) if found & POLLERR != 0 => {
            signals::raise(SIGPIPE);
            Some(Verdict::error(OsError::PIPE))
        }
        Ok(found) if found & POLLOUT == 0 && !waits => Some(Verdict::error(OsError::AGAIN)),
        _ => None,
    }
}

/// Which of the events asked for, and of the bad ones, have come to pass.
fn poll(descriptor: RawFd, event: u32) -> Result<u32, OsError> {
    // `struct pollfd`: the descriptor, what is asked for in the lower half of the second word, and
    // what has come in the upper.
    let mut asked = [descriptor as u32, event];
    // SAFETY: one structure of eight bytes; a timeout of 0 does not wait.
    check(unsafe { syscall(__NR_poll as usize, [asked.as_mut_ptr() as usize, 1, 0, 0, 0, 0]) })?;
    Ok(asked[1] >> 16)
}

/// sendfile(2) from a file of the array to a pipe or socket: the stub writes, as long as it takes.
pub(super) fn send(call: &mut Call, file: RawFd, output: RawFd) -> Verdict {
    let waits = !fcntl_getfl(super::directory::borrow(output)).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
    if is_pipe(output)
        && let Some(refusal) = refusal_of_pipe(output, waits)
    {
        return refusal;
    }
    let bytes = call.args[3].min(MAX_RW_COUNT);
    // A pipe takes so many pages; of a message nothing is left for later.
    let pipe = match is_pipe(output) {
        true => Some(pipe_bytes(output)),
        false => (!is_stream(output)).then_some(PIPE_BYTES),
    };
    match read(file, call.args[2], bytes.min(pipe.unwrap_or(STEP_BYTES)), pipe) {
        Ok((_, buffer)) if buffer.is_empty() => Verdict::Done(0),
        Ok((file, buffer)) if is_pipe(output) => fill_pipe(call, file, output, buffer, waits, true),
        Ok((file, buffer)) if pipe.is_some() => write_out(call, file, output, buffer, true),
        Ok((file, buffer)) => {
            let rest = bytes - buffer.len();
            send_on(call, Sending { file, output, bytes: buffer, sent: 0, rest })
        }
        Err(error) => Verdict::error(error),
    }
}

/// A sendfile to what is neither a pipe nor takes messages: it ends when all is sent, or not all of
/// a piece was taken.
struct Sending {
    file: End,
    output: RawFd,
    /// What is being written.
    bytes: Vec<u8>,
    /// How many bytes this call wrote before the bytes that wait.
    sent: usize,
    /// How much is to be sent after that.
    rest: usize,
}

/// The stub writes a piece, and is told of the next one when it has written all of it.
fn send_on(call: &mut Call, sending: Sending) -> Verdict {
    let args = [sending.output as usize, sending.bytes.as_ptr() as usize, sending.bytes.len(), 0, 0, 0];
    call.scratch[0] = Box::into_raw(Box::new(sending)) as u64;
    call.then = Some(sent_on);
    Verdict::PassWith { number: __NR_write as usize, args }
}

fn sent_on(call: &mut Call) -> isize {
    // SAFETY: put there by `send_on` for this very call.
    let mut sending = unsafe { *Box::from_raw(call.scratch[0] as *mut Sending) };
    let count = call.result.max(0) as usize;
    sending.file.unread(sending.bytes.len() - count);
    sending.sent += count;
    if count == sending.bytes.len() && sending.rest > 0 {
        // If the process dies in the next piece, whoever shares the position goes on behind this one.
        let _ = sending.file.settle(count);
        sending.bytes.resize(sending.rest.min(STEP_BYTES).min(sending.bytes.capacity()), 0);
        if let Ok(read @ 1..) = sending.file.read(&mut sending.bytes) {
            sending.bytes.truncate(read);
            sending.rest -= read;
            if let Verdict::PassWith { number, args } = send_on(call, sending) {
                call.instead[0] = number;
                call.instead[1..].copy_from_slice(&args);
            }
            return call.result;
        }
    }
    // What has failed after something was sent is met by the next call.
    let result = if sending.sent > 0 { sending.sent as isize } else { call.result };
    sending.file.settle(count).map_or_else(|error| -(error.raw_os_error() as isize), |()| result)
}

/// Reads up to so many bytes of a file, which are to go into a pipe of `pipe` bytes if that is
/// given.
fn read(file: RawFd, offset: usize, bytes: usize, pipe: Option<usize>) -> Result<(End, Vec<u8>), OsError> {
    let mut file = End::reading(file, offset)?;
    file.count_here()?;
    // The kernel moves pages: of a pipe's worth of them the first may begin in its middle.
    let bytes = match pipe {
        Some(pipe) => bytes.min(piece_bytes(&file, pipe)?),
        None => bytes,
    };
    let mut buffer = room(bytes)?;
    let count = file.read(&mut buffer)?;
    buffer.truncate(count);
    Ok((file, buffer))
}

/// The stub writes; what was not written is read another time. The offset is stored then, of a call
/// that fails only if it `always_tells`.
fn write_out(call: &mut Call, file: End, output: RawFd, bytes: Vec<u8>, always_tells: bool) -> Verdict {
    fn finish(call: &Call, mut waiting: Waiting, always_tells: bool) -> isize {
        waiting.file.unread(waiting.bytes.len() - call.result.max(0) as usize);
        if call.result < 0 && !always_tells {
            return call.result;
        }
        waiting.file.settle(call.result.max(0) as usize).map_or_else(|error| -(error.raw_os_error() as isize), |()| call.result)
    }
    let args = [output as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    let finish: Finish = match always_tells {
        true => |call, waiting| finish(call, waiting, true),
        false => |call, waiting| finish(call, waiting, false),
    };
    wait(call, Waiting { file, bytes, double: None }, finish);
    Verdict::PassWith { number: __NR_write as usize, args }
}

/// The kernel writes to the file first and then takes from the pipe what it has written. So the
/// bytes are doubled into a pipe of the library's (tee(2)), and are taken out of the program's when
/// it is known how many the file has taken.
fn from_pipe(call: &mut Call, pipe: RawFd, file: RawFd, offset: usize, bytes: usize, waits: bool) -> Verdict {
    let file = match End::writing(file, offset) {
        Ok(file) => file,
        Err(error) => return Verdict::error(error),
    };
    let mut buffer = match room(bytes) {
        Ok(buffer) => buffer,
        Err(error) => return Verdict::error(error),
    };
    let bytes = buffer.len();
    let double = match Double::new(bytes) {
        Ok(double) => double,
        Err(error) => return Verdict::error(error),
    };
    let tee = |flags: usize| [pipe as usize, double.input.as_raw_fd() as usize, bytes, flags, 0, 0];
    // SAFETY: moves no memory of this process.
    match check(unsafe { syscall(__NR_tee as usize, tee(SPLICE_F_NONBLOCK)) }) {
        Ok(count) => limit::answer(put(file, pipe, &double, &mut buffer, count)),
        Err(OsError::AGAIN) if waits => {
            let args = tee(0);
            wait(call, Waiting { file, bytes: buffer, double: Some(double) }, |call, mut waiting| {
                match (call.result, waiting.double) {
                    (count @ 0.., Some(double)) => {
                        let put = put(waiting.file, call.descriptor(0), &double, &mut waiting.bytes, count as usize);
                        answer(limit::answer(put))
                    }
                    (result, _) => result,
                }
            });
            Verdict::PassWith { number: __NR_tee as usize, args }
        }
        Err(error) => Verdict::error(error),
    }
}

/// A pipe of the library's.
struct Double {
    output: Raised,
    input: Raised,
}

impl Double {
    /// Takes as much as a pipe that holds `bytes`, if it may.
    fn new(bytes: usize) -> Result<Self, OsError> {
        let mut ends: [RawFd; 2] = [-1; 2];
        // SAFETY: the kernel stores two descriptors.
        check(unsafe { syscall(__NR_pipe2 as usize, [ends.as_mut_ptr() as usize, O_CLOEXEC as usize, 0, 0, 0, 0]) })?;
        // SAFETY: both were just made, and nobody else knows of them.
        let [output, input] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let double = Self { output: Raised::new(output)?, input: Raised::new(input)? };
        if bytes > PIPE_BYTES {
            // SAFETY: sets the size of a pipe of ours; a smaller one makes the call shorter.
            unsafe { syscall(__NR_fcntl as usize, [double.input.as_raw_fd() as usize, F_SETPIPE_SZ as usize, bytes, 0, 0, 0]) };
        }
        Ok(double)
    }

    fn read(&self, bytes: &mut [u8]) -> Result<usize, OsError> {
        let mut count = 0;
        while count < bytes.len() {
            let rest = &mut bytes[count..];
            let args = [self.output.as_raw_fd() as usize, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0];
            // SAFETY: the buffer is ours; the pipe holds as much.
            match check(unsafe { syscall(__NR_read as usize, args) })? {
                0 => break,
                read => count += read,
            }
        }
        Ok(count)
    }

    /// Takes so many bytes out of a pipe. This pipe is empty and holds as much.
    fn take(&self, pipe: RawFd, mut bytes: usize) {
        while bytes > 0 {
            let args = [pipe as usize, 0, self.input.as_raw_fd() as usize, 0, bytes, SPLICE_F_NONBLOCK];
            // SAFETY: moves no memory of this process.
            match check(unsafe { syscall(__NR_splice as usize, args) }) {
                // Another reader of the pipe has taken the rest.
                Ok(0) | Err(_) => return,
                Ok(count) => bytes -= count,
            }
        }
    }
}

/// Writes `count` bytes that were doubled, and takes out of the program's pipe what the file has
/// taken. `buffer` has room for as many.
fn put(mut file: End, pipe: RawFd, double: &Double, buffer: &mut [u8], count: usize) -> Result<usize, OsError> {
    if count == 0 {
        return file.store_offset().map(|()| 0);
    }
    let buffer = buffer.get_mut(..count).ok_or(OsError::NOMEM)?;
    let count = double.read(buffer)?;
    match file.write_on(&buffer[..count]) {
        (0, Some(error)) => Err(error),
        (written, _) => {
            double.take(pipe, written);
            file.store_offset().map(|()| written)
        }
    }
}

fn to_pipe(call: &mut Call, file: RawFd, offset: usize, pipe: RawFd, bytes: usize, waits: bool) -> Verdict {
    if let Some(refusal) = refusal_of_pipe(pipe, waits) {
        return refusal;
    }
    let (file, buffer) = match read(file, offset, bytes, Some(pipe_bytes(pipe))) {
        Ok((file, buffer)) if buffer.is_empty() => return Verdict::from_result(file.store_offset().map(|()| 0)),
        Ok(ready) => ready,
        Err(error) => return Verdict::error(error),
    };
    fill_pipe(call, file, pipe, buffer, waits, false)
}

/// Writes what a pipe takes of bytes that were read from a file. If it takes nothing and the call may
/// wait, the stub writes as much as fits once there is room. `always_tells` as for [`write_out`].
fn fill_pipe(call: &mut Call, mut file: End, pipe: RawFd, mut buffer: Vec<u8>, waits: bool, always_tells: bool) -> Verdict {
    match at_once(pipe, buffer.as_ptr(), buffer.len()) {
        Ok(count) => {
            file.unread(buffer.len() - count);
            Verdict::from_result(file.settle(count).map(|()| count))
        }
        Err(OsError::AGAIN) if waits => {
            let less = buffer.len().saturating_sub(AT_ONCE_BYTES);
            file.unread(less);
            buffer.truncate(AT_ONCE_BYTES);
            write_out(call, file, pipe, buffer, always_tells)
        }
        Err(error) => Verdict::error(error),
    }
}

/// Writes to the pipe what can be written without waiting.
fn at_once(pipe: RawFd, address: *const u8, bytes: usize) -> Result<usize, OsError> {
    let part = [address as usize, bytes];
    let args = [pipe as usize, part.as_ptr() as usize, 1, usize::MAX, 0, RWF_NOWAIT as usize];
    // SAFETY: one buffer, ours and `bytes` long.
    match check(unsafe { syscall(__NR_pwritev2 as usize, args) }) {
        // Pages were moved into this pipe before, and the kernel does not promise any more not to
        // wait.
        Err(OsError::OPNOTSUPP) => match by_double(pipe, address, bytes) {
            // No number is free for a pipe of the library's.
            Err(OsError::MFILE | OsError::NFILE) => when_ready(pipe, address, bytes.min(AT_ONCE_BYTES)),
            result => result,
        },
        result => result,
    }
}

/// Writes bytes to a pipe of which the kernel does not promise not to wait: by way of a pipe of the
/// library's, from which pages are moved without waiting.
fn by_double(pipe: RawFd, address: *const u8, bytes: usize) -> Result<usize, OsError> {
    let double = Double::new(bytes)?;
    let bytes = bytes.min(pipe_bytes(double.input.as_raw_fd()));
    // SAFETY: the buffer is ours and `bytes` long; the pipe is empty and holds as much.
    let count =
        check(unsafe { syscall(__NR_write as usize, [double.input.as_raw_fd() as usize, address as usize, bytes, 0, 0, 0]) })?;
    let args = [double.output.as_raw_fd() as usize, 0, pipe as usize, 0, count, SPLICE_F_NONBLOCK];
    // SAFETY: moves no memory of this process.
    check(unsafe { syscall(__NR_splice as usize, args) })
}

/// Writes bytes after asking whether the pipe is ready: a ready pipe takes something at once.
fn when_ready(pipe: RawFd, address: *const u8, bytes: usize) -> Result<usize, OsError> {
    if poll(pipe, POLLOUT)? == 0 {
        return Err(OsError::AGAIN);
    }
    // SAFETY: the buffer is ours and `bytes` long.
    check(unsafe { syscall(__NR_write as usize, [pipe as usize, address as usize, bytes, 0, 0, 0]) })
}

type Finish = fn(&mut Call, Waiting) -> isize;

/// Has `finish` called when the stub's call is over.
fn wait(call: &mut Call, waiting: Waiting, finish: Finish) {
    call.scratch[0] = Box::into_raw(Box::new(waiting)) as u64;
    call.scratch[1] = finish as usize as u64;
    call.then = Some(|call| {
        // SAFETY: both words were put there by `wait` for this very call.
        let (waiting, finish) = unsafe {
            let finish: Finish = core::mem::transmute::<usize, Finish>(call.scratch[1] as usize);
            (*Box::from_raw(call.scratch[0] as *mut Waiting), finish)
        };
        finish(call, waiting)
    });
}

fn answer(verdict: Verdict) -> isize {
    match verdict {
        Verdict::Done(result) => result,
        _ => -(OsError::IO.raw_os_error() as isize),
    }
}
