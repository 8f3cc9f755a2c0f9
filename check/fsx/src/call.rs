//! The C library's calls as programs make them, with errno as the error.
//!
//! Nothing here may bypass the C library: what is tested is what programs get.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;

pub(crate) type Fd = libc::c_int;
/// The value returned, or errno.
pub(crate) type Answer = Result<i64, i32>;

fn answer(returned: i64) -> Answer {
    if returned < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(returned) }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// A call without pointers.
macro_rules! plain {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        pub(crate) fn $name($($argument: $type),*) -> Answer {
            // SAFETY: no memory is concerned.
            answer(i64::from(unsafe { libc::$name($($argument),*) }))
        }
    )*};
}

plain! {
    close(fd: Fd);
    dup(fd: Fd);
    dup2(from: Fd, to: Fd);
    dup3(from: Fd, to: Fd, flags: i32);
    ftruncate(fd: Fd, size: i64);
    fallocate(fd: Fd, mode: i32, offset: i64, bytes: i64);
    fsync(fd: Fd);
    fdatasync(fd: Fd);
    lseek(fd: Fd, offset: i64, whence: i32);
}

/// A call on one path.
macro_rules! on_path {
    ($($name:ident(path $(, $argument:ident: $type:ty)*);)*) => {$(
        pub(crate) fn $name(path: &Path $(, $argument: $type)*) -> Answer {
            let path = c_path(path);
            // SAFETY: the path is a C string.
            answer(i64::from(unsafe { libc::$name(path.as_ptr() $(, $argument)*) }))
        }
    )*};
}

on_path! {
    truncate(path, size: i64);
    unlink(path);
    open(path, flags: i32, mode: u32);
}

pub(crate) fn rename(from: &Path, to: &Path) -> Answer {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both are C strings.
    answer(i64::from(unsafe { libc::rename(from.as_ptr(), to.as_ptr()) }))
}

pub(crate) fn link(from: &Path, to: &Path) -> Answer {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both are C strings.
    answer(i64::from(unsafe { libc::link(from.as_ptr(), to.as_ptr()) }))
}

/// Gives an unnamed file a name, by way of proc(5).
pub(crate) fn link_descriptor(fd: Fd, to: &Path) -> Answer {
    let (from, to) = (c_path(Path::new(&format!("/proc/self/fd/{fd}"))), c_path(to));
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both are C strings.
    answer(i64::from(unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) }))
}

pub(crate) fn set_flags(fd: Fd, flags: i32) -> Answer {
    // SAFETY: no memory is concerned.
    answer(i64::from(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }))
}

pub(crate) fn read(fd: Fd, buffer: &mut [u8]) -> Answer {
    // SAFETY: the buffer is ours.
    answer(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } as i64)
}

pub(crate) fn pread(fd: Fd, buffer: &mut [u8], offset: i64) -> Answer {
    // SAFETY: the buffer is ours.
    answer(unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset) } as i64)
}

pub(crate) fn write(fd: Fd, buffer: &[u8]) -> Answer {
    // SAFETY: the buffer is ours.
    answer(unsafe { libc::write(fd, buffer.as_ptr().cast(), buffer.len()) } as i64)
}

pub(crate) fn pwrite(fd: Fd, buffer: &[u8], offset: i64) -> Answer {
    // SAFETY: the buffer is ours.
    answer(unsafe { libc::pwrite(fd, buffer.as_ptr().cast(), buffer.len(), offset) } as i64)
}

/// Cuts a buffer at `cuts` bytes apiece; the last piece gets the rest.
fn pieces(start: *mut u8, bytes: usize, cuts: &[usize]) -> Vec<libc::iovec> {
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    let mut done = 0;
    for &cut in cuts.iter().chain([&bytes]) {
        let step = cut.min(bytes - done);
        pieces.push(libc::iovec { iov_base: start.wrapping_add(done).cast(), iov_len: step });
        done += step;
    }
    pieces
}

/// How a vectored call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vectored {
    /// readv, writev.
    Position,
    /// preadv, pwritev.
    Offset(i64),
    /// preadv2, pwritev2; -1 is the position.
    Flags(i64, i32),
}

pub(crate) fn read_vector(fd: Fd, buffer: &mut [u8], cuts: &[usize], how: Vectored) -> Answer {
    let vector = pieces(buffer.as_mut_ptr(), buffer.len(), cuts);
    let (start, count) = (vector.as_ptr(), vector.len() as i32);
    // SAFETY: the pieces lie in the buffer.
    answer(unsafe {
        match how {
            Vectored::Position => libc::readv(fd, start, count),
            Vectored::Offset(offset) => libc::preadv(fd, start, count, offset),
            Vectored::Flags(offset, flags) => libc::preadv2(fd, start, count, offset, flags),
        }
    } as i64)
}

pub(crate) fn write_vector(fd: Fd, buffer: &[u8], cuts: &[usize], how: Vectored) -> Answer {
    let vector = pieces(buffer.as_ptr().cast_mut(), buffer.len(), cuts);
    let (start, count) = (vector.as_ptr(), vector.len() as i32);
    // SAFETY: the pieces lie in the buffer, which is only read.
    answer(unsafe {
        match how {
            Vectored::Position => libc::writev(fd, start, count),
            Vectored::Offset(offset) => libc::pwritev(fd, start, count, offset),
            Vectored::Flags(offset, flags) => libc::pwritev2(fd, start, count, offset, flags),
        }
    } as i64)
}

/// copy_file_range; an offset that is None is the descriptor's position.
pub(crate) fn copy_range(from: Fd, from_at: &mut Option<i64>, to: Fd, to_at: &mut Option<i64>, bytes: usize) -> Answer {
    let place = |at: &mut Option<i64>| at.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let (from_at, to_at) = (place(from_at), place(to_at));
    // SAFETY: the offsets are ours or null.
    answer(unsafe { libc::copy_file_range(from, from_at, to, to_at, bytes, 0) } as i64)
}

pub(crate) fn sendfile(to: Fd, from: Fd, at: &mut Option<i64>, bytes: usize) -> Answer {
    let at = at.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the offset is ours or null.
    answer(unsafe { libc::sendfile(to, from, at, bytes) } as i64)
}

/// Size and number of names.
pub(crate) fn stat(target: Result<Fd, &Path>) -> Result<(u64, u64), i32> {
    // SAFETY: a stat of zeros is a stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, the stat is ours.
    let returned = unsafe {
        match target {
            Ok(fd) => libc::fstat(fd, &mut stat),
            Err(path) => libc::stat(c_path(path).as_ptr(), &mut stat),
        }
    };
    answer(i64::from(returned)).map(|_| (stat.st_size as u64, stat.st_nlink as u64))
}

/// A mapping.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    pub(crate) fn new(fd: Fd, offset: u64, bytes: usize, shared: bool) -> Result<Self, i32> {
        Self::make(fd, offset, bytes, libc::PROT_READ, if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE })
    }

    /// A shared one that can be stored to.
    pub(crate) fn writable(fd: Fd, offset: u64, bytes: usize) -> Result<Self, i32> {
        Self::make(fd, offset, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }

    fn make(fd: Fd, offset: u64, bytes: usize, protection: i32, kind: i32) -> Result<Self, i32> {
        // SAFETY: a new mapping where the kernel wants it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, fd, offset as i64) };
        if start == libc::MAP_FAILED { answer(-1).map(|_| unreachable!()) } else { Ok(Self { start, bytes }) }
    }

    /// Stores bytes; the file must reach that far, and the mapping be one that can be stored to.
    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: mapped for `bytes`; nothing of ours refers to them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.cast::<u8>().add(at), bytes.len()) };
    }

    /// A copy of some of its bytes; the file must reach that far.
    pub(crate) fn load(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= self.bytes);
        let mut out = vec![0; count];
        // SAFETY: as for `copy`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.cast::<u8>().add(at), out.as_mut_ptr(), count) };
        out
    }

    /// One word of it, which other processes may load and store as well.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes);
        // SAFETY: within the mapping, aligned as pages are; any bytes are an atomic.
        unsafe { &*self.start.cast::<AtomicU64>().add(index) }
    }

    pub(crate) fn sync(&self, flags: i32) -> Result<(), i32> {
        // SAFETY: our mapping.
        answer(i64::from(unsafe { libc::msync(self.start, self.bytes, flags) })).map(|_| ())
    }

    /// Unmaps its first bytes, a multiple of the page size and not all.
    pub(crate) fn unmap_head(&mut self, bytes: usize) -> Result<(), i32> {
        assert!(bytes < self.bytes);
        // SAFETY: part of our mapping, and nobody has a pointer into it.
        answer(i64::from(unsafe { libc::munmap(self.start, bytes) }))?;
        self.start = self.start.wrapping_byte_add(bytes);
        self.bytes -= bytes;
        Ok(())
    }

    /// A copy of its first bytes; the file must reach that far.
    pub(crate) fn copy(&self, count: usize) -> Vec<u8> {
        assert!(count <= self.bytes);
        let mut out = vec![0; count];
        // SAFETY: mapped for `bytes`, and others may write to the file meanwhile: bytes, of which
        // any value is one.
        unsafe { std::ptr::copy_nonoverlapping(self.start.cast(), out.as_mut_ptr(), count) };
        out
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody has a pointer into it.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// Forks; the child runs `act`, which tells whether all was well, and ends without running anything
/// of this process'. Returns its pid.
pub(crate) fn fork(act: impl FnOnce() -> bool) -> Result<i32, i32> {
    // SAFETY: what the child does next was written for it: no locks of other threads are taken.
    match unsafe { libc::fork() } {
        0 => {
            let well = act();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        pid => answer(i64::from(pid)).map(|pid| pid as i32),
    }
}

/// Waits for a child; its status as wait(2) tells it.
pub(crate) fn wait(pid: i32) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: the status is ours.
    answer(i64::from(unsafe { libc::waitpid(pid, &mut status, 0) })).map(|_| status)
}
