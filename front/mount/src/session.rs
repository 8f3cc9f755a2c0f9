//! The conversation with the kernel: worker threads read requests from /dev/fuse, have them
//! answered and write the answers.
//!
//! A thread that is at work may wait for long, for a stripe lock of a stopped program say. So
//! whenever the last thread that waits for requests takes one, another thread is started, up to
//! [`WORKER_COUNT_MAX`].

use crate::{
    caller,
    counts::Counting,
    handles::Handles,
    locks::Locks,
    nodes::Nodes,
    wire::{self, DATA_BYTES_MAX, HEAD_BYTES_MAX, Header, InitIn, InitMore, InitOut, OutHeader, init, op},
};
use namespace::{FOREIGN_MOUNT, Namespace};
use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread::{self, Scope},
};
use sys::rustix::io::{IoSlice, read, writev};
use sys::{AsFd as _, OsError, OwnedFd, Result};
use units::{MEMBER_COUNT_MAX, MemberSet};
use zerocopy::{FromBytes as _, Immutable, IntoBytes};

/// More requests are not served at a time. So many programs have to write to what one stopped program
/// has locked before nobody is served any more.
const WORKER_COUNT_MAX: u32 = 256;
/// So many requests that nobody waits for may be under way.
const BACKGROUND_COUNT_MAX: u16 = 64;

/// What a mount asks of the kernel.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::FLOCK_LOCKS
    | init::AUTO_INVAL_DATA
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::HANDLE_KILLPRIV_V2
    | init::MAX_PAGES
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// One directory of the array, mounted.
pub struct Session {
    device: OwnedFd,
    /// The logical path of what is mounted.
    pub(crate) prefix: Vec<u8>,
    pub(crate) names: Namespace,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    pub(crate) locks: Locks,
    idle: AtomicU32,
    workers: AtomicU32,
    is_over: AtomicBool,
    /// Only one program and what it starts use this, in a mount namespace of their own.
    pub(crate) is_alone: bool,
}

/// What becomes of a request.
pub(crate) enum Done {
    /// The answer holds what the kernel is to get.
    Answered,
    /// The kernel expects no answer, or gets it later.
    Silent,
}

/// The bytes of an answer behind its header.
pub(crate) struct Answer {
    buffer: Box<[u8]>,
    bytes: usize,
    /// What was asked for is done, and is not to be done again because a member fails.
    pub(crate) is_settled: bool,
    /// The kernel wants a file cut after an append that was refused, and no program does.
    pub(crate) is_cut_by_kernel: bool,
}

impl Answer {
    fn new() -> Self {
        Self { buffer: vec![0; DATA_BYTES_MAX].into_boxed_slice(), bytes: 0, is_settled: false, is_cut_by_kernel: false }
    }

    /// Appends a structure.
    pub(crate) fn put(&mut self, structure: &(impl IntoBytes + Immutable)) -> Result<Done> {
        self.put_bytes(structure.as_bytes())
    }

    /// Appends bytes.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> Result<Done> {
        let room = self.buffer.get_mut(self.bytes..self.bytes + bytes.len()).ok_or(OsError::OVERFLOW)?;
        room.copy_from_slice(bytes);
        self.bytes += bytes.len();
        Ok(Done::Answered)
    }

    /// Has at most so many bytes filled in; `fill` returns how many it has.
    pub(crate) fn fill(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Done> {
        let room = &mut self.buffer[self.bytes..];
        let length = bytes.min(room.len());
        self.bytes += fill(&mut room[..length])?.min(length);
        Ok(Done::Answered)
    }

    /// The room for what is not put yet.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.bytes..]
    }

    /// The first four bytes put, as a number.
    pub(crate) fn first_word(&self) -> Option<u32> {
        self.buffer[..self.bytes].first_chunk().copied().map(u32::from_le_bytes)
    }

    /// The bytes put so far.
    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }
}

impl Session {
    /// Serves the directory at the logical path `root` to the kernel's side of `device`, be that
    /// mounted already or not.
    ///
    /// # Errors
    /// Those of looking `root` up.
    pub fn new(names: Namespace, root: &[u8], device: OwnedFd) -> Result<Self> {
        Ok(Self {
            device,
            prefix: root.to_vec(),
            names,
            nodes: Nodes::new(names, root)?,
            handles: Handles::default(),
            locks: Locks::default(),
            idle: AtomicU32::new(0),
            workers: AtomicU32::new(1),
            is_over: AtomicBool::new(false),
            is_alone: false,
        })
    }

    /// Makes the session one for a single program and what it starts, which are in a mount namespace of
    /// their own ([`crate::apart`]).
    #[must_use]
    pub fn for_one_program(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// Answers requests until the directory is unmounted and nobody uses it any more.
    ///
    /// The thread that calls this gives up rights for good ([`crate::drop_rights`]).
    pub fn serve(&self) {
        // Without the right to do that it goes on with what it has.
        let _ = caller::drop_rights();
        // A request is answered with the rights of who makes it, which may not suffice to open the log.
        self.names.keep_log();
        thread::scope(|scope| {
            scope.spawn(|| self.wait_for_locks());
            self.work(scope);
            self.is_over.store(true, Ordering::Release);
            self.locks.end();
        });
    }

    pub(crate) fn array(&self) -> &array::Array {
        self.names.files().array()
    }

    /// The kernel's side.
    #[must_use]
    pub fn device(&self) -> sys::BorrowedFd<'_> {
        self.device.as_fd()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if caller::begin_thread().is_err() {
            // Nothing may be done with rights or a umask that are not the caller's.
            return;
        }
        let mut request = vec![0; DATA_BYTES_MAX + HEAD_BYTES_MAX];
        let (mut answer, mut counting) = (Answer::new(), Counting::default());
        loop {
            self.idle.fetch_add(1, Ordering::AcqRel);
            let received = read(&self.device, &mut request);
            let is_last = self.idle.fetch_sub(1, Ordering::AcqRel) == 1;
            let bytes = match received {
                // Nobody asks any more.
                Ok(0) => return,
                Ok(bytes) => bytes,
                // NOENT: the request was taken back before it could be read.
                Err(OsError::INTR | OsError::AGAIN | OsError::NOENT) => continue,
                Err(_) => return,
            };
            if is_last && self.workers.fetch_add(1, Ordering::AcqRel) < WORKER_COUNT_MAX {
                let work = move || {
                    self.work(scope);
                    self.workers.fetch_sub(1, Ordering::AcqRel);
                };
                // Without memory for another thread those that there are go on.
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    self.workers.fetch_sub(1, Ordering::AcqRel);
                }
            } else if is_last {
                self.workers.fetch_sub(1, Ordering::AcqRel);
            }
            let Ok((header, body)) = Header::read_from_prefix(&request[..bytes]) else { continue };
            let begun = counting.begin(self);
            match self.answer(&header, body, &mut answer) {
                Ok(Done::Answered) => {
                    // Before the reply, with which the program's call returns.
                    counting.end(self, &header, body, &answer, begun);
                    self.reply(header.unique, Ok(&answer.buffer[..answer.bytes]));
                }
                Ok(Done::Silent) => {}
                Err(error) => self.reply(header.unique, Err(error)),
            }
        }
    }

    /// Answers a request. What the kernel does not wait for any more nobody hears.
    pub(crate) fn reply(&self, unique: u64, answer: Result<&[u8]>) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            // No program knows the error of a path that leads across a foreign mount.
            Err(FOREIGN_MOUNT) => (-OsError::IO.raw_os_error(), &[][..]),
            Err(error) => (-error.raw_os_error(), &[][..]),
        };
        let head = OutHeader { bytes: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
        let _ = writev(&self.device, &[IoSlice::new(head.as_bytes()), IoSlice::new(body)]);
    }

    /// Has a request answered, and once more if a member has failed before what is asked for was
    /// done.
    fn answer(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        // A write that was made in part is not to be made again; the core goes on without members
        // that fail in it.
        answer.is_settled = header.operation == op::WRITE;
        answer.is_cut_by_kernel = self.handles.is_cut_by_kernel(header, body);
        for _ in 0..MEMBER_COUNT_MAX {
            answer.bytes = 0;
            let before = self.names.files().array().in_use();
            caller::become_root();
            self.nodes.follow_members();
            if needs(header.operation) == caller::Needs::Groups && caller::is_alien(header) {
                return Err(OsError::ACCESS);
            }
            caller::become_caller(header, needs(header.operation));
            match self.answer_once(header, body, answer) {
                Err(error) if !answer.is_settled && self.is_by_loss(error, before) => {}
                result => return result,
            }
        }
        Err(OsError::IO)
    }

    /// Runs `act`, which only asks, and once more if a member has failed in it.
    pub(crate) fn over_losses<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..MEMBER_COUNT_MAX {
            let before = self.names.files().array().in_use();
            match act() {
                Err(error) if self.is_by_loss(error, before) => caller::as_root(|| self.nodes.follow_members()),
                result => return result,
            }
        }
        Err(OsError::IO)
    }

    /// Whether an error comes from a member that was in use `before` and is not any more. A call on
    /// a descriptor does not say which member has failed, nor that one has.
    fn is_by_loss(&self, error: OsError, before: MemberSet) -> bool {
        if !Namespace::may_be_failure(error) {
            return false;
        }
        // What is gone for other reasons is stale, too.
        if error != OsError::STALE {
            caller::as_root(|| self.names.let_failing_go(error));
        }
        self.nodes.are_behind() || self.names.files().array().in_use() != before
    }

    fn answer_once(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        match header.operation {
            op::LOOKUP => self.lookup(header, body, answer),
            op::GETATTR => self.get_attributes(header, body, answer),
            op::STATX => self.tell_more(header, body, answer),
            op::SETATTR => self.set_attributes(header, body, answer),
            op::READLINK => self.read_link(header, answer),
            op::SYMLINK => self.make_symlink(header, body, answer),
            op::MKNOD => self.make_node(header, body, answer),
            op::MKDIR => self.make_directory(header, body, answer),
            op::UNLINK => self.unlink(header, body),
            op::RMDIR => self.remove_directory(header, body),
            op::RENAME | op::RENAME2 => self.rename(header, body),
            op::LINK => self.link(header, body, answer),
            op::OPEN => self.open(header, body, answer),
            op::CREATE | op::TMPFILE => self.create(header, body, answer),
            op::READ => self.read(body, answer),
            op::WRITE => self.write(header, body, answer),
            op::FALLOCATE => self.allocate(body),
            op::LSEEK => self.seek(body, answer),
            op::COPY_FILE_RANGE => self.copy_range(body, answer),
            op::FSYNC => self.sync(body),
            op::FLUSH => self.flush(header, body),
            op::RELEASE | op::RELEASEDIR => self.release(body),
            op::OPENDIR => self.open_directory(header, body, answer),
            op::READDIR => self.read_directory(header, body, answer),
            op::FSYNCDIR => self.sync_directory(header),
            op::STATFS => self.file_system(answer),
            op::GETXATTR => self.get_xattr(header, body, answer),
            op::LISTXATTR => self.list_xattrs(header, body, answer),
            op::SETXATTR => self.set_xattr(header, body),
            op::REMOVEXATTR => self.remove_xattr(header, body),
            op::GETLK => self.get_lock(header, body, answer),
            op::SETLK | op::SETLKW => self.set_lock(header, body),
            op::INTERRUPT => self.interrupt(body),
            op::FORGET | op::BATCH_FORGET => self.forget(header, body),
            op::INIT => begin(body, answer),
            op::DESTROY => Ok(Done::Answered),
            op::IOCTL => self.control(header, body, answer),
            _ => Err(OsError::NOSYS),
        }
    }
}

/// What the caller's identity is needed for.
const fn needs(operation: u32) -> caller::Needs {
    match operation {
        op::READ | op::WRITE | op::LSEEK | op::FSYNC | op::FLUSH | op::RELEASE | op::RELEASEDIR => caller::Needs::User,
        op::READDIR | op::STATFS | op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::INIT | op::DESTROY => caller::Needs::User,
        op::GETLK | op::SETLK | op::SETLKW | op::IOCTL => caller::Needs::User,
        _ => caller::Needs::Groups,
    }
}

/// The first request: which version is spoken, and which of the kernel's offers are taken.
fn begin(body: &[u8], answer: &mut Answer) -> Result<Done> {
    let (asked, rest) = wire::split::<InitIn>(body)?;
    if asked.major != wire::MAJOR {
        // A later kernel asks again with this version; there is no earlier one.
        return answer.put(&InitOut { major: wire::MAJOR, minor: wire::MINOR, ..InitOut::default() });
    }
    let more = if u64::from(asked.flags) & init::INIT_EXT == 0 { 0 } else { wire::split::<InitMore>(rest)?.0.flags };
    let taken = WANTED & (u64::from(more) << 32 | u64::from(asked.flags));
    answer.put(&InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR.min(asked.minor),
        readahead: asked.readahead,
        flags: taken as u32,
        flags2: (taken >> 32) as u32,
        max_background: BACKGROUND_COUNT_MAX,
        congestion_threshold: BACKGROUND_COUNT_MAX * 3 / 4,
        max_write: DATA_BYTES_MAX as u32,
        time_granularity: 1,
        max_pages: (DATA_BYTES_MAX / 4096) as u16,
        ..InitOut::default()
    })
}
