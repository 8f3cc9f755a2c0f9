//! What the kernel tests share: guarded buffers, the variants of the kernels, arithmetic byte by
//! byte.
#![allow(dead_code, reason = "each test binary uses a part")]

use cxlraid_persist::{Flush, Isa, Kernels};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Bytes before and after every buffer that no kernel may touch.
pub(crate) const ZONE: usize = 128;
const ZONE_BYTE: u8 = 0xa5;

/// `len` bytes at a given misalignment, between zones that must not change.
pub(crate) struct Buffer {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// A copy of `content` that starts `misalignment` bytes after a line boundary.
    pub(crate) fn new(content: &[u8], misalignment: usize) -> Self {
        let mut storage = vec![ZONE_BYTE; content.len() + 2 * ZONE + 128];
        let first = storage.as_ptr() as usize + ZONE;
        let start = ZONE + (first.wrapping_neg() % 64) + misalignment % 64;
        storage[start..start + content.len()].copy_from_slice(content);
        Self { storage, start, len: content.len() }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.storage[self.start..].as_ptr()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.storage[self.start..].as_mut_ptr()
    }

    /// The content; fails if a zone has changed.
    pub(crate) fn content(&self) -> &[u8] {
        let (before, rest) = self.storage.split_at(self.start);
        let (content, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == ZONE_BYTE), "wrote outside the buffer");
        content
    }
}

/// Every instruction set this processor has, with and without write-back, with every way of
/// storing.
pub(crate) fn variants() -> Vec<Kernels> {
    let mut out = Vec::new();
    for isa in Isa::ALL {
        for flush in [Flush::NotNeeded, Flush::Needed] {
            if let Some(kernels) = Kernels::for_isa(isa, flush) {
                out.extend([*kernels, kernels.always_streaming(), kernels.never_streaming()]);
            }
        }
    }
    out
}

/// The product in GF(2^8) with polynomial 0x11d, by its definition.
pub(crate) fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

/// Sum of coefficient i times source i.
pub(crate) fn dot(coefficients: &[u8], sources: &[Vec<u8>], len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    for (&coefficient, source) in coefficients.iter().zip(sources) {
        // 256 products once, not one per byte.
        let products: Vec<u8> = (0..=255).map(|byte| mul(coefficient, byte)).collect();
        out.iter_mut().zip(source).for_each(|(out, &byte)| *out ^= products[byte as usize]);
    }
    out
}

/// 2^i for each column.
pub(crate) fn q_coefficients(columns: usize) -> Vec<u8> {
    std::iter::successors(Some(1), |&power| Some(mul(power, 2))).take(columns).collect()
}

/// Runs `body` while another thread keeps rewriting the buffer of so many bytes whose address it gets.
pub(crate) fn with_changing_buffer(bytes: usize, body: impl FnOnce(*const u8)) {
    let changing: Vec<AtomicU8> = (0..bytes).map(|_| AtomicU8::new(0)).collect();
    let done = AtomicBool::new(false);
    /// Ends the other thread also when an assertion fails.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _end = Done(&done);
        scope.spawn(|| {
            let mut value = 0u8;
            while !done.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                changing.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
            }
        });
        body(changing.as_ptr().cast());
    });
}
