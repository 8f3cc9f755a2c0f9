//! The user in whose name a call on the mount is made: each worker thread takes on the user, the
//! groups and the umask of the process that the request comes from, so that the members' file
//! systems judge as if that process had made the call itself.
//!
//! The kernel's own checks (`default_permissions`) come first. A user id other than 0 as
//! file-system user takes from the thread, for as long as that lasts, the capabilities that
//! override permissions of files (credentials(7), setfsuid(2)). A caller may have others than its
//! user usually has: a program with file capabilities, root in a container. The thread takes on
//! those. The calling thread waits for the answer and cannot end before, so its number is its own.
//! All of this is the thread's alone: the system calls are made without libc, which would change
//! every thread of the process.
#![allow(unsafe_code)] // Only so can one thread have rights and a umask of its own.

use crate::wire::Header;
use linux_raw_sys::general::{__NR_setfsgid, __NR_setfsuid};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use sys::rustix::fs::{Gid, Mode};
use sys::rustix::process::{Pid, umask};
use sys::rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities, set_thread_groups, unshare_unsafe,
};

/// The user and the group that no rights are given to.
const NOBODY: u32 = 65534;
const ROOT: Identity = (0, 0, OF_FILES);

/// As whom this thread looks at files: user, group and capabilities.
type Identity = (u32, u32, CapabilitySet);

/// The capabilities that a thread loses and gets with its file-system user (CAP_FS_SET of
/// linux/capability.h), of those that it needs: root has all of them and other users none, unless
/// the caller says otherwise.
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD);

thread_local! {
    /// A process that serves its own user only never changes it.
    static NOW: Cell<Identity> = const { Cell::new((u32::MAX, u32::MAX, CapabilitySet::empty())) };
    static HAS_GROUPS: Cell<bool> = const { Cell::new(false) };
}

/// What serving a mount takes (capabilities(7)): to act on files as any user and as root, to set
/// what only root may set of them, to look into other processes of the array, and to unmount. It is
/// not among them to pass over quotas and to take blocks that a file system reserves
/// (CAP_SYS_RESOURCE): to the members' file systems the writer is this process, whoever the caller
/// is.
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::SETFCAP);

/// What serving a mount takes that is for its own user alone: to look into the programs of the user
/// namespace. The members are reached with the rights of the user.
const NEEDED_FOR_OWN_USER: CapabilitySet = CapabilitySet::SYS_PTRACE;

/// Tells whether this process can serve its own user only, with the rights that it has itself. It
/// is so in a user namespace in which nobody can change groups, as in one that a user without
/// rights has made (user_namespaces(7)).
#[must_use]
pub fn serves_own_user_only() -> bool {
    static IS_SO: OnceLock<bool> = OnceLock::new();
    *IS_SO.get_or_init(|| fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny"))
}

/// Tells whether a request comes from somebody whom this process cannot serve. The kernel lets
/// nobody else than its user through to such a process; what it asks of its own accord has no user.
pub(crate) fn is_alien(header: &Header) -> bool {
    serves_own_user_only() && header.process != 0 && header.user != sys::rustix::process::geteuid().as_raw()
}

/// Gives up for good what serving a mount does not take, in this thread and those that it starts
/// from now on.
///
/// # Errors
/// Those of capset(2).
pub fn drop_rights() -> sys::Result<()> {
    drop_all_but(if serves_own_user_only() { NEEDED_FOR_OWN_USER } else { NEEDED })
}

/// Does what [`drop_rights`] does, but keeps the right to unmount what this process has mounted in
/// a user namespace of its user, for a thread that does not serve.
///
/// # Errors
/// Those of capset(2).
pub fn drop_rights_but_unmounting() -> sys::Result<()> {
    drop_all_but(if serves_own_user_only() { NEEDED_FOR_OWN_USER.union(CapabilitySet::SYS_ADMIN) } else { NEEDED })
}

fn drop_all_but(needed: CapabilitySet) -> sys::Result<()> {
    // Nor would a program that this thread executes get them back.
    sys::rustix::thread::set_no_new_privs(true)?;
    let now = capabilities(None)?;
    let kept = now.permitted.intersection(needed);
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: now.effective.intersection(kept), permitted: kept, inheritable: none })
}

/// Makes this thread's umask its own, and takes away none of a mode's bits until [`mask`] says
/// otherwise.
///
/// # Errors
/// Those of unshare(2).
pub(crate) fn begin_thread() -> sys::Result<()> {
    // SAFETY: only the file-system attributes (umask, working directory, root) are no longer shared
    // with the other threads; nothing here relies on their being shared.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    mask(0);
    if serves_own_user_only() {
        return Ok(());
    }
    set(ROOT);
    // The groups of who started the mount are nobody's who uses it.
    set_thread_groups(&[])
}

/// From now on this thread makes names with this umask.
pub(crate) fn mask(bits: u32) {
    umask(Mode::from_raw_mode(bits & 0o777));
}

/// A request needs so much of what its caller may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// What is open is used: the caller's user decides, say, whether a write takes set-user-ID
    /// away.
    User,
    /// Supplementary groups and capabilities count too.
    Groups,
}

/// This thread goes on as the process that made a request.
pub(crate) fn become_caller(header: &Header, needs: Needs) {
    if serves_own_user_only() {
        return;
    }
    let rights = if needs == Needs::Groups { rights_of(header) } else { usual_rights(header) };
    let is_plain = header.user != 0;
    if is_plain && needs == Needs::Groups {
        let groups = groups_of(header.process);
        // Without the right to set groups the caller has only its own: less than it may, never
        // more.
        let _ = set_thread_groups(&groups);
        HAS_GROUPS.set(!groups.is_empty());
    } else if HAS_GROUPS.get() {
        let _ = set_thread_groups(&[]);
        HAS_GROUPS.set(false);
    }
    // An id that this user namespace does not know is nobody's. setfsuid(2) would leave the former
    // caller's.
    let known = |id: u32| if id == u32::MAX { NOBODY } else { id };
    set((known(header.user), known(header.group), rights));
}

/// This thread goes on as root.
pub(crate) fn become_root() {
    set(ROOT);
}

/// Runs `act` as root, and goes on as before.
pub(crate) fn as_root<T>(act: impl FnOnce() -> T) -> T {
    as_another(ROOT, act)
}

fn as_another<T>(another: Identity, act: impl FnOnce() -> T) -> T {
    let before = NOW.get();
    set(another);
    let result = act();
    set(before);
    result
}

/// Runs `act` for a caller who may not keep set-ID bits over it, if `is_to_lose` says so.
pub(crate) fn losing_set_id<T>(is_to_lose: bool, act: impl FnOnce() -> T) -> T {
    let (user, group, rights) = NOW.get();
    if !is_to_lose || !rights.contains(CapabilitySet::FSETID) {
        return act();
    }
    as_another((user, group, rights.difference(CapabilitySet::FSETID)), act)
}

/// This thread goes on with the right to keep set-ID bits, if the caller has it by a capability. The
/// caller need not wait for a write (Linux AIO), so it is given no other one.
pub(crate) fn take_set_id_right(header: &Header) {
    let (user, group, rights) = NOW.get();
    let found = as_root(|| rights_of(header)).intersection(CapabilitySet::FSETID);
    set((user, group, rights.union(found)));
}

fn set((user, group, rights): Identity) {
    if serves_own_user_only() {
        return;
    }
    let now = NOW.get();
    if now.1 != group {
        // SAFETY: the call changes only as which group this thread looks at files.
        unsafe { sys::raw::syscall(__NR_setfsgid as usize, [group as usize, 0, 0, 0, 0, 0]) };
    }
    if now.0 != user {
        // SAFETY: the call changes only as which user this thread looks at files.
        unsafe { sys::raw::syscall(__NR_setfsuid as usize, [user as usize, 0, 0, 0, 0, 0]) };
    }
    // A change between root and another user gives all of them, or takes them.
    let left = match (now.0, user) {
        (0, 0) => now.2,
        (_, 0) => OF_FILES,
        (0, _) => CapabilitySet::empty(),
        _ => now.2,
    };
    if left != rights
        && let Ok(has) = capabilities(None)
    {
        let effective = has.effective.difference(OF_FILES).union(has.permitted.intersection(rights));
        let _ = set_capabilities(None, CapabilitySets { effective, ..has });
    }
    NOW.set((user, group, rights));
}

/// The capabilities of files that a user usually has.
const fn usual_rights(header: &Header) -> CapabilitySet {
    if header.user == 0 { OF_FILES } else { CapabilitySet::empty() }
}

/// The capabilities of files that a caller has. Those that hold in another user namespace only are
/// the kernel's to judge, which has done so before: they count as those that the user usually has.
/// To be called as root.
fn rights_of(header: &Header) -> CapabilitySet {
    let usual = usual_rights(header);
    match capabilities_of(header.process).map(|found| found.intersection(OF_FILES)) {
        Some(found) if found != usual && is_in_own_user_namespace(header.process) => found,
        _ => usual,
    }
}

/// Whether a caller may see the names of extended attributes that are root's (`trusted.`).
pub(crate) fn sees_trusted_names(header: &Header) -> bool {
    match capabilities_of(header.process) {
        Some(found) if found.contains(CapabilitySet::SYS_ADMIN) => as_root(|| is_in_own_user_namespace(header.process)),
        Some(_) => false,
        None => header.user == 0,
    }
}

/// The effective capabilities of a thread; None if it belongs to another PID namespace (0).
fn capabilities_of(process: u32) -> Option<CapabilitySet> {
    let process = Pid::from_raw(process.try_into().ok()?)?;
    capabilities(Some(process)).ok().map(|found| found.effective)
}

/// Whether a thread's capabilities hold in the user namespace of this process. To be called as root.
fn is_in_own_user_namespace(process: u32) -> bool {
    static OWN: OnceLock<Option<[u64; 2]>> = OnceLock::new();
    let of = |who: &str| fs::metadata(format!("/proc/{who}/ns/user")).ok().map(|found| [found.dev(), found.ino()]);
    let own = OWN.get_or_init(|| of("self"));
    own.is_some() && *own == of(&process.to_string())
}

/// The supplementary groups of a process; none if it has ended, or belongs to another PID namespace
/// (0).
fn groups_of(process: u32) -> Vec<Gid> {
    if process == 0 {
        return Vec::new();
    }
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).map(Gid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process_are_read() {
        let own = sys::rustix::process::getgroups().unwrap();
        assert_eq!(groups_of(std::process::id()), own);
        assert!(groups_of(0).is_empty());
    }

    #[test]
    fn capabilities_of_a_process_are_read() {
        let own = capabilities(None).unwrap().effective;
        assert_eq!(capabilities_of(std::process::id()), Some(own));
        assert_eq!(capabilities_of(0), None);
        assert!(is_in_own_user_namespace(std::process::id()));
        assert!(!is_in_own_user_namespace(u32::MAX));
    }
}
