//! x86-64: instruction sets, fences, write-back, and one table of kernels per instruction set.

mod avx2;
mod avx512;
mod cpuid;
mod crc;
mod fold;
pub(crate) mod guard;
mod sse2;

pub(crate) use crc::{crc_lanes, has_crc};
pub(crate) use fold::{block_table, fold_block, has_fold};

use super::Table;
use core::arch::asm;
use core::sync::atomic::Ordering;

/// The instruction sets kernels are compiled for, from the least to the most capable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// 16 bytes at a time; every x86-64 has it. Multiplies by repeated doubling.
    Sse2,
    /// 32 bytes at a time. Multiplies by two table look-ups (pshufb).
    Avx2,
    /// 32 bytes at a time. Multiplies by one bit matrix (GFNI).
    Avx2Gfni,
    /// A line at a time (AVX-512 F, BW, VL). Multiplies by two table look-ups (pshufb).
    Avx512,
    /// A line at a time. Multiplies by one bit matrix (GFNI).
    Avx512Gfni,
}

impl Isa {
    /// All instruction sets, from the least to the most capable.
    pub const ALL: [Self; 5] = [Self::Sse2, Self::Avx2, Self::Avx2Gfni, Self::Avx512, Self::Avx512Gfni];

    /// Tells whether this processor and kernel support the instruction set.
    #[must_use]
    pub fn is_available(self) -> bool {
        let have = cpuid::features();
        match self {
            Self::Sse2 => true,
            Self::Avx2 => have & cpuid::AVX2 != 0,
            Self::Avx2Gfni => have & cpuid::AVX2 != 0 && have & cpuid::GFNI != 0,
            Self::Avx512 => have & cpuid::AVX512 != 0,
            Self::Avx512Gfni => have & cpuid::AVX512 != 0 && have & cpuid::GFNI != 0,
        }
    }

    /// Returns the most capable instruction set that is available.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Sse2)
    }

    /// A short name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx2Gfni => "avx2+gfni",
            Self::Avx512 => "avx512",
            Self::Avx512Gfni => "avx512+gfni",
        }
    }
}

/// The kernels of `isa`: whole lines stored non-temporally if `stream`, else ordinarily. To be
/// called only where [`Isa::is_available`].
pub(crate) const fn table(isa: Isa, stream: bool) -> &'static Table {
    match (isa, stream) {
        (Isa::Sse2, true) => &sse2::stream::TABLE,
        (Isa::Sse2, false) => &sse2::cached::TABLE,
        (Isa::Avx2, true) => &avx2::stream::TABLE,
        (Isa::Avx2, false) => &avx2::cached::TABLE,
        (Isa::Avx2Gfni, true) => &avx2::gfni_stream::TABLE,
        (Isa::Avx2Gfni, false) => &avx2::gfni_cached::TABLE,
        (Isa::Avx512, true) => &avx512::stream::TABLE,
        (Isa::Avx512, false) => &avx512::cached::TABLE,
        (Isa::Avx512Gfni, true) => &avx512::gfni_stream::TABLE,
        (Isa::Avx512Gfni, false) => &avx512::gfni_cached::TABLE,
    }
}

/// Orders all earlier stores, non-temporal ones and write-backs included, before all later ones
/// (sfence).
#[inline(always)]
pub fn fence() {
    store_fence();
    no_tail_call();
}

#[cfg_attr(feature = "stacks", inline(never))]
#[cfg_attr(not(feature = "stacks"), inline(always))]
fn store_fence() {
    // SAFETY: sfence has no operands and touches no register.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

/// Keeps the compiler from making the call before it a jump, by which the caller would not be seen on
/// the stack (feature `stacks`). Without that feature it does nothing.
#[inline(always)]
fn no_tail_call() {
    #[cfg(feature = "stacks")]
    // SAFETY: no instruction.
    unsafe {
        asm!("", options(nostack, preserves_flags))
    }
}

/// The processor's clock (rdtsc), in ticks of its own.
#[inline(always)]
#[must_use]
pub fn timestamp() -> u64 {
    // SAFETY: rdtsc has no precondition on x86-64.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads the processor's clock as [`timestamp`] does, once all loads before it have their values, and
/// before any load after it begins.
#[inline(always)]
#[must_use]
pub fn timestamp_in_order() -> u64 {
    // SAFETY: lfence and rdtsc have no precondition on x86-64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        let now = core::arch::x86_64::_rdtsc();
        core::arch::x86_64::_mm_lfence();
        now
    }
}

/// Asks for the line of `address` to be fetched. Never faults.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a hint; the address need not be valid.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast()) }
}

/// Tells whether [`copy_string`] is a good way to copy from `src` to `dst`.
///
/// It is not where the destination lies less than a line after the source modulo 4096: the processor
/// takes its stores for what it is about to load, and is two to six times slower (EPYC; the C
/// library's memcpy is too).
#[inline(always)]
pub(crate) fn suits_copy_string(dst: *mut u8, src: *const u8) -> bool {
    let distance = (dst as usize).wrapping_sub(src as usize) % 4096;
    cpuid::features() & cpuid::FAST_STRINGS != 0 && !(1..64).contains(&distance)
}

/// Copies `len` bytes from `src` to `dst` by the string instruction (rep movsb).
///
/// # Safety
/// Both are valid for `len` bytes.
#[inline(always)]
pub(crate) unsafe fn copy_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear, as the ABI and the guard have it.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") dst => _, inout("rsi") src => _, inout("rcx") len => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Writes the lines that hold `len` bytes at `address` back to memory, keeping them cached where
/// the processor can (clwb, else clflushopt, else clflush). Ordered by the next [`fence`].
///
/// # Safety
/// `address` is mapped for `len` bytes; a page that is gone faults, as a load would.
#[inline]
pub unsafe fn write_back(address: *const u8, len: usize) {
    if len != 0 {
        // SAFETY: the caller's promise.
        unsafe { write_back_lines(address, len) };
        no_tail_call();
    }
}

/// Does the work of [`write_back`].
///
/// # Safety
/// As for [`write_back`]; `len` is not 0.
#[cfg_attr(feature = "stacks", inline(never))]
unsafe fn write_back_lines(address: *const u8, len: usize) {
    let have = cpuid::features();
    let first = address as usize & !63;
    let last = (address as usize + len - 1) & !63;
    for line in (first..=last).step_by(64) {
        // SAFETY: the instruction is there (cpuid), the line holds at least one of the caller's
        // bytes.
        unsafe {
            if have & cpuid::CLWB != 0 {
                asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
            } else if have & cpuid::CLFLUSHOPT != 0 {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            } else {
                asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
            }
        }
    }
}

/// Clears the upper halves of the vector registers after a kernel was left in the middle, as the
/// kernel's end would have done, so that the program's SSE code does not pay for mixing.
pub(crate) fn wipe_vector_state() {
    if cpuid::CACHE.load(Ordering::Relaxed) & cpuid::AVX2 != 0 {
        // SAFETY: the processor has AVX; the upper halves hold nothing of a caller's (the ABI lets
        // calls clobber them).
        unsafe { asm!("vzeroupper", options(nostack, preserves_flags)) }
    }
}

/// Compiles the templates of `crate::template` for one instruction set: a module with a `TABLE`.
macro_rules! kernel_table {
    ($name:ident, $features:literal, $line:ty, $field:ty, stream = $stream:literal, block = $block:literal) => {
        pub(crate) mod $name {
            #[allow(unused_imports)]
            use super::*;
            use crate::arch::Table;
            use crate::template::{self, Stripe, Update};

            pub(crate) static TABLE: Table = Table {
                copy,
                mirror,
                zero,
                update_p,
                update_q,
                update_pq,
                stripe_p,
                stripe_pq,
                parity_p,
                parity_pq,
                fits_p,
                fits_pq,
                dot,
            };

            #[target_feature(enable = $features)]
            unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
                // SAFETY: the caller's promise; the template's instructions are among this function's
                // features.
                unsafe { template::copy::<$line, $stream>(dst, src, len) }
            }

            #[target_feature(enable = $features)]
            unsafe fn mirror(dsts: &[*mut u8], src: *const u8, len: usize) {
                // SAFETY: the caller's promise; this function has the features.
                unsafe { template::mirror::<$line, $stream>(dsts, src, len) }
            }

            #[target_feature(enable = $features)]
            unsafe fn zero(dst: *mut u8, len: usize) {
                // SAFETY: the caller's promise; this function has the features.
                unsafe { template::zero::<$line>(dst, len) }
            }

            kernel_table!(@update update_p, $features, $line, $field, $stream, true, false, $block);
            kernel_table!(@update update_q, $features, $line, $field, $stream, false, true, $block);
            kernel_table!(@update update_pq, $features, $line, $field, $stream, true, true, $block);
            kernel_table!(@stripe stripe_p, $features, $line, $field, $stream, true, false, $block);
            kernel_table!(@stripe stripe_pq, $features, $line, $field, $stream, true, true, $block);
            kernel_table!(@stripe parity_p, $features, $line, $field, $stream, false, false, $block);
            kernel_table!(@stripe parity_pq, $features, $line, $field, $stream, false, true, $block);
            kernel_table!(@fits fits_p, $features, $line, $field, false, $block);
            kernel_table!(@fits fits_pq, $features, $line, $field, true, $block);

            #[target_feature(enable = $features)]
            unsafe fn dot(coefficients: &[u8], sources: &[*const u8], dst: *mut u8, len: usize) {
                // SAFETY: the caller's promise; this function has the features.
                unsafe { template::dot::<$line, $field, $block>(coefficients, sources, dst, len) }
            }
        }
    };
    (@update $name:ident, $features:literal, $line:ty, $field:ty, $stream:literal, $p:literal, $q:literal, $block:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(update: &Update) {
            // SAFETY: the caller's promise; this function has the features.
            unsafe { template::update::<$line, $field, $stream, $p, $q, $block>(*update) }
        }
    };
    (@stripe $name:ident, $features:literal, $line:ty, $field:ty, $stream:literal, $data:literal, $q:literal, $block:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(stripe: &Stripe<'_>) {
            // SAFETY: the caller's promise; this function has the features.
            unsafe { template::stripe::<$line, $field, $stream, $data, $q, $block>(*stripe) }
        }
    };
    (@fits $name:ident, $features:literal, $line:ty, $field:ty, $q:literal, $block:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(stripe: &Stripe<'_>) -> bool {
            // SAFETY: the caller's promise; this function has the features.
            unsafe { template::fits::<$line, $field, $q, $block>(*stripe) }
        }
    };
}
use kernel_table;
