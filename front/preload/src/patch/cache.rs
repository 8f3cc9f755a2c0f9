//! The sites of objects seen before, one file per object, so that a process starts without decoding
//! anything.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `cxlsites` |
//! | 8..16 | fingerprint of the library's table and of this format |
//! | 16..24 | FNV-1a hash of the records, in 8-byte words, from the two words after it |
//! | 24..32 | number of sites |
//! | 32..40 | what of the object cannot be reached ([`Gap`]), or 0 |
//! | 40.. | [`Site`] records |
//!
//! The file is named after the build-id and the segments' places, or after device, inode, size and
//! time of an object without a build-id. Tools that change an object, and linkers that are given an
//! identifier, make objects that differ under one build-id. Such objects are told apart if their
//! segments differ in place or size.
//!
//! Whoever may write these files decides what the program executes. A directory and a file are
//! believed only if they belong to root or to the caller and nobody else may write them; the bytes
//! at each site are compared before it is patched. Nothing here ever fails the program: a cache
//! that cannot be read or written costs time.

use super::elf::Range;
use super::site::{Gap, SITE_BYTES, Site};
use crate::environment::Environment;
use crate::report::Line;
use crate::table::{NUMBER_COUNT, wants_site};
use core::ffi::CStr;
use core::fmt::Write;
use heap::vec::Vec;
use sys::rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdir, openat, renameat, unlinkat};
use sys::rustix::io::{read, write};
use sys::{AsFd, BorrowedFd, OwnedFd};

const MAGIC: [u8; 8] = *b"cxlsites";
const HEADER_BYTES: usize = 40;
const SITE_COUNT_MAX: usize = 1 << 16;
const SYSTEM_DIRECTORY: &[u8] = b"/var/cache/cxlraid/sites";
/// A directory path or file name, with its NUL.
const PATH_BYTES_MAX: usize = 512;

/// What names an object in the cache.
pub(crate) struct Key(Line);

impl Key {
    /// An object with this build-id, whose segments lie at these addresses of its own.
    pub(crate) fn of_build_id(id: &[u8], segments: impl Iterator<Item = Range>) -> Self {
        let mut line = Line::new();
        for byte in id.iter().take(64) {
            // A Line does not fail.
            let _ = write!(line, "{byte:02x}");
        }
        let places = segments.fold(0, |seed, Range { start, end }| {
            let [start, end] = [start, end].map(u64::to_le_bytes);
            hash(&end, hash(&start, seed))
        });
        let _ = write!(line, "-{places:016x}");
        Self(line)
    }

    /// An object that is only a file.
    pub(crate) fn of_file(stat: &Stat) -> Self {
        let mut line = Line::new();
        let (device, inode, size) = (stat.st_dev, stat.st_ino, stat.st_size);
        let _ = write!(line, "file-{device:x}-{inode:x}-{size:x}-{:x}.{:x}", stat.st_mtime, stat.st_mtime_nsec);
        Self(line)
    }

    fn path(&self, suffix: &str) -> Path {
        let mut path = Path::new();
        path.push(self.0.as_bytes());
        path.push(suffix.as_bytes());
        path
    }
}

/// A NUL-terminated path on the stack.
struct Path {
    bytes: [u8; PATH_BYTES_MAX],
    length: usize,
}

impl Path {
    const fn new() -> Self {
        Self { bytes: [0; PATH_BYTES_MAX], length: 0 }
    }

    /// Appends bytes; a path that gets too long becomes empty, and empty paths do not open.
    fn push(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.length..self.length + bytes.len()) {
            Some(place) if self.length + bytes.len() < PATH_BYTES_MAX => {
                place.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            _ => *self = Self { bytes: [0; PATH_BYTES_MAX], length: 0 },
        }
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// The directories looked into, opened once.
pub(crate) struct Cache {
    /// Where new files are written, and its path if it does not exist yet.
    own: Option<OwnedFd>,
    own_path: Path,
    /// What the administrator provides.
    system: Option<OwnedFd>,
    user: u32,
}

impl Cache {
    /// Opens what there is for the calling user.
    pub(crate) fn open(environment: &Environment) -> Self {
        let user = sys::rustix::process::geteuid().as_raw();
        let own_path = own_directory(environment, user);
        let own = open_directory(own_path.as_c_str(), user);
        let mut system_path = Path::new();
        system_path.push(SYSTEM_DIRECTORY);
        let system = if user == 0 { None } else { open_directory(system_path.as_c_str(), user) };
        Self { own, own_path, system, user }
    }

    /// The sites stored under `key` with this `fingerprint`, and what cannot be reached.
    pub(crate) fn load(&self, key: &Key, fingerprint: u64) -> Option<(Vec<Site>, Option<Gap>)> {
        let name = key.path("");
        let directories = [self.own.as_ref(), self.system.as_ref()];
        directories.into_iter().flatten().find_map(|directory| self.load_from(directory.as_fd(), &name, fingerprint))
    }

    fn load_from(&self, directory: BorrowedFd<'_>, name: &Path, fingerprint: u64) -> Option<(Vec<Site>, Option<Gap>)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(directory, name.as_c_str(), flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let body = (stat.st_size as usize).checked_sub(HEADER_BYTES)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || !is_trusted(&stat, self.user)
            || body % SITE_BYTES != 0
            || body / SITE_BYTES > SITE_COUNT_MAX
        {
            return None;
        }
        let mut header = [0u8; HEADER_BYTES];
        read_all(&file, &mut header)?;
        let mut sites: Vec<Site> = Vec::with_capacity(body / SITE_BYTES);
        // SAFETY: `sites` has room for `body` bytes; Site is plain numbers, for which every byte
        // pattern is a value.
        let bytes = unsafe {
            sites.set_len(body / SITE_BYTES);
            core::slice::from_raw_parts_mut(sites.as_mut_ptr().cast::<u8>(), body)
        };
        bytes.fill(0);
        read_all(&file, bytes)?;
        let gap = Gap::of_code(header[32..].try_into().map_or(0, u64::from_le_bytes))?;
        (header == self::header(bytes, gap, fingerprint) && sites.iter().all(Site::is_sound)).then_some((sites, gap))
    }

    /// Stores `sites` and `gap` under `key`: a temporary file, then a rename. Silent if it does not
    /// work.
    pub(crate) fn store(&mut self, key: &Key, fingerprint: u64, sites: &[Site], gap: Option<Gap>) {
        if self.own.is_none() {
            make_directories(&self.own_path);
            self.own = open_directory(self.own_path.as_c_str(), self.user);
        }
        let Some(directory) = &self.own else { return };
        let mut suffix = Line::new();
        let _ = write!(suffix, ".{}", sys::rustix::process::getpid().as_raw_nonzero());
        let (name, temporary) = (key.path(""), key.path(core::str::from_utf8(suffix.as_bytes()).unwrap_or(".new")));
        if write_file(directory.as_fd(), &temporary, fingerprint, sites, gap).is_none()
            || renameat(directory, temporary.as_c_str(), directory, name.as_c_str()).is_err()
        {
            let _ = unlinkat(directory, temporary.as_c_str(), AtFlags::empty());
        }
    }
}

fn write_file(directory: BorrowedFd<'_>, name: &Path, fingerprint: u64, sites: &[Site], gap: Option<Gap>) -> Option<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(directory, name.as_c_str(), flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH).ok()?;
    // SAFETY: Site has no padding (its size is the sum of its fields) and only plain numbers.
    let body = unsafe { core::slice::from_raw_parts(sites.as_ptr().cast::<u8>(), size_of_val(sites)) };
    write_all(&file, &header(body, gap, fingerprint))?;
    write_all(&file, body)
}

fn header(body: &[u8], gap: Option<Gap>, fingerprint: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let count = (body.len() / SITE_BYTES) as u64;
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&fingerprint.to_le_bytes());
    let gap = gap.map_or(0, |gap| gap as u64);
    header[16..24].copy_from_slice(&hash(body, count ^ gap << 32).to_le_bytes());
    header[24..32].copy_from_slice(&count.to_le_bytes());
    header[32..].copy_from_slice(&gap.to_le_bytes());
    header
}

/// FNV-1a over 8-byte words, from `seed`.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    bytes.chunks(8).fold(start, |hash, chunk| {
        let word = chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        (hash ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
    })
}

/// Changes whenever the set of patched sites, the code that finds them or the form of their records
/// may.
pub(crate) fn fingerprint() -> u64 {
    const FORMAT: u64 = 4;
    let format = FORMAT << 32 | SITE_BYTES as u64;
    let code = hash(env!("CXLRAID_PATCH_SOURCES").as_bytes(), format);
    (0..NUMBER_COUNT as u32).fold(code, |seed, number| hash(&[u8::from(wants_site(Some(number)))], seed))
}

/// Whether only root or the caller can have written it.
const fn is_trusted(stat: &Stat, user: u32) -> bool {
    (stat.st_uid == 0 || stat.st_uid == user) && stat.st_mode & 0o022 == 0
}

fn open_directory(path: &CStr, user: u32) -> Option<OwnedFd> {
    if path.is_empty() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty()).ok()?;
    let stat = fstat(&directory).ok()?;
    is_trusted(&stat, user).then_some(directory)
}

fn own_directory(environment: &Environment, user: u32) -> Path {
    let mut path = Path::new();
    if user == 0 {
        path.push(SYSTEM_DIRECTORY);
    } else if let Some(cache) = environment.get(b"XDG_CACHE_HOME").filter(|value| value.starts_with(b"/")) {
        path.push(cache);
        path.push(b"/cxlraid/sites");
    } else if let Some(home) = environment.get(b"HOME").filter(|value| value.starts_with(b"/")) {
        path.push(home);
        path.push(b"/.cache/cxlraid/sites");
    }
    path
}

/// Makes every missing directory of `path`.
fn make_directories(path: &Path) {
    let mut part = Path::new();
    for name in path.bytes[..path.length].split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        part.push(b"/");
        part.push(name);
        let _ = mkdir(part.as_c_str(), Mode::RWXU);
    }
}

fn read_all(file: &OwnedFd, mut bytes: &mut [u8]) -> Option<()> {
    while !bytes.is_empty() {
        match read(file, &mut *bytes).ok()? {
            0 => return None,
            count => bytes = &mut bytes[count..],
        }
    }
    Some(())
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        bytes = &bytes[write(file, bytes).ok()?..];
    }
    Some(())
}
