//! Files whose pages the kernel keeps for programs that may store to them: what a mount gives
//! programs that map a file shared and writable. See [`array::Runtime::begin_caching`].

use crate::files::FileRef;
use crate::inode::Inode;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use sys::OsError;

/// A file held open that this process lets the kernel cache. While there is one, no other process
/// can store to the file through mappings.
pub struct Cached(FileRef);

impl Cached {
    /// Begins to cache the file.
    ///
    /// # Errors
    /// `BUSY` if another process may store to the file through mappings, or caches it.
    pub fn new(file: &FileRef) -> Result<Self, OsError> {
        let (runtime, held) = (file.files.array().runtime(), file.clone());
        let begun = held.with_opened(|opened| {
            if opened.cached_count == 0 {
                runtime.begin_caching(held.key(), held.entry)?;
            }
            opened.cached_count += 1;
            Ok(())
        });
        begun.unwrap_or(Err(OsError::BADF)).map(|()| Self(held))
    }
}

impl Deref for Cached {
    type Target = FileRef;
    #[inline]
    fn deref(&self) -> &FileRef {
        &self.0
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        let runtime = self.0.files.array().runtime();
        self.0.with_opened(|opened| {
            opened.cached_count -= 1;
            if opened.cached_count == 0 {
                runtime.end_caching(self.0.entry);
            }
        });
    }
}

impl FileRef {
    /// Gives the file the time of its last write, if that still waits. If this is the only reference
    /// to the file, apart from one that lets the kernel cache it, the file is given all that its close
    /// would give. To be called when a program closes the file while this process keeps it open for a
    /// moment longer: the program is told the times that it would be told after the close.
    pub fn settle_at_close(&self) {
        if self.shared().modified_ns.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.with_opened(|opened| opened.handle_count - opened.cached_count) == Some(1) {
            self.settle();
        } else {
            self.flush_times();
        }
    }
}

impl Inode {
    /// Tells whether another process lets the kernel cache the file: then this process cannot store
    /// to it through mappings.
    #[must_use]
    pub fn is_cached_by_others(&self) -> bool {
        self.files.array().runtime().is_cached_by_others(self.entry)
    }
}
