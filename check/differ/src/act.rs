//! A process that runs programs of system calls and writes down what each call answered.
//!
//! It runs in the same way on an array, with the library loaded, and on a plain directory. Each program runs in a child of its own, so that it begins with the same descriptors, and is
//! followed by what it has left.

use crate::{
    calls::{Call, Kind, Shown},
    draw::{Argument, Place, Step, program},
    tree,
};
use std::{
    ffi::{CString, c_void},
    fmt::Write as _,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    ptr,
};

/// The word that makes this program act.
pub(crate) const ROLE: &str = "act";
/// Where results go: out of the way of the program's own descriptors.
const RESULTS: i32 = 900;
/// The longest file that a program may make, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// How long a call may wait for others, in microseconds.
const WAIT_US: i64 = 50_000;
/// The memory of one argument, behind which there is none.
const AREA_BYTES: usize = 128 << 10;
/// What is compared of memory in which a call may have stored.
const COMPARED_BYTES: usize = 80 << 10;
/// Where the pieces of memory begin that an argument of pieces names, and how far they are apart.
const PIECE_START: usize = 4096;
const PIECE_STEP: usize = 40 << 10;
const AREA_COUNT: usize = 6;
const USER: u32 = 1001;

/// What programs are to be run.
pub(crate) struct Orders {
    pub(crate) inside: PathBuf,
    pub(crate) outside: PathBuf,
    pub(crate) results: PathBuf,
    pub(crate) first_seed: u64,
    pub(crate) count: u64,
    /// Of each program only these steps, if any are named.
    pub(crate) steps: Vec<usize>,
}

impl Orders {
    pub(crate) fn words(&self) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        vec![
            ROLE.to_owned(),
            path(&self.inside),
            path(&self.outside),
            path(&self.results),
            self.first_seed.to_string(),
            self.count.to_string(),
            steps.join(","),
        ]
    }

    fn from_words(words: &[String]) -> Option<Self> {
        let [inside, outside, results, first_seed, count, steps] = words else { return None };
        Some(Self {
            inside: inside.into(),
            outside: outside.into(),
            results: results.into(),
            first_seed: first_seed.parse().ok()?,
            count: count.parse().ok()?,
            steps: steps.split(',').filter(|step| !step.is_empty()).map(|step| step.parse().ok()).collect::<Option<_>>()?,
        })
    }
}

/// Runs the programs.
pub(crate) fn act(words: &[String]) -> io::Result<()> {
    let orders = Orders::from_words(words).ok_or(io::ErrorKind::InvalidInput)?;
    let results = CString::new(orders.results.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL; the rest are numbers, and nothing of this process is open at the number of results.
    unsafe {
        let fd = libc::open(results.as_ptr(), libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, 0o600);
        if fd < 0 || libc::dup2(fd, RESULTS) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close(fd);
    }
    for seed in orders.first_seed..orders.first_seed + orders.count {
        tree::make(&orders.inside, &orders.outside)?;
        say(&format!("program {seed}\n"));
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let result = run(&orders, seed);
            if let Err(error) = &result {
                say(&format!("not run: {error}\n"));
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        say(&format!("ended {}\n", if waited == child { status } else { -1 }));
        say(&tree::listing(&orders.inside));
        say("outside\n");
        say(&tree::listing(&orders.outside));
    }
    // What is left on the host would be found there by what an array does not serve.
    tree::clear(&orders.inside, &orders.outside)?;
    say("whole\n");
    Ok(())
}

fn say(text: &str) {
    // SAFETY: the text is valid.
    unsafe { libc::write(RESULTS, text.as_ptr().cast::<c_void>(), text.len()) };
}

fn run(orders: &Orders, seed: u64) -> io::Result<()> {
    std::env::set_current_dir(&orders.inside)?;
    tree::open(&orders.outside)?;
    let limit = libc::rlimit { rlim_cur: FILE_BYTES_MAX, rlim_max: FILE_BYTES_MAX };
    // SAFETY: the limit is valid; what a call waits for too long is interrupted by a signal whose handler does nothing.
    unsafe {
        libc::umask(0o022);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupted as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
    }
    let mut actor = Actor::new(orders)?;
    for (number, step) in program(seed).iter().enumerate() {
        if !orders.steps.is_empty() && !orders.steps.contains(&number) {
            continue;
        }
        let line = match step {
            Step::DropRights => actor.drop_rights(),
            Step::Call(call, arguments) => actor.call(number, call, arguments),
        };
        say(&format!("{number} {line}\n"));
    }
    Ok(())
}

extern "C" fn interrupted(_: i32) {}

struct Actor<'a> {
    orders: &'a Orders,
    areas: [*mut u8; AREA_COUNT],
    read_only: *mut u8,
    unmapped: *mut u8,
}

fn map(bytes: usize, protection: i32) -> io::Result<*mut u8> {
    // SAFETY: the kernel chooses the place.
    let found = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if found == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(found.cast()) }
}

impl<'a> Actor<'a> {
    fn new(orders: &'a Orders) -> io::Result<Self> {
        let mut areas = [ptr::null_mut(); AREA_COUNT];
        for area in &mut areas {
            *area = map(2 * AREA_BYTES, libc::PROT_NONE)?;
            // SAFETY: the first half of what was just mapped.
            unsafe { libc::mprotect(area.cast(), AREA_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
        }
        let read_only = map(2 * AREA_BYTES, libc::PROT_NONE)?;
        // SAFETY: the first half of what was just mapped; behind it there is nothing that a call could go on in.
        unsafe { libc::mprotect(read_only.cast(), AREA_BYTES, libc::PROT_READ) };
        Ok(Self { orders, areas, read_only, unmapped: map(AREA_BYTES, libc::PROT_NONE)? })
    }

    fn drop_rights(&self) -> String {
        // SAFETY: numbers only; an empty list is not read.
        let results =
            unsafe { [libc::setgroups(0, ptr::null()), libc::setresgid(USER, USER, USER), libc::setresuid(USER, USER, USER)] };
        format!("drop rights {results:?}")
    }

    /// The address that stands for a place in an argument's area, `offset` bytes behind the area's start if it is good memory.
    fn address(&self, area: usize, place: Place, offset: usize) -> *mut u8 {
        match place {
            Place::Good => self.areas[area].wrapping_add(offset),
            Place::Null => ptr::null_mut(),
            Place::Unmapped => self.unmapped,
            Place::ReadOnly => self.read_only,
            Place::Before(bytes) => self.areas[area].wrapping_add(AREA_BYTES - bytes),
        }
    }

    /// Puts bytes where a pointer leads to, as far as there is memory.
    fn put(&self, area: usize, place: Place, bytes: &[u8]) -> i64 {
        let count = match place {
            Place::Good => bytes.len(),
            Place::Before(room) => bytes.len().min(room),
            _ => 0,
        };
        let to = self.address(area, place, 0);
        // SAFETY: `count` bytes are in the area.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, count) };
        to as i64
    }

    fn fill(&self, area: usize, number: usize) {
        // SAFETY: the area is this process' own and that long.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.areas[area], AREA_BYTES) };
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&((index * 31 + number * 7) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        }
    }

    fn path(&self, text: &str) -> Vec<u8> {
        let (directory, rest) = match text.as_bytes().first() {
            Some(b'@') => (self.orders.inside.as_os_str().as_bytes(), &text[1..]),
            Some(b'%') => (self.orders.outside.as_os_str().as_bytes(), &text[1..]),
            _ => (&b""[..], text),
        };
        [directory, rest.as_bytes(), b"\0"].concat()
    }

    fn value(&self, area: usize, number: usize, kind: Kind, argument: &Argument) -> i64 {
        match argument {
            Argument::Number(value) => *value,
            Argument::Memory(place) => {
                self.fill(area, number);
                self.address(area, *place, 0) as i64
            }
            Argument::Bytes(bytes, place) => self.put(area, *place, bytes),
            Argument::Path(text, place) => self.put(area, *place, &self.path(text)),
            Argument::Pieces(pieces, place) => {
                self.fill(area, number);
                let address = |index: usize, piece: Place| self.address(area, piece, PIECE_START + index * PIECE_STEP) as u64;
                let words = pieces.iter().enumerate().flat_map(|(index, &(piece, bytes))| [address(index, piece), bytes as u64]);
                let _ = kind;
                self.put(area, *place, &words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())
            }
        }
    }

    fn call(&mut self, number: usize, call: &Call, arguments: &[Argument]) -> String {
        let mut values = [0_i64; AREA_COUNT];
        for (index, (argument, &kind)) in arguments.iter().zip(call.kinds).enumerate() {
            values[index] = self.value(index, number, kind, argument);
        }
        let before = self.seen(call, arguments);
        let size = size_of(values[0]);
        let timer = |microseconds: i64| libc::itimerval {
            it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
            it_value: libc::timeval { tv_sec: 0, tv_usec: microseconds },
        };
        let (start, stop) = (timer(WAIT_US), timer(0));
        // SAFETY: whatever the arguments are, the calls of the table store only where pointers lead that were made here, and never end or unmap anything of this process.
        let (result, error) = unsafe {
            libc::setitimer(libc::ITIMER_REAL, &raw const start, ptr::null_mut());
            let result = libc::syscall(call.number, values[0], values[1], values[2], values[3], values[4], values[5]);
            let error = *libc::__errno_location();
            libc::setitimer(libc::ITIMER_REAL, &raw const stop, ptr::null_mut());
            (result, error)
        };
        let writes = call.kinds.iter().any(|kind| matches!(kind, Kind::In | Kind::PiecesIn));
        if result < 0 && error == libc::EFAULT && writes && size_of(values[0]) > size {
            // tmpfs makes a file longer by a write of which no byte could be read.
            // SAFETY: the descriptor is the program's.
            unsafe { libc::ftruncate(values[0] as i32, size) };
        }
        let mut line = format!("{} = {}", call.name, if result < 0 { format!("E{error}") } else { result.to_string() });
        let shown = match call.shown {
            Shown::Bytes => {
                let after = self.seen(call, arguments);
                if after == before { String::new() } else { format!("{after:x?}") }
            }
            _ if result < 0 => String::new(),
            Shown::Nothing => String::new(),
            Shown::Stat => self.of_good(call, arguments, |at| self.stat(at)),
            Shown::Statx => self.of_good(call, arguments, |at| self.statx(at)),
            Shown::Entries => self.of_good(call, arguments, |at| self.entries(at, result as usize)),
        };
        if !shown.is_empty() {
            let _ = write!(line, " {shown}");
        }
        if result < 0 && error == libc::EFAULT || call.shown == Shown::Entries && result > 0 {
            // How many bytes are stored before the fault is met, and how long entries are, is nobody's promise.
            line.truncate(line.find(" [").unwrap_or(line.len()));
        }
        line
    }

    /// What is in the memory in which a call may store, as far as it is compared.
    fn seen(&self, call: &Call, arguments: &[Argument]) -> Vec<u64> {
        let stored = |kind: Kind| matches!(kind, Kind::Out | Kind::PiecesOut | Kind::OffsetPlace | Kind::Lock | Kind::Pipe);
        let is_good = |argument: &Argument| {
            matches!(argument, Argument::Memory(Place::Good) | Argument::Bytes(_, Place::Good) | Argument::Pieces(_, Place::Good))
        };
        let bytes_of = |kind: Kind| match kind {
            Kind::Out => COMPARED_BYTES,
            Kind::PiecesOut => AREA_BYTES,
            Kind::OffsetPlace | Kind::Pipe => 8,
            // What is behind it is not stored.
            _ => 24,
        };
        call.kinds
            .iter()
            .zip(arguments)
            .enumerate()
            .filter(|&(_, (&kind, argument))| stored(kind) && is_good(argument))
            .map(|(area, (&kind, argument))| {
                // The addresses of pieces are this process' own affair.
                let start = if matches!(argument, Argument::Pieces(..)) { PIECE_START } else { 0 };
                // SAFETY: the area is this process' own and that long.
                tree::hash(unsafe { std::slice::from_raw_parts(self.areas[area].add(start), bytes_of(kind) - start) })
            })
            .collect()
    }

    fn of_good(&self, call: &Call, arguments: &[Argument], show: impl Fn(usize) -> String) -> String {
        let area = call.kinds.iter().position(|kind| matches!(kind, Kind::Out));
        area.filter(|&area| arguments[area] == Argument::Memory(Place::Good)).map_or_else(String::new, show)
    }

    fn stat(&self, area: usize) -> String {
        // SAFETY: any bytes are a valid structure, and the area is long enough.
        let stat = unsafe { ptr::read_unaligned(self.areas[area].cast::<libc::stat>()) };
        let kind = stat.st_mode & libc::S_IFMT;
        let size = if kind == libc::S_IFDIR { 0 } else { stat.st_size };
        format!(
            "mode {:o} links {} owner {}:{} size {size} device {} modified {}",
            stat.st_mode,
            stat.st_nlink,
            stat.st_uid,
            stat.st_gid,
            stat.st_rdev,
            set_by_hand(stat.st_mtime, stat.st_mtime_nsec)
        )
    }

    fn statx(&self, area: usize) -> String {
        // SAFETY: as in `stat`.
        let stat = unsafe { ptr::read_unaligned(self.areas[area].cast::<libc::statx>()) };
        let is_directory = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
        format!(
            "mask {:x} mode {:o} links {} owner {}:{} size {} modified {}",
            stat.stx_mask,
            stat.stx_mode,
            stat.stx_nlink,
            stat.stx_uid,
            stat.stx_gid,
            if is_directory { 0 } else { stat.stx_size },
            if stat.stx_mask & libc::STATX_MTIME == 0 {
                "unknown".to_owned()
            } else {
                set_by_hand(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec.into())
            }
        )
    }

    fn entries(&self, area: usize, bytes: usize) -> String {
        // SAFETY: the kernel has stored that many bytes there, and the area is longer than any length that is good.
        let mut rest = unsafe { std::slice::from_raw_parts(self.areas[area], bytes.min(AREA_BYTES)) };
        let mut names = Vec::new();
        while let Some((&[low, high], _)) = rest.get(16..18).and_then(|bytes| bytes.split_first_chunk::<2>()) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some(entry) = rest.get(..length).filter(|entry| entry.len() > 19) else { break };
            let name = entry[19..].split(|&byte| byte == 0).next().unwrap_or_default();
            names.push(format!("{}:{}", name.escape_ascii(), entry[18]));
            rest = &rest[length..];
        }
        names.sort();
        names.join(" ")
    }
}

/// A time, if a program has set it: others are the clock's.
fn set_by_hand(seconds: i64, nanoseconds: i64) -> String {
    if (1_500_000_000..=1 << 34).contains(&seconds) { "now".to_owned() } else { format!("{seconds}.{nanoseconds}") }
}

/// The size of what a descriptor is open on; 0 if it is not.
fn size_of(fd: i64) -> i64 {
    // SAFETY: any bytes are a valid structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid.
    if unsafe { libc::fstat(fd as i32, &raw mut stat) } == 0 { stat.st_size } else { 0 }
}
