//! Where everything is: the directory under test, which is plain or an array's prefix, the members,
//! and what suites print.

use stage::{Janitor, run::Run};
use std::{
    cell::Cell,
    fs, io,
    path::{Path, PathBuf},
};

/// The directories of one run of this program. They are removed in the end.
pub(crate) struct Place {
    root: PathBuf,
    /// The directory under test.
    pub(crate) data: PathBuf,
    /// Of the host: results, output, the runner.
    pub(crate) host: PathBuf,
    pub(crate) library: PathBuf,
    pub(crate) janitor: Janitor,
    counter: Cell<u32>,
}

impl Place {
    pub(crate) fn new(library: &Path) -> Result<Self, String> {
        let name = format!("cxlraid-suites.{}", std::process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), std::env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        let place =
            Self { data: root.join("data"), library: host.join("libcxlraid.so"), host, root, janitor, counter: Cell::new(0) };
        let made = || -> io::Result<()> {
            fs::create_dir_all(&place.data)?;
            fs::create_dir_all(place.host.join("home"))?;
            fs::write(place.runner(), include_str!("../cases/cpython.py"))?;
            // A build beside this run would change it.
            fs::copy(library, &place.library)?;
            Ok(())
        };
        made().map_err(|error| format!("{} or {}: {error}", place.root.display(), place.host.display()))?;
        Ok(place)
    }

    /// The script that runs modules of CPython's tests.
    pub(crate) fn runner(&self) -> PathBuf {
        self.host.join("cpython.py")
    }

    /// The directory of an array's members.
    pub(crate) fn members(&self, label: &str) -> PathBuf {
        self.root.join(label)
    }

    /// A program of the host.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'_> {
        let number = self.counter.get();
        self.counter.set(number + 1);
        Run::new(program, &self.janitor, self.host.join(format!("run{number}")))
            .env("HOME", self.host.join("home"))
            .env("TMPDIR", &self.host)
            .directory(&self.host)
    }

    /// Empties the host's directory under test.
    pub(crate) fn clear(&self) -> io::Result<()> {
        stage::remove(&self.data)?;
        fs::create_dir_all(&self.data)
    }
}
