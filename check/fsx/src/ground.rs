//! The directories of a case, its members among them, and the workers that are run on it. Removed
//! when dropped.

use crate::check::Wish;
use crate::shape::Case;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

/// Directories of runs begin so; the process that made them follows.
const PREFIX: &str = "cxlraid-fsx.";

/// Members, prefix and notes of a case.
pub(crate) struct Ground {
    root: PathBuf,
    pub(crate) case: Case,
    library: PathBuf,
    pub(crate) keep: bool,
}

impl Ground {
    /// Fresh members, all there.
    pub(crate) fn new(case: Case, library: &Path) -> io::Result<Self> {
        let root = base().join(format!("{PREFIX}{}", std::process::id()));
        remove(&root);
        let ground = Self { root, case, library: library.to_owned(), keep: false };
        for slot in 0..case.level.member_count {
            fs::create_dir_all(ground.member(slot))?;
        }
        Ok(ground)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn member(&self, slot: usize) -> PathBuf {
        self.root.join(format!("m{slot}"))
    }

    /// The array's prefix.
    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Where the array is mounted, in the mode for that.
    pub(crate) fn mounted(&self) -> PathBuf {
        self.root.join("mounted")
    }

    /// Where what the files must hold is kept.
    pub(crate) fn expected(&self) -> PathBuf {
        self.root.join("expected")
    }

    /// Where workers share what they know.
    pub(crate) fn board(&self) -> PathBuf {
        self.root.join("board")
    }

    /// Takes a member away, as an unmounted device.
    pub(crate) fn lose(&self, slot: usize) -> io::Result<()> {
        fs::rename(self.member(slot), self.away(slot))
    }

    pub(crate) fn bring_back(&self, slot: usize) -> io::Result<()> {
        fs::rename(self.away(slot), self.member(slot))
    }

    fn away(&self, slot: usize) -> PathBuf {
        self.root.join(format!("away{slot}"))
    }

    /// This program in another role; it sees the array's variables, and the array itself if
    /// `intercepted`.
    pub(crate) fn role(&self, words: &[&str], intercepted: bool) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        let members: Vec<String> =
            (0..self.case.level.member_count).map(|slot| self.member(slot).display().to_string()).collect();
        command.args(words).stdin(Stdio::null()).process_group(0);
        command.env("CXLRAID_LEVEL", self.case.level.name).env("CXLRAID_MOUNTS", members.join(":"));
        command.env("CXLRAID_PATHS", self.data()).env("CXLRAID_STRIPE_SIZE", self.case.chunk.to_string());
        command.env("CXLRAID_JOURNAL", if self.case.journal { "internal" } else { "" });
        if self.case.maps_members() {
            command.env("CXLRAID_MAP_COPY_BYTES", "0");
        }
        if intercepted {
            command.env("LD_PRELOAD", &self.library);
        }
        Ok(command)
    }

    /// The check from outside.
    pub(crate) fn check(&self, wish: &Wish) -> Result<(), String> {
        let mut words = vec!["check".to_owned()];
        if wish.live {
            words.push("--live".to_owned());
        }
        for (word, path) in [("--expected", &wish.expected), ("--save", &wish.save)] {
            if let Some(path) = path {
                words.extend([word.to_owned(), path.display().to_string()]);
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = self.role(&words, false).map_err(|error| error.to_string())?;
        finish(command, Duration::from_secs(300))
    }

    /// What lies in the host's directory of the prefix's name, which nobody on the array may reach.
    pub(crate) fn leaked(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Removes the array's runtime segment: nobody is attached.
    pub(crate) fn forget_runtime(&self) {
        for slot in 0..self.case.level.member_count {
            stage::segment::forget([self.member(slot), self.away(slot)]);
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if !self.keep {
            self.forget_runtime();
            remove(&self.root);
        }
    }
}

/// Runs a command; one that takes longer than `limit` is ended, with its process group.
pub(crate) fn finish(mut command: Command, limit: Duration) -> Result<(), String> {
    let child = command.spawn().map_err(|error| error.to_string())?;
    wait(child, limit)
}

/// Waits for a command that leads a process group.
pub(crate) fn wait(mut child: Child, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("a worker ended: {status}")),
            Ok(None) if begun.elapsed() > limit => {
                end_group(&mut child);
                return Err(format!("still at work after {} s", limit.as_secs()));
            }
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Ends a process group by its leader, which has not been waited for.
pub(crate) fn end_group(leader: &mut Child) {
    // SAFETY: no memory is concerned; the leader's pid is still its own.
    unsafe { libc::kill(-(leader.id() as i32), libc::SIGKILL) };
    let _ = leader.wait();
}

fn base() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { env::temp_dir() }
}

/// Removes what runs left that were killed.
pub(crate) fn remove_stale() {
    for entry in fs::read_dir(base()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            remove(&entry.path());
        }
    }
}

fn remove(directory: &Path) {
    stage::segment::forget(fs::read_dir(directory).into_iter().flatten().flatten().map(|member| member.path()));
    let _ = fs::remove_dir_all(directory);
}
