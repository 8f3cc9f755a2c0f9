//! What a program without the library is given if the array is mounted: descriptors of the mount in
//! the places of the anchors that it inherits, a directory of the mount in the place of a current
//! directory of the array, and the mount's file to execute.
//!
//! Which mounts there are the kernel's list tells (/proc/self/mountinfo), which is read only when
//! such a program is executed and would be given something. A mount is believed if root or this
//! user made it, and if the process that serves it says the array's UUID.
//!
//! Every call on a mount waits for the process that serves it, and a process that waits so cannot
//! even be killed. So none is made here: a child process makes them all ([`errand`]) and sends what
//! it has opened. If it does not within [`LIMIT_NS`], it is left behind, and the array counts as
//! not mounted.
//!
//! The exec of a process with several threads closes no descriptor of the mount, but for those of
//! guests. Such a close waits for the process that serves the mount, and the kernel lets nobody
//! read /proc/PID/stat meanwhile. There all threads of that process may want to read whether the
//! threads live whose locks they wait for.
//!
//! The process' other threads go on while the child is at work ([`ask`]). What was had takes its
//! place in the moments before the exec, in which they stand still ([`Asked::take`],
//! [`crate::exec::window`]).

mod errand;

use crate::calls::node::{Held, Node};
use crate::calls::{OPEN, directory, rights};
use crate::descriptors::Claim;
use crate::descriptors::descriptor_flags;
use crate::exec::window;
use crate::{array, own, process};
use ::array::proc_file;
use core::ffi::CStr;
use errand::{Errand, Reply};
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_dup3, __NR_unshare, CLONE_FS, F_DUPFD_CLOEXEC, F_GETFL, O_ACCMODE, O_PATH, O_RDWR};
use namespace::FileType;
use sys::raw::{check, syscall};
use sys::rustix::fs::{SeekFrom, fstat, makedev, seek};
use sys::rustix::process::geteuid;
use sys::{AsRawFd, RawFd};

/// At most so many descriptors are handed over at a time; the kernel sends at most 253 in one
/// message.
const WANTED_COUNT_MAX: usize = 200;
/// At most so many mounts are asked, the youngest first.
const MOUNT_COUNT_MAX: usize = 8;
/// A mount that needs longer than this counts as none.
const LIMIT_NS: u64 = 3_000_000_000;
/// The type of file system that the kernel's list gives a mount of an array.
const KIND: &[u8] = b"fuse.cxlraid";

/// A mount of an array.
#[derive(PartialEq, Eq, Debug)]
struct Mount {
    /// The directory, with a NUL.
    path: Vec<u8>,
    /// Its number (st_dev).
    device: u64,
    /// True if other users may use the mount than the one who made it.
    is_for_others: bool,
}

/// The kinds of things that a mount is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// A file that is open for reading or writing.
    File,
    /// A directory that is open.
    Directory,
    /// Something that a descriptor only names (O_PATH).
    Named,
    /// The current directory.
    Current,
    /// The file to be executed.
    Program,
}

/// One of the things that are to be had from a mount.
struct Wanted {
    what: What,
    /// The anchor, or a descriptor of the current directory; -1 for the program.
    anchor: RawFd,
    /// By which descriptor the mount learns what it stands for. It is another one than the anchor
    /// for a directory whose member is lost.
    shown: RawFd,
    /// The logical path.
    path: Vec<u8>,
    /// The status flags and access mode of the anchor.
    flags: usize,
}

/// A number of an anchor that means a file of a mount now.
#[derive(Clone, Copy)]
struct Replaced {
    number: RawFd,
    /// Another number for the anchor.
    anchor: RawFd,
    /// Another number for the file of the mount, if somebody may change what the first one means.
    given: Option<RawFd>,
}

/// Holds what the mounts were asked for, and their answer.
pub(crate) struct Asked {
    mounts: Vec<Mount>,
    wanted: Vec<Wanted>,
    /// What the table of open files says of the anchors. It says nothing of a guest's.
    described: Vec<(RawFd, Held)>,
    /// A descriptor of the directory of the array in which the process was, and which no other
    /// process shares any more.
    before: Option<RawFd>,
    reply: Option<Reply>,
}

/// Holds what was handed over, to be taken back if the exec fails.
#[derive(Default)]
pub(crate) struct HandedOver {
    replaced: Vec<Replaced>,
    /// Descriptors of the mount at numbers of no meaning.
    surplus: Vec<RawFd>,
    /// A descriptor of the directory of the array in which the process was.
    directory: Option<RawFd>,
    /// The path by which the program is executed, with a NUL.
    pub(crate) program: Option<Vec<u8>>,
}

impl HandedOver {
    pub(crate) fn is_empty(&self) -> bool {
        self.replaced.is_empty() && self.surplus.is_empty() && self.directory.is_none() && self.program.is_none()
    }

    /// Makes the number of an anchor mean what `place` does, until the exec fails. Returns whether that
    /// was done: not if the process' locks on the file would go, also where the exec fails.
    pub(crate) fn withdraw(&mut self, number: RawFd, place: RawFd) -> bool {
        if has_locks(number) {
            return false;
        }
        let anchor = descriptor_flags(number, F_DUPFD_CLOEXEC, sys::high_fd::base() as usize);
        if anchor < 0 {
            return false;
        }
        let anchor = anchor as RawFd;
        if !replace(place, number) {
            crate::calls::descriptor::close_unheld(anchor);
            return false;
        }
        self.replaced.push(Replaced { number, anchor, given: None });
        true
    }

    /// Takes back what was handed over: the exec has failed. The caller still holds the claims.
    /// What a guest's handler of a signal has read or written by a number meanwhile, the mount has
    /// moved the anchor's offset for.
    pub(crate) fn take_back(&mut self) {
        for replaced in &self.replaced {
            // A task that shares the table with a guest may have closed the number, or given it to
            // something else.
            if replaced.given.is_none_or(|given| errand::have_one_description(replaced.number, given) != Some(false)) {
                replace(replaced.anchor, replaced.number);
            }
        }
        let anchors = self.replaced.iter().map(|replaced| replaced.anchor);
        anchors.chain(self.surplus.iter().copied()).for_each(crate::calls::descriptor::close_unheld);
        if let Some(directory) = self.directory {
            directory::return_to(directory);
        }
    }
}

/// Asks the mounts, if there are any, for what takes the place of anchors, of the current directory
/// if `is_inside`, and of the program, whose logical path is `program` if it is stored on the
/// array. If the mount has the current directory, the process is there afterwards.
pub(crate) fn ask(anchors: &[RawFd], is_inside: bool, program: Option<&[u8]>, changes_user: bool) -> Option<Asked> {
    // A filter might end the process at a call that it would not make otherwise.
    if rights::are_calls_restricted() {
        return None;
    }
    let mounts = mounts(changes_user);
    if mounts.is_empty() {
        return None;
    }
    let uuid = array::namespace().ok()?.files().array().uuid().0;
    let numbers: &[RawFd] = if shares_table() { &[] } else { anchors };
    let (mut wanted, mut described) = (Vec::new(), Vec::new());
    for &number in numbers {
        let held = OPEN.lookup(number);
        if wanted.len() < WANTED_COUNT_MAX - 2
            && let Some(found) = wanted_of(number, held.as_ref())
        {
            wanted.push(found);
            described.extend(held.map(|held| (number, held)));
        }
    }
    wanted.extend(program.map(|path| Wanted { what: What::Program, anchor: -1, shown: -1, path: path.to_vec(), flags: 0 }));
    let base = directory::Base::of(directory::AT_FDCWD);
    // From here on a task that shared the directory with this one does not move with it.
    let before = if is_inside { directory::set_aside(false).ok() } else { None };
    if before.is_some() {
        // Whatever becomes of the exec, the directory of the other threads says nothing of this
        // thread's from now on.
        directory::note_apart();
    }
    wanted.extend(before.and_then(|before| {
        // The twin, once that stands for it.
        let present = base.present().as_raw_fd();
        let shown = if present < 0 { before } else { present };
        Some(Wanted { what: What::Current, anchor: before, shown, path: base.path()?, flags: 0 })
    }));
    let errand = Errand { mounts: &mounts, wanted: &wanted, uuid };
    let reply = if wanted.is_empty() { None } else { errand::run(&errand, errand::now_ns().wrapping_add(LIMIT_NS)) };
    if before.is_some() {
        // The child may be there still, and may yet change the directory that it shares. SAFETY:
        // unshare(2) with this flag changes only what the directory, root and umask of this task
        // are shared with.
        unsafe { syscall(__NR_unshare as usize, [CLONE_FS as usize, 0, 0, 0, 0, 0]) };
    }
    Some(Asked { mounts, wanted, described, before, reply })
}

/// Tells whether the table of descriptors is another process', too: what a number means there, that
/// one keeps when this process has executed its program.
pub(crate) fn shares_table() -> bool {
    process::shares_tables() || process::owns_tables() && !process::has_memory()
}

impl Asked {
    /// Gives the next program what was had: takes out of `anchors` what it has now, and makes
    /// `is_inside` false if it starts in the mount. `claims` are those that [`claims`] has made.
    pub(crate) fn take(self, claims: &[Claim<Node>], anchors: &mut Vec<RawFd>, is_inside: &mut bool) -> HandedOver {
        let mut done = HandedOver::default();
        let mut is_moved = false;
        if let Some(reply) = self.reply {
            let is_claimed = |number: RawFd| claims.iter().any(|claim| claim.descriptor() == number);
            for (index, wanted) in self.wanted.iter().enumerate() {
                match wanted.what {
                    What::Current => is_moved = reply.is_granted(index),
                    What::Program => {
                        done.program = path_in(&self.mounts, &reply, &wanted.path).filter(|_| reply.is_granted(index));
                    }
                    _ => {
                        let known = self.described.iter().find(|(number, _)| *number == wanted.anchor);
                        let means = |claim: &Claim<Node>, held: &Held| claim.descriptor() == wanted.anchor && claim.means(held);
                        // Another thread may have closed the number meanwhile, or marked it
                        // close-on-exec.
                        let is_left = anchors.contains(&wanted.anchor)
                            && known.is_none_or(|(_, held)| claims.iter().any(|claim| means(claim, held)));
                        if let Some(given) = reply.descriptor(index).filter(|_| is_left) {
                            done.replaced.extend(exchange(wanted, given));
                        }
                    }
                }
            }
            anchors.retain(|anchor| !done.replaced.iter().any(|replaced| replaced.number == *anchor));
            for replaced in &mut done.replaced {
                replaced.given = replaced.given.filter(|_| !is_claimed(replaced.number));
            }
            // What the exec would close of the mount is closed before it: see the head of this
            // file.
            let (kept, closed): (Vec<_>, Vec<_>) = reply
                .into_descriptors()
                .into_iter()
                .partition(|&given| done.replaced.iter().any(|replaced| replaced.given == Some(given)));
            closed.into_iter().for_each(crate::calls::descriptor::close_unheld);
            done.surplus = kept;
        }
        if let Some(before) = self.before {
            *is_inside = !is_moved;
            if is_moved {
                done.directory = Some(before);
            } else {
                // The child may have moved it, and not have said so.
                let _ = sys::rustix::process::fchdir(directory::borrow(before));
                crate::calls::descriptor::close_unheld(before);
            }
        }
        done
    }
}

/// Claims every number of `anchors`, whatever file of the array it means by now, and every number
/// that means a file that may be handed over, whose kernel's offset then nobody moves. Until the
/// exec no other thread uses or changes one of them. Of a guest's numbers there are no claims. The
/// uses are to be dropped after the claims: the last use of a file ends the file, and who does that
/// holds no claim.
///
/// Other descriptions of a file that is handed over are claimed for the sake of the process' own
/// locks (F_SETLK), which end when one of its descriptors of the file is closed.
pub(crate) fn claims(asked: Option<&Asked>, anchors: &[RawFd]) -> (Vec<Claim<Node>>, Vec<Held>) {
    let described = asked.filter(|asked| asked.reply.is_some()).map_or(&[][..], |asked| &asked.described);
    if described.is_empty() && anchors.is_empty() || !window::is_open() {
        return (Vec::new(), Vec::new());
    }
    let is_same = |one: &Held, other: &Held| match (one.node(), other.node()) {
        (Node::File(one), Node::File(other)) => one.attribute() == other.attribute(),
        _ => core::ptr::eq(&**one, &**other),
    };
    let is_wanted = |held: &Held| described.iter().any(|(_, wanted)| is_same(wanted, held));
    // In ascending order, so that two threads never wait for each other.
    let numbers: Vec<(RawFd, Held, bool)> = OPEN
        .all()
        .map(|(number, held)| (is_wanted(&held), number, held))
        .filter(|(is_handed_over, number, _)| *is_handed_over || anchors.contains(number))
        .map(|(is_handed_over, number, held)| (number, held, is_handed_over))
        .collect();
    let claim = |(number, held, is_handed_over): &(RawFd, Held, bool)| {
        let wanted = if anchors.contains(number) { None } else { Some(&**held) };
        Some((OPEN.claim_for_exec(*number, wanted)?, *is_handed_over))
    };
    let claims: Vec<_> = numbers.iter().filter_map(claim).collect();
    claims.iter().filter(|(_, is_handed_over)| *is_handed_over).for_each(|(claim, _)| claim.end_moves());
    (claims.into_iter().map(|(claim, _)| claim).collect(), numbers.into_iter().map(|(_, held, _)| held).collect())
}

/// What takes the place of an anchor. None for what the mount has no equal of (pipes, sockets,
/// devices), or if nothing is known of it. `held` is what the table of open files says of it.
fn wanted_of(anchor: RawFd, held: Option<&Held>) -> Option<Wanted> {
    let fd = directory::borrow(anchor);
    let flags = descriptor_flags(anchor, F_GETFL, 0);
    let what = match FileType::from_raw_mode(fstat(fd).ok()?.st_mode) {
        _ if flags as u32 & O_PATH != 0 => What::Named,
        FileType::RegularFile => What::File,
        FileType::Directory => What::Directory,
        _ => return None,
    };
    if has_locks(anchor) {
        return None;
    }
    let present = held.map_or(fd, |held| directory::present(anchor, held.node()));
    let path = array::namespace().ok()?.logical_path_of(present).ok()??;
    Some(Wanted { what, anchor, shown: present.as_raw_fd(), path, flags: flags as usize })
}

/// Tells whether the process has locks on a file that are not handed over: the process' own locks
/// end when the number means something else, and locks of F_OFD_SETLK cannot be used by way of the
/// mount.
fn has_locks(anchor: RawFd) -> bool {
    let about = proc_file::read(&heap::format!("/proc/thread-self/fdinfo/{anchor}"));
    let has = |kind: &[u8]| about.windows(kind.len()).any(|word| word == kind);
    has(b"POSIX") || has(b"OFDLCK")
}

/// The path of something of the array in the mount that it was found in, with a NUL.
fn path_in(mounts: &[Mount], reply: &Reply, path: &[u8]) -> Option<Vec<u8>> {
    let (mount, prefix_bytes) = reply.program();
    let mount = CStr::from_bytes_until_nul(&mounts.get(mount)?.path).ok()?;
    Some([mount.to_bytes(), path.get(prefix_bytes..)?, b"\0"].concat())
}

/// Makes the number of an anchor mean what `given` does. Other threads wait who use the number.
fn exchange(wanted: &Wanted, given: RawFd) -> Option<Replaced> {
    let anchor = wanted.anchor;
    // Another thread may have taken one since.
    if has_locks(anchor) {
        return None;
    }
    let kept = descriptor_flags(anchor, F_DUPFD_CLOEXEC, sys::high_fd::base() as usize);
    if kept < 0 {
        return None;
    }
    let kept = kept as RawFd;
    // Another thread may have moved the offset since the child has looked. In a file that is open
    // for one of reading and writing alone the mount goes on where the shared offset is by then, if
    // the program begins where the child has looked; another one is read and written where the
    // program says. SEEK_SET makes no request of the mount.
    if wanted.what == What::File
        && wanted.flags as u32 & O_ACCMODE == O_RDWR
        && let Ok(position) = seek(directory::borrow(anchor), SeekFrom::Current(0))
    {
        let _ = seek(directory::borrow(given), SeekFrom::Start(position));
    }
    if !replace(given, anchor) {
        crate::calls::descriptor::close_unheld(kept);
        return None;
    }
    Some(Replaced { number: anchor, anchor: kept, given: Some(given) })
}

/// Makes the number `to` mean what `from` does, also over an exec.
pub(crate) fn replace(from: RawFd, to: RawFd) -> bool {
    // SAFETY: gives a number of this process, which means an anchor or what takes its place,
    // another meaning.
    check(unsafe { syscall(__NR_dup3 as usize, [from as usize, to as usize, 0, 0, 0, 0]) }).is_ok()
}

/// Where arrays are mounted that may be this process' one: the youngest mount first. `for_others`:
/// those that other users may use, too.
fn mounts(for_others: bool) -> Vec<Mount> {
    let list = proc_file::read("/proc/self/mountinfo");
    let name = own::environment().get(b"CXLRAID_NAME").unwrap_or_default();
    let user = geteuid().as_raw();
    let believed = |line| mount_of(line, name, user).filter(|mount| mount.is_for_others || !for_others);
    let mut found: Vec<Mount> = list.split(|&byte| byte == b'\n').filter_map(believed).collect();
    found.reverse();
    found.truncate(MOUNT_COUNT_MAX);
    found
}

/// The directory that a line of the list tells of (proc_pid_mountinfo(5)), if an array is mounted
/// there by root or by `user`, and has the name, if that is not empty.
fn mount_of(line: &[u8], name: &[u8], user: u32) -> Option<Mount> {
    let mut words = line.split(|&byte| byte == b' ');
    let (device, root) = (words.nth(2)?, words.next()?);
    let mut path = proc_file::unescaped(words.next()?);
    // Of a directory that is bound somewhere else this is another one.
    if root != b"/" {
        return None;
    }
    let mut numbers = core::str::from_utf8(device).ok()?.split(':').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    let mut behind = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source, options) = (behind.next()?, behind.next()?, behind.next()?);
    if kind != KIND || !name.is_empty() && proc_file::unescaped(source) != name {
        return None;
    }
    let mut owners = options.split(|&byte| byte == b',').filter_map(|option| option.strip_prefix(b"user_id="));
    let owner: u32 = core::str::from_utf8(owners.next()?).ok()?.parse().ok()?;
    let is_for_others = options.split(|&byte| byte == b',').any(|option| option == b"allow_other");
    path.push(0);
    (owner == 0 || owner == user).then_some(Mount { path, device: makedev(major, minor), is_for_others })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_believed_by_kind_name_and_owner() {
        let line = |owner: &str| {
            std::format!(r"36 35 0:40 / /mnt/a\040b rw shared:1 - fuse.cxlraid d\040b rw,user_id={owner},group_id=0").into_bytes()
        };
        let expected = |is_for_others| Some(Mount { path: b"/mnt/a b\0".to_vec(), device: makedev(0, 40), is_for_others });
        assert_eq!(mount_of(&line("0"), b"d b", 5), expected(false));
        assert_eq!(mount_of(&line("5,allow_other"), b"", 5), expected(true));
        let bound = b"36 35 0:40 /sub /mnt/a rw shared:1 - fuse.cxlraid db rw,user_id=0,group_id=0";
        assert_eq!(mount_of(bound, b"db", 0), None);
        assert_eq!(mount_of(&line("6"), b"d b", 5), None);
        assert_eq!(mount_of(&line("0"), b"other", 5), None);
        assert_eq!(mount_of(b"36 35 0:40 / /a rw - fuse.sshfs d rw,user_id=0", b"", 0), None);
        assert_eq!(mount_of(b"", b"", 0), None);
    }
}
