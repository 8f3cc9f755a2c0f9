//! The kernels for AVX-512 (F, BW, VL). A line is one register; a part of a line is loaded and
//! stored under a mask. The kernels multiply with look-up tables (vpshufb), or with an instruction
//! of GFNI where the processor has it.
//!
//! *The AVX-512 promise:* every function in this file is called only from functions that are
//! compiled for AVX-512 (F, BW, VL), which run only on processors that have it.

use super::kernel_table;
use crate::gf::{MATRICES, NIBBLES};
use crate::line::{Field, Line};
use core::arch::asm;
use core::arch::x86_64::*;

/// A line in one register.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(pub(super) __m512i);

/// The mask for the lowest `len` bytes of a line. `len` is at most 63: whole lines go without a
/// mask.
#[inline(always)]
fn mask(len: usize) -> __mmask64 {
    debug_assert!(len < 64);
    (1 << len) - 1
}

impl Line for Zmm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the AVX-512 promise.
        unsafe { Self(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 64 readable bytes are the caller's promise.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: `len` readable bytes are the caller's promise; bytes that are masked out are not
        // accessed and cannot fault.
        unsafe { Self(_mm512_maskz_loadu_epi8(mask(len), from.cast())) }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        // SAFETY: the AVX-512 promise.
        unsafe { Self(pin_line(self.0)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 writable bytes are the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: `len` writable bytes are the caller's promise; bytes that are masked out are not
        // accessed and cannot fault.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), mask(len), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 64 writable bytes at a line boundary are the caller's promise.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the AVX-512 promise.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the AVX-512 promise.
        unsafe { Self(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the AVX-512 promise.
        unsafe { _mm512_test_epi64_mask(self.0, self.0) == 0 }
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: the AVX-512 promise. 0x96 is the truth table of a ^ b ^ c.
        unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, b.0, c.0)) }
    }
}

/// Does [`Line::pin`]. A function of its own, because `asm!` accepts `zmm_reg` only where the
/// feature is declared.
#[inline]
#[target_feature(enable = "avx512f")]
fn pin_line(mut line: __m512i) -> __m512i {
    // SAFETY: the assembly contains no instruction. It is not `pure`, so the compiler must take the
    // register's value as new here and cannot compute it again from where it came.
    unsafe { asm!("/* {0} */", inout(zmm_reg) line, options(nomem, nostack, preserves_flags)) }
    line
}

/// Multiplication by look-up: the product of a byte is the xor of the products of its two nibbles,
/// which stand in two tables of 16.
pub(crate) struct Nibbles;

impl Field<Zmm> for Nibbles {
    /// The products of low nibbles and of high nibbles, each table once in each quarter of the
    /// register.
    type Factor = (__m512i, __m512i);

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let tables = NIBBLES[coefficient as usize].as_ptr();
        // SAFETY: `NIBBLES[c]` is 32 bytes, the tables for low and for high nibbles one after the
        // other; the AVX-512 promise.
        unsafe {
            (
                _mm512_broadcast_i32x4(_mm_loadu_si128(tables.cast())),
                _mm512_broadcast_i32x4(_mm_loadu_si128(tables.add(16).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply(line: Zmm, (low, high): Self::Factor) -> Zmm {
        // SAFETY: the AVX-512 promise.
        unsafe {
            let low_nibbles = _mm512_set1_epi8(0x0f);
            let from_low = _mm512_shuffle_epi8(low, _mm512_and_si512(line.0, low_nibbles));
            // The shift brings in bits of the neighbouring byte; the mask drops them.
            let from_high = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi64::<4>(line.0), low_nibbles));
            Zmm(_mm512_xor_si512(from_low, from_high))
        }
    }

    #[inline(always)]
    unsafe fn double(line: Zmm) -> Zmm {
        // SAFETY: the AVX-512 promise.
        unsafe {
            // Bytes whose top bit is set overflow when doubled: they are reduced by the polynomial
            // 0x11d.
            let overflow = _mm512_maskz_set1_epi8(_mm512_movepi8_mask(line.0), 0x1d);
            Zmm(_mm512_xor_si512(_mm512_add_epi8(line.0, line.0), overflow))
        }
    }
}

/// Multiplication by a matrix of 8 × 8 bits (vgf2p8affineqb). GFNI's own multiplication is for the
/// polynomial 0x11b, not for 0x11d.
pub(crate) struct Gfni;

impl Field<Zmm> for Gfni {
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> __m512i {
        // SAFETY: the AVX-512 promise.
        unsafe { _mm512_set1_epi64(MATRICES[coefficient as usize] as i64) }
    }

    #[inline(always)]
    unsafe fn multiply(line: Zmm, factor: __m512i) -> Zmm {
        // SAFETY: the AVX-512 promise, and the caller is compiled for GFNI.
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
