//! The rebuild, replacement, re-add or scrub that this process runs: its pace, and what others see
//! of it and tell it.
//!
//! Whoever works asks before each piece of work ([`step`], or [`computing`] where locks of a file
//! are held) whether to go on, and is made to wait where a rate is set, where programs are busy, or
//! while the job is paused. A thread publishes how far the job has come in the runtime segment ten
//! times a second (core/array/src/runtime/job.rs), reads there what other processes wish, and looks
//! whether programs are busy.
//!
//! Invariants: a process runs one job at a time. A job that is told to pause ends the piece that
//! each worker has begun, for which it may hold locks of a file, and begins no other; a scrub goes
//! on looking at names until it comes to the next file.

use array::runtime::{Job, JobBoard, JobKind, JobState, JobWish};
use format::{Access, Uuid};
use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    fs,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use units::MemberSet;

/// How often the thread publishes and looks.
const PERIOD: Duration = Duration::from_millis(100);
/// How long a worker that waits sleeps before it looks again whether somebody needs what it holds.
const NAP: Duration = Duration::from_millis(2);
/// The rate is that of the last samples of work, one for each period.
const SAMPLE_COUNT: usize = 50;
/// The rate of a job that gives way while programs are busy: never nothing, so that it ends one
/// day.
pub(crate) const GIVING_WAY_BYTES: u64 = 10 << 20;
/// Programs count as busy so long after they were seen at work.
const BUSY_FOR: Duration = Duration::from_millis(500);
/// A piece of work counts as so many bytes at least where a rate is kept, since a file costs
/// something before its first byte.
const PIECE_BYTES: u64 = 16 << 10;
/// So far behind its rate a job may catch up.
const CATCH_UP_NS: u64 = 50_000_000;

/// How fast a job is to work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// Bytes of files in a second; None: as many as it can.
    pub(crate) rate: Option<u64>,
    /// Whether it gives way while programs are busy.
    pub(crate) gives_way: bool,
    /// Threads.
    pub(crate) workers: usize,
}

/// What a job works on.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) uuid: Uuid,
    pub(crate) access: Access,
    pub(crate) kind: JobKind,
    /// The members that are made anew.
    pub(crate) members: MemberSet,
}

/// The job of this process.
struct Work {
    /// A [`JobWish`].
    wish: AtomicU32,
    is_preparing: AtomicBool,
    is_busy: AtomicBool,
    gives_way: AtomicBool,
    /// Bytes in a second; 0: as many as it can.
    rate: AtomicU64,
    /// The next piece of work is not to begin earlier, in nanoseconds since [`BEGUN`].
    due_ns: AtomicU64,
    files_done: AtomicU64,
    files_total: AtomicU64,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
}

static WORK: Work = Work {
    wish: AtomicU32::new(JobWish::Go as u32),
    is_preparing: AtomicBool::new(false),
    is_busy: AtomicBool::new(false),
    gives_way: AtomicBool::new(false),
    rate: AtomicU64::new(0),
    due_ns: AtomicU64::new(0),
    files_done: AtomicU64::new(0),
    files_total: AtomicU64::new(0),
    bytes_done: AtomicU64::new(0),
    bytes_total: AtomicU64::new(0),
};

thread_local! {
    /// The bytes of the file at hand that this thread has counted as done.
    static COUNTED: Cell<u64> = const { Cell::new(0) };
    /// The file at hand was left as it is, since the job is to pause or to end.
    static IS_LEFT: Cell<bool> = const { Cell::new(false) };
}

/// Set by a signal that ends the job.
static ENDED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Somebody has told the job to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cancelled;

impl Work {
    fn is(&self, wish: JobWish) -> bool {
        self.wish.load(Ordering::Relaxed) == wish as u32
    }

    /// The bytes that may be done in a second now; None: as many as it can.
    fn rate_now(&self) -> Option<u64> {
        let rate = Some(self.rate.load(Ordering::Relaxed)).filter(|&rate| rate != 0);
        if self.gives_way.load(Ordering::Relaxed) && self.is_busy.load(Ordering::Relaxed) {
            return Some(rate.unwrap_or(u64::MAX).min(GIVING_WAY_BYTES));
        }
        rate
    }

    /// Takes the next piece of work of so many bytes into account. Returns when it is to begin, in
    /// nanoseconds of the monotonic clock.
    fn turn_ns(&self, bytes: u64) -> u64 {
        let Some(rate) = self.rate_now() else { return 0 };
        let (now, ns) = (sys::clock::monotonic_ns(), u128::from(bytes.max(PIECE_BYTES)) * 1_000_000_000 / u128::from(rate));
        let from = |due: u64| due.max(now.saturating_sub(CATCH_UP_NS));
        let next = |due| Some(from(due).saturating_add(ns as u64));
        self.due_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(0, from)
    }

    fn count(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Waits until it is this thread's turn to do so many bytes more, with no lock held, and while the
/// job is paused. Fails if the job is to end.
pub(crate) fn step(bytes: u64) -> Result<(), Cancelled> {
    let turn_ns = WORK.turn_ns(bytes);
    while sys::clock::monotonic_ns() < turn_ns || WORK.is(JobWish::Pause) {
        if is_ended() {
            return Err(Cancelled);
        }
        thread::sleep(NAP);
    }
    if is_ended() { Err(Cancelled) } else { Ok(()) }
}

/// What the core asks before it computes so many bytes more of a file, of which locks are held
/// (`array::Tell::computing`). Where somebody waits for one of these it is not slowed down, and
/// when the job is to pause or to end the file is left as it is: its bytes are computed from the
/// first one on when the job goes on.
pub(crate) fn computing(bytes: u64, is_waited_for: &dyn Fn() -> bool) -> bool {
    let turn_ns = WORK.turn_ns(bytes);
    loop {
        if !WORK.is(JobWish::Go) {
            IS_LEFT.set(true);
            return false;
        }
        if sys::clock::monotonic_ns() >= turn_ns || is_waited_for() {
            count_bytes(bytes);
            return true;
        }
        thread::sleep(NAP);
    }
}

/// The job also ends when this is set.
pub(crate) fn end_with(flag: &Arc<AtomicBool>) {
    let _ = ENDED.set(Arc::clone(flag));
}

/// Whether the job is to end.
pub(crate) fn is_ended() -> bool {
    WORK.is(JobWish::Cancel) || ENDED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// So many bytes of the file at hand of this thread were done.
pub(crate) fn count_bytes(bytes: u64) {
    COUNTED.set(COUNTED.get() + bytes);
    WORK.count(bytes);
}

/// A file of so many bytes of data was begun by this thread, and is done or not. Returns whether it
/// was left as it is, since the job is to pause or to end.
pub(crate) fn end_file(bytes: u64, is_done: bool) -> bool {
    WORK.bytes_done.fetch_sub(COUNTED.take(), Ordering::Relaxed);
    let is_left = IS_LEFT.take() && !is_done;
    if is_done {
        WORK.count(bytes);
        WORK.files_done.fetch_add(1, Ordering::Relaxed);
    }
    is_left
}

/// Sets the totals that others see: so many files and bytes are left to do, and what is done
/// already counts besides.
pub(crate) fn set_totals(files: u64, bytes: u64) {
    WORK.files_total.store(WORK.files_done.load(Ordering::Relaxed) + files, Ordering::Relaxed);
    WORK.bytes_total.store(WORK.bytes_done.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

/// Sets what is done already. What is tried again is no more than it was.
pub(crate) fn set_done(files: u64, bytes: u64) {
    WORK.files_done.store(files, Ordering::Relaxed);
    WORK.bytes_done.store(bytes, Ordering::Relaxed);
}

/// Bytes done, and in all.
pub(crate) fn bytes() -> (u64, u64) {
    (WORK.bytes_done.load(Ordering::Relaxed), WORK.bytes_total.load(Ordering::Relaxed))
}

/// The job while it runs. When this is dropped nobody sees it any more.
pub(crate) struct Running {
    is_over: Arc<AtomicBool>,
    publisher: Option<JoinHandle<()>>,
}

impl Running {
    /// Others see the job from now on. It prepares until [`Self::works`].
    pub(crate) fn begin(about: About, pace: Pace) -> Self {
        WORK.gives_way.store(pace.gives_way, Ordering::Relaxed);
        WORK.rate.store(pace.rate.unwrap_or(0), Ordering::Relaxed);
        WORK.is_preparing.store(true, Ordering::Relaxed);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut publisher = Publisher::new(about, pace);
        // Whoever looks right after the command has begun is to see it.
        publisher.publish();
        let over = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("publisher".to_owned()).spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::park_timeout(PERIOD);
                publisher.turn();
            }
            publisher.end();
        });
        // Without the thread nobody sees the job, which goes on all the same.
        Self { is_over, publisher: thread.ok() }
    }

    /// What is left can be paused.
    pub(crate) fn works(&self) {
        WORK.is_preparing.store(false, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.publisher.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct Publisher {
    about: About,
    board: Option<JobBoard>,
    job: Job,
    samples: VecDeque<(Duration, u64)>,
    sampled: (Instant, u64),
    programs: Programs,
}

impl Publisher {
    fn new(about: About, pace: Pace) -> Self {
        let begun_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let process = array::liveness::ProcessId::current();
        let job = Job {
            // No other process of the machine begins one at that time.
            number: (begun_ns << 8 ^ u64::from(process.pid)) & ((1 << 62) - 1),
            kind: about.kind,
            state: JobState::Preparing,
            process,
            user: sys::rustix::process::geteuid().as_raw(),
            members: about.members,
            workers: pace.workers as u32,
            gives_way: pace.gives_way,
            files_done: 0,
            files_total: 0,
            bytes_done: 0,
            bytes_total: 0,
            bytes_per_second: 0,
            bytes_per_second_max: pace.rate.unwrap_or(0),
            begun_ns,
        };
        let sampled = (Instant::now(), bytes().0);
        Self { about, board: None, job, samples: VecDeque::new(), sampled, programs: Programs::default() }
    }

    fn turn(&mut self) {
        self.publish();
        if let (true, Some(board)) = (self.job.gives_way, &self.board) {
            WORK.is_busy.store(self.programs.are_busy(&board.programs()), Ordering::Relaxed);
        }
    }

    fn publish(&mut self) {
        self.sample();
        if self.board.as_ref().is_none_or(|board| !board.is_current()) {
            // The first process that uses the array makes the segment; 'cxlraid stop' removes it.
            self.board = JobBoard::open(self.about.uuid, self.about.access);
        }
        let Some(board) = &self.board else { return };
        if let Some(wish) = board.wish_for(self.job.number)
            // A job that is to end ends.
            && !WORK.is(JobWish::Cancel)
        {
            WORK.wish.store(wish as u32, Ordering::Relaxed);
        }
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        self.job.state = state();
        (self.job.files_done, self.job.files_total) = (load(&WORK.files_done), load(&WORK.files_total));
        // What is published fits the rate, which is that of the bytes seen by the sample.
        (self.job.bytes_done, self.job.bytes_total) = (self.sampled.1, load(&WORK.bytes_total));
        board.publish(&self.job);
    }

    /// Notes how much was done since the last time. A time in which nothing was to be done tells
    /// nothing of the rate.
    fn sample(&mut self) {
        let (now, done) = (Instant::now(), bytes().0);
        let (before, already) = std::mem::replace(&mut self.sampled, (now, done));
        if !matches!(state(), JobState::Running | JobState::GivingWay) {
            return;
        }
        if self.samples.len() == SAMPLE_COUNT {
            self.samples.pop_front();
        }
        self.samples.push_back((now - before, done.saturating_sub(already)));
        let seconds: f64 = self.samples.iter().map(|(time, _)| time.as_secs_f64()).sum();
        let bytes: u64 = self.samples.iter().map(|(_, bytes)| bytes).sum();
        if seconds > 0.0 {
            self.job.bytes_per_second = (bytes as f64 / seconds) as u64;
        }
    }

    fn end(&self) {
        if let Some(board) = &self.board {
            board.clear(self.job.number);
        }
    }
}

/// What the job is doing now.
fn state() -> JobState {
    if WORK.is(JobWish::Cancel) {
        JobState::Ending
    } else if WORK.is_preparing.load(Ordering::Relaxed) {
        JobState::Preparing
    } else if WORK.is(JobWish::Pause) {
        JobState::Paused
    } else if WORK.gives_way.load(Ordering::Relaxed) && WORK.is_busy.load(Ordering::Relaxed) {
        JobState::GivingWay
    } else {
        JobState::Running
    }
}

/// The programs that use the array, and how much time of processors each has used.
#[derive(Default)]
struct Programs {
    ticks: BTreeMap<u32, u64>,
    seen_busy: Option<Instant>,
}

impl Programs {
    /// Tells whether programs that use the array have used a processor lately. The counts of served
    /// calls are not asked, since what programs do through mappings is not in them. So a program that
    /// computes something else counts as busy, too.
    fn are_busy(&mut self, pids: &[u32]) -> bool {
        let now: BTreeMap<u32, u64> = pids.iter().filter_map(|&pid| Some((pid, processor_ticks(pid)?))).collect();
        // What a program had used before it was first seen here is past.
        let has_worked = now.iter().any(|(pid, ticks)| self.ticks.get(pid).is_some_and(|before| ticks > before));
        self.ticks = now;
        if has_worked {
            self.seen_busy = Some(Instant::now());
        }
        self.seen_busy.is_some_and(|seen| seen.elapsed() < BUSY_FOR)
    }
}

/// The processor time of all threads of a process, in clock ticks (proc(5)).
fn processor_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// What is said of who runs a job, behind its name: "a rebuild by process 12".
pub(crate) fn said_of(job: &Job) -> String {
    let what = match job.kind {
        JobKind::Rebuild => "a rebuild",
        JobKind::Replace => "a replacement",
        JobKind::Check => "a scrub",
        JobKind::Repair => "a scrub with --repair",
        JobKind::ReAdd(_) => "a re-add",
    };
    format!("{what} by process {}", job.process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_process() {
        let before = processor_ticks(std::process::id()).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(60) {}
        let after = processor_ticks(std::process::id()).unwrap();
        assert!(after > before, "{before} {after}");
        assert_eq!(processor_ticks(u32::MAX), None);
    }

    #[test]
    fn programs_are_busy_if_they_use_a_processor() {
        let mut programs = Programs::default();
        let own = [std::process::id()];
        assert!(!programs.are_busy(&own), "what was before is past");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(60) {}
        assert!(programs.are_busy(&own));
        assert!(programs.are_busy(&[]), "for a while");
        programs.seen_busy = None;
        assert!(!programs.are_busy(&[]));
    }
}
