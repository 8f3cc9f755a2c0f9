//! What an open file description of an array's file refers to, and the offset it carries.
//!
//! While only this process holds a description, its offset is a word in memory. Once another
//! process may hold it (fork, exec, SCM_RIGHTS), the kernel's offset of the anchor is the truth,
//! and a lock shared by all processes makes using and moving it one step.

use super::descriptor::SETTABLE;
use super::{OPEN, fetch};
use crate::descriptors::{Meaning, Use};
use crate::process::shares_tables;
use core::sync::atomic::Ordering;
use file::FileRef;
use linux_raw_sys::general::{__NR_fcntl, __NR_lseek, F_GETFL, O_ACCMODE, O_APPEND, O_DSYNC, O_PATH, O_RDONLY, O_RDWR, O_WRONLY};
pub(crate) use namespace::Node;
use sys::raw::{check, syscall};
use sys::{OsError, RawFd};

/// What a call answers whose descriptor was closed, or given another meaning, before the call had
/// any effect: it is served again from its beginning ([`crate::dispatch`]). No file of an array
/// answers this by itself (EUNATCH).
pub(crate) const REPLACED: OsError = OsError::UNATCH;

/// A description in use by a call.
pub(crate) type Held = Use<'static, Node>;

impl Use<'_, Node> {
    fn flag_bits(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Whether it was opened for reading.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        matches!(self.flag_bits() & (O_ACCMODE | O_PATH), O_RDONLY | O_RDWR)
    }

    /// Whether it was opened for writing.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        matches!(self.flag_bits() & (O_ACCMODE | O_PATH), O_WRONLY | O_RDWR)
    }

    /// Whether writes to `file` by way of `fd` go to the end. Another process that shares the
    /// description may have changed that.
    #[inline]
    pub(crate) fn appends(&self, fd: RawFd, file: &FileRef) -> bool {
        if self.shared.load(Ordering::Acquire) {
            self.follow_flags(fd, file.status_changes().load(Ordering::Acquire));
        }
        self.flag_bits() & O_APPEND != 0
    }

    #[inline]
    fn follow_flags(&self, fd: RawFd, changes: u32) {
        if self.flags_seen.load(Ordering::Relaxed) == changes {
            return;
        }
        // Another thread may have given the number to something else. Then this description has no
        // number to ask by.
        let claim = OPEN.claim_of(fd, self);
        if claim.is_none() && !shares_tables() {
            return;
        }
        // SAFETY: asks for the flags of an anchor.
        let flags = unsafe { syscall(__NR_fcntl as usize, [fd as usize, F_GETFL as usize, 0, 0, 0, 0]) };
        if let Ok(flags) = check(flags) {
            self.replace_flags(SETTABLE, flags as u32);
            self.flags_seen.store(changes, Ordering::Relaxed);
        }
    }

    /// Takes the bits of `mask` from `flags`.
    pub(crate) fn replace_flags(&self, mask: u32, flags: u32) {
        self.flags.store(self.flag_bits() & !mask | flags & mask, Ordering::Relaxed);
    }

    /// Whether writes are durable when they return (O_DSYNC, O_SYNC).
    #[inline]
    pub(crate) fn is_synchronous(&self) -> bool {
        self.flag_bits() & O_DSYNC != 0
    }

    /// Locks the position when nobody is taking the description from outside.
    #[inline]
    pub(crate) fn acquire_position(&self) {
        self.position.acquire();
        while fetch::is_under_way() {
            self.position.release();
            fetch::wait();
            self.position.acquire();
        }
    }

    /// Lets `act` use and move the offset, alone among all who share it. It stays where it was if
    /// `act` fails.
    ///
    /// The kernel's offset is moved by way of `fd`, which no other thread closes or replaces
    /// meanwhile (`Claim::end_moves`).
    ///
    /// # Errors
    /// Those of `act`; [`REPLACED`], before `act` is called, if the offset is the kernel's and `fd`
    /// means something else by now.
    #[inline]
    pub(crate) fn with_position<R>(
        &self,
        fd: RawFd,
        file: &FileRef,
        act: impl FnOnce(&mut u64) -> Result<R, OsError>,
    ) -> Result<R, OsError> {
        self.acquire_position();
        let result = if self.shared.load(Ordering::Acquire) {
            loop {
                match if shares_tables() { Meaning::Same } else { OPEN.meaning(fd, self) } {
                    Meaning::Same => break file.with_shared_position(|| with_kernel_position(fd, act)),
                    // Who claims a number waits for its position, so the position is released
                    // first. The number may mean the same afterwards.
                    Meaning::Claimed => {
                        self.position.release();
                        OPEN.wait_for_claim(fd);
                        self.acquire_position();
                    }
                    Meaning::Other => break Err(REPLACED),
                }
            }
        } else {
            let mut position = self.offset.load(Ordering::Relaxed);
            let result = act(&mut position);
            if result.is_ok() {
                self.offset.store(position, Ordering::Relaxed);
            }
            result
        };
        self.position.release();
        result
    }
}

fn with_kernel_position<R>(fd: RawFd, act: impl FnOnce(&mut u64) -> Result<R, OsError>) -> Result<R, OsError> {
    let before = seek(fd, 0, 1)?;
    let mut position = before;
    let result = act(&mut position)?;
    if position != before {
        // What `act` did is done. The kernel refuses no offset that a read or write has reached.
        let _ = seek(fd, position, 0);
    }
    Ok(result)
}

fn seek(fd: RawFd, offset: u64, whence: usize) -> Result<u64, OsError> {
    // SAFETY: moves the offset of an anchor; no memory is concerned.
    check(unsafe { syscall(__NR_lseek as usize, [fd as usize, offset as usize, whence, 0, 0, 0]) }).map(|offset| offset as u64)
}
