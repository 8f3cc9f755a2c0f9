//! The descriptors that a program has inherited when it starts: the numbers in /proc/thread-self/fd.

use core::ffi::CStr;
use sys::rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use sys::{AsRawFd, RawFd};

const BUFFER_BYTES: usize = 4096;

/// Calls `found` with each open descriptor. Without /proc it finds none.
pub(crate) fn descriptors(mut found: impl FnMut(RawFd)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = openat(CWD, c"/proc/thread-self/fd", flags, Mode::empty()) else { return };
    let mut buffer = [core::mem::MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        match number(entry.file_name()) {
            Some(descriptor) if descriptor != directory.as_raw_fd() => found(descriptor),
            _ => {}
        }
    }
}

fn number(name: &CStr) -> Option<RawFd> {
    core::str::from_utf8(name.to_bytes()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn open_files_are_found() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/").unwrap();
        let mut found = std::vec::Vec::new();
        super::descriptors(|descriptor| found.push(descriptor));
        assert!(found.contains(&file.as_raw_fd()));
    }
}
