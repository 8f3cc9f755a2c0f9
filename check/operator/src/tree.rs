//! What lies in directories on the host, with everything that a program could have changed.

use rustix::fs::{getxattr, listxattr};
use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
};

/// Room for the names of a file's attributes, and for the value of one.
const ATTRIBUTE_BYTES: usize = 4096;
/// The directory of a member that holds its tables.
pub(crate) const META: &str = ".cxlraid";

/// Everything below `root`, a line for each name in order: kind, mode, owner, group, number of
/// names, length, time of the last change, attributes of users, and the content of files and links.
/// What cannot be read is said in its line. `root` itself is part of it. `is_wanted` says which
/// names directly below `root` are looked at; the times of changes are left out if they are not
/// `timed`.
pub(crate) fn described(root: &Path, timed: bool, is_wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut lines = vec![line(root, root, timed)];
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if directory == root && !is_wanted(&entry.file_name().to_string_lossy()) {
                continue;
            }
            lines.push(line(root, &entry.path(), timed));
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
        }
    }
    lines.sort();
    lines
}

fn line(root: &Path, path: &Path, timed: bool) -> String {
    let name = path.strip_prefix(root).unwrap_or(path).display();
    let Ok(found) = fs::symlink_metadata(path) else { return format!("{name} is not there") };
    let (mode, owner, names) = (found.mode(), (found.uid(), found.gid()), found.nlink());
    let time = timed.then(|| (found.mtime(), found.mtime_nsec()));
    let content = if found.is_file() {
        fs::read(path).map_or_else(|error| error.to_string(), |content| format!("{} {:016x}", content.len(), hash(&content)))
    } else if found.is_symlink() {
        fs::read_link(path).map_or_else(|error| error.to_string(), |target| target.display().to_string())
    } else {
        String::new()
    };
    let attributes = if found.is_file() || found.is_dir() { attributes(path).unwrap_or_default() } else { String::new() };
    format!("{name} {mode:o} {owner:?} {names} {time:?} {content}{attributes}")
}

fn attributes(path: &Path) -> rustix::io::Result<String> {
    let (mut names, mut value) = ([0_u8; ATTRIBUTE_BYTES], [0_u8; ATTRIBUTE_BYTES]);
    let length = listxattr(path.as_os_str().as_bytes(), &mut names)?;
    let mut text = String::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let length = getxattr(path.as_os_str().as_bytes(), name, &mut value)?;
        text += &format!(" {}={:016x}", String::from_utf8_lossy(name), hash(&value[..length]));
    }
    Ok(text)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The first lines in which two such lists differ.
pub(crate) fn difference(before: &[String], after: &[String]) -> String {
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}\n"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}\n"));
    gone.take(4).chain(new.take(4)).collect()
}
