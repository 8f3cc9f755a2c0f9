//! `.cxlraid/superblock`: what an array is and which of its members can be believed.
//!
//! The file holds two copies, at offsets 0 and 4096, written in turn, so that a torn write leaves
//! the previous copy whole. The valid copy with the higher event count wins, the later copy
//! sequence among equals. It exists against two faults: a write cut short by power loss, and a
//! member that was away and comes back with an older view of the array.
//!
//! Invariants:
//! - magic, version and checksum stay where they are in every version to come, so that an old
//!   program can tell a newer array from a damaged one. A valid copy of a newer version is never
//!   passed over in favour of an older copy;
//! - array and member UUID never change within a file: a member that takes another's place gets a
//!   new file.

use crate::checksum::crc32c;
use crate::{ArrayName, Uuid, Version};
use core::mem::{offset_of, size_of};
use layout::{Geometry, Level};
use units::{ChunkBytes, MEMBER_COUNT_MAX, Slot};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one copy.
pub const COPY_BYTES: usize = 4096;
/// Bytes of the file: two copies.
pub const SUPERBLOCK_BYTES: usize = 2 * COPY_BYTES;
/// The version this program writes, and the highest it reads.
// 1.1: the journal. 1.2: the use of the array that tables must be of. 1.3: the mark of an orderly
// end. 1.4: the names of updates, and the event count with which a member went out. 1.5: members
// that are written mostly. 1.6: the read policy, and a member that says that another directory has
// its place.
pub const SUPPORTED: Version = Version { major: 1, minor: 6 };

/// Bytes of the journal's path, with at least one NUL.
const JOURNAL_PATH_BYTES: usize = 1024;
const MAGIC: [u8; 8] = *b"CXLRAID\0";
/// The array has a journal: a program that does not know it would write without, and what the
/// journal holds would later be put over that.
const INCOMPATIBLE_JOURNAL: u64 = 1;
const JOURNAL_EXTERNAL: u8 = 1;
const JOURNAL_INTERNAL: u8 = 2;
/// A member is being rebuilt: a program that does not know that state would not tell what the array
/// bears meanwhile.
const INCOMPATIBLE_REBUILDING: u64 = 2;
/// Files have sums of their blocks: a program that does not know them would store bytes that no
/// longer fit their sums.
const INCOMPATIBLE_SUMS: u64 = 4;
/// Files may have another level or chunk than the array, by rules: a program that does not know it
/// would not tell which files a member's loss takes along.
pub const INCOMPATIBLE_SHAPES: u64 = 8;
/// Reads compare blocks with their sums: a program that does not know it reads the same bytes, and
/// does not notice what has rotted.
const COMPATIBLE_VERIFY_READS: u64 = 1;
/// The bits that follow from other fields, and are not among [`Superblock::features`].
const INCOMPATIBLE_DERIVED: u64 = INCOMPATIBLE_JOURNAL | INCOMPATIBLE_REBUILDING;
const INCOMPATIBLE_KNOWN: u64 = INCOMPATIBLE_DERIVED | INCOMPATIBLE_SUMS | INCOMPATIBLE_SHAPES;
const READ_ONLY_KNOWN: u64 = 0;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version_major: U16,
    version_minor: U16,
    reserved_12: [u8; 4],
    compatible: U64,
    incompatible: U64,
    read_only_compatible: U64,
    array_uuid: Uuid,
    member_uuid: Uuid,
    array_name: [u8; 64],
    created_ns: U64,
    event_count: U64,
    update_ns: U64,
    copy_sequence: U64,
    owner_uid: U32,
    owner_gid: U32,
    mode: U32,
    slot: u8,
    member_count: u8,
    level: u8,
    chunk_shift: u8,
    use_count: U64,
    members: [MemberBytes; MEMBER_COUNT_MAX],
    journal_kind: u8,
    reserved_1217: [u8; 7],
    journal_uuid: Uuid,
    journal_path: [u8; JOURNAL_PATH_BYTES],
    clean_count: U64,
    update_id: U64,
    previous_update_id: U64,
    read_policy: u8,
    reserved_2289: [u8; 1803],
    checksum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MemberBytes {
    uuid: Uuid,
    state: u8,
    flags: u8,
    reserved_18: [u8; 6],
    out_count: U64,
}

const _: () = assert!(size_of::<Bytes>() == COPY_BYTES);
const _: () = assert!(size_of::<MemberBytes>() == 32);
const _: () = assert!(offset_of!(Bytes, array_uuid) == 40);
const _: () = assert!(offset_of!(Bytes, members) == 192);
const _: () = assert!(offset_of!(Bytes, journal_kind) == 1216);
const _: () = assert!(offset_of!(Bytes, clean_count) == 2264);
const _: () = assert!(offset_of!(Bytes, update_id) == 2272);
const _: () = assert!(offset_of!(Bytes, read_policy) == 2288);
const _: () = assert!(offset_of!(Bytes, checksum) == 4092);

/// One copy of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// What the array uses beyond the base format.
    pub features: Features,
    /// Names the array.
    pub array_uuid: Uuid,
    /// Names the array to people.
    pub array_name: ArrayName,
    /// Names the member this superblock lies on.
    pub member_uuid: Uuid,
    /// The position in [`Self::members`] of the member this superblock lies on.
    pub slot: Slot,
    /// Members of the array, without spares. Slots below it are members, slots from it on are
    /// spares or absent.
    pub member_count: usize,
    /// The level of files for which no rule says otherwise.
    pub level: Level,
    /// The chunk of files for which no rule says otherwise.
    pub chunk: ChunkBytes,
    /// The users who are trusted with the array.
    pub access: Access,
    /// When the array was created, in nanoseconds since 1970 (UTC).
    pub created_ns: u64,
    /// Raised on all in-sync members by each change of member states. A member with a lower count
    /// is stale.
    pub event_count: u64,
    /// The event count of the array when it was last taken into use: tables with a lower mark were
    /// put back from an older copy. 0 before the first use, and in superblocks of versions before
    /// 1.2.
    pub use_count: u64,
    /// The event count with which the array was last ended in order. 0 if it never was, and in
    /// superblocks of versions before 1.3.
    pub clean_count: u64,
    /// Names the update that wrote this: a number that was drawn for it, the same on all members. 0
    /// in superblocks of versions before 1.4.
    pub update_id: u64,
    /// The name of the update before. 0 if there was none, or one of a version before 1.4.
    pub previous_update_id: u64,
    /// The [`ReadPolicy::code`] of the array, or that of a policy of a later version, which is
    /// kept. 0 in superblocks of versions before 1.6.
    pub read_policy: u8,
    /// When this copy was written, in nanoseconds since 1970 (UTC). For people; nothing is decided
    /// by it.
    pub update_ns: u64,
    /// Raised by each write of this file.
    pub copy_sequence: u64,
    /// The array as this member last saw it.
    pub members: [MemberEntry; MEMBER_COUNT_MAX],
    /// The array's journal. The feature bit that stands for it on media is not among
    /// [`Self::features`].
    pub journal: Option<JournalEntry>,
}

/// Where an array's journal is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalEntry {
    /// Names the journal; the one that is found must have it.
    pub uuid: Uuid,
    /// The file; None for `.cxlraid/journal` on the members.
    pub path: Option<JournalPath>,
}

/// The path of a journal that is not on the members: absolute, at most 1023 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JournalPath([u8; JOURNAL_PATH_BYTES]);

impl JournalPath {
    /// None if the path is too long, empty, not absolute or holds a NUL.
    #[must_use]
    pub fn new(path: &[u8]) -> Option<Self> {
        if path.len() >= JOURNAL_PATH_BYTES || path.first() != Some(&b'/') || path.contains(&0) {
            return None;
        }
        let mut bytes = [0; JOURNAL_PATH_BYTES];
        bytes[..path.len()].copy_from_slice(path);
        Some(Self(bytes))
    }

    fn from_media(bytes: [u8; JOURNAL_PATH_BYTES]) -> Option<Self> {
        let end = bytes.iter().position(|&byte| byte == 0)?;
        Self::new(&bytes[..end]).filter(|path| path.0 == bytes)
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(0);
        &self.0[..end]
    }
}

impl core::fmt::Debug for JournalPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// Which copy of the bytes a read takes, where the level keeps copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ReadPolicy {
    /// Copies take turns, by file and by region of a file.
    #[default]
    RoundRobin = 0,
    /// Copies in memory that is nearest to the processor on which the reader runs.
    Local = 1,
    /// Copies take turns in inverse proportion to the time that reads of them take.
    Latency = 2,
}

impl ReadPolicy {
    /// Every policy, ascending by code.
    pub const ALL: [Self; 3] = [Self::RoundRobin, Self::Local, Self::Latency];

    /// The number stored on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The policy stored as `code`. One that this program does not know is round robin to it: all
    /// copies hold the same bytes.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|policy| policy.code() == code).unwrap_or_default()
    }

    /// The policy's name in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Local => "local",
            Self::Latency => "latency",
        }
    }
}

/// Feature bits: what a program that does not know a bit may still do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// May read and write.
    pub compatible: u64,
    /// Must not touch the array.
    pub incompatible: u64,
    /// May read.
    pub read_only_compatible: u64,
}

/// The trust domain of an array: who may write `.cxlraid/` and the runtime segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Owning user.
    pub owner_uid: u32,
    /// Owning group.
    pub owner_gid: u32,
    /// Permission bits as in chmod(2), `0..=0o7777`.
    pub mode: u32,
}

/// One member or spare in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberEntry {
    /// Names the member; nil if absent, or missing since creation.
    pub uuid: Uuid,
    /// What is known of it.
    pub state: MemberState,
    /// The event count that the array had when the member was put on record as out: no other use
    /// with it was seen. 0 in a member that is in use, and where a version before 1.4 recorded the
    /// loss.
    pub out_count: u64,
    /// [`Self::WRITE_MOSTLY`], [`Self::REPLACED`], [`Self::FAST`], and bits of later versions. 0 in
    /// superblocks of versions before 1.5.
    pub flags: u8,
}

/// What the writer of a superblock knew about a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MemberState {
    /// No member in this slot.
    #[default]
    Absent = 0,
    /// Holds everything.
    InSync = 1,
    /// Was not found, or not given at creation.
    Missing = 2,
    /// Returned errors and was taken out.
    Failed = 3,
    /// Lacks changes made while it was out; being rebuilt, or waiting for it.
    Stale = 4,
    /// Holds nothing yet, waits to replace a member.
    Spare = 5,
    /// Holds all names, and is written; some files' bytes on it are still to be computed from the
    /// other members (the inode table says which).
    Rebuilding = 6,
}

impl MemberState {
    /// Every state, ascending by code.
    pub const ALL: [Self; 7] =
        [Self::Absent, Self::InSync, Self::Missing, Self::Failed, Self::Stale, Self::Spare, Self::Rebuilding];

    /// Whether every change is made on such a member.
    #[must_use]
    pub const fn is_in_use(self) -> bool {
        matches!(self, Self::InSync | Self::Rebuilding)
    }

    /// The number stored on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The state stored as `code`.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }
}

/// Why a superblock cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// Neither copy begins with the magic.
    #[error("not a cxlraid superblock (no magic); check that this path is a member, or create an array on it")]
    NotASuperblock,
    /// The file ends within the first copy.
    #[error("the superblock ends after {bytes} bytes of {COPY_BYTES}; assemble without this member, then rebuild it")]
    Truncated {
        /// Bytes found.
        bytes: usize,
    },
    /// A copy has the magic and a wrong checksum, and no other copy is valid. Copy 0 if a copy was
    /// decoded alone.
    #[error(
        "superblock copy {copy} is damaged (wrong checksum) and no other copy is whole; assemble without this member, \
         then rebuild it"
    )]
    BadChecksum {
        /// The first damaged copy.
        copy: usize,
    },
    /// Written by a program with a newer format.
    #[error("the array has format version {found}, this program reads up to {supported}; use a newer cxlraid")]
    NewerVersion {
        /// On media.
        found: Version,
        /// The highest this program reads.
        supported: Version,
    },
    /// The array uses features without which it cannot be read.
    #[error("the array uses features this program does not know (incompatible bits {bits:#x}); use a newer cxlraid")]
    UnknownIncompatibleFeatures {
        /// The unknown bits.
        bits: u64,
    },
    /// The checksum is right and a field makes no sense: written by a faulty program.
    #[error("the superblock is whole but its {field} makes no sense; report this, and assemble without this member")]
    Invalid {
        /// Which field.
        field: &'static str,
    },
    /// The two copies are valid and name different arrays or members.
    #[error("the two superblock copies belong to different arrays; remove the file if the member is to be created anew")]
    CopiesDisagree,
    /// The superblock is whole, and the tables beside it name another member of the array: it was
    /// put there by hand.
    #[error(
        "the superblock is another member's: the tables beside it say so; put the right one back, or empty this directory and rebuild the member"
    )]
    OfAnotherMember,
}

/// The fields that a superblock of any version has at the same places. A program knows them also of
/// a superblock that it is too old to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outline {
    /// The UUID of the array.
    pub array_uuid: Uuid,
    /// The event count of the newest copy.
    pub event_count: u64,
}

impl Outline {
    /// Returns the fields of the newest copy in a superblock's file, of the copies whose magic and
    /// checksum are right, whatever their versions and features. None if no copy is right.
    #[must_use]
    pub fn of(file: &[u8]) -> Option<Self> {
        let copies = [0, COPY_BYTES].into_iter().filter_map(|start| Bytes::whole(file.get(start..)?, 0).ok());
        let newest = copies.max_by_key(|copy| copy.age())?;
        Some(Self { array_uuid: newest.array_uuid, event_count: newest.event_count.get() })
    }
}

impl Superblock {
    /// The incompatible feature bits that follow from what this says.
    fn incompatible_in_use(&self) -> u64 {
        let is_rebuilding = self.members.iter().any(|member| member.state == MemberState::Rebuilding);
        let journal = if self.journal.is_some() { INCOMPATIBLE_JOURNAL } else { 0 };
        journal | if is_rebuilding { INCOMPATIBLE_REBUILDING } else { 0 }
    }

    /// The bytes of one copy.
    #[must_use]
    pub fn encode(&self) -> [u8; COPY_BYTES] {
        let mut bytes = Bytes {
            magic: MAGIC,
            version_major: SUPPORTED.major.into(),
            version_minor: SUPPORTED.minor.into(),
            reserved_12: [0; 4],
            compatible: self.features.compatible.into(),
            incompatible: (self.features.incompatible | self.incompatible_in_use()).into(),
            read_only_compatible: self.features.read_only_compatible.into(),
            array_uuid: self.array_uuid,
            member_uuid: self.member_uuid,
            array_name: self.array_name.to_media(),
            created_ns: self.created_ns.into(),
            event_count: self.event_count.into(),
            update_ns: self.update_ns.into(),
            copy_sequence: self.copy_sequence.into(),
            owner_uid: self.access.owner_uid.into(),
            owner_gid: self.access.owner_gid.into(),
            mode: self.access.mode.into(),
            slot: self.slot as u8,
            member_count: self.member_count as u8,
            level: self.level.code(),
            chunk_shift: self.chunk.shift() as u8,
            use_count: self.use_count.into(),
            members: self.members.map(MemberEntry::to_media),
            journal_kind: match self.journal {
                None => 0,
                Some(JournalEntry { path: Some(_), .. }) => JOURNAL_EXTERNAL,
                Some(JournalEntry { path: None, .. }) => JOURNAL_INTERNAL,
            },
            reserved_1217: [0; 7],
            journal_uuid: self.journal.map_or(Uuid::NIL, |journal| journal.uuid),
            journal_path: self.journal.and_then(|journal| journal.path).map_or([0; JOURNAL_PATH_BYTES], |path| path.0),
            clean_count: self.clean_count.into(),
            update_id: self.update_id.into(),
            previous_update_id: self.previous_update_id.into(),
            read_policy: self.read_policy,
            reserved_2289: [0; 1803],
            checksum: U32::ZERO,
        };
        bytes.checksum = bytes.compute_checksum().into();
        zerocopy::transmute!(bytes)
    }

    /// The meaning of one copy. A wrong checksum is reported as that of copy 0.
    pub fn decode(bytes: &[u8; COPY_BYTES]) -> Result<Self, SuperblockError> {
        Bytes::check(bytes, 0)?.to_superblock()
    }

    /// The newest valid copy in the whole file, and its index. Bytes after the second copy are
    /// ignored; a file that ends within the second copy counts as one whose second copy is torn.
    pub fn choose(file: &[u8]) -> Result<(Self, usize), SuperblockError> {
        let copies = [0, 1].map(|copy| {
            let start = copy * COPY_BYTES;
            Bytes::check(file.get(start..).unwrap_or_default(), copy)
        });
        // Where a newer program has written, nothing else in the file means anything to this one.
        for copy in &copies {
            if let Err(newer @ SuperblockError::NewerVersion { .. }) = copy {
                return Err(*newer);
            }
        }
        match copies {
            [Ok(first), Ok(second)] => {
                if first.identity() != second.identity() {
                    return Err(SuperblockError::CopiesDisagree);
                }
                let (bytes, copy) = if second.age() > first.age() { (second, 1) } else { (first, 0) };
                Ok((bytes.to_superblock()?, copy))
            }
            [Ok(bytes), Err(_)] => Ok((bytes.to_superblock()?, 0)),
            [Err(_), Ok(bytes)] => Ok((bytes.to_superblock()?, 1)),
            // A damaged copy says more than one without magic.
            [Err(SuperblockError::NotASuperblock), Err(damaged @ SuperblockError::BadChecksum { .. })] => Err(damaged),
            [Err(first), Err(_)] => Err(first),
        }
    }

    /// The copy to write next, if `current` is the newest.
    #[must_use]
    pub const fn next_copy(current: usize) -> usize {
        1 - current % 2
    }

    /// Whether the array was ended in order, and nothing was changed since: all that its members
    /// hold was durable then, and agrees.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.event_count != 0 && self.clean_count == self.event_count
    }

    /// The superblock that the others of an array are compared with: the one with the highest event
    /// count. Of two with the same count, one that calls the other's member out is the newer one:
    /// the other is of an update that a crash cut short, before which the array was used without
    /// that member.
    #[must_use]
    pub fn newest<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Option<&'a Self> {
        let count = all.clone().map(|superblock| superblock.event_count).max()?;
        let latest = all.filter(|superblock| superblock.event_count == count);
        let is_called_out = |superblock: &&Self| latest.clone().any(|other| other.calls_out(superblock));
        latest.clone().filter(|superblock| !is_called_out(superblock)).last().or_else(|| latest.clone().last())
    }

    /// Whether this superblock says what the newest one says, or is what that one's update began
    /// with: an update that is cut short leaves members one update apart. A superblock with such an
    /// event count may yet be of another history: of a copy of its member that was used without the
    /// others. Then it does not have the name of the same update.
    #[must_use]
    pub const fn is_current(&self, newest: &Self) -> bool {
        let is_nameless = self.update_id == 0 || newest.update_id == 0;
        if self.event_count == newest.event_count {
            is_nameless || self.update_id == newest.update_id
        } else {
            self.event_count + 1 == newest.event_count && (is_nameless || self.update_id == newest.previous_update_id)
        }
    }

    /// Whether this superblock says that its own member is in use.
    #[must_use]
    pub fn is_own_in_use(&self) -> bool {
        self.entry_of(self).is_some_and(|entry| entry.state.is_in_use())
    }

    /// Whether this superblock says that its own member is in use and the other's is out. A member
    /// that was made anew since has another UUID, and is not the one that this superblock calls
    /// out.
    #[must_use]
    pub fn calls_out(&self, other: &Self) -> bool {
        self.is_own_in_use() && self.entry_of(other).is_some_and(|entry| !entry.state.is_in_use())
    }

    /// What this superblock says of the member that another one lies on, if it knows that member.
    #[must_use]
    pub fn entry_of(&self, other: &Self) -> Option<&MemberEntry> {
        self.members.get(other.slot).filter(|entry| entry.uuid == other.member_uuid)
    }

    /// Tells whether files may have another level or chunk than the array ([`INCOMPATIBLE_SHAPES`]).
    #[must_use]
    pub const fn has_shapes(&self) -> bool {
        self.features.incompatible & INCOMPATIBLE_SHAPES != 0
    }

    /// The array's read policy.
    #[must_use]
    pub fn read_policy(&self) -> ReadPolicy {
        ReadPolicy::from_code(self.read_policy)
    }

    /// The byte offset of a copy within the file.
    #[must_use]
    pub const fn copy_offset(copy: usize) -> u64 {
        (copy * COPY_BYTES) as u64
    }

    /// Tells whether the array's files have sums of their blocks.
    #[must_use]
    pub const fn has_sums(&self) -> bool {
        self.features.incompatible & INCOMPATIBLE_SUMS != 0
    }

    /// Says that the array's files have sums of their blocks. An array is made so.
    #[must_use]
    pub const fn with_sums(mut self) -> Self {
        self.features.incompatible |= INCOMPATIBLE_SUMS;
        self
    }

    /// Tells whether every read compares the blocks that it returns with their sums.
    #[must_use]
    pub const fn verifies_reads(&self) -> bool {
        self.has_sums() && self.features.compatible & COMPATIBLE_VERIFY_READS != 0
    }

    /// Says whether every read compares the blocks that it returns with their sums.
    pub const fn set_verifies_reads(&mut self, is_so: bool) {
        let others = self.features.compatible & !COMPATIBLE_VERIFY_READS;
        self.features.compatible = if is_so { others | COMPATIBLE_VERIFY_READS } else { others };
    }

    /// Feature bits that forbid this program to write to the array. It may read.
    #[must_use]
    pub const fn unknown_read_only_features(&self) -> u64 {
        self.features.read_only_compatible & !READ_ONLY_KNOWN
    }

    /// The shape of files for which no rule says otherwise, and what the array as a whole bears.
    pub fn geometry(&self) -> Result<Geometry, layout::GeometryError> {
        Geometry::new(self.level, self.member_count, self.chunk)
    }

    /// What [`Self::decode`] requires of the fields; to be checked before writing.
    pub fn validate(&self) -> Result<(), SuperblockError> {
        let require = |holds: bool, field| if holds { Ok(()) } else { Err(SuperblockError::Invalid { field }) };
        require(!self.array_uuid.is_nil(), "array UUID")?;
        require(!self.member_uuid.is_nil(), "member UUID")?;
        require(self.slot < MEMBER_COUNT_MAX, "slot")?;
        require(self.geometry().is_ok(), "member count")?;
        require(self.access.mode <= 0o7777, "mode")?;
        require(self.members[self.slot].uuid == self.member_uuid, "member table")?;
        let fits = |(slot, entry): (Slot, &MemberEntry)| entry.fits(slot < self.member_count);
        require(self.members.iter().enumerate().all(fits), "member table")
    }
}

impl MemberEntry {
    /// Sets bits of [`Self::flags`], or clears them.
    pub const fn set_flag(&mut self, bits: u8, is_so: bool) {
        self.flags = if is_so { self.flags | bits } else { self.flags & !bits };
    }

    /// In [`Self::flags`]: the member is read from only where no other member has a copy of the
    /// bytes (mdadm(8), --write-mostly).
    pub const WRITE_MOSTLY: u8 = 1;

    /// Tells whether the member is read from only where no other member has a copy of the bytes.
    #[must_use]
    pub const fn is_write_mostly(&self) -> bool {
        self.flags & Self::WRITE_MOSTLY != 0
    }

    /// In [`Self::flags`], in the superblock of the member itself and in no other: another directory
    /// has taken the member's place in the array.
    pub const REPLACED: u8 = 2;

    /// Tells whether another directory has taken the member's place.
    #[must_use]
    pub const fn is_replaced(&self) -> bool {
        self.flags & Self::REPLACED != 0
    }

    /// In [`Self::flags`]: the member is fast, and a restart of the machine empties it; the others give
    /// back what it held.
    pub const FAST: u8 = 4;

    /// Tells whether the member is fast, and a restart of the machine empties it.
    #[must_use]
    pub const fn is_fast(&self) -> bool {
        self.flags & Self::FAST != 0
    }

    const fn to_media(self) -> MemberBytes {
        MemberBytes {
            uuid: self.uuid,
            state: self.state.code(),
            flags: self.flags,
            reserved_18: [0; 6],
            out_count: U64::new(self.out_count),
        }
    }

    /// Whether the state is possible for a member (or else a spare), and the UUID goes with it.
    fn fits(&self, is_member: bool) -> bool {
        match self.state {
            MemberState::Absent => !is_member && self.uuid.is_nil(),
            MemberState::Spare => !is_member && !self.uuid.is_nil(),
            MemberState::Missing => is_member,
            MemberState::InSync | MemberState::Failed | MemberState::Stale | MemberState::Rebuilding => {
                is_member && !self.uuid.is_nil()
            }
        }
    }
}

impl Bytes {
    /// A copy whose magic and checksum are right, of any version.
    fn whole(bytes: &[u8], copy: usize) -> Result<&Self, SuperblockError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(SuperblockError::NotASuperblock);
        }
        let truncated = |_| SuperblockError::Truncated { bytes: bytes.len() };
        let (this, _) = Self::ref_from_prefix(bytes).map_err(truncated)?;
        if this.checksum.get() != this.compute_checksum() {
            return Err(SuperblockError::BadChecksum { copy });
        }
        Ok(this)
    }

    /// The copy, if magic, checksum and version are right. All other fields are still unchecked.
    fn check(bytes: &[u8], copy: usize) -> Result<&Self, SuperblockError> {
        let this = Self::whole(bytes, copy)?;
        let found = Version { major: this.version_major.get(), minor: this.version_minor.get() };
        match found.major {
            0 => Err(SuperblockError::Invalid { field: "version" }),
            major if major > SUPPORTED.major => Err(SuperblockError::NewerVersion { found, supported: SUPPORTED }),
            _ => Ok(this),
        }
    }

    fn compute_checksum(&self) -> u32 {
        crc32c(&[&self.as_bytes()[..offset_of!(Self, checksum)]])
    }

    /// What never changes within a file.
    const fn identity(&self) -> (Uuid, Uuid) {
        (self.array_uuid, self.member_uuid)
    }

    /// Orders the copies of one file.
    const fn age(&self) -> (u64, u64) {
        (self.event_count.get(), self.copy_sequence.get())
    }

    fn to_superblock(&self) -> Result<Superblock, SuperblockError> {
        let unknown = self.incompatible.get() & !INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(SuperblockError::UnknownIncompatibleFeatures { bits: unknown });
        }
        let invalid = |field| move || SuperblockError::Invalid { field };
        let superblock = Superblock {
            features: Features {
                compatible: self.compatible.get(),
                incompatible: self.incompatible.get() & !INCOMPATIBLE_DERIVED,
                read_only_compatible: self.read_only_compatible.get(),
            },
            array_uuid: self.array_uuid,
            array_name: ArrayName::from_media(self.array_name).map_err(|_| invalid("array name")())?,
            member_uuid: self.member_uuid,
            slot: self.slot.into(),
            member_count: self.member_count.into(),
            level: Level::from_code(self.level).ok_or_else(invalid("level"))?,
            chunk: ChunkBytes::from_shift(self.chunk_shift.into()).ok_or_else(invalid("chunk"))?,
            access: Access { owner_uid: self.owner_uid.get(), owner_gid: self.owner_gid.get(), mode: self.mode.get() },
            created_ns: self.created_ns.get(),
            event_count: self.event_count.get(),
            use_count: self.use_count.get(),
            clean_count: self.clean_count.get(),
            update_id: self.update_id.get(),
            previous_update_id: self.previous_update_id.get(),
            read_policy: self.read_policy,
            update_ns: self.update_ns.get(),
            copy_sequence: self.copy_sequence.get(),
            members: self.decode_members()?,
            journal: self.decode_journal().ok_or_else(invalid("journal"))?,
        };
        superblock.validate()?;
        Ok(superblock)
    }

    /// None if it makes no sense.
    fn decode_journal(&self) -> Option<Option<JournalEntry>> {
        if self.incompatible.get() & INCOMPATIBLE_JOURNAL == 0 {
            // Also what version 1.0 called reserved.
            return Some(None);
        }
        let path = match self.journal_kind {
            JOURNAL_EXTERNAL => Some(JournalPath::from_media(self.journal_path)?),
            JOURNAL_INTERNAL => None,
            _ => return None,
        };
        if self.journal_uuid.is_nil() { None } else { Some(Some(JournalEntry { uuid: self.journal_uuid, path })) }
    }

    fn decode_members(&self) -> Result<[MemberEntry; MEMBER_COUNT_MAX], SuperblockError> {
        let mut members = [MemberEntry::default(); MEMBER_COUNT_MAX];
        for (entry, bytes) in members.iter_mut().zip(&self.members) {
            let state = MemberState::from_code(bytes.state).ok_or(SuperblockError::Invalid { field: "member state" })?;
            *entry = MemberEntry { uuid: bytes.uuid, state, out_count: bytes.out_count.get(), flags: bytes.flags };
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, MemberBytes};
    use crate::documented::assert_documented;

    #[test]
    fn a_copy_is_as_documented() {
        assert_documented!(
            "superblock.md",
            "One copy",
            Bytes,
            [
                magic,
                version_major,
                version_minor,
                reserved_12,
                compatible,
                incompatible,
                read_only_compatible,
                array_uuid,
                member_uuid,
                array_name,
                created_ns,
                event_count,
                update_ns,
                copy_sequence,
                owner_uid,
                owner_gid,
                mode,
                slot,
                member_count,
                level,
                chunk_shift,
                use_count,
                members,
                journal_kind,
                reserved_1217,
                journal_uuid,
                journal_path,
                clean_count,
                update_id,
                previous_update_id,
                read_policy,
                reserved_2289,
                checksum
            ]
        );
    }

    #[test]
    fn a_member_entry_is_as_documented() {
        assert_documented!("superblock.md", "One entry of `members`", MemberBytes, [uuid, state, flags, reserved_18, out_count]);
    }
}
