//! Where mounts are: the kernel's list of them, making one, and taking one away.
//!
//! A mount whose process has died is replaced without a moment in which programs see the directory
//! that lies under it: the new mount is put beneath the dead one, which is taken away then.

use array::proc_file::unescaped;
use linux_raw_sys::general::__NR_ioctl;
use namespace::handover::{IDENTIFY, IDENTITY_BYTES, Identity};
use std::{
    ffi::{CString, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};
use sys::rustix::fs::{CWD, Mode, OFlags, open, openat};
use sys::rustix::mount::{
    self, FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use sys::{AsFd, AsRawFd as _, BorrowedFd, OsError, OwnedFd, Result};

/// What the kernel calls a mount of an array.
const TYPE: &str = "fuse.cxlraid";
/// The two parts of that, for the calls that make a mount step by step.
const FILE_SYSTEM: &str = "fuse";
const SUBTYPE: &str = "cxlraid";
const DEVICE: &str = "/dev/fuse";

/// A mount in the kernel's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// The kernel's number for it.
    pub id: u64,
    /// The number of the mount that it lies on.
    pub on: u64,
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
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let (id, on) = (number()?, number()?);
    let directory = PathBuf::from(OsString::from_vec(unescaped(words.nth(2)?)));
    let mut behind = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source) = (behind.next()?, behind.next()?);
    let array = (kind == TYPE.as_bytes()).then(|| String::from_utf8_lossy(&unescaped(source)).into_owned());
    Some(Mounted { id, on, directory, array })
}

/// Opens the kernel's side.
///
/// # Errors
/// Those of open(2) of /dev/fuse.
pub fn device() -> Result<OwnedFd> {
    open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// How a directory of an array is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'a> {
    /// The array's name.
    pub array: &'a str,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
    /// What holds for everything in it.
    pub flags: MountFlags,
}

/// Mounts a device at a directory. Whoever calls there waits until a [`Session`](crate::Session)
/// serves the device.
///
/// # Errors
/// Those of mount(2).
pub fn mount(device: impl AsFd, directory: &Path, manner: Manner<'_>) -> Result<()> {
    let mut options = String::from("default_permissions");
    for (name, value) in numbers(device.as_fd()) {
        options += &format!(",{name}={value}");
    }
    if manner.allow_other {
        options += ",allow_other";
    }
    let options = CString::new(options).unwrap_or_default();
    mount::mount(manner.array, directory.as_os_str().as_bytes(), TYPE, manner.flags, options.as_c_str())
}

/// What the kernel is told of a mount in numbers.
fn numbers(device: BorrowedFd<'_>) -> [(&'static str, String); 4] {
    let (user, group) = (sys::rustix::process::getuid().as_raw(), sys::rustix::process::getgid().as_raw());
    let device = device.as_raw_fd();
    [("fd", device.to_string()), ("rootmode", "40000".into()), ("user_id", user.to_string()), ("group_id", group.to_string())]
}

/// Mounts a device at a directory where a mount is whose process has died, and takes that
/// away. `dead` is the kernel's number for it.
///
/// Linux before 6.5 puts nothing beneath a mount. There the dead one is taken away first, and
/// programs see the directory under it for a moment.
///
/// # Errors
/// Those of mount(2), fsopen(2), move_mount(2) and umount2(2).
pub fn mount_over_dead(device: impl AsFd, directory: &Path, dead: u64, manner: Manner<'_>) -> Result<()> {
    // Somebody else may have taken it away meanwhile.
    let is_there = || top_at(directory).is_ok_and(|top| top.is_some_and(|top| top.id == dead));
    let take_away = || if is_there() { unmount(directory, true) } else { Ok(()) };
    let Ok(made) = detached(device.as_fd(), manner) else {
        // A kernel or a container that does not know these calls.
        take_away()?;
        return mount(device, directory, manner);
    };
    let to = directory.as_os_str().as_bytes();
    let place = |flags| move_mount(&made, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | flags);
    if place(MoveMountFlags::MOVE_MOUNT_BENEATH).is_ok() {
        return take_away();
    }
    take_away()?;
    place(MoveMountFlags::empty())
}

/// The mount of a device, not yet at any directory.
fn detached(device: BorrowedFd<'_>, manner: Manner<'_>) -> Result<OwnedFd> {
    let being_made = fsopen(FILE_SYSTEM, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |name: &str, value: &str| fsconfig_set_string(&being_made, name, value);
    set("source", manner.array)?;
    set("subtype", SUBTYPE)?;
    numbers(device).iter().try_for_each(|(name, value)| set(name, value))?;
    fsconfig_set_flag(&being_made, "default_permissions")?;
    if manner.allow_other {
        fsconfig_set_flag(&being_made, "allow_other")?;
    }
    if manner.flags.contains(MountFlags::RDONLY) {
        fsconfig_set_flag(&being_made, "ro")?;
    }
    fsconfig_create(&being_made)?;
    let all = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    let set = all.into_iter().filter(|(flag, _)| manner.flags.contains(*flag)).map(|(_, attribute)| attribute).collect();
    fsmount(&being_made, FsMountFlags::FSMOUNT_CLOEXEC, set)
}

/// What is mounted at a directory, one on the other, the lowest first. The kernel lists them in the
/// order in which they were made, which need not be this.
///
/// # Errors
/// If the kernel's list of mounts cannot be read.
pub fn stack_at(directory: &Path) -> io::Result<Vec<Mounted>> {
    Ok(stacked(mounted()?.into_iter().filter(|mount| mount.directory == *directory).collect()))
}

fn stacked(mut here: Vec<Mounted>) -> Vec<Mounted> {
    let mut stack: Vec<Mounted> = Vec::new();
    loop {
        let is_next = |mount: &Mounted| match stack.last() {
            Some(below) => mount.on == below.id,
            None => !here.iter().any(|other| other.id == mount.on),
        };
        let Some(next) = here.iter().position(is_next) else { return stack };
        stack.push(here.swap_remove(next));
    }
}

/// What is mounted at a directory, and not under another mount there.
///
/// # Errors
/// If the kernel's list of mounts cannot be read.
pub fn top_at(directory: &Path) -> io::Result<Option<Mounted>> {
    Ok(stack_at(directory)?.pop())
}

/// Which array the mount at a directory shows: its UUID. None for what is no mount of an array, and
/// for one that this process may not use.
#[must_use]
pub fn identify(directory: &Path) -> Option<[u8; 16]> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(directory.as_os_str().as_bytes(), flags, Mode::empty()).ok()?;
    let mut identity = [0; IDENTITY_BYTES];
    let arguments = [root.as_raw_fd() as usize, IDENTIFY as usize, identity.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the request has the kernel store as many bytes as the array has.
    #[allow(unsafe_code)]
    let asked = sys::raw::check(unsafe { sys::raw::syscall(__NR_ioctl as usize, arguments) });
    asked.ok().and_then(|_| Identity::decode(&identity)).map(|identity| identity.uuid)
}

/// Opens the directory that lies under everything that is mounted at a path.
///
/// # Errors
/// Those of open_tree(2) and openat(2): `NOENT` for the root of all directories, `PERM` without the
/// right to mount, `INVAL` if the directory above is not to be mounted elsewhere, `NOSYS` before
/// Linux 5.2.
pub fn bottom(directory: &Path) -> Result<OwnedFd> {
    let (Some(above), Some(name)) = (directory.parent(), directory.file_name()) else { return Err(OsError::NOENT) };
    // In a mount of its own, of that directory alone, nothing is mounted on its names.
    let alone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let above = open_tree(CWD, above.as_os_str().as_bytes(), alone)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&above, name.as_bytes(), flags, Mode::empty())
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
    fn what_was_mounted_later_may_lie_beneath() {
        let mount = |id, on| Mounted { id, on, directory: "/mnt".into(), array: None };
        let stack = stacked(vec![mount(40, 52), mount(52, 20), mount(53, 40)]);
        assert_eq!(stack.iter().map(|mount| mount.id).collect::<Vec<_>>(), [52, 40, 53]);
        assert!(stacked(Vec::new()).is_empty());
    }

    #[test]
    fn the_kernels_list_is_read() {
        let line = b"36 35 0:40 / /mnt/a\\040b rw,relatime shared:1 - fuse.cxlraid db rw,user_id=0";
        let expected = Mounted { id: 36, on: 35, directory: "/mnt/a b".into(), array: Some("db".into()) };
        assert_eq!(parse(line), Some(expected));
        let other = b"36 35 98:0 /mnt1 /mnt2 rw master:1 - ext3 /dev/root rw";
        assert_eq!(parse(other), Some(Mounted { id: 36, on: 35, directory: "/mnt2".into(), array: None }));
        assert_eq!(parse(b""), None);
        assert!(mounted().unwrap().iter().any(|mount| mount.directory == Path::new("/proc")));
    }
}
