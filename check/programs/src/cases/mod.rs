//! The table of cases. A case is a script beside this file; its argument is `first`, on an empty
//! directory, and then `again`, on what the first run left (on an array: with a member missing).

use crate::array::Shape;

/// Programs that are started as scripts' means, in every case.
pub(crate) const ALWAYS: [&str; 9] = ["bash", "cc", "diff", "find", "sha256sum", "sort", "xargs", "python3", "strace"];

/// One row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
    /// Programs it needs, besides [`ALWAYS`].
    pub(crate) needs: &'static [&'static str],
    /// Variables its script reads.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// Roughly how long one run takes, in tenths of a second: long ones begin first.
    pub(crate) weight: u32,
    /// Parts of the paths of files whose content holds times or the like, so that no two runs give
    /// the same.
    pub(crate) varies: &'static [&'static str],
    /// Calls whose number may differ from the plain run's, because it differs between plain runs
    /// too or for the reason given.
    pub(crate) uncounted: &'static [(&'static str, &'static str)],
    /// Parts of the paths of files that the program reads and writes, or not, by what the clock
    /// says. Calls on these files are not counted.
    pub(crate) by_the_clock: &'static [&'static str],
    /// The arrays it runs on.
    pub(crate) shapes: &'static [Shape],
    /// Whether it can run with its calls under watch, where each is a signal.
    pub(crate) watchable: bool,
    /// Whether it can run under strace.
    pub(crate) traceable: bool,
    /// Whether it is left out, and shown as not run, where a program that it needs is not
    /// installed.
    pub(crate) optional: bool,
}

const fn case(name: &'static str, script: &'static str, weight: u32) -> Case {
    Case {
        name,
        script,
        needs: &[],
        variables: &[],
        weight,
        varies: &[],
        uncounted: &[],
        by_the_clock: &[],
        shapes: &Shape::ALL,
        watchable: true,
        traceable: true,
        optional: false,
    }
}

const fn program(name: &'static str, variables: &'static [(&'static str, &'static str)], weight: u32) -> Case {
    Case { variables, ..case(name, "program.sh", weight) }
}

/// Programs of another runtime, or under a tool.
const fn runtime(name: &'static str, variables: &'static [(&'static str, &'static str)], needs: &'static [&'static str]) -> Case {
    let shapes = &[Shape::RAID5];
    Case { needs, variables, shapes, watchable: false, traceable: false, optional: true, ..case(name, "runtimes.sh", 8) }
}

const TIMING: &str = "depends on timing";
/// From another file system the kernel refuses copy_file_range (EXDEV) and programs read and write;
/// into an array it works. Where the holes of a file of the host are shows only once it was written
/// back.
const COPYING: &[(&str, &str)] =
    &[("read", "copy_file_range"), ("write", "copy_file_range"), ("ftruncate", "holes"), ("fallocate", "holes")];
/// The same, of a program that has a thread with descriptors of its own, whose calls another task
/// makes.
const COPYING_APART: &[(&str, &str)] = &[
    ("read", "copy_file_range"),
    ("write", "copy_file_range"),
    ("ftruncate", "holes"),
    ("fallocate", "holes"),
    ("pread64", "a deputy's"),
    ("pwrite64", "a deputy's"),
];
/// Processes take turns by locks, and what a mapping holds is written at various times.
const MAPPED: &[(&str, &str)] = &[
    ("pwrite64", TIMING),
    ("pread64", TIMING),
    ("read", TIMING),
    ("write", TIMING),
    ("writev", TIMING),
    ("pwritev", TIMING),
    ("fdatasync", TIMING),
    ("fsync", TIMING),
    ("ftruncate", TIMING),
    ("fallocate", TIMING),
];
/// The kernel is made to tell of loads and stores by calls of its own.
const WATCHED: &[(&str, &str)] = &[("pread64", "tells of loads"), ("fallocate", "tells of stores"), ("read", TIMING)];
/// fio puts the time into what it writes; it verifies its files itself.
const FIO: &[&str] = &["/threads.", "/processes.", "/odd.", "/overwrite.", "/append.", "/own.", "/many."];

/// All cases, in no particular order.
pub(crate) const CASES: [Case; 69] = [
    case("stdio", "stdio.sh", 1),
    Case { uncounted: COPYING, ..case("cat", "cat.sh", 2) },
    case("dd", "dd.sh", 2),
    Case { uncounted: COPYING, ..case("cp", "cp.sh", 3) },
    Case { uncounted: COPYING, ..case("mv", "mv.sh", 3) },
    Case { needs: &["tar", "gzip"], ..case("tar", "tar.sh", 3) },
    Case { uncounted: COPYING, ..case("bash", "bash.sh", 4) },
    Case { uncounted: COPYING, ..case("coreutils", "coreutils.sh", 5) },
    Case { uncounted: COPYING, ..case("paths", "paths.sh", 3) },
    case("python", "python.sh", 5),
    Case {
        needs: &["node"],
        uncounted: &[("read", TIMING), ("write", TIMING), ("writev", TIMING)],
        ..case("node", "node.sh", 10)
    },
    Case { needs: &["java", "javac"], ..case("java", "java.sh", 12) },
    Case {
        needs: &["git"],
        varies: &["/.git/index"],
        uncounted: COPYING,
        // `git diff` writes the index anew where a file was written in the same second as the index
        // before.
        by_the_clock: &["/.git/index"],
        ..case("git", "git.sh", 15)
    },
    Case { needs: &["sqlite3"], ..case("sqlite3", "sqlite3.sh", 10) },
    Case {
        needs: &["redis-server", "redis-cli", "redis-check-aof"],
        varies: &["/appendonlydir/"],
        uncounted: &[("write", TIMING), ("fdatasync", TIMING), ("fsync", TIMING), ("read", TIMING)],
        ..case("redis", "redis.sh", 30)
    },
    Case { needs: &["fio"], variables: &[("ENGINE", "psync")], varies: FIO, ..case("fio-psync", "fio.sh", 30) },
    Case { needs: &["fio"], variables: &[("ENGINE", "sync")], varies: FIO, ..case("fio-sync", "fio.sh", 30) },
    Case { needs: &["fio"], variables: &[("ENGINE", "vsync")], varies: FIO, ..case("fio-vsync", "fio.sh", 30) },
    Case { uncounted: &[("pread64", "copy_file_range")], ..program("calls", &[("PROGRAM", "calls")], 1) },
    Case { needs: &["fio"], variables: &[("ENGINE", "mmap")], varies: FIO, uncounted: MAPPED, ..case("fio-mmap", "fio.sh", 30) },
    Case { needs: &["fio"], varies: FIO, uncounted: MAPPED, shapes: &Shape::PIECES, ..case("fio-mapped", "fio-mapped.sh", 20) },
    Case {
        varies: &["/left"],
        uncounted: MAPPED,
        // Following comes often, in the middle of what is counted.
        ..program("counters", &[("PROGRAM", "counters"), ("CXLRAID_MAP_PERIOD_MS", "3")], 5)
    },
    Case {
        needs: &["/usr/bin/python3"],
        varies: &["/plain.lmdb", "/map.lmdb", "/rows.db"],
        uncounted: MAPPED,
        ..case("mapped", "mapped.sh", 20)
    },
    program("descriptors", &[("PROGRAM", "descriptors")], 2),
    program("faults", &[("PROGRAM", "faults")], 5),
    program("handed", &[("PROGRAM", "handed")], 2),
    program("resolve", &[("PROGRAM", "resolve")], 2),
    program("roots", &[("PROGRAM", "roots")], 2),
    program("sockets", &[("PROGRAM", "sockets")], 2),
    program("limits", &[("PROGRAM", "limits")], 2),
    // Files beyond a share of the limit are fetched for each call, and told of by no count of calls.
    Case { traceable: false, ..program("many", &[("PROGRAM", "many")], 10) },
    Case { traceable: false, ..program("crowded", &[("PROGRAM", "crowded")], 10) },
    // Deputies make calls, and the kernel refuses some for want of a descriptor.
    Case { traceable: false, shapes: &[Shape::RAID5, Shape::RAID6], ..program("full", &[("PROGRAM", "full")], 20) },
    // strace shows calls that the kernel refuses for want of a descriptor, and counts them.
    Case {
        traceable: false,
        shapes: &[Shape::RAID1, Shape::RAID5, Shape::RAID6],
        ..program("short", &[("PROGRAM", "short")], 12)
    },
    Case { traceable: false, ..program("fenced", &[("PROGRAM", "fenced")], 1) },
    program("holes", &[("PROGRAM", "holes")], 2),
    program("listing", &[("PROGRAM", "listing")], 3),
    program("spawn", &[("PROGRAM", "spawn")], 1),
    // Calls by deputies, and one that is not told from another by its number alone.
    Case { traceable: false, ..program("wide", &[("PROGRAM", "wide")], 1) },
    Case { uncounted: COPYING, ..program("reopen", &[("PROGRAM", "reopen")], 2) },
    program("fd-passing", &[("PROGRAM", "passing")], 1),
    program("times", &[("PROGRAM", "times")], 2),
    program("threads", &[("PROGRAM", "threads")], 1),
    // strace makes each call of the threads wait for the other's, and the program compares its
    // files itself.
    Case { traceable: false, ..program("replaced", &[("PROGRAM", "replaced")], 10) },
    Case { shapes: &[Shape::RAID1, Shape::RAID5], uncounted: COPYING_APART, ..program("magic", &[("PROGRAM", "magic")], 60) },
    Case { uncounted: COPYING, ..program("links", &[("PROGRAM", "links")], 3) },
    // strace parts the calls of two threads, and does not show then that no bytes are asked for.
    Case { traceable: false, ..program("sends", &[("PROGRAM", "sends")], 2) },
    // The library asks a pipe first, and waits for it by another call than the program's.
    Case { traceable: false, ..program("pipes", &[("PROGRAM", "pipes")], 10) },
    program("maps", &[("PROGRAM", "maps")], 1),
    program("memory", &[("PROGRAM", "memory")], 5),
    Case { shapes: &[Shape::RAID5], uncounted: MAPPED, ..program("robust-tracked", &[("PROGRAM", "robust")], 20) },
    Case { uncounted: MAPPED, ..program("robust", &[("PROGRAM", "robust"), ("CXLRAID_MAP_TRACKING", "protect")], 20) },
    Case { uncounted: WATCHED, ..program("watches", &[("PROGRAM", "watches")], 20) },
    program("readers", &[("PROGRAM", "readers")], 2),
    program("sites", &[("PROGRAM", "sites")], 1),
    // It forbids itself rt_sigreturn.
    Case { watchable: false, ..program("sandbox", &[("PROGRAM", "sandbox")], 1) },
    Case {
        uncounted: &[("pwrite64", TIMING), ("pread64", TIMING), ("write", TIMING)],
        ..program("signals", &[("PROGRAM", "signals")], 5)
    },
    Case {
        uncounted: &[("pwrite64", TIMING), ("pread64", TIMING), ("fsync", TIMING)],
        ..program("cancellation", &[("PROGRAM", "cancel")], 5)
    },
    runtime("runtime-musl", &[("RUNTIME", "musl")], &["musl-gcc"]),
    runtime("runtime-32-bit", &[("RUNTIME", "32-bit")], &["/usr/lib32/libc.so"]),
    runtime("runtime-valgrind", &[("RUNTIME", "valgrind")], &["valgrind"]),
    runtime("runtime-sanitizers", &[("RUNTIME", "sanitizers")], &[]),
    runtime("runtime-preloads", &[("RUNTIME", "preloads")], &["faketime", "eatmydata"]),
    runtime("runtime-wrappers", &[("RUNTIME", "wrappers")], &["faketime", "eatmydata", "fakeroot"]),
    runtime("runtime-sandboxes", &[("RUNTIME", "sandboxes")], &["bwrap"]),
    runtime("runtime-debugger", &[("RUNTIME", "debugger")], &["gdb"]),
    case("writers", "writers.sh", 3),
    Case { uncounted: COPYING, ..case("stored", "stored.sh", 6) },
    Case {
        varies: &["/left"],
        uncounted: &[("pwrite64", TIMING), ("ftruncate", TIMING), ("read", TIMING)],
        ..case("killed", "killed.sh", 12)
    },
];
