//! An array seen from outside: its members' trees, and the redundancy of its files.
//!
//! It is for a process of its own, without interception, on the crates the library is made of. The
//! array is what the usual variables say.

use array::{Array, Config};
use file::{FileRef, Files};
use namespace::{Namespace, Node, OFlags, Reached};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

/// Files up to this size are read whole; longer ones are sparse, and reading their holes would fill
/// the members' memory.
pub const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// The file type's bits of a mode, and those of a regular file (stat(2), inode(7)).
const TYPE_BITS: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// An attached array. One in a process' life.
pub struct View {
    files: &'static Files,
    names: Namespace,
}

/// What must be the same on all members: mode, owners and the number of names.
type Entry = (u32, u32, u32, u64);

/// What is wrong with the array that the environment names, of which no program is using anything:
/// members' trees that differ, redundancy that does not fit the data.
pub fn scrub() -> Result<Vec<String>, String> {
    let view = View::attach()?;
    let mut wrong = Vec::new();
    for path in view.paths(&mut wrong, false)? {
        view.redundancy(&path, &mut wrong)?;
    }
    Ok(wrong)
}

/// What lies in the host's directory of a prefix's name, which programs on an array must never
/// reach.
#[must_use]
pub fn leaked(prefix: &Path) -> Vec<String> {
    let entries = fs::read_dir(prefix).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

impl View {
    /// Attaches to the array that the environment names.
    pub fn attach() -> Result<Self, String> {
        persist::fault::install_handlers().map_err(|error| format!("handlers: {error:?}"))?;
        let variable = |name: &str| std::env::var_os(name).map(|value| value.into_vec());
        let config = Config::from_lookup(variable).map_err(|error| error.to_string())?.ok_or("no array in the environment")?;
        let array = Array::attach(&config).map_err(|error| error.to_string())?;
        let files = Files::new(array).map_err(|error| format!("{error:?}"))?;
        Ok(Self { files, names: Namespace::new(files).map_err(|error| format!("{error:?}"))? })
    }

    /// The files as the core has them.
    pub fn files(&self) -> &'static Files {
        self.files
    }

    /// The names as the core has them.
    #[must_use]
    pub const fn names(&self) -> &Namespace {
        &self.names
    }

    /// Slots and directories of the members in use.
    pub fn roots(&self) -> Vec<(usize, PathBuf)> {
        let array = self.files.array();
        let path = |slot: usize| PathBuf::from(OsStr::from_bytes(&array.members()[slot].path));
        array.in_use().iter().map(|slot| (slot, path(slot))).collect()
    }

    /// The files, and whether the members' trees agree. While processes are at work (`live`) they
    /// need not.
    pub fn paths(&self, wrong: &mut Vec<String>, live: bool) -> Result<Vec<PathBuf>, String> {
        let mut trees = Vec::new();
        for (slot, root) in self.roots() {
            let mut entries = BTreeMap::new();
            match collect(&root, &root, &mut entries) {
                Err(error) if !live => return Err(format!("member {slot}: {error}")),
                _ => trees.push((slot, entries)),
            }
        }
        let (first, rest) = trees.split_first().ok_or("no member is in use")?;
        for (slot, entries) in rest.iter().filter(|_| !live) {
            if *entries != first.1 {
                wrong.push(format!("members {} and {slot} differ: {:?} and {entries:?}", first.0, first.1));
            }
        }
        let is_file = |entry: &Entry| entry.0 & TYPE_BITS == REGULAR;
        Ok(first.1.iter().filter(|(_, entry)| is_file(entry)).map(|(path, _)| Path::new("/").join(path)).collect())
    }

    /// Has all files computed that wait for members which are made anew, and says that these are in
    /// sync.
    pub fn compute(&self) -> Result<(), String> {
        let array = self.files.array();
        let rebuilding = array.members().iter().filter(|member| member.is_rebuilding).map(|member| member.slot).collect();
        for path in self.paths(&mut Vec::new(), false)? {
            self.open_for(&path, OFlags::RDWR)?;
        }
        let waits = self.files.unbuilt().map_err(|error| format!("{error:?}"))?;
        if !waits.is_empty() {
            return Err(format!("files wait to be computed: {waits:?}"));
        }
        array.end_rebuild(rebuilding).map_err(|error| format!("{error:?}"))
    }

    /// Opens a file by the path that programs see.
    pub fn open(&self, path: &Path) -> Result<FileRef, String> {
        self.open_for(path, OFlags::RDONLY)
    }

    fn open_for(&self, path: &Path, access: OFlags) -> Result<FileRef, String> {
        match self.names.open(path.as_os_str().as_bytes(), access | OFlags::CLOEXEC, 0) {
            Ok(Reached::Array(opened)) => match opened.node {
                Node::File(file) => Ok(file),
                _ => Err(format!("{}: not a file", path.display())),
            },
            Ok(Reached::Host(_)) => Err(format!("{}: led out of the array", path.display())),
            Err(error) => Err(format!("{}: {error:?}", path.display())),
        }
    }

    /// Whether a file's copies and parity fit its data.
    pub fn redundancy(&self, path: &Path, wrong: &mut Vec<String>) -> Result<(), String> {
        let file = self.open(path)?;
        if file.size() > WHOLE_BYTES_MAX {
            return Ok(());
        }
        match file.verify() {
            Ok(0) => {}
            Ok(count) => wrong.push(format!("{}: {count} bytes of redundancy do not fit", path.display())),
            Err(error) => wrong.push(format!("{}: verify: {error:?}", path.display())),
        }
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.files.detach();
    }
}

/// Types, modes, owners and numbers of names below a member, without what the array keeps there.
fn collect(root: &Path, directory: &Path, entries: &mut BTreeMap<PathBuf, Entry>) -> std::io::Result<()> {
    for found in fs::read_dir(directory)? {
        let path = found?.path();
        let relative = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
        if relative.as_os_str().as_bytes() == format::DIRECTORY.to_bytes() {
            continue;
        }
        let metadata = fs::symlink_metadata(&path)?;
        let link_count = if metadata.is_dir() { 0 } else { metadata.nlink() };
        entries.insert(relative, (metadata.mode(), metadata.uid(), metadata.gid(), link_count));
        if metadata.is_dir() {
            collect(root, &path, entries)?;
        }
    }
    Ok(())
}
