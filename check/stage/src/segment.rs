//! The shared memory an array has while it is used, by what its members say.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the UUID of the array that `member` belongs to, in the usual text form; None if the
/// member has no superblock.
#[must_use]
pub fn uuid_of(member: &Path) -> Option<String> {
    // docs/format/superblock.md: the array's UUID is at offset 40.
    let superblock = member.join(".cxlraid/superblock");
    // A pipe would be waited for.
    let is_file = fs::symlink_metadata(&superblock).is_ok_and(|metadata| metadata.is_file());
    let superblock = is_file.then(|| fs::read(superblock).ok()).flatten()?;
    let digits: String = superblock.get(40..56)?.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    Some(parts.join("-"))
}

/// The runtime segment of the array that `member` belongs to; None if it has no superblock.
#[must_use]
pub fn segment_of(member: &Path) -> Option<PathBuf> {
    uuid_of(member).map(|uuid| Path::new("/dev/shm").join(format!("cxlraid-{uuid}")))
}

/// Removes the runtime segments of the arrays that `members` belong to, and the shared copies of
/// mapped files beside them: nobody uses them.
pub fn forget<P: AsRef<Path>>(members: impl IntoIterator<Item = P>) {
    for segment in members.into_iter().filter_map(|member| segment_of(member.as_ref())) {
        // The members of one array name the same one.
        let _ = fs::remove_file(&segment);
        let other = ["-map-", "-run-"].map(|kind| format!("{}{kind}", segment.display()));
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        for path in entries.filter(|path| other.iter().any(|start| path.to_string_lossy().starts_with(start))) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_names_its_segment() {
        let member = std::env::temp_dir().join(format!("cxlraid-stage-{}", std::process::id()));
        assert_eq!(segment_of(&member), None);
        fs::create_dir_all(member.join(".cxlraid")).unwrap();
        let superblock: Vec<u8> = (0..64).collect();
        fs::write(member.join(".cxlraid/superblock"), superblock).unwrap();
        let expected = Path::new("/dev/shm/cxlraid-28292a2b-2c2d-2e2f-3031-323334353637");
        assert_eq!(segment_of(&member).as_deref(), Some(expected));
        fs::remove_dir_all(&member).unwrap();
    }
}
