//! One case, and all of them.

use crate::{
    beyond::BEYOND,
    damage::{CLOSED, COPIED_IN_USE, Damage, Sources, copy, damage},
    mounts,
    options::Options,
    shape::{Journal, Shape},
    split::APART,
    tree::{META, described, difference},
    work::{ACROSS, BRING_BACK, CHANGE, FILL, LIST, LISTED, SCRUB, Stopped, across_again, change, list},
};
use oracle::Rng;
use stage::{
    Janitor, remove,
    report::{Complaints, Report, with_output},
    run::{Output, Run},
};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a program may take; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(5);
pub(crate) const CHANGES: u64 = 25;
/// A user without rights (nobody).
const USER: &str = "65534";
/// At most so many things are damaged at once.
const DAMAGES_MAX: u64 = 3;
/// The words of the library for a member that it takes out without knowing why.
const NO_CAUSE: &str = "no cause was seen";
/// How often a damage is drawn until there is one that is wanted.
const DRAWS: u32 = 400;

/// Runs what is wanted. Whether all passed; an error if nothing could be run.
pub(crate) fn all(options: &Options) -> Result<bool, String> {
    options.check_library()?;
    let begun = Instant::now();
    println!("{} cases from seed {}", options.case_count, options.seed);
    let root = Path::new("/dev/shm").join(format!("cxlraid-operator.{}", std::process::id()));
    fs::create_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    let janitor = Janitor::new(&[&root]).map_err(|error| format!("the janitor: {error}"))?;
    let library = stage::options::copied(&options.library, &root)?;
    let command = stage::options::copied(&options.command, &root)?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let this = stage::options::copied(&this, &root)?;
    let can_mount = mounts::can_mount(&root);
    let ground = Ground { root, library, command, this, janitor, only: options.only.clone(), keep: options.keep, can_mount };
    let shapes: Vec<Shape> = Shape::ALL.into_iter().filter(|shape| options.wants(shape.label)).collect();
    let (report, next) = (Report::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= options.case_count {
                        return;
                    }
                    let seed = options.seed + index;
                    one(&ground, seed, shapes[(seed % shapes.len() as u64) as usize], &report);
                }
            });
        }
    });
    if options.keep {
        ground.janitor.keep();
    }
    let passed = report.finish("operator", begun.elapsed());
    if !can_mount {
        println!("not drawn: members made read-only, unmounted or full, since mounting is not permitted here");
    }
    Ok(passed)
}

/// What cases have in common.
struct Ground {
    root: PathBuf,
    library: PathBuf,
    command: PathBuf,
    this: PathBuf,
    janitor: Janitor,
    only: Vec<String>,
    keep: bool,
    can_mount: bool,
}

fn one(ground: &Ground, seed: u64, shape: Shape, report: &Report) {
    let (begun, mut complaints) = (Instant::now(), Complaints::new());
    let case = Case::new(ground, seed, shape);
    let mut note = String::new();
    if let Err(message) = case.play(&mut note, &mut complaints) {
        complaints.push(message);
    }
    if !complaints.is_empty() {
        complaints.push(format!("damage: {note}"));
        let only: String = ground.only.iter().map(|word| format!(" --only '{word}'")).collect();
        complaints.push(format!("again: cargo x operator --cases 1 --seed {seed} --level {}{only}", shape.label));
    }
    report.result(shape.label, &format!("seed {seed}"), begun.elapsed(), &note, &complaints);
    if complaints.is_empty() || !ground.keep {
        case.remove();
    }
    if case.mounted {
        case.members.iter().for_each(|member| ground.janitor.unmounted(member));
    }
}

pub(crate) struct Case<'a> {
    ground: &'a Ground,
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    root: PathBuf,
    /// Where the array's files are seen. Nothing is there on the host.
    data: PathBuf,
    /// The same, below a member.
    prefix: PathBuf,
    pub(crate) members: Vec<PathBuf>,
    /// Tells whether programs get the array's UUID once there is one, as programs of a named array
    /// do.
    is_named: bool,
    uuid: OnceLock<String>,
    /// Whether programs run as root, or as a user without rights who owns the members.
    as_root: bool,
    /// Whether each member is a file system of its own.
    pub(crate) mounted: bool,
}

/// What a start came to.
pub(crate) enum Start {
    /// Everything is as it should be; the lines of the library.
    Right(Vec<String>),
    /// It was refused, with these lines.
    Refused(Vec<String>),
    /// Neither.
    Wrong,
}

impl<'a> Case<'a> {
    fn new(ground: &'a Ground, seed: u64, shape: Shape) -> Self {
        let root = ground.root.join(seed.to_string());
        let data = root.join("data");
        let prefix = data.strip_prefix("/").unwrap_or(&data).to_owned();
        let members = (0..shape.member_count).map(|slot| root.join(format!("m{slot}"))).collect();
        // An ordinary user is somebody whom chmod keeps out; only root can play one.
        let as_root = !rustix::process::geteuid().is_root() || seed % 4 != 3;
        let mounted = ground.can_mount && (seed / 4).is_multiple_of(3);
        let is_named = (seed / 12).is_multiple_of(2);
        let uuid = OnceLock::new();
        Self { ground, seed, shape, root, data, prefix, members, is_named, uuid, as_root, mounted }
    }

    fn remove(&self) {
        let here = fs::read_dir(&self.root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        stage::segment::forget(here);
        if self.mounted {
            mounts::unmount_all(&self.members);
            let kept = fs::read_dir(self.place("aside")).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
            mounts::unmount_all(&kept.collect::<Vec<_>>());
        }
        // What cannot be removed now the janitor removes later.
        let _ = remove(&self.root);
    }

    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A program with the array's variables in its environment.
    fn program(&self, program: &Path, members: &[PathBuf]) -> Run<'a> {
        self.run(program, members, "output", false)
    }

    /// The operator's command.
    pub(crate) fn command(&self) -> Run<'a> {
        self.program(&self.ground.command, &self.members)
    }

    /// This program, which looks whether redundancy fits.
    fn checker(&self) -> Run<'a> {
        self.program(&self.ground.this, &self.members)
    }

    /// The same with the library.
    fn library(&self, members: &[PathBuf], output: &str) -> Run<'a> {
        self.run(&self.ground.this, members, output, true)
    }

    fn run(&self, program: &Path, members: &[PathBuf], output: &str, with_library: bool) -> Run<'a> {
        let mounts: Vec<String> = members.iter().map(|member| member.display().to_string()).collect();
        let preload = format!("LD_PRELOAD={}", self.ground.library.display());
        // Neither setpriv nor env is to use the array.
        let run = if self.as_root {
            Run::new("env", &self.ground.janitor, self.place(output))
        } else {
            let user = ["--reuid", USER, "--regid", USER, "--clear-groups", "env"];
            Run::new("setpriv", &self.ground.janitor, self.place(output)).args(user)
        };
        let run = if with_library { run.arg(preload) } else { run }.arg(program).limit(LIMIT);
        let run = run.env("CXLRAID_LEVEL", self.shape.level).env("CXLRAID_STRIPE_SIZE", self.shape.chunk);
        let run = run.env("CXLRAID_MOUNTS", mounts.join(":")).env("CXLRAID_PATHS", &self.data);
        let uuid = self.uuid.get().filter(|_| members == self.members);
        let run = if let Some(uuid) = uuid { run.env("CXLRAID_UUID", uuid) } else { run };
        match self.shape.journal {
            Journal::None => run,
            Journal::Members => run.env("CXLRAID_JOURNAL", "internal").env("CXLRAID_JOURNAL_LANES", "2"),
            Journal::File => run.env("CXLRAID_JOURNAL", self.place("journal")).env("CXLRAID_JOURNAL_LANES", "2"),
        }
    }

    /// Changes files of an array on which there may be no room, and the plain directory likewise.
    fn change_while_room(&self, seed: u64) -> Result<(), String> {
        let output =
            self.played(&self.members, &[FILL, &self.data.display().to_string(), &seed.to_string(), &CHANGES.to_string()]);
        if !output.succeeded() {
            return Err(with_output("changes while there is room", &output) + &output.notices.join("\n"));
        }
        let repeated = Stopped::split(&output.stdout).0.repeat(&self.place("plain"), seed, CHANGES);
        repeated.map_err(|error| format!("the plain directory: {error}"))
    }

    fn played(&self, members: &[PathBuf], words: &[&str]) -> Output {
        self.library(members, "output").args(words).output()
    }

    pub(crate) fn changed(&self, members: &[PathBuf], seed: u64) -> Result<(), String> {
        let output = self.played(members, &[CHANGE, &self.data.display().to_string(), &seed.to_string(), &CHANGES.to_string()]);
        if output.succeeded() { Ok(()) } else { Err(with_output("changes", &output) + &output.notices.join("\n")) }
    }

    pub(crate) fn stop(&self) -> Result<(), String> {
        let output = self.command().arg("stop").output();
        if output.succeeded() { Ok(()) } else { Err(with_output("cxlraid stop", &output) + &output.notices.join("\n")) }
    }

    /// The same changes in the array and in the plain directory.
    pub(crate) fn change(&self, seed: u64) -> Result<(), String> {
        self.changed(&self.members, seed)?;
        change(&self.place("plain"), seed, CHANGES).map_err(|error| format!("the plain directory: {error}"))
    }

    /// Programs are told the array's UUID from now on.
    fn learn_uuid(&self) -> Result<(), String> {
        let uuid = self.members.first().and_then(|member| stage::segment::uuid_of(member)).ok_or("no superblock tells a UUID")?;
        self.uuid.set(uuid).map_err(|uuid| format!("a second UUID: {uuid}"))
    }

    fn play(&self, note: &mut String, complaints: &mut Complaints) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let io = |error: std::io::Error| error.to_string();
        for directory in self.members.iter().cloned().chain(["plain", "aside", "older", "others"].map(|name| self.place(name))) {
            fs::create_dir_all(directory).map_err(io)?;
        }
        if self.mounted {
            for member in &self.members {
                self.ground.janitor.mounted(member);
                mounts::mount_tmpfs(member).map_err(io)?;
            }
        }
        self.members.iter().chain([&self.root]).try_for_each(|directory| self.give(directory)).map_err(io)?;
        let beside = |name: &str| -> Vec<PathBuf> {
            (0..self.members.len()).map(|slot| self.place(name).join(format!("m{slot}"))).collect()
        };
        let (older, others, aside) = (beside("older"), beside("others"), self.place("aside"));
        self.change(self.seed << 8)?;
        self.stop()?;
        if self.is_named {
            self.learn_uuid()?;
        }
        for (member, older) in self.members.iter().zip(&older) {
            copy(member, older).map_err(io)?;
        }
        if rng.one_in(2) {
            for other in &others {
                fs::create_dir(other).and_then(|()| self.give(other)).map_err(io)?;
            }
            // Its journal, where it has one in a file, is made beside its members.
            let apart = self
                .library(&others, "output")
                .env("CXLRAID_JOURNAL", if self.shape.journal == Journal::Members { "internal" } else { "" });
            let words = [CHANGE.to_owned(), self.data.display().to_string(), "7".to_owned(), "5".to_owned()];
            let output = apart.args(words).output();
            if !output.succeeded() {
                return Err(with_output("another array", &output) + &output.notices.join("\n"));
            }
            // Its shared memory is found by its superblocks, which damage may take away later.
            stage::segment::forget(&others);
        } else {
            for (older, other) in older.iter().zip(&others) {
                copy(older, other).map_err(io)?;
            }
        }
        self.change(self.seed << 8 | 1)?;
        self.stop()?;
        if self.wants(BEYOND) && rng.one_in(10) {
            let sources = Sources { bears: self.shape.bears, ..self.sources(&older, &others, &aside, false) };
            return self.damaged_beyond(&mut rng, &sources, note, complaints);
        }
        if let Some(halves) = self.shape.halves().filter(|_| self.wants(APART) && rng.one_in(8)) {
            return self.used_apart(&mut rng, halves, note, complaints);
        }
        let mut damages = Vec::new();
        let first = rng.below(self.members.len() as u64) as usize;
        if self.shape.bears > 1 && rng.one_in(4) {
            // A member is out already, and on record.
            damages.push(Damage::of_lost(&self.members[first], &self.place("aside/out"), first, self.mounted).map_err(io)?);
            self.change(self.seed << 8 | 4)?;
            self.stop()?;
        }
        let journal = self.place("journal");
        let sources = Sources {
            bears: self.shape.bears - damages.len(),
            journal: Some(journal.as_path()).filter(|_| self.shape.journal == Journal::File),
            ..self.sources(&older, &others, &aside, rng.one_in(3))
        };
        let first = (first + damages.len()) % self.members.len();
        if sources.in_use {
            self.damaged_in_use(&mut rng, &sources, first, &mut damages, complaints)?;
        } else {
            damages.extend(self.damaged(&mut rng, &sources, first).map_err(io)?);
        }
        let in_use = if sources.in_use { "in use: " } else { "" };
        let named = |damage: &Damage| match damage.slot {
            slot if slot < self.members.len() => format!("m{slot} {}", damage.what),
            _ => damage.what.clone(),
        };
        *note = in_use.to_owned() + &damages.iter().map(named).collect::<Vec<_>>().join(", ");
        if !complaints.is_empty() {
            return Ok(());
        }
        let mut looked = false;
        if !sources.in_use && damages.iter().all(Damage::is_of_backing_file) && rng.one_in(2) {
            self.look_without_one_more(&mut rng, &damages, complaints)?;
            looked = true;
            if !complaints.is_empty() {
                return Ok(());
            }
        }
        let of_files = damages.iter().any(|damage| !damage.is_of_member());
        // A single file that is put back after changes would be an older one, which nothing tells
        // without checksums. A call that changes an exchanged name before any has opened the file
        // may answer EIO (README, Limits): none is made.
        let (changes, goes_back) = if damages.iter().any(Damage::is_exchange) {
            (false, true)
        } else if of_files {
            let back = rng.one_in(2) && !sources.in_use;
            (!back, back)
        } else {
            (true, true)
        };
        let can_be_rebuilt = !goes_back || rng.one_in(3);
        if !self.used(&damages, "after the damage", changes, sources.in_use || looked, complaints)? || !complaints.is_empty() {
            return Ok(());
        }
        if can_be_rebuilt && damages.iter().all(Damage::can_be_rebuilt) {
            return self.rebuilt(&damages, complaints);
        }
        if !goes_back {
            return self.brought_back(&mut rng, &damages, complaints);
        }
        for damage in damages.iter().rev() {
            damage.take_back().map_err(|error| format!("cannot take back {}: {error}", damage.what))?;
        }
        if !self.used(&damages, "after it was taken back", true, sources.in_use, complaints)? {
            return Ok(());
        }
        self.brought_back(&mut rng, &damages, complaints)
    }

    /// Brings back the members that are out, as `cxlraid re-add` does: each keeps the files that it
    /// is proven to have whole. A member that is still damaged may be refused. Afterwards
    /// everything is read, also without one more member, and redundancy fits.
    fn brought_back(&self, rng: &mut Rng, damages: &[Damage], complaints: &mut Complaints) -> Result<(), String> {
        if !complaints.is_empty() || damages.iter().any(Damage::is_full) || rng.one_in(4) {
            return Ok(());
        }
        self.stop()?;
        let when = "when members came back";
        let output = self.program(&self.ground.this, &self.members).arg(BRING_BACK).output();
        if !matches!(self.start(when, damages, complaints), Start::Right(_)) || !output.succeeded() {
            return Ok(());
        }
        self.stop()?;
        if damages.iter().any(Damage::leaves_names_apart) {
            return Ok(());
        }
        let scrubbed = self.program(&self.ground.this, &self.members).arg(SCRUB).output();
        if !scrubbed.succeeded() {
            complaints.push(with_output(&format!("{when} ({}): redundancy", output.stdout.trim_end()), &scrubbed));
        }
        self.stop()?;
        self.look_without_one_more(rng, damages, complaints)
    }

    /// Reads everything while one member without damage is away, which may be one more than the
    /// level bears. That may be refused, and it must not cost what can be read when the member is
    /// back.
    fn look_without_one_more(&self, rng: &mut Rng, damages: &[Damage], complaints: &mut Complaints) -> Result<(), String> {
        let first = rng.below(self.members.len() as u64) as usize;
        let mut slots = (0..self.members.len()).map(|slot| (first + slot) % self.members.len());
        let Some(slot) = slots.find(|slot| damages.iter().all(|damage| damage.slot != *slot)) else { return Ok(()) };
        let io = |error: std::io::Error| error.to_string();
        let away = Damage::of_lost(&self.members[slot], &self.place("aside/away"), slot, self.mounted).map_err(io)?;
        let output = self.played(&self.members, &[LIST, &self.data.display().to_string()]);
        let expected = list(&self.place("plain"))?;
        let is_right = output.succeeded() && is_same_list(&output.stdout, &expected, damages);
        // A member that is the lowest now decides with its modes.
        let is_closed = damages.iter().any(Damage::is_closed) && output.stdout.contains("errno 13");
        let is_refused = !output.succeeded() && (is_closed || output.stdout.contains("errno 5"));
        // If every member that is left was damaged, none of them contradicts a symlink or a pipe in
        // a file's place.
        let nobody_contradicts =
            (0..self.members.len()).all(|other| other == slot || damages.iter().any(|damage| damage.slot == other));
        let is_of_names = nobody_contradicts && damages.iter().any(Damage::is_of_a_name);
        if !is_right && !is_refused && !is_of_names {
            let notices = output.notices.join("\n");
            let (lost, wrong) = differences(&output.stdout, &expected);
            let why = format!("must be:\n{lost}\nis:\n{wrong}\n{notices}");
            complaints.push(format!("without m{slot} besides: WRONG DATA, exit status {}\n{why}", output.status));
        }
        if rng.one_in(2) {
            self.stop()?;
        }
        away.take_back().map_err(io)
    }

    /// Gives a directory to the user as whom programs run.
    fn give(&self, directory: &Path) -> std::io::Result<()> {
        let user = USER.parse().ok().filter(|_| !self.as_root);
        std::os::unix::fs::chown(directory, user, user)
    }

    /// Does damages while a program uses the array.
    fn damaged_in_use(
        &self,
        rng: &mut Rng,
        sources: &Sources<'_>,
        first: usize,
        damages: &mut Vec<Damage>,
        complaints: &mut Complaints,
    ) -> Result<(), String> {
        let (seed, marks) = (self.seed << 8 | 5, ["ready", "go"].map(|name| self.place(name)));
        let text = |path: &Path| path.display().to_string();
        let words =
            [ACROSS.to_owned(), text(&self.data), seed.to_string(), CHANGES.to_string(), text(&marks[0]), text(&marks[1])];
        let is_copied = !sources.mounted && self.wants(COPIED_IN_USE) && (rng.one_in(4) || !self.ground.only.is_empty());
        let is_stopped = rng.one_in(2);
        let copied = self.place("aside/copied");
        let (output, damaged) = thread::scope(|scope| {
            let program = scope.spawn(|| self.library(&self.members, "across").args(&words).output());
            while !marks[0].exists() && !program.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            let damaged = if is_copied {
                copy(&self.members[first], &copied).map(|()| Vec::new())
            } else {
                self.damaged(rng, sources, first)
            };
            let begun = fs::write(&marks[1], "");
            let output = program.join().unwrap_or_default();
            (output, damaged.and_then(|damaged| begun.map(|()| damaged)))
        });
        damages.extend(damaged.map_err(|error| error.to_string())?);
        let plain = self.place("plain");
        marks.iter().try_for_each(fs::remove_file).map_err(|error| error.to_string())?;
        let (stopped, listed) = Stopped::split(&output.stdout);
        across_again(&plain, seed, CHANGES, &stopped)?;
        let may_stop = stopped == Stopped::default() || damages.iter().any(Damage::is_full);
        if !output.succeeded() || !is_same_list(listed, &list(&plain)?, damages) || !may_stop {
            let notices = output.notices.join("\n");
            complaints.push(format!("{}\n{notices}", with_output("a program that used the array meanwhile", &output)));
        }
        // That the last process has left in order is enough.
        if is_stopped {
            self.stop()?;
        }
        if is_copied {
            let copied = Damage::of_copy(&self.members[first], &copied, &self.place("aside/original"), first);
            damages.push(copied.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Returns what damages take from, with no journal beside the members.
    fn sources<'b>(&'b self, older: &'b [PathBuf], others: &'b [PathBuf], aside: &'b Path, in_use: bool) -> Sources<'b> {
        Sources {
            members: &self.members,
            bears: self.shape.bears,
            whole_min: self.shape.member_count - self.shape.bears,
            in_use,
            as_root: self.as_root,
            older,
            others,
            aside,
            prefix: &self.prefix,
            mounted: self.mounted,
            journal: None,
        }
    }

    /// Whether damages of this name are asked for.
    fn wants(&self, what: &str) -> bool {
        let only = &self.ground.only;
        only.is_empty() || only.iter().any(|word| what.starts_with(word))
    }

    fn damaged(&self, rng: &mut Rng, sources: &Sources<'_>, first: usize) -> std::io::Result<Vec<Damage>> {
        let mut damages: Vec<Damage> = Vec::new();
        let count = 1 + rng.below(DAMAGES_MAX);
        for _ in 0..DRAWS {
            if damages.len() as u64 == count {
                break;
            }
            let slot = (first + rng.below(sources.bears as u64) as usize) % self.members.len();
            // What was done to a whole member leaves nothing for a second damage.
            if damages.iter().any(|damage| damage.slot == slot && damage.what.starts_with("member")) {
                continue;
            }
            let is_whole = sources.bears == self.shape.bears && damages.is_empty();
            if let Some(damage) = damage(rng, sources, slot, &self.ground.only, is_whole)? {
                let ends = damage.what.starts_with("member") || damage.what == CLOSED;
                damages.push(damage);
                if ends {
                    break;
                }
            }
        }
        Ok(damages)
    }

    /// Looks at the array, reads it, changes it, and reads it again. Whether nothing wrong was
    /// read.
    fn used(
        &self,
        damages: &[Damage],
        when: &str,
        changes: bool,
        in_use: bool,
        complaints: &mut Complaints,
    ) -> Result<bool, String> {
        let everything = self.everything();
        let status = self.status();
        self.compare_everything(&everything, &format!("{when}: cxlraid status"), complaints);
        let before = self.undamaged(damages);
        let is_mended = when.contains("back");
        let start = self.start(when, if is_mended { &[] } else { damages }, complaints);
        let after = self.undamaged(damages);
        if after != before {
            let change = difference(&before, &after);
            complaints.push(format!("{when}: reading has changed a member without damage\n{change}"));
        }
        // Status compares which names there are and of which kind, and not whose they are.
        let of_a_name = damages.iter().any(Damage::is_of_a_name) && !damages.iter().any(Damage::keeps_the_name);
        // Programs may have met a lost name meanwhile, or removed it from the other members, too.
        let is_sure = !is_mended && !in_use;
        if of_a_name && is_sure && matches!(start, Start::Right(_)) && status.status != "3" {
            complaints.push(with_output(&format!("{when}: status does not tell that a name is lost"), &status));
        }
        if in_use && !is_mended && damages.iter().any(Damage::costs_the_member) && status.status != "3" {
            complaints.push(with_output(&format!("{when}: status does not tell that a member was lost in use"), &status));
        }
        // While the shared memory of a use lives on, a loss is told once.
        let was_told = in_use && !is_mended;
        let by_use = was_told || damages.iter().any(Damage::leaves_names_apart);
        self.compare_status(&status, &start, by_use, when, complaints);
        if let Start::Right(notices) = &start
            && damages.iter().all(Damage::is_full)
            && notices.iter().any(|line| line.contains("degraded"))
        {
            complaints.push(format!("{when}: a member without room is out\n{}", notices.join("\n")));
        }
        if let Start::Right(notices) = &start
            && !is_mended
            && damages.iter().any(Damage::is_copied_in_use)
            && !notices.iter().any(|line| line.contains("degraded"))
        {
            complaints.push(format!("{when}: a copy that was made in use is in sync\n{}", notices.join("\n")));
        }
        match start {
            Start::Wrong => return Ok(false),
            Start::Refused(notices) => {
                if is_mended || !damages.iter().any(|damage| damage.may_be_refused(self.knows_uuid())) {
                    complaints.push(format!(
                        "{when}: a start is refused, although what is not damaged is enough\n{}",
                        notices.join("\n")
                    ));
                }
                return Ok(true);
            }
            Start::Right(_) => {}
        }
        if !changes {
            return self.stop().map(|()| true);
        }
        if !is_mended && damages.iter().any(Damage::is_full) {
            self.change_while_room(self.seed << 8 | 2)?;
        } else {
            self.change(self.seed << 8 | if is_mended { 3 } else { 2 })?;
        }
        self.start(&format!("{when}, changed"), &[], complaints);
        self.stop()?;
        self.start(&format!("{when}, changed and stopped"), &[], complaints);
        self.stop()?;
        // To compare what lies in holes takes room on a tmpfs.
        if damages.iter().any(Damage::leaves_names_apart) || !is_mended && damages.iter().any(Damage::is_full) {
            return Ok(true);
        }
        if damages.iter().any(|damage| damage.what == CLOSED) {
            // The group and others are let in by this alone.
            let _ = self.command().args(["scrub", "--repair"]).output();
            self.stop()?;
        }
        self.check_redundancy(when, complaints);
        self.stop().map(|()| true)
    }

    /// Complains where the redundancy of a file does not fit.
    pub(crate) fn check_redundancy(&self, when: &str, complaints: &mut Complaints) {
        let scrubbed = self.checker().arg(SCRUB).output();
        if !scrubbed.succeeded() {
            complaints.push(with_output(&format!("{when}: redundancy"), &scrubbed));
        }
    }

    /// Whether a name that was moved out of its member is one of several of its file: the member's
    /// file system counts it on.
    fn keeps_a_name(&self) -> bool {
        let kept = fs::read_dir(self.place("aside")).into_iter().flatten().flatten();
        kept.filter_map(|entry| entry.metadata().ok()).any(|metadata| metadata.is_file() && metadata.nlink() > 1)
    }

    /// What `cxlraid status` says: its exit status and its text.
    pub(crate) fn status(&self) -> Output {
        self.command().arg("status").output()
    }

    /// Reads everything. With `damages` that nobody has met yet.
    pub(crate) fn start(&self, when: &str, damages: &[Damage], complaints: &mut Complaints) -> Start {
        let output = self.played(&self.members, &[LIST, &self.data.display().to_string()]);
        let expected = list(&self.place("plain")).unwrap_or_default();
        if output.succeeded() && output.stdout.ends_with(&format!("{LISTED}\n")) {
            let is_same_but_for_counts =
                || without_words(&output.stdout, &[NAMES_WORD]).eq(without_words(&expected, &[NAMES_WORD]));
            if is_same_list(&output.stdout, &expected, damages) || self.keeps_a_name() && is_same_but_for_counts() {
                self.check_words(&output.notices, damages, when, complaints);
                return Start::Right(output.notices);
            }
            let (lost, wrong) = differences(&output.stdout, &expected);
            let notices = output.notices.join("\n");
            complaints.push(format!("{when}: WRONG DATA, read without an error\nmust be:\n{lost}\nis:\n{wrong}\n{notices}"));
            return Start::Wrong;
        }
        let names_member = |line: &String| line.contains(&self.root.display().to_string());
        if output.stdout.contains("errno 2)") || output.stdout.contains("errno 2 ") || !output.stdout.contains("errno") {
            complaints.push(format!(
                "{}\n{}",
                with_output(&format!("{when}: a start fails with no such file"), &output),
                output.notices.join("\n")
            ));
            return Start::Wrong;
        }
        if !output.notices.iter().any(names_member) {
            let notices = output.notices.join("\n");
            complaints.push(format!(
                "{}\n{notices}",
                with_output(&format!("{when}: a start is refused by a line that names no member"), &output)
            ));
        }
        Start::Refused(output.notices)
    }

    /// Checks that each line of a start that worked names a member that was damaged, and that a
    /// line about a member that is not used says why, and what can be done. `damages` is empty if
    /// nothing is known of them any more.
    fn check_words(&self, notices: &[String], damages: &[Damage], when: &str, complaints: &mut Complaints) {
        let mut complain = |what: &str, line: &str| complaints.push(format!("{when}: {what}\n{line}"));
        for line in notices {
            let is_named = |damage: &Damage| self.names_member(line, damage.slot) || damage.is_of_two();
            if !damages.is_empty() && !damages.iter().any(is_named) {
                complain("a line names no member that was damaged", line);
            }
            if line.contains("degraded")
                && !["'cxlraid rebuild'", "'cxlraid re-add'", "bring it back", "put back", "check the path"]
                    .iter()
                    .any(|todo| line.contains(todo))
            {
                complain("a line does not say what to do", line);
            }
            if line.contains(NO_CAUSE) {
                complain("a line does not say what is wrong", line);
            }
        }
    }

    /// The exit status of `status` tells what a start does.
    fn compare_status(&self, status: &Output, start: &Start, by_use: bool, when: &str, complaints: &mut Complaints) {
        let fits = match start {
            // A member that is out for a single file only is not out.
            // No start looks at all names: that a single one is not there is found by who uses it.
            Start::Right(_) if by_use => ["0", "3"].contains(&status.status.as_str()),
            Start::Right(notices) => {
                status.status == if notices.iter().any(|line| line.contains("degraded")) { "3" } else { "0" }
            }
            Start::Refused(_) => status.status == "1",
            Start::Wrong => true,
        };
        if !fits {
            let did = match start {
                Start::Right(notices) => format!("a start works: {}", notices.join("; ")),
                Start::Refused(_) => "a start is refused".to_owned(),
                Start::Wrong => String::new(),
            };
            complaints
                .push(format!("{}\nbut {did}", with_output(&format!("{when}: status does not tell what a start does"), status)));
        }
    }

    /// The files of members without damage, as they lie there, with their modes, owners, times and
    /// attributes.
    pub(crate) fn undamaged(&self, damages: &[Damage]) -> Vec<String> {
        let is_whole = |slot: &usize| damages.iter().all(|damage| damage.slot != *slot && !damage.is_of_two());
        let slots = (0..self.members.len()).filter(is_whole);
        // Of a file that was changed while a member is out nobody can tell whether its last user
        // came to an end: what is mended is new then.
        let timed = !damages.iter().any(Damage::is_of_member);
        slots.flat_map(|slot| described(&self.members[slot], timed, &|name| name != META)).collect()
    }

    /// Everything on all members, as it lies there.
    pub(crate) fn everything(&self) -> Vec<String> {
        let described = |(slot, member): (usize, &PathBuf)| -> Vec<String> {
            described(member, true, &|_| true).into_iter().map(|line| format!("m{slot}/{line}")).collect()
        };
        self.members.iter().enumerate().flat_map(described).collect()
    }

    /// Complains if something on a member is not as it was before `what`, which changes nothing.
    pub(crate) fn compare_everything(&self, before: &[String], what: &str, complaints: &mut Complaints) {
        let after = self.everything();
        if after != before {
            complaints.push(format!("{what} has changed a member\n{}", difference(before, &after)));
        }
    }

    /// Tells whether a line names the member in a slot.
    pub(crate) fn names_member(&self, line: &str, slot: usize) -> bool {
        self.members.get(slot).is_some_and(|member| line.contains(&member.display().to_string()))
    }

    /// Tells whether programs are told the array's UUID.
    pub(crate) fn knows_uuid(&self) -> bool {
        self.uuid.get().is_some()
    }
}

/// Whether an array's list is the plain directory's. Until the lost name of a file is met by a call
/// that opens it, the member that has lost it may tell of one name fewer, and of the length of the
/// file that has the name there (README, Limits).
fn is_same_list(found: &str, expected: &str, damages: &[Damage]) -> bool {
    let is_same = |words: &[usize]| without_words(found, words).eq(without_words(expected, words));
    found == expected
        || damages.iter().any(Damage::is_of_a_name) && is_same(&[NAMES_WORD])
        || damages.iter().any(Damage::is_exchange) && is_same(&[LENGTH_WORD, NAMES_WORD])
}

/// The first lines of the expected list that were not found, and the first that were found in their
/// place.
fn differences(found: &str, expected: &str) -> (String, String) {
    let differs =
        |one: &str, other: &str| one.lines().filter(|line| !other.contains(line)).take(4).collect::<Vec<_>>().join("\n");
    (differs(expected, found), differs(found, expected))
}

/// Which word of a file's line in a list tells its length, and which its number of names.
const LENGTH_WORD: usize = 2;
const NAMES_WORD: usize = 3;

/// The lines of a list, without these words in those of files.
fn without_words<'a>(text: &'a str, words: &'a [usize]) -> impl Iterator<Item = Vec<&'a str>> {
    text.lines().map(move |line| {
        let is_file = line.split(' ').nth(1) == Some("file");
        line.split(' ').enumerate().filter(|(at, _)| !is_file || !words.contains(at)).map(|(_, word)| word).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_without_counts_of_names_differ_in_everything_else() {
        let same = |one, other| without_words(one, &[NAMES_WORD]).eq(without_words(other, &[NAMES_WORD]));
        assert!(same("d/f file 10 1 10 ab\nlisted\n", "d/f file 10 2 10 ab\nlisted\n"));
        for other in
            ["d/f file 11 1 10 ab\nlisted\n", "d/f file 10 1 10 ac\nlisted\n", "d/g file 10 1 10 ab\nlisted\n", "listed\n"]
        {
            assert!(!same("d/f file 10 1 10 ab\nlisted\n", other), "{other}");
        }
    }
}
