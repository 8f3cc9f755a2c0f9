//! Members that are file systems of their own, so that they can be made read-only, unmounted, or
//! full.
//!
//! All of it happens in a mount namespace of this program's own: nothing else on the machine sees
//! it, and it ends with the program's last process.

use rustix::{
    fs::statvfs,
    mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount},
};
use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// Set in the environment of this program once it has a mount namespace of its own.
const APART: &str = "CXLRAID_OPERATOR_APART";
/// Bytes of a member's file system: what a case stores, several times over, and the largest
/// journal.
const MEMBER_BYTES: u64 = 128 << 20;
/// How often a file system is made full while programs take room at the same time.
const FILL_COUNT: u32 = 20;

/// Goes on in a mount namespace of its own, as far as that is permitted: this program is executed
/// anew in one. Returns in the program that has one, or cannot have one.
pub(crate) fn go_apart() {
    let probe = ["--mount", "--propagation", "private"];
    let is_permitted = || Command::new("unshare").args(probe).arg("true").output().is_ok_and(|output| output.status.success());
    if std::env::var_os(APART).is_some() || !rustix::process::geteuid().is_root() || !is_permitted() {
        return;
    }
    if let Ok(this) = std::env::current_exe() {
        // It returns only if it failed; the cases that need mounts are left out then.
        let _ = Command::new("unshare").args(probe).arg(this).args(std::env::args_os().skip(1)).env(APART, "1").exec();
    }
}

/// Whether file systems can be mounted, and seen by nobody else; tried in a directory that is
/// there.
pub(crate) fn can_mount(directory: &Path) -> bool {
    let at = directory.join("mounted");
    std::env::var_os(APART).is_some()
        && fs::create_dir(&at).is_ok()
        && mount_tmpfs(&at).and_then(|()| unmounted(&at)).is_ok()
        && fs::remove_dir(&at).is_ok()
}

/// Mounts a new file system on a directory.
pub(crate) fn mount_tmpfs(at: &Path) -> io::Result<()> {
    let data = text(&format!("mode=755,{}", size(MEMBER_BYTES)))?;
    mount("cxlraid-operator", bytes(at), "tmpfs", MountFlags::empty(), data.as_c_str()).map_err(said)
}

/// Takes away what is mounted on a directory, also while it is used.
pub(crate) fn unmounted(at: &Path) -> io::Result<()> {
    unmount(bytes(at), UnmountFlags::DETACH).map_err(said)
}

/// Takes a member's file system away, and leaves its empty mount point. It is kept in another
/// place, `aside`.
pub(crate) fn take_away(at: &Path, aside: &Path) -> io::Result<()> {
    fs::create_dir(aside)?;
    mount_bind(bytes(at), bytes(aside)).map_err(said)?;
    unmounted(at)
}

/// Mounts what [`take_away`] has kept.
pub(crate) fn bring_back(at: &Path, aside: &Path) -> io::Result<()> {
    mount_bind(bytes(aside), bytes(at)).map_err(said)?;
    unmounted(aside)?;
    fs::remove_dir(aside)
}

/// Makes a file system read-only for everybody, or lets it be written to again. Not while files of
/// it are open for writing.
pub(crate) fn make_read_only(at: &Path, read_only: bool) -> io::Result<()> {
    let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    mount_remount(bytes(at), flags, c"").map_err(said)
}

/// Leaves no room on a file system but `left` pages.
pub(crate) fn fill(at: &Path, left: u64) -> io::Result<()> {
    for _ in 0..FILL_COUNT {
        let room = statvfs(bytes(at)).map_err(said)?;
        let used = (room.f_blocks - room.f_bfree + left) * room.f_frsize;
        // It fails if more is in use by now.
        if mount_remount(bytes(at), MountFlags::empty(), text(&size(used))?.as_c_str()).is_ok() {
            return Ok(());
        }
    }
    Err(io::Error::other(format!("{} cannot be made full", at.display())))
}

/// Gives a file system that was made full its room back.
pub(crate) fn empty(at: &Path) -> io::Result<()> {
    mount_remount(bytes(at), MountFlags::empty(), text(&size(MEMBER_BYTES))?.as_c_str()).map_err(said)
}

/// Unmounts everything that is mounted at these places, however often.
pub(crate) fn unmount_all(places: &[PathBuf]) {
    for place in places {
        while unmounted(place).is_ok() {}
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn said(error: rustix::io::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

fn size(bytes: u64) -> String {
    format!("size={bytes}")
}

fn text(text: &str) -> io::Result<CString> {
    Ok(CString::new(text)?)
}
