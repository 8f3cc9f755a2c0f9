//! Fork, exec and the end of a process with mappings of array files.
//!
//! A fork child has the parent's mappings, unwatched. It makes a tracker of its own and watches
//! them before it goes on; what it may have stored before counts as stored. An exec follows
//! everything first: the next program has none of it. At the end stores are kept out, so that
//! nothing is stored behind the last look.

use super::rights::{Rights, protect};
use super::runs::Runs;
use super::{Followed, Mapping, Mappings, PAGE, any, helper, robust, table, unused};
use crate::report::report;
use core::sync::atomic::Ordering;
use file::Mapped;
use heap::vec::Vec;
use linux_raw_sys::general::MAP_LOCKED;
use sys::OsError;

/// Runs the system call that forks, with the table whole for the child.
pub(crate) fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    let mut table = table();
    // Announced before the parent can give up its own. What cannot be promised the child tries for
    // itself.
    let promised: Vec<Mapped> = table.files.iter().filter_map(|followed| followed.mapped.promise().ok()).collect();
    let result = fork();
    match result {
        0 => {
            helper::forget();
            if let Err(error) = table.take_over_all(promised) {
                report!(
                    "stores of a child process to shared mappings cannot be followed ({error}); their redundancy waits for a scrub"
                );
            }
        }
        // No child.
        ..0 => drop(promised),
        _ => promised.into_iter().for_each(Mapped::leave_to_child),
    }
    result
}

impl Mappings {
    /// In the child: what was the parent's is announced and watched for this process.
    fn take_over_all(&mut self, mut promised: Vec<Mapped>) -> Result<(), OsError> {
        self.unused.forget();
        self.list.retain(|mapping| !mapping.dont_fork);
        // Memory that is locked is not locked in a child (mlock(2)).
        self.list.iter_mut().for_each(|mapping| mapping.flags &= !(MAP_LOCKED as usize));
        super::COUNT.store(self.list.len(), Ordering::Release);
        // Speaks of the parent's memory; only our descriptors of it are closed.
        self.tracker = None;
        if self.list.is_empty() {
            // Files that are kept are the parent's to follow.
            core::mem::take(&mut self.files).into_iter().for_each(|followed| followed.mapped.leave_to_child());
            return Ok(());
        }
        let mut result = Ok(());
        for followed in core::mem::take(&mut self.files) {
            let attribute = followed.mapped.file().attribute();
            let place = promised.iter().position(|promised| promised.file().attribute() == attribute);
            let kept = match place.map(|place| promised.swap_remove(place)) {
                Some(kept) if kept.keep_promise() => Ok(kept),
                Some(taken) => {
                    let again = Mapped::new(taken.file());
                    taken.leave_to_child();
                    again
                }
                None => Mapped::new(followed.mapped.file()),
            };
            // The parent's record stays the parent's.
            followed.mapped.leave_to_child();
            match kept {
                Ok(mapped) => self.files.push(Followed { mapped, owed: Runs::new() }),
                Err(error) => result = Err(error),
            }
        }
        let tracked = !self.files.is_empty() && self.track();
        for index in 0..self.list.len() {
            let mut mapping = self.list.remove(index);
            result = result.and(self.take_over(&mut mapping, tracked));
            self.list.insert(index, mapping);
        }
        self.forget_files();
        helper::start();
        // What has happened since the parent looked at them, the parent alone was told.
        self.catch_up();
        result
    }

    /// One mapping that was the parent's.
    fn take_over(&mut self, mapping: &mut Mapping, tracked: bool) -> Result<(), OsError> {
        (mapping.quiet_since, mapping.pass) = (None, None);
        if !mapping.stored {
            return Ok(());
        }
        if mapping.followed && !tracked && !mapping.tells_stores() {
            mapping.rights = Some(Rights::for_stores());
            let _ = protect(mapping.start, mapping.composed, mapping.shown_protection());
        }
        if let Some(tracker) = self.tracker_of(mapping)
            && mapping.composed > mapping.start
        {
            tracker.watch_inherited(mapping.start, mapping.composed - mapping.start)?;
        }
        let mapped = &self.hold(&mapping.file)?.mapped;
        mapped.go_on_storing();
        if !mapping.copied && !mapping.sealed {
            match mapped.store_directly() {
                Ok(()) => {}
                // A shared copy was made meanwhile. Nothing was stored since the fork.
                Err(OsError::AGAIN) => return self.follow_size(mapping).map(|_| ()),
                Err(error) => return Err(error),
            }
        }
        if mapping.followed { mapped.cover(mapping.offset, mapping.end_offset()) } else { Ok(()) }
    }
}

impl Mappings {
    /// Lets the kernel store into the words of robust locks that this process has when it ends: it
    /// says there that the owner has died (set_robust_list(2)). These stores come after the last
    /// look at the mappings, so their redundancy is owed.
    fn open_held(&self) {
        let words = robust::words();
        for mapping in self.list.iter().filter(|mapping| mapping.is_writable()) {
            for page in
                words.iter().map(|word| word / PAGE * PAGE).filter(|page| (mapping.start..mapping.composed).contains(page))
            {
                if protect(page, page + PAGE, mapping.protection).is_ok() && mapping.followed {
                    let (from, attribute) = (mapping.offset_at(page), mapping.file.attribute());
                    let mut followed = self.files.iter().map(|followed| &followed.mapped);
                    if let Some(mapped) = followed.find(|mapped| mapped.file().attribute() == attribute) {
                        mapped.owe(from, from + PAGE as u64);
                    }
                }
            }
        }
    }
}

/// Before an exec.
pub(crate) fn before_exec() {
    // What fails stays announced.
    let _ = super::follow::all();
    if unused::any() {
        table().unused.drop_all();
    }
}

/// The process ends: nothing is stored any more, and everything is followed.
pub(crate) fn leave() {
    if !any() && !unused::any() {
        return;
    }
    let mut table = table();
    table.unused.drop_all();
    for index in 0..table.list.len() {
        let (start, end) = (table.list[index].start, table.list[index].end);
        table.seal(index, start, end);
    }
    let _ = table.follow_kept(usize::MAX, |_| true);
    table.open_held();
    core::mem::take(&mut table.files).into_iter().for_each(Followed::leave);
    super::fault::notice_no_more();
    // A thread that stores now waits for the lock until the process is gone.
    core::mem::forget(table);
}
