//! Whom an array is open to, by real users: those of its group work on it, others are told why they
//! may not.

mod bench;

use bench::{Bench, err, out, refused};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    process::{Command, Output},
};

const GROUP: u32 = 60010;
const ALICE: (u32, u32) = (60001, GROUP);
const BOB: (u32, u32) = (60002, GROUP);
const OUTSIDER: (u32, u32) = (60003, 60003);

/// The command as another user with one group. Without root's rights nobody can be somebody else.
fn run_as(bench: &Bench, (user, group): (u32, u32), arguments: &[&str]) -> Output {
    // The build's directory may lie below one that only its owner may search.
    let program = bench.path("cxlraid");
    if !program.exists() {
        // A copy made here could not be started while a child that another test starts has the
        // descriptor that wrote it.
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_cxlraid")).arg(&program).status().unwrap().success());
    }
    let mut command = bench.program(&program, arguments);
    command.env("XDG_CONFIG_HOME", bench.path("none")).uid(user).gid(group).output().unwrap()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A bench that others may look into, with an array of the group whose name all users see.
fn open_to_group() -> Bench {
    let bench = Bench::new();
    for path in [bench.home.path().to_owned(), bench.path("m0"), bench.path("m1"), bench.path("m2")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let made = bench.run(&[
        "create",
        "db",
        "--system",
        "--level",
        "5",
        "--group",
        "60010",
        "--journal",
        "internal",
        "--at",
        "/data",
        "m0",
        "m1",
        "m2",
    ]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    bench
}

#[test]
fn a_group_works_on_its_array_and_others_are_told() {
    if !is_root() {
        return;
    }
    let bench = open_to_group();
    for file in ["superblock", "inodes", "lanes", "names", "backings", "journal"] {
        let metadata = fs::metadata(bench.path("m1/.cxlraid").join(file)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (0, GROUP, 0o660), "{file}");
    }
    fs::write(bench.path("file"), "content").unwrap();
    bench.run(&["stop", "db"]);
    // Each makes the segment once, for the others too.
    for first in [ALICE, BOB, (0, 0)] {
        let path = format!("/data/by{}", first.0);
        for (user, arguments) in
            [(first, ["add", "-a", "db", "file", &path]), (BOB, ["retrieve", "-a", "db", &path, "/dev/null"])]
        {
            let output = run_as(&bench, user, &arguments);
            assert!(arguments[0] == "retrieve" || output.status.success(), "{}", err(&output));
        }
        for user in [ALICE, BOB, (0, 0)] {
            let status = run_as(&bench, user, &["status", "db"]);
            assert!(status.status.success() && out(&status).starts_with("db: in sync"), "{}{}", out(&status), err(&status));
        }
        assert!(run_as(&bench, first, &["stop", "db"]).status.success());
    }
    let commands: &[&[&str]] = &[
        &["status"],
        &["status", "db", "--json"],
        &["info", "db"],
        &["examine", "m0"],
        &["add", "-a", "db", "file", "/data/x"],
        &["retrieve", "-a", "db", "/data/by0", "x"],
        &["journal", "show", "db"],
        &["journal", "replay", "db"],
        &["journal", "clear", "db", "--force"],
        &["stop", "db"],
        &["assemble", "db", "--prefer", "m0"],
        &["access", "db"],
    ];
    for arguments in commands {
        let output = run_as(&bench, OUTSIDER, arguments);
        let text = err(&output);
        assert!(
            text.lines().count() == 1
                && text.contains("you may not use this array: it is open to group 60010 and its owner root; "),
            "{arguments:?}: {text}"
        );
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
}

/// A mount whose directory was never given to the array's owner: that member goes out by name, and
/// the array works without it.
#[test]
fn a_members_directory_that_is_closed_to_the_owner_is_a_members_fault() {
    if !is_root() {
        return;
    }
    for mode in [0o700, 0o750] {
        let bench = open_to_group();
        assert!(bench.run(&["access", "db", "--owner", "60003", "--group", "60003", "--mode", "0600"]).status.success());
        fs::write(bench.path("file"), "content").unwrap();
        let close = |mode| fs::set_permissions(bench.path("m1"), fs::Permissions::from_mode(mode)).unwrap();
        // The directory of programs' files belongs to the owner too.
        for member in ["m0", "m1", "m2"] {
            std::os::unix::fs::chown(bench.path(member).join("data"), Some(OUTSIDER.0), Some(OUTSIDER.1)).unwrap();
        }
        close(mode);
        let status = run_as(&bench, OUTSIDER, &["status", "db"]);
        assert_eq!(status.status.code(), Some(3), "{}{}", out(&status), err(&status));
        assert!(out(&status).contains("m1  failed: Permission denied"), "{}", out(&status));
        // Another user than the owner is told whom the array is open to.
        let (_, line) = refused(&run_as(&bench, ALICE, &["status", "db"]));
        assert!(line.contains("you may not use this array: it is open to user "), "{line}");
        let added = run_as(&bench, OUTSIDER, &["add", "-a", "db", "file", "/data/file"]);
        assert!(added.status.success() && err(&added).contains("m1"), "{}", err(&added));
        let there = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(there.path(), Some(OUTSIDER.0), Some(OUTSIDER.1)).unwrap();
        let copy = there.path().join("copy");
        let got = run_as(&bench, OUTSIDER, &["retrieve", "-a", "db", "/data/file", copy.to_str().unwrap()]);
        assert!(got.status.success() && fs::read(&copy).unwrap() == b"content", "{}", err(&got));
        close(0o755);
        let status = run_as(&bench, OUTSIDER, &["status", "db"]);
        assert!(out(&status).contains("m1  failed, volatile: taken out of use"), "{}", out(&status));
    }
}

#[test]
fn an_array_is_opened_and_closed() {
    if !is_root() {
        return;
    }
    let bench = open_to_group();
    let (status, line) = refused(&run_as(&bench, ALICE, &["access", "db", "--mode", "0666"]));
    assert!(status == 1 && line.contains("only its owner and root may open it to others"), "{line}");
    assert_eq!(out(&run_as(&bench, ALICE, &["access", "db"])), "db: open to group 60010 and its owner root\n");

    assert_eq!(bench.run(&["access", "db", "--mode", "0600"]).status.code(), Some(0));
    let (_, line) = refused(&run_as(&bench, ALICE, &["status", "db"]));
    assert!(line.contains("it is open to user root"), "{line}");
    let all = bench.run(&["access", "db", "--mode", "0666"]);
    assert!(out(&all).starts_with("db: open to everybody\n"), "{}{}", out(&all), err(&all));
    // Also who is of no group of it makes the segment that all use.
    for user in [OUTSIDER, ALICE] {
        let output = run_as(&bench, user, &["retrieve", "-a", "db", "/data/none", "x"]);
        assert!(
            err(&output).contains("No such file or directory") || err(&output).contains("Permission denied"),
            "{}",
            err(&output)
        );
        assert!(!err(&output).contains("segment"), "{}", err(&output));
    }
    assert_eq!(bench.run(&["access", "db", "--owner", "60001", "--group", "60001", "--mode", "0600"]).status.code(), Some(0));
    for file in ["superblock", "journal"] {
        let metadata = fs::metadata(bench.path("m0/.cxlraid").join(file)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (60001, 60001, 0o600), "{file}");
    }
    assert!(run_as(&bench, (60001, 60001), &["status", "db"]).status.success());
    let (_, line) = refused(&run_as(&bench, (60001, 60001), &["access", "db", "--owner", "0"]));
    assert!(line.contains("only root may give an array to another user"), "{line}");
    assert!(run_as(&bench, (60001, 60001), &["access", "db", "--group", "60001"]).status.success());
    assert!(bench.run(&["status", "db"]).status.success());
    assert_eq!(refused(&bench.run(&["access", "db", "--mode", "0640"])).0, 2);
    assert_eq!(refused(&bench.run(&["access", "db", "--owner", "nobody-of-this-name"])).0, 2);
}
