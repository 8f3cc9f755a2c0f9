//! Which runs of backing files a range of a file is made of: what a memory mapping is composed from.

use crate::Inode;
use dax::Backing;
use units::PAGE_BYTES;

/// A run of a file that lies in one piece on one member.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The backing file.
    pub backing: &'a Backing,
    /// Where the run starts in it, a multiple of the page size if the range did.
    pub member_offset: u64,
    /// How long it is.
    pub bytes: u64,
}

impl Inode {
    /// Calls `visit` on the pieces of `offset..offset + bytes` in ascending order (`offset` is a multiple of the page size). False,
    /// and nothing visited, if it cannot be composed: chunks smaller than a page, more than `piece_count_max` pieces, or one of
    /// them on a member that is out.
    pub fn for_each_piece<E>(
        &self,
        offset: u64,
        bytes: u64,
        piece_count_max: u64,
        mut visit: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let out = self.out();
        let chunk = if self.geometry.level().has_chunks() { self.geometry.chunk().bytes() } else { u64::MAX };
        let present = |slot: usize| if out.contains(slot) { None } else { self.backing.get(slot)?.as_ref() };
        let composable = chunk >= PAGE_BYTES as u64
            && bytes / chunk < piece_count_max
            && (0..self.geometry.member_count()).all(|slot| present(slot).is_some());
        if !composable {
            return Ok(false);
        }
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let place = self.geometry.locate(at);
            let rest = if chunk == u64::MAX { end - at } else { (chunk - place.within).min(end - at) };
            let slot = self.geometry.data_slot(place.stripe, place.column, 0);
            let Some(backing) = present(slot) else { return Ok(false) };
            visit(Piece { backing, member_offset: self.geometry.member_offset(place.stripe) + place.within, bytes: rest })?;
            at += rest;
        }
        Ok(true)
    }
}
