//! The table of the descriptors that are anchors of array files ("ours"): it gives a descriptor's open file
//! description, and a look-up takes no lock.
//!
//! A description is what POSIX calls an open file description: offset and status flags, shared by every descriptor made from
//! it by dup. A description counts its users: each descriptor, and each call that is under way on the description.
//!
//! Invariants:
//! - Descriptions live in a pool whose memory is never freed and never holds anything else. So a pointer that was read
//!   just before its descriptor was closed is harmless: the reader raises the count, and then looks whether the table
//!   still holds the pointer.
//! - A description is destroyed by whoever takes its `LIVE` bit away. That needs a count of zero, so it happens exactly
//!   once.
//! - While another process has our descriptors (`process::shares_tables`) the table is not used: each look-up asks the kernel.
//! - A task that shares our memory but not our descriptors (a guest: [`crate::guest`]) never looks at the table and never changes it.
//! - While a child with descriptors of its own is being made (`process::is_sharing`), every description is shared from its installation on, and
//!   a number that is taken out of the table waits until nobody moves the kernel's offset by it ([`Anchored::share`]).
//! - A table entry is removed before the kernel closes the number and installed after the kernel assigned it, so a number that is
//!   used again never finds its predecessor.

use crate::dispatch::{unwatch_descriptor, watch_descriptor};
use crate::lock::{Lock, RawLock};
use crate::process::{is_guest, is_sharing, may_be_guest, shares_tables};
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
/// The bit of `users` that is set while a description has a node.
const LIVE: u32 = 1 << 31;
/// The first descriptor that shares its entry of the entry stub's filter with a smaller one.
const FILTER_DESCRIPTORS: RawFd = 1 << 16;

/// An open file description of a file of type `N`.
pub(crate) struct Description<N: 'static> {
    /// How many use the description, and [`LIVE`].
    users: AtomicU32,
    /// `O_*` status flags and access mode.
    pub(crate) flags: AtomicU32,
    /// The file offset while the description is private to this process.
    pub(crate) offset: AtomicU64,
    /// Whether other processes may hold the description. Then the kernel's offset of the anchor counts, and not
    /// `offset`.
    pub(crate) shared: AtomicBool,
    /// Held while the offset is used and moved.
    pub(crate) position: RawLock,
    /// The file's count of changes of status flags at the time when `flags` were last read from the kernel. Used while
    /// `shared`.
    pub(crate) flags_seen: AtomicU32,
    /// The file. Written before the description is live, dropped by [`Table::destroy`].
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
            flags_seen: AtomicU32::new(0),
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

/// A file that can be found again from its anchor.
pub(crate) trait Anchored: Sized {
    /// The file and the `O_*` flags behind `descriptor`, if it is an anchor.
    fn from_anchor(descriptor: RawFd) -> Option<(Self, u32)>;

    /// Gives the offset of the description behind `descriptor` to the kernel: another process will have the description too.
    fn share(descriptor: RawFd, user: &Use<'static, Self>);

    /// Sees to it that the file can be found again from a new anchor whose description is kept nowhere ([`shares_tables`]).
    fn leave(&self);
}

type Block<N> = [AtomicPtr<Description<N>>; BLOCK_DESCRIPTORS];

/// The descriptors of this process.
pub(crate) struct Table<N: 'static> {
    blocks: [AtomicPtr<Block<N>>; BLOCK_COUNT],
    free: Lock<Vec<&'static Description<N>>>,
    count: AtomicU32,
    /// Whether the kernel is asked about a descriptor that is not in the table, since it may be an anchor
    /// ([`Table::begin_anew`]).
    discovers: AtomicBool,
    /// One more than the largest descriptor ever installed.
    end: AtomicU32,
}

/// Whether a descriptor from [`FILTER_DESCRIPTORS`] on was ever ours.
static WIDE: AtomicBool = AtomicBool::new(false);

/// The lock of the pool of descriptions. The caller holds it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    crate::calls::OPEN.free.raw()
}

/// Whether another descriptor may have the same entry of the stub's filter as `descriptor`.
pub(crate) fn shares_filter(descriptor: RawFd) -> bool {
    descriptor >= FILTER_DESCRIPTORS || WIDE.load(Ordering::Relaxed)
}

impl<N: 'static> Table<N> {
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
}

impl<N: Anchored + 'static> Table<N> {
    /// Where the addresses of the blocks lie in a table.
    pub(crate) const BLOCKS: usize = core::mem::offset_of!(Self, blocks);

    /// Which block a descriptor is in, and which entry of it. None if the table has no place for it.
    pub(crate) fn place(descriptor: u32) -> Option<(usize, usize)> {
        let block = descriptor as usize / BLOCK_DESCRIPTORS;
        (block < BLOCK_COUNT).then_some((block, descriptor as usize % BLOCK_DESCRIPTORS))
    }

    pub(crate) const fn new() -> Self {
        Self {
            blocks: [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCK_COUNT],
            free: Lock::new(Vec::new()),
            count: AtomicU32::new(0),
            discovers: AtomicBool::new(false),
            end: AtomicU32::new(0),
        }
    }

    /// Whether a descriptor was ever ours.
    pub(crate) fn ever_used(&self) -> bool {
        self.end.load(Ordering::Relaxed) != 0
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
                // SAFETY: another thread has installed its block first; nobody else has seen this block.
                drop(unsafe { Box::from_raw(block) });
            }
        }
        self.slot(descriptor)
    }

    /// A use of the description behind `descriptor`; None if the descriptor is not ours, and always None in a guest.
    #[inline]
    pub(crate) fn lookup(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
        if may_be_guest() && is_guest() {
            return None;
        }
        if shares_tables() {
            return self.look(descriptor);
        }
        match self.find(descriptor) {
            None if self.discovers.load(Ordering::Relaxed) => self.discover(descriptor),
            found => found,
        }
    }

    #[inline]
    fn find(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
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

    #[cold]
    fn discover(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
        let user = self.look(descriptor)?;
        self.install(descriptor, user.clone());
        Some(user)
    }

    /// A use of a new description for what the kernel says that `descriptor` means.
    #[cold]
    fn look(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
        let (node, flags) = N::from_anchor(descriptor)?;
        Some(self.describe_shared(node, flags))
    }

    /// Whether `descriptor` still means the description of `user`.
    pub(crate) fn still_means(&'static self, descriptor: RawFd, user: &Use<'static, N>) -> bool {
        self.slot(descriptor).is_some_and(|slot| core::ptr::eq(slot.load(Ordering::SeqCst), user.description))
    }

    /// Empties the table without closing anything. From now on the table finds out what a descriptor means when it is
    /// first looked up. This is for a process with one thread that does not know its descriptors ([`crate::deputy`]):
    /// the table that it has copied describes another process.
    pub(crate) fn begin_anew(&'static self) {
        self.blocks.iter().for_each(|block| block.store(core::ptr::null_mut(), Ordering::Relaxed));
        self.free.raw().reset();
        core::mem::forget(core::mem::take(&mut *self.free.lock()));
        self.count.store(0, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
        self.discovers.store(true, Ordering::Relaxed);
    }

    /// Drops the uses and releases the positions that other threads of the parent held, since these threads do not
    /// exist in a child of fork. The child's only thread calls this.
    pub(crate) fn drop_uses_of_others(&'static self) {
        let end = self.end.load(Ordering::Relaxed) as RawFd;
        let installed = || (0..end).filter_map(|descriptor| self.slot(descriptor)).map(|slot| slot.load(Ordering::Relaxed));
        // SAFETY: descriptions are never deallocated.
        let descriptions = || installed().filter_map(|pointer| unsafe { pointer.as_ref() });
        for description in descriptions() {
            description.users.store(LIVE, Ordering::Relaxed);
            description.position.reset();
        }
        descriptions().for_each(|description| _ = description.users.fetch_add(1, Ordering::Relaxed));
        self.free.lock().iter().for_each(|description| description.users.store(0, Ordering::Relaxed));
    }

    /// A new description of `node` with the `O_*` flags it was opened with.
    pub(crate) fn describe(&'static self, node: N, flags: u32) -> Use<'static, N> {
        let mut free = self.free.lock();
        if free.is_empty() {
            let fresh: Box<[Description<N>]> = (0..POOL_STEP).map(|_| Description::empty()).collect();
            free.extend(&*Box::leak(fresh));
        }
        let description = free.pop().expect("the pool was just filled");
        drop(free);
        // SAFETY: a description from the free list has no node. It may have users for a moment, but only from `find`,
        // which looks at nothing but the count.
        unsafe { (*description.node.get()).write(node) };
        description.flags.store(flags, Ordering::Relaxed);
        description.flags_seen.store(0, Ordering::Relaxed);
        description.offset.store(0, Ordering::Relaxed);
        description.shared.store(false, Ordering::Relaxed);
        description.users.fetch_add(LIVE | 1, Ordering::AcqRel);
        Use { table: self, description }
    }

    /// A new description of a file of which the kernel keeps the offset.
    pub(crate) fn describe_shared(&'static self, node: N, flags: u32) -> Use<'static, N> {
        let user = self.describe(node, flags);
        user.shared.store(true, Ordering::Release);
        user
    }

    /// Makes `descriptor` refer to the description of `user`. False if the number is beyond the table.
    pub(crate) fn install(&'static self, descriptor: RawFd, user: Use<'static, N>) -> bool {
        if shares_tables() {
            user.node().leave();
            return true;
        }
        let Some(slot) = self.slot_or_new(descriptor) else { return false };
        if descriptor >= FILTER_DESCRIPTORS {
            WIDE.store(true, Ordering::Relaxed);
        }
        let pointer = core::ptr::from_ref(user.description).cast_mut();
        // The table holds the use from here on.
        core::mem::forget(user);
        let previous = slot.swap(pointer, Ordering::SeqCst);
        watch_descriptor(descriptor);
        self.end.fetch_max(descriptor as u32 + 1, Ordering::Relaxed);
        // SAFETY: descriptions are never deallocated.
        match unsafe { previous.as_ref() } {
            Some(previous) => self.release(previous),
            None => _ = self.count.fetch_add(1, Ordering::Relaxed),
        }
        // Another thread may be sharing all descriptions just now. Either that thread has seen this entry, or
        // `is_sharing` is true here, since the thread says so before it looks at the table.
        if is_sharing()
            && let Some(user) = self.find(descriptor)
        {
            N::share(descriptor, &user);
        }
        true
    }

    /// Takes `descriptor` out of the table. The returned use keeps the description alive; if it is the last use, its
    /// drop ends the description.
    pub(crate) fn remove(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
        if shares_tables() || may_be_guest() && is_guest() {
            return None;
        }
        let pointer = self.slot(descriptor)?.swap(core::ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: descriptions are never deallocated.
        let description = unsafe { pointer.as_ref()? };
        unwatch_descriptor(descriptor);
        self.count.fetch_sub(1, Ordering::Relaxed);
        let user = Use { table: self, description };
        if is_sharing() {
            // Another thread may be about to move the kernel's offset by way of this number. Once the number is closed,
            // it could mean another file. So the removal waits for that thread.
            user.position.acquire();
            user.position.release();
        }
        Some(user)
    }

    /// The descriptors of ours within `range`, ascending, each with a use.
    pub(crate) fn within(&'static self, range: core::ops::RangeInclusive<u32>) -> impl Iterator<Item = (RawFd, Use<'static, N>)> {
        let end = (*range.end()).min(self.end.load(Ordering::Relaxed).saturating_sub(1));
        let start = if self.count() == 0 || shares_tables() { end.saturating_add(1) } else { *range.start() };
        (start..=end).filter_map(|descriptor| Some((descriptor as RawFd, self.lookup(descriptor as RawFd)?)))
    }

    /// Every descriptor of ours.
    pub(crate) fn all(&'static self) -> impl Iterator<Item = (RawFd, Use<'static, N>)> {
        self.within(0..=u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// A node that counts its drops.
    struct Node(Arc<AtomicUsize>);
    impl Anchored for Node {
        fn from_anchor(_: RawFd) -> Option<(Self, u32)> {
            None
        }
        fn share(_: RawFd, user: &Use<'static, Self>) {
            user.shared.store(true, Ordering::Release);
        }
        fn leave(&self) {}
    }
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
