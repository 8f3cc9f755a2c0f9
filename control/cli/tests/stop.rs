//! `cxlraid stop` after a process died in the middle of a write while a member was out: what the segment alone knows is not thrown away.

use array::{Array, Config};
use dax::Access;
use file::Files;
use format::{ATTRIBUTE_NAME, Attribute};
use layout::Level;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use sys::rustix::fs::{Mode, OFlags, getxattr, open};
use sys::rustix::mm::{MprotectFlags, mprotect};

const CHILD: &str = "CXLRAID_TEST_STOP_CHILD";

/// Not a test by itself: dies when it stores parity.
#[test]
fn dying_writer() {
    let Ok(home) = std::env::var(CHILD) else { return };
    let mounts = ["m0", "m1", "m2"].map(|member| Path::new(&home).join(member));
    let paths = mounts.each_ref().map(|mount| mount.as_os_str().as_bytes().to_vec());
    let config = Config::new(Level::Raid5, None, &paths, &[b"/data".to_vec()], String::new()).unwrap();
    let files = Files::new(Array::attach(&config).unwrap()).unwrap();
    let backing = mounts.each_ref().map(|mount| mount.join("data/file"));
    let mut bytes = [0; format::ATTRIBUTE_BYTES];
    getxattr(&backing[1], ATTRIBUTE_NAME, &mut bytes[..]).unwrap();
    let fd = |slot: usize| (slot != 0).then(|| open(&backing[slot], OFlags::RDWR, Mode::empty()).unwrap());
    let opened = files.open(Attribute::decode(&bytes).unwrap(), true, || Ok(((0..3).map(fd).collect(), Access::ReadWrite)));
    let file = opened.unwrap();
    let mut data = vec![0; 100_000];
    // SAFETY: the buffer is ours.
    unsafe { file.read_at(0, data.as_mut_ptr(), data.len()) }.unwrap();
    // The parity of the first stripe is on the last member.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.ends_with("m2/data/file")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        // SAFETY: a mapping of the library's; what stores to it is meant to die.
        unsafe { mprotect(start as *mut _, end - start, MprotectFlags::READ) }.unwrap();
    }
    // On the second column.
    // SAFETY: as above.
    let _ = unsafe { file.write_at(70_000, [0xa5; 4000].as_ptr(), 4000) };
    unreachable!("the store to the parity kills");
}

#[test]
fn what_a_dead_process_left_half_done_is_undone_first() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = |name: &str| home.path().join(name);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cxlraid"));
        command.args(arguments).current_dir(home.path()).env("XDG_CONFIG_HOME", at("config")).env_remove("LD_PRELOAD");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for member in ["m0", "m1", "m2"] {
        fs::create_dir(at(member)).unwrap();
    }
    let content: Vec<u8> = (0..300_000u32).map(|at| (at * 7 / 3) as u8).collect();
    fs::write(at("file"), &content).unwrap();
    run(&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"]);
    run(&["add", "-a", "db", "file", "/data/file"]);
    run(&["stop", "db"]);
    fs::rename(at("m0"), at("away")).unwrap();
    fs::create_dir(at("m0")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "dying_writer"]).env(CHILD, home.path()).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(child.status().unwrap().signal(), Some(11));
    run(&["stop", "db"]);
    run(&["retrieve", "-a", "db", "/data/file", "back"]);
    run(&["stop", "db"]);
    let back = fs::read(at("back")).unwrap();
    let right = |at: usize| back[at] == content[at] || (70_000..74_000).contains(&at) && back[at] == 0xa5;
    let wrong = (0..content.len()).find(|&at| !right(at));
    assert_eq!((back.len(), wrong), (content.len(), None));
}
