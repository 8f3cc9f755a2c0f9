//! Limits: the shortest time in which the processor can do a piece of work at all. A plain loop
//! makes the same loads and stores as the library would, and nothing else.
//!
//! A loop handles one register at a time (64, 32 or 16 bytes). It loads what it needs and stores
//! past the cache. It takes no locks, writes no records, checks nothing and computes no addresses:
//! these are worked out before the clock starts. There is one fence, at the end of each
//! measurement. Reading is `copy_from_nonoverlapping`, which becomes the C library's memcpy.

use crate::members::Mapped;
use crate::rounds::Contender;
use layout::{Geometry, Level};
use std::slice::ChunksExact;

/// The addresses on the members that one step of work touches. Entries that the work does not need
/// hold any of the others.
pub(crate) type Piece = [*mut u8; 3];
/// A loop `(places, source, bytes)`: handles `bytes` at each place, with new data from `source`.
///
/// # Safety
/// Source and places are valid for `bytes` (the source for twice as many, for full stripes).
/// `bytes` is a multiple of the register's size, and the places are aligned to it.
pub(crate) type Loop = unsafe fn(&Piece, *const u8, usize);

/// The loops of one instruction set. In brackets: what the entries of the first argument are.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    /// Copies `bytes` to the first one, two or three places.
    pub(crate) copy: [Loop; 3],
    /// `[data, parity, _]`: read-modify-write.
    pub(crate) update: Loop,
    /// `[data, data, parity]`: writes a full stripe of two chunks of `bytes`. The source holds the
    /// chunks one after the other.
    stripe: Loop,
    /// `[other data, parity, _]`: writes a chunk whose member is out. Only the parity changes, to
    /// the xor of the new data and the other chunk.
    pub(crate) update_without_member: Loop,
    /// `[data, parity, _]`: writes a full stripe while the member of the second (first) chunk is
    /// out.
    pub(crate) stripe_without_member: [Loop; 2],
    name: &'static str,
}

/// Defines the loops of one instruction set; a step is one register.
macro_rules! loops {
    ($name:ident, $feature:literal, $line:ty, $load:ident, $stream:ident, $xor:ident) => {
        mod $name {
            use super::{Loops, Piece};
            use std::arch::x86_64::*;

            pub(super) const LOOPS: Loops = Loops {
                copy: [copy::<1>, copy::<2>, copy::<3>],
                update,
                stripe,
                update_without_member,
                stripe_without_member: [stripe_without_member::<0>, stripe_without_member::<1>],
                name: $feature,
            };
            const STEP: usize = size_of::<$line>();

            #[target_feature(enable = $feature)]
            unsafe fn copy<const COUNT: usize>(places: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: the promise of [`super::Loop`]; so in every loop here.
                    unsafe {
                        let line = $load(src.add(at).cast());
                        for place in &places[..COUNT] {
                            $stream(place.add(at).cast(), line);
                        }
                    }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn update(&[data, parity, _]: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: as in copy.
                    unsafe {
                        let new = $load(src.add(at).cast());
                        let old = $load(data.add(at).cast_const().cast());
                        let sum = $xor($xor(old, new), $load(parity.add(at).cast_const().cast()));
                        $stream(data.add(at).cast(), new);
                        $stream(parity.add(at).cast(), sum);
                    }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn stripe(&[first, second, parity]: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: as in copy; the source has twice `bytes`.
                    unsafe {
                        let (a, b) = ($load(src.add(at).cast()), $load(src.add(bytes + at).cast()));
                        $stream(first.add(at).cast(), a);
                        $stream(second.add(at).cast(), b);
                        $stream(parity.add(at).cast(), $xor(a, b));
                    }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn update_without_member(&[other, parity, _]: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: as in copy.
                    unsafe {
                        let sum = $xor($load(src.add(at).cast()), $load(other.add(at).cast_const().cast()));
                        $stream(parity.add(at).cast(), sum);
                    }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn stripe_without_member<const KEPT: usize>(&[data, parity, _]: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: as in copy; the source has twice `bytes`.
                    unsafe {
                        let lines = [$load(src.add(at).cast()), $load(src.add(bytes + at).cast())];
                        $stream(data.add(at).cast(), lines[KEPT]);
                        $stream(parity.add(at).cast(), $xor(lines[0], lines[1]));
                    }
                }
            }
        }
    };
}
loops!(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512, _mm512_xor_si512);
loops!(avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256, _mm256_xor_si256);
loops!(sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128, _mm_xor_si128);

impl Loops {
    /// The loops for the widest registers that this processor has.
    pub(crate) fn best() -> Self {
        if std::is_x86_feature_detected!("avx512f") {
            avx512::LOOPS
        } else if std::is_x86_feature_detected!("avx2") {
            avx2::LOOPS
        } else {
            sse2::LOOPS
        }
    }

    /// The instruction set, for the report.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }
}

/// What a limit does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Copies from the place of the data; of mirrors from the first.
    Read,
    /// Stores the same bytes on the first 1, 2 or 3 members (mirrors), or on one (levels without
    /// redundancy).
    Copies(usize),
    /// Read-modify-write of data and parity.
    Update,
    /// Full stripes of two data chunks and one parity.
    Stripes,
}

/// A limit in the form that the rounds measure ([`Contender`]).
pub(crate) struct Limit<'a> {
    loops: Loops,
    work: Work,
    geometry: &'a Geometry,
    members: &'a [Mapped],
    buffer: &'a mut [u8],
    pieces: Vec<Piece>,
    /// The number of bytes of the buffer that one piece handles.
    piece_bytes: usize,
}

impl<'a> Limit<'a> {
    /// A limit in which each call moves as many bytes as `buffer` has.
    ///
    /// # Panics
    /// If the loops would leave the buffer or cross chunks.
    pub(crate) fn new(work: Work, geometry: &'a Geometry, members: &'a [Mapped], buffer: &'a mut [u8]) -> Self {
        let chunked = geometry.level() != Level::Raid1;
        let piece_bytes = match work {
            Work::Stripes => geometry.stripe_bytes() as usize,
            _ if chunked => buffer.len().min(geometry.chunk().bytes() as usize),
            _ => buffer.len(),
        };
        assert!(buffer.len().is_multiple_of(piece_bytes), "a call of {} bytes in pieces of {piece_bytes}", buffer.len());
        assert!(work != Work::Stripes || geometry.stripe_bytes() == 2 * geometry.chunk().bytes(), "a stripe has two data chunks");
        Self { loops: Loops::best(), work, geometry, members, buffer, pieces: Vec::new(), piece_bytes }
    }

    /// The addresses of the piece at `offset` of the file.
    fn piece(&self, offset: u64) -> Piece {
        let at = |slot: usize, offset: u64| self.members[slot].at(offset);
        if self.geometry.level() == Level::Raid1 {
            let member = |slot: usize| at(slot.min(self.members.len() - 1), offset);
            return [member(0), member(1), member(2)];
        }
        let place = self.geometry.locate(offset);
        let start = self.geometry.member_offset(place.stripe);
        const FIRST_COPY: usize = 0;
        const P: usize = 0;
        let data = |column: usize| self.geometry.data_slot(place.stripe, column, FIRST_COPY);
        let parity = self.geometry.parity_slot(place.stripe, P);
        match self.work {
            Work::Stripes => [at(data(0), start), at(data(1), start), at(parity, start)],
            _ => {
                let data = at(data(place.column), start + place.within);
                // No such work needs the third.
                [data, at(parity, start + place.within), data]
            }
        }
    }
}

impl Contender for Limit<'_> {
    fn prepare(&mut self, offsets: &[u64]) {
        let steps = (0..self.buffer.len() as u64).step_by(self.piece_bytes);
        let pieces = offsets.iter().flat_map(|&offset| steps.clone().map(move |step| offset + step));
        self.pieces = pieces.map(|offset| self.piece(offset)).collect();
    }

    fn run(&mut self, offsets: &[u64]) {
        let (bytes, loops, start) = (self.piece_bytes, self.loops, self.buffer.as_mut_ptr());
        let calls = self.pieces.chunks_exact(self.pieces.len() / offsets.len());
        // The offsets are those of `prepare`, and at least one. SAFETY: `piece` took the addresses
        // from mapped members. The buffer holds all pieces of a call: `new` has asserted that its
        // length is a multiple of `piece_bytes`.
        unsafe {
            match self.work {
                Work::Read => each(calls, start, bytes, |piece, buffer| buffer.copy_from_nonoverlapping(piece[0], bytes)),
                Work::Copies(count) => each(calls, start, bytes, |piece, buffer| (loops.copy[count - 1])(piece, buffer, bytes)),
                Work::Update => each(calls, start, bytes, |piece, buffer| (loops.update)(piece, buffer, bytes)),
                Work::Stripes => each(calls, start, bytes, |piece, buffer| (loops.stripe)(piece, buffer, bytes / 2)),
            }
        }
        persist::fence();
    }
}

/// Runs `act` on each piece of each call with its part of the buffer.
#[inline(always)]
fn each(calls: ChunksExact<'_, Piece>, buffer: *mut u8, piece_bytes: usize, act: impl Fn(&Piece, *mut u8)) {
    for call in calls {
        for (index, piece) in call.iter().enumerate() {
            act(piece, buffer.wrapping_add(index * piece_bytes));
        }
    }
}
