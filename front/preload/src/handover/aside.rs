//! Open files that a process inherited or opened with more rights than the program has that it is
//! about to execute: `su user -c command > file`, where the file and the array are root's.
//!
//! The next program's library could open neither the array nor the files' parts on the other
//! members. So before the process changes its user, it opens its files in the mount, if there is
//! one that other users may use, with the rights that it has then. Each open file keeps such a
//! descriptor *aside* ([`crate::descriptors::Description::aside`]). When the process executes a
//! program that may not open the file by its name, or that runs without the library, that
//! descriptor takes the anchor's place, as it would for a program without the library. Names of the
//! array stay closed to the program.
//!
//! What is had ahead is opened by a child process ([`super::errand`]) as ever: a mount whose process
//! does not answer costs three seconds, once.

use super::{WANTED_COUNT_MAX, errand, mounts, shares_table, wanted_of};
use crate::calls::node::{Held, Node};
use crate::calls::{OPEN, directory, rights};
use crate::descriptors::{NOTHING_ASIDE, descriptor_flags};
use crate::{array, process};
use core::sync::atomic::Ordering;
use errand::Errand;
use heap::vec::Vec;
use linux_raw_sys::general::{F_GETFD, FD_CLOEXEC};
use sys::rustix::fs::{Access, AtFlags, CWD, accessat};
use sys::rustix::process::geteuid;
use sys::rustix::thread::{CapabilitySet, capabilities};
use sys::{RawFd, high_fd};

/// The file of a member that nobody attaches to an array without.
const SUPERBLOCK: &[u8] = b"/.cxlraid/superblock";

/// Opens in a mount every file that the next program would inherit. The process is about to become
/// another user, and still has its rights.
#[cold]
pub(crate) fn prepare() {
    let is_own = process::owns_tables() && process::has_memory() && !shares_table();
    if !is_own || OPEN.count() == 0 || rights::are_calls_restricted() {
        return;
    }
    let lacks = |number: RawFd, held: &Held| {
        let flags = descriptor_flags(number, F_GETFD, 0);
        let is_inherited = flags >= 0 && flags as u32 & FD_CLOEXEC == 0;
        is_inherited && matches!(held.node(), Node::File(_)) && held.aside.load(Ordering::Acquire) == NOTHING_ASIDE
    };
    let mut found: Vec<(RawFd, Held)> = Vec::new();
    for (number, held) in OPEN.all().filter(|(number, held)| lacks(*number, held)) {
        if found.len() < WANTED_COUNT_MAX - 2 && !found.iter().any(|(_, other)| core::ptr::eq(&**other, &*held)) {
            found.push((number, held));
        }
    }
    if found.is_empty() {
        return;
    }
    let (mounts, Ok(namespace)) = (mounts(true), array::namespace()) else { return };
    if mounts.is_empty() {
        return;
    }
    let mut wanted = Vec::new();
    found.retain(|(number, held)| wanted_of(*number, Some(held)).map(|one| wanted.push(one)).is_some());
    let errand = Errand { mounts: &mounts, wanted: &wanted, uuid: namespace.files().array().uuid().0, is_ahead: true };
    let Some(reply) = errand::run(&errand, errand::now_ns().wrapping_add(super::LIMIT_NS)) else { return };
    for (given, (_, held)) in (0..).map(|index| reply.descriptor(index)).zip(&found) {
        let Some(kept) = given.and_then(super::out_of_the_way) else { continue };
        high_fd::keep(kept);
        // Each thread of the process makes the call that changes the user.
        if held.aside.compare_exchange(NOTHING_ASIDE, kept, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            high_fd::forget(kept);
            crate::calls::descriptor::close_unheld(kept);
        }
    }
    reply.into_descriptors().into_iter().for_each(crate::calls::descriptor::close_unheld);
}

/// Tells whether something is kept aside for a file that the next program may not open by its name,
/// or whose array it may not use.
pub(crate) fn is_needed(number: RawFd, held: &Held) -> bool {
    if held.aside.load(Ordering::Acquire) == NOTHING_ASIDE {
        return false;
    }
    let Ok(namespace) = array::namespace() else { return false };
    // An exec takes the capabilities of whoever is not root, and with them what they allow now.
    let overriding = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    if !geteuid().is_root() && capabilities(None).is_ok_and(|has| has.effective.intersects(overriding)) {
        return true;
    }
    let anchor = directory::present(number, held.node());
    let path = namespace.logical_path_of(anchor).ok().flatten();
    let wanted = if held.is_writable() { Access::READ_OK | Access::WRITE_OK } else { Access::READ_OK };
    let may_open = |host: &[&[u8]], access| accessat(CWD, host.concat().as_slice(), access, AtFlags::EACCESS).is_ok();
    let files = namespace.files();
    files.array().members().iter().filter(|member| member.root().is_some()).any(|member| {
        let file = path.as_ref().is_some_and(|path| may_open(&[&member.path, path], wanted));
        !file || !may_open(&[&member.path, SUPERBLOCK], Access::READ_OK | Access::WRITE_OK)
    })
}
