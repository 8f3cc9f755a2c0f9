//! Descriptors of our own, kept out of the way of the program's.
//!
//! A program expects the lowest free number from open(2) and may use any number up to its limit. Ours therefore live in the upper
//! half of what the limit allows, and are closed on exec.

use crate::{OwnedFd, Result};
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// The number from which on our descriptors lie; 0 until first asked for.
static BASE: AtomicU32 = AtomicU32::new(0);
/// Above this many descriptors the kernel's table grows large for nothing.
const BASE_MAX: u64 = 1 << 15;

/// The number from which on our descriptors lie.
pub fn base() -> u32 {
    match BASE.load(Ordering::Relaxed) {
        0 => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(BASE_MAX * 2);
            let base = (limit / 2).clamp(64, BASE_MAX) as u32;
            BASE.store(base, Ordering::Relaxed);
            base
        }
        base => base,
    }
}

/// Moves a descriptor there. If there is no room above, it stays where it is.
pub fn raise(fd: OwnedFd) -> Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(&fd, base() as i32).unwrap_or(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AsRawFd;

    #[test]
    fn a_raised_descriptor_leaves_the_low_number_free() {
        let open = || rustix::fs::open(c"/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let raised = raise(open()).unwrap();
        assert!(raised.as_raw_fd() as u32 >= base());
        assert!((open().as_raw_fd() as u32) < base());
    }
}
