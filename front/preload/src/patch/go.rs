//! What tells an object that Go's compiler and linker have made.
//!
//! Go's runtime makes its system calls by instructions of its own, in functions without unwind
//! entries, and on stacks of 2 KiB that it moves. Such instructions are not patched: without an
//! entry they cannot be told from data, and the code that a jump leads to would run on those
//! stacks. So an object of Go is not reached ([`super::scan`]).
//!
//! Either of two signs is enough. The linker writes a note with the build's id into every object,
//! unless it is told not to (`-buildid=`). Every object has a section whose name ends with
//! `gopclntab`, unless somebody has taken its table of sections away.

use super::elf::{Header, NOTE, ProgramHeader};
use heap::vec::Vec;
use sys::OwnedFd;
use sys::rustix::io::pread;

/// Name and kind of the note.
const NAME: [u8; 4] = *b"Go\0\0";
const KIND: u32 = 4;
/// How many notes are looked at, and how much of each, and of the names of sections: more than any
/// linker writes.
const NOTE_COUNT_MAX: usize = 8;
const NOTES_BYTES_MAX: u64 = 4096;
const NAMES_BYTES_MAX: u64 = 64 << 10;
const SECTION: &[u8] = b"gopclntab\0";

/// Whether the object in `file`, whose headers are given, was made by Go.
pub(crate) fn is_of_go(file: &OwnedFd, header: &Header, headers: &[ProgramHeader]) -> bool {
    let notes = headers.iter().filter(|header| header.kind() == NOTE).take(NOTE_COUNT_MAX);
    let has_note = || notes.filter_map(ProgramHeader::file_range).any(|range| has_go_note(&read(file, range, NOTES_BYTES_MAX)));
    let has_section = || {
        let names = header.section_names(|range| read(file, range, NAMES_BYTES_MAX)).unwrap_or_default();
        names.windows(SECTION.len()).any(|name| name == SECTION)
    };
    has_note() || has_section()
}

/// Whether Go's note is among `notes`.
fn has_go_note(notes: &[u8]) -> bool {
    let word = |at: usize| Some(u32::from_le_bytes(notes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let mut at = 0usize;
    while let (Some(name), Some(description), Some(kind)) = (word(at), word(at + 4), word(at + 8)) {
        let start = at + 12;
        if kind == KIND && name as usize == NAME.len() && notes.get(start..start + NAME.len()) == Some(&NAME[..]) {
            return true;
        }
        at = start + (name as usize).next_multiple_of(4) + (description as usize).next_multiple_of(4);
    }
    false
}

/// The bytes of a range of the file, at most `most` of them; none if they cannot be read.
fn read(file: &OwnedFd, range: core::ops::Range<u64>, most: u64) -> Vec<u8> {
    let mut bytes = heap::vec![0; range.end.saturating_sub(range.start).min(most) as usize];
    let count = pread(file, bytes.as_mut_slice(), range.start).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::elf::{header_of, headers_of};
    use std::os::unix::ffi::OsStrExt;
    use sys::rustix::fs::{Mode, OFlags, open};

    fn note(name: &[u8], kind: u32, description: &[u8]) -> std::vec::Vec<u8> {
        let padded = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let words = [name.len() as u32, description.len() as u32, kind].map(u32::to_le_bytes).concat();
        [words, padded(name), padded(description)].concat()
    }

    #[test]
    fn a_note_is_told_by_its_name_and_kind() {
        let other = note(b"GNU\0", 3, b"01234567890123456789");
        assert!(has_go_note(&[&other[..], &note(b"Go\0\0", 4, b"an id"), &other].concat()));
        assert!(!has_go_note(&[&other[..], &note(b"Go\0\0", 3, b"an id"), &note(b"GNU\0", 4, b"Go\0\0")].concat()));
        let cut = note(b"Go\0\0", 4, b"");
        assert!(!has_go_note(&cut[..cut.len() - 1]));
        assert!(!has_go_note(&[0xff; 40]));
    }

    #[test]
    fn a_section_is_told_by_its_name() {
        let opened = |path: &std::path::Path| open(path.as_os_str().as_bytes(), OFlags::RDONLY, Mode::empty()).unwrap();
        let own = opened("/proc/self/exe".as_ref());
        let of = |file: &OwnedFd| {
            let header = header_of(file).unwrap();
            is_of_go(file, &header, &headers_of(file, &header).unwrap())
        };
        assert!(!of(&own));
        // The first name that has room for the other one is changed to it.
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        let place = bytes.windows(20).rposition(|name| name == b"\0.note.gnu.build-id\0").unwrap();
        bytes[place + 1..place + 19].copy_from_slice(b".data.rl.gopclntab");
        let path = std::env::temp_dir().join(std::format!("cxlraid-go-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let changed = opened(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(of(&changed));
    }
}
