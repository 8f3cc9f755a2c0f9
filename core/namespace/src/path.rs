//! A path as a program gives it to a call, and which part of the path is known already.
//!
//! A relative path starts at a directory that the program has open (or is in). The kernel's name of
//! that directory is the first part of the path's text; it was walked when the directory was
//! opened. The library never walks it again like a path that the program wrote, with symlinks
//! followed: a user who owns a directory on the way could put a symlink in its place, and lead a
//! program that relies on its open directory anywhere. On the member that the directory lies on,
//! the call is made relative to the directory itself. On the other members the known part is
//! reached without symlinks or not at all.

use crate::{Namespace, Twin};
use alloc::vec::Vec;
use sys::rustix::fs::{CWD, FileType, fstat};
use sys::{AsRawFd, BorrowedFd, OsError, Result};
use units::Slot;

/// A path of the program, absolute.
#[derive(Clone, Copy)]
pub struct ProgramPath<'a> {
    text: &'a [u8],
    /// The length of the text's first part, in which no symlink is to be followed, without the
    /// slash behind it.
    known_bytes: usize,
    start: Option<Start<'a>>,
    /// The error that every call with this path answers, if the path may lead nowhere
    /// ([`Self::refused`]).
    refusal: Option<OsError>,
}

/// An open directory that a path is relative to.
#[derive(Clone, Copy)]
struct Start<'a> {
    directory: BorrowedFd<'a>,
    /// The member that the directory lies on. It is None if the directory lies on what is a member
    /// no more.
    slot: Option<Slot>,
    /// What tells where the directory is when members are lost, with the descriptor that it is the
    /// twin of.
    twin: Option<(BorrowedFd<'a>, &'a Twin)>,
    /// The state of names and members (`Runtime::epochs`) before the kernel was asked what the
    /// directory is called.
    asked_in: Option<[u64; 2]>,
}

impl<'a> ProgramPath<'a> {
    /// A path that begins with an open directory of the array, or with the current directory (the
    /// descriptor `AT_FDCWD`). `text` is the whole: `known_bytes` of it are the directory's logical
    /// path, a slash follows, and then the path relative to the directory. `slot` is the member
    /// that the directory lies on ([`Namespace::placed`]).
    #[must_use]
    pub const fn relative(directory: BorrowedFd<'a>, slot: Option<Slot>, text: &'a [u8], known_bytes: usize) -> Self {
        Self { text, known_bytes, start: Some(Start { directory, slot, twin: None, asked_in: None }), refusal: None }
    }

    /// This path, which starts at an open directory that has a twin. `first` is the descriptor that
    /// the twin was opened for.
    #[must_use]
    pub fn with_twin(self, first: BorrowedFd<'a>, twin: &'a Twin) -> Self {
        Self { start: self.start.map(|start| Start { twin: Some((first, twin)), ..start }), ..self }
    }

    /// This path, which starts at an open directory of which the kernel was asked what it is called
    /// when the state of names and members (`Runtime::epochs`) was `epochs`, or later.
    #[must_use]
    pub fn asked_in(self, epochs: Option<[u64; 2]>) -> Self {
        Self { start: self.start.map(|start| Start { asked_in: epochs, ..start }), ..self }
    }

    /// A path in which no symlink is to be followed: it was found out, not written by the program.
    #[must_use]
    pub const fn known(text: &'a [u8]) -> Self {
        Self { text, known_bytes: text.len(), start: None, refusal: None }
    }

    /// A path with which every call fails: it leads to the array through a directory of the host
    /// that the program may not search (`ACCES`), or starts from a directory that lies deeper than
    /// the kernel tells (`NAMETOOLONG`), or that hangs in the air where its place is not found
    /// (`STALE`, `crate::detached`).
    #[must_use]
    pub const fn refused(error: OsError) -> Self {
        Self { text: b"", known_bytes: 0, start: None, refusal: Some(error) }
    }

    /// Tells whether the path may lead somewhere.
    ///
    /// # Errors
    /// That of [`Self::refused`]; `NOENT` for an empty path (path_resolution(7)).
    pub(crate) const fn leads_somewhere(&self) -> Result<()> {
        match (self.refusal, self.text) {
            (Some(error), _) => Err(error),
            (None, []) => Err(OsError::NOENT),
            (None, _) => Ok(()),
        }
    }

    /// The whole text, beginning with what the kernel called the open directory when it was asked.
    #[must_use]
    pub const fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The part of the path in which no symlink is to be followed.
    pub(crate) fn known_part(&self) -> &'a [u8] {
        &self.text[..self.known_bytes]
    }

    /// Whether the directory that is the first `bytes` of the text has been walked.
    pub(crate) const fn is_known(&self, bytes: usize) -> bool {
        bytes <= self.known_bytes && (self.known_bytes > 0 || self.start.is_some())
    }

    /// Tells whether the path is relative to an open directory.
    pub(crate) const fn is_relative(&self) -> bool {
        self.start.is_some()
    }

    /// Whether the path is relative to something open that is no directory.
    pub(crate) fn starts_at_no_directory(&self) -> bool {
        let Some(start) = self.start.filter(|start| start.directory.as_raw_fd() != CWD.as_raw_fd()) else { return false };
        fstat(start.directory).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory)
    }

    /// Whether two paths start from the same place.
    pub(crate) fn starts_like(&self, other: &Self) -> bool {
        let start = |path: &Self| path.start.map(|start| (start.directory.as_raw_fd(), path.known_bytes));
        start(self) == start(other)
    }

    /// The directory on a member that the path starts from, and the path relative to that: a dot if
    /// it is the directory itself.
    pub(crate) fn on(&self, slot: Slot) -> Option<(BorrowedFd<'a>, &'a [u8])> {
        let start = self.start.filter(|start| start.slot == Some(slot))?;
        let rest = &self.text[self.known_bytes + 1..];
        Some((start.directory, if rest.iter().all(|&byte| byte == b'/') { b"." } else { rest }))
    }

    /// This path cut off behind `bytes` of its text, which reach beyond the known part.
    pub(crate) fn up_to(&self, bytes: usize) -> Self {
        Self { text: &self.text[..bytes], ..*self }
    }

    /// A path with another text that starts from the same open directory, if that text lies below
    /// the directory, too; otherwise one that starts at the root.
    pub(crate) fn leading_to<'b>(&self, text: &'b [u8]) -> ProgramPath<'b>
    where
        'a: 'b,
    {
        let is_below = text.get(self.known_bytes) == Some(&b'/') && text.starts_with(self.known_part());
        match self.start {
            Some(start) if is_below => ProgramPath { text, known_bytes: self.known_bytes, start: Some(start), refusal: None },
            _ => text.into(),
        }
    }
}

impl<'a> From<&'a [u8]> for ProgramPath<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self { text, known_bytes: 0, start: None, refusal: None }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for ProgramPath<'a> {
    fn from(text: &'a [u8; N]) -> Self {
        text.as_slice().into()
    }
}

impl<'a> From<&'a Vec<u8>> for ProgramPath<'a> {
    fn from(text: &'a Vec<u8>) -> Self {
        text.as_slice().into()
    }
}

/// The text of a path that starts from an open directory, with what that is called now.
struct Renewed<'a> {
    text: Vec<u8>,
    known_bytes: usize,
    start: Start<'a>,
}

impl Namespace {
    /// Runs `act` with the path as it is called now: the open directory that it starts from may
    /// have been renamed since it was asked for. With the namespace lock held no program renames it
    /// again before `act` is done.
    ///
    /// # Errors
    /// `NOENT` for a directory that is not in the array any more, and those of `act`.
    pub(crate) fn with_present<'a, T>(&self, path: ProgramPath<'a>, act: impl FnOnce(ProgramPath<'_>) -> Result<T>) -> Result<T> {
        let Some(start) = path.start else { return act(path) };
        let Renewed { text, known_bytes, start } = self.renewed(&path, start)?;
        act(ProgramPath { text: &text, known_bytes, start: Some(start), refusal: None })
    }

    /// Does what [`Self::with_present`] does for a name that `act` makes. The kernel is not asked
    /// again where it is known that it would say the same.
    pub(crate) fn with_present_to_make<'a, T>(
        &self,
        path: ProgramPath<'a>,
        act: impl FnOnce(ProgramPath<'_>) -> Result<T>,
    ) -> Result<T> {
        if path.start.is_some_and(|start| self.is_present(&start)) { act(path) } else { self.with_present(path, act) }
    }

    /// The state of names and members at present, for [`ProgramPath::asked_in`]; None while names are
    /// being changed.
    #[must_use]
    pub fn present_epochs(&self) -> Option<[u64; 2]> {
        self.array().runtime().epochs()
    }

    /// Tells whether an open directory is still called what it was when the kernel was asked: no
    /// directory has changed its place since, and no member has come or gone. A directory that was
    /// removed since, which counts as none of these, lets no name be made in it: the call on the
    /// first member is made relative to it. The current directory may be another one by now, which
    /// another thread has entered.
    fn is_present(&self, start: &Start<'_>) -> bool {
        let is_current = start.directory.as_raw_fd() == CWD.as_raw_fd();
        let is_first = || start.slot.is_some() && self.array().first_in_use().ok() == start.slot;
        !is_current && start.asked_in.is_some() && start.asked_in == self.array().runtime().epochs() && is_first()
    }

    fn renewed<'a>(&self, path: &ProgramPath<'_>, start: Start<'a>) -> Result<Renewed<'a>> {
        let directory = start.twin.map_or(start.directory, |(first, twin)| twin.present(first));
        let (known, slot) = self.place_of(directory)?.ok_or(OsError::NOENT)?;
        let text = [&known, &path.text[path.known_bytes..]].concat();
        Ok(Renewed { text, known_bytes: known.len(), start: Start { directory, slot, ..start } })
    }
}
