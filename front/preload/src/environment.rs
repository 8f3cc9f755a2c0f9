//! What the process was given at its start: environment and auxiliary vector, copied before the
//! program can change them.

use crate::uapi::{AT_BASE, AT_ENTRY, AT_EXECFN, AT_PHDR, AT_PHNUM, AT_SECURE, AT_SYSINFO_EHDR};
use core::ffi::{CStr, c_char};
use heap::boxed::Box;
use heap::vec::Vec;

/// The parts of the kernel's auxiliary vector that are used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Auxiliary {
    /// Address and number of the program's headers.
    pub(crate) program_headers: usize,
    pub(crate) program_header_count: usize,
    /// The program's first instruction.
    pub(crate) entry: usize,
    /// Where ld.so is mapped.
    pub(crate) linker: usize,
    /// Where the kernel's own object is mapped.
    pub(crate) vdso: usize,
    /// The program gained rights by being executed: its environment is not to be trusted.
    pub(crate) secure: bool,
    /// Where the name lies that the program was executed by, with its NUL; 0 if it is not known.
    pub(crate) name: usize,
}

impl Auxiliary {
    /// Reads the vector that follows the environment.
    ///
    /// # Safety
    /// `environment` is the environment as the kernel put it on the first stack, not a copy of it.
    pub(crate) unsafe fn after(environment: *const *const c_char) -> Self {
        let mut auxiliary = Self::default();
        let mut at = environment;
        // SAFETY: the caller's promise: a list of pointers that ends with null, then pairs that end
        // with a zero tag.
        unsafe {
            while !(*at).is_null() {
                at = at.add(1);
            }
            let mut pair = at.add(1).cast::<[usize; 2]>();
            while (*pair)[0] != 0 {
                let [tag, value] = *pair;
                match tag {
                    AT_PHDR => auxiliary.program_headers = value,
                    AT_PHNUM => auxiliary.program_header_count = value,
                    AT_BASE => auxiliary.linker = value,
                    AT_ENTRY => auxiliary.entry = value,
                    AT_SECURE => auxiliary.secure = value != 0,
                    AT_EXECFN => auxiliary.name = value,
                    AT_SYSINFO_EHDR => auxiliary.vdso = value,
                    _ => {}
                }
                pair = pair.add(1);
            }
        }
        auxiliary
    }
}

/// The value of `name` in a list of `NAME=value` strings.
///
/// # Safety
/// `list` points to pointers to C strings and ends with null.
pub(crate) unsafe fn find<'a>(list: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    let mut at = list;
    // SAFETY: the caller's promise.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if let Some(value) = value_of(CStr::from_ptr(*at).to_bytes(), name) {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// The value if `entry` is `name=value`.
pub(crate) fn value_of<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    entry.strip_prefix(name)?.strip_prefix(b"=")
}

/// The entries that matter to the library: its own settings, where it was loaded from, and where
/// caches live.
pub(crate) struct Environment {
    entries: Vec<Box<[u8]>>,
}

impl Environment {
    /// Copies the entries that are kept.
    ///
    /// # Safety
    /// As for [`find`].
    pub(crate) unsafe fn copy(list: *const *const c_char) -> Self {
        let mut entries = Vec::new();
        let mut at = list;
        // SAFETY: the caller's promise.
        unsafe {
            while !(*at).is_null() {
                let entry = CStr::from_ptr(*at).to_bytes_with_nul();
                let kept: [&[u8]; 4] = [b"CXLRAID_", b"LD_PRELOAD=", b"HOME=", b"XDG_CACHE_HOME="];
                if kept.iter().any(|prefix| entry.starts_with(prefix)) {
                    entries.push(entry.into());
                }
                at = at.add(1);
            }
        }
        Self { entries }
    }

    /// No entries.
    pub(crate) const fn none() -> Self {
        Self { entries: Vec::new() }
    }

    /// The value of `name` with its NUL.
    pub(crate) fn get_c_str(&self, name: &[u8]) -> Option<&CStr> {
        self.entries.iter().find_map(|entry| CStr::from_bytes_with_nul(value_of(entry, name)?).ok())
    }

    /// The value of `name`.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let entries = self.entries.iter().map(|entry| &entry[..entry.len() - 1]);
        entries.into_iter().find_map(|entry| value_of(entry, name))
    }

    /// The entries a program executed next must have: each NUL-terminated.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = &[u8]> {
        let own = |entry: &&[u8]| entry.starts_with(b"CXLRAID_") || entry.starts_with(b"LD_PRELOAD=");
        self.entries.iter().map(|entry| &**entry).filter(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_whole_name() {
        let list = [c"CXLRAID_LEVEL2=x".as_ptr(), c"CXLRAID_LEVEL=raid5".as_ptr(), c"HOME=/".as_ptr(), core::ptr::null()];
        // SAFETY: a list of C strings that ends with null.
        let (found, kept) = unsafe { (find(list.as_ptr(), b"CXLRAID_LEVEL"), Environment::copy(list.as_ptr())) };
        assert_eq!(found, Some(&b"raid5"[..]));
        assert_eq!(kept.get(b"HOME"), Some(&b"/"[..]));
        assert_eq!(kept.get(b"CXLRAID"), None);
        assert_eq!(kept.inherited().count(), 2);
    }
}
