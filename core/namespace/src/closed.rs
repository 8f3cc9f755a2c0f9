//! What is closed on a later member to a user whom the lowest member lets in: somebody has changed a mode there by hand
//! (`chmod 000 MEMBER/data/d`), or the user's own program died between two members of a chmod.
//!
//! The lowest member's modes decide, and its kernel has decided already when a later member refuses. So that member is given
//! the lowest one's mode, which its kernel permits the file's owner alone; nothing of it is believed that others could have made.

use crate::Namespace;
use crate::attributes::ANCHOR;
use crate::located::open_below;
use sys::AsRawFd as _;
use sys::rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, fstat};
use units::Slot;

impl Namespace {
    /// Gives what a later member has at logical paths, and the directories on the way there, the lowest member's modes, as far as this
    /// process may. Returns whether any mode was changed, and what was refused is to be tried again.
    pub(crate) fn open_closed(&self, slot: Slot, paths: &[&[u8]]) -> bool {
        let Some(first) = self.array().first_in_use().ok().filter(|&first| first != slot) else { return false };
        let mut is_opened = false;
        for path in paths {
            let ends = path.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
            for part in ends.chain([path.len()]).filter_map(|end| path.get(..end)) {
                is_opened |= self.follow_mode_of(first, slot, part);
            }
        }
        is_opened
    }

    fn follow_mode_of(&self, first: Slot, slot: Slot, path: &[u8]) -> bool {
        let named = |slot| {
            let fd = open_below(self.root(slot).ok()?, path.get(1..)?, ANCHOR, Mode::empty()).ok()?;
            let stat = fstat(&fd).ok()?;
            Some((fd, FileType::from_raw_mode(stat.st_mode), Mode::from_raw_mode(stat.st_mode & 0o7777)))
        };
        let (Some((_, kind, mode)), Some((fd, kind_there, mode_there))) = (named(first), named(slot)) else { return false };
        // A symlink has no mode.
        if kind != kind_there || kind == FileType::Symlink || mode == mode_there {
            return false;
        }
        let link = crate::descriptor::link(fd.as_raw_fd());
        chmodat(CWD, link.as_slice(), mode, AtFlags::empty()).is_ok()
    }
}
