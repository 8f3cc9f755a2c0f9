//! What may differ between an array and a plain directory, with the reason. The list is short, and is to become shorter.

/// One difference that may be.
pub(crate) struct Allowed {
    /// The call's name.
    call: &'static str,
    /// What the plain directory answers, as the beginning of the line behind the call's name.
    plain: &'static str,
    /// What the array answers.
    array: &'static str,
    /// Why.
    pub(crate) reason: &'static str,
}

pub(crate) const ALLOWED: &[Allowed] = &[
    Allowed { call: "preadv2", plain: "E95", array: "", reason: "memory never waits: an array takes RWF_NOWAIT, tmpfs does not" },
    Allowed {
        call: "pwritev2",
        plain: "E95",
        array: "",
        reason: "memory never waits: an array takes RWF_NOWAIT, tmpfs does not",
    },
    Allowed {
        call: "openat2",
        plain: "",
        array: "E11",
        reason: "what is not in the kernel's cache of names it says itself (RESOLVE_CACHED)",
    },
    Allowed {
        call: "fallocate",
        plain: "E95",
        array: "0",
        reason: "an array makes zeros of a range (FALLOC_FL_ZERO_RANGE), tmpfs does not",
    },
    Allowed {
        call: "renameat2",
        plain: "0",
        array: "E22",
        reason: "an array makes no whiteouts (RENAME_WHITEOUT), which are overlayfs' own affair",
    },
];

/// The reason why a call's two lines may differ, if there is one. A line is a step's number, the call's name and its answer.
pub(crate) fn reason(plain: &str, array: &str) -> Option<&'static str> {
    let (plain, array) = (split(plain)?, split(array)?);
    let fits = |allowed: &&Allowed| {
        plain.0 == allowed.call
            && array.0 == allowed.call
            && plain.1.starts_with(allowed.plain)
            && array.1.starts_with(allowed.array)
    };
    ALLOWED.iter().find(fits).map(|allowed| allowed.reason)
}

fn split(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(' ')?;
    rest.split_once(" = ")
}
