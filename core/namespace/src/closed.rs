//! Files and directories that a later member closes to their owner, whom the lowest member lets in:
//! somebody has changed a mode there by hand (`chmod 000 MEMBER/data/d`).
//!
//! The lowest member's modes decide, so the owner's own process gives the owner the rights there
//! that the lowest member gives him. The group and others get no rights by it: nothing proves the
//! lowest member's mode well enough to let anybody else in by it. Another user must not be able to
//! choose what is changed. That user may put any file of the owner's at the name on that member,
//! where the user may write to the directory. So:
//!
//! - the process changes only what belongs to the user as whom it looks at files, on the lowest
//!   member and on the later one;
//! - of a file, both members' tables of backing files must prove, before its mode is changed, that
//!   it is the same file of the array. Its attribute must say so as well: that shows only when the
//!   file can be read. The rights are taken back if the attribute is another file's;
//! - nothing proves a directory. It is changed where nobody but this user, root and the array's
//!   owner may change names on the way to it, on either member;
//! - the owner alone gets rights, none that the lowest member does not give, and no set-ID or
//!   sticky bit is given;
//! - nothing is changed in a user namespace other than the first, where several users look alike;
//! - the namespace lock is held, under which programs change modes.
//!
//! A mode is changed only if it lacks a right of the owner's. What is open to the owner and closed
//! to others stays so.

use crate::Namespace;
use crate::attributes::ANCHOR;
use crate::located::open_below;
use crate::open::Trouble;
use format::Attribute;
use sys::high_fd::Raised;
use sys::rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, chmodat, fstat};
use sys::{AsFd as _, AsRawFd as _, OsError, Result};
use units::Slot;

/// The owner's rights in a mode.
const OWNER: u32 = 0o700;
/// Modes with one of these rights let others change the names in a directory.
const SHARED: u32 = 0o022;
/// The bits that chmod(2) sets: rights, set-ID bits and the sticky bit.
const MODE: u32 = 0o7777;

/// A file or directory that a member has at a logical path.
struct Seen {
    slot: Slot,
    /// Opened with O_PATH.
    fd: Raised,
    stat: Stat,
}

impl Seen {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    fn chmod(&self, mode: u32) -> Result<()> {
        chmodat(CWD, crate::descriptor::link(self.fd.as_raw_fd()), Mode::from_raw_mode(mode & MODE), AtFlags::empty())
    }
}

impl Namespace {
    /// Attaches to the file at a logical path, which the lowest member permits this process. If a
    /// member refuses it, and is closed to the file's owner by mistake, the member is opened and
    /// `attach` called once more.
    pub(crate) fn letting_owner_in<T>(
        &self,
        path: &[u8],
        attach: impl Fn() -> core::result::Result<T, Trouble>,
    ) -> core::result::Result<T, Trouble> {
        match attach() {
            Err(Trouble::Os(OsError::ACCESS)) if self.open_closed(path) => attach(),
            attached => attached,
        }
    }

    /// Opens what is at a logical path to its owner, this process' user, on all members but the
    /// lowest. Returns whether anything was changed, and what was refused is to be tried again.
    fn open_closed(&self, path: &[u8]) -> bool {
        let open = || {
            let others = self.array().in_use().without(self.array().first_in_use()?);
            Ok(others.iter().filter(|&slot| self.open_closed_on(slot, &[path])).count() > 0)
        };
        self.with_names_held(open).unwrap_or(false)
    }

    /// Does what [`Self::open_closed`] does for several paths on one member, whose use the lowest
    /// member has permitted. The namespace lock is held.
    pub(crate) fn open_closed_on(&self, slot: Slot, paths: &[&[u8]]) -> bool {
        let Some(first) = self.array().first_in_use().ok().filter(|&first| first != slot) else { return false };
        if !is_in_first_user_namespace() {
            return false;
        }
        let user = sys::task::file_user();
        paths.iter().filter(|path| self.open_way(first, slot, path, user)).count() > 0
    }

    /// Opens the directories on the way to a path, and what is there.
    fn open_way(&self, first: Slot, slot: Slot, path: &[u8], user: u32) -> bool {
        let is_kept = |stat: &Stat| (self.array().trusts(stat.st_uid) || stat.st_uid == user) && stat.st_mode & SHARED == 0;
        let root = |slot| self.root(slot).and_then(fstat);
        let (Ok(first_root), Ok(root)) = (root(first), root(slot)) else { return false };
        // True as long as nobody else may change names on the way.
        let mut is_own_way = is_kept(&first_root) && is_kept(&root);
        let mut is_opened = false;
        let ends = path.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
        for part in ends.chain([path.len()]).filter_map(|end| path.get(..end)) {
            let (Ok(model), Ok(seen)) = (self.seen(first, part), self.seen(slot, part)) else { break };
            // Anything else may be mounted there.
            if seen.stat.st_dev != root.st_dev {
                break;
            }
            if [&model, &seen].iter().all(|seen| seen.stat.st_uid == user) {
                is_opened |= self.let_owner_in(&model, &seen, is_own_way);
            }
            is_own_way &= is_kept(&model.stat) && is_kept(&seen.stat);
        }
        is_opened
    }

    fn seen(&self, slot: Slot, path: &[u8]) -> Result<Seen> {
        let relative = path.get(1..).unwrap_or_default();
        let fd = open_below(self.root(slot)?, relative, ANCHOR, Mode::empty()).and_then(Raised::new)?;
        let stat = fstat(&*fd)?;
        Ok(Seen { slot, fd, stat })
    }

    /// Gives the owner of what a later member has the rights that the lowest member gives
    /// (`model`), if it is the same, and closed to its owner. Both are this process' user's.
    /// Returns whether it was changed.
    fn let_owner_in(&self, model: &Seen, seen: &Seen, is_own_way: bool) -> bool {
        let (wanted, present) = (model.stat.st_mode, seen.stat.st_mode);
        let missing = wanted & OWNER & !present;
        if missing == 0 || model.kind() != seen.kind() {
            return false;
        }
        match seen.kind() {
            FileType::Directory => is_own_way && seen.chmod(present | missing).is_ok(),
            FileType::RegularFile => match self.proven_alike(model, seen) {
                Some(attribute) => seen.chmod(present | missing).is_ok() && self.is_said(seen, attribute),
                None => false,
            },
            _ => false,
        }
    }

    /// The attribute of a file of the lowest member, if the tables prove that a later member's file
    /// is of the same inode.
    fn proven_alike(&self, model: &Seen, seen: &Seen) -> Option<Attribute> {
        let attribute = self.attribute_named(model.slot, model.fd.as_fd()).ok()??;
        let is_proven = |seen: &Seen| self.files().is_proven_backing(seen.slot, attribute, seen.stat.st_ino);
        ([seen, model].into_iter().all(is_proven) && self.files().told_of_named(attribute).is_some()).then_some(attribute)
    }

    /// Tells whether a file that this process has just let its owner read has an attribute. If it
    /// has not, the file gets its mode back.
    fn is_said(&self, seen: &Seen, attribute: Attribute) -> bool {
        let is_it = self.attribute_named(seen.slot, seen.fd.as_fd()) == Ok(Some(attribute));
        // Where the mode cannot be given back, the owner alone has more rights than before.
        let _ = (!is_it).then(|| seen.chmod(seen.stat.st_mode));
        is_it
    }
}

/// Tells whether each user of this process' user namespace is that user of the machine. Elsewhere
/// all users whom the namespace does not know have one number (user_namespaces(7)). False if /proc
/// does not say it.
fn is_in_first_user_namespace() -> bool {
    let map = array::proc_file::read("/proc/thread-self/uid_map");
    let numbers = map.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    numbers.eq([b"0".as_slice(), b"0", b"4294967295"])
}
