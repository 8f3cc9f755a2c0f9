//! Batches of programs on both sides, their comparison, and the shortest program that still
//! differs.

use crate::{
    act::{Orders, ROLE},
    allowed, contain, known,
    options::Options,
    program::{Deed, ONLY, STEP_COUNT, Step, only, program},
    tree::MEMBERS,
};
use stage::{
    Janitor,
    door::Door,
    options::copied,
    remove,
    report::{Complaints, Report, with_output},
    run::{Output, Run},
};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{self, Command},
    time::{Duration, Instant},
};

/// Why nothing was run.
const NOT_CONTAINED: &str = "differ needs the right to mount, to keep its programs from the machine";

/// The word that makes this program look at an array's redundancy.
pub(crate) const SCRUB: &str = "scrub";
/// The word that makes this program serve a mount of an array.
pub(crate) const SERVE: &str = "serve";
/// Programs that one process runs, at most: fewer in short runs, whose programs meet more arrays
/// so.
const BATCH: u64 = 200;
const BATCH_OF_FEW: u64 = 50;
/// How long a batch may take; it takes some seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// How often a program is run again that was interrupted on one side.
const TRIES: usize = 3;
/// A long run says how far it is about this often.
const SILENCE: Duration = Duration::from_secs(60);

/// Level, members and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    level: &'static str,
    member_count: usize,
    chunk: &'static str,
    journal: bool,
    /// Whether a member is missing from the beginning.
    degraded: bool,
    /// Whether programs use it through a mount, and not the library.
    mounted: bool,
}

impl Default for &Shape {
    fn default() -> Self {
        &Shape::ALL[0]
    }
}

impl Shape {
    pub(crate) const ALL: [Self; 6] = [
        Self { label: "raid1", level: "1", member_count: 2, chunk: "64K", journal: false, degraded: false, mounted: false },
        Self { label: "raid5", level: "5", member_count: 3, chunk: "4K", journal: false, degraded: false, mounted: false },
        Self { label: "raid6", level: "6", member_count: 4, chunk: "8K", journal: false, degraded: false, mounted: false },
        Self { label: "degraded", level: "5", member_count: 3, chunk: "4K", journal: false, degraded: true, mounted: false },
        Self { label: "journal", level: "5", member_count: 3, chunk: "4K", journal: true, degraded: false, mounted: false },
        Self { label: "mount", level: "5", member_count: 3, chunk: "4K", journal: false, degraded: false, mounted: true },
    ];
}

struct Ground {
    /// On tmpfs: members and the directory under test.
    root: PathBuf,
    /// On another file system: programs, results, and what is outside.
    host: PathBuf,
    janitor: Janitor,
    library: PathBuf,
    this: PathBuf,
}

impl Ground {
    fn new(options: &Options) -> Result<Self, String> {
        let name = format!("cxlraid-differ.{}", process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), env::temp_dir().join(&name));
        // It stays outside, where it may remove what this process has made.
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        fs::create_dir(&host).map_err(|error| format!("{}: {error}", host.display()))?;
        contain::contain(&host).map_err(|error| format!("{NOT_CONTAINED}: {error}"))?;
        for directory in [&root, &host.join("outside"), &root.join("data"), &root.join(MEMBERS)] {
            fs::create_dir(directory)
                .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        let data = root.join("data");
        contain::mount_new(&data).map_err(|error| format!("{NOT_CONTAINED}: {}: {error}", data.display()))?;
        fs::set_permissions(&host, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        let this = env::current_exe().map_err(|error| error.to_string())?;
        let (library, this) = (copied(&options.library, &host)?, copied(&this, &host)?);
        Ok(Self { root, host, janitor, library, this })
    }

    /// The results of each program, by its seed; an error if there are none.
    fn run(&self, shape: Option<&Shape>, first_seed: u64, count: u64, steps: &[usize], complaints: &mut Complaints) -> Results {
        let results = self.host.join("results");
        let _ = fs::remove_file(&results);
        let orders = Orders {
            inside: self.root.join("data"),
            outside: self.host.join("outside"),
            results: results.clone(),
            first_seed,
            count,
            steps: steps.to_vec(),
        };
        let words = orders.words(ROLE);
        let output = match shape {
            None => self.plain().args(&words).output(),
            Some(shape) => self.on_array(shape, &words, complaints),
        };
        let text = fs::read(&results).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        if !output.succeeded() || !text.ends_with("whole\n") {
            complaints.push(with_output(&format!("programs from seed {first_seed}"), &output));
        }
        by_seed(&text)
    }

    /// Whether programs differ because a busy machine interrupted a call before it was begun, on
    /// one side only: one answer is EINTR, or openat2(2) says EAGAIN because somebody renamed or
    /// mounted something while the kernel came to `..`. The program run again gives on the plain
    /// directory what the array has given, or on the array what the plain directory gives.
    fn is_interrupted(&self, shape: &Shape, seed: u64, found: &(String, String), array: &[String], steps: &[usize]) -> bool {
        let (interrupted, raced) = (format!(" = E{}", libc::EINTR), format!(" openat2 = E{}", libc::EAGAIN));
        let is_interruption = |line: &str| line.ends_with(&interrupted) || line.ends_with(&raced);
        if !is_interruption(&found.0) && !is_interruption(&found.1) {
            return false;
        }
        let nothing = Vec::new();
        (0..TRIES).any(|_| {
            let mut complaints = Complaints::new();
            let plain = self.run(None, seed, 1, steps, &mut complaints);
            let plain = plain.get(&seed).unwrap_or(&nothing);
            let again = self.run(Some(shape), seed, 1, steps, &mut complaints);
            let again = again.get(&seed).unwrap_or(&nothing);
            complaints.is_empty() && (difference(shape, plain, array).is_none() || difference(shape, plain, again).is_none())
        })
    }

    fn plain(&self) -> Run<'_> {
        let run = Run::new(&self.this, &self.janitor, self.host.join("run")).directory(Path::new("/")).limit(LIMIT);
        if only().is_empty() { run } else { run.env(ONLY, only().join(",")) }
    }

    fn on_array(&self, shape: &Shape, words: &[String], complaints: &mut Complaints) -> Output {
        let members: Vec<PathBuf> =
            (0..shape.member_count).map(|slot| self.root.join(MEMBERS).join(format!("m{slot}"))).collect();
        for member in &members {
            if let Err(error) = remove(member).and_then(|()| fs::create_dir(member)) {
                complaints.push(format!("{}: {error}", member.display()));
            }
        }
        let mounts: Vec<String> = members.iter().map(|member| member.display().to_string()).collect();
        let data = self.root.join("data");
        let variables: [(&str, OsString); 5] = [
            ("CXLRAID_LEVEL", shape.level.into()),
            ("CXLRAID_MOUNTS", mounts.join(":").into()),
            ("CXLRAID_PATHS", data.clone().into()),
            ("CXLRAID_STRIPE_SIZE", shape.chunk.into()),
            ("CXLRAID_JOURNAL", if shape.journal { "internal" } else { "" }.into()),
        ];
        let on_it = || variables.iter().fold(self.plain(), |run, (name, value)| run.env(name, value));
        let loaded = || on_it().env("LD_PRELOAD", &self.library);
        if shape.degraded {
            let orders = Orders {
                first_seed: 0,
                count: 0,
                inside: self.root.join("data"),
                outside: self.host.join("outside"),
                results: self.host.join("first"),
                steps: Vec::new(),
            };
            let first = loaded().args(orders.words(ROLE)).output();
            if !first.succeeded() || remove(&members[0]).is_err() {
                complaints.push(with_output("the array's first program", &first));
            }
        }
        let output = if shape.mounted {
            let mut serve = Command::new(&self.this);
            serve.arg(SERVE).arg(&data).envs(variables.iter().cloned()).current_dir("/");
            match Door::open(serve, &data) {
                Ok(door) => {
                    let output = self.plain().args(words).output();
                    complaints.extend(door.close().err());
                    output
                }
                Err(message) => {
                    complaints.push(message);
                    self.plain().args(words).output()
                }
            }
        } else {
            loaded().args(words).output()
        };
        let scrubbed = on_it().arg(SCRUB).output();
        if !scrubbed.succeeded() {
            complaints.push(with_output("redundancy", &scrubbed));
        }
        stage::segment::forget(&members);
        output
    }
}

/// A program by its seed, and the first lines of its results that differ.
type Differing = (u64, (String, String));
type Results = BTreeMap<u64, Vec<String>>;

fn by_seed(text: &str) -> Results {
    let mut results = Results::new();
    let mut seed = None;
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("program ") {
            seed = number.parse().ok();
        } else if let Some(seed) = seed {
            results.entry(seed).or_default().push(line.to_owned());
        }
    }
    results
}

/// The first lines that differ and may not, if any.
fn difference(shape: &Shape, plain: &[String], array: &[String]) -> Option<(String, String)> {
    let longest = plain.len().max(array.len());
    let nothing = String::from("(nothing)");
    let mut has_moved = false;
    (0..longest)
        .map(|index| (plain.get(index).unwrap_or(&nothing), array.get(index).unwrap_or(&nothing)))
        .take_while(|(plain, array)| !(allowed::parts_here(plain, array) || shape.mounted && allowed::parts_on_mount(plain)))
        .find(|(plain, array)| {
            let on_mount = || if shape.mounted { allowed::reason_on_mount(plain, array, has_moved) } else { None };
            let may_not = plain != array && allowed::reason(plain, array, shape.degraded).or_else(on_mount).is_none();
            has_moved |= [plain, array].iter().any(|line| allowed::moves_in_directory(line));
            may_not
        })
        .map(|(plain, array)| (plain.clone(), array.clone()))
}

/// Runs what is wanted. Whether nothing differed; an error if nothing could be run.
pub(crate) fn all(options: &Options) -> Result<bool, String> {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT RUN: differ needs root: programs drop their rights on the way");
        return Ok(true);
    }
    let begun = Instant::now();
    let report = Report::default();
    let ground = match Ground::new(options) {
        Err(message) if message.starts_with(NOT_CONTAINED) => {
            println!("NOT RUN: {message}");
            return Ok(true);
        }
        ground => ground?,
    };
    let programs = if options.steps.is_empty() { options.calls.div_ceil(STEP_COUNT) } else { 1 };
    println!("{programs} programs of {STEP_COUNT} calls on each array, from seed {}", options.seed);
    let is_possible = |shape: &&Shape| match stage::door::may_mount() {
        Err(why) if shape.mounted => {
            println!("NOT RUN: {}: {why}", shape.label);
            false
        }
        _ => true,
    };
    let wanted = Shape::ALL.iter().filter(|shape| options.wants(shape.label)).filter(is_possible);
    let mut sides: Vec<Side> = wanted.map(|shape| Side { shape, ..Side::default() }).collect();
    let (mut told, mut done) = (begun, 0);
    let batch = if programs < 10 * BATCH { BATCH_OF_FEW } else { BATCH };
    let end = options.seed + programs;
    let known = (known::FIRST, if options.steps.is_empty() { known::COUNT } else { 0 });
    let drawn = (options.seed..end).step_by(batch as usize).map(|seed| (seed, batch.min(end - seed)));
    for (seed, count) in [known].into_iter().filter(|known| known.1 > 0).chain(drawn) {
        let mut complaints = Complaints::new();
        let plain = ground.run(None, seed, count, &options.steps, &mut complaints);
        for side in &mut sides {
            let side_begun = Instant::now();
            side.complaints.append(&mut complaints.clone());
            let array = ground.run(Some(side.shape), seed, count, &options.steps, &mut side.complaints);
            for (&seed, plain) in &plain {
                let nothing = Vec::new();
                let array = array.get(&seed).unwrap_or(&nothing);
                if let Some(found) = difference(side.shape, plain, array) {
                    if ground.is_interrupted(side.shape, seed, &found, array, &options.steps) {
                        side.interrupted += 1;
                        continue;
                    }
                    let is_new = side.differing.iter().all(|(_, other)| class(other) != class(&found));
                    if is_new && programs > batch {
                        eprintln!("{} differs: {}, first {seed}", side.shape.label, class(&found));
                    }
                    side.differing.push((seed, found));
                }
            }
            side.time += side_begun.elapsed();
        }
        done += count;
        if told.elapsed() > SILENCE {
            told = Instant::now();
            let differing: usize = sides.iter().map(|side| side.differing.len()).sum();
            eprintln!("{done} programs on each array so far, {differing} differ, {} s", begun.elapsed().as_secs());
        }
    }
    for Side { shape, mut complaints, differing, interrupted, time } in sides {
        // One program of each class is cut down.
        let mut classes: BTreeMap<String, Vec<&Differing>> = BTreeMap::new();
        differing.iter().for_each(|found| classes.entry(class(&found.1)).or_default().push(found));
        let mut classes: Vec<_> = classes.into_iter().collect();
        classes.sort_by_key(|(_, programs)| std::cmp::Reverse(programs.len()));
        for (_, programs) in classes.iter().take(options.shown) {
            complaints.push(shortest(&ground, shape, programs[0].0, &programs[0].1, &options.steps));
        }
        if !differing.is_empty() && complaints.is_empty() {
            complaints.push(format!("{} programs differ", differing.len()));
        }
        for (class, programs) in &classes {
            println!("{:<6} {:>6} programs: {class}, first {}", shape.label, programs.len(), programs[0].0);
        }
        let busy = if interrupted > 0 { format!(", {interrupted} interrupted once") } else { String::new() };
        let note = format!("{programs} programs, {} differ{busy}", differing.len());
        report.result(shape.label, "differ", time, &note, &complaints);
    }
    if options.keep {
        ground.janitor.keep();
        println!("kept: {}", ground.root.display());
    }
    Ok(report.finish("differ", begun.elapsed()))
}

/// One array, and what has been found on it.
#[derive(Default)]
struct Side {
    shape: &'static Shape,
    complaints: Complaints,
    differing: Vec<Differing>,
    /// Programs whose difference was an interrupted call, on either side, and was gone when they
    /// were run again.
    interrupted: usize,
    time: Duration,
}

/// What two differing lines have in common with others: the call and both answers, without what the
/// call stored.
fn class((plain, array): &(String, String)) -> String {
    let answer = |line: &str| line.split(' ').skip(1).take(3).collect::<Vec<_>>().join(" ");
    format!("{} | {}", answer(plain), answer(array))
}

/// Cuts a program down to the steps without which nothing differs, and tells of it.
fn shortest(ground: &Ground, shape: &Shape, seed: u64, found: &(String, String), steps: &[usize]) -> String {
    let differs = |steps: &[usize]| {
        let mut complaints = Complaints::new();
        let plain = ground.run(None, seed, 1, steps, &mut complaints);
        let array = ground.run(Some(shape), seed, 1, steps, &mut complaints);
        let nothing = Vec::new();
        difference(shape, plain.get(&seed).unwrap_or(&nothing), array.get(&seed).unwrap_or(&nothing))
    };
    let all = program(seed);
    let mut kept: Vec<usize> = if steps.is_empty() { (0..all.steps.len()).collect() } else { steps.to_vec() };
    let Some(mut last) = differs(&kept) else {
        return format!("seed {seed}: differs only in its batch: plain {}, array {}", found.0, found.1);
    };
    let mut part = kept.len() / 2;
    while part > 0 && kept.len() > 1 {
        let mut at = 0;
        while at < kept.len() && kept.len() > 1 {
            let without: Vec<usize> =
                kept.iter().enumerate().filter(|&(index, _)| !(at..at + part).contains(&index)).map(|(_, &step)| step).collect();
            match differs(&without).filter(|_| !without.is_empty()) {
                Some(found) => (kept, last) = (without, found),
                None => at += part,
            }
        }
        part /= 2;
    }
    let lines: Vec<String> = kept.iter().map(|&step| format!("  {step} {}", shown(&all.steps[step]))).collect();
    let words: Vec<String> = kept.iter().map(ToString::to_string).collect();
    let only = if only().is_empty() { String::new() } else { format!(" --only {}", only().join(",")) };
    let state = match (all.is_deep, all.waits) {
        (true, _) => "\n  in a deep directory",
        (_, true) => "\n  waiting",
        _ => "",
    };
    format!(
        "plain: {}\narray: {}{state}\n{}\nagain: cargo x differ --level {} --seed {seed} --steps {}{only}",
        last.0,
        last.1,
        lines.join("\n"),
        shape.label,
        words.join(",")
    )
}

fn shown(step: &Step) -> String {
    let deed = match &step.deed {
        Deed::Rights(rights) => format!("{rights:?}"),
        Deed::Call(call, arguments) => {
            let arguments: Vec<String> = arguments
                .iter()
                .map(|argument| {
                    let mut text = format!("{argument:?}");
                    if text.len() > 120 {
                        text.truncate(text.floor_char_boundary(120));
                        text.push('…');
                    }
                    text
                })
                .collect();
            format!("{}({})", call.name, arguments.join(", "))
        }
    };
    format!("{:?}: {deed}", step.who)
}
