//! The shared mappings of array files in this address space: what each address means, and which of
//! it can be stored to.
//!
//! A mapping is *composed* of pieces of the members' chunks up to the end of its file
//! ([`compose`]). The rest is the mapping of an empty file, on which the kernel sends SIGBUS as it
//! does behind any file's end, until the file has grown ([`fault`]). The pages of a mapping that
//! can be stored to are watched, and the redundancy of those stored to *follows* ([`follow`]): when
//! the program asks for it, when the mapping goes, and by a short period ([`helper`]). [`change`]
//! holds what munmap, mprotect, mremap and their like do to a mapping, [`process`] what fork, exec
//! and the end of the process do.
//!
//! Invariants:
//! - The table is changed together with the address space, under its lock. It is the first lock of
//!   all: taken before those of the open files.
//! - Code of the program never runs with the lock held, so a fault of the program may take it.
//! - A page that can be stored to is watched, and its file's range is announced, before the program
//!   learns of it.
//! - Nothing watched is unmapped without having been followed, with stores kept out meanwhile.

pub(crate) mod advice;
pub(crate) mod change;
pub(crate) mod compose;
pub(crate) mod fault;
pub(crate) mod follow;
mod helper;
pub(crate) mod lend;
pub(crate) mod private;
mod private_move;
pub(crate) mod process;
pub(crate) mod quiet;
mod rights;
mod robust;
mod runs;
pub(crate) mod several;
mod unit;
mod unused;

use crate::lock::{Guard, Lock};
use core::sync::atomic::{AtomicUsize, Ordering};
use file::{Mapped, Shown};
use heap::boxed::Box;
use heap::vec::Vec;
use linux_raw_sys::general::PROT_WRITE;
use runs::Runs;
use sys::OsError;
use sys::tracking::Tracker;
use units::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES;

/// One shared mapping, or what is left of one.
struct Mapping {
    /// Addresses `start..end`.
    start: usize,
    end: usize,
    /// The offset in the file that `start` shows, a multiple of the page size.
    offset: u64,
    file: Shown,
    /// What the program wants: PROT_*.
    protection: usize,
    /// MAP_* that pieces composed later get too.
    flags: usize,
    /// Whether the descriptor it was made from could be written to.
    may_write: bool,
    /// Up to this address it is composed of pieces.
    composed: usize,
    /// Whether it could be stored to at some time: the process has a record that says so.
    stored: bool,
    /// Whether it is watched, because what is stored is to be followed.
    followed: bool,
    /// Where its pieces were taken from ([`file::Inode::mapping_source`]).
    source: u32,
    /// Whether it shows the file's shared copy and not the members.
    copied: bool,
    /// Whether stores are kept out until the shared copy can be made.
    sealed: bool,
    /// Where stores are let through one granule at a time; None: everywhere.
    rights: Option<rights::Rights>,
    /// What others had told ([`file::Inode::news`]) before it was last brought up to date.
    answered: (u32, u64),
    /// Whether a child of fork is not to have it.
    dont_fork: bool,
    /// Whether huge pages are to be kept where there are any ([`unit`]).
    wants_huge: bool,
    /// Whether what was watched of it last keeps them.
    shows_huge: bool,
    /// A page on which the program is about to get a SIGBUS for want of space.
    broken: Option<usize>,
    /// How many page faults the process had had when the last scan of all of it began ([`quiet`]);
    /// None if it is not known to be protected.
    quiet_since: Option<u64>,
    /// A scan of all of it that is under way: up to which address it has come, and how many page
    /// faults the process had had when it began.
    pass: Option<(usize, u64)>,
}

impl Mapping {
    /// A mapping of the same file and with the same rights, from `offset` on, that is nowhere yet.
    fn again(&self, offset: u64) -> Self {
        Self {
            start: 0,
            end: 0,
            offset,
            file: self.file.clone(),
            protection: self.protection,
            flags: self.flags,
            may_write: self.may_write,
            composed: 0,
            stored: false,
            followed: false,
            source: self.source,
            copied: self.copied,
            sealed: self.sealed,
            rights: None,
            answered: self.answered,
            dont_fork: self.dont_fork,
            wants_huge: self.wants_huge,
            shows_huge: self.shows_huge,
            broken: None,
            quiet_since: None,
            pass: None,
        }
    }

    fn offset_at(&self, address: usize) -> u64 {
        self.offset + (address - self.start) as u64
    }

    fn end_offset(&self) -> u64 {
        self.offset_at(self.end)
    }

    const fn is_writable(&self) -> bool {
        self.protection & PROT_WRITE as usize != 0
    }

    /// The part of it in `start..end`.
    fn part(&self, start: usize, end: usize) -> (usize, usize) {
        (self.start.max(start), self.end.min(end))
    }
}

/// A file with mappings that could be stored to or show a shared copy.
struct Followed {
    mapped: Mapped,
    /// The ranges that could not be followed when it was tried; each period tries them again.
    owed: Runs,
}

impl Followed {
    /// Whether bytes that the program stored are nowhere but in the file's shared copy.
    fn keeps_bytes(&self) -> bool {
        !self.owed.is_empty() && self.mapped.file().is_copied()
    }

    /// Notes a range that is to be followed, or followed once more. The list does not grow when the
    /// same pages fail in every round.
    fn owe(&mut self, (start, end): (u64, u64)) {
        self.owed.add(start, end);
    }

    /// Follows what is owed, until `failures_max` ranges have failed. Other processes hear from the
    /// record whether something is left.
    fn follow_owed(&mut self, failures_max: usize) -> Result<(), OsError> {
        let (mapped, mut result, mut failure_count) = (&self.mapped, Ok(()), 0);
        self.owed.retain(|range| {
            if failure_count >= failures_max {
                return true;
            }
            let done = mapped.follow([range]);
            failure_count += usize::from(done.is_err());
            result = result.and(done);
            done.is_err()
        });
        mapped.note_failure(result.err());
        result
    }

    /// The process ends. What could not be followed is left to whoever opens the file next, with
    /// the shared copy if it is there.
    fn leave(self) {
        if self.keeps_bytes() {
            return self.mapped.leave_unfollowed();
        }
        self.note_owed();
    }

    /// What could not be followed is left to whoever opens the file next.
    fn note_owed(&self) {
        self.owed.iter().for_each(|(start, end)| self.mapped.owe(start, end));
    }
}

/// All of them.
struct Mappings {
    /// Ascending, disjoint. Each in memory of its own: they are taken out and put back one by one,
    /// and a program may have tens of thousands.
    #[expect(clippy::vec_box, reason = "a mapping is large, and the list is shifted")]
    list: Vec<Box<Mapping>>,
    files: Vec<Followed>,
    tracker: Option<Tracker>,
    /// Private ones, in no order.
    privates: Vec<private::Private>,
    unused: unused::Copies,
    /// The number of mappings that are being put in a place where one may just have gone
    /// ([`Mappings::composing`]).
    composing: usize,
}

static MAPPINGS: Lock<Mappings> = Lock::new(Mappings {
    list: Vec::new(),
    files: Vec::new(),
    tracker: None,
    privates: Vec::new(),
    unused: unused::Copies::new(),
    composing: 0,
});
/// The number of shared mappings that are there or are being composed, and files without any whose
/// bytes are kept ([`Followed::keeps_bytes`]); read without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any: nearly no program has.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Tells whether a shared mapping of a file of the array lies on one of the `bytes` from `start` on.
pub(crate) fn touches(start: usize, bytes: usize) -> bool {
    any() && start.checked_add(bytes).is_some_and(|end| !table().touching(start, end).is_empty())
}

/// In a deputy: the mappings are its process', which follows them.
pub(crate) fn abandon() {
    MAPPINGS.raw().reset();
    let mut table = table();
    core::mem::forget(core::mem::take(&mut table.list));
    core::mem::forget(core::mem::take(&mut table.files));
    core::mem::forget(table.tracker.take());
    core::mem::forget(core::mem::take(&mut table.privates));
    core::mem::forget(core::mem::replace(&mut table.unused, unused::Copies::new()));
    table.composing = 0;
    COUNT.store(0, Ordering::Release);
    private::abandon();
    fault::abandon();
    unused::abandon();
    lend::abandon();
    helper::forget();
}

fn table() -> Guard<'static, Mappings> {
    MAPPINGS.lock()
}

impl Mappings {
    /// The mapping that holds `address`.
    fn at(&self, address: usize) -> Option<usize> {
        let index = self.list.partition_point(|mapping| mapping.end <= address);
        self.list.get(index).filter(|mapping| mapping.start <= address).map(|_| index)
    }

    /// The mappings that touch `start..end`.
    fn touching(&self, start: usize, end: usize) -> core::ops::Range<usize> {
        let first = self.list.partition_point(|mapping| mapping.end <= start);
        let last = self.list.partition_point(|mapping| mapping.start < end);
        first..last.max(first)
    }

    /// Whether any mapping of the array's files, shared or private, touches `start..end`.
    fn touches_any(&self, start: usize, end: usize) -> bool {
        !self.touching(start, end).is_empty() || self.touches_private(start, end)
    }

    /// Does what composes a mapping. From its beginning on there is one for who asks without the
    /// lock: another thread that meets what the addresses show meanwhile, or changes them, waits.
    fn composing<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.composing += 1;
        self.count();
        let result = work(self);
        self.composing -= 1;
        self.count();
        result
    }

    fn insert(&mut self, mapping: Mapping) {
        fault::reach(mapping.start, mapping.end);
        let index = self.list.partition_point(|present| present.start < mapping.start);
        self.list.insert(index, Box::new(mapping));
        self.count();
    }

    /// Cuts the mapping that holds `address` in two there.
    fn split(&mut self, address: usize) {
        let Some(index) = self.at(address).filter(|&index| self.list[index].start < address) else { return };
        let mapping = &mut self.list[index];
        let upper = Mapping {
            start: address,
            end: mapping.end,
            composed: mapping.composed.max(address),
            stored: mapping.stored,
            followed: mapping.followed,
            rights: mapping.rights.clone(),
            ..mapping.again(mapping.offset_at(address))
        };
        mapping.end = address;
        mapping.composed = mapping.composed.min(address);
        self.list.insert(index + 1, Box::new(upper));
        self.count();
    }

    /// Forgets the mappings in `start..end`; they have been followed.
    fn forget(&mut self, start: usize, end: usize) {
        self.split(start);
        self.split(end);
        let range = self.touching(start, end);
        self.list.drain(range);
        self.forget_files();
    }

    /// Whether the process has a mapping of a file that could be stored to or shows a shared copy.
    fn is_used(&self, followed: &Followed) -> bool {
        let number = followed.mapped.file().attribute();
        self.list.iter().any(|mapping| (mapping.stored || mapping.copied) && mapping.file.attribute() == number)
    }

    /// Notes how many mappings and kept files there are, and mappings being composed.
    fn count(&self) {
        let kept = self.files.iter().filter(|followed| followed.keeps_bytes() && !self.is_used(followed)).count();
        COUNT.store(self.list.len() + kept + self.composing, Ordering::Release);
    }

    /// Files without such mappings give their announcement back. What could not be followed is left
    /// to whoever opens the file next, unless the file's shared copy alone has it: then the file is
    /// kept until it can be followed.
    fn forget_files(&mut self) {
        let list = &self.list;
        let is_unused = |followed: &mut Followed| {
            let number = followed.mapped.file().attribute();
            !followed.keeps_bytes()
                && !list.iter().any(|mapping| (mapping.stored || mapping.copied) && mapping.file.attribute() == number)
        };
        for followed in self.files.extract_if(.., is_unused) {
            followed.note_owed();
            self.unused.keep(followed.mapped);
        }
        for followed in self.files.iter().filter(|followed| followed.mapped.units().count_ones() > 1) {
            // Of one unit none may have gone without the file.
            unit::note_units(list, followed);
        }
        self.count();
    }
}
