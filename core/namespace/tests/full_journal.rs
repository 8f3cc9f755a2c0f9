//! Every lane of the journal waits for files of dead processes that nobody has open: a process that
//! writes another file has these files found and replayed.

mod common;

use array::{Array, Config, JournalPlace};
use common::*;
use cxlraid_namespace::Namespace;
use file::Files;
use layout::Level;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use sys::rustix::mm::{MprotectFlags, mprotect};
use units::ChunkBytes;

const LANE_COUNT: usize = 2;
const CHILD: &str = "CXLRAID_TEST_FULL_JOURNAL";
/// What the dead have committed.
const NEW: [u8; 9000] = [7; 9000];

fn config(home: &Path) -> Config {
    let mounts: Vec<Vec<u8>> = (0..3).map(|slot| home.join(format!("m{slot}")).into_os_string().into_encoded_bytes()).collect();
    let config = Config::new(Level::Raid5, ChunkBytes::new(4096), &mounts, &[b"/data".to_vec()], "test".into()).unwrap();
    Config { journal_lanes: LANE_COUNT, ..config.with_journal(&JournalPlace::Members).unwrap() }
}

fn attach(home: &Path) -> Namespace {
    Namespace::new(Files::new(Array::attach(&config(home)).unwrap()).unwrap()).unwrap()
}

/// Not a test by itself: a process that dies of its first store in place, behind the commit of its
/// record. It has no handler of faults.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (home, name) = task.split_once(' ').unwrap();
    let file = create(attach(Path::new(home)), name);
    // A file is mapped once it was read some times.
    (0..8).for_each(|_| drop(read(&file)));
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.ends_with(name)) {
        let (start, rest) = line.split_once('-').unwrap();
        let [start, end] = [start, rest.split_once(' ').unwrap().0].map(|address| usize::from_str_radix(address, 16).unwrap());
        // SAFETY: a mapping of the library's; what stores to it is meant to die.
        unsafe { mprotect(start as *mut _, end - start, MprotectFlags::READ) }.unwrap();
    }
    write(&file, 1000, &NEW);
}

#[test]
fn files_that_lanes_wait_for_are_found() {
    let home = tempfile::Builder::new().prefix("cxlraid-names-").tempdir_in("/dev/shm").unwrap();
    (0..3).for_each(|slot| std::fs::create_dir(home.path().join(format!("m{slot}"))).unwrap());
    persist::fault::install_handlers().unwrap();
    let names = attach(home.path());
    inside(names.mkdir(b"/data/deep", 0o755));
    let paths: Vec<String> = (0..LANE_COUNT).map(|number| format!("/data/deep/left-{number}")).collect();
    for path in &paths {
        write(&create(names, path), 0, &[1; 20_000]);
        let mut child = Command::new(std::env::current_exe().unwrap());
        let status = child.args(["--exact", "child_process"]).env(CHILD, format!("{} {path}", home.path().display())).output();
        assert_eq!(status.unwrap().status.signal(), Some(11));
    }
    let other = create(names, "/data/other");
    write(&other, 0, &[9; 30_000]);
    assert!(read(&other) == [9; 30_000]);
    assert_eq!(names.files().waiting_records().len(), 0);
    for path in &paths {
        let file = create(names, path);
        assert!(read(&file)[1000..1000 + NEW.len()] == NEW, "{path}");
        assert_eq!(file_of(&file).verify(), Ok(0), "{path}");
    }
    let segment: PathBuf = array::runtime::segment_path(names.files().array().uuid()).into();
    std::fs::remove_file(segment).unwrap();
}
