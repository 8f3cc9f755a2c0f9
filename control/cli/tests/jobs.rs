//! A rebuild, a replacement or a scrub is seen, paused and ended by other processes, and one of
//! them runs at a time.

mod bench;

use bench::{
    Begun, Bench, err,
    filled::{FILES, assert_bears, content, filled, stop},
    out, refused,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// What [`filled`] has, and a file of so many bytes that a job at 1 MiB in a second takes long.
const LARGE_BYTES: usize = 12 << 20;

/// The array of [`filled`] with one large file more.
fn with_large() -> Bench {
    let bench = filled();
    fs::write(bench.path("large"), large()).unwrap();
    let added = bench.run(&["add", "--array", "db", "large", "/data/files/large"]);
    assert!(added.status.success(), "{}", err(&added));
    stop(&bench);
    bench
}

fn large() -> Vec<u8> {
    (0..LARGE_BYTES).map(|place| (place * 13 + place / 4093) as u8).collect()
}

fn begin(bench: &Bench, arguments: &[&str]) -> Begun {
    Begun::new(bench.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// What `status --json` says of jobs.
fn jobs(bench: &Bench) -> Vec<Value> {
    let document: Value = serde_json::from_slice(&bench.run(&["status", "db", "--json"]).stdout).unwrap();
    document["arrays"][0]["jobs"].as_array().unwrap().clone()
}

/// The job once it is so.
#[track_caller]
fn await_job(bench: &Bench, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let jobs = jobs(bench);
        if let Some(job) = jobs.iter().find(|job| is_so(job)) {
            return job.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{jobs:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The job while it works and has done something.
#[track_caller]
fn await_work(bench: &Bench) -> Value {
    await_job(bench, |job| job["state"] == "running" && job["bytes_done"].as_u64() > Some(0))
}

/// A paused job ends the piece that each worker has begun, and then does nothing more: it never
/// comes near its end.
#[track_caller]
fn await_rest(bench: &Bench) {
    let mut before = jobs(bench).remove(0);
    let begun = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(1500));
        let later = jobs(bench).remove(0);
        assert_eq!(later["state"], "paused", "{later}");
        if later["bytes_done"] == before["bytes_done"] {
            break;
        }
        assert!(begun.elapsed() < PATIENCE && later["bytes_left"].as_u64() > Some(4 << 20), "{before} {later}");
        before = later;
    }
}

#[track_caller]
fn told(bench: &Bench, arguments: &[&str]) -> String {
    let output = bench.run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    out(&output)
}

fn lose(bench: &Bench, member: &str) {
    fs::remove_dir_all(bench.path(member)).unwrap();
    fs::create_dir(bench.path(member)).unwrap();
}

#[test]
fn a_rebuild_is_seen_paused_resumed_and_cancelled_by_others() {
    let bench = with_large();
    lose(&bench, "m1");
    let slow = &["rebuild", "db", "--rate", "1M", "--workers", "2"];
    let child = begin(&bench, slow);
    let pid = child.id();
    let job = await_work(&bench);
    let bytes: usize = (0..FILES).map(|index| content(index).len()).sum();
    let expected: [(&str, Value); 8] = [
        ("kind", "rebuild".into()),
        ("pid", pid.into()),
        ("uid", fs::metadata("/proc/self").unwrap().uid().into()),
        ("workers", 2.into()),
        ("bytes_per_second_max", (1 << 20).into()),
        ("files_total", (FILES + 1).into()),
        ("bytes_total", (bytes + LARGE_BYTES).into()),
        ("paused", false.into()),
    ];
    for (key, expected) in expected {
        assert_eq!(job[key], expected, "{key}: {job}");
    }
    assert!(job["members"][0].as_str().unwrap().ends_with("/m1") && job["members"].as_array().unwrap().len() == 1, "{job}");
    // A piece counts when its turn has come. After t seconds these are at most t pieces of 1 MiB,
    // the first one, and a file that is begun beside it; a slow machine does less.
    let rated = await_job(&bench, |job| job["bytes_done"].as_u64() > Some(2 << 20));
    let elapsed =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - Duration::from_nanos(rated["begun_ns"].as_u64().unwrap());
    let [done, left, rate] = ["bytes_done", "bytes_left", "bytes_per_second"].map(|key| rated[key].as_u64().unwrap());
    let limit = (elapsed.as_secs_f64() * f64::from(1 << 20)) as u64 + (1 << 20) + (256 << 10);
    assert!(done <= limit, "{done} of at most {limit} bytes after {elapsed:?}: {rated}");
    let slowest = (done as f64 / elapsed.as_secs_f64()) as u64;
    assert!((slowest..3 << 20).contains(&rate), "a rate from {slowest} to 3 MiB/s: {rated}");
    assert_eq!(rated["seconds_left"].as_u64(), Some(left.div_ceil(rate)), "{rated}");
    // Nobody else begins one, and is told who runs it.
    for arguments in [&["rebuild", "db"][..], &["scrub", "db"], &["rebuild", "db", "m1"]] {
        let (status, line) = refused(&bench.run(arguments));
        let expected = format!(
            "db: a rebuild by process {pid} runs on the array; wait until it has ended, or end it with 'cxlraid cancel db'"
        );
        assert!(status == 1 && line.contains(&expected), "{line}");
    }
    let paused = told(&bench, &["pause", "db"]);
    assert_eq!(paused, format!("db: a rebuild by process {pid} is paused; 'cxlraid resume db' goes on\n"));
    assert!(told(&bench, &["pause", "db"]).contains("is paused already"));
    let job = jobs(&bench).remove(0);
    assert!(job["state"] == "paused" && job["paused"] == true && job["seconds_left"].is_null(), "{job}");
    let text = out(&bench.run(&["status", "db"]));
    assert!(text.contains("m1, paused: ") && text.contains(&format!("process {pid} of user ")), "{text}");
    await_rest(&bench);
    // It holds nothing that programs need: one of the files that it may have been computing, and
    // one that still waits.
    told(&bench, &["retrieve", "--array", "db", "/data/files/large", "large-back"]);
    assert!(fs::read(bench.path("large-back")).unwrap() == large());
    assert_eq!(told(&bench, &["resume", "db"]), format!("db: a rebuild by process {pid} goes on\n"));
    assert!(told(&bench, &["resume", "db"]).contains("is not paused"));
    await_work(&bench);
    let cancelled = told(&bench, &["cancel", "db"]);
    assert_eq!(
        cancelled,
        format!(
            "db: a rebuild by process {pid} is cancelled; 'cxlraid rebuild db' goes on, and so does 'cxlraid monitor' where it runs\n"
        )
    );
    let (status, line) = refused(&child.ended());
    assert!(status == 1 && line.contains("db: the rebuild was cancelled; "), "{line}");
    assert!(line.contains(&format!(" of {} files still wait to be computed; 'cxlraid rebuild' goes on", FILES + 1)), "{line}");
    assert_eq!(jobs(&bench), [] as [Value; 0]);
    // The same command goes on, and all is whole then.
    let status = out(&bench.run(&["status", "db"]));
    assert!(status.contains("rebuilding") && status.contains("'cxlraid rebuild' goes on"), "{status}");
    told(&bench, &["rebuild", "db"]);
    told(&bench, &["scrub", "db"]);
    for missing in ["m0", "m2"] {
        assert_bears(&bench, missing);
    }
}

#[test]
fn a_job_whose_process_is_killed_is_neither_seen_nor_paused() {
    let bench = with_large();
    lose(&bench, "m2");
    let child = begin(&bench, &["rebuild", "db", "--rate", "1M"]);
    await_work(&bench);
    told(&bench, &["pause", "db"]);
    // Killed.
    drop(child);
    assert_eq!(jobs(&bench), [] as [Value; 0]);
    let (status, line) = refused(&bench.run(&["resume", "db"]));
    assert!(status == 1 && line.contains("db: no rebuild, replacement, re-add or scrub runs on the array"), "{line}");
    told(&bench, &["rebuild", "db"]);
    told(&bench, &["scrub", "db"]);
}

#[test]
fn a_file_that_a_program_waits_for_is_not_slowed_down() {
    let bench = with_large();
    lose(&bench, "m0");
    // The largest file comes first. At this rate it takes 12 seconds.
    let child = begin(&bench, &["rebuild", "db", "--rate", "1M", "--workers", "1"]);
    await_work(&bench);
    let begun = Instant::now();
    told(&bench, &["add", "--array", "db", "files/1", "/data/files/large"]);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    told(&bench, &["cancel", "db"]);
    assert!(!child.ended().status.success());
    told(&bench, &["rebuild", "db"]);
    told(&bench, &["scrub", "db"]);
    assert_bears(&bench, "m1");
}

#[test]
fn a_scrub_after_a_rebuild_that_was_cancelled_says_what_waits_and_finds_nothing_wrong() {
    let bench = with_large();
    // What a rebuild makes anew has the time of its making until it is done.
    for index in 0..FILES {
        for member in ["m0", "m1", "m2"] {
            let file = fs::File::options().write(true).open(bench.path(member).join("data/files").join(index.to_string()));
            file.unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
        }
    }
    lose(&bench, "m2");
    let child = begin(&bench, &["rebuild", "db", "--rate", "1M", "--workers", "1"]);
    await_work(&bench);
    told(&bench, &["cancel", "db"]);
    assert_eq!(child.ended().status.code(), Some(1));
    let scrubbed = bench.run(&["scrub", "db", "--json"]);
    let document: Value = serde_json::from_slice(&scrubbed.stdout).unwrap();
    assert_eq!(document["names"], serde_json::json!([]), "{document}");
    assert_eq!(document["mismatches"], serde_json::json!([]), "{document}");
    assert!(document["waiting_files"].as_u64() > Some(0), "{document}");
    // What another member lacks is told meanwhile.
    fs::File::options().write(true).open(bench.path("m0/data/files/large")).unwrap().set_len(100).unwrap();
    let scrubbed = bench.run(&["scrub", "db"]);
    assert!(out(&scrubbed).contains("/m0 than its size asks for"), "{}", out(&scrubbed));
}

#[test]
fn a_replacement_is_a_job_that_goes_on_after_it_was_cancelled() {
    let bench = with_large();
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    fs::create_dir(bench.path("new")).unwrap();
    let replace = ["replace", "db", "m1", "new", "--rate", "1M"];
    let child = begin(&bench, &replace);
    let job = await_work(&bench);
    assert!(job["kind"] == "replacement" && job["members"][0].as_str().unwrap().ends_with("/new"), "{job}");
    let said = told(&bench, &["cancel", "db"]);
    assert!(said.contains("a replacement by process ") && said.contains("the same command, given again, goes on"), "{said}");
    assert_eq!(refused(&child.ended()).0, 1);
    // The same command goes on, too.
    told(&bench, &["replace", "db", "m1", "new"]);
    let (_, line) = refused(&bench.run(&["replace", "db", "m1", "new"]));
    assert!(line.contains("not a member of the array"), "{line}");
    told(&bench, &["scrub", "db"]);
    assert_bears(&bench, "m0");
}

/// Whether only changes are computed or everything, and why, is told by the job.
#[test]
fn a_re_add_is_a_job_that_says_what_it_computes() {
    for is_copy in [false, true] {
        let bench = with_large();
        told(&bench, &["fail", "db", "m1"]);
        told(&bench, &["add", "--array", "db", "large", "/data/files/more"]);
        told(&bench, &["stop", "db"]);
        if is_copy {
            fs::rename(bench.path("m1"), bench.path("away")).unwrap();
            let copied = Command::new("cp").arg("-a").args([bench.path("away"), bench.path("m1")]).status().unwrap();
            assert!(copied.success());
        }
        let child = begin(&bench, &["re-add", "db", "m1", "--rate", "1M"]);
        let job = await_work(&bench);
        let reason = job["reason"].as_str().unwrap_or_default();
        let mode = if is_copy { "everything" } else { "changes" };
        assert!(job["kind"] == "re-add" && job["mode"] == mode && reason.contains("a copy") == is_copy, "{job}");
        let status = out(&bench.run(&["status", "db"]));
        assert!(status.contains("re-add of ") && status.contains("all of it is made anew: ") == is_copy, "{status}");
        let said = told(&bench, &["cancel", "db"]);
        assert!(said.contains("a re-add by process ") && said.contains("'cxlraid rebuild db' goes on"), "{said}");
        assert_eq!(child.ended().status.code(), Some(1));
        told(&bench, &["re-add", "db", "m1"]);
        told(&bench, &["scrub", "db"]);
        assert_bears(&bench, "m0");
    }
}

#[test]
fn a_scrub_that_is_cancelled_tells_what_it_has_found() {
    let bench = with_large();
    let child = begin(&bench, &["scrub", "db", "--rate", "1M", "--json"]);
    let job = await_work(&bench);
    assert!(job["kind"] == "scrub" && job["mode"] == "check" && job["pid"] == child.id(), "{job}");
    assert_eq!(job["files_total"], FILES + 1, "{job}");
    let (_, line) = refused(&bench.run(&["scrub", "db", "--repair"]));
    assert!(line.contains(&format!("db: a scrub by process {} runs on the array", child.id())), "{line}");
    told(&bench, &["pause", "db"]);
    await_rest(&bench);
    // It is ended also while it is paused.
    assert_eq!(told(&bench, &["cancel", "db"]), format!("db: a scrub by process {} is cancelled\n", child.id()));
    let output = child.ended();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["interrupted"] == true && report["mismatches"] == Value::Array(vec![]), "{report}");
}

/// SIGINT ends a scrub that is paused, as it ends one that works.
#[test]
fn a_signal_ends_a_scrub_that_is_paused() {
    let bench = with_large();
    let child = begin(&bench, &["scrub", "db", "--rate", "1M"]);
    await_work(&bench);
    told(&bench, &["pause", "db"]);
    let pid = sys::rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    sys::rustix::process::kill_process(pid, sys::rustix::process::Signal::INT).unwrap();
    let output = child.ended();
    assert!(output.status.code() == Some(1) && out(&output).ends_with("; interrupted\n"), "{}", out(&output));
}

#[test]
fn a_job_gives_way_to_programs_that_are_busy() {
    let bench = with_large();
    let config = array::Config::new(
        layout::Level::Raid5,
        None,
        &["m0", "m1", "m2"].map(|member| bench.path(member).into_os_string().into_encoded_bytes()),
        &[b"/data".to_vec()],
        "db".to_owned(),
    );
    let array = array::Array::attach(&config.unwrap()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A program that uses the array, this process, is at work.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let child = begin(&bench, &["scrub", "db", "--idle", "--rate", "2M"]);
        let job = await_job(&bench, |job| job["state"] == "giving-way");
        assert!(job["gives_way"] == true, "{job}");
        let text = out(&bench.run(&["status", "db"]));
        assert!(text.contains("scrub, giving way to programs: "), "{text}");
        is_over.store(true, Ordering::Relaxed);
        // Other tests go on in this process, which is a program of the array no more.
        array.runtime().detach();
        await_job(&bench, |job| job["state"] == "running");
        told(&bench, &["cancel", "db"]);
        child.ended();
    });
    array.abandon();
}

#[test]
fn what_is_wrong_is_refused() {
    let bench = filled();
    for command in ["pause", "resume", "cancel"] {
        let (status, line) = refused(&bench.run(&[command, "db"]));
        assert!(status == 1 && line.contains("db: no rebuild, replacement, re-add or scrub runs on the array; "), "{line}");
        let (status, line) = refused(&bench.run(&[command, "nobody"]));
        assert!(status == 1 && line.contains("no array has this name"), "{line}");
        let (status, line) = refused(&bench.run(&[command, "d b"]));
        assert!(status == 2 && line.contains("invalid value"), "{line}");
        let (status, _) = refused(&bench.run(&[command]));
        assert_eq!(status, 2);
    }
    for wrong in [["--rate", "0"], ["--rate", "500X"], ["--rate", "1K"], ["--workers", "0"], ["--workers", "257"]] {
        for command in ["rebuild", "scrub"] {
            let (status, line) = refused(&bench.run(&[&[command, "db"], &wrong[..]].concat()));
            assert!(status == 2 && line.contains(wrong[0]), "{line}");
        }
    }
}

/// Another user, whom the array is open to, sees the job and pauses it; one whom it is not open to
/// is refused.
#[test]
fn other_users_of_the_array_see_its_job_and_pause_it() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        // Without root's rights nobody can be somebody else.
        return;
    }
    let bench = Bench::new();
    for path in [bench.home.path().to_owned(), bench.path("m0"), bench.path("m1"), bench.path("m2")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    told(&bench, &["create", "db", "--system", "--group", "60010", "--level", "5", "--at", "/data", "m0", "m1", "m2"]);
    fs::write(bench.path("large"), large()).unwrap();
    told(&bench, &["add", "--array", "db", "large", "/data/large"]);
    let program = bench.path("cxlraid");
    fs::copy(env!("CARGO_BIN_EXE_cxlraid"), &program).unwrap();
    let run_as = |user: u32, group: u32, arguments: &[&str]| {
        bench.program(&program, arguments).env("XDG_CONFIG_HOME", bench.path("none")).uid(user).gid(group).output().unwrap()
    };
    let child = begin(&bench, &["scrub", "db", "--rate", "1M"]);
    await_work(&bench);
    let status = out(&run_as(60001, 60010, &["status", "db"]));
    assert!(status.contains(&format!("; process {} of user 0\n", child.id())), "{status}");
    let paused = run_as(60001, 60010, &["pause", "db"]);
    assert!(out(&paused).contains(" is paused; "), "{}{}", out(&paused), err(&paused));
    assert_eq!(refused(&run_as(60003, 60003, &["cancel", "db"])).0, 1);
    assert_eq!(jobs(&bench).remove(0)["state"], "paused");
    let cancelled = run_as(60001, 60010, &["cancel", "db"]);
    assert!(cancelled.status.success(), "{}", err(&cancelled));
    assert_eq!(child.ended().status.code(), Some(1));
}
