//! `cxlraid rebuild` and `cxlraid replace`: what an operator does after a member was lost, and what
//! they do when they are cut short.

mod bench;

use bench::{
    Bench, err,
    filled::{FILES, assert_bears, assert_whole, filled},
    out, refused,
};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

#[test]
fn a_new_device_in_a_members_place_is_rebuilt() {
    for lost in ["m0", "m1", "m2"] {
        let bench = filled();
        fs::remove_dir_all(bench.path(lost)).unwrap();
        fs::create_dir(bench.path(lost)).unwrap();
        assert_eq!(bench.run(&["status", "db"]).status.code(), Some(3));
        let rebuilt = bench.run(&["rebuild", "db"]);
        assert!(rebuilt.status.success(), "{}", err(&rebuilt));
        assert!(out(&rebuilt).contains(&format!("{lost} in sync; {FILES} files, ")), "{}", out(&rebuilt));
        let status = bench.run(&["status", "db"]);
        assert_eq!(status.status.code(), Some(0), "{}", out(&status));
        for missing in ["m0", "m1", "m2"] {
            assert_bears(&bench, missing);
        }
        assert!(out(&bench.run(&["rebuild", "db"])).contains("nothing to rebuild"));
    }
}

/// Superblocks have a member in sync until a change records its loss. `status` advises the rebuild
/// before, so it works before.
#[test]
fn a_member_whose_tables_are_lost_or_covered_is_rebuilt_before_a_change() {
    type Cover<'a> = &'a dyn Fn(&Path);
    let covers: [(&str, Cover<'_>); 4] = [
        ("inodes", &|_| ()),
        ("lanes", &|table| std::os::unix::fs::symlink("/etc/passwd", table).unwrap()),
        ("names", &|table| fs::create_dir(table).unwrap()),
        ("backings", &|table| assert!(Command::new("mkfifo").arg(table).status().unwrap().success())),
    ];
    for (name, cover) in covers {
        let bench = filled();
        let table = bench.path("m1/.cxlraid").join(name);
        fs::remove_file(&table).unwrap();
        cover(&table);
        let status = bench.run(&["status", "db"]);
        assert!(status.status.code() == Some(3) && out(&status).contains(&format!(": .cxlraid/{name} is ")), "{}", out(&status));
        let rebuilt = bench.run(&["rebuild", "db"]);
        assert!(rebuilt.status.success(), "{name}: {}", err(&rebuilt));
        assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0), "{name}");
        for missing in ["m0", "m2"] {
            assert_bears(&bench, missing);
        }
    }
}

#[test]
fn a_member_is_replaced_by_another_directory() {
    let bench = filled();
    fs::create_dir(bench.path("new")).unwrap();
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    for (new, expected) in [("m0", "given twice"), ("nowhere", "does not exist"), ("away2", "not empty")] {
        if new == "away2" {
            fs::create_dir(bench.path(new)).unwrap();
            fs::write(bench.path(new).join("file"), "somebody's").unwrap();
        }
        let (_, line) = refused(&bench.run(&["replace", "db", "m1", new]));
        assert!(line.contains(expected), "{line}");
    }
    assert_eq!(fs::read(bench.path("away2/file")).unwrap(), b"somebody's");
    let replaced = bench.run(&["replace", "db", "m1", "new"]);
    assert!(replaced.status.success(), "{}", err(&replaced));
    let status = bench.run(&["status", "db"]);
    assert!(status.status.code() == Some(0) && out(&status).contains("/new "), "{}", out(&status));
    assert_bears(&bench, "m0");
    // The old one has another member's place no more.
    fs::rename(bench.path("away"), bench.path("m1")).unwrap();
    assert_bears(&bench, "m2");
    let (_, line) = refused(&bench.run(&["replace", "db", "m1", "m1"]));
    assert!(line.contains("not a member of the array"), "{line}");
}

#[test]
fn a_member_in_use_or_unknown_is_not_rebuilt() {
    let bench = filled();
    let (_, line) = refused(&bench.run(&["rebuild", "db", "m1"]));
    assert!(line.contains("is in sync"), "{line}");
    let (_, line) = refused(&bench.run(&["rebuild", "db", "elsewhere"]));
    assert!(line.contains("not a member of the array"), "{line}");
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let (_, line) = refused(&bench.run(&["rebuild", "db"]));
    assert!(line.contains("is missing: no such directory"), "{line}");
}

/// Kills the command at instants further and further on; each time the array works, and in the end
/// it is whole.
#[test]
fn a_rebuild_that_is_killed_goes_on_when_it_is_given_again() {
    let bench = filled();
    let mut killed = 0;
    for round in 0..60u64 {
        if round % 20 == 0 {
            let _ = fs::remove_dir_all(bench.path("m1"));
            fs::create_dir(bench.path("m1")).unwrap();
        }
        let mut command = bench.command(&["rebuild", "db"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(300 * (round % 20) + 500));
        let _ = child.kill();
        killed += usize::from(!child.wait().unwrap().success());
        if round % 7 == 3 {
            assert_whole(&bench);
        }
    }
    assert!(killed > 20, "{killed} of 60 were killed in time");
    let rebuilt = bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    for missing in ["m0", "m1", "m2"] {
        assert_bears(&bench, missing);
    }
}

#[test]
fn a_member_whose_directory_is_not_there_is_said_to_be_missing() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    for arguments in [&["rebuild", "db"][..], &["rebuild", "db", "m1"]] {
        let (status, line) = refused(&bench.run(arguments));
        let todo = "mount it, or make the directory; 'cxlraid replace' puts another in its place";
        assert!(status == 1 && line.ends_with(&format!("/m1: is missing: no such directory; {todo}")), "{line}");
    }
}
