//! This module finds out what the kernel refuses before it looks at any path: flags that it does
//! not know or does not take together.
//!
//! Which flags those are depends on the kernel, and so does the error. So the library makes a call
//! with unusual flags once with a path that leads nowhere: relative to a number that is no
//! descriptor. If the kernel comes as far as the path, it answers EBADF, and the flags are good.

use super::on_path::At;
use crate::call::{Call, Verdict};
use crate::uapi::{SO_TYPE, SOL_SOCKET};
use linux_raw_sys::general::{__NR_getsockopt, __NR_openat};
use sys::OsError;
use sys::raw::syscall;

/// The kernel's refusal of a call's other arguments than its paths, if it refuses them. Each path
/// has a directory argument.
pub(crate) fn refusal(call: &Call, paths: &[At]) -> Option<Verdict> {
    let mut args = call.args;
    paths.iter().for_each(|at| at.lead_nowhere(&mut args));
    // SAFETY: the paths are ours and lead nowhere; the other arguments are the program's.
    let result = unsafe { syscall(call.number, args) };
    (result != -(OsError::BADF.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

/// The kernel's refusal of a call that names a file to it for good (inotify, fanotify), if the
/// kernel refuses what it looks at before the path: flags, and the descriptor of the watch. The
/// path is an empty one, of which the kernel says that it leads nowhere.
pub(crate) fn refusal_of_watch(call: &Call, at: At) -> Option<Verdict> {
    let mut args = call.args;
    at.replace(&mut args, b"\0");
    // SAFETY: the path is ours and leads nowhere; the other arguments are the program's.
    let result = unsafe { syscall(call.number, args) };
    (result != -(OsError::NOENT.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

/// The kernel's refusal of the flags of open(2), if it refuses them.
pub(crate) fn refusal_of_open(flags: usize, mode: usize) -> Option<Verdict> {
    let args = [usize::MAX, c"x".as_ptr() as usize, flags, mode, 0, 0];
    // SAFETY: the path is ours and leads nowhere.
    let result = unsafe { syscall(__NR_openat as usize, args) };
    (result != -(OsError::BADF.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

/// The kernel's refusal of a descriptor that is to be a socket, if it is none.
pub(crate) fn refusal_of_socket(descriptor: sys::RawFd) -> Option<Verdict> {
    let (mut kind, mut bytes) = (0_u32, size_of::<u32>() as u32);
    let args = [descriptor as usize, SOL_SOCKET as usize, SO_TYPE, &raw mut kind as usize, &raw mut bytes as usize, 0];
    // SAFETY: asks a descriptor what it is; there is room for the answer.
    let result = unsafe { syscall(__NR_getsockopt as usize, args) };
    (result < 0).then_some(Verdict::Done(result))
}

/// The kernel's refusal of a call's flags, if there is one. The kernel is asked only if the call
/// has other flags than the `common` ones.
pub(crate) fn odd(call: &Call, paths: &[At], flags: usize, common: u32) -> Option<Verdict> {
    if flags as u32 & !common == 0 { None } else { refusal(call, paths) }
}
