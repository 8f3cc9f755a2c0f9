//! The stubs: code that trampolines call, which hands a system call to `dispatch` and carries out
//! its verdict; and the entry for signals.
//!
//! On entry all registers are as for the program's `syscall` instruction, except `rsp`: the
//! trampoline has moved it below the red zone, and its return address is on top. On return `rcx` =
//! 0 asks the trampoline to run the program's instruction, with rax and the arguments as they came
//! in; `rcx` = 1 says that `rax` is the result. As after a real system call only rax, rcx and r11
//! change, and the flags do not.
//!
//! 1. A call whose number is not wanted, or whose descriptor is not of the array, returns at once,
//!    without touching flags or stack.
//! 2. For every other call the stub switches to the thread's private stack, since the program's may
//!    have a few KiB (a signal stack, a coroutine's). It saves the argument registers (a [`Call`])
//!    and xmm0-15, and calls `dispatch`. Code of libc and ld.so around a `syscall` is compiled for
//!    the baseline processor, so it keeps nothing in wider registers.
//! 3. The stub for sites in other objects (`foreign`) saves the whole vector state, since code
//!    around them may keep wide vectors.
//!
//! The verdict of `dispatch` is [`crate::call::PASS`] (0: the program's instruction runs;
//! `Call::result` is the number, for rax), [`crate::call::DONE`] (1: `Call::result` is the result)
//! or [`crate::call::RUN`] (2: the stub makes the call in `Call::instead`).
//!
//! Where handlers of the program may run, the thread is on the program's stack: the `Call` is
//! *carried* there, just below what the trampoline and the stub have pushed. So a handler has as
//! much room as on a plain directory, may switch to another context or jump away, and its calls may
//! use the private stack from the top. The stub goes back to the private stack for what is to be
//! done after a call.
//!
//! A call that is made on the thread's alternate stack (sigaltstack(2)) comes to the private stack
//! on a way of its own, on which the alternate one is put aside (`signals::alternate`).
//!
//! Three labels are known to `signals`, and there the stack pointer is at the carried `Call`. At
//! `unblocked` the program's mask has just been restored, so that a deferred signal arrives; all
//! that is needed to leave is in the frame. `run` is the `syscall` by which the stub makes a call,
//! and `ran` lies behind it.

use crate::call::Call;
use crate::thread::word;
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use sys::thread::ThreadBlock;

/// What becomes of a call, by the low 16 bits of its number (`dispatch` looks at the rest): 0 the
/// program's instruction runs; 1 `dispatch` is asked; 2 it is asked if the first argument may be a
/// descriptor of the array.
pub(crate) static WANTED: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];
/// By the low 16 bits of a descriptor: not 0 if one that ends in these bits may be of the array
/// (the table of open files decides).
pub(crate) static OURS: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];
/// 1 if xsave can be used: the foreign stub then saves the vector state by it.
pub(crate) static WIDE_VECTORS: AtomicU8 = AtomicU8::new(0);

// The frame of a stub, from rsp upwards: xmm0-15, the `Call`, the verdict's word, the word that
// says whether wide vectors are saved, and, in the foreign stub, the area of xsave, which must
// begin at a multiple of 64. What is carried to the program's stack is the `Call` with both words.

/// Bytes of xmm0-15, which lie below the `Call` in a stub's frame.
pub(crate) const VECTOR_BYTES: usize = 256;
/// The `Call` and the two words behind it, rounded up to a multiple of 64.
const CALL_BYTES: usize = (size_of::<Call>() + 16 + 63) & !63;
/// Offset of the verdict in the frame. It is stored only where the `Call` is carried.
const VERDICT: usize = VECTOR_BYTES + size_of::<Call>();
/// Offset of the word that is not 0 if wide vectors are saved.
const WIDE: usize = VERDICT + 8;
const THEN: usize = VECTOR_BYTES + offset_of!(Call, then);
const NR: usize = VECTOR_BYTES + offset_of!(Call, number);
const ARGS: usize = VECTOR_BYTES + offset_of!(Call, args);
const RESULT: usize = VECTOR_BYTES + offset_of!(Call, result);
const RESUME: usize = VECTOR_BYTES + offset_of!(Call, resume);
const FLAGS: usize = VECTOR_BYTES + offset_of!(Call, flags);
const FRAME: usize = VECTOR_BYTES + offset_of!(Call, frame);
const UNBLOCK: usize = VECTOR_BYTES + offset_of!(Call, unblock);
const MASK: usize = VECTOR_BYTES + offset_of!(Call, mask);
const INSTEAD: usize = VECTOR_BYTES + offset_of!(Call, instead);
/// Offsets of words in the thread block.
const STACK_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::STACK_AT_ONCE;
const OWN_STACK_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::PRIVATE_STACK_TOP;
const ALTERNATE_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::ALTERNATE_START;
const ALTERNATE_BYTES_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::ALTERNATE_BYTES;
const ALTERNATE_MASK_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::ALTERNATE_MASK;
const LENDING_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::LENDING;
const INSIDE: usize = offset_of!(ThreadBlock, inside);
/// What `signals::arrived` answers of a signal that waits until the signal entry, which it has
/// interrupted, lets it in. No handler has this address.
pub(crate) const WAITS: usize = 1;
/// Offsets of the words that the signal entry reads and sets.
const ARRIVING_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::ARRIVING;
const WAITING_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::SIGNAL_WAITS;
const WAITING_MASK_WORD: usize = offset_of!(ThreadBlock, front) + 8 * word::WAITING_MASK;
/// The state components that xsave saves: SSE, AVX, opmask, ZMM_Hi256, Hi16_ZMM. x87 is left out:
/// the library does not use it.
const WIDE_MASK: usize = 0xe6;
/// Room for the area of xsave.
const WIDE_BYTES: usize = 4096;
/// The mask in which every signal is blocked.
static ALL_SIGNALS: u64 = !0;
/// Size of the stack on which a thread runs in the library.
pub(crate) const PRIVATE_STACK_BYTES: usize = 256 << 10;
/// The address that is proposed to mmap for the next private stack. Until [`place_stacks`] has run,
/// it is one where usually nothing is mapped.
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0x4700_0000_0000);

/// Draws the place of the private stacks, so that nobody can guess their addresses. Called by the
/// constructor, before any thread has one.
pub(crate) fn place_stacks() {
    /// Room for the first four thousand stacks; more are proposed behind it.
    const ROOM_BYTES: usize = 1 << 30;
    NEXT_STACK.store(sys::place::wish(ROOM_BYTES), Ordering::Relaxed);
}

global_asm!(
    ".macro cxlraid_label name",
    ".globl \\name",
    ".hidden \\name",
    "\\name:",
    ".endm",
    // Calls that are none of the array's return here. Only instructions that keep the flags are
    // used, such as `lea` and `jrcxz`.
    ".macro cxlraid_filter leave, stay",
    "lea r11, [rip + {wanted}]",
    "movzx ecx, ax",
    "movzx ecx, byte ptr [r11 + rcx]",
    "jrcxz \\leave",
    "lea ecx, [rcx - 1]",
    "jrcxz \\stay",
    "lea r11, [rip + {ours}]",
    "movzx ecx, di",
    "movzx ecx, byte ptr [r11 + rcx]",
    "jrcxz \\leave",
    ".endm",
    // Unwinders skip the trampoline, which needs no unwind entries then: the caller is the program,
    // behind its `syscall`. There the stack pointer is rbp + 144 (the saved rbp, the return
    // address, the red zone of 128 bytes). The address is what `bytes::continuation` makes of the
    // return address r at rbp + 8: r + 15 + (the i32 at r + 11); in DWARF: dup, +11, deref 4,
    // sign-extend, plus, +15.
    ".macro cxlraid_caller",
    ".cfi_def_cfa rbp, 144",
    ".cfi_offset rbp, -144",
    ".cfi_escape 0x16, 0x10, 0x11, 0x76, 8, 0x06, 0x12, 0x23, 11, 0x94, 4, 0x08, 32, 0x24, 0x08, 32, 0x26, 0x22, 0x23, 15",
    ".endm",
    // From here on rbp is where the program's rbp lies on the program's stack. The flags go to ax,
    // the number to rcx.
    ".macro cxlraid_frame",
    "push rbp",
    "mov rbp, rsp",
    "cxlraid_caller",
    "mov rcx, rax",
    "lahf",
    "seto al",
    ".endm",
    ".macro cxlraid_save",
    "mov [rsp + {nr}], rcx",
    "mov [rsp + {args}], rdi",
    "mov [rsp + {args} + 8], rsi",
    "mov [rsp + {args} + 16], rdx",
    "mov [rsp + {args} + 24], r10",
    "mov [rsp + {args} + 32], r8",
    "mov [rsp + {args} + 40], r9",
    "mov [rsp + {flags}], rax",
    "mov [rsp + {frame}], rbp",
    "mov rcx, [rbp + 8]",
    "mov [rsp + {resume}], rcx",
    "cxlraid_save_vectors",
    ".endm",
    ".macro cxlraid_save_vectors",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rsp + 16 * \\n], xmm\\n",
    ".endr",
    ".endm",
    ".macro cxlraid_restore",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\n, [rsp + 16 * \\n]",
    ".endr",
    ".endm",
    // Saves the wide vectors. xsave wants the 64 bytes of its header, at 512, to be zero.
    ".macro cxlraid_save_wide",
    "lea r11, [rsp + {vector_bytes} + {call_bytes}]",
    "xor eax, eax",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
    "mov [r11 + 512 + 8 * \\n], rax",
    ".endr",
    "mov eax, {wide_mask}",
    "xor edx, edx",
    "xsave64 [r11]",
    ".endm",
    // Restores them; eax and edx change.
    ".macro cxlraid_restore_wide",
    "mov eax, {wide_mask}",
    "xor edx, edx",
    "xrstor64 [rsp + {vector_bytes} + {call_bytes}]",
    ".endm",
    // Switches to the private stack, unless the thread is on it already, as a handler of the
    // program is that runs on top of a stub. Goes to `other` if the stack is not to be taken at
    // once; `cxlraid_find_stack`, which must follow in the same stub, comes back to 51.
    ".macro cxlraid_switch other",
    "mov r11, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11 + {stack_word}]",
    "test r11, r11",
    "je \\other",
    "51:",
    "push rax",
    "mov rax, r11",
    "sub rax, rsp",
    "cmp rax, {private_stack_bytes}",
    "pop rax",
    "jb 52f",
    "mov rsp, r11",
    "52:",
    ".endm",
    // The thread's first call, or one that it may make on its alternate stack. The first maps its
    // private stack. Pushed are rax and rcx, which are in use, and the registers that take mmap's
    // arguments; r11 is free. That is 64 bytes, since the program's stack may be small. If there is
    // no memory, the call goes on upon the program's stack, and the next call tries again.
    ".macro cxlraid_find_stack",
    ".irp r, rax, rcx, rdi, rsi, rdx, r10, r8, r9",
    "push \\r",
    ".endr",
    "mov rcx, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[rcx + {own_stack_word}]",
    "test r11, r11",
    "jne 62f",
    "mov eax, 9",
    // Places are 4096 bytes further apart than stacks are long: what overflows a stack faults, if
    // the kernel follows the proposal.
    "mov edi, {private_stack_bytes} + 4096",
    "lock xadd qword ptr [rip + {next_stack}], rdi",
    "mov esi, {private_stack_bytes}",
    "mov edx, 3",
    "mov r10d, 0x4022",
    "mov r8, -1",
    "xor r9d, r9d",
    "syscall",
    "mov r11, rsp",
    "cmp rax, -4096",
    "ja 61f",
    "add rax, {private_stack_bytes}",
    "mov r11, rax",
    "mov rcx, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "mov qword ptr fs:[rcx + {own_stack_word}], rax",
    "62:",
    "cmp qword ptr fs:[rcx + {alternate_bytes_word}], 0",
    "je 63f",
    "mov rax, rsp",
    "sub rax, qword ptr fs:[rcx + {alternate_word}]",
    "cmp rax, qword ptr fs:[rcx + {alternate_bytes_word}]",
    "jb 64f",
    // The thread has left that stack, unless this is a child that shares its block and memory.
    "cmp qword ptr fs:[rcx + {lending_word}], 0",
    "jne 61f",
    "mov qword ptr fs:[rcx + {alternate_bytes_word}], 0",
    "63:",
    "mov qword ptr fs:[rcx + {stack_word}], r11",
    "61:",
    "cxlraid_pop_found",
    "jmp 51b",
    "64:",
    "cxlraid_block_all",
    "cxlraid_pop_found",
    "jmp cxlraid_alternate",
    ".endm",
    ".macro cxlraid_pop_found",
    ".irp r, r9, r8, r10, rdx, rsi, rdi, rcx, rax",
    "pop \\r",
    ".endr",
    ".endm",
    // On the alternate stack, before it is left: enters the library (a thread that is being stepped
    // is not any more from here on) and blocks every signal. rcx is the offset of the thread's
    // block. r11 is its private stack then; the registers of a system call change.
    ".macro cxlraid_block_all",
    "inc dword ptr fs:[rcx + {inside}]",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rip + {all}]",
    "mov rdx, qword ptr fs:[0]",
    "lea rdx, [rdx + rcx + {alternate_mask_word}]",
    "mov r10d, 8",
    "syscall",
    "mov rcx, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[rcx + {own_stack_word}]",
    ".endm",
    ".section .text.cxlraid_entry,\"ax\",@progbits",
    ".p2align 6",
    // ---- libc and ld.so ----
    ".cfi_startproc",
    "11:",
    "ret",
    ".p2align 4",
    "cxlraid_label cxlraid_entry_libc",
    "cxlraid_filter 11b, 12f",
    "12:",
    "cxlraid_frame",
    "cxlraid_switch 13f",
    "and rsp, -16",
    "sub rsp, {vector_bytes} + {call_bytes}",
    "cxlraid_save",
    "mov qword ptr [rsp + {wide}], 0",
    "cxlraid_dispatch:",
    "lea rdi, [rsp + {vector_bytes}]",
    "call {dispatch}",
    // ---- the way out, of both stubs: rsp is the frame of the stub, eax the verdict ----
    "cxlraid_leave:",
    "mov r11d, eax",
    "cmp r11d, 2",
    "je 33f",
    "cmp qword ptr [rsp + {unblock}], 0",
    "jne 33f",
    "cxlraid_restore",
    "cmp qword ptr [rsp + {wide}], 0",
    "jne 35f",
    "30:",
    "mov ecx, r11d",
    "add rsp, {vector_bytes}",
    // rsp is the `Call`, ecx says whether there is a result.
    "32:",
    "mov rdi, [rsp + {args} - {vector_bytes}]",
    "mov rsi, [rsp + {args} - {vector_bytes} + 8]",
    "mov rdx, [rsp + {args} - {vector_bytes} + 16]",
    "mov r10, [rsp + {args} - {vector_bytes} + 24]",
    "mov r8, [rsp + {args} - {vector_bytes} + 32]",
    "mov r9, [rsp + {args} - {vector_bytes} + 40]",
    "mov rax, [rsp + {flags} - {vector_bytes}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [rsp + {result} - {vector_bytes}]",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
    "35:",
    "cxlraid_restore_wide",
    "jmp 30b",
    // Handlers of the program may run: the `Call` is carried to the program's stack.
    "33:",
    "mov [rsp + {verdict}], r11",
    "lea rdi, [rsp + {vector_bytes}]",
    "lea rsi, [rbp - {call_bytes}]",
    "and rsi, -16",
    "call {carry}",
    "cxlraid_restore",
    "cmp qword ptr [rsp + {wide}], 0",
    "je 36f",
    "cxlraid_restore_wide",
    "36:",
    "lea rsp, [rbp - {call_bytes}]",
    "and rsp, -16",
    "37:",
    "cmp qword ptr [rsp + {unblock} - {vector_bytes}], 0",
    "je 31f",
    // A signal was deferred: give the thread its mask back, which lets the signal in at
    // `unblocked`.
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rsp + {mask} - {vector_bytes}]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "cxlraid_label cxlraid_unblocked",
    "31:",
    "mov ecx, [rsp + {verdict} - {vector_bytes}]",
    "cmp ecx, 2",
    "jne 32b",
    // The call that the stub makes in the program's place.
    "mov rax, [rsp + {instead} - {vector_bytes}]",
    "mov rdi, [rsp + {instead} - {vector_bytes} + 8]",
    "mov rsi, [rsp + {instead} - {vector_bytes} + 16]",
    "mov rdx, [rsp + {instead} - {vector_bytes} + 24]",
    "mov r10, [rsp + {instead} - {vector_bytes} + 32]",
    "mov r8, [rsp + {instead} - {vector_bytes} + 40]",
    "mov r9, [rsp + {instead} - {vector_bytes} + 48]",
    "cxlraid_label cxlraid_run",
    "syscall",
    "cxlraid_label cxlraid_ran",
    "mov [rsp + {result} - {vector_bytes}], rax",
    "mov ecx, 1",
    "cmp qword ptr [rsp + {then} - {vector_bytes}], 0",
    "je 32b",
    // Something is to be done after it: `finish` does that on the private stack, and returns a new
    // verdict. The vectors are saved once more. If there is no private stack, or the thread is on
    // it, all of it lies below the `Call`.
    "mov rdi, rsp",
    "mov r11, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11 + {stack_word}]",
    "test r11, r11",
    "je 72f",
    "71:",
    "mov rax, r11",
    "sub rax, rsp",
    "cmp rax, {private_stack_bytes}",
    "jb 38f",
    "mov rsp, r11",
    "38:",
    "and rsp, -64",
    "sub rsp, {vector_bytes} + {call_bytes} + {wide_bytes}",
    "cxlraid_save_vectors",
    "mov rax, [rdi + {wide} - {vector_bytes}]",
    "mov [rsp + {wide}], rax",
    "test eax, eax",
    "je 39f",
    "cxlraid_save_wide",
    "39:",
    "call {finish}",
    "75:",
    "cxlraid_restore",
    "lea r11, [rbp - {call_bytes}]",
    "and r11, -16",
    "mov ecx, eax",
    "mov [r11 + {verdict} - {vector_bytes}], rcx",
    "cmp qword ptr [rsp + {wide}], 0",
    "je 36b",
    "cxlraid_restore_wide",
    "jmp 36b",
    // The same, where the private stack is not to be taken at once: the thread may be on its
    // alternate stack.
    "72:",
    "mov rcx, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[rcx + {own_stack_word}]",
    "test r11, r11",
    "je 38b",
    "mov rax, rsp",
    "sub rax, qword ptr fs:[rcx + {alternate_word}]",
    "cmp rax, qword ptr fs:[rcx + {alternate_bytes_word}]",
    "jae 71b",
    "mov r8, rdi",
    "cxlraid_block_all",
    "mov rdi, r8",
    "mov rsp, r11",
    "and rsp, -64",
    "sub rsp, {vector_bytes} + {call_bytes} + {wide_bytes}",
    "cxlraid_save_vectors",
    "mov rax, [rdi + {wide} - {vector_bytes}]",
    "mov [rsp + {wide}], rax",
    "test eax, eax",
    "je 73f",
    "cxlraid_save_wide",
    "73:",
    "call {finish_alternate}",
    "jmp 75b",
    "13:",
    "cxlraid_find_stack",
    ".cfi_endproc",
    // ---- sites in every other ELF object ----
    ".cfi_startproc",
    "21:",
    "ret",
    ".p2align 4",
    "cxlraid_label cxlraid_entry_foreign",
    "cxlraid_filter 21b, 22f",
    "22:",
    "cxlraid_frame",
    "cxlraid_switch 27f",
    "and rsp, -64",
    "sub rsp, {vector_bytes} + {call_bytes} + {wide_bytes}",
    "cxlraid_save",
    "movzx eax, byte ptr [rip + {wide_vectors}]",
    "mov [rsp + {wide}], rax",
    "test eax, eax",
    "je cxlraid_dispatch",
    "cxlraid_save_wide",
    "jmp cxlraid_dispatch",
    "27:",
    "cxlraid_find_stack",
    // ---- calls of both kinds that are made on the alternate stack: every signal is blocked, and
    // r11 is the private stack ----
    "cxlraid_alternate:",
    "mov rsp, r11",
    "and rsp, -64",
    "sub rsp, {vector_bytes} + {call_bytes} + {wide_bytes}",
    "cxlraid_save",
    "movzx eax, byte ptr [rip + {wide_vectors}]",
    "mov [rsp + {wide}], rax",
    "test eax, eax",
    "je 28f",
    "cxlraid_save_wide",
    "28:",
    "lea rdi, [rsp + {vector_bytes}]",
    "call {dispatch_alternate}",
    "jmp cxlraid_leave",
    ".cfi_endproc",
    // ---- signals: asks `arrived` for the program's handler, and jumps to it with the registers and
    // the stack that the kernel gave; returns if there is none to run ----
    ".p2align 4",
    "cxlraid_label cxlraid_signal_entry",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "mov r11, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "inc qword ptr fs:[r11 + {arriving_word}]",
    "call {arrived}",
    "mov r11, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
    "dec qword ptr fs:[r11 + {arriving_word}]",
    "jnz 46f",
    // This signal waits: what it has interrupted lets it in.
    "cmp rax, {waits}",
    "je 43f",
    "cxlraid_label cxlraid_signal_settled",
    "cmp qword ptr fs:[r11 + {waiting_word}], 0",
    "jne 42f",
    "40:",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "test rax, rax",
    "je 41f",
    "jmp rax",
    "41:",
    "ret",
    ".cfi_adjust_cfa_offset 24",
    // Another signal is in the entry below: that one lets in what waits.
    "46:",
    "cmp rax, {waits}",
    "jne 40b",
    "43:",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    // Other signals came meanwhile and wait: the mask is restored, which lets the first of them in at
    // `unmasked`.
    ".cfi_adjust_cfa_offset 24",
    "42:",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "mov qword ptr fs:[r11 + {waiting_word}], 0",
    "push qword ptr fs:[r11 + {waiting_mask_word}]",
    ".cfi_adjust_cfa_offset 8",
    "mov eax, 14",
    "mov edi, 2",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "cxlraid_label cxlraid_signal_unmasked",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "jmp 40b",
    "cxlraid_label cxlraid_signal_end",
    ".cfi_endproc",
    // ---- the end of a handler whose signal frame tells of SIGSEGV and SIGBUS: `ends` takes from the
    // frame's mask what is not really blocked. rsp is the kernel's `struct ucontext`. Unwinders find
    // there the registers of what was interrupted: CFA and rsp (7) at 160, rip (16) at 168, and so on.
    // They look at the instruction before the one that a handler returns to. ----
    ".p2align 4",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_escape 0xf, 0x4, 0x77, 0xa0, 0x1, 0x6",
    ".cfi_escape 0x10, 0x0, 0x3, 0x77, 0x90, 0x1",
    ".cfi_escape 0x10, 0x1, 0x3, 0x77, 0x88, 0x1",
    ".cfi_escape 0x10, 0x2, 0x3, 0x77, 0x98, 0x1",
    ".cfi_escape 0x10, 0x3, 0x3, 0x77, 0x80, 0x1",
    ".cfi_escape 0x10, 0x4, 0x3, 0x77, 0xf0, 0x0",
    ".cfi_escape 0x10, 0x5, 0x3, 0x77, 0xe8, 0x0",
    ".cfi_escape 0x10, 0x6, 0x3, 0x77, 0xf8, 0x0",
    ".cfi_escape 0x10, 0x7, 0x3, 0x77, 0xa0, 0x1",
    ".cfi_escape 0x10, 0x8, 0x2, 0x77, 0x28",
    ".cfi_escape 0x10, 0x9, 0x2, 0x77, 0x30",
    ".cfi_escape 0x10, 0xa, 0x2, 0x77, 0x38",
    ".cfi_escape 0x10, 0xb, 0x3, 0x77, 0xc0, 0x0",
    ".cfi_escape 0x10, 0xc, 0x3, 0x77, 0xc8, 0x0",
    ".cfi_escape 0x10, 0xd, 0x3, 0x77, 0xd0, 0x0",
    ".cfi_escape 0x10, 0xe, 0x3, 0x77, 0xd8, 0x0",
    ".cfi_escape 0x10, 0xf, 0x3, 0x77, 0xe0, 0x0",
    ".cfi_escape 0x10, 0x10, 0x3, 0x77, 0xa8, 0x1",
    "nop",
    "cxlraid_label cxlraid_handler_end",
    "mov eax, 14",
    "xor edi, edi",
    "lea rsi, [rip + {all}]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "cxlraid_label cxlraid_handler_ended",
    "mov rdi, rsp",
    "call {ends}",
    "mov eax, 15",
    "syscall",
    ".cfi_endproc",
    // Unwinders and debuggers know a signal frame by exactly these bytes.
    ".p2align 4",
    "nop",
    "cxlraid_label cxlraid_signal_return",
    "mov rax, 15",
    "syscall",
    ".text",
    wanted = sym WANTED,
    ours = sym OURS,
    wide_vectors = sym WIDE_VECTORS,
    dispatch = sym crate::dispatch::enter,
    dispatch_alternate = sym crate::dispatch::enter_from_alternate,
    finish = sym crate::dispatch::finish,
    finish_alternate = sym crate::dispatch::finish_from_alternate,
    carry = sym carry,
    arrived = sym crate::signals::arrived,
    ends = sym crate::signals::mask::handler_ends,
    all = sym ALL_SIGNALS,
    vector_bytes = const VECTOR_BYTES,
    call_bytes = const CALL_BYTES,
    wide_bytes = const WIDE_BYTES,
    wide_mask = const WIDE_MASK,
    private_stack_bytes = const PRIVATE_STACK_BYTES,
    next_stack = sym NEXT_STACK,
    stack_word = const STACK_WORD,
    own_stack_word = const OWN_STACK_WORD,
    alternate_word = const ALTERNATE_WORD,
    alternate_bytes_word = const ALTERNATE_BYTES_WORD,
    alternate_mask_word = const ALTERNATE_MASK_WORD,
    lending_word = const LENDING_WORD,
    inside = const INSIDE,
    waits = const WAITS,
    arriving_word = const ARRIVING_WORD,
    waiting_word = const WAITING_WORD,
    waiting_mask_word = const WAITING_MASK_WORD,
    nr = const NR,
    args = const ARGS,
    result = const RESULT,
    resume = const RESUME,
    flags = const FLAGS,
    frame = const FRAME,
    unblock = const UNBLOCK,
    mask = const MASK,
    instead = const INSTEAD,
    verdict = const VERDICT,
    wide = const WIDE,
    then = const THEN,
);

unsafe extern "C" {
    fn cxlraid_entry_libc();
    fn cxlraid_entry_foreign();
    fn cxlraid_unblocked();
    fn cxlraid_run();
    fn cxlraid_ran();
    fn cxlraid_signal_entry();
    fn cxlraid_signal_settled();
    fn cxlraid_signal_unmasked();
    fn cxlraid_signal_end();
    fn cxlraid_signal_return();
    fn cxlraid_handler_end();
    fn cxlraid_handler_ended();
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $symbol:ident) => {
        $(#[$doc])*
        pub(crate) fn $name() -> usize {
            $symbol as *const () as usize
        }
    };
}

label!(/// Where trampolines of libc and ld.so call.
    libc_entry, cxlraid_entry_libc);
label!(/// Where trampolines of every other object call.
    foreign_entry, cxlraid_entry_foreign);
label!(/// Just after the mask was restored on the way out.
    unblocked, cxlraid_unblocked);
label!(/// The `syscall` instruction of `Verdict::PassWith`.
    run, cxlraid_run);
label!(/// Just after the `syscall` instruction of `Verdict::PassWith`.
    ran, cxlraid_ran);
label!(/// The handler that the kernel is given for every signal.
    signal_entry, cxlraid_signal_entry);
label!(/// In the signal entry: `arrived` has answered.
    signal_settled, cxlraid_signal_settled);
label!(/// In the signal entry: signals that waited are let in. The stack holds a mask, what `arrived`
    /// answered, and the handler's third, second and first argument.
    signal_unmasked, cxlraid_signal_unmasked);
label!(/// Behind the signal entry.
    signal_end, cxlraid_signal_end);
label!(/// The restorer of handlers that the library installs for itself, and of faults' handlers while a test tool catches system calls.
    signal_return, cxlraid_signal_return);

label!(/// Where a handler returns to whose end [`crate::signals::mask`] is told of.
    handler_end, cxlraid_handler_end);
label!(/// From here on that return is not interrupted.
    handler_ended, cxlraid_handler_ended);

/// The call that a stub has carried to the program's stack, and the verdict.
///
/// # Safety
/// `stack_pointer` is that of a thread interrupted at one of the labels [`unblocked`], [`run`] or
/// [`ran`]; nobody else uses the frame while the reference lives.
pub(crate) unsafe fn frame<'a>(stack_pointer: usize) -> (&'a mut Call, u32) {
    const VERDICT_AT: usize = VERDICT - VECTOR_BYTES;
    // SAFETY: the caller's promise; the stub laid the frame out with these offsets.
    unsafe { (&mut *(stack_pointer as *mut Call), *((stack_pointer + VERDICT_AT) as *const u64) as u32) }
}

/// The bytes of a stub's frame that are carried.
const CARRIED_BYTES: usize = WIDE + 8 - VECTOR_BYTES;
const _: () = assert!(CARRIED_BYTES <= CALL_BYTES);

/// Where the stub carries a call to, if it does.
pub(crate) const fn carried(call: &Call) -> usize {
    (call.frame - CALL_BYTES) & !15
}

/// Carries a call, with the two words behind it, to the program's stack. What the call in its place
/// points to in the `Call` itself goes along.
///
/// # Safety
/// Called by the stub: `call` is in its frame, and `to`, which may overlap it, lies on the program's
/// stack below all that is in use.
unsafe extern "C" fn carry(call: *const Call, to: *mut Call) {
    // SAFETY: the caller's promise.
    let carried = unsafe {
        core::ptr::copy(call.cast::<u8>(), to.cast::<u8>(), CARRIED_BYTES);
        &mut *to
    };
    let moved = |address: usize| {
        let offset = address.wrapping_sub(call as usize);
        if offset < size_of::<Call>() { to as usize + offset } else { address }
    };
    let [number, args @ ..] = &mut carried.instead;
    args.iter_mut().for_each(|argument| *argument = moved(*argument));
    if *number == linux_raw_sys::general::__NR_pselect6 as usize {
        // Where its last argument leads, an address comes first (`signals::mask::wait`).
        carried.scratch[1] = moved(carried.scratch[1] as usize) as u64;
    }
}

/// Finds out whether xsave can be used. Called once, by the constructor.
pub(crate) fn prepare() {
    // Bits 26 and 27: xsave is there and the kernel enabled it.
    let ecx = core::arch::x86_64::__cpuid(1).ecx;
    let wide = ecx >> 26 & 3 == 3;
    WIDE_VECTORS.store(u8::from(wide), core::sync::atomic::Ordering::Relaxed);
}
