//! Stands in for the entry stubs when the modules above them are tested as an ordinary program.

/// Addresses of nothing.
pub(crate) fn libc_entry() -> usize {
    0
}
/// See [`libc_entry`].
pub(crate) fn foreign_entry() -> usize {
    0
}

use core::sync::atomic::AtomicU8;

pub(crate) const WAITS: usize = 1;
pub(crate) const PRIVATE_STACK_BYTES: usize = 256 << 10;
pub(crate) static WANTED: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];
pub(crate) static OURS: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

macro_rules! absent {
    ($($name:ident),*) => { $(
        /// See [`libc_entry`].
        pub(crate) fn $name() -> usize {
            0
        }
    )* };
}
absent!(unblocked, run, ran, signal_entry, signal_settled, signal_unmasked, signal_end, signal_return);
absent!(handler_end, handler_ended);

/// See [`libc_entry`].
pub(crate) fn place_stacks() {}

/// There is no frame.
pub(crate) unsafe fn frame<'a>(_: usize) -> (&'a mut crate::call::Call, u32) {
    unreachable!("no stub runs in a test program")
}

/// Nothing is carried.
pub(crate) const fn carried(_: &crate::call::Call) -> usize {
    0
}
