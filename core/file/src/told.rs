//! What programs are told of a file that they do not have open, or that others have.

use crate::files::Files;
use core::sync::atomic::Ordering;
use format::{Attribute, InodeState};
use sys::OsError;

/// What the array knows of a file better than a backing file does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Bytes.
    pub size: u64,
    /// The time of the last write if the members do not know it yet, ns since 1970.
    pub modified_ns: Option<u64>,
    /// Device and inode number by which programs know the file while anybody has it open
    /// ([`array::runtime::Anchors::identity`]). None: those of the backing file.
    pub identity: Option<[u64; 2]>,
    /// Data chunks per stripe.
    pub data_columns: u64,
}

impl Told {
    pub(crate) fn of(shared: &array::SharedFile, data_columns: u64) -> Self {
        let modified_ns = crate::inode::tell_pending(shared);
        Self { size: shared.size(), modified_ns, identity: shared.anchors.identity(), data_columns }
    }

    const fn closed(size: u64, data_columns: u64) -> Self {
        Self { size, modified_ns: None, identity: None, data_columns }
    }
}

impl Files {
    /// What the array tells of a file, without opening it.
    pub fn told(&self, attribute: Attribute) -> Result<Told, OsError> {
        if self.array().runtime().is_lost() {
            return Err(OsError::IO);
        }
        match self.shared_if_open(attribute) {
            Some(shared) => Ok(Told::of(shared, self.data_columns_of(attribute))),
            None => match self.record(attribute) {
                Ok(record) => Ok(Told::closed(self.size_to_be(attribute, record.size), record.geometry().data_columns() as u64)),
                Err(error) => {
                    let own = self.policy().own().geometry().data_columns() as u64;
                    self.bytes_of_freed(attribute).map(|bytes| Told::closed(bytes, own)).ok_or(error)
                }
            },
        }
    }

    /// What a program is told of a file that has a name; None of any other file.
    #[must_use]
    pub fn told_of_named(&self, attribute: Attribute) -> Option<Told> {
        if let Some(shared) = self.shared_if_open(attribute) {
            return (shared.unlinked.load(Ordering::Acquire) == 0).then(|| Told::of(shared, self.data_columns_of(attribute)));
        }
        let record = self.record(attribute).ok().filter(|record| record.state == InodeState::Used)?;
        Some(Told::closed(self.size_to_be(attribute, record.size), record.geometry().data_columns() as u64))
    }

    /// The data chunks per stripe of a file.
    fn data_columns_of(&self, attribute: Attribute) -> u64 {
        let own = || self.policy().own().geometry();
        let geometry =
            if self.array().may_have_shapes() { self.record(attribute).map(|record| record.geometry()) } else { Ok(own()) };
        geometry.unwrap_or_else(|_| own()).data_columns() as u64
    }
}
