//! Watches: inotify, fanotify and dnotify tell of loads and stores that made no system call, as the
//! kernel tells of system calls.
//!
//! A process that begins to watch something of the array counts as a watcher from then on, in the
//! runtime segment. So does a child of it, and a program that is given a descriptor of inotify or
//! fanotify. While any process counts, every process that loads or stores has the kernel raise the
//! event ([`file::Inode::tell_modified`]). Otherwise a load or a store costs a look at one word.
//!
//! Stores through a mapping raise no event, as with any other file (inotify(7)).

use super::data;
use super::directory::{borrow, link_target_of_any};
use crate::array;
use crate::call::{Call, Verdict};
use crate::filter::watch_descriptor;
use crate::program;
use core::sync::atomic::{AtomicBool, Ordering};
use file::FileRef;
use linux_raw_sys::general::__NR_read;
use sys::{OsError, RawFd};

/// Whether this process may have a watch on something of the array.
static WATCHES: AtomicBool = AtomicBool::new(false);
/// Whether this process has, or has had, a fanotify group (a descriptor of fanotify_init(2)).
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

/// The program has loaded `count` bytes of `file` by way of `descriptor`. The kernel tells those
/// who watch the file, and sets the file's time of access as the mount options of the member say.
/// Returns `count`.
///
/// # Errors
/// `PERM` if a watcher forbids the read.
#[inline]
pub(crate) fn accessed(descriptor: RawFd, file: &FileRef, count: usize) -> Result<usize, OsError> {
    if count > 0 && (file.access_is_unheard() || file.may_be_watched()) {
        file.tell_accessed(borrow(descriptor))?;
    }
    Ok(count)
}

/// Counts this process as a watcher, since the program is about to watch something of the array or
/// may have been given a watch.
pub(crate) fn begin() {
    WATCHES.store(true, Ordering::Relaxed);
    if let Ok(namespace) = array::namespace() {
        namespace.files().array().runtime().begin_watching();
    }
}

/// Counts a child of fork as a watcher if its parent was one, since the child has the parent's
/// watches.
pub(crate) fn be_child() {
    if WATCHES.load(Ordering::Relaxed) {
        begin();
    }
}

/// Looks at a descriptor that was given to this process and has no file behind it. `link` is what
/// the kernel calls it ("anon_inode:inotify"). One of inotify or fanotify may hold watches on files
/// of the array.
pub(crate) fn adopt(descriptor: RawFd, link: &[u8]) {
    if link.ends_with(b"inotify") || link.ends_with(b"[fanotify]") {
        begin();
    }
    if link.ends_with(b"[fanotify]") {
        made_group(descriptor);
    }
}

/// Serves `fanotify_init`.
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

/// Serves a call that reads, of a descriptor that is not an anchor. If the descriptor is a fanotify
/// group, the descriptors in the events that are read may be anchors.
pub(crate) fn read(call: &mut Call) -> Verdict {
    let is_group = |descriptor| link_target_of_any(descriptor).is_some_and(|link| link == b"anon_inode:[fanotify]");
    if !HAS_GROUPS.load(Ordering::Relaxed) || !is_group(call.descriptor(0)) {
        return Verdict::Pass;
    }
    call.then = Some(adopt_all);
    Verdict::PassWith { number: call.number, args: call.args }
}

/// Events have been read: adopts the descriptors in them. Of several buffers the kernel has filled
/// each as by a call of its own, so no event lies in two.
fn adopt_all(call: &mut Call) -> isize {
    let mut left = call.result.max(0) as usize;
    if call.number as u32 == __NR_read {
        adopt_in(call.args[1], left);
    } else if let Ok(buffers) = data::buffers(call) {
        for buffer in buffers {
            let bytes = buffer.bytes.min(left);
            adopt_in(buffer.address, bytes);
            left -= bytes;
        }
    }
    call.result
}

fn adopt_in(mut at: usize, bytes: usize) {
    let end = at + bytes;
    while at + size_of::<Event>() <= end {
        let Ok(event) = program::read::<Event>(at) else { break };
        if event.descriptor >= 0 {
            array::adopt(event.descriptor);
        }
        at += (event.bytes as usize).max(size_of::<Event>());
    }
}
