//! What regions and records look like, so that a reader knows from the bytes alone who wrote them
//! and whether they are whole.

use super::board::{Board, REGION_COUNT};
use oracle::Rng;
use std::sync::atomic::Ordering;

/// Bytes of a record before its pattern: magic, writer, number, length.
pub(super) const HEADER_BYTES: usize = 24;
const MAGIC: u32 = 0x7265_6364;

/// Where the regions lie: one after the other, of odd lengths, so that they share stripes.
pub(super) struct Regions {
    starts: Vec<u64>,
}

impl Regions {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut starts = vec![rng.below(5000)];
        for region in 0..REGION_COUNT {
            let bytes = match region % 4 {
                0 => 1 + rng.below(100),
                1 => 100 + rng.below(5_000),
                2 => 4096,
                _ => 5_000 + rng.below(90_000),
            };
            starts.push(starts[region] + bytes);
        }
        Self { starts }
    }

    pub(super) fn start(&self, region: usize) -> u64 {
        self.starts[region]
    }

    pub(super) fn bytes(&self, region: usize) -> usize {
        (self.starts[region + 1] - self.starts[region]) as usize
    }

    pub(super) fn end(&self) -> u64 {
        self.starts[REGION_COUNT]
    }

    /// The bytes of a region that bears `stamp`.
    pub(super) fn pattern(&self, region: usize, stamp: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes(region)];
        if !is_hole(stamp) {
            fill(&mut bytes, (region as u64) << 48 | stamp);
        }
        bytes
    }

    /// Whether `got`, read after `committed` was loaded and before `announced` was, may be in the
    /// region.
    pub(super) fn check(&self, region: usize, got: &[u8], committed: u64, announced: u64, torn: bool) -> Result<(), String> {
        let candidates: Vec<Vec<u8>> = (committed..=announced).map(|stamp| self.pattern(region, stamp)).collect();
        let fits = if torn {
            got.iter().enumerate().all(|(at, byte)| candidates.iter().any(|candidate| candidate[at] == *byte))
        } else {
            candidates.iter().any(|candidate| candidate == got)
        };
        if fits {
            return Ok(());
        }
        let difference = crate::expected::difference(&candidates[0], got);
        Err(format!("region {region} bears none of the stamps {committed} to {announced} (torn: {torn}): {difference}"))
    }

    /// Reads a region's state around `read`.
    pub(super) fn observe(
        &self,
        board: &Board,
        region: usize,
        read: impl FnOnce() -> Result<Vec<u8>, String>,
    ) -> Result<(), String> {
        let (progress, tears) = (&board.regions[region], board.tears(region));
        let committed = progress.committed.load(Ordering::Acquire);
        let got = read()?;
        let announced = progress.announced.load(Ordering::Acquire);
        // It may have been torn and made whole again meanwhile.
        let torn = board.is_torn(region) || board.tears(region) != tears;
        self.check(region, &got, committed, announced, torn)
    }
}

/// Every eighth stamp is a hole.
pub(super) fn is_hole(stamp: u64) -> bool {
    stamp % 8 == 7
}

fn fill(bytes: &mut [u8], first: u64) {
    let mut word = first;
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&(word | 1 << 63).to_le_bytes()[..piece.len()]);
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
}

/// The record of a writer with this number.
pub(super) fn record(writer: usize, number: u64, bytes: usize) -> Vec<u8> {
    let mut record = vec![0; HEADER_BYTES + bytes];
    fill(&mut record[HEADER_BYTES..], (writer as u64) << 40 ^ number);
    record[..4].copy_from_slice(&MAGIC.to_le_bytes());
    record[4..8].copy_from_slice(&(writer as u32).to_le_bytes());
    record[8..16].copy_from_slice(&number.to_le_bytes());
    record[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
    record
}

/// Counts the records of each writer in `log`; they must be whole, without gaps between them, and
/// in order for each writer.
pub(super) fn parse(log: &[u8]) -> Result<Vec<u64>, String> {
    let mut counts = vec![0; super::board::WRITER_COUNT];
    let mut at = 0;
    while at < log.len() {
        let rest = &log[at..];
        let wrong = |what: &str| Err(format!("record at {at} of {}: {what}: {:02x?}", log.len(), &rest[..rest.len().min(32)]));
        if rest.len() < HEADER_BYTES || rest[..4] != MAGIC.to_le_bytes() {
            return wrong("no header");
        }
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|byte| rest[from + byte]));
        let (writer, number, bytes) = ((word(0) >> 32) as usize, word(8), word(16) as usize);
        if writer >= counts.len() || bytes > rest.len() - HEADER_BYTES {
            return wrong("bad header");
        }
        counts[writer] += 1;
        if number != counts[writer] {
            return wrong("out of order");
        }
        if rest[..HEADER_BYTES + bytes] != record(writer, number, bytes) {
            return wrong("not whole");
        }
        at += HEADER_BYTES + bytes;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_and_damage_is_noticed() {
        let log = [record(3, 1, 10), record(4, 1, 0), record(3, 2, 100)].concat();
        let counts = parse(&log).unwrap();
        assert_eq!((counts[3], counts[4]), (2, 1));
        assert!(parse(&log[..log.len() - 1]).unwrap_err().contains("bad header"));
        let mut damaged = log.clone();
        damaged[HEADER_BYTES + 3] ^= 1;
        assert!(parse(&damaged).unwrap_err().contains("not whole"));
        assert!(parse(&[record(3, 2, 10)].concat()).unwrap_err().contains("out of order"));
    }

    #[test]
    fn a_region_bears_one_stamp_or_is_torn() {
        let regions = Regions::new(1);
        let (old, new) = (regions.pattern(3, 5), regions.pattern(3, 6));
        assert!(regions.check(3, &old, 5, 6, false).is_ok() && regions.check(3, &new, 5, 6, false).is_ok());
        let mixed = [&old[..100], &new[100..]].concat();
        assert!(regions.check(3, &mixed, 5, 6, false).is_err());
        assert!(regions.check(3, &mixed, 5, 6, true).is_ok());
        assert!(regions.check(3, &mixed, 5, 5, true).is_err());
        assert!(regions.pattern(3, 7).iter().all(|&byte| byte == 0));
    }
}
