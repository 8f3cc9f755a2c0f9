//! Whether a member's file system takes no changes any more.
//!
//! The fault it exists for: after an error of its disk a file system makes itself read-only (ext4's
//! `errors=remount-ro`). Every change answers EROFS then, and so does every open for writing.
//! Stores through mappings still reach its page cache, and never its disk. Such a member has
//! failed. A mount that is read-only for one process alone (a sandbox, a bind mount) answers EROFS
//! as well; that says nothing about the member, and must not put it out of use for everybody.

use crate::proc_file;
use alloc::format;
use sys::{AsRawFd, BorrowedFd};

/// Whether the file system that a descriptor lies on is read-only for everybody. False where
/// proc(5) does not tell.
#[must_use]
pub fn is_read_only(fd: BorrowedFd<'_>) -> bool {
    let mount_of = |text: &[u8]| {
        let mut lines = core::str::from_utf8(text).ok()?.lines();
        lines.find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
    };
    let id = mount_of(&proc_file::read(&format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())));
    id.is_some_and(|id| says_read_only(&proc_file::read("/proc/thread-self/mountinfo"), id))
}

/// What `mountinfo` says of the file system of a mount: behind ` - ` come its kind, its source and
/// its own options.
fn says_read_only(mounts: &[u8], id: u64) -> bool {
    let mut lines = mounts.split(|&byte| byte == b'\n').filter_map(|line| core::str::from_utf8(line).ok());
    let line = lines.find(|line| line.split(' ').next().is_some_and(|first| first.parse() == Ok(id)));
    let options = line.and_then(|line| line.split_once(" - ")).and_then(|(_, own)| own.split(' ').nth(2));
    options.is_some_and(|options| options.split(',').any(|option| matches!(option, "ro" | "emergency_ro" | "shutdown")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::AsFd;
    use sys::rustix::fs::{Mode, OFlags, open};

    #[test]
    fn the_file_systems_options_decide_not_the_mounts() {
        let mounts = b"64 27 7:0 / /a rw,relatime - ext4 /dev/loop0 rw,errors=remount-ro,emergency_ro\n\
            65 27 7:0 / /b ro,relatime shared:1 - ext4 /dev/loop1 rw\n\
            66 27 7:0 / /c rw - ext4 /dev/loop2 ro,errors=remount-ro\n";
        assert_eq!([64, 65, 66, 6].map(|id| says_read_only(mounts, id)), [true, false, true, false]);
    }

    #[test]
    fn what_can_be_written_to_is_not_read_only() {
        let directory = open("/dev/shm", OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(!is_read_only(directory.as_fd()));
        assert!(!proc_file::read("/proc/thread-self/mountinfo").is_empty());
    }
}
