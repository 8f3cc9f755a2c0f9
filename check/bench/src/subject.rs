//! What is measured: a file reached by system calls (the kernel's, or ours by way of the library), or the engine's own file.

use crate::rounds::Contender;
use std::fs::File;
use std::os::unix::fs::FileExt;

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
