//! New processes and new programs: fork, vfork, clone, unshare, exec, exit.
//!
//! - A plain copy of the process (fork) is made here with every lock of the library held, so that
//!   the copy finds the tables whole.
//! - Every other child is made without locks, most by the program's own instruction. One with
//!   memory of its own begins anew ([`crate::renewal`]).
//! - A child that shares this memory but not the descriptors which the library's tables describe is
//!   a guest ([`crate::guest`]); so is a thread that leaves the others' descriptors.
//! - The library keeps the offsets of open files in its own memory. Before there is a task that
//!   uses the same open files with another memory or other tables, all offsets are given to the
//!   kernel ([`share_all`]); from then on the kernel's are used.
//! - Before exec the environment is completed, so that the next program is served too
//!   ([`crate::exec`]).
//!
//! Between `process::begin_sharing` and `end_sharing` descriptions that are opened have their
//! offsets in the kernel from their beginning. What ends it is: the return of a call that is made
//! here; the next entry of the thread that has lent its block (`process::lend_block`); [`exec`], if
//! the kernel refuses. Where guests may run beside the owner (`process::expect_guests`) nothing
//! ends it.

use super::node::Node;
use super::on_path::At;
use super::paths::AT_FDCWD;
use super::{OPEN, judge};
use crate::call::{Call, Verdict};
use crate::descriptors::{Meaning, Use};
use crate::mappings::{process as mappings, quiet};
use crate::uapi::{CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE};
use crate::{array, exec, guest, process, program, stack, stored, sud};
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{
    __NR_close_range, __NR_lseek, __NR_unshare, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, CLONE_FILES, CLONE_FS, CLONE_NEWNS,
    CLONE_NEWUSER, CLONE_SETTLS, CLONE_SIGHAND, CLONE_THREAD, CLONE_VFORK, CLONE_VM,
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

/// How a child is to be made.
#[derive(Clone, Copy)]
pub(crate) struct Child {
    /// The flags of clone(2).
    flags: u64,
    /// The stack that the program gave for the child; 0 if the child goes on at its maker's stack
    /// pointer.
    stack: u64,
    /// The thread pointer of a child with `CLONE_SETTLS`.
    pub(crate) tls: u64,
}

impl Child {
    /// Whether `flag` of clone(2) is set.
    pub(crate) const fn shares(self, flag: u32) -> bool {
        self.flags & flag as u64 != 0
    }

    /// Whether the child is like one of fork(2): its memory is its own, it goes on at its maker's
    /// stack pointer, and its maker does not wait for it.
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
    // The order on x86-64; other processors have others.
    let [flags, stack, _, _, tls, _] = call.args;
    make(call, Child { flags: flags as u64, stack: stack as u64, tls: tls as u64 })
}

/// `clone3`.
pub(crate) fn clone3(call: &mut Call) -> Verdict {
    match program::read::<CloneArguments>(call.args[0]) {
        Ok(arguments) if call.args[1] >= size_of::<CloneArguments>() => {
            make(call, Child { flags: arguments.flags, stack: arguments.stack, tls: arguments.tls })
        }
        // The structure cannot be read, or is an older, shorter one: the kernel makes the call or
        // says what is wrong.
        _ => Verdict::Pass,
    }
}

/// Decides how a child is made. Before, it notes what is going to be shared.
fn make(call: &Call, child: Child) -> Verdict {
    if child.shares(CLONE_NEWNS)
        && let Err(error) = super::apart::keep()
    {
        return Verdict::error(error);
    }
    let is_process_in_memory = child.shares(CLONE_VM) && !child.shares(CLONE_THREAD);
    if is_process_in_memory {
        process::note_actions(!child.shares(CLONE_SIGHAND));
    }
    if process::may_be_guest() && process::is_guest() {
        return guest::make(call, child);
    }
    // The library remembers one current directory per set of tables. It must not trust it any more
    // if the child uses these tables and has a directory of its own, or if the child has other
    // tables and shares this directory.
    if child.shares(CLONE_FS) != (child.shares(CLONE_VM) && child.shares(CLONE_FILES)) {
        super::directory::expect_moves();
    }
    if is_process_in_memory {
        quiet::memory_is_shared();
        // A child with a thread pointer of its own does not use this thread's block.
        if child.shares(CLONE_SETTLS) {
            guest::mark_without_stack(child.tls);
        } else {
            process::note_descriptors(child.shares(CLONE_FILES));
        }
    }
    match (child.shares(CLONE_VM), child.shares(CLONE_FILES)) {
        (true, true) => Verdict::Pass,
        (true, false) => sharing_memory_only(call, child),
        (false, true) => sharing_descriptors_only(call, child),
        (false, false) => sharing_neither(call, child),
    }
}

/// A child that shares this memory and has descriptors of its own: a guest.
fn sharing_memory_only(call: &Call, child: Child) -> Verdict {
    process::begin_sharing();
    share_all();
    let uses_this_block = !child.shares(CLONE_SETTLS);
    if child.shares(CLONE_THREAD) {
        // A thread has the pid of its process, so the pid does not show that it is a guest. A mark
        // in its thread block does.
        process::expect_guests();
        if !uses_this_block {
            guest::mark_apart(child.tls);
        }
    } else if child.shares(CLONE_VFORK) && uses_this_block {
        // The calling thread makes its next call when the child is gone.
        process::lend_block(call.instruction());
    } else {
        process::expect_guests();
    }
    Verdict::Pass
}

/// A child that shares these descriptors and has its own memory. The tables of neither side learn
/// what the other opens or closes.
fn sharing_descriptors_only(call: &Call, child: Child) -> Verdict {
    process::begin_sharing();
    share_all();
    process::share_tables();
    // The child finds in its copy of the block that it must begin anew. The calling thread takes
    // the block back at its next entry, also if no child could be made.
    process::lend_block(call.instruction());
    if child.is_forked() { Verdict::Done(call.kernel()) } else { Verdict::Pass }
}

/// A child with memory and descriptors of its own.
fn sharing_neither(call: &Call, child: Child) -> Verdict {
    process::begin_sharing();
    share_all();
    if !child.is_forked() {
        // No locks are taken for two kinds of children. One with another stack cannot return
        // through here and release them. One that its maker waits for would wait for locks that its
        // maker holds. The tables in its memory may be half changed by other threads, so it begins
        // anew.
        process::lend_block(call.instruction());
        return Verdict::Pass;
    }
    let alone = stack::is_alone();
    let result = OPEN.around_fork(|| {
        mappings::around_fork(|| array::around_fork(|| process::with_locks(|| file::parked::around_fork(|| call.kernel()))))
    });
    if result == 0 {
        be_child(alone);
    } else {
        process::end_sharing();
    }
    Verdict::Done(result)
}

/// Runs first in a child of fork. The parent's other threads do not exist in it, so what they used
/// and held is given up. `was_alone`: there were none.
fn be_child(was_alone: bool) {
    process::notice_fork();
    // Whoever else had the parent's descriptors does not have the child's. But the tables may lag
    // behind what they have become.
    if process::shares_tables() {
        process::own_tables();
        OPEN.begin_anew();
    }
    OPEN.drop_uses_of_others();
    super::directory::be_child();
    super::events::be_child();
    if !was_alone && OPEN.ever_used() {
        OPEN.forget_closed();
        // Another thread of the parent may have opened a descriptor that it had not entered in the
        // table yet. Such a descriptor is adopted.
        crate::inherit::descriptors(|descriptor| {
            if OPEN.lookup(descriptor).is_none() && !sys::high_fd::is_raised(descriptor) {
                array::adopt(descriptor);
            }
        });
    }
    sud::arm();
}

/// `unshare`. A thread that leaves the others' descriptors goes on as a guest. If it leaves their
/// current directory, the library does not trust the one that it remembers any more.
pub(crate) fn unshare(call: &mut Call) -> Verdict {
    let flags = call.args[0] as u32;
    if flags & CLONE_NEWNS != 0
        && let Err(error) = super::apart::keep()
    {
        return Verdict::error(error);
    }
    // The rights of this process change: what it has kept open for reuse is closed. If the call
    // fails, it is opened again when it is needed.
    if flags & CLONE_NEWUSER != 0 {
        super::rights::end_keeping();
    }
    let result = if flags & CLONE_FILES != 0 { leaving_descriptors(|| call.kernel()) } else { call.kernel() };
    if result == 0 && flags & (CLONE_FS | CLONE_NEWNS | CLONE_NEWUSER) != 0 {
        super::directory::expect_moves();
    }
    Verdict::Done(result)
}

/// Gives the calling thread a descriptor table of its own, unless it has one already (unshare(2)
/// with CLONE_FILES).
pub(crate) fn leave_descriptors() -> Result<(), sys::OsError> {
    // SAFETY: the call copies the thread's descriptor table and touches no memory.
    let leave = || unsafe { sys::raw::syscall(__NR_unshare as usize, [CLONE_FILES as usize, 0, 0, 0, 0, 0]) };
    sys::raw::check(leaving_descriptors(leave)).map(|_| ())
}

/// Before an exec that marks descriptors close-on-exec for its program alone: gives the caller a
/// descriptor table of its own if another process may use the caller's table, since the marks in a
/// common table would stay with that process. Returns whether a table was asked for; then a failed
/// exec must call [`note_parted`].
pub(crate) fn part_from_processes() -> bool {
    if process::has_memory() && !process::shares_tables() {
        return false;
    }
    // Filters of system calls in containers deny unshare(2) more often than close_range(2). The
    // range that is given here has no descriptor in it.
    let range = [u32::MAX as usize, u32::MAX as usize, (CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: both calls copy the caller's descriptor table and touch no memory.
    unsafe {
        sys::raw::check(sys::raw::syscall(__NR_unshare as usize, [CLONE_FILES as usize, 0, 0, 0, 0, 0]))
            .or_else(|_| sys::raw::check(sys::raw::syscall(__NR_close_range as usize, range)))
    }
    .is_ok()
}

/// Notes that the caller goes on with a descriptor table of its own, since the exec that it parted
/// for ([`part_from_processes`]) has failed.
pub(crate) fn note_parted() {
    if process::has_memory() {
        // A process' only thread takes its table along, and looks at each descriptor anew as
        // before.
        if !is_only_task() {
            process::be_apart();
        }
    } else {
        process::note_descriptors(false);
        process::expect_guests();
    }
    super::directory::expect_moves();
}

/// Runs a system call that gives the calling thread a descriptor table of its own, and returns the
/// call's result.
fn leaving_descriptors(leave: impl FnOnce() -> isize) -> isize {
    // A guest has a table of its own already, or leaves one that the tables of this memory do not
    // describe. A task that nobody shares its table with keeps it.
    if process::may_be_guest() && process::is_guest() || process::has_memory() && is_only_task() {
        return leave();
    }
    process::begin_sharing();
    share_all();
    let result = leave();
    if result == 0 {
        // A child that shares its parent's memory also uses its parent's thread block, and must not
        // mark that.
        if process::has_memory() {
            process::be_apart()
        } else {
            process::expect_guests()
        }
        // The thread still shares the current directory with the others. When it changes that, a
        // deputy does it, and the tables do not hear.
        super::directory::expect_moves();
    } else {
        process::end_sharing();
    }
    result
}

/// Whether the caller is its process' only thread, and no child that shares the memory may run.
/// Another process may share the descriptors even so; then the offsets were given to the kernel
/// when it was made ([`sharing_descriptors_only`]).
pub(crate) fn is_only_task() -> bool {
    // The link count of a directory is 2 and one for each directory in it; this one has a directory
    // per thread.
    !process::may_be_guest() && sys::rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

/// Gives every offset to the kernel and marks the descriptions as shared with another process.
/// `process::begin_sharing` comes first, so that none is closed or opened unseen meanwhile.
pub(crate) fn share_all() {
    if OPEN.count() == 0 {
        return;
    }
    OPEN.all().for_each(|(descriptor, description)| share(descriptor, &description));
}

/// Gives the offset of a description to the kernel: another process will have it too. The caller
/// sees to it that `descriptor` is not closed meanwhile, or has called `process::begin_sharing`,
/// which makes closing it wait.
pub(crate) fn share(descriptor: sys::RawFd, description: &Use<'static, Node>) {
    let means_it = loop {
        description.acquire_position();
        match OPEN.meaning(descriptor, description) {
            // Who closes a number waits for its position, so the position is released first.
            Meaning::Claimed => {
                description.position.release();
                OPEN.wait_for_claim(descriptor);
            }
            meaning => break meaning == Meaning::Same,
        }
    };
    // Who else has the descriptors may close this one unheard: the file stays open until no
    // descriptor means it.
    if process::shares_tables()
        && let Node::File(file) = description.node()
    {
        array::hold_for_good(file);
    }
    // The kernel's offset is set only if `descriptor` means this description: a number that was
    // closed may mean another file by now.
    if means_it && !description.shared.swap(true, Ordering::AcqRel) {
        // The offset of a directory, or of anything else that is no file, is always the kernel's.
        if let Node::File(file) = description.node() {
            // The other process finds a file without a name only if it is linked by then.
            file.keep_nameless();
            let offset = description.offset.load(Ordering::Relaxed) as usize;
            // SAFETY: moving the offset of an anchor (0 is SEEK_SET) touches no memory.
            unsafe { sys::raw::syscall(__NR_lseek as usize, [descriptor as usize, offset, 0, 0, 0, 0]) };
        }
    }
    description.position.release();
}

/// Tells the kernel the offset behind a descriptor of ours; it stays this process' affair.
pub(crate) fn tell_offset(descriptor: sys::RawFd) {
    // While another process has the descriptors, all offsets are the kernel's.
    let Some(claim) = OPEN.claim(descriptor) else { return };
    let Some(held) = claim.user() else { return };
    // A fetch (`super::fetch`) stops the moves of offsets that are not the kernel's; this is none.
    held.position.acquire();
    if !held.shared.load(Ordering::Acquire) && matches!(held.node(), Node::File(_)) {
        let offset = held.offset.load(Ordering::Relaxed) as usize;
        // SAFETY: moving the offset of an anchor (0 is SEEK_SET) touches no memory.
        unsafe { sys::raw::syscall(__NR_lseek as usize, [descriptor as usize, offset, 0, 0, 0, 0]) };
    }
    held.position.release();
    drop(claim);
    drop(held);
}

/// Which argument of execve and of execveat is the environment.
const ENVIRONMENT_OF_EXECVE: usize = 2;
const ENVIRONMENT_OF_EXECVEAT: usize = 3;

/// `execve`.
pub(crate) fn execve(call: &mut Call) -> Verdict {
    prepare_process();
    let [path, arguments, environment, ..] = call.args;
    let verdict = match stored::find(AT_FDCWD, path, arguments, environment) {
        Some(Ok(stored)) => exec::prepare_stored(call, &stored),
        Some(Err(error)) => Verdict::error(error),
        None => exec::prepare(call, exec::Target::Path(path), environment, ENVIRONMENT_OF_EXECVE),
    };
    end_sharing_if_refused(verdict)
}

/// `execveat`.
pub(crate) fn execveat(call: &mut Call) -> Verdict {
    let means_descriptor = call.args[4] as u32 & AT_EMPTY_PATH != 0;
    if !super::paths::text(call.args[1]).is_ok_and(|path| means_descriptor || !path.is_empty()) {
        // The path cannot be read, or is empty where it may not be. The kernel finds that before it
        // looks at the flags.
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
        None => {
            let target = exec::Target::At(directory as sys::RawFd, path, flags as u32);
            exec::prepare(call, target, environment, ENVIRONMENT_OF_EXECVEAT)
        }
    };
    end_sharing_if_refused(verdict)
}

/// Prepares the process for an exec: gives offsets to the kernel, follows mappings, and settles the
/// files that are open. Other threads go on until the kernel ends them.
fn prepare_process() {
    process::begin_sharing();
    share_all();
    mappings::before_exec();
    array::settle();
}

/// Ends the sharing that [`prepare_process`] has begun if the verdict is that there will be no
/// exec. If the kernel refuses the exec, [`exec`] ends the sharing.
fn end_sharing_if_refused(verdict: Verdict) -> Verdict {
    if matches!(verdict, Verdict::Done(_)) {
        process::end_sharing();
    }
    verdict
}

/// The program that an execveat means, if its file is on the array: by a path ([`stored::find`])
/// or, as fexecve(3) names it, by the descriptor of an open file. None for any other program.
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

/// `exit_group`: the library closes what the program has left open, because afterwards no code of
/// it runs in this process.
pub(crate) fn exit(_: &mut Call) -> Verdict {
    // The call ends the whole process, whichever thread makes it and whoever else has its
    // descriptors. But a child that shares its parent's memory leaves the parent's tables alone.
    if process::has_memory() {
        mappings::leave();
        array::leave();
        if process::shares_tables() && stack::is_alone() {
            // If this process is a copy that uses its original's descriptor table, the table goes
            // on with the original. Nobody would ever close the descriptors that the library has
            // opened in it for the copy. (Other threads, if there are any, may still use them.)
            sys::high_fd::own_beside_others().for_each(|descriptor| super::descriptor::close_unheld(descriptor as sys::RawFd));
        }
    }
    Verdict::Pass
}
