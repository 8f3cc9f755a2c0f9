//! Files found by what they are and not by their name: those that the journal has no room for others because of (core/file's `full_journal`).

use crate::Namespace;
use crate::recover::names_in;
use crate::resolve::join;
use alloc::vec::Vec;
use format::Attribute;
use sys::rustix::fs::FileType;

impl Namespace {
    /// Opens these files for writing, which makes good what waits for that, and closes them. Walks the tree until it has found all; what it may not
    /// see or open is left. No lock is held: what is renamed meanwhile may be missed.
    pub(crate) fn open_wanted(&self, mut wanted: Vec<Attribute>) {
        let mut pending = self.array().config().prefixes.clone();
        while let Some(path) = pending.pop().filter(|_| !wanted.is_empty()) {
            let Ok(slot) = self.array().first_in_use() else { return };
            let (Ok(item), Ok(root)) = (self.item(slot, &path), self.root(slot)) else { continue };
            match (item.kind, item.attribute) {
                (FileType::Directory, _) => {
                    let names = names_in(root, &path[1..]).unwrap_or_default();
                    pending.extend(names.iter().map(|name| join(&path, name)));
                }
                (FileType::RegularFile, Some(attribute)) if wanted.contains(&attribute) => {
                    // What cannot be replayed now stays where it is.
                    let _ = self.attach(&path, attribute, true);
                    wanted.retain(|other| *other != attribute);
                }
                _ => {}
            }
        }
    }
}
