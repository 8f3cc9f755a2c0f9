//! The suites: what each needs, how it is run, and how its cases are told.

use crate::{
    array::Tested,
    outcome::{Outcome, Outcomes, read},
};
use stage::{process::find_program, run::Output};
use std::{fs, time::Duration};

const PYTHON: &str = "/usr/bin/python3";
/// Beside other work test_concurrent_futures did not end in 150 s.
const MODULE_LIMIT: Duration = Duration::from_secs(450);
const STRESSOR_LIMIT: Duration = Duration::from_secs(60);
const PROGRAM_LIMIT: Duration = Duration::from_secs(120);

/// A suite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    kind: Kind,
    /// Whether it is in the short selection.
    pub(crate) is_quick: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A module of CPython's tests.
    CPython,
    /// A stressor of stress-ng.
    Stressor,
    /// A shell script, one case, with the program it needs and the package that has that.
    Script(&'static str, &'static str, &'static str),
}

const fn module(name: &'static str) -> Suite {
    Suite { name, kind: Kind::CPython, is_quick: false }
}

const fn stressor(name: &'static str) -> Suite {
    Suite { name, kind: Kind::Stressor, is_quick: false }
}

const fn quick(suite: Suite) -> Suite {
    Suite { is_quick: true, ..suite }
}

/// All of them.
pub(crate) const SUITES: &[Suite] = &[
    quick(module("test_os")),
    quick(module("test_posix")),
    module("test_posixpath"),
    module("test_genericpath"),
    quick(module("test_shutil")),
    quick(module("test_tempfile")),
    quick(module("test_mmap")),
    module("test_io"),
    module("test_memoryio"),
    quick(module("test_fileio")),
    module("test_file"),
    module("test_file_eintr"),
    module("test_fileinput"),
    module("test_filecmp"),
    module("test_fileutils"),
    module("test_largefile"),
    quick(module("test_pathlib")),
    quick(module("test_glob")),
    module("test_fnmatch"),
    module("test_stat"),
    module("test_univnewlines"),
    module("test_unicode_file"),
    module("test_unicode_file_functions"),
    module("test_bufio"),
    quick(module("test_fcntl")),
    module("test_ioctl"),
    module("test_poll"),
    module("test_epoll"),
    module("test_select"),
    module("test_selectors"),
    module("test_subprocess"),
    module("test_popen"),
    module("test_wait3"),
    module("test_wait4"),
    module("test_fork1"),
    module("test_signal"),
    module("test_faulthandler"),
    module("test_threading"),
    module("test_thread"),
    module("test_threadsignals"),
    module("test_socket"),
    module("test_socketserver"),
    module("test_multiprocessing_fork"),
    module("test_multiprocessing_spawn"),
    module("test_multiprocessing_forkserver"),
    module("test_multiprocessing_main_handling"),
    module("test_concurrent_futures"),
    module("test_asyncio"),
    module("test_tarfile"),
    module("test_zipfile"),
    module("test_zipfile64"),
    module("test_gzip"),
    module("test_bz2"),
    module("test_lzma"),
    module("test_sqlite3"),
    quick(module("test_dbm")),
    module("test_dbm_dumb"),
    module("test_dbm_gnu"),
    module("test_dbm_ndbm"),
    module("test_shelve"),
    module("test_pickle"),
    module("test_mailbox"),
    module("test_mailcap"),
    module("test_netrc"),
    module("test_import"),
    module("test_importlib"),
    module("test_zipimport"),
    module("test_zipapp"),
    module("test_pkgutil"),
    module("test_pkg"),
    module("test_runpy"),
    module("test_compileall"),
    module("test_py_compile"),
    module("test_venv"),
    module("test_cmd_line"),
    module("test_cmd_line_script"),
    module("test_script_helper"),
    module("test_logging"),
    module("test_configparser"),
    module("test_httpservers"),
    module("test_urllib"),
    module("test_wave"),
    module("test_linecache"),
    module("test_tokenize"),
    module("test_unittest"),
    module("test_pty"),
    module("test_openpty"),
    module("test_resource"),
    module("test_tracemalloc"),
    // stress-ng's classes filesystem, pipe and memory, as far as they concern files or what lies
    // beside them.
    stressor("access"),
    stressor("binderfs"),
    stressor("chattr"),
    stressor("chdir"),
    quick(stressor("chmod")),
    stressor("chown"),
    stressor("copy-file"),
    quick(stressor("dentry")),
    stressor("dir"),
    stressor("dirdeep"),
    stressor("dirmany"),
    stressor("dnotify"),
    stressor("dup"),
    stressor("eventfd"),
    stressor("fallocate"),
    stressor("fanotify"),
    stressor("fcntl"),
    stressor("fiemap"),
    stressor("fifo"),
    stressor("file-ioctl"),
    stressor("filename"),
    stressor("flock"),
    stressor("fpunch"),
    quick(stressor("fstat")),
    stressor("full"),
    stressor("getdent"),
    stressor("handle"),
    stressor("hdd"),
    stressor("inode-flags"),
    stressor("inotify"),
    stressor("io"),
    stressor("iomix"),
    quick(stressor("lease")),
    stressor("link"),
    stressor("locka"),
    quick(stressor("lockf")),
    stressor("lockofd"),
    stressor("madvise"),
    stressor("mknod"),
    quick(stressor("mmap")),
    stressor("mmapaddr"),
    stressor("mmapfixed"),
    stressor("mmapfork"),
    stressor("mmapmany"),
    stressor("mremap"),
    stressor("msync"),
    stressor("munmap"),
    stressor("null"),
    stressor("open"),
    stressor("pipe"),
    stressor("procfs"),
    stressor("readahead"),
    stressor("remap"),
    quick(stressor("rename")),
    stressor("revio"),
    stressor("seek"),
    stressor("sendfile"),
    stressor("sigfd"),
    stressor("splice"),
    stressor("symlink"),
    stressor("sync-file"),
    stressor("tee"),
    quick(stressor("touch")),
    stressor("unlink"),
    stressor("utime"),
    stressor("verity"),
    stressor("vm-splice"),
    stressor("xattr"),
    Suite {
        name: "dbench",
        kind: Kind::Script("dbench", "dbench", "dbench -t 5 -D . -c /usr/share/dbench/client.txt 4"),
        is_quick: false,
    },
    Suite {
        name: "bonnie++",
        kind: Kind::Script("bonnie++", "bonnie++", "bonnie++ -d . -u \"$(id -u)\" -r 8 -s 32 -n 2:4096:0:4 -x 1"),
        is_quick: false,
    },
    Suite {
        name: "postmark",
        kind: Kind::Script(
            "postmark",
            "postmark",
            "printf 'set location .\\nset number 500\\nset transactions 2000\\nset seed 7\\nrun\\nquit\\n' | postmark",
        ),
        is_quick: false,
    },
];

impl Suite {
    /// Its family, by which it can be asked for, too.
    pub(crate) const fn family(&self) -> &'static str {
        match self.kind {
            Kind::CPython => "cpython",
            Kind::Stressor => "stress-ng",
            Kind::Script(..) => "programs",
        }
    }

    /// The package that is missing for it.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let (is_there, package) = match self.kind {
            Kind::CPython => {
                let place = format!("/usr/lib/python3.11/test/{}", self.name);
                let is_there = [format!("{place}.py"), place].iter().any(|path| fs::exists(path).unwrap_or(false));
                (is_there, "a libpython3.11-testsuite that has it")
            }
            Kind::Stressor => (find_program("stress-ng").is_some(), "stress-ng"),
            Kind::Script(program, package, _) => (find_program(program).is_some(), package),
        };
        (!is_there).then_some(package)
    }

    /// Runs it in the directory under test.
    pub(crate) fn run(&self, tested: &Tested<'_>) -> Outcomes {
        match self.kind {
            Kind::CPython => self.run_module(tested),
            Kind::Stressor => self.run_stressor(tested),
            Kind::Script(_, _, script) => {
                let output = tested.run("bash").args(["-e", "-o", "pipefail", "-c", script]).limit(PROGRAM_LIMIT).output();
                one(self.name, &output)
            }
        }
    }

    fn run_module(&self, tested: &Tested<'_>) -> Outcomes {
        let place = tested.place();
        let results = place.host.join("results");
        let output = tested.run(PYTHON).arg(place.runner()).arg(&results).arg(self.name).limit(MODULE_LIMIT).output();
        let mut outcomes = read(&fs::read_to_string(&results).unwrap_or_default());
        // It is not there if nothing was run.
        let _ = fs::remove_file(&results);
        if !output.succeeded() {
            let last = output.stderr.lines().last().unwrap_or("");
            outcomes.insert(format!("test.{}", self.name), Outcome::Failed(format!("exit status {}: {last}", output.status)));
        }
        outcomes
    }

    fn run_stressor(&self, tested: &Tested<'_>) -> Outcomes {
        let name = format!("--{}", self.name);
        let options = ["1", "--timeout", "1", "--verify", "--temp-path", ".", "--oomable", "--seed", "7"];
        let output = tested.run("stress-ng").arg(&name).args(options).limit(STRESSOR_LIMIT).output();
        one(self.name, &output)
    }
}

/// A suite that is one case. stress-ng ends with 4 where the kernel lacks what a stressor needs.
fn one(name: &str, output: &Output) -> Outcomes {
    let told = |line: &&str| line.contains("fail") || line.contains("error") || line.contains("rror:");
    let outcome = match output.status.as_str() {
        "0" if output.stderr.contains("skipped: 1") => Outcome::Skipped("stress-ng leaves it out".to_owned()),
        "0" => Outcome::Passed,
        "4" => Outcome::Skipped("not implemented".to_owned()),
        status => {
            let mut lines = output.stderr.lines().chain(output.stdout.lines());
            let why = lines.find(told).or_else(|| output.stderr.lines().last()).unwrap_or("");
            Outcome::Failed(format!("exit status {status}: {why}"))
        }
    };
    Outcomes::from([(name.to_owned(), outcome)])
}
