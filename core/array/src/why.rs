//! Why a member is not used, in the words that the library at its start and every command use.

use alloc::format;
use alloc::string::String;
use format::{MemberState, Superblock, Uuid};

/// Nothing is at the member's path.
pub const NO_DIRECTORY: &str = "no such directory";
/// A directory that something other than cxlraid made.
pub const NO_SUPERBLOCK: &str = "no superblock";
/// An empty directory.
pub const EMPTY: &str = "the directory is empty; is its device mounted?";
/// Of a member only `.cxlraid` is there.
pub const EMPTIED: &str = "it was emptied: only .cxlraid is left";

/// The member of another array.
#[must_use]
pub fn of_array(found: Uuid) -> String {
    format!("belongs to array {found}")
}

/// Why a member with the superblock `own` is not in use by `newest`, the newest superblock of its array.
#[must_use]
pub fn stale(own: &Superblock, newest: &Superblock) -> &'static str {
    let believed = newest.members[own.slot];
    match believed.state {
        MemberState::Failed => "taken out of use; 'cxlraid rebuild' makes it anew",
        MemberState::Missing if believed.uuid == Uuid::NIL => "removed; 'cxlraid rebuild' or 'cxlraid replace' fills its place",
        _ => "changes were made while it was away",
    }
}
