//! Composing: addresses show the members' chunks, as far as the file reaches.

use super::rights::{Rights, SPACE_GRANULE_BYTES, protect};
use super::runs::Runs;
use super::unit::HUGE_PAGE_BYTES;
use super::{Followed, Mapping, Mappings, PAGE, table};
use crate::report::report;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use file::{FileRef, Mapped, Shown};
use linux_raw_sys::general::{
    __NR_madvise, __NR_mlock2, __NR_mmap, __NR_munlock, __NR_munmap, __NR_nanosleep, MADV_DONTFORK, MAP_LOCKED, MLOCK_ONFAULT,
};
use linux_raw_sys::general::{
    MAP_32BIT, MAP_ABOVE4G, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE,
    MAP_SYNC, MAP_TYPE, PROT_WRITE,
};
use sys::raw::{check, syscall};
use sys::rustix::fs::{MemfdFlags, memfd_create};
use sys::tracking::Tracker;
use sys::{AsRawFd, IntoRawFd, OsError, RawFd};

/// More pieces than this are not composed: the kernel allows a process 65,530 mappings in all.
const PIECE_COUNT_MAX: u64 = 48 << 10;
/// How long all processes have to leave the members for a shared copy, and how often it is asked
/// meanwhile who of them has died.
const SHARE_STEPS: u32 = 5000;
const SHARE_STEP_NS: u64 = 1_000_000;
const SHARE_STEPS_PER_INQUIRY: u32 = 100;
/// How often, and each time after how long, [`await_release`] asks whether a mount still has the file.
const RELEASE_STEPS: u32 = 100;
const RELEASE_STEP_NS: u64 = 2_000_000;
/// In no more than this it is asked whether there are holes at all: to ask takes time in proportion
/// to the data.
const ASKED_BYTES: u64 = 64 << 20;

/// What the program asked for.
pub(crate) struct Wish {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) protection: usize,
    pub(crate) flags: usize,
    pub(crate) offset: u64,
}

/// An empty file: a mapping of it is what lies behind every file's end.
static NOTHING: AtomicI32 = AtomicI32::new(-1);

fn nothing() -> Result<RawFd, OsError> {
    let present = NOTHING.load(Ordering::Acquire);
    if present >= 0 {
        return Ok(present);
    }
    let file = sys::high_fd::raise(memfd_create("cxlraid-behind-the-end", MemfdFlags::CLOEXEC)?)?;
    let fd = file.into_raw_fd();
    NOTHING.store(fd, Ordering::Release);
    Ok(fd)
}

/// Maps a file shared.
///
/// # Errors
/// The errors of mmap(2). `NODEV` if stores could not be followed, or if a program of a mount has the
/// file open such that the program may store to it by a mapping: neither would see the other's stores.
pub(crate) fn map(file: &FileRef, wish: &Wish, may_write: bool) -> Result<usize, OsError> {
    let bytes = wish.bytes.checked_next_multiple_of(PAGE).ok_or(OsError::NOMEM)?;
    if wish.protection & PROT_WRITE as usize != 0 {
        await_release(file)?;
    }
    table().composing(|table| table.place(file, wish, bytes, may_write))
}

/// Waits, not for long, while a mount has the file for a program that may store to it by a mapping:
/// the kernel tells the mount of the last close a moment after close(2).
///
/// # Errors
/// `NODEV` if the program keeps the file open.
fn await_release(file: &FileRef) -> Result<(), OsError> {
    for _ in 0..RELEASE_STEPS {
        if !file.is_cached_by_others() {
            return Ok(());
        }
        rest(RELEASE_STEP_NS);
    }
    Err(OsError::NODEV)
}

/// Whether a member is about to go out.
pub(super) fn is_member_leaving() -> bool {
    crate::array::namespace().is_ok_and(|namespace| !namespace.files().array().runtime().leaving().is_empty())
}

/// Addresses nobody else gets meanwhile.
pub(super) fn reserve(address: usize, bytes: usize, place: usize) -> Result<usize, OsError> {
    let flags = place | (MAP_PRIVATE | MAP_ANONYMOUS) as usize | linux_raw_sys::general::MAP_NORESERVE as usize;
    kernel_map(address, bytes, 0, flags, usize::MAX, 0)
}

/// Reserves addresses again where the kernel has refused to map a further piece: it refuses to map
/// anything over them too, so they are given up for an instant.
///
/// # Errors
/// What mmap(2) says. The addresses are not the caller's any more.
pub(crate) fn reserve_again(start: usize, bytes: usize) -> Result<usize, OsError> {
    // SAFETY: the caller has reserved the range, or the program wants it to be replaced (MAP_FIXED).
    let _ = unsafe { syscall(__NR_munmap as usize, [start, bytes, 0, 0, 0, 0]) };
    reserve(start, bytes, MAP_FIXED_NOREPLACE as usize)
}

/// Reserves addresses such that file offsets that are multiples of a huge page lie at addresses
/// that are.
fn reserve_for_huge(bytes: usize, offset: u64) -> Result<usize, OsError> {
    let Some(wide) = bytes.checked_add(HUGE_PAGE_BYTES) else { return Err(OsError::NOMEM) };
    let reserved = reserve(0, wide, 0)?;
    let start = reserved + (offset as usize).wrapping_sub(reserved) % HUGE_PAGE_BYTES;
    for (from, to) in [(reserved, start), (start + bytes, reserved + wide)] {
        if from < to {
            // SAFETY: reserved above, and the program does not know it.
            let _ = unsafe { syscall(__NR_munmap as usize, [from, to - from, 0, 0, 0, 0]) };
        }
    }
    Ok(start)
}

/// A mapping made by the kernel, where the program asked for one or inside a range that is reserved
/// for it. The descriptor of an anonymous mapping is `usize::MAX`.
pub(crate) fn kernel_map(
    address: usize,
    bytes: usize,
    protection: usize,
    flags: usize,
    fd: usize,
    offset: u64,
) -> Result<usize, OsError> {
    // SAFETY: a new mapping where the program asked for one, or inside a range reserved for it.
    check(unsafe { syscall(__NR_mmap as usize, [address, bytes, protection, flags, fd, offset as usize]) })
}

impl Mapping {
    /// The address up to which the file reaches now.
    fn reach(&self) -> usize {
        let pages_end = self.file.size().next_multiple_of(PAGE as u64);
        self.start + pages_end.saturating_sub(self.offset).min((self.end - self.start) as u64) as usize
    }
}

impl Mapping {
    /// What lies behind the end is locked as the mapping is, but for the pages, of which there are
    /// none: msync(2) and madvise(2) ask only whether the addresses are locked. What the limit for
    /// locked memory (RLIMIT_MEMLOCK) does not permit is left.
    fn lock_rest(&self) {
        if self.is_made_locked() && self.composed < self.end {
            let (start, bytes) = (self.composed, self.end - self.composed);
            // SAFETY: addresses of this mapping, of which no page is fetched.
            let _ = unsafe { syscall(__NR_mlock2 as usize, [start, bytes, MLOCK_ONFAULT as usize, 0, 0, 0]) };
        }
    }

    /// Addresses that are about to be mapped over are counted once only.
    fn unlock(&self, start: usize, end: usize) {
        if self.is_made_locked() {
            // SAFETY: addresses of this mapping; nothing is lost but the lock.
            let _ = unsafe { syscall(__NR_munlock as usize, [start, end - start, 0, 0, 0, 0]) };
        }
    }

    const fn is_made_locked(&self) -> bool {
        self.flags & MAP_LOCKED as usize != 0
    }
}

/// Whether a file of so many bytes is small enough for its writable mappings to show a shared copy:
/// `CXLRAID_MAP_COPY_BYTES`, 1 MiB if that is not set.
fn is_small(bytes: u64) -> bool {
    const BYTES_MAX: u64 = 1 << 20;
    let number = |text: &[u8]| core::str::from_utf8(text).ok()?.trim().parse().ok();
    bytes <= crate::own::environment().get(b"CXLRAID_MAP_COPY_BYTES").and_then(number).unwrap_or(BYTES_MAX)
}

impl Mappings {
    /// Maps `bytes` of a file shared.
    fn place(&mut self, file: &FileRef, wish: &Wish, bytes: usize, may_write: bool) -> Result<usize, OsError> {
        let kept = wish.flags & !(MAP_TYPE | MAP_FIXED | MAP_FIXED_NOREPLACE) as usize;
        let place = wish.flags & (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_32BIT | MAP_ABOVE4G) as usize;
        let start = if place & MAP_FIXED as usize != 0 && wish.address.is_multiple_of(PAGE) {
            self.replace(wish.address, wish.address.saturating_add(bytes), || reserve(wish.address, bytes, place))?
        } else if place == 0 && wish.address == 0 && bytes >= HUGE_PAGE_BYTES {
            reserve_for_huge(bytes, wish.offset)?
        } else {
            reserve(wish.address, bytes, place)?
        };
        let file = Shown::new(file);
        let mapping = |copied: bool| Mapping {
            start,
            end: start + bytes,
            offset: wish.offset,
            protection: wish.protection,
            flags: kept,
            may_write,
            composed: start,
            stored: false,
            followed: false,
            source: file.mapping_source(),
            copied,
            sealed: false,
            rights: None,
            answered: file.news(),
            dont_fork: false,
            wants_huge: super::unit::wants_huge_by_default(),
            shows_huge: false,
            broken: None,
            quiet_since: None,
            pass: None,
            file: file.clone(),
        };
        let copied = self.shows_copy(&file, wish);
        let mut made = self.establish(mapping(copied));
        if made == Err(OsError::NOMEM) && !copied && file.piece_count(bytes as u64).is_some_and(|count| count > 1) {
            // The process has nearly as many areas of memory as there may be (vm.max_map_count). A
            // shared copy takes one.
            reserve_again(start, bytes)?;
            made = self.establish(mapping(true)).or(made);
        }
        match made {
            Ok(()) => Ok(start),
            Err(error) => {
                // SAFETY: the range was reserved above, and the program does not know it.
                let _ = unsafe { syscall(__NR_munmap as usize, [start, bytes, 0, 0, 0, 0]) };
                Err(error)
            }
        }
    }

    /// Whether a new mapping shows a shared copy of the file: if there is one, if the members
    /// cannot be shown, or if the file is small and may be stored to. What programs tell each other
    /// through small files (the index of SQLite's WAL mode, mutexes) is then not lost with a member
    /// whose memory fails; and a copy of so little costs nothing.
    fn shows_copy(&mut self, file: &FileRef, wish: &Wish) -> bool {
        let bytes = wish.bytes.next_multiple_of(PAGE);
        if file.is_copied() || !self.can_compose(file, wish.offset, bytes) {
            return true;
        }
        let stores = wish.protection & PROT_WRITE as usize != 0 && wish.flags & MAP_SYNC as usize == 0;
        let prefers = stores && file.has_redundancy() && is_small(file.size());
        // Not while others store to the members, and not for want of memory.
        prefers && self.hold(file).is_ok() && file.share_copy().is_ok()
    }

    fn can_compose(&self, file: &FileRef, offset: u64, bytes: usize) -> bool {
        let reach = file.size().saturating_sub(offset).min(bytes as u64);
        let present = self.list.iter().filter_map(|mapping| mapping.file.piece_count((mapping.composed - mapping.start) as u64));
        file.piece_count(reach).is_some_and(|count| count + present.sum::<u64>() <= PIECE_COUNT_MAX)
    }

    /// Composes a mapping whose addresses are reserved, and puts it into the table.
    pub(super) fn establish(&mut self, mut mapping: Mapping) -> Result<(), OsError> {
        super::fault::prepare_stack()?;
        // Everything is behind the end, until it is composed.
        show_nothing(&mapping, mapping.start, mapping.end)?;
        match self.prepare(&mut mapping).and_then(|()| self.follow_size(&mut mapping)) {
            Ok(_) => {
                if is_member_leaving() {
                    self.withhold(&mut mapping);
                }
                self.insert(mapping);
                Ok(())
            }
            Err(error) => {
                self.forget_files();
                Err(error)
            }
        }
    }

    fn prepare(&mut self, mapping: &mut Mapping) -> Result<(), OsError> {
        loop {
            if mapping.copied {
                self.hold(&mapping.file)?;
                self.share(&mapping.file)?;
            }
            if !mapping.is_writable() {
                // Also what is only loaded is to come from another member when one goes out, and
                // from a shared copy when there is one.
                super::helper::start();
                return Ok(());
            }
            match self.begin_following(mapping) {
                // A shared copy was made meanwhile.
                Err(OsError::AGAIN) if !mapping.copied => mapping.copied = true,
                result => return result,
            }
        }
    }

    /// Makes the file's shared copy. Mappings that show the members leave them first, those of
    /// other processes too.
    ///
    /// # Errors
    /// `NODEV` if one does not.
    fn share(&mut self, file: &FileRef) -> Result<(), OsError> {
        for step in 0..SHARE_STEPS {
            let shared = file.share_copy();
            if !matches!(shared, Ok(()) | Err(OsError::AGAIN)) {
                return shared;
            }
            if shared.is_err() {
                file.want_copy(true);
            }
            let attribute = file.attribute();
            for index in 0..self.list.len() {
                if self.list[index].file.attribute() == attribute && !self.list[index].copied {
                    let mut mapping = self.list.remove(index);
                    let _ = self.follow_size(&mut mapping);
                    self.list.insert(index, mapping);
                }
            }
            if shared.is_ok() {
                return Ok(());
            }
            if step % SHARE_STEPS_PER_INQUIRY == 0
                && let Some(followed) = self.files.iter().find(|followed| followed.mapped.file().attribute() == attribute)
            {
                let _ = followed.mapped.finish_others();
            }
            rest(SHARE_STEP_NS);
        }
        file.want_copy(false);
        Err(OsError::NODEV)
    }

    /// Keeps a record of this process' mappings of the file.
    pub(super) fn hold(&mut self, file: &FileRef) -> Result<&Followed, OsError> {
        let attribute = file.attribute();
        let present = self.files.iter().position(|followed| followed.mapped.file().attribute() == attribute);
        let index = match present {
            Some(index) => index,
            None => {
                self.files.push(Followed { mapped: Mapped::new(file)?, owed: Runs::new() });
                self.unused.take(attribute);
                self.files.len() - 1
            }
        };
        Ok(&self.files[index])
    }

    /// From now on what is stored through the mapping is followed. It cannot be stored to yet. If
    /// stores land on another copy than the one it shows, it shows nothing until
    /// [`Self::follow_size`].
    ///
    /// # Errors
    /// `AGAIN` if there is a shared copy now, and the mapping does not show it; `NODEV` if a program
    /// has the file open through a mount such that it may store to it by a mapping.
    pub(super) fn begin_following(&mut self, mapping: &mut Mapping) -> Result<(), OsError> {
        if mapping.followed {
            return Ok(());
        }
        if !mapping.stored {
            self.hold(&mapping.file)?.mapped.begin_storing()?;
        }
        let (start, end) = (mapping.offset, mapping.end_offset());
        // The kernel marks pages that are not there yet as protected, and where no page cache is
        // the fault of a store does not get rid of the mark (insert_pfn, Linux 6.12): it would
        // fault for ever.
        let tracked = self.track() && (mapping.copied || !mapping.file.is_direct());
        if !mapping.copied && mapping.file.stores_into_copy() {
            self.hold(&mapping.file)?;
            self.share(&mapping.file)?;
            return Err(OsError::AGAIN);
        }
        let mapped = &self.hold(&mapping.file)?.mapped;
        if mapping.copied {
            mapped.gather();
        } else {
            mapped.store_directly()?;
            // A member that has come back since the mapping was composed is the one on which stores
            // land: from now on no other comes back.
            let source = mapping.file.mapping_source();
            if mapping.source != source {
                show_nothing(mapping, mapping.start, mapping.composed)?;
                (mapping.composed, mapping.source) = (mapping.start, source);
            }
        }
        mapping.stored = true;
        if !mapping.copied && !mapping.file.has_redundancy() {
            super::helper::start();
            return Ok(());
        }
        mapped.cover(start, end)?;
        if !tracked {
            mapping.rights = Some(Rights::for_stores());
        }
        mapping.followed = true;
        super::helper::start();
        Ok(())
    }

    /// A mapping of members that cannot be shown any more, or of a file that has a shared copy now,
    /// shows the copy from now on. False if that must wait: another process still stores to the
    /// members.
    fn leave_members(&mut self, mapping: &mut Mapping) -> Result<bool, OsError> {
        if mapping.stored && !mapping.sealed {
            // First, so that no granule gets the right back for the lock that it holds.
            mapping.sealed = true;
            self.keep_out(mapping, mapping.start, mapping.end);
        }
        let attribute = mapping.file.attribute();
        let stores = |other: &Mapping| other.stored && !other.copied && !other.sealed && other.file.attribute() == attribute;
        if self.list.iter().any(|other| stores(other)) {
            return Ok(false);
        }
        self.hold(&mapping.file)?.mapped.store_no_more();
        match mapping.file.share_copy() {
            Ok(()) => {}
            Err(OsError::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.show_copy(mapping)?;
        for index in 0..self.list.len() {
            if !self.list[index].copied && self.list[index].file.attribute() == attribute {
                let mut other = self.list.remove(index);
                let shown = self.show_copy(&mut other);
                self.list.insert(index, other);
                shown?;
            }
        }
        let stores = |other: &Mapping| other.stored && other.file.attribute() == attribute;
        if mapping.stored || self.list.iter().any(|other| stores(other)) {
            self.hold(&mapping.file)?.mapped.gather();
        }
        Ok(true)
    }

    /// The mapping shows the shared copy from the next fault on.
    fn show_copy(&mut self, mapping: &mut Mapping) -> Result<(), OsError> {
        show_nothing(mapping, mapping.start, mapping.end)?;
        (mapping.copied, mapping.sealed, mapping.composed) = (true, false, mapping.start);
        (mapping.quiet_since, mapping.pass) = (None, None);
        // Without redundancy nothing was followed until now.
        if mapping.stored { self.begin_following(mapping) } else { Ok(()) }
    }

    /// A member is about to go out ([`array::Runtime::leaving`]): until it is, and no process'
    /// mappings show it any more, nothing is stored to the members through this mapping. What was
    /// stored is followed.
    pub(super) fn withhold(&mut self, mapping: &mut Mapping) {
        if mapping.stored && !mapping.copied && !mapping.sealed {
            // First, so that no granule gets the right back for the lock that it holds.
            mapping.sealed = true;
            self.keep_out(mapping, mapping.start, mapping.end);
        }
    }

    /// The file was cut: what was stored behind its new end before this process heard of it is not
    /// to show when it grows again.
    fn forget_cut(&mut self, mapping: &Mapping, start: usize, end: usize) {
        if !mapping.stored || mapping.copied {
            return;
        }
        let _ = protect(start, end, 0);
        let is_stored_to = self.tracker_of(mapping).is_none_or(|tracker| {
            let mut regions = [const { MaybeUninit::uninit() }; 1];
            let mut is_clean = |from, to| tracker.written(from, to, false, &mut regions).is_ok_and(|(found, _)| found.is_empty());
            let mut at = start;
            while let Some((from, to)) = mapping.touched(at, end) {
                if !is_clean(from, to) {
                    return true;
                }
                at = to;
            }
            false
        });
        let attribute = mapping.file.attribute();
        let followed = self.files.iter_mut().find(|followed| followed.mapped.file().attribute() == attribute);
        if let Some(followed) = followed.filter(|_| is_stored_to) {
            let (start, end) = (mapping.offset_at(start), mapping.offset_at(end));
            if followed.mapped.follow_cut(start, end).is_err() {
                followed.owe((start, end));
            }
        }
    }

    /// What tells which pages of this mapping are stored to, if it is the kernel.
    pub(super) fn tracker_of(&self, mapping: &Mapping) -> Option<&Tracker> {
        self.tracker.as_ref().filter(|_| mapping.followed && !mapping.tells_stores())
    }

    /// Whether the kernel can tell which pages are stored to.
    pub(super) fn track(&mut self) -> bool {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if self.tracker.is_some() {
            return true;
        }
        let wanted = crate::own::environment().get(b"CXLRAID_MAP_TRACKING") != Some(b"protect");
        match if wanted { Tracker::new() } else { Err(OsError::OPNOTSUPP) } {
            Ok(tracker) => self.tracker = Some(tracker),
            Err(error) => {
                if wanted && !TOLD.swap(true, Ordering::Relaxed) {
                    report!(
                        "userfaultfd cannot be used ({error}); stores to shared mappings are noticed by page protection, which is slower"
                    );
                }
            }
        }
        self.tracker.is_some()
    }

    /// Gets space for stores to a range of the file that is about to be shown or to become
    /// writable, or sees to it that stores ask for it.
    pub(super) fn get_space(&mut self, mapping: &mut Mapping, start: u64, end: u64) {
        if mapping.rights.is_some() || !mapping.file.has_holes() {
            return;
        }
        let (bytes, file) = (end - start, &mapping.file);
        let has_space = bytes <= SPACE_GRANULE_BYTES && file.provide(start, end).is_ok()
            || bytes <= ASKED_BYTES && file.is_filled(start, end);
        if !has_space {
            mapping.rights = Some(Rights::for_space());
        }
    }

    /// Takes the right to store back from all granules, also from what is lent or holds a lock, and
    /// follows them. All of the mapping is protected before the first granule is followed: a call
    /// that a granule is lent to may store to it until then.
    ///
    /// # Errors
    /// As for [`Mapping::take_back_all`]. What cannot be followed is owed.
    pub(super) fn revoke(&mut self, mapping: &mut Mapping) -> Result<(), OsError> {
        let taken = mapping.take_back_all()?;
        if mapping.tells_stores() {
            for granule in taken {
                let _ = self.make_follow(mapping, [granule]);
            }
        }
        Ok(())
    }

    /// Makes the mapping show the file as far as it reaches now. Says whether anything changed.
    pub(super) fn follow_size(&mut self, mapping: &mut Mapping) -> Result<bool, OsError> {
        let changed = self.follow_reach(mapping);
        if !matches!(changed, Ok(false)) {
            mapping.give_held();
        }
        mapping.lock_rest();
        changed
    }

    fn follow_reach(&mut self, mapping: &mut Mapping) -> Result<bool, OsError> {
        let withheld = mapping.sealed && is_member_leaving();
        let moved = !mapping.copied && (mapping.file.is_copied() || mapping.file.piece_count(0).is_none());
        if moved && (withheld || !self.leave_members(mapping)?) {
            return Ok(false);
        }
        let opens = mapping.sealed && !withheld;
        if opens {
            self.hold(&mapping.file)?.mapped.store_directly()?;
        }
        // The source is asked for when no member can come back any more under stores through this
        // mapping.
        let source = mapping.file.mapping_source();
        let is_elsewhere = !mapping.copied && mapping.source != source;
        if opens {
            mapping.sealed = false;
            if !is_elsewhere {
                self.revoke(mapping)?;
                mapping.give_held();
            }
        }
        if is_elsewhere {
            // A copy went out: another is shown. What was stored to one that failed at once, its
            // loss not being announced, and was not followed, is lost with it.
            self.keep_out(mapping, mapping.start, mapping.end);
            show_nothing(mapping, mapping.start, mapping.end)?;
            (mapping.composed, mapping.source) = (mapping.start, source);
        }
        let wanted = mapping.reach();
        if mapping.rights.is_some() && wanted != mapping.composed {
            // A granule that has the right may lie between what is composed and what is not.
            let _ = self.revoke(mapping);
        }
        if wanted < mapping.composed {
            self.forget_cut(mapping, wanted, mapping.composed);
            show_nothing(mapping, wanted, mapping.composed)?;
            mapping.composed = wanted;
            return Ok(true);
        }
        if wanted == mapping.composed {
            return Ok(moved);
        }
        let (start, bytes) = (mapping.composed, wanted - mapping.composed);
        (mapping.quiet_since, mapping.pass) = (None, None);
        if mapping.is_writable() {
            self.get_space(mapping, mapping.offset_at(start), mapping.offset_at(wanted));
        }
        mapping.unlock(start, wanted);
        if !show_file(mapping, start, bytes)? {
            let has_changed = mapping.file.mapping_source() != source || mapping.file.piece_count(0).is_none();
            // A member went out: another is shown, or a shared copy.
            return if has_changed && !mapping.copied { self.follow_reach(mapping) } else { Err(OsError::IO) };
        }
        if mapping.followed {
            self.watch(mapping, start, bytes)?;
            if !mapping.sealed {
                mapping.open_stores(start, wanted)?;
            }
        }
        mapping.composed = wanted;
        Ok(true)
    }
}

fn rest(ns: u64) {
    let time = [0, ns];
    // SAFETY: the kernel reads two words.
    unsafe { syscall(__NR_nanosleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

/// Makes addresses of the mapping show the pieces of the file, closed to stores if those are to be
/// watched ([`Mapping::open_stores`]); false if a piece cannot be reached any more.
pub(super) fn show_file(mapping: &Mapping, start: usize, bytes: usize) -> Result<bool, OsError> {
    // Whatever the descriptor allows: mprotect comes to us. Opened anew and closed, the backing
    // file would lose the program's locks on it (fcntl(2)).
    let mut at = start;
    let mut is_lost = false;
    let shown = mapping.file.for_each_piece(mapping.copied, mapping.offset_at(start), bytes as u64, |piece| {
        let held = piece.backing.fd()?;
        let fd = held.as_raw_fd() as usize;
        let kind = if mapping.flags & MAP_SYNC as usize != 0 { MAP_SHARED_VALIDATE } else { MAP_SHARED };
        let flags = mapping.flags | (kind | MAP_FIXED) as usize;
        kernel_map(at, piece.bytes as usize, mapping.unwatched_protection(), flags, fd, piece.member_offset)
            .inspect_err(|&error| is_lost = !mapping.copied && mapping.file.is_lost_with(piece.slot, error))?;
        at += piece.bytes as usize;
        Ok(())
    });
    keep_from_children(mapping, start, start + bytes);
    if is_lost { Ok(false) } else { shown }
}

/// What the program advised of the mapping is advised of new pieces of it.
fn keep_from_children(mapping: &Mapping, start: usize, end: usize) {
    if mapping.dont_fork {
        // SAFETY: advice about pages of this mapping.
        let _ = unsafe { syscall(__NR_madvise as usize, [start, end - start, MADV_DONTFORK as usize, 0, 0, 0]) };
    }
}

/// Makes addresses of the mapping lie behind the end.
pub(super) fn show_nothing(mapping: &Mapping, start: usize, end: usize) -> Result<(), OsError> {
    if start == end {
        return Ok(());
    }
    let protection = if mapping.may_write { mapping.protection } else { mapping.protection & !(PROT_WRITE as usize) };
    kernel_map(start, end - start, protection, (MAP_SHARED | MAP_FIXED) as usize, nothing()? as usize, 0)?;
    keep_from_children(mapping, start, end);
    Ok(())
}
