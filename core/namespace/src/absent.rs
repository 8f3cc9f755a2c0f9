//! Names that the lowest member denies, or has something else at, while other members have them.
//!
//! The fault it exists for: somebody removes or replaces names in the tree of the lowest member by
//! hand (`rm -rf MEMBER/data/*`). That member answers every look-up. So programs would learn that
//! there are no such files, list fewer names, and make new files in the place of what the other
//! members still have.
//!
//! The lowest member is believed at once while nothing contradicts it: a file that it has is opened
//! on all members anyway. Other members (*witnesses*: as many as the array could still lose) are
//! asked in three cases, which costs a system call each: where the lowest member has nothing, where
//! it has something else than a file, and when a directory is opened to be listed. If they
//! contradict it, the name is looked at again on all members with the namespace lock held, when no
//! change is under way.
//!
//! A regular file is *proven* if its attribute, its member's table of backing files and the inode
//! table name each other. An inode that has a name has one on every member. So if one member has a
//! proven file and another has no name for it, that other member has lost it. Such a member goes
//! out, and the others serve. But where somebody else than root and the array's owner may change
//! names, that user may have made the difference: there no member goes out, and the call answers
//! EIO. Directories, symlinks and special files prove nothing by themselves; one that only the
//! other members have is made on the lowest member again.

use crate::Namespace;
use crate::located::{Located, kinds_in};
use crate::recover::{Item, Places};
use crate::remembered::Epochs;
use crate::replay::Purpose;
use crate::resolve::join;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use array::config::normalise;
use core::sync::atomic::Ordering;
use format::Attribute;
use sys::rustix::fs::{AtFlags, FileType, Stat, statat};
use sys::rustix::thread::gettid;
use sys::{AsFd, OsError, Result};
use units::{MemberSet, Slot};

/// A change of names reaches all members within this time, if its process is not kept from running.
const CHANGE_NS_MAX: i128 = 100_000_000;
const NS_PER_SECOND: i128 = 1_000_000_000;
/// The name of a directory that mkfs makes in the root of a file system: one member may have it
/// alone.
const OF_FILE_SYSTEM: &[u8] = b"lost+found";

/// The error that means, within this crate, that a member went out because it lacks names: the
/// operation is to be begun anew without that member.
pub(crate) const AGAIN: OsError = OsError::RESTART;

/// The error that means, within this crate, that the lowest member lacks names and cannot be
/// spared: the operation is refused, and no member goes out for it.
pub(crate) const CONTRADICTED: OsError = OsError::REMOTEIO;

/// Whether an error says that a name is not there.
pub(crate) fn is_absence(error: OsError) -> bool {
    matches!(error, OsError::NOENT | OsError::NOTDIR)
}

/// What is to be done about a name at which the members differ.
enum Verdict {
    /// The lowest member is right, or no other member proves that it is not.
    Stands,
    /// The lowest member has lost what the others have.
    Lost,
    /// Members contradict each other, and either nothing says which of them is right or none may go
    /// out for it. This member is named to the user.
    Undecided(Slot),
    /// This member has what the lowest one lacks, and nothing is lost if the lowest member is given
    /// it.
    Given(Slot),
}

/// How many names files have on a member.
type NameCounts = BTreeMap<(u64, u64), u32>;

impl Namespace {
    /// Runs `act`, and notes meanwhile that this thread has the namespace lock.
    pub(crate) fn holding<T>(&self, act: impl FnOnce() -> T) -> T {
        self.holder.store(own_thread(), Ordering::Relaxed);
        let result = act();
        self.holder.store(0, Ordering::Relaxed);
        result
    }

    /// The members that are asked beside the lowest: as many as may have lost the name as well
    /// while the array still bears that, so that one member which has the name is among all that
    /// are asked.
    pub(crate) fn witnesses(&self) -> impl Iterator<Item = Slot> {
        let (array, count) = (self.array(), self.array().members().len());
        let in_use = array.in_use();
        let bears = array.default_geometry().level().failures_max(count).saturating_sub(count - in_use.len());
        array.in_order(in_use).skip(1).take(bears.max(1))
    }

    /// What a witness has at a logical path. The kernel follows symlinks on the way, so the answer
    /// is only a hint.
    fn hinted(&self, slot: Slot, path: &[u8]) -> Option<Stat> {
        let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
        statat(self.root(slot).ok()?, &path[1..end], AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Calls `ask`. If it answers that a logical path is not there, and a witness has the path, the
    /// contradiction is settled and `ask` is called once more. So it is if members have changed
    /// meanwhile: another process may have settled it, and the member that has answered may be out.
    pub(crate) fn doubting<T>(&self, path: &[u8], ask: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let epoch = self.array().runtime().epoch();
            match ask() {
                Err(error) if is_absence(error) => {
                    let is_settled = self.is_denied(path) && self.arbitrate(path)?;
                    if !is_settled && self.array().runtime().epoch() == epoch {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Whether a witness has what the lowest member denies.
    pub(crate) fn is_denied(&self, path: &[u8]) -> bool {
        self.witnesses().any(|slot| self.hinted(slot, path).is_some())
    }

    /// Whether the lowest member has something of another kind at a logical path than a witness,
    /// and the path is to be looked up again since that is settled. What the lowest member has
    /// there is no regular file; `identity` is its device, inode number and mode.
    pub(crate) fn is_contradicted(&self, path: &[u8], identity: [u64; 3], epochs: Option<Epochs>) -> Result<bool> {
        if epochs.is_some_and(|epochs| self.is_confirmed(&identity, epochs)) {
            return Ok(false);
        }
        let kind = FileType::from_raw_mode(identity[2] as u32);
        let differs = |slot| self.hinted(slot, path).is_none_or(|other| FileType::from_raw_mode(other.st_mode) != kind);
        if self.witnesses().any(differs) && self.arbitrate(path)? {
            return Ok(true);
        }
        if let Some(epochs) = epochs {
            self.confirm(&identity, epochs);
        }
        Ok(false)
    }

    /// Whether other members contradict a regular file of the lowest member that is none of the
    /// array's, and the path is to be looked up again since that is settled.
    pub(crate) fn is_foreign_contradicted(&self, path: &[u8]) -> Result<bool> {
        Ok(self.is_denied(path) && self.arbitrate(path)?)
    }

    /// Whether a directory that is opened to be listed lacks names on the lowest member, and is to
    /// be opened again since that is settled.
    ///
    /// Every witness is asked, since each of them may itself have lost the directory.
    pub(crate) fn lists_fewer(&self, path: &[u8], stat: &Stat, epochs: Option<Epochs>) -> Result<bool> {
        for slot in self.witnesses() {
            let other = self.hinted(slot, path);
            let is_directory = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let Some(other) = other.filter(is_directory) else {
                if self.arbitrate(path)? {
                    return Ok(true);
                }
                continue;
            };
            if is_listed_alike(stat, &other) {
                continue;
            }
            let seen = [stat, &other].map(|stat| [stat.st_dev, stat.st_ino, stat.st_size as u64, changed_ns(stat) as u64]);
            let seen = seen.concat();
            if epochs.is_some_and(|epochs| self.is_confirmed(&seen, epochs)) {
                continue;
            }
            if self.with_names_held(|| self.compare_names(path, slot))? {
                return Ok(true);
            }
            if let Some(epochs) = epochs {
                self.confirm(&seen, epochs);
            }
        }
        Ok(false)
    }

    /// Looks at a logical path on all members. Returns whether the lowest member is to be asked
    /// again: another member is the lowest now, or the lowest member has the name now.
    ///
    /// # Errors
    /// `IO` if members contradict each other and none may go out for it.
    pub(crate) fn arbitrate(&self, path: &[u8]) -> Result<bool> {
        self.with_names_held(|| self.arbitrate_locked(path))
    }

    /// Runs `judge` with the namespace lock held. While a change that a dead process began cannot
    /// be made good, nothing is judged, and the result is false.
    pub(crate) fn with_names_held(&self, judge: impl FnOnce() -> Result<bool>) -> Result<bool> {
        if self.holder.load(Ordering::Relaxed) == own_thread() {
            return judge();
        }
        self.locked_for(Purpose::Look, |whole| if whole.is_err() { Ok(false) } else { judge() })
    }

    /// Does what [`Self::arbitrate`] does. The namespace lock is held.
    pub(crate) fn arbitrate_locked(&self, path: &[u8]) -> Result<bool> {
        if self.is_change_unfinished() {
            // The difference is perhaps what this process has just left unfinished: the next to
            // take the lock makes it good.
            return Ok(false);
        }
        let path = normalise(path);
        let ends = path.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
        for end in ends.chain([path.len()]) {
            let part = &path[..end];
            if !self.owns(part) || self.hides(&part[..1], &part[1..]) || part[1..] == *OF_FILE_SYSTEM {
                continue;
            }
            let first = self.array().first_in_use()?;
            let Ok(own) = self.item_or_none(first, part) else { return Ok(false) };
            let others = self.others_at(first, part);
            match self.judge(first, part, own.as_ref(), &others)? {
                Verdict::Stands if own.is_none() => return Ok(false),
                Verdict::Stands => {}
                Verdict::Lost => {
                    self.take_out_without_name(first, part, &[part])?;
                    return Ok(true);
                }
                Verdict::Given(slot) => {
                    self.give(slot, first, part)
                        .inspect_err(|_| self.array().tell_difference(first, part))
                        .map_err(|_| OsError::IO)?;
                    return Ok(true);
                }
                Verdict::Undecided(slot) => {
                    self.array().tell_difference(slot, part);
                    return Err(OsError::IO);
                }
            }
        }
        Ok(false)
    }

    /// What the members beside the lowest have at a logical path.
    fn others_at(&self, first: Slot, path: &[u8]) -> Vec<(Slot, Item)> {
        // This process does not judge by what it may not see.
        let there = |slot| Some((slot, self.item_or_none(slot, path).ok()??));
        self.array().in_use().without(first).iter().filter_map(there).collect()
    }

    fn judge(&self, first: Slot, path: &[u8], own: Option<&Item>, others: &[(Slot, Item)]) -> Result<Verdict> {
        let contradicting = || others.iter().filter(|(_, other)| own.is_none_or(|own| !own.is_like(other)));
        if contradicting().next().is_none() {
            return Ok(Verdict::Stands);
        }
        let is_foreign = self.is_in_foreign_hands(path);
        let agree = others.len() + 1 >= self.array().in_use().len()
            && others.iter().all(|(_, other)| other.is_like(&others[0].1) && (!other.is_file() || self.is_proven(other)));
        if let Some(own) = own.filter(|own| self.is_proven(own)) {
            return Ok(self.judge_proven(first, path, own, others, is_foreign));
        }
        let mut names_on_first = None;
        for (slot, other) in contradicting() {
            let proven = self.proven_below(*slot, path, other);
            if proven.is_empty() {
                continue;
            }
            let names = match &names_on_first {
                Some(names) => names,
                None => match self.seen_names(first)? {
                    Some(names) => names_on_first.insert(names),
                    None => return Ok(Verdict::Undecided(first)),
                },
            };
            let mut is_lost = proven.iter().any(|&attribute| !names.contains_key(&key(attribute)));
            if !is_lost && other.is_file() {
                // Of several names of a file the lowest member may have lost one.
                let Some(names_there) = self.seen_names(*slot)? else { return Ok(Verdict::Undecided(first)) };
                is_lost = proven.iter().any(|&attribute| names.get(&key(attribute)) < names_there.get(&key(attribute)));
            }
            match (is_lost, is_foreign) {
                (true, false) => return Ok(Verdict::Lost),
                (true, true) => return Ok(Verdict::Undecided(first)),
                (false, true) => return Ok(Verdict::Stands),
                (false, false) => {}
            }
            // All proven files in it have other names on the lowest member: somebody has renamed
            // them by hand, on the lowest member or on this one.
            return Ok(match (agree, others.len()) {
                (true, 2..) => Verdict::Lost,
                (true, _) => Verdict::Undecided(*slot),
                _ => Verdict::Stands,
            });
        }
        if is_foreign {
            return Ok(Verdict::Stands);
        }
        let bare = contradicting().find(|(_, other)| !other.is_file());
        // If most members lack it, it was removed, and a member that has it was put back from an
        // older copy.
        let is_kept_by_few = |item: &Item| {
            let count = others.iter().filter(|(_, other)| other.is_like(item)).count();
            2 * count < self.array().in_use().len()
        };
        Ok(match (own, bare) {
            (None, Some((_, item))) if is_kept_by_few(item) => Verdict::Stands,
            (None, Some((slot, _))) => Verdict::Given(*slot),
            (Some(_), Some(_)) if agree && others.len() > 1 => Verdict::Lost,
            _ => Verdict::Stands,
        })
    }

    /// Judges where the lowest member has a file of the array, and another member may have another
    /// one: somebody has exchanged names by hand on one of them. What most members have counts;
    /// those that have lost the name do not.
    fn judge_proven(&self, first: Slot, path: &[u8], own: &Item, others: &[(Slot, Item)], is_foreign: bool) -> Verdict {
        let proven: Vec<&(Slot, Item)> = others.iter().filter(|(_, other)| self.is_proven(other)).collect();
        let alike = |item: &Item| proven.iter().filter(|(_, other)| other.is_like(item)).count();
        let Some(&&(slot, _)) = proven.iter().find(|(_, other)| !other.is_like(own)) else { return Verdict::Stands };
        let differing = || proven.iter().filter(|(_, other)| !other.is_like(own)).map(|(_, other)| alike(other));
        let (with_own, most) = (1 + alike(own), differing().max().unwrap_or(0));
        // Each file is met once for each member that has it.
        let is_only = differing().filter(|&count| count == most).count() == most;
        // What this process may not see may be the lowest member's.
        let is_unseen = |&slot: &Slot| others.iter().all(|(other, _)| *other != slot) && self.item_or_none(slot, path).is_err();
        let unseen = || self.array().in_use().without(first).iter().filter(is_unseen).count();
        if with_own > most.max(1) {
            Verdict::Stands
        } else if most > with_own && is_only && !is_foreign && most > with_own + unseen() {
            Verdict::Lost
        } else {
            Verdict::Undecided(slot)
        }
    }

    pub(crate) fn is_proven(&self, item: &Item) -> bool {
        item.attribute.is_some_and(|attribute| self.files().told_of_named(attribute).is_some())
    }

    /// The proven files that a member has at a logical path and below it.
    fn proven_below(&self, slot: Slot, path: &[u8], item: &Item) -> Vec<Attribute> {
        let mut found = Vec::new();
        let mut add = |item: &Item| found.extend(item.attribute.filter(|_| self.is_proven(item)));
        add(item);
        if item.kind == FileType::Directory {
            // This process does not judge by what it may not see.
            self.tree_below(slot, [path.to_vec()].into()).unwrap_or_default().values().for_each(add);
        }
        found
    }

    /// How many names each file has on a member. The names in the tree are counted, since the
    /// kernel's count of links includes links that lie elsewhere.
    fn name_counts(&self, slot: Slot) -> Result<NameCounts> {
        let mut counts = NameCounts::new();
        for attribute in self.tree(slot)?.values().filter_map(|item| item.attribute) {
            *counts.entry(key(attribute)).or_default() += 1;
        }
        Ok(counts)
    }

    /// Those of some members on which a file has no name at all, and was not set aside by a
    /// recovery that was cut short. The namespace lock is held.
    pub(crate) fn without_file(&self, members: MemberSet, attribute: Attribute) -> Result<MemberSet> {
        let mut without = MemberSet::EMPTY;
        for slot in members.iter() {
            let has_name = self.name_counts(slot)?.contains_key(&key(attribute));
            if !has_name && !self.has_set_aside(slot, attribute)? {
                without = without.with(slot);
            }
        }
        Ok(without)
    }

    /// Whether member `slot` lacks files at or below a logical path that only a member can restore
    /// which is away and not on record as out: to give the member these names would make that other
    /// member stale. `item` is what member `from` has at the path. The namespace lock is held.
    pub(crate) fn waits_for_away(&self, from: Slot, path: &[u8], slot: Slot, item: &Item) -> Result<bool> {
        let runtime = self.array().runtime();
        let out = runtime.out().with(slot);
        if runtime.out_unrecorded().is_empty() || self.array().bears(out) && !self.array().may_have_shapes() {
            return Ok(false);
        }
        for attribute in self.proven_below(from, path, item) {
            if self.files().size_on_members(attribute)? != 0
                && !self.files().file_bears(attribute, out)
                && !self.without_file(MemberSet::EMPTY.with(slot), attribute)?.is_empty()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many names each file has on a member; None if this process may not see all of them, and
    /// so does not judge by them.
    fn seen_names(&self, slot: Slot) -> Result<Option<NameCounts>> {
        match self.name_counts(slot) {
            Err(OsError::ACCESS | OsError::PERM) => Ok(None),
            counts => counts.map(Some),
        }
    }

    /// Takes a member out that has lost a name which the others prove. It stays if it is the only
    /// one left that has some other file: without it programs would learn that there is no such
    /// file. `changing` are names that are being changed; they do not count.
    ///
    /// # Errors
    /// `IO` if the member stays.
    fn take_out_without_name(&self, slot: Slot, path: &[u8], changing: &[&[u8]]) -> Result<()> {
        if self.has_alone(slot, changing)? {
            self.array().tell_difference(slot, path);
            return Err(OsError::IO);
        }
        self.array().fail_without_name(slot, path)
    }

    /// Whether a member proves a file for which no other member in use has a name. Files that users
    /// without rights to the array may have moved do not count, nor does what this process may not
    /// see.
    fn has_alone(&self, slot: Slot, changing: &[&[u8]]) -> Result<bool> {
        let mut elsewhere = BTreeSet::new();
        for other in self.array().in_use().without(slot).iter() {
            match self.seen_names(other)? {
                Some(names) => elsewhere.extend(names.into_keys()),
                None => return Ok(false),
            }
        }
        let present = match self.tree(slot) {
            Err(OsError::ACCESS | OsError::PERM) => return Ok(false),
            present => present?,
        };
        Ok(present.iter().any(|(path, item)| {
            let is_elsewhere = || item.attribute.is_none_or(|attribute| elsewhere.contains(&key(attribute)));
            self.is_proven(item) && !is_elsewhere() && !changing.contains(&&**path) && !self.is_in_foreign_hands(path)
        }))
    }

    /// Makes a directory, symlink or special file on member `slot`, which lacks it, like the one on
    /// member `from`.
    fn give(&self, from: Slot, slot: Slot, path: &[u8]) -> Result<()> {
        self.mending(|| {
            let item = self.item(from, path)?;
            self.put(slot, path, &item, &mut Places::new())?;
            self.equalise_with(from, path, slot, path, &item)
        })
    }

    /// Settles the names that a witness has in a directory and the lowest member has not, or has as
    /// something of another kind. Returns whether the lowest member is to be asked again. The
    /// namespace lock is held.
    fn compare_names(&self, path: &[u8], witness: Slot) -> Result<bool> {
        let first = self.array().first_in_use()?;
        let kinds = |slot| kinds_in(self.root(slot)?, &path[1..]);
        let (Ok(own), Ok(others)) = (kinds(first), kinds(witness)) else { return Ok(false) };
        let is_foreign = self.is_in_foreign_hands(&join(path, b"."));
        for (name, _) in others.iter().filter(|(name, kind)| own.get(*name).is_none_or(|own| differ(*own, **kind))) {
            match self.arbitrate_locked(&join(path, name)) {
                Ok(false) => {}
                // Names that one user may have put there do not keep others from listing the
                // directory.
                Err(_) if is_foreign => {}
                result => return result,
            }
        }
        Ok(false)
    }

    /// Removes what a later member has at a name, as [`Self::clear`] does. The lowest member had
    /// nothing there, or has something else by now.
    ///
    /// # Errors
    /// [`AGAIN`] if there are files that the lowest member must have and has lost, and the lowest
    /// member went out for that; [`CONTRADICTED`] if it cannot be spared, or this process may not
    /// see whether the files have other names there.
    pub(crate) fn clear_unproven(&self, slot: Slot, at: &Located<'_>, path: &[u8]) -> Result<()> {
        self.refuse_loss(slot, path)?;
        self.clear(slot, at)
    }

    fn refuse_loss(&self, slot: Slot, path: &[u8]) -> Result<()> {
        let first = self.array().first_in_use()?;
        if slot == first || self.is_in_foreign_hands(path) {
            return Ok(());
        }
        let Some(item) = self.item_or_none(slot, path)? else { return Ok(()) };
        let proven = self.proven_below(slot, path, &item);
        if proven.is_empty() {
            return Ok(());
        }
        let Some(names) = self.seen_names(first)? else {
            self.array().tell_difference(first, path);
            return Err(CONTRADICTED);
        };
        if proven.iter().all(|&attribute| names.contains_key(&key(attribute))) {
            return Ok(());
        }
        Err(self.begin_without(first, path, &[path]))
    }

    /// Takes the lowest member out for a name that it has lost. The result is the error to end the
    /// operation with.
    fn begin_without(&self, first: Slot, path: &[u8], changing: &[&[u8]]) -> OsError {
        self.take_out_without_name(first, path, changing).map_or(CONTRADICTED, |()| AGAIN)
    }

    /// Comes before the names of a later member (`slot`) are made those of the lowest member
    /// (`reference`). Takes `reference` out if it lacks files that the later member proves.
    /// `changing` are the names that are being changed; they do not count.
    ///
    /// # Errors
    /// [`AGAIN`] if it went out, [`CONTRADICTED`] if it cannot be spared.
    pub(crate) fn refuse_reference(&self, reference: Slot, slot: Slot, changing: &[&[u8]]) -> Result<()> {
        let (names, present) = (self.name_counts(reference)?, self.tree(slot)?);
        let is_lost = |path: &[u8], item: &Item| {
            let is_elsewhere = || item.attribute.is_none_or(|attribute| names.contains_key(&key(attribute)));
            self.is_proven(item) && !is_elsewhere() && !changing.contains(&path) && !self.is_in_foreign_hands(path)
        };
        match present.iter().find(|(path, item)| is_lost(path, item)) {
            Some((path, _)) => {
                // What is being mended is a file that the reference has had all the time.
                let made = if self.is_mending() { &[] } else { changing };
                Err(self.begin_without(reference, path, made))
            }
            // Only a mend is judged: any other change is made on the first member by now, and some
            // changes cannot be undone.
            None if self.is_mending() => self.refuse_exchanged(reference, &present),
            None => Ok(()),
        }
    }

    /// Takes `reference` out if the tree of a later member (`present`) proves another file than it
    /// has at some name, and the members besides say that the later one is right: files of
    /// `reference` were exchanged by hand. What users without rights to the array may have
    /// exchanged does not count.
    ///
    /// # Errors
    /// As for [`Self::refuse_reference`]; `CONTRADICTED` also if nothing says which of them is
    /// right.
    fn refuse_exchanged(&self, reference: Slot, present: &BTreeMap<Vec<u8>, Item>) -> Result<()> {
        let own = self.tree(reference)?;
        for (path, item) in present {
            let Some(here) = own.get(path).filter(|here| here.attribute != item.attribute) else { continue };
            if !self.is_proven(here) || !self.is_proven(item) || self.is_in_foreign_hands(path) {
                continue;
            }
            match self.judge(reference, path, Some(here), &self.others_at(reference, path))? {
                Verdict::Lost => return Err(self.begin_without(reference, path, &[])),
                Verdict::Undecided(slot) => {
                    self.array().tell_difference(slot, path);
                    return Err(CONTRADICTED);
                }
                Verdict::Stands | Verdict::Given(_) => {}
            }
        }
        Ok(())
    }

    /// Comes before the names of all members are made those of `reference`. Takes `reference` out
    /// if it lacks files that another member proves, and no change in the log of names accounts for
    /// that. Returns the member whose names are to count.
    ///
    /// # Errors
    /// `IO` if no member is left.
    pub(crate) fn reference_that_lacks_nothing(&self, mut reference: Slot) -> Result<Slot> {
        loop {
            let mut is_left = true;
            for slot in self.array().in_use().without(reference).iter() {
                let lost = self.lost_by(reference, slot)?;
                if let Some(path) = lost.first()
                    && self.take_out_without_name(reference, path, &[]).is_ok()
                {
                    is_left = false;
                    break;
                }
            }
            if is_left {
                return Ok(reference);
            }
            reference = self.array().first_in_use()?;
        }
    }

    /// The logical paths of files that a member proves and for which `reference` has no name,
    /// although no change in the log of names has removed them, or has made them only just before a
    /// crash. Files that users without rights to the array may have moved are left out.
    pub(crate) fn lost_by(&self, reference: Slot, slot: Slot) -> Result<Vec<Vec<u8>>> {
        let (names, removed) = (self.name_counts(reference)?, self.removed_by_log()?);
        let mut lost = Vec::new();
        for (path, item) in self.tree(slot)? {
            let Some(attribute) = item.attribute.filter(|_| self.is_proven(&item)) else { continue };
            let is_accounted_for = names.contains_key(&key(attribute)) || removed.contains(&key(attribute));
            if !is_accounted_for && !self.is_in_foreign_hands(&path) && !self.never_had(reference, attribute, Some(&path))? {
                lost.push(path);
            }
        }
        Ok(lost)
    }

    /// Takes members out, at a start, whose directories of the prefixes hold nothing any more while
    /// those of others hold files. With `volatile`, which is for the time before names are made
    /// good after a crash, only members are judged whose file systems are volatile: these lose all
    /// or nothing in a crash.
    pub(crate) fn refuse_emptied(&self, volatile: bool) -> Result<()> {
        let prefixes = &self.array().config().prefixes;
        if prefixes.iter().all(|prefix| self.emptied(prefix).is_none()) {
            return Ok(());
        }
        if volatile {
            let runtime = self.array().runtime();
            let before = runtime.out();
            runtime.with_namespace(|_| self.holding(|| self.refuse_emptied_locked(true)))?;
            // The recovery that follows counts upon it that members which went out here are on
            // record. A member that is only away may be needed for what another one has lost, and
            // does not become stale by a look.
            return if runtime.out() == before { Ok(()) } else { self.array().before_change() };
        }
        self.with_names_held(|| self.refuse_emptied_locked(false).map(|()| false)).map(|_| ())
    }

    /// Does what [`Self::refuse_emptied`] does. The namespace lock is held. Files that a
    /// change in the log has removed prove nothing, nor do those of a change that a dead process may
    /// have left half made: the replay makes that good.
    pub(crate) fn refuse_emptied_locked(&self, volatile: bool) -> Result<()> {
        let runtime = self.array().runtime();
        let may_be_unfinished = runtime.are_names_unfinished() || !runtime.is_recovered();
        let removed = self.removed_by_log()?;
        let last = if may_be_unfinished { self.files_of_last_change()? } else { [None; 2] };
        let is_changing = |item: &Item| {
            item.attribute.is_some_and(|attribute| removed.contains(&key(attribute)) || last.contains(&Some(attribute)))
        };
        for prefix in &self.array().config().prefixes {
            let Some((slots, other)) = self.emptied(prefix) else { continue };
            let tree = match self.tree_below(other, [prefix.clone()].into()) {
                // This process does not judge by what it may not see.
                Err(OsError::ACCESS | OsError::PERM) => continue,
                tree => tree?,
            };
            let proof =
                tree.iter().find(|(path, item)| self.is_proven(item) && !is_changing(item) && !self.is_in_foreign_hands(path));
            let Some(attribute) = proof.and_then(|(_, item)| item.attribute) else { continue };
            for slot in slots.into_iter().filter(|&slot| !volatile || !self.is_durable(slot)) {
                if self.seen_names(slot)?.is_some_and(|names| !names.contains_key(&key(attribute))) {
                    // If the array cannot do without the member it goes on with it, and calls on
                    // what the member lacks fail.
                    let _ = self.take_out_without_name(slot, prefix, &[]);
                }
            }
        }
        Ok(())
    }

    /// The members whose directory of a prefix is empty, and one whose is not; None if there are
    /// not both.
    fn emptied(&self, prefix: &[u8]) -> Option<(Vec<Slot>, Slot)> {
        let (mut empty, mut other) = (Vec::new(), None);
        for slot in self.array().in_use().iter() {
            match self.root(slot).and_then(|root| array::holds_names(root.as_fd(), prefix)) {
                Ok(true) => other = Some(slot),
                Ok(false) => empty.push(slot),
                // This process does not judge by what it may not see.
                Err(_) => {}
            }
        }
        other.filter(|_| !empty.is_empty()).map(|other| (empty, other))
    }
}

/// What tells one thing on a member's file system from another: device, inode number and mode.
pub(crate) fn identity(stat: &Stat) -> [u64; 3] {
    [stat.st_dev, stat.st_ino, stat.st_mode.into()]
}

fn key(attribute: Attribute) -> (u64, u64) {
    (attribute.inode, attribute.generation)
}

/// Whether two kinds are known and different. Some file systems do not tell kinds in directories.
fn differ(one: FileType, other: FileType) -> bool {
    one != other && one != FileType::Unknown && other != FileType::Unknown
}

fn own_thread() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

fn changed_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * NS_PER_SECOND + i128::from(stat.st_mtime_nsec)
}

/// Whether two members' directories look as if they held the same names: they have as many
/// directories and bytes, and were changed at the same time.
fn is_listed_alike(one: &Stat, other: &Stat) -> bool {
    let is_same = (one.st_nlink, one.st_size) == (other.st_nlink, other.st_size);
    is_same && (changed_ns(one) - changed_ns(other)).abs() <= CHANGE_NS_MAX
}
