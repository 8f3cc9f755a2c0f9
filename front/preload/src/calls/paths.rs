//! What a path argument means: a name of the array, or a path of the host.
//!
//! Most paths of most programs are not the array's, so that is decided first and from few bytes: an
//! absolute path whose first component begins no prefix, or a relative one that can neither climb
//! (`..`) nor come upon a prefix from where it starts, is the host's.
//!
//! A path that cannot be read from the program's memory is the host's: the kernel answers EFAULT or
//! ENAMETOOLONG as it would.

use super::OPEN;
use super::directory::{self, Base, Place};
use super::rights;
use crate::array::{self, Prefixes, prefixes};
use crate::program;
use crate::uapi::PATH_MAX;
use ::array::config::normalise;
use heap::vec::Vec;
use namespace::ProgramPath;
use sys::{AsRawFd, OsError, RawFd};
use units::Slot;

/// How often the kernel is asked where a directory is whose descriptor changes its meaning.
const PLACE_COUNT: u32 = 16;

/// The number that means the current directory.
pub(crate) const AT_FDCWD: RawFd = -100;

/// Where a path leads as far as its text says; symlinks are core/namespace's, and links under /proc
/// those of [`super::magic`].
pub(crate) enum Where {
    /// To this absolute, unresolved path of the array; an empty one leads nowhere (ENOENT).
    Array(Asked),
    /// Elsewhere.
    Host,
}

/// A path of the array as a call gives it.
pub(crate) struct Asked {
    /// Absolute.
    text: Vec<u8>,
    start: Start,
    /// The open directory that the path starts at, if it starts at one.
    base: Option<Base>,
}

/// How a path begins.
#[derive(Clone, Copy)]
enum Start {
    /// At the root.
    Root,
    /// At an open directory of the array, or the current one: its descriptor, the member it lies
    /// on, the length of its path, and the state of names and members before the kernel was asked
    /// for that.
    Open(RawFd, Option<Slot>, usize, Option<[u64; 2]>),
    /// Nothing of it is to be followed.
    Known,
    /// Nowhere, with this error ([`ProgramPath::refused`]).
    Refused(OsError),
}

impl Asked {
    /// A path that starts at the root.
    pub(crate) const fn absolute(text: Vec<u8>) -> Self {
        Self { text, start: Start::Root, base: None }
    }

    /// The path of something that is open, in which no symlink is to be followed.
    pub(crate) const fn known(text: Vec<u8>) -> Self {
        Self { text, start: Start::Known, base: None }
    }

    /// For the array.
    pub(crate) fn path(&self) -> ProgramPath<'_> {
        match self.start {
            Start::Root => self.text.as_slice().into(),
            Start::Open(directory, slot, bytes, epochs) => {
                let path = ProgramPath::relative(directory::borrow(directory), slot, &self.text, bytes).asked_in(epochs);
                match &self.base {
                    Some(Base { descriptor, twin: Some(twin) }) => path.with_twin(directory::borrow(*descriptor), twin),
                    _ => path,
                }
            }
            Start::Known => ProgramPath::known(&self.text),
            Start::Refused(error) => ProgramPath::refused(error),
        }
    }

    /// Tells whether the path may lead somewhere.
    ///
    /// # Errors
    /// As for [`ProgramPath::refused`].
    pub(crate) const fn is_open(&self) -> Result<(), OsError> {
        if let Start::Refused(error) = self.start { Err(error) } else { Ok(()) }
    }

    /// The whole, as far as it is known what the directories on its way are called.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }
}

/// What the path at `address`, relative to `directory`, means.
pub(crate) fn locate(directory: RawFd, address: usize) -> Where {
    let Some(prefixes) = prefixes() else { return Where::Host };
    let mut buffer = [0; PATH_MAX];
    match program::read_string(address, &mut buffer) {
        Ok(path) => locate_text(prefixes, directory, path),
        Err(_) => Where::Host,
    }
}

/// What a path means that is not a string of the program's.
pub(crate) fn locate_bytes(directory: RawFd, path: &[u8]) -> Where {
    prefixes().map_or(Where::Host, |prefixes| locate_text(prefixes, directory, path))
}

/// The bytes of a string that is not a path to be resolved (a symlink's target).
pub(crate) fn text(address: usize) -> Result<Vec<u8>, OsError> {
    let mut buffer = [0; PATH_MAX];
    program::read_string(address, &mut buffer).map(<[u8]>::to_vec)
}

/// Whether the string at `address` is empty: with AT_EMPTY_PATH the descriptor itself is meant.
pub(crate) fn is_empty(address: usize) -> bool {
    address == 0 || program::read::<u8>(address) == Ok(0)
}

fn locate_text(prefixes: &Prefixes, base: RawFd, path: &[u8]) -> Where {
    if path.is_empty() {
        return Where::Host;
    }
    let asked = if path[0] == b'/' {
        if super::root::is_elsewhere() || !may_reach(prefixes, path, true) {
            return Where::Host;
        }
        Asked::absolute(path.to_vec())
    } else {
        let ours = directory::is_ours(base);
        if super::root::is_elsewhere() {
            // The kernel would look in a member.
            return if ours { Where::Array(Asked::absolute(Vec::new())) } else { Where::Host };
        }
        if !ours && !may_reach(prefixes, path, false) {
            return Where::Host;
        }
        let (base, ours, epochs, place) = placed(base, ours);
        let refused = |error| Where::Array(Asked { start: Start::Refused(error), ..Asked::absolute(path.to_vec()) });
        let (mut text, start) = match place {
            Some(Place::Array(text, slot)) => {
                let start = Start::Open(base.present().as_raw_fd(), slot, text.len(), epochs);
                (text, start)
            }
            // The current directory of a thread that has left the array's meanwhile.
            Some(Place::Host(text)) if !ours || base.present().as_raw_fd() == AT_FDCWD => (text, Start::Root),
            // The path of such a directory is the host's by chance. On its member it may be followed
            // by what the other members lack.
            Some(Place::Host(_)) => return refused(OsError::STALE),
            None if !ours => return Where::Host,
            None => {
                // A directory of the array whose path the kernel does not tell lies too deep, unless it
                // does not lie below the root of the process, or there is no /proc.
                crate::array::tell_without_proc();
                return refused(OsError::NAMETOOLONG);
            }
        };
        text.push(b'/');
        text.extend_from_slice(path);
        Asked { text, start, base: Some(base) }
    };
    let whole = normalise(&asked.text);
    match prefixes.own(&whole) || enters_on_its_way(prefixes, &asked.text) {
        false => Where::Host,
        true if comes_from_host(prefixes, &asked) && is_closed(prefixes, &whole) => {
            Where::Array(Asked { start: Start::Refused(OsError::ACCESS), ..asked })
        }
        true => Where::Array(asked),
    }
}

/// Returns a directory argument's directory, whether it is one of the array, the state of names and
/// members before the kernel was asked where it is, and where it is. `ours` tells whether it was one
/// of the array a moment ago: another thread may give its number another meaning, and the kernel is
/// asked again then.
fn placed(descriptor: RawFd, ours: bool) -> (Base, bool, Option<[u64; 2]>, Option<Place>) {
    if !ours {
        let base = Base { descriptor, twin: None };
        let place = base.place(false);
        return (base, false, None, place);
    }
    for _ in 1..PLACE_COUNT {
        let base = Base::of(descriptor);
        let epochs = array::epochs();
        let place = base.place(true);
        if !matches!(place, Some(Place::Host(_))) || base.present().as_raw_fd() == AT_FDCWD {
            return (base, true, epochs, place);
        }
        // The thread that gives the number another meaning may have done so only half.
        OPEN.wait_for_claim(descriptor);
        if !directory::is_ours(descriptor) {
            return placed(descriptor, false);
        }
    }
    let base = Base::of(descriptor);
    let place = base.place(true);
    (base, true, None, place)
}

/// Whether the program may not search the host's directories above the prefix that a path leads to.
/// The library asks only in a process that has changed its rights: one that has not could search
/// them when it, or what started it, came to the array.
fn is_closed(prefixes: &Prefixes, path: &[u8]) -> bool {
    rights::may_be_fewer() && prefixes.is_closed_above(path)
}

/// Whether the kernel would come to the array by way of the host's directories above it.
fn comes_from_host(prefixes: &Prefixes, asked: &Asked) -> bool {
    let is_climb = |at: usize| asked.text[at..].starts_with(b"/..") && matches!(asked.text.get(at + 3), None | Some(b'/'));
    let climbs_out = |at: usize| is_climb(at) && !prefixes.own(&normalise(&asked.text[..at + 3]));
    match asked.start {
        Start::Root => true,
        Start::Open(..) => (0..asked.text.len()).any(climbs_out),
        Start::Known | Start::Refused(_) => false,
    }
}

/// Whether a path with `..` is in the array before it climbs: symlinks may keep it there.
fn enters_on_its_way(prefixes: &Prefixes, path: &[u8]) -> bool {
    path.windows(3).position(|part| part == b"/..").is_some_and(|climb| prefixes.own(&normalise(&path[..climb])))
}

/// Whether a path could lead to a prefix, judged by its first component. A relative one starts from
/// a host directory that may be on the way to a prefix.
fn may_reach(prefixes: &Prefixes, path: &[u8], absolute: bool) -> bool {
    let first = path.split(|&byte| byte == b'/').find(|part| !part.is_empty() && *part != b".").unwrap_or(b"");
    first == b".." || prefixes.may_begin_with(first, absolute) || path.windows(3).any(|part| part == b"/..")
}
