//! A process that is parted from the array: its segment was cut short, or it is a child in another
//! PID namespace. It sees an array all of whose members are out.

use super::attach::{AttachSlot, slot_of};
use super::{Myself, NO_PID, Recovery, Runtime, Segment, showing};
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use sync::OwnerId;
use sys::BorrowedFd;
use sys::rustix::fs;
use sys::rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use sys::rustix::process::{Signal, getpid, kill_process};

/// What no PID namespace has for its number.
const NO_NAMESPACE: u64 = 1;

impl Runtime {
    /// Tells whether this process, a child of the one that attached, is in another PID namespace
    /// (pid_namespaces(7)): it cannot tell which of the attached processes live, nor they whether
    /// it does.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        let (own, namespace) = (self.segment().pid_namespace.load(Ordering::Relaxed), pid_namespace());
        own != 0 && namespace != 0 && own != namespace
    }

    /// Parts this process, a child that has just been forked, from the array: from now on the
    /// process sees an array all of whose members are out, and changes nothing that others see.
    pub fn stand_aside(&self) {
        let (start, bytes) = (self.segment.as_ptr().cast(), size_of::<Segment>());
        // SAFETY: the place is this mapping's own; any bytes, zeros too, are a segment's, and no
        // other thread of the child uses it.
        let replaced = unsafe {
            mmap_anonymous(
                start,
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        if replaced.is_err() {
            // The kernel has no memory for it. This process must not go on with the others'
            // segment.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        make_lost(start as usize, self.me.as_ptr() as usize);
        self.segment().pid_namespace.store(NO_NAMESPACE, Ordering::Relaxed);
    }

    /// Tells whether this process was parted from the array by [`Self::stand_aside`].
    #[inline]
    #[must_use]
    pub fn stands_aside(&self) -> bool {
        self.segment().pid_namespace.load(Ordering::Relaxed) == NO_NAMESPACE
    }
}

/// Makes zeros at `address` the segment of an array all of whose members are out: what stands in
/// for a segment that was cut short, or for which shared memory has no room. The others take over
/// what this process held, as if it had died. Runs in a handler.
pub(super) fn lose(address: usize, myself: usize) {
    make_lost(address, myself);
    showing::note_loss();
}

fn make_lost(address: usize, myself: usize) {
    // SAFETY: a page of its own for as long as the segment is mapped.
    let myself = unsafe { &*(myself as *const Myself) };
    if let Some(me) = OwnerId::new(myself.owner.load(Ordering::Relaxed)) {
        // SAFETY: the segment's file is open as long as the process is attached.
        let file = unsafe { BorrowedFd::borrow_raw(myself.file.load(Ordering::Relaxed) as i32) };
        let place = offset_of!(Segment, attach) + slot_of(me) * size_of::<AttachSlot>() + offset_of!(AttachSlot, pid);
        if fs::fstat(file).is_ok_and(|stat| stat.st_size as usize == size_of::<Segment>()) {
            let _ = sys::rustix::io::pwrite(file, &NO_PID.to_ne_bytes(), place as u64);
        }
    }
    // SAFETY: as long as a segment, and nobody else knows it (persist::stand_in); any bytes are
    // valid.
    let segment = unsafe { &*(address as *const Segment) };
    segment.out.store(u32::MAX, Ordering::Relaxed);
    segment.epoch.store(u64::MAX, Ordering::Relaxed);
    segment.recovered.store(Recovery::Done as u32, Ordering::Relaxed);
    segment.assembled.store(1, Ordering::Relaxed);
    segment.journal_failed.store(1, Ordering::Relaxed);
}

/// The number of this process' PID namespace (namespaces(7)); 0 if proc is not mounted.
pub(super) fn pid_namespace() -> u64 {
    fs::stat(c"/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}
