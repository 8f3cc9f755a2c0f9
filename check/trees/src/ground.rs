//! The directories of all runs and of one, and the programs that are run there.
//!
//! Members and the directory under test lie on tmpfs; programs, notes and output lie on another
//! file system.

use crate::scenes::FILES;
use stage::{Janitor, options::copied, remove, run::Run};
use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicUsize, Ordering},
};

/// The size of a member's own file system.
const IMAGE_BYTES: u64 = 256 << 20;

/// The directories of a whole run. Removed by the janitor.
pub(crate) struct Ground {
    /// Everything of the runs that lies on tmpfs.
    pub(crate) root: PathBuf,
    /// Everything else: programs, notes and output.
    pub(crate) host: PathBuf,
    pub(crate) janitor: Janitor,
    /// Copies that stay the same while others build.
    pub(crate) library: PathBuf,
    pub(crate) command: PathBuf,
    /// Whether file systems can be made and mounted here.
    pub(crate) can_mount: bool,
}

impl Ground {
    pub(crate) fn new(library: &Path, command: &Path) -> Result<Self, String> {
        let name = format!("cxlraid-trees.{}", process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        for directory in [&root, &host, &host.join("scenes"), &host.join("home")] {
            fs::create_dir(directory)
                .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("{}: {error}; it must be possible to make directories there", directory.display()))?;
        }
        for (name, text) in FILES {
            fs::write(host.join("scenes").join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
        let (library, command) = (copied(library, &host)?, copied(command, &host)?);
        let mut ground = Self { root, host, janitor, library, command, can_mount: false };
        let trial = ground.root.join("trial");
        ground.can_mount = fs::create_dir(&trial).is_ok() && ground.mount(&trial).is_ok() && unmount(&trial);
        Ok(ground)
    }

    /// A file system of its own, in memory, at a directory.
    pub(crate) fn mount(&self, directory: &Path) -> Result<(), String> {
        let image = directory.with_extension("image");
        let file = fs::File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES));
        file.map_err(|error| format!("{}: {error}", image.display()))?;
        let succeeds = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let made = succeeds(Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal", "-m", "0"]).arg(&image))
            && succeeds(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&image).arg(directory));
        if !made {
            return Err(format!("{}: no ext4 can be mounted there", directory.display()));
        }
        self.janitor.mounted(directory);
        Ok(())
    }

    pub(crate) fn director(&self) -> PathBuf {
        self.host.join("scenes/director.py")
    }
}

/// The directories of one run at a time: those of a thread. Its directory under test is the same
/// for all runs, also those on a plain directory, since paths find their way into output.
pub(crate) struct Place<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) root: PathBuf,
    /// The directory under test: the array's prefix, or a plain directory.
    pub(crate) data: PathBuf,
    /// Where a scene keeps its notes.
    pub(crate) notes: PathBuf,
    work: PathBuf,
    counter: AtomicUsize,
}

impl<'a> Place<'a> {
    pub(crate) fn new(ground: &'a Ground, number: usize) -> io::Result<Self> {
        let name = format!("job{number}");
        let (root, work) = (ground.root.join(&name), ground.host.join(&name));
        fs::create_dir(&root)?;
        fs::create_dir(&work)?;
        Ok(Self { ground, data: root.join("data"), root, notes: work.join("notes"), work, counter: AtomicUsize::new(0) })
    }

    /// Empties the directory under test and the notes.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for directory in [&self.data, &self.notes] {
            remove(directory)?;
            fs::create_dir(directory)?;
        }
        Ok(())
    }

    /// A program with the environment of scenes.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        Run::new(program, &self.ground.janitor, self.work.join(format!("run{number}")))
            .env("HOME", self.ground.host.join("home"))
            .env("TMPDIR", &self.work)
            .directory(&self.work)
    }
}

/// Unmounts a member's file system. Whether that is done, at once or when nobody uses it any more.
pub(crate) fn unmount(directory: &Path) -> bool {
    Command::new("umount").arg("-l").arg(directory).output().is_ok_and(|output| output.status.success())
}
