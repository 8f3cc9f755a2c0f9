//! Which objects are patched, and when: those loaded before the constructor, and each later one as soon as ld.so has mapped it.
//!
//! The list of loaded objects is ld.so's own (`r_debug`). A later object is noticed because ld.so's own system calls are patched:
//! a file mapping with PROT_EXEC made by ld.so makes the descriptor *pending*; when ld.so closes it, the object is completely
//! mapped, not yet relocated, and nobody runs it.

use super::cache::{Cache, Key};
use super::elf::{DT_DEBUG, Image, ProgramHeader, Range};
use super::scan::{Found, scan};
use super::site::Site;
use super::trampoline::{Area, Caller};
use crate::arch::bytes::{FILLER, JUMP_BYTES, SYSCALL, jump};
use crate::environment::{Auxiliary, Environment};
use crate::lock::Lock;
use crate::sud;
use crate::table;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use heap::vec::Vec;
use sys::rustix::fs::{Stat, fstat, stat};
use sys::rustix::mm::{MprotectFlags, mprotect};
use sys::{BorrowedFd, RawFd};
use units::PAGE_BYTES;

/// `struct r_debug` of <link.h>.
#[repr(C)]
struct Debug {
    version: i32,
    first: *const LinkMap,
    breakpoint: usize,
    state: i32,
    /// Where ld.so is mapped.
    linker: usize,
}

/// `struct link_map` of <link.h>.
#[repr(C)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

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

/// Patches everything that is loaded. Called by the constructor, with signals blocked, before there is another thread.
///
/// # Safety
/// `auxiliary` is the kernel's description of this process; no other thread runs.
pub(crate) unsafe fn patch_loaded(auxiliary: &Auxiliary, environment: &Environment) {
    let mut patcher = Patcher { cache: Cache::open(environment), area: None, auxiliary: *auxiliary };
    // SAFETY: the caller's promise: these are the main program's headers.
    let Some(program) = (unsafe { main_program(auxiliary) }) else { return };
    let debug = program.dynamic(DT_DEBUG).filter(|address| *address != 0);
    // The kernel does not name an ld.so that was started by hand and loaded the program itself.
    // SAFETY: DT_DEBUG of a program that runs holds the address of ld.so's r_debug.
    let linker = debug
        .filter(|_| auxiliary.linker == 0)
        .map_or(auxiliary.linker, |address| unsafe { (*(address as *const Debug)).linker });
    // SAFETY: where ld.so is mapped its first byte is its header.
    let linker = if linker == 0 { None } else { unsafe { Image::at(linker) } };
    if let Some(linker) = &linker {
        let text = linker.texts().next().unwrap_or_default();
        LINKER_TEXT[0].store(linker.bias.wrapping_add(text.start) as usize, Ordering::Relaxed);
        LINKER_TEXT[1].store(linker.bias.wrapping_add(text.end) as usize, Ordering::Relaxed);
    }
    let debug = debug.or_else(|| {
        let linker = linker.as_ref()?;
        Some(linker.bias.wrapping_add(linker.symbol(b"_r_debug")?))
    });
    patcher.object(&program, Caller::Foreign, || stat(c"/proc/self/exe").ok());
    // SAFETY: ld.so keeps r_debug and its list consistent while constructors run; only this thread exists.
    let mut map = debug.map_or(core::ptr::null(), |address| unsafe { (*(address as *const Debug)).first });
    while !map.is_null() {
        // SAFETY: as above: `map` is an entry of ld.so's list.
        let entry = unsafe { &*map };
        // SAFETY: as above; the entry's object is loaded.
        unsafe { patcher.entry(entry) };
        map = entry.next;
    }
    patcher.finish();
}

/// # Safety
/// `auxiliary` is the kernel's description of this process.
unsafe fn main_program(auxiliary: &Auxiliary) -> Option<Image> {
    if auxiliary.program_headers == 0 {
        return None;
    }
    let table = auxiliary.program_headers as *const ProgramHeader;
    // SAFETY: the kernel says that so many program headers are mapped there.
    let headers = unsafe { core::slice::from_raw_parts(table, auxiliary.program_header_count) };
    // SAFETY: the kernel mapped the program as its headers say.
    unsafe { Image::new(super::elf::bias_of_table(headers, auxiliary.program_headers as u64), headers) }
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
    let environment = crate::start::environment();
    let mut patcher = Patcher { cache: Cache::open(environment), area: None, auxiliary: Auxiliary::default() };
    // SAFETY: the program's descriptor is open until this call returns.
    let file = || fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok();
    let caller = caller_of(&image);
    patcher.object(&image, caller, file);
    patcher.finish();
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
    unsafe fn entry(&mut self, entry: &LinkMap) {
        let own = crate::start::own_address();
        if entry.bias == 0 || entry.bias == self.auxiliary.vdso || entry.bias == own || !is_mapped(entry.bias) {
            return;
        }
        // SAFETY: the page at `bias` is mapped; ld.so loaded the object as its header says.
        let Some(image) = (unsafe { Image::at(entry.bias) }) else { return };
        if self.is_main_program(&image) {
            return;
        }
        let caller = caller_of(&image);
        self.object(&image, caller, || {
            // SAFETY: ld.so's name of an object is a string that lives as long as the entry.
            stat(unsafe { CStr::from_ptr(entry.name) }).ok()
        });
    }

    fn is_main_program(&self, image: &Image) -> bool {
        image.is_text((self.auxiliary.entry as u64).wrapping_sub(image.bias))
    }

    /// Patches the sites of one object. `file` gives the stat of its file, asked only if it has no build-id.
    fn object(&mut self, image: &Image, caller: Caller, file: impl FnOnce() -> Option<Stat>) {
        if image.relocates_text() {
            return;
        }
        COUNTS.objects.fetch_add(1, Ordering::Relaxed);
        let key = image.build_id().map(Key::of_build_id).or_else(|| file().as_ref().map(Key::of_file));
        let known = key.as_ref().and_then(|key| self.cache.load(key, table::fingerprint()));
        let sites = known.filter(|sites| sites.iter().all(|site| is_original(image, site))).unwrap_or_else(|| {
            let found = scan(image, table::wants_site);
            COUNTS.objects_scanned.fetch_add(1, Ordering::Relaxed);
            COUNTS.sites_hopeless.fetch_add(found.hopeless.len() as u32, Ordering::Relaxed);
            if let Some(key) = &key {
                self.cache.store(key, table::fingerprint(), &found.sites);
            }
            if crate::start::environment().get(b"CXLRAID_DEBUG_SITES").is_some() {
                report_hopeless(&found);
            }
            found.sites
        });
        for text in image.texts() {
            let here: Vec<Site> = sites.iter().filter(|site| text.contains(site.start)).copied().collect();
            if !here.is_empty() {
                self.text(image, text, &here, caller);
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

    fn finish(mut self) {
        self.seal();
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

/// Whether the page at `address` is mapped.
fn is_mapped(address: usize) -> bool {
    let mut resident = 0u8;
    let arguments = [address, PAGE_BYTES, &raw mut resident as usize, 0, 0, 0];
    // SAFETY: mincore() writes one byte, `resident`, for one page.
    unsafe { sys::raw::syscall(linux_raw_sys::general::__NR_mincore as usize, arguments) == 0 }
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
