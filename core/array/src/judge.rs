//! What the superblocks of the members say together: which members can be believed, and which of
//! them are in sync.

use crate::config::Config;
use crate::emptied;
use crate::error::AttachError;
use crate::member::{Finding, Member, Standing, inspect};
use crate::replace;
use crate::runtime::directories_in_use;
use crate::split;
use crate::why;
use alloc::vec::Vec;
use format::{MemberState, Superblock};
use sys::OsError;
use sys::rustix::fs::{self, Mode, OFlags};
use sys::rustix::process::geteuid;
use units::MemberSet;

/// What the superblocks say together.
pub(crate) struct Verdict {
    pub(crate) superblock: Superblock,
    /// By slot.
    pub(crate) members: Vec<Member>,
}

pub(crate) fn inspect_all(config: &Config) -> Result<Vec<Finding>, AttachError> {
    let looked: Vec<_> = config.mounts.iter().map(|path| inspect(path)).collect();
    let user = geteuid().as_raw();
    let is_meant = |superblock: &&Superblock| config.uuid.is_some_and(|uuid| superblock.array_uuid == uuid);
    let mut superblocks = looked.iter().flatten().filter_map(Finding::superblock).filter(is_meant);
    let is_owner = superblocks.any(|superblock| superblock.access.owner_uid == user);
    // Another member says that the array is this user's. So a directory that shuts this user out,
    // such as a mount that was never given to the owner, says something of that member. The array's
    // own files in it say whom the array is open to.
    let is_closed = |path: &[u8]| {
        fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).err() == Some(OsError::ACCESS)
    };
    let found = looked.into_iter().zip(&config.mounts).map(|(looked, path)| match looked {
        Err(AttachError::NotOpen { .. }) if is_owner && is_closed(path) => Ok(Finding::closed(path)),
        looked => looked,
    });
    found.collect()
}

/// Checks that this user may use the array that `config` describes. The check changes nothing, and
/// says nothing of what else is wrong with the members.
///
/// # Errors
/// [`AttachError::NotOpen`].
pub fn check_all_rights(config: &Config) -> Result<(), AttachError> {
    match inspect_all(config) {
        Err(error @ AttachError::NotOpen { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// How often a start reads the superblocks anew while other processes keep changing them.
const STEADY_COUNT: u32 = 100;

/// Superblocks are read one after the other, and others may raise their counts in between: then
/// those that were read first look as if their members had missed something. So where one is behind
/// all are read again, until nothing has changed between two looks.
pub(crate) fn steady(config: &Config, mut findings: Vec<Finding>) -> Result<Vec<Finding>, AttachError> {
    let counts = |findings: &[Finding]| -> Vec<Option<u64>> { findings.iter().map(Finding::event_count).collect() };
    for _ in 0..STEADY_COUNT {
        let found = counts(&findings);
        let newest = found.iter().flatten().max().copied().unwrap_or(0);
        if found.iter().flatten().all(|count| count + 1 >= newest) {
            break;
        }
        findings = inspect_all(config)?;
        if counts(&findings) == found {
            break;
        }
    }
    Ok(findings)
}

/// Whether a member that was in sync is not any more.
pub(crate) fn has_fewer_in_sync(members: &[Member], before: &[Standing]) -> bool {
    let is_in_sync = |standing: Standing| standing == Standing::InSync;
    members.iter().zip(before).any(|(member, &before)| is_in_sync(before) && !is_in_sync(member.standing))
}

/// Compares what was found with the configuration and decides the standing of each member.
pub(crate) fn judge(config: &Config, findings: Vec<Finding>) -> Result<Verdict, AttachError> {
    let is_meant = |superblock: &&Superblock| config.uuid.is_none_or(|uuid| superblock.array_uuid == uuid);
    let newest = Superblock::newest(findings.iter().filter_map(Finding::superblock).filter(is_meant));
    // A member that this program must not write goes out, but what it says of the others counts:
    // they may have missed what it has.
    let is_writable = |superblock: &&Superblock| superblock.unknown_read_only_features() == 0;
    let writable = findings.iter().filter_map(Finding::superblock).filter(is_meant).filter(is_writable);
    let writable = Superblock::newest(writable).cloned();
    let mut own = findings.iter().filter(|finding| finding.superblock().as_ref().is_some_and(is_meant));
    let refusal = findings.iter().find_map(Finding::refusal).cloned().or_else(|| own.find_map(Finding::read_only_features));
    let newest = newest.cloned().ok_or_else(|| refusal.clone().unwrap_or_else(|| not_there(config, &findings)))?;
    require_newest(&newest, &findings)?;
    check_against(config, &newest)?;
    replace::require_present(config, &newest, findings.iter().filter(|finding| finding.is_of(newest.array_uuid)))?;
    split::check(findings.iter().filter(|finding| finding.is_of(newest.array_uuid)))?;
    let mut members: Vec<Option<Member>> = (0..newest.member_count).map(|_| None).collect();
    let mut without_superblock = Vec::new();
    for finding in findings {
        let Some(superblock) = finding.superblock() else {
            without_superblock.push(finding);
            continue;
        };
        if superblock.array_uuid != newest.array_uuid && config.uuid.is_some() {
            // Which array is meant is known: another one's member in the place of one of its own is
            // no more than a missing one.
            without_superblock.push(finding);
            continue;
        }
        if superblock.array_uuid != newest.array_uuid {
            return Err(AttachError::OtherArray {
                path: finding.path.clone(),
                found: superblock.array_uuid,
                expected: newest.array_uuid,
            });
        }
        let slot = superblock.slot;
        let standing = standing(superblock, &newest);
        if slot >= members.len() || members[slot].is_some() {
            return Err(AttachError::SlotTwice { path: finding.path.clone(), slot });
        }
        if let Some(error) = finding.read_only_features() {
            members[slot] = Some(Finding::refused(finding.path, error).into_missing(slot));
            continue;
        }
        let is_rebuilding = standing == Standing::InSync && newest.members[slot].state == MemberState::Rebuilding;
        let stale = (standing == Standing::Stale).then(|| why::stale(superblock, &newest).into());
        let member = finding.into_member(slot, standing);
        let reason = stale.or(member.finding);
        let is_rebuilding = is_rebuilding && member.standing == Standing::InSync;
        members[slot] = Some(Member { is_rebuilding, finding: reason, ..member });
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
    let members = without_copies(&newest, emptied::without_trees(members));
    match refusal {
        // Without that one it could be used.
        Some(refusal) if !newest.geometry()?.survives(lacking(&members)) => Err(refusal),
        _ => Ok(Verdict { superblock: writable.unwrap_or(newest), members }),
    }
}

/// Refuses to use members that have missed something which a member of a newer format has. This
/// program cannot read the newer superblock, but knows its event count. An update that was cut
/// short leaves a difference of one, which counts for nothing.
fn require_newest(newest: &Superblock, findings: &[Finding]) -> Result<(), AttachError> {
    let is_ahead = |finding: &&Finding| {
        let outline = finding.outline().filter(|outline| outline.array_uuid == newest.array_uuid);
        outline.is_some_and(|outline| outline.event_count > newest.event_count + 1)
    };
    let refusal = findings.iter().find(is_ahead).and_then(Finding::refusal);
    refusal.map_or(Ok(()), |refusal| Err(refusal.clone()))
}

/// Members that are not the directories which programs use, or used when the last of them was
/// killed: copies of those, which may be older than what was stored last. Where none of the members
/// is such a directory all were moved, and nothing is known.
fn without_copies(newest: &Superblock, mut members: Vec<Member>) -> Vec<Member> {
    let Some(known) = directories_in_use(newest.array_uuid, newest.access, newest.use_count) else { return members };
    let found: Vec<_> = members.iter().map(Member::directory).collect();
    let is_it = |member: &Member| known[member.slot].is_known() && found[member.slot] == known[member.slot];
    if members.iter().any(|member| member.standing == Standing::InSync && is_it(member)) {
        let is_copy =
            |member: &&mut Member| member.standing == Standing::InSync && found[member.slot].differs_from(known[member.slot]);
        members.iter_mut().filter(is_copy).for_each(|member| member.standing = Standing::Replaced);
    }
    members
}

/// The members in use that may still lack bytes of files.
pub(crate) fn rebuilding(members: &[Member]) -> MemberSet {
    members.iter().filter(|member| member.is_rebuilding).map(|member| member.slot).collect()
}

/// The members on which bytes are missing.
pub(crate) fn lacking(members: &[Member]) -> MemberSet {
    members.iter().filter(|member| member.lacks_bytes()).map(|member| member.slot).collect()
}

/// Why no member of the array is found.
fn not_there(config: &Config, findings: &[Finding]) -> AttachError {
    let other = findings.iter().find_map(|finding| Some((finding, finding.superblock()?.array_uuid)));
    // One whose file system fails does not say whose it is: nobody is to give the array up.
    if let Some((finding, error)) = findings.iter().find_map(|finding| Some((finding, finding.failure()?))) {
        return AttachError::Unreadable { path: finding.path.clone(), error };
    }
    match (config.uuid, other) {
        (Some(expected), Some((finding, found))) => AttachError::OtherArray { path: finding.path.clone(), found, expected },
        (Some(expected), None) => AttachError::NotMounted { path: config.mounts[0].clone(), expected },
        (None, _) => AttachError::Vanished,
    }
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
    let is_believed = believed.state.is_in_use() && believed.uuid == own.member_uuid && own.is_current(newest);
    if is_believed { Standing::InSync } else { Standing::Stale }
}

#[cfg(test)]
mod tests {
    use crate::test_array::{Home, three_members};
    use crate::{Array, AttachError, Config, Standing};
    use format::{SUPERBLOCK_BYTES, Superblock};
    use std::vec::Vec;
    use units::MemberSet;

    /// The superblocks of a member, changed by `change`.
    fn rewrite(home: &Home, slot: usize, change: impl Fn(&mut Superblock)) {
        let path = home.path(std::format!("m{slot}/.cxlraid/superblock"));
        let (mut superblock, _) = Superblock::choose(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut superblock);
        let bytes = superblock.encode();
        std::fs::write(path, [bytes, bytes].concat()).unwrap();
    }

    fn made(name: &str, level: layout::Level) -> (Home, Config) {
        let (home, config) = three_members(name, level);
        let array = Array::attach(&config).unwrap();
        let _ = std::fs::remove_file(crate::runtime::segment_path(array.uuid()));
        (home, config)
    }

    fn superblocks(home: &Home) -> Vec<Vec<u8>> {
        (0..3).map(|slot| std::fs::read(home.path(std::format!("m{slot}/.cxlraid/superblock"))).unwrap()).collect()
    }

    #[test]
    fn a_member_that_is_read_only_is_not_said_to_be_gone() {
        let (home, config) = made("read-only", layout::Level::Raid1);
        let member = |slot: usize| home.path(std::format!("m{slot}")).to_str().unwrap().as_bytes().to_vec();
        let refused = |error| {
            let findings = std::vec![super::Finding::failed(member(1), error)];
            super::judge(&config, findings).map(drop).unwrap_err()
        };
        let (read_only, failing) = (refused(sys::OsError::ROFS), refused(sys::OsError::IO));
        assert!(
            read_only.to_string().ends_with(
                "m1: its file system is read-only, so a member of the array that may be here is not used; mount it read-write"
            ),
            "{read_only}"
        );
        assert!(failing.to_string().contains("m1: its file system fails"), "{failing}");
        assert_eq!(read_only.os_error(), sys::OsError::IO);
    }

    #[test]
    fn a_member_with_features_that_forbid_writing_is_out_and_left_as_it_is() {
        assert_eq!(SUPERBLOCK_BYTES, 2 * format::COPY_BYTES);
        // The counts are the others', or an update came to that member first.
        for ahead in [0, 1] {
            let (home, config) = made("features", layout::Level::Raid5);
            rewrite(&home, 1, |own| {
                own.features.read_only_compatible = 2;
                own.event_count += ahead;
                own.previous_update_id = if ahead == 1 { own.update_id } else { own.previous_update_id };
                own.update_id += ahead;
            });
            let before = superblocks(&home);
            let found = Array::foresee(&config).unwrap();
            assert_eq!(found[1].standing, Standing::Damaged);
            let why = found[1].reason().unwrap();
            assert!(why.contains("m1: ") && why.contains("must not write with (bits 0x2)"), "{why}");
            let array = Array::attach(&config).unwrap();
            assert_eq!(array.in_use(), MemberSet::from_bits(0b101), "{ahead}");
            array.before_change().unwrap();
            let _ = std::fs::remove_file(crate::runtime::segment_path(array.uuid()));
            let after = superblocks(&home);
            assert!(after[1] == before[1] && after[0] != before[0] && after[2] != before[2], "{ahead}");
            let (of_first, _) = Superblock::choose(&after[0]).unwrap();
            assert!(of_first.features.read_only_compatible == 0 && !of_first.members[1].state.is_in_use());
        }
    }

    /// What the others have missed counts, also where the member that has it must not be written:
    /// without it they are not enough.
    #[test]
    fn members_that_have_missed_what_an_unwritable_one_has_are_not_used() {
        let (home, config) = made("unwritable", layout::Level::Raid1);
        rewrite(&home, 1, |own| {
            own.features.read_only_compatible = 2;
            own.event_count += 4;
        });
        let before = superblocks(&home);
        let refused = Array::attach(&config).map(drop).unwrap_err();
        assert!(matches!(refused, AttachError::ReadOnlyFeatures { bits: 2, .. }), "{refused}");
        assert!(superblocks(&home) == before);
    }

    /// A newer program went on with one half of a mirror. This one cannot read that half, and does
    /// not start on what was left behind.
    #[test]
    fn members_that_have_missed_what_a_newer_program_stored_are_not_used() {
        for (ahead, is_used) in [(0, true), (1, true), (2, false), (40, false)] {
            let (home, config) = made("newer", layout::Level::Raid1);
            rewrite(&home, 1, |own| {
                own.features.incompatible = 1 << 40;
                own.event_count += ahead;
            });
            let before = superblocks(&home);
            let foreseen = Array::foresee(&config).map(drop);
            let started = Array::attach(&config).map(|array| {
                let _ = std::fs::remove_file(crate::runtime::segment_path(array.uuid()));
            });
            assert_eq!((foreseen.is_ok(), started.is_ok()), (is_used, is_used), "{ahead}");
            if let Err(refused) = started {
                assert!(matches!(refused, AttachError::Superblock { .. }), "{refused}");
                assert!(refused.to_string().contains("m1: "), "{refused}");
                assert_eq!(foreseen.unwrap_err().to_string(), refused.to_string());
            }
            assert!(superblocks(&home) == before);
        }
    }

    #[test]
    fn features_that_forbid_writing_on_more_members_than_may_fail_refuse_a_start() {
        for is_incompatible in [false, true] {
            let (home, config) = made("refused", layout::Level::Raid5);
            for slot in [0, 2] {
                rewrite(&home, slot, |own| {
                    let features = &mut own.features;
                    *if is_incompatible { &mut features.incompatible } else { &mut features.read_only_compatible } = 1 << 40;
                });
            }
            let before = superblocks(&home);
            let refused = Array::attach(&config).map(drop).unwrap_err();
            let is_right = match refused {
                AttachError::ReadOnlyFeatures { bits, .. } => !is_incompatible && bits == 1 << 40,
                AttachError::Superblock { .. } => is_incompatible,
                _ => false,
            };
            assert!(is_right, "{is_incompatible}");
            assert!(superblocks(&home) == before);
        }
    }
}
