//! Reading files under /proc (proc(5)): their length is not known before they are read, and long
//! ones come in steps.

use alloc::vec::Vec;
use sys::OsError;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::io;

/// How much is read at a time: the kernel gives the lines of most files here in steps of this size.
pub const STEP_BYTES: usize = 4096;

/// The bytes of a file; those before the error if it cannot be read to its end, none if it cannot
/// be opened.
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

/// A field of fstab(5) or of a file of mounts, in which a blank, a tab, a line end or a backslash
/// is written as three octal digits behind a backslash.
#[must_use]
pub fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        let (byte, behind) = match digits {
            Some(digits) => (digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8) | (digit - b'0')), &behind[3..]),
            None => (byte, behind),
        };
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn escapes_are_read() {
        assert_eq!(unescaped(br"/a\040b\134c\011"), b"/a b\\c\t");
        assert_eq!(unescaped(br"/a\04"), br"/a\04");
        assert_eq!(unescaped(br"\777"), [0xff]);
    }
}
