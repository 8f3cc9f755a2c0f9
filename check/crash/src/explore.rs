//! One case: records its run, lets the engine recover from its crash states, and judges what came
//! back.

use crate::case::{Case, Journal};
use crate::child::{Child, apart};
use crate::image::{Damage, Image};
use crate::log::{Event, Log, Place};
use crate::model::{Model, Progress, Shown};
use crate::perform::{go_on, perform};
use crate::readd::re_add;
use crate::record;
use crate::recovery::{Return, lengths_told, recover, recover_and};
use crate::states::{Effort, Focus, Instant, Replay, State};
use crate::workload::{Workload, afterwards, window_bytes};
use oracle::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// States one process recovers before another takes over: what the engine leaks by design ends with
/// it.
const BATCH: usize = 48;
/// How long a batch may take, on a machine that has much else to do: who waits for something waits
/// for ever.
const BATCH_SECONDS_MAX: u32 = 600;
const RECORD_SECONDS_MAX: u32 = 600;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) effort: Effort,
    /// In one of so many states also each single member is lost.
    pub(crate) loss_every: u64,
    /// Failures after which a case ends.
    pub(crate) failures_max: usize,
    /// Of more states than this so many are taken by chance, all over the run.
    pub(crate) states_max: usize,
}

/// What became of a case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// States recovered and judged.
    pub(crate) states: usize,
    /// Of those, states with a member lost.
    pub(crate) states_with_loss: usize,
    /// Instants at which something new could be found.
    pub(crate) instants: usize,
    pub(crate) events: usize,
    pub(crate) failures: Vec<String>,
}

/// A directory in memory, removed when dropped. All others lie in the first, which the first
/// process removes: one that is killed leaves nothing.
pub(crate) fn ground(below: &Path) -> Result<TempDir, String> {
    let made = tempfile::Builder::new().prefix("cxlraid-crash-").tempdir_in(below);
    made.map_err(|error| format!("{}: {error}", below.display()))
}

/// Records a case's run in a process of its own.
pub(crate) fn record_case(case: &Case, below: &Path) -> Result<Log, String> {
    if case.again {
        return record_recovery(case, &record_case(&Case { again: false, ..case.clone() }, below)?, below);
    }
    let home = ground(below)?;
    let path = home.path().to_owned();
    let workload = Workload::new(case.workload, &case.shape).ok_or_else(|| format!("no workload {}", case.workload))?;
    let recorded = apart(RECORD_SECONDS_MAX, || {
        for member in 0..case.shape.directory_count() {
            fs::create_dir(crate::image::member_directory(&path, member)).map_err(|error| error.to_string())?;
        }
        persist::fault::install_handlers().map_err(|error| error.to_string())?;
        record::begin(&path, case.shape.directory_count(), case.platform, case.seed)?;
        let performed = perform(&workload, &case.shape, &path);
        let log = record::finish();
        performed.and(log)
    });
    remove_segments(&path, case.shape.member_count);
    let log = recorded.map_err(|error| format!("the recorded run: {error}"))?;
    if workload.window_bytes.is_some() && !log.has_later_windows {
        return Err("nothing was stored through a second window of a file".into());
    }
    Ok(log)
}

/// How many states of an instant a crash is chosen from whose recovery is recorded.
const CHOICE: Effort = Effort { exhaustive_max: 16, sample: 8 };

/// One of how many recoveries only asks for the lengths of files, and is from a crash in which a
/// journal on members was lost on one of them.
const ODD_ONES: u64 = 4;

/// A kind of crash states: those that lack stores which the same call did, all of what an instant
/// can lack of them or not. None lacks nothing.
type Lack = Option<(usize, bool)>;

/// Calls `visit` with every crash state of a run with something under way, and what kind of state
/// it is.
fn each_crash(case: &Case, log: &Log, mut visit: impl FnMut(&Instant<'_>, &State, Lack)) {
    Replay::new(log, case.platform, case.seed, &|_| false).run(CHOICE, |instant| {
        if instant.progress.under_way.is_empty() {
            return true;
        }
        let lacks: Vec<BTreeMap<usize, usize>> = instant
            .states
            .iter()
            .map(|state| {
                let mut lack = BTreeMap::new();
                let calls = state.lost_stores.iter().filter_map(|&event| log.events[event].stack());
                calls.for_each(|call| *lack.entry(call).or_default() += 1);
                lack
            })
            .collect();
        for (state, lack) in instant.states.iter().zip(&lacks) {
            if lack.is_empty() {
                visit(instant, state, None);
            }
            for (call, count) in lack {
                let most = lacks.iter().filter_map(|other| other.get(call)).max();
                visit(instant, state, Some((*call, most == Some(count))));
            }
        }
        true
    });
}

/// Chooses a crash state with something under way: first what kind of, so that what few states show
/// is as likely as what many do.
fn choose_crash(case: &Case, log: &Log, rng: &mut Rng) -> Option<(Image, Progress)> {
    let mut counts: BTreeMap<Lack, u64> = BTreeMap::new();
    each_crash(case, log, |_, _, lack| *counts.entry(lack).or_default() += 1);
    let (&kind, &count) = counts.iter().nth(rng.below(counts.len().max(1) as u64) as usize)?;
    let (mut left, mut chosen) = (rng.below(count), None);
    each_crash(case, log, |instant, state, lack| {
        if lack == kind && chosen.is_none() {
            if left == 0 {
                chosen = Some((state.image(instant.image), instant.progress.clone()));
            }
            left = left.saturating_sub(1);
        }
    });
    chosen
}

/// Records the recovery from one crash state of a run, chosen by the seed, and how the program goes
/// on then.
fn record_recovery(case: &Case, first: &Log, below: &Path) -> Result<Log, String> {
    let mut rng = Rng::new(case.seed ^ 0x6167_6169);
    let (mut image, mut progress) = choose_crash(case, first, &mut rng).ok_or("a run without operations")?;
    let workload = Workload::new(case.workload, &case.shape).ok_or("no such workload")?;
    let model = Model::new(&workload, case.shape, None);
    let doubtful = model.failed(&progress);
    if case.shape.journal == Journal::Members && doubtful == 0 && rng.one_in(ODD_ONES) {
        let member = rng.below(case.shape.member_count as u64) as usize;
        image = image.damaged(&Damage { member, file: "journal", from: format::JOURNAL_HEADER_BYTES as u64 });
        progress.journal_lost = 1 << member;
    }
    // With a journal the first open of a file may make it longer.
    let only_asks = !case.shape.has_journal() && rng.one_in(ODD_ONES);
    let home = ground(below)?;
    let path = home.path().to_owned();
    image.lay_out(&path, 0).map_err(|error| format!("laying out: {error}"))?;
    let recorded = apart(RECORD_SECONDS_MAX, || {
        persist::fault::install_handlers().map_err(|error| error.to_string())?;
        record::begin(&path, case.shape.directory_count(), case.platform, case.seed)?;
        record::start(1)?;
        let how = Return { doubtful, window_bytes: workload.window_bytes, ..Return::default() };
        let shown = if only_asks {
            let told = lengths_told(&case.shape, &path, how);
            record::recovered();
            told.map(Shown::Lengths)
        } else {
            let found = recover_and(&case.shape, &path, how, |namespace, world| {
                record::recovered();
                go_on((namespace, &case.shape, &path), model.operations.len(), &afterwards(world))
            });
            found.map(|found| Shown::All(found.world))
        };
        let log = record::finish();
        Ok((shown?, log?))
    });
    remove_segments(&path, case.shape.member_count);
    let (shown, log) = recorded.map_err(|error| format!("the recorded recovery: {error}"))?;
    Ok(Log { crashed: Some(progress), shown: Some(shown), ..log })
}

/// Removes the runtime segment of the array below `home`, and shared copies of files that were
/// mapped.
fn remove_segments(home: &Path, member_count: usize) {
    for member in 0..member_count {
        let superblock = crate::image::member_directory(home, member).join(".cxlraid/superblock");
        let Ok(bytes) = fs::read(superblock) else { continue };
        if let Ok((superblock, _)) = format::Superblock::choose(&bytes) {
            let segment = array::runtime::segment_path(superblock.array_uuid);
            let copies = format!("{segment}-map-");
            for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
                if entry.path().to_string_lossy().starts_with(&copies) {
                    let _ = fs::remove_file(entry.path());
                }
            }
            let _ = fs::remove_file(segment);
        }
    }
}

/// Recovers the crash states of a recorded run, or those in `focus`. `without` leaves events out:
/// flushes and fences taken from the source.
pub(crate) fn explore(
    case: &Case,
    log: &Log,
    extent: &Extent,
    below: &Path,
    without: &dyn Fn(&Event) -> bool,
    focus: &Focus,
) -> Result<Outcome, String> {
    let workload = Workload::new(case.workload, &case.shape).ok_or_else(|| format!("no workload {}", case.workload))?;
    let model = Model::new(&workload, case.shape, log.shown.as_ref());
    let home = ground(below)?;
    let mut outcome = Outcome { events: log.events.len(), ..Outcome::default() };
    let mut trouble = None;
    let rng = || Rng::new(case.seed ^ 0x6c6f_7373);
    let replay = || Replay::focused(log, case.platform, case.seed, without, focus);
    let (mut all, mut counting) = (0, rng());
    replay().run(extent.effort, |instant| {
        all += trials(case, extent, instant, progress_of(log, instant), &model, &mut counting).len();
        true
    });
    let (mut rng, mut choosing) = (rng(), Rng::new(case.seed ^ 0x6d61_6e79));
    replay().run(extent.effort, |instant| {
        outcome.instants += 1;
        let progress = progress_of(log, instant);
        let mut trials = trials(case, extent, instant, progress, &model, &mut rng);
        let is_just_over = progress.shown.is_some() && !model.has_gone_on(progress);
        trials.retain(|_| is_just_over || choosing.below(all.max(1) as u64) < extent.states_max as u64);
        for batch in trials.chunks(BATCH) {
            match run_batch(case, &model, (instant, progress), batch, home.path()) {
                Ok(failed) => {
                    outcome.states += batch.len();
                    outcome.states_with_loss += batch.iter().filter(|trial| trial.lost != 0 || trial.damage.is_some()).count();
                    outcome
                        .failures
                        .extend(failed.map(|failed| describe(log, &model, (instant, progress), &batch[failed.0], &failed.1)));
                }
                Err(error) => trouble = Some(error),
            }
            if trouble.is_some() || outcome.failures.len() >= extent.failures_max {
                return false;
            }
        }
        true
    });
    trouble.map_or(Ok(outcome), Err)
}

/// How far the program had come: in this run, or in the one whose recovery this is.
fn progress_of<'a>(log: &'a Log, instant: &'a Instant<'_>) -> &'a Progress {
    log.crashed.as_ref().filter(|_| instant.progress.shown.is_none()).unwrap_or(instant.progress)
}

/// A state with members lost.
struct Trial<'a> {
    state: &'a State,
    lost: u32,
    /// What the medium of a member has lost besides.
    damage: Option<Damage>,
    /// Whether something is changed before the lost member comes back.
    changing: bool,
    thorough: bool,
}

fn trials<'a>(
    case: &Case,
    extent: &Extent,
    instant: &'a Instant<'_>,
    progress: &Progress,
    model: &Model,
    rng: &mut Rng,
) -> Vec<Trial<'a>> {
    let failed = model.failed(progress);
    // From the end of a recovery on.
    let loss_every = if progress.shown.is_some() { 1 } else { extent.loss_every };
    let can_lose = if failed == 0 { case.shape.is_redundant() } else { case.shape.bears_two() };
    // A medium that has lost its journal is made good by then.
    let is_whole = progress.journal_lost == 0 || progress.shown.is_some();
    let can_lose = can_lose && (is_whole || !case.shape.has_pairs());
    let mut trials = Vec::new();
    for state in &instant.states {
        trials.push(Trial { state, lost: 0, damage: None, changing: false, thorough: rng.one_in(3) });
        if can_lose && is_whole && rng.one_in(extent.loss_every) {
            let damage = damage(case.shape.member_count, rng);
            if failed >> damage.member & 1 == 0 {
                trials.push(Trial { state, lost: 0, damage: Some(damage), changing: false, thorough: rng.one_in(3) });
            }
        }
        if can_lose && rng.one_in(loss_every) {
            let lose = |member: usize| {
                // Looking behind the end changes files.
                let changing = rng.one_in(2);
                Trial { state, lost: 1 << member, damage: None, changing, thorough: changing && rng.one_in(2) }
            };
            trials.extend((0..case.shape.member_count).filter(|member| failed >> member & 1 == 0).map(lose));
        }
    }
    trials
}

/// The end of one of a member's metadata files, by chance.
fn damage(member_count: usize, rng: &mut Rng) -> Damage {
    let member = rng.below(member_count as u64) as usize;
    let (inode_bytes, header_bytes) = (format::INODE_RECORD_BYTES as u64, format::TABLE_HEADER_BYTES as u64);
    let (file, from) = match rng.below(6) {
        0 => ("superblock", 0),
        1 => ("lanes", header_bytes),
        2 => ("names", header_bytes),
        // A journal whose header is lost is for the operator to give up.
        3 => ("journal", format::JOURNAL_HEADER_BYTES as u64),
        4 => ("changed", rng.below(3) * header_bytes),
        _ => ("inodes", header_bytes + rng.below(4) * inode_bytes),
    };
    Damage { member, file, from }
}

/// Recovers a batch in another process. Returns the first that failed, by its place, and why.
fn run_batch(
    case: &Case,
    model: &Model,
    (instant, progress): (&Instant<'_>, &Progress),
    batch: &[Trial<'_>],
    home: &Path,
) -> Result<Option<(usize, String)>, String> {
    let reached = Shared::new()?;
    let child = Child::start(BATCH_SECONDS_MAX, || {
        persist::fault::install_handlers().map_err(|error| error.to_string())?;
        record::disguise()?;
        for (index, trial) in batch.iter().enumerate() {
            reached.set(index);
            let image = trial.state.image(instant.image);
            let image = trial.damage.iter().fold(image, Image::damaged);
            if let Err(wrong) = run_trial(case, model, progress, &image, trial, home) {
                return Ok(Some((index, wrong)));
            }
        }
        Ok(None)
    })?;
    let result = child.finish::<Option<(usize, String)>>();
    if !matches!(result, Ok(None)) {
        remove_segments(home, case.shape.member_count);
        clear(home)?;
    }
    // A recovery that crashes or hangs is a failure like others.
    Ok(result.unwrap_or_else(|error| Some((reached.get(), format!("recovery {error}")))))
}

fn run_trial(
    case: &Case,
    model: &Model,
    progress: &Progress,
    image: &Image,
    trial: &Trial<'_>,
    home: &Path,
) -> Result<(), String> {
    image.lay_out(home, trial.lost).map_err(|error| format!("laying out: {error}"))?;
    let failed = model.failed(progress);
    let damaged = trial.damage.map_or(0, |damage| 1 << damage.member);
    let how = Return {
        lost: trial.lost,
        doubtful: failed | damaged,
        changing: trial.changing,
        thorough: trial.thorough,
        window_bytes: window_bytes(case.workload),
    };
    let found = recover(&case.shape, home, how)?;
    model.judge(progress, &found.world, found.out != 0)?;
    // A return takes three starts and a tick of the clock: one state in three is enough.
    let is_for_this = trial.thorough && trial.lost == 0 && trial.damage.is_none_or(|damage| damage.file == "changed");
    if let Some((slot, is_proven)) = model.taken_out(progress).filter(|&(slot, _)| is_for_this && found.out == 1 << slot) {
        // Whoever takes the locks of a file to compare it marks it: what came back above has a mark
        // for each file.
        clear(home)?;
        image.lay_out(home, 0).map_err(|error| format!("laying out: {error}"))?;
        let back = re_add(&case.shape, home, (slot, is_proven && trial.damage.is_none(), !case.again));
        back.and_then(|world| model.judge(progress, &world, true))
            .map_err(|wrong| format!("when member {slot} came back with what it had: {wrong}"))?;
    }
    if trial.lost != 0 {
        come_back(case, model, progress, image, trial, home).map_err(|wrong| format!("when the member was back: {wrong}"))?;
    }
    clear(home)
}

/// The member that was missing is there again, as the crash left it: it is stale if anything was
/// changed without it, otherwise as good as any.
fn come_back(
    case: &Case,
    model: &Model,
    progress: &Progress,
    image: &Image,
    trial: &Trial<'_>,
    home: &Path,
) -> Result<(), String> {
    let member = trial.lost.trailing_zeros() as usize;
    image.lay_out_lost(home, member).map_err(|error| format!("laying out: {error}"))?;
    let doubtful = trial.lost | model.failed(progress);
    let how = Return { doubtful, window_bytes: window_bytes(case.workload), ..Return::default() };
    let found = recover(&case.shape, home, how)?;
    if trial.changing && found.out & trial.lost == 0 {
        return Err(format!("member {member} is in use, though it has missed a change"));
    }
    model.judge(progress, &found.world, found.out != 0)
}

fn clear(home: &Path) -> Result<(), String> {
    for entry in fs::read_dir(home).map_err(|error| error.to_string())?.flatten() {
        fs::remove_dir_all(entry.path()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A failure, in words that repeat it and tell where to look.
fn describe(log: &Log, model: &Model, (instant, progress): (&Instant<'_>, &Progress), trial: &Trial<'_>, wrong: &str) -> String {
    let under_way: Vec<_> = progress.under_way.iter().map(|&index| &model.operations[index]).collect();
    let before = log.events.get(instant.event);
    let mut text = format!(
        "{wrong}\n    crash before event {} ({}), ",
        instant.event,
        before.map_or("the end".into(), |event| short(log, event))
    );
    text += &format!("{} operations done, under way: {under_way:?}", progress.done.len());
    if progress.journal_lost != 0 {
        text += &format!(", the journal of member {} lost in the first crash", progress.journal_lost.trailing_zeros());
    }
    if trial.lost != 0 {
        text += &format!(", member {} lost", trial.lost.trailing_zeros());
    }
    if let Some(damage) = trial.damage {
        text += &format!(", {} of member {} lost from {} on", damage.file, damage.member, damage.from);
    }
    let (patched, lost) = (trial.state.patches.len(), &trial.state.lost_stores);
    text +=
        &format!("\n    of the stores not yet certain {patched} parts are there, {} stores are not, or not wholly", lost.len());
    let mut places: Vec<String> = lost.iter().map(|&event| short(log, &log.events[event])).collect();
    places.dedup();
    for place in places.iter().take(6) {
        text += &format!("\n      {place}");
    }
    text
}

/// An event in a line: what it is and the source lines that did it.
pub(crate) fn short(log: &Log, event: &Event) -> String {
    let what = match event {
        Event::Store { object, at, bytes, streamed, .. } => {
            format!(
                "{} of {} bytes to {}",
                if *streamed { "streamed store" } else { "store" },
                bytes.len(),
                named(log, *object, *at)
            )
        }
        Event::Flush { object, at, .. } => format!("flush of {}", named(log, *object, *at)),
        Event::Fence { .. } => "fence".into(),
        Event::Length { object, bytes } => format!("{} gets {bytes} bytes", named(log, *object, 0)),
        Event::Zero { object, at, bytes } => format!("{bytes} zeros at {}", named(log, *object, *at)),
        Event::Put { object, at, bytes, .. } => format!("pwrite of {} bytes to {}", bytes.len(), named(log, *object, *at)),
        Event::Sync { object, .. } => format!("sync of {}", named(log, *object, 0)),
        Event::Tree { member, .. } => format!("a change of names on member {member}"),
        Event::Begin { operation } => format!("operation {operation} begins"),
        Event::End { operation, .. } => format!("operation {operation} returns"),
        Event::Recovered => "the recovery is over".into(),
    };
    let stack = event.stack().map(|stack| log.places(stack)).unwrap_or_default();
    let inner = ["base/persist/src/arch", "base/persist/src/template", "base/persist/src/line", "check/"];
    let interesting = |place: &&Place| !inner.iter().any(|start| place.file.starts_with(start));
    let places: Vec<String> = stack.iter().filter(interesting).take(5).map(ToString::to_string).collect();
    if places.is_empty() { what } else { format!("{what} by {}", places.join(" < ")) }
}

/// A place in a file of a member, by any of its names.
fn named(log: &Log, object: usize, at: u64) -> String {
    let trees = log.events.iter().filter_map(|event| match event {
        Event::Tree { member, tree, .. } => Some((*member, tree)),
        _ => None,
    });
    let mut all = log.base.trees.iter().enumerate().chain(trees);
    let name = all.find_map(|(member, tree)| {
        let (name, _) = tree.0.iter().find(|(_, node)| node.kind == crate::image::Kind::File(object))?;
        Some(format!("m{member}/{}", name.display()))
    });
    format!("{} at {at}", name.unwrap_or_else(|| format!("file {object}")))
}

/// A number that a forked process leaves to its parent whatever happens to it.
struct Shared(*mut usize);

impl Shared {
    fn new() -> Result<Self, String> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new page wherever the kernel likes.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED { Err(format!("mmap: {}", std::io::Error::last_os_error())) } else { Ok(Self(page.cast())) }
    }

    fn set(&self, value: usize) {
        // SAFETY: our page.
        unsafe { self.0.write_volatile(value) }
    }

    fn get(&self) -> usize {
        // SAFETY: our page.
        unsafe { self.0.read_volatile() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our page, mapped in `new`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}
