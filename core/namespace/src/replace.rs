//! A process that holds an array alone, so that a member in use can be replaced
//! (`array::Array::swap_member`).
//!
//! Programs that start meanwhile wait, so the array is held for short times only. What was made
//! good of an earlier use is on all members once the array is held.

use crate::Namespace;
use crate::fill::{FillError, hold};
use array::{Array, Config};
use file::Files;

/// The array, with nobody else in it.
pub struct Held {
    names: Namespace,
}

impl Held {
    /// Attaches to the array, and keeps others from it.
    ///
    /// # Errors
    /// [`FillError`]; `InUse` if programs use the array, `Waiting` if writes wait in its journal.
    pub fn begin(config: &Config) -> Result<Self, FillError> {
        let files = Files::new(hold(config)?).map_err(FillError::Os)?;
        let settled = settle(files);
        if settled.is_err() {
            files.detach();
            leave(files);
        }
        settled.map(|names| Self { names })
    }

    /// The array.
    #[must_use]
    pub fn array(&self) -> &Array {
        self.files().array()
    }

    /// Its files.
    #[must_use]
    pub const fn files(&self) -> &'static Files {
        self.names.files()
    }

    /// Its names.
    #[must_use]
    pub const fn names(&self) -> &Namespace {
        &self.names
    }

    /// Leaves the array as a program does that ends.
    pub fn end(self) {
        self.files().detach();
        leave(self.files());
    }

    /// Leaves the array without doing anything with it any more, after a member was replaced: what
    /// this process knows of the members is past.
    pub fn end_at_once(self) {
        self.array().runtime().detach();
        leave(self.files());
    }
}

/// Makes good what an earlier use has left.
fn settle(files: &'static Files) -> Result<Namespace, FillError> {
    if !files.waiting_records().is_empty() {
        return Err(FillError::Waiting);
    }
    let names = Namespace::new(files).map_err(FillError::Os)?;
    files.mend_records().map_err(FillError::Os)?;
    Ok(names)
}

fn leave(files: &Files) {
    files.array().let_in();
    files.array().abandon();
}

/// Attaches to an array that programs may use, calls `act`, and leaves it.
///
/// # Errors
/// [`FillError`] if the array cannot be attached.
pub fn beside<T>(config: &Config, act: impl FnOnce(&Array) -> T) -> Result<T, FillError> {
    let array = Array::attach(config)?;
    let result = act(&array);
    array.runtime().detach();
    array.abandon();
    Ok(result)
}
