//! Opening what may have to wait for somebody else (the other end of a pipe), where a signal may
//! come that is to be handled first.
//!
//! front/preload keeps the program's handlers out of the library: a signal that comes meanwhile is
//! sent again, and every signal is blocked until the thread leaves the library. A call that waits
//! would then wait on with all signals blocked. So it is made by code whose every instruction is
//! known. If a signal has been deferred before the call, the call is not made. If a signal comes
//! before the call, or the kernel is about to make the call once more behind a signal
//! (SA_RESTART), whoever handles the signal moves the thread to [`end`] ([`is_before_end`]). In each
//! case the answer is [`NOT_MADE`], and nothing has been opened. Other answers are the kernel's,
//! `INTR` too: that handler has no SA_RESTART.

use crate::thread::{DEFERRED_WORD, block};
use crate::{AsRawFd, BorrowedFd, FromRawFd, OsError, OwnedFd, RawFd, Result, raw};
use core::arch::global_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{OFlags, ResolveFlags};

/// The call was not made, since a signal is to be handled first. No file system answers with it.
pub const NOT_MADE: OsError = OsError::STRPIPE;

/// Whether this process never waits ([`refuse`]).
static REFUSED: AtomicBool = AtomicBool::new(false);

global_asm!(
    ".section .text.cxlraid_waiting,\"ax\",@progbits",
    ".p2align 4",
    ".hidden cxlraid_waiting",
    ".globl cxlraid_waiting",
    ".type cxlraid_waiting, @function",
    "cxlraid_waiting:",
    ".cfi_startproc",
    // rdi: the number of the call; rsi: its arguments; rdx: the word that is not 0 if a signal was
    // deferred.
    "mov rax, rdi",
    "mov r11, rdx",
    "mov rcx, rsi",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    ".hidden cxlraid_waiting_start",
    ".globl cxlraid_waiting_start",
    "cxlraid_waiting_start:",
    "cmp qword ptr [r11], 0",
    "jne 2f",
    "syscall",
    ".hidden cxlraid_waiting_end",
    ".globl cxlraid_waiting_end",
    "cxlraid_waiting_end:",
    "ret",
    "2:",
    "mov rax, {not_made}",
    "ret",
    ".cfi_endproc",
    ".text",
    not_made = const -(NOT_MADE.raw_os_error() as isize),
);

unsafe extern "C" {
    fn cxlraid_waiting(number: usize, args: *const [usize; 6], deferred: *const usize) -> isize;
    fn cxlraid_waiting_start();
    fn cxlraid_waiting_end();
}

/// Whether a thread that was interrupted at `address` is to be moved to [`end`], with the answer
/// [`NOT_MADE`], so that a signal that was deferred there is not waited for.
#[must_use]
pub fn is_before_end(address: usize) -> bool {
    (cxlraid_waiting_start as *const () as usize..end()).contains(&address)
}

/// Behind the call, where its answer is in rax.
#[must_use]
pub fn end() -> usize {
    cxlraid_waiting_end as *const () as usize
}

/// From now on this process is told [`NOT_MADE`] instead of waiting. Another process waits for it,
/// to which signals come.
pub fn refuse() {
    REFUSED.store(true, Ordering::Relaxed);
}

/// Opens as openat2(2), without making anything.
///
/// # Errors
/// [`NOT_MADE`], and what the kernel says.
pub fn open(directory: BorrowedFd<'_>, path: &CStr, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd> {
    const O_LARGEFILE: u64 = linux_raw_sys::general::O_LARGEFILE as u64;
    if REFUSED.load(Ordering::Relaxed) {
        return Err(NOT_MADE);
    }
    let how = [u64::from(flags.bits()) | O_LARGEFILE, 0, resolve.bits()];
    let args = [directory.as_raw_fd() as usize, path.as_ptr() as usize, how.as_ptr() as usize, size_of_val(&how), 0, 0];
    let deferred = block().front[DEFERRED_WORD].as_ptr();
    // SAFETY: the path and the structure outlive the call, which stores nothing; the word is the
    // calling thread's own.
    let answer = unsafe { cxlraid_waiting(linux_raw_sys::general::__NR_openat2 as usize, &raw const args, deferred) };
    // SAFETY: the descriptor was made by this call.
    raw::check(answer).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;

    #[test]
    fn nothing_is_opened_while_a_signal_is_deferred() {
        let open = || open(CWD, c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, ResolveFlags::empty());
        assert!(open().is_ok());
        block().front[DEFERRED_WORD].store(1, Ordering::Relaxed);
        assert_eq!(open().unwrap_err(), NOT_MADE);
        block().front[DEFERRED_WORD].store(0, Ordering::Relaxed);
        assert!(open().is_ok() && !is_before_end(end()) && is_before_end(end() - 2));
    }
}
