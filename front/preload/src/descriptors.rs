//! Which descriptors are ours: descriptor → open file description, found without a lock.
//!
//! A description is what POSIX calls an open file description: offset and status flags, shared by every descriptor made from
//! it by dup. It counts its users: each descriptor, and each call that is under way on it.
//!
//! Invariants:
//! - Descriptions live in a pool that is never given back (type-stable), so a pointer read just before its descriptor was closed is
//!   harmless: the count is raised first, and then the table must still hold the pointer.
//! - A description is destroyed by whoever takes its `LIVE` bit away, which needs a count of zero, so exactly once.
//! - A child that shares our memory but not our descriptors (vfork) sees and changes an overlay of its thread, never the table itself.
//! - A table entry is removed before the kernel closes the number and installed after the kernel assigned it, so a number that is
//!   used again never finds its predecessor.

use crate::dispatch::{unwatch_descriptor, watch_descriptor};
use crate::lock::{Lock, RawLock};
use crate::process::{may_borrow, owns_tables};
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
    /// Made by a vfork child for itself.
    fleeting: AtomicBool,
    /// While others may hold it: the file's count of changed status flags when `flags` were last those of the kernel.
    pub(crate) flags_seen: AtomicU32,
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
            fleeting: AtomicBool::new(false),
            flags_seen: AtomicU32::new(0),
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

/// What a vfork child made of a descriptor.
struct Borrowed<N: 'static> {
    /// The thread block the child shares with its parent.
    thread: usize,
    descriptor: RawFd,
    meaning: Meaning<N>,
}

enum Meaning<N: 'static> {
    /// Closed, or a file of the kernel's.
    NotOurs,
    /// A description of the parent.
    Parents(Use<'static, N>),
    /// An anchor the child opened. The descriptors behind its file would be the child's alone, but the memory is the parent's too: so
    /// the file is opened anew for each call and nothing of it stays.
    Anchor,
}

/// A file that can be found again from its anchor.
pub(crate) trait Anchored: Sized {
    /// The file and the `O_*` flags behind `descriptor`, if it is an anchor.
    fn from_anchor(descriptor: RawFd) -> Option<(Self, u32)>;
}

type Block<N> = [AtomicPtr<Description<N>>; BLOCK_DESCRIPTORS];

/// The descriptors of this process.
pub(crate) struct Table<N: 'static> {
    blocks: [AtomicPtr<Block<N>>; BLOCK_COUNT],
    free: Lock<Vec<&'static Description<N>>>,
    count: AtomicU32,
    borrowed: Lock<Vec<Borrowed<N>>>,
    borrowed_count: AtomicU32,
    /// One more than the largest descriptor ever installed.
    end: AtomicU32,
}

/// Whether a descriptor beyond the filter's width was ever ours.
static WIDE: AtomicBool = AtomicBool::new(false);

/// The locks of the pool and of the overlays, to hold them across a fork.
pub(crate) fn locks() -> [&'static RawLock; 2] {
    crate::calls::OPEN.raw_locks()
}

/// What a vfork child shares with its parent's thread and with no other.
fn this_thread() -> usize {
    core::ptr::from_ref(sys::thread::block()) as usize
}

/// Whether the filter entry of `descriptor` may be another's too.
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
    pub(crate) const fn new() -> Self {
        Self {
            blocks: [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCK_COUNT],
            free: Lock::new(Vec::new()),
            count: AtomicU32::new(0),
            borrowed: Lock::new(Vec::new()),
            borrowed_count: AtomicU32::new(0),
            end: AtomicU32::new(0),
        }
    }

    /// Its locks in the order they are taken, to hold them across a fork.
    pub(crate) const fn raw_locks(&self) -> [&RawLock; 2] {
        [self.borrowed.raw(), self.free.raw()]
    }

    /// How many descriptors are ours, a vfork child's included.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed) + self.borrowed_count.load(Ordering::Relaxed)
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
    pub(crate) fn lookup(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
        if may_borrow()
            && let Some(borrowed) = self.lookup_borrowed(descriptor)
        {
            return borrowed;
        }
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

    /// What the calling vfork child made of `descriptor`; None if nothing, or if the caller is no such child.
    #[cold]
    fn lookup_borrowed(&'static self, descriptor: RawFd) -> Option<Option<Use<'static, N>>> {
        if owns_tables() {
            return None;
        }
        let thread = this_thread();
        let found = {
            let borrowed = self.borrowed.lock();
            let entry = borrowed.iter().find(|entry| entry.thread == thread && entry.descriptor == descriptor)?;
            match &entry.meaning {
                Meaning::NotOurs => return Some(None),
                Meaning::Parents(user) => return Some(Some(user.clone())),
                Meaning::Anchor => N::from_anchor,
            }
        };
        Some(found(descriptor).map(|(node, flags)| self.describe_shared(node, flags)))
    }

    /// Sets what the calling vfork child makes of `descriptor`.
    #[cold]
    fn borrow(&'static self, descriptor: RawFd, user: Option<Use<'static, N>>) {
        let meaning = match user {
            None => Meaning::NotOurs,
            // Drops the child's own description, and with it the descriptors behind it, while the child can.
            Some(user) if user.fleeting.load(Ordering::Relaxed) => Meaning::Anchor,
            Some(user) => Meaning::Parents(user),
        };
        if !matches!(meaning, Meaning::NotOurs) {
            watch_descriptor(descriptor);
            self.end.fetch_max(descriptor as u32 + 1, Ordering::Relaxed);
        }
        let entry = Borrowed { thread: this_thread(), descriptor, meaning };
        let mut borrowed = self.borrowed.lock();
        let known = borrowed.iter_mut().find(|known| known.thread == entry.thread && known.descriptor == descriptor);
        let replaced = match known {
            Some(known) => Some(core::mem::replace(known, entry)),
            None => {
                borrowed.push(entry);
                None
            }
        };
        self.borrowed_count.store(borrowed.len() as u32, Ordering::Relaxed);
        drop(borrowed);
        drop(replaced);
    }

    /// Takes what this thread's vfork child borrowed off the list.
    fn take_borrowed(&'static self) -> Vec<Borrowed<N>> {
        let thread = this_thread();
        let mut borrowed = self.borrowed.lock();
        let (taken, kept) = core::mem::take(&mut *borrowed).into_iter().partition(|entry| entry.thread == thread);
        *borrowed = kept;
        self.borrowed_count.store(borrowed.len() as u32, Ordering::Relaxed);
        taken
    }

    /// The vfork child of this thread is gone: so is its view.
    pub(crate) fn forget_borrowed(&'static self) {
        for entry in self.take_borrowed() {
            let unused = self.slot(entry.descriptor).is_none_or(|slot| slot.load(Ordering::Relaxed).is_null());
            if unused {
                unwatch_descriptor(entry.descriptor);
            }
        }
    }

    /// The caller was forked by a vfork child: that child's view becomes the table.
    pub(crate) fn keep_borrowed(&'static self) {
        for entry in self.take_borrowed() {
            let user = match entry.meaning {
                Meaning::NotOurs => None,
                Meaning::Parents(user) => Some(user),
                Meaning::Anchor => N::from_anchor(entry.descriptor).map(|(node, flags)| self.describe_shared(node, flags)),
            };
            match user {
                Some(user) => _ = self.install(entry.descriptor, user),
                None => drop(self.remove(entry.descriptor)),
            }
        }
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
        // SAFETY: a description from the free list has no node and no user but passing ones, who look at the count only.
        unsafe { (*description.node.get()).write(node) };
        description.flags.store(flags, Ordering::Relaxed);
        description.flags_seen.store(0, Ordering::Relaxed);
        description.offset.store(0, Ordering::Relaxed);
        description.shared.store(false, Ordering::Relaxed);
        description.fleeting.store(!owns_tables(), Ordering::Relaxed);
        description.users.fetch_add(LIVE | 1, Ordering::AcqRel);
        Use { table: self, description }
    }

    /// A new description of a file whose offset is the kernel's.
    pub(crate) fn describe_shared(&'static self, node: N, flags: u32) -> Use<'static, N> {
        let user = self.describe(node, flags);
        user.shared.store(true, Ordering::Release);
        user
    }

    /// Makes `descriptor` refer to the description of `user`. False if the number is beyond the table.
    pub(crate) fn install(&'static self, descriptor: RawFd, user: Use<'static, N>) -> bool {
        if !owns_tables() {
            self.borrow(descriptor, Some(user));
            return true;
        }
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
    pub(crate) fn remove(&'static self, descriptor: RawFd) -> Option<Use<'static, N>> {
        if !owns_tables() {
            let user = self.lookup(descriptor)?;
            self.borrow(descriptor, None);
            return Some(user);
        }
        let pointer = self.slot(descriptor)?.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: descriptions are never deallocated.
        let description = unsafe { pointer.as_ref()? };
        unwatch_descriptor(descriptor);
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(Use { table: self, description })
    }

    /// The descriptors of ours within `range`, ascending, each with a use.
    pub(crate) fn within(&'static self, range: core::ops::RangeInclusive<u32>) -> impl Iterator<Item = (RawFd, Use<'static, N>)> {
        let end = (*range.end()).min(self.end.load(Ordering::Relaxed).saturating_sub(1));
        let start = if self.count() == 0 { end.saturating_add(1) } else { *range.start() };
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

    /// A node that counts its end.
    struct Node(Arc<AtomicUsize>);
    impl Anchored for Node {
        fn from_anchor(_: RawFd) -> Option<(Self, u32)> {
            None
        }
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
