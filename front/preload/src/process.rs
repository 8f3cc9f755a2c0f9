//! Which process this is, and whether the calling task owns the tables: noticing a fork, telling a
//! guest from an owner, holding the locks across a fork.
//!
//! A word in a page the kernel wipes on fork is 1 in the process that set it. In a fork child it
//! reads 0: the child adopts the tables, which are a copy of its own. A *guest* is a task for which
//! the tables do not hold, or which must not change them:
//!
//! - a child that shares the memory but not the descriptors (vfork, posix_spawn): the word is 1,
//!   but the pid is another;
//! - a thread with descriptors apart from the other threads' (unshare, close_range, clone): a word
//!   of its thread block says so.
//!
//! A copy of the memory that was made where tables may be half changed (clone with a stack of its
//! own, fork by a guest) begins anew in it ([`crate::renewal`]). Both sides of a clone that shares
//! descriptors but not memory look at each descriptor anew (`TABLES_SHARED`).
//!
//! [`crate::guest`] serves guests. Asking for the pid is a system call, so it is asked only after
//! such a child was made, which its parent's thread notes in the thread block both share.

use crate::lock::RawLock;
use crate::thread::word;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general::{__NR_getpid, __NR_madvise, __NR_mmap};
use linux_raw_sys::general::{MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use sys::raw::{check, syscall};
use units::PAGE_BYTES;

static OWN: AtomicU32 = AtomicU32::new(1);
/// The wiped word; a word that is never wiped until [`start`] has run, or where the kernel cannot
/// wipe.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const OWN).cast_mut());
/// The process the tables belong to.
static PID: AtomicU32 = AtomicU32::new(0);
/// There may be guests that run beside the owner: each call asks who makes it.
static LOOSE: AtomicBool = AtomicBool::new(false);
/// Another process, with memory of its own, has the same descriptors: each may mean something else
/// at any time.
static TABLES_SHARED: AtomicBool = AtomicBool::new(false);
/// How many children with descriptors of their own are being made: descriptions are shared from
/// their beginning meanwhile.
static SHARING: AtomicU32 = AtomicU32::new(0);

/// Sets the word up. Called by the constructor.
pub(crate) fn start() {
    PID.store(getpid(), Ordering::Relaxed);
    let protection = (PROT_READ | PROT_WRITE) as usize;
    let arguments = [sys::place::wish(PAGE_BYTES), PAGE_BYTES, protection, (MAP_PRIVATE | MAP_ANONYMOUS) as usize, usize::MAX, 0];
    // SAFETY: a new private mapping; advice on it concerns nobody else.
    let page = unsafe {
        check(syscall(__NR_mmap as usize, arguments)).and_then(|page| {
            check(syscall(__NR_madvise as usize, [page, PAGE_BYTES, MADV_WIPEONFORK as usize, 0, 0, 0])).map(|_| page)
        })
    };
    if let Ok(page) = page {
        let word = page as *mut AtomicU32;
        // SAFETY: the page is mapped for good and zeroed; the word is aligned.
        unsafe { (*word).store(1, Ordering::Relaxed) };
        WORD.store(word, Ordering::Relaxed);
    }
}

/// Brings what is cached per process up to date in a fork child. Called on every entry.
#[inline]
pub(crate) fn notice_fork() {
    // SAFETY: WORD points to a word that lives as long as the process.
    let word = unsafe { &*WORD.load(Ordering::Relaxed) };
    if word.load(Ordering::Relaxed) == 0 {
        adopt(word);
    }
}

/// A fork child: the first thread to come by takes the tables over, if they are whole. There is
/// only one thread then.
#[cold]
fn adopt(word: &AtomicU32) {
    crate::arena::forget();
    crate::counts::forget();
    word.store(1, Ordering::Relaxed);
    if lending().load(Ordering::Relaxed) != 0 {
        return crate::renewal::begin();
    }
    PID.store(getpid(), Ordering::Relaxed);
    crate::stack::relist();
    crate::calls::fetch::forget();
    LOOSE.store(false, Ordering::Relaxed);
    SHARING.store(0, Ordering::Relaxed);
}

/// From now on another process with memory of its own has this one's descriptors.
pub(crate) fn share_tables() {
    crate::filter::watch_all();
    TABLES_SHARED.store(true, Ordering::SeqCst);
    file::parked::share_descriptors(true);
}

/// Whether a descriptor may mean something else than a moment ago.
#[inline]
pub(crate) fn shares_tables() -> bool {
    TABLES_SHARED.load(Ordering::Relaxed)
}

/// In a child of fork, whose descriptors are its own again.
pub(crate) fn own_tables() {
    TABLES_SHARED.store(false, Ordering::Relaxed);
    file::parked::share_descriptors(false);
}

/// The calling thread has, or is about to have, descriptors apart from those of the other threads.
pub(crate) fn be_apart() {
    word(crate::thread::word::APART).store(1, Ordering::Relaxed);
    LOOSE.store(true, Ordering::Release);
}

/// Tasks that run beside the owner may be guests.
pub(crate) fn expect_guests() {
    LOOSE.store(true, Ordering::Release);
}

/// Says that the calling thread is about to make a child by the instruction at `instruction`: the
/// child is a guest as long as it uses this thread's block, or begins anew if it has a copy of the
/// block. When the thread itself next comes by, [`take_back`] ends that.
pub(crate) fn lend_block(instruction: usize) {
    let pretended = word(crate::thread::word::PRETENDED_MASK).load(Ordering::Relaxed);
    word(crate::thread::word::MASK_BEFORE_LENDING).store(pretended, Ordering::Relaxed);
    word(crate::thread::word::INTERRUPTED).store(0, Ordering::Relaxed);
    lending().store(instruction, Ordering::Relaxed);
}

/// Does as [`lend_block`] for a guest that makes a child, whose thread block may be lent already.
pub(crate) fn lend_block_of_guest(instruction: usize) {
    if lending().load(Ordering::Relaxed) == 0 {
        begin_sharing();
        lend_block(instruction);
    }
}

fn lending() -> &'static AtomicUsize {
    word(crate::thread::word::LENDING)
}

/// A child with descriptors of its own is about to be made: from now on every description begins
/// shared.
pub(crate) fn begin_sharing() {
    SHARING.fetch_add(1, Ordering::SeqCst);
}

/// The child was made, or could not be.
pub(crate) fn end_sharing() {
    SHARING.fetch_sub(1, Ordering::SeqCst);
}

/// Whether descriptions must be shared from their beginning.
#[inline]
pub(crate) fn is_sharing() -> bool {
    SHARING.load(Ordering::SeqCst) != 0
}

/// Whether the caller might be a guest.
#[inline]
pub(crate) fn may_be_guest() -> bool {
    lending().load(Ordering::Relaxed) != 0 || LOOSE.load(Ordering::Relaxed)
}

/// Whether any task may be a guest.
pub(crate) fn may_have_guests() -> bool {
    is_sharing() || LOOSE.load(Ordering::Relaxed) || shares_tables()
}

/// Whether the caller is a guest. To be asked if [`may_be_guest`].
#[cold]
pub(crate) fn is_guest() -> bool {
    notice_fork();
    let shares_all = || word(crate::thread::word::DESCRIPTORS_SHARED).load(Ordering::Relaxed) != 0;
    word(crate::thread::word::APART).load(Ordering::Relaxed) != 0 || !shares_all() && !has_memory()
}

/// Whether the caller may change the tables.
#[inline]
pub(crate) fn owns_tables() -> bool {
    !may_be_guest() || !is_guest()
}

/// Whether the caller's signal actions are those that this memory tells of: a child that shares the
/// memory may share them, or have its own.
pub(crate) fn owns_actions() -> bool {
    word(crate::thread::word::ACTIONS_APART).load(Ordering::Relaxed) == 0 || has_memory()
}

/// Notes for the child that the calling thread is about to make in this memory and with this
/// thread's block whether it shares descriptors: then it is no guest.
pub(crate) fn note_descriptors(shared: bool) {
    word(crate::thread::word::DESCRIPTORS_SHARED).store(usize::from(shared), Ordering::Relaxed);
}

/// Notes for the child that the calling thread is about to make in this memory whether it shares
/// signal actions.
pub(crate) fn note_actions(apart: bool) {
    word(crate::thread::word::ACTIONS_APART).store(usize::from(apart), Ordering::Relaxed);
}

/// Whether the caller is of the process whose memory this is, and not a child that shares it.
pub(crate) fn has_memory() -> bool {
    getpid() == PID.load(Ordering::Relaxed)
}

/// Called on every way in: if the calling thread had lent its block to a guest and runs again, the
/// guest is gone. It may have been killed at any instruction, so nothing that it left in the block
/// is believed. A handler of the program that runs before the guest was made ends nothing; then the
/// thread's next child does.
#[inline]
pub(crate) fn take_back() {
    if lending().load(Ordering::Relaxed) != 0 && !was_interrupted() && has_memory() {
        // A signal that arrives while the block is cleared would be deferred by words of the block,
        // and forgotten with them. One that has arrived before this is noted, and then the block
        // stays as it is.
        crate::signals::undisturbed(|| {
            if !was_interrupted() {
                clear_block();
            }
        });
    }
}

fn was_interrupted() -> bool {
    word(crate::thread::word::INTERRUPTED).load(Ordering::Relaxed) != 0
}

/// A signal has arrived at `address`, which lies in the library or a trampoline if `is_own`. If
/// that is before a guest is made, the block stays lent while the handler runs; if it is after one
/// was killed here, what it left of its depth, and of signals that had just arrived, is not this
/// thread's.
pub(crate) fn interrupted(address: usize, is_own: bool) {
    use crate::thread::word as index;
    let instruction = lending().load(Ordering::Relaxed);
    if instruction == 0 {
        return;
    }
    if is_own || address == instruction {
        word(crate::thread::word::INTERRUPTED).store(1, Ordering::Relaxed);
        return;
    }
    // The signal entry has counted this signal.
    let is_left = crate::thread::inside().load(Ordering::Relaxed) != 0 || word(index::ARRIVING).load(Ordering::Relaxed) > 1;
    if is_left && has_memory() {
        crate::thread::inside().store(0, Ordering::Relaxed);
        word(index::ARRIVING).store(1, Ordering::Relaxed);
        word(index::SIGNAL_WAITS).store(0, Ordering::Relaxed);
    }
}

#[cold]
fn clear_block() {
    use crate::thread::word as index;
    crate::thread::inside().store(0, Ordering::Relaxed);
    sys::thread::block().fault_resume.store(0, Ordering::Relaxed);
    for cleared in [index::DEFERRED, index::STEPPING, index::ARENA, index::ARRIVING, index::SIGNAL_WAITS] {
        word(cleared).store(0, Ordering::Relaxed);
    }
    let pretended = word(index::MASK_BEFORE_LENDING).load(Ordering::Relaxed);
    word(index::PRETENDED_MASK).store(pretended, Ordering::Relaxed);
    lending().store(0, Ordering::Relaxed);
    end_sharing();
}

/// Makes the calling process, which is a copy with one thread, the owner of its memory, whatever
/// its locks and marks say.
pub(crate) fn own_copy() {
    // SAFETY: WORD points to a word that lives as long as the process.
    unsafe { &*WORD.load(Ordering::Relaxed) }.store(1, Ordering::Relaxed);
    PID.store(getpid(), Ordering::Relaxed);
    crate::calls::fetch::forget();
    LOOSE.store(false, Ordering::Relaxed);
    SHARING.store(0, Ordering::Relaxed);
    lending().store(0, Ordering::Relaxed);
    word(crate::thread::word::APART).store(0, Ordering::Relaxed);
    crate::counts::forget();
    locks().for_each(RawLock::reset);
}

/// The pid from the kernel.
pub(crate) fn getpid() -> u32 {
    // SAFETY: getpid() has no preconditions.
    unsafe { syscall(__NR_getpid as usize, [0; 6]) as u32 }
}

/// Every lock of the library, in the order they are taken.
fn locks() -> impl DoubleEndedIterator<Item = &'static RawLock> {
    let locks = [
        Some(crate::calls::aio::lock()),
        Some(crate::calls::other_end::lock()),
        Some(crate::stack::lock()),
        Some(crate::patch::objects::lock()),
        Some(crate::array::held_lock()),
        Some(crate::calls::directory::lock()),
        Some(crate::calls::OPEN.pool_lock()),
        Some(crate::signals::lock()),
        heap_lock(),
    ];
    locks.into_iter().flatten()
}

#[cfg(not(test))]
fn heap_lock() -> Option<&'static RawLock> {
    Some(crate::runtime::heap_lock())
}

#[cfg(test)]
fn heap_lock() -> Option<&'static RawLock> {
    None
}

/// Runs `fork` with every lock held, so that the child finds each of them free and what they guard
/// whole.
pub(crate) fn with_locks<R>(fork: impl FnOnce() -> R) -> R {
    locks().for_each(RawLock::acquire);
    let result = fork();
    locks().rev().for_each(RawLock::release);
    result
}
