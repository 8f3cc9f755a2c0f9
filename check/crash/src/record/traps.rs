//! The handlers: what a store, a fence, a flush or a system call of the engine traps into.

use super::store::{Registers, decode};
use super::{Recorder, lock, sites, sites::Effect, turns};
use crate::log::Event;
use iced_x86::{Instruction, Register};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

thread_local! {
    /// Whether this thread is in a handler: what it does then is the recorder's own affair.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The longest instruction.
const INSTRUCTION_BYTES_MAX: usize = 15;
/// In the error code of a page fault: it was a write.
const FAULT_WRITE: libc::greg_t = 2;

/// What handled SIGSEGV before: the engine's guard.
static mut PREVIOUS: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs the handlers, after the engine's own.
pub(super) fn install() -> Result<(), String> {
    let previous = set_handler(libc::SIGSEGV, on_fault)?;
    // SAFETY: this process has one thread so far, and nothing has faulted.
    unsafe { PREVIOUS = MaybeUninit::new(previous) };
    set_handler(libc::SIGTRAP, on_breakpoint)?;
    set_handler(libc::SIGSYS, on_call)?;
    Ok(())
}

/// Installs what serves a process that only has to see members as on a DAX file system.
pub(super) fn install_disguise() -> Result<(), String> {
    set_handler(libc::SIGSYS, on_disguised_call).map(|_| ())
}

/// Sets a signal's handler and returns what it was before.
fn set_handler(signal: c_int, handler: Handler) -> Result<libc::sigaction, String> {
    let mut previous = MaybeUninit::uninit();
    // SAFETY: a zeroed sigaction is a valid one; the handlers have the signature that SA_SIGINFO
    // asks for; the kernel fills `previous`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        if libc::sigaction(signal, &raw const action, previous.as_mut_ptr()) != 0 {
            return Err(format!("sigaction: {}", std::io::Error::last_os_error()));
        }
        Ok(previous.assume_init())
    }
}

/// Does something with the recorder; what traps meanwhile is not recorded.
pub(super) fn uninterrupted<T>(act: impl FnOnce(&mut Recorder) -> T) -> T {
    let nested = INSIDE.replace(true);
    let result = act(lock().as_mut().expect("a recorder was made before anything traps"));
    INSIDE.set(nested);
    result
}

/// The same, after which another thread may have its turn.
fn trapped<T>(act: impl FnOnce(&mut Recorder) -> T) -> T {
    let (result, give_way) = uninterrupted(|recorder| {
        let result = act(recorder);
        (result, recorder.recording && turns::perhaps_yield(&mut recorder.rng))
    });
    if give_way {
        turns::yield_turn();
    }
    result
}

/// The registers of the interrupted thread.
///
/// # Safety
/// `context` is what a handler was given.
unsafe fn registers<'a>(context: *mut c_void) -> Registers<'a> {
    // SAFETY: the caller's promise: a ucontext, with the kernel's xsave area behind it.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        Registers { general: &mut machine.gregs, extended: machine.fpregs.cast() }
    }
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: these are a handler's arguments.
    unsafe {
        let mut registers = registers(context);
        let wrote = registers.general[libc::REG_ERR as usize] & FAULT_WRITE != 0;
        let address = (*info).si_addr() as usize;
        if !wrote || INSIDE.get() || !trapped(|recorder| recorder.store(address, &mut registers)) {
            let previous = &*(&raw const PREVIOUS).cast::<libc::sigaction>();
            let handler: Handler = std::mem::transmute::<usize, Handler>(previous.sa_sigaction);
            handler(signal, info, context);
        }
    }
}

unsafe extern "C" fn on_breakpoint(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: a handler's argument.
    let registers = unsafe { registers(context) };
    let address = registers.general[libc::REG_RIP as usize] as usize - 1;
    let Some((effect, instruction)) = sites::sites().ok().and_then(|sites| sites.at(address)) else {
        // SAFETY: nothing of ours: the process ends.
        unsafe { libc::abort() }
    };
    // As if it were about to be executed, so that the stack is found from there.
    registers.general[libc::REG_RIP as usize] = address as libc::greg_t;
    if !INSIDE.get() {
        trapped(|recorder| recorder.ordering(effect, instruction, address, &registers));
    }
    registers.general[libc::REG_RIP as usize] = instruction.next_ip() as libc::greg_t;
}

unsafe extern "C" fn on_disguised_call(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: a handler's argument.
    let registers = unsafe { registers(context) };
    let (number, arguments) = call_of(&registers);
    registers.general[libc::REG_RAX as usize] = super::calls::disguised(number, arguments) as libc::greg_t;
}

/// The number and arguments of a system call that trapped.
fn call_of(registers: &Registers<'_>) -> (libc::c_long, [usize; 6]) {
    let general = |index: c_int| registers.general[index as usize] as usize;
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9].map(general);
    (general(libc::REG_RAX) as libc::c_long, arguments)
}

unsafe extern "C" fn on_call(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: a handler's argument.
    let registers = unsafe { registers(context) };
    let (number, arguments) = call_of(&registers);
    // Memory of the allocator, whose state may be anything just now, is no affair of the recorder.
    let is_anonymous = number == libc::SYS_mmap && arguments[4] as i32 == -1;
    let result = if INSIDE.get() || is_anonymous {
        super::raw::call(number, arguments)
    } else if number == libc::SYS_gettid {
        turns::my_id() as isize
    } else if number == libc::SYS_tgkill && arguments[2] == 0 {
        if turns::is_live_id(arguments[1]) { 0 } else { -(libc::ESRCH as isize) }
    } else if matches!(number, libc::SYS_futex | libc::SYS_sched_yield) {
        wait_or_wake(number, arguments)
    } else {
        let (address, stack) =
            (registers.general[libc::REG_RIP as usize] as usize, registers.general[libc::REG_RSP as usize] as usize);
        trapped(|recorder| {
            let stack = if recorder.recording { recorder.stacks.of(address, stack) } else { 0 };
            super::calls::serve(recorder, number, arguments, stack)
        })
    };
    registers.general[libc::REG_RAX as usize] = result as libc::greg_t;
}

/// A thread that would sleep until another one has done something lets that one run and looks
/// again.
fn wait_or_wake(number: libc::c_long, arguments: [usize; 6]) -> isize {
    const FUTEX_WAIT: usize = 0;
    let waits = number == libc::SYS_sched_yield || arguments[1] & 0x7f == FUTEX_WAIT;
    if waits && turns::is_one_of_several() {
        turns::yield_turn();
        return if number == libc::SYS_futex { -(libc::EAGAIN as isize) } else { 0 };
    }
    super::raw::call(number, arguments)
}

impl Recorder {
    /// Does a store that faulted at `address`; false if it is none to a member, or there is no file
    /// behind it.
    fn store(&mut self, address: usize, registers: &mut Registers<'_>) -> bool {
        let Some(region) = self.region(address) else { return false };
        let (start, alias, object, at) = (region.start, region.alias, region.object, region.at);
        let present = super::length_of(region.fd).unwrap_or(0);
        let instruction = registers.general[libc::REG_RIP as usize] as usize;
        // SAFETY: the processor was executing there.
        let text = unsafe { std::slice::from_raw_parts(instruction as *const u8, INSTRUCTION_BYTES_MAX) };
        let Some(store) = decode(registers, text) else {
            eprintln!("cxlraid-crash: a store to a member by an instruction the recorder does not know: {text:02x?}");
            // SAFETY: the record would be wrong: the process ends.
            unsafe { libc::abort() }
        };
        let offset = at + (store.address - start) as u64;
        if offset + store.bytes.len() as u64 > present.next_multiple_of(4096) {
            return false;
        }
        if self.recording {
            let stack_pointer = registers.general[libc::REG_RSP as usize] as usize;
            let stack = self.stacks.of(instruction, stack_pointer);
            let (bytes, streamed) = (store.bytes.clone(), store.streamed);
            self.has_later_windows |= at > 0;
            self.push(Event::Store { thread: turns::me(), object, at: offset, bytes, streamed, stack });
        }
        // SAFETY: the second mapping is as long as the first, and the file reaches there.
        unsafe { store.finish((alias + (store.address - start)) as *mut u8, registers) };
        true
    }

    /// Notes a flush or fence.
    fn ordering(&mut self, effect: Effect, instruction: &Instruction, address: usize, registers: &Registers<'_>) {
        if !self.recording {
            return;
        }
        let stack = self.stacks.of(address, registers.general[libc::REG_RSP as usize] as usize);
        let thread = turns::me();
        if effect == Effect::Fence {
            return self.push(Event::Fence { thread, stack });
        }
        let place = instruction.virtual_address(0, 0, |register, _, _| {
            if matches!(register, Register::FS | Register::GS) { None } else { registers.general(register).or(Some(0)) }
        });
        let Some(place) = place else { return self.fail("a flush of an unknown place".to_owned()) };
        if let Some(region) = self.region(place as usize) {
            let at = (region.at + (place as usize - region.start) as u64) & !63;
            self.push(Event::Flush { thread, object: region.object, at, stack });
        }
    }
}
