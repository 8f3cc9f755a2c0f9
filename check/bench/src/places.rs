//! Where calls go: offsets within a region, one after the other or anywhere.

/// The order of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Sequential,
    Random,
}

impl Order {
    pub(crate) const BOTH: [Self; 2] = [Self::Sequential, Self::Random];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// A source of offsets: multiples of the call's bytes within a region.
pub(crate) struct Places {
    order: Order,
    block_bytes: u64,
    block_count: u64,
    /// The next block in turn, or the state of the random numbers.
    state: u64,
}

impl Places {
    /// Offsets for contender `index` of `count`. Contenders begin in different places, so that none
    /// finds in the caches what the one before it has touched.
    pub(crate) fn new(order: Order, region_bytes: u64, block_bytes: usize, index: usize, count: usize) -> Self {
        let block_count = (region_bytes / block_bytes as u64).max(1);
        let state = match order {
            Order::Sequential => block_count / count as u64 * index as u64,
            Order::Random => 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(index as u64 + 1) | 1,
        };
        Self { order, block_bytes: block_bytes as u64, block_count, state }
    }

    /// Puts the next `count` offsets into `offsets`.
    pub(crate) fn fill(&mut self, offsets: &mut Vec<u64>, count: usize) {
        offsets.clear();
        offsets.extend((0..count).map(|_| self.next_offset()));
    }

    fn next_offset(&mut self) -> u64 {
        let block = match self.order {
            Order::Sequential => {
                self.state = (self.state + 1) % self.block_count;
                self.state
            }
            Order::Random => {
                // xorshift64*
                self.state ^= self.state >> 12;
                self.state ^= self.state << 25;
                self.state ^= self.state >> 27;
                let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d);
                ((u128::from(number) * u128::from(self.block_count)) >> 64) as u64
            }
        };
        block * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_within_the_region_and_reach_all_of_it() {
        for order in Order::BOTH {
            let mut places = Places::new(order, 64 << 10, 4 << 10, 1, 3);
            let mut offsets = Vec::new();
            places.fill(&mut offsets, 1000);
            assert!(offsets.iter().all(|offset| offset % 4096 == 0 && *offset < 64 << 10));
            offsets.sort_unstable();
            offsets.dedup();
            assert_eq!(offsets.len(), 16, "{order:?}");
        }
    }
}
