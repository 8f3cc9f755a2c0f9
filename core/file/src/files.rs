//! The files of one array that this process has open.
//!
//! A file is opened once per process, however many descriptors there are; its entry in the runtime
//! segment counts processes. The last process to close a file trims it, and frees it if it has no
//! name any more. Its backing files may stay open for a while (`idle`).

use crate::backings::Backings;
use crate::called::Pages;
use crate::freed::Freed;
use crate::full_journal::Finder;
use crate::idle::{Idle, Keep};
use crate::inode::{Inode, key};
use crate::journal::{self, FileJournal};
use crate::locks::KeptOverExec;
use crate::nameless::Name;
use crate::rules::Policy;
use crate::table::{InodeTable, open_tables};
use crate::unfinished::TAIL_LONG;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use array::{Array, Recovery};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};
use dax::{Access, Backing, PersistenceDomain};
use format::{Attribute, InodeRecord, InodeState, Resync, Shape};
use intent::Lanes;
use sync::{Acquired, LocalLock};
use sys::{AsRawFd as _, OsError, OwnedFd, high_fd};
use units::MemberSet;

/// After so many members that joined while a process was opening a file it gives up.
const JOIN_COUNT_MAX: u32 = 64;

/// The files of one array that this process has open.
pub struct Files {
    array: Array,
    table: InodeTable,
    backings: Backings,
    lanes: Lanes<Backing>,
    journal: Option<FileJournal>,
    finder: Finder,
    pub(crate) had_crash: bool,
    domains: Vec<PersistenceDomain>,
    kernels: &'static persist::Kernels,
    policy: Policy,
    keep: Keep,
    /// Whether nothing is kept any more: see [`Files::end_keeping_ready`].
    keeps_nothing: AtomicBool,
    freed: Freed,
    held: LocalLock<Held>,
    kept_over_exec: KeptOverExec,
    pages: Pages,
}

/// What this process has open, and what it only keeps ready.
pub(crate) struct Held {
    open: BTreeMap<u64, Opened>,
    pub(crate) idle: Idle,
}

impl Held {
    /// Parks what may be parked, and returns whether there was anything. Where the process may have
    /// locks of its own, nothing is closed: that would take them away.
    pub(crate) fn park(&self) -> bool {
        let parked = self.open.values().map(|opened| {
            let locks = opened.inode.process_locks();
            let without = opened.inode.backing.iter().enumerate().filter(|(slot, _)| !locks.contains(*slot));
            without.filter_map(|(_, backing)| backing.as_ref()).filter(|backing| backing.park()).count()
        });
        parked.sum::<usize>() != 0
    }
}

pub(crate) struct Opened {
    inode: Arc<Inode>,
    /// The file as it was open for reading only, before it was opened for writing. Its descriptors are
    /// not closed before those of `inode`: that would take the process' record locks away.
    former: Option<Arc<Inode>>,
    pub(crate) handle_count: usize,
    /// How many of them are [`Shown`].
    shown_count: usize,
    /// How many of these handles are [`crate::Cached`].
    pub(crate) cached_count: usize,
}

impl Opened {
    /// A file with its first handle.
    fn new(inode: &Arc<Inode>) -> Self {
        Self { inode: inode.clone(), former: None, handle_count: 1, shown_count: 0, cached_count: 0 }
    }

    /// The sets of descriptors: there are two if it was opened for writing later than for reading.
    fn sets(&self) -> impl Iterator<Item = &Arc<Inode>> {
        core::iter::once(&self.inode).chain(&self.former)
    }
}

/// A file held open. Dropping the last one of a process closes it.
pub struct FileRef(Arc<Inode>);

impl Deref for FileRef {
    type Target = Inode;
    #[inline]
    fn deref(&self) -> &Inode {
        &self.0
    }
}

impl Clone for FileRef {
    fn clone(&self) -> Self {
        let files = self.0.files;
        if let Some(opened) = files.held.lock().open.get_mut(&self.0.key()) {
            opened.handle_count += 1;
        }
        Self(self.0.clone())
    }
}

impl FileRef {
    /// Runs `change` on what this process notes of the file, which is open.
    pub(crate) fn with_opened<T>(&self, change: impl FnOnce(&mut Opened) -> T) -> Option<T> {
        self.0.files.held.lock().open.get_mut(&self.0.key()).map(change)
    }

    /// The file once its members agree on what a crash may have left disagreeing. Who may not write
    /// to it gets it as it is.
    #[inline]
    fn agreed(self) -> Result<Self, OsError> {
        if self.shared().resync_waits.load(Ordering::Acquire) != 0 {
            self.finish_resync()?;
        }
        self.settle_dead();
        // What cannot be made good now is tried again by the next one.
        let _ = self.finish_mappings();
        Ok(self)
    }
}

impl Drop for FileRef {
    fn drop(&mut self) {
        self.0.files.close(&self.0);
    }
}

/// A file held open for a mapping of it: this process hears when something happens to it. See
/// [`array::Runtime::begin_showing`].
pub struct Shown(FileRef);

impl Shown {
    /// To be asked for before the file is looked at to be shown.
    #[must_use]
    pub fn new(file: &FileRef) -> Self {
        let (files, inode) = (file.0.files, &file.0);
        if let Some(opened) = files.held.lock().open.get_mut(&inode.key()) {
            opened.handle_count += 1;
            opened.shown_count += 1;
            if opened.shown_count == 1 {
                files.array.runtime().begin_showing(inode.entry);
            }
        }
        Self(FileRef(inode.clone()))
    }
}

impl Deref for Shown {
    type Target = FileRef;
    #[inline]
    fn deref(&self) -> &FileRef {
        &self.0
    }
}

impl Clone for Shown {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let (files, inode) = (self.0.0.files, &self.0.0);
        if let Some(opened) = files.held.lock().open.get_mut(&inode.key()) {
            opened.shown_count -= 1;
            if opened.shown_count == 0 {
                files.array.runtime().end_showing(inode.entry);
            }
        }
    }
}

/// What a process opens of an array's tables.
struct Parts {
    table: InodeTable,
    backings: Backings,
    lanes: Lanes<Backing>,
    journal: Option<FileJournal>,
    domains: Vec<PersistenceDomain>,
    kernels: &'static persist::Kernels,
    own_shape: Shape,
}

impl Parts {
    /// `makes_whole`: this process makes the tables whole, and nobody else has them open.
    fn open(array: &Array, makes_whole: bool) -> Result<Self, OsError> {
        let table = InodeTable::open(array, makes_whole)?;
        let backings = Backings::open(array)?;
        let domain = |member: &array::Member| match member.root() {
            Some(root) => dax::detect(sys::AsFd::as_fd(root)),
            None => PersistenceDomain::Volatile,
        };
        let domains: Vec<_> = array.members().iter().map(domain).collect();
        // One member that needs write-back decides for all.
        let (journal, journal_domain) = journal::open(array)?;
        let adr = domains.contains(&PersistenceDomain::Adr) || journal_domain == PersistenceDomain::Adr;
        let kernels = persist::kernels_for(if adr { PersistenceDomain::Adr } else { PersistenceDomain::Eadr });
        let lanes = Lanes::new(open_tables(array, format::TableKind::Lanes, format::LANES_FILE)?, kernels);
        let volatile_order = [&domains[..], &[journal_domain]].concat().contains(&PersistenceDomain::PageCache);
        let journal = FileJournal::new(array, journal, kernels, volatile_order)?;
        let geometry = *array.default_geometry();
        let members = MemberSet::first(geometry.member_count());
        let own_shape = Shape::new(geometry.level(), geometry.chunk(), members, 0).map_err(|_| OsError::INVAL)?;
        Ok(Self { table, backings, lanes, journal, domains, kernels, own_shape })
    }
}

/// The backing files of one file, by slot; None where a member is out.
pub type BackingFds = Vec<Option<OwnedFd>>;

impl Files {
    /// The files of an array; lives as long as the process. After a crash the tables are made whole
    /// first. What the program closes is closed at once.
    pub fn new(array: Array) -> Result<&'static Self, OsError> {
        Self::keeping_open(array, Keep::NOTHING)
    }

    /// The files of an array, as by [`Self::new`]. The backing files of a file that the program
    /// closes stay open for a while.
    ///
    /// While another process makes the tables whole, none is opened: one that is being made anew
    /// would be taken for a damaged one.
    pub fn keeping_open(array: Array, keep: Keep) -> Result<&'static Self, OsError> {
        let may_be_crash = array.runtime().is_after_crash();
        let makes_whole = array.runtime().begin_recovery(Recovery::Tables);
        let parts = match Parts::open(&array, makes_whole) {
            Ok(parts) => parts,
            Err(error) => {
                if makes_whole {
                    array.runtime().end_recovery(None);
                }
                return Err(error);
            }
        };
        let Parts { table, backings, lanes, journal, domains, kernels, own_shape } = parts;
        let held = LocalLock::new(Held { open: BTreeMap::new(), idle: Idle::new() });
        let files = Box::leak(Box::new(Self {
            array,
            table,
            backings,
            lanes,
            journal,
            finder: Finder::new(),
            had_crash: makes_whole && may_be_crash,
            domains,
            kernels,
            policy: Policy::new(own_shape),
            keep,
            keeps_nothing: AtomicBool::new(false),
            freed: Freed::new(),
            held,
            kept_over_exec: KeptOverExec::new(),
            pages: Pages::new(),
        }));
        if makes_whole {
            files.backings.renew(&files.array, files.array.in_use());
            let whole = files.recover_tables();
            files.array.runtime().end_recovery(whole.is_ok().then_some(Recovery::Tables));
            whole?;
        }
        files.backings.believe(&files.array);
        let runtime = files.array.runtime();
        let all = MemberSet::first(files.array.members().len());
        let has_tables =
            |&slot: &usize| files.table.member(slot).is_some() && files.lanes.has(slot) && files.backings.believes(slot);
        runtime.end_opening(all.iter().filter(|slot| !has_tables(slot)).collect());
        if files.array.was_alone() || runtime.has_reaped_nameless() {
            // Where a change of names was cut short, the names come first: who makes them whole
            // clears the orphans then; so it is after a crash. Those that only a member which is
            // away can make whole are as they were before that change.
            runtime.with_namespace(|acquired| {
                let are_whole = acquired == Acquired::Clean || runtime.do_names_wait_for_member();
                if are_whole && runtime.are_names_recovered() {
                    files.clear_orphans();
                }
            });
        }
        Ok(files)
    }

    /// The array.
    #[inline]
    #[must_use]
    pub const fn array(&self) -> &Array {
        &self.array
    }

    /// The persistence domain of each member, by slot.
    #[must_use]
    pub fn domains(&self) -> &[PersistenceDomain] {
        &self.domains
    }

    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) const fn keeping(&self) -> Keep {
        self.keep
    }

    pub(crate) const fn keeps_nothing(&self) -> &AtomicBool {
        &self.keeps_nothing
    }

    pub(crate) const fn freed(&self) -> &Freed {
        &self.freed
    }

    pub(crate) const fn kept_over_exec(&self) -> &KeptOverExec {
        &self.kept_over_exec
    }

    pub(crate) const fn held(&self) -> &LocalLock<Held> {
        &self.held
    }

    /// Returns what is known of the pages that the members give files.
    pub(crate) const fn pages(&self) -> &Pages {
        &self.pages
    }

    #[inline]
    pub(crate) const fn kernels(&self) -> &'static persist::Kernels {
        self.kernels
    }

    #[inline]
    pub(crate) const fn table(&self) -> &InodeTable {
        &self.table
    }

    #[inline]
    pub(crate) const fn backings(&self) -> &Backings {
        &self.backings
    }

    #[inline]
    pub(crate) const fn journal(&self) -> Option<&FileJournal> {
        self.journal.as_ref()
    }

    pub(crate) const fn finder(&self) -> &Finder {
        &self.finder
    }

    #[inline]
    pub(crate) const fn lanes(&self) -> &Lanes<Backing> {
        &self.lanes
    }

    /// Gives out an inode for a new file at a logical path, which decides its shape. Its attribute
    /// goes onto every backing file.
    pub fn create_inode(&self, path: &[u8]) -> Result<Attribute, OsError> {
        let attribute = self.create_nameless_inode(path)?;
        self.has_name(attribute);
        Ok(attribute)
    }

    /// Gives out an inode for a new file that has no name yet: a crash frees it, until
    /// [`Files::has_name`]. `path` is the logical path at which it is made.
    pub fn create_nameless_inode(&self, path: &[u8]) -> Result<Attribute, OsError> {
        self.array.before_change()?;
        self.create_nameless_inode_of(self.shape_at(path))
    }

    /// Takes an inode back whose file could not be made, or whose last name is gone while nobody
    /// has it open.
    pub fn discard_inode(&self, attribute: Attribute) {
        self.table.free(&self.array, attribute.inode);
        self.remove_sums(attribute);
    }

    /// Opens the file that `attribute` names. `backing` opens its backing files (for reading and
    /// writing, or only reading) and is called only if this process does not have the file open
    /// already in the way needed.
    ///
    /// # Errors
    /// `IO` if the inode table does not know the file (a backing file from another array, or
    /// damage), `NFILE` if too many files are open, and what `backing` gives.
    pub fn open(
        &'static self,
        attribute: Attribute,
        for_writing: bool,
        backing: impl FnMut() -> Result<(BackingFds, Access), OsError>,
    ) -> Result<FileRef, OsError> {
        self.open_unasked(attribute, for_writing, backing)?.agreed()
    }

    /// Opens a file as [`Self::open`], but leaves whatever waits to be made good in it as it is,
    /// also if the process may write to it. For a scrub, which looks at the file first.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_as_it_is(
        &'static self,
        attribute: Attribute,
        for_writing: bool,
        backing: impl FnMut() -> Result<(BackingFds, Access), OsError>,
    ) -> Result<FileRef, OsError> {
        let file = self.open_unasked(attribute, for_writing, backing)?;
        if file.shared().resync_waits.load(Ordering::Acquire) != 0 {
            file.leave_out_waiting()?;
        }
        Ok(file)
    }

    /// Opens a file without a look at what waits to be made good in it.
    fn open_unasked(
        &'static self,
        attribute: Attribute,
        for_writing: bool,
        mut backing: impl FnMut() -> Result<(BackingFds, Access), OsError>,
    ) -> Result<FileRef, OsError> {
        let key = key(attribute.inode, attribute.generation);
        let may_take = self.keep.count != 0 && (self.keep.allowed)();
        let mut held = self.held.lock();
        let Held { open, idle } = &mut *held;
        if let Some(opened) = open.get_mut(&key)
            && (opened.inode.writable || !for_writing)
        {
            opened.handle_count += 1;
            let file = FileRef(opened.inode.clone());
            drop(held);
            return file.leave_out_short_of_backing().map(|()| file);
        }
        if may_take
            && let Some((place, inode)) = self.take(idle, key)
            && self.array.runtime().with_open_files(|_| self.enter_again(attribute, place, &inode))
        {
            open.insert(key, Opened::new(&inode));
            drop(held);
            return Ok(FileRef(inode));
        }
        let mut tries = 0..JOIN_COUNT_MAX;
        let inode = loop {
            tries.next().ok_or(OsError::IO)?;
            let opened_in = self.array.runtime().epochs();
            if let Some(opened) = open.get_mut(&key) {
                // Open for reading only until now: descriptors from now on use one that can also
                // write. Who has the file open by the former one may lock it by the new one: no
                // descriptor of it is closed from now on. What may fail comes before the backing files
                // are opened again, since to close one takes the process' record locks away.
                let locked = opened.inode.process_locks();
                opened.inode.stay_on(MemberSet::first(opened.inode.backing.len()))?;
                let record = self.record(attribute)?;
                let (fds, access) = backing()?;
                let backing = self.take_backing(fds, access, locked)?;
                let (number, entry, writable) = (attribute.inode, opened.inode.entry, access == Access::ReadWrite);
                let inode = Arc::new(Inode::new(self, number, &record, backing, entry, writable, opened_in));
                inode.stay_on(opened.inode.process_locks())?;
                opened.former = Some(core::mem::replace(&mut opened.inode, inode));
                opened.handle_count += 1;
                let file = FileRef(opened.inode.clone());
                drop(held);
                return Ok(file);
            }
            let (fds, access) = backing()?;
            let (backing, writable) = (self.take_backing(fds, access, MemberSet::EMPTY)?, access == Access::ReadWrite);
            let entered = self.array.runtime().with_open_files(|_| self.enter(attribute, key, backing, writable, opened_in))?;
            if let Some(inode) = entered {
                break inode;
            }
        };
        open.insert(key, Opened::new(&inode));
        drop(held);
        let file = FileRef(inode);
        if !file.entry.first {
            file.leave_out_short()?;
        }
        Ok(file)
    }

    /// Takes backing files that were just opened. Where the process may have record locks (`locked`),
    /// a descriptor keeps the number that the kernel gave it: to move it out of the program's way is
    /// to close that number, and the locks go with that.
    fn take_backing(&self, fds: BackingFds, access: Access, locked: MemberSet) -> Result<Vec<Option<Backing>>, OsError> {
        let take = |slot: usize, fd: OwnedFd| {
            if locked.contains(slot) {
                high_fd::keep(fd.as_raw_fd());
            }
            Backing::of_file(fd, access, self.domains[slot], may_park)
        };
        fds.into_iter().enumerate().map(|(slot, fd)| fd.map(|fd| take(slot, fd)).transpose()).collect()
    }

    /// Makes descriptors free for the program: closes what is only kept ready, and parks what may be
    /// parked ([`dax::parked`]). Returns whether there was anything.
    pub fn free_descriptors(&self) -> bool {
        let any_idle = self.discard_idle();
        // What lies above the limit takes no number of the program's.
        if self.keep.count == 0 || !(self.keep.allowed)() || sys::low_limit::is_noted() {
            return any_idle;
        }
        let held = self.held.lock();
        let tables = self.table.files().chain(self.backings.files()).chain(self.lanes.files());
        let parked = tables.filter(|table| table.park()).count();
        held.park() || parked != 0 || any_idle
    }

    /// The file with this key, if it is open here and nobody is opening or closing files. For who
    /// may not wait for that.
    pub(crate) fn open_if_free(&self, key: u64) -> Option<Arc<Inode>> {
        self.held.try_lock()?.open.get(&key).map(|opened| opened.inode.clone())
    }

    /// The file with this key, if it is open here. Waits while others open or close files.
    pub(crate) fn open_here(&self, key: u64) -> Option<Arc<Inode>> {
        self.held.lock().open.get(&key).map(|opened| opened.inode.clone())
    }

    pub(crate) fn record(&self, attribute: Attribute) -> Result<InodeRecord, OsError> {
        let fits = |record: &InodeRecord| record.generation == attribute.generation;
        match self.table.load(&self.array, attribute.inode)? {
            Some(record) if fits(&record) => Ok(record),
            // The table of the first member may be an older one, or another array's.
            _ => {
                let others = self.array.in_use();
                let found = others.iter().filter_map(|slot| self.table.load_on(slot, attribute.inode).ok().flatten()).find(fits);
                found.ok_or(OsError::IO)
            }
        }
    }

    /// Enters a file with backing files that this process has just opened. None if a member has
    /// joined since they were opened: they must be opened anew, on that member too. The open-files
    /// lock is held, so no member joins meanwhile.
    fn enter(
        &'static self,
        attribute: Attribute,
        key: u64,
        backing: Vec<Option<Backing>>,
        writable: bool,
        opened_in: Option<[u64; 2]>,
    ) -> Result<Option<Arc<Inode>>, OsError> {
        let record = self.record(attribute)?;
        if record.shape.members() != self.policy.own().members() || record.shape.start_slot() != 0 {
            return Err(OsError::OPNOTSUPP);
        }
        let runtime = self.array.runtime();
        let entry = runtime.enter_file(key).ok_or(OsError::NFILE)?;
        if let Some(replaced) = entry.replaced {
            self.forget_mappings(replaced.get(), runtime.file(entry));
        }
        let mut record = record;
        if entry.first && self.table.is_odd(&self.array, attribute.inode) {
            // Nobody else has it open, so this is no change under way. What cannot be mended now
            // stays as it is.
            let _ = self.table.mend(&self.array, attribute.inode);
            // Some copy may have noted what another had not.
            record = self.record(attribute).unwrap_or(record);
        }
        let inode = Inode::new(self, attribute.inode, &record, backing, entry, writable, opened_in);
        if !inode.missed().is_empty() {
            runtime.leave_file(entry);
            return Ok(None);
        }
        if entry.first {
            let shared = runtime.file(entry);
            // Of an empty file, as every new one is, what there may be is not counted upon: asking
            // costs a system call per member.
            let bytes = || inode.in_use().filter(|_| record.size != 0).filter_map(|(_, backing)| backing.bytes().ok());
            let (present, longest) = bytes()
                .fold(None, |range: Option<(u64, u64)>, bytes| {
                    range.map_or(Some((bytes, bytes)), |(least, most)| Some((least.min(bytes), most.max(bytes))))
                })
                .unwrap_or_default();
            shared.allocated_end.store(present, Ordering::Relaxed);
            // Nobody but its users makes a backing file longer than its data: what somebody else
            // has put behind them must not be shown when the file grows.
            let is_long = longest > record.geometry().member_bytes(record.size);
            let flags = record.flags | if is_long { format::FLAG_SLACK } else { 0 };
            shared.flags.store(flags, Ordering::Relaxed);
            if flags & format::FLAG_SLACK != 0 {
                // Its last user did not close it: who knows what it was doing.
                let is_closed = record.flags & format::FLAG_SLACK == 0;
                shared.tail_unfinished.store(if is_closed { TAIL_LONG } else { 1 }, Ordering::Relaxed);
            }
            if record.flags & format::FLAG_MAPPED != 0 && shared.mapped.load(Ordering::Acquire) == 0 {
                self.table.add_resync(&self.array, attribute.inode, Resync { start: 0, end: u64::MAX, lost: MemberSet::EMPTY });
                inode.change_flags(0, format::FLAG_MAPPED);
                shared.resync_waits.store(1, Ordering::Relaxed);
            }
            let short = present < record.geometry().member_bytes(record.size);
            let waits = record.resync.is_some() || short || self.waits_in_journal(attribute);
            shared.resync_waits.fetch_or(u32::from(waits), Ordering::Relaxed);
            // If it may get a name again is forgotten: then it may not.
            let name = if record.state == InodeState::Orphan { Name::Lost } else { Name::Has };
            shared.unlinked.store(name as u32, Ordering::Relaxed);
            shared.size.store(record.size, Ordering::Release);
        }
        Ok(Some(Arc::new(inode)))
    }

    /// Enters a file whose backing files were kept at `place`; false if it must be opened anew: the
    /// table does not know it any more, something of it waits to be made good, or somebody has cut
    /// a backing file. The open-files lock is held.
    fn enter_again(&self, attribute: Attribute, place: usize, inode: &Inode) -> bool {
        let runtime = self.array.runtime();
        let whole =
            |record: &InodeRecord| record.flags & (format::FLAG_SLACK | format::FLAG_MAPPED) == 0 && record.resync.is_none();
        let record = self.record(attribute).ok();
        let entry = record.as_ref().and_then(|_| runtime.enter_file(inode.key()));
        runtime.end_idle(place);
        if let Some((entry, replaced)) = entry.and_then(|entry| Some((entry, entry.replaced?))) {
            self.forget_mappings(replaced.get(), runtime.file(entry));
        }
        let (Some(record), Some(entry)) = (record, entry) else { return false };
        if !entry.is_at(inode.entry)
            || !inode.missed().is_empty()
            || entry.first && !whole(&record)
            || inode.is_short(if entry.first { record.size } else { inode.size() })
        {
            // In another place: it was not counted, and its own was given to another file. Cut by
            // hand: a load from the rest of its last page would give zeros.
            runtime.leave_file(entry);
            return false;
        }
        if entry.first {
            let shared = runtime.file(entry);
            // What lies behind the data is not counted upon.
            shared.allocated_end.store(record.geometry().member_bytes(record.size), Ordering::Relaxed);
            shared.flags.store(record.flags, Ordering::Relaxed);
            let name = if record.state == InodeState::Orphan { Name::Lost } else { Name::Has };
            shared.unlinked.store(name as u32, Ordering::Relaxed);
            shared.size.store(record.size, Ordering::Release);
        }
        true
    }

    fn close(&self, inode: &Arc<Inode>) {
        let may_keep = self.keep.count != 0 && (self.keep.allowed)();
        let Held { open, idle } = &mut *self.held.lock();
        let Some(opened) = open.get_mut(&inode.key()) else { return };
        opened.handle_count -= 1;
        if opened.handle_count != 0 {
            return;
        }
        let Some(opened) = open.remove(&inode.key()) else { return };
        let inode = opened.inode;
        self.kept_over_exec.closed(&inode);
        let _ = inode.finish_mappings();
        let is_present = inode.flush_times();
        let place = if may_keep { self.place_for(idle, &inode) } else { None };
        let runtime = self.array.runtime();
        runtime.with_open_files(|_| {
            if runtime.leave_file(inode.entry) {
                if inode.name() != Name::Has {
                    self.note_freed(inode.attribute(), inode.size());
                    self.free(&inode);
                } else {
                    let shared = inode.shared();
                    if shared.tail_unfinished.load(Ordering::Relaxed) != 0 || shared.size_lock.owner().is_some() {
                        // Repairs it (who has the lock died with it); what fails is noted and done
                        // by the next one to open the file.
                        let _ = inode.with_size_locked(|_| Ok(()));
                    }
                    inode.trim(is_present);
                }
            }
            if let Some(place) = place {
                self.keep(idle, place, &inode);
            }
        });
    }

    /// Frees a file without a name that no process has open any more. The open-files lock is held.
    fn free(&self, inode: &Inode) {
        self.discard_if_kept(inode.attribute(), inode.name());
        self.table.free(&self.array, inode.number);
        self.remove_sums(inode.attribute());
        self.forget_unfollowed(inode);
    }

    /// Notes that a file has no name (any more), and which kind of none: it is freed now, or by the
    /// last process to close it. `cut` gives back the space of a file that nobody has open but
    /// others keep ready, and tells whether it could. If the inode table knows the number for
    /// another generation's it is another file's, and stays.
    pub fn unlinked(&self, attribute: Attribute, name: Name, cut: impl FnOnce() -> bool) {
        let runtime = self.array.runtime();
        runtime.with_open_files(|_| match self.shared_if_open(attribute) {
            Some(shared) => {
                self.table.set_state(&self.array, attribute.inode, InodeState::Orphan);
                shared.unlinked.store(name as u32, Ordering::Release);
            }
            None => {
                self.discard_if_kept(attribute, name);
                let Ok(record) = self.record(attribute) else { return };
                self.note_freed(attribute, record.size);
                self.table.free(&self.array, attribute.inode);
                self.remove_sums(attribute);
                self.forget_left(key(attribute.inode, attribute.generation), name);
                if self.is_kept(attribute) && !cut() {
                    runtime.recall_idle();
                }
            }
        });
    }

    /// Notes that a file that had no name has one now (O_TMPFILE and linkat). If nobody has it open
    /// and its record is free or another file's, that stays: its last user has just closed it.
    pub fn linked(&self, attribute: Attribute) {
        self.array.runtime().with_open_files(|_| {
            let shared = self.shared_if_open(attribute);
            if shared.is_some() || self.state_of(attribute) == Some(InodeState::Orphan) {
                self.table.set_state(&self.array, attribute.inode, InodeState::Used);
            }
            if let Some(shared) = shared {
                let name = Name::of(&shared.unlinked);
                shared.unlinked.store(Name::Has as u32, Ordering::Release);
                self.discard_if_kept(attribute, name);
            }
        });
    }

    pub(crate) fn shared_if_open(&self, attribute: Attribute) -> Option<&array::SharedFile> {
        self.array
            .runtime()
            .find_file(key(attribute.inode, attribute.generation))
            .filter(|shared| shared.users.load(Ordering::Acquire) != 0)
    }

    /// How much of a file the members have, without what waits for it in the journal.
    pub fn size_on_members(&self, attribute: Attribute) -> Result<u64, OsError> {
        match self.shared_if_open(attribute) {
            Some(shared) => Ok(shared.size()),
            None => self.record(attribute).map(|record| record.size),
        }
    }

    /// How long each backing file of a file must be at least.
    ///
    /// # Errors
    /// `IO` if the inode table does not know the file.
    pub fn backing_bytes(&self, attribute: Attribute) -> Result<u64, OsError> {
        let bytes = self.size_on_members(attribute)?;
        Ok(self.record(attribute)?.geometry().member_bytes(bytes))
    }

    /// Forgets a pending time of an open file: the program has set another one.
    pub fn discard_pending_times(&self, attribute: Attribute) {
        if let Some(shared) = self.shared_if_open(attribute) {
            shared.modified_ns.store(0, Ordering::Release);
        }
    }

    /// Runs the system call that forks, so that the child finds all of this process' open files its
    /// own. `fork` returns what the kernel returned: in the child 0.
    pub fn around_fork(&self, fork: impl Fn() -> isize) -> isize {
        if dax::parked::lacks_numbers() {
            self.free_descriptors();
        }
        let result = self.around_one_fork(&fork);
        if result < 0 && dax::parked::has_refused_fork() && self.keep_descriptors() {
            return self.around_one_fork(fork);
        }
        result
    }

    /// Gives all backing files descriptors again, and tells whether there were numbers for that.
    fn keep_descriptors(&self) -> bool {
        let held = self.held.lock();
        let inodes = held.open.values().flat_map(Opened::sets).chain(held.idle.kept());
        let backings = inodes.flat_map(|inode| inode.backing.iter().flatten());
        let tables = self.table.files().chain(self.backings.files()).chain(self.lanes.files());
        backings.chain(tables).try_for_each(Backing::keep_without_place).is_ok()
    }

    /// Forks once, with the locks of rules and of open files held.
    fn around_one_fork(&self, fork: impl FnOnce() -> isize) -> isize {
        let runtime = self.array.runtime();
        let _rules = self.policy.hold();
        let Held { open, idle } = &mut *self.held.lock();
        for opened in open.values() {
            runtime.promise_file(opened.inode.entry);
        }
        let result = fork();
        if result == 0 && runtime.is_elsewhere() {
            open.values().for_each(|opened| runtime.withdraw_promise(opened.inode.entry));
            runtime.stand_aside();
            idle.abandon();
            return result;
        }
        if result == 0 && !runtime.all_begun().is_empty() {
            // Before the child looks at anything: a member may have joined that its parent does not
            // reach, which may be gone by now. And while it is attached, a member that it does not
            // reach does not join.
            let _ = runtime.me();
        }
        for opened in open.values() {
            match result {
                0 => {
                    runtime.claim_file(opened.inode.entry);
                    if opened.shown_count != 0 {
                        runtime.begin_showing(opened.inode.entry);
                    }
                }
                ..0 => runtime.withdraw_promise(opened.inode.entry),
                _ => {}
            }
        }
        if result == 0 {
            idle.abandon();
        }
        result
    }

    /// Runs `visit` on every file this process has open.
    pub fn for_each_open(&self, mut visit: impl FnMut(&Inode)) {
        self.held.lock().open.values().for_each(|opened| visit(&opened.inode));
    }

    /// Runs `visit` on every set of descriptors of open files ([`Opened::sets`]).
    pub(crate) fn for_each_set(&self, mut visit: impl FnMut(&Inode)) {
        self.held.lock().open.values().flat_map(Opened::sets).for_each(|inode| visit(inode));
    }

    /// Gives files what closing them would, but keeps them open: the process is about to execute
    /// another program, which may close them unseen. Files that other processes have open too are
    /// theirs to care for.
    pub fn settle(&self) {
        let Held { open, .. } = &mut *self.held.lock();
        for inode in open.values().map(|opened| &opened.inode) {
            inode.settle();
        }
    }

    /// What a process does as its last act while other threads of it may still be writing: it goes
    /// on to hold what it holds, until the kernel has ended these threads, too, and others find it
    /// dead.
    pub fn leave_to_others(&self) {
        self.for_each_open(|inode| _ = inode.flush_times());
    }

    /// Closes everything this process has open, as its last act. No other thread of it runs.
    /// `may_end_use`: the kernel does not end the process for a system call that it has not made
    /// before.
    pub fn leave(&self, may_end_use: bool) {
        let runtime = self.array.runtime();
        let Held { open, .. } = &mut *self.held.lock();
        for opened in open.values() {
            let inode = &opened.inode;
            let is_present = inode.flush_times();
            runtime.with_open_files(|_| {
                let last = runtime.leave_file(inode.entry);
                if last && inode.name() != Name::Has {
                    self.free(inode);
                } else if last {
                    let _ = inode.with_size_locked(|_| inode.lock_all_stripes().map(|_held| inode.trim(is_present)));
                }
            });
        }
        self.give_back_lanes(open.values().map(|opened| &*opened.inode));
        if may_end_use {
            self.array.end_use_if_last();
        }
        runtime.detach();
    }

    /// Detaches from the array; what is open stays so.
    pub fn detach(&self) {
        self.for_each_open(|inode| _ = inode.flush_times());
        self.discard_idle();
        self.give_back_lanes(self.held.lock().open.values().map(|opened| &*opened.inode));
        self.array.end_use_if_last();
        self.array.runtime().detach();
    }
}

/// Whether files may be parked: a filter of system calls may end the process for those that it takes.
pub(crate) fn may_park() -> bool {
    !array::runtime::is_filtered()
}

impl Inode {
    pub(crate) fn key(&self) -> u64 {
        key(self.number, self.generation)
    }
}
