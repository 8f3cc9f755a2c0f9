//! Where in a program's address space the library maps memory of its own.
//!
//! The kernel puts a new mapping into the highest hole that is large enough. But a program may
//! count on a hole that it has made itself: it maps something there again by its address
//! (MAP_FIXED), or has a stack grow down into it (MAP_GROWSDOWN). So the library's mappings go to a
//! part of the address space that the kernel and programs leave alone. That part is only wished for
//! (an address without MAP_FIXED): where something lies already, the kernel chooses another place.

use core::sync::atomic::{AtomicUsize, Ordering};

/// The part: below where the kernel puts programs that can lie anywhere (0x5555_5555_4000 and
/// above), their heaps, mappings and stacks. It is one of the parts in which the sanitizers of
/// compilers let a program have memory; ThreadSanitizer ends a program that has some elsewhere
/// (from 0x5500_0000_0000 to 0x5680_0000_0000 it may).
const START: usize = 0x5500_0000_0000;
const END: usize = 0x5550_0000_0000;
const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The part as a range of addresses.
pub const PART: core::ops::Range<usize> = START..END;

/// Where the next mapping is wished for; 0 before the first one.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// An address for a mapping of so many bytes, to be handed to mmap(2) as a wish. Mappings that may
/// have huge pages begin at a multiple of one.
pub fn wish(bytes: usize) -> usize {
    let unit = if bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES };
    // What is left free behind a mapping keeps stray stores out of the next one.
    let taken = bytes.checked_next_multiple_of(unit).and_then(|bytes| bytes.checked_add(unit));
    let Some(taken) = taken.filter(|&taken| taken <= END - START) else { return 0 };
    let first = begin();
    let mut seen = NEXT.load(Ordering::Relaxed);
    loop {
        let from = if seen == 0 { first } else { seen }.next_multiple_of(unit);
        let start = if taken > END - from.min(END) { START } else { from };
        match NEXT.compare_exchange_weak(seen, start + taken, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return start,
            Err(other) => seen = other,
        }
    }
}

/// Where the first mapping goes: nobody knows it beforehand.
fn begin() -> usize {
    if NEXT.load(Ordering::Relaxed) != 0 {
        return START;
    }
    // Without random bytes the address is known, and good.
    let word = crate::random::bytes().map_or(0, usize::from_ne_bytes);
    START + word % ((END - START) / 2) / PAGE_BYTES * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn mappings_lie_apart_in_their_part_of_the_address_space() {
        let mut last = 0..0;
        for bytes in [1, 4096, 70_000, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 1, 5000] {
            let wish = wish(bytes);
            assert!(wish >= START && wish + bytes <= END);
            assert!(!last.contains(&wish) && !last.contains(&(wish + bytes)));
            assert!(wish.is_multiple_of(if bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES }));
            // SAFETY: a new mapping that nobody else knows.
            unsafe {
                let made = mmap_anonymous(wish as *mut _, bytes, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
                assert_eq!(made as usize, wish, "something lies there");
                munmap(made, bytes).unwrap();
            }
            last = wish..wish + bytes;
        }
        assert_eq!((wish(END), wish(usize::MAX)), (0, 0));
    }

    #[test]
    fn the_part_is_used_again_when_it_was_gone_through() {
        let half = (END - START) / 2;
        let wishes = [wish(half), wish(half), wish(half)];
        assert!(wishes.iter().all(|&wish| wish >= START && wish + half <= END), "{wishes:x?}");
    }
}
