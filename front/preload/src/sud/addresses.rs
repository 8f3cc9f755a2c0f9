//! A map from addresses to words. Signal handlers of any thread look up and add entries without a
//! lock; entries are never removed.
//!
//! Invariants: the address of a place changes once, from 0. Neither an address nor a word that is
//! added is 0.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// How many places the map has.
const PLACE_COUNT: usize = 1 << 16;
/// The map is full when so many places are used, or one more per thread that adds an entry at that
/// moment. A search for an address that is not there ends at a free place.
const USED_COUNT_MAX: usize = PLACE_COUNT / 4 * 3;

/// Room for one entry.
struct Place {
    /// 0: the place is free.
    address: AtomicUsize,
    /// 0 from the time the address is stored until its word is.
    word: AtomicUsize,
}

/// The map: open addressing, in memory that is mapped when it is prepared.
pub(super) struct Addresses {
    places: AtomicPtr<Place>,
    /// How many places are not free.
    used_count: AtomicUsize,
}

impl Addresses {
    pub(super) const fn new() -> Self {
        Self { places: AtomicPtr::new(core::ptr::null_mut()), used_count: AtomicUsize::new(0) }
    }

    /// Maps the map's memory. To be called once; before, `get` finds nothing and `insert` adds
    /// nothing.
    pub(super) fn prepare(&self) -> sys::Result<()> {
        let memory = crate::alloc::map_anonymous(PLACE_COUNT * size_of::<Place>())?;
        self.places.store(memory as *mut Place, Ordering::Release);
        Ok(())
    }

    fn places(&self) -> &[Place] {
        let places = self.places.load(Ordering::Acquire);
        if places.is_null() {
            return &[];
        }
        // SAFETY: mapped for good by `prepare`, zeroed (free places), PLACE_COUNT long.
        unsafe { core::slice::from_raw_parts(places, PLACE_COUNT) }
    }

    /// The places in which `address` may be, in the order they are tried.
    fn tried(&self, address: usize) -> impl Iterator<Item = &Place> {
        let places = self.places();
        // Fibonacci hashing: the upper bits of the product, as many as number a place.
        let first = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - PLACE_COUNT.ilog2());
        (0..places.len()).map(move |step| &places[(first + step) % PLACE_COUNT])
    }

    /// The word of `address`; None if the address was not added, or is being added at this moment.
    pub(super) fn get(&self, address: usize) -> Option<usize> {
        for place in self.tried(address) {
            match place.address.load(Ordering::Acquire) {
                0 => return None,
                found if found == address => return Some(place.word.load(Ordering::Acquire)).filter(|word| *word != 0),
                _ => {}
            }
        }
        None
    }

    /// Adds `address` with `word`, or replaces its word; neither may be 0. If two threads add one
    /// address at a time, the word of one of them stays. False if the map is full, also for an
    /// address that is in it, or not prepared.
    pub(super) fn insert(&self, address: usize, word: usize) -> bool {
        debug_assert!(address != 0 && word != 0, "0 stands for what is free");
        if self.used_count.load(Ordering::Relaxed) >= USED_COUNT_MAX {
            return false;
        }
        for place in self.tried(address) {
            let claimed = place.address.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() {
                self.used_count.fetch_add(1, Ordering::Relaxed);
            }
            if claimed.is_ok() || claimed == Err(address) {
                place.word.store(word, Ordering::Release);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_and_nothing_else() {
        let addresses = Addresses::new();
        assert_eq!(addresses.get(0x1000), None);
        assert!(!addresses.insert(0x1000, 1), "there is no memory yet");
        addresses.prepare().unwrap();
        for address in (1..=USED_COUNT_MAX).map(|index| index * 0x1000) {
            assert!(addresses.insert(address, address + 1));
        }
        assert!(!addresses.insert(7, 1), "it is full");
        for address in (1..=USED_COUNT_MAX).map(|index| index * 0x1000) {
            assert_eq!(addresses.get(address), Some(address + 1));
            assert_eq!(addresses.get(address + 1), None);
        }
    }
}
