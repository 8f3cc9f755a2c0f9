//! From a configuration to an array in use: which directories are its members, and which of them can be believed.
//!
//! Invariants:
//! - a start that is refused has changed nothing on any member;
//! - a directory without a superblock, where others expect a member, is a missing member (an unmounted device), never a fresh one;
//! - a member is in sync only if a superblock with the highest event count says so and its own count is at most one behind (the
//!   superblocks are written one after the other before the first byte that the missing member does not get);
//! - who is alone writes those that are one behind before anything else, or a start without the others would believe what they say.

use crate::config::Config;
use crate::error::AttachError;
use crate::exclusive;
use crate::journal::{self, ArrayJournal};
use crate::member::{Finding, Member, Standing, inspect};
use crate::runtime::Runtime;
use crate::superblock;
use alloc::vec::Vec;
use format::{MemberState, Superblock, Uuid};
use layout::Geometry;
use sys::OsError;
use sys::rustix::fs::{FlockOperation, flock};
use units::MemberSet;

/// An array this process is attached to.
pub struct Array {
    pub(crate) config: Config,
    pub(crate) geometry: Geometry,
    pub(crate) uuid: Uuid,
    pub(crate) access: format::Access,
    pub(crate) name: format::ArrayName,
    pub(crate) members: Vec<Member>,
    pub(crate) runtime: Runtime,
    pub(crate) journal: Option<ArrayJournal>,
    pub(crate) created: bool,
    pub(crate) alone: bool,
}

/// What the superblocks say together.
struct Verdict {
    superblock: Superblock,
    /// By slot.
    members: Vec<Member>,
}

impl Array {
    /// Attaches to the array that `config` describes. If none of its members has a superblock and all are empty directories, the array is
    /// created.
    pub fn attach(config: &Config) -> Result<Self, AttachError> {
        Self::attach_if(config, journal::find)
    }

    /// The same without looking for the journal, to give it up: nothing is written to the array's files.
    pub fn attach_without_journal(config: &Config) -> Result<Self, AttachError> {
        Self::attach_if(config, |_, _, _| Ok(None))
    }

    fn attach_if(
        config: &Config,
        find_journal: impl Fn(&Config, &Superblock, &[Member]) -> Result<Option<ArrayJournal>, AttachError>,
    ) -> Result<Self, AttachError> {
        let mut created = false;
        loop {
            let mut findings = inspect_all(config)?;
            if findings.iter().all(Finding::is_unfinished) {
                created |= create_if_still_blank(config, &findings)?;
                findings = inspect_all(config)?;
            }
            let verdict = judge(config, findings)?;
            let journal = find_journal(config, &verdict.superblock, &verdict.members)?;
            if let Some(array) = Self::enter(config, verdict, journal, created)? {
                return Ok(array);
            }
        }
    }

    /// Joins the runtime segment and settles which members are out. None if the superblocks are not what they were when they were looked at: another process has
    /// changed them, and has ended since.
    fn enter(
        config: &Config,
        verdict: Verdict,
        journal: Option<ArrayJournal>,
        created: bool,
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
        if alone {
            if superblock::is_outdated(&superblock, &members) {
                return Ok(None);
            }
            let failed = superblock::finish_update(&superblock, &members);
            let out = out.union(failed);
            if !geometry.survives(out) {
                return Err(AttachError::too_many_out(&geometry, &members));
            }
            let recorded =
                (0..superblock.member_count).filter(|&slot| superblock.members[slot].state != MemberState::InSync).collect();
            runtime.set_out(out, recorded);
        } else if !geometry.survives(MemberSet::from_bits(runtime.out().bits() | out.bits())) {
            return Err(AttachError::too_many_out(&geometry, &members));
        } else {
            runtime.add_out(out);
        }
        runtime.finish_assembly();
        for slot in runtime.out().iter() {
            if members[slot].standing == Standing::InSync {
                members[slot].standing = Standing::Stale;
            }
        }
        Ok(Some(Self {
            config: config.clone(),
            geometry,
            uuid: superblock.array_uuid,
            access: superblock.access,
            name: superblock.array_name,
            members,
            runtime,
            journal,
            created,
            alone,
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
        opened.map_err(|error| match refused {
            Some(refused) => refused,
            None if error == OsError::BUSY => AttachError::OtherPidNamespace { path: path() },
            None => AttachError::Runtime { path: path(), error },
        })
    }

    /// Lets processes with another runtime segment use the members, as the death of this process would. For tests of crashes.
    pub fn abandon(&self) {
        exclusive::release(&self.members);
    }
}

fn inspect_all(config: &Config) -> Result<Vec<Finding>, AttachError> {
    config.mounts.iter().map(|path| inspect(path)).collect()
}

/// Creates the array unless another process has done so meanwhile. Returns whether we did.
fn create_if_still_blank(config: &Config, findings: &[Finding]) -> Result<bool, AttachError> {
    let mut roots = Vec::with_capacity(findings.len());
    for finding in findings {
        roots.push(finding.blank_root()?);
    }
    let Some(first) = roots.first() else { return Ok(false) };
    flock(first, FlockOperation::LockExclusive).map_err(|error| AttachError::os(&config.mounts[0], "lock", error))?;
    let again = inspect_all(config)?;
    let still_blank = again.iter().all(Finding::is_unfinished);
    let result = if still_blank { superblock::create(config, &roots).map(|()| true) } else { Ok(false) };
    let _ = flock(first, FlockOperation::Unlock);
    result
}

/// Compares what was found with the configuration and decides the standing of each member.
fn judge(config: &Config, findings: Vec<Finding>) -> Result<Verdict, AttachError> {
    let newest = findings
        .iter()
        .filter_map(Finding::superblock)
        .max_by_key(|superblock| superblock.event_count)
        .cloned()
        .ok_or(AttachError::Vanished)?;
    check_against(config, &newest)?;
    let mut members: Vec<Option<Member>> = (0..newest.member_count).map(|_| None).collect();
    let mut without_superblock = Vec::new();
    for finding in findings {
        let Some(superblock) = finding.superblock() else {
            without_superblock.push(finding);
            continue;
        };
        if superblock.array_uuid != newest.array_uuid {
            return Err(AttachError::OtherArray {
                path: finding.path.clone(),
                found: superblock.array_uuid,
                expected: newest.array_uuid,
            });
        }
        let bits = superblock.unknown_read_only_features();
        if bits != 0 {
            return Err(AttachError::ReadOnlyFeatures { path: finding.path.clone(), bits });
        }
        let slot = superblock.slot;
        let standing = standing(superblock, &newest);
        if slot >= members.len() || members[slot].is_some() {
            return Err(AttachError::SlotTwice { path: finding.path.clone(), slot });
        }
        members[slot] = Some(finding.into_member(slot, standing));
    }
    // What has no superblock stands for the slots that are left, in the order given.
    let mut rest = without_superblock.into_iter();
    let members = members
        .into_iter()
        .enumerate()
        .map(|(slot, member)| match member {
            Some(member) => Ok(member),
            None => rest.next().map(|finding| finding.into_missing(slot)).ok_or(AttachError::Vanished),
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Verdict { superblock: newest, members })
}

fn check_against(config: &Config, superblock: &Superblock) -> Result<(), AttachError> {
    if superblock.level != config.level {
        return Err(AttachError::OtherLevel { array: superblock.level, asked: config.level });
    }
    if superblock.member_count != config.mounts.len() {
        return Err(AttachError::OtherCount { array: superblock.member_count, asked: config.mounts.len() });
    }
    match config.chunk {
        Some(chunk) if chunk != superblock.chunk && superblock.level.has_chunks() => {
            Err(AttachError::OtherChunk { array: superblock.chunk, asked: chunk })
        }
        _ => Ok(()),
    }
}

fn standing(own: &Superblock, newest: &Superblock) -> Standing {
    let believed = newest.members[own.slot];
    let current = own.event_count + 1 >= newest.event_count;
    if believed.state == MemberState::InSync && believed.uuid == own.member_uuid && current {
        Standing::InSync
    } else {
        Standing::Stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Home(PathBuf);

    impl Drop for Home {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_member_that_goes_out_while_another_process_looks_at_superblocks_stays_out() {
        let home = Home(PathBuf::from(std::format!("/dev/shm/attach-{}", std::process::id())));
        let mounts: Vec<Vec<u8>> =
            (0..3).map(|slot| home.0.join(std::format!("m{slot}")).into_os_string().into_encoded_bytes()).collect();
        for mount in &mounts {
            std::fs::create_dir_all(std::str::from_utf8(mount).unwrap()).unwrap();
        }
        let config = Config::new(layout::Level::Raid5, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
        let first = Array::attach(&config).unwrap();
        let segment = crate::runtime::segment_path(first.uuid());
        drop(first);
        let went_out = core::cell::Cell::new(false);
        let array = Array::attach_if(&config, |config, superblock, members| {
            if !went_out.replace(true) {
                let other = Array::attach(config)?;
                other.fail_member(2).unwrap();
                other.before_change().unwrap();
            }
            journal::find(config, superblock, members)
        });
        let _ = std::fs::remove_file(segment);
        assert_eq!(array.unwrap().runtime().out(), MemberSet::EMPTY.with(2));
    }
}
