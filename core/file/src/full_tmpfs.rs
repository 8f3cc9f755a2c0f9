//! Holes on a tmpfs without free space.
//!
//! tmpfs gives a page to a hole as soon as a mapping only loads from it, and raises SIGBUS where it
//! has none left. Of a file that is known to have holes they are not loaded from (`dax`'s `holes`);
//! this is about the others. That member has not failed: what a load cannot get, read(2) does,
//! which takes no page for a hole; and what would have to be stored is refused with ENOSPC.

use crate::Inode;
use array::IoFault;
use dax::PersistenceDomain;
use sys::rustix::fs::fstatfs;
use sys::{AsRawFd, OsError};
use units::Slot;

const PREAD64: usize = 17;
/// With less than this a tmpfs may have no page for a load: it takes huge pages at a time.
const FREE_BYTES_MIN: u64 = 2 << 20;

impl Inode {
    /// Whether a load from a member, or a store to it, may have failed only because its tmpfs has
    /// no space.
    #[cold]
    pub(crate) fn is_full(&self, slot: Slot) -> bool {
        let Some(backing) = self.backing.get(slot).and_then(Option::as_ref) else { return false };
        backing.domain() == PersistenceDomain::Volatile
            && backing.fd().and_then(fstatfs).is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_bsize as u64) < FREE_BYTES_MIN)
    }

    /// Reads from members in use by system calls. What is on a member that is out is computed from
    /// the others as ever.
    ///
    /// # Safety
    /// As for [`Inode::read_at`].
    #[cold]
    pub(crate) unsafe fn read_by_calls(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), IoFault> {
        let (mut at, end) = (offset, offset + bytes as u64);
        while at < end {
            let to = dst.wrapping_add((at - offset) as usize);
            let run = self.run_at(at, end);
            let Some((slot, from, length)) = run.filter(|&(slot, ..)| !self.out().contains(slot)) else {
                let chunk = self.geometry.chunk().bytes();
                let length = (chunk - at % chunk).min(end - at);
                // SAFETY: as the caller promises.
                unsafe { self.reader().read(at, to, length as usize) }?;
                at += length;
                continue;
            };
            let backing = self.backing[slot].as_ref().ok_or(IoFault::Member(slot))?;
            let fd = backing.fd().map_err(IoFault::Os)?;
            let args = [fd.as_raw_fd() as usize, to as usize, length as usize, from as usize, 0, 0];
            // SAFETY: the kernel checks the program's memory, which is the program's to be written.
            match sys::raw::check(unsafe { sys::raw::syscall(PREAD64, args) }) {
                Ok(count @ 1..) => at += count as u64,
                Err(OsError::INTR) => {}
                Err(OsError::FAULT) => return Err(IoFault::BadAddress),
                // The file's owner has made the backing file shorter.
                Ok(_) if self.leave_out_if_cut(slot).map_err(IoFault::Os)? => {}
                // The backing file is too short, or its file system has failed: the rest is read
                // without this member.
                Ok(_) => self.files.array().fail_member(slot).map_err(IoFault::Os)?,
                Err(error) => self.files.array().after_call(slot, Err(error)).map_err(IoFault::Os)?,
            }
        }
        Ok(())
    }
}
