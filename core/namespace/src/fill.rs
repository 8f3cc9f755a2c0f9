//! A member that is made anew gets every name that the others have.
//!
//! The member is out while this runs, so nothing here can put a good member out for it. Whatever is
//! cut short is done again from the beginning: the member's tree is emptied first. Files are made
//! empty; their bytes are noted as lost (`file::Files::note_lost_everywhere`), and computed later
//! from the other members. The process is alone with the array ([`fill`]), or programs use the array
//! and the member joins ([`begin`], [`Joiner`]).

use crate::Namespace;
use crate::change::link_on;
use crate::everywhere::On;
use crate::located::{Located, names_in};
use crate::recover::{Item, Tree};
use crate::resolve::join;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use array::{Array, AttachError, Config};
use file::{Files, Refusal};
use sys::rustix::fs::{AtFlags, FileType, syncfs, unlinkat, utimensat};
use sys::{AsFd, OsError, Result};
use units::Slot;

/// Why a member could not be made anew. Its state is as before.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The array cannot be attached, or the directory is none that a member can be made in.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Programs use the array.
    #[error(
        "the array is in use; end its programs, and start them again when the member is in: its data is computed while they run"
    )]
    InUse,
    /// Processes, by pid, started before the member was begun, or cannot open it.
    #[error("programs run that started before the member was begun; end them, or start them again one after the other")]
    Unreached(Vec<u32>),
    /// A process has a file open that no path leads to.
    #[error("a program has a file open that was made without a name (O_TMPFILE), which the member could not get; end it")]
    Nameless,
    /// A process holds a lock of the array, or has taken the member out.
    #[error("a program keeps a lock of the array for long, as one that is stopped does, or names change all the time; try again")]
    Busy,
    /// Writes wait in the journal.
    #[error("writes wait in the array's journal; run 'cxlraid journal replay' first")]
    Waiting,
    /// Files that another member still lacks would be lost.
    #[error("files still wait to be rebuilt on another member, and need what is left; run 'cxlraid rebuild' until nothing waits")]
    Unbuilt,
    /// A system call or the memory of a member failed.
    #[error("the member cannot be filled: {0}")]
    Os(OsError),
}

/// Makes a member that is out anew in its directory, with all names and nothing of the files' bytes, which are computed by those who open the files from then on. Programs that start
/// meanwhile wait.
///
/// # Errors
/// [`FillError`]. The member is out as before, and whoever tries again begins anew.
pub fn fill(config: &Config, slot: Slot) -> core::result::Result<(), FillError> {
    require_loss_borne(config, slot)?;
    let held = hold(config)?;
    let begun = held.begin_member(slot);
    held.runtime().detach();
    held.let_in();
    begun?;
    let array = hold(config)?;
    array.runtime().note_deaths();
    let files = Files::new(array).map_err(FillError::Os)?;
    let filled = fill_held(files, slot);
    // What this process has open stays open, and must not keep others from the members.
    files.detach();
    files.array().let_in();
    files.array().abandon();
    filled
}

/// Refuses to make a member anew whose old bytes some file needs. The member's directory is as it was.
fn require_loss_borne(config: &Config, slot: Slot) -> core::result::Result<(), FillError> {
    let files = Files::new(hold(config)?).map_err(FillError::Os)?;
    let borne = match files.require_loss_borne(slot) {
        _ if !files.waiting_records().is_empty() => Err(FillError::Waiting),
        Err(OsError::BUSY) => Err(FillError::Unbuilt),
        borne => borne.map_err(FillError::Os),
    };
    files.detach();
    files.array().let_in();
    files.array().abandon();
    borne
}

impl From<Refusal> for FillError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unreached(pids) => Self::Unreached(pids),
            Refusal::Nameless => Self::Nameless,
            Refusal::Busy => Self::Busy,
            Refusal::Unbuilt => Self::Unbuilt,
            Refusal::Os(error) => Self::Os(error),
        }
    }
}

/// Makes a new `.cxlraid` in the directory of a member that is out, while programs use the array. Those that start from now on can use the
/// member once it joins ([`Joiner`]).
///
/// # Errors
/// [`FillError`]; `InUse` for an array with a journal, of which a member can only be made anew while no program uses it.
pub fn begin(config: &Config, slot: Slot) -> core::result::Result<(), FillError> {
    let files = Files::new(Array::attach(config)?).map_err(FillError::Os)?;
    let array = files.array();
    let begun = match files.require_loss_borne(slot) {
        _ if array.journal().is_some() => Err(FillError::InUse),
        // What its directory holds is given up with its old beginning.
        Err(OsError::BUSY) => Err(FillError::Unbuilt),
        borne => borne.map_err(FillError::Os).and_then(|()| array.begin_member_in_use(slot).map_err(FillError::from)),
    };
    files.detach();
    array.abandon();
    begun
}

/// A process that brings a member into use which was begun while programs run ([`begin`]).
pub struct Joiner {
    names: Namespace,
    slot: Slot,
}

impl Joiner {
    /// Attaches to the array.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn new(config: &Config, slot: Slot) -> core::result::Result<Self, FillError> {
        let files = Files::new(Array::attach(config)?).map_err(FillError::Os)?;
        Ok(Self { names: Namespace::new(files).map_err(FillError::Os)?, slot })
    }

    /// Whether the member is there as it was begun last.
    #[must_use]
    pub fn reaches(&self) -> bool {
        self.names.array().runtime().reaches(self.slot)
    }

    /// Whether the member is in use.
    #[must_use]
    pub fn is_in(&self) -> bool {
        self.names.array().in_use().contains(self.slot)
    }

    /// Gives the member all that the others have but the bytes of files, and brings it into use. Programs read and write meanwhile, and open files; changes of names
    /// wait, and in the end opening and closing.
    ///
    /// # Errors
    /// [`FillError`]. The member is out as before. With `Unreached`, `Nameless` and `Busy` this can be tried again.
    pub fn join(&self) -> core::result::Result<(), FillError> {
        if self.names.array().journal().is_some() {
            return Err(FillError::InUse);
        }
        self.names.forget_dead();
        let unreached = self.names.array().runtime().not_reaching(self.slot);
        if !unreached.is_empty() {
            return Err(FillError::Unreached(unreached));
        }
        self.names.join_member(self.slot)
    }

    /// Leaves the array.
    pub fn end(self) {
        self.names.files().detach();
        self.names.array().abandon();
    }
}

/// The array, with nobody else in it.
fn hold(config: &Config) -> core::result::Result<Array, FillError> {
    let array = Array::attach_holding(config)?;
    if array.was_alone() {
        return Ok(array);
    }
    array.runtime().detach();
    array.let_in();
    Err(FillError::InUse)
}

fn fill_held(files: &'static Files, slot: Slot) -> core::result::Result<(), FillError> {
    if !files.waiting_records().is_empty() {
        return Err(FillError::Waiting);
    }
    let names = Namespace::new(files).map_err(FillError::Os)?;
    names.fill_member(slot).map_err(|error| if error == OsError::BUSY { FillError::Unbuilt } else { FillError::Os(error) })?;
    files.array().finish_member(slot).map_err(FillError::Os)
}

impl Namespace {
    /// Gives back what dead processes held, as a process does that starts: files that they had open are open no more.
    pub fn forget_dead(&self) {
        let runtime = self.array().runtime();
        let _ = runtime.reap();
        if runtime.has_reaped_nameless() {
            self.clear_nameless();
        }
    }

    /// Gives a member, which is out and has a new `.cxlraid` (`array::Array::begin_member`), all that the others have but the bytes of files, and notes that it has lost those.
    ///
    /// # Errors
    /// `BUSY` if some file does not bear that loss besides what it waits for on other members; `AGAIN` if somebody changes names on a member past the array meanwhile; otherwise what the kernel says of the member.
    fn fill_member(&self, slot: Slot) -> Result<()> {
        let runtime = self.array().runtime();
        runtime.with_namespace(|_| {
            let reference = self.reference_that_lacks_nothing(self.array().first_in_use()?)?;
            self.array().before_change()?;
            self.files().note_lost_everywhere(slot)?;
            self.empty_member(slot)?;
            self.files().copy_tables_to(slot)?;
            for prefix in &self.array().config().prefixes {
                self.array().make_directories_on(slot, prefix)?;
            }
            if !self.restructuring(|| self.recover_member(slot, reference, &[]))? {
                return Err(OsError::AGAIN);
            }
            self.finish_names(slot, reference)
        })
    }

    /// Does what [`Self::fill_member`] does while programs use the array, and brings the member into use.
    fn join_member(&self, slot: Slot) -> core::result::Result<(), FillError> {
        let mut refusal = None;
        let joined = self.locked(|whole| {
            whole?;
            let reference = self.reference_that_lacks_nothing(self.array().first_in_use()?)?;
            self.array().before_change()?;
            self.files().require_loss_borne(slot)?;
            // Before all is copied, since changes of names wait for that.
            if let Err(refused) = self.files().require_names() {
                refusal = Some(refused);
                return Ok(());
            }
            self.empty_member(slot)?;
            self.files().copy_name_log(reference, slot)?;
            for prefix in &self.array().config().prefixes {
                self.array().make_directories_on(slot, prefix)?;
            }
            // Nobody remembers anything of this member, so nothing that is remembered ends with this.
            if !self.recover_member(slot, reference, &[])? {
                return Err(OsError::AGAIN);
            }
            self.finish_names(slot, reference)?;
            self.copy_orphans(slot, reference)?;
            // Most of it is durable before anybody waits for that with a file to be opened.
            syncfs(self.root(slot)?)?;
            refusal = self.array().while_nobody_attaches(|| self.files().join(slot)).unwrap_or(Err(Refusal::Busy)).err();
            Ok(())
        });
        match (joined, refusal) {
            (Err(OsError::AGAIN), _) => Err(FillError::Busy),
            (Err(OsError::BUSY), _) => Err(FillError::Unbuilt),
            (Err(error), _) => Err(FillError::Os(error)),
            (Ok(()), Some(refusal)) => Err(refusal.into()),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Gives a member, which has all names, what names do not say.
    fn finish_names(&self, slot: Slot, reference: Slot) -> Result<()> {
        let wanted = self.tree(reference)?;
        self.link_again(slot, &wanted)?;
        self.equalise_times(slot, &wanted)?;
        let log = self.log()?;
        if let Some(position) = self.position(log, reference) {
            self.set_position(log, slot, position);
        }
        Ok(())
    }

    /// Gives a member the files that are open and have lost their last name: empty ones.
    fn copy_orphans(&self, slot: Slot, reference: Slot) -> Result<()> {
        let directory = format::DIRECTORY.to_bytes();
        for name in names_in(self.root(slot)?, directory)? {
            if name.starts_with(format::ORPHAN_PREFIX.as_bytes()) || name.starts_with(crate::recover::ASIDE) {
                unlinkat(self.root(slot)?, join(directory, &name), AtFlags::empty())?;
            }
        }
        for name in names_in(self.root(reference)?, directory)? {
            if !name.starts_with(format::ORPHAN_PREFIX.as_bytes()) {
                continue;
            }
            let relative = join(directory, &name);
            let at = Located::below(self.root(reference)?.as_fd(), &relative)?;
            let (stat, attribute) = match (at.stat(), self.attribute_at(reference, &at)) {
                (Ok(stat), Ok(Some(attribute))) => (stat, attribute),
                // The last process that had it open has just closed it.
                (Err(OsError::NOENT), _) | (_, Ok(None) | Err(OsError::NOENT)) => continue,
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            self.make_stub(&On { slot, root: self.root(slot)?, first: false, afresh: true }, &relative, &stat, attribute)?;
        }
        Ok(())
    }

    /// Removes everything on a member that belongs to the array, but for what lies in `.cxlraid`.
    fn empty_member(&self, slot: Slot) -> Result<()> {
        let root = self.root(slot)?;
        for prefix in &self.array().config().prefixes {
            let names = match names_in(root, &prefix[1..]) {
                Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP) => continue,
                names => names?,
            };
            for name in names {
                let path = join(prefix, &name);
                Located::below(root.as_fd(), &path[1..])?.clear(&|_| Ok(false))?;
            }
        }
        Ok(())
    }

    /// Makes pipes, sockets, devices and symlinks that have several names one thing again: they have no attribute that says so, but on the member with `wanted` they have one inode.
    fn link_again(&self, slot: Slot, wanted: &Tree) -> Result<()> {
        let root = self.root(slot)?;
        let mut first_names: BTreeMap<(u64, u64), &[u8]> = BTreeMap::new();
        let is_linked = |item: &Item| item.stat.st_nlink > 1 && !matches!(item.kind, FileType::RegularFile | FileType::Directory);
        for (path, item) in wanted.iter().filter(|(_, item)| is_linked(item)) {
            match first_names.entry((item.stat.st_dev, item.stat.st_ino)) {
                Entry::Vacant(entry) => drop(entry.insert(path)),
                Entry::Occupied(entry) => {
                    let at = Located::below(root.as_fd(), &path[1..])?;
                    unlinkat(at.directory(), at.name(), AtFlags::empty())?;
                    link_on(root, &entry.get()[1..], &path[1..])?;
                }
            }
        }
        Ok(())
    }

    /// Gives everything on a member the times that are `wanted`: when this member is the lowest, programs are told them.
    fn equalise_times(&self, slot: Slot, wanted: &Tree) -> Result<()> {
        // What is in a directory comes before the directory, although nothing here changes a directory's times.
        for (path, item) in wanted.iter().rev() {
            let at = Located::below(self.root(slot)?.as_fd(), &path[1..])?;
            match utimensat(at.directory(), at.name(), &file::times_of(&item.stat), AtFlags::SYMLINK_NOFOLLOW) {
                // A file that other hands have put there is not on this member.
                Err(OsError::NOENT) if item.kind == FileType::RegularFile && item.attribute.is_none() => {}
                result => result?,
            }
        }
        Ok(())
    }
}
