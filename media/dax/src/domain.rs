//! What it takes for a store to a member to survive power loss: detected, never assumed.

use core::mem::MaybeUninit;
use persist::PersistenceDomain;
use sys::rustix::fs::{FsWord, Mode, OFlags, RawDir, fstatfs, ftruncate, openat};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{AsFd, BorrowedFd, OwnedFd};
use units::PAGE_BYTES;

const TMPFS: FsWord = 0x0102_1994;
const RAMFS: FsWord = 0x8584_58f6;
const HUGETLBFS: FsWord = 0x9584_58f6;

/// The persistence domain of files under `root`, a directory.
///
/// Volatile file systems are known by their magic. Elsewhere an unnamed temporary file is mapped with MAP_SYNC, which only a
/// DAX file system grants; what the platform promises then is read from the nd bus. Whatever cannot be found out counts
/// as the domain that asks more of the writer.
#[must_use]
pub fn detect(root: BorrowedFd<'_>) -> PersistenceDomain {
    match fstatfs(root).map(|stat| stat.f_type) {
        Ok(TMPFS | RAMFS | HUGETLBFS) => return PersistenceDomain::Volatile,
        Ok(_) => {}
        Err(_) => return PersistenceDomain::PageCache,
    }
    if !grants_map_sync(root) {
        PersistenceDomain::PageCache
    } else if caches_are_flushed() {
        PersistenceDomain::Eadr
    } else {
        PersistenceDomain::Adr
    }
}

fn grants_map_sync(root: BorrowedFd<'_>) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(probe) = openat(root, c".", flags, Mode::RUSR | Mode::WUSR) else { return false };
    if ftruncate(&probe, PAGE_BYTES as u64).is_err() {
        return false;
    }
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(core::ptr::null_mut(), PAGE_BYTES, ProtFlags::READ, flags, &probe, 0) };
    let Ok(base) = base else { return false };
    // SAFETY: the mapping was made above and nobody else knows it.
    _ = unsafe { munmap(base, PAGE_BYTES) };
    true
}

/// Whether every persistent region of the machine has its caches flushed on power loss. Which region holds a file is not
/// told, so one region without counts for all.
fn caches_are_flushed() -> bool {
    let directory = |parent: BorrowedFd<'_>, name: &core::ffi::CStr| -> sys::Result<OwnedFd> {
        openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    let Ok(devices) = directory(sys::rustix::fs::CWD, c"/sys/bus/nd/devices") else { return false };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&devices, &mut buffer);
    let mut regions = 0;
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(b"region") {
            continue;
        }
        regions += 1;
        let Ok(region) = directory(devices.as_fd(), name) else { return false };
        let attribute = openat(&region, c"persistence_domain", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let Ok(attribute) = attribute else { return false };
        let mut text = [0; 32];
        if !matches!(sys::rustix::io::read(&attribute, &mut text), Ok(bytes) if text[..bytes].trim_ascii() == b"cpu_cache") {
            return false;
        }
    }
    regions > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_is_volatile_and_a_disk_is_page_cache_at_best() {
        let open = |path: &str| openat(sys::rustix::fs::CWD, path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(detect(open("/dev/shm").as_fd()), PersistenceDomain::Volatile);
        assert_ne!(detect(open("/").as_fd()), PersistenceDomain::Eadr);
    }
}
