//! Size, space and durability of a file: lseek, truncate, fallocate, fsync.

use super::OPEN;
use super::copy;
use super::data::on_file;
use super::events;
use super::limit;
use super::magic::Link;
use super::on_path::{self, At};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::{mappings, program};
use linux_raw_sys::general::{__NR_readahead, __NR_sync_file_range, S_IFDIR, S_IFREG};
use namespace::{Node, ProgramPath};
use sys::{BorrowedFd, OsError};

const SEEK_SET: usize = 0;
const SEEK_CUR: usize = 1;
const SEEK_END: usize = 2;
const SEEK_DATA: usize = 3;
const SEEK_HOLE: usize = 4;

const FALLOC_KEEP_SIZE: usize = 1;
const FALLOC_PUNCH_HOLE: usize = 2;
const FALLOC_ZERO_RANGE: usize = 0x10;
/// The modes of fallocate(2) that the kernel passes on to file systems: allocating, punching and zeroing ranges, and collapsing (8), inserting (0x20) and unsharing (0x40) them.
const FALLOC_KNOWN: [usize; 9] = [0, 1, 3, 8, 0x10, 0x11, 0x20, 0x40, 0x41];

pub(crate) fn lseek(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
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
    })
}

pub(crate) fn ftruncate(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        if !held.is_writable() {
            return Err(OsError::INVAL);
        }
        file.truncate(length(call.args[1])?)?;
        events::modified(call.descriptor(0), file);
        mappings::fault::catch_up();
        Ok(0)
    })
}

pub(crate) fn truncate(call: &mut Call) -> Verdict {
    let bytes = call.args[1];
    let act = |path: ProgramPath<'_>| array::namespace()?.truncate(path, length(bytes)?);
    let answer = |()| {
        mappings::fault::catch_up();
        Ok(0)
    };
    let open = |link: &Link| array::namespace()?.truncate_open(link.descriptor(), link.node(), length(bytes)?);
    limit::notice(on_path::serve_followed(call, At::cwd(0), true, act, open, answer))
}

fn length(argument: usize) -> Result<u64, OsError> {
    u64::try_from(argument as i64).map_err(|_| OsError::INVAL)
}

pub(crate) fn fallocate(call: &mut Call) -> Verdict {
    on_file(call, |held, file, call| {
        let (offset, bytes, mode) = (call.args[2] as i64, call.args[3] as i64, call.args[1] & 0xffff_ffff);
        const PUNCH: usize = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
        const ZERO_KEEP: usize = FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE;
        // What is wrong first decides the error, in the kernel's order.
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
        if !matches!(mode, 0 | FALLOC_KEEP_SIZE | PUNCH | FALLOC_ZERO_RANGE | ZERO_KEEP) {
            return Err(OsError::OPNOTSUPP);
        }
        let (offset, bytes) = (offset as u64, bytes as u64);
        match mode {
            PUNCH | ZERO_KEEP => file.punch(offset, bytes, false),
            FALLOC_ZERO_RANGE => file.punch(offset, bytes, true),
            _ => file.allocate(offset, bytes, mode == FALLOC_KEEP_SIZE),
        }?;
        events::modified(call.descriptor(0), file);
        mappings::fault::catch_up();
        Ok(0)
    })
}

/// fsync, fdatasync, sync_file_range of a file or directory.
pub(crate) fn sync(call: &mut Call) -> Verdict {
    let fd = call.descriptor(0);
    let Some(held) = OPEN.lookup(fd) else { return Verdict::Pass };
    if call.number as u32 == __NR_sync_file_range {
        let (offset, bytes) = (call.args[1] as i64, call.args[2] as i64);
        // What is wrong the kernel says, of the anchor.
        if offset < 0 || bytes < 0 || offset.checked_add(bytes).is_none() || call.args[3] as u32 & !7 != 0 {
            return Verdict::Pass;
        }
    }
    match held.node() {
        Node::File(file) => {
            let result = mappings::follow::file(file);
            // What other processes stored through mappings is synchronised too.
            file.call_writers();
            Verdict::from_result(result.and_then(|()| file.sync()).map(|()| 0))
        }
        // SAFETY: the descriptor is open: it was looked up.
        Node::Directory => Verdict::from_result(
            array::namespace().and_then(|names| names.sync_directory(unsafe { BorrowedFd::borrow_raw(fd) })).map(|()| 0),
        ),
        Node::Lost => Verdict::error(array::lost()),
        Node::Other | Node::Path => Verdict::Pass,
    }
}

/// syncfs on anything of the array: everything that is stored in it.
pub(crate) fn sync_file_system(call: &mut Call) -> Verdict {
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    if matches!(held.node(), Node::Path) {
        return Verdict::Pass;
    }
    let sync = || {
        mappings::follow::all()?;
        let names = array::namespace()?;
        let mut result = Ok(());
        names.files().for_each_open(|file| result = result.and(file.sync()));
        result.and_then(|()| names.sync_file_systems())
    };
    Verdict::from_result(sync().map(|()| 0))
}

/// sync: the array's part of it, then the kernel's.
pub(crate) fn sync_all(_: &mut Call) -> Verdict {
    // It reports nothing.
    let _ = mappings::follow::all();
    Verdict::Pass
}

/// posix_fadvise and readahead: advice about pages the kernel does not move for us.
pub(crate) fn advise(call: &mut Call) -> Verdict {
    let (is_readahead, length) = (call.number as u32 == __NR_readahead, call.args[2] as isize);
    // What is wrong the kernel says, of the anchor.
    if length < 0 || !is_readahead && call.args[3] as u32 > 5 {
        return Verdict::Pass;
    }
    on_file(call, |held, _, _| if is_readahead && !held.is_readable() { Err(OsError::BADF) } else { Ok(0) })
}

const FIONREAD: usize = 0x541b;
const FICLONE: usize = 0x4004_9409;
const FICLONERANGE: usize = 0x4020_940d;
/// FS_IOC_SETFLAGS. The flags are read first.
const SETFLAGS: usize = 0x4008_6602;
/// Requests that only ask about the inode: the anchor knows.
const ANSWERED_BY_ANCHOR: [usize; 7] = [
    0x2,         // FIGETBSZ
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x5421,      // FIONBIO
    0x8008_6601, // FS_IOC_GETFLAGS
    0x8008_7601, // FS_IOC_GETVERSION
    0x801c_581f, // FS_IOC_FSGETXATTR
];

/// ioctl: what would act on the anchor's bytes (cloning, mapping of extents, flags) is not supported, as on a file system without it.
pub(crate) fn ioctl(call: &mut Call) -> Verdict {
    let request = call.args[1] & 0xffff_ffff;
    if let Some(verdict) = super::mount::given_by_ioctl(call) {
        return verdict;
    }
    if matches!(request, FICLONE | FICLONERANGE) {
        return clone_bytes(call, request);
    }
    if ANSWERED_BY_ANCHOR.contains(&request) {
        return Verdict::Pass;
    }
    // Of a directory they would change one member's alone.
    if is_for_file_systems(request) && OPEN.lookup(call.descriptor(0)).is_some_and(|held| matches!(held.node(), Node::Directory))
    {
        let are_read = request != SETFLAGS || program::read::<u32>(call.args[2]).is_ok();
        return Verdict::error(if are_read { OsError::OPNOTSUPP } else { OsError::FAULT });
    }
    on_file(call, |held, file, call| {
        if request == FIONREAD {
            let position = held.with_position(call.descriptor(0), file, |position| Ok(*position))?;
            let rest = file.settled_size().saturating_sub(position).min(i32::MAX as u64) as i32;
            return program::write(call.args[2], &rest).map(|()| 0);
        }
        if request == SETFLAGS {
            program::read::<u32>(call.args[2])?;
        }
        Err(if is_for_file_systems(request) { OsError::OPNOTSUPP } else { OsError::NOTTY })
    })
}

/// FICLONE, FICLONERANGE: the array shares no bytes between files, and to the kernel the anchors would be files that do. What is wrong with the two descriptors comes first, in the kernel's order.
fn clone_bytes(call: &Call, request: usize) -> Verdict {
    let goal = call.descriptor(0);
    let source = match request {
        FICLONE => Ok(call.args[2]),
        // The first word of the structure that says which range is to be shared.
        _ => program::read::<[usize; 4]>(call.args[2]).map(|range| range[0]),
    };
    // The kernel says EFAULT when it knows that the descriptor is open.
    let Ok(source) = source else { return Verdict::Pass };
    let source = source as sys::RawFd;
    let are_ours = (super::is_ours(goal), super::is_ours(source));
    if are_ours == (false, false) {
        return Verdict::Pass;
    }
    let kinds = || [source, goal].map(copy::kind);
    let refusal = || {
        copy::check_named(goal)?;
        copy::check_named(source)?;
        match are_ours {
            (true, true) => {}
            _ => return Err(OsError::XDEV),
        }
        if kinds().contains(&S_IFDIR) {
            return Err(OsError::ISDIR);
        }
        if kinds() != [S_IFREG; 2] {
            return Err(OsError::INVAL);
        }
        copy::check_open(source, false)?;
        copy::check_open(goal, true)?;
        if copy::appends(goal) { Err(OsError::BADF) } else { Err(OsError::OPNOTSUPP) }
    };
    Verdict::from_result(refusal())
}

/// Whether an ioctl(2) is one of file systems: 0x94 has FICLONERANGE and FIDEDUPERANGE, 'f' has flags and encryption, 'X' has FSSETXATTR, FIFREEZE and FITRIM.
const fn is_for_file_systems(request: usize) -> bool {
    matches!(request >> 8 & 0xff, 0x94 | 0x66 | 0x58)
}
