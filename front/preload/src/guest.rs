//! Guests: tasks that run in this memory, or in a copy of it, while the tables say nothing about
//! their descriptors.
//!
//! The fault this exists for: a child of vfork or posix_spawn runs on its parent's memory with
//! descriptors, directory and signal actions of its own, while the parent's other threads go on. If
//! the child changed the tables, a file's last use or a lock, it would change them for the parent,
//! whose numbers mean something else. And a child may be killed at any instruction.
//!
//! So a guest takes no lock of the library, allocates from an arena of its own, and neither reads
//! nor changes what the process knows of open files. What the kernel can do on an anchor, the
//! kernel does: numbers, offsets and flags are the kernel's, since they were shared before the
//! guest was made. A deputy ([`crate::deputy`]) does everything else that concerns the array, which
//! is slow (about a millisecond) and right. Calls that concern the memory (munmap, mprotect) are
//! the process' affair and served as in any of its threads.
//!
//! [`crate::process`] tells which tasks are guests.

use crate::arch::entry::OURS;
use crate::arena::Arena;
use crate::call::{Call, Verdict};
use crate::calls::fetch;
use crate::calls::links;
use crate::calls::message;
use crate::calls::mount;
use crate::calls::names;
use crate::calls::paths::{self, AT_FDCWD, Where};
use crate::calls::process::Child;
use crate::calls::{directory, handler};
use crate::filter::watch_descriptor;
use crate::table::{Row, Way};
use crate::thread::word;
use crate::uapi::SEEK_CUR;
use crate::{array, deputy, exec, mappings, process, program, stored};
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use linux_raw_sys::general::{
    AT_EMPTY_PATH, CLONE_FILES, CLONE_SETTLS, CLONE_VM, F_DUPFD, F_DUPFD_CLOEXEC, F_GETLK, F_OFD_GETLK, F_OFD_SETLK,
    F_OFD_SETLKW, F_SETFL, F_SETLK, F_SETLKW, MAP_ANONYMOUS,
};
use sys::raw::syscall;
use sys::rustix::io::{FdFlags, fcntl_getfd};
use sys::thread::ThreadBlock;
use sys::{AsFd, FromRawFd, IntoRawFd, OsError, OwnedFd, RawFd, high_fd};

/// Serves a call of a guest.
#[cold]
pub(crate) fn serve(call: &mut Call, row: &Row) -> Verdict {
    match call.number as u32 {
        // The kernel would be given a descriptor of one member's file for good.
        nr::__NR_ioctl if let Some(refusal) = mount::given_by_ioctl(call, is_anchor) => refusal,
        nr::__NR_fsconfig if mount::given_to_file_system(call, is_anchor) => Verdict::error(OsError::OPNOTSUPP),
        nr::__NR_open_by_handle_at => open_handle(call),
        _ if row.way == Way::Refuse => Verdict::error(OsError::NOSYS),
        // The requests are the process', and kept under a lock.
        nr::__NR_io_setup | nr::__NR_io_submit | nr::__NR_io_getevents | nr::__NR_io_pgetevents | nr::__NR_io_destroy => {
            Verdict::error(OsError::NOSYS)
        }
        // The mask and the actions are each task's own; forks, and calls on memory, look after
        // guests themselves.
        nr::__NR_rt_sigaction | nr::__NR_rt_sigprocmask | nr::__NR_fork | nr::__NR_vfork | nr::__NR_clone | nr::__NR_clone3 => {
            handler(call.number)(call)
        }
        nr::__NR_exit_group => handler(call.number)(call),
        nr::__NR_rt_sigsuspend | nr::__NR_ppoll | nr::__NR_pselect6 | nr::__NR_epoll_pwait | nr::__NR_epoll_pwait2 => {
            handler(call.number)(call)
        }
        // The process remembers the results of these calls; a guest's results are not the process'.
        nr::__NR_umask | nr::__NR_setrlimit | nr::__NR_prlimit64 | nr::__NR_sync | nr::__NR_fchdir => Verdict::Pass,
        nr::__NR_setns => crate::calls::apart::keep().map_or_else(Verdict::error, |()| Verdict::Pass),
        nr::__NR_unshare if call.args[0] as u32 & nr::CLONE_NEWNS != 0 => {
            crate::calls::apart::keep().map_or_else(Verdict::error, |()| Verdict::Pass)
        }
        nr::__NR_unshare => Verdict::Pass,
        // A guest keeps nothing, and leaves its process' rights as they are.
        nr::__NR_setuid | nr::__NR_setgid | nr::__NR_setreuid | nr::__NR_setregid | nr::__NR_setgroups | nr::__NR_setresuid => {
            Verdict::Pass
        }
        nr::__NR_setresgid | nr::__NR_setfsuid | nr::__NR_setfsgid | nr::__NR_capset => Verdict::Pass,
        nr::__NR_pidfd_getfd if fetch::names_ours(call) => Verdict::error(OsError::BADF),
        nr::__NR_munmap | nr::__NR_mprotect | nr::__NR_pkey_mprotect | nr::__NR_mremap | nr::__NR_msync => on_memory(call),
        nr::__NR_madvise | nr::__NR_remap_file_pages | nr::__NR_shmat => on_memory(call),
        // Only of its own memory, which is its parent's, may a process give such advice. The kernel
        // would follow it on one member, or unnoticed.
        nr::__NR_process_madvise if mappings::advice::is_served(call.args[3] as u32) => Verdict::error(OsError::INVAL),
        nr::__NR_process_madvise => Verdict::Pass,
        nr::__NR_mmap => map(call),
        nr::__NR_close if high_fd::is_raised(call.descriptor(0)) => Verdict::error(OsError::BADF),
        nr::__NR_close => Verdict::Pass,
        nr::__NR_close_range => crate::calls::descriptor::close_range(call),
        nr::__NR_getdents | nr::__NR_getdents64 => handler(call.number)(call),
        nr::__NR_dup => duplicate(call),
        nr::__NR_dup2 | nr::__NR_dup3 if high_fd::is_raised(call.descriptor(1)) => Verdict::error(OsError::BADF),
        nr::__NR_dup2 | nr::__NR_dup3 => duplicate(call),
        nr::__NR_fcntl => control(call, row),
        nr::__NR_lseek if call.args[2] & 0xffff_ffff <= SEEK_CUR => Verdict::Pass,
        nr::__NR_execve | nr::__NR_execveat => execute(call),
        nr::__NR_getcwd => in_place(call),
        nr::__NR_readlink | nr::__NR_readlinkat => read_link(call, row),
        nr::__NR_recvmsg | nr::__NR_recvmmsg | nr::__NR_pidfd_getfd => receive(call),
        // The kernel locks the anchor.
        nr::__NR_flock => Verdict::Pass,
        // Sockets of the array are out of a guest's reach.
        nr::__NR_bind | nr::__NR_connect | nr::__NR_sendto | nr::__NR_sendmsg | nr::__NR_sendmmsg => Verdict::Pass,
        nr::__NR_getsockname | nr::__NR_getpeername | nr::__NR_accept | nr::__NR_accept4 | nr::__NR_recvfrom => Verdict::Pass,
        _ => by_deputy(call, row),
    }
}

/// Serves a call that is the deputy's if it concerns the array, and the kernel's otherwise.
fn by_deputy(call: &mut Call, row: &Row) -> Verdict {
    if row.by_first_descriptor() && !is_watched(call.descriptor(0)) {
        return Verdict::Pass;
    }
    let Some(_arena) = Arena::enter() else { return Verdict::error(OsError::NOMEM) };
    let Some(args) = concerning(call, row) else { return Verdict::Pass };
    let verdict = deputy::serve(call, args);
    if let Verdict::Done(descriptor @ 0..) = verdict
        && opens(call.number)
    {
        watch_descriptor(descriptor as RawFd);
    }
    verdict
}

/// Whether a call gives a descriptor of what it opens.
pub(crate) const fn opens(number: usize) -> bool {
    matches!(number as u32, nr::__NR_open | nr::__NR_openat | nr::__NR_openat2 | nr::__NR_creat | nr::__NR_open_by_handle_at)
}

/// The arguments of a call that concerns the array: with the array's paths where symlinks of the
/// host lead there. None if it does not.
fn concerning(call: &Call, row: &Row) -> Option<[usize; 6]> {
    let mut args = call.args;
    let mut concerns = false;
    for path in links::paths_of(call, row) {
        let base = links::base_of(call, row, path);
        match paths::locate(base, call.args[path]) {
            Where::Array(_) => concerns = true,
            // An empty path may mean the current directory (AT_EMPTY_PATH).
            Where::Host if base == AT_FDCWD && is_current(call.args[path]) => concerns = true,
            Where::Host => {
                if let Some(entered) = links::entered_by(call, row, base, path) {
                    concerns = true;
                    // What is open and has no name any more the deputy finds by the link.
                    if !links::may_be_nameless(&entered) {
                        args[path] = entered.leak().as_ptr() as usize;
                    }
                }
            }
        }
    }
    let mut descriptors = (0..args.len()).filter(|index| row.descriptors >> index & 1 == 1);
    (concerns || descriptors.any(|index| is_anchor(call.descriptor(index)))).then_some(args)
}

/// Whether a path is empty and the current directory, which it may mean, is the array's.
fn is_current(path: usize) -> bool {
    path != 0 && paths::is_empty(path) && directory::is_ours(AT_FDCWD)
}

/// Whether calls on a descriptor come here at all: it is an anchor, or was one.
fn is_watched(descriptor: RawFd) -> bool {
    OURS[descriptor as u16 as usize].load(Ordering::Acquire) != 0
}

/// Whether a descriptor of the calling guest is an anchor: the kernel says so.
pub(crate) fn is_anchor(descriptor: RawFd) -> bool {
    descriptor >= 0
        && is_watched(descriptor)
        && array::namespace().is_ok_and(|namespace| {
            let _arena = if crate::arena::is_active() { None } else { Arena::enter() };
            namespace.is_open_on(directory::borrow(descriptor))
        })
}

/// Serves open_by_handle_at. A handle may lead to a backing file, which a guest cannot have: only
/// its deputy would know the backing file for a file of the array.
fn open_handle(call: &Call) -> Verdict {
    // O_TRUNC is left out: the kernel would cut a backing file on one member alone.
    let mut args = call.args;
    args[2] &= !(nr::O_TRUNC as usize);
    // SAFETY: the program's own call, but for O_TRUNC.
    let result = unsafe { syscall(call.number, args) };
    if result < 0 {
        return Verdict::Done(result);
    }
    // SAFETY: the descriptor was made by this call.
    let found = unsafe { OwnedFd::from_raw_fd(result as RawFd) };
    let is_backing = {
        let _arena = if crate::arena::is_active() { None } else { Arena::enter() };
        namespace::is_backing(found.as_fd())
    };
    if is_backing {
        return Verdict::error(OsError::STALE);
    }
    if args != call.args {
        // The file is opened once more, to be cut, with the number that is free again.
        drop(found);
        return Verdict::Done(call.kernel());
    }
    Verdict::Done(found.into_raw_fd() as isize)
}

/// A call that gives a new number for argument 0.
fn duplicate(call: &Call) -> Verdict {
    let result = call.kernel();
    if result >= 0 && is_watched(call.descriptor(0)) {
        watch_descriptor(result as RawFd);
    }
    Verdict::Done(result)
}

fn control(call: &mut Call, row: &Row) -> Verdict {
    match call.args[1] as u32 {
        F_DUPFD | F_DUPFD_CLOEXEC => duplicate(call),
        F_SETFL | F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW => by_deputy(call, row),
        _ => Verdict::Pass,
    }
}

/// Descriptors that come from outside may be anchors.
fn receive(call: &mut Call) -> Verdict {
    call.then = Some(|call| {
        if call.result >= 0 {
            message::each_received(call, watch_descriptor);
        }
        call.result
    });
    Verdict::PassWith { number: call.number, args: call.args }
}

/// A call on the memory that the guest has in common with its process.
fn on_memory(call: &mut Call) -> Verdict {
    if mappings::any() || mappings::private::any() { handler(call.number)(call) } else { Verdict::Pass }
}

/// A file of the array cannot be mapped by a guest: its process would have the mapping, but not the
/// file. What else is wrong with the call the kernel says first.
fn map(call: &mut Call) -> Verdict {
    let anonymous = call.args[3] as u32 & MAP_ANONYMOUS != 0;
    if anonymous || !is_anchor(call.descriptor(4)) {
        return handler(call.number)(call);
    }
    Verdict::error(crate::calls::map::judged(call).err().unwrap_or(OsError::NODEV))
}

/// A call that needs nothing but memory, and the kernel's answers.
fn in_place(call: &mut Call) -> Verdict {
    match Arena::enter() {
        Some(_arena) => handler(call.number)(call),
        None => Verdict::error(OsError::NOMEM),
    }
}

/// readlink, readlinkat: the guest itself reads a link under /proc, and the deputy any other.
fn read_link(call: &mut Call, row: &Row) -> Verdict {
    let own = {
        let Some(_arena) = Arena::enter() else { return Verdict::error(OsError::NOMEM) };
        names::own_link(call)
    };
    own.unwrap_or_else(|| by_deputy(call, row))
}

/// execve, execveat: the next program is given the library, as by any task. A program that is
/// stored on the array is made executable by the deputy.
fn execute(call: &mut Call) -> Verdict {
    let Some(_arena) = Arena::enter() else { return Verdict::error(OsError::NOMEM) };
    let by_path = call.number == nr::__NR_execve as usize;
    let (base, path) = if by_path { (AT_FDCWD, call.args[0]) } else { (call.descriptor(0), call.args[1]) };
    let by_descriptor = !by_path && call.args[4] as u32 & AT_EMPTY_PATH != 0 && paths::is_empty(path);
    let is_stored = if by_descriptor {
        is_anchor(base)
    } else {
        matches!(paths::locate(base, path), Where::Array(_)) || stored::is_reached_from_host(base, path)
    };
    if is_stored {
        let verdict = deputy::serve(call, call.args);
        let Verdict::PassWith { number, args } = verdict else { return verdict };
        let verdict = match exec::withhold_as_guest(call, number, &args) {
            Ok(verdict) => verdict,
            Err(error) => return Verdict::error(error),
        };
        hold_inherited();
        return exec::ignoring_signals(call, verdict);
    }
    if by_path {
        exec::prepare(call, exec::Target::Path(path), call.args[2], 2)
    } else {
        exec::prepare(call, exec::Target::At(base, path, call.args[4] as u32), call.args[3], 3)
    }
}

/// Sees to it that files whose anchors the guest's next program inherits are there when it looks
/// for them, whatever the guest's process does with them meanwhile.
pub(crate) fn hold_inherited() {
    let Ok(namespace) = array::namespace() else { return };
    let pid = process::getpid();
    for descriptor in anchors() {
        let anchor = directory::borrow(descriptor);
        let inherited = fcntl_getfd(anchor).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
        // Without a free slot it is as if the process had closed its own before.
        if inherited {
            let _ = namespace.hold_for(pid, anchor);
        }
    }
}

/// The anchors among the calling task's descriptors, by what the kernel says.
pub(crate) fn anchors() -> Vec<RawFd> {
    let mut found = Vec::new();
    crate::inherit::descriptors(|descriptor| {
        if !high_fd::is_raised(descriptor) && is_anchor(descriptor) {
            found.push(descriptor);
        }
    });
    found
}

/// A guest makes a child, which is a guest as well.
pub(crate) fn make(call: &Call, child: Child) -> Verdict {
    directory::expect_moves();
    if child.shares(CLONE_VM) {
        process::expect_guests();
        // The new thread has the descriptors of this one, which are apart, or others again.
        if child.shares(CLONE_SETTLS) {
            mark_apart(child.tls);
        }
    } else {
        if child.shares(CLONE_FILES) {
            process::share_tables();
        }
        // The new process finds in its copy of this thread's block that it must begin anew.
        process::lend_block_of_guest(call.instruction());
    }
    Verdict::Pass
}

/// Says in the block of a thread that is about to be made that its descriptors are not those of the
/// tables. `tls` is its thread pointer.
pub(crate) fn mark_apart(tls: u64) {
    set_word(tls, word::APART, 1);
}

/// Says in the block of a process in this memory that is about to be made that it has no private
/// stack yet: a program may give the block of a child that has ended to the next one, and the first
/// child's stack goes when a thread finds that it has ended.
pub(crate) fn mark_without_stack(tls: u64) {
    set_word(tls, word::PRIVATE_STACK_TOP, 0);
    set_word(tls, word::STACK_AT_ONCE, 0);
    set_word(tls, word::STACK_LISTED, 0);
}

/// Stores a word of the block whose thread pointer is `tls`.
fn set_word(tls: u64, index: usize, value: usize) {
    let block = (tls as usize).wrapping_sub(sys::thread::distance());
    let place = block.wrapping_add(offset_of!(ThreadBlock, front) + index * size_of::<usize>());
    // With a bad pointer the kernel refuses to make the thread, or the program has lost it anyway.
    let _ = program::write(place, &value);
}
