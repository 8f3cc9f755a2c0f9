//! One-line messages to standard error, without allocation: what happened, where, and what was
//! done. What an operator must hear of goes to the system's log, too.
//!
//! If standard error is a file of the array, nothing is written to it: that would be a write of the
//! program's, made in the middle of another one. The message then goes to the system's log alone.
//! The log is a local socket (`/dev/log`, syslog(3)); if no process listens there, the message is
//! lost.

use crate::uapi::{AF_UNIX, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_NONBLOCK, UNIX_PATH_MAX};
use core::fmt::{self, Write};
use linux_raw_sys::general::{__NR_sendto, __NR_socket};
use linux_raw_sys::net::SOCK_DGRAM;
use sys::raw::syscall;
use units::ShownTo;

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

    /// `message` without what could direct a terminal: it may hold paths and names that lie on
    /// members.
    fn of(message: fmt::Arguments<'_>) -> Self {
        let mut line = Self::new();
        // A Line never fails; what does not fit is cut.
        let _ = write!(ShownTo(&mut line), "{message}");
        line
    }

    /// Ends the line, if need be in the place of its last byte.
    fn end(&mut self) {
        let at = self.length.min(LINE_BYTES - 1);
        self.bytes[at] = b'\n';
        self.length = at + 1;
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
    if is_on_member() {
        log(message);
    } else {
        let mut line = Line::of(format_args!("cxlraid: {message}"));
        line.end();
        write_raw(2, line.as_bytes());
    }
}

/// Writes a message to standard error and to the system's log.
pub(crate) fn to_all(message: fmt::Arguments<'_>) {
    if !is_on_member() {
        log(message);
    }
    print(message);
}

/// Whether standard error is a file of an array. The kernel is asked, and nothing else: whoever
/// reports may hold any lock.
fn is_on_member() -> bool {
    namespace::is_backing(crate::calls::directory::borrow(2))
}

/// Sends `message` to the system's log, with facility `daemon` and level `warning`.
pub(crate) fn log(message: fmt::Arguments<'_>) {
    const PRIORITY: u32 = 3 << 3 | 4;
    let line = Line::of(format_args!("<{PRIORITY}>cxlraid[{}]: {message}", crate::process::getpid()));
    send(line.as_bytes(), b"/dev/log");
}

/// Sends `text` as one datagram to the local socket at `path`, if somebody listens there who can
/// take it at once.
fn send(text: &[u8], path: &[u8]) {
    let mut address = UnixAddress { family: AF_UNIX, path: [0; UNIX_PATH_MAX] };
    let Some(place) = address.path.get_mut(..path.len()) else { return };
    place.copy_from_slice(path);
    let kind = (SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK) as usize;
    // SAFETY: asks for a new socket.
    let socket = unsafe { syscall(__NR_socket as usize, [AF_UNIX as usize, kind, 0, 0, 0, 0]) };
    let Ok(socket) = sys::raw::check(socket) else { return };
    let (bytes, to) = (text.as_ptr() as usize, (&raw const address) as usize);
    // SAFETY: the socket was made here; the text and the address outlive the call.
    unsafe { syscall(__NR_sendto as usize, [socket, bytes, text.len(), MSG_NOSIGNAL, to, size_of::<UnixAddress>()]) };
    crate::calls::descriptor::close_unheld(socket as sys::RawFd);
}

/// unix(7).
#[repr(C)]
struct UnixAddress {
    family: u16,
    path: [u8; UNIX_PATH_MAX],
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

#[cfg(test)]
mod tests {
    use super::{LINE_BYTES, Line};

    #[test]
    fn a_message_is_one_line_without_escapes() {
        let mut line = Line::of(format_args!("cxlraid: {}: lost", "/j\u{1b}[2J\n\u{202e}"));
        line.end();
        assert_eq!(line.as_bytes(), b"cxlraid: /j\\x1b[2J\\n\\u{202e}: lost\n");
        let mut line = Line::of(format_args!("{}", "\n".repeat(LINE_BYTES)));
        line.end();
        assert_eq!(
            (line.as_bytes().len(), line.as_bytes().iter().position(|&byte| byte == b'\n')),
            (LINE_BYTES, Some(LINE_BYTES - 1))
        );
    }

    #[test]
    fn a_listener_gets_the_text_and_nobody_is_waited_for() {
        let path = std::env::temp_dir().join(std::format!("cxlraid-report-{}", std::process::id()));
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        super::send(b"to nobody", bytes);
        let listener = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        super::send(b"<28>cxlraid[1]: text", bytes);
        let mut back = [0; 100];
        let count = listener.recv(&mut back).unwrap();
        assert_eq!(&back[..count], b"<28>cxlraid[1]: text");
        super::send(b"a path that no socket can have", &[b'x'; 200]);
        std::fs::remove_file(&path).unwrap();
    }
}
