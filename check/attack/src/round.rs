//! A round: an array, its three users, and the steps that a seed chooses.

use crate::{
    attacker::Orders,
    model::{self, Model},
    outside::{self, Seen},
    places::{ATTACKER, OTHER, Places, ROOT},
    shape::Shape,
    squat,
    victim::{self, Task},
};
use oracle::Rng;
use stage::{
    Janitor,
    options::copied,
    remove,
    report::{Complaints, with_output},
    run::{Output, Run},
};
use std::{
    cell::Cell,
    env, fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// The word that makes this program look whether the redundancy of files fits.
pub(crate) const SCRUB: &str = "scrub";
/// How long a program may take; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a start may take while the attacker hinders it.
const START: Duration = Duration::from_secs(10);
const STEP_COUNT: u64 = 14;
/// What the library says of a member that goes out, and of members whose names it cannot make the
/// same.
const FAILED: &str = "failed and is out of use";
const NOT_THE_SAME: &str = "cannot make the members' names the same";
/// After so many steps all files are compared.
const COMPARED_EVERY: u64 = 4;

/// What was done in a round or in all of them.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) actions: u64,
    granted: u64,
    programs: u64,
    files: usize,
    killed: u64,
    lost: u64,
    denied: usize,
    refused: usize,
    /// Rounds in which the attacker made a member go out.
    pub(crate) outages: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.actions += other.actions;
        self.granted += other.granted;
        self.programs += other.programs;
        self.files += other.files;
        self.killed += other.killed;
        self.lost += other.lost;
        self.denied += other.denied;
        self.refused += other.refused;
        self.outages += other.outages;
    }

    pub(crate) fn note(&self) -> String {
        format!(
            "{} actions, {} granted by the kernel; {} programs of others, {} killed, {} members lost; {} files compared in the end, {} names in the shared directory not to be had, {} calls refused to the other user",
            self.actions, self.granted, self.programs, self.killed, self.lost, self.files, self.denied, self.refused
        )
    }
}

/// The directories of all rounds. Removed by the janitor.
pub(crate) struct Ground {
    root: PathBuf,
    host: PathBuf,
    janitor: Janitor,
    /// Copies that every user may read, and that stay the same while others build.
    library: PathBuf,
    command: PathBuf,
    this: PathBuf,
    counter: AtomicUsize,
}

impl Ground {
    pub(crate) fn new(library: &Path, command: &Path) -> Result<Self, String> {
        let name = format!("cxlraid-attack.{}", process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        for (directory, owner) in [(&root, ROOT), (&host, ROOT), (&host.join("home-0"), ROOT), (&host.join("home-1002"), OTHER)] {
            made(directory, owner, 0o755)?;
        }
        let this = env::current_exe().map_err(|error| error.to_string())?;
        let (library, command, this) = (copied(library, &host)?, copied(command, &host)?, copied(&this, &host)?);
        Ok(Self { root, host, janitor, library, command, this, counter: AtomicUsize::new(0) })
    }
}

fn made(directory: &Path, owner: u32, mode: u32) -> Result<(), String> {
    fs::create_dir(directory)
        .and_then(|()| chown(directory, Some(owner), Some(owner)))
        .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(mode)))
        .map_err(|error| format!("{}: {error}", directory.display()))
}

/// One array and its users. Removed when dropped.
pub(crate) struct Round<'a> {
    ground: &'a Ground,
    places: Places,
    shape: Shape,
    random: Rng,
    forges: bool,
    /// The other user works in his own directory only: then no member goes out by names that he
    /// cannot make the same, and the round lasts.
    is_quiet: bool,
    /// Who made the array, and has the right to its tables.
    owner: u32,
    outside: Seen,
    model: Model,
    uuid: String,
    lost: Option<usize>,
    /// A program said that a member failed which nobody moved away, or that it cannot make members
    /// the same.
    told_of_outage: bool,
    /// Programs of victims and of root's; counted also where others run.
    program_count: Cell<u64>,
    keep: bool,
}

impl<'a> Round<'a> {
    pub(crate) fn new(ground: &'a Ground, seed: u64, shape: Shape, forges: bool) -> Result<Self, String> {
        let places = Places { root: ground.root.join(format!("round{seed}")) };
        // Neighbouring seeds have nothing in common.
        let mut random = Rng::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (owner, is_quiet) = (if random.one_in(2) { ROOT } else { OTHER }, random.one_in(2));
        made(&places.root, ROOT, 0o755)?;
        for slot in 0..shape.member_count {
            made(&places.member(slot), owner, 0o755)?;
        }
        made(&places.data(), ROOT, 0o755)?;
        made(&places.home(), ATTACKER, 0o755)?;
        made(&places.got(), ROOT, 0o755)?;
        outside::make(&places.outside(), seed).map_err(|error| format!("outside: {error}"))?;
        let outside = outside::seen(&places.outside()).map_err(|error| format!("outside: {error}"))?;
        let mut round = Self {
            ground,
            places,
            shape,
            random,
            forges,
            is_quiet,
            owner,
            outside,
            model: Model::default(),
            uuid: String::new(),
            lost: None,
            told_of_outage: false,
            program_count: Cell::new(0),
            keep: false,
        };
        let root = round.places.root.display().to_string();
        let this = ground.this.display().to_string();
        let data = round.places.data().display().to_string();
        for (user, words) in [(owner, vec!["mkdir", "-p", &data]), (ROOT, vec![&this, victim::PREPARE, &root])] {
            let output = round.seeing(user, words).output();
            if !output.succeeded() {
                return Err(with_output("the array's first programs", &output));
            }
        }
        let segment = stage::segment::segment_of(&round.places.member(0)).ok_or("the array has no superblock")?;
        let name = segment.file_name().unwrap_or_default().to_string_lossy().into_owned();
        round.uuid = name.trim_start_matches("cxlraid-").to_owned();
        Ok(round)
    }

    fn variables(&self) -> Vec<String> {
        let members: Vec<String> =
            (0..self.shape.member_count).map(|slot| self.places.member(slot).display().to_string()).collect();
        vec![
            format!("CXLRAID_LEVEL={}", self.shape.level),
            format!("CXLRAID_MOUNTS={}", members.join(":")),
            format!("CXLRAID_PATHS={}", self.places.data().display()),
            format!("CXLRAID_STRIPE_SIZE={}", self.shape.chunk),
            format!("CXLRAID_JOURNAL={}", if self.shape.journal { "internal" } else { "" }),
        ]
    }

    fn plain(&self, program: &str) -> Run<'a> {
        let number = self.ground.counter.fetch_add(1, Ordering::Relaxed);
        Run::new(program, &self.ground.janitor, self.ground.host.join(format!("run{number}")))
            .directory(Path::new("/"))
            .limit(LIMIT)
    }

    /// A program of a user's, with the array's variables and some more. They are arguments of env,
    /// so that what changes the user is not intercepted.
    fn with(&self, user: u32, more: &[String], words: Vec<&str>) -> Run<'a> {
        self.program_count.set(self.program_count.get() + 1);
        let ids = [
            format!("--reuid={user}"),
            format!("--regid={user}"),
            "--clear-groups".to_owned(),
            "--".to_owned(),
            "env".to_owned(),
        ];
        let home = self.ground.host.join(format!("home-{user}"));
        self.plain("setpriv").args(ids).arg(format!("HOME={}", home.display())).args(self.variables()).args(more).args(words)
    }

    /// A program that sees the array.
    fn seeing(&self, user: u32, words: Vec<&str>) -> Run<'a> {
        self.with(user, &[format!("LD_PRELOAD={}", self.ground.library.display())], words)
    }

    /// The operator's command.
    fn command(&self, user: u32, words: Vec<&str>) -> Run<'a> {
        let command = self.ground.command.display().to_string();
        self.with(user, &[], [vec![command.as_str()], words].concat())
    }

    fn attacker(&mut self, action_count: u64, races: bool) -> Run<'a> {
        let orders = Orders {
            places: self.places.clone(),
            member_count: self.shape.member_count,
            uuid: self.uuid.clone(),
            seed: self.random.word(),
            action_count,
            forges: self.forges,
            races,
        };
        self.plain(&self.ground.this.display().to_string()).args(orders.words())
    }

    /// Plays all steps, or those up to the first that something is wrong with. Where a member goes
    /// out by what the attacker did the round ends, and it is wrong if `judges_outages`.
    pub(crate) fn play(&mut self, judges_outages: bool, counts: &mut Counts, complaints: &mut Complaints) -> Result<(), String> {
        for step in 0..STEP_COUNT {
            let mut found = self.step(step, counts)?;
            self.look_around(&mut found)?;
            let status = self.command(ROOT, vec!["status"]).output();
            let out = self.out(&status);
            let is_outage = !out.is_empty() || self.told_of_outage || !matches!(status.status.as_str(), "0" | "3");
            if is_outage {
                counts.outages += 1;
                if judges_outages {
                    found.push(with_output(&format!("members went out: {out:?}"), &status));
                } else {
                    // What fails with EIO fails for that reason.
                    found.retain(|complaint| !complaint.contains(model::OUTAGE));
                }
            }
            let is_last = step + 1 == STEP_COUNT || is_outage;
            let is_usable = matches!(status.status.as_str(), "0" | "3");
            if found.is_empty() && is_usable && (is_last || step % COMPARED_EVERY == COMPARED_EVERY - 1) {
                self.compare(&out, &mut found)?;
            }
            if !found.is_empty() {
                found.push(format!("in step {step}"));
            }
            complaints.append(&mut found);
            if is_last || !complaints.is_empty() {
                break;
            }
        }
        if complaints.is_empty() {
            counts.files = self.model.count();
            self.stop(complaints);
        }
        counts.lost += u64::from(self.lost.is_some());
        counts.denied = self.model.denied_count;
        counts.refused = self.model.refused_count;
        counts.programs = self.program_count.get();
        Ok(())
    }

    /// The members that are out and were not moved away, by a line of each.
    fn out(&self, status: &Output) -> Vec<usize> {
        let slots = (0..self.shape.member_count).filter(|slot| Some(*slot) != self.lost);
        let is_in = |slot: usize| {
            let member = format!("{}  in sync", self.places.member(slot).display());
            status.stdout.lines().any(|line| line.contains(&member))
        };
        slots.filter(|slot| !is_in(*slot)).collect()
    }

    fn step(&mut self, step: u64, counts: &mut Counts) -> Result<Complaints, String> {
        let mut complaints = Complaints::new();
        let before = self.random.below(50);
        let alone = self.attacker(10 + before, false).output();
        judge_attacker(&alone, counts, &mut complaints);
        let races = self.random.one_in(2);
        let kind = self.random.below(16);
        if kind == 15 {
            self.squatted(&mut complaints);
            return Ok(complaints);
        }
        let against = races.then(|| {
            let action_count = 100 + self.random.below(300);
            self.attacker(action_count, true)
        });
        let beside = thread::scope(|scope| {
            let beside = against.map(|run| scope.spawn(move || run.output()));
            match kind {
                0..8 => self.victims(counts, &mut complaints),
                8 => self.lose(counts, &mut complaints),
                9 | 10 => self.add(step, &mut complaints),
                11 | 12 => self.retrieve(step, &mut complaints),
                13 if !races => self.tools(&mut complaints),
                _ => self.look_at_array(&mut complaints),
            }
            beside.map(|thread| thread.join().map_err(|_| "the attacker's thread panicked".to_owned())).transpose()
        })?;
        if let Some(beside) = beside {
            judge_attacker(&beside, counts, &mut complaints);
        }
        Ok(complaints)
    }

    /// Root and the other user at work: one of them, or both at the same time.
    fn victims(&mut self, counts: &mut Counts, complaints: &mut Complaints) {
        let mut tasks = Vec::new();
        for user in [ROOT, OTHER] {
            if self.random.below(3) > 0 || (user == OTHER && tasks.is_empty()) {
                let (seed, call_count) = (self.random.word() >> 32, 8 + self.random.below(30));
                let drops = user != self.owner && user != ROOT;
                let dies = self.random.one_in(5);
                let (places, stays_home) = (self.places.clone(), self.is_quiet && user == OTHER);
                tasks.push(Task { places, user, seed, call_count, drops, dies, stays_home });
            }
        }
        let outputs: Vec<Output> = thread::scope(|scope| {
            let runs: Vec<Run<'_>> = tasks.iter().map(|task| self.victim(task)).collect();
            let threads: Vec<_> = runs.into_iter().map(|run| scope.spawn(move || run.output())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        for (task, output) in tasks.iter().zip(&outputs) {
            let wrong = self.model.take(task.user, &output.stdout, task.dies);
            let moved = self.lost.map(|slot| format!("{}:", self.places.member(slot).display()));
            let is_other = |line: &String| moved.as_ref().is_none_or(|moved| !line.contains(moved));
            self.told_of_outage |=
                output.notices.iter().any(|line| line.contains(FAILED) && is_other(line) || line.contains(NOT_THE_SAME));
            let notices = if output.notices.is_empty() { String::new() } else { format!("; told: {}", output.notices.join(" ")) };
            complaints.extend(wrong.into_iter().map(|line| format!("after{notices}: {line}")));
            let expected = if task.dies { "signal 9" } else { "0" };
            if output.status != expected || (!task.dies && !output.stdout.ends_with("ended\n")) {
                complaints.push(with_output(&format!("a program of user {}", task.user), &shortened(output)));
            }
            counts.killed += u64::from(task.dies);
        }
        // What root's program left unfinished in root's directory, another owner of the array may
        // not finish; until somebody does, names cannot be changed.
        if self.owner != ROOT && tasks.iter().any(|task| task.dies && task.user == ROOT) {
            must_end("touch", &self.seeing(ROOT, vec!["touch", &self.text("copy")]).output(), complaints);
        }
    }

    fn victim(&self, task: &Task) -> Run<'a> {
        let words = task.words();
        let this = self.ground.this.display().to_string();
        let user = if task.drops { ROOT } else { task.user };
        self.seeing(user, [vec![this.as_str()], words.iter().map(String::as_str).collect()].concat())
    }

    /// A member is moved away while they work, once in a round.
    fn lose(&mut self, counts: &mut Counts, complaints: &mut Complaints) {
        if self.lost.is_none() {
            let slot = self.random.below(self.shape.member_count as u64) as usize;
            let member = self.places.member(slot);
            if let Err(error) = fs::rename(&member, member.with_extension("away")) {
                complaints.push(format!("{}: {error}", member.display()));
                return;
            }
            self.lost = Some(slot);
        }
        self.victims(counts, complaints);
    }

    fn text(&self, path: &str) -> String {
        self.places.data().join(path).display().to_string()
    }

    /// Root, or the array's owner, adds what lies in the attacker's home.
    fn add(&self, step: u64, complaints: &mut Complaints) {
        let (user, to) = if self.owner == OTHER && step.is_multiple_of(2) { (OTHER, "copyu") } else { (ROOT, "copy") };
        let (home, to) = (self.places.home().display().to_string(), self.text(&format!("{to}/c{step}")));
        must_end("add", &self.command(user, vec!["add", "-r", &home, &to]).output(), complaints);
        must_end("rm", &self.seeing(user, vec!["rm", "-rf", &to]).output(), complaints);
    }

    /// Root retrieves the attacker's directory, and files of the victims. Part of the tree is the
    /// attacker's before all of it is there.
    fn retrieve(&self, step: u64, complaints: &mut Complaints) {
        let tree = self.places.got().join(format!("tree{}", step % 2)).display().to_string();
        must_end("rm", &self.plain("rm").args(["-rf", &tree]).output(), complaints);
        must_end("retrieve", &self.command(ROOT, vec!["retrieve", "-r", &self.text("t"), &tree]).output(), complaints);
        for (user, from, to) in [(ROOT, "r/n0", "r0"), (self.owner, "u/n0", "u0")] {
            let to = self.places.got().join(to).display().to_string();
            must_end("retrieve", &self.command(user, vec!["retrieve", &self.text(from), &to]).output(), complaints);
        }
    }

    /// Tools that follow no symlinks, on the attacker's directory. Some of them look first and act
    /// later by name: the attacker rests.
    fn tools(&mut self, complaints: &mut Complaints) {
        let below = ["t/e0", "t/e1"][self.random.below(2) as usize];
        let (tree, below, copy) = (self.text("t"), self.text(below), self.places.root.join("copied"));
        let copy = copy.display().to_string();
        let tools: [Vec<&str>; 7] = [
            vec!["chown", "-hR", "1001:1001", &tree],
            vec!["chmod", "-R", "u+rwX,go+rX", &tree],
            vec!["find", &tree, "-ls"],
            vec!["sh", "-c", "tar -c \"$1\" | wc -c", "sh", &tree],
            vec!["cp", "-a", &tree, &copy],
            vec!["rm", "-rf", &below],
            vec!["setfattr", "-h", "-n", "user.other", "-v", "x", &below],
        ];
        for tool in tools {
            if self.random.one_in(2) {
                must_end(tool[0], &self.seeing(ROOT, tool.clone()).output(), complaints);
            }
        }
        // A copy keeps the attacker's modes and owners; nobody else works there.
        if let Err(error) = remove(Path::new(&copy)) {
            complaints.push(format!("{copy}: {error}"));
        }
    }

    /// The commands that show an array.
    fn look_at_array(&self, complaints: &mut Complaints) {
        let member = self.places.member((self.lost.unwrap_or(0) + 1) % self.shape.member_count).display().to_string();
        let status = self.command(ROOT, vec!["status"]).output();
        let examined = self.command(ROOT, vec!["examine", &member]).output();
        for (what, output) in [("status", &status), ("examine", &examined)] {
            must_end(what, output, complaints);
        }
        if self.shape.journal {
            must_end("journal show", &self.command(ROOT, vec!["journal", "show"]).output(), complaints);
        }
    }

    /// The attacker makes the segment's name when nobody uses the array: programs work all the
    /// same, at once.
    fn squatted(&mut self, complaints: &mut Complaints) {
        self.stop(complaints);
        if !complaints.is_empty() {
            return;
        }
        let segment = Path::new("/dev/shm").join(format!("cxlraid-{}", self.uuid));
        let kind = squat::KINDS[self.random.below(squat::KINDS.len() as u64) as usize];
        let words = [
            squat::ROLE.to_owned(),
            segment.display().to_string(),
            kind.to_owned(),
            self.places.outside().join("dir/f0").display().to_string(),
        ];
        let run = self.plain(&self.ground.this.display().to_string()).args(words);
        thread::scope(|scope| {
            let squatter = scope.spawn(move || run.output());
            let begun = Instant::now();
            while segment.symlink_metadata().is_err() && begun.elapsed() < squat::HOLDING {
                thread::sleep(Duration::from_millis(1));
            }
            let data = self.text("r");
            for user in [ROOT, self.owner] {
                let begun = Instant::now();
                let listed = self.seeing(user, vec!["ls", &data]).output();
                if !listed.succeeded() || begun.elapsed() > START {
                    complaints.push(with_output(&format!("a start beside the attacker's segment ({kind})"), &listed));
                }
            }
            must_end("stop", &self.command(ROOT, vec!["stop"]).output(), complaints);
            match squatter.join() {
                Ok(output) if output.succeeded() => {}
                Ok(output) => complaints.push(with_output("the attacker could not make the name", &output)),
                Err(_) => complaints.push("the attacker's thread panicked".to_owned()),
            }
        });
        if segment.symlink_metadata().is_ok()
            && let Err(error) = fs::remove_file(&segment).or_else(|_| fs::remove_dir(&segment))
        {
            complaints.push(format!("{}: {error}", segment.display()));
        }
    }

    /// Checks what must hold after each step, and adds what does not to the complaints.
    fn look_around(&self, complaints: &mut Complaints) -> Result<(), String> {
        let now = outside::seen(&self.places.outside()).map_err(|error| format!("outside: {error}"))?;
        complaints.extend(outside::differences(&self.outside, &now).into_iter().map(|line| format!("outside the array: {line}")));
        let leaked = stage::scrub::leaked(&self.places.data());
        if !leaked.is_empty() {
            complaints.push(format!("on the host, beside the array: {}", leaked.join(", ")));
        }
        Ok(())
    }

    /// The victims' files, as the array has them and as they lie on the members.
    fn compare(&self, out: &[usize], complaints: &mut Complaints) -> Result<(), String> {
        let this = self.ground.this.display().to_string();
        let root = self.places.root.display().to_string();
        let listed = self.seeing(ROOT, vec![&this, model::ROLE, &root]).output();
        if !listed.succeeded() || !listed.stdout.ends_with("listed\n") {
            complaints.push(with_output("what the array has", &shortened(&listed)));
        }
        complaints.extend(self.model.compare(&listed.stdout));
        for slot in (0..self.shape.member_count).filter(|slot| Some(*slot) != self.lost && !out.contains(slot)) {
            complaints.extend(self.model.compare_member(&self.places, slot).map_err(|error| format!("member {slot}: {error}"))?);
        }
        let paths: Vec<String> = self.model.paths(&self.places).iter().map(|path| path.display().to_string()).collect();
        let words = [vec![this.as_str(), SCRUB], paths.iter().map(String::as_str).collect()].concat();
        let scrubbed = self.with(ROOT, &[], words).output();
        if !scrubbed.succeeded() {
            complaints.push(with_output("redundancy", &scrubbed));
        }
        Ok(())
    }

    /// Nobody uses the array: its segment goes.
    fn stop(&self, complaints: &mut Complaints) {
        let stopped = self.command(ROOT, vec!["stop"]).output();
        let segment = Path::new("/dev/shm").join(format!("cxlraid-{}", self.uuid));
        // The attacker may have made that name, too.
        let is_arrays = |metadata: fs::Metadata| metadata.uid() != ATTACKER;
        if !segment.symlink_metadata().is_ok_and(is_arrays) {
            let _ = fs::remove_file(&segment);
        }
        if !stopped.succeeded() || segment.exists() {
            complaints.push(with_output("cxlraid stop", &stopped));
        }
    }

    /// Leaves everything where it is, for a look at what went wrong.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
        self.ground.janitor.keep();
        println!("       kept: {}", self.places.root.display());
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if !self.keep {
            let members = (0..self.shape.member_count).map(|slot| self.places.member(slot));
            let away = (0..self.shape.member_count).map(|slot| self.places.member(slot).with_extension("away"));
            stage::segment::forget(members.chain(away));
            // The attacker may have made the segment's name and renamed what he made.
            let _ = fs::remove_file(Path::new("/dev/shm").join(format!("cxlraid-{}.gone", self.uuid)));
            // What cannot be removed now the janitor removes later.
            let _ = remove(&self.places.root);
        }
    }
}

/// Whether the redundancy of these files fits.
pub(crate) fn scrub(paths: &[String]) -> io::Result<()> {
    let view = stage::scrub::View::attach().map_err(io::Error::other)?;
    let mut wrong = Vec::new();
    for path in paths {
        view.redundancy(Path::new(path), &mut wrong).map_err(io::Error::other)?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(io::Error::other(wrong.join("\n"))) }
}

fn judge_attacker(output: &Output, counts: &mut Counts, complaints: &mut Complaints) {
    let mut acted = None;
    for line in output.stdout.lines() {
        if let Some(leak) = line.strip_prefix("leak ") {
            complaints.push(format!("the attacker reads {leak}"));
        } else if let Some(numbers) = line.strip_prefix("acted ") {
            acted =
                numbers.split_once(' ').and_then(|(all, granted)| Some((all.parse::<u64>().ok()?, granted.parse::<u64>().ok()?)));
        }
    }
    match acted {
        Some((all, granted)) if output.succeeded() => {
            counts.actions += all;
            counts.granted += granted;
        }
        _ => complaints.push(with_output("the attacker", output)),
    }
}

/// A program that may fail at what the attacker made of his files, but neither hangs nor crashes.
fn must_end(what: &str, output: &Output, complaints: &mut Complaints) {
    if !output.status.parse::<i32>().is_ok_and(|code| (0..128).contains(&code)) {
        complaints.push(with_output(what, &shortened(output)));
    }
}

/// The end of what a program said: the beginning tells of what went well.
fn shortened(output: &Output) -> Output {
    let lines: Vec<&str> = output.stdout.lines().rev().take(4).collect();
    let notices = output.notices.join("\n");
    let stdout = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
    Output { stdout, stderr: format!("{}{notices}", output.stderr), ..output.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_or_crashes_is_told_and_a_refusal_is_not() {
        let ended = |status: &str| {
            let mut complaints = Complaints::new();
            must_end("x", &Output { status: status.to_owned(), ..Output::default() }, &mut complaints);
            complaints.is_empty()
        };
        assert!(ended("0") && ended("1"));
        assert!(!ended("signal 7") && !ended("134") && !ended("still running after 30 s, 1 processes"));
    }

    #[test]
    fn an_attacker_who_tells_nothing_did_not_act() {
        let (mut counts, mut complaints) = (Counts::default(), Complaints::new());
        let told = |stdout: &str| Output { stdout: stdout.to_owned(), status: "0".to_owned(), ..Output::default() };
        judge_attacker(&told("acted 40 12\n"), &mut counts, &mut complaints);
        assert!(complaints.is_empty() && (counts.actions, counts.granted) == (40, 12));
        judge_attacker(&told(""), &mut counts, &mut complaints);
        judge_attacker(&told("leak SECRET-r-1 in x\nacted 1 1\n"), &mut counts, &mut complaints);
        assert_eq!(complaints.len(), 2);
    }
}
