//! Paths of the host that lead into the array: by a symlink on their way, or by what /proc says of
//! the directories and files of processes.

use crate::Namespace;
use crate::resolve::join;
use alloc::vec::Vec;
use sys::rustix::fs::{CWD, FileType, lstat, readlinkat, stat};

/// Symlinks followed before a path is taken for a loop (path_resolution(7)).
const LINK_COUNT_MAX: u32 = 40;

/// Whether a link leads to a directory that is still called what the link says.
fn is_directory_of(link: &[u8], name: &[u8]) -> bool {
    let (Ok(led), Ok(named)) = (stat(link), lstat(name)) else { return false };
    FileType::from_raw_mode(led.st_mode) == FileType::Directory && (led.st_dev, led.st_ino) == (named.st_dev, named.st_ino)
}

impl Namespace {
    /// Where in the array an absolute path of the host leads, unresolved from there on. The last
    /// component is followed if `follow`. None if it stays on the host, or leads nowhere.
    #[must_use]
    pub fn entered_from_host(&self, path: &[u8], follow: bool) -> Option<Vec<u8>> {
        let (mut at, mut rest, mut link_count) = (Vec::new(), path.to_vec(), 0);
        loop {
            let start = rest.iter().position(|&byte| byte != b'/')?;
            let end = rest[start..].iter().position(|&byte| byte == b'/').map_or(rest.len(), |length| start + length);
            let (name, behind) = (rest[start..end].to_vec(), rest[end..].to_vec());
            rest.clone_from(&behind);
            match name.as_slice() {
                b"." => continue,
                // `at` has no symlinks.
                b".." => {
                    at.truncate(at.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = join(&at, &name);
            if self.owns(&next) {
                return Some([next, behind].concat());
            }
            if !follow && behind.is_empty() {
                return None;
            }
            let Ok(target) = readlinkat(CWD, next.as_slice(), Vec::new()) else {
                at = next;
                continue;
            };
            link_count += 1;
            if link_count > LINK_COUNT_MAX {
                return None;
            }
            let target = target.as_bytes();
            if next.starts_with(b"/proc/")
                && let Some(logical) = self.logical(target)
            {
                // What goes on behind what has no such name any more, or is no directory, goes on
                // nowhere: the kernel says how.
                if !behind.is_empty() && !is_directory_of(&next, target) {
                    return None;
                }
                return Some([logical, &behind].concat());
            }
            if target.starts_with(b"/") {
                at.clear();
            }
            rest = [target, &behind].concat();
        }
    }
}
