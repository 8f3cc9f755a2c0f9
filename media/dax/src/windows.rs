//! The windows through which a backing file is mapped: fixed pieces of file offset that, once
//! mapped, never move. They have 1 GiB each; those of the small files under `.cxlraid` have 32 MiB,
//! so that a program with little address space (`ulimit -v`) can map them. A file of at most 2 MiB is
//! mapped through a window of that size, until somebody reaches further: to take back a mapping of
//! 1 GiB the kernel walks all of its page tables.
//!
//! A window may reach beyond the end of the file. Loads and stores there fault until the file
//! grows; then they work without another system call. The table of windows has two levels. Window
//! 0, the only one of most files, lies in the table itself, so a small file costs one mmap and no
//! other memory.
//!
//! Invariant: a window goes from unmapped to mapped (or to "cannot be mapped") once, by
//! compare-and-exchange; whoever loses the race unmaps its own attempt. No window is unmapped
//! before the table is dropped, so an address in a window is valid for that long.

use crate::Backing;
use crate::allocated::Granules;
use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{AsFd, BorrowedFd};

/// The logarithm of a window's bytes: 1 GiB. No window is larger.
pub(crate) const WINDOW_SHIFT: u32 = 30;
/// The logarithm of the bytes of the windows of small files: 32 MiB.
pub(crate) const SMALL_WINDOW_SHIFT: u32 = 25;
/// The logarithm of how many windows a file has at most. Offsets behind the last of them (from 64
/// TiB on, with windows of 1 GiB) are in no window; they are reached by system calls.
pub(crate) const WINDOWS_SHIFT: u32 = 16;

/// The bytes of a small file's only window: those of one table of pages, or of a huge page.
pub(crate) const EARLY_BYTES: u64 = HUGE_PAGE_BYTES as u64;

const LEAF_SHIFT: u32 = 8;
const LEAF_WINDOWS: usize = 1 << LEAF_SHIFT;
const ROOT_LEAVES: usize = 1 << (WINDOWS_SHIFT - LEAF_SHIFT);
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// A run of known granules is not followed further than this: 16 MiB.
const RUN_GRANULES_MAX: usize = 256;

/// The address that stands for "mapping this window failed": never page aligned, so never a
/// mapping.
const CANNOT: *mut u8 = ptr::without_provenance_mut(1);

/// One window of a file and what is known about its space.
pub(crate) struct Window {
    /// Null before the first use; [`CANNOT`] after mmap failed.
    base: AtomicPtr<u8>,
    granules: AtomicPtr<Granules>,
    /// What is known to hold data throughout, of a file in which loads must mind holes.
    data: AtomicPtr<Granules>,
}

struct Leaf([Window; LEAF_WINDOWS]);
struct Root([AtomicPtr<Leaf>; ROOT_LEAVES]);

/// The windows of one backing file.
pub(crate) struct Windows {
    first: Window,
    /// The first [`EARLY_BYTES`], as long as nobody has reached further. What is known about space is
    /// the first window's.
    early: Window,
    /// Tells whether `early` may be used: whoever asks for a span looks at how long it is.
    has_early: bool,
    root: AtomicPtr<Root>,
    /// The logarithm of a window's bytes.
    pub(crate) shift: u32,
}

/// The logarithm of the bytes of windows of files opened from now on.
#[cfg(feature = "small-windows")]
static SHIFT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(WINDOW_SHIFT);

/// Sets the bytes of a window for files that are opened from now on: a power of two, at least a
/// granule; None for the usual size. Small files then have several windows, which check/crash
/// needs.
#[cfg(feature = "small-windows")]
pub fn set_window_bytes(bytes: Option<u64>) {
    let shift = bytes.map_or(WINDOW_SHIFT, |bytes| bytes.trailing_zeros().max(crate::allocated::GRANULE_SHIFT));
    SHIFT.store(shift.min(WINDOW_SHIFT), Ordering::Relaxed);
}

/// How windows of a file are mapped.
pub(crate) struct Mapping {
    pub(crate) writable: bool,
    /// Whether stores must become durable by flushing processor caches alone, which MAP_SYNC
    /// provides.
    pub(crate) synchronous: bool,
    /// Whether the kernel refused MAP_SYNC for this file although the member grants it (with the
    /// mount option dax=inode a file may lack the DAX attribute). Then windows are ordinary
    /// mappings, and a system call must make stores durable.
    pub(crate) refused: AtomicBool,
}

impl Window {
    const fn new() -> Self {
        Self {
            base: AtomicPtr::new(ptr::null_mut()),
            granules: AtomicPtr::new(ptr::null_mut()),
            data: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The address at which the window is mapped, if it is mapped.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Ordering::Acquire)).filter(|base| base.as_ptr() != CANNOT)
    }

    /// Tells whether somebody has tried to map the window.
    pub(crate) fn was_used(&self) -> bool {
        !self.base.load(Ordering::Acquire).is_null()
    }

    /// The address at which the window is mapped; the first use maps it. The window begins at
    /// `offset` in the file and has `bytes`. None if it cannot be mapped.
    #[inline]
    pub(crate) fn base(&self, offset: u64, bytes: u64, file: &Backing) -> Option<NonNull<u8>> {
        let base = self.base.load(Ordering::Acquire);
        if base > CANNOT { NonNull::new(base) } else { self.map(base, offset, bytes, file) }
    }

    #[cold]
    fn map(&self, seen: *mut u8, offset: u64, bytes: u64, file: &Backing) -> Option<NonNull<u8>> {
        if seen == CANNOT {
            return None;
        }
        // Without a descriptor nothing is said of the file: another time there is one.
        let fd = file.fd().ok()?;
        let new = map_window(fd.as_fd(), offset, bytes, &file.mapping).map_or(CANNOT, NonNull::as_ptr);
        match self.base.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => NonNull::new(new).filter(|base| base.as_ptr() != CANNOT),
            Err(other) => {
                unmap_window(new, bytes);
                NonNull::new(other).filter(|base| base.as_ptr() != CANNOT)
            }
        }
    }

    /// What is known of the window's allocated space; None if nothing was ever noted.
    #[inline]
    pub(crate) fn granules(&self) -> Option<&Granules> {
        // SAFETY: null, or a leaked Box that is freed only when the table is dropped.
        unsafe { self.granules.load(Ordering::Acquire).as_ref() }
    }

    /// The window's granules, created on first use.
    pub(crate) fn granules_or_new(&self) -> &Granules {
        install(&self.granules, Granules::new)
    }

    /// What is known to hold data, created on first use.
    pub(crate) fn data_or_new(&self) -> &Granules {
        install(&self.data, Granules::new)
    }

    /// Everything that is known of the window's granules.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Granules> {
        // SAFETY: null, or a leaked Box that is freed only when the table is dropped.
        let data = unsafe { self.data.load(Ordering::Acquire).as_ref() };
        self.granules().into_iter().chain(data)
    }

    /// How many granules from `first` on are known to have space or data, as far as a few words
    /// tell.
    pub(crate) fn known_from(&self, first: usize) -> usize {
        let mut count = 0;
        while count < RUN_GRANULES_MAX {
            let at = first + count;
            let bits = self.known().fold(0, |bits, granules| bits | granules.bits_from(at));
            let run = (!bits).trailing_zeros() as usize;
            count += run;
            if bits == 0 || run < 64 - at % 64 {
                break;
            }
        }
        count
    }
}

impl Windows {
    /// Windows of 2^`shift` bytes each; with `has_early` also one of [`EARLY_BYTES`].
    pub(crate) fn new(shift: u32, has_early: bool) -> Self {
        #[cfg(feature = "small-windows")]
        let shift = shift.min(SHIFT.load(Ordering::Relaxed));
        Self { first: Window::new(), early: Window::new(), has_early, root: AtomicPtr::new(ptr::null_mut()), shift }
    }

    /// Where the window of [`EARLY_BYTES`] is mapped, if it is and holds `offset`.
    #[inline]
    pub(crate) fn early_mapped(&self, offset: u64) -> Option<NonNull<u8>> {
        self.early.mapped().filter(|_| offset < EARLY_BYTES)
    }

    /// The window of [`EARLY_BYTES`] that a file of this many bytes is mapped through where `offset`
    /// lies; None where it is one of the windows of [`Windows::bytes`]. `bytes` is asked once at most.
    pub(crate) fn early(&self, offset: u64, bytes: impl FnOnce() -> Option<u64>) -> Option<&Window> {
        let is_small = || self.early.was_used() || bytes().is_some_and(|bytes| bytes <= EARLY_BYTES);
        let may = self.has_early && offset < EARLY_BYTES && self.shift == WINDOW_SHIFT && !self.first.was_used();
        (may && is_small()).then_some(&self.early)
    }

    /// Tells whether these are the windows of a file of a program, whose mapping may wait until the
    /// file has been read some times.
    pub(crate) const fn may_wait(&self) -> bool {
        self.has_early
    }

    /// Bytes of a window.
    #[inline(always)]
    pub(crate) const fn bytes(&self) -> u64 {
        1 << self.shift
    }

    /// The first offset that is in no window.
    #[inline(always)]
    pub(crate) const fn bytes_max(&self) -> u64 {
        1 << (self.shift + WINDOWS_SHIFT)
    }

    /// The window that holds `offset`; None from [`Windows::bytes_max`] on.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> Option<&Window> {
        if offset < self.bytes() { Some(&self.first) } else { self.at_high(offset) }
    }

    fn at_high(&self, offset: u64) -> Option<&Window> {
        if offset >= self.bytes_max() {
            return None;
        }
        let index = (offset >> self.shift) as usize;
        let root = install(&self.root, || Root([const { AtomicPtr::new(ptr::null_mut()) }; ROOT_LEAVES]));
        let leaf = install(&root.0[index >> LEAF_SHIFT], || Leaf([const { Window::new() }; LEAF_WINDOWS]));
        Some(&leaf.0[index % LEAF_WINDOWS])
    }

    /// Every window that was ever used.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Window> {
        // SAFETY: null, or a leaked Box that is freed only when the table is dropped; so for the
        // leaves below.
        let root = unsafe { self.root.load(Ordering::Acquire).as_ref() };
        let leaves = root.into_iter().flat_map(|root| &root.0);
        // SAFETY: null, or a leaked Box that is freed only when the table is dropped.
        let leaves = leaves.filter_map(|leaf| unsafe { leaf.load(Ordering::Acquire).as_ref() });
        core::iter::once(&self.first).chain(leaves.flat_map(|leaf| &leaf.0))
    }

    /// Whether `address` lies in a mapped window.
    pub(crate) fn own(&self, address: usize) -> bool {
        let lies_in = |base: NonNull<u8>, bytes: u64| address.wrapping_sub(base.addr().get()) < bytes as usize;
        self.early.mapped().is_some_and(|base| lies_in(base, EARLY_BYTES))
            || self.iter().filter_map(Window::mapped).any(|base| lies_in(base, self.bytes()))
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        unmap_window(self.early.base.load(Ordering::Acquire), EARLY_BYTES);
        for window in self.iter() {
            unmap_window(window.base.load(Ordering::Acquire), self.bytes());
            discard(&window.granules);
            discard(&window.data);
        }
        // SAFETY: null, or a leaked Box; nobody else holds the table any more.
        if let Some(root) = unsafe { self.root.load(Ordering::Acquire).as_ref() } {
            root.0.iter().for_each(discard);
        }
        discard(&self.root);
    }
}

/// The value behind `place`. If there is none, it is made and installed; of several threads that do
/// so at once, all but one drop theirs.
fn install<T>(place: &AtomicPtr<T>, make: impl FnOnce() -> T) -> &T {
    let mut found = place.load(Ordering::Acquire);
    if found.is_null() {
        let new = Box::into_raw(Box::new(make()));
        found = match place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: `new` came from Box::into_raw above and was not published.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: not null, published by this function, freed by `discard` only when the table is
    // dropped.
    unsafe { &*found }
}

/// Frees what `install` published. The caller is the only one who can reach the table.
fn discard<T>(place: &AtomicPtr<T>) {
    let found = place.swap(ptr::null_mut(), Ordering::AcqRel);
    if !found.is_null() {
        // SAFETY: published by `install`, so from Box::into_raw; the table is being dropped, nobody
        // holds a reference.
        drop(unsafe { Box::from_raw(found) });
    }
}

/// Maps one window. The kernel aligns a mapping for huge pages if the file system has them. If the
/// address is not aligned, the window is mapped once more at the aligned address just below, which
/// is free as a rule.
fn map_window(fd: BorrowedFd<'_>, offset: u64, bytes: u64, mapping: &Mapping) -> Option<NonNull<u8>> {
    let wish = sys::place::wish(bytes as usize) as *mut u8;
    let first = map_at(wish, fd, offset, bytes, mapping)?;
    let excess = first.addr().get() % HUGE_PAGE_BYTES;
    if excess == 0 {
        return Some(first);
    }
    let hint = first.as_ptr().wrapping_sub(excess);
    unmap_window(first.as_ptr(), bytes);
    map_at(hint, fd, offset, bytes, mapping)
}

fn map_at(hint: *mut u8, fd: BorrowedFd<'_>, offset: u64, bytes: u64, mapping: &Mapping) -> Option<NonNull<u8>> {
    let mut protection = ProtFlags::READ;
    protection.set(ProtFlags::WRITE, mapping.writable);
    let map = |flags| {
        // SAFETY: without MAP_FIXED the kernel chooses a free range; `hint` is only a wish.
        let base = unsafe { mmap(hint.cast(), bytes as usize, protection, flags, fd, offset) };
        base.ok().and_then(|base| NonNull::new(base.cast()))
    };
    if !mapping.synchronous {
        return map(MapFlags::SHARED);
    }
    map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC).or_else(|| {
        mapping.refused.store(true, Ordering::Release);
        map(MapFlags::SHARED)
    })
}

fn unmap_window(base: *mut u8, bytes: u64) {
    if base > CANNOT {
        // SAFETY: `base` is a window of `bytes` mapped by `map_at` that nobody uses: it was never
        // published or its table is being dropped. Failure would leave the range mapped, which
        // harms nobody.
        _ = unsafe { munmap(base.cast(), bytes as usize) };
    }
}
