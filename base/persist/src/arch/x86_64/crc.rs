//! The processor's own CRC-32C (SSE 4.2).

use super::cpuid;
use core::arch::x86_64::_mm_crc32_u64;

/// Tells whether the processor has the instruction.
#[inline]
pub(crate) fn has_crc() -> bool {
    cpuid::features() & cpuid::CRC != 0
}

/// The remainders of four lanes of `BYTES` each, side by side. The first begins with all ones, the
/// others with 0.
///
/// # Safety
/// The processor has the instruction. `src` is a multiple of 8 and valid for four lanes, or the
/// caller is inside a guard.
#[target_feature(enable = "sse4.2")]
pub(crate) unsafe fn crc_lanes<const BYTES: usize>(src: *const u8) -> [u32; 4] {
    let mut remainders = [u64::from(u32::MAX), 0, 0, 0];
    for at in (0..BYTES).step_by(8) {
        for (lane, remainder) in remainders.iter_mut().enumerate() {
            // SAFETY: within the lanes, and aligned.
            let word = unsafe { src.add(lane * BYTES + at).cast::<u64>().read_volatile() };
            *remainder = _mm_crc32_u64(*remainder, word);
        }
    }
    remainders.map(|remainder| remainder as u32)
}
