//! What depends on the processor: entering the library, decoding instructions, writing jumps.
//!
//! Another processor adds a sibling folder with the same items.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
