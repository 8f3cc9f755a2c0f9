//! Open files that the kernel keeps for a process outside its table of descriptors: the registered
//! files of an io_uring(7).
//!
//! A file in a ring has no number, so it does not count against RLIMIT_NOFILE and no program can
//! close it. It is given a number again when it is needed ([`RingMemory::install`]). A ring does no
//! input or output.
//!
//! Needs Linux 6.8 (IORING_OP_FIXED_FD_INSTALL), and an administrator who permits io_uring.
//!
//! Invariant: nobody but this module uses the ring, and one thread at a time.
//!
//! Source: io_uring_setup(2), io_uring_register(2), io_uring_enter(2), `linux/io_uring.h`.

use crate::raw::{check, syscall};
use crate::{AsRawFd, BorrowedFd, FromRawFd, OsError, OwnedFd, RawFd, Result, place};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general::{__NR_io_uring_enter, __NR_io_uring_register, __NR_io_uring_setup};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A submission queue without an array of indices (Linux 6.6).
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// The rings lie in memory of the caller's (Linux 6.5). So the caller chooses their address, which
/// it could not do for memory that the kernel gives by mmap(2) of the ring.
const SETUP_NO_MMAP: u32 = 1 << 14;
const REGISTER_FILES_UPDATE: usize = 6;
const REGISTER_FILES2: usize = 13;
const RSRC_REGISTER_SPARSE: u32 = 1;
const ENTER_GETEVENTS: usize = 1;
const OP_FIXED_FD_INSTALL: u8 = 54;
const SQE_FIXED_FILE: u8 = 1;
const PAGE_BYTES: usize = 4096;
const MEMORY_BYTES: usize = 2 * PAGE_BYTES;
/// Where [`RingMemory::note`] stores, in bytes from the start: in the second page, behind the one
/// submission.
const OFFSET_OF_NOTE: u32 = (PAGE_BYTES + 1024) as u32;

/// `struct io_sqring_offsets` and, with other names, `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    /// `flags`, or the count of completions that were lost.
    fifth: u32,
    /// `dropped`, or where the completions lie.
    sixth: u32,
    seventh: u32,
    eighth: u32,
    user_address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    worker_ring: u32,
    reserved: [u32; 3],
    submission: Offsets,
    completion: Offsets,
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Submission {
    operation: u8,
    flags: u8,
    priority: u16,
    file: i32,
    offset: u64,
    address: u64,
    bytes: u32,
    operation_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// `struct io_uring_rsrc_register`.
#[repr(C)]
#[derive(Default)]
struct Register {
    count: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// `struct io_uring_files_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    files: u64,
}

/// The memory that a ring and those who use it share: a page of counters and completions, and one of
/// submissions. A child of fork shares it with its parent. Dropping it unmaps it.
pub struct RingMemory(NonNull<u8>);

// SAFETY: plain memory, which may be used by any thread; what changes it takes `&mut self`.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Memory for one ring.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<Self> {
        let (wish, protection) = (place::wish(MEMORY_BYTES) as *mut _, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: without MAP_FIXED the kernel chooses a free range.
        let start = unsafe { mmap_anonymous(wish, MEMORY_BYTES, protection, MapFlags::SHARED) }?;
        NonNull::new(start.cast()).map(Self).ok_or(OsError::NOMEM)
    }

    const fn submission(&self) -> NonNull<Submission> {
        // SAFETY: the second page of the memory.
        unsafe { self.0.add(PAGE_BYTES).cast() }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody uses it any more; a ring that lives on has the pages,
        // and is asked for nothing.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), MEMORY_BYTES) };
    }
}

/// Where in the memory of a ring the kernel has put what, in bytes from its start. Rings with room
/// for as many requests have one layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    submission_head: u32,
    submission_tail: u32,
    completion_head: u32,
    completion_tail: u32,
    completions: u32,
    completion_count: u32,
}

/// Makes a ring in `memory`, with room for `count` files (at most what RLIMIT_NOFILE allows).
///
/// # Errors
/// `NOSYS` or `PERM` where io_uring is not permitted, `INVAL` from an older kernel, `MFILE`,
/// `NFILE`, `NOMEM`.
pub fn make(memory: &mut RingMemory, count: u32) -> Result<(OwnedFd, Layout)> {
    let mut parameters = Parameters { flags: SETUP_NO_MMAP | SETUP_NO_SQARRAY, ..Parameters::default() };
    parameters.completion.user_address = memory.0.addr().get() as u64;
    parameters.submission.user_address = memory.submission().addr().get() as u64;
    // SAFETY: the kernel fills in `parameters`, which is as large as it expects; a ring with one
    // entry takes less than a page of either kind.
    let made = unsafe { syscall(__NR_io_uring_setup as usize, [1, (&raw mut parameters).addr(), 0, 0, 0, 0]) };
    // SAFETY: a new descriptor that nobody else knows.
    let fd = unsafe { OwnedFd::from_raw_fd(check(made)? as RawFd) };
    let Parameters { submission, completion, completions, .. } = parameters;
    let layout = Layout {
        submission_head: submission.head,
        submission_tail: submission.tail,
        completion_head: completion.head,
        completion_tail: completion.tail,
        completions: completion.sixth,
        completion_count: completions,
    };
    let end = layout.completions as usize + completions as usize * size_of::<Completion>();
    let counters = [submission.head, submission.tail, completion.head, completion.tail];
    if end > PAGE_BYTES || counters.iter().any(|&offset| offset as usize + size_of::<u32>() > PAGE_BYTES) {
        return Err(OsError::INVAL);
    }
    let table = Register { count, flags: RSRC_REGISTER_SPARSE, ..Register::default() };
    // SAFETY: the kernel reads `table`, of the size it is told.
    check(unsafe { register(fd.as_raw_fd(), REGISTER_FILES2, (&raw const table).addr(), size_of::<Register>()) })?;
    Ok((fd, layout))
}

/// Puts the file behind `file` (none to let go what is there) at `place` of the table of `ring`.
///
/// # Errors
/// `INVAL` if there is no such place, `NOMEM`, and what a sandbox answers.
pub fn set(ring: BorrowedFd<'_>, place: u32, file: Option<BorrowedFd<'_>>) -> Result<()> {
    let number = file.map_or(-1, |file| file.as_raw_fd());
    let update = Update { offset: place, reserved: 0, files: (&raw const number).addr() as u64 };
    // SAFETY: the kernel reads `update` and `number`.
    let done = check(unsafe { register(ring.as_raw_fd(), REGISTER_FILES_UPDATE, (&raw const update).addr(), 1) })?;
    if done == 1 { Ok(()) } else { Err(OsError::INVAL) }
}

/// # Safety
/// As io_uring_register(2) demands of `request`.
unsafe fn register(ring: RawFd, request: usize, argument: usize, count: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { syscall(__NR_io_uring_register as usize, [ring as usize, request, argument, count, 0, 0]) }
}

impl RingMemory {
    fn counter(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel has said that one of its counters lies there, within the first page; or
        // it is the note, in the second one.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(offset as usize).cast()) }
    }

    /// Notes, in a child of fork, that the child has done something with the ring. Its parent sees
    /// the note, since they share the memory.
    pub fn note(&self) {
        self.counter(OFFSET_OF_NOTE).store(1, Ordering::Release);
    }

    /// Whether [`Self::note`] was called.
    #[must_use]
    pub fn is_noted(&self) -> bool {
        self.counter(OFFSET_OF_NOTE).load(Ordering::Acquire) != 0
    }

    /// Gives the file at `place` of the table of `ring` the lowest free number, close-on-exec. The
    /// file stays in the ring.
    ///
    /// # Errors
    /// `BADF` if nothing is there, `MFILE`, and what a sandbox answers.
    pub fn install(&mut self, ring: BorrowedFd<'_>, layout: &Layout, place: u32) -> Result<OwnedFd> {
        let (head, tail) = (self.counter(layout.completion_head), self.counter(layout.completion_tail));
        // The queue is empty, and no completion waits: the last call took what it had asked for.
        let before = tail.load(Ordering::Acquire);
        head.store(before, Ordering::Release);
        let place = place as i32;
        let entry = Submission { operation: OP_FIXED_FD_INSTALL, flags: SQE_FIXED_FILE, file: place, ..Submission::default() };
        // SAFETY: the queue has one entry, which the kernel has consumed.
        unsafe { self.submission().write_volatile(entry) };
        let submitted = self.counter(layout.submission_tail);
        let next = submitted.load(Ordering::Relaxed).wrapping_add(1);
        submitted.store(next, Ordering::Release);
        let enter = |count: usize, wanted: usize, flags: usize| {
            // SAFETY: the kernel acts on the entry above, which names no memory.
            check(unsafe { syscall(__NR_io_uring_enter as usize, [ring.as_raw_fd() as usize, count, wanted, flags, 0, 0]) })
        };
        while self.counter(layout.submission_head).load(Ordering::Acquire) != next {
            match enter(1, 0, 0) {
                Ok(_) | Err(OsError::INTR | OsError::AGAIN) => {}
                Err(error) => {
                    submitted.store(next.wrapping_sub(1), Ordering::Release);
                    return Err(error);
                }
            }
        }
        // As a rule the kernel has completed the request within the call.
        while tail.load(Ordering::Acquire) == before {
            match enter(0, 1, ENTER_GETEVENTS) {
                Ok(_) | Err(OsError::INTR | OsError::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        let index = (before & (layout.completion_count - 1)) as usize;
        // SAFETY: the kernel has stored the completion before it moved the tail, and stores another
        // one only behind it until the head moves.
        let completed = unsafe {
            let first = self.0.as_ptr().add(layout.completions as usize).cast::<Completion>();
            first.add(index).read_volatile()
        };
        head.store(before.wrapping_add(1), Ordering::Release);
        match completed.result {
            // SAFETY: a new descriptor that nobody else knows.
            number @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
            error => Err(OsError::from_raw_os_error(-error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AsFd;
    use rustix::fs::{Mode, OFlags, fstat, open};

    #[test]
    fn a_file_in_a_ring_has_no_number_and_gets_one_again() {
        let mut memory = RingMemory::new().unwrap();
        let (ring, layout) = match make(&mut memory, 8) {
            Ok(made) => made,
            Err(error) => return eprintln!("NOT RUN: no io_uring here ({error})"),
        };
        let file = open(c"/proc/self/exe", OFlags::RDONLY, Mode::empty()).unwrap();
        let identity = |fd: BorrowedFd<'_>| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap();
        let known = identity(file.as_fd());
        set(ring.as_fd(), 3, Some(file.as_fd())).unwrap();
        drop(file);
        for _ in 0..5 {
            assert_eq!(identity(memory.install(ring.as_fd(), &layout, 3).unwrap().as_fd()), known);
        }
        assert_eq!(memory.install(ring.as_fd(), &layout, 4).err(), Some(OsError::BADF));
        assert_eq!(set(ring.as_fd(), 8, None), Err(OsError::INVAL));
        set(ring.as_fd(), 3, None).unwrap();
        assert_eq!(memory.install(ring.as_fd(), &layout, 3).err(), Some(OsError::BADF));
    }
}
