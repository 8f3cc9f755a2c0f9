//! Which objects are patched, and when. An *object* is an ELF file in memory: the program or a
//! shared library. Those that are loaded before the library's constructor runs are patched by it,
//! each later one as soon as ld.so has mapped it.
//!
//! The list of loaded objects is ld.so's own (`r_debug`). A later object is noticed because ld.so's
//! own system calls are patched. ld.so's mapping of offset 0 of a file makes its descriptor
//! *pending*. An executable mapping of the same descriptor marks it as an object with code. When
//! ld.so then closes the descriptor, the object is completely mapped, not yet relocated, and no
//! thread runs it.
//!
//! Invariant: no thread executes an object's text while its jumps are written. The constructor
//! writes them with signals blocked, before there is another thread; [`closing`] before ld.so is
//! done with the object.

use super::cache::{Cache, Key, fingerprint};
use super::elf::{Image, Range, header_of, headers_of};
use super::go::is_of_go;
use super::original::Original;
use super::scan::{Found, scan};
use super::site::{Gap, Site};
use super::trampoline::{Area, Caller};
use crate::arch::bytes::{FILLER, JUMP_BYTES, SYSCALL, jump};
use crate::environment::{Auxiliary, Environment};
use crate::loader::{LinkMap, Loaded, entries};
use crate::lock::Lock;
use crate::sud;
use crate::table;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use heap::borrow::Cow;
use heap::string::String;
use heap::vec::Vec;
use sys::rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use sys::rustix::io::dup;
use sys::rustix::mm::{MprotectFlags, mprotect};
use sys::{BorrowedFd, OwnedFd, RawFd};
use units::{PAGE_BYTES, Shown};

/// How many objects and sites this process has met, for [`report_counts`].
pub(crate) struct Counts {
    pub(crate) objects: AtomicU32,
    /// Objects whose sites were not in the cache.
    pub(crate) objects_scanned: AtomicU32,
    /// Sites that were patched.
    pub(crate) sites: AtomicU32,
    /// Patched sites whose `syscall` was moved into the trampoline.
    pub(crate) sites_moved: AtomicU32,
    /// Sites in scanned objects that have no room for a jump.
    pub(crate) sites_without_room: AtomicU32,
}

/// The counts up to now.
pub(crate) static COUNTS: Counts = Counts {
    objects: AtomicU32::new(0),
    objects_scanned: AtomicU32::new(0),
    sites: AtomicU32::new(0),
    sites_moved: AtomicU32::new(0),
    sites_without_room: AtomicU32::new(0),
};

/// Start and end of ld.so's text. A file mapping that a system call from there makes belongs to an
/// object that ld.so loads.
static LINKER_TEXT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// The descriptor from which ld.so maps an object right now, or -1. ld.so's own lock guards this
/// word and the next two: it loads one object at a time.
static PENDING: AtomicI32 = AtomicI32::new(-1);
/// Where the first byte of the pending descriptor's file is mapped.
static PENDING_ADDRESS: AtomicUsize = AtomicUsize::new(0);
/// Whether the pending descriptor's file has an executable mapping.
static PENDING_HAS_TEXT: AtomicBool = AtomicBool::new(false);
/// One thread patches later objects at a time.
static PATCHING: Lock<()> = Lock::new(());

/// The lock of this module, for fork to hold.
pub(crate) fn lock() -> &'static crate::lock::RawLock {
    PATCHING.raw()
}

/// An object and its sites, before any is patched.
struct Object {
    image: Image,
    caller: Caller,
    sites: Vec<Site>,
    gap: Option<Gap>,
}

/// The objects to be patched of those that are loaded when the constructor runs.
pub(crate) struct Prepared {
    patcher: Patcher,
    objects: Vec<Object>,
}

/// Finds the sites of all objects that are loaded. The constructor calls this, with signals
/// blocked, before there is another thread.
///
/// # Errors
/// The program cannot be served; the text says why, as a phrase after "this program". Either the
/// library cannot reach the system calls of an object ([`Gap`]): they would read and write one
/// member alone. Or the bytes at some site are not the original ones. A debugger's breakpoint does
/// that. The debugger would later put its old byte back, into the middle of the jump.
///
/// # Safety
/// `auxiliary` is the kernel's description of this process; no other thread runs.
pub(crate) unsafe fn prepare(auxiliary: &Auxiliary, environment: &Environment) -> Result<Prepared, String> {
    let mut patcher = Patcher { cache: Cache::open(environment), area: None, auxiliary: *auxiliary };
    let mut objects = Vec::new();
    // SAFETY: the caller's promise.
    let Some(Loaded { program, linker, first }) = (unsafe { Loaded::find(auxiliary) }) else {
        return Ok(Prepared { patcher, objects });
    };
    if let Some(linker) = &linker {
        let text = linker.texts().next().unwrap_or_default();
        LINKER_TEXT[0].store(linker.bias.wrapping_add(text.start) as usize, Ordering::Relaxed);
        LINKER_TEXT[1].store(linker.bias.wrapping_add(text.end) as usize, Ordering::Relaxed);
    }
    let program = patcher.object(program, Caller::Foreign, || open_object(c"/proc/self/exe"));
    if let Some(gap) = program.gap {
        return Err(heap::format!("{gap}"));
    }
    objects.push(program);
    // SAFETY: the linker's list, of this process.
    for entry in unsafe { entries(first) } {
        // SAFETY: as above; the entry's object is loaded.
        let Some(object) = (unsafe { patcher.entry(entry) }) else { continue };
        if let Some(gap) = object.gap {
            // SAFETY: an entry of ld.so's list.
            return Err(heap::format!("uses {}, which {gap}", Shown(unsafe { entry.name() }.to_bytes())));
        }
        objects.push(object);
    }
    let has_original_bytes = |object: &Object| object.sites.iter().all(|site| is_original(&object.image, site));
    if objects.iter().all(has_original_bytes) {
        Ok(Prepared { patcher, objects })
    } else {
        Err("has a debugger's breakpoints where its system calls are looked after (set them once it runs)".into())
    }
}

impl Prepared {
    /// Writes the jumps into all these objects. Called where [`prepare`] was called: with signals
    /// blocked, before there is another thread.
    pub(crate) fn patch(mut self) {
        for object in &self.objects {
            self.patcher.patch(object);
        }
        self.patcher.seal();
    }
}

/// Opens a file by the kernel's path. None if it cannot be opened.
fn open_object(path: &CStr) -> Option<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether the instruction behind a system call, `continuation`, lies in ld.so's text.
pub(crate) fn is_linker(continuation: usize) -> bool {
    (LINKER_TEXT[0].load(Ordering::Relaxed)..LINKER_TEXT[1].load(Ordering::Relaxed)).contains(&continuation)
}

/// Called when ld.so has mapped a file from `descriptor`, its bytes from `offset` on at `address`.
/// After an executable mapping of the pending descriptor, closing the descriptor is reported to
/// [`closing`].
pub(crate) fn mapped(descriptor: RawFd, address: usize, offset: usize, executable: bool) {
    if offset == 0 {
        PENDING.store(descriptor, Ordering::Relaxed);
        PENDING_ADDRESS.store(address, Ordering::Relaxed);
        PENDING_HAS_TEXT.store(false, Ordering::Relaxed);
    }
    if executable && PENDING.load(Ordering::Relaxed) == descriptor {
        PENDING_HAS_TEXT.store(true, Ordering::Relaxed);
        crate::filter::watch_descriptor(descriptor);
    }
}

/// Called before ld.so closes `descriptor`: patches the object that was mapped from it, if there is
/// one.
pub(crate) fn closing(descriptor: RawFd) {
    if PENDING.load(Ordering::Relaxed) != descriptor || !PENDING_HAS_TEXT.load(Ordering::Relaxed) {
        return;
    }
    let address = PENDING_ADDRESS.load(Ordering::Relaxed);
    PENDING.store(-1, Ordering::Relaxed);
    crate::descriptors::unwatch_descriptor(descriptor);
    let _patching = PATCHING.lock();
    // With musl, linker and C library are one object, so every mmap(2) of the program looks like
    // the linker's. The program may have mapped an ELF file as plain data, with less of it in
    // memory than its header says. Such a file is left alone.
    if !is_all_mapped(address, address + PAGE_BYTES) {
        return;
    }
    // SAFETY: the program's descriptor is open until this call returns.
    let file = || dup(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok();
    // SAFETY: the file's first page is mapped, and with it the headers that `at` reads.
    let in_file = || unsafe { Image::of_file(&file()?, address) };
    // SAFETY: as above.
    let Some(image) = (unsafe { Image::at(address) }).or_else(in_file) else { return };
    if !image.memory().all(|range| is_all_mapped(range.start as usize, range.end as usize)) {
        return;
    }
    let environment = crate::own::environment();
    // Only `entry` needs the auxiliary vector.
    let mut patcher = Patcher { cache: Cache::open(environment), area: None, auxiliary: Auxiliary::default() };
    let caller = caller_of(&image);
    let mut object = patcher.object(image, caller, file);
    if let Some(gap) = object.gap {
        let name = object_name(&object.image);
        crate::report::report!(
            "{name} {gap}: these calls are not served, and what they do to files of the array reaches one member alone; keep {name} away from the array"
        );
    }
    if object.sites.is_empty() {
        return;
    }
    if !crate::loader::may_make_executable() {
        let name = object_name(&object.image);
        return crate::report::report!(
            "{name}: this process may not make memory executable any more, so the library cannot serve the calls of {name}; load {name} before PR_SET_MDWE or the filter is set"
        );
    }
    let count = object.sites.len();
    object.sites.retain(|site| is_original(&object.image, site));
    if object.sites.len() < count {
        let name = object_name(&object.image);
        crate::report::report!(
            "{name}: breakpoints of a debugger stand on system calls that the library must replace, so these calls do not see the array; set the breakpoints after {name} is loaded"
        );
    }
    patcher.patch(&object);
    patcher.seal();
}

/// The object's name, for messages.
fn object_name(image: &Image) -> Cow<'_, str> {
    image.soname().unwrap_or(c"an object").to_string_lossy()
}

/// Which stub an object's trampolines call: `Libc` for the C library's own objects, which have no
/// wide vectors alive at their system calls; `Foreign` for all others.
fn caller_of(image: &Image) -> Caller {
    let known: [&CStr; 3] = [c"libc.so.6", c"ld-linux-x86-64.so.2", c"libpthread.so.0"];
    if image.soname().is_some_and(|name| known.contains(&name)) { Caller::Libc } else { Caller::Foreign }
}

/// Patches objects one after another. Their trampolines share an area while it has room within
/// reach; then the area is *sealed*, that is, made executable and read-only.
struct Patcher {
    cache: Cache,
    area: Option<Area>,
    auxiliary: Auxiliary,
}

impl Patcher {
    /// The object of an entry of ld.so's list with its sites. None for the program ([`prepare`] has
    /// its entry from elsewhere; one that is not position-independent has bias 0), the vDSO, this
    /// library, and what is not mapped where the list says.
    ///
    /// # Safety
    /// `entry` is of ld.so's list and its object is loaded.
    unsafe fn entry(&mut self, entry: &LinkMap) -> Option<Object> {
        let own = crate::own::address();
        if entry.bias == 0
            || entry.bias == self.auxiliary.vdso
            || entry.bias == own
            || !is_all_mapped(entry.bias, entry.bias + PAGE_BYTES)
        {
            return None;
        }
        // SAFETY: an entry of ld.so's list.
        let file = || open_object(unsafe { entry.name() });
        // SAFETY: the page at `bias` is mapped; ld.so loaded the object as its header says.
        let in_file = || unsafe { Image::of_file(&file()?, entry.bias) };
        // SAFETY: as above.
        let image = unsafe { Image::at(entry.bias) }.or_else(in_file)?;
        if !image.memory().all(|range| is_all_mapped(range.start as usize, range.end as usize)) {
            return None;
        }
        if self.is_main_program(&image) {
            return None;
        }
        let caller = caller_of(&image);
        Some(self.object(image, caller, file))
    }

    fn is_main_program(&self, image: &Image) -> bool {
        image.is_text((self.auxiliary.entry as u64).wrapping_sub(image.bias))
    }

    /// Finds the sites of one object. `open` opens its file: for the cache's key if the object has
    /// no build id, and for the scan if the cache has no sites that fit. An object that relocates
    /// its text has no sites.
    fn object(&mut self, image: Image, caller: Caller, open: impl Fn() -> Option<OwnedFd>) -> Object {
        if image.relocates_text() {
            let found = scan(&image, table::wants_site);
            let gap = if found == Found::default() { None } else { Some(Gap::Relocated) };
            return Object { image, caller, sites: Vec::new(), gap };
        }
        COUNTS.objects.fetch_add(1, Ordering::Relaxed);
        let of_file = || Some(Key::of_file(&fstat(open()?).ok()?));
        let of_build_id = |id| Key::of_build_id(id, image.segments().iter().map(|(range, _)| *range));
        let key = image.build_id().map(of_build_id).or_else(of_file);
        let known = key.as_ref().and_then(|key| self.cache.load(key, fingerprint()));
        let known = known.filter(|(sites, _)| sites.iter().all(|site| is_original(&image, site)));
        let (sites, gap) = known.unwrap_or_else(|| self.scan(&image, key.as_ref(), open().as_ref()));
        Object { image, caller, sites, gap }
    }

    /// Finds an object's sites anew. Scans the object's file and not its memory, in which a
    /// debugger may have put breakpoints; scans memory only without the file.
    fn scan(&mut self, image: &Image, key: Option<&Key>, file: Option<&OwnedFd>) -> (Vec<Site>, Option<Gap>) {
        let original = file.and_then(|file| Original::map(image, file));
        let found = scan(original.as_ref().map_or(image, |original| &original.image), table::wants_site);
        let is_of_go = file.is_some_and(|file| {
            header_of(file)
                .is_some_and(|header| headers_of(file, &header).is_some_and(|headers| is_of_go(file, &header, &headers)))
        });
        let gap = if is_of_go {
            Some(Gap::Go)
        } else if found.outside.is_empty() {
            None
        } else {
            Some(Gap::Outside)
        };
        COUNTS.objects_scanned.fetch_add(1, Ordering::Relaxed);
        COUNTS.sites_without_room.fetch_add(found.hopeless.len() as u32, Ordering::Relaxed);
        // Sites found in memory are not cached: they may be wrong for another process.
        if let (Some(key), Some(_)) = (key, &original) {
            self.cache.store(key, fingerprint(), &found.sites, gap);
        }
        if crate::own::environment().get(b"CXLRAID_DEBUG_SITES").is_some() {
            report_hopeless(&found);
        }
        (found.sites, gap)
    }

    fn patch(&mut self, object: &Object) {
        for text in object.image.texts() {
            // Sites are in ascending order ([`scan`]).
            let sites = &object.sites[object.sites.partition_point(|site| site.start < text.start)..];
            let here = &sites[..sites.partition_point(|site| site.start < text.end)];
            if !here.is_empty() {
                self.text(&object.image, text, here, object.caller);
            }
        }
    }

    /// Writes the trampolines of `sites`, then the jumps to them. All sites lie in `text`, in
    /// ascending order ([`scan`]). Without an area, or if the text cannot be made writable, they
    /// stay unpatched.
    fn text(&mut self, image: &Image, text: Range, sites: &[Site], caller: Caller) {
        let memory = Range { start: image.bias.wrapping_add(text.start), end: image.bias.wrapping_add(text.end) };
        let bytes = sites.iter().map(Area::room).sum();
        if !self.area.as_ref().is_some_and(|area| area.suits(memory, bytes)) {
            self.seal();
            // At least 8 pages, so that objects patched later (libc above all) share the area.
            self.area = Area::new(memory, bytes.max(8 * PAGE_BYTES));
        }
        let Some(area) = &mut self.area else { return };
        let mut jumps: Vec<(u64, u64, &Site)> = Vec::with_capacity(sites.len());
        jumps.extend(
            sites
                .iter()
                .filter_map(|site| Some((image.bias.wrapping_add(site.start), area.write(site, image.bias, caller)?, site))),
        );
        let (Some(first), Some(last)) = (jumps.first(), jumps.last()) else { return };
        let start = first.0 as usize & !(PAGE_BYTES - 1);
        // The jump lies within the displaced bytes. Behind their page there may be data.
        let end = (last.0 as usize + usize::from(last.2.displaced)).next_multiple_of(PAGE_BYTES);
        let mut protection = MprotectFlags::READ | MprotectFlags::EXEC;
        if image.is_writable_text(first.2.start) {
            protection |= MprotectFlags::WRITE;
        }
        // The second call changes the protection of just what the first did, so the kernel need not
        // split areas for it. That it is permitted, `loader::may_make_executable` has found out.
        // SAFETY: the pages are text of an object that no thread executes now (the module's
        // invariant). They are executable again before anybody returns there.
        unsafe {
            let is_writable = mprotect(start as *mut _, end - start, MprotectFlags::READ | MprotectFlags::WRITE).is_ok();
            if is_writable {
                jumps.iter().for_each(|(at, trampoline, site)| write_jump(*at, *trampoline, site));
            }
            // Also where the first call has failed: it may have changed pages in front of the one that
            // it failed for.
            let _ = mprotect(start as *mut _, end - start, protection);
            if !is_writable {
                return;
            }
        }
        // Of a `syscall` that stays in its place, Syscall User Dispatch learns that it is patched.
        let in_place = jumps.iter().filter(|jump| jump.2.stays());
        in_place.for_each(|(_, _, site)| sud::patched(image.bias.wrapping_add(site.syscall()) as usize + SYSCALL.len()));
        COUNTS.sites.fetch_add(jumps.len() as u32, Ordering::Relaxed);
        COUNTS.sites_moved.fetch_add(jumps.iter().filter(|jump| !jump.2.stays()).count() as u32, Ordering::Relaxed);
    }

    /// Seals the present area.
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
    for address in &found.outside {
        crate::report::report!("no unwind entry at {address:#x}");
    }
}

/// Fills the site, at `at` in memory, with int3 and puts the jump to `trampoline` at its beginning.
/// The trampoline is within reach ([`Area::suits`], [`Area::new`]).
///
/// # Safety
/// The displaced bytes of `site`, at least [`JUMP_BYTES`] at `at` in memory, are writable and not
/// being executed.
unsafe fn write_jump(at: u64, trampoline: u64, site: &Site) {
    let Some(bytes) = jump(at, trampoline) else { return };
    // SAFETY: the caller's promise.
    let place = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, site.displaced as usize) };
    place.fill(FILLER);
    place[..JUMP_BYTES].copy_from_slice(&bytes);
}

/// Whether the object has, at `site`, the bytes from which the site was made.
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

/// Reports the counts. The caller has looked at `CXLRAID_DEBUG_SITES`.
pub(crate) fn report_counts() {
    let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    crate::report::report!(
        "{} objects ({} scanned), {} sites patched, {} of them moved, {} without room",
        count(&COUNTS.objects),
        count(&COUNTS.objects_scanned),
        count(&COUNTS.sites),
        count(&COUNTS.sites_moved),
        count(&COUNTS.sites_without_room)
    );
}
