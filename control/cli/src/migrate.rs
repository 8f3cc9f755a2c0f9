//! `cxlraid migrate` and `cxlraid policy ARRAY apply`: files that are there are moved to another level
//! or chunk. How one file is moved is in [`crate::moving`].
//!
//! The array is held meanwhile (`namespace::Held`): no program uses it, and those that start wait.
//! After [`HELD_FOR`] it is let go between two files, so that these may begin; the command goes on
//! when they have ended, if it may wait.

use crate::{
    args::{Apply, Migrate, Moving},
    commands::called,
    compute::Progress,
    drift::{Ruling, drifting},
    failure::{Exit, Failure},
    files::{ArrayFiles, inside},
    inspect, job,
    moving::{Candidate, Fault, Outlook, kind_of, refused},
    rules::{frame_of, own_shape, require_no_fast_members, rules_of, shown},
    rules_text::no_rules,
    runtime::{attached, users},
    scrub::ending,
    spec::{Source, absolute},
    tree::names_in,
    view::bytes_text,
};
use array::{Array, Config, Standing, config::normalise};
use file::Files;
use format::RuleShape;
use namespace::{FillError, Held, Namespace, OFlags, ProgramPath};
use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use sys::rustix::fs::FileType;
use units::Shown;

/// How long a command that waits for programs to end sleeps before it looks again.
const PERIOD: Duration = Duration::from_millis(200);
/// How long the array is held before programs that wait may start. They would give up after two
/// minutes.
const HELD_FOR: Duration = Duration::from_secs(30);

/// Which level files are to get.
#[derive(Clone, Copy)]
enum Wanted {
    Shape(layout::Level, Option<units::ChunkBytes>),
    /// What the rules give at each file's path.
    Rules,
}

/// A file to be moved, by its path: what it is to get.
type Plan = BTreeMap<Vec<u8>, RuleShape>;

/// Moves files to one level.
pub(crate) fn migrate(source: &Source, arguments: &Migrate) -> Result<Exit, Failure> {
    if let (false, Some(_)) = (arguments.to.has_chunks(), arguments.chunk) {
        let what = format!("RAID {} does not cut files into chunks", arguments.to);
        return Err(Failure::new("--chunk", what, "leave --chunk out, or choose another level").with_exit(Exit::Usage));
    }
    let wanted = Wanted::Shape(arguments.to, arguments.chunk);
    Migration::new(source, wanted, &arguments.paths, &arguments.moving)?.run(&arguments.moving)
}

/// Moves the files that are not as the rules say.
pub(crate) fn apply(source: &Source, arguments: &Apply) -> Result<Exit, Failure> {
    Migration::new(source, Wanted::Rules, &arguments.paths, &arguments.moving)?.run(&arguments.moving)
}

/// What has become of files.
#[derive(Default)]
struct Counts {
    moved: u64,
    bytes: u64,
    same: u64,
    refused: u64,
}

struct Migration<'a> {
    source: &'a Source,
    config: Config,
    wanted: Wanted,
    paths: Vec<PathBuf>,
    /// How long programs are waited for; None: for ever.
    until: Option<Instant>,
    counts: Counts,
}

impl<'a> Migration<'a> {
    fn new(source: &'a Source, wanted: Wanted, paths: &[PathBuf], moving: &Moving) -> Result<Self, Failure> {
        let until = Instant::now().checked_add(Duration::from_secs(moving.wait));
        let paths = paths.iter().map(|path| absolute(path)).collect();
        Ok(Self { source, config: inspect::config(source)?, wanted, paths, until, counts: Counts::default() })
    }

    fn thing(&self) -> &str {
        called(self.source)
    }

    fn run(mut self, moving: &Moving) -> Result<Exit, Failure> {
        if moving.dry_run {
            return self.foretell();
        }
        job::end_with(&ending(self.thing())?);
        let progress = Progress::begin();
        let mut plan: Option<Plan> = None;
        let mut last: Option<Vec<u8>> = None;
        loop {
            let held = self.hold()?;
            let begun = Instant::now();
            let done = self.work(&held, &mut plan, &mut last, begun, &progress);
            held.end();
            if done? {
                break;
            }
        }
        drop(progress);
        let Counts { moved, bytes, .. } = self.counts;
        self.summary(&format!("{} moved, {}", counted(moved), bytes_text(bytes)))
    }

    /// Moves files for a while. Returns whether none is left.
    fn work(
        &mut self,
        held: &Held,
        plan: &mut Option<Plan>,
        last: &mut Option<Vec<u8>>,
        begun: Instant,
        progress: &Progress,
    ) -> Result<bool, Failure> {
        let names = held.names();
        self.require_whole(held.array())?;
        let failed = |error: sys::OsError| inspect::refused(self.thing(), &io::Error::from(error).to_string());
        // What a command that was killed has left.
        names.free_nameless().map_err(failed)?;
        if plan.is_none() {
            let made = self.plan(names)?;
            if !made.is_empty() {
                self.let_files_differ(names.files())?;
            }
            let sizes = made.keys().filter_map(|path| inside(names.stat(ProgramPath::known(path), false)).ok());
            job::set_totals(made.len() as u64, sizes.map(|stat| stat.st_size as u64).sum());
            *plan = Some(made);
        }
        let Some(plan) = plan else { return Ok(true) };
        let from = last.as_ref().map_or(std::ops::Bound::Unbounded, |last| std::ops::Bound::Excluded(last.clone()));
        for (path, &wanted) in plan.range::<Vec<u8>, _>((from, std::ops::Bound::Unbounded)) {
            if job::is_ended() {
                return Err(self.ended());
            }
            if begun.elapsed() > HELD_FOR {
                return Ok(false);
            }
            let moved = Candidate::look(names, path, wanted).map_err(Fault::from).and_then(|(outlook, candidate)| {
                let bytes = candidate.as_ref().map_or(0, Candidate::bytes);
                candidate.map_or(Ok(()), Candidate::move_it).map(|()| (outlook, bytes))
            });
            let size = moved.as_ref().map_or(0, |(_, bytes)| *bytes);
            let _ = job::end_file(size, moved.is_ok());
            match moved {
                Ok((Outlook::Moves(has), bytes)) => {
                    self.counts.moved += 1;
                    self.counts.bytes += bytes;
                    progress.beside(|| say(&line(path, has, wanted, bytes)));
                }
                Ok((Outlook::Same, _)) => {
                    self.counts.same += 1;
                    progress.beside(|| say(&format!("{}: has {} already\n", Shown(path), shown(wanted))));
                }
                Err(Fault::Refused(failure)) => {
                    self.counts.refused += 1;
                    progress.beside(|| say!("{failure}"));
                    // The others would meet the same.
                    self.require_whole(held.array())?;
                }
                Err(Fault::Ended) => return Err(self.ended()),
            }
            *last = Some(path.clone());
        }
        // A member may have failed at the last file, which has been moved on the others.
        self.require_whole(held.array())?;
        Ok(true)
    }

    /// Says what would be done. Programs may use the array.
    fn foretell(mut self) -> Result<Exit, Failure> {
        let array = Array::attach(&self.config).map_err(|error| inspect::refused(self.thing(), &error.to_string()))?;
        let files = ArrayFiles::open(array)?;
        self.require_whole(files.core().array())?;
        let plan = self.plan(files.names())?;
        for (path, &wanted) in &plan {
            match Candidate::look(files.names(), path, wanted) {
                Ok((Outlook::Moves(has), candidate)) => {
                    let bytes = candidate.as_ref().map_or(0, Candidate::bytes);
                    self.counts.moved += 1;
                    self.counts.bytes += bytes;
                    say(&line(path, has, wanted, bytes));
                }
                Ok((Outlook::Same, _)) => {
                    self.counts.same += 1;
                    say(&format!("{}: has {} already\n", Shown(path), shown(wanted)));
                }
                Err(failure) => {
                    self.counts.refused += 1;
                    say!("{failure}");
                }
            }
        }
        let Counts { moved, bytes, .. } = self.counts;
        self.summary(&format!("{} would be moved, {}", counted(moved), bytes_text(bytes)))
    }

    fn summary(&self, done: &str) -> Result<Exit, Failure> {
        let Counts { same, refused, .. } = self.counts;
        let mut text = format!("{}: {done}", self.thing());
        if same > 0 {
            text += &format!("; {} so already", if same == 1 { "1 is".to_owned() } else { format!("{same} are") });
        }
        if refused > 0 {
            text += &format!("; {refused} refused");
        }
        say(&(text + "\n"));
        Ok(if refused > 0 { Exit::Error } else { Exit::Fine })
    }

    fn ended(&self) -> Failure {
        let what = format!("was ended; {} moved, and the others are as they were", counted(self.counts.moved));
        Failure::new(self.thing(), what, "give the command again to go on")
    }

    /// Holds the array, which lets no program start, as soon as its programs have ended.
    fn hold(&self) -> Result<Held, Failure> {
        loop {
            match Held::begin(&self.config) {
                Ok(held) => return Ok(held),
                Err(FillError::InUse) if self.until.is_some_and(|until| Instant::now() >= until) => return Err(self.in_use()),
                Err(FillError::InUse) => thread::sleep(PERIOD),
                Err(FillError::Os(error)) => return Err(inspect::refused(self.thing(), &io::Error::from(error).to_string())),
                Err(error) => return Err(inspect::refused(self.thing(), &error.to_string())),
            }
            if job::is_ended() {
                return Err(self.ended());
            }
        }
    }

    fn in_use(&self) -> Failure {
        let uuid = inspect::newest(self.source, self.thing()).map(|superblock| superblock.array_uuid);
        let pids = uuid.map_or_else(|_| Vec::new(), attached);
        let mut what = format!("is in use by {}, and files are moved while no program uses it", users(&pids));
        if self.counts.moved > 0 {
            what += &format!("; {} moved so far", counted(self.counts.moved));
        }
        Failure::new(self.thing(), what, "end these and give the command again; --wait SECONDS waits for that")
    }

    /// Refuses an array of which a member is not in sync, or that takes no files of several levels.
    fn require_whole(&self, array: &Array) -> Result<(), Failure> {
        require_no_fast_members(self.thing(), array)?;
        let in_use = array.in_use();
        let lacks = |member: &&array::Member| {
            !in_use.contains(member.slot) || member.standing != Standing::InSync || member.is_rebuilding
        };
        match array.members().iter().find(lacks) {
            None => Ok(()),
            Some(member) => {
                let what = format!("{} is not in sync, and files are moved while all members are", member.shown());
                Err(Failure::new(self.thing(), what, format!("'cxlraid rebuild {}' first", self.thing())))
            }
        }
    }

    /// Has the members say that files may have levels of their own, which keeps older programs away, if
    /// they do not yet.
    fn let_files_differ(&self, files: &Files) -> Result<(), Failure> {
        let array = files.array();
        if array.may_have_shapes() && rules_of(array).is_some() {
            return Ok(());
        }
        let set = files.set_rules(|revision| no_rules(array.uuid(), revision, own_shape(array)));
        set.map_err(|error| inspect::refused(self.thing(), &io::Error::from(error).to_string()))
    }

    /// Finds the files that are meant.
    fn plan(&self, names: &Namespace) -> Result<Plan, Failure> {
        let array = names.files().array();
        let own = own_shape(array);
        let frame = frame_of(names.files());
        let mut plan = Plan::new();
        match self.wanted {
            Wanted::Shape(level, chunk) => {
                let shape = RuleShape { level, chunk: chunk.unwrap_or(own.chunk) };
                if let Some((what, todo)) = frame.refusal(shape) {
                    return Err(Failure::new("--to", what, todo).with_exit(Exit::Usage));
                }
                for path in &self.paths {
                    self.find(names, path, &mut |path| _ = plan.insert(path, shape))?;
                }
            }
            Wanted::Rules => {
                let rules = rules_of(array);
                let ruling = Ruling::of(rules.as_deref(), own);
                let mut roots = Vec::new();
                for path in &self.paths {
                    roots.push(self.resolve(names, path)?);
                }
                let is_meant = |path: &[u8]| roots.is_empty() || roots.iter().any(|root| array::config::is_below(path, root));
                drifting(names, &ruling, |path, _| {
                    if is_meant(path) {
                        plan.insert(path.to_vec(), ruling.decide(path).1);
                    }
                });
                if let Some((what, todo)) = plan.values().find_map(|&shape| frame.refusal(shape)) {
                    return Err(Failure::new(self.thing(), format!("the rules cannot be followed: {what}"), todo));
                }
            }
        }
        Ok(plan)
    }

    /// Returns the logical path that a path leads to, without symbolic links on the way.
    fn resolve(&self, names: &Namespace, path: &std::path::Path) -> Result<Vec<u8>, Failure> {
        let normal = normalise(path.as_os_str().as_bytes());
        if !names.owns(&normal) {
            let prefixes: Vec<_> = self.config.prefixes.iter().map(|prefix| Shown(prefix).to_string()).collect();
            let what = format!("is not below the array's paths ({})", prefixes.join(", "));
            return Err(Failure::new(path.display(), what, "give a path below one of them"));
        }
        let opened = inside(names.open(normal.as_slice(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, 0));
        opened
            .map(|opened| opened.path)
            .map_err(|error| Failure::new(path.display(), error, "'ls' its directory, which is the array's"))
    }

    /// Calls `found` with the logical path of a file, or of each file below a directory. Symbolic links
    /// are not followed.
    fn find(&self, names: &Namespace, path: &std::path::Path, found: &mut dyn FnMut(Vec<u8>)) -> Result<(), Failure> {
        let root = self.resolve(names, path)?;
        let mut pending = vec![root.clone()];
        while let Some(path) = pending.pop() {
            let failed = |error: io::Error| refused(&path, error, "nothing was moved");
            let stat = inside(names.stat(ProgramPath::known(&path), false)).map_err(failed)?;
            match kind_of(&stat) {
                FileType::RegularFile => found(path),
                FileType::Directory => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let opened = inside(names.open(ProgramPath::known(&path), flags, 0)).map_err(failed)?;
                    let listed = names_in(&opened.anchor).map_err(failed)?;
                    let listed = listed.iter().filter(|name| !names.hides(&path, name.as_bytes()));
                    pending.extend(listed.map(|name| [path.as_slice(), b"/", name.as_bytes()].concat()));
                }
                _ if path == root => {
                    return Err(refused(&path, "is no file with bytes of its own", "give a file, or a directory"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn line(path: &[u8], has: RuleShape, wanted: RuleShape, bytes: u64) -> String {
    format!("{}: {} -> {}, {}\n", Shown(path), shown(has), shown(wanted), bytes_text(bytes))
}

fn counted(files: u64) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{files} files") }
}

/// Prints a line. Whoever closed the pipe has read enough, and files are moved all the same.
fn say(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}
