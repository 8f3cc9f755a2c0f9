//! A process that is parted from the array sees an array all of whose members are out. It is parted
//! if its segment was cut short, if shared memory has no room for the segment, or if it is a child
//! in another PID namespace. Also: how a command looks at a segment without attaching.

use super::attach::{AttachSlot, slot_of};
use super::{MAGIC, Myself, NO_PID, Recovery, Runtime, Segment, VERSION, entry, showing};
use alloc::string::String;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use sync::OwnerId;
use sys::high_fd::Raised;
use sys::rustix::fs::{self, Mode};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use sys::rustix::process::{Signal, getpid, kill_process};
use sys::{AsFd as _, BorrowedFd, OsError, Result};

/// How a segment that this process used was lost, as a [`Loss`]; 0 if none was.
static LOSS: AtomicU32 = AtomicU32::new(0);

/// Why zeros stand in for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Loss {
    /// Shared memory has no room for a page of the segment.
    Full = 1,
    /// The segment's file was cut short.
    Cut = 2,
}

/// Returns how a segment that this process used was lost; None if none was. Since then the process
/// sees an array all of whose members are out, which they are not.
#[must_use]
pub fn loss() -> Option<Loss> {
    [Loss::Full, Loss::Cut].into_iter().find(|&loss| loss as u32 == LOSS.load(Ordering::Relaxed))
}

/// A number that no PID namespace has. In the zeros that stand in for a segment it says that the
/// process was parted by [`Runtime::stand_aside`].
const NO_NAMESPACE: u64 = 1;

impl Runtime {
    /// Tells whether this process, a child of the one that attached, is in another PID namespace
    /// (pid_namespaces(7)): it cannot tell which of the attached processes live, nor they whether
    /// it does.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        let (own, namespace) = (self.segment().pid_namespace.load(Ordering::Relaxed), pid_namespace());
        own != 0 && namespace != 0 && own != namespace
    }

    /// Parts this process, a child that has just been forked, from the array: from now on the
    /// process sees an array all of whose members are out, and changes nothing that others see.
    pub fn stand_aside(&self) {
        let (start, bytes) = (self.segment.as_ptr().cast(), size_of::<Segment>());
        // SAFETY: the place is this mapping's own; any bytes, zeros too, are a segment's, and no
        // other thread of the child uses it.
        let replaced = unsafe {
            mmap_anonymous(
                start,
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        if replaced.is_err() {
            // The kernel has no memory for the zeros. This process must not go on with the segment
            // of the others.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        make_lost(start as usize, self.me.as_ptr() as usize);
        self.segment().pid_namespace.store(NO_NAMESPACE, Ordering::Relaxed);
    }

    /// Returns why zeros stand in for the segment: `NOSPC` if shared memory is full, `PROTO` if the
    /// file was cut short; None if none do.
    pub(crate) fn why_lost(&self) -> Option<OsError> {
        // SAFETY: the page is mapped for the life of self.
        let is_lost = unsafe { self.me.as_ref() }.lost.load(Ordering::Relaxed) != 0;
        is_lost.then(|| if is_whole(self.file.as_fd()) { OsError::NOSPC } else { OsError::PROTO })
    }

    /// Returns the segment of array `uuid` as it is, in memory of this process' own, where shared
    /// memory has no room for a page of it. The process is not attached, and changes nothing that
    /// others see. The segment's file is locked until this is dropped.
    ///
    /// # Errors
    /// `PROTO` if the segment is of another version or was cut short, `BUSY` if it belongs to
    /// another PID namespace; else what the system says.
    pub fn look(uuid: format::Uuid, access: format::Access) -> Result<Self> {
        let (file, _, path) = entry::open_locked(uuid, access, Mode::from_raw_mode(access.mode & 0o666))?;
        let runtime = Self::copy(file, path)?;
        let segment = runtime.segment();
        if segment.magic.load(Ordering::Relaxed) != MAGIC || segment.version.load(Ordering::Relaxed) != VERSION {
            return Err(OsError::PROTO);
        }
        if runtime.is_elsewhere() { Err(OsError::BUSY) } else { Ok(runtime) }
    }

    /// Makes a copy of what is in a segment's file. Reading a hole of the file takes no room in
    /// shared memory, unlike a load from a mapping of the hole.
    pub(super) fn copy(file: Raised, path: String) -> Result<Self> {
        let bytes = size_of::<Segment>();
        if fs::fstat(&file)?.st_size as usize != bytes {
            return Err(OsError::PROTO);
        }
        let (read_write, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        let anonymous = |bytes| {
            // SAFETY: a new mapping where the kernel chooses.
            unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, read_write, flags) }
        };
        let runtime = Self::of(anonymous(bytes)?.cast(), anonymous(units::PAGE_BYTES)?.cast(), file, path)?;
        // SAFETY: the mapping, which nobody else knows yet; any bytes are valid in it.
        let place = unsafe { core::slice::from_raw_parts_mut(runtime.segment.as_ptr().cast::<u8>(), bytes) };
        let mut end = 0;
        while let Ok(start) = fs::seek(&runtime.file, fs::SeekFrom::Data(end as u64)) {
            let mut at = (start as usize).min(bytes);
            end = (fs::seek(&runtime.file, fs::SeekFrom::Hole(start))? as usize).clamp(at, bytes);
            while at < end {
                match sys::rustix::io::pread(&runtime.file, &mut place[at..end], at as u64)? {
                    0 => return Err(OsError::PROTO),
                    count => at += count,
                }
            }
        }
        Ok(runtime)
    }

    /// Tells whether this process was parted from the array by [`Self::stand_aside`].
    #[inline]
    #[must_use]
    pub fn stands_aside(&self) -> bool {
        self.segment().pid_namespace.load(Ordering::Relaxed) == NO_NAMESPACE
    }
}

/// Makes the zeros at `address`, which stand in for a lost segment, say that all members are out,
/// and notes how the segment was lost. The other processes take over what this process held, as if
/// it had died. Runs in a signal handler.
pub(super) fn lose(address: usize, myself: usize) {
    // SAFETY: as in `make_lost`.
    let me = unsafe { &*(myself as *const Myself) };
    me.lost.store(1, Ordering::Relaxed);
    // SAFETY: the segment's file is open as long as it is mapped.
    let file = unsafe { BorrowedFd::borrow_raw(me.file.load(Ordering::Relaxed) as i32) };
    LOSS.store(if is_whole(file) { Loss::Full } else { Loss::Cut } as u32, Ordering::Relaxed);
    make_lost(address, myself);
    showing::note_loss();
}

/// Tells whether the segment's file has its length.
fn is_whole(file: BorrowedFd<'_>) -> bool {
    fs::fstat(file).is_ok_and(|stat| stat.st_size as usize == size_of::<Segment>())
}

/// Makes the zeros at `address` a segment whose members are all out. Before that, if the segment's
/// file has its length, the attach slot of this process gets a pid there that no process has, so
/// that the others take this process for dead. `myself` is the address of a [`Myself`].
fn make_lost(address: usize, myself: usize) {
    // SAFETY: a page of its own for as long as the segment is mapped.
    let myself = unsafe { &*(myself as *const Myself) };
    if let Some(me) = OwnerId::new(myself.owner.load(Ordering::Relaxed)) {
        // SAFETY: the segment's file is open as long as the process is attached.
        let file = unsafe { BorrowedFd::borrow_raw(myself.file.load(Ordering::Relaxed) as i32) };
        let place = offset_of!(Segment, attach) + slot_of(me) * size_of::<AttachSlot>() + offset_of!(AttachSlot, pid);
        if is_whole(file) {
            let _ = sys::rustix::io::pwrite(file, &NO_PID.to_ne_bytes(), place as u64);
        }
    }
    // SAFETY: as long as a segment, and nobody else knows it (persist::stand_in); any bytes are
    // valid.
    let segment = unsafe { &*(address as *const Segment) };
    segment.out.store(u32::MAX, Ordering::Relaxed);
    segment.epoch.store(u64::MAX, Ordering::Relaxed);
    segment.recovered.store(Recovery::Done as u32, Ordering::Relaxed);
    segment.assembled.store(1, Ordering::Relaxed);
    segment.journal_failed.store(1, Ordering::Relaxed);
}

/// The number of this process' PID namespace (namespaces(7)); 0 if proc is not mounted.
pub(super) fn pid_namespace() -> u64 {
    fs::stat(c"/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::super::attach::tests::segment;
    use super::*;
    use sys::rustix::fs::{CWD, unlinkat};

    #[test]
    fn a_copy_shows_the_segment_as_it_is_and_changes_nothing() {
        let runtime = segment(91);
        runtime.let_in();
        runtime.journal_lanes()[3].0.store(7, Ordering::Relaxed);
        let file = || Raised::new(fs::open(runtime.path.as_str(), entry::OPEN, Mode::empty()).unwrap()).unwrap();
        let copy = Runtime::copy(file(), runtime.path.clone()).unwrap();
        assert_eq!(copy.attached().collect::<alloc::vec::Vec<_>>(), [std::process::id()]);
        assert_eq!(copy.journal_lanes()[3].0.load(Ordering::Relaxed), 7);
        assert_eq!((copy.own(), copy.is_elsewhere(), copy.why_lost()), (None, false, None));
        copy.journal_lanes()[3].0.store(9, Ordering::Relaxed);
        drop(copy);
        assert_eq!(runtime.journal_lanes()[3].0.load(Ordering::Relaxed), 7);
        assert!(!runtime.is_lost());
        let path = runtime.path.clone();
        let cut = file();
        drop(runtime);
        fs::ftruncate(&cut, 4096).unwrap();
        assert_eq!(Runtime::copy(cut, path.clone()).err(), Some(OsError::PROTO));
        unlinkat(CWD, path.as_str(), fs::AtFlags::empty()).unwrap();
    }
}
