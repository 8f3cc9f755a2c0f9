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

const RULES: &str = "\
[[rule]]
name = \"scratch\"
match = \"**/*.o\"
level = 1
[[rule]]
under = \"/data/films\"
level = 4
chunk = \"64K\"
";

fn write_rules(bench: &Bench, text: &str) {
    fs::write(bench.path("rules.toml"), text).unwrap();
}

#[test]
fn rules_are_checked_set_shown_explained_and_taken_away() {
    let bench = Bench::new();
    assert_fine(&create(&bench, "5", 3, &[]));
    assert_eq!(out(&bench.run(&["policy", "db", "show"])), "db: no rules; new files get RAID 5, chunk 4K\n");
    write_rules(&bench, RULES);
    let checked = out(&bench.run(&["policy", "db", "check", "rules.toml"]));
    let remark = "  rule 'scratch': files of RAID 1 would bear the loss of 2 members, but the array stops with more than 1\n";
    assert_eq!(checked, format!("rules.toml: 2 rules can be set\n{remark}"));
    assert_eq!(out(&bench.run(&["policy", "db", "show"])), "db: no rules; new files get RAID 5, chunk 4K\n");
    assert!(!bench.path("m0/.cxlraid/rules").exists());
    let set = out(&bench.run(&["policy", "db", "set", "rules.toml"]));
    assert_eq!(set, format!("db: 2 rules set; files that are there keep what they have\n{remark}"));
    assert_eq!(out(&bench.run(&["policy", "db", "show"])), RULES);
    assert!(out(&bench.run(&["examine", "m1"])).contains("File Levels: files may have their own"));
    assert!(out(&bench.run(&["policy", "db"])).ends_with("db: 2 rules for new files; 'cxlraid policy db show' prints them\n"));
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    assert_fine(&bench.run(&["add", "--array", "db", "x", "/data/a.o"]));
    assert_fine(&bench.run(&["add", "--array", "db", "x", "/data/x"]));
    let explained = out(&bench.run(&["policy", "db", "explain", "/data/a.o", "/data/x", "/data/films/b"]));
    assert_eq!(
        explained,
        "/data/a.o: rule 'scratch': a new file gets RAID 1; the file there has RAID 1\n\
         /data/x: no rule holds, the default: a new file gets RAID 5, chunk 4K; the file there has RAID 5, chunk 4K\n\
         /data/films/b: rule '2': a new file gets RAID 4, chunk 64K\n"
    );
    assert_eq!(out(&bench.run(&["policy", "db", "drift"])), "", "all files are as the rules say");
    // What is wrong changes nothing.
    write_rules(&bench, "[[rule]]\nlevel = 5\n[[rule]]\nlevel = 6\n");
    for action in ["check", "set"] {
        let (status, line) = refused(&bench.run(&["policy", "db", action, "rules.toml"]));
        assert_eq!(status, 2);
        assert!(line.starts_with("cxlraid: rules.toml:4: level 6 does not fit the array's members"), "{line}");
    }
    assert_eq!(refused(&bench.run(&["policy", "db", "set", "none.toml"])).0, 2);
    assert_eq!(refused(&bench.run(&["policy", "db", "--read", "local", "show"])).0, 2);
    assert_eq!(out(&bench.run(&["policy", "db", "show"])), RULES);
    assert_fine(&bench.run(&["stop", "db"]));
    assert_eq!(out(&bench.run(&["policy", "db", "show"])), RULES);
    let unset = out(&bench.run(&["policy", "db", "unset"]));
    assert!(unset.starts_with("db: no rules any more; new files get RAID 5, chunk 4K"), "{unset}");
    let explained = out(&bench.run(&["policy", "db", "explain", "/data/a.o"]));
    assert!(explained.ends_with("a new file gets RAID 5, chunk 4K; the file there has RAID 1\n"), "{explained}");
}

/// Files that were made by other rules are listed, by each of their names, and what the members would
/// hold is said before anything is moved.
#[test]
fn files_that_are_off_their_rules_are_listed_and_counted() {
    let bench = Bench::new();
    assert_fine(&create(&bench, "5", 3, &[]));
    let drift = || out(&bench.run(&["policy", "db", "drift"]));
    fs::write(bench.path("x"), vec![7; 1 << 20]).unwrap();
    for path in ["/data/a.o", "/data/b", "/data/films/c"] {
        assert_fine(&bench.run(&["add", "--array", "db", "x", path]));
    }
    assert_eq!(drift(), "");
    write_rules(&bench, RULES);
    let planned = out(&bench.run(&["policy", "db", "plan", "rules.toml"]));
    assert_eq!(
        planned,
        "rules.toml: 2 of 3 files have another level or chunk than these rules give\n  \
         each member holds 1.5 MiB of data and redundancy now, and would hold 2.0 MiB (holes of files counted in)\n"
    );
    assert!(out(&bench.run(&["policy", "db", "show"])).starts_with("db: no rules"), "a plan sets nothing");
    assert_fine(&bench.run(&["policy", "db", "set", "rules.toml"]));
    assert_eq!(
        drift(),
        "/data/a.o: has RAID 5, chunk 4K; rule 'scratch': a new file gets RAID 1\n\
         /data/films/c: has RAID 5, chunk 4K; rule '2': a new file gets RAID 4, chunk 64K\n"
    );
    // A file that is made anew is as the rules say.
    assert_fine(&bench.run(&["add", "--array", "db", "x", "/data/d.o"]));
    assert_eq!(drift().lines().count(), 2);
    write_rules(&bench, "[[rule]]\nlevel = 9\n");
    let (status, line) = refused(&bench.run(&["policy", "db", "plan", "rules.toml"]));
    assert!(status == 2 && line.starts_with("cxlraid: rules.toml:2: "), "{line}");
}

/// A member that is made anew, in its place or in another's, has the rules that the others have.
#[test]
fn rules_are_on_members_that_are_made_anew() {
    let bench = Bench::new();
    assert_fine(&create(&bench, "5", 3, &[]));
    write_rules(&bench, RULES);
    assert_fine(&bench.run(&["policy", "db", "set", "rules.toml"]));
    let expected = fs::read(bench.path("m0/.cxlraid/rules")).unwrap();
    fs::remove_dir_all(bench.path("m1")).unwrap();
    fs::create_dir(bench.path("m1")).unwrap();
    fs::create_dir(bench.path("new")).unwrap();
    assert_fine(&bench.run(&["rebuild", "db", "m1"]));
    assert_fine(&bench.run(&["replace", "db", "m2", "new"]));
    for member in ["m1", "new"] {
        assert_eq!(fs::read(bench.path(member).join(".cxlraid/rules")).unwrap(), expected, "{member}");
    }
}

#[test]
fn an_array_with_a_journal_takes_no_more_parity_than_the_journal_has_room_for() {
    let bench = Bench::new();
    assert_fine(&create(&bench, "5", 4, &["--journal", "internal"]));
    write_rules(&bench, "[[rule]]\nlevel = 6\n");
    let (status, line) = refused(&bench.run(&["policy", "db", "set", "rules.toml"]));
    assert!(status == 2 && line.contains("rules.toml:2: the array's journal has no room for the parity of RAID 6"), "{line}");
    write_rules(&bench, "[[rule]]\nlevel = 1\n");
    assert_fine(&bench.run(&["policy", "db", "set", "rules.toml"]));
}

#[test]
fn a_backed_array_takes_no_rules_and_rules_take_no_fast_members() {
    let bench = Bench::new();
    assert_fine(&create(&bench, "1", 2, &[]));
    assert_fine(&bench.run(&["member", "db", "m0", "--fast", "on"]));
    write_rules(&bench, "[[rule]]\nlevel = 1\n");
    let (status, line) = refused(&bench.run(&["policy", "db", "set", "rules.toml"]));
    assert!(status == 2 && line.contains("is a backed array"), "{line}");
    assert_fine(&bench.run(&["member", "db", "m0", "--fast", "off"]));
    assert_fine(&bench.run(&["policy", "db", "set", "rules.toml"]));
    let (status, line) = refused(&bench.run(&["member", "db", "m0", "--fast", "on"]));
    assert!(status == 2 && line.contains("has rules"), "{line}");
}
