//! The child process that asks a mount for descriptors. It allocates nothing and takes no lock:
//! other threads of its parent may hold any. It has a descriptor table of its own, from which it
//! closes at once what it does not need: if the mount never answers, the child hangs for as long,
//! and must not keep pipes and sockets of the program open. It has the current directory in common
//! with its parent if that is to be another one.

use super::{Mount, WANTED_COUNT_MAX, Wanted, What};
use crate::calls::directory::borrow;
use crate::signals;
use crate::uapi::{
    AF_UNIX, KCMP_FILE, MSG_CMSG_CLOEXEC, MSG_NOSIGNAL, PATH_MAX, POLLIN, SCM_RIGHTS, SIGKILL, SOCK_CLOEXEC, SOL_SOCKET,
};
use core::ffi::CStr;
use core::mem::size_of;
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use linux_raw_sys::general::{__WALL, CLONE_FS, O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_PATH, WNOHANG};
use linux_raw_sys::net::SOCK_SEQPACKET;
use namespace::FileType;
use namespace::handover::{GIVE, Given, IDENTIFY, IDENTITY_BYTES, INODE, INODE_BYTES, Identity, NAME};
use sys::raw::{check, syscall};
use sys::rustix::fs::{CWD, Mode, OFlags, ResolveFlags, SeekFrom, fstat, openat, openat2, seek};
use sys::rustix::time::{ClockId, Timespec, clock_gettime};
use sys::{AsRawFd, FromRawFd, OsError, OwnedFd, RawFd};

const LINK_BYTES_MAX: usize = 32;
/// `struct cmsghdr` without the descriptors behind it.
const CONTROL_HEAD_BYTES: usize = 16;
/// The parent waits so long between two looks whether a child that has answered has ended.
const PERIOD_NS: u64 = 100_000;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Says of a thing that it was not found.
const NONE: u8 = 0;
/// Says of a thing that it was found; if a descriptor of it is to be sent, that is the next one.
const FOUND: u8 = u8::MAX;

/// The child's task: which mounts to ask for which things.
pub(super) struct Errand<'a> {
    pub(super) mounts: &'a [Mount],
    pub(super) wanted: &'a [Wanted],
    /// The array's UUID.
    pub(super) uuid: [u8; 16],
}

/// The child's answer, as it is sent.
#[repr(C)]
#[derive(Clone, Copy)]
struct Answer {
    /// For each thing that is wanted [`NONE`], [`FOUND`], or one more than the index of the thing
    /// that has the same description.
    found: [u8; WANTED_COUNT_MAX],
    /// The mount in which the program was found, and the length of the array's path that the mount
    /// shows.
    mount: u16,
    prefix_bytes: u16,
}

/// Holds the child's answer and the descriptors that came with it.
pub(super) struct Reply {
    answer: Answer,
    descriptors: Vec<OwnedFd>,
}

/// `struct msghdr`.
#[repr(C)]
struct Message {
    name: usize,
    name_bytes: usize,
    parts: usize,
    part_count: usize,
    control: usize,
    control_bytes: usize,
    flags: usize,
}

/// Room for `struct cmsghdr` with descriptors behind it.
#[repr(C)]
struct Control {
    bytes: usize,
    level: i32,
    kind: i32,
    descriptors: [RawFd; WANTED_COUNT_MAX],
}

impl Reply {
    pub(super) fn is_granted(&self, index: usize) -> bool {
        self.answer.found.get(index).is_some_and(|&found| found != NONE)
    }

    /// Returns the descriptor that came for a thing.
    pub(super) fn descriptor(&self, index: usize) -> Option<RawFd> {
        let found = &self.answer.found;
        let first = match *found.get(index)? {
            NONE => return None,
            FOUND => index,
            same => usize::from(same) - 1,
        };
        let position = found.get(..first)?.iter().filter(|&&found| found == FOUND).count();
        self.descriptors.get(position).map(AsRawFd::as_raw_fd)
    }

    pub(super) fn program(&self) -> (usize, usize) {
        (self.answer.mount.into(), self.answer.prefix_bytes.into())
    }

    /// Gives the numbers of all descriptors to the caller, who closes them.
    pub(super) fn into_descriptors(self) -> Vec<RawFd> {
        self.descriptors.into_iter().map(sys::IntoRawFd::into_raw_fd).collect()
    }
}

/// Has a child do the errand. Returns None if the child does not answer in time, or cannot be
/// started.
pub(super) fn run(errand: &Errand<'_>, deadline_ns: u64) -> Option<Reply> {
    let (own, other) = pair()?;
    let shares_directory = errand.wanted.iter().any(|wanted| wanted.what == What::Current);
    let flags = if shares_directory { CLONE_FS as usize } else { 0 };
    let mut child = 0;
    signals::undisturbed(|| {
        // SAFETY: a copy of this process, which goes on here with memory of its own and sends no
        // signal at its end.
        child = unsafe { syscall(nr::__NR_clone as usize, [flags, 0, 0, 0, 0, 0]) };
        if child == 0 {
            act(errand, other.as_raw_fd());
        }
    });
    drop(other);
    if child < 0 {
        return None;
    }
    let reply = if has_answered(&own, deadline_ns) { receive(&own) } else { None };
    await_end(child as usize, if reply.is_some() { deadline_ns } else { now_ns() });
    reply
}

/// The time of the kernel's clock that nobody sets. rustix checks what the kernel says; one such
/// check is enough.
#[inline(never)]
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(NS_PER_SECOND).wrapping_add(now.tv_nsec as u64)
}

fn pair() -> Option<(OwnedFd, OwnedFd)> {
    let mut pair = [0 as RawFd; 2];
    let kind = (SOCK_SEQPACKET | SOCK_CLOEXEC) as usize;
    // SAFETY: the kernel stores two numbers.
    check(unsafe { syscall(nr::__NR_socketpair as usize, [AF_UNIX as usize, kind, 0, pair.as_mut_ptr() as usize, 0, 0]) })
        .ok()?;
    // SAFETY: both were just made, for this function.
    Some(unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) })
}

/// Waits for an answer, or for the child's end.
fn has_answered(socket: &OwnedFd, deadline_ns: u64) -> bool {
    loop {
        let left_ns = deadline_ns.saturating_sub(now_ns());
        if left_ns == 0 {
            return false;
        }
        let left = Timespec { tv_sec: (left_ns / NS_PER_SECOND) as i64, tv_nsec: (left_ns % NS_PER_SECOND) as i64 };
        // `struct pollfd`: the number, and what is asked for.
        let mut polled = u64::from(socket.as_raw_fd() as u32) | POLLIN << 32;
        let args = [&raw mut polled as usize, 1, &raw const left as usize, 0, 8, 0];
        // SAFETY: the structure and the time outlive the call.
        match check(unsafe { syscall(nr::__NR_ppoll as usize, args) }) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(OsError::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn receive(socket: &OwnedFd) -> Option<Reply> {
    let mut answer = Answer { found: [NONE; WANTED_COUNT_MAX], mount: 0, prefix_bytes: 0 };
    let mut control = Control { bytes: 0, level: 0, kind: 0, descriptors: [-1; WANTED_COUNT_MAX] };
    let part = [&raw mut answer as usize, size_of::<Answer>()];
    let mut message = Message {
        name: 0,
        name_bytes: 0,
        parts: part.as_ptr() as usize,
        part_count: 1,
        control: &raw mut control as usize,
        control_bytes: size_of::<Control>(),
        flags: 0,
    };
    let args = [socket.as_raw_fd() as usize, &raw mut message as usize, MSG_CMSG_CLOEXEC, 0, 0, 0];
    // SAFETY: the message and everything that it names outlive the call.
    let bytes = check(unsafe { syscall(nr::__NR_recvmsg as usize, args) }).ok()?;
    let count = control.bytes.saturating_sub(CONTROL_HEAD_BYTES) / size_of::<RawFd>();
    let sent = control.descriptors.get(..count).filter(|_| control.kind == SCM_RIGHTS).unwrap_or_default();
    // SAFETY: the kernel has just made these numbers.
    let descriptors = sent.iter().map(|&number| unsafe { OwnedFd::from_raw_fd(number) }).collect();
    (bytes == size_of::<Answer>()).then_some(Reply { answer, descriptors })
}

/// Waits for the end of the child, which it is helped to at the deadline. One that the mount does
/// not let go of is left.
fn await_end(child: usize, deadline_ns: u64) {
    let mut rounds_left = 20;
    loop {
        // SAFETY: waits for the child, and stores nothing.
        let ended = unsafe { syscall(nr::__NR_wait4 as usize, [child, 0, (WNOHANG | __WALL) as usize, 0, 0, 0]) };
        if ended != 0 || rounds_left == 0 {
            return;
        }
        if now_ns() > deadline_ns {
            rounds_left -= 1;
            // SAFETY: the child was not waited for, so the number is its own.
            unsafe { syscall(nr::__NR_kill as usize, [child, SIGKILL, 0, 0, 0, 0]) };
        }
        sys::rest::rest(PERIOD_NS);
    }
}

/// Runs as the child, from its start to its end.
fn act(errand: &Errand<'_>, socket: RawFd) -> ! {
    keep_only(errand, socket);
    let mut answer = Answer { found: [NONE; WANTED_COUNT_MAX], mount: 0, prefix_bytes: 0 };
    let mut control =
        Control { bytes: CONTROL_HEAD_BYTES, level: SOL_SOCKET, kind: SCM_RIGHTS, descriptors: [-1; WANTED_COUNT_MAX] };
    let mut opened = [const { None }; WANTED_COUNT_MAX];
    for (index, mount) in errand.mounts.iter().enumerate() {
        // A mount that hangs must not cost what another one has given.
        if answer.found.iter().take(errand.wanted.len()).all(|&found| found != NONE) {
            break;
        }
        search(errand, (index, mount), &mut answer, &mut opened);
    }
    let mut count = 0;
    for (place, fd) in control.descriptors.iter_mut().zip(opened.iter().flatten()) {
        *place = OwnedFd::as_raw_fd(fd);
        count += 1;
    }
    control.bytes += count * size_of::<RawFd>();
    let part = [&raw const answer as usize, size_of::<Answer>()];
    let message = Message {
        name: 0,
        name_bytes: 0,
        parts: part.as_ptr() as usize,
        part_count: 1,
        control: if count == 0 { 0 } else { &raw const control as usize },
        control_bytes: if count == 0 { 0 } else { control.bytes.next_multiple_of(8) },
        flags: 0,
    };
    // SAFETY: the message and everything that it names outlive the call.
    unsafe { syscall(nr::__NR_sendmsg as usize, [socket as usize, &raw const message as usize, MSG_NOSIGNAL, 0, 0, 0]) };
    loop {
        // SAFETY: the process ends.
        unsafe { syscall(nr::__NR_exit_group as usize, [0; 6]) };
    }
}

/// Closes every descriptor but the socket and the anchors that are asked for.
fn keep_only(errand: &Errand<'_>, socket: RawFd) {
    let mut from = 0u32;
    loop {
        let kept = errand.wanted.iter().flat_map(|wanted| [wanted.anchor, wanted.shown]).chain([socket]);
        let next = kept.filter_map(|number| u32::try_from(number).ok()).filter(|&number| number >= from).min();
        let last = next.map_or(u32::MAX, |next| next.wrapping_sub(1));
        if next != Some(from) {
            // SAFETY: this process uses none of them; no library's code runs in it but this file's.
            unsafe { syscall(nr::__NR_close_range as usize, [from as usize, last as usize, 0, 0, 0, 0]) };
        }
        match next {
            Some(next) => from = next + 1,
            None => return,
        }
    }
}

/// Looks in one mount for what was not found yet.
fn search(
    errand: &Errand<'_>,
    (mount_index, mount): (usize, &Mount),
    answer: &mut Answer,
    opened: &mut [Option<OwnedFd>; WANTED_COUNT_MAX],
) {
    let Some(root) = CStr::from_bytes_until_nul(&mount.path).ok().and_then(|path| open_root(path, mount)) else { return };
    let mut identity = [0; IDENTITY_BYTES];
    if control(&root, IDENTIFY, identity.as_mut_ptr() as usize).is_err() {
        return;
    }
    let Some(identity) = Identity::decode(&identity).filter(|identity| identity.uuid == errand.uuid) else { return };
    for (index, wanted) in errand.wanted.iter().enumerate() {
        let Some(rest) = wanted.path.strip_prefix(identity.prefix).filter(|rest| matches!(rest.first(), None | Some(b'/')))
        else {
            continue;
        };
        if answer.found.get(index).is_none_or(|&found| found != NONE) {
            continue;
        }
        let same = errand.wanted.iter().take(index).position(|before| are_of_one(before, wanted));
        let same = same.filter(|&same| answer.found.get(same) == Some(&FOUND));
        let found = match same {
            Some(same) => same as u8 + 1,
            None => match look(wanted, &root, rest) {
                Some(fd) => {
                    if matches!(wanted.what, What::File | What::Directory | What::Named)
                        && let Some(place) = opened.get_mut(index)
                    {
                        *place = Some(fd);
                    }
                    FOUND
                }
                None => NONE,
            },
        };
        if let Some(place) = answer.found.get_mut(index) {
            *place = found;
        }
        if wanted.what == What::Program && found == FOUND {
            (answer.mount, answer.prefix_bytes) = (mount_index as u16, identity.prefix.len() as u16);
        }
    }
}

/// Whether two anchors are of one open file description.
fn are_of_one(one: &Wanted, other: &Wanted) -> bool {
    one.anchor >= 0 && other.anchor >= 0 && have_one_description(one.anchor, other.anchor) == Some(true)
}

/// Whether two descriptors are of one open file description. None if the kernel does not say; a
/// number that is closed is of none.
pub(super) fn have_one_description(one: RawFd, other: RawFd) -> Option<bool> {
    // SAFETY: questions about this process. The thread's number stands for its descriptors, which
    // may be others than its process'.
    let compared = check(unsafe {
        let own = syscall(nr::__NR_gettid as usize, [0; 6]) as usize;
        syscall(nr::__NR_kcmp as usize, [own, own, KCMP_FILE, one as usize, other as usize, 0])
    });
    match compared {
        Ok(order) => Some(order == 0),
        Err(OsError::BADF) => Some(false),
        Err(_) => None,
    }
}

/// Opens something in a mount by its path, or, if that leads to something else by now, by the
/// anchor itself.
fn look(wanted: &Wanted, root: &OwnedFd, rest: &[u8]) -> Option<OwnedFd> {
    let mut buffer = [0; PATH_MAX];
    let by_path = joined(&mut buffer, &[b".", rest]).and_then(|path| look_at(wanted, root, path));
    if by_path.is_some() || !matches!(wanted.what, What::File | What::Named) {
        return by_path;
    }
    let mut digits = [0; 10];
    let number = decimal(&mut digits, u32::try_from(wanted.anchor).ok()?);
    look_at(wanted, root, joined(&mut buffer, &[NAME, number])?)
}

fn look_at(wanted: &Wanted, root: &OwnedFd, path: &CStr) -> Option<OwnedFd> {
    match wanted.what {
        What::File | What::Directory => open_file(wanted, root, path),
        What::Named => open_in(root, path, O_PATH).filter(|fd| is_same(fd, wanted, root)),
        // Which file has the path when it is executed the kernel decides, as ever.
        What::Program => open_in(root, path, O_PATH).filter(|fd| is_of(fd, FileType::RegularFile)),
        What::Current => {
            let fd = open_in(root, path, O_PATH | O_DIRECTORY).filter(|fd| is_same(fd, wanted, root))?;
            sys::rustix::process::fchdir(&fd).ok()?;
            Some(fd)
        }
    }
}

/// Opens a file or directory as its anchor is open, and has it take the anchor's place.
fn open_file(wanted: &Wanted, root: &OwnedFd, path: &CStr) -> Option<OwnedFd> {
    let kind = if wanted.what == What::Directory { O_DIRECTORY } else { 0 };
    let expected = if kind == 0 { FileType::RegularFile } else { FileType::Directory };
    let named = open_in(root, path, O_PATH | kind).filter(|fd| is_of(fd, expected))?;
    // By its link: the flags are then those of the anchor, without O_NOFOLLOW.
    let (mut digits, mut buffer) = ([0; 10], [0; LINK_BYTES_MAX]);
    let link = joined(&mut buffer, &[b"/proc/self/fd/", decimal(&mut digits, named.as_raw_fd() as u32)])?;
    let flags = OFlags::from_bits_retain((wanted.flags as u32 | kind | O_CLOEXEC | O_NOCTTY) & !O_NOFOLLOW);
    let fd = openat(CWD, link, flags, Mode::empty()).ok()?;
    let anchor = borrow(wanted.anchor);
    let position = if kind == 0 { seek(anchor, SeekFrom::Current(0)).ok()? } else { 0 };
    if kind == 0 {
        seek(&fd, SeekFrom::Start(position)).ok()?;
    }
    let given = Given { descriptor: wanted.shown as u32, position }.encode();
    control(&fd, GIVE, given.as_ptr() as usize).ok()?;
    Some(fd)
}

fn is_of(fd: &OwnedFd, kind: FileType) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
}

/// Whether a descriptor of the mount stands for the same as the one that this process has.
fn is_same(fd: &OwnedFd, wanted: &Wanted, root: &OwnedFd) -> bool {
    let mut word: [u8; INODE_BYTES] = u64::from(wanted.shown as u32).to_le_bytes();
    control(root, INODE, word.as_mut_ptr() as usize).is_ok()
        && fstat(fd).is_ok_and(|stat| stat.st_ino == u64::from_le_bytes(word))
}

/// Opens the root of a mount. None if something else is mounted on it.
fn open_root(path: &CStr, mount: &Mount) -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty()).ok()?;
    fstat(&root).is_ok_and(|stat| stat.st_dev == mount.device).then_some(root)
}

/// Opens something in a mount, and in nothing that is mounted below it.
fn open_in(root: &OwnedFd, path: &CStr, flags: u32) -> Option<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags | O_CLOEXEC | O_NOFOLLOW);
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags, Mode::empty(), within).ok()
}

fn control(fd: &OwnedFd, request: u32, argument: usize) -> Result<usize, OsError> {
    // SAFETY: the argument is a buffer of the length that is part of the request.
    check(unsafe { syscall(nr::__NR_ioctl as usize, [fd.as_raw_fd() as usize, request as usize, argument, 0, 0, 0]) })
}

/// Puts the parts of a path one behind the other. None if they do not fit.
fn joined<'a>(buffer: &'a mut [u8], parts: &[&[u8]]) -> Option<&'a CStr> {
    let mut length = 0;
    for part in parts {
        buffer.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    *buffer.get_mut(length)? = 0;
    CStr::from_bytes_until_nul(buffer).ok()
}

fn decimal(digits: &mut [u8; 10], mut number: u32) -> &[u8] {
    let mut start = digits.len();
    for (index, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        start = index;
        if number == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_put_together() {
        let mut buffer = [0xff; PATH_MAX];
        assert_eq!(joined(&mut buffer, &[b"/mnt", b"/a"]).unwrap(), c"/mnt/a");
        assert!(joined(&mut buffer, &[&[b'x'; PATH_MAX]]).is_none());
        let text = |number| std::string::String::from_utf8(decimal(&mut [0; 10], number).to_vec()).unwrap();
        assert_eq!([text(0), text(9), text(10), text(u32::MAX)], ["0", "9", "10", "4294967295"]);
    }
}
