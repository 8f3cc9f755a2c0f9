//! Watches: inotify, fanotify and dnotify tell of loads and stores that made no system call, as the
//! kernel tells of system calls.
//!
//! A process that begins to watch something of the array counts as a watcher from then on, in the
//! runtime segment. So does a child of it, and a program that is given a descriptor of inotify or
//! fanotify. While any process counts, every process that loads or stores has the kernel raise the
//! event ([`file::Inode::tell_modified`]). Otherwise a load or a store costs a look at one word.
//!
//! Stores through a mapping raise no event, as with any other file (inotify(7)).

use super::directory::{borrow, link_target_of_any};
use crate::array;
use crate::dispatch::{Call, Verdict, watch_descriptor};
use crate::program;
use core::sync::atomic::{AtomicBool, Ordering};
use file::FileRef;
use sys::{OsError, RawFd};

/// Whether this process may watch something of the array.
static WATCHES: AtomicBool = AtomicBool::new(false);
/// Whether this process has had a group of fanotify.
static HAS_GROUPS: AtomicBool = AtomicBool::new(false);

/// `struct fanotify_event_metadata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    bytes: u32,
    version: [u8; 4],
    mask: u64,
    descriptor: RawFd,
    process: i32,
}

/// The program has stored to `file` by way of `descriptor`.
#[inline]
pub(crate) fn modified(descriptor: RawFd, file: &FileRef) {
    if file.may_be_watched() {
        file.tell_modified(borrow(descriptor));
    }
}

/// The program has loaded `count` bytes of `file` by way of `descriptor`: those who watch it are told, and the kernel sets the time of access as it is mounted to. Returns the count.
///
/// # Errors
/// `PERM` if whoever watches forbids it.
#[inline]
pub(crate) fn accessed(descriptor: RawFd, file: &FileRef, count: usize) -> Result<usize, OsError> {
    if count > 0 && (file.access_is_unheard() || file.may_be_watched()) {
        file.tell_accessed(borrow(descriptor))?;
    }
    Ok(count)
}

/// The program begins to watch something of the array, or may have been given a watch.
pub(crate) fn begin() {
    WATCHES.store(true, Ordering::Relaxed);
    if let Ok(namespace) = array::namespace() {
        namespace.files().array().runtime().begin_watching();
    }
}

/// In a child of fork: it has its parent's watches.
pub(crate) fn be_child() {
    if WATCHES.load(Ordering::Relaxed) {
        begin();
    }
}

/// A descriptor that is nothing of the array was given to this process: it may have watches.
pub(crate) fn adopt(descriptor: RawFd) {
    let Some(link) = link_target_of_any(descriptor).filter(|link| link.starts_with(b"anon_inode:")) else { return };
    if link.ends_with(b"inotify") || link.ends_with(b"[fanotify]") {
        begin();
    }
    if link.ends_with(b"[fanotify]") {
        made_group(descriptor);
    }
}

/// `fanotify_init`.
pub(crate) fn make_group(call: &mut Call) -> Verdict {
    let result = call.kernel();
    if result >= 0 {
        made_group(result as RawFd);
    }
    Verdict::Done(result)
}

fn made_group(descriptor: RawFd) {
    HAS_GROUPS.store(true, Ordering::Relaxed);
    watch_descriptor(descriptor);
}

/// A read(2) of what is nothing of the array: if it is a group of fanotify, the descriptors that come with its events may be anchors.
pub(crate) fn read(call: &mut Call) -> Verdict {
    let is_group = |descriptor| link_target_of_any(descriptor).is_some_and(|link| link == b"anon_inode:[fanotify]");
    if !HAS_GROUPS.load(Ordering::Relaxed) || !is_group(call.descriptor(0)) {
        return Verdict::Pass;
    }
    call.then = Some(|call| {
        let (mut at, end) = (call.args[1], call.args[1] + call.result.max(0) as usize);
        while at + size_of::<Event>() <= end {
            let Ok(event) = program::read::<Event>(at) else { break };
            if event.descriptor >= 0 {
                array::adopt(event.descriptor);
            }
            at += (event.bytes as usize).max(size_of::<Event>());
        }
        call.result
    });
    Verdict::PassWith { number: call.number, args: call.args }
}
