//! A system call of the program, and what becomes of it: the words that the entry stub, `dispatch`
//! and the handlers share.
//!
//! A served call is a function `fn(&mut Call) -> Verdict`. This module knows the form of both and
//! imports nothing of the library that serves calls, so that every other module may use it.

/// One system call of the program, as the entry stub laid it out (the stub knows these offsets).
#[repr(C)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: usize,
    /// Its arguments.
    pub(crate) args: [usize; 6],
    /// What `rax` will hold when the program goes on; set from the verdict.
    pub(crate) result: isize,
    /// Where the stub returns to, inside the trampoline.
    pub(crate) resume: usize,
    /// The program's flags, in the form of `lahf` and `seto`.
    pub(crate) flags: usize,
    /// True if the stub must restore `mask` on the way out.
    pub(crate) unblock: usize,
    /// The program's signal mask, if a signal was deferred.
    pub(crate) mask: u64,
    /// Number and arguments of the call the stub makes for `PassWith`.
    pub(crate) instead: [usize; 7],
    /// Called after that, with `result` set, to say what the program gets; reset by each call. It
    /// may set itself again, and `instead`, to go on.
    pub(crate) then: Option<fn(&mut Call) -> isize>,
    /// True if the call in `instead` is not made once more behind a handler (SA_RESTART): `then` is
    /// called, with [`sys::waiting::NOT_MADE`] for its result.
    pub(crate) gives_up: bool,
    /// Where the stub has saved the program's rbp, on the program's stack.
    pub(crate) frame: usize,
    /// Memory the served call may give to the kernel in the program's stead. While the program's
    /// handlers may run, the whole lies on the program's stack, and pointers in `instead` that lead
    /// into it are moved along.
    pub(crate) scratch: [u64; 6],
}

/// Says what becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The program's instruction runs, with every register as it was.
    Pass,
    /// It does not; this is the result (`-errno` for an error).
    Done(isize),
    /// The stub makes this call for it and gives its result back. Signals arrive as in the
    /// program's own call.
    PassWith { number: usize, args: [usize; 6] },
}

impl Verdict {
    /// The error `error` as a result.
    pub(crate) const fn error(error: sys::OsError) -> Self {
        Self::Done(-(error.raw_os_error() as isize))
    }

    /// Returns what the kernel answered.
    pub(crate) fn from_result(result: sys::Result<usize>) -> Self {
        match result {
            Ok(value) => Self::Done(value as isize),
            Err(error) => Self::error(error),
        }
    }
}

impl Call {
    /// Returns a call of the library's own, which is served as if the program made it. It has no
    /// place in the program to go back to.
    pub(crate) const fn of_library(number: usize, args: [usize; 6]) -> Self {
        Self {
            number,
            args,
            result: 0,
            resume: 0,
            flags: 0,
            unblock: 0,
            mask: 0,
            instead: [0; 7],
            then: None,
            gives_up: false,
            frame: 0,
            scratch: [0; 6],
        }
    }

    /// Argument `index` as a descriptor, as the kernel reads it.
    pub(crate) const fn descriptor(&self, index: usize) -> sys::RawFd {
        self.args[index] as sys::RawFd
    }

    /// Makes the call itself, now, with its own arguments. For calls that do not block.
    pub(crate) fn kernel(&self) -> isize {
        // SAFETY: exactly what the program asked the kernel to do.
        unsafe { sys::raw::syscall(self.number, self.args) }
    }
}

/// The program's instruction is to run.
pub(crate) const PASS: u32 = 0;
/// The result is there.
pub(crate) const DONE: u32 = 1;
/// The stub is to make the call in `instead`.
pub(crate) const RUN: u32 = 2;
