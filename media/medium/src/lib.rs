//! What a backing file on a member can do.
//!
//! The array sees members only through [`Medium`]; a medium does not know what a stripe is. The
//! trait has two faces: the mapped one (load and store at [`Medium::span`]) and the byte-range one
//! ([`Medium::get`], [`Medium::put`]) for media that no MMU can map.
#![cfg_attr(not(test), no_std)]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use sys::OsError;

/// Bytes of a backing file that have one sum.
pub const SUM_BLOCK_BYTES: u64 = 4096;

/// So many blocks have their sums in one cache line, those from a multiple of this number on.
pub const SUM_LINE_BLOCKS: u64 = 16;

/// A run of mapped bytes of a backing file.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Where the run starts in memory.
    pub start: NonNull<u8>,
    /// How many bytes of the file follow in memory without a gap.
    pub bytes: usize,
}

/// One backing file on one member. All offsets and lengths are bytes of the backing file.
///
/// Concurrency: all methods may be called from many threads; who may touch which bytes is the
/// caller's affair (stripe locks).
pub trait Medium {
    /// The mapped bytes from `offset` on, at least one, to the end of its window; None if this
    /// medium cannot be mapped or the mapping failed. Touching bytes past the end of the backing
    /// file faults, so the caller is inside a `persist::fault::guard`. The span stays mapped as
    /// long as the medium lives.
    fn span(&self, offset: u64) -> Option<Span>;

    /// The mapped bytes from `offset` on, for a caller that stores to them and does not load from
    /// them. [`Self::span`] may withhold holes, because a load from a hole would take space.
    #[inline]
    fn span_to_store(&self, offset: u64) -> Option<Span> {
        self.span(offset)
    }

    /// The mapped bytes from `offset` on, for a caller that loads `bytes` of them. A medium may
    /// withhold a mapping that it would have to make first: the first loads of a few bytes cost less
    /// by [`Self::get`].
    #[inline]
    fn span_to_load(&self, offset: u64, bytes: usize) -> Option<Span> {
        let _ = bytes;
        self.span(offset)
    }

    /// Copies bytes out. Bytes past the end of the backing file read as zeros.
    ///
    /// # Safety
    /// `dst` is valid for `bytes` writes or the caller is inside a guard.
    unsafe fn get(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), OsError>;

    /// Copies bytes in; the backing file is long enough (see [`Medium::allocate`]).
    ///
    /// # Safety
    /// `src` is valid for `bytes` reads or the caller is inside a guard.
    unsafe fn put(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError>;

    /// Makes sure that the backing file reaches `offset + bytes` and has space for all of that
    /// range, so that stores there cannot run out of space. Nothing but holes changes. `NOSPC` and
    /// `DQUOT` leave the file as it was or longer, with zeros.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), OsError>;

    /// Cuts or extends (with zeros) the backing file.
    fn set_len(&self, bytes: u64) -> Result<(), OsError>;

    /// Turns a range into a hole of zeros without changing the length.
    fn punch(&self, offset: u64, bytes: u64) -> Result<(), OsError>;

    /// Makes what was stored in the range durable, as far as this medium's persistence domain needs
    /// anything for that.
    fn persist(&self, offset: u64, bytes: u64) -> Result<(), OsError>;

    /// Sees to it that [`Self::sum`] knows the sums of the blocks that the range touches. Where no
    /// space is left for sums, those blocks have none, and had none. May make system calls.
    fn ready_sums(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let _ = (offset, bytes);
        Ok(())
    }

    /// The sum of block number `block` of [`SUM_BLOCK_BYTES`]: 0 stands for none. None if the medium
    /// keeps no sums, or has no space for this one. Touching it may fault, as a span may.
    #[inline]
    fn sum(&self, block: u64) -> Option<&AtomicU32> {
        self.sums(block, 1)?.first()
    }

    /// The sums of `count` blocks from number `block` on, which lie in one cache line
    /// ([`SUM_LINE_BLOCKS`]). None where [`Self::sum`] has none.
    #[inline]
    fn sums(&self, block: u64, count: usize) -> Option<&[AtomicU32]> {
        let _ = (block, count);
        None
    }

    /// Takes away the sums of all blocks that the range touches, durably where the medium is.
    fn forget_sums(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let _ = (offset, bytes);
        Ok(())
    }

    /// Whether `address` lies in this medium's mappings: how a fault is traced to a member.
    fn owns(&self, address: usize) -> bool;
}
