//! fio as a writer whose blocks say which pass wrote them, and as its own judge.
//!
//! A pass overwrites every block of the file once, in random order, and ends with fsync; every
//! other one through a mapping and msync. Blocks carry fio's header and checksum and are filled
//! with the number of the pass. After a cut every block is of the last acknowledged pass or of the
//! one after it; at most the one block that was being written may be torn, where no journal makes
//! writes atomic, or none went through write().

use super::{
    members::Members,
    programs::{HOME, Program},
};
use crate::{Outcome, about, array::PREFIX};
use std::{fs::File, io::Read as _};

/// A few seconds of a pass: more than fio takes to begin one, so that cuts fall into it.
const FILE_KIB: usize = 4096;
const BLOCK_BYTES: usize = 4096;
/// Behind fio's header.
const TAG_AT: usize = 1024;
/// In every pattern, so that no other content is taken for one.
const TAG: u32 = 0xab00_0000;

fn job(members: &Members) -> Program {
    let words = format!("--name=v --size={FILE_KIB}k --bs={BLOCK_BYTES} --verify=crc32c --thread");
    Program::inside("fio", members).words(&words).arg(format!("--filename={PREFIX}/fio"))
}

const fn is_mapped(number: u64) -> bool {
    number % 2 == 1
}

/// How many blocks may be torn if this pass is cut short.
pub(super) fn torn_max(members: &Members, number: u64) -> usize {
    usize::from(is_mapped(number) || !members.array.journal)
}

/// One pass over the whole file.
pub(super) fn pass(members: &Members, number: u64) -> Outcome {
    let words = format!(
        "--rw=randwrite --ioengine={} --do_verify=0 --end_fsync=1 --randseed={number} --verify_pattern={:#010x} --minimal",
        if is_mapped(number) { "mmap" } else { "psync" },
        u64::from(TAG) + number
    );
    job(members).words(&words).done()
}

/// Blocks that fio's own check refuses, and the lowest and highest pass of the others.
pub(super) fn verify(members: &Members) -> Outcome<(usize, u64, u64)> {
    let copy = format!("{HOME}/fio");
    Program::inside("cp", members).words(&format!("{PREFIX}/fio {copy}")).done()?;
    let report =
        job(members).words("--rw=read --ioengine=psync --continue_on_error=verify --output-format=json").text_of_any_end()?;
    let refused = report.lines().filter(|line| line.contains("verify:") || line.contains("verify failed")).count();
    let errors = number_after(&report, "\"total_err\" :").unwrap_or(0);
    let mut bytes = Vec::new();
    File::open(&copy).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(about(copy))?;
    if bytes.len() != FILE_KIB << 10 {
        return Err(format!("fio's file has {} bytes instead of {} KiB", bytes.len(), FILE_KIB));
    }
    if refused == 0 && !report.contains("\"jobs\"") {
        return Err(format!("fio did not verify: {report}"));
    }
    let tags = bytes.chunks_exact(BLOCK_BYTES).map(|block| u32::from_be_bytes(std::array::from_fn(|at| block[TAG_AT + at])));
    let passes: Vec<u64> = tags.map(|tag| u64::from(tag.wrapping_sub(TAG))).collect();
    let (low, high) = (passes.iter().min().copied().unwrap_or(0), passes.iter().max().copied().unwrap_or(0));
    Ok((refused.max(usize::try_from(errors).unwrap_or(usize::MAX)), low, high))
}

fn number_after(text: &str, key: &str) -> Option<u64> {
    let rest = text.split_once(key)?.1.trim_start();
    rest[..rest.find(|letter: char| !letter.is_ascii_digit())?].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_a_report() {
        assert_eq!(number_after("x\n  \"total_err\" : 12,\n", "\"total_err\" :"), Some(12));
        assert_eq!(number_after("x", "\"total_err\" :"), None);
    }
}
