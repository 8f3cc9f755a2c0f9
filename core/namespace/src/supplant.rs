//! A file takes another one's name, with a level of its own (`cxlraid migrate`).
//!
//! A new file without a name gets all that the old one has. Then it is given the old one's name in
//! the members' place of it, by one change that the log of names notes as a renaming from
//! `.cxlraid`, where a file without a name is linked ([`file::orphan_path`]). So each crash leaves
//! one of the two files, whole, and the other one is freed as every file without a name is.
//!
//! Invariants:
//! - Before the first member's name is changed, the new file, its links and the log's record are
//!   durable on every member; before the old file is freed, the changed name is.
//! - Until the name is changed on every member the new file's record is that of a file without a
//!   name. Replay finishes a change that one member has made, and gives it up if none has.
//! - A process that could not finish the change keeps the new file's links: on a member that lacks
//!   the name they are all that there is of the file.

use crate::change::renamed;
use crate::everywhere::On;
use crate::log::change;
use crate::resolve::join;
use crate::target::Target;
use crate::{Namespace, Opened, ProgramPath, Reached};
use file::{FileRef, Name};
use format::{Attribute, NameKind, NameRecord, Shape};
use sys::rustix::fs::{OFlags, RenameFlags};
use sys::{OsError, Result};

impl Namespace {
    /// Makes a file of this shape without a name in a directory, for its owner to read and write. It
    /// is gone when it is closed, unless it takes the place of another one ([`Self::supplant`]).
    ///
    /// # Errors
    /// Those of open(2) with O_TMPFILE; `XDEV` if the path leads out of the array.
    pub fn make_of(&self, directory: &[u8], shape: Shape) -> Result<Opened> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match self.open_unnamed(ProgramPath::known(directory), flags, 0o600, Some(shape))? {
            Reached::Array(opened) => Ok(opened),
            Reached::Host(_) => Err(OsError::XDEV),
        }
    }

    /// Gives the name `path` of the file `old`, which nobody has open, to the file `new`, which was
    /// made without a name: `old` is gone. All members are in use, and `new` has been synchronised.
    ///
    /// # Errors
    /// `STALE` if another file has the name, `MLINK` if the old file has other names as well, `BUSY`
    /// if a process has it open; what the kernel says, as of rename(2). The name is the old file's
    /// then, unless a member could not make the change that others have made (`BUSY`, too): whoever
    /// changes names next finishes it.
    pub fn supplant(&self, path: &[u8], old: Attribute, new: &FileRef) -> Result<()> {
        let file = new.attribute();
        self.changing_at(ProgramPath::known(path), |path| {
            let Reached::Array(to) = self.target(path)? else { return Err(OsError::XDEV) };
            let stat = self.asking_first(|on| to.on(on)?.stat())?;
            match self.file_and_last(&to, Some(stat)) {
                (Some(found), _) if found != old => return Err(OsError::STALE),
                (None, _) => return Err(OsError::STALE),
                (_, None) => return Err(OsError::MLINK),
                _ if self.files.is_open(old) => return Err(OsError::BUSY),
                _ => {}
            }
            new.keep_nameless();
            let has_all = self.array().in_use().iter().all(|slot| new.backing_on(slot).is_some());
            if new.name() != Name::Kept || !has_all {
                return Err(OsError::IO);
            }
            let link = join(b"/", &file::orphan_path(file));
            let from = Target::new(ProgramPath::known(&link), link.clone(), false);
            self.foresee_replacement(&from, &to)?;
            let gone = self.last_name(&to, Some(old));
            let record = NameRecord { replaced: Some(old), to: &to.path, ..change(NameKind::Rename, &from.path, Some(file)) };
            let rename = |on: &On| renamed(&from.on(on)?, &to.on(on)?, RenameFlags::empty());
            self.logged(record, || {
                self.sync_members()?;
                let changed = self.everywhere(&[&from.path, &to.path], rename, None);
                // A member in whose place of the name something is mounted, or whose directory is in
                // foreign hands, may have refused without a word. The new file's link is all that it
                // has.
                let lacks = |slot| !matches!(self.lacks(slot, &to.path, Some(file)), Ok(false));
                if changed.is_ok() && self.array().in_use().iter().any(lacks) {
                    self.array().runtime().names_are_unfinished();
                }
                if self.is_change_unfinished() {
                    self.files.takes_name(file, false);
                    return changed.and(Err(OsError::BUSY));
                }
                changed?;
                // A member that fails here is out. Where too many have failed, the change is made
                // all the same on those that have not.
                let _ = self.sync_members();
                self.files.takes_name(file, true);
                self.forgetting(gone, Ok(()))
            })
        })
    }

    /// Frees the files without a name that processes have left which died. The caller is alone with
    /// the array.
    ///
    /// # Errors
    /// Those of finishing a change of names that was left unfinished, and of reading the records.
    pub fn free_nameless(&self) -> Result<()> {
        self.locked(|whole| whole.and_then(|()| self.files().free_nameless()))
    }
}
