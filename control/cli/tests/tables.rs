//! Tables of a member that are older or newer than this program's, gone, not a file, or that give
//! read errors: the member goes out by name, or is read right, and what is in the array is what it
//! was.

mod bench;

use bench::{
    Bench, err,
    filled::{FILES, assert_bears, assert_whole, content, filled, stop},
    library::on_array,
    out,
    seen::{MEMBERS, metadata, status},
    snapshot,
};
use format::{MemberEntry, SUPERBLOCK_BYTES, Superblock, TABLE_HEADER_BYTES, TableHeader, TableKind};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

const TABLES: [(&str, TableKind); 4] =
    [("inodes", TableKind::Inodes), ("lanes", TableKind::Lanes), ("names", TableKind::Names), ("backings", TableKind::Backings)];

/// The CRC-32C of docs/format, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// Puts the checksum of the first `covered` bytes at the end of a block of 4096 bytes.
fn seal(block: &mut [u8], covered: usize) {
    let checksum = crc32c(&block[..covered]);
    block[4092..4096].copy_from_slice(&checksum.to_le_bytes());
}

fn place(bench: &Bench, member: &str, file: &str) -> PathBuf {
    bench.path(member).join(".cxlraid").join(file)
}

/// All files as a program reads them, and what is said on its standard error.
#[track_caller]
fn read_by_program(bench: &Bench) -> String {
    let paths: Vec<String> = (0..FILES).map(|index| format!("/data/files/{index}")).collect();
    let arguments: Vec<&str> = ["cat"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let output = on_array(bench, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(output.stdout == (0..FILES).flat_map(content).collect::<Vec<u8>>(), "{}", err(&output));
    err(&output)
}

/// The one line that names the member.
#[track_caller]
fn assert_names(bench: &Bench, said: &str, member: &str, words: &[&str]) {
    let start = format!("cxlraid: {}: ", bench.path(member).display());
    assert!(said.lines().count() == 1 && said.starts_with(&start), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
}

/// Makes the tables of a member what a program of version 1 left.
fn make_version_1(bench: &Bench, member: &str) {
    for (file, kind) in TABLES {
        let path = place(bench, member, file);
        let mut bytes = fs::read(&path).unwrap();
        assert!(TableHeader::decode(kind, &bytes).unwrap().is_checked);
        bytes[8..12].copy_from_slice(&[1, 0, 0, 0]);
        // No member and no marks.
        bytes[32..4092].fill(0);
        match kind {
            TableKind::Inodes => bytes[TABLE_HEADER_BYTES..].chunks_mut(64).for_each(|record| record[52..].fill(0)),
            TableKind::Backings => {
                bytes[12..16].copy_from_slice(&16u32.to_le_bytes());
                let records: Vec<u8> = bytes[TABLE_HEADER_BYTES..].chunks(32).flat_map(|record| record[..16].to_vec()).collect();
                bytes.splice(TABLE_HEADER_BYTES.., records);
            }
            _ => {}
        }
        seal(&mut bytes, 4092);
        assert!(!TableHeader::decode(kind, &bytes).unwrap().is_checked);
        fs::write(path, bytes).unwrap();
    }
    let path = place(bench, member, "superblock");
    let (newest, _) = Superblock::choose(&fs::read(&path).unwrap()).unwrap();
    let members = newest.members.map(|entry| MemberEntry { out_count: 0, ..entry });
    let of_1 = Superblock { members, use_count: 0, clean_count: 0, update_id: 0, previous_update_id: 0, ..newest };
    let older = Superblock { copy_sequence: of_1.copy_sequence - 1, ..of_1.clone() };
    let mut bytes = [of_1.encode(), older.encode()].concat();
    for copy in bytes.chunks_mut(SUPERBLOCK_BYTES / 2) {
        copy[10..12].fill(0);
        seal(copy, 4092);
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_array_of_version_1_is_read_right_and_brought_up_to_date_by_its_first_start() {
    // By a program with the library, and by a command.
    for by_program in [true, false] {
        let bench = filled();
        MEMBERS.iter().for_each(|member| make_version_1(&bench, member));
        let (code, said) = status(&bench);
        assert_eq!(code, Some(0), "{said}");
        let said = if by_program { read_by_program(&bench) } else { String::new() };
        assert_eq!(said, "");
        assert_whole(&bench);
        for member in MEMBERS {
            for (file, kind) in [TABLES[0], TABLES[3]] {
                let header = TableHeader::decode(kind, &fs::read(place(&bench, member, file)).unwrap()).unwrap();
                assert!(header.is_checked, "{member}: {file}");
            }
        }
        fs::write(bench.path("more"), "content").unwrap();
        assert!(bench.run(&["add", "-a", "db", "more", "/data/more"]).status.success());
        let scrub = bench.run(&["scrub", "db"]);
        assert!(scrub.status.success(), "{}{}", out(&scrub), err(&scrub));
        stop(&bench);
        assert_eq!(status(&bench).0, Some(0));
        MEMBERS[..2].iter().for_each(|member| assert_bears(&bench, member));
    }
}

/// Gives a table the major version after this program's, under a right checksum.
fn make_newer(bench: &Bench, member: &str, file: &str, kind: TableKind) {
    let path = place(bench, member, file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 3;
    seal(&mut bytes, 64);
    assert!(TableHeader::decode(kind, &bytes).unwrap_err().to_string().contains("format version 3.0"));
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_table_of_a_newer_version_puts_its_member_out_and_on_all_members_nothing_starts() {
    for (file, kind) in TABLES {
        let bench = filled();
        make_newer(&bench, "m1", file, kind);
        let newer = fs::read(place(&bench, "m1", file)).unwrap();
        let (code, said) = status(&bench);
        let reason = format!("its {kind} has format version 3.0, which needs a newer cxlraid");
        assert!(code == Some(3) && said.contains(&format!("m1  failed, volatile: {reason}")), "{file}: {said}");
        let said = read_by_program(&bench);
        assert_names(&bench, &said, "m1", &["member is damaged (", &reason, "; the array is degraded"]);
        assert_whole(&bench);
        // A rebuild does not overwrite what a newer program has written. It makes the member anew
        // once the operator has emptied the directory.
        let rebuilt = bench.run(&["rebuild", "db"]);
        assert!(
            rebuilt.status.code() == Some(1) && err(&rebuilt).contains("use the newer cxlraid, or empty"),
            "{}",
            err(&rebuilt)
        );
        assert!(fs::read(place(&bench, "m1", file)).unwrap() == newer, "{file}");
        stop(&bench);
        fs::remove_dir_all(bench.path("m1")).unwrap();
        fs::create_dir(bench.path("m1")).unwrap();
        assert!(bench.run(&["rebuild", "db"]).status.success());
        assert_whole(&bench);

        let bench = filled();
        MEMBERS.iter().for_each(|member| make_newer(&bench, member, file, kind));
        let (code, said) = status(&bench);
        assert!(code == Some(1) && said.contains("no program can start: ") && said.contains(&reason), "{file}: {said}");
        let before = MEMBERS.map(|member| snapshot(&bench.path(member)));
        for (words, code) in [(&["cat", "/data/files/1"][..], 1), (&["true"], 0)] {
            let output = on_array(&bench, words).output().unwrap();
            let said = err(&output);
            assert_eq!(output.status.code(), Some(code), "{file}: {said}");
            let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("cxlraid: ")).collect();
            assert_eq!(lines.len(), words.len() - 1, "{file}: {said}");
            for line in lines {
                assert!(line.contains("3 of 3 members cannot be used") && line.contains(&reason), "{file}: {said}");
                assert!(line.contains(&bench.path("m1").display().to_string()), "{file}: {said}");
            }
        }
        assert!(MEMBERS.map(|member| snapshot(&bench.path(member))) == before, "{file}");
    }
}

/// A newer version went on with one member. Nothing serves what the others have missed, until the
/// operator gives that member up.
#[test]
fn a_member_that_a_newer_version_went_on_with_refuses_a_start_until_it_is_moved_away() {
    let bench = filled();
    let path = place(&bench, "m1", "superblock");
    let (newest, _) = Superblock::choose(&fs::read(&path).unwrap()).unwrap();
    let ahead = Superblock { event_count: newest.event_count + 4, ..newest };
    let mut bytes = [ahead.encode(), ahead.encode()].concat();
    for copy in bytes.chunks_mut(SUPERBLOCK_BYTES / 2) {
        copy[8] = 9;
        seal(copy, 4092);
    }
    fs::write(path, bytes).unwrap();
    let before = MEMBERS.map(|member| snapshot(&bench.path(member)));
    let reason = "the array has format version 9.";
    let (code, said) = status(&bench);
    assert!(code == Some(1) && said.contains("no program can start: ") && said.contains(reason), "{said}");
    for output in [on_array(&bench, &["cat", "/data/files/1"]).output().unwrap(), bench.run(&["rebuild", "db"])] {
        let said = err(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&bench.path("m1").display().to_string()) && said.contains(reason), "{said}");
    }
    assert!(MEMBERS.map(|member| snapshot(&bench.path(member))) == before);
    fs::rename(bench.path("m1"), bench.path("kept")).unwrap();
    assert_whole(&bench);
    fs::create_dir(bench.path("m1")).unwrap();
    let rebuilt = bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    assert_whole(&bench);
}

#[test]
fn a_deleted_inode_table_is_told_by_the_program_with_what_to_do() {
    let bench = filled();
    fs::remove_file(place(&bench, "m1", "inodes")).unwrap();
    // A program that names nothing of the array says nothing.
    let silent = on_array(&bench, &["true"]).output().unwrap();
    assert_eq!((silent.status.code(), err(&silent)), (Some(0), String::new()));
    let said = read_by_program(&bench);
    let words = "member failed and is out of use; the array is degraded; .cxlraid/inodes is missing; see 'cxlraid status'; 'cxlraid rebuild' makes";
    assert_names(&bench, &said, "m1", &[words]);
    let (code, said) = status(&bench);
    assert!(code == Some(3) && said.contains("m1  failed"), "{said}");
    assert_whole(&bench);
}

#[test]
fn a_refused_start_says_one_line_and_a_program_elsewhere_none() {
    let bench = filled();
    for member in ["m1", "m2"] {
        fs::remove_file(place(&bench, member, "inodes")).unwrap();
    }
    let silent = on_array(&bench, &["ls", "/"]).output().unwrap();
    assert_eq!((silent.status.code(), err(&silent)), (Some(0), String::new()));
    let refused = on_array(&bench, &["cat", "/data/files/1"]).output().unwrap();
    let said = err(&refused);
    assert_eq!(refused.status.code(), Some(1));
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("cxlraid: ")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("cxlraid: 2 of 3 members cannot be used ("), "{said}");
    assert!(["m1", "m2"].iter().all(|member| lines[0].contains(&bench.path(member).display().to_string())), "{said}");
}

/// A pipe is not waited for, by a command or a program, wherever in `.cxlraid` it lies.
#[test]
fn a_pipe_in_the_place_of_a_table_holds_nobody_up() {
    for file in ["inodes", "lanes", "names", "backings", "superblock", "inodes.header"] {
        let bench = filled();
        let _ = fs::remove_file(place(&bench, "m1", file));
        assert!(Command::new("mkfifo").arg(place(&bench, "m1", file)).status().unwrap().success());
        let (code, said) = status(&bench);
        // That file is there only while a table gets another version.
        let expected = if file == "inodes.header" { 0 } else { 3 };
        assert_eq!(code, Some(expected), "{file}: {said}");
        let said = read_by_program(&bench);
        if expected == 3 {
            assert_names(&bench, &said, "m1", &[]);
        }
        assert_whole(&bench);
    }
}

/// A shell in a mount namespace of its own, in which reading one file of the second member gives
/// EIO. None without the right to mount.
fn with_read_error(bench: &Bench, file: &str, command: &Command) -> Option<Output> {
    // Reading a process' memory where nothing is mapped gives EIO, and the file is a regular one
    // (proc(5)).
    let script = "mount --bind /proc/$$/mem \"$1\" || exit 99; shift; \"$@\"";
    let mut shell = bench.program("unshare".as_ref(), &["--mount", "sh", "-c", script, "sh"]);
    shell.arg(place(bench, "m1", file)).arg(command.get_program()).args(command.get_args());
    command.get_envs().for_each(|(name, value)| _ = value.map(|value| shell.env(name, value)));
    let output = shell.output().unwrap();
    (output.status.code() != Some(99) && !err(&output).contains("unshare failed")).then_some(output)
}

#[test]
fn a_member_whose_files_give_read_errors_is_out_by_name_and_the_rest_serves() {
    for file in ["superblock", "inodes", "lanes", "names", "backings"] {
        let bench = filled();
        let before = metadata(&bench);
        let Some(status) = with_read_error(&bench, file, &bench.command(&["status", "db"])) else {
            eprintln!(
                "NOT RUN: a_member_whose_files_give_read_errors_is_out_by_name_and_the_rest_serves needs the right to mount"
            );
            return;
        };
        assert_eq!(status.status.code(), Some(3), "{file}: {}{}", out(&status), err(&status));
        assert!(out(&status).contains("m1  failed"), "{file}: {}", out(&status));
        assert!(metadata(&bench) == before, "{file}");
        let read = with_read_error(&bench, file, &on_array(&bench, &["cat", "/data/files/3", "/data/files/4"])).unwrap();
        assert!(read.status.success() && read.stdout == [content(3), content(4)].concat(), "{file}: {}", err(&read));
        assert_names(&bench, &err(&read), "m1", &["the array is degraded"]);
        assert_whole(&bench);
    }
}
