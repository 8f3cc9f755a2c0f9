//! What tests of this crate share: directories of members, and a test that runs in a process of its
//! own.

use crate::Config;
use core::sync::atomic::{AtomicU32, Ordering};
use layout::Level;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::string::String;
use std::vec::Vec;
use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A directory that is removed with all that it holds.
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn new(name: &str) -> Self {
        // Tests that choose the same name run beside each other in one process.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Path::new("/dev/shm").join(std::format!("array-{name}-{}-{number}", std::process::id())))
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Three empty directories, m0 to m2, and the configuration of an array of them, which nobody has
/// made yet.
pub(crate) fn three_members(name: &str, level: Level) -> (Home, Config) {
    members(name, level, 3)
}

/// So many empty directories, m0 and on, and the configuration of an array of them, which nobody
/// has made yet.
pub(crate) fn members(name: &str, level: Level, count: usize) -> (Home, Config) {
    let home = Home::new(name);
    let members: Vec<PathBuf> = (0..count).map(|slot| home.path(std::format!("m{slot}"))).collect();
    members.iter().for_each(|member| std::fs::create_dir_all(member).unwrap());
    let mounts: Vec<Vec<u8>> = members.into_iter().map(|member| member.into_os_string().into_encoded_bytes()).collect();
    let config = Config::new(level, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    (home, config)
}

/// Runs the test that calls this once more, as a process of its own, and checks that it passes
/// there: what it changes concerns a whole process. True in that process, which is to do the test's
/// work.
pub(crate) fn is_alone() -> bool {
    const ALONE: &str = "CXLRAID_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let mut this = Command::new(std::env::current_exe().unwrap());
    let output = this.args(["--exact", thread.name().unwrap()]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// Does something while this process has no free descriptor.
pub(crate) fn without_descriptors<T>(act: impl FnOnce() -> T) -> T {
    use std::os::fd::AsRawFd as _;
    let before = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
    let result = act();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}
