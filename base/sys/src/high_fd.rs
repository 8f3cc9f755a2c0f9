//! The library's own descriptors, kept out of the way of the program's.
//!
//! A program expects the lowest free number from open(2) and may use any number up to its limit.
//! The library's descriptors therefore live in the upper half of what the limit allows. They are
//! closed on exec, and are remembered, so that a program that closes every number it can think of
//! does not close them.

use crate::{OsError, OwnedFd, RawFd, Result, low_limit};
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// The number from which on our descriptors lie; 0 until first asked for.
static BASE: AtomicU32 = AtomicU32::new(0);
/// Our descriptors lie no lower, if they find room.
pub const BASE_MIN: u32 = 64;
/// Above this many descriptors the kernel's table grows large for nothing.
const BASE_MAX: u64 = 1 << 15;
/// Numbers that can be remembered.
const MARK_COUNT: usize = 1 << 16;

/// One bit per number that is ours.
static MARKS: [AtomicU64; MARK_COUNT / 64] = [const { AtomicU64::new(0) }; MARK_COUNT / 64];

/// One bit per number that another process uses for itself, in a descriptor table which this
/// process shares with it.
static OTHERS: [AtomicU64; MARK_COUNT / 64] = [const { AtomicU64::new(0) }; MARK_COUNT / 64];

/// The function that is told of our numbers below [`base`], or 0: see [`tell_of_low`].
static TOLD_OF_LOW: AtomicUsize = AtomicUsize::new(0);

/// The number from which on our descriptors lie.
pub fn base() -> u32 {
    match BASE.load(Ordering::Relaxed) {
        0 => {
            let base = base_of_limit();
            BASE.store(base, Ordering::Relaxed);
            base
        }
        base => base,
    }
}

/// The number from which on our descriptors would lie if the process began with the limit that it has
/// now.
#[must_use]
pub fn base_of_limit() -> u32 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(BASE_MAX * 2);
    (limit / 2).clamp(BASE_MIN.into(), BASE_MAX) as u32
}

/// Gives our descriptors room under a limit that has been lowered: from now on they lie from `lowered`
/// on, where that is below [`base`]. Those that are open stay where they are. Without that each would
/// stay at the lowest free number, which is the program's.
pub fn lower_base(lowered: u32) {
    let _ = BASE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| (lowered < before).then_some(lowered));
}

/// Moves a descriptor that is to stay open there and remembers it. If there is no room above, it stays
/// where it is; so does one that was moved before. A low limit is not in the way
/// ([`crate::low_limit`]).
pub fn raise(fd: OwnedFd) -> Result<OwnedFd> {
    let fd = raise_for_a_while(fd);
    if (fd.as_raw_fd() as u32) < base()
        && low_limit::is_noted()
        && let Some(raised) = low_limit::raise(fd.as_fd())
    {
        forget(fd.as_raw_fd());
        keep(raised.as_raw_fd());
        return Ok(raised);
    }
    Ok(fd)
}

/// Moves a descriptor as [`raise`] does, but leaves it where it is under a low limit.
fn raise_for_a_while(fd: OwnedFd) -> OwnedFd {
    let is_low = (fd.as_raw_fd() as u32) < base();
    let raised = if is_low { fcntl_dupfd_cloexec(&fd, base() as i32) } else { Err(OsError::EXIST) };
    keep(raised.as_ref().unwrap_or(&fd).as_raw_fd());
    match raised {
        Ok(raised) => {
            // It may have been ours there, while there was no room above.
            if is_raised(fd.as_raw_fd()) {
                forget(fd.as_raw_fd());
            }
            raised
        }
        Err(_) => fd,
    }
}

/// A descriptor out of the program's way whose number is forgotten before it is closed: another
/// thread may be given the number at once.
#[derive(Debug)]
pub struct Raised(OwnedFd);

impl Raised {
    /// Moves a descriptor as [`raise`] does, but leaves it where it is under a low limit.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        Ok(Self(raise_for_a_while(fd)))
    }
}

impl Deref for Raised {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Raised {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        forget(self.0.as_raw_fd());
    }
}

/// Remembers a number as ours: one that was ours before exec, or that stays where the kernel has put
/// it.
pub fn keep(fd: RawFd) {
    if let Some((mark, bit)) = mark_of(fd) {
        mark.fetch_or(bit, Ordering::Relaxed);
    }
    if (fd as u32) < base() {
        let told = TOLD_OF_LOW.load(Ordering::Acquire);
        if told != 0 {
            // SAFETY: only `tell_of_low` stores here, and it stores such a function.
            let tell = unsafe { core::mem::transmute::<usize, fn(RawFd)>(told) };
            tell(fd);
        }
    }
}

/// Has `told` called with each number below [`base`] that is ours, and with each that becomes ours from
/// now on. Programs use such numbers: a call with one that the program has closed must not act on what
/// the library has there.
pub fn tell_of_low(told: fn(RawFd)) {
    TOLD_OF_LOW.store(told as usize, Ordering::Release);
    raised_within(0, base() - 1).for_each(|fd| told(fd as RawFd));
}

/// Forgets a number that is about to be closed.
pub fn forget(fd: RawFd) {
    if let (Some((mark, bit)), Some((other, _))) = (mark_of(fd), place_of(&OTHERS, fd)) {
        mark.fetch_and(!bit, Ordering::Relaxed);
        other.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Forgets every number: they are another process' in a table that both use.
pub fn forget_all() {
    MARKS.iter().chain(&OTHERS).for_each(|mark| mark.store(0, Ordering::Relaxed));
}

/// Called by a copy of a process that goes on using the original's descriptor table: every number
/// remembered until now is the original's. Such a number is still kept from the program, and this
/// process does not close it.
pub fn leave_to_others() {
    for (mark, other) in MARKS.iter().zip(&OTHERS) {
        other.fetch_or(mark.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The numbers that a copy has taken since it called [`leave_to_others`], which it closes before it
/// ends; none in a process that never called that.
pub fn own_beside_others() -> impl Iterator<Item = u32> {
    let has_left = OTHERS.iter().any(|other| other.load(Ordering::Relaxed) != 0);
    raised_within(0, u32::MAX)
        .filter(move |&fd| has_left && mark_of(fd as RawFd).is_some_and(|(mark, bit)| mark.load(Ordering::Relaxed) & bit != 0))
}

/// Whether a number is ours.
#[inline]
pub fn is_raised(fd: RawFd) -> bool {
    let is_marked = |marks| place_of(marks, fd).is_some_and(|(mark, bit)| mark.load(Ordering::Relaxed) & bit != 0);
    is_marked(&MARKS) || is_marked(&OTHERS)
}

/// The numbers in `first..=last` that are ours, ascending.
pub fn raised_within(first: u32, last: u32) -> impl Iterator<Item = u32> {
    let end = last.min(MARK_COUNT as u32 - 1);
    let words = (first / 64)..=(end / 64);
    words
        .filter(move |_| first <= end)
        .map(|word| {
            let bits = |marks: &[AtomicU64]| marks[word as usize].load(Ordering::Relaxed);
            (word * 64, bits(&MARKS) | bits(&OTHERS))
        })
        .filter(|&(_, bits)| bits != 0)
        .flat_map(|(start, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| start + bit))
        .filter(move |&fd| first <= fd && fd <= end)
}

fn mark_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    place_of(&MARKS, fd)
}

fn place_of(marks: &'static [AtomicU64], fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(fd).ok()?;
    Some((marks.get(index / 64)?, 1 << (index % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_ours_for_want_of_room_is_forgotten_once_there_is_room() {
        let file = rustix::fs::open(c"/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        // A number that no other test is given.
        let low = fcntl_dupfd_cloexec(&file, 50).unwrap();
        let number = low.as_raw_fd();
        keep(number);
        let raised = raise(low).unwrap();
        assert!(raised.as_raw_fd() as u32 >= base());
        assert!(!is_raised(number));
        forget(raised.as_raw_fd());
    }

    #[test]
    fn who_asks_is_told_of_every_low_number_that_is_ours() {
        static TOLD: [AtomicU64; MARK_COUNT / 64] = [const { AtomicU64::new(0) }; MARK_COUNT / 64];
        let is_told = |fd| {
            let (word, bit) = place_of(&TOLD, fd).unwrap();
            word.load(Ordering::Relaxed) & bit != 0
        };
        // Numbers that no other test is given.
        let (before, after, high) = (61, 62, base() as RawFd + 150);
        keep(before);
        tell_of_low(|fd| {
            let (word, bit) = place_of(&TOLD, fd).unwrap();
            word.fetch_or(bit, Ordering::Relaxed);
        });
        keep(after);
        keep(high);
        assert!(is_told(before) && is_told(after) && !is_told(high));
        [before, after, high].into_iter().for_each(forget);
    }

    #[test]
    fn a_raised_descriptor_leaves_the_low_number_free() {
        let open = || rustix::fs::open(c"/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let raised = raise(open()).unwrap();
        let number = raised.as_raw_fd();
        assert!(number as u32 >= base());
        assert!((open().as_raw_fd() as u32) < base());
        assert!(is_raised(number));
        assert!(raised_within(0, u32::MAX).any(|fd| fd == number as u32));
        assert!(!raised_within(number as u32 + 1, u32::MAX).any(|fd| fd == number as u32));
        let again = raise(raised).unwrap();
        assert_eq!(again.as_raw_fd(), number);
        forget(number);
        assert!(!is_raised(number));
    }

    #[test]
    fn a_raised_descriptor_is_forgotten_when_it_is_closed() {
        let file = rustix::fs::open(c"/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        // A number that no other test is given: the kernel gives the lowest that is free.
        let raised = Raised::new(fcntl_dupfd_cloexec(&file, base() as i32 + 100).unwrap()).unwrap();
        let number = raised.as_raw_fd();
        assert!(is_raised(number));
        drop(raised);
        assert!(!is_raised(number));
    }

    #[test]
    fn numbers_of_others_are_kept_from_the_program_and_not_closed() {
        // Far from what other tests are given.
        let (theirs, own) = (MARK_COUNT as RawFd - 2, MARK_COUNT as RawFd - 1);
        keep(own);
        assert_eq!(own_beside_others().count(), 0, "nobody shares the table");
        forget(own);
        keep(theirs);
        leave_to_others();
        keep(own);
        assert!(is_raised(theirs) && is_raised(own));
        assert!(own_beside_others().any(|fd| fd == own as u32));
        assert!(!own_beside_others().any(|fd| fd == theirs as u32));
        forget(theirs);
        forget(own);
        assert!(!is_raised(theirs) && !is_raised(own));
    }
}
