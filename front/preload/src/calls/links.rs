//! Paths of the host that lead into the array, by a symlink or by /proc.
//!
//! A call of the host that only looks at a name goes to the kernel first. Only if the kernel finds
//! nothing does the library look for a symlink on the way that leads into the array. A call that
//! makes a name is different: the library looks first, with one system call, so that nothing is
//! made on the host that belongs into the array. Paths under /proc that lead through a process'
//! directories and files are walked first, too: they lead to a member, where the kernel would find
//! something.

use super::paths::{self, AT_FDCWD};
use super::{directory, handler};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::program;
use crate::table::{ROWS, Row};
use ::array::config::normalise;
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use namespace::OFlags;
use sys::rustix::fs::{Mode, ResolveFlags, openat2, readlink};
use sys::{OsError, RawFd};

const MAKING: OFlags = OFlags::CREATE.union(OFlags::TMPFILE);
const ARGUMENT_COUNT: usize = 6;

/// What a call does with its paths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Looks at what is there, and does not wait.
    Look { follow: bool },
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
        nr::__NR_lstat | nr::__NR_unlink | nr::__NR_unlinkat | nr::__NR_rmdir | nr::__NR_readlink | nr::__NR_readlinkat => {
            Kind::Look { follow: false }
        }
        nr::__NR_lchown | nr::__NR_lgetxattr | nr::__NR_lsetxattr | nr::__NR_llistxattr | nr::__NR_lremovexattr => {
            Kind::Look { follow: false }
        }
        nr::__NR_openat2 => kind_of_openat2(call),
        nr::__NR_name_to_handle_at => Kind::Look { follow: call.args[4] as u32 & nr::AT_SYMLINK_FOLLOW != 0 },
        nr::__NR_mount | nr::__NR_umount2 | nr::__NR_execve | nr::__NR_execveat => Kind::Other,
        // They look where their paths lead themselves.
        nr::__NR_pivot_root | nr::__NR_acct | nr::__NR_swapon | nr::__NR_swapoff | nr::__NR_quotactl => Kind::Other,
        nr::__NR_open_tree | nr::__NR_move_mount | nr::__NR_fspick | nr::__NR_mount_setattr | 467 => Kind::Other,
        nr::__NR_chdir | nr::__NR_fanotify_mark => Kind::Other,
        _ => Kind::Look { follow: follows_by_flags(call) },
    }
}

/// openat2(2) follows symlinks as open(2) does, but where it is to follow none, or none that leads away from where the path starts.
fn kind_of_openat2(call: &Call) -> Kind {
    let (Ok([flags, _, resolve]), true) = (program::read::<[u64; 3]>(call.args[2]), call.args[3] >= size_of::<[u64; 3]>()) else {
        return Kind::Other;
    };
    // NO_MAGICLINKS and CACHED keep no other symlink out.
    if resolve & !0x22 != 0 {
        return Kind::Other;
    }
    let flags = OFlags::from_bits_retain(flags as u32);
    let follow = !flags.contains(OFlags::NOFOLLOW);
    if flags.intersects(MAKING) { Kind::Make { follow } } else { Kind::Open { follow } }
}

/// Whether a call that has flags for it follows the last component of its path.
fn follows_by_flags(call: &Call) -> bool {
    let flags = match call.number as u32 {
        nr::__NR_statx => call.args[2],
        nr::__NR_newfstatat | nr::__NR_faccessat2 | nr::__NR_fchmodat2 | nr::__NR_utimensat => call.args[3],
        nr::__NR_fchownat => call.args[4],
        nr::__NR_inotify_add_watch => return call.args[2] & 0x0200_0000 == 0, // IN_DONT_FOLLOW
        _ => 0,
    };
    flags as u32 & nr::AT_SYMLINK_NOFOLLOW == 0
}

/// The kernel's answer to a call with paths of the host, or the array's if one of them leads there.
pub(crate) fn serve(call: &mut Call) -> Verdict {
    let row = &ROWS[call.number];
    match kind(call) {
        Kind::Other => Verdict::Pass,
        Kind::Make { follow } => retry(call, row, follow, false).unwrap_or(Verdict::Pass),
        Kind::Look { follow } => {
            if leads_through_proc(call, row)
                && let Some(verdict) = retry(call, row, follow, true)
            {
                return verdict;
            }
            let result = call.kernel();
            is_missing(result).then(|| retry(call, row, follow, false)).flatten().unwrap_or(Verdict::Done(result))
        }
        Kind::Open { follow } => {
            if leads_through_proc(call, row)
                && let Some(verdict) = retry(call, row, follow, true)
            {
                return verdict;
            }
            call.then = Some(opened);
            Verdict::PassWith { number: call.number, args: call.args }
        }
    }
}

/// Whether an answer of the kernel's may mean that a path leads into the array: there the host has nothing, no directory, or one that this process may not search.
fn is_missing(result: isize) -> bool {
    let is = |error: OsError| result == -(error.raw_os_error() as isize);
    // What is above the prefix is the host's, and its rights hold.
    let may_be_reached = || array::prefixes().is_some_and(array::Prefixes::may_be_reached);
    is(OsError::NOENT) || is(OsError::NOTDIR) || is(OsError::ACCESS) && may_be_reached()
}

/// The kernel has opened something, or found nothing.
fn opened(call: &mut Call) -> isize {
    if !is_missing(call.result) && !is_directory_below(call) {
        return call.result;
    }
    match retry(call, &ROWS[call.number], matches!(kind(call), Kind::Open { follow: true }), false) {
        Some(Verdict::Done(result)) => {
            if call.result >= 0 {
                // SAFETY: the number was made by this call and nobody knows it yet.
                unsafe { sys::raw::syscall(nr::__NR_close as usize, [call.result as usize, 0, 0, 0, 0, 0]) };
            }
            result
        }
        _ => call.result,
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

/// Whether a path is the name that a link gets, which is not followed whatever the flags say of the other one.
fn is_new_name(call: &Call, path: usize) -> bool {
    call.number == nr::__NR_linkat as usize && path == 3
}

/// Makes the call again with the paths in the array that its paths lead to; None if none does.
fn retry(call: &mut Call, row: &Row, follow: bool, surely: bool) -> Option<Verdict> {
    let mut texts: [Option<Vec<u8>>; ARGUMENT_COUNT] = [const { None }; ARGUMENT_COUNT];
    for path in paths_of(call, row) {
        let follow = follow && !is_new_name(call, path);
        texts[path] = entered(base_of(call, row, path), call.args[path], follow, surely);
    }
    if texts.iter().all(Option::is_none) {
        return None;
    }
    let kept = call.args;
    for (path, text) in texts.iter().enumerate() {
        if let Some(text) = text {
            call.args[path] = text.as_ptr() as usize;
        }
    }
    let verdict = handler(call.number)(call);
    call.args = kept;
    matches!(verdict, Verdict::Done(_)).then_some(verdict)
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

/// Where in the array argument `path` of a call leads, with its NUL, if it is a path of the host that leads there.
pub(crate) fn entered_by(call: &Call, row: &Row, base: RawFd, path: usize) -> Option<Vec<u8>> {
    let follow = match kind(call) {
        Kind::Other if call.number == nr::__NR_chdir as usize => true,
        Kind::Other => return None,
        Kind::Make { follow } | Kind::Look { follow } | Kind::Open { follow } => follow,
    };
    let follow = follow && !is_new_name(call, path);
    let surely = leads_through_proc(call, row);
    if matches!(call.number as u32, nr::__NR_rename | nr::__NR_renameat | nr::__NR_renameat2) {
        // A slash behind the name does not make it followed.
        let text = paths::text(call.args[path]).ok()?;
        return entered_by_text(base, namespace::without_slashes(&text), follow, surely);
    }
    entered(base, call.args[path], follow, surely)
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

/// Where in the array a path of the host leads that a symlink of the array led out to: by what /proc says of a process, or by a symlink of the host's.
pub(crate) fn entered_again(path: &[u8], follow: bool) -> Option<Vec<u8>> {
    let mut found = entered_by_text(AT_FDCWD, path, follow, leads_through(AT_FDCWD, path))?;
    // Its NUL.
    found.pop();
    Some(found)
}

fn names_a_process(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| matches!(name, b"fd" | b"cwd" | b"exe" | b"root"))
}

/// Where in the array the path at `address` leads, with its NUL. `surely`: a symlink on its way need not be looked for first.
pub(crate) fn entered(base: RawFd, address: usize, follow: bool, surely: bool) -> Option<Vec<u8>> {
    entered_by_text(base, &paths::text(address).ok()?, follow, surely)
}

/// Where in the array a path leads that is not a string of the program's.
pub(crate) fn entered_by_text(base: RawFd, path: &[u8], follow: bool, surely: bool) -> Option<Vec<u8>> {
    let namespace = array::namespace().ok().filter(|_| !path.is_empty())?;
    if !surely {
        let flags = OFlags::PATH | OFlags::CLOEXEC | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let found = openat2(directory::borrow(base), path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        if !matches!(found, Err(OsError::LOOP)) {
            return None;
        }
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
