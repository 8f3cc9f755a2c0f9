//! Several names of one array, and paths that were right once: the member that has a place is not put
//! out by who still names the one before it.

mod bench;

use bench::{
    Bench, err,
    library::{library, on_array},
    out, refused, snapshot,
};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Output};

/// An array called db with a file, which has a second name, db2.
fn with_two_names() -> Bench {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    put(&bench, "db", "first");
    assert_fine(&bench.run(&["create", "db2", "--level", "5", "--at", "/data", "m0", "m1", "m2"]));
    ["new", "spare"].iter().for_each(|name| fs::create_dir(bench.path(name)).unwrap());
    bench
}

#[track_caller]
fn assert_fine(output: &Output) {
    assert!(output.status.success(), "{}{}", out(output), err(output));
}

/// Stores a file in the array that a name has, and ends the use.
#[track_caller]
fn put(bench: &Bench, name: &str, file: &str) {
    fs::write(bench.path(file), file.repeat(20_000)).unwrap();
    assert_fine(&bench.run(&["add", "--array", name, file, &format!("/data/{file}")]));
    assert_fine(&bench.run(&["stop", name]));
}

fn file_of(bench: &Bench, name: &str) -> String {
    fs::read_to_string(bench.path("config/cxlraid/arrays").join(format!("{name}.toml"))).unwrap()
}

fn write_file_of(bench: &Bench, name: &str, text: &str) {
    fs::write(bench.path("config/cxlraid/arrays").join(format!("{name}.toml")), text).unwrap();
}

#[track_caller]
fn assert_whole(bench: &Bench, name: &str) {
    let status = bench.run(&["status", name]);
    assert_eq!(status.status.code(), Some(0), "{name}: {}{}", out(&status), err(&status));
}

fn superblocks(bench: &Bench) -> Vec<Vec<u8>> {
    ["m0", "m1", "m2", "new"].iter().map(|member| fs::read(bench.path(member).join(".cxlraid/superblock")).unwrap()).collect()
}

#[test]
fn a_replacement_is_known_by_all_names() {
    let bench = with_two_names();
    // A third one has the members by other paths.
    std::os::unix::fs::symlink(bench.path("m1"), bench.path("by-link")).unwrap();
    assert_fine(&bench.run(&["create", "db3", "--level", "5", "--at", "/data", "m0", "by-link", "m2"]));
    let replaced = bench.run(&["replace", "db", "m1", "new"]);
    assert_fine(&replaced);
    for name in ["db", "db2", "db3"] {
        let text = file_of(&bench, name);
        assert!(text.contains("/new\"") && !text.contains("/m1\"") && !text.contains("/by-link\""), "{name}: {text}");
        put(&bench, name, name);
        assert_whole(&bench, name);
    }
}

#[test]
fn a_lost_members_replacement_and_a_spare_are_known_by_all_names() {
    let bench = with_two_names();
    assert_fine(&bench.run(&["add", "db2", "--spare", "spare"]));
    assert!(file_of(&bench, "db").contains("/spare"));
    // Another name gets the spares that the array has.
    assert_fine(&bench.run(&["create", "db3", "--level", "5", "--at", "/data", "m0", "m1", "m2"]));
    assert!(file_of(&bench, "db3").contains("/spare"));
    assert_fine(&bench.run(&["fail", "db", "m1"]));
    assert_fine(&bench.run(&["rebuild", "db", "--spares"]));
    for name in ["db", "db2", "db3"] {
        let text = file_of(&bench, name);
        assert!(text.contains("/m0\"") && text.contains("/spare\"") && !text.contains("/m1\""), "{name}: {text}");
        assert!(!text.contains("spares"), "{name}: {text}");
        put(&bench, name, name);
        assert_whole(&bench, name);
    }
    fs::create_dir(bench.path("other")).unwrap();
    assert_fine(&bench.run(&["add", "db", "--spare", "other"]));
    assert_fine(&bench.run(&["remove", "db2", "other"]));
    assert!(!file_of(&bench, "db").contains("/other") && !file_of(&bench, "db3").contains("/other"));
}

/// The lists that are out of date come from a file that could not be changed, or from an environment.
#[test]
fn paths_that_are_out_of_date_are_refused_and_change_nothing() {
    for is_lost in [false, true] {
        let bench = with_two_names();
        let old = file_of(&bench, "db2");
        if is_lost {
            assert_fine(&bench.run(&["fail", "db", "m1"]));
        }
        assert_fine(&bench.run(&["replace", "db", "m1", "new"]));
        assert_fine(&bench.run(&["stop", "db"]));
        let current = file_of(&bench, "db2");
        write_file_of(&bench, "db2", &old);
        let before = superblocks(&bench);
        let attempts: [&[&str]; 7] = [
            &["add", "--array", "db2", "first", "/data/second"],
            &["retrieve", "--array", "db2", "/data/first", "back"],
            &["rebuild", "db2"],
            &["rebuild", "db2", "m1"],
            &["re-add", "db2", "m1"],
            &["scrub", "db2"],
            &["fail", "db2", "m1"],
        ];
        for attempt in attempts {
            let (status, line) = refused(&bench.run(attempt));
            assert_eq!(status, 1, "{attempt:?}: {line}");
            assert!(
                line.contains("/m1: another directory has taken the place of this one in the array, "),
                "{attempt:?}: {line}"
            );
        }
        let ran = on_array(&bench, &["sh", "-c", "echo x > /data/y"]).arg("--").output().unwrap();
        assert_fine(&ran);
        assert_fine(&bench.run(&["stop", "db"]));
        let before_run = superblocks(&bench);
        assert!(before_run != before);
        let by_old = bench
            .program(Path::new("sh"), &["-c", "echo x > /data/z"])
            .env("LD_PRELOAD", library())
            .env("CXLRAID_LEVEL", "5")
            .env("CXLRAID_MOUNTS", ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":"))
            .env("CXLRAID_PATHS", "/data")
            .output()
            .unwrap();
        assert!(!by_old.status.success() && err(&by_old).contains("another directory has taken the place of this one"));
        let status = bench.run(&["status", "db2"]);
        assert_eq!(status.status.code(), Some(1), "{}", out(&status));
        assert!(superblocks(&bench) == before_run, "a list that is out of date has changed the members");
        assert_whole(&bench, "db");
        // The right list is taken again, and the directory that was replaced can have its place back.
        write_file_of(&bench, "db2", &current);
        put(&bench, "db2", "third");
        assert_whole(&bench, "db2");
        if is_lost {
            assert_fine(&bench.run(&["fail", "db", "new"]));
        }
        assert_fine(&bench.run(&["replace", "db", "new", "m1"]));
        assert_whole(&bench, "db");
        assert_whole(&bench, "db2");
        put(&bench, "db2", "fourth");
        assert_whole(&bench, "db");
    }
}

#[test]
fn a_name_that_cannot_be_changed_is_told() {
    let bench = with_two_names();
    let system = bench.path("system");
    fs::create_dir(&system).unwrap();
    // It lists other members.
    let odd = file_of(&bench, "db2").replace("/m1\"", "/elsewhere\"");
    write_file_of(&bench, "db2", &odd);
    fs::write(system.join("db.toml"), file_of(&bench, "db")).unwrap();
    fs::set_permissions(system.join("db.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    let replaced = bench.run(&["replace", "db", "m1", "new"]);
    assert_fine(&replaced);
    let said = err(&replaced);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("is a name of the array of db too")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("/db2.toml: is a name of the array of db too, and was not changed: it does not list "), "{said}");
    assert!(lines[0].contains("/new in the place of ") && lines[0].ends_with("/m1 there, or forget that name"), "{said}");
    assert_eq!(file_of(&bench, "db2"), odd);
    // A name that the user's own hides is changed, too.
    assert_eq!(fs::read_to_string(system.join("db.toml")).unwrap(), file_of(&bench, "db"));
    assert_eq!(snapshot(&system).len(), 1);
}
