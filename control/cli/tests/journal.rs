//! The journal as an operator meets it: shown, replayed, given up, replaced, and what is said when
//! it or the members that hold it are lost.

mod bench;

use bench::{Bench, err, out, refused};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// Takes back that the last write is settled, as a crash leaves it; returns whether there was one.
fn unsettle(journal: &Path) -> bool {
    let mut bytes = fs::read(journal).unwrap();
    let header = format::JournalHeader::decode(&bytes).unwrap();
    let mut found = false;
    for lane in 0..header.lane_count {
        let at = header.lane_offset(lane) as usize;
        if let Some((record, true)) = format::JournalRecord::decode(bytes[at..at + 64].try_into().unwrap(), header.seed()) {
            bytes[at..at + 64].copy_from_slice(&record.encode(header.seed(), record.sequence - 1));
            found = true;
        }
    }
    fs::write(journal, bytes).unwrap();
    found
}

#[test]
fn the_journal_is_shown_replayed_given_up_and_replaced() {
    let bench = Bench::new();
    let create = ["create", "db", "--level", "5", "--at", "/data", "--journal", "j/cxlraid.journal", "m0", "m1", "m2"];
    let output = bench.run(&create);
    assert_eq!(output.status.code(), Some(1));
    let says = err(&output);
    assert!(says.contains("cannot make a journal of 65 MiB: no such file or directory; create its directory first"), "{says}");
    fs::create_dir(bench.path("j")).unwrap();
    let create = create.map(|word| if word.starts_with("j/") { "j" } else { word });
    assert_eq!(bench.run(&create).status.code(), Some(0));
    let journal = bench.path("j/cxlraid.journal");
    let show = || bench.run(&["journal", "show", "db"]);
    assert_eq!(show().status.code(), Some(0));
    assert!(out(&show()).starts_with(&format!("db: journal {}, clean\n", journal.display())), "{}", out(&show()));
    let done = |arguments: &[&str], says: &str| {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
        assert!(out(&output).contains(says), "{arguments:?}: {}", out(&output));
    };
    let content = vec![0x5a_u8; 100_000];
    fs::write(bench.path("file"), &content).unwrap();
    done(&["add", "-a", "db", "file", "/data/file"], "");
    done(&["stop", "db"], "stopped");

    // A crash between the commit of the last write and its end, which took data with it.
    assert!(unsettle(&journal));
    let spoilt = fs::OpenOptions::new().write(true).open(bench.path("m1/data/file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&spoilt, &[0; 5000], 10_000).unwrap();
    let shown = bench.run(&["journal", "show", "db", "--json"]);
    assert_eq!(shown.status.code(), Some(3));
    for key in ["\"version\": 1", "\"state\": \"waiting\"", "\"bytes\": ", "\"persistence\": \"volatile\"", "\"lanes\": 32"] {
        assert!(out(&shown).contains(key), "{}", out(&shown));
    }
    let (status, line) = refused(&bench.run(&["journal", "remove", "db"]));
    assert_eq!(status, 1);
    assert!(line.contains("1 writes wait in the journal; 'cxlraid journal replay' first"), "{line}");
    done(&["journal", "replay", "db"], "db: 1 writes replayed");
    assert_eq!(show().status.code(), Some(0));
    done(&["retrieve", "-a", "db", "/data/file", "back"], "");
    assert_eq!(fs::read(bench.path("back")).unwrap(), content);

    done(&["stop", "db"], "stopped");
    assert!(unsettle(&journal));
    let (status, line) = refused(&bench.run(&["journal", "clear", "db"]));
    assert!(status == 2 && line.contains("--force"), "{line}");
    done(&["journal", "clear", "db", "--force"], "new and empty; 1 writes given up");
    assert_eq!(show().status.code(), Some(0));

    // Its device is gone: nothing goes on until the operator says so.
    fs::rename(&journal, bench.path("lost")).unwrap();
    assert_eq!(show().status.code(), Some(1));
    let (status, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"]));
    assert_eq!(status, 1);
    assert!(line.contains("the array's journal: no such file or directory") && line.contains("clear --force"), "{line}");
    // The superblocks alone make no file, neither in a free place nor in another file's.
    let there = journal.to_str().unwrap();
    for content in [None, Some(""), Some("something else")] {
        content.map_or(Ok(()), |content| fs::write(&journal, content)).unwrap();
        let (status, line) = refused(&bench.run(&["journal", "clear", "db", "--force"]));
        let says = "the members name this path, and the array's journal is not there; say where to make one by";
        assert!(status == 1 && line.contains(&format!("{there}: {says}")), "{line}");
        assert_eq!(fs::read_to_string(&journal).ok().as_deref(), content);
    }
    let (_, line) = refused(&bench.run(&["journal", "clear", "db", "--force", "--to", there]));
    assert!(line.contains("exists and is not a journal"), "{line}");
    assert_eq!(fs::read(&journal).unwrap(), b"something else");
    fs::remove_file(&journal).unwrap();
    done(&["journal", "clear", "db", "--force", "--to", there], "every file is compared");
    done(&["retrieve", "-a", "db", "/data/file", "back"], "");
    // The old one is foreign now.
    fs::copy(bench.path("lost"), &journal).unwrap();
    let (_, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"]));
    assert!(line.contains("is not the journal that the array was last used with"), "{line}");
    done(&["journal", "clear", "db", "--force", "--to", "internal"], "journal internal is new and empty");

    assert!(bench.path("m1/.cxlraid/journal").exists() && !bench.path("m2/.cxlraid/journal").exists());
    done(&["journal", "remove", "db"], "has no journal any more");
    assert!(!bench.path("m1/.cxlraid/journal").exists());
    done(&["journal", "show", "db"], "db: no journal");
    done(&["journal", "add", "db", "internal"], "db: journal internal");
    done(&["add", "-a", "db", "file", "/data/again"], "");
    done(&["journal", "show", "db"], "db: journal internal, clean");
    assert_eq!(fs::read(bench.path("back")).unwrap(), content);
}

/// The array is used with the copies that are left, and so it is shown; not if a copy is another
/// journal.
#[test]
fn a_copy_of_the_journal_that_is_lost_does_not_make_the_journal_lost() {
    let bench = Bench::new();
    assert_eq!(
        bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "internal", "m0", "m1", "m2"]).status.code(),
        Some(0)
    );
    fs::write(bench.path("file"), [7; 100_000]).unwrap();
    assert_eq!(bench.run(&["add", "-a", "db", "file", "/data/file"]).status.code(), Some(0));
    assert_eq!(bench.run(&["stop", "db"]).status.code(), Some(0));
    let show = |status: i32, says: [&str; 2]| {
        let output = bench.run(&["journal", "show", "db"]);
        assert!(output.status.code() == Some(status), "{}", out(&output));
        assert!(says.iter().all(|says| out(&output).contains(says)), "{}", out(&output));
    };
    let copy = |member: &str| bench.path(member).join(".cxlraid/journal");
    show(0, ["db: journal internal, clean", "lanes: "]);
    fs::rename(copy("m1"), bench.path("kept")).unwrap();
    show(3, ["db: journal internal, clean", "m1/.cxlraid/journal: cannot be read"]);
    assert!(unsettle(&copy("m0")));
    show(3, ["db: journal internal, writes wait to be replayed", "m1/.cxlraid/journal: cannot be read"]);
    let summary = out(&bench.run(&["status", "db"]));
    assert!(summary.contains("1 writes wait to be replayed; a copy is lost: "), "{summary}");
    // Another array's journal was put there by somebody: attaching is refused.
    let other = Bench::new();
    let made = other.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "internal", "m0", "m1", "m2"]);
    assert_eq!(made.status.code(), Some(0));
    fs::copy(other.path("m0/.cxlraid/journal"), copy("m1")).unwrap();
    show(1, ["db: journal internal, lost", "it belongs to array"]);
    // None of the copies can be used.
    fs::remove_file(copy("m1")).unwrap();
    fs::write(copy("m0"), "").unwrap();
    show(1, ["db: journal internal, lost", "m0/.cxlraid/journal: not a cxlraid journal"]);
}

/// Who owns the members may put anything in the place of their files, and name any journal.
#[test]
fn a_pipe_in_a_files_place_holds_nobody_up() {
    let bench = Bench::new();
    fs::create_dir(bench.path("j")).unwrap();
    let create = ["create", "db", "--level", "1", "--at", "/data", "--journal", "j/file", "m0", "m1"];
    assert_eq!(bench.run(&create).status.code(), Some(0));
    let pipe = |path: &Path| {
        fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let within_a_time = |arguments: &[&str]| {
        let mut child = bench.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        for _ in 0..200 {
            if child.try_wait().unwrap().is_some() {
                return child.wait_with_output().unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        panic!("{arguments:?} waits");
    };
    pipe(&bench.path("j/file"));
    let shown = within_a_time(&["journal", "show", "db"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(out(&shown).contains("j/file: cannot be read: it is not a regular file\n"), "{}", out(&shown));
    let (_, line) = refused(&within_a_time(&["journal", "clear", "db", "--force"]));
    assert!(line.contains("the array's journal is not there"), "{line}");
    let superblock = bench.path("m1/.cxlraid/superblock");
    fs::copy(&superblock, bench.path("kept")).unwrap();
    pipe(&superblock);
    let status = within_a_time(&["status", "db"]);
    assert!(out(&status).contains("failed, volatile: it is not a regular file"), "{}", out(&status));
    let (_, line) = refused(&within_a_time(&["examine", "m1"]));
    assert!(line.contains("m1/.cxlraid/superblock: it is not a regular file"), "{line}");
    // Nor is the directory of the journal waited for.
    fs::rename(bench.path("kept"), &superblock).unwrap();
    fs::remove_dir_all(bench.path("j")).unwrap();
    assert!(Command::new("mkfifo").arg(bench.path("j")).status().unwrap().success());
    assert_eq!(within_a_time(&["journal", "show", "db"]).status.code(), Some(1));
}

/// What holds an array's journal or is to hold it is put on record if it is away: it comes back
/// without this journal.
#[test]
fn a_member_that_was_away_when_the_journal_was_made_is_no_reason_to_refuse_the_array() {
    for slot in ["m0", "m1", "m2"] {
        let bench = Bench::new();
        assert_eq!(bench.create().status.code(), Some(0));
        let run = |arguments: &[&str]| {
            let output = bench.run(arguments);
            assert_eq!(output.status.code(), Some(0), "{slot}, {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let away = |act: &dyn Fn()| {
            run(&["stop", "db"]);
            fs::rename(bench.path(slot), bench.path("away")).unwrap();
            fs::create_dir(bench.path(slot)).unwrap();
            act();
            run(&["stop", "db"]);
            fs::remove_dir(bench.path(slot)).unwrap();
            fs::rename(bench.path("away"), bench.path(slot)).unwrap();
        };
        fs::write(bench.path("file"), [7; 100_000]).unwrap();
        run(&["add", "-a", "db", "file", "/data/file"]);
        away(&|| run(&["journal", "add", "db", "internal"]));
        run(&["retrieve", "-a", "db", "/data/file", "back"]);
        away(&|| run(&["journal", "clear", "db", "--force"]));
        run(&["retrieve", "-a", "db", "/data/file", "back"]);
        assert!(fs::read(bench.path("back")).unwrap() == [7; 100_000]);
    }
}

/// What is wrong is the members, not the journal that lies on them: to give that up would lose what
/// waits in it.
#[test]
fn older_copies_of_the_members_that_hold_the_journal_are_told_as_such() {
    let bench = Bench::new();
    let made = bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "internal", "m0", "m1", "m2"]);
    assert!(made.status.success(), "{}", err(&made));
    let done = |arguments: &[&str]| {
        let output = bench.run(arguments);
        assert!(output.status.success(), "{}", err(&output));
    };
    let rename = |from: &str, to: &str| fs::rename(bench.path(from), bench.path(to)).unwrap();
    fs::write(bench.path("file"), "content").unwrap();
    done(&["add", "-a", "db", "file", "/data/first"]);
    done(&["stop", "db"]);
    for member in ["m0", "m1"] {
        let copy = bench.path(&format!("{member}.copy"));
        assert!(Command::new("cp").arg("-a").args([bench.path(member), copy]).status().unwrap().success());
    }
    done(&["add", "-a", "db", "file", "/data/second"]);
    done(&["stop", "db"]);
    for member in ["m0", "m1"] {
        rename(member, &format!("{member}.used"));
        rename(&format!("{member}.copy"), member);
    }
    let [m0, m1] = ["m0", "m1"].map(|member| bench.path(member).display().to_string());
    let says = format!("2 of 3 members cannot be used ({m0} stale, {m1} stale), RAID 5 bears 1; put back the directories that");
    let status = out(&bench.run(&["status", "db"]));
    assert!(status.contains(&format!("no program can start: {says}")) && !status.contains("journal clear"), "{status}");
    assert!(status.contains("journal: internal, on members that cannot be used\n"), "{status}");
    for arguments in ["add -a db file /data/third", "journal replay db", "journal clear db --force"] {
        let (code, line) = refused(&bench.run(&arguments.split(' ').collect::<Vec<_>>()));
        assert!(code == 1 && line.contains(&says) && !line.contains("clear"), "{line}");
    }
    for member in ["m0", "m1"] {
        fs::remove_dir_all(bench.path(member)).unwrap();
        rename(&format!("{member}.used"), member);
    }
    done(&["retrieve", "-a", "db", "/data/second", "back"]);
    assert_eq!(fs::read(bench.path("back")).unwrap(), b"content");
}
