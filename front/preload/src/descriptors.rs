//! Which descriptors are ours: descriptor → open file description, found without a lock.
//!
//! A description is what POSIX calls an open file description: offset and status flags, shared by every descriptor made from
//! it by dup. It counts its users: each descriptor, and each call that is under way on it.
//!
//! Invariants:
//! - Descriptions live in a pool that is never given back (type-stable), so a pointer read just before its descriptor was closed is
//!   harmless: the count is raised first, and then the table must still hold the pointer.
//! - A description is destroyed by whoever takes its `LIVE` bit away, which needs a count of zero, so exactly once.
//! - A table entry is removed before the kernel closes the number and installed after the kernel assigned it, so a number that is
//!   used again never finds its predecessor.

use crate::dispatch::{unwatch_descriptor, watch_descriptor};
use crate::lock::{Lock, RawLock};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use heap::boxed::Box;
use heap::vec::Vec;
use sys::RawFd;

const BLOCK_COUNT: usize = 1024;
const BLOCK_DESCRIPTORS: usize = 1024;
/// How many descriptions the pool grows by.
const POOL_STEP: usize = 32;
/// Set in the count while a description is in use.
const LIVE: u32 = 1 << 31;
/// Descriptors from here on share their entry of the stub's filter with smaller ones.
const FILTER_DESCRIPTORS: RawFd = 1 << 16;

/// An open file description of a file of type `N`.
pub(crate) struct Description<N: 'static> {
    users: AtomicU32,
    /// `O_*` status flags and access mode.
    pub(crate) flags: AtomicU32,
    /// The file offset while the description is private to this process.
    pub(crate) offset: AtomicU64,
    /// Other processes may hold it: the kernel's offset of the anchor is the truth.
    pub(crate) shared: AtomicBool,
    /// Held while the offset is used and moved.
    pub(crate) position: RawLock,
    /// Its descriptor is close-on-exec only for the exec under way.
    pub(crate) withheld: AtomicBool,
    node: UnsafeCell<MaybeUninit<N>>,
}

// SAFETY: the node is written before the description is published and dropped after its last user left; the rest is atomic.
unsafe impl<N: Send + Sync> Sync for Description<N> {}

impl<N: 'static> Description<N> {
    const fn empty() -> Self {
        Self {
            users: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            shared: AtomicBool::new(false),
            position: RawLock::new(),
            withheld: AtomicBool::new(false),
            node: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

/// A counted use of a description.
pub(crate) struct Use<'a, N: 'static> {
    table: &'a Table<N>,
    description: &'a Description<N>,
}

impl<N: 'static> Use<'_, N> {
    /// The file.
    #[inline]
    pub(crate) fn node(&self) -> &N {
        // SAFETY: this use keeps the description live, and a live description has its node.
        unsafe { (*self.description.node.get()).assume_init_ref() }
    }
}

impl<N: 'static> Deref for Use<'_, N> {
    type Target = Description<N>;
    #[inline]
    fn deref(&self) -> &Description<N> {
        self.description
    }
}

impl<N: 'static> Clone for Use<'_, N> {
    fn clone(&self) -> Self {
        self.description.users.fetch_add(1, Ordering::Relaxed);
        Self { table: self.table, description: self.description }
    }
}

impl<N: 'static> Drop for Use<'_, N> {
    #[inline]
    fn drop(&mut self) {
        self.table.release(self.description);
    }
}

type Block<N> = [AtomicPtr<Description<N>>; BLOCK_DESCRIPTORS];

/// The descriptors of this process.
pub(crate) struct Table<N: 'static> {
    blocks: [AtomicPtr<Block<N>>; BLOCK_COUNT],
    free: Lock<Vec<&'static Description<N>>>,
    count: AtomicU32,
    /// One more than the largest descriptor ever installed.
    end: AtomicU32,
}

/// Whether a descriptor beyond the filter's width was ever ours.
static WIDE: AtomicBool = AtomicBool::new(false);

/// The lock of the pool, to hold it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    crate::calls::OPEN.raw_lock()
}

/// Whether the filter entry of `descriptor` may be another's too.
pub(crate) fn shares_filter(descriptor: RawFd) -> bool {
    descriptor >= FILTER_DESCRIPTORS || WIDE.load(Ordering::Relaxed)
}

impl<N: 'static> Table<N> {
    pub(crate) const fn new() -> Self {
        Self {
            blocks: [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCK_COUNT],
            free: Lock::new(Vec::new()),
            count: AtomicU32::new(0),
            end: AtomicU32::new(0),
        }
    }

    /// The pool's lock, to hold it across a fork.
    pub(crate) const fn raw_lock(&self) -> &RawLock {
        self.free.raw()
    }

    /// How many descriptors are ours.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    fn slot(&self, descriptor: RawFd) -> Option<&AtomicPtr<Description<N>>> {
        let index = usize::try_from(descriptor).ok()?;
        let block = self.blocks.get(index / BLOCK_DESCRIPTORS)?.load(Ordering::Acquire);
        // SAFETY: blocks are leaked boxes.
        let block = unsafe { block.as_ref()? };
        Some(&block[index % BLOCK_DESCRIPTORS])
    }

    fn slot_or_new(&self, descriptor: RawFd) -> Option<&AtomicPtr<Description<N>>> {
        let index = usize::try_from(descriptor).ok()?;
        let place = self.blocks.get(index / BLOCK_DESCRIPTORS)?;
        if place.load(Ordering::Acquire).is_null() {
            let block: Box<Block<N>> = Box::new([const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCK_DESCRIPTORS]);
            let block = Box::into_raw(block);
            if place.compare_exchange(core::ptr::null_mut(), block, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was first; this one was never seen by anybody.
                drop(unsafe { Box::from_raw(block) });
            }
        }
        self.slot(descriptor)
    }

    /// A use of the description behind `descriptor`, if it is ours.
    #[inline]
    pub(crate) fn lookup(&self, descriptor: RawFd) -> Option<Use<'_, N>> {
        let slot = self.slot(descriptor)?;
        loop {
            let pointer = slot.load(Ordering::Acquire);
            // SAFETY: descriptions are never deallocated.
            let description = unsafe { pointer.as_ref()? };
            description.users.fetch_add(1, Ordering::AcqRel);
            let user = Use { table: self, description };
            if slot.load(Ordering::Acquire) == pointer {
                return Some(user);
            }
        }
    }

    #[inline]
    fn release(&self, description: &Description<N>) {
        if description.users.fetch_sub(1, Ordering::AcqRel) == LIVE | 1 {
            self.destroy(description);
        }
    }

    #[cold]
    fn destroy(&self, description: &Description<N>) {
        if description.users.compare_exchange(LIVE, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        // SAFETY: the LIVE bit was taken here, so no user is left and none can come: the node is ours to drop, once.
        unsafe { (*description.node.get()).assume_init_drop() };
        // SAFETY: descriptions are leaked, so the reference is good for ever.
        self.free.lock().push(unsafe { &*core::ptr::from_ref(description) });
    }

    /// A new description of `node` with the `O_*` flags it was opened with.
    pub(crate) fn describe(&self, node: N, flags: u32) -> Use<'_, N> {
        let mut free = self.free.lock();
        if free.is_empty() {
            let fresh: Box<[Description<N>]> = (0..POOL_STEP).map(|_| Description::empty()).collect();
            free.extend(&*Box::leak(fresh));
        }
        let description = free.pop().expect("the pool was just filled");
        drop(free);
        // SAFETY: a description from the free list has no node and no user but passing ones, who look at the count only.
        unsafe { (*description.node.get()).write(node) };
        description.flags.store(flags, Ordering::Relaxed);
        description.offset.store(0, Ordering::Relaxed);
        description.shared.store(false, Ordering::Relaxed);
        description.users.fetch_add(LIVE | 1, Ordering::AcqRel);
        Use { table: self, description }
    }

    /// Makes `descriptor` refer to the description of `user`. False if the number is beyond the table.
    pub(crate) fn install(&self, descriptor: RawFd, user: Use<'_, N>) -> bool {
        let Some(slot) = self.slot_or_new(descriptor) else { return false };
        if descriptor >= FILTER_DESCRIPTORS {
            WIDE.store(true, Ordering::Relaxed);
        }
        let pointer = core::ptr::from_ref(user.description).cast_mut();
        // The use becomes the table's.
        core::mem::forget(user);
        let previous = slot.swap(pointer, Ordering::AcqRel);
        watch_descriptor(descriptor);
        self.end.fetch_max(descriptor as u32 + 1, Ordering::Relaxed);
        // SAFETY: descriptions are never deallocated.
        match unsafe { previous.as_ref() } {
            Some(previous) => self.release(previous),
            None => _ = self.count.fetch_add(1, Ordering::Relaxed),
        }
        true
    }

    /// Takes `descriptor` out of the table. The description ends when the returned use does, if it was the last.
    pub(crate) fn remove(&self, descriptor: RawFd) -> Option<Use<'_, N>> {
        let pointer = self.slot(descriptor)?.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: descriptions are never deallocated.
        let description = unsafe { pointer.as_ref()? };
        unwatch_descriptor(descriptor);
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(Use { table: self, description })
    }

    /// The descriptors of ours within `range`, ascending, each with a use.
    pub(crate) fn within(&self, range: core::ops::RangeInclusive<u32>) -> impl Iterator<Item = (RawFd, Use<'_, N>)> {
        let end = (*range.end()).min(self.end.load(Ordering::Relaxed).saturating_sub(1));
        let start = if self.count() == 0 { end.saturating_add(1) } else { *range.start() };
        (start..=end).filter_map(|descriptor| Some((descriptor as RawFd, self.lookup(descriptor as RawFd)?)))
    }

    /// Every descriptor of ours.
    pub(crate) fn all(&self) -> impl Iterator<Item = (RawFd, Use<'_, N>)> {
        self.within(0..=u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// A node that counts its end.
    struct Node(Arc<AtomicUsize>);
    impl Drop for Node {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn table() -> &'static Table<Node> {
        Box::leak(Box::new(Table::new()))
    }

    #[test]
    fn a_description_ends_with_its_last_descriptor_and_use() {
        let (table, ended) = (table(), Arc::new(AtomicUsize::new(0)));
        let first = table.describe(Node(ended.clone()), 2);
        assert!(table.install(7, first));
        assert!(table.install(1_000_000, table.lookup(7).unwrap()));
        assert_eq!(table.all().map(|entry| entry.0).collect::<Vec<_>>(), [7, 1_000_000]);
        drop(table.remove(7));
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        let user = table.lookup(1_000_000).unwrap();
        drop(table.remove(1_000_000));
        assert_eq!((ended.load(Ordering::Relaxed), table.count()), (0, 0));
        assert_eq!(user.flags.load(Ordering::Relaxed), 2);
        drop(user);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert!(table.lookup(7).is_none() && table.lookup(-1).is_none() && table.lookup(i32::MAX).is_none());
    }

    #[test]
    fn installing_over_a_descriptor_ends_the_old_one() {
        let (table, ended) = (table(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..100 {
            assert!(table.install(3, table.describe(Node(ended.clone()), 0)));
        }
        assert_eq!((ended.load(Ordering::Relaxed), table.count()), (99, 1));
    }

    #[test]
    fn racing_lookups_and_closes_end_each_description_once() {
        const ROUNDS: usize = 20_000;
        let (table, ended) = (table(), Arc::new(AtomicUsize::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(user) = table.lookup(5) {
                            assert!(Arc::strong_count(&user.node().0) > 1);
                        }
                    }
                })
            })
            .collect();
        for _ in 0..ROUNDS {
            assert!(table.install(5, table.describe(Node(ended.clone()), 0)));
            drop(table.remove(5));
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(ended.load(Ordering::Relaxed), ROUNDS);
    }
}
