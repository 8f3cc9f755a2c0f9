//! `add` and `retrieve`: copies between the host's files and the array's.
//!
//! Modes, times, extended attributes and access control lists are kept, owners where the user may set them (without, no program keeps set-user-ID), symbolic links as links, several names of one file as
//! such, long runs of zeros as holes. As with cp, a destination that is a directory gets the copy inside it; missing directories above a destination are made.

use crate::{
    failure::Failure,
    tree::{Attribute, Content, Directory, Found, Identity, Kind, Node, Stat, Tree},
    view::shown,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ffi::OsStr,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};
use sys::OsError;

/// Bytes per read and write: large enough for full-stripe writes, small enough for a smooth bar.
const BLOCK_BYTES: usize = 4 << 20;
/// Zeros are looked for in pieces of this size.
const HOLE_BYTES: usize = 64 << 10;
/// Shorter copies end before a bar could be read.
const BAR_BYTES_MIN: u64 = 64 << 20;

/// One copy command.
pub(crate) struct Copy<'a> {
    pub(crate) from: &'a dyn Tree,
    pub(crate) to: &'a dyn Tree,
    /// Directories too.
    pub(crate) recursive: bool,
}

impl Copy<'_> {
    /// Copies `source` to `target`; `into_directories` says that `target` was typed, not taken from `source`.
    pub(crate) fn run(&self, source: &Path, target: &Path, into_directories: bool) -> Result<(), Failure> {
        // A link that was named means the file; a link found below means itself.
        let found = self.from.open(source).map_err(|error| cannot(source, "be read", &error))?;
        if found.stat.kind == Kind::Directory && !self.recursive {
            return Err(Failure::new(source.display(), "is a directory", "add -r to copy directories"));
        }
        let mut total_bytes = 0;
        measure(&found, source, &mut total_bytes)?;
        let copying = Copying::new(bar(total_bytes));
        let result = self.to_target(&copying, &found, source, target, into_directories);
        copying.bar.finish_and_clear();
        result
    }

    fn to_target(
        &self,
        copying: &Copying,
        found: &Found,
        source: &Path,
        target: &Path,
        into_directories: bool,
    ) -> Result<(), Failure> {
        let cannot = |error: io::Error| cannot(target, "be created", &error);
        if let Ok(Found { node: Node::Directory(directory), .. }) = self.to.open(target) {
            match (source.file_name(), &found.node) {
                (Some(name), _) if into_directories => return copying.copy(found, &*directory, source, &target.join(name)),
                (_, Node::Directory(from)) => return copying.copy_directory(found, &**from, &*directory, source, target),
                _ => {}
            }
        }
        let parent = target.parent().ok_or_else(|| cannot(io::ErrorKind::AlreadyExists.into()))?;
        let directory = self.directory(parent)?;
        copying.copy(found, &*directory, source, target)
    }

    /// A directory of the tree that is copied to; made with those above it if it is not there.
    fn directory(&self, path: &Path) -> Result<Box<dyn Directory>, Failure> {
        let failed = |error: io::Error| cannot(path, "be created", &error);
        match self.to.open(path) {
            Ok(Found { node: Node::Directory(directory), .. }) => return Ok(directory),
            Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Err(_) => {}
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::NotFound.into()));
        };
        let above = self.directory(parent)?;
        let made = above.make_directory(name).map_err(failed)?;
        let stat = above.open(name).map_err(failed)?.stat;
        // Not the umask's business: a copy has its own mode, and what leads to it can be entered.
        made.set_attributes(&Stat { mode: MADE_MODE, ..stat }).map_err(|error| cannot(path, GET_ATTRIBUTES, &error))?;
        Ok(made)
    }
}

/// The mode of directories that are made to hold a copy.
const MADE_MODE: u32 = 0o755;

/// Adds up the files' lengths, and refuses what cannot be copied before anything is made.
fn measure(found: &Found, path: &Path, total_bytes: &mut u64) -> Result<(), Failure> {
    match &found.node {
        Node::File(_) => *total_bytes += found.stat.bytes,
        Node::Directory(directory) => {
            for_each_entry(&**directory, path, |found, path| measure(found, path, total_bytes))?;
        }
        Node::Symlink(_) => {}
        Node::Other => return Err(not_copied(path)),
    }
    Ok(())
}

fn not_copied(path: &Path) -> Failure {
    Failure::new(path.display(), "is neither a file, a directory nor a symbolic link", "leave it out")
}

/// Calls `act` for what is in a directory, by name.
fn for_each_entry(
    directory: &dyn Directory,
    path: &Path,
    mut act: impl FnMut(&Found, &Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut names = directory.list().map_err(|error| cannot(path, "be read", &error))?;
    names.sort();
    for name in names {
        let path = path.join(&name);
        let found = directory.open(&name).map_err(|error| cannot(&path, "be read", &error))?;
        act(&found, &path)?;
    }
    Ok(())
}

/// A copy under way.
struct Copying {
    bar: ProgressBar,
    /// Files with several names that were copied, by their identity: the copy's path and identity.
    copied: RefCell<HashMap<Identity, (PathBuf, Identity)>>,
    /// Whether it was said that attributes cannot be kept.
    told: Cell<bool>,
}

impl Copying {
    fn new(bar: ProgressBar) -> Self {
        Self { bar, copied: RefCell::default(), told: Cell::new(false) }
    }

    /// Makes `name` another name of the copy of a file that was copied under another one. False if that cannot be: then it is copied again.
    fn link(&self, found: &Found, to: &dyn Directory, name: &OsStr) -> bool {
        let copied = self.copied.borrow();
        let Some((first, identity)) = copied.get(&found.stat.identity) else { return false };
        match to.link(first, name) {
            Ok(made) if made == *identity => true,
            // Somebody has put another file in the first one's place: this name must not be that file's.
            Ok(_) => {
                let _ = to.unlink(name);
                false
            }
            Err(_) => false,
        }
    }

    /// Gives a copy the extended attributes of what it is a copy of. A file system without them is told of once.
    fn copy_attributes(
        &self,
        from: io::Result<Vec<Attribute>>,
        set: impl Fn(&Attribute) -> io::Result<()>,
        source: &Path,
        target: &Path,
    ) -> Result<(), Failure> {
        for attribute in from.map_err(|error| cannot(source, "be read", &error))? {
            match set(&attribute) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(OsError::OPNOTSUPP.raw_os_error()) => {
                    if !self.told.replace(true) {
                        let name = shown(&attribute.0.to_string_lossy());
                        let what = format!("warning: extended attributes cannot be kept here ({name} of {})", source.display());
                        eprintln!("{}", Failure::new(target.display(), what, "copy to a file system that has them"));
                    }
                }
                Err(error) => return Err(cannot(target, "get its extended attributes", &error)),
            }
        }
        Ok(())
    }

    /// Copies what was found at `source` to the name that `target` ends with, in the directory `to`.
    fn copy(&self, found: &Found, to: &dyn Directory, source: &Path, target: &Path) -> Result<(), Failure> {
        let cannot_create = |error: io::Error| cannot(target, "be created", &error);
        let name = target.file_name().ok_or_else(|| cannot_create(io::ErrorKind::AlreadyExists.into()))?;
        match &found.node {
            Node::Directory(from) => {
                let to = to.make_directory(name).map_err(cannot_create)?;
                self.copy_directory(found, &**from, &*to, source, target)
            }
            Node::File(_) if found.stat.links > 1 && self.link(found, to, name) => {
                self.bar.inc(found.stat.bytes);
                Ok(())
            }
            Node::File(from) => {
                let copy = to.create(name).map_err(cannot_create)?;
                self.copy_content(&**from, &*copy, found.stat.bytes, source, target)?;
                self.copy_attributes(from.attributes(), |attribute| copy.set_attribute(attribute), source, target)?;
                copy.set_attributes(&found.stat).map_err(|error| cannot(target, GET_ATTRIBUTES, &error))?;
                if found.stat.links > 1 {
                    let identity = copy.identity().map_err(cannot_create)?;
                    self.copied.borrow_mut().insert(found.stat.identity, (target.to_owned(), identity));
                }
                Ok(())
            }
            Node::Symlink(link) => to.make_symlink(link, name, &found.stat).map_err(cannot_create),
            Node::Other => Err(not_copied(source)),
        }
    }

    fn copy_directory(
        &self,
        found: &Found,
        from: &dyn Directory,
        to: &dyn Directory,
        source: &Path,
        target: &Path,
    ) -> Result<(), Failure> {
        for_each_entry(from, source, |found, source| {
            self.copy(found, to, source, &target.join(source.file_name().unwrap_or_default()))
        })?;
        self.copy_attributes(from.attributes(), |attribute| to.set_attribute(attribute), source, target)?;
        to.set_attributes(&found.stat).map_err(|error| cannot(target, GET_ATTRIBUTES, &error))
    }

    fn copy_content(
        &self,
        from: &dyn Content,
        to: &dyn Content,
        bytes: u64,
        source: &Path,
        target: &Path,
    ) -> Result<(), Failure> {
        self.bar.set_message(shown(&target.to_string_lossy()));
        let mut buffer = vec![0; BLOCK_BYTES.min((bytes as usize).max(HOLE_BYTES))];
        let mut offset = 0;
        loop {
            let count = from.read_at(&mut buffer, offset).map_err(|error| cannot(source, "be read", &error))?;
            if count == 0 {
                break;
            }
            write_sparse(to, &buffer[..count], offset).map_err(|error| cannot(target, "be written", &error))?;
            offset += count as u64;
            self.bar.inc(count as u64);
        }
        to.set_bytes(offset).and_then(|()| to.sync()).map_err(|error| cannot(target, "be written", &error))
    }
}

const GET_ATTRIBUTES: &str = "get its mode and times";

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

/// A bar on a terminal for long copies, otherwise one that shows nothing.
fn bar(total_bytes: u64) -> ProgressBar {
    if total_bytes < BAR_BYTES_MIN || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {wide_msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total_bytes).with_style(style)
}

fn cannot(path: &Path, what: &str, error: &io::Error) -> Failure {
    let todo = match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check its permissions",
        io::ErrorKind::AlreadyExists => "remove it first",
        io::ErrorKind::StorageFull => "make room, then copy again",
        _ => "correct the cause, then copy again",
    };
    if error.raw_os_error() == Some(OsError::LOOP.raw_os_error()) {
        return Failure::new(
            path.display(),
            format!("cannot {what}: it is a symbolic link"),
            "name what it leads to, or remove it",
        );
    }
    Failure::new(path.display(), format!("cannot {what}: {}", error), todo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Host;
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
        time::{Duration, SystemTime},
    };

    fn copy(recursive: bool) -> Copy<'static> {
        Copy { from: &Host, to: &Host, recursive }
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
        // A list that lets user 7 read: of the owner, user 7, the group, the mask, others (posix_acl_xattr.h).
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
        // Its file becomes a link to another, and its directory another directory, when the copy has begun.
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
        let file = Found { stat, node: Node::File(Box::new(Trap(fs::File::open(path("source")).unwrap(), replace))) };
        let to = crate::tree::tests::directory(&Host, &path("target/sub"));
        Copying::new(ProgressBar::hidden()).copy(&file, &*to, &path("source"), &path("target/sub/file")).unwrap();
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
        let message = copy(true).run(Path::new("/dev/null"), &missing, true).unwrap_err().to_string();
        assert!(message.contains("is neither a file"), "{message}");
    }
}
