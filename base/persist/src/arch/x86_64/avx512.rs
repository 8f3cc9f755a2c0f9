//! AVX-512 (F, BW, VL): a line is one register, partial lines are masked; multiplication by pshufb tables, or by GFNI where
//! the processor has it.

use super::kernel_table;
use crate::gf::{MATRICES, NIBBLES};
use crate::line::{Field, Line};
use core::arch::asm;
use core::arch::x86_64::*;

/// A line in one register.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512i);

/// The lowest `len` (1..=63) bytes of a line.
#[inline(always)]
fn mask(len: usize) -> __mmask64 {
    (1 << len) - 1
}

impl Line for Zmm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: called below a function compiled for AVX-512 only, as everything in this file.
        unsafe { Self(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 64 readable bytes are the caller's promise.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: `len` readable bytes are the caller's promise; bytes that are masked out are not accessed and cannot fault.
        unsafe { Self(_mm512_maskz_loadu_epi8(mask(len), from.cast())) }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        // SAFETY: as in zero.
        unsafe { Self(pin_line(self.0)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 writable bytes are the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: as load_part.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), mask(len), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 64 writable bytes at a line boundary are the caller's promise.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as in zero.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: as in zero. 0x96 is the truth table of a ^ b ^ c.
        unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, b.0, c.0)) }
    }
}

/// [`Line::pin`]; the register class wants the feature declared.
#[inline]
#[target_feature(enable = "avx512f")]
fn pin_line(mut line: __m512i) -> __m512i {
    // SAFETY: no instruction; not `pure`, so that it is neither repeated nor moved.
    unsafe { asm!("/* {0} */", inout(zmm_reg) line, options(nomem, nostack, preserves_flags)) }
    line
}

/// Multiplies each nibble by a table look-up.
pub(crate) struct Nibbles;

impl Field<Zmm> for Nibbles {
    type Factor = (__m512i, __m512i);

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let tables = NIBBLES[coefficient as usize].as_ptr();
        // SAFETY: the two tables are 16 bytes each; AVX-512 as in zero.
        unsafe {
            (
                _mm512_broadcast_i32x4(_mm_loadu_si128(tables.cast())),
                _mm512_broadcast_i32x4(_mm_loadu_si128(tables.add(16).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply(line: Zmm, (low, high): Self::Factor) -> Zmm {
        // SAFETY: as in zero.
        unsafe {
            let mask = _mm512_set1_epi8(0x0f);
            let from_low = _mm512_shuffle_epi8(low, _mm512_and_si512(line.0, mask));
            let from_high = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi64::<4>(line.0), mask));
            Zmm(_mm512_xor_si512(from_low, from_high))
        }
    }

    #[inline(always)]
    unsafe fn double(line: Zmm) -> Zmm {
        // SAFETY: as in zero. Bytes with the top bit set get the polynomial.
        unsafe {
            let overflow = _mm512_maskz_set1_epi8(_mm512_movepi8_mask(line.0), 0x1d);
            Zmm(_mm512_xor_si512(_mm512_add_epi8(line.0, line.0), overflow))
        }
    }
}

/// Multiplies by a bit matrix.
pub(crate) struct Gfni;

impl Field<Zmm> for Gfni {
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> __m512i {
        // SAFETY: as in zero.
        unsafe { _mm512_set1_epi64(MATRICES[coefficient as usize] as i64) }
    }

    #[inline(always)]
    unsafe fn multiply(line: Zmm, factor: __m512i) -> Zmm {
        // SAFETY: called below a function compiled for AVX-512 and GFNI only.
        unsafe { Zmm(_mm512_gf2p8affine_epi64_epi8::<0>(line.0, factor)) }
    }

    #[inline(always)]
    unsafe fn double(line: Zmm) -> Zmm {
        // SAFETY: as in multiply.
        unsafe { Self::multiply(line, Self::factor(2)) }
    }
}

kernel_table!(stream, "avx512f,avx512bw,avx512vl", Zmm, Nibbles, stream = true, block = 4);
kernel_table!(cached, "avx512f,avx512bw,avx512vl", Zmm, Nibbles, stream = false, block = 4);
kernel_table!(gfni_stream, "avx512f,avx512bw,avx512vl,gfni", Zmm, Gfni, stream = true, block = 4);
kernel_table!(gfni_cached, "avx512f,avx512bw,avx512vl,gfni", Zmm, Gfni, stream = false, block = 4);
