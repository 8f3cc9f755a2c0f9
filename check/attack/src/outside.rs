//! The tree outside the array: this module fills it with secrets, and with names that the
//! attacker's directories have too, and lists everything there is to see of it.

use crate::{kernel, places::OTHER};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

/// What there is to see, by path.
pub(crate) type Seen = BTreeMap<PathBuf, String>;

/// Fills a directory that nobody but root may write.
pub(crate) fn make(root: &Path, seed: u64) -> io::Result<()> {
    let file = |path: &str, mode: u32, owner: u32| {
        let path = root.join(path);
        fs::write(&path, format!("SECRET-outside-{seed}\n").repeat(if mode & 0o4 == 0 { 40 } else { 0 }))?;
        chown(&path, Some(owner), Some(owner))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
    };
    let directory = |path: &str, mode: u32, owner: u32| {
        let path = root.join(path);
        fs::create_dir(&path)?;
        chown(&path, Some(owner), Some(owner))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
    };
    directory("", 0o755, 0)?;
    file("secret", 0o600, 0)?;
    file("others", 0o600, OTHER)?;
    directory("private", 0o700, 0)?;
    file("private/f0", 0o600, 0)?;
    // Names as in the attacker's directories, so that who is led here finds what is looked for.
    directory("dir", 0o755, 0)?;
    directory("dir/sub", 0o755, 0)?;
    directory("dir/empty", 0o755, OTHER)?;
    for name in ["f0", "f1", "f2", "f3", "n0", "sub/f0", "sub/f1"] {
        file(&format!("dir/{name}"), if name == "f1" { 0o644 } else { 0o600 }, if name == "f2" { OTHER } else { 0 })?;
    }
    Ok(())
}

/// Content, owner, mode, time, links and extended attributes of all that lies in a directory,
/// without following anything.
pub(crate) fn seen(root: &Path) -> io::Result<Seen> {
    let mut found = Seen::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        let stat = path.symlink_metadata()?;
        let names = kernel::attribute_names(&path)?;
        let mut text = format!(
            "mode {:o} owner {}:{} links {} changed {}.{} attributes {}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.nlink(),
            stat.mtime(),
            stat.mtime_nsec(),
            String::from_utf8_lossy(&names)
        );
        if stat.is_dir() {
            for entry in fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
        } else if stat.is_file() {
            text.push_str(&String::from_utf8_lossy(&fs::read(&path)?));
        }
        found.insert(path, text);
    }
    Ok(found)
}

/// What is not as it was, one line each.
pub(crate) fn differences(before: &Seen, after: &Seen) -> Vec<String> {
    let line = |text: Option<&String>| {
        text.map_or_else(|| "not there".to_owned(), |text| text.lines().next().unwrap_or_default().to_owned())
    };
    let paths = before.keys().chain(after.keys().filter(|path| !before.contains_key(*path)));
    paths
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| format!("{}: was {}; is {}", path.display(), line(before.get(path)), line(after.get(path))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_becomes_of_the_tree_is_seen() {
        let home = std::env::temp_dir().join(format!("cxlraid-outside-{}", std::process::id()));
        fs::create_dir_all(home.join("a")).unwrap();
        fs::write(home.join("a/f"), "x").unwrap();
        let before = seen(&home).unwrap();
        assert!(differences(&before, &seen(&home).unwrap()).is_empty());
        fs::write(home.join("a/f"), "y").unwrap();
        fs::write(home.join("a/new"), "").unwrap();
        let wrong = differences(&before, &seen(&home).unwrap());
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        fs::remove_dir_all(&home).unwrap();
    }
}
