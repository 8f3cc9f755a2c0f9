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

/// Why a read by system calls has not got its bytes.
#[derive(Clone, Copy)]
pub(crate) enum Missed {
    /// The backing file on this member ended before them, or the call failed. Whoever cuts the file
    /// meanwhile makes it so, too: it counts only if nothing was changed since the read began.
    OnMember(Slot, Option<OsError>),
    Otherwise(IoFault),
}

impl From<IoFault> for Missed {
    fn from(fault: IoFault) -> Self {
        Self::Otherwise(fault)
    }
}

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
    /// the others as ever. No member goes out: [`Self::after_missed`] comes afterwards.
    ///
    /// # Safety
    /// As for [`Inode::read_at`].
    #[cold]
    pub(crate) unsafe fn read_by_calls(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), Missed> {
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
                Err(OsError::FAULT) => return Err(IoFault::BadAddress.into()),
                Ok(_) => return Err(Missed::OnMember(slot, None)),
                Err(error) => return Err(Missed::OnMember(slot, Some(error))),
            }
        }
        Ok(())
    }

    /// Does what follows from a read by calls that has not got its bytes, while nobody changed the
    /// file: Ok if it can be done again on the members that are left.
    #[cold]
    pub(crate) fn after_missed(&self, missed: Missed) -> Result<(), OsError> {
        match missed {
            // The file's owner has made the backing file shorter.
            Missed::OnMember(slot, None) if self.leave_out_if_cut(slot)? => Ok(()),
            Missed::OnMember(slot, None) => self.files.array().fail_member(slot),
            Missed::OnMember(slot, Some(error)) => self.files.array().after_call(slot, Err(error)),
            Missed::Otherwise(fault) => self.after_fault(fault),
        }
    }
}
