//! The list of the private stacks of threads, by which the stacks of ended threads are given back.
//!
//! A thread's private stack is mapped by the entry stub at the thread's first call. Threads end
//! without telling, so each new thread looks at a few entries of the list and unmaps the stacks
//! whose threads are gone.

use crate::arch::entry::PRIVATE_STACK_BYTES;
use crate::lock::{Lock, RawLock};
use crate::thread::word;
use core::sync::atomic::Ordering;
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_gettid, __NR_munmap, __NR_tgkill};
use sys::raw::syscall;

/// How many entries a new thread looks at: more than one, so the list shrinks faster than it grows.
const LOOK_COUNT: usize = 4;
const NO_SUCH_PROCESS: isize = -(sys::OsError::SRCH.raw_os_error() as isize);

struct Stack {
    /// The process of the thread: not this one if it only shares this memory.
    process: usize,
    thread: usize,
    top: usize,
}

struct Stacks {
    entries: Vec<Stack>,
    next: usize,
}

static STACKS: Lock<Stacks> = Lock::new(Stacks { entries: Vec::new(), next: 0 });

/// The lock of the list, to hold it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    STACKS.raw()
}

/// Puts the calling thread's stack on the list, once. Called on every entry.
#[inline]
pub(crate) fn list() {
    let listed = word(crate::thread::word::STACK_LISTED);
    if listed.load(Ordering::Relaxed) == 0 {
        listed.store(1, Ordering::Relaxed);
        add(word(crate::thread::word::PRIVATE_STACK_TOP).load(Ordering::Relaxed));
    }
}

#[cold]
fn add(top: usize) {
    if top == 0 {
        return;
    }
    let mut stacks = STACKS.lock();
    for _ in 0..LOOK_COUNT.min(stacks.entries.len()) {
        let index = stacks.next % stacks.entries.len();
        stacks.next = index + 1;
        if stacks.entries[index].is_gone() {
            // SAFETY: the thread that ran on it has ended, and its entry is off the list.
            unsafe { stacks.entries.swap_remove(index).unmap() };
        }
        if stacks.entries.is_empty() {
            break;
        }
    }
    stacks.entries.push(Stack::of_caller(top));
}

/// Whether `address` lies in the calling thread's private stack.
pub(crate) fn is_private(address: usize) -> bool {
    let top = word(crate::thread::word::PRIVATE_STACK_TOP).load(Ordering::Relaxed);
    top != 0 && top.wrapping_sub(address) <= PRIVATE_STACK_BYTES
}

/// Forgets the list in a copy of the process: its stacks belong to threads that the copy does not
/// have, except for the calling thread's.
pub(crate) fn abandon() {
    STACKS.raw().reset();
    core::mem::forget(core::mem::take(&mut STACKS.lock().entries));
    word(crate::thread::word::STACK_LISTED).store(0, Ordering::Relaxed);
}

/// Notes in a child of fork that the calling thread, which has another number than in the parent,
/// keeps its stack, and gives back the stacks of the parent's other threads: the child has none of
/// them, though their numbers are in use as long as they run in the parent.
pub(crate) fn relist() {
    let top = word(crate::thread::word::PRIVATE_STACK_TOP).load(Ordering::Relaxed);
    // SAFETY: a child of fork has one thread.
    unsafe { keep_own(&mut STACKS.lock().entries, top) };
}

/// Keeps the entry of the calling thread alone, whose stack ends at `top`.
///
/// # Safety
/// No other thread has this memory.
unsafe fn keep_own(entries: &mut Vec<Stack>, top: usize) {
    for stack in core::mem::take(entries) {
        if stack.top == top {
            entries.push(Stack::of_caller(top));
        } else {
            // SAFETY: no thread runs on it, as the caller vouches for.
            unsafe { stack.unmap() };
        }
    }
}

/// Whether no other thread that has ever entered the library may still run.
pub(crate) fn is_alone() -> bool {
    let own = thread();
    STACKS.lock().entries.iter().all(|stack| stack.thread == own || stack.is_gone())
}

/// The threads that have come by, of which some may have ended.
pub(crate) fn threads() -> Vec<usize> {
    STACKS.lock().entries.iter().map(|stack| stack.thread).collect()
}

pub(crate) fn thread() -> usize {
    // SAFETY: gettid() has no preconditions.
    unsafe { syscall(__NR_gettid as usize, [0; 6]) as usize }
}

impl Stack {
    fn of_caller(top: usize) -> Self {
        Self { process: crate::process::getpid() as usize, thread: thread(), top }
    }

    /// Whether the thread has ended. Another process' thread may have its number by now.
    fn is_gone(&self) -> bool {
        // SAFETY: signal 0 is only a question.
        unsafe { syscall(__NR_tgkill as usize, [self.process, self.thread, 0, 0, 0, 0]) == NO_SUCH_PROCESS }
    }

    /// # Safety
    /// No thread runs on it.
    unsafe fn unmap(self) {
        // SAFETY: the stack was mapped by itself, and nobody uses it, as the caller vouches for.
        unsafe { syscall(__NR_munmap as usize, [self.top - PRIVATE_STACK_BYTES, PRIVATE_STACK_BYTES, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::{__NR_madvise, __NR_mmap, MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ};

    #[test]
    fn a_number_that_another_process_has_by_now_is_no_thread_of_this_one() {
        let own = Stack::of_caller(0);
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let reused = Stack { thread: other.id() as usize, ..own };
        // A process that shares this memory has a number of its own.
        let sharing = Stack { process: other.id() as usize, thread: other.id() as usize, top: 0 };
        assert!(!own.is_gone() && reused.is_gone() && !sharing.is_gone());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(sharing.is_gone());
    }

    #[test]
    fn a_child_keeps_its_own_stack_alone() {
        let map = || {
            let arguments = [0, PRIVATE_STACK_BYTES, PROT_READ as usize, (MAP_PRIVATE | MAP_ANONYMOUS) as usize, usize::MAX, 0];
            // SAFETY: a new private mapping.
            unsafe { syscall(__NR_mmap as usize, arguments) as usize + PRIVATE_STACK_BYTES }
        };
        // SAFETY: the advice (MADV_NORMAL) changes nothing.
        let is_mapped = |top: usize| unsafe {
            syscall(__NR_madvise as usize, [top - PRIVATE_STACK_BYTES, PRIVATE_STACK_BYTES, 0, 0, 0, 0]) == 0
        };
        let (own, other) = (map(), map());
        // The thread of the other stack runs on in the parent, and this one has another number
        // there.
        let mut entries = heap::vec![Stack::of_caller(other), Stack { thread: 1, ..Stack::of_caller(own) }];
        // SAFETY: no thread runs on these.
        unsafe { keep_own(&mut entries, own) };
        assert!(matches!(entries.as_slice(), [stack] if stack.top == own && stack.thread == thread()));
        assert!(is_mapped(own) && !is_mapped(other));
    }
}
