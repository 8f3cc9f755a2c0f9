//! A member that fails while names are made good after a death or a crash goes out, and the rest is
//! made good without it. A start that meets such a member is not refused for it.
//!
//! An error there does not say which of two members it comes from, so each is looked at. So is each
//! after a call that a mount has made on a descriptor, whose error does not say it either.

use crate::Namespace;
use crate::everywhere::{is_dead, is_dead_to_changes};
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
                    let failing = self.failing();
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

    /// Whether an error may come from a member that has failed, of a call on a descriptor, which
    /// does not say which member that is.
    #[must_use]
    pub fn may_be_failure(error: OsError) -> bool {
        is_dead(error) || error == OsError::ROFS
    }

    /// Looks whether each member still answers, and takes changes if `error` says that one does
    /// not, after such a call. Those that do not, and can be spared, go out. Returns whether one
    /// went out.
    pub fn let_failing_go(&self, error: OsError) -> bool {
        let has_failed = |slot: &Slot| {
            let is_read_only = || self.root(*slot).is_ok_and(|root| array::is_read_only(root.as_fd()));
            self.look_into(*slot).is_err_and(is_dead) || error == OsError::ROFS && is_read_only()
        };
        let failing = self.array().in_use().iter().filter(has_failed);
        // One that cannot be spared stays, for who gets along with it.
        failing.filter(|&slot| self.array().do_without(slot, error).is_ok()).count() != 0
    }

    fn failing(&self) -> MemberSet {
        self.array().in_use().iter().filter(|&slot| self.is_failing(slot)).collect()
    }

    /// Whether a member's file system fails to say what it holds, or takes no changes any more.
    fn is_failing(&self, slot: Slot) -> bool {
        let looks = || {
            self.look_into(slot)?;
            let root = self.root(slot)?;
            let is_mounted_so = fstatvfs(root)?.f_flag.contains(StatVfsMountFlags::RDONLY);
            if is_mounted_so || array::is_read_only(root.as_fd()) { Err(OsError::ROFS) } else { Ok(()) }
        };
        looks().is_err_and(is_dead_to_changes)
    }

    /// Reads what every member has.
    fn look_into(&self, slot: Slot) -> Result<()> {
        names_in(self.root(slot)?, format::DIRECTORY.to_bytes())?;
        array::superblock::read(self.array().members()[slot].meta().ok_or(OsError::NODEV)?).map(|_| ())
    }
}
