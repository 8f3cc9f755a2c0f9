//! Which pages of a mapping were stored to: userfaultfd(2) with asynchronous write protection, read
//! by PAGEMAP_SCAN.
//!
//! A range is [watched](Tracker::watch) once; from then on the first store to each of its pages
//! costs one fault that the kernel resolves itself, and later ones nothing. [`Tracker::written`]
//! lists the pages stored to, and, if asked, protects each of them again in the same step, so that
//! a store is either listed or will be. Needs Linux 6.7; no privilege, because faults taken inside
//! the kernel on a user's behalf are resolved without a handler too.
//!
//! Neither a fork child nor a mapping that is made anew inherits it. An EPERM from
//! [`Tracker::written`] means that something in the range is not watched.
//!
//! Source: userfaultfd(2), ioctl_userfaultfd(2), Documentation/admin-guide/mm/pagemap.rst.

use crate::high_fd::Raised;
use crate::raw::{check, syscall};
use crate::{AsRawFd, FromRawFd, OwnedFd, Result};
use core::mem::MaybeUninit;
use linux_raw_sys::general::{__NR_ioctl, __NR_userfaultfd};
use rustix::fs::{Mode, OFlags, open};

const O_CLOEXEC: usize = 0o2_000_000;
const UFFD_USER_MODE_ONLY: usize = 1;
const UFFD_API: u64 = 0xaa;
/// WP_UNPOPULATED and WP_ASYNC: pages that are not there yet are protected too, and faults need no
/// handler.
const FEATURES: u64 = 1 << 13 | 1 << 15;
const MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// `_IOWR(kind, number, bytes)`.
const fn read_write_request(kind: u8, number: u8, bytes: usize) -> usize {
    3 << 30 | bytes << 16 | (kind as usize) << 8 | number as usize
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    bytes: u64,
    mode: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Adjacent pages that were stored to, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Written {
    /// The first page's address.
    pub start: u64,
    /// The address after the last page.
    pub end: u64,
    categories: u64,
}

/// What one process needs to watch its mappings. It belongs to the address space it was made in.
pub struct Tracker {
    userfault: Raised,
    pagemap: Raised,
}

impl Tracker {
    /// Asks the kernel for it.
    ///
    /// # Errors
    /// `PERM` or `NOSYS` where userfaultfd is not permitted, `INVAL` before Linux 6.7, `NOENT`
    /// without /proc.
    pub fn new() -> Result<Self> {
        // SAFETY: makes a descriptor, which is owned from here on.
        let userfault = unsafe {
            let fd = check(syscall(__NR_userfaultfd as usize, [O_CLOEXEC | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0]))?;
            OwnedFd::from_raw_fd(fd as i32)
        };
        let mut api = Api { api: UFFD_API, features: FEATURES, ioctls: 0 };
        request(&userfault, read_write_request(0xaa, 0x3f, size_of::<Api>()), &mut api)?;
        let pagemap = open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { userfault: Raised::new(userfault)?, pagemap: Raised::new(pagemap)? })
    }

    /// Watches the mapped range from now on; pages of it that were never touched count as not
    /// stored to.
    pub fn watch(&self, start: usize, bytes: usize) -> Result<()> {
        self.watch_inherited(start, bytes)?;
        self.forget_stores(start, bytes)
    }

    /// From now on pages of a watched range count as not stored to. The kernel makes page tables for
    /// all of it (8 bytes for each page), also where there are no pages yet.
    pub fn forget_stores(&self, start: usize, bytes: usize) -> Result<()> {
        let mut protect = WriteProtect { start: start as u64, bytes: bytes as u64, mode: WRITEPROTECT_MODE_WP };
        request(&self.userfault, read_write_request(0xaa, 6, size_of::<WriteProtect>()), &mut protect).map(|_| ())
    }

    /// Watches a range whose pages are all present and cannot be stored to meanwhile. Huge pages
    /// stay huge.
    pub fn watch_present(&self, start: usize, bytes: usize) -> Result<()> {
        self.watch_inherited(start, bytes)?;
        let (mut at, end) = (start, start + bytes);
        let mut regions = [const { MaybeUninit::uninit() }; 16];
        while at < end {
            at = self.written(at, end, true, &mut regions)?.1;
        }
        Ok(())
    }

    /// Watches a range that a fork child has inherited: whatever was stored there since counts as
    /// stored to.
    pub fn watch_inherited(&self, start: usize, bytes: usize) -> Result<()> {
        let mut register = Register { start: start as u64, bytes: bytes as u64, mode: MODE_WP, ioctls: 0 };
        request(&self.userfault, read_write_request(0xaa, 0, size_of::<Register>()), &mut register).map(|_| ())
    }

    /// Fills `regions` with pages of `start..end` that were stored to, ascending, and protects them
    /// again if `again`. Returns the regions and where the next call goes on: `end` if this was
    /// all.
    pub fn written<'a>(
        &self,
        start: usize,
        end: usize,
        again: bool,
        regions: &'a mut [MaybeUninit<Written>],
    ) -> Result<(&'a [Written], usize)> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: PM_SCAN_CHECK_WPASYNC | if again { PM_SCAN_WP_MATCHING } else { 0 },
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            regions: regions.as_mut_ptr() as u64,
            region_count: regions.len() as u64,
            pages_max: 0,
            category_inverted: 0,
            category_mask: PAGE_IS_WRITTEN,
            category_anyof_mask: 0,
            return_mask: PAGE_IS_WRITTEN,
        };
        let count = request(&self.pagemap, read_write_request(b'f', 16, size_of::<Scan>()), &mut scan)?;
        // SAFETY: the kernel has filled `count` of them.
        let filled = unsafe { core::slice::from_raw_parts(regions.as_ptr().cast::<Written>(), count) };
        Ok((filled, scan.walk_end as usize))
    }
}

fn request<T>(fd: &OwnedFd, request: usize, argument: &mut T) -> Result<usize> {
    // SAFETY: each request is used with its own structure, which outlives the call; what it does to
    // the address space is the mapping's protection only.
    check(unsafe {
        syscall(__NR_ioctl as usize, [fd.as_raw_fd() as usize, request, core::ptr::from_mut(argument) as usize, 0, 0, 0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    const PAGE: usize = 4096;

    #[test]
    fn pages_stored_to_are_listed_once() {
        let tracker = match Tracker::new() {
            Ok(tracker) => tracker,
            Err(error) => return assert!(matches!(error, crate::OsError::PERM | crate::OsError::NOSYS | crate::OsError::INVAL)),
        };
        let file = rustix::fs::memfd_create("tracking", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 64 * PAGE as u64).unwrap();
        let (access, bytes) = (ProtFlags::READ | ProtFlags::WRITE, 64 * PAGE);
        // SAFETY: a new mapping of the file's length.
        let start = unsafe { mmap(core::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }.unwrap() as usize;
        let store = |page: usize| {
            // SAFETY: within the mapping.
            unsafe { ((start + page * PAGE) as *mut u8).write_volatile(7) };
        };
        let listed = |again: bool| {
            let mut regions = [MaybeUninit::uninit(); 8];
            let (found, end) = tracker.written(start, start + bytes, again, &mut regions).unwrap();
            assert_eq!(end, start + bytes);
            found
                .iter()
                .map(|run| ((run.start as usize - start) / PAGE, (run.end as usize - start) / PAGE))
                .collect::<std::vec::Vec<_>>()
        };
        store(1);
        tracker.watch(start, bytes).unwrap();
        assert_eq!(listed(true), []);
        store(3);
        store(4);
        store(60);
        assert_eq!(listed(false), [(3, 5), (60, 61)]);
        assert_eq!(listed(true), [(3, 5), (60, 61)]);
        assert_eq!(listed(true), []);
        store(4);
        assert_eq!(listed(true), [(4, 5)]);
        // SAFETY: the mapping made above.
        unsafe { munmap(start as *mut _, bytes) }.unwrap();
    }
}
