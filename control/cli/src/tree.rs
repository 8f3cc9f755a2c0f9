//! A tree of files, as the commands `add` and `retrieve` need it. Through these traits the host's
//! files and the array's look alike to the two commands.
//!
//! Invariants: while a tree is copied, the tree's owner may replace any file in it by a symbolic
//! link or a pipe, at the source and at the destination. So symbolic links are followed only in the
//! path that the user typed. Below that path, names are looked up in an open directory and not
//! followed, the kind of a file is that of what was opened, and attributes are set on open files.
//!
//! Errors are `io::Error`, so that the host's and the array's errno read alike.

use std::{
    ffi::{CStr, CString, OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Path, PathBuf},
};
use sys::rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat as SystemStat, Timespec, Timestamps, Uid, XattrFlags, chmodat,
        chownat, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, ftruncate, futimens, linkat, listxattr,
        llistxattr, mkdirat, mknodat, openat, readlinkat, removexattr, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
    process::geteuid,
};

/// What kind of file a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A pipe, socket or device: a file without content of its own.
    Special(FileType),
}

/// The attributes that a copy keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    /// Permission bits, `0o7777`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The device that a block or character device stands for.
    pub(crate) device: u64,
    pub(crate) accessed: Timespec,
    pub(crate) modified: Timespec,
    /// How many names the file has.
    pub(crate) links: u64,
    /// The file's identity.
    pub(crate) identity: Identity,
}

/// The identity of a file, which tells it from all others: the numbers of its device and of its
/// inode.
pub(crate) type Identity = (u64, u64);

/// An extended attribute: its name and its value. Access control lists are extended attributes too.
pub(crate) type Attribute = (CString, Vec<u8>);

/// Whether a copy gets the attribute `name`. An attribute of a security module or of the array
/// itself is true of the original only, and a copy of [`CAPABILITY`] would run with rights that
/// nobody gave it, so none of these is copied. The kernel lists trusted attributes for root only.
pub(crate) fn is_copied(name: &CStr) -> bool {
    const KEPT: [&[u8]; 3] = [b"user.", b"system.posix_acl_", TRUSTED];
    let name = name.to_bytes();
    KEPT.iter().any(|kept| name.starts_with(kept)) && name != format::ATTRIBUTE_NAME.to_bytes()
}

/// How the names of attributes begin that only root may read and set (xattr(7)).
pub(crate) const TRUSTED: &[u8] = b"trusted.";

/// The attribute with a program's capabilities (capabilities(7)).
pub(crate) const CAPABILITY: &CStr = c"security.capability";

/// The attributes that a copy gets, and [`CAPABILITY`], which is told of, asked for by `list`
/// (listxattr(2)) and `get` (getxattr(2)).
pub(crate) fn attributes_by(
    list: impl Fn(&mut [u8]) -> io::Result<usize>,
    get: impl Fn(&CStr, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Vec<Attribute>> {
    let mut attributes = Vec::new();
    for name in attribute_names(list)?.into_iter().filter(|name| is_copied(name) || name.as_c_str() == CAPABILITY) {
        match whole(|buffer| get(&name, buffer)) {
            Ok(value) => attributes.push((name, value)),
            // The attribute was removed after it was listed, or may not be read.
            Err(error) if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(attributes)
}

/// The names of extended attributes, asked for by `list` (listxattr(2)).
pub(crate) fn attribute_names(list: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<CString>> {
    let names = match whole(list) {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => return Ok(Vec::new()),
        names => names?,
    };
    let names = names.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    Ok(names.map(CStr::to_owned).collect())
}

/// The attributes of a pipe, socket, device or symbolic link that a copy would get if it were a
/// file, asked for by `list`. An error is none here, since they are only told of.
pub(crate) fn unkept(list: impl Fn(&mut [u8]) -> io::Result<usize>) -> Vec<CString> {
    attribute_names(list).unwrap_or_default().into_iter().filter(|name| is_copied(name)).collect()
}

/// All bytes that `read` gives. One buffer of 64 KiB is enough: that is the kernel's limit for a
/// list and for a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
pub(crate) fn whole(read: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let count = read(&mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// The mode bits set-user-ID and set-group-ID.
const RUNS_AS_ANOTHER: u32 = 0o6000;

impl Stat {
    /// The attributes in a result of stat(2).
    pub(crate) fn of(stat: &SystemStat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            special => Kind::Special(special),
        };
        let time = |seconds, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
        Self {
            kind,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            device: stat.st_rdev,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            links: stat.st_nlink,
            identity: (stat.st_dev, stat.st_ino),
        }
    }

    /// The mode of a directory with these attributes when `user`, who owns it, is to make names in
    /// it; None if it has that mode already, or is another user's.
    pub(crate) fn opened_up(&self, user: Uid) -> Option<u32> {
        const MAKE_NAMES: u32 = 0o300;
        (self.uid == user.as_raw() && self.mode & MAKE_NAMES != MAKE_NAMES).then_some(self.mode | MAKE_NAMES)
    }

    /// Whether a pipe, socket or device that was found under a name is the one that was made there
    /// a moment ago like this one: it has no other name, which it would have if it had been another
    /// user's before.
    pub(crate) fn is_fresh_copy(&self, found: &Self) -> bool {
        (found.kind, found.device, found.links) == (self.kind, self.device, 1)
    }

    /// The mode of a copy. If the owner and group could not be kept, the copy loses set-user-ID and
    /// set-group-ID, as with `cp -p`: a program must not run with the rights of another user than
    /// the original's.
    pub(crate) const fn kept_mode(&self, owner_is_kept: bool) -> u32 {
        if owner_is_kept { self.mode } else { self.mode & !RUNS_AS_ANOTHER }
    }

    pub(crate) const fn times(&self) -> Timestamps {
        Timestamps { last_access: self.accessed, last_modification: self.modified }
    }
}

/// Whether the owner was set, from the result of chown(2). A refusal for want of rights is no
/// error, since most users may not give files away.
pub(crate) fn owner_is_kept(set: io::Result<()>) -> io::Result<bool> {
    match set {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

/// What was found under a name, with its attributes. A file or directory is open.
pub(crate) struct Found {
    pub(crate) stat: Stat,
    pub(crate) node: Node,
    /// The extended attributes of what is neither a file nor a directory, as far as a copy would
    /// get them.
    pub(crate) unkept: Vec<CString>,
}

impl Found {
    pub(crate) const fn new(stat: Stat, node: Node) -> Self {
        Self { stat, node, unkept: Vec::new() }
    }
}

/// What was found, by its kind.
pub(crate) enum Node {
    File(Box<dyn Content>),
    Directory(Box<dyn Directory>),
    /// The target of the symbolic link.
    Symlink(PathBuf),
    /// A pipe, socket or device.
    Special(FileType),
}

/// A tree of files.
pub(crate) trait Tree {
    /// Opens what an absolute path leads to, for reading. Symbolic links are followed.
    fn open(&self, path: &Path) -> io::Result<Found>;
    /// What is known beyond the error of why `path` cannot be read.
    fn why_unread(&self, _path: &Path, _error: &io::Error) -> Option<String> {
        None
    }
}

/// An open directory. Names are looked up in it and are not followed.
pub(crate) trait Directory {
    /// The names in the directory, without `.` and `..`.
    fn list(&self) -> io::Result<Vec<OsString>>;
    /// Opens what `name` stands for, for reading.
    fn open(&self, name: &OsStr) -> io::Result<Found>;
    /// The attributes of what `name` stands for, which is not opened.
    fn stat(&self, name: &OsStr) -> io::Result<Stat>;
    /// Opens a file for writing: a new file that only its owner may use, or the existing file, cut
    /// to no bytes.
    fn create(&self, name: &OsStr) -> io::Result<Box<dyn Content>>;
    /// Makes a directory that only its owner may use, and opens it. An existing directory keeps its
    /// attributes.
    fn make_directory(&self, name: &OsStr) -> io::Result<Box<dyn Directory>>;
    /// Lets this user make names in the directory, if he owns it.
    fn open_up(&self) -> io::Result<()>;
    /// Makes a symbolic link, and gives it the times and (where permitted) the owner in `stat`.
    /// Returns its identity.
    fn make_symlink(&self, target: &Path, name: &OsStr, stat: &Stat) -> io::Result<Identity>;
    /// Makes a pipe, socket or device, and gives it the mode ([`Stat::kept_mode`]), the times and
    /// (where permitted) the owner in `stat`. Returns its identity. The error is EPERM if this user
    /// may not make it (mknod(2)).
    fn make_special(&self, name: &OsStr, kind: FileType, stat: &Stat) -> io::Result<Identity>;
    /// Makes another name (a hard link) for the file at an absolute path. A symbolic link at the
    /// end of the path is not followed. Returns the identity of the file that has the new name.
    fn link(&self, file: &Path, name: &OsStr) -> io::Result<Identity>;
    /// Removes the name of a file.
    fn unlink(&self, name: &OsStr) -> io::Result<()>;
    /// Sets owner (where permitted), mode ([`Stat::kept_mode`]) and times of the directory.
    fn set_attributes(&self, stat: &Stat) -> io::Result<()>;
    /// The extended attributes of the directory ([`attributes_by`]).
    fn attributes(&self) -> io::Result<Vec<Attribute>>;
    /// Sets an extended attribute of the directory.
    fn set_attribute(&self, attribute: &Attribute) -> io::Result<()>;
    /// Removes an extended attribute of the directory.
    fn remove_attribute(&self, name: &CStr) -> io::Result<()>;
}

/// An open file.
pub(crate) trait Content {
    /// The identity of the file.
    fn identity(&self) -> io::Result<Identity>;
    /// The extended attributes of the file ([`attributes_by`]).
    fn attributes(&self) -> io::Result<Vec<Attribute>>;
    /// Sets an extended attribute of the file.
    fn set_attribute(&self, attribute: &Attribute) -> io::Result<()>;
    /// Removes an extended attribute of the file.
    fn remove_attribute(&self, name: &CStr) -> io::Result<()>;
    /// Reads into `buffer`. Returns how many bytes were read: 0 at the end of the file only.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or extends the file to `bytes`; what is added reads as zeros.
    fn set_bytes(&self, bytes: u64) -> io::Result<()>;
    /// Makes the content durable (fsync(2)).
    fn sync(&self) -> io::Result<()>;
    /// Sets owner (where permitted), mode ([`Stat::kept_mode`]) and times of the file.
    fn set_attributes(&self, stat: &Stat) -> io::Result<()>;
}

/// Flags with which every file is opened: a terminal does not become the controlling terminal, and
/// a pipe without a partner does not block.
pub(crate) const CAREFULLY: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// The names that a directory's descriptor lists, without `.` and `..`.
pub(crate) fn names_in(directory: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    Ok(names)
}

/// The names of a file's access control lists: its own, and the one that what is made in a directory
/// gets (acl(5)).
pub(crate) const ACCESS_LIST: &CStr = c"system.posix_acl_access";
pub(crate) const DEFAULT_LIST: &CStr = c"system.posix_acl_default";

/// Has `remove` remove an attribute. One that is not there, or that the file system does not know, is
/// removed.
pub(crate) fn without_attribute(remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let is_absent = |error: &io::Error| {
        [Errno::NODATA, Errno::OPNOTSUPP].iter().any(|absent| error.raw_os_error() == Some(absent.raw_os_error()))
    };
    remove().or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })
}

/// The error for a name that stands for something else than a regular file.
pub(crate) fn no_file() -> io::Error {
    io::Error::other("not a regular file")
}

/// The host's own files.
pub(crate) struct Host;

impl Tree for Host {
    fn open(&self, path: &Path) -> io::Result<Found> {
        look(CWD, path.as_os_str(), AtFlags::empty())
    }
}

/// Opens what a name in a directory stands for. With SYMLINK_NOFOLLOW a symbolic link is returned
/// as a link; without it, it is followed.
fn look(directory: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> io::Result<Found> {
    let stat = Stat::of(&statat(directory, name, flags)?);
    // There is no llistxattrat(2) on all kernels; this path leads through the open directory.
    let unkept = || {
        let path = if directory.as_raw_fd() == CWD.as_raw_fd() {
            PathBuf::from(name)
        } else {
            Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)
        };
        let is_followed = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
        unkept(|buffer| Ok(if is_followed { listxattr(&path, buffer)? } else { llistxattr(&path, buffer)? }))
    };
    match stat.kind {
        Kind::Symlink => {
            let target = readlinkat(directory, name, Vec::new())?.into_bytes();
            return Ok(Found { stat, node: Node::Symlink(OsString::from_vec(target).into()), unkept: unkept() });
        }
        // A device is not opened, since some devices act when they are opened.
        Kind::Special(kind) => return Ok(Found { stat, node: Node::Special(kind), unkept: unkept() }),
        Kind::File | Kind::Directory => {}
    }
    let follow = if flags.contains(AtFlags::SYMLINK_NOFOLLOW) { OFlags::NOFOLLOW } else { OFlags::empty() };
    let opened = openat(directory, name, OFlags::RDONLY | CAREFULLY | follow, Mode::empty())?;
    let stat = Stat::of(&fstat(&opened)?);
    let node = match stat.kind {
        Kind::File => Node::File(Box::new(File::from(opened))),
        Kind::Directory => Node::Directory(Box::new(HostDirectory(opened))),
        Kind::Special(kind) => Node::Special(kind),
        Kind::Symlink => return Err(changed()),
    };
    Ok(Found::new(stat, node))
}

/// An open directory of the host's.
struct HostDirectory(OwnedFd);

impl Directory for HostDirectory {
    fn list(&self) -> io::Result<Vec<OsString>> {
        names_in(&self.0)
    }

    fn open(&self, name: &OsStr) -> io::Result<Found> {
        look(self.0.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(Stat::of(&statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn create(&self, name: &OsStr) -> io::Result<Box<dyn Content>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | CAREFULLY;
        let file = openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        if Stat::of(&fstat(&file)?).kind != Kind::File {
            return Err(no_file());
        }
        ftruncate(&file, 0)?;
        Ok(Box::new(File::from(file)))
    }

    fn make_directory(&self, name: &OsStr) -> io::Result<Box<dyn Directory>> {
        let made = mkdirat(&self.0, name, Mode::RWXU);
        if !matches!(made, Ok(()) | Err(Errno::EXIST)) {
            made?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.0, name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => Err(io::ErrorKind::AlreadyExists.into()),
            opened => Ok(Box::new(Self(opened?))),
        }
    }

    fn open_up(&self) -> io::Result<()> {
        match Stat::of(&fstat(&self.0)?).opened_up(geteuid()) {
            Some(mode) => Ok(fchmod(&self.0, Mode::from_raw_mode(mode))?),
            None => Ok(()),
        }
    }

    fn make_symlink(&self, target: &Path, name: &OsStr, stat: &Stat) -> io::Result<Identity> {
        symlinkat(target, &self.0, name)?;
        let link = openat(&self.0, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = Stat::of(&fstat(&link)?);
        if found.kind != Kind::Symlink {
            return Err(changed());
        }
        let owner = (Some(Uid::from_raw(stat.uid)), Some(Gid::from_raw(stat.gid)));
        owner_is_kept(chownat(&link, c"", owner.0, owner.1, AtFlags::EMPTY_PATH).map_err(io::Error::from))?;
        utimensat(&link, c"", &stat.times(), AtFlags::EMPTY_PATH)?;
        Ok(found.identity)
    }

    fn make_special(&self, name: &OsStr, kind: FileType, stat: &Stat) -> io::Result<Identity> {
        mknodat(&self.0, name, kind, Mode::RUSR | Mode::WUSR, stat.device)?;
        let made = openat(&self.0, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = Stat::of(&fstat(&made)?);
        if !stat.is_fresh_copy(&found) {
            return Err(changed());
        }
        let owner = (Some(Uid::from_raw(stat.uid)), Some(Gid::from_raw(stat.gid)));
        let owner_is_kept = owner_is_kept(chownat(&made, c"", owner.0, owner.1, AtFlags::EMPTY_PATH).map_err(io::Error::from))?;
        // A descriptor of O_PATH takes no fchmod(2).
        let link = format!("/proc/self/fd/{}", made.as_raw_fd());
        without_attribute(|| Ok(removexattr(link.as_str(), ACCESS_LIST)?))?;
        chmodat(CWD, link.as_str(), Mode::from_raw_mode(stat.kept_mode(owner_is_kept)), AtFlags::empty())?;
        utimensat(&made, c"", &stat.times(), AtFlags::EMPTY_PATH)?;
        Ok(found.identity)
    }

    fn link(&self, file: &Path, name: &OsStr) -> io::Result<Identity> {
        linkat(CWD, file, &self.0, name, AtFlags::empty())?;
        Ok(Stat::of(&statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?).identity)
    }

    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    fn set_attributes(&self, stat: &Stat) -> io::Result<()> {
        set_attributes(&self.0, stat)
    }

    fn attributes(&self) -> io::Result<Vec<Attribute>> {
        attributes_of(&self.0)
    }

    fn set_attribute(&self, (name, value): &Attribute) -> io::Result<()> {
        Ok(fsetxattr(&self.0, name.as_c_str(), value, XattrFlags::empty())?)
    }

    fn remove_attribute(&self, name: &CStr) -> io::Result<()> {
        Ok(fremovexattr(&self.0, name)?)
    }
}

fn attributes_of(opened: impl AsFd + Copy) -> io::Result<Vec<Attribute>> {
    attributes_by(|buffer| Ok(flistxattr(opened, buffer)?), |name, buffer| Ok(fgetxattr(opened, name, buffer)?))
}

/// The error for a name that stands for something else than what was made under that name a moment
/// ago.
pub(crate) fn changed() -> io::Error {
    io::Error::other("it was replaced while it was copied")
}

fn set_attributes(opened: impl AsFd, stat: &Stat) -> io::Result<()> {
    let owner = (Some(Uid::from_raw(stat.uid)), Some(Gid::from_raw(stat.gid)));
    let owner_is_kept = owner_is_kept(fchown(&opened, owner.0, owner.1).map_err(io::Error::from))?;
    fchmod(&opened, Mode::from_raw_mode(stat.kept_mode(owner_is_kept)))?;
    Ok(futimens(&opened, &stat.times())?)
}

impl Content for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match std::os::unix::fs::FileExt::read_at(self, buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn set_attributes(&self, stat: &Stat) -> io::Result<()> {
        set_attributes(self, stat)
    }

    fn identity(&self) -> io::Result<Identity> {
        Ok(Stat::of(&fstat(self)?).identity)
    }

    fn attributes(&self) -> io::Result<Vec<Attribute>> {
        attributes_of(self)
    }

    fn set_attribute(&self, (name, value): &Attribute) -> io::Result<()> {
        Ok(fsetxattr(self, name.as_c_str(), value, XattrFlags::empty())?)
    }

    fn remove_attribute(&self, name: &CStr) -> io::Result<()> {
        Ok(fremovexattr(self, name)?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::lchown;
    use sys::rustix::thread::{set_thread_res_gid, set_thread_res_uid};

    /// Runs `act` as a user without rights. The argument of `act` is a directory of this user on a
    /// file system with extended attributes.
    pub(crate) fn as_somebody(act: impl FnOnce(&Path) + Send) {
        const SOMEBODY: u32 = 65534;
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let is_root = geteuid().is_root();
        if is_root {
            lchown(home.path(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
        // Only this thread gets other credentials; the threads of other tests keep theirs.
        let enter = || {
            if is_root {
                let (user, group) = (Uid::from_raw(SOMEBODY), Gid::from_raw(SOMEBODY));
                set_thread_res_gid(group, group, group).unwrap();
                set_thread_res_uid(user, user, user).unwrap();
            }
            act(home.path());
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap());
    }

    /// Opens an existing directory.
    pub(crate) fn directory(tree: &dyn Tree, path: &Path) -> Box<dyn Directory> {
        match tree.open(path).unwrap().node {
            Node::Directory(directory) => directory,
            _ => panic!("{} is no directory", path.display()),
        }
    }

    /// The attributes of a file of root.
    pub(crate) fn stat_of_another(mode: u32) -> Stat {
        let then = Timespec { tv_sec: 1, tv_nsec: 2 };
        Stat {
            kind: Kind::File,
            bytes: 0,
            mode,
            uid: 0,
            gid: 0,
            device: 0,
            accessed: then,
            modified: then,
            links: 1,
            identity: (0, 0),
        }
    }

    #[test]
    fn names_in_a_directory_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("victim"), "secret").unwrap();
        std::fs::create_dir(path("elsewhere")).unwrap();
        std::os::unix::fs::symlink("victim", path("file")).unwrap();
        std::os::unix::fs::symlink("elsewhere", path("directory")).unwrap();
        let here = directory(&Host, home.path());
        assert!(here.create(OsStr::new("file")).is_err());
        assert!(here.make_directory(OsStr::new("directory")).is_err());
        assert!(matches!(here.open(OsStr::new("file")).unwrap().node, Node::Symlink(target) if target == Path::new("victim")));
        assert_eq!(std::fs::read(path("victim")).unwrap(), b"secret");
    }

    #[test]
    fn a_pipe_holds_nobody_up() {
        let home = tempfile::tempdir().unwrap();
        let (kind, mode) = (FileType::Fifo, Mode::RUSR | Mode::WUSR);
        sys::rustix::fs::mknodat(CWD, home.path().join("pipe"), kind, mode, 0).unwrap();
        let here = directory(&Host, home.path());
        assert!(matches!(here.open(OsStr::new("pipe")).unwrap().node, Node::Special(FileType::Fifo)));
        assert!(here.create(OsStr::new("pipe")).is_err());
    }
}
