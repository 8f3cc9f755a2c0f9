//! Arrays with checksums under programs: reads that verify give right bytes, and where nothing that
//! fits is left EIO, which is told by file and offset.

mod bench;

use bench::library::on_array;
use bench::turned::assert_fine;
use bench::{Bench, err, out, refused};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    process::Output,
};

const LEVELS: [(&str, usize); 5] = [("1", 2), ("5", 3), ("6", 4), ("01", 4), ("10", 4)];

fn content() -> Vec<u8> {
    (0..300_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn made(level: &str, count: usize, options: &[&str]) -> Bench {
    let bench = Bench::new();
    let names: Vec<String> = (0..count).map(|index| format!("m{index}")).collect();
    names.iter().filter(|name| !bench.path(name).exists()).for_each(|name| fs::create_dir(bench.path(name)).unwrap());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = ["create", "db", "--level", level, "--chunk", "4K", "--at", "/data", "--checksum", "crc32c"];
    assert_fine(&bench.run(&[&first, options, &names].concat()));
    bench
}

fn filled(level: &str, count: usize, options: &[&str]) -> Bench {
    let bench = made(level, count, options);
    fs::write(bench.path("file"), content()).unwrap();
    assert_fine(&on_array(&bench, &["cp", bench.path("file").to_str().unwrap(), "/data/file"]).output().unwrap());
    assert_fine(&bench.run(&["stop", "db"]));
    bench
}

/// Changes a byte in a file of a member, in another way on each: what is right does not come out of
/// what is wrong by chance.
fn flip(bench: &Bench, member: usize, at: u64) {
    let file = File::options().read(true).write(true).open(bench.path(&format!("m{member}/data/file"))).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ (3 << member)], at).unwrap();
}

fn read(bench: &Bench) -> Output {
    on_array(bench, &["cat", "/data/file"]).output().unwrap()
}

#[test]
fn a_program_reads_right_bytes_or_gets_eio_which_is_told_by_name() {
    for (level, count) in LEVELS {
        let bench = filled(level, count, &["--verify", "read"]);
        assert!(read(&bench).stdout == content());
        // A block of its own on each member.
        for member in 0..count {
            flip(&bench, member, 4096 * (member as u64 + 1) + 50);
        }
        let output = read(&bench);
        assert!(output.status.success() && output.stdout == content(), "RAID {level}: {}", err(&output));
        assert_eq!(err(&output), "", "RAID {level}");
        let log = out(&bench.run(&["events", "db", "--json"]));
        assert!(log.contains("\"event\":\"Rotten\"") && !log.contains("Unreadable"), "RAID {level}: {log}");
        let status = out(&bench.run(&["status", "db"]));
        assert!(status.contains("  checksum: crc32c, reads are verified\n"), "{status}");
        assert!(status.contains("  wrong: /data/file: what is at offset "), "RAID {level}: {status}");
        // The same block on all members: more than any level bears.
        for member in 0..count {
            flip(&bench, member, 4096 * 6 + 7);
        }
        let output = read(&bench);
        let told = err(&output);
        assert!(!output.status.success() && told.contains("Input/output error"), "RAID {level}: {told}");
        let line = told.lines().find(|line| line.starts_with("cxlraid: /data/file: array db: the bytes at offset "));
        let line = line.unwrap_or_else(|| panic!("RAID {level}: {told}"));
        assert!(line.contains("cannot be read (EIO): ") && line.contains("/m"), "{line}");
        assert!(content().starts_with(&output.stdout), "RAID {level}: what was read before is right");
        let status = out(&bench.run(&["status", "db"]));
        assert!(status.contains("cannot be read (EIO)"), "RAID {level}: {status}");
        // A scrub mends what can be, and lists the file.
        let scrub = bench.run(&["scrub", "db", "--repair"]);
        assert!(
            out(&scrub).contains("/data/file") && out(&scrub).contains("the others do not give what it was"),
            "{}",
            out(&scrub)
        );
        let status = out(&bench.run(&["status", "db"]));
        assert!(status.contains("  wrong: /data/file: what is at offset "), "RAID {level}: {status}");
        let json = out(&bench.run(&["status", "db", "--json"]));
        assert!(json.contains("\"path\": \"/data/file\"") && json.contains("\"verify\": \"read\""), "{json}");
    }
}

#[test]
fn verifying_is_on_record_and_can_be_changed_while_programs_run() {
    let bench = filled("5", 3, &[]);
    let examined = |is_on: bool| {
        let text = out(&bench.run(&["examine", "m1"]));
        assert!(text.contains(if is_on { "Reads Verified: yes" } else { "Reads Verified: no" }), "{text}");
    };
    examined(false);
    (0..3).for_each(|member| flip(&bench, member, 4096 * (member + 1) as u64));
    let plain = read(&bench);
    assert!(plain.status.success() && plain.stdout != content(), "reads look at no checksums");
    // A program that runs hears of it: it waits for a line before its second read.
    let script = "cat /data/file > $1; echo; read line; cat /data/file > $2";
    let (before, after) = (bench.path("before"), bench.path("after"));
    let (before, after) = (before.to_str().unwrap(), after.to_str().unwrap());
    let mut command = on_array(&bench, &["sh", "-c", script, "sh", before, after]);
    let mut child = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    let told = out(&bench.run(&["policy", "db", "--verify", "read"]));
    assert!(told.contains("reads are compared with their checksums"), "{told}");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fs::read(before).unwrap() != content() && fs::read(after).unwrap() == content());
    assert_fine(&bench.run(&["stop", "db"]));
    examined(true);
    assert!(read(&bench).stdout == content());
    assert_fine(&bench.run(&["policy", "db", "--verify", "none"]));
    assert!(read(&bench).stdout != content());
    examined(false);
}

/// A program that has given up its rights before its first read of a file may not reach the sums. It
/// reads what is there, and no error is made of that.
#[test]
fn a_program_without_rights_to_the_sums_reads_as_before() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: only root can give up rights");
        return;
    }
    let bench = filled("5", 3, &["--verify", "read"]);
    (0..3).for_each(|member| flip(&bench, member, 4096 * (member + 1) as u64));
    let script = "import os, sys\nfile = os.open('/data/file', os.O_RDONLY)\nos.setresuid(65534, 65534, 65534)\n\
                  while True:\n    piece = os.read(file, 65536)\n    if not piece: break\n    os.write(1, piece)";
    let output = on_array(&bench, &["python3", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(output.stdout.len() == content().len() && output.stdout != content(), "nothing was verified");
    assert!(read(&bench).stdout == content(), "with rights everything is");
}

#[test]
fn without_checksums_there_is_nothing_to_verify() {
    let bench = Bench::new();
    let words = ["create", "db", "--level", "5", "--at", "/data", "--verify", "read", "m0", "m1", "m2"];
    let (status, line) = refused(&bench.run(&words));
    assert!(status == 2 && line.contains("--checksum crc32c"), "{status} {line}");
    assert_fine(&bench.create());
    let (status, line) = refused(&bench.run(&["policy", "db", "--verify", "read"]));
    assert!(status == 2 && line.contains("no checksums"), "{status} {line}");
}
