//! The list of the private stacks of threads, by which the stacks of ended threads are given back.
//!
//! A thread's private stack is mapped by the entry stub at the thread's first call. Threads end without telling, so each new
//! thread looks at a few entries of the list and unmaps the stacks whose threads are gone.

use crate::arch::entry::PRIVATE_STACK_BYTES;
use crate::lock::{Lock, RawLock};
use crate::thread::word;
use core::sync::atomic::Ordering;
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_gettid, __NR_munmap, __NR_tkill};
use sys::raw::syscall;

/// How many entries a new thread looks at: more than one, so the list shrinks faster than it grows.
const LOOK_COUNT: usize = 4;
const NO_SUCH_PROCESS: isize = -3;

struct Stack {
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
        if is_gone(stacks.entries[index].thread) {
            let stack = stacks.entries.swap_remove(index);
            // SAFETY: the thread that ran on it has ended, and its entry is off the list.
            unsafe { syscall(__NR_munmap as usize, [stack.top - PRIVATE_STACK_BYTES, PRIVATE_STACK_BYTES, 0, 0, 0, 0]) };
        }
        if stacks.entries.is_empty() {
            break;
        }
    }
    stacks.entries.push(Stack { thread: thread(), top });
}

/// Forgets the list in a copy of the process: its stacks belong to threads that the copy does not have, except for the
/// calling thread's.
pub(crate) fn abandon() {
    STACKS.raw().reset();
    core::mem::forget(core::mem::take(&mut STACKS.lock().entries));
    word(crate::thread::word::STACK_LISTED).store(0, Ordering::Relaxed);
}

/// Notes in a child of fork that the calling thread, which has another number than in the parent, keeps its stack.
pub(crate) fn relist() {
    let top = word(crate::thread::word::PRIVATE_STACK_TOP).load(Ordering::Relaxed);
    let mut stacks = STACKS.lock();
    if let Some(stack) = stacks.entries.iter_mut().find(|stack| stack.top == top) {
        stack.thread = thread();
    }
}

/// Whether no other thread that has ever entered the library may still run.
pub(crate) fn is_alone() -> bool {
    let own = thread();
    STACKS.lock().entries.iter().all(|stack| stack.thread == own || is_gone(stack.thread))
}

/// The threads that have come by, of which some may have ended.
pub(crate) fn threads() -> Vec<usize> {
    STACKS.lock().entries.iter().map(|stack| stack.thread).collect()
}

pub(crate) fn thread() -> usize {
    // SAFETY: gettid() has no preconditions.
    unsafe { syscall(__NR_gettid as usize, [0; 6]) as usize }
}

fn is_gone(thread: usize) -> bool {
    // SAFETY: signal 0 is only a question.
    unsafe { syscall(__NR_tkill as usize, [thread, 0, 0, 0, 0, 0]) == NO_SUCH_PROCESS }
}
