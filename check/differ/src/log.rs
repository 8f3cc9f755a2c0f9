//! What programs write down: text in memory that all of a batch's processes share, so that writing
//! it makes no system call that could be told by a program, or fail by its limits.
//!
//! Invariant: one task at a time writes. A step is over before the next one begins, whoever makes
//! it.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// The number at which programs have the memory open: a child that is another program finds it
/// there.
const DESCRIPTOR: i32 = 900;
const BYTES: usize = 64 << 20;
/// Where the text begins, behind its length.
const START: usize = 8;

static TEXT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Makes the memory, for this process and all that it starts.
pub(crate) fn make() -> io::Result<()> {
    // SAFETY: the name ends with a NUL; the descriptor is nobody else's.
    let file = unsafe {
        let made = libc::memfd_create(c"differ".as_ptr(), 0);
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(made)
    };
    file.set_len(BYTES as u64)?;
    // SAFETY: numbers only; nothing of this process is open at that number.
    if unsafe { libc::dup2(file.as_raw_fd(), DESCRIPTOR) } < 0 {
        return Err(io::Error::last_os_error());
    }
    attach()
}

/// Finds the memory that the process which started this one has made.
pub(crate) fn attach() -> io::Result<()> {
    // SAFETY: the kernel chooses the place.
    let found =
        unsafe { libc::mmap(ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, DESCRIPTOR, 0) };
    if found == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    TEXT.store(found.cast(), Ordering::Relaxed);
    Ok(())
}

/// Adds to the text. What does not fit any more is left out, and the text does not end as it
/// should.
pub(crate) fn say(text: &str) {
    let memory = TEXT.load(Ordering::Relaxed);
    if memory.is_null() {
        return;
    }
    // SAFETY: the mapping is that long and begins with the text's length; one task at a time
    // writes.
    unsafe {
        let length = memory.cast::<usize>().read_volatile();
        if START + length + text.len() <= BYTES {
            ptr::copy_nonoverlapping(text.as_ptr(), memory.add(START + length), text.len());
            memory.cast::<usize>().write_volatile(length + text.len());
        }
    }
}

/// The whole text.
pub(crate) fn text() -> Vec<u8> {
    let memory = TEXT.load(Ordering::Relaxed);
    if memory.is_null() {
        return Vec::new();
    }
    // SAFETY: the mapping is that long, begins with the text's length, and nobody writes any more.
    unsafe {
        let length = memory.cast::<usize>().read_volatile().min(BYTES - START);
        std::slice::from_raw_parts(memory.add(START), length).to_vec()
    }
}
