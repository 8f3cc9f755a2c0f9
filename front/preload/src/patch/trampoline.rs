//! The code a patched site jumps to, in areas of executable memory within reach of the object's
//! text.
//!
//! A trampoline holds the displaced instructions, a call of the entry stub, and the ways back
//! (`arch::bytes::Writer`). An area is written while nobody runs it, then made executable for good;
//! a later object gets a new one.

use super::elf::Range;
use super::site::Site;
use crate::arch::bytes::{FRAME_BYTES_MAX, SYSCALL, Writer};
use crate::arch::entry::{foreign_entry, libc_entry};
use core::sync::atomic::{AtomicUsize, Ordering};
use sys::rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use units::PAGE_BYTES;

/// The farthest a trampoline may lie from any byte of the text, with room for both ends.
const REACH: u64 = (1 << 31) - (64 << 20);
/// How many areas a process can have; objects beyond that stay unpatched.
const AREA_COUNT_MAX: usize = 1024;
/// The first two words of an area: the addresses of the stubs.
const SLOT_BYTES: usize = 16;

/// Which stub a trampoline calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// libc or ld.so: no wide vectors alive.
    Libc,
    /// Anything else.
    Foreign,
}

/// Executable areas, for [`contains`]: start and end, in the order they were made.
static AREAS: [[AtomicUsize; 2]; AREA_COUNT_MAX] = [const { [const { AtomicUsize::new(0) }; 2] }; AREA_COUNT_MAX];
static AREA_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether `address` lies in a trampoline. Safe to call from a signal handler.
pub(crate) fn contains(address: usize) -> bool {
    let count = AREA_COUNT.load(Ordering::Acquire).min(AREA_COUNT_MAX);
    AREAS[..count].iter().any(|[start, end]| start.load(Ordering::Relaxed) <= address && address < end.load(Ordering::Relaxed))
}

/// Tells whether `address` lies in a trampoline, at a system call that was moved there. It is the
/// program's own. Safe to call from a signal handler.
pub(crate) fn is_at_syscall(address: usize) -> bool {
    // SAFETY: a thread is at `address`, so an instruction is there, which is longer than its first byte
    // if that is 0x0f.
    contains(address) && unsafe { [*(address as *const u8), *(address as *const u8).wrapping_add(1)] } == SYSCALL
}

/// An area being written.
pub(crate) struct Area {
    base: usize,
    bytes: usize,
    used: usize,
}

impl Area {
    /// An area with room for `bytes` of trampolines within reach of `text` (a range of memory).
    /// None if there is no such place, or if the process has [`AREA_COUNT_MAX`] areas: one more
    /// could not be sealed.
    pub(crate) fn new(text: Range, bytes: usize) -> Option<Self> {
        if AREA_COUNT.load(Ordering::Relaxed) >= AREA_COUNT_MAX {
            return None;
        }
        let bytes = (bytes + SLOT_BYTES).next_multiple_of(PAGE_BYTES);
        let base = map_near(text, bytes)?;
        let slots = [libc_entry(), foreign_entry()];
        // SAFETY: `base` was just mapped writable, is page-aligned and longer than the two words.
        unsafe { (base as *mut [usize; 2]).write(slots) };
        Some(Self { base, bytes, used: SLOT_BYTES })
    }

    /// The bytes the trampoline of `site` needs.
    pub(crate) const fn room(site: &Site) -> usize {
        (site.moved_before as usize + site.moved_after as usize + FRAME_BYTES_MAX + 15) & !15
    }

    /// Whether `bytes` more fit and all of `text` is within reach.
    pub(crate) const fn suits(&self, text: Range, bytes: usize) -> bool {
        self.used + bytes <= self.bytes && is_near(text, self.base, self.bytes)
    }

    /// Writes the trampoline of `site` of an object loaded at `bias`; returns its address.
    pub(crate) fn write(&mut self, site: &Site, bias: u64, caller: Caller) -> Option<u64> {
        let start = (self.base + self.used) as u64;
        let room = Self::room(site).min(self.bytes - self.used);
        // SAFETY: `used..used + room` of this area is mapped writable, written only here, and not
        // executable yet.
        let buffer = unsafe { core::slice::from_raw_parts_mut(start as *mut u8, room) };
        let mut writer = Writer::new(buffer, start);
        let slot = self.base as u64 + if caller == Caller::Libc { 0 } else { 8 };
        let (before, moved) = (site.moved_before as usize, site.moved_before as usize + site.moved_after as usize);
        put_moved(&mut writer, site, 0..before, bias);
        let resume = writer.call_entry(slot);
        if site.stays() {
            writer.jump(bias.wrapping_add(site.syscall()));
            writer.resume_at(resume, bias.wrapping_add(site.syscall()) + 2);
        } else {
            writer.put(&SYSCALL);
            let after = writer.here();
            writer.resume_at(resume, after);
            put_moved(&mut writer, site, before..moved, bias);
            if site.ends == 0 {
                writer.jump(bias.wrapping_add(site.start) + u64::from(site.displaced));
            }
        }
        self.used += writer.finish()?.next_multiple_of(16);
        Some(start)
    }

    /// Makes the area executable and read-only.
    pub(crate) fn seal(self) -> bool {
        let index = AREA_COUNT.load(Ordering::Relaxed);
        let Some(entry) = AREAS.get(index) else { return false };
        // SAFETY: the area is ours alone; nothing writes to it any more.
        let sealed = unsafe { mprotect(self.base as *mut _, self.bytes, MprotectFlags::READ | MprotectFlags::EXEC) };
        if sealed.is_err() {
            return false;
        }
        entry[0].store(self.base, Ordering::Relaxed);
        entry[1].store(self.base + self.bytes, Ordering::Relaxed);
        // Sealing is serialised by the lock of `objects`.
        AREA_COUNT.store(index + 1, Ordering::Release);
        true
    }
}

/// Appends `part` of the moved bytes of `site` and fixes its distances.
fn put_moved(writer: &mut Writer<'_>, site: &Site, part: core::ops::Range<usize>, bias: u64) {
    let base = writer.here() - part.start as u64;
    writer.put(&site.moved[part.clone()]);
    for fixup in site.fixups[..site.fixup_count as usize].iter().filter(|fixup| part.contains(&(fixup.position as usize))) {
        let target = bias.wrapping_add(fixup.target);
        writer.fix(base + u64::from(fixup.position), base + u64::from(fixup.end), target);
    }
}

const fn is_near(text: Range, base: usize, bytes: usize) -> bool {
    let (start, end) = (base as u64, (base + bytes) as u64);
    end.saturating_sub(text.start) < REACH && text.end.saturating_sub(start) < REACH
}

/// Maps `bytes` within reach of `text`: where the kernel likes it if that is near, which it is for
/// libraries, else by trying places around the text.
fn map_near(text: Range, bytes: usize) -> Option<usize> {
    let map = |hint: usize, flags: MapFlags| -> Option<usize> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED a new mapping replaces nothing.
        let base = unsafe { mmap_anonymous(hint as *mut _, bytes, protection, MapFlags::PRIVATE | flags) }.ok()? as usize;
        if is_near(text, base, bytes) {
            return Some(base);
        }
        // SAFETY: just mapped, unused.
        let _ = unsafe { munmap(base as *mut _, bytes) };
        None
    };
    let around = |distance: u64| {
        let below = text.start.checked_sub(distance + bytes as u64).filter(|address| *address >= 0x1_0000);
        let above = text.end.checked_add(distance);
        [below, above].into_iter().flatten()
    };
    map(0, MapFlags::empty()).or_else(|| {
        let distances =
            core::iter::successors(Some(0x1_0000u64), |distance| Some(distance + distance / 2)).take_while(|d| *d < REACH);
        distances.flat_map(around).find_map(|hint| map((hint as usize).next_multiple_of(PAGE_BYTES), MapFlags::FIXED_NOREPLACE))
    })
}
