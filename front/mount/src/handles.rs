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
        let handle = Handle { opened, node, listed: Mutex::default(), predecessor: OnceLock::new(), _cached: cached };
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
