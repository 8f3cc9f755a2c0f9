//! What is measured: a file reached by system calls (the kernel's, or ours by way of the library),
//! or the engine's own file.

use crate::rounds::Contender;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use units::PAGE_BYTES;

/// A file at whose offsets bytes are read and written.
pub(crate) trait Subject {
    /// One call that reads all of `buffer`.
    fn read(&self, offset: u64, buffer: &mut [u8]);

    /// One call that writes all of `buffer`.
    fn write(&self, offset: u64, buffer: &[u8]);

    /// Cuts the file.
    fn cut(&self, bytes: u64);
}

impl Subject for File {
    #[inline]
    fn read(&self, offset: u64, buffer: &mut [u8]) {
        let count = self.read_at(buffer, offset).expect("pread");
        assert_eq!(count, buffer.len(), "pread gave less than asked for");
    }

    #[inline]
    fn write(&self, offset: u64, buffer: &[u8]) {
        let count = self.write_at(buffer, offset).expect("pwrite");
        assert_eq!(count, buffer.len(), "pwrite took less than given");
    }

    fn cut(&self, bytes: u64) {
        self.set_len(bytes).expect("ftruncate");
    }
}

impl Subject for file::FileRef {
    #[inline]
    fn read(&self, offset: u64, buffer: &mut [u8]) {
        // SAFETY: the buffer is a slice.
        let count = unsafe { self.read_at(offset, buffer.as_mut_ptr(), buffer.len()) }.expect("read");
        assert_eq!(count, buffer.len(), "read gave less than asked for");
    }

    #[inline]
    fn write(&self, offset: u64, buffer: &[u8]) {
        // SAFETY: the buffer is a slice.
        let count = unsafe { self.write_at(offset, buffer.as_ptr(), buffer.len()) }.expect("write");
        assert_eq!(count, buffer.len(), "write took less than given");
    }

    fn cut(&self, bytes: u64) {
        self.truncate(bytes).expect("truncate");
    }
}

/// The program's memory, at a page boundary: where a copy begins within a line or a page must not
/// decide who is faster.
pub(crate) struct Buffer {
    pages: Vec<Page>,
    bytes: usize,
}

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE_BYTES]);

impl Buffer {
    /// The same bytes.
    pub(crate) fn of(content: &[u8]) -> Self {
        let mut buffer = Self { pages: vec![Page([0; PAGE_BYTES]); content.len().div_ceil(PAGE_BYTES)], bytes: content.len() };
        buffer.copy_from_slice(content);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: pages are bytes and nothing else.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: pages are bytes and nothing else.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.bytes) }
    }
}

/// Reads of a subject.
pub(crate) struct Reads<'a, S>(pub(crate) &'a S, pub(crate) &'a mut [u8]);

impl<S: Subject> Contender for Reads<'_, S> {
    fn run(&mut self, offsets: &[u64]) {
        for &offset in offsets {
            self.0.read(offset, self.1);
        }
    }
}

/// Writes of a subject.
pub(crate) struct Writes<'a, S>(pub(crate) &'a S, pub(crate) &'a [u8]);

impl<S: Subject> Contender for Writes<'_, S> {
    fn run(&mut self, offsets: &[u64]) {
        for &offset in offsets {
            self.0.write(offset, self.1);
        }
    }
}
