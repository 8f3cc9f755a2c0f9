//! Why a member is not used, in the words that the library at its start and every command use.

use crate::member::Standing;
use alloc::format;
use alloc::string::String;
use format::{MemberState, Superblock, TableKind, Uuid, Version};

/// Nothing is at the member's path.
pub const NO_DIRECTORY: &str = "no such directory";
/// A directory that something other than cxlraid made.
pub const NO_SUPERBLOCK: &str = "no superblock";
/// An empty directory.
pub const EMPTY: &str = "the directory is empty; is its device mounted?";
/// A member that lacks nothing, as far as its superblock tells, and that running programs do without.
pub const NOT_IN_USE: &str = "programs that run have begun without it";
/// A member that is being made and is not in use yet.
pub const BEGUN: &str = "begun: it comes into use when 'cxlraid rebuild' goes on and running programs have been started again";
/// Another directory has taken the member's place.
pub const REPLACED: &str = "replaced: another directory has its place";
/// Of a member only `.cxlraid` is there.
pub const EMPTIED: &str = "it was emptied: only .cxlraid is left";

/// A file of `.cxlraid` shuts out users whom the array is open to.
pub const SHUT: &str = "a file of its .cxlraid shuts users out whom the array is open to";
/// A member's copy of the journal cannot be used.
pub const JOURNAL_LOST: &str = ".cxlraid/journal is missing, damaged or another array's";
/// The advice about a member that a newer program has written.
pub const NEWER_REMEDY: &str = "use the newer cxlraid, or empty the directory, and 'cxlraid rebuild' makes it anew";
/// The advice about a member whose superblock is damaged.
pub const NO_SUPERBLOCK_REMEDY: &str = "put its superblock back, or empty the directory, and 'cxlraid rebuild' makes it anew";

/// Returns what an operator can do about a member that is not used for this reason. A member in
/// sync needs nothing.
#[must_use]
pub const fn remedy(standing: Standing) -> &'static str {
    match standing {
        Standing::InSync => "",
        Standing::Missing | Standing::Leaving => "bring it back, or 'cxlraid replace' puts another in its place",
        Standing::Replaced => "put the right directory back, or 'cxlraid rebuild' makes this one anew",
        // Where it cannot be proven what the member lacks, all of it is made anew.
        Standing::Stale => "'cxlraid re-add' brings it back",
        Standing::Emptied | Standing::Damaged => "'cxlraid rebuild' makes it anew",
        Standing::Failed => {
            "mend its file system, then 'cxlraid rebuild' makes it anew, or 'cxlraid replace' puts another in its place"
        }
    }
}

/// The member of another array.
#[must_use]
pub fn of_array(found: Uuid) -> String {
    format!("belongs to array {found}")
}

/// A member one of whose tables has a format version that this program does not know.
#[must_use]
pub fn newer_table(kind: TableKind, found: Version) -> String {
    format!("its {kind} has format version {found}, which needs a newer cxlraid")
}

/// Why a member with the superblock `own` is not in use by `newest`, the newest superblock of its
/// array.
#[must_use]
pub fn stale(own: &Superblock, newest: &Superblock) -> &'static str {
    let believed = newest.members[own.slot];
    match believed.state {
        _ if own.members[own.slot].is_replaced() && believed.uuid != own.member_uuid => REPLACED,
        _ if crate::gave_place(own, newest) => REPLACED,
        _ if is_begun(own, newest) => BEGUN,
        MemberState::Failed => "taken out of use",
        MemberState::Missing if believed.uuid == Uuid::NIL => "removed",
        _ => "changes were made while it was away",
    }
}

/// Whether the member with the superblock `own` is one that was begun in the place of another, or
/// of its own former content, and has not come into use: no other superblock names it.
#[must_use]
pub fn is_begun(own: &Superblock, newest: &Superblock) -> bool {
    let entry = own.members[own.slot];
    let is_begun = entry.state == MemberState::Stale && entry.uuid == own.member_uuid && !entry.is_replaced();
    is_begun && newest.members[own.slot].uuid != own.member_uuid
}

/// What has happened to a file whose record a crash has taken, and what to do. The file may have been
/// synced: another one was about to take its place, and its record was free already.
pub const UNRECORDED: [&str; 2] = [
    "a crash of the machine has taken what the array knew of this file",
    "remove it, or truncate it; its bytes are in the directories of the members",
];
