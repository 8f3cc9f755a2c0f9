//! A set of addresses with a word each, which signal handlers of any thread read and add to without a lock.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Places; three quarters of them are used at most.
const PLACE_COUNT: usize = 1 << 16;
const USED_COUNT_MAX: usize = PLACE_COUNT / 4 * 3;

/// An address, 0 in a free place, and its word, 0 while it is being added.
struct Place {
    address: AtomicUsize,
    word: AtomicUsize,
}

/// The set: open addressing in memory that is mapped when it is prepared.
pub(super) struct Addresses {
    places: AtomicPtr<Place>,
    used: AtomicUsize,
}

impl Addresses {
    pub(super) const fn new() -> Self {
        Self { places: AtomicPtr::new(core::ptr::null_mut()), used: AtomicUsize::new(0) }
    }

    /// Maps its memory. Before that it is empty and takes nothing.
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
        let first = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        (0..places.len()).map(move |step| &places[(first + step) % PLACE_COUNT])
    }

    /// The word of `address`.
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

    /// Adds `address`; of two threads that do so at a time one has its `word` (not 0) stay. False if there is no room.
    pub(super) fn insert(&self, address: usize, word: usize) -> bool {
        if self.used.load(Ordering::Relaxed) >= USED_COUNT_MAX {
            return false;
        }
        for place in self.tried(address) {
            let claimed = place.address.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() {
                self.used.fetch_add(1, Ordering::Relaxed);
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
