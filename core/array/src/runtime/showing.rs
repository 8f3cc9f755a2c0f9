//! Which process has mappings of which file, also mappings to load from only, in the runtime
//! segment. So each process learns at once that a file was cut, that its mappings show a shared
//! copy from now on, or that a member is out.
//!
//! A process has a bit for each file that it has mappings of, and a thread that hears the bell.
//! When the thread has looked at all mappings, it notes how often the bell had been rung before.
//! That needs no lock and has no limit. The ranges that a process may store to are in
//! [`crate::mapped`].
//!
//! Invariant: a process sets the bit of a file before it looks at the file's state to show it. A
//! process that changes that state rings the bell afterwards and then looks at the bits. So a
//! mapping shows the new state from its beginning, or its process is waited for.

use super::attach::{owner_id, slot_of, taken_slots_in};
use super::{FileEntry, MAGIC, OPEN_WORDS, Runtime, Segment, VERSION};
use crate::liveness::{ProcessId, process_lives};
use crate::mapped::UNITS_BYTES;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use sync::OwnerId;
use sys::rustix::fs::{self, Mode, OFlags};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::rustix::time::Timespec;

/// How often it is asked at most whether others have looked: a process that is stopped does not.
pub const ANSWER_STEPS: u32 = 1000;
/// And how long is rested in between.
pub const ANSWER_STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// Whether this process found a member failing and has not waited yet for the others to hear of it.
static FOUND_FAILING: AtomicBool = AtomicBool::new(false);

/// Whether [`Runtime::await_others`] is due.
#[inline]
#[must_use]
pub fn others_are_to_hear() -> bool {
    FOUND_FAILING.load(Ordering::Relaxed)
}

/// The segment is lost: the program's next call says so.
pub(super) fn note_loss() {
    FOUND_FAILING.store(true, Ordering::Relaxed);
}

/// What processes have of an array's files in memory mappings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MappingCounts {
    /// Living processes with mappings.
    pub processes: usize,
    /// Files that any of them has mappings of.
    pub files: usize,
    /// Files whose stores they follow in each of [`UNITS_BYTES`]. One can be among several.
    pub files_by_unit: [usize; UNITS_BYTES.len()],
}

/// Counts them without attaching to the array. None if its segment is not there, is another
/// version's, or may not be read.
#[must_use]
pub fn count_mappings(uuid: format::Uuid) -> Option<MappingCounts> {
    look_at(uuid, count_in)
}

/// Runs `look` on an array's segment without attaching to the array. None if the segment is not
/// there, is of another length, or may not be read.
pub(super) fn look_at<T>(uuid: format::Uuid, look: impl Fn(&Segment) -> Option<T>) -> Option<T> {
    super::segment_paths(uuid).into_iter().find_map(|path| look_at_path(&path, &look))
}

fn look_at_path<T>(path: &str, look: impl Fn(&Segment) -> Option<T>) -> Option<T> {
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty()).ok()?;
    let bytes = size_of::<Segment>();
    if fs::fstat(&file).ok()?.st_size as usize != bytes {
        return None;
    }
    // SAFETY: a new mapping of the whole file, unmapped below.
    let start = unsafe { mmap(core::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.ok()?;
    // SAFETY: mapped above, unmapped below; any bytes are valid.
    unsafe { persist::stand_in::begin(start as usize, bytes, 0, |_, _| ()) };
    // SAFETY: as long as the segment; all fields are atomics, any bytes are valid, and nothing is
    // stored.
    let found = unsafe { start.cast::<Segment>().as_ref() }.and_then(look);
    persist::stand_in::end(start as usize);
    // SAFETY: the mapping made above; nothing of it is kept.
    let _ = unsafe { munmap(start, bytes) };
    found
}

fn count_in(segment: &Segment) -> Option<MappingCounts> {
    if segment.magic.load(Ordering::Acquire) != MAGIC || segment.version.load(Ordering::Relaxed) != VERSION {
        return None;
    }
    let shows = |&index: &usize| {
        let slot = &segment.attach[index];
        let pid = slot.pid.load(Ordering::Acquire);
        let start_ticks = slot.start_ticks.load(Ordering::Relaxed);
        let taken = slot.tenancy.load(Ordering::Acquire) & 1 == 1 && slot.shown_count.load(Ordering::Relaxed) != 0;
        taken && pid != 0 && process_lives(ProcessId { pid, start_ticks })
    };
    let owns = |owner: OwnerId| {
        let index = slot_of(owner);
        let tenancy = segment.attach[index].tenancy.load(Ordering::Acquire);
        owner_id(index, tenancy) == owner && shows(&index)
    };
    let mut counts = MappingCounts::default();
    let mut shown = [0u64; OPEN_WORDS];
    for index in taken_slots_in(segment).filter(shows) {
        counts.processes += 1;
        shown.iter_mut().zip(&segment.shown_by_slot[index]).for_each(|(all, own)| *all |= own.load(Ordering::Relaxed));
    }
    counts.files_by_unit = segment.mapped.files_by_unit(owns);
    counts.files = shown.iter().map(|word| word.count_ones() as usize).sum();
    Some(counts)
}

impl Runtime {
    /// This process begins to have mappings of an entered file. Called once, until
    /// [`Self::end_showing`].
    pub fn begin_showing(&self, entry: FileEntry) {
        let (segment, slot) = (self.segment(), slot_of(self.me()));
        segment.files[entry.index].shown.fetch_add(1, Ordering::SeqCst);
        segment.attach[slot].shown_count.fetch_add(1, Ordering::Relaxed);
        segment.shown_by_slot[slot][entry.index / 64].fetch_or(1 << (entry.index % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// It has none any more.
    pub fn end_showing(&self, entry: FileEntry) {
        let slot = slot_of(self.me());
        self.end_showing_word(slot, entry.index / 64, 1 << (entry.index % 64));
    }

    fn end_showing_word(&self, slot: usize, word: usize, wanted: u64) {
        let segment = self.segment();
        let mut bits = segment.shown_by_slot[slot][word].fetch_and(!wanted, Ordering::SeqCst) & wanted;
        while bits != 0 {
            let file = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            segment.files[file].shown.fetch_sub(1, Ordering::Relaxed);
            segment.attach[slot].shown_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The process of a slot is gone, or begins.
    pub(super) fn end_showing_in(&self, slot: usize) {
        let attached = &self.segment().attach[slot];
        attached.listener.store(0, Ordering::Release);
        if attached.shown_count.load(Ordering::Relaxed) != 0 {
            (0..OPEN_WORDS).for_each(|word| self.end_showing_word(slot, word, u64::MAX));
            attached.shown_count.store(0, Ordering::Relaxed);
        }
    }

    /// Names the thread that hears the bell for this process; 0 for none.
    pub fn set_listener(&self, thread: u32) {
        self.segment().attach[slot_of(self.me())].listener.store(thread, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Notes that this process has looked at all of its mappings since the bell had been rung
    /// `rings` times.
    pub fn hear(&self, rings: u32) {
        self.segment().attach[slot_of(self.me())].heard.store(rings, Ordering::Release);
    }

    /// What was noted last; at first, how often the bell had been rung when this process attached.
    #[must_use]
    pub fn heard(&self) -> u32 {
        self.segment().attach[slot_of(self.me())].heard.load(Ordering::Acquire)
    }

    /// Whether another process than this has mappings of the file.
    #[must_use]
    pub fn is_shown_by_others(&self, entry: FileEntry) -> bool {
        fence(Ordering::SeqCst);
        let shown = self.segment().files[entry.index].shown.load(Ordering::SeqCst);
        shown > 1 || shown == 1 && !self.shows(slot_of(self.me()), entry)
    }

    fn shows(&self, slot: usize, entry: FileEntry) -> bool {
        self.segment().shown_by_slot[slot][entry.index / 64].load(Ordering::SeqCst) >> (entry.index % 64) & 1 == 1
    }

    /// Whether the process has looked at its mappings since the bell was rung for the `rings`th
    /// time.
    #[must_use]
    pub fn has_heard(&self, owner: OwnerId, rings: u32) -> bool {
        let slot = &self.segment().attach[slot_of(owner)];
        let heard = slot.heard.load(Ordering::Acquire);
        owner_id(slot_of(owner), slot.tenancy.load(Ordering::Acquire)) == owner && heard.wrapping_sub(rings) as i32 >= 0
    }

    /// The processes but this one that have mappings of the file (None: of any file) and a thread
    /// that hears the bell, but have not looked at them since the bell was rung for the `rings`th
    /// time.
    pub fn unheard_by(&self, entry: Option<FileEntry>, rings: u32) -> impl Iterator<Item = OwnerId> {
        // A process that has detached is none of them, and is not attached again for this.
        let me = self.own().map(slot_of);
        let waits = move |&index: &usize| {
            let slot = &self.segment().attach[index];
            let listener = slot.listener.load(Ordering::Acquire);
            Some(index) != me
                && listener != 0
                && slot.shown_count.load(Ordering::Acquire) != 0
                && entry.is_none_or(|entry| self.shows(index, entry))
                && (slot.heard.load(Ordering::Acquire).wrapping_sub(rings) as i32) < 0
                // It dies with the process, and when that becomes another program. Of a process that
                // is killed it may be gone while another thread still waits for a processor to die on:
                // what that process has left is not to be seen before all of its threads are gone.
                && (sys::task::is_there(slot.pid.load(Ordering::Acquire), listener) || self.slot_lives(index) && !self.was_this_process(index))
        };
        self.taken_slots()
            .filter(waits)
            .filter_map(|index| OwnerId::new(owner_id(index, self.segment().attach[index].tenancy.load(Ordering::Acquire)).get()))
    }

    /// Another process is to hear of a member that this one took out.
    pub(super) fn note_failing(&self) {
        FOUND_FAILING.store(true, Ordering::Relaxed);
    }

    /// This process found a member failing: waits until the mappings of the others do not show it
    /// any more, or one does not answer. No lock is held.
    #[cold]
    pub fn await_others(&self) {
        if !FOUND_FAILING.swap(false, Ordering::AcqRel) {
            return;
        }
        let rings = self.rings();
        for _ in 0..ANSWER_STEPS {
            if self.unheard_by(None, rings).next().is_none() {
                return;
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
    }
}
