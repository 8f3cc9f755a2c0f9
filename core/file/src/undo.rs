//! Changes of stripes while a member that holds data of them is out. If a process dies in the
//! middle of a block, the block is made what it was, or what it was to be (core/array/src/undo.rs).

use crate::files::Files;
use crate::inode::{Inode, key, number_of};
use array::{IoFault, Undo, UndoRecord, Unfinished};
use core::sync::atomic::Ordering;
use dax::Backing;
use format::FLAG_HOLES;
use layout::Geometry;
use medium::Medium;
use sys::OsError;
use units::MemberSet;

/// How often a thread that finds no free record lets others go on: those that have one hold it for
/// microseconds.
const PATIENCE: usize = 1000;

/// Whether parity with these members out may be all there is of some data. Of a change that is to
/// begin the members are [`Inode::out_or_leaving`]: a process may die in it when they are out.
#[inline]
pub(crate) fn is_needed(geometry: &Geometry, out: MemberSet) -> bool {
    !out.is_empty() && geometry.level().parity_count() > 0
}

impl Files {
    /// How many changes of files that are still there wait to be undone, since their processes
    /// died.
    #[must_use]
    pub fn unfinished_changes(&self) -> usize {
        self.free_abandoned();
        self.forget_gone();
        self.array().runtime().abandoned_undo().count()
    }

    /// Frees the records of dead processes that were in the middle of nothing, or of a file that is
    /// gone.
    #[cold]
    fn free_abandoned(&self) {
        let runtime = self.array().runtime();
        runtime.with_undo(|| {
            for record in runtime.abandoned_undo() {
                if record.unfinished().is_none() || self.is_gone(record.key()) {
                    record.free();
                }
            }
        });
    }

    /// Whether the file with this key does not exist any more.
    pub(crate) fn is_gone(&self, file: u64) -> bool {
        let number = number_of(file);
        let found = self.table().load(self.array(), number);
        matches!(found, Ok(found) if found.is_none_or(|found| key(number, found.generation) != file))
    }
}

impl Inode {
    /// The members that are out, and those that are about to go out. A change that has looked here
    /// under its stripe locks either minds a member that goes out, or is waited for before it goes.
    #[inline]
    pub(crate) fn out_or_leaving(&self) -> MemberSet {
        // A member is out before it is not leaving any more.
        let leaving = self.files.array().runtime().leaving();
        leaving.union(self.out())
    }

    /// A record for the next change of this file's stripes, if these members being out asks for
    /// one. None, too, if all are taken by processes that died and whose files nobody has opened
    /// since: what a death then does to the bytes beside those being written is the write hole.
    ///
    /// # Errors
    /// `NOSPC` if shared memory is full.
    pub(crate) fn take_undo(&self, out: MemberSet) -> Result<Option<Undo<'_>>, OsError> {
        if !is_needed(&self.geometry, out) {
            return Ok(None);
        }
        let runtime = self.files.array().runtime();
        for _ in 0..PATIENCE {
            let taken = runtime.take_undo(self.key())?;
            if let Some(mut undo) = taken {
                undo.guard_also(out);
                return Ok(Some(undo));
            }
            self.files.free_abandoned();
            sys::rustix::thread::sched_yield();
        }
        Ok(None)
    }

    /// Puts right what processes that died were storing to this file. The caller has inherited a
    /// lock of one, if there is any.
    pub(crate) fn undo_dead(&self) -> Result<(), OsError> {
        let array = self.files.array();
        let mine = |record: &UndoRecord<'_>| record.key() == self.key();
        if !array.runtime().abandoned_undo().any(|record| mine(&record)) {
            return Ok(());
        }
        array.before_change()?;
        array.runtime().with_undo(|| {
            for record in array.runtime().abandoned_undo().filter(mine) {
                self.undo(&record)?;
                record.free();
            }
            Ok(())
        })
    }

    /// Of these locks, which were inherited from dead processes, those whose owner was only looking
    /// at what they guard. The owner is forgotten.
    #[cold]
    pub(crate) fn only_looked_at(&self, locks: u64) -> u64 {
        let runtime = self.files.array().runtime();
        runtime.with_undo(|| {
            let mine = runtime.abandoned_undo().filter(|record| record.key() == self.key());
            let looked = mine.filter_map(|record| match record.unfinished() {
                Some(Unfinished::Looking { locks: held }) if held & locks != 0 => {
                    record.free();
                    Some(held)
                }
                // Who may not store leaves it to who may.
                Some(Unfinished::Mending { locks: held }) if held & locks != 0 && self.writable && self.undo(&record).is_ok() => {
                    record.free();
                    Some(held)
                }
                _ => None,
            });
            looked.fold(0, |mask, held| mask | held) & locks
        })
    }

    /// Makes a block of stripes what it was before the change that the record was taken for, or
    /// what it was to be. Done again, it changes nothing.
    pub(crate) fn undo(&self, record: &UndoRecord<'_>) -> Result<(), OsError> {
        match record.unfinished() {
            None | Some(Unfinished::Looking { .. }) => Ok(()),
            Some(Unfinished::Saved | Unfinished::Mending { .. }) => loop {
                match self.striper(self.out()).put_back(record) {
                    Ok(()) => return Ok(()),
                    Err(fault) => self.after_fault(fault)?,
                }
            },
            Some(Unfinished::Zeroed { offset, bytes }) => {
                self.add_flags(FLAG_HOLES);
                self.punch_members(offset, bytes)
            }
        }
    }

    /// What follows from a fault in a change that has a record: on the members that are left the
    /// block in which it was is whole.
    #[cold]
    pub(crate) fn undo_after_fault(&self, undo: &Undo<'_>, fault: IoFault) -> Result<(), OsError> {
        let array = self.files.array();
        let result = self.after_fault(fault);
        if undo.record().unfinished() == Some(Unfinished::Saved) {
            self.undo(&undo.record())?;
            // The change begins anew, and puts other bytes into the record before it arms it again.
            undo.record().disarm();
        }
        result?;
        // The member that failed goes on record before the change is done without it.
        array.before_change()
    }

    /// Makes a hole in every member.
    pub(crate) fn punch_members(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let punched = self.on_members(|backing: &Backing| backing.punch(offset, bytes).and_then(|()| backing.persist_layout()));
        self.shared().allocation_epoch.fetch_add(1, Ordering::AcqRel);
        punched
    }
}
