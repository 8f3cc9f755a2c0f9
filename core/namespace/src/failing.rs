//! A member that fails while names are made good after a death or a crash goes out, and the rest is
//! made good without it. A start that meets such a member is not refused for it.
//!
//! An error there does not say which of two members it comes from, so each is looked at.

use crate::Namespace;
use crate::everywhere::is_dead_to_changes;
use crate::located::names_in;
use sys::rustix::fs::{StatVfsMountFlags, fstatvfs};
use sys::{AsFd as _, OsError, Result};
use units::{MemberSet, Slot};

impl Namespace {
    /// Runs `act`, again without the members that turn out to have failed in it.
    ///
    /// # Errors
    /// What `act` gives while no member has failed, or if those that have cannot be spared.
    pub(crate) fn without_failing<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            match act() {
                Err(error) if is_dead_to_changes(error) => {
                    let failing: MemberSet = self.array().in_use().iter().filter(|&slot| self.is_failing(slot)).collect();
                    if failing.is_empty() {
                        return Err(error);
                    }
                    for slot in failing.iter() {
                        self.array().do_without(slot, error)?;
                    }
                }
                result => return result,
            }
        }
    }

    /// Whether a member's file system fails to say what it holds, or takes no changes any more.
    fn is_failing(&self, slot: Slot) -> bool {
        let looks = || {
            let root = self.root(slot)?;
            names_in(root, format::DIRECTORY.to_bytes())?;
            array::superblock::read(self.array().members()[slot].meta().ok_or(OsError::NODEV)?)?;
            let is_mounted_so = fstatvfs(root)?.f_flag.contains(StatVfsMountFlags::RDONLY);
            if is_mounted_so || array::is_read_only(root.as_fd()) { Err(OsError::ROFS) } else { Ok(()) }
        };
        looks().is_err_and(is_dead_to_changes)
    }
}
