//! The program's signals, kept out of the library.
//!
//! For every signal with a handler the kernel is given the library's signal entry ("our entry").
//! The program's own actions are kept in a table, and sigaction(2) reports them as the program set
//! them. Our entry calls [`arrived`] and then *becomes* the program's handler: it jumps to it, on
//! the kernel's own frame.
//!
//! - **Inside the library** an asynchronous signal is deferred: it is sent to this thread again and
//!   everything is blocked. When the thread leaves the library, the stub restores the mask, and the
//!   signal arrives at the label `unblocked`. There the interrupted registers are changed to those
//!   of the program just behind its call instruction. So no handler of the program runs while the
//!   library holds a lock, and a handler that unwinds the stack (glibc's SIGCANCEL) starts in the
//!   program's own code.
//! - **In the signal entry**, which another signal has just entered, a signal waits in the same way
//!   until the first one is settled: the mask is restored, and the signal that waited finds the
//!   thread at the first instruction of the other's handler, as the kernel does it.
//! - **In a trampoline or in the stub**, on the way into the library or out of it, the thread is
//!   single-stepped until it leaves them.
//! - **SIGSEGV and SIGBUS** always have our entry and are never really blocked: a fault inside a
//!   guard is that guard's result, and a fault in a mapping of an array file is resolved. All other
//!   faults are the program's. If somebody *sends* one of these signals (kill(2)), or SIGTRAP,
//!   while the thread is inside the library or believes to have the signal blocked, the thread
//!   keeps the signal in a word of its own, and sends it to itself when it leaves the library the
//!   next time. The handler then sees the process itself as the sender.
//!
//! Invariant: no code that runs in a signal handler takes a lock. The table consists of words that
//! are read and written atomically.

pub(crate) mod alternate;
pub(crate) mod mask;
mod order;

use crate::arch::bytes::{continuation, instruction};
use crate::arch::context::Context;
use crate::arch::entry;
use crate::call::{Call, RUN, Verdict};
use crate::lock::{Lock, RawLock};
use crate::mappings::fault::{self, Access};
use crate::mask::{MASK_BYTES, set_mask};
use crate::patch::trampoline;
use crate::process;
use crate::program;
use crate::stack;
use crate::sud;
use crate::thread::{inside, word};
use crate::uapi::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTORER, SA_SIGINFO, SIG_BLOCK, SIG_UNBLOCK, SIGBUS, SIGFPE, SIGILL, SIGKILL,
    SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP,
};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use linux_raw_sys::general::{
    __NR_gettid, __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_tgsigqueueinfo, SA_EXPOSE_TAGBITS, SA_NOCLDSTOP, SA_NOCLDWAIT,
    SA_RESTART,
};
use sys::raw::{check, syscall};
use sys::waiting;

/// The flags of sigaction(2) that the kernel knows on x86-64 (UAPI_SA_FLAGS).
const FLAGS_KNOWN: u64 = (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_EXPOSE_TAGBITS | SA_RESTART) as u64
    | SA_SIGINFO
    | SA_RESTORER
    | SA_ONSTACK
    | SA_NODEFER
    | SA_RESETHAND;
const SIGNAL_COUNT: usize = 64;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
/// The code of SIGBUS of an access that is not aligned, if the program wants to hear of such.
const BUS_ADRALN: i32 = 1;
/// The length of the code at `entry::signal_return`.
const RETURN_BYTES: usize = 9;

const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// The signals that are never in a mask that the kernel is given, since a fault whose signal is
/// blocked kills the process. SIGSYS is one of them while system calls raise it ([`sud`]).
#[inline]
pub(crate) fn never_blocked() -> u64 {
    bit(SIGSEGV) | bit(SIGBUS) | if sud::is_armed() { bit(SIGSYS) } else { 0 }
}

/// The bit of [`word::DEFERRED`] that says that every signal is blocked. No signal that is kept has
/// it: it would be SIGHUP.
const ALL_BLOCKED: usize = 1;

/// The mask of a thread that is inside the library while a deferred signal waits: everything that
/// may be blocked.
fn raised() -> u64 {
    !(never_blocked() | bit(SIGTRAP))
}

/// The kernel's struct sigaction.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    const fn is_handler(&self) -> bool {
        self.handler != SIG_DFL && self.handler != SIG_IGN
    }
}

/// What the program believes is the action of a signal.
struct Entry {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

impl Entry {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(SIG_DFL),
            flags: AtomicU64::new(0),
            restorer: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn load(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    fn store(&self, action: Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

static ENTRIES: [Entry; SIGNAL_COUNT + 1] = [const { Entry::new() }; SIGNAL_COUNT + 1];
/// The lock of changes of the table. Signal handlers do not take it.
static CHANGING: Lock<()> = Lock::new(());
/// Whether a thread has been single-stepped: since then SIGTRAP has our entry.
static TRAP_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The lock of this module. The caller holds it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    CHANGING.raw()
}

/// Installs our entry for the signals that always have it, and for those that have a handler
/// already. The library's constructor calls this.
pub(crate) fn start() {
    for signal in (1..=SIGNAL_COUNT).filter(|signal| *signal != SIGKILL && *signal != SIGSTOP) {
        let Ok(action) = kernel_action(signal, None) else { continue };
        ENTRIES[signal].store(action);
        if is_always_ours(signal) || action.is_handler() {
            // An error leaves the action as it was: the program's own.
            let _ = kernel_action(signal, Some(for_kernel(signal, action)));
        }
    }
}

/// Whether the kernel has our entry for the signal whatever the program's action is.
fn is_always_ours(signal: usize) -> bool {
    match signal {
        SIGSEGV | SIGBUS => true,
        SIGTRAP => TRAP_INSTALLED.load(Ordering::Relaxed),
        SIGSYS => sud::is_armed(),
        _ => false,
    }
}

/// The action that the kernel is given for the program's action.
fn for_kernel(signal: usize, action: Action) -> Action {
    let raised_by_calls = signal == SIGSYS && sud::is_armed();
    // No signal interrupts the handling of a SIGSYS that a system call of the program has raised.
    let alone = if raised_by_calls { raised() } else { 0 };
    if action.is_handler() {
        // The program's handlers of SIGSEGV and SIGBUS may make calls in whose guards the same
        // signal arrives.
        let nested = if is_always_ours(signal) { SA_NODEFER } else { 0 };
        let flags = (action.flags | SA_SIGINFO | nested) & !SA_RESETHAND;
        let mask = (action.mask | alone) & !never_blocked();
        // While system calls raise SIGSYS, the program's own return from the handler (rt_sigreturn)
        // would raise one too. Where SIGSYS is blocked, as while faults are resolved, that would
        // kill the process. So the return is made by code of the library.
        let returns_here = sud::is_armed() && is_always_ours(signal);
        let restorer = if returns_here { entry::signal_return() } else { action.restorer };
        return Action { handler: entry::signal_entry(), flags, restorer, mask };
    }
    if is_always_ours(signal) {
        let flags = SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_NODEFER;
        return Action { handler: entry::signal_entry(), flags, restorer: entry::signal_return(), mask: alone };
    }
    action
}

/// Reads the kernel's action of a signal and sets it if there is a new one.
fn kernel_action(signal: usize, new: Option<Action>) -> sys::Result<Action> {
    let mut old = Action::default();
    let new = new.as_ref().map_or(0, |action| core::ptr::from_ref(action) as usize);
    let arguments = [signal, new, &raw mut old as usize, MASK_BYTES, 0, 0];
    // SAFETY: both pointers are null or point to structs of the kernel's layout that outlive the
    // call. Our entry serves every signal, and for a handler of the program the program has asked.
    check(unsafe { syscall(__NR_rt_sigaction as usize, arguments) }).map(|_| old)
}

/// Serves `rt_sigaction`: the program's action is put into the table, and the kernel is given the
/// action made of it.
pub(crate) fn serve_action(call: &mut Call) -> Verdict {
    let [signal, new, old, bytes, ..] = call.args;
    if bytes != MASK_BYTES || !(1..=SIGNAL_COUNT).contains(&signal) || signal == SIGKILL || signal == SIGSTOP {
        return Verdict::Pass;
    }
    let new = match new {
        0 => None,
        address => match program::read::<Action>(address) {
            Ok(action) => Some(action),
            Err(error) => return Verdict::error(error),
        },
    };
    // A child that shares our memory has actions of its own: they go to the kernel and not into our
    // table.
    let changed = match new {
        Some(action) if process::owns_actions() => change(signal, action),
        // In such a child system calls still raise SIGSYS, so our entry stays.
        Some(_) if signal == SIGSYS && sud::is_armed() => Ok(ENTRIES[signal].load()),
        new => kernel_action(signal, new).map(|kernel| as_program_sees(signal, kernel)),
    };
    match changed {
        Ok(previous) if old != 0 => Verdict::from_result(program::write(old, &previous).map(|()| 0)),
        Ok(_) => Verdict::Done(0),
        Err(error) => Verdict::error(error),
    }
}

fn as_program_sees(signal: usize, kernel: Action) -> Action {
    if kernel.handler == entry::signal_entry() { ENTRIES[signal].load() } else { kernel }
}

fn change(signal: usize, mut action: Action) -> sys::Result<Action> {
    // What the kernel keeps of an action (SA_UNSUPPORTED is for programs that ask which flags it
    // knows).
    action.mask &= !(bit(SIGKILL) | bit(SIGSTOP));
    action.flags &= FLAGS_KNOWN;
    let _changing = CHANGING.lock();
    let previous = ENTRIES[signal].load();
    ENTRIES[signal].store(action);
    if action.handler == SIG_IGN {
        order::flush(signal);
    }
    match kernel_action(signal, Some(for_kernel(signal, action))) {
        Ok(_) => Ok(previous),
        Err(error) => {
            ENTRIES[signal].store(previous);
            Err(error)
        }
    }
}

/// The last thing before a thread leaves the library: if a signal was deferred, this has the stub
/// restore the thread's mask. The thread counts as outside already.
#[inline]
pub(crate) fn leave(call: &mut Call) {
    if word(word::DEFERRED).load(Ordering::Relaxed) != 0 {
        leave_deferred(call);
    }
}

#[cold]
fn leave_deferred(call: &mut Call) {
    // A thread that is being stepped must not be while SIGTRAP is blocked. The step that finds it
    // inside is the last one.
    inside().fetch_add(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let mask = end_deferral();
    compiler_fence(Ordering::SeqCst);
    inside().fetch_sub(1, Ordering::Relaxed);
    (call.unblock, call.mask) = (1, mask);
}

/// Ends the deferral of signals: every signal is blocked from here on, also those that never are,
/// and the signals that were kept are sent to this thread. Returns the program's mask; when it is
/// restored all of them arrive.
fn end_deferral() -> u64 {
    // Nothing between here and the program's code relies on a fault's signal.
    let before = set_mask(!0);
    let waiting = word(word::DEFERRED).fetch_and(!ALL_BLOCKED, Ordering::Relaxed);
    send_kept();
    if waiting & ALL_BLOCKED == 0 { before } else { word(word::DEFERRED_MASK).load(Ordering::Relaxed) as u64 }
}

/// Sends this thread the signals that were kept and that the program does not believe to have
/// blocked. Everything is really blocked.
fn send_kept() {
    let deferred = word(word::DEFERRED);
    let kept = deferred.load(Ordering::Relaxed);
    let ready = kept & !ALL_BLOCKED & !(mask::pretended() as usize);
    deferred.store(kept & !ready, Ordering::Relaxed);
    (1..=SIGNAL_COUNT).filter(|&signal| ready & bit(signal) as usize != 0).for_each(raise);
}

/// Prepares the signals for an exec. An exec makes signals with a handler default. So signals that
/// have our entry and that the program ignores are really ignored from here on, and signals that
/// the program believes to have blocked are really blocked. From here to the exec no guard works.
pub(crate) fn prepare_for_exec() {
    let ignored = |signal: &usize| is_always_ours(*signal) && ENTRIES[*signal].load().handler == SIG_IGN;
    for signal in [SIGSEGV, SIGBUS, SIGTRAP, SIGSYS].into_iter().filter(ignored) {
        let _ = kernel_action(signal, Some(ENTRIES[signal].load()));
    }
    block_really(SIG_BLOCK);
}

/// Has the kernel block or unblock (`how`) the signals that the program believes to have blocked.
fn block_really(how: usize) {
    let pretended = word(word::PRETENDED_MASK).load(Ordering::Relaxed) as u64 & never_blocked();
    if pretended != 0 {
        // SAFETY: the mask outlives the call; the thread's own mask concerns no memory.
        unsafe { syscall(__NR_rt_sigprocmask as usize, [how, &raw const pretended as usize, 0, MASK_BYTES, 0, 0]) };
    }
}

/// Notes which of the signals that are never really blocked were blocked when the program was
/// started.
pub(crate) fn inherit_mask(mask: u64) {
    word(word::PRETENDED_MASK).store((mask & never_blocked()) as usize, Ordering::Relaxed);
}

/// Installs our entry for SIGSEGV and SIGBUS in a deputy, so that its guards work. The deputy has
/// the signal actions of its guest, which may be any.
pub(crate) fn catch_faults() {
    for signal in [SIGSEGV, SIGBUS] {
        let _ = kernel_action(signal, Some(for_kernel(signal, Action::default())));
    }
}

/// Takes back what [`prepare_for_exec`] did, after the exec has failed.
pub(crate) fn take_back() {
    block_really(SIG_UNBLOCK);
    for signal in [SIGSEGV, SIGBUS, SIGTRAP, SIGSYS].into_iter().filter(|signal| is_always_ours(*signal)) {
        let _ = kernel_action(signal, Some(for_kernel(signal, ENTRIES[signal].load())));
    }
}

/// Runs `work` while every signal is blocked in the calling thread that may be blocked while a
/// thread is single-stepped.
#[cold]
pub(crate) fn undisturbed(work: impl FnOnce()) {
    // The signals of faults are in neither mask.
    let before = set_mask(raised());
    work();
    set_mask(before);
}

/// The words of siginfo that this module reads.
#[repr(C)]
pub(crate) struct Info {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    address: usize,
}

/// A signal arrived. Returns the handler to become, 0 to return from the signal, or
/// [`entry::WAITS`].
///
/// # Safety
/// Called by the signal entry with the kernel's arguments.
pub(crate) unsafe extern "C" fn arrived(signal: usize, info: *mut Info, context: *mut Context) -> usize {
    // SAFETY: the kernel gave both; they are this handler's alone.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let raised_by_kernel = info.code > 0;
    if raised_by_kernel && (signal == SIGSEGV || signal == SIGBUS) {
        let access = Access { address: info.address, forbidden: signal == SIGSEGV, refused: context.refused() };
        // SAFETY: this is the running handler's context, and the kernel raised the fault.
        if unsafe { persist::fault::recover(core::ptr::from_mut(context).cast(), info.address) } {
            fault::note(access);
            return 0;
        }
        // What is not aligned is not there for want of a page.
        let is_access = signal == SIGSEGV || info.code != BUS_ADRALN;
        if is_access && inside().load(Ordering::Relaxed) == 0 && fault::resolve(access) {
            return 0;
        }
    }
    if signal == SIGSYS && info.code == sud::SYS_USER_DISPATCH && sud::is_armed() {
        // SAFETY: as above.
        unsafe { sud::caught(context) };
        // The system call may be the return of a signal that waits.
        return entry::WAITS;
    }
    if signal == SIGTRAP && raised_by_kernel && word(word::STEPPING).load(Ordering::Relaxed) != 0 {
        step(context);
        return 0;
    }
    let synchronous = raised_by_kernel && matches!(signal, SIGSEGV | SIGBUS | SIGILL | SIGFPE | SIGTRAP | SIGSYS);
    if !synchronous {
        if is_kept(signal) {
            if ENTRIES[signal].handler.load(Ordering::Acquire) == SIG_IGN {
                return 0;
            }
            if mask::pretended() & bit(signal) != 0 {
                keep(signal);
                return 0;
            }
        }
        match settle(signal, info, context) {
            Settled::Now => {}
            Settled::Later => return 0,
            Settled::Waits => return entry::WAITS,
        }
    }
    if !synchronous {
        order::tell_first(signal, info);
    }
    deliver(signal, info, synchronous, context)
}

/// What becomes of a signal where a thread was interrupted.
enum Settled {
    /// The program's handler may run.
    Now,
    /// The signal will arrive again, when the thread leaves the library.
    Later,
    /// The signal will arrive again, when the signal entry that it has interrupted lets it in.
    Waits,
}

/// Changes the interrupted context so that the program's handler may run now, where that can be
/// done.
fn settle(signal: usize, info: &mut Info, context: &mut Context) -> Settled {
    sud::leave_detour(context);
    // The library also reads the clock, by code of the kernel's that programs call as well (vdso(7)).
    process::interrupted(context.address(), is_own(context.address()) || stack::is_private(context.stack_pointer()));
    let is_in_entry = (entry::signal_entry()..entry::signal_end()).contains(&context.address());
    // The entry has counted this signal.
    if word(word::ARRIVING).load(Ordering::Relaxed) > 1 || is_in_entry {
        return settle_in_entry(signal, info, context);
    }
    let address = context.address();
    if inside().load(Ordering::Relaxed) != 0 {
        defer(signal, info, context);
        if waiting::is_before_end(address) {
            // Nothing is waited for before the handler has run.
            context.end_call(waiting::end(), -(waiting::NOT_MADE.raw_os_error() as isize));
        }
        return Settled::Later;
    }
    // A system call that was moved into a trampoline is the program's: it may wait for long.
    if !is_own(address) || trampoline::is_at_syscall(address) {
        return Settled::Now;
    }
    if crate::exec::window::is_open() {
        // No handler runs before the exec: it would find claimed what it uses.
        if address == entry::run() {
            defer(signal, info, context);
            crate::exec::window::give_up();
            context.end_call(entry::ran(), -(sys::OsError::INTR.raw_os_error() as isize));
            return Settled::Later;
        }
    } else if address == entry::run() {
        give_up_waiting(context);
        return Settled::Now;
    } else if address == entry::unblocked() || address == entry::ran() {
        return if complete(context) { Settled::Now } else { Settled::Later };
    }
    // The thread was interrupted in our return from a handler, on top of which the program's handler
    // may run.
    let is_return = |from: usize, to: usize| (from..to).contains(&address);
    if is_return(entry::signal_return(), entry::signal_return() + RETURN_BYTES)
        || is_return(entry::handler_end(), entry::handler_ended())
    {
        return Settled::Now;
    }
    defer(signal, info, context);
    if is_kept(signal) {
        // Its thread is not stepped: another one of them, which nothing blocks, could arrive in the
        // handler of a step.
        return Settled::Later;
    }
    install_trap();
    word(word::STEPPING).store(1, Ordering::Relaxed);
    context.set_stepping(true);
    Settled::Later
}

/// As [`settle`], where another signal is in the signal entry or in [`arrived`]. What is known of
/// deferred signals is that one's affair, and is neither used nor changed before it is settled.
#[cold]
fn settle_in_entry(signal: usize, info: &mut Info, context: &mut Context) -> Settled {
    let address = context.address();
    let is_settled =
        word(word::ARRIVING).load(Ordering::Relaxed) <= 1 && (entry::signal_settled()..entry::signal_end()).contains(&address);
    let is_outside = inside().load(Ordering::Relaxed) == 0
        && word(word::DEFERRED).load(Ordering::Relaxed) & ALL_BLOCKED == 0
        && !crate::exec::window::is_open();
    // A thread that has no handler to begin is on its way back to where the other signal has
    // interrupted it, with the mask of that place: this one arrives there.
    let begins = match address {
        // SAFETY: the thread was interrupted at that label of the entry.
        _ if address == entry::signal_unmasked() && is_outside => unsafe { context.begin_handler() },
        _ => address > entry::signal_unmasked() || context.result() != 0,
    };
    if is_settled && is_outside && begins {
        return Settled::Now;
    }
    if is_kept(signal) {
        keep(signal);
        return Settled::Later;
    }
    order::send_again(signal, info);
    let mask = context.mask();
    context.set_mask(raised());
    // Where the other signal is settled, the mask of the place that it has interrupted comes next.
    if is_settled {
        return Settled::Later;
    }
    if word(word::SIGNAL_WAITS).swap(1, Ordering::Relaxed) == 0 {
        word(word::WAITING_MASK).store(mask as usize, Ordering::Relaxed);
    }
    Settled::Waits
}

/// Whether `address` is in a trampoline or in the library.
fn is_own(address: usize) -> bool {
    crate::own::is_text(address) || trampoline::contains(address)
}

/// Moves a thread that was interrupted where the stub makes a call, or where the kernel is about to
/// make it once more, behind it, if the call is not to be made once more.
fn give_up_waiting(context: &mut Context) {
    // SAFETY: at this label the stack pointer is at the carried call.
    let (call, _) = unsafe { entry::frame(context.stack_pointer()) };
    if call.gives_up {
        context.end_call(entry::ran(), -(waiting::NOT_MADE.raw_os_error() as isize));
    }
}

/// Moves a thread that was interrupted at one of the known labels on the way out of a stub to the
/// end of that way.
fn complete(context: &mut Context) -> bool {
    let ran = context.address() == entry::ran();
    word(word::STEPPING).store(0, Ordering::Relaxed);
    let frame = context.stack_pointer();
    // SAFETY: at these labels the stack pointer is at the frame of the stub, with the call and its
    // verdict in it.
    let (call, verdict) = unsafe { entry::frame(frame) };
    if call.then.is_some() || !ran && verdict == RUN {
        // The stub has more to do for this call, so the thread is not moved, and the handler runs
        // on top of the stub.
        context.set_stepping(false);
        return true;
    }
    if ran {
        call.result = context.result();
    }
    // SAFETY: `resume` was pushed by a trampoline.
    let next = unsafe { if ran || verdict != crate::call::PASS { continuation(call.resume) } else { instruction(call.resume) } };
    // SAFETY: at the labels the stub has restored the vector registers, and rbp is the stub's
    // frame.
    unsafe { context.leave(call, next) };
    true
}

/// Handles the trap after one step of a thread that is stepped out of a trampoline or stub.
fn step(context: &mut Context) {
    let address = context.address();
    let entered = inside().load(Ordering::Relaxed) != 0;
    if !entered && is_own(address) && address != entry::run() && !trampoline::is_at_syscall(address) {
        return;
    }
    context.set_stepping(false);
    // If the thread has entered the library, the stub restores the mask later. If the thread has
    // left the trampoline or stub, the mask is restored here, and the deferred signal arrives at
    // this instruction.
    if !entered {
        context.set_mask(end_deferral());
    }
    word(word::STEPPING).store(0, Ordering::Relaxed);
}

/// Whether the mask of a thread inside the library cannot hold the signal, so that it must be kept
/// and not blocked.
fn is_kept(signal: usize) -> bool {
    raised() & bit(signal) == 0
}

/// Keeps a signal that cannot be blocked until the thread leaves the library.
fn keep(signal: usize) {
    word(word::DEFERRED).fetch_or(bit(signal) as usize, Ordering::Relaxed);
}

/// Defers a signal: sends it to this thread again, and blocks everything until the thread leaves
/// the library. A signal that cannot be blocked is kept instead.
fn defer(signal: usize, info: &mut Info, context: &mut Context) {
    if is_kept(signal) {
        keep(signal);
        return;
    }
    order::send_again(signal, info);
    raise_mask(context);
}

/// Blocks every signal that may be blocked until the thread leaves the library.
fn raise_mask(context: &mut Context) {
    if word(word::DEFERRED).fetch_or(ALL_BLOCKED, Ordering::Relaxed) & ALL_BLOCKED == 0 {
        word(word::DEFERRED_MASK).store(context.mask() as usize, Ordering::Relaxed);
    }
    context.set_mask(raised());
}

/// Sends the calling thread a signal, as the kernel does when a call exceeds a limit (SIGXFSZ) or
/// writes into a pipe that nobody reads (SIGPIPE).
pub(crate) fn raise(signal: usize) {
    // The signal is from this process with code SI_USER; the rest of the 128 bytes of siginfo stays
    // zero.
    let mut info = [0u64; 16];
    (info[0], info[2]) = (signal as u64, u64::from(process::getpid()));
    // SAFETY: the buffer begins with the fields of Info, is as long and aligned as a siginfo, and
    // is only read.
    queue(signal, unsafe { &*info.as_ptr().cast() });
}

/// Sends the calling thread a signal that has arrived. If the user has no room for queued signals
/// left (RLIMIT_SIGPENDING), the signal comes as one that this process has sent itself: the kernel
/// notes such a signal without a place in the queue. The handler must not run in the library.
fn send_plainly(signal: usize, info: &Info) {
    if !queue(signal, info) {
        raise(signal);
    }
}

fn queue(signal: usize, info: &Info) -> bool {
    // SAFETY: the info is the kernel's own, 128 bytes long, and only read.
    unsafe {
        let thread = syscall(__NR_gettid as usize, [0; 6]) as usize;
        let arguments = [process::getpid() as usize, thread, signal, core::ptr::from_ref(info) as usize, 0, 0];
        syscall(__NR_rt_tgsigqueueinfo as usize, arguments) == 0
    }
}

/// Installs our entry for SIGTRAP in the calling process. That is done for each thread that is
/// about to be stepped: another thread may have said that it installs the entry and not have done
/// it yet, and a child that shares this memory may have done it for its own actions alone.
fn install_trap() {
    TRAP_INSTALLED.store(true, Ordering::SeqCst);
    let _ = kernel_action(SIGTRAP, Some(for_kernel(SIGTRAP, ENTRIES[SIGTRAP].load())));
}

/// Carries out the program's action for a signal. Returns the program's handler, or 0 if none is to
/// run.
fn deliver(signal: usize, info: &Info, synchronous: bool, context: &mut Context) -> usize {
    let entry = &ENTRIES[signal];
    let action = entry.load();
    let is_forced = synchronous && mask::pretended() & bit(signal) != 0;
    match if is_forced { SIG_DFL } else { action.handler } {
        SIG_IGN if !synchronous => 0,
        SIG_DFL | SIG_IGN => {
            // The kernel carries out the default action (mostly death), so that the process ends
            // with the right status. A fault recurs by itself; any other signal is sent again.
            let _ = kernel_action(signal, Some(Action::default()));
            if !(synchronous && matches!(signal, SIGSEGV | SIGBUS | SIGILL | SIGFPE)) {
                send_plainly(signal, info);
            }
            0
        }
        handler => {
            word(word::HANDLED).store(1, Ordering::Relaxed);
            alternate::notice(context);
            let itself = if action.flags & SA_NODEFER == 0 { bit(signal) } else { 0 };
            mask::handler_begins(context, action.mask | itself);
            if action.flags & SA_RESETHAND != 0 {
                // A child that shares our memory resets its own action, which the kernel has.
                if process::owns_actions() {
                    entry.store(Action::default());
                }
                if !is_always_ours(signal) {
                    let _ = kernel_action(signal, Some(Action::default()));
                }
            }
            handler
        }
    }
}
