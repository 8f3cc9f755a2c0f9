//! A stand-in for the namespace, to measure and test the mechanism alone: files below `CXLRAID_DOUBLE` are mapped when they
//! are opened, and pread, read and lseek are served from the mapping; everything else is the kernel's.

use super::node::Node;
use super::{Handler, OPEN};
use crate::dispatch::{Call, Verdict};
use crate::environment::Environment;
use crate::table::NUMBER_COUNT;
use crate::{process, program};
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::general as nr;
use persist::fault::guard;
use sys::rustix::fs::fstat;
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{BorrowedFd, OsError, RawFd};

const PATH_BYTES_MAX: usize = 4096;

/// A mapped file.
#[derive(Default)]
pub(crate) struct Mapping {
    base: usize,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes != 0 {
            // SAFETY: the last use of the description is gone, so nobody reads the mapping.
            let _ = unsafe { munmap(self.base as *mut _, self.bytes) };
        }
    }
}

/// Address and length of the prefix.
static PREFIX: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

pub(crate) fn start(environment: &'static Environment) {
    if let Some(prefix) = environment.get(b"CXLRAID_DOUBLE") {
        PREFIX[0].store(prefix.as_ptr() as usize, Ordering::Relaxed);
        PREFIX[1].store(prefix.len(), Ordering::Relaxed);
    }
}

/// The handlers with the stand-in's over them.
pub(super) const fn over(mut handlers: [Handler; NUMBER_COUNT]) -> [Handler; NUMBER_COUNT] {
    handlers[nr::__NR_openat as usize] = openat;
    handlers[nr::__NR_pread64 as usize] = pread;
    handlers[nr::__NR_read as usize] = read;
    handlers[nr::__NR_lseek as usize] = lseek;
    handlers
}

fn is_prefixed(path: usize) -> bool {
    let [address, length] = [PREFIX[0].load(Ordering::Relaxed), PREFIX[1].load(Ordering::Relaxed)];
    let mut buffer = [0; PATH_BYTES_MAX];
    // SAFETY: the prefix is part of the environment's copy, which is never freed.
    length != 0
        && program::read_string(path, &mut buffer)
            .is_ok_and(|path| path.starts_with(unsafe { core::slice::from_raw_parts(address as *const u8, length) }))
}

fn openat(call: &mut Call) -> Verdict {
    if !is_prefixed(call.args[1]) {
        return Verdict::Pass;
    }
    let descriptor = call.kernel();
    if descriptor >= 0 && process::owns_tables() {
        let node = Node { mapping: map(descriptor as RawFd) };
        OPEN.install(descriptor as RawFd, OPEN.describe(node, call.args[2] as u32));
    }
    Verdict::Done(descriptor)
}

fn map(descriptor: RawFd) -> Mapping {
    // SAFETY: the descriptor was just opened by the call being served.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let bytes = fstat(file).map_or(0, |stat| stat.st_size as usize);
    // SAFETY: a new mapping at an address of the kernel's choice.
    match unsafe { mmap(core::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) } {
        Ok(base) => Mapping { base: base as usize, bytes },
        Err(_) => Mapping::default(),
    }
}

/// Copies from the mapping to the program.
fn copy(mapping: &Mapping, offset: usize, target: usize, bytes: usize) -> Verdict {
    let bytes = bytes.min(mapping.bytes.saturating_sub(offset));
    // SAFETY: the closure owns nothing; the source is within the mapping, and the program named the target.
    let copied =
        unsafe { guard(|| core::ptr::copy_nonoverlapping((mapping.base + offset) as *const u8, target as *mut u8, bytes)) };
    match copied {
        Ok(()) => Verdict::Done(bytes as isize),
        Err(_) => Verdict::error(OsError::FAULT),
    }
}

fn pread(call: &mut Call) -> Verdict {
    let Some(user) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    let [_, target, bytes, offset, ..] = call.args;
    copy(&user.node().mapping, offset, target, bytes)
}

fn read(call: &mut Call) -> Verdict {
    let Some(user) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    if user.shared.load(Ordering::Relaxed) {
        return Verdict::Pass;
    }
    user.position.acquire();
    let verdict = copy(&user.node().mapping, user.offset.load(Ordering::Relaxed) as usize, call.args[1], call.args[2]);
    if let Verdict::Done(bytes @ 1..) = verdict {
        user.offset.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    user.position.release();
    verdict
}

fn lseek(call: &mut Call) -> Verdict {
    let Some(user) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    let end = user.node().mapping.bytes as u64;
    if user.shared.load(Ordering::Relaxed) {
        return Verdict::Pass;
    }
    user.position.acquire();
    let base = [0, user.offset.load(Ordering::Relaxed), end].get(call.args[2]).copied();
    let target = base.and_then(|base| base.checked_add_signed(call.args[1] as i64));
    let verdict = match target {
        Some(offset) => {
            user.offset.store(offset, Ordering::Relaxed);
            Verdict::Done(offset as isize)
        }
        None => Verdict::error(OsError::INVAL),
    };
    user.position.release();
    verdict
}
