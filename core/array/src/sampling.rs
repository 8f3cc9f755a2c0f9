//! Which calls are timed: one of about [`GAP`], and not always at the same distance, since a program
//! may do the same every so many calls.
//!
//! Chance is taken from the processor's clock. Its low bits may be the same at each reading, since a
//! clock may count in steps of two or more: gaps made of them would all be odd, and a program that
//! reads and writes by turns would be timed where it reads and never where it writes.

/// About how many calls a thread does from one that is timed to the next.
pub const GAP: u32 = 256;

/// Returns a number each bit of which follows from every bit of `ticks` (the finalizer of SplitMix64:
/// Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
#[must_use]
pub const fn mixed(ticks: u64) -> u32 {
    let word = (ticks ^ ticks >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) as u32
}

/// Returns how many calls are not timed after one that begins at `ticks` of the processor's clock.
#[must_use]
pub const fn gap(ticks: u64) -> u32 {
    GAP / 2 + mixed(ticks) % GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_some_turns_is_timed_by_a_clock_of_coarse_steps_too() {
        for (step, turns) in (0..12).flat_map(|bits| [2, 3, 4, 7].map(|turns| (1_u64 << bits, turns))) {
            for remainder in 0..step.min(4) {
                let (mut now, mut turn, mut timed, mut sixteenth) = (remainder, 0, vec![0_u64; turns], 0);
                let count = 400 * turns as u64;
                for _ in 0..count {
                    let gap = gap(now);
                    assert!((GAP / 2..GAP / 2 + GAP).contains(&gap));
                    turn = (turn + gap as usize + 1) % turns;
                    timed[turn] += 1;
                    sixteenth += u64::from((mixed(now) >> 8).is_multiple_of(16));
                    now += u64::from(gap + 1) * 700 / step * step;
                }
                let is_near = |found: u64, expected: u64| found >= expected / 2 && found <= expected * 2;
                let what = format!("steps of {step} after {remainder}");
                assert!(timed.iter().all(|&found| is_near(found, 400)), "{what}: {timed:?}");
                assert!(is_near(sixteenth, count / 16), "{what}: {sixteenth} of {count}");
            }
        }
    }
}
