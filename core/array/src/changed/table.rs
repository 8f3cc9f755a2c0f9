//! The table of changed files of one member, mapped.
//!
//! Invariants:
//! - a mark is stored in one piece, and a record counts only if it fits its check: whoever dies,
//!   and wherever a power cut comes, no half of one says that a file has not changed or that a
//!   member left in order;
//! - before the table names an update of the superblocks anew, what it told of members that are out
//!   is gone for good.

use crate::limited::write_fully;
use crate::regular::open_regular;
use crate::superblock::{make_table, open_new};
use alloc::vec;
use alloc::vec::Vec;
use core::ptr::NonNull;
use dax::PersistenceDomain;
use format::{
    CHANGED, CHANGED_FILE, CHANGED_FILE_BYTES, CHANGED_MARK_BYTES, CHANGED_MARK_COUNT, CHANGED_MARKS_OFFSET,
    CHANGED_RECORD_BYTES, CHANGED_RECORDS_END, CHANGED_UPDATE_COUNT, TableHeader, TableKind, Uuid, changed_record_offset,
    changed_update_offset, changed_void, changed_void_offset, decode_changed_update, encode_changed_update, is_changed_void,
    is_sound_changed_record, is_sound_mark, unchanged_mark,
};
use persist::Flush;
use persist::fault::guard;
use sys::rustix::fs::{self, AtFlags, FallocateFlags, OFlags, fstat};
use sys::rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use sys::{AsFd as _, OsError, OwnedFd, Result};
use units::MEMBER_COUNT_MAX;

/// Between the records and the marks there are zeros.
pub(super) const RESERVED_BYTES: usize = (CHANGED_MARKS_OFFSET - CHANGED_RECORDS_END) as usize;
/// The records of all members, of whom nothing is known.
pub(super) const NO_LEAVES: [u8; CHANGED_RECORD_BYTES * MEMBER_COUNT_MAX] = [0; CHANGED_RECORD_BYTES * MEMBER_COUNT_MAX];
pub(super) const NO_RECORD: [u8; CHANGED_RECORD_BYTES] = [0; CHANGED_RECORD_BYTES];

/// A table in memory. It takes no descriptor, and a process that gives up its rights can go on
/// marking files.
pub(super) struct Table {
    start: NonNull<u8>,
    pub(super) domain: PersistenceDomain,
}

// SAFETY: the mapping stays until drop, and is loaded and stored to inside guards alone.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    pub(super) fn open(meta: &OwnedFd, domain: PersistenceDomain) -> Result<Self> {
        let file = open_regular(meta.as_fd(), CHANGED_FILE, OFlags::RDWR)?;
        // A mark must not need space.
        if (fstat(&file)?.st_size as u64) < CHANGED_FILE_BYTES as u64 {
            return Err(OsError::NOENT);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // The program may map again what it has unmapped itself, by its address: the table must not
        // lie there.
        let wish = sys::place::wish(CHANGED_FILE_BYTES);
        // SAFETY: a new mapping, where nothing lies: the address is a wish.
        let map = |flags| unsafe { mmap(wish as *mut _, CHANGED_FILE_BYTES, access, flags, &file, 0) };
        // As every table on persistent memory. Where the kernel refuses that for this file,
        // `persist` makes it durable all the same.
        let start = match domain {
            PersistenceDomain::Adr | PersistenceDomain::Eadr => map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC),
            PersistenceDomain::PageCache | PersistenceDomain::Volatile => Err(OsError::OPNOTSUPP),
        };
        let start = start.or_else(|_| map(MapFlags::SHARED))?;
        NonNull::new(start.cast()).map(|start| Self { start, domain }).ok_or(OsError::NOMEM)
    }

    /// Stores bytes at an offset, both of whole words, where the table has others; they are durable
    /// after [`Self::persist`].
    pub(super) fn put(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (words, at) = (bytes.as_chunks::<8>().0, offset as usize);
        if at + bytes.len() > CHANGED_FILE_BYTES || !at.is_multiple_of(8) || !bytes.len().is_multiple_of(8) {
            return Err(OsError::INVAL);
        }
        let (from, count, to) = (words.as_ptr(), words.len(), self.start.as_ptr());
        let store = || {
            for index in 0..count {
                // SAFETY: a word of the mapping, which others store to at the same time, and one of
                // the bytes.
                unsafe {
                    let (place, word) = (to.add(at + 8 * index).cast::<u64>(), u64::from_ne_bytes(*from.add(index)));
                    if place.read_volatile() != word {
                        place.write_volatile(word);
                        self.write_back(place.cast(), 8);
                    }
                }
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(store) }.map_err(|_| OsError::IO)
    }

    /// Has lines leave the caches where they must.
    ///
    /// # Safety
    /// Inside a guard; the bytes are of the mapping.
    unsafe fn write_back(&self, start: *const u8, bytes: usize) {
        if self.domain.flush() == Flush::Needed {
            // SAFETY: the caller's promise.
            unsafe { persist::write_back(start, bytes) };
        }
    }

    pub(super) fn get<const BYTES: usize>(&self, offset: u64) -> Result<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.get_to(&mut bytes, offset)?;
        Ok(bytes)
    }

    pub(super) fn get_to(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let (to, count, at) = (bytes.as_mut_ptr(), bytes.len(), offset as usize);
        if at + count > CHANGED_FILE_BYTES {
            return Err(OsError::INVAL);
        }
        let from = self.start.as_ptr();
        // SAFETY: as in `put`.
        unsafe { guard(|| (0..count).for_each(|index| to.add(index).write(from.add(at + index).read_volatile()))) }
            .map_err(|_| OsError::IO)
    }

    /// Stores the mark of a file that has changed, in one piece: whoever dies leaves no half of it.
    pub(super) fn mark(&self, mark: usize) -> Result<()> {
        let at = CHANGED_MARKS_OFFSET as usize + CHANGED_MARK_BYTES * mark;
        if mark >= CHANGED_MARK_COUNT {
            return Err(OsError::INVAL);
        }
        let (to, bytes) = (self.start.as_ptr(), u16::from_ne_bytes(CHANGED));
        let store = || {
            // SAFETY: a mark within the mapping, at an even offset.
            unsafe {
                to.add(at).cast::<u16>().write_volatile(bytes);
                self.write_back(to.add(at), CHANGED_MARK_BYTES);
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(store) }.map_err(|_| OsError::IO)
    }

    /// Gives what is damaged what costs most: a file counts as changed, nothing is known of a
    /// leave, and a mark may be missing.
    pub(super) fn mend(&self, array: Uuid, member: Uuid) -> Result<()> {
        for slot in 0..=MEMBER_COUNT_MAX + CHANGED_UPDATE_COUNT {
            let record = self.get(changed_record_offset(slot))?;
            if !is_sound_changed_record(slot, &record) {
                let right = if slot == MEMBER_COUNT_MAX { changed_void() } else { NO_RECORD };
                self.put(&right, changed_record_offset(slot))?;
            }
        }
        self.put(&[0; RESERVED_BYTES], CHANGED_RECORDS_END)?;
        let mut marks = vec![0u8; CHANGED_MARK_COUNT * CHANGED_MARK_BYTES];
        self.get_to(&mut marks, CHANGED_MARKS_OFFSET)?;
        for (mark, &bytes) in marks.as_chunks().0.iter().enumerate() {
            if !is_sound_mark(array, member, mark, bytes) {
                self.mark(mark)?;
            }
        }
        self.persist()
    }

    /// Makes the table durable.
    pub(super) fn persist(&self) -> Result<()> {
        persist::fence();
        // SAFETY: the mapping.
        unsafe { msync(self.start.as_ptr().cast(), CHANGED_FILE_BYTES, MsyncFlags::SYNC) }
    }

    /// Says in the table that a mark may be missing.
    pub(super) fn give_up(&self) -> Result<()> {
        self.put(&changed_void(), changed_void_offset()).and_then(|()| self.persist())
    }

    /// The updates of the superblocks that the table names.
    fn updates(&self) -> Result<[Option<u64>; CHANGED_UPDATE_COUNT]> {
        let mut updates = [None; CHANGED_UPDATE_COUNT];
        for (index, update) in updates.iter_mut().enumerate() {
            *update = decode_changed_update(index, &self.get(changed_update_offset(index))?);
        }
        Ok(updates)
    }

    /// Tells whether no update of the superblocks was made past the table, the last of which has
    /// the name `update_id`. An update of an old program has none: 0.
    pub(super) fn has_followed(&self, update_id: u64) -> bool {
        self.updates().is_ok_and(|updates| updates.contains(&Some(update_id)))
    }

    /// Has the table name the last update of the superblocks. If another program has made that,
    /// what the table tells of members that are out is not so any more, and is taken away before.
    pub(super) fn catch_up(&self, update_id: u64) -> Result<()> {
        if self.has_followed(update_id) {
            return Ok(());
        }
        self.put(&NO_LEAVES, changed_record_offset(0))?;
        self.persist()?;
        self.put_update(0, update_id)?;
        self.put_update(1, 0)?;
        self.persist()
    }

    /// Has the table name an update of the superblocks that is about to be made, beside the one
    /// before it: the superblocks may be left with either. A table that tells of no leave need not
    /// follow.
    pub(super) fn follow(&self, update_id: u64, next_id: u64) -> Result<()> {
        if self.get::<{ NO_LEAVES.len() }>(changed_record_offset(0))? == NO_LEAVES {
            return Ok(());
        }
        self.catch_up(update_id)?;
        let index = usize::from(self.updates()?[0] == Some(update_id));
        self.put_update(index, next_id)?;
        self.persist()
    }

    fn put_update(&self, index: usize, update_id: u64) -> Result<()> {
        let record = if update_id == 0 { NO_RECORD } else { encode_changed_update(index, update_id) };
        self.put(&record, changed_update_offset(index))
    }

    pub(super) fn is_void(&self) -> bool {
        !self.get(changed_void_offset()).is_ok_and(|record| !is_changed_void(&record))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), CHANGED_FILE_BYTES) };
    }
}

/// Makes a member's table, with no mark in it.
pub(crate) fn make(meta: &OwnedFd, array: Uuid, member: Uuid, use_count: u64, access: format::Access) -> Result<()> {
    let header = TableHeader::new(TableKind::Changed, array, member, use_count);
    if sys::file_limit::bytes() < CHANGED_FILE_BYTES as u64 {
        // The kernel would kill the program that is limited so.
        return Err(OsError::FBIG);
    }
    // What one of an earlier beginning says of other members is not so any more.
    match fs::unlinkat(meta, CHANGED_FILE, AtFlags::empty()) {
        Ok(()) | Err(OsError::NOENT) => {}
        Err(error) => return Err(error),
    }
    let file = open_new(meta, CHANGED_FILE, access)?;
    let mut content = vec![0; CHANGED_MARKS_OFFSET as usize];
    content.append(&mut no_marks(array, member));
    let made = match fs::fallocate(&file, FallocateFlags::empty(), 0, CHANGED_FILE_BYTES as u64) {
        Ok(()) | Err(OsError::OPNOTSUPP) => write_fully(&file, &content, 0),
        Err(error) => Err(error),
    };
    if made.is_err() {
        let _ = fs::unlinkat(meta, CHANGED_FILE, AtFlags::empty());
    }
    made.and_then(|()| make_table(meta, &header, CHANGED_FILE, access))
}

/// The marks of a table in which no file has one.
pub(super) fn no_marks(array: Uuid, member: Uuid) -> Vec<u8> {
    (0..CHANGED_MARK_COUNT).flat_map(|mark| unchanged_mark(array, member, mark)).collect()
}
