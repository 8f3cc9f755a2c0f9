//! What an operator may do to members by hand: a superblock that is closed, a member copied into
//! another's place, a journal that is gone, mount points without their mounts, a file put over a
//! backing file.

mod bench;

use bench::{
    Bench, err,
    filled::{FILES, assert_whole, content, filled, stop},
    library::{library, on_array},
    out,
    seen::{MEMBERS, metadata, status},
    snapshot,
};
use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    sys::rustix::process::geteuid().is_root()
}

#[test]
fn a_superblock_that_is_closed_to_its_owner_puts_its_member_out() {
    if !is_root() {
        eprintln!("NOT RUN: a_superblock_that_is_closed_to_its_owner_puts_its_member_out needs root, to be another user");
        return;
    }
    let bench = Bench::new();
    let mut places: Vec<PathBuf> = MEMBERS.map(|member| bench.path(member)).to_vec();
    places.push(bench.home.path().to_owned());
    places.iter().for_each(|place| chown(place, Some(NOBODY), Some(NOBODY)).unwrap());
    // The build's directory may lie below one that only its owner may search.
    for (from, to) in [(Path::new(env!("CARGO_BIN_EXE_cxlraid")), "cxlraid"), (library(), "libcxlraid.so")] {
        assert!(Command::new("cp").arg(from).arg(bench.path(to)).status().unwrap().success());
    }
    let run = |arguments: &[&str]| -> Output {
        let mut command = bench.program(&bench.path("cxlraid"), arguments);
        command.env("CXLRAID_LIB", bench.path("libcxlraid.so")).uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let made = run(&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"]);
    assert!(made.status.success(), "{}", err(&made));
    fs::write(bench.path("file"), content(1)).unwrap();
    assert!(run(&["add", "-a", "db", "file", "/data/file"]).status.success());
    assert!(run(&["stop", "db"]).status.success());
    let superblock = bench.path("m1/.cxlraid/superblock");
    fs::set_permissions(&superblock, fs::Permissions::from_mode(0o0)).unwrap();
    let shown = run(&["status", "db"]);
    assert_eq!(shown.status.code(), Some(3), "{}{}", out(&shown), err(&shown));
    assert!(out(&shown).contains("m1  failed, volatile: Permission denied"), "{}", out(&shown));
    let read = run(&["run", "db", "--", "cat", "/data/file"]);
    assert!(read.status.success() && read.stdout == content(1), "{}", err(&read));
    let line = format!("cxlraid: {}: cannot open the superblock of this member: permission denied; ", bench.path("m1").display());
    assert!(err(&read).lines().count() == 1 && err(&read).starts_with(&line), "{}", err(&read));
    assert!(err(&read).contains("degraded without this member"), "{}", err(&read));
    assert_eq!(fs::metadata(superblock).unwrap().permissions().mode() & 0o7777, 0);
}

#[test]
fn status_names_the_places_of_a_member_that_was_copied_into_anothers_place() {
    let bench = filled();
    fs::remove_dir_all(bench.path("m1")).unwrap();
    assert!(Command::new("cp").arg("-a").args([bench.path("m0"), bench.path("m1")]).status().unwrap().success());
    let (code, said) = status(&bench);
    assert_eq!(code, Some(1), "{said}");
    let [first, second] = ["m0", "m1"].map(|member| format!("   0  {}  ", bench.path(member).display()));
    assert!(said.contains(&first) && said.contains(&second), "{said}");
    let refusal =
        format!("{}: is slot 0 of the array, and so is another member given; give each member once", bench.path("m1").display());
    assert!(said.contains(&format!("no program can start: {refusal}")), "{said}");
    let before = MEMBERS.map(|member| snapshot(&bench.path(member)));
    let start = on_array(&bench, &["cat", "/data/files/1"]).output().unwrap();
    assert!(start.status.code() == Some(1) && err(&start).contains(&refusal), "{}", err(&start));
    assert!(MEMBERS.map(|member| snapshot(&bench.path(member))) == before);
}

#[test]
fn status_tells_of_a_journal_that_is_gone_or_was_cut_and_leaves_the_members_as_they_are() {
    let bench = Bench::new();
    let created = bench.run(&["create", "db", "--level", "5", "--at", "/data", "--journal", "j", "m0", "m1", "m2"]);
    assert_eq!(created.status.code(), Some(0), "{}", err(&created));
    stop(&bench);
    let journal = bench.path("j");
    let whole = fs::metadata(&journal).unwrap().len();
    let refused = |words: &str| {
        let (code, said) = status(&bench);
        assert!(code == Some(1) && said.contains(&format!("{}: ", journal.display())) && said.contains(words), "{said}");
        let before = metadata(&bench);
        let start = on_array(&bench, &["cat", "/data/x"]).output().unwrap();
        assert!(start.status.code() == Some(1) && err(&start).contains(words), "{}", err(&start));
        assert!(metadata(&bench) == before);
    };
    fs::rename(&journal, bench.path("kept")).unwrap();
    refused("no such file or directory");
    fs::copy(bench.path("kept"), &journal).unwrap();
    fs::File::options().write(true).open(&journal).unwrap().set_len(100_000).unwrap();
    refused(&format!("it was cut: 100000 of its {whole} bytes are left"));
    fs::rename(bench.path("kept"), &journal).unwrap();
    assert_eq!(status(&bench).0, Some(0));
}

/// A program on an array that the environment alone describes.
fn by_environment(bench: &Bench, creation: Option<&str>, program: &[&str]) -> Command {
    let mut command = bench.program(program[0].as_ref(), &program[1..]);
    let members = MEMBERS.map(|member| bench.path(member).display().to_string()).join(":");
    command.env("LD_PRELOAD", library()).env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", members).env("CXLRAID_PATHS", "/data");
    creation.map(|value| command.env("CXLRAID_CREATE", value));
    command
}

fn is_blank(bench: &Bench) -> bool {
    MEMBERS.iter().all(|member| snapshot(&bench.path(member)).is_empty())
}

#[test]
fn no_array_is_made_on_mount_points_without_their_mounts_unless_it_is_asked_for() {
    let bench = Bench::new();
    let store = ["sh", "-c", "echo content > /data/file && cat /data/file"];
    let refused = by_environment(&bench, Some("0"), &store).output().unwrap();
    assert!(!refused.status.success() && err(&refused).contains("CXLRAID_CREATE=0 forbids to make one"), "{}", err(&refused));
    assert!(is_blank(&bench));
    // The table of file systems of a mount namespace of its own, in which the second member is to
    // be mounted.
    let table = bench.path("fstab");
    fs::write(&table, format!("/dev/none {} ext4 defaults 0 0\n", bench.path("m1").display())).unwrap();
    let script = "mount --bind \"$1\" /etc/fstab || exit 99; shift; LD_PRELOAD=$LIBRARY exec \"$@\"";
    let with_table = |creation| {
        let inner = by_environment(&bench, creation, &store);
        let mut shell = bench.program("unshare".as_ref(), &["--mount", "sh", "-c", script, "sh"]);
        shell.arg(&table).arg(inner.get_program()).args(inner.get_args()).env("LIBRARY", library());
        let variables = inner.get_envs().filter(|(name, _)| *name != "LD_PRELOAD");
        variables.for_each(|(name, value)| _ = value.map(|value| shell.env(name, value)));
        shell.output().unwrap()
    };
    let refused = with_table(None);
    if refused.status.code() == Some(99) || err(&refused).contains("unshare failed") {
        eprintln!(
            "NOT RUN: no_array_is_made_on_mount_points_without_their_mounts_unless_it_is_asked_for needs the right to mount"
        );
        return;
    }
    let line = format!(
        "cxlraid: {}: a file system is to be mounted here (/etc/fstab, or a unit of systemd), and none is; ",
        bench.path("m1").display()
    );
    assert!(!refused.status.success() && err(&refused).contains(&line), "{}", err(&refused));
    assert!(err(&refused).contains("set CXLRAID_CREATE=1 to make a new array without it"), "{}", err(&refused));
    assert!(is_blank(&bench));
    let made = with_table(Some("1"));
    assert_eq!((made.status.code(), out(&made).as_str()), (Some(0), "content\n"), "{}", err(&made));
    assert!(MEMBERS.iter().all(|member| bench.path(member).join(".cxlraid/superblock").exists()));
}

#[test]
fn a_plain_file_over_a_backing_file_of_a_later_member_costs_no_data() {
    for member in ["m1", "m2"] {
        let bench = filled();
        for index in [3, 4] {
            let place = bench.path(member).join(format!("data/files/{index}"));
            fs::remove_file(&place).unwrap();
            // Longer, and shorter, than the backing file that was there.
            fs::write(place, vec![b'x'; if index == 3 { 200_000 } else { 10 }]).unwrap();
        }
        let read = on_array(&bench, &["cat", "/data/files/3", "/data/files/4"]).output().unwrap();
        assert!(read.status.success() && read.stdout == [content(3), content(4)].concat(), "{member}: {}", err(&read));
        assert_whole(&bench);
        let paths: Vec<String> = (0..FILES).map(|index| format!("/data/files/{index}")).collect();
        let all: Vec<&str> = ["cat"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        let read = on_array(&bench, &all).output().unwrap();
        assert!(read.stdout == (0..FILES).flat_map(content).collect::<Vec<u8>>(), "{member}: {}", err(&read));
    }
}
