//! This module tells whether a user who has no rights to the array may have changed names on one member alone.
//!
//! A directory's owner may make, rename and remove names in it on each member past the array. A member whose names differ there works as well as before, so it must not go out
//! for it: otherwise that user could take the array's redundancy away. Where only root and the array's owner may change names, a difference is the member's failure.

use crate::Namespace;
use crate::located::Located;
use sys::rustix::fs::Mode;
use sys::{AsFd, OsError};

impl Namespace {
    /// Tells whether any directory on the way to a logical path, from the array's prefix on, belongs to somebody else than root and the array's owner, or may be written by others. What
    /// this process may not see is in foreign hands.
    pub(crate) fn is_in_foreign_hands(&self, path: &[u8]) -> bool {
        let owner = self.array().access().owner_uid;
        let shared = Mode::WGRP.union(Mode::WOTH).bits();
        let is_foreign = |directory: &[u8]| {
            let stat = self.on_first(|root| Located::below(root.as_fd(), &directory[1..])?.stat());
            match stat {
                Ok(stat) => ![0, owner].contains(&stat.st_uid) || stat.st_mode & shared != 0,
                Err(error) => error == OsError::ACCESS,
            }
        };
        let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
        ends.map(|end| &path[..end]).filter(|directory| !directory.is_empty() && self.owns(directory)).any(is_foreign)
    }
}
