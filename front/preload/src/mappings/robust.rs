//! Locks that the kernel gives back for a thread that ends (get_robust_list(2)): mutexes with
//! PTHREAD_MUTEX_ROBUST, of which the kernel stores into the lock's word that its owner has died.
//!
//! The kernel does not store to a protected page, and then nobody who waits for the lock is woken.
//! So what holds the word of such a lock keeps the right to be stored to for as long as a thread
//! has the lock ([`super::rights`]).

use crate::{program, stack};
use heap::vec::Vec;
use linux_raw_sys::general::__NR_get_robust_list;
use sys::raw::{check, syscall};

/// The most locks of a thread that the kernel gives back (ROBUST_LIST_LIMIT).
const LOCK_COUNT_MAX: usize = 2048;
/// In the address of an entry: the lock inherits priorities.
const INHERITS: usize = 1;

/// `struct robust_list_head`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    first: usize,
    /// How far behind an entry its lock's word lies.
    distance: isize,
    /// An entry that is just being added or taken away.
    pending: usize,
}

/// Where the words of the locks lie that threads of this process have.
pub(super) fn words() -> Vec<usize> {
    let mut found = Vec::new();
    for thread in stack::threads() {
        let (mut head_at, mut bytes) = (0_usize, 0_usize);
        let args = [thread, &raw mut head_at as usize, &raw mut bytes as usize, 0, 0, 0];
        // SAFETY: the kernel stores two words.
        if check(unsafe { syscall(__NR_get_robust_list as usize, args) }).is_ok() {
            add(head_at, &mut found);
        }
    }
    found
}

fn add(head_at: usize, found: &mut Vec<usize>) {
    let Ok(head) = program::read::<Head>(head_at) else { return };
    let word = |entry: usize| (entry & !INHERITS).wrapping_add_signed(head.distance);
    if head.pending != 0 {
        found.push(word(head.pending));
    }
    // The program may change the list meanwhile: what it says is looked at and nothing else.
    let mut entry = head.first;
    for _ in 0..LOCK_COUNT_MAX {
        if entry & !INHERITS == head_at || entry == 0 {
            return;
        }
        found.push(word(entry));
        let Ok(next) = program::read::<usize>(entry & !INHERITS) else { return };
        entry = next;
    }
}
