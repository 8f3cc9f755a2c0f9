//! What programs have open through the mount: each open file description of the kernel's has one
//! here, whose anchor is the kernel's on the member that answered.

use crate::{
    handover::Predecessor,
    wire::{self, CopyIn, Header, OpenIn, SetattrIn, WriteIn, op, valid},
};
use file::Cached;
use namespace::{FileType, Node, OFlags, Opened};
use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use sys::{AsFd as _, BorrowedFd, OsError, Result};

/// The kernel's own cut follows the append that was refused far sooner.
const CUT_WITHIN: Duration = Duration::from_secs(1);

/// A name in a directory.
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    pub(crate) kind: FileType,
}

/// Something that is open.
pub(crate) struct Handle {
    opened: Opened,
    /// The kernel's number of what is open.
    node: u64,
    /// Of a directory, the names when it was last read from its beginning: positions count these.
    listed: Mutex<Vec<Listed>>,
    predecessor: OnceLock<Predecessor>,
    /// Tells whether each write to the file is to be durable at once (O_SYNC, O_DSYNC).
    pub(crate) is_synced: bool,
    /// Tells whether the file is open for writing.
    pub(crate) is_for_writing: bool,
    /// Of a file that is open for reading and writing, which the program may map shared and writable.
    _cached: Option<Cached>,
}

impl Deref for Handle {
    type Target = Opened;
    fn deref(&self) -> &Opened {
        &self.opened
    }
}

impl Handle {
    pub(crate) fn listed(&self) -> MutexGuard<'_, Vec<Listed>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The anchor whose place it has taken.
    pub(crate) fn predecessor(&self) -> Option<&Predecessor> {
        self.predecessor.get()
    }

    /// It has taken the place of an anchor.
    ///
    /// # Errors
    /// `BUSY` if it has taken another's place before.
    pub(crate) fn follow(&self, predecessor: Predecessor) -> Result<()> {
        self.predecessor.set(predecessor).map_err(|_| OsError::BUSY)
    }

    /// The descriptor whose description has the locks by flock(2) of whoever has it open.
    pub(crate) fn locked(&self) -> BorrowedFd<'_> {
        self.predecessor().map_or_else(|| self.anchor.as_fd(), Predecessor::anchor)
    }
}

/// An append that was refused, and what the kernel knows of it.
struct Refused {
    thread: u32,
    handle: u64,
    /// Where the kernel took the end of the file to be.
    offset: u64,
    at: Instant,
}

/// Everything that is open.
#[derive(Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
    /// Appends that were refused a moment ago, by the kernel's numbers of the files.
    refused: Mutex<HashMap<u64, Refused>>,
    refused_count: AtomicUsize,
}

impl Handles {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out a number for what is open on a node, which was opened with these flags.
    pub(crate) fn enter(&self, node: u64, opened: Opened, flags: OFlags, cached: Option<Cached>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (listed, predecessor) = (Mutex::default(), OnceLock::new());
        let is_synced = flags.intersects(OFlags::SYNC | OFlags::DSYNC);
        let is_for_writing = flags & OFlags::RWMODE != OFlags::RDONLY;
        let handle = Handle { opened, node, listed, predecessor, is_synced, is_for_writing, _cached: cached };
        self.open().insert(number, Arc::new(handle));
        number
    }

    /// A node's file, if somebody has it open. All that is open is looked at.
    pub(crate) fn file_of(&self, node: u64) -> Option<Arc<Handle>> {
        self.open().values().find(|handle| handle.node == node && matches!(handle.opened.node, Node::File(_))).cloned()
    }

    /// What has a number.
    ///
    /// # Errors
    /// `BADF`.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<Handle>> {
        self.open().get(&number).cloned().ok_or(OsError::BADF)
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<u64, Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an append through a handle was refused, which the kernel wanted at `offset`.
    pub(crate) fn note_refused(&self, header: &Header, handle: u64, offset: u64) {
        let mut refused = self.refused();
        refused.retain(|_, noted| noted.at.elapsed() < CUT_WITHIN);
        refused.insert(header.node, Refused { thread: header.process, handle, offset, at: Instant::now() });
        self.refused_count.store(refused.len(), Ordering::Release);
    }

    /// Tells whether a request comes of the kernel, which wants a file cut, and not of a program. To be
    /// asked once of each request, when it arrives. After an append that was refused, if that was made
    /// by Linux AIO or io_uring, the kernel cuts the file to the size that it knows, which is where it
    /// wanted the append. Nothing was appended, and what lies there the other door has written since.
    ///
    /// The cut is the next request of the thread for this file, and no other thread can change the
    /// file through the mount before. So after any such request a cut is a program's.
    pub(crate) fn is_cut_by_kernel(&self, header: &Header, body: &[u8]) -> bool {
        if self.refused_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut refused = self.refused();
        let copy = wire::split::<CopyIn>(body).ok().filter(|_| header.operation == op::COPY_FILE_RANGE);
        let node = copy.map_or(header.node, |(asked, _)| asked.to_node);
        let Some(noted) = refused.get(&node) else { return false };
        let cut = wire::split::<SetattrIn>(body).ok().filter(|_| header.operation == op::SETATTR).map(|(asked, _)| asked);
        let cut = cut.filter(|asked| asked.valid & valid::SIZE != 0);
        let changes = match header.operation {
            op::WRITE => wire::split::<WriteIn>(body).is_ok_and(|(asked, _)| asked.write_flags & wire::WRITE_CACHE == 0),
            op::OPEN => wire::split::<OpenIn>(body).is_ok_and(|(asked, _)| asked.flags & OFlags::TRUNC.bits() != 0),
            op::FALLOCATE | op::COPY_FILE_RANGE => true,
            _ => cut.is_some(),
        };
        if !changes && noted.thread != header.process {
            return false;
        }
        let is_its = |asked: SetattrIn| {
            asked.valid & valid::HANDLE != 0
                && (asked.handle, asked.size) == (noted.handle, noted.offset)
                && noted.thread == header.process
        };
        let is_kernels = cut.is_some_and(is_its) && noted.at.elapsed() < CUT_WITHIN;
        refused.remove(&node);
        self.refused_count.store(refused.len(), Ordering::Release);
        is_kernels
    }

    /// It is not used any more. What it was is closed by whoever uses it last.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.open().remove(&number);
        drop(removed);
    }
}
