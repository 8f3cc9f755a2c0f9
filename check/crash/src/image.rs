//! What a member holds: a tree of names, and the contents of the files they lead to.

use crate::log::ObjectId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 4096;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Directory,
    File(ObjectId),
    Symlink(PathBuf),
}

/// A name with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The names of a member, relative to its directory; parents come before what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tree(pub(crate) BTreeMap<PathBuf, Node>);

/// The bytes of a file; pages that are not there are zeros.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
}

/// All members.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Image {
    pub(crate) trees: Vec<Tree>,
    pub(crate) objects: Vec<Content>,
}

impl Content {
    /// The bytes of an open file.
    pub(crate) fn of(file: &fs::File) -> io::Result<Self> {
        let mut content = Self { bytes: file.metadata()?.len(), pages: BTreeMap::new() };
        let mut page = vec![0; PAGE];
        for index in 0..content.bytes.div_ceil(PAGE as u64) {
            page.fill(0);
            let wanted = (content.bytes - index * PAGE as u64).min(PAGE as u64) as usize;
            file.read_exact_at(&mut page[..wanted], index * PAGE as u64)?;
            if page.iter().any(|&byte| byte != 0) {
                content.pages.insert(index, Arc::new(page.clone()));
            }
        }
        Ok(content)
    }

    /// Stores bytes; what lies behind the end is lost.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        let kept = self.bytes.saturating_sub(at).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < kept {
            let (index, within) = ((at + done as u64) / PAGE as u64, ((at + done as u64) % PAGE as u64) as usize);
            let step = (PAGE - within).min(kept - done);
            let page = self.pages.entry(index).or_insert_with(|| Arc::new(vec![0; PAGE]));
            Arc::make_mut(page)[within..within + step].copy_from_slice(&bytes[done..done + step]);
            done += step;
        }
    }

    #[cfg(test)]
    pub(crate) fn byte(&self, at: u64) -> u8 {
        self.pages.get(&(at / PAGE as u64)).map_or(0, |page| page[(at % PAGE as u64) as usize])
    }

    /// The aligned word at `at`.
    pub(crate) fn word(&self, at: u64) -> [u8; 8] {
        let within = (at % PAGE as u64) as usize;
        let word = |page: &Arc<Vec<u8>>| page[within..].first_chunk().copied();
        self.pages.get(&(at / PAGE as u64)).and_then(word).unwrap_or_default()
    }

    pub(crate) fn zero(&mut self, at: u64, bytes: u64) {
        let end = (at + bytes).min(self.bytes);
        let mut at = at;
        while at < end {
            let step = (PAGE as u64 - at % PAGE as u64).min(end - at);
            if step == PAGE as u64 {
                self.pages.remove(&(at / PAGE as u64));
            } else if let Some(page) = self.pages.get_mut(&(at / PAGE as u64)) {
                let within = (at % PAGE as u64) as usize;
                Arc::make_mut(page)[within..within + step as usize].fill(0);
            }
            at += step;
        }
    }

    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.zero(bytes, self.bytes - bytes);
            // Also the one that was cut in two by the old end: laid out it would make the file
            // longer again.
            self.pages.retain(|&index, _| index * (PAGE as u64) < bytes);
        }
        self.bytes = bytes;
    }

    fn write(&self, path: &Path, mode: u32) -> io::Result<()> {
        let file = fs::File::create(path)?;
        file.set_len(self.bytes)?;
        for (index, page) in &self.pages {
            let kept = self.bytes.saturating_sub(index * PAGE as u64).min(PAGE as u64) as usize;
            file.write_all_at(&page[..kept], index * PAGE as u64)?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))
    }
}

impl Tree {
    /// The names below a directory; `object` numbers a file by its metadata and path.
    pub(crate) fn of(root: &Path, mut object: impl FnMut(&fs::Metadata, &Path) -> ObjectId) -> io::Result<Self> {
        let mut tree = Self::default();
        let mut pending = vec![PathBuf::new()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(root.join(&directory))? {
                let relative = directory.join(entry?.file_name());
                let path = root.join(&relative);
                let metadata = path.symlink_metadata()?;
                let kind = if metadata.is_dir() {
                    pending.push(relative.clone());
                    Kind::Directory
                } else if metadata.is_symlink() {
                    Kind::Symlink(fs::read_link(&path)?)
                } else {
                    Kind::File(object(&metadata, &path))
                };
                let attributes = if metadata.is_symlink() { BTreeMap::new() } else { attributes(&path)? };
                let owner = (metadata.uid(), metadata.gid());
                tree.0.insert(relative, Node { kind, mode: metadata.mode() & 0o7777, owner, attributes });
            }
        }
        Ok(tree)
    }
}

/// What a medium has lost of a member's metadata: the end of one of its files, which is zeros now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) member: usize,
    /// The file's name below `.cxlraid`.
    pub(crate) file: &'static str,
    pub(crate) from: u64,
}

impl Image {
    /// The image with that damage; as it is if the member has no such file.
    pub(crate) fn damaged(mut self, damage: &Damage) -> Self {
        let path = Path::new(".cxlraid").join(damage.file);
        if let Some(Node { kind: Kind::File(object), .. }) = self.trees[damage.member].0.get(&path) {
            let content = &mut self.objects[*object];
            content.zero(damage.from, content.bytes.saturating_sub(damage.from));
        }
        self
    }

    /// Lays the members out below `home` as directories `m0`, `m1`, …; those in `lost` are empty
    /// directories.
    pub(crate) fn lay_out(&self, home: &Path, lost: u32) -> io::Result<()> {
        for (member, tree) in self.trees.iter().enumerate() {
            let root = member_directory(home, member);
            fs::create_dir_all(&root)?;
            if lost >> member & 1 == 0 {
                self.lay_out_member(&root, tree)?;
            }
        }
        Ok(())
    }

    /// Lays out one member that was left out.
    pub(crate) fn lay_out_lost(&self, home: &Path, member: usize) -> io::Result<()> {
        self.lay_out_member(&member_directory(home, member), &self.trees[member])
    }

    fn lay_out_member(&self, root: &Path, tree: &Tree) -> io::Result<()> {
        let mut first_names: BTreeMap<ObjectId, PathBuf> = BTreeMap::new();
        for (relative, node) in &tree.0 {
            let path = root.join(relative);
            match &node.kind {
                Kind::Directory => {
                    fs::create_dir(&path)?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(node.mode))?;
                }
                Kind::Symlink(target) => std::os::unix::fs::symlink(target, &path)?,
                Kind::File(object) => match first_names.get(object) {
                    Some(first) => {
                        fs::hard_link(first, &path)?;
                        continue;
                    }
                    None => {
                        self.objects[*object].write(&path, node.mode)?;
                        first_names.insert(*object, path.clone());
                    }
                },
            }
            if !node.attributes.is_empty() {
                set_attributes(&path, &node.attributes)?;
            }
        }
        Ok(())
    }
}

/// Where a member's directory lies.
pub(crate) fn member_directory(home: &Path, member: usize) -> PathBuf {
    home.join(format!("m{member}"))
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// The extended attributes of a file or directory.
pub(crate) fn attributes(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = [0u8; 1024];
    let bytes = sys::rustix::fs::llistxattr(path, &mut list[..])?;
    let mut found = BTreeMap::new();
    for name in list[..bytes].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1024];
        let bytes = sys::rustix::fs::lgetxattr(path, OsStr::from_bytes(name), value.as_mut_slice())?;
        value.truncate(bytes);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

fn set_attributes(path: &Path, attributes: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
    let path = c_path(path)?;
    for (name, value) in attributes {
        sys::rustix::fs::lsetxattr(path.as_c_str(), name.as_slice(), value, sys::rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_laid_out_is_read_back() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let attributes = BTreeMap::from([(b"user.note".to_vec(), b"x".to_vec())]);
        let node = |kind| Node { kind, mode: 0o640, owner: (0, 0), attributes: BTreeMap::new() };
        let mut content = Content { bytes: 9000, pages: BTreeMap::new() };
        content.put(4090, b"across a page");
        content.put(8998, b"behind the end");
        let names = [
            ("d", Node { mode: 0o755, ..node(Kind::Directory) }),
            ("d/a", Node { attributes: attributes.clone(), ..node(Kind::File(0)) }),
            ("d/b", Node { attributes, ..node(Kind::File(0)) }),
            ("l", Node { mode: 0o777, ..node(Kind::Symlink("d/a".into())) }),
        ];
        let mut tree = Tree(names.map(|(name, node)| (PathBuf::from(name), node)).into());
        let uid = fs::metadata(home.path()).unwrap().uid();
        let gid = fs::metadata(home.path()).unwrap().gid();
        tree.0.values_mut().for_each(|node| node.owner = (uid, gid));
        let image = Image { trees: vec![tree.clone(), tree.clone()], objects: vec![content] };
        image.lay_out(home.path(), 0b10).unwrap();
        assert_eq!(Tree::of(&home.path().join("m0"), |_, _| 0).unwrap(), tree);
        assert!(Tree::of(&home.path().join("m1"), |_, _| 0).unwrap().0.is_empty());
        let mut read = fs::read(home.path().join("m0/d/b")).unwrap();
        assert_eq!((read.len(), &read[4090..4103], &read[8998..]), (9000, &b"across a page"[..], &b"be"[..]));
        let mut same = Content::of(&fs::File::open(home.path().join("m0/d/a")).unwrap()).unwrap();
        same.zero(4092, 8192 - 4092);
        read[4092..8192].fill(0);
        assert!((0..9000).all(|at| same.byte(at) == read[at as usize]));
        same.set_bytes(10);
        same.set_bytes(9000);
        assert!((0..9000).all(|at| same.byte(at) == 0));
    }

    #[test]
    fn a_file_that_was_cut_is_laid_out_as_long_as_it_is() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = home.path().join("a");
        let mut content = Content::default();
        // The old end lies within a page, the new one within another.
        content.set_bytes(2 * 4096 + 100);
        content.put(2 * 4096, &[7; 100]);
        content.put(10, &[7; 100]);
        content.set_bytes(50);
        content.write(&path, 0o600).unwrap();
        let read = fs::read(path).unwrap();
        assert_eq!((read.len(), &read[..10], &read[10..]), (50, &[0; 10][..], &[7; 40][..]));
    }
}
