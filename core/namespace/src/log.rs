//! Each change of names is noted on every member before the first is changed
//! (docs/format/names.md), so that after a death or a crash `replay` can bring all members to the
//! same side of it.
//!
//! Members that outlive a crash also get their position: the sequence of the last change, as an
//! attribute of their log, so that their own file system's journal keeps it in order with the
//! changes. Before the ring overwrites records that such a member may not have made durable, its
//! file system is synchronised.
//!
//! The namespace lock is held throughout. Cost on volatile members: a store and a fence, no system
//! call.

use crate::Namespace;
use crate::replay::{Purpose, UNDECIDED};
use alloc::boxed::Box;
use array::Recovery;
use core::sync::atomic::{AtomicPtr, Ordering};
use dax::{Backing, PersistenceDomain};
use format::{ATTRIBUTE_NAME, Attribute, NAMES_RING_BYTES, NameKind, NameRecord};
use intent::{NameLog, Records};
use sys::rustix::fs::{XattrFlags, fgetxattr, fsetxattr, syncfs};
use sys::{OsError, Result};
use units::Slot;

/// The log as this process has it open; opened with the first change, or before the process gives
/// up its rights.
pub(crate) struct Log(AtomicPtr<NameLog<Backing>>);

impl Log {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }
}

/// A record of `kind` that stands for nothing yet.
pub(crate) const fn change<'a>(kind: NameKind, path: &'a [u8], file: Option<Attribute>) -> NameRecord<'a> {
    NameRecord { sequence: 0, kind, void: false, exchange: false, file, replaced: None, path, to: b"" }
}

impl Namespace {
    pub(crate) fn log(&self) -> Result<&'static NameLog<Backing>> {
        let place = &self.log.0;
        // SAFETY: null or a leaked box.
        if let Some(log) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return Ok(log);
        }
        let log = Box::leak(Box::new(self.files().open_name_log()?));
        // Opened under the namespace lock, but other arrays' threads do not share it: the last one
        // stays, both are good.
        place.store(log, Ordering::Release);
        Ok(log)
    }

    /// Opens the log if no change has done so yet: a process that is about to give up its rights
    /// could not do it afterwards, and would be refused every change of names. What cannot be
    /// opened is left to the change that needs it.
    pub fn keep_log(&self) {
        if self.log.0.load(Ordering::Acquire).is_null() {
            let _ = self.between_changes(|| self.log());
        }
    }

    /// Whether a member's file system comes back after a crash with changes missing.
    pub(crate) fn is_durable(&self, slot: Slot) -> bool {
        self.files().domains()[slot] != PersistenceDomain::Volatile
    }

    /// Notes a change, makes it, and notes how it went.
    pub(crate) fn logged<T>(&self, record: NameRecord<'_>, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = self.logged_once(record, change);
        if result.is_ok() && record.leaves_no_trace() && !self.is_change_unfinished() {
            // A member whose memory fails here is out already. That is put on record before the
            // next change.
            let _ = self.end_exchange();
        }
        result
    }

    /// Notes that an exchange that leaves no trace has come to all members in use: a record behind
    /// it that asks for nothing. Members that see deaths only go by the last record, and nothing on
    /// them tells whether the exchange is made. So each start would compare all names for it, and
    /// call the members that are away stale.
    pub(crate) fn end_exchange(&self) -> Result<()> {
        self.logged_once(change(NameKind::Attributes, b"", None), || Ok(()))
    }

    fn logged_once<T>(&self, mut record: NameRecord<'_>, change: impl FnOnce() -> Result<T>) -> Result<T> {
        // A look-up since the change began may have taken a member out.
        self.before_change()?;
        let log = self.log()?;
        let state = self.array().runtime().names_log();
        record.sequence = state.sequence.load(Ordering::Relaxed).wrapping_add(1);
        let place = NameLog::<Backing>::place(state.end.load(Ordering::Relaxed), &record);
        self.make_durable_before(place, &record)?;
        self.store_record(log, place, &record)?;
        state.end.store(place + record.ring_bytes() as u64, Ordering::Relaxed);
        state.sequence.store(record.sequence, Ordering::Relaxed);
        let was_unfinished = self.is_change_unfinished();
        let result = change();
        if !was_unfinished && self.is_change_unfinished() {
            // Whoever changes names next finds the record and makes the change on the members that
            // lack it.
            return result;
        }
        if result.is_err() {
            record.void = true;
            self.store_record(log, place, &record)?;
        }
        self.set_positions(log, record.sequence);
        result
    }

    pub(crate) fn store_record(&self, log: &NameLog<Backing>, place: u64, record: &NameRecord<'_>) -> Result<()> {
        let failed = log.store(self.array().in_use(), place, record);
        if failed.is_empty() {
            return Ok(());
        }
        for slot in failed.iter() {
            self.array().fail_member(slot)?;
        }
        self.array().before_change()
    }

    /// Tells durable members how far they came.
    fn set_positions(&self, log: &NameLog<Backing>, sequence: u64) {
        for slot in self.array().in_use().iter() {
            self.set_position(log, slot, sequence);
        }
    }

    /// Tells a member how far it came, if it is durable.
    pub(crate) fn set_position(&self, log: &NameLog<Backing>, slot: Slot, sequence: u64) {
        if let Some(file) = log.file(slot).filter(|_| self.is_durable(slot)) {
            // Without it more is done again than would be needed, or names are compared as a whole.
            let _ = file.fd().and_then(|fd| fsetxattr(fd, ATTRIBUTE_NAME, &sequence.to_le_bytes(), XattrFlags::empty()));
        }
    }

    /// The sequence of the last change a member is known to have made; None if it does not tell.
    pub(crate) fn position(&self, log: &NameLog<Backing>, slot: Slot) -> Option<u64> {
        let mut bytes = [0; 8];
        match log.file(slot)?.fd().and_then(|fd| fgetxattr(fd, ATTRIBUTE_NAME, &mut bytes)) {
            Ok(8) => Some(u64::from_le_bytes(bytes)),
            Err(OsError::NODATA) => Some(0),
            _ => None,
        }
    }

    /// Synchronises file systems before the record at `place` overwrites one they may still need.
    fn make_durable_before(&self, place: u64, record: &NameRecord<'_>) -> Result<()> {
        let unsynced_bytes = &self.array().runtime().names_log().unsynced_bytes;
        let end = self.array().runtime().names_log().end.load(Ordering::Relaxed).min(NAMES_RING_BYTES as u64);
        let skipped = if place < end { NAMES_RING_BYTES as u64 - end } else { 0 };
        let unsynced = unsynced_bytes.load(Ordering::Relaxed).min(NAMES_RING_BYTES as u64);
        let wanted = unsynced + skipped + record.ring_bytes() as u64;
        if wanted <= NAMES_RING_BYTES as u64 {
            unsynced_bytes.store(wanted, Ordering::Relaxed);
            return Ok(());
        }
        self.sync_members()?;
        unsynced_bytes.store(record.ring_bytes() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Makes everything the members' file systems hold durable.
    pub(crate) fn sync_members(&self) -> Result<()> {
        for slot in self.array().in_use().iter().filter(|&slot| self.is_durable(slot)) {
            self.array().after_call(slot, syncfs(self.root(slot)?))?;
        }
        Ok(())
    }

    /// The log goes on behind `records`, all of which every member has made.
    pub(crate) fn continue_log(&self, log: &NameLog<Backing>, records: &Records, sequence: u64) {
        let state = self.array().runtime().names_log();
        let last = records.last_key_value().and_then(|(_, found)| Some(found.offset + found.record()?.ring_bytes()));
        state.end.store(last.unwrap_or(0) as u64, Ordering::Relaxed);
        state.sequence.store(sequence, Ordering::Relaxed);
        state.unsynced_bytes.store(0, Ordering::Relaxed);
        self.set_positions(log, sequence);
    }

    /// Makes good what a crash or deaths left behind, once for all processes, before names are
    /// looked up.
    ///
    /// Where only processes died, and this one lacks the rights to finish what another user's
    /// program began, that is left to one who has them; until then names may be looked up, and not
    /// changed.
    pub(crate) fn recover_after_crash(&self) -> Result<()> {
        let runtime = self.array().runtime();
        let had_crash = runtime.is_after_crash();
        runtime.recover_to(Recovery::Done, || {
            runtime.with_namespace(|_| match self.holding(|| self.restructuring(|| self.replay(Purpose::Look))) {
                Err(UNDECIDED) => {
                    runtime.names_wait_for_member();
                    Ok(())
                }
                Err(OsError::ACCESS | OsError::PERM) if !had_crash => {
                    runtime.names_are_unfinished();
                    Ok(())
                }
                Err(error) => Err(error),
                Ok(()) => {
                    runtime.names_are_whole();
                    self.files().clear_orphans();
                    self.without_failing(|| self.files().free_orphans())?;
                    if self.files().had_crash() {
                        // Before anybody makes a file: it would get the number of one whose record
                        // the crash has taken. What cannot be matched now is tried again by who
                        // meets it.
                        let _ = self.match_records_locked();
                    }
                    self.files().clear_sums();
                    Ok(())
                }
            })
        })
    }

    /// Finishes a change of names that a dead process began, if there is one, as the next change
    /// would. Tells whether this process lacks the rights to: then its changes of names answer
    /// EACCES until another one has finished that change.
    #[must_use]
    pub fn may_not_finish_change(&self) -> bool {
        let finish = || self.locked_for(Purpose::Look, |whole| whole);
        self.is_change_unfinished() && matches!(finish(), Err(OsError::ACCESS | OsError::PERM))
    }

    /// Tells whether a change of names that a dead process began waits to be finished.
    #[must_use]
    pub fn is_change_unfinished(&self) -> bool {
        let runtime = self.array().runtime();
        runtime.are_names_unfinished() && !runtime.do_names_wait_for_member()
    }
}
