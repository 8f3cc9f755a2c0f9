//! `.cxlraid/inodes`: one record of 64 bytes per file, the same on every member.
//!
//! Processes map the table. A record is one cache line; its size, state, flags and note for resync
//! are changed in place as atomics at the offsets given here. While no process has the file open,
//! `size` is the truth about the file's length.
//!
//! A record has three parts, each with a *check* of its own, since different locks guard them:
//! 1. the constant part: generation and shape, constant while the record is in use;
//! 2. the size;
//! 3. the *notes*: state, flags, and what waits for resync.
//!
//! A process stores a part and then its check. A crash can keep the first store and lose the
//! second: that part of this member's record does not fit its check then, and another member's copy
//! counts ([`judge`]). A part that fits its check is *sound*; a record whose parts are all sound is
//! *whole*.
//!
//! Invariants:
//! - numbers start at 1: 0 means "no inode" wherever a number is stored;
//! - each check also covers the inode's number, so that a record in the wrong place is noticed;
//! - a record is filled while its state is free, and the state is stored after everything else but
//!   the check of the notes. Of a free record only the generation, which is at least that of every
//!   file that ever had this number, and the notes are read.

use crate::checksum::crc32c;
use crate::lane::words_checksum;
use core::mem::{offset_of, size_of};
use layout::{Geometry, GeometryError, Level};
use units::{ChunkBytes, MemberSet, Slot};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one record.
pub const INODE_RECORD_BYTES: usize = 64;
/// Offset of the size (u64) within a record.
pub const SIZE_OFFSET: usize = offset_of!(Bytes, size);
/// Offset of the generation (u64) within a record.
pub const GENERATION_OFFSET: usize = offset_of!(Bytes, generation);
/// Offset of the 8 bytes within a record that hold the shape (members, level, chunk, start slot)
/// and the state.
pub const SHAPE_OFFSET: usize = offset_of!(Bytes, member_mask);
/// Offset of the state (u8, an [`InodeState`]) within a record.
pub const STATE_OFFSET: usize = offset_of!(Bytes, state);
/// Offset of the flags (u32) within a record.
pub const FLAGS_OFFSET: usize = offset_of!(Bytes, flags);
/// Offset of the check of the constant part (u32) within a record.
pub const CHECKSUM_OFFSET: usize = offset_of!(Bytes, checksum);
/// Offset of the first byte that waits for resync (u64) within a record.
pub const RESYNC_START_OFFSET: usize = offset_of!(Bytes, resync_start);
/// Offset of the end of what waits for resync (u64, 0 if nothing waits) within a record.
pub const RESYNC_END_OFFSET: usize = offset_of!(Bytes, resync_end);
/// Offset of the mask of members that lost their backing file (u32) within a record.
pub const LOST_MASK_OFFSET: usize = offset_of!(Bytes, lost_mask);
/// Offset of the check of the notes (u32) within a record.
pub const NOTES_CHECK_OFFSET: usize = offset_of!(Bytes, notes_check);
/// Offset of the check of the size (u64) within a record.
pub const SIZE_CHECK_OFFSET: usize = offset_of!(Bytes, size_check);

/// Flag: ranges of the backing files may be holes. Once set it stays.
pub const FLAG_HOLES: u32 = 1;
/// Flag: backing files may be longer than the size needs.
pub const FLAG_SLACK: u32 = 2;
/// Flag: a crash met the file while a member was out, so what is computed of that member may be
/// bytes that nobody wrote, from parity that did not fit (the write hole).
pub const FLAG_DOUBTFUL: u32 = 4;
/// Flag: the whole file may disagree between members after a crash: it has writable mappings that
/// no lane names.
pub const FLAG_MAPPED: u32 = 8;

/// Generation, members, level, chunk and start slot.
pub const CONSTANT: core::ops::Range<usize> = GENERATION_OFFSET..STATE_OFFSET;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    size: U64,
    generation: U64,
    member_mask: U32,
    level: u8,
    chunk_shift: u8,
    start_slot: u8,
    state: u8,
    flags: U32,
    checksum: U32,
    resync_start: U64,
    resync_end: U64,
    lost_mask: U32,
    notes_check: U32,
    size_check: U64,
}

const _: () = assert!(size_of::<Bytes>() == INODE_RECORD_BYTES);
const _: () = assert!(SIZE_OFFSET == 0 && GENERATION_OFFSET == 8 && SHAPE_OFFSET == 16);
const _: () = assert!(STATE_OFFSET == 23 && FLAGS_OFFSET == 24 && CHECKSUM_OFFSET == 28);
const _: () = assert!(RESYNC_START_OFFSET == 32 && RESYNC_END_OFFSET == 40 && LOST_MASK_OFFSET == 48);
const _: () = assert!(NOTES_CHECK_OFFSET == 52 && SIZE_CHECK_OFFSET == 56);

/// The highest inode number. A table has at most 256 GiB and its header.
pub const INODE_COUNT_MAX: u64 = 1 << 32;

/// The byte offset of the record of `inode` (1 to [`INODE_COUNT_MAX`]) within the file.
#[must_use]
pub const fn inode_record_offset(inode: u64) -> u64 {
    crate::TABLE_HEADER_BYTES as u64 + (inode - 1) * INODE_RECORD_BYTES as u64
}

/// The bytes of a table with room for inodes 1 to `inode_count`.
#[must_use]
pub const fn inode_table_bytes(inode_count: u64) -> u64 {
    inode_record_offset(inode_count + 1)
}

/// Whether a record belongs to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum InodeState {
    /// The record belongs to no file.
    Free = 0,
    /// The record belongs to a file that has a name.
    Used = 1,
    /// The record belongs to an orphan: a file without a name that is open, or that was open when
    /// its processes died.
    Orphan = 2,
}

impl InodeState {
    /// The number stored on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The state stored as `code`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Free),
            1 => Some(Self::Used),
            2 => Some(Self::Orphan),
            _ => None,
        }
    }
}

/// On which members of the array a file lies, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    members: MemberSet,
    start_slot: Slot,
    geometry: Geometry,
}

/// Why a file cannot have this shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShapeError {
    /// Level and number of members do not fit.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The file would start on a member that it does not lie on.
    #[error("the file would start on member {start_slot}, which is not one of its members; choose one that is")]
    StartOutside {
        /// The slot given.
        start_slot: Slot,
    },
}

impl Shape {
    /// The shape of a file of `level` on `members`; member 0 of its geometry is the one at
    /// `start_slot`.
    pub fn new(level: Level, chunk: ChunkBytes, members: MemberSet, start_slot: Slot) -> Result<Self, ShapeError> {
        let geometry = Geometry::new(level, members.len(), chunk)?;
        if !members.contains(start_slot) {
            return Err(ShapeError::StartOutside { start_slot });
        }
        Ok(Self { members, start_slot, geometry })
    }

    /// The array's slots the file lies on.
    #[must_use]
    pub const fn members(&self) -> MemberSet {
        self.members
    }

    /// The array's slot that is member 0 of the geometry.
    #[must_use]
    pub const fn start_slot(&self) -> Slot {
        self.start_slot
    }

    /// Level, number of members and chunk.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The file's slots in the order of the geometry's members: from `start_slot` upwards, then
    /// from the lowest slot up to `start_slot`.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let below = MemberSet::first(self.start_slot);
        let from_start = self.members.minus(below);
        let before_start = self.members.minus(from_start);
        from_start.iter().chain(before_start.iter())
    }
}

/// The record of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// Bytes of the file.
    pub size: u64,
    /// Tells this file from earlier ones with the same number.
    pub generation: u64,
    /// Where the file lies.
    pub shape: Shape,
    /// Not [`InodeState::Free`] in a record that was decoded.
    pub state: InodeState,
    /// [`FLAG_HOLES`], [`FLAG_SLACK`], [`FLAG_DOUBTFUL`], [`FLAG_MAPPED`]; unknown bits are kept.
    pub flags: u32,
    /// What must be made to agree before it is read.
    pub resync: Option<Resync>,
}

/// What a crash may have left disagreeing between the members of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resync {
    /// Offset in the file of the first byte that may disagree.
    pub start: u64,
    /// Offset behind the last byte that may disagree; never 0 on media. It may lie past the end of
    /// the file. If it is not above `start`, no bytes disagree, and only `lost` counts.
    pub end: u64,
    /// Members whose backing file was lost and made anew: what they hold is to be computed from the
    /// others.
    pub lost: MemberSet,
}

impl Resync {
    /// A note that covers both: from the lower start to the higher end, and all members lost in
    /// either.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let lost = self.lost.union(other.lost);
        Self { start: self.start.min(other.start), end: self.end.max(other.end), lost }
    }
}

/// Why a record cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InodeError {
    /// The constant part and its check do not belong together, or not to this number.
    #[error("the record of inode {inode} is damaged (wrong checksum); scrub restores it from another member")]
    BadChecksum {
        /// Its number.
        inode: u64,
    },
    /// A part that changes and its check do not belong together.
    #[error("the {part} in this member's record of inode {inode} does not fit its check; another member's copy is used")]
    BadCheck {
        /// Its number.
        inode: u64,
        /// Which part.
        part: &'static str,
    },
    /// A field makes no sense.
    #[error("the {field} in the record of inode {inode} makes no sense; scrub restores it from another member")]
    Invalid {
        /// Its number.
        inode: u64,
        /// Which field.
        field: &'static str,
    },
}

impl InodeRecord {
    /// A used record of an empty file.
    #[must_use]
    pub const fn new(generation: u64, shape: Shape) -> Self {
        Self { size: 0, generation, shape, state: InodeState::Used, flags: 0, resync: None }
    }

    /// The file's level, number of members and chunk.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    /// The generation in a record, which may be free.
    #[must_use]
    pub fn generation_of(bytes: &[u8; INODE_RECORD_BYTES]) -> u64 {
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        bytes.generation.get()
    }

    /// The size in a record, which may be free.
    #[must_use]
    pub fn size_of(bytes: &[u8; INODE_RECORD_BYTES]) -> u64 {
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        bytes.size.get()
    }

    /// The flags in a record, which may be free.
    #[must_use]
    pub fn flags_of(bytes: &[u8; INODE_RECORD_BYTES]) -> u32 {
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        bytes.flags.get()
    }

    /// The note for resync in a record, which may be free.
    #[must_use]
    pub fn resync_of(bytes: &[u8; INODE_RECORD_BYTES]) -> Option<Resync> {
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        bytes.resync()
    }

    /// The bytes of the record of `inode`.
    #[must_use]
    pub fn encode(&self, inode: u64) -> [u8; INODE_RECORD_BYTES] {
        let mut bytes = Bytes {
            size: self.size.into(),
            generation: self.generation.into(),
            member_mask: self.shape.members.bits().into(),
            level: self.geometry().level().code(),
            chunk_shift: self.geometry().chunk().shift() as u8,
            start_slot: self.shape.start_slot as u8,
            state: self.state.code(),
            flags: self.flags.into(),
            checksum: U32::ZERO,
            resync_start: self.resync.map_or(0, |resync| resync.start).into(),
            resync_end: self.resync.map_or(0, |resync| resync.end).into(),
            lost_mask: self.resync.map_or(0, |resync| resync.lost.bits()).into(),
            notes_check: U32::ZERO,
            size_check: size_check(inode, self.generation, self.size).into(),
        };
        bytes.checksum = bytes.compute_checksum(inode).into();
        bytes.notes_check = bytes.compute_notes_check(inode).into();
        zerocopy::transmute!(bytes)
    }

    /// The meaning of the record of `inode`; `None` if it is free.
    ///
    /// # Errors
    /// If a check does not fit, or if a field has a value that none can have.
    pub fn decode(inode: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Result<Option<Self>, InodeError> {
        match bad_part(inode, bytes) {
            Some(part) => Err(InodeError::BadCheck { inode, part }),
            None => Self::decode_version_1(inode, bytes),
        }
    }

    /// The meaning of the record of `inode` in a table of version 1, where only the constant part
    /// has a check.
    ///
    /// # Errors
    /// As for [`Self::decode`].
    pub fn decode_version_1(inode: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Result<Option<Self>, InodeError> {
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        let invalid = |field| InodeError::Invalid { inode, field };
        let state = InodeState::from_code(bytes.state).ok_or(invalid("state"))?;
        if state == InodeState::Free {
            return Ok(None);
        }
        if bytes.checksum.get() != bytes.compute_checksum(inode) {
            return Err(InodeError::BadChecksum { inode });
        }
        let level = Level::from_code(bytes.level).ok_or(invalid("level"))?;
        let chunk = ChunkBytes::from_shift(bytes.chunk_shift.into()).ok_or(invalid("chunk"))?;
        let members = MemberSet::from_bits(bytes.member_mask.get());
        let shape = Shape::new(level, chunk, members, bytes.start_slot.into()).map_err(|error| match error {
            ShapeError::Geometry(_) => invalid("member set"),
            ShapeError::StartOutside { .. } => invalid("start slot"),
        })?;
        if bytes.size.get() > i64::MAX as u64 {
            return Err(invalid("size"));
        }
        let (size, generation, flags) = (bytes.size.get(), bytes.generation.get(), bytes.flags.get());
        Ok(Some(Self { size, generation, shape, state, flags, resync: bytes.resync() }))
    }
}

impl Bytes {
    fn resync(&self) -> Option<Resync> {
        let (start, end) = (self.resync_start.get(), self.resync_end.get());
        (end != 0).then(|| Resync { start, end, lost: MemberSet::from_bits(self.lost_mask.get()) })
    }

    fn compute_checksum(&self, inode: u64) -> u32 {
        crc32c(&[&inode.to_le_bytes(), &self.as_bytes()[CONSTANT]])
    }

    fn compute_notes_check(&self, inode: u64) -> u32 {
        let state_and_flags = u64::from(self.state) << 32 | u64::from(self.flags.get());
        let (start, end, lost) = (self.resync_start.get(), self.resync_end.get(), self.lost_mask.get());
        let sum = words_checksum([inode, self.generation.get(), state_and_flags, start, end, lost.into(), 0]);
        // The multiplication spreads every bit of the sum into the upper half, which is the check.
        // The xor of the sum's two halves would not do: some changes of one bit change both halves
        // alike.
        (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// How much a copy counts: a newer generation first; then a file with a name, one without (or
    /// an unknown state), none.
    fn rank(&self) -> (u64, u8) {
        let state = match InodeState::from_code(self.state) {
            Some(InodeState::Used) => 2,
            Some(InodeState::Free) => 0,
            _ => 1,
        };
        (self.generation.get(), state)
    }
}

/// The check of a file's size, which is stored after the size.
#[inline]
#[must_use]
pub fn size_check(inode: u64, generation: u64, size: u64) -> u64 {
    words_checksum([inode, generation, size, 0, 0, 0, 0])
}

/// The check of the notes in a record.
#[must_use]
pub fn notes_check(inode: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> u32 {
    let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
    bytes.compute_notes_check(inode)
}

/// Which parts of a record fit their checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sound {
    /// Generation and shape.
    pub constant: bool,
    /// The size.
    pub size: bool,
    /// State, flags and what waits for resync.
    pub notes: bool,
}

impl Sound {
    /// Compares each part of a record with its check. A record of zeros, one before its first use,
    /// is whole.
    #[must_use]
    pub fn of(inode: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Self {
        if bytes.iter().all(|&byte| byte == 0) {
            return Self { constant: true, size: true, notes: true };
        }
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        Self {
            constant: bytes.checksum.get() == bytes.compute_checksum(inode),
            size: bytes.size_check.get() == size_check(inode, bytes.generation.get(), bytes.size.get()),
            notes: bytes.notes_check.get() == bytes.compute_notes_check(inode),
        }
    }
}

/// The first of notes and size that does not fit its check; None if both do, and for a record of
/// zeros. Of a free record the size does not count. Both checks include the generation, so a
/// damaged generation shows as bad notes.
#[must_use]
pub fn bad_part(inode: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Option<&'static str> {
    if bytes.iter().all(|&byte| byte == 0) {
        return None;
    }
    let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
    if bytes.notes_check.get() != bytes.compute_notes_check(inode) {
        return Some("notes");
    }
    let fits = || bytes.size_check.get() == size_check(inode, bytes.generation.get(), bytes.size.get());
    (bytes.state != InodeState::Free.code() && !fits()).then_some("size")
}

/// Whether all parts of a record that count are sound: of a free one the notes (with the
/// generation), of others all three.
#[must_use]
pub fn is_whole(inode: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> bool {
    bad_part(inode, bytes).is_none() && (bytes[STATE_OFFSET] == InodeState::Free.code() || Sound::of(inode, bytes).constant)
}

/// Decides which record of `inode` is right. `copies` are the members' copies, the lowest member's
/// first. None if no copy has a sound constant part, unless all copies say that the record is free;
/// None also without copies.
///
/// Of whole copies these count:
/// - those of the newest generation;
/// - of these, if the order of stores may have been lost (`volatile_order`): files with a name
///   before orphans before free records;
/// - a record of zeros does not count beside a file with a name whose constant part is sound: the
///   medium has lost that copy. The other copy need not be whole, since a crash may have torn the
///   store of a size.
///
/// If the notes that are right say that the record is free, the rest of it means nothing: it is
/// that of a copy which fits all its checks, if there is one.
///
/// If those that count differ in size or notes, the size and the notes are right that most of them
/// have, and of equally many those of the lowest member, since each change is stored there first.
/// If no copy is whole, the constant part is that of the newest generation among the sound ones.
/// Size and notes are then those of the copies with this constant part in which they are sound, or
/// else of all of them, likewise by their number.
pub fn judge<'a>(
    inode: u64,
    copies: impl Iterator<Item = &'a [u8; INODE_RECORD_BYTES]> + Clone,
    volatile_order: bool,
) -> Option<[u8; INODE_RECORD_BYTES]> {
    let view = |copy: &'a [u8; INODE_RECORD_BYTES]| -> &'a Bytes { zerocopy::transmute_ref!(copy) };
    let rank = |copy| if volatile_order { view(copy).rank() } else { (view(copy).rank().0, 0) };
    let is_void = |copy: &[u8; INODE_RECORD_BYTES]| copy.iter().all(|&byte| byte == 0);
    let is_file = |copy| view(copy).state == InodeState::Used.code() && Sound::of(inode, copy).constant;
    let has_file = copies.clone().any(is_file);
    let whole = copies.clone().filter(|copy| is_whole(inode, copy) && !(has_file && is_void(copy)));
    let newest = whole.clone().reduce(|present, candidate| if rank(candidate) > rank(present) { candidate } else { present });
    if let Some(newest) = newest {
        let counting = whole.filter(|copy| rank(copy) == rank(newest));
        let notes = most_agreed(counting.clone(), |one, other| notes_of(one) == notes_of(other))?;
        if notes[STATE_OFFSET] == InodeState::Free.code() {
            let mut sound = counting.filter(|copy| notes_of(copy) == notes_of(notes) && Sound::of(inode, copy).constant);
            return Some(sound.next().map_or_else(|| free_record(inode, *notes), |copy| *copy));
        }
        let of_files = counting.filter(|copy| copy[STATE_OFFSET] != InodeState::Free.code());
        let mut right = *notes;
        if let Some(size) = most_agreed(of_files, has_size_of) {
            put_size(&mut right, size);
        }
        return Some(right);
    }
    let has_sound_constant = |copy: &&'a [u8; INODE_RECORD_BYTES]| Sound::of(inode, copy).constant;
    let base = copies.clone().filter(has_sound_constant);
    let base = base.reduce(|one, other| if view(other).rank().0 > view(one).rank().0 { other } else { one });
    let Some(base) = base else { return judge_free(inode, &copies) };
    let of_file = copies.filter(has_sound_constant).filter(|copy| view(copy).generation == view(base).generation);
    let size = part(of_file.clone(), |copy| Sound::of(inode, copy).size, has_size_of)?;
    let notes = part(of_file, |copy| Sound::of(inode, copy).notes, |one, other| notes_of(one) == notes_of(other))?;
    let mut right = *base;
    right[STATE_OFFSET] = notes[STATE_OFFSET];
    for range in [FLAGS_OFFSET..CHECKSUM_OFFSET, RESYNC_START_OFFSET..NOTES_CHECK_OFFSET] {
        right[range.clone()].copy_from_slice(&notes[range]);
    }
    put_size(&mut right, size);
    Some(with_checks(inode, right))
}

/// State, flags and what waits for resync.
fn notes_of(copy: &[u8; INODE_RECORD_BYTES]) -> (u8, &[u8], &[u8]) {
    (copy[STATE_OFFSET], &copy[FLAGS_OFFSET..CHECKSUM_OFFSET], &copy[RESYNC_START_OFFSET..NOTES_CHECK_OFFSET])
}

fn has_size_of(one: &[u8; INODE_RECORD_BYTES], other: &[u8; INODE_RECORD_BYTES]) -> bool {
    one[SIZE_OFFSET..GENERATION_OFFSET] == other[SIZE_OFFSET..GENERATION_OFFSET]
}

/// Gives a record the size that another copy of it has, with its check.
fn put_size(record: &mut [u8; INODE_RECORD_BYTES], from: &[u8; INODE_RECORD_BYTES]) {
    record[SIZE_OFFSET..GENERATION_OFFSET].copy_from_slice(&from[SIZE_OFFSET..GENERATION_OFFSET]);
    record[SIZE_CHECK_OFFSET..].copy_from_slice(&from[SIZE_CHECK_OFFSET..]);
}

/// If all copies say that the record is free: a free record with their highest generation. That
/// happens if a crash came while the record was being filled on every member; no name refers to it
/// yet.
fn judge_free<'a>(
    inode: u64,
    copies: &(impl Iterator<Item = &'a [u8; INODE_RECORD_BYTES]> + Clone),
) -> Option<[u8; INODE_RECORD_BYTES]> {
    let generation = copies.clone().map(InodeRecord::generation_of).max()?;
    if copies.clone().any(|copy| copy[STATE_OFFSET] != InodeState::Free.code()) {
        return None;
    }
    let mut record = [0; INODE_RECORD_BYTES];
    record[GENERATION_OFFSET..SHAPE_OFFSET].copy_from_slice(&generation.to_le_bytes());
    Some(free_record(inode, record))
}

/// A free record with all checks made to fit; one of generation 0, which no file has had, is all
/// zeros.
fn free_record(inode: u64, mut record: [u8; INODE_RECORD_BYTES]) -> [u8; INODE_RECORD_BYTES] {
    if InodeRecord::generation_of(&record) == 0 {
        return [0; INODE_RECORD_BYTES];
    }
    let bytes: &Bytes = zerocopy::transmute_ref!(&record);
    let checksum = bytes.compute_checksum(inode);
    record[CHECKSUM_OFFSET..][..4].copy_from_slice(&checksum.to_le_bytes());
    with_checks(inode, record)
}

/// Among the copies in which a part is sound, or among all if there is none, the copy with whose
/// part most agree, the first if several.
fn part<'a>(
    copies: impl Iterator<Item = &'a [u8; INODE_RECORD_BYTES]> + Clone,
    is_sound: impl Fn(&[u8; INODE_RECORD_BYTES]) -> bool,
    agree: impl Fn(&[u8; INODE_RECORD_BYTES], &[u8; INODE_RECORD_BYTES]) -> bool,
) -> Option<&'a [u8; INODE_RECORD_BYTES]> {
    most_agreed(copies.clone().filter(|copy| is_sound(copy)), &agree).or_else(|| most_agreed(copies, &agree))
}

/// The copy with which most copies agree, the first if several.
fn most_agreed<'a>(
    copies: impl Iterator<Item = &'a [u8; INODE_RECORD_BYTES]> + Clone,
    agree: impl Fn(&[u8; INODE_RECORD_BYTES], &[u8; INODE_RECORD_BYTES]) -> bool,
) -> Option<&'a [u8; INODE_RECORD_BYTES]> {
    let all = copies.clone();
    let votes = |copy| all.clone().filter(|other| agree(copy, other)).count();
    copies.reduce(|one, other| if votes(other) > votes(one) { other } else { one })
}

/// `record` with the checks of its size and its notes computed anew, for a record from a table of
/// version 1 and for one that was changed. The check of the constant part is not touched. A record
/// of zeros stays as it is.
#[must_use]
pub fn with_checks(inode: u64, mut record: [u8; INODE_RECORD_BYTES]) -> [u8; INODE_RECORD_BYTES] {
    if record.iter().all(|&byte| byte == 0) {
        return record;
    }
    let bytes: &Bytes = zerocopy::transmute_ref!(&record);
    let (size, notes) = (size_check(inode, bytes.generation.get(), bytes.size.get()), bytes.compute_notes_check(inode));
    record[SIZE_CHECK_OFFSET..].copy_from_slice(&size.to_le_bytes());
    record[NOTES_CHECK_OFFSET..SIZE_CHECK_OFFSET].copy_from_slice(&notes.to_le_bytes());
    record
}

#[cfg(test)]
mod tests {
    use super::Bytes;
    use crate::documented::assert_documented;

    #[test]
    fn a_record_is_as_documented() {
        assert_documented!(
            "inodes.md",
            "Record",
            Bytes,
            [
                size,
                generation,
                member_mask,
                level,
                chunk_shift,
                start_slot,
                state,
                flags,
                checksum,
                resync_start,
                resync_end,
                lost_mask,
                notes_check,
                size_check
            ]
        );
    }
}
