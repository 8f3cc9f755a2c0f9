//! This module finds out what the kernel refuses before it looks at any path: flags that it does not know or does not take together.
//!
//! Which flags those are depends on the kernel, and so does the error. So a call with unusual flags is made once with a path that leads nowhere: relative to a descriptor that is none. If
//! the kernel comes as far as the path, it answers EBADF, and the flags are good.

use super::on_path::At;
use crate::dispatch::{Call, Verdict};
use sys::OsError;
use sys::raw::syscall;

/// The kernel's refusal of a call's other arguments than its paths, if it refuses them. Each path has a directory argument.
pub(crate) fn refusal(call: &Call, paths: &[At]) -> Option<Verdict> {
    let mut args = call.args;
    paths.iter().for_each(|at| at.lead_nowhere(&mut args));
    // SAFETY: the paths are ours and lead nowhere; the other arguments are the program's.
    let result = unsafe { syscall(call.number, args) };
    (result != -(OsError::BADF.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

/// The same, asked only if there are other flags than the `common` ones.
pub(crate) fn odd(call: &Call, paths: &[At], flags: usize, common: u32) -> Option<Verdict> {
    if flags as u32 & !common == 0 { None } else { refusal(call, paths) }
}
