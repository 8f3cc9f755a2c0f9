//! The interrupted registers of a signal handler: the kernel's `struct ucontext` of x86-64.

use crate::call::Call;

/// The trap flag: the processor raises SIGTRAP after every instruction.
const TRAP_FLAG: u64 = 1 << 8;
/// The arithmetic flags `lahf` stores: carry, parity, adjust, zero, sign.
const LAHF_FLAGS: u64 = 0xd5;
const OVERFLOW_FLAG: u64 = 1 << 11;
/// The number of the exception of a page fault, and bits of its error code: the page was there, and
/// what was refused is a store, an access of the program's, the fetch of an instruction.
const PAGE_FAULT: u64 = 14;
const ERROR_PRESENT: u64 = 1;
const ERROR_STORE: u64 = 1 << 1;
const ERROR_PROGRAM: u64 = 1 << 2;
const ERROR_FETCH: u64 = 1 << 4;

/// The kind of access that the processor refused when it raised a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refused {
    Load = 0,
    Store = 1,
    Fetch = 2,
    /// No access to a page, or one that a page's protection does not decide alone (a protection
    /// key, a shadow stack).
    Other = 3,
}

/// `struct ucontext` up to the signal mask.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12_to_r15: [u64; 4],
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    eflags: u64,
    segments: u64,
    error: u64,
    trap: u64,
    old_mask: u64,
    fault_address: u64,
    vector_state: u64,
    reserved: [u64; 8],
    mask: u64,
}

impl Context {
    /// Where the thread was interrupted.
    pub(crate) const fn address(&self) -> usize {
        self.rip as usize
    }

    /// Returns what was refused, in the handler of a signal that a fault has raised.
    pub(crate) const fn refused(&self) -> Refused {
        if self.trap != PAGE_FAULT {
            return Refused::Other;
        }
        match self.error & !(ERROR_PRESENT | ERROR_PROGRAM) {
            0 => Refused::Load,
            ERROR_STORE => Refused::Store,
            ERROR_FETCH => Refused::Fetch,
            _ => Refused::Other,
        }
    }

    /// Makes it go on elsewhere.
    pub(crate) const fn set_address(&mut self, address: usize) {
        self.rip = address as u64;
    }

    /// Makes a thread that was about to make a system call go on behind it, at `address`, with the
    /// call's result.
    pub(crate) const fn end_call(&mut self, address: usize, result: isize) {
        (self.rip, self.rax) = (address as u64, result as u64);
    }

    /// Number and arguments of the system call that was about to be made there.
    pub(crate) const fn system_call(&self) -> (u32, [usize; 6]) {
        let [rdi, rsi, rdx] = [self.rdi as usize, self.rsi as usize, self.rdx as usize];
        (self.rax as u32, [rdi, rsi, rdx, self.r10 as usize, self.r8 as usize, self.r9 as usize])
    }

    /// The stack pointer there.
    pub(crate) const fn stack_pointer(&self) -> usize {
        self.rsp as usize
    }

    /// The thread's alternate stack when the handler began, as sigaltstack(2) told it there: start,
    /// flags and length.
    pub(crate) const fn alternate_stack(&self) -> (usize, usize, usize) {
        let [start, flags, bytes] = self.stack;
        (start as usize, flags as u32 as usize, bytes as usize)
    }

    /// The value a system call is about to give back there.
    pub(crate) const fn result(&self) -> isize {
        self.rax as isize
    }

    /// The signal mask the thread will have again.
    pub(crate) const fn mask(&self) -> u64 {
        self.mask
    }

    /// Where the handler returns to: the word before the structure.
    ///
    /// # Safety
    /// The kernel has made this for a handler.
    pub(crate) const unsafe fn handler_end(&mut self) -> *mut usize {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::from_mut(self).cast::<usize>().sub(1) }
    }

    /// Changes that mask.
    pub(crate) const fn set_mask(&mut self, mask: u64) {
        self.mask = mask;
    }

    /// Makes the thread trap after its next instruction, or not any more.
    pub(crate) const fn set_stepping(&mut self, stepping: bool) {
        if stepping { self.eflags |= TRAP_FLAG } else { self.eflags &= !TRAP_FLAG }
    }

    /// Puts the thread at the first instruction of the handler that the signal entry is about to
    /// jump to. False if there is none.
    ///
    /// # Safety
    /// The thread was interrupted at the label `signal_unmasked` of the signal entry.
    pub(crate) unsafe fn begin_handler(&mut self) -> bool {
        // SAFETY: the caller's promise: these words were pushed by the entry.
        let [_mask, handler, third, second, first] = unsafe { *(self.rsp as *const [u64; 5]) };
        if handler != 0 {
            (self.rdi, self.rsi, self.rdx) = (first, second, third);
            self.rsp += 40;
            self.rip = handler;
        }
        handler != 0
    }

    /// Puts the thread where the entry stub would have left it: at `address`, registers as `call`
    /// says.
    ///
    /// # Safety
    /// The thread was interrupted in the way out of a stub: rbp is that stub's frame on the
    /// program's stack, vectors are restored, and `call` is the frame's.
    pub(crate) unsafe fn leave(&mut self, call: &Call, address: usize) {
        // SAFETY: the caller's promise: rbp points at the saved rbp, above it the return address
        // and the red zone skip.
        let saved_rbp = unsafe { *(self.rbp as *const u64) };
        self.rsp = self.rbp + 16 + 128;
        self.rbp = saved_rbp;
        let [rdi, rsi, rdx, r10, r8, r9] = call.args;
        (self.rdi, self.rsi, self.rdx) = (rdi as u64, rsi as u64, rdx as u64);
        (self.r10, self.r8, self.r9) = (r10 as u64, r8 as u64, r9 as u64);
        self.rax = call.result as u64;
        let (arithmetic, overflow) = ((call.flags >> 8) as u64 & LAHF_FLAGS, call.flags as u64 & 1);
        self.eflags = (self.eflags & !(LAHF_FLAGS | OVERFLOW_FLAG | TRAP_FLAG)) | arithmetic | (overflow * OVERFLOW_FLAG);
        self.rip = address as u64;
        // As after the instruction.
        self.rcx = self.rip;
        self.r11 = self.eflags;
    }
}

impl Call {
    /// The address of the instruction, which is two bytes long.
    pub(crate) fn instruction(&self) -> usize {
        self.continuation() - 2
    }

    /// The address behind the instruction, in the program (or in the trampoline, if the instruction
    /// was moved).
    pub(crate) fn continuation(&self) -> usize {
        // SAFETY: `resume` was pushed by the call instruction of the trampoline that entered the
        // stub.
        unsafe { super::bytes::continuation(self.resume) }
    }
}

const _: () = assert!(core::mem::offset_of!(Context, rip) == 168 && core::mem::offset_of!(Context, mask) == 296);
