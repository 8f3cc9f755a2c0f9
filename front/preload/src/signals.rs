//! The program's signals, kept out of the library.
//!
//! The kernel is given our entry for every handler of the program; the program's actions live in a table and are reported
//! back as it set them. Our entry asks [`arrived`] and then *becomes* the program's handler, on the kernel's own frame.
//!
//! - **Inside the library** an asynchronous signal is sent to this thread again and everything is blocked; on the way out the stub
//!   restores the mask, and the signal arrives at the label `unblocked`, where the interrupted registers are completed to those of the
//!   program just behind its instruction. So a handler never sees a lock held, and an unwinding one (glibc's SIGCANCEL) starts
//!   in the program's own code.
//! - **In the few instructions around that** (trampoline, stub) the thread is single-stepped to where it leaves them.
//! - **SIGSEGV and SIGBUS** are always ours, and never really blocked: a fault in a guarded copy is an error of that copy. Others are the program's.
//!
//! Invariant: nothing here takes a lock in a handler; the table is words that are read and written atomically.

use crate::arch::bytes::{continuation, instruction};
use crate::arch::context::Context;
use crate::arch::entry;
use crate::dispatch::{Call, RUN, Verdict};
use crate::lock::{Lock, RawLock};
use crate::mappings::fault::{self, Access};
use crate::patch::trampoline;
use crate::process;
use crate::program;
use crate::sud;
use crate::thread::{inside, word};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general::{__NR_gettid, __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_tgsigqueueinfo};
use sys::raw::{check, syscall};

const SIGILL: usize = 4;
const SIGTRAP: usize = 5;
const SIGBUS: usize = 7;
const SIGFPE: usize = 8;
const SIGKILL: usize = 9;
const SIGSEGV: usize = 11;
const SIGSTOP: usize = 19;
const SIGSYS: usize = 31;
const SIGNAL_COUNT: usize = 64;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SIG_BLOCK: usize = 0;
const SIG_UNBLOCK: usize = 1;
const SIG_SETMASK: usize = 2;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const MASK_BYTES: usize = 8;
/// The length of the code at `entry::signal_return`.
const RETURN_BYTES: usize = 9;

const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// Signals a mask given to the kernel never holds: a fault while blocked kills. SIGSYS is one where system calls raise it.
#[inline]
pub(crate) fn never_blocked() -> u64 {
    bit(SIGSEGV) | bit(SIGBUS) | if sud::is_armed() { bit(SIGSYS) } else { 0 }
}

/// The mask of a thread that is on its way out with a signal waiting.
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
/// Serialises changes of the table; handlers do not take it.
static CHANGING: Lock<()> = Lock::new(());
/// Whether our entry was installed for SIGTRAP, which happens when the first thread is stepped.
static TRAP_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The lock of this module, to hold it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    CHANGING.raw()
}

/// Installs our entry for the signals that are always ours, and for handlers that were there before. Called by the constructor.
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

fn is_always_ours(signal: usize) -> bool {
    match signal {
        SIGSEGV | SIGBUS => true,
        SIGTRAP => TRAP_INSTALLED.load(Ordering::Relaxed),
        SIGSYS => sud::is_armed(),
        _ => false,
    }
}

/// The action the kernel is given for what the program asked.
fn for_kernel(signal: usize, action: Action) -> Action {
    let raised_by_calls = signal == SIGSYS && sud::is_armed();
    // What is done about a system call of the program is not to be interrupted.
    let alone = if raised_by_calls { raised() } else { 0 };
    if action.is_handler() {
        // The handlers of SIGSEGV and SIGBUS may make calls whose guards fault.
        let nested = if is_always_ours(signal) { SA_NODEFER } else { 0 };
        let flags = (action.flags | SA_SIGINFO | nested) & !SA_RESETHAND;
        let mask = (action.mask | alone) & !never_blocked();
        // The program's way back from the handler is a system call too: it would raise the next one, and kill it where that is blocked, as
        // it is where faults are resolved.
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
    // SAFETY: both pointers are null or to structs of the kernel's layout that outlive the call. The handler, if it is ours,
    // serves every signal; if it is the program's, the program asked for it.
    check(unsafe { syscall(__NR_rt_sigaction as usize, arguments) }).map(|_| old)
}

/// `rt_sigaction`: the program's action into the table, ours to the kernel.
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
    // A child that shares our memory has actions of its own: they go to the kernel and not into our table.
    let changed = match new {
        Some(action) if process::owns_actions() => change(signal, action),
        // There its system calls still raise it.
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

fn change(signal: usize, action: Action) -> sys::Result<Action> {
    let _changing = CHANGING.lock();
    let previous = ENTRIES[signal].load();
    ENTRIES[signal].store(action);
    match kernel_action(signal, Some(for_kernel(signal, action))) {
        Ok(_) => Ok(previous),
        Err(error) => {
            ENTRIES[signal].store(previous);
            Err(error)
        }
    }
}

/// `rt_sigprocmask`: as asked, but for SIGSEGV and SIGBUS, which the program only believes to have blocked.
pub(crate) fn serve_mask(call: &mut Call) -> Verdict {
    let [how, set, old, bytes, ..] = call.args;
    let pretended = word(crate::thread::word::PRETENDED_MASK).load(Ordering::Relaxed) as u64;
    let asked = match (bytes, set) {
        (MASK_BYTES, 0) => 0,
        (MASK_BYTES, address) => match program::read::<u64>(address) {
            Ok(asked) => asked,
            Err(error) => return Verdict::error(error),
        },
        _ => return Verdict::Pass,
    };
    if (asked | pretended) & never_blocked() == 0 {
        return Verdict::Pass;
    }
    call.scratch[0] = asked & !never_blocked();
    let address = |index: usize, wanted: bool| if wanted { &raw const call.scratch[index] as usize } else { 0 };
    let args = [how, address(0, set != 0), address(1, old != 0), MASK_BYTES, 0, 0];
    call.scratch[2] = asked;
    call.then = Some(finish_mask);
    Verdict::PassWith { number: call.number, args }
}

fn finish_mask(call: &mut Call) -> isize {
    let [how, set, old, ..] = call.args;
    if call.result != 0 {
        return call.result;
    }
    let pretended = word(crate::thread::word::PRETENDED_MASK);
    let (before, asked) = (pretended.load(Ordering::Relaxed) as u64, call.scratch[2] & never_blocked());
    let after = match how {
        _ if set == 0 => before,
        SIG_BLOCK => before | asked,
        SIG_UNBLOCK => before & !asked,
        SIG_SETMASK => asked,
        _ => before,
    };
    pretended.store(after as usize, Ordering::Relaxed);
    if old == 0 {
        return 0;
    }
    match program::write(old, &(call.scratch[1] & !never_blocked() | before)) {
        Ok(()) => 0,
        Err(error) => -(error.raw_os_error() as isize),
    }
}

/// On the way out: if a signal was deferred, the stub is to give the thread its mask back.
#[inline]
pub(crate) fn leave(call: &mut Call) {
    let deferred = word(crate::thread::word::DEFERRED);
    if deferred.load(Ordering::Relaxed) != 0 {
        deferred.store(0, Ordering::Relaxed);
        call.unblock = 1;
        call.mask = word(crate::thread::word::DEFERRED_MASK).load(Ordering::Relaxed) as u64;
    }
}

/// Before an exec: signals that are always ours lose our entry there and become default; those the program ignores must stay
/// ignored, and those it believes to have blocked are blocked for the next program. From here to the exec there is no guard.
pub(crate) fn prepare_for_exec() {
    let ignored = |signal: &usize| is_always_ours(*signal) && ENTRIES[*signal].load().handler == SIG_IGN;
    for signal in [SIGSEGV, SIGBUS, SIGTRAP, SIGSYS].into_iter().filter(ignored) {
        let _ = kernel_action(signal, Some(ENTRIES[signal].load()));
    }
    block_really(SIG_BLOCK);
}

/// Has the kernel block, or unblock, what of SIGSEGV and SIGBUS the program believes to have blocked.
fn block_really(how: usize) {
    let pretended = word(crate::thread::word::PRETENDED_MASK).load(Ordering::Relaxed) as u64 & never_blocked();
    if pretended != 0 {
        // SAFETY: the mask outlives the call; the thread's own mask concerns no memory.
        unsafe { syscall(__NR_rt_sigprocmask as usize, [how, &raw const pretended as usize, 0, MASK_BYTES, 0, 0]) };
    }
}

/// Notes what the program was started with blocked, of which the kernel does not block SIGSEGV and SIGBUS from now on.
pub(crate) fn inherit_mask(mask: u64) {
    word(crate::thread::word::PRETENDED_MASK).store((mask & never_blocked()) as usize, Ordering::Relaxed);
}

/// In a deputy, whose guest may have set them as it liked: faults in guarded copies end these.
pub(crate) fn catch_faults() {
    for signal in [SIGSEGV, SIGBUS] {
        let _ = kernel_action(signal, Some(for_kernel(signal, Action::default())));
    }
}

/// The exec failed: they are ours again.
pub(crate) fn take_back() {
    block_really(SIG_UNBLOCK);
    for signal in [SIGSEGV, SIGBUS, SIGTRAP, SIGSYS].into_iter().filter(|signal| is_always_ours(*signal)) {
        let _ = kernel_action(signal, Some(for_kernel(signal, ENTRIES[signal].load())));
    }
}

/// The words of siginfo that are read.
#[repr(C)]
pub(crate) struct Info {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    address: usize,
}

/// A signal arrived. Returns the handler to become, or 0 to return from the signal.
///
/// # Safety
/// Called by the signal entry with the kernel's arguments.
pub(crate) unsafe extern "C" fn arrived(signal: usize, info: *mut Info, context: *mut Context) -> usize {
    // SAFETY: the kernel gave both; they are this handler's alone.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let raised_by_kernel = info.code > 0;
    if raised_by_kernel && (signal == SIGSEGV || signal == SIGBUS) {
        // SAFETY: this is the running handler's context, and the kernel raised the fault.
        if unsafe { persist::fault::recover(core::ptr::from_mut(context).cast(), info.address) } {
            return 0;
        }
        let access = Access { address: info.address, instruction: context.address(), forbidden: signal == SIGSEGV };
        if inside().load(Ordering::Relaxed) == 0 && fault::resolve(access) {
            return 0;
        }
    }
    if signal == SIGSYS && info.code == sud::SYS_USER_DISPATCH && sud::is_armed() {
        // SAFETY: as above.
        unsafe { sud::caught(context) };
        return 0;
    }
    if signal == SIGTRAP && raised_by_kernel && word(crate::thread::word::STEPPING).load(Ordering::Relaxed) != 0 {
        step(context);
        return 0;
    }
    let synchronous = raised_by_kernel && matches!(signal, SIGSEGV | SIGBUS | SIGILL | SIGFPE | SIGTRAP | SIGSYS);
    if !synchronous && !settle(signal, info, context) {
        return 0;
    }
    deliver(signal, info, synchronous)
}

/// Brings the interrupted thread to where the program's handler may see it. False if the signal will arrive again later.
fn settle(signal: usize, info: &Info, context: &mut Context) -> bool {
    sud::leave_detour(context);
    process::interrupted(context.address(), is_own(context.address()));
    if inside().load(Ordering::Relaxed) != 0 {
        return !defer(signal, info, context);
    }
    let address = context.address();
    if !is_own(address) {
        return true;
    }
    // Where the system call runs, or the return from a handler of ours: the program's handler may run on top of that.
    if address == entry::run() || (entry::signal_return()..entry::signal_return() + RETURN_BYTES).contains(&address) {
        return true;
    }
    if address == entry::unblocked() || address == entry::ran() {
        return complete(context);
    }
    if !defer(signal, info, context) {
        return true;
    }
    install_trap();
    word(crate::thread::word::STEPPING).store(1, Ordering::Relaxed);
    context.set_stepping(true);
    false
}

/// Whether `address` is in a trampoline or in the library.
fn is_own(address: usize) -> bool {
    crate::start::is_own_text(address) || trampoline::contains(address)
}

/// The thread was interrupted on the way out of a stub, at one of the known labels: puts it where that way ends.
fn complete(context: &mut Context) -> bool {
    let ran = context.address() == entry::ran();
    word(crate::thread::word::STEPPING).store(0, Ordering::Relaxed);
    let frame = context.stack_pointer();
    // SAFETY: at these labels the stack pointer is at the frame of the stub, with the call and its verdict in it.
    let (call, verdict) = unsafe { entry::frame(frame) };
    if call.then.is_some() || !ran && verdict == RUN {
        // More is to be done here: the handler runs now, on top of the stub.
        context.set_stepping(false);
        return true;
    }
    if ran {
        call.result = context.result();
    }
    // SAFETY: `resume` was pushed by a trampoline.
    let next =
        unsafe { if ran || verdict != crate::dispatch::PASS { continuation(call.resume) } else { instruction(call.resume) } };
    // SAFETY: the labels lie behind the restoring of the vectors, and rbp is the stub's frame there.
    unsafe { context.leave(call, next) };
    true
}

/// One step of a thread on its way out of trampoline or stub is done.
fn step(context: &mut Context) {
    let address = context.address();
    let entered = inside().load(Ordering::Relaxed) != 0;
    if !entered && is_own(address) && address != entry::run() {
        return;
    }
    context.set_stepping(false);
    word(crate::thread::word::STEPPING).store(0, Ordering::Relaxed);
    // Entered: the way out will restore the mask. Out: it is restored here, and the signal arrives at this instruction.
    if !entered {
        word(crate::thread::word::DEFERRED).store(0, Ordering::Relaxed);
        context.set_mask(word(crate::thread::word::DEFERRED_MASK).load(Ordering::Relaxed) as u64);
    }
}

/// Sends the signal to this thread again and blocks everything until it leaves. False if that cannot be done.
fn defer(signal: usize, info: &Info, context: &mut Context) -> bool {
    if !send_again(signal, info) {
        return false;
    }
    word(crate::thread::word::DEFERRED_MASK).store(context.mask() as usize, Ordering::Relaxed);
    word(crate::thread::word::DEFERRED).store(1, Ordering::Relaxed);
    context.set_mask(raised());
    true
}

/// Sends the calling thread a signal, as the kernel does of its own accord for what a call asked too much of.
pub(crate) fn raise(signal: usize) {
    // SI_USER, from this process; the rest of the 128 bytes stays zero.
    let mut info = [0u32; 32];
    (info[0], info[4]) = (signal as u32, process::getpid());
    // SAFETY: the layout begins as Info's, which is only read.
    send_again(signal, unsafe { &*info.as_ptr().cast() });
}

fn send_again(signal: usize, info: &Info) -> bool {
    // SAFETY: the info is the kernel's own, 128 bytes long, and only read.
    unsafe {
        let thread = syscall(__NR_gettid as usize, [0; 6]) as usize;
        let arguments = [process::getpid() as usize, thread, signal, core::ptr::from_ref(info) as usize, 0, 0];
        syscall(__NR_rt_tgsigqueueinfo as usize, arguments) == 0
    }
}

fn install_trap() {
    if !TRAP_INSTALLED.swap(true, Ordering::Relaxed) {
        let _ = kernel_action(SIGTRAP, Some(for_kernel(SIGTRAP, ENTRIES[SIGTRAP].load())));
    }
}

/// What the program's action is: its handler, or 0 when there is nothing to run.
fn deliver(signal: usize, info: &Info, synchronous: bool) -> usize {
    let entry = &ENTRIES[signal];
    let action = entry.load();
    match action.handler {
        SIG_IGN if !synchronous => 0,
        SIG_DFL | SIG_IGN => {
            // The default, which for every signal that gets here is death: by the kernel's hand, with the right status.
            let _ = kernel_action(signal, Some(Action::default()));
            if !(synchronous && matches!(signal, SIGSEGV | SIGBUS | SIGILL | SIGFPE)) {
                send_again(signal, info);
            }
            0
        }
        handler => {
            word(crate::thread::word::HANDLED).store(1, Ordering::Relaxed);
            if action.flags & SA_RESETHAND != 0 {
                entry.store(Action::default());
                if !is_always_ours(signal) {
                    let _ = kernel_action(signal, Some(Action::default()));
                }
            }
            handler
        }
    }
}
