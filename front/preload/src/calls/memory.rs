//! Mappings: noticing the objects ld.so loads. Mappings of array files are `map`'s.

use crate::call::{Call, Verdict};
use crate::patch::objects;
use linux_raw_sys::general::{MAP_ANONYMOUS, PROT_EXEC};

/// `mmap`.
pub(crate) fn mmap(call: &mut Call) -> Verdict {
    if let served @ Verdict::Done(_) = super::map::mmap(call) {
        return served;
    }
    let [_, _, protection, flags, descriptor, offset] = call.args;
    let executable = protection as u32 & PROT_EXEC != 0;
    if flags as u32 & MAP_ANONYMOUS != 0 || (!executable && offset != 0) || !objects::is_linker(call.continuation()) {
        return Verdict::Pass;
    }
    let address = call.kernel();
    if !(-4095..0).contains(&address) {
        objects::mapped(descriptor as sys::RawFd, address as usize, offset, executable);
    }
    Verdict::Done(address)
}
