//! openat2(2) with RESOLVE_*: the kernel decides how far a path may lead, and walks it on the lowest
//! member. The file that it finds is then opened by its logical path.

use crate::resolve::without_slashes;
use crate::{Namespace, Opened, ProgramPath, Reached};
use alloc::vec::Vec;
use sys::high_fd::Raised;
use sys::rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat};
use sys::{AsFd, BorrowedFd, OsError, Result};

impl Namespace {
    /// Opens `path`, relative to a directory of the array or, without one, absolute and logical.
    ///
    /// # Errors
    /// `XDEV`, `LOOP`, `AGAIN` as the kernel gives them for the restriction, and the errors of
    /// [`Self::open`].
    pub fn open_restricted(
        &self,
        base: Option<BorrowedFd<'_>>,
        path: &[u8],
        flags: OFlags,
        mode: u32,
        resolve: ResolveFlags,
    ) -> Result<Reached<Opened>> {
        let mut kept = flags & (OFlags::NOFOLLOW | OFlags::DIRECTORY);
        if flags.contains(OFlags::CREATE | OFlags::EXCL) {
            // A last symlink is in the way of what is to be made, wherever it leads (open(2)).
            kept |= OFlags::NOFOLLOW;
        }
        // The descriptor that is looked with is raised, out of the program's way. So the program's
        // new descriptor gets the number that it would get on a plain directory.
        let look = |path: &[u8], kept: OFlags| -> Result<Raised> {
            let flags = OFlags::PATH | OFlags::CLOEXEC | kept;
            let found = match base {
                Some(base) => openat2(base, path, flags, Mode::empty(), resolve),
                None => {
                    let inside = resolve.difference(ResolveFlags::BENEATH) | ResolveFlags::IN_ROOT;
                    self.on_first(|root| openat2(root, path, flags, Mode::empty(), inside))
                }
            };
            found.and_then(Raised::new)
        };
        match look(path, kept) {
            Ok(found) => {
                let path = self.logical_path_of(found.as_fd())?.ok_or(OsError::XDEV)?;
                self.open(ProgramPath::known(&path), flags, mode)
            }
            // The path ends with a slash, so it asks to make a directory, which open(2) refuses. The
            // kernel follows no symlink with the last name then. It only looks whether the directory
            // is there in which the name would lie.
            Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::XDEV)
                if flags.contains(OFlags::CREATE) && path.ends_with(b"/") && !matches!(split(path).1, b"." | b"..") =>
            {
                look(split(path).0, OFlags::DIRECTORY)?;
                Err(OsError::ISDIR)
            }
            Err(OsError::NOENT) if flags.contains(OFlags::CREATE) => self.make_restricted(path, flags, mode, look),
            Err(error) => Err(error),
        }
    }

    /// Makes a file that is not there. A symlink that leads to nothing is followed step by step, and
    /// for each step the kernel is asked whether the restriction allows it.
    fn make_restricted(
        &self,
        path: &[u8],
        flags: OFlags,
        mode: u32,
        look: impl Fn(&[u8], OFlags) -> Result<Raised>,
    ) -> Result<Reached<Opened>> {
        let mut path = path.to_vec();
        for _ in 0..LINK_COUNT_MAX {
            let (parent, name) = split(&path);
            let directory = look(parent, OFlags::DIRECTORY)?;
            let follows = !flags.intersects(OFlags::NOFOLLOW | OFlags::EXCL);
            let link = look(&path, OFlags::NOFOLLOW).ok().filter(|_| follows);
            let target = link.and_then(|link| readlinkat(&*link, c"", Vec::new()).ok());
            let Some(target) = target else {
                let directory = self.logical_path_of(directory.as_fd())?.ok_or(OsError::XDEV)?;
                let path = [directory.as_slice(), b"/", name].concat();
                return self.open(ProgramPath::known(&path), flags | OFlags::NOFOLLOW, mode);
            };
            let target = target.as_bytes();
            path = if target.starts_with(b"/") { target.to_vec() } else { [parent, b"/", target].concat() };
            if path.ends_with(b"/") {
                return Err(OsError::ISDIR);
            }
        }
        Err(OsError::LOOP)
    }
}

/// Symlinks followed before a path is taken for a loop (path_resolution(7)).
const LINK_COUNT_MAX: u32 = 40;

/// Splits a path into the directory and the last name, which has no slashes behind it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let path = without_slashes(path);
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b".", path),
    }
}
