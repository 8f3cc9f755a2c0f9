//! From a path of the program to a place: symlinks as the program means them.
//!
//! Most paths contain no symlink, and the kernel finds out in one call (openat2, RESOLVE_NO_SYMLINKS). If there is one, the components
//! are walked here: a target that begins with `/` starts at the program's root, not at the member's, so it may lead out of the array, and back.
//!
//! Outside the array the path is collected as it stands: symlinks of the host are the kernel's. `..` there is taken by text.

use crate::everywhere::On;
use crate::located::{Directories, Located};
use crate::{Namespace, Place, Reached};
use alloc::rc::Rc;
use alloc::vec::Vec;
use array::config::normalise;
use sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2, readlinkat, statat};
use sys::{OsError, OwnedFd, Result};

/// Symlinks followed before a path is taken for a loop (path_resolution(7)).
const LINK_COUNT_MAX: u32 = 40;
const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Something that exists, opened on the member whose answers count.
pub(crate) struct Found {
    pub(crate) fd: OwnedFd,
    /// Logical, without symlinks but perhaps as the last component.
    pub(crate) path: Vec<u8>,
}

/// A name to be changed: its directory has been found, itself has not been looked at.
pub(crate) struct Target {
    /// Logical.
    pub(crate) path: Vec<u8>,
    /// Below a member's root, with the program's trailing slash if there was one.
    pub(crate) relative: Vec<u8>,
    /// The directory of the name, on each member where it was looked up.
    directories: Rc<Directories>,
}

impl Target {
    pub(crate) fn new(path: Vec<u8>, slash: bool) -> Self {
        let mut relative = path[1..].to_vec();
        if slash {
            relative.push(b'/');
        }
        Self { path, relative, directories: Rc::new(Directories::default()) }
    }

    /// Where the name lies on a member.
    ///
    /// # Errors
    /// As for [`Located::below`].
    pub(crate) fn on(&self, on: &On) -> Result<Located<'_>> {
        if on.afresh { Located::below(on.root, &self.relative) } else { self.directories.locate(on, &self.relative) }
    }

    /// This target after another one of the same operation: what has been found of the other's directory serves both if they are in the same.
    pub(crate) fn beside(mut self, other: &Self) -> Self {
        if split_last(&self.relative).0 == split_last(&other.relative).0 {
            self.directories = Rc::clone(&other.directories);
        }
        self
    }
}

impl Namespace {
    /// Follows the symlinks in an absolute path, also the last if `follow`. What is not there may be the last component only.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `ACCES`, `LOOP`, `NAMETOOLONG` as the kernel gives them.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Place> {
        match self.find(path, OFlags::PATH | OFlags::CLOEXEC, follow) {
            Ok(Reached::Array(found)) => Ok(Reached::Array(found.path)),
            Ok(Reached::Host(path)) => Ok(Reached::Host(path)),
            Err(OsError::NOENT) => self.walk(path, follow).map(|(place, _)| place),
            Err(error) => Err(error),
        }
    }

    /// Opens what `path` leads to, on the member whose answers count. `flags` make nothing and cut nothing.
    pub(crate) fn find(&self, path: &[u8], flags: OFlags, follow: bool) -> Result<Reached<Found>> {
        leads_somewhere(path)?;
        let text = normalise(path);
        let flags = if follow { flags } else { flags | OFlags::NOFOLLOW };
        if self.owns(&text) {
            let epochs = self.epochs();
            match self.open_plainly(path, flags) {
                Ok(fd) => {
                    if let (Some(epochs), Some(parent)) = (epochs, self.plain_parent(path)) {
                        self.remember_directory(parent, epochs);
                    }
                    return Ok(Reached::Array(Found { fd, path: text }));
                }
                Err(error) if error != OsError::LOOP && !climbs(path) => return Err(error),
                Err(_) => {}
            }
        }
        let (place, slash) = self.walk(path, follow)?;
        place.and_then(|path| {
            let mut exact = path.clone();
            if slash {
                exact.push(b'/');
            }
            self.open_plainly(&exact, flags).map(|fd| Found { fd, path })
        })
    }

    /// Opens a path that must not contain symlinks.
    fn open_plainly(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        self.on_first(|root| match openat2(root, path, flags, Mode::empty(), RESOLVE) {
            // A device may say so of itself.
            Err(OsError::IO) if !flags.contains(OFlags::PATH) && is_device(root, path) => Ok(Err(OsError::IO)),
            result => result.map(Ok),
        })?
    }

    /// Asks the member whose answers count; if its file system is gone, the next one.
    pub(crate) fn on_first<T>(&self, ask: impl Fn(&OwnedFd) -> Result<T>) -> Result<T> {
        self.asking_first(|on| ask(on.root))
    }

    /// The same for what depends on which member it is.
    pub(crate) fn asking_first<T>(&self, ask: impl Fn(&On) -> Result<T>) -> Result<T> {
        self.array().asking_first(|slot| ask(&On { slot, root: self.root(slot)?, first: true, afresh: false }))
    }

    /// Finds the directory of the name that `path` ends with. The name itself is not followed.
    pub(crate) fn target(&self, path: &[u8]) -> Result<Reached<Target>> {
        leads_somewhere(path)?;
        let epochs = self.epochs();
        let plain = epochs.zip(self.plain_parent(path));
        if plain.is_some_and(|(epochs, parent)| self.is_remembered(parent, epochs)) {
            return Ok(Reached::Array(Target::new(path.to_vec(), false)));
        }
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let (whole, slash) = (&path[..end], end < path.len());
        let Some(cut) = whole.iter().rposition(|&byte| byte == b'/') else {
            return if whole.is_empty() && slash { Ok(Reached::Host(b"/".to_vec())) } else { Err(OsError::NOENT) };
        };
        let (parent, name) = (&whole[..=cut], &whole[cut + 1..]);
        let text = join(&normalise(parent), name);
        if self.owns(&normalise(parent)) || self.owns(&normalise(&text)) {
            match self.open_plainly(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC) {
                Ok(_) => {
                    if let Some((epochs, parent)) = plain {
                        self.remember_directory(parent, epochs);
                    }
                    return Ok(Reached::Array(Target::new(text, slash)));
                }
                Err(error) if error != OsError::LOOP && !climbs(parent) => return Err(error),
                Err(_) => {}
            }
        }
        match self.walk(parent, true)?.0 {
            Reached::Array(parent) => Ok(Reached::Array(Target::new(join(&parent, name), slash))),
            Reached::Host(parent) => {
                let mut path = join(&parent, name);
                let text = normalise(&path);
                if self.owns(&text) {
                    return Ok(Reached::Array(Target::new(text, slash)));
                }
                if slash {
                    path.push(b'/');
                }
                Ok(Reached::Host(path))
            }
        }
    }

    /// Resolves component by component. Also tells whether the path demands a directory (a trailing slash or dot).
    pub(crate) fn walk(&self, path: &[u8], follow: bool) -> Result<(Place, bool)> {
        leads_somewhere(path)?;
        let mut walk = Walk { inside: false, at: Vec::new(), rest: path.to_vec(), link_count: 0, directory: false };
        while let Some((name, is_last)) = walk.next() {
            if walk.inside {
                self.step_inside(&mut walk, &name, is_last && !follow)?;
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
            return Ok((Reached::Array(walk.at), directory));
        }
        if walk.at.is_empty() || directory {
            walk.at.push(b'/');
        }
        Ok((Reached::Host(walk.at), directory))
    }

    fn step_inside(&self, walk: &mut Walk, name: &[u8], keep_link: bool) -> Result<()> {
        if matches!(name, b"." | b"..") {
            let here = join(&walk.at, b".");
            self.on_first(|root| statat(root, &here[1..], AtFlags::empty()))?;
            if name == b".." {
                walk.at.truncate(walk.at.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                walk.inside = self.owns(&walk.at);
            }
            walk.directory = true;
            return Ok(());
        }
        let next = join(&walk.at, name);
        match self.on_first(|root| readlinkat(root, &next[1..], Vec::new())) {
            Ok(_) if keep_link && walk.rest.is_empty() => walk.at = next,
            Ok(target) => walk.follow(target.as_bytes())?,
            Err(OsError::INVAL) => walk.at = next,
            Err(OsError::NOENT) if walk.rest.iter().all(|&byte| byte == b'/') => walk.at = next,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A path on its way.
struct Walk {
    /// Whether `at` is logical, with all symlinks followed; otherwise it is the host's, as it stood.
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

/// The directory of a relative path, empty for the root itself, and the last component with the slashes behind it.
pub(crate) fn split_last(relative: &[u8]) -> (&[u8], &[u8]) {
    let end = relative.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    relative[..end].iter().rposition(|&byte| byte == b'/').map_or((b"", relative), |cut| (&relative[..cut], &relative[cut + 1..]))
}

/// An empty path leads nowhere (path_resolution(7)).
const fn leads_somewhere(path: &[u8]) -> Result<()> {
    if path.is_empty() { Err(OsError::NOENT) } else { Ok(()) }
}

/// Whether `..` occurs in a path.
fn climbs(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| name == b"..")
}

fn is_device(root: &OwnedFd, path: &[u8]) -> bool {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let kind = statat(root, &path[start..], AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::CharacterDevice | FileType::BlockDevice))
}
