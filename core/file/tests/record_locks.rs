//! Record locks of the process (fcntl(2) F_SETLK): the kernel takes them away when the process closes
//! any descriptor of the backing file, so the library closes none that it need not.

mod common;

use common::{TestArray, read, write};
use dax::Access;
use layout::Level;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use sys::rustix::fs::{FlockOperation, fcntl_lock};

/// Whether this process has a record lock on a file.
fn has_lock(file: &File) -> bool {
    let (inode, own) = (format!(":{}", file.metadata().unwrap().ino()), std::process::id().to_string());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).any(|words| {
        words.get(1) == Some(&"POSIX")
            && words.get(4) == Some(&&own[..])
            && words.get(5).is_some_and(|place| place.ends_with(&inode))
    })
}

#[test]
fn a_file_that_is_locked_and_open_for_reading_stays_locked_when_it_is_opened_for_writing() {
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        let array = TestArray::new(level, member_count, 4096);
        let attribute = array.create("f");
        write(&array.open("f", attribute), 0, b"abcd");
        let files = array.files;
        let reader = files.open(attribute, false, || Ok((array.backing(files, "f"), Access::ReadOnly))).unwrap();
        // The program's descriptor.
        let anchor = File::open(array.member_path(0).join("data/f")).unwrap();
        reader.note_process_lock().unwrap();
        fcntl_lock(&anchor, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(has_lock(&anchor), "{level:?}");
        let writer = array.open("f", attribute);
        assert!(writer.is_writable() && !reader.is_writable(), "{level:?}");
        assert!(has_lock(&anchor), "{level:?}: opened for writing");
        write(&writer, 2, b"efgh");
        writer.truncate(5).unwrap();
        assert_eq!(read(&reader, 0, 10), b"abefg", "{level:?}");
        // As when a mapping ends that was made before the file was opened for writing.
        drop(reader);
        assert!(has_lock(&anchor), "{level:?}: no longer used as it was open for reading");
        let again = writer.clone();
        drop(writer);
        assert!(has_lock(&anchor), "{level:?}: open still");
        // The program closes its descriptor.
        drop(anchor);
        drop(again);
        assert_eq!(read(&array.open("f", attribute), 0, 10), b"abefg", "{level:?}");
    }
}
