//! An array in temporary directories, and a file on it made without core/namespace.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use array::{Array, Config, JournalPlace};
use cxlraid_file::{BackingFds, FileRef, Files};
use dax::Access;
use format::Attribute;
use layout::Level;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use sys::rustix::fs::{FallocateFlags, Mode, OFlags, XattrFlags, fallocate, fsetxattr, fstatvfs, open};
use units::ChunkBytes;

/// An array; its directories and its runtime segment go when it is dropped.
pub struct TestArray {
    pub files: &'static Files,
    pub config: Config,
    directory: tempfile::TempDir,
    attached: Mutex<Vec<&'static Files>>,
}

/// Where temporary arrays live: shared memory if there is some, so that tests do not wait for a
/// disk.
pub fn scratch() -> tempfile::TempDir {
    let base = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("cxlraid-test-").tempdir_in(base).unwrap()
}

impl TestArray {
    pub fn new(level: Level, member_count: usize, chunk_bytes: u64) -> Self {
        Self::in_directory(scratch(), level, member_count, chunk_bytes)
    }

    /// With its members below `directory`.
    pub fn in_directory(directory: tempfile::TempDir, level: Level, member_count: usize, chunk_bytes: u64) -> Self {
        Self::configured(directory, level, member_count, chunk_bytes, |config| config)
    }

    /// With sums of the files' blocks.
    pub fn summed(level: Level, member_count: usize, chunk_bytes: u64) -> Self {
        Self::configured(scratch(), level, member_count, chunk_bytes, |config| Config { sums: true, ..config })
    }

    /// With sums and a journal on the members.
    pub fn summed_and_journaled(level: Level, member_count: usize, chunk_bytes: u64) -> Self {
        Self::configured(scratch(), level, member_count, chunk_bytes, |config| {
            let mut config = config.with_journal(&JournalPlace::Members).unwrap();
            (config.journal_lanes, config.sums) = (2, true);
            config
        })
    }

    /// With a journal of two lanes, on members or in a file beside them.
    pub fn journaled(level: Level, member_count: usize, chunk_bytes: u64, on_members: bool) -> Self {
        let directory = scratch();
        let path = directory.path().join("journal").into_os_string().into_encoded_bytes();
        let place = if on_members { JournalPlace::Members } else { JournalPlace::File(path) };
        Self::configured(directory, level, member_count, chunk_bytes, |config| {
            let mut config = config.with_journal(&place).unwrap();
            config.journal_lanes = 2;
            config
        })
    }

    fn configured(
        directory: tempfile::TempDir,
        level: Level,
        member_count: usize,
        chunk_bytes: u64,
        configure: impl FnOnce(Config) -> Config,
    ) -> Self {
        persist::fault::install_handlers().unwrap();
        let mounts: Vec<Vec<u8>> = (0..member_count)
            .map(|slot| {
                let path = directory.path().join(format!("m{slot}"));
                std::fs::create_dir(&path).unwrap();
                path.into_os_string().into_encoded_bytes()
            })
            .collect();
        let config = Config::new(level, ChunkBytes::new(chunk_bytes), &mounts, &[b"/data".to_vec()], String::new()).unwrap();
        let mut config = configure(config);
        // All tests can be run on arrays whose files have sums.
        config.sums |= std::env::var_os("CXLRAID_TEST_SUMS").is_some();
        let files = Files::new(Array::attach(&config).unwrap()).unwrap();
        files.array().runtime().me();
        Self { files, config, directory, attached: Mutex::new(vec![files]) }
    }

    pub fn member_path(&self, slot: usize) -> PathBuf {
        self.directory.path().join(format!("m{slot}"))
    }

    /// The files of the journal.
    pub fn journal_paths(&self) -> Vec<PathBuf> {
        let holders = self.files.array().journal().unwrap().holders;
        if holders.is_empty() {
            return vec![self.directory.path().join("journal")];
        }
        holders.iter().map(|slot| self.member_path(slot).join(".cxlraid/journal")).collect()
    }

    /// Takes a member away: its directory is empty from now on.
    pub fn lose_member(&self, slot: usize) {
        std::fs::rename(self.member_path(slot), self.directory.path().join(format!("gone{slot}"))).unwrap();
        std::fs::create_dir(self.member_path(slot)).unwrap();
    }

    /// Attaches once more, as another process would.
    pub fn again(&self) -> &'static Files {
        let files = Files::new(Array::attach(&self.config).unwrap()).unwrap();
        self.attached.lock().unwrap().push(files);
        files
    }

    /// Everybody is gone, and nothing is left but what the members hold.
    pub fn lose_segment(&self) {
        for files in self.attached.lock().unwrap().drain(..) {
            files.array().abandon();
        }
        std::fs::remove_file(array::runtime::segment_path(self.files.array().uuid())).unwrap();
    }

    /// Makes an empty file called `name`.
    pub fn create(&self, name: &str) -> Attribute {
        let attribute = self.files.create_inode(b"/data/file").unwrap();
        for slot in self.files.array().in_use().iter() {
            let path = self.member_path(slot).join("data").join(name);
            let fd = open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, Mode::from_raw_mode(0o600)).unwrap();
            fsetxattr(&fd, format::ATTRIBUTE_NAME, &attribute.encode(), XattrFlags::empty()).unwrap();
        }
        attribute
    }

    pub fn open(&self, name: &str, attribute: Attribute) -> FileRef {
        self.open_in(self.files, name, attribute)
    }

    pub fn open_in(&self, files: &'static Files, name: &str, attribute: Attribute) -> FileRef {
        files.open(attribute, true, || Ok((self.backing(files, name), Access::ReadWrite))).unwrap()
    }

    pub fn backing(&self, files: &Files, name: &str) -> BackingFds {
        let open_member = |slot: usize| -> Option<OwnedFd> {
            let path = self.member_path(slot).join("data").join(name);
            files.array().in_use().contains(slot).then(|| open(&path, OFlags::RDWR, Mode::empty()).unwrap())
        };
        (0..self.config.mounts.len()).map(open_member).collect()
    }

    /// The plain bytes of a backing file.
    pub fn raw(&self, slot: usize, name: &str) -> Vec<u8> {
        std::fs::read(self.member_path(slot).join("data").join(name)).unwrap()
    }
}

impl Drop for TestArray {
    fn drop(&mut self) {
        // Copies of mapped files lie beside the segment, and have its name before their own.
        let segment = array::runtime::segment_path(self.files.array().uuid());
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            if entry.path().to_str().is_some_and(|path| path.starts_with(&segment)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        close_kept_open(self.directory.path());
    }
}

/// Closes what attaching opens in `.cxlraid` below a directory: what was attached is never dropped,
/// and a test program has many arrays one after the other.
fn close_kept_open(directory: &Path) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        // Those of sums go with their files.
        let has = |path: &Path, wanted: &str| path.iter().any(|name| name == wanted);
        let is_one = |path: PathBuf| path.starts_with(directory) && has(&path, ".cxlraid") && !has(&path, "sums");
        let is_one = std::fs::read_link(entry.path()).is_ok_and(is_one);
        if let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| is_one) {
            // SAFETY: nobody uses the array any more, and nothing drops it.
            unsafe { sys::rustix::io::close(fd) };
        }
    }
}

pub fn read(file: &FileRef, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; bytes];
    let count = file.read_slice(offset, &mut buffer).unwrap();
    buffer.truncate(count);
    buffer
}

pub fn write(file: &FileRef, offset: u64, data: &[u8]) {
    assert_eq!(file.write_slice(offset, data), Ok(data.len()));
}

/// xorshift64*: numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Bytes that reach a member as one.
pub const LINE: usize = 64;

/// The bytes of several files, or of one file on several members.
pub type Image = Vec<Vec<u8>>;

/// `after`, with some of the lines that changed as they were before.
pub fn some_lines(random: &mut Random, before: &Image, after: &Image) -> Image {
    let mut mixed = after.clone();
    for (mixed, before) in mixed.iter_mut().zip(before) {
        for (mixed, before) in mixed.chunks_mut(LINE).zip(before.chunks(LINE)) {
            if random.below(2) == 0 {
                mixed[..before.len()].copy_from_slice(before);
            }
        }
    }
    mixed
}

/// Levels with redundancy, with member counts: one shape at least of each.
pub const SHAPES_WITH_REDUNDANCY: [(Level, usize); 7] = [
    (Level::Raid1, 2),
    (Level::Raid1, 3),
    (Level::Raid4, 3),
    (Level::Raid5, 3),
    (Level::Raid6, 5),
    (Level::Raid10, 4),
    (Level::Raid01, 4),
];

/// Flips a bit of the byte at `offset` of the backing file of `file` on a member.
pub fn flip(array: &TestArray, slot: usize, offset: u64) {
    let file = File::options().read(true).write(true).open(array.member_path(slot).join("data/file")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// A tmpfs of its own. Its drop takes it away.
pub struct Mounted(PathBuf);

impl Mounted {
    /// None, said aloud, without the right to mount.
    pub fn at(place: &Path, options: &str, test: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "cxlraid-test"]).arg(place);
        if mount.output().is_ok_and(|output| output.status.success()) {
            return Some(Self(place.to_owned()));
        }
        eprintln!("NOT RUN: {test} needs the right to mount");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Makes a file that leaves so many pages of its tmpfs free.
pub fn fill(path: &Path, free: usize) {
    let filler = File::create(path).unwrap();
    let space = fstatvfs(&filler).unwrap();
    let bytes = (space.f_bavail as usize - free) * space.f_frsize as usize;
    fallocate(&filler, FallocateFlags::empty(), 0, bytes as u64).unwrap();
}
