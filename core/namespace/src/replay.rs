//! After a death or a crash: changes of names that not every member has made are made on the
//! others, from the log.
//!
//! A member that outlives a crash has made the changes up to its position, perhaps one more, and no
//! later one: its file system's journal keeps their order. So the changes behind its position are
//! done again one after the other, each only if it is not done yet. A file's attribute tells
//! whether its change is done; of anything else its presence tells. On volatile members, which see
//! deaths only, that is the last change alone, or none after an orderly end. A change that no
//! member has kept is not invented: a new name that no member has was never made. Names are
//! compared as a whole (`recover`) only if the log does not reach back far enough or is damaged.
//!
//! The namespace lock is held. A process that dies in here leaves what the next one can do again. A
//! member's position follows each change that is done again on it, so that a crash in here leaves
//! the member as the first crash did. The one exception is a file that could not be brought to a
//! name that it had meanwhile: then positions stay until the end, and a crash leaves changes that
//! were done again and positions before them. So nothing is removed that the log does not say was
//! there, neither what is in a directory nor the last name of a file.

use crate::Namespace;
use crate::change::{link_on, remove_on, rename_on};
use crate::everywhere::is_shortage;
use crate::located::Located;
use crate::mounts::open_within;
use crate::no_room::is_full;
use crate::recover::{Item, Places, key};
use crate::relink::{Linked, is_by_descriptor};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use array::config::is_below;
use file::Name;
use format::{Attribute, InodeState, NameKind, NameRecord};
use intent::Records;
use sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec, Timestamps, utimensat};
use sys::{AsFd, OsError, Result};
use units::{MemberSet, Slot};

/// The error that means, within this crate, that the last change of names, or the making of a file,
/// waits: no member that is here has made it, and one that is away, and not on record, may have
/// made it. When that member is back it shows. The first change puts the member on record, and
/// takes what waits for what nobody has made.
pub(crate) const UNDECIDED: OsError = OsError::NOTRECOVERABLE;

/// The number of comparisons of times that somebody may be setting meanwhile.
const ROUNDS: usize = 4;

/// What the namespace lock is taken for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Names are looked up. No member becomes stale by that.
    Look,
    /// Names are changed.
    Change,
}

impl Namespace {
    /// Brings every member to the end of the log.
    ///
    /// A member that is away is put on record only if another one must be changed, or if only it
    /// may have made the last change: where all have made that, as after a start of the machine in
    /// order, it comes back as it is. With `Purpose::Look` nobody is put on record because only it
    /// may have made the last change.
    ///
    /// # Errors
    /// [`UNDECIDED`] with `Purpose::Look` if only a member that is away, and not on record, may
    /// have made the last change.
    pub(crate) fn replay(&self, purpose: Purpose) -> Result<()> {
        while !self.without_failing(|| self.replay_once(purpose))? {}
        // Who died after a change of a mode on the members has not told those that have the file
        // open.
        self.files().note_privileges_of_any();
        Ok(())
    }

    /// Returns whether it came to the end. Otherwise it is to begin anew: a change was undone, or a
    /// member is out.
    fn replay_once(&self, purpose: Purpose) -> Result<bool> {
        let log = self.log()?;
        let records = log.read(self.array().in_use());
        let newest = records.last_key_value().map_or(0, |(&sequence, _)| sequence);
        // An orderly end of a use finds that every member has made every change, so after it no
        // change is looked at again. Otherwise a user who may not see the file changed last would
        // be refused.
        let doubted = u64::from(!self.array().runtime().is_as_it_ended());
        let positions: Vec<(Slot, Option<u64>)> = self
            .array()
            .in_use()
            .iter()
            .filter(|&slot| log.file(slot).is_some())
            .map(|slot| {
                (slot, if self.is_durable(slot) { self.position(log, slot) } else { Some(newest.saturating_sub(doubted)) })
            })
            .collect();
        let furthest = positions.iter().filter_map(|(_, position)| *position).max().unwrap_or(0);
        let lowest = positions.iter().map(|(_, position)| position.unwrap_or(0)).min().unwrap_or(0);
        let reaches_back = (lowest + 1..=newest).all(|sequence| records.contains_key(&sequence));
        let told = positions.iter().all(|(_, position)| position.is_some());
        let reference = positions.iter().find(|(_, position)| *position == Some(furthest)).map(|&(slot, _)| slot);
        let reference = reference.map_or_else(|| self.array().first_in_use(), Ok)?;
        // The log of a page cache may be older than the trees: then who came furthest is right.
        let can = told && reaches_back && furthest <= newest;
        match if can { self.replay_from(&positions, &records, reference, purpose) } else { Err(OsError::NOTSUP) } {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(UNDECIDED) => return Err(UNDECIDED),
            // A process that has no descriptor or memory left cannot look, so it does not judge:
            // that is left to the next.
            Err(error) if is_shortage(error) => return Err(error),
            // If it is the reference that is full, the others would lose what it has no room for.
            Err(error) if is_full(error) => return Err(error),
            // Whatever keeps the log from being followed, nobody may go on as if it had been.
            Err(_) => self.recover_all(reference)?,
        }
        self.sync_members()?;
        self.continue_log(log, &records, newest.max(furthest));
        let last = records.last_key_value().and_then(|(_, found)| found_record(found));
        if lowest < newest && last.is_some_and(|record| record.leaves_no_trace()) {
            // Names were compared as a whole, and who is away is on record. The next start has
            // nothing to compare.
            self.end_exchange()?;
        }
        Ok(true)
    }

    /// Returns as `replay_once` does.
    fn replay_from(
        &self,
        positions: &[(Slot, Option<u64>)],
        records: &Records,
        reference: Slot,
        purpose: Purpose,
    ) -> Result<bool> {
        let lowest = positions.iter().filter_map(|(_, position)| *position).min().unwrap_or(0);
        let newest = records.last_key_value().map_or(0, |(&sequence, _)| sequence);
        let furthest = positions.iter().filter_map(|(_, position)| *position).max().unwrap_or(0);
        let (log, mut can_advance) = (self.log()?, true);
        let window: Vec<_> = records.range(lowest + 1..).filter_map(|(_, found)| found_record(found)).collect();
        let linked = Linked::of(&window);
        for (index, &record) in window.iter().enumerate() {
            let (sequence, offset) = (record.sequence, records[&record.sequence].offset as u64);
            let later = Later { records: &window[index + 1..], furthest, linked: &linked };
            if record.leaves_no_trace() {
                // Names are compared as a whole.
                return Err(OsError::NOTSUP);
            }
            if sequence == newest && !self.is_decided(&record)? {
                if self.waits_for_member(purpose) {
                    return Err(UNDECIDED);
                }
                // From now on nobody does it: a member that is away and has made it must not come
                // back as it is.
                self.array().before_change()?;
                log.store(self.array().in_use(), offset, &NameRecord { void: true, ..record });
                continue;
            }
            if is_by_descriptor(&record) && self.take_back_link(&record, &later)? {
                continue;
            }
            let (mut full, mut refusal) = (MemberSet::EMPTY, OsError::NOSPC);
            let is_behind = |position: Option<u64>| position.is_some_and(|position| position < sequence);
            let behind: MemberSet =
                positions.iter().filter(|&&(_, position)| is_behind(position)).map(|&(slot, _)| slot).collect();
            for slot in behind.iter() {
                match self.redo(slot, &record, reference, &later) {
                    Ok(()) | Err(OsError::NOENT | OsError::NOTDIR) => {}
                    Err(error) if is_full(error) => (full, refusal) = (full.with(slot), error),
                    Err(error) => return Err(error),
                }
            }
            if let Some(slot) = full.lowest() {
                let undo = || self.undo_last(&record, offset, slot, lowest + 1 == newest);
                if sequence != newest || undo().is_err() {
                    self.take_out_full(full, refusal)?;
                }
                return Ok(false);
            }
            self.settle(&record)?;
            // Its last user has closed it meanwhile.
            if is_by_descriptor(&record) && self.take_back_link(&record, &later)? {
                continue;
            }
            // Should this be cut short, a member has come as far as it says, or one change further:
            // nothing is mistaken for a later thing of the same name.
            can_advance &= self.is_brought(&record, behind);
            for slot in behind.iter().filter(|_| can_advance) {
                self.set_position(log, slot, sequence);
            }
        }
        if !self.follow_renamed(lowest, records, reference)? {
            return Ok(false);
        }
        self.free_unmade(lowest, records, purpose, &linked)?;
        Ok(true)
    }

    /// Whether what only a member that is away can tell is left undecided: for a look, while that
    /// member is not on record.
    fn waits_for_member(&self, purpose: Purpose) -> bool {
        purpose == Purpose::Look && !self.array().runtime().out_unrecorded().is_empty()
    }

    /// Whether these members have the file that a change has given a name, or it is gone since. If
    /// not, it is the end of the replay that sees to it.
    fn is_brought(&self, record: &NameRecord<'_>, members: MemberSet) -> bool {
        let name = if record.to.is_empty() { record.path } else { record.to };
        let gives = matches!(record.kind, NameKind::Make | NameKind::Link | NameKind::Rename) && !record.exchange;
        let is_gone = |file| self.files().state_of(file) != Some(InodeState::Used);
        let Some(file) = record.file.filter(|&file| gives && !is_gone(file)) else { return true };
        members.iter().all(|slot| self.lacks(slot, name, Some(file)) == Ok(false))
    }

    /// What was made or changed before its directory was renamed, the furthest member has only
    /// behind the renaming: there the others get it. Returns whether all have it: a member without
    /// room is out.
    fn follow_renamed(&self, lowest: u64, records: &Records, reference: Slot) -> Result<bool> {
        let window: Vec<_> = records.range(lowest + 1..).filter_map(|(_, found)| found_record(found)).collect();
        for (index, record) in window.iter().enumerate() {
            for path in [record.path, record.to].into_iter().filter(|path| !path.is_empty()) {
                let path = renamed(path, &window[index + 1..]);
                let Some(item) = self.item_or_none(reference, &path)? else { continue };
                for slot in self.array().in_use().without(reference).iter() {
                    let own = self.item_or_none(slot, &path)?;
                    if own.as_ref().is_some_and(|own| self.has_lost(record, &item, own, &window[index + 1..])) {
                        // Who uses the name finds out which member that is, and what the others
                        // have stays.
                        continue;
                    }
                    let result = if own.is_none_or(|own| !own.is_like(&item)) {
                        self.bring_from(reference, &path, slot, &path, &item)
                    } else {
                        self.equalise_with(reference, &path, slot, &path, &item)
                    };
                    if let Err(error) = result {
                        self.take_out_full(MemberSet::EMPTY.with(slot), error)?;
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Whether the reference has something else at a name than the file that a change gave that
    /// name, which another member has there as `own`, and which was not removed since: somebody has
    /// put it there by hand, and no change of the log. So it is with a file of the array of which
    /// none of the `later` changes says that it has this name.
    fn has_lost(&self, record: &NameRecord<'_>, item: &Item, own: &Item, later: &[NameRecord<'_>]) -> bool {
        let Some(file) = record.file.filter(|&file| own.attribute == Some(file)) else { return false };
        let is_given = |file| later.iter().any(|record| record.file == Some(file) || record.replaced == Some(file));
        item.attribute.is_none_or(|other| other != file && !is_given(other))
            && self.files().state_of(file) == Some(InodeState::Used)
    }

    fn bring_from(&self, reference: Slot, there: &[u8], slot: Slot, path: &[u8], item: &Item) -> Result<()> {
        if item.is_file() && item.attribute.is_none() || self.is_behind_symlink(slot, path)? {
            return Ok(());
        }
        if self.waits_for_away(reference, there, slot, item)? {
            return Ok(());
        }
        let make = || {
            // A directory with files of the array in it is left: then names are compared as a
            // whole, which sets those files aside first.
            self.clear(slot, &Located::below(self.root(slot)?.as_fd(), &path[1..])?)?;
            let mut places = Places::new();
            if let Some(attribute) = item.attribute
                && let Some(place) = self.own_places(slot, attribute)?.pop()
            {
                places.insert(key(attribute), place);
            }
            if self.put(slot, path, item, &mut places)? { self.equalise_with(reference, there, slot, path, item) } else { Ok(()) }
        };
        // A member that is away looks at the log when it is back: if it has not made the change
        // either, it is given the name as well.
        if self.is_proven(item) {
            return self.mending(make);
        }
        self.array().before_change()?;
        make()
    }

    /// Whether a member that lacks a file has lost nothing with it: its file system had not made
    /// durable that the file was made. Then nobody has synchronised the file since, and a store
    /// that is durable by itself (MAP_SYNC) would have made the file so.
    ///
    /// A file that was made without a name may have been synchronised before it was given `name`:
    /// whether the member lacks it for the same reason, and has lost bytes, is told of that name
    /// if there is one.
    pub(crate) fn never_had(&self, slot: Slot, file: Attribute, name: Option<&[u8]>) -> Result<bool> {
        let log = self.log()?;
        let Some(position) = self.position(log, slot).filter(|_| self.is_durable(slot)) else { return Ok(false) };
        let makes = |record: &NameRecord<'_>| {
            record.file == Some(file) && (record.kind == NameKind::Make || is_by_descriptor(record) && Some(record.to) == name)
        };
        let records = log.read(self.array().in_use());
        Ok(records.range(position + 1..).any(|(_, found)| found_record(found).is_some_and(|record| makes(&record))))
    }

    /// The files whose last name went in a change that the log notes.
    pub(crate) fn removed_by_log(&self) -> Result<BTreeSet<(u64, u64)>> {
        let records = self.log()?.read(self.array().in_use());
        let noted = records.values().filter_map(found_record).filter(|record| !record.exchange);
        Ok(noted.filter_map(|record| record.replaced).map(|file| (file.inode, file.generation)).collect())
    }

    /// Returns the files that the log's last change is about, whether all members have made it or
    /// not.
    pub(crate) fn files_of_last_change(&self) -> Result<[Option<Attribute>; 2]> {
        let records = self.log()?.read(self.array().in_use());
        let last = records.last_key_value().and_then(|(_, found)| found_record(found));
        Ok(last.map_or([None; 2], |record| [record.file, record.replaced]))
    }

    /// Whether a member has made a change.
    fn is_done(&self, slot: Slot, record: &NameRecord<'_>) -> Result<bool> {
        let present = self.item_or_none(slot, record.path)?;
        let is_it = present.as_ref().is_some_and(|item| item.attribute == record.file);
        Ok(match record.kind {
            NameKind::Make => present.is_some_and(|item| item.attribute.is_some() || !item.is_file()),
            NameKind::Unlink => !is_it || present.is_some_and(|item| item.kind == FileType::Directory),
            NameKind::RemoveDirectory => present.is_none_or(|item| item.kind != FileType::Directory),
            NameKind::Rename if record.exchange => {
                let other = self.item_or_none(slot, record.to)?;
                !is_it || !other.is_some_and(|item| item.attribute == record.replaced)
            }
            NameKind::Rename => !is_it,
            NameKind::Link => !self.lacks(slot, record.to, record.file)?,
            NameKind::Attributes => true,
        })
    }

    /// Whether the last change got as far as one member. If not, that member may have refused it;
    /// and what it refused to the program that asked, nobody else does in its name.
    fn is_decided(&self, record: &NameRecord<'_>) -> Result<bool> {
        let freed = |file| self.files().state_of(file) != Some(InodeState::Used);
        // A new name is only given to members that lack what another one has.
        if record.kind == NameKind::Make || !record.exchange && record.replaced.is_some_and(freed) {
            return Ok(true);
        }
        for slot in self.array().in_use().iter() {
            if self.is_done(slot, record)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes a change on one member unless it is made. `reference` is who came furthest, and has
    /// made the `later` ones besides.
    fn redo(&self, slot: Slot, record: &NameRecord<'_>, reference: Slot, later: &Later<'_>) -> Result<()> {
        if self.is_behind_symlink(slot, record.path)? || self.is_behind_symlink(slot, record.to)? {
            return Ok(());
        }
        let root = self.root(slot)?;
        let (from, to) = (record.path.get(1..).unwrap_or(b""), record.to.get(1..).unwrap_or(b""));
        if self.is_done(slot, record)? {
            let name = match record.kind {
                NameKind::Attributes if slot != reference => {
                    self.follow(reference, slot, record.path, later)?;
                    return self.follow_times(reference, slot, record.path, later);
                }
                NameKind::Make | NameKind::Attributes => record.path,
                NameKind::Link => record.to,
                NameKind::Rename if !record.exchange => {
                    self.bring(slot, record.to, record.file, later)?;
                    record.to
                }
                _ => return Ok(()),
            };
            // An earlier recovery may have died before what it brought had its attributes.
            return if slot == reference { Ok(()) } else { self.follow(reference, slot, name, later) };
        }
        // Where others have the name, to give it to this member is a mend: a member that is away
        // becomes stale only if it is more.
        if !matches!(record.kind, NameKind::Make | NameKind::Link) {
            self.array().before_change()?;
        }
        match record.kind {
            NameKind::Make => match (self.item_or_none(slot, record.path)?, record.file) {
                (Some(item), Some(file)) if item.stat.st_size == 0 => {
                    self.array().before_change()?;
                    self.bind_at(slot, from, file)?;
                    // An earlier recovery may have made it, and died before it gave it its mode and
                    // owner.
                    if slot == reference { Ok(()) } else { self.follow(reference, slot, record.path, later) }
                }
                _ => self.bring(slot, record.path, record.file, later),
            },
            NameKind::Unlink if !self.may_go(slot, record.path, record.replaced)? => Ok(()),
            NameKind::Unlink => remove_on(root, from, AtFlags::empty()),
            NameKind::RemoveDirectory => later_if(remove_on(root, from, AtFlags::REMOVEDIR)),
            NameKind::Rename if record.exchange => rename_on(root, from, to, RenameFlags::EXCHANGE),
            NameKind::Rename if !self.may_go(slot, record.to, record.replaced)? => Ok(()),
            NameKind::Rename => later_if(rename_on(root, from, to, RenameFlags::empty())),
            NameKind::Link if !from.is_empty() && !self.lacks(slot, record.path, record.file)? => {
                self.mending(|| later_if(link_on(root, from, to)))
            }
            NameKind::Link if from.is_empty() && self.relink(slot, record, later)? => Ok(()),
            NameKind::Link => self.bring(slot, record.to, record.file, later),
            NameKind::Attributes => Ok(()),
        }
    }

    /// Whether what has this name on a member may lose it: a file for which it is the last one goes
    /// only if the log says so. Otherwise the file is of a later change, which an earlier recovery
    /// has made.
    fn may_go(&self, slot: Slot, path: &[u8], gone: Option<Attribute>) -> Result<bool> {
        let present = self.item_or_none(slot, path)?.filter(Item::is_file);
        Ok(present.is_none_or(|item| item.attribute.is_none() || item.attribute == gone || item.stat.st_nlink > 1))
    }

    /// Gives what a name stands for on one member the attributes that it has on another, where
    /// `later` changes have moved it there.
    fn follow(&self, reference: Slot, slot: Slot, path: &[u8], later: &Later<'_>) -> Result<()> {
        let Some(own) = self.item_or_none(slot, path)? else { return Ok(()) };
        for there in later.places(path) {
            if let Some(item) = self.item_or_none(reference, &there)? {
                return if own.is_like(&item) { self.equalise_with(reference, &there, slot, path, &item) } else { Ok(()) };
            }
        }
        Ok(())
    }

    /// Gives what a name stands for on one member the times that it has on another, where `later`
    /// changes have moved it there. That is done for an open file, too: if its members wait for
    /// the time of a write, they are all given that later on.
    fn follow_times(&self, reference: Slot, slot: Slot, path: &[u8], later: &Later<'_>) -> Result<()> {
        let Some(own) = self.item_or_none(slot, path)? else { return Ok(()) };
        for there in later.places(path) {
            let Some(item) = self.item_or_none(reference, &there)? else { continue };
            if !own.is_like(&item) || item.is_file() && item.attribute.is_none() {
                return Ok(());
            }
            let from = Located::below(self.root(reference)?.as_fd(), &there[1..])?;
            let at = Located::below(self.root(slot)?.as_fd(), &path[1..])?;
            // Who has the file open may give the members another time just now, the reference
            // perhaps first: then that is copied in the next round.
            for _ in 0..ROUNDS {
                let (wanted, present) = (from.stat()?, at.stat()?);
                let modified = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
                if modified(&wanted) == modified(&present) {
                    break;
                }
                let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
                let times = Timestamps {
                    last_access: time(wanted.st_atime, wanted.st_atime_nsec),
                    last_modification: time(wanted.st_mtime, wanted.st_mtime_nsec),
                };
                match self.mending(|| utimensat(at.directory(), at.name(), &times, AtFlags::SYMLINK_NOFOLLOW)) {
                    // Times differ for other reasons as well: nobody is kept from changing names
                    // because they are not his to set.
                    Err(OsError::PERM | OsError::ACCESS) => break,
                    result => result?,
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// Gives a member a name that another one has, perhaps where `later` changes have moved it.
    fn bring(&self, slot: Slot, path: &[u8], file: Option<Attribute>, later: &Later<'_>) -> Result<()> {
        if !self.lacks(slot, path, file)? {
            return Ok(());
        }
        for there in later.places(path) {
            for other in self.array().in_use().without(slot).iter() {
                let Some(item) = self.item_or_none(other, &there)? else { continue };
                if file.is_some() && item.attribute != file || item.is_file() && item.attribute.is_none() {
                    continue;
                }
                return self.bring_from(other, &there, slot, path, &item);
            }
        }
        Ok(())
    }

    /// Whether a member lacks a name, or has something else there than this file.
    pub(crate) fn lacks(&self, slot: Slot, path: &[u8], file: Option<Attribute>) -> Result<bool> {
        let present = self.item_or_none(slot, path)?;
        Ok(present.is_none_or(|item| file.is_some() && item.attribute != file))
    }

    /// Whether what was a directory on the way to this name is a symlink now, of a later change: it
    /// may lead out of the array.
    fn is_behind_symlink(&self, slot: Slot, path: &[u8]) -> Result<bool> {
        let Some(cut) = path.iter().rposition(|&byte| byte == b'/').filter(|&cut| cut > 0) else { return Ok(false) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open_within(
            self.root(slot)?,
            &path[1..cut],
            flags,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        ) {
            Ok(_) | Err(OsError::NOENT | OsError::NOTDIR) => Ok(false),
            Err(OsError::LOOP) => Ok(true),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn item_or_none(&self, slot: Slot, path: &[u8]) -> Result<Option<Item>> {
        if path.is_empty() || self.is_behind_symlink(slot, path)? {
            return Ok(None);
        }
        match self.item(slot, path) {
            Ok(item) => Ok(Some(item)),
            Err(OsError::NOENT | OsError::NOTDIR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a change means for the inode table, once every member has made it.
    fn settle(&self, record: &NameRecord<'_>) -> Result<()> {
        let (files, first) = (self.files(), self.array().first_in_use()?);
        if let Some(gone) = record.replaced.filter(|_| !record.exchange)
            && files.state_of(gone) == Some(InodeState::Used)
        {
            let kept = match record.kind {
                NameKind::Unlink => self.item_or_none(first, record.path)?.is_some_and(|item| item.attribute == Some(gone)),
                _ => self.item_or_none(first, record.to)?.is_some_and(|item| item.attribute == Some(gone)),
            };
            if !kept {
                self.array().before_change()?;
                files.unlinked(gone, Name::Lost, || false);
            }
        }
        let Some(file) = record.file else { return Ok(()) };
        let is_orphan = files.state_of(file) == Some(InodeState::Orphan);
        if record.kind == NameKind::Make && is_orphan && !self.lacks(first, record.path, record.file)? {
            self.array().before_change()?;
            files.has_name(file);
        }
        // A file without a name has taken another one's place (`supplant`).
        let is_supplanter = record.kind == NameKind::Rename && !record.exchange && is_orphan;
        if is_supplanter && !self.lacks(first, record.to, record.file)? {
            self.array().before_change()?;
            files.has_name(file);
        }
        if is_by_descriptor(record) && (is_orphan || files.is_nameless(file)) {
            if self.lacks(first, record.to, record.file)? {
                return Ok(());
            }
            let mut have_all = true;
            for slot in self.array().in_use().iter() {
                have_all &= !self.lacks(slot, record.to, record.file)?;
            }
            self.array().before_change()?;
            // Others may have it open, for whom it had no name until now. A member that lacks the
            // name keeps what it has in `.cxlraid`.
            if have_all || files.is_open(file) { files.linked(file) } else { files.has_name(file) }
        }
        Ok(())
    }

    /// Frees the records of new files whose names no member has kept. With a directory renamed
    /// meanwhile they may be elsewhere.
    ///
    /// # Errors
    /// [`UNDECIDED`] with `Purpose::Look` if a member that is away, and not on record, may have
    /// kept such a name.
    fn free_unmade(&self, lowest: u64, records: &Records, purpose: Purpose, linked: &Linked) -> Result<()> {
        let mut names: BTreeMap<(u64, u64), Vec<&[u8]>> = BTreeMap::new();
        let mut made: Vec<Attribute> = Vec::new();
        for record in records.range(lowest + 1..).filter_map(|(_, found)| found_record(found)) {
            let Some(file) = record.file else {
                if record.kind == NameKind::Rename {
                    return Ok(());
                }
                continue;
            };
            if record.kind == NameKind::Make || is_by_descriptor(&record) {
                made.push(file);
            }
            names.entry((file.inode, file.generation)).or_default().extend([record.path, record.to]);
            if let (true, Some(other)) = (record.exchange, record.replaced) {
                names.entry((other.inode, other.generation)).or_default().extend([record.path, record.to]);
            }
        }
        for file in made {
            let known = names.get(&(file.inode, file.generation)).map_or(&[][..], Vec::as_slice);
            let is_at = |slot, path: &[u8]| match self.item_or_none(slot, path) {
                Ok(item) => item.is_some_and(|item| item.attribute == Some(file)),
                Err(_) => true,
            };
            let kept = self.array().in_use().iter().any(|slot| known.iter().any(|path| is_at(slot, path)));
            if !kept && self.files().state_of(file) == Some(InodeState::Used) && !self.is_named_anywhere(file, linked)? {
                if self.waits_for_member(purpose) {
                    // No position has come to this change (`is_brought`), so the next replay comes
                    // back to it.
                    return Err(UNDECIDED);
                }
                self.array().before_change()?;
                self.files().unlinked(file, Name::Lost, || false);
            }
        }
        Ok(())
    }
}

/// The changes behind one that is done again.
pub(crate) struct Later<'a> {
    pub(crate) records: &'a [NameRecord<'a>],
    /// The last one that a member is known to have made.
    furthest: u64,
    pub(crate) linked: &'a Linked,
}

impl Later<'_> {
    /// Where members may have what was at `path`: those that came furthest have made one more, or
    /// not.
    fn places(&self, path: &[u8]) -> [Vec<u8>; 3] {
        let behind = |last| renamed(path, &self.records[..self.records.partition_point(|record| record.sequence <= last)]);
        [behind(self.furthest), behind(self.furthest + 1), path.to_vec()]
    }
}

/// Where what was at `path` is after these changes.
pub(crate) fn renamed(path: &[u8], later: &[NameRecord<'_>]) -> Vec<u8> {
    let mut path = path.to_vec();
    for record in later.iter().filter(|record| record.kind == NameKind::Rename) {
        if is_below(&path, record.path) {
            path = [record.to, &path[record.path.len()..]].concat();
        } else if record.exchange && is_below(&path, record.to) {
            path = [record.path, &path[record.to.len()..]].concat();
        }
    }
    path
}

/// What is in the way of a change, though all changes before it are made, is of a later one: an
/// earlier recovery came further, and a second crash took the position that said so.
pub(crate) fn later_if(result: Result<()>) -> Result<()> {
    match result {
        Err(OsError::EXIST | OsError::NOTEMPTY | OsError::ISDIR | OsError::NOTDIR) => Ok(()),
        result => result,
    }
}

fn found_record(found: &intent::Found) -> Option<NameRecord<'_>> {
    found.record().filter(|record| !record.void)
}
