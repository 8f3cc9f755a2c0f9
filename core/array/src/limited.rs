//! Writes to the array's own files by a process whose limit for the length of files (RLIMIT_FSIZE,
//! setrlimit(2)) lies below where they go. The kernel would refuse pwrite(2) there and send SIGXFSZ,
//! which says nothing of the member, and the program itself may change its files below that limit.
//! Stores to a mapping of bytes that the file has are not held to the limit.

use sys::rustix::fs::fstat;
use sys::rustix::io::pwrite;
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{OsError, OwnedFd, Result};
use units::PAGE_BYTES;

/// Writes all bytes.
///
/// # Errors
/// The error of pwrite(2) or mmap(2); `FBIG`, with nothing written, if the bytes lie behind the file's
/// end and behind the process' limit; `IO` if the file system has no page for them.
pub(crate) fn write_fully(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    if offset.saturating_add(bytes.len() as u64) > sys::file_limit::bytes() {
        return store(file, bytes, offset);
    }
    while !bytes.is_empty() {
        match pwrite(file, bytes, offset) {
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(OsError::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Stores bytes over those that the file has there. They are as durable as after pwrite(2): a later
/// fdatasync(2) writes them back.
#[cold]
fn store(file: &OwnedFd, bytes: &[u8], offset: u64) -> Result<()> {
    let end = offset + bytes.len() as u64;
    if fstat(file)?.st_size.cast_unsigned() < end {
        return Err(OsError::FBIG);
    }
    let start = offset - offset % PAGE_BYTES as u64;
    let (within, length) = ((offset - start) as usize, (end - start) as usize);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, in the place of none; it is taken away below, and nothing else knows it.
    unsafe {
        let place = mmap(core::ptr::null_mut(), length, access, MapFlags::SHARED, file, start)?;
        let (to, from, count) = (place.cast::<u8>().add(within), bytes.as_ptr(), bytes.len());
        // A page that the file system cannot give faults. What is run owns nothing.
        let stored = persist::fault::guard(|| core::ptr::copy_nonoverlapping(from, to, count));
        munmap(place, length)?;
        stored.map_err(|_| OsError::IO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_lies_behind_the_limit_is_stored_if_the_file_has_it() {
        persist::fault::install_handlers().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 10_000]).unwrap();
        let file = OwnedFd::from(file);
        for (offset, count) in [(0, 10), (4090, 20), (4096, 4096), (9990, 10)] {
            store(&file, &vec![7; count], offset).unwrap();
            let mut found = vec![0; 10_000];
            assert_eq!(crate::member::read_fully_at(&file, &mut found, 0), Ok(10_000));
            let (start, end) = (offset as usize, offset as usize + count);
            assert!(found[start..end].iter().all(|&byte| byte == 7), "{offset}");
            assert!(found[end..].iter().all(|&byte| byte == 1), "{offset}");
        }
        assert_eq!(store(&file, &[7; 20], 9990), Err(OsError::FBIG));
        let mut found = [0; 20];
        assert_eq!(crate::member::read_fully_at(&file, &mut found, 9990), Ok(10));
    }
}
