//! What the kernel refuses in directories where everybody may make names and nobody may remove
//! another's (the sticky bit, as of /tmp): to follow a symlink that somebody else has made there,
//! and to open with O_CREAT a file that somebody else has made there (proc_sys_fs(5),
//! protected_symlinks and protected_regular).
//!
//! The kernel judges where it follows a symlink or opens with O_CREAT itself. Here it does neither:
//! the library follows symlinks by their text, and opens what is there without O_CREAT.

use crate::{Namespace, ProgramPath};
use array::proc_file;
use core::sync::atomic::{AtomicU8, Ordering};
use sys::rustix::fs::{FileType, Stat};
use sys::{OsError, Result};

const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;

/// How regular files are protected; [`UNKNOWN`] before that is asked for. It is asked for once,
/// since each open with O_CREAT looks at it.
static REGULAR: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = u8::MAX;

/// A setting of the kernel's that is one digit; 0 if it cannot be read.
fn setting(path: &str) -> u8 {
    proc_file::read(path).first().filter(|digit| digit.is_ascii_digit()).map_or(0, |digit| digit - b'0')
}

fn regular() -> u8 {
    match REGULAR.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = setting("/proc/sys/fs/protected_regular");
            REGULAR.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

impl Namespace {
    /// Whether the kernel would follow a symlink, the last component of a path, that lies in the
    /// directory `parent`.
    ///
    /// # Errors
    /// `ACCESS` if it would not.
    pub(crate) fn check_following(&self, link: &Stat, parent: impl FnOnce() -> Result<Stat>) -> Result<()> {
        const EVERYBODYS: u32 = STICKY | WRITABLE_BY_OTHERS;
        if link.st_uid == sys::task::file_user() {
            return Ok(());
        }
        let parent = parent()?;
        let is_protected = parent.st_mode & EVERYBODYS == EVERYBODYS && parent.st_uid != link.st_uid;
        if is_protected && setting("/proc/sys/fs/protected_symlinks") != 0 { Err(OsError::ACCESS) } else { Ok(()) }
    }

    /// Whether the kernel would open with O_CREAT the file at `text` that is there.
    ///
    /// # Errors
    /// `ACCESS` if it would not.
    pub(crate) fn check_opening_made(&self, path: ProgramPath<'_>, text: &[u8], stat: &Stat) -> Result<()> {
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_regular || regular() == 0 || stat.st_uid == sys::task::file_user() {
            return Ok(());
        }
        let parent = self.stat_of_parent(path, text)?;
        let others = if regular() > 1 { WRITABLE_BY_OTHERS | WRITABLE_BY_GROUP } else { WRITABLE_BY_OTHERS };
        let is_protected = parent.st_mode & STICKY != 0 && parent.st_mode & others != 0 && parent.st_uid != stat.st_uid;
        if is_protected { Err(OsError::ACCESS) } else { Ok(()) }
    }
}
