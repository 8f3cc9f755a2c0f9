//! The array's files as a [`Tree`]: `add` and `retrieve` use the same core as programs do, in this process.
//!
//! Paths are logical, as programs see them; a symbolic link that leads out of the array is not followed to the host.
#![allow(unsafe_code)] // The core takes a program's pointers; here they come from slices.

use crate::{
    failure::Failure,
    inspect,
    tree::{Content, Kind, Stat, Tree, owner_is_kept},
};
use array::Array;
use file::{FileRef, Files};
use namespace::{FileType, Namespace, Node, OFlags, Opened, Reached, Timestamps};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use sys::{
    OsError,
    rustix::fs::{Dir, Timespec},
};

/// The files of an attached array.
pub(crate) struct ArrayFiles {
    names: Namespace,
}

impl ArrayFiles {
    /// Takes over an attached array for the life of the process.
    pub(crate) fn open(array: Array) -> Result<Self, Failure> {
        let cannot = |error: OsError| inspect::refused("array", &io::Error::from(error).to_string());
        persist::fault::install_handlers().map_err(cannot)?;
        Ok(Self { names: Namespace::new(Files::new(array).map_err(cannot)?).map_err(cannot)? })
    }

    /// The files as the core has them.
    pub(crate) fn core(&self) -> &'static Files {
        self.names.files()
    }

    /// The paths below which the array's files are.
    pub(crate) fn prefixes(&self) -> Vec<PathBuf> {
        let prefixes = &self.names.files().array().config().prefixes;
        prefixes.iter().map(|prefix| PathBuf::from(OsStr::from_bytes(prefix))).collect()
    }

    /// Opens one file after the other for writing, as far as that goes, and changes nothing: what waits for the first to open a file is done then.
    pub(crate) fn open_each_to_write_until(&self, is_enough: impl Fn() -> bool) {
        let mut directories = self.prefixes();
        while let Some(directory) = directories.pop().filter(|_| !is_enough()) {
            let Ok(names) = self.list(&directory) else { continue };
            for path in names.into_iter().map(|name| directory.join(name)) {
                match self.stat(&path, false).map(|stat| stat.kind) {
                    Ok(Kind::Directory) => directories.push(path),
                    Ok(Kind::File) => drop(self.open_file(&path, OFlags::RDWR | OFlags::NOFOLLOW)),
                    _ => {}
                }
            }
        }
    }

    /// Programs could not reach a file outside the array's paths.
    pub(crate) fn require_inside(&self, path: &Path) -> Result<(), Failure> {
        if self.names.owns(&array::config::normalise(bytes(path))) {
            return Ok(());
        }
        let prefixes = &self.names.files().array().config().prefixes;
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| Path::new(OsStr::from_bytes(prefix)).display().to_string()).collect();
        let what = format!("is not below the array's paths ({})", prefixes.join(", "));
        Err(Failure::new(path.display(), what, "give a path below one of them"))
    }

    fn open_node(&self, path: &Path, flags: OFlags) -> io::Result<Opened> {
        inside(self.names.open(bytes(path), flags | OFlags::CLOEXEC, 0o600))
    }

    fn open_file(&self, path: &Path, flags: OFlags) -> io::Result<Box<dyn Content>> {
        match self.open_node(path, flags)?.node {
            Node::File(file) => Ok(Box::new(ArrayFile(file))),
            _ => Err(io::Error::other("not a regular file")),
        }
    }
}

impl Drop for ArrayFiles {
    fn drop(&mut self) {
        self.names.files().detach();
    }
}

impl Tree for ArrayFiles {
    fn stat(&self, path: &Path, follow: bool) -> io::Result<Stat> {
        let stat = inside(self.names.stat(bytes(path), follow))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        };
        Ok(Stat {
            kind,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            accessed: from_timespec(stat.st_atime, stat.st_atime_nsec),
            modified: from_timespec(stat.st_mtime, stat.st_mtime_nsec),
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let directory = self.open_node(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory.anchor)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") && !self.names.hides(&directory.path, name) {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        inside(self.names.readlink(bytes(path))).map(|target| OsString::from_vec(target).into())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Content>> {
        self.open_file(path, OFlags::RDONLY)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Content>> {
        self.open_file(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        match inside(self.names.mkdir(bytes(path), 0o700)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.stat(path, true)?.kind == Kind::Directory => {
                Ok(())
            }
            result => result,
        }
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        inside(self.names.symlink(bytes(target), bytes(path)))
    }

    fn set_attributes(&self, path: &Path, stat: &Stat) -> io::Result<()> {
        let owner_is_kept = owner_is_kept(inside(self.names.chown(bytes(path), stat.uid, stat.gid, false)))?;
        if stat.kind == Kind::Symlink {
            return Ok(());
        }
        inside(self.names.chmod(bytes(path), stat.kept_mode(owner_is_kept), true))?;
        let times = Timestamps { last_access: timespec(stat.accessed), last_modification: timespec(stat.modified) };
        inside(self.names.utimens(bytes(path), &times, true))
    }
}

/// An open file of the array.
struct ArrayFile(FileRef);

impl Content for ArrayFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the slice is valid for writes of its length and borrowed for the whole call.
        Ok(unsafe { self.0.read_at(offset, buffer.as_mut_ptr(), buffer.len()) }?)
    }

    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            // SAFETY: the slice is valid for reads of its length and borrowed for the whole call.
            let count = unsafe { self.0.write_at(offset, bytes.as_ptr(), bytes.len()) }?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[count..];
            offset += count as u64;
        }
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        Ok(self.0.truncate(bytes)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.0.sync()?)
    }
}

/// What was reached in the array; leaving it through a symbolic link is an error here.
fn inside<T, H>(reached: sys::Result<Reached<T, H>>) -> io::Result<T> {
    match reached? {
        Reached::Array(value) => Ok(value),
        Reached::Host(_) => Err(io::Error::other("it leads out of the array")),
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn from_timespec(seconds: i64, nanoseconds: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(nanoseconds)
}

/// Nanoseconds count forward from the second, before 1970 too.
fn timespec(time: SystemTime) -> Timespec {
    let signed = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec { tv_sec: signed(after), tv_nsec: after.subsec_nanos().into() },
        Err(error) => match error.duration() {
            before if before.subsec_nanos() == 0 => Timespec { tv_sec: -signed(before), tv_nsec: 0 },
            before => Timespec { tv_sec: -signed(before) - 1, tv_nsec: (1_000_000_000 - before.subsec_nanos()).into() },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{
        Host,
        tests::{as_somebody, stat_of_another},
    };
    use std::fs;

    #[test]
    fn a_program_of_anothers_does_not_run_with_the_copiers_rights() {
        as_somebody(|home| {
            let members = ["a", "b"].map(|name| home.join(name));
            members.iter().for_each(|member| fs::create_dir(member).unwrap());
            let mounts = members.map(|member| bytes(&member).to_vec());
            let config = array::Config::new(layout::Level::Raid1, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
            let array = Array::attach(&config).unwrap();
            let segment = format!("/dev/shm/cxlraid-{}", array.uuid());
            let files = ArrayFiles::open(array).unwrap();
            for (tree, path) in [(&files as &dyn Tree, Path::new("/data/program").to_owned()), (&Host, home.join("program"))] {
                drop(tree.create(&path).unwrap());
                tree.set_attributes(&path, &stat_of_another(0o6755)).unwrap();
                assert_eq!(tree.stat(&path, false).unwrap().mode, 0o755);
                let own = tree.stat(&path, false).unwrap();
                tree.set_attributes(&path, &Stat { mode: 0o6755, ..own }).unwrap();
                assert_eq!(tree.stat(&path, false).unwrap().mode, 0o6755);
            }
            drop(files);
            fs::remove_file(segment).unwrap();
        });
    }

    #[test]
    fn times_keep_their_nanoseconds_before_and_after_1970() {
        for (seconds, nanoseconds) in [(0, 0), (1_700_000_000, 123_456_789), (-1, 0), (-5, 999_999_999)] {
            let spec = timespec(from_timespec(seconds, nanoseconds));
            assert_eq!((spec.tv_sec, spec.tv_nsec), (seconds, nanoseconds as i64));
        }
    }
}
