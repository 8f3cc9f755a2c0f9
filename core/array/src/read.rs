//! Reading levels with chunks and one copy: straight from the member, or reconstructed into the
//! program's buffer.

use crate::stripe::Shape;
use crate::striper::{Done, Io, Stop};
use crate::walk::{Piece, Pieces};
use medium::Medium;

/// Reads a range of a level with `PARITIES` parities (0 for RAID 0).
///
/// # Safety
/// Inside a guard; `dst` is the program's for `bytes`.
pub(crate) unsafe fn read_columns<M: Medium, const PARITIES: usize>(
    io: &Io<'_, M>,
    offset: u64,
    mut dst: *mut u8,
    bytes: usize,
) -> Done {
    let members = io.geometry.member_count();
    for piece in Pieces::new(io.geometry, offset, bytes as u64) {
        let slot = piece.stripe.slot(PARITIES + piece.column, members);
        // SAFETY: the pieces are consecutive and make up `bytes`.
        unsafe {
            if io.out.contains(slot) {
                reconstruct::<M, PARITIES>(io, &piece, dst)?;
            } else {
                io.fetch(slot, piece.member_offset(), dst, piece.bytes)?;
            }
        }
        dst = dst.wrapping_add(piece.bytes);
    }
    Ok(())
}

#[cold]
unsafe fn reconstruct<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, piece: &Piece, dst: *mut u8) -> Done {
    if PARITIES == 0 {
        return Err(Stop::Lost);
    }
    let shape = Shape::<M, PARITIES>::new(io);
    // SAFETY: the caller's promise.
    unsafe { shape.reconstruct(&piece.stripe, &shape.lost(&piece.stripe), piece.column, piece.within, dst, piece.bytes) }
}
