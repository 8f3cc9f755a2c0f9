//! The arrays that are attacked.

/// Level, members and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    pub(crate) level: &'static str,
    pub(crate) member_count: usize,
    pub(crate) chunk: &'static str,
    /// Whether it has a journal, on its members.
    pub(crate) journal: bool,
}

impl Shape {
    /// Each of them bears the loss of one member.
    pub(crate) const ALL: [Self; 5] = [
        Self { label: "raid1", level: "1", member_count: 3, chunk: "64K", journal: false },
        Self { label: "raid5", level: "5", member_count: 3, chunk: "4K", journal: false },
        Self { label: "raid6", level: "6", member_count: 4, chunk: "8K", journal: false },
        Self { label: "raid10", level: "10", member_count: 4, chunk: "4K", journal: false },
        Self { label: "journal", level: "5", member_count: 3, chunk: "4K", journal: true },
    ];
}
