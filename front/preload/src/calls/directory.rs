//! The current directory, and the paths of directory descriptors.
//!
//! A current directory in the array is the kernel's too: the anchor's directory on the first
//! member. The program is told its path in the array.

use super::OPEN;
use super::magic::Link;
use super::node::Node;
use super::on_path::LINK_COUNT_MAX;
pub(crate) use super::paths::AT_FDCWD;
use super::paths::{self, Where};
use crate::array;
use crate::call::{Call, Verdict};
use crate::lock::{Lock, RawLock};
use crate::shortage::Shortage;
use crate::{process, program};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_getcwd, __NR_unshare, CLONE_FS};
use namespace::{ProgramPath, Reached, Twin};
use sys::raw::{check, syscall};
use sys::rustix::fs::{CWD, Mode, OFlags, getxattr, openat};
use sys::rustix::io::fcntl_dupfd_cloexec;
use sys::{AsRawFd, BorrowedFd, IntoRawFd, OsError, RawFd};
use units::Slot;

/// Whether the current directory is in the array.
static CWD_IS_OURS: AtomicBool = AtomicBool::new(false);
/// Whether the current directory may have changed since it was last noted, so that the kernel is to
/// be asked.
static MOVES: AtomicBool = AtomicBool::new(false);
/// Held by a thread that moves the process into a directory of the array, and by one that is about
/// to execute a program that must not start there.
static MOVING: RawLock = RawLock::new();
/// The twin of the current directory, if that is in the array.
static TWIN: Lock<Option<Twin>> = Lock::new(None);

/// Finds out where the program starts. A directory under a prefix that exists on the host alone is
/// made in the array (thesis section 4.5), and the program starts there.
pub(crate) fn start() {
    let Some(host) = host_cwd() else {
        note(is_in_array());
        return;
    };
    if array::logical(&host).is_some() {
        note(true);
    } else if let Ok(namespace) = array::namespace()
        && namespace.owns(&host)
    {
        match told_by_mount() {
            Ok(path) => _ = enter(ProgramPath::known(&path)),
            // No mount of an array.
            Err(OsError::OPNOTSUPP | OsError::NODATA | OsError::NOSYS) => {
                let made = namespace.files().array().make_directories(&host);
                if made.is_ok() {
                    let _ = enter(ProgramPath::known(&host));
                }
            }
            // It has been removed, or the mount does not answer: the program stays where it is.
            Err(_) => {}
        }
    }
}

/// Where in the array the current directory is now, if that is one of an array's mount.
fn told_by_mount() -> Result<Vec<u8>, OsError> {
    let mut path = heap::vec![0; crate::uapi::PATH_MAX];
    let length = getxattr(c".", namespace::handover::PATH, &mut path[..])?;
    path.truncate(length);
    Ok(path)
}

/// Finds out where a copy of the process is.
pub(crate) fn look() {
    note(is_in_array());
    if MOVES.load(Ordering::Relaxed) {
        // Of the new view of the array, too.
        expect_moves();
    }
}

/// From now on the current directory, and the umask, may change without our hearing of it, or be
/// others in another task.
pub(crate) fn expect_moves() {
    MOVES.store(true, Ordering::Relaxed);
    if let Ok(namespace) = array::namespace() {
        namespace.share_umask();
    }
}

/// Whether a directory argument is a directory of the array.
pub(crate) fn is_ours(directory: RawFd) -> bool {
    if directory != AT_FDCWD {
        super::is_ours(directory)
    } else if MOVES.load(Ordering::Relaxed) || process::may_be_guest() && process::is_guest() {
        is_in_array()
    } else {
        CWD_IS_OURS.load(Ordering::Relaxed)
    }
}

/// Whether the current directory is in the array, by what the kernel says.
fn is_in_array() -> bool {
    // It may not lie below the root of the process; the link leads there all the same.
    let linked = || sys::rustix::fs::readlink(c"/proc/thread-self/cwd", Vec::new()).ok().map(|path| path.into_bytes());
    let told = told_cwd();
    let is_told = told.is_some();
    let current = || namespace::current_directory().ok();
    let host = told.or_else(current).or_else(linked).or_else(|| namespace::told_ancestor(CWD).ok());
    // Without /proc nothing tells. And the path of a directory that does not lie below the root may be
    // another one than that of the member's directory (chroot(2)).
    let is_member = || !is_told && namespace::lies_below_tables(CWD) == Ok(true);
    host.map_or_else(|| namespace::is_directory_of_a_member(CWD), |host| array::logical(&host).is_some() || is_member())
}

/// The absolute path of a directory argument, as the program knows it.
pub(crate) fn path_of(directory: RawFd) -> Option<Vec<u8>> {
    Base::of(directory).path()
}

/// Where a directory is.
pub(crate) enum Place {
    /// At this logical path of the array; on the member with this slot, if that is in use.
    Array(Vec<u8>, Option<Slot>),
    /// At this path of the host.
    Host(Vec<u8>),
}

/// The directory of a directory argument, with its twin, which stays open for as long as this
/// lives.
pub(crate) struct Base {
    /// The program's descriptor, or [`AT_FDCWD`].
    pub(crate) descriptor: RawFd,
    pub(crate) twin: Option<Twin>,
}

impl Base {
    /// The directory that a program names by `descriptor`.
    pub(crate) fn of(descriptor: RawFd) -> Self {
        Self { descriptor, twin: twin_of(descriptor) }
    }

    /// The descriptor that stands for the directory: the twin's once the member of the program's is
    /// lost.
    pub(crate) fn present(&self) -> BorrowedFd<'_> {
        let first = borrow(self.descriptor);
        self.twin.as_ref().map_or(first, |twin| twin.present(first))
    }

    /// The absolute path of the directory, as the program knows it.
    pub(crate) fn path(&self) -> Option<Vec<u8>> {
        match self.place(is_ours(self.descriptor))? {
            Place::Array(path, _) | Place::Host(path) => Some(path),
        }
    }

    /// Returns where the directory is; None if the kernel does not tell that. `is_ours` tells whether
    /// it is a directory of the array, which may hang in the air ([`namespace::Namespace::place_of`]).
    pub(crate) fn place(&self, is_ours: bool) -> Option<Place> {
        let host = self.host_path();
        if let Some((path, slot)) = host.as_ref().and_then(|host| array::placed(host)) {
            return Some(Place::Array(path, slot));
        }
        let hanging = || array::namespace().ok().filter(|_| is_ours)?.place_of(self.present()).ok()?;
        hanging().map(|(path, slot)| Place::Array(path, slot)).or_else(|| host.map(Place::Host))
    }

    /// Returns the path by which the kernel knows the directory.
    fn host_path(&self) -> Option<Vec<u8>> {
        let present = self.present().as_raw_fd();
        if present == AT_FDCWD { host_cwd() } else { link_target(present) }
    }
}

/// The descriptor that stands for what a descriptor of the program is open on: of a directory whose
/// member is lost it is the twin.
pub(crate) fn present(descriptor: RawFd, node: &Node) -> BorrowedFd<'_> {
    let first = borrow(descriptor);
    node.twin().map_or(first, |twin| twin.present(first))
}

/// The twin of the directory of a directory argument, if it has one.
fn twin_of(directory: RawFd) -> Option<Twin> {
    if directory != AT_FDCWD {
        return OPEN.lookup(directory)?.node().twin().cloned();
    }
    if is_noted() { TWIN.lock().clone() } else { None }
}

/// Tells whether the current directory's twin is kept: not of a directory that may change without
/// our hearing of it, nor of a guest's, nor by a process that lives for one call of a guest.
fn is_noted() -> bool {
    !MOVES.load(Ordering::Relaxed) && !process::shares_tables() && process::owns_tables()
}

/// Notes whether the current directory is in the array, after the process has moved there.
fn note(ours: bool) {
    CWD_IS_OURS.store(ours, Ordering::Relaxed);
    if !is_noted() {
        return;
    }
    let twin = if ours { array::namespace().ok().and_then(|namespace| namespace.twin_of(CWD)) } else { None };
    // The former twin is closed without the lock.
    let former = core::mem::replace(&mut *TWIN.lock(), twin);
    drop(former);
}

/// In a copy of the process: the twin is the original's.
pub(crate) fn abandon() {
    MOVING.reset();
    TWIN.raw().reset();
    core::mem::forget(TWIN.lock().take());
}

/// The lock of the current directory's twin, to hold it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    TWIN.raw()
}

/// The path that /proc/self/fd tells of a descriptor.
pub(crate) fn link_target(descriptor: RawFd) -> Option<Vec<u8>> {
    link_target_of_any(descriptor).filter(|target| target.starts_with(b"/"))
}

/// What /proc/self/fd says of a descriptor; of one without a path, what it is.
pub(crate) fn link_target_of_any(descriptor: RawFd) -> Option<Vec<u8>> {
    let path = heap::format!("/proc/thread-self/fd/{descriptor}");
    Some(sys::rustix::fs::readlink(path.as_str(), Vec::new()).ok()?.into_bytes())
}

/// The kernel's path of the current directory, without a trailing slash. For a directory that was
/// removed this is its former path ([`namespace::current_directory`]). None, too, if the directory
/// does not lie below the root of the process.
fn host_cwd() -> Option<Vec<u8>> {
    told_cwd().or_else(|| namespace::current_directory().ok())
}

/// The path that getcwd(2) tells, without a trailing slash; None if getcwd(2) fails, or tells one that
/// cannot be reached from the root and is not the array's ([`left_behind`]).
fn told_cwd() -> Option<Vec<u8>> {
    let mut buffer = [0u8; crate::uapi::PATH_MAX];
    // SAFETY: the buffer is as long as said.
    let length =
        check(unsafe { syscall(__NR_getcwd as usize, [buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0, 0]) }).ok()?;
    let path = &buffer[..length.saturating_sub(1)];
    if !path.starts_with(b"/") {
        return left_behind();
    }
    Some(if path == b"/" { Vec::new() } else { path.to_vec() })
}

/// The path of the current directory if that is the array's, in a mount namespace that this process
/// has left. None for all others: what cannot be reached for another reason, as after
/// `umount --lazy`, may have any path in its link.
#[cold]
fn left_behind() -> Option<Vec<u8>> {
    if !super::apart::may_end() {
        return None;
    }
    namespace::current_directory_by_link().ok().filter(|path| array::logical(path).is_some())
}

pub(crate) fn chdir(call: &mut Call) -> Verdict {
    if let Some(link) = super::magic::at(AT_FDCWD, call.args[0]) {
        return Verdict::from_result(enter_open(&link).map(|()| 0));
    }
    match paths::locate(AT_FDCWD, call.args[0]) {
        // A program comes out of a directory that lies too deep for its path to be known: the
        // kernel takes it up.
        Where::Array(path) if path.is_open() == Err(OsError::NAMETOOLONG) && leads_up(path.text()) => {
            let result = moving(|| call.kernel());
            moved(result, is_in_array())
        }
        Where::Array(path) => {
            array::tell();
            Verdict::from_result(enter(path.path()).map(|()| 0))
        }
        Where::Host => {
            let shortage = Shortage::begin();
            if let Some(link) = super::links::link_behind(AT_FDCWD, call.args[0]) {
                return Verdict::from_result(enter_open(&link).map(|()| 0));
            }
            if let Some(path) = super::links::entered(AT_FDCWD, call.args[0], true, false) {
                return Verdict::from_result(enter(path[..path.len() - 1].into()).map(|()| 0));
            }
            shortage.refusal().unwrap_or_else(|| moved(call.kernel(), false))
        }
    }
}

/// Tells whether a relative path consists of `.` and `..` only, so that it leads nowhere but up.
fn leads_up(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').all(|part| matches!(part, b"" | b"." | b".."))
}

/// No thread moves the process into a directory of the array until [`let_move`] is called.
pub(crate) fn keep_from_moving() {
    MOVING.acquire();
}

/// Ends what [`keep_from_moving`] has begun.
pub(crate) fn let_move() {
    MOVING.release();
}

/// In a child of fork: threads of its parent move it no more.
pub(crate) fn be_child() {
    MOVING.reset();
}

/// Moves the process into a directory of the array by `act`, but not while a thread is about to
/// execute a program that must not start there. A guest takes no lock: its directory is not the
/// threads'.
fn moving<R>(act: impl FnOnce() -> R) -> R {
    if !process::owns_tables() {
        return act();
    }
    MOVING.acquire();
    let result = act();
    MOVING.release();
    result
}

/// Enters what a magic link leads to.
fn enter_open(link: &Link) -> Result<(), OsError> {
    enter_directory(link.descriptor())
}

/// Enters a directory of the array that is open.
fn enter_directory(directory: impl sys::AsFd) -> Result<(), OsError> {
    moving(|| sys::rustix::process::fchdir(directory))?;
    note(true);
    Ok(())
}

pub(crate) fn fchdir(call: &mut Call) -> Verdict {
    let ours = super::is_ours(call.descriptor(0));
    moved(if ours { moving(|| call.kernel()) } else { call.kernel() }, ours)
}

fn moved(result: isize, ours: bool) -> Verdict {
    if result == 0 {
        note(ours);
    }
    Verdict::Done(result)
}

/// Enters the directory that a path of the array leads to. A symlink may lead out of the array, and
/// one of the host's into it again.
fn enter(path: ProgramPath<'_>) -> Result<(), OsError> {
    let namespace = array::namespace()?;
    let mut reached = namespace.directory_to_enter(path)?;
    for _ in 0..LINK_COUNT_MAX {
        let host = match reached {
            Reached::Array(directory) => return enter_directory(directory),
            Reached::Host(host) => host,
        };
        if let Some(link) = super::magic::at_host(&host) {
            return enter_open(&link);
        }
        let Some(again) = super::links::entered_again(&host, true) else {
            sys::rustix::process::chdir(host)?;
            note(false);
            return Ok(());
        };
        if let Some(link) = super::links::link_at_host(&host) {
            // What is open is meant, whatever it is called by now.
            return enter_open(&link);
        }
        reached = namespace.directory_to_enter(again.as_slice())?;
    }
    Err(OsError::LOOP)
}

/// Moves the process, or the calling guest, to a directory of the host. Returns a descriptor of the
/// directory where it was, for [`return_to`]; it is closed by an exec.
///
/// Processes that share the directory (clone(2) with CLONE_FS) stay where they are: from here on
/// the caller has one of its own, and keeps that also if it returns. Where a filter of system calls
/// denies that (containers), a program that has just begun (`is_new`) is moved all the same: who
/// makes a process that shares the directory rarely has it execute another program.
pub(crate) fn leave_for(place: &CStr, is_new: bool) -> Result<RawFd, OsError> {
    let before = set_aside(is_new)?;
    if let Err(error) = sys::rustix::process::chdir(place) {
        super::descriptor::close_unheld(before);
        return Err(error);
    }
    note_apart();
    Ok(before)
}

/// Gives the caller a current directory that no other process shares. Returns a descriptor of it,
/// for [`return_to`]; it is closed by an exec.
pub(crate) fn set_aside(is_new: bool) -> Result<RawFd, OsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let before = openat(CWD, c".", flags, Mode::empty())?;
    // Out of the way of what other threads open meanwhile.
    let before = fcntl_dupfd_cloexec(&before, sys::high_fd::base() as RawFd).unwrap_or(before);
    leave_shared().or_else(|error| if is_new { Ok(()) } else { Err(error) })?;
    Ok(before.into_raw_fd())
}

/// Gives the calling task a current directory (and root, and umask) that no other task shares.
fn leave_shared() -> Result<(), OsError> {
    // SAFETY: unshare(2) with this flag changes only what the directory, root and umask of this
    // task are shared with.
    check(unsafe { syscall(__NR_unshare as usize, [CLONE_FS as usize, 0, 0, 0, 0, 0]) }).map(|_| ()).map_err(|_| OsError::PERM)
}

/// Moves back to the directory of the array that [`leave_for`] has left.
pub(crate) fn return_to(before: RawFd) {
    // If it fails, the kernel says where the caller is: [`note_apart`].
    let _ = sys::rustix::process::fchdir(borrow(before));
    super::descriptor::close_unheld(before);
}

/// Notes that the caller has a directory of its own now. Others that use this memory have kept
/// theirs: other threads, and the parent of a child that shares memory and descriptors. So from now
/// on the kernel is asked. Of a guest nothing is noted: for a guest the kernel is always asked.
pub(crate) fn note_apart() {
    if !(process::may_be_guest() && process::is_guest()) {
        expect_moves();
    }
}

pub(crate) fn getcwd(call: &mut Call) -> Verdict {
    if !is_ours(AT_FDCWD) {
        return Verdict::Pass;
    }
    let base = Base::of(AT_FDCWD);
    let told = told_cwd();
    // Where getcwd(2) fails, the program gets the kernel's error; and what the kernel tells where the
    // directory does not lie below the program's root directory. One that hangs in the air has a path.
    let may_hang = || !super::root::is_elsewhere() && namespace::current_directory() == Err(OsError::XDEV);
    if told.is_none() && !may_hang() {
        return Verdict::Pass;
    }
    let is_present = base.present().as_raw_fd() == AT_FDCWD;
    let place = match told {
        Some(host) if is_present => Some(array::logical(&host).unwrap_or(host)),
        told => base.path().or(told),
    };
    let Some(mut path) = place else { return Verdict::Pass };
    if path.is_empty() {
        path.push(b'/');
    }
    path.push(0);
    let [address, bytes, ..] = call.args;
    if bytes < path.len() {
        return Verdict::error(OsError::RANGE);
    }
    Verdict::from_result(program::write_bytes(address, &path).map(|()| path.len()))
}

/// A descriptor of the program's, to be asked about. The program may name any number: in the place
/// of one that no borrowed descriptor may be comes another that is never open.
pub(crate) fn borrow<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    let is_possible = descriptor >= 0 || descriptor == AT_FDCWD;
    // SAFETY: only passed to calls that answer EBADF if it is not open.
    unsafe { BorrowedFd::borrow_raw(if is_possible { descriptor } else { RawFd::MAX }) }
}
