//! Appending 4 KiB at a time on a tmpfs with huge pages: times against the kernel's pwrite, and
//! system calls per append.

use crate::plan::{Plan, SMALL_BYTES};
use crate::report::{Check, Row};
use crate::rounds::Times;
use crate::strace::system_calls;
use crate::subject::Subject;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The row's name.
pub(crate) const CASE: &str = "append 4 KiB, huge pages, RAID 5 x 3";

/// Appends of ours and of the kernel's, by turns, from an empty file on in each round.
pub(crate) fn row(plan: &Plan, subject: &impl Subject, kernel: &impl Subject) -> Row {
    let block = vec![0xa5u8; SMALL_BYTES];
    let (mut ours, mut kernels) = (Vec::new(), Vec::new());
    for round in 0..=plan.append_rounds {
        let a = append(subject, &block, plan.append_bytes);
        let b = append(kernel, &block, plan.append_bytes);
        if round > 0 {
            ours.push(a);
            kernels.push(b);
        }
    }
    let mut back = vec![0; SMALL_BYTES];
    subject.read(plan.append_bytes - SMALL_BYTES as u64, &mut back);
    assert!(back == block, "what was appended is read back");
    let times = Times::new(vec![ours, kernels]);
    let ratio = times.ratio(1, 0);
    Row {
        ours_ns: Some(times.nanoseconds(0)),
        kernel_ns: Some(times.nanoseconds(1)),
        kernel_ratio: Some(ratio),
        checks: vec![Check::at_least("times faster than one pwrite append", ratio, 1.5)],
        ..Row::new(CASE)
    }
}

/// Nanoseconds per append, the file empty at first.
fn append(subject: &impl Subject, block: &[u8], bytes: u64) -> f64 {
    subject.cut(0);
    let begun = Instant::now();
    for offset in (0..bytes).step_by(block.len()) {
        subject.write(offset, block);
    }
    begun.elapsed().as_nanos() as f64 * block.len() as f64 / bytes as f64
}

/// What a worker does whose system calls are counted.
pub(crate) fn appends(path: &Path, count: usize) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("open for appending");
    let block = vec![0x5au8; SMALL_BYTES];
    for _ in 0..count {
        file.write_all(&block).expect("append");
    }
}

/// System calls per append: those of a run with many appends less those of one with few. `worker`
/// makes the command for so many.
pub(crate) fn system_calls_per_append(few: usize, many: usize, worker: impl Fn(usize) -> Command) -> Result<f64, String> {
    let count = |appends| system_calls(&worker(appends));
    let (few_calls, many_calls) = (count(few)?, count(many)?);
    Ok((many_calls as f64 - few_calls as f64) / (many - few) as f64)
}
