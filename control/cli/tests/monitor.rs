//! `cxlraid monitor`: a program is told once of each event, whoever saw it.

mod bench;

use bench::{Bench, err, out, refused};
use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    process::{Child, Command},
    time::{Duration, Instant},
};

fn filled() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("m3")).unwrap();
    let created = bench.run(&["create", "db", "--level", "6", "--at", "/data", "m0", "m1", "m2", "m3"]);
    assert!(created.status.success(), "{}", err(&created));
    fs::write(
        bench.path("program"),
        "#!/bin/sh\nprintf '%s %s %s %s\\n' \"$#\" \"$1\" \"$2\" \"${3##*/}\" >> \"${0%/*}/told\"\n",
    )
    .unwrap();
    fs::set_permissions(bench.path("program"), fs::Permissions::from_mode(0o755)).unwrap();
    bench
}

/// Starts it, and waits until it says that it is ready.
fn started(bench: &Bench) -> (Child, UnixDatagram) {
    started_with(bench, &["--program", "program"])
}

fn started_with(bench: &Bench, arguments: &[&str]) -> (Child, UnixDatagram) {
    let _ = fs::remove_file(bench.path("notify"));
    let socket = UnixDatagram::bind(bench.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let delay = if arguments.contains(&"--delay") { &[][..] } else { &["--delay", "1"] };
    let mut command = bench.command(&["monitor", "db"]);
    command.args(delay).args(arguments);
    let child = command.env("NOTIFY_SOCKET", bench.path("notify")).spawn().unwrap();
    assert_eq!(received(&socket), "READY=1");
    (child, socket)
}

fn received(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 100];
    let count = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].to_vec()).unwrap()
}

fn told(bench: &Bench) -> Vec<String> {
    fs::read_to_string(bench.path("told")).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[track_caller]
fn await_told(bench: &Bench, expected: &[&str]) {
    let begun = Instant::now();
    while told(bench).len() < expected.len() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(told(bench), expected);
}

fn end((mut child, socket): (Child, UnixDatagram)) {
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(received(&socket), "STOPPING=1");
}

#[test]
fn each_event_is_told_once() {
    let bench = filled();
    let monitor = started(&bench);
    assert!(bench.run(&["scrub", "db"]).status.success());
    let mut expected = vec!["2 ScrubStarted db ", "2 ScrubFinished db "];
    await_told(&bench, &expected);
    // By hand, which the command logs; and a directory that is gone, which nobody sees but the
    // monitor.
    assert!(bench.run(&["fail", "db", "m1"]).status.success());
    expected.push("3 Fail db m1");
    await_told(&bench, &expected);
    fs::rename(bench.path("m2"), bench.path("away")).unwrap();
    expected.push("3 Fail db m2");
    await_told(&bench, &expected);
    std::thread::sleep(Duration::from_millis(2500));
    await_told(&bench, &expected);
    end(monitor);
    // Who starts later is told what is so already, and not what was.
    fs::rename(bench.path("away"), bench.path("m2")).unwrap();
    fs::remove_file(bench.path("told")).unwrap();
    let monitor = started(&bench);
    await_told(&bench, &["3 DegradedArray db m1"]);
    end(monitor);
    let logged = out(&bench.run(&["events", "db"]));
    assert_eq!(logged.lines().filter(|line| line.contains(" Fail ")).count(), 2, "{logged}");
}

/// The log may be renamed at any time, and nobody need make another one in its place.
#[test]
fn a_loss_is_told_though_the_log_was_renamed() {
    let bench = filled();
    let monitor = started(&bench);
    let log = bench.path("state/cxlraid").join(format!("{}.events", bench.uuid()));
    fs::rename(&log, bench.path("rotated")).unwrap();
    fs::rename(bench.path("m2"), bench.path("away")).unwrap();
    await_told(&bench, &["3 Fail db m2"]);
    end(monitor);
    assert!(fs::read_to_string(&log).unwrap().contains("\"Fail\""));
}

/// The file once it has a line.
#[track_caller]
fn await_line(bench: &Bench, line: &str) -> String {
    let begun = Instant::now();
    loop {
        // It is there at any instant, and whole.
        let text = fs::read_to_string(bench.path("db.prom")).unwrap();
        assert!(text.starts_with("# HELP cxlraid_") && text.ends_with('\n') && text.contains("cxlraid_events_total"), "{text}");
        if text.lines().any(|found| found == line) {
            return text;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no {line} in\n{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_for_prometheus_tells_how_the_array_is() {
    let bench = filled();
    fs::write(bench.path("file"), "content").unwrap();
    assert!(bench.run(&["add", "--array", "db", "file", "/data/file"]).status.success());
    assert!(bench.run(&["scrub", "db"]).status.success());
    let monitor = started_with(&bench, &["--prometheus", "db.prom"]);
    let text = await_line(&bench, "cxlraid_files{array=\"db\",state=\"all\"} 1");
    for line in [
        "cxlraid_array_failures_left{array=\"db\"} 2",
        "cxlraid_files{array=\"db\",state=\"degraded\"} 0",
        "cxlraid_last_scrub_wrong{array=\"db\"} 0",
        "cxlraid_events_total{array=\"db\",event=\"ScrubFinished\"} 1",
        "cxlraid_events_total{array=\"db\",event=\"Fail\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    assert!(bench.run(&["fail", "db", "m0"]).status.success());
    await_line(&bench, "cxlraid_files{array=\"db\",state=\"degraded\"} 1");
    for member in ["m1", "m2"] {
        assert!(bench.run(&["fail", "db", member, "--force"]).status.success());
    }
    let text = await_line(&bench, "cxlraid_events_total{array=\"db\",event=\"Fail\"} 3");
    assert!(text.contains("\",state=\"failed\"} 1\n"), "{text}");
    let left: Vec<_> = fs::read_dir(bench.home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".new")), "{left:?}");
    end(monitor);
    assert!(!bench.path("db.prom").exists(), "nobody watches any more");
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let bench = filled();
    fs::write(bench.path("text"), "").unwrap();
    for (arguments, expected) in [
        (&["monitor", "nobody", "--program", "program"][..], "no array has this name"),
        (&["monitor", "db", "--program", "nothing"], "No such file"),
        (&["monitor", "db", "--program", "m0"], "not a program"),
        (&["monitor", "db", "--program", "text"], "may not be executed"),
        (&["monitor", "db"], "--program"),
        (&["monitor", "db", "--prometheus", "m0"], "m0: is a directory"),
        (&["monitor", "db", "--prometheus", "nowhere/db.prom"], "No such file"),
        (&["monitor", "db", "--prometheus", ""], "a value is required"),
        (&["monitor", "db", "--program", "program", "--delay", "0"], "0"),
    ] {
        let (status, line) = refused(&bench.run(arguments));
        assert!(status != 0 && line.contains(expected), "{arguments:?}: {line}");
    }
}

/// An array that is forgotten and made anew has another log.
#[test]
fn an_array_that_is_made_anew_under_its_name_is_watched() {
    let bench = filled();
    let monitor = started(&bench);
    let uuid = bench.uuid();
    assert!(bench.run(&["stop", "db"]).status.success());
    assert!(bench.run(&["forget", "db"]).status.success());
    for member in ["m0", "m1", "m2", "m3"] {
        fs::remove_dir_all(bench.path(member)).unwrap();
        fs::create_dir(bench.path(member)).unwrap();
    }
    let _ = fs::remove_file(format!("/dev/shm/cxlraid-{uuid}"));
    assert!(bench.run(&["create", "db", "--level", "6", "--at", "/data", "m0", "m1", "m2", "m3"]).status.success());
    assert!(bench.run(&["scrub", "db"]).status.success());
    await_told(&bench, &["2 ScrubStarted db ", "2 ScrubFinished db "]);
    fs::rename(bench.path("m2"), bench.path("away")).unwrap();
    await_told(&bench, &["2 ScrubStarted db ", "2 ScrubFinished db ", "3 Fail db m2"]);
    end(monitor);
    let logged = out(&bench.run(&["events", "db", "--json"]));
    assert!(logged.contains("\"Fail\"") && !logged.contains(&uuid), "{logged}");
}

/// What happens to an array with several names is told once, and one process makes it whole.
#[test]
fn an_array_with_two_names_is_watched_once() {
    let bench = filled();
    assert!(bench.run(&["create", "db2", "--level", "6", "--at", "/data", "m0", "m1", "m2", "m3"]).status.success());
    fs::create_dir(bench.path("s")).unwrap();
    assert!(bench.run(&["add", "db2", "--spare", "s"]).status.success());
    let monitor = started_with(&bench, &["db2", "--program", "program"]);
    fs::rename(bench.path("m2"), bench.path("away")).unwrap();
    let expected = ["3 Fail db m2", "3 SpareUsed db s", "3 RebuildStarted db s", "3 RebuildFinished db s"];
    await_told(&bench, &expected);
    std::thread::sleep(Duration::from_millis(2500));
    await_told(&bench, &expected);
    // The name that it is called by goes, and the other one stays.
    assert!(bench.run(&["forget", "db"]).status.success());
    std::thread::sleep(Duration::from_millis(1500));
    fs::rename(bench.path("m3"), bench.path("away2")).unwrap();
    await_told(&bench, &[&expected[..], &["3 Fail db2 m3"]].concat());
    end(monitor);
    assert_eq!(bench.run(&["status", "db2"]).status.code(), Some(3));
}

/// A program that never ends keeps no spare from being taken.
#[test]
fn a_program_that_hangs_holds_up_nothing_else() {
    let bench = filled();
    fs::create_dir(bench.path("s")).unwrap();
    assert!(bench.run(&["add", "db", "--spare", "s"]).status.success());
    fs::write(bench.path("program"), "#!/bin/sh\necho $$ >> \"${0%/*}/told\"\nexec sleep 60\n").unwrap();
    let monitor = started(&bench);
    assert!(bench.run(&["scrub", "db"]).status.success());
    let begun = Instant::now();
    while told(&bench).is_empty() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::rename(bench.path("m2"), bench.path("away")).unwrap();
    let begun = Instant::now();
    while !bench.run(&["status", "db"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", out(&bench.run(&["status", "db"])));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(told(&bench).len(), 1);
    end(monitor);
    // It was started for what waited, too.
    for pid in told(&bench) {
        let _ = Command::new("kill").arg(pid).status();
    }
}

/// The monitor leaves an operator's own rebuild alone, also one that is paused.
#[test]
fn an_operators_rebuild_is_not_taken_for_one_that_was_cut_short() {
    let bench = filled();
    fs::write(bench.path("file"), vec![7; 4 << 20]).unwrap();
    for name in 0..8 {
        assert!(bench.run(&["add", "--array", "db", "file", &format!("/data/{name}")]).status.success());
    }
    assert!(bench.run(&["fail", "db", "m1"]).status.success());
    let mut rebuild = bench.command(&["rebuild", "db", "--rate", "1M"]).spawn().unwrap();
    let begun = Instant::now();
    while !out(&bench.run(&["status", "db"])).contains("rebuilding") {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    let monitor = started(&bench);
    std::thread::sleep(Duration::from_millis(2500));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", monitor.0.id())).unwrap();
    assert!(
        !children
            .split_whitespace()
            .any(|child| { fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.contains("rebuild")) })
    );
    let _ = rebuild.kill();
    let _ = rebuild.wait();
    // Now it was cut short.
    let begun = Instant::now();
    while !bench.run(&["status", "db"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", out(&bench.run(&["status", "db"])));
        std::thread::sleep(Duration::from_millis(50));
    }
    end(monitor);
}

/// The file of metrics stays while another monitor keeps it.
#[test]
fn the_first_of_two_monitors_to_end_leaves_the_file_to_the_other() {
    let bench = filled();
    let first = started_with(&bench, &["--prometheus", "db.prom", "--delay", "3600"]);
    let second = started_with(&bench, &["--prometheus", "db.prom", "--delay", "3600"]);
    end_quietly(first);
    assert!(bench.path("db.prom").exists());
    end(second);
    assert!(!bench.path("db.prom").exists());
}

fn end_quietly((mut child, _socket): (Child, UnixDatagram)) {
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(child.wait().unwrap().success());
}
