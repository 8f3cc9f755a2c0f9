//! Calls that concern the size, the space, the position or the durability of a file of the array
//! (lseek, truncate, fallocate, fsync), advice about it, and ioctl.
//!
//! Where an argument is wrong and the kernel would look at nothing of the file's contents, the call
//! is passed: the kernel makes it on the anchor and finds the error.

use super::OPEN;
use super::copy;
use super::data::on_file;
use super::directory;
use super::events;
use super::limit;
use super::listing;
use super::magic::Link;
use super::node::Held;
use super::on_path::{self, At};
use crate::array;
use crate::call::{Call, Verdict};
use crate::counts;
use crate::uapi::{
    FIBMAP, FICLONE, FICLONERANGE, FIGETBSZ, FIOASYNC, FIOCLEX, FIONBIO, FIONCLEX, FIONREAD, FIOQSIZE, FS_IOC_FSGETXATTR,
    FS_IOC_GETFLAGS, FS_IOC_GETFSSYSFSPATH, FS_IOC_GETFSUUID, FS_IOC_GETVERSION, FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_SETFLAGS,
    FS_IOC_UNRESVSP, FS_IOC_UNRESVSP64, FS_IOC_ZERO_RANGE, SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET,
};
use crate::{mappings, program};
use file::FileRef;
use linux_raw_sys::general::{
    __NR_readahead, __NR_sync_file_range, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE, FALLOC_FL_UNSHARE_RANGE, FALLOC_FL_ZERO_RANGE, POSIX_FADV_NOREUSE, S_IFDIR, S_IFREG,
};
use namespace::{Node, ProgramPath};
use sys::{OsError, RawFd};

const ALLOCATE: u32 = 0;
const ALLOCATE_KEEP: u32 = FALLOC_FL_KEEP_SIZE;
const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
const ZERO: u32 = FALLOC_FL_ZERO_RANGE;
const ZERO_KEEP: u32 = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
/// The modes of fallocate(2) that the kernel passes on to file systems. Any other is refused before
/// it looks at the descriptor.
const FALLOC_KNOWN: [u32; 9] = [
    ALLOCATE,
    ALLOCATE_KEEP,
    PUNCH,
    ZERO,
    ZERO_KEEP,
    FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_INSERT_RANGE,
    FALLOC_FL_UNSHARE_RANGE,
    FALLOC_FL_UNSHARE_RANGE | FALLOC_FL_KEEP_SIZE,
];

/// `lseek`.
pub(crate) fn lseek(call: &mut Call) -> Verdict {
    let verdict = on_file(call, |held, file, call| {
        let (delta, whence) = (call.args[1] as i64, call.args[2] & 0xffff_ffff);
        held.with_position(call.descriptor(0), file, |position| {
            let base = match whence {
                SEEK_SET => 0,
                SEEK_CUR => *position as i64,
                SEEK_END => file.settled_size() as i64,
                SEEK_DATA | SEEK_HOLE => {
                    let from = u64::try_from(delta).map_err(|_| OsError::NXIO)?;
                    *position = file.seek_extent(from, whence == SEEK_DATA)?;
                    return Ok(*position as usize);
                }
                _ => return Err(OsError::INVAL),
            };
            let target = base.checked_add(delta).ok_or(OsError::INVAL)?;
            *position = u64::try_from(target).map_err(|_| OsError::INVAL)?;
            Ok(*position as usize)
        })
    });
    match OPEN.lookup(call.descriptor(0)).filter(|_| verdict == Verdict::Pass) {
        Some(held) => listing::by_twin(call, &held),
        None => verdict,
    }
}

/// `ftruncate`. The signal of RLIMIT_FSIZE is [`on_file`]'s affair.
pub(crate) fn ftruncate(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        if !held.is_writable() {
            return Err(OsError::INVAL);
        }
        file.truncate(length(call.args[1])?)?;
        events::modified(call.descriptor(0), file);
        // This process' mappings of the file show its new size.
        mappings::fault::catch_up();
        Ok(0)
    })
}

/// `truncate`. The namespace tells those who watch the file; the program has no descriptor by which
/// to do so.
pub(crate) fn truncate(call: &mut Call) -> Verdict {
    let bytes = call.args[1];
    let act = |path: ProgramPath<'_>| array::namespace()?.truncate(path, length(bytes)?);
    let answer = |()| {
        mappings::fault::catch_up();
        Ok(0)
    };
    let open = |link: &Link| array::namespace()?.truncate_open(link.descriptor(), link.node(), length(bytes)?);
    let follow = true;
    limit::notice(on_path::serve_followed(call, At::cwd(0), follow, act, open, answer))
}

/// An argument that is a length; `INVAL` if it is negative.
fn length(argument: usize) -> Result<u64, OsError> {
    u64::try_from(argument as i64).map_err(|_| OsError::INVAL)
}

/// `fallocate`. A range that is to be zeroed is punched: an array does not promise to keep its
/// space.
pub(crate) fn fallocate(call: &mut Call) -> Verdict {
    let (offset, bytes, mode) = (call.args[2] as i64, call.args[3] as i64, call.args[1] as u32);
    // A range that no file can have is EFBIG without the limit's signal.
    if offset >= 0 && bytes > 0 && offset.checked_add(bytes).is_none() && FALLOC_KNOWN.contains(&mode) {
        let is_writable = |held: &Held| matches!(held.node(), Node::File(_)) && held.is_writable();
        if OPEN.lookup(call.descriptor(0)).as_ref().is_some_and(is_writable) {
            return Verdict::error(OsError::FBIG);
        }
    }
    on_file(call, |held, file, call| change_space(held, file, call.descriptor(0), mode, [offset, bytes]))
}

/// Does what fallocate(2) with `mode` does to `bytes` of a file from `offset` on.
fn change_space(held: &Held, file: &FileRef, fd: RawFd, mode: u32, [offset, bytes]: [i64; 2]) -> Result<usize, OsError> {
    // The kernel makes these checks in this order; the first that fails gives the error.
    if offset < 0 || bytes <= 0 {
        return Err(OsError::INVAL);
    }
    if !FALLOC_KNOWN.contains(&mode) {
        return Err(OsError::OPNOTSUPP);
    }
    if !held.is_writable() {
        return Err(OsError::BADF);
    }
    if offset.checked_add(bytes).is_none() {
        return Err(OsError::FBIG);
    }
    let (offset, bytes) = (offset as u64, bytes as u64);
    match mode {
        ALLOCATE => file.allocate(offset, bytes, false),
        ALLOCATE_KEEP => file.allocate(offset, bytes, true),
        PUNCH | ZERO_KEEP => file.punch(offset, bytes, false),
        ZERO => file.punch(offset, bytes, true),
        // An array cannot collapse, insert or unshare ranges.
        _ => return Err(OsError::OPNOTSUPP),
    }?;
    events::modified(fd, file);
    mappings::fault::catch_up();
    Ok(0)
}

/// fsync, fdatasync, sync_file_range: makes durable what was stored in a file or directory.
/// sync_file_range does as much as fsync.
pub(crate) fn sync(call: &mut Call) -> Verdict {
    let fd = call.descriptor(0);
    let Some(held) = OPEN.lookup(fd) else { return Verdict::Pass };
    if call.number as u32 == __NR_sync_file_range {
        let (offset, bytes) = (call.args[1] as i64, call.args[2] as i64);
        // If an argument is wrong, the kernel makes the call on the anchor and finds the error.
        if offset < 0 || bytes < 0 || offset.checked_add(bytes).is_none() || call.args[3] as u32 & !7 != 0 {
            return Verdict::Pass;
        }
    }
    match held.node() {
        Node::File(file) => {
            let result = mappings::follow::file(file);
            // Returns when other processes have followed their mappings of the file too: `sync`
            // covers what they stored.
            let result = result.and(file.call_writers());
            counts::synced(Verdict::from_result(result.and_then(|()| file.sync()).map(|()| 0)))
        }
        Node::Directory(_) => counts::synced(Verdict::from_result(
            array::namespace().and_then(|names| names.sync_directory(directory::present(fd, held.node()))).map(|()| 0),
        )),
        Node::Lost => Verdict::error(array::lost()),
        Node::Other | Node::Path(_) => Verdict::Pass,
    }
}

/// syncfs: makes durable what all processes have stored in the array. Mappings are followed, the
/// files that this process has open are synced, and then the members' file systems. The first error
/// is reported; it keeps nothing else from being synced.
pub(crate) fn sync_file_system(call: &mut Call) -> Verdict {
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    if matches!(held.node(), Node::Path(_)) {
        return Verdict::Pass;
    }
    let sync = || {
        let mut result = mappings::follow::all();
        let names = array::namespace()?;
        result = result.and(names.files().call_writers());
        names.files().for_each_open(|file| result = result.and(file.sync()));
        let synced = names.sync_file_systems();
        result.and(synced)
    };
    counts::synced(Verdict::from_result(sync().map(|()| 0)))
}

/// sync: what all processes have stored through mappings of the array is followed. Then the kernel
/// syncs all file systems, the members' among them.
pub(crate) fn sync_all(_: &mut Call) -> Verdict {
    // sync(2) has no errors to report.
    let _ = mappings::follow::all();
    if let Ok(names) = array::namespace() {
        let _ = names.files().call_writers();
    }
    Verdict::Pass
}

/// posix_fadvise and readahead: advice about the kernel's page cache, through which the array's
/// files are not read. Valid advice is accepted and has no effect.
pub(crate) fn advise(call: &mut Call) -> Verdict {
    let (is_readahead, bytes) = (call.number as u32 == __NR_readahead, call.args[2] as isize);
    // If an argument is wrong, the kernel makes the call on the anchor and finds the error.
    if bytes < 0 || !is_readahead && call.args[3] as u32 > POSIX_FADV_NOREUSE {
        return Verdict::Pass;
    }
    on_file(call, |held, _, _| if is_readahead && !held.is_readable() { Err(OsError::BADF) } else { Ok(0) })
}

/// Requests that the kernel may answer on the anchor: they ask about the inode, or set flags of the
/// descriptor or its description, which are the anchor's own.
const ANSWERED_BY_ANCHOR: [usize; 7] =
    [FIGETBSZ, FIONBIO, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_FSGETXATTR, FS_IOC_GETFSUUID, FS_IOC_GETFSSYSFSPATH];
/// The older forms of fallocate(2), with the mode that each stands for.
const SPACE_REQUESTS: [(usize, u32); 5] = [
    (FS_IOC_RESVSP, ALLOCATE_KEEP),
    (FS_IOC_RESVSP64, ALLOCATE_KEEP),
    (FS_IOC_UNRESVSP, PUNCH),
    (FS_IOC_UNRESVSP64, PUNCH),
    (FS_IOC_ZERO_RANGE, ZERO_KEEP),
];

/// `struct space_resv`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Space {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    rest: [u32; 6],
}

/// ioctl. A request that would change the anchor alone, or tell where its bytes lie, is refused, as
/// by a file system that lacks it.
pub(crate) fn ioctl(call: &mut Call) -> Verdict {
    let request = call.args[1] & 0xffff_ffff;
    if let Some(verdict) = super::mount::given_by_ioctl(call, super::is_ours) {
        return verdict;
    }
    if matches!(request, FICLONE | FICLONERANGE) {
        return clone_bytes(call, request);
    }
    if matches!(request, FIONCLEX | FIOCLEX) {
        return super::descriptor::close_on_exec(call);
    }
    if ANSWERED_BY_ANCHOR.contains(&request) {
        return Verdict::Pass;
    }
    let unsupported = |call: &Call| match request {
        // The kernel reads the new flags from the program's memory before it refuses them.
        FS_IOC_SETFLAGS => program::read::<u32>(call.args[2]).map_or_else(|error| error, |_| OsError::OPNOTSUPP),
        _ => OsError::OPNOTSUPP,
    };
    // The kernel would make a file system's request on the directory of one member alone.
    if is_for_file_systems(request)
        && OPEN.lookup(call.descriptor(0)).is_some_and(|held| matches!(held.node(), Node::Directory(_)))
    {
        return Verdict::error(unsupported(call));
    }
    on_file(call, |held, file, call| {
        let fd = call.descriptor(0);
        let position = || held.with_position(fd, file, |position| Ok(*position));
        if let Some((_, mode)) = SPACE_REQUESTS.iter().find(|(number, _)| *number == request) {
            let space: Space = program::read(call.args[2])?;
            let base = match space.whence as usize {
                SEEK_SET => 0,
                SEEK_CUR => position()? as i64,
                SEEK_END => file.settled_size() as i64,
                _ => return Err(OsError::INVAL),
            };
            return change_space(held, file, fd, *mode, [base.wrapping_add(space.start), space.length]);
        }
        if request == FIBMAP {
            // The kernel refuses a process that may not ask. All others get EINVAL: nobody is told
            // where on its device a member keeps the file's bytes.
            return sys::raw::check(call.kernel()).and(Err(OsError::INVAL));
        }
        if request == FIOQSIZE {
            let stat = array::namespace()?.fstat(super::directory::borrow(fd), held.node())?;
            return program::write(call.args[2], &(stat.st_blocks * 512)).map(|()| 0);
        }
        if request == FIONREAD {
            // The kernel stores the low 32 bits of the difference, which is negative behind the
            // end.
            let rest = file.settled_size().wrapping_sub(position()?) as i32;
            return program::write(call.args[2], &rest).map(|()| 0);
        }
        if request == FIOASYNC && program::read::<i32>(call.args[2])? == 0 {
            // A file of the array cannot have FASYNC set, so there is nothing to clear.
            return Ok(0);
        }
        Err(if is_for_file_systems(request) { unsupported(call) } else { OsError::NOTTY })
    })
}

/// FICLONE, FICLONERANGE: refused for files of the array, which cannot share bytes. The kernel, if
/// it made the call, would clone one anchor into the other, on one member alone. Errors of the two
/// descriptors come first, in the kernel's order.
fn clone_bytes(call: &Call, request: usize) -> Verdict {
    let destination = call.descriptor(0);
    let source = match request {
        FICLONE => Ok(call.args[2]),
        // The source is the first word of the structure that says which range is to be shared.
        _ => program::read::<[usize; 4]>(call.args[2]).map(|range| range[0]),
    };
    // If the structure cannot be read, the kernel makes the call. It finds that the structure
    // cannot be read, or that the descriptor is not open.
    let Ok(source) = source else { return Verdict::Pass };
    let source = source as sys::RawFd;
    let are_ours = (super::is_ours(destination), super::is_ours(source));
    if are_ours == (false, false) {
        return Verdict::Pass;
    }
    let kinds = || [source, destination].map(copy::kind);
    let check = || {
        copy::check_named(destination)?;
        copy::check_named(source)?;
        if are_ours != (true, true) {
            return Err(OsError::XDEV);
        }
        if kinds().contains(&S_IFDIR) {
            return Err(OsError::ISDIR);
        }
        if kinds() != [S_IFREG; 2] {
            return Err(OsError::INVAL);
        }
        // The source is read, the destination written.
        copy::check_open(source, false)?;
        copy::check_open(destination, true)?;
        if copy::appends(destination) { Err(OsError::BADF) } else { Ok(()) }
    };
    Verdict::error(check().err().unwrap_or(OsError::OPNOTSUPP))
}

/// Whether a request of ioctl(2) has a type byte that file systems use: 0x94 (btrfs,
/// FIDEDUPERANGE), 'f' (flags, encryption) or 'X' (xfs, FIFREEZE, FITRIM).
const fn is_for_file_systems(request: usize) -> bool {
    matches!((request >> 8) as u8, 0x94 | b'f' | b'X')
}
