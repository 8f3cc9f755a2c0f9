//! Namespaces of one's own (namespaces(7)), for a mount that only one program and those that it
//! starts see.
//!
//! Three processes take part. One is to become the program: it leaves the mount namespace it is in
//! ([`leave`]). A process that it starts mounts the array there, and then steps out of that
//! namespace itself ([`step_out`]): it would keep the namespace, and with it the mount, for ever.
//! So only the program, those that it has started and what they have open keep the mount. When
//! the last of them has ended the kernel ends the mount, and the process that serves it ends too.
//!
//! The serving process opens the members only when it has stepped out. A program may leave its
//! namespace for another one with a copy of the mount (unshare(2)), and the first one ends then, while
//! the mount goes on. The kernel tells no whole path of what was opened in a namespace that has
//! ended, so everything would seem to lie outside the members.
#![allow(unsafe_code)] // Namespaces are changed by unshare(2), which rustix calls unsafe; sigaction(2).

use linux_raw_sys::general::{__NR_rt_sigaction, SIGCHLD};
use std::fs;
use std::path::Path;
use sys::rustix::mount::{MountPropagationFlags, mount_change};
use sys::rustix::process::{getegid, geteuid};
use sys::rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities, unshare_unsafe,
};
use sys::{OsError, Result};

/// What a process that serves a mount needs in a user namespace of its user's own: to mount, and to
/// fetch descriptors of the programs there.
const HANDED_ON: [CapabilitySet; 2] = [CapabilitySet::SYS_ADMIN, CapabilitySet::SYS_PTRACE];

/// What was refused to a process that wanted namespaces of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A mount namespace, to root.
    Mounts(OsError),
    /// A user namespace.
    User(OsError),
    /// To say in it which user is which.
    Ids(OsError),
    /// To keep what is mounted in it from others.
    Propagation(OsError),
    /// To hand rights in it to the process that serves the mount.
    Rights(OsError),
}

/// Puts this process, which has one thread, into a mount namespace of its own. Mounts that are made
/// or taken away outside later are seen inside, not the other way round. Who is not root, or is root
/// without the right to mount, gets a user namespace too, in which the own user and group are what
/// they were and no other is known; then the answer is true, and programs that this process
/// executes may mount there until [`keep_rights`] says otherwise.
///
/// # Errors
/// What the kernel refuses. The process may be in other namespaces then, and should end.
pub fn leave() -> core::result::Result<bool, Refused> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        match new(UnshareFlags::NEWNS) {
            Ok(()) => return keep_apart().map(|()| false).map_err(Refused::Propagation),
            Err(OsError::PERM) => {}
            Err(error) => return Err(Refused::Mounts(error)),
        }
    }
    new(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(Refused::User)?;
    let write = |name: &str, text: &str| {
        let told = |error: std::io::Error| Refused::Ids(error.raw_os_error().map_or(OsError::IO, OsError::from_raw_os_error));
        fs::write(format!("/proc/self/{name}"), text).map_err(told)
    };
    // Only who can never change its groups may say which group is which (user_namespaces(7)).
    write("setgroups", "deny")?;
    let (user, group) = (user.as_raw(), group.as_raw());
    write("uid_map", &format!("{user} {user} 1"))?;
    write("gid_map", &format!("{group} {group} 1"))?;
    keep_apart().map_err(Refused::Propagation)?;
    hand_on_rights().map_err(Refused::Rights)?;
    Ok(true)
}

/// Has this process, which is to serve mounts in a namespace and has one thread, leave that namespace
/// and its own copies of those mounts behind, before it opens members.
///
/// # Errors
/// Those of unshare(2), mount(2) and umount2(2).
pub fn step_out<'a>(directories: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    new(UnshareFlags::NEWNS)?;
    keep_apart()?;
    directories.into_iter().try_for_each(|directory| crate::unmount(directory, true))
}

/// Programs that this process executes from now on have no rights by the user namespace.
///
/// # Errors
/// Those of prctl(2) and capset(2).
pub fn keep_rights() -> Result<()> {
    clear_ambient_capability_set()?;
    let now = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..now })
}

/// Runs `act`, which starts a process and waits for it. Where this process was started with SIGCHLD
/// ignored nobody could be waited for; so meanwhile the signal is as it is by default. Afterwards it
/// is as it was, and if it is blocked, none is left pending.
pub fn with_children_known<T>(act: impl FnOnce() -> T) -> T {
    // As the kernel has it: handler, flags, restorer, signals. All zero is the default.
    let (new, mut before) = ([0_usize; 4], [0_usize; 4]);
    let set = |new: *const usize, old: *mut usize| {
        let arguments = [SIGCHLD as usize, new as usize, old as usize, size_of::<u64>(), 0, 0];
        // SAFETY: the kernel reads and writes four words at most, or nothing at a null pointer. What
        // it is given is the default, or what it has told.
        sys::raw::check(unsafe { sys::raw::syscall(__NR_rt_sigaction as usize, arguments) })
    };
    let is_set = set(new.as_ptr(), before.as_mut_ptr()).is_ok();
    let result = act();
    if is_set {
        // The kernel drops what is pending of a signal that is ignored, also by default.
        let _ = set(before.as_ptr(), core::ptr::null_mut());
    }
    result
}

fn hand_on_rights() -> Result<()> {
    let now = capabilities(None)?;
    let inheritable = HANDED_ON.into_iter().fold(now.inheritable, CapabilitySet::union);
    set_capabilities(None, CapabilitySets { inheritable, ..now })?;
    HANDED_ON.into_iter().try_for_each(|capability| configure_capability_in_ambient_set(capability, true))
}

fn new(flags: UnshareFlags) -> Result<()> {
    // SAFETY: the process has one thread, whose descriptors stay as they are.
    unsafe { unshare_unsafe(flags) }
}

/// What is mounted here nobody else sees.
fn keep_apart() -> Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}
