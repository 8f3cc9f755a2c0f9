//! What a program without a standard library must bring: the panic handler and the allocator.

use crate::report::report;
use core::panic::PanicInfo;

#[global_allocator]
static ALLOCATOR: crate::alloc::Allocator = crate::alloc::Allocator::new();

/// The heap's lock, to hold it across a fork.
pub(crate) fn heap_lock() -> &'static crate::lock::RawLock {
    ALLOCATOR.raw_lock()
}

/// Gives a copy of the process a heap of its own.
pub(crate) fn renew_heap() {
    ALLOCATOR.begin_anew();
}

/// Says where, then dies by SIGABRT: a panic inside the library leaves nothing to return to.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    report!("internal error: {info}");
    crate::abort::abort()
}
