//! A member that is made anew gets every name that the others have.
//!
//! The member is out while this runs, so nothing here can put a good member out for it. Whatever is
//! cut short is done again from the beginning: the member's tree is emptied first. Files are made
//! empty; their bytes are noted as lost (`file::Files::note_lost_everywhere`), and computed later
//! from the other members. The process is alone with the array ([`fill`]), or programs use the
//! array and the member joins ([`begin`], [`Joiner`]).
//!
//! A member that is proven to be the one that left ([`array::Array::prove`]) may keep its files
//! ([`Files`]): then its tree is compared with the others' instead of being emptied, and files of
//! which bytes changed while it was away are noted as lost.

use crate::Namespace;
use crate::change::link_on;
use crate::everywhere::On;
use crate::located::{Located, names_in, open_below};
use crate::recover::{ASIDE, Item, Tree, key};
use crate::resolve::join;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use array::{Array, AttachError, Config, Marks, Unproven};
use file::{Files, KeptFiles, Refusal};
use format::{Attribute, Kept};
use sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timestamps, ftruncate, syncfs, unlinkat, utimensat};
use sys::{AsFd, OsError, Result};
use units::{MemberSet, Slot};

const NANOSECONDS: u64 = 1_000_000_000;

/// Holds what a member that comes back has of the array.
struct Old {
    /// The files of which it has all bytes.
    files: KeptFiles,
    marks: Marks,
    tree: Tree,
    /// The files of which there are several on it, so that their names are to be made anew.
    split: BTreeSet<(u64, u64)>,
}

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
    /// Files would be lost that another member still lacks, or whose level does not bear the loss
    /// of what this member held.
    #[error(
        "files wait to be rebuilt on another member, or do not bear the loss of this one, and need what is left; run 'cxlraid rebuild' until nothing waits, or remove these files"
    )]
    Unbuilt,
    /// A system call or the memory of a member failed.
    #[error("the member cannot be filled: {0}")]
    Os(OsError),
}

/// Says what becomes of the files that lie in the directory of a member that is made anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// They are given up.
    Anew,
    /// Those of which nothing changed while the member was away are kept, if the member is proven
    /// to be the one that left.
    Kept,
}

impl Content {
    fn proven(self, array: &Array, slot: Slot) -> Option<Kept> {
        if self == Self::Kept { array.prove(slot).ok() } else { None }
    }
}

/// Makes a member that is out anew in its directory, with all names and nothing of the files'
/// bytes, which are computed by those who open the files from then on. Programs that start
/// meanwhile wait.
///
/// # Errors
/// [`FillError`]. The member is out as before, and whoever tries again begins anew.
pub fn fill(config: &Config, slot: Slot, content: Content) -> core::result::Result<(), FillError> {
    require_loss_borne(config, slot, content)?;
    let held = hold(config)?;
    let begun = held.begin_member(slot, content.proven(&held, slot));
    held.runtime().detach();
    held.let_in();
    begun?;
    let array = hold(config)?;
    array.runtime().note_deaths();
    let files = Files::new(array).map_err(FillError::Os)?;
    let filled = fill_held(files, slot, content);
    // What this process has open stays open, and must not keep others from the members.
    files.detach();
    files.array().let_in();
    files.array().abandon();
    filled
}

/// Refuses to make a member anew whose old bytes some file needs. The member's directory is as it
/// was.
fn require_loss_borne(config: &Config, slot: Slot, content: Content) -> core::result::Result<(), FillError> {
    let files = Files::new(hold(config)?).map_err(FillError::Os)?;
    let borne = match files.require_loss_borne(slot, content == Content::Kept) {
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

/// Makes a new `.cxlraid` in the directory of a member that is out, while programs use the array.
/// Those that start from now on can use the member once it joins ([`Joiner`]).
///
/// # Errors
/// [`FillError`]; `InUse` for an array with a journal, of which a member can only be made anew
/// while no program uses it.
pub fn begin(config: &Config, slot: Slot, content: Content) -> core::result::Result<(), FillError> {
    let files = Files::new(Array::attach(config)?).map_err(FillError::Os)?;
    let array = files.array();
    let begun = match files.require_loss_borne(slot, content == Content::Kept) {
        _ if array.journal().is_some() => Err(FillError::InUse),
        // What its directory holds is given up with its old beginning.
        Err(OsError::BUSY) => Err(FillError::Unbuilt),
        borne => borne
            .map_err(FillError::Os)
            .and_then(|()| array.begin_member_in_use(slot, content.proven(array, slot)).map_err(FillError::from)),
    };
    files.detach();
    array.abandon();
    begun
}

/// Asks whether a member that is out can keep its files ([`Content::Kept`]). Nothing is changed on
/// the member; the other members' superblocks record that it is out, if they do not yet.
///
/// # Errors
/// [`FillError`] if the array cannot be attached, or if that cannot be recorded.
pub fn prove(config: &Config, slot: Slot) -> core::result::Result<core::result::Result<(), Unproven>, FillError> {
    let files = Files::new(Array::attach(config)?).map_err(FillError::Os)?;
    let proven = || {
        // Programs may do without the member since they began, and have changed nothing yet: what
        // proves that it left in order is written when that is put on record.
        files.array().before_change()?;
        Ok(files.array().prove(slot).map(|_| ()))
    };
    let proven = proven();
    files.detach();
    files.array().abandon();
    proven.map_err(FillError::Os)
}

/// A process that brings a member into use which was begun while programs run ([`begin`]).
pub struct Joiner {
    names: Namespace,
    slot: Slot,
    content: Content,
}

impl Joiner {
    /// Attaches to the array.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn new(config: &Config, slot: Slot, content: Content) -> core::result::Result<Self, FillError> {
        let files = Files::new(Array::attach(config)?).map_err(FillError::Os)?;
        Ok(Self { names: Namespace::new(files).map_err(FillError::Os)?, slot, content })
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

    /// Gives the member all that the others have but the bytes of files, and brings it into use.
    /// Programs read and write meanwhile, and open files; changes of names wait, and in the end
    /// opening and closing.
    ///
    /// # Errors
    /// [`FillError`]. The member is out as before. With `Unreached`, `Nameless` and `Busy` this can
    /// be tried again.
    pub fn join(&self) -> core::result::Result<(), FillError> {
        if self.names.array().journal().is_some() {
            return Err(FillError::InUse);
        }
        self.names.forget_dead();
        let unreached = self.names.array().runtime().not_reaching(self.slot);
        if !unreached.is_empty() {
            return Err(FillError::Unreached(unreached));
        }
        self.names.join_member(self.slot, self.content)
    }

    /// Leaves the array.
    pub fn end(self) {
        self.names.files().detach();
        self.names.array().abandon();
    }
}

/// The array, with nobody else in it.
pub(crate) fn hold(config: &Config) -> core::result::Result<Array, FillError> {
    let array = Array::attach_holding(config)?;
    if array.was_alone() {
        return Ok(array);
    }
    array.runtime().detach();
    array.let_in();
    Err(FillError::InUse)
}

fn fill_held(files: &'static Files, slot: Slot, content: Content) -> core::result::Result<(), FillError> {
    if !files.waiting_records().is_empty() {
        return Err(FillError::Waiting);
    }
    let names = Namespace::new(files).map_err(FillError::Os)?;
    names
        .fill_member(slot, content)
        .map_err(|error| if error == OsError::BUSY { FillError::Unbuilt } else { FillError::Os(error) })?;
    files.array().finish_member(slot).map_err(FillError::Os)
}

impl Namespace {
    /// Gives back what dead processes held, as a process does that starts: files that they had open
    /// are open no more.
    pub fn forget_dead(&self) {
        let runtime = self.array().runtime();
        let _ = runtime.reap();
        if runtime.has_reaped_nameless() {
            self.clear_nameless();
        }
    }

    /// Gives a member, which is out and has a new `.cxlraid` (`array::Array::begin_member`), all
    /// that the others have but the bytes of files, and notes that it has lost those.
    ///
    /// # Errors
    /// `BUSY` if some file does not bear that loss besides what it waits for on other members;
    /// `AGAIN` if somebody changes names on a member past the array meanwhile; otherwise what the
    /// kernel says of the member.
    fn fill_member(&self, slot: Slot, content: Content) -> Result<()> {
        let runtime = self.array().runtime();
        runtime.with_namespace(|_| {
            let reference = self.reference_that_lacks_nothing(self.array().first_in_use()?)?;
            self.array().before_change()?;
            // Where that cannot be done, the member is filled all the same.
            let _ = self.match_records_locked();
            let old = self.what_is_kept(slot, content)?;
            self.files().note_lost_everywhere(slot, old.as_ref().map(|old| (&old.files, &old.marks)))?;
            self.clear_member(slot, old.as_ref())?;
            self.files().copy_tables_to(slot)?;
            for prefix in &self.array().config().prefixes {
                self.array().make_directories_on(slot, prefix)?;
            }
            if !self.restructuring(|| self.recover_member(slot, reference, &[]))? {
                return Err(OsError::AGAIN);
            }
            old.iter().for_each(|old| self.learn_kept(slot, old));
            self.finish_names(slot, reference)
        })
    }

    /// Does what [`Self::fill_member`] does while programs use the array, and brings the member
    /// into use.
    fn join_member(&self, slot: Slot, content: Content) -> core::result::Result<(), FillError> {
        let mut refusal = None;
        let joined = self.locked(|whole| {
            whole?;
            let reference = self.reference_that_lacks_nothing(self.array().first_in_use()?)?;
            self.array().before_change()?;
            let _ = self.match_records_locked();
            self.files().require_loss_borne(slot, content == Content::Kept)?;
            // Before all is copied, since changes of names wait for that.
            if let Err(refused) = self.files().require_names() {
                refusal = Some(refused);
                return Ok(());
            }
            let old = self.what_is_kept(slot, content)?;
            self.clear_member(slot, old.as_ref())?;
            self.files().copy_name_log(reference, slot)?;
            for prefix in &self.array().config().prefixes {
                self.array().make_directories_on(slot, prefix)?;
            }
            // Nobody remembers anything of this member, so nothing that is remembered ends with
            // this.
            if !self.recover_member(slot, reference, &[])? {
                return Err(OsError::AGAIN);
            }
            old.iter().for_each(|old| self.learn_kept(slot, old));
            self.finish_names(slot, reference)?;
            self.copy_orphans(slot, reference)?;
            // Most of it is durable before anybody waits for that with a file to be opened.
            syncfs(self.root(slot)?)?;
            refusal = self
                .array()
                .while_nobody_attaches(|| self.files().join(slot, old.as_ref().map(|old| &old.files)))
                .unwrap_or(Err(Refusal::Busy))
                .err();
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
        self.remove_own(slot, format::ORPHAN_PREFIX.as_bytes())?;
        self.remove_own(slot, ASIDE)?;
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
            self.make_stub(
                &On { slot, root: self.root(slot)?, first: false, afresh: true, caught_up: false },
                &relative,
                &stat,
                attribute,
            )?;
        }
        Ok(())
    }

    /// Returns what a member which is out has of the array as it was when it left; None if that is
    /// given up.
    ///
    /// Whoever changes a file by hand changes the time that the kernel keeps of that (ctime), which
    /// is set with the clock alone. So what has no earlier one than the member's leave is not kept:
    /// a clock of the kernel may stand for some milliseconds. Two files that say that they are the
    /// same one are not kept either.
    fn what_is_kept(&self, slot: Slot, content: Content) -> Result<Option<Old>> {
        let Some(proven) = content.proven(self.array(), slot) else { return Ok(None) };
        // Of a process that died with a lock its lane tells until somebody inherits that.
        self.array().mark_under_way(MemberSet::EMPTY);
        let marks = self.array().changed_without(slot)?;
        if !marks.is_since(&proven) {
            return Ok(None);
        }
        let tree = self.tree(slot)?;
        let mut places: BTreeMap<(u64, u64), [u64; 2]> = BTreeMap::new();
        let (mut refused, mut split) = (BTreeSet::new(), BTreeSet::new());
        for (attribute, stat) in tree.values().filter_map(file_of) {
            let place = [stat.st_dev, stat.st_ino];
            let changed_ns = (stat.st_ctime as u64).saturating_mul(NANOSECONDS).saturating_add(stat.st_ctime_nsec);
            if *places.entry(key(attribute)).or_insert(place) != place {
                split.insert(key(attribute));
            }
            if changed_ns >= proven.left_ns {
                refused.insert(key(attribute));
            }
        }
        refused.extend(&split);
        let mut files = KeptFiles::new();
        for (attribute, stat) in tree.values().filter_map(file_of).filter(|(attribute, _)| !refused.contains(&key(*attribute))) {
            if self.files().kept_bytes(stat.st_size as u64, &marks, attribute).is_some() {
                files.insert(key(attribute), stat.st_size as u64);
            }
        }
        self.files().mark_what_lacks(&files, &marks)?;
        Ok(Some(Old { files, marks, tree, split }))
    }

    /// Prepares what a member has of the array for being made like the others': of `old` files of
    /// which it has not all bytes are cut to nothing, and those that are longer than their bytes
    /// need to these; without it all is removed.
    fn clear_member(&self, slot: Slot, old: Option<&Old>) -> Result<()> {
        let Some(old) = old else { return self.empty_member(slot) };
        let root = self.root(slot)?;
        for (path, item) in &old.tree {
            let is_split = || file_of(item).is_some_and(|(attribute, _)| old.split.contains(&key(attribute)));
            // Which names of a symlink or a pipe are one thing is seen when all of them are made
            // anew.
            if !item.is_file() && item.kind != FileType::Directory || is_split() {
                let at = Located::below(root.as_fd(), &path[1..])?;
                unlinkat(at.directory(), at.name(), AtFlags::empty())?;
                continue;
            }
            let Some((attribute, stat)) = file_of(item) else { continue };
            let kept = old.files.get(&key(attribute)).and_then(|&bytes| self.files().kept_bytes(bytes, &old.marks, attribute));
            let wanted = kept.unwrap_or(0);
            if stat.st_size as u64 != wanted {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                ftruncate(open_below(root, &path[1..], flags, Mode::empty())?, wanted)?;
            }
        }
        // What another attempt has set aside is made anew.
        self.remove_own(slot, ASIDE)
    }

    /// Removes the files in a member's `.cxlraid` whose names begin so.
    fn remove_own(&self, slot: Slot, prefix: &[u8]) -> Result<()> {
        let directory = format::DIRECTORY.to_bytes();
        for name in names_in(self.root(slot)?, directory)? {
            if name.starts_with(prefix) {
                unlinkat(self.root(slot)?, join(directory, &name), AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Notes which backing files those are that a member keeps: its table of them is new.
    fn learn_kept(&self, slot: Slot, old: &Old) {
        for (attribute, stat) in old.tree.values().filter_map(file_of).filter(|(file, _)| old.files.contains_key(&key(*file))) {
            self.files().learn_backing(slot, attribute, stat.st_ino);
        }
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

    /// Makes pipes, sockets, devices and symlinks that have several names one thing again: they
    /// have no attribute that says so, but on the member with `wanted` they have one inode.
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

    /// Gives everything on a member the times that are `wanted`: when this member is the lowest,
    /// programs are told them.
    fn equalise_times(&self, slot: Slot, wanted: &Tree) -> Result<()> {
        // What is in a directory comes before the directory, although nothing here changes a
        // directory's times.
        for (path, item) in wanted.iter().rev() {
            let at = Located::below(self.root(slot)?.as_fd(), &path[1..])?;
            let wanted_times = file::times_of(&item.stat);
            // What is as it was keeps the time at which the kernel says that it changed.
            if at.stat().is_ok_and(|stat| are_times(&file::times_of(&stat), &wanted_times)) {
                continue;
            }
            match utimensat(at.directory(), at.name(), &wanted_times, AtFlags::SYMLINK_NOFOLLOW) {
                // A file that other hands have put there is not on this member.
                Err(OsError::NOENT) if item.kind == FileType::RegularFile && item.attribute.is_none() => {}
                result => result?,
            }
        }
        Ok(())
    }
}

const fn are_times(one: &Timestamps, other: &Timestamps) -> bool {
    one.last_access.tv_sec == other.last_access.tv_sec
        && one.last_access.tv_nsec == other.last_access.tv_nsec
        && one.last_modification.tv_sec == other.last_modification.tv_sec
        && one.last_modification.tv_nsec == other.last_modification.tv_nsec
}

/// The array's file that an item is a name of.
fn file_of(item: &Item) -> Option<(Attribute, &Stat)> {
    item.attribute.filter(|_| item.is_file()).map(|attribute| (attribute, &item.stat))
}
