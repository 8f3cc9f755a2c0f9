//! Processes that do not share the runtime segment must not share the members.

mod common;

use array::{Array, AttachError};
use common::{TestArray, read, write};
use layout::Level;

/// The segment is out of sight, as for a container with a /dev/shm of its own.
struct OutOfSight {
    segment: String,
    away: String,
}

impl OutOfSight {
    fn of(array: &TestArray) -> Self {
        let segment = array::runtime::segment_path(array.files.array().uuid());
        let away = format!("{segment}-away");
        std::fs::rename(&segment, &away).unwrap();
        Self { segment, away }
    }
}

impl Drop for OutOfSight {
    fn drop(&mut self) {
        let _ = std::fs::rename(&self.away, &self.segment);
    }
}

#[test]
fn a_second_segment_is_refused_while_the_first_is_in_use() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[7; 10_000]);
    let hidden = OutOfSight::of(&array);
    let refused = Array::attach(&array.config).err().expect("attached by way of another segment");
    assert!(matches!(&refused, AttachError::InUseElsewhere { path } if path == &array.config.mounts[0]), "{refused}");
    // Who sees the first segment comes in, the refused one has left no trace.
    drop(hidden);
    let again = array.again();
    assert_eq!(read(&array.open_in(again, "f", attribute), 0, 10_000), [7; 10_000]);
}

#[test]
fn the_members_are_free_once_their_users_are_gone() {
    let array = TestArray::new(Level::Raid1, 2, 4096);
    array.files.detach();
    array.files.array().abandon();
    let segment = array::runtime::segment_path(array.files.array().uuid());
    std::fs::remove_file(&segment).unwrap();
    assert!(Array::attach(&array.config).is_ok());
}
