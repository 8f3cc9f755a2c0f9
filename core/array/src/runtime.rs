//! The runtime segment: what the processes attached to one array share while they run.
//!
//! A file in shared memory, one per array, gone with the machine: attached processes, which members are out (with an epoch), open
//! files with their locks, lane owners. Nothing in it is needed after a restart; what must survive is on the members.
//!
//! Invariants: every word is an atomic or a lock, all zeros is the empty state, and whoever dies at any instruction leaves something the
//! next process can take over: a slot names pid and start time, a lock names its slot, a slot lists the files it holds open.

use crate::liveness::{ProcessId, process_lives};
use crate::mapped::MappedRecords;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sync::{Acquired, Liveness, OwnedLock, OwnerId, StripeLock};
use sys::rustix::fs::{self, FlockOperation, Gid, Mode, OFlags, Uid};
use sys::rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use sys::{AsRawFd, OsError, OwnedFd, Result};
use units::MemberSet;

/// Processes that can be attached at once.
pub const ATTACH_SLOT_COUNT: usize = 1024;
/// Files that can be open at once, by all processes together.
pub const OPEN_FILE_COUNT: usize = 16384;
/// Stripe locks per open file.
pub const STRIPE_LOCK_COUNT: usize = 64;
/// Files that a process may keep ready to be opened again.
pub const IDLE_COUNT: usize = 64;
/// Files that all processes together keep so: the entries of the others are for files that are open.
const IDLE_COUNT_ALL: u32 = OPEN_FILE_COUNT as u32 / 4;
/// Where an open file may lie after the place its number hashes to.
const PROBE_COUNT: usize = 64;
const OPEN_WORDS: usize = OPEN_FILE_COUNT / 64;
const MAGIC: u64 = u64::from_le_bytes(*b"CXLRrun\x01");
const SLOT_BITS: u32 = ATTACH_SLOT_COUNT.trailing_zeros();
/// Raised whenever the layout below changes.
const VERSION: u32 = 9;

/// One attached process.
#[repr(C)]
struct AttachSlot {
    pid: AtomicU32,
    /// How often the slot was taken or freed: odd while it is taken. The count of a taken slot is part of its process' owner id, so that
    /// a lock held by a dead process is not mistaken for the slot's next owner's.
    tenancy: AtomicU32,
    /// Start time in clock ticks since boot (proc(5)), so that a reused pid is recognised.
    start_ticks: AtomicU64,
}

/// What all processes share of one open file. All zeros: nobody has it open.
#[repr(C, align(64))]
pub struct SharedFile {
    /// Processes that have it open.
    pub users: AtomicU32,
    /// Held while the size or the allocation changes.
    pub size_lock: OwnedLock,
    /// Held by read() and write() while they use an offset that processes share.
    pub position_lock: OwnedLock,
    /// Raised when space is given back: what a process believed to be allocated may be a hole.
    pub allocation_epoch: AtomicU32,
    /// Backing bytes from the end of the file's data to here are allocated, on every member in use.
    pub allocated_end: AtomicU64,
    /// Time of the last write that is not yet in the members' mtime, ns since 1970; 0 for none.
    pub modified_ns: AtomicU64,
    /// The file's logical size in bytes; as in the inode table, kept here so that reading it cannot fault.
    pub size: AtomicU64,
    /// The record's flags (`format::InodeFlags`).
    pub flags: AtomicU32,
    /// 1 once the last name is gone.
    pub unlinked: AtomicU32,
    /// How many processes have writable mappings of it, or died with them and were not followed yet: see [`crate::mapped`].
    pub mapped: AtomicU32,
    /// Not 0 while bytes of the file wait for resync, as the inode table tells; 2 if only for a member that is away.
    pub resync_waits: AtomicU32,
    /// 1 while what lies behind the end of the file may be something else than zeros: a process died while the file grew or shrank.
    pub tail_unfinished: AtomicU32,
    /// Processes that keep its backing files open although they have closed it: whoever removes the file must cut them, and the kernel
    /// does not execute them (ETXTBSY).
    pub idle: AtomicU32,
    /// Descriptors without a name that were sent to another process and not received yet; each counts among the users.
    pub in_flight: AtomicU32,
    /// The stripe locks, one bit each, behind which redundancy may not fit: inherited by a process that could not repair it.
    pub stripes_unfinished: AtomicU64,
    /// Raised when a process changes status flags (F_SETFL) of a description that others may share: they look at the kernel's then.
    pub status_changes: AtomicU32,
    /// Odd while mappings show a shared copy and not the members; another number for each copy.
    pub copy: AtomicU32,
    /// One for each lock block index modulo [`STRIPE_LOCK_COUNT`].
    pub stripes: [StripeLock; STRIPE_LOCK_COUNT],
}

impl SharedFile {
    /// Whether reads and writes must mind mappings: where their stores land, or a shared copy. A copy may outlive the last mapping by a
    /// moment, and somebody may begin to use it again in that moment; so it is minded as long as it exists.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapped.load(Ordering::Acquire) | self.copy.load(Ordering::Acquire) & 1 != 0
    }

    /// Whether nobody has the file open and no process died in the middle of a change of it. Otherwise the next one to open it must still
    /// learn of that.
    fn is_forgettable(&self) -> bool {
        let unlinked = self.unlinked.load(Ordering::Relaxed) != 0;
        let whole = self.tail_unfinished.load(Ordering::Relaxed) == 0
            && self.stripes_unfinished.load(Ordering::Relaxed) == 0
            && !self.is_mapped();
        let free = || self.size_lock.owner().is_none() && self.stripes.iter().all(|lock| lock.owner().is_none());
        let unused = self.users.load(Ordering::Acquire) == 0 && self.idle.load(Ordering::Acquire) == 0;
        unused && (unlinked || whole && free())
    }
}

#[repr(C, align(4096))]
struct Segment {
    magic: AtomicU64,
    version: AtomicU32,
    /// Members not in use, one bit per slot.
    out: AtomicU32,
    /// Raised with every change of `out`.
    epoch: AtomicU64,
    /// The `out` that the superblocks in use have recorded.
    out_recorded: AtomicU32,
    /// Held by changes of names.
    namespace: OwnedLock,
    /// Held while a file's entry is found, made or given back.
    open_lock: OwnedLock,
    /// Held while inode numbers are given out.
    inode_lock: OwnedLock,
    /// Held while superblocks are written; nothing else is waited for meanwhile.
    superblock_lock: OwnedLock,
    /// 1 while a change of names waits to be made good that a process left unfinished when it died.
    names_unfinished: AtomicU32,
    /// Where the log of names is.
    names_log: NamesLog,
    /// Raised before and after every change of where directories and symlinks lie: odd in between.
    names_epoch: AtomicU64,
    /// Files kept ready by all processes together.
    idle_count: AtomicU32,
    /// Raised when a file is gone whose backing files others keep and nobody could cut: they let go of what they keep.
    idle_recalls: AtomicU32,
    /// Where to look for a free inode next.
    inode_hint: AtomicU64,
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
    lanes: [AtomicU64; format::LANE_COUNT],
    mapped: MappedRecords,
    open_by_slot: [[AtomicU64; OPEN_WORDS]; ATTACH_SLOT_COUNT],
    /// The files that each process keeps ready: entry plus one, 0 for none.
    idle_by_slot: [[AtomicU32; IDLE_COUNT]; ATTACH_SLOT_COUNT],
    /// One bit per 64 entries of which one was ever used: so that looking through all of them touches few pages.
    used: [AtomicU64; OPEN_WORDS / 64],
    keys: [AtomicU64; OPEN_FILE_COUNT],
    files: [SharedFile; OPEN_FILE_COUNT],
}

/// How far what a crash left behind was made good. It begins anew for the first process after a crash of the machine, or after processes
/// ended without giving back what they held.
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

/// A process' view of the segment.
pub struct Runtime {
    segment: NonNull<Segment>,
    /// This process' owner id, in a page that a fork wipes: 0 in a new child.
    me: NonNull<AtomicU32>,
    file: OwnedFd,
    /// The owner this process found dead last; 0 for none.
    found_dead: AtomicU32,
    /// Whether this process gave back a file without a name that a dead process was the last to have open.
    reaped_nameless: AtomicBool,
}

// SAFETY: everything shared is atomics and locks; the pointers stay valid until drop.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

/// The segment's path for an array.
#[must_use]
pub fn segment_path(uuid: format::Uuid) -> alloc::string::String {
    alloc::format!("/dev/shm/cxlraid-{uuid}")
}

/// The entry of an open file and where it lies.
#[derive(Clone, Copy)]
pub struct FileEntry {
    index: usize,
    /// Whether no process had it open before.
    pub first: bool,
}

impl FileEntry {
    /// Whether both are the same place.
    #[must_use]
    pub const fn is_at(self, other: Self) -> bool {
        self.index == other.index
    }
}

impl Runtime {
    /// Opens the segment of array `uuid`, making it if it is not there, and attaches this process.
    ///
    /// Returns whether this process is the only one attached (it then assembles: see [`Self::finish_assembly`]). The segment's file
    /// is locked until then. `claim` is asked with the segment's device and inode number before anything in it is touched, and gives
    /// whether other processes use the array by way of this segment.
    ///
    /// # Errors
    /// `BUSY` if processes of another PID namespace use the segment: nobody could tell whether the owner of a lock lives.
    pub fn open(
        uuid: format::Uuid,
        access: format::Access,
        claim: impl FnOnce(u64, u64) -> Result<bool>,
    ) -> Result<(Self, bool)> {
        let path = segment_path(uuid);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(access.mode & 0o666);
        let (file, stat) = loop {
            let file = sys::high_fd::raise(fs::open(path.as_str(), flags, mode)?)?;
            fs::flock(&file, FlockOperation::LockExclusive)?;
            let stat = fs::fstat(&file)?;
            // It may have been removed (`cxlraid stop`) while we waited for it: then the next one to open it would make another.
            if stat.st_nlink != 0 {
                break (file, stat);
            }
            sys::high_fd::forget(file.as_raw_fd());
        };
        if stat.st_uid != access.owner_uid && stat.st_uid != 0 && stat.st_uid != sys::rustix::process::geteuid().as_raw() {
            return Err(OsError::PERM);
        }
        if stat.st_size == 0 {
            if sys::file_limit::bytes() < size_of::<Segment>() as u64 {
                // The kernel would kill the program that was limited.
                return Err(OsError::FBIG);
            }
            let _ = fs::fchmod(&file, mode);
            let _ = fs::fchown(&file, Some(Uid::from_raw(access.owner_uid)), Some(Gid::from_raw(access.owner_gid)));
            fs::ftruncate(&file, size_of::<Segment>() as u64)?;
        } else if stat.st_size as usize != size_of::<Segment>() {
            return Err(OsError::PROTO);
        }
        let in_use = claim(stat.st_dev, stat.st_ino)?;
        let runtime = Self::map(file)?;
        let segment = runtime.segment();
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
        let alone = fresh || runtime.reap() == 0;
        if alone && !fresh {
            runtime.forget_open_files();
            if segment.unclean.load(Ordering::Relaxed) != 0 {
                // A crash that has not been made good stays one.
                segment.recovered.fetch_min(Recovery::Deaths as u32, Ordering::Relaxed);
                segment.unclean.store(0, Ordering::Relaxed);
            }
        }
        runtime.attach()?;
        Ok((runtime, alone))
    }

    fn map(file: OwnedFd) -> Result<Self> {
        let (read_write, bytes) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Segment>());
        // SAFETY: new mappings chosen by the kernel, of the file's full length and of one page.
        let (segment, page) = unsafe {
            let segment = mmap(core::ptr::null_mut(), bytes, read_write, MapFlags::SHARED, &file, 0)?;
            let page = mmap_anonymous(core::ptr::null_mut(), units::PAGE_BYTES, read_write, MapFlags::PRIVATE)?;
            madvise(page, units::PAGE_BYTES, Advice::LinuxWipeOnFork)?;
            (segment, page)
        };
        match (NonNull::new(segment.cast()), NonNull::new(page.cast())) {
            (Some(segment), Some(me)) => {
                Ok(Self { segment, me, file, found_dead: AtomicU32::new(0), reaped_nameless: AtomicBool::new(false) })
            }
            _ => Err(OsError::NOMEM),
        }
    }

    /// Lets other processes in: member states are settled. Called by every process that opened the segment.
    pub fn finish_assembly(&self) {
        self.segment().assembled.store(1, Ordering::Release);
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }

    /// Whether what is to be made good may be a crash of the machine.
    pub fn is_after_crash(&self) -> bool {
        self.segment().recovered.load(Ordering::Acquire) == Recovery::Needed as u32
    }

    /// Runs `recover` alone, if what a crash left behind has not been made good up to `goal`, and notes that it has. Whoever dies in it
    /// leaves it to the next.
    pub fn recover_to(&self, goal: Recovery, recover: impl FnOnce() -> Result<()>) -> Result<()> {
        let segment = self.segment();
        let is_done = || segment.recovered.load(Ordering::Acquire) >= goal as u32;
        if is_done() {
            return Ok(());
        }
        self.with_lock(&segment.recovery_lock, |_| {
            if !is_done() {
                recover()?;
                segment.recovered.store(goal as u32, Ordering::Release);
            }
            Ok(())
        })
    }

    #[inline]
    fn segment(&self) -> &Segment {
        // SAFETY: mapped for the life of self; all fields are atomics, any bytes are valid.
        unsafe { self.segment.as_ref() }
    }

    /// This process as a lock owner. A child of fork attaches itself here.
    #[inline]
    pub fn me(&self) -> OwnerId {
        // SAFETY: the page is mapped for the life of self.
        let me = unsafe { self.me.as_ref() }.load(Ordering::Relaxed);
        match OwnerId::new(me) {
            Some(me) => me,
            None => self.attach_child(),
        }
    }

    #[cold]
    fn attach_child(&self) -> OwnerId {
        loop {
            if let Ok(me) = self.attach() {
                return me;
            }
            // All slots are taken by living processes; one will end.
            sys::rustix::thread::sched_yield();
        }
    }

    fn attach(&self) -> Result<OwnerId> {
        let process = ProcessId::current()?;
        let start = process.pid as usize % ATTACH_SLOT_COUNT;
        for pass in 0..2 {
            for step in 0..ATTACH_SLOT_COUNT {
                let index = (start + step) % ATTACH_SLOT_COUNT;
                let slot = &self.segment().attach[index];
                if pass == 1 {
                    self.reclaim_if_dead(index);
                }
                let free = slot.tenancy.load(Ordering::Acquire);
                let taken = free.wrapping_add(1);
                if free & 1 == 0 && slot.tenancy.compare_exchange(free, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    slot.start_ticks.store(process.start_ticks, Ordering::Relaxed);
                    slot.pid.store(process.pid, Ordering::Release);
                    let me = owner_id(index, taken);
                    // SAFETY: the page is mapped for the life of self.
                    unsafe { self.me.as_ref() }.store(me.get(), Ordering::Relaxed);
                    return Ok(me);
                }
            }
        }
        Err(OsError::AGAIN)
    }

    /// Gives back everything this process holds. Called when a program ends in order.
    pub fn detach(&self) {
        // SAFETY: the page is mapped for the life of self.
        let me = unsafe { self.me.as_ref() }.swap(0, Ordering::Relaxed);
        if let Some(me) = OwnerId::new(me) {
            self.release_lane(me);
            self.release_slot(slot_of(me));
        }
    }

    /// What the calling thread announced is complete: its lane names nothing that others would have to see to. Other threads may be in
    /// the middle of a write, and end with the process there.
    fn release_lane(&self, me: OwnerId) {
        let held = &sys::thread::block().lane;
        if let Some(lane) = self.segment().lanes.get((held.load(Ordering::Relaxed) as usize).wrapping_sub(1))
            && lane.load(Ordering::Relaxed) >> 32 == u64::from(me.get())
        {
            held.store(0, Ordering::Relaxed);
            lane.store(0, Ordering::Release);
        }
    }

    /// Gives back what dead processes held. Returns how many processes live.
    pub fn reap(&self) -> usize {
        let lives = |&index: &usize| {
            let known = self.slot_is_taken(index) && self.slot_process(index).pid != 0;
            known && !self.reclaim_if_dead(index)
        };
        (0..ATTACH_SLOT_COUNT).filter(lives).count()
    }

    /// Whether this process has found that the last to have a file without a name open had died.
    pub fn has_reaped_nameless(&self) -> bool {
        self.reaped_nameless.load(Ordering::Relaxed)
    }

    /// With nobody attached no file is open, whatever processes left behind that died between fork and their first call.
    fn forget_open_files(&self) {
        let segment = self.segment();
        let used = |block: &usize| segment.used[block / 64].load(Ordering::Relaxed) >> (block % 64) & 1 == 1;
        for index in (0..OPEN_WORDS).filter(used).flat_map(|block| block * 64..(block + 1) * 64) {
            if segment.keys[index].load(Ordering::Relaxed) != 0 {
                segment.files[index].users.store(0, Ordering::Relaxed);
                segment.files[index].idle.store(0, Ordering::Relaxed);
                segment.files[index].in_flight.store(0, Ordering::Relaxed);
            }
        }
        segment.idle_count.store(0, Ordering::Relaxed);
    }

    fn slot_is_taken(&self, index: usize) -> bool {
        self.segment().attach[index].tenancy.load(Ordering::Acquire) & 1 == 1
    }

    fn slot_process(&self, index: usize) -> ProcessId {
        let slot = &self.segment().attach[index];
        ProcessId { pid: slot.pid.load(Ordering::Acquire), start_ticks: slot.start_ticks.load(Ordering::Relaxed) }
    }

    fn reclaim_if_dead(&self, index: usize) -> bool {
        let slot = &self.segment().attach[index];
        let process = self.slot_process(index);
        if !self.slot_is_taken(index) || process.pid == 0 || process_lives(process) {
            return false;
        }
        // Only one of several reapers goes on.
        if slot.pid.compare_exchange(process.pid, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.segment().unclean.store(1, Ordering::Relaxed);
        self.release_slot(index);
        true
    }

    /// Gives back what earlier programs of this very process held, which exec ended. What they left open and this program has too must be its own
    /// by now.
    pub fn forget_former_programs(&self) {
        let Ok(process) = ProcessId::current() else { return };
        let mine = slot_of(self.me());
        let former = |&index: &usize| index != mine && self.slot_is_taken(index) && self.slot_process(index) == process;
        for index in (0..ATTACH_SLOT_COUNT).filter(former) {
            self.release_slot(index);
        }
    }

    fn release_slot(&self, index: usize) {
        let segment = self.segment();
        for (word_index, word) in segment.open_by_slot[index].iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let file = word_index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let file = &segment.files[file];
                if file.users.fetch_sub(1, Ordering::AcqRel) == 1 && file.unlinked.load(Ordering::Acquire) != 0 {
                    self.reaped_nameless.store(true, Ordering::Relaxed);
                }
            }
        }
        for place in &segment.idle_by_slot[index] {
            self.end_idle_in(place);
        }
        segment.attach[index].pid.store(0, Ordering::Relaxed);
        segment.attach[index].tenancy.fetch_add(1, Ordering::AcqRel);
    }

    /// The processes attached now, pids of living ones.
    pub fn attached(&self) -> impl Iterator<Item = u32> {
        (0..ATTACH_SLOT_COUNT)
            .filter(|&index| self.slot_is_taken(index))
            .map(|index| self.slot_process(index))
            .filter(|&process| process.pid != 0 && process_lives(process))
            .map(|process| process.pid)
    }

    // --- members

    /// The members that are not in use.
    #[inline]
    pub fn out(&self) -> MemberSet {
        MemberSet::from_bits(self.segment().out.load(Ordering::Acquire))
    }

    /// Raised with every change of [`Self::out`].
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.segment().epoch.load(Ordering::Acquire)
    }

    /// Sets the members out of use, at assembly. What tables, lanes and logs of a member say that is back is looked at again: the others may have
    /// noted things without it.
    pub fn set_out(&self, out: MemberSet, recorded: MemberSet) {
        if !self.out().minus(out).is_empty() {
            self.segment().recovered.fetch_min(Recovery::Deaths as u32, Ordering::AcqRel);
        }
        self.segment().out_recorded.store(recorded.bits(), Ordering::Release);
        self.segment().out.store(out.bits(), Ordering::Release);
        self.segment().epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes more members out of use. Returns those that were in use until now.
    pub fn add_out(&self, members: MemberSet) -> MemberSet {
        let before = MemberSet::from_bits(self.segment().out.fetch_or(members.bits(), Ordering::AcqRel));
        let fresh = members.minus(before);
        if !fresh.is_empty() {
            self.segment().epoch.fetch_add(1, Ordering::AcqRel);
        }
        fresh
    }

    /// The members out of use that the superblocks do not know yet.
    #[inline]
    pub fn out_unrecorded(&self) -> MemberSet {
        self.out().minus(MemberSet::from_bits(self.segment().out_recorded.load(Ordering::Acquire)))
    }

    /// Notes that the superblocks have recorded `out`.
    pub fn set_out_recorded(&self, out: MemberSet) {
        self.segment().out_recorded.store(out.bits(), Ordering::Release);
    }

    // --- locks of the whole array

    /// Runs `change` alone among all changes of names. It gets `Inherited` from the death of a process in the middle of a change until
    /// [`Self::names_are_whole`].
    pub fn with_namespace<T>(&self, change: impl FnOnce(Acquired) -> T) -> T {
        let segment = self.segment();
        self.with_lock(&segment.namespace, |acquired| {
            if acquired == Acquired::Inherited {
                segment.names_unfinished.store(1, Ordering::Relaxed);
            }
            let whole = segment.names_unfinished.load(Ordering::Relaxed) == 0;
            change(if whole { Acquired::Clean } else { Acquired::Inherited })
        })
    }

    /// Where the log of names is.
    pub fn names_log(&self) -> &NamesLog {
        &self.segment().names_log
    }

    /// Notes that an unfinished change of names has been made good. The namespace lock is held.
    pub fn names_are_whole(&self) {
        let segment = self.segment();
        // Its maker did not come to raise it again.
        segment.names_epoch.store((segment.names_epoch.load(Ordering::Relaxed) | 1) + 1, Ordering::SeqCst);
        segment.names_unfinished.store(0, Ordering::Relaxed);
    }

    /// Runs a change of where directories or symlinks lie: what any process remembers of them is void. The namespace lock is held.
    pub fn restructuring<T>(&self, change: impl FnOnce() -> T) -> T {
        let epoch = &self.segment().names_epoch;
        let before = epoch.load(Ordering::Relaxed);
        epoch.store(before | 1, Ordering::SeqCst);
        let result = change();
        if before & 1 == 0 {
            epoch.store(before + 2, Ordering::SeqCst);
        }
        result
    }

    /// The state of directories and symlinks; None while it is being changed.
    #[inline]
    pub fn names_epoch(&self) -> Option<u64> {
        Some(self.segment().names_epoch.load(Ordering::SeqCst)).filter(|epoch| epoch & 1 == 0)
    }

    /// The state of members and names together: what was learnt under one is void under another. None while names are being changed.
    pub fn epochs(&self) -> Option<[u64; 2]> {
        Some([self.names_epoch()?, self.epoch()])
    }

    /// Runs `change` alone among everything that opens or closes files.
    pub fn with_open_files<T>(&self, change: impl FnOnce(Acquired) -> T) -> T {
        self.with_lock(&self.segment().open_lock, change)
    }

    /// Runs `change` alone among everything that gives out inode numbers; it gets the hint where to look first.
    pub fn with_inodes<T>(&self, change: impl FnOnce(&AtomicU64) -> T) -> T {
        let segment = self.segment();
        self.with_lock(&segment.inode_lock, |_| change(&segment.inode_hint))
    }

    /// Runs `change` alone among everything that writes superblocks.
    pub(crate) fn with_superblocks<T>(&self, change: impl FnOnce() -> T) -> T {
        self.with_lock(&self.segment().superblock_lock, |_| change())
    }

    fn with_lock<T>(&self, lock: &OwnedLock, change: impl FnOnce(Acquired) -> T) -> T {
        let acquired = lock.lock(self.me(), self);
        let result = change(acquired);
        lock.unlock();
        result
    }

    // --- open files

    /// Finds or makes the entry of file `key` (never 0) and counts this process as a user. None if too many files are open.
    /// The caller holds the open-files lock and calls this once per process and file.
    pub fn enter_file(&self, key: u64) -> Option<FileEntry> {
        let segment = self.segment();
        let start = hash(key);
        let mut reusable = None;
        let mut found = None;
        for step in 0..PROBE_COUNT {
            let index = (start + step) % OPEN_FILE_COUNT;
            let present = segment.keys[index].load(Ordering::Acquire);
            if present == key {
                found = Some(index);
                break;
            }
            if reusable.is_none() && (present == 0 || segment.files[index].is_forgettable()) {
                reusable = Some(index);
            }
            if present == 0 {
                break;
            }
        }
        let index = found.or(reusable)?;
        let file = &segment.files[index];
        let first = file.users.load(Ordering::Acquire) == 0;
        if found.is_none() {
            segment.used[index / 4096].fetch_or(1 << (index / 64 % 64), Ordering::Relaxed);
            segment.keys[index].store(key, Ordering::Release);
            file.modified_ns.store(0, Ordering::Relaxed);
            file.unlinked.store(0, Ordering::Relaxed);
            file.mapped.store(0, Ordering::Relaxed);
            file.tail_unfinished.store(0, Ordering::Relaxed);
            file.resync_waits.store(0, Ordering::Relaxed);
            file.in_flight.store(0, Ordering::Relaxed);
            file.stripes_unfinished.store(0, Ordering::Relaxed);
            file.allocation_epoch.fetch_add(1, Ordering::Relaxed);
        }
        file.users.fetch_add(1, Ordering::AcqRel);
        let slot = slot_of(self.me());
        segment.open_by_slot[slot][index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        Some(FileEntry { index, first })
    }

    /// The entry of a file that some process has open, without becoming a user.
    pub fn find_file(&self, key: u64) -> Option<&SharedFile> {
        let segment = self.segment();
        let start = hash(key);
        for step in 0..PROBE_COUNT {
            let index = (start + step) % OPEN_FILE_COUNT;
            match segment.keys[index].load(Ordering::Acquire) {
                0 => return None,
                present if present == key => return Some(&segment.files[index]),
                _ => {}
            }
        }
        None
    }

    /// Counts a user in advance: the child that is about to be forked. See [`Self::claim_file`].
    pub fn promise_file(&self, entry: FileEntry) {
        self.segment().files[entry.index].users.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes a promise this process' own: called in the child for every file its parent had open.
    pub fn claim_file(&self, entry: FileEntry) {
        let slot = slot_of(self.me());
        self.segment().open_by_slot[slot][entry.index / 64].fetch_or(1 << (entry.index % 64), Ordering::AcqRel);
    }

    /// Takes a promise back: the fork failed.
    pub fn withdraw_promise(&self, entry: FileEntry) {
        self.segment().files[entry.index].users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a descriptor that is on its way to another process as a user, until it is received.
    pub fn send_file(&self, entry: FileEntry) {
        self.promise_file(entry);
        self.segment().files[entry.index].in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// One has arrived, or was not sent after all. This process has the file open.
    pub fn receive_file(&self, entry: FileEntry) {
        let file = &self.segment().files[entry.index];
        let one_less = |count: u32| count.checked_sub(1);
        if file.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less).is_ok() {
            self.withdraw_promise(entry);
        }
    }

    /// Gives a file's entry back. Returns true if no process has it open any more. The caller holds the open-files lock.
    pub fn leave_file(&self, entry: FileEntry) -> bool {
        let segment = self.segment();
        let slot = slot_of(self.me());
        let bit = 1 << (entry.index % 64);
        if segment.open_by_slot[slot][entry.index / 64].fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return false;
        }
        segment.files[entry.index].users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    // --- files kept ready

    /// Notes at `place` (below [`IDLE_COUNT`]) that this process keeps a file's backing files open without having it open. False if that
    /// must not be, because too many are kept already. The caller holds the open-files lock and has given the entry back.
    pub fn begin_idle(&self, place: usize, entry: FileEntry) -> bool {
        let segment = self.segment();
        if segment.idle_count.fetch_add(1, Ordering::AcqRel) >= IDLE_COUNT_ALL {
            segment.idle_count.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        segment.idle_by_slot[slot_of(self.me())][place].store(entry.index as u32 + 1, Ordering::Release);
        segment.files[entry.index].idle.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Ends that. The caller has closed the backing files, or has entered the file again.
    pub fn end_idle(&self, place: usize) {
        self.end_idle_in(&self.segment().idle_by_slot[slot_of(self.me())][place]);
    }

    fn end_idle_in(&self, place: &AtomicU32) {
        let Some(index) = place.swap(0, Ordering::AcqRel).checked_sub(1) else { return };
        self.segment().files[index as usize].idle.fetch_sub(1, Ordering::AcqRel);
        self.segment().idle_count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Asks every process to let go of what it keeps when it next opens or closes a file.
    pub fn recall_idle(&self) {
        self.segment().idle_recalls.fetch_add(1, Ordering::AcqRel);
    }

    /// How often that was asked.
    pub fn idle_recalls(&self) -> u32 {
        self.segment().idle_recalls.load(Ordering::Acquire)
    }

    /// What is shared of an entered file.
    #[inline]
    pub fn file(&self, entry: FileEntry) -> &SharedFile {
        &self.segment().files[entry.index]
    }

    // --- writable mappings

    /// The records of writable mappings.
    #[must_use]
    pub fn mapped(&self) -> &MappedRecords {
        &self.segment().mapped
    }

    // --- lanes

    /// Who owns each write-intent lane: 0 free, otherwise owner in the upper half and thread id in the lower.
    pub fn lanes(&self) -> &[AtomicU64] {
        &self.segment().lanes
    }
}

impl Liveness for Runtime {
    fn is_alive(&self, owner: OwnerId) -> bool {
        let index = slot_of(owner);
        if owner_id(index, self.segment().attach[index].tenancy.load(Ordering::Acquire)) != owner {
            return false;
        }
        let process = self.slot_process(index);
        let lives = process.pid != 0 && process_lives(process);
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
        // SAFETY: both mappings are ours, of these lengths, and nobody can use them after self is gone.
        unsafe {
            let _ = munmap(self.segment.as_ptr().cast(), size_of::<Segment>());
            let _ = munmap(self.me.as_ptr().cast(), units::PAGE_BYTES);
        }
    }
}

/// The number of this process' PID namespace (namespaces(7)); 0 if proc is not mounted.
fn pid_namespace() -> u64 {
    fs::stat(c"/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// Slot index in the lower bits, tenancy above, never 0 because tenancy is odd, below 2^31 for the bit that marks waiters.
fn owner_id(slot: usize, tenancy: u32) -> OwnerId {
    let id = (tenancy << SLOT_BITS | slot as u32) & (u32::MAX >> 1);
    OwnerId::new(id).unwrap_or(OwnerId::MAX)
}

const fn slot_of(owner: OwnerId) -> usize {
    owner.get() as usize % ATTACH_SLOT_COUNT
}

fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % OPEN_FILE_COUNT
}
