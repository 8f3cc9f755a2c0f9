//! What keeps programs from the machine: they run as root, and their paths may lead anywhere.
//!
//! This process gets a mount namespace of its own, in which every file system is read-only but a
//! fresh tmpfs at /dev/shm and the directory that results go to. It holds for everything that is
//! started from here.

use std::{ffi::CString, io, os::unix::ffi::OsStrExt as _, path::Path, ptr};

/// Makes everything read-only but /dev/shm, which is new and empty, and `writable`.
///
/// # Errors
/// What the kernel says, most likely that this process may not mount. Then nothing is to be run.
pub(crate) fn contain(writable: &Path) -> io::Result<()> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (root, shm, writable) = (path(Path::new("/"))?, path(Path::new("/dev/shm"))?, path(writable)?);
    let tmpfs = CString::new("tmpfs")?;
    // SAFETY: takes numbers only.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let mount = |from: *const libc::c_char, at: &CString, kind: *const libc::c_char, flags| {
        // SAFETY: the strings end with a NUL; what is null is not read.
        checked(unsafe { libc::mount(from, at.as_ptr(), kind, flags, ptr::null()) })
    };
    mount(ptr::null(), &root, ptr::null(), libc::MS_REC | libc::MS_PRIVATE)?;
    mount(tmpfs.as_ptr(), &shm, tmpfs.as_ptr(), 0)?;
    mount(writable.as_ptr(), &writable, ptr::null(), libc::MS_BIND)?;
    set_attributes(&root, libc::AT_RECURSIVE, libc::MOUNT_ATTR_RDONLY, 0)?;
    for place in [&shm, &writable] {
        set_attributes(place, 0, 0, libc::MOUNT_ATTR_RDONLY)?;
    }
    Ok(())
}

/// Puts a new, empty file system at `at`: what is there has a border, as an array has one.
pub(crate) fn mount_new(at: &Path) -> io::Result<()> {
    let (at, tmpfs) = (CString::new(at.as_os_str().as_bytes())?, CString::new("tmpfs")?);
    // SAFETY: the strings end with a NUL; what is null is not read.
    checked(unsafe { libc::mount(tmpfs.as_ptr(), at.as_ptr(), tmpfs.as_ptr(), 0, ptr::null()) })
}

fn set_attributes(at: &CString, flags: i32, set: u64, clear: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    let bytes = size_of_val(&attributes);
    // SAFETY: the path ends with a NUL, and the structure is of that size.
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, at.as_ptr(), flags, &raw const attributes, bytes) };
    checked(result as i32)
}

fn checked(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
