//! Where mounts are: the kernel's list of them, making one, and taking one away.

use crate::Session;
use array::proc_file::unescaped;
use std::{
    ffi::{CString, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::mount::{self, MountFlags, UnmountFlags};
use sys::{AsRawFd as _, OwnedFd, Result};

/// What the kernel calls a mount of an array.
const TYPE: &str = "fuse.cxlraid";
const DEVICE: &str = "/dev/fuse";

/// A mount in the kernel's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// The kernel's number for it.
    pub id: u64,
    /// The directory.
    pub directory: PathBuf,
    /// Of an array's mount, the array's name.
    pub array: Option<String>,
}

/// All mounts that this process sees, in the order in which they were made (proc_pid_mountinfo(5)).
///
/// # Errors
/// If the list cannot be read.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let directory = PathBuf::from(OsString::from_vec(unescaped(words.nth(3)?)));
    let mut behind = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source) = (behind.next()?, behind.next()?);
    let array = (kind == TYPE.as_bytes()).then(|| String::from_utf8_lossy(&unescaped(source)).into_owned());
    Some(Mounted { id, directory, array })
}

/// Opens the kernel's side.
///
/// # Errors
/// Those of open(2) of /dev/fuse.
pub fn device() -> Result<OwnedFd> {
    open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Mounts a session's device at a directory, under an array's name.
///
/// # Errors
/// Those of mount(2).
pub fn mount(session: &Session, array: &str, directory: &Path, allow_other: bool, flags: MountFlags) -> Result<()> {
    let (user, group) = (sys::rustix::process::getuid().as_raw(), sys::rustix::process::getgid().as_raw());
    let device = session.device().as_raw_fd();
    let others = if allow_other { ",allow_other" } else { "" };
    let options = format!("fd={device},rootmode=40000,user_id={user},group_id={group},default_permissions{others}");
    let options = CString::new(options).unwrap_or_default();
    mount::mount(array, directory.as_os_str().as_bytes(), TYPE, flags, options.as_c_str())
}

/// Takes a mount away. `detach`: at once, also if it is in use; those who use it go on as long as
/// somebody serves it.
///
/// # Errors
/// Those of umount2(2): `BUSY` if somebody uses it.
pub fn unmount(directory: &Path, detach: bool) -> Result<()> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    mount::unmount(directory.as_os_str().as_bytes(), flags | UnmountFlags::NOFOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let line = b"36 35 0:40 / /mnt/a\\040b rw,relatime shared:1 - fuse.cxlraid db rw,user_id=0";
        let expected = Mounted { id: 36, directory: "/mnt/a b".into(), array: Some("db".into()) };
        assert_eq!(parse(line), Some(expected));
        let other = b"36 35 98:0 /mnt1 /mnt2 rw master:1 - ext3 /dev/root rw";
        assert_eq!(parse(other), Some(Mounted { id: 36, directory: "/mnt2".into(), array: None }));
        assert_eq!(parse(b""), None);
        assert!(mounted().unwrap().iter().any(|mount| mount.directory == Path::new("/proc")));
    }
}
