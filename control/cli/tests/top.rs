//! `cxlraid top`: what programs count is what they did, whatever became of them.

mod bench;

use bench::library::on_array;
use bench::{Begun, Bench, err, out, refused};
use serde_json::Value;
use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    process::Stdio,
    time::{Duration, Instant},
};

/// Makes a number of calls on a file, says so, and goes on only if it is to: then it waits.
const SCRIPT: &str = "\
import os, sys, time
path, writes, reads, syncs, stays = sys.argv[1], *map(int, sys.argv[2:])
fd = os.open(path, os.O_RDWR | os.O_CREAT)
for i in range(writes): assert os.pwrite(fd, b'x' * 1000, i % 50 * 1000) == 1000
for i in range(reads): assert len(os.pread(fd, 100, i % 50 * 100)) == 100
for i in range(syncs): os.fsync(fd)
assert os.lseek(fd, 0, os.SEEK_SET) == 0
assert os.readv(fd, [bytearray(70), bytearray(30)]) == 100
assert os.pwritev(fd, [b'a' * 40, b'b' * 60], 0) == 100
try: os.pread(fd, 10, -1)
except OSError: pass
print('done', flush=True)
for _ in range(60 * stays): time.sleep(1)
";

fn figures(bench: &Bench) -> Value {
    let output = bench.run(&["top", "db", "--once", "--json", "--interval", "0.1"]);
    assert!(output.status.success(), "{}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

/// Calls and bytes of a total.
fn numbers(total: &Value) -> [u64; 5] {
    ["reads", "writes", "syncs", "bytes_read", "bytes_written"].map(|key| total[key].as_u64().unwrap())
}

fn process(figures: &Value, pid: u32) -> Option<&Value> {
    figures["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid)
}

/// The process that the program's `timeout` and `cxlraid run` have become.
fn python(figures: &Value) -> Option<&Value> {
    figures["processes"].as_array().unwrap().iter().find(|process| process["command"].as_str().unwrap().starts_with("python"))
}

#[track_caller]
fn await_figures(bench: &Bench, is_right: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let found = figures(bench);
        if is_right(&found) {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{found:#}");
    }
}

#[test]
fn every_call_is_counted_also_of_who_was_killed() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let none = figures(&bench);
    assert_eq!((numbers(&none["total"]), none["complete"].as_bool()), ([0; 5], Some(true)));
    // One that ends in order.
    let ended = on_array(&bench, &["python3", "-c", SCRIPT, "/data/a", "700", "300", "5", "0"]).output().unwrap();
    assert!(ended.status.success(), "{}", err(&ended));
    let first = [301, 701, 5, 30_100, 700_100];
    let after = figures(&bench);
    assert_eq!(numbers(&after["total"]), first, "{after:#}");
    assert!(after["processes"].as_array().unwrap().is_empty(), "{after:#}");
    assert!(after["total"]["others"].as_u64().unwrap() >= 2, "{after:#}");
    // One that is killed.
    let mut command = on_array(&bench, &["python3", "-c", SCRIPT, "/data/b", "1100", "2000", "3", "1"]);
    let begun = Begun::new(command.stdout(Stdio::piped()));
    let sum = [first[0] + 2001, first[1] + 1101, first[2] + 3, first[3] + 200_100, first[4] + 1_100_100];
    let during = await_figures(&bench, |figures| numbers(&figures["total"]) == sum);
    let own = python(&during).unwrap();
    assert_eq!(numbers(&own["total"]), [2001, 1101, 3, 200_100, 1_100_100], "{during:#}");
    let pid = own["pid"].as_u64().unwrap() as u32;
    assert!(process(&during, pid).is_some());
    // Each byte is written as data and as parity.
    let members = during["members"].as_array().unwrap().iter();
    let written: u64 = members.map(|member| member["total"]["bytes_written"].as_u64().unwrap()).sum();
    assert!(written.abs_diff(2 * sum[4]) <= 3, "{during:#}");
    std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    let killed = begun.ended();
    assert!(killed.status.code() == Some(137) || killed.status.signal() == Some(9), "{killed:?}");
    let after = await_figures(&bench, |figures| process(figures, pid).is_none());
    assert_eq!(numbers(&after["total"]), sum, "{after:#}");
    // The next has the cell of one of them, and its own numbers are its own.
    let mut command = on_array(&bench, &["python3", "-c", SCRIPT, "/data/c", "1", "2", "0", "1"]);
    let begun = Begun::new(command.stdout(Stdio::piped()));
    let sum = [sum[0] + 3, sum[1] + 2, sum[2], sum[3] + 300, sum[4] + 1100];
    let during = await_figures(&bench, |figures| numbers(&figures["total"]) == sum);
    let own = python(&during).unwrap();
    assert_eq!(numbers(&own["total"]), [3, 2, 0, 300, 1100], "{during:#}");
    let pid = own["pid"].to_string();
    std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    begun.ended();
    // Children of fork and threads count as well, each what it does.
    let script = "import os, threading
def work(name):
    fd = os.open('/data/' + name, os.O_RDWR | os.O_CREAT)
    for i in range(500): os.pwrite(fd, b'y' * 10, 0)
threads = [threading.Thread(target=work, args=(f't{i}',)) for i in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
for i in range(3):
    if os.fork() == 0: work(f'f{i}'); os._exit(0)
for i in range(3): assert os.wait()[1] == 0";
    let ended = on_array(&bench, &["python3", "-c", script]).output().unwrap();
    assert!(ended.status.success(), "{}", err(&ended));
    let after = figures(&bench);
    assert_eq!(numbers(&after["total"]), [sum[0], sum[1] + 3500, sum[2], sum[3], sum[4] + 35_000], "{after:#}");
    assert!(bench.run(&["stop", "db"]).status.success());
    assert_eq!(numbers(&figures(&bench)["total"]), [0; 5]);
}

#[test]
fn what_is_printed_where_there_is_no_terminal_is_a_table() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let table = out(&bench.run(&["top", "db", "--once", "--interval", "0.1"]));
    assert!(table.starts_with("db: in sync, RAID 5, 0.1 s\n"), "{table}");
    assert!(table.contains("  array\n") && table.ends_with("no process that runs has done anything on the array\n"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("/m")).count(), 3, "{table}");
    // It goes on until its reader has read enough.
    let script = "\"$0\" top db --interval 0.1 | head -n 30 | grep -c 'RAID 5'";
    let shell = bench.program("sh".as_ref(), &["-c", script, env!("CARGO_BIN_EXE_cxlraid")]).output().unwrap();
    assert!(out(&shell).trim().parse::<u32>().unwrap() >= 2, "{shell:?}");
    let script = "timeout -s INT 2 \"$0\" top db --json --interval 0.1 > documents; echo $?";
    let shell = bench.program("sh".as_ref(), &["-c", script, env!("CARGO_BIN_EXE_cxlraid")]).output().unwrap();
    assert!(out(&shell).trim() == "124", "{shell:?}");
    let documents = fs::read_to_string(bench.path("documents")).unwrap();
    assert!(documents.lines().count() >= 2);
    assert!(documents.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["version"] == 1));
}

#[test]
fn a_terminal_is_as_before_when_the_command_ends() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    // script(1) gives it a terminal, and its keys come from a pipe.
    let line = format!(
        "stty -a | grep -c -- '-icanon'; {} top db --interval 0.1; echo =$?; stty -a | grep -c -- '-icanon'",
        env!("CARGO_BIN_EXE_cxlraid")
    );
    let shell = "(sleep 1; printf x; sleep 1; printf q; sleep 1) | timeout 30 script -qec \"$0\" /dev/null";
    let output = bench.program("sh".as_ref(), &["-c", shell, &line]).output().unwrap();
    let text = out(&output);
    if text.is_empty() {
        eprintln!("NOT RUN: script(1) is not there");
        return;
    }
    let (enter, leave) = (text.find("\x1b[?1049h").unwrap(), text.rfind("\x1b[?1049l").unwrap());
    assert!(enter < leave && text[enter..leave].contains("db: in sync, RAID 5"), "{text:?}");
    assert!(text[leave..].contains("=0") && text[leave..].trim_end().ends_with('0'), "{text:?}");
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let bench = Bench::new();
    let (status, line) = refused(&bench.run(&["top", "nobody", "--once"]));
    assert!(status == 1 && line.contains("no array has this name"), "{line}");
    assert!(bench.create().status.success());
    for interval in ["0", "-1", "nan", "1e9", "x"] {
        let odd = bench.run(&["top", "db", "--once", &format!("--interval={interval}")]);
        assert!(odd.status.code() == Some(2) && err(&odd).contains("from 0.1 to 86400"), "{}", err(&odd));
    }
}
