//! One array, one runtime segment.
//!
//! The fault it exists for: two containers that have the members in common, but not /dev/shm. Each
//! would find a segment of its own, see none of the other's locks, give out the same inode numbers,
//! and resync what the other is just writing.
//!
//! Every attached process holds a read lock (an OFD lock, fcntl(2)) on one byte of each member's
//! `.cxlraid` directory: the byte that the segment's device and inode numbers hash to. A lock on
//! any other byte belongs to a process that uses the array by way of another segment, and the start
//! is refused. The locks pass to children, and end with the last descriptor. They tell nothing
//! about other machines: a file system that two machines have mounted at once needs a lock of its
//! own (as with md or ZFS).

use crate::error::AttachError;
use crate::member::Member;
use sys::rustix::thread::nanosleep;
use sys::rustix::time::Timespec;
use sys::{AsFd, OsError, ofd_lock};

/// Two that start at once may see each other and both step back; after so many tries one has won or
/// the other was there before.
const TRY_COUNT: u32 = 5;
const PAUSE_NS: i64 = 2_000_000;

/// The byte that stands for a segment: never the first or the last, so that there is something on
/// both sides.
pub(crate) const fn byte_of(segment_device: u64, segment_inode: u64) -> i64 {
    let mixed = (segment_device ^ segment_inode.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 2) as i64 | 1
}

/// Claims the members for the segment that `byte` stands for.
pub(crate) fn claim(members: &[Member], byte: i64) -> Result<(), AttachError> {
    let mut holder = None;
    for attempt in 0..TRY_COUNT {
        if attempt > 0 {
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: PAUSE_NS + i64::from(jitter_ns(byte, attempt)) });
        }
        holder = try_claim(members, byte)?;
        if holder.is_none() {
            return Ok(());
        }
        release(members);
    }
    Err(AttachError::InUseElsewhere { path: holder.map_or_else(Default::default, |member| member.path.clone()) })
}

/// The first member that another segment's processes hold.
fn try_claim(members: &[Member], byte: i64) -> Result<Option<&Member>, AttachError> {
    for member in members {
        let Some(meta) = member.meta() else { continue };
        let fd = meta.as_fd();
        match ofd_lock::hold(fd, byte, 1) {
            Ok(()) => {}
            // A file system without locks has no other users here either.
            Err(OsError::OPNOTSUPP | OsError::INVAL | OsError::NOLCK | OsError::NOSYS) => continue,
            Err(error) => return Err(AttachError::os(&member.path, "lock", error)),
        }
        let others = |start, bytes| ofd_lock::is_held_by_others(fd, start, bytes) == Ok(true);
        if others(0, byte) || others(byte + 1, 0) {
            return Ok(Some(member));
        }
    }
    Ok(None)
}

/// Whether other processes hold a member by way of the same segment.
pub(crate) fn is_shared(members: &[Member], byte: i64) -> bool {
    members.iter().filter_map(Member::meta).any(|meta| ofd_lock::is_held_by_others(meta.as_fd(), byte, 1) == Ok(true))
}

/// Whether any process uses the members. Nothing is changed; a process that has claimed them itself
/// does not count.
pub(crate) fn is_used(members: &[Member]) -> bool {
    members.iter().filter_map(Member::meta).any(|meta| ofd_lock::is_held_by_others(meta.as_fd(), 0, 0) == Ok(true))
}

/// Lets go of the members, as the end of the process would.
pub(crate) fn release(members: &[Member]) {
    for meta in members.iter().filter_map(Member::meta) {
        let _ = ofd_lock::release(meta.as_fd(), 0, 0);
    }
}

/// Something that differs between two that meet, so that they do not meet again.
fn jitter_ns(byte: i64, attempt: u32) -> u32 {
    (byte as u32 >> (attempt % 8)) % (PAUSE_NS as u32)
}
