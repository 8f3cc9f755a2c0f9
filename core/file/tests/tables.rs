//! A user who may write a member's `.cxlraid` can put anything there: tables of any length, and
//! pipes, devices or symlinks in the place of files. No program is held up by them.

mod common;

use array::Array;
use common::{TestArray, read, write};
use cxlraid_file::Files;
use format::Attribute;
use layout::Level;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sys::rustix::fs::{CWD, FileType, Mode, mknodat};

const INODES: &str = ".cxlraid/inodes";
/// How long a start may take that has nothing to do.
const AT_MOST: Duration = Duration::from_secs(20);

/// What `act` gives, on a thread of its own; fails the test if it takes too long.
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(AT_MOST).expect("it did not end in time")
}

/// The array after a crash of the machine, attached anew.
fn start_again(array: &TestArray) -> &'static Files {
    array.lose_segment();
    let config = array.config.clone();
    in_time(move || Files::new(Array::attach(&config).unwrap()).unwrap())
}

fn table(array: &TestArray, slot: usize) -> PathBuf {
    array.member_path(slot).join(INODES)
}

fn lengthen(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn three_files(array: &TestArray) -> Vec<(String, Attribute)> {
    let files: Vec<_> = (0..3).map(|index| format!("f{index}")).map(|name| (name.clone(), array.create(&name))).collect();
    for (name, attribute) in &files {
        write(&array.open(name, *attribute), 0, name.as_bytes());
    }
    files
}

fn are_whole(array: &TestArray, files: &'static Files, made: &[(String, Attribute)]) {
    for (name, attribute) in made {
        assert_eq!(read(&array.open_in(files, name, *attribute), 0, 100), name.as_bytes());
    }
}

#[test]
fn a_table_of_1_tib_costs_what_it_holds() {
    for lengthened in [0..3, 0..1, 2..3] {
        let array = TestArray::new(Level::Raid5, 3, 4096);
        let made = three_files(&array);
        for slot in lengthened {
            lengthen(&table(&array, slot), 1 << 40);
        }
        let files = start_again(&array);
        assert_eq!(files.array().in_use().len(), 3);
        are_whole(&array, files, &made);
        let next = in_time(move || files.create_inode(b"/data/file").unwrap());
        assert!(next.inode <= made.len() as u64 + 1, "{next:?}");
        for slot in 0..3 {
            let bytes = std::fs::metadata(table(&array, slot)).unwrap().blocks() * 512;
            assert!(bytes < 1 << 20, "{bytes} bytes of member {slot}'s table");
        }
    }
}

#[test]
fn records_far_behind_the_others_are_looked_at_and_nothing_between() {
    // The last that can be, one that is none, and one behind every record.
    for offset in [200 << 30, (256 << 30) - 4096, 1 << 43] {
        let array = TestArray::new(Level::Raid1, 2, 4096);
        let made = three_files(&array);
        let junk = std::fs::OpenOptions::new().write(true).open(table(&array, 1)).unwrap();
        junk.write_all_at(&[0xa5; 4096], offset).unwrap();
        let files = start_again(&array);
        assert_eq!(files.array().in_use().len(), 2, "{offset:#x}");
        are_whole(&array, files, &made);
    }
}

#[test]
fn a_hole_in_a_table_is_free_records() {
    let array = TestArray::new(Level::Raid1, 2, 4096);
    let made = three_files(&array);
    for slot in 0..2 {
        lengthen(&table(&array, slot), 64 << 20);
    }
    let files = start_again(&array);
    for index in 0..2000 {
        let attribute = files.create_inode(b"/data/file").unwrap();
        assert_eq!(attribute.inode, made.len() as u64 + 1 + index);
    }
    are_whole(&array, files, &made);
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    for name in ["superblock", "inodes", "lanes", "names", "journal"] {
        for kind in ["pipe", "symlink", "device", "directory"] {
            let array = TestArray::journaled(Level::Raid1, 2, 4096, true);
            array.lose_segment();
            let path = array.member_path(0).join(".cxlraid").join(name);
            std::fs::remove_file(&path).unwrap();
            let target = array.member_path(0).join("target");
            std::fs::write(&target, "other").unwrap();
            let made = match kind {
                "pipe" => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(Into::into),
                // A console: to open it may take the terminal.
                "device" => {
                    mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, sys::rustix::fs::makedev(5, 0)).map_err(Into::into)
                }
                "symlink" => std::os::unix::fs::symlink(&target, &path),
                _ => std::fs::create_dir(&path),
            };
            if kind == "device" && made.is_err() {
                // Only root makes devices.
                continue;
            }
            made.unwrap();
            let config = array.config.clone();
            let members = in_time(move || {
                let files = Files::new(Array::attach(&config).ok()?).ok()?;
                files.open_name_log().ok()?;
                Some(files.array().in_use().len())
            });
            // Without one of them a member is out.
            assert_eq!(members, Some(1), "{name} {kind}");
            assert_eq!(std::fs::read(&target).unwrap(), b"other", "{name} {kind}");
        }
    }
}

/// Writes over the beginning of a member's table, as if another array or a newer program had made
/// it.
fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_table_of_another_array_or_of_a_newer_version_takes_its_member_out() {
    const VERSION_OFFSET: u64 = 8;
    const UUID_OFFSET: u64 = 16;
    for name in ["inodes", "lanes", "names", "backings"] {
        for (offset, bytes) in [(0, &b"CXLRXXX\0"[..]), (VERSION_OFFSET, &[3, 0]), (UUID_OFFSET, &[0xa5; 16])] {
            for slot in 0..3 {
                let array = TestArray::new(Level::Raid5, 3, 4096);
                let made = three_files(&array);
                overwrite(&array.member_path(slot).join(".cxlraid").join(name), offset, bytes);
                let files = start_again(&array);
                // This table is opened when names are first changed.
                files.open_name_log().unwrap();
                let out = files.array().runtime().out();
                // One of backing files is made anew.
                let count = usize::from(name != "backings");
                assert!(
                    out.contains(slot) == (count == 1) && out.len() == count,
                    "{name} of member {slot} at {offset}: {out:?} are out"
                );
                are_whole(&array, files, &made);
            }
        }
    }
}

#[test]
fn a_superblock_of_a_member_that_is_away_does_not_make_another_that_member() {
    for (slot, away) in [(1, 2), (0, 3), (3, 0)] {
        let array = TestArray::new(Level::Raid6, 4, 4096);
        let made = three_files(&array);
        let superblock = |slot: usize| array.member_path(slot).join(".cxlraid/superblock");
        std::fs::copy(superblock(away), superblock(slot)).unwrap();
        array.lose_member(away);
        let files = start_again(&array);
        let out = files.array().runtime().out();
        assert!(out.contains(slot) && out.contains(away) && out.len() == 2, "{slot}, {away}: {out:?} are out");
        are_whole(&array, files, &made);
    }
}

#[test]
fn an_array_with_more_such_tables_than_it_bears_refuses_to_start() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    for slot in 0..2 {
        overwrite(&table(&array, slot), 0, b"CXLRXXX\0");
    }
    array.lose_segment();
    let refused = Files::new(Array::attach(&array.config).unwrap()).map(|_| ());
    assert_eq!(refused, Err(sys::OsError::IO));
}

#[test]
fn a_backing_file_is_known_by_the_members_table_alone() {
    let array = TestArray::new(Level::Raid1, 2, 4096);
    let made = three_files(&array);
    for slot in 0..2 {
        for (name, attribute) in &made {
            let backing = std::fs::File::open(array.member_path(slot).join("data").join(name)).unwrap();
            array.files.note_backing(slot, *attribute, backing.metadata().unwrap().ino());
            assert_eq!(array.files.attribute_in_table(slot, backing.as_fd()), Some(*attribute));
        }
        let other = std::fs::File::open(array.member_path(slot).join(INODES)).unwrap();
        assert_eq!(array.files.attribute_in_table(slot, other.as_fd()), None);
    }
    // Without a name, and with nobody who has it open, a file is gone: its number names nothing.
    let backing = std::fs::File::open(array.member_path(0).join("data").join(&made[0].0)).unwrap();
    for slot in 0..2 {
        std::fs::remove_file(array.member_path(slot).join("data").join(&made[0].0)).unwrap();
    }
    array.files.unlinked(made[0].1, cxlraid_file::Name::Has, || true);
    assert_eq!(array.files.attribute_in_table(0, backing.as_fd()), None);
}

#[test]
fn a_bit_flipped_in_any_part_of_a_record_of_the_lowest_member_is_mended() {
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid5, 3)] {
        let array = TestArray::new(level, member_count, 4096);
        let made = three_files(&array);
        let at = format::inode_record_offset(made[1].1.inode);
        for byte in [0, 7, 8, 16, 20, 22, 23, 24, 27, 28, 32, 40, 48, 52, 56, 63] {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(table(&array, 0)).unwrap();
            let mut record = [0; 64];
            file.read_exact_at(&mut record, at).unwrap();
            record[byte] ^= 4;
            file.write_all_at(&record, at).unwrap();
            let files = start_again(&array);
            assert_eq!(files.array().in_use().len(), member_count);
            are_whole(&array, files, &made);
            let copies =
                [0, member_count - 1].map(|slot| std::fs::read(table(&array, slot)).unwrap()[at as usize..][..64].to_vec());
            assert_eq!(copies[0], copies[1], "byte {byte}");
            files.array().abandon();
        }
    }
}

/// Ends the use of an array: nobody has it open any more.
fn end_use(files: &'static Files) {
    files.array().end_use(false).unwrap();
    files.array().abandon();
}

#[test]
fn an_inode_table_that_is_put_back_from_an_earlier_use_is_made_anew_from_the_others() {
    for slot in [0, 2] {
        let array = TestArray::new(Level::Raid5, 3, 4096);
        let made = three_files(&array);
        end_use(array.files);
        let earlier = std::fs::read(table(&array, slot)).unwrap();
        let files = start_again(&array);
        // A file that is longer, and new ones behind the end of the earlier table.
        write(&array.open_in(files, "f0", made[0].1), 2, b" and more");
        (0..1100).for_each(|_| files.has_name(files.create_inode(b"/data/file").unwrap()));
        end_use(files);
        std::fs::write(table(&array, slot), &earlier).unwrap();
        let files = start_again(&array);
        assert_eq!(files.array().in_use().len(), 3, "member {slot}");
        assert_eq!(read(&array.open_in(files, "f0", made[0].1), 0, 100), b"f0 and more");
        are_whole(&array, files, &made[1..]);
        let records = |slot: usize| std::fs::read(table(&array, slot)).unwrap()[4096..].to_vec();
        let (renewed, others) = (records(slot), records(1));
        let length = renewed.len().min(others.len());
        assert!(renewed[..length] == others[..length], "member {slot}");
        assert!(renewed[length..].iter().chain(&others[length..]).all(|&byte| byte == 0));
        files.array().abandon();
    }
}

/// An array at rest whose member 0 has the inode table of an earlier use, and the file that was
/// made longer since.
fn with_an_earlier_table() -> (TestArray, Attribute) {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let made = three_files(&array);
    end_use(array.files);
    let earlier = std::fs::read(table(&array, 0)).unwrap();
    let files = start_again(&array);
    write(&array.open_in(files, "f0", made[0].1), 2, b" and more");
    files.array().end_use(false).unwrap();
    files.detach();
    files.array().abandon();
    std::fs::write(table(&array, 0), &earlier).unwrap();
    (array, made[0].1)
}

#[test]
fn processes_that_start_at_the_same_moment_find_the_earlier_table_made_anew() {
    // The one that was not the first to attach opens the tables first; then all at once.
    let (array, longer) = with_an_earlier_table();
    std::fs::remove_file(array::runtime::segment_path(array.files.array().uuid())).unwrap();
    let [first, second] = [0, 1].map(|_| Array::attach(&array.config).unwrap());
    assert!(first.was_alone() && !second.was_alone());
    for attached in [second, first] {
        let files = in_time(move || Files::new(attached).unwrap());
        assert_eq!(files.array().in_use().len(), 3);
        assert_eq!(read(&array.open_in(files, "f0", longer), 0, 100), b"f0 and more");
    }
    for _ in 0..8 {
        let (array, longer) = with_an_earlier_table();
        std::fs::remove_file(array::runtime::segment_path(array.files.array().uuid())).unwrap();
        let starts: Vec<_> = (0..4)
            .map(|_| array.config.clone())
            .map(|config| std::thread::spawn(move || Files::new(Array::attach(&config).unwrap()).unwrap()))
            .collect();
        for start in starts {
            let files = start.join().unwrap();
            assert_eq!(files.array().in_use().len(), 3);
            assert_eq!(read(&array.open_in(files, "f0", longer), 0, 100), b"f0 and more");
        }
    }
}

#[test]
fn an_earlier_table_is_made_anew_also_where_the_segment_is_left() {
    let (array, longer) = with_an_earlier_table();
    let files = array.again();
    assert!(files.array().was_alone());
    assert_eq!(files.array().in_use().len(), 3);
    assert_eq!(read(&array.open_in(files, "f0", longer), 0, 100), b"f0 and more");
}

#[test]
fn a_table_that_is_overwritten_while_a_program_runs_puts_its_member_out() {
    for what in ["zeros", "noise", "of an earlier use"] {
        for slot in [0, 2] {
            let array = TestArray::new(Level::Raid5, 3, 4096);
            let earlier = std::fs::read(table(&array, slot)).unwrap();
            let (files, made) = (array.files, three_files(&array));
            let mut content = std::fs::read(table(&array, slot)).unwrap();
            match what {
                "zeros" => content.fill(0),
                "noise" => content.fill(0xa5),
                _ => {
                    content.fill(0);
                    content[..earlier.len()].copy_from_slice(&earlier);
                }
            }
            std::fs::OpenOptions::new().write(true).open(table(&array, slot)).unwrap().write_all_at(&content, 0).unwrap();
            are_whole(&array, files, &made);
            assert_eq!(files.array().in_use().len(), 2, "{what} on member {slot}");
            assert!(!files.array().in_use().contains(slot));
            files.create_inode(b"/data/file").unwrap();
        }
    }
}

#[test]
fn lanes_names_and_backings_that_are_damaged_while_a_program_runs_cost_no_byte() {
    for name in ["lanes", "names", "backings"] {
        for how in ["cut", "deleted", "overwritten"] {
            for slot in [0, 2] {
                let array = TestArray::new(Level::Raid5, 3, 4096);
                let (files, made) = (array.files, three_files(&array));
                files.open_name_log().unwrap();
                let path = array.member_path(slot).join(".cxlraid").join(name);
                let length = std::fs::metadata(&path).unwrap().len();
                match how {
                    "cut" => lengthen(&path, 0),
                    "deleted" => std::fs::remove_file(&path).unwrap(),
                    _ => overwrite(&path, 0, &vec![0xa5; length as usize]),
                }
                // The program goes on: it writes to what it has, and makes more.
                for (name, attribute) in &made {
                    write(&array.open(name, *attribute), 1, b"changed");
                }
                files.has_name(files.create_inode(b"/data/file").unwrap());
                let are_right = |files: &'static Files| {
                    for (name, attribute) in &made {
                        let expected = [&name.as_bytes()[..1], b"changed"].concat();
                        assert_eq!(read(&array.open_in(files, name, *attribute), 0, 100), expected, "{name} {how} {slot}");
                    }
                };
                are_right(files);
                // The next one finds that a member has lost a table, or makes it anew.
                let files = start_again(&array);
                assert!(files.array().in_use().len() >= 2);
                are_right(files);
                files.open_name_log().unwrap();
                files.array().abandon();
            }
        }
    }
}
