//! Writes of a program while the command rebuilds another file of the array.
//!
//! A member has all names, and the bytes of files wait. The program opens its own file, which has the bytes of that file
//! computed, writes to it for a while alone, then starts the command, and writes until the command has ended: all of its time
//! counts, also its start and its end.

use crate::levels::{self, FILE};
use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, Plan, SMALL_BYTES};
use crate::report::{Check, Row};
use crate::rounds::Times;
use crate::subject::{Buffer, Subject};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

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

/// One round, in a process with the library loaded.
pub(crate) fn measure(plan: &Plan, array: &ArrayPlace, command: &Path) -> io::Result<Round> {
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
    let mut rebuild = Command::new(command);
    rebuild.arg("rebuild").env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null());
    let mut rebuild = rebuild.spawn()?;
    let mut status = None;
    let during = writer.write_while(|| {
        status = rebuild.try_wait()?;
        Ok(status.is_none())
    })?;
    match status {
        Some(status) if status.success() => Ok(Round { alone, during }),
        _ => Err(io::Error::other("cxlraid rebuild failed")),
    }
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
        checks: vec![
            Check::at_least("of the rate without", means.ratio(1, 0), 0.75),
            Check::at_most("of the 99th percentile without", slow.ratio(0, 1), 3.0),
        ],
        ..Row::new(format!("write {} KiB random, a rebuild beside it", SMALL_BYTES >> 10))
    }
}
