//! `cxlraid fail` and `cxlraid remove`: a member is taken out by hand while programs run, and comes
//! back by a rebuild.

mod bench;

use bench::{Bench, err, out, refused};
use std::{fs, os::unix::fs::FileExt as _, process::Output};

#[track_caller]
fn assert_fine(output: &Output) {
    assert!(output.status.success(), "{}{}", out(output), err(output));
}

/// An array called db with files.
fn filled(level: &str, members: &[&str]) -> Bench {
    let bench = Bench::new();
    for member in members.iter().filter(|member| !bench.path(member).exists()) {
        fs::create_dir(bench.path(member)).unwrap();
    }
    assert_fine(&bench.run(&[&["create", "db", "--level", level, "--chunk", "4K", "--at", "/data"], members].concat()));
    fs::create_dir(bench.path("files")).unwrap();
    for index in 0..20 {
        fs::write(bench.path("files").join(index.to_string()), content(index)).unwrap();
    }
    assert_fine(&bench.run(&["add", "--array", "db", "-r", "files", "/data/files"]));
    bench
}

fn content(index: usize) -> Vec<u8> {
    (0..index * 3000 + 1).map(|place| (place * 31 + index * 7 + place / 251) as u8).collect()
}

#[track_caller]
fn assert_content(bench: &Bench, place: &str) {
    let _ = fs::remove_dir_all(bench.path("back"));
    assert_fine(&bench.run(&["retrieve", "--array", "db", "-r", place, "back"]));
    for index in 0..20 {
        assert!(fs::read(bench.path("back").join(index.to_string())).unwrap() == content(index), "{index}");
    }
}

#[test]
fn a_member_that_was_failed_is_out_and_comes_back_by_a_rebuild() {
    for (level, members) in [
        ("1", &["m0", "m1"][..]),
        ("5", &["m0", "m1", "m2"]),
        ("6", &["m0", "m1", "m2", "m3"]),
        ("10", &["m0", "m1", "m2", "m3"]),
    ] {
        for member in ["m0", "m1"] {
            let bench = filled(level, members);
            let failed = bench.run(&["fail", "db", member]);
            assert_fine(&failed);
            assert!(out(&failed).contains(&format!("/{member} is out of use")), "{}", out(&failed));
            let status = bench.run(&["status", "db"]);
            assert!(
                status.status.code() == Some(3) && out(&status).contains("failed, volatile: taken out of use"),
                "{}",
                out(&status)
            );
            let (_, line) = refused(&bench.run(&["fail", "db", member]));
            assert!(line.contains("out of use already"), "{line}");
            // What it held is not used any more, and what changes now does not reach it.
            assert_fine(&bench.run(&["add", "--array", "db", "-r", "files", "/data/later"]));
            assert!(!bench.path(member).join("data/later").exists());
            assert_content(&bench, "/data/later");
            // Not even by the next start.
            assert_fine(&bench.run(&["stop", "db"]));
            assert_content(&bench, "/data/later");
            assert_fine(&bench.run(&["rebuild", "db", member]));
            let scrubbed = bench.run(&["scrub", "db"]);
            assert_fine(&scrubbed);
            assert!(out(&scrubbed).contains("everything fits"), "{}", out(&scrubbed));
            assert_content(&bench, "/data/later");
        }
    }
}

#[test]
fn what_the_others_cannot_do_without_stays() {
    let bench = filled("5", &["m0", "m1", "m2"]);
    for (arguments, expected) in [
        (&["fail", "db", "elsewhere"], "not a member of the array"),
        (&["remove", "db", "elsewhere"], "not a member of the array"),
        (&["remove", "db", "m1"], "is in use; take it out with 'cxlraid fail' first"),
        (&["fail", "nobody", "m1"], "no array has this name"),
    ] {
        let (status, line) = refused(&bench.run(arguments));
        assert!(status == 1 && line.contains(expected), "{line}");
    }
    assert_fine(&bench.run(&["fail", "db", "m1"]));
    let (status, line) = refused(&bench.run(&["fail", "db", "m2"]));
    assert!(status == 1 && line.contains("files would be lost: /data/files/") && line.contains("10 more"), "{line}");
    assert_content(&bench, "/data/files");
    // By force: what cannot be read is EIO, and the next use of the array has the member again.
    assert_fine(&bench.run(&["fail", "db", "m2", "--force"]));
    let retrieved = bench.run(&["retrieve", "--array", "db", "/data/files/9", "nine"]);
    let status = bench.run(&["status", "db"]);
    assert!(!retrieved.status.success() || status.status.code() != Some(0), "{}{}", out(&status), err(&retrieved));
    assert_fine(&bench.run(&["stop", "db"]));
    assert_content(&bench, "/data/files");
}

#[test]
fn a_member_that_was_removed_leaves_its_place_empty() {
    let bench = filled("5", &["m0", "m1", "m2"]);
    assert_fine(&bench.run(&["fail", "db", "m1"]));
    let removed = bench.run(&["remove", "db", "m1"]);
    assert_fine(&removed);
    assert!(out(&removed).contains("m1 is removed"), "{}", out(&removed));
    let status = bench.run(&["status", "db"]);
    assert!(status.status.code() == Some(3) && out(&status).contains("removed"), "{}", out(&status));
    assert_content(&bench, "/data/files");
    assert_fine(&bench.run(&["stop", "db"]));
    fs::create_dir(bench.path("new")).unwrap();
    assert_fine(&bench.run(&["replace", "db", "m1", "new"]));
    assert_fine(&bench.run(&["scrub", "db"]));
    assert_content(&bench, "/data/files");
    // What was removed is none of the array's members.
    let (_, line) = refused(&bench.run(&["fail", "db", "m1"]));
    assert!(line.contains("not a member of the array"), "{line}");
}

/// A member is failed while another process copies into the array.
#[test]
fn a_member_is_failed_under_a_running_program() {
    for round in 0..4 {
        let bench = filled("6", &["m0", "m1", "m2", "m3"]);
        let mut add = bench.command(&["add", "--array", "db", "-r", "files", "/data/copy"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round * 4));
        assert_fine(&bench.run(&["fail", "db", ["m0", "m3"][round as usize % 2]]));
        assert!(add.wait().unwrap().success());
        assert_content(&bench, "/data/copy");
        assert_content(&bench, "/data/files");
    }
}

/// As many commands at once each take another member out: only as many members go out as the array
/// bears, and a rebuild brings them back.
#[test]
fn members_are_failed_at_once() {
    for (level, members, borne) in [("5", &["m0", "m1", "m2"][..], 1), ("6", &["m0", "m1", "m2", "m3"], 2)] {
        let bench = filled(level, members);
        for round in 0..8 {
            let commands: Vec<_> = members.iter().map(|member| bench.command(&["fail", "db", member]).spawn().unwrap()).collect();
            let failed = commands.into_iter().map(|mut command| command.wait().unwrap().success()).filter(|&done| done).count();
            assert!((1..=borne).contains(&failed), "level {level}, round {round}: {failed} members");
            assert_content(&bench, "/data/files");
            assert_fine(&bench.run(&["rebuild", "db"]));
        }
        assert_fine(&bench.run(&["scrub", "db"]));
        assert_content(&bench, "/data/files");
    }
}

/// A crash has left a stripe whose parity does not fit, and a note that says so. The member that is
/// failed helps to compute the parity first: otherwise its bytes would be computed from parity that
/// does not fit.
#[test]
fn what_a_crash_left_is_made_to_agree_before_a_member_goes_out() {
    let bench = filled("5", &["m0", "m1", "m2"]);
    assert_fine(&bench.run(&["stop", "db"]));
    let (index, content) = (9, content(9));
    let place = |member: &str| bench.path(member).join("data/files").join(index.to_string());
    let first = |member: &str| fs::read(place(member)).unwrap()[..4096].to_vec();
    let holds = |member: &&str| content.chunks(4096).take(2).any(|chunk| first(member) == chunk);
    let (data, parity): (Vec<&str>, Vec<&str>) = ["m0", "m1", "m2"].into_iter().partition(|member| holds(member));
    assert_eq!((data.len(), parity.len()), (2, 1));
    let torn = fs::File::options().write(true).open(place(parity[0])).unwrap();
    torn.write_all_at(&[0x5a; 4096], 0).unwrap();
    let mut value = [0; 64];
    let bytes = sys::rustix::fs::lgetxattr(place("m0"), format::ATTRIBUTE_NAME, &mut value).unwrap();
    let inode = format::Attribute::decode(&value[..bytes]).unwrap().inode;
    for member in ["m0", "m1", "m2"] {
        let table = fs::File::options().read(true).write(true).open(bench.path(member).join(".cxlraid/inodes")).unwrap();
        let mut bytes = [0; format::INODE_RECORD_BYTES];
        table.read_exact_at(&mut bytes, format::inode_record_offset(inode)).unwrap();
        let mut record = format::InodeRecord::decode(inode, &bytes).unwrap().unwrap();
        record.resync = Some(format::Resync { start: 0, end: 8192, lost: units::MemberSet::EMPTY });
        table.write_all_at(&record.encode(inode), format::inode_record_offset(inode)).unwrap();
    }
    assert_fine(&bench.run(&["fail", "db", data[1]]));
    assert_content(&bench, "/data/files");
}
