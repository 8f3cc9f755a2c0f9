//! Finds files by what they are and not by their name: to replay records of files when the journal
//! has no free lane (core/file's `full_journal`), to find the file that a descriptor on a lost member
//! stands for, and for commands that look at all files.

use crate::Namespace;
use crate::located::names_in;
use crate::resolve::join;
use alloc::vec::Vec;
use format::Attribute;
use sys::rustix::fs::FileType;

impl Namespace {
    /// Opens these files for writing, which makes good what waits for that, and closes them. What
    /// it may not open is left. No lock is held: what is renamed meanwhile may be missed.
    pub(crate) fn open_wanted(&self, mut wanted: Vec<Attribute>) {
        self.search(|path, attribute| {
            if wanted.contains(&attribute) {
                // What cannot be replayed now stays where it is.
                let _ = self.attach(path, attribute, true);
                wanted.retain(|other| *other != attribute);
            }
            !wanted.is_empty()
        });
    }

    /// Logical paths of files with these attributes, `most` of them at most, one of each that has a
    /// name.
    #[must_use]
    pub fn paths_of(&self, wanted: &[Attribute], most: usize) -> Vec<Vec<u8>> {
        let (mut wanted, mut found) = (wanted.to_vec(), Vec::new());
        self.search(|path, attribute| {
            if wanted.contains(&attribute) {
                found.push(path.to_vec());
                wanted.retain(|other| *other != attribute);
            }
            found.len() < most && !wanted.is_empty()
        });
        found
    }

    /// A logical path of the file with this attribute.
    pub(crate) fn path_of(&self, wanted: Attribute) -> Option<Vec<u8>> {
        let mut found = None;
        self.search(|path, attribute| {
            if attribute == wanted {
                found = Some(path.to_vec());
            }
            found.is_none()
        });
        found
    }

    /// Walks the tree and shows every file to `goes_on`, by logical path, until that is false: one with
    /// several names once for each. What may not be seen is left out, and no lock is held: what is
    /// renamed meanwhile may be missed.
    pub fn search(&self, mut goes_on: impl FnMut(&[u8], Attribute) -> bool) {
        let mut pending = self.array().config().prefixes.clone();
        while let Some(path) = pending.pop() {
            let Ok(slot) = self.array().first_in_use() else { return };
            let (Ok(item), Ok(root)) = (self.item(slot, &path), self.root(slot)) else { continue };
            match (item.kind, item.attribute) {
                (FileType::Directory, _) => {
                    let names = names_in(root, &path[1..]).unwrap_or_default();
                    pending.extend(names.iter().map(|name| join(&path, name)));
                }
                (FileType::RegularFile, Some(attribute)) if !goes_on(&path, attribute) => return,
                _ => {}
            }
        }
    }
}
