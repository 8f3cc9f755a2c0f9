//! Which runs of backing files a range of a file is made of: what a memory mapping is composed
//! from.

use crate::Inode;
use dax::Backing;
use sys::OsError;
use units::{PAGE_BYTES, Slot};

/// A run of a file that lies in one piece on one member.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The backing file.
    pub backing: &'a Backing,
    /// Its member.
    pub slot: Slot,
    /// Where the run starts in it, a multiple of the page size if the range did.
    pub member_offset: u64,
    /// How long it is.
    pub bytes: u64,
}

impl Inode {
    /// How many pieces `bytes` of the file consist of at most: one if there is a shared copy. None
    /// if none can be made: chunks smaller than a page, or parity that a member which is out needs.
    #[must_use]
    pub fn piece_count(&self, bytes: u64) -> Option<u64> {
        if self.is_copied() {
            return Some(1);
        }
        if self.is_copy_wanted() {
            return None;
        }
        let out = self.hidden();
        let level = self.geometry.level();
        if level.parity_count() > 0 && !out.is_empty() || !self.geometry.survives(out) {
            return None;
        }
        if !level.has_chunks() {
            return Some(1);
        }
        let chunk = self.geometry.chunk().bytes();
        (chunk >= PAGE_BYTES as u64).then_some(bytes / chunk + 2)
    }

    /// Changes when pieces made before are no longer where stores land: a member with copies went
    /// out, or is back.
    #[must_use]
    pub fn mapping_source(&self) -> u32 {
        if self.geometry.copy_count() > 1 { self.hidden().bits() } else { 0 }
    }

    /// Whether a member's mappings of the file show the memory of a device, without a page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.backing.iter().flatten().any(Backing::is_direct)
    }

    /// Calls `visit` on the pieces of `offset..offset + bytes` in ascending order (`offset` is a
    /// multiple of the page size): where stores through mappings land, in the shared copy
    /// (`copied`) or on the members. Only if [`Self::piece_count`] says that there are pieces;
    /// false if a member went out meanwhile, or the copy was removed.
    pub fn for_each_piece<E>(
        &self,
        copied: bool,
        offset: u64,
        bytes: u64,
        mut visit: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        if copied {
            let Ok(Some(copy)) = self.copy() else { return Ok(false) };
            return visit(Piece { backing: &copy, slot: 0, member_offset: offset, bytes }).map(|()| true);
        }
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let Some((slot, member_offset, bytes)) = self.run_at(at, end) else { return Ok(false) };
            let Some(backing) = self.backing.get(slot).and_then(Option::as_ref) else { return Ok(false) };
            visit(Piece { backing, slot, member_offset, bytes })?;
            at += bytes;
        }
        Ok(true)
    }

    /// Whether the kernel refused with `error` to map a piece since the piece's member has failed.
    /// Then the member goes out, if the array can spare it, and there are other pieces.
    #[cold]
    #[must_use]
    pub fn is_lost_with(&self, slot: Slot, error: OsError) -> bool {
        let array = self.files.array();
        array.has_member_failed(slot, error) && array.spare(slot, error).is_ok()
    }

    /// Member, offset there and length of the run of the file that begins at `at` and ends at `end`
    /// at the latest; None if no copy is in.
    pub(crate) fn run_at(&self, at: u64, end: u64) -> Option<(Slot, u64, u64)> {
        let place = self.geometry.locate(at);
        let rest = if self.geometry.level().has_chunks() { self.geometry.chunk().bytes() - place.within } else { u64::MAX };
        let slot = self.primary(place.stripe, place.column, self.hidden())?;
        Some((slot, self.geometry.member_offset(place.stripe) + place.within, rest.min(end - at)))
    }
}
