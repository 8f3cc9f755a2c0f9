//! Directories on one file system: for the reference, for members. Removed in the end, with the
//! runtime segments of the arrays.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

/// A directory of our own on some file system.
pub(crate) struct Place {
    pub(crate) root: PathBuf,
}

/// What must be the same on all members: kind and mode, owner, length of a symlink's target or
/// other's nothing.
type Tree = BTreeMap<PathBuf, (u32, u32, u32)>;

impl Place {
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = parent.join(format!("cxlraid-posix.{}.{number}", std::process::id()));
        fs::create_dir(&root)?;
        let place = Self { root };
        fs::set_permissions(&place.root, fs::Permissions::from_mode(0o755))?;
        Ok(place)
    }

    /// An empty directory that belongs to `owner`.
    pub(crate) fn directory(&self, name: &str, owner: Option<(u32, u32)>) -> io::Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        if let Some((user, group)) = owner {
            chown(&path, Some(user), Some(group))?;
        }
        Ok(path)
    }

    /// Members of an array, by slot.
    pub(crate) fn members(&self, name: &str, count: usize, owner: Option<(u32, u32)>) -> io::Result<Vec<PathBuf>> {
        (0..count).map(|slot| self.directory(&format!("{name}-{slot}"), owner)).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        stage::segment::forget(entries.map(|entry| entry.path()));
        if let Err(error) = fs::remove_dir_all(&self.root) {
            eprintln!("{}: not removed: {error}", self.root.display());
        }
    }
}

/// What differs between members; None if nothing does.
pub(crate) fn difference(members: &[PathBuf]) -> io::Result<Option<String>> {
    let trees = members.iter().map(|member| tree(member)).collect::<io::Result<Vec<Tree>>>()?;
    for (member, other) in members.iter().zip(&trees).skip(1) {
        let differs = |path: &&PathBuf| trees[0].get(*path) != other.get(*path);
        if let Some(path) = trees[0].keys().chain(other.keys()).find(differs) {
            return Ok(Some(format!("{} differs on {}", path.display(), member.display())));
        }
    }
    Ok(None)
}

fn tree(member: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut rest = vec![member.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let relative = path.strip_prefix(member).unwrap_or(&path).to_owned();
            if relative == Path::new(".cxlraid") {
                continue;
            }
            let found = fs::symlink_metadata(&path)?;
            tree.insert(relative, (found.mode(), found.uid(), found.gid()));
            if found.is_dir() {
                rest.push(path);
            }
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_between_members_are_found_and_places_are_removed() {
        let place = Place::new(&std::env::temp_dir()).unwrap();
        let members = place.members("m", 2, None).unwrap();
        for member in &members {
            fs::create_dir(member.join("a")).unwrap();
        }
        assert_eq!(difference(&members).unwrap(), None);
        fs::write(members[1].join("a/b"), "").unwrap();
        assert!(difference(&members).unwrap().unwrap().contains("a/b"));
        let root = place.root.clone();
        drop(place);
        assert!(!root.exists());
    }
}
