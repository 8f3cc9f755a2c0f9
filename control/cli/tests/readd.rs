//! `cxlraid re-add`: a member that was away gets what changed meanwhile, and nothing else.
//!
//! A script of random changes runs on the array while a member is away, and on a plain directory.
//! `CXLRAID_SEEDS=N` tries so many scripts (2 otherwise), `CXLRAID_SEED=N` repeats one.
//! `CXLRAID_KILLS=N` kills so many commands (10 otherwise).

mod bench;

use bench::{
    Bench, Random, err,
    filled::{FILES, assert_bears, assert_whole, filled, stop},
    library::library,
    out, refused,
};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Runs a script of sh on the array.
#[track_caller]
fn on_array(bench: &Bench, script: &str) {
    let ran = bench.command(&["run", "db", "--", "sh", "-euc", script]).env("CXLRAID_LIB", library()).output().unwrap();
    assert!(ran.status.success(), "{script}: {}{}", out(&ran), err(&ran));
}

#[track_caller]
fn re_add(bench: &Bench, member: &str) -> (String, String) {
    let added = bench.run(&["re-add", "db", member]);
    assert!(added.status.success(), "{}", err(&added));
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(0), "{}", out(&status));
    (out(&added), err(&added))
}

/// Asks a scrub whether all members fit. A command that was killed as it gave space back may have
/// left a file's copy on one member with another time of modification (docs/losses.md); a scrub
/// mends that, if the next to open the file has not, and nothing else may be wrong.
#[track_caller]
fn assert_fits(bench: &Bench, what: &str) {
    let scrubbed = bench.run(&["scrub", "db"]);
    if scrubbed.status.success() {
        return;
    }
    let told = format!("{}:\n{}{}", scrubbed.status, out(&scrubbed), err(&scrubbed));
    let is_time = |line: &&str| line.contains(": was modified at another time on ");
    let findings = told.lines().filter(|line| line.starts_with("/data/"));
    assert!(findings.clone().count() > 0 && findings.clone().all(|line| is_time(&line)), "{what}: {told}");
    let mended = bench.run(&["scrub", "--repair", "db"]);
    let is_mended = mended.status.success() || out(&mended).contains("; made that of the others");
    assert!(is_mended, "{what}: {told}, then {}{}", out(&mended), err(&mended));
    let scrubbed = bench.run(&["scrub", "db"]);
    assert!(scrubbed.status.success(), "{what}: {}{}", out(&scrubbed), err(&scrubbed));
}

/// The last event of a member that comes back.
fn last_re_add(bench: &Bench) -> String {
    let events = out(&bench.run(&["events", "db"]));
    events.lines().rfind(|line| line.contains(" ReAdd ")).unwrap_or_default().to_owned()
}

#[track_caller]
fn take_out(bench: &Bench, member: &str) {
    let failed = bench.run(&["fail", "db", member]);
    assert!(failed.status.success(), "{}", err(&failed));
}

/// Programs that run began without a member, which is back at its place: nothing is on record of
/// that before they change something.
#[test]
fn a_member_that_programs_began_without_is_told_and_brought_back() {
    for changes in [false, true] {
        let bench = filled();
        fs::rename(bench.path("m1"), bench.path("away")).unwrap();
        let script = "echo begun; read line; [ $0 = false ] || echo changed > /data/files/new; echo $line";
        let mut program = bench.command(&["run", "db", "--", "sh", "-euc", script, &changes.to_string()]);
        let program = program.env("CXLRAID_LIB", library()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut program = program.spawn().unwrap();
        let mut said = BufReader::new(program.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        fs::rename(bench.path("away"), bench.path("m1")).unwrap();

        let status = bench.run(&["status", "db"]);
        let told = out(&status);
        assert_eq!(status.status.code(), Some(3), "{told}");
        assert!(told.contains("2 of 3 members work, 0 more may fail"), "{told}");
        assert!(told.contains("stale, volatile: programs that run have begun without it"), "{told}");
        let replaced = bench.run(&["replace", "db", "m1", "new"]);
        assert!(!err(&replaced).contains("is in sync"), "{}", err(&replaced));
        fs::rename(bench.path("m0"), bench.path("other")).unwrap();
        let refused = bench.run(&["status", "db"]);
        let told = out(&refused);
        assert!(refused.status.code() == Some(1) && told.contains("2 of 3 members cannot be used"), "{told}");
        fs::rename(bench.path("other"), bench.path("m0")).unwrap();

        let adding = bench.command(&["re-add", "db", "m1", "--wait", "60"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        sleep(Duration::from_millis(500));
        writeln!(program.stdin.take().unwrap(), "end").unwrap();
        assert!(program.wait().unwrap().success());
        let added = adding.unwrap().wait_with_output().unwrap();
        assert!(added.status.success(), "{changes}: {}", err(&added));
        let last = last_re_add(&bench);
        assert!(last.contains("only what changed while it was away"), "{changes}: {last}");
        assert_fits(&bench, &format!("{changes}"));
        for away in ["m0", "m1", "m2"] {
            assert_bears(&bench, away);
        }
    }
}

#[test]
fn what_changed_while_a_member_was_away_is_computed_and_nothing_else() {
    for (away, member) in ["fail", "stop", "run"].into_iter().zip(["m0", "m1", "m2"]) {
        let bench = filled();
        match away {
            "fail" => take_out(&bench, member),
            // It is missing at the next start.
            "stop" => fs::rename(bench.path(member), bench.path("away")).unwrap(),
            // Programs notice that it is gone.
            _ => {
                let flag = bench.path("flag");
                let script = format!("echo x >> /data/files/new; until test -e {}; do sleep 0.01; done", flag.display());
                let mut program = bench.command(&["run", "db", "--", "sh", "-euc", &script]);
                let mut program = program.env("CXLRAID_LIB", library()).stdout(Stdio::null()).spawn().unwrap();
                sleep(Duration::from_millis(300));
                fs::rename(bench.path(member), bench.path("away")).unwrap();
                on_array(&bench, "rm /data/files/new");
                fs::write(flag, "").unwrap();
                assert!(program.wait().unwrap().success());
            }
        }
        on_array(
            &bench,
            "cd /data/files; cp 3 copy; cat copy > 4; cat 5 > old; cat old > 5; mv old 6; chmod 600 7; mv 8 eight; mv eight 8; rm copy",
        );
        on_array(&bench, "cd /data/files; cp 3 4.; cat 4. > 4; rm 4.; mkdir d; mv 9 d; ln d/9 9; rm -r d; : > empty");
        stop(&bench);
        if away != "fail" {
            fs::rename(bench.path("away"), bench.path(member)).unwrap();
        }
        let (said, warned) = re_add(&bench, member);
        // 4, 5, and 6, which is another file.
        assert!(said.contains(&format!("{member} in sync; 3 files, ")), "{away}: {said}{warned}");
        assert_eq!(warned, "", "{away}");
        let event = last_re_add(&bench);
        assert!(event.ends_with(&format!("/{member}: only what changed while it was away is computed")), "{away}: {event}");
        for left in ["left", "kept"] {
            assert!(!bench.path(member).join(".cxlraid").join(left).exists(), "{away}: {left}");
        }
        let mode = |member: &str| bench.path(member).join("data/files/7").metadata().unwrap().mode();
        assert!(["m0", "m1", "m2"].iter().all(|member| mode(member) & 0o777 == 0o600));
        on_array(&bench, "cd /data/files; rm empty; chmod 644 7; cat 3 > tmp");
        fs::write(bench.path("four"), bench::filled::content(4)).unwrap();
        fs::write(bench.path("six"), bench::filled::content(6)).unwrap();
        let (four, six) = (bench.path("four"), bench.path("six"));
        on_array(&bench, &format!("cd /data/files; rm tmp; cat {} > 4; cat {} > 6", four.display(), six.display()));
        for missing in ["m0", "m1", "m2"] {
            assert_bears(&bench, missing);
        }
        let (status, line) = refused(&bench.run(&["re-add", "db", member]));
        assert!(status == 1 && line.contains("is in sync"), "{line}");
    }
}

/// A member that cannot be proven to be the one that left is made anew, and the command says so.
#[test]
fn a_member_that_is_not_the_one_that_left_is_made_anew() {
    let copy = |from: PathBuf, to: PathBuf| assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    for what in ["a copy", "an older copy", "left with an error", "missing after a use that was not ended"] {
        let bench = filled();
        if what == "an older copy" {
            copy(bench.path("m1"), bench.path("older"));
        }
        on_array(&bench, "cd /data/files; cat 3 > tmp; rm tmp");
        match what {
            "left with an error" | "missing after a use that was not ended" => {
                fs::rename(bench.path("m1"), bench.path("away")).unwrap();
            }
            _ => take_out(&bench, "m1"),
        }
        if what == "left with an error" {
            // A directory without its tables has failed.
            fs::rename(bench.path("away"), bench.path("m1")).unwrap();
            fs::rename(bench.path("m1/.cxlraid/lanes"), bench.path("lanes")).unwrap();
        }
        on_array(&bench, "cd /data/files; cat 5 > tmp; cat tmp > 5; rm tmp");
        stop(&bench);
        match what {
            "left with an error" => fs::rename(bench.path("lanes"), bench.path("m1/.cxlraid/lanes")).unwrap(),
            "missing after a use that was not ended" => fs::rename(bench.path("away"), bench.path("m1")).unwrap(),
            "a copy" => {
                fs::rename(bench.path("m1"), bench.path("away")).unwrap();
                copy(bench.path("away"), bench.path("m1"));
            }
            _ => {
                fs::rename(bench.path("m1"), bench.path("away")).unwrap();
                fs::rename(bench.path("older"), bench.path("m1")).unwrap();
            }
        }
        let (said, warned) = re_add(&bench, "m1");
        assert!(said.contains(&format!("in sync; {FILES} files")), "{what}: {said}");
        assert!(warned.contains("all of it is made anew"), "{what}: {warned}");
        let reason = warned.trim_end().rsplit("made anew: ").next().unwrap();
        assert!(last_re_add(&bench).ends_with(&format!("/m1: all of it is made anew: {reason}")), "{what}: {warned}");
        assert_whole(&bench);
        assert_bears(&bench, "m0");
    }
}

#[test]
fn what_somebody_changed_on_a_member_that_was_away_is_computed() {
    let bench = filled();
    on_array(&bench, "cd /data/files; ln 10 ten; mkfifo pipe; ln pipe other");
    take_out(&bench, "m1");
    // Two names of one pipe become two pipes.
    on_array(&bench, "cd /data/files; rm other; mkfifo other");
    stop(&bench);
    sleep(Duration::from_millis(20));
    let file = bench.path("m1/data/files/7");
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    let times = file.metadata().unwrap().modified().unwrap();
    fs::write(&file, bytes).unwrap();
    fs::File::open(&file).unwrap().set_modified(times).unwrap();
    fs::remove_file(bench.path("m1/data/files/8")).unwrap();
    fs::write(bench.path("m1/data/files/stranger"), "somebody's").unwrap();
    // One file becomes two that say that they are the same.
    let link = bench.path("m1/data/files/ten");
    assert!(Command::new("cp").arg("-a").arg(&link).arg(bench.path("ten")).status().unwrap().success());
    fs::rename(bench.path("ten"), &link).unwrap();
    let (said, _) = re_add(&bench, "m1");
    assert!(said.contains("in sync; 3 files"), "{said}");
    let inode = |name: &str| bench.path("m1/data/files").join(name).metadata().unwrap().ino();
    assert!(inode("10") == inode("ten") && inode("pipe") != inode("other"));
    on_array(&bench, "cd /data/files; rm ten pipe other");
    assert!(!bench.path("m1/data/files/stranger").exists());
    for missing in ["m0", "m1", "m2"] {
        assert_bears(&bench, missing);
    }
}

#[test]
fn a_member_that_is_missing_or_in_use_or_unknown_is_not_brought_back() {
    let bench = filled();
    for (member, expected) in [("m1", "is in sync"), ("m7", "not a member of the array")] {
        let (status, line) = refused(&bench.run(&["re-add", "db", member]));
        assert!(status == 1 && line.contains(expected), "{line}");
    }
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let (status, line) = refused(&bench.run(&["re-add", "db", "m1"]));
    assert!(status == 1 && line.contains("is missing"), "{line}");
    fs::rename(bench.path("away"), bench.path("m1")).unwrap();
    assert_whole(&bench);
}

/// A script of random changes below the working directory, in which files and directories have
/// names of one word.
fn script(random: &mut Random, count: usize) -> String {
    let mut script = String::from("exec 2>/dev/null\n");
    for step in 0..count {
        let mut name = || format!("{}f{}", ["", "", "d0/", "d1/"][random.below(4) as usize], random.below(30));
        let (one, other) = (name(), name());
        let (at, bytes) = (random.below(60), random.below(90_000));
        let line = match random.below(16) {
            0..=5 => format!("yes '{step} {bytes}' | head -c {bytes} | dd of={one} bs=4096 seek={at} conv=notrunc"),
            6 => format!("truncate -s {} {one}", at * 2500 + bytes % 3),
            7 => format!("mv {one} {other}"),
            8 => format!("test -f {one} && test ! -e {other} && ln {one} {other}"),
            9 => format!("rm {one}"),
            10 => format!("chmod 6{}4 {one}", random.below(8)),
            11 => format!("cp {one} {other}.t && mv {other}.t {other}"),
            12 => format!("test -f {one} && : > {one}"),
            13 => format!("fallocate -p -o {} -l {} {one}", at * 4096, bytes),
            14 => format!("mv d0 d2; mkdir d0; mv d2/{} d0; rm -r d2", other.rsplit('/').next().unwrap()),
            _ => format!("ln -sf {one} s{}", random.below(4)),
        };
        let _ = writeln!(script, "{{ {line}; }} || :");
    }
    script
}

/// Returns what files and names below a directory are.
fn tree(top: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let bytes = if metadata.is_file() {
            fs::read(&path).unwrap()
        } else if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        };
        let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
        found.insert(path.strip_prefix(top).unwrap().to_owned(), (metadata.mode() & 0o7777, links, bytes));
    }
    found
}

#[track_caller]
fn assert_like(bench: &Bench, plain: &Path, without: &str, seed: u64) {
    let _ = fs::remove_dir_all(bench.path("back"));
    // As a program sees it: names, links and bytes.
    on_array(bench, &format!("cp -a /data/files {}", bench.path("back").display()));
    let (found, wanted) = (tree(&bench.path("back")), tree(plain));
    let names = |tree: &BTreeMap<PathBuf, (u32, u64, Vec<u8>)>| -> Vec<(PathBuf, u32, u64, usize)> {
        tree.iter().map(|(path, (mode, links, bytes))| (path.clone(), *mode, *links, bytes.len())).collect()
    };
    assert_eq!(names(&found), names(&wanted), "CXLRAID_SEED={seed} without {without}");
    for (path, (_, _, bytes)) in &found {
        let at = bytes.iter().zip(&wanted[path].2).position(|(one, other)| one != other);
        assert_eq!(at, None, "CXLRAID_SEED={seed} without {without}: {}", path.display());
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs a script on the array and in a plain directory.
#[track_caller]
fn on_both(bench: &Bench, plain: &Path, script: &str) {
    on_array(bench, &format!("cd /data/files\n{script}"));
    assert!(Command::new("sh").args(["-euc", script]).current_dir(plain).status().unwrap().success());
}

/// The command dies at some instant, and is given again: the member comes back, redundancy fits,
/// and whichever member is away then, files are what they should be.
#[test]
fn a_command_that_is_killed_is_given_again() {
    let kills = number("CXLRAID_KILLS").unwrap_or(10);
    let seed = number("CXLRAID_SEED").unwrap_or(u64::from(std::process::id()));
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let bench = filled();
    let plain = bench.path("files");
    let members = ["m0", "m1", "m2"];
    let (mut longest, mut are_over, mut are_back) = (Duration::ZERO, 0, 0);
    for kill in 0..=kills {
        let gone = members[random.below(3) as usize];
        take_out(&bench, gone);
        let mut change = || {
            let (file, other) = (random.below(FILES as u64), random.below(FILES as u64));
            let (at, bytes) = (random.below(12), random.below(20_000));
            let text = format!("yes '{kill} {at}' | head -c {bytes}");
            on_both(
                &bench,
                &plain,
                &format!("{text} | dd of={file} bs=4096 seek={at} conv=notrunc 2>/dev/null; mv {other} new; mv new {other}"),
            );
        };
        change();
        change();
        let begun = Instant::now();
        let mut command = bench.command(&["re-add", "db", gone]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if kill == 0 {
            assert!(child.wait().unwrap().success());
            longest = begun.elapsed();
            continue;
        }
        sleep(longest.mul_f64(random.below(1000) as f64 / 1000.0));
        are_over += u32::from(child.try_wait().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        if random.below(3) == 0 {
            on_both(&bench, &plain, &format!("echo {kill} >> {}", random.below(FILES as u64)));
        }
        let added = bench.run(&["re-add", "db", gone]);
        let is_back = err(&added).contains("is in sync");
        are_back += u32::from(is_back);
        assert!(added.status.success() || is_back, "CXLRAID_SEED={seed}, {kill}: {}", err(&added));
        assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0), "CXLRAID_SEED={seed}, {kill}");
        assert_fits(&bench, &format!("CXLRAID_SEED={seed}, {kill}"));
        let away = members[random.below(3) as usize];
        stop(&bench);
        fs::rename(bench.path(away), bench.path("gone")).unwrap();
        assert_like(&bench, &plain, away, seed);
        stop(&bench);
        fs::rename(bench.path("gone"), bench.path(away)).unwrap();
    }
    println!(
        "{kills} killed within {longest:?}, of which {are_over} had ended by themselves, {are_back} had brought the member back"
    );
}

/// Random changes before a member goes, while it is away and after it is back, which is brought
/// back by commands that are killed.
#[test]
fn random_changes_while_a_member_is_away() {
    let first = number("CXLRAID_SEED").unwrap_or(u64::from(std::process::id()) << 8 | 1);
    let seeds = number("CXLRAID_SEEDS").unwrap_or(if number("CXLRAID_SEED").is_some() { 1 } else { 2 });
    for seed in first..first + seeds {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let levels = [("5", 3), ("1", 2), ("6", 4), ("10", 4), ("1", 3)];
        let (level, count) = levels[random.below(levels.len() as u64) as usize];
        println!("CXLRAID_SEED={seed}: RAID {level} of {count}");
        let members: Vec<String> = (0..count).map(|slot| format!("m{slot}")).collect();
        let bench = Bench::new();
        members.iter().for_each(|member| fs::create_dir_all(bench.path(member)).unwrap());
        let names: Vec<&str> = members.iter().map(String::as_str).collect();
        let created = bench.run(&[&["create", "db", "--level", level, "--at", "/data"], &names[..]].concat());
        assert!(created.status.success(), "{}", err(&created));
        let plain = bench.path("plain");
        fs::create_dir(&plain).unwrap();
        on_array(&bench, "mkdir /data/files");
        let both = |random: &mut Random, changes: usize| on_both(&bench, &plain, &script(random, changes));
        let changes = 120;
        on_both(&bench, &plain, "mkdir d0 d1\n");
        both(&mut random, changes);
        for _ in 0..3 {
            let gone = &members[random.below(count) as usize];
            if random.below(2) == 0 {
                stop(&bench);
            }
            let is_moved = random.below(2) == 0;
            if is_moved {
                fs::rename(bench.path(gone), bench.path("away")).unwrap();
            } else {
                take_out(&bench, gone);
            }
            let few = random.below(12) as usize;
            both(&mut random, few);
            if random.below(2) == 0 {
                stop(&bench);
            }
            both(&mut random, few);
            if is_moved {
                fs::rename(bench.path("away"), bench.path(gone)).unwrap();
            }
            for _ in 0..random.below(6) {
                let mut command = bench.command(&["re-add", "db", gone]);
                let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                sleep(Duration::from_micros(random.below(60_000)));
                child.kill().unwrap();
                child.wait().unwrap();
                if random.below(3) == 0 {
                    both(&mut random, 2);
                }
            }
            let added = bench.run(&["re-add", "db", gone]);
            print!("  {}{}", out(&added), err(&added));
            let is_back = || err(&added).contains("is in sync") || bench.run(&["rebuild", "db"]).status.success();
            assert!(added.status.success() || is_back(), "{}", err(&added));
            both(&mut random, 3);
        }
        stop(&bench);
        assert_fits(&bench, &format!("CXLRAID_SEED={seed}"));
        assert_like(&bench, &plain, "none", seed);
        for member in &members {
            stop(&bench);
            fs::rename(bench.path(member), bench.path("gone")).unwrap();
            assert_like(&bench, &plain, member, seed);
            stop(&bench);
            fs::rename(bench.path("gone"), bench.path(member)).unwrap();
        }
        stop(&bench);
    }
}
