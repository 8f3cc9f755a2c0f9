//! This module tells whether a user who has no rights to the array may have changed names on one
//! member alone.
//!
//! A directory's owner may make, rename and remove names in it on each member past the array. A
//! member whose names differ there works as well as before, so it must not go out for it: otherwise
//! that user could take the array's redundancy away. Where only root and the array's owner may
//! change names, a difference is the member's failure.
//!
//! A change that can be undone is undone where a member refuses it. For one that cannot, this
//! module looks at every member before the first is changed.

use crate::Namespace;
use crate::everywhere::{NOTHING, On, is_dead_to_changes};
use crate::located::Located;
use crate::target::Target;
use sys::rustix::fs::{FileType, Mode, fstat};
use sys::rustix::process::geteuid;
use sys::{AsFd, OsError, Result};

/// What decides on a member whether a name may be renamed: its directory's owner, group and mode,
/// and the name's kind and owner.
#[derive(PartialEq, Eq)]
struct Sight {
    directory: [u32; 3],
    kind: FileType,
    owner_uid: u32,
}

/// The bits of a mode that do not concern the owner: rights, set-ID bits and the sticky bit.
const OF_OTHERS: u32 = 0o7077;

impl Namespace {
    /// Finds the directory of a name on every member before a change that cannot be undone.
    ///
    /// # Errors
    /// `MFILE`, `NFILE` or `NOMEM` if the process or the machine has no room for that. Everything
    /// else is left for the change to meet.
    pub(crate) fn foresee(&self, target: &Target<'_>) -> Result<()> {
        let look = |on: &On| match target.on(on) {
            Err(error) if is_lasting(error) => Err(error),
            _ => Ok(()),
        };
        self.everywhere(&[&target.path], look, NOTHING)
    }

    /// Looks at every member before a rename that replaces something, which cannot be undone. Where
    /// a user may have made names differ, and this process may not make them the same, each later
    /// member is compared with the first: a rename that one member cannot make would leave its file
    /// under another name there.
    ///
    /// # Errors
    /// As for [`Self::foresee`]; `IO` if a member differs.
    pub(crate) fn foresee_replacement(&self, from: &Target<'_>, to: &Target<'_>) -> Result<()> {
        let is_trusted = self.array().trusts(geteuid().as_raw());
        let is_compared = !is_trusted && (self.is_in_foreign_hands(&from.path) || self.is_in_foreign_hands(&to.path));
        if !is_compared {
            return self.foresee(from).and_then(|()| self.foresee(to));
        }
        let mut wanted: Option<[Option<Sight>; 2]> = None;
        let look = |on: &On| {
            let see = || [from, to].map(|target| sight(target, on));
            let is_alike = |sights: &[Result<Sight>; 2]| {
                let told = || sights.iter().map(|sight| sight.as_ref().ok());
                wanted.as_ref().is_none_or(|wanted| told().eq(wanted.iter().map(Option::as_ref)))
            };
            let mut sights = see();
            // A directory that the member closes to its owner is opened, as the change would do.
            if !on.first && !is_alike(&sights) && self.open_closed_on(on.slot, &[&from.path, &to.path]) {
                sights = see();
            }
            if let Some(&error) = sights.iter().filter_map(|sight| sight.as_ref().err()).find(|&&error| is_lasting(error)) {
                return Err(error);
            }
            if !on.first {
                return if is_alike(&sights) { Ok(()) } else { Err(OsError::NOENT) };
            }
            // What the first member refuses, the program is told by the change itself.
            let sights = sights.map(Result::ok);
            wanted = sights.iter().all(Option::is_some).then_some(sights);
            Ok(())
        };
        self.everywhere(&[&from.path, &to.path], look, NOTHING)
    }

    /// Tells whether any directory on the way to a logical path, from the array's prefix on,
    /// belongs to somebody else than root and the array's owner, or may be written by others. What
    /// this process may not see is in foreign hands.
    pub(crate) fn is_in_foreign_hands(&self, path: &[u8]) -> bool {
        let shared = Mode::WGRP.union(Mode::WOTH).bits();
        let is_foreign = |directory: &[u8]| {
            let stat = self.on_first(|root| Located::below(root.as_fd(), &directory[1..])?.stat());
            match stat {
                Ok(stat) => !self.array().trusts(stat.st_uid) || stat.st_mode & shared != 0,
                Err(error) => error == OsError::ACCESS,
            }
        };
        let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
        ends.map(|end| &path[..end]).filter(|directory| !directory.is_empty() && self.owns(directory)).any(is_foreign)
    }
}

fn sight(target: &Target<'_>, on: &On) -> Result<Sight> {
    let at = target.on(on)?;
    let (directory, stat) = (fstat(at.directory())?, at.stat()?);
    // The rights of others in a directory do not concern its owner.
    let is_own = directory.st_uid == sys::task::file_user();
    let mode = if is_own { directory.st_mode & !OF_OTHERS } else { directory.st_mode };
    Ok(Sight {
        directory: [directory.st_uid, directory.st_gid, mode],
        kind: FileType::from_raw_mode(stat.st_mode),
        owner_uid: stat.st_uid,
    })
}

/// Tells whether an error concerns the process, the machine or the whole member, and not one name.
fn is_lasting(error: OsError) -> bool {
    matches!(error, OsError::MFILE | OsError::NFILE | OsError::NOMEM | crate::FOREIGN_MOUNT) || is_dead_to_changes(error)
}
