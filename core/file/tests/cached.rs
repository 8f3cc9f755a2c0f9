//! One process stores to a file through mappings, or another lets the kernel cache the file: who
//! comes second is refused, until what was first has ended.

mod common;

use common::{TestArray, read, write};
use cxlraid_file::{Cached, Mapped};
use layout::Level;
use sync::OwnerId;
use sys::OsError;

#[test]
fn who_comes_second_is_refused() {
    for (level, member_count) in [(Level::Raid0, 2), (Level::Raid1, 2), (Level::Raid5, 3)] {
        let array = TestArray::new(level, member_count, 4096);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, b"content");
        let files = array.again();
        let other = array.open_in(files, "f", attribute);

        // A record alone stores nothing: its process may only show a shared copy.
        let mapped = Mapped::new(&file).unwrap();
        drop(Cached::new(&other).unwrap());
        mapped.begin_storing().unwrap();
        assert_eq!(Cached::new(&other).err(), Some(OsError::BUSY), "{level}");
        assert!(!file.is_cached_by_others(), "{level}: the refused one caches nothing");
        // What is promised to a child stores as its parent does.
        let promised = mapped.promise().unwrap();
        drop(mapped);
        assert_eq!(Cached::new(&other).err(), Some(OsError::BUSY), "{level}");
        drop(promised);

        // Several openings of one process count once, until the last one ends.
        let both = [Cached::new(&other).unwrap(), Cached::new(&other).unwrap()];
        assert!(file.is_cached_by_others() && !other.is_cached_by_others(), "{level}");
        let mapped = Mapped::new(&file).unwrap();
        assert_eq!(mapped.begin_storing(), Err(OsError::NODEV), "{level}");
        assert_eq!(Cached::new(&file).err(), Some(OsError::BUSY), "{level}: nor do two cache it");
        let [first, last] = both;
        drop(first);
        assert_eq!(mapped.begin_storing(), Err(OsError::NODEV), "{level}");
        // Neither is in the way of reads and writes.
        write(&file, 3, b"d");
        assert_eq!(read(&other, 0, 7), b"condent");
        drop(last);
        mapped.begin_storing().unwrap();
        drop(mapped);

        // A process that ends gives back what it cached.
        core::mem::forget(Cached::new(&other).unwrap());
        let mapped = Mapped::new(&file).unwrap();
        assert_eq!(mapped.begin_storing(), Err(OsError::NODEV), "{level}");
        files.array().runtime().detach();
        mapped.begin_storing().unwrap();
    }
}

#[test]
fn what_the_dead_stored_does_not_count() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, b"content");
    let runtime = array.files.array().runtime();
    let key = attribute.inode << 24 | attribute.generation;
    let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
    record.set_storing();
    let mapped = Mapped::new(&file).unwrap();
    drop(Cached::new(&array.open_in(array.again(), "f", attribute)).unwrap());
    drop(mapped);
}
