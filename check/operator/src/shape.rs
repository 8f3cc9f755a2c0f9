//! The arrays that mistakes are made with.

/// Level, members and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    pub(crate) level: &'static str,
    pub(crate) member_count: usize,
    /// How many members may be damaged, whichever they are.
    pub(crate) bears: usize,
    pub(crate) chunk: &'static str,
    pub(crate) journal: Journal,
}

/// Where an array has its journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Journal {
    None,
    Members,
    File,
}

impl Shape {
    /// Each of them bears the loss of one member.
    pub(crate) const ALL: [Self; 7] = [
        Self { label: "raid1", level: "1", member_count: 2, bears: 1, chunk: "64K", journal: Journal::None },
        Self { label: "raid1-3", level: "1", member_count: 3, bears: 2, chunk: "64K", journal: Journal::None },
        Self { label: "raid5", level: "5", member_count: 3, bears: 1, chunk: "4K", journal: Journal::None },
        Self { label: "raid6", level: "6", member_count: 4, bears: 2, chunk: "4K", journal: Journal::None },
        Self { label: "raid10", level: "10", member_count: 4, bears: 1, chunk: "4K", journal: Journal::None },
        Self { label: "journal", level: "5", member_count: 3, bears: 1, chunk: "4K", journal: Journal::Members },
        Self { label: "apart", level: "5", member_count: 3, bears: 1, chunk: "4K", journal: Journal::File },
    ];
}
