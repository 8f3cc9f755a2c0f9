//! From a path of the program to a place: symlinks as the program means them.
//!
//! Most paths contain no symlink, and the kernel finds out in one call (openat2,
//! RESOLVE_NO_SYMLINKS). If there is one, the components are walked here: a target that begins with
//! `/` starts at the program's root, not at the member's, so it may lead out of the array, and
//! back.
//!
//! Outside the array the path is collected as it stands: symlinks of the host are the kernel's.
//! `..` there is taken by text.

use crate::absent::identity;
use crate::everywhere::On;
use crate::located::SAFELY;
use crate::mounts::open_within;
use crate::remembered::Epochs;
use crate::target::Target;
use crate::{Namespace, Place, ProgramPath, Reached};
use alloc::vec::Vec;
use array::config::normalise;
use sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, readlinkat, statat};
use sys::{AsFd, BorrowedFd, OsError, OwnedFd, Result};
use units::Slot;

/// Symlinks followed before a path is taken for a loop (path_resolution(7)).
const LINK_COUNT_MAX: u32 = 40;
/// How often a path is walked anew in which directories become symlinks meanwhile.
const WALK_COUNT: u32 = 8;
const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Something that exists, opened on the member whose answers count.
pub(crate) struct Found {
    pub(crate) fd: OwnedFd,
    pub(crate) slot: Slot,
    /// Logical, without symlinks but perhaps as the last component.
    pub(crate) path: Vec<u8>,
}

impl Namespace {
    /// Follows the symlinks in an absolute path, also the last if `follow`. What is not there may
    /// be the last component only.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `ACCES`, `LOOP`, `NAMETOOLONG` as the kernel gives them.
    pub fn resolve<'p>(&self, path: impl Into<ProgramPath<'p>>, follow: bool) -> Result<Place> {
        let path = path.into();
        match self.find(path, OFlags::PATH | OFlags::CLOEXEC, follow) {
            Ok(Reached::Array(found)) => Ok(Reached::Array(found.path)),
            Ok(Reached::Host(path)) => Ok(Reached::Host(path)),
            Err(OsError::NOENT) => self.walk(path, follow).map(|(place, _)| place),
            Err(error) => Err(error),
        }
    }

    /// Opens what `path` leads to, on the member whose answers count. `flags` make nothing and cut
    /// nothing.
    pub(crate) fn find(&self, path: ProgramPath<'_>, flags: OFlags, follow: bool) -> Result<Reached<Found>> {
        self.find_or_make(path, flags, follow, false)
    }

    /// Does what [`Self::find`] does. If `makes`, the caller looks once more with the namespace
    /// lock held if there is nothing: the witnesses are asked then.
    pub(crate) fn find_or_make(&self, path: ProgramPath<'_>, flags: OFlags, follow: bool, makes: bool) -> Result<Reached<Found>> {
        path.leads_somewhere()?;
        let text = normalise(path.text());
        let flags = if follow { flags } else { flags | OFlags::NOFOLLOW };
        if self.owns(&text) {
            let epochs = self.epochs();
            let opened = match makes.then(|| self.open_on_first(path, flags)) {
                // That something else than a directory is on the way may be the lowest member's
                // loss.
                None | Some(Err(OsError::NOTDIR)) => self.open_plainly(path, flags),
                Some(opened) => opened,
            };
            match opened {
                Ok((slot, fd)) => {
                    if let (Some(epochs), Some(parent)) = (epochs, self.plain_parent(path.text())) {
                        self.remember_parent(path, parent, epochs);
                    }
                    return Ok(Reached::Array(Found { fd, slot, path: text }));
                }
                Err(error) if error != OsError::LOOP && !climbs(path.text()) => return Err(error),
                Err(_) => {}
            }
        }
        // Of a symlink that is not to be followed the kernel says the same as of one that was not
        // there when the path was walked.
        let is_final = flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::PATH);
        for _ in 0..WALK_COUNT {
            let (place, slash) = self.walk(path, follow)?;
            let text = match place {
                Reached::Array(text) => text,
                Reached::Host(path) => return Ok(Reached::Host(path)),
            };
            let mut exact = text.clone();
            if slash {
                exact.push(b'/');
            }
            match self.open_plainly(path.leading_to(&exact), flags) {
                Err(OsError::LOOP) if !is_final => {}
                opened => return opened.map(|(slot, fd)| Reached::Array(Found { fd, slot, path: text })),
            }
        }
        Err(OsError::LOOP)
    }

    /// Notes that the directory of something was reached without symlinks, in a look that began
    /// when `epochs` were present.
    fn remember_parent(&self, path: ProgramPath<'_>, parent: &[u8], epochs: Epochs) {
        let is_beside = path.is_known(parent.len());
        // What an open directory was called when the program's path was put together, it need not
        // have been called when the look began.
        let is_reached = || self.open_plainly(parent.into(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).is_ok();
        if !path.is_relative() || !is_beside && !self.is_remembered(parent, epochs) && is_reached() {
            self.remember_directory(parent, epochs);
        }
    }

    /// Opens a path that must not contain symlinks. Also tells the member that answered.
    fn open_plainly(&self, path: ProgramPath<'_>, flags: OFlags) -> Result<(Slot, OwnedFd)> {
        self.doubting(path.text(), || self.open_on_first(path, flags))
    }

    fn open_on_first(&self, path: ProgramPath<'_>, flags: OFlags) -> Result<(Slot, OwnedFd)> {
        self.asking_first(|on| {
            let from_root = (on.root.as_fd(), path.text());
            let (directory, name, resolve) =
                path.on(on.slot).map_or((from_root.0, from_root.1, RESOLVE), |(directory, rest)| (directory, rest, SAFELY));
            match open_within(directory, name, flags, Mode::empty(), resolve) {
                // A device may say so of itself.
                Err(OsError::IO) if !flags.contains(OFlags::PATH) && is_device(directory, name) => Ok(Err(OsError::IO)),
                result => result.map(|fd| Ok((on.slot, fd))),
            }
        })?
    }

    /// What the directory is like that the last component of `text` is in; it was reached without
    /// symlinks.
    pub(crate) fn stat_of_parent(&self, path: ProgramPath<'_>, text: &[u8]) -> Result<Stat> {
        let cut = text.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let parent = join(text.get(..cut).unwrap_or(text), b".");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.open_plainly(path.leading_to(&parent), flags).and_then(|(_, fd)| fstat(&fd))
    }

    /// Asks the member whose answers count; if its file system is gone, the next one.
    pub(crate) fn on_first<T>(&self, ask: impl Fn(&OwnedFd) -> Result<T>) -> Result<T> {
        self.asking_first(|on| ask(on.root))
    }

    /// Asks the member whose answers count, and says to `ask` which member that is; if its file
    /// system is gone, asks the next one.
    pub(crate) fn asking_first<T>(&self, ask: impl Fn(&On) -> Result<T>) -> Result<T> {
        self.array().asking_first(|slot| ask(&On { slot, root: self.root(slot)?, first: true, afresh: false, caught_up: false }))
    }

    /// Finds the directory of the name that `path` ends with. The name itself is not followed. The
    /// namespace lock is held, and the path is as it is called now ([`Self::with_present`]).
    pub(crate) fn target<'a>(&self, path: ProgramPath<'a>) -> Result<Reached<Target<'a>>> {
        path.leads_somewhere()?;
        let epochs = self.epochs();
        let whole = without_slashes(path.text());
        let slash = whole.len() < path.text().len();
        let Some(cut) = whole.iter().rposition(|&byte| byte == b'/') else {
            return if whole.is_empty() && slash { Ok(Reached::Host(b"/".to_vec())) } else { Err(OsError::NOENT) };
        };
        let (parent, name) = (&whole[..=cut], &whole[cut + 1..]);
        let text = join(&normalise(parent), name);
        // A dot in the path leads nowhere else. What stands before it must be a directory that may
        // be searched, which it must be without the dot, too.
        let is_plain = !slash && !climbs(parent);
        let plain = epochs.filter(|_| is_plain).zip(self.plain_parent(&text));
        if plain.is_some_and(|(epochs, parent)| self.is_remembered(parent, epochs)) {
            return Ok(Reached::Array(Target::new(path, text, false)));
        }
        if path.is_known(cut) {
            return Ok(Reached::Array(Target::new(path, text, slash)));
        }
        let directory = path.up_to(cut + 1);
        if self.owns(&normalise(parent)) || self.owns(&normalise(&text)) {
            match self.open_plainly(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC) {
                Ok(_) => {
                    if let Some((epochs, parent)) = plain {
                        self.remember_directory(parent, epochs);
                    }
                    return Ok(Reached::Array(Target::new(path, text, slash)));
                }
                Err(error) if error != OsError::LOOP && !climbs(parent) => return Err(error),
                Err(_) => {}
            }
        }
        match self.walk(directory, true)?.0 {
            Reached::Array(parent) => {
                // The last name that was walked need not be there, or be a directory.
                self.open_plainly(directory.leading_to(&parent), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
                Ok(Reached::Array(Target::new(path, join(&parent, name), slash)))
            }
            Reached::Host(parent) => {
                let mut host = join(&parent, name);
                let text = normalise(&host);
                if self.owns(&text) {
                    return Ok(Reached::Array(Target::new(path, text, slash)));
                }
                if slash {
                    host.push(b'/');
                }
                Ok(Reached::Host(host))
            }
        }
    }

    /// Resolves component by component. Also tells whether the path demands a directory (a trailing
    /// slash or dot).
    pub(crate) fn walk(&self, path: ProgramPath<'_>, follow: bool) -> Result<(Place, bool)> {
        path.leads_somewhere()?;
        for _ in 0..WALK_COUNT {
            if let Some(found) = self.walk_once(path, follow)? {
                return Ok(found);
            }
        }
        Err(OsError::LOOP)
    }

    /// None if a directory that had been reached has become a symlink meanwhile.
    fn walk_once(&self, path: ProgramPath<'_>, follow: bool) -> Result<Option<(Place, bool)>> {
        let (at, rest) = path.text().split_at(path.known_part().len());
        let inside = path.is_relative() || !at.is_empty();
        let mut walk = Walk { inside, at: at.to_vec(), rest: rest.to_vec(), link_count: 0, directory: false };
        while let Some((name, is_last)) = walk.next() {
            if walk.inside {
                if !self.step_inside(path, &mut walk, &name, is_last && !follow)? {
                    return Ok(None);
                }
            } else if name != b".." || !walk.at.is_empty() {
                walk.at = join(&walk.at, &name);
                let text = normalise(&walk.at);
                if self.owns(&text) {
                    (walk.at, walk.inside) = (text, true);
                }
            }
        }
        let directory = walk.directory;
        if walk.inside {
            return Ok(Some((Reached::Array(walk.at), directory)));
        }
        if walk.at.is_empty() || directory {
            walk.at.push(b'/');
        }
        Ok(Some((Reached::Host(walk.at), directory)))
    }

    /// False if a directory that had been reached has become a symlink.
    fn step_inside(&self, path: ProgramPath<'_>, walk: &mut Walk, name: &[u8], keep_link: bool) -> Result<bool> {
        let look = |text: &[u8]| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.open_plainly(path.leading_to(text), flags).map(|(_, fd)| fd)
        };
        if matches!(name, b"." | b"..") {
            match look(&join(&walk.at, b".")) {
                Err(OsError::LOOP) => return Ok(false),
                looked => looked?,
            };
            if name == b".." {
                walk.at.truncate(walk.at.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                walk.inside = self.owns(&walk.at);
            }
            walk.directory = true;
            return Ok(true);
        }
        let next = join(&walk.at, name);
        let epochs = self.epochs();
        let (target, found) = loop {
            let found = match look(&next) {
                Err(OsError::LOOP) => return Ok(false),
                Err(OsError::NOENT) if walk.rest.iter().all(|&byte| byte == b'/') => {
                    walk.at = next;
                    return Ok(true);
                }
                found => found?,
            };
            let target = readlinkat(&found, c"", Vec::new());
            // A symlink that lies on the lowest member alone leads nobody astray.
            if target.is_err() || !self.is_contradicted(&next, identity(&fstat(&found)?), epochs)? {
                break (target, found);
            }
        };
        match target {
            Ok(_) if keep_link && walk.rest.is_empty() => walk.at = next,
            Ok(target) => {
                if walk.rest.iter().all(|&byte| byte == b'/') {
                    let parent = || self.stat_of_parent(path, &next);
                    self.check_following(&fstat(&found)?, parent)?;
                }
                walk.follow(target.as_bytes())?;
            }
            // Of what is no symlink the kernel says that an empty path leads nowhere.
            Err(OsError::NOENT | OsError::INVAL) => walk.at = next,
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

/// A path on its way.
struct Walk {
    /// Whether `at` is logical, with all symlinks followed; otherwise it is the host's, as it
    /// stood.
    inside: bool,
    at: Vec<u8>,
    /// What is still to be walked.
    rest: Vec<u8>,
    link_count: u32,
    /// Whether what was last walked ended with a slash or dot.
    directory: bool,
}

impl Walk {
    /// The next component, and whether it is the last.
    fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        let Some(start) = self.rest.iter().position(|&byte| byte != b'/') else {
            self.directory |= !self.rest.is_empty();
            return None;
        };
        let end = self.rest[start..].iter().position(|&byte| byte == b'/').map_or(self.rest.len(), |length| start + length);
        let name = self.rest[start..end].to_vec();
        self.rest.drain(..end);
        self.directory = false;
        Some((name, self.rest.iter().all(|&byte| byte == b'/')))
    }

    fn follow(&mut self, target: &[u8]) -> Result<()> {
        self.link_count += 1;
        if self.link_count > LINK_COUNT_MAX {
            return Err(OsError::LOOP);
        }
        if target.starts_with(b"/") {
            self.inside = false;
            self.at.clear();
        }
        self.rest = [target, &self.rest].concat();
        Ok(())
    }
}

/// A path without the slashes behind it; empty if it has nothing but slashes.
#[must_use]
pub fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// `directory`/`name`.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The directory of a relative path, empty for the root itself, and the last component with the
/// slashes behind it.
pub(crate) fn split_last(relative: &[u8]) -> (&[u8], &[u8]) {
    without_slashes(relative)
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or((b"", relative), |cut| (&relative[..cut], &relative[cut + 1..]))
}

/// Whether `..` occurs in a path.
fn climbs(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| name == b"..")
}

fn is_device(directory: BorrowedFd<'_>, path: &[u8]) -> bool {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let kind = statat(directory, &path[start..], AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::CharacterDevice | FileType::BlockDevice))
}
