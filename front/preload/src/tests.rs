//! Tests of the built library: of what the linker has made, and with C programs that look for
//! traces of the library in themselves.
//!
//! The library is the file that `CXLRAID_LIBRARY` names. Without that variable it is built in
//! release mode and alone, as it is shipped: a build together with other crates of the workspace
//! would add their features.

mod exchanged;
mod executed;
mod mappings;
mod objects;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::string::{String, ToString};
use std::sync::OnceLock;
use std::vec::Vec;
use std::{env, fs};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| match env::var_os("CXLRAID_LIBRARY") {
        Some(path) => path.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let arguments = ["build", "--release", "--package=cxlraid-preload", "--message-format=json"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(FOLDER).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let end = messages.find("/libcxlraid.so\"").unwrap() + "/libcxlraid.so".len();
    messages[messages[..end].rfind('"').unwrap() + 1..end].into()
}

/// The entries of the first section of type `kind` in a 64-bit ELF file, if it is a table of
/// entries of `entry_bytes`. Nothing if the file has no such section.
fn entries(file: &[u8], kind: u32, entry_bytes: usize) -> Vec<&[u8]> {
    let number =
        |at: usize, bytes: usize| file[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte));
    let (table, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    let section = (0..count).map(|index| table + index * size).find(|at| number(at + 4, 4) == kind as usize);
    let Some(at) = section else { return Vec::new() };
    let (offset, bytes) = (number(at + 24, 8), number(at + 32, 8));
    file[offset..offset + bytes].chunks_exact(entry_bytes).collect()
}

#[test]
fn the_library_needs_and_exports_nothing() {
    const SHT_DYNAMIC: u32 = 6;
    const SHT_DYNSYM: u32 = 11;
    const DT_NEEDED: u8 = 1;
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_INITFIRST: u64 = 0x20;
    let file = fs::read(library()).unwrap();
    let word = |entry: &[u8], at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
    let dynamic: BTreeMap<u64, u64> =
        entries(&file, SHT_DYNAMIC, 16).iter().map(|entry| (word(entry, 0), word(entry, 8))).collect();
    assert!(!dynamic.contains_key(&u64::from(DT_NEEDED)), "the library has a NEEDED entry");
    assert_ne!(dynamic[&DT_FLAGS_1] & DF_1_INITFIRST, 0);
    // The first symbol is the null symbol every table has.
    assert_eq!(entries(&file, SHT_DYNSYM, 24).len(), 1, "the library imports or exports a symbol");
}

/// An array of a test: the members are directories of tmpfs and are removed when it is dropped.
struct Array {
    folder: PathBuf,
    level: &'static str,
    members: usize,
    chunk: &'static str,
    /// The value of `CXLRAID_JOURNAL`.
    journal: &'static str,
}

impl Array {
    fn new(name: &str) -> Self {
        Self::of(name, "5", 3)
    }

    fn of(name: &str, level: &'static str, members: usize) -> Self {
        let folder = Path::new("/dev/shm").join(std::format!("cxlraid-preload-{name}-{}", std::process::id()));
        (0..members).for_each(|member| fs::create_dir_all(folder.join(member.to_string())).unwrap());
        Self { folder, level, members, chunk: "65536", journal: "" }
    }

    /// The UUID of the array, as any of its members says, one that a test has put aside as well;
    /// None before the array's first use.
    fn uuid(&self) -> Option<format::Uuid> {
        let members = fs::read_dir(&self.folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut superblocks = members.filter_map(|member| fs::read(member.join(".cxlraid/superblock")).ok());
        superblocks.find_map(|bytes| Some(format::Superblock::choose(&bytes).ok()?.0.array_uuid))
    }

    fn command(&self, program: &Path) -> Command {
        let member = |member: usize| self.folder.join(member.to_string()).to_str().unwrap().to_string();
        let members: Vec<String> = (0..self.members).map(member).collect();
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).env("CXLRAID_LEVEL", self.level).env("CXLRAID_MOUNTS", members.join(":"));
        command.env("CXLRAID_STRIPE_SIZE", self.chunk).env("CXLRAID_JOURNAL", self.journal);
        command.env("CXLRAID_PATHS", "/cxlraid-preload-test");
        command
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if let Some(uuid) = self.uuid() {
            let segment = ::array::runtime::segment_path(uuid);
            let left = fs::read_dir("/dev/shm").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
            // The names of shared copies of mapped files begin as the segment's.
            left.filter(|path| path.to_string_lossy().starts_with(&segment)).for_each(|path| {
                let _ = fs::remove_file(path);
            });
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Compiles tests/`name`.c and runs it on a file of 100,000 bytes of an array. If `watched`, its
/// system calls are logged ([`crate::sud`]), and the log is returned.
fn run(name: &str, watched: bool) -> String {
    let array = Array::new(&std::format!("{name}-{watched}"));
    let program = array.folder.join(name);
    let source = Path::new(FOLDER).join("tests").join(name).with_extension("c");
    let flags = ["-O1", "-w", "-pthread", "-rdynamic", "-fexceptions", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(&source).arg("-lrt").status().unwrap().success());
    let file = "/cxlraid-preload-test/file";
    let fill = std::format!("mkdir -p /cxlraid-preload-test && head -c 100000 /dev/zero > {file}");
    assert!(array.command(Path::new("/bin/sh")).args(["-c", &fill]).status().unwrap().success());
    let mut command = array.command(&program);
    let log = array.folder.join("log");
    if watched {
        command.env("CXLRAID_DEBUG_SUD", &log);
    }
    let output = command.arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    if watched { fs::read_to_string(log).unwrap() } else { String::new() }
}

/// Runs test program `name`, and runs it again with its system calls logged: the library must have
/// served all that it should.
fn run_twice(name: &str) {
    run(name, false);
    let log = run(name, true);
    assert!(log.starts_with("armed "), "{log}");
    assert!(log.lines().all(|line| line.starts_with("armed ")), "{log}");
}

#[test]
fn handlers_never_see_the_library() {
    run_twice("signals");
}

#[test]
fn a_handler_keeps_the_alternate_stack_while_it_is_in_the_library() {
    run_twice("alternate");
}

#[test]
fn constants_among_instructions_stay_what_they_are() {
    run_twice("constants");
}

#[test]
fn cancelled_threads_unwind() {
    run_twice("cancel");
}

#[test]
fn a_descriptor_that_is_fetched_shares_its_offset() {
    run_twice("fetched");
}

#[test]
fn children_have_descriptors_of_their_own() {
    run_twice("children");
}

#[test]
fn registers_survive_calls_outside_libc() {
    run_twice("foreign");
}

/// The contexts and the requests of Linux AIO on an array and on a plain directory, and what is
/// left of the array's redundancy.
#[test]
fn asynchronous_requests_are_answered_as_by_the_kernel() {
    let array = Array::new("aio");
    let (program, source) = (array.folder.join("aio"), Path::new(FOLDER).join("tests/aio.c"));
    assert!(Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let make = ["-c", "mkdir -p /cxlraid-preload-test"];
    assert!(array.command(Path::new("/bin/sh")).args(make).status().unwrap().success());
    for seed in 1..=8 {
        let said = |mut command: Command, file: &str| {
            let output = command.args([file, &seed.to_string()]).current_dir("/").output().unwrap();
            assert!(output.status.success(), "seed {seed}: {}", output.status);
            String::from_utf8(output.stdout).unwrap()
        };
        let plain = said(Command::new(&program), array.folder.join("plain").to_str().unwrap());
        let served = said(array.command(&program), "/cxlraid-preload-test/file");
        for (line, (plain, served)) in plain.lines().zip(served.lines()).enumerate() {
            assert_eq!(plain, served, "seed {seed}, line {line}");
        }
        assert_eq!(plain.lines().count(), served.lines().count(), "seed {seed}");
    }
}

/// What a program sees of signals that come while it waits, on an array and on a plain directory;
/// the array may have lost its lowest member.
#[test]
fn signals_that_come_while_a_call_waits_are_handled_at_once() {
    let (served, lost, plain) = (Array::new("waits"), Array::new("waits-lost"), Array::new("waits-plain"));
    let (program, source) = (plain.folder.join("waits"), Path::new(FOLDER).join("tests/waits.c"));
    let flags = ["-O1", "-w", "-pthread", "-fexceptions", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(source).arg("-lrt").status().unwrap().success());
    let said = |mut command: Command, folder: &Path, outside: &Path| {
        std::os::unix::fs::symlink(folder.join("pipe"), outside).unwrap();
        let output = command.args([folder, outside]).current_dir("/").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
        said
    };
    let folder = plain.folder.join("plain");
    fs::create_dir(&folder).unwrap();
    let expected = said(Command::new(&program), &folder, &plain.folder.join("outside"));
    for array in [&served, &lost] {
        let make = ["-c", "mkdir -p /cxlraid-preload-test/waits"];
        assert!(array.command(Path::new("/bin/sh")).args(make).status().unwrap().success());
        if core::ptr::eq(array, &lost) {
            fs::rename(array.folder.join("0"), array.folder.join("gone")).unwrap();
        }
        let said = said(array.command(&program), Path::new("/cxlraid-preload-test/waits"), &array.folder.join("outside"));
        for (expected, said) in expected.lines().zip(said.lines()) {
            assert_eq!(expected, said, "the lowest member is there: {}", !core::ptr::eq(array, &lost));
        }
        assert_eq!(expected.lines().count(), said.lines().count());
    }
}

#[test]
fn the_current_directory_is_changed_on_every_member() {
    use std::os::unix::fs::MetadataExt as _;
    let array = Array::new("current");
    let (program, source) = (array.folder.join("current"), Path::new(FOLDER).join("tests/current.c"));
    assert!(Command::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let output = array.command(&program).arg("/cxlraid-preload-test/changed").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    for member in 0..array.members {
        let found = |name: &str| {
            let path = array.folder.join(std::format!("{member}/cxlraid-preload-test/{name}"));
            fs::metadata(path).unwrap().mode() & 0o7777
        };
        assert_eq!((found("changed"), found("changed/child")), (0o711, 0o750), "member {member}");
    }
}

#[test]
fn calls_from_places_that_were_not_patched_are_shown() {
    run("unpatched", false);
    let log = run("unpatched", true);
    assert_eq!(log.lines().filter(|line| line.starts_with("armed ")).count(), 2, "the program and what it executed\n{log}");
    let said = |word: &str| -> Vec<&str> {
        let lines = log.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|words| words[0] == word);
        lines.map(|words| words[1]).collect()
    };
    assert_eq!(said("missed"), ["openat", "pread64", "access", "chmod", "mkdir", "rmdir"], "{log}");
    assert_eq!(said("other"), ["chdir"], "once per place\n{log}");
    assert!(log.lines().any(|line| line.starts_with("missed openat (no file)+0xe /cxlraid-preload-test/file")), "{log}");
}

#[test]
fn a_program_may_be_started_through_its_linker() {
    let array = Array::new("linker");
    let linker = Path::new("/lib64/ld-linux-x86-64.so.2");
    let script =
        "mkdir -p /cxlraid-preload-test && cd /cxlraid-preload-test && echo text > file && read -r line < file && echo $line";
    let log = array.folder.join("log");
    let output = array.command(linker).env("CXLRAID_DEBUG_SUD", &log).args(["/bin/sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"text\n");
    let log = fs::read_to_string(log).unwrap();
    assert!(log.starts_with("armed ") && log.lines().all(|line| line.starts_with("armed ")), "{log}");
    assert!(!Path::new("/cxlraid-preload-test").exists());
}

#[test]
fn a_program_that_names_no_array_is_left_alone() {
    let output = Command::new("/bin/cat").arg("/proc/self/maps").env("LD_PRELOAD", library()).output().unwrap();
    let maps = String::from_utf8(output.stdout).unwrap();
    let own: Vec<&str> = maps.lines().filter(|line| line.ends_with("libcxlraid.so")).collect();
    assert!(!own.is_empty());
    let unnamed = |line: &&str| line.contains("r-xp") && line.split_whitespace().count() == 5;
    assert_eq!(maps.lines().filter(unnamed).count(), 0, "there are trampolines");
}
