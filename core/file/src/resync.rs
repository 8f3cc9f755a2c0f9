//! What a crash may have left disagreeing between the members of a file, and how it is made to
//! agree before anybody reads it.
//!
//! The inode table has a *note* of these bytes for each file ([`Resync`]). After a crash
//! [`crate::recovery`] writes the notes from what the lanes name. The first process that opens the
//! file for writing makes the bytes agree, with every reader and writer kept out, and only then
//! takes the note away. So a second crash at any instant finds the note again. If the bytes agree
//! already, the work is to read and compare them once.
//!
//! While a member is out and no superblock says so yet, bytes that agree on the others are left as
//! they are, with their note. If no process stores anything else, the member then comes back in
//! sync. The note is dealt with when the member has come back, or when a superblock says that it is
//! out.
//!
//! To compute what members have lost of a file of which no other bytes wait is a *mend*: it changes
//! nothing that a member which is away would miss. So a mend puts nobody on record.
//!
//! Copies are made from the lowest member in use, parity from the data. If a member lost its
//! backing file and got a new one, its bytes are computed from the others. With a member out nobody
//! can tell whether parity fits its data, so what is computed from parity may be bytes that nobody
//! wrote. Before resync goes on in that case, it marks the file ([`format::FLAG_DOUBTFUL`]); what
//! lies behind the file's end is made zeros before the file grows.

use crate::Inode;
use crate::rebuild::{NO_BYTES, times_of};
use crate::space::cut_unnoticed;
use crate::stripes::Blocks;
use crate::table::{InodeTable, Record};
use crate::undo;
use crate::unfinished::TAIL_OF_MEND;
use array::{Array, IoFault};
use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering;
use dax::Backing;
use format::{LOST_MASK_OFFSET, RESYNC_END_OFFSET, RESYNC_START_OFFSET, Resync};
use medium::Medium;
use sys::OsError;
use sys::rustix::fs::{Timestamps, fstat, futimens};
use units::MemberSet;

/// Bytes of a file that are made to agree at a time, widened to whole stripes.
pub(crate) const STEP_BYTES: u64 = 1 << 20;
/// A value of [`array::SharedFile::resync_waits`]: the noted bytes agree on all members in use, and
/// the note is kept for a member that is out. (0: no note; any other value: there is work to do.)
const WAITS_FOR_MEMBER: u32 = 2;
/// How often a resync begins again because a member was left out for the file meanwhile.
const TRY_COUNT: usize = 3;
/// A range without bytes. It is never stored: on media the end of a note is not 0.
const NOTHING: Resync = Resync { start: u64::MAX, end: 0, lost: MemberSet::EMPTY };

fn put_note(record: &mut Record, note: Resync) {
    record[LOST_MASK_OFFSET..][..4].copy_from_slice(&note.lost.bits().to_le_bytes());
    record[RESYNC_START_OFFSET..][..8].copy_from_slice(&note.start.to_le_bytes());
    record[RESYNC_END_OFFSET..][..8].copy_from_slice(&note.end.to_le_bytes());
}

impl InodeTable {
    /// The note of the file with inode `number`: the union of what members in use note, or else
    /// that of the record which the table judges right. None if nothing is noted, and also if no
    /// record can be read: such a file cannot be opened.
    pub(crate) fn resync(&self, array: &Array, number: u64) -> Option<Resync> {
        let noted = array.in_use().iter().filter_map(|slot| self.resync_on(slot, number)).reduce(Resync::union);
        noted.or_else(|| self.load(array, number).ok().flatten().and_then(|record| record.resync))
    }

    /// Adds `more` to the file's note, on all members in use.
    pub(crate) fn add_resync(&self, array: &Array, number: u64, more: Resync) {
        array.runtime().with_inodes(|_| self.add_resync_locked(array, number, more));
    }

    /// Does what [`Self::add_resync`] does. The inode lock is held.
    pub(crate) fn add_resync_locked(&self, array: &Array, number: u64, more: Resync) {
        let resync = self.resync(array, number).map_or(more, |present| present.union(more));
        self.change_notes(array, number, |record| put_note(record, resync));
    }

    /// Takes the note away if it still is `done`. `kept` are members of which it goes on saying
    /// that they have lost the file's bytes. The inode lock is held.
    fn end_resync_locked(&self, array: &Array, number: u64, done: Option<Resync>, kept: MemberSet) {
        if self.resync(array, number) != done {
            return;
        }
        let lost = done.map_or(MemberSet::EMPTY, |done| done.lost);
        let kept = lost.minus(lost.minus(kept));
        let left = if kept.is_empty() { None } else { Some(Resync { lost: kept, ..NO_BYTES }) };
        self.change_notes(array, number, |record| match left {
            Some(left) => put_note(record, left),
            None => record[RESYNC_END_OFFSET..][..8].fill(0),
        });
    }
}

/// The times of a file before a mend.
pub(crate) struct Times {
    times: Timestamps,
    /// The note of the last write at that moment ([`array::SharedFile`]).
    modified_ns: u64,
}

impl Inode {
    /// Makes the noted bytes agree, if this process can write to the file. Other processes wait for
    /// the size lock meanwhile.
    ///
    /// # Errors
    /// `IO` if this process cannot write and the members that have all their bytes do not suffice;
    /// those of [`Self::resync_noted`].
    #[cold]
    pub(crate) fn finish_resync(&self) -> Result<(), OsError> {
        if !self.writable {
            // This process cannot repair. Members that lost their backing file count as out for it,
            // so that its reads compute their bytes from the others.
            return self.leave_out_waiting();
        }
        if self.must_wait(self.lost_bytes()) && self.leave_out_waiting().is_ok() {
            // What dead processes stored is followed from the copy on which it landed, before
            // another one comes back.
            let _ = self.finish_mappings();
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
            // The journal goes first: all its bytes are right even with members out.
            self.replay_behind(u64::MAX)?;
            self.undo_dead()?;
            let size = self.size();
            let range = self.noted().unwrap_or(NOTHING);
            if is_away() && self.agrees(&range, size) {
                self.forget_sums_of_noted(&range, size)?;
                self.doubt(self.stripes_of(&range, size).1);
                shared.resync_waits.store(WAITS_FOR_MEMBER, Ordering::Release);
                return Ok(());
            }
            let done = self.resync_noted();
            drop(held);
            done
        });
        match finished {
            // A member is full. (On tmpfs even reading a hole through a mapping takes room.) No
            // member is out and none has lost its file, so all data can be read. The note stays,
            // and the next to open the file tries again.
            Err(OsError::NOSPC | OsError::DQUOT)
                if self.out().is_empty() && self.noted().is_none_or(|noted| noted.lost.is_empty()) =>
            {
                Ok(())
            }
            finished => finished,
        }
    }

    /// Runs `change`, which stores to the stripe at `start`, with a note that the file's bytes of
    /// this stripe wait for resync. After a crash in the middle the next opening makes their parity
    /// fit, although no lane names them. The caller holds the size lock and all stripe locks, and
    /// the file has no other note.
    pub(crate) fn with_stripe_noted(&self, start: u64, change: impl FnOnce() -> Result<(), OsError>) -> Result<(), OsError> {
        if self.geometry.level().parity_count() == 0 || self.files.has_journal() {
            return change();
        }
        let (table, array) = (self.files.table(), self.files.array());
        let stripe = Resync { start, end: self.size(), lost: MemberSet::EMPTY };
        table.add_resync(array, self.number, stripe);
        change()?;
        let (from, to) = (self.geometry.member_bytes(start), self.geometry.member_bytes(start + self.stripe_step()));
        self.on_members(|backing| backing.persist(from, to - from))?;
        array.runtime().with_inodes(|_| table.end_resync_locked(array, self.number, Some(stripe), self.without()));
        Ok(())
    }

    pub(crate) fn noted(&self) -> Option<Resync> {
        self.files.table().resync(self.files.array(), self.number)
    }

    /// Makes the noted bytes agree. The caller holds the size lock and all stripe locks, has
    /// replayed the journal and undone what dead processes left. If members must wait that have
    /// lost bytes ([`Self::must_wait`]), they count as out for this file, the bytes agree on the
    /// others, and the note of what is lost stays. So it is where a member is full, if the others
    /// suffice.
    ///
    /// # Errors
    /// `IO` if members lost bytes that only members which are out could help to compute, or if
    /// somebody has cut more backing files than the file bears; nothing has been changed then. If
    /// more loss shows meanwhile, the note has grown. Other errors are those of any change of a
    /// file.
    pub(crate) fn resync_noted(&self) -> Result<(), OsError> {
        let lost = self.lost_bytes();
        if self.must_wait(lost) {
            self.leave_out_waiting_locked()?;
            return self.agree_without(lost);
        }
        for _ in 0..TRY_COUNT {
            let done = match self.resync_once() {
                // A member has no room for the bytes that it has lost, or another one for what is
                // read of its holes. The file goes on as it was: without who has lost bytes.
                Err(error @ (OsError::NOSPC | OsError::DQUOT)) if !lost.is_empty() => {
                    self.leave_out_waiting_locked().map_err(|_| error)?;
                    return self.agree_without(lost);
                }
                // What is left of the file has a block that has rotted: nothing is computed from it,
                // and what can be read still can.
                Err(error @ OsError::IO) if self.has_sums && !lost.is_empty() => {
                    self.leave_out_waiting_locked().map_err(|_| error)?;
                    return self.agree_without(lost);
                }
                done => done?,
            };
            if self.end_resync(done) {
                break;
            }
        }
        // If members still count as out for this file, their note stays. The next process to open
        // the file for writing makes anew what they hold.
        Ok(())
    }

    /// The members that are known to have lost bytes of the file, or are found too short for it.
    pub(crate) fn lost_bytes(&self) -> MemberSet {
        let noted = self.noted().map_or(MemberSet::EMPTY, |noted| noted.lost);
        noted.union(self.cut_by_owner()).union(self.short(self.size()))
    }

    /// Makes the noted bytes agree on the members that do not wait. What goes on being noted is
    /// that those in `lost` have lost the file's bytes. The caller holds the locks that
    /// [`Self::resync_noted`] asks for.
    fn agree_without(&self, lost: MemberSet) -> Result<(), OsError> {
        let (array, noted) = (self.files.array(), self.noted());
        let Some(range) = noted.filter(|noted| noted.start < noted.end && lost.minus(self.out()).is_empty()) else {
            return Ok(());
        };
        array.before_change()?;
        self.make_agree(&Resync { lost: MemberSet::EMPTY, ..range }, self.size())?;
        array.runtime().with_inodes(|_| self.files.table().end_resync_locked(array, self.number, noted, range.lost));
        Ok(())
    }

    /// Takes the note away if it still is `done`, and says so to all processes. Returns false, and
    /// leaves all as it is, if members count as out for this file: a thread that met a short
    /// backing file before the caller had the stripe locks has left them out in the middle of the
    /// resync, so not all of their bytes have been computed.
    fn end_resync(&self, done: Option<Resync>) -> bool {
        let array = self.files.array();
        array.runtime().with_inodes(|_| {
            if !self.cut_by_owner().is_empty() {
                return false;
            }
            // Who joined while the file was open keeps its note, which is made with the inode lock
            // held as well.
            self.files.table().end_resync_locked(array, self.number, done, self.without());
            self.shared().resync_waits.store(0, Ordering::Release);
            true
        })
    }

    /// Makes the noted bytes agree, as [`Self::resync_noted`] does, and returns the note that this
    /// has dealt with.
    fn resync_once(&self) -> Result<Option<Resync>, OsError> {
        let (array, size, mut noted) = (self.files.array(), self.size(), self.noted());
        let mut range = noted.unwrap_or(NOTHING);
        let short = self.short(size);
        let can = self.can_compute_short(range.lost.union(self.left_out()), short);
        // If no crash has left anything of this file unfinished, zeros in what is missing would be
        // bytes that nobody wrote.
        let was_closed = self.shared().flags.load(Ordering::Relaxed) & format::FLAG_SLACK == 0;
        let is_agreed = noted.is_none_or(|noted| noted.start >= noted.end);
        let is_refused = can == Err(OsError::IO) || can == Ok(false) && is_agreed && was_closed;
        if !short.is_empty() && is_refused {
            self.tell_short(short);
            return Err(OsError::IO);
        }
        can?;
        // Behind an unfinished end a member that is away may have other bytes than zeros. Parity
        // that is computed for zeros would not fit it.
        let counts_behind_end = self.geometry.level().parity_count() > 0;
        let is_end_unfinished = counts_behind_end && self.shared().tail_unfinished.load(Ordering::Relaxed) != 0;
        if !is_agreed || is_end_unfinished || !self.is_left_alone() {
            array.before_change()?;
        }
        let had_slack = self.shared().flags.load(Ordering::Relaxed) & format::FLAG_SLACK != 0;
        // What the last user of a file wrote and did not come to an end with is newer than the
        // backing files say.
        let known = if was_closed { range.lost.union(short).union(self.left_out()) } else { range.lost };
        let times = if known.is_empty() { None } else { self.times_from_others_than(known) };
        self.with_cut_back(|cut| {
            let durable = range.lost.minus(cut);
            range.lost = range.lost.union(cut).union(self.note_short(size, range.lost.union(cut))?);
            self.hide(range.lost);
            noted = self.noted();
            if !range.lost.minus(durable).is_empty() {
                // Should a crash keep the length that backing files get now, and not the note,
                // their zeros would pass for data.
                self.files.table().persist_note(array, self.number)?;
            }
            if self.lengthen_backing(size)? {
                (range.start, range.end) = (0, size);
            }
            self.shorten_backing(range.lost, size)?;
            // Before they have bytes that a user may have written who could not give them
            // privileges.
            self.drop_privileges_on(range.lost);
            self.make_agree(&range, size)
        })?;
        if !had_slack && self.is_left_alone() {
            self.give_back_slack(size)?;
        }
        self.keep_times(times);
        Ok(noted)
    }

    /// Gives back what a mend took behind the end of the file, where no member had anything before.
    /// While a member is left alone nobody else does it. The caller holds the size lock and all
    /// stripe locks.
    fn give_back_slack(&self, size: u64) -> Result<(), OsError> {
        let (kept, shared) = (self.geometry.member_bytes(size), self.shared());
        shared.allocated_end.store(kept, Ordering::Release);
        self.on_members(|backing| if backing.bytes()? > kept { backing.set_len(kept) } else { Ok(()) })?;
        shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        self.change_flags(0, format::FLAG_SLACK);
        Ok(())
    }

    /// Returns the file's times from a member that did not lose it: one whose backing file is as
    /// long as the size asks for, if there is such a one, since one that was made longer by hand
    /// has the time of that. A mend changes the times of backing files, so the caller gives them
    /// back afterwards ([`Self::keep_times`]).
    pub(crate) fn times_from_others_than(&self, lost: MemberSet) -> Option<Times> {
        let kept = self.geometry.member_bytes(self.size());
        let is_exact = |backing: &&Backing| backing.bytes().is_ok_and(|bytes| bytes == kept);
        let whole = || self.in_use().filter(|(slot, _)| !lost.contains(*slot)).map(|(_, backing)| backing);
        let backing = whole().find(is_exact).or_else(|| whole().next())?;
        let modified_ns = self.shared().modified_ns.load(Ordering::Acquire);
        backing.fd().and_then(fstat).ok().map(|stat| Times { times: times_of(&stat), modified_ns })
    }

    /// Gives all backing files these times: what was mended is as old as the file. Only the file's
    /// owner may; with others the file is as new as the mend.
    pub(crate) fn keep_times(&self, kept: Option<Times>) {
        let Some(Times { times, modified_ns }) = kept else { return };
        if self.shared().modified_ns.load(Ordering::Acquire) != modified_ns {
            // A write of another process was told to the kernel meanwhile, or is about to be.
            return;
        }
        for (_, backing) in self.in_use() {
            let _ = backing.fd().and_then(|fd| futimens(fd, &times));
        }
    }

    /// Whether a member in use has less of the file than the size asks for.
    pub(crate) fn is_short(&self, size: u64) -> bool {
        !self.short(size).is_empty()
    }

    /// The members in use whose backing files are shorter than the size asks for.
    pub(crate) fn short(&self, size: u64) -> MemberSet {
        let wanted = self.geometry.member_bytes(size);
        self.in_use().filter(|(_, backing)| backing.bytes().is_ok_and(|bytes| bytes < wanted)).map(|(slot, _)| slot).collect()
    }

    /// Finds the members in use whose backing files are too short: somebody has cut these files, or
    /// a member's file system had not made the length durable. If the other members can compute the
    /// missing bytes, notes that these members lost them and returns these members. That is done
    /// before the files are made longer, since afterwards nothing would show it. If the others will
    /// never be able to compute the bytes, it returns no members, and the bytes become zeros: after
    /// a crash no fsync of them had returned then.
    ///
    /// # Errors
    /// This fails where [`Self::can_compute_short`] does.
    fn note_short(&self, size: u64, lost: MemberSet) -> Result<MemberSet, OsError> {
        let short = self.short(size);
        if short.is_empty() || !self.can_compute_short(lost, short)? {
            return Ok(MemberSet::EMPTY);
        }
        self.files.table().add_resync(self.files.array(), self.number, Resync { lost: short, ..NO_BYTES });
        Ok(short)
    }

    /// Whether the noted bytes agree on the members in use. An error of reading counts as no. The
    /// caller holds the size lock and all stripe locks.
    fn agrees(&self, range: &Resync, size: u64) -> bool {
        let verify = |offset, bytes| match self.striper(self.out()).verify(offset, bytes) {
            Ok(0) => Ok(()),
            _ => Err(OsError::IO),
        };
        let (start, end) = self.stripes_of(range, size);
        let is_whole = range.lost.union(self.left_out()).is_empty() && !self.is_short(size);
        is_whole && self.each_step(start, end, verify).is_ok()
    }

    /// `range` widened down to the beginning of its first stripe and cut at `size`, as (start,
    /// end). A byte of parity stands for one byte of each chunk, so a byte behind the end of the
    /// file shares its parity with bytes before the end, which lie in the same stripe.
    const fn stripes_of(&self, range: &Resync, size: u64) -> (u64, u64) {
        if range.start >= range.end {
            return (0, 0);
        }
        let end = if range.end < size { range.end } else { size };
        (range.start / self.stripe_step() * self.stripe_step(), end)
    }

    /// Resync handles whole multiples of this many bytes: a stripe, or 1 if there are no chunks.
    pub(crate) const fn stripe_step(&self) -> u64 {
        if self.geometry.level().has_chunks() { self.geometry.stripe_bytes() } else { 1 }
    }

    /// Gives backing files the length that the size asks for, and returns whether one was shorter.
    /// The new part of each is a hole and reads as zeros.
    fn lengthen_backing(&self, size: u64) -> Result<bool, OsError> {
        if !self.is_short(size) {
            return Ok(false);
        }
        let wanted = self.geometry.member_bytes(size);
        self.add_flags(format::FLAG_HOLES);
        // While this is 0 no process relies on the files' length. Otherwise one would take a file
        // that is still short for a file that somebody has just cut.
        self.shared().allocated_end.store(0, Ordering::Release);
        self.on_members(|backing| if backing.bytes()? < wanted { backing.set_len(wanted) } else { Ok(()) })?;
        self.shared().allocated_end.store(wanted, Ordering::Release);
        self.shared().allocation_epoch.fetch_add(1, Ordering::AcqRel);
        Ok(true)
    }

    /// Cuts the backing files of members that have lost bytes to the length that the size asks for.
    /// While a member counts as out for the file, truncations do not cut its backing file. Bytes
    /// that it kept behind the end would show as soon as the file grows, and parity counts zeros
    /// there.
    fn shorten_backing(&self, lost: MemberSet, size: u64) -> Result<(), OsError> {
        let (kept, shared) = (self.geometry.member_bytes(size), self.shared());
        let is_longer = |backing: &Backing| backing.bytes().is_ok_and(|bytes| bytes > kept);
        if !self.in_use().any(|(slot, backing)| lost.contains(slot) && is_longer(backing)) {
            return Ok(());
        }
        // Before any is shorter: who finds one that is shorter than this takes it for cut by
        // somebody else.
        shared.allocated_end.store(kept, Ordering::Release);
        self.on_some(lost, |backing| {
            if is_longer(backing) { cut_unnoticed(backing, kept, None).and_then(|()| backing.persist_layout()) } else { Ok(()) }
        })?;
        shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Computes what members in `range.lost` lost, and makes copies and parity of `range` (of the
    /// whole file if members lost it) agree and durable. The caller holds the size lock and all
    /// stripe locks.
    fn make_agree(&self, range: &Resync, size: u64) -> Result<(), OsError> {
        self.forget_sums_of_noted(range, size)?;
        let lost = range.lost.minus(self.out());
        if !lost.is_empty() && self.can_compute(range.lost)? {
            // Copies that no crash has left different are not made agree: one may be wrong, and a
            // scrub is to find it.
            let (noted, keeps_copies) = (self.stripes_of(range, size), self.geometry.level().parity_count() == 0);
            let may_stay = |offset, bytes| keeps_copies && (offset + bytes <= noted.0 || noted.1 <= offset);
            let array = self.files.array();
            let agree = |done: Range<u64>| {
                self.doubt_what_is_stored(done.end);
                self.agree_step(done.start, done.end - done.start)
            };
            // Bytes of the file that are computed, and of which copies or other redundancy may not fit.
            // They are compared once all rows of their stripes are computed: rows that are not yet
            // would be taken for what the member has, and win.
            let mut unsure = 0..0;
            self.compute_lost(lost, size, |piece, compute| {
                if !array.goes_on_computing(piece.computed_bytes, &|| self.is_waited_for()) {
                    return Err(OsError::CANCELED);
                }
                let end = piece.offset + piece.bytes;
                if unsure.end <= piece.offset && !unsure.is_empty() {
                    agree(mem::take(&mut unsure))?;
                }
                if !compute()? && !may_stay(piece.offset, piece.bytes) {
                    unsure = if unsure.is_empty() { piece.offset..end } else { unsure.start..end };
                }
                Ok(())
            })?;
            if !unsure.is_empty() {
                agree(unsure)?;
            }
            self.doubt_what_is_stored(size);
            return self.on_members(|backing| backing.persist(0, self.geometry.member_bytes(size)));
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

    /// Whether somebody waits for the size lock or for a stripe lock of the file.
    fn is_waited_for(&self) -> bool {
        let shared = self.shared();
        shared.size_lock.is_waited_for() || shared.stripes.iter().any(sync::StripeLock::is_waited_for)
    }

    /// Marks the file as doubtful if a member with data is out: the caller is about to make parity
    /// fit what the other members hold, up to `end` (0: nowhere), and what is computed of the
    /// missing member may then be bytes that nobody wrote. That holds for the zeros behind the end
    /// of the file too; `doubt_tail` sees to it that they are zeroed before the file grows.
    fn doubt(&self, end: u64) {
        if end != 0 && undo::is_needed(&self.geometry, self.out()) {
            self.add_flags(format::FLAG_DOUBTFUL);
            self.doubt_tail(end, TAIL_OF_MEND);
        }
    }

    /// Does what [`Self::doubt`] does, but while a member is left alone: then what members have
    /// lost is computed, and nothing else is stored.
    fn doubt_what_is_stored(&self, end: u64) {
        if !self.is_left_alone() {
            self.doubt(end);
        }
    }

    /// Calls `act` with pieces (offset and bytes) of `start..end`, from the beginning of a stripe
    /// on where data begin, and skips what is a hole on all members. So even a damaged size of 2^60
    /// costs no time.
    pub(crate) fn each_step(
        &self,
        mut start: u64,
        end: u64,
        mut act: impl FnMut(u64, u64) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        let stripe = self.stripe_step();
        let step = STEP_BYTES.next_multiple_of(stripe);
        while start < end {
            // If the members cannot tell, it is taken for data.
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

    /// Makes `bytes` at `offset` agree. Stores only if members disagree there: most of what is
    /// noted agrees, and holes stay holes. After a fault it tries again with the members that are
    /// left.
    fn agree_step(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        loop {
            let done = self.striper(self.out()).verify(offset, bytes).and_then(|mismatches| {
                if mismatches == 0 {
                    return Ok(());
                }
                if self.is_left_alone() {
                    // From here on it is more than a mend.
                    self.files.array().before_change().map_err(IoFault::Os)?;
                    self.doubt(offset + bytes);
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

    /// Whether the bytes that these members lost can be computed from the others now. False if more
    /// members lost them than the level bears: nobody will ever compute them, and they are zeros.
    ///
    /// # Errors
    /// `IO` if they could be computed if the members that are out were in use.
    pub(crate) fn can_compute(&self, lost: MemberSet) -> Result<bool, OsError> {
        let can = self.geometry.survives(self.out().union(lost));
        if !can && self.geometry.survives(lost) { Err(OsError::IO) } else { Ok(can) }
    }

    /// Whether the bytes that these members lost can be computed from the others now, with what is
    /// missing of backing files that are too short. False if nobody will ever compute that.
    ///
    /// # Errors
    /// `IO` if it could be computed if the members that are out were in use. Members that are out
    /// on record come back without what was stored since. So the bytes missing of a short backing
    /// file are not waited for because of them, but the bytes that members are noted to have lost
    /// are: those were there.
    fn can_compute_short(&self, lost: MemberSet, short: MemberSet) -> Result<bool, OsError> {
        let (can, runtime) = (self.can_compute(lost.union(short)), self.files.array().runtime());
        let gone = runtime.out().minus(runtime.out_unrecorded());
        let is_beyond_hope = || !self.geometry.survives(gone.union(lost).union(short));
        if can == Err(OsError::IO) && self.can_compute(lost).is_ok() && is_beyond_hope() { Ok(false) } else { can }
    }
}
