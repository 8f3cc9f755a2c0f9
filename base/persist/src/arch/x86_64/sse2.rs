//! SSE2: a line is four 16-byte registers. These kernels are the fallback, since every x86-64
//! processor has SSE2.

use super::kernel_table;
use crate::line::{Field, Line};
use core::arch::asm;
use core::arch::x86_64::*;

/// A line in four registers.
#[derive(Clone, Copy)]
pub(crate) struct Xmm([__m128i; 4]);

impl Line for Xmm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { Self([_mm_setzero_si128(); 4]) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        let from = from.cast::<__m128i>();
        // SAFETY: 64 readable bytes are the caller's promise.
        unsafe {
            Self([
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ])
        }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        let [mut a, mut b, mut c, mut d] = self.0;
        // SAFETY: the text is a comment and no instruction. It is not `pure`, so the compiler
        // neither repeats nor moves it.
        unsafe {
            asm!("/* {0} {1} {2} {3} */", inout(xmm_reg) a, inout(xmm_reg) b, inout(xmm_reg) c, inout(xmm_reg) d,
                options(nomem, nostack, preserves_flags));
        }
        Self([a, b, c, d])
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        for (i, part) in self.0.iter().enumerate() {
            // SAFETY: 64 writable bytes are the caller's promise.
            unsafe { _mm_storeu_si128(to.cast::<__m128i>().add(i), *part) }
        }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        for (i, part) in self.0.iter().enumerate() {
            // SAFETY: 64 writable bytes at a line boundary are the caller's promise.
            unsafe { _mm_stream_si128(to.cast::<__m128i>().add(i), *part) }
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            Self([_mm_xor_si128(a[0], b[0]), _mm_xor_si128(a[1], b[1]), _mm_xor_si128(a[2], b[2]), _mm_xor_si128(a[3], b[3])])
        }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        // SAFETY: SSE2 is part of x86-64.
        unsafe { Self([_mm_or_si128(a[0], b[0]), _mm_or_si128(a[1], b[1]), _mm_or_si128(a[2], b[2]), _mm_or_si128(a[3], b[3])]) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        let [a, b, c, d] = self.0;
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let all = _mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d));
            _mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_setzero_si128())) == 0xffff
        }
    }
}

/// Multiplication by doubling, for one bit of the coefficient after the other.
pub(crate) struct Doubling;

impl Field<Xmm> for Doubling {
    type Factor = u8;

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> u8 {
        coefficient
    }

    #[inline(always)]
    unsafe fn multiply(line: Xmm, factor: u8) -> Xmm {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let mut sum = Xmm::zero();
            let mut power = line;
            let mut bits = factor;
            while bits != 0 {
                if bits & 1 != 0 {
                    sum = sum.xor(power);
                }
                power = Self::double(power);
                bits >>= 1;
            }
            sum
        }
    }

    #[inline(always)]
    unsafe fn double(line: Xmm) -> Xmm {
        let mut out = line;
        for part in &mut out.0 {
            // SAFETY: SSE2 is part of x86-64. Bytes with the top bit set are negative: they get the
            // polynomial.
            unsafe {
                let overflow = _mm_and_si128(_mm_cmpgt_epi8(_mm_setzero_si128(), *part), _mm_set1_epi8(0x1d));
                *part = _mm_xor_si128(_mm_add_epi8(*part, *part), overflow);
            }
        }
        out
    }
}

kernel_table!(stream, "sse2", Xmm, Doubling, stream = true, block = 1);
kernel_table!(cached, "sse2", Xmm, Doubling, stream = false, block = 1);
