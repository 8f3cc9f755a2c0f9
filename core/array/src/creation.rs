//! Whether a start makes a new array of empty directories.
//!
//! The fault it exists for: the file systems of an array's members are not mounted. Then its member
//! directories are empty mount points, in which a start would make a new array, and programs would
//! write to the file system below. An array that is known by its UUID is never made by a start. For
//! an array that the environment alone describes, the tables of file systems tell: nothing is made
//! below a directory on which a file system is to be mounted and none is.

use crate::config::{Config, Creation};
use crate::error::AttachError;
use crate::proc_file;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use sys::rustix::fs::{self, AtFlags, CWD, StatxAttributes, StatxFlags};
use sys::{OsError, OwnedFd};

/// fstab(5).
const FILE_SYSTEMS: &str = "/etc/fstab";
/// Where systemd.mount(5) units lie that an administrator or fstab has made. Units of packages lie
/// elsewhere; many are not in use, such as the one that mounts a tmpfs on /tmp.
const UNITS: [&str; 3] = ["/etc/systemd/system", "/run/systemd/system", "/run/systemd/generator"];

/// Refuses to make an array of the directories in `roots`, which are open and empty, where `config`
/// does not permit it or two are one.
///
/// # Errors
/// [`AttachError::NotAsked`], [`AttachError::NothingMounted`], [`AttachError::GivenTwice`].
pub(crate) fn check(config: &Config, roots: &[&OwnedFd]) -> Result<(), AttachError> {
    require_distinct(config, roots)?;
    match config.creation {
        Creation::Asked => Ok(()),
        Creation::Refused => Err(AttachError::NotAsked { path: config.mounts[0].clone() }),
        Creation::OnPlainDirectories => match awaited_mount(&config.mounts) {
            Some(point) => Err(AttachError::NothingMounted { path: point }),
            None => Ok(()),
        },
    }
}

/// The first directory on the way to one of `paths`, or the last one itself, on which a file system
/// is to be mounted (fstab(5), units of systemd), and none is.
#[must_use]
pub fn awaited_mount(paths: &[Vec<u8>]) -> Option<Vec<u8>> {
    let table = mount_points(&proc_file::read(FILE_SYSTEMS));
    let is_known = |directory: &[u8]| table.iter().any(|point| point == directory) || has_unit(directory);
    paths.iter().find_map(|member| unmounted(member, is_known, is_mounted))
}

/// Refuses a directory that is given twice by different paths: by a symbolic link, or mounted in
/// two places.
fn require_distinct(config: &Config, roots: &[&OwnedFd]) -> Result<(), AttachError> {
    let mut known: Vec<(u64, u64)> = Vec::with_capacity(roots.len());
    for (root, path) in roots.iter().zip(&config.mounts) {
        let stat = fs::fstat(root).map_err(|error| AttachError::os(path, "look at", error))?;
        let directory = (stat.st_dev, stat.st_ino);
        if let Some(other) = known.iter().position(|&other| other == directory) {
            return Err(AttachError::GivenTwice { path: path.clone(), other: config.mounts[other].clone() });
        }
        known.push(directory);
    }
    Ok(())
}

/// The directory at or above a member on which a file system is to be mounted, and none is.
fn unmounted(member: &[u8], is_known: impl Fn(&[u8]) -> bool, is_mounted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let ends = member.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
    let directories = ends.chain([member.len()]).map(|end| &member[..end]);
    directories.filter(|directory| is_known(directory)).find(|directory| !is_mounted(directory)).map(<[u8]>::to_vec)
}

/// Whether a directory is the root of a mount. One that cannot be asked about counts as one.
fn is_mounted(directory: &[u8]) -> bool {
    match fs::statx(CWD, directory, AtFlags::empty(), StatxFlags::empty()) {
        Ok(found) => found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        Err(_) => true,
    }
}

/// The mount points of a table of file systems, without slashes at the end.
fn mount_points(table: &[u8]) -> Vec<Vec<u8>> {
    let lines = table.split(|&byte| byte == b'\n').filter(|line| !line.starts_with(b"#"));
    let second =
        |line: &[u8]| line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).nth(1).map(proc_file::unescaped);
    lines.filter_map(second).filter(|path| path.starts_with(b"/")).map(|path| crate::config::normalise(&path)).collect()
}

/// Whether systemd has a unit that mounts a file system on a directory.
fn has_unit(directory: &[u8]) -> bool {
    let name = unit_name(directory);
    UNITS.iter().any(|place| {
        let unit = fs::statat(CWD, alloc::format!("{place}/{name}"), AtFlags::empty());
        !matches!(unit, Err(OsError::NOENT | OsError::NOTDIR))
    })
}

/// What systemd calls the unit of a mount point (systemd.unit(5), "String escaping").
fn unit_name(directory: &[u8]) -> String {
    let mut name = String::new();
    for (place, &byte) in directory.iter().skip(1).enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_') || byte == b'.' && place != 0;
        match byte {
            b'/' => name.push('-'),
            _ if is_plain => name.push(byte.into()),
            _ => _ = write!(name, "\\x{byte:02x}"),
        }
    }
    name + ".mount"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_at_or_below_a_mount_point_without_a_mount_is_found() {
        let known: &[&[u8]] = &[b"/mnt/a", b"/srv"];
        let find = |member: &str, mounted: &[&[u8]]| {
            unmounted(member.as_bytes(), |path| known.contains(&path), |path| mounted.contains(&path))
        };
        assert_eq!(find("/mnt/a", &[]), Some(b"/mnt/a".to_vec()));
        assert_eq!(find("/mnt/a/b", &[]), Some(b"/mnt/a".to_vec()));
        assert_eq!(find("/srv/x/y", &[]), Some(b"/srv".to_vec()));
        assert_eq!(find("/mnt/a", &[b"/mnt/a"]), None);
        assert_eq!(find("/mnt/ab", &[]), None);
        assert_eq!(find("/mnt", &[]), None);
    }

    #[test]
    fn the_table_of_file_systems_is_read_as_mount_reads_it() {
        let table = b"# /dev/x /no ext4\n/dev/a  /mnt/a/ ext4 defaults 0 2\n\n/dev/b\t/mnt/my\\040b\text4\nswap none swap sw\nx";
        assert_eq!(mount_points(table), [b"/mnt/a".to_vec(), b"/mnt/my b".to_vec()]);
        assert_eq!(proc_file::unescaped(b"a\\04"), b"a\\04");
    }

    #[test]
    fn units_are_named_as_systemd_escape_names_them() {
        assert_eq!(unit_name(b"/mnt/a"), "mnt-a.mount");
        assert_eq!(unit_name(b"/srv/.x/a-b c"), "srv-.x-a\\x2db\\x20c.mount");
        assert_eq!(unit_name(b"/.x"), "\\x2ex.mount");
    }

    #[test]
    fn roots_of_mounts_are_told_from_other_directories() {
        assert!(is_mounted(b"/proc"));
        assert!(!is_mounted(b"/proc/self"));
    }
}
