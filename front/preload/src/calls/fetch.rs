//! pidfd_getfd(2): a process, the *fetcher*, takes a descriptor of another process. The library in
//! the other process may keep the descriptor's offset in its own memory: the offset is *private*.
//!
//! A process that passes a descriptor on by itself (SCM_RIGHTS, fork, exec) gives the descriptor's
//! offset to the kernel first ([`super::process::share`]). pidfd_getfd(2) does not ask the other
//! process, so the fetcher gives the offset to the kernel in its place. It can do so: a process that
//! may take the descriptor may also read and write the other process' memory
//! (PTRACE_MODE_ATTACH_REALCREDS, as process_vm_readv(2)), and in that memory lies the same library.
//! During a fetch no thread of the other process moves a private offset: a thread that is about to do
//! so sees [`FETCHER`] and waits. The other process may be stopped in the middle of a read, so a fetch
//! may take long: the fetcher holds the fetch lock, which fetchers alone take.
//!
//! Invariants:
//! - The fetcher waits for threads that had locked a position before [`FETCHER`] was set. A thread
//!   that locks a position later looks at [`FETCHER`] then, and gives the lock back.
//! - A descriptor whose offset cannot be given to the kernel is not given out.
//! - Whatever becomes of a fetch, the fetcher has one more descriptor only if the call succeeds.

use super::OPEN;
use super::node::Node;
use crate::array;
use crate::call::{Call, Verdict};
use crate::descriptors::{CLAIMED, Description, Table};
use crate::lock::RawLock;
use crate::maps::Area;
use crate::process;
use crate::report::report;
use crate::uapi::{KCMP_FILES, KCMP_VM};
use ::array::liveness::{ProcessId, process_lives};
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general::{
    __NR_close, __NR_kcmp, __NR_lseek, __NR_nanosleep, __NR_process_vm_readv, __NR_process_vm_writev, __NR_tgkill,
};
use sys::raw::{check, syscall};
use sys::{OsError, RawFd};

/// The process that fetches a descriptor of this one just now ([`word_of`]); 0 for none. Set by
/// that process.
static FETCHER: AtomicU64 = AtomicU64::new(0);

/// A pid has at most so many bits (proc(5), pid_max). Above it [`FETCHER`] has the process' start
/// time.
const PID_BITS: u32 = 22;

const PAUSE_NS: u64 = 50_000;
/// The most pauses that the fetcher makes while a position of the other process is locked. A
/// position is locked for as long as a read or write takes.
const PAUSE_COUNT_MAX: usize = 100_000;

/// Returns the word for [`FETCHER`] that names a process.
fn word_of(fetcher: ProcessId) -> u64 {
    fetcher.start_ticks << PID_BITS | u64::from(fetcher.pid)
}

/// Returns the process that a word of [`FETCHER`] names.
fn fetcher_of(word: u64) -> ProcessId {
    ProcessId { pid: (word & ((1 << PID_BITS) - 1)) as u32, start_ticks: word >> PID_BITS }
}

/// Forgets, in a copy of the process, a fetch that is under way: the fetcher knows nothing of the
/// copy, and the copy's offsets are the kernel's.
pub(crate) fn forget() {
    FETCHER.store(0, Ordering::Relaxed);
}

/// Whether private offsets of this process must not move now.
#[inline]
pub(super) fn is_under_way() -> bool {
    FETCHER.load(Ordering::Relaxed) != 0
}

/// Waits until the fetcher is done, or dead.
#[cold]
pub(super) fn wait() {
    loop {
        let fetcher = FETCHER.load(Ordering::Acquire);
        if fetcher == 0 {
            return;
        }
        if !process_lives(fetcher_of(fetcher)) {
            let _ = FETCHER.compare_exchange(fetcher, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        pause();
    }
}

/// Whether a `pidfd_getfd` on the calling process itself asks for a descriptor of the library's
/// own.
pub(crate) fn names_ours(call: &Call) -> bool {
    sys::high_fd::is_raised(call.descriptor(1)) && pid_of(call.descriptor(0)).is_some_and(|task| shares(task, KCMP_FILES))
}

/// Whether a descriptor of a process or thread (pidfd_open(2)), or a number that stands for one,
/// means a task with the calling process' memory.
pub(crate) fn means_own_memory(pidfd: RawFd) -> bool {
    // PIDFD_SELF_THREAD, and PIDFD_SELF_THREAD_GROUP, which Linux 6.14 numbers differently.
    matches!(pidfd, -10_000 | -10_001 | -20_000) || pid_of(pidfd).is_some_and(has_own_memory)
}

/// Whether a task has the calling process' memory: a thread of it, or a child that shares it.
fn has_own_memory(task: u32) -> bool {
    shares(task, KCMP_VM)
}

/// Tells whether a task is this process, a thread of it, or one that shares `what` with it: KCMP_FILES,
/// its descriptors, or KCMP_VM, its memory.
fn shares(task: u32, what: usize) -> bool {
    let own = process::getpid();
    // SAFETY: both calls take numbers only, and signal 0 is sent to nobody.
    let (threads, shared) = unsafe {
        (
            syscall(__NR_tgkill as usize, [own as usize, task as usize, 0, 0, 0, 0]),
            syscall(__NR_kcmp as usize, [own as usize, task as usize, what, 0, 0, 0]),
        )
    };
    task == own || threads == 0 || shared == 0
}

/// Serves `pidfd_getfd`.
pub(crate) fn fetch(call: &mut Call) -> Verdict {
    if names_ours(call) {
        return Verdict::error(OsError::BADF);
    }
    let (Some(pid), Ok(namespace)) = (pid_of(call.descriptor(0)), array::namespace()) else { return take(call) };
    let Some(other) = Other::of(pid) else { return take(call) };
    match namespace.files().array().runtime().with_fetching(|| other.fetch(call)) {
        Ok(descriptor) => Verdict::Done(descriptor as isize),
        Err(error) => Verdict::error(error),
    }
}

/// Makes the call without a look into the other process: that is this process itself, or the library
/// is not found in it, or this process has no array. If the new descriptor is an anchor, it is served
/// from now on.
fn take(call: &Call) -> Verdict {
    let result = call.kernel();
    if result >= 0 {
        array::adopt(result as RawFd);
    }
    Verdict::Done(result)
}

/// Another process that has this library in it.
struct Other {
    pid: u32,
    /// What is added to an address of the library here to get its address in the other process.
    distance: usize,
}

impl Other {
    /// None if the library is not in the process, or if the process is the caller itself.
    fn of(pid: u32) -> Option<Self> {
        let own = Area::around(crate::own::address())?;
        let maps = heap::format!("/proc/{pid}/maps\0");
        let theirs = Area::find(maps.as_bytes(), |area| own.shows_the_same(area))?;
        (pid != process::getpid()).then_some(Self { pid, distance: theirs.addresses.start.wrapping_sub(own.addresses.start) })
    }

    /// Announces the fetch in the other process' [`FETCHER`], and fetches the descriptor.
    fn fetch(&self, call: &Call) -> Result<RawFd, OsError> {
        let fetcher = core::ptr::from_ref(&FETCHER) as usize + self.distance;
        self.write(fetcher, &word_of(ProcessId::current()))?;
        let fetched = self.fetch_stopped(call);
        // A failure does no harm: if the other process has ended, nobody waits in it.
        let _ = self.write(fetcher, &0u64);
        fetched
    }

    /// Fetches the descriptor while private offsets of the other process do not move.
    fn fetch_stopped(&self, call: &Call) -> Result<RawFd, OsError> {
        let number = call.args[1] as u32;
        let described = self.description(number)?;
        let descriptor = check(call.kernel())? as RawFd;
        let result = match described {
            0 => Ok(()),
            description => self
                .description(number)
                .and_then(|now| if now == description { self.share(description, descriptor) } else { Err(OsError::AGAIN) }),
        };
        if let Err(error) = result {
            // SAFETY: the number was made by this call and nobody knows it yet.
            unsafe { syscall(__NR_close as usize, [descriptor as usize, 0, 0, 0, 0, 0]) };
            if error == OsError::SRCH {
                // The other process has ended, as it might have before the call.
                return Err(error);
            }
            report!("a descriptor of process {} cannot be shared with it ({error}); it was not fetched", self.pid);
            return Err(OsError::PERM);
        }
        array::adopt(descriptor);
        Ok(descriptor)
    }

    /// Returns the address, in the other process, of the description behind one of its descriptors;
    /// 0 if that descriptor is no anchor.
    fn description(&self, number: u32) -> Result<usize, OsError> {
        let Some((block, index)) = Table::<Node>::place(number) else { return Ok(0) };
        let blocks = core::ptr::from_ref(&OPEN) as usize + self.distance + Table::<Node>::BLOCKS;
        let block: usize = self.read(blocks + block * size_of::<usize>())?;
        for _ in 0..if block == 0 { 0 } else { PAUSE_COUNT_MAX } {
            let entry: usize = self.read(block + index * size_of::<usize>())?;
            if entry & CLAIMED == 0 {
                return Ok(entry);
            }
            // A thread of the other process is about to close the number or to replace it.
            pause();
        }
        if block == 0 { Ok(0) } else { Err(OsError::TIMEDOUT) }
    }

    /// Gives the private offset of a description of the other process to the kernel, by way of the
    /// fetched `descriptor`. Waits first until no thread of the other process has the position locked.
    fn share(&self, description: usize, descriptor: RawFd) -> Result<(), OsError> {
        let mut pauses = 0;
        while !RawLock::is_free(self.read(description + offset_of!(Description<Node>, position))?) {
            pauses += 1;
            if pauses > PAUSE_COUNT_MAX {
                return Err(OsError::TIMEDOUT);
            }
            pause();
        }
        if self.read::<u8>(description + offset_of!(Description<Node>, shared))? == 0 {
            let offset: u64 = self.read(description + offset_of!(Description<Node>, offset))?;
            // SAFETY: moves the offset of an anchor; no memory is concerned.
            check(unsafe { syscall(__NR_lseek as usize, [descriptor as usize, offset as usize, 0, 0, 0, 0]) })?;
            self.write(description + offset_of!(Description<Node>, shared), &1u8)?;
        }
        Ok(())
    }

    fn read<T: Copy>(&self, address: usize) -> Result<T, OsError> {
        let mut value = MaybeUninit::<T>::uninit();
        self.copy(__NR_process_vm_readv, value.as_mut_ptr() as usize, address, size_of::<T>())?;
        // SAFETY: every byte was copied, and T is a plain number.
        Ok(unsafe { value.assume_init() })
    }

    fn write<T: Copy>(&self, address: usize, value: &T) -> Result<(), OsError> {
        self.copy(__NR_process_vm_writev, core::ptr::from_ref(value) as usize, address, size_of::<T>())
    }

    fn copy(&self, number: u32, own: usize, theirs: usize, bytes: usize) -> Result<(), OsError> {
        let (own, theirs) = ([own, bytes], [theirs, bytes]);
        let args = [self.pid as usize, own.as_ptr() as usize, 1, theirs.as_ptr() as usize, 1, 0];
        // SAFETY: `own` names memory of the caller's of that length. In the other process only
        // memory of the same library is touched, whose threads wait.
        match check(unsafe { syscall(number as usize, args) }) {
            Ok(count) if count == bytes => Ok(()),
            Ok(_) => Err(OsError::FAULT),
            Err(error) => Err(error),
        }
    }
}

/// Returns the pid of the process or thread that a pidfd names (proc_pid_fdinfo(5)).
fn pid_of(descriptor: RawFd) -> Option<u32> {
    use sys::rustix::fs::{CWD, Mode, OFlags, openat};
    let path = heap::format!("/proc/thread-self/fdinfo/{descriptor}");
    let info = openat(CWD, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0u8; 512];
    let count = sys::rustix::io::read(&info, &mut buffer).ok()?;
    let text = core::str::from_utf8(&buffer[..count]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

fn pause() {
    let time = [0, PAUSE_NS];
    // SAFETY: the kernel reads two words.
    unsafe { syscall(__NR_nanosleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_fetcher_is_not_waited_for_though_its_pid_was_given_out_again() {
        let me = ProcessId::current();
        assert_ne!(me.start_ticks, 0);
        assert_eq!(fetcher_of(word_of(me)), me);
        FETCHER.store(word_of(ProcessId { start_ticks: me.start_ticks - 1, ..me }), Ordering::Relaxed);
        assert!(is_under_way());
        wait();
        assert!(!is_under_way());
    }
}
