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
