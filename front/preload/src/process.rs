//! Which process this is: noticing a fork, telling a vfork child from its parent, holding the locks across a fork.
//!
//! A word in a page the kernel wipes on fork is 1 in the process that set it. In a fork child it reads 0. A child that shares
//! memory (vfork, posix_spawn) reads 1 but has another pid: it has descriptors of its own and runs on its parent's tables, so it
//! must not change them: what it opens and closes is kept beside them ([`crate::descriptors`]). Asking for the pid is a system call, so it is
//! asked only after such a child was made, which its parent's thread notes in the thread block both share.

use crate::lock::RawLock;
use crate::thread::word;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general::{__NR_getpid, __NR_kill, __NR_madvise, __NR_mmap, __NR_rt_sigaction, __NR_rt_sigprocmask};
use linux_raw_sys::general::{MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use sys::raw::{check, syscall};
use units::PAGE_BYTES;

static OWN: AtomicU32 = AtomicU32::new(1);
/// The wiped word; a word that is never wiped until [`start`] has run, or where the kernel cannot wipe.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const OWN).cast_mut());
/// The process the tables belong to.
static PID: AtomicU32 = AtomicU32::new(0);
/// A child that shares memory and runs beside its parent was made: only the pid tells them apart.
static LOOSE: AtomicBool = AtomicBool::new(false);

/// Sets the word up. Called by the constructor.
pub(crate) fn start() {
    PID.store(getpid(), Ordering::Relaxed);
    let protection = (PROT_READ | PROT_WRITE) as usize;
    let arguments = [0, PAGE_BYTES, protection, (MAP_PRIVATE | MAP_ANONYMOUS) as usize, usize::MAX, 0];
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

/// A fork child: the first thread to come by takes the tables over. There is only one thread then.
#[cold]
fn adopt(word: &AtomicU32) {
    PID.store(getpid(), Ordering::Relaxed);
    crate::stack::relist();
    word.store(1, Ordering::Relaxed);
    LOOSE.store(false, Ordering::Relaxed);
    if lending().swap(0, Ordering::Relaxed) != 0 {
        // Forked by a child that had borrowed our parent's tables: its view is ours now.
        crate::calls::OPEN.keep_borrowed();
    }
}

/// Says that the calling thread is about to make a child that shares its memory. `waits`: the thread stands still until the
/// child has a program of its own (vfork).
pub(crate) fn lend(waits: bool) {
    if waits {
        lending().store(1, Ordering::Relaxed);
    } else {
        LOOSE.store(true, Ordering::Relaxed);
    }
}

fn lending() -> &'static AtomicUsize {
    word(crate::thread::word::LENDING)
}

/// Whether the caller might be a child that shares memory with the tables' owner.
#[inline]
pub(crate) fn may_borrow() -> bool {
    lending().load(Ordering::Relaxed) != 0 || LOOSE.load(Ordering::Relaxed)
}

/// Whether the caller may change the tables: it is not a child that merely shares the memory.
#[inline]
pub(crate) fn owns_tables() -> bool {
    !may_borrow() || is_owner()
}

#[cold]
fn is_owner() -> bool {
    notice_fork();
    let owner = getpid() == PID.load(Ordering::Relaxed);
    if owner && lending().swap(0, Ordering::Relaxed) != 0 {
        crate::calls::OPEN.forget_borrowed();
    }
    owner
}

/// The pid from the kernel.
pub(crate) fn getpid() -> u32 {
    // SAFETY: getpid() has no preconditions.
    unsafe { syscall(__NR_getpid as usize, [0; 6]) as u32 }
}

/// Dies by SIGABRT, whatever the program does with it.
pub(crate) fn abort() -> ! {
    let default = [0usize; 4];
    let unblocked = 0u64;
    loop {
        // SAFETY: the action and the mask outlive the calls; afterwards the process is gone.
        unsafe {
            syscall(__NR_rt_sigaction as usize, [6, default.as_ptr() as usize, 0, 8, 0, 0]);
            syscall(__NR_rt_sigprocmask as usize, [2, &raw const unblocked as usize, 0, 8, 0, 0]);
            syscall(__NR_kill as usize, [getpid() as usize, 6, 0, 0, 0, 0]);
        }
    }
}

/// Every lock of the library, in the order they are taken.
fn locks() -> impl DoubleEndedIterator<Item = &'static RawLock> {
    let [overlays, pool] = crate::descriptors::locks();
    let locks = [
        Some(crate::stack::lock()),
        Some(crate::patch::objects::lock()),
        Some(overlays),
        Some(pool),
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

/// Runs `fork` with every lock held, so that the child finds each of them free and what they guard whole.
pub(crate) fn with_locks<R>(fork: impl FnOnce() -> R) -> R {
    locks().for_each(RawLock::acquire);
    let result = fork();
    locks().rev().for_each(RawLock::release);
    result
}
