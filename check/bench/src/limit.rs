//! The limits: what the work itself costs, as a plain loop without an engine would do it.
//!
//! A line of 64 bytes at a time: load what is needed, store non-temporally. No locks, no records, no fences, no checks, no layout: the
//! addresses are worked out before the clock starts. Reading is the C library's memcpy.

use crate::members::Mapped;
use crate::rounds::Contender;
use layout::{Geometry, Level};
use std::slice::ChunksExact;

/// Up to three places of one piece of work.
pub(crate) type Piece = [*mut u8; 3];
/// A loop: works on `bytes` at each place, from the program's buffer.
pub(crate) type Loop = unsafe fn(&Piece, *const u8, usize);

/// The loops of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    /// Copies `bytes` to the first one, two or three places.
    pub(crate) copy: [Loop; 3],
    /// `[data, parity, _]`: read-modify-write.
    pub(crate) update: Loop,
    /// `[data, data, parity]`: a full stripe of two chunks of `bytes`, which follow each other in the source.
    stripe: Loop,
    /// `[other data, parity, _]`: what is written has no place, and is in the parity only.
    pub(crate) beside: Loop,
    /// `[data, parity, _]`: a full stripe of which only the first or the second chunk has a place.
    pub(crate) pair: [Loop; 2],
    name: &'static str,
}

/// Loops over lines of one register (or several) of an instruction set.
macro_rules! loops {
    ($name:ident, $feature:literal, $line:ty, $load:ident, $stream:ident, $xor:ident) => {
        mod $name {
            use super::{Loops, Piece};
            use std::arch::x86_64::*;

            pub(super) const LOOPS: Loops = Loops {
                copy: [copy::<1>, copy::<2>, copy::<3>],
                update,
                stripe,
                beside,
                pair: [pair::<0>, pair::<1>],
                name: $feature,
            };
            const STEP: usize = size_of::<$line>();

            #[target_feature(enable = $feature)]
            unsafe fn copy<const COUNT: usize>(places: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: all are valid for `bytes`, a multiple of the step, and aligned to it. So in every loop here.
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
            unsafe fn beside(&[other, parity, _]: &Piece, src: *const u8, bytes: usize) {
                for at in (0..bytes).step_by(STEP) {
                    // SAFETY: as in copy.
                    unsafe {
                        let sum = $xor($load(src.add(at).cast()), $load(other.add(at).cast_const().cast()));
                        $stream(parity.add(at).cast(), sum);
                    }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn pair<const KEPT: usize>(&[data, parity, _]: &Piece, src: *const u8, bytes: usize) {
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
    /// Those of the best instruction set there is.
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
    /// memcpy from the members.
    Read,
    /// The same bytes to the first so many members.
    Copies(usize),
    /// Read-modify-write of data and parity.
    Update,
    /// Full stripes.
    Stripes,
}

/// A limit as a contender.
pub(crate) struct Limit<'a> {
    loops: Loops,
    work: Work,
    geometry: &'a Geometry,
    members: &'a [Mapped],
    buffer: &'a mut [u8],
    pieces: Vec<Piece>,
    /// Bytes of the program's buffer that a piece stands for.
    piece_bytes: usize,
}

impl<'a> Limit<'a> {
    /// Calls of `buffer`'s length.
    pub(crate) fn new(work: Work, geometry: &'a Geometry, members: &'a [Mapped], buffer: &'a mut [u8]) -> Self {
        let chunked = geometry.level() != Level::Raid1;
        let piece_bytes = match work {
            Work::Stripes => geometry.stripe_bytes() as usize,
            _ if chunked => buffer.len().min(geometry.chunk().bytes() as usize),
            _ => buffer.len(),
        };
        Self { loops: Loops::best(), work, geometry, members, buffer, pieces: Vec::new(), piece_bytes }
    }

    /// The addresses of the piece at `offset` of the file.
    fn piece(&self, offset: u64) -> Piece {
        let at = |slot: usize, offset: u64| self.members[slot].at(offset);
        if self.geometry.level() == Level::Raid1 {
            return [at(0, offset), at(1, offset), at(2, offset)];
        }
        let place = self.geometry.locate(offset);
        let start = self.geometry.member_offset(place.stripe);
        let data = |column: usize| self.geometry.data_slot(place.stripe, column, 0);
        let parity = self.geometry.parity_slot(place.stripe, 0);
        match self.work {
            Work::Stripes => [at(data(0), start), at(data(1), start), at(parity, start)],
            _ => {
                let data = at(data(place.column), start + place.within);
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
        // SAFETY: the members are mapped where the pieces say, for as many bytes; the buffer holds all pieces of a call.
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

/// Runs `work` on each piece of each call with its part of the buffer.
#[inline(always)]
fn each(calls: ChunksExact<'_, Piece>, buffer: *mut u8, piece_bytes: usize, work: impl Fn(&Piece, *mut u8)) {
    for call in calls {
        for (index, piece) in call.iter().enumerate() {
            work(piece, buffer.wrapping_add(index * piece_bytes));
        }
    }
}
