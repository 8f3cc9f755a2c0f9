//! The built command as an operator uses it: what it prints where, and its exit status.

mod bench;

use bench::{Bench, err, out, refused, refused_after_warnings, snapshot};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

#[test]
fn usage_errors_exit_with_2_and_one_line() {
    let bench = Bench::new();
    let cases: &[(&[&str], &str)] = &[
        (&[], "a command is needed; see 'cxlraid --help'"),
        (&["journal"], "a command is needed; see 'cxlraid journal --help'"),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["create", "db", "--at", "/data", "m0"], "--level <LEVEL>"),
        (&["create", "db", "--level", "7", "--at", "/data", "m0"], "unknown RAID level"),
        (&["create", "db", "--level", "1", "--chunk", "3K", "--at", "/data", "m0"], "a chunk is a power of two"),
        (&["create", "../db", "--level", "1", "--at", "/data", "m0"], "a name has 1 to 63 letters"),
        (&["create", "db", "--level", "5", "--at", "/data", "m0", "m1"], "needs at least 3 members, 2 given"),
        (&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "./m0"], "given twice"),
        (&["create", "db", "--level", "1", "--at", "data", "m0"], "not an absolute path"),
        (&["create", "db", "--level", "1", "--at", "/data", "m:0"], "contains ':'"),
        (&["run", "db"], "<PROGRAM>"),
        (&["run", "--", "true"], "none named"),
        (&["info"], "none named"),
    ];
    for (arguments, expected) in cases {
        let (status, line) = refused(&bench.run(arguments));
        assert_eq!(status, 2, "{line}");
        assert!(line.contains(expected), "{line:?} lacks {expected:?}");
    }
    assert!(!bench.path("config").exists());
    assert!(fs::read_dir(bench.path("m0")).unwrap().next().is_none());
}

#[test]
fn help_goes_to_standard_output() {
    let bench = Bench::new();
    for arguments in [&["--help"][..], &["help"], &["help", "create"], &["status", "--help"], &["--version"]] {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(out(&output).contains("cxlraid"));
        assert_eq!(err(&output), "");
    }
    assert!(out(&bench.run(&["completions", "bash"])).contains("complete -F _cxlraid"));
}

#[test]
fn unknown_names_are_errors() {
    let bench = Bench::new();
    for arguments in [&["status", "db"][..], &["info", "db"], &["run", "db", "--", "true"], &["stop", "db"], &["forget", "db"]] {
        let (status, line) = refused(&bench.run(arguments));
        assert_eq!(status, 1);
        assert!(line.starts_with("cxlraid: db: no array has this name; "), "{line}");
    }
}

#[test]
fn mount_points_of_new_file_systems_become_members() {
    let bench = Bench::new();
    for member in ["m0", "m1", "m2"] {
        fs::create_dir(bench.path(member).join("lost+found")).unwrap();
    }
    let created = bench.create();
    assert_eq!(created.status.code(), Some(0), "{}", err(&created));
    assert_eq!(out(&bench.run(&["stop", "db"])), "db: stopped\n");
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
}

#[test]
fn an_array_is_created_named_degraded_and_forgotten() {
    let bench = Bench::new();
    let created = bench.create();
    assert_eq!(created.status.code(), Some(0), "{}", err(&created));
    assert!(out(&created).starts_with("db: in sync, RAID 5, chunk 64K, 3 of 3 members work, 1 more may fail\n"));
    assert_eq!(err(&created).lines().filter(|line| line.contains("warning: is on one device")).count(), 2);
    let file = fs::read_to_string(bench.path("config/cxlraid/arrays/db.toml")).unwrap();
    assert!(file.contains("level = \"5\"\nchunk = \"64K\"\n") && file.contains("paths = [\"/data\"]\n"), "{file}");

    assert_eq!(out(&bench.run(&["stop", "db"])), "db: stopped\n");
    assert_eq!(out(&bench.run(&["stop", "db"])), "db: was not running\n");
    assert!(refused(&bench.create()).1.contains("exists; choose another name"));
    let examined = out(&bench.run(&["examine", "m1"]));
    assert!(examined.contains("├─ Name: db\n") && examined.contains("├─ Slot: 1\n"), "{examined}");
    assert!(out(&bench.run(&["info", "db"])).contains("Paths\n└─ /data\n"));
    assert_eq!(bench.run(&["status"]).status.code(), Some(0));

    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let degraded = bench.run(&["status", "db"]);
    assert_eq!(degraded.status.code(), Some(3));
    assert!(out(&degraded).contains("missing: no such directory"), "{}", out(&degraded));
    fs::create_dir(bench.path("m1")).unwrap();
    let unmounted = bench.run(&["status", "--json"]);
    assert_eq!(unmounted.status.code(), Some(3));
    assert!(out(&unmounted).contains("\"note\": \"the directory is empty; is its device mounted?\""));
    fs::rename(bench.path("m2"), bench.path("away2")).unwrap();
    let failed = bench.run(&["status", "db"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(out(&failed).starts_with("db: failed, "));

    assert_eq!(bench.run(&["forget", "db"]).status.code(), Some(0));
    assert!(!bench.path("config/cxlraid/arrays/db.toml").exists());
    assert!(bench.path("away/.cxlraid/superblock").exists());
}

#[test]
fn a_refused_create_changes_nothing() {
    let bench = Bench::new();
    fs::write(bench.path("m2").join("mine"), "precious").unwrap();
    let before = snapshot(bench.home.path());
    let (status, line) = refused_after_warnings(&bench.create());
    assert_eq!(status, 1);
    assert!(line.contains("m2: "), "{line}");
    assert_eq!(snapshot(bench.home.path()), before);

    fs::remove_dir_all(bench.path("m2")).unwrap();
    let before = snapshot(bench.home.path());
    assert!(refused_after_warnings(&bench.create()).1.contains("no such directory"));
    fs::write(bench.path("m2"), "").unwrap();
    assert!(refused_after_warnings(&bench.create()).1.contains("not a directory"));
    fs::remove_file(bench.path("m2")).unwrap();
    assert_eq!(snapshot(bench.home.path()), before);
}

#[test]
fn looking_changes_nothing() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let before = snapshot(bench.home.path());
    for arguments in [&["status"][..], &["status", "db", "--json"], &["info", "db"], &["examine", "m0"]] {
        assert_eq!(bench.run(arguments).status.code(), Some(0));
    }
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let by_environment =
        |arguments: &[&str]| bench.command(arguments).env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", &members).output().unwrap();
    assert!(out(&by_environment(&["info"])).contains("Paths\n├─ /home\n└─ /root\n"));
    assert!(out(&by_environment(&["status"])).starts_with("db: in sync"));
    assert_eq!(snapshot(bench.home.path()), before);
}

#[test]
fn run_hands_over_the_environment() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    // A library that does nothing: what is tested here is what the program is given.
    let library = bench.path("libcxlraid.so");
    let compiled = Command::new("gcc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library).status();
    assert!(compiled.unwrap().success());
    let mut command = bench.command(&["run", "db", "--", "sh", "-c", "env; exit 7"]);
    let output = command.env("CXLRAID_LIB", &library).env("CXLRAID_JOURNAL", "/old").output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let text = out(&output);
    let has = |line: &str| text.lines().any(|found| found == line);
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    assert!(has("CXLRAID_LEVEL=5") && has("CXLRAID_STRIPE_SIZE=65536") && has("CXLRAID_PATHS=/data/"), "{text}");
    assert!(has("CXLRAID_NAME=db") && has(&format!("CXLRAID_MOUNTS={members}")), "{text}");
    assert!(has(&format!("LD_PRELOAD={}", library.display())), "{text}");
    assert!(!text.contains("CXLRAID_JOURNAL"), "{text}");

    let mut command = bench.command(&["run", "db", "--", "no-such-program"]);
    let output = command.env("CXLRAID_LIB", &library).output().unwrap();
    assert_eq!(refused(&output).0, 127);
    let mut command = bench.command(&["run", "db", "--", "/dev/null"]);
    let output = command.env("CXLRAID_LIB", &library).output().unwrap();
    assert_eq!(refused(&output).0, 126);
    let mut command = bench.command(&["run", "db", "--", "true"]);
    let output = command.env("CXLRAID_LIB", "/none/libcxlraid.so").output().unwrap();
    assert!(refused(&output).1.ends_with("no such library; correct or unset CXLRAID_LIB"));
}

#[test]
fn files_go_into_the_array_and_come_back() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    let content: Vec<u8> = (0..1_000_003_u32).map(|index| ((index * 31) >> 3) as u8).collect();
    fs::write(tree.join("sub/big"), &content).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("sub/big", tree.join("link")).unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs::File::options().write(true).open(tree.join("sub/big")).unwrap().set_modified(then).unwrap();

    let done_saying = |arguments: &[&str], said: &str| {
        let output = bench.run(arguments);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), said), "{arguments:?}");
    };
    let done = |arguments: &[&str]| done_saying(arguments, "");
    done(&["add", "--array", "db", "-r", "tree", "/data/tree"]);
    assert!(bench.path("m0/data/tree/sub").is_dir());
    // A full member of three would hold it all: half of it is here, and parity of the other half.
    assert!(fs::metadata(bench.path("m0/data/tree/sub/big")).unwrap().len() < content.len() as u64);

    let check = |copy: &Path| {
        assert_eq!(fs::read(copy.join("sub/big")).unwrap(), content);
        assert_eq!(fs::metadata(copy.join("sub/big")).unwrap().modified().unwrap(), then);
        assert_eq!(fs::read(copy.join("empty")).unwrap(), b"");
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("sub/big"));
    };
    done(&["retrieve", "-a", "db", "-r", "/data/tree", "back"]);
    check(&bench.path("back"));

    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let warning =
        |what: &str| format!("cxlraid: {}: warning: member {what}; the array is degraded\n", bench.path("m1").display());
    let without = warning("is missing (no such directory)");
    done_saying(&["retrieve", "-a", "db", "-r", "/data/tree", "back"], &without);
    check(&bench.path("back/tree"));
    done_saying(&["add", "-a", "db", "tree/sub/big", "/data/tree/empty"], &without);
    done_saying(&["retrieve", "-a", "db", "/data/tree/empty", "degraded"], &without);
    assert_eq!(fs::read(bench.path("degraded")).unwrap(), content);

    // What came back is stale now.
    fs::rename(bench.path("away"), bench.path("m1")).unwrap();
    let stale = bench.run(&["status", "db"]);
    assert_eq!(stale.status.code(), Some(3));
    assert!(out(&stale).contains("stale, volatile: changes were made while it was away"), "{}", out(&stale));
    done_saying(
        &["retrieve", "-a", "db", "/data/tree/empty", "degraded"],
        &warning("is stale (changes were made while it was away)"),
    );

    let (status, line) = refused_after_warnings(&bench.run(&["add", "-a", "db", "tree/empty", "/elsewhere"]));
    assert_eq!(status, 1);
    assert!(line.ends_with("/elsewhere: is not below the array's paths (/data); give a path below one of them"), "{line}");
    let (_, line) = refused_after_warnings(&bench.run(&["retrieve", "-a", "db", "/data/none", "x"]));
    assert_eq!(line, "cxlraid: /data/none: cannot be read: No such file or directory; check the path");
}

/// Takes back that the last write is settled, as a crash leaves it; returns whether there was one.
fn unsettle(journal: &Path) -> bool {
    let mut bytes = fs::read(journal).unwrap();
    let header = format::JournalHeader::decode(&bytes).unwrap();
    let mut found = false;
    for lane in 0..header.lane_count {
        let at = header.lane_offset(lane) as usize;
        if let Some((record, true)) = format::JournalRecord::decode(bytes[at..at + 64].try_into().unwrap(), header.seed()) {
            bytes[at..at + 64].copy_from_slice(&record.encode(header.seed(), record.sequence - 1));
            found = true;
        }
    }
    fs::write(journal, bytes).unwrap();
    found
}

#[test]
fn the_journal_is_shown_replayed_given_up_and_replaced() {
    let bench = Bench::new();
    let create = ["create", "db", "--level", "5", "--at", "/data", "--journal", "j/cxlraid.journal", "m0", "m1", "m2"];
    let output = bench.run(&create);
    assert_eq!(output.status.code(), Some(1));
    let says = err(&output);
    assert!(says.contains("cannot make a journal of 65 MiB: no such file or directory; create its directory first"), "{says}");
    fs::create_dir(bench.path("j")).unwrap();
    let create = create.map(|word| if word.starts_with("j/") { "j" } else { word });
    assert_eq!(bench.run(&create).status.code(), Some(0));
    let journal = bench.path("j/cxlraid.journal");
    let show = || bench.run(&["journal", "show", "db"]);
    assert_eq!(show().status.code(), Some(0));
    assert!(out(&show()).starts_with(&format!("db: journal {}, clean\n", journal.display())), "{}", out(&show()));
    let done = |arguments: &[&str], says: &str| {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
        assert!(out(&output).contains(says), "{arguments:?}: {}", out(&output));
    };
    let content = vec![0x5a_u8; 100_000];
    fs::write(bench.path("file"), &content).unwrap();
    done(&["add", "-a", "db", "file", "/data/file"], "");
    done(&["stop", "db"], "stopped");

    // A crash between the commit of the last write and its end, which took data with it.
    assert!(unsettle(&journal));
    let spoilt = fs::OpenOptions::new().write(true).open(bench.path("m1/data/file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&spoilt, &[0; 5000], 10_000).unwrap();
    let shown = bench.run(&["journal", "show", "db", "--json"]);
    assert_eq!(shown.status.code(), Some(3));
    for key in ["\"version\": 1", "\"state\": \"waiting\"", "\"bytes\": ", "\"persistence\": \"volatile\"", "\"lanes\": 32"] {
        assert!(out(&shown).contains(key), "{}", out(&shown));
    }
    let (status, line) = refused(&bench.run(&["journal", "remove", "db"]));
    assert_eq!(status, 1);
    assert!(line.contains("1 writes wait in the journal; 'cxlraid journal replay' first"), "{line}");
    done(&["journal", "replay", "db"], "db: 1 writes replayed");
    assert_eq!(show().status.code(), Some(0));
    done(&["retrieve", "-a", "db", "/data/file", "back"], "");
    assert_eq!(fs::read(bench.path("back")).unwrap(), content);

    done(&["stop", "db"], "stopped");
    assert!(unsettle(&journal));
    let (status, line) = refused(&bench.run(&["journal", "clear", "db"]));
    assert!(status == 2 && line.contains("--force"), "{line}");
    done(&["journal", "clear", "db", "--force"], "new and empty; 1 writes given up");
    assert_eq!(show().status.code(), Some(0));

    // Its device is gone: nothing goes on until the operator says so.
    fs::rename(&journal, bench.path("lost")).unwrap();
    assert_eq!(show().status.code(), Some(1));
    let (status, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"]));
    assert_eq!(status, 1);
    assert!(line.contains("the array's journal: no such file or directory") && line.contains("clear --force"), "{line}");
    // The superblocks alone make no file, neither in a free place nor in another file's.
    let there = journal.to_str().unwrap();
    for content in [None, Some(""), Some("something else")] {
        content.map_or(Ok(()), |content| fs::write(&journal, content)).unwrap();
        let (status, line) = refused(&bench.run(&["journal", "clear", "db", "--force"]));
        let says = "the members name this path, and the array's journal is not there; say where to make one by";
        assert!(status == 1 && line.contains(&format!("{there}: {says}")), "{line}");
        assert_eq!(fs::read_to_string(&journal).ok().as_deref(), content);
    }
    let (_, line) = refused(&bench.run(&["journal", "clear", "db", "--force", "--to", there]));
    assert!(line.contains("exists and is not a journal"), "{line}");
    assert_eq!(fs::read(&journal).unwrap(), b"something else");
    fs::remove_file(&journal).unwrap();
    done(&["journal", "clear", "db", "--force", "--to", there], "every file is compared");
    done(&["retrieve", "-a", "db", "/data/file", "back"], "");
    // The old one is foreign now.
    fs::copy(bench.path("lost"), &journal).unwrap();
    let (_, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"]));
    assert!(line.contains("is not the journal that the array was last used with"), "{line}");
    done(&["journal", "clear", "db", "--force", "--to", "internal"], "journal internal is new and empty");

    assert!(bench.path("m1/.cxlraid/journal").exists() && !bench.path("m2/.cxlraid/journal").exists());
    done(&["journal", "remove", "db"], "has no journal any more");
    assert!(!bench.path("m1/.cxlraid/journal").exists());
    done(&["journal", "show", "db"], "db: no journal");
    done(&["journal", "add", "db", "internal"], "db: journal internal");
    done(&["add", "-a", "db", "file", "/data/again"], "");
    done(&["journal", "show", "db"], "db: journal internal, clean");
    assert_eq!(fs::read(bench.path("back")).unwrap(), content);
}

/// The array is used with the copies that are left, and so it is shown; not if a copy is another journal.
#[test]
fn a_copy_of_the_journal_that_is_lost_does_not_make_the_journal_lost() {
    let bench = Bench::new();
    assert_eq!(
        bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "internal", "m0", "m1", "m2"]).status.code(),
        Some(0)
    );
    fs::write(bench.path("file"), [7; 100_000]).unwrap();
    assert_eq!(bench.run(&["add", "-a", "db", "file", "/data/file"]).status.code(), Some(0));
    assert_eq!(bench.run(&["stop", "db"]).status.code(), Some(0));
    let show = |status: i32, says: [&str; 2]| {
        let output = bench.run(&["journal", "show", "db"]);
        assert!(output.status.code() == Some(status), "{}", out(&output));
        assert!(says.iter().all(|says| out(&output).contains(says)), "{}", out(&output));
    };
    let copy = |member: &str| bench.path(member).join(".cxlraid/journal");
    show(0, ["db: journal internal, clean", "lanes: "]);
    fs::rename(copy("m1"), bench.path("kept")).unwrap();
    show(3, ["db: journal internal, clean", "m1/.cxlraid/journal: cannot be read"]);
    assert!(unsettle(&copy("m0")));
    show(3, ["db: journal internal, writes wait to be replayed", "m1/.cxlraid/journal: cannot be read"]);
    let summary = out(&bench.run(&["status", "db"]));
    assert!(summary.contains("1 writes wait to be replayed; a copy is lost: "), "{summary}");
    // Another array's journal was put there by somebody: attaching is refused.
    let other = Bench::new();
    let made = other.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "internal", "m0", "m1", "m2"]);
    assert_eq!(made.status.code(), Some(0));
    fs::copy(other.path("m0/.cxlraid/journal"), copy("m1")).unwrap();
    show(1, ["db: journal internal, lost", "it belongs to array"]);
    // None of the copies can be used.
    fs::remove_file(copy("m1")).unwrap();
    fs::write(copy("m0"), "").unwrap();
    show(1, ["db: journal internal, lost", "m0/.cxlraid/journal: not a cxlraid journal"]);
}

/// Who owns the members may put anything in the place of their files, and name any journal.
#[test]
fn a_pipe_in_a_files_place_holds_nobody_up() {
    let bench = Bench::new();
    fs::create_dir(bench.path("j")).unwrap();
    let create = ["create", "db", "--level", "1", "--at", "/data", "--journal", "j/file", "m0", "m1"];
    assert_eq!(bench.run(&create).status.code(), Some(0));
    let pipe = |path: &Path| {
        fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let within_a_time = |arguments: &[&str]| {
        let mut child = bench.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        for _ in 0..200 {
            if child.try_wait().unwrap().is_some() {
                return child.wait_with_output().unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        panic!("{arguments:?} waits");
    };
    pipe(&bench.path("j/file"));
    let shown = within_a_time(&["journal", "show", "db"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(out(&shown).contains("j/file: cannot be read: it is not a regular file\n"), "{}", out(&shown));
    let (_, line) = refused(&within_a_time(&["journal", "clear", "db", "--force"]));
    assert!(line.contains("the array's journal is not there"), "{line}");
    let superblock = bench.path("m1/.cxlraid/superblock");
    fs::copy(&superblock, bench.path("kept")).unwrap();
    pipe(&superblock);
    let status = within_a_time(&["status", "db"]);
    assert!(out(&status).contains("failed, volatile: it is not a regular file"), "{}", out(&status));
    let (_, line) = refused(&within_a_time(&["examine", "m1"]));
    assert!(line.contains("m1/.cxlraid/superblock: it is not a regular file"), "{line}");
    // Nor is the directory of the journal waited for.
    fs::rename(bench.path("kept"), &superblock).unwrap();
    fs::remove_dir_all(bench.path("j")).unwrap();
    assert!(Command::new("mkfifo").arg(bench.path("j")).status().unwrap().success());
    assert_eq!(within_a_time(&["journal", "show", "db"]).status.code(), Some(1));
}

/// What holds an array's journal or is to hold it is put on record if it is away: it comes back without this journal.
#[test]
fn a_member_that_was_away_when_the_journal_was_made_is_no_reason_to_refuse_the_array() {
    for slot in ["m0", "m1", "m2"] {
        let bench = Bench::new();
        assert_eq!(bench.create().status.code(), Some(0));
        let run = |arguments: &[&str]| {
            let output = bench.run(arguments);
            assert_eq!(output.status.code(), Some(0), "{slot}, {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let away = |act: &dyn Fn()| {
            run(&["stop", "db"]);
            fs::rename(bench.path(slot), bench.path("away")).unwrap();
            fs::create_dir(bench.path(slot)).unwrap();
            act();
            run(&["stop", "db"]);
            fs::remove_dir(bench.path(slot)).unwrap();
            fs::rename(bench.path("away"), bench.path(slot)).unwrap();
        };
        fs::write(bench.path("file"), [7; 100_000]).unwrap();
        run(&["add", "-a", "db", "file", "/data/file"]);
        away(&|| run(&["journal", "add", "db", "internal"]));
        run(&["retrieve", "-a", "db", "/data/file", "back"]);
        away(&|| run(&["journal", "clear", "db", "--force"]));
        run(&["retrieve", "-a", "db", "/data/file", "back"]);
        assert!(fs::read(bench.path("back")).unwrap() == [7; 100_000]);
    }
}

/// Mistakes of an operator with whole members: what is not there is not made anew, and what is there does not pass for what it is not.
#[test]
fn members_that_are_unmounted_emptied_old_or_used_apart_do_no_harm() {
    let bench = Bench::new();
    let made = bench.run(&["create", "db", "--level", "1", "--at", "/data", "m0", "m1"]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let add = |content: &str, name: &str| {
        fs::write(bench.path("host"), content).unwrap();
        bench.run(&["add", "-a", "db", "host", &format!("/data/{name}")]).status.code()
    };
    let get = |name: &str| {
        let output = bench.run(&["retrieve", "-a", "db", &format!("/data/{name}"), "back"]);
        fs::read_to_string(bench.path("back")).map_err(|_| err(&output))
    };
    let stop = || assert_eq!(bench.run(&["stop", "db"]).status.code(), Some(0));
    let rename = |from: &str, to: &str| fs::rename(bench.path(from), bench.path(to)).unwrap();
    assert_eq!(add("one", "file"), Some(0));
    stop();

    // Nothing is mounted: no new array is made in the place of this one.
    for member in ["m0", "m1"] {
        rename(member, &format!("{member}.off"));
        fs::create_dir(bench.path(member)).unwrap();
    }
    assert!(refused(&bench.run(&["add", "-a", "db", "host", "/data/lost"])).1.contains("mount its devices"));
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(1));
    for member in ["m0", "m1"] {
        // It is still empty.
        fs::remove_dir(bench.path(member)).unwrap();
        rename(&format!("{member}.off"), member);
    }

    // The lowest member is emptied but for .cxlraid.
    let copy = |from: &str, to: &str| {
        let copied = Command::new("cp").arg("-a").args([bench.path(from), bench.path(to)]).status().unwrap();
        assert!(copied.success());
    };
    copy("m0", "copy");
    fs::remove_dir_all(bench.path("m0/data")).unwrap();
    assert!(out(&bench.run(&["status", "db"])).contains("it was emptied"));
    assert_eq!(get("file").as_deref(), Ok("one"));
    fs::remove_dir_all(bench.path("m0")).unwrap();
    copy("copy", "m0");
    stop();

    // The lowest member is put back from a copy that is older than the last use.
    assert_eq!(add("two", "file"), Some(0));
    stop();
    rename("m0", "away");
    rename("copy", "m0");
    assert_eq!(get("file").as_deref(), Ok("two"));
    assert!(out(&bench.run(&["status", "db"])).contains("stale"));
    fs::remove_dir_all(bench.path("m0")).unwrap();
    rename("away", "m0");
    stop();

    // Each half of the mirror is used alone.
    for (gone, content) in [("m1", "of m0"), ("m0", "of m1")] {
        rename(gone, "away");
        assert_eq!(add(content, "file"), Some(0));
        stop();
        rename("away", gone);
    }
    let refusal = refused(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"]));
    assert!(refusal.1.contains("assemble --prefer"), "{}", refusal.1);
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(1));
    assert!(refused(&bench.run(&["assemble", "db", "--prefer", "other"])).1.contains("not a member"));
    let decided = bench.run(&["assemble", "db", "--prefer", "m0"]);
    assert_eq!(decided.status.code(), Some(0), "{}", err(&decided));
    assert_eq!(get("file").as_deref(), Ok("of m0"));
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(3));
    stop();
}

#[test]
fn one_file_with_a_mistake_does_not_hide_the_other_arrays() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("config/cxlraid/arrays/bad.toml"), "name = ").unwrap();
    std::os::unix::fs::symlink("nowhere", bench.path("config/cxlraid/arrays/dangling.toml")).unwrap();
    let status = bench.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(out(&status).starts_with("db: in sync"), "{}", out(&status));
    let said = err(&status);
    assert!(said.lines().count() == 2 && said.contains("bad.toml") && said.contains("dangling.toml"), "{said}");
    let json = bench.run(&["status", "--json"]);
    assert!(out(&json).contains("\"db\"") && json.status.code() == Some(1));
}

/// An array whose file is not believed is listed with the reason, and the status is that of one that cannot start: a script would not hear of it otherwise.
#[test]
fn an_array_whose_file_is_not_believed_is_listed() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let (directory, file) = (bench.path("config/cxlraid/arrays"), bench.path("config/cxlraid/arrays/db.toml"));
    let said = |what: &str| {
        for arguments in [&["status"][..], &["status", "db"], &["status", "--json"], &["info", "db"]] {
            let (status, line) = refused(&bench.run(arguments));
            assert!(status == 1 && line.contains(what) && line.contains("db"), "{arguments:?}: {line}");
        }
        assert!(!out(&bench.run(&["status"])).contains("no arrays"));
    };
    for (path, mode, usual) in [(&file, 0o664, 0o644), (&directory, 0o757, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        said(&format!("cxlraid: db: {} is not believed: others than its owner may write to it; ", path.display()));
        fs::set_permissions(path, fs::Permissions::from_mode(usual)).unwrap();
    }
    let text = fs::read_to_string(&file).unwrap();
    fs::rename(&file, bench.path("elsewhere.toml")).unwrap();
    symlink(bench.path("elsewhere.toml"), &file).unwrap();
    said("is a symbolic link, and such a file is not followed; put the file itself there");
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    said("not a regular file; remove it");
    fs::remove_file(&file).unwrap();
    fs::write(&file, text).unwrap();
    assert_eq!(bench.run(&["status"]).status.code(), Some(0));
}

/// A file without a UUID would say nothing of which array is meant: a start would make a new one where the members' devices are not mounted.
#[test]
fn a_file_without_a_uuid_is_refused() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let file = bench.path("config/cxlraid/arrays/db.toml");
    let text = fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|line| line.starts_with("uuid = ")).unwrap();
    for member in ["m0", "m1", "m2"] {
        fs::rename(bench.path(member), bench.path(&format!("{member}.away"))).unwrap();
        fs::create_dir(bench.path(member)).unwrap();
    }
    fs::write(bench.path("host"), "x").unwrap();
    for (uuid, what) in [
        ("uuid = \"\"", "uuid: \"\" is no array's UUID"),
        ("uuid = \"xyz\"", "uuid: \"xyz\" is no array's UUID"),
        ("", "missing field `uuid`"),
    ] {
        fs::write(&file, text.replace(line, uuid)).unwrap();
        for arguments in [&["status"][..], &["add", "-a", "db", "host", "/data/x"], &["run", "db", "--", "true"]] {
            let (status, said) = refused(&bench.run(arguments));
            assert!(status == 1 && said.contains("db.toml: ") && said.contains(what), "{arguments:?}: {said}");
        }
        assert!(["m0", "m1", "m2"].iter().all(|member| snapshot(&bench.path(member)).is_empty()));
    }
    for member in ["m0", "m1", "m2"] {
        fs::remove_dir(bench.path(member)).unwrap();
        fs::rename(bench.path(&format!("{member}.away")), bench.path(member)).unwrap();
    }
}

#[test]
fn one_more_name_for_an_array_says_so_and_makes_its_path() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let other = bench.run(&["create", "other", "--level", "5", "--at", "/other", "m0", "m1", "m2"]);
    assert!(other.status.success() && err(&other).contains("one more name"), "{}", err(&other));
    assert!(["m0", "m1", "m2"].iter().all(|member| bench.path(member).join("other").is_dir()));
}

#[test]
fn status_tells_what_a_start_would_come_to() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("m1/.cxlraid/lanes"), "").unwrap();
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(3), "{}", out(&status));
    assert!(out(&status).contains("failed, volatile: files of its .cxlraid are missing or damaged"), "{}", out(&status));
    fs::remove_file(bench.path("m2/.cxlraid/inodes")).unwrap();
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(1), "{}", out(&status));
    assert!(out(&status).lines().last().is_some_and(|line| line.starts_with("  no program can start: ")), "{}", out(&status));
    let help = bench.command(&["--help"]).stdout(fs::File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
    assert_eq!(help.status.code(), Some(1));
    assert!(err(&help).starts_with("cxlraid: standard output: "), "{}", err(&help));
}

#[test]
fn status_tells_of_names_that_a_member_has_lost() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir_all(bench.path("host/inner")).unwrap();
    ["host/one", "host/inner/two"].iter().for_each(|file| fs::write(bench.path(file), "some").unwrap());
    assert!(bench.run(&["add", "-a", "db", "-r", "host", "/data/x"]).status.success());
    let status = || {
        let status = bench.run(&["status", "db"]);
        (status.status.code(), out(&status))
    };
    assert_eq!(status().0, Some(0), "{}", status().1);
    let find = |member: &str, name: &str| {
        let found = Command::new("find").arg(bench.path(member)).args(["-name", name]).output().unwrap();
        std::path::PathBuf::from(String::from_utf8(found.stdout).unwrap().trim_end())
    };
    fs::remove_file(find("m1", "one")).unwrap();
    fs::remove_dir_all(find("m1", "inner")).unwrap();
    let (code, text) = status();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.starts_with("db: degraded, ") && text.contains("3 of 3 members work, 0 more may fail"), "{text}");
    assert!(text.contains("in sync, volatile: lacks 2 names that others have, such as /data/x/inner"), "{text}");
    // Nothing was changed: who uses the names restores them on a member that is not the lowest.
    let json = bench.run(&["status", "db", "--json"]);
    assert!(out(&json).contains("\"names_lost\": 2"), "{}", out(&json));
    assert!(bench.run(&["retrieve", "-a", "db", "-r", "/data/x", "back"]).status.success());
    assert_eq!(fs::read(bench.path("back/inner/two")).unwrap(), b"some");
    assert_eq!(status().0, Some(0), "{}", status().1);
}

/// What a name in a tree is: its kind with its mode, owner, group, device, number of names, seconds and nanoseconds of its last change, and the value of its attribute `trusted.note`.
fn described(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::symlink_metadata(path).unwrap();
    let mut value = [0; 100];
    let note = sys::rustix::fs::lgetxattr(path, "trusted.note", &mut value[..]).map(|count| value[..count].to_vec());
    let numbers = (found.mode(), found.uid(), found.gid(), found.rdev(), found.nlink());
    format!("{numbers:?} {}.{} {:?}", found.mtime(), found.mtime_nsec(), note.ok())
}

#[test]
fn trees_keep_times_of_links_trusted_attributes_and_files_without_content() {
    use sys::rustix::{
        fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, mknodat, setxattr, utimensat},
        process::geteuid,
    };
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let tree = bench.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    let made = |name: &str, kind, mode, device| mknodat(CWD, tree.join(name), kind, Mode::from_raw_mode(mode), device);
    made("pipe", FileType::Fifo, 0o620, 0).unwrap();
    made("socket", FileType::Socket, 0o751, 0).unwrap();
    fs::hard_link(tree.join("pipe"), tree.join("pipe2")).unwrap();
    std::os::unix::fs::symlink("file", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("dangling")).unwrap();
    let mut names = vec!["dangling", "file", "link", "pipe", "pipe2", "socket"];
    if geteuid().is_root() {
        setxattr(tree.join("file"), "trusted.note", b"mine", XattrFlags::empty()).unwrap();
        setxattr(&tree, "trusted.note", b"of a directory", XattrFlags::empty()).unwrap();
        made("device", FileType::CharacterDevice, 0o640, (1 << 8) | 7).unwrap();
        names.insert(1, "device");
        for name in ["pipe", "socket", "link", "device"] {
            let (user, group) = (Uid::from_raw(7), Gid::from_raw(8));
            chownat(CWD, tree.join(name), Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
    for (index, name) in names.iter().enumerate() {
        let then = Timespec { tv_sec: 1_000_000_000 + index as i64, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: then, last_modification: then };
        utimensat(CWD, tree.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    for command in [&["add", "-a", "db", "-r", "tree", "/data/tree"], &["retrieve", "-a", "db", "-r", "/data/tree", "back"]] {
        let output = bench.run(command);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{command:?}");
    }
    let back = bench.path("back");
    for name in &names {
        let paths = [&tree, &back].map(|tree| described(&tree.join(name)));
        assert_eq!(paths[0], paths[1], "{name}");
    }
    assert_eq!(described(&tree), described(&back));
    assert_eq!(bench.run(&["scrub", "db"]).status.code(), Some(0));
    // Without -r a pipe is refused, and nobody waits for it.
    let (_, line) = refused(&bench.run(&["add", "-a", "db", "tree/pipe", "/data/pipe"]));
    assert!(line.contains("is neither a file"), "{line}");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_copied() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir(bench.path("host")).unwrap();
    ["host/b", "host/c"].iter().for_each(|file| fs::write(bench.path(file), file).unwrap());
    assert!(bench.run(&["add", "-a", "db", "-r", "host", "/data/x"]).status.success());
    // The lowest member alone has a name that nobody made by the array.
    fs::write(bench.path("m0/data/x/a"), "by hand").unwrap();
    let output = bench.run(&["retrieve", "-a", "db", "-r", "/data/x", "back"]);
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string());
    let said = format!(
        "cxlraid: /data/x/a: cannot be read: Input/output error: it is on {} but not on {}, {}; correct it, then copy again\n\
         cxlraid: /data/x: 1 name was left out or copied in part; correct what is said of each, then copy again with -T\n",
        members[0], members[1], members[2]
    );
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(1), said.as_str()));
    for name in ["b", "c"] {
        assert_eq!(fs::read(bench.path("back").join(name)).unwrap(), format!("host/{name}").as_bytes());
    }
    assert!(!bench.path("back/a").exists());
    // It is the failure itself where it was asked for by its name.
    let (status, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/x/a", "a"]));
    assert_eq!((status, format!("{line}\n").as_str()), (1, said.split_inclusive('\n').next().unwrap()));
}

#[test]
fn a_copy_goes_on_with_t_and_not_from_or_to_members() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), "content").unwrap();
    std::os::unix::fs::symlink("file", bench.path("tree/link")).unwrap();
    let ok = |arguments: &[&str]| assert!(bench.run(arguments).status.success(), "{arguments:?}");
    ok(&["add", "-a", "db", "-r", "tree", "/data/tree"]);
    fs::write(bench.path("tree/file"), "changed").unwrap();
    ok(&["add", "-a", "db", "-rT", "tree", "/data/tree"]);
    for _ in 0..2 {
        ok(&["retrieve", "-a", "db", "-rT", "/data/tree", "back"]);
    }
    assert_eq!(fs::read(bench.path("back/file")).unwrap(), b"changed");
    assert_eq!(fs::read_dir(bench.path("back")).unwrap().count(), 2);

    let member = bench.path("m1").display().to_string();
    for command in [
        &["add", "-a", "db", "m1/data/tree/file", "/data/tree/file"],
        &["retrieve", "-a", "db", "/data/tree/file", "m1/data/tree/file"],
    ] {
        let (status, line) = refused(&bench.run(command));
        let expected =
            format!("{member}/data/tree/file: lies in {member}, a member or a mount of this array; give a path outside of it");
        assert_eq!((status, line), (1, format!("cxlraid: {expected}")), "{command:?}");
    }
    // A member in a tree that is copied is left out.
    let output = bench.run(&["add", "-a", "db", "-r", ".", "/data/all"]);
    assert_eq!(output.status.code(), Some(1));
    for member in ["m0", "m1", "m2"] {
        let line = format!("{}: is a member or a mount of this array, and is left out; ", bench.path(member).display());
        assert!(err(&output).contains(&line), "{}", err(&output));
    }
    ok(&["retrieve", "-a", "db", "/data/all/tree/file", "again"]);
    assert_eq!(fs::read(bench.path("again")).unwrap(), b"changed");
    assert_eq!(bench.run(&["scrub", "db"]).status.code(), Some(0));
}

#[test]
fn attributes_that_are_not_copied_are_told() {
    use sys::rustix::{
        fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, mknodat, setxattr},
        process::geteuid,
    };
    if !geteuid().is_root() {
        return; // Nobody else may set these attributes.
    }
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("program"), "content").unwrap();
    // CAP_NET_BIND_SERVICE, permitted and effective (capabilities(7), vfs_cap_data version 2).
    let capability: Vec<u8> = [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    setxattr(bench.path("program"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    let output = bench.run(&["add", "-a", "db", "program", "/data/program"]);
    let line = format!(
        "cxlraid: /data/program: warning: security.capability of {} is not copied; set it there if it is wanted\n",
        bench.path("program").display()
    );
    assert_eq!((output.status.code(), err(&output)), (Some(0), line));
    assert!(lgetxattr(bench.path("m0/data/program"), "security.capability", &mut [0; 100][..]).is_err());
    fs::create_dir(bench.path("tree")).unwrap();
    mknodat(CWD, bench.path("tree/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    setxattr(bench.path("tree/pipe"), "trusted.note", b"mine", XattrFlags::empty()).unwrap();
    let output = bench.run(&["add", "-a", "db", "-r", "tree", "/data/tree"]);
    let line = format!(
        "cxlraid: /data/tree/pipe: warning: trusted.note of {} is not copied; set it there if it is wanted\n",
        bench.path("tree/pipe").display()
    );
    assert_eq!((output.status.code(), err(&output)), (Some(0), line));
}

#[test]
fn a_file_that_is_lost_is_told_once_and_its_earlier_copy_stays() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("file"), vec![7; 3_000_000]).unwrap();
    assert!(bench.run(&["add", "-a", "db", "file", "/data/file"]).status.success());
    assert!(bench.run(&["stop", "db"]).status.success());
    for member in ["m0", "m1"] {
        fs::File::options().write(true).open(bench.path(member).join("data/file")).unwrap().set_len(500_000).unwrap();
    }
    let output = bench.run(&["retrieve", "-a", "db", "/data/file", "file"]);
    let told = err(&output);
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 3), "{told}");
    for member in ["m0", "m1"] {
        let line = format!("cxlraid: {}: is shorter than its file, ", bench.path(member).join("data/file").display());
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
    assert!(
        told.ends_with("cxlraid: /data/file: cannot be read: Input/output error; correct the cause, then copy again\n"),
        "{told}"
    );
    assert_eq!(fs::metadata(bench.path("file")).unwrap().len(), 3_000_000);
}

#[test]
fn files_are_not_used_by_command_and_library_in_one_process() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("file"), "content").unwrap();
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let add = |level: &str| {
        let mut command = bench.command(&["add", "-a", "db", "file", "/data/file"]);
        // The loader says that it has not found this library, and goes on.
        command.env("LD_PRELOAD", "/nowhere/libcxlraid.so").env("CXLRAID_LEVEL", level).env("CXLRAID_MOUNTS", &members);
        command.env("CXLRAID_PATHS", "/data").output().unwrap()
    };
    let output = add("5");
    let line = "cxlraid: db: the library of 'cxlraid run' uses the array in this process already, and the two would wait for each other; \
                say it outside of 'cxlraid run'\n";
    assert!(output.status.code() == Some(1) && err(&output).ends_with(line), "{}", err(&output));
    assert!(add("").status.success(), "the library serves no array");

    fs::create_dir(bench.path("other")).unwrap();
    let before = bench.run(&["status", "db"]);
    for (place, arguments) in [
        "scrub db",
        "scrub db --repair",
        "fail db m1",
        "remove db m1",
        "rebuild db",
        "rebuild db m1",
        "replace db m1 other",
        "mount db other",
        "mount --foreground db other",
        "stop db",
        "access db --mode 660",
        "assemble db --prefer m0",
        "journal add db internal",
        "journal remove db",
        "journal clear db --force",
        "journal replay db",
        "retrieve -a db /data/file back",
        "add -a db file /data/file",
    ]
    .iter()
    .enumerate()
    {
        let mut command = bench.command(&arguments.split(' ').collect::<Vec<_>>());
        command.env("LD_PRELOAD", "/nowhere/libcxlraid.so").env("CXLRAID_LEVEL", "5").env("CXLRAID_PATHS", "/data");
        // A member may have been replaced since the library began.
        let since = members.replace("/m2", "/earlier");
        command.env("CXLRAID_MOUNTS", if place % 2 == 0 { &members } else { &since }).env("CXLRAID_UUID", uuid(&bench));
        let output = command.output().unwrap();
        assert!(output.status.code() == Some(1) && err(&output).ends_with(line), "{arguments}: {}{}", out(&output), err(&output));
    }
    assert_eq!(out(&bench.run(&["status", "db"])), out(&before));
}

/// The UUID of the array called db.
fn uuid(bench: &Bench) -> String {
    let report = out(&bench.run(&["status", "db", "--json"]));
    let at = report.find("\"uuid\":").unwrap();
    report[at + 7..].split('"').nth(1).unwrap().to_owned()
}

/// What is wrong is the members, not the journal that lies on them: to give that up would lose what waits in it.
#[test]
fn older_copies_of_the_members_that_hold_the_journal_are_told_as_such() {
    let bench = Bench::new();
    let made = bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "internal", "m0", "m1", "m2"]);
    assert!(made.status.success(), "{}", err(&made));
    let done = |arguments: &[&str]| {
        let output = bench.run(arguments);
        assert!(output.status.success(), "{}", err(&output));
    };
    let rename = |from: &str, to: &str| fs::rename(bench.path(from), bench.path(to)).unwrap();
    fs::write(bench.path("file"), "content").unwrap();
    done(&["add", "-a", "db", "file", "/data/first"]);
    done(&["stop", "db"]);
    for member in ["m0", "m1"] {
        let copy = bench.path(&format!("{member}.copy"));
        assert!(Command::new("cp").arg("-a").args([bench.path(member), copy]).status().unwrap().success());
    }
    done(&["add", "-a", "db", "file", "/data/second"]);
    done(&["stop", "db"]);
    for member in ["m0", "m1"] {
        rename(member, &format!("{member}.used"));
        rename(&format!("{member}.copy"), member);
    }
    let [m0, m1] = ["m0", "m1"].map(|member| bench.path(member).display().to_string());
    let says = format!("2 of 3 members cannot be used ({m0} stale, {m1} stale), RAID 5 bears 1; put back the directories that");
    let status = out(&bench.run(&["status", "db"]));
    assert!(status.contains(&format!("no program can start: {says}")) && !status.contains("journal clear"), "{status}");
    assert!(status.contains("journal: internal, on members that cannot be used\n"), "{status}");
    for arguments in ["add -a db file /data/third", "journal replay db", "journal clear db --force"] {
        let (code, line) = refused(&bench.run(&arguments.split(' ').collect::<Vec<_>>()));
        assert!(code == 1 && line.contains(&says) && !line.contains("clear"), "{line}");
    }
    for member in ["m0", "m1"] {
        fs::remove_dir_all(bench.path(member)).unwrap();
        rename(&format!("{member}.used"), member);
    }
    done(&["retrieve", "-a", "db", "/data/second", "back"]);
    assert_eq!(fs::read(bench.path("back")).unwrap(), b"content");
}

/// A start says of a member why it is not used, as status does.
#[test]
fn a_start_gives_the_reason_that_status_gives() {
    let (bench, other) = (Bench::new(), Bench::new());
    assert!(bench.create().status.success() && other.create().status.success());
    fs::write(bench.path("file"), "content").unwrap();
    assert!(bench.run(&["add", "-a", "db", "file", "/data/file"]).status.success());
    let foreign = format!("belongs to array {}", uuid(&other));
    type Put<'a> = &'a dyn Fn(&Path);
    let reasons: [(Put<'_>, &str, &str); 6] = [
        (&|m1| fs::rename(other.path("m1"), m1).unwrap(), "is missing", &foreign),
        (&|_| (), "is missing", "no such directory"),
        (&|m1| fs::create_dir(m1).unwrap(), "is missing", "the directory is empty; is its device mounted?"),
        (&|m1| fs::create_dir_all(m1.join("data/x")).unwrap(), "is missing", "no superblock"),
        (
            &|m1| {
                assert!(Command::new("cp").arg("-a").args([bench.path("away"), m1.to_owned()]).status().unwrap().success());
                fs::write(m1.join(".cxlraid/superblock"), vec![0; 8192]).unwrap();
            },
            "is damaged",
            "not a cxlraid superblock (no magic); check that this path is a member, or create an array on it",
        ),
        (
            &|m1| {
                assert!(Command::new("cp").arg("-a").args([bench.path("away"), m1.to_owned()]).status().unwrap().success());
                fs::remove_dir_all(m1.join("data")).unwrap();
            },
            "is not used",
            "it was emptied: only .cxlraid is left",
        ),
    ];
    let m1 = bench.path("m1");
    assert!(bench.run(&["stop", "db"]).status.success());
    fs::rename(&m1, bench.path("away")).unwrap();
    for (put, state, reason) in reasons {
        put(&m1);
        let status = out(&bench.run(&["status", "db"]));
        let retrieved = bench.run(&["retrieve", "-a", "db", "/data/file", "back"]);
        let line = format!("cxlraid: {}: warning: member {state} ({reason}); the array is degraded\n", m1.display());
        assert!(status.contains(&format!(": {reason}\n")), "{reason}: {status}");
        assert!(retrieved.status.success() && err(&retrieved) == line, "{reason}: {}", err(&retrieved));
        assert!(bench.run(&["stop", "db"]).status.success());
        let _ = fs::remove_dir_all(&m1);
    }
}

#[test]
fn a_start_makes_an_array_of_empty_directories_unless_that_is_forbidden() {
    let bench = Bench::new();
    fs::write(bench.path("host"), "some").unwrap();
    let mounts = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let add = |may_create: Option<&str>| {
        let mut command = bench.command(&["add", "host", "/data/file"]);
        command.env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", &mounts).env("CXLRAID_PATHS", "/data");
        may_create.iter().for_each(|value| _ = command.env("CXLRAID_CREATE", value));
        command.output().unwrap()
    };
    assert!(refused(&add(Some("0"))).1.contains("set CXLRAID_CREATE=1 to make a new array"));
    assert_eq!(fs::read_dir(bench.path("m0")).unwrap().count(), 0);
    assert!(refused(&add(Some("perhaps"))).1.contains("neither 0 nor 1"));
    let made = add(None);
    assert!(made.status.success(), "{}", err(&made));
    // What is there is used.
    assert!(add(Some("0")).status.success());
    let others = ["m0", "m1"].map(|member| (bench.path(member), bench.path(&format!("{member}.off"))));
    for (member, away) in &others {
        fs::rename(member, away).unwrap();
        fs::create_dir(member).unwrap();
    }
    // One that is still there shows that the others are missing.
    assert!(refused(&add(Some("1"))).1.contains("2 of 3 members cannot be used"));
    others.iter().for_each(|(member, _)| assert_eq!(fs::read_dir(member).unwrap().count(), 0));
}

#[test]
fn a_path_that_is_added_to_an_array_is_made() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let file = bench.path("config/cxlraid/arrays/db.toml");
    let text = fs::read_to_string(&file).unwrap().replace("[\"/data\"]", "[\"/data\", \"/srv/more\"]");
    fs::write(&file, text).unwrap();
    fs::write(bench.path("host"), "content").unwrap();
    let added = bench.run(&["add", "-a", "db", "host", "/srv/more/deep/er/file"]);
    assert_eq!((added.status.code(), err(&added).as_str()), (Some(0), ""));
    for member in ["m0", "m1", "m2"] {
        assert!(bench.path(member).join("srv/more/deep/er/file").exists(), "{member}");
    }
    // Without a path for it, and outside of the array's: below the array's only path.
    let text = fs::read_to_string(&file).unwrap().replace("\"/data\", ", "");
    fs::write(&file, text).unwrap();
    assert_eq!(bench.run(&["add", "-a", "db", "host"]).status.code(), Some(0));
    let back = bench.run(&["retrieve", "-a", "db", "/srv/more/host", "not/yet/back"]);
    assert_eq!((back.status.code(), err(&back).as_str()), (Some(0), ""));
    assert_eq!(fs::read(bench.path("not/yet/back")).unwrap(), b"content");
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
}
