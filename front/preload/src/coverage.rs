//! How often each system call was seen, for comparison with strace: `CXLRAID_TRACE=<file>`.
//!
//! The file is a shared mapping of 512 little-endian 8-byte counters, one per number, added to by
//! every process that names it.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sys::rustix::fs::{CWD, Mode, OFlags, ftruncate, openat};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap};

const COUNTER_COUNT: usize = 512;
const FILE_BYTES: usize = COUNTER_COUNT * 8;

static COUNTERS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Starts counting into the file at `path` (with its NUL). Without effect if it cannot be mapped.
pub(crate) fn start(path: &core::ffi::CStr) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let Ok(file) = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR) else { return };
    if ftruncate(&file, FILE_BYTES as u64).is_err() {
        return;
    }
    // SAFETY: a new shared mapping at an address of the kernel's choice; the file is that long.
    let map = unsafe { mmap(core::ptr::null_mut(), FILE_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) };
    if let Ok(map) = map {
        COUNTERS.store(map.cast(), Ordering::Relaxed);
    }
}

/// Tells whether calls are counted.
pub(crate) fn is_on() -> bool {
    !COUNTERS.load(Ordering::Relaxed).is_null()
}

/// Counts one call that passed the filter. Every call is one that is timed then, so that the others
/// need not ask ([`crate::counts`]).
pub(crate) fn count(number: usize) {
    let counters = COUNTERS.load(Ordering::Relaxed);
    if !counters.is_null() && number < COUNTER_COUNT {
        // SAFETY: the mapping has COUNTER_COUNT counters and is never unmapped.
        unsafe { (*counters.add(number)).fetch_add(1, Ordering::Relaxed) };
    }
}
