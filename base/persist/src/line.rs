//! A cache line in registers: what a processor's module provides and the kernels in `template` are written with.
//!
//! Every method is `inline(always)` and may use instructions the build does not assume: it is called only below a
//! function compiled for them, in a table that is handed out after the processor was asked (`arch`).

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// 64 bytes in registers.
pub(crate) trait Line: Copy {
    /// All zeros.
    ///
    /// # Safety
    /// The processor has the instructions of this type; so for every method here.
    unsafe fn zero() -> Self;

    /// 64 bytes at any alignment.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes.
    unsafe fn load(from: *const u8) -> Self;

    /// `len` bytes (1..=63) at any alignment, then zeros.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; not a byte more is read.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        let mut buffer = [0u8; LINE];
        // SAFETY: `len` < 64 bytes fit the buffer; the source is the caller's promise.
        unsafe {
            copy_part(buffer.as_mut_ptr(), from, len);
            Self::load(buffer.as_ptr())
        }
    }

    /// The same line, of which the compiler has forgotten that it was loaded: it cannot load it a second time.
    ///
    /// # Safety
    /// As [`Line::zero`].
    unsafe fn pin(self) -> Self;

    /// Ordinary store at any alignment.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes.
    unsafe fn store(self, to: *mut u8);

    /// Ordinary store of the first `len` bytes (1..=63) at any alignment.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes; not a byte more is written.
    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        let mut buffer = [0u8; LINE];
        // SAFETY: `len` < 64 bytes are in the buffer; the destination is the caller's promise.
        unsafe {
            self.store(buffer.as_mut_ptr());
            copy_part(to, buffer.as_ptr(), len);
        }
    }

    /// Non-temporal store.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes and a multiple of 64.
    unsafe fn stream(self, to: *mut u8);

    /// Bitwise exclusive or.
    ///
    /// # Safety
    /// As [`Line::zero`].
    unsafe fn xor(self, other: Self) -> Self;

    /// Exclusive or of three.
    ///
    /// # Safety
    /// As [`Line::zero`].
    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: passed on.
        unsafe { self.xor(b).xor(c) }
    }
}

/// Multiplication in GF(2^8) of every byte of a line.
pub(crate) trait Field<L: Line> {
    /// A coefficient in the form the multiplication wants.
    type Factor: Copy;

    /// Prepares `coefficient`.
    ///
    /// # Safety
    /// The processor has the instructions of this type.
    unsafe fn factor(coefficient: u8) -> Self::Factor;

    /// Each byte times the coefficient.
    ///
    /// # Safety
    /// As [`Field::factor`].
    unsafe fn multiply(line: L, factor: Self::Factor) -> L;

    /// Each byte times 2.
    ///
    /// # Safety
    /// As [`Field::factor`].
    unsafe fn double(line: L) -> L;
}

/// Copies 0..=63 bytes piece by piece: by hand, because `copy_nonoverlapping` of an unknown length calls libc's memcpy.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_part(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: the pieces are the binary digits of `len`, in descending order, so `at + piece` never passes `len`.
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
