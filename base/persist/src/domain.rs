//! Where a store must arrive to survive a power failure, and what the processor must be asked to do
//! for it.

/// The persistence domain of a member: what has to happen after a store until it survives a power
/// failure.
///
/// Found out by `media/dax` when it maps a member, never assumed. Ordered from the least work to
/// the most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PersistenceDomain {
    /// The caches are flushed by the platform when power fails (eADR; CXL global persistent flush):
    /// stores suffice, ordered by [`fence`](crate::fence).
    Eadr,
    /// The memory controller's queues are flushed, the caches are not (ADR): a line must have left
    /// the caches, by a non-temporal store or a write-back, and a fence must have passed.
    Adr,
    /// The pages are the kernel's page cache: only msync or fdatasync makes them durable.
    PageCache,
    /// Nothing survives (tmpfs, ordinary memory): an embedded or test member.
    Volatile,
}

impl PersistenceDomain {
    /// What kernels must do with lines they wrote through the caches.
    #[must_use]
    pub const fn flush(self) -> Flush {
        match self {
            Self::Adr => Flush::Needed,
            Self::Eadr | Self::PageCache | Self::Volatile => Flush::NotNeeded,
        }
    }

    /// Whether a system call (msync, fdatasync) stands between a store and its durability.
    #[must_use]
    pub const fn needs_sync_call(self) -> bool {
        matches!(self, Self::PageCache)
    }

    /// Whether stores can survive a power failure at all.
    #[must_use]
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::Volatile)
    }
}

/// Whether lines written by ordinary stores have to be written back before the next fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Flush {
    /// Ordinary stores are as good as non-temporal ones.
    NotNeeded,
    /// Lines written by ordinary stores (partial lines at both ends, short lengths) are written
    /// back with clwb or its elders.
    Needed,
}
