//! A maildir used by several processes. Deliverers create a message, fsync it, and link or rename it
//! into place; readers move each message, read it, and remove two of three. No message is lost or
//! doubled. In each round but the first, three of the five processes are killed; each of these may
//! have done one thing more than it acknowledged.

use super::Scene;
use crate::{Outcome, audit, process::Process};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The program that the processes run; its first lines say what it does.
const WORKER: &str = include_str!("maildir.py");

const DELIVERERS: usize = 3;
const READERS: usize = 2;

/// What workers have acknowledged, by their logs on the host.
#[derive(Default)]
struct Tally {
    delivered: BTreeSet<String>,
    consumed: BTreeMap<String, usize>,
}

impl Tally {
    fn of(logs: &[PathBuf]) -> Outcome<Self> {
        let mut tally = Self::default();
        for log in logs {
            // A worker that was killed at once has acknowledged nothing.
            let text = fs::read_to_string(log).unwrap_or_default();
            // A line that a kill cut short was not acknowledged.
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                match line.trim_end().split_once(' ') {
                    Some(("delivered", id)) => drop(tally.delivered.insert(id.to_owned())),
                    Some(("consumed", id)) => *tally.consumed.entry(id.to_owned()).or_default() += 1,
                    _ => return Err(format!("a worker says {line:?}")),
                }
            }
        }
        Ok(tally)
    }

    /// Compares what was acknowledged with the messages that remain. `killed` workers were killed,
    /// and each of these may have done one thing more than it acknowledged.
    fn check(&self, remaining: &BTreeSet<String>, killed: usize) -> Outcome {
        if let Some((id, count)) = self.consumed.iter().find(|(_, count)| **count > 1) {
            return Err(format!("message {id} was consumed {count} times"));
        }
        if let Some(id) = remaining.iter().find(|id| self.consumed.contains_key(*id)) {
            return Err(format!("message {id} was consumed and is still there"));
        }
        let known = |id: &String| remaining.contains(id) || self.consumed.contains_key(id);
        let lost: Vec<&String> = self.delivered.iter().filter(|id| !known(id)).collect();
        let unexpected = remaining.iter().chain(self.consumed.keys()).filter(|id| !self.delivered.contains(*id)).count();
        if lost.len() > killed || unexpected > killed {
            return Err(format!("{} messages lost ({lost:?}), {unexpected} not announced, {killed} workers killed", lost.len()));
        }
        Ok(())
    }
}

/// Returns the messages in new and cur. It is an error if one is there twice.
fn remaining(scene: &Scene<'_>) -> Outcome<BTreeSet<String>> {
    let listed =
        scene.array.inside("find").arg(&scene.array.data).words("-path */tmp/* -prune -o -type f -printf %f:%s\\n").text()?;
    let mut ids = BTreeSet::new();
    for line in listed.lines() {
        let id = line.split(':').next().unwrap_or_default();
        if !ids.insert(id.to_owned()) {
            return Err(format!("message {id} is there twice"));
        }
    }
    Ok(ids)
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let script = array.work.join("maildir.py");
    fs::write(&script, WORKER).map_err(|error| error.to_string())?;
    let mut logs = Vec::new();
    let (mut killed, mut messages) = (0, 0);
    for number in 0..=scene.rounds {
        let mut workers = Vec::new();
        for worker in 0..DELIVERERS + READERS {
            let role = if worker < DELIVERERS { "deliver" } else { "read" };
            let log = array.work.join(format!("{role}.{number}.{worker}"));
            let run = array.inside("python3").arg(&script).arg(role).arg(&array.data).arg(&log);
            workers.push(run.arg(format!("{number}.{worker}")).arg(scene.sized("250", "1500")).start()?);
            logs.push(log);
        }
        if number > 0 {
            await_work(&logs[logs.len() - workers.len()..][..DELIVERERS])?;
            std::thread::sleep(scene.load_time(number) / 2);
            for worker in [0, 1, DELIVERERS] {
                killed += workers[worker].kill()?;
            }
        }
        finish(&array.work.join("stop"), workers)?;
        let tally = Tally::of(&logs)?;
        tally.check(&remaining(scene)?, killed).map_err(|message| format!("round {number}: {message}"))?;
        messages = tally.delivered.len();
        audit::audit(array).map_err(|message| format!("round {number}: {message}"))?;
    }
    Ok(format!("{messages} messages, {killed} of {} processes killed", logs.len()))
}

/// Waits until each of the deliverers has delivered something, by their logs.
fn await_work(logs: &[PathBuf]) -> Outcome {
    let begun = Instant::now();
    while !logs.iter().all(|log| fs::metadata(log).is_ok_and(|metadata| metadata.len() > 0)) {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("nothing is delivered for 60 s".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits for all workers, the deliverers first. These end by themselves; then a file named `stop`
/// tells the readers that no more messages will come.
fn finish(stop: &std::path::Path, mut workers: Vec<Process<'_>>) -> Outcome {
    for (number, worker) in workers.iter_mut().enumerate() {
        if number == DELIVERERS {
            fs::write(stop, "").map_err(|error| error.to_string())?;
        }
        match worker.wait(Duration::from_secs(120))? {
            Some(status) if status.success() || status.code().is_none() => {}
            Some(status) => return Err(format!("worker {number}: {status}\n{}", worker.tail())),
            None => return Err(format!("worker {number} does not end\n{}", worker.tail())),
        }
    }
    fs::remove_file(stop).map_err(|error| error.to_string())
}
