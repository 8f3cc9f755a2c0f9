//! Which objects are patched, and when: those loaded before the constructor, and each later one as soon as ld.so has mapped it.
//!
//! The list of loaded objects is ld.so's own (`r_debug`). A later object is noticed because ld.so's own system calls are patched:
//! a file mapping with PROT_EXEC made by ld.so makes the descriptor *pending*; when ld.so closes it, the object is completely
//! mapped, not yet relocated, and nobody runs it.

use super::cache::{Cache, Key};
use super::elf::{Image, Range};
use super::original::Original;
use super::scan::{Found, scan};
use super::site::Site;
use super::trampoline::{Area, Caller};
use crate::arch::bytes::{FILLER, JUMP_BYTES, SYSCALL, jump};
use crate::environment::{Auxiliary, Environment};
use crate::loader::{LinkMap, Loaded, entries};
use crate::lock::Lock;
use crate::sud;
use crate::table;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use heap::vec::Vec;
use sys::rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use sys::rustix::io::dup;
use sys::rustix::mm::{MprotectFlags, mprotect};
use sys::{BorrowedFd, OwnedFd, RawFd};
use units::PAGE_BYTES;

/// Numbers for a message of the constructor and the trace file.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) objects: AtomicU32,
    pub(crate) objects_scanned: AtomicU32,
    pub(crate) sites: AtomicU32,
    pub(crate) sites_moved: AtomicU32,
    pub(crate) sites_hopeless: AtomicU32,
}

/// What was patched so far.
pub(crate) static COUNTS: Counts = Counts {
    objects: AtomicU32::new(0),
    objects_scanned: AtomicU32::new(0),
    sites: AtomicU32::new(0),
    sites_moved: AtomicU32::new(0),
    sites_hopeless: AtomicU32::new(0),
};

/// ld.so's text in memory: mappings made from there are its objects.
static LINKER_TEXT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// The descriptor ld.so maps an object from right now, and where that object's first byte is; -1 for none.
static PENDING: AtomicI32 = AtomicI32::new(-1);
static PENDING_ADDRESS: AtomicUsize = AtomicUsize::new(0);
/// Whether an executable mapping of it was seen.
static PENDING_TEXT: AtomicU32 = AtomicU32::new(0);
/// One thread patches at a time.
static PATCHING: Lock<()> = Lock::new(());

/// The locks of this module, to hold them across a fork.
pub(crate) fn lock() -> &'static crate::lock::RawLock {
    PATCHING.raw()
}

/// An object and its sites, before any is patched.
struct Object {
    image: Image,
    caller: Caller,
    sites: Vec<Site>,
}

/// All that is loaded when the constructor runs.
pub(crate) struct Prepared {
    patcher: Patcher,
    objects: Vec<Object>,
}

/// Finds the sites of everything that is loaded. Called by the constructor, with signals blocked, before there is another thread. None if a debugger has a breakpoint
/// where a jump must go: it would put the old byte back into the middle of that jump.
///
/// # Safety
/// `auxiliary` is the kernel's description of this process; no other thread runs.
pub(crate) unsafe fn prepare(auxiliary: &Auxiliary, environment: &Environment) -> Option<Prepared> {
    let mut patcher = Patcher { cache: Cache::open(environment), area: None, auxiliary: *auxiliary };
    let mut objects = Vec::new();
    // SAFETY: the caller's promise.
    let Some(Loaded { program, linker, first }) = (unsafe { Loaded::find(auxiliary) }) else {
        return Some(Prepared { patcher, objects });
    };
    if let Some(linker) = &linker {
        let text = linker.texts().next().unwrap_or_default();
        LINKER_TEXT[0].store(linker.bias.wrapping_add(text.start) as usize, Ordering::Relaxed);
        LINKER_TEXT[1].store(linker.bias.wrapping_add(text.end) as usize, Ordering::Relaxed);
    }
    objects.extend(patcher.object(program, Caller::Foreign, || open_object(c"/proc/self/exe")));
    // SAFETY: the linker's list, of this process.
    for entry in unsafe { entries(first) } {
        // SAFETY: as above; the entry's object is loaded.
        objects.extend(unsafe { patcher.entry(entry) });
    }
    let is_whole = |object: &Object| object.sites.iter().all(|site| is_original(&object.image, site));
    objects.iter().all(is_whole).then_some(Prepared { patcher, objects })
}

impl Prepared {
    /// Puts the jumps into everything that was loaded. Called as [`prepare`] is.
    pub(crate) fn patch(mut self) {
        for object in &self.objects {
            self.patcher.patch(object);
        }
        self.patcher.seal();
    }
}

/// A file of the host to read from.
fn open_object(path: &CStr) -> Option<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether a system call that goes on at `continuation` is one of ld.so's own.
pub(crate) fn is_linker(continuation: usize) -> bool {
    (LINKER_TEXT[0].load(Ordering::Relaxed)..LINKER_TEXT[1].load(Ordering::Relaxed)).contains(&continuation)
}

/// Notes a file mapping ld.so made: `address` and `offset` of what was mapped from `descriptor`.
pub(crate) fn mapped(descriptor: RawFd, address: usize, offset: usize, executable: bool) {
    if offset == 0 {
        PENDING.store(descriptor, Ordering::Relaxed);
        PENDING_ADDRESS.store(address, Ordering::Relaxed);
        PENDING_TEXT.store(0, Ordering::Relaxed);
    }
    if executable && PENDING.load(Ordering::Relaxed) == descriptor {
        PENDING_TEXT.store(1, Ordering::Relaxed);
        crate::dispatch::watch_descriptor(descriptor);
    }
}

/// Patches the object that was mapped from `descriptor`, which is about to be closed, if there is one.
pub(crate) fn closing(descriptor: RawFd) {
    if PENDING.load(Ordering::Relaxed) != descriptor || PENDING_TEXT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let address = PENDING_ADDRESS.load(Ordering::Relaxed);
    PENDING.store(-1, Ordering::Relaxed);
    crate::dispatch::unwatch_descriptor(descriptor);
    let _patching = PATCHING.lock();
    // SAFETY: ld.so mapped an object there, from its first byte on, and is not done with it.
    let Some(image) = (unsafe { Image::at(address) }) else { return };
    // musl's linker lies in one text with the C library: the program may have mapped a file that looks like an object, but not as its header says.
    if !image.memory().all(|range| is_all_mapped(range.start as usize, range.end as usize)) {
        return;
    }
    let environment = crate::start::environment();
    let mut patcher = Patcher { cache: Cache::open(environment), area: None, auxiliary: Auxiliary::default() };
    // SAFETY: the program's descriptor is open until this call returns.
    let file = || dup(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok();
    let caller = caller_of(&image);
    let Some(mut object) = patcher.object(image, caller, file) else { return };
    let count = object.sites.len();
    object.sites.retain(|site| is_original(&object.image, site));
    if object.sites.len() < count {
        let name = object.image.soname().unwrap_or(c"an object").to_string_lossy();
        crate::report::report!(
            "{name}: a debugger has breakpoints where its system calls are looked after; set them later, and keep this program off the array until then"
        );
    }
    patcher.patch(&object);
    patcher.seal();
}

/// The C library's own objects have ordinary stacks.
fn caller_of(image: &Image) -> Caller {
    let known: [&CStr; 3] = [c"libc.so.6", c"ld-linux-x86-64.so.2", c"libpthread.so.0"];
    if image.soname().is_some_and(|name| known.contains(&name)) { Caller::Libc } else { Caller::Foreign }
}

/// Patches objects one after another into shared trampoline areas.
struct Patcher {
    cache: Cache,
    area: Option<Area>,
    auxiliary: Auxiliary,
}

impl Patcher {
    /// # Safety
    /// `entry` is of ld.so's list and its object is loaded.
    unsafe fn entry(&mut self, entry: &LinkMap) -> Option<Object> {
        let own = crate::start::own_address();
        if entry.bias == 0
            || entry.bias == self.auxiliary.vdso
            || entry.bias == own
            || !is_all_mapped(entry.bias, entry.bias + PAGE_BYTES)
        {
            return None;
        }
        // SAFETY: the page at `bias` is mapped; ld.so loaded the object as its header says.
        let image = unsafe { Image::at(entry.bias) }?;
        if self.is_main_program(&image) {
            return None;
        }
        let caller = caller_of(&image);
        self.object(image, caller, || {
            // SAFETY: as above: an entry of ld.so's list.
            open_object(unsafe { entry.name() })
        })
    }

    fn is_main_program(&self, image: &Image) -> bool {
        image.is_text((self.auxiliary.entry as u64).wrapping_sub(image.bias))
    }

    /// Finds the sites of one object. `open` opens its file, which is asked for only if the sites are not known.
    fn object(&mut self, image: Image, caller: Caller, open: impl Fn() -> Option<OwnedFd>) -> Option<Object> {
        if image.relocates_text() {
            return None;
        }
        COUNTS.objects.fetch_add(1, Ordering::Relaxed);
        let of_file = || Some(Key::of_file(&fstat(open()?).ok()?));
        let key = image.build_id().map(Key::of_build_id).or_else(of_file);
        let known = key.as_ref().and_then(|key| self.cache.load(key, table::fingerprint()));
        let known = known.filter(|sites| sites.iter().all(|site| is_original(&image, site)));
        let sites = known.unwrap_or_else(|| self.scan(&image, key.as_ref(), open().as_ref()));
        Some(Object { image, caller, sites })
    }

    /// Looks for an object's sites in what its `file` has: in memory there may be breakpoints of a debugger, which are no part of any instruction.
    fn scan(&mut self, image: &Image, key: Option<&Key>, file: Option<&OwnedFd>) -> Vec<Site> {
        let original = file.and_then(|file| Original::map(image, file));
        let found = scan(original.as_ref().map_or(image, |original| &original.image), table::wants_site);
        COUNTS.objects_scanned.fetch_add(1, Ordering::Relaxed);
        COUNTS.sites_hopeless.fetch_add(found.hopeless.len() as u32, Ordering::Relaxed);
        // What was found in memory alone may be wrong for the next process.
        if let (Some(key), Some(_)) = (key, &original) {
            self.cache.store(key, table::fingerprint(), &found.sites);
        }
        if crate::start::environment().get(b"CXLRAID_DEBUG_SITES").is_some() {
            report_hopeless(&found);
        }
        found.sites
    }

    fn patch(&mut self, object: &Object) {
        for text in object.image.texts() {
            let here: Vec<Site> = object.sites.iter().filter(|site| text.contains(site.start)).copied().collect();
            if !here.is_empty() {
                self.text(&object.image, text, &here, object.caller);
            }
        }
    }

    /// Writes the trampolines of `sites`, all in `text`, then the jumps.
    fn text(&mut self, image: &Image, text: Range, sites: &[Site], caller: Caller) {
        let memory = Range { start: image.bias.wrapping_add(text.start), end: image.bias.wrapping_add(text.end) };
        let bytes = sites.iter().map(Area::room).sum();
        if !self.area.as_ref().is_some_and(|area| area.suits(memory, bytes)) {
            // Room for the usual objects to come, libc above all.
            self.seal();
            self.area = Area::new(memory, bytes.max(8 * PAGE_BYTES));
        }
        let Some(area) = &mut self.area else { return };
        let jumps: Vec<(u64, u64, &Site)> = sites
            .iter()
            .filter_map(|site| Some((image.bias.wrapping_add(site.start), area.write(site, image.bias, caller)?, site)))
            .collect();
        let (Some(first), Some(last)) = (jumps.first(), jumps.last()) else { return };
        let start = first.0 as usize & !(PAGE_BYTES - 1);
        let end = (last.0 as usize + JUMP_BYTES + usize::from(last.2.displaced)).next_multiple_of(PAGE_BYTES);
        // SAFETY: the pages are text of an object no thread executes now (module invariant); they are made writable to
        // receive the jumps and executable again before anybody returns there.
        unsafe {
            if mprotect(start as *mut _, end - start, MprotectFlags::READ | MprotectFlags::WRITE).is_err() {
                return;
            }
            jumps.iter().for_each(|(at, trampoline, site)| write_jump(*at, *trampoline, site));
            let _ = mprotect(start as *mut _, end - start, MprotectFlags::READ | MprotectFlags::EXEC);
        }
        let stays = jumps.iter().filter(|jump| jump.2.stays());
        stays.for_each(|(_, _, site)| sud::patched(image.bias.wrapping_add(site.syscall()) as usize + SYSCALL.len()));
        COUNTS.sites.fetch_add(jumps.len() as u32, Ordering::Relaxed);
        COUNTS.sites_moved.fetch_add(jumps.iter().filter(|jump| !jump.2.stays()).count() as u32, Ordering::Relaxed);
    }

    fn seal(&mut self) {
        if let Some(area) = self.area.take() {
            area.seal();
        }
    }
}

fn report_hopeless(found: &Found) {
    for (address, number) in &found.hopeless {
        let name = number.map_or("any", |number| table::ROWS[number as usize].name);
        crate::report::report!("no room at {address:#x} ({name})");
    }
}

/// # Safety
/// The displaced bytes of `site`, at `at` in memory, are writable and not being executed.
unsafe fn write_jump(at: u64, trampoline: u64, site: &Site) {
    let Some(bytes) = jump(at, trampoline) else { return };
    // SAFETY: the caller's promise.
    let place = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, site.displaced as usize) };
    place.fill(FILLER);
    place[..JUMP_BYTES].copy_from_slice(&bytes);
}

/// Whether the object still has the bytes the record was made from, and its number is still wanted.
fn is_original(image: &Image, site: &Site) -> bool {
    let original = site.original();
    let range = Range { start: site.start, end: site.start.saturating_add(original.len() as u64) };
    image.is_text(site.start) && image.bytes(range) == Some(original)
}

/// Whether every page from `start` to `end` is mapped.
fn is_all_mapped(start: usize, end: usize) -> bool {
    let start = start & !(PAGE_BYTES - 1);
    let arguments = [start, end.saturating_sub(start), linux_raw_sys::general::MS_ASYNC as usize, 0, 0, 0];
    // Not mincore(2): sandboxes forbid it (systemd's @system-service lacks it).
    // SAFETY: with MS_ASYNC the call only looks at what is mapped (msync(2), notes).
    unsafe { sys::raw::syscall(linux_raw_sys::general::__NR_msync as usize, arguments) == 0 }
}

/// Says on standard error what was patched (`CXLRAID_DEBUG_SITES`).
pub(crate) fn report_counts() {
    let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    crate::report::report!(
        "{} objects ({} scanned), {} sites patched, {} of them moved, {} without room",
        count(&COUNTS.objects),
        count(&COUNTS.objects_scanned),
        count(&COUNTS.sites),
        count(&COUNTS.sites_moved),
        count(&COUNTS.sites_hopeless)
    );
}
