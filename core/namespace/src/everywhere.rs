//! One change on every member: the first member's result decides, the others follow, and in the end
//! all members in use are alike.

use crate::Namespace;
use crate::absent::{AGAIN, CONTRADICTED, is_absence};
use crate::located::Located;
use crate::mounts::FOREIGN_MOUNT;
use crate::target::Target;
pub(crate) use array::has_failed as is_dead;
use core::sync::atomic::Ordering;
use format::InodeState;
use sys::rustix::fs::{AtFlags, FileType, Mode, fstat, unlinkat};
use sys::{AsFd as _, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

/// Whether an error of a change says that a member is dead, without a look at the member. A file
/// system that was writable and is not may have made itself read-only after an error.
pub(crate) fn is_dead_to_changes(error: OsError) -> bool {
    is_dead(error) || matches!(error, OsError::ROFS | OsError::NODEV)
}

/// Whether an error says that a member's tree is not what the first member's is.
pub(crate) fn is_divergence(error: OsError) -> bool {
    matches!(error, OsError::NOENT | OsError::NOTDIR | OsError::ISDIR | OsError::EXIST | OsError::NOTEMPTY | OsError::LOOP)
}

/// Whether an error says that this process has no descriptor or memory left.
pub(crate) const fn is_shortage(error: OsError) -> bool {
    matches!(error, OsError::MFILE | OsError::NFILE | OsError::NOMEM)
}

/// A member during a change.
pub(crate) struct On {
    pub(crate) slot: Slot,
    pub(crate) root: &'static OwnedFd,
    /// Whether its result decides: what it refuses, the program is told.
    pub(crate) first: bool,
    /// Whether directories are to be looked up anew: what was found of them before may not be the
    /// member's any more.
    pub(crate) afresh: bool,
    /// True if the member was just given the names that the first one has, which has made the change.
    pub(crate) caught_up: bool,
}

impl On {
    /// Takes a name away again.
    pub(crate) fn remove(&self, target: &Target<'_>, flags: AtFlags) -> Result<()> {
        let at = target.on(self)?;
        unlinkat(at.directory(), at.name(), flags)
    }
}

/// Takes back on one member what a change has made there.
pub(crate) type Undo<'a> = &'a dyn Fn(&On) -> Result<()>;

/// For [`Namespace::everywhere`]: there is nothing to undo.
pub(crate) const NOTHING: Option<Undo<'_>> = Some(&|_| Ok(()));

impl Namespace {
    /// Whether an error of a change on a member says that the member has failed.
    pub(crate) fn is_dead_to_changes(&self, slot: Slot, error: OsError) -> bool {
        error == OsError::NODEV || self.array().has_member_failed(slot, error)
    }

    /// Runs a change alone among all changes of names, with the members that are out on record.
    pub(crate) fn changing<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        self.locked(|whole| {
            whole?;
            loop {
                self.array().before_change()?;
                match change() {
                    // A member went out in it.
                    Err(AGAIN) => {}
                    // The error of a call on a descriptor does not say which member has failed.
                    // A change that is made and could not be put on record is not made twice.
                    Err(error) if is_dead_to_changes(error) && !self.is_change_unfinished() && self.let_failing_go(error) => {}
                    result => return result,
                }
            }
        })
    }

    /// Makes a change on every member in use; the namespace lock is held. What the first member
    /// refuses is the result, and nothing is changed. What a later one refuses is undone on those
    /// before it. A member whose tree differs is made like the first; one that has failed goes out.
    /// `names` are the logical paths of what is changed. There are none if it has no name.
    ///
    /// A first member that turns out to have lost what is changed goes out, and the result is
    /// [`AGAIN`], for [`Self::changing`].
    ///
    /// `undo` is `None` for a change that takes something away for good. Then a later member that
    /// refuses it goes out. There are four exceptions. If the array does not bear that loss, the
    /// change is left unfinished, and the result is `IO`. If a user without rights to the array may
    /// have made its names differ, or if it has a mount there, what is on that member stays. If what
    /// refuses it is this process' own affair, a limit that it has reached or a sandbox, the change
    /// is left unfinished. Whoever changes names next finishes an unfinished change, as if a process
    /// had died in it.
    /// [`Self::foresee`] or [`Self::foresee_replacement`] comes before such a change, so that
    /// little is left to be refused.
    ///
    /// # Errors
    /// `IO`, with the change undone, if a member has other names there and cannot be made like the
    /// first, and a user without rights to the array may have made them so: he must not be able to
    /// put a member out.
    pub(crate) fn everywhere(
        &self,
        names: &[&[u8]],
        mut act: impl FnMut(&On) -> Result<()>,
        undo: Option<Undo<'_>>,
    ) -> Result<()> {
        let mut done = MemberSet::EMPTY;
        let mut is_unfinished = false;
        for slot in self.array().in_order(self.array().in_use()) {
            let on = On { slot, root: self.root(slot)?, first: done.is_empty(), afresh: false, caught_up: false };
            let result = match act(&on) {
                // What is kept for later must not be in the way of what is wanted now. Where a
                // directory cannot be opened nothing has been changed.
                Err(OsError::MFILE) if self.files.free_descriptors() => act(&on),
                Err(OsError::ACCESS) if !on.first && self.open_closed_on(slot, names) => act(&On { afresh: true, ..on }),
                result => result,
            };
            // Another process has taken the member out meanwhile, perhaps for what it lacks: its
            // answer says nothing.
            if result.is_err() && self.array().runtime().out().contains(slot) {
                if on.first {
                    return Err(AGAIN);
                }
                continue;
            }
            // Its tree is not the first's, and is made so; that may bring the change with it.
            let result = match result {
                Err(error) if !on.first && is_divergence(error) => self
                    .catch_up(&on, names, &mut act)
                    .map_err(|caught| if matches!(caught, AGAIN | CONTRADICTED) || is_shortage(caught) { caught } else { error }),
                Err(error) if on.first && is_absence(error) && self.denies_any(names)? => Err(AGAIN),
                result => result,
            };
            match result {
                Ok(()) => done = done.with(slot),
                Err(error @ (AGAIN | CONTRADICTED)) => {
                    let is_unfinished = self.undo(done, undo, error)?;
                    // An unfinished change is not asked for anew: the next change finishes it.
                    return Err(if error == AGAIN && !is_unfinished { AGAIN } else { OsError::IO });
                }
                Err(error) => {
                    let differs = !on.first && is_divergence(error);
                    let is_kept = !on.first && undo.is_none();
                    let may_be_foreign = differs || is_kept && matches!(error, OsError::ACCESS | OsError::PERM);
                    let is_foreign = may_be_foreign && self.are_any_in_foreign_hands(names);
                    if is_kept && (is_shortage(error) || self.is_sandboxed(slot, names, error)) {
                        is_unfinished = true;
                        continue;
                    }
                    if is_kept && (is_foreign || matches!(error, OsError::BUSY | FOREIGN_MOUNT)) {
                        continue;
                    }
                    let is_dead = self.is_dead_to_changes(slot, error);
                    if is_dead || differs && !is_foreign || is_kept {
                        // The array may not bear the loss of this member besides others.
                        let is_borne = self.array().bears(self.array().runtime().out().with(slot));
                        if (is_borne || is_dead) && self.array().fail_member(slot).is_ok() {
                            continue;
                        }
                        self.undo(done, undo, error)?;
                        return Err(OsError::IO);
                    }
                    self.undo(done, undo, error)?;
                    if is_foreign {
                        if let Some(path) = names.last() {
                            self.array().tell_difference(slot, path);
                        }
                        return Err(OsError::IO);
                    }
                    return Err(error);
                }
            }
        }
        if done.is_empty() {
            return Err(OsError::IO);
        }
        if is_unfinished {
            self.array().runtime().names_are_unfinished();
        }
        // A look-up on the way may have taken a member out, and so may another process. A member that
        // comes back without its loss on record would be believed.
        self.before_change().inspect_err(|_| self.array().runtime().names_are_unfinished())
    }

    /// Whether a user without rights to the array may have made what is changed differ on a member.
    /// What has no name may be anybody's who has it open.
    fn are_any_in_foreign_hands(&self, names: &[&[u8]]) -> bool {
        names.is_empty() || names.iter().any(|path| self.is_in_foreign_hands(path))
    }

    /// Whether a refusal by a later member, of what the first one has let this process do, speaks
    /// of the process and not of the member: the directories have the same owner, group and mode on
    /// both, so a sandbox tells them apart (landlock(7) knows directories by their inodes). This
    /// process then leaves it to others to finish what it could not.
    fn is_sandboxed(&self, slot: Slot, names: &[&[u8]], error: OsError) -> bool {
        let rights = |slot: Slot, path: &[u8]| -> Result<[u32; 3]> {
            let at = Located::below(self.root(slot)?.as_fd(), path.strip_prefix(b"/").unwrap_or(path))?;
            let stat = fstat(at.directory())?;
            Ok([stat.st_uid, stat.st_gid, stat.st_mode])
        };
        let is_alike = |path: &&[u8]| {
            let first = self.array().first_in_use().and_then(|first| rights(first, path));
            matches!((first, rights(slot, path)), (Ok(first), Ok(other)) if first == other)
        };
        let is_so = matches!(error, OsError::ACCESS | OsError::PERM) && !names.is_empty() && names.iter().all(is_alike);
        if is_so {
            self.is_sandboxed.store(true, Ordering::Relaxed);
        }
        is_so
    }

    /// Undoes what an error has ended. A process that has no descriptor or memory left cannot find
    /// directories anew: it goes back by those that the change has found, which are still open.
    /// Where it cannot go back, since another thread has taken what was left, or since the change
    /// takes something away for good, the change is left unfinished: its record in the log of names
    /// stays good, and whoever changes names next makes it on the members that lack it. Returns
    /// whether it is unfinished.
    fn undo(&self, done: MemberSet, undo: Option<Undo<'_>>, error: OsError) -> Result<bool> {
        let done = done.minus(self.array().runtime().out());
        let mut is_unfinished = undo.is_none() && !done.is_empty();
        if let Some(undo) = undo {
            let afresh = !is_shortage(error);
            for slot in done.iter() {
                let on = On { slot, root: self.root(slot)?, first: false, afresh, caught_up: false };
                is_unfinished |= undo(&on).is_err_and(is_shortage);
            }
        }
        if is_unfinished {
            self.array().runtime().names_are_unfinished();
        }
        Ok(is_unfinished)
    }

    /// Whether the first member says that names are not there which others have, and is not to be
    /// asked any more, or has them now.
    fn denies_any(&self, names: &[&[u8]]) -> Result<bool> {
        for path in names {
            if self.is_denied(path) && self.arbitrate_locked(path)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn catch_up(&self, on: &On, names: &[&[u8]], act: &mut impl FnMut(&On) -> Result<()>) -> Result<()> {
        self.refuse_reference(self.array().first_in_use()?, on.slot, names)?;
        let is_whole = self.restructuring(|| self.recover_member(on.slot, self.array().first_in_use()?, &[]))?;
        match act(&On { afresh: true, caught_up: is_whole, ..*on }) {
            Err(error) if is_divergence(error) && is_whole => Ok(()),
            result => result,
        }
    }

    /// Makes a name on every member. On a later member the name may be left over from a change cut
    /// short: it is removed.
    pub(crate) fn make_everywhere(
        &self,
        target: &Target<'_>,
        removal: AtFlags,
        mut make: impl FnMut(&On, &Located<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut first_mode = None;
        self.everywhere(
            &[&target.path],
            |on| {
                let at = target.on(on)?;
                match make(on, &at) {
                    Err(OsError::EXIST) if !on.first => {
                        self.clear_unproven(on.slot, &at, &target.path)?;
                        make(on, &at)
                    }
                    result => result,
                }?;
                self.follow_mode_at(&at, &mut first_mode)
            },
            Some(&|on| on.remove(target, removal)),
        )
    }
}

impl Namespace {
    /// Removes what is at a name of one member and not at the first member's. A directory is
    /// removed with all that is in it, but not with a file of the array that has no other name
    /// there: a user may move another user's directory to any name in a directory of his own, and
    /// what the other has in it is not his to remove.
    ///
    /// # Errors
    /// `NOTEMPTY` if such a file is in it.
    pub(crate) fn clear(&self, slot: Slot, at: &Located<'_>) -> Result<()> {
        at.clear(&|at| {
            let stat = at.stat()?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink > 1 {
                return Ok(false);
            }
            let attribute = self.attribute_at(slot, at)?;
            Ok(attribute.is_some_and(|attribute| self.files.state_of(attribute) == Some(InodeState::Used)))
        })
    }

    /// Gives a new directory or special file the mode of the first member's, if the umask may have
    /// changed since that was made.
    fn follow_mode_at(&self, at: &Located<'_>, first: &mut Option<u32>) -> Result<()> {
        if !self.shares_umask.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mode = at.stat()?.st_mode;
        match *first.get_or_insert(mode) {
            first if first == mode => Ok(()),
            // Symlinks have one mode only, so this is none.
            first => at.chmod(Mode::from_raw_mode(first)),
        }
    }
}
