//! The inner loops ("kernels") that copy, mirror, zero and compute parity: written once over
//! [`Line`] and [`Field`], and compiled for each instruction set by `arch`.
//!
//! A line is [`LINE`] = 64 bytes, a cache line. Every kernel walks `len` bytes in the same way: a
//! partial line up to the next line boundary of one destination, whole lines, a partial line. The
//! destination is the only one, or the first of `mirror`; P of `update` and `stripe`, without P it
//! is Q, and without both it is the first data that is stored. With `STREAM` whole lines are stored
//! non-temporally, for which all destinations must have the same address modulo 64. Without it all
//! lines are stored ordinarily, and destinations may have any alignment.
//!
//! `mirror`, `update` and `stripe` load each byte of the program's once; [`Line::pin`] keeps the
//! compiler from loading it a second time. So copies, data and parity agree, even if the program
//! changes its buffer meanwhile. `update`, `stripe` and `dot` work on `BLOCK` lines at a time,
//! `copy` and `mirror` on four.
//!
//! # Safety of every function here
//! The caller (`kernels`) promises that
//! - the pointers in use are valid for `len` bytes, or the call is inside a guard and the memory is
//!   nobody else's to own;
//! - with `STREAM`, and for `zero`, all destinations have the same address modulo 64;
//! - slices have an entry per source, where their comment does not say otherwise;
//! - operands do not overlap. But a source may be the very same buffer as its own destination
//!   (`new` and `data` of `update`; source and destination of one column of `stripe`; any source of
//!   `copy`, `mirror` and `dot`): each line of it is loaded before the line at the same offset of
//!   that destination is stored.
//!
//! Products and sums of parity (`*`, `sum`) are those of GF(2^8).

use crate::arch::prefetch;
use crate::line::{Field, LINE, Line};

/// How many bytes of the data and of one parity an update with `STREAM` prefetches before its first
/// line.
const PREFETCH_BYTES: usize = 512;

/// Stores a whole line.
#[inline(always)]
unsafe fn put<L: Line, const STREAM: bool>(line: L, to: *mut u8) {
    // SAFETY: the caller's promise; with STREAM `to` is at a line boundary.
    unsafe { if STREAM { line.stream(to) } else { line.store(to) } }
}

/// Stores `BLOCK` whole lines. (The array is taken by reference: moved into an iterator it would go
/// through memory.)
#[inline(always)]
pub(crate) unsafe fn put_block<L: Line, const STREAM: bool, const BLOCK: usize>(lines: &[L; BLOCK], to: *mut u8) {
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: as in `put`.
        unsafe { put::<L, STREAM>(*line, to.add(i * LINE)) }
    }
}

/// The number of bytes from `destination` to the next line boundary, at most `len`.
#[inline(always)]
fn head(destination: *const u8, len: usize) -> usize {
    ((destination as usize).wrapping_neg() % LINE).min(len)
}

/// Asks for the first lines of the data and of one parity.
#[inline(always)]
pub(crate) fn prefetch_update(data: *const u8, parity: *const u8, len: usize) {
    for ahead in (0..PREFETCH_BYTES.min(len)).step_by(LINE) {
        prefetch(data.wrapping_add(ahead));
        prefetch(parity.wrapping_add(ahead));
    }
}

/// dst = src.
#[inline(always)]
pub(crate) unsafe fn copy<L: Line, const STREAM: bool>(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = head(dst, len);
    // SAFETY: `at` never passes `len`, for which both are valid (caller); whole lines are at line
    // boundaries of `dst`.
    unsafe {
        if at != 0 {
            L::load_part(src, at).store_part(dst, at);
        }
        while at + 4 * LINE <= len {
            let a = L::load(src.add(at));
            let b = L::load(src.add(at + LINE));
            let c = L::load(src.add(at + 2 * LINE));
            let d = L::load(src.add(at + 3 * LINE));
            put::<L, STREAM>(a, dst.add(at));
            put::<L, STREAM>(b, dst.add(at + LINE));
            put::<L, STREAM>(c, dst.add(at + 2 * LINE));
            put::<L, STREAM>(d, dst.add(at + 3 * LINE));
            at += 4 * LINE;
        }
        while at + LINE <= len {
            put::<L, STREAM>(L::load(src.add(at)), dst.add(at));
            at += LINE;
        }
        if at < len {
            L::load_part(src.add(at), len - at).store_part(dst.add(at), len - at);
        }
    }
}

/// Each dst = src, from one load: the copies are equal even while the program changes its buffer.
#[inline(always)]
pub(crate) unsafe fn mirror<L: Line, const STREAM: bool>(dsts: &[*mut u8], src: *const u8, len: usize) {
    let mut at = dsts.first().map_or(0, |&first| head(first, len));
    // SAFETY: `at` never passes `len`, for which all are valid (caller); whole lines are at line
    // boundaries of the first `dst`, with STREAM of each.
    unsafe {
        if at != 0 {
            let part = L::load_part(src, at).pin();
            for dst in dsts {
                part.store_part(*dst, at);
            }
        }
        while at + 4 * LINE <= len {
            let block = [
                L::load(src.add(at)).pin(),
                L::load(src.add(at + LINE)).pin(),
                L::load(src.add(at + 2 * LINE)).pin(),
                L::load(src.add(at + 3 * LINE)).pin(),
            ];
            for dst in dsts {
                put_block::<L, STREAM, 4>(&block, dst.add(at));
            }
            at += 4 * LINE;
        }
        while at + LINE <= len {
            let line = L::load(src.add(at)).pin();
            for dst in dsts {
                put::<L, STREAM>(line, dst.add(at));
            }
            at += LINE;
        }
        if at < len {
            let part = L::load_part(src.add(at), len - at).pin();
            for dst in dsts {
                part.store_part(dst.add(at), len - at);
            }
        }
    }
}

/// dst = 0; whole lines are stored non-temporally.
#[inline(always)]
pub(crate) unsafe fn zero<L: Line>(dst: *mut u8, len: usize) {
    let mut at = head(dst, len);
    // SAFETY: `at` never passes `len`, for which `dst` is valid (caller); whole lines are at line
    // boundaries.
    unsafe {
        let zero = L::zero();
        if at != 0 {
            zero.store_part(dst, at);
        }
        while at + LINE <= len {
            zero.stream(dst.add(at));
            at += LINE;
        }
        if at < len {
            zero.store_part(dst.add(at), len - at);
        }
    }
}

/// The operands of an update of one column and its parities.
#[derive(Clone, Copy)]
pub(crate) struct Update {
    /// The old data, and the place of the new.
    pub data: *mut u8,
    /// P; used only if the constant `P` is true.
    pub p: *mut u8,
    /// Q; used only if the constant `Q` is true.
    pub q: *mut u8,
    /// The new data.
    pub new: *const u8,
    /// The factor with which the column enters Q: 2^i for column i.
    pub coefficient: u8,
    /// Length of each operand.
    pub len: usize,
}

/// p ^= old ^ new, if the constant `P` is true; q ^= coefficient * (old ^ new), if `Q` is; data =
/// new. One of the two is true at least.
#[inline(always)]
pub(crate) unsafe fn update<L, G, const STREAM: bool, const P: bool, const Q: bool, const BLOCK: usize>(u: Update)
where
    L: Line,
    G: Field<L>,
{
    let mut at = head(if P { u.p } else { u.q }, u.len);
    if STREAM {
        // Otherwise the loads of the next lines wait behind the non-temporal stores of the first: 4
        // KiB take 680 ns, not 610.
        prefetch_update(u.data, if P { u.p } else { u.q }, u.len);
    }
    // SAFETY: `at` never passes `len`, for which all operands in use are valid (caller); whole
    // lines are at line boundaries of P, else of Q; with STREAM of all destinations.
    unsafe {
        let factor = G::factor(u.coefficient);
        if at != 0 {
            update_part::<L, G, P, Q>(u, factor, 0, at);
        }
        while at + BLOCK * LINE <= u.len {
            update_block::<L, G, STREAM, P, Q, BLOCK>(u, factor, at);
            at += BLOCK * LINE;
        }
        while at + LINE <= u.len {
            update_block::<L, G, STREAM, P, Q, 1>(u, factor, at);
            at += LINE;
        }
        if at < u.len {
            update_part::<L, G, P, Q>(u, factor, at, u.len - at);
        }
    }
}

/// [`update`] of `BLOCK` whole lines: all loads, then the stores of one member after the other.
#[inline(always)]
unsafe fn update_block<L, G, const STREAM: bool, const P: bool, const Q: bool, const BLOCK: usize>(
    u: Update,
    factor: G::Factor,
    at: usize,
) where
    L: Line,
    G: Field<L>,
{
    // SAFETY: the block is within the operands (caller, [`update`]).
    unsafe {
        let mut new = [L::zero(); BLOCK];
        let mut p = [L::zero(); BLOCK];
        let mut q = [L::zero(); BLOCK];
        for i in 0..BLOCK {
            let at = at + i * LINE;
            new[i] = L::load(u.new.add(at)).pin();
            let old = L::load(u.data.add(at));
            if P {
                p[i] = L::load(u.p.add(at)).xor3(old, new[i]);
            }
            if Q {
                q[i] = L::load(u.q.add(at)).xor(G::multiply(old.xor(new[i]), factor));
            }
        }
        put_block::<L, STREAM, BLOCK>(&new, u.data.add(at));
        if P {
            put_block::<L, STREAM, BLOCK>(&p, u.p.add(at));
        }
        if Q {
            put_block::<L, STREAM, BLOCK>(&q, u.q.add(at));
        }
    }
}

/// [`update`] of a partial line.
#[inline(always)]
unsafe fn update_part<L, G, const P: bool, const Q: bool>(u: Update, factor: G::Factor, at: usize, len: usize)
where
    L: Line,
    G: Field<L>,
{
    // SAFETY: `at + len` is within the operands (caller, [`update`]).
    unsafe {
        let new = L::load_part(u.new.add(at), len).pin();
        let old = L::load_part(u.data.add(at), len);
        new.store_part(u.data.add(at), len);
        if P {
            L::load_part(u.p.add(at), len).xor3(old, new).store_part(u.p.add(at), len);
        }
        if Q {
            let q = L::load_part(u.q.add(at), len).xor(G::multiply(old.xor(new), factor));
            q.store_part(u.q.add(at), len);
        }
    }
}

/// The operands of a pass over one range of all chunks of a stripe.
#[derive(Clone, Copy)]
pub(crate) struct Stripe<'a> {
    /// The data of each column.
    pub sources: &'a [*const u8],
    /// Where the data of each column goes, an entry per source; null: nowhere. Used only if the
    /// constant `DATA` is true, else it may be empty.
    pub datas: &'a [*mut u8],
    /// P; null: not stored.
    pub p: *mut u8,
    /// Q; used only if the constant `Q` is true; null: not stored.
    pub q: *mut u8,
    /// Length of each operand.
    pub len: usize,
}

/// P = sum of the sources; Q = sum of 2^i * source i; datas = sources.
#[inline(always)]
pub(crate) unsafe fn stripe<L, G, const STREAM: bool, const DATA: bool, const Q: bool, const BLOCK: usize>(s: Stripe<'_>)
where
    L: Line,
    G: Field<L>,
{
    // If nothing is stored it is null, which is at a line boundary.
    let destination = if !s.p.is_null() {
        s.p
    } else if Q && !s.q.is_null() {
        s.q
    } else {
        s.datas.iter().copied().find(|data| DATA && !data.is_null()).unwrap_or(s.p)
    };
    let mut at = head(destination, s.len);
    // SAFETY: `at` never passes `len`, for which the sources are valid, and the destinations valid
    // or null (caller); whole lines are at line boundaries of `destination`, with STREAM of all
    // destinations.
    unsafe {
        if at != 0 {
            stripe_part::<L, G, DATA, Q>(s, 0, at);
        }
        while at + BLOCK * LINE <= s.len {
            stripe_block::<L, G, STREAM, DATA, Q, BLOCK>(s, at);
            at += BLOCK * LINE;
        }
        while at + LINE <= s.len {
            stripe_block::<L, G, STREAM, DATA, Q, 1>(s, at);
            at += LINE;
        }
        if at < s.len {
            stripe_part::<L, G, DATA, Q>(s, at, s.len - at);
        }
    }
}

/// [`stripe`] of `BLOCK` whole lines.
#[inline(always)]
unsafe fn stripe_block<L, G, const STREAM: bool, const DATA: bool, const Q: bool, const BLOCK: usize>(s: Stripe<'_>, at: usize)
where
    L: Line,
    G: Field<L>,
{
    // SAFETY: the block is within the operands (caller, [`stripe`]); `datas` has an entry per
    // source if DATA (caller).
    unsafe {
        let mut p = [L::zero(); BLOCK];
        let mut q = [L::zero(); BLOCK];
        // The highest column first: q is doubled before each further column is added, so column i
        // is doubled i times.
        for column in (0..s.sources.len()).rev() {
            let source = s.sources.get_unchecked(column).add(at);
            let data = if DATA { *s.datas.get_unchecked(column) } else { core::ptr::null_mut() };
            for i in 0..BLOCK {
                let line = L::load(source.add(i * LINE)).pin();
                if DATA && !data.is_null() {
                    put::<L, STREAM>(line, data.add(at + i * LINE));
                }
                p[i] = p[i].xor(line);
                if Q {
                    q[i] = G::double(q[i]).xor(line);
                }
            }
        }
        if !s.p.is_null() {
            put_block::<L, STREAM, BLOCK>(&p, s.p.add(at));
        }
        if Q && !s.q.is_null() {
            put_block::<L, STREAM, BLOCK>(&q, s.q.add(at));
        }
    }
}

/// [`stripe`] of a partial line.
#[inline(always)]
unsafe fn stripe_part<L, G, const DATA: bool, const Q: bool>(s: Stripe<'_>, at: usize, len: usize)
where
    L: Line,
    G: Field<L>,
{
    // SAFETY: `at + len` is within the operands (caller, [`stripe`]); `datas` has an entry per
    // source if DATA (caller).
    unsafe {
        let mut p = L::zero();
        let mut q = L::zero();
        // The highest column first, as in `stripe_block`.
        for column in (0..s.sources.len()).rev() {
            let line = L::load_part(s.sources.get_unchecked(column).add(at), len).pin();
            if DATA && !s.datas.get_unchecked(column).is_null() {
                line.store_part(s.datas.get_unchecked(column).add(at), len);
            }
            p = p.xor(line);
            if Q {
                q = G::double(q).xor(line);
            }
        }
        if !s.p.is_null() {
            p.store_part(s.p.add(at), len);
        }
        if Q && !s.q.is_null() {
            q.store_part(s.q.add(at), len);
        }
    }
}

/// Whether P = sum of the sources and Q = sum of 2^i * source i, where they are not null. Stores
/// nothing; `datas` is not used.
#[inline(always)]
pub(crate) unsafe fn fits<L, G, const Q: bool, const BLOCK: usize>(s: Stripe<'_>) -> bool
where
    L: Line,
    G: Field<L>,
{
    let mut at = 0;
    // SAFETY: `at` never passes `len`, for which all operands are valid, or null and not read
    // (caller).
    unsafe {
        let mut differences = L::zero();
        while at + BLOCK * LINE <= s.len {
            differences = differences.or(differences_of_block::<L, G, Q, BLOCK>(s, at));
            at += BLOCK * LINE;
        }
        while at + LINE <= s.len {
            differences = differences.or(differences_of_block::<L, G, Q, 1>(s, at));
            at += LINE;
        }
        if at < s.len {
            let load = |from: *const u8| L::load_part(from.add(at), s.len - at);
            let (mut p, mut q) = (L::zero(), L::zero());
            // The highest column first, as in `stripe_block`.
            for source in s.sources.iter().rev() {
                let line = load(*source);
                p = p.xor(line);
                if Q {
                    q = G::double(q).xor(line);
                }
            }
            if !s.p.is_null() {
                differences = differences.or(p.xor(load(s.p)));
            }
            if Q && !s.q.is_null() {
                differences = differences.or(q.xor(load(s.q)));
            }
        }
        differences.is_zero()
    }
}

/// By what the parities of `BLOCK` whole lines differ from what the sources say: 0 where they fit.
#[inline(always)]
unsafe fn differences_of_block<L, G, const Q: bool, const BLOCK: usize>(s: Stripe<'_>, at: usize) -> L
where
    L: Line,
    G: Field<L>,
{
    // SAFETY: the block is within the operands (caller, [`fits`]).
    unsafe {
        let mut p = [L::zero(); BLOCK];
        let mut q = [L::zero(); BLOCK];
        if !s.p.is_null() {
            for (i, p) in p.iter_mut().enumerate() {
                *p = L::load(s.p.add(at + i * LINE));
            }
        }
        // The highest column first, as in `stripe_block`.
        for source in s.sources.iter().rev() {
            for i in 0..BLOCK {
                let line = L::load(source.add(at + i * LINE));
                p[i] = p[i].xor(line);
                if Q {
                    q[i] = G::double(q[i]).xor(line);
                }
            }
        }
        let mut differences = L::zero();
        for i in 0..BLOCK {
            if !s.p.is_null() {
                differences = differences.or(p[i]);
            }
            if Q && !s.q.is_null() {
                differences = differences.or(q[i].xor(L::load(s.q.add(at + i * LINE))));
            }
        }
        differences
    }
}

/// dst = sum of coefficient i * source i; a coefficient per source. A source whose coefficient is 0
/// is not read.
#[inline(always)]
pub(crate) unsafe fn dot<L, G, const BLOCK: usize>(coefficients: &[u8], sources: &[*const u8], dst: *mut u8, len: usize)
where
    L: Line,
    G: Field<L>,
{
    // SAFETY: the caller's promise is passed on. With all coefficients 1 the sum is an exclusive
    // or.
    unsafe {
        if coefficients.iter().all(|&coefficient| coefficient == 1) {
            dot_walk::<L, G, false, BLOCK>(coefficients, sources, dst, len);
        } else {
            dot_walk::<L, G, true, BLOCK>(coefficients, sources, dst, len);
        }
    }
}

/// [`dot`], without multiplications of whole lines if `MULTIPLY` is false: all coefficients are 1
/// then.
#[inline(always)]
unsafe fn dot_walk<L, G, const MULTIPLY: bool, const BLOCK: usize>(
    coefficients: &[u8],
    sources: &[*const u8],
    dst: *mut u8,
    len: usize,
) where
    L: Line,
    G: Field<L>,
{
    let mut at = head(dst, len);
    // SAFETY: `at` never passes `len`, for which all operands in use are valid (caller); whole
    // lines are at line boundaries of `dst`.
    unsafe {
        if at != 0 {
            dot_part::<L, G>(coefficients, sources, dst, 0, at);
        }
        while at + BLOCK * LINE <= len {
            dot_block::<L, G, MULTIPLY, BLOCK>(coefficients, sources, dst, at);
            at += BLOCK * LINE;
        }
        while at + LINE <= len {
            dot_block::<L, G, MULTIPLY, 1>(coefficients, sources, dst, at);
            at += LINE;
        }
        if at < len {
            dot_part::<L, G>(coefficients, sources, dst, at, len - at);
        }
    }
}

/// [`dot`] of `BLOCK` whole lines.
#[inline(always)]
unsafe fn dot_block<L, G, const MULTIPLY: bool, const BLOCK: usize>(
    coefficients: &[u8],
    sources: &[*const u8],
    dst: *mut u8,
    at: usize,
) where
    L: Line,
    G: Field<L>,
{
    // SAFETY: the block is within the operands (caller, [`dot`]).
    unsafe {
        let mut sum = [L::zero(); BLOCK];
        for (&coefficient, source) in coefficients.iter().zip(sources) {
            if MULTIPLY && coefficient == 0 {
                continue;
            }
            let factor = G::factor(coefficient);
            for (i, sum) in sum.iter_mut().enumerate() {
                let line = L::load(source.add(at + i * LINE));
                *sum = sum.xor(if MULTIPLY { G::multiply(line, factor) } else { line });
            }
        }
        put_block::<L, false, BLOCK>(&sum, dst.add(at));
    }
}

/// [`dot`] of a partial line; it multiplies in any case, which costs little here.
#[inline(always)]
unsafe fn dot_part<L, G>(coefficients: &[u8], sources: &[*const u8], dst: *mut u8, at: usize, len: usize)
where
    L: Line,
    G: Field<L>,
{
    // SAFETY: `at + len` is within the operands (caller, [`dot`]).
    unsafe {
        let mut sum = L::zero();
        for (&coefficient, source) in coefficients.iter().zip(sources) {
            if coefficient != 0 {
                let line = L::load_part(source.add(at), len);
                sum = sum.xor(G::multiply(line, G::factor(coefficient)));
            }
        }
        sum.store_part(dst.add(at), len);
    }
}
