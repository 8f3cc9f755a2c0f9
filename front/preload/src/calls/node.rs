//! What an open file description of ours refers to.

/// A file or directory of an array. (The namespace's type takes this place.)
#[derive(Default)]
pub(crate) struct Node {
    /// The stand-in for measurements: where the file's bytes are mapped.
    #[cfg(feature = "double")]
    pub(crate) mapping: super::double::Mapping,
}
