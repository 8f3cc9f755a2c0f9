//! A thread of a crowd: writes its own regions whole, reads anybody's, appends records, and keeps a
//! file of its own.

use super::board::{Board, Progress, REGION_COUNT};
use super::stamps::{self, Regions, is_hole, record};
use super::{Orders, SHARED_FD};
use crate::call::{self, Fd, Mapping, Vectored};
use oracle::Rng;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// A thread's own file is kept below this.
const OWN_BYTES_MAX: u64 = 400_000;

pub(super) struct Worker<'a> {
    orders: &'a Orders,
    board: &'static Board,
    regions: &'a Regions,
    /// Of all threads of all workers.
    thread: usize,
    /// Of all threads of all incarnations.
    writer: usize,
    rng: Rng,
    file: Fd,
    appending: Fd,
    own: Fd,
    own_size: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(orders: &'a Orders, board: &'static Board, regions: &'a Regions, thread: usize) -> Result<Self, String> {
        let writer = orders.incarnation * orders.thread_total() + thread;
        let open = |name: String, flags: i32| open(&orders.directory.join(name), flags);
        let own = open(format!("own{thread}"), libc::O_RDWR | libc::O_CREAT)?;
        let (own_size, _) = call::stat(Ok(own)).map_err(|errno| format!("stat: errno {errno}"))?;
        Ok(Self {
            orders,
            board,
            regions,
            thread,
            writer,
            rng: Rng::new(orders.seed ^ (writer as u64 + 1) << 32),
            file: open("regions".to_owned(), libc::O_RDWR)?,
            appending: open("records".to_owned(), libc::O_RDWR | libc::O_APPEND)?,
            own,
            own_size,
        })
    }

    /// The regions that this thread alone writes.
    fn own_regions(&self) -> impl Iterator<Item = usize> + use<> {
        (self.thread..REGION_COUNT).step_by(self.orders.thread_total())
    }

    fn any_own_region(&mut self) -> usize {
        let own: Vec<usize> = self.own_regions().collect();
        own[self.rng.below(own.len() as u64) as usize]
    }

    /// Works until all have done enough.
    pub(super) fn run(&mut self) -> Result<(), String> {
        self.take_over()?;
        while !self.board.is_over() {
            self.wait_for_the_cut();
            let begun = Instant::now();
            self.step()?;
            let took = begun.elapsed().as_micros() as u64;
            self.board.longest.fetch_max(took, Ordering::Relaxed);
            if self.board.operations.fetch_add(1, Ordering::Relaxed) + 1 >= self.orders.operations {
                self.board.stop.store(1, Ordering::Relaxed);
            }
        }
        for fd in [self.file, self.appending, self.own] {
            call::close(fd).map_err(|errno| format!("close: errno {errno}"))?;
        }
        Ok(())
    }

    /// The member loses its memory from the half on, once what the killed have left is whole; the
    /// last quarter is done without it, or finds out.
    fn wait_for_the_cut(&self) {
        let due = || self.orders.steady && self.board.operations.load(Ordering::Relaxed) >= self.orders.operations / 4 * 3;
        while due() && self.board.cut.load(Ordering::Acquire) == 0 && !self.board.is_over() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a killed predecessor left is made whole, and nothing of it lies behind the end of the
    /// own file.
    fn take_over(&mut self) -> Result<(), String> {
        for region in self.own_regions().filter(|&region| self.board.is_torn(region)) {
            let stamp = self.board.regions[region].announce();
            put(self.file, &self.regions.pattern(region, stamp), self.regions.start(region))?;
            self.board.regions[region].commit(stamp);
            self.board.mend(region);
        }
        self.grow_own()
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(200) {
            0..80 => self.write_region(),
            80..144 => self.read_region(),
            144..160 => self.append_record(),
            // Who uses the mount has no descriptor that others share.
            160..170 if self.orders.is_mounted() => self.append_record(),
            160..170 => self.write_shared_record(),
            170..184 => self.use_own_file(),
            // A mapping of lost memory has no other member to turn to, and one of the mount's shows
            // late what others write.
            184..188 if !self.orders.steady && !self.orders.is_mounted() => self.map_region(),
            188..192 => self.reopen(),
            192..194 => done("fsync", call::fsync(self.file), 0),
            194..196 if self.thread == 0 && !self.orders.steady => self.move_end(),
            196 if self.rng.one_in(8) => self.write_in_child(),
            _ => self.check_size(),
        }
    }

    fn write_region(&mut self) -> Result<(), String> {
        let region = self.any_own_region();
        let (start, bytes) = (self.regions.start(region), self.regions.bytes(region));
        let stamp = self.board.regions[region].announce();
        let pattern = self.regions.pattern(region, stamp);
        match self.rng.below(4) {
            _ if is_hole(stamp) && !self.orders.steady => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                done("fallocate", call::fallocate(self.file, mode, start as i64, bytes as i64), 0)?;
            }
            0 => {
                done("lseek", call::lseek(self.file, start as i64, libc::SEEK_SET), start as i64)?;
                done("write", call::write(self.file, &pattern), bytes as i64)?;
            }
            1 => {
                let cuts = [bytes / 3, bytes / 2];
                done("pwritev", call::write_vector(self.file, &pattern, &cuts, Vectored::Offset(start as i64)), bytes as i64)?;
            }
            _ => put(self.file, &pattern, start)?,
        }
        self.board.regions[region].commit(stamp);
        Ok(())
    }

    fn read_region(&mut self) -> Result<(), String> {
        let region = self.rng.below(REGION_COUNT as u64) as usize;
        let (start, bytes) = (self.regions.start(region), self.regions.bytes(region));
        self.regions.observe(self.board, region, || get(self.file, start, bytes))
    }

    fn record_bytes(&mut self) -> usize {
        (if self.rng.one_in(30) { self.rng.below(80_000) } else { self.rng.below(700) }) as usize
    }

    fn append_record(&mut self) -> Result<(), String> {
        let bytes = self.record_bytes();
        let progress = &self.board.appended[self.writer];
        let written = append(progress, self.appending, self.writer, bytes)?;
        if self.orders.is_mounted() {
            // The kernel counts the position from where it took the end to be.
            return Ok(());
        }
        // The descriptor is this thread's: its position is the record's end.
        let end = call::lseek(self.appending, 0, libc::SEEK_CUR).map_err(|errno| format!("lseek: errno {errno}"))? as u64;
        let got = get(self.appending, end - written.len() as u64, written.len())?;
        if got == written { Ok(()) } else { Err(format!("own record: {}", crate::expected::difference(&written, &got))) }
    }

    fn write_shared_record(&mut self) -> Result<(), String> {
        let bytes = self.record_bytes();
        append(&self.board.shared[self.writer], SHARED_FD, self.writer, bytes).map(|_| ())
    }

    /// Grows, cuts and fills the file that is this thread's alone.
    fn use_own_file(&mut self) -> Result<(), String> {
        if self.own_size > OWN_BYTES_MAX || self.rng.one_in(4) {
            self.own_size = self.rng.below(self.own_size + 1);
            return done("ftruncate", call::ftruncate(self.own, self.own_size as i64), 0);
        }
        if self.rng.one_in(4) {
            return self.grow_own();
        }
        let bytes = 1 + self.rng.below(60_000);
        put(self.own, &vec![0xa5; bytes as usize], self.own_size)?;
        self.own_size += bytes;
        Ok(())
    }

    /// What a file grows by is zeros.
    fn grow_own(&mut self) -> Result<(), String> {
        let bytes = 1 + self.rng.below(100_000);
        done("ftruncate", call::ftruncate(self.own, (self.own_size + bytes) as i64), 0)?;
        let got = get(self.own, self.own_size, bytes as usize)?;
        if let Some(at) = got.iter().position(|&byte| byte != 0) {
            return Err(format!("own file: byte {at} of {bytes} it grew by from {} is {:#x}", self.own_size, got[at]));
        }
        self.own_size += bytes;
        Ok(())
    }

    fn map_region(&mut self) -> Result<(), String> {
        let region = self.any_own_region();
        let (start, bytes) = (self.regions.start(region), self.regions.bytes(region));
        let shared = self.rng.one_in(2);
        self.regions.observe(self.board, region, || {
            let page = start / 4096 * 4096;
            let ahead = (start - page) as usize;
            let map = Mapping::new(self.file, page, ahead + bytes, shared).map_err(|errno| format!("mmap: errno {errno}"))?;
            Ok(map.copy(ahead + bytes)[ahead..].to_vec())
        })
    }

    fn reopen(&mut self) -> Result<(), String> {
        let fresh = open(&self.orders.directory.join("regions"), libc::O_RDWR)?;
        let copy = call::dup(fresh).map_err(|errno| format!("dup: errno {errno}"))? as Fd;
        for fd in [fresh, self.file] {
            done("close", call::close(fd), 0)?;
        }
        self.file = copy;
        Ok(())
    }

    /// What lies behind the regions comes and goes while others write to them.
    fn move_end(&mut self) -> Result<(), String> {
        let end = self.regions.end() + self.rng.below(200_000);
        done("ftruncate", call::ftruncate(self.file, end as i64), 0)
    }

    fn check_size(&mut self) -> Result<(), String> {
        match call::stat(Ok(self.file)) {
            Ok((size, 1)) if size >= self.regions.end() => Ok(()),
            other => Err(format!("stat of the regions: {other:?}")),
        }
    }

    fn write_in_child(&mut self) -> Result<(), String> {
        let region = self.any_own_region();
        let stamp = self.board.regions[region].announce();
        let (pattern, start) = (self.regions.pattern(region, stamp), self.regions.start(region));
        let pid = call::fork(|| put(self.file, &pattern, start).is_ok());
        match pid.and_then(call::wait) {
            Ok(0) => self.board.regions[region].commit(stamp),
            other => return Err(format!("the child ended with {other:?}")),
        }
        Ok(())
    }
}

fn append(progress: &Progress, fd: Fd, writer: usize, bytes: usize) -> Result<Vec<u8>, String> {
    let number = progress.announce();
    let record = record(writer, number, bytes);
    done("write", call::write(fd, &record), record.len() as i64)?;
    progress.commit(number);
    Ok(record)
}

pub(super) fn open(path: &std::path::Path, flags: i32) -> Result<Fd, String> {
    let fd =
        call::open(path, flags | libc::O_CLOEXEC, 0o644).map_err(|errno| format!("open {}: errno {errno}", path.display()))?;
    Ok(fd as Fd)
}

fn done(what: &str, answer: call::Answer, expected: i64) -> Result<(), String> {
    if answer == Ok(expected) { Ok(()) } else { Err(format!("{what} gave {answer:?}, not {expected}")) }
}

pub(super) fn put(fd: Fd, bytes: &[u8], offset: u64) -> Result<(), String> {
    done("pwrite", call::pwrite(fd, bytes, offset as i64), bytes.len() as i64)
}

pub(super) fn get(fd: Fd, offset: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let mut got = vec![0xee; bytes];
    done("pread", call::pread(fd, &mut got, offset as i64), bytes as i64)?;
    Ok(got)
}

/// The records of a log must be those that were committed, and may be those that were announced.
pub(super) fn check_log(path: &PathBuf, end: Option<u64>, progress: &[Progress]) -> Result<(), String> {
    let name = path.display();
    let log = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    let end = end.map_or(log.len(), |end| end as usize);
    if end > log.len() {
        return Err(format!("{name}: the position {end} is behind the end {}", log.len()));
    }
    let counts = stamps::parse(&log[..end]).map_err(|message| format!("{name}: {message}"))?;
    for (writer, (count, progress)) in counts.iter().zip(progress).enumerate() {
        let (committed, announced) = (progress.committed.load(Ordering::Relaxed), progress.announced.load(Ordering::Relaxed));
        if *count < committed || *count > announced {
            return Err(format!("{name}: {count} records of writer {writer}, which wrote {committed} to {announced}"));
        }
    }
    Ok(())
}
