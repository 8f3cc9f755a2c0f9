//! The shared copy of a file: mappings show it where they cannot show the members.
//!
//! Chunks smaller than a page cannot be mapped one by one. Very many chunks would exceed what the
//! kernel allows a process. A column whose member is out is nowhere to be mapped. In these cases
//! the file is copied, once for all processes, into a file in shared memory beside the runtime
//! segment.
//!
//! Invariants:
//! - The copy exists from the first such mapping of any process to the last one. The copy exists
//!   longer if a process asks for it (SQLite maps its database anew for each transaction), or if a
//!   dead process left something that must be made good first. `SharedFile::copy` is the number of
//!   the copy: odd while a copy exists, even while there is none, and another for each copy.
//! - The copy is made and removed under the size lock and all stripe locks. While the copy exists,
//!   each write() is stored in the copy and then from the copy in the array, under the stripe
//!   locks; truncations and holes are made in both; reads come from the copy.
//! - [`array::SharedFile::is_mapped`] says whether the copy exists, not whether there are mappings:
//!   between the end of the last mapping and the copy's removal another mapping may begin, and find
//!   the copy as it is.
//! - The users who may open the file may open the copy ([`crate::copy_access`]), also after the
//!   file's rights were changed.
//! - The copy differs from the array only in pages that were stored to through a mapping and are
//!   not followed yet. To *follow* a page is to write it from the copy to the array, as a writer
//!   would.

use crate::copy_view::CopyInUse;
use crate::files::Files;
use crate::inode::{Inode, key};
use crate::nameless::Name;
use array::{IoFault, Rot, SharedFile};
use core::sync::atomic::Ordering;
use dax::{Access, Backing, PersistenceDomain};
use format::Attribute;
use medium::Medium;
use persist::fault::guard;
use sys::rustix::fs::{OFlags, SeekFrom, seek};
use sys::rustix::io::pread;
use sys::{AsFd, BorrowedFd, OsError};
use units::PAGE_BYTES;

/// How many bytes are copied at a time when a copy is made.
const FILL_BYTES: usize = 64 << 10;

impl Inode {
    /// Whether mappings of the file show a shared copy.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.shared().copy.load(Ordering::Acquire) & 1 == 1
    }

    /// The shared copy, if there is one.
    pub(crate) fn copy(&self) -> Result<Option<CopyInUse<'_>>, OsError> {
        loop {
            let number = self.shared().copy.load(Ordering::Acquire);
            if number & 1 == 0 {
                return Ok(None);
            }
            if let Some(copy) = self.copy_view.of(number) {
                return Ok(Some(copy));
            }
            self.open_copy(number)?;
        }
    }

    #[cold]
    fn open_copy(&self, number: u32) -> Result<(), OsError> {
        let access = if self.writable { OFlags::RDWR } else { OFlags::RDONLY };
        let file = self.files.open_shared_copy(self.shared(), access)?;
        let access = if self.writable { Access::ReadWrite } else { Access::ReadOnly };
        let copy = Backing::new(sys::high_fd::raise(file)?, access, PersistenceDomain::Volatile);
        if self.shared().copy.load(Ordering::Acquire) == number {
            // Otherwise what was opened may be a later copy.
            self.copy_view.replace(number, copy);
        }
        Ok(())
    }

    /// Makes the copy, if there is none. The caller holds a [`crate::Mapped`] of the file, so that
    /// nobody removes the copy.
    ///
    /// # Errors
    /// `AGAIN` while a process stores to the members directly; `NOSPC` if shared memory is full.
    pub fn share_copy(&self) -> Result<(), OsError> {
        self.with_size_locked(|size| {
            if self.is_copied() {
                return Ok(());
            }
            if self.files.array().runtime().mapped().of(self.key()).any(|(record, _)| record.is_direct()) {
                return Err(OsError::AGAIN);
            }
            let held = self.lock_all_stripes()?;
            let result = self.make_copy(size);
            drop(held);
            if result.is_err() {
                self.files.remove_shared_copy(self.shared());
            }
            result
        })
    }

    /// Makes the copy's file, fills it and publishes the copy's number. The size lock and all
    /// stripe locks are held.
    fn make_copy(&self, size: u64) -> Result<(), OsError> {
        let file = self.files.make_shared_copy(self.shared())?;
        let (_, whole) = self.in_use().next().ok_or(OsError::IO)?;
        crate::copy_access::give(file.as_fd(), whole.fd()?.as_fd())?;
        let copy = Backing::new(sys::high_fd::raise(file)?, Access::ReadWrite, PersistenceDomain::Volatile);
        copy.set_len(size)?;
        let mut buffer = alloc::vec![0u8; FILL_BYTES];
        let mut at = 0;
        while at < size {
            if self.has_holes() {
                at = self.next_data(at);
                if at >= size {
                    break;
                }
            }
            let bytes = (size - at).min(FILL_BYTES as u64) as usize;
            // What a process stored through a mapping of members may not have been followed when it
            // left them.
            let striper = self.striper(self.out_for_stores());
            let mut rot = Rot::default();
            // SAFETY: the buffer is that long.
            let result = unsafe { self.read_members(&striper, at, buffer.as_mut_ptr(), bytes, &mut rot) };
            self.tell_rot(&rot);
            match result {
                Ok(()) => {}
                Err(fault) => {
                    self.after_fault(fault)?;
                    continue;
                }
            }
            // Where the file holds only zeros, the copy keeps a hole.
            if buffer[..bytes].iter().any(|&byte| byte != 0) {
                // SAFETY: the buffer is that long.
                unsafe { copy.put(at, buffer.as_ptr(), bytes) }?;
            }
            at += bytes as u64;
        }
        // This process keeps the descriptor by which it made the copy, since the copy's rights may
        // not let it open the copy again.
        let number = self.shared().copy.load(Ordering::Acquire).wrapping_add(1);
        self.copy_view.replace(number, copy);
        self.shared().copy.store(number, Ordering::Release);
        self.shared().copy_wanted.store(0, Ordering::Release);
        Ok(())
    }

    /// Gives the copy of this file the file's rights, after the rights of the file were changed.
    pub fn change_copy_access(&self) {
        if let Some((_, whole)) = self.in_use().next()
            && let Ok(fd) = whole.fd()
        {
            self.files.change_copy_access(self.attribute(), fd.as_fd());
        }
    }

    /// The first offset from `at` on that may hold data: at least one member in use has no hole in
    /// its stripe. Holes are skipped, since a load from a hole of a tmpfs through a mapping
    /// allocates a page.
    fn next_data(&self, at: u64) -> u64 {
        let place = self.geometry.locate(at);
        let chunked = self.geometry.level().has_chunks();
        let from = self.geometry.member_offset(place.stripe) + if chunked { 0 } else { place.within };
        // A member that cannot answer counts as having data. The seek moves the descriptor's
        // offset, which nobody uses.
        let data = |(_, member): (_, &Backing)| match member.fd().and_then(|fd| seek(fd, SeekFrom::Data(from))) {
            Ok(found) => Some(found),
            Err(OsError::NXIO) => None,
            Err(_) => Some(from),
        };
        match self.in_use().filter_map(data).min() {
            None => u64::MAX,
            Some(found) if found <= from => at,
            Some(found) if chunked => at.max((found >> self.geometry.chunk().shift()) * self.geometry.stripe_bytes()),
            Some(found) => found,
        }
    }

    /// Removes the copy if nobody needs it any more.
    pub(crate) fn drop_copy(&self) -> Result<(), OsError> {
        if !self.is_copied() {
            return Ok(());
        }
        self.with_size_locked(|_| {
            if self.is_copied() && self.shared().mapped.load(Ordering::Acquire) == 0 {
                let held = self.lock_all_stripes()?;
                self.shared().copy.fetch_add(1, Ordering::AcqRel);
                self.copy_view.clear();
                drop(held);
                self.files.remove_shared_copy(self.shared());
            }
            Ok(())
        })
    }

    /// Copies a range of the copy into the program's buffer.
    ///
    /// # Safety
    /// As [`array::Striper::read`].
    pub(crate) unsafe fn read_copy(&self, copy: &Backing, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), IoFault> {
        let kernels = self.files.kernels();
        // SAFETY: the span is mapped for `step`; the buffer is the caller's promise.
        by_spans(copy, offset, bytes, |span, done, step| unsafe { kernels.copy_from_media(dst.wrapping_add(done), span, step) })
    }

    /// Copies the program's bytes into the copy. The stripes are locked, and the copy is long
    /// enough.
    ///
    /// # Safety
    /// As [`array::Striper::write`].
    pub(crate) unsafe fn fill_copy(&self, copy: &Backing, offset: u64, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        let kernels = self.files.kernels();
        // SAFETY: the span is mapped for `step`; the buffer is the caller's promise.
        by_spans(copy, offset, bytes, |span, done, step| unsafe { kernels.copy_from_media(span, src.wrapping_add(done), step) })
    }

    /// Writes a range of the copy to the array. The stripes are locked, and the members have the
    /// space.
    pub(crate) fn store_copy(&self, copy: &Backing, mut offset: u64, mut bytes: usize) -> Result<(), OsError> {
        while bytes > 0 {
            let span = copy.span(offset).ok_or(OsError::IO)?;
            let step = bytes.min(span.bytes);
            // SAFETY: the span is mapped for `step`.
            unsafe { self.store_directly(offset, span.start.as_ptr(), step) }?;
            (offset, bytes) = (offset + step as u64, bytes - step);
        }
        Ok(())
    }

    /// Writes what the copy has of a range to the array, page by page, where the array has other
    /// bytes. The stripes are locked.
    #[cold]
    pub(crate) fn follow_block(&self, copy: &Backing, offset: u64, bytes: usize) -> Result<(), OsError> {
        let (mut shown, mut stored) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let end = offset + bytes as u64;
        let mut at = offset;
        while at < end {
            let step = (end - at).min(PAGE_BYTES as u64 - at % PAGE_BYTES as u64) as usize;
            let count = pread(copy.fd()?, &mut shown[..step], at)?;
            // SAFETY: the buffer is ours and that long.
            while let Err(fault) = unsafe { self.striper(self.out()).read(at, stored.as_mut_ptr(), count) } {
                self.after_fault(fault)?;
            }
            if shown[..count] != stored[..count] {
                if self.has_holes() {
                    self.fill_holes(at, at + count as u64)?;
                }
                self.store_copy(copy, at, count)?;
            }
            at += step as u64;
        }
        Ok(())
    }

    /// Gives the copy, if there is one, the length of the file.
    pub(crate) fn set_copy_bytes(&self, bytes: u64) -> Result<(), OsError> {
        self.copy()?.map_or(Ok(()), |copy| copy.set_len(bytes))
    }

    /// Zeroes a range of the copy, if there is one.
    pub(crate) fn zero_copy(&self, mut offset: u64, mut bytes: u64) -> Result<(), OsError> {
        let Some(copy) = self.copy()? else { return Ok(()) };
        let kernels = self.files.kernels();
        while bytes > 0 {
            let span = copy.span(offset).ok_or(OsError::IO)?;
            let step = bytes.min(span.bytes as u64);
            // SAFETY: the span is mapped for `step`. A fault means that the copy ends here, and
            // behind its end nothing is to be zeroed.
            if unsafe { guard(|| kernels.zero_media(span.start.as_ptr(), step as usize)) }.is_err() {
                return Ok(());
            }
            (offset, bytes) = (offset + step, bytes - step);
        }
        Ok(())
    }
}

impl Files {
    /// Removes the copy of a file that nobody maps any more. If this process has closed the file,
    /// the close has removed the copy.
    pub fn drop_unused_copy(&self, attribute: Attribute) {
        if let Some(inode) = self.open_here(key(attribute.inode, attribute.generation)) {
            // If this fails, the next process that drops the copy or maps the file removes it.
            let _ = inode.drop_copy();
        }
    }

    /// Gives the copy of a file the file's rights, after these were changed, if the file is open
    /// and has a copy. `anchor` is a backing file of the file.
    pub fn change_copy_access(&self, attribute: Attribute, anchor: BorrowedFd<'_>) {
        let Some(shared) = self.shared_if_open(attribute).filter(|shared| shared.copy.load(Ordering::Acquire) & 1 == 1) else {
            return;
        };
        // A process that may change the rights of the file may change those of a copy with the same
        // owner. A copy with another owner (the user who made it) keeps its rights.
        if let Ok(copy) = self.open_shared_copy(shared, OFlags::RDONLY) {
            let _ = crate::copy_access::give(copy.as_fd(), anchor);
        }
    }

    /// A file without a name has lost its last user: what processes left that ended before all was
    /// followed goes with it. The open-files lock is held.
    pub(crate) fn forget_unfollowed(&self, inode: &Inode) {
        if inode.shared().mapped.swap(0, Ordering::AcqRel) != 0 {
            self.forget_mappings(inode.key(), inode.shared());
        }
    }

    /// A file that nobody has open is freed: what processes that died left of it goes with it. Else
    /// it would wait for ever for somebody to open the file. The open-files lock is held.
    pub(crate) fn forget_left(&self, key: u64, name: Name) {
        if let Some(shared) = self.array().runtime().find_file(key) {
            shared.unlinked.store(name as u32, Ordering::Release);
            if shared.mapped.swap(0, Ordering::AcqRel) != 0 {
                self.forget_mappings(key, shared);
            }
        }
    }

    /// Frees what processes that died left of files that do not exist any more.
    pub(crate) fn forget_gone(&self) {
        let runtime = self.array().runtime();
        runtime.with_open_files(|_| {
            for file in runtime.left_unfinished(true).into_iter().filter(|&file| self.is_gone(file)) {
                let is_open = runtime.find_file(file).is_some_and(|shared| shared.users.load(Ordering::Acquire) != 0);
                if !is_open {
                    self.forget_left(file, Name::Lost);
                }
            }
        });
    }

    /// Frees the mapping records and lanes that dead processes left of a file that does not exist
    /// any more, and removes its copy. The open-files lock is held.
    pub(crate) fn forget_mappings(&self, key: u64, shared: &SharedFile) {
        let runtime = self.array().runtime();
        for (record, _) in runtime.mapped().of(key) {
            let index = runtime.mapped().index_of(record);
            intent::reserved(runtime.lanes(), index).for_each(|lane| intent::release(runtime.lanes(), lane, index));
            record.free();
        }
        self.remove_shared_copy(shared);
    }
}

/// Calls `act` for each part of a range of the copy that is mapped contiguously. The arguments of
/// `act` are the part's address, how many bytes of the range lie before the part, and how many
/// bytes the part has. `act` owns nothing and opens no guard.
#[inline]
fn by_spans(copy: &Backing, offset: u64, bytes: usize, act: impl Fn(*mut u8, usize, usize)) -> Result<(), IoFault> {
    let mut done = 0;
    while done < bytes {
        let span = copy.span(offset + done as u64).ok_or(IoFault::Os(OsError::IO))?;
        let step = (bytes - done).min(span.bytes);
        // SAFETY: the closure owns nothing, and `act` neither.
        unsafe { guard(|| act(span.start.as_ptr(), done, step)) }.map_err(|fault| blame(copy, fault.address))?;
        done += step;
    }
    Ok(())
}

/// The error for a fault at `address`: `IO` if the address is the copy's, a bad address of the
/// program otherwise.
fn blame(copy: &Backing, address: usize) -> IoFault {
    if copy.owns(address) { IoFault::Os(OsError::IO) } else { IoFault::BadAddress }
}
