//! The guarded call: saves what is needed to come back to its caller from any instruction inside
//! it.

use core::arch::naked_asm;
use core::ffi::c_void;

/// Byte offsets in the kernel's `ucontext` (asm/ucontext.h, asm/sigcontext.h): registers start at
/// 40, in the order r8..r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags.
const RSP_OFFSET: usize = 40 + 15 * 8;
const RIP_OFFSET: usize = 40 + 16 * 8;
const EFLAGS_OFFSET: usize = 40 + 17 * 8;
const DIRECTION_FLAG: u64 = 1 << 10;

/// Calls `function(argument)` with the stack pointer stored in `*resume_slot` meanwhile, and 0
/// after it. Returns 0, or 1 if the call was left through [`redirect`].
///
/// # Safety
/// `resume_slot` is writable and not otherwise used during the call; `function` may be called with
/// `argument`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter(
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    resume_slot: *mut usize,
) -> u32 {
    // Seven pushes and the return address keep the stack on 16 bytes at the call.
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "mov [rdx], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "pop rdx",
        "mov qword ptr [rdx], 0",
        "add rsp, 48", // The call has kept the six registers.
        "xor eax, eax",
        "ret",
    )
}

/// Where a call that is left continues, with the stack pointer [`enter`] stored: restores what it
/// pushed and returns 1.
#[unsafe(naked)]
unsafe extern "C" fn resume() {
    naked_asm!(
        "pop rdx",
        "mov qword ptr [rdx], 0",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "mov eax, 1",
        "ret",
    )
}

/// Makes the return from a signal continue in [`resume`].
///
/// # Safety
/// `ucontext` is the third argument of a signal handler running on the thread that is inside
/// [`enter`], and `stack_pointer` is what that call stored.
pub(crate) unsafe fn redirect(ucontext: *mut c_void, stack_pointer: usize) {
    let context = ucontext.cast::<u8>();
    // SAFETY: the offsets are within the kernel's ucontext and 8-byte aligned; they are ABI.
    unsafe {
        context.add(RSP_OFFSET).cast::<u64>().write(stack_pointer as u64);
        context.add(RIP_OFFSET).cast::<u64>().write(resume as *const () as u64);
        *context.add(EFLAGS_OFFSET).cast::<u64>() &= !DIRECTION_FLAG;
    }
}

/// What the kernel returns to from a handler installed without libc: rt_sigreturn.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn restorer() {
    naked_asm!("mov eax, 15", "syscall")
}
