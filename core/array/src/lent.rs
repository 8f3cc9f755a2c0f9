//! Finds the root of a member that this process does not find any more, in a process that has it
//! open.
//!
//! When a member's directory was renamed, or another file system lies over it, processes that use
//! the array still reach the member by their descriptors. A process that starts then takes the root
//! from one of them, by the links of /proc, so that what only that member has can be brought to the
//! others before the member goes out of use ([`crate::Runtime::let_go`]).
//!
//! Only processes of root, of this process' user and of the array's owner are asked. A pid that
//! another user wrote into the runtime segment is not believed.

use crate::member::{Finding, Standing, inspect};
use crate::{Member, Runtime};
use alloc::vec::Vec;
use format::Superblock;
use sys::rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat, stat};
use sys::rustix::process::geteuid;
use units::MemberSet;

/// Takes the roots of `wanted` from other processes, for those of `members` of which it finds one.
/// Returns them: they are still in use.
pub(crate) fn take_roots(runtime: &Runtime, superblock: &Superblock, members: &mut [Member], wanted: MemberSet) -> MemberSet {
    let mut taken = MemberSet::EMPTY;
    for pid in runtime.attached() {
        if wanted.minus(taken).is_empty() {
            break;
        }
        for finding in roots_of(runtime, superblock, pid) {
            let Some(found) = finding.superblock() else { continue };
            let slot = found.slot;
            let is_it = slot < members.len()
                && wanted.minus(taken).contains(slot)
                && found.array_uuid == superblock.array_uuid
                && found.member_uuid == superblock.members[slot].uuid
                && found.event_count + 1 >= superblock.event_count;
            if !is_it {
                continue;
            }
            let found = finding.into_member(slot, Standing::Leaving);
            // Another process may have a copy open that it found in the member's place.
            if !found.directory().differs_from(runtime.directory(slot)) {
                let path = core::mem::take(&mut members[slot].path);
                members[slot] = Member { path, ..found };
                taken = taken.with(slot);
            }
        }
    }
    taken
}

/// What lies at the directories that a process has open and that are, or were, roots of members.
fn roots_of(runtime: &Runtime, superblock: &Superblock, pid: u32) -> Vec<Finding> {
    let process = alloc::format!("/proc/{pid}");
    let believed = [0, geteuid().as_raw(), superblock.access.owner_uid];
    if !stat(process.as_str()).is_ok_and(|stat| believed.contains(&stat.st_uid)) {
        return Vec::new();
    }
    let directory = alloc::format!("{process}/fd");
    let opened = openat(CWD, directory.as_str(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(entries) = opened.and_then(Dir::read_from) else { return Vec::new() };
    let link = |name: &[u8]| [directory.as_bytes(), b"/", name].concat();
    let is_root = |link: &Vec<u8>| {
        stat(link.as_slice()).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory && runtime.is_root(stat.st_dev, stat.st_ino)
        })
    };
    let links = entries.filter_map(Result::ok).map(|entry| link(entry.file_name().to_bytes()));
    links.filter(is_root).filter_map(|link| inspect(&link).ok()).collect()
}
