//! The directories of a whole run and of one case, and the programs that cases run.
//!
//! Members and the directories under test lie on tmpfs; programs and their output lie on another
//! file system.

use stage::run::Run;
use stage::{Janitor, options::copied, process::find_program, remove};
use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicUsize, Ordering},
};

macro_rules! embedded {
    ($($name:literal in $directory:literal),* $(,)?) => { [$(($name, include_str!(concat!($directory, "/", $name)))),*] };
}

const FILES: [(&str, &str); 17] = embedded!(
    "check.h" in "../../programs/c",
    "children.h" in "../c", "crowd.h" in "../c", "keepers.h" in "../c", "parents.h" in "../c",
    "actions.c" in "../c", "churn.c" in "../c", "crowd.c" in "../c", "loose.c" in "../c", "offsets.c" in "../c",
    "redirected.c" in "../c", "streams.c" in "../c", "tables.c" in "../c", "writer.c" in "../c",
    "children.py" in "../cases", "children.js" in "../cases", "Children.java" in "../cases",
);

/// The directories of a whole run. Removed by the janitor.
pub(crate) struct Ground {
    /// On tmpfs.
    pub(crate) root: PathBuf,
    /// On another file system.
    pub(crate) host: PathBuf,
    /// Programs and scripts.
    pub(crate) assets: PathBuf,
    pub(crate) janitor: Janitor,
    /// Copies that stay the same while others build.
    pub(crate) library: PathBuf,
    pub(crate) command: PathBuf,
    pub(crate) keep: bool,
}

impl Ground {
    pub(crate) fn new(library: &Path, command: &Path, keep: bool) -> Result<Self, String> {
        let name = format!("cxlraid-children.{}", process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        let assets = host.join("assets");
        for directory in [&root, &host, &assets, &host.join("home")] {
            fs::create_dir(directory)
                .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("{}: {error}; it must be possible to make directories there", directory.display()))?;
        }
        let (library, command) = (copied(library, &host)?, copied(command, &host)?);
        Ok(Self { root, host, assets, janitor, library, command, keep })
    }

    /// Compiles what cases run. `java`: the class, too.
    pub(crate) fn prepare(&self, java: bool) -> Result<(), String> {
        for (name, text) in FILES {
            fs::write(self.assets.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
        for (name, _) in FILES {
            let Some(program) = name.strip_suffix(".c") else { continue };
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-Wall", "-Wextra", "-Wno-clobbered", "-Werror", "-pthread", "-o", program, name]);
            self.finish(cc)?;
        }
        // The cheapest program there is: without interpreter, relocations and C library.
        fs::write(self.assets.join("nothing.c"), NOTHING).map_err(|error| error.to_string())?;
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-static", "-nostdlib", "-o", "nothing", "nothing.c"]);
        self.finish(cc)?;
        if java {
            let mut javac = Command::new(find_program("javac").unwrap_or_else(|| "javac".into()));
            javac.args(["-encoding", "UTF-8", "Children.java"]);
            self.finish(javac)?;
        }
        Ok(())
    }

    fn finish(&self, mut command: Command) -> Result<(), String> {
        let shown = format!("{command:?}");
        match command.env_remove("LD_PRELOAD").current_dir(&self.assets).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("{shown}: {error}; install gcc, libc6-dev and default-jdk-headless")),
        }
    }
}

/// A static program that ends at once.
const NOTHING: &str = r#"void _start(void) { __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory"); __builtin_unreachable(); }"#;

/// The directories of one case, the same for its plain run and for those on arrays: paths may find
/// their way into output.
pub(crate) struct Place<'a> {
    pub(crate) ground: &'a Ground,
    /// Where arrays are made.
    pub(crate) root: PathBuf,
    /// The directory under test: the array's prefix, or a plain directory.
    pub(crate) data: PathBuf,
    /// Where programs work.
    work: PathBuf,
    counter: AtomicUsize,
}

impl<'a> Place<'a> {
    pub(crate) fn new(ground: &'a Ground, name: &str) -> io::Result<Self> {
        let (root, work) = (ground.root.join(name), ground.host.join(name));
        fs::create_dir(&root)?;
        fs::create_dir(&work)?;
        let place = Self { ground, data: root.join("data"), root, work, counter: AtomicUsize::new(0) };
        place.clear()?;
        Ok(place)
    }

    /// Empties the directory under test.
    pub(crate) fn clear(&self) -> io::Result<()> {
        remove(&self.data)?;
        fs::create_dir(&self.data)
    }

    /// A program with the environment of cases.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        Run::new(program, &self.ground.janitor, self.work.join(format!("run{number}")))
            .env("A", &self.ground.assets)
            .env("HOME", self.ground.host.join("home"))
            .env("TMPDIR", &self.work)
            .directory(&self.work)
    }
}
