//! Members reached by load and store: backing files on DAX file systems, tmpfs, or any file
//! system's page cache.
//!
//! [`Backing`] is one backing file: mapped in windows that never move (`windows`), with a memory of
//! what is allocated (`allocated`). [`detect`] tells what it takes for a store to survive power
//! loss.
//!
//! A tmpfs gives a page to a hole that is only loaded from. So of a file that may have holes there
//! ([`Backing::mind_holes`]), only what is known to be none is mapped for the callers, and the
//! byte-range face reads the rest (`holes`).
//!
//! A file that a program opens is mapped once it was read some times: the first short reads cost less
//! by the byte-range face ([`Medium::span_to_load`]).
//!
//! Invariants: no window is unmapped while its Backing lives. The byte-range face (pread, pwrite)
//! works at every offset and is coherent with the mapped one. The descriptor's file position is not
//! used. (Looking for holes moves it.)
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod allocated;
mod descriptor;
mod domain;
mod holes;
pub mod parked;
mod sums;
mod windows;

pub use descriptor::Held;
pub use domain::detect;
pub use persist::PersistenceDomain;
#[cfg(feature = "small-windows")]
pub use windows::set_window_bytes;

use allocated::{GRANULE_BYTES, GRANULE_SHIFT};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use descriptor::Descriptor;
use holes::Holes;
use medium::{Medium, Span};
use sys::rustix::fs::{
    AtFlags, FallocateFlags, OFlags, StatxAttributes, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync, fstat, fsync,
    ftruncate, statx,
};
use sys::rustix::io::{pread, pwrite, retry_on_intr};
use sys::rustix::mm::{Advice, MsyncFlags, madvise, msync};
use sys::{OsError, OwnedFd};
use units::PAGE_BYTES;
use windows::{Mapping, Windows};

/// So many reads of at most so many bytes are made by calls before a file is mapped: to map and unmap
/// a file costs as much as some ten short reads by calls, and most files are read whole, once.
const GET_COUNT: u8 = 4;
const GET_BYTES_MAX: usize = 128 << 10;

/// What a backing file is mapped for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Stores fault.
    ReadOnly,
    /// The descriptor is open for reading and writing.
    ReadWrite,
}

/// One backing file on one member. See [`Medium`] for what it does.
pub struct Backing {
    descriptor: Descriptor,
    mapping: Mapping,
    domain: PersistenceDomain,
    holes: Holes,
    windows: Windows,
    sums: sums::SumsCell,
    /// Counts the reads by calls, up to [`GET_COUNT`].
    get_count: AtomicU8,
}

impl Backing {
    /// The backing file behind `fd`, which it owns from now on; `domain` is its member's. No system
    /// call.
    #[must_use]
    pub fn new(fd: OwnedFd, access: Access, domain: PersistenceDomain) -> Self {
        Self::mapped_by(Descriptor::lasting(fd), access, domain, Windows::new(windows::WINDOW_SHIFT, false))
    }

    /// Returns a table of the array, of which a few MiB are used: each of its windows takes 32 MiB of
    /// the process' address space. It may be [parked](Self::park). The other arguments are those of
    /// [`Self::new`], and `may` that of [`Self::of_file`].
    #[must_use]
    pub fn small(fd: OwnedFd, access: Access, domain: PersistenceDomain, may: fn() -> bool) -> Self {
        Self::mapped_by(Descriptor::of_table(fd, may), access, domain, Windows::new(windows::SMALL_WINDOW_SHIFT, false))
    }

    /// Returns the backing file of one of the many files that a program may have open; the file may be
    /// parked at once ([`parked`]). A descriptor that is out of the program's way already stays open.
    /// `may` tells whether this
    /// process may make system calls that it has not made before; it is asked once.
    ///
    /// # Errors
    /// What moving the descriptor out of the program's way gives.
    pub fn of_file(fd: OwnedFd, access: Access, domain: PersistenceDomain, may: fn() -> bool) -> Result<Self, OsError> {
        Ok(Self::mapped_by(Descriptor::of_file(fd, may)?, access, domain, Windows::new(windows::WINDOW_SHIFT, true)))
    }

    fn mapped_by(descriptor: Descriptor, access: Access, domain: PersistenceDomain, windows: Windows) -> Self {
        let synchronous = matches!(domain, PersistenceDomain::Eadr | PersistenceDomain::Adr);
        let mapping = Mapping { writable: access == Access::ReadWrite, synchronous, refused: AtomicBool::new(false) };
        Self {
            descriptor,
            mapping,
            domain,
            holes: Holes::new(),
            windows,
            sums: sums::SumsCell::new(),
            get_count: AtomicU8::new(0),
        }
    }

    /// The descriptor, for as long as what is returned lives.
    ///
    /// # Errors
    /// Those of fetching the descriptor of a parked file (`MFILE`, and what a sandbox answers).
    #[inline]
    pub fn fd(&self) -> Result<Held<'_>, OsError> {
        self.descriptor.hold()
    }

    /// Gives the file a descriptor of its own, which it keeps until [`Self::park`]. Others may still
    /// hold one that is closed when they are done ([`Self::wait_for_holders`]): closing one takes the
    /// process' record locks on the file away.
    ///
    /// # Errors
    /// Those of [`Self::fd`].
    pub fn keep(&self) -> Result<(), OsError> {
        self.descriptor.keep()
    }

    /// Gives the file a descriptor as [`Self::keep`] does, and ends its being parked for now.
    ///
    /// # Errors
    /// Those of [`Self::keep`]; `AGAIN` if somebody holds a descriptor.
    pub fn keep_without_place(&self) -> Result<(), OsError> {
        self.descriptor.keep_without_place()
    }

    /// Waits until nobody holds a descriptor of the file. The caller has no lock that somebody may
    /// want who holds one, and holds none itself.
    pub fn wait_for_holders(&self) {
        self.descriptor.wait_for_holders();
    }

    /// Gives the number of the file's descriptor back, if it may be parked and nobody holds it.
    /// Returns whether it has been. One thread at a time does that. The process has no record locks on
    /// the file, and nobody asks for one meanwhile.
    pub fn park(&self) -> bool {
        let has_parked = self.sums.park();
        self.descriptor.park() || has_parked
    }

    /// Whether the file has no descriptor at the moment: [`Self::fd`] takes system calls.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.descriptor.is_parked()
    }

    /// Whether the descriptor, if there is one, is out of the program's way.
    #[must_use]
    pub fn is_out_of_the_way(&self) -> bool {
        self.descriptor.is_out_of_the_way()
    }

    /// The persistence domain given at creation.
    #[must_use]
    pub const fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    /// Tells whether the sums of the file's blocks are open.
    #[inline]
    pub fn has_sums(&self) -> bool {
        self.sums.is_open()
    }

    /// Takes the file that keeps the sums of this one's blocks. Of two threads that do so at once one
    /// is heard. `may` is that of [`Self::of_file`].
    pub fn open_sums(&self, fd: OwnedFd, may: fn() -> bool) {
        self.sums.open(fd, self.domain, may);
    }

    /// The length of the backing file in bytes, asked of the kernel.
    pub fn bytes(&self) -> Result<u64, OsError> {
        fstat(self.fd()?).map(|stat| stat.st_size as u64)
    }

    /// Whether mappings of the file show the memory of a device, without a page cache (statx(2),
    /// STATX_ATTR_DAX, Linux 5.8).
    #[must_use]
    pub fn is_direct(&self) -> bool {
        let asked = self.fd().and_then(|fd| statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE));
        self.mapping.synchronous || asked.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::DAX))
    }

    /// Makes cuts and holes (and what was written by [`Medium::put`]) durable where stores are
    /// durable without a system call. The file system commits them when it likes; until then a
    /// crash brings back, on this member alone, what they took away, and the lane that could tell
    /// of it may have been used again. (Behind a page cache lanes are not believed, and every file
    /// is compared after a crash.)
    pub fn persist_layout(&self) -> Result<(), OsError> {
        if self.mapping.synchronous { self.sync_by_call() } else { Ok(()) }
    }

    /// Forgets what is known to be allocated: another process may have punched or cut the file. An
    /// `allocate` that runs at the same time may remember what it learnt before; the caller orders
    /// them.
    pub fn forget_allocations(&self) {
        for granules in self.windows.iter().flat_map(windows::Window::known) {
            granules.remove(0, (self.windows.bytes() / GRANULE_BYTES) as usize);
        }
        self.sums.forget_space();
    }

    fn grow(&self, start: u64, end: u64) -> Result<(), OsError> {
        let fd = self.fd()?;
        retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), start, end - start))
    }

    fn set_length(&self, bytes: u64) -> Result<(), OsError> {
        let fd = self.fd()?;
        retry_on_intr(|| ftruncate(&fd, bytes))
    }

    /// Makes all of the file durable, and what its file system knows of it (fsync(2)): one flush of
    /// the device, where [`Medium::persist`] and an fsync afterwards would be two.
    pub fn persist_whole(&self) -> Result<(), OsError> {
        persist::fence();
        if self.domain == PersistenceDomain::Volatile {
            return Ok(());
        }
        let fd = self.fd()?;
        retry_on_intr(|| fsync(&fd))
    }

    fn sync_by_call(&self) -> Result<(), OsError> {
        let fd = self.fd()?;
        retry_on_intr(|| fdatasync(&fd))
    }

    /// The granules that `start..end` touches, as runs within one window each; ends where nothing
    /// is mapped any more.
    fn runs(&self, mut start: u64, end: u64) -> impl Iterator<Item = (&windows::Window, usize, usize)> {
        core::iter::from_fn(move || {
            let window = self.windows.at(start).filter(|_| start < end)?;
            let window_start = start & !(self.windows.bytes() - 1);
            let stop = end.min(window_start + self.windows.bytes());
            let run = ((start - window_start) >> GRANULE_SHIFT, (stop - window_start).div_ceil(GRANULE_BYTES));
            start = stop;
            Some((window, run.0 as usize, run.1 as usize))
        })
    }

    /// Whether all of `start..end` is known to be allocated.
    #[inline]
    fn is_known(&self, start: u64, end: u64) -> bool {
        let known = |(window, first, end): (&windows::Window, usize, usize)| {
            window.granules().is_some_and(|granules| granules.contains(first, end))
        };
        end <= self.windows.bytes_max() && self.runs(start, end).all(known)
    }

    /// Allocates a range of which it is not known that it is allocated.
    #[cold]
    fn allocate_unknown(&self, start: u64, end: u64) -> Result<(), OsError> {
        self.with_durable_length(|| self.get_space(start, end))
    }

    /// Runs `get`, which makes the file longer. Where stores are durable without a system call, a
    /// page fault makes the file's new length durable with the store that meets it. But the last
    /// page of a file whose length is no whole number of pages may be mapped already, and a store
    /// there meets no fault.
    fn with_durable_length(&self, get: impl FnOnce() -> Result<(), OsError>) -> Result<(), OsError> {
        let present = if self.mapping.synchronous { self.bytes()? } else { 0 };
        get()?;
        if !present.is_multiple_of(PAGE_BYTES as u64) && present < self.bytes()? { self.persist_layout() } else { Ok(()) }
    }

    /// Does what [`Medium::allocate`] does for `start..end`, but gets no space in advance: of a
    /// small file most of that would be given back at once. Where stores are durable without a
    /// system call the file gets whole pages, since the next append would have to make another
    /// length durable by a call.
    ///
    /// # Errors
    /// The errors are those of [`Medium::allocate`].
    pub fn allocate_just(&self, start: u64, end: u64) -> Result<(), OsError> {
        let rounded = if self.mapping.synchronous { end.next_multiple_of(PAGE_BYTES as u64) } else { end };
        self.with_durable_length(|| self.get_just(start, rounded.min(sys::file_limit::bytes()).max(end)))
    }

    /// Gets space for what may be holes in `start..end`, which lies within the file, and for nothing
    /// else: the file keeps its length.
    ///
    /// # Errors
    /// The errors are those of [`Medium::allocate`].
    pub fn fill(&self, start: u64, end: u64) -> Result<(), OsError> {
        if start >= end || self.is_known(start, end) { Ok(()) } else { self.get_just(start, end) }
    }

    fn get_just(&self, start: u64, end: u64) -> Result<(), OsError> {
        match self.grow(start, end) {
            Ok(()) => {
                // Of a granule at either end it is not known what the rest of it is.
                let (first, last) = (start.next_multiple_of(GRANULE_BYTES), end & !(GRANULE_BYTES - 1));
                self.runs(first, last).for_each(|(window, first, end)| window.granules_or_new().insert(first, end));
                Ok(())
            }
            Err(OsError::OPNOTSUPP | OsError::NOSYS) => self.allocate_by_touching(start, end),
            Err(error) => Err(error),
        }
    }

    fn get_space(&self, start: u64, end: u64) -> Result<(), OsError> {
        let rounded_start = start & !(GRANULE_BYTES - 1);
        let rounded_end = end.checked_next_multiple_of(GRANULE_BYTES).unwrap_or(u64::MAX);
        if rounded_end > sys::file_limit::bytes() {
            return self.get_just(start, end);
        }
        match self.grow(rounded_start, rounded_end) {
            Ok(()) => {
                let runs = self.runs(rounded_start, rounded_end);
                runs.for_each(|(window, first, end)| window.granules_or_new().insert(first, end));
                Ok(())
            }
            Err(OsError::NOSPC | OsError::DQUOT | OsError::FBIG) if (rounded_start, rounded_end) != (start, end) => {
                self.grow(start, end)
            }
            Err(OsError::OPNOTSUPP | OsError::NOSYS) => self.allocate_by_touching(start, end),
            Err(error) => Err(error),
        }
    }

    /// For file systems without fallocate (ramfs, NFSv3, old FAT): grow, then dirty each page of
    /// the range through the mapping by an atomic operation that changes nothing, so that a store
    /// by somebody else at the same time is not lost. Where there is no mapping, space stays
    /// unpromised and `put` reports what is missing.
    fn allocate_by_touching(&self, start: u64, end: u64) -> Result<(), OsError> {
        if self.bytes()? < end {
            self.set_length(end)?;
        }
        let mut at = start & !(PAGE_BYTES as u64 - 1);
        while at < end {
            let Some(span) = self.span(at) else { return Ok(()) };
            let bytes = span.bytes.min((end - at) as usize);
            // The compiler would make a load of an operation it knows to change nothing.
            let nothing = core::hint::black_box(0);
            let touch = || {
                for page in (0..bytes).step_by(PAGE_BYTES) {
                    // SAFETY: within the span; a fault (no space) leaves the guard.
                    unsafe { AtomicU8::from_ptr(span.start.as_ptr().add(page)) }.fetch_or(nothing, Ordering::Relaxed);
                }
            };
            // SAFETY: `touch` owns nothing, and `allocate` is not called inside a guard (Medium).
            let touched = unsafe { persist::fault::guard(touch) };
            touched.map_err(|_| OsError::NOSPC)?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Puts the mapped pages of a range in place before they are stored to, by one system call
    /// instead of a fault for each page. The range has space. Where the kernel does not do that
    /// (before Linux 5.14), the stores fault as usual.
    pub fn populate(&self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes);
        let mut at = offset & !(PAGE_BYTES as u64 - 1);
        while at < end {
            let Some(span) = self.span_to_store(at) else { return };
            let step = span.bytes.min((end - at) as usize);
            // SAFETY: the range lies within a window, which stays mapped; the call changes no byte.
            let _ = unsafe { madvise(span.start.as_ptr().cast(), step, Advice::LinuxPopulateWrite) };
            at += step as u64;
        }
    }

    /// The mapped bytes from `offset` on to the end of the window, holes or not. A window that is not
    /// mapped is mapped if `may_map` says so.
    #[inline(always)]
    fn span_of_window(&self, offset: u64, may_map: impl FnOnce() -> bool) -> Option<Span> {
        let window = self.windows.at(offset)?;
        if let Some(base) = window.mapped() {
            return Some(span_in(base, self.windows.bytes(), offset));
        }
        match self.windows.early_mapped(offset) {
            Some(base) => Some(span_in(base, windows::EARLY_BYTES, offset)),
            None if may_map() => self.span_of_unmapped(window, offset),
            None => None,
        }
    }

    /// Sees to it that neither reads by calls nor mappings move the time of access of the member's
    /// file, as for who has it open with O_NOATIME. Who may have that may set it here.
    pub fn keep_access_time(&self) {
        if let Ok(fd) = self.fd()
            && let Ok(flags) = fcntl_getfl(&fd)
        {
            // Without the right to it the time moves as for any reader.
            let _ = fcntl_setfl(&fd, flags | OFlags::NOATIME);
        }
    }

    /// Maps the beginning of a file that was read by calls, which this process may not make any more.
    pub fn map_what_is_read(&self) {
        if self.get_count.swap(GET_COUNT, Ordering::Relaxed) != 0 {
            // What cannot be mapped is read by calls as before.
            let _ = self.span_of_window(0, || true);
        }
    }

    /// Tells whether so many bytes of a window that is not mapped are rather read by a call.
    #[cold]
    fn is_read_by_call(&self, bytes: usize) -> bool {
        let count = self.get_count.load(Ordering::Relaxed);
        self.windows.may_wait() && count < GET_COUNT && bytes <= GET_BYTES_MAX && !self.is_parked()
    }

    /// Does what [`Self::span_of_window`] does where `window`, in which `offset` lies, is not mapped.
    #[cold]
    fn span_of_unmapped(&self, window: &windows::Window, offset: u64) -> Option<Span> {
        let (window, bytes) = match self.windows.early(offset, || self.bytes().ok()) {
            Some(early) => (early, windows::EARLY_BYTES),
            None => (window, self.windows.bytes()),
        };
        window.base(offset & !(bytes - 1), bytes, self).map(|base| span_in(base, bytes, offset))
    }

    /// Whether a fence is not enough to make stores durable: the member's domain says so, or this
    /// file was refused a synchronous mapping.
    fn needs_sync_call(&self) -> bool {
        self.domain.needs_sync_call() || self.mapping.refused.load(Ordering::Acquire)
    }

    /// msync of the mapped pages of a range within one window; None if it has to be done another
    /// way.
    fn sync_mapped(&self, offset: u64, bytes: u64) -> Option<Result<(), OsError>> {
        let start = offset & !(PAGE_BYTES as u64 - 1);
        let bytes = usize::try_from(offset.checked_add(bytes)? - start).ok()?;
        let span = self.span(start).filter(|span| span.bytes >= bytes)?;
        // SAFETY: the range lies within a window, which stays mapped; msync changes nothing.
        Some(retry_on_intr(|| unsafe { msync(span.start.as_ptr().cast(), bytes, MsyncFlags::SYNC) }))
    }
}

/// The mapped bytes from `offset` of a file on, in a window of `bytes` bytes that is mapped at `base`.
#[inline(always)]
fn span_in(base: NonNull<u8>, bytes: u64, offset: u64) -> Span {
    let within = offset & (bytes - 1);
    // SAFETY: `within` is less than the window's bytes.
    let start = unsafe { NonNull::new_unchecked(base.as_ptr().add(within as usize)) };
    Span { start, bytes: (bytes - within) as usize }
}

impl Medium for Backing {
    #[inline]
    fn span(&self, offset: u64) -> Option<Span> {
        if self.holes.are_minded() { self.span_of_known(offset) } else { self.span_of_window(offset, || true) }
    }

    #[inline]
    fn span_to_store(&self, offset: u64) -> Option<Span> {
        self.span_of_window(offset, || true)
    }

    #[inline]
    fn span_to_load(&self, offset: u64, bytes: usize) -> Option<Span> {
        match self.holes.are_minded() {
            true => self.span_of_known(offset),
            false => self.span_of_window(offset, || !self.is_read_by_call(bytes)),
        }
    }

    unsafe fn get(&self, mut offset: u64, mut dst: *mut u8, mut bytes: usize) -> Result<(), OsError> {
        let fd = self.fd()?;
        // Threads that count at once may count one read less.
        let count = self.get_count.load(Ordering::Relaxed);
        if count < GET_COUNT {
            self.get_count.store(count + 1, Ordering::Relaxed);
        }
        while bytes > 0 {
            // SAFETY: `dst` is valid for `bytes` writes, or the caller is inside a guard; a bad
            // pointer is EFAULT.
            let buffer = unsafe { core::slice::from_raw_parts_mut(dst.cast::<core::mem::MaybeUninit<u8>>(), bytes) };
            let done = retry_on_intr(|| pread(&fd, &mut *buffer, offset).map(|(filled, _)| filled.len()))?;
            if done == 0 {
                self.require_reach(offset, bytes as u64)?;
                // SAFETY: as above.
                unsafe { dst.write_bytes(0, bytes) };
                return Ok(());
            }
            (offset, dst, bytes) = (offset + done as u64, dst.wrapping_add(done), bytes - done);
        }
        Ok(())
    }

    unsafe fn put(&self, mut offset: u64, mut src: *const u8, mut bytes: usize) -> Result<(), OsError> {
        let fd = self.fd()?;
        while bytes > 0 {
            // SAFETY: `src` is valid for `bytes` reads, or the caller is inside a guard; a bad
            // pointer is EFAULT.
            let buffer = unsafe { core::slice::from_raw_parts(src, bytes) };
            let done = retry_on_intr(|| pwrite(&fd, buffer, offset))?;
            if done == 0 {
                return Err(OsError::IO);
            }
            (offset, src, bytes) = (offset + done as u64, src.wrapping_add(done), bytes - done);
        }
        // Where a fence makes stores durable nobody would ask for more.
        self.persist_layout()
    }

    #[inline]
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        if bytes == 0 {
            return Ok(());
        }
        let end = offset.checked_add(bytes).filter(|&end| end <= i64::MAX as u64).ok_or(OsError::FBIG)?;
        if self.is_known(offset, end) { Ok(()) } else { self.allocate_unknown(offset, end) }
    }

    fn set_len(&self, bytes: u64) -> Result<(), OsError> {
        self.forget_allocations();
        // What is cut off comes back as zeros. Before: a death in between leaves blocks without sums.
        let kept = bytes.next_multiple_of(medium::SUM_BLOCK_BYTES);
        self.sums.forget(kept, u64::MAX - kept)?;
        self.set_length(bytes)
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        if bytes == 0 {
            return Ok(());
        }
        let end = offset.checked_add(bytes).ok_or(OsError::INVAL)?;
        for (window, first, end) in self.runs(offset, end) {
            window.known().for_each(|granules| granules.remove(first, end));
        }
        self.sums.forget(offset, bytes)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let fd = self.fd()?;
        retry_on_intr(|| fallocate(&fd, flags, offset, bytes))
    }

    fn persist(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        // Everywhere: what was stored non-temporally is in memory before the kernel looks at it.
        persist::fence();
        if self.needs_sync_call() {
            self.sums.persist(offset, bytes)?;
            return self.sync_mapped(offset, bytes).unwrap_or_else(|| self.sync_by_call());
        }
        Ok(())
    }

    fn owns(&self, address: usize) -> bool {
        self.windows.own(address) || self.sums.owns(address)
    }

    fn ready_sums(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.sums.ready(offset, bytes)
    }

    #[inline]
    fn sums(&self, block: u64, count: usize) -> Option<&[AtomicU32]> {
        self.sums.sums(block, count)
    }

    fn forget_sums(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.sums.forget(offset, bytes)
    }
}

#[cfg(test)]
mod tests;
