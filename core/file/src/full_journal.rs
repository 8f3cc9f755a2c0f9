//! What to do when every lane of the journal waits to be replayed: their writers are dead, and this
//! process has none of their files open.
//!
//! Files are opened by name, and this layer knows no names. So a [`Finder`] that knows names walks
//! the tree and opens the files, which replays their records. A walk is needed at most once in as
//! many deaths as there are lanes, and the alternative is to refuse to write.
//!
//! The caller of [`Files::with_lanes`] holds no lock of a file, since opening other files takes
//! them.

use crate::Inode;
use crate::files::Files;
use alloc::boxed::Box;
use alloc::vec::Vec;
use array::runtime::JOURNAL_LANE_WAITS;
use core::sync::atomic::{AtomicPtr, Ordering};
use format::Attribute;
use sys::OsError;

/// Opens these files for writing, as far as it finds them and may, and closes them.
type Open = Box<dyn Fn(Vec<Attribute>) + Send + Sync>;

/// The function that finds and opens files by their attribute; none at first.
pub(crate) struct Finder(AtomicPtr<Open>);

impl Finder {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }
}

impl Files {
    /// Says who opens files that something in the journal waits for. The first one stays.
    pub fn set_finder(&self, open: impl Fn(Vec<Attribute>) + Send + Sync + 'static) {
        let new = Box::into_raw(Box::new(Box::new(open) as Open));
        let place = &self.finder().0;
        if place.compare_exchange(core::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    /// Has the files opened that lanes wait for, if all of them do. Returns whether one came free.
    #[cold]
    fn free_lanes(&self) -> bool {
        let waits = |lane: usize| self.array().runtime().journal_lanes()[lane].0.load(Ordering::Acquire) == JOURNAL_LANE_WAITS;
        let all_wait = || self.journal_lane_count() != 0 && (0..self.journal_lane_count()).all(waits);
        // SAFETY: null, or leaked when it was stored.
        let Some(open) = (unsafe { self.finder().0.load(Ordering::Acquire).as_ref() }) else { return false };
        if !all_wait() || self.array().runtime().journal_has_failed() {
            return false;
        }
        open(self.waiting_records().iter().map(|waiting| waiting.attribute).collect());
        !all_wait()
    }
}

impl Inode {
    /// Makes a change that may need a lane of the journal; once more if there was none and one has
    /// come free. A change that is refused for that has done nothing that doing it again would not
    /// do.
    #[inline]
    pub(crate) fn with_lanes<T>(&self, mut change: impl FnMut() -> Result<T, OsError>) -> Result<T, OsError> {
        match change() {
            Err(OsError::IO) if self.files.has_journal() && self.files.free_lanes() => again(change),
            result => result,
        }
    }
}

/// Not at the same place a second time: the first one is inlined.
#[cold]
#[inline(never)]
fn again<T>(mut change: impl FnMut() -> T) -> T {
    change()
}
