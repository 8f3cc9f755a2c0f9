//! The kernels as the engine sees them: which instruction set, which way of storing, and whether to
//! write back.
//!
//! Chosen once. "Media" means member memory. A whole line written to media by a long enough call is
//! stored non-temporally: it does not fetch the line and it leaves the caches by itself. Shorter
//! calls store through the caches (see `stream_bytes_min`), and where the caches are outside the
//! persistence domain ([`Flush::Needed`]) what was written through them is written back. No kernel
//! fences; [`fence`](crate::fence) before anything that must come after.
//!
//! Updates, stripes and mirrors load each byte of the program's buffer once: what they leave on the
//! members is consistent even while the program changes its buffer (`tests/race.rs`).
//!
//! Rules for all kernels: any length, 0 too; any alignment, but destinations on media that are not
//! equal modulo 64 bytes are stored through the caches; lengths count bytes of each buffer; a
//! source may be the very same buffer as its own destination (new and old data of an update, source
//! and destination of one column of a stripe, any source of a copy or a sum), otherwise buffers do
//! not overlap; nothing outside the buffers is read or written. They are meant to run inside
//! [`fault::guard`](crate::fault::guard): they own nothing and may be left at any instruction.

use crate::arch::{Isa, Table, copy_string, suits_copy_string, table, write_back};
use crate::line::LINE;
use crate::template::{Stripe, Update};
use crate::{Flush, PersistenceDomain};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The shortest copy to media and the shortest update that are stored non-temporally, in bytes.
///
/// Measured by `examples/threshold.rs` (EPYC, AVX-512; ns per call, non-temporal : ordinary; cold =
/// random places in 512 MiB per member). Copies with a fence after each, as the engine uses them,
/// on a quiet machine; updates without a fence, on a machine whose memory was busy:
///
/// | bytes | copy hot | copy cold | update hot | update cold |
/// |---|---|---|---|---|
/// | 64 | 94 : 3 | 97 : 18 | 115 : 12 | 288 : 158 |
/// | 512 | 108 : 7 | 115 : 104 | 351 : 33 | 405 : 544 |
/// | 1024 | 122 : 12 | 126 : 169 | 557 : 65 | 1071 : 1171 |
/// | 2048 | 159 : 19 | 191 : 377 | 690 : 125 | 1575 : 1310 |
/// | 4096 | 233 : 37 | 262 : 490 | 1540 : 249 | 1950 : 1264 |
/// | 16384 | 667 : 173 | 756 : 1721 | 5921 : 965 | 6758 : 6418 |
///
/// A non-temporal store makes the fence wait for memory (about 95 ns) and leaves the line out of
/// the caches; an ordinary one fetches each cold line first. An update has loaded its lines anyway,
/// so it gains little by non-temporal stores (at 4 KiB, on a quiet machine, random 1000 : 1250,
/// sequential 570 : 545) and loses the parity that the next write to the stripe wants hot. Where
/// ordinary stores are written back, the fence waits all the same, and non-temporal ones are as
/// good or better at every length (copy, cold: 99 : 161 at 64 bytes, 274 : 742 at 4096).
const fn stream_bytes_min(flush: Flush) -> (usize, usize) {
    match flush {
        Flush::NotNeeded => (1024, 16384),
        Flush::Needed => (0, 0),
    }
}

/// The shortest copy from media that is left to the processor's string instruction, which fetches
/// cold lines earlier than a loop.
///
/// ns per copy, loop : string instruction, through 1 GiB in order: 1024 bytes 56 : 53, 2048 bytes
/// 110 : 93, 4096 bytes within the engine 262 : 172; hot 10 : 16, 19 : 24, 39 : 42. At random there
/// is no difference.
const STRING_BYTES_MIN: usize = 2048;

/// Copy and parity kernels of one instruction set.
///
/// Every method is unsafe for the same reason: its pointers are valid for `len` bytes, destinations
/// for writing, sources for reading (or the call is inside a guard and the memory is nobody else's
/// to own), and nobody but the members' other users, who are kept apart by stripe locks, changes
/// them meanwhile.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    flush: Flush,
    stream: &'static Table,
    cached: &'static Table,
    copy_stream_bytes_min: usize,
    update_stream_bytes_min: usize,
}

impl core::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kernels").field("isa", &self.isa).field("flush", &self.flush).finish_non_exhaustive()
    }
}

/// One entry per instruction set, in the order of [`Isa::ALL`].
static WITHOUT_FLUSH: [Kernels; Isa::ALL.len()] = all(Flush::NotNeeded);
static WITH_FLUSH: [Kernels; Isa::ALL.len()] = all(Flush::Needed);
/// The best of `WITHOUT_FLUSH`, once known.
static BEST: AtomicPtr<Kernels> = AtomicPtr::new(null_mut());

const fn all(flush: Flush) -> [Kernels; Isa::ALL.len()] {
    let mut out = [Kernels::new(Isa::Sse2, flush); Isa::ALL.len()];
    let mut i = 0;
    while i < out.len() {
        out[i] = Kernels::new(Isa::ALL[i], flush);
        i += 1;
    }
    out
}

/// The best kernels of this processor, for media where stores need no write-back
/// ([`Flush::NotNeeded`]): eADR, page cache, volatile.
#[inline]
#[must_use]
pub fn kernels() -> &'static Kernels {
    let best = BEST.load(Ordering::Relaxed);
    // SAFETY: null or a reference to an entry of a static.
    unsafe { best.as_ref() }.unwrap_or_else(|| choose())
}

#[cold]
fn choose() -> &'static Kernels {
    let best = &WITHOUT_FLUSH[Isa::best() as usize];
    BEST.store(core::ptr::from_ref(best).cast_mut(), Ordering::Relaxed);
    best
}

/// The best kernels of this processor for media of this domain.
#[must_use]
pub fn kernels_for(domain: PersistenceDomain) -> &'static Kernels {
    match domain.flush() {
        Flush::NotNeeded => kernels(),
        Flush::Needed => &WITH_FLUSH[kernels().isa as usize],
    }
}

/// Stores one line non-temporally: a record that must leave the caches whatever the media. With
/// AVX-512 it is one instruction, and on the processors there are the line is not seen in part;
/// otherwise it is two or four stores to one write-combining buffer, and a reader tells a torn
/// record by its checksum. See [`Kernels::store_line`] for records on media whose domain is known.
///
/// # Safety
/// `dst` is a multiple of 64 and writable for 64 bytes, or the call is inside a guard.
#[inline]
pub unsafe fn store_line(dst: *mut u8, line: &[u8; LINE]) {
    debug_assert_eq!(dst as usize % LINE, 0);
    // SAFETY: the caller's promise.
    unsafe { (kernels().stream.copy)(dst, line.as_ptr(), LINE) }
}

/// Whether all of these, which are not null, have the same address modulo 64.
#[inline(always)]
fn in_step(a: *const u8, b: *const u8) -> bool {
    a.is_null() || b.is_null() || (a as usize ^ b as usize).is_multiple_of(LINE)
}

impl Kernels {
    const fn new(isa: Isa, flush: Flush) -> Self {
        let (copy_stream_bytes_min, update_stream_bytes_min) = stream_bytes_min(flush);
        Self { isa, flush, stream: table(isa, true), cached: table(isa, false), copy_stream_bytes_min, update_stream_bytes_min }
    }

    /// The kernels of `isa` (for tests and measurements); `None` if this processor has not got it.
    #[must_use]
    pub fn for_isa(isa: Isa, flush: Flush) -> Option<&'static Self> {
        let all = if flush == Flush::Needed { &WITH_FLUSH } else { &WITHOUT_FLUSH };
        isa.is_available().then(|| &all[isa as usize])
    }

    /// The same kernels, storing whole lines non-temporally at any length.
    #[must_use]
    pub const fn always_streaming(self) -> Self {
        Self { copy_stream_bytes_min: 0, update_stream_bytes_min: 0, ..self }
    }

    /// The same kernels, storing through the caches at any length.
    #[must_use]
    pub const fn never_streaming(self) -> Self {
        Self { copy_stream_bytes_min: usize::MAX, update_stream_bytes_min: usize::MAX, ..self }
    }

    /// The shortest copy and the shortest update that are stored non-temporally, in bytes.
    #[inline(always)]
    pub(crate) const fn stream_bytes_min(&self) -> (usize, usize) {
        (self.copy_stream_bytes_min, self.update_stream_bytes_min)
    }

    /// The instruction set.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Whether these kernels write back what they store through the caches.
    #[must_use]
    pub const fn flush(&self) -> Flush {
        self.flush
    }

    /// Stores one line: the write-intent record. Non-temporally only where it has to leave the
    /// caches ([`Flush::Needed`]): a record used over and over costs 3 ns with its fence in the
    /// caches and 94 ns out of them. Torn as [`store_line`].
    ///
    /// # Safety
    /// `dst` is a multiple of 64; otherwise see [`Kernels`].
    #[inline]
    pub unsafe fn store_line(&self, dst: *mut u8, line: &[u8; LINE]) {
        debug_assert_eq!(dst as usize % LINE, 0);
        let table = if self.flush == Flush::Needed { self.stream } else { self.cached };
        // SAFETY: the caller's promise.
        unsafe { (table.copy)(dst, line.as_ptr(), LINE) }
    }

    /// dst = src, `dst` on media.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn copy_to_media(&self, dst: *mut u8, src: *const u8, len: usize) {
        let stream = len >= self.copy_stream_bytes_min;
        let table = if stream { self.stream } else { self.cached };
        // SAFETY: the caller's promise.
        unsafe {
            (table.copy)(dst, src, len);
            self.settle(stream, dst, len);
        }
    }

    /// Each dst = src, all on media: mirrors. The source is read once, so the copies are equal even
    /// if the program changes its buffer meanwhile; separate copies would not be.
    ///
    /// # Safety
    /// See [`Kernels`]; no destination is null.
    #[inline]
    pub unsafe fn mirror_to_media(&self, dsts: &[*mut u8], src: *const u8, len: usize) {
        let Some(&anchor) = dsts.first() else { return };
        let stream = len >= self.copy_stream_bytes_min && dsts.iter().all(|&dst| in_step(dst, anchor));
        let table = if stream { self.stream } else { self.cached };
        // SAFETY: the caller's promise.
        unsafe {
            (table.mirror)(dsts, src, len);
            dsts.iter().for_each(|&dst| self.settle(stream, dst, len));
        }
    }

    /// dst = src, `dst` on media, stored through the caches: for what is read again at once.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn copy_to_media_temporal(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            (self.cached.copy)(dst, src, len);
            self.settle(false, dst, len);
        }
    }

    /// dst = src, `dst` in the program's memory: ordinary stores, nothing written back.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn copy_from_media(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if len >= STRING_BYTES_MIN && suits_copy_string(dst, src) {
                copy_string(dst, src, len);
            } else {
                (self.cached.copy)(dst, src, len);
            }
        }
    }

    /// dst = 0, `dst` on media.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn zero_media(&self, dst: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            (self.stream.zero)(dst, len);
            self.settle(true, dst, len);
        }
    }

    /// Read-modify-write of a column with P: p ^= data ^ new; data = new.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn update_p(&self, data: *mut u8, p: *mut u8, new: *const u8, len: usize) {
        let update = Update { data, p, q: null_mut(), new, coefficient: 0, len };
        // SAFETY: the caller's promise.
        unsafe { self.update(&update, self.stream.update_p, self.cached.update_p) }
    }

    /// Read-modify-write of a column with P and Q: p ^= data ^ new; q ^= coefficient * (data ^
    /// new); data = new.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn update_pq(&self, data: *mut u8, p: *mut u8, q: *mut u8, new: *const u8, coefficient: u8, len: usize) {
        let update = Update { data, p, q, new, coefficient, len };
        // SAFETY: the caller's promise.
        unsafe { self.update(&update, self.stream.update_pq, self.cached.update_pq) }
    }

    /// Read-modify-write of a column where P is missing: q ^= coefficient * (data ^ new); data =
    /// new.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn update_q(&self, data: *mut u8, q: *mut u8, new: *const u8, coefficient: u8, len: usize) {
        let update = Update { data, p: null_mut(), q, new, coefficient, len };
        // SAFETY: the caller's promise.
        unsafe { self.update(&update, self.stream.update_q, self.cached.update_q) }
    }

    /// A full stripe with P: data i = new i, where data i is not null; p = sum of all new, if p is
    /// not null.
    ///
    /// # Panics
    /// If the slices differ in length.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn stripe_p(&self, news: &[*const u8], datas: &[*mut u8], p: *mut u8, len: usize) {
        let stripe = Stripe { sources: news, datas, p, q: null_mut(), len };
        // SAFETY: the caller's promise.
        unsafe { self.stripe(&stripe, self.stream.stripe_p, self.cached.stripe_p) }
    }

    /// A full stripe with P and Q: data i = new i, where data i is not null; p = sum of new i, q =
    /// sum of 2^i * new i, where not null.
    ///
    /// # Panics
    /// If the slices differ in length.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn stripe_pq(&self, news: &[*const u8], datas: &[*mut u8], p: *mut u8, q: *mut u8, len: usize) {
        let stripe = Stripe { sources: news, datas, p, q, len };
        // SAFETY: the caller's promise.
        unsafe { self.stripe(&stripe, self.stream.stripe_pq, self.cached.stripe_pq) }
    }

    /// p = sum of the sources; nothing else is stored. `p` on media.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn parity_p(&self, sources: &[*const u8], p: *mut u8, len: usize) {
        let stripe = Stripe { sources, datas: &[], p, q: null_mut(), len };
        // SAFETY: the caller's promise.
        unsafe { self.parity(&stripe, self.stream.parity_p, self.cached.parity_p) }
    }

    /// p = sum of source i, q = sum of 2^i * source i, where not null; nothing else is stored. `p`
    /// and `q` on media.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn parity_pq(&self, sources: &[*const u8], p: *mut u8, q: *mut u8, len: usize) {
        let stripe = Stripe { sources, datas: &[], p, q, len };
        // SAFETY: the caller's promise.
        unsafe { self.parity(&stripe, self.stream.parity_pq, self.cached.parity_pq) }
    }

    /// Whether p = sum of the sources, if p is not null. Nothing is stored.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    #[must_use]
    pub unsafe fn fits_p(&self, sources: &[*const u8], p: *const u8, len: usize) -> bool {
        let stripe = Stripe { sources, datas: &[], p: p.cast_mut(), q: null_mut(), len };
        // SAFETY: the caller's promise.
        unsafe { (self.cached.fits_p)(&stripe) }
    }

    /// Whether p = sum of source i and q = sum of 2^i * source i, where not null. Nothing is
    /// stored.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    #[must_use]
    pub unsafe fn fits_pq(&self, sources: &[*const u8], p: *const u8, q: *const u8, len: usize) -> bool {
        let stripe = Stripe { sources, datas: &[], p: p.cast_mut(), q: q.cast_mut(), len };
        // SAFETY: the caller's promise.
        unsafe { (self.cached.fits_pq)(&stripe) }
    }

    /// dst = sum of coefficient i * source i: reconstruction into the program's or our own memory
    /// (ordinary stores, nothing written back). A source whose coefficient is 0 is not read and may
    /// be null.
    ///
    /// # Panics
    /// If the slices differ in length.
    ///
    /// # Safety
    /// See [`Kernels`].
    #[inline]
    pub unsafe fn dot(&self, coefficients: &[u8], sources: &[*const u8], dst: *mut u8, len: usize) {
        assert_eq!(coefficients.len(), sources.len());
        // SAFETY: the caller's promise.
        unsafe { (self.cached.dot)(coefficients, sources, dst, len) }
    }

    #[inline(always)]
    unsafe fn update(&self, update: &Update, stream_kernel: unsafe fn(&Update), cached_kernel: unsafe fn(&Update)) {
        let &Update { data, p, q, len, .. } = update;
        let parity = if p.is_null() { q } else { p };
        let stream = len >= self.update_stream_bytes_min && in_step(p, q) && in_step(data, parity);
        // SAFETY: the caller's promise; `p` and `q` are null where the kernel does not use them.
        unsafe {
            if stream {
                stream_kernel(update)
            } else {
                cached_kernel(update)
            }
            if self.flush == Flush::Needed {
                self.settle(stream, data, len);
                self.settle(stream, p, len);
                self.settle(stream, q, len);
            }
        }
    }

    #[inline(always)]
    unsafe fn stripe(&self, stripe: &Stripe<'_>, stream_kernel: unsafe fn(&Stripe<'_>), cached_kernel: unsafe fn(&Stripe<'_>)) {
        assert_eq!(stripe.sources.len(), stripe.datas.len());
        let &Stripe { datas, p, q, len, .. } = stripe;
        let anchor = [p, q].into_iter().chain(datas.iter().copied()).find(|d| !d.is_null()).unwrap_or(null_mut());
        let stream = len >= self.copy_stream_bytes_min && in_step(p, q) && datas.iter().all(|&data| in_step(data, anchor));
        // SAFETY: the caller's promise.
        unsafe {
            if stream {
                stream_kernel(stripe)
            } else {
                cached_kernel(stripe)
            }
            if self.flush == Flush::Needed {
                datas.iter().for_each(|&data| self.settle(stream, data, len));
                self.settle(stream, p, len);
                self.settle(stream, q, len);
            }
        }
    }

    #[inline(always)]
    unsafe fn parity(&self, stripe: &Stripe<'_>, stream_kernel: unsafe fn(&Stripe<'_>), cached_kernel: unsafe fn(&Stripe<'_>)) {
        let &Stripe { p, q, len, .. } = stripe;
        let stream = len >= self.copy_stream_bytes_min && in_step(p, q);
        // SAFETY: the caller's promise.
        unsafe {
            if stream {
                stream_kernel(stripe)
            } else {
                cached_kernel(stripe)
            }
            self.settle(stream, p, len);
            self.settle(stream, q, len);
        }
    }

    /// Writes back what went through the caches: with `stream` the partial lines at both ends, else
    /// everything.
    #[inline(always)]
    unsafe fn settle(&self, stream: bool, dst: *const u8, len: usize) {
        if self.flush == Flush::NotNeeded || dst.is_null() || len == 0 {
            return;
        }
        // SAFETY: `dst` is valid for `len` bytes (caller), and the ranges are within it.
        unsafe {
            if !stream {
                return write_back(dst, len);
            }
            let (start, end) = (dst as usize, dst as usize + len);
            let starts_within = !start.is_multiple_of(LINE);
            if starts_within {
                write_back(dst, 1);
            }
            // Not the same line again.
            let is_same_line = starts_within && start / LINE == end / LINE;
            if !end.is_multiple_of(LINE) && !is_same_line {
                write_back(dst.add(len - 1), 1);
            }
        }
    }
}
