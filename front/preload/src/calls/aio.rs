//! Serves Linux AIO (io_setup(2), io_submit(2), io_getevents(2)) on files of the array.
//!
//! A request on a file of the array is carried out within io_submit, by the handler of the call
//! that does the same at once (pread64, fsync, …). Its completion goes through the kernel: the
//! library submits a *placeholder*, which is the same request on the same descriptor without bytes. So
//! the kernel checks the context, the room in it, the descriptor and the flags before anything is
//! done, signals an eventfd, and wakes whoever waits in io_getevents. What io_getevents gives of a
//! placeholder, the library replaces by the event of the request.
//!
//! Requests on other files are the kernel's, but for one kind: a read into a mapping of a file of
//! the array is carried out like those on the array's files, since nobody would follow bytes that
//! arrive after the call.
//!
//! A context begins with a mark by which programs know its form, and read from it without a call
//! whether there are events. io_setup takes the mark away, so that programs ask by io_getevents.

use super::data::{self, Buffer, RWF_KNOWN};
use super::{Handler, OPEN, node::Node};
use crate::call::{Call, Verdict};
use crate::lock::{Lock, RawLock, Waiters};
use crate::uapi::{MAX_RW_COUNT, UIO_MAXIOV};
use crate::{mappings, program};
use core::sync::atomic::{AtomicUsize, Ordering};
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use sys::raw::{check, syscall};
use sys::{OsError, RawFd};

/// Kinds of requests (linux/aio_abi.h).
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;

/// The mark of a context (AIO_RING_MAGIC), and where it lies.
const MARK: u32 = 0xa10a_10a1;
const MARK_AT: usize = 16;

/// `struct iocb`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    kind: u16,
    priority: u16,
    descriptor: RawFd,
    buffer: usize,
    bytes: usize,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// Where the kernel stores that it has taken a request.
const KEY_AT: usize = core::mem::offset_of!(Request, key);
const _: () = assert!(size_of::<Request>() == 64 && KEY_AT == 8);

impl Request {
    const NONE: Self = Self {
        data: 0,
        key: 0,
        rw_flags: 0,
        kind: 0,
        priority: 0,
        descriptor: -1,
        buffer: 0,
        bytes: 0,
        offset: 0,
        reserved: 0,
        flags: 0,
        event_descriptor: 0,
    };

    const fn reads(&self) -> bool {
        matches!(self.kind, PREAD | PREADV)
    }

    const fn is_vectored(&self) -> bool {
        matches!(self.kind, PREADV | PWRITEV)
    }

    const fn moves_bytes(&self) -> bool {
        self.reads() || matches!(self.kind, PWRITE | PWRITEV)
    }

    /// Returns the call that does the same at once. `vector` is where the buffer of a read or write
    /// with flags can be written down.
    fn call(&self, vector: &mut Buffer) -> Call {
        *vector = Buffer { address: self.buffer, bytes: self.bytes.min(MAX_RW_COUNT) };
        let (fd, offset) = (self.descriptor as usize, self.offset as usize);
        let (number, arguments) = match self.kind {
            FSYNC => (nr::__NR_fsync, [fd, 0, 0, 0, 0, 0]),
            FDSYNC => (nr::__NR_fdatasync, [fd, 0, 0, 0, 0, 0]),
            _ => {
                let flags = self.rw_flags as usize;
                let plain = [fd, vector.address, vector.bytes, offset, 0, 0];
                let with_flags = [fd, core::ptr::from_mut(vector) as usize, 1, offset, 0, flags];
                let vectored = [fd, self.buffer, self.bytes, offset, 0, flags];
                match (self.reads(), self.is_vectored(), flags) {
                    (true, false, 0) => (nr::__NR_pread64, plain),
                    (false, false, 0) => (nr::__NR_pwrite64, plain),
                    (true, is_vectored, _) => (nr::__NR_preadv2, if is_vectored { vectored } else { with_flags }),
                    (false, is_vectored, _) => (nr::__NR_pwritev2, if is_vectored { vectored } else { with_flags }),
                }
            }
        };
        Call::of_library(number as usize, arguments)
    }
}

/// `struct io_event`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

/// A request that the kernel has accepted a placeholder for, until its event is given.
struct Accepted {
    context: usize,
    /// Counts requests of the process, so that those of a context that is gone are told from those
    /// of a new one at its address.
    turn: u64,
    /// Where the program's request lies, and what it wants back.
    address: usize,
    data: u64,
    /// None while it is carried out.
    result: Option<isize>,
}

/// The number that a placeholder's event carries: its lower half is the place of the request in the
/// list, and its upper half is the request's turn.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    const fn new(index: usize, turn: u64) -> Self {
        Self(turn << 32 | index as u64 & 0xffff_ffff)
    }

    const fn index(self) -> usize {
        self.0 as u32 as usize
    }

    const fn turn(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

struct Requests {
    /// Serves the call that a request stands for, as if the program made it.
    serve: Handler,
    /// The placeholder that is being submitted. By its address the events of placeholders are known.
    placeholder: Request,
    turn: u64,
    /// A placeholder's `data` is a [`Ticket`] for a place in this list.
    list: Vec<Option<Accepted>>,
    vacant: Vec<usize>,
}

impl Requests {
    const fn new() -> Self {
        Self { serve: by_handler, placeholder: Request::NONE, turn: 0, list: Vec::new(), vacant: Vec::new() }
    }

    /// The address by which the events of placeholders are known.
    fn mark(&self) -> u64 {
        core::ptr::from_ref(&self.placeholder) as u64
    }

    fn add(&mut self, accepted: Accepted) -> usize {
        COUNT.fetch_add(1, Ordering::SeqCst);
        if let Some(index) = self.vacant.pop()
            && let Some(place) = self.list.get_mut(index)
        {
            *place = Some(accepted);
            return index;
        }
        self.list.push(Some(accepted));
        self.list.len() - 1
    }

    /// The request of a ticket. None if it went with its context: its place may be another one's.
    fn of(&mut self, ticket: Ticket) -> Option<&mut Accepted> {
        let accepted = self.list.get_mut(ticket.index())?.as_mut()?;
        (accepted.turn as u32 == ticket.turn()).then_some(accepted)
    }

    fn take(&mut self, ticket: Ticket) -> Option<Accepted> {
        self.of(ticket)?;
        let accepted = self.list.get_mut(ticket.index())?.take()?;
        self.vacant.push(ticket.index());
        COUNT.fetch_sub(1, Ordering::SeqCst);
        Some(accepted)
    }

    /// Forgets the requests of a context, up to the one of turn `last`.
    fn forget(&mut self, context: usize, last: u64) {
        let Self { list, vacant, .. } = self;
        for (index, place) in list.iter_mut().enumerate() {
            if place.take_if(|accepted| accepted.context == context && accepted.turn <= last).is_some() {
                vacant.push(index);
                COUNT.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Tells whether a request is still being carried out.
    fn is_underway(&mut self, ticket: Ticket) -> bool {
        self.of(ticket).is_some_and(|accepted| accepted.result.is_none())
    }
}

static REQUESTS: Lock<Requests> = Lock::new(Requests::new());
/// Counts the requests that are accepted and whose events are not given yet.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Here a thread waits that was given the event of a request which another one still carries out.
static WAITERS: Waiters = Waiters::new();

/// Notes how calls are served, when the process starts.
pub(crate) fn serve_by(serve: Handler) {
    REQUESTS.lock().serve = serve;
}

/// Serves calls before [`serve_by`] has said how.
fn by_handler(call: &mut Call) -> Verdict {
    super::handler(call.number)(call)
}

/// The lock of the requests, to hold it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    REQUESTS.raw()
}

/// Forgets the requests in a copy of the process: they are the original's, and so are the contexts.
pub(crate) fn abandon() {
    REQUESTS.raw().reset();
    WAITERS.reset();
    let mut requests = REQUESTS.lock();
    let anew = Requests { serve: requests.serve, ..Requests::new() };
    core::mem::forget(core::mem::replace(&mut *requests, anew));
    COUNT.store(0, Ordering::SeqCst);
}

/// `io_setup`.
pub(crate) fn set_up(call: &mut Call) -> Verdict {
    let result = call.kernel();
    if result == 0
        && let Ok(context) = program::read::<usize>(call.args[1])
        && program::read::<u32>(context + MARK_AT) == Ok(MARK)
    {
        // The kernel does not look at the mark. A context that cannot be stored to cannot be read
        // from by the program either.
        let _ = program::write(context + MARK_AT, &0_u32);
    }
    Verdict::Done(result)
}

/// `io_submit`.
pub(crate) fn submit(call: &mut Call) -> Verdict {
    let [context, count, list, ..] = call.args;
    if !concerns(count, list, |descriptor| OPEN.lookup(descriptor).is_some()) {
        return Verdict::Pass;
    }
    let mut submitted = 0;
    while submitted < count {
        let address = program::read::<usize>(list.wrapping_add(submitted * size_of::<usize>()));
        match address.and_then(|address| submit_one(context, address)) {
            Ok(()) => submitted += 1,
            Err(error) if submitted == 0 => return Verdict::error(error),
            Err(_) => break,
        }
    }
    Verdict::Done(submitted as isize)
}

/// Tells whether one of the requests is not the kernel's alone: its descriptor `is_ours`, or it
/// reads into a mapping of the array. The kernel complains about requests that cannot be read.
fn concerns(count: usize, list: usize, is_ours: impl Fn(RawFd) -> bool) -> bool {
    let requests = (0..count).take_while(|_| (count as isize) > 0).map_while(|index| {
        let address = program::read::<usize>(list.wrapping_add(index * size_of::<usize>())).ok()?;
        program::read::<Request>(address).ok()
    });
    requests.into_iter().any(|request| is_ours(request.descriptor) || fills_mapping(&request))
}

/// Tells whether a request reads into a mapping of a file of the array.
fn fills_mapping(request: &Request) -> bool {
    if !mappings::any() || !request.reads() {
        return false;
    }
    if !request.is_vectored() {
        return mappings::touches(request.buffer, request.bytes);
    }
    (0..request.bytes.min(UIO_MAXIOV)).any(|index| {
        let place = request.buffer.wrapping_add(index * size_of::<Buffer>());
        program::read::<Buffer>(place).is_ok_and(|buffer| mappings::touches(buffer.address, buffer.bytes))
    })
}

/// Submits the request at `address`.
fn submit_one(context: usize, address: usize) -> Result<(), OsError> {
    let request = program::read::<Request>(address)?;
    let is_ours = match OPEN.lookup(request.descriptor) {
        Some(held) => matches!(held.node(), Node::File(_) | Node::Lost),
        None => fills_mapping(&request),
    };
    if !is_ours || !request.moves_bytes() && !matches!(request.kind, FSYNC | FDSYNC) {
        return submit_to_kernel(context, address);
    }
    if request.reserved != 0 || (request.bytes as isize) < 0 {
        return Err(OsError::INVAL);
    }
    let mut vector = Buffer { address: 0, bytes: 0 };
    let mut call = request.call(&mut vector);
    if request.moves_bytes()
        && let Err(error) = judge(&request, &call)
    {
        return Err(refused_by_kernel(context, &request).unwrap_or(error));
    }
    let ticket = accept(context, address, &request)?;
    let result = carry_out(&mut call);
    // Another thread may have destroyed the context meanwhile.
    if let Some(accepted) = REQUESTS.lock().of(ticket) {
        accepted.result = Some(result);
    }
    WAITERS.wake();
    Ok(())
}

/// Refuses what the kernel refuses of a read or write before it begins, and does not see in the
/// placeholder: flags that the library does not know, the buffers and the offset. An error that comes
/// later is the request's result.
fn judge(request: &Request, call: &Call) -> Result<(), OsError> {
    if request.rw_flags as usize & !RWF_KNOWN != 0 {
        return Err(OsError::OPNOTSUPP);
    }
    let bytes = if request.is_vectored() {
        data::bytes_of(&data::buffers(call)?)
    } else {
        let buffer = Buffer { address: request.buffer, bytes: request.bytes.min(MAX_RW_COUNT) };
        buffer.check()?;
        buffer.bytes
    };
    if request.offset < 0 {
        return Err(OsError::INVAL);
    }
    data::verify(request.offset as u64, bytes)
}

/// Returns the error that the kernel has for the context, the descriptor, the eventfd or the flags
/// of a request. None if it would have accepted them. It is asked by a request with a vector that is
/// nowhere, at which it looks next.
fn refused_by_kernel(context: usize, request: &Request) -> Option<OsError> {
    let kind = if request.reads() { PREADV } else { PWRITEV };
    let asked = Request { kind, buffer: usize::MAX, bytes: 1, offset: 0, ..*request };
    let refused = submit_to_kernel(context, core::ptr::from_ref(&asked) as usize).err();
    refused.filter(|&error| error != OsError::FAULT)
}

/// Has the kernel accept a placeholder for the request at `address`.
fn accept(context: usize, address: usize, request: &Request) -> Result<Ticket, OsError> {
    let mut requests = REQUESTS.lock();
    requests.turn += 1;
    let turn = requests.turn;
    let index = requests.add(Accepted { context, turn, address, data: request.data, result: None });
    let ticket = Ticket::new(index, turn);
    requests.placeholder = Request { data: ticket.0, ..*request };
    if request.moves_bytes() {
        (requests.placeholder.buffer, requests.placeholder.bytes) = (0, 0);
    }
    // As the kernel does with a request that it takes.
    let taken = program::write(address + KEY_AT, &0_u32);
    match taken.and_then(|()| submit_to_kernel(context, requests.mark() as usize)) {
        Ok(()) => Ok(ticket),
        Err(error) => {
            requests.take(ticket);
            Err(error)
        }
    }
}

fn submit_to_kernel(context: usize, request: usize) -> Result<(), OsError> {
    let list = [request];
    // SAFETY: a list of one request, which is the program's or the library's placeholder.
    check(unsafe { syscall(nr::__NR_io_submit as usize, [context, 1, list.as_ptr() as usize, 0, 0, 0]) }).map(|_| ())
}

/// Does now what a request asks for.
fn carry_out(call: &mut Call) -> isize {
    let serve = REQUESTS.lock().serve;
    match serve(call) {
        Verdict::Done(result) => result,
        Verdict::Pass => call.kernel(),
        Verdict::PassWith { number, args } => {
            call.instead[0] = number;
            call.instead[1..].copy_from_slice(&args);
            // SAFETY: the program's call, with what its handler has changed of it.
            call.result = unsafe { syscall(number, args) };
            match call.then.take() {
                Some(then) => then(call),
                None => call.result,
            }
        }
    }
}

/// `io_getevents` and `io_pgetevents`.
pub(crate) fn give_events(call: &mut Call) -> Verdict {
    call.then = Some(|call| {
        let count = usize::try_from(call.result).unwrap_or(0);
        if COUNT.load(Ordering::SeqCst) != 0 {
            (0..count).for_each(|index| replace(call.args[3] + index * size_of::<Event>()));
        }
        call.result
    });
    Verdict::PassWith { number: call.number, args: call.args }
}

/// Replaces the event at `address`, if it is a placeholder's, by that of the request.
fn replace(address: usize) {
    let Ok(event) = program::read::<Event>(address) else { return };
    if event.request != REQUESTS.lock().mark() {
        return;
    }
    let ticket = Ticket(event.data);
    WAITERS.wait_while(|| REQUESTS.lock().is_underway(ticket));
    let Some(accepted) = REQUESTS.lock().take(ticket) else { return };
    let result = accepted.result.unwrap_or(0) as i64;
    let event = Event { data: accepted.data, request: accepted.address as u64, result, second: 0 };
    // The kernel has just stored there.
    let _ = program::write(address, &event);
}

/// `io_destroy`: the events that are left go with the context.
pub(crate) fn destroy(call: &mut Call) -> Verdict {
    call.scratch[0] = REQUESTS.lock().turn;
    call.then = Some(|call| {
        if call.result == 0 {
            REQUESTS.lock().forget(call.args[0], call.scratch[0]);
        }
        call.result
    });
    Verdict::PassWith { number: call.number, args: call.args }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_went_with_its_context_has_nothing_to_do_with_the_next_in_its_place() {
        let mut requests = Requests::new();
        let add = |requests: &mut Requests, turn: u64| {
            let index = requests.add(Accepted { context: turn as usize, turn, address: 0, data: 0, result: None });
            Ticket::new(index, turn)
        };
        let old = add(&mut requests, 1);
        requests.forget(1, 1);
        let new = add(&mut requests, 2);
        assert_eq!(old.index(), new.index());
        assert!(requests.of(old).is_none() && !requests.is_underway(old) && requests.take(old).is_none());
        assert!(requests.is_underway(new));
        requests.of(new).unwrap().result = Some(5);
        assert_eq!(requests.take(new).unwrap().result, Some(5));
        COUNT.store(0, Ordering::SeqCst);
    }
}
