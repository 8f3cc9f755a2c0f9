//! A member's tree is made in another directory, as it is: kinds, owners, modes, times, names of one
//! file, extended attributes, bytes and holes.
//!
//! A pass makes the copy of what it finds the same, whatever is there already: a second pass
//! compares, and stores what differs. Programs may use the array during a pass; then the copy is
//! nothing in particular, and who is to rely on it makes another pass while nobody changes
//! anything.
//!
//! Invariants: names are looked up in open directories and not followed, on both sides, since
//! users may put symbolic links in the place of directories meanwhile. Nothing is changed on the
//! member, but times of access where it is mounted so. What the copy has besides goes.

use crate::job;
use format::Attribute;
use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString, OsStr},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    time::Instant,
};
use sys::{
    OsError,
    rustix::{
        fs::{
            AtFlags, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
            XattrFlags, chownat, fallocate, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, ftruncate,
            futimens, lgetxattr, linkat, llistxattr, lremovexattr, lsetxattr, mkdirat, mknodat, openat, openat2, readlinkat,
            seek, statat, symlinkat, unlinkat, utimensat,
        },
        io::{Errno, pread, pwrite},
    },
};

/// Bytes that are read and compared at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes that are read at a time where some of a block cannot be.
const PAGE_BYTES: usize = 4096;
/// Flags to open what is looked into.
const INTO: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Why a pass ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Somebody has told the job to end.
    Cancelled,
    /// It took longer than it may.
    Late,
    /// Something of the member cannot be read.
    Unread(PathBuf, OsError),
    /// Something cannot be made in the copy.
    Unmade(PathBuf, OsError),
}

type Result<T> = std::result::Result<T, Stop>;

/// A file of the array that was copied.
pub(crate) struct Copied {
    /// Its path below both directories.
    pub(crate) path: PathBuf,
    pub(crate) attribute: Attribute,
    /// The numbers of the file and of its copy.
    pub(crate) old: u64,
    pub(crate) new: u64,
    /// The length of both.
    pub(crate) bytes: u64,
    /// Whether all of it could be read.
    pub(crate) is_whole: bool,
}

/// How a pass works.
#[derive(Clone, Copy)]
pub(crate) enum Haste {
    /// At the pace of the job, and it pauses with it.
    Paced,
    /// Programs wait for it to end, and longer than until then they must not.
    Until(Instant),
}

/// One pass.
pub(crate) struct Mirror<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    haste: Haste,
    /// The copies of what has several names, by the number of the original: number and path.
    linked: HashMap<u64, (u64, PathBuf)>,
    /// The numbers of the copies that this pass has made.
    made: HashSet<u64>,
    found: Vec<Copied>,
    /// Bytes that were compared.
    pub(crate) bytes: u64,
    blocks: [Vec<u8>; 2],
}

impl<'a> Mirror<'a> {
    /// Between two member directories.
    pub(crate) fn new(from: &'a OwnedFd, to: &'a OwnedFd, haste: Haste) -> Self {
        let blocks = [(); 2].map(|()| vec![0; BLOCK_BYTES]);
        let (linked, made) = (HashMap::new(), HashSet::new());
        Self { from, to, haste, linked, made, found: Vec::new(), bytes: 0, blocks }
    }

    /// Copies the directories at these paths, absolute as programs see them, with all below them.
    pub(crate) fn copy(mut self, prefixes: &[Vec<u8>]) -> Result<(Vec<Copied>, u64)> {
        for prefix in prefixes {
            let (mut from, mut to) = (duplicate(self.from, Path::new("/"))?, duplicate(self.to, Path::new("/"))?);
            let mut path = PathBuf::new();
            let mut names = prefix.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
            let mut is_there = true;
            while let Some(name) = names.next() {
                let name = CString::new(name).unwrap_or_default();
                path.push(OsStr::from_bytes(name.to_bytes()));
                // What the member has in the place of the directory is not the array's.
                let Some(next) = open_directory(&from, &name).map_err(|error| Stop::Unread(path.clone(), error))? else {
                    is_there = false;
                    break;
                };
                let stat = fstat(&next).map_err(|error| Stop::Unread(path.clone(), error))?;
                let made = self.directory(&to, &name, &path)?;
                if names.peek().is_some() {
                    self.give(&next, &made, &stat, &path)?;
                }
                (from, to) = (next, made);
            }
            if is_there {
                let stat = fstat(&from).map_err(|error| Stop::Unread(path.clone(), error))?;
                self.copy_directory(&from, &to, &stat, &path)?;
            }
        }
        Ok((self.found, self.bytes))
    }

    /// Waits until so many bytes may be done.
    fn step(&self, bytes: u64) -> Result<()> {
        match self.haste {
            Haste::Paced => job::step(bytes).map_err(|job::Cancelled| Stop::Cancelled),
            _ if job::is_ended() => Err(Stop::Cancelled),
            Haste::Until(time) if Instant::now() >= time => Err(Stop::Late),
            Haste::Until(_) => Ok(()),
        }
    }

    fn copy_directory(&mut self, from: &OwnedFd, to: &OwnedFd, stat: &Stat, path: &Path) -> Result<()> {
        let names = names_in(from).map_err(|error| Stop::Unread(path.to_owned(), error))?;
        let wanted: HashSet<&CStr> = names.iter().map(CString::as_c_str).collect();
        for name in names_in(to).map_err(|error| Stop::Unmade(path.to_owned(), error))? {
            if !wanted.contains(name.as_c_str()) {
                remove(to, &name, &path.join(OsStr::from_bytes(name.to_bytes())))?;
            }
        }
        for name in &names {
            self.step(0)?;
            self.copy_name(from, to, name, &path.join(OsStr::from_bytes(name.to_bytes())))?;
        }
        self.give(from, to, stat, path)
    }

    /// Copies what a name stands for. What is gone by then is left to the pass that counts.
    fn copy_name(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &Path) -> Result<()> {
        let unread = |error| Stop::Unread(path.to_owned(), error);
        let Some(stat) = if_there(statat(from, name, AtFlags::SYMLINK_NOFOLLOW)).map_err(unread)? else { return Ok(()) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let Some(next) = open_directory(from, name).map_err(unread)? else { return Ok(()) };
                let stat = fstat(&next).map_err(unread)?;
                let made = self.directory(to, name, path)?;
                self.copy_directory(&next, &made, &stat, path)
            }
            _ if self.is_linked(&stat, to, name, path)? => Ok(()),
            FileType::RegularFile => self.copy_file(from, to, name, path),
            kind => self.copy_special(from, to, name, &stat, kind, path),
        }
    }

    /// Whether a name is that of a file which was copied by another name before; then it is one of
    /// the copy's, too.
    fn is_linked(&self, stat: &Stat, to: &OwnedFd, name: &CStr, path: &Path) -> Result<bool> {
        let Some((copy, first)) = self.linked.get(&stat.st_ino).filter(|_| stat.st_nlink > 1) else { return Ok(false) };
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        match statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if there.st_ino == *copy => return Ok(true),
            Ok(_) => remove(to, name, path)?,
            Err(_) => {}
        }
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let above = first.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let above = openat2(self.to, above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), beneath);
        let first = first.file_name().unwrap_or_default();
        linkat(above.map_err(unmade)?, first, to, name, AtFlags::empty()).map_err(unmade)?;
        Ok(true)
    }

    /// Notes a copy that was made, or made the same.
    fn note(&mut self, stat: &Stat, copy: u64, path: &Path) {
        self.made.insert(copy);
        if stat.st_nlink > 1 {
            self.linked.insert(stat.st_ino, (copy, path.to_owned()));
        }
    }

    fn copy_file(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &Path) -> Result<()> {
        let unread = |error| Stop::Unread(path.to_owned(), error);
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        let quiet = openat(from, name, INTO | OFlags::NOATIME, Mode::empty());
        // Only the file's owner and root may ask for that.
        let opened =
            quiet.or_else(|error| if error == OsError::PERM { openat(from, name, INTO, Mode::empty()) } else { Err(error) });
        let Some(original) = if_there(opened).map_err(unread)? else { return Ok(()) };
        let stat = fstat(&original).map_err(unread)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let copy = self.file(to, name, path)?;
        let number = fstat(&copy).map_err(unmade)?.st_ino;
        self.note(&stat, number, path);
        let before = self.bytes;
        let is_whole = self.copy_bytes(&original, &copy, stat.st_size as u64, path)?;
        self.give(&original, &copy, &stat, path)?;
        job::end_file(self.bytes - before, true);
        let mut bytes = [0; format::ATTRIBUTE_BYTES];
        let decoded = fgetxattr(&original, format::ATTRIBUTE_NAME, &mut bytes[..]).ok().map(|_| Attribute::decode(&bytes));
        if let Some(Ok(attribute)) = decoded {
            let (old, path) = (stat.st_ino, path.to_owned());
            self.found.push(Copied { path, attribute, old, new: number, bytes: stat.st_size as u64, is_whole });
        }
        Ok(())
    }

    /// Opens the file that is to be a copy: what the name stands for, if that is a file and not the
    /// copy of another one, else a new one.
    fn file(&self, to: &OwnedFd, name: &CStr, path: &Path) -> Result<OwnedFd> {
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there)
                if FileType::from_raw_mode(there.st_mode) == FileType::RegularFile && !self.made.contains(&there.st_ino) =>
            {
                match openat(to, name, flags, Mode::empty()) {
                    // Its owner may have forbidden to write to it.
                    Err(OsError::ACCESS | OsError::PERM) => remove(to, name, path)?,
                    opened => return opened.map_err(unmade),
                }
            }
            Ok(_) => remove(to, name, path)?,
            Err(_) => {}
        }
        openat(to, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR).map_err(unmade)
    }

    /// Makes the bytes of a copy those of its original. Returns whether all of them could be read.
    fn copy_bytes(&mut self, from: &OwnedFd, to: &OwnedFd, length: u64, path: &Path) -> Result<bool> {
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        if fstat(to).map_err(unmade)?.st_size as u64 != length {
            ftruncate(to, length).map_err(unmade)?;
        }
        let [mut ours, mut theirs] = std::mem::take(&mut self.blocks);
        let mut is_whole = true;
        let mut at = 0;
        loop {
            at = data_from(from, at, length).min(data_from(to, at, length));
            if at >= length {
                break;
            }
            // Blocks lie at multiples of their size, however much of the first is a hole.
            let count = (BLOCK_BYTES as u64 - at % BLOCK_BYTES as u64).min(length - at) as usize;
            self.step(count as u64)?;
            let (ours, theirs) = (&mut ours[..count], &mut theirs[..count]);
            is_whole &= read_all(from, ours, at);
            read_fully(to, theirs, at).map_err(unmade)?;
            let is_zeros = ours.iter().all(|&byte| byte == 0);
            if ours != theirs {
                let punched = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if !is_zeros || fallocate(to, punched, at, count as u64).is_err() {
                    write_fully(to, ours, at).map_err(unmade)?;
                }
            }
            if is_zeros {
                allocate_like(from, to, at, at + count as u64).map_err(unmade)?;
            }
            self.bytes += count as u64;
            job::count_bytes(count as u64);
            at += count as u64;
        }
        self.blocks = [ours, theirs];
        Ok(is_whole)
    }

    fn copy_special(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        stat: &Stat,
        kind: FileType,
        path: &Path,
    ) -> Result<()> {
        let unread = |error| Stop::Unread(path.to_owned(), error);
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        let is_symlink = kind == FileType::Symlink;
        let link = if is_symlink { if_there(readlinkat(from, name, Vec::new())).map_err(unread)? } else { None };
        if is_symlink && link.is_none() {
            return Ok(());
        }
        let is_same = |there: &Stat| {
            let is_kind = FileType::from_raw_mode(there.st_mode) == kind && there.st_rdev == stat.st_rdev;
            let is_link = || link.as_ref().is_none_or(|link| readlinkat(to, name, Vec::new()).as_ref() == Ok(link));
            is_kind && !self.made.contains(&there.st_ino) && is_link()
        };
        match statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if is_same(&there) => {}
            there => {
                if there.is_ok() {
                    remove(to, name, path)?;
                }
                match &link {
                    Some(link) => symlinkat(link.as_c_str(), to, name).map_err(unmade)?,
                    None => mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev).map_err(unmade)?,
                }
            }
        }
        let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let there = statat(to, name, AtFlags::SYMLINK_NOFOLLOW).map_err(unmade)?;
        let (original, copy) = (Carrier::Named(below(from, name)), Carrier::Named(below(to, name)));
        let Some(ours) = if_there(original.attributes()).map_err(unread)? else { return Ok(()) };
        if (there.st_uid, there.st_gid) != (stat.st_uid, stat.st_gid) {
            chownat(to, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW).map_err(unmade)?;
        }
        if !is_symlink && (there.st_mode & 0o7777) != (stat.st_mode & 0o7777) {
            // Nobody can put a symbolic link here: only this process knows the directory.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            sys::rustix::fs::chmodat(to, name, mode, AtFlags::empty()).map_err(unmade)?;
        }
        copy.give(&ours).map_err(unmade)?;
        utimensat(to, name, &times_of(stat), AtFlags::SYMLINK_NOFOLLOW).map_err(unmade)?;
        self.note(stat, there.st_ino, path);
        Ok(())
    }

    /// Opens the directory with a name in the copy, which is made if it is not there.
    fn directory(&self, to: &OwnedFd, name: &CStr, path: &Path) -> Result<OwnedFd> {
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        if let Ok(Some(there)) = open_directory(to, name) {
            return Ok(there);
        }
        if statat(to, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            remove(to, name, path)?;
        }
        mkdirat(to, name, Mode::RWXU).map_err(unmade)?;
        openat(to, name, INTO | OFlags::DIRECTORY, Mode::empty()).map_err(unmade)
    }

    /// Gives a copy, a file or a directory, what its original has besides bytes.
    fn give(&self, from: &OwnedFd, to: &OwnedFd, stat: &Stat, path: &Path) -> Result<()> {
        let unmade = |error| Stop::Unmade(path.to_owned(), error);
        let there = fstat(to).map_err(unmade)?;
        if (there.st_uid, there.st_gid) != (stat.st_uid, stat.st_gid) {
            fchown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))).map_err(unmade)?;
        }
        // Owner and bytes come before: the kernel takes set-user-ID and capabilities away by these.
        let mode = stat.st_mode & 0o7777;
        if fstat(to).map_err(unmade)?.st_mode & 0o7777 != mode {
            fchmod(to, Mode::from_raw_mode(mode)).map_err(unmade)?;
        }
        let unread = |error| Stop::Unread(path.to_owned(), error);
        let ours = Carrier::Open(from).attributes().map_err(unread)?;
        Carrier::Open(to).give(&ours).map_err(unmade)?;
        let times = times_of(stat);
        let there = times_of(&fstat(to).map_err(unmade)?);
        let is_time = |one: &Timespec, other: &Timespec| (one.tv_sec, one.tv_nsec) == (other.tv_sec, other.tv_nsec);
        if !is_time(&there.last_access, &times.last_access) || !is_time(&there.last_modification, &times.last_modification) {
            futimens(to, &times).map_err(unmade)?;
        }
        Ok(())
    }
}

/// How many files lie below a directory, and how many bytes they take, as far as this user may look
/// into it.
pub(crate) fn extent(directory: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let (mut files, mut bytes, mut left) = (0, 0u64, vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().filter_map(std::result::Result::ok) {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && entry.file_name() != OsStr::from_bytes(format::DIRECTORY.to_bytes()) {
                left.push(entry.path());
            } else if metadata.is_file() {
                files += 1;
                bytes = bytes.saturating_add(metadata.len().min(metadata.blocks() * 512));
            }
        }
    }
    (files, bytes)
}

/// A file's copy is given this length.
pub(crate) fn set_length(root: &OwnedFd, path: &Path, bytes: u64) -> std::result::Result<(), OsError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)?;
    let times = times_of(&fstat(&file)?);
    ftruncate(&file, bytes)?;
    futimens(&file, &times)
}

fn duplicate(directory: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    openat(directory, c".", INTO | OFlags::DIRECTORY, Mode::empty()).map_err(|error| Stop::Unread(path.to_owned(), error))
}

/// None if what was looked for is not there, or is something else by now.
fn if_there<T>(found: std::result::Result<T, OsError>) -> std::result::Result<Option<T>, OsError> {
    match found {
        Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::NXIO) => Ok(None),
        found => found.map(Some),
    }
}

fn open_directory(above: &OwnedFd, name: &CStr) -> std::result::Result<Option<OwnedFd>, OsError> {
    if_there(openat(above, name, INTO | OFlags::DIRECTORY, Mode::empty()))
}

fn names_in(directory: &OwnedFd) -> std::result::Result<Vec<CString>, OsError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes what a name in the copy stands for, with all below it.
fn remove(directory: &OwnedFd, name: &CStr, path: &Path) -> Result<()> {
    let unmade = |error| Stop::Unmade(path.to_owned(), error);
    if let Some(below) = open_directory(directory, name).map_err(unmade)? {
        for name in names_in(&below).map_err(unmade)? {
            remove(&below, &name, &path.join(OsStr::from_bytes(name.to_bytes())))?;
        }
        return unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(unmade);
    }
    unlinkat(directory, name, AtFlags::empty()).map_err(unmade)
}

/// Gets a copy the space for zeros from `at` to `end` that its original has space for: a program that
/// has written them may count on it that there is room to write over them.
fn allocate_like(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> sys::Result<()> {
    loop {
        at = data_from(from, at, end);
        if at >= end {
            return Ok(());
        }
        let stop = seek(from, SeekFrom::Hole(at)).map_or(end, |hole| hole.min(end)).max(at + 1);
        match fallocate(to, FallocateFlags::KEEP_SIZE, at, stop - at) {
            Err(OsError::OPNOTSUPP) => write_fully(to, &vec![0; (stop - at) as usize], at)?,
            done => done?,
        }
        at = stop;
    }
}

/// Where data begin, from an offset on. A file system that cannot tell has no holes.
fn data_from(file: &OwnedFd, at: u64, length: u64) -> u64 {
    match seek(file, SeekFrom::Data(at)) {
        Ok(found) => found.min(length),
        Err(OsError::NXIO) => length,
        Err(_) => at,
    }
}

/// Reads bytes, in small pieces where some cannot be read: these are zeros then. Returns whether all
/// could be read. What lies behind the end counts as zeros.
fn read_all(file: &OwnedFd, bytes: &mut [u8], at: u64) -> bool {
    if read_fully(file, bytes, at).is_ok() {
        return true;
    }
    let mut is_whole = true;
    for (index, piece) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        if read_fully(file, piece, at + (index * PAGE_BYTES) as u64).is_err() {
            piece.fill(0);
            is_whole = false;
        }
    }
    is_whole
}

fn read_fully(file: &OwnedFd, bytes: &mut [u8], at: u64) -> std::result::Result<(), OsError> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(file, &mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(OsError::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    bytes[done..].fill(0);
    Ok(())
}

fn write_fully(file: &OwnedFd, bytes: &[u8], at: u64) -> std::result::Result<(), OsError> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(file, &bytes[done..], at + done as u64) {
            Ok(count) => done += count,
            Err(OsError::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Something that has extended attributes.
enum Carrier<'a> {
    /// A file or directory.
    Open(&'a OwnedFd),
    /// Something that cannot be opened to read, or must not be, by its path ([`below`]). A symbolic
    /// link is not followed.
    Named(CString),
}

type Attributes = HashMap<CString, Vec<u8>>;

impl Carrier<'_> {
    /// The extended attributes. A file system without any has none.
    fn attributes(&self) -> std::result::Result<Attributes, OsError> {
        let list = |buffer: &mut [u8]| match self {
            Self::Open(file) => flistxattr(file, buffer),
            Self::Named(path) => llistxattr(path.as_c_str(), buffer),
        };
        let names = match whole(list) {
            Err(OsError::OPNOTSUPP) => return Ok(HashMap::new()),
            names => names?,
        };
        let mut found = HashMap::new();
        for name in names.split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let get = |buffer: &mut [u8]| match self {
                Self::Open(file) => fgetxattr(file, name, buffer),
                Self::Named(path) => lgetxattr(path.as_c_str(), name, buffer),
            };
            match whole(get) {
                Ok(value) => drop(found.insert(name.to_owned(), value)),
                // It was removed meanwhile, or its file system does not show it.
                Err(OsError::NODATA | OsError::OPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Makes the extended attributes these, and takes others away.
    fn give(&self, wanted: &Attributes) -> std::result::Result<(), OsError> {
        let present = self.attributes()?;
        for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
            let removed = match self {
                Self::Open(file) => fremovexattr(file, name.as_c_str()),
                Self::Named(path) => lremovexattr(path.as_c_str(), name.as_c_str()),
            };
            if !is_labelled(name) {
                removed?;
            }
        }
        for (name, value) in wanted.iter().filter(|(name, value)| present.get(*name) != Some(*value)) {
            let set = match self {
                Self::Open(file) => fsetxattr(file, name.as_c_str(), value, XattrFlags::empty()),
                Self::Named(path) => lsetxattr(path.as_c_str(), name.as_c_str(), value, XattrFlags::empty()),
            };
            if !is_labelled(name) {
                set?;
            }
        }
        Ok(())
    }
}

/// A path of what a name stands for in an open directory: there are no calls for extended attributes
/// that take both on all kernels.
fn below(directory: &OwnedFd, name: &CStr) -> CString {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend(name.to_bytes());
    CString::new(path).unwrap_or_default()
}

/// Asks for something of which the length is not known.
fn whole(ask: impl Fn(&mut [u8]) -> std::result::Result<usize, Errno>) -> std::result::Result<Vec<u8>, OsError> {
    let mut buffer = vec![0; 4096];
    loop {
        match ask(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(OsError::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

/// Whether an attribute is a security module's, which gives each file its own.
fn is_labelled(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"security.") && name != crate::tree::CAPABILITY
}

const fn times_of(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
    }
}
