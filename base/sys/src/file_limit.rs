//! How long a file the process may make one (RLIMIT_FSIZE), so that asking costs one load.
//!
//! The kernel holds our own growing of backing files to this limit too, and kills the program where it is passed: so nothing of ours
//! reaches beyond it, and what the program may not do is refused before the kernel is asked.

use core::sync::atomic::{AtomicU64, Ordering};
use rustix::process::{Resource, getrlimit};

/// No file is longer, limit or none.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

static BYTES: AtomicU64 = AtomicU64::new(FILE_BYTES_MAX);

/// Asks the kernel. Called at start and when the program has set its limit; a limit set by another process is not noticed.
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
