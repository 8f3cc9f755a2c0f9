//! Where everything is: the directory under test, which is plain or an array's prefix, the members,
//! and what suites print.

use stage::{Janitor, run::Run};
use std::{
    cell::Cell,
    fs, io,
    path::{Path, PathBuf},
};

/// The directories of one run of this program. The janitor removes them when the program ends.
pub(crate) struct Place {
    root: PathBuf,
    /// The directory under test.
    pub(crate) data: PathBuf,
    /// A directory of the host, for results, output and the runner.
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
            // The run uses a copy of the library: a build at the same time would change the original.
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

    /// The directory in which the members of the array with this label lie.
    pub(crate) fn members(&self, label: &str) -> PathBuf {
        self.root.join(label)
    }

    /// Prepares to run a program in the host's directory, with a home directory there.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'_> {
        let number = self.counter.get();
        self.counter.set(number + 1);
        Run::new(program, &self.janitor, self.host.join(format!("run{number}")))
            .env("HOME", self.host.join("home"))
            .env("TMPDIR", &self.host)
            .directory(&self.host)
    }

    /// Empties the plain directory under test.
    pub(crate) fn clear(&self) -> io::Result<()> {
        stage::remove(&self.data)?;
        fs::create_dir_all(&self.data)
    }
}
