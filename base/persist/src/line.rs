//! The operations on 64 bytes in registers. The module of each processor under `arch` implements
//! them, and the kernels in `template` (the loops that copy and that compute parity) use nothing
//! else.
//!
//! A method may use instructions that not every processor has. So it is called only inside of
//! functions that are compiled with these instructions enabled; `arch` puts these functions into a
//! table, and hands the table out only if the processor has the instructions. Implementations are
//! `#[inline(always)]`, so that they become part of these functions.

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// A line: 64 bytes in registers.
///
/// # Safety
/// For every method the processor has the instructions of the type.
pub(crate) trait Line: Copy {
    /// A line of zeros.
    ///
    /// # Safety
    /// As for every method here: the processor has the instructions of the type.
    unsafe fn zero() -> Self;

    /// Loads 64 bytes, at any alignment.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes.
    unsafe fn load(from: *const u8) -> Self;

    /// Loads `len` bytes, at any alignment, and fills the line with zeros. Reads not a byte more.
    ///
    /// # Safety
    /// `len` is at most 63, and `from` is readable for `len` bytes.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        let mut buffer = [0u8; LINE];
        // SAFETY: `len` < 64 bytes fit the buffer; the source is the caller's promise.
        unsafe {
            copy_part(buffer.as_mut_ptr(), from, len);
            Self::load(buffer.as_ptr())
        }
    }

    /// Returns the line unchanged. The compiler cannot replace the register by a second load from
    /// memory. That matters because another process may change the memory, and then data and parity
    /// would be computed from different bytes.
    ///
    /// # Safety
    /// As [`Line::zero`].
    unsafe fn pin(self) -> Self;

    /// Stores the line through the cache, at any alignment.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes.
    unsafe fn store(self, to: *mut u8);

    /// Stores the first `len` bytes through the cache, at any alignment. Writes not a byte more.
    ///
    /// # Safety
    /// `len` is at most 63, and `to` is writable for `len` bytes.
    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        let mut buffer = [0u8; LINE];
        // SAFETY: `len` < 64 bytes are in the buffer; the destination is the caller's promise.
        unsafe {
            self.store(buffer.as_mut_ptr());
            copy_part(to, buffer.as_ptr(), len);
        }
    }

    /// Stores the line past the cache (non-temporal). Such stores are weakly ordered: before others
    /// rely on them the caller fences ([`crate::fence`]).
    ///
    /// # Safety
    /// `to` is writable for 64 bytes and a multiple of 64.
    unsafe fn stream(self, to: *mut u8);

    /// The bitwise exclusive or of `self` and `other`.
    ///
    /// # Safety
    /// As [`Line::zero`].
    unsafe fn xor(self, other: Self) -> Self;

    /// The bitwise or of `self` and `other`.
    ///
    /// # Safety
    /// As [`Line::zero`].
    unsafe fn or(self, other: Self) -> Self;

    /// Whether every byte is 0.
    ///
    /// # Safety
    /// As [`Line::zero`].
    unsafe fn is_zero(self) -> bool;

    /// `self ^ second ^ third`. A processor that does that in one instruction overrides it.
    ///
    /// # Safety
    /// As [`Line::zero`].
    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: passed on.
        unsafe { self.xor(second).xor(third) }
    }
}

/// Multiplication of every byte of a line in GF(2^8) with the polynomial 0x11d, that of Linux' RAID 6.
pub(crate) trait Field<L: Line> {
    /// A coefficient prepared for [`Field::multiply`], for instance as tables.
    type Factor: Copy;

    /// Prepares `coefficient`.
    ///
    /// # Safety
    /// The processor has the instructions of this type.
    unsafe fn factor(coefficient: u8) -> Self::Factor;

    /// Multiplies each byte by the coefficient.
    ///
    /// # Safety
    /// As [`Field::factor`].
    unsafe fn multiply(line: L, factor: Self::Factor) -> L;

    /// Multiplies each byte by 2 in GF(2^8), the common step of computing Q.
    ///
    /// # Safety
    /// As [`Field::factor`].
    unsafe fn double(line: L) -> L;
}

/// Copies up to 63 bytes by hand. `copy_nonoverlapping` of an unknown length would be a call of
/// memcpy, which costs more than the copy.
///
/// # Safety
/// `len` is at most 63; `from` is readable and `to` writable for `len` bytes; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_part(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(len < LINE);
    let mut at = 0;
    // SAFETY: each piece is a power of two that `len` contains, from the largest on, so every
    // access lies within the `len` bytes that the caller promises.
    unsafe {
        if len & 32 != 0 {
            to.cast::<[u64; 4]>().write_unaligned(from.cast::<[u64; 4]>().read_unaligned());
            at += 32;
        }
        if len & 16 != 0 {
            to.add(at).cast::<u128>().write_unaligned(from.add(at).cast::<u128>().read_unaligned());
            at += 16;
        }
        if len & 8 != 0 {
            to.add(at).cast::<u64>().write_unaligned(from.add(at).cast::<u64>().read_unaligned());
            at += 8;
        }
        if len & 4 != 0 {
            to.add(at).cast::<u32>().write_unaligned(from.add(at).cast::<u32>().read_unaligned());
            at += 4;
        }
        if len & 2 != 0 {
            to.add(at).cast::<u16>().write_unaligned(from.add(at).cast::<u16>().read_unaligned());
            at += 2;
        }
        if len & 1 != 0 {
            *to.add(at) = *from.add(at);
        }
    }
}
