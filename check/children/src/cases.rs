//! The table of cases: names, what they are about, and what they run.

/// One row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The program and its arguments. `@` is the directory of programs and scripts, `%` the
    /// directory under test.
    pub(crate) command: &'static str,
    /// Programs that must be installed.
    pub(crate) needs: &'static [&'static str],
    pub(crate) is_long: bool,
}

const fn case(name: &'static str, about: &'static str, command: &'static str) -> Case {
    Case { name, about, command, needs: &[], is_long: false }
}

/// A case that a quick run leaves out: what it is about others show as well, and it takes seconds.
const fn long(name: &'static str, about: &'static str, command: &'static str) -> Case {
    Case { is_long: true, ..case(name, about, command) }
}

const PYTHON: &[&str] = &["python3"];
const NODE: &[&str] = &["node"];
const JAVA: &[&str] = &["java", "javac"];

/// Class data sharing and a small heap only make the start faster.
macro_rules! java {
    ($way:literal) => {
        concat!(
            "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Djdk.lang.Process.launchMechanism=",
            $way,
            " -cp @ Children %"
        )
    };
}

/// All cases, in no particular order. Neighbours run on different levels in a quick run.
pub(crate) const CASES: [Case; 55] = [
    // Two threads write and read a hundred files each; the main thread makes children that have
    // nothing to do with them.
    case("churn-spawn", "posix_spawn while threads write and read files", "@/churn % spawn 60"),
    case("churn-vfork", "vfork and exec while threads write and read files", "@/churn % vfork 60"),
    case("churn-vfork-exit", "vfork and _exit while threads write and read files", "@/churn % vfork-exit 500"),
    case("churn-fork", "fork and exec while threads write and read files", "@/churn % fork 60"),
    case("offsets-spawn", "a fresh file is written in four pieces while the main thread spawns", "@/offsets % spawn 60"),
    case("offsets-vfork", "the same with vfork and exec", "@/offsets % vfork 60"),
    case("offsets-fork", "the same with fork", "@/offsets % fork 300"),
    case("writer-exec", "fork and exec while a thread is always inside write", "@/writer % exec 150"),
    case("writer-exit", "fork and _exit while a thread is always inside write", "@/writer % exit 300"),
    case("writer-work", "fork while a thread is always inside write; the child works on a file", "@/writer % work 300"),
    // Tables, directories and signal actions that are shared or not.
    case("close-range", "close_range(CLOSE_RANGE_UNSHARE) in a thread", "@/tables % close-range"),
    case("unshare-files", "unshare(CLONE_FILES) in a thread", "@/tables % unshare-files"),
    case("unshare-fs", "unshare(CLONE_FS) in a thread, which then does chdir", "@/tables % unshare-fs"),
    case("clone", "clone without flags, like fork", "@/tables % clone"),
    case("clone-stack", "clone without flags, on a stack of its own", "@/tables % clone-stack"),
    case("clone-files", "clone(CLONE_FILES), like fork", "@/tables % clone-files"),
    long("clone-files-stack", "clone(CLONE_FILES) on a stack of its own", "@/tables % clone-files-stack"),
    case("clone-fs", "clone(CLONE_FS), like fork", "@/tables % clone-fs"),
    long("clone-fs-stack", "clone(CLONE_FS) on a stack of its own", "@/tables % clone-fs-stack"),
    case("clone-files-fs", "clone(CLONE_FILES | CLONE_FS) on a stack of its own", "@/tables % clone-files-fs"),
    case("vfork-calls", "a vfork child that works on files and ends in four ways", "@/tables % vfork"),
    case("vfork-stack", "clone(CLONE_VM | CLONE_VFORK), the same", "@/tables % vfork-stack"),
    case("vfork-files", "clone(CLONE_VM | CLONE_VFORK | CLONE_FILES), the same", "@/tables % vfork-files"),
    case("vfork-fs", "clone(CLONE_VM | CLONE_VFORK | CLONE_FS), the same", "@/tables % vfork-fs"),
    case("vfork-signals", "clone(CLONE_VM | CLONE_VFORK | CLONE_SIGHAND), the same", "@/tables % vfork-signals"),
    case("vfork-all", "clone with all of these flags, the same", "@/tables % vfork-all"),
    case("vfork-many", "40 of clone(CLONE_VM | CLONE_VFORK)", "@/tables % many-vfork"),
    case("clone-many", "100 of clone on a stack of its own", "@/tables % many-clone"),
    // Memory that is shared with a parent that runs: no program of ours, but some runtimes and
    // containers do it.
    case("loose-waits", "clone(CLONE_VM); the thread that made the child only waits for it", "@/tables % clone-vm"),
    case("loose-own-block", "clone(CLONE_VM | CLONE_SETTLS): thread memory of its own, beside its parent", "@/loose % block"),
    case("loose-files", "the same with CLONE_FILES and CLONE_FS", "@/loose % files"),
    case("vfork-killed", "vfork children that are killed in the middle of calls", "@/loose % killed"),
    case("actions-files", "posix_spawn with addopen (O_TRUNC, O_APPEND) and addclose", "@/actions % files"),
    case("actions-duplicates", "posix_spawn with adddup2", "@/actions % duplicates"),
    case("actions-directories", "posix_spawn with addchdir_np and addfchdir_np", "@/actions % directories"),
    case("actions-mistakes", "posix_spawn whose actions or program fail", "@/actions % mistakes"),
    case("attributes", "posix_spawn with setsigmask and setsigdefault", "@/actions % attributes"),
    case("streams-spawn", "directory streams across posix_spawn", "@/streams % spawn"),
    case("streams-vfork", "directory streams across vfork; the child closes the descriptor", "@/streams % vfork"),
    case("streams-fork", "directory streams across fork; the child closes the stream", "@/streams % fork"),
    long("streams-fork-exec", "directory streams across fork and exec", "@/streams % fork-exec"),
    case("redirected-spawn", "children's standard output is a file, by adddup2", "@/redirected % spawn"),
    case("redirected-vfork", "the same, by dup2 in a vfork child", "@/redirected % vfork"),
    long("redirected-fork", "the same, by dup2 in a fork child", "@/redirected % fork"),
    Case { needs: PYTHON, ..case("python-run", "Python: threads and subprocess.run (vfork)", "python3 @/children.py % run") },
    Case {
        needs: PYTHON,
        ..long("python-popen", "Python: threads and children that write into files", "python3 @/children.py % popen")
    },
    Case {
        needs: PYTHON,
        ..case("python-fork", "Python: threads and subprocess with preexec_fn (fork)", "python3 @/children.py % fork")
    },
    Case {
        needs: PYTHON,
        ..case(
            "python-handed",
            "Python: threads, and children whose standard input the parent closes at once",
            "python3 @/children.py % handed",
        )
    },
    Case { needs: PYTHON, ..long("python-spawn", "Python: threads and os.posix_spawn", "python3 @/children.py % spawn") },
    Case { needs: NODE, ..case("node-exec", "node: fs.promises and child_process.execFile", "node @/children.js % exec") },
    Case {
        needs: NODE,
        ..long("node-output", "node: fs.promises and children that write into files", "node @/children.js % output")
    },
    Case { needs: NODE, ..long("node-fork", "node: fs.promises and child_process.fork", "node @/children.js % fork") },
    Case { needs: JAVA, ..case("java-spawn", "Java: threads and ProcessBuilder, by posix_spawn", java!("POSIX_SPAWN")) },
    Case { needs: JAVA, ..long("java-vfork", "Java: threads and ProcessBuilder, by vfork", java!("VFORK")) },
    Case { needs: JAVA, ..long("java-fork", "Java: threads and ProcessBuilder, by fork", java!("FORK")) },
];
