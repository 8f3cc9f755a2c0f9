//! CRC-32C of lines in registers, by carry-less multiplication (VPCLMULQDQ), for AVX-512; and the
//! kernels that sum what they store.
//!
//! The method is that of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction" (Intel, 2009). A quarter of a line (128 bits) is a polynomial; what it leaves when
//! bytes follow is the sum of the products of its two halves with constants, which have 32 bits. So
//! a line is folded into one behind it by two multiplications.
//!
//! *The promise of this file:* every function is called only from functions that are compiled for
//! AVX-512 (F, BW, VL), GFNI, VPCLMULQDQ and SSE 4.2, which run only on processors that have them.

use super::avx512::{Gfni, Zmm};
use super::{Isa, cpuid};
use crate::blocks::{self, BlockTable, FOLD_LINES, Fold};
use crate::crc::POLYNOMIAL;
use crate::template::{Stripe, Update};
use core::arch::x86_64::*;

/// x^`exponent` modulo the polynomial, its bits reversed, as a factor of a carry-less product of
/// reversed operands (which comes out one bit too low).
const fn power(exponent: u32) -> i64 {
    let (mut remainder, mut done) = (1u32 << 31, 0);
    while done < exponent {
        remainder = if remainder & 1 == 1 { remainder >> 1 ^ POLYNOMIAL } else { remainder >> 1 };
        done += 1;
    }
    (remainder as i64) << 1
}

/// The factors of the two halves of a quarter line behind which so many bytes follow.
const fn factors(bytes: u32) -> [i64; 2] {
    [power(bytes * 8 + 32), power(bytes * 8 - 32)]
}

const OVER_ONE: [i64; 2] = factors(64);
const OVER_TWO: [i64; 2] = factors(128);
const OVER_THREE: [i64; 2] = factors(192);
const OVER_FOUR: [i64; 2] = factors(256);
const OVER_QUARTERS: [[i64; 2]; 3] = [factors(48), factors(32), factors(16)];

/// A line of remainders, one for each of its quarters. One line and not four, which would save
/// nothing but waiting: of a stripe each column has a state that goes through memory.
pub(super) struct Clmul;

/// The factors for each quarter of a line.
#[inline(always)]
unsafe fn in_each(factors: [i64; 2]) -> __m512i {
    // SAFETY: the promise of this file.
    unsafe { _mm512_broadcast_i32x4(_mm_set_epi64x(factors[1], factors[0])) }
}

/// `line` moved on by what the factors stand for, and `next` added.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_line(line: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let (low, high) = (_mm512_clmulepi64_epi128::<0x00>(line, factors), _mm512_clmulepi64_epi128::<0x11>(line, factors));
    // The truth table of a ^ b ^ c.
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

/// The remainder of 16 bytes, in which all others have ended.
#[inline]
#[target_feature(enable = "avx512f,sse4.2")]
fn reduce(quarter: __m128i) -> u32 {
    let low = _mm_crc32_u64(0, _mm_cvtsi128_si64(quarter) as u64);
    _mm_crc32_u64(low, _mm_extract_epi64::<1>(quarter) as u64) as u32
}

impl Fold<Zmm> for Clmul {
    type State = __m512i;

    #[inline(always)]
    unsafe fn begin() -> __m512i {
        // SAFETY: the promise of this file.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn fold(state: __m512i, &[first, second, third, fourth]: &[Zmm; FOLD_LINES]) -> __m512i {
        // SAFETY: the promise of this file.
        unsafe {
            let line = fold_line(third.0, in_each(OVER_ONE), fourth.0);
            let line = fold_line(second.0, in_each(OVER_TWO), line);
            let line = fold_line(first.0, in_each(OVER_THREE), line);
            fold_line(state, in_each(OVER_FOUR), line)
        }
    }

    #[inline(always)]
    unsafe fn end(line: __m512i) -> u32 {
        // SAFETY: the promise of this file.
        unsafe {
            let [a, b, c] = OVER_QUARTERS;
            let factors = _mm512_set_epi64(0, 0, c[1], c[0], b[1], b[0], a[1], a[0]);
            let quarters = fold_line(line, factors, _mm512_maskz_mov_epi64(0xc0, line));
            let half = _mm256_xor_si256(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64::<1>(quarters));
            reduce(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half)))
        }
    }
}

/// Tells whether the processor folds lines.
#[inline]
pub(crate) fn has_fold() -> bool {
    const WANTED: u32 = cpuid::AVX512 | cpuid::GFNI | cpuid::CRC | cpuid::VPCLMULQDQ;
    cpuid::features() & WANTED == WANTED
}

/// The kernels that sum the blocks they store, for kernels of `isa`; None where the processor lacks
/// what they take.
#[inline]
pub(crate) fn block_table(isa: Isa, stream: bool) -> Option<&'static BlockTable> {
    match (isa, stream) {
        _ if !has_fold() => None,
        (Isa::Avx512Gfni, true) => Some(&STREAM),
        (Isa::Avx512Gfni, false) => Some(&CACHED),
        _ => None,
    }
}

/// The remainder of the block at `src` ([`crate::blocks`]).
///
/// # Safety
/// [`has_fold`]; `src` is valid for a block, or the caller is inside a guard.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni,vpclmulqdq,sse4.2")]
pub(crate) unsafe fn fold_block(src: *const u8) -> u32 {
    // SAFETY: passed on; the instructions are this function's features. So in all of them.
    unsafe { blocks::remainder::<Zmm, Clmul>(src) }
}

static STREAM: BlockTable = table::<true>();
static CACHED: BlockTable = table::<false>();

const fn table<const STREAM: bool>() -> BlockTable {
    BlockTable {
        mirror: mirror::<STREAM>,
        update_p: update::<STREAM, false>,
        update_pq: update::<STREAM, true>,
        stripe_p: stripe::<STREAM, false>,
        stripe_pq: stripe::<STREAM, true>,
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni,vpclmulqdq,sse4.2")]
unsafe fn mirror<const STREAM: bool>(dsts: &[*mut u8], src: *const u8) -> u32 {
    // SAFETY: as in fold_block.
    unsafe { blocks::mirror::<Zmm, Clmul, STREAM>(dsts, src) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni,vpclmulqdq,sse4.2")]
unsafe fn update<const STREAM: bool, const Q: bool>(update: &Update) -> [u32; 3] {
    // SAFETY: as in fold_block.
    unsafe { blocks::update::<Zmm, Gfni, Clmul, STREAM, Q>(update) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni,vpclmulqdq,sse4.2")]
unsafe fn stripe<const STREAM: bool, const Q: bool>(stripe: &Stripe<'_>, wanted: u32, remainders: &mut [u32]) -> u32 {
    // SAFETY: as in fold_block.
    unsafe { blocks::stripe::<Zmm, Gfni, Clmul, STREAM, Q>(stripe, wanted, remainders) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_in_print() {
        // The folding constants of CRC-32C in Linux' crc32c-pcl-intel and in Intel's ISA-L.
        assert_eq!(factors(64), [0x740e_ef02, 0x9e4a_ddf8]);
        assert_eq!(factors(16), [0xf20c_0dfe, 0x1_4cd0_0bd6]);
    }
}
