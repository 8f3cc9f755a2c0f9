//! Processes: many that use the array and do nothing, and some that work at once on one file, on
//! files of their own, on names in one directory.

use super::agent::{Job, Talk, Tree, each, say};
use super::axis::{Axis, Bench, Extent, Measure, On, Record, flat, linear};
use super::limits::Needs;
use super::pair::{ATTACH, Crew, Fall, Ground, NS_PER_MS, RECOVER, STATUS, US};
use crate::library::said;
use crate::places::{Order, Places};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::time::Instant;

/// Bytes of each call.
const BLOCK: [u8; 4096] = [7; 4096];
/// Bytes of a file that is written to.
const REGION_BYTES: u64 = 4 << 20;
/// Calls of a process.
const CALLS: usize = 512;
/// Up to so many processes the dear measures are taken as often as others.
const OFTEN: u64 = 100;

/// What processes do beside each other.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
enum What {
    /// Writes at random to a file.
    Write,
    /// Makes and removes files in a directory.
    Names,
}

/// Work beside others.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Beside {
    what: What,
    /// A file that is there, or a directory.
    path: PathBuf,
    /// Tells workers apart.
    index: usize,
    calls: usize,
    /// Goes on until it is killed, if it is to wait.
    endless: bool,
}

impl Beside {
    /// One write to the beginning of a file, or writes without end.
    pub(crate) fn writes(path: PathBuf) -> Self {
        Self { what: What::Write, path, index: 0, calls: 1, endless: true }
    }

    /// Does all its calls once: nanoseconds of each.
    fn turn(&self) -> Result<f64, String> {
        match self.what {
            What::Write => {
                let file = OpenOptions::new().read(true).write(true).open(&self.path).map_err(said)?;
                let bytes = file.metadata().map_err(said)?.len();
                let block = &BLOCK[..BLOCK.len().min(bytes as usize)];
                let mut offsets = Vec::new();
                Places::new(Order::Random, bytes, block.len().max(1), self.index, 1).fill(&mut offsets, self.calls);
                each(offsets, |offset| file.write_all_at(block, offset))
            }
            What::Names => each(0..self.calls, |number| {
                // One that was killed may have left the name.
                let path = self.path.join(format!("{}-{number}", self.index));
                File::create(&path)?;
                fs::remove_file(&path)
            }),
        }
    }
}

pub(crate) fn work(beside: &Beside, talk: &mut Talk) -> Result<Option<Vec<f64>>, String> {
    if talk.waits() && beside.endless {
        let parent = parent_id();
        beside.turn()?;
        say("ready")?;
        while parent_id() == parent {
            beside.turn()?;
        }
        return Ok(None);
    }
    Ok(if talk.ready()? { Some(vec![beside.turn()?]) } else { None })
}

/// Processes that do nothing.
struct Attached;

/// Processes that work at once.
struct Workers {
    name: &'static str,
    about: &'static str,
    what: What,
    same: bool,
}

pub(crate) fn axes() -> Vec<Box<dyn Axis>> {
    let workers = |name, about, what, same| Box::new(Workers { name, about, what, same }) as Box<dyn Axis>;
    vec![
        Box::new(Attached),
        workers("writers-one", "processes that write to one file at once", What::Write, true),
        workers("writers-own", "processes that write to a file of their own each, at once", What::Write, false),
        workers("writers-names", "processes that make and remove files in one directory at once", What::Names, true),
    ]
}

const ATTACHED: &[Measure] = &[
    flat("join", "a process starts while the ones before it stay, ms each"),
    ATTACH,
    flat("cat", "cat of a small file, ms"),
    flat("create", "create, write 100 bytes, close, by one process; us each"),
    flat("unlink", "unlink by one process, us each"),
    flat("write", "4 KiB written at random by one process, us each"),
    Measure { expected: Some(1.0), ..STATUS },
    flat("leave", "a process ends in order, ms each"),
    linear("deaths", "the first start after all processes were killed, with a write to a file, ms"),
    Measure { expected: Some(1.0), ..RECOVER },
];

impl Axis for Attached {
    fn name(&self) -> &'static str {
        "attached"
    }

    fn what(&self) -> &'static str {
        "processes that use the array and do nothing"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick { vec![1, 8] } else { vec![1, 10, 30, 100, 300, 1000, 2000, 4000] }
    }

    fn measures(&self) -> &'static [Measure] {
        ATTACHED
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: 64 << 20, processes: x, ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        2.0 + x as f64 / 25.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = Ground::new("attached", "5", 3)?;
        let count = x as usize;
        let path = |on| ground.directory(on).join("file");
        for on in [On::Plain, On::Array] {
            let tree = Tree { directory: ground.directory(on), per_directory: 0 };
            ground.run(bench, on, Job::Fill { tree, from: 0, to: 16 })?;
            prepare(&ground, bench, on, &path(on))?;
        }
        let join = |record: &mut Record, on| {
            let begun = Instant::now();
            let crew = Crew::start(bench, &ground, on, count, |_| Job::Idle)?;
            record.add("join", on, begun.elapsed().as_nanos() as f64 / NS_PER_MS / x as f64);
            Ok::<_, String>(crew)
        };
        let crews = [join(record, On::Plain)?, join(record, On::Array)?];
        ground.attend(bench, record)?;
        for round in 0..bench.rounds {
            for on in On::turns(round) {
                if record.wants("cat") {
                    let small = Tree { directory: ground.directory(on), per_directory: 0 }.path(0);
                    record.add("cat", on, ground.time_ms(bench, on, "/bin/cat", &[&small.to_string_lossy()])?);
                }
            }
        }
        let calls = bench.calls(CALLS);
        ground.compare(bench, record, &[("create", US), ("unlink", US)], |on, round| Job::Churn {
            tree: Tree { directory: ground.directory(on), per_directory: 0 },
            count: 16,
            calls,
            seed: round as u64,
        })?;
        ground.compare(bench, record, &[("write", US)], |on, index| {
            Job::Beside(Beside { what: What::Write, path: path(on), index, calls, endless: false })
        })?;
        for (on, crew) in [On::Plain, On::Array].into_iter().zip(crews) {
            let begun = Instant::now();
            crew.end()?;
            record.add("leave", on, begun.elapsed().as_nanos() as f64 / NS_PER_MS / x as f64);
        }
        for _ in 0..if x <= OFTEN { bench.rounds } else { 1 } {
            for (measure, fall) in [("deaths", Fall::Deaths as fn(On) -> Fall), ("recover", Fall::Crash)] {
                if !record.wants(measure) {
                    continue;
                }
                for on in [On::Plain, On::Array] {
                    let crew = Crew::start(bench, &ground, on, count, |_| Job::Idle)?;
                    let write = Job::Beside(Beside::writes(path(on)));
                    ground.fall(bench, record, fall(on), crew, write)?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a file that can be written to.
fn prepare(ground: &Ground, bench: &Bench, on: On, path: &std::path::Path) -> Result<(), String> {
    let sized = super::sizes::Sized::prepare(path.to_owned(), REGION_BYTES);
    ground.run(bench, on, Job::Sized(sized)).map(|_| ())
}

const WORKERS: &[Measure] = &[
    flat("time", "from the first one's begin to the last one's end, for each call; us"),
    flat("attach", "a start of /bin/true while they work, ms"),
    flat("status", "cxlraid status while they work, ms"),
    Measure { expected: Some(1.0), ..RECOVER },
];

impl Axis for Workers {
    fn name(&self) -> &'static str {
        self.name
    }

    fn what(&self) -> &'static str {
        self.about
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick { vec![1, 4] } else { vec![1, 2, 4, 8, 16, 32, 64] }
    }

    fn measures(&self) -> &'static [Measure] {
        WORKERS
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: x * 3 * REGION_BYTES, processes: x, ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        3.0 + x as f64 / 2.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = Ground::new(self.name, "5", 3)?;
        let (count, calls) = (x as usize, bench.calls(CALLS));
        let path = |on, index: usize| match self.what {
            What::Write => ground.directory(on).join(if self.same { "0".to_owned() } else { index.to_string() }),
            What::Names => ground.directory(on).join("d"),
        };
        let job = |on, index, endless| Job::Beside(Beside { what: self.what, path: path(on, index), index, calls, endless });
        for on in [On::Plain, On::Array] {
            match self.what {
                What::Write => {
                    (0..if self.same { 1 } else { count }).try_for_each(|index| prepare(&ground, bench, on, &path(on, index)))?
                }
                What::Names => {
                    let tree = Tree { directory: path(on, 0), per_directory: 0 };
                    ground.run(bench, on, Job::Fill { tree, from: 0, to: 1 })?;
                }
            }
        }
        for round in 0..bench.rounds {
            for on in On::turns(round) {
                if record.wants("time") {
                    let (nanoseconds, _) = Crew::start(bench, &ground, on, count, |index| job(on, index, false))?.work()?;
                    record.add("time", on, nanoseconds / US / (count * calls) as f64);
                }
                let crew = || Crew::start(bench, &ground, on, count, |index| job(on, index, true));
                if record.wants_any(&["attach", "status"]) {
                    let crew = crew()?;
                    record.add("attach", on, ground.time_ms(bench, on, "/bin/true", &[])?);
                    if on == On::Array && record.wants("status") {
                        record.add("status", on, ground.operator_ms(bench, "status")?);
                    }
                    crew.kill()?;
                }
                if record.wants("recover") {
                    ground.fall(bench, record, Fall::Crash(on), crew()?, job(on, 0, true))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_leave_no_names_and_whole_blocks() -> std::io::Result<()> {
        let directory = std::env::temp_dir().join(format!("cxlraid-beside-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let file = directory.join("file");
        fs::write(&file, vec![0; 3 * BLOCK.len()])?;
        let beside = |what, path: &PathBuf| Beside { what, path: path.clone(), index: 1, calls: 40, endless: false };
        assert!(beside(What::Write, &file).turn().is_ok());
        assert_eq!(fs::read(&file)?, [7; 3 * BLOCK.len()]);
        assert!(beside(What::Names, &directory).turn().is_ok());
        assert_eq!(fs::read_dir(&directory)?.count(), 1);
        fs::remove_dir_all(directory)
    }
}
