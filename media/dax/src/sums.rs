//! The sums of a backing file's blocks: a file beside it, of one number of 4 bytes for each block
//! of 4096 bytes, 0 where the block has none. docs/format/sums.md has the bytes.
//!
//! Invariants:
//! - A page of the file is touched through its mapping only once it has space: on a full tmpfs a
//!   load from a hole would be a SIGBUS. What is known to have space is forgotten together with
//!   what is known of the backing file.
//! - A page that cannot get space holds zeros, so its blocks have no sums. If it holds anything
//!   else the call fails, and nothing may be stored to these blocks.

use crate::{Access, Backing};
use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use medium::{Medium, SUM_BLOCK_BYTES, SUM_LINE_BLOCKS};
use persist::PersistenceDomain;
use sys::{OsError, OwnedFd};
use units::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;
/// Sums in a page.
const PAGE_SUMS: u64 = PAGE / 4;
/// Pages that a leaf knows of: a leaf covers 16 GiB of the backing file.
const LEAF_PAGES: u64 = 4096;
/// Blocks from 1 TiB on have no sums.
const LEAF_COUNT: usize = 64;

const LEAF_WORDS: usize = LEAF_PAGES as usize / 64;

/// What is known of pages, one bit each.
struct Leaf {
    /// The page has space, as far as nobody has punched it since.
    has_space: [AtomicU64; LEAF_WORDS],
    /// The page has had space, and its sums may be touched. This is not forgotten with the other:
    /// another thread may forget while this one has made the page ready, and nobody punches it then.
    is_usable: [AtomicU64; LEAF_WORDS],
}

impl Leaf {
    const fn new() -> Self {
        Self { has_space: [const { AtomicU64::new(0) }; LEAF_WORDS], is_usable: [const { AtomicU64::new(0) }; LEAF_WORDS] }
    }
}

/// Tells whether the bit of a page is set.
#[inline]
fn has(bits: &[AtomicU64; LEAF_WORDS], page: u64) -> bool {
    let within = page % LEAF_PAGES;
    bits[within as usize / 64].load(Ordering::Acquire) >> (within % 64) & 1 == 1
}

fn set(bits: &[AtomicU64; LEAF_WORDS], page: u64) {
    let within = page % LEAF_PAGES;
    bits[within as usize / 64].fetch_or(1 << (within % 64), Ordering::Release);
}

fn clear(bits: &[AtomicU64; LEAF_WORDS], page: u64) {
    let within = page % LEAF_PAGES;
    bits[within as usize / 64].fetch_and(!(1 << (within % 64)), Ordering::AcqRel);
}

struct Sums {
    file: Backing,
    leaves: [AtomicPtr<Leaf>; LEAF_COUNT],
}

/// The sums of a backing file, once they are opened.
pub(crate) struct SumsCell(AtomicPtr<Sums>);

impl SumsCell {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline]
    fn get(&self) -> Option<&Sums> {
        // SAFETY: set once to a box that lives as long as the cell.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    pub(crate) fn open(&self, fd: OwnedFd, domain: PersistenceDomain, may: fn() -> bool) {
        let file = Backing::small(fd, Access::ReadWrite, domain, may);
        let sums = Box::into_raw(Box::new(Sums { file, leaves: [const { AtomicPtr::new(ptr::null_mut()) }; LEAF_COUNT] }));
        if self.0.compare_exchange(ptr::null_mut(), sums, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above, and nobody else has it.
            drop(unsafe { Box::from_raw(sums) });
        }
    }

    pub(crate) fn ready(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let Some(sums) = self.get() else { return Ok(()) };
        if bytes == 0 {
            return Ok(());
        }
        let (first, last) = (offset / SUM_BLOCK_BYTES / PAGE_SUMS, (offset + (bytes - 1)) / SUM_BLOCK_BYTES / PAGE_SUMS);
        (first..=last).try_for_each(|page| if sums.is_known(page) { Ok(()) } else { sums.get_page(page) })
    }

    #[inline]
    pub(crate) fn sums(&self, block: u64, count: usize) -> Option<&[AtomicU32]> {
        debug_assert!(block % SUM_LINE_BLOCKS + count as u64 <= SUM_LINE_BLOCKS, "sums of one line");
        let sums = self.get()?;
        let page = block / PAGE_SUMS;
        if !sums.leaf(page).is_some_and(|leaf| has(&leaf.is_usable, page)) {
            return None;
        }
        let span = sums.file.span(block * 4)?;
        if span.bytes < count * size_of::<u32>() {
            return None;
        }
        // SAFETY: mapped for so many sums, aligned, for as long as the file lives; a fault is the
        // caller's affair (Medium). Other processes store atomically, too.
        Some(unsafe { core::slice::from_raw_parts(span.start.as_ptr().cast(), count) })
    }

    pub(crate) fn forget(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let Some(sums) = self.get() else { return Ok(()) };
        let (first, end) = (offset / SUM_BLOCK_BYTES, offset.saturating_add(bytes).div_ceil(SUM_BLOCK_BYTES));
        let (start, stop) = (first * 4, (end * 4).min(sums.file.bytes()?));
        if start >= stop {
            return Ok(());
        }
        sums.forget_known(start.div_ceil(PAGE), (stop / PAGE).min(LEAF_COUNT as u64 * LEAF_PAGES));
        sums.file.punch(start, stop - start)?;
        if sums.file.domain() == PersistenceDomain::Volatile { Ok(()) } else { sums.file.sync_by_call() }
    }

    /// Gives back the number of the descriptor, as [`Backing::park`] does.
    pub(crate) fn park(&self) -> bool {
        self.get().is_some_and(|sums| sums.file.park())
    }

    /// Forgets which pages have space.
    pub(crate) fn forget_space(&self) {
        if let Some(sums) = self.get() {
            for leaf in (0..LEAF_COUNT as u64).filter_map(|index| sums.leaf(index * LEAF_PAGES)) {
                leaf.has_space.iter().for_each(|word| word.store(0, Ordering::Release));
            }
        }
    }

    pub(crate) fn persist(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let Some(sums) = self.get() else { return Ok(()) };
        let (first, end) = (offset / SUM_BLOCK_BYTES * 4, (offset + bytes).div_ceil(SUM_BLOCK_BYTES) * 4);
        let end = end.min(sums.file.bytes()?);
        if first < end { sums.file.persist(first, end - first) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn owns(&self, address: usize) -> bool {
        self.get().is_some_and(|sums| sums.file.owns(address))
    }
}

impl Drop for SumsCell {
    fn drop(&mut self) {
        let sums = *self.0.get_mut();
        if !sums.is_null() {
            // SAFETY: made by `open`; nobody uses the cell any more.
            drop(unsafe { Box::from_raw(sums) });
        }
    }
}

impl Sums {
    fn leaf(&self, page: u64) -> Option<&Leaf> {
        // SAFETY: set once to a box that lives as long as these sums.
        unsafe { self.leaves.get((page / LEAF_PAGES) as usize)?.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn is_known(&self, page: u64) -> bool {
        self.leaf(page).is_some_and(|leaf| has(&leaf.has_space, page))
    }

    fn note_known(&self, page: u64) {
        let Some(place) = self.leaves.get((page / LEAF_PAGES) as usize) else { return };
        if place.load(Ordering::Acquire).is_null() {
            let leaf = Box::into_raw(Box::new(Leaf::new()));
            if place.compare_exchange(ptr::null_mut(), leaf, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above, and nobody else has it.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
        if let Some(leaf) = self.leaf(page) {
            set(&leaf.is_usable, page);
            set(&leaf.has_space, page);
        }
    }

    /// Forgets the pages `first..end`.
    fn forget_known(&self, first: u64, end: u64) {
        let mut page = first;
        while page < end {
            let Some(leaf) = self.leaf(page) else {
                page = (page / LEAF_PAGES + 1) * LEAF_PAGES;
                continue;
            };
            clear(&leaf.has_space, page);
            page += 1;
        }
    }

    #[cold]
    fn get_page(&self, page: u64) -> Result<(), OsError> {
        if page / LEAF_PAGES >= LEAF_COUNT as u64 {
            return Ok(());
        }
        let (start, end) = (page * PAGE, (page + 1) * PAGE);
        let got = if end > sys::file_limit::bytes() { Err(OsError::FBIG) } else { self.file.grow(start, end) };
        match got {
            Ok(()) => {
                self.note_known(page);
                Ok(())
            }
            Err(OsError::OPNOTSUPP | OsError::NOSYS) => {
                self.file.allocate_by_touching(start, end)?;
                self.note_known(page);
                Ok(())
            }
            Err(error @ (OsError::NOSPC | OsError::DQUOT | OsError::FBIG)) => {
                let mut bytes = [0u8; PAGE_BYTES];
                if start < self.file.bytes()? {
                    // SAFETY: the buffer is ours and that long.
                    unsafe { self.file.get(start, bytes.as_mut_ptr(), PAGE_BYTES) }?;
                }
                if bytes.iter().any(|&byte| byte != 0) {
                    // Bytes prove that the page has space, which a limit of the process' alone does not
                    // take away.
                    if error == OsError::FBIG {
                        self.note_known(page);
                        return Ok(());
                    }
                    return Err(error);
                }
                if let Some(leaf) = self.leaf(page) {
                    clear(&leaf.is_usable, page);
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        for leaf in &mut self.leaves {
            let leaf = *leaf.get_mut();
            if !leaf.is_null() {
                // SAFETY: made by `note_known`; nobody uses it any more.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}
