//! Programs that interception cannot reach, recognised before they are started.
//!
//! A statically linked or setuid program never loads the library: its writes below the array's
//! paths would go to the plain file system. It is told to the operator; the program itself may well
//! start others that are reached.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

/// Why the library will not be loaded into the program, as a phrase after its name; `None` if it
/// will, or nobody knows.
pub(crate) fn unreachable_because(name: &OsStr) -> Option<&'static str> {
    let path = find(name)?;
    // What is no file cannot be started, and a pipe would be waited for.
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let changes_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != own_uid()?;
    if changes_user {
        return Some("is a setuid program, which ignores LD_PRELOAD");
    }
    match linkage(&path)? {
        Linkage::Static => Some("is statically linked"),
        Linkage::Foreign => Some("is a 32-bit program, or one for another processor"),
        // With another C library than glibc the library says itself that it stands aside.
        Linkage::Dynamic => None,
    }
}

fn own_uid() -> Option<u32> {
    fs::metadata("/proc/self").ok().map(|metadata| metadata.uid())
}

/// The file execvp would start.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0))
}

#[derive(PartialEq, Eq, Debug)]
enum Linkage {
    Static,
    Dynamic,
    /// Not for 64-bit x86: the loader passes the library over, with a line of its own.
    Foreign,
}

/// Reads the program headers of a 64-bit little-endian ELF file (elf(5)): a dynamic program names
/// its loader in PT_INTERP.
fn linkage(path: &Path) -> Option<Linkage> {
    const HEADER_BYTES: usize = 64;
    const EM_X86_64: u16 = 62;
    const PT_INTERP: u32 = 3;
    let file = File::open(path).ok()?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).ok()?;
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if header[..4] != *b"\x7fELF" {
        return None;
    }
    if header[4..6] != *b"\x02\x01" || half(18) != EM_X86_64 {
        return Some(Linkage::Foreign);
    }
    let table_offset = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let (entry_bytes, entry_count) = (half(54), half(56));
    for index in 0..u64::from(entry_count) {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, table_offset.checked_add(index * u64::from(entry_bytes))?).ok()?;
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Some(Linkage::Dynamic);
        }
    }
    Some(Linkage::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header whose one program header has the given type.
    fn elf(kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = 62;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn static_programs_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let linkage = |bytes: &[u8]| {
            let path = directory.path().join("program");
            fs::write(&path, bytes).unwrap();
            super::linkage(&path)
        };
        assert_eq!(linkage(&elf(1)), Some(Linkage::Static));
        assert_eq!(linkage(&elf(3)), Some(Linkage::Dynamic));
        assert_eq!(linkage(b"#!/bin/sh\n"), None);
        assert_eq!(linkage(&elf(3)[..80]), Some(Linkage::Dynamic));
        assert_eq!(linkage(&elf(3)[..66]), None);
        let mut other = elf(3);
        other[4] = 1;
        assert_eq!(linkage(&other), Some(Linkage::Foreign));
        (other[4], other[18]) = (2, 183);
        assert_eq!(linkage(&other), Some(Linkage::Foreign));
    }

    #[test]
    fn an_ordinary_program_is_reached() {
        assert_eq!(unreachable_because("cat".as_ref()), None);
        assert_eq!(unreachable_because("/nonexistent".as_ref()), None);
    }
}
