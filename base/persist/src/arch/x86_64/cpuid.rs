//! What the processor has and the kernel has enabled, asked once.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU32, Ordering};

pub(super) const AVX2: u32 = 1 << 0;
/// AVX-512 F, BW and VL.
pub(super) const AVX512: u32 = 1 << 1;
pub(super) const GFNI: u32 = 1 << 2;
pub(super) const CLFLUSHOPT: u32 = 1 << 3;
pub(super) const CLWB: u32 = 1 << 4;
/// String copies are fast from their first bytes on (ERMS and FSRM).
pub(super) const FAST_STRINGS: u32 = 1 << 5;
/// CRC-32C (SSE 4.2).
pub(super) const CRC: u32 = 1 << 6;
/// Carry-less multiplication of vectors.
pub(super) const VPCLMULQDQ: u32 = 1 << 7;
/// The answer is known; so that it is never 0.
const KNOWN: u32 = 1 << 31;

/// The answer, 0 until asked.
pub(super) static CACHE: AtomicU32 = AtomicU32::new(0);

/// The features above as bits.
#[inline]
pub(super) fn features() -> u32 {
    match CACHE.load(Ordering::Relaxed) {
        0 => detect(),
        known => known,
    }
}

#[cold]
fn detect() -> u32 {
    let mut found = KNOWN;
    if __cpuid(0).eax >= 7 {
        let leaf1 = __cpuid(1);
        let leaf7 = __cpuid_count(7, 0);
        let bit = |register: u32, bit: u32| register >> bit & 1 == 1;
        // OSXSAVE says that xgetbv may be used; XCR0 which registers the kernel saves: 1 xmm, 2
        // ymm, 5..=7 masks and zmm.
        if bit(leaf1.ecx, 20) {
            found |= CRC;
        }
        let enabled = if bit(leaf1.ecx, 27) { xcr0() } else { 0 };
        if enabled & 0x06 == 0x06 && bit(leaf1.ecx, 28) && bit(leaf7.ebx, 5) {
            found |= AVX2;
            let avx512 = bit(leaf7.ebx, 16) && bit(leaf7.ebx, 30) && bit(leaf7.ebx, 31);
            if enabled & 0xe6 == 0xe6 && avx512 {
                found |= AVX512;
            }
        }
        if bit(leaf7.ecx, 8) {
            found |= GFNI;
        }
        if bit(leaf7.ecx, 10) {
            found |= VPCLMULQDQ;
        }
        if bit(leaf7.ebx, 23) {
            found |= CLFLUSHOPT;
        }
        if bit(leaf7.ebx, 24) {
            found |= CLWB;
        }
        if bit(leaf7.ebx, 9) && bit(leaf7.edx, 4) {
            found |= FAST_STRINGS;
        }
    }
    CACHE.store(found, Ordering::Relaxed);
    found
}

fn xcr0() -> u32 {
    let low: u32;
    // SAFETY: OSXSAVE is set (caller), so xgetbv of register 0 is allowed; it writes eax and edx.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags)) }
    low
}
