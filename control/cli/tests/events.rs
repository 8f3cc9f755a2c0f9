//! `cxlraid events`: what happens to an array is logged once, by commands and by programs, and
//! shown and followed; `status` has the last scrub.

mod bench;

use bench::{Bench, err, out, refused};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

#[track_caller]
fn assert_exit(output: &Output, expected: i32) {
    assert_eq!(output.status.code(), Some(expected), "{}{}", out(output), err(output));
}

fn filled() -> Bench {
    let bench = Bench::new();
    assert_exit(&bench.create(), 0);
    fs::write(bench.path("file"), vec![7; 300_000]).unwrap();
    assert_exit(&bench.run(&["add", "--array", "db", "file", "/data/file"]), 0);
    bench
}

/// The one log that there is.
fn log(bench: &Bench) -> PathBuf {
    let mut logs = fs::read_dir(bench.path("state/cxlraid")).unwrap().map(|entry| entry.unwrap().path());
    let log = logs.next().unwrap();
    assert_eq!(logs.next(), None);
    log
}

/// Each event with its member and count.
fn logged(bench: &Bench) -> Vec<(String, Option<String>, Option<u64>)> {
    let text = out(&bench.run(&["events", "db", "--json"]));
    assert_eq!(text, fs::read_to_string(log(bench)).unwrap());
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["ns"].as_u64().unwrap() > 1 << 60 && line["array"] == "db" && line["uuid"].as_str().unwrap().len() == 36);
        let member = line["member"].as_str().map(|member| member.rsplit('/').next().unwrap().to_owned());
        (line["event"].as_str().unwrap().to_owned(), member, line["count"].as_u64())
    };
    text.lines().map(line).collect()
}

fn event(name: &str, member: Option<&str>, count: Option<u64>) -> (String, Option<String>, Option<u64>) {
    (name.to_owned(), member.map(str::to_owned), count)
}

#[test]
fn what_happens_is_logged_in_order() {
    let bench = filled();
    assert!(!bench.path("state").exists(), "nothing has happened");
    assert_eq!(out(&bench.run(&["events", "db"])), "");
    assert_exit(&bench.run(&["scrub", "db"]), 0);
    assert_exit(&bench.run(&["scrub", "db", "/data/file"]), 0);
    assert_exit(&bench.run(&["stop", "db"]), 0);
    let member = fs::File::options().read(true).write(true).open(bench.path("m1/data/file")).unwrap();
    member.write_all_at(&[1, 2, 3], 5000).unwrap();
    assert_exit(&bench.run(&["scrub", "db", "--repair"]), 3);
    assert_exit(&bench.run(&["fail", "db", "m2"]), 0);
    assert_exit(&bench.run(&["remove", "db", "m2"]), 0);
    assert_exit(&bench.run(&["stop", "db"]), 0);
    assert_exit(&bench.run(&["rebuild", "db", "m2"]), 0);
    let mismatch = |member| event("Mismatch", member, None);
    let expected = [
        event("ScrubStarted", None, None),
        event("ScrubFinished", None, Some(0)),
        event("ScrubStarted", None, None),
        // The time of the file on the member, and its bytes.
        mismatch(Some("m1")),
        mismatch(None),
        event("ScrubFinished", None, Some(2)),
        event("Fail", Some("m2"), None),
        event("Removed", Some("m2"), None),
        event("RebuildStarted", Some("m2"), Some(1)),
        event("RebuildFinished", Some("m2"), Some(1)),
    ];
    let found = logged(&bench);
    let without_time: Vec<_> = found.iter().filter(|found| **found != mismatch(Some("m1"))).cloned().collect();
    let expected: Vec<_> = expected.into_iter().filter(|event| *event != mismatch(Some("m1"))).collect();
    // Whether the hand that changed the byte is seen by its time depends on how long ago the file
    // was made.
    let is_like = |a: &[(String, Option<String>, Option<u64>)], b: &[(String, Option<String>, Option<u64>)]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (&a.0, &a.1) == (&b.0, &b.1))
    };
    assert!(is_like(&without_time, &expected), "{found:?}");
    let text = out(&bench.run(&["events"]));
    assert!(
        text.lines().any(|line| line.contains("Z db Fail ") && line.ends_with("/m2: member was taken out of use by hand")),
        "{text}"
    );
    let status = out(&bench.run(&["status", "db"]));
    assert!(status.contains("  last scrub: 20") && status.contains(", repair: something does not fit, "), "{status}");
    let json = out(&bench.run(&["status", "db", "--json"]));
    assert!(json.contains("\"last_scrub\": {") && json.contains("\"result\": \"repair: something does not fit\""), "{json}");
}

#[test]
fn healed_tables_are_logged() {
    let bench = filled();
    assert_exit(&bench.run(&["stop", "db"]), 0);
    let inodes = fs::File::options().read(true).write(true).open(bench.path("m1/.cxlraid/inodes")).unwrap();
    let mut byte = [0];
    inodes.read_exact_at(&mut byte, 4096 + 8).unwrap();
    inodes.write_all_at(&[byte[0] ^ 1], 4096 + 8).unwrap();
    // The first use while this is so: it holds the array, so that the scrub's own start heals
    // nothing.
    assert_exit(&bench.run(&["scrub", "db"]), 3);
    let found: Vec<String> = logged(&bench).into_iter().map(|(event, ..)| event).collect();
    assert!(found.contains(&"Mismatch".to_owned()) && found.contains(&"ScrubFinished".to_owned()), "{found:?}");
}

#[test]
fn events_are_followed() {
    let bench = filled();
    let mut follow = bench.command(&["events", "db", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        assert!(lines.next().unwrap().unwrap().contains(" db ScrubStarted: check"));
        assert!(lines.next().unwrap().unwrap().ends_with(" db ScrubFinished: check: everything fits (0)"));
    }
    Command::new("kill").args(["-TERM", &follow.id().to_string()]).status().unwrap();
    assert!(lines.next().is_none());
    assert!(follow.wait().unwrap().success());
}

#[test]
fn a_log_that_cannot_be_written_keeps_nobody_from_anything() {
    let bench = filled();
    fs::write(bench.path("state"), "no directory").unwrap();
    let scrubbed = bench.run(&["scrub", "db"]);
    assert_exit(&scrubbed, 0);
    assert!(
        err(&scrubbed).contains("warning: events are not logged") && err(&scrubbed).lines().count() == 1,
        "{}",
        err(&scrubbed)
    );
    fs::remove_file(bench.path("state")).unwrap();
    // A log that somebody has led elsewhere is not followed.
    assert_exit(&bench.run(&["scrub", "db"]), 0);
    let log = log(&bench);
    fs::remove_file(&log).unwrap();
    fs::write(bench.path("victim"), "mine").unwrap();
    std::os::unix::fs::symlink(bench.path("victim"), &log).unwrap();
    assert_exit(&bench.run(&["scrub", "db"]), 0);
    assert_eq!(fs::read_to_string(bench.path("victim")).unwrap(), "mine");
    assert_eq!(out(&bench.run(&["events", "db"])), "");
    // What is no line of a log is passed over.
    fs::remove_file(&log).unwrap();
    fs::write(&log, b"\xff\n{\"ns\":-1}\n{}\n[1,2\n\n{\"ns\":1,\"event\":\"Fail\"").unwrap();
    assert_eq!(out(&bench.run(&["events", "db"])), "");
    assert_exit(&bench.run(&["status", "db"]), 0);
    let (status, line) = refused(&bench.run(&["events", "nobody"]));
    assert!(status == 1 && line.contains("no array has this name"), "{line}");
}
