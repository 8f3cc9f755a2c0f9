//! Names of one array: what a path or descriptor of the program means, and changes of names on all
//! members.
//!
//! Every member carries the whole tree at the same paths. A *logical path* is absolute as the
//! program sees it (`/data/x`); on a member it lies below the member's directory. The lowest member
//! in use answers look-ups and its files are the *anchors*, the descriptors that programs get.
//! Changes are made on it first and its result decides; the others follow.
//!
//! Invariants:
//! - changes run under the array's namespace lock, and after `Array::before_change`;
//! - a change that one member refuses (no space, say) is undone on those that made it; a member
//!   that cannot follow is taken out;
//! - a change is noted in the log before it is made. A change that was cut short is made good from
//!   the log before the next one, and after a crash before the first look-up (`log`, `replay`;
//!   `recover` where the log does not help);
//! - paths are never handed to a member's kernel with symlinks to follow: symlinks are the
//!   program's and may lead out of the array (`resolve`). What is changed on a member is reached
//!   beneath its root without any symlink, whatever has been put there (`located`).
//!
//! The name of a new file is visible before its attribute is on it. A process that finds a file
//! without attribute, or one that differs between members, takes the namespace lock and looks again
//! (`open`). If the file is still half made then, its maker has died, and the file is completed.
//!
//! Lock order: the namespace lock comes before all locks but that of the process' table of mappings
//! (ARCHITECTURE.md). Errors are the system's (`OsError`).
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod absent;
mod attributes;
mod backing;
mod change;
mod closed;
mod create;
mod deep;
mod descriptor;
mod detached;
mod everywhere;
mod failing;
mod fill;
mod find;
mod foreign;
pub mod handover;
mod host;
mod leaving;
mod located;
mod log;
mod mounts;
mod no_room;
mod open;
mod opened;
mod path;
mod recover;
mod relink;
mod remembered;
mod replace;
mod replay;
mod resolve;
mod restricted;
mod scrub;
mod special;
mod stat;
mod statfs;
mod sticky;
mod supplant;
mod sync;
mod target;
mod text;
mod twin;
mod unrecorded;
mod waiting;
mod xattr;

pub use backing::is_backing;
pub use change::HostPair;
pub use deep::{
    current_directory, current_directory_by_link, is_directory_of_a_member, is_of_a_member, lies_below_tables, told_ancestor,
};
pub use descriptor::{DELETED, link};
pub use fill::{Content, FillError, Joiner, begin, fill, prove};
pub use mounts::{FOREIGN_MOUNT, mounts_in_members};
pub use path::ProgramPath;
pub use replace::{Held, beside};
pub use resolve::without_slashes;
pub use scrub::{Difference, NameMismatch, Scanned, TIME_TOLERANCE_NS};
pub use sys::rustix::fs::{
    Access, AtFlags, FileType, OFlags, RenameFlags, ResolveFlags, Stat, StatFs, Statx, StatxFlags, Timestamps, XattrFlags,
};
pub use text::{hold_text, holds_text};
pub use twin::Twin;

use alloc::boxed::Box;
use alloc::vec::Vec;
use array::Array;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use file::{FileRef, Files};
use sys::rustix::fs::{fstat, readlinkat};
use sys::{AsRawFd, OsError, OwnedFd, Result};
use units::Slot;

/// The names of one array. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Namespace {
    files: &'static Files,
    /// Where the kernel says each member's directory is, by slot; empty for a missing member.
    /// Symlinks on the way are resolved.
    roots: &'static [Vec<u8>],
    /// The device number of each member's file system (st_dev), of those that are here.
    devices: &'static [u64],
    remembered: &'static remembered::Remembered,
    /// Another process may change this one's umask (clone(2) with CLONE_FS and memory of its own).
    shares_umask: &'static AtomicBool,
    log: &'static log::Log,
    /// The thread of this process that has the namespace lock; 0 if none has.
    holder: &'static AtomicU32,
    /// Whether that thread is in the middle of a mend ([`Self::mending`]), and of which kind; 0 if
    /// not.
    mends: &'static AtomicU32,
    /// Whether a sandbox has kept this process from a change of names on some members: it makes
    /// nothing good that is left unfinished.
    is_sandboxed: &'static AtomicBool,
    /// Whether this process has matched names and records ([`Self::match_records`]).
    has_matched: &'static AtomicBool,
}

/// What a descriptor of the program stands for.
#[derive(Clone)]
pub enum Node {
    /// A file whose bytes are on all members: reads and writes go through this.
    File(FileRef),
    /// A directory: the anchor serves it, but for names that are hidden ([`Namespace::hides`]),
    /// until its member is lost. Then the twin does, if there is one.
    Directory(Option<Twin>),
    /// A pipe, socket or device: the anchor alone serves it.
    Other,
    /// A file handed to this process whose backing files it cannot find or may not open. The anchor
    /// alone holds a part of it at most, so nothing is to be read or written there.
    Lost,
    /// Opened with O_PATH: it only names something. [`Namespace::fstat`] tells what. A directory
    /// may have a twin.
    Path(Option<Twin>),
}

impl Node {
    /// The twin of a directory.
    #[must_use]
    pub const fn twin(&self) -> Option<&Twin> {
        match self {
            Self::Directory(twin) | Self::Path(twin) => twin.as_ref(),
            _ => None,
        }
    }
}

/// A descriptor for the program.
pub struct Opened {
    /// The kernel's descriptor: the backing file on the lowest member in use, at the lowest free
    /// number, with the program's flags.
    pub anchor: OwnedFd,
    /// What it stands for.
    pub node: Node,
    /// Its logical path when it was opened; of an unnamed file, that of its directory.
    pub path: Vec<u8>,
    /// True if the call that opened the file has made it.
    pub is_made: bool,
    /// True if the anchor is open by O_PATH alone (and the node is [`Node::Other`]): to open what it
    /// leads to may have to wait for another process, and a signal is to be handled first
    /// ([`sys::waiting`]). The caller opens it by its link.
    pub waits: bool,
}

/// Where a path led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached<T, H = Vec<u8>> {
    /// Into the array, with this result.
    Array(T),
    /// Out of it: a symlink, or the path itself. The absolute host path (or paths) to give to the
    /// kernel instead.
    Host(H),
}

/// A resolved path: logical, with symlinks only as its last component and only if that was asked
/// for; or the host's.
pub type Place = Reached<Vec<u8>>;

impl<T, H> Reached<T, H> {
    /// Goes on with what was reached in the array.
    pub(crate) fn and_then<U>(self, next: impl FnOnce(T) -> Result<U>) -> Result<Reached<U, H>> {
        match self {
            Self::Array(value) => next(value).map(Reached::Array),
            Self::Host(path) => Ok(Reached::Host(path)),
        }
    }
}

impl Namespace {
    /// The names of an array. Kept for the life of the process. After a crash they are made the
    /// same on all members first.
    pub fn new(files: &'static Files) -> Result<Self> {
        let place = |member: &array::Member| {
            let link = member.root().map(|root| descriptor::link(root.as_raw_fd()));
            link.and_then(|link| readlinkat(sys::rustix::fs::CWD, link.as_slice(), Vec::new()).ok())
                .map_or_else(Vec::new, |path| path.into_bytes())
        };
        let roots: Vec<Vec<u8>> = files.array().members().iter().map(place).collect();
        let device = |member: &array::Member| member.root().and_then(|root| fstat(root).ok()).map(|stat| stat.st_dev);
        let devices: Vec<u64> = files.array().members().iter().filter_map(device).collect();
        let remembered = Box::leak(Box::new(remembered::Remembered::new()));
        let log = Box::leak(Box::new(log::Log::new()));
        let shares_umask = Box::leak(Box::new(AtomicBool::new(false)));
        let holder = Box::leak(Box::new(AtomicU32::new(0)));
        let (mends, is_sandboxed) = (Box::leak(Box::new(AtomicU32::new(0))), Box::leak(Box::new(AtomicBool::new(false))));
        let has_matched = Box::leak(Box::new(AtomicBool::new(false)));
        let (roots, devices) = (Box::leak(roots.into_boxed_slice()), Box::leak(devices.into_boxed_slice()));
        let names = Self { files, roots, devices, remembered, shares_umask, log, holder, mends, is_sandboxed, has_matched };
        names.refuse_emptied(true)?;
        names.recover_after_crash()?;
        names.refuse_emptied(false)?;
        files.array().make_added_prefixes();
        files.set_finder(move |wanted| names.open_wanted(wanted));
        names.begin();
        Ok(names)
    }

    /// From now on the umask may change while a name is made; it must be the same on every member
    /// nevertheless.
    pub fn share_umask(&self) {
        self.shares_umask.store(true, Ordering::Relaxed);
    }

    /// The open files.
    #[must_use]
    pub const fn files(&self) -> &'static Files {
        self.files
    }

    /// Whether an absolute, normalised path belongs to the array (`array::config::normalise`).
    #[inline]
    #[must_use]
    pub fn owns(&self, path: &[u8]) -> bool {
        self.array().config().owns(path)
    }

    /// Whether a device number (st_dev) is that of a member's file system, so that a file there may
    /// be a backing file.
    #[inline]
    #[must_use]
    pub fn is_device_of_member(&self, device: u64) -> bool {
        self.devices.contains(&device)
    }

    /// Whether reading the directory at a logical path must leave `name` out: what the array keeps
    /// in its members is not the program's.
    #[must_use]
    pub fn hides(&self, directory: &[u8], name: &[u8]) -> bool {
        name == format::DIRECTORY.to_bytes() && directory.iter().all(|&byte| byte == b'/')
    }

    /// Where a logical path lies on the member whose answers count, for calls that take no
    /// descriptor of a directory (inotify, extended attributes).
    pub fn anchor_path(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.path_on(self.array().first_in_use()?, path)
    }

    /// As [`Self::anchor_path`] for a process that does not have this process' descriptors: by way
    /// of the member's directory, if that was not renamed.
    pub fn anchor_path_for_others(&self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(self.host_path(self.array().first_in_use()?, path))
    }

    /// Where a logical path lies on a member, for such calls: by way of the descriptor of the
    /// member's root, so that it leads there also when the root has been renamed and nobody has
    /// noticed yet.
    pub(crate) fn path_on(&self, slot: Slot, path: &[u8]) -> Result<Vec<u8>> {
        Ok([descriptor::link(self.root(slot)?.as_raw_fd()).as_slice(), path].concat())
    }

    /// What a logical path is called on a member, for who is told the name (a socket's, a mount's).
    pub(crate) fn host_path(&self, slot: Slot, path: &[u8]) -> Vec<u8> {
        [self.array().members()[slot].path.as_slice(), path].concat()
    }

    pub(crate) fn array(&self) -> &'static Array {
        self.files.array()
    }

    pub(crate) fn root(&self, slot: Slot) -> Result<&'static OwnedFd> {
        self.array().members()[slot].root().ok_or(OsError::NODEV)
    }

    /// Whether a logical path is one of the array's prefixes: it stays, as a mount point does.
    pub(crate) fn is_prefix(&self, path: &[u8]) -> bool {
        self.array().config().prefixes.iter().any(|prefix| prefix == path)
    }
}
