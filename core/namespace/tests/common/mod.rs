//! An array of members in memory, and what a test compares of their trees.
#![allow(dead_code, unreachable_pub, clippy::needless_pass_by_value, reason = "each test program uses a part")]

pub mod changes;

use array::{Array, AttachError, Config};
use cxlraid_namespace::{Namespace, Node, OFlags, Opened, Reached};
use file::{FileRef, Files, Keep};
use layout::Level;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::OsError;
use sys::rustix::fs::lgetxattr;
use tempfile::TempDir;
use units::ChunkBytes;

/// xorshift64*: the numbers of a test that repeats by its seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }
}

/// An array of its own for each test; its prefix is `/data`.
pub struct TestArray {
    pub home: TempDir,
    pub members: Vec<PathBuf>,
    pub config: Config,
    pub namespace: Namespace,
}

impl TestArray {
    /// RAID 5 on three members.
    pub fn new() -> Self {
        Self::with(Level::Raid5, 3)
    }

    pub fn with(level: Level, member_count: usize) -> Self {
        let home = tempfile::Builder::new().prefix("cxlraid-names-").tempdir_in("/dev/shm").unwrap();
        let members: Vec<PathBuf> = (0..member_count).map(|slot| home.path().join(format!("m{slot}"))).collect();
        members.iter().for_each(|member| std::fs::create_dir(member).unwrap());
        Self::on(level, home, members)
    }

    pub fn on(level: Level, home: TempDir, members: Vec<PathBuf>) -> Self {
        let config = config(level, &members);
        let namespace = attach(&config);
        Self { home, members, config, namespace }
    }

    /// Lets this process go, and attaches it anew: as after a restart. Its lanes name what it wrote
    /// last, as those of a process do that was killed.
    pub fn restart(&mut self) {
        self.namespace.files().for_each_open(|inode| _ = inode.flush_times());
        self.namespace.files().array().runtime().detach();
        self.namespace.files().array().abandon();
        let _ = std::fs::remove_file(self.segment());
        self.namespace = attach(&self.config);
    }

    /// Attaches anew after the array's use by this process has ended.
    pub fn restart_after_end(&mut self) {
        let _ = std::fs::remove_file(self.segment());
        self.namespace = attach(&self.config);
    }

    /// Attaches once more, as another process would that keeps files open.
    pub fn attach_keeping(&self, keep: Keep) -> Namespace {
        Namespace::new(Files::keeping_open(Array::attach(&self.config).unwrap(), keep).unwrap()).unwrap()
    }

    /// Attaches once more, as another process would.
    pub fn attach_another(&self) -> Namespace {
        attach(&self.config)
    }

    pub fn segment(&self) -> String {
        array::runtime::segment_path(self.namespace.files().array().uuid())
    }

    /// The trees of all members in use, which must be the same.
    pub fn assert_same_trees(&self) -> BTreeMap<PathBuf, Entry> {
        self.assert_same(|_| {})
    }

    /// The same after deaths. What has no attribute does not tell whose second name it is: where
    /// trees had to be compared as a whole (a process died exchanging two of them), it may have
    /// become two on some member.
    pub fn assert_same_trees_after_deaths(&self) -> BTreeMap<PathBuf, Entry> {
        self.assert_same(|entry| {
            if entry.attribute.is_none() && entry.kind != 'd' {
                entry.link_count = 1;
            }
        })
    }

    fn assert_same(&self, overlook: impl Fn(&mut Entry)) -> BTreeMap<PathBuf, Entry> {
        let in_use = self.namespace.files().array().in_use();
        let seen = |slot: usize| {
            let mut tree = tree(&self.members[slot]);
            tree.values_mut().for_each(&overlook);
            tree
        };
        let mut trees = in_use.iter().map(|slot| (slot, seen(slot)));
        let (_, first) = trees.next().unwrap();
        for (slot, other) in trees {
            for (path, entry) in &first {
                assert_eq!(Some(entry), other.get(path), "{} on member {slot}", path.display());
            }
            for path in other.keys() {
                assert!(first.contains_key(path), "{} is left over on member {slot}", path.display());
            }
        }
        first
    }
}

impl Drop for TestArray {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.segment());
    }
}

fn config(level: Level, members: &[PathBuf]) -> Config {
    let mounts: Vec<Vec<u8>> = members.iter().map(|member| member.as_os_str().as_bytes().to_vec()).collect();
    Config::new(level, ChunkBytes::new(4096), &mounts, &[b"/data".to_vec()], "test".into()).unwrap()
}

/// Attaches another process to a RAID 5 whose members are given as `a:b:c`.
pub fn attach_again(mounts: &str) -> Namespace {
    attach(&config(Level::Raid5, &mounts.split(':').map(PathBuf::from).collect::<Vec<_>>()))
}

fn attach(config: &Config) -> Namespace {
    persist::fault::install_handlers().unwrap();
    let begun = Instant::now();
    let array = loop {
        match Array::attach(config) {
            Ok(array) => break array,
            // A program that another test starts has the lock of a use that has ended until it is
            // executed: locks of open files are inherited by fork(2).
            Err(AttachError::InUseElsewhere { .. }) if begun.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    };
    Namespace::new(Files::new(array).unwrap()).unwrap()
}

/// What must be the same on all members.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Entry {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    pub link_count: u64,
    pub target: Option<PathBuf>,
    pub attribute: Option<Vec<u8>>,
    pub note: Option<Vec<u8>>,
}

/// Everything below a member but `.cxlraid`.
pub fn tree(member: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut entries = BTreeMap::new();
    collect(member, member, &mut entries);
    entries
}

fn collect(member: &Path, directory: &Path, entries: &mut BTreeMap<PathBuf, Entry>) {
    for found in std::fs::read_dir(directory).unwrap() {
        let path = found.unwrap().path();
        let relative = path.strip_prefix(member).unwrap().to_path_buf();
        if relative == Path::new(".cxlraid") {
            continue;
        }
        let metadata = path.symlink_metadata().unwrap();
        let kind = match metadata.file_type() {
            kind if kind.is_dir() => 'd',
            kind if kind.is_symlink() => 'l',
            kind if kind.is_file() => '-',
            kind if kind.is_fifo() => 'p',
            kind if kind.is_socket() => 's',
            _ => '?',
        };
        let entry = Entry {
            kind,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            link_count: metadata.nlink(),
            target: std::fs::read_link(&path).ok(),
            attribute: raw_attribute(&path, "user.cxlraid"),
            note: raw_attribute(&path, "user.note"),
        };
        entries.insert(relative, entry);
        if kind == 'd' {
            collect(member, &path, entries);
        }
    }
}

pub fn raw_attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0u8; 256];
    let bytes = lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(bytes);
    Some(value)
}

/// Unwraps what was reached in the array.
#[track_caller]
pub fn inside<T, H: std::fmt::Debug>(result: Result<Reached<T, H>, OsError>) -> T {
    match result {
        Ok(Reached::Array(value)) => value,
        Ok(Reached::Host(host)) => panic!("led out of the array: {host:?}"),
        Err(error) => panic!("{error:?}"),
    }
}

/// Unwraps the host path where a symlink led.
#[track_caller]
pub fn outside<T>(result: Result<Reached<T>, OsError>) -> PathBuf {
    match result {
        Ok(Reached::Array(_)) => panic!("stayed in the array"),
        Ok(Reached::Host(host)) => OsStr::from_bytes(&host).into(),
        Err(error) => panic!("{error:?}"),
    }
}

/// The error there must be.
#[track_caller]
pub fn refused<T, H>(result: Result<Reached<T, H>, OsError>) -> OsError {
    match result {
        Ok(Reached::Array(_)) => panic!("succeeded"),
        Ok(Reached::Host(_)) => panic!("led out of the array"),
        Err(error) => error,
    }
}

pub const CREATE: OFlags = OFlags::CREATE.union(OFlags::RDWR).union(OFlags::CLOEXEC);

/// setresuid(2), which as a bare system call concerns the calling thread alone.
const SETRESUID: i64 = 117;

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// Gives the calling thread another effective user. It needs root.
pub fn act_as(user: u32) {
    // SAFETY: concerns this thread only.
    assert_eq!(unsafe { syscall(SETRESUID, -1, i64::from(user), -1) }, 0);
}

/// Makes a file, or opens it for reading and writing.
#[track_caller]
pub fn create(namespace: Namespace, path: &str) -> Opened {
    inside(namespace.open(path.as_bytes(), CREATE, 0o644))
}

#[track_caller]
pub fn file_of(opened: &Opened) -> FileRef {
    match &opened.node {
        Node::File(file) => file.clone(),
        _ => panic!("not a file"),
    }
}

pub fn write(opened: &Opened, offset: u64, bytes: &[u8]) {
    // SAFETY: the slice is valid.
    unsafe { file_of(opened).write_at(offset, bytes.as_ptr(), bytes.len()) }.unwrap();
}

pub fn read(opened: &Opened) -> Vec<u8> {
    let file = file_of(opened);
    let mut bytes = vec![0; file.size() as usize];
    // SAFETY: the buffer is valid and ours.
    let count = unsafe { file.read_at(0, bytes.as_mut_ptr(), bytes.len()) }.unwrap();
    assert_eq!(count, bytes.len());
    bytes
}
