//! `cxlraid policy`: which copies of an array's files are read.

mod bench;

use bench::turned::{FILE_COUNT, assert_fine, fill_and_turn, read_right};
use bench::{Bench, err, out, refused};
use std::{fs, process::Output};

const POLICIES: [&str; 3] = ["round-robin", "local", "latency"];

/// Directories for so many members.
fn members(bench: &Bench, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|index| format!("m{index}")).collect();
    names.iter().filter(|name| !bench.path(name).exists()).for_each(|name| fs::create_dir(bench.path(name)).unwrap());
    names
}

fn create(bench: &Bench, level: &str, count: usize, options: &[&str]) -> Output {
    let names = members(bench, count);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    bench.run(&[&["create", "db", "--level", level, "--chunk", "4K", "--at", "/data"], options, &names].concat())
}

#[test]
fn a_policy_is_on_record_and_can_be_changed() {
    let bench = Bench::new();
    assert_fine(&create(&bench, "1", 2, &["--read-policy", "latency"]));
    let shown = |policy: &str, expected: &str| {
        assert!(out(&bench.run(&["policy", "db"])).starts_with(&format!("db: read {policy}\n")));
        assert!(out(&bench.run(&["status", "db", "--json"])).contains(&format!("\"read_policy\": \"{policy}\"")));
        assert!(out(&bench.run(&["info", "db"])).contains(&format!("Read Policy: {policy}\n")));
        let examined = out(&bench.run(&["examine", "m1"]));
        assert!(examined.contains(&format!("Read Policy: {policy}\n")), "{examined}");
        let status = out(&bench.run(&["status", "db"]));
        assert!(if expected.is_empty() { !status.contains("policy") } else { status.contains(expected) }, "{status}");
    };
    shown("latency", "  read policy: latency\n");
    let told = out(&bench.run(&["policy", "db"]));
    assert!(told.ends_with("/m1  keeps 100% of its turns, not timed yet\n"), "{told}");
    assert_fine(&bench.run(&["stop", "db"]));
    shown("latency", "  read policy: latency\n");
    assert_eq!(out(&bench.run(&["policy", "db", "--read", "local"])), "db: read local\n");
    shown("local", "  read policy: local\n");
    assert_fine(&bench.run(&["stop", "db"]));
    shown("local", "  read policy: local\n");
    // A member that is made anew says the same.
    assert_fine(&bench.run(&["fail", "db", "m1"]));
    assert_fine(&bench.run(&["rebuild", "db", "m1"]));
    shown("local", "  read policy: local\n");
    assert_eq!(out(&bench.run(&["policy", "db", "--read", "round-robin"])), "db: read round-robin\n");
    shown("round-robin", "");
}

#[test]
fn all_copies_are_read_whatever_the_policy_and_those_that_are_written_mostly_only_if_they_must_be() {
    for policy in POLICIES {
        for level in ["1", "10"] {
            let bench = Bench::new();
            assert_fine(&create(&bench, level, if level == "1" { 2 } else { 4 }, &["--read-policy", policy]));
            fill_and_turn(&bench, "m1");
            // On one node of memory, and where nothing tells members apart, copies take turns.
            let right = read_right(&bench);
            assert!(right > 0 && right < FILE_COUNT, "RAID {level}, {policy}: both copies are read from: {right}");
            assert_fine(&bench.run(&["member", "db", "m1", "--write-mostly", "on"]));
            assert_eq!(read_right(&bench), FILE_COUNT, "RAID {level}, {policy}");
            assert!(out(&bench.run(&["examine", "m0"])).contains("Slot 1: in sync, write-mostly, "));
            assert_fine(&bench.run(&["fail", "db", "m0"]));
            assert_eq!(read_right(&bench), 0, "RAID {level}, {policy}: with the other copy gone");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = Bench::new();
    let (status, line) = refused(&create(&bench, "5", 3, &["--read-policy", "latency"]));
    assert!(status == 2 && line.contains("RAID 5 keeps no copies to read from instead; levels 1, 01 and 10 have a read policy"));
    assert!(!bench.path("m1/.cxlraid").exists());
    assert_fine(&create(&bench, "5", 3, &[]));
    let (status, line) = refused(&bench.run(&["policy", "db", "--read", "local"]));
    assert!(status == 2 && line.contains("RAID 5 keeps no copies"), "{line}");
    assert!(out(&bench.run(&["status", "db", "--json"])).contains("\"read_policy\": null"));
    assert!(!out(&bench.run(&["examine", "m1"])).contains("Policy"));
    let odd = bench.run(&["policy", "db", "--read", "fastest"]);
    assert!(odd.status.code() == Some(2) && err(&odd).contains("possible values: round-robin, local, latency"), "{}", err(&odd));
}
