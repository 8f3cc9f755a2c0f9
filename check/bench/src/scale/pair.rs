//! An array and an ordinary directory of the same tmpfs, workers and commands on them, and crashes
//! of the array.

use super::Job;
use super::axis::{Bench, Measure, On, Record, flat};
use crate::library::{said, worker};
use crate::members::{Scratch, forget_segments};
use crate::plan::{ArrayPlace, Task};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The program that runs for [`Job::Idle`]: it says what it is told, and waits.
const IDLE: &str = "/bin/cat";
/// Nanoseconds in the unit of a measure.
pub(crate) const US: f64 = 1e3;
pub(crate) const NS_PER_MS: f64 = 1e6;
/// What is counted has no unit.
pub(crate) const COUNT: f64 = 1.0;

/// What every axis measures beside its own.
pub(crate) const ATTACH: Measure = flat("attach", "a start of /bin/true, ms; the array is in use");
pub(crate) const START: Measure = flat("start", "the first start after a stop, ms");
pub(crate) const STATUS: Measure = flat("status", "cxlraid status, ms; the array is in use");
pub(crate) const STOP: Measure = flat("stop", "cxlraid stop, ms");
pub(crate) const RECOVER: Measure = flat("recover", "the first start after a crash, with a write to a file that was written, ms");

/// The array, the ordinary directory, and where both lie.
pub(crate) struct Ground {
    /// The value of CXLRAID_STRIPE_SIZE, if it is not the default.
    pub(crate) chunk: Option<String>,
    pub(crate) array: ArrayPlace,
    plain: PathBuf,
    scratch: Scratch,
}

impl Ground {
    /// An array of so many members that no program uses yet.
    pub(crate) fn new(name: &str, level: &str, count: usize) -> Result<Self, String> {
        let scratch = Scratch::wide(&format!("scale-{name}")).map_err(|error| format!("a directory for the members: {error}"))?;
        let array = scratch.array(level, count).map_err(said)?;
        let plain = scratch.path().join("plain");
        std::fs::create_dir(&plain).map_err(said)?;
        Ok(Self { chunk: None, array, plain, scratch })
    }

    /// The directory in which files are made.
    pub(crate) fn directory(&self, on: On) -> PathBuf {
        match on {
            On::Array => self.array.prefix.clone(),
            On::Plain => self.plain.clone(),
        }
    }

    /// A command with the array in its environment; on the array with the library, too.
    fn command(&self, bench: &Bench, on: On, command: Command) -> Command {
        let mut command = bench.library.preloaded(command, &self.array, self.scratch.path());
        if let Some(chunk) = &self.chunk {
            command.env("CXLRAID_STRIPE_SIZE", chunk);
        }
        if on == On::Plain {
            command.env_remove("LD_PRELOAD");
        }
        // Logs of events must not be kept.
        command.env("XDG_STATE_HOME", self.scratch.path()).env("XDG_CONFIG_HOME", self.scratch.path());
        command
    }

    fn worker(&self, bench: &Bench, on: On, job: Job, waits: bool) -> Result<Command, String> {
        Ok(self.command(bench, on, worker(&Task::Scale { job, waits })?))
    }

    /// Does a job in a process of its own. Returns what it measured.
    pub(crate) fn run(&self, bench: &Bench, on: On, job: Job) -> Result<Vec<f64>, String> {
        crate::library::result(self.worker(bench, on, job, false)?)
    }

    /// Runs a program to its end; nanoseconds.
    fn time(&self, bench: &Bench, on: On, program: Command) -> Result<f64, String> {
        let name = program.get_program().to_string_lossy().into_owned();
        let mut command = self.command(bench, on, program);
        command.stdin(Stdio::null());
        let begun = Instant::now();
        let output = command.output().map_err(|error| format!("{name}: {error}"))?;
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        if output.status.success() {
            return Ok(nanoseconds);
        }
        Err(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    /// Runs a program to its end; milliseconds.
    pub(crate) fn time_ms(&self, bench: &Bench, on: On, program: &str, arguments: &[&str]) -> Result<f64, String> {
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(self.time(bench, on, command)? / NS_PER_MS)
    }

    /// Runs the operator's command; milliseconds.
    pub(crate) fn operator_ms(&self, bench: &Bench, verb: &str) -> Result<f64, String> {
        let mut command = Command::new(bench.library.command());
        command.arg(verb);
        Ok(self.time(bench, On::Plain, command)? / NS_PER_MS)
    }

    /// Kills the processes that use the array, and measures how long the first one after them takes
    /// to do `job`; milliseconds.
    pub(crate) fn fall(&self, bench: &Bench, record: &mut Record, fall: Fall, crew: Crew, job: Job) -> Result<(), String> {
        let (measure, on, is_crash) = match fall {
            Fall::Deaths(on) => ("deaths", on, false),
            Fall::Crash(on) => ("recover", on, true),
        };
        crew.kill()?;
        if is_crash && on == On::Array {
            forget_segments(self.scratch.path());
        }
        let begun = Instant::now();
        self.run(bench, on, job).map_err(|why| format!("{measure}: {why}"))?;
        record.add(measure, on, begun.elapsed().as_nanos() as f64 / NS_PER_MS);
        Ok(())
    }

    /// Attaches and asks for the status while a process has the array in use, by turns with the
    /// ordinary directory.
    pub(crate) fn attend(&self, bench: &Bench, record: &mut Record) -> Result<(), String> {
        for round in 0..bench.rounds {
            if record.wants("attach") {
                for on in On::turns(round) {
                    record.add("attach", on, self.time_ms(bench, on, "/bin/true", &[])?);
                }
            }
            if record.wants("status") {
                record.add("status", On::Array, self.operator_ms(bench, "status")?);
            }
        }
        Ok(())
    }

    /// The life of an array that has all files in place: attached to, asked, stopped, started,
    /// crashed and recovered. `write` is a job that writes to one of the files, and goes on until it
    /// is killed if it is to wait; afterwards it is run once more.
    pub(crate) fn live(&self, bench: &Bench, record: &mut Record, write: &dyn Fn(On) -> Job) -> Result<(), String> {
        if !record.wants_any(&["attach", "status", "stop", "start", "recover"]) {
            return Ok(());
        }
        let crew = Crew::start(bench, self, On::Array, 1, |_| Job::Idle)?;
        self.attend(bench, record)?;
        crew.end()?;
        for round in 0..bench.rounds {
            if record.wants_any(&["stop", "start"]) {
                record.add("stop", On::Array, self.operator_ms(bench, "stop")?);
                for on in On::turns(round) {
                    record.add("start", on, self.time_ms(bench, on, "/bin/true", &[])?);
                }
            }
            if record.wants("recover") {
                for on in On::turns(round) {
                    let crew = Crew::start(bench, self, on, 1, |_| write(on))?;
                    self.fall(bench, record, Fall::Crash(on), crew, write(on))?;
                }
            }
        }
        Ok(())
    }

    /// Does a job on both sides by turns, as often as there are rounds, and records what it
    /// measured: for each measure the value at its place in the result, divided by its unit.
    pub(crate) fn compare(
        &self,
        bench: &Bench,
        record: &mut Record,
        measures: &[(&'static str, f64)],
        mut job: impl FnMut(On, usize) -> Job,
    ) -> Result<(), String> {
        if !measures.iter().any(|(measure, _)| record.wants(measure)) {
            return Ok(());
        }
        for round in 0..bench.rounds {
            for on in On::turns(round) {
                let found = self.run(bench, on, job(on, round)).map_err(|why| format!("{on:?}, {}: {why}", measures[0].0))?;
                for ((measure, unit), value) in measures.iter().zip(found) {
                    record.add(measure, on, value / unit);
                }
            }
        }
        Ok(())
    }
}

/// How processes end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fall {
    /// They are killed.
    Deaths(On),
    /// The machine crashes: they are killed, and the shared memory is gone.
    Crash(On),
}

/// Processes that get ready, wait, work together, and end or are killed.
pub(crate) struct Crew(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Crew {
    /// Starts so many processes, one after the other, and waits until each is ready.
    pub(crate) fn start(
        bench: &Bench,
        ground: &Ground,
        on: On,
        count: usize,
        job: impl Fn(usize) -> Job,
    ) -> Result<Self, String> {
        let mut crew = Self(Vec::with_capacity(count));
        crew.grow(bench, ground, on, count, job)?;
        Ok(crew)
    }

    /// Starts so many more.
    pub(crate) fn grow(
        &mut self,
        bench: &Bench,
        ground: &Ground,
        on: On,
        count: usize,
        job: impl Fn(usize) -> Job,
    ) -> Result<(), String> {
        for index in 0..count {
            let job = job(index);
            // A program that does nothing is a small one.
            let is_idle = matches!(job, Job::Idle);
            let mut command =
                if is_idle { ground.command(bench, on, Command::new(IDLE)) } else { ground.worker(bench, on, job, true)? };
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(said)?;
            let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes to a process")?;
            self.0.push((child, stdin, BufReader::new(stdout)));
            if let Some((_, stdin, stdout)) = self.0.last_mut() {
                if is_idle {
                    stdin.write_all(b"ready\n").map_err(said)?;
                }
                line(stdout)?;
            }
        }
        Ok(())
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(child, ..)| child.id())
    }

    /// Has all of them work at once; none may be idle. Returns what each measured, and the
    /// nanoseconds from the first one's begin to the last one's end: each result begins with when it
    /// began and ended, by a clock that all processes share.
    pub(crate) fn work(mut self) -> Result<(f64, Vec<Vec<f64>>), String> {
        for (_, stdin, _) in &mut self.0 {
            stdin.write_all(b"go\n").map_err(said)?;
        }
        let mut found = Vec::new();
        for (_, _, stdout) in &mut self.0 {
            let text = line(stdout)?;
            found
                .push(serde_json::from_str::<Vec<f64>>(&text).map_err(|error| format!("a worker said something else: {error}"))?);
        }
        self.end()?;
        let began = found.iter().filter_map(|result| result.first()).fold(f64::INFINITY, |least, time| least.min(*time));
        let ended = found.iter().filter_map(|result| result.get(1)).fold(0.0, |most: f64, time| most.max(*time));
        Ok((ended - began, found))
    }

    /// Lets all of them end in order.
    pub(crate) fn end(mut self) -> Result<(), String> {
        for (mut child, stdin, stdout) in self.0.drain(..) {
            drop(stdin);
            let status = child.wait().map_err(said)?;
            drop(stdout);
            if !status.success() {
                return Err(format!("a worker failed: {status}"));
            }
        }
        Ok(())
    }

    /// Kills all of them.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        self.0.iter_mut().try_for_each(|(child, ..)| child.kill()).map_err(said)?;
        self.0.drain(..).try_for_each(|(mut child, ..)| child.wait().map(|_| ())).map_err(said)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (child, ..) in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A line that a worker says.
fn line(stdout: &mut BufReader<ChildStdout>) -> Result<String, String> {
    let mut text = String::new();
    match stdout.read_line(&mut text).map_err(said)? {
        0 => Err("a worker ended early; what it said is above".to_owned()),
        _ => Ok(text),
    }
}
