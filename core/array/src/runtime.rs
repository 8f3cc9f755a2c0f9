//! The runtime segment: what the processes attached to one array share while they run.
//!
//! It is a file in shared memory, one per array, and is gone with the machine. It holds the
//! attached processes, which members are out (with an epoch), the open files with their locks, and
//! the owners of lanes. What must survive a restart is on the members.
//!
//! Invariants: every word is an atomic or a lock, and all zeros is the empty state. A process that
//! dies at any instruction leaves what the next can take over: a slot names pid and start time, a
//! lock names its slot, a slot lists the files it holds open.

mod anchors;
mod aside;
mod attach;
mod caching;
pub mod counters;
mod entry;
mod executing;
mod job;
mod joining;
mod last;
mod leaving;
pub mod litter;
mod open_files;
mod others;
mod reading;
mod roots;
mod showing;
mod stamps;
mod unused;
mod waits;
mod watchers;

pub use anchors::Anchors;
pub use aside::{Loss, loss};
use aside::{lose, pid_namespace};
pub use attach::ATTACH_SLOT_COUNT;
use attach::{AttachSlot, owner_id, slot_of};
pub use entry::{find_segment, segment_paths};
pub use executing::Executing;
pub use job::{Job, JobBoard, JobKind, JobState, JobWish, look_for_job};
pub use last::is_filtered;
pub use open_files::{FileEntry, SharedFile};
pub(crate) use roots::{Directory, directories_in_use};
pub use showing::{ANSWER_STEP, ANSWER_STEPS, MappingCounts, count_mappings, others_are_to_hear};
pub use stamps::TICK_NS;

use crate::mapped::MappedRecords;
use crate::shares::Shares;
use crate::undo::{Undo, UndoRecord, UndoRecords};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sync::{Acquired, Liveness, OwnedLock, OwnerId};
use sys::AsRawFd as _;
use sys::high_fd::Raised;
use sys::rustix::fs::{self, FlockOperation, Mode};
use sys::rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use sys::rustix::thread::futex;
use sys::rustix::time::Timespec;
use sys::{OsError, Result};
use units::MemberSet;

/// Files that can be open at once, by all processes together.
pub const OPEN_FILE_COUNT: usize = 16384;
/// Stripe locks per open file.
pub const STRIPE_LOCK_COUNT: usize = 64;
/// Files that a process may keep ready to be opened again.
pub const IDLE_COUNT: usize = 64;
const OPEN_WORDS: usize = OPEN_FILE_COUNT / 64;
const MAGIC: u64 = u64::from_le_bytes(*b"CXLRrun\x01");
/// Raised whenever the layout below changes.
const VERSION: u32 = 44;

/// The thread that uses a lane of the journal, on a line of its own: 0 free, otherwise owner in the
/// upper half and thread id in the lower, or [`JOURNAL_LANE_WAITS`].
#[repr(C, align(64))]
pub struct JournalLane(pub AtomicU64);

/// In a journal lane's word: its record waits to be replayed.
pub const JOURNAL_LANE_WAITS: u64 = u64::MAX;

#[repr(C, align(4096))]
struct Segment {
    magic: AtomicU64,
    version: AtomicU32,
    /// Members not in use, one bit per slot.
    out: AtomicU32,
    /// Raised with every change of `out`.
    epoch: AtomicU64,
    /// Attached processes that may watch files of the array.
    watchers: AtomicU32,
    /// How often watchers were told of something.
    events_told: AtomicU32,
    /// The `out` that the superblocks in use have recorded.
    out_recorded: AtomicU32,
    /// 1: the superblocks say that the array is in use again ([`crate::superblock`]).
    use_recorded: AtomicU32,
    /// 1: the last use of the array was ended in order, nothing waited to be made good then, and
    /// nothing was changed since.
    is_as_ended: AtomicU32,
    /// The event count of the array when its last use was ended in order.
    ended_count: AtomicU64,
    /// The least mark that tables of members in use have.
    use_count: AtomicU64,
    /// Members out of use whose loss somebody was told of.
    out_told: AtomicU32,
    /// Members that went out, or are about to, without an error that anybody met, as bits.
    left_in_order: AtomicU32,
    /// Members of which somebody met an error since they came into use, as bits.
    met_errors: AtomicU32,
    /// 1 once a process could not mark a file that it changed while a member was out
    /// ([`crate::changed`]).
    marks_missing: AtomicU32,
    /// How each of them left: [`format::Leave::token`] and [`format::Leave::left_ns`]; 0 if not
    /// known.
    leaves: [[AtomicU64; 2]; units::MEMBER_COUNT_MAX],
    /// Members that are about to go out.
    leaving: leaving::Leaving,
    /// Members that come into use while programs run.
    joins: joining::Joins,
    /// Which copies are read.
    shares: Shares,
    /// Raised with every change of the array's rules while the segment is there; 0: none yet.
    rules_epoch: AtomicU64,
    /// Held by changes of names.
    namespace: OwnedLock,
    /// Held while a file's entry is found, made or given back.
    open_lock: OwnedLock,
    /// Held while inode numbers are given out.
    inode_lock: OwnedLock,
    /// Held while a process takes a descriptor of another one (pidfd_getfd(2)).
    fetch_lock: OwnedLock,
    /// Held while superblocks are written; nothing else is waited for meanwhile.
    superblock_lock: OwnedLock,
    /// 1 while a change of names waits to be made good that a process left unfinished when it died;
    /// [`NAMES_WAIT_FOR_MEMBER`].
    names_unfinished: AtomicU32,
    told_time: stamps::ToldTime,
    /// Where the log of names is.
    names_log: NamesLog,
    /// Raised before and after every change of where directories and symlinks lie: odd in between.
    names_epoch: AtomicU64,
    /// Files kept ready by all processes together.
    idle_count: AtomicU32,
    /// Raised when a file is gone whose backing files others keep and nobody could cut: they let go
    /// of what they keep.
    idle_recalls: AtomicU32,
    /// Where to look for a free inode next.
    inode_hint: AtomicU64,
    /// Every directory that was a member's root since the segment was made, lost ones too.
    roots: roots::Roots,
    /// Which directory each member is.
    directories: roots::Directories,
    /// 1 once the process that assembled the array has finished.
    assembled: AtomicU32,
    /// 1 once a process ended without giving back what it held.
    unclean: AtomicU32,
    /// Held while what a crash left behind is made good.
    recovery_lock: OwnedLock,
    /// How far that is: a [`Recovery`].
    recovered: AtomicU32,
    /// The PID namespace that the pids below belong to.
    pid_namespace: AtomicU64,
    attach: [AttachSlot; ATTACH_SLOT_COUNT],
    /// One bit for each slot that is taken by a process.
    attached: [AtomicU64; ATTACH_SLOT_COUNT / 64],
    lanes: [AtomicU64; format::LANE_COUNT],
    /// The thread that uses each lane of the journal.
    journal_lanes: [JournalLane; format::JOURNAL_LANE_COUNT_MAX],
    /// Held while what a dead process left in the journal is replayed.
    journal_lock: OwnedLock,
    /// 1 once the journal's memory failed: nothing is written any more.
    journal_failed: AtomicU32,
    /// Held while what a dead process was in the middle of is undone.
    undo_lock: OwnedLock,
    waits_lock: OwnedLock,
    undo: UndoRecords,
    mapped: MappedRecords,
    /// Raised to wake those that wait for something to happen to mapped files.
    bell: AtomicU32,
    /// The rebuild, replacement or scrub that runs.
    job: job::JobRecord,
    open_by_slot: [[AtomicU64; OPEN_WORDS]; ATTACH_SLOT_COUNT],
    /// The files that each process has mappings of, to load from or to store to.
    shown_by_slot: [[AtomicU64; OPEN_WORDS]; ATTACH_SLOT_COUNT],
    /// The files that each process caches ([`caching`]).
    cached_by_slot: [[AtomicU64; OPEN_WORDS]; ATTACH_SLOT_COUNT],
    /// The files that each process keeps ready: entry plus one, 0 for none.
    idle_by_slot: [[AtomicU32; IDLE_COUNT]; ATTACH_SLOT_COUNT],
    /// One bit per 64 entries of which one was ever used: so that looking through all of them
    /// touches few pages.
    used: [AtomicU64; OPEN_WORDS / 64],
    keys: [AtomicU64; OPEN_FILE_COUNT],
    files: [SharedFile; OPEN_FILE_COUNT],
    /// What threads count.
    counters: counters::Counters,
}

/// How far what a crash left behind was made good. It begins anew for the first process after a
/// crash of the machine, or after processes ended without giving back what they held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Recovery {
    /// Not at all, and the machine may have crashed.
    Needed = 0,
    /// Not at all, but only processes died.
    Deaths = 1,
    /// The tables agree, and what lanes named waits in the inode table.
    Tables = 2,
    /// Names as well.
    Done = 3,
}

/// Where the log of names is. The namespace lock is held by whoever looks at it.
#[derive(Default)]
pub struct NamesLog {
    /// The sequence of the newest record.
    pub sequence: AtomicU64,
    /// Where in the ring it ends.
    pub end: AtomicU64,
    /// Bytes of the ring whose changes the members' file systems may not have made durable.
    pub unsynced_bytes: AtomicU64,
}

/// A process as it is attached.
struct Myself {
    /// Its owner id; 0 if it is not attached.
    owner: AtomicU32,
    /// The descriptor of the segment's file, if it is.
    file: AtomicU32,
    /// 1 once zeros stand in for the segment.
    lost: AtomicU32,
}

/// In the segment: only a member that is away tells whether the last change of names was made.
const NAMES_WAIT_FOR_MEMBER: u32 = 2;
/// A pid that no process can have (proc(5), pid_max).
const NO_PID: u32 = i32::MAX as u32;

/// A process' view of the segment.
pub struct Runtime {
    segment: NonNull<Segment>,
    /// This process as it is attached, in a page that a fork wipes: all zeros in a new child.
    me: NonNull<Myself>,
    file: Raised,
    /// Where the file was when it was opened.
    path: alloc::string::String,
    /// The array's members; whatever else the segment says is out is none of them.
    members: MemberSet,
    /// Which members that were begun this process reaches.
    reach: joining::Reach,
    /// The owner this process found dead last; 0 for none.
    found_dead: AtomicU32,
    /// Whether this process gave back what a dead process held.
    reaped: AtomicBool,
    /// Whether this process gave back a file without a name that a dead process was the last to
    /// have open.
    reaped_nameless: AtomicBool,
}

// SAFETY: everything shared is atomics and locks; the pointers stay valid until drop.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

/// The segment's path for an array, if nobody else has made that name: [`find_segment`].
#[must_use]
pub fn segment_path(uuid: format::Uuid) -> alloc::string::String {
    alloc::format!("/dev/shm/cxlraid-{uuid}")
}

impl Runtime {
    /// Opens the segment of array `uuid`, making it if it is not there, and attaches this process.
    ///
    /// Returns whether this process is the only one attached (it then assembles: see
    /// [`Self::finish_assembly`]). The segment's file is locked until [`Self::let_in`]. `claim` is
    /// asked with the segment's device and inode number before anything in it is touched, and gives
    /// whether other processes use the array by way of this segment.
    ///
    /// # Errors
    /// `BUSY` if processes of another PID namespace use the segment: nobody could tell whether the
    /// owner of a lock lives. `TIMEDOUT` if a process keeps it locked. `NOSPC` if shared memory is
    /// full.
    pub fn open(
        uuid: format::Uuid,
        access: format::Access,
        claim: impl FnOnce(u64, u64) -> Result<bool>,
    ) -> Result<(Self, bool)> {
        let mode = Mode::from_raw_mode(access.mode & 0o666);
        let (file, stat, path) = entry::open_locked(uuid, access, mode)?;
        if stat.st_size == 0 {
            if sys::file_limit::bytes() < size_of::<Segment>() as u64 {
                // The kernel would kill the program that was limited.
                return Err(OsError::FBIG);
            }
            let _ = crate::access::give(&*file, access, mode.bits());
            fs::ftruncate(&file, size_of::<Segment>() as u64)?;
        } else if stat.st_size as usize != size_of::<Segment>() {
            return Err(OsError::PROTO);
        }
        let in_use = claim(stat.st_dev, stat.st_ino).inspect_err(|_| {
            if stat.st_size == 0 {
                // Made here, and the array is used by way of another one: nobody is to find this
                // one.
                let _ = fs::unlink(path.as_str());
            }
        })?;
        let runtime = Self::map(file, path)?;
        runtime.hold_file();
        let begun = runtime.begin(in_use);
        if let Some(why) = runtime.why_lost() {
            if stat.st_size == 0 {
                // Made here, and there is no room for it.
                let _ = fs::unlink(runtime.path.as_str());
            }
            return Err(why);
        }
        begun.map(|alone| (runtime, alone))
    }

    /// Attaches this process to the segment that it has mapped. Returns whether it is alone.
    fn begin(&self, in_use: bool) -> Result<bool> {
        let segment = self.segment();
        let pid_namespace = pid_namespace();
        if segment.magic.load(Ordering::Acquire) == 0 {
            segment.version.store(VERSION, Ordering::Relaxed);
            segment.pid_namespace.store(pid_namespace, Ordering::Relaxed);
            segment.magic.store(MAGIC, Ordering::Release);
        } else if segment.magic.load(Ordering::Relaxed) != MAGIC || segment.version.load(Ordering::Relaxed) != VERSION {
            return Err(OsError::PROTO);
        }
        if segment.pid_namespace.load(Ordering::Relaxed) != pid_namespace {
            if in_use {
                return Err(OsError::BUSY);
            }
            segment.pid_namespace.store(pid_namespace, Ordering::Relaxed);
        }
        let fresh = segment.assembled.load(Ordering::Acquire) == 0;
        if fresh {
            litter::sweep_after_long();
        }
        let alone = fresh || self.reap() == 0;
        if alone && !fresh {
            self.forget_open_files();
            if segment.unclean.load(Ordering::Relaxed) != 0 {
                // A crash that has not been made good stays one.
                segment.recovered.fetch_min(Recovery::Deaths as u32, Ordering::Relaxed);
                segment.unclean.store(0, Ordering::Relaxed);
            }
        }
        self.attach()?;
        Ok(alone)
    }

    fn map(file: Raised, path: alloc::string::String) -> Result<Self> {
        let (read_write, bytes) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Segment>());
        let wishes = [bytes, units::PAGE_BYTES].map(|bytes| sys::place::wish(bytes) as *mut _);
        // SAFETY: new mappings where the kernel agrees to them, of the file's full length and of
        // one page.
        let (segment, page) = unsafe {
            let segment = mmap(wishes[0], bytes, read_write, MapFlags::SHARED, &file, 0)?;
            let page = mmap_anonymous(wishes[1], units::PAGE_BYTES, read_write, MapFlags::PRIVATE)?;
            madvise(page, units::PAGE_BYTES, Advice::LinuxWipeOnFork)?;
            (segment, page)
        };
        let runtime = Self::of(segment.cast(), page.cast(), file, path)?;
        // SAFETY: mapped above until drop; atomics.
        unsafe { runtime.me.as_ref() }.file.store(runtime.file.as_raw_fd() as u32, Ordering::Relaxed);
        // SAFETY: mapped above until drop; atomics and locks, for which any bytes are valid.
        unsafe { persist::stand_in::begin(segment as usize, bytes, page as usize, lose) };
        Ok(runtime)
    }

    /// A view of what is mapped at these addresses, which is the view's from now on.
    fn of(segment: *mut Segment, page: *mut Myself, file: Raised, path: alloc::string::String) -> Result<Self> {
        match (NonNull::new(segment), NonNull::new(page)) {
            (Some(segment), Some(me)) => Ok(Self {
                segment,
                me,
                file,
                path,
                members: MemberSet::from_bits(u32::MAX),
                reach: joining::Reach::default(),
                found_dead: AtomicU32::new(0),
                reaped: AtomicBool::new(false),
                reaped_nameless: AtomicBool::new(false),
            }),
            _ => Err(OsError::NOMEM),
        }
    }

    /// Whether the segment is none any more: it was cut short, or written over. Nothing of the
    /// array can be used.
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.segment().magic.load(Ordering::Relaxed) != MAGIC
    }

    /// Member states are settled. Called by every process that opened the segment, before
    /// [`Self::let_in`].
    pub fn finish_assembly(&self) {
        self.segment().assembled.store(1, Ordering::Release);
    }

    /// Lets other processes in.
    pub fn let_in(&self) {
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }

    /// Whether what is to be made good may be a crash of the machine.
    pub fn is_after_crash(&self) -> bool {
        self.segment().recovered.load(Ordering::Acquire) == Recovery::Needed as u32
    }

    /// Tells whether what crashes and deaths left behind has been made good, as far as it was known
    /// when the segment was last used by one process alone.
    pub fn is_recovered(&self) -> bool {
        self.segment().recovered.load(Ordering::Acquire) >= Recovery::Done as u32
    }

    /// Begins to make good what a crash left behind, if that has not been done up to `goal`, and
    /// returns whether this process is to do it: then [`Self::end_recovery`] must follow, and no
    /// other process comes past here before. Whoever dies in between leaves it to the next.
    pub fn begin_recovery(&self, goal: Recovery) -> bool {
        let segment = self.segment();
        let is_done = || segment.recovered.load(Ordering::Acquire) >= goal as u32;
        if is_done() {
            return false;
        }
        let _ = segment.recovery_lock.lock(self.me(), self);
        if is_done() {
            segment.recovery_lock.unlock();
            return false;
        }
        true
    }

    /// Ends what [`Self::begin_recovery`] began. `reached` says how far it came; None if it failed,
    /// and the next process is to begin anew.
    pub fn end_recovery(&self, reached: Option<Recovery>) {
        let segment = self.segment();
        if let Some(reached) = reached {
            segment.recovered.store(reached as u32, Ordering::Release);
        }
        segment.recovery_lock.unlock();
    }

    /// Runs `recover` alone, if what a crash left behind has not been made good up to `goal`, and
    /// notes that it has. Whoever dies in it leaves it to the next.
    pub fn recover_to(&self, goal: Recovery, recover: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.begin_recovery(goal) {
            let result = recover();
            self.end_recovery(result.is_ok().then_some(goal));
            return result;
        }
        Ok(())
    }

    /// Tells whether what a crash left behind has been made good, names and all.
    pub fn are_names_recovered(&self) -> bool {
        self.segment().recovered.load(Ordering::Acquire) >= Recovery::Done as u32
    }

    #[inline]
    fn segment(&self) -> &Segment {
        // SAFETY: mapped for the life of self; all fields are atomics, any bytes are valid.
        unsafe { self.segment.as_ref() }
    }

    /// Notes with which event count the last use of the array was ended in order: then there was no
    /// crash of the machine in the middle of anything. None if that use was not ended in order.
    pub(crate) fn note_clean(&self, ended: Option<u64>) {
        let segment = self.segment();
        let Some(count) = ended else { return segment.is_as_ended.store(0, Ordering::SeqCst) };
        // A process that may not write superblocks leaves the mark of an orderly end on them when
        // it changes something. So a mark that this segment has seen before says nothing new.
        if segment.ended_count.swap(count, Ordering::SeqCst) != count {
            segment.is_as_ended.store(1, Ordering::SeqCst);
        }
        segment.recovered.fetch_max(Recovery::Deaths as u32, Ordering::AcqRel);
    }

    /// Notes that something is about to be changed on the members.
    pub(crate) fn note_change(&self) {
        self.segment().is_as_ended.store(0, Ordering::SeqCst);
    }

    /// Whether the array is as its last use left it, which was ended in order: all members in use
    /// had made every change then, and nothing was changed since.
    #[must_use]
    pub fn is_as_it_ended(&self) -> bool {
        self.segment().is_as_ended.load(Ordering::SeqCst) != 0
    }

    /// What processes left that are gone is looked at again by the next that is alone, also what
    /// they left when they ended in order: a thread may have been in the middle of a write.
    pub fn note_deaths(&self) {
        self.segment().recovered.fetch_min(Recovery::Deaths as u32, Ordering::AcqRel);
    }

    // --- members

    /// This runtime, for an array of `count` members.
    #[must_use]
    pub(crate) fn with_members(mut self, count: usize) -> Self {
        self.members = MemberSet::first(count);
        self
    }

    /// The members among those of a word of the segment.
    #[inline]
    fn known(&self, bits: u32) -> MemberSet {
        MemberSet::from_bits(bits & self.members.bits())
    }

    /// The members that are not in use.
    #[inline]
    pub fn out(&self) -> MemberSet {
        self.known(self.segment().out.load(Ordering::Acquire))
    }

    /// Raised with every change of [`Self::out`].
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.segment().epoch.load(Ordering::Acquire)
    }

    /// Sets the members out of use, at assembly. What tables, lanes and logs of a member say that
    /// is back is looked at again: the others may have noted things without it.
    pub fn set_out(&self, out: MemberSet, recorded: MemberSet) {
        if !self.out().minus(out).is_empty() {
            self.segment().recovered.fetch_min(Recovery::Deaths as u32, Ordering::AcqRel);
        }
        self.segment().out_recorded.store(recorded.bits(), Ordering::Release);
        self.segment().use_recorded.store(0, Ordering::Release);
        self.segment().out_told.fetch_and(out.bits(), Ordering::AcqRel);
        self.forget_joins();
        self.segment().out.store(out.bits(), Ordering::Release);
        self.segment().epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes more members out of use. Returns those that were in use until now. A member that is
    /// about to join does not come into use any more.
    pub fn add_out(&self, members: MemberSet) -> MemberSet {
        self.end_joining(members);
        let before = self.known(self.segment().out.fetch_or(members.bits(), Ordering::SeqCst));
        let fresh = members.minus(before);
        if !fresh.is_empty() {
            self.segment().epoch.fetch_add(1, Ordering::AcqRel);
            // Stores through mappings must be kept from what cannot be reconstructed then.
            self.ring();
            self.note_failing();
        }
        fresh
    }

    /// Notes that the caller tells of the loss of a member. True for the first caller since the
    /// member went out; all others keep silent.
    pub fn claim_telling(&self, slot: units::Slot) -> bool {
        let one = MemberSet::EMPTY.with(slot);
        let before = MemberSet::from_bits(self.segment().out_told.fetch_or(one.bits(), Ordering::AcqRel));
        !one.minus(before).is_empty()
    }

    /// Takes back that the caller tells of the loss of a member: whoever claims it next does.
    pub fn give_back_telling(&self, slot: units::Slot) {
        self.segment().out_told.fetch_and(!MemberSet::EMPTY.with(slot).bits(), Ordering::AcqRel);
    }

    /// Whether the superblocks know of this use of the array: the time in which processes are
    /// attached without a gap.
    #[inline]
    #[must_use]
    pub fn is_use_recorded(&self) -> bool {
        self.segment().use_recorded.load(Ordering::Acquire) != 0
    }

    /// Notes whether the superblocks know of this use of the array.
    pub fn set_use_recorded(&self, is_recorded: bool) {
        self.segment().use_recorded.store(is_recorded.into(), Ordering::Release);
    }

    /// The least mark that the superblocks ask for in the members' tables ([`crate::tables`]).
    #[must_use]
    pub fn use_count(&self) -> u64 {
        self.segment().use_count.load(Ordering::Acquire)
    }

    /// Notes that the superblocks ask for it.
    pub fn set_use_count(&self, use_count: u64) {
        self.segment().use_count.store(use_count, Ordering::Release);
    }

    /// The members out of use that the superblocks do not know yet.
    #[inline]
    pub fn out_unrecorded(&self) -> MemberSet {
        self.out().minus(MemberSet::from_bits(self.segment().out_recorded.load(Ordering::Acquire)))
    }

    /// Of members that are out, or about to go out, those of which nobody met an error.
    pub(crate) fn left_in_order(&self) -> MemberSet {
        let failed = self.known(self.segment().met_errors.load(Ordering::SeqCst));
        self.known(self.segment().left_in_order.load(Ordering::SeqCst)).minus(failed)
    }

    /// Notes that members leave of which nobody met an error.
    pub(crate) fn note_order(&self, members: MemberSet) {
        self.segment().left_in_order.fetch_or(members.bits(), Ordering::SeqCst);
    }

    /// Notes how a member leaves of which nobody met an error: the token that it has got, and when.
    pub(crate) fn note_leave(&self, slot: units::Slot, token: u64, left_ns: u64) {
        let [token_word, ns_word] = &self.segment().leaves[slot];
        ns_word.store(left_ns, Ordering::SeqCst);
        token_word.store(token, Ordering::SeqCst);
        self.note_order(MemberSet::EMPTY.with(slot));
    }

    /// Returns what [`Self::note_leave`] noted of a member: token and time.
    pub(crate) fn leave(&self, slot: units::Slot) -> Option<(u64, u64)> {
        let [token, left_ns] = self.segment().leaves[slot].each_ref().map(|word| word.load(Ordering::SeqCst));
        (self.left_in_order().contains(slot) && token != 0).then_some((token, left_ns))
    }

    /// Notes that somebody met an error of members, until they come into use anew.
    pub(crate) fn note_disorder(&self, members: MemberSet) {
        self.segment().met_errors.fetch_or(members.bits(), Ordering::SeqCst);
    }

    /// Forgets how members left before: they are in use, or begin to be.
    pub(crate) fn forget_leaves(&self, members: MemberSet) {
        members.iter().for_each(|slot| self.segment().leaves[slot][0].store(0, Ordering::SeqCst));
        self.segment().left_in_order.fetch_and(!members.bits(), Ordering::SeqCst);
        self.segment().met_errors.fetch_and(!members.bits(), Ordering::SeqCst);
    }

    /// Tells whether a process could not mark a file that it changed while a member was out.
    pub(crate) fn lacks_marks(&self) -> bool {
        self.segment().marks_missing.load(Ordering::SeqCst) != 0
    }

    /// Notes whether a process could not mark a file that it changed.
    pub(crate) fn note_missing_marks(&self, is_missing: bool) {
        self.segment().marks_missing.store(u32::from(is_missing), Ordering::SeqCst);
    }

    /// Ends what processes remember of member states.
    pub(crate) fn begin_epoch(&self) {
        self.segment().epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the superblocks have recorded `out`.
    pub fn set_out_recorded(&self, out: MemberSet) {
        self.segment().out_recorded.store(out.bits(), Ordering::Release);
    }

    // --- locks of the whole array

    /// Runs `change` alone among all changes of names. It gets `Inherited` from the death of a
    /// process in the middle of a change until [`Self::names_are_whole`].
    pub fn with_namespace<T>(&self, change: impl FnOnce(Acquired) -> T) -> T {
        let segment = self.segment();
        self.with_lock(&segment.namespace, |acquired| {
            if acquired == Acquired::Inherited {
                segment.names_unfinished.store(1, Ordering::Relaxed);
                self.note_rules_unfinished();
            }
            let whole = segment.names_unfinished.load(Ordering::Relaxed) == 0;
            change(if whole { Acquired::Clean } else { Acquired::Inherited })
        })
    }

    /// Where the log of names is.
    pub fn names_log(&self) -> &NamesLog {
        &self.segment().names_log
    }

    /// Notes that a change of names is unfinished, and this process may not finish it. The
    /// namespace lock is held.
    pub fn names_are_unfinished(&self) {
        self.segment().names_unfinished.store(1, Ordering::Relaxed);
    }

    /// Notes that only a member which is away tells whether the last change of names was made. The
    /// namespace lock is held.
    pub fn names_wait_for_member(&self) {
        self.segment().names_unfinished.store(NAMES_WAIT_FOR_MEMBER, Ordering::Relaxed);
    }

    /// Whether only a member that is away tells whether the last change of names was made.
    pub fn do_names_wait_for_member(&self) -> bool {
        self.segment().names_unfinished.load(Ordering::Relaxed) == NAMES_WAIT_FOR_MEMBER
    }

    /// Whether a change of names that a dead process began has not been made good yet.
    pub fn are_names_unfinished(&self) -> bool {
        self.segment().names_unfinished.load(Ordering::Relaxed) != 0
    }

    /// Notes that an unfinished change of names has been made good. The namespace lock is held.
    pub fn names_are_whole(&self) {
        let segment = self.segment();
        // Its maker did not come to raise it again.
        segment.names_epoch.store((segment.names_epoch.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::SeqCst);
        segment.names_unfinished.store(0, Ordering::Relaxed);
    }

    /// Runs a change of where directories or symlinks lie: what any process remembers of them is
    /// void. The namespace lock is held.
    pub fn restructuring<T>(&self, change: impl FnOnce() -> T) -> T {
        let epoch = &self.segment().names_epoch;
        let before = epoch.load(Ordering::Relaxed);
        epoch.store(before | 1, Ordering::SeqCst);
        let result = change();
        if before & 1 == 0 {
            epoch.store(before.wrapping_add(2), Ordering::SeqCst);
        }
        result
    }

    /// The state of directories and symlinks; None while it is being changed.
    #[inline]
    pub fn names_epoch(&self) -> Option<u64> {
        Some(self.segment().names_epoch.load(Ordering::SeqCst)).filter(|epoch| epoch & 1 == 0)
    }

    /// The state of members and names together: what was learnt under one is void under another.
    /// None while names are being changed.
    pub fn epochs(&self) -> Option<[u64; 2]> {
        Some([self.names_epoch()?, self.epoch()])
    }

    /// Runs `change` alone among everything that opens or closes files.
    pub fn with_open_files<T>(&self, change: impl FnOnce(Acquired) -> T) -> T {
        self.with_lock(&self.segment().open_lock, change)
    }

    /// Runs `change` alone among everything that gives out inode numbers; it gets the hint where to
    /// look first.
    pub fn with_inodes<T>(&self, change: impl FnOnce(&AtomicU64) -> T) -> T {
        let segment = self.segment();
        self.with_lock(&segment.inode_lock, |_| change(&segment.inode_hint))
    }

    /// Runs `fetch` alone among everything that takes descriptors of other processes. It may wait
    /// for the other process, so no lock but this one is held meanwhile.
    pub fn with_fetching<T>(&self, fetch: impl FnOnce() -> T) -> T {
        self.with_lock(&self.segment().fetch_lock, |_| fetch())
    }

    /// Runs `change` alone among everything that writes superblocks.
    pub(crate) fn with_superblocks<T>(&self, change: impl FnOnce() -> T) -> T {
        self.with_lock(&self.segment().superblock_lock, |_| change())
    }

    /// Runs `change` with the superblock lock held, if nobody holds that lock. The calling thread
    /// may be one that was interrupted while it held the lock.
    pub(crate) fn with_free_superblocks(&self, change: impl FnOnce()) {
        let lock = &self.segment().superblock_lock;
        if lock.try_lock(self.me()) {
            change();
            lock.unlock();
        }
    }

    /// Runs `change` with a lock of the segment held, and says how it was obtained.
    pub fn with_lock<T>(&self, lock: &OwnedLock, change: impl FnOnce(Acquired) -> T) -> T {
        let acquired = lock.lock(self.me(), self);
        let result = change(acquired);
        lock.unlock();
        result
    }

    // --- writable mappings

    /// The records of writable mappings.
    #[must_use]
    pub fn mapped(&self) -> &MappedRecords {
        &self.segment().mapped
    }

    /// How often the bell was rung.
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.segment().bell.load(Ordering::Acquire)
    }

    /// Rings the bell: something has happened to mapped files that all processes are to look at
    /// now. Returns how often it has been rung then.
    pub fn ring(&self) -> u32 {
        let bell = &self.segment().bell;
        let rings = bell.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
        rings
    }

    /// Waits until the bell has rung since it had rung `rings` times, or `ns` have passed.
    pub fn await_ring(&self, rings: u32, ns: u64) {
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let _ = futex::wait(&self.segment().bell, futex::Flags::empty(), rings, Some(&timeout));
    }

    // --- what is undone if its process dies

    /// Takes a record for what a change of file `key` is about to overwrite. None if there is none
    /// left.
    ///
    /// # Errors
    /// `NOSPC` if shared memory is full.
    pub fn take_undo(&self, key: u64) -> Result<Option<Undo<'_>>> {
        let segment = self.segment.as_ptr() as usize;
        let hint = sys::thread::block().lane.load(Ordering::Relaxed) as usize;
        self.segment().undo.take(self.me(), key, hint, |address, bytes| {
            let offset = (address - segment) as u64;
            fs::fallocate(&self.file, fs::FallocateFlags::empty(), offset, bytes as u64)
        })
    }

    /// The records of processes that died with them.
    pub fn abandoned_undo(&self) -> impl Iterator<Item = UndoRecord<'_>> {
        self.segment().undo.abandoned(|owner| self.is_alive(owner))
    }

    /// Runs `undo` alone among all that put back what dead processes left half done.
    pub fn with_undo<T>(&self, undo: impl FnOnce() -> T) -> T {
        self.with_lock(&self.segment().undo_lock, |_| undo())
    }

    // --- lanes

    /// The owner of each write-intent lane: 0 free, otherwise owner in the upper half and thread id
    /// in the lower.
    pub fn lanes(&self) -> &[AtomicU64] {
        &self.segment().lanes
    }
}

impl Runtime {
    /// The thread that uses each lane of the journal.
    #[inline]
    pub fn journal_lanes(&self) -> &[JournalLane] {
        &self.segment().journal_lanes
    }

    /// Runs `replay` alone among all that replay what a dead process left in the journal.
    pub fn with_journal<T>(&self, replay: impl FnOnce() -> T) -> T {
        self.with_lock(&self.segment().journal_lock, |_| replay())
    }

    /// Whether the journal's memory has failed.
    #[inline]
    pub fn journal_has_failed(&self) -> bool {
        self.segment().journal_failed.load(Ordering::Relaxed) != 0
    }

    /// Nothing is in the journal, which is a new one. The caller is alone.
    pub fn renew_journal(&self) {
        for lane in self.journal_lanes() {
            lane.0.store(0, Ordering::Relaxed);
        }
        self.segment().journal_failed.store(0, Ordering::Relaxed);
    }

    /// Notes that it has.
    pub fn fail_journal(&self) {
        self.segment().journal_failed.store(1, Ordering::Relaxed);
    }
}

impl Liveness for Runtime {
    fn is_alive(&self, owner: OwnerId) -> bool {
        let index = slot_of(owner);
        if owner_id(index, self.segment().attach[index].tenancy.load(Ordering::Acquire)) != owner {
            return false;
        }
        let lives = self.slot_lives(index);
        if !lives {
            self.found_dead.store(owner.get(), Ordering::Relaxed);
        }
        lives
    }

    fn was_found_dead(&self, owner: OwnerId) -> bool {
        self.found_dead.load(Ordering::Relaxed) == owner.get()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.detach();
        persist::stand_in::end(self.segment.as_ptr() as usize);
        // SAFETY: both mappings are ours, of these lengths, and nobody can use them after self is
        // gone.
        unsafe {
            let _ = munmap(self.segment.as_ptr().cast(), size_of::<Segment>());
            let _ = munmap(self.me.as_ptr().cast(), units::PAGE_BYTES);
        }
    }
}
