//! From a configuration to an array in use: which directories are its members, and which of them
//! can be believed.
//!
//! Invariants:
//! - a start that is refused has changed nothing on any member;
//! - a directory without a superblock, where others expect a member, is a missing member (an
//!   unmounted device), never a fresh one;
//! - a member is in sync only if a superblock with the highest event count says so and its own
//!   count is at most one behind (the superblocks are written one after the other before the first
//!   byte that the missing member does not get);
//! - a process that is alone with the array writes the superblocks that are one behind before
//!   anything else. Otherwise a later start without the other members would believe what these
//!   superblocks say.

use crate::access;
use crate::backed;
use crate::changed::{self, Changed};
use crate::checked::Rot;
use crate::claim;
use crate::config::Config;
use crate::creation;
use crate::emptied;
use crate::error::AttachError;
use crate::exclusive;
use crate::journal::{self, ArrayJournal};
use crate::judge::{Verdict, has_fewer_in_sync, inspect_all, judge, lacking, rebuilding, steady};
use crate::lent;
use crate::member::{Finding, Member, Standing};
use crate::needed;
use crate::reading;
use crate::runtime::{JobBoard, Runtime};
use crate::superblock;
use crate::tables;
use crate::why;
use alloc::vec::Vec;
use format::{Superblock, Uuid};
use layout::Geometry;
use sys::{OsError, OwnedFd};
use units::MemberSet;

/// An array this process is attached to.
pub struct Array {
    pub(crate) config: Config,
    /// Of files for which no rule says otherwise. What the array as a whole bears goes by it, too.
    pub(crate) geometry: Geometry,
    /// Tells whether the superblocks said, when this process attached, that files may have shapes of
    /// their own.
    pub(crate) has_shapes: bool,
    pub(crate) uuid: Uuid,
    pub(crate) access: format::Access,
    pub(crate) name: format::ArrayName,
    pub(crate) sums: bool,
    pub(crate) members: Vec<Member>,
    pub(crate) runtime: Runtime,
    pub(crate) journal: Option<ArrayJournal>,
    pub(crate) changed: Changed,
    pub(crate) created: bool,
    pub(crate) alone: bool,
    pub(crate) tell: Tell,
    /// The fast members when this process attached.
    pub(crate) fast: MemberSet,
}

/// The functions by which a process tells people what happens to members. Each may be called while
/// this process holds locks of the array and of its open files, so none of them may take such a
/// lock.
#[derive(Clone, Copy)]
pub struct Tell {
    /// This process takes the member out of use, and nobody has told of that loss before. The text
    /// says why, if that is known.
    pub loss: fn(&Member, Option<&str>),
    /// This process takes the member out of use because the member lacks what the others have at a
    /// logical path.
    pub lost_name: fn(&Member, &[u8]),
    /// A call is refused since the member has other names at a logical path, and this process may
    /// not make them the same.
    pub difference: fn(&Member, &[u8]),
    /// Damaged records of the member's table of inodes were made anew from other members'.
    pub mend: fn(&Member),
    /// A file is refused, since its backing file at a host path is too short, and the other members
    /// in use cannot give what is missing.
    pub short: fn(&Member, &[u8]),
    /// A file at a logical path is refused, since a crash has taken its record.
    pub unrecorded: fn(&[u8]),
    /// A read has met a block of the member that does not fit its sum, in the file at a logical path.
    /// The text says so, and what to do.
    pub rot: fn(&Member, &[u8], &Rot, &str),
    /// This process is about to compute so many bytes of a file that members have lost, with locks
    /// of the file held. It asks whether to go on; if not, the file's bytes wait for the next
    /// process that opens the file. The function may sleep as long as what it is given says that
    /// nobody waits for one of these locks.
    pub computing: fn(u64, &dyn Fn() -> bool) -> bool,
}

impl Tell {
    /// Nobody hears of anything.
    pub const NOTHING: Self = Self {
        loss: |_, _| {},
        lost_name: |_, _| {},
        difference: |_, _| {},
        mend: |_| {},
        short: |_, _| {},
        unrecorded: |_| {},
        rot: |_, _, _, _| {},
        computing: |_, _| true,
    };
}

/// When members go out that are missing while other processes use the array.
#[derive(Clone, Copy)]
enum Losses {
    /// Before anything else.
    AtOnce,
    /// When the caller says so, if they can still be reached.
    InOrder,
}

/// Whether the members have been looked at before in the same start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    First,
    Second,
}

impl Array {
    /// Attaches to the array that `config` describes. If none of its members has a superblock and
    /// all are empty directories, the array is created.
    ///
    /// A member that is missing, but open to other processes, stays in use until [`Self::let_go`].
    pub fn attach(config: &Config) -> Result<Self, AttachError> {
        Self::attach_if(config, Losses::InOrder, journal::find).inspect(Self::let_in)
    }

    /// Attaches as [`Self::attach`], but a missing member goes out at once. A process that starts
    /// meanwhile waits until [`Self::let_in`], and then finds what was changed.
    pub fn attach_holding(config: &Config) -> Result<Self, AttachError> {
        Self::attach_if(config, Losses::AtOnce, journal::find)
    }

    /// Attaches as [`Self::attach_holding`] without looking for the journal, to give it up: nothing
    /// is written to the array's files.
    pub fn attach_holding_without_journal(config: &Config) -> Result<Self, AttachError> {
        Self::attach_if(config, Losses::AtOnce, |_, _, _| Ok(None))
    }

    /// What a start would find, without one: nothing is locked or changed. The members by slot,
    /// with the standing they would have; none for an array that a start would make.
    ///
    /// # Errors
    /// Why a start would be refused.
    pub fn foresee(config: &Config) -> Result<Vec<Member>, AttachError> {
        let findings = inspect_all(config)?;
        if config.uuid.is_none() && findings.iter().all(Finding::is_unfinished) {
            creation::check(config, &blank_roots(&findings)?)?;
            return Ok(Vec::new());
        }
        let Verdict { superblock, mut members } = judge(config, steady(config, findings)?)?;
        let journal = journal::find(config, &superblock, &members)?;
        let lost = journal.map_or(MemberSet::EMPTY, |journal| journal.lost);
        let (array_uuid, use_count) = (superblock.array_uuid, superblock.use_count);
        let mut outdated = MemberSet::EMPTY;
        for member in members.iter_mut().filter(|member| member.standing == Standing::InSync) {
            let slot = member.slot;
            let Some(meta) = member.meta() else { continue };
            let flaw = if access::check_tables(meta, &member.path, superblock.access)? {
                tables::flaw(meta, array_uuid, use_count)
            } else {
                Some(why::SHUT.into())
            };
            if flaw.is_some() && tables::are_outdated(meta, array_uuid, member.uuid, use_count) {
                outdated = outdated.with(slot);
            }
            if lost.contains(slot) || flaw.is_some() {
                member.standing = Standing::Damaged;
                member.finding = flaw.or_else(|| Some(why::JOURNAL_LOST.into()));
            }
        }
        // Who starts alone makes an inode table of an earlier use anew from those of the others.
        if !exclusive::is_used(&members) && members.iter().any(|member| member.standing == Standing::InSync) {
            outdated.minus(lost).iter().for_each(|slot| members[slot].standing = Standing::InSync);
        }
        let mut members = emptied::without_names(&config.prefixes, members);
        if exclusive::is_used(&members) {
            // A start would go on as the programs do that run.
            let board = JobBoard::open(array_uuid, superblock.access);
            leave_unused(&mut members, board.map_or(MemberSet::EMPTY, |board| board.out()));
        }
        let geometry = superblock.geometry()?;
        let out = lacking(&members).minus(rebuilding(&members));
        let is_enough = needed::is_enough(&geometry, &members, out, rebuilding(&members));
        if is_enough { Ok(members) } else { Err(AttachError::too_many_out(&geometry, &members)) }
    }

    /// Lets others in that wait since [`Self::attach_holding`].
    pub fn let_in(&self) {
        self.runtime.let_in();
    }

    fn attach_if(
        config: &Config,
        losses: Losses,
        find_journal: impl Fn(&Config, &Superblock, &[Member]) -> Result<Option<ArrayJournal>, AttachError>,
    ) -> Result<Self, AttachError> {
        let mut created = false;
        let mut sight = Sight::First;
        loop {
            let mut findings = inspect_all(config)?;
            if config.uuid.is_none() && findings.iter().all(Finding::is_unfinished) {
                created |= create_if_still_blank(config, &findings)?;
                findings = inspect_all(config)?;
            }
            let mut verdict = judge(config, steady(config, findings)?)?;
            let standings: Vec<Standing> = verdict.members.iter().map(|member| member.standing).collect();
            // A start that is refused for its journal does not even touch the segment.
            let entered = find_journal(config, &verdict.superblock, &verdict.members).and_then(|journal| {
                for slot in journal.map_or(MemberSet::EMPTY, |journal| journal.lost).iter() {
                    verdict.members[slot].standing = Standing::Damaged;
                    verdict.members[slot].finding = Some(why::JOURNAL_LOST.into());
                }
                Self::enter(config, verdict, losses, &find_journal, created, sight)
            });
            sight = Sight::Second;
            match entered {
                Ok(Some(array)) => return Ok(array),
                Ok(None) => {}
                // A member that fails between two looks at it is no reason to refuse a start that
                // does without.
                Err(error) => {
                    let again = judge(config, steady(config, inspect_all(config)?)?).map(|verdict| verdict.members);
                    if !again.is_ok_and(|members| has_fewer_in_sync(&members, &standings)) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Joins the runtime segment, which is held from here on, and settles which members are out.
    /// None if the superblocks are not what they were when they were looked at: another process has
    /// changed them since. Whether it has ended does not matter: it may have changed the journal,
    /// which others use by now.
    fn enter(
        config: &Config,
        verdict: Verdict,
        losses: Losses,
        find_journal: &impl Fn(&Config, &Superblock, &[Member]) -> Result<Option<ArrayJournal>, AttachError>,
        created: bool,
        sight: Sight,
    ) -> Result<Option<Self>, AttachError> {
        let Verdict { superblock, mut members } = verdict;
        let out: MemberSet =
            members.iter().filter(|member| member.standing != Standing::InSync).map(|member| member.slot).collect();
        let chunk = config.chunk.unwrap_or(superblock.chunk);
        let geometry = Geometry::new(superblock.level, superblock.member_count, chunk)?;
        if !geometry.survives(out) {
            return Err(AttachError::too_many_out(&geometry, &members));
        }
        let (runtime, alone) = Self::join(&superblock, &members)?;
        if superblock::is_outdated(&superblock, &members) {
            return Ok(None);
        }
        // A change of it that failed may have left the superblocks as they were.
        let journal = find_journal(config, &superblock, &members)?;
        if journal.as_ref().is_some_and(|journal| !journal.lost.is_empty()) {
            // The journal has lost a copy since the first look at it.
            return Ok(None);
        }
        if alone && sight == Sight::First && !runtime.out().minus(out).is_empty() {
            // A process that has ended took a member out which looked in sync here, perhaps before
            // it failed.
            return Ok(None);
        }
        let begun = runtime.all_begun();
        if sight == Sight::First && begun.iter().any(|slot| !is_reached(&runtime, &members, slot)) {
            // It was begun after the members were looked at, or is gone.
            return Ok(None);
        }
        if alone {
            for meta in members.iter().filter(|member| member.standing == Standing::InSync).filter_map(Member::meta) {
                // If that fails the table is damaged, as it was.
                let _ = tables::finish_header(meta, superblock.array_uuid, superblock.use_count);
            }
            let is_outdated = |member: &Member| {
                let meta = member.meta().filter(|_| member.standing == Standing::InSync);
                meta.is_some_and(|meta| tables::are_outdated(meta, superblock.array_uuid, member.uuid, superblock.use_count))
            };
            if members.iter().any(is_outdated) {
                // Who makes the tables whole makes these anew.
                runtime.note_deaths();
            }
            let failed = superblock::finish_update(&superblock, &members);
            let out = out.union(failed);
            // What one member has not been given back yet, another may be the last to have: a start
            // without that one would change what the rebuild needs.
            if !needed::is_enough(&geometry, &members, out, rebuilding(&members)) {
                return Err(AttachError::too_many_out(&geometry, &members));
            }
            let recorded = (0..superblock.member_count).filter(|&slot| !superblock.members[slot].state.is_in_use()).collect();
            runtime.set_out(out, recorded);
            let missing: MemberSet =
                members.iter().filter(|member| member.standing == Standing::Missing).map(|member| member.slot).collect();
            // What is known of how members left is of an earlier use.
            runtime.forget_leaves(MemberSet::first(members.len()));
            runtime.note_order(missing);
            runtime.set_rebuilding(rebuilding(&members));
            reading::begin(&runtime, &superblock, &members);
            runtime.set_use_count(superblock.use_count);
            runtime.note_clean(superblock.is_clean().then_some(superblock.event_count));
        } else if !needed::is_enough(&geometry, &members, runtime.out().union(out), runtime.rebuilding()) {
            leave_unused(&mut members, runtime.out());
            return Err(AttachError::too_many_out(&geometry, &members));
        } else {
            let is_elsewhere = |standing| matches!(standing, Standing::Missing | Standing::Replaced);
            let fresh = out.minus(runtime.out()).iter().filter(|&slot| is_elsewhere(members[slot].standing)).collect();
            let leaving = match losses {
                Losses::AtOnce => MemberSet::EMPTY,
                Losses::InOrder => lent::take_roots(&runtime, &superblock, &mut members, fresh),
            };
            // Nobody can say what these hold.
            runtime.note_disorder(out.minus(runtime.out()).minus(leaving));
            // Who is out already may be about to join.
            runtime.add_out(out.minus(fresh).minus(runtime.out()));
            // Of what cannot be reached from here only the stores of others are waited for.
            runtime.let_go(fresh.minus(leaving), |_| true, || {});
        }
        runtime.note_reach(begun.iter().filter(|&slot| is_reached(&runtime, &members, slot)).collect());
        for stat in members.iter().filter_map(Member::root).filter_map(|root| sys::rustix::fs::fstat(root).ok()) {
            runtime.note_root(stat.st_dev, stat.st_ino);
        }
        let make = |member: &Member| match member.meta().filter(|_| member.standing == Standing::InSync) {
            Some(meta) => changed::make(meta, superblock.array_uuid, member.uuid, runtime.use_count(), superblock.access),
            None => Err(OsError::NODEV),
        };
        let changed = Changed::open(&members, alone.then_some(&make))?;
        runtime.finish_assembly();
        leave_unused(&mut members, runtime.out());
        if let Some(error) = runtime.why_lost() {
            return Err(AttachError::Runtime { path: crate::runtime::segment_path(superblock.array_uuid), error });
        }
        Ok(Some(Self {
            config: config.clone(),
            geometry,
            has_shapes: superblock.has_shapes(),
            uuid: superblock.array_uuid,
            access: superblock.access,
            name: superblock.array_name,
            fast: backed::fast(&superblock),
            sums: superblock.has_sums(),
            members,
            runtime,
            journal,
            changed,
            created,
            alone,
            tell: Tell::NOTHING,
        }))
    }

    fn join(superblock: &Superblock, members: &[Member]) -> Result<(Runtime, bool), AttachError> {
        let path = || crate::runtime::segment_path(superblock.array_uuid);
        let mut refused = None;
        let claim = |device, inode| {
            let byte = exclusive::byte_of(device, inode);
            exclusive::claim(members, byte).map_err(|error| {
                let error = refused.insert(error);
                error.os_error()
            })?;
            Ok(exclusive::is_shared(members, byte))
        };
        let opened = Runtime::open(superblock.array_uuid, superblock.access, claim);
        let opened = opened.map(|(runtime, alone)| (runtime.with_members(superblock.member_count), alone));
        opened.map_err(|error| match refused {
            Some(refused) => refused,
            None if error == OsError::BUSY => AttachError::OtherPidNamespace { path: path() },
            None => AttachError::Runtime { path: path(), error },
        })
    }

    /// Lets processes with another runtime segment use the members, as the end of this process
    /// would. The array is not used any more.
    pub fn abandon(&self) {
        exclusive::release(&self.members);
    }
}

/// Whether what was found in a member's place is the member that was begun there last while
/// programs ran.
fn is_reached(runtime: &Runtime, members: &[Member], slot: usize) -> bool {
    members.get(slot).is_some_and(|member| member.directories.is_some() && runtime.begun(slot) == Some(member.uuid))
}

/// The directories of an array to be created.
fn blank_roots(findings: &[Finding]) -> Result<Vec<&OwnedFd>, AttachError> {
    findings.iter().map(Finding::blank_root).collect()
}

/// Creates the array unless another process has done so meanwhile. Returns whether we did.
fn create_if_still_blank(config: &Config, findings: &[Finding]) -> Result<bool, AttachError> {
    let roots = blank_roots(findings)?;
    if roots.is_empty() {
        return Ok(false);
    }
    creation::check(config, &roots)?;
    let _claims = claim::take_all(&roots).map_err(|(place, error)| AttachError::os(&config.mounts[place], "take", error))?;
    let again = inspect_all(config)?;
    if !again.iter().all(Finding::is_unfinished) {
        return Ok(false);
    }
    blank_roots(&again)?;
    superblock::create(config, &roots).map(|()| true)
}

/// Notes of the members in `out`, which processes that are attached do without, that they are not
/// used, also where nothing has been put on record of that yet: the first change does.
fn leave_unused(members: &mut [Member], out: MemberSet) {
    let is_unused = |member: &&mut Member| out.contains(member.slot) && member.standing == Standing::InSync;
    for member in members.iter_mut().filter(is_unused) {
        member.standing = Standing::Stale;
        member.finding = Some(why::NOT_IN_USE.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_array::{Home, is_alone, three_members, without_descriptors};
    use crate::{SaidBy, config::JournalPlace};
    use format::{TABLE_HEADER_BYTES, TableHeader, TableKind};
    /// An array of three members, in sync and not in use.
    fn made(name: &str) -> (Home, Config) {
        let (home, config) = three_members(name, layout::Level::Raid5);
        drop(Array::attach(&config).unwrap());
        (home, config)
    }

    #[test]
    fn a_member_that_the_array_has_not_is_not_out() {
        let (_home, config) = made("foreign");
        let first = Array::attach(&config).unwrap();
        first.runtime().add_out(MemberSet::from_bits(1 << 20));
        let second = Array::attach(&config).unwrap();
        remove_segment(first.uuid);
        assert_eq!((first.runtime().out(), second.runtime().out()), (MemberSet::EMPTY, MemberSet::EMPTY));
        second.fail_member(1).unwrap();
        second.before_change().unwrap();
        assert_eq!(first.in_use().len(), 2);
    }

    /// The first change of a use opens the members' tables. A limit on descriptors concerns a whole
    /// process, so the test runs itself again as a process of its own.
    #[test]
    fn a_process_without_a_free_descriptor_puts_no_member_out() {
        if !is_alone() {
            return;
        }
        let (_home, config) = made("descriptors");
        let array = Array::attach(&config).unwrap();
        remove_segment(array.uuid);
        without_descriptors(|| array.before_change()).unwrap();
        assert_eq!(array.runtime.out(), MemberSet::EMPTY);
        assert!(array.runtime.is_use_recorded());
    }

    /// Only after an orderly end is nothing looked at again that was changed before, and only until
    /// something is changed.
    #[test]
    fn an_array_is_as_it_ended_until_something_is_changed() {
        let (_home, config) = made("as-ended");
        let start = || {
            let array = Array::attach(&config).unwrap();
            let is_as_ended = array.runtime.is_as_it_ended();
            (array, is_as_ended)
        };
        let (array, is_as_ended) = start();
        assert!(!is_as_ended);
        array.before_change().unwrap();
        array.end_use(true).unwrap();
        array.runtime.detach();
        let (array, is_as_ended) = start();
        assert!(is_as_ended);
        // The process dies as soon as it has begun to change something, before its superblocks say
        // so.
        array.runtime.note_change();
        array.runtime.detach();
        let (array, is_as_ended) = start();
        assert!(!is_as_ended, "the superblocks have the mark, and it is the one that was seen before");
        array.before_change().unwrap();
        array.end_use(false).unwrap();
        array.runtime.detach();
        let (array, is_as_ended) = start();
        assert!(!is_as_ended, "ended without all being durable");
        remove_segment(array.uuid);
    }

    #[test]
    fn a_member_that_cannot_be_used_is_out_by_name_and_reason_and_refuses_no_start() {
        type Spoil = fn(&std::path::Path);
        let spoils: [(Spoil, &str, Standing); 3] = [
            (
                |member| (std::fs::remove_dir_all(member).unwrap(), std::fs::write(member, "").unwrap()).1,
                "not a directory",
                Standing::Missing,
            ),
            (
                |member| {
                    std::fs::rename(member.join(".cxlraid"), member.join("meta")).unwrap();
                    std::fs::write(member.join(".cxlraid"), "").unwrap();
                },
                "cannot open .cxlraid of this member",
                Standing::Failed,
            ),
            (
                // What the owner of the directory is not let through either, as after chmod 000:
                // here by a symlink in a loop.
                |member| {
                    std::fs::remove_dir_all(member).unwrap();
                    std::os::unix::fs::symlink(member.file_name().unwrap(), member).unwrap();
                },
                "cannot open this member",
                Standing::Failed,
            ),
        ];
        for (spoil, reason, standing) in spoils {
            let (home, config) = made("refused");
            spoil(&home.path("m0"));
            let array = Array::attach(&config).unwrap();
            remove_segment(array.uuid);
            assert_eq!((array.runtime().out(), array.members[0].standing), (MemberSet::EMPTY.with(0), standing));
            let said = array.members[0].refusal.clone().unwrap();
            assert!(said.contains("m0: ") && said.contains(reason), "{said}");
            assert_eq!(Array::foresee(&config).unwrap()[0].standing, standing);
            array.runtime.detach();
            // Two cannot be spared: the reason is told.
            spoil(&home.path("m1"));
            let refused = Array::attach(&config).map(drop).unwrap_err();
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }

    #[test]
    fn a_directory_that_somebody_keeps_locked_is_not_waited_for_without_end() {
        let home = Home::new("locked");
        let mounts = [0, 1].map(|slot| home.path(std::format!("m{slot}")));
        mounts.iter().for_each(|mount| std::fs::create_dir_all(mount).unwrap());
        let held = std::fs::File::open(&mounts[0]).unwrap();
        held.lock().unwrap();
        let mounts = mounts.map(|mount| mount.into_os_string().into_encoded_bytes());
        let config = Config::new(layout::Level::Raid1, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(Array::attach(&config).map(drop)));
        let refused = receiver.recv_timeout(core::time::Duration::from_secs(20)).expect("it is waited for");
        assert_eq!(refused.unwrap_err().os_error(), OsError::BUSY);
        drop(held);
    }

    fn remove_segment(uuid: Uuid) {
        let _ = std::fs::remove_file(crate::runtime::segment_path(uuid));
    }

    #[test]
    fn a_member_that_goes_out_while_another_process_looks_at_superblocks_stays_out() {
        let (_home, config) = made("out");
        let went_out = core::cell::Cell::new(false);
        let array = Array::attach_if(&config, Losses::InOrder, |config, superblock, members| {
            if !went_out.replace(true) {
                let other = Array::attach(config)?;
                other.fail_member(2).unwrap();
                other.before_change().unwrap();
            }
            journal::find(config, superblock, members)
        });
        let array = array.unwrap();
        remove_segment(array.uuid);
        assert_eq!(array.runtime().out(), MemberSet::EMPTY.with(2));
    }

    #[test]
    fn a_member_that_a_process_took_out_before_it_died_is_looked_at_again() {
        let (home, config) = made("died");
        let first = Array::attach(&config).unwrap();
        let failed = core::cell::Cell::new(false);
        let array = Array::attach_if(&config, Losses::InOrder, |config, superblock, members| {
            if !failed.replace(true) {
                // The other process finds that the member fails, and dies before it puts that on
                // record.
                std::fs::remove_dir_all(home.path("m2/data")).unwrap();
                first.fail_member(2).unwrap();
                first.runtime.detach();
                exclusive::release(&first.members);
            }
            journal::find(config, superblock, members)
        });
        let array = array.unwrap();
        remove_segment(array.uuid);
        assert!(array.alone);
        assert_eq!(array.runtime().out(), MemberSet::EMPTY.with(2));
    }

    /// The UUID of the journal in use.
    fn journal_of(array: &Array) -> Option<Uuid> {
        array.journal().map(|journal| journal.header.journal_uuid)
    }

    #[test]
    fn a_journal_that_is_changed_while_another_process_looks_at_superblocks_is_the_one_in_use() {
        // With nobody attached when the segment is held, or with somebody who has the new journal.
        for stays in [false, true] {
            let (_home, config) = made(if stays { "used" } else { "changed" });
            // Made, replaced by another, and taken away.
            for place in [Some(JournalPlace::Members), Some(JournalPlace::Members), None] {
                let user = core::cell::RefCell::new(None);
                let was_changed = core::cell::Cell::new(false);
                let array = Array::attach_if(&config, Losses::InOrder, |config, superblock, members| {
                    let found = journal::find(config, superblock, members);
                    if !was_changed.replace(true) {
                        Array::attach_holding(config)?.set_journal(place.as_ref().map(|place| (place, SaidBy::Operator)))?;
                        user.replace(stays.then(|| Array::attach(config)).transpose()?);
                    }
                    found
                });
                let array = array.unwrap();
                array.let_in();
                remove_segment(array.uuid);
                assert_eq!(array.alone, !stays);
                let in_superblocks = superblock::read(array.members[0].meta().unwrap()).unwrap().0.journal;
                assert_eq!(journal_of(&array), in_superblocks.map(|entry| entry.uuid), "{stays}");
                assert_eq!(in_superblocks.is_some(), place.is_some());
            }
        }
    }

    #[test]
    fn a_member_whose_copy_of_the_journal_is_not_whole_is_out() {
        for lost in [None, Some(0), Some(4096)] {
            let (home, config) = made(&std::format!("journal-cut-{}", lost.unwrap_or(1)));
            let held = Array::attach_holding(&config).unwrap();
            held.set_journal(Some((&JournalPlace::Members, SaidBy::Operator))).unwrap();
            held.runtime.detach();
            held.let_in();
            let spoil = |slot: usize| {
                let path = home.path(std::format!("m{slot}/.cxlraid/journal"));
                match lost {
                    None => std::fs::remove_file(path).unwrap(),
                    Some(bytes) => std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap(),
                }
            };
            spoil(1);
            let array = Array::attach(&config).unwrap();
            assert_eq!((array.in_use(), array.members[1].standing), (MemberSet::from_bits(0b101), Standing::Damaged));
            assert!(array.journal().is_some());
            array.runtime.detach();
            spoil(0);
            // Nobody has it whole.
            let refused = Array::attach(&config).map(drop).unwrap_err();
            remove_segment(held.uuid);
            assert!(matches!(refused, AttachError::JournalLost { .. } | AttachError::JournalForeign { .. }), "{refused}");
        }
    }

    #[test]
    fn who_starts_while_the_journal_is_changed_waits_and_has_the_new_one() {
        let (_home, config) = made("waits");
        let held = Array::attach_holding(&config).unwrap();
        let starts = std::thread::spawn(move || Array::attach(&config).map(|array| (journal_of(&array), array.alone)));
        std::thread::sleep(core::time::Duration::from_millis(200));
        assert!(!starts.is_finished());
        held.set_journal(Some((&JournalPlace::Members, SaidBy::Operator))).unwrap();
        let made = superblock::read(held.members[0].meta().unwrap()).unwrap().0.journal.unwrap().uuid;
        held.runtime.detach();
        held.let_in();
        let found = starts.join().unwrap().unwrap();
        remove_segment(held.uuid);
        assert_eq!(found, (Some(made), true));
    }

    /// The CRC-32C of docs/format, bit by bit.
    fn crc32c(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
    }

    /// The header of a table as version 1 had it.
    fn header_of_version_1(header: &[u8]) -> Vec<u8> {
        let mut bytes = header.to_vec();
        bytes[8..10].copy_from_slice(&1u16.to_le_bytes());
        bytes[32..].fill(0);
        let checksum = crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_power_cut_while_the_inode_table_gets_its_new_header_costs_no_member() {
        let (home, config) = made("header");
        let place = |name: &str| home.path(std::format!("m0/.cxlraid/{name}"));
        let header = std::fs::read(place("inodes")).unwrap();
        let new = &header[..TABLE_HEADER_BYTES];
        let old = header_of_version_1(new);
        assert!(TableHeader::decode(TableKind::Inodes, &old).is_ok_and(|header| !header.is_checked));
        // Which words of the new header are in the table, and how many bytes of the file beside it.
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        for case in 0..64 {
            let mut cut = old.clone();
            for at in (0..TABLE_HEADER_BYTES).step_by(8) {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                let arrived = if case < 20 { at < 8 * case } else { word & 1 == 1 };
                if arrived {
                    cut[at..at + 8].copy_from_slice(&new[at..at + 8]);
                }
            }
            put_back(&home, 0, "inodes", &cut);
            put_back(&home, 0, "inodes.header", new);
            assert_eq!(Array::foresee(&config).unwrap()[0].standing, Standing::InSync, "{case}");
            let array = Array::attach(&config).unwrap();
            remove_segment(array.uuid);
            let found = std::fs::read(place("inodes")).unwrap();
            assert!(found == new || found == old, "{case}");
            assert!(!place("inodes.header").exists());
            array.runtime.detach();
            exclusive::release(&array.members);
        }
        // The file beside it is not whole yet, and the table has its old header: it is none to go
        // by.
        put_back(&home, 0, "inodes", &old);
        put_back(&home, 0, "inodes.header", &new[..2048]);
        let array = Array::attach(&config).unwrap();
        remove_segment(array.uuid);
        assert_eq!(std::fs::read(place("inodes")).unwrap(), old);
        assert!(!place("inodes.header").exists());
    }

    /// Gives a file of a member's `.cxlraid` the content that it had in a copy.
    fn put_back(home: &Home, slot: usize, name: &str, content: &[u8]) {
        std::fs::write(home.path(std::format!("m{slot}/.cxlraid/{name}")), content).unwrap();
    }

    #[test]
    fn a_member_that_was_copied_while_it_was_in_use_is_stale_after_that_use() {
        let (home, config) = made("copied");
        let array = Array::attach(&config).unwrap();
        array.before_change().unwrap();
        let copy = std::fs::read(home.path("m0/.cxlraid/superblock")).unwrap();
        array.end_use(false).unwrap();
        let uuid = array.uuid;
        drop(array);
        put_back(&home, 0, "superblock", &copy);
        let standings: Vec<_> = Array::foresee(&config).unwrap().iter().map(|member| member.standing).collect();
        remove_segment(uuid);
        assert_eq!(standings, [Standing::Stale, Standing::InSync, Standing::InSync]);
    }

    #[test]
    fn of_one_own_member_and_two_foreign_ones_the_foreign_ones_are_named() {
        let (home, config) = made("own");
        let (foreign, _) = made("foreign");
        let uuid_at = |home: &Home| {
            let path = home.path("m0").into_os_string().into_encoded_bytes();
            crate::member::inspect(&path).unwrap().superblock().unwrap().array_uuid
        };
        let uuid = uuid_at(&home);
        [uuid, uuid_at(&foreign)].into_iter().for_each(remove_segment);
        for slot in [1, 2] {
            let [place, other] = [&home, &foreign].map(|home| home.path(std::format!("m{slot}")));
            std::fs::remove_dir_all(&place).unwrap();
            std::fs::rename(other, place).unwrap();
        }
        let config = Config { uuid: Some(uuid), ..config };
        let refused = Array::attach(&config).map(drop).unwrap_err();
        assert!(matches!(refused, AttachError::TooManyOut { .. }), "{refused}");
        let text = std::string::ToString::to_string(&refused);
        assert!(text.contains("m1 missing") && text.contains("m2 missing") && !text.contains("m0 "), "{text}");
    }

    #[test]
    fn a_member_that_was_copied_while_it_was_in_use_is_stale_when_the_last_process_has_left() {
        for has_others in [false, true] {
            let (home, config) = made(if has_others { "left-others" } else { "left" });
            let array = Array::attach(&config).unwrap();
            array.before_change().unwrap();
            let other = has_others.then(|| Array::attach(&config).unwrap());
            let copy = std::fs::read(home.path("m0/.cxlraid/superblock")).unwrap();
            let uuid = array.uuid;
            array.end_use_if_last();
            array.runtime.detach();
            drop(array);
            if let Some(other) = other {
                assert_eq!(std::fs::read(home.path("m0/.cxlraid/superblock")).unwrap(), copy, "it is still in use");
                other.end_use_if_last();
                other.runtime.detach();
            }
            put_back(&home, 0, "superblock", &copy);
            // The segment is still there.
            let array = Array::attach(&config).unwrap();
            remove_segment(uuid);
            assert_eq!((array.alone, array.in_use()), (true, MemberSet::from_bits(0b110)));
        }
    }

    #[test]
    fn of_processes_that_leave_at_the_same_time_one_ends_the_use() {
        let (home, config) = made("left-together");
        let [one, other] = [0, 1].map(|_| Array::attach(&config).unwrap());
        one.let_in();
        other.before_change().unwrap();
        let copy = std::fs::read(home.path("m0/.cxlraid/superblock")).unwrap();
        // Both are still attached when each looks for the other.
        one.end_use_if_last();
        other.end_use_if_last();
        put_back(&home, 0, "superblock", &copy);
        remove_segment(one.uuid);
        assert_eq!(Array::foresee(&config).unwrap()[0].standing, Standing::Stale);
    }

    #[test]
    fn who_leaves_last_and_has_changed_nothing_writes_nothing() {
        let (home, config) = made("left-unchanged");
        let superblock = || std::fs::read(home.path("m0/.cxlraid/superblock")).unwrap();
        let before = superblock();
        let array = Array::attach(&config).unwrap();
        array.end_use_if_last();
        remove_segment(array.uuid);
        assert!(superblock() == before);
    }

    #[test]
    fn an_inode_table_of_an_earlier_use_is_made_anew_by_who_starts_alone() {
        let (home, config) = made("outdated");
        let path = |slot: usize| home.path(std::format!("m{slot}/.cxlraid/inodes"));
        let older = std::fs::read(path(0)).unwrap();
        let array = Array::attach(&config).unwrap();
        let uuid = array.uuid;
        array.before_change().unwrap();
        array.end_use(false).unwrap();
        put_back(&home, 0, "inodes", &older);
        let foreseen = || -> Vec<Standing> { Array::foresee(&config).unwrap().iter().map(|member| member.standing).collect() };
        assert_eq!(foreseen(), [Standing::Damaged, Standing::InSync, Standing::InSync], "it is in use");
        drop(array);
        remove_segment(uuid);
        assert_eq!(foreseen(), [Standing::InSync; 3]);
        // Of another member it is not this member's.
        put_back(&home, 1, "inodes", &older);
        assert_eq!(foreseen(), [Standing::InSync, Standing::Damaged, Standing::InSync]);
    }

    #[test]
    fn a_table_of_an_earlier_use_is_damage_and_one_of_this_use_is_not() {
        let (home, config) = made("marked");
        let table = |slot: usize| std::fs::read(home.path(std::format!("m{slot}/.cxlraid/inodes"))).unwrap();
        let foreseen =
            |config: &Config| -> Vec<Standing> { Array::foresee(config).unwrap().iter().map(|member| member.standing).collect() };
        let made_with = table(0);
        let array = Array::attach(&config).unwrap();
        let uuid = array.uuid;
        array.before_change().unwrap();
        assert_eq!(foreseen(&config), [Standing::InSync; 3]);
        let right = table(0);
        put_back(&home, 0, "inodes", &made_with);
        assert_eq!(foreseen(&config), [Standing::Damaged, Standing::InSync, Standing::InSync]);
        // Restored from another member, as an error advises.
        put_back(&home, 0, "inodes", &table(1));
        assert_eq!(foreseen(&config), [Standing::InSync; 3]);
        // A table that is put back between two uses does not become current by the mark of the
        // next.
        array.end_use(false).unwrap();
        drop(array);
        put_back(&home, 0, "inodes", &right);
        let again = Array::attach(&config).unwrap();
        again.before_change().unwrap();
        remove_segment(uuid);
        assert_eq!(again.in_use(), MemberSet::from_bits(0b110));
    }
}
