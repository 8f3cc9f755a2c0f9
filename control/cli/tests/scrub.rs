//! `cxlraid scrub`: every flipped byte is reported and what the level can locate is mended right,
//! nothing is reported while programs write, and whoever kills a scrub leaves nothing behind.

mod bench;

use bench::{Bench, Random, err, out, refused};
use format::{
    JOURNAL_HEADER_BYTES, JOURNAL_LANE_HEAD_BYTES, JOURNAL_RECORD_BYTES, JOURNAL_SETTLED_OFFSET, JournalHeader, JournalRecord,
};
use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, SystemTime},
};

fn content(index: usize) -> Vec<u8> {
    (0..index * 7000 + 100).map(|place| (place * 31 + index * 7 + place / 251) as u8).collect()
}

/// An array called db of these members, with files of several sizes, a link and a directory.
fn filled(level: &str, members: &[&str], more: &[&str]) -> Bench {
    let bench = Bench::new();
    for member in members.iter().filter(|member| !bench.path(member).exists()) {
        fs::create_dir(bench.path(member)).unwrap();
    }
    let create = [&["create", "db", "--level", level, "--chunk", "4K", "--at", "/data"], more, members].concat();
    let created = bench.command(&create).env("CXLRAID_JOURNAL_LANES", "2").output().unwrap();
    assert!(created.status.success(), "{}", err(&created));
    fs::create_dir_all(bench.path("files/sub")).unwrap();
    for index in 0..8 {
        fs::write(bench.path("files").join(["", "sub"][index % 2]).join(index.to_string()), content(index)).unwrap();
    }
    fs::hard_link(bench.path("files/2"), bench.path("files/sub/linked")).unwrap();
    let added = bench.run(&["add", "--array", "db", "-r", "files", "/data/files"]);
    assert!(added.status.success(), "{}", err(&added));
    assert!(bench.run(&["stop", "db"]).status.success());
    bench
}

#[track_caller]
fn assert_content(bench: &Bench) {
    let _ = fs::remove_dir_all(bench.path("back"));
    let retrieved = bench.run(&["retrieve", "--array", "db", "-r", "/data/files", "back"]);
    assert!(retrieved.status.success(), "{}", err(&retrieved));
    for index in 0..8 {
        let file = bench.path("back").join(["", "sub"][index % 2]).join(index.to_string());
        assert!(fs::read(file).unwrap() == content(index), "{index}");
    }
}

#[track_caller]
fn assert_exit(output: &Output, expected: i32) {
    assert_eq!(output.status.code(), Some(expected), "{}{}", out(output), err(output));
}

/// A file as it was.
#[derive(PartialEq)]
struct Saved {
    path: PathBuf,
    bytes: Vec<u8>,
    modified: SystemTime,
}

/// All files of a directory, with what they hold.
fn saved(directory: &Path) -> Vec<Saved> {
    let files = bench::snapshot(directory).into_iter().filter(|(path, _)| path.is_file());
    files.map(|(path, bytes)| Saved { modified: fs::metadata(&path).unwrap().modified().unwrap(), path, bytes }).collect()
}

/// Puts back what files held. The files stay the same: a member knows them by their inode numbers.
fn restore(files: &[Saved]) {
    for Saved { path, bytes, modified } in files {
        if fs::read(path).unwrap_or_default() != *bytes {
            let file = fs::File::options().write(true).create(true).truncate(false).open(path).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            file.set_modified(*modified).unwrap();
        }
    }
}

/// Changes a byte as a medium does that rots: no time changes.
fn rot(path: &Path, at: u64, mask: u8) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ mask], at).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn an_array_that_fits_is_found_to() {
    let bench = filled("6", &["m0", "m1", "m2", "m3"], &[]);
    let members: Vec<_> = ["m0", "m1", "m2", "m3"].map(|member| saved(&bench.path(member).join("data"))).into();
    let scrubbed = bench.run(&["scrub", "db"]);
    assert_exit(&scrubbed, 0);
    assert!(out(&scrubbed).starts_with("db: 8 files, ") && out(&scrubbed).ends_with("; everything fits\n"), "{}", out(&scrubbed));
    assert_eq!(err(&scrubbed), "");
    let after: Vec<_> = ["m0", "m1", "m2", "m3"].map(|member| saved(&bench.path(member).join("data"))).into();
    assert!(members == after, "a check changes no file");
    let json = out(&bench.run(&["scrub", "db", "--json"]));
    for key in [
        "\"version\": 1",
        "\"mode\": \"check\"",
        "\"interrupted\": false",
        "\"files\": 8",
        "\"mismatches\": []",
        "\"tables\": []",
    ] {
        assert!(json.contains(key), "{json}");
    }
    let some = bench.run(&["scrub", "db", "--check", "/data/files/sub", "/data/files/2"]);
    assert_exit(&some, 0);
    assert!(out(&some).starts_with("db: 5 files, "), "{}", out(&some));
}

#[test]
fn what_cannot_be_scrubbed_is_refused() {
    let bench = filled("5", &["m0", "m1", "m2"], &[]);
    for (arguments, status, expected) in [
        (&["scrub", "nobody"][..], 1, "no array has this name"),
        (&["scrub", "db", "/data/nothing"], 1, "no such file"),
        (&["scrub", "db", "/elsewhere"], 1, "is not below the array's paths"),
        (&["scrub", "db", "--check", "--repair"], 2, "cannot be used with"),
        (&["scrub"], 2, "none named"),
        (&["scrub", "d b"], 2, "invalid value"),
    ] {
        let (code, line) = refused(&bench.run(arguments));
        assert!(code == status && line.contains(expected), "{arguments:?}: {code} {line}");
    }
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    fs::rename(bench.path("m2"), bench.path("away2")).unwrap();
    assert_eq!(refused(&bench.run(&["scrub", "db"])).0, 1);
    fs::rename(bench.path("away2"), bench.path("m2")).unwrap();
    let degraded = bench.run(&["scrub", "db"]);
    assert_exit(&degraded, 3);
    assert!(out(&degraded).contains("m1: out of use; not compared"), "{}", out(&degraded));
}

/// Whether a byte of a file lies in the payload of a lane of the journal.
fn is_payload(path: &Path, at: usize, bytes: &[u8]) -> bool {
    let header = Some(path).filter(|path| path.ends_with(".cxlraid/journal")).map(|_| JournalHeader::decode(bytes).unwrap());
    let lane = |header: JournalHeader| Some(at.checked_sub(JOURNAL_HEADER_BYTES)? % header.lane_bytes);
    header.and_then(lane).is_some_and(|at| at >= JOURNAL_LANE_HEAD_BYTES)
}

/// A byte of anything that members hold is flipped; the scrub reports it, mends what it says, and
/// afterwards everything fits.
fn flips(level: &str, members: &[&str], more: &[&str], seed: u64, count: u64) {
    let bench = filled(level, members, more);
    // What a check that found nothing left is what the array is put back to.
    assert_exit(&bench.run(&["scrub", "db"]), 0);
    assert!(bench.run(&["stop", "db"]).status.success());
    let whole = saved(bench.home.path());
    let in_members = |path: &Path| members.iter().any(|member| path.starts_with(bench.path(member)));
    let files: Vec<&Saved> = whole.iter().filter(|file| in_members(&file.path) && !file.bytes.is_empty()).collect();
    // More of them for who has the time: FLIPS=1000 SEED=7 cargo test.
    let given = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let mut random = Random(given("SEED").unwrap_or(seed));
    for _ in 0..given("FLIPS").unwrap_or(count) {
        let Saved { path, bytes, .. } = files[random.below(files.len() as u64) as usize];
        let (at, bit) = (random.below(bytes.len() as u64) as usize, random.below(8));
        rot(path, at as u64, 1 << bit);
        let what = format!(
            "level {level}, seed {seed}: bit {bit} of byte {at} of {}",
            path.strip_prefix(bench.home.path()).unwrap().display()
        );
        let found = bench.run(&["scrub", "db", "--json"]);
        if is_payload(path, at, bytes) {
            // Nothing waits in the journal, so nobody needs it.
            assert_exit(&found, 0);
            assert_content(&bench);
            let _ = bench.run(&["stop", "db"]);
            restore(&whole);
            continue;
        }
        assert_eq!(found.status.code(), Some(3), "{what}: {}{}", out(&found), err(&found));
        let is_data = !path.components().any(|part| part.as_os_str() == ".cxlraid");
        let json = out(&found);
        if is_data {
            let is_located = level == "6" || (level == "1" && members.len() > 2);
            assert_eq!(json.contains("\"verdict\": \"located\""), is_located, "{what}: {json}");
            assert!(json.contains("\"tables\": []") && json.contains("\"names\": []"), "{what}: {json}");
            let repaired = bench.run(&["scrub", "db", "--repair"]);
            assert_exit(&repaired, 3);
            assert_exit(&bench.run(&["scrub", "db"]), 0);
            if is_located {
                assert_eq!(fs::read(path).unwrap()[at], bytes[at], "{what}: {}", out(&repaired));
            }
        } else {
            let name = format!(".cxlraid/{}", path.file_name().unwrap().to_str().unwrap());
            assert!(json.contains("\"mismatches\": []") && json.contains(&name), "{what}: {json}");
            let repaired = bench.run(&["scrub", "db", "--repair"]);
            assert!(matches!(repaired.status.code(), Some(0 | 3)), "{what}: {}{}", out(&repaired), err(&repaired));
            if name == ".cxlraid/changed" {
                assert_exit(&bench.run(&["scrub", "db"]), 0);
            }
            assert_content(&bench);
        }
        let _ = bench.run(&["stop", "db"]);
        restore(&whole);
    }
}

#[test]
fn every_flipped_byte_is_reported_on_level_1() {
    flips("1", &["m0", "m1", "m2"], &[], 11, 40);
}

#[test]
fn every_flipped_byte_is_reported_on_level_5() {
    flips("5", &["m0", "m1", "m2"], &[], 12, 40);
}

#[test]
fn every_flipped_byte_is_reported_on_level_6() {
    flips("6", &["m0", "m1", "m2", "m3"], &[], 13, 40);
}

#[test]
fn every_flipped_byte_is_reported_on_level_10() {
    flips("10", &["m0", "m1", "m2", "m3"], &[], 14, 40);
}

#[test]
fn every_flipped_byte_is_reported_with_a_journal_on_the_members() {
    flips("5", &["m0", "m1", "m2"], &["--journal", "internal"], 15, 40);
}

/// States where the parts of the table of changed files are: a byte of each, and whether a member
/// that is out keeps the scrub from healing it.
const PARTS_OF_CHANGED: [(u64, &str); 12] = [
    (3, "its kind"),
    (20, "the array's UUID"),
    (40, "the member's UUID"),
    (66, "the first mark of the use"),
    (130, "the second mark of the use"),
    (4094, "the checksum"),
    (4096 + 32 + 9, "the record of m1"),
    (4096 + 31 * 32, "the last record"),
    (4096 + 32 * 32 + 5, "the record of marks that may be missing"),
    (8191, "the last reserved byte"),
    (8192, "the first mark of a file"),
    (8192 + (1 << 18) - 1, "the last mark of a file"),
];

/// Bytes of the tables that nothing depends on: of a header, and of a record that is not used. Each
/// is reported, mended on the member that it rots on, and not spread to the others.
#[test]
fn bytes_of_tables_that_nothing_depends_on_are_mended() {
    let bench = filled("5", &["m0", "m1", "m2"], &[]);
    assert_exit(&bench.run(&["scrub", "db"]), 0);
    assert!(bench.run(&["stop", "db"]).status.success());
    let whole = saved(bench.home.path());
    let parts = [("inodes", 80), ("inodes", 2000), ("names", 81), ("lanes", 500), ("backings", 4000)].into_iter();
    let marks = [("inodes", 64 + 8), ("inodes", 128 + 9), ("backings", 64)].into_iter();
    // Record 50 of the inodes, 51 of the backings, and the end of what is there of each.
    let unused = (0..64).step_by(15).map(|at| ("inodes", 4096 + 49 * 64 + at));
    let unused = unused.chain((0..32).step_by(9).map(|at| ("backings", 4096 + 51 * 32 + at)));
    for (round, (table, at)) in parts.chain(marks).chain(unused).enumerate() {
        let member = ["m0", "m1", "m2"][round % 3];
        let path = bench.path(member).join(".cxlraid").join(table);
        if fs::metadata(&path).unwrap().len() <= at {
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_len(at / 4096 * 4096 + 4096).unwrap();
        }
        rot(&path, at, 1 << (round % 8));
        let found = bench.run(&["scrub", "db", "--json"]);
        let json = out(&found);
        let is_told = json.contains(&format!("{member}/.cxlraid/{table}")) && json.contains("\"mismatches\": []");
        assert!(found.status.code() == Some(3) && is_told, "{table} {at}: {json}{}", err(&found));
        bench.run(&["scrub", "db", "--repair"]);
        let again = bench.run(&["scrub", "db", "--json"]);
        assert!(out(&again).contains("\"tables\": []"), "{table} {at} on {member}: {}", out(&again));
        assert_exit(&again, 0);
        assert!(bench.run(&["stop", "db"]).status.success());
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        assert!(bench.run(&["stop", "db"]).status.success());
        restore(&whole);
    }
    assert_content(&bench);
}

/// The table of changed files while all members are in sync, and while one is away that has left in
/// order: each kind of byte, on the lowest member and on another.
#[test]
fn each_kind_of_byte_of_the_table_of_changed_files_is_reported_and_mended() {
    for is_out in [false, true] {
        let bench = filled("5", &["m0", "m1", "m2"], &[]);
        if is_out {
            assert!(bench.run(&["fail", "db", "m1"]).status.success());
            assert!(bench.run(&["add", "--array", "db", "files/4", "/data/files/more"]).status.success());
            assert!(bench.run(&["stop", "db"]).status.success());
        }
        let degraded = if is_out { 3 } else { 0 };
        assert_exit(&bench.run(&["scrub", "db"]), degraded);
        assert!(bench.run(&["stop", "db"]).status.success());
        let whole = saved(bench.home.path());
        for (round, (at, part)) in PARTS_OF_CHANGED.into_iter().enumerate() {
            let member = ["m0", "m2"][round % 2];
            let path = bench.path(member).join(".cxlraid/changed");
            rot(&path, at, 1 << (round % 8));
            let found = bench.run(&["scrub", "db", "--json"]);
            let json = out(&found);
            let is_told = json.contains(&format!("{member}/.cxlraid/changed")) && json.contains("\"mismatches\": []");
            assert!(found.status.code() == Some(3) && is_told, "{part}: {json}{}", err(&found));
            assert_exit(&bench.run(&["scrub", "db", "--repair"]), 3);
            let again = bench.run(&["scrub", "db", "--json"]);
            // While a member is away nothing tells whether a damaged header is that of an older
            // table.
            if !is_out || at >= 4096 {
                assert!(out(&again).contains("\"tables\": []"), "{part}: {}", out(&again));
            }
            assert!(bench.run(&["stop", "db"]).status.success());
            restore(&whole);
        }
        let path = bench.path("m0/.cxlraid/changed");
        let longer = fs::File::options().write(true).open(&path).unwrap();
        longer.write_all_at(b"x", fs::metadata(&path).unwrap().len() + 100).unwrap();
        assert_exit(&bench.run(&["scrub", "db"]), 3);
        // What is mended counts as what costs most.
        rot(&path, 8192 + 2, 1);
        assert_exit(&bench.run(&["scrub", "db", "--repair"]), 3);
        assert_exit(&bench.run(&["scrub", "db"]), degraded);
        if is_out {
            let added = bench.run(&["re-add", "db", "m1"]);
            assert!(added.status.success(), "{}", err(&added));
            assert_exit(&bench.run(&["scrub", "db"]), 0);
            assert_content(&bench);
        }
    }
}

/// Names a range of a file in a lane on each member, as a writer does that is killed.
fn name_in_a_lane(bench: &Bench, members: &[&str], path: &str, range: std::ops::Range<u64>) {
    let mut bytes = [0; format::ATTRIBUTE_BYTES];
    let backing = bench.path(members[0]).join(path);
    sys::rustix::fs::getxattr(&backing, format::ATTRIBUTE_NAME, &mut bytes[..]).unwrap();
    let format::Attribute { inode, generation } = format::Attribute::decode(&bytes).unwrap();
    let (offset, length) = (range.start, range.end - range.start);
    let record = format::LaneRecord { kind: format::LaneKind::Write, inode, generation, offset, length, sequence: 1, owner: 1 };
    for member in members {
        let lanes = fs::File::options().write(true).open(bench.path(member).join(".cxlraid/lanes")).unwrap();
        lanes.write_all_at(&record.encode(), format::lane_offset(3)).unwrap();
    }
}

/// After an orderly end no lane names what was written last: nothing waits for a resync, which
/// would make parity of that from the data.
#[test]
fn what_rots_after_the_last_write_of_an_orderly_use_is_told_and_waits_for_nothing() {
    rots_after_the_last_write(false);
}

/// After another end lanes name it, and the first to open the file for writing makes parity of that
/// from the data.
#[test]
fn what_rots_after_the_last_write_is_told_before_a_resync_makes_it_right() {
    rots_after_the_last_write(true);
}

fn rots_after_the_last_write(is_named: bool) {
    for (level, members) in [("5", &["m0", "m1", "m2"][..]), ("6", &["m0", "m1", "m2", "m3"]), ("1", &["m0", "m1"])] {
        let bench = filled(level, members, &[]);
        if is_named {
            name_in_a_lane(&bench, members, "data/files/sub/7", 0..20_000);
        }
        rot(&bench.path("m1/data/files/sub/7"), 5000, 1);
        for _ in 0..2 {
            let scrubbed = bench.run(&["scrub", "db"]);
            assert_exit(&scrubbed, 3);
            let line = "/data/files/sub/7: 1 byte does not fit in 4.0 KiB from ";
            assert!(out(&scrubbed).contains(line) && out(&scrubbed).contains("1 thing does not fit"), "{}", out(&scrubbed));
        }
        let json = out(&bench.run(&["scrub", "db", "--json"]));
        let is_told = json.contains(if is_named { "\"mended\": \"waits\"" } else { "\"mended\": \"no\"" });
        assert!(is_told, "{json}");
        assert_exit(&bench.run(&["scrub", "db", "--repair"]), 3);
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        if level == "6" {
            assert_content(&bench);
        }
    }
}

/// The header of a member's journal, and where the lane is that it has used last.
fn used_lane(journal: &Path) -> (JournalHeader, usize) {
    let bytes = fs::read(journal).unwrap();
    let header = JournalHeader::decode(&bytes).unwrap();
    let offsets = (0..header.lane_count).map(|lane| header.lane_offset(lane) as usize);
    let sequence = |at: &usize| {
        JournalRecord::decode(bytes[*at..][..64].try_into().unwrap(), header.seed()).map_or(0, |found| found.0.sequence)
    };
    (header, offsets.max_by_key(sequence).unwrap())
}

#[test]
fn a_member_that_is_made_anew_gets_a_journal_that_fits_the_others() {
    for member in ["m0", "m1"] {
        let bench = filled("5", &["m0", "m1", "m2"], &["--journal", "internal"]);
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        for arguments in [["fail", "db", member].as_slice(), &["rebuild", "db"]] {
            let done = bench.run(arguments);
            assert!(done.status.success(), "{}", err(&done));
        }
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        // The copies are alike again after more has gone through the journal.
        assert!(bench.run(&["add", "--array", "db", "files/2", "/data/more"]).status.success());
        assert!(bench.run(&["stop", "db"]).status.success());
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        assert_content(&bench);
    }
}

#[test]
fn what_a_killed_writer_left_in_a_payload_that_nobody_needs_is_no_fault() {
    let bench = filled("5", &["m0", "m1", "m2"], &["--journal", "internal"]);
    let journal = bench.path("m1/.cxlraid/journal");
    let (header, at) = used_lane(&journal);
    let file = fs::File::options().read(true).write(true).open(&journal).unwrap();
    file.write_all_at(&[0x5a; 1000], (at + JOURNAL_LANE_HEAD_BYTES) as u64).unwrap();
    assert_exit(&bench.run(&["scrub", "db"]), 0);
    assert!(bench.run(&["stop", "db"]).status.success());

    // While the record waits, and on all copies, what differs is told.
    let mut record = [0; JOURNAL_RECORD_BYTES];
    file.read_exact_at(&mut record, at as u64).unwrap();
    let (found, _) = JournalRecord::decode(&record, header.seed()).unwrap();
    for member in ["m0", "m1"] {
        let file = fs::File::options().write(true).open(bench.path(member).join(".cxlraid/journal")).unwrap();
        file.write_all_at(&found.encode(header.seed(), found.sequence - 1), at as u64).unwrap();
    }
    let told = bench.run(&["scrub", "db"]);
    assert_exit(&told, 3);
    assert!(out(&told).contains("a write waits in it to be replayed"), "{}", out(&told));
    assert!(out(&told).contains("copies of the same bytes: members differ"), "{}", out(&told));
}

#[test]
fn a_copy_of_the_journal_that_has_settled_no_record_is_mended_by_the_next_start() {
    let bench = filled("5", &["m0", "m1", "m2"], &["--journal", "internal"]);
    let journal = bench.path("m0/.cxlraid/journal");
    let (_, at) = used_lane(&journal);
    let file = fs::File::options().read(true).write(true).open(&journal).unwrap();
    file.write_all_at(&[0; JOURNAL_SETTLED_OFFSET], at as u64).unwrap();
    let told = bench.run(&["scrub", "db"]);
    assert_exit(&told, 3);
    assert!(out(&told).contains("its record is torn"), "{}", out(&told));
    assert!(bench.run(&["stop", "db"]).status.success());
    assert_exit(&bench.run(&["scrub", "db"]), 0);
}

#[test]
fn names_that_differ_are_reported() {
    let bench = filled("5", &["m0", "m1", "m2"], &[]);
    fs::remove_file(bench.path("m2/data/files/4")).unwrap();
    let scrubbed = bench.run(&["scrub", "db"]);
    assert_exit(&scrubbed, 3);
    assert!(out(&scrubbed).contains("/data/files/4: is missing on ") && out(&scrubbed).contains("/m2"), "{}", out(&scrubbed));
}

#[test]
fn a_check_says_that_what_a_member_lacked_of_a_file_was_given_back() {
    let bench = filled("5", &["m0", "m1", "m2"], &[]);
    let file = bench.path("m2/data/files/6");
    for (word, spoil) in [
        (
            "is shorter on",
            &(|file: &Path| fs::File::options().write(true).open(file).unwrap().set_len(100).unwrap()) as &dyn Fn(&Path),
        ),
        ("is missing on", &|file| fs::remove_file(file).unwrap()),
    ] {
        let whole = fs::read(&file).unwrap();
        spoil(&file);
        let told = bench.run(&["scrub", "db", "--check"]);
        assert_exit(&told, 3);
        let said = out(&told);
        let line = said.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{said}"));
        assert_eq!(fs::read(&file).is_ok_and(|bytes| bytes == whole), line.ends_with("; made that of the others"), "{said}");
        assert!(line.ends_with("; made that of the others"), "{said}");
        assert!(bench.run(&["stop", "db"]).status.success());
        assert_exit(&bench.run(&["scrub", "db"]), 0);
        assert_content(&bench);
        assert!(bench.run(&["stop", "db"]).status.success());
    }
}

#[test]
fn a_scrub_beside_a_program_that_writes_reports_nothing() {
    let bench = filled("5", &["m0", "m1", "m2"], &[]);
    let mut scrubs = 0;
    for round in 0..6 {
        let place = format!("/data/copy{round}");
        let mut add = bench.command(&["add", "--array", "db", "-r", "files", &place]).stdout(Stdio::null()).spawn().unwrap();
        let is_at_work = |add: &mut std::process::Child| add.try_wait().unwrap().is_none();
        loop {
            let scrubbed = bench.run(&["scrub", "db"]);
            assert_exit(&scrubbed, 0);
            scrubs += 1;
            if !is_at_work(&mut add) {
                break;
            }
        }
        assert!(add.wait().unwrap().success());
    }
    assert!(scrubs >= 6);
}

/// Kills scrubs that mend at instants further and further on; nothing is left behind, and in the
/// end everything is what it was.
#[test]
fn a_scrub_that_is_killed_leaves_nothing_behind() {
    let bench = filled("6", &["m0", "m1", "m2", "m3"], &[]);
    let mut random = Random(5);
    let files = saved(&bench.path("m1/data"));
    let examined = out(&bench.run(&["examine", "m0"]));
    let uuid = examined.lines().find_map(|line| line.strip_prefix("├─ UUID: ")).unwrap().to_owned();
    let shared = || fs::read_dir("/dev/shm").unwrap().flatten().any(|entry| entry.file_name().to_string_lossy().contains(&uuid));
    let mut killed = 0;
    for round in 0..60 {
        let Saved { path, bytes, .. } = &files[random.below(files.len() as u64) as usize];
        rot(path, random.below(bytes.len() as u64), 4);
        let mut child = bench.command(&["scrub", "db", "--repair"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(700 * (round % 30) + 300));
        let _ = child.kill();
        killed += usize::from(child.wait().unwrap().code().is_none());
        if round % 10 == 9 {
            let repaired = bench.run(&["scrub", "db", "--repair"]);
            assert!(matches!(repaired.status.code(), Some(0 | 3)), "{}", err(&repaired));
            assert_exit(&bench.run(&["scrub", "db"]), 0);
            assert_content(&bench);
            let stopped = bench.run(&["stop", "db"]);
            assert!(stopped.status.success(), "{}", err(&stopped));
            assert!(!shared(), "no shared memory is left");
        }
    }
    assert!(killed > 20, "{killed} of 60 were killed in time");
    assert_eq!(saved(&bench.path("m1/data")).len(), files.len());
}

#[test]
fn a_scrub_that_is_interrupted_says_what_it_has_found() {
    let bench = filled("5", &["m0", "m1", "m2"], &[]);
    let large = bench.path("large");
    fs::write(&large, vec![7; 256 << 20]).unwrap();
    assert!(bench.run(&["add", "--array", "db", "large", "/data/large"]).status.success());
    let child = bench.command(&["scrub", "db"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(40));
    let _ = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let output = child.wait_with_output().unwrap();
    // A quick machine may have come to its end, and a slow one not to where it is asked for
    // signals.
    assert!(matches!(output.status.code(), Some(0 | 1) | None), "{output:?}");
    if output.status.code() == Some(1) {
        assert!(out(&output).trim_end().ends_with("interrupted"), "{}", out(&output));
    }
    assert_exit(&bench.run(&["scrub", "db", "/data/files"]), 0);
    assert!(fs::metadata(bench.path("m0/data/large")).unwrap().size() > 0);
}
