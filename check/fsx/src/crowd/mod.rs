//! Many threads and processes on the same files.
//!
//! One file is made of regions, each written whole by one thread and read by all; all append
//! records to another, and write records through one shared descriptor to a third. What may be read
//! follows from a board of announced and committed stamps. A leader starts the workers, by exec and
//! by fork alone, kills some at any instruction, and starts others in their place.

mod board;
mod stamps;
mod worker;

use crate::call::{self, Fd};
use crate::check::Wish;
use crate::ground::{self, Ground};
use crate::shape::{Mode, Scenario};
use board::{Board, REGION_COUNT};
use oracle::Rng;
use stage::door::Door;
use stamps::Regions;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use worker::{Worker, check_log, get, open, put};

/// The descriptor that all workers share.
const SHARED_FD: Fd = 100;
/// Every worker is replaced less often than this: writers of records have numbers.
const INCARNATIONS_MAX: usize = 600;
/// An operation that takes longer was held up by a dead process, or for ever.
const LONGEST: Duration = Duration::from_secs(5);

/// When a crowd has done enough.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// So many operations.
    Operations(u64),
    /// So many processes were killed, at shorter intervals.
    Kills(u64),
}

/// What leader and workers are told.
struct Orders {
    directory: PathBuf,
    /// Where every other worker uses the array, which is mounted there.
    mounted: Option<PathBuf>,
    board: PathBuf,
    seed: u64,
    operations: u64,
    processes: usize,
    threads: usize,
    kill: bool,
    /// If not 0, it ends after so many kills.
    kills: u64,
    /// A member is cut halfway: no holes, no change of the regions' end, which would make the lost
    /// bytes zeros unnoticed.
    steady: bool,
    /// Of a worker.
    index: usize,
    incarnation: usize,
}

impl Orders {
    /// Of a worker, whether it uses the mount, and not the library.
    fn is_mounted(&self) -> bool {
        self.mounted.as_ref() == Some(&self.directory)
    }

    fn thread_total(&self) -> usize {
        self.processes * self.threads
    }

    fn words(&self, role: &str) -> Vec<String> {
        let numbers = [
            ("--seed", self.seed),
            ("--operations", self.operations),
            ("--processes", self.processes as u64),
            ("--threads", self.threads as u64),
            ("--kill", u64::from(self.kill)),
            ("--kills", self.kills),
            ("--steady", u64::from(self.steady)),
            ("--index", self.index as u64),
            ("--incarnation", self.incarnation as u64),
        ];
        let mut words = vec!["crowd".to_owned(), role.to_owned()];
        let mounted = self.mounted.as_ref().map(|path| ("--mounted", path));
        for (name, path) in [("--directory", &self.directory), ("--board", &self.board)].into_iter().chain(mounted) {
            words.extend([name.to_owned(), path.display().to_string()]);
        }
        words.extend(numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]));
        words
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        let path = |name| crate::path(words, name).ok_or_else(|| format!("{name} is missing"));
        let number = |name| crate::number(words, name);
        Ok(Self {
            directory: path("--directory")?,
            mounted: crate::path(words, "--mounted"),
            board: path("--board")?,
            seed: number("--seed")?,
            operations: number("--operations")?,
            processes: number("--processes")? as usize,
            threads: number("--threads")? as usize,
            kill: number("--kill")? != 0,
            kills: number("--kills")?,
            steady: number("--steady")? != 0,
            index: number("--index")? as usize,
            incarnation: number("--incarnation")? as usize,
        })
    }
}

/// The role of a leader or worker.
pub(crate) fn role(words: &[String]) -> Result<(), String> {
    let orders = Orders::parse(words)?;
    let board = Board::open(&orders.board).map_err(|error| error.to_string())?;
    let result = if words.first().is_some_and(|word| word == "leader") { lead(orders, board) } else { work(&orders, board) };
    if result.is_err() {
        board.failed.store(1, Ordering::Relaxed);
    }
    result
}

/// All threads of one worker.
fn work(orders: &Orders, board: &'static Board) -> Result<(), String> {
    let regions = Regions::new(orders.seed);
    let threads = orders.index * orders.threads..(orders.index + 1) * orders.threads;
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let regions = &regions;
        let run = |thread| move || Worker::new(orders, board, regions, thread).and_then(|mut worker| worker.run());
        let handles: Vec<_> = threads.map(|thread| scope.spawn(run(thread))).collect();
        let join = |handle: thread::ScopedJoinHandle<'_, Result<(), String>>| {
            let result = handle.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()));
            if result.is_err() {
                board.failed.store(1, Ordering::Relaxed);
            }
            result
        };
        handles.into_iter().map(join).collect()
    });
    let failures: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!("worker {}.{}: {}", orders.index, orders.incarnation, failures.join("; ")))
    }
}

struct Leader {
    orders: Orders,
    board: &'static Board,
    rng: Rng,
    /// The pid of each worker, which leads a process group, and how often it was started.
    workers: Vec<(i32, usize)>,
}

fn lead(orders: Orders, board: &'static Board) -> Result<(), String> {
    let regions = Regions::new(orders.seed);
    let place = |name: &str| orders.directory.join(name);
    let file = open(&place("regions"), libc::O_RDWR | libc::O_CREAT)?;
    put(file, &vec![0x11; regions.start(0) as usize], 0)?;
    for region in 0..REGION_COUNT {
        put(file, &regions.pattern(region, 0), regions.start(region))?;
    }
    for name in ["records", "shared"] {
        let fd = open(&place(name), libc::O_RDWR | libc::O_CREAT)?;
        call::dup2(fd, SHARED_FD).and_then(|_| call::close(fd)).map_err(|errno| format!("dup2: errno {errno}"))?;
    }
    let (shared, records, rng) = (place("shared"), place("records"), Rng::new(orders.seed));
    let mut leader = Leader { orders, board, rng, workers: Vec::new() };
    let result = leader.run();
    if result.is_err() {
        board.failed.store(1, Ordering::Relaxed);
        leader.end_all();
    }
    result?;
    for region in 0..REGION_COUNT {
        regions.observe(board, region, || get(file, regions.start(region), regions.bytes(region)))?;
    }
    let position = call::lseek(SHARED_FD, 0, libc::SEEK_CUR).map_err(|errno| format!("lseek: errno {errno}"))?;
    check_log(&records, None, &board.appended)?;
    check_log(&shared, Some(position as u64), &board.shared)
}

impl Leader {
    fn run(&mut self) -> Result<(), String> {
        for index in 0..self.orders.processes {
            self.start(index, 0)?;
        }
        let mut next_kill = Instant::now() + Duration::from_millis(30);
        while !self.board.is_over() {
            thread::sleep(Duration::from_millis(3));
            self.reap()?;
            if self.is_before_the_cut() {
                // Nor until somebody has noticed.
                next_kill = Instant::now() + Duration::from_millis(20);
            }
            if self.orders.kill && Instant::now() > next_kill && !self.board.is_over() {
                self.replace_one()?;
                let interval_ms = if self.orders.kills == 0 { 20 + self.rng.below(100) } else { 5 + self.rng.below(40) };
                next_kill = Instant::now() + Duration::from_millis(interval_ms);
                if self.orders.kills != 0 && self.board.kills.load(Ordering::Relaxed) >= self.orders.kills {
                    self.board.stop.store(1, Ordering::Relaxed);
                }
            }
        }
        for (pid, _) in std::mem::take(&mut self.workers) {
            match call::wait(pid) {
                Ok(0) => {}
                other => return Err(format!("a worker ended: {other:?}")),
            }
        }
        if self.board.failed.load(Ordering::Relaxed) != 0 { Err("a worker failed".to_owned()) } else { Ok(()) }
    }

    /// Whether a member is about to lose its memory. Who dies in the middle of a write just before
    /// that leaves stripes whose parity nobody can mend any more: the write hole, which only a
    /// journal closes.
    fn is_before_the_cut(&self) -> bool {
        let board = self.board;
        let half = self.orders.operations / 2;
        self.orders.steady && board.operations.load(Ordering::SeqCst) >= half && board.cut.load(Ordering::SeqCst) == 0
    }

    /// A worker that ends before all is done has failed.
    fn reap(&mut self) -> Result<(), String> {
        for &(pid, _) in &self.workers {
            let mut status = 0;
            // SAFETY: the status is ours.
            let ended = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
            if ended == pid {
                self.workers.retain(|worker| worker.0 != pid);
                return if status == 0 && self.board.is_over() { Ok(()) } else { Err(format!("a worker ended: {status:#x}")) };
            }
        }
        Ok(())
    }

    /// Kills a worker, with the children it may have, and starts another in its place.
    fn replace_one(&mut self) -> Result<(), String> {
        let index = self.rng.below(self.workers.len() as u64) as usize;
        let (pid, incarnation) = self.workers[index];
        if incarnation + 1 == INCARNATIONS_MAX {
            return Ok(());
        }
        let threads = index * self.orders.threads..(index + 1) * self.orders.threads;
        let regions = threads.flat_map(|thread| (thread..REGION_COUNT).step_by(self.orders.thread_total()));
        let torn: Vec<usize> = regions.filter(|&region| self.board.tear(region)).collect();
        if self.is_before_the_cut() {
            // Whoever cuts looks at the operations first and then at this, we the other way round:
            // one of us sees the other.
            torn.iter().for_each(|&region| self.board.mend(region));
            return Ok(());
        }
        end(pid)?;
        self.board.kills.fetch_add(1, Ordering::Relaxed);
        self.start(index, incarnation + 1)
    }

    /// By turns a new program and a mere fork of this one. Who uses the mount is a new program
    /// always.
    fn start(&mut self, index: usize, incarnation: usize) -> Result<(), String> {
        let mounted = self.orders.mounted.clone();
        let at_mount = mounted.clone().filter(|_| !index.is_multiple_of(2));
        let orders = Orders {
            index,
            incarnation,
            directory: at_mount.clone().unwrap_or_else(|| self.orders.directory.clone()),
            mounted,
            board: self.orders.board.clone(),
            ..self.orders
        };
        let pid = if at_mount.is_some() || (index + incarnation).is_multiple_of(2) {
            let program = std::env::current_exe().map_err(|error| error.to_string())?;
            let mut command = std::process::Command::new(program);
            command.args(orders.words("worker")).process_group(0);
            if at_mount.is_some() {
                command.env_remove("LD_PRELOAD");
            }
            command.spawn().map_err(|error| format!("spawn: {error}"))?.id() as i32
        } else {
            let board = self.board;
            call::fork(|| {
                // SAFETY: no memory is concerned.
                unsafe { libc::setpgid(0, 0) };
                work(&orders, board).inspect_err(|message| eprintln!("{message}")).is_ok()
            })
            .map_err(|errno| format!("fork: errno {errno}"))?
        };
        // SAFETY: no memory is concerned. Both do it, so that it is done whoever is first.
        unsafe { libc::setpgid(pid, pid) };
        match self.workers.get_mut(index) {
            Some(worker) => *worker = (pid, incarnation),
            None => self.workers.push((pid, incarnation)),
        }
        Ok(())
    }

    fn end_all(&mut self) {
        for (pid, _) in std::mem::take(&mut self.workers) {
            let _ = end(pid);
        }
    }
}

/// Kills a process group of ours and waits until nothing of it is left.
fn end(leader: i32) -> Result<(), String> {
    let kill = |signal| {
        // SAFETY: no memory is concerned.
        unsafe { libc::kill(-leader, signal) }
    };
    kill(libc::SIGKILL);
    call::wait(leader).map_err(|errno| format!("wait: errno {errno}"))?;
    // Its children are init's now.
    while kill(0) == 0 {
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// A crowd on an array. Returns the operations done.
pub(crate) fn run(ground: &Ground, seed: u64, until: Until, limit: Duration) -> Result<u64, String> {
    let case = ground.case;
    let (operations, kills) = match until {
        Until::Operations(operations) => (operations, 0),
        Until::Kills(kills) => (u64::MAX, kills),
    };
    let (processes, threads) = match case.mode {
        Mode::Threads => (1, 4),
        Mode::Doors => (4, 2),
        _ => (3, 2),
    };
    let door = if case.mode == Mode::Doors { Some(open_door(ground)?) } else { None };
    let orders = Orders {
        directory: ground.data(),
        mounted: door.as_ref().map(|_| ground.mounted()),
        board: ground.board(),
        seed,
        operations,
        processes,
        threads,
        kill: matches!(case.mode, Mode::Processes | Mode::Doors),
        kills,
        steady: case.scenario == Scenario::Cut,
        index: 0,
        incarnation: 0,
    };
    let board = Board::open(&orders.board).map_err(|error| error.to_string())?;
    let words = orders.words("leader");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = ground.role(&words, true).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let leader = command.spawn().map_err(|error| error.to_string())?;
    let watched = watch(ground, board, &orders, begun, limit);
    if watched.is_err() {
        board.failed.store(1, Ordering::Relaxed);
    }
    let waited = ground::wait(leader, Duration::from_secs(30));
    waited.and(watched)?;
    if let Some(door) = door {
        door.close()?;
    }
    let longest = Duration::from_micros(board.longest.load(Ordering::Relaxed));
    if longest > LONGEST {
        return Err(format!("an operation took {} ms", longest.as_millis()));
    }
    let killed = board.kills.load(Ordering::Relaxed);
    if killed < kills {
        return Err(format!("only {killed} of {kills} were killed"));
    }
    println!("  {case}: {killed} killed, the longest operation took {:.1} ms", longest.as_secs_f64() * 1e3);
    Ok(board.operations.load(Ordering::Relaxed))
}

/// Mounts the case's array.
fn open_door(ground: &Ground) -> Result<Door, String> {
    let mounted = ground.mounted();
    let serve = ground.role(&["serve", &mounted.display().to_string()], false).map_err(|error| error.to_string())?;
    Door::open(serve, &mounted)
}

/// Until the crowd is done: looks at the redundancy meanwhile, and takes a member's memory away
/// halfway.
fn watch(ground: &Ground, board: &Board, orders: &Orders, begun: Instant, limit: Duration) -> Result<(), String> {
    let mut cut = ground.case.scenario == Scenario::Cut;
    let mut kills_seen = 0;
    while !board.is_over() {
        thread::sleep(Duration::from_millis(2));
        if begun.elapsed() > limit {
            let done = board.operations.load(Ordering::Relaxed);
            let kills = board.kills.load(Ordering::Relaxed);
            return Err(format!("{done} operations and {kills} kills after {} s, which is too few", limit.as_secs()));
        }
        let is_whole = || (0..REGION_COUNT).all(|region| !board.is_torn(region));
        if cut && board.operations.load(Ordering::SeqCst) >= orders.operations / 2 && is_whole() {
            cut = false;
            let data = ground.data();
            let backing =
                ground.member(ground.case.level.first_slot).join(data.strip_prefix("/").unwrap_or(&data)).join("regions");
            let file = OpenOptions::new().write(true).open(&backing);
            file.and_then(|file| file.set_len(0)).map_err(|error| format!("{}: {error}", backing.display()))?;
            board.cut.store(1, Ordering::Release);
        }
        let kills = board.kills.load(Ordering::Relaxed);
        if kills >= kills_seen + 3 {
            kills_seen = kills;
            ground.check(&Wish { live: true, ..Wish::default() }).map_err(|message| format!("after {kills} kills: {message}"))?;
        }
    }
    Ok(())
}
