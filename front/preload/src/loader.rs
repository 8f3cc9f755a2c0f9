//! How this process was loaded: by which dynamic linker, with which other objects, under which
//! tool.
//!
//! - glibc's ld.so hands constructors the arguments and the environment. musl's hands them nothing;
//!   then the first stack is found by the auxiliary vector, of which the kernel gives a copy.
//! - AddressSanitizer ends the program unless its own library is the first of the list of loaded
//!   objects: its functions must be found before those of others. This library defines no function
//!   that could be found, so it goes behind that one in the list ([`let_sanitizer_be_first`]).
//! - Where the library cannot work it stands aside ([`obstacle`]): the program runs as it would
//!   without it, and is told so in one line.

use crate::environment::Auxiliary;
use crate::patch::elf::{DT_DEBUG, Header, Image, ProgramHeader, bias_of_table};
use crate::uapi::{AT_RANDOM, PR_GET_AUXV};
use core::ffi::{CStr, c_char, c_int};
use linux_raw_sys::general::__NR_prctl;
use sys::OsError;
use sys::raw::{check, syscall};
use sys::rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, accessat, fstatvfs, openat};
use sys::rustix::io::pread;

/// `struct r_debug` of <link.h>.
#[repr(C)]
struct Debug {
    version: i32,
    first: *mut LinkMap,
    breakpoint: usize,
    state: i32,
    /// Where ld.so is mapped.
    linker: usize,
}

/// `struct link_map` of <link.h>.
#[repr(C)]
pub(crate) struct LinkMap {
    pub(crate) bias: usize,
    name: *const c_char,
    dynamic: usize,
    next: *mut Self,
    previous: *mut Self,
}

impl LinkMap {
    /// The path of the object's file, as the dynamic linker found it; empty for the program itself.
    ///
    /// # Safety
    /// This is an entry of the dynamic linker's list.
    pub(crate) unsafe fn name(&self) -> &CStr {
        // SAFETY: the linker's name of an object is a string that lives as long as the entry.
        if self.name.is_null() { c"" } else { unsafe { CStr::from_ptr(self.name) } }
    }
}

/// What the dynamic linker has loaded before constructors run.
pub(crate) struct Loaded {
    pub(crate) program: Image,
    pub(crate) linker: Option<Image>,
    /// The first entry of the linker's list, which is the program's own; null if the list is not
    /// found.
    pub(crate) first: *mut LinkMap,
}

impl Loaded {
    /// Finds the program, its dynamic linker and the linker's list.
    ///
    /// # Safety
    /// `auxiliary` is the kernel's description of this process, constructors are running, and there
    /// is one thread.
    pub(crate) unsafe fn find(auxiliary: &Auxiliary) -> Option<Self> {
        // SAFETY: the caller's promise: these are the main program's headers.
        let program = unsafe { main_program(auxiliary) }?;
        let debug = program.dynamic(DT_DEBUG).filter(|address| *address != 0);
        // The kernel does not name an ld.so that was started by hand and loaded the program itself.
        // SAFETY: DT_DEBUG of a program that runs holds the address of its linker's r_debug.
        let linker = debug
            .filter(|_| auxiliary.linker == 0)
            .map_or(auxiliary.linker, |address| unsafe { (*(address as *const Debug)).linker });
        // SAFETY: where the linker is mapped its first byte is its header.
        let linker = if linker == 0 { None } else { unsafe { Image::at(linker) } };
        let debug = debug.or_else(|| {
            let linker = linker.as_ref()?;
            Some(linker.bias.wrapping_add(linker.symbol(b"_r_debug")?))
        });
        // SAFETY: the linker keeps r_debug consistent while constructors run; only this thread
        // exists.
        let first = debug.map_or(core::ptr::null_mut(), |address| unsafe { (*(address as *const Debug)).first });
        Some(Self { program, linker, first })
    }
}

/// The entries of a dynamic linker's list from `first` on.
///
/// # Safety
/// `first` is null or an entry of the list, which does not change meanwhile.
pub(crate) unsafe fn entries(first: *mut LinkMap) -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: the caller's promise.
    core::iter::successors(unsafe { first.as_ref() }, |entry| unsafe { entry.next.as_ref() })
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
    unsafe { Image::new(bias_of_table(headers, auxiliary.program_headers as u64), headers) }
}

/// The environment on the first stack. `count`, `arguments` and `variables` are what a constructor
/// is called with: what glibc says, or, with another dynamic linker, whatever lay in those
/// registers.
pub(crate) fn first_environment(
    count: c_int,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> Option<*const *const c_char> {
    let here = (&raw const count) as usize;
    let follows = arguments.wrapping_add(count as usize).wrapping_add(1) == variables;
    // The first stack grows down: what the program was started with lies above everything else.
    if count >= 0 && follows && arguments as usize > here && (arguments as usize).is_multiple_of(align_of::<usize>()) {
        return Some(variables);
    }
    environment_by_vector()
}

/// Finds the environment on the first stack by the auxiliary vector behind it, which is found by
/// the kernel's copy.
fn environment_by_vector() -> Option<*const *const c_char> {
    const PAIR_COUNT_MAX: usize = 64;
    /// The vector ends below the bytes that AT_RANDOM names, but for those bytes' and the
    /// platform's name's own alignment.
    const DISTANCE_MAX: usize = 16 << 10;
    // The first stack is the one that valgrind has made, and the kernel's copy tells of valgrind's
    // own.
    if crate::arch::is_under_valgrind() {
        return None;
    }
    let mut vector = [[0usize; 2]; PAIR_COUNT_MAX];
    let arguments = [PR_GET_AUXV, vector.as_mut_ptr() as usize, size_of_val(&vector), 0, 0, 0];
    // SAFETY: the kernel writes at most as many bytes as the array has.
    let bytes = check(unsafe { syscall(__NR_prctl as usize, arguments) }).ok()?;
    let vector = vector.get(..bytes / size_of::<[usize; 2]>())?;
    let used = vector.iter().position(|pair| pair[0] == 0)?;
    let random = vector.iter().find(|pair| pair[0] == AT_RANDOM)?[1];
    let above = random & !(size_of::<usize>() - 1);
    for distance in (0..DISTANCE_MAX).step_by(size_of::<usize>()) {
        let at = above.checked_sub(distance)? as *const [usize; 2];
        // SAFETY: the first stack is mapped from where it begins to below this function's frame,
        // and what is looked for lies between.
        let found = vector[..used].iter().enumerate().all(|(index, pair)| unsafe { at.add(index).read() == *pair });
        if found {
            // SAFETY: in front of the vector lie the environment, which ends with null, and the
            // arguments, which do so, too.
            return Some(unsafe { list_before(at.cast()) });
        }
    }
    None
}

/// The start of the list whose end, a null, lies in front of `end`.
///
/// # Safety
/// There is such a list, with another null in front of it.
unsafe fn list_before(end: *const *const c_char) -> *const *const c_char {
    // SAFETY: the caller's promise.
    unsafe {
        let mut start = end.sub(1);
        while !(*start.sub(1)).is_null() {
            start = start.sub(1);
        }
        start
    }
}

/// What keeps the library from serving this program, as a phrase after "this program"; None if
/// nothing does.
///
/// - valgrind runs the program's instructions by a processor of its own, which does not know all
///   that the library needs of the kernel.
/// - A C library other than glibc has no unwind entries for its functions, by which system calls
///   are told from data; one that was missed would change one member only.
///
/// # Safety
/// As for [`Loaded::find`].
pub(crate) unsafe fn obstacle(auxiliary: &Auxiliary) -> Option<&'static str> {
    if crate::arch::is_under_valgrind() {
        return Some("runs under valgrind");
    }
    if !may_make_executable() {
        return Some("may not make memory executable (MemoryDenyWriteExecute of its service?)");
    }
    // SAFETY: the caller's promise.
    let linker = unsafe { Loaded::find(auxiliary) }.and_then(|loaded| loaded.linker);
    let is_glibc = linker.is_none_or(|linker| linker.soname() == Some(c"ld-linux-x86-64.so.2"));
    (!is_glibc).then_some("is linked with another C library than glibc")
}

/// Whether memory that was written to can be made executable, as code that is patched must be.
/// Sandboxes forbid it: systemd's MemoryDenyWriteExecute, prctl(PR_SET_MDWE).
pub(crate) fn may_make_executable() -> bool {
    use sys::rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    let (null, bytes) = (core::ptr::null_mut(), units::PAGE_BYTES);
    // SAFETY: a new mapping of its own, which nobody else knows of.
    unsafe {
        let Ok(page) = mmap_anonymous(null, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) else { return false };
        let outcome = mprotect(page, bytes, MprotectFlags::READ | MprotectFlags::EXEC);
        // Nothing depends on it.
        let _ = munmap(page, bytes);
        outcome.is_ok()
    }
}

/// Whether programs that ask for the dynamic linker at `path` are linked with glibc: musl's,
/// uClibc's and Android's linkers have names of their own, and glibc's is shipped under many.
pub(crate) fn is_glibc_linker(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let begins = |start: &[u8]| name.starts_with(start);
    !(begins(b"ld-musl") || begins(b"ld64-uClibc") || begins(b"ld-uClibc") || begins(b"linker64"))
}

/// Tells whether ld.so can load a library from the file at `name` into the program that this process
/// executes next: whether the program may read the file, and may have it mapped executable. What
/// cannot be found out counts as yes.
pub(crate) fn is_loadable(name: &CStr) -> bool {
    // This call goes by the real user, who is the effective one of every program that ld.so loads a
    // library into, and by the capabilities that an exec leaves to that user. It refuses a file that
    // is mounted `noexec`.
    let mut is_executable = true;
    match accessat(CWD, name, Access::READ_OK | Access::EXEC_OK, AtFlags::empty()) {
        Ok(()) => {}
        // A library may have a mode without x.
        Err(OsError::ACCESS) if accessat(CWD, name, Access::READ_OK, AtFlags::empty()).is_ok() => is_executable = false,
        Err(OsError::ACCESS | OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::NAMETOOLONG) => return false,
        // A filter's answer says nothing of the file.
        Err(_) => return true,
    }
    let file = match openat(CWD, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
        Ok(file) => file,
        Err(error) => return !matches!(error, OsError::ACCESS | OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::IO),
    };
    let is_noexec = |file| fstatvfs(file).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if !is_executable && is_noexec(&file) {
        return false;
    }
    let mut header = [0u8; size_of::<Header>()];
    let count = pread(&file, &mut header, 0).unwrap_or(0);
    // SAFETY: the buffer is as long as a header, which is plain numbers.
    count == header.len() && unsafe { header.as_ptr().cast::<Header>().read_unaligned() }.is_ours()
}

/// Notes the path by which the dynamic linker has found this library.
///
/// # Safety
/// As for [`Loaded::find`].
pub(crate) unsafe fn note_name(auxiliary: &Auxiliary) {
    // SAFETY: the caller's promise.
    let Some(Loaded { first, .. }) = (unsafe { Loaded::find(auxiliary) }) else { return };
    // SAFETY: the caller's promise: the list does not change meanwhile.
    if let Some(entry) = unsafe { entries(first) }.find(|entry| entry.bias == crate::own::address()) {
        // SAFETY: the library is never unloaded, and its entry stays as long.
        crate::own::set_name(unsafe { entry.name() });
    }
}

/// Moves this library behind AddressSanitizer's in the dynamic linker's list of loaded objects, if
/// that one is there and comes later. The order in which symbols are searched is kept elsewhere and
/// stays as it is.
///
/// # Safety
/// Constructors are running and there is one thread: the linker does not go through its list
/// meanwhile.
pub(crate) unsafe fn let_sanitizer_be_first(auxiliary: &Auxiliary) {
    // SAFETY: the caller's promise.
    let Some(Loaded { first, .. }) = (unsafe { Loaded::find(auxiliary) }) else { return };
    let (mut own, mut at) = (core::ptr::null_mut::<LinkMap>(), first);
    while !at.is_null() {
        // SAFETY: `at` is an entry of the linker's list.
        let (entry, name) = unsafe { (&*at, (*at).name().to_bytes()) };
        if entry.bias == crate::own::address() {
            own = at;
        } else if !own.is_null() && is_address_sanitizer(name) {
            // SAFETY: both are entries of the list, `own` comes first and is not the program's, so
            // it has neighbours on both sides.
            return unsafe { move_behind(own, at) };
        }
        at = entry.next;
    }
}

/// Whether AddressSanitizer takes a library of this name for its own (its `IsDynamicRTName`).
fn is_address_sanitizer(name: &[u8]) -> bool {
    let contains = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    contains(b"libasan.so") || contains(b"libclang_rt.asan")
}

/// # Safety
/// `moved` and `place` are entries of one list, in this order, and `moved` is not its first.
unsafe fn move_behind(moved: *mut LinkMap, place: *mut LinkMap) {
    // SAFETY: the caller's promise: every pointer used is an entry, or null at the end of the list.
    unsafe {
        let (before, after) = ((*moved).previous, (*moved).next);
        if before.is_null() || after.is_null() {
            return;
        }
        (*before).next = after;
        (*after).previous = before;
        let behind = (*place).next;
        (*moved).previous = place;
        (*moved).next = behind;
        (*place).next = moved;
        if let Some(behind) = behind.as_mut() {
            behind.previous = moved;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(bias: usize) -> LinkMap {
        LinkMap { bias, name: core::ptr::null(), dynamic: 0, next: core::ptr::null_mut(), previous: core::ptr::null_mut() }
    }

    #[test]
    fn an_entry_goes_behind_another() {
        for place in [2, 3] {
            let mut entries: Vec<LinkMap> = (0..4).map(entry).collect();
            let base = entries.as_mut_ptr();
            // SAFETY: four entries of one array, linked in their order.
            unsafe {
                for index in 0..3 {
                    (*base.add(index)).next = base.add(index + 1);
                    (*base.add(index + 1)).previous = base.add(index);
                }
                move_behind(base.add(1), base.add(place));
                let (mut order, mut at, mut last) = (Vec::new(), base, core::ptr::null_mut());
                while !at.is_null() {
                    assert_eq!((*at).previous, last);
                    order.push((*at).bias);
                    (last, at) = (at, (*at).next);
                }
                assert_eq!(order, if place == 2 { [0, 2, 1, 3] } else { [0, 2, 3, 1] });
            }
        }
    }

    #[test]
    fn the_environment_is_found_without_being_told() {
        let found = environment_by_vector().unwrap();
        // SAFETY: a list of strings that ends with null.
        let path = unsafe { crate::environment::find(found, b"PATH") };
        assert_eq!(path.map(<[u8]>::to_vec), std::env::var_os("PATH").map(std::os::unix::ffi::OsStringExt::into_vec));
        // What musl leaves in the registers: anything.
        let other = first_environment(7, 0x10 as *const _, 0x18 as *const _);
        assert_eq!(other, Some(found));
    }

    #[test]
    fn only_its_own_library_is_taken_for_the_sanitizer() {
        assert!(is_address_sanitizer(b"/lib/x86_64-linux-gnu/libasan.so.8"));
        assert!(is_address_sanitizer(b"/usr/lib/llvm-14/lib/libclang_rt.asan-x86_64.so"));
        assert!(!is_address_sanitizer(b"/lib/x86_64-linux-gnu/libubsan.so.1"));
        assert!(!crate::arch::is_under_valgrind());
    }

    #[test]
    fn linkers_of_other_c_libraries_are_known_by_their_names() {
        for (path, expected) in [
            (&b"/lib64/ld-linux-x86-64.so.2"[..], true),
            (b"/opt/app/lib/ld-2.31.so", true),
            (b"/lib/ld-musl-x86_64.so.1", false),
            (b"/lib/ld64-uClibc.so.1", false),
            (b"/system/bin/linker64", false),
        ] {
            assert_eq!(is_glibc_linker(path), expected);
        }
    }

    #[test]
    fn a_library_that_is_gone_closed_or_cut_short_is_not_loaded() {
        let directory = std::env::temp_dir().join(std::format!("cxlraid-loader-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("library.so");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        assert!(!is_loadable(&name));
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        // A file system with `noexec` may be what tests are given for temporary files.
        let is_permitted = sys::rustix::fs::accessat(CWD, name.as_c_str(), Access::EXEC_OK, AtFlags::empty()).is_ok();
        assert_eq!(is_loadable(&name), is_permitted);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(is_loadable(&name), is_permitted);
        if !sys::rustix::process::getuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0)).unwrap();
            assert!(!is_loadable(&name));
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::write(&path, b"\x7fELF").unwrap();
        assert!(!is_loadable(&name));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
