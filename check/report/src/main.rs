//! `cargo x report`: the figures of the theses and papers behind this project, on this machine,
//! beside what a user would pick instead.
//!
//! A part of the report (`parts`) measures its figures (`figure`) in groups of compared systems that
//! run by turns. What is measured is kept as records (`record`), a file for each group, so that a run
//! that was cut short goes on. A book (`book`) is computed from all records and written as a page
//! (`page`) and as Markdown (`markdown`); `check` looks at both.

mod book;
mod chart;
mod check;
mod figure;
mod fio;
mod gaps;
mod ground;
mod machine;
mod markdown;
mod page;
mod parts;
mod plan;
mod progress;
mod record;
mod statistics;
mod ycsb;

use book::{Book, Verdict};
use ground::Ground;
use machine::Machine;
use parts::{Group, Part};
use plan::{Extent, Plan};
use progress::Progress;
use record::{Record, Store};
use stage::options::{Words, is_option, library, must_be_built};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
cxlraid-report [--quick | --full] [--only PART...] [--resume] [--out DIRECTORY] [--without-peers]

  --quick          the smallest sizes, one round: shows that everything works, its times mean nothing
  --full           sizes and rounds for figures that are published: takes hours
  --only PART...   only these parts; what is kept of the others stays on the page
  --resume         goes on with a run that was cut short: what is kept of this version, of these sizes, is
                   not measured again
  --out DIRECTORY  where the report goes; target/report if not given, target/report/quick with --quick
  --without-peers  what the machine lacks does not change the exit status
  --list           says what parts there are

The exit status is 0 if all is well, 1 if something failed or the page is not whole, 2 if the command line is not
understood, 3 if the page is whole but systems to compare with are missing on this machine.
The library is CXLRAID_LIB, or libcxlraid.so beside this program. Progress goes to standard error.";

/// The exit status of a whole page with peers missing.
const PEERS_MISSING: u8 = 3;
/// Memory that stays for programs and the system, beside what lies on the tmpfs.
const SPARE_BYTES: u64 = 1 << 30;

/// What was asked for.
struct Options {
    extent: Extent,
    /// Parts; all if empty.
    only: Vec<String>,
    resume: bool,
    out: Option<PathBuf>,
    without_peers: bool,
    list: bool,
}

impl Options {
    /// None if help was asked for.
    fn parse(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let mut words = Words::new(arguments, HELP);
        let mut options =
            Self { extent: Extent::Usual, only: Vec::new(), resume: false, out: None, without_peers: false, list: false };
        let mut takes_parts = false;
        while let Some(word) = words.next_word() {
            let was_part = std::mem::take(&mut takes_parts);
            match word.as_str() {
                "--quick" => options.extent = Extent::Quick,
                "--full" => options.extent = Extent::Full,
                "--only" => {
                    options.only.push(words.value()?);
                    takes_parts = true;
                }
                "--resume" => options.resume = true,
                "--out" => options.out = Some(PathBuf::from(words.value()?)),
                "--without-peers" => options.without_peers = true,
                "--list" => options.list = true,
                "--help" | "-h" => return Ok(None),
                part if was_part && !is_option(part) => {
                    options.only.push(word);
                    takes_parts = true;
                }
                _ => return Err(words.unknown()),
            }
        }
        let parts = parts::all();
        match options.only.iter().find(|only| parts.iter().all(|part| part.name() != only.as_str())) {
            Some(unknown) => Err(format!("{unknown}: no such part; --list says what there is")),
            None => Ok(Some(options)),
        }
    }

    fn wants(&self, part: &dyn Part) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part.name())
    }

    fn out(&self) -> PathBuf {
        let usual = if self.extent == Extent::Quick { "target/report/quick" } else { "target/report" };
        self.out.clone().unwrap_or_else(|| PathBuf::from(usual))
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if options.list {
        parts::all().iter().for_each(|part| println!("{:<14} {}", part.name(), part.title()));
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(Whole::Yes) => ExitCode::SUCCESS,
        Ok(Whole::WithoutPeers) => ExitCode::from(if options.without_peers { 0 } else { PEERS_MISSING }),
        Err(message) => {
            eprintln!("cxlraid-report: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every system to compare with was there.
enum Whole {
    Yes,
    WithoutPeers,
}

fn run(options: &Options) -> Result<Whole, String> {
    let library = library();
    must_be_built(&library, "cxlraid-preload")?;
    let library = library.canonicalize().map_err(|error| format!("{}: {error}", library.display()))?;
    let plan = Plan::new(options.extent);
    let parts = parts::all();
    let wanted: Vec<&dyn Part> = parts.iter().map(|part| &**part).filter(|part| options.wants(*part)).collect();
    must_have_room(&wanted, &plan)?;
    let versions = machine::versions(&library.with_file_name("cxlraid"));
    let basis = serde_json::to_string(&(&plan, &versions)).map_err(|error| error.to_string())?;
    let store = Store::new(options.out(), basis);
    let mut todo: Vec<(&dyn Part, usize, Group)> = Vec::new();
    for part in wanted {
        if !options.resume {
            store.clear(part.name())?;
        }
        let groups = part.groups(&plan).into_iter().enumerate();
        let open = groups.filter(|(_, group)| !options.resume || !store.has(part.name(), &group.name));
        todo.extend(open.map(|(index, group)| (part, index, group)));
    }
    let failed = measure(&store, &library, &plan, &versions, todo)?;
    finish(&store, options.extent, &parts, failed)
}

/// An error if memory or space is too small for what is to be measured.
fn must_have_room(parts: &[&dyn Part], plan: &Plan) -> Result<(), String> {
    let free = machine::free_bytes(Path::new("/dev/shm")).ok_or("/dev/shm: its free space cannot be found out")?;
    let memory = machine::available_bytes().saturating_sub(SPARE_BYTES);
    let has = free.min(memory);
    match parts.iter().find(|part| part.needs_bytes(plan) > has) {
        None => Ok(()),
        Some(part) => Err(format!(
            "the part {} takes {} MiB on /dev/shm, and there are {} MiB free of which {} MiB of memory can be had; free memory, \
             leave the part out with --only, or take --quick",
            part.name(),
            part.needs_bytes(plan) >> 20,
            free >> 20,
            memory >> 20
        )),
    }
}

/// Measures groups and keeps what they give. Returns which failed, and why.
fn measure(
    store: &Store,
    library: &Path,
    plan: &Plan,
    versions: &std::collections::BTreeMap<String, String>,
    todo: Vec<(&dyn Part, usize, Group)>,
) -> Result<Vec<String>, String> {
    let mut failed = Vec::new();
    let mut progress = Progress::new(todo.iter().map(|(_, _, group)| group.seconds).sum());
    for (part, index, group) in todo {
        let what = format!("{} {}", part.name(), group.name);
        progress.begin(&what);
        // Each group has a ground of its own: what one leaves behind the next one does not meet.
        let ground = Ground::new(library)?;
        match part.measure(&ground, plan, index) {
            Ok(samples) => {
                let (machine, finished) = (Machine::find(), machine::now());
                let record = |sample| Record {
                    part: part.name().to_owned(),
                    sample,
                    versions: versions.clone(),
                    machine: machine.clone(),
                    finished,
                };
                store.keep(part.name(), &group.name, samples.into_iter().map(record).collect())?;
            }
            Err(why) => {
                progress.say(&format!("failed: {what}: {why}"));
                failed.push(format!("{what}: {why}"));
            }
        }
        drop(ground);
        progress.done(group.seconds);
    }
    progress.end();
    Ok(failed)
}

/// Writes the page and its twin, and looks at them.
fn finish(store: &Store, extent: Extent, parts: &[Box<dyn Part>], failed: Vec<String>) -> Result<Whole, String> {
    let records = store.records()?;
    let book = Book::new(extent, parts, &records, failed)?;
    let html = page::page(&book);
    let file = store.directory().join("index.html");
    fs::create_dir_all(store.directory())
        .and_then(|()| fs::write(&file, &html))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    markdown::write(&book, store.directory())?;
    let mut wrong = check::records(&records);
    wrong.extend(check::page(&book, &html));
    wrong.extend(check::markdown(store.directory()));
    println!(
        "{}: {} measurements; goals: {} met, {} short, {} within noise, {} not measured",
        file.display(),
        records.len(),
        book.count(Verdict::Met),
        book.count(Verdict::Short),
        book.count(Verdict::Noise),
        book.count(Verdict::NotMeasured)
    );
    let missing = book.missing();
    missing.iter().for_each(|(what, figures)| println!("left out: {what} (in {figures} figures)"));
    wrong.iter().for_each(|wrong| println!("wrong: {wrong}"));
    match (book.failed.len(), wrong.len()) {
        (0, 0) if missing.is_empty() => Ok(Whole::Yes),
        (0, 0) => Ok(Whole::WithoutPeers),
        (failed, wrong) => {
            Err(format!("{failed} measurements failed, {wrong} things on the page are wrong; the lines above name them"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Options>, String> {
        Options::parse(words.iter().map(OsString::from).collect::<Vec<_>>().into_iter())
    }

    #[test]
    fn what_is_asked_for_is_known_or_refused() {
        let options = parse(&["--only", "thesis", "sizes", "--quick"]).unwrap().unwrap();
        assert_eq!((options.only.len(), options.extent), (2, Extent::Quick));
        assert_eq!(options.out(), Path::new("target/report/quick"));
        assert!(parse(&["--only", "none"]).is_err_and(|why| why.contains("none")));
        assert!(parse(&["thesis"]).is_err() && parse(&["--only"]).is_err());
        assert!(parse(&["--help"]).is_ok_and(|options| options.is_none()));
    }

    #[test]
    fn parts_fit_into_the_memory_of_a_usual_machine() {
        for part in parts::all() {
            let needs = |extent| part.needs_bytes(&Plan::new(extent)) >> 20;
            assert!(needs(Extent::Quick) < 2 << 10, "{}: {} MiB", part.name(), needs(Extent::Quick));
            assert!(needs(Extent::Full) < 12 << 10, "{}: {} MiB", part.name(), needs(Extent::Full));
        }
    }

    #[test]
    fn too_little_memory_is_found_before_the_first_run() {
        let parts = parts::all();
        let parts: Vec<&dyn Part> = parts.iter().map(|part| &**part).collect();
        let huge = Plan { file_bytes: 1 << 50, ..Plan::new(Extent::Full) };
        assert!(must_have_room(&parts, &huge).is_err_and(|why| why.contains("thesis") && why.contains("--quick")));
    }
}
