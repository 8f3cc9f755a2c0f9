//! What a crash may have left disagreeing between the members of a file, and how it is made to
//! agree before anybody reads it.
//!
//! The inode table tells which bytes those are ([`Resync`]): after a crash `recovery` puts there
//! what the lanes named. The first process to open the file that may write to it makes them agree,
//! with every reader and writer kept out, and only then takes the note away. So a second crash at
//! any instant finds the note again. A note that is no longer needed costs one comparison.
//!
//! While a member is away that is not on record yet, bytes that agree on the others are left as
//! they are, with their note. If no process stores anything else, the member then comes back in
//! sync. The note is dealt with when the member has come back, or is on record.
//!
//! Copies are made from the lowest member in use, parity from the data. If a member lost its
//! backing file and got a new one, its bytes are computed from the others. With a member out,
//! parity that does not fit its data cannot be told from parity that does: what is computed from it
//! may be bytes that nobody wrote. The file is marked then ([`format::FLAG_DOUBTFUL`]), and what
//! lies behind its end is made zeros before it grows.

use crate::Inode;
use crate::rebuild::times_of;
use crate::stripes::Blocks;
use crate::table::InodeTable;
use crate::undo;
use alloc::vec::Vec;
use array::Array;
use array::IoFault;
use core::sync::atomic::Ordering;
use format::{LOST_MASK_OFFSET, RESYNC_END_OFFSET, RESYNC_START_OFFSET, Resync};
use medium::Medium;
use sys::OsError;
use sys::rustix::fs::{Timestamps, fstat, futimens};
use units::MemberSet;

/// Bytes of a file that are made to agree at a time, widened to whole stripes.
const STEP_BYTES: u64 = 1 << 20;
/// [`array::SharedFile::resync_waits`]: what waits agrees on the members that are here, and waits for the one that is away.
const WAITS_FOR_MEMBER: u32 = 2;
/// No bytes of a file.
const NOTHING: Resync = Resync { start: u64::MAX, end: 0, lost: MemberSet::EMPTY };

impl InodeTable {
    /// What waits for resync of the file with this record.
    pub(crate) fn resync(&self, array: &Array, number: u64) -> Option<Resync> {
        let noted = array.in_use().iter().filter_map(|slot| self.resync_on(slot, number)).reduce(Resync::union);
        noted.or_else(|| self.load(array, number).ok().flatten().and_then(|record| record.resync))
    }

    /// Notes that more waits for resync.
    pub(crate) fn add_resync(&self, array: &Array, number: u64, more: Resync) {
        array.runtime().with_inodes(|_| {
            let resync = self.resync(array, number).map_or(more, |present| present.union(more));
            self.change_notes(array, number, |record| {
                record[LOST_MASK_OFFSET..][..4].copy_from_slice(&resync.lost.bits().to_le_bytes());
                record[RESYNC_START_OFFSET..][..8].copy_from_slice(&resync.start.to_le_bytes());
                record[RESYNC_END_OFFSET..][..8].copy_from_slice(&resync.end.to_le_bytes());
            });
        });
    }

    /// Takes the note away, unless more was noted than `done`.
    fn end_resync(&self, array: &Array, number: u64, done: Option<Resync>) {
        array.runtime().with_inodes(|_| {
            if self.resync(array, number) == done {
                self.change_notes(array, number, |record| record[RESYNC_END_OFFSET..][..8].fill(0));
            }
        });
    }
}

impl Inode {
    /// Makes what waits for resync agree, if this process may. Others wait behind the size lock meanwhile.
    #[cold]
    pub(crate) fn finish_resync(&self) -> Result<(), OsError> {
        if !self.writable {
            // The bytes that a member lost read as zeros there until they are made anew. So each read computes them from the other members.
            self.leave_out_unfinished();
            return if self.geometry.survives(self.out()) { Ok(()) } else { Err(OsError::IO) };
        }
        let (array, shared) = (self.files.array(), self.shared());
        let is_away = || !array.runtime().out_unrecorded().is_empty();
        if shared.resync_waits.load(Ordering::Relaxed) == WAITS_FOR_MEMBER && is_away() {
            return Ok(());
        }
        let finished = self.with_size_locked(|_| {
            if shared.resync_waits.load(Ordering::Relaxed) == 0 {
                return Ok(());
            }
            let held = self.lock_stripes(Blocks::ALL)?;
            // What the journal has is right, whichever members are left.
            self.replay_behind(u64::MAX)?;
            self.undo_dead()?;
            let size = self.size();
            let range = self.noted().unwrap_or(NOTHING);
            if is_away() && self.agrees(&range, size) {
                self.doubt(self.stripes_of(&range, size).1);
                shared.resync_waits.store(WAITS_FOR_MEMBER, Ordering::Release);
                return Ok(());
            }
            self.resync_noted()?;
            drop(held);
            Ok(())
        });
        match finished {
            // A member has no room for what is to be stored, or (tmpfs) to look at what lies in holes. No data are lost and every member is there, so the file can be read; its redundancy waits for room.
            Err(OsError::NOSPC | OsError::DQUOT)
                if self.out().is_empty() && self.noted().is_none_or(|noted| noted.lost.is_empty()) =>
            {
                Ok(())
            }
            finished => finished,
        }
    }

    fn noted(&self) -> Option<Resync> {
        self.files.table().resync(self.files.array(), self.number)
    }

    /// Makes what waits for resync agree. The size lock and all stripe locks are held; what the journal has is replayed, what the dead left is undone.
    ///
    /// # Errors
    /// `IO`, and nothing is changed, while members are out without which what others lost cannot be computed; as for any change otherwise.
    pub(crate) fn resync_noted(&self) -> Result<(), OsError> {
        let (array, size, mut noted) = (self.files.array(), self.size(), self.noted());
        let mut range = noted.unwrap_or(NOTHING);
        self.can_compute(range.lost)?;
        array.before_change()?;
        let times = self.times_without(range.lost);
        self.with_cut_back(|cut| {
            range.lost = range.lost.union(cut).union(self.note_short(size, range.lost.union(cut)));
            noted = self.noted();
            if self.lengthen_backing(size)? {
                (range.start, range.end) = (0, size);
            }
            self.make_agree(&range, size)
        })?;
        if let Some(times) = times {
            // What is computed is as old as the file.
            for (_, backing) in self.in_use() {
                let _ = futimens(backing.fd(), &times);
            }
        }
        self.files.table().end_resync(array, self.number, noted);
        self.shared().resync_waits.store(0, Ordering::Release);
        Ok(())
    }

    /// The times of the file, if members have lost it: when those are given its bytes, theirs change.
    fn times_without(&self, lost: MemberSet) -> Option<Timestamps> {
        if lost.is_empty() {
            return None;
        }
        let whole = self.in_use().find(|(slot, _)| !lost.contains(*slot));
        let stat = whole.and_then(|(_, backing)| fstat(backing.fd()).ok())?;
        Some(times_of(&stat))
    }

    fn is_short(&self, size: u64) -> bool {
        !self.short(size).is_empty()
    }

    /// The members in use whose backing files are shorter than the size asks for.
    fn short(&self, size: u64) -> MemberSet {
        let wanted = self.geometry.member_bytes(size);
        self.in_use().filter(|(_, backing)| backing.bytes().is_ok_and(|bytes| bytes < wanted)).map(|(slot, _)| slot).collect()
    }

    /// Notes, before they are made longer, that members have lost what their backing files are too short to hold, and returns them: somebody has cut these files, or a member's file system had not made the length
    /// durable. If it cannot be computed from the others there are none: then it is zeros, and no fsync of it ever returned.
    fn note_short(&self, size: u64, lost: MemberSet) -> MemberSet {
        let short = self.short(size);
        if short.is_empty() || !self.geometry.survives(self.out().union(lost).union(short)) {
            return MemberSet::EMPTY;
        }
        self.files.table().add_resync(self.files.array(), self.number, Resync { start: 0, end: size, lost: short });
        short
    }

    /// Whether nothing need be stored, as far as can be told without the members that are out. The size lock and all stripe locks are held.
    fn agrees(&self, range: &Resync, size: u64) -> bool {
        let verify = |offset, bytes| match self.striper(self.out()).verify(offset, bytes) {
            Ok(0) => Ok(()),
            _ => Err(OsError::IO),
        };
        let (start, end) = self.stripes_of(range, size);
        range.lost.is_empty() && !self.is_short(size) && self.each_step(start, end, verify).is_ok()
    }

    /// The bytes whose redundancy a change of `range` may have touched: from the beginning of its first stripe, since parity of what lies
    /// behind the end of the file is that of bytes before it too.
    const fn stripes_of(&self, range: &Resync, size: u64) -> (u64, u64) {
        if range.start >= range.end {
            return (0, 0);
        }
        let end = if range.end < size { range.end } else { size };
        (range.start / self.stripe_step() * self.stripe_step(), end)
    }

    /// Resync goes by multiples of this.
    const fn stripe_step(&self) -> u64 {
        if self.geometry.level().has_chunks() { self.geometry.stripe_bytes() } else { 1 }
    }

    /// Gives backing files the length that the size asks for, and returns whether one was shorter. It holds zeros there now.
    fn lengthen_backing(&self, size: u64) -> Result<bool, OsError> {
        if !self.is_short(size) {
            return Ok(false);
        }
        let wanted = self.geometry.member_bytes(size);
        self.add_flags(format::FLAG_HOLES);
        // Nothing is counted upon meanwhile, or a file that is too short would be taken for one that somebody has just cut.
        self.shared().allocated_end.store(0, Ordering::Release);
        self.on_members(|backing| if backing.bytes()? < wanted { backing.set_len(wanted) } else { Ok(()) })?;
        self.shared().allocated_end.store(wanted, Ordering::Release);
        self.shared().allocation_epoch.fetch_add(1, Ordering::AcqRel);
        Ok(true)
    }

    /// The size lock and all stripe locks are held.
    fn make_agree(&self, range: &Resync, size: u64) -> Result<(), OsError> {
        let lost = range.lost.minus(self.out());
        if !lost.is_empty() && self.can_compute(range.lost)? {
            self.each_step(0, size, |offset, bytes| self.rebuild_step(lost, offset, bytes))?;
        }
        let (start, end) = if lost.is_empty() { self.stripes_of(range, size) } else { (0, size) };
        if start >= end {
            return Ok(());
        }
        self.doubt(end);
        self.each_step(start, end, |offset, bytes| self.agree_step(offset, bytes))?;
        let (start, end) = (self.geometry.member_bytes(start), self.geometry.member_bytes(end));
        self.on_members(|backing| backing.persist(start, end - start))
    }

    /// Redundancy up to `end` (0: of nothing) is made to fit what is there: with members out what is then computed of them may be bytes that nobody wrote, zeros behind the end
    /// of the file not excepted. Those it must not grow over.
    fn doubt(&self, end: u64) {
        if end != 0 && undo::is_needed(&self.geometry, self.out()) {
            self.add_flags(format::FLAG_DOUBTFUL);
            self.doubt_tail(end);
        }
    }

    /// Calls `act` with the pieces of a range that members in use may hold data of. A size that is damaged may be any: what lies between data costs nothing.
    pub(crate) fn each_step(
        &self,
        mut start: u64,
        end: u64,
        mut act: impl FnMut(u64, u64) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        let stripe = self.stripe_step();
        let step = STEP_BYTES.next_multiple_of(stripe);
        while start < end {
            // Where members cannot be asked there is data.
            match self.data_from(start).unwrap_or(Some(start)) {
                None => break,
                Some(data) => start = start.max(data / stripe * stripe),
            }
            if start >= end {
                break;
            }
            let bytes = step.min(end - start);
            act(start, bytes)?;
            start += bytes;
        }
        Ok(())
    }

    /// Stores only where members disagree: most of what is noted agrees, and holes stay holes.
    fn agree_step(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        loop {
            let done = self.striper(self.out()).verify(offset, bytes).and_then(|mismatches| {
                if mismatches == 0 {
                    return Ok(());
                }
                if self.shared().flags.load(Ordering::Relaxed) & format::FLAG_HOLES != 0 {
                    self.fill_holes(offset, offset + bytes).map_err(IoFault::Os)?;
                }
                self.striper(self.out()).resync(offset, bytes)
            });
            match done {
                Ok(()) => return Ok(()),
                Err(fault) => self.after_fault(fault)?,
            }
        }
    }

    /// Whether what these members lost can be computed from the others: `IO` if it could be but for members that are out. More than the level bears nobody will ever
    /// compute; their file systems had not kept the file, so no fsync of it ever returned, and it holds zeros there.
    fn can_compute(&self, lost: MemberSet) -> Result<bool, OsError> {
        let can = self.geometry.survives(self.out().union(lost));
        if !can && self.geometry.survives(lost) { Err(OsError::IO) } else { Ok(can) }
    }

    /// Computes what the members in `lost` held from the others, and stores it: as whole stripes, with the zeros behind the end of the file, so that parity is what it was
    /// whenever this is cut short, and it can be done again.
    fn rebuild_step(&self, lost: MemberSet, offset: u64, bytes: u64) -> Result<(), OsError> {
        let whole = bytes.next_multiple_of(self.stripe_step());
        self.fill_holes(offset, offset + whole)?;
        let mut data: Vec<u8> = alloc::vec![0; whole as usize];
        loop {
            let lost = lost.minus(self.out());
            if lost.is_empty() || !self.can_compute(lost)? {
                return Ok(());
            }
            // SAFETY: the buffer is ours and that long.
            let copied = unsafe {
                self.striper(self.out().union(lost))
                    .read(offset, data.as_mut_ptr(), bytes as usize)
                    .and_then(|()| self.striper(self.out()).write(offset, data.as_ptr(), data.len()))
            };
            match copied {
                Ok(()) => return Ok(()),
                Err(fault) => self.after_fault(fault).and_then(|()| self.files.array().before_change())?,
            }
        }
    }
}
