//! The private heap: talc over memory mapped by raw system calls, so that the program's malloc is
//! never entered.
//!
//! Reservations double from 1 MiB; the kernel gives the pages when they are touched. Nothing here
//! runs before the constructor, and nothing in a process that uses no array. Guests allocate
//! elsewhere ([`crate::arena`]).

use crate::arena;
use crate::lock::RawLock;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};
use linux_raw_sys::general::{__NR_mmap, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use sys::raw::{check, syscall};
use talc::{OomHandler, Span, Talc};

const RESERVATION_BYTES_FIRST: usize = 1 << 20;
const RESERVATION_BYTES_MAX: usize = 1 << 28;

/// Maps more memory when talc has none left.
struct Reserve {
    next_bytes: usize,
}

impl OomHandler for Reserve {
    fn handle_oom(talc: &mut Talc<Self>, layout: Layout) -> Result<(), ()> {
        // Twice the request leaves room for talc's own words and the alignment.
        let bytes = talc.oom_handler.next_bytes.max((layout.size() + layout.align()).next_power_of_two() * 2);
        let base = map_anonymous(bytes).map_err(|_| ())?;
        talc.oom_handler.next_bytes = (bytes * 2).min(RESERVATION_BYTES_MAX);
        // SAFETY: the mapping was just made, is `bytes` long, is nobody else's and is never
        // unmapped.
        unsafe { talc.claim(Span::from_base_size(base as *mut u8, bytes)) }.map(|_| ())
    }
}

/// Maps `bytes` of zeroed private memory and returns its address.
pub(crate) fn map_anonymous(bytes: usize) -> sys::Result<usize> {
    let arguments = [
        sys::place::wish(bytes),
        bytes,
        (PROT_READ | PROT_WRITE) as usize,
        (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE) as usize,
        usize::MAX,
        0,
    ];
    // SAFETY: a fresh anonymous mapping at an address that the kernel agrees to overlaps nothing.
    check(unsafe { syscall(__NR_mmap as usize, arguments) })
}

/// The global allocator.
pub(crate) struct Allocator {
    lock: RawLock,
    talc: UnsafeCell<Talc<Reserve>>,
}

// SAFETY: `talc` is reached only in `with`, which holds `lock`.
unsafe impl Sync for Allocator {}

impl Allocator {
    pub(crate) const fn new() -> Self {
        let reserve = Reserve { next_bytes: RESERVATION_BYTES_FIRST };
        Self { lock: RawLock::new(), talc: UnsafeCell::new(Talc::new(reserve)) }
    }

    fn with<R>(&self, operation: impl FnOnce(&mut Talc<Reserve>) -> R) -> R {
        self.lock.acquire();
        // SAFETY: the lock is held, so this is the only reference.
        let result = operation(unsafe { &mut *self.talc.get() });
        self.lock.release();
        result
    }

    /// In a copy of the process, whose heap another thread may have been changing: begins with new
    /// memory, and leaves the old as it is.
    pub(crate) fn begin_anew(&self) {
        self.lock.reset();
        let fresh = Talc::new(Reserve { next_bytes: RESERVATION_BYTES_FIRST });
        // SAFETY: the copy has one thread, and it is here: nobody else has a reference. Talc owns
        // nothing that must be dropped.
        unsafe { self.talc.get().write(fresh) };
    }

    /// The heap's lock, to hold it across a fork.
    pub(crate) const fn raw_lock(&self) -> &RawLock {
        &self.lock
    }
}

// SAFETY: talc hands out disjoint, aligned blocks of claimed memory that live until freed; `with`
// serialises it.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if arena::is_active() {
            return arena::allocate(layout);
        }
        // SAFETY: GlobalAlloc's caller gives a layout of non-zero size.
        self.with(|talc| unsafe { talc.malloc(layout) }).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if arena::is_active() {
            return;
        }
        // SAFETY: GlobalAlloc's caller gives back a block of this allocator, never null, with its
        // layout.
        self.with(|talc| unsafe { talc.free(NonNull::new_unchecked(block), layout) });
    }
}
