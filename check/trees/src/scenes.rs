//! The scenes, and the files that they consist of.

/// A tree of processes.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Whether its processes are killed at random instants, and begun anew.
    pub(crate) kills: bool,
    /// Whether its processes go on when a write fails for want of room.
    pub(crate) bears_full: bool,
    /// Whether it leaves the same files in each run. If not, what is there when it has ended must
    /// be there with each further member away.
    pub(crate) is_repeatable: bool,
    /// How many variants there are; each has a run on a plain directory of its own.
    pub(crate) variant_count: u64,
}

const fn scene(name: &'static str, variant_count: u64, about: &'static str) -> Scene {
    Scene { name, about, kills: false, bears_full: false, is_repeatable: true, variant_count }
}

pub(crate) const SCENES: [Scene; 7] = [
    scene("shell", 2, "redirections, pipelines, subshells, background jobs, names"),
    scene("make", 2, "make -j2: rules that write, append and rename"),
    Scene { is_repeatable: false, ..scene("git", 2, "commits, a merge, gc, fsck, a clone") },
    scene("workers", 2, "multiprocessing by fork and spawn: locks, appends, a shared mapping"),
    scene("server", 2, "descriptors handed to children by SCM_RIGHTS; in one variant the children are another user"),
    Scene {
        kills: true,
        bears_full: true,
        is_repeatable: false,
        ..scene("sqlite", 2, "writers of a database, in WAL and rollback mode, killed and begun anew")
    },
    Scene {
        kills: true,
        bears_full: true,
        is_repeatable: false,
        ..scene("daemons", 3, "counters under flock, fcntl and OFD locks, killed and begun anew")
    },
];

macro_rules! embedded {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../scenes/", $name)))),*] };
}

pub(crate) const FILES: [(&str, &str); 8] =
    embedded!("director.py", "shell.sh", "make.sh", "git.sh", "workers.py", "server.py", "sqlite.py", "daemons.py",);
