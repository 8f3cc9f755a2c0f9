//! The descriptors that a program has inherited when it starts: the numbers in /proc/thread-self/fd,
//! or, without /proc, those that the kernel says are open.

use crate::descriptors::descriptor_flags;
use core::ffi::CStr;
use linux_raw_sys::general::{__NR_select, F_GETFD};
use sys::raw::syscall;
use sys::rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use sys::{AsRawFd, RawFd};

const BUFFER_BYTES: usize = 4096;

/// The kernel's table of descriptors has at least so many places.
const NUMBER_COUNT_MIN: usize = 64;
/// No number from this one on is looked at: the table of open files has no place for it.
const NUMBER_COUNT_MAX: usize = 1 << 20;

/// Calls `found` with each open descriptor.
pub(crate) fn descriptors(mut found: impl FnMut(RawFd)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = openat(CWD, c"/proc/thread-self/fd", flags, Mode::empty()) else { return each_number(found) };
    let mut buffer = [core::mem::MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        match number(entry.file_name()) {
            Some(descriptor) if descriptor != directory.as_raw_fd() => found(descriptor),
            _ => {}
        }
    }
}

/// As [`descriptors`], without /proc, or without a free number to open it by.
#[cold]
fn each_number(found: impl FnMut(RawFd)) {
    let doubled = core::iter::successors(Some(NUMBER_COUNT_MIN), |count| Some(count * 2));
    let mut counts = doubled.take_while(|&count| count < NUMBER_COUNT_MAX);
    let end = counts.find(|&count| is_past_table(count)).unwrap_or(NUMBER_COUNT_MAX);
    (0..end as RawFd).filter(|&descriptor| is_open(descriptor)).for_each(found);
}

fn is_open(descriptor: RawFd) -> bool {
    descriptor_flags(descriptor, F_GETFD, 0) >= 0
}

/// Tells whether the kernel's table of this task's descriptors ends at `number` or below it. A table
/// that was made for few descriptors is short, whatever the limit says, and a lowered limit does not
/// make it shorter. What cannot be found out counts as no.
///
/// select(2) looks at the numbers that the table has places for. Of these it answers EBADF for one
/// that is not open; a number past the table it passes over.
#[inline(never)]
fn is_past_table(number: usize) -> bool {
    let mut set = heap::vec![0u64; number / 64 + 1];
    set[number / 64] = 1 << (number % 64);
    let mut at_once = [0i64; 2];
    let args = [number + 1, set.as_mut_ptr() as usize, 0, 0, at_once.as_mut_ptr() as usize, 0];
    // SAFETY: the set has a bit for each number up to `number`. The kernel writes it, and the time,
    // back.
    !is_open(number as RawFd) && unsafe { syscall(__NR_select as usize, args) } == 0
}

fn number(name: &CStr) -> Option<RawFd> {
    core::str::from_utf8(name.to_bytes()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn open_files_are_found() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/").unwrap();
        let mut found = std::vec::Vec::new();
        super::descriptors(|descriptor| found.push(descriptor));
        assert!(found.contains(&file.as_raw_fd()));
        let mut found = std::vec::Vec::new();
        super::each_number(|descriptor| found.push(descriptor));
        assert!(found.contains(&file.as_raw_fd()));
        assert!(found.is_sorted());
    }

    #[test]
    fn the_end_of_the_table_is_found() {
        use std::os::fd::AsRawFd;
        use sys::rustix::io::fcntl_dupfd_cloexec;
        // A process' other threads open and close numbers, and a table never gets shorter: what is
        // told before is no more than a bound from below.
        let file = std::fs::File::open("/").unwrap();
        let highest = fcntl_dupfd_cloexec(crate::calls::directory::borrow(file.as_raw_fd()), 700).unwrap();
        let number = sys::AsRawFd::as_raw_fd(&highest) as usize;
        for count in [64, 128, 256, 512, number] {
            assert!(!super::is_past_table(count), "{count}");
        }
        assert!([1024, 2048, 4096, 1 << 14, 1 << 16].into_iter().any(super::is_past_table));
        let mut found = std::vec::Vec::new();
        super::each_number(|descriptor| found.push(descriptor));
        assert!(found.contains(&(number as i32)));
    }
}
