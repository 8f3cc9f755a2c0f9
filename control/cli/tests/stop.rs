//! `cxlraid stop` after a process died in the middle of a write: what the segment alone knows is
//! not thrown away.

use array::{Array, Config};
use dax::Access;
use file::Files;
use format::{ATTRIBUTE_NAME, Attribute};
use layout::Level;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sys::rustix::fs::{Mode, OFlags, getxattr, open};
use sys::rustix::mm::{MprotectFlags, mprotect};

const CHILD: &str = "CXLRAID_TEST_STOP_CHILD";

const SIGSEGV: i32 = 11;

unsafe extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
}

/// Whether a thread stays where it was when a store of its failed.
static STAYS: AtomicBool = AtomicBool::new(false);

extern "C" fn stay(_: i32) {
    STAYS.store(true, Ordering::Release);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Not a test by itself: dies when it stores to a certain member.
#[test]
fn dying_writer() {
    let Ok(scene) = std::env::var(CHILD) else { return };
    let [home, closed, offset, end] = scene.split(' ').collect::<Vec<_>>()[..] else { panic!("{scene}") };
    let mounts = ["m0", "m1", "m2"].map(|member| Path::new(home).join(member));
    let paths = mounts.each_ref().map(|mount| mount.as_os_str().as_bytes().to_vec());
    let config = Config::new(Level::Raid5, None, &paths, &[b"/data".to_vec()], String::new()).unwrap();
    let files = Files::new(Array::attach(&config).unwrap()).unwrap();
    let backing = mounts.each_ref().map(|mount| mount.join("data/file"));
    let mut bytes = [0; format::ATTRIBUTE_BYTES];
    getxattr(&backing[1], ATTRIBUTE_NAME, &mut bytes[..]).unwrap();
    // A member that is away has no file.
    let fd = |slot: usize| open(&backing[slot], OFlags::RDWR, Mode::empty()).ok();
    let opened = files.open(Attribute::decode(&bytes).unwrap(), true, || Ok(((0..3).map(fd).collect(), Access::ReadWrite)));
    let file = opened.unwrap();
    // A file is mapped once it was read some times.
    let mut data = vec![0; 100_000];
    // SAFETY: the buffer is ours.
    (0..8).for_each(|_| _ = unsafe { file.read_at(0, data.as_mut_ptr(), data.len()) }.unwrap());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.ends_with(&format!("{closed}/data/file"))) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        // SAFETY: a mapping of the library's; what stores to it is meant to die.
        unsafe { mprotect(start as *mut _, end - start, MprotectFlags::READ) }.unwrap();
    }
    let offset = offset.parse().unwrap();
    // SAFETY: as above.
    let store = move || _ = unsafe { file.write_at(offset, [0xa5; 4000].as_ptr(), 4000) };
    if end == "ends" {
        // SAFETY: the handler calls nothing that must not be called there.
        unsafe { signal(SIGSEGV, stay) };
        std::thread::spawn(move || {
            store();
            std::process::exit(1)
        });
        while !STAYS.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        files.detach();
        std::process::exit(0);
    }
    store();
    unreachable!("the store to that member kills");
}

/// An array of three members with a file in it.
struct Bench {
    home: tempfile::TempDir,
    content: Vec<u8>,
}

impl Bench {
    fn new(below: &str, more: &[&str]) -> Self {
        let content: Vec<u8> = (0..300_000u32).map(|at| (at * 7 / 3) as u8).collect();
        let bench = Self { home: tempfile::tempdir_in(below).unwrap(), content };
        for directory in ["m0", "m1", "m2", "j"] {
            fs::create_dir(bench.at(directory)).unwrap();
        }
        fs::write(bench.at("file"), &bench.content).unwrap();
        bench.run(&[&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"], more].concat());
        bench.run(&["add", "-a", "db", "file", "/data/file"]);
        bench.run(&["stop", "db"]);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The exit status, and what is said on standard error.
    fn try_run(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cxlraid"));
        command.args(arguments).current_dir(self.home.path()).env("XDG_CONFIG_HOME", self.at("config")).env_remove("LD_PRELOAD");
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) {
        let (status, says) = self.try_run(arguments);
        assert_eq!(status, 0, "{arguments:?}: {says}");
    }

    /// A process begins to write 4000 bytes at `offset`, and `dies` when it stores to the member,
    /// or `ends` in order meanwhile.
    fn write_until(&self, member: &str, offset: usize, end: &str) -> ExitStatus {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let scene = format!("{} {member} {offset} {end}", self.home.path().display());
        child.args(["--exact", "dying_writer"]).env(CHILD, scene).stdout(Stdio::null()).stderr(Stdio::null());
        child.status().unwrap()
    }

    /// What is in the file after a stop.
    fn back(&self) -> Vec<u8> {
        self.run(&["retrieve", "-a", "db", "/data/file", "back"]);
        self.run(&["stop", "db"]);
        fs::read(self.at("back")).unwrap()
    }
}

#[test]
fn what_a_dead_process_left_half_done_is_undone_first() {
    let bench = Bench::new("/dev/shm", &[]);
    fs::rename(bench.at("m0"), bench.at("away")).unwrap();
    fs::create_dir(bench.at("m0")).unwrap();
    // On the second column; the parity of the first stripe is on the last member.
    assert_eq!(bench.write_until("m2", 70_000, "dies").signal(), Some(SIGSEGV));
    bench.run(&["stop", "db"]);
    let (back, content) = (bench.back(), &bench.content);
    let right = |at: usize| back[at] == content[at] || (70_000..74_000).contains(&at) && back[at] == 0xa5;
    let wrong = (0..content.len()).find(|&at| !right(at));
    assert_eq!((back.len(), wrong), (content.len(), None));
}

#[test]
fn what_a_dead_process_committed_is_replayed_first() {
    // On a disk, behind whose page cache a journal is not believed once the segment is gone.
    let bench = Bench::new(env!("CARGO_TARGET_TMPDIR"), &["--journal", "j"]);
    // The second column is stored before, which lies in the first rows.
    assert_eq!(bench.write_until("m0", 63_536, "dies").signal(), Some(SIGSEGV));
    assert_eq!(bench.try_run(&["journal", "show", "db"]).0, 3);

    fs::rename(bench.at("j"), bench.at("away")).unwrap();
    let (status, says) = bench.try_run(&["stop", "db"]);
    assert_eq!(status, 1);
    assert!(says.starts_with("cxlraid: db: processes died in the middle of writes that wait in its journal"), "{says}");
    assert!(says.contains("no such file or directory; mount its device"), "{says}");
    fs::rename(bench.at("away"), bench.at("j")).unwrap();

    bench.run(&["stop", "db"]);
    bench.run(&["journal", "show", "db"]);
    let mut expected = bench.content.clone();
    expected[63_536..67_536].fill(0xa5);
    assert!(bench.back() == expected);
}

#[test]
fn what_a_thread_had_committed_when_its_process_ended_is_replayed_first() {
    let bench = Bench::new(env!("CARGO_TARGET_TMPDIR"), &["--journal", "j"]);
    assert_eq!(bench.write_until("m0", 63_536, "ends").code(), Some(0));
    let (status, says) = bench.try_run(&["journal", "remove", "db"]);
    assert!(status == 1 && says.contains("1 writes wait in the journal"), "{says}");
    assert_eq!(bench.write_until("m0", 200_000, "ends").code(), Some(0));
    bench.run(&["stop", "db"]);
    bench.run(&["journal", "show", "db"]);
    let mut expected = bench.content.clone();
    expected[63_536..67_536].fill(0xa5);
    expected[200_000..204_000].fill(0xa5);
    assert!(bench.back() == expected);
}

#[test]
fn a_stop_says_on_the_members_that_the_array_was_ended_in_order() {
    // In memory, and behind a page cache.
    for below in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let bench = Bench::new(below, &[]);
        let is_clean = |member: &str| {
            let bytes = fs::read(bench.at(member).join(".cxlraid/superblock")).unwrap();
            format::Superblock::choose(&bytes).unwrap().0.is_clean()
        };
        let are_clean = || ["m0", "m1", "m2"].map(is_clean);
        assert_eq!(are_clean(), [true; 3], "{below}");
        bench.run(&["add", "-a", "db", "file", "/data/other"]);
        assert_eq!(are_clean(), [false; 3], "{below}: it was changed since");
        bench.run(&["stop", "db"]);
        assert_eq!(are_clean(), [true; 3], "{below}");
        // What reads changes nothing.
        assert!(bench.back() == bench.content);
        assert_eq!(are_clean(), [true; 3], "{below}");
    }
}
