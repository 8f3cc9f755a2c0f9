//! One-line messages to standard error, without allocation: what happened, where, and what was done.

use core::fmt::{self, Write};
use sys::raw::syscall;

/// The longest message; the rest is cut.
const LINE_BYTES: usize = 512;

/// A line under construction on the stack.
pub(crate) struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Line {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; LINE_BYTES], length: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let taken = text.len().min(LINE_BYTES - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes `cxlraid: <message>` as one line to standard error.
pub(crate) fn print(message: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // A Line never fails; what does not fit is cut.
    let _ = writeln!(line, "cxlraid: {message}");
    write_raw(2, line.as_bytes());
}

/// Writes `bytes` to `descriptor`, ignoring errors: there is nobody to tell.
pub(crate) fn write_raw(descriptor: i32, bytes: &[u8]) {
    let number = linux_raw_sys::general::__NR_write as usize;
    // SAFETY: write() reads `bytes`, which outlives the call, and changes no memory.
    unsafe { syscall(number, [descriptor as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
}

/// `report!("...", ...)`: one line to standard error, in the manner of `format!`.
macro_rules! report {
    ($($argument:tt)*) => { $crate::report::print(format_args!($($argument)*)) };
}
pub(crate) use report;
