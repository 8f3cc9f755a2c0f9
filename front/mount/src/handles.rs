//! What programs have open through the mount: each open file description of the kernel's has one here, whose anchor is
//! the kernel's on the member that answered.

use namespace::{FileType, Opened};
use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use sys::{OsError, Result};

/// A name in a directory.
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    pub(crate) kind: FileType,
}

/// Something that is open.
pub(crate) struct Handle {
    opened: Opened,
    /// Of a directory, the names when it was last read from its beginning: positions count these.
    listed: Mutex<Vec<Listed>>,
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

    /// Gives out a number.
    pub(crate) fn enter(&self, opened: Opened) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open().insert(number, Arc::new(Handle { opened, listed: Mutex::default() }));
        number
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
