//! The way into the runtime segment: its file in /dev/shm, examined before anything is waited for.
//!
//! Every user may make a name there, and hold a lock on a file of it for ever. So a file of somebody else's is refused, and waiting for the lock ends.

use super::segment_path;
use crate::waiting::lock;
use format::{Access, Uuid};
use sys::high_fd::Raised;
use sys::rustix::fs::{self, FileType, Mode, OFlags, Stat};
use sys::{OsError, OwnedFd, Result};

/// The segment's file, locked, and what it is.
///
/// # Errors
/// `PERM` if the name is taken by something that another user than the array's owner or root has made, `TIMEDOUT` if a process keeps the file locked.
pub(super) fn open_locked(uuid: Uuid, access: Access, mode: Mode) -> Result<(Raised, Stat)> {
    let path = segment_path(uuid);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    loop {
        let file = Raised::new(fs::open(path.as_str(), flags, mode)?)?;
        examine(&file, access)?;
        lock(&file)?;
        let stat = fs::fstat(&file)?;
        // It may have been removed (`cxlraid stop`) while we waited for it: then the next one to open it would make another.
        if stat.st_nlink != 0 {
            return Ok((file, stat));
        }
    }
}

fn examine(file: &OwnedFd, access: Access) -> Result<()> {
    let stat = fs::fstat(file)?;
    let own = [access.owner_uid, 0, sys::rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    if own && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile { Ok(()) } else { Err(OsError::PERM) }
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

    fn open(uuid: Uuid) -> Result<Raised> {
        open_locked(uuid, access(), Mode::RUSR | Mode::WUSR).map(|(file, _)| file)
    }

    #[test]
    fn what_others_put_in_its_place_is_not_waited_for() {
        let uuid = Uuid(std::process::id().to_le_bytes().repeat(4).try_into().unwrap());
        let path = segment_path(uuid);
        let own = open(uuid).unwrap();
        assert_eq!(open(uuid).unwrap_err(), OsError::TIMEDOUT, "the lock is held");
        if sys::rustix::process::geteuid().is_root() {
            chownat(CWD, path.as_str(), Some(Uid::from_raw(65534)), Some(Gid::from_raw(65534)), fs::AtFlags::empty()).unwrap();
            let begin_ns = sys::clock::monotonic_ns();
            assert_eq!(open(uuid).unwrap_err(), OsError::PERM);
            assert!(sys::clock::monotonic_ns() - begin_ns < WAIT_SECONDS * 500_000_000, "it was waited for");
        }
        drop(own);
        unlink(path.as_str()).unwrap();
        mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = open(uuid).map(drop);
        unlink(path.as_str()).unwrap();
        assert_eq!(refused, Err(OsError::PERM));
    }
}
