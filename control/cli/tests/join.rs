//! A member comes into use while programs run: `cxlraid rebuild`, `replace` and spares, with
//! programs under the library that write, map, rename and keep files open, are killed and started
//! again.
//!
//! `CXLRAID_KILLS=N` kills programs N times in each scene (12 otherwise), `CXLRAID_SEED=N` repeats
//! a run.

mod bench;

use bench::{Bench, Random, err, library::library, out};
use std::{
    collections::BTreeMap,
    env, fs,
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use sys::rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Says which directory and log a process works on that is a program and not a test.
const PROGRAM: &str = "CXLRAID_TEST_JOIN_PROGRAM";
const BLOCK: usize = 4096;
const FILE_COUNT: u64 = 6;
const BLOCK_COUNT_MAX: u64 = 40;
const PROGRAM_COUNT: usize = 3;

/// What a program has written to one of its files, by its log.
#[derive(Clone, Default, Debug)]
struct Written {
    name: String,
    /// The version of each block; 0 for zeros.
    blocks: Vec<u64>,
    mode: u32,
}

type Model = BTreeMap<u64, Written>;

fn content(file: u64, block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    let word = |index: u64| (file << 56 ^ block << 40 ^ version << 8 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..BLOCK as u64 / 8).flat_map(word).collect()
}

fn apply(model: &mut Model, line: &str) {
    let mut words = line.split(' ');
    let what = words.next().unwrap();
    let file: u64 = words.next().unwrap().parse().unwrap();
    let rest: Vec<&str> = words.collect();
    let number = |index: usize| rest[index].parse::<u64>().unwrap();
    match what {
        "create" => drop(model.insert(file, Written { name: rest[0].into(), blocks: vec![], mode: 0o644 })),
        "unlink" => drop(model.remove(&file)),
        "rename" => model.get_mut(&file).unwrap().name = rest[0].into(),
        "chmod" => model.get_mut(&file).unwrap().mode = number(0) as u32,
        "write" => {
            let blocks = &mut model.get_mut(&file).unwrap().blocks;
            let (at, version) = (number(0) as usize, number(1));
            blocks.resize(blocks.len().max(at + 1), 0);
            blocks[at] = version;
        }
        "cut" => model.get_mut(&file).unwrap().blocks.resize(number(0) as usize, 0),
        other => panic!("{other}"),
    }
}

/// What the log says was done, and the change that was perhaps not finished.
fn read_log(log: &Path) -> (Model, Option<String>) {
    let (mut model, mut pending) = (Model::new(), None::<String>);
    for line in fs::read_to_string(log).unwrap_or_default().lines() {
        if line == "done" {
            apply(&mut model, &pending.take().unwrap());
        } else if line == "not done" {
            pending = None;
        } else {
            pending = Some(line.to_owned());
        }
    }
    (model, pending)
}

/// Compares a directory with the model. What is pending may have happened or not; returns whether
/// it has.
fn check(directory: &Path, model: &Model, pending: Option<&str>) -> Result<bool, String> {
    let after = pending.map(|line| {
        let mut after = model.clone();
        apply(&mut after, line);
        after
    });
    let unsure: Option<(u64, u64)> = pending.and_then(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words[0] == "write").then(|| (words[1].parse().unwrap(), words[2].parse().unwrap()))
    });
    let before = check_one(directory, model, unsure);
    match (before, after) {
        (Ok(()), _) => Ok(false),
        (Err(_), Some(after)) => check_one(directory, &after, unsure).map(|()| true),
        (Err(error), None) => Err(error),
    }
}

fn check_one(directory: &Path, model: &Model, unsure: Option<(u64, u64)>) -> Result<(), String> {
    let names = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut there: Vec<String> = names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    let mut wanted: Vec<String> = model.values().map(|file| file.name.clone()).collect();
    there.sort();
    wanted.sort();
    if there != wanted {
        return Err(format!("{}: {there:?} instead of {wanted:?}", directory.display()));
    }
    for (&id, file) in model {
        let path = directory.join(&file.name);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if bytes.len() != file.blocks.len() * BLOCK {
            return Err(format!("{}: {} bytes instead of {} blocks", path.display(), bytes.len(), file.blocks.len()));
        }
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        if mode != file.mode {
            return Err(format!("{}: mode {mode:o} instead of {:o}", path.display(), file.mode));
        }
        for (at, &version) in file.blocks.iter().enumerate() {
            if unsure != Some((id, at as u64)) && bytes[at * BLOCK..][..BLOCK] != content(id, at as u64, version) {
                return Err(format!("{}: block {at} is not version {version}", path.display()));
            }
        }
    }
    Ok(())
}

/// Not a test by itself: a program that changes files in its directory and says so in its log,
/// until it is told to end.
#[test]
fn program() {
    let Ok(told) = env::var(PROGRAM) else { return };
    let [directory, log, stop, seed] = told.split(' ').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let (directory, log, stop) = (Path::new(directory), Path::new(log), Path::new(stop));
    let mut random = Random(seed.parse().unwrap());
    fs::create_dir_all(directory).unwrap();
    let (mut model, pending) = read_log(log);
    let mut lines = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let mut say = |line: &str| lines.write_all(format!("{line}\n").as_bytes()).unwrap();
    let is_done = check(directory, &model, pending.as_deref()).unwrap_or_else(|error| panic!("{error}; pending {pending:?}"));
    let mut version = model.values().flat_map(|file| &file.blocks).max().copied().unwrap_or(0) + 1000;
    if let Some(line) = pending {
        let how = if is_done { "done" } else { "not done" };
        if is_done {
            apply(&mut model, &line);
        }
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "write" {
            // The block may hold a part of what was being stored. Said in one piece with what
            // becomes of that.
            let (id, at): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
            let line = format!("write {id} {at} {version}");
            say(&format!("{how}\n{line}"));
            let file = OpenOptions::new().write(true).open(directory.join(&model[&id].name)).unwrap();
            file.write_all_at(&content(id, at, version), at * BLOCK as u64).unwrap();
            say("done");
            apply(&mut model, &line);
        } else {
            say(how);
        }
    }
    let mut held: BTreeMap<u64, File> = BTreeMap::new();
    let mut nameless: Vec<(u64, Written, File)> = Vec::new();
    while !stop.exists() {
        let id = random.below(FILE_COUNT);
        let Some(known) = model.get(&id).cloned() else {
            let name = format!("file-{id}-{}", random.below(1 << 30));
            say(&format!("create {id} {name}"));
            let file =
                OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(directory.join(&name)).unwrap();
            say("done");
            apply(&mut model, &format!("create {id} {name}"));
            if random.below(2) == 0 {
                held.insert(id, file);
            }
            continue;
        };
        let path = directory.join(&known.name);
        let opened = || {
            OpenOptions::new().read(true).write(true).open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let file = held.remove(&id).unwrap_or_else(opened);
        let count = known.blocks.len() as u64;
        version += 1;
        let mut does = |line: String, act: &dyn Fn()| {
            say(&line);
            act();
            say("done");
            apply(&mut model, &line);
        };
        match random.below(14) {
            0..=4 => {
                let at = random.below((count + 2).min(BLOCK_COUNT_MAX));
                does(format!("write {id} {at} {version}"), &|| {
                    file.write_all_at(&content(id, at, version), at * BLOCK as u64).unwrap()
                });
            }
            5 | 6 if count > 0 => {
                let at = random.below(count);
                does(format!("write {id} {at} {version}"), &|| store_mapped(&file, at, &content(id, at, version)));
            }
            7 => {
                let left = random.below(count + 3);
                does(format!("cut {id} {left}"), &|| file.set_len(left * BLOCK as u64).unwrap());
            }
            8 => {
                let name = format!("file-{id}-{}", random.below(1 << 30));
                does(format!("rename {id} {name}"), &|| fs::rename(&path, directory.join(&name)).unwrap());
            }
            9 => {
                let mode = 0o600 | random.below(0o100) as u32;
                does(format!("chmod {id} {mode}"), &|| file.set_permissions(fs::Permissions::from_mode(mode)).unwrap());
            }
            10 if random.below(3) == 0 => {
                does(format!("unlink {id}"), &|| fs::remove_file(&path).unwrap());
                // It stays open, and holds what it held.
                nameless.push((id, known, file));
                if nameless.len() > 2 {
                    nameless.remove(0);
                }
                continue;
            }
            11 => {
                file.sync_all().unwrap();
                for (id, known, file) in &nameless {
                    for (at, &version) in known.blocks.iter().enumerate() {
                        let mut bytes = vec![0; BLOCK];
                        file.read_exact_at(&mut bytes, (at * BLOCK) as u64).unwrap();
                        assert!(bytes == content(*id, at as u64, version), "nameless {}: block {at}: {told}", known.name);
                        file.write_all_at(&bytes, (at * BLOCK) as u64).unwrap();
                    }
                }
            }
            _ if count > 0 => {
                let at = random.below(count);
                let mut bytes = vec![0; BLOCK];
                file.read_exact_at(&mut bytes, at * BLOCK as u64).unwrap();
                assert!(bytes == content(id, at, known.blocks[at as usize]), "{}: block {at}: {told}", path.display());
            }
            _ => {}
        }
        if random.below(20) != 0 {
            held.insert(id, file);
        }
        sleep(Duration::from_micros(random.below(1500)));
    }
}

#[allow(unsafe_code)] // Only mappings show what a program sees of them.
fn store_mapped(file: &File, at: u64, bytes: &[u8]) {
    let length = file.metadata().unwrap().len() as usize;
    assert!((at as usize + 1) * BLOCK <= length);
    // SAFETY: a mapping of the whole file, which nobody cuts meanwhile; unmapped before the end.
    unsafe {
        let start = mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0).unwrap();
        start.cast::<u8>().add(at as usize * BLOCK).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        msync(start, length, MsyncFlags::SYNC).unwrap();
        munmap(start, length).unwrap();
    }
}

struct Programs<'a> {
    bench: &'a Bench,
    running: Vec<Option<Child>>,
    random: Random,
    kills: u64,
}

impl<'a> Programs<'a> {
    fn new(bench: &'a Bench, seed: u64) -> Self {
        let mut programs = Self { bench, running: Vec::new(), random: Random(seed), kills: 0 };
        for index in 0..PROGRAM_COUNT {
            programs.running.push(None);
            programs.start(index);
        }
        programs
    }

    fn log(&self, index: usize) -> PathBuf {
        self.bench.path(&format!("log{index}"))
    }

    fn stop_flag(&self, index: usize) -> PathBuf {
        self.bench.path(&format!("stop{index}"))
    }

    fn start(&mut self, index: usize) {
        let _ = fs::remove_file(self.stop_flag(index));
        let told = format!(
            "/data/program{index} {} {} {}",
            self.log(index).display(),
            self.stop_flag(index).display(),
            self.random.below(1 << 40) + 1
        );
        let exe = env::current_exe().unwrap();
        let mut command = self.bench.command(&["run", "db", "--"]);
        command.arg(exe).args(["--exact", "program", "--nocapture", "--test-threads=1"]);
        command.env(PROGRAM, told).env("CXLRAID_LIB", library()).stdout(Stdio::null());
        self.running[index] = Some(command.spawn().unwrap());
    }

    /// Ends a program, by force or in order, and starts it again.
    fn again(&mut self, index: usize) {
        self.end(index);
        self.start(index);
    }

    fn end(&mut self, index: usize) {
        let kills = self.random.below(2) == 0;
        let mut child = self.running[index].take().unwrap();
        if kills {
            child.kill().unwrap();
            self.kills += 1;
        } else {
            fs::write(self.stop_flag(index), "").unwrap();
        }
        let status = child.wait().unwrap();
        assert!(kills || status.success(), "program {index}: {status}");
        assert!(status.success() || status.code().is_none(), "program {index}: {status}");
    }

    fn end_all(&mut self) {
        (0..PROGRAM_COUNT).for_each(|index| self.end(index));
    }

    /// A random while, in which programs end and start, or are stopped.
    fn pass(&mut self) {
        sleep(Duration::from_millis(20 + self.random.below(120)));
        let index = self.random.below(PROGRAM_COUNT as u64) as usize;
        if self.random.below(4) == 0 {
            let child = self.running[index].as_ref().unwrap();
            let ms = self.random.below(150);
            stop_for(child, ms);
        } else {
            self.again(index);
        }
    }
}

impl Drop for Programs<'_> {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Stops a process for a while.
fn stop_for(child: &Child, ms: u64) {
    let signal = |name: &str| Command::new("kill").args([name, &child.id().to_string()]).stderr(Stdio::null()).status().unwrap();
    signal("-STOP");
    sleep(Duration::from_millis(ms));
    signal("-CONT");
}

/// What must be the same on all members.
fn tree(member: &Path) -> BTreeMap<PathBuf, (u32, u64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![member.join("data")];
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(
            path.strip_prefix(member).unwrap().to_owned(),
            (metadata.mode(), if metadata.is_dir() { 0 } else { metadata.nlink() }),
        );
    }
    found
}

/// Everything is right, also without each single member.
fn assert_right(bench: &Bench, members: &[String]) {
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(0), "{}{}", out(&status), err(&status));
    bench::filled::stop(bench);
    let first = tree(&bench.path(&members[0]));
    for member in &members[1..] {
        assert_eq!(tree(&bench.path(member)), first, "{member}");
    }
    let scrubbed = bench.run(&["scrub", "db"]);
    assert!(scrubbed.status.success(), "{}{}", out(&scrubbed), err(&scrubbed));
    assert_held(bench, members);
}

/// Every file holds what it should, also without each single member.
fn assert_held(bench: &Bench, members: &[String]) {
    let check_all = |without: &str| {
        let back = bench.path("back");
        let _ = fs::remove_dir_all(&back);
        let retrieved = bench.run(&["retrieve", "--array", "db", "-r", "/data", "back"]);
        assert!(retrieved.status.success(), "without {without}: {}", err(&retrieved));
        bench::filled::stop(bench);
        for index in (0..40).filter(|_| bench.path("static").exists()) {
            let found = fs::read(back.join("static").join(index.to_string())).unwrap();
            assert!(found == bench::filled::content(index), "static file {index} without {without}");
        }
        for index in 0..PROGRAM_COUNT {
            let (model, pending) = read_log(&bench.path(&format!("log{index}")));
            let checked = check(&back.join(format!("program{index}")), &model, pending.as_deref());
            checked.unwrap_or_else(|error| panic!("without {without}: {error}; pending {pending:?}"));
        }
    };
    check_all("none");
    for member in members {
        fs::rename(bench.path(member), bench.path("gone")).unwrap();
        check_all(member);
        fs::rename(bench.path("gone"), bench.path(member)).unwrap();
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

fn create(level: &str, members: &[String], more: &[&str]) -> Bench {
    let bench = Bench::new();
    members.iter().for_each(|member| fs::create_dir_all(bench.path(member)).unwrap());
    let names: Vec<&str> = members.iter().map(String::as_str).collect();
    let created = bench.run(&[&["create", "db", "--level", level, "--at", "/data"], more, &names[..]].concat());
    assert!(created.status.success(), "{}", err(&created));
    bench
}

/// How a member comes back.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Rebuild,
    Replace,
    Spare,
    /// What was away is there again.
    ReAdd,
}

/// Members are lost one after the other and come back while programs run, until so many programs
/// were killed. `commands_die`: so do the commands.
fn scene(level: &str, count: usize, way: Way, commands_die: bool, loses_another: bool) {
    let seed = number("CXLRAID_SEED", u64::from(std::process::id()) << 20 | count as u64 | 1);
    println!("RAID {level}, {way:?}: CXLRAID_SEED={seed}");
    let mut members: Vec<String> = (0..count).map(|slot| format!("m{slot}")).collect();
    let bench = create(level, &members, &[]);
    if way == Way::ReAdd {
        // What nobody changes is kept.
        fs::create_dir(bench.path("static")).unwrap();
        for index in 0..40 {
            fs::write(bench.path("static").join(index.to_string()), bench::filled::content(index)).unwrap();
        }
        let added = bench.run(&["add", "--array", "db", "-r", "static", "/data/static"]);
        assert!(added.status.success(), "{}", err(&added));
    }
    let mut programs = Programs::new(&bench, seed);
    let (mut round, mut fresh) = (0, 0);
    while programs.kills < number("CXLRAID_KILLS", 12) || round == 0 {
        round += 1;
        programs.pass();
        let slot = programs.random.below(count as u64) as usize;
        let lost = members[slot].clone();
        println!("round {round}: {lost} is lost, {} were killed", programs.kills);
        fresh += 1;
        let aside = bench.path(&format!("lost{fresh}"));
        let is_taken_out = way == Way::ReAdd && programs.random.below(2) == 0;
        if is_taken_out {
            let failed = bench.run(&["fail", "db", &lost]);
            assert!(failed.status.success(), "{}", err(&failed));
        } else {
            fs::rename(bench.path(&lost), &aside).unwrap();
        }
        programs.pass();
        programs.pass();
        let new = if matches!(way, Way::Rebuild | Way::ReAdd) { lost.clone() } else { format!("new{fresh}") };
        match way {
            Way::ReAdd if is_taken_out => {}
            Way::ReAdd => fs::rename(&aside, bench.path(&new)).unwrap(),
            _ => fs::create_dir(bench.path(&new)).unwrap(),
        }
        if way == Way::Spare {
            let added = bench.run(&["add", "db", "--spare", &new]);
            assert!(added.status.success(), "{}", err(&added));
        }
        let mut other = None;
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let replaces = way == Way::Replace && !out(&bench.run(&["status", "db"])).contains(&new);
            let is_back = || {
                !out(&bench.run(&["status", "db"]))
                    .lines()
                    .any(|line| line.contains(&format!("/{lost} ")) && !line.contains("in sync"))
            };
            let words: Vec<&str> = match way {
                Way::ReAdd if !is_back() => vec!["re-add", "db", &lost, "--wait", "60"],
                _ if replaces => vec!["replace", "db", &lost, &new, "--wait", "60"],
                _ => vec!["rebuild", "db", "--wait", "60"],
            };
            let mut command = bench.command(&words);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let dies_at = (commands_die && programs.random.below(3) != 0)
                .then(|| Instant::now() + Duration::from_micros(programs.random.below(700_000)));
            let ended = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break Some(status);
                }
                if dies_at.is_some_and(|at| Instant::now() >= at) {
                    let _ = child.kill();
                    break None;
                }
                if commands_die && programs.random.below(10) == 0 {
                    stop_for(&child, programs.random.below(60));
                }
                if dies_at.is_some() && programs.random.below(2) == 0 {
                    sleep(Duration::from_millis(3));
                    continue;
                }
                if loses_another && other.is_none() && programs.random.below(8) == 0 {
                    // One more member goes, and comes back emptied: it is made anew, too.
                    let gone = members[(slot + 1) % count].clone();
                    fs::rename(bench.path(&gone), bench.path(&format!("other{fresh}"))).unwrap();
                    programs.pass();
                    fs::create_dir(bench.path(&gone)).unwrap();
                    other = Some(gone);
                }
                programs.pass();
            };
            let said = child.wait_with_output().unwrap();
            match ended {
                Some(status)
                    if status.success()
                        && {
                            print!("  {}{}", out(&said), err(&said));
                            true
                        }
                        && bench.run(&["status", "db"]).status.code() == Some(0) =>
                {
                    break;
                }
                Some(status) => println!("  {words:?}: {status}: {}", err(&said).trim_end()),
                None => {}
            }
            assert!(
                Instant::now() < until,
                "the member does not come back: {}{}",
                out(&bench.run(&["status", "db"])),
                err(&said)
            );
        }
        members[slot] = new;
        let _ = fs::remove_dir_all(aside);
        let _ = fs::remove_dir_all(bench.path(&format!("other{fresh}")));
        programs.pass();
        programs.end_all();
        if way == Way::ReAdd && !is_taken_out && bench.run(&["status", "db"]).status.code() != Some(0) {
            // A program that began while the member's directory was away may take it out after all,
            // when the directory has just come back: that is a loss like any other.
            let again = bench.run(&["re-add", "db", &members[slot], "--wait", "60"]);
            assert!(again.status.success(), "{}", err(&again));
        }
        assert_right(&bench, &members);
        (0..PROGRAM_COUNT).for_each(|index| programs.start(index));
    }
    programs.end_all();
    assert_right(&bench, &members);
    println!("RAID {level}, {way:?}: {round} rounds, {} programs killed", programs.kills);
}

#[test]
fn a_member_is_rebuilt_while_programs_run() {
    scene("5", 3, Way::Rebuild, false, false);
}

#[test]
fn copies_are_rebuilt_while_programs_run() {
    scene("1", 2, Way::Rebuild, false, false);
}

#[test]
fn a_member_is_replaced_while_programs_run() {
    scene("5", 3, Way::Replace, false, false);
}

#[test]
fn a_spare_takes_a_place_while_programs_run() {
    scene("10", 4, Way::Spare, true, false);
}

#[test]
fn a_rebuild_that_is_killed_harms_no_program() {
    scene("5", 3, Way::Rebuild, true, false);
}

#[test]
fn another_member_is_lost_while_one_joins() {
    scene("6", 4, Way::Rebuild, true, true);
}

#[test]
fn a_member_that_was_away_is_brought_back_while_programs_run() {
    scene("5", 3, Way::ReAdd, false, false);
}

#[test]
fn copies_that_were_away_are_brought_back_and_the_commands_are_killed() {
    scene("1", 2, Way::ReAdd, true, false);
}

#[test]
fn another_member_is_lost_while_one_is_brought_back() {
    scene("6", 4, Way::ReAdd, true, true);
}

/// Two members are out: all programs that use the array are started again once, and not once for
/// each.
#[test]
fn two_members_are_begun_at_once() {
    let members: Vec<String> = (0..4).map(|slot| format!("m{slot}")).collect();
    let bench = create("6", &members, &[]);
    let mut programs = Programs::new(&bench, 9);
    sleep(Duration::from_millis(300));
    for lost in ["m0", "m2"] {
        fs::rename(bench.path(lost), bench.path(&format!("lost-{lost}"))).unwrap();
        programs.again(0);
        sleep(Duration::from_millis(100));
        fs::create_dir(bench.path(lost)).unwrap();
    }
    let mut waiting = bench.command(&["rebuild", "db", "--wait", "60"]).stdout(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_millis(1000));
    assert!(waiting.try_wait().unwrap().is_none());
    (0..PROGRAM_COUNT).for_each(|index| programs.again(index));
    let until = Instant::now() + Duration::from_secs(50);
    let are_in = || !out(&bench.run(&["status", "db"])).contains("stale");
    while !are_in() {
        assert!(Instant::now() < until, "{}", out(&bench.run(&["status", "db"])));
        sleep(Duration::from_millis(50));
    }
    programs.end_all();
    let _ = waiting.wait().unwrap();
    let rebuilt = bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    assert_right(&bench, &members);
}

#[test]
fn an_array_with_a_journal_waits_for_rest() {
    let members: Vec<String> = (0..3).map(|slot| format!("m{slot}")).collect();
    let bench = create("5", &members, &["--journal", "internal"]);
    let mut programs = Programs::new(&bench, 11);
    sleep(Duration::from_millis(300));
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    programs.again(0);
    fs::create_dir(bench.path("m1")).unwrap();
    let line = err(&bench.run(&["rebuild", "db"]));
    assert!(line.contains("is in use by process") && line.contains("the array has a journal"), "{line}");
    assert!(!bench.path("m1/.cxlraid").exists());
    let mut waiting = bench.command(&["rebuild", "db", "--wait", "60"]).stdout(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_millis(500));
    programs.end_all();
    let replayed = bench.run(&["journal", "replay", "db"]);
    assert!(replayed.status.success(), "{}", err(&replayed));
    assert!(waiting.wait().unwrap().success() || bench.run(&["rebuild", "db"]).status.success());
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
    bench::filled::stop(&bench);
    assert_held(&bench, &members);
}

/// What is said of programs that started before.
#[test]
fn programs_from_before_are_named() {
    let members: Vec<String> = (0..3).map(|slot| format!("m{slot}")).collect();
    let bench = create("5", &members, &[]);
    let mut programs = Programs::new(&bench, 7);
    sleep(Duration::from_millis(300));
    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    fs::create_dir(bench.path("m1")).unwrap();
    programs.again(0);
    sleep(Duration::from_millis(300));
    let refused = bench.run(&["rebuild", "db"]);
    let line = err(&refused);
    assert_eq!(refused.status.code(), Some(1), "{line}");
    for child in programs.running.iter().flatten() {
        assert!(line.contains(&child.id().to_string()), "{line}");
    }
    // The array may be at rest in between: the member stays begun.
    programs.end_all();
    (0..PROGRAM_COUNT).for_each(|index| programs.start(index));
    sleep(Duration::from_millis(300));
    // They keep files open, which go on without the member.
    let until = Instant::now() + Duration::from_secs(60);
    let (refused, line) = loop {
        let refused = bench.run(&["rebuild", "db"]);
        let line = err(&refused);
        if !line.contains("the member is begun") || Instant::now() >= until {
            break (refused, line);
        }
    };
    assert!(refused.status.success() || line.contains("files are open since before the member came into use"), "{line}");
    assert!(out(&bench.run(&["status", "db"])).contains("m1"), "{line}");
    programs.end_all();
    let rebuilt = bench.run(&["rebuild", "db"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    assert_right(&bench, &members);
}

/// A member is in sync although files without names are not on it, which programs have open since
/// before: that is said.
#[test]
fn files_without_names_that_a_member_lacks_are_told() {
    let members: Vec<String> = (0..3).map(|slot| format!("m{slot}")).collect();
    let bench = create("5", &members, &[]);
    let holds = |script: &str, ready: &str| {
        let mut command = bench.command(&["run", "db", "--"]);
        command.args(["sh", "-ec", &format!("{script}; : > /data/{ready}; exec sleep 600")]).env("CXLRAID_LIB", library());
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !bench.path("m0/data").join(ready).exists() {
            assert!(Instant::now() < until);
            sleep(Duration::from_millis(20));
        }
        child
    };
    let mut before = holds("exec 3>/data/a", "first");
    assert!(bench.run(&["fail", "db", "m1"]).status.success());
    // The member is begun, and comes into use when the first program has ended.
    assert!(!bench.run(&["rebuild", "db"]).status.success());
    let mut after = holds("exec 3>/data/u; echo held >&3; rm /data/u", "second");
    before.kill().unwrap();
    before.wait().unwrap();
    let rebuilt = bench.run(&["rebuild", "db", "--wait", "60"]);
    assert!(rebuilt.status.success(), "{}", err(&rebuilt));
    let line = out(&rebuilt);
    assert!(line.contains("1 file without a name that a program has open since before is not on it"), "{line}");
    after.kill().unwrap();
    after.wait().unwrap();
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
    let again = out(&bench.run(&["scrub", "db"]));
    assert!(again.contains("everything fits"), "{again}");
}
