//! A case in which two processes (workers) store at random into one mapped file while a third
//! compares the file's redundancy, and workers are killed.
//!
//! The words of the file belong to the workers by turns. Each word holds its own index and how
//! often its owner has stored to it. A board outside the array says how often the owner was about
//! to store to the word and how often it has stored, so only few values are right for a word that
//! is loaded or read. From time to time all workers call msync and rest. Then the redundancy must
//! fit, which a process without the library checks. One worker has its mapping from its parent. A
//! worker that is killed leaves stores that nobody has followed; the next process that comes must
//! make them good.

use crate::call::{self, Fd, Mapping};
use crate::check::{self, Wish};
use crate::ground::{self, Ground};
use crate::shape::Scenario;
use oracle::Rng;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

const WORKER_COUNT: usize = 2;
const WORD_COUNT: usize = 40_001;
const FILE_BYTES: u64 = WORD_COUNT as u64 * 8;
/// How often in a run all workers rest and the redundancy is checked.
const REST_COUNT: u64 = 4;

/// What all processes of the case share: a file outside the array that each maps.
#[repr(C)]
struct Board {
    /// The number of the last rest that the leader has called.
    rests: AtomicU64,
    /// The number of the last rest that is over.
    resumed: AtomicU64,
    /// The number of the last rest that each worker has reached.
    resting: [AtomicU64; WORKER_COUNT],
    /// How many stores each worker has made.
    stores: [AtomicU64; WORKER_COUNT],
    stop: AtomicU64,
    /// How many stores to each word have begun.
    announced: [AtomicU64; WORD_COUNT],
    /// How many stores to each word were complete.
    committed: [AtomicU64; WORD_COUNT],
}

impl Board {
    fn open(path: &Path) -> Result<&'static Self, String> {
        let name = path.display();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| format!("{name}: {error}"))?;
        file.set_len(size_of::<Self>() as u64).map_err(|error| format!("{name}: {error}"))?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let map = Mapping::writable(fd, 0, size_of::<Self>()).map_err(|errno| format!("{name}: errno {errno}"))?;
        let map: &'static Mapping = Box::leak(Box::new(map));
        // SAFETY: mapped for good; all fields are atomics, of which any bytes are valid.
        Ok(unsafe { &*std::ptr::from_ref(map.word(0)).cast::<Self>() })
    }
}

/// The value of word `index` after `count` stores to it; zero before the first.
const fn word(index: usize, count: u64) -> u64 {
    if count == 0 { 0 } else { (index as u64) << 40 | count }
}

/// Runs a process of the case: a worker, or the process that compares.
pub(crate) fn role(words: &[String]) -> Result<(), String> {
    let board = Board::open(&crate::path(words, "--board").ok_or("--board is missing")?)?;
    if words.first().is_some_and(|word| word == "compare") {
        return compare(board);
    }
    let path = crate::path(words, "--file").ok_or("--file is missing")?;
    let index = crate::number(words, "--index")? as usize;
    let mut worker = Worker { board, path, index, rng: Rng::new(crate::number(words, "--seed")?) };
    let (map, fd) = worker.map()?;
    if index == 0 {
        return worker.run(&map, fd);
    }
    let ended = call::fork(|| worker.run(&map, fd).inspect_err(|message| eprintln!("{message}")).is_ok()).and_then(call::wait);
    if ended == Ok(0) { Ok(()) } else { Err(format!("the child that stores ended: {ended:?}")) }
}

/// Compares the redundancy again and again. While workers store, the redundancy need not fit, but
/// there must be no other complaint.
fn compare(board: &Board) -> Result<(), String> {
    while board.stop.load(SeqCst) == 0 {
        let wrong = check::check(&Wish { live: true, ..Wish::default() })?;
        if let Some(message) = wrong.iter().find(|message| !message.ends_with("do not fit")) {
            return Err(message.clone());
        }
    }
    Ok(())
}

struct Worker {
    board: &'static Board,
    path: PathBuf,
    index: usize,
    rng: Rng,
}

impl Worker {
    fn map(&self) -> Result<(Mapping, Fd), String> {
        let fd = call::open(&self.path, libc::O_RDWR, 0).map_err(|errno| format!("open: errno {errno}"))? as Fd;
        let map = Mapping::writable(fd, 0, FILE_BYTES as usize).map_err(|errno| format!("mmap: errno {errno}"))?;
        Ok((map, fd))
    }

    fn run(&mut self, map: &Mapping, fd: Fd) -> Result<(), String> {
        while self.board.stop.load(SeqCst) == 0 {
            for _ in 0..1 + self.rng.below(40) {
                self.store(map);
            }
            match self.rng.below(16) {
                0 => map.sync(libc::MS_SYNC).map_err(|errno| format!("msync: errno {errno}"))?,
                1 => self.read(fd)?,
                _ => self.load(map)?,
            }
            self.rest(map)?;
        }
        Ok(())
    }

    /// A word of this worker, mostly on few pages, so that the same pages are stored to and
    /// followed at once.
    fn own_word(&mut self) -> usize {
        let near = self.rng.below(8) * 5000 + self.rng.below(600);
        let any = if self.rng.one_in(4) { self.rng.below(WORD_COUNT as u64) } else { near };
        let own = any as usize / WORKER_COUNT * WORKER_COUNT + self.index;
        if own < WORD_COUNT { own } else { self.index }
    }

    fn store(&mut self, map: &Mapping) {
        let index = self.own_word();
        let count = self.board.announced[index].load(SeqCst) + 1;
        self.board.announced[index].store(count, SeqCst);
        map.word(index).store(word(index, count), SeqCst);
        self.board.committed[index].store(count, SeqCst);
        self.board.stores[self.index].fetch_add(1, SeqCst);
    }

    /// Checks the value `got` of a word. It must be the value after `committed` stores, which the
    /// board said before the word was loaded, or after a later store that had begun when it was
    /// loaded.
    fn look(&self, index: usize, committed: u64, got: u64) -> Result<(), String> {
        let announced = self.board.announced[index].load(SeqCst);
        if (committed..=announced).any(|count| word(index, count) == got) {
            return Ok(());
        }
        Err(format!("worker {} finds {got:#x} in word {index}, which was stored {committed} to {announced} times", self.index))
    }

    fn load(&mut self, map: &Mapping) -> Result<(), String> {
        for index in [self.own_word(), self.rng.below(WORD_COUNT as u64) as usize] {
            let committed = self.board.committed[index].load(SeqCst);
            self.look(index, committed, map.word(index).load(SeqCst))?;
        }
        Ok(())
    }

    fn read(&mut self, fd: Fd) -> Result<(), String> {
        let first = self.rng.below(WORD_COUNT as u64) as usize;
        let count = (1 + self.rng.below(2000) as usize).min(WORD_COUNT - first);
        let committed: Vec<u64> = (first..first + count).map(|index| self.board.committed[index].load(SeqCst)).collect();
        let mut got = vec![0; count * 8];
        let answer = call::pread(fd, &mut got, first as i64 * 8);
        if answer != Ok(got.len() as i64) {
            return Err(format!("pread gave {answer:?}"));
        }
        got.as_chunks::<8>()
            .0
            .iter()
            .zip(committed)
            .enumerate()
            .try_for_each(|(at, (bytes, committed))| self.look(first + at, committed, u64::from_le_bytes(*bytes)))
    }

    /// Rests if the leader has called a rest: calls msync, says so on the board, and waits until
    /// the rest is over.
    fn rest(&self, map: &Mapping) -> Result<(), String> {
        let rest = self.board.rests.load(SeqCst);
        if rest == self.board.resumed.load(SeqCst) {
            return Ok(());
        }
        map.sync(libc::MS_SYNC).map_err(|errno| format!("msync: errno {errno}"))?;
        self.board.resting[self.index].store(rest, SeqCst);
        while self.board.resumed.load(SeqCst) < rest && self.board.stop.load(SeqCst) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

struct Leader<'a> {
    ground: &'a Ground,
    board: &'static Board,
    file: PathBuf,
    seed: u64,
    deadline: Instant,
}

/// Runs the case. Returns how many stores were made.
pub(crate) fn run(ground: &Ground, seed: u64, operations: u64, limit: Duration) -> Result<u64, String> {
    let board = Board::open(&ground.board())?;
    let file = ground.data().join("words");
    // This process runs without the library and sees no array, so another program makes the file.
    let mut command = ground.role(&["stores-file", &file.display().to_string()], true).map_err(|error| error.to_string())?;
    let made = command.status().map_err(|error| error.to_string())?;
    if !made.success() {
        return Err(format!("{}: not made: {made}", file.display()));
    }
    let leader = Leader { ground, board, file, seed, deadline: Instant::now() + limit };
    let mut crowd: Vec<Child> = Vec::new();
    let mut result = leader.start_all(&mut crowd).and_then(|()| leader.lead(&mut crowd, operations));
    board.stop.store(1, SeqCst);
    for mut child in crowd {
        if result.is_ok() {
            result = ground::wait(child, Duration::from_secs(60));
        } else {
            ground::end_group(&mut child);
        }
    }
    result.map(|()| board.stores.iter().map(|count| count.load(SeqCst)).sum())
}

/// Makes the file that is mapped.
pub(crate) fn make_file(path: &Path) -> Result<(), String> {
    let file = std::fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.set_len(FILE_BYTES).map_err(|error| format!("{}: {error}", path.display()))
}

impl Leader<'_> {
    fn start_all(&self, crowd: &mut Vec<Child>) -> Result<(), String> {
        for index in 0..WORKER_COUNT {
            crowd.push(self.start(index, 0)?);
        }
        let board = self.ground.board().display().to_string();
        let mut command =
            self.ground.role(&["stores", "compare", "--board", &board], false).map_err(|error| error.to_string())?;
        crowd.push(command.spawn().map_err(|error| error.to_string())?);
        Ok(())
    }

    fn start(&self, index: usize, incarnation: u64) -> Result<Child, String> {
        let (board, file) = (self.ground.board().display().to_string(), self.file.display().to_string());
        let (number, seed) = (index.to_string(), self.seed.wrapping_add(index as u64 + 10 * incarnation).to_string());
        let words = ["stores", "worker", "--board", &board, "--file", &file, "--index", &number, "--seed", &seed];
        let mut command = self.ground.role(&words, true).map_err(|error| error.to_string())?;
        command.spawn().map_err(|error| error.to_string())
    }

    fn lead(&self, crowd: &mut [Child], operations: u64) -> Result<(), String> {
        let stores = || -> u64 { self.board.stores.iter().map(|count| count.load(SeqCst)).sum() };
        let mut rng = Rng::new(self.seed);
        for rest in 1..=REST_COUNT {
            self.until(crowd, || stores() >= operations * rest / REST_COUNT)?;
            // Before every second rest one worker is killed, and the other rests with what the dead
            // worker left.
            let killed = rest.is_multiple_of(2).then(|| rng.below(WORKER_COUNT as u64) as usize);
            if let Some(index) = killed {
                ground::end_group(&mut crowd[index]);
            }
            self.board.rests.store(rest, SeqCst);
            let resting = |index| Some(index) == killed || self.board.resting[index].load(SeqCst) == rest;
            let others: Vec<usize> = (0..crowd.len()).filter(|&index| Some(index) != killed).collect();
            self.until_alive(crowd, &others, || (0..WORKER_COUNT).all(resting))?;
            let looked = self.ground.check(&Wish { live: true, ..Wish::default() });
            looked.map_err(|message| format!("after msync, rest {rest}, killed {killed:?}: {message}"))?;
            if let Some(index) = killed {
                crowd[index] = self.start(index, rest)?;
            }
            self.board.resumed.store(rest, SeqCst);
        }
        Ok(())
    }

    fn until(&self, crowd: &mut [Child], done: impl Fn() -> bool) -> Result<(), String> {
        let all: Vec<usize> = (0..crowd.len()).collect();
        self.until_alive(crowd, &all, done)
    }

    /// Waits until `done`. Fails if a process of the crowd whose index is in `alive` ends, or at
    /// the deadline.
    fn until_alive(&self, crowd: &mut [Child], alive: &[usize], done: impl Fn() -> bool) -> Result<(), String> {
        while !done() {
            for &index in alive {
                if let Some(status) = crowd[index].try_wait().map_err(|error| error.to_string())? {
                    return Err(format!("worker {index} ended: {status}"));
                }
            }
            if Instant::now() > self.deadline {
                return Err("still at work when the time is over".to_owned());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Whether the case can be run with `scenario`. Stores through a mapping that nobody has followed
/// are lost with a member, so no member's memory goes away in the middle of this case;
/// [`crate::single`] has that, after an msync.
pub(crate) fn bears(scenario: Scenario) -> bool {
    scenario != Scenario::Cut
}
