//! Looks at an array from outside: redundancy, members' trees, contents; with a member missing too.
//!
//! Runs in a process of its own, without interception, on the crates the library is made of. The array is what the usual variables say.

use crate::expected::{self, File};
use array::{Array, Config};
use file::{FileRef, Files};
use layout::Level;
use namespace::{Namespace, Node, OFlags, Reached};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files up to this size are read whole; longer ones are sparse, and reading their holes would fill the members' memory.
const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// What is to be looked at.
#[derive(Default)]
pub(crate) struct Wish {
    /// Contents that files must have.
    pub(crate) expected: Option<PathBuf>,
    /// Where contents are written, for checks that follow.
    pub(crate) save: Option<PathBuf>,
    /// Processes are at work: only redundancy holds still.
    pub(crate) live: bool,
}

/// Returns what is wrong.
pub(crate) fn check(wish: &Wish) -> Result<Vec<String>, String> {
    persist::fault::install_handlers().map_err(|error| format!("handlers: {error:?}"))?;
    let variable = |name: &str| std::env::var_os(name).map(OsStringExt::into_vec);
    let config = Config::from_lookup(variable).map_err(|error| error.to_string())?.ok_or("no array in the environment")?;
    let array = Array::attach(&config).map_err(|error| error.to_string())?;
    let files = Files::new(array).map_err(|error| format!("{error:?}"))?;
    let checker = Checker { files, names: Namespace::new(files).map_err(|error| format!("{error:?}"))? };
    let mut wrong = Vec::new();
    let paths = checker.paths(&mut wrong, wish.live)?;
    for path in &paths {
        checker.redundancy(path, &mut wrong)?;
    }
    if !wish.live {
        checker.contents(wish, &paths, &mut wrong)?;
    }
    files.detach();
    Ok(wrong)
}

struct Checker {
    files: &'static Files,
    names: Namespace,
}

/// What must be the same on all members.
type Entry = (u32, u32, u32, u64);

impl Checker {
    fn roots(&self) -> Vec<(usize, PathBuf)> {
        let array = self.files.array();
        let path = |slot: usize| PathBuf::from(OsStr::from_bytes(&array.members()[slot].path));
        array.in_use().iter().map(|slot| (slot, path(slot))).collect()
    }

    /// The files, and whether the members' trees agree.
    fn paths(&self, wrong: &mut Vec<String>, live: bool) -> Result<Vec<PathBuf>, String> {
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
        let is_file = |entry: &Entry| entry.0 & libc::S_IFMT == libc::S_IFREG;
        Ok(first.1.iter().filter(|(_, entry)| is_file(entry)).map(|(path, _)| Path::new("/").join(path)).collect())
    }

    fn open(&self, path: &Path) -> Result<FileRef, String> {
        match self.names.open(path.as_os_str().as_bytes(), OFlags::RDONLY | OFlags::CLOEXEC, 0) {
            Ok(Reached::Array(opened)) => match opened.node {
                Node::File(file) => Ok(file),
                _ => Err(format!("{}: not a file", path.display())),
            },
            Ok(Reached::Host(_)) => Err(format!("{}: led out of the array", path.display())),
            Err(error) => Err(format!("{}: {error:?}", path.display())),
        }
    }

    fn redundancy(&self, path: &Path, wrong: &mut Vec<String>) -> Result<(), String> {
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

    fn contents(&self, wish: &Wish, paths: &[PathBuf], wrong: &mut Vec<String>) -> Result<(), String> {
        if let Some(expected) = &wish.expected {
            let expected = expected::load(expected).map_err(|error| format!("{}: {error}", expected.display()))?;
            for file in &expected {
                self.compare(file, wrong)?;
            }
            if expected.len() != paths.len() {
                wrong.push(format!("{} files, not {}", paths.len(), expected.len()));
            }
        }
        if let Some(save) = &wish.save {
            let read = |path: &PathBuf| {
                let file = self.open(path)?;
                let size = file.size();
                let whole = vec![(0, read(&file, 0, size as usize)?)];
                Ok(File { path: path.clone(), size, extents: whole })
            };
            let files = paths.iter().map(read).collect::<Result<Vec<_>, String>>()?;
            expected::save(save, &files).map_err(|error| format!("{}: {error}", save.display()))?;
        }
        Ok(())
    }

    fn compare(&self, expected: &File, wrong: &mut Vec<String>) -> Result<(), String> {
        let file = self.open(&expected.path)?;
        let name = expected.path.display();
        if file.size() != expected.size {
            wrong.push(format!("{name}: size {}, not {}", file.size(), expected.size));
            return Ok(());
        }
        for (offset, bytes) in &expected.extents {
            let got = read(&file, *offset, bytes.len())?;
            if got != *bytes {
                wrong.push(format!("{name} from {offset} on: {}", expected::difference(bytes, &got)));
            }
        }
        if self.files.array().geometry().level() == Level::Raid1 && expected.size <= WHOLE_BYTES_MAX {
            self.compare_plain(expected, wrong);
        }
        Ok(())
    }

    /// A mirror is a plain file.
    fn compare_plain(&self, expected: &File, wrong: &mut Vec<String>) {
        for (slot, root) in self.roots() {
            let path = root.join(expected.path.strip_prefix("/").unwrap_or(&expected.path));
            let plain = fs::read(&path).unwrap_or_default();
            if plain.len() as u64 != expected.size {
                wrong.push(format!("{} on member {slot}: {} bytes, not {}", path.display(), plain.len(), expected.size));
                continue;
            }
            for (offset, bytes) in &expected.extents {
                if plain[*offset as usize..][..bytes.len()] != **bytes {
                    wrong.push(format!("{} on member {slot} differs from {offset} on", path.display()));
                }
            }
        }
    }
}

fn read(file: &FileRef, offset: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let mut buffer = vec![0; bytes];
    // SAFETY: the buffer is ours.
    let count = unsafe { file.read_at(offset, buffer.as_mut_ptr(), bytes) }.map_err(|error| format!("read: {error:?}"))?;
    if count == bytes { Ok(buffer) } else { Err(format!("{count} bytes read, not {bytes}")) }
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
