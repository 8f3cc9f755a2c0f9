//! `cxlraid replace` of a member in use: it stays a member until the new directory holds the same,
//! and whatever ends the command leaves one of both the member.
//!
//! `CXLRAID_KILLS=N` kills so many commands for each level (6 otherwise), `CXLRAID_SEED=N` chooses
//! the instants.

mod bench;

use bench::{
    Begun, Bench, Random, err,
    library::{library, on_array},
    out, refused,
};
use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Levels, and how many members an array of each has here.
const LEVELS: [(&str, usize); 8] = [("1", 2), ("1", 3), ("4", 3), ("5", 3), ("6", 4), ("10", 4), ("01", 4), ("0", 2)];

/// Makes all kinds of things below a directory. `$1` is the directory.
const MAKE: &str = r#"
umask 022
cd "$1"
i=0
while [ $i -lt 12 ]; do
    head -c $((i * 20011 + i * i * 997)) /dev/urandom >file$i
    i=$((i + 1))
done
: >empty
truncate -s 3M hole
printf middle | dd of=hole bs=1 seek=1500000 conv=notrunc 2>/dev/null
mkdir -p deep/er/est none
echo low >deep/er/est/file
ln file3 deep/again
ln file3 third
ln -s ../file4 deep/link
ln -s nowhere dangling
mkfifo pipe
ln pipe deep/pipe
chmod 600 file5
chmod 4755 file6
chmod 1777 none
chmod 555 file7
touch -d '2001-02-03 04:05:06.789 UTC' file8 deep/er
"#;

fn members(count: usize) -> Vec<String> {
    (0..count).map(|slot| format!("m{slot}")).collect()
}

/// An array called db of a level, with all kinds of things under /data/tree; the same are in
/// `tree`.
#[track_caller]
fn filled(level: &str, count: usize) -> Bench {
    let bench = Bench::new();
    let members = members(count);
    members.iter().for_each(|member| fs::create_dir_all(bench.path(member)).unwrap());
    let mut arguments = vec!["create", "db", "--level", level, "--at", "/data"];
    arguments.extend(members.iter().map(String::as_str));
    let created = bench.run(&arguments);
    assert!(created.status.success(), "{}", err(&created));
    fs::create_dir(bench.path("tree")).unwrap();
    assert!(Command::new("sh").args(["-euc", MAKE, "sh"]).arg(bench.path("tree")).status().unwrap().success());
    let added = bench.run(&["add", "--array", "db", "-r", "tree", "/data"]);
    assert!(added.status.success(), "{}", err(&added));
    stop(&bench);
    bench
}

#[track_caller]
fn stop(bench: &Bench) {
    let stopped = bench.run(&["stop", "db"]);
    assert!(stopped.status.success(), "{}", err(&stopped));
}

/// What lies below a directory: of each name the kind, mode, owner, times, number of names, length
/// and bytes.
fn seen(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(above) = left.pop() {
        for entry in fs::read_dir(above).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let what = match stat.file_type() {
                kind if kind.is_dir() => {
                    left.push(path.clone());
                    0
                }
                kind if kind.is_file() => fs::read(&path)
                    .unwrap()
                    .iter()
                    .fold(7u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(9)),
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().as_os_str().len() as u64,
                _ => 1,
            };
            let bytes = if stat.is_dir() { 0 } else { stat.len() };
            let links = if stat.is_dir() { 0 } else { stat.nlink() };
            let (mode, owner, time) = (stat.mode(), (stat.uid(), stat.gid()), (stat.mtime(), stat.mtime_nsec()));
            let name = path.strip_prefix(directory).unwrap().display();
            found.push(format!("{name} {mode:o} {owner:?} {time:?} {links} {bytes} {what:x}"));
        }
    }
    found.sort();
    found
}

/// All is there as it was made.
#[track_caller]
fn assert_holds(bench: &Bench, what: &str) {
    let _ = fs::remove_dir_all(bench.path("back"));
    let retrieved = bench.run(&["retrieve", "--array", "db", "-r", "/data/tree", "back"]);
    assert!(retrieved.status.success(), "{what}: {}", err(&retrieved));
    assert_eq!(seen(&bench.path("back")), seen(&bench.path("tree")), "{what}");
}

#[track_caller]
fn assert_fits(bench: &Bench, what: &str) {
    let scrubbed = bench.run(&["scrub", "db"]);
    assert!(scrubbed.status.success(), "{what}: {}{}", out(&scrubbed), err(&scrubbed));
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(0), "{what}: {}", out(&status));
}

/// All is there without any one of the members at these paths, if the level bears that.
#[track_caller]
fn assert_bears_each(bench: &Bench, level: &str, members: &[String]) {
    for missing in members.iter().filter(|_| level != "0") {
        stop(bench);
        fs::rename(bench.path(missing), bench.path("gone")).unwrap();
        assert_holds(bench, &format!("level {level} without {missing}"));
        stop(bench);
        fs::rename(bench.path("gone"), bench.path(missing)).unwrap();
    }
}

#[track_caller]
fn replace(bench: &Bench, old: &str, new: &str) -> String {
    let replaced = bench.run(&["replace", "db", old, new]);
    assert!(replaced.status.success(), "{}{}", out(&replaced), err(&replaced));
    out(&replaced)
}

#[test]
fn a_member_in_use_of_each_level_gives_its_place_to_a_directory_that_holds_the_same() {
    for (level, count) in LEVELS {
        let bench = filled(level, count);
        fs::create_dir(bench.path("new")).unwrap();
        let old = format!("m{}", count - 1);
        let said = replace(&bench, &old, "new");
        assert!(said.contains("/new in sync in the place of ") && said.contains(&old), "{said}");
        assert_eq!(seen(&bench.path("new/data")), seen(&bench.path(&old).join("data")), "level {level}");
        assert_fits(&bench, level);
        assert_holds(&bench, level);
        // The old one says what became of it, and is not believed, even alone.
        let examined = out(&bench.run(&["examine", &old]));
        assert!(examined.contains("replaced"), "{examined}");
        let mut members = members(count - 1);
        members.push("new".to_owned());
        assert_bears_each(&bench, level, &members);
        // So does the lowest one, of which programs have their descriptors.
        fs::create_dir(bench.path("lowest")).unwrap();
        replace(&bench, "m0", "lowest");
        members[0] = "lowest".to_owned();
        assert_fits(&bench, level);
        assert_bears_each(&bench, level, &members);
        let again = bench.run(&["replace", "db", "m0", "lowest"]);
        assert!(out(&again).contains("in sync in the place of"), "{}{}", out(&again), err(&again));
    }
}

/// Returns the extended attributes of everything below a directory that has some, by path.
fn attributes(directory: &Path) -> Vec<String> {
    use sys::rustix::fs::{lgetxattr, llistxattr};
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(above) = left.pop() {
        for entry in fs::read_dir(above).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                left.push(path.clone());
            }
            let mut names = vec![0; 4096];
            let bytes = llistxattr(&path, &mut names[..]).unwrap();
            for name in names[..bytes].split(|&byte| byte == 0).filter(|name| !name.is_empty() && *name != b"user.cxlraid") {
                let mut value = vec![0; 4096];
                let bytes = lgetxattr(&path, name, &mut value[..]).unwrap();
                let shown = path.strip_prefix(directory).unwrap().display();
                found.push(format!("{shown} {} {:?}", String::from_utf8_lossy(name), &value[..bytes]));
            }
        }
    }
    found.sort();
    found
}

/// Pipes and symbolic links have extended attributes as files have: lists of who may do what, and those
/// that only root sets.
#[test]
fn pipes_and_symbolic_links_keep_their_attributes() {
    use sys::rustix::fs::{XattrFlags, lsetxattr};
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: attributes of symbolic links need root");
        return;
    }
    let bench = filled("1", 2);
    // 32-bit version, then tag, rights and user of each entry: owner rw, user 1 rwx, group r, mask rw.
    let list: [u8; 44] = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 6, 0, 255,
        255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    for member in ["m0", "m1"] {
        let tree = bench.path(member).join("data/tree");
        for (name, attribute, value) in [
            ("pipe", "system.posix_acl_access", &list[..]),
            ("pipe", "trusted.of-pipe", b"p"),
            ("dangling", "trusted.of-link", b"l"),
            ("file1", "trusted.of-file", b"f"),
        ] {
            lsetxattr(tree.join(name), attribute, value, XattrFlags::empty()).unwrap();
        }
    }
    let wanted = attributes(&bench.path("m1/data"));
    // The pipe has two names.
    assert_eq!(wanted.len(), 6, "{wanted:?}");
    for (round, old) in ["m1", "m0"].into_iter().enumerate() {
        let new = format!("new{round}");
        fs::create_dir(bench.path(&new)).unwrap();
        replace(&bench, old, &new);
        assert_eq!(attributes(&bench.path(&new).join("data")), wanted, "in the place of {old}");
        assert_eq!(seen(&bench.path(&new).join("data")), seen(&bench.path(old).join("data")), "in the place of {old}");
        assert_fits(&bench, old);
    }
    let failed = bench.run(&["fail", "db", "new0"]);
    assert!(failed.status.success(), "{}", err(&failed));
    let rebuilt = bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    assert_eq!(attributes(&bench.path("new0/data")), wanted, "rebuilt");
}

/// Zeros that a program has written take their space in the new directory, too: a program may count on
/// it that there is room to write over them. Holes stay holes.
#[test]
fn zeros_that_were_written_take_space_on_the_new_member() {
    let bench = Bench::new();
    members(4).iter().for_each(|member| fs::create_dir_all(bench.path(member)).unwrap());
    let created = bench.run(&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"]);
    assert!(created.status.success(), "{}", err(&created));
    let script = "head -c 3145728 /dev/zero >/data/zeros; truncate -s 3145728 /data/hole; printf x >>/data/hole";
    let ran = bench.command(&["run", "db", "--", "sh", "-euc", script]).env("CXLRAID_LIB", library()).output().unwrap();
    assert!(ran.status.success(), "{}", err(&ran));
    stop(&bench);
    let space = |member: &str, name: &str| fs::metadata(bench.path(member).join("data").join(name)).unwrap().blocks();
    let before = ["zeros", "hole"].map(|name| space("m2", name));
    assert!(before[0] >= 3 << 10 && before[1] < 1 << 10, "{before:?}");
    replace(&bench, "m2", "m3");
    assert_eq!(["zeros", "hole"].map(|name| space("m3", name)), before);
    assert_fits(&bench, "after the exchange");
}

#[test]
fn the_old_member_never_wins_again() {
    let bench = filled("1", 2);
    fs::create_dir(bench.path("new")).unwrap();
    replace(&bench, "m1", "new");
    let changed = on_array(&bench, &["sh", "-euc", "echo later > /data/tree/later"]).output().unwrap();
    assert!(changed.status.success(), "{}", err(&changed));
    stop(&bench);
    // It is put in the place of the new one, with the other member and without.
    fs::rename(bench.path("new"), bench.path("kept")).unwrap();
    fs::rename(bench.path("m1"), bench.path("new")).unwrap();
    let status = bench.run(&["status", "db"]);
    assert!(status.status.code() == Some(1) && out(&status).contains("replaced"), "{}", out(&status));
    fs::rename(bench.path("m0"), bench.path("other")).unwrap();
    let retrieved = bench.run(&["retrieve", "--array", "db", "/data/tree/file3", "file"]);
    assert!(!retrieved.status.success(), "the old member was believed");
    fs::rename(bench.path("other"), bench.path("m0")).unwrap();
    fs::rename(bench.path("new"), bench.path("m1")).unwrap();
    fs::rename(bench.path("kept"), bench.path("new")).unwrap();
    assert_fits(&bench, "in its place");
}

#[test]
fn a_directory_in_which_no_member_can_be_made_is_refused_and_the_array_is_as_it_was() {
    let bench = filled("5", 3);
    let other = Bench::new();
    assert!(other.create().status.success());
    fs::create_dir(bench.path("full")).unwrap();
    fs::write(bench.path("full/file"), "somebody's").unwrap();
    assert!(Command::new("cp").args(["-a", "m1", "copy"]).current_dir(bench.home.path()).status().unwrap().success());
    std::os::unix::fs::symlink("m0", bench.path("another-m0")).unwrap();
    let foreign = other.path("m0").display().to_string();
    let cases = [
        ("m0", "given twice"),
        ("nowhere", "does not exist"),
        ("full", "not empty"),
        ("copy", "not empty"),
        ("another-m0", ""),
        (&foreign, "belongs to"),
    ];
    for (new, expected) in cases {
        let (_, line) = refused(&bench.run(&["replace", "db", "m1", new]));
        assert!(line.contains(expected), "{new}: {line}");
    }
    assert_eq!(fs::read(bench.path("full/file")).unwrap(), b"somebody's");
    assert_fits(&bench, "after refusals");
    assert_holds(&bench, "after refusals");
    assert_eq!(other.run(&["status", "db"]).status.code(), Some(0));
}

/// Programs use the array when the command begins, and what they change is in the copy.
#[test]
fn programs_are_waited_for_and_what_they_change_meanwhile_is_copied() {
    for level in ["1", "5"] {
        let bench = filled(level, 3);
        fs::create_dir(bench.path("new")).unwrap();
        let go = bench.path("go");
        let script = "echo one > /data/tree/file3; mkdir /data/tree/moved; mv /data/tree/file9 /data/tree/moved
            until [ -e \"$0\" ]; do sleep 0.01; echo more >> /data/tree/file5; done
            rm /data/tree/third; echo two > /data/tree/third; rm -r /data/tree/deep; chmod 640 /data/tree/file8";
        let mut program = on_array(&bench, &["sh", "-euc", script]);
        let program = Begun::new(program.arg(&go).stderr(Stdio::null()));
        sleep(Duration::from_millis(300));
        let (_, line) = refused(&bench.run(&["replace", "db", "m1", "new"]));
        assert!(line.contains("has a copy") && line.contains(" use the array; end these"), "{line}");
        assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0), "the old one is a member");
        let mut replacing = bench.command(&["replace", "db", "m1", "new", "--wait", "60"]);
        let replacing = Begun::new(replacing.stdout(Stdio::piped()).stderr(Stdio::piped()));
        sleep(Duration::from_millis(500));
        let job = bench.run(&["status", "db", "--json"]);
        assert!(out(&job).contains("\"replacement\""), "{}", out(&job));
        fs::write(&go, "").unwrap();
        assert!(program.ended().status.success());
        let replaced = replacing.ended();
        assert!(replaced.status.success(), "{}", err(&replaced));
        assert_eq!(seen(&bench.path("new/data")), seen(&bench.path("m1/data")));
        let check = "test \"$(cat /data/tree/file3)\" = one; test \"$(cat /data/tree/third)\" = two; test ! -e /data/tree/deep
            test -s /data/tree/moved/file9; echo three > /data/tree/after";
        let after = on_array(&bench, &["sh", "-euxc", check]).output().unwrap();
        assert!(after.status.success(), "{}", err(&after));
        stop(&bench);
        assert_fits(&bench, level);
    }
}

/// What the old member cannot give is computed.
#[test]
fn a_file_that_the_old_member_does_not_have_whole_is_computed() {
    for (level, count) in [("1", 2), ("5", 3), ("6", 4)] {
        let bench = filled(level, count);
        fs::create_dir(bench.path("new")).unwrap();
        for name in ["file11", "file10"] {
            let file = fs::File::options().write(true).open(bench.path("m1/data/tree").join(name)).unwrap();
            file.set_len(1000).unwrap();
        }
        let said = replace(&bench, "m1", "new");
        assert!(said.contains("new in sync; 2 files"), "{said}");
        assert_fits(&bench, level);
        let mut members = members(count);
        members[1] = "new".to_owned();
        assert_bears_each(&bench, level, &members);
    }
    // Without redundancy nothing can compute it: the old one stays.
    let bench = filled("0", 2);
    fs::create_dir(bench.path("new")).unwrap();
    let cut = bench.path("m1/data/tree/file11");
    let bytes = fs::read(&cut).unwrap();
    fs::File::options().write(true).open(&cut).unwrap().set_len(1000).unwrap();
    let (_, line) = refused(&bench.run(&["replace", "db", "m1", "new"]));
    assert!(line.contains("file11: cannot be read, nor computed"), "{line}");
    let times = fs::metadata(&cut).unwrap().modified().unwrap();
    fs::write(&cut, bytes).unwrap();
    fs::File::options().write(true).open(&cut).unwrap().set_modified(times).unwrap();
    replace(&bench, "m1", "new");
}

/// Another member is lost while the copy is made: the array goes on with the old member, and so does
/// the replacement.
#[test]
fn another_member_that_is_lost_meanwhile_is_no_hindrance() {
    for (level, count) in [("1", 3), ("5", 3), ("6", 4), ("10", 4)] {
        let bench = filled(level, count);
        fs::create_dir(bench.path("new")).unwrap();
        let mut replacing = bench.command(&["replace", "db", "m1", "new", "--rate", "1M"]);
        let replacing = Begun::new(replacing.stdout(Stdio::piped()).stderr(Stdio::piped()));
        sleep(Duration::from_millis(400));
        let lost = if level == "10" { "m2" } else { "m0" };
        fs::rename(bench.path(lost), bench.path("gone")).unwrap();
        assert_holds(&bench, &format!("level {level} meanwhile"));
        let replaced = replacing.ended();
        assert!(replaced.status.success(), "level {level}: {}", err(&replaced));
        let status = out(&bench.run(&["status", "db"]));
        assert!(status.contains("/new "), "{status}");
        assert_holds(&bench, &format!("level {level} with the new one"));
        stop(&bench);
        fs::rename(bench.path("gone"), bench.path(lost)).unwrap();
        let rebuilt = bench.run(&["rebuild", "db"]);
        assert!(rebuilt.status.success(), "{}", err(&rebuilt));
        assert_fits(&bench, level);
        let mut members = members(count);
        members[1] = "new".to_owned();
        assert_bears_each(&bench, level, &members);
    }
}

#[test]
fn it_is_paused_and_cancelled_as_other_jobs_are() {
    let bench = filled("5", 3);
    fs::create_dir(bench.path("new")).unwrap();
    let mut replacing = bench.command(&["replace", "db", "m1", "new", "--rate", "1M"]);
    let replacing = Begun::new(replacing.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let begun = Instant::now();
    // The job is seen in the runtime segment.
    let paused = loop {
        let paused = bench.run(&["pause", "db"]);
        if paused.status.success() || begun.elapsed() > Duration::from_secs(20) {
            break paused;
        }
        sleep(Duration::from_millis(20));
    };
    assert!(paused.status.success(), "{}", err(&paused));
    let (_, line) = refused(&bench.run(&["replace", "db", "m2", "new"]));
    assert!(line.contains("a replacement by process"), "{line}");
    assert!(bench.run(&["resume", "db"]).status.success());
    let cancelled = bench.run(&["cancel", "db"]);
    assert!(cancelled.status.success(), "{}", err(&cancelled));
    let ended = replacing.ended();
    assert!(!ended.status.success() && err(&ended).contains("cancelled"), "{}", err(&ended));
    assert_fits(&bench, "cancelled");
    replace(&bench, "m1", "new");
    assert_fits(&bench, "given again");
}

/// This script is run in a mount namespace of its own. The new directory is too small in the end.
const SMALL: &str = r#"
command=$1
mkdir small
mount -t tmpfs -o size=3M none small || exit 99
"$command" replace db m1 small --rate 2M >out 2>err </dev/null &
sleep 0.3
head -c 3M /dev/zero >small/fill 2>/dev/null
wait $! && exit 3
cat err
"$command" status db >/dev/null || exit 4
rm small/fill
"$command" replace db m1 small || exit 5
"$command" scrub db >/dev/null || exit 6
"$command" stop db
"#;

#[test]
fn a_directory_without_room_is_named_and_the_old_member_stays() {
    let bench = filled("5", 3);
    let test = "a_directory_without_room_is_named_and_the_old_member_stays";
    let Some(output) = bench.with_own_mounts(test, SMALL, |_| {}) else { return };
    let text = out(&output);
    assert!(output.status.success(), "{}: {text}{}", output.status, err(&output));
    assert!(text.contains(": cannot be made: No space left on device") && text.contains("make room on its device"), "{text}");
    assert!(text.contains("small in sync in the place of "), "{text}");
}

/// Kills the command at random instants. Each time either directory is the member, and whole; in
/// the end another one is.
#[test]
fn whatever_ends_the_command_leaves_one_of_both_directories_the_member() {
    let number = |name: &str, otherwise| env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (kills, seed) = (number("CXLRAID_KILLS", 6), number("CXLRAID_SEED", 0x16_2020));
    library();
    for (level, count) in LEVELS {
        let mut random = Random(seed + level.len() as u64 + 64 * count as u64);
        let bench = filled(level, count);
        let (mut round, mut killed, mut swapped) = (0, 0, 0);
        fs::create_dir(bench.path("first")).unwrap();
        let begun = Instant::now();
        replace(&bench, "m1", "first");
        let (whole, mut present) = (begun.elapsed(), "first".to_owned());
        while killed < kills {
            round += 1;
            assert!(round < 20 * kills + 20, "level {level}: {killed} of {round} were killed in time");
            let new = format!("new{swapped}");
            fs::create_dir_all(bench.path(&new)).unwrap();
            let mut command = bench.command(&["replace", "db", &present, &new]);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            sleep(Duration::from_nanos(random.below(whole.as_nanos() as u64 * 6 / 5)));
            let _ = child.kill();
            killed += u64::from(!child.wait().unwrap().success());
            let what = format!("level {level}, seed {seed}, round {round}, {present} to {new}");
            let status = bench.run(&["status", "db"]);
            assert_eq!(status.status.code(), Some(0), "{what}: {}{}", out(&status), err(&status));
            let is_new = out(&status).contains(&format!("/{new} "));
            if round % 3 == 0 || is_new {
                assert_holds(&bench, &what);
                assert_fits(&bench, &what);
            }
            if is_new {
                // The same command finishes what is left: that the old one says so.
                let said = replace(&bench, &present, &new);
                assert!(said.contains("in sync in the place of"), "{what}: {said}");
                assert!(out(&bench.run(&["examine", &present])).contains("replaced"), "{what}");
                fs::remove_dir_all(bench.path(&present)).unwrap();
                present = new;
                swapped += 1;
            }
        }
        let new = format!("new{swapped}");
        fs::create_dir_all(bench.path(&new)).unwrap();
        replace(&bench, &present, &new);
        assert_fits(&bench, level);
        let members: Vec<String> = (0..count).map(|slot| if slot == 1 { new.clone() } else { format!("m{slot}") }).collect();
        assert_bears_each(&bench, level, &members);
        eprintln!("level {level} of {count}: {killed} of {round} were killed, {swapped} behind the exchange");
    }
}
