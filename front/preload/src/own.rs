//! What the library knows of itself: where it is loaded, from which file, and the settings that its
//! process was started with.

use crate::environment::Environment;
use core::ffi::{CStr, c_char};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static ENVIRONMENT: AtomicPtr<Environment> = AtomicPtr::new(core::ptr::null_mut());
/// The library's own text in memory.
static TEXT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The path by which ld.so has found the library's file; null if that is not known.
static NAME: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// The path by which ld.so has found the library's file. None if that is not known.
pub(crate) fn name() -> Option<&'static CStr> {
    let name = NAME.load(Ordering::Acquire);
    // SAFETY: the name was given to `set_name`, and stays valid.
    if name.is_null() { None } else { Some(unsafe { CStr::from_ptr(name) }) }
}

/// Notes the path by which ld.so has found the library's file, when the process starts.
pub(crate) fn set_name(name: &'static CStr) {
    NAME.store(name.as_ptr().cast_mut(), Ordering::Release);
}

/// The settings the process was started with.
pub(crate) fn environment() -> &'static Environment {
    static NONE: Environment = Environment::none();
    // SAFETY: the pointer is null or of a reference that stays valid.
    unsafe { ENVIRONMENT.load(Ordering::Acquire).as_ref() }.unwrap_or(&NONE)
}

/// Notes the settings, when the process starts.
pub(crate) fn set_environment(environment: &'static Environment) {
    ENVIRONMENT.store(core::ptr::from_ref(environment).cast_mut(), Ordering::Release);
}

/// Tells whether `address` is in the library's own text.
pub(crate) fn is_text(address: usize) -> bool {
    TEXT[0].load(Ordering::Relaxed) <= address && address < TEXT[1].load(Ordering::Relaxed)
}

/// Notes where that text is, when the process starts.
pub(crate) fn set_text(text: Range<usize>) {
    TEXT[0].store(text.start, Ordering::Relaxed);
    TEXT[1].store(text.end, Ordering::Relaxed);
}

/// Returns where the library is loaded.
#[cfg(not(test))]
pub(crate) fn address() -> usize {
    unsafe extern "C" {
        /// The library's ELF header, placed by the linker.
        static __ehdr_start: u8;
    }
    &raw const __ehdr_start as usize
}

/// A test program is not loaded as a library.
#[cfg(test)]
pub(crate) fn address() -> usize {
    0
}
