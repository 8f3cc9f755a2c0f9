//! What programs have open through the mount: each open file description of the kernel's has one
//! here, whose anchor is the kernel's on the member that answered.

use crate::handover::Predecessor;
use file::Cached;
use namespace::{FileType, Node, Opened};
use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use sys::{AsFd as _, BorrowedFd, OsError, Result};

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
    /// The last append, if it was refused: the thread that made it, and where the kernel took the
    /// end of the file to be.
    refused: Mutex<Option<(u32, u64)>>,
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

    /// Notes what has become of an append that a thread has made, and that the kernel wanted at
    /// `offset`.
    pub(crate) fn note_append(&self, thread: u32, offset: u64, is_refused: bool) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = is_refused.then_some((thread, offset));
    }

    /// Tells whether the kernel, and not a program, wants the file cut. After an append that was
    /// refused, if that was made by Linux AIO or io_uring, it cuts the file to the size that it
    /// knows, which is where it wanted the append. Nothing was appended, and what lies there the
    /// other door has written since. A program that cuts the file to that size expects nothing of
    /// it to go.
    pub(crate) fn is_cut_by_kernel(&self, thread: u32, bytes: u64) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        refused == Some((thread, bytes))
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

/// Everything that is open.
#[derive(Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out a number for what is open on a node.
    pub(crate) fn enter(&self, node: u64, opened: Opened, cached: Option<Cached>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (listed, predecessor, refused) = (Mutex::default(), OnceLock::new(), Mutex::default());
        let handle = Handle { opened, node, listed, predecessor, refused, _cached: cached };
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

    /// It is not used any more. What it was is closed by whoever uses it last.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.open().remove(&number);
        drop(removed);
    }
}
