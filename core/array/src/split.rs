//! Members that were used apart: each half of a mirror alone, say, and each has changes that the
//! other has not.
//!
//! A member that is out is not written, so its table goes on saying what it last saw: that the
//! others are in sync. Two members that each call the other out, and themselves in sync, were both
//! used while the other was away. So were two of which one calls the other out, while the other was
//! used after what the first one has seen: the first one was put back from an older copy and used
//! alone. Nothing says whose changes are to be kept, so a start refuses, and the operator chooses
//! ([`prefer`]).

use crate::changed;
use crate::config::Config;
use crate::error::AttachError;
use crate::judge::inspect_all;
use crate::member::Finding;
use crate::replace;
use crate::superblock::{draw_update_id, read, write_copy};
use alloc::vec::Vec;
use format::{MemberState, Superblock};
use units::MemberSet;

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

/// Whether two members of one array were each used without the other. `all` are the superblocks of
/// the array's members that are there.
#[must_use]
pub fn were_used_apart<'a, A>(one: &Superblock, other: &Superblock, all: impl Fn() -> A) -> bool
where
    A: Iterator<Item = &'a Superblock>,
{
    let is_cut_short = |own, other| all().any(|third| never_ended(own, other, third));
    let have_both_gone_on = one.calls_out(other) && other.calls_out(one);
    have_both_gone_on && !is_cut_short(one, other) && !is_cut_short(other, one)
        || [(one, other), (other, one)].iter().any(|&(own, other)| has_gone_on(own, other) && !is_cut_short(own, other))
}

/// Whether `own` calls `other` out, and `other` was used after the last use that `own` had seen:
/// `own` was put back from an older copy and then used without `other`. An update that was cut
/// short before may have come to `other` and not to `own`.
fn has_gone_on(own: &Superblock, other: &Superblock) -> bool {
    let is_later = |out_count: u64| out_count != 0 && other.event_count > out_count + 1;
    own.calls_out(other) && other.is_own_in_use() && own.entry_of(other).is_some_and(|entry| is_later(entry.out_count))
}

/// Whether a third member shows that the record by which `own` calls `other` out did not come to
/// all members, because a crash cut it short: the third one, which `own` says is in use, was used
/// with `other` later, and calls `own` out. Nothing is changed before such a record has come to
/// all, so `own` alone has nothing that the others have not; it is stale.
fn never_ended(own: &Superblock, other: &Superblock, third: &Superblock) -> bool {
    let counts = |teller: &Superblock, member| teller.entry_of(member).is_some_and(|entry| entry.state.is_in_use());
    counts(own, third) && counts(third, other) && third.calls_out(own) && third.event_count > own.event_count
}

/// Whether one of two superblocks was written by the same update as the other, or by the one
/// before. A choice that was cut short has written some of them once more.
fn is_of_one_history(one: &Superblock, other: &Superblock) -> bool {
    let follows = |later: &Superblock, earlier: &Superblock| {
        earlier.is_current(later) || earlier.update_id != 0 && later.previous_update_id == earlier.update_id
    };
    follows(one, other) || follows(other, one)
}

/// Decides for what the member at a path has and those that were used with it: the others count as
/// stale from now on. Nobody uses the array. Returns the paths of the others; none if the members
/// were not used apart, and nothing is changed then.
pub fn prefer(config: &Config, member: &[u8]) -> Result<Vec<Vec<u8>>, AttachError> {
    let findings = inspect_all(config)?;
    let preferred = findings.iter().find(|finding| finding.path == member).and_then(Finding::superblock).cloned();
    let preferred = preferred.ok_or(AttachError::Vanished)?;
    let of_array = || findings.iter().filter(|finding| finding.is_of(preferred.array_uuid));
    if check(of_array()).is_ok() {
        return Ok(Vec::new());
    }
    if let Some(newest) = Superblock::newest(of_array().filter_map(Finding::superblock)) {
        replace::require_present(config, newest, of_array())?;
    }
    let newest = of_array().filter_map(Finding::superblock).map(|superblock| superblock.event_count).max().unwrap_or(0);
    let update_id = draw_update_id().map_err(|error| AttachError::os(member, "choose", error))?;
    let all = || of_array().filter_map(Finding::superblock);
    // A member that only looks as if it were in sync with the preferred one is not believed by
    // that.
    let is_kept = |own: &Superblock| {
        let is_in_use = preferred.members[own.slot].state.is_in_use();
        is_in_use && is_of_one_history(own, &preferred) && !were_used_apart(own, &preferred, all)
    };
    let kept: MemberSet = all().filter(|own| is_kept(own)).map(|own| own.slot).collect();
    let is_whole = |slot: &usize| preferred.members[*slot].state == MemberState::InSync;
    let lacking = MemberSet::first(preferred.member_count).minus(kept.iter().filter(is_whole).collect());
    if !kept.contains(preferred.slot) || !preferred.geometry()?.survives(lacking) {
        return Err(AttachError::PreferredTooFew { path: member.to_vec(), kept: kept.len(), total: preferred.member_count });
    }
    let mut set_aside = Vec::new();
    // Those that are set aside last: while any of them is left to be written, this can be done
    // again.
    for is_preferred in [true, false] {
        for finding in of_array() {
            let (Some(own), Some(meta)) = (finding.superblock(), finding.meta()) else { continue };
            if is_kept(own) != is_preferred {
                continue;
            }
            let failed = |error| AttachError::os(&finding.path, "write the superblock of", error);
            let (mut superblock, copy) = read(meta).map_err(failed)?;
            superblock.copy_sequence += 1;
            if is_preferred {
                superblock.event_count = newest + 2;
                superblock.previous_update_id = superblock.update_id;
                superblock.update_id = update_id;
            } else {
                superblock.members[own.slot].state = MemberState::Stale;
                // What it held is not what the others go on with.
                changed::remove_left(meta).and_then(|()| changed::put_kept(meta, None, own.access)).map_err(failed)?;
                set_aside.push(finding.path.clone());
            }
            write_copy(meta, &superblock, Superblock::next_copy(copy)).map_err(failed)?;
        }
    }
    Ok(set_aside)
}
