//! After a death or a crash: links that programs made by a descriptor (linkat(2) with AT_EMPTY_PATH
//! or through /proc/self/fd). The log has no first name of these, and the file may have none: one
//! made with O_TMPFILE has its bytes before it has a name.
//!
//! The fault it exists for: some members have the link and others do not. A member without it may
//! have the file at another name, or in `.cxlraid` ([`file::orphan_path`]); then it gets the link
//! from there. An empty file in its place would be taken for the file, and what the member holds be
//! given up. If it has no name of the file at all, the bytes went with the process or in the crash.
//! Where the others cannot give them, the link is taken back on all members, which then are as
//! before the call.
//!
//! The namespace lock is held.

use crate::Namespace;
use crate::change::{link_on, remove_on};
use crate::recover::{Places, aside, key};
use crate::replay::{Later, later_if};
use crate::resolve::join;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
use file::Name;
use format::{Attribute, InodeState, NameKind, NameRecord};
use sys::rustix::fs::{AtFlags, FileType};
use sys::{OsError, Result};
use units::{MemberSet, Slot};

/// Tells whether a record notes a link by a descriptor.
pub(crate) fn is_by_descriptor(record: &NameRecord<'_>) -> bool {
    record.kind == NameKind::Link && record.path.is_empty()
}

/// The places at which members have the files that the log has links by descriptor of. A member's tree
/// is walked once for all of them.
pub(crate) struct Linked {
    wanted: Vec<Attribute>,
    /// Below the member's root.
    places: RefCell<BTreeMap<Slot, Places>>,
}

impl Linked {
    pub(crate) fn of(records: &[NameRecord<'_>]) -> Self {
        let mut wanted: Vec<_> =
            records.iter().filter(|record| is_by_descriptor(record)).filter_map(|record| record.file).collect();
        wanted.sort_unstable_by_key(|&file| key(file));
        wanted.dedup();
        Self { wanted, places: RefCell::new(BTreeMap::new()) }
    }
}

impl Namespace {
    /// Gives a member the name of a link by descriptor, from another name that it has of the file.
    /// Returns whether it has one.
    pub(crate) fn relink(&self, slot: Slot, record: &NameRecord<'_>, later: &Later<'_>) -> Result<bool> {
        let Some(file) = record.file else { return Ok(false) };
        let Some(place) = self.place_on(slot, file, later)? else { return Ok(false) };
        self.mending(|| later_if(link_on(self.root(slot)?, &place, &record.to[1..])))?;
        Ok(true)
    }

    /// Takes a link by descriptor back on all members if the file is gone, or its bytes cannot be
    /// given to the members that have lost it. Returns whether it did. A file that has a name from
    /// before the link keeps all of its names: opening it gives EIO.
    pub(crate) fn take_back_link(&self, record: &NameRecord<'_>, later: &Later<'_>) -> Result<bool> {
        let Some(file) = record.file else { return Ok(false) };
        let (names, in_use, mut holders) = (given(record, later), self.array().in_use(), MemberSet::EMPTY);
        for slot in in_use.iter() {
            let (mut count, mut links) = (0, 0);
            for name in &names {
                if let Some(item) = self.item_or_none(slot, name)?.filter(|item| item.attribute == Some(file)) {
                    (count, links) = (count + 1, item.stat.st_nlink);
                }
            }
            if count == 0 {
                continue;
            }
            holders = holders.with(slot);
            if links > count + self.own_places(slot, file)?.len() as u64 {
                return Ok(false);
            }
        }
        if holders.is_empty() || !self.is_lost(file, in_use.minus(holders), later)? {
            return Ok(false);
        }
        self.array().before_change()?;
        for slot in holders.iter() {
            for name in &names {
                if !self.lacks(slot, name, Some(file))? {
                    remove_on(self.root(slot)?, &name[1..], AtFlags::empty())?;
                }
            }
        }
        // Before that a crash may bring a name back, which must not be that of a file whose number
        // is free.
        self.sync_members()?;
        let files = self.files();
        let state = files.state_of(file);
        // A process that has the file open may still give it a name.
        if state == Some(InodeState::Used) || state == Some(InodeState::Orphan) && !files.is_open(file) {
            let name = if files.is_open(file) { Name::None } else { Name::Lost };
            files.unlinked(file, name, || false);
        }
        Ok(true)
    }

    /// Tells whether a file is gone, or these members lack it and cannot be given its bytes.
    fn is_lost(&self, file: Attribute, without: MemberSet, later: &Later<'_>) -> Result<bool> {
        let files = self.files();
        if files.is_free(file) == Ok(true) {
            return Ok(true);
        }
        let mut lacking = MemberSet::EMPTY;
        for slot in without.iter() {
            if self.place_on(slot, file, later)?.is_none() && !self.never_had(slot, file, None)? {
                lacking = lacking.with(slot);
            }
        }
        if lacking.is_empty() || files.size_on_members(file) == Ok(0) {
            return Ok(false);
        }
        Ok(files.is_open(file) || !files.file_bears(file, self.array().runtime().out().union(lacking)))
    }

    /// Returns where a member has a file, below its root; None if nowhere.
    pub(crate) fn place_on(&self, slot: Slot, file: Attribute, later: &Later<'_>) -> Result<Option<Vec<u8>>> {
        if let Some(place) = self.own_places(slot, file)?.pop() {
            return Ok(Some(place));
        }
        // Otherwise it has never had another name.
        if self.files().state_of(file) == Some(InodeState::Orphan) {
            Ok(None)
        } else {
            self.named_place(slot, file, later.linked)
        }
    }

    /// Returns where a member has a file with a name, below its root; None if nowhere.
    fn named_place(&self, slot: Slot, file: Attribute, linked: &Linked) -> Result<Option<Vec<u8>>> {
        let known = linked.places.borrow().get(&slot).map(|places| places.get(&key(file)).cloned());
        let place = match known {
            Some(place) if linked.wanted.contains(&file) => place,
            _ => self.walk_for(slot, file, linked)?,
        };
        let is_there = |place: &Vec<u8>| {
            let path = join(b"/", place);
            Ok::<_, OsError>(!self.lacks(slot, &path, Some(file))?)
        };
        match place {
            // A change that was done again since has moved it.
            Some(place) if !is_there(&place)? => self.walk_for(slot, file, linked),
            place => Ok(place),
        }
    }

    fn walk_for(&self, slot: Slot, file: Attribute, linked: &Linked) -> Result<Option<Vec<u8>>> {
        let mut places = Places::new();
        for (path, item) in self.tree(slot)? {
            let attribute = item.attribute.filter(|other| *other == file || linked.wanted.contains(other));
            if let Some(attribute) = attribute.filter(|_| item.kind == FileType::RegularFile) {
                places.insert(key(attribute), path[1..].to_vec());
            }
        }
        let place = places.get(&key(file)).cloned();
        linked.places.borrow_mut().insert(slot, places);
        Ok(place)
    }

    /// Tells whether any member has a name of a file that was linked by a descriptor.
    pub(crate) fn is_named_anywhere(&self, file: Attribute, linked: &Linked) -> Result<bool> {
        if !linked.wanted.contains(&file) {
            return Ok(false);
        }
        for slot in self.array().in_use().iter() {
            if self.named_place(slot, file, linked)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The names of a file in a member's `.cxlraid`, below the member's root.
    pub(crate) fn own_places(&self, slot: Slot, file: Attribute) -> Result<Vec<Vec<u8>>> {
        let mut places = match aside(self.root(slot)?) {
            // Nothing is set aside but by who may list the directory.
            Err(OsError::ACCESS) => Vec::new(),
            places => places?,
        };
        places.push(file::orphan_path(file));
        let mut found = Vec::new();
        for place in places {
            if !self.lacks(slot, &join(b"/", &place), Some(file))? {
                found.push(place);
            }
        }
        Ok(found)
    }
}

/// The names that a file may have by a link and by what came later.
fn given(record: &NameRecord<'_>, later: &Later<'_>) -> Vec<Vec<u8>> {
    let mut names = Vec::from([record.to.to_vec()]);
    for next in later.records {
        let moved: Vec<_> = names.iter().map(|name| crate::replay::renamed(name, core::slice::from_ref(next))).collect();
        let linked = (next.kind == NameKind::Link && next.file == record.file).then(|| next.to.to_vec());
        for name in moved.into_iter().chain(linked) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}
