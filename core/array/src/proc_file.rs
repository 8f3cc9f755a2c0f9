//! Reading files under /proc (proc(5)): their length is not known before they are read, and long ones come in steps.

use alloc::vec::Vec;
use sys::OsError;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::io;

/// How much is read at a time: the kernel gives the lines of most files here in steps of this size.
pub const STEP_BYTES: usize = 4096;

/// The bytes of a file; those before the error if it cannot be read to its end, none if it cannot be opened.
#[must_use]
pub fn read(path: &str) -> Vec<u8> {
    let mut text = Vec::new();
    let Ok(fd) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return text };
    loop {
        let end = text.len();
        text.resize(end + STEP_BYTES, 0);
        let result = io::read(&fd, &mut text[end..]);
        text.truncate(end + result.unwrap_or(0));
        match result {
            Ok(0) => return text,
            Ok(_) | Err(OsError::INTR) => {}
            Err(_) => return text,
        }
    }
}
