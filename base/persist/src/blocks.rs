//! Kernels that store one block of 4096 bytes and sum it (CRC-32C) while its lines are in registers.
//!
//! A pass of its own over what was stored would have to read it back from memory, since whole lines
//! are stored past the caches. A pass over the program's buffer would sum other bytes than those that
//! were stored if the program changes its buffer meanwhile. Here each line is loaded once, and what
//! is stored is what is summed.
//!
//! The *remainder* of a block is its CRC-32C without the inversions at the beginning and the end; the
//! CRC-32C is the remainder with [`CRC_OF_ZEROS`] added (by exclusive or). CRC is linear: the remainder
//! of the exclusive or of several blocks is the exclusive or of their remainders. So the sum of parity
//! P follows from the sums of the data. The sum of an updated Q follows from the old sum of Q and from
//! the remainder of what Q changes by.
//!
//! The loops are those of `template`, on whole blocks, with [`Fold`] added: the instructions by which
//! a processor computes remainders. A processor without them has none of these kernels
//! ([`Kernels::blocks`]).
//!
//! # Safety of every kernel here
//! The caller promises what the kernels of `template` ask for: pointers are valid for a block, or the
//! call is inside a guard and the memory is nobody else's to own. All destinations are multiples of 64.

use crate::arch::{block_table, write_back};
use crate::crc::CRC_BLOCK_BYTES;
use crate::kernels::Kernels;
use crate::line::{Field, LINE, Line};
use crate::template::{Stripe, Update, prefetch_update, put_block};
use crate::{CRC_OF_ZEROS, Flush};
use core::mem::MaybeUninit;

/// How many lines are worked on at a time.
pub(crate) const FOLD_LINES: usize = 4;
const FOLD_BYTES: usize = FOLD_LINES * LINE;
/// The most columns that a stripe can have.
const COLUMNS_MAX: usize = 32;

/// How a processor computes remainders of lines in registers.
pub(crate) trait Fold<L: Line> {
    /// What is known of the lines so far.
    type State: Copy;

    /// The state before the first line.
    ///
    /// # Safety
    /// The processor has the instructions of this type.
    unsafe fn begin() -> Self::State;

    /// Adds the next lines.
    ///
    /// # Safety
    /// As for [`Fold::begin`].
    unsafe fn fold(state: Self::State, lines: &[L; FOLD_LINES]) -> Self::State;

    /// The remainder.
    ///
    /// # Safety
    /// As for [`Fold::begin`].
    unsafe fn end(state: Self::State) -> u32;
}

/// The kernels of one instruction set. Each returns remainders and not sums.
pub(crate) struct BlockTable {
    pub(crate) mirror: unsafe fn(&[*mut u8], *const u8) -> u32,
    pub(crate) update_p: unsafe fn(&Update) -> [u32; 3],
    pub(crate) update_pq: unsafe fn(&Update) -> [u32; 3],
    pub(crate) stripe_p: unsafe fn(&Stripe<'_>, u32, &mut [u32]) -> u32,
    pub(crate) stripe_pq: unsafe fn(&Stripe<'_>, u32, &mut [u32]) -> u32,
}

/// The remainder of the block at `src`.
#[inline(always)]
pub(crate) unsafe fn remainder<L: Line, F: Fold<L>>(src: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut state = F::begin();
        for at in (0..CRC_BLOCK_BYTES).step_by(FOLD_BYTES) {
            state = F::fold(state, &load::<L>(src.add(at)));
        }
        F::end(state)
    }
}

#[inline(always)]
unsafe fn load<L: Line>(from: *const u8) -> [L; FOLD_LINES] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut lines = [L::zero(); FOLD_LINES];
        for (i, line) in lines.iter_mut().enumerate() {
            *line = L::load(from.add(i * LINE)).pin();
        }
        lines
    }
}

/// Stores each dst = src. Returns the remainder of the block.
#[inline(always)]
pub(crate) unsafe fn mirror<L: Line, F: Fold<L>, const STREAM: bool>(dsts: &[*mut u8], src: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut state = F::begin();
        for at in (0..CRC_BLOCK_BYTES).step_by(FOLD_BYTES) {
            let lines = load::<L>(src.add(at));
            for dst in dsts {
                put_block::<L, STREAM, FOLD_LINES>(&lines, dst.add(at));
            }
            state = F::fold(state, &lines);
        }
        F::end(state)
    }
}

/// Stores p ^= old ^ new; q ^= coefficient * (old ^ new), if the constant `Q` is true; data = new.
/// Returns the remainder of the new data and, if `Q` is true, the remainders of the old data and of
/// what q changes by; else zeros in their places.
#[inline(always)]
pub(crate) unsafe fn update<L, G, F, const STREAM: bool, const Q: bool>(u: &Update) -> [u32; 3]
where
    L: Line,
    G: Field<L>,
    F: Fold<L>,
{
    if STREAM {
        prefetch_update(u.data, u.p, CRC_BLOCK_BYTES);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let factor = G::factor(u.coefficient);
        let mut states = [F::begin(); 3];
        for at in (0..CRC_BLOCK_BYTES).step_by(FOLD_BYTES) {
            let new = load::<L>(u.new.add(at));
            let old = load::<L>(u.data.add(at));
            let mut p = load::<L>(u.p.add(at));
            for i in 0..FOLD_LINES {
                p[i] = p[i].xor3(old[i], new[i]);
            }
            states[0] = F::fold(states[0], &new);
            if Q {
                let mut change = [L::zero(); FOLD_LINES];
                let mut q = load::<L>(u.q.add(at));
                for i in 0..FOLD_LINES {
                    change[i] = G::multiply(old[i].xor(new[i]), factor);
                    q[i] = q[i].xor(change[i]);
                }
                states[1] = F::fold(states[1], &old);
                states[2] = F::fold(states[2], &change);
                put_block::<L, STREAM, FOLD_LINES>(&q, u.q.add(at));
            }
            put_block::<L, STREAM, FOLD_LINES>(&new, u.data.add(at));
            put_block::<L, STREAM, FOLD_LINES>(&p, u.p.add(at));
        }
        if Q { [F::end(states[0]), F::end(states[1]), F::end(states[2])] } else { [F::end(states[0]), 0, 0] }
    }
}

/// Stores P = sum of the sources; Q = sum of 2^i * source i, if the constant `Q` is true; each data
/// that is not null = its source. Puts the remainder of each column that has a bit in `wanted` into
/// `remainders`, and returns the remainder of Q; 0 if `Q` is false.
#[inline(always)]
pub(crate) unsafe fn stripe<L, G, F, const STREAM: bool, const Q: bool>(
    s: &Stripe<'_>,
    wanted: u32,
    remainders: &mut [u32],
) -> u32
where
    L: Line,
    G: Field<L>,
    F: Fold<L>,
{
    let columns = s.sources.len();
    // The states are not initialised here: most stripes use few of them.
    let mut states = MaybeUninit::<[F::State; COLUMNS_MAX]>::uninit();
    let states = states.as_mut_ptr().cast::<F::State>();
    // SAFETY: the caller's promise; there are at most COLUMNS_MAX columns, and each state is written
    // before it is read.
    unsafe {
        let mut of_q = F::begin();
        for column in 0..columns {
            states.add(column).write(F::begin());
        }
        for at in (0..CRC_BLOCK_BYTES).step_by(FOLD_BYTES) {
            let mut p = [L::zero(); FOLD_LINES];
            let mut q = [L::zero(); FOLD_LINES];
            // The highest column first: q is doubled before each further column is added, so column
            // i is doubled i times.
            for column in (0..columns).rev() {
                let lines = load::<L>(s.sources.get_unchecked(column).add(at));
                let data = *s.datas.get_unchecked(column);
                if !data.is_null() {
                    put_block::<L, STREAM, FOLD_LINES>(&lines, data.add(at));
                }
                for i in 0..FOLD_LINES {
                    p[i] = p[i].xor(lines[i]);
                    if Q {
                        q[i] = G::double(q[i]).xor(lines[i]);
                    }
                }
                if wanted >> column & 1 == 1 {
                    let state = states.add(column);
                    state.write(F::fold(state.read(), &lines));
                }
            }
            put_block::<L, STREAM, FOLD_LINES>(&p, s.p.add(at));
            if Q {
                put_block::<L, STREAM, FOLD_LINES>(&q, s.q.add(at));
                of_q = F::fold(of_q, &q);
            }
        }
        for (column, remainder) in remainders.iter_mut().enumerate().take(columns) {
            if wanted >> column & 1 == 1 {
                *remainder = F::end(states.add(column).read());
            }
        }
        if Q { F::end(of_q) } else { 0 }
    }
}

/// Kernels that store whole blocks, and return their CRC-32C or what it follows from. All
/// destinations are on media and at multiples of 64. None is null but where a kernel says so.
///
/// Every method is unsafe for the reason that those of [`Kernels`] are.
#[derive(Clone, Copy)]
pub struct BlockKernels {
    stream: &'static BlockTable,
    cached: &'static BlockTable,
    flush: Flush,
    streams_copies: bool,
    update_stream_bytes_min: usize,
}

impl core::fmt::Debug for BlockKernels {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BlockKernels").field("flush", &self.flush).finish_non_exhaustive()
    }
}

impl Kernels {
    /// The kernels that sum the blocks which they store, in the way in which these kernels store.
    /// None where the processor computes no remainders of lines in registers.
    #[inline]
    #[must_use]
    pub fn blocks(&self) -> Option<BlockKernels> {
        let (copy_stream_bytes_min, update_stream_bytes_min) = self.stream_bytes_min();
        Some(BlockKernels {
            stream: block_table(self.isa(), true)?,
            cached: block_table(self.isa(), false)?,
            flush: self.flush(),
            streams_copies: CRC_BLOCK_BYTES >= copy_stream_bytes_min,
            update_stream_bytes_min,
        })
    }
}

impl BlockKernels {
    const fn table(&self, streams: bool) -> &'static BlockTable {
        if streams { self.stream } else { self.cached }
    }

    /// Writes the block at `dst` back to memory if it was stored through the caches and a flush is
    /// needed.
    #[inline(always)]
    unsafe fn settle(&self, streams: bool, dst: *const u8) {
        if self.flush == Flush::Needed && !streams && !dst.is_null() {
            // SAFETY: the caller's promise.
            unsafe { write_back(dst, CRC_BLOCK_BYTES) };
        }
    }

    /// Stores copies: each dst = src. Returns the CRC-32C of the block.
    ///
    /// # Safety
    /// See [`BlockKernels`].
    #[inline]
    #[must_use]
    pub unsafe fn mirror(&self, dsts: &[*mut u8], src: *const u8) -> u32 {
        let streams = self.streams_copies;
        // SAFETY: the caller's promise.
        unsafe {
            let remainder = (self.table(streams).mirror)(dsts, src);
            dsts.iter().for_each(|&dst| self.settle(streams, dst));
            remainder ^ CRC_OF_ZEROS
        }
    }

    /// Read-modify-write of a column with P: p ^= data ^ new; data = new. Returns the CRC-32C of the
    /// new data. `run_bytes` is how many bytes the update has in all, of which this block is a part:
    /// by that it is decided whether lines are stored past the caches.
    ///
    /// # Safety
    /// See [`BlockKernels`].
    #[inline]
    #[must_use]
    pub unsafe fn update_p(&self, data: *mut u8, p: *mut u8, new: *const u8, run_bytes: usize) -> u32 {
        let streams = run_bytes >= self.update_stream_bytes_min;
        let update = Update { data, p, q: core::ptr::null_mut(), new, coefficient: 0, len: CRC_BLOCK_BYTES };
        // SAFETY: the caller's promise.
        unsafe {
            let [new, ..] = (self.table(streams).update_p)(&update);
            self.settle(streams, data);
            self.settle(streams, p);
            new ^ CRC_OF_ZEROS
        }
    }

    /// Read-modify-write of a column with P and Q: p ^= data ^ new; q ^= coefficient * (data ^ new);
    /// data = new. Returns the CRC-32C of the new data and of the old, and the remainder of what q
    /// changes by: q's CRC-32C changes by that. `run_bytes` is how many bytes the update has in all, of
    /// which this block is a part: by that it is decided whether lines are stored past the caches.
    ///
    /// # Safety
    /// See [`BlockKernels`].
    #[inline]
    #[must_use]
    pub unsafe fn update_pq(
        &self,
        data: *mut u8,
        [p, q]: [*mut u8; 2],
        new: *const u8,
        coefficient: u8,
        run_bytes: usize,
    ) -> [u32; 3] {
        let streams = run_bytes >= self.update_stream_bytes_min;
        let update = Update { data, p, q, new, coefficient, len: CRC_BLOCK_BYTES };
        // SAFETY: the caller's promise.
        unsafe {
            let [new, old, change] = (self.table(streams).update_pq)(&update);
            self.settle(streams, data);
            self.settle(streams, p);
            self.settle(streams, q);
            [new ^ CRC_OF_ZEROS, old ^ CRC_OF_ZEROS, change]
        }
    }

    /// A stripe: data i = new i, where data i is not null; p = sum of all new; q = sum of 2^i * new
    /// i, if q is not null. Puts the CRC-32C of each column that has a bit in `wanted` into `sums`,
    /// and returns that of q. Without q the value returned means nothing, and neither do the places
    /// in `sums` of columns that are not wanted.
    ///
    /// # Panics
    /// If the slices differ in length, or there are more columns than an array has members.
    ///
    /// # Safety
    /// See [`BlockKernels`].
    #[inline]
    #[must_use]
    pub unsafe fn stripe(
        &self,
        news: &[*const u8],
        datas: &[*mut u8],
        [p, q]: [*mut u8; 2],
        wanted: u32,
        sums: &mut [u32],
    ) -> u32 {
        assert!(news.len() == datas.len() && news.len() == sums.len() && news.len() <= COLUMNS_MAX);
        let streams = self.streams_copies;
        let stripe = Stripe { sources: news, datas, p, q, len: CRC_BLOCK_BYTES };
        let table = self.table(streams);
        // SAFETY: the caller's promise.
        unsafe {
            let of_q = (if q.is_null() { table.stripe_p } else { table.stripe_pq })(&stripe, wanted, sums);
            if self.flush == Flush::Needed {
                datas.iter().for_each(|&data| self.settle(streams, data));
                self.settle(streams, p);
                self.settle(streams, q);
            }
            sums.iter_mut().for_each(|sum| *sum ^= CRC_OF_ZEROS);
            of_q ^ CRC_OF_ZEROS
        }
    }
}
