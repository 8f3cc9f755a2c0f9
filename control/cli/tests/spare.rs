//! Spares: how they are given and taken away, and how they take the places of members that are out,
//! also when that is cut short.

mod bench;

use array::{Array, Config};
use bench::{
    Begun, Bench, err,
    filled::{FILES, assert_bears, assert_whole, filled, stop},
    out, refused, refused_after_warnings,
};
use std::{
    fs::{self, File},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

fn with_spare() -> Bench {
    let bench = filled();
    give(&bench, "spare");
    bench
}

#[track_caller]
fn give(bench: &Bench, name: &str) {
    fs::create_dir(bench.path(name)).unwrap();
    let added = bench.run(&["add", "db", "--spare", name]);
    assert!(added.status.success(), "{}", err(&added));
}

fn status(bench: &Bench) -> (Option<i32>, String) {
    let status = bench.run(&["status", "db"]);
    (status.status.code(), out(&status))
}

#[track_caller]
fn await_in_sync(bench: &Bench) {
    let begun = Instant::now();
    while status(bench).0 != Some(0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", status(bench).1);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The array in use by this process, until it is told to end.
fn used(bench: &Bench) -> Array {
    let mounts = ["m0", "m1", "m2"].map(|member| bench.path(member).as_os_str().as_bytes().to_vec());
    let config = Config::new(layout::Level::Raid5, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    Array::attach(&config).unwrap()
}

fn monitor(bench: &Bench) -> Child {
    fs::write(bench.path("program"), "#!/bin/sh\nprintf '%s\\n' \"$1 ${3##*/}\" >> \"${0%/*}/told\"\n").unwrap();
    fs::set_permissions(bench.path("program"), fs::Permissions::from_mode(0o755)).unwrap();
    bench.command(&["monitor", "db", "--program", "program", "--delay", "1"]).spawn().unwrap()
}

fn end(mut monitor: Child) {
    Command::new("kill").args(["-TERM", &monitor.id().to_string()]).status().unwrap();
    assert!(monitor.wait().unwrap().success());
}

#[test]
fn a_spare_is_shown_and_taken_away_as_it_was() {
    let bench = with_spare();
    let (code, text) = status(&bench);
    assert!(code == Some(0) && text.ends_with("/spare, ready\n"), "{text}");
    let json = out(&bench.run(&["status", "db", "--json"]));
    assert!(json.contains("/spare\",\n          \"state\": \"ready\"\n"), "{json}");
    fs::write(bench.path("spare/file"), "").unwrap();
    assert!(status(&bench).1.ends_with("/spare, failed: the directory is not empty\n"));
    fs::remove_file(bench.path("spare/file")).unwrap();
    fs::rename(bench.path("spare"), bench.path("elsewhere")).unwrap();
    assert!(status(&bench).1.ends_with("/spare, missing: no such directory\n"));
    fs::rename(bench.path("elsewhere"), bench.path("spare")).unwrap();
    let removed = bench.run(&["remove", "db", "spare"]);
    assert!(removed.status.success() && out(&removed).contains("is no spare any more"), "{}", err(&removed));
    assert_eq!(fs::read_dir(bench.path("spare")).unwrap().count(), 0);
    assert!(!status(&bench).1.contains("spare"));
    let (_, line) = refused(&bench.run(&["remove", "db", "spare"]));
    assert!(line.contains("not a member of the array"), "{line}");
}

#[test]
fn a_directory_that_could_be_no_member_is_refused() {
    let bench = with_spare();
    for name in ["x0", "x1", "full", "m0/inside"] {
        fs::create_dir(bench.path(name)).unwrap();
    }
    let made = bench.run(&["create", "other", "--level", "1", "--at", "/other", "x0", "x1"]);
    assert!(made.status.success(), "{}", err(&made));
    fs::write(bench.path("full/file"), "somebody's").unwrap();
    fs::write(bench.path("file"), "").unwrap();
    for (spare, status, expected) in [
        ("nowhere", 1, "nowhere: no such directory; create it"),
        ("file", 1, "file: not a directory"),
        ("full", 1, "full: not empty"),
        ("x1", 1, "x1: is a member of the array other; "),
        ("m1", 2, "m1: is a member of the array; "),
        ("spare", 2, "spare: is a spare of the array already; "),
        ("m0/inside", 2, "m0/inside: lies inside "),
        ("/data/x", 2, "/data/x: programs see the array's files below /data; "),
        ("/proc", 1, "/proc: not empty"),
    ] {
        let (found, line) = refused_after_warnings(&bench.run(&["add", "db", "--spare", spare]));
        assert!(found == status && line.contains(expected), "{spare}: {found} {line}");
    }
    // A member of an array without a name, and a spare of another array.
    assert!(bench.run(&["stop", "other"]).status.success());
    assert!(bench.run(&["forget", "other"]).status.success());
    let (_, line) = refused_after_warnings(&bench.run(&["add", "db", "--spare", "x1"]));
    assert!(line.contains("x1: belongs to array "), "{line}");
    ["y0", "y1"].iter().for_each(|name| fs::create_dir(bench.path(name)).unwrap());
    assert!(bench.run(&["create", "third", "--level", "1", "--at", "/third", "y0", "y1"]).status.success());
    let (_, line) = refused_after_warnings(&bench.run(&["add", "third", "--spare", "spare"]));
    assert!(line.contains("spare: is a spare of the array db; "), "{line}");
    let (status, line) = refused(&bench.run(&["add", "no/name", "--spare", "x0"]));
    assert!(status == 2 && line.contains("cxlraid add ARRAY --spare DIR"), "{line}");
    assert_eq!(fs::read(bench.path("full/file")).unwrap(), b"somebody's");
    stop(&bench);
    assert!(bench.run(&["stop", "third"]).status.success());
}

#[test]
fn the_next_rebuild_puts_a_spare_in_the_place_of_a_member_that_is_out() {
    for lost in ["m0", "m1", "m2"] {
        let bench = with_spare();
        assert!(bench.run(&["fail", "db", lost]).status.success());
        let rebuilt = bench.run(&["rebuild", "db"]);
        assert!(rebuilt.status.success(), "{}", err(&rebuilt));
        assert!(out(&rebuilt).contains(&format!("spare in sync; {FILES} files, ")), "{}", out(&rebuilt));
        let (code, text) = status(&bench);
        assert!(code == Some(0) && text.contains("/spare  in sync") && !text.contains("spare:"), "{text}");
        let events = out(&bench.run(&["events", "db"]));
        assert!(events.contains("/spare: a spare takes the place of ") && events.contains(&format!("/{lost}\n")), "{events}");
        for missing in ["m0", "m1", "m2", "spare"].into_iter().filter(|name| *name != lost) {
            assert_bears(&bench, missing);
        }
        // The one that was replaced can be the next spare once it is emptied.
        fs::remove_dir_all(bench.path(lost)).unwrap();
        give(&bench, lost);
    }
}

#[test]
fn the_monitor_has_a_spare_put_in_place_as_soon_as_nobody_uses_the_array() {
    let bench = with_spare();
    let monitor = monitor(&bench);
    std::thread::sleep(Duration::from_millis(300));
    let array = used(&bench);
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    // It has its place in the array, and waits for the process that uses the array since before.
    assert!(status(&bench).1.contains("/spare  stale"), "{}", status(&bench).1);
    array.runtime().detach();
    array.abandon();
    drop(array);
    await_in_sync(&bench);
    assert!(status(&bench).1.contains("/spare  in sync"), "{}", status(&bench).1);
    // A second loss finds no spare, and a second spare is found by itself.
    fs::rename(bench.path("m2"), bench.path("away2")).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(status(&bench).0, Some(3));
    give(&bench, "spare2");
    await_in_sync(&bench);
    // The program is run for one event after the other, and behind them.
    let told = || fs::read_to_string(bench.path("told")).unwrap();
    for _ in 0..400 {
        if told().contains("RebuildFinished spare2\n") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    end(monitor);
    let told = told();
    for line in ["Fail m1\n", "SpareUsed spare\n", "RebuildFinished spare\n", "Fail m2\n", "SpareUsed spare2\n"] {
        assert_eq!(told.matches(line).count(), 1, "{line}: {told}");
    }
    for missing in ["m0", "spare", "spare2"] {
        assert_bears(&bench, missing);
    }
}

/// Kills the command at instants further and further on; each time the array works, and in the end
/// the spare has the place.
#[test]
fn a_spare_whose_use_is_killed_takes_its_place_in_the_end() {
    let rounds: u64 = std::env::var("CXLRAID_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(24);
    let bench = with_spare();
    assert!(bench.run(&["fail", "db", "m1"]).status.success());
    let (mut killed, mut place) = (0, ["m1", "spare"]);
    for round in 0..rounds {
        let mut command = bench.command(&["rebuild", "db"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(700 * (round % 24) + 500));
        let _ = child.kill();
        killed += u64::from(!child.wait().unwrap().success());
        if round % 5 == 3 {
            assert_whole(&bench);
        }
        if status(&bench).0 == Some(0) {
            // Once more, the other way round.
            place.swap(0, 1);
            stop(&bench);
            fs::remove_dir_all(bench.path(place[1])).unwrap();
            give(&bench, place[1]);
            assert!(bench.run(&["fail", "db", place[0]]).status.success());
        }
    }
    assert!(killed * 3 > rounds, "{killed} of {rounds} were killed in time");
    let rebuilt = bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    assert_eq!(status(&bench).0, Some(0));
    for missing in ["m0", place[1], "m2"] {
        assert_bears(&bench, missing);
    }
}

#[test]
fn a_rebuild_names_who_uses_the_array_since_before_and_can_wait_for_that_to_end() {
    let bench = filled();
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let array = used(&bench);
    fs::create_dir(bench.path("m1")).unwrap();
    let (_, line) = refused(&bench.run(&["rebuild", "db"]));
    assert!(line.contains(&format!("db: the member is begun; process {} cannot use it", std::process::id())), "{line}");
    let mut waiting = bench.command(&["rebuild", "db", "--wait", "60"]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(waiting.try_wait().unwrap().is_none());
    array.runtime().detach();
    array.abandon();
    drop(array);
    assert!(waiting.wait().unwrap().success());
    assert_eq!(status(&bench).0, Some(0));
    assert_bears(&bench, "m0");
}

#[test]
fn one_command_at_a_time_makes_members_anew() {
    let bench = filled();
    assert!(bench.run(&["fail", "db", "m2"]).status.success());
    let held = File::open(bench.path("m0/.cxlraid")).unwrap();
    held.lock().unwrap();
    let (_, line) = refused(&bench.run(&["rebuild", "db"]));
    let holder = format!("db: a job of process {} runs on the array; ", std::process::id());
    assert!(line.contains(&holder), "{line}");
    let mut waiting = bench.command(&["rebuild", "db", "--wait", "60"]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none());
    drop(held);
    assert!(waiting.wait().unwrap().success());
    assert_eq!(status(&bench).0, Some(0));
}

/// A scrub keeps other jobs from the array, and one that is paused does so for long. A spare does
/// not wait for it.
#[test]
fn a_scrub_is_ended_for_a_spare() {
    let bench = with_spare();
    let scrub = Begun::new(bench.command(&["scrub", "db", "--rate", "1M"]).stdout(Stdio::piped()));
    let begun = Instant::now();
    while !bench.run(&["pause", "db"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    let monitor = monitor(&bench);
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    await_in_sync(&bench);
    assert!(status(&bench).1.contains("/spare  in sync"), "{}", status(&bench).1);
    let scrubbed = scrub.ended();
    assert!(scrubbed.status.code() != Some(0) && out(&scrubbed).contains("; interrupted\n"), "{}", out(&scrubbed));
    end(monitor);
    assert_bears(&bench, "m0");
}

#[test]
fn a_replacement_that_waits_for_programs_has_not_failed() {
    let bench = filled();
    fs::create_dir(bench.path("new")).unwrap();
    let program = used(&bench);
    assert!(bench.run(&["fail", "db", "m1"]).status.success());
    let monitor = monitor(&bench);
    let told = || fs::read_to_string(bench.path("told")).unwrap_or_default();
    let await_told = |line: &str| {
        let begun = Instant::now();
        while !told().contains(line) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", told());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    await_told("DegradedArray m1\n");
    let (_, line) = refused(&bench.run(&["replace", "db", "m1", "new"]));
    assert!(line.contains("the member is begun; process "), "{line}");
    let (code, text) = status(&bench);
    assert!(code == Some(3) && text.contains("/new  stale, volatile: begun: it comes into use when "), "{text}");
    // The monitor has looked several times since.
    std::thread::sleep(Duration::from_secs(3));
    drop(program);
    let rebuilt = bench.run(&["rebuild", "db", "new"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    await_told("RebuildFinished new\n");
    end(monitor);
    assert!(!told().contains("Fail"), "{}", told());
    assert_eq!(status(&bench).0, Some(0));
    stop(&bench);
}
