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
    let _ = fs::remove_file(bench.path("notify"));
    let socket = UnixDatagram::bind(bench.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = bench.command(&["monitor", "db", "--program", "program", "--delay", "1"]);
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
    // By hand, which the command logs; and a directory that is gone, which nobody sees but the monitor.
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
        (&["monitor", "db", "--program", "program", "--delay", "0"], "0"),
    ] {
        let (status, line) = refused(&bench.run(arguments));
        assert!(status != 0 && line.contains(expected), "{arguments:?}: {line}");
    }
}
