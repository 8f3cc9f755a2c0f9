//! Members that were used apart: each half of a mirror alone, say, and each has changes that the other has not.
//!
//! A member that is out is not written, so its table goes on saying what it last saw: that the others are in sync. Two members that each call the other out, and themselves in sync, were both used while the
//! other was away. Nothing says whose changes are to be kept, so a start refuses, and the operator chooses ([`prefer`]).

use crate::config::Config;
use crate::error::AttachError;
use crate::judge::inspect_all;
use crate::member::Finding;
use crate::superblock::{read, write_copy};
use alloc::vec::Vec;
use format::{MemberState, Superblock};

/// Refuses members that were used apart. `findings` are of one array.
///
/// # Errors
/// [`AttachError::UsedApart`].
pub(crate) fn check<'a>(findings: impl Iterator<Item = &'a Finding> + Clone) -> Result<(), AttachError> {
    let views = findings.filter_map(|finding| Some((finding, finding.superblock()?)));
    for (one, own) in views.clone() {
        for (other, theirs) in views.clone() {
            let all = || views.clone().map(|(_, superblock)| superblock);
            if own.slot < theirs.slot && were_used_apart(own, theirs, all) {
                return Err(AttachError::UsedApart { one: one.path.clone(), other: other.path.clone() });
            }
        }
    }
    Ok(())
}

/// Whether two members of one array were each used without the other. `all` are the superblocks of the array's members
/// that are there.
#[must_use]
pub fn were_used_apart<'a, A>(one: &Superblock, other: &Superblock, all: impl Fn() -> A) -> bool
where
    A: Iterator<Item = &'a Superblock>,
{
    let is_cut_short = |own, other| all().any(|third| never_ended(own, other, third));
    calls_out(one, other) && calls_out(other, one) && !is_cut_short(one, other) && !is_cut_short(other, one)
}

/// Whether the superblock of one member says that the other member is out, and that it is itself in sync. A member that was made anew since has another UUID, and is not the one that this superblock calls out.
fn calls_out(own: &Superblock, other: &Superblock) -> bool {
    let entry =
        |superblock: &Superblock| own.members.get(superblock.slot).filter(|entry| entry.uuid == superblock.member_uuid).copied();
    entry(own).is_some_and(|entry| entry.state.is_in_use()) && entry(other).is_some_and(|entry| !entry.state.is_in_use())
}

/// Whether a third member shows that the record by which `own` calls `other` out did not come to all members, because a
/// crash cut it short: the third one, which `own` says is in use, was used with `other` later, and calls `own` out. Nothing
/// is changed before such a record has come to all, so `own` alone has nothing that the others have not; it is stale.
fn never_ended(own: &Superblock, other: &Superblock, third: &Superblock) -> bool {
    let is_used_with_own =
        own.members.get(third.slot).is_some_and(|entry| entry.uuid == third.member_uuid && entry.state.is_in_use());
    let is_used_with_other =
        third.members.get(other.slot).is_some_and(|entry| entry.uuid == other.member_uuid && entry.state.is_in_use());
    is_used_with_own && is_used_with_other && calls_out(third, own) && third.event_count > own.event_count
}

/// Decides for what the member at a path has and those that were used with it: the others count as stale from now on. Nobody uses the array. Returns the paths of the others; none if the members
/// were not used apart, and nothing is changed then.
pub fn prefer(config: &Config, member: &[u8]) -> Result<Vec<Vec<u8>>, AttachError> {
    let findings = inspect_all(config)?;
    let preferred = findings.iter().find(|finding| finding.path == member).and_then(Finding::superblock).cloned();
    let preferred = preferred.ok_or(AttachError::Vanished)?;
    let of_array = || findings.iter().filter(|finding| finding.is_of(preferred.array_uuid));
    if check(of_array()).is_ok() {
        return Ok(Vec::new());
    }
    let newest = of_array().filter_map(Finding::superblock).map(|superblock| superblock.event_count).max().unwrap_or(0);
    let mut set_aside = Vec::new();
    // Those that are set aside last: while any of them is left to be written, this can be done again.
    for is_preferred in [true, false] {
        for finding in of_array() {
            let (Some(own), Some(meta)) = (finding.superblock(), finding.meta()) else { continue };
            if preferred.members[own.slot].state.is_in_use() != is_preferred {
                continue;
            }
            let failed = |error| AttachError::os(&finding.path, "write the superblock of", error);
            let (mut superblock, copy) = read(meta).map_err(failed)?;
            superblock.copy_sequence += 1;
            if is_preferred {
                superblock.event_count = newest + 2;
            } else {
                superblock.members[own.slot].state = MemberState::Stale;
                set_aside.push(finding.path.clone());
            }
            write_copy(meta, &superblock, Superblock::next_copy(copy)).map_err(failed)?;
        }
    }
    Ok(set_aside)
}
