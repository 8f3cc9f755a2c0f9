//! Everything an array keeps on media, byte by byte.
//!
//! All of it lies under `<member>/.cxlraid/`, apart from one extended attribute on each backing
//! file. docs/format/ draws the bytes; tests/golden/ holds images of every version that was ever
//! released, damaged ones included.
//!
//! Each structure has two faces here: the bytes (`zerocopy` structs, private, little-endian) and a
//! logical struct of plain types. `decode` accepts only what `encode` of some released version
//! could have written.
//!
//! Invariants: no I/O, clock, allocation or randomness. What is on media is never trusted: every
//! `decode` checks magic, checksum and version, in this order, before it looks at anything else,
//! and then the range of every field.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod attribute;
mod backing;
mod changed;
mod checksum;
#[cfg(test)]
mod documented;
mod inode;
mod journal;
mod lane;
mod name;
mod names;
mod rules;
mod superblock;
mod table;
mod uuid;

pub use attribute::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME, Attribute, AttributeError};
pub use backing::{
    BACKING_CHECK_OFFSET, BACKING_FILE_OFFSET, BACKING_GENERATION_OFFSET, BACKING_RECORD_BYTES, backing_check,
    backing_record_offset, is_sound_backing,
};
pub use changed::{
    CHANGED, CHANGED_FILE_BYTES, CHANGED_MARK_BYTES, CHANGED_MARK_COUNT, CHANGED_MARKS_OFFSET, CHANGED_RECORD_BYTES,
    CHANGED_RECORDS_END, CHANGED_UPDATE_COUNT, KEPT_BYTES, Kept, LEFT_BYTES, Leave, changed_mark, changed_record_offset,
    changed_update_offset, changed_void, changed_void_offset, decode_changed_update, decode_left, encode_changed_update,
    encode_left, is_changed_void, is_sound_changed_record, is_sound_mark, unchanged_mark,
};
pub use inode::{
    CHECKSUM_OFFSET, CONSTANT, FLAG_DOUBTFUL, FLAG_HOLES, FLAG_MAPPED, FLAG_SLACK, FLAGS_OFFSET, GENERATION_OFFSET,
    INODE_COUNT_MAX, INODE_RECORD_BYTES, InodeError, InodeRecord, InodeState, LOST_MASK_OFFSET, NOTES_CHECK_OFFSET,
    RESYNC_END_OFFSET, RESYNC_START_OFFSET, Resync, SHAPE_OFFSET, SIZE_CHECK_OFFSET, SIZE_OFFSET, STATE_OFFSET, Shape,
    ShapeError, Sound, bad_part, inode_record_offset, inode_table_bytes, is_whole, judge, notes_check, size_check, with_checks,
};
pub use journal::{
    JOURNAL_DATA_BYTES_MAX, JOURNAL_HEADER_BYTES, JOURNAL_LANE_COUNT_MAX, JOURNAL_LANE_HEAD_BYTES, JOURNAL_RECORD_BYTES,
    JOURNAL_SETTLED_OFFSET, JOURNAL_SUPPORTED, JournalError, JournalHeader, JournalRecord,
};
pub use lane::{LANE_COUNT, LANE_FILE_BYTES, LANE_RECORD_BYTES, LaneError, LaneKind, LaneRecord, lane_offset};
pub use name::{ARRAY_NAME_BYTES_MAX, ArrayName, NameError};
pub use names::{
    NAME_RECORD_ALIGN, NAME_RECORD_BYTES_MAX, NAMES_FILE_BYTES, NAMES_RING_BYTES, NameKind, NameRecord, PATH_BYTES_MAX,
};
pub use rules::{NewRule, RULE_COUNT_MAX, RULE_PART_MAX, RULES_BYTES_MAX, Rule, RuleShape, RulesError, RulesFile};
pub use superblock::{
    Access, COPY_BYTES, Features, INCOMPATIBLE_SHAPES, JournalEntry, JournalPath, MemberEntry, MemberState, Outline, ReadPolicy,
    SUPERBLOCK_BYTES, SUPPORTED, Superblock, SuperblockError,
};
pub use table::{TABLE_HEADER_BYTES, TABLE_MARK_BYTES, TableError, TableHeader, TableKind};
pub use uuid::{Uuid, UuidError};

use core::fmt;

/// The directory in each member's root that holds everything of the array's own.
pub const DIRECTORY: &core::ffi::CStr = c".cxlraid";
/// How the names within [`DIRECTORY`] begin of files that are open and have lost their last name:
/// `orphan-<inode>-<generation>`.
pub const ORPHAN_PREFIX: &str = "orphan-";
/// The superblock's name within [`DIRECTORY`].
pub const SUPERBLOCK_FILE: &core::ffi::CStr = c"superblock";
/// The inode table's name within [`DIRECTORY`].
pub const INODES_FILE: &core::ffi::CStr = c"inodes";
/// The header that the inode table is being given, of a version that it has not had yet. There only
/// while that is under way, or was cut short.
pub const INODES_HEADER_FILE: &core::ffi::CStr = c"inodes.header";
/// The log of names' name within [`DIRECTORY`].
pub const NAMES_FILE: &core::ffi::CStr = c"names";
/// The table of backing files' name within [`DIRECTORY`].
pub const BACKINGS_FILE: &core::ffi::CStr = c"backings";
/// The name within [`DIRECTORY`] of the table of files that changed while a member was out.
pub const CHANGED_FILE: &core::ffi::CStr = c"changed";
/// The name within [`DIRECTORY`] of what says that a member which is made anew keeps its files.
pub const KEPT_FILE: &core::ffi::CStr = c"kept";
/// The name within [`DIRECTORY`] of the token that a member has got as it left in order.
pub const LEFT_FILE: &core::ffi::CStr = c"left";
/// The name within [`DIRECTORY`] of the directory of the sums of files' blocks.
pub const SUMS_DIRECTORY: &core::ffi::CStr = c"sums";
/// The lanes' name within [`DIRECTORY`].
pub const LANES_FILE: &core::ffi::CStr = c"lanes";

/// The rules' name within [`DIRECTORY`].
pub const RULES_FILE: &core::ffi::CStr = c"rules";
/// The name within [`DIRECTORY`] of rules that are to replace others, until they are durable.
pub const RULES_NEW_FILE: &core::ffi::CStr = c"rules.new";
/// The journal's name within [`DIRECTORY`], where it is on the members.
pub const JOURNAL_FILE: &core::ffi::CStr = c"journal";

/// The version of a structure on media. A higher major cannot be read by older programs, a higher
/// minor can.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Version {
    /// Raised by a change that an older program would misread.
    pub major: u16,
    /// Raised by a change that an older program may ignore.
    pub minor: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
