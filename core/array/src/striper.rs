//! The striper: reads and writes of a file's bytes on its members, whatever the level.
//!
//! For all but reads the caller (core/file) holds the stripe locks of the range, and has allocated
//! its space on every member in use. It clamps reads to the size and finds out afterwards whether a
//! writer has torn them. It fences. Here are no locks, no sizes and no allocation. The only system
//! calls are those of a medium that is not mapped.
//!
//! Invariants:
//! - Every public function of [`Striper`] runs under one fault guard, so none is called inside a
//!   guard. A fault names a member or the program's buffer; nothing is retried here.
//! - The bytes of members that a call touches are those of the range and, for levels with parity,
//!   the same bytes of every chunk of its stripes ("rows"). None lies past
//!   `Geometry::member_bytes(offset + bytes)`: a backing file of that length is long enough.
//! - Where the program's bytes go to several places they are loaded from its buffer once. If the
//!   program changes the buffer meanwhile, old or new bytes are written, but copies and parities
//!   agree with the data.
//! - After a **write or zero that failed**, redundancy of the range may not fit its data: the
//!   caller resyncs the range before it lets go of the locks. [`Striper::write`] finds a bad
//!   address of the program before the first store, unless the program unmaps its buffer meanwhile.

use crate::level::{self, LevelTable};
use crate::member::has_failed;
use crate::mirror;
use crate::shares::Reading;
use crate::sums::{Parity, Summing};
use crate::undo::UndoRecord;
use core::mem::MaybeUninit;
use layout::Geometry;
use medium::Medium;
use persist::{Kernels, fault};
use sys::OsError;
use units::{MemberSet, PAGE_BYTES, Slot};

/// Size of the buffers on the stack through which operations pass bytes that cannot be worked on in
/// place, and of the steps they take then.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Zeros, to be stored to what is not mapped.
pub(crate) static ZEROS: Block = Block([0; BLOCK_BYTES]);

/// A block of bytes at the boundary of a cache line.
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [u8; BLOCK_BYTES]);

/// One file on its members.
#[derive(Debug)]
pub struct Striper<'a, M> {
    /// The shape of the file.
    pub geometry: &'a Geometry,
    /// The backing files by slot, at least `geometry.member_count()`; None for one that is not
    /// open.
    pub members: &'a [Option<M>],
    /// The members that are out. The caller includes those whose backing file is not open
    /// ([`absent`]): they are not searched for on every call.
    pub out: MemberSet,
    /// The file's place where copies take turns to be read: its number, so that files are spread
    /// over the copies. Whatever it is, the bytes are the same.
    pub turn: u64,
    /// How a read chooses among copies.
    pub reading: Reading<'a>,
    /// The copy and parity kernels for the members' persistence domain (`persist::kernels_for`). If
    /// the members have several domains, it is the one whose stores have to get furthest.
    pub kernels: &'static Kernels,
    /// The undo record in which a write saves what makes a block whole again, while a member with
    /// data of the block's stripe is out. None if no process would ever put it back.
    pub undo: Option<UndoRecord<'a>>,
    /// What becomes of the sums of what is stored to ([`crate::sums`]).
    pub sums: Summing,
}

/// Why an operation on a range stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoFault {
    /// A member's memory faulted, or its file system says that it has failed: the member has
    /// failed, or its backing file is shorter than it must be.
    Member(Slot),
    /// The fault was in no member's memory, so it was the program's buffer that is not mapped.
    BadAddress,
    /// More members are out than the level bears for this range.
    Lost,
    /// A system call on a member that is not mapped gave this error.
    Os(OsError),
}

impl core::fmt::Display for IoFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Member(slot) => write!(f, "member {slot} failed"),
            Self::BadAddress => f.write_str("the buffer is not mapped"),
            Self::Lost => f.write_str("more members are out than the level bears"),
            Self::Os(error) => write!(f, "a member's file system said {error}"),
        }
    }
}

impl core::error::Error for IoFault {}

/// Why an operation returned early. Its variants are those of [`IoFault`], but here they come from
/// checks and system calls: an operation whose memory faults does not return, the guard ends it.
///
/// [`Done`], which holds it, fits a register on purpose. When it was returned in memory, it was
/// written by two stores and read by one load. Such a load waits until the stores before it, here
/// those to the members, have left the processor: 400 ns per random write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    BadAddress,
    Lost,
    /// A member whose file system has failed.
    Member(u8),
    Os(OsError),
}

impl Stop {
    /// What the error of a system call on the member at `slot`, which is not mapped, means. The
    /// file system may have refused the mapping because it has failed; then it refuses the call as
    /// well.
    #[cold]
    fn after_call(slot: Slot, error: OsError) -> Self {
        match error {
            // The kernel met a pointer that is not mapped: the program's, since the library's own
            // always are.
            OsError::FAULT => Self::BadAddress,
            // The file is open for writing, so EROFS does not speak of this process' mount: the
            // file system has made itself read-only.
            error if error == OsError::ROFS || has_failed(error) => Self::Member(slot as u8),
            error => Self::Os(error),
        }
    }
}

impl From<Stop> for IoFault {
    #[cold]
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::BadAddress => Self::BadAddress,
            Stop::Lost => Self::Lost,
            Stop::Member(slot) => Self::Member(usize::from(slot)),
            Stop::Os(error) => Self::Os(error),
        }
    }
}

/// What every step of an operation returns.
pub(crate) type Done = Result<(), Stop>;

const _: () = assert!(size_of::<Done>() <= 8);

impl<M: Medium> Striper<'_, M> {
    /// Reads the range, reconstructing what is on members that are out.
    ///
    /// # Safety
    /// `dst..dst + bytes` is the program's and may be written to, or is not mapped (then
    /// [`IoFault::BadAddress`]). No guard is open.
    #[inline]
    pub unsafe fn read(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), IoFault> {
        let Some(from) = self.in_one_piece(offset, bytes) else {
            // SAFETY: the caller's promise.
            return unsafe { self.read_pieces(offset, dst, bytes) };
        };
        let kernels = self.kernels;
        // SAFETY: mapped for `bytes`; the buffer is the caller's promise. The closure owns nothing,
        // and no guard is open.
        let result = unsafe { fault::guard(move || kernels.copy_from_media(dst, from, bytes)) };
        result.map_err(|fault| self.blame(fault.address))
    }

    /// Where the range is mapped, if it lies in one piece on one member in use that may be read just
    /// because it is its turn: then reading is no more than one copy.
    ///
    /// The load of the first byte waits for every instruction before it, so this function does
    /// nothing but find the place.
    #[inline(always)]
    fn in_one_piece(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let geometry = self.geometry;
        let (slot, member_offset, left) = if geometry.level().has_chunks() {
            let place = geometry.locate(offset);
            let at = geometry.member_offset(place.stripe) + place.within;
            let copy = if geometry.copy_count() == 1 { 0 } else { mirror::preferred_copy(geometry, at, self.turn) };
            (geometry.data_slot(place.stripe, place.column, copy), at, geometry.chunk().bytes() - place.within)
        } else {
            // RAID 1: each member holds a copy of all bytes, so the number of a copy is a slot.
            (mirror::preferred_copy(geometry, offset, self.turn), offset, mirror::region_left(offset))
        };
        if bytes as u64 > left || self.out.union(self.reading.asked).contains(slot) {
            return None;
        }
        let span = self.members.get(slot)?.as_ref()?.span_to_load(member_offset, bytes)?;
        (span.bytes >= bytes).then_some(span.start.as_ptr().cast_const())
    }

    /// [`Self::read`] of a range that is not mapped in one piece, or whose member is out or not to
    /// be read just because it is its turn.
    ///
    /// # Safety
    /// As for [`Self::read`].
    #[inline(never)]
    unsafe fn read_pieces(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), IoFault> {
        let io = self.io();
        // SAFETY: the buffer is the caller's promise.
        self.guarded(|| unsafe { (self.table().read)(&io, offset, dst, bytes) })
    }

    /// Writes the range with its redundancy.
    ///
    /// Data of a chunk whose member is out goes into the parities or copies only. A parity or copy
    /// whose member is out is not written. An error may leave any part of the range written; the
    /// module's invariants say what the caller does then.
    ///
    /// # Safety
    /// `src..src + bytes` is the program's, or not mapped (then [`IoFault::BadAddress`]). No guard
    /// is open. The caller holds the locks of the range and has allocated it on all members in use.
    #[inline]
    pub unsafe fn write(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        if self.sums != Summing::Off {
            // SAFETY: the caller's promise.
            return unsafe { self.write_summed(offset, src, bytes) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_unsummed(offset, src, bytes) }
    }

    /// # Safety
    /// As for [`Self::write`].
    #[inline(always)]
    pub(crate) unsafe fn write_unsummed(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        let io = self.io();
        self.guarded(|| {
            // SAFETY: the buffer is the caller's promise.
            unsafe {
                probe(src, bytes);
                (self.table().write)(&io, offset, src, bytes)
            }
        })
    }

    /// Loads a byte of each page of the program's buffer, so that a bad address is found before
    /// anything is stored.
    ///
    /// # Safety
    /// As for [`Self::write`].
    pub unsafe fn probe_source(&self, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        self.guarded(|| {
            // SAFETY: inside a guard.
            unsafe { probe(src, bytes) };
            Ok(())
        })
    }

    /// Writes zeros with their redundancy. No guard is open; the caller holds the locks of the
    /// range and has allocated it on all members in use.
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<(), IoFault> {
        let io = self.io();
        let act = || self.guarded(|| (self.table().zero)(&io, offset, bytes));
        if self.sums == Summing::Off { act() } else { self.summed(offset, bytes, Parity::Otherwise, act) }
    }

    /// Stores what `record` saved back to the members in use. [`IoFault::Os`] with `IO` if the
    /// record is damaged. No guard is open.
    pub fn put_back(&self, record: &UndoRecord<'_>) -> Result<(), IoFault> {
        let io = self.io();
        let Some((members, offset, bytes)) = record.saved(self.members.len()) else { return Err(IoFault::Os(OsError::IO)) };
        members.iter().try_for_each(|slot| self.forget_sums_on(slot, offset, bytes as u64))?;
        self.guarded(|| {
            for (index, slot) in members.iter().enumerate().filter(|(_, slot)| !io.out.contains(*slot)) {
                // SAFETY: the record saves that many bytes of each member; inside a guard.
                unsafe { io.store(slot, offset, record.place(index, members.len()), bytes)? };
            }
            Ok(())
        })
    }

    /// Makes redundancy agree with the data again: copies are taken from the lowest member in use,
    /// parities are computed from the data. The range is widened to whole rows. No guard is open.
    ///
    /// If a data chunk of a stripe is out, its parities say what the chunk holds, and are believed.
    /// Then nothing is changed, but at RAID 6 with both parities: P is believed, and Q made to
    /// agree with it.
    pub fn resync(&self, offset: u64, bytes: u64) -> Result<(), IoFault> {
        self.forget_sums(offset, bytes)?;
        let io = self.io();
        self.guarded(|| (self.table().resync)(&io, offset, bytes))
    }

    /// How many bytes of redundancy disagree with the data in the range, widened to whole rows:
    /// bytes of copies that differ from the copy on the lowest member in use, and bytes of P and of
    /// Q that are not what the data says. What cannot be told because a data chunk is out counts as
    /// agreeing. No guard is open.
    pub fn verify(&self, offset: u64, bytes: u64) -> Result<u64, IoFault> {
        let io = self.io();
        let mut mismatches = 0;
        let count = &mut mismatches;
        self.guarded(|| (self.table().verify)(&io, offset, bytes).map(|found| *count = found))?;
        Ok(mismatches)
    }

    /// [`Self::write`] for a caller that has opened the guard, and without a look at the buffer
    /// before. For levels without parity.
    ///
    /// # Safety
    /// As for [`Self::write`], but inside a guard.
    #[inline]
    pub(crate) unsafe fn write_guarded(&self, offset: u64, src: *const u8, bytes: usize) -> Done {
        // SAFETY: the buffer is the caller's promise.
        unsafe { (self.table().write)(&self.io(), offset, src, bytes) }
    }

    #[inline(always)]
    pub(crate) fn io(&self) -> Io<'_, M> {
        debug_assert!(absent(self.members).minus(self.out).is_empty(), "a member that is not open is out");
        let Self { geometry, members, out, turn, reading, kernels, undo, sums: _ } = *self;
        Io { geometry, members, out, turn, reading, kernels, undo }
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> LevelTable<M> {
        level::table(self.geometry.level())
    }

    /// Runs `operation` under a guard. The error is the operation's own, or says whose memory
    /// faulted.
    #[inline(always)]
    pub(crate) fn guarded(&self, operation: impl FnOnce() -> Done) -> Result<(), IoFault> {
        let mut done = Ok(());
        let result = &mut done;
        // SAFETY: nothing in this crate's operations owns anything or takes a lock; a half-done
        // write is dealt with by the caller (module docs). No guard is open: the public functions
        // say so, and nothing below opens one.
        match unsafe { fault::guard(|| *result = operation()) } {
            Ok(()) => done.map_err(IoFault::from),
            Err(fault) => Err(self.blame(fault.address)),
        }
    }

    /// Whose memory faulted: the member's that owns `address`, else the program's. (A fault in the
    /// runtime segment, where undo records lie, does not end a guard: zeros stand in for the
    /// segment.)
    #[cold]
    fn blame(&self, address: usize) -> IoFault {
        let owner = self.members.iter().position(|member| member.as_ref().is_some_and(|member| member.owns(address)));
        owner.map_or(IoFault::BadAddress, IoFault::Member)
    }
}

/// The slots whose backing file is not open.
#[must_use]
pub fn absent<M>(members: &[Option<M>]) -> MemberSet {
    let absent = members.iter().enumerate().filter(|(_, member)| member.is_none());
    absent.fold(MemberSet::EMPTY, |set, (slot, _)| set.with(slot))
}

/// Loads a byte of each page of the program's buffer, so that a bad address faults before anything
/// is stored.
///
/// # Safety
/// Inside a guard; the buffer is the program's, or not mapped.
#[inline(always)]
pub(crate) unsafe fn probe(src: *const u8, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let touch = |at: usize| {
        // SAFETY: the caller's promise.
        _ = unsafe { src.wrapping_add(at).read_volatile() };
    };
    (0..bytes).step_by(PAGE_BYTES).for_each(touch);
    touch(bytes - 1);
}

/// The fields of [`Striper`] as the operations of the levels get them, inside the guard.
pub(crate) struct Io<'a, M> {
    pub(crate) geometry: &'a Geometry,
    members: &'a [Option<M>],
    pub(crate) out: MemberSet,
    pub(crate) turn: u64,
    pub(crate) reading: Reading<'a>,
    pub(crate) kernels: &'static Kernels,
    pub(crate) undo: Option<UndoRecord<'a>>,
}

impl<M: Medium> Io<'_, M> {
    /// The member at `slot`. [`Stop::Lost`] if it is out: operations ask only for members that they
    /// cannot do without.
    #[inline(always)]
    fn member(&self, slot: Slot) -> Result<&M, Stop> {
        match &self.members[slot] {
            Some(member) if !self.out.contains(slot) => Ok(member),
            _ => Err(Stop::Lost),
        }
    }

    /// Where `bytes` at `offset` of a member are mapped in one piece; None if the member is out, or
    /// the bytes are not mapped in one piece.
    #[inline(always)]
    pub(crate) fn mapped(&self, slot: Slot, offset: u64, bytes: usize) -> Option<*mut u8> {
        let span = self.member(slot).ok()?.span(offset)?;
        (span.bytes >= bytes).then_some(span.start.as_ptr())
    }

    /// Copies from a member in use.
    ///
    /// # Safety
    /// Inside a guard; `dst` is valid for `bytes`, or the program's.
    #[inline(always)]
    pub(crate) unsafe fn fetch(&self, slot: Slot, offset: u64, dst: *mut u8, bytes: usize) -> Done {
        match self.member(slot)?.span_to_load(offset, bytes).filter(|span| span.bytes >= bytes) {
            // SAFETY: mapped for `bytes`; `dst` is the caller's promise.
            Some(from) => unsafe { self.kernels.copy_from_media(dst, from.start.as_ptr(), bytes) },
            // SAFETY: the caller's promise.
            None => return unsafe { self.fetch_by_call(slot, offset, dst, bytes) },
        }
        Ok(())
    }

    /// [`Self::fetch`] by a call of the medium, of what is not mapped in one piece.
    ///
    /// # Safety
    /// As for [`Self::fetch`].
    #[cold]
    unsafe fn fetch_by_call(&self, slot: Slot, offset: u64, dst: *mut u8, bytes: usize) -> Done {
        let member = self.member(slot)?;
        // SAFETY: the caller's promise.
        match unsafe { member.get(offset, dst, bytes) } {
            // The kernel does not do for the buffer what a fault of this process would.
            Err(OsError::FAULT) => {}
            result => return result.map_err(|error| Stop::after_call(slot, error)),
        }
        let mut stage = MaybeUninit::<Block>::uninit();
        let stage = stage.as_mut_ptr().cast::<u8>();
        for done in (0..bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(bytes - done);
            // SAFETY: the stage holds a block; `dst` is the caller's promise.
            unsafe {
                member.get(offset + done as u64, stage, step).map_err(|error| Stop::after_call(slot, error))?;
                self.kernels.copy_from_media(dst.wrapping_add(done), stage, step);
            }
        }
        Ok(())
    }

    /// Copies to a member in use.
    ///
    /// # Safety
    /// Inside a guard; `src` is valid for `bytes`, or the program's.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, slot: Slot, offset: u64, src: *const u8, bytes: usize) -> Done {
        // Not by a call where it can be mapped: the kernel holds calls to the process' limit for
        // files.
        let member = self.member(slot)?;
        match member.span_to_store(offset).filter(|span| span.bytes >= bytes) {
            // SAFETY: mapped for `bytes`; `src` is the caller's promise.
            Some(to) => unsafe { self.kernels.copy_to_media(to.start.as_ptr(), src, bytes) },
            // SAFETY: the caller's promise.
            None => return unsafe { self.store_by_call(slot, offset, src, bytes) },
        }
        Ok(())
    }

    /// [`Self::store`] by a call of the medium, of what is not mapped in one piece.
    ///
    /// # Safety
    /// As for [`Self::store`].
    #[cold]
    unsafe fn store_by_call(&self, slot: Slot, offset: u64, src: *const u8, bytes: usize) -> Done {
        // SAFETY: the caller's promise.
        unsafe { self.member(slot)?.put(offset, src, bytes) }.map_err(|error| Stop::after_call(slot, error))
    }

    /// Zeroes the bytes at `offset` of every member in use. [`Stop::Lost`] if the level does not
    /// bear the loss of those that are out.
    pub(crate) fn zero_members(&self, offset: u64, bytes: u64) -> Done {
        let members = MemberSet::first(self.geometry.member_count()).minus(self.out);
        if !self.geometry.survives(self.out) {
            return Err(Stop::Lost);
        }
        members.iter().try_for_each(|slot| self.zero_member(slot, offset, bytes))
    }

    /// Zeroes the bytes at `offset` of one member in use.
    fn zero_member(&self, slot: Slot, mut offset: u64, mut bytes: u64) -> Done {
        let member = self.member(slot)?;
        while bytes > 0 {
            let step = match member.span_to_store(offset) {
                Some(span) => {
                    let step = bytes.min(span.bytes as u64);
                    // SAFETY: mapped for `step` bytes; a fault leaves the guard.
                    unsafe { self.kernels.zero_media(span.start.as_ptr(), step as usize) };
                    step
                }
                None => {
                    let step = bytes.min(BLOCK_BYTES as u64);
                    // SAFETY: the block of zeros is that long.
                    unsafe { member.put(offset, ZEROS.0.as_ptr(), step as usize) }
                        .map_err(|error| Stop::after_call(slot, error))?;
                    step
                }
            };
            (offset, bytes) = (offset + step, bytes - step);
        }
        Ok(())
    }
}
