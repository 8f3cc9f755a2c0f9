//! Repair: what reads cost with a member out, and how fast the command scrubs and rebuilds an array
//! that nobody uses.
//!
//! A scrub and a rebuild are held against a bare loop over the same memory, which maps the members'
//! files as the command has to, and looks at every word once. The loop of a rebuild fills a new
//! file of the same file system. The command is timed from its start to its end.

use crate::levels::FILE;
use crate::library::{Library, said};
use crate::members::Mapped;
use crate::plan::{ArrayPlace, Plan, SMALL_BYTES};
use crate::report::{Check, Row};
use crate::rounds::Times;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The member that is lost and rebuilt.
pub(crate) const LOST: usize = 1;
/// The loop that sums up takes this many words of each member at a time: enough for the compiler to
/// use wide registers.
const WORDS: usize = 512;

/// An array of which the command makes repairs, and the command.
pub(crate) struct Repaired<'a> {
    pub(crate) library: &'a Library,
    pub(crate) array: &'a ArrayPlace,
    /// A directory of the same file system.
    pub(crate) scratch: &'a Path,
}

impl Repaired<'_> {
    /// The rows of a scrub and of a rebuild. The array's file is filled, and nobody has it open.
    pub(crate) fn rows(&self, plan: &Plan) -> Result<Vec<Row>, String> {
        let scrub = self.row("scrub", plan.repair_rounds, || self.command("scrub"), || self.sum())?;
        let rebuild = || {
            self.lose()?;
            self.command("rebuild")
        };
        let rebuild = self.row("rebuild", plan.repair_rounds, rebuild, || self.compute())?;
        Ok(vec![scrub, rebuild])
    }

    /// Empties a member.
    pub(crate) fn lose(&self) -> Result<(), String> {
        let member = &self.array.members[LOST];
        fs::remove_dir_all(member).and_then(|()| fs::create_dir(member)).map_err(said)
    }

    /// The command and the loop by turns.
    fn row(
        &self,
        what: &str,
        rounds: usize,
        mut command: impl FnMut() -> Result<f64, String>,
        mut bare: impl FnMut() -> Result<f64, String>,
    ) -> Result<Row, String> {
        let (mut ours, mut limit) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(command()?);
            limit.push(bare()?);
        }
        let times = Times::new(vec![ours, limit]);
        Ok(Row {
            ours_ns: Some(times.nanoseconds(0)),
            limit_ns: Some(times.nanoseconds(1)),
            limit_ratio: Some(times.ratio(0, 1)),
            rounds: times.named(&[("cxlraid", 0), ("bare loop", 1)]),
            checks: vec![Check::at_least("of the bare loop's rate", times.ratio(1, 0), 0.7)],
            ..Row::new(format!("{what} RAID 5 x 3, at rest"))
        })
    }

    /// The operator's command for the array.
    pub(crate) fn operator(&self, verb: &str) -> Command {
        let mut command = Command::new(self.library.command());
        command.arg(verb);
        let mut command = self.library.preloaded(command, self.array, self.scratch);
        command.env_remove("LD_PRELOAD");
        command
    }

    /// Runs the command to its end; nanoseconds.
    fn command(&self, verb: &str) -> Result<f64, String> {
        let mut command = self.operator(verb);
        let begun = Instant::now();
        let output = command.output().map_err(|error| format!("{}: {error}", self.library.command().display()))?;
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        if output.status.success() {
            return Ok(nanoseconds);
        }
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Err(format!("cxlraid {verb}: {}\n{said}", output.status))
    }

    fn backing(&self, slot: usize) -> PathBuf {
        self.array.backing(slot, FILE)
    }

    /// A member's file, mapped anew, with no page in place.
    fn mapped(&self, slot: usize) -> Result<Mapped, String> {
        let path = self.backing(slot);
        let bytes = fs::metadata(&path).map_err(said)?.len();
        Mapped::untouched(&path, bytes).map_err(said)
    }

    /// Sums up all three members, as a scrub must at least; nanoseconds. The sum of a stripe is 0.
    pub(crate) fn sum(&self) -> Result<f64, String> {
        let begun = Instant::now();
        let members = [self.mapped(0)?, self.mapped(1)?, self.mapped(2)?];
        let [a, b, c] = members.each_ref().map(|member| member.words().chunks(WORDS));
        let differing = a.zip(b).zip(c).map(|((a, b), c)| {
            let sums = a.iter().zip(b).zip(c).map(|((a, b), c)| a ^ b ^ c);
            sums.fold(0, |all, sum| all | sum)
        });
        let all = differing.fold(0, |all, sum| all | sum);
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        if all == 0 { Ok(nanoseconds) } else { Err("the array's redundancy does not fit".to_owned()) }
    }

    /// Computes a member from the two others into a new file, as a rebuild must at least;
    /// nanoseconds.
    fn compute(&self) -> Result<f64, String> {
        let path = self.scratch.join("computed");
        let begun = Instant::now();
        let (one, other) = (self.mapped(0)?, self.mapped(2)?);
        let bytes = size_of_val(one.words()) as u64;
        File::create(&path).and_then(|file| file.set_len(bytes)).map_err(said)?;
        let computed = Mapped::untouched(&path, bytes).map_err(said)?;
        for (at, (one, other)) in one.words().iter().zip(other.words()).enumerate() {
            // SAFETY: the mapping is as long as both others, and nobody else uses it.
            unsafe { computed.at(0).cast::<u64>().add(at).write(one ^ other) };
        }
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        drop(computed);
        fs::remove_file(&path).map_err(said)?;
        Ok(nanoseconds)
    }
}

/// Reads of 4 KiB at random with a member out, from pairs of processes (degraded, healthy);
/// nanoseconds.
pub(crate) fn degraded_reads(pairs: Vec<(f64, f64)>) -> Row {
    let (degraded, healthy) = pairs.into_iter().unzip();
    let times = Times::new(vec![degraded, healthy]);
    Row {
        ours_ns: Some(times.nanoseconds(0)),
        limit_ns: Some(times.nanoseconds(1)),
        limit_ratio: Some(times.ratio(0, 1)),
        rounds: times.named(&[("one member out", 0), ("all members in", 1)]),
        checks: vec![Check::at_most("of all members in", times.ratio(0, 1), 2.2)],
        ..Row::new(format!("read {} KiB random RAID 5 x 3, one out", SMALL_BYTES >> 10))
    }
}
