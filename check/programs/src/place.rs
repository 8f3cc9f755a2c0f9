//! The directories of a whole run and of one case.
//!
//! Members and the directories under test lie on tmpfs; programs work from a directory of another
//! file system, so that moving across the border means the same on a plain directory as on an
//! array.

use crate::process::Run;
use stage::{Janitor, options::copied};
use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The directories of a whole run. Removed by the janitor.
pub(crate) struct Ground {
    /// On tmpfs.
    pub(crate) root: PathBuf,
    /// On another file system.
    pub(crate) host: PathBuf,
    pub(crate) assets: PathBuf,
    pub(crate) janitor: Janitor,
    /// Library and command are copies.
    pub(crate) library: PathBuf,
    pub(crate) command: PathBuf,
    /// Whether system calls on arrays are under watch.
    pub(crate) watched: bool,
}

impl Ground {
    pub(crate) fn new(library: &Path, command: &Path, watched: bool) -> Result<Self, String> {
        let name = format!("cxlraid-programs.{}", process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        let assets = host.join("assets");
        for directory in [&root, &host, &assets, &host.join("home")] {
            fs::create_dir(directory)
                .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("{}: {error}; it must be possible to make directories there", directory.display()))?;
        }
        let (library, command) = (copied(library, &host)?, copied(command, &host)?);
        Ok(Self { root, host, assets, janitor, library, command, watched })
    }
}

/// The directories of one case, the same for its plain run and for those on arrays: paths may find
/// their way into output and files.
pub(crate) struct Place<'a> {
    pub(crate) ground: &'a Ground,
    /// Where arrays are made.
    pub(crate) root: PathBuf,
    /// The directory under test: the array's prefix, or a plain directory.
    pub(crate) data: PathBuf,
    /// Where programs work.
    pub(crate) work: PathBuf,
    counter: AtomicUsize,
}

impl<'a> Place<'a> {
    pub(crate) fn new(ground: &'a Ground, name: &str) -> io::Result<Self> {
        let root = ground.root.join(name);
        let work = ground.host.join(name);
        let place = Self { ground, data: root.join("data"), root, work, counter: AtomicUsize::new(0) };
        fs::create_dir(&place.root)?;
        place.clear()?;
        Ok(place)
    }

    /// Empties the directory under test and the one programs work in.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for directory in [&self.data, &self.work] {
            remove(directory)?;
            fs::create_dir(directory)?;
        }
        Ok(())
    }

    /// A program with the environment of cases, working in `work`.
    pub(crate) fn run(&self, program: &str) -> Run<'a> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        Run::new(program, &self.ground.janitor, self.work.with_extension(format!("run{number}")))
            .env("A", &self.ground.assets)
            .env("D", &self.data)
            .env("W", &self.work)
            .env("STRICT", "")
            .env("HOME", self.ground.host.join("home"))
            .env("TMPDIR", &self.work)
            .directory(&self.work)
    }

    /// What lies in the host's directory of the prefix's name, which programs on an array must
    /// never reach.
    pub(crate) fn leaked(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.data) else { return Vec::new() };
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// `rm -rf`, also of directories that may not be written.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            process::Command::new("chmod").arg("-R").arg("u+rwX").arg(directory).status()?;
            fs::remove_dir_all(directory)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
