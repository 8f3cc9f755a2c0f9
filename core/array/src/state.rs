//! Answers about an array in use: what its members are and which of them are out. This module also
//! keeps the rule that nothing is modified before a missing member is on record.

use crate::checked::Rot;
use crate::error::describe;
use crate::member::{Member, Standing, has_failed, show};
use crate::{Array, Config, Runtime, Tell, needed};
use alloc::string::String;
use alloc::vec::Vec;
use format::{Access, ArrayName, MemberState, TableHeader, TableKind, Uuid};
use layout::Geometry;
use sys::{AsFd as _, OsError};
use units::{MemberSet, Slot};

impl Member {
    /// What superblocks say of this member once it is out.
    pub(crate) fn state_when_out(&self) -> MemberState {
        match self.standing {
            Standing::InSync | Standing::Damaged | Standing::Emptied | Standing::Failed => MemberState::Failed,
            Standing::Missing | Standing::Leaving => MemberState::Missing,
            Standing::Stale | Standing::Replaced => MemberState::Stale,
        }
    }

    /// The path as text for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        show(&self.path)
    }
}

impl Array {
    /// The configuration it was attached with.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The level, chunk and number of members of files for which no rule says otherwise. A file's
    /// own are `file::Inode::geometry` and `format::InodeRecord::geometry`, which may be others:
    /// nothing that concerns a file's bytes goes by this one.
    #[must_use]
    pub const fn default_geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Tells whether the array as a whole goes on without these members, by its own level. A file
    /// may bear less ([`crate::rules`]): its own geometry says so.
    #[must_use]
    pub fn bears(&self, out: MemberSet) -> bool {
        self.geometry.survives(out)
    }

    /// Its uuid.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> ArrayName {
        self.name
    }

    /// Who may use the array.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Its members, by slot.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What its processes share.
    #[inline]
    #[must_use]
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Whether attaching created it.
    #[must_use]
    pub const fn was_created(&self) -> bool {
        self.created
    }

    /// Whether no other process was attached when this one was.
    #[must_use]
    pub const fn was_alone(&self) -> bool {
        self.alone
    }

    /// The members in use.
    #[inline]
    #[must_use]
    pub fn in_use(&self) -> MemberSet {
        MemberSet::first(self.members.len()).minus(self.runtime.out())
    }

    /// The member whose answers count: the lowest in use, of those that did not join later than
    /// another one. What programs have open lies on it: directories, pipes, sockets, files. A
    /// member that joined has these as well, but as other things.
    #[inline]
    pub fn first_in_use(&self) -> Result<Slot, OsError> {
        self.runtime.first_of(self.in_use()).ok_or(OsError::IO)
    }

    /// These members, those that have joined later than others last.
    pub fn in_order(&self, members: MemberSet) -> impl Iterator<Item = Slot> + use<> {
        let first = members.minus(self.runtime.behind());
        first.iter().chain(members.minus(first).iter())
    }

    /// Asks the member whose answers count; one whose memory or file system turns out to have
    /// failed goes out, and the next is asked.
    ///
    /// # Errors
    /// What a living member answers; `IO` if too many have failed.
    pub fn asking_first<T>(&self, ask: impl Fn(Slot) -> Result<T, OsError>) -> Result<T, OsError> {
        loop {
            let slot = self.first_in_use()?;
            match ask(slot) {
                Err(error) if self.has_member_failed(slot, error) => self.spare(slot, error)?,
                result => return result,
            }
        }
    }

    /// Whether an error of a call on a member says that the member's file system has failed, not
    /// that it refuses: also that it has made itself read-only, if the call is one that changes
    /// something or opens for that.
    #[must_use]
    pub fn has_member_failed(&self, slot: Slot, error: OsError) -> bool {
        let root = || self.members.get(slot).and_then(Member::root);
        has_failed(error) || error == OsError::ROFS && root().is_some_and(|root| crate::is_read_only(root.as_fd()))
    }

    /// Takes a member out that has failed with `error`.
    ///
    /// # Errors
    /// `IO` if it cannot be spared. If it takes no changes, but can be read, and cannot be spared,
    /// it stays, and the result is `error`.
    pub fn spare(&self, slot: Slot, error: OsError) -> Result<(), OsError> {
        if has_failed(error) { self.fail_for(slot, || Some(describe(error))) } else { self.do_without(slot, error) }
    }

    /// Judges by the result of a call on a member: a member whose call has failed goes out. What
    /// speaks of the process that made the call ([`crate::is_of_process`]) is handed on, and no
    /// member goes out for it.
    ///
    /// # Errors
    /// The error of the call, if it speaks of the process; `IO` if the member cannot be spared.
    pub fn after_call(&self, slot: Slot, result: Result<(), OsError>) -> Result<(), OsError> {
        match result {
            Err(error) if crate::is_of_process(error) => Err(error),
            Err(error) => self.fail_for(slot, || Some(describe(error))),
            Ok(()) => Ok(()),
        }
    }

    /// Whether the array can be changed without the members in `out`, which are stale for good
    /// then: also what a member that is being rebuilt needs to be whole can be done without them.
    #[must_use]
    pub fn is_enough_without(&self, out: MemberSet) -> bool {
        needed::is_enough(&self.geometry, &self.members, out, self.runtime.rebuilding())
    }

    /// Takes a member out if the others can do without it.
    ///
    /// # Errors
    /// `error` if they cannot: the member stays, for who gets along with it.
    pub fn do_without(&self, slot: Slot, error: OsError) -> Result<(), OsError> {
        let out = self.runtime.out().union(MemberSet::EMPTY.with(slot));
        if self.is_enough_without(out) { self.fail_for(slot, || Some(describe(error))) } else { Err(error) }
    }

    /// Takes a member out, since a table of it is missing or is not the array's, if the others can
    /// do without it. The caller starts, or begins the member anew, and holds no lock of files or
    /// names, so the member can be asked which table that is.
    ///
    /// # Errors
    /// `IO` if the others cannot do without it.
    pub fn do_without_table(&self, slot: Slot) -> Result<(), OsError> {
        let out = self.runtime.out().with(slot);
        let flaw = || self.members[slot].meta().and_then(|meta| crate::tables::flaw(meta, self.uuid, self.runtime.use_count()));
        if self.is_enough_without(out) { self.fail_for(slot, flaw) } else { Err(OsError::IO) }
    }

    /// Called before anything on the array is modified: puts members that are out on record, and
    /// that the array is in use again, once.
    #[inline]
    pub fn before_change(&self) -> Result<(), OsError> {
        if self.runtime.out_unrecorded().is_empty() && self.runtime.is_use_recorded() { Ok(()) } else { self.put_on_record() }
    }

    #[cold]
    fn put_on_record(&self) -> Result<(), OsError> {
        self.runtime.note_change();
        self.recording(|| {
            loop {
                if !self.runtime.out_unrecorded().is_empty() {
                    self.record_out()?;
                }
                if !self.runtime.is_use_recorded() {
                    self.record_use()?;
                }
                // Another process may have taken a member out meanwhile. A process that may not
                // write superblocks leaves the use unrecorded.
                if self.runtime.out_unrecorded().is_empty() {
                    return Ok(());
                }
            }
        })
    }

    /// Ends a use of the array in which something was changed: the event counts are raised as at
    /// the beginning of one, so that a member that was copied meanwhile is stale when the copy is
    /// put in its place. Members that are missing and not on record as that stay what they are:
    /// then nothing is raised. `is_clean`: nothing waits to be made good, and all that the members
    /// hold is durable; then the next start, if that is the next change, compares nothing. The
    /// caller has the array alone.
    ///
    /// # Errors
    /// What the kernel says where superblocks cannot be written.
    pub fn end_use(&self, is_clean: bool) -> Result<(), OsError> {
        let is_recorded = || self.runtime.out_unrecorded().is_empty();
        self.recording(|| if is_recorded() { self.record_end(is_clean) } else { Ok(()) })
    }

    /// Ends a use as [`Self::end_use`] does, without the mark of an orderly end, if this process is
    /// the last that has the array and something was changed in this use. The process is about to
    /// detach. If the superblocks cannot be written now, they stay as they are: that is no reason
    /// to stay attached.
    pub fn end_use_if_last(&self) {
        let is_changed = self.runtime.is_use_recorded() || !self.runtime.join_unrecorded().is_empty();
        if is_changed && self.runtime.out_unrecorded().is_empty() {
            let end = || {
                self.record_joins();
                self.record_end(false)
            };
            self.runtime.if_last(|| self.runtime.with_free_superblocks(|| _ = end()));
        }
    }

    /// Takes a member out of use because its memory or file system failed. Fails if the array does
    /// not bear that.
    #[cold]
    pub fn fail_member(&self, slot: Slot) -> Result<(), OsError> {
        self.fail_for(slot, || None)
    }

    /// Takes a member out as [`Self::fail_member`] does. `why` gives the reason that is told, if it
    /// is known. The caller may hold locks that other programs wait for, so `why` does not ask a
    /// device that may not answer.
    #[cold]
    fn fail_for(&self, slot: Slot, why: impl FnOnce() -> Option<String>) -> Result<(), OsError> {
        self.runtime.note_disorder(MemberSet::EMPTY.with(slot));
        if !self.runtime.add_out(MemberSet::EMPTY.with(slot)).is_empty() && self.runtime.claim_telling(slot) {
            (self.tell.loss)(&self.members[slot], why().as_deref());
        }
        if self.geometry.survives(self.runtime.out()) { Ok(()) } else { Err(OsError::IO) }
    }

    /// Takes a member out of use that has not what it must have at a logical path: the others prove
    /// it.
    ///
    /// # Errors
    /// `IO` if the others cannot do without it: it stays.
    #[cold]
    pub fn fail_without_name(&self, slot: Slot, path: &[u8]) -> Result<(), OsError> {
        let lost = MemberSet::EMPTY.with(slot);
        if !self.is_enough_without(self.runtime.out().union(lost)) {
            self.tell_difference(slot, path);
            return Err(OsError::IO);
        }
        self.runtime.note_disorder(lost);
        if !self.runtime.add_out(lost).is_empty() && self.runtime.claim_telling(slot) {
            (self.tell.lost_name)(&self.members[slot], path);
        }
        Ok(())
    }

    /// Takes the members out that this process found missing and others still reach, in order:
    /// `settle` makes good what dead processes left, with the members' help. No lock is held.
    pub fn let_go(&self, settle: impl Fn()) {
        let leaving: MemberSet =
            self.members.iter().filter(|member| member.standing == Standing::Leaving).map(|member| member.slot).collect();
        if !leaving.minus(self.runtime.out()).is_empty() {
            settle();
            self.let_members_go(leaving, |_| true, settle);
        }
    }

    /// Takes a member out of use that works, in order as [`Self::let_go`] does, and puts that on
    /// record if the others can do without it. The caller tells of it. No lock is held.
    /// `may_be_out` is asked of the members that would be out then, when no other process can take
    /// one out in order.
    ///
    /// # Errors
    /// `BUSY` if `may_be_out` does not hold: the member stays. What the kernel says where
    /// superblocks cannot be written.
    pub fn take_out(&self, slot: Slot, may_be_out: impl Fn(MemberSet) -> bool, settle: impl Fn()) -> Result<(), OsError> {
        let is_ours_to_tell = self.runtime.claim_telling(slot);
        settle();
        if !self.let_members_go(MemberSet::EMPTY.with(slot), may_be_out, settle) {
            if is_ours_to_tell {
                self.runtime.give_back_telling(slot);
            }
            return Err(OsError::BUSY);
        }
        if self.is_enough_without(self.runtime.out()) { self.before_change() } else { Ok(()) }
    }

    /// Returns the array, which from now on tells what happens to its members by these functions.
    #[must_use]
    pub fn telling(self, tell: Tell) -> Self {
        Self { tell, ..self }
    }

    /// Tells that damaged records of a member's table of inodes were made anew from other members'.
    #[cold]
    pub fn tell_mend(&self, slot: Slot) {
        (self.tell.mend)(&self.members[slot]);
    }

    /// Whether a file in a member's `.cxlraid` shuts out users whom the array is open to.
    #[must_use]
    pub fn is_shut(&self, slot: Slot, name: &core::ffi::CStr) -> bool {
        self.members[slot].meta().is_some_and(|meta| crate::access::is_shut(meta, name, self.access))
    }

    /// Tells that a file is refused, since a member's backing file at a host path is too short, and
    /// the others in use cannot give what is missing.
    #[cold]
    pub fn tell_short(&self, slot: Slot, host_path: &[u8]) {
        (self.tell.short)(&self.members[slot], host_path);
    }

    /// Tells that a read has met a block that does not fit its sum, in a member's backing file at a
    /// host path.
    #[cold]
    pub fn tell_rot(&self, slot: Slot, host_path: &[u8], rot: &Rot) {
        let (member, Some(block)) = (&self.members[slot], rot.block) else { return };
        let path = host_path.strip_prefix(&*member.path).filter(|path| path.starts_with(b"/")).unwrap_or(host_path);
        let uuid = alloc::format!("{}", self.uuid);
        let array = if self.config.name.is_empty() { &uuid } else { &self.config.name };
        let (shown, offset, place) = (show(path), block.offset, member.shown());
        let text = match rot.is_lost {
            false => alloc::format!(
                "{shown}: array {array}: at offset {offset} {place} does not fit its checksum; the bytes were read from the other members; 'cxlraid scrub --repair' mends it"
            ),
            true => alloc::format!(
                "{shown}: array {array}: the bytes at offset {offset} cannot be read (EIO): {place} does not fit its checksum, and the other members in use do not give what it was; bring back members that are out, or put the file back from a backup; 'cxlraid scrub' lists all that is wrong"
            ),
        };
        (self.tell.rot)(member, path, rot, &text);
    }

    /// Asks whether to go on computing what members have lost of a file: `bytes` of the file come
    /// next. `is_waited_for` says whether somebody waits for a lock of the file, which the caller
    /// holds.
    pub fn goes_on_computing(&self, bytes: u64, is_waited_for: &dyn Fn() -> bool) -> bool {
        (self.tell.computing)(bytes, is_waited_for)
    }

    /// Whether a user is root or the array's owner, who may change everything on the members.
    #[must_use]
    pub fn trusts(&self, uid: u32) -> bool {
        [0, self.access.owner_uid].contains(&uid)
    }

    /// Tells that a call is refused since a member has other names at a logical path.
    #[cold]
    pub fn tell_difference(&self, slot: Slot, path: &[u8]) {
        (self.tell.difference)(&self.members[slot], path);
    }

    /// Tells that the file at a logical path is refused, since a crash has taken its record.
    #[cold]
    pub fn tell_unrecorded(&self, path: &[u8]) {
        (self.tell.unrecorded)(path);
    }

    /// Makes the table `name` under a member's `.cxlraid`, which is missing because a program
    /// without it made the member, or gives it a new header. It is marked as one of this use.
    ///
    /// # Errors
    /// `NODEV` if the member is missing.
    pub fn make_table(&self, slot: Slot, kind: TableKind, name: &core::ffi::CStr) -> Result<(), OsError> {
        let meta = self.members[slot].meta().ok_or(OsError::NODEV)?;
        self.runtime.with_superblocks(|| {
            let header = TableHeader::new(kind, self.uuid, self.members[slot].uuid, self.runtime.use_count());
            crate::superblock::make_table(meta, &header, name, self.access)
        })
    }

    /// Gives a member's inode table, whose records have their checks and are those of this use, the
    /// header that says so. A power cut meanwhile costs nothing. The process has the array alone.
    ///
    /// # Errors
    /// `NODEV` if the member is missing.
    pub fn upgrade_inodes(&self, slot: Slot) -> Result<(), OsError> {
        let meta = self.members[slot].meta().ok_or(OsError::NODEV)?;
        self.runtime.with_superblocks(|| {
            let header = TableHeader::new(TableKind::Inodes, self.uuid, self.members[slot].uuid, self.runtime.use_count());
            crate::tables::replace_header(meta, &header, self.access)
        })
    }

    /// Makes the directories of prefixes that were added to the configuration since the array was
    /// made, if this process may. One in which a member has something was not added, but lost by
    /// the others, and is left as it is.
    pub fn make_added_prefixes(&self) {
        use crate::superblock::{could_make, has_empty};
        let is_missing = |prefix: &&Vec<u8>| {
            let mut roots = self.in_use().iter().filter_map(|slot| self.members[slot].root());
            roots.next().is_some_and(|lowest| could_make(lowest, prefix))
                && roots.all(|root| has_empty(root, prefix) || could_make(root, prefix))
        };
        let is_made = |prefix: &Vec<u8>| self.make_directories(prefix).is_ok();
        // What cannot be made is missing, as it was.
        let _ = self.config.prefixes.iter().filter(is_missing).all(is_made);
    }

    /// Makes the missing directories on the way to `path` on every member in use.
    pub fn make_directories(&self, path: &[u8]) -> Result<(), OsError> {
        self.runtime.with_namespace(|_| {
            self.before_change()?;
            // Whom the array is open to, if it is not its maker's alone, has the directory as well.
            let access = (self.access.mode & 0o066 != 0).then_some(self.access);
            // The lowest last, which says what there is: whoever dies in between leaves it to the
            // next.
            let roots: Vec<_> = self.in_order(self.in_use()).filter_map(|slot| self.members[slot].root()).collect();
            for root in roots.into_iter().rev() {
                crate::superblock::make_directories(root, path, access)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_array::three_members;
    use layout::Level;
    use std::sync::Mutex;

    static TOLD: Mutex<String> = Mutex::new(String::new());

    #[test]
    fn the_cause_is_told_where_a_call_on_a_member_failed() {
        fn loss(_: &Member, why: Option<&str>) {
            *TOLD.lock().unwrap() = why.unwrap_or("no cause").into();
        }
        let (_home, config) = three_members("told-cause", Level::Raid5);
        let array = Array::attach(&config).unwrap().telling(Tell { loss, ..Tell::NOTHING });
        array.after_call(1, Err(OsError::IO)).unwrap();
        assert!(TOLD.lock().unwrap().contains("input/output error"), "{}", TOLD.lock().unwrap());
        std::fs::remove_file(crate::runtime::segment_path(array.uuid())).unwrap();
    }
}
