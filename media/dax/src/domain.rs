//! What it takes for a store to a member to survive power loss: detected, never assumed.

use core::mem::MaybeUninit;
use persist::PersistenceDomain;
use sys::rustix::fs::{
    Access, AtFlags, CWD, FsWord, Mode, OFlags, RawDir, accessat, fstat, fstatfs, ftruncate, major, minor, openat,
};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{AsFd as _, BorrowedFd, OwnedFd};
use units::PAGE_BYTES;

pub(crate) const TMPFS: FsWord = 0x0102_1994;
const RAMFS: FsWord = 0x8584_58f6;
const HUGETLBFS: FsWord = 0x9584_58f6;

/// The persistence domain of files under `root`, a directory.
///
/// Volatile file systems are known by their magic. Elsewhere an unnamed temporary file is mapped
/// with MAP_SYNC, which only a DAX file system grants; what the platform promises then is read from
/// the nd bus. Whatever cannot be found out counts as the domain that asks more of the writer.
#[must_use]
pub fn detect(root: BorrowedFd<'_>) -> PersistenceDomain {
    match fstatfs(root).map(|stat| stat.f_type) {
        Ok(TMPFS | RAMFS | HUGETLBFS) => return PersistenceDomain::Volatile,
        Ok(_) => {}
        Err(_) => return PersistenceDomain::PageCache,
    }
    if !grants_map_sync(root) {
        PersistenceDomain::PageCache
    } else if directory(CWD, c"/sys").is_ok_and(|sysfs| caches_are_flushed(sysfs.as_fd(), root)) {
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

/// Whether the region of persistent memory that holds `root` has its caches flushed on power loss.
/// Below a device mapper or the like the region cannot be told; then every region of the machine
/// must.
fn caches_are_flushed(sysfs: BorrowedFd<'_>, root: BorrowedFd<'_>) -> bool {
    match own_region(sysfs, root) {
        Some(region) => region_is_flushed(region.as_fd()),
        None => all_regions_are_flushed(sysfs),
    }
}

fn directory(parent: BorrowedFd<'_>, name: impl sys::rustix::path::Arg) -> sys::Result<OwnedFd> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The directory in sysfs of the region below the file system of `root`: some levels above its
/// block device, such as `ndbus0/region0/namespace0.0/block/pmem0` or, for a partition, one level
/// more.
fn own_region(sysfs: BorrowedFd<'_>, root: BorrowedFd<'_>) -> Option<OwnedFd> {
    const LEVELS_MAX: usize = 6;
    let device = fstat(root).ok()?.st_dev;
    let mut at = directory(sysfs, alloc::format!("dev/block/{}:{}", major(device), minor(device))).ok()?;
    for _ in 0..LEVELS_MAX {
        at = directory(at.as_fd(), c"..").ok()?;
        // Regions have this attribute, and nothing between them and a block device has.
        if accessat(&at, c"init_namespaces", Access::EXISTS, AtFlags::empty()).is_ok() {
            return Some(at);
        }
    }
    None
}

/// Without the attribute the platform promises nothing.
fn region_is_flushed(region: BorrowedFd<'_>) -> bool {
    let Ok(attribute) = openat(region, c"persistence_domain", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut text = [0; 32];
    matches!(sys::rustix::io::read(&attribute, &mut text), Ok(bytes) if text[..bytes].trim_ascii() == b"cpu_cache")
}

fn all_regions_are_flushed(sysfs: BorrowedFd<'_>) -> bool {
    let Ok(devices) = directory(sysfs, c"bus/nd/devices") else { return false };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&devices, &mut buffer);
    let mut regions = 0;
    while let Some(Ok(entry)) = entries.next() {
        if !entry.file_name().to_bytes().starts_with(b"region") {
            continue;
        }
        regions += 1;
        let Ok(region) = directory(devices.as_fd(), entry.file_name()) else { return false };
        if !region_is_flushed(region.as_fd()) {
            return false;
        }
    }
    regions > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with two regions; the first holds the device of the file system that `tree` lies on,
    /// if it is said to.
    struct Sysfs {
        tree: std::path::PathBuf,
        root: OwnedFd,
    }

    impl Sysfs {
        fn new(name: &str) -> Self {
            let tree = std::path::Path::new("/dev/shm").join(format!("cxlraid-dax-{name}-{}", std::process::id()));
            for directory in ["dev/block", "bus/nd/devices", "region0/namespace0.0/block/pmem0/pmem0p1", "region1"] {
                std::fs::create_dir_all(tree.join(directory)).unwrap();
            }
            for region in ["region0", "region1"] {
                std::fs::write(tree.join(region).join("init_namespaces"), "1\n").unwrap();
                std::os::unix::fs::symlink(tree.join(region), tree.join("bus/nd/devices").join(region)).unwrap();
            }
            let root = directory(CWD, tree.to_str().unwrap()).unwrap();
            Self { tree, root }
        }

        fn says(&self, region: &str, domain: &str) {
            std::fs::write(self.tree.join(region).join("persistence_domain"), domain).unwrap();
        }

        fn holds_us(&self, device: &str) {
            let number = fstat(&self.root).unwrap().st_dev;
            let link = self.tree.join(format!("dev/block/{}:{}", major(number), minor(number)));
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(self.tree.join(device), link).unwrap();
        }

        fn flushes(&self) -> bool {
            caches_are_flushed(self.root.as_fd(), self.root.as_fd())
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.tree);
        }
    }

    #[test]
    fn a_members_own_region_decides() {
        let sysfs = Sysfs::new("own");
        sysfs.says("region0", "cpu_cache\n");
        sysfs.says("region1", "memory_controller\n");
        sysfs.holds_us("region0/namespace0.0/block/pmem0");
        assert!(sysfs.flushes());
        sysfs.holds_us("region0/namespace0.0/block/pmem0/pmem0p1");
        assert!(sysfs.flushes());
        sysfs.says("region0", "memory_controller\n");
        sysfs.says("region1", "cpu_cache\n");
        assert!(!sysfs.flushes());
        std::fs::remove_file(sysfs.tree.join("region0/persistence_domain")).unwrap();
        assert!(!sysfs.flushes());
    }

    #[test]
    fn without_a_region_of_its_own_all_must_flush() {
        let sysfs = Sysfs::new("all");
        assert!(!sysfs.flushes());
        sysfs.says("region0", "cpu_cache\n");
        assert!(!sysfs.flushes());
        sysfs.says("region1", "cpu_cache\n");
        assert!(sysfs.flushes());
    }

    #[test]
    fn tmpfs_is_volatile_and_a_disk_is_page_cache_at_best() {
        let open = |path: &str| openat(sys::rustix::fs::CWD, path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(detect(open("/dev/shm").as_fd()), PersistenceDomain::Volatile);
        assert_ne!(detect(open("/").as_fd()), PersistenceDomain::Eadr);
    }
}
