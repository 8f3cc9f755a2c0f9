//! The table of the descriptors that are anchors of array files ("ours"): it gives a descriptor's
//! open file description, and a look-up takes no lock.
//!
//! A description is what POSIX calls an open file description: offset and status flags, shared by
//! every descriptor made from it by dup. A description counts its users: each descriptor, and each
//! call that is under way on the description.
//!
//! Invariants:
//! - Descriptions live in a pool whose memory is never freed and never holds anything else. So a
//!   pointer that was read just before its descriptor was closed is harmless: the reader raises the
//!   count, and then looks whether the table still holds the pointer.
//! - A description is destroyed by whoever takes its `LIVE` bit away. That needs a count of zero,
//!   so it happens exactly once.
//! - While another process has our descriptors (`process::shares_tables`) the table is not used:
//!   each look-up asks the kernel.
//! - A number that was ours and was closed stays in the stub's filter until a call finds that it
//!   means something else ([`Table::presence`]).
//! - A task that shares our memory but not our descriptors (a guest: [`crate::guest`]) never looks
//!   at the table and never changes it.
//! - While a child with descriptors of its own is being made (`process::is_sharing`), every
//!   description is shared from its installation on, and a number that is taken out of the table
//!   waits until nobody moves the kernel's offset by it ([`Anchored::share`]).
//! - While the kernel closes a number or gives it another meaning, its entry is *claimed*
//!   ([`Claim`]): every look-up waits until the claim is settled, and the stub's filter lets calls
//!   on the number through. So no call on the number runs on an anchor as if that were no file of
//!   ours. The entry of a number that the kernel has assigned by itself is installed afterwards.
//! - Who holds a claim waits for nobody but users of a position, who wait for no claim. To claim
//!   two numbers, a thread claims one and tries the other ([`Table::claim_two`]).
//! - While a thread is about to execute a program that must not inherit an anchor
//!   ([`Table::begin_exec`]), whoever makes a number ours marks it close-on-exec and waits. That
//!   thread may hold claims on many numbers until the exec, and claims them in ascending order, so
//!   two such threads do not wait for each other.

mod executing;

pub(crate) use executing::descriptor_flags;

use crate::filter::{self, is_watched_as_ours, watch_claimed, watch_ours};
use crate::lock::{Lock, RawLock, Waiters};
use crate::process::{is_guest, is_sharing, may_be_guest, may_have_guests, shares_tables};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use heap::boxed::Box;
use heap::vec::Vec;
use linux_raw_sys::general::F_GETFD;
use sys::{RawFd, high_fd};

const BLOCK_COUNT: usize = 1024;
const BLOCK_DESCRIPTORS: usize = 1024;
/// How many descriptions the pool grows by.
const POOL_STEP: usize = 32;
/// The bit of `users` that is set while a description has a node.
const LIVE: u32 = 1 << 31;
/// The first descriptor that shares its entry of the entry stub's filter with a smaller one.
const FILTER_DESCRIPTORS: RawFd = 1 << 16;
/// The bit of a table entry that says that it is claimed. The rest of the entry is what the number
/// meant before.
pub(crate) const CLAIMED: usize = 1;

const _: () = assert!(align_of::<Description<()>>() > CLAIMED);

/// An open file description of a file of type `N`.
pub(crate) struct Description<N: 'static> {
    /// How many use the description, and [`LIVE`].
    users: AtomicU32,
    /// `O_*` status flags and access mode.
    pub(crate) flags: AtomicU32,
    /// The file offset while the description is private to this process.
    pub(crate) offset: AtomicU64,
    /// Whether other processes may hold the description. Then the kernel's offset of the anchor
    /// counts, and not `offset`.
    pub(crate) shared: AtomicBool,
    /// Held while the offset is used and moved.
    pub(crate) position: RawLock,
    /// The file's count of changes of status flags at the time when `flags` were last read from the
    /// kernel. Used while `shared`.
    pub(crate) flags_seen: AtomicU32,
    /// The file. Written before the description is live, dropped by [`Table::destroy`].
    node: UnsafeCell<MaybeUninit<N>>,
}

// SAFETY: the node is written before the description is published and dropped after its last user
// left; the rest is atomic.
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

    /// Gives the offset of the description behind `descriptor` to the kernel: another process will
    /// have the description too.
    fn share(descriptor: RawFd, user: &Use<'static, Self>);

    /// Sees to it that the file can be found again from a new anchor whose description is kept
    /// nowhere ([`shares_tables`]).
    fn leave(&self);
}

/// The error that another thread has the claim.
struct Claimed;

type Block<N> = [AtomicPtr<Description<N>>; BLOCK_DESCRIPTORS];

/// The descriptors of this process.
pub(crate) struct Table<N: 'static> {
    blocks: [AtomicPtr<Block<N>>; BLOCK_COUNT],
    free: Lock<Vec<&'static Description<N>>>,
    count: AtomicU32,
    /// Whether the kernel is asked about a descriptor that is not in the table, since it may be an
    /// anchor ([`Table::begin_anew`]).
    discovers: AtomicBool,
    /// One more than the largest descriptor ever installed.
    end: AtomicU32,
    /// Threads that wait for a claim to be settled.
    waiters: Waiters,
    /// How many claims there are.
    claims: AtomicU32,
    /// How many threads fork: nobody claims a number meanwhile.
    forks: AtomicU32,
    /// How many threads are about to execute a program that must not inherit an anchor. Each of
    /// them counts as a claim, too.
    executing: AtomicU32,
    /// How many threads read or set whether an exec closes a number of ours
    /// ([`Table::apart_from_execs`]).
    flag_calls: AtomicU32,
    /// How often a number that was not ours was given to a file of ours (open, dup2).
    made_ours: AtomicU32,
}

/// When a call looked at the table for the first time.
#[derive(Clone, Copy)]
pub(crate) struct Moment(u32);

/// What has become of a number since a call looked it up, and found no file of ours or nothing to do.
pub(crate) enum Presence {
    Unchanged,
    /// It may be ours by now: the call is to look again.
    Changed,
    /// It was ours, and is closed.
    Closed,
}

fn is_claimed<N>(entry: *mut Description<N>) -> bool {
    entry.addr() & CLAIMED != 0
}

/// What an entry means at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    Same,
    Other,
    /// Somebody is about to change it.
    Claimed,
}

/// The right to change what a number means. While it lasts the number is this thread's: whoever
/// looks it up waits. A claim that is dropped leaves the entry as it was.
pub(crate) struct Claim<N: Anchored + 'static> {
    table: &'static Table<N>,
    descriptor: RawFd,
    slot: &'static AtomicPtr<Description<N>>,
    /// What the number means, with the entry's use of it; null if it is none of ours.
    meant: *mut Description<N>,
    /// Whether calls on the number came to the library before.
    was_watched: bool,
}

impl<N: Anchored + 'static> Claim<N> {
    fn new(
        table: &'static Table<N>,
        descriptor: RawFd,
        slot: &'static AtomicPtr<Description<N>>,
        meant: *mut Description<N>,
    ) -> Self {
        let was_watched = watch_claimed(descriptor);
        Self { table, descriptor, slot, meant, was_watched }
    }

    /// The number.
    pub(crate) const fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Tells whether the number means a description.
    pub(crate) fn means(&self, description: &Description<N>) -> bool {
        core::ptr::eq(self.meant, description)
    }

    /// A use of the description that the number means. None if the number is none of ours.
    pub(crate) fn user(&self) -> Option<Use<'static, N>> {
        // SAFETY: descriptions are never deallocated, and the entry's use keeps this one live.
        let description = unsafe { self.meant.as_ref()? };
        description.users.fetch_add(1, Ordering::AcqRel);
        Some(Use { table: self.table, description })
    }

    /// Waits until nobody moves the kernel's offset by way of the number: it is about to mean
    /// something else.
    pub(crate) fn end_moves(&self) {
        // SAFETY: descriptions are never deallocated.
        if let Some(description) = unsafe { self.meant.as_ref() }
            && (description.shared.load(Ordering::SeqCst) || is_sharing())
        {
            // Whoever locks the position from here on finds the claim.
            description.position.acquire();
            description.position.release();
        }
    }

    /// Ends the claim after the kernel has given the number its new meaning, or closed it. Returns
    /// what the number meant before. If that is the last use, its drop ends the description, so the
    /// caller holds no other claim when it drops the use.
    pub(crate) fn settle(self, meaning: Option<Use<'static, N>>) -> Option<Use<'static, N>> {
        let claim = core::mem::ManuallyDrop::new(self);
        let pointer = meaning.as_ref().map_or(core::ptr::null_mut(), |user| core::ptr::from_ref(user.description).cast_mut());
        let is_ours = meaning.is_some();
        // The table holds the use from here on.
        core::mem::forget(meaning);
        if is_ours {
            claim.table.entered(claim.descriptor);
        }
        // Where the number is closed now the filter stays open (`Table::presence`).
        match (claim.meant.is_null(), is_ours) {
            (true, true) => {
                claim.table.count.fetch_add(1, Ordering::Relaxed);
                claim.table.made_ours.fetch_add(1, Ordering::SeqCst);
            }
            (false, false) => {
                claim.table.count.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        claim.table.release_slot(claim.slot, pointer);
        // SAFETY: descriptions are never deallocated.
        unsafe { claim.meant.as_ref() }.map(|description| Use { table: claim.table, description })
    }
}

impl<N: Anchored + 'static> Drop for Claim<N> {
    fn drop(&mut self) {
        if self.meant.is_null() && !self.was_watched {
            unwatch_descriptor(self.descriptor);
        }
        self.table.release_slot(self.slot, self.meant);
    }
}

/// Whether a descriptor from [`FILTER_DESCRIPTORS`] on was ever ours.
static WIDE: AtomicBool = AtomicBool::new(false);

/// Closes the filter of the entry stub for a descriptor again, unless another descriptor may share
/// its entry.
pub(crate) fn unwatch_descriptor(descriptor: RawFd) {
    // The library may have a descriptor of its own at that number, and a guest one of the array.
    let may_be_ours = descriptor as u32 >= high_fd::base() || high_fd::is_raised(descriptor);
    if !may_be_ours && !shares_filter(descriptor) && !may_have_guests() {
        filter::unwatch_descriptor(descriptor);
        // The number was closed: another thread may have been given it for the library meanwhile.
        fence(Ordering::SeqCst);
        if high_fd::is_raised(descriptor) {
            filter::watch_descriptor(descriptor);
        }
    }
}

/// Whether another descriptor may have the same entry of the stub's filter as `descriptor`.
fn shares_filter(descriptor: RawFd) -> bool {
    descriptor >= FILTER_DESCRIPTORS || WIDE.load(Ordering::Relaxed)
}

/// Whether a number is open in the kernel.
fn is_open(descriptor: RawFd) -> bool {
    descriptor_flags(descriptor, F_GETFD, 0) >= 0
}

impl<N: 'static> Table<N> {
    /// The lock of the pool of descriptions. The caller holds it across a fork.
    pub(crate) const fn pool_lock(&self) -> &RawLock {
        self.free.raw()
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
        // SAFETY: the LIVE bit was taken here, so no user is left and none can come: the node is
        // ours to drop, once.
        unsafe { (*description.node.get()).assume_init_drop() };
        // SAFETY: descriptions are leaked, so the reference is good for ever.
        self.free.lock().push(unsafe { &*core::ptr::from_ref(description) });
    }
}

impl<N: Anchored + 'static> Table<N> {
    /// Where the addresses of the blocks lie in a table.
    pub(crate) const BLOCKS: usize = core::mem::offset_of!(Self, blocks);

    /// Which block a descriptor is in, and which entry of it. None if the table has no place for
    /// it.
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
            waiters: Waiters::new(),
            claims: AtomicU32::new(0),
            forks: AtomicU32::new(0),
            executing: AtomicU32::new(0),
            flag_calls: AtomicU32::new(0),
            made_ours: AtomicU32::new(0),
        }
    }

    /// Tells whether the process has, or has had, a descriptor of the array, be it one that is not
    /// in the table yet.
    pub(crate) fn ever_used(&self) -> bool {
        self.end.load(Ordering::Relaxed) != 0 || self.discovers()
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
                // SAFETY: another thread has installed its block first; nobody else has seen this
                // block.
                drop(unsafe { Box::from_raw(block) });
            }
        }
        self.slot(descriptor)
    }

    /// A use of the description behind `descriptor`; None if the descriptor is not ours, and always
    /// None in a guest.
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
            if is_claimed(pointer) {
                self.wait_for(slot);
                continue;
            }
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

    /// Waits until the claim of an entry is settled.
    #[cold]
    fn wait_for(&self, slot: &AtomicPtr<Description<N>>) {
        self.waiters.wait_while(|| is_claimed(slot.load(Ordering::SeqCst)));
    }

    /// Waits until no claim of `descriptor` is left.
    pub(crate) fn wait_for_claim(&self, descriptor: RawFd) {
        if let Some(slot) = self.slot(descriptor) {
            self.wait_for(slot);
        }
    }

    /// Ends a claim.
    fn release_slot(&self, slot: &AtomicPtr<Description<N>>, pointer: *mut Description<N>) {
        slot.store(pointer, Ordering::SeqCst);
        self.end_claiming();
    }

    /// Counts a claim that is about to be made. Waits first while a thread forks.
    fn begin_claiming(&self) {
        self.claims.fetch_add(1, Ordering::SeqCst);
        while self.forks.load(Ordering::SeqCst) != 0 {
            self.end_claiming();
            self.waiters.wait_while(|| self.forks.load(Ordering::SeqCst) != 0);
            self.claims.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn end_claiming(&self) {
        self.claims.fetch_sub(1, Ordering::SeqCst);
        self.waiters.wake();
    }

    /// What `descriptor` means, compared with the description of `user`.
    pub(crate) fn meaning(&self, descriptor: RawFd, user: &Description<N>) -> Meaning {
        match self.slot(descriptor).map(|slot| slot.load(Ordering::SeqCst)) {
            Some(entry) if core::ptr::eq(entry, user) => Meaning::Same,
            Some(entry) if is_claimed(entry) => Meaning::Claimed,
            _ => Meaning::Other,
        }
    }

    /// Returns the moment that [`Table::presence`] is to be told later.
    #[inline]
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.made_ours.load(Ordering::SeqCst))
    }

    /// What has become of a number since `moment`. If it was ours and means something else now,
    /// calls on it do not come to the library any more.
    pub(crate) fn presence(&'static self, descriptor: RawFd, moment: Moment) -> Presence {
        if shares_tables() {
            return Presence::Unchanged;
        }
        let Some(slot) = self.slot(descriptor) else { return Presence::Unchanged };
        let entry = slot.load(Ordering::SeqCst);
        if !entry.is_null() {
            let is_old = self.made_ours.load(Ordering::SeqCst) == moment.0 && !is_claimed(entry);
            return if is_old { Presence::Unchanged } else { Presence::Changed };
        }
        if !is_watched_as_ours(descriptor) {
            return Presence::Unchanged;
        }
        let Ok(claim) = self.try_claim(descriptor, slot) else { return Presence::Changed };
        if !claim.meant.is_null() {
            return Presence::Changed;
        }
        if is_open(descriptor) {
            unwatch_descriptor(descriptor);
            Presence::Unchanged
        } else {
            Presence::Closed
        }
    }

    /// Claims a descriptor of ours. None if it is not ours, and where the table is not used: in a
    /// guest, and while another process has our descriptors.
    pub(crate) fn claim(&'static self, descriptor: RawFd) -> Option<Claim<N>> {
        if shares_tables() || may_be_guest() && is_guest() {
            return None;
        }
        let slot = self.slot(descriptor)?;
        while !slot.load(Ordering::Acquire).is_null() {
            match self.try_claim(descriptor, slot) {
                Ok(claim) => return Some(claim).filter(|claim| !claim.meant.is_null()),
                Err(Claimed) => self.wait_for(slot),
            }
        }
        None
    }

    /// Claims `descriptor` if it still means the description of `user`. None also where the table
    /// is not used.
    pub(crate) fn claim_of(&'static self, descriptor: RawFd, user: &Description<N>) -> Option<Claim<N>> {
        self.claim(descriptor).filter(|claim| core::ptr::eq(claim.meant, user))
    }

    /// Claims `to`, whatever it means, and `from` if that is ours. None if there is no place for
    /// `to`. To be called where the table is used.
    pub(crate) fn claim_two(&'static self, from: RawFd, to: RawFd) -> Option<(Option<Claim<N>>, Claim<N>)> {
        let target = self.slot_or_new(to)?;
        loop {
            let Ok(claimed) = self.try_claim(to, target) else {
                self.wait_for(target);
                continue;
            };
            let Some(source) = self.slot(from) else { return Some((None, claimed)) };
            // This thread has a claim, for which a thread that forks waits already.
            self.claims.fetch_add(1, Ordering::SeqCst);
            match self.try_slot(from, source) {
                Ok(claim) => return Some((Some(claim).filter(|claim| !claim.meant.is_null()), claimed)),
                // The thread that has claimed `from` may wait for the claim on `to`, so this thread
                // gives that claim back.
                Err(Claimed) => drop(claimed),
            }
            self.wait_for(source);
        }
    }

    fn try_claim(&'static self, descriptor: RawFd, slot: &'static AtomicPtr<Description<N>>) -> Result<Claim<N>, Claimed> {
        self.begin_claiming();
        self.try_slot(descriptor, slot)
    }

    /// Claims an entry. The caller has counted the claim.
    fn try_slot(&'static self, descriptor: RawFd, slot: &'static AtomicPtr<Description<N>>) -> Result<Claim<N>, Claimed> {
        let meant = slot.load(Ordering::Relaxed);
        if is_claimed(meant) {
            self.end_claiming();
            return Err(Claimed);
        }
        let marked = meant.map_addr(|address| address | CLAIMED);
        match slot.compare_exchange(meant, marked, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => Ok(Claim::new(self, descriptor, slot, meant)),
            // Whoever has changed the entry has ended a claim or will.
            Err(_) => {
                self.end_claiming();
                Err(Claimed)
            }
        }
    }

    /// Empties the table without closing anything. From now on the table finds out what a
    /// descriptor means when it is first looked up. This is for a process with one thread that does
    /// not know its descriptors ([`crate::deputy`]): the table that it has copied describes another
    /// process.
    pub(crate) fn begin_anew(&'static self) {
        self.blocks.iter().for_each(|block| block.store(core::ptr::null_mut(), Ordering::Relaxed));
        self.free.raw().reset();
        core::mem::forget(core::mem::take(&mut *self.free.lock()));
        self.count.store(0, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
        self.waiters.reset();
        self.claims.store(0, Ordering::Relaxed);
        self.forks.store(0, Ordering::Relaxed);
        self.executing.store(0, Ordering::Relaxed);
        self.flag_calls.store(0, Ordering::Relaxed);
        self.discovers.store(true, Ordering::Relaxed);
    }

    /// Tells whether the process may have descriptors of the array that are not in the table yet.
    /// After [`Table::begin_anew`] the table gets each of them when the program first uses it.
    pub(crate) fn discovers(&self) -> bool {
        self.discovers.load(Ordering::Relaxed)
    }

    /// Drops the uses and releases the positions that other threads of the parent held, since these
    /// threads do not exist in a child of fork. No number is claimed ([`Table::around_fork`]). The
    /// child's only thread calls this.
    pub(crate) fn drop_uses_of_others(&'static self) {
        self.waiters.reset();
        self.claims.store(0, Ordering::Relaxed);
        self.forks.store(0, Ordering::Relaxed);
        self.executing.store(0, Ordering::Relaxed);
        self.flag_calls.store(0, Ordering::Relaxed);
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

    /// Runs `fork` while no number is claimed. The kernel copies descriptors and memory one after
    /// the other: what another thread changed between the two, the child's table and its
    /// descriptors would tell differently. The caller holds no lock.
    pub(crate) fn around_fork<R>(&'static self, fork: impl FnOnce() -> R) -> R {
        self.forks.fetch_add(1, Ordering::SeqCst);
        self.waiters.wait_while(|| self.claims.load(Ordering::SeqCst) != 0);
        let result = fork();
        self.forks.fetch_sub(1, Ordering::SeqCst);
        self.waiters.wake();
        result
    }

    /// In a child of fork: takes out of the table what another thread of the parent opened after
    /// the kernel had copied the descriptors.
    pub(crate) fn forget_closed(&'static self) {
        for (descriptor, _) in self.all() {
            if !is_open(descriptor)
                && let Some(claim) = self.claim(descriptor)
            {
                drop(claim.settle(None));
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
        // SAFETY: a description from the free list has no node. It may have users for a moment, but
        // only from `find`, which looks at nothing but the count.
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

    /// Makes `descriptor` refer to the description of `user`. False if the number is beyond the
    /// table.
    pub(crate) fn install(&'static self, descriptor: RawFd, user: Use<'static, N>) -> bool {
        if shares_tables() {
            user.node().leave();
            return true;
        }
        let Some(slot) = self.slot_or_new(descriptor) else { return false };
        let pointer = core::ptr::from_ref(user.description).cast_mut();
        // The table holds the use from here on.
        core::mem::forget(user);
        // The number may have been closed a moment ago, by a thread that is about to say so.
        let previous = loop {
            let entry = slot.load(Ordering::Relaxed);
            if entry.is_null() {
                // The count rises before the entry can be seen. A thread that found no entry here
                // notices by it that there is one now ([`Table::presence`]).
                self.made_ours.fetch_add(1, Ordering::SeqCst);
            }
            if is_claimed(entry) {
                self.wait_for(slot);
            } else if slot.compare_exchange(entry, pointer, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                break entry;
            }
        };
        self.entered(descriptor);
        // SAFETY: descriptions are never deallocated.
        match unsafe { previous.as_ref() } {
            Some(previous) => self.release(previous),
            None => _ = self.count.fetch_add(1, Ordering::Relaxed),
        }
        self.share_if_asked(descriptor);
        true
    }

    /// Notes that `descriptor` is ours, or is about to be: calls on it come to the library.
    fn entered(&self, descriptor: RawFd) {
        if descriptor >= FILTER_DESCRIPTORS {
            WIDE.store(true, Ordering::Relaxed);
        }
        watch_ours(descriptor);
        self.end.fetch_max(descriptor as u32 + 1, Ordering::Relaxed);
    }

    /// Shares the description of `descriptor`, whose entry the caller has just made, if another
    /// thread is sharing all descriptions. Either that thread has seen the entry, or `is_sharing` is
    /// true here, since the thread says so before it looks at the table. The caller holds no claim.
    pub(crate) fn share_if_asked(&'static self, descriptor: RawFd) {
        if is_sharing() {
            self.wait_for_execs(descriptor);
            if let Some(user) = self.find(descriptor) {
                N::share(descriptor, &user);
            }
        }
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

    fn close(table: &'static Table<Node>, descriptor: RawFd) -> Option<Use<'static, Node>> {
        table.claim(descriptor)?.settle(None)
    }

    #[test]
    fn a_number_that_is_being_changed_is_waited_for() {
        let (table, ended) = (table(), Arc::new(AtomicUsize::new(0)));
        table.install(5, table.describe(Node(ended.clone()), 1));
        let claim = table.claim(5).unwrap();
        assert_eq!(table.meaning(5, &claim.user().unwrap()), Meaning::Claimed);
        let waiting = std::thread::spawn(|| table.lookup(5).map(|user| user.flags.load(Ordering::Relaxed)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(claim.settle(Some(table.describe(Node(ended.clone()), 2))));
        assert_eq!((waiting.join().unwrap(), ended.load(Ordering::Relaxed), table.count()), (Some(2), 1, 1));
        // Claims that are dropped leave their entries as they were.
        drop(table.claim_two(5, 6).unwrap());
        assert!(table.lookup(6).is_none() && table.lookup(5).is_some());
        assert_eq!(table.count(), 1);
    }

    #[test]
    fn two_threads_that_claim_the_same_two_numbers_both_go_on() {
        let (table, ended) = (table(), Arc::new(AtomicUsize::new(0)));
        assert!([5, 6].iter().all(|&number| table.install(number, table.describe(Node(ended.clone()), 0))));
        let exchange = move |from, to| {
            for _ in 0..20_000 {
                let (source, target) = table.claim_two(from, to).unwrap();
                let user = source.as_ref().and_then(Claim::user);
                let replaced = target.settle(user);
                drop(source);
                drop(replaced);
            }
        };
        let other = std::thread::spawn(move || exchange(6, 5));
        exchange(5, 6);
        other.join().unwrap();
        assert_eq!((ended.load(Ordering::Relaxed), table.count()), (1, 2));
    }

    #[test]
    fn a_description_ends_with_its_last_descriptor_and_use() {
        let (table, ended) = (table(), Arc::new(AtomicUsize::new(0)));
        let first = table.describe(Node(ended.clone()), 2);
        assert!(table.install(7, first));
        assert!(table.install(1_000_000, table.lookup(7).unwrap()));
        assert_eq!(table.all().map(|entry| entry.0).collect::<Vec<_>>(), [7, 1_000_000]);
        drop(close(table, 7));
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        let user = table.lookup(1_000_000).unwrap();
        drop(close(table, 1_000_000));
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
            drop(close(table, 5));
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(ended.load(Ordering::Relaxed), ROUNDS);
    }
}
