//! What Syscall User Dispatch showed, as lines appended to one file by all processes that name it.
//!
//! | line | meaning |
//! |---|---|
//! | `armed <pid> <program>` | a program began with its calls under watch |
//! | `missed <call> <object>+<offset> <path or descriptor>` | a call on the array from an instruction that was not patched: an error of ours |
//! | `other <call> <object>+<offset>` | a call of a kind we serve, from such an instruction, on something else; once per place and process |
//!
//! Written on the program's stack, which has room for it unless it is a signal stack of the
//! smallest size; such calls are rare.

use super::addresses::Addresses;
use crate::calls::directory;
use crate::calls::paths::{AT_FDCWD, Where, locate};
use crate::maps::Area;
use crate::report::{Line, write_raw};
use crate::table::ROWS;
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, Ordering};
use heap::string::String;
use heap::vec::Vec;
use linux_raw_sys::general::__NR_getcwd;
use sys::rustix::fs::{CWD, Mode, OFlags, openat, readlink};
use sys::{AsRawFd as _, RawFd};

/// The log's path, a C string.
static PATH: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Places that had their `other` line.
static SAID: Addresses = Addresses::new();

/// Names the file.
pub(super) fn start(path: &'static CStr) {
    PATH.store(path.as_ptr().cast_mut().cast(), Ordering::Release);
    // Without memory every such line is written every time.
    let _ = SAID.prepare();
}

/// This program's calls are under watch from now on.
pub(super) fn armed() {
    let program = readlink("/proc/self/exe", Vec::new()).map(|path| path.into_bytes()).unwrap_or_default();
    line(format_args!("armed {} {}", crate::process::getpid(), String::from_utf8_lossy(&program)));
}

/// A call whose number we serve was about to be made in front of `continuation`, where nothing was
/// patched.
pub(super) fn missed(number: u32, args: [usize; 6], continuation: usize) {
    let name = ROWS[number as usize].name;
    match concern(number, &args) {
        Some(concern) => line(format_args!("missed {name} {} {concern}", place(continuation))),
        None if SAID.get(continuation).is_some() => {}
        None => {
            SAID.insert(continuation, 1);
            line(format_args!("other {name} {}", place(continuation)));
        }
    }
}

/// What of the array a call concerns, if anything.
fn concern(number: u32, args: &[usize; 6]) -> Option<String> {
    let row = &ROWS[number as usize];
    let has = |bits: u8, index: usize| bits >> index & 1 != 0;
    for (index, &argument) in args.iter().enumerate() {
        if has(row.descriptors, index) && crate::calls::is_ours(argument as RawFd) {
            return Some(heap::format!("descriptor {}", argument as RawFd));
        }
        if has(row.paths, index) {
            // A directory argument stands before its path.
            let base = if index > 0 && has(row.descriptors, index - 1) { args[index - 1] as RawFd } else { AT_FDCWD };
            if let Where::Array(path) = locate(base, argument) {
                return Some(String::from_utf8_lossy(path.text()).into_owned());
            }
        }
    }
    (number == __NR_getcwd && directory::is_ours(AT_FDCWD)).then(|| String::from("the current directory"))
}

/// Where `address` is: the file mapped there and the offset in it.
fn place(address: usize) -> String {
    let Some(area) = Area::around(address) else { return heap::format!("{address:#x}") };
    let name = if area.name.is_empty() { b"(no file)" } else { &area.name[..] };
    heap::format!("{}+{:#x}", String::from_utf8_lossy(name), address - area.addresses.start + area.offset)
}

/// Appends one line. Opened anew each time: the program may close any descriptor.
fn line(text: fmt::Arguments<'_>) {
    let path = PATH.load(Ordering::Acquire);
    if path.is_null() {
        return;
    }
    let mut line = Line::new();
    // A Line does not fail; a longer one is cut and runs into the next.
    let _ = writeln!(line, "{text}");
    // SAFETY: `start` was given a C string that lives as long as the process.
    let path = unsafe { CStr::from_ptr(path.cast()) };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    if let Ok(file) = openat(CWD, path, flags, Mode::from_raw_mode(0o666)) {
        write_raw(file.as_raw_fd(), line.as_bytes());
    }
}
