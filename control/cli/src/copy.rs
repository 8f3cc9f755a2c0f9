//! `add` and `retrieve`: copies between the host's files and the array's.
//!
//! Kept are modes, times, owners where the user may set them (without, no program keeps
//! set-user-ID), symbolic links, pipes, sockets and devices as such, several names of one file as
//! such, and long runs of zeros as holes. Files and directories keep their extended attributes and
//! access control lists ([`crate::tree::is_copied`]); those of other files are not copied, which is
//! told. As with cp, a destination that is a directory gets the copy inside it; missing directories
//! above a destination are made.
//!
//! In the copy of a directory, what cannot be copied is told of and left out, the rest is copied,
//! and the command fails in the end. What has the name of a copy already is replaced if it is of
//! the same kind, and left as it is otherwise. A file is replaced only after its original was read
//! to the end, since it may be an earlier copy of what cannot be read any more. Nothing is copied
//! from or to the array's own directories ([`crate::own`]), nor to itself: under `cxlraid run` the
//! host's files are the array's.

use crate::{
    copy_report::{Fault, Report, called, in_the_way, unmade, unread},
    failure::Failure,
    own::Own,
    tree::{
        ACCESS_LIST, Attribute, CAPABILITY, Content, DEFAULT_LIST, Directory, Found, Identity, Kind, Node, Stat, TRUSTED, Tree,
        without_attribute,
    },
    view::shown,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ffi::{CStr, OsStr},
    io,
    path::{Path, PathBuf},
};
use sys::{
    OsError,
    rustix::{fs::FileType, process::geteuid},
};

/// Bytes per read and write: large enough for full-stripe writes, small enough for a smooth bar.
const BLOCK_BYTES: usize = 4 << 20;
/// Zeros are looked for in pieces of this size.
const HOLE_BYTES: usize = 64 << 10;
/// The mode of directories that are made to hold a copy.
const MADE_MODE: u32 = 0o755;

const BE_CREATED: &str = "be created";
const GET_ATTRIBUTES: &str = "get its mode and times";

/// One copy command.
pub(crate) struct Copy<'a> {
    pub(crate) from: &'a dyn Tree,
    pub(crate) to: &'a dyn Tree,
    /// Directories too.
    pub(crate) recursive: bool,
    /// The array's own directories.
    pub(crate) own: &'a Own,
}

impl Copy<'_> {
    /// Copies `source` to `target`, or into it if it is a directory and `into_directories` says so.
    pub(crate) fn run(&self, source: &Path, target: &Path, into_directories: bool) -> Result<(), Failure> {
        // A link that was named means the file; a link found below means itself.
        let found = self.from.open(source).map_err(|error| unread(self.from, source, &error))?;
        match found.stat.kind {
            Kind::Directory if !self.recursive => {
                return Err(Failure::new(source.display(), "is a directory", "add -r to copy directories"));
            }
            Kind::Special(_) if !self.recursive => {
                let what = "is neither a file, a directory nor a symbolic link";
                return Err(Failure::new(source.display(), what, "add -r to copy it as what it is"));
            }
            _ => {}
        }
        let is_tree = found.stat.kind == Kind::Directory;
        let copying = Copying::new(self.from, self.own, is_tree, || bytes_of(&found));
        let result = self.to_target(&copying, &found, source, target, into_directories);
        // Now the target is a directory, which would get the next copy inside.
        let again = if into_directories && matches!(result, Ok(Place::Target)) { "copy again with -T" } else { "copy again" };
        let ended = copying.report.end(source, again);
        result.and(ended)
    }

    fn to_target(
        &self,
        copying: &Copying<'_>,
        found: &Found,
        source: &Path,
        target: &Path,
        into_directories: bool,
    ) -> Result<Place, Failure> {
        if let Ok(Found { node: Node::Directory(directory), stat, .. }) = self.to.open(target) {
            match (source.file_name(), &found.node) {
                (Some(name), _) if into_directories => {
                    copying.try_to_copy(found, &*directory, source, &target.join(name)).map_err(|fault| fault.failure)?;
                    return Ok(Place::Inside);
                }
                (_, Node::Directory(from)) => {
                    refuse_itself(found, stat.identity, source, target)?;
                    copying.top.set(Some(stat.identity));
                    let copied = copying.copy_directory(found, &**from, &*directory, source, target);
                    return copied.map(|()| Place::Target).map_err(|fault| fault.failure);
                }
                _ => {}
            }
        }
        let Some(parent) = target.parent() else {
            return Err(unmade(target, BE_CREATED, &OsError::EXIST.into()).failure);
        };
        let copied = copying.try_to_copy(found, &*self.directory(parent)?, source, target);
        copied.map(|()| Place::Target).map_err(|fault| fault.failure)
    }

    /// A directory of the tree that is copied to; made with those above it if it is not there.
    fn directory(&self, path: &Path) -> Result<Box<dyn Directory>, Failure> {
        let failed = |error: io::Error| unmade(path, BE_CREATED, &error).failure;
        match self.to.open(path) {
            Ok(Found { node: Node::Directory(directory), .. }) => return Ok(directory),
            Ok(Found { stat, .. }) => return Err(in_the_way(path, stat.kind).failure),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Err(_) => {}
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(OsError::NOENT.into()));
        };
        let above = self.directory(parent)?;
        let made = above.make_directory(name).map_err(failed)?;
        let stat = above.open(name).map_err(failed)?.stat;
        // Not the umask's business: a copy has its own mode, and what leads to it can be entered.
        made.set_attributes(&Stat { mode: MADE_MODE, ..stat }).map_err(|error| unmade(path, GET_ATTRIBUTES, &error).failure)?;
        Ok(made)
    }
}

/// Where a copy is.
enum Place {
    /// It is the target itself.
    Target,
    /// It is in the target, which was a directory.
    Inside,
}

/// Adds up the files' lengths. What cannot be read is left to the copy, which tells of it.
fn bytes_of(found: &Found) -> u64 {
    match &found.node {
        Node::File(_) => found.stat.bytes,
        Node::Directory(directory) => {
            let names = directory.list().unwrap_or_default();
            names.iter().filter_map(|name| directory.open(name).ok()).map(|found| bytes_of(&found)).sum()
        }
        Node::Symlink(_) | Node::Special(_) => 0,
    }
}

/// A copy under way.
struct Copying<'a> {
    from: &'a dyn Tree,
    own: &'a Own,
    /// Whether a directory is copied with what it contains.
    is_tree: bool,
    report: Report,
    /// The identity of the directory that the copy of the tree is, once it is made.
    top: Cell<Option<Identity>>,
    /// Files with several names that were copied, by their identity: the copy's path and identity.
    copied: RefCell<HashMap<Identity, (PathBuf, Identity)>>,
}

impl<'a> Copying<'a> {
    fn new(from: &'a dyn Tree, own: &'a Own, is_tree: bool, bytes: impl FnOnce() -> u64) -> Self {
        Self { from, own, is_tree, report: Report::new(is_tree, bytes), top: Cell::new(None), copied: RefCell::default() }
    }

    /// Copies what was found at `source` to the name that `target` ends with, in the directory
    /// `to`. Fails only if the copy ends.
    fn copy(&self, found: &Found, to: &dyn Directory, source: &Path, target: &Path) -> Result<(), Failure> {
        self.try_to_copy(found, to, source, target).or_else(|fault| self.report.leave(fault))
    }

    fn try_to_copy(&self, found: &Found, to: &dyn Directory, source: &Path, target: &Path) -> Result<(), Fault> {
        let uncreated = |error: io::Error| unmade(target, BE_CREATED, &error);
        let name = target.file_name().ok_or_else(|| uncreated(OsError::EXIST.into()))?;
        let there = match to.stat(name) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(uncreated(error)),
        };
        if let Some(Stat { kind, .. }) = there
            && kind != found.stat.kind
        {
            return Err(in_the_way(target, kind));
        }
        if let Some(there) = there {
            refuse_itself(found, there.identity, source, target)?;
        }
        if let Node::Directory(from) = &found.node {
            for (path, identity) in [(source, Some(found.stat.identity)), (target, there.map(|there| there.identity))] {
                if identity.is_some_and(|identity| self.own.with(identity).is_some()) {
                    let what = "is a member or a mount of this array, and is left out";
                    return Err(Failure::new(path.display(), what, "copy its files by their paths on the array").into());
                }
            }
            if self.top.get() == Some(found.stat.identity) {
                let what = "is the copy itself, and is left out";
                return Err(Failure::new(source.display(), what, "copy to a path outside of what is copied").into());
            }
            let made = to.make_directory(name).map_err(uncreated)?;
            if self.top.get().is_none() {
                self.top.set(Some(to.stat(name).map_err(uncreated)?.identity));
            }
            return self.copy_directory(found, &**from, &*made, source, target);
        }
        if found.stat.links > 1 && self.link(found, to, name, there.as_ref()) {
            self.report.count(found.stat.bytes);
            return Ok(());
        }
        if let Some(there) = &there {
            self.make_way(found, there, to, name, source, target)?;
        }
        for attribute in &found.unkept {
            self.tell_unkept(attribute, source, target);
        }
        match &found.node {
            Node::File(from) => {
                let copy = to.create(name).map_err(uncreated)?;
                self.copy_content(&**from, &*copy, found.stat.bytes, source, target)?;
                let remove = |name: &CStr| copy.remove_attribute(name);
                self.copy_attributes(from.attributes(), |attribute| copy.set_attribute(attribute), remove, (source, target))?;
                copy.set_attributes(&found.stat).map_err(|error| unmade(target, GET_ATTRIBUTES, &error))?;
                self.note(found, target, copy.identity().map_err(uncreated)?);
            }
            Node::Symlink(link) => self.note(found, target, to.make_symlink(link, name, &found.stat).map_err(uncreated)?),
            Node::Special(kind) => {
                let made = to.make_special(name, *kind, &found.stat).map_err(|error| {
                    if is_forbidden(&error) { forbidden(found.stat.kind, source, target) } else { uncreated(error) }
                })?;
                self.note(found, target, made);
            }
            Node::Directory(_) => {}
        }
        Ok(())
    }

    /// Notes a whole copy of a file with several names.
    fn note(&self, found: &Found, target: &Path, copy: Identity) {
        if found.stat.links > 1 {
            self.copied.borrow_mut().insert(found.stat.identity, (target.to_owned(), copy));
        }
    }

    /// Makes `name` another name of the copy of a file that was copied under another one. False if
    /// that cannot be: then it is copied again.
    fn link(&self, found: &Found, to: &dyn Directory, name: &OsStr, there: Option<&Stat>) -> bool {
        let copied = self.copied.borrow();
        let Some((first, identity)) = copied.get(&found.stat.identity) else { return false };
        match there {
            Some(there) if there.identity == *identity => return true,
            Some(_) if to.unlink(name).is_err() => return false,
            _ => {}
        }
        match to.link(first, name) {
            Ok(made) if made == *identity => true,
            // Somebody has put another file in the first one's place: this name must not be that
            // file's.
            Ok(_) => {
                let _ = to.unlink(name);
                false
            }
            Err(_) => false,
        }
    }

    /// Makes way for a copy where something of its kind has its name already. A file that alone is
    /// asked for stays, and is written over by the copy.
    fn make_way(
        &self,
        found: &Found,
        there: &Stat,
        to: &dyn Directory,
        name: &OsStr,
        source: &Path,
        target: &Path,
    ) -> Result<(), Fault> {
        if let Node::File(from) = &found.node {
            if there.bytes > 0 {
                let read = read_through(&**from, found.stat.bytes, |_, _| Ok(()));
                read.map_err(|stop| stop.fault(source, target, "stays as it was"))?;
            }
            if !self.is_tree {
                return Ok(());
            }
        }
        // Nobody but root could make the device again.
        if let Kind::Special(FileType::BlockDevice | FileType::CharacterDevice) = there.kind
            && !geteuid().is_root()
        {
            return Err(forbidden(there.kind, source, target));
        }
        match to.unlink(name) {
            // An attempt to make another name of a file there has taken the name away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            unlinked => unlinked.map_err(|error| unmade(target, "be replaced", &error)),
        }
    }

    fn copy_directory(
        &self,
        found: &Found,
        from: &dyn Directory,
        to: &dyn Directory,
        source: &Path,
        target: &Path,
    ) -> Result<(), Fault> {
        let end = |failure| Fault { failure, ends: true };
        to.open_up().map_err(|error| unmade(target, GET_ATTRIBUTES, &error))?;
        match from.list() {
            Ok(mut names) => {
                names.sort();
                for name in names {
                    let (source, target) = (source.join(&name), target.join(&name));
                    match from.open(&name) {
                        Ok(found) => self.copy(&found, to, &source, &target),
                        Err(error) => self.report.leave(unread(self.from, &source, &error).into()),
                    }
                    .map_err(end)?;
                }
            }
            Err(error) => self.report.leave(unread(self.from, source, &error).into()).map_err(end)?,
        }
        let remove = |name: &CStr| to.remove_attribute(name);
        self.copy_attributes(from.attributes(), |attribute| to.set_attribute(attribute), remove, (source, target))?;
        to.set_attributes(&found.stat).map_err(|error| unmade(target, GET_ATTRIBUTES, &error))
    }

    /// Gives a copy the extended attributes of its original, and takes from it the access control lists
    /// that the original has not: those that a directory gives what is made in it, or that a file had
    /// which is written over. By these others could do with the copy what they cannot do with the
    /// original.
    fn copy_attributes(
        &self,
        from: io::Result<Vec<Attribute>>,
        set: impl Fn(&Attribute) -> io::Result<()>,
        remove: impl Fn(&CStr) -> io::Result<()>,
        (source, target): (&Path, &Path),
    ) -> Result<(), Fault> {
        let attributes = from.map_err(|error| {
            let what = format!("its extended attributes cannot be read: {error}");
            Failure::new(source.display(), what, "correct the cause, then copy again")
        })?;
        for list in [ACCESS_LIST, DEFAULT_LIST] {
            if !attributes.iter().any(|(name, _)| name.as_c_str() == list) {
                let removed = without_attribute(|| remove(list));
                removed.map_err(|error| unmade(target, "be rid of its access control list", &error))?;
            }
        }
        for attribute in attributes {
            let name = shown(&attribute.0.to_string_lossy());
            let warning = |what: String, todo| Failure::new(target.display(), format!("warning: {what}"), todo);
            if attribute.0.as_c_str() == CAPABILITY {
                self.tell_unkept(&attribute.0, source, target);
                continue;
            }
            match set(&attribute) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(OsError::OPNOTSUPP.raw_os_error()) => {
                    let what = format!("extended attributes cannot be kept here ({name} of {})", source.display());
                    self.report.warn_of_attributes(&warning(what, "copy to a file system that has them"));
                }
                Err(error) if is_forbidden(&error) && attribute.0.to_bytes().starts_with(TRUSTED) => {
                    let what = format!("{name} of {} cannot be kept: {error}", source.display());
                    self.report.tell(&warning(what, "copy it as root"));
                }
                Err(error) => return Err(unmade(target, &format!("get the extended attribute {name}"), &error)),
            }
        }
        Ok(())
    }

    /// Says that a copy does not get an extended attribute of its original.
    fn tell_unkept(&self, attribute: &CStr, source: &Path, target: &Path) {
        let name = shown(&attribute.to_string_lossy());
        let what = format!("warning: {name} of {} is not copied", source.display());
        self.report.tell(&Failure::new(target.display(), what, "set it there if it is wanted"));
    }

    /// Copies the content, and makes it durable. A copy that fails midway ends where its original
    /// cannot be read or the copy not be written, and the caller gives it no mode and times, by
    /// which it would pass for the original.
    fn copy_content(&self, from: &dyn Content, to: &dyn Content, bytes: u64, source: &Path, target: &Path) -> Result<(), Fault> {
        self.report.show(target);
        let copied = read_through(from, bytes, |block, offset| {
            write_sparse(to, block, offset)?;
            self.report.count(block.len() as u64);
            Ok(())
        });
        let end = copied.as_ref().map_or_else(|stop| stop.offset, |bytes| *bytes);
        let stored = to.set_bytes(end).and_then(|()| to.sync());
        copied.map_err(|stop| stop.fault(source, target, "is a copy in part"))?;
        stored.map_err(|error| unwritten(target, &error))
    }
}

/// Where and why a file was not read or its copy not written to the end.
struct Stop {
    offset: u64,
    is_read: bool,
    error: io::Error,
}

impl Stop {
    /// The fault. If the original could not be read, `outcome` says what has become of `target`.
    fn fault(&self, source: &Path, target: &Path, outcome: &str) -> Fault {
        let Self { offset, is_read, error } = self;
        if !is_read {
            return unwritten(target, error);
        }
        let what = format!("cannot be read at byte {offset}: {error}: {} {outcome}", target.display());
        Failure::new(source.display(), what, "correct the cause, then copy again").into()
    }
}

fn unwritten(target: &Path, error: &io::Error) -> Fault {
    unmade(target, "be written to its end and is a copy in part", error)
}

/// Reads a file of about `bytes` to its end, and calls `act` for each block. Returns how many bytes
/// were read.
fn read_through(from: &dyn Content, bytes: u64, mut act: impl FnMut(&[u8], u64) -> io::Result<()>) -> Result<u64, Stop> {
    let mut buffer = vec![0; BLOCK_BYTES.min((bytes as usize).max(HOLE_BYTES))];
    let mut offset = 0;
    loop {
        let count = from.read_at(&mut buffer, offset).map_err(|error| Stop { offset, is_read: true, error })?;
        if count == 0 {
            return Ok(offset);
        }
        act(&buffer[..count], offset).map_err(|error| Stop { offset, is_read: false, error })?;
        offset += count as u64;
    }
}

/// Writes what is not zeros. The caller sets the length in the end.
fn write_sparse(to: &dyn Content, bytes: &[u8], offset: u64) -> io::Result<()> {
    let is_hole = |piece: &[u8]| piece.len() == HOLE_BYTES && piece.iter().all(|&byte| byte == 0);
    let mut start = 0;
    for (index, piece) in bytes.chunks(HOLE_BYTES).enumerate() {
        if is_hole(piece) {
            let end = index * HOLE_BYTES;
            write_some(to, &bytes[start..end], offset + start as u64)?;
            start = end + HOLE_BYTES;
        }
    }
    write_some(to, &bytes[start..], offset + start as u64)
}

fn write_some(to: &dyn Content, bytes: &[u8], offset: u64) -> io::Result<()> {
    if bytes.is_empty() { Ok(()) } else { to.write_all_at(bytes, offset) }
}

/// Refuses to copy a file or directory to itself: a file would be cut before it is read.
fn refuse_itself(found: &Found, target_identity: Identity, source: &Path, target: &Path) -> Result<(), Failure> {
    if found.stat.identity != target_identity {
        return Ok(());
    }
    let what = format!("is the same {} as {}", called(found.stat.kind), target.display());
    Err(Failure::new(source.display(), what, "give another path"))
}

/// The fault of a pipe, socket or device that this user may not make.
fn forbidden(kind: Kind, source: &Path, target: &Path) -> Fault {
    let what = format!("is a {}, and this user may make none at {}", called(kind), target.display());
    Failure::new(source.display(), what, "copy it as root").into()
}

/// Whether this user may not do something (EPERM), wherever it is done.
fn is_forbidden(error: &io::Error) -> bool {
    error.raw_os_error() == Some(OsError::PERM.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Host;
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
        sync::OnceLock,
        time::{Duration, SystemTime},
    };
    use sys::rustix::fs::{CWD, Mode, mknodat};

    static OWN: OnceLock<Own> = OnceLock::new();

    fn copy(recursive: bool) -> Copy<'static> {
        Copy { from: &Host, to: &Host, recursive, own: OWN.get_or_init(Own::default) }
    }

    fn old_file(path: &Path, bytes: &[u8], mode: u32) -> SystemTime {
        let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        then
    }

    #[test]
    fn a_file_keeps_mode_and_times() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("b"));
        let then = old_file(&source, b"content", 0o751);
        fs::write(&target, b"longer than the copy").unwrap();
        copy(false).run(&source, &target, true).unwrap();
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"content");
        assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (0o751, then));
    }

    #[test]
    fn names_attributes_and_missing_directories_are_kept_and_made() {
        use sys::rustix::fs::{XattrFlags, getxattr, setxattr};
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let (tree, copied) = (home.path().join("tree"), home.path().join("not/yet/there"));
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("file"), "content").unwrap();
        fs::hard_link(tree.join("file"), tree.join("sub/other")).unwrap();
        // A list that lets user 7 read: of the owner, user 7, the group, the mask, others
        // (posix_acl_xattr.h).
        let list: Vec<u8> = [(1, 6, u32::MAX), (2, 4, 7), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
            .iter()
            .flat_map(|&(tag, rights, id): &(u16, u16, u32)| {
                [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
            })
            .collect();
        let list = [&2_u32.to_le_bytes()[..], &list].concat();
        setxattr(tree.join("file"), "user.note", b"mine", XattrFlags::empty()).unwrap();
        setxattr(tree.join("file"), "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
        setxattr(tree.join("sub"), "user.of", b"directory", XattrFlags::empty()).unwrap();
        copy(true).run(&tree, &copied, true).unwrap();
        let value = |path: &Path, name: &str| {
            let mut bytes = [0; 100];
            getxattr(path, name, &mut bytes[..]).map(|count| bytes[..count].to_vec())
        };
        assert_eq!(value(&copied.join("file"), "user.note").unwrap(), b"mine");
        assert_eq!(value(&copied.join("file"), "system.posix_acl_access").unwrap(), list);
        assert_eq!(value(&copied.join("sub"), "user.of").unwrap(), b"directory");
        let inode = |name: &str| fs::metadata(copied.join(name)).unwrap().ino();
        assert_eq!(inode("file"), inode("sub/other"));
        assert_eq!(fs::metadata(home.path().join("not/yet")).unwrap().mode() & 0o7777, 0o755);
        // Again, over what is there.
        copy(true).run(&tree, &copied, false).unwrap();
        assert_eq!(fs::read(copied.join("sub/other")).unwrap(), b"content");
        fs::write(home.path().join("plain"), "").unwrap();
        let message = copy(true).run(&tree, &home.path().join("plain/x/y"), true).unwrap_err().to_string();
        assert!(message.contains("/plain/x: cannot be created: ") || message.contains("/plain/x: "), "{message}");
    }

    #[test]
    fn a_directory_gets_the_copy_inside() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("d"));
        fs::write(&source, "x").unwrap();
        fs::create_dir(&target).unwrap();
        copy(false).run(&source, &target, true).unwrap();
        assert_eq!(fs::read(target.join("a")).unwrap(), b"x");
        assert!(copy(false).run(&source, &target, false).is_err());
    }

    #[test]
    fn trees_need_r_and_keep_links() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("tree");
        fs::create_dir_all(source.join("sub/deep")).unwrap();
        let then = old_file(&source.join("sub/deep/file"), b"1", 0o400);
        symlink("deep/file", source.join("sub/link")).unwrap();
        symlink("/nowhere", source.join("dangling")).unwrap();
        fs::set_permissions(source.join("sub"), fs::Permissions::from_mode(0o550)).unwrap();

        let target = home.path().join("copy");
        let message = copy(false).run(&source, &target, true).unwrap_err().to_string();
        assert!(message.ends_with("is a directory; add -r to copy directories"), "{message}");
        assert!(!target.exists());

        copy(true).run(&source, &target, true).unwrap();
        assert_eq!(fs::read_link(target.join("sub/link")).unwrap(), Path::new("deep/file"));
        assert_eq!(fs::read_link(target.join("dangling")).unwrap(), Path::new("/nowhere"));
        assert_eq!(fs::metadata(target.join("sub")).unwrap().mode() & 0o7777, 0o550);
        assert_eq!(fs::metadata(target.join("sub/link")).unwrap().modified().unwrap(), then);
        for tree in [&source, &target] {
            fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
        }
    }

    #[test]
    fn zeros_become_holes_and_lengths_stay() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("b"));
        let mut bytes = vec![0; 9 * HOLE_BYTES + 5];
        bytes[3 * HOLE_BYTES..4 * HOLE_BYTES + 1].fill(7);
        fs::write(&source, &bytes).unwrap();
        copy(false).run(&source, &target, true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), bytes);
        let allocated = |path| fs::metadata(path).unwrap().blocks();
        assert!(allocated(&target) < allocated(&source));

        fs::write(&source, vec![0; 3 * HOLE_BYTES]).unwrap();
        copy(false).run(&source, &target, true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), vec![0; 3 * HOLE_BYTES]);
    }

    /// A file to be read; before that something happens.
    struct Trap<F>(fs::File, F);

    impl<F: Fn()> Content for Trap<F> {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.1();
            Content::read_at(&self.0, buffer, offset)
        }

        fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            Content::write_all_at(&self.0, bytes, offset)
        }

        fn set_bytes(&self, bytes: u64) -> io::Result<()> {
            self.0.set_bytes(bytes)
        }

        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }

        fn set_attributes(&self, stat: &Stat) -> io::Result<()> {
            Content::set_attributes(&self.0, stat)
        }

        fn identity(&self) -> io::Result<Identity> {
            self.0.identity()
        }

        fn attributes(&self) -> io::Result<Vec<Attribute>> {
            Content::attributes(&self.0)
        }

        fn set_attribute(&self, attribute: &Attribute) -> io::Result<()> {
            Content::set_attribute(&self.0, attribute)
        }

        fn remove_attribute(&self, name: &CStr) -> io::Result<()> {
            Content::remove_attribute(&self.0, name)
        }
    }

    #[test]
    fn what_is_replaced_while_it_is_copied_gets_nothing() {
        let home = tempfile::tempdir().unwrap();
        let base = home.path().to_owned();
        let path = move |name: &str| base.join(name);
        old_file(&path("victim"), b"secret", 0o600);
        old_file(&path("source"), b"content", 0o6777);
        fs::create_dir_all(path("target/sub")).unwrap();
        fs::create_dir(path("elsewhere")).unwrap();
        // Its file becomes a link to another, and its directory another directory, when the copy
        // has begun.
        let here = path.clone();
        let replace = move || {
            let path = &here;
            if !path("moved").exists() {
                fs::rename(path("target/sub"), path("moved")).unwrap();
                symlink(path("elsewhere"), path("target/sub")).unwrap();
                fs::rename(path("moved/file"), path("moved/first")).unwrap();
                symlink(path("victim"), path("moved/file")).unwrap();
            }
        };
        let stat = Host.open(&path("source")).unwrap().stat;
        let file = Found::new(stat, Node::File(Box::new(Trap(fs::File::open(path("source")).unwrap(), replace))));
        let to = crate::tree::tests::directory(&Host, &path("target/sub"));
        Copying::new(&Host, &Own::default(), false, || 0).copy(&file, &*to, &path("source"), &path("target/sub/file")).unwrap();
        let mode = |name: &str| fs::metadata(path(name)).unwrap().mode() & 0o7777;
        assert_eq!((fs::read(path("victim")).unwrap(), mode("victim")), (b"secret".to_vec(), 0o600));
        assert_eq!((fs::read(path("moved/first")).unwrap(), mode("moved/first")), (b"content".to_vec(), 0o6777));
        assert_eq!(fs::read_dir(path("elsewhere")).unwrap().count(), 0);
        // A name that has become a link is refused.
        let message = copy(false).run(&path("source"), &path("moved/file"), true).unwrap_err().to_string();
        assert!(
            message.ends_with("moved/file: cannot be created: it is a symbolic link; name what it leads to, or remove it"),
            "{message}"
        );
        assert_eq!(fs::read(path("victim")).unwrap(), b"secret");
    }

    #[test]
    fn what_cannot_be_copied_is_named() {
        let home = tempfile::tempdir().unwrap();
        let missing = home.path().join("none");
        let message = copy(true).run(&missing, &home.path().join("x"), true).unwrap_err().to_string();
        assert_eq!(message, format!("cxlraid: {}: cannot be read: No such file or directory; check the path", missing.display()));
        let message = copy(false).run(Path::new("/dev/null"), &missing, true).unwrap_err().to_string();
        assert!(message.contains("is neither a file") && message.ends_with("add -r to copy it as what it is"), "{message}");
    }

    #[test]
    fn a_device_is_left_out_by_who_may_not_make_it() {
        crate::tree::tests::as_somebody(|home| {
            let message = copy(true).run(Path::new("/dev/null"), &home.join("null"), true).unwrap_err().to_string();
            assert!(
                message.starts_with("cxlraid: /dev/null: is a character device, and this user may make none at "),
                "{message}"
            );
            assert!(!home.join("null").exists());
        });
    }

    #[test]
    fn a_copy_made_again_is_as_the_first() {
        crate::tree::tests::as_somebody(|home| {
            let (tree, copied) = (home.join("tree"), home.join("copied"));
            let path = |name: &str| tree.join(name);
            fs::create_dir_all(path("closed")).unwrap();
            fs::write(path("closed/read-only"), "content").unwrap();
            fs::set_permissions(path("closed/read-only"), fs::Permissions::from_mode(0o400)).unwrap();
            fs::hard_link(path("closed/read-only"), path("second")).unwrap();
            fs::write(path("file"), "first").unwrap();
            symlink("file", path("link")).unwrap();
            fs::hard_link(path("link"), path("link2")).unwrap();
            let pipe = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, path("pipe"), FileType::Fifo, pipe, 0).unwrap();
            fs::hard_link(path("pipe"), path("pipe2")).unwrap();
            fs::set_permissions(path("closed"), fs::Permissions::from_mode(0o500)).unwrap();
            fs::set_permissions(&tree, fs::Permissions::from_mode(0o500)).unwrap();
            for _ in 0..2 {
                copy(true).run(&tree, &copied, false).unwrap();
                let inode = |name: &str| fs::symlink_metadata(copied.join(name)).unwrap().ino();
                for (first, second) in [("closed/read-only", "second"), ("link", "link2"), ("pipe", "pipe2")] {
                    assert_eq!(inode(first), inode(second), "{first}");
                }
                assert_eq!(fs::read(copied.join("second")).unwrap(), b"content");
                assert_eq!(fs::metadata(copied.join("closed")).unwrap().mode() & 0o7777, 0o500);
            }
            for root in [&tree, &copied] {
                fs::set_permissions(root, fs::Permissions::from_mode(0o700)).unwrap();
            }
            // The two names of one file lead to two files now, and a link is in the place of a
            // file.
            fs::remove_file(path("second")).unwrap();
            fs::write(path("second"), "other").unwrap();
            fs::remove_file(path("file")).unwrap();
            symlink("second", path("file")).unwrap();
            fs::remove_file(copied.join("link")).unwrap();
            fs::create_dir(copied.join("link")).unwrap();
            let message = copy(true).run(&tree, &copied, false).unwrap_err().to_string();
            assert!(
                message.ends_with(": 2 names were left out or copied in part; correct what is said of each, then copy again")
            );
            assert_eq!(fs::read(copied.join("closed/read-only")).unwrap(), b"content");
            assert_eq!(fs::read(copied.join("second")).unwrap(), b"other");
            assert_eq!(fs::read(copied.join("file")).unwrap(), b"first");
            assert!(copied.join("link").is_dir());
            for tree in [&tree, &copied] {
                fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
            }
        });
    }

    #[test]
    fn nothing_is_copied_to_itself() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        fs::create_dir_all(path("tree/sub")).unwrap();
        fs::write(path("tree/file"), "content").unwrap();
        fs::hard_link(path("tree/file"), path("tree/name")).unwrap();
        for (source, target) in [("tree/file", "tree/file"), ("tree/file", "tree/name"), ("tree", "tree")] {
            let message = copy(true).run(&path(source), &path(target), false).unwrap_err().to_string();
            assert!(message.contains(": is the same ") && message.ends_with("; give another path"), "{message}");
            assert_eq!(fs::read(path("tree/file")).unwrap(), b"content");
        }
        let message = copy(true).run(&path("tree"), &path("tree/sub"), true).unwrap_err().to_string();
        assert!(message.contains(": 1 name was left out"), "{message}");
        assert_eq!(fs::read(path("tree/sub/tree/file")).unwrap(), b"content");
        assert_eq!(fs::read_dir(path("tree/sub/tree/sub")).unwrap().count(), 0);
    }

    #[test]
    fn the_arrays_own_directories_are_left_out() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        for directory in ["tree/member", "tree/other", "copied/other"] {
            fs::create_dir_all(path(directory)).unwrap();
            fs::write(path(directory).join("file"), directory).unwrap();
        }
        let own = Own::directories(&[&path("tree/member"), &path("copied/other")]);
        let message = Copy { own: &own, ..copy(true) }.run(&path("tree"), &path("copied"), false).unwrap_err().to_string();
        assert!(message.contains(": 2 names were left out"), "{message}");
        assert!(!path("copied/member").exists());
        assert_eq!(fs::read(path("copied/other/file")).unwrap(), b"copied/other");
    }

    #[test]
    fn what_cannot_be_read_is_left_and_the_rest_is_copied() {
        crate::tree::tests::as_somebody(|home| {
            let (tree, copied) = (home.join("tree"), home.join("copied"));
            for directory in ["b", "d"] {
                fs::create_dir_all(tree.join(directory)).unwrap();
                fs::write(tree.join(directory).join("below"), b"content").unwrap();
            }
            ["a", "c", "e"].iter().for_each(|name| fs::write(tree.join(name), b"content").unwrap());
            ["a", "b"].iter().for_each(|name| fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o000)).unwrap());
            let message = copy(true).run(&tree, &copied, true).unwrap_err().to_string();
            let tree = tree.display();
            let expected = format!(
                "cxlraid: {tree}: 2 names were left out or copied in part; correct what is said of each, then copy again with -T"
            );
            assert_eq!(message, expected);
            ["c", "d/below", "e"].iter().for_each(|name| assert_eq!(fs::read(copied.join(name)).unwrap(), b"content"));
            assert!(!copied.join("a").exists() && !copied.join("b").exists());
        });
    }

    /// A file whose first block can be read.
    struct ReadInPart;

    impl Content for ReadInPart {
        fn identity(&self) -> io::Result<Identity> {
            Ok((0, 0))
        }
        fn attributes(&self) -> io::Result<Vec<Attribute>> {
            Ok(Vec::new())
        }
        fn set_attribute(&self, _: &Attribute) -> io::Result<()> {
            Ok(())
        }
        fn remove_attribute(&self, _: &CStr) -> io::Result<()> {
            Ok(())
        }
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            if offset > 0 {
                return Err(io::Error::from_raw_os_error(OsError::IO.raw_os_error()));
            }
            buffer[..3].copy_from_slice(b"abc");
            Ok(3)
        }
        fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }
        fn set_bytes(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn set_attributes(&self, _: &Stat) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_copy_in_part_is_told_of_and_does_not_pass_for_the_original() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("source"), home.path().join("target"));
        let then = old_file(&source, b"abcdef", 0o644);
        let stat = Host.open(&source).unwrap().stat;
        let to = crate::tree::tests::directory(&Host, home.path());
        let copied = |is_tree| {
            let (found, own) = (Found::new(stat, Node::File(Box::new(ReadInPart))), Own::default());
            let copying = Copying::new(&Host, &own, is_tree, || 0);
            let result = copying.copy(&found, &*to, &source, &target);
            assert_eq!((result.is_ok(), copying.report.left()), (is_tree, usize::from(is_tree)));
            result.err().map(|failure| failure.to_string()).unwrap_or_default()
        };
        for is_tree in [false, true] {
            let message = copied(is_tree);
            assert_eq!(message.contains("cannot be read at byte 3: Input/output error"), !is_tree, "{message}");
            assert_eq!(message.contains("target is a copy in part"), !is_tree, "{message}");
            assert_eq!(fs::read(&target).unwrap(), b"abc");
            assert_ne!(fs::metadata(&target).unwrap().modified().unwrap(), then);
            fs::remove_file(&target).unwrap();
        }
        // An earlier copy may be all that is left of the file.
        for is_tree in [false, true] {
            fs::write(&target, "earlier").unwrap();
            let message = copied(is_tree);
            assert_eq!(message.contains("target stays as it was"), !is_tree, "{message}");
            assert_eq!(fs::read(&target).unwrap(), b"earlier");
        }
    }
}
