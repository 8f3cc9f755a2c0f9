//! Every file is rebuilt: also one that a program executes meanwhile.

mod bench;

use bench::{
    Bench, err,
    library::{library, on_array},
    out,
};
use std::{
    fs,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// An array called db with members m0 and on, stopped.
fn array(level: &str, members: &[&str]) -> Bench {
    let bench = Bench::new();
    members.iter().for_each(|member| fs::create_dir_all(bench.path(member)).unwrap());
    let created = bench.run(&[&["create", "db", "--level", level, "--at", "/data"][..], members].concat());
    assert!(created.status.success(), "{}", err(&created));
    bench
}

/// Runs a shell script on the array.
#[track_caller]
fn run(bench: &Bench, script: &str) -> String {
    let done = on_array(bench, &["sh", "-ec", script]).output().unwrap();
    assert!(done.status.success(), "{script}: {}", err(&done));
    out(&done)
}

/// A program with the library on the array, which runs until it is killed.
fn running(bench: &Bench, program: &[&str]) -> Child {
    let mut command = bench.command(&["run", "db", "--"]);
    command.args(program).env("CXLRAID_LIB", library()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until a process executes a program, whose name in /proc is this or `cxlraid:` and this.
fn await_executed(child: &Child, name: &str) {
    let begun = Instant::now();
    let link = format!("/proc/{}/exe", child.id());
    while !fs::read_link(&link).unwrap().to_string_lossy().contains(name) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn assert_in_sync(bench: &Bench) {
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(0), "{}", out(&status));
}

/// Asserts that a file is as it was while a member directory is moved away.
#[track_caller]
fn assert_bears(bench: &Bench, missing: &str, script: &str, expected: &str) {
    assert!(bench.run(&["stop", "db"]).status.success());
    fs::rename(bench.path(missing), bench.path("gone")).unwrap();
    assert_eq!(run(bench, script), expected, "without {missing}");
    assert!(bench.run(&["stop", "db"]).status.success());
    fs::rename(bench.path("gone"), bench.path(missing)).unwrap();
}

/// The member comes into use while the program runs, so what it lacks of the program's file waits
/// for a process that may write to it.
#[test]
fn a_rebuild_ends_while_a_program_of_the_array_runs() {
    for (level, members, lost) in [("5", &["m0", "m1", "m2"][..], "m1"), ("6", &["m0", "m1", "m2", "m3"], "m0")] {
        let bench = array(level, members);
        run(&bench, "cp /bin/sleep /data/program; cp /bin/cat /data/cat; echo held > /data/held");
        assert!(bench.run(&["fail", "db", lost]).status.success());
        // The member is begun, and comes into use when this process has ended.
        let mut holder = running(&bench, &["sh", "-c", "exec 3</data/held; : > /data/ready; exec sleep 600"]);
        let begun = Instant::now();
        let survivor = members.iter().find(|member| **member != lost).unwrap();
        while !bench.path(survivor).join("data/ready").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!bench.run(&["rebuild", "db"]).status.success());
        let mut program = running(&bench, &["env", "/data/program", "600"]);
        await_executed(&program, "data/program");
        holder.kill().unwrap();
        holder.wait().unwrap();
        let begun = Instant::now();
        let rebuilt = loop {
            // The process may not have ended quite.
            let rebuilt = bench.run(&["rebuild", "db", "--wait", "10"]);
            if rebuilt.status.success() || begun.elapsed() > Duration::from_secs(60) {
                break rebuilt;
            }
        };
        assert!(rebuilt.status.success(), "{level} {lost}: {}", err(&rebuilt));
        assert_in_sync(&bench);
        assert!(program.try_wait().unwrap().is_none(), "{level} {lost}");
        program.kill().unwrap();
        program.wait().unwrap();
        for missing in members {
            assert_bears(&bench, missing, "cmp /bin/sleep /data/program && cmp /bin/cat /data/cat && echo same", "same\n");
        }
    }
}
