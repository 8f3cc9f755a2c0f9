//! One call of a program: its arguments are put in place, it is made, and what it answered and
//! stored becomes a line of text.

use crate::{
    act::Orders,
    allowed::{CACHED, IN_DIRECTORY, LAST_BYTE, OWN, SPARSE},
    calls::{Call, Kind, LOAD, Reach, STORE, Shown},
    draw::{Argument, Control, MAPS, Place},
    probe,
    program::Rights,
    tree,
};
use std::{fmt::Write as _, io, os::unix::ffi::OsStrExt as _, ptr};

/// How long a call may wait for others, in microseconds.
const WAIT_US: i64 = 10_000;
/// The memory of one argument, behind which there is none.
const AREA_BYTES: usize = 128 << 10;
/// What is compared of memory in which a call may have stored.
const COMPARED_BYTES: usize = 80 << 10;
/// Where the pieces of memory begin that an argument of pieces names, and how far they are apart.
const PIECE_START: usize = 4096;
const PIECE_STEP: usize = 40 << 10;
/// Where in an area the pieces of a message are listed.
const PIECES_AT: usize = 256;
/// Where in an area the control data of a message is.
const CONTROL_AT: usize = 512;
const AREA_COUNT: usize = 6;
const USER: u32 = 1001;
/// How many pages of the address space belong to a program's mappings, as far as they are told.
const MAP_BYTES: i64 = 1 << 47;
const PAGE_BYTES: usize = 4096;
/// The kernel gives sockets without a name any time.
const SOCKET_TIME: &str = "some time";
const RWF_DONTCACHE: i32 = 0x80;
const CLOSE_RANGE_UNSHARE: i64 = 2;
/// How many bytes a file is sent to itself at most.
const SENT_TO_ITSELF_MAX: u64 = 100_000;
/// Pages of one load.
const LOAD_PAGES_MAX: usize = 20;

/// A program as it runs.
pub(crate) struct Actor<'a> {
    orders: &'a Orders,
    seed: u64,
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
    pub(crate) fn new(orders: &'a Orders, seed: u64) -> io::Result<Self> {
        let mut areas = [ptr::null_mut(); AREA_COUNT];
        for area in &mut areas {
            *area = map(2 * AREA_BYTES, libc::PROT_NONE)?;
            // SAFETY: the first half of what was just mapped.
            unsafe { libc::mprotect(area.cast(), AREA_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
        }
        let read_only = map(2 * AREA_BYTES, libc::PROT_NONE)?;
        // SAFETY: the first half of what was just mapped; behind it there is nothing that a call
        // could go on in.
        unsafe { libc::mprotect(read_only.cast(), AREA_BYTES, libc::PROT_READ) };
        Ok(Self { orders, seed, areas, read_only, unmapped: map(AREA_BYTES, libc::PROT_NONE)? })
    }

    pub(crate) const fn orders(&self) -> &'a Orders {
        self.orders
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn change_rights(&self, rights: Rights) -> String {
        let keep = u32::MAX;
        // SAFETY: numbers only; an empty list is not read, and the two structures are what
        // capset(2) takes.
        let results = unsafe {
            match rights {
                Rights::Drop => {
                    [libc::setgroups(0, ptr::null()), libc::setresgid(USER, USER, USER), libc::setresuid(USER, USER, USER)]
                }
                Rights::DropEffective => [0, libc::setresgid(keep, USER, keep), libc::setresuid(keep, USER, keep)],
                Rights::TakeBack => [0, libc::setresuid(keep, 0, keep), libc::setresgid(keep, 0, keep)],
                Rights::DropForFiles => [0, libc::setfsgid(USER), libc::setfsuid(USER)],
                Rights::DropCapability => {
                    const VERSION: u32 = 0x2008_0522;
                    // All but CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_CHOWN.
                    let low = !0b1111_u32;
                    let (header, data) = ([VERSION, 0], [low, low, 0, !0, !0, 0]);
                    [0, 0, libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) as i32]
                }
            }
        };
        format!("{rights:?} {results:?}")
    }

    /// The address that stands for a place in an argument's area, `offset` bytes behind the area's
    /// start if it is good memory.
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

    fn list(&self, area: usize, pieces: &[(Place, usize)]) -> Vec<u8> {
        let address = |index: usize, piece: Place| self.address(area, piece, PIECE_START + index * PIECE_STEP) as u64;
        let words = pieces.iter().enumerate().flat_map(|(index, &(piece, bytes))| [address(index, piece), bytes as u64]);
        words.flat_map(u64::to_ne_bytes).collect()
    }

    fn value(&self, area: usize, number: usize, argument: &Argument) -> i64 {
        match argument {
            Argument::Number(value) => *value,
            Argument::Wide(lower, upper) => (u64::from(*upper) << 32 | u64::from(*lower)) as i64,
            Argument::Memory(place) => {
                self.fill(area, number);
                self.address(area, *place, 0) as i64
            }
            Argument::Bytes(bytes, place) => self.put(area, *place, bytes),
            Argument::Path(text, place) => self.put(area, *place, &self.path(text)),
            Argument::Address(family, text, place) => {
                let family: u16 = match *family {
                    "u" => 1,
                    "i" => 2,
                    _ => 0,
                };
                self.put(area, *place, &[&family.to_ne_bytes()[..], &self.path(text)].concat())
            }
            Argument::Pieces(pieces, place) => {
                self.fill(area, number);
                self.put(area, *place, &self.list(area, pieces))
            }
            Argument::Message(pieces, place, control) => {
                self.fill(area, number);
                let list = self.list(area, pieces);
                // SAFETY: the list is shorter than what lies between its place and the first piece.
                let at = unsafe {
                    let at = self.areas[area].add(PIECES_AT);
                    ptr::copy_nonoverlapping(list.as_ptr(), at, list.len());
                    at as u64
                };
                let words = [0, 0, at, pieces.len() as u64, self.control(area, control), control.length, 0];
                self.put(area, *place, &words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())
            }
        }
    }

    /// Puts control data in place. Its address.
    fn control(&self, area: usize, control: &Control) -> u64 {
        if control.place != Place::Good {
            return self.address(area, control.place, 0) as u64;
        }
        // SAFETY: the data is shorter than what lies between its place and the first piece.
        unsafe {
            let at = self.areas[area].add(CONTROL_AT);
            ptr::copy_nonoverlapping(control.bytes.as_ptr(), at, control.bytes.len());
            at as u64
        }
    }

    /// Makes a call. The line that tells of it.
    pub(crate) fn call(&mut self, number: usize, call: &Call, arguments: &[Argument]) -> String {
        let mut values = [0_i64; AREA_COUNT];
        for (index, argument) in arguments.iter().enumerate() {
            values[index] = self.value(index, number, argument);
        }
        match call.number {
            LOAD => return format!("load = {}", load(values[0], values[1])),
            STORE => {
                let answer = probe::store(values[0].wrapping_add(values[1] & 0xfff), number as u8 | 0x80);
                return format!("store = {}", answer.err().unwrap_or_else(|| "0".to_owned()));
            }
            _ => {}
        }
        let before = self.seen(call, arguments);
        let writes = call.kinds.iter().any(|kind| matches!(kind, Kind::In | Kind::PiecesIn));
        let size = if writes { size_of(values[0]) } else { 0 };
        let name = name_of(call, &values, arguments);
        let (result, error) = timed(call, &values);
        if writes && result < 0 && error == libc::EFAULT {
            // tmpfs makes a file longer by a write of which no byte could be read, and gives it the
            // time. SAFETY: the descriptor is the program's.
            unsafe {
                if size_of(values[0]) > size {
                    libc::ftruncate(values[0] as i32, size);
                }
                if is_of_kind(values[0], libc::S_IFREG) {
                    libc::futimens(values[0] as i32, ptr::null());
                }
            }
        }
        if call.shown == Shown::Success && result >= 0 {
            // The position is the same again on both sides.
            // SAFETY: the descriptor is the program's.
            unsafe { libc::lseek(values[0] as i32, 0, libc::SEEK_SET) };
        }
        // MADV_POPULATE_READ and MADV_POPULATE_WRITE say so of what a load or store would tell by a
        // signal.
        let is_private = call.number == libc::SYS_madvise && error == libc::EFAULT && probe::is_private(values[0]);
        let private = if is_private { "-private" } else { "" };
        let mut line = format!("{name} = {}", if result < 0 { format!("E{error}{private}") } else { told(call, result) });
        let shown = match call.shown {
            Shown::Bytes => {
                let after = self.seen(call, arguments);
                if after == before { String::new() } else { format!("{after:x?}") }
            }
            _ if result < 0 => String::new(),
            Shown::Nothing | Shown::Place | Shown::Success => String::new(),
            Shown::Stat => self.of_good(call, arguments, |at| self.stat(at)),
            Shown::Statx => self.of_good(call, arguments, |at| self.statx(at)),
            Shown::Entries => self.of_good(call, arguments, |at| self.entries(at, result as usize)),
        };
        if !shown.is_empty() {
            let _ = write!(line, " {shown}");
        }
        if call.number == libc::SYS_lseek && is_of_kind(values[0], libc::S_IFDIR) {
            line += IN_DIRECTORY;
        }
        if call.number == libc::SYS_openat2 && asks_caches(arguments) {
            line += CACHED;
        }
        if result < 0 && error == libc::EFAULT || call.shown == Shown::Entries && result > 0 {
            // How many bytes are stored before the fault is met, and how long entries are, is
            // nobody's promise.
            line.truncate(line.find(" [").unwrap_or(line.len()));
        }
        line
    }

    /// What is in the memory in which a call may store, as far as it is compared.
    fn seen(&self, call: &Call, arguments: &[Argument]) -> Vec<u64> {
        let stored = |kind: Kind| {
            matches!(
                kind,
                Kind::Out | Kind::PiecesOut | Kind::OffsetPlace | Kind::Lock | Kind::Pipe | Kind::SizePlace | Kind::Message
            )
        };
        let is_good = |argument: &Argument| {
            matches!(
                argument,
                Argument::Memory(Place::Good)
                    | Argument::Bytes(_, Place::Good)
                    | Argument::Pieces(_, Place::Good)
                    | Argument::Message(_, Place::Good, _)
            )
        };
        let bytes_of = |kind: Kind| match kind {
            Kind::Out => COMPARED_BYTES,
            Kind::PiecesOut | Kind::Message => AREA_BYTES,
            Kind::SizePlace => 4,
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
                let start = if matches!(argument, Argument::Pieces(..) | Argument::Message(..)) { PIECE_START } else { 0 };
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
            if kind == libc::S_IFSOCK { SOCKET_TIME.to_owned() } else { set_by_hand(stat.st_mtime, stat.st_mtime_nsec) }
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
            } else if u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFSOCK {
                SOCKET_TIME.to_owned()
            } else {
                set_by_hand(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec.into())
            }
        )
    }

    fn entries(&self, area: usize, bytes: usize) -> String {
        // SAFETY: the kernel has stored that many bytes there, and the area is longer than any
        // length that is good.
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

/// The call's name, and what it asks for where that decides what may differ (allowed.rs).
fn name_of(call: &Call, values: &[i64; AREA_COUNT], arguments: &[Argument]) -> String {
    const FLAGS: [u32; 4] = [0x8008_6601, 0x4008_6602, 0x801c_581f, 0x401c_5820];
    match call.number {
        // FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR.
        libc::SYS_ioctl if FLAGS.contains(&(values[1] as u32)) => format!("{}-flags", call.name),
        libc::SYS_renameat2 if values[4] as u32 & libc::RENAME_WHITEOUT != 0 => format!("{}-whiteout", call.name),
        libc::SYS_sendfile if is_same_file(values[0], values[1]) && has_holes(values[1]) => format!("{}{SPARSE}", call.name),
        libc::SYS_fcntl if asks_for_last_byte(call, arguments) => format!("{}{LAST_BYTE}", call.name),
        _ => call.name.to_owned(),
    }
}

/// Tells whether a call asks for a lock that begins at the last byte that a lock can have.
fn asks_for_last_byte(call: &Call, arguments: &[Argument]) -> bool {
    let Some(Argument::Bytes(record, _)) = arguments.get(2) else { return false };
    call.name == "fcntl-lock" && record.get(8..16) == Some(&i64::MAX.to_ne_bytes())
}

/// Makes the call. What waits for too long is interrupted, again and again, by a signal whose
/// handler does nothing. The result and the error.
fn timed(call: &Call, values: &[i64; AREA_COUNT]) -> (i64, i32) {
    let timer = |microseconds: i64| {
        let time = libc::timeval { tv_sec: 0, tv_usec: microseconds };
        libc::itimerval { it_interval: time, it_value: time }
    };
    let (start, stop) = (timer(WAIT_US), timer(0));
    let mut values = *values;
    if call.number == libc::SYS_mmap && values[0] < MAPS {
        // Page zero and other programs' places are not mapped over.
        values[3] &= !i64::from(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    }
    match call.number {
        // docs/differ.md says what is not compared of a thread that leaves the others' descriptors.
        libc::SYS_close_range if call.reach != Reach::Alone => values[2] &= !CLOSE_RANGE_UNSHARE,
        // What an array does and tmpfs does not: ranges of zeros, and reads and writes that do not
        // wait, or are not kept in a cache.
        libc::SYS_fallocate => values[1] &= !i64::from(libc::FALLOC_FL_ZERO_RANGE),
        // A file that is sent to its own end grows until it is stopped.
        libc::SYS_sendfile if is_same_file(values[0], values[1]) => values[3] = (values[3] as u64).min(SENT_TO_ITSELF_MAX) as i64,
        // A child without any memory cannot be made: only of its own part does a program advise
        // that.
        libc::SYS_madvise if values[2] as i32 == libc::MADV_DONTFORK && values[1] > MAP_BYTES / 64 => {
            values[2] = i64::from(libc::MADV_DOFORK);
        }
        // What lies elsewhere is not the same on both sides: the library's memory is of another
        // kind than the program's.
        libc::SYS_madvise if values[2] as i32 == libc::MADV_REMOVE => values[1] = values[1].min(MAP_BYTES / 64),
        libc::SYS_preadv2 | libc::SYS_pwritev2 => values[5] &= !i64::from(libc::RWF_NOWAIT | RWF_DONTCACHE),
        _ => {}
    }
    // A regular file does not wait, and is to be sent to itself without an end before its time.
    let may_wait = call.number != libc::SYS_sendfile || !is_same_file(values[0], values[1]);
    let start = if may_wait { start } else { stop };
    // SAFETY: whatever the arguments are, the calls of the table store only where pointers lead
    // that were made here, map and unmap only in the program's own part of the address space, and
    // never end this process.
    unsafe {
        libc::setitimer(libc::ITIMER_REAL, &raw const start, ptr::null_mut());
        let result = libc::syscall(call.number, values[0], values[1], values[2], values[3], values[4], values[5]);
        let error = *libc::__errno_location();
        libc::setitimer(libc::ITIMER_REAL, &raw const stop, ptr::null_mut());
        (result, error)
    }
}

/// What a call has returned: an address is told if the program has chosen it.
fn told(call: &Call, result: i64) -> String {
    match call.shown {
        Shown::Place if (MAPS..MAPS + MAP_BYTES / 64).contains(&result) => {
            format!("at page {}", (result - MAPS) / PAGE_BYTES as i64)
        }
        Shown::Place => "elsewhere".to_owned(),
        Shown::Success => "done".to_owned(),
        _ => result.to_string(),
    }
}

/// Bytes of pages, or the signal of the first that has none. The bytes of private mappings come
/// last, apart from the others.
fn load(address: i64, bytes: i64) -> String {
    let pages = (bytes.max(1) as usize).div_ceil(PAGE_BYTES).min(LOAD_PAGES_MAX);
    let (mut found, mut own) = (Vec::new(), Vec::new());
    let privates = probe::privates();
    let told = |words: String, found: &[u8], own: &[u8]| {
        let own = if own.is_empty() { String::new() } else { format!("{OWN}{:x}", tree::hash(own)) };
        format!("{words} pages {:x}{own}", tree::hash(found))
    };
    for page in 0..pages {
        let start = address.wrapping_add((page * PAGE_BYTES) as i64);
        let is_private = privates.iter().any(|range| range.contains(&start));
        for at in [0, 100, PAGE_BYTES as i64 - 1] {
            match probe::load(start.wrapping_add(at)) {
                Ok(byte) if is_private => own.push(byte),
                Ok(byte) => found.push(byte),
                Err(trouble) => return told(format!("{trouble} behind {page}"), &found, &own),
            }
        }
    }
    told(pages.to_string(), &found, &own)
}

/// A time, if a program has set it: others are the clock's.
fn set_by_hand(seconds: i64, nanoseconds: i64) -> String {
    if (1_500_000_000..=1 << 34).contains(&seconds) { "now".to_owned() } else { format!("{seconds}.{nanoseconds}") }
}

/// Whether two descriptors are open on one file.
fn is_same_file(one: i64, other: i64) -> bool {
    let identity = |fd: i64| stat_of(fd).map(|stat| (stat.st_dev, stat.st_ino));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Tells whether the file behind a descriptor has less space than bytes.
fn has_holes(fd: i64) -> bool {
    const BLOCK_BYTES: i64 = 512;
    stat_of(fd).is_some_and(|stat| stat.st_blocks * BLOCK_BYTES < stat.st_size)
}

fn stat_of(fd: i64) -> Option<libc::stat> {
    // SAFETY: any bytes are a valid structure, which is valid for the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd as i32, &raw mut stat) == 0).then_some(stat)
    }
}

/// Tells whether a descriptor is open on a file of this kind (S_IFMT).
fn is_of_kind(fd: i64, kind: u32) -> bool {
    // SAFETY: any bytes are a valid structure, which is valid for the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd as i32, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == kind
    }
}

/// Tells whether a call of openat2(2) may open only what the kernel finds in its caches. The kernel
/// refuses such a call anyway if it is to make or cut a file, and then the result is false.
fn asks_caches(arguments: &[Argument]) -> bool {
    const RESOLVE_CACHED: u64 = 0x20;
    const REFUSED: i32 = libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY;
    let Some(Argument::Bytes(how, _)) = arguments.get(2) else { return false };
    let (words, _) = how.as_chunks::<8>();
    match words {
        [flags, _, resolve, ..] => {
            u64::from_ne_bytes(*resolve) & RESOLVE_CACHED != 0 && u64::from_ne_bytes(*flags) & REFUSED as u64 == 0
        }
        _ => false,
    }
}

/// The size of what a descriptor is open on; 0 if it is not.
fn size_of(fd: i64) -> i64 {
    // SAFETY: any bytes are a valid structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid.
    if unsafe { libc::fstat(fd as i32, &raw mut stat) } == 0 { stat.st_size } else { 0 }
}
