//! The table of wrong settings and members that do not fit.

use super::{
    Case, Outcome, given, handed, loss, others,
    scene::{Scene, is_root, must},
    unreached,
};
use crate::{
    array::Shape,
    process::Output,
    report::{Complaints, compare},
};
use std::{fs, io, path::Path};

const NEWER: &[u8] = include_bytes!("../../../../core/format/tests/golden/superblock-newer.bin");
const INCOMPATIBLE: &[u8] = include_bytes!("../../../../core/format/tests/golden/superblock-incompatible.bin");
const CORRUPT: &[u8] = include_bytes!("../../../../core/format/tests/golden/superblock-corrupt.bin");

type Result = io::Result<Outcome>;

const fn case(name: &'static str, act: fn(&mut Scene<'_>, &mut Complaints) -> Result) -> Case {
    Case { name, shape: Shape::RAID5, act }
}

pub(super) const CASES: [Case; 67] = [
    case("level-unknown", level_unknown),
    case("settings-missing", settings_missing),
    case("members-too-few", members_too_few),
    case("members-too-many", members_too_many),
    case("member-twice", member_twice),
    case("member-in-member", member_in_member),
    case("member-no-directory", member_no_directory),
    case("member-not-there", member_not_there),
    case("member-not-empty", member_not_empty),
    case("member-not-writable", member_not_writable),
    case("member-no-xattrs", member_no_xattrs),
    case("member-of-other", member_of_other),
    case("member-copied", member_copied),
    case("member-stale", member_stale),
    case("format-newer", format_newer),
    case("superblock-damaged", superblock_damaged),
    case("chunk-wrong", chunk_wrong),
    case("array-differs", array_differs),
    case("uuid-wrong", uuid_wrong),
    case("prefix-wrong", prefix_wrong),
    case("prefixes-two", prefixes_two),
    case("journal-set", journal_set),
    case("texts-of-others", texts_of_others),
    case("numbers-of-ours", numbers_of_ours),
    case("directories-deep", given::deep_directories),
    case("descriptors-short", descriptors_short),
    case("address-space-short", address_space_short),
    case("rights-dropped", others::rights_dropped),
    case("sticky", others::sticky_directories),
    case("names-outside", others::names_outside),
    case("privileges-of-files", others::privileges_of_files),
    case("open-to-a-group", others::open_to_a_group),
    case("stores-outlive-a-stop", others::stores_outlive_a_stop),
    case("stores-synchronised", others::stores_are_synchronised),
    case("segment-held", others::segment_held),
    case("segment-name-taken", others::segment_name_taken),
    case("segment-damaged", others::segment_damaged),
    case("one-device", one_device),
    case("member-shut-0", loss::first_shut),
    case("member-shut-1", loss::later_shut),
    case("members-missing", members_missing),
    case("member-empty", member_empty),
    case("given-refused", given::refused),
    case("mount-foreign", given::foreign_mount),
    case("unreached-directory", unreached::directory),
    case("unreached-standard", unreached::standard),
    case("unreached-stored", unreached::stored),
    case("unreached-code", unreached::code),
    case("unreached-threads", unreached::threads),
    case("pid-namespace", unreached::other_pid_namespace),
    case("unreached-refused", unreached::refused),
    case("unreached-rights", unreached::rights),
    case("handed-without-library", handed::without_library),
    case("handed-closed-library", handed::closed_library),
    case("handed-without-proc", handed::without_proc),
    case("handed-other-root", handed::other_root),
    case("handed-cut-off", handed::cut_off),
    case("handed-hanging", handed::hanging),
    case("loss-inherited", loss::inherited),
    case("loss-held", loss::held),
    case("loss-refused", loss::refused),
    case("loss-locks", loss::locks),
    case("loss-told-once", loss::told_once),
    Case { shape: Shape::RAID1, ..case("loss-mapped-1", loss::mapped) },
    case("loss-mapped-5", loss::mapped),
    Case { shape: Shape::RAID6, ..case("loss-mapped-6", loss::mapped) },
    Case { shape: Shape::RAID6, ..case("members-missing-6", members_missing_6) },
];

fn level_unknown(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    for level in ["7", "", "five", "55"] {
        scene.set("CXLRAID_LEVEL", level);
        scene.expect_refusal(
            "EINVAL",
            &[&format!("CXLRAID_LEVEL={level}:"), "unknown RAID level", "use 0, 1, 4, 5, 6"],
            complaints,
        );
    }
    Ok(Outcome::Ran)
}

fn settings_missing(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.unset("CXLRAID_LEVEL");
    scene.expect_refusal("EINVAL", &["CXLRAID_LEVEL is not set"], complaints);
    scene.reset();
    scene.unset("CXLRAID_MOUNTS");
    scene.expect_refusal("EINVAL", &["CXLRAID_MOUNTS is not set"], complaints);
    Ok(Outcome::Ran)
}

fn members_too_few(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let [zero, one] = [0, 1].map(|slot| scene.member(slot).to_owned());
    for (level, needs) in [("5", "at least 3 members"), ("6", "at least 4 members")] {
        scene.set("CXLRAID_LEVEL", level);
        scene.set_members([zero.as_path(), one.as_path()]);
        scene.expect_refusal("EINVAL", &["CXLRAID_MOUNTS", needs, "2 given"], complaints);
    }
    scene.reset();
    scene.set("CXLRAID_LEVEL", "10");
    scene.expect_refusal("EINVAL", &["CXLRAID_MOUNTS", "3"], complaints);
    Ok(Outcome::Ran)
}

fn members_too_many(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let members: Vec<_> = (0..33).map(|number| scene.beside(&format!("many{number}"))).collect();
    for member in &members {
        fs::create_dir(member)?;
    }
    scene.set_members(members.iter().map(|member| member.as_path()));
    scene.expect_refusal("EINVAL", &["CXLRAID_MOUNTS", "33 members given", "the most is 32"], complaints);
    Ok(Outcome::Ran)
}

fn member_twice(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let [zero, one] = [0, 1].map(|slot| scene.member(slot).to_owned());
    scene.set_members([zero.as_path(), one.as_path(), &zero.join(".")]);
    scene.expect_refusal("EINVAL", &[&scene.shown(0), "given twice"], complaints);
    // The same directory by another name.
    let link = scene.beside("link");
    std::os::unix::fs::symlink(&zero, &link)?;
    scene.reset();
    scene.make(complaints);
    scene.set_members([zero.as_path(), one.as_path(), &link]);
    scene.expect_refusal("EINVAL", &[&link.display().to_string(), "is slot 0", "give each member once"], complaints);
    Ok(Outcome::Ran)
}

fn member_in_member(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let [zero, one] = [0, 1].map(|slot| scene.member(slot).to_owned());
    scene.set_members([zero.as_path(), one.as_path(), &one.join("inner")]);
    scene.expect_refusal("EINVAL", &[&one.join("inner").display().to_string(), "lies inside member"], complaints);
    scene.set_members([zero.as_path(), one.as_path(), Path::new("relative")]);
    scene.expect_refusal("EINVAL", &["CXLRAID_MOUNTS: relative: not an absolute path"], complaints);
    Ok(Outcome::Ran)
}

fn member_no_directory(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    fs::remove_dir(scene.member(1))?;
    fs::write(scene.member(1), "a file")?;
    scene.expect_refusal("EIO", &[&scene.shown(1), "not a directory"], complaints);
    Ok(Outcome::Ran)
}

fn member_not_there(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    fs::remove_dir(scene.member(2))?;
    scene.expect_refusal("EIO", &[&scene.shown(2), "does not exist", "create the directory or mount"], complaints);
    Ok(Outcome::Ran)
}

fn member_not_empty(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    fs::write(scene.member(1).join("somebody's"), "data")?;
    scene.expect_refusal("EIO", &[&scene.shown(1), "not empty"], complaints);
    Ok(Outcome::Ran)
}

fn member_not_writable(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to be somebody else"));
    }
    scene.as_nobody = true;
    scene.expect_refusal("EACCES", &[&scene.shown(0), "permission denied"], complaints);
    scene.as_nobody = false;
    scene.make(complaints);
    scene.as_nobody = true;
    scene.expect_refusal("EACCES", &[&scene.shown(0), "you may not use this array", "cxlraid access"], complaints);
    Ok(Outcome::Ran)
}

fn member_no_xattrs(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount ramfs"));
    }
    let mount = super::space::Mount::new(scene.array.place, scene.member(1), "ramfs", "mode=755")?;
    scene.expect_refusal("EOPNOTSUPP", &[&scene.shown(1), "no user extended attributes"], complaints);
    drop(mount);
    Ok(Outcome::Ran)
}

fn member_of_other(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    let others = scene.other_array(complaints)?;
    let [zero, one] = [0, 1].map(|slot| scene.member(slot).to_owned());
    scene.set_members([zero.as_path(), one.as_path(), &others[2]]);
    scene.expect_refusal("EINVAL", &["belongs to array", "give the members of one array"], complaints);
    scene.reset();
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

fn member_copied(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    let copy = scene.beside("copy");
    must(scene.array.place.run("cp").arg("-a").arg(scene.member(0)).arg(&copy))?;
    let [zero, one] = [0, 1].map(|slot| scene.member(slot).to_owned());
    scene.set_members([zero.as_path(), one.as_path(), &copy]);
    scene.expect_refusal("EINVAL", &["is slot 0", "give each member once"], complaints);
    Ok(Outcome::Ran)
}

/// A member that was away while others were written never wins, and never counts.
fn member_stale(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    scene.array.lose(0)?;
    scene.expect_warning("meanwhile\n", &[&scene.shown(0), "missing", "degraded"], complaints);
    scene.array.bring_back(0)?;
    scene.expect_content("file", "before\nmeanwhile\n", complaints);
    scene.array.lose(1)?;
    scene.expect_refusal("EIO", &[&format!("{} stale", scene.shown(0)), &format!("{} missing", scene.shown(1))], complaints);
    scene.array.bring_back(1)?;
    scene.expect_content("file", "before\nmeanwhile\n", complaints);
    Ok(Outcome::Ran)
}

/// A member of a newer format is a member less; two are too many.
fn format_newer(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    scene.replace_superblock(1, NEWER)?;
    scene.expect_warning("meanwhile\n", &[&scene.shown(1), "format version 2.3", "use a newer cxlraid", "degraded"], complaints);
    scene.expect_content("file", "before\nmeanwhile\n", complaints);
    scene.replace_superblock(2, INCOMPATIBLE)?;
    scene.expect_refusal("EIO", &[&scene.shown(1), "use a newer cxlraid"], complaints);
    Ok(Outcome::Ran)
}

/// One damaged superblock is a member less; two are too many.
fn superblock_damaged(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    scene.replace_superblock(1, CORRUPT)?;
    scene.expect_warning("meanwhile\n", &[&scene.shown(1), "damaged", "degraded"], complaints);
    scene.expect_content("file", "before\nmeanwhile\n", complaints);
    scene.replace_superblock(2, CORRUPT)?;
    let [one, two] = [1, 2].map(|slot| format!("{} damaged superblock", scene.shown(slot)));
    scene.expect_refusal("EIO", &["2 of 3 members", &one, &two], complaints);
    Ok(Outcome::Ran)
}

fn chunk_wrong(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    for chunk in ["3000", "0", "32", "128M", "64KB", "", "-4096", "lots"] {
        scene.set("CXLRAID_STRIPE_SIZE", chunk);
        scene.expect_refusal("EINVAL", &[&format!("CXLRAID_STRIPE_SIZE={chunk}:"), "a power of two from 64"], complaints);
    }
    Ok(Outcome::Ran)
}

/// Settings that are right, but not this array's.
fn array_differs(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    scene.set("CXLRAID_STRIPE_SIZE", "4K");
    scene.expect_refusal("EINVAL", &["chunks of 65536 bytes, not 4096"], complaints);
    scene.reset();
    scene.set("CXLRAID_LEVEL", "1");
    scene.expect_refusal("EINVAL", &["form a RAID 5 array, not RAID 1"], complaints);
    scene.reset();
    let fourth = scene.beside("fourth");
    fs::create_dir(&fourth)?;
    let members = scene.array.members.clone();
    scene.set_members(members.iter().map(|member| member.as_path()).chain([fourth.as_path()]));
    scene.expect_refusal("EINVAL", &["has 3 members, 4 given"], complaints);
    // Without a chunk the array's own is taken.
    scene.reset();
    scene.unset("CXLRAID_STRIPE_SIZE");
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

/// The array that is meant is known by its UUID: none is made, and no other one is used.
fn uuid_wrong(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    const OTHER: &str = "01234567-89ab-4cde-8f01-23456789abcd";
    scene.set("CXLRAID_UUID", OTHER);
    // The members are empty directories: mount points without their devices.
    scene.expect_refusal("EIO", &[&scene.shown(0), "no member of array", OTHER, "mount its devices"], complaints);
    scene.reset();
    scene.make(complaints);
    scene.set("CXLRAID_UUID", OTHER);
    scene.expect_refusal("EINVAL", &[&scene.shown(0), "belongs to array", OTHER], complaints);
    for text in ["db", "0123456789ab4cde8f0123456789abcd", "01234567-89ab-4cde-8f01-23456789abcg"] {
        scene.set("CXLRAID_UUID", text);
        scene.expect_refusal("EINVAL", &[&format!("CXLRAID_UUID={text}: not a UUID")], complaints);
    }
    scene.reset();
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

fn prefix_wrong(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let inside = scene.member(1).join("data");
    let data = scene.array.place.data.clone();
    let both = |other: &Path| [data.as_os_str(), other.as_os_str()].join(":".as_ref());
    scene.set("CXLRAID_PATHS", both(&inside));
    scene.expect_refusal("EINVAL", &[&inside.display().to_string(), "lies inside member"], complaints);
    scene.set("CXLRAID_PATHS", both(Path::new("relative")));
    scene.expect_refusal("EINVAL", &["CXLRAID_PATHS: relative: not an absolute path"], complaints);
    scene.set("CXLRAID_PATHS", both(Path::new("/")));
    scene.expect_refusal("EINVAL", &["CXLRAID_PATHS: /"], complaints);
    scene.set("CXLRAID_PATHS", both(Path::new("/.cxlraid")));
    scene.expect_refusal("EINVAL", &["CXLRAID_PATHS: /.cxlraid: members keep"], complaints);
    Ok(Outcome::Ran)
}

/// Two paths of one array: files move between them by rename.
fn prefixes_two(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let second = scene.beside("second");
    let data = scene.array.place.data.clone();
    scene.set("CXLRAID_PATHS", [data.as_os_str(), second.as_os_str()].join(":".as_ref()));
    scene.make(complaints);
    let script = r#"
set -e
ln "$1/file" "$2/linked"
mv "$1/file" "$2/moved"
stat -c %h "$2/moved"
echo more >>"$2/linked"
mv "$2/moved" "$1/file"
rm "$2/linked"
ls "$1" "$2" | wc -l
"#;
    let arguments = [Path::new("-c"), Path::new(script), Path::new("sh"), &data, &second];
    let expected = Output { stdout: b"2\n4\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("two prefixes", &expected, &scene.run("sh", &arguments), complaints);
    scene.expect_content("file", "before\nmore\n", complaints);
    if second.exists() {
        complaints.push("the second prefix was made on the host".to_owned());
    }
    Ok(Outcome::Ran)
}

fn journal_set(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let inside = scene.member(0).join("journal");
    for (journal, says) in [("journal".into(), "not an absolute path"), (inside, "lies inside")] {
        scene.set("CXLRAID_JOURNAL", journal);
        scene.expect_refusal("EINVAL", &["CXLRAID_JOURNAL: ", says], complaints);
    }
    let (journal, away) = (scene.beside("journal"), scene.beside("away"));
    fs::write(&journal, "something else")?;
    scene.set("CXLRAID_JOURNAL", &journal);
    scene.expect_refusal("EIO", &["journal: exists and is not a journal", "choose another path"], complaints);
    fs::remove_file(&journal)?;
    scene.make(complaints);
    // The superblocks know where it is.
    scene.unset("CXLRAID_JOURNAL");
    scene.expect_content("file", "before\n", complaints);
    scene.set("CXLRAID_JOURNAL", "internal");
    let shown = journal.display().to_string();
    scene.expect_refusal("EINVAL", &["CXLRAID_JOURNAL=internal: the array's journal is ", &shown], complaints);
    scene.unset("CXLRAID_JOURNAL");
    fs::rename(&journal, &away)?;
    scene.expect_refusal("EIO", &[&shown, "the array's journal", "cxlraid journal clear --force --to PATH|internal"], complaints);
    fs::write(&journal, "something else")?;
    scene.expect_refusal(
        "EIO",
        &[&shown, "cannot be used as the array's journal", "cxlraid journal clear --force --to PATH|internal"],
        complaints,
    );
    // Its device is mounted elsewhere today.
    scene.set("CXLRAID_JOURNAL", &away);
    scene.expect_content("file", "before\n", complaints);
    let mut damaged = fs::read(&away)?;
    damaged[40] ^= 1;
    fs::write(&away, damaged)?;
    scene.expect_refusal("EIO", &["away", "cannot be used as the array's journal", "damaged"], complaints);
    Ok(Outcome::Ran)
}

/// What lies on members directs no terminal.
fn texts_of_others(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    let journal = scene.beside("j\u{1b}[2J\n\u{202e}");
    scene.set("CXLRAID_JOURNAL", &journal);
    scene.make(complaints);
    scene.unset("CXLRAID_JOURNAL");
    fs::remove_file(&journal)?;
    scene.expect_refusal("EIO", &["/j\\x1b[2J\\n\\u{202e}: the array's journal"], complaints);
    Ok(Outcome::Ran)
}

/// Tries every descriptor in the upper half of what the limit allows with calls that would read or
/// change what it leads to.
const NUMBERS: &str = r"
import errno, fcntl, mmap, os, resource, socket, sys
one, two = socket.socketpair()
first = min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 64), 1 << 15)
own = os.open(sys.argv[1], os.O_RDWR)
calls = [
    lambda n: os.pread(n, 10, 0), lambda n: os.pwrite(n, b'x', 0), lambda n: os.read(n, 1), lambda n: os.fstat(n), lambda n: os.ftruncate(n, 0),
    lambda n: os.dup(n), lambda n: os.dup2(n, 99), lambda n: os.dup2(own, n), lambda n: mmap.mmap(n, 4096), lambda n: os.lseek(n, 0, 0),
    lambda n: os.fchmod(n, 0o777), lambda n: os.open('x', os.O_RDONLY, dir_fd=n), lambda n: os.sendfile(1, n, 0, 10), lambda n: os.close(n),
    lambda n: socket.send_fds(one, [b'x'], [n]), lambda n: os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_DUP2, n, 50)]),
    lambda n: fcntl.flock(n, fcntl.LOCK_EX), lambda n: fcntl.fcntl(n, fcntl.F_GETFL), lambda n: os.fchdir(n), lambda n: os.fsync(n),
]
def is_open(n):
    try:
        return os.readlink('/proc/self/fd/%d' % n) != ''
    except OSError:
        return False
# No listing tells them.
others = [n for n in range(first, first + 1000) if is_open(n)]
found = 0
for n in others:
    for index, call in enumerate(calls):
        try:
            call(n)
            print('descriptor', n, 'answers call', index)
        except OSError as error:
            if error.errno == errno.EBADF:
                found += 1
            else:
                print('descriptor', n, 'call', index, error)
print('numbers' if len(others) > 5 else 'none', found == len(others) * len(calls))
";

/// No number of ours answers a program's call.
fn numbers_of_ours(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    let output = scene.run("python3", &[Path::new("-c"), Path::new(NUMBERS), &scene.data("file")]);
    let expected = Output { stdout: "numbers True\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("descriptors of ours", &expected, &output, complaints);
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

/// A process has no descriptors left, and its changes of names fail: none of them leaves anything
/// behind on a member.
fn descriptors_short(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    const PROGRAM: &str = include_str!("short.py");
    scene.make(complaints);
    let data = scene.data("");
    let below = data.strip_prefix("/").unwrap_or(&data);
    let members: Vec<_> = (0..3).map(|slot| scene.member(slot).join(below)).collect();
    let mut arguments = vec![Path::new("-c"), Path::new(PROGRAM), &data];
    arguments.extend(members.iter().map(|member| member.as_path()));
    let output = scene.run("python3", &arguments);
    let expected = Output { stdout: "130 True True\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("changes with few descriptors", &expected, &output, complaints);
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

/// Programs that have little address space read the file or are told so; no member goes out for
/// anybody.
fn address_space_short(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    const PROGRAM: &str = r#"
        exec 3>>"$0"
        for kib in 40000 70000 100000 200000 300000 450000 700000 1200000 3400000 6000000 8000000 9000000 16000000; do
            (ulimit -v $kib; exec cat "$0") 2>&1 | grep -q -e '^before' -e 'Cannot allocate memory' -e 'failed to map' || echo "with $kib KiB"
        done
        (ulimit -v 1200000; exec cat "$0")
        echo after >&3
    "#;
    scene.make(complaints);
    let output = scene.run("sh", &[Path::new("-c"), Path::new(PROGRAM), &scene.data("file")]);
    let expected = Output { stdout: "before\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("programs with little address space", &expected, &output, complaints);
    // None of them put a member on record as out: each of the three can be missed.
    for slot in 0..3 {
        scene.array.lose(slot)?;
        scene.expect_content("file", "before\nafter\n", complaints);
        scene.array.bring_back(slot)?;
    }
    Ok(Outcome::Ran)
}

fn one_device(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    // All members of these tests lie on one tmpfs. `cxlraid create` says so; on a program's
    // standard error that would be no answer to what it does.
    for text in ["first\n", "second\n"] {
        let output = scene.probe("file", text);
        if !output.succeeded() || !output.stderr.is_empty() {
            complaints.push(crate::report::with_output("a program", &output));
        }
    }
    scene.expect_content("file", "first\nsecond\n", complaints);
    Ok(Outcome::Ran)
}

fn members_missing(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    scene.array.lose(0)?;
    scene.array.lose(2)?;
    let says =
        ["2 of 3 members", &format!("{} missing", scene.shown(0)), &format!("{} missing", scene.shown(2)), "RAID 5 bears 1"];
    scene.expect_refusal("EIO", &says, complaints);
    scene.array.bring_back(0)?;
    scene.array.bring_back(2)?;
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

fn members_missing_6(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    for slot in [0, 1, 3] {
        scene.array.lose(slot)?;
    }
    scene.expect_refusal("EIO", &["3 of 4 members", "RAID 6 bears 2"], complaints);
    scene.array.bring_back(1)?;
    let output = scene.probe("file", "with two missing\n");
    if !output.succeeded() || output.stderr_text().lines().count() != 2 {
        complaints.push(crate::report::with_output("with two members missing", &output));
    }
    scene.expect_content("file", "before\nwith two missing\n", complaints);
    Ok(Outcome::Ran)
}

/// An empty directory where a member is expected is an unmounted device, never a fresh one.
fn member_empty(scene: &mut Scene<'_>, complaints: &mut Complaints) -> Result {
    scene.make(complaints);
    scene.array.lose(1)?;
    fs::create_dir(scene.member(1))?;
    scene.expect_warning("meanwhile\n", &[&scene.shown(1), "missing", "degraded"], complaints);
    if fs::read_dir(scene.member(1))?.next().is_some() {
        complaints.push("something was stored in the directory of a device that is not mounted".to_owned());
    }
    scene.array.lose(2)?;
    fs::create_dir(scene.member(2))?;
    scene.expect_refusal("EIO", &["2 of 3 members"], complaints);
    for slot in [1, 2] {
        fs::remove_dir(scene.member(slot))?;
        scene.array.bring_back(slot)?;
    }
    scene.expect_content("file", "before\nmeanwhile\n", complaints);
    Ok(Outcome::Ran)
}
