//! Why an array cannot be used, each as one line that names the thing and says what to do.

use crate::member::{Member, Standing, show};
use alloc::string::String;
use alloc::vec::Vec;
use format::{JournalError, SuperblockError, Uuid};
use layout::{Geometry, GeometryError, Level};
use sys::OsError;
use units::ChunkBytes;

/// Why attaching failed. Nothing on any member was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call on a member failed.
    #[error("{}: cannot {action} this member: {}; check the path, its permissions and its mount", show(.path), describe(*.error))]
    Os {
        /// The member.
        path: Vec<u8>,
        /// What was tried.
        action: &'static str,
        /// How it failed.
        error: OsError,
    },
    /// This user may not use the array.
    #[error("{}: you may not use this array: it is open to {to}; run as one of them, or ask its owner to open it to you with 'cxlraid access'", show(.path))]
    NotOpen {
        /// A member.
        path: Vec<u8>,
        /// Whom it is open to.
        to: String,
    },
    /// A member is not a directory.
    #[error("{}: not a directory; a member is the directory where a device is mounted", show(.path))]
    NotADirectory {
        /// The member.
        path: Vec<u8>,
    },
    /// A member of an array to be created does not exist.
    #[error("{}: does not exist and no other member has a superblock; create the directory or mount the device", show(.path))]
    NotThere {
        /// The member.
        path: Vec<u8>,
    },
    /// A member of an array to be created holds something.
    #[error("{}: not empty and not a member of an array; empty it or choose another directory", show(.path))]
    NotEmpty {
        /// The member.
        path: Vec<u8>,
    },
    /// The member's file system has no user extended attributes.
    #[error("{}: the file system has no user extended attributes; use ext4, XFS, or tmpfs of Linux 6.6 or later", show(.path))]
    NoAttributes {
        /// The member.
        path: Vec<u8>,
    },
    /// A superblock cannot be used.
    #[error("{}: {error}", show(.path))]
    Superblock {
        /// The member.
        path: Vec<u8>,
        /// Why.
        error: SuperblockError,
    },
    /// The array uses features that this program may only read with, and arrays are always attached
    /// for writing.
    #[error("{}: the array uses features this program must not write with (bits {bits:#x}); use a newer cxlraid", show(.path))]
    ReadOnlyFeatures {
        /// The member.
        path: Vec<u8>,
        /// The unknown bits.
        bits: u64,
    },
    /// A member belongs to another array.
    #[error("{}: belongs to array {found}, not to {expected}; give the members of one array", show(.path))]
    OtherArray {
        /// The member.
        path: Vec<u8>,
        /// Its array.
        found: Uuid,
        /// The others' array.
        expected: Uuid,
    },
    /// The array is known by its UUID, and none of its members is there.
    #[error("{}: no member of array {expected} is here or at its other paths; mount its devices, or, if it is gone, 'cxlraid forget' its name and create it anew", show(.path))]
    NotMounted {
        /// The first member.
        path: Vec<u8>,
        /// The array.
        expected: Uuid,
    },
    /// No member of the array can be read, and what lies on this one's file system may be one of them:
    /// it is read-only, or fails.
    #[error("{}: its file system {}, so a member of the array that may be here is not used; {}", show(.path), failing(*.error)[0], failing(*.error)[1])]
    Unreadable {
        /// The first such member.
        path: Vec<u8>,
        /// What its file system says.
        error: OsError,
    },
    /// All member directories are empty, and the configuration forbids to make an array of them.
    #[error("{}: neither this directory nor any other given holds a member of an array, and CXLRAID_CREATE=0 forbids to make one; mount the members' devices, or set CXLRAID_CREATE=1 to make a new array", show(.path))]
    NotAsked {
        /// The first member.
        path: Vec<u8>,
    },
    /// All member directories are empty, and one of them is in a file system that is not mounted.
    #[error("{}: a file system is to be mounted here (/etc/fstab, or a unit of systemd), and none is; mount it, or set CXLRAID_CREATE=1 to make a new array without it", show(.path))]
    NothingMounted {
        /// The mount point.
        path: Vec<u8>,
    },
    /// One directory is given as two members of an array to be created.
    #[error("{}: is the same directory as {}; give each member once", show(.path), show(.other))]
    GivenTwice {
        /// The second path.
        path: Vec<u8>,
        /// The first path.
        other: Vec<u8>,
    },
    /// Another directory has the place of a member that is given, and the array goes on with that one.
    #[error("{}: another directory has taken the place of this one in the array, so the name or the paths given are out of date; use a name or paths with that directory ('cxlraid status' shows each name's), or, if it is lost for good, empty this one and 'cxlraid rebuild' it", show(.path))]
    OutOfDate {
        /// The directory that has no place any more.
        path: Vec<u8>,
    },
    /// Two members have changes that the other one has not.
    #[error("{} and {} were each used without the other, and neither has the other's changes; choose with 'cxlraid assemble --prefer MEMBER' whose are kept", show(.one), show(.other))]
    UsedApart {
        /// One of them.
        one: Vec<u8>,
        /// The other.
        other: Vec<u8>,
    },
    /// The operator chose a member, and those that were used with it are not enough.
    #[error("{}: {kept} of {total} members were used with this one, which is not enough; choose another one, or put back the members that were used with it", show(.path))]
    PreferredTooFew {
        /// The member.
        path: Vec<u8>,
        /// How many would be kept, with it.
        kept: usize,
        /// How many the array has.
        total: usize,
    },
    /// A directory that is to become a member is one of an array.
    #[error("{}: belongs to array {found}; give an empty directory that no array uses", show(.path))]
    OfArray {
        /// The directory.
        path: Vec<u8>,
        /// Its array.
        found: Uuid,
    },
    /// A member that is to be made anew is in use.
    #[error("{}: is in sync; only a member that is out can be rebuilt", show(.path))]
    InSync {
        /// The member.
        path: Vec<u8>,
    },
    /// A newer program has written a table of a member that is to be made anew.
    #[error("{}: {reason}; use the newer cxlraid, or empty the directory to give up what is in it", show(.path))]
    NewerTable {
        /// The member.
        path: Vec<u8>,
        /// Which table, and its version.
        reason: String,
    },
    /// Two members claim one slot.
    #[error("{}: is slot {slot} of the array, and so is another member given; give each member once", show(.path))]
    SlotTwice {
        /// The member.
        path: Vec<u8>,
        /// Its slot.
        slot: usize,
    },
    /// The array has another level.
    #[error("the members form a RAID {array} array, not RAID {asked}; set the level to {array} or give other members")]
    OtherLevel {
        /// On the members.
        array: Level,
        /// Configured.
        asked: Level,
    },
    /// The array has another number of members.
    #[error("the array has {array} members, {asked} given; give all of them, missing ones too")]
    OtherCount {
        /// On the members.
        array: usize,
        /// Configured.
        asked: usize,
    },
    /// The array has another chunk.
    #[error("the array has chunks of {} bytes, not {}; leave the chunk size out or give the array's", .array.bytes(), .asked.bytes())]
    OtherChunk {
        /// On the members.
        array: ChunkBytes,
        /// Configured.
        asked: ChunkBytes,
    },
    /// More members are out than the level bears.
    #[error("{out} of {total} members cannot be used ({which}), RAID {level} bears {bears}; {todo}")]
    TooManyOut {
        /// How many.
        out: usize,
        /// Of how many.
        total: usize,
        /// Which, and why.
        which: String,
        /// The level.
        level: Level,
        /// How many it bears whichever they are.
        bears: usize,
        /// What to do.
        todo: &'static str,
    },
    /// Level and members do not fit.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The runtime segment cannot be used.
    #[error("{path}: cannot use the runtime segment: {}; {}", runtime_trouble(*.error), runtime_remedy(*.error))]
    Runtime {
        /// The segment.
        path: String,
        /// How it failed.
        error: OsError,
    },
    /// Processes use the array by way of another runtime segment.
    #[error("{}: in use by processes with another /dev/shm (another container?); stop them, or share /dev/shm with them", show(.path))]
    InUseElsewhere {
        /// A member they hold.
        path: Vec<u8>,
    },
    /// The processes attached are of another PID namespace.
    #[error(
        "{path}: in use by processes of another PID namespace (another container?); stop them, or share the PID namespace with them"
    )]
    OtherPidNamespace {
        /// The runtime segment.
        path: String,
    },
    /// The array's journal cannot be opened.
    #[error(
        "{}: the array's journal: {}; mount its device, or give it up by 'cxlraid journal clear --force --to PATH|internal' (writes under way at the last crash may be lost)",
        show(.path), describe(*.error)
    )]
    JournalLost {
        /// Where it should be.
        path: Vec<u8>,
        /// Why it cannot be opened.
        error: OsError,
    },
    /// What lies where the array's journal should be is not that.
    #[error(
        "{}: cannot be used as the array's journal: {error}; mount the right device, or give the journal up by 'cxlraid journal clear --force --to PATH|internal' (writes under way at the last crash may be lost)",
        show(.path)
    )]
    JournalForeign {
        /// Where it should be.
        path: Vec<u8>,
        /// What is wrong with it.
        error: JournalError,
    },
    /// A journal is to be made where only the superblocks say, and the array has none there.
    #[error("{}: the members name this path, and the array's journal is not there; say where to make one by 'cxlraid journal clear --force --to PATH|internal'", show(.path))]
    JournalNotThere {
        /// The path.
        path: Vec<u8>,
    },
    /// The journal could not be made.
    #[error("{}: cannot make a journal of {} MiB: {}; {}, or choose another path", show(.path), .bytes.div_ceil(1 << 20), describe(*.error), journal_remedy(*.error))]
    JournalNotMade {
        /// Where.
        path: Vec<u8>,
        /// How long it is to be.
        bytes: u64,
        /// How it failed.
        error: OsError,
    },
    /// A file that is no journal lies where one is to be made.
    #[error("{}: exists and is not a journal; remove it, or choose another path", show(.path))]
    JournalInTheWay {
        /// The path.
        path: Vec<u8>,
    },
    /// The array has no journal.
    #[error("CXLRAID_JOURNAL={}: the array has no journal; unset it, or make one by 'cxlraid journal add'", show(.asked))]
    NoJournal {
        /// Configured.
        asked: Vec<u8>,
    },
    /// The array's journal is in another kind of place.
    #[error("CXLRAID_JOURNAL={}: the array's journal is {}; unset CXLRAID_JOURNAL, or set it to that", show(.asked), show(.found))]
    OtherJournalPlace {
        /// Configured.
        asked: Vec<u8>,
        /// In the superblocks.
        found: Vec<u8>,
    },
    /// Members changed while they were looked at.
    #[error("the members changed while they were assembled; try again")]
    Vanished,
}

/// What is wrong with a file system that gives this error, and what to do.
const fn failing(error: OsError) -> [&'static str; 2] {
    match error {
        OsError::ROFS => ["is read-only", "mount it read-write"],
        _ => ["fails", "see to it that its device works"],
    }
}

impl AttachError {
    pub(crate) fn os(path: &[u8], action: &'static str, error: OsError) -> Self {
        Self::Os { path: path.to_vec(), action, error }
    }

    pub(crate) fn journal(path: &[u8], error: JournalError) -> Self {
        Self::JournalForeign { path: path.to_vec(), error }
    }

    pub(crate) fn too_many_out(geometry: &Geometry, members: &[Member]) -> Self {
        let gone: Vec<String> = members
            .iter()
            .filter(|member| member.lacks_bytes())
            .map(|member| {
                let why = match member.standing {
                    Standing::InSync => "rebuilding",
                    Standing::Stale => "stale",
                    Standing::Replaced => {
                        "not the directory that programs used (put that one back; if it was moved, run 'cxlraid stop')"
                    }
                    Standing::Emptied => "emptied",
                    // Of one without its directory the superblock could not be read.
                    Standing::Damaged if member.root().is_some() => "damaged or missing files in .cxlraid",
                    Standing::Damaged => "damaged superblock",
                    Standing::Failed => "failed",
                    Standing::Missing | Standing::Leaving => "missing",
                };
                let path = show(&member.path);
                match (&member.finding, member.standing) {
                    (Some(cause), Standing::Failed) if member.refusal.is_none() => alloc::format!("{path} {why}: {cause}"),
                    // What is wrong with its tables.
                    (Some(cause), Standing::Damaged) if member.root().is_some() => alloc::format!("{path}: {cause}"),
                    _ => alloc::format!("{path} {why}"),
                }
            })
            .collect();
        let is_stale = |member: &Member| member.standing == Standing::Stale;
        let todo = if members.iter().filter(|member| member.lacks_bytes()).all(is_stale) {
            "put back the directories that were used last where older copies of them are"
        } else {
            "bring back a missing one"
        };
        Self::TooManyOut {
            todo,
            out: gone.len(),
            total: members.len(),
            which: gone.join(", "),
            level: geometry.level(),
            bears: geometry.level().failures_max(members.len()),
        }
    }

    /// The error number that a program's call on the array gets after a refused start.
    #[must_use]
    pub fn os_error(&self) -> OsError {
        match self {
            Self::Os { error, .. }
            | Self::Runtime { error, .. }
            | Self::JournalLost { error, .. }
            | Self::JournalNotMade { error, .. } => *error,
            Self::NotOpen { .. } => OsError::ACCESS,
            Self::NotADirectory { .. } => OsError::NOTDIR,
            Self::NotThere { .. } => OsError::NOENT,
            Self::NotEmpty { .. } => OsError::NOTEMPTY,
            Self::NoAttributes { .. } => OsError::OPNOTSUPP,
            Self::TooManyOut { .. }
            | Self::UsedApart { .. }
            | Self::OutOfDate { .. }
            | Self::PreferredTooFew { .. }
            | Self::NotMounted { .. }
            | Self::Unreadable { .. }
            | Self::NotAsked { .. }
            | Self::NothingMounted { .. }
            | Self::Superblock { .. }
            | Self::JournalForeign { .. } => OsError::IO,
            Self::JournalInTheWay { .. } | Self::InSync { .. } | Self::NewerTable { .. } => OsError::EXIST,
            Self::JournalNotThere { .. } => OsError::NOENT,
            Self::ReadOnlyFeatures { .. } => OsError::ROFS,
            Self::Vanished => OsError::AGAIN,
            Self::InUseElsewhere { .. } | Self::OtherPidNamespace { .. } => OsError::BUSY,
            Self::OtherArray { .. }
            | Self::OfArray { .. }
            | Self::SlotTwice { .. }
            | Self::GivenTwice { .. }
            | Self::OtherLevel { .. }
            | Self::OtherCount { .. }
            | Self::OtherChunk { .. }
            | Self::NoJournal { .. }
            | Self::OtherJournalPlace { .. }
            | Self::Geometry(_) => OsError::INVAL,
        }
    }
}

/// What is wrong with a runtime segment that cannot be used.
fn runtime_trouble(error: OsError) -> String {
    match error {
        OsError::NOSPC => "shared memory is full".into(),
        error => describe(error),
    }
}

/// What to do about a runtime segment that cannot be used.
const fn runtime_remedy(error: OsError) -> &'static str {
    match error {
        OsError::PROTO => "end the processes that use the array and run 'cxlraid stop' on it",
        OsError::TIMEDOUT => "see which process with 'fuser', and end it",
        OsError::USERS => "end some of its programs",
        OsError::NOSPC => "make room in /dev/shm, or give it more, and try again",
        _ => "check that /dev/shm is a writable tmpfs",
    }
}

/// What to do where a journal cannot be made.
const fn journal_remedy(error: OsError) -> &'static str {
    match error {
        OsError::NOSPC | OsError::DQUOT => "make room there",
        OsError::NOENT | OsError::NOTDIR => "create its directory first",
        OsError::ACCESS | OsError::PERM | OsError::ROFS => "make its directory writable",
        _ => "see to it that its device works",
    }
}

/// An error in words, for those that members commonly give.
pub(crate) fn describe(error: OsError) -> String {
    let text = match error {
        OsError::ACCESS | OsError::PERM => "permission denied",
        OsError::NOENT => "no such file or directory",
        OsError::NOTDIR => "a part of the path is not a directory",
        OsError::ISDIR => "it is a directory",
        OsError::EXIST => "it exists",
        OsError::BUSY => "in use",
        OsError::NXIO | OsError::NODEV => "its device is not there",
        OsError::NAMETOOLONG => "its name is too long",
        OsError::FBIG => "it would be larger than this process may make files (ulimit -f)",
        OsError::NOSPC => "no space left on device",
        OsError::DQUOT => "disk quota exceeded",
        OsError::ROFS => "read-only file system",
        OsError::IO => "input/output error",
        OsError::NOMEM => "out of memory",
        OsError::MFILE => "the limit for open files of this process is too low (ulimit -n)",
        OsError::NFILE => "too many open files",
        OsError::PROTO => "it was made by another version of cxlraid",
        OsError::LOOP => "too many symbolic links",
        OsError::TIMEDOUT => "a process keeps it locked",
        OsError::USERS => {
            return alloc::format!("{} processes use the array, and no more can", crate::runtime::ATTACH_SLOT_COUNT);
        }
        OsError::OPNOTSUPP => "not supported",
        _ => return alloc::format!("error {}", error.raw_os_error()),
    };
    text.into()
}
