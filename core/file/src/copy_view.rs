//! A process' view of a file's shared copy: the copy as this process has it open and mapped.
//!
//! A file may get many copies one after the other while a process has it open: another copy each
//! time that programs begin to map it. The process opens each copy when it first needs it, and lets
//! go of the view of the copy before. Readers use a view without a lock, so a view that was
//! replaced is freed only when no thread uses any view.
//!
//! Invariants:
//! - A thread is counted in `users` before it loads `current`, and until it has used the view for
//!   the last time.
//! - A view is taken out of `current` before it is put into `replaced`. So a thread that is counted
//!   afterwards does not find it.
//! - Whoever frees views takes them out of `replaced` first and then looks at `users`: no thread
//!   that is counted later can have one of them.

use alloc::boxed::Box;
use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use dax::Backing;

/// The copy with one number, open in this process.
struct View {
    /// The copy's number (`SharedFile::copy`).
    number: u32,
    backing: Backing,
    /// The next view that was replaced and is not freed yet.
    next: *mut Self,
}

/// This process' views of the copies of one file.
pub(crate) struct CopyView {
    /// The view of the copy that was needed last; null if there was none.
    current: AtomicPtr<View>,
    /// How many threads use a view, or are about to.
    users: AtomicU32,
    /// The views that were replaced while threads used views.
    replaced: AtomicPtr<View>,
}

/// A view in use: it is not freed meanwhile.
pub(crate) struct CopyInUse<'a> {
    owner: &'a CopyView,
    view: &'a View,
}

impl CopyView {
    pub(crate) const fn new() -> Self {
        Self { current: AtomicPtr::new(null_mut()), users: AtomicU32::new(0), replaced: AtomicPtr::new(null_mut()) }
    }

    /// The view of the copy with this number, if this process has it open.
    pub(crate) fn of(&self, number: u32) -> Option<CopyInUse<'_>> {
        self.users.fetch_add(1, SeqCst);
        // SAFETY: null, or a view that is not freed while this thread is counted (module).
        match unsafe { self.current.load(SeqCst).as_ref() } {
            Some(view) if view.number == number => Some(CopyInUse { owner: self, view }),
            _ => {
                self.leave();
                None
            }
        }
    }

    /// Makes `backing` the view, of the copy with this number, in place of an earlier one.
    pub(crate) fn replace(&self, number: u32, backing: Backing) {
        self.exchange(Box::into_raw(Box::new(View { number, backing, next: null_mut() })));
    }

    /// Lets go of the view: its copy exists no more.
    pub(crate) fn clear(&self) {
        self.exchange(null_mut());
    }

    fn exchange(&self, new: *mut View) {
        let old = self.current.swap(new, SeqCst);
        if !old.is_null() {
            self.put_aside(old);
            self.free_replaced();
        }
    }

    /// Puts a view, with those that hang on it, into `replaced`.
    fn put_aside(&self, first: *mut View) {
        let mut last = first;
        // SAFETY: the views of this list are nobody else's to change: they are in neither `current`
        // nor `replaced`.
        while let Some(next) = unsafe { (*last).next.as_mut() } {
            last = next;
        }
        let mut head = self.replaced.load(SeqCst);
        loop {
            // SAFETY: as above.
            unsafe { (*last).next = head };
            match self.replaced.compare_exchange_weak(head, first, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Frees the views that were replaced, if no thread uses any.
    #[cold]
    fn free_replaced(&self) {
        let mut list = self.replaced.swap(null_mut(), SeqCst);
        if list.is_null() {
            return;
        }
        if self.users.load(SeqCst) != 0 {
            // The last of these threads frees the views when it leaves, or the next thread that
            // replaces a view does.
            self.put_aside(list);
            return;
        }
        while !list.is_null() {
            // SAFETY: made by Box::into_raw in `replace`, and no thread can reach it any more
            // (module).
            let view = unsafe { Box::from_raw(list) };
            list = view.next;
        }
    }

    fn leave(&self) {
        if self.users.fetch_sub(1, SeqCst) == 1 && !self.replaced.load(SeqCst).is_null() {
            self.free_replaced();
        }
    }
}

impl Drop for CopyView {
    fn drop(&mut self) {
        // A process that was forked while another thread used a view counts that thread for ever.
        *self.users.get_mut() = 0;
        self.clear();
        self.free_replaced();
    }
}

impl Deref for CopyInUse<'_> {
    type Target = Backing;

    fn deref(&self) -> &Backing {
        &self.view.backing
    }
}

impl Drop for CopyInUse<'_> {
    fn drop(&mut self) {
        self.owner.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dax::{Access, PersistenceDomain};
    use sys::AsRawFd as _;
    use sys::rustix::fs::{MemfdFlags, memfd_create};

    fn copy() -> Backing {
        let file = memfd_create("copy", MemfdFlags::CLOEXEC).unwrap();
        Backing::new(file, Access::ReadWrite, PersistenceDomain::Volatile)
    }

    /// The descriptor of a view and the inode it refers to: other tests of this process use
    /// descriptors with the same numbers.
    fn opened(view: &Backing) -> (i32, u64) {
        let fd = view.fd().unwrap().as_raw_fd();
        (fd, inode_of(fd).unwrap())
    }

    fn inode_of(fd: i32) -> Option<u64> {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(format!("/proc/self/fd/{fd}")).ok().map(|data| data.ino())
    }

    fn is_open((fd, inode): (i32, u64)) -> bool {
        inode_of(fd) == Some(inode)
    }

    #[test]
    fn a_view_that_was_replaced_lives_as_long_as_it_is_used() {
        let views = CopyView::new();
        assert!(views.of(1).is_none());
        views.replace(1, copy());
        let used = views.of(1).unwrap();
        let first = opened(&used);
        views.replace(3, copy());
        assert!(views.of(1).is_none() && is_open(first));
        let second = opened(&views.of(3).unwrap());
        assert!(is_open(first), "still in use");
        drop(used);
        assert!(!is_open(first) && is_open(second));
        views.clear();
        assert!(views.of(3).is_none() && !is_open(second));
    }

    #[test]
    fn threads_use_and_replace_views() {
        let views = CopyView::new();
        std::thread::scope(|scope| {
            for start in 0..3 {
                let views = &views;
                scope.spawn(move || {
                    for number in 0..3000 {
                        match views.of(number) {
                            Some(view) => assert!(view.bytes().is_ok(), "its descriptor is open"),
                            None => views.replace(number + start % 2, copy()),
                        }
                    }
                });
            }
        });
        views.clear();
        assert!(views.replaced.load(SeqCst).is_null());
    }
}
