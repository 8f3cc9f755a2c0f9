//! What a copy tells while it runs: how far it is, what it leaves out, and what it cannot keep.
//!
//! Invariants: each name that is not copied as it should be is told of in a line of its own, and a
//! copy with such names fails in the end. What the target cannot keep of a file whose content is
//! whole is a warning, and no failure.

use crate::{
    failure::Failure,
    tree::{Kind, Tree},
    view::shown,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    cell::Cell,
    io::{self, IsTerminal as _},
    path::Path,
};
use sys::{OsError, rustix::fs::FileType};

/// Shorter copies end before a bar could be read.
const BAR_BYTES_MIN: u64 = 64 << 20;

/// Why a name is not copied as it should be.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) failure: Failure,
    /// Whether the other names would meet the same, so that the copy ends.
    pub(crate) ends: bool,
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self { failure, ends: false }
    }
}

/// What a copy has told and has to tell.
pub(crate) struct Report {
    /// Whether the copy goes on without what cannot be copied: not where one file was asked for.
    goes_on: bool,
    bar: ProgressBar,
    /// How many names were left out or copied in part. Each was told of.
    left: Cell<usize>,
    /// Whether it was said that the target has no extended attributes.
    told: Cell<bool>,
}

impl Report {
    /// `bytes` adds up what is to be copied. It is asked only where a bar can be shown.
    pub(crate) fn new(goes_on: bool, bytes: impl FnOnce() -> u64) -> Self {
        let bar = if io::stderr().is_terminal() { bar(bytes()) } else { ProgressBar::hidden() };
        Self { goes_on, bar, left: Cell::new(0), told: Cell::new(false) }
    }

    /// Shows what is copied now.
    pub(crate) fn show(&self, target: &Path) {
        self.bar.set_message(shown(&target.to_string_lossy()));
    }

    /// Counts bytes that are copied.
    pub(crate) fn count(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Tells of a name that is left out or copied in part, unless the copy ends with it.
    pub(crate) fn leave(&self, fault: Fault) -> Result<(), Failure> {
        if fault.ends || !self.goes_on {
            return Err(fault.failure);
        }
        self.left.set(self.left.get() + 1);
        self.tell(&fault.failure);
        Ok(())
    }

    /// Says once that the target has no extended attributes.
    pub(crate) fn warn_of_attributes(&self, warning: &Failure) {
        if !self.told.replace(true) {
            self.tell(warning);
        }
    }

    /// Says something beside the bar.
    pub(crate) fn tell(&self, line: &Failure) {
        self.bar.suspend(|| say!("{line}"));
    }

    /// Takes the bar away. The failure, if names of `source` were left out or copied in part, says
    /// to do what `todo` says.
    pub(crate) fn end(&self, source: &Path, todo: &str) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let what = match self.left.get() {
            0 => return Ok(()),
            1 => "1 name was left out or copied in part".to_owned(),
            left => format!("{left} names were left out or copied in part"),
        };
        Err(Failure::new(source.display(), what, format!("correct what is said of each, then {todo}")))
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left.get()
    }
}

/// A bar for a long copy, otherwise one that shows nothing.
fn bar(total_bytes: u64) -> ProgressBar {
    if total_bytes < BAR_BYTES_MIN {
        return ProgressBar::hidden();
    }
    let template = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {wide_msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total_bytes).with_style(style)
}

/// What a file of this kind is called.
pub(crate) const fn called(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Special(FileType::Fifo) => "pipe",
        Kind::Special(FileType::Socket) => "socket",
        Kind::Special(FileType::BlockDevice) => "block device",
        Kind::Special(FileType::CharacterDevice) => "character device",
        Kind::Special(_) => "file of an unknown kind",
    }
}

/// The fault of what cannot be read, with what `tree` knows of it beyond the error.
pub(crate) fn unread(tree: &dyn Tree, path: &Path, error: &io::Error) -> Failure {
    match tree.why_unread(path, error) {
        Some(why) => Failure::new(path.display(), format!("cannot be read: {error}: {why}"), "correct it, then copy again"),
        None => Failure::new(path.display(), format!("cannot be read: {error}"), remedy(error)),
    }
}

/// The fault of a copy in whose place something of another kind is.
pub(crate) fn in_the_way(target: &Path, kind: Kind) -> Fault {
    if kind == Kind::Symlink {
        return unmade(target, "be created", &OsError::LOOP.into());
    }
    let what = format!("cannot be created: a {} is there", called(kind));
    Failure::new(target.display(), what, "give another path, or remove it").into()
}

/// The fault of a copy that cannot be made or changed as `what` says. It ends the copy where
/// nothing can be stored any more.
pub(crate) fn unmade(target: &Path, what: &str, error: &io::Error) -> Fault {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let failure = if error.raw_os_error() == Some(OsError::LOOP.raw_os_error()) {
        let what = format!("cannot {what}: it is a symbolic link");
        Failure::new(target.display(), what, "name what it leads to, or remove it")
    } else {
        Failure::new(target.display(), format!("cannot {what}: {error}"), remedy(error))
    };
    Fault { failure, ends: matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check its permissions",
        io::ErrorKind::AlreadyExists => "remove it first",
        io::ErrorKind::StorageFull => "make room, then copy again",
        _ => "correct the cause, then copy again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_ends_where_nothing_can_be_stored() {
        let fault = |error: OsError| unmade(Path::new("/x"), "be created", &error.into());
        for error in [OsError::NOSPC, OsError::DQUOT, OsError::ROFS] {
            assert!(fault(error).ends, "{error:?}");
        }
        assert!(!fault(OsError::ACCESS).ends);
        assert_eq!(
            fault(OsError::LOOP).failure.to_string(),
            "cxlraid: /x: cannot be created: it is a symbolic link; name what it leads to, or remove it"
        );
    }
}
