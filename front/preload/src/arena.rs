//! Memory for a guest and its deputy: allocated from by moving a pointer, given back all at once.
//!
//! A guest ([`crate::guest`]) may be killed at any instruction while its process lives on, so it
//! must not hold the heap's lock. And what its deputy ([`crate::deputy`]) makes, an argument list
//! or a path, must be there for the guest when the deputy has ended. So both allocate here: a
//! mapping that copies of the process share, at the same address in each.
//!
//! Invariants: one task at a time uses an arena, the guest or the deputy it waits for; one whose
//! guest was killed is not used again. Nothing allocated here is freed by itself. A child of fork
//! that is no deputy does not use its parent's arena.

use crate::thread::word;
use core::alloc::Layout;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::general::{
    __NR_madvise, __NR_mmap, __NR_munmap, MADV_REMOVE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE,
};
use sys::raw::{check, syscall};

/// The kernel gives the pages when they are touched.
const ARENA_BYTES: usize = 64 << 20;
/// An arena of which more than this was used gives the pages behind it back before its next use.
const KEPT_BYTES: usize = 1 << 20;

/// What an arena begins with.
#[repr(C, align(64))]
struct Header {
    /// The address behind what is allocated.
    next: AtomicUsize,
    /// 1 while it is used. A guest that was killed leaves it so, perhaps with a deputy that is
    /// still at work.
    busy: AtomicUsize,
}

/// The right to allocate from the calling thread's arena; until it is dropped the thread's
/// allocations come from there.
pub(crate) struct Arena(());

impl Arena {
    /// Begins with an empty arena. None if there is no memory.
    pub(crate) fn enter() -> Option<Self> {
        debug_assert_eq!(word(word::ARENA).load(Ordering::Relaxed), 0, "arenas do not nest");
        let kept = word(word::ARENA_KEPT);
        let mut base = kept.load(Ordering::Relaxed);
        if base != 0 && header(base).busy.load(Ordering::Relaxed) != 0 {
            // In this order: a guest that is killed in between leaves no address of what is not
            // there.
            kept.store(0, Ordering::Relaxed);
            unmap(base);
            base = 0;
        }
        if base == 0 {
            let protection = (PROT_READ | PROT_WRITE) as usize;
            let flags = (MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE) as usize;
            let wish = sys::place::wish(ARENA_BYTES);
            // SAFETY: a new mapping at an address that the kernel agrees to overlaps nothing.
            base = check(unsafe { syscall(__NR_mmap as usize, [wish, ARENA_BYTES, protection, flags, usize::MAX, 0]) }).ok()?;
            kept.store(base, Ordering::Relaxed);
        }
        let next = &header(base).next;
        if next.load(Ordering::Relaxed).saturating_sub(base) > KEPT_BYTES {
            // SAFETY: pages of this thread's arena, in which nothing is needed any more.
            unsafe {
                syscall(__NR_madvise as usize, [base + KEPT_BYTES, ARENA_BYTES - KEPT_BYTES, MADV_REMOVE as usize, 0, 0, 0])
            };
        }
        next.store(base + size_of::<Header>(), Ordering::Relaxed);
        header(base).busy.store(1, Ordering::Relaxed);
        word(word::ARENA).store(base, Ordering::Relaxed);
        Some(Self(()))
    }
}

impl Drop for Arena {
    /// What was allocated stays where it is until the arena is entered again.
    fn drop(&mut self) {
        let base = word(word::ARENA).swap(0, Ordering::Relaxed);
        header(base).busy.store(0, Ordering::Relaxed);
    }
}

fn header(base: usize) -> &'static Header {
    // SAFETY: `base` is that of an arena: mapped, aligned to a page, and beginning with a header.
    unsafe { &*(base as *const Header) }
}

/// Whether the calling thread allocates from its arena now.
#[inline]
pub(crate) fn is_active() -> bool {
    word(word::ARENA).load(Ordering::Relaxed) != 0
}

/// Allocates from the active arena; null if it is full.
pub(crate) fn allocate(layout: Layout) -> *mut u8 {
    let base = word(word::ARENA).load(Ordering::Relaxed);
    let next = &header(base).next;
    let start = next.load(Ordering::Relaxed).next_multiple_of(layout.align());
    let Some(end) = start.checked_add(layout.size()).filter(|&end| end <= base + ARENA_BYTES) else { return null_mut() };
    next.store(end, Ordering::Relaxed);
    start as *mut u8
}

/// In a child of fork: the arena is the parent's.
pub(crate) fn forget() {
    word(word::ARENA).store(0, Ordering::Relaxed);
    let base = word(word::ARENA_KEPT).swap(0, Ordering::Relaxed);
    if base != 0 {
        unmap(base);
    }
}

/// Ends this process' view of an arena in which it has nothing.
fn unmap(base: usize) {
    // SAFETY: the whole of a mapping that `enter` has made and nobody here looks into any more.
    unsafe { syscall(__NR_munmap as usize, [base, ARENA_BYTES, 0, 0, 0, 0]) };
}
