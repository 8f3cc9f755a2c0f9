//! Where a call that was timed has moved bytes of a file, for what `cxlraid top` tells of members.

use super::OPEN;
use super::node::Node;
use crate::call::Call;
use crate::counts::{self, Moved, Timed};
use ::array::Spread;
use core::sync::atomic::Ordering;

/// Notes what a call has moved on which member. Its descriptor may be another file's by now: then an
/// estimate is a little wrong.
pub(crate) fn note(timed: &Timed, call: &Call, moved: &Moved) {
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return };
    let Node::File(file) = held.node() else { return };
    let &Moved { way, offset, bytes } = moved;
    let offset = match offset {
        Some(offset) => offset,
        // The kernel's offset, which other processes share, is not worth a system call.
        None if held.shared.load(Ordering::Relaxed) => return,
        None => held.offset.load(Ordering::Relaxed).wrapping_sub(bytes),
    };
    if offset.checked_add(bytes).is_some_and(|end| end <= i64::MAX as u64) {
        counts::note_spread(timed, &Spread { geometry: file.geometry(), turn: file.number(), way, offset, bytes });
    }
}
