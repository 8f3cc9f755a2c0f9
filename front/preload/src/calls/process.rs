//! New processes and new programs.
//!
//! - A child with memory of its own (fork) is made here, with every lock held, so that it finds our tables whole.
//! - A child that shares memory (vfork, posix_spawn, a thread) is made by the program's own instruction.
//! - Before any child with its own descriptors, offsets go to the kernel: from then on they are shared.
//! - Before exec the environment is completed, so that the next program is served too ([`crate::exec`]).

use super::OPEN;
use super::node::Node;
use super::paths::AT_FDCWD;
use crate::descriptors::Use;
use crate::dispatch::{Call, Verdict};
use crate::mappings::{process as mappings, quiet};
use crate::{array, exec, process, program, stored, sud};
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{AT_EMPTY_PATH, CLONE_FILES, CLONE_SETTLS, CLONE_THREAD, CLONE_VFORK, CLONE_VM};

/// `struct clone_args` up to the stack.
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
}

/// `fork`.
pub(crate) fn fork(call: &mut Call) -> Verdict {
    make(call, 0, 0)
}

/// `vfork`.
pub(crate) fn vfork(call: &mut Call) -> Verdict {
    make(call, u64::from(CLONE_VM | CLONE_VFORK), 0)
}

/// `clone`.
pub(crate) fn clone(call: &mut Call) -> Verdict {
    make(call, call.args[0] as u64, call.args[1] as u64)
}

/// `clone3`.
pub(crate) fn clone3(call: &mut Call) -> Verdict {
    match program::read::<CloneArguments>(call.args[0]) {
        Ok(arguments) if call.args[1] >= size_of::<CloneArguments>() => make(call, arguments.flags, arguments.stack),
        // The kernel says what is wrong.
        _ => Verdict::Pass,
    }
}

fn make(call: &Call, flags: u64, stack: u64) -> Verdict {
    if flags & u64::from(CLONE_FILES) == 0 {
        share_all();
    }
    if flags & u64::from(CLONE_VM) == 0 && stack == 0 {
        let result = mappings::around_fork(|| array::around_fork(|| process::with_locks(|| call.kernel())));
        if result == 0 {
            sud::arm();
        }
        return Verdict::Done(result);
    }
    if flags & u64::from(CLONE_VM) != 0 && flags & u64::from(CLONE_THREAD) == 0 {
        quiet::memory_is_shared();
    }
    if flags & u64::from(CLONE_VM) != 0 && flags & u64::from(CLONE_THREAD | CLONE_FILES) == 0 {
        process::lend(flags & u64::from(CLONE_VFORK) != 0 && flags & u64::from(CLONE_SETTLS) == 0);
    }
    // A child on a stack of its own cannot return through here. One without our memory may then find a lock held by a thread it
    // lacks; only a direct clone() call with such flags makes one.
    Verdict::Pass
}

/// Gives every offset to the kernel and marks the descriptions as shared with another process.
fn share_all() {
    if OPEN.count() == 0 {
        return;
    }
    OPEN.all().for_each(|(descriptor, user)| share(descriptor, &user));
}

/// Gives the offset of a description to the kernel: another process will have it too.
pub(crate) fn share(descriptor: sys::RawFd, user: &Use<'_, Node>) {
    user.position.acquire();
    if !user.shared.swap(true, Ordering::AcqRel) {
        if let Node::File(file) = user.node() {
            file.keep_nameless();
        }
        let offset = user.offset.load(Ordering::Relaxed) as usize;
        // SAFETY: moving the offset of our own anchor concerns no memory.
        unsafe { sys::raw::syscall(linux_raw_sys::general::__NR_lseek as usize, [descriptor as usize, offset, 0, 0, 0, 0]) };
    }
    user.position.release();
}

/// `execve`.
pub(crate) fn execve(call: &mut Call) -> Verdict {
    share_all();
    mappings::before_exec();
    array::settle();
    let [path, arguments, environment, ..] = call.args;
    match stored::find(AT_FDCWD, path, arguments, environment) {
        Some(Ok(stored)) => return exec::prepare_stored(call, &stored),
        Some(Err(error)) => return Verdict::error(error),
        None => {}
    }
    exec::prepare(call, exec::Target::Path(path), environment, 2)
}

/// `execveat`.
pub(crate) fn execveat(call: &mut Call) -> Verdict {
    share_all();
    mappings::before_exec();
    array::settle();
    let [directory, path, arguments, environment, flags, _] = call.args;
    if let Some(found) = stored_at(directory as sys::RawFd, path, arguments, environment, flags as u32) {
        return match found {
            Ok(stored) => exec::prepare_stored(call, &stored),
            Err(error) => Verdict::error(error),
        };
    }
    exec::prepare(call, exec::Target::At(directory as sys::RawFd, path, flags as u32), environment, 3)
}

/// As [`stored::find`], also for fexecve(3): an open file of the array by its descriptor.
fn stored_at(
    directory: sys::RawFd,
    path: usize,
    arguments: usize,
    environment: usize,
    flags: u32,
) -> Option<Result<stored::Stored, sys::OsError>> {
    if flags & AT_EMPTY_PATH != 0 && super::paths::is_empty(path) {
        let name = super::directory::path_of(directory).filter(|_| super::is_ours(directory))?;
        return Some(stored::prepare(name.clone(), name, arguments, environment));
    }
    stored::find(directory, path, arguments, environment)
}

/// `exit_group`: what the program leaves open is closed in order, while that can still be done.
pub(crate) fn exit(_: &mut Call) -> Verdict {
    if process::owns_tables() {
        mappings::leave();
        array::leave();
    }
    Verdict::Pass
}
