//! Fork, exec and the end of a process with mappings of array files.
//!
//! A fork child has the parent's mappings, unwatched. It makes a tracker of its own and watches them before it goes on; what it may have
//! stored before counts as stored. An exec follows everything first: the next program has none of it. At the end stores are kept out, so
//! that nothing is stored behind the last look.

use super::rights::{Rights, protect};
use super::{Followed, MAPPINGS, any, helper, table};
use crate::report::report;
use file::Mapped;
use heap::vec::Vec;

/// Runs the system call that forks, with the table whole for the child.
pub(crate) fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    MAPPINGS.raw().acquire();
    let result = fork();
    MAPPINGS.raw().release();
    if result == 0 {
        helper::forget();
        if any() {
            take_over();
        }
    }
    result
}

/// In the child: what was the parent's is announced and watched for this process.
fn take_over() {
    let mut table = table();
    // Speaks of the parent's memory; only our descriptors of it are closed.
    table.tracker = None;
    let files = core::mem::take(&mut table.files);
    if files.is_empty() {
        return;
    }
    let mut result = Ok(());
    let tracked = table.track();
    for followed in files {
        let again = Mapped::new(followed.mapped.file());
        // The parent's record stays the parent's.
        core::mem::forget(followed.mapped);
        match again {
            Ok(mapped) => table.files.push(Followed { mapped, owed: Vec::new() }),
            Err(error) => result = Err(error),
        }
    }
    let table = &mut *table;
    for mapping in table.list.iter_mut().filter(|mapping| mapping.followed) {
        if !tracked && !mapping.tells_stores() {
            mapping.rights = Some(Rights::for_stores());
            let _ = protect(mapping.start, mapping.composed, mapping.shown_protection());
        }
        let attribute = mapping.file.attribute();
        let followed = table.files.iter().find(|followed| followed.mapped.file().attribute() == attribute);
        let covered = followed.map_or(Ok(()), |followed| {
            if !mapping.copied {
                followed.mapped.store_directly()?;
            }
            followed.mapped.cover(mapping.offset, mapping.end_offset())
        });
        let watched = match &table.tracker {
            Some(tracker) if mapping.composed > mapping.start => {
                tracker.watch_inherited(mapping.start, mapping.composed - mapping.start)
            }
            _ => Ok(()),
        };
        result = result.and(covered).and(watched);
    }
    if let Err(error) = result {
        report!("stores of a child process to shared mappings cannot be followed ({error}); their redundancy waits for a scrub");
    }
    helper::start();
}

/// Before an exec.
pub(crate) fn before_exec() {
    // What fails stays announced.
    let _ = super::follow::all();
}

/// The process ends: nothing is stored any more, and everything is followed.
pub(crate) fn leave() {
    if !any() {
        return;
    }
    let mut table = table();
    for index in 0..table.list.len() {
        let (start, end) = (table.list[index].start, table.list[index].end);
        table.seal(index, start, end);
    }
    table.files.clear();
    // A thread that stores now waits for the lock until the process is gone.
    core::mem::forget(table);
}
