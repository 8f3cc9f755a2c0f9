//! A file that waits to be rebuilt is computed although a program runs from it.

use crate::Namespace;
use crate::open::Trouble;
use format::Attribute;
use sys::{OsError, Result};

impl Namespace {
    /// Has computed what members have lost of the file at `path`, which is that of `attribute`. A
    /// program may be executed from a copy of the file meanwhile: what it reads does not change.
    ///
    /// # Errors
    /// `NOENT` if the file has another name by now; `TXTBSY` if the kernel executes one of the backing
    /// files itself, as it does at RAID 1; else the errors of [`file::Files::open`].
    pub fn compute(&self, path: &[u8], attribute: Attribute) -> Result<()> {
        match self.letting_owner_in(path, || self.attach(path, attribute, true)) {
            Ok(_) => Ok(()),
            Err(Trouble::Changed) => Err(OsError::NOENT),
            Err(Trouble::Os(error)) => Err(error),
        }
    }
}
