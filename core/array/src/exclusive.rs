//! One array, one runtime segment.
//!
//! The fault it exists for: two containers that have the members in common, but not /dev/shm. Each would find a segment of its own, see none
//! of the other's locks, give out the same inode numbers, and resync what the other is just writing.
//!
//! Every attached process holds a read lock (an OFD lock, fcntl(2)) on one byte of each member's `.cxlraid` directory: the byte
//! that the segment's device and inode numbers hash to. A lock on any other byte belongs to a process that uses the array by way of another
//! segment, and the start is refused. The locks pass to children, and end with the last descriptor. They tell nothing about other machines: a
//! file system that two machines have mounted at once needs a lock of its own (as with md or ZFS).

use crate::error::AttachError;
use crate::member::Member;
use sys::raw::{check, syscall};
use sys::rustix::thread::nanosleep;
use sys::rustix::time::Timespec;
use sys::{AsRawFd, OsError, RawFd, Result};

const FCNTL: usize = 72;
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;
/// Two that start at once may see each other and both step back; after so many tries one has won or the other was there before.
const TRY_COUNT: u32 = 5;
const PAUSE_NS: i64 = 2_000_000;

/// `struct flock` (fcntl(2)).
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

fn lock(fd: RawFd, command: usize, kind: i16, start: i64, length: i64) -> Result<i16> {
    let mut lock = Lock { kind, whence: 0, start, length, process: 0 };
    // SAFETY: the kernel reads and writes `lock`, which is laid out as it expects.
    check(unsafe { syscall(FCNTL, [fd as usize, command, &raw mut lock as usize, 0, 0, 0]) })?;
    Ok(lock.kind)
}

/// The byte that stands for a segment: never the first or the last, so that there is something on both sides.
pub(crate) const fn byte_of(segment_device: u64, segment_inode: u64) -> i64 {
    let mixed = (segment_device ^ segment_inode.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 2) as i64 | 1
}

/// Claims the members for the segment that `byte` stands for.
pub(crate) fn claim(members: &[Member], byte: i64) -> core::result::Result<(), AttachError> {
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
fn try_claim(members: &[Member], byte: i64) -> core::result::Result<Option<&Member>, AttachError> {
    for member in members {
        let Some(meta) = member.meta() else { continue };
        let fd = meta.as_raw_fd();
        match lock(fd, F_OFD_SETLK, F_RDLCK, byte, 1) {
            Ok(_) => {}
            // A file system without locks has no other users here either.
            Err(OsError::OPNOTSUPP | OsError::INVAL | OsError::NOLCK | OsError::NOSYS) => continue,
            Err(error) => return Err(AttachError::os(&member.path, "lock", error)),
        }
        let others = |start, length| lock(fd, F_OFD_GETLK, F_WRLCK, start, length).is_ok_and(|kind| kind != F_UNLCK);
        if others(0, byte) || others(byte + 1, 0) {
            return Ok(Some(member));
        }
    }
    Ok(None)
}

/// Whether other processes hold a member by way of the same segment.
pub(crate) fn is_shared(members: &[Member], byte: i64) -> bool {
    let held = |fd| lock(fd, F_OFD_GETLK, F_WRLCK, byte, 1).is_ok_and(|kind| kind != F_UNLCK);
    members.iter().filter_map(Member::meta).any(|meta| held(meta.as_raw_fd()))
}

/// Lets go of the members, as the end of the process would.
pub(crate) fn release(members: &[Member]) {
    for meta in members.iter().filter_map(Member::meta) {
        let _ = lock(meta.as_raw_fd(), F_OFD_SETLK, F_UNLCK, 0, 0);
    }
}

/// Something that differs between two that meet, so that they do not meet again.
fn jitter_ns(byte: i64, attempt: u32) -> u32 {
    (byte as u32 >> (attempt % 8)) % (PAUSE_NS as u32)
}
