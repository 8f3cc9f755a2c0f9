//! A directory in which a member is about to be made belongs to one process meanwhile.
//!
//! The fault it exists for: two arrays take one directory. Both look at it and find it empty, and the
//! superblock of the second replaces that of the first, whose member is in sync by then. So a process
//! that makes a member has the directory locked (flock(2)) from its look at what is there until a
//! superblock says whose it is. Whoever has waited for the lock finds that superblock.

use crate::error::AttachError;
use crate::member::{Finding, inspect};
use crate::waiting::{self, WAIT_SECONDS};
use alloc::vec::Vec;
use sys::rustix::fs::{self, FlockOperation, Mode, OFlags, flock, fstat};
use sys::{AsFd, OsError, OwnedFd, Result};

/// The seconds that a process waits for a directory while it keeps others from attaching to an array.
const SHORT_WAIT_SECONDS: u64 = if cfg!(test) { 1 } else { 5 };

/// The lock on a directory, given back when this is dropped.
pub(crate) struct Claim<F: AsFd>(F);

impl<F: AsFd> Drop for Claim<F> {
    fn drop(&mut self) {
        // A child process may have the descriptor, and would keep the lock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes the directory at a member's path for this process, and then looks at what is there, as
/// [`inspect`] does. The claim is None where there is no directory that this process may open.
///
/// # Errors
/// `BUSY` if another process keeps the directory; `STALE` if another directory lies at the path
/// meanwhile; the errors of [`inspect`].
pub(crate) fn inspect_alone(path: &[u8]) -> core::result::Result<(Option<Claim<OwnedFd>>, Finding), AttachError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = fs::open(path, flags, Mode::empty()) else { return inspect(path).map(|finding| (None, finding)) };
    let failed = |error| AttachError::os(path, "take", error);
    let claim = lock(root, SHORT_WAIT_SECONDS).map_err(failed)?;
    let finding = inspect(path)?;
    let is_same = |root: &OwnedFd| Ok::<_, OsError>(identity(root)? == identity(&claim.0)?);
    match finding.root().map(is_same) {
        Some(Ok(false)) => Err(failed(OsError::STALE)),
        Some(Err(error)) => Err(failed(error)),
        Some(Ok(true)) | None => Ok((Some(claim), finding)),
    }
}

/// Takes the directories in which an array is to be made, which are distinct. Two processes that want
/// some of the same directories take them in one order.
///
/// # Errors
/// `BUSY` if another process keeps one of them, whose place in `roots` is returned, and what the kernel
/// says.
pub(crate) fn take_all<'a>(roots: &[&'a OwnedFd]) -> core::result::Result<Vec<Claim<&'a OwnedFd>>, (usize, OsError)> {
    let mut order: Vec<(u64, u64, usize)> = Vec::with_capacity(roots.len());
    for (place, root) in roots.iter().enumerate() {
        let (device, inode) = identity(root).map_err(|error| (place, error))?;
        order.push((device, inode, place));
    }
    order.sort_unstable();
    let mut claims = Vec::with_capacity(roots.len());
    for (_, _, place) in order {
        claims.push(lock(roots[place], WAIT_SECONDS).map_err(|error| (place, error))?);
    }
    Ok(claims)
}

fn lock<F: AsFd>(root: F, seconds: u64) -> Result<Claim<F>> {
    match waiting::lock_within(&root, seconds) {
        Ok(()) => Ok(Claim(root)),
        Err(OsError::TIMEDOUT) => Err(OsError::BUSY),
        Err(error) => Err(error),
    }
}

fn identity(root: &OwnedFd) -> Result<(u64, u64)> {
    fstat(root).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use crate::test_array::{Home, three_members};
    use crate::{Array, Config, superblock};
    use layout::Level;
    use std::time::Duration;
    use sys::OwnedFd;
    use sys::rustix::fs::{FlockOperation, flock};

    fn open(home: &Home, member: &str) -> OwnedFd {
        OwnedFd::from(std::fs::File::open(home.path(member)).unwrap())
    }

    fn belongs_to(home: &Home, member: &str) -> format::Uuid {
        superblock::read(&open(home, &std::format!("{member}/.cxlraid"))).unwrap().0.array_uuid
    }

    fn remove_segment(uuid: format::Uuid) {
        let _ = std::fs::remove_file(crate::runtime::segment_path(uuid));
    }

    /// Runs `begin` while another process has the directory and makes it a member of its own array.
    fn beside<T: Send>(home: &Home, member: &str, begin: impl FnOnce() -> T + Send) -> T {
        let (theirs, config) =
            three_members(&std::format!("{}-theirs", home.path("").file_name().unwrap().display()), Level::Raid1);
        remove_segment(Array::attach(&config).unwrap().uuid());
        let held = open(home, member);
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let result = std::thread::scope(|scope| {
            let began = scope.spawn(begin);
            std::thread::sleep(Duration::from_millis(300));
            std::fs::rename(theirs.path("m2/.cxlraid"), home.path(member).join(".cxlraid")).unwrap();
            flock(&held, FlockOperation::Unlock).unwrap();
            began.join().unwrap()
        });
        assert_eq!(belongs_to(home, member), belongs_to(&theirs, "m0"));
        remove_segment(belongs_to(&theirs, "m0"));
        result
    }

    /// An array of which the last member is lost, and an empty directory in its place.
    fn without_last(name: &str) -> (Home, Config, Array) {
        let (home, config) = three_members(name, Level::Raid1);
        let array = Array::attach(&config).unwrap();
        std::fs::rename(home.path("m2"), home.path("lost")).unwrap();
        array.fail_member(2).unwrap();
        array.before_change().unwrap();
        std::fs::create_dir(home.path("m2")).unwrap();
        (home, config, array)
    }

    #[test]
    fn what_another_array_has_taken_meanwhile_is_not_begun() {
        let (home, _config, array) = without_last("claim-begin");
        let error = beside(&home, "m2", || array.begin_member(2, None).unwrap_err());
        assert!(matches!(error, crate::AttachError::OtherArray { .. }), "{error}");
        remove_segment(array.uuid());
    }

    #[test]
    fn what_another_array_has_taken_meanwhile_is_no_successor() {
        let (home, config) = three_members("claim-successor", Level::Raid1);
        let array = Array::attach(&config).unwrap();
        std::fs::create_dir(home.path("new")).unwrap();
        let path = std::os::unix::ffi::OsStringExt::into_vec(home.path("new").into_os_string());
        let error = beside(&home, "new", || array.begin_successor(2, &path).map(drop).unwrap_err());
        assert!(matches!(error, crate::AttachError::OtherArray { .. }), "{error}");
        remove_segment(array.uuid());
    }

    #[test]
    fn no_array_is_made_of_what_another_has_taken_meanwhile() {
        let (home, config) = three_members("claim-create", Level::Raid1);
        // The other array is found in the directories then, or the start is refused.
        let _ = beside(&home, "m1", || Array::attach(&config).map(drop));
        assert!(!home.path("m0/.cxlraid").exists() && !home.path("m2/.cxlraid").exists());
    }

    #[test]
    fn a_directory_that_somebody_keeps_is_not_waited_for_for_ever() {
        let (home, _config, array) = without_last("claim-kept");
        let held = open(&home, "m2");
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let error = array.begin_member(2, None).unwrap_err();
        assert_eq!(error.os_error(), sys::OsError::BUSY, "{error}");
        assert_eq!(std::fs::read_dir(home.path("m2")).unwrap().count(), 0);
        remove_segment(array.uuid());
    }
}
