//! Persistent memory in the guest: namespaces, file systems on them, mounting by label.
//!
//! A namespace of an NVDIMM starts raw; in fsdax mode it becomes a block device whose file systems
//! can map the memory. The label of a file system says which member it is, so a missing NVDIMM does
//! not shift the others.

use super::programs::Program;
use crate::{Outcome, about, array::FileSystem};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long the kernel may take to find what is there. The host ends a machine that uses too much
/// processor time.
const PATIENCE: Duration = Duration::from_secs(600);

/// Makes the namespaces of the first `count` NVDIMMs fsdax ones; their block devices.
pub(super) fn make_namespaces(count: usize) -> Outcome<Vec<PathBuf>> {
    for number in 0..count {
        await_path(&PathBuf::from(format!("/sys/bus/nd/devices/namespace{number}.0")))?;
        Program::new("ndctl").words(&format!("create-namespace -f -e namespace{number}.0 -m fsdax -M mem")).done()?;
    }
    let devices: Vec<_> = (0..count).map(|number| PathBuf::from(format!("/dev/pmem{number}"))).collect();
    devices.iter().try_for_each(|device| await_path(device)).map(|()| devices)
}

/// Makes a region and a namespace of the CXL memory device; its block device.
pub(super) fn make_cxl_namespace() -> Outcome<PathBuf> {
    await_path(Path::new("/sys/bus/cxl/devices/mem0"))?;
    let before = devices()?;
    Program::new("cxl").words("create-region -m -t pmem -d decoder0.0 -w 1 -g 4096 mem0").done()?;
    Program::new("ndctl").words("create-namespace -f -t pmem -m fsdax -M mem --region").arg(cxl_region()?).done()?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(device) = devices()?.into_iter().find(|device| !before.contains(device)) {
            return Ok(device);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err("the namespace on CXL memory has no block device".to_owned())
}

/// The region of the nd bus that CXL provides, by the driver above it.
fn cxl_region() -> Outcome<String> {
    let begun = Instant::now();
    let place = "/sys/bus/nd/devices";
    while begun.elapsed() < PATIENCE {
        for entry in fs::read_dir(place).map_err(about(place))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let target = fs::canonicalize(entry.path()).map_err(about(&name))?;
            if name.starts_with("region") && !target.to_string_lossy().contains("ACPI0012") {
                return Ok(name);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err("the CXL region did not become a region of the nd bus".to_owned())
}

fn await_path(path: &Path) -> Outcome {
    let begun = Instant::now();
    while !path.exists() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{} does not appear", path.display()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The block devices of persistent memory.
fn devices() -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir("/dev").map_err(about("/dev"))?.flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with("pmem")).map(|name| Path::new("/dev").join(name)).collect())
}

/// A new file system with the label of a member.
pub(super) fn format(device: &Path, system: FileSystem, slot: usize) -> Outcome {
    let label = label(slot);
    let program = match system {
        FileSystem::Ext4 => Program::new("mke2fs").words("-q -F -t ext4 -b 4096 -E nodiscard -L").arg(&label),
        // Blocks shared between files and DAX exclude each other until Linux 6.x learnt both;
        // arrays do not need the first.
        FileSystem::Xfs => Program::new("mkfs.xfs").words("-q -f -K -m reflink=0 -L").arg(&label),
    };
    program.arg(device).done()
}

fn label(slot: usize) -> String {
    format!("member{slot}")
}

/// Mounts with dax=always.
pub(super) fn mount_dax(device: &Path, system: FileSystem, place: &Path) -> Outcome {
    fs::create_dir_all(place).map_err(about(place.display()))?;
    mount(device, place, system.to_string(), MountFlags::empty(), Some(c"dax=always")).map_err(about(device.display()))
}

pub(super) fn unmount_all(places: &[PathBuf]) -> Outcome {
    places.iter().try_for_each(|place| unmount(place, UnmountFlags::empty()).map_err(about(place.display())))
}

/// Waits for `expected` devices, and says which member each holds.
pub(super) fn by_member(expected: usize, system: FileSystem) -> Outcome<Vec<(usize, PathBuf)>> {
    let begun = Instant::now();
    loop {
        let found = devices()?;
        if found.len() >= expected {
            return found.into_iter().map(|device| Ok((slot_of(&device, system)?, device))).collect();
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{} devices of persistent memory instead of {expected}", found.len()));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The label lies at a fixed place: ext4(5) s_volume_name, XFS sb_fname.
fn slot_of(device: &Path, system: FileSystem) -> Outcome<usize> {
    let mut bytes = [0; 12];
    let place = match system {
        FileSystem::Ext4 => 1024 + 0x78,
        FileSystem::Xfs => 108,
    };
    File::open(device).and_then(|file| file.read_exact_at(&mut bytes, place)).map_err(about(device.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let slot = text.trim_end_matches('\0').strip_prefix("member").and_then(|slot| slot.parse().ok());
    slot.ok_or_else(|| format!("{}: {text:?} is no member's label", device.display()))
}
