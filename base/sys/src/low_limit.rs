//! A limit for descriptors (RLIMIT_NOFILE) below the numbers where the library's own are to lie
//! ([`crate::high_fd`]), as `ulimit -n 20` sets it.
//!
//! Numbers are checked against the limit when they are given, and what lies above it stays open. So the
//! library's own descriptors lie above such a limit and take nothing of it away. While a process starts
//! it has one thread, and raises its limit for a moment ([`make_room`]). Later the limit is left alone:
//! other threads would see it, and children would inherit it. A copy of the process, which has a limit
//! of its own and the same descriptors, then moves a descriptor up ([`raise`]).
//!
//! Only a hard limit is in the way; a process that may exceed it (CAP_SYS_RESOURCE) does so for its own
//! descriptors.

use crate::high_fd::{BASE_MIN, base};
use crate::raw::{check, syscall};
use crate::task::in_a_copy;
use crate::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use linux_raw_sys::general::{__NR_mmap, __NR_munmap, MAP_ANONYMOUS, MAP_SHARED, PROT_READ, PROT_WRITE};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of descriptors above the limit for which there is room.
const ROOM: u64 = 4096;
const PAGE_BYTES: usize = 4096;

/// Tells whether the limit is low and descriptors are moved above it.
static IS_LOW: AtomicBool = AtomicBool::new(false);

/// The limit that is to hold again when this is dropped.
pub struct Room(Option<Rlimit>);

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            let _ = setrlimit(Resource::Nofile, before);
        }
    }
}

/// Raises the limit, where it is low, until the result is dropped. The process has one thread, and
/// starts. `may` tells whether it may make copies of itself.
#[must_use]
pub fn make_room(may: impl Fn() -> bool) -> Room {
    // Half of the limit is above the least base, so the limit is, too.
    if base() > BASE_MIN && !is_noted() {
        return Room(None);
    }
    let before = getrlimit(Resource::Nofile);
    if !is_low(before) || !allow() {
        IS_LOW.store(false, Ordering::Relaxed);
        return Room(None);
    }
    IS_LOW.store(may(), Ordering::Relaxed);
    Room(Some(before))
}

/// The process may have set its limit. Descriptors are moved above a limit of [`BASE_MIN`] and less,
/// but not above any limit that was lowered since the start: that takes a copy of the process for
/// each. `may` tells whether the process may make copies of itself.
pub fn refresh(may: impl Fn() -> bool) {
    let is_low = getrlimit(Resource::Nofile).current.is_some_and(|current| current <= u64::from(BASE_MIN));
    IS_LOW.store(is_low && may(), Ordering::Relaxed);
}

/// No copies are made any more: the process forbids itself system calls.
pub fn make_no_copies() {
    IS_LOW.store(false, Ordering::Relaxed);
}

/// Tells whether descriptors that are to stay open are to be moved above the limit ([`raise`]).
#[inline]
#[must_use]
pub fn is_noted() -> bool {
    IS_LOW.load(Ordering::Relaxed)
}

/// Gives what `fd` is open on a number above the limit; None if there can be none. That takes a copy of
/// the process.
#[must_use]
pub fn raise(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let (protection, flags) = ((PROT_READ | PROT_WRITE) as usize, (MAP_SHARED | MAP_ANONYMOUS) as usize);
    let wish = crate::place::wish(PAGE_BYTES);
    // SAFETY: a new mapping.
    let page = check(unsafe { syscall(__NR_mmap as usize, [wish, PAGE_BYTES, protection, flags, usize::MAX, 0]) }).ok()?;
    // SAFETY: the page is mapped, zeroed, and this thread's and its copy's.
    let number = unsafe { &*(page as *const AtomicI32) };
    // SAFETY: system calls, and a store to the page.
    let made = unsafe {
        in_a_copy(|| {
            if allow()
                && let Ok(raised) = fcntl_dupfd_cloexec(fd.as_fd(), base() as RawFd)
            {
                number.store(crate::IntoRawFd::into_raw_fd(raised), Ordering::Relaxed);
            }
        })
    };
    let raised = number.load(Ordering::Relaxed);
    // SAFETY: nobody uses the page any more.
    unsafe { syscall(__NR_munmap as usize, [page, PAGE_BYTES, 0, 0, 0, 0]) };
    if made.is_err() || raised == 0 {
        // It is not tried again until the limit is set anew.
        IS_LOW.store(false, Ordering::Relaxed);
        return None;
    }
    // SAFETY: made by the copy in the table that both have, and known to nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(raised) })
}

fn is_low(limit: Rlimit) -> bool {
    limit.current.is_some_and(|current| current <= u64::from(base()))
}

/// Raises the calling process' limit above [`base`], its hard limit too if need be and permitted.
fn allow() -> bool {
    let before = getrlimit(Resource::Nofile);
    let wanted = u64::from(base()) + ROOM;
    let maximum = before.maximum.map(|hard| hard.max(wanted));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok() {
        return true;
    }
    let current = before.maximum.map_or(wanted, |hard| hard.min(wanted));
    current > u64::from(base()) && setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..before }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AsRawFd;
    use rustix::fs::{Mode, OFlags, fstat, open};

    #[test]
    fn descriptors_lie_above_a_low_limit_that_stays_as_it_is() {
        // In a process of its own: the limit is the process'.
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "low_limit::tests::under_a_low_limit", "--ignored"])
            .status();
        assert!(status.unwrap().success());
    }

    #[test]
    #[ignore = "lowers the limit of its process"]
    fn under_a_low_limit() {
        let before = getrlimit(Resource::Nofile);
        if before.maximum.is_some_and(|hard| hard <= u64::from(BASE_MIN)) {
            eprintln!("NOT RUN: the hard limit is low here");
            return;
        }
        let low = Rlimit { current: Some(20), ..before };
        setrlimit(Resource::Nofile, low).unwrap();
        let room = make_room(|| true);
        let file = open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let first = fcntl_dupfd_cloexec(&file, base() as RawFd).unwrap();
        drop(room);
        assert_eq!(getrlimit(Resource::Nofile), low);
        assert!(is_noted());
        let second = raise(file.as_fd()).unwrap();
        assert!(first.as_raw_fd() as u32 >= base() && second.as_raw_fd() > first.as_raw_fd());
        assert_eq!(fstat(&second).unwrap().st_rdev, fstat(&file).unwrap().st_rdev);
        assert_eq!(getrlimit(Resource::Nofile), low);
        let numbers: Vec<_> = (0..20).map_while(|_| fcntl_dupfd_cloexec(&file, 0).ok()).collect();
        assert!(fcntl_dupfd_cloexec(&file, 0).is_err());
        let third = raise(file.as_fd()).unwrap();
        assert!(third.as_raw_fd() > second.as_raw_fd());
        drop(numbers);
        make_no_copies();
        assert!(!is_noted());
    }
}
