//! Faults on our mappings: a store or load that only has to wait, or that finds the file grown.

use super::{Mapping, Mappings, PAGE, any, table};
use core::sync::atomic::{AtomicU8, Ordering};
use linux_raw_sys::general::{__NR_nanosleep, __NR_rt_sigprocmask, SIG_SETMASK};
use persist::fault::guard;
use sys::raw::syscall;

/// Every signal but SIGSEGV and SIGBUS, which are never blocked.
const ALL_BUT_FAULTS: u64 = !(1 << 10 | 1 << 6);

/// How long a thread rests that waits for other processes to give up a member.
const REST_NS: u64 = 1_000_000;

/// What a fault comes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The program may try again.
    Again,
    /// It may try again a little later.
    Later,
    /// The fault is the program's own.
    Fault,
}

/// What the program touched and the kernel refused.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) address: usize,
    /// The address of the instruction that did.
    pub(crate) instruction: usize,
    /// Whether for want of a right (SIGSEGV), not of a page (SIGBUS).
    pub(crate) forbidden: bool,
}

/// The kernel refused an access of the program. True if it may try again.
pub(crate) fn resolve(access: Access) -> bool {
    if !any() {
        return false;
    }
    // With the lock held no handler of the program may run; the return from this one restores the mask.
    let before = set_mask(ALL_BUT_FAULTS);
    let outcome = outcome(access);
    if outcome != Outcome::Again {
        set_mask(before);
    }
    if outcome == Outcome::Later {
        let time = [0, REST_NS];
        // SAFETY: the kernel reads two words.
        unsafe { syscall(__NR_nanosleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]) };
    }
    outcome != Outcome::Fault
}

fn outcome(access: Access) -> Outcome {
    let mut table = table();
    let Some(index) = table.at(access.address) else { return Outcome::Fault };
    let mut mapping = table.list.remove(index);
    let outcome = outcome_in(&mut table, &mut mapping, access);
    table.list.insert(index, mapping);
    outcome
}

fn outcome_in(table: &mut Mappings, mapping: &mut Mapping, access: Access) -> Outcome {
    let address = access.address;
    if table.mend_page(mapping, address) {
        return Outcome::Fault;
    }
    match mapping.give(address) {
        Ok(true) => return Outcome::Again,
        Ok(false) => {}
        Err(_) => return if mapping.break_page(address).is_ok() { Outcome::Again } else { Outcome::Fault },
    }
    if address < mapping.composed && !mapping.sealed && !mapping.copied {
        // A member may have failed that nobody has read since: reading finds out.
        let mut byte = 0;
        // SAFETY: one byte of our own.
        let _ = unsafe { mapping.file.read_at(mapping.offset_at(address), &raw mut byte, 1) };
    }
    let changed = table.follow_size(mapping).unwrap_or(false);
    match (changed, mapping.sealed) {
        (true, _) => Outcome::Again,
        (false, true) => Outcome::Later,
        // Another thread met the same and was here first.
        (false, false) if is_possible(mapping, access) => Outcome::Again,
        (false, false) => Outcome::Fault,
    }
}

/// Whether the access would not fault now. Of a mapping that can be stored to a store is tried, which leaves the byte as it is: that loads are possible
/// says nothing of a store.
fn is_possible(mapping: &Mapping, access: Access) -> bool {
    let (address, stores) = (access.address, mapping.is_writable());
    // What may only be loaded was stored to, or what may be both was to be executed: a fault however often it is tried.
    let own = access.forbidden && !stores || access.instruction == address;
    if own || address >= mapping.composed {
        return false;
    }
    let byte = address as *const AtomicU8;
    let attempt = || {
        // SAFETY: a byte of a mapping of ours, whose loss the guard reports; the program's own accesses to it are not ordered with this one.
        let present = unsafe { (*byte).load(Ordering::Relaxed) };
        if stores {
            // The processor asks for the right to store even if the byte has become another one.
            // SAFETY: as above.
            let _ = unsafe { (*byte).compare_exchange(present, present, Ordering::Relaxed, Ordering::Relaxed) };
        }
    };
    // SAFETY: the closure owns nothing; no guard is active where the program faults.
    unsafe { guard(attempt) }.is_ok()
}

/// A call found no way to store to a buffer of the program. Says whether it may now.
pub(crate) fn let_through(address: usize, bytes: usize) -> bool {
    if !any() {
        return false;
    }
    let end = address.saturating_add(bytes);
    let mut table = table();
    let mut given = false;
    for index in table.touching(address, end) {
        let mapping = &mut table.list[index];
        let (from, to) = mapping.part(address, end);
        for page in (from / PAGE * PAGE..to).step_by(PAGE) {
            given |= mapping.give(page).unwrap_or(false);
        }
    }
    given
}

/// Brings every mapping up to date with its file's size. Says whether anything changed.
pub(crate) fn catch_up() -> bool {
    if !any() {
        return false;
    }
    let mut table = table();
    let mut changed = false;
    for index in 0..table.list.len() {
        let mut mapping = table.list.remove(index);
        changed |= table.follow_size(&mut mapping).unwrap_or(false);
        table.list.insert(index, mapping);
    }
    changed
}

fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let arguments = [SIG_SETMASK as usize, &raw const mask as usize, &raw mut old as usize, 8, 0, 0];
    // SAFETY: both masks outlive the call.
    unsafe { syscall(__NR_rt_sigprocmask as usize, arguments) };
    old
}
