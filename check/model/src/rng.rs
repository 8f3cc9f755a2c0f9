//! A small generator of reproducible numbers.

/// xorshift64*, from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From any seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.word() >> 16) % limit
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Fills a buffer.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}
