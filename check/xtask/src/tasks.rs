//! The tasks of `cargo x`.
//!
//! libcxlraid.so is always built, tested and checked alone: together with the tools cargo would
//! unify features, and a library without std would get crates that need it.

use crate::{
    fuzz, panics as panicking,
    steps::{Outcome, Steps, cargo, cargo_release, command, output, root, run, run_apart, status_apart},
    tidy as tidiness,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const LIBRARY: &str = "cxlraid-preload";
/// A shell, an interpreter, a database, threads, children, and calls from outside the C library.
const SERVERS_JOURNALED: &str = "run -p cxlraid-servers -- --quick --jobs 2 --level journal postgresql sqlite redis lmdb";
const WATCHED_QUICK: &str = "run -p cxlraid-programs -- --watched bash python sqlite3 spawn sites threads";
/// The same states each time; longer runs draw their own.
const CRASH_QUICK: &str = "run -p cxlraid-crash -- --quick --seed 1";
/// The report runs this program, which lies beside it.
const BENCH_BUILT: &str = "build -p cxlraid-bench";
const REPORT_QUICK: &str = "run -p cxlraid-report -- --quick --without-peers";
const DIST: &str = "target/dist";

pub(crate) fn fmt(rest: &[String]) -> Outcome {
    run(cargo("fmt --all", rest))?;
    fuzz::fmt(rest)
}

pub(crate) fn lint(rest: &[String]) -> Outcome {
    let mut tools = cargo(&format!("clippy --quiet --workspace --exclude {LIBRARY} --all-targets"), rest);
    tools.args(["--", "-D", "warnings"]);
    run(tools)?;
    let mut library = cargo(&format!("clippy --quiet -p {LIBRARY}"), rest);
    library.args(["--", "-D", "warnings"]);
    run(library)?;
    fuzz::lint()
}

pub(crate) fn tidy() -> Outcome {
    let metadata = output(cargo("metadata --no-deps --format-version 1", &[]))?;
    let files = output({
        let mut git = command("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        git
    })?;
    let files =
        String::from_utf8_lossy(&files).split('\0').filter(|file| !file.is_empty()).map(PathBuf::from).collect::<Vec<_>>();
    let complaints = tidiness::check(&root(), &metadata, &files)?;
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() { Ok(()) } else { Err(format!("{} to put in order", complaints.len())) }
}

/// Counts panicking calls in the optimised library.
pub(crate) fn panics() -> Outcome {
    run(cargo(&format!("build --quiet --release -p {LIBRARY}"), &[]))?;
    panicking::check(&release_directory()?.join("libcxlraid.so"))
}

pub(crate) fn build(rest: &[String]) -> Outcome {
    run(cargo(&format!("build --quiet --release -p {LIBRARY}"), rest))?;
    run(cargo_release("build -p cxlraid-cli", rest))
}

pub(crate) fn test(rest: &[String]) -> Outcome {
    let mut steps = Steps::new();
    steps.step("formatting", || fmt(&["--check".to_owned()]))?;
    steps.step("tidy", tidy)?;
    steps.step("lints", || lint(&[]))?;
    steps.step("unit and property tests", || run_apart(cargo(&format!("test --quiet --workspace --exclude {LIBRARY}"), rest)))?;
    steps.step("tests of the library", || run_apart(cargo(&format!("test --quiet -p {LIBRARY}"), rest)))?;
    steps.step("release build", || build(&[]))?;
    steps.step("panicking calls", panics)?;
    steps.step("unmodified programs", || run_apart(cargo_release("run -p cxlraid-programs", &[])))?;
    steps.step("programs with their system calls under watch", || run_apart(cargo_release(WATCHED_QUICK, &[])))?;
    steps
        .step("both doors of an array: mount and interception", || run_apart(cargo_release("run -p cxlraid-mount-check", &[])))?;
    steps.step("random operations against a model", || run_apart(cargo_release("run -p cxlraid-fsx -- --quick", &[])))?;
    steps.step("children beside threads, a selection", || run_apart(cargo_release("run -p cxlraid-children -- --quick", &[])))?;
    steps.step("trees of processes under loss, a selection", || {
        run_apart(cargo_release("run -p cxlraid-trees -- --quick", &[]))
    })?;
    steps.step("a user without rights against others, a selection", || {
        run_apart(cargo_release("run -p cxlraid-attack -- --quick --forge --outages", &[]))
    })?;
    steps.step("mistakes of an operator, a selection", || run_apart(cargo_release("run -p cxlraid-operator -- --quick", &[])))?;
    steps.step("random system calls against a plain directory, a selection", || {
        run_apart(cargo_release("run -p cxlraid-differ -- --quick", &[]))
    })?;
    steps.step("suites nobody here wrote, a selection", || run_apart(cargo_release("run -p cxlraid-suites -- --quick", &[])))?;
    steps.step("crash states, a selection", || run_apart(cargo_release(CRASH_QUICK, &[])))?;
    steps.step("interleavings of locks", loom)?;
    steps.step("fuzzing, some seconds each", || fuzz::fuzz(&["--quick".to_owned()]))?;
    steps.step("pjdfstest, on tmpfs", || run_apart(cargo_release("run -p cxlraid-posix -- --quick", &[])))?;
    steps.step("servers and tools, one round", || run_apart(cargo_release("run -p cxlraid-servers -- --quick --jobs 2", &[])))?;
    steps.step("databases with a journal, one round", || run_apart(cargo_release(SERVERS_JOURNALED, &[])))?;
    steps.step("bench, sanity only", || run_apart(cargo_release("run -p cxlraid-bench -- --sanity", &[])))?;
    steps
        .step("how costs grow, the smallest points", || run_apart(cargo_release("run -p cxlraid-bench -- scale --quick", &[])))?;
    steps.step("the report, the smallest sizes", || run_apart(cargo_release(REPORT_QUICK, &[])))?;
    steps.finish();
    Ok(())
}

/// Every interleaving of a few threads in the locks between processes.
pub(crate) fn loom() -> Outcome {
    let mut test = cargo("test --quiet --release --lib -p cxlraid-sync", &[]);
    test.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", crate::steps::root().join("target/loom"));
    run(test)
}

pub(crate) fn posix(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-posix --", rest))
}

/// Programs on both doors of an array.
pub(crate) fn mount(rest: &[String]) -> Outcome {
    build(&[])?;
    run_apart(cargo_release("run -p cxlraid-mount-check --", rest))
}

/// Programs, then servers, with every system call under watch.
pub(crate) fn watched(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-programs -- --watched", rest))?;
    run(cargo_release("run -p cxlraid-servers -- --watched --quick", rest))
}

pub(crate) fn servers(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-servers --", rest))
}

pub(crate) fn soak(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-fsx --", rest))
}

pub(crate) fn children(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-children --", rest))
}

pub(crate) fn trees(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-trees --", rest))
}

/// Random calls, or with `--suites` the suites that others wrote, in a /dev/shm of their own.
pub(crate) fn differ(rest: &[String]) -> Outcome {
    build(&[])?;
    if let Some((_, names)) = rest.split_first().filter(|(first, _)| *first == "--suites") {
        return run_apart(cargo_release("run -p cxlraid-suites --", names));
    }
    run_apart(cargo_release("run -p cxlraid-differ --", rest))
}

/// In a /dev/shm of its own: the attacker makes names there.
pub(crate) fn attack(rest: &[String]) -> Outcome {
    build(&[])?;
    run_apart(cargo_release("run -p cxlraid-attack --", rest))
}

pub(crate) fn operator(rest: &[String]) -> Outcome {
    build(&[])?;
    run_apart(cargo_release("run -p cxlraid-operator --", rest))
}

pub(crate) fn crash(rest: &[String]) -> Outcome {
    run(cargo_release("run -p cxlraid-crash --", rest))
}

pub(crate) fn vm(rest: &[String]) -> Outcome {
    let mut setup = command("bash");
    setup.args(["check/setup", "vm"]);
    run(setup)?;
    build(&[])?;
    run(cargo_release("run -p cxlraid-vm --", rest))
}

pub(crate) fn bench(rest: &[String]) -> Outcome {
    build(&[])?;
    run(cargo_release("run -p cxlraid-bench --", rest))
}

/// The evaluation. Returns the exit status of the program that makes it, which tells missing systems
/// to compare with from failures.
pub(crate) fn report(rest: &[String]) -> Result<u8, String> {
    build(&[])?;
    run(cargo_release(BENCH_BUILT, &[]))?;
    run(cargo_release("build -p cxlraid-report", &[]))?;
    status_apart(cargo_release("run -p cxlraid-report --", rest))
}

pub(crate) fn demo(rest: &[String]) -> Outcome {
    build(&[])?;
    let mut script = command("bash");
    script.arg("check/demo/demo.sh").arg(release_directory()?).args(rest);
    run(script)
}

pub(crate) fn man() -> Outcome {
    let share = root().join(DIST).join("share");
    let pages = share.join("man/man1");
    create(&pages)?;
    run(cargo("run --quiet -p cxlraid-cli -- man", &[pages.display().to_string()]))?;
    let shells = [
        ("bash", "bash-completion/completions/cxlraid"),
        ("zsh", "zsh/site-functions/_cxlraid"),
        ("fish", "fish/vendor_completions.d/cxlraid.fish"),
    ];
    for (shell, file) in shells {
        let script = output(cargo("run --quiet -p cxlraid-cli -- completions", &[shell.to_owned()]))?;
        let file = share.join(file);
        create(file.parent().unwrap_or(&share))?;
        fs::write(&file, script).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    println!("man pages and completions are in {DIST}/share");
    Ok(())
}

pub(crate) fn dist() -> Outcome {
    build(&[])?;
    man()?;
    let (from, to) = (release_directory()?, root().join(DIST));
    let copies = [
        (from.join("cxlraid"), "bin/cxlraid"),
        (from.join("libcxlraid.so"), "lib/cxlraid/libcxlraid.so"),
        (root().join("control/systemd/cxlraid-monitor.service"), "lib/systemd/system/cxlraid-monitor.service"),
        (root().join("control/systemd/cxlraid@.service"), "lib/systemd/system/cxlraid@.service"),
        (root().join("control/systemd/cxlraid-mount@.service"), "lib/systemd/system/cxlraid-mount@.service"),
        (root().join("README.md"), "share/doc/cxlraid/README.md"),
        (root().join("CHANGELOG.md"), "share/doc/cxlraid/CHANGELOG.md"),
        (root().join("LICENSE-MIT"), "share/doc/cxlraid/LICENSE-MIT"),
        (root().join("LICENSE-APACHE"), "share/doc/cxlraid/LICENSE-APACHE"),
    ];
    for (source, target) in copies {
        let target = to.join(target);
        create(target.parent().unwrap_or(&to))?;
        fs::copy(&source, &target).map_err(|error| format!("{}: {error}", source.display()))?;
    }
    let helper = to.join("sbin/mount.cxlraid");
    create(helper.parent().unwrap_or(&to))?;
    let _ = fs::remove_file(&helper);
    std::os::unix::fs::symlink("../bin/cxlraid", &helper).map_err(|error| format!("{}: {error}", helper.display()))?;
    println!("an installation is in {DIST}: copy it to a prefix such as /usr/local");
    Ok(())
}

fn create(directory: &Path) -> Outcome {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// Where cargo puts optimised builds.
fn release_directory() -> Result<PathBuf, String> {
    let metadata = output(cargo("metadata --no-deps --format-version 1", &[]))?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).map_err(|error| error.to_string())?;
    let target = metadata["target_directory"].as_str().ok_or("cargo names no target directory")?;
    Ok(Path::new(target).join("release"))
}
