//! `cxlraid create` that fails, or meets another one: nothing is left that was not there, and
//! nothing is gone that was.

mod bench;

use bench::{Bench, err, out, refused, refused_after_warnings, snapshot};
use std::fs;

#[test]
fn a_name_that_cannot_be_saved_makes_no_array() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("config/cxlraid")).unwrap();
    fs::write(bench.path("config/cxlraid/arrays"), "mine").unwrap();
    fs::create_dir(bench.path("j")).unwrap();
    let before = snapshot(bench.home.path());
    let with_journal = ["create", "db", "--level", "5", "--at", "/data", "--journal", "j", "m0", "m1", "m2"];
    let (status, line) = refused_after_warnings(&bench.run(&with_journal));
    assert_eq!(status, 1);
    assert!(
        line.ends_with("/arrays: cannot be created: not a directory; remove the file that is in a directory's place"),
        "{line}"
    );
    assert_eq!(snapshot(bench.home.path()), before);
    fs::remove_file(bench.path("config/cxlraid/arrays")).unwrap();
    assert_eq!(bench.run(&with_journal).status.code(), Some(0));
}

#[test]
fn a_member_that_fails_leaves_the_others_as_they_were() {
    let bench = Bench::new();
    // mkfs makes a directory of this name, so a member with it counts as empty; a file cannot be a
    // prefix.
    fs::write(bench.path("m2/lost+found"), "").unwrap();
    fs::write(bench.path("mine"), "").unwrap();
    let before = snapshot(bench.home.path());
    let create =
        |journal| bench.run(&["create", "db", "--level", "5", "--at", "/lost+found/x", "--journal", journal, "m0", "m1", "m2"]);
    for journal in ["internal", "j", "mine"] {
        let (status, line) = refused_after_warnings(&create(journal));
        assert_eq!(status, 1);
        assert!(line.contains("/m2: cannot create this member: a part of the path is not a directory"), "{line}");
        assert_eq!(snapshot(bench.home.path()), before, "{journal}");
    }
    fs::remove_file(bench.path("m2/lost+found")).unwrap();
    assert_eq!(create("mine").status.code(), Some(0));
}

#[test]
fn two_that_make_one_name_at_once_are_told_apart() {
    let bench = Bench::new();
    for member in ["n0", "n1", "n2"] {
        fs::create_dir(bench.path(member)).unwrap();
    }
    for _ in 0..5 {
        let members = [["m0", "m1", "m2"], ["n0", "n1", "n2"]];
        let run = |members: &[&str; 3]| bench.run(&[&["create", "db", "--level", "5", "--at", "/data"], &members[..]].concat());
        let outputs = std::thread::scope(|scope| {
            members.each_ref().map(|members| scope.spawn(|| run(members))).map(|run| run.join().unwrap())
        });
        let lost: Vec<usize> = (0..2).filter(|&index| !outputs[index].status.success()).collect();
        assert_eq!(lost.len(), 1, "{outputs:?}");
        let (status, line) = refused_after_warnings(&outputs[lost[0]]);
        assert_eq!(status, 1);
        assert!(line.starts_with("cxlraid: db: an array has this name: ") && line.contains("; choose another name"), "{line}");
        for member in members[lost[0]] {
            assert_eq!(fs::read_dir(bench.path(member)).unwrap().count(), 0, "{member} is as it was");
        }
        assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
        assert_eq!(bench.run(&["stop", "db"]).status.code(), Some(0));
        assert_eq!(bench.run(&["forget", "db"]).status.code(), Some(0));
        for member in members[1 - lost[0]] {
            fs::remove_dir_all(bench.path(member)).unwrap();
            fs::create_dir(bench.path(member)).unwrap();
        }
    }
}

#[test]
fn what_is_wrong_with_a_journals_place_is_said_in_the_words_of_the_option() {
    let bench = Bench::new();
    fs::write(bench.path("file"), "").unwrap();
    let line = |place: &str| {
        let output = bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", place, "m0", "m1", "m2"]);
        let (_, line) = refused_after_warnings(&output);
        assert!(!line.contains("CXLRAID_JOURNAL") && !line.contains("error "), "{line}");
        line
    };
    assert!(line("m0/j").contains("/m0/j: lies inside "), "{}", line("m0/j"));
    assert!(
        line("file/j").contains(
            "/file/j: cannot make a journal of 65 MiB: a part of the path is not a directory; create its directory first"
        )
    );
    assert!(line("").starts_with("cxlraid: path: an empty one was given; "));
    assert!(line("none/j").contains("no such file or directory; create its directory first"));
    assert_eq!(bench.create().status.code(), Some(0));
    for arguments in [["journal", "add", "db", "m0/j"], ["journal", "add", "db", "file/j"]] {
        let (status, line) = refused(&bench.run(&arguments));
        assert!(status != 0 && !line.contains("CXLRAID_JOURNAL") && !line.contains("error "), "{line}");
    }
}

#[test]
fn a_journal_that_was_cut_is_said_to_be() {
    let bench = Bench::new();
    let created = bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "j", "m0", "m1", "m2"]);
    assert_eq!(created.status.code(), Some(0), "{}", err(&created));
    bench.run(&["stop", "db"]);
    let journal = fs::File::options().write(true).open(bench.path("j")).unwrap();
    let bytes = journal.metadata().unwrap().len();
    journal.set_len(100_000).unwrap();
    let says = format!("it was cut: 100000 of its {bytes} bytes are left");
    let shown = bench.run(&["journal", "show", "db"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(out(&shown).contains(", lost\n") && out(&shown).contains(&says), "{}", out(&shown));
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(out(&status).contains(&says), "{}", out(&status));
    let (_, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/x", "x"]));
    assert!(
        line.contains(&says) && line.contains("mount the right device, or give the journal up by 'cxlraid journal clear"),
        "{line}"
    );
}

#[test]
fn a_directory_that_is_given_twice_by_different_names_is_refused_before_anything_is_made() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("m0", bench.path("link")).unwrap();
    let before = snapshot(bench.home.path());
    let create = |members: &[&str]| {
        let arguments = [&["create", "db", "--level", "1", "--at", "/data"], members].concat();
        bench.run(&arguments)
    };
    for (members, second, first) in [(["m0", "link"], "link", "m0"), (["link", "m0"], "m0", "link")] {
        let (status, line) = refused_after_warnings(&create(&members));
        let [second, first] = [second, first].map(|name| bench.path(name).display().to_string());
        let expected = format!("cxlraid: {second}: is the same directory as {first}; give each member once");
        assert_eq!((status, line), (1, expected));
        assert_eq!(snapshot(bench.home.path()), before);
    }
    // A start by the environment alone makes nothing either.
    let mut retrieve = bench.command(&["retrieve", "/data/x", "x"]);
    let mounts = ["m0", "m1", "link"].map(|name| bench.path(name).display().to_string()).join(":");
    retrieve.env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", mounts).env("CXLRAID_PATHS", "/data");
    let (status, line) = refused(&retrieve.output().unwrap());
    assert!(status == 1 && line.contains("/link: is the same directory as "), "{line}");
    assert_eq!(snapshot(bench.home.path()), before);
    assert_eq!(create(&["m0", "m1"]).status.code(), Some(0));
}

#[test]
fn a_member_of_an_array_is_named_among_empty_directories() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let uuid = bench.uuid();
    fs::create_dir(bench.path("away")).unwrap();
    for members in [["away", "m1"], ["m1", "away"]] {
        let arguments = [&["create", "other", "--level", "1", "--at", "/other"], &members[..]].concat();
        let (status, line) = refused_after_warnings(&bench.run(&arguments));
        let [member, empty] = ["m1", "away"].map(|name| bench.path(name).display().to_string());
        let expected = format!("cxlraid: {member}: belongs to array {uuid} (db), and {empty} is empty; ");
        assert!(status == 1 && line.starts_with(&expected), "{line}");
    }
}

/// The warning that all members are on one device cannot be printed.
#[test]
fn a_line_that_cannot_be_printed_ends_no_command() {
    let bench = Bench::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let create = ["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"];
    assert_eq!(bench.command(&create).stderr(full).status().unwrap().code(), Some(0));
    let refused = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(bench.command(&create).stderr(refused).status().unwrap().code(), Some(1));
}

/// Whoever may read the directory of names may lock it.
#[test]
fn a_locked_directory_of_names_keeps_no_command() {
    let bench = Bench::new();
    let create = |name, m: [&str; 3]| bench.run(&[&["create", name, "--level", "5", "--at", "/data"], &m[..]].concat());
    assert!(create("db", ["m0", "m1", "m2"]).status.success());
    let found = std::process::Command::new("find").arg(bench.home.path()).args(["-name", "db.toml"]).output().unwrap();
    let file = std::path::PathBuf::from(out(&found).trim_end());
    let directory = std::fs::File::open(file.parent().unwrap()).unwrap();
    directory.lock().unwrap();
    let begun = std::time::Instant::now();
    let again = create("other", ["m0", "m1", "m2"]);
    assert!(again.status.success(), "{}", err(&again));
    std::fs::create_dir(bench.path("spare")).unwrap();
    let added = bench.run(&["add", "db", "--spare", "spare"]);
    assert!(added.status.success(), "{}", err(&added));
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));
}

/// Calls by which a creation changes something.
const CHANGING: [&str; 13] = [
    "mkdirat",
    "pwrite64",
    "write",
    "fsync",
    "fdatasync",
    "renameat",
    "linkat",
    "ftruncate",
    "fallocate",
    "unlink",
    "unlinkat",
    "fchmod",
    "flock",
];

/// Runs a creation under strace, and kills it at the call of this kind with this number, from 1 on, if
/// one is given. Returns how many such calls it made, and whether it was killed.
fn traced(bench: &Bench, create: &[&str], call: &str, when: Option<usize>) -> (usize, bool) {
    let (log, trace) = (bench.path("trace"), format!("trace={call}"));
    let mut words = vec!["-f", "-qq", "-o", log.to_str().unwrap(), "-e", &trace, "-e", "signal=none"];
    let inject = format!("inject={call}:signal=SIGKILL:when={}", when.unwrap_or(0));
    if when.is_some() {
        words.extend(["-e", inject.as_str()]);
    }
    let command = env!("CARGO_BIN_EXE_cxlraid");
    let ran = bench.program(std::path::Path::new("strace"), &[&words[..], &[command], create].concat()).output().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let count = text.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|word| word.starts_with(call))).count();
    (count, !ran.status.success())
}

/// Removes the runtime segments of the arrays that these are members of.
fn remove_segments(bench: &Bench, members: &[&str]) {
    for member in members {
        let report = out(&bench.run(&["examine", member]));
        let uuids = report.lines().filter_map(|line| line.strip_prefix("├─ UUID: "));
        uuids.for_each(|uuid| drop(fs::remove_file(format!("/dev/shm/cxlraid-{uuid}"))));
    }
}

/// Removes what a creation has made, and gives empty directories.
fn afresh(bench: &Bench) {
    let _ = bench.run(&["stop", "db"]);
    remove_segments(bench, &["m0", "m1", "m2"]);
    for name in ["config", "state", "journal", "m0", "m1", "m2"] {
        let path = bench.path(name);
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
    ["m0", "m1", "m2"].iter().for_each(|member| fs::create_dir(bench.path(member)).unwrap());
}

/// A creation that was killed at any instant can be given again, as it was. (It needs strace.)
#[test]
fn a_creation_that_was_killed_is_given_again() {
    for (journal, calls) in [
        (None, &CHANGING[..]),
        (Some("internal"), &["pwrite64", "fallocate"]),
        (Some("journal"), &["pwrite64", "fallocate", "ftruncate", "renameat"]),
    ] {
        let bench = Bench::new();
        let mut create = vec!["create", "db", "--level", "5", "--at", "/data/x"];
        create.extend(journal.iter().flat_map(|place| ["--journal", place]));
        create.extend(["m0", "m1", "m2"]);
        let mut killed = 0;
        for &call in calls {
            afresh(&bench);
            let (count, failed) = traced(&bench, &create, call, None);
            assert!(!failed);
            // Most of the calls of one kind are made for one member after the other.
            for when in (1..=count).step_by(if count > 6 && call != "pwrite64" { 3 } else { 1 }) {
                afresh(&bench);
                killed += usize::from(traced(&bench, &create, call, Some(when)).1);
                let again = bench.run(&create);
                let what = format!("{journal:?} {call} {when}");
                let named = fs::exists(bench.path("config/cxlraid/arrays/db.toml")).unwrap();
                let is_named_already = err(&again).contains("an array has this name");
                assert!(named && (again.status.success() || is_named_already), "{what}: {}", err(&again));
                let status = bench.run(&["status", "db"]);
                assert!(status.status.success(), "{what}: {}", out(&status));
                fs::write(bench.path("file"), &what).unwrap();
                let added = bench.run(&["add", "--array", "db", "file", "/data/x/file"]);
                assert!(added.status.success(), "{what}: {}", err(&added));
            }
        }
        assert!(killed > 3 * calls.len(), "{killed}");
        afresh(&bench);
    }
}

/// A start by the environment goes on with it, too.
#[test]
fn a_start_goes_on_with_a_creation_that_was_killed() {
    let bench = Bench::new();
    let create = ["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"];
    for call in ["pwrite64", "ftruncate", "fdatasync", "renameat"] {
        afresh(&bench);
        let (count, _) = traced(&bench, &create, call, None);
        for when in 1..=count {
            afresh(&bench);
            traced(&bench, &create, call, Some(when));
            fs::write(bench.path("file"), "content").unwrap();
            let by_environment = |arguments: &[&str]| {
                let mut command = bench.command(arguments);
                let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
                command.env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", members).env("CXLRAID_PATHS", "/data");
                command.output().unwrap()
            };
            let added = by_environment(&["add", "file", "/data/file"]);
            assert!(added.status.success() && err(&added).is_empty(), "{call} {when}: {}", err(&added));
            let status = by_environment(&["status"]);
            assert!(status.status.success(), "{call} {when}: {}", out(&status));
            assert!(by_environment(&["stop"]).status.success());
        }
    }
    afresh(&bench);
}

#[test]
fn a_directory_of_another_array_or_inside_of_one_is_refused() {
    let bench = Bench::new();
    let made = |name: &str| fs::create_dir_all(bench.path(name)).unwrap();
    ["s", "e0", "e1", "e2", "n0", "n1", "n2", "around/in"].iter().for_each(|name| made(name));
    assert!(bench.create().status.success());
    assert!(bench.run(&["add", "db", "--spare", "s"]).status.success());
    assert!(bench.run(&["create", "e", "--level", "5", "--at", "/e", "e0", "e1", "e2"]).status.success());
    assert!(bench.run(&["add", "e", "--spare", "around/in"]).status.success());
    fs::remove_dir(bench.path("around/in")).unwrap();
    made("m0/in");
    made("m0/data/inner");
    std::os::unix::fs::symlink(bench.path("m0/in"), bench.path("link")).unwrap();
    std::os::unix::fs::symlink(bench.path("s"), bench.path("to-spare")).unwrap();
    // The device of a member is not mounted now, and somebody takes its mount point.
    fs::rename(bench.path("e1"), bench.path("e1-away")).unwrap();
    made("e1");
    let before = snapshot(bench.home.path());
    let cases = [
        ("s", "is a spare of the array db"),
        ("to-spare", "is a spare of the array db"),
        ("m0/in", "m0, a member of the array db"),
        ("link", "m0, a member of the array db"),
        ("m0/data/inner", "m0, a member of the array db"),
        ("e1", "is a member of the array e"),
        ("around", "around/in, a spare of the array e"),
    ];
    for (directory, what) in cases {
        let attempts: [&[&str]; 3] = [
            &["create", "new", "--level", "5", "--at", "/new", "n0", "n1", directory],
            &["replace", "e", "e0", directory],
            &["add", "e", "--spare", directory],
        ];
        for attempt in attempts {
            // An array may use what is its own.
            if attempt[1] == "e" && ["e1", "around"].contains(&directory) {
                continue;
            }
            let output = bench.run(attempt);
            let said = err(&output);
            let line = said.lines().find(|line| !line.contains("warning")).unwrap_or_default();
            assert!(!output.status.success() && line.contains(what), "{attempt:?}: {said}");
            assert!(line.contains("; "), "{attempt:?}: {said}");
        }
    }
    assert_eq!(snapshot(bench.home.path()), before);
    // The members of an array without a name, too; and one another.
    assert!(bench.run(&["forget", "db"]).status.success());
    for attempt in [["n0", "n1", "m0/in"], ["n0", "n1", "link"], ["s", "n1", "inside"]] {
        // A directory with this one alone counts as empty.
        made("s/lost+found");
        let _ = std::os::unix::fs::symlink(bench.path("s/lost+found"), bench.path("inside"));
        let output = bench.run(&[&["create", "new", "--level", "5", "--at", "/new"], &attempt[..]].concat());
        assert!(err(&output).contains("lies inside "), "{attempt:?}: {}", err(&output));
    }
    remove_segments(&bench, &["e0"]);
}

/// Two commands that give one spare to two arrays at once.
#[test]
fn one_directory_does_not_become_the_spare_of_two_arrays() {
    let bench = Bench::new();
    ["e0", "e1", "e2"].iter().for_each(|name| fs::create_dir(bench.path(name)).unwrap());
    assert!(bench.create().status.success());
    assert!(bench.run(&["create", "e", "--level", "5", "--at", "/e", "e0", "e1", "e2"]).status.success());
    for round in 0..50 {
        let spare = format!("s{round}");
        fs::create_dir(bench.path(&spare)).unwrap();
        let fine = std::thread::scope(|scope| {
            let runs = ["db", "e"].map(|name| scope.spawn(|| bench.run(&["add", name, "--spare", &spare]).status.success()));
            runs.map(|run| run.join().unwrap())
        });
        assert!(fine[0] != fine[1], "round {round}: {fine:?}");
    }
    remove_segments(&bench, &["e0"]);
}
