//! Everything through libcxlraid.so: the array's settings, workers with the library loaded, and
//! what they found.

use crate::beside::{self, Marks};
use crate::levels::{self, Bench, FILE};
use crate::members::{Scratch, plain_file};
use crate::notours::{self, Calls};
use crate::party::{self, Ground};
use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, Plan, SMALL_BYTES, Task};
use crate::repair::{self, Repaired};
use crate::report::Row;
use crate::rounds::measure;
use crate::subject::{Buffer, Reads};
use crate::{append, degraded, engine, fresh, mapped, names, scale, scaling, startup};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use units::ChunkBytes;

/// Chunks in which files are mapped: a mapping is composed of pieces of these.
const MAPPED_CHUNKS: [u64; 2] = [64 << 10, 1 << 20];

/// The library under test.
pub(crate) struct Library {
    path: PathBuf,
}

impl Library {
    /// CXLRAID_LIB, or the one that lies beside this program.
    pub(crate) fn find() -> Result<Self, String> {
        let path = match std::env::var_os("CXLRAID_LIB") {
            Some(path) => PathBuf::from(path),
            None => std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("libcxlraid.so"),
        };
        let path = path.canonicalize().map_err(|_| {
            format!("{}: no such library; build it with `cargo x build`, set CXLRAID_LIB, or use --engine", path.display())
        })?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The operator's command, which lies beside the library.
    pub(crate) fn command(&self) -> PathBuf {
        self.path.with_file_name("cxlraid")
    }

    /// A command that runs on the array in `place`.
    pub(crate) fn preloaded(&self, mut command: Command, place: &ArrayPlace, cache: &Path) -> Command {
        let members = place.members.iter().map(|member| member.display().to_string()).collect::<Vec<_>>().join(":");
        command
            .env("LD_PRELOAD", &self.path)
            .env("CXLRAID_LEVEL", &place.level)
            .env("CXLRAID_MOUNTS", members)
            .env("CXLRAID_PATHS", &place.prefix)
            .env("CXLRAID_JOURNAL", &place.journal)
            .env("XDG_CACHE_HOME", cache);
        command
    }

    fn worker(&self, task: &Task, place: &ArrayPlace, scratch: &Scratch) -> Result<Command, String> {
        Ok(self.preloaded(worker(task)?, place, scratch.path()))
    }
}

/// This program as a worker.
pub(crate) fn worker(task: &Task) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("worker").arg(serde_json::to_string(task).map_err(|error| error.to_string())?);
    Ok(command)
}

/// Runs a worker and reads what it says.
pub(crate) fn result<T: DeserializeOwned>(mut worker: Command) -> Result<T, String> {
    let output = worker.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("a worker failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("a worker said something else: {error}"))
}

/// Everything that goes through the library.
pub(crate) fn rows(plan: &Plan, wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>, String> {
    let library = Library::find()?;
    let mut rows = Vec::new();
    for (name, level) in [("raid1", "1"), ("raid5", "5")] {
        if wanted(name) {
            rows.extend(level_rows(plan, &library, level, None)?);
        }
        if wanted("journal") {
            for on_members in [false, true] {
                rows.extend(level_rows(plan, &library, level, Some(on_members))?);
            }
        }
    }
    if wanted("degraded") {
        rows.extend(degraded_rows(plan, &library)?);
    }
    if wanted("repair") {
        rows.extend(repair_rows(plan, &library)?);
    }
    if wanted("append") {
        rows.push(append_row(plan, &library)?);
    }
    if wanted("names") {
        let scratch = scratch("names")?;
        let (array, plain) = (scratch.array("5", 3).map_err(said)?, scratch.path().join("plain"));
        let task = Task::Names { plan: *plan, array: array.clone(), plain };
        rows.extend(result::<Vec<Row>>(library.worker(&task, &array, &scratch)?)?);
    }
    if wanted("new") {
        rows.extend(fresh::rows(plan, &library)?);
    }
    if wanted("scaling") {
        rows.extend(scaling_rows(plan, &library)?);
    }
    if wanted("mmap") {
        for chunk_bytes in MAPPED_CHUNKS {
            rows.extend(mapped_rows(plan, &library, chunk_bytes)?);
        }
        rows.extend(unit_rows(plan, &library)?);
    }
    if wanted("notours") {
        rows.extend(not_ours_rows(plan, &library)?);
    }
    if wanted("startup") && startup::is_measurable() {
        let scratch = scratch("startup")?;
        let array = scratch.array("5", 3).map_err(said)?;
        rows.extend(result::<Vec<Row>>(startup::command(plan, &library, &array, &scratch)?)?);
    }
    Ok(rows)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn said(error: io::Error) -> String {
    error.to_string()
}

fn scratch(name: &str) -> Result<Scratch, String> {
    Scratch::new(name).map_err(|error| format!("a directory for the members: {error}"))
}

fn level_rows(plan: &Plan, library: &Library, level: &str, journal: Option<bool>) -> Result<Vec<Row>, String> {
    let scratch = scratch(level)?;
    let array = match journal {
        None => scratch.array(level, 3),
        Some(on_members) => scratch.journaled_array(level, 3, on_members),
    };
    let array = array.map_err(said)?;
    let task = Task::Level { plan: *plan, array: array.clone(), scratch: scratch.path().to_owned() };
    result(library.worker(&task, &array, &scratch)?)
}

/// The file is filled with all members in; then one is gone.
fn degraded_rows(plan: &Plan, library: &Library) -> Result<Vec<Row>, String> {
    let scratch = scratch("degraded")?;
    let array = scratch.array("5", 3).map_err(said)?;
    let () = result(library.worker(&Task::Fill { plan: *plan, array: array.clone() }, &array, &scratch)?)?;
    let member = &array.members[degraded::OUT];
    std::fs::rename(member, member.with_extension("away")).map_err(said)?;
    result(library.worker(&Task::Degraded { plan: *plan, array: array.clone() }, &array, &scratch)?)
}

/// Two arrays are filled; one of them loses a member and is read beside the other, the other is
/// scrubbed and rebuilt.
fn repair_rows(plan: &Plan, library: &Library) -> Result<Vec<Row>, String> {
    let (whole, lacking) = (scratch("repair")?, scratch("reads")?);
    let filled = |scratch: &Scratch| {
        let array = scratch.array("5", 3).map_err(said)?;
        let () = result(library.worker(&Task::Fill { plan: *plan, array: array.clone() }, &array, scratch)?)?;
        Ok::<_, String>(array)
    };
    let (array, reduced) = (filled(&whole)?, filled(&lacking)?);
    let member = &reduced.members[degraded::OUT];
    std::fs::rename(member, member.with_extension("away")).map_err(said)?;
    let reads = |array: &ArrayPlace, scratch: &Scratch| {
        result::<f64>(library.worker(&Task::Reads { plan: *plan, array: array.clone() }, array, scratch)?)
    };
    let pair = |_| Ok((reads(&reduced, &lacking)?, reads(&array, &whole)?));
    let pairs = (0..plan.repair_rounds).map(pair).collect::<Result<Vec<_>, String>>()?;
    let mut rows = vec![repair::degraded_reads(pairs)];
    let repaired = Repaired { library, array: &array, scratch: whole.path() };
    rows.extend(repaired.rows(plan)?);
    let round = |_| {
        repaired.lose()?;
        let () = result(worker(&Task::FillMember { array: array.clone(), slot: repair::LOST })?)?;
        let marks = Marks::new(whole.path());
        let task = Task::Beside { plan: *plan, array: array.clone(), marks: marks.clone() };
        let (writer, is_gone) = (library.worker(&task, &array, &whole)?, AtomicBool::new(false));
        thread::scope(|scope| {
            let rebuild = scope.spawn(|| marks.rebuild(repaired.operator("rebuild"), &is_gone));
            let round = result::<beside::Round>(writer);
            is_gone.store(true, Ordering::Relaxed);
            let rebuilt = rebuild.join().map_err(|_| "the thread that rebuilds panicked".to_owned())?;
            rebuilt.map_err(said).and(round)
        })
    };
    rows.push(beside::row(&(0..plan.repair_rounds).map(round).collect::<Result<Vec<_>, String>>()?));
    // Redundancy fits after the last rebuild.
    repaired.sum()?;
    Ok(rows)
}

fn append_row(plan: &Plan, library: &Library) -> Result<Row, String> {
    let scratch = match Scratch::huge("append", 8 * plan.append_bytes + (64 << 20)) {
        Ok(scratch) => scratch,
        Err(error) => return Ok(Row::not_measured(append::CASE, &error.to_string())),
    };
    let array = scratch.array("5", 3).map_err(said)?;
    let task = Task::Append { plan: *plan, array: array.clone(), scratch: scratch.path().to_owned() };
    let mut row: Row = result(library.worker(&task, &array, &scratch)?)?;
    let many = (plan.append_bytes / 4096) as usize;
    let counted = append::system_calls_per_append(many / 16, many, |appends| {
        let path = array.file(&format!("counted-{appends}"));
        library.worker(&Task::CountedAppends { path, appends }, &array, &scratch).expect("plain data")
    });
    match counted {
        // Growth in advance takes a few calls per 32 MiB and member.
        Ok(calls) => row.checks.push(crate::report::Check::at_most("system calls per append", calls, 0.05)),
        Err(why) => row.note = format!("system calls not counted: {why}"),
    }
    Ok(row)
}

fn mapped_rows(plan: &Plan, library: &Library, chunk_bytes: u64) -> Result<Vec<Row>, String> {
    let scratch = scratch("mmap")?;
    let array = scratch.array("5", 3).map_err(said)?;
    let task = Task::Mapped { plan: *plan, array: array.clone(), chunk_bytes, scratch: scratch.path().to_owned() };
    let mut worker = library.worker(&task, &array, &scratch)?;
    worker.env("CXLRAID_STRIPE_SIZE", format!("{}K", chunk_bytes >> 10));
    result(worker)
}

fn unit_rows(plan: &Plan, library: &Library) -> Result<Vec<Row>, String> {
    let scratch = match Scratch::huge("units", 2 * plan.region_bytes + (64 << 20)) {
        Ok(scratch) => scratch,
        Err(error) => return Ok(vec![Row::not_measured("mmap: huge pages", &error.to_string())]),
    };
    let array = scratch.array("5", 3).map_err(said)?;
    let mut worker = library.worker(&Task::Units { plan: *plan, array: array.clone() }, &array, &scratch)?;
    worker.env("CXLRAID_STRIPE_SIZE", "2M");
    result(worker)
}

fn scaling_rows(plan: &Plan, library: &Library) -> Result<Vec<Row>, String> {
    let scratch = scratch("scaling")?;
    let array = scratch.array("5", 3).map_err(said)?;
    let (directory, region_bytes) = (scratch.path().to_owned(), plan.shared_bytes);
    let ground = Ground { array: array.clone(), directory, region_bytes, calls: plan.shared_calls };
    result(library.worker(&Task::Scaling { plan: *plan, ground }, &array, &scratch)?)
}

fn not_ours_rows(plan: &Plan, library: &Library) -> Result<Vec<Row>, String> {
    let scratch = scratch("notours")?;
    let array = scratch.array("5", 3).map_err(said)?;
    let file = scratch.path().join("ordinary");
    plain_file(&file, 1 << 20).map_err(said)?;
    let task = Task::NotOurs { plan: *plan, file };
    let pair = |_| {
        let with: Calls = result(library.worker(&task, &array, &scratch)?)?;
        let without: Calls = result(worker(&task)?)?;
        Ok((with, without))
    };
    Ok(notours::rows(&(0..plan.pairs).map(pair).collect::<Result<Vec<_>, String>>()?))
}

/// What a worker process does: one task, its result as JSON on standard output.
pub(crate) fn work(task: &str) -> Result<(), String> {
    let task: Task = serde_json::from_str(task).map_err(|error| error.to_string())?;
    match task {
        Task::Level { plan, array, scratch } => say(&level_work(plan, &array, &scratch).map_err(said)?),
        Task::Fill { plan, array } => {
            levels::fill(&create(&array.file(FILE)).map_err(said)?, plan.region_bytes);
            say(&())
        }
        Task::Degraded { plan, array } => {
            let subject = OpenOptions::new().read(true).write(true).open(array.file(FILE)).map_err(said)?;
            say(&degraded::rows(&plan, &array, &subject).map_err(said)?)
        }
        Task::Reads { plan, array } => {
            let subject = File::open(array.file(FILE)).map_err(said)?;
            say(&random_reads(&plan, &subject))
        }
        Task::Append { plan, array, scratch } => {
            let kernel = plain_file(&scratch.join("kernel"), 0).map_err(said)?;
            let subject = create(&array.file(FILE)).map_err(said)?;
            say(&append::row(&plan, &subject, &kernel))
        }
        Task::Mapped { plan, array, chunk_bytes, scratch } => {
            let chunk = ChunkBytes::new(chunk_bytes).ok_or("not the size of a chunk")?;
            let kernel = plain_file(&scratch.join("kernel"), plan.region_bytes).map_err(said)?;
            let subject = create(&array.file(FILE)).map_err(said)?;
            levels::fill(&subject, plan.region_bytes);
            say(&mapped::rows(&plan, &array, chunk, &subject, &kernel).map_err(said)?)
        }
        Task::Units { plan, array } => {
            let subject = create(&array.file(FILE)).map_err(said)?;
            levels::fill(&subject, plan.region_bytes);
            say(&mapped::unit_rows(&plan, &subject).map_err(said)?)
        }
        Task::FillMember { array, slot } => engine::fill_member(&array, slot).map_err(said).and_then(|()| say(&())),
        Task::Beside { plan, array, marks } => say(&beside::measure(&plan, &array, &marks).map_err(said)?),
        Task::CountedAppends { path, appends } => {
            append::appends(&path, appends);
            Ok(())
        }
        Task::Names { plan, array, plain } => say(&names::rows(&plan, &array, &plain).map_err(said)?),
        Task::Scaling { plan, ground } => say(&scaling::rows(&plan, &ground).map_err(said)?),
        Task::Party { ground, index } => party::work(&ground, index).map_err(said),
        Task::Scale { job, waits } => scale::work(job, waits),
        Task::NotOurs { plan, file } => {
            let file = File::open(file).map_err(said)?;
            say(&notours::measure_here(&plan, &file).map_err(said)?)
        }
        Task::Startup { plan, library, array, cache } => {
            say(&startup::rows(&plan, &Library { path: library }, &array, &cache).map_err(said)?)
        }
    }
}

fn level_work(plan: Plan, array: &ArrayPlace, scratch: &Path) -> io::Result<Vec<Row>> {
    let kernel = plain_file(&scratch.join("kernel"), plan.region_bytes)?;
    let subject = create(&array.file(FILE))?;
    levels::fill(&subject, plan.region_bytes);
    Ok(Bench::new(plan, array, &subject, &kernel)?.rows())
}

/// How long a read of 4 KiB at random takes; nanoseconds. Every page is in the page tables before
/// the clock starts.
fn random_reads(plan: &Plan, subject: &File) -> f64 {
    levels::read_all(subject, plan.region_bytes);
    let mut buffer = Buffer::of(&levels::content(SMALL_BYTES));
    let places = Places::new(Order::Random, plan.region_bytes, SMALL_BYTES, 0, 1);
    measure(&mut [(&mut Reads(subject, &mut buffer), places)], plan.rounds, plan.small_calls).nanoseconds(0)
}

/// A new file on the array.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    file.map_err(|error| io::Error::other(format!("{}: {error}; is the library loaded?", path.display())))
}

fn say(result: &impl Serialize) -> Result<(), String> {
    println!("{}", serde_json::to_string(result).map_err(|error| error.to_string())?);
    Ok(())
}
