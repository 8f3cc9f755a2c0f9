//! Calls that change names: mkdir, unlink, rename, link, symlink, mknod; and readlink.

use super::border::{self, Looks};
use super::magic::{self, Link, Name};
use super::on_path::{self, At};
use super::paths::{self, AT_FDCWD, Where};
use super::{directory, judge, links};
use crate::array;
use crate::call::{Call, Verdict};
use crate::program;
use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK,
};
use namespace::{FileType, ProgramPath, Reached, RenameFlags};
use sys::OsError;
use sys::raw::syscall;
use sys::rustix::io::fcntl_getfd;

type Done = Result<Reached<()>, OsError>;

/// Serves a call with one path that answers nothing but success.
fn change(call: &Call, at: At, act: impl Fn(ProgramPath<'_>) -> Done) -> Verdict {
    on_path::serve(call, at, act, |()| Ok(0))
}

/// umask: not while another thread makes a name, which must be the same on every member.
pub(crate) fn umask(call: &mut Call) -> Verdict {
    match array::namespace() {
        Ok(namespace) => Verdict::Done(namespace.between_changes(|| call.kernel())),
        Err(_) => Verdict::Pass,
    }
}

pub(crate) fn mkdir(call: &mut Call) -> Verdict {
    change(call, At::cwd(0), |path| array::namespace()?.mkdir(path, call.args[1] as u32))
}

pub(crate) fn mkdirat(call: &mut Call) -> Verdict {
    change(call, At::directory(0, 1), |path| array::namespace()?.mkdir(path, call.args[2] as u32))
}

pub(crate) fn rmdir(call: &mut Call) -> Verdict {
    change(call, At::cwd(0), |path| array::namespace()?.rmdir(path))
}

pub(crate) fn unlink(call: &mut Call) -> Verdict {
    change(call, At::cwd(0), |path| array::namespace()?.unlink(path))
}

pub(crate) fn unlinkat(call: &mut Call) -> Verdict {
    if let Some(refusal) = judge::odd(call, &[At::directory(0, 1)], call.args[2], AT_REMOVEDIR) {
        return refusal;
    }
    change(call, At::directory(0, 1), |path| match call.args[2] as u32 {
        0 => array::namespace()?.unlink(path),
        AT_REMOVEDIR => array::namespace()?.rmdir(path),
        _ => Err(OsError::INVAL),
    })
}

pub(crate) fn symlink(call: &mut Call) -> Verdict {
    make_symlink(call, At::cwd(1))
}

pub(crate) fn symlinkat(call: &mut Call) -> Verdict {
    make_symlink(call, At::directory(1, 2))
}

/// What is wrong with a symlink's contents the kernel says before it looks at the path, wherever
/// that leads.
fn make_symlink(call: &Call, at: At) -> Verdict {
    match paths::text(call.args[0]) {
        Ok(contents) if !contents.is_empty() => change(call, at, |path| array::namespace()?.symlink(&contents, path)),
        _ => Verdict::Pass,
    }
}

pub(crate) fn mknod(call: &mut Call) -> Verdict {
    if let Some(error) = refused_kind(call.args[1] as u32) {
        return Verdict::error(error);
    }
    change(call, At::cwd(0), |path| make_node(path, call.args[1] as u32, call.args[2] as u32))
}

pub(crate) fn mknodat(call: &mut Call) -> Verdict {
    if let Some(error) = refused_kind(call.args[2] as u32) {
        return Verdict::error(error);
    }
    change(call, At::directory(0, 1), |path| make_node(path, call.args[2] as u32, call.args[3] as u32))
}

/// What mknod(2) says of the kind of a node before it looks at the path.
fn refused_kind(mode: u32) -> Option<OsError> {
    match mode & S_IFMT {
        0 | S_IFIFO | S_IFCHR | S_IFBLK | S_IFREG | S_IFSOCK => None,
        S_IFDIR => Some(OsError::PERM),
        _ => Some(OsError::INVAL),
    }
}

fn make_node(path: ProgramPath<'_>, mode: u32, device: u32) -> Done {
    let kind = if mode & S_IFMT == 0 { FileType::RegularFile } else { FileType::from_raw_mode(mode) };
    array::namespace()?.mknod(path, kind, mode & !S_IFMT, u64::from(device))
}

pub(crate) fn rename(call: &mut Call) -> Verdict {
    rename_at(call, [At::cwd(0), At::cwd(1)], 0)
}

/// renameat, and renameat2 with its flags in the fifth argument.
pub(crate) fn renameat(call: &mut Call) -> Verdict {
    let (flags, paths) = (if call.number == 316 { call.args[4] as u32 } else { 0 }, [At::directory(0, 1), At::directory(2, 3)]);
    if flags > 2
        && let Some(refusal) = judge::refusal(call, &paths)
    {
        return refusal;
    }
    rename_at(call, paths, flags)
}

fn rename_at(call: &Call, at: [At; 2], flags: u32) -> Verdict {
    on_path::serve_two(call, at, Looks::Rename, |from, to| {
        array::namespace()?.rename(from, to, RenameFlags::from_bits_retain(flags))
    })
}

pub(crate) fn link(call: &mut Call) -> Verdict {
    link_at(call, [At::cwd(0), At::cwd(1)], Looks::Link { follow: false })
}

fn link_at(call: &Call, at: [At; 2], looks: Looks) -> Verdict {
    let follow = looks == Looks::Link { follow: true };
    on_path::serve_two(call, at, looks, |from, to| array::namespace()?.link(from, to, follow))
}

pub(crate) fn linkat(call: &mut Call) -> Verdict {
    let flags = call.args[4] as u32;
    if let Some(refusal) =
        judge::odd(call, &[At::directory(0, 1), At::directory(2, 3)], call.args[4], AT_EMPTY_PATH | AT_SYMLINK_FOLLOW)
    {
        return refusal;
    }
    let (from, to) = (At::directory(0, 1), At::directory(2, 3));
    let link = linked(call, flags);
    let means_itself = flags & AT_EMPTY_PATH != 0 && call.args[1] != 0 && paths::is_empty(call.args[1]);
    if means_itself && call.descriptor(0) != AT_FDCWD && fcntl_getfd(directory::borrow(call.descriptor(0))).is_err() {
        return Verdict::error(OsError::BADF);
    }
    // Who may name what is open the kernel says: not who has other rights than when it was opened.
    // The kernel does not find a symlink of the array that leads to the open file.
    if (means_itself || link.is_some() && matches!(from.locate(call), Where::Host))
        && let Some(refusal) = judge::refusal(call, &[to])
    {
        return refusal;
    }
    if flags & AT_EMPTY_PATH != 0
        && let Some(refusal) = refusal_of_base(call, to)
    {
        return refusal;
    }
    if means_itself && directory::is_ours(call.descriptor(0)) && is_directory(call.descriptor(0)) {
        // A directory has no other name: what the kernel says of its name `.` it says of itself.
        let kept = core::mem::replace(&mut call.args[1], c".".as_ptr() as usize);
        let verdict = link_at(call, [from, to], Looks::LinkOpen);
        call.args[1] = kept;
        return verdict;
    }
    if let Some(link) = link {
        // To the kernel the anchor is a file of its member, which may lie on the file system of
        // that name: it would give the member's file a name outside the array.
        let outside = || Verdict::error(border::error_of_new_name(call, to));
        if matches!(to.locate(call), Where::Host) && links::entered(to.base(call), call.args[3], false, false).is_none() {
            return outside();
        }
        let named = |to: ProgramPath<'_>| array::namespace()?.link_descriptor(link.descriptor(), link.node(), to);
        return match on_path::serve_inside(call, to, named, outside) {
            // What only names a file gets a name by that: here a symlink leads the new one out, and
            // something else may be wrong with it.
            verdict if verdict == Verdict::error(OsError::XDEV) => outside(),
            verdict => verdict,
        };
    }
    let looks = if means_itself { Looks::LinkOpen } else { Looks::Link { follow: flags & AT_SYMLINK_FOLLOW != 0 } };
    link_at(call, [from, to], looks)
}

/// With AT_EMPTY_PATH no path is followed from a descriptor that was opened with other rights
/// (ENOENT), be it empty or not.
fn refusal_of_base(call: &Call, to: At) -> Option<Verdict> {
    let starts_at_root = paths::text(call.args[1]).map_or(true, |path| path.starts_with(b"/"));
    if call.descriptor(0) == AT_FDCWD || starts_at_root {
        return None;
    }
    let mut args = call.args;
    to.lead_nowhere(&mut args);
    args[1] = c"".as_ptr() as usize;
    // SAFETY: the paths are ours; the second leads nowhere.
    let result = unsafe { syscall(call.number, args) };
    (result == -(OsError::NOENT.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

fn is_directory(descriptor: sys::RawFd) -> bool {
    descriptor == AT_FDCWD || super::copy::kind(descriptor) == S_IFDIR
}

/// The open file that linkat gives a name to: by AT_EMPTY_PATH, or by its link under /proc.
fn linked(call: &Call, flags: u32) -> Option<Link> {
    if flags & AT_EMPTY_PATH != 0 && call.args[1] != 0 && paths::is_empty(call.args[1]) {
        return Name::Own(call.descriptor(0)).follow();
    }
    if flags & AT_SYMLINK_FOLLOW == 0 {
        return None;
    }
    let from = At::directory(0, 1);
    from.link(call).or_else(|| match from.locate(call) {
        Where::Array(path) => match array::namespace().ok()?.resolve(path.path(), true) {
            Ok(Reached::Host(path)) => magic::at_host(&path).or_else(|| links::link_at_host(&path)),
            _ => None,
        },
        Where::Host => links::link_behind(from.base(call), call.args[1]),
    })
}

/// Serves readlink(2) and readlinkat(2).
pub(crate) fn readlink(call: &mut Call) -> Verdict {
    let (at, buffer, bytes) = link_arguments(call);
    // The kernel takes the lower half as a number with a sign.
    let Some(bytes) = usize::try_from(bytes as i32).ok().filter(|&bytes| bytes > 0) else {
        return Verdict::error(OsError::INVAL);
    };
    if let Some(verdict) = process_link(call, at, buffer, bytes) {
        return verdict;
    }
    on_path::serve(call, at, |path| array::namespace()?.readlink(path), |target| store_link(&target, buffer, bytes))
}

/// The path of readlink(2) or readlinkat(2), the address of the program's buffer, and the buffer's
/// length as the program gives it.
fn link_arguments(call: &Call) -> (At, usize, usize) {
    match call.number as u32 {
        linux_raw_sys::general::__NR_readlink => (At::cwd(0), call.args[1], call.args[2]),
        _ => (At::directory(0, 1), call.args[2], call.args[3]),
    }
}

/// Serves a guest's readlink(2) or readlinkat(2) of a link under /proc that tells of the array;
/// None for other links. The guest asks the kernel itself, since /proc tells each task of its own
/// descriptors and directory.
pub(crate) fn own_link(call: &Call) -> Option<Verdict> {
    let (at, buffer, bytes) = link_arguments(call);
    let bytes = usize::try_from(bytes as i32).ok().filter(|&bytes| bytes > 0)?;
    process_link(call, at, buffer, bytes)
}

fn store_link(target: &[u8], buffer: usize, bytes: usize) -> Result<usize, OsError> {
    let count = target.len().min(bytes);
    program::write_bytes(buffer, &target[..count]).map(|()| count)
}

/// What the links under /proc/self say of descriptors, directory and executable: where the program
/// thinks they are, not on which member.
fn process_link(call: &Call, at: At, buffer: usize, bytes: usize) -> Option<Verdict> {
    let namespace = array::namespace().ok()?;
    let path = paths::text(call.args[at.path()]).ok()?;
    if !at.is_link(call) && (!path.starts_with(b"/proc/") || !matches!(at.locate(call), Where::Host)) {
        return None;
    }
    let base = directory::borrow(if at.path() == 0 { AT_FDCWD } else { call.descriptor(0) });
    let target = sys::rustix::fs::readlinkat(base, path.as_slice(), heap::vec::Vec::new()).ok()?;
    let target = target.as_bytes();
    let logical = namespace.logical(target).or_else(|| crate::stored::path_of_copy(target))?;
    Some(Verdict::from_result(store_link(logical, buffer, bytes)))
}
