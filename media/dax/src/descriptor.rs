//! The descriptor of a backing file: one that stays open as long as the file, or one that is fetched
//! for each use because the file is parked ([`crate::parked`]).
//!
//! Invariants:
//! - A number is closed only when nobody holds it ([`Held`]).
//! - A file that was parked keeps its place until it is closed, also while it has a descriptor.

use crate::parked::{self, Place};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sys::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OsError, OwnedFd, RawFd, high_fd, low_limit};

/// Of the numbers that are ours (half of what RLIMIT_NOFILE allows) such a part is for backing files
/// of files that programs have open.
const SHARE: usize = 4;

/// A thread that waits for holders sleeps so long between two looks.
const HOLDER_WAIT_NS: u64 = 20_000;

/// Counts the descriptors that this process has for backing files of files that programs have open.
static RESIDENT: AtomicUsize = AtomicUsize::new(0);

/// Counts from 0 again: the calling process is a copy that begins anew, and the descriptors counted
/// until now are the original's.
pub(crate) fn forget_resident() {
    RESIDENT.store(0, Ordering::Relaxed);
}

pub(crate) struct Descriptor {
    /// The number; -1 while the file is parked.
    fd: AtomicI32,
    /// The [`Place`] of a parked file by number, else 0.
    place: AtomicU32,
    /// How many [`Held`] there are, in the lower half; in the upper one the
    /// [generation](parked::generation) that they are counted in. A child of fork has none of its
    /// parent's threads.
    holders: AtomicU64,
    /// None if the file is never parked. Otherwise tells whether this process may make system calls
    /// that it has not made before.
    may_park: Option<fn() -> bool>,
    /// Whether it is one of those that are counted, while it is not parked.
    is_counted: bool,
}

/// A descriptor, held. If it was fetched, it is closed when this is dropped.
pub struct Held<'a> {
    fd: BorrowedFd<'a>,
    /// Whose it is; None if somebody else sees to it that it stays open.
    descriptor: Option<&'a Descriptor>,
    is_fetched: bool,
}

impl<'a> Held<'a> {
    /// A descriptor that stays open anyway.
    #[must_use]
    pub const fn borrowed(fd: BorrowedFd<'a>) -> Self {
        Self { fd, descriptor: None, is_fetched: false }
    }

    /// Whether the descriptor is closed when this is dropped.
    #[must_use]
    pub const fn is_fetched(&self) -> bool {
        self.is_fetched
    }

    const fn of(descriptor: &'a Descriptor, fd: RawFd, is_fetched: bool) -> Self {
        // SAFETY: it is open until this is dropped: the descriptor counts its holders.
        Self { fd: unsafe { BorrowedFd::borrow_raw(fd) }, descriptor: Some(descriptor), is_fetched }
    }
}

impl AsFd for Held<'_> {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd
    }
}

impl AsRawFd for Held<'_> {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_fetched {
            // SAFETY: fetched for this holder alone.
            parked::give_back(unsafe { OwnedFd::from_raw_fd(self.fd.as_raw_fd()) });
        }
        if let Some(descriptor) = self.descriptor {
            descriptor.end_hold();
        }
    }
}

impl Descriptor {
    pub(crate) fn lasting(fd: OwnedFd) -> Self {
        Self::with(fd.into_raw_fd(), None, None, false)
    }

    /// The descriptor of a table of the array. It is parked only when numbers are short.
    pub(crate) fn of_table(fd: OwnedFd, may: fn() -> bool) -> Self {
        Self::with(fd.into_raw_fd(), None, Some(may), false)
    }

    /// The descriptor of a backing file that a program has open. It is moved out of the program's
    /// way, or parked if there are many. One that was out of the way before stays. Under a low limit
    /// it lies above the limit.
    pub(crate) fn of_file(fd: OwnedFd, may: fn() -> bool) -> Result<Self, OsError> {
        if high_fd::is_raised(fd.as_raw_fd()) {
            return Ok(Self::lasting(fd));
        }
        // A parked file takes a number below the limit whenever it is fetched.
        let fd = if low_limit::is_noted() { high_fd::raise(fd)? } else { fd };
        if high_fd::is_raised(fd.as_raw_fd()) && fd.as_raw_fd() as u32 >= high_fd::base() {
            return Ok(Self::lasting(fd));
        }
        let is_counted = RESIDENT.fetch_add(1, Ordering::Relaxed) < high_fd::base() as usize / SHARE;
        if !is_counted && let Some(place) = parked::park(fd.as_fd(), may) {
            RESIDENT.fetch_sub(1, Ordering::Relaxed);
            return Ok(Self::with(-1, Some(place), Some(may), true));
        }
        match high_fd::raise(fd) {
            Ok(fd) => Ok(Self::with(fd.into_raw_fd(), None, Some(may), true)),
            Err(error) => {
                RESIDENT.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn with(fd: RawFd, place: Option<Place>, may_park: Option<fn() -> bool>, is_counted: bool) -> Self {
        let place = AtomicU32::new(place.map_or(0, Place::number));
        Self { fd: AtomicI32::new(fd), place, holders: AtomicU64::new(0), may_park, is_counted }
    }

    #[inline]
    pub(crate) fn hold(&self) -> Result<Held<'_>, OsError> {
        // Who parks the file stores -1 and then looks for holders; both are told of each other.
        self.begin_hold();
        match self.fd.load(Ordering::SeqCst) {
            fd @ 0.. => Ok(Held::of(self, fd, false)),
            _ => self.fetch(),
        }
    }

    #[inline]
    fn begin_hold(&self) {
        let own = u64::from(parked::generation()) << 32;
        let mut seen = self.holders.load(Ordering::Relaxed);
        loop {
            let next = if seen >> 32 == own >> 32 { seen + 1 } else { own + 1 };
            match self.holders.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    #[inline]
    fn end_hold(&self) {
        self.holders.fetch_sub(1, Ordering::Release);
    }

    fn has_holders(&self) -> bool {
        let seen = self.holders.load(Ordering::SeqCst);
        seen >> 32 == u64::from(parked::generation()) && seen as u32 != 0
    }

    /// A descriptor for one holder, who is counted already.
    #[cold]
    fn fetch(&self) -> Result<Held<'_>, OsError> {
        // While another process has this one's descriptors, to close one takes its record locks on the
        // file away.
        if parked::shares_descriptors() && self.keep().is_ok() {
            return Ok(Held::of(self, self.fd.load(Ordering::SeqCst), false));
        }
        match self.place().ok_or(OsError::MFILE).and_then(parked::fetch) {
            Ok(fd) => Ok(Held::of(self, fd.into_raw_fd(), true)),
            // Another thread has given the file a descriptor meanwhile.
            Err(_) if !self.is_parked() => Ok(Held::of(self, self.fd.load(Ordering::SeqCst), false)),
            Err(error) => {
                self.end_hold();
                Err(error)
            }
        }
    }

    fn place(&self) -> Option<Place> {
        Place::of(self.place.load(Ordering::Acquire))
    }

    /// Gives a parked file a descriptor that stays. Others may have fetched ones still. The file keeps
    /// its place, which somebody may be about to fetch it from.
    pub(crate) fn keep(&self) -> Result<(), OsError> {
        let Some(place) = self.place().filter(|_| self.is_parked()) else { return Ok(()) };
        let fetched = parked::fetch_to_keep(place)?;
        match self.fd.compare_exchange(-1, fetched.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                let _ = fetched.into_raw_fd();
                RESIDENT.fetch_add(usize::from(self.is_counted), Ordering::Relaxed);
            }
            // Another thread was faster.
            Err(_) => high_fd::forget(fetched.as_raw_fd()),
        }
        Ok(())
    }

    /// As [`Self::keep`], and gives the place back. Nobody may be about to fetch the file from there,
    /// since it may be another file's by then.
    pub(crate) fn keep_without_place(&self) -> Result<(), OsError> {
        self.keep()?;
        if self.place().is_some() && self.has_holders() {
            return Err(OsError::AGAIN);
        }
        if let Some(place) = Place::of(self.place.swap(0, Ordering::AcqRel)) {
            parked::remove(place);
        }
        Ok(())
    }

    /// Waits until no descriptor of the file is left that will be closed. Those who hold one are in a
    /// system call. The caller holds no lock that they may want.
    pub(crate) fn wait_for_holders(&self) {
        while self.has_holders() {
            sys::rest::rest(HOLDER_WAIT_NS);
        }
    }

    /// Parks the file, if nobody holds a descriptor of it. One thread at a time does.
    pub(crate) fn park(&self) -> bool {
        let fd = self.fd.load(Ordering::SeqCst);
        let Some(may) = self.may_park.filter(|_| fd >= 0 && !self.has_holders()) else { return false };
        if parked::shares_descriptors() {
            return false;
        }
        if self.place().is_none() {
            // SAFETY: the number is this file's until it is closed below.
            let Some(place) = parked::park(unsafe { BorrowedFd::borrow_raw(fd) }, may) else { return false };
            self.place.store(place.number(), Ordering::Release);
        }
        self.fd.store(-1, Ordering::SeqCst);
        if self.has_holders() {
            // They may have the number. (Those who have come since have fetched the file.)
            let _ = self.fd.compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst);
            return false;
        }
        RESIDENT.fetch_sub(usize::from(self.is_counted), Ordering::Relaxed);
        high_fd::forget(fd);
        // SAFETY: nobody holds it, and nobody finds it any more.
        unsafe { sys::rustix::io::close(fd) };
        true
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.fd.load(Ordering::SeqCst) < 0
    }

    pub(crate) fn is_out_of_the_way(&self) -> bool {
        let fd = self.fd.load(Ordering::SeqCst);
        fd < 0 || fd as u32 >= high_fd::base()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let fd = self.fd.load(Ordering::Relaxed);
        if fd >= 0 {
            high_fd::forget(fd);
            // SAFETY: owned, and nobody can use it any more. (OwnedFd might call libc's close.)
            unsafe { sys::rustix::io::close(fd) };
            RESIDENT.fetch_sub(usize::from(self.is_counted), Ordering::Relaxed);
        }
        if let Some(place) = self.place() {
            parked::remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Backing, PersistenceDomain};
    use medium::Medium;
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
        fn fcntl(fd: i32, request: i32, ...) -> i32;
    }

    const SETLK: i32 = 6;
    const GETLK: i32 = 5;
    const WRITE_LOCK: i16 = 1;
    const UNLOCK: i16 = 2;

    /// `struct flock`.
    #[repr(C)]
    struct Lock {
        kind: i16,
        whence: i16,
        start: i64,
        bytes: i64,
        pid: i32,
    }

    static WHOLE: Lock = Lock { kind: WRITE_LOCK, whence: 0, start: 0, bytes: 0, pid: 0 };

    /// A file of a program with `bytes` in it, parked; None, said aloud, where io_uring cannot be
    /// used.
    fn parked(bytes: &[u8]) -> Option<(Backing, File)> {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let fd = file.try_clone().unwrap().into();
        let backing = Backing::of_file(fd, Access::ReadWrite, PersistenceDomain::Volatile, || true).unwrap();
        put(&backing, bytes);
        if backing.park() {
            assert!(backing.is_parked() && backing.is_out_of_the_way());
            return Some((backing, file));
        }
        eprintln!("NOT RUN: no io_uring here, so nothing is parked");
        assert!(!backing.is_parked());
        None
    }

    fn put(backing: &Backing, bytes: &[u8]) {
        // SAFETY: the bytes are ours.
        unsafe { backing.put(0, bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    fn got(backing: &Backing) -> [u8; 4] {
        let mut bytes = [0; 4];
        // SAFETY: the bytes are ours.
        unsafe { backing.get(0, bytes.as_mut_ptr(), 4) }.unwrap();
        bytes
    }

    /// The status with which a child of fork ends that runs `act`, 0 if that holds.
    fn in_child(act: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child runs `act`, which uses what is whole in it, and ends.
        let pid = crate::parked::around_fork(|| unsafe { fork() } as isize) as i32;
        assert!(pid >= 0, "forked");
        if pid == 0 {
            let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
            // SAFETY: ends the child.
            unsafe { _exit(i32::from(!holds)) };
        }
        let mut status = -1;
        // SAFETY: our child, and a word of ours.
        assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
        status
    }

    #[test]
    fn a_parked_file_does_what_any_does_and_gets_a_descriptor_again() {
        let Some((backing, file)) = parked(b"abcd") else { return };
        assert_eq!(got(&backing), *b"abcd");
        backing.allocate(0, 10_000).unwrap();
        assert!(backing.span(4096).is_some());
        backing.punch(0, 4096).unwrap();
        assert_eq!(got(&backing), [0; 4]);
        backing.set_len(2).unwrap();
        assert_eq!((backing.bytes(), file.metadata().unwrap().len()), (Ok(2), 2));
        assert_ne!(backing.fd().unwrap().as_raw_fd(), file.as_raw_fd());
        assert!(backing.is_parked());
        backing.keep().unwrap();
        let number = backing.fd().unwrap().as_raw_fd();
        assert!(!backing.is_parked() && backing.fd().unwrap().as_raw_fd() == number);
        assert!(backing.park());
        put(&backing, b"efgh");
        assert_eq!(got(&backing), *b"efgh");
    }

    #[test]
    fn record_locks_outlive_the_use_of_a_file_that_stays() {
        let Some((backing, file)) = parked(b"abcd") else { return };
        backing.keep().unwrap();
        backing.wait_for_holders();
        // SAFETY: the lock is ours.
        assert_eq!(unsafe { fcntl(file.as_raw_fd(), SETLK, &raw const WHOLE) }, 0);
        for _ in 0..10 {
            assert_eq!(got(&backing), *b"abcd");
            drop(backing.fd().unwrap());
        }
        let is_locked = || {
            let mut lock = Lock { ..WHOLE };
            // SAFETY: the lock is ours.
            unsafe { fcntl(file.as_raw_fd(), GETLK, &raw mut lock) == 0 && lock.kind != UNLOCK }
        };
        assert_eq!(in_child(is_locked), 0);
    }

    #[test]
    fn a_child_of_fork_has_parked_files_of_its_own() {
        let Some((one, _)) = parked(b"1111") else { return };
        let Some((two, _)) = parked(b"2222") else { return };
        let (mut one, mut three) = (Some(one), None);
        for round in 0..3 {
            let (given, taken) = (one.take(), three.take());
            let child = || {
                // The parent closes the first file and parks another one meanwhile.
                let was = given.as_ref().map(got);
                std::thread::sleep(std::time::Duration::from_millis(50));
                let fits = given.as_ref().map(got) == was && got(&two) == *b"2222";
                put(&two, b"2222");
                fits && two.is_parked() && in_child(|| got(&two) == *b"2222") == 0
            };
            // SAFETY: see `in_child`.
            let pid = crate::parked::around_fork(|| unsafe { fork() } as isize) as i32;
            if pid == 0 {
                let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
                // SAFETY: ends the child.
                unsafe { _exit(i32::from(!holds)) };
            }
            drop((given, taken));
            three = parked(b"3333").map(|(backing, _)| backing);
            assert_eq!(three.as_ref().map(got), Some(*b"3333"));
            let mut status = -1;
            // SAFETY: our child, and a word of ours.
            assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0, "round {round}");
            one = parked(b"1111").map(|(backing, _)| backing);
        }
    }

    #[test]
    fn a_child_waits_for_no_thread_of_its_parents_and_has_no_descriptors_of_them() {
        let Some((backing, file)) = parked(b"abcd") else { return };
        let held = backing.fd().unwrap();
        let own = file.metadata().unwrap().ino();
        let is_apart = || {
            // Another descriptor may have the number by now.
            let there = std::fs::metadata(format!("/proc/self/fd/{}", held.as_raw_fd())).map(|there| there.ino());
            backing.wait_for_holders();
            backing.keep().unwrap();
            there.ok() != Some(own) && backing.keep_without_place() == Ok(()) && got(&backing) == *b"abcd"
        };
        assert_eq!(in_child(is_apart), 0);
        assert_eq!(backing.keep_without_place(), Err(sys::OsError::AGAIN));
        drop(held);
        assert_eq!(backing.keep_without_place(), Ok(()));
        assert!(backing.park() && got(&backing) == *b"abcd");
    }

    #[test]
    fn threads_use_a_parked_file_at_once_while_it_is_parked_and_kept() {
        let Some((backing, _)) = parked(b"abcd") else { return };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..2000).for_each(|_| assert_eq!(got(&backing), *b"abcd")));
            }
            for _ in 0..200 {
                backing.keep().unwrap();
                // Not while somebody holds the descriptor.
                while !backing.park() {}
            }
        });
    }
}
