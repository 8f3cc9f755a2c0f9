//! What a member that is made anew is to hold of the files, and how much of it is still to be
//! computed.
//!
//! The inode tables say of each file which members have lost its bytes ([`format::Resync`]). A
//! member that comes back empty has lost the bytes of all files. So how far its rebuild has come is
//! known at any instant, and survives every crash: a file whose record still says that the member
//! has lost it waits, and every other file is done.
//!
//! Invariants: a file's note is durable on all members in use before the member may count as in
//! sync (`array::fill`), and goes only when the bytes are there (`resync`).

use crate::files::Files;
use crate::inode::{key, number_of};
use crate::nameless::Name;
use alloc::vec::Vec;
use array::runtime::ANSWER_STEP;
use array::{Array, SharedFile};
use core::sync::atomic::Ordering;
use format::{
    Attribute, INODE_RECORD_BYTES, InodeRecord, InodeState, Resync, TABLE_HEADER_BYTES, TableKind, inode_record_offset,
};
use medium::Medium;
use sync::{Acquired, Liveness as _};
use sys::OsError;
use sys::rustix::fs::{Stat, Timespec, Timestamps, syncfs};
use sys::rustix::io::{pread, pwrite};
use units::{MemberSet, Slot};

/// A note by which no bytes wait but those that members have lost: where the member does not come back after all, the note costs nothing.
pub(crate) const NO_BYTES: Resync = Resync { start: u64::MAX, end: 1, lost: MemberSet::EMPTY };
/// Bytes of a table that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// A file that has bytes on some member that are to be computed from the other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unbuilt {
    /// The file.
    pub attribute: Attribute,
    /// Its size in bytes.
    pub bytes: u64,
    /// The members that have lost its bytes.
    pub lost: MemberSet,
}

/// Why a member could not join while programs run. It is out, as before.
#[derive(Debug)]
pub enum Refusal {
    /// Processes, by pid, that started before the member was begun, or cannot open it.
    Unreached(Vec<u32>),
    /// A process has a file open that was made without a name, or could not be kept when it lost its last one: no path leads to
    /// it on the other members.
    Nameless,
    /// A process holds a lock of the array for long, or has taken the member out.
    Busy,
    /// A file that another member still lacks would be lost.
    Unbuilt,
    /// A system call or the memory of a member failed.
    Os(OsError),
}

impl From<OsError> for Refusal {
    fn from(error: OsError) -> Self {
        if error == OsError::AGAIN { Self::Busy } else { Self::Os(error) }
    }
}

/// How often it is asked for the size lock of an open file before a member does not join for now.
const SIZE_LOCK_STEPS: u32 = 20_000;
/// Records that are copied under one hold of the inode lock.
const COPY_COUNT: u64 = 256;

/// A member joins while programs run.
impl Files {
    /// Brings a member into use that is out, was begun while programs ran, and has all names of the others. Its bytes of every file are noted as lost, and
    /// its table of inodes becomes the others'. Files that are open go on without it.
    ///
    /// The caller has the namespace lock, so no file is made meanwhile, and keeps others from attaching. Programs read and write meanwhile; opening and closing
    /// files waits. If this process dies in here, the member is out as before, or in use like any member that is being rebuilt.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn join(&self, slot: Slot) -> Result<(), Refusal> {
        let (array, runtime) = (self.array(), self.array().runtime());
        array.before_change()?;
        runtime.with_open_files(|_| {
            self.require_names_held()?;
            let is_kept = |shared: &SharedFile| matches!(Name::of(&shared.unlinked), Name::Lost | Name::Kept);
            let lacks = |(key, _): (u64, &SharedFile)| self.attribute_of(key).is_some_and(|file| !self.has_orphan(slot, file));
            if runtime.open_files().filter(|(_, shared)| is_kept(shared)).any(lacks) {
                // It was linked after the others were given to the member.
                return Err(Refusal::Busy);
            }
            self.require_loss_borne(slot)
                .map_err(|error| if error == OsError::BUSY { Refusal::Unbuilt } else { error.into() })?;
            self.make_room_on(slot)?;
            runtime.with_inodes(|_| runtime.begin_joining(slot));
            let joined = self.join_held(slot);
            // What was not taken in gets no more stores.
            runtime.end_joining(MemberSet::EMPTY.with(slot));
            joined
        })
    }

    /// Asks whether every open file can be given to a member that joins.
    ///
    /// # Errors
    /// [`Refusal::Nameless`].
    pub fn require_names(&self) -> Result<(), Refusal> {
        self.array().runtime().with_open_files(|_| self.require_names_held())
    }

    /// Does as [`Self::require_names`]; the open-files lock is held.
    fn require_names_held(&self) -> Result<(), Refusal> {
        let is_apart = |shared: &SharedFile| matches!(Name::of(&shared.unlinked), Name::None | Name::Never);
        if self.array().runtime().open_files().any(|(_, shared)| is_apart(shared)) { Err(Refusal::Nameless) } else { Ok(()) }
    }

    /// The open-files lock is held, and the member is joining.
    fn join_held(&self, slot: Slot) -> Result<(), Refusal> {
        let (array, runtime, table) = (self.array(), self.array().runtime(), self.table());
        let one = MemberSet::EMPTY.with(slot);
        let unreached = runtime.not_reaching(slot);
        if !unreached.is_empty() {
            return Err(Refusal::Unreached(unreached));
        }
        // Before the notes: who makes an open file agree from now on leaves the note of this member.
        let mut open = Vec::new();
        for (key, shared) in runtime.open_files() {
            shared.without.fetch_or(one.bits(), Ordering::SeqCst);
            open.push((number_of(key), shared));
        }
        for &(number, _) in &open {
            table.add_resync(array, number, Resync { lost: one, ..NO_BYTES });
        }
        self.each_record(|number, record| {
            if record.size > 0 {
                table.add_resync(array, number, Resync { lost: one, ..NO_BYTES });
            }
            Ok(())
        })?;
        let reference = array.first_in_use()?;
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            for first in run.clone().step_by(COPY_COUNT as usize) {
                let batch = first..run.end.min(first + COPY_COUNT);
                runtime.with_inodes(|_| batch.into_iter().try_for_each(|number| self.copy_record(reference, slot, number)))?;
            }
        }
        // Sizes change under the size lock alone. Who had that of a file when the member began to join did not store to it.
        for (number, shared) in open {
            self.with_size_lock_soon(shared, || runtime.with_inodes(|_| self.copy_record(reference, slot, number)))?;
        }
        table.persist_all(array)?;
        let root = array.members()[slot].root().ok_or(OsError::NODEV)?;
        syncfs(root)?;
        array.join_member(slot)?;
        Ok(())
    }

    /// Gives a member another one's copy of a record, or the one that is right. The inode lock is held.
    fn copy_record(&self, reference: Slot, slot: Slot, number: u64) -> Result<(), OsError> {
        // Where no member has the record whole the new one gets what the reference has.
        let right = self.table().load_right(self.array(), number).or_else(|_| self.table().load_bytes(reference, number))?;
        self.table().store_bytes(slot, number, &right)
    }

    /// Runs `act` with the size lock of an open file held. A process that holds it for long, because somebody has stopped it, is not waited for: others would wait as well.
    fn with_size_lock_soon(&self, shared: &SharedFile, act: impl FnOnce() -> Result<(), OsError>) -> Result<(), Refusal> {
        let runtime = self.array().runtime();
        for _ in 0..SIZE_LOCK_STEPS {
            let is_left = || shared.size_lock.owner().is_some_and(|owner| !runtime.is_alive(owner));
            let is_taken = shared.size_lock.try_lock(runtime.me());
            if is_taken || is_left() {
                if !is_taken && shared.size_lock.lock(runtime.me(), runtime) == Acquired::Inherited {
                    // Whoever may write to the file makes good what the dead process left.
                    shared.tail_unfinished.store(1, Ordering::Relaxed);
                }
                let result = act();
                shared.size_lock.unlock();
                return Ok(result?);
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
        Err(Refusal::Busy)
    }

    /// Gives the table of a member that is out the length of the others', and space for every record of theirs.
    fn make_room_on(&self, slot: Slot) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let own = table.member(slot).ok_or(OsError::NODEV)?;
        let lengths = array.in_use().iter().filter_map(|other| table.member(other)).map(dax::Backing::bytes);
        let bytes = lengths.filter_map(Result::ok).max().unwrap_or(0);
        if own.bytes()? < bytes {
            own.set_len(bytes)?;
        }
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            own.allocate(inode_record_offset(run.start), (run.end - run.start) * INODE_RECORD_BYTES as u64)?;
        }
        Ok(())
    }
}

impl Files {
    /// The files that wait to be rebuilt.
    ///
    /// # Errors
    /// The kernel's error where a table cannot be read; `IO` if too many members have failed.
    pub fn unbuilt(&self) -> Result<Vec<Unbuilt>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            let lost = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
            if !lost.is_empty() {
                let attribute = Attribute { inode: number, generation: record.generation };
                found.push(Unbuilt { attribute, bytes: record.size, lost });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Whether programs have a file open that goes on without a member until they have closed it: it was open when the member
    /// joined, or a program stores through a mapping that shows another copy.
    #[must_use]
    pub fn goes_without(&self, attribute: Attribute) -> bool {
        let mapped = |key| self.array().runtime().mapped().of(key).any(|(record, _)| record.is_direct());
        self.shared_if_open(attribute).is_some_and(|shared| {
            let is_left_out = shared.cut.load(Ordering::Acquire) != 0;
            shared.without.load(Ordering::Acquire) != 0
                || is_left_out && self.array().geometry().copy_count() > 1 && mapped(key(attribute.inode, attribute.generation))
        })
    }

    /// Whether a file has no name and gets none any more: it is gone with the last process that has it open, or with the next start if none has.
    #[must_use]
    pub fn is_about_to_go(&self, attribute: Attribute) -> bool {
        match self.shared_if_open(attribute) {
            Some(shared) => Name::of(&shared.unlinked) == Name::Lost,
            None => self.state_of(attribute) == Some(InodeState::Orphan),
        }
    }

    /// The numbers of the inodes of files of which bytes wait for resync, but of those that members have lost: where the last use of the array was writing.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn waiting_for_resync(&self) -> Result<Vec<u64>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            if record.resync.is_some_and(|resync| resync.lost.is_empty()) {
                found.push(number);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Asks whether every file bears that a member, if it is out, loses its bytes for good. Nothing is changed.
    ///
    /// # Errors
    /// `BUSY` if some file still waits to be rebuilt on another member and does not bear this loss as well: its bytes could never be computed, and what the member holds may be all that is left of them. Otherwise as for
    /// [`Self::unbuilt`].
    pub fn require_loss_borne(&self, slot: Slot) -> Result<(), OsError> {
        let (array, lost) = (self.array(), MemberSet::EMPTY.with(slot));
        if array.in_use().contains(slot) {
            return Ok(());
        }
        self.each_record(|_, record| {
            let noted = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
            let out = array.runtime().out().union(noted).union(lost);
            if record.size == 0 || record.geometry().survives(out) { Ok(()) } else { Err(OsError::BUSY) }
        })
    }

    /// Notes of every file that a member, which is out, has lost its bytes. The caller is alone with the array, and nobody has a file open.
    ///
    /// # Errors
    /// As for [`Self::require_loss_borne`]; then nothing is noted.
    pub fn note_lost_everywhere(&self, slot: Slot) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let lost = MemberSet::EMPTY.with(slot);
        self.require_loss_borne(slot)?;
        array.before_change()?;
        self.each_record(|number, record| {
            if record.size > 0 {
                table.add_resync(array, number, Resync { lost, ..NO_BYTES });
            }
            Ok(())
        })?;
        table.persist_all(array)
    }

    /// Gives a member that is out, and has empty tables, the inode records of the others and their log of names. The caller is alone with the array.
    ///
    /// # Errors
    /// What the kernel says of the member; `IO` if its memory fails.
    pub fn copy_tables_to(&self, slot: Slot) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let own = table.member(slot).ok_or(OsError::NODEV)?;
        let reference = array.first_in_use()?;
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            own.allocate(inode_record_offset(run.start), (run.end - run.start) * INODE_RECORD_BYTES as u64)?;
            for number in run {
                // Where no member has the record whole the new one gets what the reference has.
                let right = table.load_right(array, number).or_else(|_| table.load_bytes(reference, number))?;
                table.store_bytes(slot, number, &right)?;
            }
        }
        own.persist(0, own.bytes()?)?;
        copy_body(array, reference, slot, TableKind::Names, format::NAMES_FILE)?;
        // A member whose table of backing files does not name itself is one that was copied, or has just been made.
        self.backings().renew(array, array.in_use().with(slot));
        self.backings().believe(array);
        Ok(())
    }

    /// Gives a member what another one holds in its log of names. The namespace lock is held.
    ///
    /// # Errors
    /// What the kernel says of either member.
    pub fn copy_name_log(&self, from: Slot, to: Slot) -> Result<(), OsError> {
        copy_body(self.array(), from, to, TableKind::Names, format::NAMES_FILE)
    }

    /// Makes the copies of inode records that differ, or do not fit their checks, the one that is right, for files that nobody has open.
    ///
    /// # Errors
    /// `IO` if too many members have failed.
    pub fn mend_records(&self) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let mut odd = Vec::new();
        table.each_odd(array, |number, _| {
            odd.push(number);
            Ok(())
        })?;
        for number in odd {
            // Nobody opens the file meanwhile.
            array.runtime().with_open_files(|_| match table.load(array, number) {
                Ok(Some(record)) if self.is_open(Attribute { inode: number, generation: record.generation }) => Ok(()),
                _ => table.mend(array, number),
            })?;
        }
        table.persist_all(array)
    }

    /// The files that have bytes.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn with_bytes(&self) -> Result<Vec<Attribute>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            if record.size > 0 {
                found.push(Attribute { inode: number, generation: record.generation });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// How many bytes files have.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn bytes(&self) -> Result<u64, OsError> {
        let mut bytes = 0u64;
        self.each_record(|_, record| {
            bytes = bytes.saturating_add(record.size);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `visit` with every record that is a file's, until it gives an error.
    fn each_record(&self, mut visit: impl FnMut(u64, InodeRecord) -> Result<(), OsError>) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            for number in run {
                let Some(record) = table.load(array, number)? else { continue };
                debug_assert_ne!(record.state, InodeState::Free);
                visit(number, record)?;
            }
        }
        Ok(())
    }
}

/// When a file was last read and written.
#[must_use]
pub const fn times_of(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as i64 },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 },
    }
}

/// Copies what a table under `.cxlraid` holds behind its header from one member to another. Nobody stores into either.
fn copy_body(array: &Array, from: Slot, to: Slot, kind: TableKind, name: &core::ffi::CStr) -> Result<(), OsError> {
    let tables = crate::table::open_tables(array, kind, name)?;
    let (Some(Some(source)), Some(Some(target))) = (tables.get(from), tables.get(to)) else { return Ok(()) };
    let mut buffer = alloc::vec![0u8; COPY_BYTES];
    let mut offset = TABLE_HEADER_BYTES as u64;
    loop {
        let count = pread(source.fd(), &mut buffer[..], offset)?;
        if count == 0 {
            return target.persist(0, target.bytes()?);
        }
        let mut done = 0;
        while done < count {
            done += pwrite(target.fd(), &buffer[done..count], offset + done as u64)?;
        }
        offset += count as u64;
    }
}
