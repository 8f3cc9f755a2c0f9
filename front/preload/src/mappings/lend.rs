//! System calls that store into protected pages of mappings.
//!
//! Where stores are let through by the granule ([`super::rights`]), the kernel refuses the stores
//! of its own calls (EFAULT), for example a read from a pipe into a mapping. So the library looks
//! at the buffers of calls that it does not serve, before they are made. Granules in these buffers
//! are let through, and *lent* to the call until it returns. What is lent is followed, but not
//! protected again.
//!
//! Where the kernel tracks which pages are stored to, its own stores count like the program's, but
//! for one kind: a read from a file that is open with O_DIRECT. The device stores into pages that
//! the kernel has marked at the beginning of the read. If they are followed and protected before
//! the bytes arrive, no mark is left. So once a program opens a file in this way, the library looks
//! at reads, and follows what a read from such a file has stored to once more when it has returned.
//!
//! Invariant: a granule that was lent counts as stored to until a follow after the call has
//! protected it. A thread that never comes back from its call (a handler that jumps) leaves it
//! lent: it is followed with every round, which costs time and nothing else.

use super::{Mappings, PAGE, table};
use crate::arch::entry::WANTED;
use crate::call::{Call, Verdict};
use crate::calls::{directory, listing};
use crate::program;
use crate::uapi::UIO_MAXIOV;
use core::sync::atomic::{AtomicBool, Ordering};
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use sys::OsError;
use sys::raw::syscall;
use sys::rustix::fs::{OFlags, fcntl_getfl};

/// Set when the first mapping came whose stores are let through by the granule, or with [`DIRECT`].
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Set when the program first opened a file with O_DIRECT.
static DIRECT: AtomicBool = AtomicBool::new(false);
/// The calls that read from a descriptor, which is their first argument, and may be past the page
/// cache.
const READS: [u32; 5] = [nr::__NR_read, nr::__NR_pread64, nr::__NR_readv, nr::__NR_preadv, nr::__NR_preadv2];

const FAULT: isize = -(OsError::FAULT.raw_os_error() as isize);

/// What a call stores, by its arguments' indices.
enum Stores {
    /// A buffer, and how long it is.
    Buffer(usize, usize),
    /// A structure of so many bytes.
    Fixed(usize, usize),
    /// `struct iovec`s, and how many.
    Vector(usize, usize),
    /// `struct msghdr`.
    Message(usize),
    /// So many structures of so many bytes.
    Array(usize, usize, usize),
}

/// The calls of which programs may hand in part of a mapping; those on files of the array are
/// served.
const CALLS: [(u32, Stores); 40] = [
    (nr::__NR_read, Stores::Buffer(1, 2)),
    (nr::__NR_pread64, Stores::Buffer(1, 2)),
    (nr::__NR_readv, Stores::Vector(1, 2)),
    (nr::__NR_preadv, Stores::Vector(1, 2)),
    (nr::__NR_preadv2, Stores::Vector(1, 2)),
    (nr::__NR_recvfrom, Stores::Buffer(1, 2)),
    (nr::__NR_recvmsg, Stores::Message(1)),
    (nr::__NR_process_vm_readv, Stores::Vector(1, 2)),
    (nr::__NR_getrandom, Stores::Buffer(0, 1)),
    (nr::__NR_getcwd, Stores::Buffer(0, 1)),
    (nr::__NR_readlink, Stores::Buffer(1, 2)),
    (nr::__NR_readlinkat, Stores::Buffer(2, 3)),
    (nr::__NR_getdents, Stores::Buffer(1, 2)),
    (nr::__NR_getdents64, Stores::Buffer(1, 2)),
    (nr::__NR_getxattr, Stores::Buffer(2, 3)),
    (nr::__NR_fgetxattr, Stores::Buffer(2, 3)),
    (nr::__NR_stat, Stores::Fixed(1, 144)),
    (nr::__NR_fstat, Stores::Fixed(1, 144)),
    (nr::__NR_lstat, Stores::Fixed(1, 144)),
    (nr::__NR_newfstatat, Stores::Fixed(2, 144)),
    (nr::__NR_statx, Stores::Fixed(4, 256)),
    (nr::__NR_statfs, Stores::Fixed(1, 120)),
    (nr::__NR_fstatfs, Stores::Fixed(1, 120)),
    (nr::__NR_clock_gettime, Stores::Fixed(1, 16)),
    (nr::__NR_clock_nanosleep, Stores::Fixed(3, 16)),
    (nr::__NR_nanosleep, Stores::Fixed(1, 16)),
    (nr::__NR_gettimeofday, Stores::Fixed(0, 16)),
    (nr::__NR_pipe, Stores::Fixed(0, 8)),
    (nr::__NR_pipe2, Stores::Fixed(0, 8)),
    (nr::__NR_socketpair, Stores::Fixed(3, 8)),
    (nr::__NR_wait4, Stores::Fixed(1, 4)),
    (nr::__NR_waitid, Stores::Fixed(2, 128)),
    (nr::__NR_vmsplice, Stores::Vector(1, 2)),
    (nr::__NR_epoll_pwait, Stores::Array(1, 2, 12)),
    (nr::__NR_getrusage, Stores::Fixed(1, 144)),
    (nr::__NR_uname, Stores::Fixed(0, 390)),
    (nr::__NR_sysinfo, Stores::Fixed(0, 112)),
    (nr::__NR_poll, Stores::Array(0, 1, 8)),
    (nr::__NR_ppoll, Stores::Array(0, 1, 8)),
    (nr::__NR_epoll_wait, Stores::Array(1, 2, 12)),
];

/// Whether a call is looked at.
pub(crate) fn stores(number: u32) -> bool {
    CALLS.iter().any(|&(other, _)| other == number)
}

/// From now on calls are looked at.
pub(super) fn begin() {
    if !ACTIVE.swap(true, Ordering::AcqRel) {
        CALLS.iter().for_each(|(number, _)| WANTED[*number as usize].store(1, Ordering::Relaxed));
    }
}

/// The program opens a file with O_DIRECT.
pub(crate) fn begin_direct() {
    if !DIRECT.swap(true, Ordering::AcqRel) {
        begin();
    }
}

/// Whether a call is a read past the page cache, from a file that is not served.
fn is_direct_read(call: &Call) -> bool {
    let is_read = DIRECT.load(Ordering::Relaxed) && READS.iter().any(|&number| number as usize == call.number);
    is_read && fcntl_getfl(directory::borrow(call.descriptor(0))).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

/// In a deputy: no mapping is its own.
pub(super) fn abandon() {
    ACTIVE.store(false, Ordering::Relaxed);
}

/// A call that is not served. If it may store into what has to be let through, it is made by the
/// stub, with that lent to it.
#[inline]
pub(crate) fn serve(call: &mut Call, verdict: Verdict) -> Verdict {
    let has_more_to_do = call.then.is_some() && !listing::lists(call.number);
    if ACTIVE.load(Ordering::Relaxed) && super::any() && !matches!(verdict, Verdict::Done(_)) && !has_more_to_do {
        lend(call, verdict)
    } else {
        verdict
    }
}

#[cold]
fn lend(call: &mut Call, verdict: Verdict) -> Verdict {
    let ranges = buffers(call);
    if ranges.is_empty() {
        return verdict;
    }
    let mut table = table();
    let mut lent = false;
    for &range in &ranges {
        lent |= table.lend(range) || table.is_tracked(range) && is_direct_read(call);
    }
    if !lent {
        return verdict;
    }
    call.then = Some(returned);
    match verdict {
        Verdict::Pass => Verdict::PassWith { number: call.number, args: call.args },
        verdict => verdict,
    }
}

fn returned(call: &mut Call) -> isize {
    let ranges = buffers(call);
    let mut result = call.result;
    if result == FAULT && ranges.iter().any(|&(start, end)| super::fault::let_through(start, end - start)) {
        // Stores were kept out just then for another reason. What the kernel wanted to store is
        // still there.
        let [number, args @ ..] = call.instead;
        // SAFETY: the call that was just made.
        result = unsafe { syscall(number, args) };
    }
    if listing::lists(call.number) {
        call.result = result;
        result = listing::listed(call);
    }
    let is_direct = is_direct_read(call);
    let mut table = table();
    for range in ranges {
        table.take_lent(range);
        if is_direct {
            table.owe(range);
        }
    }
    result
}

/// What of a served call's buffers has to be let through, lent to it while it is tried again: the
/// period would take it back in the middle of a long one.
pub(crate) struct Lent {
    ranges: Vec<(usize, usize)>,
    is_any: bool,
}

impl Lent {
    /// Lends to a call that found no way to store to a buffer of the program.
    pub(crate) fn to(call: &Call) -> Self {
        let ranges = if ACTIVE.load(Ordering::Relaxed) && super::any() { buffers(call) } else { Vec::new() };
        let is_any = ranges.iter().fold(false, |lent, &range| table().lend(range) | lent);
        Self { ranges, is_any }
    }

    /// Whether anything of the buffers has to be let through.
    pub(crate) const fn is_any(&self) -> bool {
        self.is_any
    }

    /// Lets stores through where they are not by now. Says whether that was so somewhere.
    pub(crate) fn let_through(&self) -> bool {
        self.ranges.iter().fold(false, |given, &(start, end)| super::fault::let_through(start, end - start) | given)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        for &range in &self.ranges {
            table().take_lent(range);
        }
    }
}

/// What the call stores to, as ranges of addresses; those behind pointers that are not there are
/// left out.
fn buffers(call: &Call) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut add = |start: usize, bytes: usize| {
        if let Some(end) = start.checked_add(bytes).filter(|&end| start != 0 && end > start) {
            found.push((start, end));
        }
    };
    let Some((_, stores)) = CALLS.iter().find(|(number, _)| *number as usize == call.number) else { return found };
    let vector = |start: usize, count: usize, add: &mut dyn FnMut(usize, usize)| {
        for index in 0..count.min(UIO_MAXIOV) {
            if let Ok([base, bytes]) = program::read::<[usize; 2]>(start.wrapping_add(index * 16)) {
                add(base, bytes);
            }
        }
    };
    let args = &call.args;
    match *stores {
        Stores::Buffer(start, bytes) => add(args[start], args[bytes]),
        Stores::Fixed(start, bytes) => add(args[start], bytes),
        Stores::Vector(start, count) => vector(args[start], args[count], &mut add),
        Stores::Array(start, count, bytes) => add(args[start], args[count].saturating_mul(bytes)),
        Stores::Message(start) => {
            add(args[start], 56);
            // Name and its length, vector and its count, control and its length.
            if let Ok(words) = program::read::<[usize; 6]>(args[start]) {
                add(words[0], words[1] & 0xffff_ffff);
                vector(words[2], words[3], &mut add);
                add(words[4], words[5]);
            }
        }
    }
    found
}

impl Mappings {
    /// Lets stores to a range through until [`Self::take_lent`]. False if nothing in it has to be.
    fn lend(&mut self, (start, end): (usize, usize)) -> bool {
        let mut lent = false;
        for index in self.touching(start, end) {
            let mapping = &mut self.list[index];
            if mapping.rights.is_none() || !mapping.is_writable() {
                continue;
            }
            if let Some(rights) = &mut mapping.rights {
                rights.lent.push((start, end));
                lent = true;
            }
            let (from, to) = mapping.part(start, end);
            // If the right cannot be given, the kernel refuses the call.
            self.give_part(index, from / PAGE * PAGE, to);
        }
        lent
    }

    /// Whether the kernel tracks stores to a part of a range.
    fn is_tracked(&self, (start, end): (usize, usize)) -> bool {
        self.list[self.touching(start, end)].iter().any(|mapping| mapping.followed && !mapping.tells_stores())
    }

    /// What of a range lies in mappings whose stores the kernel tracks is to be followed although
    /// the tracker may not name it.
    fn owe(&mut self, (start, end): (usize, usize)) {
        for index in self.touching(start, end) {
            let mapping = &self.list[index];
            let (from, to) = mapping.part(start / PAGE * PAGE, end.min(mapping.composed).next_multiple_of(PAGE));
            let range = (mapping.offset_at(from), mapping.offset_at(to));
            let attribute = mapping.file.attribute();
            if !mapping.followed || mapping.tells_stores() || from >= to {
                continue;
            }
            let followed = self.files.iter_mut().find(|followed| followed.mapped.file().attribute() == attribute);
            if let Some(followed) = followed {
                followed.owe(range);
            }
        }
    }

    fn take_lent(&mut self, range: (usize, usize)) {
        for index in self.touching(range.0, range.1) {
            if let Some(rights) = &mut self.list[index].rights
                && let Some(place) = rights.lent.iter().position(|&lent| lent == range)
            {
                rights.lent.swap_remove(place);
            }
        }
    }
}
