//! The guard: a memory fault inside it is a return value.
//!
//! The fault it exists for: a member's memory is gone (SIGBUS beyond a truncated file or on a
//! failed device), or the program passed a bad pointer (SIGSEGV). Nothing is checked per access:
//! the SIGBUS or SIGSEGV handler finds the thread inside a guard, and makes the return from the
//! signal continue at the guard's end, which then reports the address.
//!
//! Invariants: code inside a guard owns nothing that needs a destructor and holds nothing it must
//! give back: it may be left at any instruction. Guards do not nest. A guard costs 2 to 3 ns
//! (`examples/threshold.rs`).
//!
//! The front end that owns the program's signals calls [`recover`] from its own handlers; the
//! command line and tests call [`install_handlers`].

use crate::arch;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A memory access inside a guard failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address that was accessed, as the kernel reported it (0 for a non-canonical address).
    pub address: usize,
}

/// Runs `f`; a SIGSEGV or SIGBUS the kernel raises in it ends it there and returns the address.
///
/// # Errors
/// [`Fault`], in which case `f` ran up to some instruction: what it wrote is undefined in part.
///
/// # Safety
/// `f` may be left at any instruction: it takes no lock, is in the middle of nothing that has to be
/// finished, and contains no guard; what it modifies is valid half modified. A handler that calls
/// [`recover`] is installed, or faults kill the process as usual.
#[inline]
pub unsafe fn guard<F: FnOnce()>(f: F) -> Result<(), Fault> {
    const { assert!(!core::mem::needs_drop::<F>(), "code inside a guard must not own anything") };
    let block = sys::thread::block();
    debug_assert_eq!(block.fault_resume.load(Ordering::Relaxed), 0, "guards do not nest");
    let mut f = MaybeUninit::new(f);
    // SAFETY: `call::<F>` reads the closure out of `f` once, and it needs no drop. The slot is this
    // thread's and no other guard uses it (caller).
    let left = unsafe { arch::guard::enter(call::<F>, f.as_mut_ptr().cast(), block.fault_resume.as_ptr()) };
    if left == 0 { Ok(()) } else { Err(after_fault(block)) }
}

unsafe extern "C" fn call<F: FnOnce()>(f: *mut c_void) {
    // SAFETY: `f` is the closure `guard` put there, read once.
    unsafe { f.cast::<F>().read()() }
}

#[cold]
fn after_fault(block: &sys::thread::ThreadBlock) -> Fault {
    arch::wipe_vector_state();
    Fault { address: block.fault_address.load(Ordering::Relaxed) }
}

/// Whether the calling thread is inside a guard.
#[inline]
#[must_use]
pub fn is_guarded() -> bool {
    sys::thread::block().fault_resume.load(Ordering::Relaxed) != 0
}

/// For a handler of SIGBUS and SIGSEGV: if the thread is inside a guard, makes the return from the
/// handler end the guard with `Fault { address: fault_address }` and returns true; the handler must
/// then return. So too, outside of a guard, if other memory stands in from now on for what is not
/// there ([`crate::stand_in`]). Otherwise changes nothing and returns false.
///
/// # Safety
/// `ucontext` is the third argument of the SA_SIGINFO handler that is running on this thread, for a
/// fault the kernel raised (`si_code > 0`).
pub unsafe fn recover(ucontext: *mut c_void, fault_address: usize) -> bool {
    let stands_in = crate::stand_in::replace(fault_address);
    let block = sys::thread::block();
    let stack_pointer = block.fault_resume.swap(0, Ordering::Relaxed);
    if stack_pointer == 0 {
        return stands_in;
    }
    block.fault_address.store(fault_address, Ordering::Relaxed);
    // SAFETY: the slot was not 0, so `enter` stored it and has not returned; the context is the
    // caller's promise.
    unsafe { arch::guard::redirect(ucontext, stack_pointer) };
    true
}

const SIGBUS: usize = 7;
const SIGSEGV: usize = 11;
const SA_SIGINFO: usize = 4;
const SA_RESTORER: usize = 0x0400_0000;
const SA_ONSTACK: usize = 0x0800_0000;
const SA_NODEFER: usize = 0x4000_0000;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
/// Offset of `si_code` and of `si_addr` in siginfo_t.
const SI_CODE_OFFSET: usize = 8;
const SI_ADDR_OFFSET: usize = 16;

/// The kernel's struct sigaction (x86-64).
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// The action a signal had before [`install_handlers`].
struct Previous {
    handler: AtomicUsize,
    flags: AtomicUsize,
}

impl Previous {
    const fn new() -> Self {
        Self { handler: AtomicUsize::new(SIG_DFL), flags: AtomicUsize::new(0) }
    }
}

static PREVIOUS_BUS: Previous = Previous::new();
static PREVIOUS_SEGV: Previous = Previous::new();

/// Makes SIGBUS and SIGSEGV end the guard they happen in. Outside guards the actions set before
/// keep working. May be called repeatedly.
///
/// # Errors
/// What rt_sigaction says; none is expected.
pub fn install_handlers() -> sys::Result<()> {
    for (signal, previous) in [(SIGBUS, &PREVIOUS_BUS), (SIGSEGV, &PREVIOUS_SEGV)] {
        let action = Action {
            handler: handler as *const () as usize,
            flags: SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTORER,
            restorer: arch::guard::restorer as *const () as usize,
            mask: 0,
        };
        let old = sigaction(signal, None)?;
        if old.handler != action.handler {
            previous.flags.store(old.flags, Ordering::Relaxed);
            previous.handler.store(old.handler, Ordering::Release);
            sigaction(signal, Some(action))?;
        }
    }
    Ok(())
}

/// Reads a signal's action, and sets it if there is a new one.
fn sigaction(signal: usize, new: Option<Action>) -> sys::Result<Action> {
    let mut old = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let new = new.as_ref().map_or(0, |action| core::ptr::from_ref(action) as usize);
    let args = [signal, new, &raw mut old as usize, size_of::<u64>(), 0, 0];
    // SAFETY: both pointers are null or to structs of the kernel's layout that outlive the call.
    let ret = unsafe { sys::raw::syscall(sys_number::RT_SIGACTION, args) };
    sys::raw::check(ret).map(|_| old)
}

mod sys_number {
    pub(super) const RT_SIGACTION: usize = 13;
    pub(super) const GETPID: usize = 39;
    pub(super) const GETTID: usize = 186;
    pub(super) const TGKILL: usize = 234;
}

unsafe extern "C" fn handler(signal: c_int, info: *mut c_void, ucontext: *mut c_void) {
    // SAFETY: the kernel passes a siginfo_t; for these signals, when the kernel raised them, it has
    // an address.
    let (code, address) = unsafe {
        let info = info.cast::<u8>();
        (info.add(SI_CODE_OFFSET).cast::<i32>().read(), info.add(SI_ADDR_OFFSET).cast::<usize>().read())
    };
    // SAFETY: this is a handler's context, on its thread, and si_code > 0 says that the kernel
    // raised it.
    if code > 0 && unsafe { recover(ucontext, address) } {
        return;
    }
    // SAFETY: the arguments are what the kernel passed to this handler.
    unsafe { chain(signal, info, ucontext, code > 0) }
}

/// Does what would have been done without our handler.
///
/// # Safety
/// The arguments are those of the handler that is running.
unsafe fn chain(signal: c_int, info: *mut c_void, ucontext: *mut c_void, by_kernel: bool) {
    let previous = if signal as usize == SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGV };
    let handler = previous.handler.load(Ordering::Acquire);
    match handler {
        SIG_IGN if !by_kernel => {}
        SIG_DFL | SIG_IGN => {
            // With the default action back, a fault happens again when we return, with the right
            // address in the core dump; a signal somebody sent has to be sent again.
            let default = Action { handler: SIG_DFL, flags: SA_RESTORER, restorer: 0, mask: 0 };
            let _ = sigaction(signal as usize, Some(default));
            if !by_kernel {
                // SAFETY: these calls take and return integers.
                unsafe {
                    let pid = sys::raw::syscall(sys_number::GETPID, [0; 6]) as usize;
                    let tid = sys::raw::syscall(sys_number::GETTID, [0; 6]) as usize;
                    sys::raw::syscall(sys_number::TGKILL, [pid, tid, signal as usize, 0, 0, 0]);
                }
            }
        }
        _ if previous.flags.load(Ordering::Relaxed) & SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the program set a handler of this type.
            unsafe {
                let handler: unsafe extern "C" fn(c_int, *mut c_void, *mut c_void) = core::mem::transmute::<usize, _>(handler);
                handler(signal, info, ucontext);
            }
        }
        // SAFETY: without SA_SIGINFO the program set a handler of this type.
        _ => unsafe {
            let handler: unsafe extern "C" fn(c_int) = core::mem::transmute::<usize, _>(handler);
            handler(signal);
        },
    }
}
