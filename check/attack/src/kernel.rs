//! The system calls that the standard library has no words for. All of them go through the C
//! library, where an array is seen.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

/// The directory that relative paths begin at, when no open one is meant.
pub(crate) const HERE: i32 = libc::AT_FDCWD;

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Becomes a user without rights, for good: the groups first, which need rights.
pub(crate) fn become_user(user: u32) -> io::Result<()> {
    // SAFETY: An empty list of groups is not read.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: The call takes numbers only.
    checked(unsafe { libc::setresgid(user, user, user) })?;
    // SAFETY: The call takes numbers only.
    checked(unsafe { libc::setresuid(user, user, user) })?;
    Ok(())
}

pub(crate) fn set_umask(mask: u32) {
    // SAFETY: The call takes a number only.
    unsafe { libc::umask(mask) };
}

/// Opens what `name` is in a directory; a symlink is not followed, nobody is waited for.
pub(crate) fn open_at(directory: i32, name: &Path, flags: i32, mode: u32) -> io::Result<File> {
    let name = text(name)?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: The name ends with a NUL and lives through the call.
    let fd = checked(unsafe { libc::openat(directory, name.as_ptr(), flags, mode) })?;
    // SAFETY: The descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

pub(crate) fn make_directory_at(directory: i32, name: &Path, mode: u32) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: The name ends with a NUL and lives through the call.
    checked(unsafe { libc::mkdirat(directory, name.as_ptr(), mode) }).map(drop)
}

pub(crate) fn remove_at(directory: i32, name: &Path, is_directory: bool) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: The name ends with a NUL and lives through the call.
    checked(unsafe { libc::unlinkat(directory, name.as_ptr(), if is_directory { libc::AT_REMOVEDIR } else { 0 }) }).map(drop)
}

pub(crate) fn make_symlink_at(target: &Path, directory: i32, name: &Path) -> io::Result<()> {
    let (target, name) = (text(target)?, text(name)?);
    // SAFETY: Both texts end with a NUL and live through the call.
    checked(unsafe { libc::symlinkat(target.as_ptr(), directory, name.as_ptr()) }).map(drop)
}

/// A pipe or a socket's name, by the type in `mode`.
pub(crate) fn make_node_at(directory: i32, name: &Path, mode: u32) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: The name ends with a NUL and lives through the call.
    checked(unsafe { libc::mknodat(directory, name.as_ptr(), mode, 0) }).map(drop)
}

pub(crate) fn rename_at(from: (i32, &Path), to: (i32, &Path), exchange: bool) -> io::Result<()> {
    let (old, new) = (text(from.1)?, text(to.1)?);
    let flags = if exchange { libc::RENAME_EXCHANGE } else { 0 };
    // SAFETY: Both names end with a NUL and live through the call.
    checked(unsafe { libc::renameat2(from.0, old.as_ptr(), to.0, new.as_ptr(), flags) }).map(drop)
}

pub(crate) fn link_at(from: (i32, &Path), to: (i32, &Path)) -> io::Result<()> {
    let (old, new) = (text(from.1)?, text(to.1)?);
    // SAFETY: Both names end with a NUL and live through the call.
    checked(unsafe { libc::linkat(from.0, old.as_ptr(), to.0, new.as_ptr(), 0) }).map(drop)
}

/// Gives what has the name, and not what it points to, to a user.
pub(crate) fn give_at(directory: i32, name: &Path, user: u32) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: The name ends with a NUL and lives through the call.
    checked(unsafe { libc::fchownat(directory, name.as_ptr(), user, user, libc::AT_SYMLINK_NOFOLLOW) }).map(drop)
}

/// Sets both times of what has the name to the beginning of time.
pub(crate) fn touch_at(directory: i32, name: &Path) -> io::Result<()> {
    let name = text(name)?;
    let times = [libc::timespec { tv_sec: 1, tv_nsec: 0 }; 2];
    // SAFETY: The name ends with a NUL; it and the two times live through the call.
    checked(unsafe { libc::utimensat(directory, name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) }).map(drop)
}

/// Gives an open file to a user.
pub(crate) fn give(file: &File, user: u32) -> io::Result<()> {
    // SAFETY: The descriptor is open as long as `file` lives.
    checked(unsafe { libc::fchown(file.as_raw_fd(), user, user) }).map(drop)
}

/// Takes a lock on a whole file, or says that somebody has it.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    // SAFETY: The descriptor is open as long as `file` lives.
    checked(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

pub(crate) fn set_attribute(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (text(path)?, text(Path::new(name))?);
    // SAFETY: Both texts end with a NUL; they and the value live through the call, and the value
    // has that length.
    checked(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }).map(drop)
}

pub(crate) fn remove_attribute(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (text(path)?, text(Path::new(name))?);
    // SAFETY: Both texts end with a NUL and live through the call.
    checked(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

pub(crate) fn attribute(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (text(path)?, text(Path::new(name))?);
    let mut value = vec![0_u8; 256];
    // SAFETY: Both texts end with a NUL; they and the buffer live through the call, and the buffer
    // has that length.
    let bytes = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    value.truncate(bytes);
    Ok(value)
}

/// The names of a file's extended attributes, as the kernel lists them.
pub(crate) fn attribute_names(path: &Path) -> io::Result<Vec<u8>> {
    let path = text(path)?;
    let mut names = vec![0_u8; 4096];
    // SAFETY: The path ends with a NUL; it and the buffer live through the call, and the buffer has
    // that length.
    let bytes = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    names.truncate(bytes);
    Ok(names)
}

/// Ends this process as a kill from outside does.
pub(crate) fn die() {
    // SAFETY: The call takes numbers only.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Whether this process may become other users.
pub(crate) fn is_root() -> bool {
    // SAFETY: The call takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
