//! Whether a directory that is to become a member or a spare is another array's, or overlaps with one.
//!
//! The faults it exists for: an array takes the spare of another one, which then has none when it needs
//! it; and a member inside another array's member, where that array shows it as a file of its own, and
//! calls it lost on its other members.

use crate::{
    failure::Failure,
    inspect::{Found, look},
    registry::Registry,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const ADVICE: &str = "give a directory that no array uses";

/// Refuses directories that are to be used by the array with this UUID, or by one that is to be made,
/// where another array has them, or one that contains them or lies in them. The caller has the locks of
/// names ([`Registry::lock`]), so that no other command takes them meanwhile.
pub(crate) fn require_free(registry: &Registry, uuid: Option<&str>, directories: &[PathBuf]) -> Result<(), Failure> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let reals: Vec<PathBuf> = directories.iter().map(|path| real(path)).collect();
    for (directory, own) in directories.iter().zip(&reals) {
        let refused = |what: String, todo: &str| Err(Failure::new(directory.display(), what, todo));
        if let Some(outer) = reals.iter().find(|other| *other != own && own.starts_with(other)) {
            return refused(format!("lies inside the member {}", outer.display()), "give members that do not contain each other");
        }
        for (_, other) in registry.all()?.iter().filter(|(_, other)| uuid != Some(other.uuid.as_str())) {
            let name = &other.name;
            let todo = format!("{ADVICE}, or 'cxlraid forget {name}' if that array is gone");
            let (members, spares) = (other.spec.members.iter(), other.spec.spares.iter());
            for (role, path) in members.map(|path| ("member", path)).chain(spares.map(|path| ("spare", path))) {
                let theirs = real(path);
                if theirs == *own {
                    return refused(format!("is a {role} of the array {name}"), &todo);
                }
                if own.starts_with(&theirs) {
                    return refused(format!("lies inside {}, a {role} of the array {name}", path.display()), &todo);
                }
                if theirs.starts_with(own) {
                    return refused(format!("contains {}, a {role} of the array {name}", path.display()), &todo);
                }
            }
        }
        // An array without a name, or with one that this user does not see.
        for outer in own.ancestors().skip(1) {
            if let Found::Member(found) = look_below(outer) {
                let what = format!("lies inside {}, a member of array {}", outer.display(), found.array_uuid);
                return refused(what, "give a directory outside of it");
            }
        }
    }
    Ok(())
}

/// Looks whether a directory is a member, without a look at what else it holds.
fn look_below(directory: &Path) -> Found {
    if fs::symlink_metadata(directory.join(".cxlraid")).is_ok() { look(directory) } else { Found::Nothing("no superblock") }
}
