//! A member comes into use while programs run, from the side of files: notes of the bytes that it
//! lacks, its inode records, and the files that are open, which go on without it
//! (`array::SharedFile::without`).
//!
//! Invariants:
//! - an open file says that it goes on without the member before its bytes on the member are noted
//!   as lost: whoever makes the file agree from then on leaves that note;
//! - from the beginning of the join on, every change of an inode record is stored on the member too
//!   (`table`), and each record is copied after that: no change is missed;
//! - the member comes into use when all that it holds is durable;
//! - marks of changed files are read once more when it is in use ([`Files::note_late_marks`]): from
//!   then on nobody changes a file without it.

use crate::files::Files;
use crate::inode::number_of;
use crate::nameless::Name;
use crate::rebuild::{KeptFiles, NO_BYTES, lacks};
use crate::unfinished::note_dead_owner;
use alloc::vec::Vec;
use array::runtime::ANSWER_STEP;
use array::{Marks, SharedFile};
use core::sync::atomic::Ordering;
use format::{INODE_RECORD_BYTES, Resync, inode_record_offset};
use medium::Medium;
use sync::{Acquired, Liveness as _};
use sys::OsError;
use sys::rustix::fs::syncfs;
use units::{MemberSet, Slot};

/// Why a member could not join while programs run. It is out, as before.
#[derive(Debug)]
pub enum Refusal {
    /// Processes, by pid, that started before the member was begun, or cannot open it.
    Unreached(Vec<u32>),
    /// A process has a file open that was made without a name, or could not be kept when it lost
    /// its last one: no path leads to it on the other members.
    Nameless,
    /// A process holds a lock of the array for long, or has taken the member out.
    Busy,
    /// A file would be lost that another member still lacks, or that does not bear the loss of what
    /// this one held.
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

impl Files {
    /// Brings a member into use that is out, was begun while programs ran, and has all names of the
    /// others. Its bytes of every file are noted as lost, and its table of inodes becomes the
    /// others'. Files that are open go on without it.
    ///
    /// A member that comes back keeps the files in `kept` of which no byte changed.
    ///
    /// The caller has the namespace lock, so no file is made meanwhile, and keeps others from
    /// attaching. Programs read and write meanwhile; opening and closing files waits. If this
    /// process dies in here, the member is out as before, or in use like any member that is being
    /// rebuilt.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn join(&self, slot: Slot, kept: Option<&KeptFiles>) -> Result<(), Refusal> {
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
            self.require_loss_borne(slot, kept.is_some())
                .map_err(|error| if error == OsError::BUSY { Refusal::Unbuilt } else { error.into() })?;
            self.make_room_on(slot)?;
            runtime.with_inodes(|_| runtime.begin_joining(slot));
            let joined = self.join_held(slot, kept);
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
    fn join_held(&self, slot: Slot, kept: Option<&KeptFiles>) -> Result<(), Refusal> {
        let (array, runtime, table) = (self.array(), self.array().runtime(), self.table());
        let one = MemberSet::EMPTY.with(slot);
        let unreached = runtime.not_reaching(slot);
        if !unreached.is_empty() {
            return Err(Refusal::Unreached(unreached));
        }
        // What the member holds of a file that does not bear its loss is all that there is: such a
        // file is not to go on without the member, or to be noted as lost on it.
        for (key, _) in runtime.open_files() {
            if let Some(record) = table.load(array, number_of(key))? {
                self.require_loss_borne_of(&record, slot).map_err(|_| Refusal::Unbuilt)?;
            }
        }
        // Before the notes: who makes an open file agree from now on leaves the note of this
        // member.
        let mut open = Vec::new();
        for (key, shared) in runtime.open_files() {
            shared.without.fetch_or(one.bits(), Ordering::SeqCst);
            open.push((number_of(key), shared));
        }
        for &(number, _) in &open {
            table.add_resync(array, number, Resync { lost: one, ..NO_BYTES });
        }
        // Nobody has another file open, so nobody marks one now; who died in the middle of a change
        // is named by a lane.
        if kept.is_some() {
            array.mark_under_way(MemberSet::EMPTY);
        }
        let marks = kept.map(|_| array.changed_without(slot)).transpose()?;
        let kept = kept.zip(marks.as_ref());
        self.each_record(
            |number, record| {
                if lacks(kept, number, &record) { self.require_loss_borne_of(&record, slot) } else { Ok(()) }
            },
        )
        .map_err(|error| if error == OsError::BUSY { Refusal::Unbuilt } else { error.into() })?;
        self.each_record(|number, record| {
            if lacks(kept, number, &record) {
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
        // Sizes change under the size lock alone. Who had that of a file when the member began to
        // join did not store to it.
        for (number, shared) in open {
            self.with_size_lock_soon(shared, || runtime.with_inodes(|_| self.copy_record(reference, slot, number)))?;
        }
        table.persist_all(array)?;
        let root = array.members()[slot].root().ok_or(OsError::NODEV)?;
        syncfs(root)?;
        let joined = array.join_member(slot);
        // Also where the join is not on record yet: the next change of any program puts it there.
        if let Some((files, marks)) = kept
            && array.in_use().contains(slot)
        {
            let noted = self.note_late_marks(slot, files, marks);
            if noted.is_err() {
                // The member may lack bytes that nothing tells of.
                let failed = array.fail_member(slot);
                array.before_change()?;
                failed?;
            }
            noted?;
        }
        Ok(joined?)
    }

    /// Notes the bytes of files as lost, durably, that were marked since `marks` were read, or of
    /// which a change is under way: a member that keeps `files` has come into use.
    fn note_late_marks(&self, slot: Slot, files: &KeptFiles, marks: &Marks) -> Result<(), OsError> {
        let array = self.array();
        array.mark_under_way(MemberSet::EMPTY);
        let late = array.changed_without(slot)?;
        self.each_record(|number, record| {
            if !lacks(Some((files, marks)), number, &record) && lacks(Some((files, &late)), number, &record) {
                self.require_loss_borne_of(&record, slot)?;
                self.table().add_resync(array, number, Resync { lost: MemberSet::EMPTY.with(slot), ..NO_BYTES });
            }
            Ok(())
        })?;
        self.table().persist_all(array)
    }

    /// Gives a member another one's copy of a record, or the one that is right. The inode lock is
    /// held.
    fn copy_record(&self, reference: Slot, slot: Slot, number: u64) -> Result<(), OsError> {
        // Where no member has the record whole the new one gets what the reference has.
        let right = self.table().load_right(self.array(), number).or_else(|_| self.table().load_bytes(reference, number))?;
        self.table().store_bytes(slot, number, &right)
    }

    /// Runs `act` with the size lock of an open file held. A process that holds it for long,
    /// because somebody has stopped it, is not waited for: others would wait as well.
    fn with_size_lock_soon(&self, shared: &SharedFile, act: impl FnOnce() -> Result<(), OsError>) -> Result<(), Refusal> {
        let runtime = self.array().runtime();
        for _ in 0..SIZE_LOCK_STEPS {
            let is_left = || shared.size_lock.owner().is_some_and(|owner| !runtime.is_alive(owner));
            let is_taken = shared.size_lock.try_lock(runtime.me());
            if is_taken || is_left() {
                if !is_taken && shared.size_lock.lock(runtime.me(), runtime) == Acquired::Inherited {
                    // Whoever may write to the file makes good what the dead process left.
                    note_dead_owner(shared);
                }
                let result = act();
                shared.size_lock.unlock();
                return Ok(result?);
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
        Err(Refusal::Busy)
    }

    /// Gives the table of a member that is out the length of the others', and space for every
    /// record of theirs.
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
