//! AVX2: a line is two 32-byte registers; multiplication by pshufb tables, or by GFNI where the
//! processor has it.

use super::kernel_table;
use crate::gf::{MATRICES, NIBBLES};
use crate::line::{Field, Line};
use core::arch::asm;
use core::arch::x86_64::*;

/// A line in two registers.
#[derive(Clone, Copy)]
pub(crate) struct Ymm(__m256i, __m256i);

impl Line for Ymm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: called below a function compiled for AVX2 only, as everything in this file.
        unsafe { Self(_mm256_setzero_si256(), _mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 64 readable bytes are the caller's promise.
        unsafe { Self(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        // SAFETY: as in zero.
        unsafe { Self(pin_part(self.0), pin_part(self.1)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 writable bytes are the caller's promise.
        unsafe {
            _mm256_storeu_si256(to.cast(), self.0);
            _mm256_storeu_si256(to.add(32).cast(), self.1);
        }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 64 writable bytes at a line boundary are the caller's promise.
        unsafe {
            _mm256_stream_si256(to.cast(), self.0);
            _mm256_stream_si256(to.add(32).cast(), self.1);
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as in zero.
        unsafe { Self(_mm256_xor_si256(self.0, other.0), _mm256_xor_si256(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as in zero.
        unsafe { Self(_mm256_or_si256(self.0, other.0), _mm256_or_si256(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as in zero.
        unsafe {
            let both = _mm256_or_si256(self.0, self.1);
            _mm256_testz_si256(both, both) == 1
        }
    }
}

/// [`Line::pin`] of a half; the register class wants the feature declared.
#[inline]
#[target_feature(enable = "avx2")]
fn pin_part(mut part: __m256i) -> __m256i {
    // SAFETY: no instruction; not `pure`, so that it is neither repeated nor moved.
    unsafe { asm!("/* {0} */", inout(ymm_reg) part, options(nomem, nostack, preserves_flags)) }
    part
}

/// Multiplies each nibble by a table look-up.
pub(crate) struct Nibbles;

impl Field<Ymm> for Nibbles {
    type Factor = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let tables = NIBBLES[coefficient as usize].as_ptr();
        // SAFETY: the two tables are 16 bytes each; AVX2 as in zero.
        unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_loadu_si128(tables.cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(tables.add(16).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply(line: Ymm, factor: Self::Factor) -> Ymm {
        // SAFETY: as in zero.
        unsafe { Ymm(multiply_part(line.0, factor), multiply_part(line.1, factor)) }
    }

    #[inline(always)]
    unsafe fn double(line: Ymm) -> Ymm {
        // SAFETY: as in zero.
        unsafe { Ymm(double_part(line.0), double_part(line.1)) }
    }
}

#[inline(always)]
unsafe fn multiply_part(part: __m256i, (low, high): (__m256i, __m256i)) -> __m256i {
    // SAFETY: as in zero.
    unsafe {
        let mask = _mm256_set1_epi8(0x0f);
        let from_low = _mm256_shuffle_epi8(low, _mm256_and_si256(part, mask));
        let from_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(part), mask));
        _mm256_xor_si256(from_low, from_high)
    }
}

#[inline(always)]
unsafe fn double_part(part: __m256i) -> __m256i {
    // SAFETY: as in zero. Bytes with the top bit set are negative: they get the polynomial.
    unsafe {
        let overflow = _mm256_and_si256(_mm256_cmpgt_epi8(_mm256_setzero_si256(), part), _mm256_set1_epi8(0x1d));
        _mm256_xor_si256(_mm256_add_epi8(part, part), overflow)
    }
}

/// Multiplies by a bit matrix.
pub(crate) struct Gfni;

impl Field<Ymm> for Gfni {
    type Factor = __m256i;

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> __m256i {
        // SAFETY: as in zero.
        unsafe { _mm256_set1_epi64x(MATRICES[coefficient as usize] as i64) }
    }

    #[inline(always)]
    unsafe fn multiply(line: Ymm, factor: __m256i) -> Ymm {
        // SAFETY: called below a function compiled for AVX and GFNI only.
        unsafe { Ymm(_mm256_gf2p8affine_epi64_epi8::<0>(line.0, factor), _mm256_gf2p8affine_epi64_epi8::<0>(line.1, factor)) }
    }

    #[inline(always)]
    unsafe fn double(line: Ymm) -> Ymm {
        // SAFETY: as in multiply.
        unsafe { Self::multiply(line, Self::factor(2)) }
    }
}

kernel_table!(stream, "avx2", Ymm, Nibbles, stream = true, block = 2);
kernel_table!(cached, "avx2", Ymm, Nibbles, stream = false, block = 2);
kernel_table!(gfni_stream, "avx2,gfni", Ymm, Gfni, stream = true, block = 2);
kernel_table!(gfni_cached, "avx2,gfni", Ymm, Gfni, stream = false, block = 2);
