//! The kernel's source of bytes that nobody can predict (getrandom(2)).

use crate::{OsError, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// This many unpredictable bytes.
///
/// # Errors
/// `IO` if the kernel gave fewer.
pub fn bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let length = getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    if length == COUNT { Ok(bytes) } else { Err(OsError::IO) }
}
