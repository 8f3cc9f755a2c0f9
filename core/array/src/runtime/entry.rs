//! The way into the runtime segment: its file in /dev/shm, examined before anything is waited for.
//!
//! Every user may make a name in /dev/shm, and hold a lock on a file there for ever. So a file of
//! another user is not opened, and the wait for the lock ends. The first name of a segment is made
//! of the array's UUID, so other users can guess it. If another user has made a file of that name,
//! the segment gets another name, which processes find by listing the directory. A second segment
//! of the same array cannot be used at the same time, whatever is made and removed there
//! ([`crate::exclusive`]).

use super::segment_path;
use crate::access;
use crate::waiting::lock;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use format::{Access, Uuid};
use sys::high_fd::Raised;
use sys::rustix::fs::{self, CWD, Dir, DirEntry, FileType, Mode, OFlags, RenameFlags, Stat};
use sys::{OsError, OwnedFd, Result};

/// Where somebody else has made a file of the segment's first name, the segment's own name is the
/// first one, this, and a random number that nobody could foretell.
const ELSEWHERE: &str = "-run-";
/// A segment that is being made: its name, this, and a random number.
pub(super) const UNNAMED: &str = "-new-";
/// Where segments lie.
pub(super) const DIRECTORY: &str = "/dev/shm";
/// How often the segment is looked for anew that somebody removed or made in between.
const TRY_COUNT: u32 = 100;

pub(super) const OPEN: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// The segment's file, locked, what it is, and its path.
///
/// # Errors
/// `TIMEDOUT` if a process keeps the file locked; `BUSY` if the segment is removed and made again
/// without end.
pub(super) fn open_locked(uuid: Uuid, access: Access, mode: Mode) -> Result<(Raised, Stat, String)> {
    for _ in 0..TRY_COUNT {
        let (path, flags) = place(uuid, access)?;
        let opened = if flags.contains(OFlags::CREATE) && access.mode & 0o066 != 0 {
            make_shared(&path, access, mode)
        } else {
            fs::open(path.as_str(), OPEN | flags, mode)
        };
        let file = match opened {
            Ok(file) => Raised::new(file)?,
            // Somebody was faster.
            Err(OsError::NOENT | OsError::EXIST) => continue,
            Err(_) if flags.contains(OFlags::CREATE) && fs::lstat(path.as_str()).is_ok() => continue,
            Err(error) => return Err(error),
        };
        if !is_believed(&fs::fstat(&file)?, access) {
            continue;
        }
        lock(&file)?;
        let stat = fs::fstat(&file)?;
        // It may have been removed (`cxlraid stop`) while we waited for it: then the next one to
        // open it would make another.
        if stat.st_nlink != 0 {
            return Ok((file, stat, path));
        }
    }
    Err(OsError::BUSY)
}

/// Makes the segment's file of an array that several users may use. It has the array's group before
/// it has its name: others of the group take it for theirs by that.
fn make_shared(path: &str, access: Access, mode: Mode) -> Result<OwnedFd> {
    let number = u64::from_le_bytes(sys::random::bytes()?);
    let unnamed = format!("{path}{UNNAMED}{number:016x}");
    let file = fs::open(unnamed.as_str(), OPEN | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)?;
    let named = access::give(&file, access, mode.bits())
        .and_then(|()| fs::renameat_with(CWD, unnamed.as_str(), CWD, path, RenameFlags::NOREPLACE));
    if named.is_err() {
        let _ = fs::unlink(unnamed.as_str());
    }
    named.map(|()| file)
}

/// Where the segment is, or is to be made with these flags.
fn place(uuid: Uuid, access: Access) -> Result<(String, OFlags)> {
    let first = segment_path(uuid);
    let is_free = match fs::lstat(first.as_str()) {
        Ok(stat) if is_believed(&stat, access) => return Ok((first, OFlags::empty())),
        Ok(_) => false,
        Err(OsError::NOENT) => true,
        Err(error) => return Err(error),
    };
    let elsewhere = listed(uuid).into_iter().find(|path| fs::lstat(path.as_str()).is_ok_and(|stat| is_believed(&stat, access)));
    Ok(match elsewhere {
        Some(path) => (path, OFlags::empty()),
        None if is_free => (first, OFlags::CREATE),
        None => {
            let number = u64::from_le_bytes(sys::random::bytes()?);
            (format!("{first}{ELSEWHERE}{number:016x}"), OFlags::CREATE | OFlags::EXCL)
        }
    })
}

/// The path of the segment of an array, if there is one.
#[must_use]
pub fn find_segment(uuid: Uuid, access: Access) -> Option<String> {
    place(uuid, access).ok().filter(|(_, flags)| flags.is_empty()).map(|(path, _)| path)
}

/// Every path that a segment of the array may have, whoever made it.
#[must_use]
pub fn segment_paths(uuid: Uuid) -> Vec<String> {
    let mut paths = listed(uuid);
    paths.insert(0, segment_path(uuid));
    paths
}

/// The names in the segments' directory that begin as those do which nobody could foretell, in
/// ascending order.
fn listed(uuid: Uuid) -> Vec<String> {
    let start = format!("{}{ELSEWHERE}", segment_path(uuid));
    let open = fs::open(DIRECTORY, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(entries) = open.and_then(|directory| Dir::read_from(&directory)) else { return Vec::new() };
    let path = |entry: Result<DirEntry>| Some(format!("{DIRECTORY}/{}", entry.ok()?.file_name().to_str().ok()?));
    let mut paths: Vec<String> = entries.filter_map(path).filter(|path| path.starts_with(&start)).collect();
    paths.sort_unstable();
    paths
}

/// Whether what has a segment's name was made by somebody who may have made the segment: the
/// array's owner, root, this user, or one of those whom the array is open to. Nobody else gives a
/// file to the array's group.
fn is_believed(stat: &Stat, access: Access) -> bool {
    let own = [access.owner_uid, 0, sys::rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    let is_groups = access.mode & stat.st_mode & 0o020 != 0 && stat.st_gid == access.owner_gid;
    let is_everybodys = access.mode & stat.st_mode & 0o002 != 0;
    (own || is_groups || is_everybodys) && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

impl super::Runtime {
    /// Returns the device number of the file system that the segment's file lies on.
    ///
    /// # Errors
    /// The function returns what fstat(2) says.
    pub fn device(&self) -> Result<u64> {
        fs::fstat(&self.file).map(|stat| stat.st_dev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::WAIT_SECONDS;
    use sys::rustix::fs::{CWD, Gid, Uid, chownat, mknodat, unlink};

    fn access() -> Access {
        let (uid, gid) = (sys::rustix::process::geteuid().as_raw(), sys::rustix::process::getegid().as_raw());
        Access { mode: 0o600, owner_uid: uid, owner_gid: gid }
    }

    fn open(uuid: Uuid) -> Result<(Raised, String)> {
        open_locked(uuid, access(), Mode::RUSR | Mode::WUSR).map(|(file, _, path)| (file, path))
    }

    #[test]
    fn what_others_put_in_its_place_is_passed_over() {
        let uuid = Uuid(std::process::id().to_le_bytes().repeat(4).try_into().unwrap());
        let first = segment_path(uuid);
        let (own, path) = open(uuid).unwrap();
        assert_eq!(path, first);
        assert_eq!(open(uuid).unwrap_err(), OsError::TIMEDOUT, "the lock is held");
        let begin_ns = sys::clock::monotonic_ns();
        if sys::rustix::process::geteuid().is_root() {
            // Somebody else's file, with a lock on it.
            chownat(CWD, first.as_str(), Some(Uid::from_raw(65534)), Some(Gid::from_raw(65534)), fs::AtFlags::empty()).unwrap();
            let (_file, elsewhere) = open(uuid).unwrap();
            assert_ne!(elsewhere, first);
            unlink(elsewhere.as_str()).unwrap();
        }
        drop(own);
        unlink(first.as_str()).unwrap();
        mknodat(CWD, first.as_str(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (file, elsewhere) = open(uuid).unwrap();
        drop(file);
        // All find the same one, also when the first name is free again.
        assert_eq!(open(uuid).unwrap().1, elsewhere);
        unlink(first.as_str()).unwrap();
        assert_eq!((open(uuid).unwrap().1, find_segment(uuid, access())), (elsewhere.clone(), Some(elsewhere.clone())));
        assert_eq!(segment_paths(uuid), [first, elsewhere.clone()]);
        unlink(elsewhere.as_str()).unwrap();
        assert_eq!(find_segment(uuid, access()), None);
        assert!(sys::clock::monotonic_ns() - begin_ns < WAIT_SECONDS * 500_000_000, "it was waited for");
    }
}
