//! A member directory: what is found at a path, and what it counts for.

use crate::access;
use crate::emptied::is_empty;
use crate::error::{AttachError, describe};
use crate::regular::{NOT_A_FILE, open_regular};
use crate::runtime::Directory;
use crate::tables::Headers;
use crate::why;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use format::{Outline, Superblock, SuperblockError, TableKind, Uuid, Version};
use sys::high_fd::Raised;
use sys::rustix::fs::{self, AtFlags, Mode, OFlags};
use sys::{AsFd, OsError, OwnedFd};
use units::{Shown, Slot};

/// Whether a member can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Holds everything.
    InSync,
    /// Not there: no directory, or one without a superblock.
    Missing,
    /// Not there, but processes that have it open still reach it: it is in use until what only it
    /// has has been brought to the others.
    Leaving,
    /// There, but it lacks changes made while it was away.
    Stale,
    /// Another directory than the one that programs use, or used when the last of them was killed:
    /// a copy of it, perhaps an older one.
    Replaced,
    /// Somebody has removed its tree, or what is in the directory of a prefix.
    Emptied,
    /// Its superblock cannot be read, or its copy of the journal.
    Damaged,
    /// Its file system fails.
    Failed,
}

impl Standing {
    /// Returns what a start says of a member that it does without. A member in sync has no such
    /// words.
    const fn told(self) -> Option<&'static str> {
        Some(match self {
            Self::Missing | Self::Leaving => "is missing",
            Self::Stale => "is stale",
            Self::Replaced | Self::Emptied => "is not used",
            Self::Damaged => "is damaged",
            Self::Failed => "has failed",
            Self::InSync => return None,
        })
    }

    /// Why a member has this standing whose superblock alone would have it in sync.
    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Damaged => Some("files of its .cxlraid are missing or damaged"),
            Self::Emptied => Some("somebody has removed its files"),
            Self::Replaced => {
                Some("not the directory that programs used when the last of them was killed, or use; a copy may be older")
            }
            Self::Failed => Some("its file system fails or is read-only"),
            Self::InSync | Self::Missing | Self::Leaving | Self::Stale => None,
        }
    }
}

/// One member of an attached array.
pub struct Member {
    /// Its position.
    pub slot: Slot,
    /// Its directory, absolute.
    pub path: Vec<u8>,
    /// Whether it could be used when this process attached.
    pub standing: Standing,
    /// Why what is there cannot be used, in one line, if that is known.
    pub refusal: Option<String>,
    /// What was found at its path, if that alone keeps the member from being used.
    pub(crate) finding: Option<String>,
    /// True if a newer program has written a table there that this one does not know.
    pub(crate) is_newer: bool,
    /// The device number of its file system; 0 if missing.
    pub device: u64,
    /// Its uuid; nil if unknown.
    pub uuid: Uuid,
    /// Whether it was in use when this process attached, and bytes of files on it still had to be
    /// computed from the other members.
    pub is_rebuilding: bool,
    /// Its directory, and `.cxlraid` in it. None if missing.
    pub(crate) directories: Option<Directories>,
}

pub(crate) struct Directories {
    pub(crate) root: Raised,
    pub(crate) meta: Raised,
    /// The superblock, to write to if this process may; None until it is found. A process that
    /// drops its rights must still be able to record the loss of another member.
    pub(crate) superblock: Option<Raised>,
}

impl Member {
    /// Why the member is not used, if that is known.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.finding.as_deref().filter(|_| self.standing != Standing::InSync).or(self.standing.reason())
    }

    /// Returns what an operator can do about a member that is not used. A member in sync needs
    /// nothing.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.standing {
            Standing::Damaged if self.is_newer => why::NEWER_REMEDY,
            // Its superblock cannot be read, so nothing says that what lies there may be given up.
            Standing::Damaged if self.root().is_none() => why::NO_SUPERBLOCK_REMEDY,
            standing => why::remedy(standing),
        }
    }

    /// Returns what a start says of a member that it does without, and why: "is stale (changes were
    /// made while it was away)". A member in sync has no such words.
    #[must_use]
    pub fn why_unused(&self) -> Option<String> {
        let told = self.standing.told()?;
        Some(self.reason().map_or_else(|| told.into(), |reason| alloc::format!("{told} ({reason})")))
    }

    /// Whether the member may be needed for what another one lacks, and has not all of it.
    pub(crate) fn lacks_bytes(&self) -> bool {
        self.standing != Standing::InSync || self.is_rebuilding
    }

    /// The member's directory; None if it is missing.
    #[must_use]
    pub fn root(&self) -> Option<&OwnedFd> {
        self.directories.as_ref().map(|directories| &*directories.root)
    }

    /// The directory that this member is.
    pub(crate) fn directory(&self) -> Directory {
        self.directories.as_ref().map_or_else(Directory::default, |found| Directory::of(&*found.root, &*found.meta))
    }

    /// The member's superblock, as it was opened when this process attached.
    pub(crate) fn superblock(&self) -> Result<&OwnedFd, OsError> {
        self.directories.as_ref().and_then(|directories| directories.superblock.as_deref()).ok_or(OsError::NODEV)
    }

    /// The member's `.cxlraid`; None if it is missing.
    #[must_use]
    pub fn meta(&self) -> Option<&OwnedFd> {
        self.directories.as_ref().map(|directories| &*directories.meta)
    }
}

/// What lies at a member's path.
pub(crate) struct Finding {
    pub(crate) path: Vec<u8>,
    what: What,
}

enum What {
    Nothing,
    /// A directory without `.cxlraid`; whether nothing is in it.
    Plain {
        root: Raised,
        empty: bool,
    },
    Damaged {
        error: SuperblockError,
        root: Raised,
    },
    /// Its file system says so.
    Failed(OsError),
    /// There is something that cannot be used, whatever the other members are.
    Refused(AttachError),
    /// A member that was written by a program with a newer format, or with features that this one
    /// does not know. The outline is what this program knows of its superblock all the same.
    Newer {
        error: AttachError,
        outline: Option<Outline>,
    },
    Member {
        directories: Directories,
        device: u64,
        superblock: alloc::boxed::Box<Superblock>,
        /// A table of the member that a program with a newer format has written, and that format.
        newer: Option<(TableKind, Version)>,
    },
}

/// Looks at a member's path, without changing anything. That its file system fails, or has made
/// itself read-only, or that what is there cannot be used, is a finding, not an error: the other
/// members may do without it. That this user is not let in, or that a mount is read-only for this
/// process alone, is an error: it says nothing of the member.
pub(crate) fn inspect(path: &[u8]) -> Result<Finding, AttachError> {
    let what = match look_into(path) {
        Err(AttachError::Os { error, .. }) if has_failed(error) => What::Failed(error),
        Err(error @ (AttachError::NotADirectory { .. } | AttachError::Superblock { .. })) => What::Refused(error),
        Err(error @ AttachError::Os { error: OsError::ACCESS | OsError::PERM | OsError::LOOP | OsError::NOTDIR, .. }) => {
            What::Refused(error)
        }
        result => return result,
    };
    Ok(Finding { path: path.to_vec(), what })
}

/// Whether this user may use the array that a member belongs to; changes nothing. What else is
/// wrong with the member is not said.
///
/// # Errors
/// [`AttachError::NotOpen`].
pub fn check_rights(path: &[u8]) -> Result<(), AttachError> {
    match inspect(path) {
        Err(error @ AttachError::NotOpen { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Whether an error says that a file system has failed, not that it refuses.
#[must_use]
pub const fn has_failed(error: OsError) -> bool {
    matches!(error, OsError::IO | OsError::UCLEAN | OsError::SHUTDOWN | OsError::STALE | OsError::NOMEDIUM)
}

/// Tells whether an error of a call on a member speaks of the process that made the call: of its
/// rights, of a sandbox that it is in (seccomp(2), landlock(7)), or of a limit that it has reached.
/// No member is taken out for it.
#[must_use]
pub const fn is_of_process(error: OsError) -> bool {
    matches!(
        error,
        OsError::PERM
            | OsError::ACCESS
            | OsError::NOSYS
            | OsError::OPNOTSUPP
            | OsError::INVAL
            | OsError::NOMEM
            | OsError::MFILE
            | OsError::NFILE
            | OsError::INTR
            | OsError::AGAIN
            | OsError::TXTBSY
    )
}

/// Tells whether an error says that there is no space for what is to be stored, on the file system
/// or within a quota or limit.
#[must_use]
pub const fn is_no_space(error: OsError) -> bool {
    matches!(error, OsError::NOSPC | OsError::DQUOT | OsError::FBIG)
}

fn look_into(path: &[u8]) -> Result<Finding, AttachError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match fs::open(path, flags, Mode::empty()) {
        Ok(root) => Raised::new(root).map_err(|error| AttachError::os(path, "open", error))?,
        Err(OsError::NOENT) => return Ok(Finding { path: path.to_vec(), what: What::Nothing }),
        Err(OsError::NOTDIR) => return Err(AttachError::NotADirectory { path: path.to_vec() }),
        Err(OsError::ACCESS) => return Err(access::denied(fs::CWD, path, path, "open")),
        Err(error) => return Err(AttachError::os(path, "open", error)),
    };
    let what = match fs::openat(&root, format::DIRECTORY, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(meta) => {
            let meta = Raised::new(meta).map_err(|error| AttachError::os(path, "open", error))?;
            read_member(path, Directories { root, meta, superblock: None })?
        }
        Err(OsError::NOENT) => {
            let empty = is_empty(root.as_fd()).map_err(|error| AttachError::os(path, "read", error))?;
            What::Plain { root, empty }
        }
        Err(OsError::ACCESS) => {
            return Err(access::denied(root.as_fd(), format::DIRECTORY.to_bytes(), path, "open .cxlraid of"));
        }
        Err(error) => return Err(AttachError::os(path, "open .cxlraid of", error)),
    };
    Ok(Finding { path: path.to_vec(), what })
}

fn read_member(path: &[u8], mut directories: Directories) -> Result<What, AttachError> {
    let open = |access| open_regular(directories.meta.as_fd(), format::SUPERBLOCK_FILE, access);
    let opened = match open(OFlags::RDWR) {
        // For this process alone it may be read-only and readable. What has failed for everybody is
        // not a member to count on.
        Err(error @ OsError::ROFS) if crate::is_read_only(directories.root.as_fd()) => {
            return Ok(What::Failed(error));
        }
        Err(OsError::ACCESS | OsError::PERM | OsError::ROFS) => open(OFlags::RDONLY),
        result => result,
    };
    let file = match opened {
        Ok(file) => file,
        Err(OsError::LOOP | NOT_A_FILE) => {
            return Ok(What::Damaged { error: SuperblockError::NotASuperblock, root: directories.root });
        }
        // Interrupted while being created: nothing was stored here yet.
        Err(OsError::NOENT) => {
            let empty = is_empty(directories.root.as_fd()).map_err(|error| AttachError::os(path, "read", error))?;
            return Ok(What::Plain { root: directories.root, empty });
        }
        Err(OsError::ACCESS) => return Err(access::denied(directories.meta.as_fd(), b".", path, "open the superblock of")),
        Err(error) => return Err(AttachError::os(path, "open the superblock of", error)),
    };
    let mut bytes = [0u8; format::SUPERBLOCK_BYTES];
    let length = read_fully(&file, &mut bytes).map_err(|error| AttachError::os(path, "read the superblock of", error))?;
    match Superblock::choose(&bytes[..length]) {
        Ok((superblock, _)) => {
            let headers = Headers::read(&directories.meta, &superblock);
            if headers.belong_to_another {
                return Ok(What::Damaged { error: SuperblockError::OfAnotherMember, root: directories.root });
            }
            let device = fs::fstat(&directories.root).map_err(|error| AttachError::os(path, "stat", error))?.st_dev;
            // Names below a prefix need rights on its directory, not on the member's: a user of the
            // array's group may have none there.
            fs::accessat(&directories.meta, c".", fs::Access::WRITE_OK, AtFlags::empty()).map_err(|error| match error {
                OsError::ACCESS => access::denied(directories.meta.as_fd(), b".", path, "write to .cxlraid of"),
                error => AttachError::os(path, "write to", error),
            })?;
            let file = Raised::new(file).map_err(|error| AttachError::os(path, "open the superblock of", error))?;
            directories.superblock = Some(file);
            Ok(What::Member { directories, device, superblock: alloc::boxed::Box::new(superblock), newer: headers.newer })
        }
        Err(error @ (SuperblockError::NewerVersion { .. } | SuperblockError::UnknownIncompatibleFeatures { .. })) => {
            let error = AttachError::Superblock { path: path.to_vec(), error };
            Ok(What::Newer { error, outline: Outline::of(&bytes[..length]) })
        }
        Err(error @ SuperblockError::CopiesDisagree) => Err(AttachError::Superblock { path: path.to_vec(), error }),
        Err(error) => Ok(What::Damaged { error, root: directories.root }),
    }
}

pub(crate) fn read_fully(file: &OwnedFd, bytes: &mut [u8]) -> sys::Result<usize> {
    read_fully_at(file, bytes, 0)
}

/// Reads from a file's byte `offset` on until `bytes` are full or the file ends. Returns how many
/// bytes there were.
pub(crate) fn read_fully_at(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> sys::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match sys::rustix::io::pread(file, &mut bytes[length..], offset + length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(OsError::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

impl Member {
    /// Whether the member's directory holds nothing of its own but `.cxlraid` ([`is_empty`]); false
    /// if it cannot be looked into.
    pub(crate) fn is_emptied(&self) -> bool {
        self.root().is_some_and(|root| is_empty(root.as_fd()) == Ok(true))
    }
}

impl Finding {
    /// What its file system says, where that has failed or is read-only.
    pub(crate) const fn failure(&self) -> Option<OsError> {
        if let What::Failed(error) = self.what { Some(error) } else { None }
    }

    /// A member whose file system gives this error.
    #[cfg(test)]
    pub(crate) const fn failed(path: Vec<u8>, error: OsError) -> Self {
        Self { path, what: What::Failed(error) }
    }

    /// Whether it is a member of the array.
    pub(crate) fn is_of(&self, array: Uuid) -> bool {
        self.superblock().is_some_and(|superblock| superblock.array_uuid == array)
    }

    /// A directory that this user may not look into.
    pub(crate) fn closed(path: &[u8]) -> Self {
        Self::refused(path.to_vec(), AttachError::os(path, "open", OsError::ACCESS))
    }

    /// What cannot be used, for the reason given.
    pub(crate) fn refused(path: Vec<u8>, error: AttachError) -> Self {
        Self { path, what: What::Refused(error) }
    }

    /// The features that forbid this program to write the member, as the reason why it cannot be
    /// used. None if there are none.
    pub(crate) fn read_only_features(&self) -> Option<AttachError> {
        let bits = self.superblock()?.unknown_read_only_features();
        (bits != 0).then(|| AttachError::ReadOnlyFeatures { path: self.path.clone(), bits })
    }

    /// Its `.cxlraid`, if it is a member.
    pub(crate) fn meta(&self) -> Option<&OwnedFd> {
        match &self.what {
            What::Member { directories, .. } => Some(&directories.meta),
            _ => None,
        }
    }

    /// Why what is there cannot be used.
    pub(crate) fn refusal(&self) -> Option<&AttachError> {
        match &self.what {
            What::Refused(error) | What::Newer { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns what is known of a superblock that this program is too old to read. None if the
    /// superblock is another one.
    pub(crate) fn outline(&self) -> Option<Outline> {
        match self.what {
            What::Newer { outline, .. } => outline,
            _ => None,
        }
    }

    /// Returns the event count of the member's superblock, also of one that this program is too old
    /// to read.
    pub(crate) fn event_count(&self) -> Option<u64> {
        let outlined = || self.outline().map(|outline| outline.event_count);
        self.superblock().map(|superblock| superblock.event_count).or_else(outlined)
    }

    /// The directory at the path; None if there is none that could be opened.
    pub(crate) fn root(&self) -> Option<&OwnedFd> {
        match &self.what {
            What::Plain { root, .. } | What::Damaged { root, .. } => Some(root),
            What::Member { directories, .. } => Some(&directories.root),
            What::Nothing | What::Failed(_) | What::Refused(_) | What::Newer { .. } => None,
        }
    }

    pub(crate) fn superblock(&self) -> Option<&Superblock> {
        match &self.what {
            What::Member { superblock, .. } => Some(superblock),
            _ => None,
        }
    }

    /// Whether there is no member here, or one whose creation was cut short before anything could
    /// be stored.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.superblock().is_none_or(|superblock| superblock.event_count == 0)
    }

    /// The directory, if a new member can be made in it.
    pub(crate) fn blank_root(&self) -> Result<&OwnedFd, AttachError> {
        match &self.what {
            What::Plain { root, empty: true } => Ok(root),
            What::Plain { empty: false, .. } => Err(AttachError::NotEmpty { path: self.path.clone() }),
            What::Nothing => Err(AttachError::NotThere { path: self.path.clone() }),
            What::Damaged { error, .. } => Err(AttachError::Superblock { path: self.path.clone(), error: *error }),
            What::Failed(error) => Err(AttachError::os(&self.path, "look into", *error)),
            What::Refused(error) | What::Newer { error, .. } => Err(error.clone()),
            What::Member { directories, superblock, .. } if superblock.event_count == 0 => Ok(&directories.root),
            What::Member { .. } => Err(AttachError::Vanished),
        }
    }

    /// The directory, if the member of `array` in `slot` can be made anew in it: an empty one, or
    /// one that holds that member, whose content is given up.
    pub(crate) fn refillable_root(&self, array: Uuid, slot: Slot) -> Result<&OwnedFd, AttachError> {
        match &self.what {
            What::Member { superblock, .. } if superblock.array_uuid != array => {
                Err(AttachError::OtherArray { path: self.path.clone(), found: superblock.array_uuid, expected: array })
            }
            What::Member { superblock, .. } if superblock.slot != slot => {
                Err(AttachError::SlotTwice { path: self.path.clone(), slot: superblock.slot })
            }
            // What a newer program has written is left as it is.
            What::Member { newer: Some((kind, found)), .. } => {
                Err(AttachError::NewerTable { path: self.path.clone(), reason: why::newer_table(*kind, *found) })
            }
            What::Member { directories, .. } => Ok(&directories.root),
            // Of whom it is a member cannot be told: nothing of it is given up but the superblock.
            What::Damaged { root, .. } if is_empty(root.as_fd()) == Ok(true) => Ok(root),
            What::Damaged { .. } => Err(AttachError::NotEmpty { path: self.path.clone() }),
            _ => self.blank_root(),
        }
    }

    pub(crate) fn into_member(self, slot: Slot, standing: Standing) -> Member {
        match self.what {
            // What a newer program has written is left as it is.
            What::Member { directories, device, superblock, newer } => Member {
                slot,
                path: self.path,
                is_newer: newer.is_some(),
                standing: if newer.is_some() && standing == Standing::InSync { Standing::Damaged } else { standing },
                refusal: None,
                finding: newer.map(|(kind, found)| why::newer_table(kind, found)),
                device,
                uuid: superblock.member_uuid,
                is_rebuilding: false,
                directories: Some(directories),
            },
            _ => self.into_missing(slot),
        }
    }

    pub(crate) fn into_missing(self, slot: Slot) -> Member {
        let standing = match self.what {
            What::Damaged { .. } => Standing::Damaged,
            What::Failed(_) | What::Refused(AttachError::Os { .. }) => Standing::Failed,
            What::Refused(AttachError::NotADirectory { .. }) => Standing::Missing,
            What::Refused(_) | What::Newer { .. } => Standing::Damaged,
            _ => Standing::Missing,
        };
        let refusal = self.refusal().map(AttachError::to_string);
        let finding = Some(match &self.what {
            What::Nothing => why::NO_DIRECTORY.into(),
            What::Plain { empty: true, .. } => why::EMPTY.into(),
            What::Plain { empty: false, .. } => why::NO_SUPERBLOCK.into(),
            What::Damaged { error, .. } => error.to_string(),
            What::Failed(error) => describe(*error),
            What::Refused(error) | What::Newer { error, .. } => error.to_string(),
            What::Member { superblock, .. } => why::of_array(superblock.array_uuid),
        });
        Member {
            slot,
            path: self.path,
            standing,
            refusal,
            finding,
            device: 0,
            uuid: Uuid::NIL,
            is_rebuilding: false,
            is_newer: false,
            directories: None,
        }
    }
}

/// A path for messages.
pub(crate) fn show(path: &[u8]) -> String {
    Shown(path).to_string()
}
