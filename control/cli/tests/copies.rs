//! `add` and `retrieve` as an operator uses them: files and trees go into the array and come back,
//! whole and with all that a name has.

mod bench;

use bench::{Bench, err, out, refused, refused_after_warnings};
use std::{fs, path::Path};

#[test]
fn files_go_into_the_array_and_come_back() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    let content: Vec<u8> = (0..1_000_003_u32).map(|index| ((index * 31) >> 3) as u8).collect();
    fs::write(tree.join("sub/big"), &content).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("sub/big", tree.join("link")).unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs::File::options().write(true).open(tree.join("sub/big")).unwrap().set_modified(then).unwrap();

    let done_saying = |arguments: &[&str], said: &str| {
        let output = bench.run(arguments);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), said), "{arguments:?}");
    };
    let done = |arguments: &[&str]| done_saying(arguments, "");
    done(&["add", "--array", "db", "-r", "tree", "/data/tree"]);
    assert!(bench.path("m0/data/tree/sub").is_dir());
    // A full member of three would hold it all: half of it is here, and parity of the other half.
    assert!(fs::metadata(bench.path("m0/data/tree/sub/big")).unwrap().len() < content.len() as u64);

    let check = |copy: &Path| {
        assert_eq!(fs::read(copy.join("sub/big")).unwrap(), content);
        assert_eq!(fs::metadata(copy.join("sub/big")).unwrap().modified().unwrap(), then);
        assert_eq!(fs::read(copy.join("empty")).unwrap(), b"");
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("sub/big"));
    };
    done(&["retrieve", "-a", "db", "-r", "/data/tree", "back"]);
    check(&bench.path("back"));

    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let warning = |what: &str, todo: &str| {
        format!("cxlraid: {}: warning: member {what}; the array is degraded; {todo}\n", bench.path("m1").display())
    };
    let without = warning("is missing (no such directory)", "bring it back, or 'cxlraid replace' puts another in its place");
    done_saying(&["retrieve", "-a", "db", "-r", "/data/tree", "back"], &without);
    check(&bench.path("back/tree"));
    done_saying(&["add", "-a", "db", "tree/sub/big", "/data/tree/empty"], &without);
    done_saying(&["retrieve", "-a", "db", "/data/tree/empty", "degraded"], &without);
    assert_eq!(fs::read(bench.path("degraded")).unwrap(), content);

    // The member that came back is stale now.
    fs::rename(bench.path("away"), bench.path("m1")).unwrap();
    let stale = bench.run(&["status", "db"]);
    assert_eq!(stale.status.code(), Some(3));
    assert!(out(&stale).contains("stale, volatile: changes were made while it was away"), "{}", out(&stale));
    done_saying(
        &["retrieve", "-a", "db", "/data/tree/empty", "degraded"],
        &warning("is stale (changes were made while it was away)", "'cxlraid re-add' brings it back"),
    );

    let (status, line) = refused_after_warnings(&bench.run(&["add", "-a", "db", "tree/empty", "/elsewhere"]));
    assert_eq!(status, 1);
    assert!(line.ends_with("/elsewhere: is not below the array's paths (/data); give a path below one of them"), "{line}");
    let (_, line) = refused_after_warnings(&bench.run(&["retrieve", "-a", "db", "/data/none", "x"]));
    assert_eq!(line, "cxlraid: /data/none: cannot be read: No such file or directory; check the path");
}

/// What a name in a tree is: its kind with its mode, owner, group, device, number of names, seconds
/// and nanoseconds of its last change, and the value of its attribute `trusted.note`.
fn described(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::symlink_metadata(path).unwrap();
    let mut value = [0; 100];
    let note = sys::rustix::fs::lgetxattr(path, "trusted.note", &mut value[..]).map(|count| value[..count].to_vec());
    let numbers = (found.mode(), found.uid(), found.gid(), found.rdev(), found.nlink());
    format!("{numbers:?} {}.{} {:?}", found.mtime(), found.mtime_nsec(), note.ok())
}

#[test]
fn trees_keep_times_of_links_trusted_attributes_and_files_without_content() {
    use sys::rustix::{
        fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, mknodat, setxattr, utimensat},
        process::geteuid,
    };
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let tree = bench.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    let made = |name: &str, kind, mode, device| mknodat(CWD, tree.join(name), kind, Mode::from_raw_mode(mode), device);
    made("pipe", FileType::Fifo, 0o620, 0).unwrap();
    made("socket", FileType::Socket, 0o751, 0).unwrap();
    fs::hard_link(tree.join("pipe"), tree.join("pipe2")).unwrap();
    std::os::unix::fs::symlink("file", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("dangling")).unwrap();
    let mut names = vec!["dangling", "file", "link", "pipe", "pipe2", "socket"];
    if geteuid().is_root() {
        setxattr(tree.join("file"), "trusted.note", b"mine", XattrFlags::empty()).unwrap();
        setxattr(&tree, "trusted.note", b"of a directory", XattrFlags::empty()).unwrap();
        made("device", FileType::CharacterDevice, 0o640, (1 << 8) | 7).unwrap();
        names.insert(1, "device");
        for name in ["pipe", "socket", "link", "device"] {
            let (user, group) = (Uid::from_raw(7), Gid::from_raw(8));
            chownat(CWD, tree.join(name), Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
    for (index, name) in names.iter().enumerate() {
        let then = Timespec { tv_sec: 1_000_000_000 + index as i64, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: then, last_modification: then };
        utimensat(CWD, tree.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    for command in [&["add", "-a", "db", "-r", "tree", "/data/tree"], &["retrieve", "-a", "db", "-r", "/data/tree", "back"]] {
        let output = bench.run(command);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{command:?}");
    }
    let back = bench.path("back");
    for name in &names {
        let paths = [&tree, &back].map(|tree| described(&tree.join(name)));
        assert_eq!(paths[0], paths[1], "{name}");
    }
    assert_eq!(described(&tree), described(&back));
    assert_eq!(bench.run(&["scrub", "db"]).status.code(), Some(0));
    // Without -r a pipe is refused, and nobody waits for it.
    let (_, line) = refused(&bench.run(&["add", "-a", "db", "tree/pipe", "/data/pipe"]));
    assert!(line.contains("is neither a file"), "{line}");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_copied() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir(bench.path("host")).unwrap();
    ["host/b", "host/c"].iter().for_each(|file| fs::write(bench.path(file), file).unwrap());
    assert!(bench.run(&["add", "-a", "db", "-r", "host", "/data/x"]).status.success());
    // The lowest member alone has a name that nobody made by the array.
    fs::write(bench.path("m0/data/x/a"), "by hand").unwrap();
    let output = bench.run(&["retrieve", "-a", "db", "-r", "/data/x", "back"]);
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string());
    let said = format!(
        "cxlraid: /data/x/a: cannot be read: Input/output error: it is on {} but not on {}, {}; correct it, then copy again\n\
         cxlraid: /data/x: 1 name was left out or copied in part; correct what is said of each, then copy again with -T\n",
        members[0], members[1], members[2]
    );
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(1), said.as_str()));
    for name in ["b", "c"] {
        assert_eq!(fs::read(bench.path("back").join(name)).unwrap(), format!("host/{name}").as_bytes());
    }
    assert!(!bench.path("back/a").exists());
    // It is the failure itself where it was asked for by its name.
    let (status, line) = refused(&bench.run(&["retrieve", "-a", "db", "/data/x/a", "a"]));
    assert_eq!((status, format!("{line}\n").as_str()), (1, said.split_inclusive('\n').next().unwrap()));
}

#[test]
fn a_copy_goes_on_with_t_and_not_from_or_to_members() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), "content").unwrap();
    std::os::unix::fs::symlink("file", bench.path("tree/link")).unwrap();
    let ok = |arguments: &[&str]| assert!(bench.run(arguments).status.success(), "{arguments:?}");
    ok(&["add", "-a", "db", "-r", "tree", "/data/tree"]);
    fs::write(bench.path("tree/file"), "changed").unwrap();
    ok(&["add", "-a", "db", "-rT", "tree", "/data/tree"]);
    for _ in 0..2 {
        ok(&["retrieve", "-a", "db", "-rT", "/data/tree", "back"]);
    }
    assert_eq!(fs::read(bench.path("back/file")).unwrap(), b"changed");
    assert_eq!(fs::read_dir(bench.path("back")).unwrap().count(), 2);

    let member = bench.path("m1").display().to_string();
    for command in [
        &["add", "-a", "db", "m1/data/tree/file", "/data/tree/file"],
        &["retrieve", "-a", "db", "/data/tree/file", "m1/data/tree/file"],
    ] {
        let (status, line) = refused(&bench.run(command));
        let expected =
            format!("{member}/data/tree/file: lies in {member}, a member or a mount of this array; give a path outside of it");
        assert_eq!((status, line), (1, format!("cxlraid: {expected}")), "{command:?}");
    }
    // A member in a tree that is copied is left out.
    let output = bench.run(&["add", "-a", "db", "-r", ".", "/data/all"]);
    assert_eq!(output.status.code(), Some(1));
    for member in ["m0", "m1", "m2"] {
        let line = format!("{}: is a member or a mount of this array, and is left out; ", bench.path(member).display());
        assert!(err(&output).contains(&line), "{}", err(&output));
    }
    ok(&["retrieve", "-a", "db", "/data/all/tree/file", "again"]);
    assert_eq!(fs::read(bench.path("again")).unwrap(), b"changed");
    assert_eq!(bench.run(&["scrub", "db"]).status.code(), Some(0));
}

#[test]
fn attributes_that_are_not_copied_are_told() {
    use sys::rustix::{
        fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, mknodat, setxattr},
        process::geteuid,
    };
    if !geteuid().is_root() {
        return; // Nobody else may set these attributes.
    }
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("program"), "content").unwrap();
    // CAP_NET_BIND_SERVICE, permitted and effective (capabilities(7), vfs_cap_data version 2).
    let capability: Vec<u8> = [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    setxattr(bench.path("program"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    let output = bench.run(&["add", "-a", "db", "program", "/data/program"]);
    let line = format!(
        "cxlraid: /data/program: warning: security.capability of {} is not copied; set it there if it is wanted\n",
        bench.path("program").display()
    );
    assert_eq!((output.status.code(), err(&output)), (Some(0), line));
    assert!(lgetxattr(bench.path("m0/data/program"), "security.capability", &mut [0; 100][..]).is_err());
    fs::create_dir(bench.path("tree")).unwrap();
    mknodat(CWD, bench.path("tree/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    setxattr(bench.path("tree/pipe"), "trusted.note", b"mine", XattrFlags::empty()).unwrap();
    let output = bench.run(&["add", "-a", "db", "-r", "tree", "/data/tree"]);
    let line = format!(
        "cxlraid: /data/tree/pipe: warning: trusted.note of {} is not copied; set it there if it is wanted\n",
        bench.path("tree/pipe").display()
    );
    assert_eq!((output.status.code(), err(&output)), (Some(0), line));
}

#[test]
fn a_file_that_is_lost_is_told_once_and_its_earlier_copy_stays() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("file"), vec![7; 3_000_000]).unwrap();
    assert!(bench.run(&["add", "-a", "db", "file", "/data/file"]).status.success());
    assert!(bench.run(&["stop", "db"]).status.success());
    for member in ["m0", "m1"] {
        fs::File::options().write(true).open(bench.path(member).join("data/file")).unwrap().set_len(500_000).unwrap();
    }
    let output = bench.run(&["retrieve", "-a", "db", "/data/file", "file"]);
    let told = err(&output);
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 3), "{told}");
    for member in ["m0", "m1"] {
        let line = format!("cxlraid: {}: is shorter than its file, ", bench.path(member).join("data/file").display());
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
    assert!(
        told.ends_with("cxlraid: /data/file: cannot be read: Input/output error; correct the cause, then copy again\n"),
        "{told}"
    );
    assert_eq!(fs::metadata(bench.path("file")).unwrap().len(), 3_000_000);
}

/// acl(5) as the kernel keeps it (posix_acl_xattr.h): the owner and user 4242 may do all, others
/// nothing.
fn access_list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [(1, 7, u32::MAX), (2, 7, 4242), (4, 0, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let entry = |(tag, right, id): &(u16, u16, u32)| [&tag.to_le_bytes()[..], &right.to_le_bytes(), &id.to_le_bytes()].concat();
    [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

/// The rights that users have to a copy are those that they have to the original, also where the
/// directory gives others to what is made in it, and where a file is written over that has others.
#[test]
fn a_copy_has_no_access_list_that_its_original_has_not() {
    use std::os::unix::fs::PermissionsExt as _;
    use sys::rustix::fs::{XattrFlags, getxattr, setxattr};
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    fs::create_dir_all(bench.path("tree/sub")).unwrap();
    fs::write(bench.path("tree/sub/file"), "content").unwrap();
    fs::set_permissions(bench.path("tree/sub/file"), fs::Permissions::from_mode(0o660)).unwrap();
    let mkfifo = std::process::Command::new("mkfifo").arg(bench.path("tree/sub/pipe")).status().unwrap();
    assert!(mkfifo.success());
    fs::create_dir(bench.path("host")).unwrap();
    if setxattr(bench.path("host"), "system.posix_acl_default", &access_list(), XattrFlags::empty()).is_err() {
        eprintln!("NOT RUN: the file system has no access control lists");
        return;
    }
    fs::write(bench.path("host/old"), "old").unwrap();
    let has = |path: &Path, name: &str| getxattr(path, name, &mut [0_u8; 200][..]).is_ok();
    assert!(has(&bench.path("host/old"), "system.posix_acl_access"));
    let fine = |arguments: &[&str]| {
        let output = bench.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    };
    let assert_plain = |below: &Path| {
        for (name, mode) in [("sub", 0o755), ("sub/file", 0o660), ("sub/pipe", 0o644)] {
            let path = below.join(name);
            for list in ["system.posix_acl_access", "system.posix_acl_default"] {
                assert!(!has(&path, list), "{} has {list}", path.display());
            }
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
        assert!(!has(below, "system.posix_acl_default"));
    };
    fine(&["add", "--array", "db", "-r", "tree", "/data/tree"]);
    fine(&["retrieve", "--array", "db", "-r", "/data/tree", "host/back"]);
    assert_plain(&bench.path("host/back"));
    fine(&["retrieve", "--array", "db", "/data/tree/sub/file", "host/old"]);
    assert!(!has(&bench.path("host/old"), "system.posix_acl_access"));
    // Into the array, where a directory of it has the list.
    fine(&["add", "--array", "db", "-r", "host", "/data/host"]);
    assert!(has(&bench.path("m0/data/host"), "system.posix_acl_default"));
    fine(&["add", "--array", "db", "-r", "tree", "/data/host/tree"]);
    assert_plain(&bench.path("m0/data/host/tree"));
    // Those that an original has are kept.
    fine(&["retrieve", "--array", "db", "-r", "/data/host", "again"]);
    assert!(has(&bench.path("again"), "system.posix_acl_default"));
}

#[test]
fn a_target_with_a_slash_at_its_end_is_a_directory() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    fs::write(bench.path("file"), "content").unwrap();
    let (status, line) = refused(&bench.run(&["add", "--array", "db", "file", "/data/new/"]));
    assert_eq!(
        (status, line.as_str()),
        (1, "cxlraid: /data/new/: no such directory; make it, or leave out the slash at the end")
    );
    assert!(!bench.path("m0/data/new").exists());
    assert!(bench.run(&["add", "--array", "db", "file", "/data/"]).status.success());
    assert!(bench.path("m0/data/file").is_file());
    let (status, line) = refused(&bench.run(&["retrieve", "--array", "db", "/data/file", "new/"]));
    assert!(status == 1 && line.ends_with("new/: no such directory; make it, or leave out the slash at the end"), "{line}");
    fs::create_dir(bench.path("tree")).unwrap();
    assert!(bench.run(&["add", "--array", "db", "-r", "tree", "/data/tree/"]).status.success());
    assert!(bench.path("m0/data/tree").is_dir());
}

/// Each level of directories takes descriptors, and the limit of a shell is low.
#[test]
fn a_deep_tree_is_copied() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let deep = bench.path("tree").join(["d"; 500].join("/"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "content").unwrap();
    let script = "ulimit -Sn 256; exec \"$@\"";
    let command = env!("CARGO_BIN_EXE_cxlraid");
    for copy in [["add", "--array", "db", "-r", "tree", "/data/tree"], ["retrieve", "--array", "db", "-r", "/data/tree", "back"]]
    {
        let output = bench.program(Path::new("sh"), &[&["-c", script, "sh", command], &copy[..]].concat()).output().unwrap();
        assert!(output.status.success(), "{copy:?}: {}", err(&output));
    }
    let back = bench.path("back").join(["d"; 500].join("/")).join("file");
    assert_eq!(fs::read(back).unwrap(), b"content");
}
