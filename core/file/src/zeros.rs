//! Zeros: the parts of a range that is cut off or punched which are less than a stripe.
//!
//! Where there is space, holes are filled first, as for every store. Where there is none, holes
//! stay, since they are zeros already, and only bytes that are allocated on the members are
//! overwritten: making a file smaller takes no space. What is allocated on some members only holds
//! zeros (tmpfs gives a page to a hole that is loaded from, and an allocation can fail halfway).
//! The one exception is a member that was rebuilt and whose zeros became holes. In that case only,
//! room can be missing, and that is found before anything is changed.

use crate::Inode;
use crate::journal::{After, FileJournal};
use alloc::vec::Vec;
use array::{Striper, Undo, Unfinished};
use core::ops::Range;
use sys::OsError;
use units::PAGE_BYTES;

impl Inode {
    /// Stores zeros, keeping redundancy. The stripes are locked.
    pub(crate) fn zero(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let there = self.what_to_zero(offset, bytes)?;
        self.zero_there(offset, bytes, &there)
    }

    /// The parts of a range in which zeros are to be stored, with room for them; the rest is a
    /// hole. The stripes are locked.
    pub(crate) fn what_to_zero(&self, offset: u64, bytes: u64) -> Result<Vec<Range<u64>>, OsError> {
        let whole = offset..offset + bytes;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if self.has_holes() {
            match self.fill_holes(whole.start, whole.end) {
                Ok(()) => {}
                Err(error @ (OsError::NOSPC | OsError::DQUOT)) => return self.parts_there(&whole, error),
                Err(error) => return Err(error),
            }
        }
        Ok(alloc::vec![whole])
    }

    /// Stores zeros in the parts that [`Inode::what_to_zero`] gave of a range.
    pub(crate) fn zero_there(&self, offset: u64, bytes: u64, there: &[Range<u64>]) -> Result<(), OsError> {
        if bytes == 0 {
            return Ok(());
        }
        self.zero_copy(offset, bytes)?;
        let journal = self.files.journal().filter(|_| self.geometry.level().parity_count() > 0);
        there.iter().try_for_each(|part| match journal {
            Some(journal) => self.zero_journaled(journal, part.start, part.end - part.start),
            None => self.zero_directly(part.start, part.end - part.start),
        })
    }

    /// The parts of a range that are allocated on all members. Fails with `error` if one is on some
    /// members only, and holds something.
    #[cold]
    fn parts_there(&self, whole: &Range<u64>, error: OsError) -> Result<Vec<Range<u64>>, OsError> {
        let mut parts = Vec::new();
        let mut add = |part: Range<u64>, on_all: bool| match on_all {
            _ if part.is_empty() => Ok(()),
            true => {
                parts.push(part);
                Ok(())
            }
            false if self.is_zero(&part)? => Ok(()),
            false => Err(error),
        };
        if !self.geometry.level().has_chunks() {
            self.each_there(whole.clone(), &mut add)?;
            return Ok(parts);
        }
        let (first, last) = (self.geometry.stripe_of(whole.start), self.geometry.stripe_of(whole.end - 1));
        for stripe in first..=last {
            let rows = self.geometry.member_offset(stripe)..self.geometry.member_offset(stripe + 1);
            let (from, chunk) = (stripe * self.geometry.stripe_bytes(), rows.end - rows.start);
            self.each_there(rows.clone(), |there, on_all| {
                (0..self.geometry.stripe_bytes() / chunk).try_for_each(|column| {
                    let of_column = |at: u64| from + column * chunk + (at - rows.start);
                    add(of_column(there.start).max(whole.start)..of_column(there.end).min(whole.end), on_all)
                })
            })?;
        }
        Ok(parts)
    }

    /// Whether a range holds zeros. It is read without asking for space.
    fn is_zero(&self, range: &Range<u64>) -> Result<bool, OsError> {
        let mut buffer = alloc::vec![0; PAGE_BYTES];
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(PAGE_BYTES as u64);
            // SAFETY: the buffer is ours and as long.
            if let Err(missed) = unsafe { self.read_by_calls(at, buffer.as_mut_ptr(), bytes as usize) } {
                self.after_missed(missed)?;
                continue;
            }
            if buffer[..bytes as usize].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += bytes;
        }
        Ok(true)
    }

    /// What is less than a stripe by way of the journal: with a member lost in a crash the rest of
    /// such a stripe must still be computed rightly. The range is announced.
    #[cold]
    fn zero_journaled(&self, journal: &FileJournal, offset: u64, bytes: u64) -> Result<(), OsError> {
        let end = offset + bytes;
        let (first, last) = self.whole_stripes(offset, end);
        for (start, stop) in [(offset, first), (last, end)] {
            // SAFETY: null stands for zeros; the stripes are locked and the space is there.
            unsafe { self.store_journaled(journal, start, core::ptr::null(), (stop - start) as usize, After::NothingElse) }?;
        }
        if first < last { self.zero_directly(first, last - first) } else { Ok(()) }
    }

    /// Where the whole stripes in `offset..end` begin and end.
    fn whole_stripes(&self, offset: u64, end: u64) -> (u64, u64) {
        let stripe = self.geometry.stripe_bytes();
        let first = offset.next_multiple_of(stripe).min(end);
        (first, (end - end % stripe).max(first))
    }

    fn zero_directly(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        loop {
            let undo = self.take_undo(self.out_or_leaving())?;
            let striper = Striper { undo: undo.as_ref().map(Undo::record), ..self.striper(self.out()) };
            match (striper.zero(offset, bytes), &undo) {
                (Ok(()), _) => return Ok(()),
                (Err(fault), Some(undo)) => {
                    self.undo_after_fault(undo, fault)?;
                    if matches!(undo.record().unfinished(), Some(Unfinished::Zeroed { .. })) {
                        let (first, last) = self.whole_stripes(offset, offset + bytes);
                        self.finish_zeros(undo, first, last)?;
                    }
                }
                (Err(fault), None) => self.after_write_fault(fault, offset, bytes)?,
            }
        }
    }

    /// Makes whole stripes zeros that the record says are becoming so. It says that until they are:
    /// another record would leave an instant with none.
    #[cold]
    pub(crate) fn finish_zeros(&self, undo: &Undo<'_>, first: u64, last: u64) -> Result<(), OsError> {
        while let Err(fault) = self.striper(self.out()).zero(first, last - first) {
            self.undo_after_fault(undo, fault)?;
        }
        undo.record().disarm();
        Ok(())
    }
}
