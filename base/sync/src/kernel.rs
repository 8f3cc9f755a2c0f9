//! Atomics and waiting: the processor's and the kernel's, or those of loom, which runs every
//! interleaving of a few threads (`cargo x loom`).

#[cfg(not(all(test, loom)))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, Ordering, fence},
};
#[cfg(all(test, loom))]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, Ordering, fence},
};

/// Sleeps while `word` is `value`, at most so long. Returns whether that time passed.
#[cfg(not(all(test, loom)))]
pub(crate) fn sleep(word: &AtomicU32, value: u32, at_most_ns: i64) -> bool {
    use sys::rustix::{thread::futex, time::Timespec};
    let timeout = Timespec { tv_sec: 0, tv_nsec: at_most_ns };
    futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) == Err(sys::OsError::TIMEDOUT)
}

/// Wakes one that sleeps.
#[cfg(not(all(test, loom)))]
pub(crate) fn wake(word: &AtomicU32) {
    use sys::rustix::thread::futex;
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Lets others run. Any wait may have ended by its time.
#[cfg(all(test, loom))]
pub(crate) fn sleep(_: &AtomicU32, _: u32, _: i64) -> bool {
    loom::thread::yield_now();
    true
}

/// Nobody sleeps.
#[cfg(all(test, loom))]
pub(crate) fn wake(_: &AtomicU32) {}
