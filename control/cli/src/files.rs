//! The array's files as a [`Tree`]: `add` and `retrieve` use the same core as programs do, in this
//! process.
//!
//! Paths are logical, as programs see them; a symbolic link that leads out of the array is not
//! followed to the host.

use crate::{
    failure::Failure,
    inspect,
    tree::{self, Attribute, CAREFULLY, Content, Directory, Found, Kind, Stat, Tree, names_in, owner_is_kept},
};
use array::Array;
use file::{FileRef, Files};
use namespace::{FileType, Namespace, Node, OFlags, Opened, ProgramPath, Reached};
use std::{
    ffi::{CStr, OsStr, OsString},
    fs, io,
    os::{
        fd::AsFd as _,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};
use sys::{
    OsError,
    rustix::{fs::XattrFlags, process::geteuid},
};

/// The files of an attached array.
pub(crate) struct ArrayFiles {
    names: Namespace,
}

impl ArrayFiles {
    /// Takes over an attached array for the life of the process.
    pub(crate) fn open(array: Array) -> Result<Self, Failure> {
        let config = array.config().clone();
        // What the core is told at its first use of a table names no member; a look without a start
        // does.
        let cannot = |error: OsError| match Array::foresee(&config) {
            Err(why) => inspect::refused("array", &why.to_string()),
            Ok(_) => inspect::refused("array", &io::Error::from(error).to_string()),
        };
        persist::fault::install_handlers().map_err(cannot)?;
        Ok(Self { names: Namespace::new(Files::new(array).map_err(cannot)?).map_err(cannot)? })
    }

    /// The files as the core has them.
    pub(crate) fn core(&self) -> &'static Files {
        self.names.files()
    }

    /// The names as the core has them.
    pub(crate) const fn names(&self) -> &Namespace {
        &self.names
    }

    /// Opens a file, if there is one, without following a symlink: for writing if this user may
    /// write to it and nothing prevents that, as a program of the array that runs, so that what
    /// waits for the first to open it is done.
    pub(crate) fn open_to_scrub(&self, path: &Path) -> io::Result<Option<FileRef>> {
        let try_to = |flags| open_strictly(&self.names, bytes(path), flags);
        let opened = try_to(OFlags::RDWR).or_else(|_| try_to(OFlags::RDONLY))?;
        Ok(if let Node::File(file) = &opened.node { Some(file.clone()) } else { None })
    }

    /// The paths below which the array's files are.
    pub(crate) fn prefixes(&self) -> Vec<PathBuf> {
        let prefixes = &self.names.files().array().config().prefixes;
        prefixes.iter().map(|prefix| PathBuf::from(OsStr::from_bytes(prefix))).collect()
    }

    /// Opens one file after the other for writing, as far as that goes, and changes nothing: what
    /// waits for the first to open a file is done then. `opened` is called with the inode number of
    /// each that could be opened, and tells whether to go on.
    pub(crate) fn open_each_to_write(&self, mut opened: impl FnMut(u64) -> bool) {
        self.each_file(|path| self.file_to_write(path).map_or(true, |file| opened(file.attribute().inode)));
    }

    /// Calls `visit` with the path of each file that has a name, once for each of its names, until
    /// it returns false.
    pub(crate) fn each_file(&self, mut visit: impl FnMut(&Path) -> bool) {
        let mut directories = self.prefixes();
        while let Some(path) = directories.pop() {
            let Ok(Found { node: tree::Node::Directory(directory), .. }) = self.open(&path) else { continue };
            for path in directory.list().unwrap_or_default().into_iter().map(|name| path.join(name)) {
                match inside(self.names.stat(bytes(&path), false)).map(|stat| Stat::of(&stat).kind) {
                    Ok(Kind::Directory) => directories.push(path),
                    Ok(Kind::File) if !visit(&path) => return,
                    _ => {}
                }
            }
        }
    }

    /// Opens a file for writing and closes it, and changes nothing: what waits for the first to
    /// open it is done then. A program that is executed from a copy of the file is no hindrance.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub(crate) fn make_good(&self, path: &Path, attribute: Option<format::Attribute>) -> io::Result<()> {
        match (self.file_to_write(path), attribute) {
            (Err(error), Some(attribute)) if error.raw_os_error() == Some(OsError::TXTBSY.raw_os_error()) => {
                Ok(self.names.compute(bytes(path), attribute)?)
            }
            (opened, _) => opened.map(|_| ()),
        }
    }

    fn file_to_write(&self, path: &Path) -> io::Result<FileRef> {
        match open(&self.names, bytes(path), OFlags::RDWR | OFlags::NOFOLLOW)? {
            Opened { node: Node::File(file), .. } => Ok(file),
            _ => Err(tree::no_file()),
        }
    }

    /// Where a host's file goes if nobody says: to the same path, or, if that is none of the
    /// array's and the array has one path alone, below that.
    pub(crate) fn default_target(&self, host: &Path) -> PathBuf {
        match (&self.prefixes()[..], host.file_name()) {
            ([prefix], Some(name)) if !self.names.owns(&array::config::normalise(bytes(host))) => prefix.join(name),
            _ => host.to_owned(),
        }
    }

    /// Programs could not reach a file outside the array's paths.
    pub(crate) fn require_inside(&self, path: &Path) -> Result<(), Failure> {
        if self.names.owns(&array::config::normalise(bytes(path))) {
            return Ok(());
        }
        let prefixes = &self.names.files().array().config().prefixes;
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| Path::new(OsStr::from_bytes(prefix)).display().to_string()).collect();
        let what = format!("is not below the array's paths ({})", prefixes.join(", "));
        Err(Failure::new(path.display(), what, "give a path below one of them"))
    }
}

impl Drop for ArrayFiles {
    /// Ends the use of the array. The members are given back too: this process may use them once
    /// more, by way of another runtime segment.
    fn drop(&mut self) {
        self.names.files().detach();
        self.names.files().array().abandon();
    }
}

impl Tree for ArrayFiles {
    fn open(&self, path: &Path) -> io::Result<Found> {
        look(&self.names, bytes(path), true)
    }

    /// Which members in use have a name of which they do not agree whether it is there.
    fn why_unread(&self, path: &Path, error: &io::Error) -> Option<String> {
        if error.raw_os_error() != Some(OsError::IO.raw_os_error()) {
            return None;
        }
        let array = self.core().array();
        let name = path.strip_prefix("/").ok()?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for slot in array.in_use().iter() {
            let member = Path::new(OsStr::from_bytes(array.config().mounts.get(slot)?));
            match fs::symlink_metadata(member.join(name)) {
                Ok(_) => with.push(member.display().to_string()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => without.push(member.display().to_string()),
                Err(_) => {}
            }
        }
        if with.is_empty() || without.is_empty() {
            return None;
        }
        Some(format!("it is on {} but not on {}", with.join(", "), without.join(", ")))
    }
}

fn open(names: &Namespace, path: &[u8], flags: OFlags) -> io::Result<Opened> {
    inside(names.open(path, flags | CAREFULLY, 0o600))
}

/// Opens a path that must be without symbolic links: none was there when its directory was opened.
fn open_strictly(names: &Namespace, path: &[u8], flags: OFlags) -> io::Result<Opened> {
    let opened = open(names, path, flags | OFlags::NOFOLLOW)?;
    if opened.path == path { Ok(opened) } else { Err(tree::changed()) }
}

/// What a path leads to; unless `follow`, links in it are not followed.
fn look(names: &Namespace, path: &[u8], follow: bool) -> io::Result<Found> {
    let stat = Stat::of(&inside(names.stat(path, follow))?);
    let unkept = || tree::unkept(|buffer| inside(names.listxattr(path, buffer, follow)));
    match stat.kind {
        Kind::Symlink => {
            let target = OsString::from_vec(inside(names.readlink(path))?).into();
            return Ok(Found { stat, node: tree::Node::Symlink(target), unkept: unkept() });
        }
        Kind::Special(kind) => return Ok(Found { stat, node: tree::Node::Special(kind), unkept: unkept() }),
        Kind::File | Kind::Directory => {}
    }
    let opened = if follow { open(names, path, OFlags::RDONLY) } else { open_strictly(names, path, OFlags::RDONLY) }?;
    let stat = Stat::of(&names.fstat(opened.anchor.as_fd(), &opened.node)?);
    let node = match &opened.node {
        Node::File(_) => tree::Node::File(Box::new(ArrayFile::new(*names, opened)?)),
        Node::Directory(_) => tree::Node::Directory(Box::new(ArrayDirectory { names: *names, opened })),
        _ => match stat.kind {
            Kind::Special(kind) => tree::Node::Special(kind),
            _ => return Err(tree::changed()),
        },
    };
    Ok(Found::new(stat, node))
}

/// An open directory of the array. The core takes paths: each is that of the directory when it was
/// opened, in which there was no symbolic link, and whatever is opened by it must be found without
/// one.
struct ArrayDirectory {
    names: Namespace,
    opened: Opened,
}

impl ArrayDirectory {
    fn path(&self, name: &OsStr) -> Vec<u8> {
        [self.opened.path.as_slice(), b"/", name.as_bytes()].concat()
    }

    /// The path of what is to be changed in the directory, which still lies where it did. Whoever
    /// changes it follows no symbolic link in it ([`ProgramPath::known`]): one may come in the
    /// directory's place meanwhile.
    fn path_to_change(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        open_strictly(&self.names, &self.opened.path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(self.path(name))
    }
}

impl Directory for ArrayDirectory {
    fn list(&self) -> io::Result<Vec<OsString>> {
        let mut names = names_in(&self.opened.anchor)?;
        names.retain(|name| !self.names.hides(&self.opened.path, name.as_bytes()));
        Ok(names)
    }

    fn open(&self, name: &OsStr) -> io::Result<Found> {
        look(&self.names, &self.path(name), false)
    }

    fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(Stat::of(&inside(self.names.stat(ProgramPath::known(&self.path(name)), false))?))
    }

    fn create(&self, name: &OsStr) -> io::Result<Box<dyn Content>> {
        let opened = open_strictly(&self.names, &self.path_to_change(name)?, OFlags::WRONLY | OFlags::CREATE)?;
        let file = ArrayFile::new(self.names, opened)?;
        file.set_bytes(0)?;
        Ok(Box::new(file))
    }

    fn make_directory(&self, name: &OsStr) -> io::Result<Box<dyn Directory>> {
        let path = self.path_to_change(name)?;
        match inside(self.names.mkdir(ProgramPath::known(&path), 0o700)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            made => match open_strictly(&self.names, &path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(opened) => Ok(Box::new(Self { names: self.names, opened })),
                Err(error) => Err(made.err().unwrap_or(error)),
            },
        }
    }

    fn open_up(&self) -> io::Result<()> {
        let (anchor, node) = (self.opened.anchor.as_fd(), &self.opened.node);
        match Stat::of(&self.names.fstat(anchor, node)?).opened_up(geteuid()) {
            Some(mode) => Ok(self.names.fchmod(anchor, node, mode)?),
            None => Ok(()),
        }
    }

    fn make_symlink(&self, target: &Path, name: &OsStr, stat: &Stat) -> io::Result<tree::Identity> {
        let path = self.path_to_change(name)?;
        inside(self.names.symlink(bytes(target), ProgramPath::known(&path)))?;
        let link = open_strictly(&self.names, &path, OFlags::PATH)?;
        let found = Stat::of(&self.names.fstat(link.anchor.as_fd(), &link.node)?);
        if found.kind != Kind::Symlink {
            return Err(tree::changed());
        }
        owner_is_kept(set_owner(&self.names, &link, stat))?;
        self.names.futimens(link.anchor.as_fd(), &link.node, &stat.times())?;
        Ok(found.identity)
    }

    fn make_special(&self, name: &OsStr, kind: FileType, stat: &Stat) -> io::Result<tree::Identity> {
        let path = self.path_to_change(name)?;
        inside(self.names.mknod(ProgramPath::known(&path), kind, 0o600, stat.device))?;
        let made = open_strictly(&self.names, &path, OFlags::PATH)?;
        let found = Stat::of(&self.names.fstat(made.anchor.as_fd(), &made.node)?);
        if !stat.is_fresh_copy(&found) {
            return Err(tree::changed());
        }
        let list = tree::ACCESS_LIST.to_bytes();
        tree::without_attribute(|| inside(self.names.removexattr(ProgramPath::known(&path), list, false)))?;
        set_attributes(&self.names, &made, stat)?;
        Ok(found.identity)
    }

    fn link(&self, file: &Path, name: &OsStr) -> io::Result<tree::Identity> {
        let path = self.path_to_change(name)?;
        inside(self.names.link(bytes(file), ProgramPath::known(&path), false))?;
        Ok(Stat::of(&inside(self.names.stat(ProgramPath::known(&path), false))?).identity)
    }

    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        inside(self.names.unlink(ProgramPath::known(&self.path_to_change(name)?)))
    }

    fn set_attributes(&self, stat: &Stat) -> io::Result<()> {
        set_attributes(&self.names, &self.opened, stat)
    }

    fn attributes(&self) -> io::Result<Vec<Attribute>> {
        attributes_of(&self.names, &self.opened)
    }

    fn set_attribute(&self, attribute: &Attribute) -> io::Result<()> {
        set_attribute(&self.names, &self.opened, attribute)
    }

    fn remove_attribute(&self, name: &CStr) -> io::Result<()> {
        Ok(self.names.fremovexattr(self.opened.anchor.as_fd(), &self.opened.node, name.to_bytes())?)
    }
}

fn attributes_of(names: &Namespace, opened: &Opened) -> io::Result<Vec<Attribute>> {
    let (anchor, node) = (opened.anchor.as_fd(), &opened.node);
    tree::attributes_by(
        |buffer| Ok(names.listxattr_open(anchor, node, buffer)?),
        |name, buffer| Ok(names.getxattr_open(anchor, node, name.to_bytes(), buffer)?),
    )
}

fn set_attribute(names: &Namespace, opened: &Opened, (name, value): &Attribute) -> io::Result<()> {
    Ok(names.fsetxattr(opened.anchor.as_fd(), &opened.node, name.to_bytes(), value, XattrFlags::empty())?)
}

fn set_owner(names: &Namespace, opened: &Opened, stat: &Stat) -> io::Result<()> {
    Ok(names.fchown(opened.anchor.as_fd(), &opened.node, stat.uid, stat.gid)?)
}

fn set_attributes(names: &Namespace, opened: &Opened, stat: &Stat) -> io::Result<()> {
    let owner_is_kept = owner_is_kept(set_owner(names, opened, stat))?;
    let (anchor, node) = (opened.anchor.as_fd(), &opened.node);
    names.fchmod(anchor, node, stat.kept_mode(owner_is_kept))?;
    Ok(names.futimens(anchor, node, &stat.times())?)
}

/// An open file of the array.
struct ArrayFile {
    names: Namespace,
    opened: Opened,
    file: FileRef,
}

impl ArrayFile {
    fn new(names: Namespace, opened: Opened) -> io::Result<Self> {
        match &opened.node {
            Node::File(file) => Ok(Self { names, file: file.clone(), opened }),
            _ => Err(tree::no_file()),
        }
    }
}

impl Content for ArrayFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.file.read_slice(offset, buffer)?)
    }

    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.file.write_slice(offset, bytes)?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[count..];
            offset += count as u64;
        }
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        Ok(self.file.truncate(bytes)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.file.sync()?)
    }

    fn set_attributes(&self, stat: &Stat) -> io::Result<()> {
        set_attributes(&self.names, &self.opened, stat)
    }

    fn identity(&self) -> io::Result<tree::Identity> {
        Ok(Stat::of(&self.names.fstat(self.opened.anchor.as_fd(), &self.opened.node)?).identity)
    }

    fn attributes(&self) -> io::Result<Vec<Attribute>> {
        attributes_of(&self.names, &self.opened)
    }

    fn set_attribute(&self, attribute: &Attribute) -> io::Result<()> {
        set_attribute(&self.names, &self.opened, attribute)
    }

    fn remove_attribute(&self, name: &CStr) -> io::Result<()> {
        Ok(self.names.fremovexattr(self.opened.anchor.as_fd(), &self.opened.node, name.to_bytes())?)
    }
}

/// What was reached in the array; leaving it through a symbolic link is an error here.
pub(crate) fn inside<T, H>(reached: sys::Result<Reached<T, H>>) -> io::Result<T> {
    match reached? {
        Reached::Array(value) => Ok(value),
        Reached::Host(_) => Err(io::Error::other("it leads out of the array")),
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{
        Host,
        tests::{as_somebody, directory, stat_of_another},
    };

    /// An array of two copies in `home`, with a directory /data.
    fn with_array(home: &Path, act: impl FnOnce(&ArrayFiles)) {
        let members = ["a", "b"].map(|name| home.join(name));
        members.iter().for_each(|member| fs::create_dir(member).unwrap());
        let mounts = members.map(|member| bytes(&member).to_vec());
        let config = array::Config::new(layout::Level::Raid1, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
        let array = Array::attach(&config).unwrap();
        let segment = format!("/dev/shm/cxlraid-{}", array.uuid());
        let files = ArrayFiles::open(array).unwrap();
        act(&files);
        drop(files);
        fs::remove_file(segment).unwrap();
    }

    #[test]
    fn a_program_of_anothers_does_not_run_with_the_copiers_rights() {
        as_somebody(|home| {
            with_array(home, |files| {
                for (tree, path) in [(files as &dyn Tree, Path::new("/data")), (&Host, home)] {
                    let (here, name) = (directory(tree, path), OsStr::new("program"));
                    let file = here.create(name).unwrap();
                    file.set_attributes(&stat_of_another(0o6755)).unwrap();
                    let own = here.open(name).unwrap().stat;
                    assert_eq!((own.mode, own.modified), (0o755, stat_of_another(0).modified));
                    file.set_attributes(&Stat { mode: 0o6755, ..own }).unwrap();
                    assert_eq!(here.open(name).unwrap().stat.mode, 0o6755);
                }
            });
        });
    }

    #[test]
    fn files_of_the_array_have_attributes_and_several_names() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        with_array(home.path(), |files| {
            let here = directory(files, Path::new("/data"));
            let file = here.create(OsStr::new("file")).unwrap();
            let note = (c"user.note".to_owned(), b"mine".to_vec());
            file.set_attribute(&note).unwrap();
            here.set_attribute(&note).unwrap();
            assert_eq!([file.attributes().unwrap(), here.attributes().unwrap()], [vec![note.clone()], vec![note]]);
            let made = here.link(Path::new("/data/file"), OsStr::new("other")).unwrap();
            assert_eq!(made, file.identity().unwrap());
            assert_eq!(here.open(OsStr::new("other")).unwrap().stat.links, 2);
            here.unlink(OsStr::new("other")).unwrap();
            assert!(here.open(OsStr::new("other")).is_err());
        });
    }

    #[test]
    fn names_in_a_directory_are_not_followed() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        with_array(home.path(), |files| {
            let here = directory(files, Path::new("/data"));
            let [victim, file, sub, moved] = ["victim", "file", "sub", "moved"].map(OsStr::new);
            here.create(victim).unwrap().write_all_at(b"secret", 0).unwrap();
            let stat = here.open(victim).unwrap().stat;
            here.make_symlink(Path::new("victim"), file, &stat).unwrap();
            assert!(here.create(file).is_err());
            let elsewhere = here.make_directory(OsStr::new("elsewhere")).unwrap();
            let below = here.make_directory(sub).unwrap();
            below.create(victim).unwrap();
            // The directory is open, and its name leads elsewhere now.
            let path = |name: &OsStr| [b"/data/", name.as_bytes()].concat();
            let renamed = files.names.rename(&path(sub), &path(moved), namespace::RenameFlags::empty());
            assert!(matches!(renamed, Ok(Reached::Array(()))));
            here.make_symlink(Path::new("elsewhere"), sub, &stat).unwrap();
            assert!(here.make_directory(sub).is_err());
            assert!(below.open(victim).is_err());
            assert!(below.create(file).is_err());
            assert!(below.make_directory(file).is_err());
            assert!(below.make_symlink(Path::new("x"), file, &stat).is_err());
            assert!(elsewhere.list().unwrap().is_empty());
            assert_eq!(here.open(victim).unwrap().stat, stat);
            // What is open keeps its attributes to itself, wherever its name leads.
            below.set_attributes(&Stat { mode: 0o711, ..stat }).unwrap();
            assert_eq!(here.open(moved).unwrap().stat.mode, 0o711);
            assert_eq!(here.open(OsStr::new("elsewhere")).unwrap().stat.mode, 0o700);
        });
    }
}
