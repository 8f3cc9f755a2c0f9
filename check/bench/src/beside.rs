//! Writes of a program while the command rebuilds another file of the array.
//!
//! A member has all names, and the bytes of files wait. The program opens its own file, which has
//! the bytes of that file computed, writes to it for a while alone, then asks for the command, and
//! writes until the command has ended: all of its time counts, also its start and its end.

use crate::levels::{self, FILE};
use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, Plan, SMALL_BYTES};
use crate::report::{Check, Row};
use crate::rounds::Times;
use crate::subject::{Buffer, Subject};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The program's file.
const WRITTEN: &str = "written";

/// The times that writes took. All fields are in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Writes {
    mean: f64,
    /// The 99th percentile.
    slow: f64,
}

impl Writes {
    /// Of times in nanoseconds, at least one.
    fn of(mut times: Vec<u32>) -> Self {
        let mean = times.iter().map(|&time| f64::from(time)).sum::<f64>() / times.len() as f64;
        times.sort_unstable();
        Self { mean, slow: f64::from(times[(times.len() - 1) * 99 / 100]) }
    }
}

/// Writes without and during a rebuild.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Round {
    alone: Writes,
    during: Writes,
}

/// The benchmark looks so often whether the writer asks for the rebuild.
const PERIOD: Duration = Duration::from_millis(1);

/// Files by which the program that writes and the one that rebuilds tell each other how far they
/// are. The writer does not start the command itself: what the library serves passes the library
/// on, and no command works on an array beside it.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Marks {
    begin: PathBuf,
    ended: PathBuf,
}

impl Marks {
    /// The files in a directory. Those of an earlier round are removed.
    pub(crate) fn new(directory: &Path) -> Self {
        let [begin, ended] = ["begin", "ended"].map(|name| directory.join(name));
        let _ = fs::remove_file(&begin);
        let _ = fs::remove_file(&ended);
        Self { begin, ended }
    }

    /// Rebuilds when the writer asks for it. Returns without that when the writer is gone.
    pub(crate) fn rebuild(&self, mut rebuild: Command, is_gone: &AtomicBool) -> io::Result<()> {
        while !self.begin.exists() {
            if is_gone.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(PERIOD);
        }
        let output = rebuild.stdin(Stdio::null()).output()?;
        fs::write(&self.ended, "")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("cxlraid rebuild: {said}"))) }
    }
}

/// One round, in a process with the library loaded.
pub(crate) fn measure(plan: &Plan, array: &ArrayPlace, marks: &Marks) -> io::Result<Round> {
    assert_ne!(WRITTEN, FILE, "the command computes the other file");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(array.file(WRITTEN))?;
    levels::fill(&file, plan.shared_bytes);
    let mut writer = Writer {
        file,
        places: Places::new(Order::Random, plan.shared_bytes, SMALL_BYTES, 0, 1),
        buffer: Buffer::of(&levels::content(SMALL_BYTES)),
        calls: plan.small_calls,
    };
    let mut left = plan.rounds;
    let alone = writer.write_while(|| {
        left -= 1;
        Ok(left > 0)
    })?;
    fs::write(&marks.begin, "")?;
    let during = writer.write_while(|| Ok(!marks.ended.exists()))?;
    Ok(Round { alone, during })
}

struct Writer {
    file: File,
    places: Places,
    buffer: Buffer,
    calls: usize,
}

impl Writer {
    /// Writes a batch, and further ones while `goes_on`.
    fn write_while(&mut self, mut goes_on: impl FnMut() -> io::Result<bool>) -> io::Result<Writes> {
        let (mut times, mut offsets) = (Vec::new(), Vec::new());
        loop {
            self.places.fill(&mut offsets, self.calls);
            for &offset in &offsets {
                let begun = Instant::now();
                self.file.write(offset, &self.buffer);
                times.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
            }
            if !goes_on()? {
                return Ok(Writes::of(times));
            }
        }
    }
}

/// The row of all rounds.
pub(crate) fn row(rounds: &[Round]) -> Row {
    let times = |time: fn(&Writes) -> f64| {
        let of = |writes: fn(&Round) -> Writes| rounds.iter().map(|round| time(&writes(round))).collect();
        Times::new(vec![of(|round| round.during), of(|round| round.alone)])
    };
    let (means, slow) = (times(|writes| writes.mean), times(|writes| writes.slow));
    Row {
        ours_ns: Some(means.nanoseconds(0)),
        limit_ns: Some(means.nanoseconds(1)),
        limit_ratio: Some(means.ratio(0, 1)),
        rounds: means.named(&[("during a rebuild", 0), ("alone", 1)]),
        checks: vec![
            Check::at_least("of the rate without", means.ratio(1, 0), 0.75),
            Check::at_most("of the 99th percentile without", slow.ratio(0, 1), 3.0),
        ],
        ..Row::new(format!("write {} KiB random, a rebuild beside it", SMALL_BYTES >> 10))
    }
}
