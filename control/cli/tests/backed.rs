//! Backed arrays: fast members in memory, whose loss costs nothing, and a backing on a disk.

mod bench;

use bench::{
    Begun, Bench, err,
    library::{library, on_array},
    out, refused,
};
use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// An array called db of the fast member m0 and the backing `disk`, which lies where the tests are
/// built.
struct Backed {
    bench: Bench,
    disk: tempfile::TempDir,
}

impl Backed {
    fn new() -> Self {
        let backed = Self { bench: Bench::new(), disk: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        // Who builds in memory has no disk.
        let created = backed.create(&["--fast", "m0", "--backing", backed.disk(), "--force"]);
        assert!(created.status.success(), "{}", err(&created));
        assert!(out(&created).contains("fast") && out(&created).contains("backing, write-mostly"), "{}", out(&created));
        backed
    }

    fn create(&self, options: &[&str]) -> Output {
        self.bench.run(&[&["create", "db", "--at", "/data"], options].concat())
    }

    fn disk(&self) -> &str {
        self.disk.path().to_str().unwrap()
    }

    fn shell(&self, script: &str) -> Output {
        on_array(&self.bench, &["sh", "-e", "-c", script]).output().unwrap()
    }

    #[track_caller]
    fn fine(&self, script: &str) -> String {
        let output = self.shell(script);
        assert!(output.status.success(), "{}", err(&output));
        out(&output)
    }

    fn fill(&self) {
        self.fine(
            "mkdir -p /data/d; for i in 1 2 3 4 5; do seq $i 20000 >/data/d/$i; done; ln /data/d/1 /data/e; sync /data/d/5",
        );
    }

    #[track_caller]
    fn assert_right(&self) {
        let sums = self.fine("cd /data; for i in 1 2 3 4 5; do seq $i 20000 | cmp - d/$i; done; cmp d/1 e; stat -c %h e");
        assert_eq!(sums, "2\n");
    }

    /// What a restart of the machine does to memory, after the array was ended in order or without
    /// that.
    fn restart(&self, in_order: bool) {
        let uuid = format::Uuid::parse(self.bench.uuid().as_bytes()).unwrap();
        // Who has filled the member may be about to end.
        let begun = Instant::now();
        while !out(&self.bench.run(&["status", "db", "--json"])).contains("\"processes\": [],") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", self.status().1);
            std::thread::sleep(Duration::from_millis(50));
        }
        if in_order {
            let stopped = self.bench.run(&["stop", "db"]);
            assert!(stopped.status.success(), "{}", err(&stopped));
        }
        let segment = array::runtime::segment_path(uuid);
        let lost = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
        lost.filter(|path| path.to_str().unwrap().starts_with(&segment)).for_each(|path| fs::remove_file(path).unwrap());
        fs::remove_dir_all(self.bench.path("m0")).unwrap();
    }

    fn status(&self) -> (Option<i32>, String) {
        let status = self.bench.run(&["status", "db"]);
        (status.status.code(), out(&status))
    }

    #[track_caller]
    fn await_in_sync(&self) {
        let begun = Instant::now();
        while self.status().0 != Some(0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", self.status().1);
            std::thread::sleep(Duration::from_millis(50));
        }
        let trees = [self.bench.path("m0/data"), self.disk.path().join("data")];
        let differs = Command::new("diff").arg("-r").args(trees).output().unwrap();
        assert!(differs.status.success(), "{}", out(&differs));
    }

    /// A program of Python that does `before`, says so, and does `after` once it is told to.
    fn program(&self, before: &str, after: &str) -> Talking {
        let script = format!("import os, sys\n{before}\nprint('ready', flush=True)\nsys.stdin.readline()\n{after}\n");
        let mut command = on_array(&self.bench, &["python3", "-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        from.read_exact(&mut [0; 6]).unwrap();
        Talking { child, to, from }
    }
}

struct Talking {
    child: std::process::Child,
    to: std::process::ChildStdin,
    from: std::process::ChildStdout,
}

impl Talking {
    /// Tells the program to go on, and returns what it prints.
    #[track_caller]
    fn go_on(mut self) -> String {
        self.to.write_all(b"\n").unwrap();
        let mut said = String::new();
        self.from.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

/// The member's directory is gone, as everything in /dev/shm is: the next program is served from
/// the backing, and no command need be given.
#[test]
fn after_a_restart_programs_go_on_and_the_fast_member_is_filled_again() {
    let backed = Backed::new();
    backed.fill();
    for in_order in [true, false, true] {
        backed.restart(in_order);
        let first = backed.shell("cat /data/d/3");
        assert!(first.status.success() && out(&first).starts_with("3\n4\n"), "{}", err(&first));
        let lines = err(&first);
        assert!(lines.lines().count() == 1 && lines.ends_with("/m0 is blank and is filled again from the backing\n"), "{lines}");
        backed.assert_right();
        backed.await_in_sync();
        backed.fine("echo more >>/data/d/3; sed -i '$d' /data/d/3");
        backed.assert_right();
    }
}

/// A program that writes all the while: it began before the fast member was filled again.
#[test]
fn what_is_written_while_the_fast_member_is_filled_is_on_both() {
    let backed = Backed::new();
    backed.fill();
    backed.restart(false);
    let written = "f = os.open('/data/new', os.O_RDWR | os.O_CREAT)";
    let writer = backed.program(written, "for i in range(500): os.write(f, b'%d\\n' % i); os.fsync(f)");
    let also = backed.fine("for i in 1 2 3; do echo $i >/data/also-$i; done; cat /data/also-2");
    assert_eq!((also.as_str(), writer.go_on().as_str()), ("2\n", ""));
    backed.await_in_sync();
    backed.assert_right();
    assert_eq!(backed.fine("tail -n 1 /data/new"), "499\n");
}

#[test]
fn a_blank_member_is_no_failure_and_rebuild_fills_it() {
    let backed = Backed::new();
    backed.fill();
    backed.restart(false);
    let (code, text) = backed.status();
    assert!(code == Some(3) && text.contains("missing, fast: blank, as after a restart of the machine\n"), "{text}");
    assert!(text.contains("to do: 'cxlraid rebuild' or 'cxlraid monitor' fills blank members again\n"), "{text}");
    let json = out(&backed.bench.run(&["status", "db", "--json"]));
    assert!(json.contains("\"role\": \"fast\"") && json.contains("\"role\": \"backing\""), "{json}");
    let rebuilt = backed.bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    backed.await_in_sync();
    backed.assert_right();
}

#[test]
fn a_monitor_fills_blank_members_and_tells_of_no_failure() {
    let backed = Backed::new();
    backed.fill();
    backed.restart(false);
    let monitor = Begun::new(&mut backed.bench.command(&["monitor", "db", "--program", "/bin/true", "--delay", "1"]));
    backed.await_in_sync();
    let begun = Instant::now();
    let log = || out(&backed.bench.run(&["events", "db"]));
    // It is told after the member is whole.
    while !log().contains("RebuildFinished") {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(monitor);
    let log = log();
    assert!(!log.contains("DegradedArray") && !log.contains("Fail"), "{log}");
    backed.assert_right();
}

/// The spare stays for a member that fails.
#[test]
fn a_blank_member_takes_no_spare() {
    let backed = Backed::new();
    backed.fill();
    let added = backed.bench.run(&["add", "db", "--spare", "m1"]);
    assert!(added.status.success(), "{}", err(&added));
    backed.restart(false);
    let rebuilt = backed.bench.run(&["rebuild", "db", "--spares"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    backed.await_in_sync();
    assert!(backed.status().1.contains("/m1, ready\n"), "{}", backed.status().1);
}

/// The only durable state is not given up for one that is not whole yet.
#[test]
fn the_only_backing_is_not_made_anew_unasked() {
    let backed = Backed::new();
    backed.fill();
    assert!(backed.bench.run(&["fail", "db", backed.disk(), "--force"]).status.success());
    backed.fine("echo more >>/data/d/1");
    let status = backed.status().1;
    assert!(status.contains("'cxlraid replace' fills another directory in the place of the backing"), "{status}");
    let line = "has the only durable state of the array, which would be given up before a new one is whole";
    assert!(refused(&backed.bench.run(&["rebuild", "db"])).1.contains(line));
    assert_eq!(fs::read(backed.disk.path().join("data/d/2")).unwrap(), fs::read(backed.bench.path("m0/data/d/2")).unwrap());
    let moved = backed.bench.run(&["replace", "db", backed.disk(), "m1"]);
    assert!(refused(&moved).1.contains("is volatile, so it cannot take the place of"), "{}", err(&moved));
    assert!(backed.bench.run(&["rebuild", "db", "--force"]).status.success());
    backed.await_in_sync();
}

/// Whoever may write to the directory above the fast member may have made one in its place.
#[test]
fn a_directory_of_another_user_is_not_filled() {
    let backed = Backed::new();
    backed.fill();
    if !sys::rustix::process::geteuid().is_root() {
        return;
    }
    backed.restart(false);
    fs::create_dir(backed.bench.path("m0")).unwrap();
    std::os::unix::fs::chown(backed.bench.path("m0"), Some(65534), None).unwrap();
    let told = backed.shell("head -n 1 /data/d/2");
    assert!(out(&told) == "2\n" && err(&told).contains("is not filled: user 65534 has made it"), "{}", err(&told));
    // Nor do the operator's command and what a monitor runs fill it.
    for more in [&[][..], &["--spares"]] {
        let (status, line) = refused(&backed.bench.run(&[&["rebuild", "db"], more].concat()));
        assert!(status == 1 && line.contains("is not filled: user 65534 has made it"), "{more:?}: {line}");
    }
    assert_eq!(fs::read_dir(backed.bench.path("m0")).unwrap().count(), 0);
    std::os::unix::fs::chown(backed.bench.path("m0"), Some(0), None).unwrap();
    backed.assert_right();
    backed.await_in_sync();
}

/// It is in use while the program runs, which need not be started again.
#[test]
fn the_program_that_run_starts_uses_the_fast_member() {
    for _ in 0..5 {
        let backed = Backed::new();
        backed.fill();
        backed.restart(false);
        let program = backed.program("import time", "f = open('/data/d/2'); print(f.read(2)); time.sleep(2)");
        let begun = Instant::now();
        while backed.status().0 != Some(0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", backed.status().1);
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(program.go_on(), "2\n\n");
    }
}

/// The process that fills the member dies: the next program has it gone on with.
#[test]
fn a_refill_that_dies_is_taken_up() {
    let backed = Backed::new();
    backed.fill();
    backed.fine("head -c 30000000 /dev/urandom >/data/big");
    backed.restart(false);
    backed.fine("true");
    // It is known by its log of events, which lies in this test's home.
    let home = format!("XDG_STATE_HOME={}", backed.bench.path("state").display());
    for process in fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()) {
        let read = |file: &str| String::from_utf8_lossy(&fs::read(process.join(file)).unwrap_or_default()).into_owned();
        if read("cmdline").contains("--detached") && read("environ").contains(&home) {
            let _ = Command::new("kill").arg("-9").arg(process.file_name().unwrap()).status();
        }
    }
    backed.fine("true");
    backed.await_in_sync();
    backed.assert_right();
}

/// Memory is taken away under a program that runs: it goes on, and fsync is still true.
#[test]
fn a_program_outlives_the_fast_member() {
    let backed = Backed::new();
    backed.fill();
    let program = backed.program(
        "f = os.open('/data/d/1', os.O_RDWR)",
        "os.pwrite(f, b'after', 10); os.fsync(f); print(os.pread(f, 5, 10).decode(), len(os.listdir('/data/d')))",
    );
    fs::remove_dir_all(backed.bench.path("m0")).unwrap();
    assert_eq!(program.go_on(), "after 5\n");
    assert_eq!(&fs::read(backed.disk.path().join("data/d/1")).unwrap()[10..15], b"after");
    assert_eq!(backed.fine("head -c 15 /data/d/1 | tail -c 5"), "after");
    backed.await_in_sync();
}

/// What only memory holds is not durable, and nobody is told that it is.
#[test]
fn without_its_backing_an_array_goes_on_and_fsync_fails() {
    let backed = Backed::new();
    backed.fill();
    let attempt = |what: &str| format!("try: {what}; print('fine')\nexcept OSError as error: print(os.strerror(error.errno))\n");
    let after = [
        "os.pwrite(f, b'after', 10)",
        "os.fsync(f)",
        "os.fdatasync(f)",
        "os.fsync(d)",
        "os.write(s, b'x')",
        "os.copy_file_range(f, s, 3)",
        "os.sendfile(s, f, 0, 3)",
    ];
    let before = "f = os.open('/data/d/1', os.O_RDWR)\nd = os.open('/data/d', os.O_RDONLY)\n\
                  s = os.open('/data/s', os.O_WRONLY | os.O_CREAT | os.O_SYNC)\nos.fsync(f); os.fsync(d)";
    let program = backed.program(before, &after.map(attempt).concat());
    let line = refused(&backed.bench.run(&["fail", "db", backed.disk()])).1;
    assert!(line.contains("is the only member of the backing that is whole: without it fsync fails"), "{line}");
    backed.fine("sync /data/d/1");
    let failed = backed.bench.run(&["fail", "db", backed.disk(), "--force"]);
    assert!(failed.status.success(), "{}", err(&failed));
    let io = "Input/output error\n";
    assert_eq!(program.go_on(), format!("fine\n{}", io.repeat(6)));
    assert_eq!(backed.fine("head -c 15 /data/d/1 | tail -c 5"), "after");
    // What changed meanwhile is cut there before it is computed: a kill and a restart would take it.
    let refused = backed.bench.run(&["re-add", "db", backed.disk()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).contains("has the only durable state of the array"), "{}", err(&refused));
    let back = backed.bench.run(&["re-add", "db", backed.disk(), "--force"]);
    assert!(back.status.success(), "{}", err(&back));
    backed.fine("sync /data/d/1");
    assert_eq!(&fs::read(backed.disk.path().join("data/d/1")).unwrap()[10..15], b"after");
}

/// A file goes on without its backing file where that was cut by hand. Then only memory holds what is
/// written to it.
#[test]
fn a_file_that_its_backing_lacks_is_not_said_to_be_durable() {
    // Of a file of root's the whole member goes out instead.
    if sys::rustix::process::geteuid().as_raw() != 0 {
        eprintln!("NOT RUN: a_file_that_its_backing_lacks_is_not_said_to_be_durable needs root");
        return;
    }
    let backed = Backed::new();
    backed.fine("head -c 300000 /dev/zero | tr '\\0' A > /data/long; chown 65534 /data/long; sync /data/long");
    let before = "f = os.open('/data/long', os.O_RDWR)\nos.pwrite(f, b'first', 0); os.fsync(f)";
    let after = "os.pwrite(f, b'after', 200000)\n\
                 try: os.fsync(f); print('durable')\nexcept OSError as error: print(os.strerror(error.errno))\n\
                 print(os.pread(f, 5, 200000).decode())";
    let program = backed.program(before, after);
    fs::File::options().write(true).open(backed.disk.path().join("data/long")).unwrap().set_len(50).unwrap();
    assert_eq!(program.go_on(), "Input/output error\nafter\n");
}

#[test]
fn a_backed_array_that_would_be_none_is_refused() {
    let (bench, disk) = (Bench::new(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let [disk, beside] = ["disk", "beside"].map(|name| disk.path().join(name).to_str().unwrap().to_owned());
    [&disk, &beside].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let (disk, beside) = (disk.as_str(), beside.as_str());
    let create = |options: &[&str]| bench.run(&[&["create", "db", "--at", "/data"], options].concat());
    let both = |output: &Output| (output.status.code(), err(output));
    for (options, code, line) in [
        (&["--fast", "m0", "--backing", "m1"][..], 1, "is volatile, so it cannot back fast members"),
        (&["--fast", beside, "--backing", disk], 1, "is on one device with "),
        (&["--fast", "m0", "--backing", disk, "--level", "5"], 2, "keeps a copy of every file on each member"),
        (&["--fast", "m0", "--backing", disk, "--journal", "internal"], 2, "has no journal yet (internal was given)"),
        (&["--fast", "m0"], 2, "--backing"),
        (&["--backing", disk], 2, "--fast"),
        (&["--fast", "m0", "--backing", disk, "m1"], 2, "cannot be used with"),
        (&["--force", "--level", "1", "m0", "m1"], 2, "--backing"),
    ] {
        let (found, said) = both(&create(options));
        assert!(found == Some(code) && said.contains(line), "{options:?}: {found:?} {said}");
        assert!(!Path::new(disk).join(".cxlraid").exists() && !bench.path("m0/.cxlraid").exists(), "{options:?}");
    }
    assert!(create(&["--fast", "m0", "--backing", disk, "--force"]).status.success());
    assert!(refused(&bench.run(&["member", "db", disk, "--fast", "on"])).1.contains("is the last member that is not fast"));
    let shown = out(&bench.run(&["member", "db", "m0", "--fast", "off"]));
    assert!(shown.ends_with("/m0: write-mostly off\n"), "{shown}");
    assert!(out(&bench.run(&["member", "db", "m0", "--fast", "on"])).ends_with("/m0: write-mostly off, fast on\n"));
    assert!(out(&bench.run(&["examine", disk])).contains("Slot 0: in sync, fast, "));
}

/// The inode table of a member, in which a test makes what a power cut leaves: the page cache had
/// written names back and the table not yet, or the other way round.
struct Table {
    file: fs::File,
}

impl Table {
    fn of(member: &Path) -> Self {
        let path = member.join(".cxlraid/inodes");
        Self { file: fs::File::options().read(true).write(true).open(path).unwrap() }
    }

    fn get(&self, number: u64) -> format::InodeRecord {
        let mut bytes = [0; format::INODE_RECORD_BYTES];
        self.file.read_exact_at(&mut bytes, format::inode_record_offset(number)).unwrap();
        format::InodeRecord::decode(number, &bytes).unwrap().unwrap()
    }

    fn set(&self, number: u64, record: Option<format::InodeRecord>) {
        let bytes = record.map_or([0; format::INODE_RECORD_BYTES], |record| record.encode(number));
        self.file.write_all_at(&bytes, format::inode_record_offset(number)).unwrap();
    }
}

fn attribute(path: &Path) -> format::Attribute {
    let mut bytes = [0; format::ATTRIBUTE_BYTES];
    sys::rustix::fs::lgetxattr(path, format::ATTRIBUTE_NAME, &mut bytes[..]).unwrap();
    format::Attribute::decode(&bytes).unwrap()
}

/// The file was just being made. It can be used as in a plain directory, before the fast member is
/// filled and afterwards, and so can one whose number was another file's before.
#[test]
fn a_file_of_which_a_power_cut_kept_the_name_alone_can_be_used() {
    let cases = [(true, false, false), (true, true, false), (false, false, false), (false, true, false), (false, false, true)];
    for (is_filled, in_old_use, makes_first) in cases {
        if !is_filled && !sys::rustix::process::geteuid().is_root() {
            eprintln!("NOT RUN: a fast member that is not filled needs root");
            continue;
        }
        let backed = Backed::new();
        backed.fill();
        backed.fine(
            "for i in 1 2 3; do rm -f /data/made; printf kept >/data/made; done; ln /data/made /data/d/again; touch /data/empty",
        );
        backed.restart(false);
        let (table, made) = (Table::of(backed.disk.path()), attribute(&backed.disk.path().join("data/made")));
        let old = format::InodeRecord { generation: made.generation - 1, size: 7, ..table.get(made.inode) };
        table.set(made.inode, in_old_use.then_some(old));
        table.set(attribute(&backed.disk.path().join("data/empty")).inode, None);
        if !is_filled {
            fs::create_dir(backed.bench.path("m0")).unwrap();
            std::os::unix::fs::chown(backed.bench.path("m0"), Some(65534), None).unwrap();
        }
        if makes_first {
            backed.fine("touch /data/first; echo bytes >/data/second; sync /data/second");
        }
        let seen = backed.fine(
            "cat /data/made /data/empty; stat -c %s,%h /data/d/again; echo more >>/data/made; sync /data/made; cat /data/d/again",
        );
        assert_eq!(seen, "kept4,2\nkeptmore\n", "{is_filled} {in_old_use} {makes_first}");
        backed.fine("echo new >/data/empty; echo another >/data/another; cmp /data/d/5 - <<end\n$(seq 5 20000)\nend");
        if is_filled {
            backed.await_in_sync();
        }
        assert_eq!(fs::read(backed.disk.path().join("data/made")).unwrap(), b"keptmore\n");
        // Where no member on tmpfs names the array nothing else takes its runtime segment away.
        backed.bench.run(&["stop", "db"]);
    }
}

/// In a mount namespace a directory of the member hides another one. The files in the hidden directory
/// have names all the same.
#[test]
fn names_that_a_mount_hides_are_not_taken_for_gone() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: a mount needs root");
        return;
    }
    let backed = Backed::new();
    backed.fill();
    backed.fine("mkdir /data/seen /data/hidden; echo precious >/data/hidden/file; sync /data/hidden/file; mkdir /data/more");
    backed.restart(false);
    let run = on_array(&backed.bench, &["sh", "-c", "ls /data/hidden; echo new >/data/new; sync /data/new"]);
    let [seen, hidden] = ["data/seen", "data/hidden"].map(|name| backed.disk.path().join(name));
    let mut apart = std::process::Command::new("unshare");
    apart.args(["-m", "sh", "-c", "mount --make-rprivate / && mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"", "sh"]);
    apart.args([&seen, &hidden]).arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => apart.env(name, value),
            None => apart.env_remove(name),
        };
    }
    let made = apart.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // The fast member may have gone out, since its names could not be told from what was seen.
    assert_eq!(backed.fine("cat /data/hidden/file /data/new"), "precious\nnew\n");
}

/// At other levels than 1 nothing tells how long a file is whose record a power cut has taken. The file
/// is refused until a program opens it with O_TRUNC, which makes it an empty one.
#[test]
fn a_file_of_level_5_without_a_record_can_be_emptied() {
    let (bench, disk) = (Bench::new(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let members = ["a", "b", "c"].map(|name| disk.path().join(name));
    members.iter().for_each(|member| fs::create_dir(member).unwrap());
    let paths = members.each_ref().map(|member| member.to_str().unwrap());
    let created = bench.run(&[&["create", "five", "--level", "5", "--at", "/five"], &paths[..]].concat());
    assert!(created.status.success(), "{}", err(&created));
    let shell = |script: &str| {
        let mut command = bench.command(&["run", "five", "--", "sh", "-c", script]);
        command.env("CXLRAID_LIB", library()).output().unwrap()
    };
    assert!(shell("echo before >/five/file; echo other >/five/other").status.success());
    assert!(bench.run(&["stop", "five"]).status.success());
    for member in &members {
        Table::of(member).set(attribute(&member.join("five/file")).inode, None);
    }
    let refused = shell("cat /five/file");
    assert!(!refused.status.success() && err(&refused).contains("/five/file"), "{}", err(&refused));
    let emptied = shell("echo after >/five/file && cat /five/file /five/other");
    assert_eq!(out(&emptied), "after\nother\n", "{}", err(&emptied));
    assert!(bench.run(&["scrub", "five"]).status.success());
    assert!(bench.run(&["stop", "five"]).status.success());
}

/// Nobody can open such a file, so nobody could compute its bytes: it is none.
#[test]
fn a_record_without_a_name_does_not_keep_the_fast_member_from_getting_in_sync() {
    let backed = Backed::new();
    backed.fill();
    backed.restart(false);
    let table = Table::of(backed.disk.path());
    let of_file = table.get(attribute(&backed.disk.path().join("data/d/1")).inode);
    table.set(900, Some(format::InodeRecord { generation: 1, size: 26, ..of_file }));
    backed.assert_right();
    backed.await_in_sync();
    let status = backed.bench.run(&["status", "db"]);
    assert!(status.status.success() && !out(&status).contains("waits"), "{}", out(&status));
    let mut bytes = [1; format::INODE_RECORD_BYTES];
    table.file.read_exact_at(&mut bytes, format::inode_record_offset(900)).unwrap();
    assert_eq!(format::InodeRecord::decode(900, &bytes).unwrap(), None);
}

/// They heard of no fast member when they started.
#[test]
fn programs_that_run_hear_that_an_array_is_backed_from_now_on() {
    let backed = Backed::new();
    assert!(backed.bench.run(&["member", "db", "m0", "--fast", "off"]).status.success());
    let sync = "try: os.fsync(f); print('durable')\nexcept OSError as error: print(os.strerror(error.errno))";
    let before = format!("f = os.open('/data/x', os.O_RDWR | os.O_CREAT); os.write(f, b'x')\n{sync}");
    let program = backed.program(&before.replace("print('durable')", "pass"), sync);
    assert!(backed.bench.run(&["member", "db", "m0", "--fast", "on"]).status.success());
    assert!(backed.bench.run(&["fail", "db", backed.disk(), "--force"]).status.success());
    assert_eq!(program.go_on(), "Input/output error\n");
}

/// A volatile spare is none for the backing, and does not keep the next one from it.
#[test]
fn the_backing_takes_the_first_spare_that_keeps_what_it_holds() {
    let backed = Backed::new();
    backed.fill();
    let other = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let added = backed.bench.run(&["add", "db", "--spare", "m1"]);
    assert!(err(&added).contains("m1: warning: is volatile, so it takes the place of fast members only"), "{}", err(&added));
    let added = backed.bench.run(&["add", "db", "--spare", other.path().to_str().unwrap()]);
    assert!(added.status.success() && !err(&added).contains("is volatile"), "{}", err(&added));
    assert!(backed.bench.run(&["fail", "db", backed.disk(), "--force"]).status.success());
    let rebuilt = backed.bench.run(&["rebuild", "db", "--spares"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    let (code, status) = backed.status();
    assert!(code == Some(0) && status.contains(&format!("{}  in sync", other.path().display())), "{status}");
    backed.fine("echo more >>/data/d/1; sync /data/d/1");
}

/// Nobody has to close a file for that, and no call fails: what was cut is made anew from memory.
#[test]
fn a_file_that_is_opened_once_more_is_whole_on_its_backing_again() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: a_file_that_is_opened_once_more_is_whole_on_its_backing_again needs root");
        return;
    }
    let backed = Backed::new();
    backed.fine("head -c 300000 /dev/zero | tr '\\0' A > /data/long; chown 65534 /data/long; sync /data/long");
    let program = backed.program(
        "f = os.open('/data/long', os.O_RDWR)",
        "g = os.open('/data/long', os.O_RDWR); os.pwrite(g, b'after', 100); os.fsync(g); print('durable')",
    );
    let own = backed.disk.path().join("data/long");
    fs::File::options().write(true).open(&own).unwrap().set_len(50).unwrap();
    assert_eq!(program.go_on(), "durable\n");
    let mut wanted = vec![b'A'; 300_000];
    wanted[100..105].copy_from_slice(b"after");
    assert!(fs::read(own).unwrap() == wanted);
}

/// Whoever owns a directory above the fast member could exchange the member for another directory.
#[test]
fn a_fast_member_below_a_directory_of_another_user_is_not_filled() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: a_fast_member_below_a_directory_of_another_user_is_not_filled needs root");
        return;
    }
    let (bench, disk) = (Bench::new(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let above = bench.path("above");
    let fast = above.join("f");
    fs::create_dir_all(&fast).unwrap();
    let created = bench.run(&[
        "create",
        "db",
        "--at",
        "/data",
        "--force",
        "--fast",
        fast.to_str().unwrap(),
        "--backing",
        disk.path().to_str().unwrap(),
    ]);
    assert!(created.status.success(), "{}", err(&created));
    let told = |owner: u32, mode: u32| {
        assert!(bench.run(&["stop", "db"]).status.success());
        fs::remove_dir_all(&above).unwrap();
        fs::create_dir(&above).unwrap();
        std::os::unix::fs::chown(&above, Some(owner), None).unwrap();
        fs::set_permissions(&above, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let run = on_array(&bench, &["true"]).output().unwrap();
        assert!(run.status.success(), "{}", err(&run));
        let begun = Instant::now();
        while !out(&bench.run(&["status", "db", "--json"])).contains("\"processes\": [],") {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(50));
        }
        (err(&run), fs::read_dir(&above).unwrap().count())
    };
    for (owner, mode) in [(65534, 0o755), (0, 0o777)] {
        let (line, count) = told(owner, mode);
        assert!(line.contains(&format!("is not filled: user {owner} has made {} above it", above.display())), "{line}");
        assert_eq!(count, 0);
    }
    for mode in [0o755, 0o1777] {
        let (line, count) = told(0, mode);
        assert!(line.contains("is blank and is filled again") && count == 1, "{line}");
    }
    assert!(bench.run(&["stop", "db"]).status.success());
}
