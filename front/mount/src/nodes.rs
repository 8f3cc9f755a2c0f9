//! What the kernel knows by number: directories, files, symlinks and special files of the array,
//! each held by a descriptor that only names it (O_PATH).
//!
//! A descriptor stays with its thing whoever renames or removes that, through the mount or in a
//! program that the library serves. Its link under /proc tells the present path. So no table of
//! names has to follow the other door.
//!
//! Invariants:
//! - one thing has one number as long as the kernel remembers it: several names of a file lead to
//!   the same number, by the device and inode number that programs are told. A directory that is
//!   found in another directory than before, since the other door has moved it there, gets a new
//!   number, and keeps the old one for who works in it: the kernel has one place for a number of a
//!   directory, and cannot move that while it renames (ESTALE) or puts it below itself (ELOOP);
//! - the kernel counts how often it was told a number, and says how much of that it has forgotten.
//!   At 0 the descriptor is closed;
//! - as many descriptors are kept as [`Nodes::capacity`] says. What has not been asked for lately is
//!   closed ([`Closed`]), and keeps its number. It is opened again when it is asked for by number, or
//!   when a name of it is looked up. What has no name any more, or is at work, is not closed;
//! - all descriptors lie on the member whose answers count. When that is another one than before,
//!   they are opened anew by their paths, and keep their numbers ([`Nodes::follow_members`]);
//! - what is no file has a *twin*: a descriptor of the same thing on another member
//!   ([`namespace::Twin`]). Of a member that is lost nobody can tell where its directories are on
//!   the others; the twin can. A file is known on each member by its attribute.

use crate::{
    caller,
    closed::{Closed, Found, Roots, Search, Searches, weight},
    names::inside,
    wire::ROOT,
};
use namespace::{DELETED, Namespace, Node as Kind, ProgramPath, Reached, Twin};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use sys::rustix::fs::{CWD, Stat, getxattr, readlinkat};
use sys::rustix::io::fcntl_dupfd_cloexec;
use sys::rustix::process::{Resource, getrlimit};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};

/// The kind of a file in its mode.
const KIND: u32 = 0o170_000;
/// The kind of a regular file.
pub(crate) const FILE: u64 = 0o100_000;
/// No state of names.
const NO_EPOCH: u64 = u64::MAX;
/// The kind of a directory.
pub(crate) const DIRECTORY: u64 = 0o040_000;
/// More descriptors take more of the kernel's memory than it is worth.
const CAPACITY_MAX: usize = 1 << 18;
/// No member has this slot.
const NO_SLOT: usize = usize::MAX;
/// So many things are looked at each time that one is to be closed.
const SHED_LOOK_COUNT: usize = 64;
/// So often something is opened again that others close, or lose, at the same moment.
const OPEN_COUNT: u32 = 16;

/// Something of the array that the kernel knows.
pub(crate) struct Node {
    fd: OwnedFd,
}

/// Device and inode number, and kind.
pub(crate) type Identity = [u64; 3];

enum Held {
    Open(Arc<Node>),
    Closed(Arc<Closed>),
    /// The member that answered was lost, and nobody knows where the directory is since; or the
    /// directory was closed, and was searched for in vain.
    Gone,
}

struct Entry {
    held: Held,
    identity: Identity,
    /// Of a file, what its backing files say that they belong to: the same on every member.
    attribute: Option<Vec<u8>>,
    twin: Option<Twin>,
    count: u64,
    /// It was asked for by number since it was opened, or since it was last passed over by
    /// [`Nodes::shed`].
    is_used: bool,
    /// In which directory and by which name the kernel has this one; None for what is no directory.
    place: Option<Place>,
}

/// A directory's number and a name in it.
pub(crate) type Place = (u64, Vec<u8>);

/// Where a look-up found what it found.
pub(crate) struct Looked<'a> {
    directory: u64,
    name: &'a [u8],
    /// How many names had been renamed before ([`Table::renames`]).
    renames: u64,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    numbers: HashMap<Identity, u64>,
    /// Which directory, by its number, the kernel has in a place.
    placed: HashMap<Place, u64>,
    /// How many names have been renamed through the mount.
    renames: u64,
    last: u64,
    /// How many descriptors are open.
    descriptor_count: usize,
    /// The numbers of what is open, that which was opened first before the others; and of some
    /// things that are not open any more.
    queue: VecDeque<u64>,
}

impl Entry {
    fn new(held: Held, identity: Identity, attribute: Option<Vec<u8>>, twin: Option<Twin>) -> Self {
        Self { held, identity, attribute, twin, count: 1, is_used: false, place: None }
    }
}

impl Table {
    /// Something has been opened.
    fn has_opened(&mut self, number: u64, identity: &Identity) {
        self.descriptor_count += weight(identity);
        if self.queue.len() > self.entries.len() * 2 {
            let entries = &self.entries;
            self.queue.retain(|number| entries.get(number).is_some_and(|entry| matches!(entry.held, Held::Open(_))));
        }
        self.queue.push_back(number);
    }

    /// What was open of a thing is closed.
    fn has_closed(&mut self, identity: &Identity) {
        self.descriptor_count = self.descriptor_count.saturating_sub(weight(identity));
    }

    /// A thing has another identity than before, on another member.
    fn identify(&mut self, number: u64, found: Identity) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        // A directory that was moved has a later number, too.
        let is_latest = self.numbers.get(&entry.identity) == Some(&number);
        if is_latest {
            self.numbers.remove(&entry.identity);
        }
        if is_latest || found[2] == FILE {
            self.numbers.insert(found, number);
        }
        entry.identity = found;
    }

    /// The kernel has a directory in a place from now on.
    fn put(&mut self, number: u64, place: Place) {
        self.lift(number);
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.place = Some(place.clone());
            self.placed.insert(place, number);
        }
    }

    /// The number that the kernel has of a thing that was found in a place. None if it has none, or
    /// if it has a directory elsewhere.
    fn known(&self, identity: &Identity, place: Option<&Place>) -> Option<u64> {
        let is_it = |number: &u64| self.entries.get(number).is_some_and(|entry| entry.identity == *identity);
        let Some(place) = place else { return self.numbers.get(identity).copied() };
        if let Some(number) = self.placed.get(place).copied().filter(is_it) {
            return Some(number);
        }
        let number = self.numbers.get(identity).copied()?;
        let before = self.entries.get(&number)?.place.as_ref();
        before.is_none_or(|before| before.0 == place.0).then_some(number)
    }

    /// The kernel has the directory with this number in no place from now on.
    fn lift(&mut self, number: u64) {
        let place = self.entries.get_mut(&number).and_then(|entry| entry.place.take());
        if let Some(place) = place.filter(|place| self.placed.get(place) == Some(&number)) {
            self.placed.remove(&place);
        }
    }
}

/// All that the kernel knows of one mount.
pub(crate) struct Nodes {
    pub(crate) names: Namespace,
    /// The logical path of the root.
    pub(crate) prefix: Vec<u8>,
    /// By which things are opened again.
    pub(crate) roots: Roots,
    pub(crate) searches: Searches,
    table: Mutex<Table>,
    /// The member that the descriptors lie on.
    slot: AtomicUsize,
    /// The state of the members when it was last looked at.
    members_epoch: AtomicU64,
    /// The state of directories and symlinks when that member was last seen to answer.
    names_epoch: AtomicU64,
    /// So many descriptors are kept.
    capacity: usize,
}

impl Node {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name in a directory that the kernel knows, for the core.
pub(crate) struct Child {
    directory: Arc<Node>,
    slot: Option<usize>,
    text: Vec<u8>,
    known_bytes: usize,
}

impl Child {
    pub(crate) fn path(&self) -> ProgramPath<'_> {
        ProgramPath::relative(self.directory.fd(), self.slot, &self.text, self.known_bytes)
    }
}

impl Nodes {
    /// The root of the mount is the directory at a logical path.
    ///
    /// # Errors
    /// Those of looking the directory up.
    pub(crate) fn new(names: Namespace, root: &[u8]) -> Result<Self> {
        let Reached::Array(fd) = names.look_at(root, true)? else { return Err(OsError::XDEV) };
        let identity = identity(&names.fstat(fd.as_fd(), &Kind::Path(None))?);
        let entry = Entry::new(Held::Open(Arc::new(Node { fd })), identity, None, None);
        let table = Table {
            entries: HashMap::from([(ROOT, entry)]),
            numbers: HashMap::from([(identity, ROOT)]),
            last: ROOT,
            ..Table::default()
        };
        let slot = AtomicUsize::new(names.files().array().first_in_use().unwrap_or(NO_SLOT));
        // What is open, and what each open file has open on the members, needs the rest.
        let capacity = getrlimit(Resource::Nofile).current.map_or(CAPACITY_MAX, |limit| limit as usize / 2);
        let names_epoch = AtomicU64::new(NO_EPOCH);
        let members_epoch = AtomicU64::new(NO_EPOCH);
        let (table, capacity) = (Mutex::new(table), capacity.min(CAPACITY_MAX));
        let (prefix, roots) = (root.to_vec(), [const { OnceLock::new() }; units::MEMBER_COUNT_MAX]);
        let searches = Searches::default();
        Ok(Self { names, prefix, roots, searches, table, slot, members_epoch, names_epoch, capacity })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has a number.
    ///
    /// # Errors
    /// `STALE` for a number that the kernel was not told, and for a thing that is gone.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<Node>> {
        self.get_below(number, 0)
    }

    /// What has a number, and is so many directories above the thing that was asked for.
    ///
    /// # Errors
    /// Those of [`Self::get`].
    pub(crate) fn get_below(&self, number: u64, depth: u32) -> Result<Arc<Node>> {
        for _ in 0..OPEN_COUNT {
            let (closed, identity) = {
                let mut table = self.table();
                let entry = table.entries.get_mut(&number).ok_or(OsError::STALE)?;
                entry.is_used = true;
                match &entry.held {
                    Held::Open(node) => return Ok(node.clone()),
                    Held::Closed(closed) => (closed.clone(), entry.identity),
                    Held::Gone => return Err(OsError::STALE),
                }
            };
            // Others are served meanwhile.
            let found = match caller::as_root(|| closed.open(self, &identity, Search::Of(number, depth)))? {
                Some(found) => found,
                // What lies above it need not be searched for: a search finds the thing itself.
                None if identity[2] == DIRECTORY && depth == 0 => match caller::as_root(|| self.search(number, &closed))? {
                    Some(found) => found,
                    None => continue,
                },
                None => return Err(OsError::STALE),
            };
            if let Some(node) = self.open_again(number, &closed, found)? {
                return Ok(node);
            }
        }
        Err(OsError::STALE)
    }

    /// Tells whether a thing is still closed, as it was.
    pub(crate) fn is_closed(&self, number: u64, closed: &Arc<Closed>) -> bool {
        let table = self.table();
        table.entries.get(&number).is_some_and(|entry| matches!(&entry.held, Held::Closed(now) if Arc::ptr_eq(now, closed)))
    }

    /// A directory that was closed is nowhere. A later one that has got its inode number gets another
    /// number.
    pub(crate) fn give_up(&self, number: u64, closed: &Arc<Closed>) {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&number) else { return };
        if !matches!(&entry.held, Held::Closed(now) if Arc::ptr_eq(now, closed)) {
            return;
        }
        entry.held = Held::Gone;
        let identity = entry.identity;
        if table.numbers.get(&identity) == Some(&number) {
            table.numbers.remove(&identity);
        }
        table.lift(number);
    }

    /// Enters a thing that was closed, and was found. The result is None if it, or the members, have
    /// changed meanwhile.
    fn open_again(&self, number: u64, closed: &Arc<Closed>, found: Found) -> Result<Option<Arc<Node>>> {
        let (fd, identity) = found;
        if self.lies_elsewhere(fd.as_fd()) {
            return Ok(None);
        }
        let node = Arc::new(Node { fd });
        let mut table = self.table();
        match table.entries.get(&number).map(|entry| (&entry.held, entry.identity[2])) {
            Some((Held::Closed(now), kind)) if Arc::ptr_eq(now, closed) && kind == identity[2] => {}
            Some((Held::Open(node), _)) => return Ok(Some(node.clone())),
            _ => return Ok(None),
        }
        let held = Held::Open(node.clone());
        let twin = self.twin_to_enter(&held, &identity)?;
        table.identify(number, identity);
        if let Some(entry) = table.entries.get_mut(&number) {
            (entry.held, entry.twin) = (held, twin);
        }
        table.has_opened(number, &identity);
        self.shed(&mut table);
        Ok(Some(node))
    }

    /// The twin of something that is opened.
    ///
    /// # Errors
    /// `STALE` if it has none, and members have changed: the twin alone would tell where the thing is.
    fn twin_to_enter(&self, held: &Held, identity: &Identity) -> Result<Option<Twin>> {
        if identity[2] == FILE {
            return Ok(None);
        }
        let twin = caller::as_root(|| self.twin_of(held));
        if twin.is_none() && self.are_behind() { Err(OsError::STALE) } else { Ok(twin) }
    }

    /// In which directory and by which name the kernel has a directory.
    pub(crate) fn place_of(&self, number: u64) -> Option<Place> {
        self.table().entries.get(&number)?.place.clone()
    }

    /// The member that the descriptors lie on.
    pub(crate) fn slot(&self) -> usize {
        self.slot.load(Ordering::Acquire)
    }

    /// Begins to look up a name in a directory: what is found there is entered with this.
    pub(crate) fn looking<'a>(&self, (directory, name): (u64, &'a [u8])) -> Looked<'a> {
        Looked { directory, name, renames: self.table().renames }
    }

    /// The number of what a descriptor (O_PATH) names, and what it is like. The kernel is told the
    /// number once more, and that a directory is where it was looked up.
    ///
    /// # Errors
    /// `STALE` if members have changed since the thing was looked up: it is to be looked up once
    /// more, so that it keeps its number.
    pub(crate) fn enter(&self, fd: OwnedFd, looked: Option<Looked<'_>>) -> Result<(u64, Stat)> {
        if self.lies_elsewhere(fd.as_fd()) {
            return Err(OsError::STALE);
        }
        // What a file is like may be asked by who may not read it. The array's part of that is
        // known to who may.
        let stat = caller::as_root(|| self.names.fstat_surely(fd.as_fd(), &Kind::Path(None)))?;
        let identity = identity(&stat);
        let attribute = if identity[2] == FILE { caller::as_root(|| attribute_of(fd.as_fd())) } else { None };
        let mut table = self.table();
        // If a name was renamed through the mount since the look-up began, the directory may have left
        // the place where it was found, and the kernel has it where the rename has put it.
        let looked = looked.filter(|looked| identity[2] == DIRECTORY && looked.renames == table.renames);
        let place = looked.map(|looked| (looked.directory, looked.name.to_vec()));
        let known = table.known(&identity, place.as_ref()).filter(|number| match &table.entries[number].held {
            Held::Closed(closed) => closed.may_be(self.slot(), fd.as_fd()),
            _ => true,
        });
        let is_open = |number| table.entries.get(&number).is_some_and(|entry| matches!(entry.held, Held::Open(_)));
        let was_open = known.is_some_and(is_open);
        let node = Held::Open(Arc::new(Node { fd }));
        let twin = if was_open { None } else { self.twin_to_enter(&node, &identity)? };
        let number = match known.and_then(|number| Some((number, table.entries.get_mut(&number)?))) {
            Some((number, entry)) => {
                entry.count += 1;
                // A file may have lost the name by which it was found before; this one leads to it
                // now.
                entry.held = node;
                entry.attribute = attribute;
                entry.twin = twin.or(entry.twin.take());
                number
            }
            None => {
                table.last += 1;
                let number = table.last;
                table.entries.insert(number, Entry::new(node, identity, attribute, twin));
                number
            }
        };
        table.numbers.insert(identity, number);
        if !was_open {
            table.has_opened(number, &identity);
        }
        if let Some(place) = place.filter(|_| number != ROOT) {
            table.put(number, place);
        }
        self.shed(&mut table);
        Ok((number, stat))
    }

    /// A name was renamed through the mount: the kernel moves what it has there.
    pub(crate) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8]), is_exchange: bool) {
        let mut table = self.table();
        table.renames += 1;
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let found = [table.placed.get(&from).copied(), table.placed.get(&to).copied().filter(|_| is_exchange)];
        found.into_iter().flatten().for_each(|number| table.lift(number));
        for (number, place) in found.into_iter().zip([to, from]) {
            if let Some(number) = number {
                table.put(number, place);
            }
        }
    }

    /// Closes descriptors if there are too many, of what was opened first and has not been asked
    /// for since it was last looked at.
    fn shed(&self, table: &mut Table) {
        let mut rest = table.queue.len().min(SHED_LOOK_COUNT);
        while table.descriptor_count > self.capacity && rest > 0 {
            rest -= 1;
            let Some(number) = table.queue.pop_front() else { return };
            let Some(entry) = table.entries.get_mut(&number) else { continue };
            let Held::Open(node) = &entry.held else { continue };
            let is_at_work = std::mem::replace(&mut entry.is_used, false) || Arc::strong_count(node) > 1;
            let kept = || Closed::of(self, node.fd(), entry.twin.as_ref(), &entry.identity);
            match if is_at_work { None } else { kept() } {
                Some(closed) => {
                    entry.held = Held::Closed(Arc::new(closed));
                    entry.twin = None;
                    let identity = entry.identity;
                    table.has_closed(&identity);
                }
                None => table.queue.push_back(number),
            }
        }
    }

    /// The kernel has forgotten a number so many times.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&number) else { return };
        entry.count = entry.count.saturating_sub(count);
        if entry.count == 0 && number != ROOT {
            table.lift(number);
            let entry = table.entries.remove(&number);
            if let Some(Entry { held: Held::Open(_), identity, .. }) = &entry {
                table.has_closed(identity);
            }
            if let Some(entry) = entry.filter(|entry| table.numbers.get(&entry.identity) == Some(&number)) {
                table.numbers.remove(&entry.identity);
            }
        }
    }

    /// A name in a directory.
    ///
    /// # Errors
    /// `INVAL` for a name that no kernel sends, `NOENT` for the array's own directory on the
    /// members and in a directory that is gone.
    pub(crate) fn child(&self, directory: u64, name: &[u8]) -> Result<Child> {
        if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
            return Err(OsError::INVAL);
        }
        let directory = self.get(directory)?;
        let (path, slot) = self.placed(directory.fd())?;
        if self.names.hides(&path, name) {
            return Err(OsError::NOENT);
        }
        let (text, known_bytes) = ([path.as_slice(), b"/", name].concat(), path.len());
        Ok(Child { directory, slot, text, known_bytes })
    }

    /// The path of a directory itself.
    ///
    /// # Errors
    /// `STALE` for a number that the kernel was not told, or if the directory lies on no member.
    pub(crate) fn itself(&self, directory: u64) -> Result<Child> {
        let directory = self.get(directory)?;
        let (path, slot) = self.placed(directory.fd())?;
        let (text, known_bytes) = ([path.as_slice(), b"/."].concat(), path.len());
        Ok(Child { directory, slot, text, known_bytes })
    }

    /// The logical path of what a descriptor is open on, and the member it lies on.
    pub(crate) fn placed(&self, fd: BorrowedFd<'_>) -> Result<(Vec<u8>, Option<usize>)> {
        let host = readlinkat(CWD, namespace::link(fd.as_raw_fd()), Vec::new())?;
        let (path, slot) = self.names.placed(host.as_bytes()).ok_or(OsError::STALE)?;
        Ok((path.to_vec(), slot))
    }

    /// Whether another member answers than the one that the descriptors lie on.
    pub(crate) fn are_behind(&self) -> bool {
        self.names.files().array().first_in_use().is_ok_and(|first| first != self.slot.load(Ordering::Acquire))
    }

    /// Sees to it that everything lies on the member whose answers count. To be called as root,
    /// before each request.
    pub(crate) fn follow_members(&self) {
        let Ok(first) = self.names.files().array().first_in_use() else { return };
        let members_epoch = self.names.files().array().runtime().epoch();
        if self.slot.load(Ordering::Acquire) != first {
            self.move_to(first);
        } else if self.members_epoch.load(Ordering::Acquire) != members_epoch {
            // The member of the twins may be gone.
            self.table().entries.values_mut().filter(|entry| entry.identity[2] != FILE).for_each(|entry| self.twin_anew(entry));
            self.members_epoch.store(members_epoch, Ordering::Release);
        } else {
            let epoch = self.names.files().array().runtime().names_epoch();
            self.names_epoch.store(epoch.unwrap_or(NO_EPOCH), Ordering::Release);
        }
    }

    #[cold]
    fn move_to(&self, first: usize) {
        let mut table = self.table();
        if self.slot.load(Ordering::Acquire) == first {
            return;
        }
        // Without a change of directories and symlinks since, each path leads where it led.
        let epoch = self.names.files().array().runtime().names_epoch();
        let are_paths_right = epoch.is_some_and(|epoch| epoch == self.names_epoch.load(Ordering::Acquire));
        let all: Vec<u64> = table.entries.keys().copied().collect();
        for number in all {
            let Some(entry) = table.entries.get_mut(&number) else { continue };
            let is_file = entry.identity[2] == FILE;
            let twin = entry.twin.take().and_then(|twin| self.placed(twin.fd()).ok().map(|(path, slot)| (path, slot, twin)));
            let path = match (&entry.held, &twin) {
                (Held::Gone, _) => continue,
                (_, Some((path, ..))) => Ok(path.clone()),
                (Held::Open(node), None) => self.placed(node.fd()).map(|(path, _)| path),
                (Held::Closed(closed), None) => Ok(closed.path.clone()),
            };
            // What is closed has no twin, but is known by what the twin's member calls it.
            let noted = match &entry.held {
                Held::Closed(closed) if !is_file => closed.open(self, &entry.identity, Search::No).ok().flatten(),
                _ => None,
            };
            let is_noted = noted.is_some();
            let found = match &twin {
                _ if is_noted => noted.ok_or(OsError::STALE),
                // The twin is the thing itself, whatever it is called by now.
                Some((_, slot, twin)) if *slot == Some(first) => self.identified(fcntl_dupfd_cloexec(twin.fd(), 0)),
                _ => path.and_then(|path| self.found(path.strip_suffix(DELETED).unwrap_or(&path))),
            };
            let is_same = |fd: &OwnedFd| match &twin {
                _ if is_noted => true,
                _ if is_file => entry.attribute.is_some() && attribute_of(fd.as_fd()) == entry.attribute,
                Some((path, slot, _)) => *slot == Some(first) || !path.ends_with(DELETED),
                // The array's own paths stay where they are.
                None => are_paths_right || number == ROOT,
            };
            match found {
                Ok((fd, found)) if found[2] == entry.identity[2] && is_same(&fd) => {
                    match &mut entry.held {
                        Held::Open(node) => *node = Arc::new(Node { fd }),
                        Held::Closed(closed) => {
                            let twin = self.names.twin_of(fd.as_fd()).filter(|_| !is_file);
                            if let Some(now) = Closed::of(self, fd.as_fd(), twin.as_ref(), &found) {
                                *closed = Arc::new(now);
                            }
                        }
                        Held::Gone => {}
                    }
                    table.identify(number, found);
                }
                // A file is known by its attribute, whatever has its name: it keeps the descriptor
                // that it has.
                _ if is_file => {}
                // It may be found when it is asked for.
                _ if matches!(&entry.held, Held::Closed(closed) if closed.lies_on(self.names.files().array().in_use())) => {}
                _ => {
                    let before = std::mem::replace(&mut entry.held, Held::Gone);
                    let identity = entry.identity;
                    if matches!(before, Held::Open(_)) {
                        table.has_closed(&identity);
                    }
                }
            }
        }
        for entry in table.entries.values_mut().filter(|entry| entry.identity[2] != FILE) {
            entry.twin = self.twin_of(&entry.held);
        }
        self.slot.store(first, Ordering::Release);
    }

    /// What has a logical path, and its identity.
    pub(crate) fn found(&self, path: &[u8]) -> Result<(OwnedFd, Identity)> {
        self.identified(inside(self.names.look_at(ProgramPath::known(path), false)?))
    }

    pub(crate) fn identified(&self, fd: Result<OwnedFd>) -> Result<(OwnedFd, Identity)> {
        let fd = fd?;
        let found = identity(&self.names.fstat(fd.as_fd(), &Kind::Path(None))?);
        Ok((fd, found))
    }

    /// Tells whether a descriptor lies on another member than all others do. Nothing is said of
    /// what lies deeper than the kernel tells.
    fn lies_elsewhere(&self, fd: BorrowedFd<'_>) -> bool {
        self.placed(fd).is_ok_and(|(_, slot)| slot != Some(self.slot.load(Ordering::Acquire)))
    }

    /// The twin of what `held` stands for.
    fn twin_of(&self, held: &Held) -> Option<Twin> {
        let Held::Open(node) = held else { return None };
        self.names.twin_of(node.fd())
    }

    /// Something of an entry is to be on another member than before, besides what is open. To be
    /// called as root.
    fn twin_anew(&self, entry: &mut Entry) {
        let Held::Closed(closed) = &mut entry.held else {
            entry.twin = self.twin_of(&entry.held);
            return;
        };
        if closed.is_known_on(self.names.files().array().in_use()) {
            return;
        }
        if let Ok(Some((fd, _))) = closed.open(self, &entry.identity, Search::No)
            && let Some(now) = Closed::of(self, fd.as_fd(), self.names.twin_of(fd.as_fd()).as_ref(), &entry.identity)
        {
            *closed = Arc::new(now);
        }
    }

    /// Finds a file anew that the member whose answers count has lost by hand: the others know its
    /// name. To be called as root.
    pub(crate) fn find_anew(&self, number: u64) -> Option<Arc<Node>> {
        self.table().entries.get(&number)?.attribute.as_ref()?;
        let before = self.get(number).ok()?;
        let (path, _) = self.placed(before.fd()).ok()?;
        let path = path.strip_suffix(DELETED)?;
        // The members settle who is right.
        inside(self.names.stat(ProgramPath::known(path), false).ok()?).ok()?;
        let (fd, found) = self.found(path).ok()?;
        let attribute = attribute_of(fd.as_fd())?;
        let mut table = self.table();
        let Table { entries, numbers, .. } = &mut *table;
        let entry = entries.get_mut(&number).filter(|entry| entry.attribute.as_ref() == Some(&attribute))?;
        if numbers.get(&entry.identity) == Some(&number) {
            numbers.remove(&entry.identity);
        }
        numbers.insert(found, number);
        entry.identity = found;
        let node = Arc::new(Node { fd });
        let before = std::mem::replace(&mut entry.held, Held::Open(node.clone()));
        if !matches!(before, Held::Open(_)) {
            table.has_opened(number, &found);
        }
        Some(node)
    }
}

/// What a backing file says that it belongs to.
fn attribute_of(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut value = vec![0; format::ATTRIBUTE_BYTES];
    let bytes = getxattr(namespace::link(fd.as_raw_fd()), format::ATTRIBUTE_NAME, &mut value[..]).ok()?;
    value.truncate(bytes);
    Some(value)
}

fn identity(stat: &Stat) -> Identity {
    [stat.st_dev, stat.st_ino, (stat.st_mode & KIND).into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Identity = [1, 7, DIRECTORY];

    fn place(directory: u64) -> Place {
        (directory, b"name".to_vec())
    }

    /// A table in which the kernel has the directory `D` by number 5, in directory 2.
    fn table() -> Table {
        let mut table = Table::default();
        let entry = Entry::new(Held::Gone, D, None, None);
        table.entries.insert(5, entry);
        table.numbers.insert(D, 5);
        table.put(5, place(2));
        table
    }

    #[test]
    fn a_directory_keeps_its_number_where_the_kernel_has_it_and_no_other_directory_gets_it() {
        let mut table = table();
        assert_eq!(table.known(&D, None), Some(5));
        assert_eq!(table.known(&D, Some(&place(2))), Some(5));
        assert_eq!(table.known(&D, Some(&(2, b"other".to_vec()))), Some(5), "another name in the same directory");
        assert_eq!(table.known(&D, Some(&place(3))), None, "the other door has moved it");
        assert_eq!(table.known(&[1, 8, DIRECTORY], Some(&place(2))), None, "another directory has its name");
        table.put(5, place(3));
        assert_eq!(table.known(&D, Some(&place(3))), Some(5));
        assert_eq!(table.known(&D, Some(&place(2))), None);
        table.lift(5);
        assert_eq!(table.known(&D, Some(&place(2))), Some(5), "the kernel has it nowhere");
    }

    /// A look-up has found the directory at its new place before the rename was noted there.
    #[test]
    fn the_number_that_the_kernel_has_in_a_place_comes_before_a_later_one() {
        let mut table = table();
        let entry = Entry::new(Held::Gone, D, None, None);
        table.entries.insert(6, entry);
        table.numbers.insert(D, 6);
        table.put(6, place(3));
        table.put(5, place(3));
        assert_eq!(table.known(&D, Some(&place(3))), Some(5));
        table.lift(6);
        assert_eq!(table.known(&D, Some(&place(3))), Some(5), "what was put over is not taken away with the other");
    }
}
