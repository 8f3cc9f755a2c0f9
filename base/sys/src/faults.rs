//! How many page faults the process has had.

use crate::raw::{check, syscall};
use linux_raw_sys::general::__NR_getrusage;

const RUSAGE_SELF: usize = 0;
/// How many words `struct rusage` has.
const USAGE_WORDS: usize = 18;
/// The index of the word that counts the minor faults; the one for major faults follows.
const MINOR_FAULTS: usize = 8;
const MAJOR_FAULTS: usize = 9;

/// Returns the number of page faults of all threads of this process, those that have ended included.
/// A fault is counted before the access that met it is done. Faults of other processes that store
/// into this process' memory (ptrace(2), process_vm_writev(2), a child that shares the memory) are
/// counted as theirs. None if the process may not ask (seccomp).
///
/// Source: getrusage(2); `mm_account_fault` of Linux.
#[must_use]
pub fn page_faults() -> Option<u64> {
    let mut usage = [0u64; USAGE_WORDS];
    // SAFETY: the kernel fills the words, which are as many as it has.
    check(unsafe { syscall(__NR_getrusage as usize, [RUSAGE_SELF, &raw mut usage as usize, 0, 0, 0, 0]) }).ok()?;
    Some(usage[MINOR_FAULTS] + usage[MAJOR_FAULTS])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn a_first_store_is_counted() {
        let (bytes, access) = (64 * 4096, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.unwrap() as usize;
        let before = page_faults().unwrap();
        for page in (0..bytes).step_by(4096) {
            // SAFETY: within the mapping.
            unsafe { ((start + page) as *mut u8).write_volatile(1) };
        }
        assert!(page_faults().unwrap() > before);
        // SAFETY: the mapping made above.
        unsafe { munmap(start as *mut _, bytes) }.unwrap();
    }
}
