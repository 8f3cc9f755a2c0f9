//! Faults on mappings of array files: a store or load that only has to wait, or that finds that the
//! file has grown.

use super::private::Mended;
use super::{Mapping, Mappings, PAGE, any, table};
use crate::arch::context::Refused;
use crate::arch::helper::on_stack;
use crate::mask::{ALL_BUT_FAULTS, set_mask};
use crate::uapi::{SS_AUTODISARM, SS_DISABLE};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general::{__NR_nanosleep, __NR_sigaltstack, PROT_EXEC};
use persist::fault::guard;
use sys::OsError;
use sys::raw::syscall;

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

/// The party that has met a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Party {
    /// An instruction of the program.
    Program,
    /// A call of the program, in an access to the program's memory on its behalf.
    Call,
}

/// What the program touched and the kernel refused.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) address: usize,
    /// Whether for want of a right (SIGSEGV), not of a page (SIGBUS).
    pub(crate) forbidden: bool,
    pub(crate) refused: Refused,
}

/// The addresses between which the mappings of the array's files have been so far, and what they
/// were put over. They only grow: when a fault is looked at, another thread may have replaced the
/// mapping that it was on, and it may have been on addresses that are reserved for one.
static REACH_START: AtomicUsize = AtomicUsize::new(usize::MAX);
static REACH_END: AtomicUsize = AtomicUsize::new(0);

/// From now on faults in `start..end` may be those of mappings. The table's lock is held, and the
/// stack is there ([`prepare_stack`]).
pub(super) fn reach(start: usize, end: usize) {
    REACH_START.fetch_min(start, Ordering::AcqRel);
    REACH_END.fetch_max(end, Ordering::AcqRel);
}

fn may_be_ours(address: usize) -> bool {
    REACH_START.load(Ordering::Acquire) <= address && address < REACH_END.load(Ordering::Acquire)
}

/// In a deputy: no mapping is its own.
pub(super) fn abandon() {
    REACH_END.store(0, Ordering::Release);
    REACH_START.store(usize::MAX, Ordering::Release);
}

/// The kernel refused an access of the program. True if it may try again.
pub(crate) fn resolve(access: Access) -> bool {
    // Also where there is no mapping any more: another thread may have put something else there since.
    if !may_be_ours(access.address) {
        return false;
    }
    // With the lock held no handler of the program may run; the return from this one restores the
    // mask.
    let before = set_mask(ALL_BUT_FAULTS);
    let outcome = outcome(access);
    if outcome != Outcome::Again {
        set_mask(before);
    }
    if outcome == Outcome::Later {
        rest();
    }
    outcome != Outcome::Fault
}

fn rest() {
    let time = [0, REST_NS];
    // SAFETY: the kernel reads two words.
    unsafe { syscall(__NR_nanosleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

/// What a fault needs that is looked into with the table's lock held, on the stack that goes with
/// the lock: the program's own may be one for signals, of a few KiB.
struct Inquiry {
    table: *mut Mappings,
    access: Access,
    outcome: Outcome,
}

/// The end of that stack; 0 before the first mapping.
static STACK_TOP: AtomicUsize = AtomicUsize::new(0);
const STACK_BYTES: usize = 256 << 10;

/// Makes the stack. The table's lock is held.
pub(super) fn prepare_stack() -> Result<(), OsError> {
    if STACK_TOP.load(Ordering::Relaxed) == 0 {
        STACK_TOP.store(crate::alloc::map_anonymous(STACK_BYTES)? + STACK_BYTES, Ordering::Relaxed);
    }
    Ok(())
}

fn outcome(access: Access) -> Outcome {
    let mut table = table();
    let mut inquiry = Inquiry { table: &raw mut *table, access, outcome: Outcome::Fault };
    // SAFETY: the stack is that of who holds the lock; the inquiry outlives the call.
    unsafe { on_stack(STACK_TOP.load(Ordering::Relaxed), inquire, &raw mut inquiry as usize) };
    inquiry.outcome
}

extern "C" fn inquire(inquiry: usize) {
    // SAFETY: `outcome` gave its own, and waits.
    let inquiry = unsafe { &mut *(inquiry as *mut Inquiry) };
    // A fault of our own in here must not begin at the top of the stack for signals: the program's
    // is still on it.
    let (disabled, mut before) = ([0, SS_DISABLE, 0], [0usize; 3]);
    // SAFETY: three words each; no code of the program runs before the stack is given back.
    unsafe { syscall(__NR_sigaltstack as usize, [&raw const disabled as usize, &raw mut before as usize, 0, 0, 0, 0]) };
    // SAFETY: the lock is held by `outcome`, which does not use its guard meanwhile.
    inquiry.outcome = outcome_of(unsafe { &mut *inquiry.table }, inquiry.access, Party::Program);
    if before[1] & SS_DISABLE == 0 {
        before[1] &= SS_AUTODISARM;
        // SAFETY: as above.
        unsafe { syscall(__NR_sigaltstack as usize, [&raw const before as usize, 0, 0, 0, 0, 0]) };
    }
}

fn outcome_of(table: &mut Mappings, access: Access, party: Party) -> Outcome {
    let Some(index) = table.at(access.address) else {
        let stores = access.refused == Refused::Store;
        let mended = if access.forbidden { Mended::No } else { table.mend_private(access.address, stores) };
        let is_there = mended != Mended::No || is_possible_elsewhere(access);
        return if is_there { Outcome::Again } else { Outcome::Fault };
    };
    let mut mapping = table.list.remove(index);
    let outcome = outcome_in(table, &mut mapping, access, party);
    table.list.insert(index, mapping);
    if has_changed() {
        table.catch_up();
    }
    outcome
}

fn outcome_in(table: &mut Mappings, mapping: &mut Mapping, access: Access, party: Party) -> Outcome {
    let address = access.address;
    if table.mend_page(mapping, address) && party == Party::Program {
        return Outcome::Fault;
    }
    // Also where no right was missing: another thread may have composed the page since.
    let given = match mapping.give(address, table.tracker.as_ref()) {
        Err(OsError::NOMEM) => table.give_unsplit(mapping, address),
        given => given,
    };
    match given {
        Ok(true) => return Outcome::Again,
        Ok(false) => {}
        // The call answers EFAULT; an instruction is to end in SIGBUS.
        Err(_) if party == Party::Call => return Outcome::Fault,
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

/// Tells whether the access would not fault now. A store is tried, which leaves the byte as it is: that
/// loads are possible says nothing of a store.
fn is_possible(mapping: &Mapping, access: Access) -> bool {
    let stores = match access.refused {
        Refused::Load => false,
        Refused::Store => true,
        // What may not be executed is a fault however often it is tried.
        Refused::Fetch if mapping.protection & PROT_EXEC as usize != 0 => false,
        // The memory itself has failed, and the processor says no more.
        Refused::Other if !access.forbidden => mapping.is_writable(),
        Refused::Fetch | Refused::Other => return false,
    };
    access.address < mapping.composed && is_reachable(access.address, stores)
}

/// Tells whether an access to what is none of the table's mappings would not fault now. Another thread
/// may have put something else in the place of a mapping since, from which stores were kept out until
/// then. An access that would fault again is the program's: what is tried here is what the processor
/// has refused.
fn is_possible_elsewhere(access: Access) -> bool {
    match access.refused {
        Refused::Load => is_reachable(access.address, false),
        Refused::Store => is_reachable(access.address, true),
        Refused::Fetch | Refused::Other => false,
    }
}

/// Tells whether the byte at an address can be loaded, and stored to if `stores`. It stays as it is.
pub(super) fn is_reachable(address: usize, stores: bool) -> bool {
    let byte = address as *const AtomicU8;
    let attempt = || {
        // SAFETY: a byte of the program's memory, whose loss the guard reports; the program's own
        // accesses to it are not ordered with this one.
        let present = unsafe { (*byte).load(Ordering::Relaxed) };
        if stores {
            // The processor asks for the right to store even if the byte has become another one.
            // SAFETY: as above.
            let _ = unsafe { (*byte).compare_exchange(present, present, Ordering::Relaxed, Ordering::Relaxed) };
        }
    };
    // SAFETY: the closure owns nothing; no guard is active where the program faults, or after a
    // served call.
    unsafe { guard(attempt) }.is_ok()
}

/// Before a served call: where guarded accesses of this thread have met faults is no matter of this
/// call.
#[inline]
pub(crate) fn forget() {
    sys::thread::block().fault_address.store(0, Ordering::Relaxed);
}

/// A guarded access of this thread has met a fault.
pub(crate) fn note(access: Access) {
    let kind = access.refused as u32 | if access.forbidden { FORBIDDEN } else { 0 };
    sys::thread::block().fault_kind.store(kind, Ordering::Relaxed);
}

/// The bit of [`sys::thread::ThreadBlock::fault_kind`] beside a [`Refused`].
const FORBIDDEN: u32 = 1 << 2;

/// Returns the guarded access of this thread that has met a fault last since [`forget`]. None if the
/// kernel alone has met one, or if the address is none that a program can have.
pub(crate) fn last() -> Option<Access> {
    let block = sys::thread::block();
    let address = block.fault_address.load(Ordering::Relaxed);
    let kind = block.fault_kind.load(Ordering::Relaxed);
    let kinds = [Refused::Load, Refused::Store, Refused::Fetch, Refused::Other];
    let refused = kinds.into_iter().find(|&refused| refused as u32 == kind & !FORBIDDEN)?;
    (address != 0).then_some(Access { address, forbidden: kind & FORBIDDEN != 0, refused })
}

/// A served call met a fault. Does what is done about a fault of the program's own ([`resolve`]), and
/// waits while stores there are kept out. Returns whether the call may be tried again: its access is
/// possible now, so if it faults again, another thread has changed the mapping meanwhile.
pub(crate) fn resolve_for_call(access: Access) -> bool {
    if !may_be_ours(access.address) {
        return false;
    }
    loop {
        let mut table = table();
        let outcome = outcome_of(&mut table, access, Party::Call);
        drop(table);
        match outcome {
            Outcome::Again => return true,
            Outcome::Fault => return false,
            Outcome::Later => rest(),
        }
    }
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
        let (from, to) = table.list[index].part(address, end);
        given |= table.give_part(index, from / PAGE * PAGE, to);
    }
    given
}

/// The state of members that every mapping was last brought up to date with.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// After a call: if it found a member failing, stores through mappings that may not land there any
/// more are kept out before the program goes on, and mappings of other processes do not show it any
/// more.
#[inline]
pub(crate) fn notice_members() {
    if any() | array::runtime::others_are_to_hear() {
        attend();
    }
}

/// Whether the process ends: the table's lock is held for good, also by the thread whose call ends
/// it.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The process ends.
pub(super) fn notice_no_more() {
    ENDS.store(true, Ordering::Relaxed);
}

#[cold]
fn attend() {
    if any() && !ENDS.load(Ordering::Relaxed) && has_changed() {
        catch_up();
    }
    // Not in the thread that hears the others: they may be waiting for it.
    if array::runtime::others_are_to_hear()
        && let Ok(namespace) = crate::array::namespace()
    {
        let runtime = namespace.files().array().runtime();
        if runtime.is_lost() {
            crate::array::tell_segment_loss();
        }
        runtime.await_others();
    }
}

/// Whether members went out or came back since this was last asked.
#[cold]
pub(super) fn has_changed() -> bool {
    let Ok(namespace) = crate::array::namespace() else { return false };
    let epoch = namespace.files().array().runtime().epoch();
    EPOCH.swap(epoch, Ordering::AcqRel) != epoch
}

/// Brings every mapping up to date with its file's size. Says whether anything changed.
pub(crate) fn catch_up() -> bool {
    if !any() {
        return false;
    }
    table().catch_up()
}

impl Mappings {
    pub(super) fn catch_up(&mut self) -> bool {
        let mut changed = false;
        for index in 0..self.list.len() {
            let mut mapping = self.list.remove(index);
            changed |= self.follow_size(&mut mapping).unwrap_or(false);
            self.list.insert(index, mapping);
        }
        changed
    }
}
