//! Paths of the host that lead into the array, by a symlink or by /proc.
//!
//! A call of the host that only looks at a name goes to the kernel first. Only if the kernel finds
//! nothing does the library look for a symlink on the way that leads into the array. A call that
//! makes a name is different: the library looks first, with one system call, so that nothing is
//! made on the host that belongs into the array. Paths under /proc that lead through a process'
//! directories and files are walked first, too: they lead to a member, where the kernel would find
//! something.
//!
//! A symlink of the host may lead to such a path: a log file that is a link to /dev/stdout is one.
//! Its text does not show that. So a process that has had files of the array open has the kernel
//! open host paths without magic links on the way (RESOLVE_NO_MAGICLINKS), and looks before calls
//! that change what a host path leads to. Where the kernel met a magic link, [`by_magic`] finds out
//! what of the array it leads to.

use super::magic::Link;
use super::paths::{self, AT_FDCWD};
use super::{OPEN, directory, handler};
use crate::array;
use crate::call::{Call, Verdict};
use crate::deputy;
use crate::program;
use crate::shortage::Shortage;
use crate::table::{ROWS, Row};
use crate::uapi::IN_DONT_FOLLOW;
use ::array::config::normalise;
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use namespace::OFlags;
use sys::high_fd::Raised;
use sys::rustix::fs::{CWD, Mode, ResolveFlags, openat2, readlink};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, RawFd};
use units::PAGE_BYTES;

/// All flags of open(2), and those that count beside O_PATH. Others are ignored by open(2) and
/// refused by openat2(2).
const OPENING: u64 = (nr::O_ACCMODE
    | nr::O_CREAT
    | nr::O_EXCL
    | nr::O_NOCTTY
    | nr::O_TRUNC
    | nr::O_APPEND
    | nr::O_NONBLOCK
    | nr::O_SYNC
    | nr::FASYNC
    | nr::O_DIRECT
    | nr::O_LARGEFILE
    | nr::O_DIRECTORY
    | nr::O_NOFOLLOW
    | nr::O_NOATIME
    | nr::O_CLOEXEC
    | nr::O_PATH
    | nr::O_TMPFILE) as u64;
const NAMING: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// O_LARGEFILE, which open(2) sets by itself.
const LARGE: u64 = nr::O_LARGEFILE as u64;
/// The bytes of `struct open_how`.
const HOW_BYTES: usize = 24;
const MAKING: OFlags = OFlags::CREATE.union(OFlags::TMPFILE);
const ARGUMENT_COUNT: usize = 6;

/// What a call does with its paths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Looks at what is there, and does not wait.
    Look { follow: bool },
    /// Changes what is there, or tells what is the array's own affair of it.
    Change { follow: bool },
    /// Opens what is there: that may wait.
    Open { follow: bool },
    /// Makes a name, or takes one away.
    Make { follow: bool },
    /// Is not followed into the array.
    Other,
}

fn kind(call: &Call) -> Kind {
    let flags = match call.number as u32 {
        nr::__NR_open => call.args[1],
        nr::__NR_openat => call.args[2],
        nr::__NR_creat => OFlags::CREATE.bits() as usize,
        _ => 0,
    };
    match call.number as u32 {
        nr::__NR_open | nr::__NR_openat | nr::__NR_creat => {
            let flags = OFlags::from_bits_retain(flags as u32);
            let follow = !flags.contains(OFlags::NOFOLLOW);
            if flags.intersects(MAKING) { Kind::Make { follow } } else { Kind::Open { follow } }
        }
        nr::__NR_mkdir | nr::__NR_mkdirat | nr::__NR_mknod | nr::__NR_mknodat | nr::__NR_symlink | nr::__NR_symlinkat => {
            Kind::Make { follow: false }
        }
        nr::__NR_linkat => Kind::Make { follow: call.args[4] as u32 & nr::AT_SYMLINK_FOLLOW != 0 },
        nr::__NR_link | nr::__NR_rename | nr::__NR_renameat | nr::__NR_renameat2 => Kind::Make { follow: false },
        nr::__NR_lstat | nr::__NR_readlink | nr::__NR_readlinkat => Kind::Look { follow: false },
        nr::__NR_unlink | nr::__NR_unlinkat | nr::__NR_rmdir => Kind::Change { follow: false },
        nr::__NR_lchown | nr::__NR_lgetxattr | nr::__NR_lsetxattr | nr::__NR_llistxattr | nr::__NR_lremovexattr => {
            Kind::Change { follow: false }
        }
        nr::__NR_truncate | nr::__NR_chmod | nr::__NR_fchmodat | nr::__NR_fchmodat2 | nr::__NR_chown | nr::__NR_fchownat => {
            Kind::Change { follow: follows_by_flags(call) }
        }
        nr::__NR_utime | nr::__NR_utimes | nr::__NR_futimesat | nr::__NR_utimensat | nr::__NR_inotify_add_watch => {
            Kind::Change { follow: follows_by_flags(call) }
        }
        nr::__NR_setxattr | nr::__NR_removexattr | nr::__NR_getxattr | nr::__NR_listxattr | nr::__NR_statfs => {
            Kind::Change { follow: true }
        }
        nr::__NR_setxattrat | nr::__NR_getxattrat | nr::__NR_listxattrat | nr::__NR_removexattrat => {
            Kind::Change { follow: follows_by_flags(call) }
        }
        nr::__NR_file_getattr | nr::__NR_file_setattr => Kind::Change { follow: follows_by_flags(call) },
        nr::__NR_openat2 => kind_of_openat2(call),
        nr::__NR_name_to_handle_at => Kind::Look { follow: call.args[4] as u32 & nr::AT_SYMLINK_FOLLOW != 0 },
        nr::__NR_mount | nr::__NR_umount2 | nr::__NR_execve | nr::__NR_execveat => Kind::Other,
        // They look where their paths lead themselves.
        nr::__NR_pivot_root | nr::__NR_acct | nr::__NR_swapon | nr::__NR_swapoff | nr::__NR_quotactl => Kind::Other,
        nr::__NR_open_tree | nr::__NR_move_mount | nr::__NR_fspick | nr::__NR_mount_setattr | nr::__NR_open_tree_attr => {
            Kind::Other
        }
        nr::__NR_chdir | nr::__NR_fanotify_mark => Kind::Other,
        _ => Kind::Look { follow: follows_by_flags(call) },
    }
}

/// openat2(2) follows symlinks as open(2) does, but where it is to follow none, or none that leads
/// away from where the path starts.
fn kind_of_openat2(call: &Call) -> Kind {
    let (Ok([flags, _, resolve]), true) = (program::read::<[u64; 3]>(call.args[2]), call.args[3] >= size_of::<[u64; 3]>()) else {
        return Kind::Other;
    };
    // NO_MAGICLINKS and CACHED keep no other symlink out.
    if resolve & !(ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED).bits() != 0 {
        return Kind::Other;
    }
    let flags = OFlags::from_bits_retain(flags as u32);
    let follow = !flags.contains(OFlags::NOFOLLOW);
    if flags.intersects(MAKING) { Kind::Make { follow } } else { Kind::Open { follow } }
}

/// Whether a call lets the kernel follow no magic link: then none leads into the array.
fn forbids_magic(call: &Call) -> bool {
    let resolve = || program::read::<[u64; 3]>(call.args[2]).map_or(0, |[_, _, resolve]| resolve);
    call.number == nr::__NR_openat2 as usize && resolve() & ResolveFlags::NO_MAGICLINKS.bits() != 0
}

/// Tells whether the kernel, resolving one of the call's paths, comes to a magic link.
fn meets_magic(call: &Call, row: &Row, follow: bool) -> bool {
    let meets = |base, text: Vec<u8>| meets(base, &text, follow, ResolveFlags::NO_MAGICLINKS);
    paths_of(call, row).any(|path| paths::text(call.args[path]).is_ok_and(|text| meets(base_of(call, row, path), text)))
}

/// Whether a call that has flags for it follows the last component of its path.
fn follows_by_flags(call: &Call) -> bool {
    let flags = match call.number as u32 {
        nr::__NR_statx => call.args[2],
        nr::__NR_setxattrat | nr::__NR_getxattrat | nr::__NR_listxattrat | nr::__NR_removexattrat => call.args[2],
        nr::__NR_file_getattr | nr::__NR_file_setattr => call.args[4],
        nr::__NR_newfstatat | nr::__NR_faccessat2 | nr::__NR_fchmodat2 | nr::__NR_utimensat => call.args[3],
        nr::__NR_fchownat => call.args[4],
        nr::__NR_inotify_add_watch => return call.args[2] & IN_DONT_FOLLOW == 0,
        _ => 0,
    };
    flags as u32 & nr::AT_SYMLINK_NOFOLLOW == 0
}

/// The kernel's answer to a call with paths of the host, or the array's if one of them leads there.
pub(crate) fn serve(call: &mut Call) -> Verdict {
    let row = &ROWS[call.number];
    match kind(call) {
        Kind::Other => Verdict::Pass,
        // The program forbids magic links, so the kernel refuses a call whose path leads through
        // one.
        Kind::Make { follow } if forbids_magic(call) && meets_magic(call, row, follow) => Verdict::Pass,
        Kind::Make { follow } => retry(call, row, follow, Clue::None).unwrap_or(Verdict::Pass),
        Kind::Look { follow } | Kind::Change { follow } => {
            let clue = if leads_through_proc(call, row) { Clue::Proc } else { Clue::Magic };
            let looks_first = clue == Clue::Proc || matches!(kind(call), Kind::Change { .. }) && may_have_magic();
            if looks_first && let Some(verdict) = retry(call, row, follow, clue) {
                return verdict;
            }
            let result = call.kernel();
            let again = if is_missing(result) {
                retry(call, row, follow, Clue::None)
            } else if !looks_first && has_met_member(call, result) {
                retry(call, row, follow, Clue::Magic)
            } else {
                None
            };
            again.unwrap_or(Verdict::Done(result))
        }
        Kind::Open { follow } => {
            paths_of(call, row).for_each(|path| tell_offset(call.args[path]));
            if !forbids_magic(call)
                && leads_through_proc(call, row)
                && let Some(verdict) = retry(call, row, follow, Clue::Proc)
            {
                return verdict;
            }
            open_without_magic(call).unwrap_or_else(|| {
                call.then = Some(opened);
                Verdict::PassWith { number: call.number, args: call.args }
            })
        }
    }
}

/// In a deputy whose descriptors are not the program's: the array's answer to a call with paths of
/// the host, if one of them leads into the array. Every other call is the program's to make.
pub(crate) fn serve_apart(call: &mut Call) -> Verdict {
    let row = &ROWS[call.number];
    let follow = match kind(call) {
        Kind::Other => return Verdict::Pass,
        Kind::Make { follow } | Kind::Look { follow } | Kind::Change { follow } | Kind::Open { follow } => follow,
    };
    match retry(call, row, follow, Clue::None) {
        Some(verdict) => verdict,
        // It may lead to what the program has open, and this process has not.
        None if meets_magic(call, row, follow) => Verdict::error(OsError::MFILE),
        None => Verdict::Pass,
    }
}

/// What /proc/self/fdinfo says of a descriptor is told by the kernel: it gets to know the offset.
fn tell_offset(address: usize) {
    if program::read::<[u8; 6]>(address) != Ok(*b"/proc/") {
        return;
    }
    let Ok(path) = paths::text(address) else { return };
    let mut parts = path.split(|&byte| byte == b'/').skip(2);
    if let (Some(owner), Some(b"fdinfo"), Some(number), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        && let Some(descriptor) = super::magic::own_number(owner, number)
    {
        super::process::tell_offset(descriptor);
    }
}

/// Whether a magic link may lead to something of the array: the process has had a file of the array
/// open, or works in a directory of it. Links to what other processes have open are told by their
/// text only.
fn may_have_magic() -> bool {
    (OPEN.ever_used() || directory::is_ours(AT_FDCWD)) && !deputy::is_active()
}

/// Whether a call that tells of a path has told of something on a member's file system. A path of
/// the host seldom leads there but by a magic link.
fn has_met_member(call: &Call, result: isize) -> bool {
    if result < 0 || !may_have_magic() {
        return false;
    }
    let device = match call.number as u32 {
        nr::__NR_stat | nr::__NR_lstat => program::read::<u64>(call.args[1]),
        nr::__NR_newfstatat => program::read::<u64>(call.args[2]),
        nr::__NR_statx => {
            const MAJOR_AT: usize = 136;
            program::read::<[u32; 2]>(call.args[4].wrapping_add(MAJOR_AT))
                .map(|[major, minor]| sys::rustix::fs::makedev(major, minor))
        }
        _ => return false,
    };
    device.is_ok_and(|device| array::namespace().is_ok_and(|namespace| namespace.is_device_of_member(device)))
}

/// The call that opens what a path of the host leads to, but for what magic links lead to. None if
/// the program's own call is as good, or if the process has forbidden itself calls: it may be ended
/// for an openat2(2) that it has not made.
fn open_without_magic(call: &mut Call) -> Option<Verdict> {
    if !may_have_magic() || super::rights::are_calls_restricted() {
        return None;
    }
    let no_magic = ResolveFlags::NO_MAGICLINKS.bits();
    let (base, path, how) = match call.number as u32 {
        nr::__NR_openat2 if is_how(call.args[2], call.args[3]) => {
            let [flags, mode, resolve] = program::read::<[u64; 3]>(call.args[2]).ok()?;
            (call.args[0], call.args[1], (flags, mode, resolve | no_magic))
        }
        nr::__NR_openat2 => return None,
        number => {
            let (base, path, flags) = match number {
                nr::__NR_open => (AT_FDCWD as usize, call.args[0], call.args[1]),
                _ => (call.args[0], call.args[1], call.args[2]),
            };
            let flags = OFlags::from_bits_retain(flags as u32);
            let flags = if flags.contains(OFlags::PATH) {
                (flags & NAMING).bits().into()
            } else {
                u64::from(flags.bits()) & OPENING | LARGE
            };
            (base, path, (flags, 0, no_magic))
        }
    };
    (call.scratch[0], call.scratch[1], call.scratch[2]) = how;
    call.then = Some(opened_without_magic);
    Some(Verdict::PassWith {
        number: nr::__NR_openat2 as usize,
        args: [base, path, call.scratch.as_ptr() as usize, HOW_BYTES, 0, 0],
    })
}

/// Whether a structure of openat2(2) of so many bytes says no more than this library knows: what is
/// behind that is zero.
fn is_how(address: usize, bytes: usize) -> bool {
    let is_zero = |extra: Vec<u8>| extra.iter().all(|&byte| byte == 0);
    (HOW_BYTES..=PAGE_BYTES).contains(&bytes)
        && program::read_bytes(address.wrapping_add(HOW_BYTES), bytes - HOW_BYTES).is_ok_and(is_zero)
}

/// The kernel has opened something, or has found nothing, or has met a magic link.
fn opened_without_magic(call: &mut Call) -> isize {
    let is = |error: OsError| call.result == -(error.raw_os_error() as isize);
    if is(OsError::LOOP) && forbids_magic(call) {
        return call.result;
    }
    if is(OsError::LOOP)
        && let Some(verdict) = retry(call, &ROWS[call.number], matches!(kind(call), Kind::Open { follow: true }), Clue::Proc)
    {
        return go_on(call, verdict);
    }
    let is = |error: OsError| call.result == -(error.raw_os_error() as isize);
    // It leads to nothing of the array; or this kernel, or a sandbox, does not have the call.
    if is(OsError::LOOP) || is(OsError::NOSYS) || is(OsError::PERM) || is(OsError::INVAL) || is(OsError::AGAIN) {
        call.instead[0] = call.number;
        call.instead[1..].copy_from_slice(&call.args);
        call.then = Some(opened);
        return call.result;
    }
    opened(call)
}

/// Whether an answer of the kernel's may mean that a path leads into the array ([`is_absence`]).
fn is_missing(result: isize) -> bool {
    sys::raw::check(result).is_err_and(is_absence)
}

/// Whether an error may mean that a path leads into the array: there the host has nothing, no
/// directory, or one that this process may not search.
pub(super) fn is_absence(error: OsError) -> bool {
    // What is above the prefix is the host's, and its rights hold.
    let may_be_reached = || array::prefixes().is_some_and(array::Prefixes::may_be_reached);
    matches!(error, OsError::NOENT | OsError::NOTDIR) || error == OsError::ACCESS && may_be_reached()
}

/// The kernel has opened something, or found nothing.
fn opened(call: &mut Call) -> isize {
    if !is_missing(call.result) && !is_directory_below(call) {
        return call.result;
    }
    match retry(call, &ROWS[call.number], matches!(kind(call), Kind::Open { follow: true }), Clue::None) {
        Some(verdict) => {
            if call.result >= 0 {
                // SAFETY: the number was made by this call and nobody knows it yet.
                unsafe { sys::raw::syscall(nr::__NR_close as usize, [call.result as usize, 0, 0, 0, 0, 0]) };
            }
            go_on(call, verdict)
        }
        None => call.result,
    }
}

/// The result of a call that was served behind another one, or what the stub is to do next.
fn go_on(call: &mut Call, verdict: Verdict) -> isize {
    match verdict {
        Verdict::Done(result) => result,
        Verdict::PassWith { number, args: [a, b, c, d, e, f] } => {
            call.instead = [number, a, b, c, d, e, f];
            call.result
        }
        Verdict::Pass => call.result,
    }
}

/// Whether a directory was opened that on the host lies where the array is seen.
fn is_directory_below(call: &Call) -> bool {
    let flags = match call.number as u32 {
        nr::__NR_open => call.args[1],
        nr::__NR_openat2 => program::read(call.args[2]).unwrap_or(0),
        _ => call.args[2],
    };
    if call.result < 0 || !OFlags::from_bits_retain(flags as u32).contains(OFlags::DIRECTORY) {
        return false;
    }
    let link = heap::format!("/proc/thread-self/fd/{}", call.result);
    let owned = |path: &[u8]| array::prefixes().is_some_and(|prefixes| prefixes.own(path));
    readlink(link.as_str(), Vec::new()).is_ok_and(|path| owned(path.as_bytes()))
}

/// Whether a path is the name that a link gets, which is not followed whatever the flags say of the
/// other one.
fn is_new_name(call: &Call, path: usize) -> bool {
    call.number == nr::__NR_linkat as usize && path == 3
}

/// Whether a call is about the name at the end of a path, and not about what a symlink there leads
/// to, also if slashes are behind the name.
fn is_about_name(call: &Call, path: usize) -> bool {
    match call.number as u32 {
        nr::__NR_mkdir | nr::__NR_mkdirat | nr::__NR_mknod | nr::__NR_mknodat | nr::__NR_symlink | nr::__NR_symlinkat => true,
        nr::__NR_unlink | nr::__NR_unlinkat | nr::__NR_rmdir => true,
        nr::__NR_rename | nr::__NR_renameat | nr::__NR_renameat2 => true,
        nr::__NR_link => path == 1,
        nr::__NR_linkat => path == 3,
        _ => false,
    }
}

/// What is known of a path of the host that may lead into the array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clue {
    /// Nothing: there may be a symlink on its way.
    None,
    /// There may be a magic link on its way, and other symlinks do not count.
    Magic,
    /// It leads through what /proc says of a process.
    Proc,
}

/// A path that leads into the array.
pub(crate) struct Way {
    /// With its NUL.
    path: Vec<u8>,
    /// What the path leads through.
    _open: Option<Raised>,
}

impl Way {
    /// The path without its NUL.
    pub(crate) fn link(&self) -> &[u8] {
        self.path.strip_suffix(b"\0").unwrap_or(&self.path)
    }
}

/// What of the array a path of the host leads to by a magic link that its text does not show.
pub(crate) fn open_behind(path: &[u8]) -> Option<Way> {
    if may_have_magic() { by_magic(AT_FDCWD, path) } else { None }
}

/// A path that the library recognises, in the place of one of the host that leads into the array.
fn way_in(base: RawFd, address: usize, follow: bool, about_name: bool, clue: Clue) -> Option<Way> {
    let text = paths::text(address).ok()?;
    let path = if about_name { namespace::without_slashes(&text) } else { &text };
    let may_lead_in = match clue {
        Clue::None => meets(base, path, follow, ResolveFlags::NO_SYMLINKS),
        Clue::Magic => meets(base, path, follow, ResolveFlags::NO_MAGICLINKS),
        Clue::Proc => true,
    };
    if path.is_empty() || !may_lead_in {
        return None;
    }
    let by_magic = if follow { by_magic(base, path) } else { None };
    by_magic.or_else(|| {
        let mut path = entered_by_text(base, path, follow, true)?;
        put_slashes(&mut path, &text);
        Some(Way { path, _open: None })
    })
}

/// Puts the slashes behind a path that ends with a NUL which are behind the program's path, and
/// were left out: they say that a directory is meant.
fn put_slashes(path: &mut Vec<u8>, text: &[u8]) {
    path.pop();
    if !path.ends_with(b"/") {
        path.extend_from_slice(&text[namespace::without_slashes(text).len()..]);
    }
    path.push(0);
}

/// A path by which the library knows what a path of the host leads to by a magic link, whatever
/// that is called by now.
fn by_magic(base: RawFd, path: &[u8]) -> Option<Way> {
    let found = behind_magic(base, path)?;
    let path = heap::format!("/proc/self/task/{}/fd/{}\0", crate::stack::thread(), found.as_raw_fd());
    Some(Way { path: path.into_bytes(), _open: Some(found) })
}

/// What of the array a path of the host leads to by a magic link, opened with O_PATH.
fn behind_magic(base: RawFd, path: &[u8]) -> Option<Raised> {
    if !meets(base, path, true, ResolveFlags::NO_MAGICLINKS) {
        return None;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = Raised::new(openat2(start_of(base, path)?, path, flags, Mode::empty(), ResolveFlags::empty()).ok()?).ok()?;
    array::namespace().ok()?.logical_path_of(found.as_fd()).ok()??;
    Some(found)
}

/// What of the array the path at `address` leads to by a magic link that its text does not show.
pub(crate) fn link_behind(base: RawFd, address: usize) -> Option<Link> {
    if !may_have_magic() {
        return None;
    }
    behind_magic(base, &paths::text(address).ok()?).map(Link::Other)
}

/// What of the array a path of the host leads to by a magic link, where a symlink of the array has
/// led out to that path.
pub(crate) fn link_at_host(path: &[u8]) -> Option<Link> {
    behind_magic(AT_FDCWD, path).map(Link::Other)
}

/// Tells whether the kernel meets on a path of the host what `without` keeps it from following. Where
/// no descriptor is free for the question, that is noted ([`Shortage`]).
fn meets(base: RawFd, path: &[u8], follow: bool, without: ResolveFlags) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let found = start_of(base, path).map(|base| openat2(base, path, flags, Mode::empty(), without));
    if matches!(found, Some(Err(OsError::MFILE | OsError::NFILE))) {
        Shortage::note();
    }
    matches!(found, Some(Err(OsError::LOOP)))
}

/// The directory where the kernel begins with a path; None if there is none.
fn start_of<'a>(base: RawFd, path: &[u8]) -> Option<BorrowedFd<'a>> {
    match base {
        _ if path.starts_with(b"/") => Some(CWD),
        AT_FDCWD => Some(CWD),
        ..0 => None,
        base => Some(directory::borrow(base)),
    }
}

/// Makes the call again with the paths in the array that its paths lead to; None if none does. What
/// it opens there may be waited for by the stub. Where no descriptor is free to find out, the call is
/// refused: the kernel would act on what the host has, or on one member.
fn retry(call: &mut Call, row: &Row, follow: bool, clue: Clue) -> Option<Verdict> {
    let shortage = Shortage::begin();
    let mut ways: [Option<Way>; ARGUMENT_COUNT] = [const { None }; ARGUMENT_COUNT];
    for path in paths_of(call, row) {
        let follow = follow && !is_new_name(call, path);
        ways[path] = way_in(base_of(call, row, path), call.args[path], follow, is_about_name(call, path), clue);
    }
    if let Some(refusal) = shortage.refusal() {
        return Some(refusal);
    }
    if ways.iter().all(Option::is_none) {
        return None;
    }
    let kept = call.args;
    for (path, way) in ways.iter().enumerate() {
        if let Some(way) = way {
            call.args[path] = way.path.as_ptr() as usize;
        }
    }
    let verdict = handler(call.number)(call);
    call.args = kept;
    let is_served = matches!(verdict, Verdict::Done(_)) || matches!(verdict, Verdict::PassWith { .. }) && call.then.is_some();
    is_served.then_some(verdict)
}

/// The arguments that are paths to be resolved: a symlink's contents are not.
pub(crate) fn paths_of(call: &Call, row: &Row) -> impl Iterator<Item = usize> + use<> {
    let contents = matches!(call.number as u32, nr::__NR_symlink | nr::__NR_symlinkat);
    let bits = row.paths & if contents { !1 } else { !0 };
    (0..ARGUMENT_COUNT).filter(move |index| bits >> index & 1 == 1)
}

pub(crate) fn base_of(call: &Call, row: &Row, path: usize) -> RawFd {
    match path.checked_sub(1) {
        Some(index) if row.descriptors >> index & 1 == 1 => call.descriptor(index),
        _ => AT_FDCWD,
    }
}

/// Where in the array argument `path` of a call leads, with its NUL, if it is a path of the host
/// that leads there.
pub(crate) fn entered_by(call: &Call, row: &Row, base: RawFd, path: usize) -> Option<Vec<u8>> {
    let follow = match kind(call) {
        Kind::Other if call.number == nr::__NR_chdir as usize => true,
        Kind::Other => return None,
        Kind::Make { follow } | Kind::Look { follow } | Kind::Change { follow } | Kind::Open { follow } => follow,
    };
    let follow = follow && !is_new_name(call, path);
    let surely = leads_through_proc(call, row);
    if is_about_name(call, path) {
        let text = paths::text(call.args[path]).ok()?;
        let mut found = entered_by_text(base, namespace::without_slashes(&text), follow, surely)?;
        put_slashes(&mut found, &text);
        return Some(found);
    }
    entered(base, call.args[path], follow, surely)
}

/// Whether a path in the array, with its NUL, may be what /proc says of something open that has no
/// name any more.
pub(crate) fn may_be_nameless(path: &[u8]) -> bool {
    path.ends_with(b" (deleted)\0")
}

/// In a deputy: makes a call on what is open and may have no name any more, where a path of the
/// host leads there by a magic link. None for every other call.
pub(crate) fn on_nameless(call: &mut Call) -> Option<Verdict> {
    let row = &ROWS[call.number];
    let follow = match kind(call) {
        Kind::Other => return None,
        Kind::Make { follow } | Kind::Look { follow } | Kind::Change { follow } | Kind::Open { follow } => follow,
    };
    let is_nameless = |path: usize| {
        let entered = entered_by(call, row, base_of(call, row, path), path);
        entered.is_some_and(|path| may_be_nameless(&path))
    };
    if !paths_of(call, row).any(is_nameless) {
        return None;
    }
    // The kernel, which would find a member's file, is not asked.
    Some(retry(call, row, follow, Clue::Proc).unwrap_or(Verdict::error(OsError::NOENT)))
}

/// Whether a path of the call leads by what /proc says of a process.
fn leads_through_proc(call: &Call, row: &Row) -> bool {
    paths_of(call, row).any(|path| is_through_proc(base_of(call, row, path), call.args[path]))
}

fn is_through_proc(base: RawFd, address: usize) -> bool {
    match program::read::<u8>(address) {
        Ok(b'/') => match program::read::<[u8; 6]>(address) {
            Ok([b'/', b'/' | b'.', ..]) => {}
            Ok(start) if start == *b"/proc/" || start == *b"/dev/f" => {}
            _ => return false,
        },
        // Relative to a directory under /proc: `7/x`, `self/fd/7/x`.
        Ok(b'0'..=b'9' | b'c' | b'e' | b'f' | b'r' | b's' | b't' | b'.') if !directory::is_ours(base) => {}
        _ => return false,
    }
    paths::text(address).is_ok_and(|text| leads_through(base, &text))
}

fn leads_through(base: RawFd, path: &[u8]) -> bool {
    let is_descriptor = |name: &[u8]| !name.is_empty() && name.iter().all(u8::is_ascii_digit);
    if path.starts_with(b"/") {
        let path = normalise(path);
        return path.starts_with(b"/dev/fd/") || path.starts_with(b"/proc/") && names_a_process(&path);
    }
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let may_be = names.next().is_some_and(|first| names.next().is_some() && is_descriptor(first)) || names_a_process(path);
    may_be && directory::path_of(base).is_some_and(|start| start.starts_with(b"/proc"))
}

/// Where in the array a path of the host leads that a symlink of the array led out to: by what
/// /proc says of a process, or by a symlink of the host's.
pub(crate) fn entered_again(path: &[u8], follow: bool) -> Option<Vec<u8>> {
    let mut found = entered_by_text(AT_FDCWD, path, follow, leads_through(AT_FDCWD, path))?;
    // Its NUL.
    found.pop();
    Some(found)
}

fn names_a_process(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| matches!(name, b"fd" | b"cwd" | b"exe" | b"root" | b"map_files"))
}

/// Where in the array the path at `address` leads, with its NUL. `surely`: a symlink on its way
/// need not be looked for first.
pub(crate) fn entered(base: RawFd, address: usize, follow: bool, surely: bool) -> Option<Vec<u8>> {
    entered_by_text(base, &paths::text(address).ok()?, follow, surely)
}

/// Where in the array a path leads that is not a string of the program's.
pub(crate) fn entered_by_text(base: RawFd, path: &[u8], follow: bool, surely: bool) -> Option<Vec<u8>> {
    let namespace = array::namespace().ok().filter(|_| !path.is_empty())?;
    if !surely && !meets(base, path, follow, ResolveFlags::NO_SYMLINKS) {
        return None;
    }
    let mut absolute = if path.starts_with(b"/") { Vec::new() } else { [&directory::path_of(base)?, &b"/"[..]].concat() };
    absolute.extend_from_slice(path);
    let mut found = namespace.entered_from_host(&absolute, follow)?;
    found.push(0);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_through_processes_are_walked_first() {
        for path in [&b"/proc/self/fd/3/x"[..], b"/proc/self/cwd/x", b"/proc/12/exe", b"/proc/self/task/1/root"] {
            assert!(names_a_process(path));
        }
        for path in [&b"/proc/self/maps"[..], b"/proc/meminfo", b"/proc/self/mountinfo", b"/proc/sys/fs/file-max"] {
            assert!(!names_a_process(path));
        }
    }
}
