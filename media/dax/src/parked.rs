//! Parked files: backing files that are open without a descriptor.
//!
//! Each file of an array is open on every member. With a descriptor for each of these backing files
//! a program could have only a fraction of RLIMIT_NOFILE open. So beyond a share of that limit
//! backing files are *parked*: the kernel keeps them open in an io_uring's table of registered files
//! ([`sys::file_ring`]), where they have no number. Whoever needs a descriptor fetches one for as
//! long as a system call takes ([`fetch`]).
//!
//! A few numbers are reserved, so that a file can be fetched when the program has taken all others.
//!
//! A child of fork gets tables of its own ([`around_fork`]): its parent lets files go that the child
//! goes on with. They are made in a copy of the process that ends at once, because the kernel
//! interrupts every task that has used a table when the table is given back: the parent must not be
//! interrupted when its child ends.
//!
//! Where the process may not use io_uring (`kernel.io_uring_disabled`, seccomp, before Linux 6.8)
//! nothing is parked, and backing files have descriptors.
//!
//! Invariants:
//! - Nothing is allocated while the pool's lock is held: a process forks with the allocator's lock
//!   held, and takes the pool's then.
//! - Closing a descriptor takes the process' record locks (fcntl(2)) on the file away. So before a
//!   program locks a file, the file is given a descriptor ([`crate::Backing::keep`]) and all fetched
//!   ones are waited for ([`crate::Backing::wait_for_holders`]); it is not parked again.
//! - The pool's lock is the last that a thread takes. Until a fetched number is out of the program's
//!   way the lock is held, so a fork copies no such number.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use sync::LocalLock;
use sys::file_ring::{self, Layout, RingMemory};
use sys::rustix::io::{dup3, fcntl_dupfd_cloexec};
use sys::rustix::process::{Resource, getrlimit};
use sys::rustix::thread::{UnshareFlags, unshare_unsafe};
use sys::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OsError, OwnedFd, RawFd, high_fd};

/// At most so many tables are made. Each has room for as many files as RLIMIT_NOFILE has numbers, up
/// to [`PLACES_MAX`].
const RINGS_MAX: usize = 32;
const PLACES_MAX: u32 = 1 << 14;
/// So many numbers are reserved beside one for each table, which its copy is given: one for a copy
/// that is being made, the others for files that several threads fetch at once.
const RESERVE: usize = 3;

/// No reserved number is lower than this one: a program expects the lowest ones free.
const LOWEST_NUMBER: RawFd = 10;

static POOL: LocalLock<Pool> = LocalLock::new(Pool::new());

/// Tells whether files may be parked: one of the three words below.
static PERMITTED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Tells whether a reserved number had to be given up and is not reserved again yet.
static LACKS_RESERVE: AtomicBool = AtomicBool::new(false);

/// Tells whether the kernel has given a file back: a kernel before Linux 6.8 takes files up and never
/// gives one back.
static GIVES_BACK: AtomicBool = AtomicBool::new(false);

/// Counts the places of all tables that are taken.
static PARKED_COUNT: AtomicU32 = AtomicU32::new(0);

/// Tells whether the last fork was refused because the tables could not be copied.
static COPY_FAILED: AtomicBool = AtomicBool::new(false);

/// Tells whether another process with memory of its own has this one's descriptors. That process'
/// record locks go, too, when this one closes a descriptor of the file.
static SHARED: AtomicBool = AtomicBool::new(false);

/// This number goes up in each child of fork: the child does not have its parent's threads.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Numbers below this one are remembered while they are fetched.
const FETCHED_MAX: usize = 1 << 16;
/// Each number that was fetched and not given back has its bit set here.
static FETCHED: [AtomicU64; FETCHED_MAX / 64] = [const { AtomicU64::new(0) }; FETCHED_MAX / 64];
static FETCHED_COUNT: AtomicU32 = AtomicU32::new(0);

/// A thread that finds no number waits so often for one that another thread gives back, and so long
/// each time.
const WAIT_COUNT: u32 = 2000;
const WAIT_NS: u64 = 50_000;

/// Where a file is parked. Whoever has it calls [`remove`] once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(u32);

impl Place {
    /// The place as a number; never 0.
    pub(crate) const fn number(self) -> u32 {
        self.0 + 1
    }

    /// The place that has this number.
    pub(crate) const fn of(number: u32) -> Option<Self> {
        match number {
            0 => None,
            number => Some(Self(number - 1)),
        }
    }

    const fn in_ring(self) -> (usize, u32) {
        ((self.0 / PLACES_MAX) as usize, self.0 % PLACES_MAX)
    }
}

struct Ring {
    fd: RawFd,
    layout: Layout,
    memory: RingMemory,
    place_count: u32,
    taken_count: u32,
    /// A bit for each place.
    taken: [u64; PLACES_MAX as usize / 64],
}

impl Ring {
    const fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring is in the pool.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// A descriptor of the file at a place, which stays there.
    fn install(&mut self, place: u32) -> Result<OwnedFd, OsError> {
        // SAFETY: open as long as the ring is in the pool.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        self.memory.install(fd, &self.layout, place)
    }

    fn free_place(&self) -> Option<u32> {
        let (word, bits) = self.taken.iter().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let place = word as u32 * 64 + bits.trailing_ones();
        (place < self.place_count).then_some(place)
    }

    /// One more than the highest place that is taken.
    fn taken_end(&self) -> u32 {
        let last = self.taken.iter().enumerate().rev().find(|(_, bits)| **bits != 0);
        last.map_or(0, |(word, bits)| word as u32 * 64 + 64 - bits.leading_zeros())
    }

    fn mark(&mut self, place: u32, is_taken: bool) {
        let (word, bit) = (place as usize / 64, 1 << (place % 64));
        if let Some(word) = self.taken.get_mut(word) {
            *word = if is_taken { *word | bit } else { *word & !bit };
            self.taken_count = if is_taken { self.taken_count + 1 } else { self.taken_count.saturating_sub(1) };
        }
    }
}

struct Pool {
    rings: [Option<Ring>; RINGS_MAX],
    /// Descriptors of the first ring that only take numbers; -1 where there is none.
    reserve: [RawFd; RINGS_MAX + RESERVE],
}

impl Pool {
    const fn new() -> Self {
        Self { rings: [const { None }; RINGS_MAX], reserve: [-1; RINGS_MAX + RESERVE] }
    }

    /// Takes a file up, and returns where it is. The caller closes its descriptor.
    fn take_up(&mut self, file: BorrowedFd<'_>) -> Result<Place, OsError> {
        let has_room = |ring: &Option<Ring>| ring.as_ref().is_none_or(|ring| ring.taken_count < ring.place_count);
        let index = self.rings.iter().position(has_room).ok_or(OsError::NFILE)?;
        let slot = self.rings.get_mut(index).ok_or(OsError::NFILE)?;
        let ring = match slot {
            Some(ring) => ring,
            None => slot.insert(new_ring()?),
        };
        let place = ring.free_place().ok_or(OsError::NFILE)?;
        let works = file_ring::set(ring.fd(), place, Some(file))
            .and_then(|()| if GIVES_BACK.load(Ordering::Relaxed) { Ok(()) } else { ring.install(place).map(drop) });
        if works.is_ok() {
            GIVES_BACK.store(true, Ordering::Relaxed);
            PARKED_COUNT.fetch_add(1, Ordering::Relaxed);
            ring.mark(place, true);
        } else {
            let _ = file_ring::set(ring.fd(), place, None);
        }
        self.refill();
        works.map(|()| Place(index as u32 * PLACES_MAX + place))
    }

    fn install(&mut self, place: Place, may_use_reserve: bool) -> Result<OwnedFd, OsError> {
        let (index, place) = place.in_ring();
        loop {
            let ring = self.rings.get_mut(index).and_then(Option::as_mut).ok_or(OsError::BADF)?;
            match ring.install(place) {
                Err(OsError::MFILE) if may_use_reserve && self.give_up_one() => {}
                result => return result,
            }
        }
    }

    /// A descriptor out of the program's way. Until it is, no other thread has the lock: the number
    /// that the kernel gives first is one that the program takes for free.
    fn fetch(&mut self, place: Place, for_a_while: bool) -> Result<OwnedFd, OsError> {
        // Whatever goes wrong says nothing of the member.
        let is_of_process = |error| matches!(error, OsError::NFILE | OsError::NOMEM | OsError::PERM | OsError::NOSYS);
        let installed = self.install(place, for_a_while).and_then(|fd| {
            if for_a_while || !shares_descriptors() {
                return high_fd::raise(fd);
            }
            // To raise it is to close the first number, which takes record locks away.
            high_fd::keep(fd.as_raw_fd());
            Ok(fd)
        });
        let fd = installed.map_err(|error| if is_of_process(error) { error } else { OsError::MFILE })?;
        if for_a_while {
            note_fetched(fd.as_raw_fd(), true);
        }
        Ok(fd)
    }

    fn let_go(&mut self, place: Place) {
        let (index, place) = place.in_ring();
        if let Some(ring) = self.rings.get_mut(index).and_then(Option::as_mut) {
            let _ = file_ring::set(ring.fd(), place, None);
            ring.mark(place, false);
            PARKED_COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes a reserved number free. Returns whether there was one.
    fn give_up_one(&mut self) -> bool {
        let Some(reserved) = self.reserve.iter_mut().rev().find(|number| **number >= 0) else { return false };
        let number = core::mem::replace(reserved, -1);
        high_fd::forget(number);
        // SAFETY: ours, and nobody else uses it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        LACKS_RESERVE.store(true, Ordering::Relaxed);
        true
    }

    fn ring_count(&self) -> usize {
        self.rings.iter().flatten().count()
    }

    /// Reserves what is lacking, as far as there are numbers.
    fn refill(&mut self) {
        let (wanted, base) = (self.ring_count() + RESERVE, high_fd::base() as RawFd);
        let Some(first) = self.rings.first().and_then(Option::as_ref) else { return };
        let mut is_whole = true;
        for reserved in self.reserve.iter_mut().take(wanted).filter(|number| **number < 0) {
            // With a small limit there is nothing above.
            match fcntl_dupfd_cloexec(first.fd(), base).or_else(|_| fcntl_dupfd_cloexec(first.fd(), LOWEST_NUMBER)) {
                Ok(fd) => *reserved = remembered(fd),
                Err(_) => is_whole = false,
            }
        }
        LACKS_RESERVE.store(!is_whole, Ordering::Relaxed);
    }

    fn forget(&mut self) {
        for ring in &mut self.rings {
            core::mem::forget(ring.take());
        }
        self.reserve.fill(-1);
    }
}

fn remembered(fd: OwnedFd) -> RawFd {
    let number = fd.into_raw_fd();
    high_fd::keep(number);
    number
}

fn new_ring() -> Result<Ring, OsError> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let place_count = limit.min(u64::from(PLACES_MAX)) as u32;
    let mut memory = RingMemory::new()?;
    let (fd, layout) = file_ring::make(&mut memory, place_count)?;
    let fd = high_fd::raise(fd)?.into_raw_fd();
    Ok(Ring { fd, layout, memory, place_count, taken_count: 0, taken: [0; PLACES_MAX as usize / 64] })
}

/// Parks the file behind `fd`; the caller closes the descriptor. `may` tells whether this process may
/// make system calls that it has not made before; it is asked once. None if nothing can be parked.
pub(crate) fn park(fd: BorrowedFd<'_>, may: fn() -> bool) -> Option<Place> {
    if PERMITTED.load(Ordering::Relaxed) == UNKNOWN {
        // Where no number is free, it cannot be found out.
        let permitted = match may() {
            true => YES,
            false if fcntl_dupfd_cloexec(fd, LOWEST_NUMBER).is_err() => return None,
            false => NO,
        };
        PERMITTED.store(permitted, Ordering::Relaxed);
    }
    if PERMITTED.load(Ordering::Relaxed) == NO {
        return None;
    }
    let taken_up = POOL.lock().take_up(fd);
    match taken_up {
        Ok(place) => return Some(place),
        // Another time there may be room.
        Err(OsError::MFILE | OsError::NFILE | OsError::NOMEM) => {}
        Err(_) => PERMITTED.store(NO, Ordering::Relaxed),
    }
    None
}

/// A descriptor of a parked file, which stays parked. [`give_back`] ends its use.
pub(crate) fn fetch(place: Place) -> Result<OwnedFd, OsError> {
    for _ in 0..WAIT_COUNT {
        match POOL.lock().fetch(place, true) {
            // Another thread gives one back soon: it is in a system call.
            Err(OsError::MFILE) if FETCHED_COUNT.load(Ordering::Relaxed) != 0 => {}
            result => return result,
        }
        sys::rest::rest(WAIT_NS);
    }
    Err(OsError::MFILE)
}

/// A descriptor of a parked file that stays open. No reserved number is taken for it.
pub(crate) fn fetch_to_keep(place: Place) -> Result<OwnedFd, OsError> {
    POOL.lock().fetch(place, false)
}

/// Runs `act` while no thread of the process has the lowest free number for an instant, which a
/// fetched file gets first. `act` does not wait for anything.
pub fn while_none_is_fetched<T>(act: impl FnOnce() -> T) -> T {
    let _pool = POOL.lock();
    act()
}

/// Whether anything is parked.
#[inline]
pub fn is_used() -> bool {
    PARKED_COUNT.load(Ordering::Relaxed) != 0
}

/// Says whether another process with memory of its own has this one's descriptors.
pub fn share_descriptors(shared: bool) {
    SHARED.store(shared, Ordering::Relaxed);
}

pub(crate) fn shares_descriptors() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// A number that a child of fork has another one of than its parent.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Whether a fork was refused since the last question because parked files could not be given to the
/// child: it works when no file is parked any more.
pub fn has_refused_fork() -> bool {
    COPY_FAILED.swap(false, Ordering::Relaxed)
}

/// Whether the process has no numbers left that could be reserved: a fork would be refused.
pub fn lacks_numbers() -> bool {
    LACKS_RESERVE.load(Ordering::Relaxed)
}

/// Ends the use of what [`fetch`] gave.
pub(crate) fn give_back(fd: OwnedFd) {
    // No fork meanwhile: the child would have the number, and nobody would know that it is ours.
    let mut pool = POOL.lock();
    let number = fd.as_raw_fd();
    high_fd::forget(number);
    drop(fd);
    if LACKS_RESERVE.load(Ordering::Relaxed) {
        pool.refill();
    }
    note_fetched(number, false);
}

fn note_fetched(number: RawFd, is_fetched: bool) {
    let index = number as usize;
    let Some(word) = FETCHED.get(index / 64) else { return };
    if is_fetched {
        word.fetch_or(1 << (index % 64), Ordering::Relaxed);
        FETCHED_COUNT.fetch_add(1, Ordering::Relaxed);
    } else {
        word.fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        FETCHED_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In a child of fork: what its parent's other threads had fetched is open in it, too.
fn close_fetched_of_others() {
    if FETCHED_COUNT.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    for (index, word) in FETCHED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            close((index as u32 * 64 + bits.trailing_zeros()) as RawFd);
            bits &= bits - 1;
        }
    }
}

/// Closes a parked file.
pub(crate) fn remove(place: Place) {
    POOL.lock().let_go(place);
}

/// Runs the system call that forks, so that the child has its parked files in tables of its own.
/// `fork` returns what the kernel returned: in the child 0. If there is no room for these tables
/// nothing is forked, and EAGAIN is returned.
pub fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    let mut pool = POOL.lock();
    let fork = || {
        let result = fork();
        if result == 0 {
            GENERATION.fetch_add(1, Ordering::Relaxed);
            close_fetched_of_others();
        }
        result
    };
    if pool.rings.iter().flatten().all(|ring| ring.taken_count == 0) {
        let result = fork();
        if result == 0 {
            pool.forsake();
        }
        return result;
    }
    let Some(copies) = pool.copied() else {
        COPY_FAILED.store(true, Ordering::Relaxed);
        return -(OsError::AGAIN.raw_os_error() as isize);
    };
    let result = fork();
    if result == 0 {
        pool.adopt(copies)
    } else {
        pool.discard(copies)
    }
    result
}

/// In a copy of the process that begins anew: what is parked is the original's, and so are the
/// descriptors.
pub fn abandon() {
    POOL.begin_anew();
    POOL.lock().forget();
    PERMITTED.store(UNKNOWN, Ordering::Relaxed);
    LACKS_RESERVE.store(false, Ordering::Relaxed);
    PARKED_COUNT.store(0, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    FETCHED_COUNT.store(0, Ordering::Relaxed);
    FETCHED.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    crate::descriptor::forget_resident();
}

/// Memory of the copies of rings, by ring. A copy's descriptor is the reserved number of the same
/// index.
type Copies = [Option<RingMemory>; RINGS_MAX];

impl Pool {
    /// Copies the tables, in a process of its own.
    fn copied(&mut self) -> Option<Copies> {
        self.refill();
        let count = self.rings.iter().rposition(Option::is_some)? + 1;
        if self.reserve.iter().take(count + 1).any(|&number| number < 0) {
            return None;
        }
        let mut copies = [const { None }; RINGS_MAX];
        for (copy, _) in copies.iter_mut().zip(&self.rings).filter(|(_, ring)| ring.is_some()) {
            *copy = Some(RingMemory::new().ok()?);
        }
        // A free number for a table that is made.
        self.give_up_one();
        let rings = self.rings.iter_mut().zip(&mut copies).zip(&self.reserve);
        // SAFETY: system calls, and memory behind the pool's lock, which this thread holds.
        let made = unsafe { sys::task::in_a_copy(|| copy_rings(rings)) };
        let is_whole = made.is_ok() && copies.iter().flatten().all(RingMemory::is_noted);
        if is_whole {
            return Some(copies);
        }
        self.discard(copies);
        None
    }

    /// In the parent: the copies are the child's.
    fn discard(&mut self, copies: Copies) {
        let Some(first) = self.rings.first().and_then(Option::as_ref) else { return };
        for (_, &number) in copies.iter().zip(&self.reserve).filter(|(copy, number)| copy.is_some() && **number >= 0) {
            replace(first.fd(), number);
        }
        drop(copies);
        self.refill();
    }

    /// In the child: the copies are its own, and what was copied is its parent's.
    fn adopt(&mut self, copies: Copies) {
        for ((ring, copy), reserved) in self.rings.iter_mut().zip(copies).zip(&mut self.reserve) {
            if let (Some(ring), Some(copy)) = (ring, copy) {
                let own = core::mem::replace(reserved, -1);
                close(core::mem::replace(&mut ring.fd, own));
                ring.memory = copy;
                ring.place_count = ring.taken_end().max(1);
            }
        }
        while self.give_up_one() {}
        self.refill();
    }

    /// In the child, where no ring holds anything: they are the parent's.
    fn forsake(&mut self) {
        while self.give_up_one() {}
        for ring in &mut self.rings {
            if let Some(ring) = ring.take() {
                close(ring.fd);
            }
        }
        LACKS_RESERVE.store(false, Ordering::Relaxed);
    }
}

fn close(number: RawFd) {
    high_fd::forget(number);
    // SAFETY: ours, and nobody else uses it.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// Makes `number`, which is open, a descriptor of `of`.
fn replace(of: BorrowedFd<'_>, number: RawFd) {
    // SAFETY: a reserved number, which only the pool knows.
    let mut reserved = core::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    let _ = dup3(of, &mut reserved, sys::rustix::io::DupFlags::CLOEXEC);
}

/// In the copy of the process: makes a ring in each of the memories that holds what the ring beside
/// it holds, and gives it the number beside it. Notes in the memory that this was done.
fn copy_rings<'a>(rings: impl Iterator<Item = ((&'a mut Option<Ring>, &'a mut Option<RingMemory>), &'a RawFd)>) {
    let mut made = [const { None }; RINGS_MAX];
    for (((ring, copy), &number), made) in rings.zip(&mut made) {
        let (Some(ring), Some(copy)) = (ring, copy) else { continue };
        let Ok((fd, layout)) = file_ring::make(copy, ring.taken_end().max(1)) else { return };
        if layout != ring.layout {
            return;
        }
        replace(fd.as_fd(), number);
        *made = Some((ring, copy, number));
    }
    // From here on with numbers of its own: another thread of the process could take one that a file
    // has on its way; and to close a file here must take nobody's record locks away.
    // SAFETY: the copy has one thread.
    if unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_err() {
        return;
    }
    for (ring, copy, number) in made.into_iter().flatten() {
        // SAFETY: the number was given to the ring's copy above.
        if move_files(ring, unsafe { BorrowedFd::borrow_raw(number) }).is_err() {
            return;
        }
        copy.note();
    }
}

/// Puts what a ring holds into another one, at the same places.
fn move_files(ring: &mut Ring, copy: BorrowedFd<'_>) -> Result<(), OsError> {
    for word in 0..ring.taken.len() {
        let mut bits = ring.taken.get(word).copied().unwrap_or(0);
        while bits != 0 {
            let place = word as u32 * 64 + bits.trailing_zeros();
            bits &= bits - 1;
            let file = ring.install(place)?;
            file_ring::set(copy, place, Some(file.as_fd()))?;
        }
    }
    Ok(())
}
