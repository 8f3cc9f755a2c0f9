//! Programs that the library cannot reach are handed over by the program that executes them:
//! descriptors of the mount take the places of its anchors.
//!
//! Whoever asks names an anchor by its number in its own process. This process fetches the anchor's
//! open file description (pidfd_getfd(2)), which tells the file whatever has become of its name.
//! For as long as the descriptor of the mount is open the description stays here, too. By that two
//! things outlive the handing over:
//!
//! - **The offset.** Parent and child of a program share an offset, and one of them may be on the
//!   other door by now. A read or write that continues where the last one on the mount's descriptor
//!   ended is made at the anchor's offset, and moves that. The kernel does not tell this process of
//!   lseek(2), and pread(2) and pwrite(2) look like read(2) and write(2). So the first request that
//!   continues nothing ends this: from there on each is made where it says. In a file that is open
//!   for reading and writing the offset that is shared only follows: no request is made anywhere
//!   but where it says.
//! - **Locks of the description** (flock(2)). What the program asks for is asked of the anchor's
//!   description.

use crate::{
    caller,
    handles::Handle,
    session::{Answer, Done, Session},
    wire::{self, Header, IoctlIn, IoctlOut},
};
use file::FileRef;
use namespace::handover::{GIVE, GIVEN_BYTES, Given, IDENTIFY, INODE, Identity, NAME};
use namespace::{Node as Kind, OFlags};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use sys::rustix::fs::{AtFlags, FileType, SeekFrom, StatxFlags, fcntl_getfl, fstat, seek, statx};
use sys::rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sys::{AsFd as _, AsRawFd as _, BorrowedFd, OsError, OwnedFd, Result};

/// The anchor that a descriptor of the mount has taken the place of.
pub(crate) struct Predecessor {
    anchor: OwnedFd,
    /// True if the anchor is open for reading and writing. In such files programs often choose
    /// places of their own.
    is_for_both: bool,
    next: Mutex<Next>,
}

/// Which request goes on at the offset that is shared with other programs.
#[derive(Clone, Copy)]
enum Next {
    /// The first one, if it is made at this offset, or at where the shared one is by then: until
    /// the exec a thread may have moved that, and the program's own offset with it.
    First(u64),
    /// The one that continues the last one, which has ended here.
    At(u64),
    /// None any more.
    Never,
}

impl Predecessor {
    pub(crate) fn anchor(&self) -> BorrowedFd<'_> {
        self.anchor.as_fd()
    }

    fn next(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn position(&self) -> Result<u64> {
        seek(&self.anchor, SeekFrom::Current(0))
    }

    fn move_to(&self, position: u64) {
        // The kernel refuses no offset that a read or write has reached.
        let _ = seek(&self.anchor, SeekFrom::Start(position));
    }
}

impl Handle {
    /// Where a read or write is made that the kernel wants at `offset`, and by how much the offset
    /// that is shared with other programs was moved for it. That is `bytes` of the place, and is
    /// done before the bytes are moved, so that programs which read or write at a time get
    /// different places. [`Self::has_moved`] mends what was too much.
    pub(crate) fn place(&self, file: &FileRef, offset: u64, bytes: impl FnOnce(u64) -> u64) -> (u64, u64) {
        let Some(predecessor) = self.predecessor() else { return (offset, 0) };
        let mut next = predecessor.next();
        let reserve = || {
            let position = predecessor.position().ok()?;
            // Somebody has moved the shared offset. Where the program may have meant this very
            // place it is given that.
            if position != offset && predecessor.is_for_both {
                return None;
            }
            let bytes = bytes(position);
            let end = position.checked_add(bytes).filter(|&end| end <= i64::MAX as u64)?;
            predecessor.move_to(end);
            Some((position, bytes))
        };
        let continues = match *next {
            Next::First(expected) => expected == offset || predecessor.position() == Ok(offset),
            Next::At(expected) => expected == offset,
            Next::Never => false,
        };
        let placed = if continues { file.with_shared_position(reserve) } else { None };
        *next = placed.map_or(Next::Never, |(_, bytes)| Next::At(offset.saturating_add(bytes)));
        placed.unwrap_or((offset, 0))
    }

    /// For a read or write at `offset` that [`Self::place`] has put at `position` the shared offset
    /// was moved by `bytes`, and `done` were read or written.
    pub(crate) fn has_moved(&self, file: &FileRef, (offset, position): (u64, u64), bytes: u64, done: u64) {
        let Some(predecessor) = self.predecessor().filter(|_| done != bytes) else { return };
        let mut next = predecessor.next();
        if matches!(*next, Next::At(expected) if expected == offset + bytes) {
            *next = Next::At(offset + done);
            file.with_shared_position(|| {
                if predecessor.position() == Ok(position + bytes) {
                    predecessor.move_to(position + done);
                }
            });
        }
    }

    /// An append that the kernel wanted at `offset` has ended at `end`.
    pub(crate) fn has_appended(&self, file: &FileRef, offset: u64, done: u64, end: u64) {
        let Some(predecessor) = self.predecessor() else { return };
        file.with_shared_position(|| predecessor.move_to(end));
        *predecessor.next() = Next::At(offset + done);
    }
}

impl Session {
    pub(crate) fn control(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<IoctlIn>(body)?;
        match asked.command {
            IDENTIFY => {
                let identity = Identity { uuid: self.names.files().array().uuid().0, prefix: &self.prefix };
                let identity = identity.encode().ok_or(OsError::NAMETOOLONG)?;
                answer.put(&IoctlOut::default())?;
                answer.put_bytes(&identity)
            }
            GIVE => {
                let given = rest.get(..GIVEN_BYTES).and_then(Given::decode).ok_or(OsError::INVAL)?;
                caller::as_root(|| self.give(header, asked.handle, given))?;
                answer.put(&IoctlOut::default())
            }
            INODE => {
                let number = rest.first_chunk().copied().map(u64::from_le_bytes).and_then(|number| u32::try_from(number).ok());
                let inode = caller::as_root(|| {
                    let fd = self.fetched(header.process, number.ok_or(OsError::BADF)?)?;
                    self.names.logical_path_of(fd.as_fd())?.ok_or(OsError::INVAL)?;
                    self.names.fstat(fd.as_fd(), &Kind::Path(None)).map(|stat| stat.st_ino)
                })?;
                answer.put(&IoctlOut::default())?;
                answer.put_bytes(&inode.to_le_bytes())
            }
            _ => Err(OsError::NOTTY),
        }
    }

    /// The descriptor of the mount that has a handle takes the place of an anchor.
    fn give(&self, header: &Header, handle: u64, given: Given) -> Result<()> {
        let handle = self.handles.get(handle)?;
        let anchor = self.fetched(header.process, given.descriptor)?;
        match &handle.node {
            Kind::File(file) if self.names.attribute_open(anchor.as_fd())? == Some(file.attribute()) => {
                let flags = fcntl_getfl(&anchor)?;
                if flags.contains(OFlags::PATH) {
                    return Err(OsError::INVAL);
                }
                let is_for_both = flags & OFlags::RWMODE == OFlags::RDWR;
                handle.follow(Predecessor { anchor, is_for_both, next: Mutex::new(Next::First(given.position)) })
            }
            Kind::Directory(_) => {
                let identity = |fd| self.names.fstat(fd, &Kind::Directory(None)).map(|stat| (stat.st_dev, stat.st_ino));
                let is_same = self.names.logical_path_of(anchor.as_fd())?.is_some()
                    && identity(anchor.as_fd())? == identity(handle.anchor.as_fd())?;
                if is_same { Ok(()) } else { Err(OsError::STALE) }
            }
            _ => Err(OsError::STALE),
        }
    }

    /// The file behind a descriptor of the calling process, if `name` is one that asks for that
    /// ([`NAME`]).
    pub(crate) fn named_by_descriptor(&self, header: &Header, name: &[u8]) -> Option<Result<OwnedFd>> {
        let number = std::str::from_utf8(name.strip_prefix(NAME)?).ok()?.parse().ok()?;
        Some(caller::as_root(|| {
            let anchor = self.fetched(header.process, number)?;
            // A directory has its one name.
            let is_file = FileType::from_raw_mode(fstat(&anchor)?.st_mode) == FileType::RegularFile;
            if !is_file || self.names.attribute_open(anchor.as_fd())?.is_none() {
                return Err(OsError::NOENT);
            }
            crate::names::opened_again(anchor.as_fd(), OFlags::PATH | OFlags::CLOEXEC)
        }))
    }

    /// The open file description behind a number of a process, if it lies on the file system of a
    /// member. Nothing is asked of the file: the number is the caller's choice, and a file of this
    /// mount, or of another one that does not answer, would take a worker for good.
    fn fetched(&self, process: u32, number: u32) -> Result<OwnedFd> {
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(OsError::NOENT)?;
        let number = i32::try_from(number).map_err(|_| OsError::BADF)?;
        if UNWANTED_COUNT.load(Ordering::Relaxed) >= UNWANTED_COUNT_MAX {
            return Err(OsError::BUSY);
        }
        let fd = pidfd_getfd(pidfd_open(process, PidfdFlags::empty())?, number, PidfdGetfdFlags::empty())?;
        if self.is_where_a_member_is(fd.as_fd(), mount_of) || self.is_alone && self.is_where_a_member_is(fd.as_fd(), device_of) {
            return Ok(fd);
        }
        close_apart(fd);
        Err(OsError::NOENT)
    }

    /// Tells whether a descriptor is, by what `place` tells of it, where a member is.
    fn is_where_a_member_is<P: PartialEq>(&self, fd: BorrowedFd<'_>, place: fn(BorrowedFd<'_>) -> Option<P>) -> bool {
        let Some(found) = place(fd) else { return false };
        let mut roots = self.names.files().array().members().iter().filter_map(|member| place(member.root()?.as_fd()));
        roots.any(|root| root == found)
    }
}

/// Descriptors that are to be closed by a thread of its own, at most.
const UNWANTED_COUNT_MAX: usize = 32;
static UNWANTED_COUNT: AtomicUsize = AtomicUsize::new(0);
static UNWANTED: LazyLock<Sender<OwnedFd>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<OwnedFd>();
    thread::spawn(move || {
        for fd in receiver {
            drop(fd);
            UNWANTED_COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    });
    sender
});

/// Closes a descriptor of a file that is not the array's. Its file system is told, and may never
/// answer: that takes no worker.
fn close_apart(fd: OwnedFd) {
    UNWANTED_COUNT.fetch_add(1, Ordering::Relaxed);
    // The thread takes descriptors for as long as the process lives.
    let _ = UNWANTED.send(fd);
}

/// The kernel's number for the mount that a descriptor was opened in (proc_pid_fdinfo(5)), which no
/// file system is asked for.
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// The device number of a descriptor's file, for programs with a mount of their own: they are in
/// another namespace than this process, where each mount has another number. No file system is asked
/// for anything (0), be it FUSE or NFS (AT_STATX_DONT_SYNC).
fn device_of(fd: BorrowedFd<'_>) -> Option<[u32; 2]> {
    let found = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some([found.stx_dev_major, found.stx_dev_minor])
}
