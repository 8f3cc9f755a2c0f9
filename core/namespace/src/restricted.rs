//! openat2(2) with RESOLVE_*: how far a path may lead is for the kernel to say, which walks it on the first member. What it finds is then
//! opened by its name.

use crate::{Namespace, Opened, ProgramPath, Reached};
use sys::high_fd::Raised;
use sys::rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sys::{AsFd, BorrowedFd, OsError, Result};

impl Namespace {
    /// Opens `path`, relative to a directory of the array or, without one, absolute and logical.
    ///
    /// # Errors
    /// `XDEV`, `LOOP`, `AGAIN` as the kernel gives them for the restriction, and those of [`Self::open`].
    pub fn open_restricted(
        &self,
        base: Option<BorrowedFd<'_>>,
        path: &[u8],
        flags: OFlags,
        mode: u32,
        resolve: ResolveFlags,
    ) -> Result<Reached<Opened>> {
        let kept = flags & (OFlags::NOFOLLOW | OFlags::DIRECTORY);
        // Out of the program's way: its new descriptor has the number it would have on a plain directory.
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
            Err(OsError::NOENT) if flags.contains(OFlags::CREATE) => {
                let (parent, name) = split(path);
                if name.is_empty() {
                    return Err(OsError::ISDIR);
                }
                let parent = look(parent, OFlags::DIRECTORY)?;
                let parent = self.logical_path_of(parent.as_fd())?.ok_or(OsError::XDEV)?;
                // A symlink that leads to nothing is not followed: it might lead out.
                let path = [parent.as_slice(), b"/", name].concat();
                self.open(ProgramPath::known(&path), flags | OFlags::NOFOLLOW, mode)
            }
            Err(error) => Err(error),
        }
    }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b".", path),
    }
}
