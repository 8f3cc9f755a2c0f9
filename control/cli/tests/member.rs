//! `cxlraid member`: a member that is written mostly is read from only where no other one has a
//! copy.

mod bench;

use bench::turned::{FILE_COUNT, assert_fine, fill_and_turn, read_right};
use bench::{Bench, err, out, refused};
use std::fs;

/// An array called db with files; each byte of theirs on the member called `other` is turned over
/// by hand, so that a read tells where it came from.
fn turned(level: &str, members: &[&str], other: &str, options: &[&str]) -> Bench {
    let bench = Bench::new();
    for member in members.iter().filter(|member| !bench.path(member).exists()) {
        fs::create_dir(bench.path(member)).unwrap();
    }
    let create = ["create", "db", "--level", level, "--chunk", "4K", "--at", "/data"];
    assert_fine(&bench.run(&[&create, options, members].concat()));
    fill_and_turn(&bench, other);
    bench
}

#[test]
fn a_member_that_is_written_mostly_is_read_from_only_where_it_must_be() {
    let bench = turned("1", &["m0", "m1"], "m1", &[]);
    let right = read_right(&bench);
    assert!(right > 0 && right < FILE_COUNT, "both members are read from: {right}");
    let on = bench.run(&["member", "db", "m1", "--write-mostly", "on"]);
    assert_fine(&on);
    assert!(out(&on).ends_with("/m1: write-mostly on\n"), "{}", out(&on));
    assert_eq!(read_right(&bench), FILE_COUNT);
    // Also by the next use of the array.
    assert_fine(&bench.run(&["stop", "db"]));
    assert_eq!(read_right(&bench), FILE_COUNT);
    let status = bench.run(&["status", "db"]);
    assert!(out(&status).contains("/m1  in sync, volatile, write-mostly\n"), "{}", out(&status));
    assert!(out(&bench.run(&["status", "db", "--json"])).contains("\"write_mostly\": true"));
    assert!(out(&bench.run(&["member", "db", "m0"])).ends_with("/m0: write-mostly off\n"));
    // It is read from where no other member has a copy.
    assert_fine(&bench.run(&["fail", "db", "m0"]));
    assert_eq!(read_right(&bench), 0);
}

#[test]
fn it_is_read_from_again_when_it_is_no_longer_so() {
    for (level, members) in [("1", &["m0", "m1"][..]), ("10", &["m0", "m1", "m2", "m3"]), ("01", &["m0", "m1", "m2", "m3"])] {
        for other in members {
            let bench = turned(level, members, other, &["--write-mostly", other]);
            assert_eq!(read_right(&bench), FILE_COUNT, "RAID {level}, {other}");
            assert_fine(&bench.run(&["member", "db", other, "--write-mostly", "off"]));
            assert!(read_right(&bench) < FILE_COUNT, "RAID {level}, {other}");
        }
    }
}

#[test]
fn a_member_that_is_made_anew_is_still_written_mostly() {
    let bench = turned("1", &["m0", "m1"], "m1", &["--write-mostly", "m1"]);
    assert_fine(&bench.run(&["fail", "db", "m1"]));
    assert_fine(&bench.run(&["rebuild", "db", "m1"]));
    assert!(out(&bench.run(&["member", "db", "m1"])).ends_with("/m1: write-mostly on\n"));
    let scrubbed = bench.run(&["scrub", "db"]);
    assert_fine(&scrubbed);
    // Its place keeps that also for another directory.
    assert_fine(&bench.run(&["fail", "db", "m1"]));
    fs::create_dir(bench.path("m9")).unwrap();
    assert_fine(&bench.run(&["replace", "db", "m1", "m9"]));
    assert!(out(&bench.run(&["member", "db", "m9"])).ends_with("/m9: write-mostly on\n"));
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = Bench::new();
    let members = ["m0", "m1", "m2"];
    for member in members.iter().filter(|member| !bench.path(member).exists()) {
        fs::create_dir(bench.path(member)).unwrap();
    }
    let create = |level: &str, mostly: &str| {
        let options = ["create", "db", "--level", level, "--at", "/data", "--write-mostly", mostly];
        bench.run(&[&options[..], &members].concat())
    };
    for (output, expected) in [
        (
            create("5", "m1"),
            "RAID 5 keeps no copies to read from instead; levels 1, 01 and 10 have members that are written mostly",
        ),
        (create("1", "m7"), "not a member of the array; name one of the members that are given"),
    ] {
        let (status, line) = refused(&output);
        assert!(status == 2 && line.contains(expected), "{line}");
        assert!(!bench.path("m1/.cxlraid").exists());
    }
    assert_fine(&bench.run(&[&["create", "db", "--level", "5", "--at", "/data"][..], &members].concat()));
    for (arguments, status, expected) in [
        (&["member", "db", "m1", "--write-mostly", "on"][..], 2, "RAID 5 keeps no copies to read from instead"),
        (&["member", "db", "m7"], 1, "not a member of the array; 'cxlraid status' lists its members"),
        (&["member", "nobody", "m1"], 1, "no array has this name"),
    ] {
        let (found, line) = refused(&bench.run(arguments));
        assert!(found == status && line.contains(expected), "{line}");
    }
    let odd = bench.run(&["member", "db", "m1", "--write-mostly", "perhaps"]);
    assert!(odd.status.code() == Some(2) && err(&odd).contains("possible values: on, off"), "{}", err(&odd));
}
