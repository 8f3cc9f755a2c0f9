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
    pub(crate) const ALL: [Self; 11] = [
        Self { label: "raid1", level: "1", member_count: 2, bears: 1, chunk: "64K", journal: Journal::None },
        Self { label: "raid1-3", level: "1", member_count: 3, bears: 2, chunk: "64K", journal: Journal::None },
        Self { label: "raid4", level: "4", member_count: 3, bears: 1, chunk: "4K", journal: Journal::None },
        Self { label: "raid5", level: "5", member_count: 3, bears: 1, chunk: "4K", journal: Journal::None },
        Self { label: "raid6", level: "6", member_count: 4, bears: 2, chunk: "4K", journal: Journal::None },
        Self { label: "raid10", level: "10", member_count: 4, bears: 1, chunk: "4K", journal: Journal::None },
        Self { label: "raid01", level: "01", member_count: 4, bears: 1, chunk: "4K", journal: Journal::None },
        Self { label: "journal", level: "5", member_count: 3, bears: 1, chunk: "4K", journal: Journal::Members },
        Self { label: "journal6", level: "6", member_count: 4, bears: 2, chunk: "4K", journal: Journal::Members },
        Self { label: "apart", level: "5", member_count: 3, bears: 1, chunk: "4K", journal: Journal::File },
        Self { label: "apart1", level: "1", member_count: 2, bears: 1, chunk: "64K", journal: Journal::File },
    ];

    /// Tells whether files lie on several mirrors, so that more members may be lost than `bears`,
    /// if they are the right ones.
    pub(crate) fn has_several_mirrors(&self) -> bool {
        ["10", "01"].contains(&self.level)
    }

    /// The slots of two halves of which each serves the array alone, where the level has such
    /// halves.
    pub(crate) fn halves(&self) -> Option<[&'static [usize]; 2]> {
        match self.label {
            "raid1" => Some([&[0], &[1]]),
            "raid1-3" => Some([&[0], &[1, 2]]),
            // The mirrors are 0 with 1, and 2 with 3.
            "raid10" => Some([&[0, 2], &[1, 3]]),
            // The stripes are 0 with 1, and 2 with 3.
            "raid01" => Some([&[0, 1], &[2, 3]]),
            _ => None,
        }
    }
}
