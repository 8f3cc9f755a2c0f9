//! Files are moved to other levels (`cxlraid migrate`, `cxlraid policy ARRAY apply`): with all they
//! have, or not at all; and what ends the command leaves nothing behind.

mod bench;

use bench::{Begun, Bench, Random, err, filled::stop, library::on_array, out, refused};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::{
        fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use sys::rustix::fs::{
    AtFlags, CWD, IFlags, Timespec, Timestamps, XattrFlags, getxattr, ioctl_getflags, ioctl_setflags, listxattr, setxattr,
    utimensat,
};

#[track_caller]
fn fine(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", out(output), err(output));
    out(output)
}

/// An array called db on so many members, with these options.
fn array(level: &str, members: usize, options: &[&str]) -> Bench {
    let bench = Bench::new();
    let members: Vec<String> = (0..members).map(|slot| format!("m{slot}")).collect();
    members.iter().for_each(|member| fs::create_dir_all(bench.path(member)).unwrap());
    let create = ["create", "db", "--level", level, "--chunk", "4K", "--at", "/data"];
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    fine(&bench.run(&[&create[..], options, &members].concat()));
    bench
}

fn members_of(bench: &Bench) -> Vec<PathBuf> {
    (0..4).map(|slot| bench.path(&format!("m{slot}"))).filter(|member| member.join(".cxlraid").exists()).collect()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

const SPARSE_BYTES: u64 = 1 << 30;

/// The files of a tree, by their names, made in the directory `files`.
fn make_files(bench: &Bench) {
    let files = bench.path("files");
    fs::create_dir_all(files.join("sub")).unwrap();
    let mut random = Random(7);
    for (name, bytes) in [("none", 0), ("one", 1), ("page", 4095), ("sub/long", (1 << 20) + 1)] {
        let content: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
        fs::write(files.join(name), content).unwrap();
    }
    let sparse = File::create(files.join("sparse")).unwrap();
    sparse.set_len(SPARSE_BYTES).unwrap();
    for at in [0, 300 << 20, SPARSE_BYTES - 4096] {
        sparse.write_all_at(&[9; 4096], at).unwrap();
    }
}

const NAMES: [&str; 5] = ["none", "one", "page", "sparse", "sub/long"];

/// Adds the files of [`make_files`] to the array, with owners, modes, attributes and times of their
/// own.
fn add_files(bench: &Bench) {
    make_files(bench);
    fine(&bench.run(&["add", "--array", "db", "-r", "files", "/data/files"]));
    stop(bench);
    for member in members_of(bench) {
        for (index, name) in NAMES.iter().enumerate() {
            dress(&member.join("data/files").join(name), index as u32);
        }
    }
}

/// Gives a file on a member what a program could give it.
fn dress(path: &Path, index: u32) {
    setxattr(path, "user.note", format!("note {index}").as_bytes(), XattrFlags::empty()).unwrap();
    if is_root() {
        std::os::unix::fs::chown(path, Some(1200 + index), Some(1300 + index)).unwrap();
        setxattr(path, "trusted.note", b"trusted", XattrFlags::empty()).unwrap();
        // Version 2, cap_net_raw permitted and effective (capabilities(7)).
        let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        setxattr(path, "security.capability", &capability, XattrFlags::empty()).unwrap();
    }
    let modes = [0o640, 0o4751, 0o2775, 0o1600, 0o600];
    fs::set_permissions(path, fs::Permissions::from_mode(modes[index as usize])).unwrap();
    if index == 3 {
        // The owner rw, user 77 r, the group r, the mask r, others nothing (acl(5)).
        let entry = |tag: u16, right: u16, id: u32| [&tag.to_le_bytes()[..], &right.to_le_bytes(), &id.to_le_bytes()].concat();
        let none = u32::MAX;
        let entries = [entry(1, 6, none), entry(2, 4, 77), entry(4, 4, none), entry(16, 4, none), entry(32, 0, none)];
        let list = [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
        setxattr(path, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let index = i64::from(index);
    let times = Timestamps { last_access: time(2_000_000 + index, 5), last_modification: time(1_000_000 + index, 7) };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

type Worn = (u32, u32, u32, [(i64, i64); 2], BTreeMap<String, Vec<u8>>);

/// Returns the mode, owner, times and attributes that a file has on one member.
fn worn(path: &Path) -> Worn {
    let stat = fs::symlink_metadata(path).unwrap();
    let mut list = vec![0; 1 << 16];
    let bytes = listxattr(path, &mut list[..]).unwrap();
    let names = list[..bytes].split(|&byte| byte == 0).map(|name| String::from_utf8(name.to_vec()).unwrap());
    let value = |name: &String| {
        let mut value = vec![0; 1 << 16];
        let bytes = getxattr(path, name.as_str(), &mut value[..]).unwrap();
        value[..bytes].to_vec()
    };
    let attributes = names.filter(|name| !name.is_empty() && name != "user.cxlraid").map(|name| (name.clone(), value(&name)));
    let times = [(stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec())];
    (stat.mode(), stat.uid(), stat.gid(), times, attributes.collect())
}

/// Returns [`worn`] of every file on every member.
fn all_worn(bench: &Bench) -> Vec<Worn> {
    let on = |member: PathBuf| NAMES.map(|name| worn(&member.join("data/files").join(name)));
    members_of(bench).into_iter().flat_map(on).collect()
}

fn directory_times(bench: &Bench) -> Vec<[(i64, i64); 2]> {
    let of = |member: &PathBuf| ["files", "files/sub"].map(|name| worn(&member.join("data").join(name)).3[1]);
    members_of(bench).iter().map(of).collect()
}

/// Units of 512 bytes that the sparse file takes on all members.
fn sparse_blocks(bench: &Bench) -> u64 {
    members_of(bench).iter().map(|member| fs::metadata(member.join("data/files/sparse")).unwrap().blocks()).sum()
}

/// Asserts that the array's files hold what the files in `files` do.
#[track_caller]
fn assert_bytes(bench: &Bench) {
    let _ = fs::remove_dir_all(bench.path("back"));
    fine(&bench.run(&["retrieve", "--array", "db", "-r", "/data/files", "back"]));
    for name in NAMES {
        let [wanted, found] = ["files", "back"].map(|of| bench.path(of).join(name));
        if name == "sparse" {
            assert_sparse(&found);
        } else {
            assert!(fs::read(wanted).unwrap() == fs::read(found).unwrap(), "{name}");
        }
    }
    fs::remove_dir_all(bench.path("back")).unwrap();
}

#[track_caller]
fn assert_sparse(path: &Path) {
    let file = File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), SPARSE_BYTES);
    let mut block = [0; 4096];
    for at in (0..3).map(|index| [0, 300 << 20, SPARSE_BYTES - 4096][index]) {
        file.read_exact_at(&mut block, at).unwrap();
        assert!(block == [9; 4096], "{at}");
    }
    file.read_exact_at(&mut block, 4096).unwrap();
    assert!(block == [0; 4096]);
    assert!(file.metadata().unwrap().blocks() < 4096, "holes are holes");
}

#[track_caller]
fn assert_fits(bench: &Bench) {
    let text = fine(&bench.run(&["scrub", "db"]));
    assert!(text.contains("everything fits"), "{text}");
}

/// The states of the records in a member's table of inodes that are not free.
fn records(member: &Path) -> Vec<u8> {
    let table = fs::read(member.join(".cxlraid/inodes")).unwrap();
    table[4096..].chunks(64).map(|record| record[23]).filter(|&state| state != 0).collect()
}

/// Asserts that members hold the records of so many files, and nothing of files without a name.
#[track_caller]
fn assert_nothing_left(bench: &Bench, files: usize, when: &str) {
    for member in members_of(bench) {
        let names = fs::read_dir(member.join(".cxlraid")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names.filter(|name| name.starts_with("orphan") || name.starts_with("aside")).collect();
        assert!(left.is_empty(), "{when}: {left:?}");
        assert_eq!(records(&member), vec![1; files], "{when}: {}", member.display());
        let sums = fs::read_dir(member.join(".cxlraid/sums")).map_or(0, Iterator::count);
        assert!(sums <= files, "{when}: {sums} files of sums");
    }
}

/// Moves all files, and asserts that they are the same but for their level.
#[track_caller]
fn move_all(bench: &Bench, level: &str, chunk: Option<&str>) {
    let (before, times) = (all_worn(bench), directory_times(bench));
    let chunk = chunk.filter(|_| level != "1").map_or(vec![], |chunk| vec!["--chunk", chunk]);
    let text = fine(&bench.run(&[&["migrate", "db", "/data/files", "--to", level][..], &chunk].concat()));
    assert!(text.ends_with(" MiB\n") || text.ends_with(" GiB\n") || text.contains("so already"), "{text}");
    for (index, (mut before, after)) in before.into_iter().zip(all_worn(bench)).enumerate() {
        if index >= NAMES.len() {
            // Each member has the time of the last read from it, and programs see that of the lowest.
            before.3[0] = after.3[0];
        }
        assert_eq!(before, after, "to RAID {level}");
    }
    assert_eq!(times, directory_times(bench), "to RAID {level}");
    let both = bench.run(&["policy", "db", "explain", "/data/files/sub/long", "/elsewhere"]);
    assert!(!both.status.success() && out(&both).starts_with("/data/files/sub/long: "), "{}", err(&both));
    let explained = fine(&bench.run(&["policy", "db", "explain", "/data/files/sub/long"]));
    assert!(
        explained.trim_end().split("the file there has ").nth(1).unwrap().starts_with(&format!("RAID {level}")),
        "{explained}"
    );
}

/// Files keep what they have from each level to each other one.
#[test]
fn files_are_the_same_at_every_level_they_are_moved_to() {
    for (own, members, levels) in
        [("5", 3, &["1", "4", "5"][..]), ("0", 3, &["0", "1", "5"]), ("0", 4, &["0", "1", "4", "6", "10", "01"])]
    {
        let bench = array(own, members, &[]);
        add_files(&bench);
        let pairs = levels.iter().flat_map(|from| levels.iter().map(move |to| (from, to))).filter(|(from, to)| from != to);
        for (index, (from, to)) in pairs.enumerate() {
            let chunk = [None, Some("64K")][index % 2];
            move_all(&bench, from, chunk);
            move_all(&bench, to, chunk);
            // The three pieces, each with the rest of its stripe of 64K chunks.
            assert!(sparse_blocks(&bench) < 3 * 2 * 2 * 512 * members as u64, "{}", sparse_blocks(&bench));
            if index % 8 == 0 {
                assert_bytes(&bench);
            }
        }
        assert_bytes(&bench);
        assert_fits(&bench);
        assert_nothing_left(&bench, NAMES.len(), own);
    }
}

#[test]
fn a_moved_file_bears_the_loss_of_each_member() {
    let bench = array("5", 4, &["--checksum", "crc32c"]);
    let content: Vec<u8> = (0..1_000_001).map(|at| (at * 7 + at / 251) as u8).collect();
    fs::write(bench.path("x"), &content).unwrap();
    fine(&bench.run(&["add", "--array", "db", "x", "/data/x"]));
    for level in ["1", "4", "6", "10", "01", "5"] {
        let chunk = Some("16K").filter(|_| level != "1").map_or(vec![], |chunk| vec!["--chunk", chunk]);
        fine(&bench.run(&[&["migrate", "db", "/data/x", "--to", level][..], &chunk].concat()));
        assert_fits(&bench);
        for member in ["m0", "m1", "m2", "m3"] {
            stop(&bench);
            fs::rename(bench.path(member), bench.path("gone")).unwrap();
            let _ = fs::remove_file(bench.path("back"));
            fine(&bench.run(&["retrieve", "--array", "db", "/data/x", "back"]));
            assert!(fs::read(bench.path("back")).unwrap() == content, "RAID {level} without {member}");
            stop(&bench);
            fs::rename(bench.path("gone"), bench.path(member)).unwrap();
        }
    }
    assert_fits(&bench);
    assert_nothing_left(&bench, 1, "in the end");
}

const RULES: &str = "\
[[rule]]
match = \"**/*.o\"
level = 1
[[rule]]
under = \"/data/films\"
level = 4
chunk = \"64K\"
";

#[test]
fn what_drift_lists_is_moved_and_drift_is_empty_then() {
    let bench = array("5", 3, &[]);
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    for path in ["/data/a.o", "/data/b", "/data/films/c", "/data/films/d.o"] {
        fine(&bench.run(&["add", "--array", "db", "x", path]));
    }
    assert_eq!(fine(&bench.run(&["policy", "db", "apply"])), "db: 0 files moved, 0 B\n");
    fs::write(bench.path("rules.toml"), RULES).unwrap();
    fine(&bench.run(&["policy", "db", "set", "rules.toml"]));
    let paths =
        |text: &str| text.lines().filter_map(|line| line.split_once(": ")).map(|(path, _)| path.to_owned()).collect::<Vec<_>>();
    let drift = || paths(&fine(&bench.run(&["policy", "db", "drift"])));
    let listed = drift();
    assert_eq!(listed, ["/data/a.o", "/data/films/c", "/data/films/d.o"]);
    let told = fine(&bench.run(&["policy", "db", "apply", "--dry-run"]));
    assert_eq!(paths(&told)[..3], listed);
    assert!(told.ends_with("db: 3 files would be moved, 292.9 KiB\n"), "{told}");
    assert_eq!(drift(), listed, "nothing was moved");
    let done = fine(&bench.run(&["policy", "db", "apply", "/data/films"]));
    assert_eq!(
        done,
        "/data/films/c: RAID 5, chunk 4K -> RAID 4, chunk 64K, 97.6 KiB\n\
         /data/films/d.o: RAID 5, chunk 4K -> RAID 1, 97.6 KiB\n\
         db: 2 files moved, 195.3 KiB\n"
    );
    assert_eq!(drift(), ["/data/a.o"]);
    fine(&bench.run(&["policy", "db", "apply"]));
    assert!(drift().is_empty());
    assert_eq!(out(&bench.run(&["policy", "db", "show"])), RULES, "the rules stay");
    assert_fits(&bench);
    assert_eq!(
        fine(&bench.run(&["migrate", "db", "/data/a.o", "--to", "1"])),
        "/data/a.o: has RAID 1 already\ndb: 0 files moved, 0 B; 1 is so already\n"
    );
}

#[test]
fn programs_that_use_the_array_are_named_and_waited_for() {
    let bench = array("5", 3, &[]);
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    fine(&bench.run(&["add", "--array", "db", "x", "/data/x"]));
    let script = "exec 3</data/x; echo begun; exec sleep 3";
    let mut program = on_array(&bench, &["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let (status, line) = refused(&bench.run(&["migrate", "db", "/data/x", "--to", "1"]));
    assert_eq!(status, 1);
    assert!(
        line.starts_with("cxlraid: db: is in use by process ")
            && line.contains(", and files are moved while no program uses it; end these"),
        "{line}"
    );
    let pid: u32 = line.split("process ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().starts_with("sleep"), "{pid}");
    // What would be moved is told beside programs.
    assert!(fine(&bench.run(&["migrate", "db", "/data/x", "--to", "1", "-n"])).contains("1 file would be moved"));
    let begun = Instant::now();
    fine(&bench.run(&["migrate", "db", "/data/x", "--to", "1", "--wait", "60"]));
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(program.wait().unwrap().success());
    assert_eq!(fs::read(bench.path("m1/data/x")).unwrap(), vec![7; 100_000]);
}

/// The command is killed at many moments: each file is the old one or the new one, whole, and the next
/// start, or at the latest the next command, leaves nothing of the other one.
#[test]
fn a_killed_command_leaves_one_whole_file_and_nothing_else() {
    const KILLS: usize = 45;
    const FILES: usize = 3;
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut told = [0; 2];
    for options in [&[][..], &["--checksum", "crc32c"]] {
        let bench = array("5", 4, options);
        let content = |index: usize| -> Vec<u8> { (0..2_000_000 + index).map(|at| (at * 7 + at / 251 + index) as u8).collect() };
        for index in 0..FILES {
            fs::write(bench.path("x"), content(index)).unwrap();
            fine(&bench.run(&["add", "--array", "db", "x", &format!("/data/x{index}")]));
        }
        let worn_by = |index: usize| {
            members_of(&bench).iter().map(|member| worn(&member.join(format!("data/x{index}")))).collect::<Vec<_>>()
        };
        let wanted: Vec<_> = (0..FILES).map(worn_by).collect();
        let begun = Instant::now();
        fine(&bench.run(&["migrate", "db", "/data", "--to", "1"]));
        let whole_ns = begun.elapsed().as_nanos() as u64;
        let levels = ["6", "1", "5", "10"];
        for kill in 0..KILLS {
            let level = levels[kill % levels.len()];
            let mut command = bench.command(&["migrate", "db", "/data", "--to", level]);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_nanos(random.below(whole_ns * 6 / 5)));
            child.kill().unwrap();
            child.wait().unwrap();
            // A start.
            for (index, wanted) in wanted.iter().enumerate() {
                let _ = fs::remove_file(bench.path("back"));
                fine(&bench.run(&["retrieve", "--array", "db", &format!("/data/x{index}"), "back"]));
                assert!(fs::read(bench.path("back")).unwrap() == content(index), "kill {kill}, file {index}");
                for (wanted, found) in wanted.iter().zip(worn_by(index)) {
                    assert_eq!(
                        (wanted.0, wanted.1, wanted.2, wanted.3[1], &wanted.4),
                        (found.0, found.1, found.2, found.3[1], &found.4)
                    );
                }
            }
            let paths: Vec<String> = (0..FILES).map(|index| format!("/data/x{index}")).collect();
            let explained = fine(&bench.run(&["policy", "db", "explain", &paths[0], &paths[1], &paths[2]]));
            for line in explained.lines() {
                told[usize::from(line.contains(&format!("the file there has RAID {level}")))] += 1;
            }
            assert_fits(&bench);
            assert_nothing_left(&bench, FILES, &format!("a start after kill {kill}"));
            for member in members_of(&bench) {
                assert_eq!(fs::read_dir(member.join("data")).unwrap().count(), FILES, "kill {kill}");
            }
            fine(&bench.run(&["migrate", "db", "/data", "--to", level]));
            assert_nothing_left(&bench, FILES, &format!("kill {kill}"));
        }
        // What members take is what they took when nothing was killed.
        fine(&bench.run(&["migrate", "db", "/data", "--to", "1"]));
        for (index, member) in members_of(&bench).iter().flat_map(|member| (0..FILES).map(move |index| (index, member))) {
            let blocks = fs::metadata(member.join(format!("data/x{index}"))).unwrap().blocks();
            assert_eq!(blocks, (2_000_000_u64 + index as u64).div_ceil(4096) * 8);
        }
        stop(&bench);
        assert_fits(&bench);
    }
    println!("{} files were as before, {} were moved", told[0], told[1]);
    assert!(told[0] > 0 && told[1] > 0);
}

/// SIGINT ends the command after the present file, or drops that.
#[test]
fn a_signal_ends_the_command_and_a_second_one_goes_on() {
    let bench = array("5", 3, &[]);
    fs::create_dir(bench.path("files")).unwrap();
    for index in 0..60 {
        fs::write(bench.path("files").join(index.to_string()), vec![index; 400_000]).unwrap();
    }
    fine(&bench.run(&["add", "--array", "db", "-r", "files", "/data/files"]));
    let mut command = bench.command(&["migrate", "db", "/data/files", "--to", "1"]);
    let mut child = Begun::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.first_line();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = child.ended();
    assert_eq!(ended.status.code(), Some(1));
    let line = err(&ended);
    assert!(line.contains("cxlraid: db: was ended; ") && line.contains("give the command again to go on"), "{line}");
    assert_nothing_left(&bench, 60, "after the signal");
    fine(&bench.run(&["migrate", "db", "/data/files", "--to", "1"]));
    for index in 0..60 {
        assert!(fs::read(bench.path("m2/data/files").join(index.to_string())).unwrap() == vec![index; 400_000]);
    }
}

#[test]
fn what_may_not_be_moved_is_refused_and_stays() {
    let bench = array("5", 3, &[]);
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    for path in ["/data/a", "/data/b", "/data/c"] {
        fine(&bench.run(&["add", "--array", "db", "x", path]));
    }
    fine(
        &on_array(
            &bench,
            &[
                "sh",
                "-c",
                "ln /data/a /data/a2; ln /data/a /data/a3; ln -s /etc /data/out; ln -s b /data/link; mkfifo /data/pipe",
            ],
        )
        .output()
        .unwrap(),
    );
    let run = |arguments: &[&str]| bench.run(&[&["migrate", "db"][..], arguments].concat());
    for (arguments, status, said) in [
        (&["/data/b", "--to", "7"][..], 2, "invalid value '7'"),
        (&["--to", "1"], 2, "required arguments were not provided: <PATHS>"),
        (&["/data/b", "--to", "1", "--chunk", "4K"], 2, "--chunk: RAID 1 does not cut files into chunks; leave --chunk out"),
        (&["/data/b", "--to", "6"], 2, "--to: level 6 does not fit the array's members"),
        (&["/data/b", "--to", "0"], 2, "--to: files of RAID 0 would not bear every loss that the array bears (RAID 5)"),
        (&["/home", "--to", "1"], 1, "/home: is not below the array's paths (/data)"),
        (&["/data/none", "--to", "1"], 1, "/data/none: No such file or directory"),
        (&["/data/out/passwd", "--to", "1"], 1, "/data/out/passwd: it leads out of the array"),
        (&["/data/link", "--to", "1"], 1, "/data/link: is no file with bytes of its own"),
        (&["/data/pipe", "--to", "1"], 1, "/data/pipe: is no file with bytes of its own"),
    ] {
        let (found, line) = refused(&run(arguments));
        assert!(found == status && line.contains(said), "{arguments:?}: {found} {line}");
    }
    assert!(!bench.path("m0/.cxlraid/rules").exists(), "nothing was changed");
    assert!(fs::read(bench.path("m0/data/b")).unwrap().len() < 60_000);
    // Of several files those are moved that may be.
    let done = run(&["/data", "--to", "1"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(out(&done).ends_with("db: 2 files moved, 195.3 KiB; 3 refused\n"), "{}", out(&done));
    for line in err(&done).lines() {
        assert!(line.contains("has 3 names, of which one alone would lead to the new file; remove the others"), "{line}");
    }
    assert!(fs::read(bench.path("m2/data/b")).unwrap() == vec![7; 100_000]);
    assert!(out(&bench.run(&["examine", "m1"])).contains("File Levels: files may have their own"));
    assert!(fs::read_link(bench.path("m0/data/link")).unwrap() == Path::new("b"));
    assert_fits(&bench);
    // Without a member nothing is moved.
    fine(&bench.run(&["fail", "db", "m1"]));
    let (status, line) = refused(&run(&["/data/b", "--to", "5"]));
    assert!(
        status == 1 && line.contains("m1 is not in sync, and files are moved while all members are; 'cxlraid rebuild db' first"),
        "{line}"
    );
    fine(&bench.run(&["rebuild", "db", "m1"]));
    fine(&run(&["/data/b", "--to", "5"]));
    assert_fits(&bench);
}

#[test]
fn an_immutable_file_stays() {
    let bench = array("5", 3, &[]);
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    fine(&bench.run(&["add", "--array", "db", "x", "/data/x"]));
    let set = |flags: IFlags| ioctl_setflags(File::open(bench.path("m1/data/x")).unwrap(), flags);
    let before = ioctl_getflags(File::open(bench.path("m1/data/x")).unwrap());
    let Some(before) = before.ok().filter(|&flags| set(flags | IFlags::IMMUTABLE).is_ok()) else {
        eprintln!("NOT RUN: members have no flags, or this user may not set them");
        return;
    };
    let refusal = refused(&bench.run(&["migrate", "db", "/data/x", "--to", "1"]));
    set(before).unwrap();
    assert!(refusal.0 == 1, "{refusal:?}");
    fine(&bench.run(&["status", "db"]));
    fine(&bench.run(&["migrate", "db", "/data/x", "--to", "1"]));
    assert_fits(&bench);
}

/// A file whose redundancy does not fit its data stays: the new one would hold whichever was read.
#[test]
fn a_damaged_file_stays_until_it_is_scrubbed() {
    for options in [&[][..], &["--checksum", "crc32c"]] {
        let bench = array("5", 3, options);
        fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
        fine(&bench.run(&["add", "--array", "db", "x", "/data/x"]));
        stop(&bench);
        File::options().write(true).open(bench.path("m1/data/x")).unwrap().write_all_at(b"rot", 5000).unwrap();
        let done = bench.run(&["migrate", "db", "/data/x", "--to", "1"]);
        assert!(
            done.status.code() == Some(1)
                && err(&done).contains("what members hold of it does not fit together; 'cxlraid scrub --repair'"),
            "{}",
            err(&done)
        );
        assert_ne!(fs::read(bench.path("m0/data/x")).unwrap().len(), 100_000);
        bench.run(&["scrub", "db", "--repair"]);
        fine(&bench.run(&["migrate", "db", "/data/x", "--to", "1"]));
        assert_fits(&bench);
    }
}

#[test]
fn journals_and_fast_members_limit_levels_as_for_rules() {
    let bench = array("5", 4, &["--journal", "internal"]);
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    fine(&bench.run(&["add", "--array", "db", "x", "/data/x"]));
    let (status, line) = refused(&bench.run(&["migrate", "db", "/data/x", "--to", "6"]));
    assert!(status == 2 && line.contains("the array's journal has no room for the parity of RAID 6"), "{line}");
    for level in ["4", "1", "10", "5"] {
        fine(&bench.run(&["migrate", "db", "/data/x", "--to", level]));
        assert_fits(&bench);
    }
    let bench = array("1", 2, &[]);
    fine(&bench.run(&["member", "db", "m0", "--fast", "on"]));
    let (status, line) = refused(&bench.run(&["migrate", "db", "/data", "--to", "1"]));
    assert!(status == 2 && line.contains("is a backed array"), "{line}");
}

/// Runs in a mount namespace of its own, where members are small: `$1` is the command.
const SMALL: &str = r#"
command=$1
for member in m0 m1 m2; do mount -t tmpfs -o size=4M none $member || exit 99; done
"$command" create db --level 5 --chunk 4K --at /data m0 m1 m2 >/dev/null 2>&1 || exit 1
head -c 1800000 /dev/urandom >x
"$command" add -a db x /data/x || exit 1
head -c 900000 /dev/urandom >y
"$command" add -a db y /data/y || exit 1
df --output=avail m1 | tail -1
"$command" migrate db /data --to 1
echo "status $?"
"$command" scrub db
"$command" retrieve -a db /data/x back && cmp x back && "$command" retrieve -a db /data/y back2 && cmp y back2 && echo same
ls m0/.cxlraid
"$command" stop db >/dev/null
"#;

#[test]
fn a_file_without_room_for_its_copy_stays_and_others_are_moved() {
    let bench = Bench::new();
    let Some(output) = bench.with_own_mounts("a_file_without_room_for_its_copy", SMALL, |_| {}) else { return };
    let (text, errors) = (out(&output), err(&output));
    assert!(errors.contains("cxlraid: /data/x: its copy has no room on "), "{text}{errors}");
    assert!(errors.contains(" are needed, and ") && errors.contains(" are free; make room there"), "{errors}");
    for expected in [
        "/data/y: RAID 5, chunk 4K -> RAID 1, 878.9 KiB\n",
        "db: 1 file moved, 878.9 KiB; 1 refused\n",
        "status 1\n",
        "everything fits",
        "same\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}{errors}");
    }
    assert!(!text.contains("orphan"), "{text}");
}

/// A user moves what is his, and nothing of others.
#[test]
fn a_user_moves_what_he_may_write_to_and_replace() {
    if !is_root() {
        eprintln!("NOT RUN: without root's rights nobody can be somebody else");
        return;
    }
    let bench = Bench::new();
    for path in [bench.home.path().to_owned(), bench.path("m0"), bench.path("m1"), bench.path("m2")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fine(&bench.run(&["create", "db", "--system", "--level", "5", "--group", "60010", "--at", "/data", "m0", "m1", "m2"]));
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    for path in ["/data/own", "/data/roots", "/data/shared"] {
        fine(&bench.run(&["add", "--array", "db", "x", path]));
    }
    stop(&bench);
    for member in members_of(&bench) {
        let data = member.join("data");
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        for (name, user, mode) in [("own", 60001, 0o640), ("roots", 0, 0o644), ("shared", 0, 0o666)] {
            std::os::unix::fs::chown(data.join(name), Some(user), Some(60010)).unwrap();
            fs::set_permissions(data.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    let program = bench.path("cxlraid");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_cxlraid")).arg(&program).status().unwrap().success());
    let migrate = |path: &str| {
        let mut command = bench.program(&program, &["migrate", "db", path, "--to", "1"]);
        command.env("XDG_CONFIG_HOME", bench.path("none")).uid(60001).gid(60010).output().unwrap()
    };
    let done = migrate("/data/own");
    assert!(done.status.success(), "{}{}", out(&done), err(&done));
    for (path, said) in [
        ("/data/roots", "/data/roots: Permission denied; who moves a file must be allowed to write to it, and to replace it"),
        ("/data/shared", "/data/shared: its owner cannot be kept: Operation not permitted; run it as a user who may set that"),
    ] {
        let (status, line) = refused(&migrate(path));
        assert!(status == 1 && line.contains(said), "{line}");
    }
    for member in members_of(&bench) {
        let stat = fs::metadata(member.join("data/own")).unwrap();
        assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777, stat.len()), (60001, 60010, 0o640, 100_000));
        for name in ["roots", "shared"] {
            let stat = fs::metadata(member.join("data").join(name)).unwrap();
            assert!(stat.uid() == 0 && stat.len() < 100_000, "{name}");
        }
    }
    // In a directory that he may not change nothing of his is replaced.
    for member in members_of(&bench) {
        fs::set_permissions(member.join("data"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = bench.program(&program, &["migrate", "db", "/data/own", "--to", "5"]);
    let done = command.env("XDG_CONFIG_HOME", bench.path("none")).uid(60001).gid(60010).output().unwrap();
    let (status, line) = refused(&done);
    assert!(status == 1 && line.contains("/data/own: its copy cannot be made: Permission denied"), "{line}");
    assert_fits(&bench);
    assert_nothing_left(&bench, 3, "in the end");
}

/// A link on the way to a file is followed within the array.
#[test]
fn links_to_directories_are_followed_on_the_way_and_not_below() {
    let bench = array("5", 3, &[]);
    fs::write(bench.path("x"), vec![7; 100_000]).unwrap();
    for path in ["/data/d/x", "/data/e/x"] {
        fine(&bench.run(&["add", "--array", "db", "x", path]));
    }
    for member in members_of(&bench) {
        symlink("d", member.join("data/to-d")).unwrap();
        symlink("../d", member.join("data/e/to-d")).unwrap();
    }
    assert!(fine(&bench.run(&["migrate", "db", "/data/e", "--to", "1"])).contains("1 file moved"));
    assert!(fine(&bench.run(&["migrate", "db", "/data/to-d/x", "--to", "1"])).starts_with("/data/d/x: "));
    assert_fits(&bench);
}

/// One member after the other answers the renaming as if something was mounted at the name. What it has
/// of the new file must stay there.
#[test]
fn a_member_that_refuses_the_name_keeps_what_it_has_of_the_new_file() {
    let content: String = (0..20_000).map(|number| format!("{number} ")).collect();
    for when in 1..=3 {
        let bench = array("0", 3, &[]);
        fs::write(bench.path("file"), &content).unwrap();
        fine(&bench.run(&["add", "--array", "db", "file", "/data/file"]));
        let log = bench.path("trace");
        let inject = format!("inject=renameat2,renameat:error=EBUSY:when={when}");
        let migrate = [env!("CARGO_BIN_EXE_cxlraid"), "migrate", "db", "/data/file", "--to", "5"];
        let traced = ["-f", "-qq", "-o", log.to_str().unwrap(), "-e", "trace=renameat2,renameat", "-e", &inject];
        let ran = bench.program(Path::new("strace"), &[&traced[..], &migrate].concat()).output().unwrap();
        let trace = fs::read_to_string(&log).unwrap();
        assert!(trace.contains("(INJECTED)"), "{trace}{}", err(&ran));
        assert_eq!(ran.status.code(), Some(1), "{when}: {}{}{trace}", out(&ran), err(&ran));
        let read = on_array(&bench, &["cat", "/data/file"]).output().unwrap();
        assert!(fine(&read) == content, "{when}");
        stop(&bench);
        fine(&bench.run(&["scrub", "db"]));
    }
}
