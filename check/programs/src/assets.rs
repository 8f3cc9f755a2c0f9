//! What cases are made of: scripts, small C programs and a Java class, compiled here, and a tree of
//! files to copy and pack.

use crate::place::Ground;
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

macro_rules! embedded {
    ($directory:literal: $($name:literal),* $(,)?) => { [$(($name, include_str!(concat!($directory, "/", $name)))),*] };
}

const SCRIPTS: [(&str, &str); 31] = embedded!("cases":
    "common.sh", "bash.sh", "breakpoints.py", "runtimes.sh", "cat.sh", "coreutils.sh", "cp.sh", "dd.sh", "fio.sh", "fio-mapped.sh", "git.sh", "java.sh", "killed.sh", "mapped.sh", "mapped.py", "mv.sh",
    "node.js", "node.sh", "paths.sh", "program.sh", "python.py", "python.sh", "redis.sh", "space.sh", "sqlite3.sh", "stdio.sh", "stored.sh",
    "tar.sh", "killed.py", "writers.sh", "Channels.java");

const C_FILES: [(&str, &str); 50] = embedded!("../c":
    "alone.c", "audit.c", "becomes.c", "calls.c", "cancel.c", "check.h", "counters.c", "crowded.c", "descriptors.c", "faults.c", "fenced.c", "fill.c", "filter.c", "full.c", "handed.c", "holes.c", "keeps.c", "library.c", "limits.c", "links.c", "listing.c", "magic.c", "many.c", "maps.c", "memory.c", "outside.c", "passing.c", "pipes.c", "probe.c", "readers.c", "reopen.c", "replaced.c", "resolve.c", "robust.c", "roots.c", "runtime.c", "sandbox.c", "sends.c", "shares.c", "short.c", "signals.c", "sites.c", "sockets.c", "spawn.c",
    "stdio.c", "threads.c", "times.c", "watches.c", "wide.c", "writers.c");

/// The program of `outside.c` in other forms: what the compiler is told.
const OUTSIDE: [(&str, &[&str]); 3] = [
    ("outside-note", &["-DGO=1"]),
    ("outside-section", &["-DGO=2"]),
    ("outside.so", &["-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,outside.so"]),
];

/// The program of `runtime.c` as other runtimes have it: its name, the compiler, what that is told.
const RUNTIMES: [(&str, &str, &[&str]); 7] = [
    ("runtime-musl", "musl-gcc", &[]),
    ("runtime-32-bit", "gcc", &["-m32"]),
    ("runtime-address", "gcc", &["-fsanitize=address"]),
    ("runtime-address-fixed", "gcc", &["-fsanitize=address", "-no-pie"]),
    ("runtime-thread", "gcc", &["-fsanitize=thread"]),
    ("runtime-thread-fixed", "gcc", &["-fsanitize=thread", "-no-pie"]),
    ("runtime-undefined", "gcc", &["-fsanitize=undefined"]),
];

/// Puts everything in place.
pub(crate) fn prepare(ground: &Ground, java: bool) -> Result<(), String> {
    let (cases, sources, binaries) = (ground.assets.join("cases"), ground.assets.join("c"), ground.assets.join("bin"));
    let write = |directory: &Path, files: &[(&str, &str)]| -> io::Result<()> {
        fs::create_dir_all(directory)?;
        files.iter().try_for_each(|(name, text)| fs::write(directory.join(name), text))
    };
    write(&cases, &SCRIPTS)
        .and_then(|()| write(&sources, &C_FILES))
        .and_then(|()| write(&binaries, &[]))
        .and_then(|()| tree(&ground.assets.join("tree")))
        .map_err(|error| format!("{}: {error}", ground.assets.display()))?;
    for (name, _) in C_FILES.iter().filter(|(name, _)| name.ends_with(".c")) {
        compile(&sources, &binaries, name.trim_end_matches(".c"))?;
    }
    for (name, arguments) in OUTSIDE {
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-w"]).args(arguments).arg("-o").arg(binaries.join(name)).arg(sources.join("outside.c"));
        finish(compile)?;
    }
    for (name, compiler, arguments) in RUNTIMES {
        if stage::process::find_program(compiler).is_some() {
            let mut compile = Command::new(compiler);
            compile
                .args(["-O1", "-w", "-pthread"])
                .args(arguments)
                .arg("-o")
                .arg(binaries.join(name))
                .arg(sources.join("runtime.c"));
            // A case that needs it says so by what it finds missing: not every machine has each of
            // these.
            let _ = finish(compile);
        }
    }
    if java {
        let mut javac = Command::new("/usr/bin/env");
        javac.args(["javac", "-encoding", "UTF-8", "-d"]).arg(&binaries).arg(cases.join("Channels.java"));
        finish(javac)?;
    }
    Ok(())
}

fn compile(sources: &Path, binaries: &Path, name: &str) -> Result<(), String> {
    let mut cc = Command::new("cc");
    // Warnings are off: some calls are wrong on purpose.
    cc.args(["-O1", "-w", "-pthread"]);
    let target = match name {
        "library" | "audit" => {
            cc.args(["-shared", "-fPIC"]);
            format!("{name}.so")
        }
        "alone" => {
            cc.arg("-static");
            name.to_owned()
        }
        _ => name.to_owned(),
    };
    cc.arg("-o").arg(binaries.join(target)).arg(sources.join(name).with_extension("c"));
    finish(cc)
}

fn finish(mut command: Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.env_remove("LD_PRELOAD").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{shown}: {error}; install gcc, libc6-dev and default-jdk-headless")),
    }
}

/// Bytes that depend on the seed only.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn text() -> String {
    (0..900).map(|line| format!("{line} the quick brown fox {} jumps over\n", line * line % 71)).collect()
}

/// Files of sizes around pages and chunks, modes, old times, links of all kinds, names that need
/// care.
fn tree(root: &Path) -> io::Result<()> {
    fs::create_dir_all(root.join("folder/deep/deeper"))?;
    fs::create_dir_all(root.join("empty-folder"))?;
    let files: [(&str, usize); 12] = [
        ("empty", 0),
        ("one", 1),
        ("page", 4096),
        ("odd", 70_001),
        ("stripe", 131_072),
        ("large", 300_007),
        ("read-only", 5000),
        ("folder/a", 4095),
        ("folder/b with blank", 65_537),
        ("folder/deep/n\u{e4}me", 64),
        ("folder/deep/deeper/.hidden", 12_345),
        ("folder/deep/deeper/-dash", 333),
    ];
    for (seed, (name, length)) in (1..).zip(files) {
        fs::write(root.join(name), pattern(length, seed))?;
    }
    fs::write(root.join("text"), text())?;
    let sparse = File::create(root.join("sparse"))?;
    sparse.write_all_at(b"in the middle", 200_000)?;
    sparse.set_len(700_000)?;
    (&sparse).write_all(b"at the start")?;
    symlink("folder/a", root.join("relative"))?;
    symlink("none/such", root.join("dangling"))?;
    symlink("/etc/passwd", root.join("absolute"))?;
    fs::hard_link(root.join("one"), root.join("one-again"))?;
    for (name, mode) in [("read-only", 0o400), ("odd", 0o751), ("page", 0o606), ("folder/deep", 0o750), ("folder/a", 0o4755)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))?;
    }
    let names = [
        "folder/deep/deeper/.hidden",
        "folder/deep/deeper",
        "folder/deep",
        "folder/a",
        "folder",
        "large",
        "text",
        "empty-folder",
    ];
    for (index, name) in (1..).zip(names) {
        let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + index * 86_400, 123_456_789);
        File::open(root.join(name))?.set_modified(then)?;
    }
    Ok(())
}
