//! The job that runs on an array (a rebuild, a replacement or a scrub), as other processes see it
//! and tell it what to do.
//!
//! The process that runs the job publishes what it does in the runtime segment, again and again.
//! Other processes read that without attaching, and leave a wish there: to pause, to go on, or to
//! end. One job runs at a time, which a lock of the kernel sees to (control/cli/src/repairing.rs),
//! not this record.
//!
//! Invariants:
//! - a record counts only as long as the process lives that it names, so what a killed job left
//!   says nothing, and a job that was paused when its process died is paused no more;
//! - a wish names the job that it is for. The next job does not take it for its own.

use super::attach::taken_slots_in;
use super::entry::{OPEN, find_segment};
use super::{MAGIC, Segment, VERSION, pid_namespace};
use crate::Unproven;
use crate::liveness::{ProcessId, process_lives};
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use format::{Access, Uuid};
use sys::rustix::fs::{self, Mode, OFlags};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{OwnedFd, rustix};
use units::MemberSet;

/// The record in the segment. All zeros: there is no job.
#[repr(C, align(64))]
pub(super) struct JobRecord {
    /// The process that runs the job; 0 for none. It is stored last, and taken away first.
    pid: AtomicU32,
    kind: AtomicU32,
    start_ticks: AtomicU64,
    /// The job's number, which no other job of the array has.
    number: AtomicU64,
    /// The number of the job that the wish is for, and in its lowest bits a [`JobWish`].
    wish: AtomicU64,
    state: AtomicU32,
    members: AtomicU32,
    user: AtomicU32,
    workers: AtomicU32,
    gives_way: AtomicU32,
    files_done: AtomicU64,
    files_total: AtomicU64,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    bytes_per_second: AtomicU64,
    bytes_per_second_max: AtomicU64,
    begun_ns: AtomicU64,
}

/// The bits of [`JobRecord::wish`] that say what is wished.
const WISH_BITS: u32 = 2;

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobKind {
    /// Members are made anew in their own directories.
    Rebuild,
    /// Another directory takes a member's place.
    Replace,
    /// Everything is compared.
    Check,
    /// Everything is compared, and what does not fit is mended.
    Repair,
    /// A member that was away comes back, and gets what changed meanwhile; or everything, if it is
    /// not proven what it lacks.
    ReAdd(Option<Unproven>),
}

/// What a job is doing now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum JobState {
    /// It gives members what the others have but the bytes of files. That is done in one piece.
    Preparing = 5,
    /// It works, or is about to.
    Running = 1,
    /// It gives way to programs that are busy.
    GivingWay = 2,
    /// It was told to pause: each worker ends the piece that it has begun, and begins no other.
    Paused = 3,
    /// It was told to end, and is about to.
    Ending = 4,
}

/// What a job is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum JobWish {
    /// To go on.
    Go = 0,
    /// To work no more until it is told to go on.
    Pause = 1,
    /// To end.
    Cancel = 2,
}

/// A job as it is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// A number that no other job of the array has, below 2^62.
    pub number: u64,
    /// What it does.
    pub kind: JobKind,
    /// What it is doing now.
    pub state: JobState,
    /// The process that runs it.
    pub process: ProcessId,
    /// The user whose process that is.
    pub user: u32,
    /// The members that are made anew.
    pub members: MemberSet,
    /// Threads that work.
    pub workers: u32,
    /// Whether it gives way to programs that are busy.
    pub gives_way: bool,
    /// Files that are done.
    pub files_done: u64,
    /// Files in all; 0 if that is not known.
    pub files_total: u64,
    /// Bytes of data that are done.
    pub bytes_done: u64,
    /// Bytes of data in all.
    pub bytes_total: u64,
    /// Bytes of data that were done in a second of work lately.
    pub bytes_per_second: u64,
    /// Bytes of data that may be done in a second; 0 if that is not limited.
    pub bytes_per_second_max: u64,
    /// When it began, in nanoseconds since 1970 (UTC).
    pub begun_ns: u64,
}

impl JobKind {
    const fn word(self) -> u32 {
        match self {
            Self::Rebuild => 1,
            Self::Replace => 2,
            Self::Check => 3,
            Self::Repair => 4,
            Self::ReAdd(None) => 5,
            Self::ReAdd(Some(Unproven::Unrecorded)) => 6,
            Self::ReAdd(Some(Unproven::Other)) => 7,
            Self::ReAdd(Some(Unproven::Journal)) => 8,
            Self::ReAdd(Some(Unproven::Unread)) => 9,
            Self::ReAdd(Some(Unproven::Closed)) => 10,
        }
    }

    const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            1 => Self::Rebuild,
            2 => Self::Replace,
            3 => Self::Check,
            4 => Self::Repair,
            5 => Self::ReAdd(None),
            6 => Self::ReAdd(Some(Unproven::Unrecorded)),
            7 => Self::ReAdd(Some(Unproven::Other)),
            8 => Self::ReAdd(Some(Unproven::Journal)),
            9 => Self::ReAdd(Some(Unproven::Unread)),
            10 => Self::ReAdd(Some(Unproven::Closed)),
            _ => return None,
        })
    }
}

impl JobState {
    const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            1 => Self::Running,
            2 => Self::GivingWay,
            3 => Self::Paused,
            4 => Self::Ending,
            5 => Self::Preparing,
            _ => return None,
        })
    }
}

impl JobRecord {
    fn publish(&self, job: &Job) {
        if self.number.load(Ordering::Relaxed) != job.number {
            // Nobody is to see what two jobs say mixed.
            self.pid.store(0, Ordering::Release);
        }
        self.number.store(job.number, Ordering::Relaxed);
        self.kind.store(job.kind.word(), Ordering::Relaxed);
        self.state.store(job.state as u32, Ordering::Relaxed);
        self.start_ticks.store(job.process.start_ticks, Ordering::Relaxed);
        self.members.store(job.members.bits(), Ordering::Relaxed);
        self.user.store(job.user, Ordering::Relaxed);
        self.workers.store(job.workers, Ordering::Relaxed);
        self.gives_way.store(job.gives_way.into(), Ordering::Relaxed);
        self.files_done.store(job.files_done, Ordering::Relaxed);
        self.files_total.store(job.files_total, Ordering::Relaxed);
        self.bytes_done.store(job.bytes_done, Ordering::Relaxed);
        self.bytes_total.store(job.bytes_total, Ordering::Relaxed);
        self.bytes_per_second.store(job.bytes_per_second, Ordering::Relaxed);
        self.bytes_per_second_max.store(job.bytes_per_second_max, Ordering::Relaxed);
        self.begun_ns.store(job.begun_ns, Ordering::Relaxed);
        self.pid.store(job.process.pid, Ordering::Release);
    }

    /// What is published; None if that is no living process' job.
    fn read(&self) -> Option<Job> {
        let pid = self.pid.load(Ordering::Acquire);
        let job = Job {
            number: self.number.load(Ordering::Relaxed),
            kind: JobKind::from_word(self.kind.load(Ordering::Relaxed))?,
            state: JobState::from_word(self.state.load(Ordering::Relaxed))?,
            process: ProcessId { pid, start_ticks: self.start_ticks.load(Ordering::Relaxed) },
            user: self.user.load(Ordering::Relaxed),
            members: MemberSet::from_bits(self.members.load(Ordering::Relaxed)),
            workers: self.workers.load(Ordering::Relaxed),
            gives_way: self.gives_way.load(Ordering::Relaxed) != 0,
            files_done: self.files_done.load(Ordering::Relaxed),
            files_total: self.files_total.load(Ordering::Relaxed),
            bytes_done: self.bytes_done.load(Ordering::Relaxed),
            bytes_total: self.bytes_total.load(Ordering::Relaxed),
            bytes_per_second: self.bytes_per_second.load(Ordering::Relaxed),
            bytes_per_second_max: self.bytes_per_second_max.load(Ordering::Relaxed),
            begun_ns: self.begun_ns.load(Ordering::Relaxed),
        };
        let is_same = self.number.load(Ordering::Acquire) == job.number && self.pid.load(Ordering::Acquire) == pid;
        (pid != 0 && is_same && process_lives(job.process)).then_some(job)
    }

    fn wish_of(&self, number: u64) -> Option<JobWish> {
        let word = self.wish.load(Ordering::Acquire);
        if word >> WISH_BITS != number {
            return None;
        }
        match word & ((1 << WISH_BITS) - 1) {
            0 => Some(JobWish::Go),
            1 => Some(JobWish::Pause),
            2 => Some(JobWish::Cancel),
            _ => None,
        }
    }
}

/// The segment of an array, mapped to publish a job or to tell one what to do. The process is not
/// attached by that.
pub struct JobBoard {
    segment: NonNull<Segment>,
    file: OwnedFd,
}

// SAFETY: what is reached by the pointer is atomics and locks, and stays mapped until drop.
unsafe impl Send for JobBoard {}
// SAFETY: as above.
unsafe impl Sync for JobBoard {}

impl JobBoard {
    /// The board of an array. None if nobody has used the array since the machine started, if this
    /// user may not use it, or if what is there is another version's or belongs to another PID
    /// namespace, of which no process can be told to live.
    #[must_use]
    pub fn open(uuid: Uuid, access: Access) -> Option<Self> {
        let path = find_segment(uuid, access)?;
        let file = fs::open(path.as_str(), OPEN, Mode::empty()).ok()?;
        Self::map(file, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(file: OwnedFd, protection: ProtFlags) -> Option<Self> {
        let bytes = size_of::<Segment>();
        if fs::fstat(&file).ok()?.st_size as usize != bytes {
            return None;
        }
        // SAFETY: a new mapping of the whole file, where nothing lies (the address is a wish),
        // unmapped in drop.
        let start = unsafe { mmap(sys::place::wish(bytes) as *mut _, bytes, protection, MapFlags::SHARED, &file, 0) }.ok()?;
        let board = Self { segment: NonNull::new(start.cast())?, file };
        // SAFETY: mapped until drop; any bytes are valid.
        unsafe { persist::stand_in::begin(start as usize, bytes, 0, |_, _| ()) };
        let segment = board.segment();
        let is_ours = segment.magic.load(Ordering::Acquire) == MAGIC
            && segment.version.load(Ordering::Relaxed) == VERSION
            && segment.pid_namespace.load(Ordering::Relaxed) == pid_namespace();
        is_ours.then_some(board)
    }

    pub(super) fn segment(&self) -> &Segment {
        // SAFETY: mapped for the life of self; all fields are atomics, any bytes are valid.
        unsafe { self.segment.as_ref() }
    }

    /// Whether the file still has its name. If not, others find another board, or none.
    #[must_use]
    pub fn is_current(&self) -> bool {
        fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink != 0)
    }

    /// The job that runs; None if none does.
    #[must_use]
    pub fn job(&self) -> Option<Job> {
        self.segment().job.read()
    }

    /// Says what a job does that this process runs.
    pub fn publish(&self, job: &Job) {
        self.segment().job.publish(job);
    }

    /// The job has ended.
    pub fn clear(&self, number: u64) {
        let record = &self.segment().job;
        if record.number.load(Ordering::Relaxed) == number {
            record.pid.store(0, Ordering::Release);
        }
    }

    /// What the job is told to do; None if nobody has told it anything here.
    #[must_use]
    pub fn wish_for(&self, number: u64) -> Option<JobWish> {
        self.segment().job.wish_of(number)
    }

    /// Tells a job what to do.
    pub fn tell(&self, number: u64, wish: JobWish) {
        self.segment().job.wish.store(number << WISH_BITS | wish as u64, Ordering::Release);
    }

    /// The members that the processes which are attached do without.
    #[must_use]
    pub fn out(&self) -> MemberSet {
        MemberSet::from_bits(self.segment().out.load(Ordering::Acquire))
    }

    /// The processes that are attached, but this one. Some of them may have died.
    #[must_use]
    pub fn programs(&self) -> Vec<u32> {
        let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let segment = self.segment();
        let pid = |index: usize| segment.attach[index].pid.load(Ordering::Acquire);
        taken_slots_in(segment).map(pid).filter(|&pid| pid != 0 && pid != own).collect()
    }
}

impl Drop for JobBoard {
    fn drop(&mut self) {
        let start = self.segment.as_ptr();
        persist::stand_in::end(start as usize);
        // SAFETY: the mapping is ours, and nobody can use it after self is gone.
        let _ = unsafe { munmap(start.cast(), size_of::<Segment>()) };
    }
}

/// The job that runs on an array, for whoever may read its segment.
#[must_use]
pub fn look_for_job(uuid: Uuid) -> Option<Job> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    super::segment_paths(uuid).into_iter().find_map(|path| {
        let file = fs::open(path.as_str(), flags, Mode::empty()).ok()?;
        JobBoard::map(file, ProtFlags::READ)?.job()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> JobRecord {
        // SAFETY: atomics, for which zeros are valid.
        unsafe { core::mem::zeroed() }
    }

    fn job(number: u64) -> Job {
        Job {
            number,
            kind: JobKind::Check,
            state: JobState::Paused,
            process: ProcessId::current(),
            user: 7,
            members: MemberSet::EMPTY.with(1),
            workers: 2,
            gives_way: true,
            files_done: 1,
            files_total: 2,
            bytes_done: 3,
            bytes_total: 4,
            bytes_per_second: 5,
            bytes_per_second_max: 6,
            begun_ns: 7,
        }
    }

    #[test]
    fn a_job_is_read_as_it_was_published_while_its_process_lives() {
        let record = record();
        assert_eq!(record.read(), None);
        let published = job(1 << 61);
        record.publish(&published);
        assert_eq!(record.read(), Some(published));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = ProcessId { pid: child.id(), start_ticks: 0 };
        child.wait().unwrap();
        record.publish(&Job { process, ..published });
        assert_eq!(record.read(), None, "a dead process runs nothing");
        // Another process has the pid by now.
        let process = ProcessId { start_ticks: published.process.start_ticks + 1, ..published.process };
        record.publish(&Job { process, ..published });
        assert_eq!(record.read(), None);
    }

    #[test]
    fn a_wish_is_one_jobs() {
        let record = record();
        record.wish.store(8 << WISH_BITS | JobWish::Pause as u64, Ordering::Relaxed);
        assert_eq!([7, 8, 9].map(|number| record.wish_of(number)), [None, Some(JobWish::Pause), None]);
        record.wish.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(record.wish_of(u64::MAX >> WISH_BITS), None, "nobody wishes that");
    }

    #[test]
    fn what_is_no_kind_is_no_job() {
        let record = record();
        record.publish(&job(3));
        for word in 1..11 {
            assert_eq!(JobKind::from_word(word).map(JobKind::word), Some(word));
        }
        record.kind.store(11, Ordering::Relaxed);
        assert_eq!(record.read(), None);
    }
}
