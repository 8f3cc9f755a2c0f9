//! Commands where something has no room. If that is shared memory (/dev/shm), each ends with a line
//! that says so, and `cxlraid stop` does its work. If it is a member, the repairs name it.

mod bench;

use bench::{Bench, library::library};
use std::{env, fs::OpenOptions};
use sys::rustix::{
    mm::{MapFlags, ProtFlags, mmap},
    process::{Signal, getpid, kill_process},
};

/// Says that a process is a program of the array and not a test.
const PROGRAM: &str = "CXLRAID_TEST_FULL_PROGRAM";

/// Runs in a mount namespace of its own, with a small /dev/shm: `$1` is the command.
const SCRIPT: &str = r#"
mount -t tmpfs -o size=8M none /dev/shm || exit 99
command=$1
say() { name=$1; shift; "$command" "$@" >out 2>err </dev/null; echo "$name $? $(cat err)"; }
fill() { head -c 16M /dev/zero >/dev/shm/fill 2>/dev/null; }
"$command" create db --level 5 --at /data m0 m1 m2 2>/dev/null >/dev/null || exit 1
echo content >file
"$command" add -a db file /data/file || exit 1
fill
say status status db
say retrieve retrieve -a db /data/file back
say scrub scrub db
say fail fail db m0
say remove remove db m0
say replay journal replay db
say stop stop db
ls /dev/shm
fill
say scrub-anew scrub db
ls /dev/shm
rm /dev/shm/fill
say scrub-after scrub db
rm -f back
say retrieve-after retrieve -a db /data/file back
cat back
"$command" events db
say stop-after stop db
"#;

/// A program that may make no file longer than 4 KiB is the first to change something: what it has to
/// put on record lies behind that, which says nothing of the members.
#[test]
fn a_small_limit_for_files_takes_no_member_out() {
    let bench = Bench::new();
    let created = bench.run(&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"]);
    assert!(created.status.success(), "{}", bench::err(&created));
    let run = |script: &str| {
        let ran = bench.command(&["run", "db", "--", "sh", "-euc", script]).env("CXLRAID_LIB", library()).output().unwrap();
        assert!(ran.status.success(), "{script}: {}{}", bench::out(&ran), bench::err(&ran));
        bench::out(&ran)
    };
    for turn in 0..4 {
        run("head -c 3000 /dev/zero | tr '\\0' a >/data/f");
        assert!(bench.run(&["stop", "db"]).status.success());
        // The shell reads and is attached; what it starts is the first that writes.
        let changed = run(
            "head -c 1 /data/f >/dev/null; (ulimit -f 8; printf NEW | dd of=/data/f bs=1 seek=100 conv=notrunc 2>/dev/null); \
             head -c 104 /data/f | tail -c 5",
        );
        assert_eq!(changed, "aNEWa", "{turn}");
        let status = bench.run(&["status", "db"]);
        assert_eq!(status.status.code(), Some(0), "{turn}: {}", bench::out(&status));
        let scrubbed = bench.run(&["scrub", "db"]);
        assert!(scrubbed.status.success(), "{turn}: {}", bench::out(&scrubbed));
        assert!(bench.run(&["stop", "db"]).status.success());
    }
}

#[test]
fn every_command_says_that_shared_memory_is_full() {
    let bench = Bench { home: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
    ["m0", "m1", "m2"].iter().for_each(|member| std::fs::create_dir(bench.path(member)).unwrap());
    let Some(output) = bench.with_own_mounts("every_command_says_that_shared_memory_is_full", SCRIPT, |_| {}) else { return };
    let text = bench::out(&output);
    let full = "1 cxlraid: /dev/shm: shared memory is full; make room in /dev/shm, and give the command again";
    let mut expected = vec!["status 0 ".to_owned()];
    expected.extend(["retrieve", "scrub", "fail", "remove", "replay"].map(|name| format!("{name} {full}")));
    expected.extend(["stop 0 ", "fill"].map(str::to_owned));
    expected.extend([format!("scrub-anew {full}"), "fill".to_owned()]);
    // The members are as they were, and no event says otherwise.
    expected.extend(["scrub-after 0 ", "retrieve-after 0 ", "content"].map(str::to_owned));
    let lines: Vec<&str> = text.lines().collect();
    let events = |line: &&str| line.contains(" db ") && line.contains("Scrub");
    let (told, said): (Vec<&str>, Vec<&str>) = lines.iter().copied().partition(events);
    expected.push("stop-after 0 ".to_owned());
    assert_eq!(said, expected, "{text}{}", bench::err(&output));
    assert!(told.last().is_some_and(|line| line.contains("everything fits")), "{text}");
}

/// This script is run as [`SCRIPT`] is. A member is made anew on a file system that is too small for
/// it.
const SMALL: &str = r#"
command=$1
say() { name=$1; shift; "$command" "$@" >out 2>err </dev/null; echo "$name $? $(cat err)"; }
mkdir small large
"$command" create db --level 5 --at /data m0 m1 m2 2>/dev/null >/dev/null || exit 1
for file in 1 2 3; do
    head -c 4M /dev/urandom >file
    cp file file$file
    "$command" add -a db file /data/$file || exit 1
done
"$command" fail db m1 >/dev/null || exit 1
rm -r m1 && mkdir m1
mount -t tmpfs -o size=5M none m1 && mount -t tmpfs -o size=2M none small || exit 99
say rebuild rebuild db m1
for file in 1 2 3; do
    say retrieve-$file retrieve -a db /data/$file back
    cmp back file$file && rm back
done
say replace replace db m1 large
"$command" fail db m1 >/dev/null || exit 1
say replace-small replace db m1 small
say replace-large replace db m1 large
say scrub scrub db
say stop stop db
"#;

#[test]
fn a_repair_names_the_member_that_is_full() {
    let bench = Bench::new();
    let Some(output) = bench.with_own_mounts("a_repair_names_the_member_that_is_full", SMALL, |_| {}) else { return };
    let text = bench::out(&output);
    let lines: Vec<&str> = text.lines().collect();
    let [rebuild, one, two, three, replace, small, large, rest @ ..] = &lines[..] else {
        panic!("{text}{}", bench::err(&output))
    };
    let [member, other] = ["m1", "small"].map(|name| bench.path(name).display().to_string());
    assert!(rebuild.starts_with(&format!("rebuild 1 cxlraid: {member}: is full: ")), "{rebuild}");
    assert!(rebuild.contains(" of 3 files still wait to be rebuilt (") && rebuild.contains(", for which it lacks about "));
    assert!(rebuild.contains("; make room there, and 'cxlraid rebuild' goes on; or 'cxlraid fail' it"), "{rebuild}");
    // The bytes that wait to be rebuilt are read from the other members.
    assert_eq!([one, two, three], [&"retrieve-1 0 ", &"retrieve-2 0 ", &"retrieve-3 0 "], "{text}");
    assert!(replace.starts_with(&format!("replace 1 cxlraid: {member}: is being rebuilt; 'cxlraid rebuild' goes on; ")));
    assert!(small.starts_with(&format!("replace-small 1 cxlraid: {other}: is too small: ")), "{small}");
    assert!(large.starts_with("replace-large 0 "), "{large}");
    assert_eq!(rest, ["scrub 0 ", "stop 0 "]);
}

/// Not a test by itself: stores to a mapping of a file of the array and dies.
#[test]
#[allow(unsafe_code)] // Only a mapping is stored to without a call.
fn dying_program() {
    if env::var_os(PROGRAM).is_none() {
        return;
    }
    let file = OpenOptions::new().read(true).write(true).open("/data/file").unwrap();
    let length = file.metadata().unwrap().len() as usize;
    // SAFETY: a mapping of the whole file, which nobody cuts.
    unsafe {
        let start = mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0).unwrap();
        start.cast::<u8>().copy_from_nonoverlapping(b"stored".as_ptr(), 6);
    }
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// This script is run as [`SCRIPT`] is; `$2` is the program that dies.
const DYING: &str = r#"
mount -t tmpfs -o size=8M none /dev/shm || exit 99
command=$1
say() { name=$1; shift; "$command" "$@" >out 2>err </dev/null; echo "$name $? $(cat err)"; }
"$command" create db --level 5 --at /data m0 m1 m2 2>/dev/null >/dev/null || exit 1
head -c 100000 /dev/zero >file
"$command" add -a db file /data/file || exit 1
"$command" run db -- "$2" --exact dying_program >/dev/null 2>&1
head -c 16M /dev/zero >/dev/shm/fill 2>/dev/null
say stop stop db
say gc gc
rm /dev/shm/fill
say stop-after stop db
say retrieve retrieve -a db /data/file back
head -c 6 back
"#;

#[test]
fn a_stop_without_room_keeps_what_only_shared_memory_has() {
    let bench = Bench { home: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
    ["m0", "m1", "m2"].iter().for_each(|member| std::fs::create_dir(bench.path(member)).unwrap());
    let Some(output) = bench.with_own_mounts("a_stop_without_room_keeps_what_only_shared_memory_has", DYING, |shell| {
        shell.arg(env::current_exe().unwrap()).env("CXLRAID_LIB", library()).env(PROGRAM, "");
    }) else {
        return;
    };
    let text = bench::out(&output);
    let (stop, rest) = text.split_once('\n').unwrap_or_default();
    // It depends on which pages of the segment exist whether the command finds out what waits there.
    assert!(stop.starts_with("stop 1 cxlraid: /dev/shm: shared memory is full"), "{text}{}", bench::err(&output));
    assert!(stop.ends_with("; make room in /dev/shm, and give the command again"), "{stop}");
    assert_eq!(rest, "gc 0 \nstop-after 0 \nretrieve 0 \nstored", "{stop}");
}
