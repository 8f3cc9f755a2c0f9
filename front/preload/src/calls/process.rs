//! New processes and new programs.
//!
//! - A child with memory of its own (fork) is made here, with every lock held, so that it finds our tables whole.
//! - A child that shares memory (vfork, posix_spawn, a thread) is made by the program's own instruction.
//! - Before any child with its own descriptors, offsets go to the kernel: from then on they are shared.
//! - A child for which the tables do not hold is a guest ([`crate::guest`]); so is a thread that leaves the others' descriptors.
//! - Before exec the environment is completed, so that the next program is served too ([`crate::exec`]).

use super::node::Node;
use super::on_path::At;
use super::paths::AT_FDCWD;
use super::{OPEN, judge};
use crate::descriptors::Use;
use crate::dispatch::{Call, Verdict};
use crate::mappings::{process as mappings, quiet};
use crate::{array, exec, guest, process, program, stack, stored, sud};
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{
    __NR_lseek, __NR_unshare, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, CLONE_FILES, CLONE_FS, CLONE_NEWNS, CLONE_NEWUSER,
    CLONE_SETTLS, CLONE_SIGHAND, CLONE_THREAD, CLONE_VFORK, CLONE_VM,
};

/// `struct clone_args` up to the thread's TLS (clone(2)).
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_bytes: u64,
    tls: u64,
}

/// What a child is to share with its maker.
#[derive(Clone, Copy)]
pub(crate) struct Child {
    flags: u64,
    /// 0 if it goes on on a copy of its maker's stack.
    stack: u64,
    /// The thread pointer of a child with `CLONE_SETTLS`.
    pub(crate) tls: u64,
}

impl Child {
    pub(crate) const fn shares(self, flag: u32) -> bool {
        self.flags & flag as u64 != 0
    }

    /// Whether it goes on on a copy of its maker's stack, in memory of its own, beside its maker.
    pub(crate) const fn is_forked(self) -> bool {
        !self.shares(CLONE_VM) && !self.shares(CLONE_VFORK) && self.stack == 0
    }
}

/// `fork`.
pub(crate) fn fork(call: &mut Call) -> Verdict {
    make(call, Child { flags: 0, stack: 0, tls: 0 })
}

/// `vfork`.
pub(crate) fn vfork(call: &mut Call) -> Verdict {
    make(call, Child { flags: u64::from(CLONE_VM | CLONE_VFORK), stack: 0, tls: 0 })
}

/// `clone`.
pub(crate) fn clone(call: &mut Call) -> Verdict {
    let [flags, stack, _, _, tls, _] = call.args;
    make(call, Child { flags: flags as u64, stack: stack as u64, tls: tls as u64 })
}

/// `clone3`.
pub(crate) fn clone3(call: &mut Call) -> Verdict {
    match program::read::<CloneArguments>(call.args[0]) {
        Ok(arguments) if call.args[1] >= size_of::<CloneArguments>() => {
            make(call, Child { flags: arguments.flags, stack: arguments.stack, tls: arguments.tls })
        }
        // The kernel says what is wrong.
        _ => Verdict::Pass,
    }
}

fn make(call: &Call, child: Child) -> Verdict {
    if child.shares(CLONE_VM) && !child.shares(CLONE_THREAD) {
        process::note_actions(!child.shares(CLONE_SIGHAND));
    }
    if process::may_be_guest() && process::is_guest() {
        return guest::make(call, child);
    }
    // A directory that others may change unheard: of a child with our tables, its own; of any other, ours.
    if child.shares(CLONE_FS) != (child.shares(CLONE_VM) && child.shares(CLONE_FILES)) {
        super::directory::expect_moves();
    }
    if child.shares(CLONE_VM) && !child.shares(CLONE_THREAD) {
        quiet::memory_is_shared();
        if !child.shares(CLONE_SETTLS) {
            process::note_descriptors(child.shares(CLONE_FILES));
        }
    }
    match (child.shares(CLONE_VM), child.shares(CLONE_FILES)) {
        (true, true) => Verdict::Pass,
        (true, false) => with_memory_alone(call, child),
        (false, true) => with_descriptors_alone(call, child),
        (false, false) => with_nothing(call, child),
    }
}

/// A child with our memory and descriptors of its own: a guest.
fn with_memory_alone(call: &Call, child: Child) -> Verdict {
    process::begin_sharing();
    share_all();
    let in_our_block = !child.shares(CLONE_SETTLS);
    if child.shares(CLONE_THREAD) {
        // It has this process' pid: its own thread block tells.
        process::expect_guests();
        if !in_our_block {
            guest::mark_apart(child.tls);
        }
    } else if child.shares(CLONE_VFORK) && in_our_block {
        // The sharing ends when this thread is seen again.
        process::lend(call.instruction());
    } else {
        process::expect_guests();
    }
    Verdict::Pass
}

/// A child with our descriptors and memory of its own: what one side does to descriptors the other's tables never hear.
fn with_descriptors_alone(call: &Call, child: Child) -> Verdict {
    process::begin_sharing();
    share_all();
    process::share_tables();
    process::lend(call.instruction());
    if child.is_forked() { Verdict::Done(call.kernel()) } else { Verdict::Pass }
}

fn with_nothing(call: &Call, child: Child) -> Verdict {
    process::begin_sharing();
    share_all();
    if !child.is_forked() {
        // A child on a stack of its own cannot return through here, and one that is waited for would find our locks held: it gets the
        // memory as it is, perhaps with tables half changed by other threads, and begins anew.
        process::lend(call.instruction());
        return Verdict::Pass;
    }
    let alone = stack::is_alone();
    let result = mappings::around_fork(|| array::around_fork(|| process::with_locks(|| call.kernel())));
    if result == 0 {
        be_child(alone);
    } else {
        process::end_sharing();
    }
    Verdict::Done(result)
}

/// In a child of fork: what the parent's other threads were doing is nobody's here.
fn be_child(was_alone: bool) {
    process::notice_fork();
    if process::shares_tables() {
        process::own_tables();
        OPEN.begin_anew();
    }
    OPEN.drop_uses_of_others();
    super::events::be_child();
    if !was_alone && OPEN.ever_used() {
        // One of them may have had a number from the kernel that was not in the table yet, or not any more.
        crate::inherit::descriptors(|descriptor| {
            if OPEN.lookup(descriptor).is_none() && !sys::high_fd::is_raised(descriptor) {
                array::adopt(descriptor);
            }
        });
    }
    sud::arm();
}

/// `unshare`: a thread that leaves the others' descriptors or directory goes on as a guest.
pub(crate) fn unshare(call: &mut Call) -> Verdict {
    let flags = call.args[0] as u32;
    if flags & CLONE_NEWUSER != 0 {
        super::rights::end_keeping();
    }
    let result = if flags & CLONE_FILES != 0 { leaving_descriptors(|| call.kernel()) } else { call.kernel() };
    if result == 0 && flags & (CLONE_FS | CLONE_NEWNS | CLONE_NEWUSER) != 0 {
        super::directory::expect_moves();
    }
    Verdict::Done(result)
}

/// Gives the calling thread descriptors apart from those of the others, if there are others.
pub(crate) fn leave_descriptors() -> Result<(), sys::OsError> {
    // SAFETY: the thread's own copy of what it has; no memory is concerned.
    let leave = || unsafe { sys::raw::syscall(__NR_unshare as usize, [CLONE_FILES as usize, 0, 0, 0, 0, 0]) };
    sys::raw::check(leaving_descriptors(leave)).map(|_| ())
}

/// Runs a system call that gives the calling thread descriptors apart from the others'.
fn leaving_descriptors(leave: impl FnOnce() -> isize) -> isize {
    // A child that shares this memory and not its descriptors has its own already, and says nothing about the memory's owner.
    if process::may_be_guest() && process::is_guest() || process::has_memory() && is_only_task() {
        return leave();
    }
    process::begin_sharing();
    share_all();
    let result = leave();
    if result == 0 {
        // The thread block of a child that shares the memory is its parent's.
        if process::has_memory() {
            process::be_apart()
        } else {
            process::expect_guests()
        }
        // The others' directory, too: its deputies change it.
        super::directory::expect_moves();
    } else {
        process::end_sharing();
    }
    result
}

/// Whether nobody shares descriptors with the caller: it is its process' only thread, and no child shares the memory.
pub(crate) fn is_only_task() -> bool {
    !process::may_be_guest() && sys::rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

/// Gives every offset to the kernel and marks the descriptions as shared with another process.
pub(crate) fn share_all() {
    if OPEN.count() == 0 {
        return;
    }
    OPEN.all().for_each(|(descriptor, user)| share(descriptor, &user));
}

/// Gives the offset of a description to the kernel: another process will have it too. While this happens `descriptor` is not closed, if
/// [`process::is_sharing`] or the caller sees to it.
pub(crate) fn share(descriptor: sys::RawFd, user: &Use<'static, Node>) {
    user.acquire_position();
    if process::shares_tables()
        && let Node::File(file) = user.node()
    {
        array::hold_for_good(file);
    }
    // Whatever else is true, the kernel's offset is moved only by a number that means this description: a closed one may mean another file by now.
    if OPEN.still_means(descriptor, user) && !user.shared.swap(true, Ordering::AcqRel) {
        // What is no file has had the kernel's offset all along.
        if let Node::File(file) = user.node() {
            file.keep_nameless();
            let offset = user.offset.load(Ordering::Relaxed) as usize;
            // SAFETY: moving the offset of our own anchor concerns no memory.
            unsafe { sys::raw::syscall(__NR_lseek as usize, [descriptor as usize, offset, 0, 0, 0, 0]) };
        }
    }
    user.position.release();
}

/// `execve`.
pub(crate) fn execve(call: &mut Call) -> Verdict {
    prepare_process();
    let [path, arguments, environment, ..] = call.args;
    let verdict = match stored::find(AT_FDCWD, path, arguments, environment) {
        Some(Ok(stored)) => exec::prepare_stored(call, &stored),
        Some(Err(error)) => Verdict::error(error),
        None => exec::prepare(call, exec::Target::Path(path), environment, 2),
    };
    when_refused(verdict)
}

/// `execveat`.
pub(crate) fn execveat(call: &mut Call) -> Verdict {
    let means_descriptor = call.args[4] as u32 & AT_EMPTY_PATH != 0;
    if !super::paths::text(call.args[1]).is_ok_and(|path| means_descriptor || !path.is_empty()) {
        // The kernel says what is wrong with the path before it looks at the flags.
        return Verdict::Pass;
    }
    if let Some(refusal) = judge::odd(call, &[At::directory(0, 1)], call.args[4], AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) {
        return refusal;
    }
    prepare_process();
    let [directory, path, arguments, environment, flags, _] = call.args;
    let verdict = match stored_at(directory as sys::RawFd, path, arguments, environment, flags as u32) {
        Some(Ok(stored)) => exec::prepare_stored(call, &stored),
        Some(Err(error)) => Verdict::error(error),
        None => exec::prepare(call, exec::Target::At(directory as sys::RawFd, path, flags as u32), environment, 3),
    };
    when_refused(verdict)
}

/// What the next program gets of this one: offsets, and redundancy of what was stored. Other threads go on until the kernel ends them.
fn prepare_process() {
    process::begin_sharing();
    share_all();
    mappings::before_exec();
    array::settle();
}

/// There will be no exec if its preparation failed; if the kernel refuses it, [`exec`] says so.
fn when_refused(verdict: Verdict) -> Verdict {
    if matches!(verdict, Verdict::Done(_)) {
        process::end_sharing();
    }
    verdict
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
        let link = super::magic::Name::Own(directory).follow()?;
        let name = super::directory::path_of(directory)?;
        return Some(stored::prepare_open(&link, name, arguments, environment));
    }
    if flags & AT_SYMLINK_NOFOLLOW != 0 && stored::is_symlink(directory, path) {
        return Some(Err(sys::OsError::LOOP));
    }
    stored::find(directory, path, arguments, environment)
}

/// `exit_group`: what the program leaves open is closed in order, while that can still be done.
pub(crate) fn exit(_: &mut Call) -> Verdict {
    // A thread apart, and a process that shares its descriptors, have what the tables hold for good.
    if process::has_memory() {
        mappings::leave();
        array::leave();
        if process::shares_tables() && stack::is_alone() {
            // The table goes on with the process that this one is a copy of, and ours would stay in it for good.
            sys::high_fd::own_beside_others().for_each(|descriptor| super::descriptor::close_unheld(descriptor as sys::RawFd));
        }
    }
    Verdict::Pass
}
