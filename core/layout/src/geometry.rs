//! The shape of one file: level, members, chunk; and the maps between file offsets and members.

use crate::Level;
use crate::divisor::Divisor;
use core::fmt;
use units::{ChunkBytes, MEMBER_COUNT_MAX, MemberSet, Slot};

/// The smallest range of file bytes that one stripe lock guards; whole stripes, at least this many
/// bytes.
const LOCK_BLOCK_BYTES_MIN: u64 = 64 << 10;

/// The shape of a file: immutable once the file exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Geometry {
    level: Level,
    member_count: u8,
    chunk: ChunkBytes,
    /// Stripes are counted in units of this many bytes, 2 to the power of it: chunks; for RAID 1,
    /// which has none, lock blocks.
    unit_shift: u8,
    stripe_bytes: u64,
    lock_block_bytes: u64,
    by_members: Divisor,
    /// Units per stripe, and stripes per lock block.
    by_units: Divisor,
    by_lock_stripes: Divisor,
}

/// Where a file byte lies within its stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the stripe within the file.
    pub stripe: u64,
    /// Data column within the stripe, `0..data_columns()`.
    pub column: usize,
    /// Offset within the chunk, in bytes.
    pub within: u64,
}

/// Why members and level do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// Fewer members than the level works with.
    TooFewMembers {
        /// The level asked for.
        level: Level,
        /// How many were given.
        given: usize,
        /// How many it needs.
        min: usize,
    },
    /// More members than any array may have.
    TooManyMembers {
        /// How many were given.
        given: usize,
    },
    /// The level needs an even number of members.
    OddMembers {
        /// The level asked for.
        level: Level,
        /// How many were given.
        given: usize,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewMembers { level, given, min } => {
                write!(f, "RAID {level} needs at least {min} members, {given} given; add members or choose another level")
            }
            Self::TooManyMembers { given } => {
                write!(f, "{given} members given, the most is {MEMBER_COUNT_MAX}; give fewer")
            }
            Self::OddMembers { level, given } => {
                write!(f, "RAID {level} needs an even number of members, {given} given; add or leave out one")
            }
        }
    }
}

impl core::error::Error for GeometryError {}

impl Geometry {
    /// The shape, if the level works with this many members. RAID 1 ignores `chunk`.
    pub fn new(level: Level, member_count: usize, chunk: ChunkBytes) -> Result<Self, GeometryError> {
        let min = level.members_min();
        if member_count < min {
            return Err(GeometryError::TooFewMembers { level, given: member_count, min });
        }
        if member_count > MEMBER_COUNT_MAX {
            return Err(GeometryError::TooManyMembers { given: member_count });
        }
        if level.members_even() && !member_count.is_multiple_of(2) {
            return Err(GeometryError::OddMembers { level, given: member_count });
        }
        let columns = match level {
            Level::Raid1 => 1,
            Level::Raid01 | Level::Raid10 => member_count / 2,
            _ => member_count - level.parity_count(),
        };
        let unit_shift = if level == Level::Raid1 { LOCK_BLOCK_BYTES_MIN.trailing_zeros() } else { chunk.shift() };
        let stripe_bytes = (columns as u64) << unit_shift;
        // At most 1024: a chunk has at least 64 bytes.
        let lock_stripes = LOCK_BLOCK_BYTES_MIN.div_ceil(stripe_bytes);
        Ok(Self {
            level,
            member_count: member_count as u8,
            chunk,
            unit_shift: unit_shift as u8,
            stripe_bytes,
            lock_block_bytes: stripe_bytes * lock_stripes,
            by_members: Divisor::new(member_count as u16),
            by_units: Divisor::new(columns as u16),
            by_lock_stripes: Divisor::new(lock_stripes as u16),
        })
    }

    /// The level.
    #[inline]
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// The number of members.
    #[inline]
    #[must_use]
    pub const fn member_count(&self) -> usize {
        self.member_count as usize
    }

    /// The chunk.
    #[inline]
    #[must_use]
    pub const fn chunk(&self) -> ChunkBytes {
        self.chunk
    }

    /// Data chunks per stripe; 1 for RAID 1.
    #[inline]
    #[must_use]
    pub const fn data_columns(&self) -> usize {
        let members = self.member_count as usize;
        match self.level {
            Level::Raid1 => 1,
            Level::Raid01 | Level::Raid10 => members / 2,
            _ => members - self.level.parity_count(),
        }
    }

    /// Copies of each data chunk.
    #[inline]
    #[must_use]
    pub const fn copy_count(&self) -> usize {
        match self.level {
            Level::Raid1 => self.member_count as usize,
            Level::Raid01 | Level::Raid10 => 2,
            _ => 1,
        }
    }

    /// File bytes per stripe. RAID 1 has no stripes; its locks count in blocks of this size.
    #[inline]
    #[must_use]
    pub const fn stripe_bytes(&self) -> u64 {
        self.stripe_bytes
    }

    /// File bytes one stripe lock guards: whole stripes, at least 64 KiB.
    #[inline]
    #[must_use]
    pub const fn lock_block_bytes(&self) -> u64 {
        self.lock_block_bytes
    }

    /// The stripe that holds file byte `offset`; for RAID 1 the lock block.
    #[inline]
    #[must_use]
    pub const fn stripe_of(&self, offset: u64) -> u64 {
        self.by_units.divide(offset >> self.unit_shift)
    }

    /// The lock block that holds file byte `offset`: `offset / lock_block_bytes()`.
    #[inline]
    #[must_use]
    pub const fn lock_block_of(&self, offset: u64) -> u64 {
        self.by_lock_stripes.divide(self.stripe_of(offset))
    }

    /// `number % member_count()`: for what goes from member to member in turn.
    #[inline]
    #[must_use]
    pub const fn turn(&self, number: u64) -> Slot {
        self.by_members.remainder(number) as Slot
    }

    /// Where file byte `offset` lies. For RAID 1 the "stripe" is a lock block and `within` counts
    /// from its start.
    #[inline]
    #[must_use]
    pub fn locate(&self, offset: u64) -> Place {
        let stripe = self.stripe_of(offset);
        let rest = offset - stripe * self.stripe_bytes;
        let unit_bytes = 1 << self.unit_shift;
        Place { stripe, column: (rest >> self.unit_shift) as usize, within: rest & (unit_bytes - 1) }
    }

    /// The file offset of a place: the inverse of [`Self::locate`].
    #[must_use]
    pub fn offset_of(&self, place: Place) -> u64 {
        place.stripe * self.stripe_bytes + ((place.column as u64) << self.column_shift()) + place.within
    }

    const fn column_shift(&self) -> u32 {
        match self.level {
            Level::Raid1 => 0,
            _ => self.chunk.shift(),
        }
    }

    /// The member offset at which every chunk of `stripe` starts.
    #[inline]
    #[must_use]
    pub const fn member_offset(&self, stripe: u64) -> u64 {
        match self.level {
            Level::Raid1 => stripe * self.stripe_bytes,
            _ => stripe << self.chunk.shift(),
        }
    }

    /// The member holding copy `copy` (`0..copy_count()`) of data column `column` of `stripe`.
    #[inline]
    #[must_use]
    pub fn data_slot(&self, stripe: u64, column: usize, copy: usize) -> Slot {
        let members = self.member_count as usize;
        match self.level {
            Level::Raid0 | Level::Raid4 => column,
            Level::Raid1 => copy,
            Level::Raid5 => around(self.parity_slot(stripe, 0) + 1 + column, members),
            Level::Raid6 => around(self.parity_slot(stripe, 0) + 2 + column, members),
            Level::Raid10 => 2 * column + copy,
            Level::Raid01 => copy * (members / 2) + column,
        }
    }

    /// The member holding parity `which` (0 = P, 1 = Q) of `stripe`.
    #[inline]
    #[must_use]
    pub fn parity_slot(&self, stripe: u64, which: usize) -> Slot {
        let members = self.member_count as usize;
        match self.level {
            Level::Raid4 => members - 1,
            _ => around(members - 1 - self.turn(stripe) + which, members),
        }
    }

    /// Bytes each backing file needs to hold `file_bytes` of file: full stripes, then as much of
    /// each chunk as the longest column of the last stripe.
    #[must_use]
    pub fn member_bytes(&self, file_bytes: u64) -> u64 {
        if self.level == Level::Raid1 {
            return file_bytes;
        }
        let full = self.stripe_of(file_bytes);
        let rest = file_bytes - full * self.stripe_bytes;
        (full << self.chunk.shift()) + rest.min(self.chunk.bytes())
    }

    /// The largest file for which backing files of `member_bytes` suffice: the greatest `f` with
    /// `self.member_bytes(f) <= member_bytes`, or `u64::MAX` if even that is not the greatest.
    ///
    /// A last stripe that the members hold only in part counts for what its first column holds: a
    /// longer file would need the first column to be full.
    #[must_use]
    pub fn file_bytes(&self, member_bytes: u64) -> u64 {
        if self.level == Level::Raid1 {
            return member_bytes;
        }
        let full = member_bytes >> self.chunk.shift();
        let rest = member_bytes & (self.chunk.bytes() - 1);
        full.saturating_mul(self.stripe_bytes).saturating_add(rest)
    }

    /// Whether every byte of every file can still be read with `missing` members gone.
    #[must_use]
    pub fn survives(&self, missing: MemberSet) -> bool {
        let members = self.member_count as usize;
        match self.level {
            Level::Raid0 => missing.is_empty(),
            Level::Raid1 => missing.len() < members,
            Level::Raid4 | Level::Raid5 | Level::Raid6 => missing.len() <= self.level.parity_count(),
            Level::Raid01 | Level::Raid10 => {
                (0..members / 2).all(|column| (0..2).any(|copy| !missing.contains(self.data_slot(0, column, copy))))
            }
        }
    }
}

/// `slot` modulo `members`, of which it is less than twice as much.
#[inline]
const fn around(slot: usize, members: usize) -> Slot {
    if slot < members { slot } else { slot - members }
}
