//! How long a file the process may make (RLIMIT_FSIZE), remembered so that asking costs one load.
//!
//! The kernel also applies this limit when the library makes backing files grow, and kills the
//! program where it is passed. So the library keeps its own files below the limit, and refuses what
//! the program may not do before the kernel is asked.

use core::sync::atomic::{AtomicU64, Ordering};
use rustix::process::{Resource, getrlimit};

/// No file is longer, limit or none.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

static BYTES: AtomicU64 = AtomicU64::new(FILE_BYTES_MAX);

/// Asks the kernel. Called at start and when the program has set its limit; a limit set by another
/// process is not noticed.
pub fn refresh() {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(FILE_BYTES_MAX);
    BYTES.store(limit.min(FILE_BYTES_MAX), Ordering::Relaxed);
}

/// The limit in bytes; without one, what a file can have at most.
#[inline]
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Whether the process has a limit.
pub fn is_set() -> bool {
    bytes() != FILE_BYTES_MAX
}
