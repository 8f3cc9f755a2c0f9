//! The runtime segment, any word of which another process may have changed: calls on files fail or
//! do what they do to the array, but no process panics, is killed by a signal, runs without end or
//! changes anything outside of the array.
//!
//! The input is a list of steps: a word is stored into the segment, or a call is made. Who stored a
//! word cannot be undone in the process that read it, so each input runs in a child of its own,
//! which hands its coverage back; the parent then makes the segment and the members what they were.
//! A child may wait without end: whoever may write the segment may also hold a lock in it.

use array::{Array, Config, JournalPlace};
use file::{FileRef, Files, Mapped};
use format::Attribute;
use layout::Level;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sys::rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, open};
use sys::{OsError, OwnedFd};
use units::ChunkBytes;

const PAGE_BYTES: usize = 4096;
const FILE_BYTES: usize = 40_000;
const NAMES: [&str; 3] = ["f0", "f1", "f2"];
/// How long a child may take, waiting or not. A child that has computed for most of the first time is
/// run again and given the second: an input of many steps, each of which ends, needs more time, and
/// one that computes without end uses up that, too.
const LIMITS_US: [i64; 2] = [500_000, 5_000_000];
/// How long files may become: who may write the segment may say that a file is long, and filling it
/// takes the kernel its time.
const FILE_LIMIT_BYTES: u64 = 64 << 20;
/// Steps of one input.
const STEP_COUNT_MAX: usize = 64;
/// A step waits for what others are to do if the byte that says who makes it is greater than this.
/// Nobody does it here, so it takes as long as such a wait may.
const WAITING: u8 = 235;
/// The exit status of a child that came to its end, and no other's.
const ENDED: i32 = 42;

/// Level, members, chunk in bytes, whether there is a journal.
const SHAPES: [(Level, usize, u64, bool); 3] =
    [(Level::Raid1, 2, 4096, false), (Level::Raid5, 3, 64, false), (Level::Raid5, 3, 4096, true)];

/// An array that this process is attached to twice, as two processes would be, with its files open.
struct World {
    members: Vec<PathBuf>,
    config: Config,
    attached: [&'static Files; 2],
    /// Each file as either has it open.
    open: [Vec<FileRef>; 2],
    attributes: Vec<Attribute>,
    segment: Image,
    segment_start: *mut u8,
    /// Offsets of the segment's words that are not 0.
    used: Vec<usize>,
    /// Everything under `.cxlraid`, by path.
    tables: BTreeMap<PathBuf, Vec<u8>>,
    outside: PathBuf,
}

// SAFETY: libFuzzer calls the target from one thread.
unsafe impl Send for World {}
// SAFETY: the same.
unsafe impl Sync for World {}

/// The segment's file, and those of its pages that are not zeros.
struct Image {
    path: PathBuf,
    file: File,
    bytes: usize,
    pages: Vec<(usize, Vec<u8>)>,
}

impl Image {
    fn new(path: PathBuf) -> Self {
        let file = File::options().read(true).write(true).open(&path).expect("the segment");
        let bytes = file.metadata().expect("its length").len() as usize;
        let mut pages = Vec::new();
        for at in (0..bytes).step_by(PAGE_BYTES) {
            let mut page = vec![0; PAGE_BYTES];
            file.read_exact_at(&mut page, at as u64).expect("a page of the segment");
            if page.iter().any(|&byte| byte != 0) {
                pages.push((at, page));
            }
        }
        Self { path, file, bytes, pages }
    }

    fn restore(&self) {
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an open file of ours.
        let result = unsafe { libc::fallocate(self.file.as_raw_fd(), flags, 0, self.bytes as i64) };
        assert_eq!(result, 0, "the segment without pages");
        for (at, page) in &self.pages {
            self.file.write_all_at(page, *at as u64).expect("a page of the segment");
        }
    }
}

fn worlds() -> &'static [World] {
    static WORLDS: OnceLock<Vec<World>> = OnceLock::new();
    WORLDS.get_or_init(|| {
        persist::fault::install_handlers().expect("handlers of faults");
        let home = std::env::var_os("CXLRAID_FUZZ_DIRECTORY").expect("CXLRAID_FUZZ_DIRECTORY names a directory for the arrays");
        let home = Path::new(&home).join(format!("segment-{}", std::process::id()));
        (0..SHAPES.len()).map(|index| World::new(&home.join(index.to_string()), SHAPES[index])).collect()
    })
}

impl World {
    fn new(home: &Path, (level, member_count, chunk, has_journal): (Level, usize, u64, bool)) -> Self {
        let members: Vec<PathBuf> = (0..member_count).map(|slot| home.join(format!("m{slot}"))).collect();
        members.iter().for_each(|member| fs::create_dir_all(member).expect("a member"));
        let outside = home.join("outside");
        fs::write(&outside, "outside").expect("a file outside of the array");
        let mounts: Vec<Vec<u8>> = members.iter().map(|member| member.as_os_str().as_bytes().to_vec()).collect();
        let config = Config::new(level, ChunkBytes::new(chunk), &mounts, &[b"/data".to_vec()], String::new());
        let mut config = config.expect("the array is described rightly");
        if has_journal {
            let place = JournalPlace::File(home.join("journal").into_os_string().into_encoded_bytes());
            config = config.with_journal(&place).expect("a journal");
            config.journal_lanes = 2;
        }
        let attach = || Files::new(Array::attach(&config).expect("an array")).expect("its files");
        let attached = [attach(), attach()];
        let mut world = Self {
            segment: Image { path: PathBuf::new(), file: File::open(&outside).expect("a file"), bytes: 0, pages: Vec::new() },
            segment_start: std::ptr::null_mut(),
            members,
            config: config.clone(),
            attached,
            open: [Vec::new(), Vec::new()],
            attributes: Vec::new(),
            used: Vec::new(),
            tables: BTreeMap::new(),
            outside,
        };
        world.attributes = NAMES.iter().map(|name| world.make(name)).collect();
        world.open = attached.map(|files| (0..NAMES.len()).map(|index| world.file(files, index).expect("a file")).collect());
        for file in &world.open[0] {
            let data = vec![7_u8; FILE_BYTES];
            // SAFETY: the buffer is that long.
            unsafe { file.write_at(0, data.as_ptr(), data.len()) }.expect("a write");
        }
        // In one array of the three a file is mapped. Changes of its length wait for a process that
        // does not answer.
        let mapped = has_journal.then(|| Mapped::new(&world.open[0][1]).expect("a mapping"));
        mapped.iter().for_each(|mapped| mapped.cover(0, 16384).expect("pages of it"));
        world.segment = Image::new(PathBuf::from(array::runtime::segment_path(attached[0].array().uuid())));
        world.segment_start = shared_memory(world.segment.bytes, Some(&world.segment.file));
        for (at, page) in &world.segment.pages {
            world.used.extend((0..PAGE_BYTES).step_by(8).filter(|&word| page[word..word + 8] != [0; 8]).map(|word| at + word));
        }
        world.tables = world.present_tables().map(|path| (path.clone(), fs::read(path).expect("a table"))).collect();
        // The mapping stays, as a program's would.
        std::mem::forget(mapped);
        world
    }

    fn present_tables(&self) -> impl Iterator<Item = PathBuf> {
        let directories = self.members.iter().map(|member| member.join(OsStr::from_bytes(format::DIRECTORY.to_bytes())));
        directories.flat_map(|directory| fs::read_dir(directory).expect(".cxlraid")).map(|entry| entry.expect("a table").path())
    }

    fn make(&self, name: &str) -> Attribute {
        let attribute = self.attached[0].create_inode(b"/data/file").expect("an inode");
        for member in &self.members {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
            let fd = open(member.join("data").join(name).as_os_str().as_bytes(), flags, Mode::from_raw_mode(0o600))
                .expect("a backing file");
            fsetxattr(&fd, format::ATTRIBUTE_NAME, &attribute.encode(), XattrFlags::empty()).expect("its attribute");
        }
        attribute
    }

    fn file(&self, files: &'static Files, index: usize) -> Result<FileRef, OsError> {
        let open_member = |slot: usize| -> Result<Option<OwnedFd>, OsError> {
            if !files.array().in_use().contains(slot) {
                return Ok(None);
            }
            open(self.members[slot].join("data").join(NAMES[index]).as_os_str().as_bytes(), OFlags::RDWR, Mode::empty()).map(Some)
        };
        let backing = || (0..self.members.len()).map(open_member).collect::<Result<Vec<_>, _>>();
        files.open(self.attributes[index], true, || Ok((backing()?, dax::Access::ReadWrite)))
    }

    /// Stores a word near one that is not 0, or anywhere.
    fn store(&self, [kind, low, high, near, value @ ..]: [u8; 8]) {
        let index = usize::from(u16::from_le_bytes([low, high]));
        let at = match kind & 1 {
            0 => self.used[index % self.used.len()] + usize::from(near) % 24 * 4,
            _ => (index << 8 | usize::from(near)) * 4,
        };
        let at = at.min(self.segment.bytes - 8) / 4 * 4;
        let small = u64::from(u32::from_le_bytes(value));
        let word = match kind >> 1 & 7 {
            0 => small,
            1 => !small,
            2 => 1 << (small % 64),
            3 => small << 32,
            4 => small << 12,
            5 => small | 1 << 63,
            6 => u64::MAX - small % 4096,
            _ => small % 4096,
        };
        // SAFETY: aligned, within the mapping, which is used by atomics.
        unsafe {
            if kind & 16 == 0 && at.is_multiple_of(8) {
                AtomicU64::from_ptr(self.segment_start.add(at).cast()).store(word, Ordering::Relaxed);
            } else {
                AtomicU32::from_ptr(self.segment_start.add(at).cast()).store(word as u32, Ordering::Relaxed);
            }
        }
    }

    fn call(&self, [what, who, low, high, from, bytes, ..]: [u8; 8]) {
        let mut buffer = [3_u8; 4 * PAGE_BYTES];
        let (files, index) = (self.attached[usize::from(who & 1)], usize::from(who >> 1) % NAMES.len());
        let file = &self.open[usize::from(who & 1)][index];
        let offset = u64::from(u32::from_le_bytes([from, low, high, 0]) % (4 * FILE_BYTES as u32));
        let bytes = usize::from(bytes) * 61;
        let page = offset / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        // Whatever a call answers is right.
        // SAFETY: the buffer is longer than `bytes` can be.
        unsafe {
            match what % 16 {
                0 => drop(file.read_at(offset, buffer.as_mut_ptr(), bytes)),
                1 | 2 => drop(file.write_at(offset, buffer.as_ptr(), bytes)),
                3 => drop(file.append(buffer.as_ptr(), bytes)),
                4 => drop(file.truncate(offset)),
                5 => drop(file.punch(offset, bytes as u64 + 1, who & 64 != 0)),
                6 => drop(file.allocate(offset, bytes as u64 + 1, who & 64 != 0)),
                7 => drop(file.sync()),
                8 => {
                    if let Ok(mapped) = Mapped::new(file) {
                        let _ = mapped.cover(page, page + 8192);
                        if who > WAITING {
                            if who & 1 != 0 {
                                let _ = file.share_copy();
                            }
                            let _ = mapped.follow([(page, page + 4096)]);
                            file.call_others();
                        }
                    }
                }
                9 => drop((file.seek_extent(offset, who & 64 != 0), file.blocks(), file.settled_size())),
                10 => drop(self.file(files, index)),
                11 => {
                    if let Ok(attribute) = files.create_inode(b"/data/file") {
                        files.discard_inode(attribute);
                    }
                }
                12 => {
                    let runtime = files.array().runtime();
                    let _ = (runtime.attached().count(), runtime.reap(), files.unfinished_changes());
                    let _ = array::runtime::count_mappings(files.array().uuid());
                    if who > WAITING {
                        runtime.await_others();
                    }
                }
                13 => drop(files.told(self.attributes[index])),
                14 => file.with_shared_position(|| ()),
                // A process that starts.
                _ => drop(Array::attach(&self.config).map(Files::new)),
            }
        }
    }

    /// What the child does.
    fn run(&self, steps: &[u8]) {
        for step in steps.chunks_exact(8).take(STEP_COUNT_MAX) {
            let mut step: [u8; 8] = step.try_into().expect("eight bytes");
            let is_call = step[0] & 128 != 0;
            step[0] &= 127;
            if is_call { self.call(step) } else { self.store(step) }
        }
        assert_eq!(fs::read(&self.outside).expect("a file"), b"outside");
    }

    fn restore(&self) {
        self.segment.restore();
        for path in self.present_tables().filter(|path| !self.tables.contains_key(path)) {
            let _ = fs::remove_file(path);
        }
        for (path, content) in &self.tables {
            let file = File::options().write(true).create(true).truncate(false).open(path).expect("a table");
            file.write_all_at(content, 0).and_then(|()| file.set_len(content.len() as u64)).expect("what it held");
        }
        for path in self.members.iter().flat_map(|member| NAMES.map(|name| member.join("data").join(name))) {
            let file = File::options().write(true).open(path).expect("a backing file");
            file.set_len(FILE_BYTES as u64).expect("its length");
        }
        remove_beside(&self.segment.path);
    }
}

/// Memory shared with children, of a file or without one.
fn shared_memory(bytes: usize, file: Option<&File>) -> *mut u8 {
    let (flags, fd) = file.map_or((libc::MAP_ANONYMOUS, -1), |file| (0, file.as_raw_fd()));
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED | flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED, "no shared memory: {}", std::io::Error::last_os_error());
    start.cast()
}

/// Removes copies of mapped files, which lie beside a segment.
fn remove_beside(segment: &Path) {
    let (Some(directory), Some(name)) = (segment.parent(), segment.file_name()) else { return };
    for entry in fs::read_dir(directory).expect("the directory of segments").flatten() {
        let beside = entry.file_name();
        if beside.as_bytes().starts_with(name.as_bytes()) && beside != name {
            let _ = fs::remove_file(entry.path());
        }
    }
}

mod coverage {
    //! The counters of libFuzzer's, which a child hands to its parent.

    use super::shared_memory;
    use std::sync::OnceLock;

    /// Where they begin, and how many bytes they are. The linker knows it; a declaration of its
    /// symbols here would be another than the compiler's own.
    fn counters() -> (*mut u8, usize) {
        let (start, stop): (*mut u8, *mut u8);
        // SAFETY: computes two addresses.
        unsafe {
            core::arch::asm!("lea {}, [rip + __start___sancov_cntrs]", out(reg) start, options(pure, nomem, nostack));
            core::arch::asm!("lea {}, [rip + __stop___sancov_cntrs]", out(reg) stop, options(pure, nomem, nostack));
        }
        (start, stop.addr() - start.addr())
    }

    /// Memory that parent and children share, as long as the counters.
    fn shared() -> *mut u8 {
        static SHARED: OnceLock<usize> = OnceLock::new();
        *SHARED.get_or_init(|| shared_memory(counters().1, None).addr()) as *mut u8
    }

    /// Makes the memory before the first fork.
    pub(super) fn prepare() {
        let (_, bytes) = counters();
        // SAFETY: that long.
        unsafe { shared().write_bytes(0, bytes) };
    }

    pub(super) fn hand_over() {
        let (start, bytes) = counters();
        // SAFETY: both are that long, and apart.
        unsafe { shared().copy_from_nonoverlapping(start, bytes) };
    }

    pub(super) fn take_over() {
        let (start, bytes) = counters();
        // SAFETY: both are that long, and apart.
        unsafe { start.copy_from_nonoverlapping(shared(), bytes) };
    }
}

/// The first byte of the input chooses the array, each eight bytes behind it are a step.
pub(super) fn segment(input: &[u8]) {
    let Some((which, steps)) = input.split_first() else { return };
    let worlds = worlds();
    let world = &worlds[usize::from(*which) % worlds.len()];
    assert!(LIMITS_US.iter().any(|&limit_us| !computes_too_long(world, steps, limit_us)), "computes without end");
}

/// Runs the steps in a child, which has so much time. Returns whether it computed for four fifths of
/// that and had not ended.
fn computes_too_long(world: &World, steps: &[u8], limit_us: i64) -> bool {
    coverage::prepare();
    // SAFETY: this process has one thread besides libFuzzer's, which holds no lock that the child
    // needs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process: {}", std::io::Error::last_os_error());
    if child == 0 {
        let limit = libc::itimerval {
            it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
            it_value: libc::timeval { tv_sec: limit_us / 1_000_000, tv_usec: limit_us % 1_000_000 },
        };
        let files = libc::rlimit { rlim_cur: FILE_LIMIT_BYTES, rlim_max: FILE_LIMIT_BYTES };
        // SAFETY: the timer of a process that has none, and plain numbers.
        unsafe {
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const files);
            sys::file_limit::refresh();
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::setitimer(libc::ITIMER_REAL, &raw const limit, std::ptr::null_mut());
        }
        world.run(steps);
        coverage::hand_over();
        // SAFETY: ends the process; what the parent has registered to be called then is not.
        unsafe { libc::_exit(ENDED) };
    }
    // SAFETY: plain numbers.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    // SAFETY: a child of ours; both outlive the call.
    while unsafe { libc::wait4(child, &raw mut status, 0, &raw mut usage) } < 0 {}
    coverage::take_over();
    world.restore();
    let is_over = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM;
    assert!(is_over || libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == ENDED, "wait status {status:#x}");
    let computing_us = [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1_000_000 + time.tv_usec).sum::<i64>();
    is_over && computing_us >= limit_us / 5 * 4
}
