//! What an array is asked to be: level, members, prefixes.
//!
//! The variables are the thesis' (section 4.2, table 1): CXLRAID_LEVEL, CXLRAID_MOUNTS,
//! CXLRAID_PATHS, CXLRAID_STRIPE_SIZE, CXLRAID_JOURNAL. A named array (`cxlraid run`) is handed
//! over by the same variables.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use format::Uuid;
use layout::{Geometry, GeometryError, Level};
use units::{ChunkBytes, Shown, parse_bytes};

/// The prefixes used when CXLRAID_PATHS is not set.
pub const PATHS_DEFAULT: &str = "/home/:/root/";

/// A checked configuration. Paths are absolute, without a trailing slash, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// RAID level of new files, and of the array.
    pub level: Level,
    /// Chunk of new files; None takes the array's own, 64 KiB for a new array.
    pub chunk: Option<ChunkBytes>,
    /// Member directories, by slot.
    pub mounts: Vec<Vec<u8>>,
    /// The paths whose files belong to the array.
    pub prefixes: Vec<Vec<u8>>,
    /// The array's name, kept in new superblocks; empty for an array that has none.
    pub name: String,
    /// The array that is meant, where its name is known: none is made in its place, and no other
    /// one is used.
    pub uuid: Option<Uuid>,
    /// Whether a start makes the array if every member directory is empty.
    pub creation: Creation,
    /// Tells whether the files of an array that is made have sums of their blocks.
    pub sums: bool,
    /// Where the journal is; None takes the array's own, none for a new array.
    pub journal: Option<JournalPlace>,
    /// Lanes of a new journal.
    pub journal_lanes: usize,
    /// Whom a new array is open to, and the directories of its prefixes; None for the user who
    /// makes it alone.
    pub access: Option<format::Access>,
    /// The log of events ([`crate::events`]); None tells nobody.
    pub events: Option<Vec<u8>>,
    /// The member directory that is about to be made anew, if one is: what it says of itself counts
    /// for nothing.
    pub renewed: Option<Vec<u8>>,
}

/// Whether a start makes an array of empty directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It does.
    Asked,
    /// It does not.
    Refused,
    /// It does, unless one of the directories is, or lies below, a mount point on which nothing is
    /// mounted.
    OnPlainDirectories,
}

/// Writes that can be in a new journal at once.
pub const JOURNAL_LANES_DEFAULT: usize = 32;

/// Where a journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// On the members, in `.cxlraid`.
    Members,
    /// A file, or the directory for it; absolute.
    File(Vec<u8>),
}

impl JournalPlace {
    /// What a configuration says: `internal`, or a path.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        if text == b"internal" { Self::Members } else { Self::File(text.to_vec()) }
    }

    /// As a configuration says it.
    #[must_use]
    pub fn shown(&self) -> &[u8] {
        match self {
            Self::Members => b"internal",
            Self::File(path) => path,
        }
    }
}

/// Why a configuration cannot be used. Displayed as one line that names the variable and says what
/// to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// One of a pair of required variables is missing.
    Missing(&'static str),
    /// A level that does not exist.
    Level(String),
    /// Level and members do not fit.
    Geometry(GeometryError),
    /// The chunk is not a power of two within the limits.
    Chunk(String),
    /// A path is not absolute.
    NotAbsolute {
        /// The variable it stands in.
        variable: &'static str,
        /// The path.
        path: String,
    },
    /// A member is given twice.
    Twice(String),
    /// A prefix lies inside a member.
    PrefixInsideMember {
        /// The prefix.
        prefix: String,
        /// The member.
        member: String,
    },
    /// A member lies inside another one.
    MemberInsideMember {
        /// The inner one.
        inner: String,
        /// The outer one.
        outer: String,
    },
    /// The journal lies where members or files of the array do.
    JournalInside {
        /// The journal.
        journal: String,
        /// The member or prefix.
        directory: String,
    },
    /// What is to become of empty directories is said by 1 or 0.
    Creation(String),
    /// `CXLRAID_CHECKSUM` names no checksum.
    Checksum(String),
    /// A UUID that is none.
    Uuid(String),
    /// A prefix that would put the whole file system into the array.
    RootPrefix,
    /// A prefix whose backing files would be those that the array keeps for itself on every member.
    ReservedPrefix(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(variable) => write!(f, "{variable} is not set; set it, or use `cxlraid run NAME -- program`"),
            Self::Level(text) => write!(f, "CXLRAID_LEVEL={text}: unknown RAID level; use 0, 1, 4, 5, 6, 01 or 10"),
            Self::Geometry(error) => write!(f, "CXLRAID_MOUNTS: {error}"),
            Self::Chunk(text) => write!(
                f,
                "CXLRAID_STRIPE_SIZE={text}: not a chunk size; use a power of two from 64 to 67108864 bytes, such as 65536 or 64K"
            ),
            Self::NotAbsolute { variable, path } => write!(f, "{variable}: {path}: not an absolute path; begin it with /"),
            Self::Twice(path) => write!(f, "CXLRAID_MOUNTS: {path}: member given twice; give each member once"),
            Self::PrefixInsideMember { prefix, member } => {
                write!(f, "CXLRAID_PATHS: {prefix}: lies inside member {member}; choose a path outside every member")
            }
            Self::MemberInsideMember { inner, outer } => {
                write!(f, "CXLRAID_MOUNTS: {inner}: lies inside member {outer}; members must not contain each other")
            }
            Self::JournalInside { journal, directory } => {
                write!(
                    f,
                    "CXLRAID_JOURNAL: {journal}: lies inside {directory}; choose a path on a device of its own, or say internal"
                )
            }
            Self::ReservedPrefix(prefix) => write!(
                f,
                "CXLRAID_PATHS: {prefix}: members keep superblocks and lanes under this name; choose a path that does not begin with it"
            ),
            Self::Uuid(text) => {
                write!(f, "CXLRAID_UUID={text}: not a UUID; unset it, or give the one that 'cxlraid status' shows of the array")
            }
            Self::Creation(text) => write!(
                f,
                "CXLRAID_CREATE={text}: neither 0 nor 1; 1 lets a start make a new array of empty directories, 0 forbids it"
            ),
            Self::Checksum(text) => write!(f, "CXLRAID_CHECKSUM={text}: neither crc32c nor none"),
            Self::RootPrefix => f.write_str("CXLRAID_PATHS: / would hold the whole system; name directories below it"),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Reads the configuration through `get`, which returns the value of an environment variable.
    /// None if neither CXLRAID_LEVEL nor CXLRAID_MOUNTS is set: cxlraid is not asked for.
    pub fn from_lookup(get: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Option<Self>, ConfigError> {
        let (level, mounts) = (get("CXLRAID_LEVEL"), get("CXLRAID_MOUNTS"));
        let (level, mounts) = match (level, mounts) {
            (None, None) => return Ok(None),
            (None, _) => return Err(ConfigError::Missing("CXLRAID_LEVEL")),
            (_, None) => return Err(ConfigError::Missing("CXLRAID_MOUNTS")),
            (Some(level), Some(mounts)) => (shown(&level), mounts),
        };
        let level: Level = level.parse().map_err(|_| ConfigError::Level(level))?;
        let chunk = match get("CXLRAID_STRIPE_SIZE") {
            None => None,
            Some(text) => {
                let text = shown(&text);
                Some(parse_bytes(&text).and_then(ChunkBytes::new).ok_or(ConfigError::Chunk(text))?)
            }
        };
        let paths = get("CXLRAID_PATHS").unwrap_or_else(|| PATHS_DEFAULT.as_bytes().to_vec());
        let name = get("CXLRAID_NAME").map(|name| String::from_utf8_lossy(&name).into_owned()).unwrap_or_default();
        let mut config = Self::new(level, chunk, &split(&mounts), &split(&paths), name)?;
        if let Some(text) = get("CXLRAID_UUID").filter(|text| !text.is_empty()) {
            config.uuid = Some(Uuid::parse(&text).ok_or_else(|| ConfigError::Uuid(shown(&text)))?);
        }
        config.creation = match get("CXLRAID_CREATE").unwrap_or_default().as_slice() {
            b"" => Creation::OnPlainDirectories,
            b"0" => Creation::Refused,
            b"1" => Creation::Asked,
            text => return Err(ConfigError::Creation(shown(text))),
        };
        config.sums = match get("CXLRAID_CHECKSUM").unwrap_or_default().as_slice() {
            b"" | b"none" => false,
            b"crc32c" => true,
            text => return Err(ConfigError::Checksum(shown(text))),
        };
        if let Some(path) = get("CXLRAID_EVENTS").filter(|path| !path.is_empty()) {
            config.events = absolute("CXLRAID_EVENTS", &[path])?.pop();
        }
        match get("CXLRAID_JOURNAL").filter(|journal| !journal.is_empty()) {
            None => Ok(Some(config)),
            Some(journal) => config.with_journal(&JournalPlace::parse(&journal)).map(Some),
        }
    }

    /// Checks the parts and puts them together.
    pub fn new(
        level: Level,
        chunk: Option<ChunkBytes>,
        mounts: &[Vec<u8>],
        prefixes: &[Vec<u8>],
        name: String,
    ) -> Result<Self, ConfigError> {
        let mounts = absolute("CXLRAID_MOUNTS", mounts)?;
        let prefixes = absolute("CXLRAID_PATHS", prefixes)?;
        Geometry::new(level, mounts.len(), ChunkBytes::DEFAULT).map_err(ConfigError::Geometry)?;
        for (slot, mount) in mounts.iter().enumerate() {
            for other in &mounts[..slot] {
                if mount == other {
                    return Err(ConfigError::Twice(shown(mount)));
                }
                for (inner, outer) in [(mount, other), (other, mount)] {
                    if is_below(inner, outer) {
                        return Err(ConfigError::MemberInsideMember { inner: shown(inner), outer: shown(outer) });
                    }
                }
            }
        }
        for prefix in &prefixes {
            if prefix.is_empty() {
                return Err(ConfigError::RootPrefix);
            }
            // A backing file has the program's path below its member: this prefix would let
            // programs reach the array's own files.
            if is_below(prefix, &[b"/", format::DIRECTORY.to_bytes()].concat()) {
                return Err(ConfigError::ReservedPrefix(shown(prefix)));
            }
            if let Some(member) = mounts.iter().find(|member| is_below(prefix, member)) {
                return Err(ConfigError::PrefixInsideMember { prefix: shown(prefix), member: shown(member) });
            }
        }
        Ok(Self {
            level,
            chunk,
            mounts,
            prefixes,
            name,
            uuid: None,
            creation: Creation::OnPlainDirectories,
            sums: false,
            journal: None,
            journal_lanes: JOURNAL_LANES_DEFAULT,
            access: None,
            events: None,
            renewed: None,
        })
    }

    /// This configuration with a journal at `place`.
    pub fn with_journal(mut self, place: &JournalPlace) -> Result<Self, ConfigError> {
        let place = match place {
            JournalPlace::Members => JournalPlace::Members,
            JournalPlace::File(path) => {
                let path = absolute("CXLRAID_JOURNAL", core::slice::from_ref(path))?.concat();
                if let Some(directory) = self.mounts.iter().chain(&self.prefixes).find(|directory| is_below(&path, directory)) {
                    return Err(ConfigError::JournalInside { journal: shown(&path), directory: shown(directory) });
                }
                JournalPlace::File(path)
            }
        };
        self.journal = Some(place);
        Ok(self)
    }

    /// Whether the absolute, normalised `path` belongs to the array: it is a prefix or lies below
    /// one.
    #[inline]
    #[must_use]
    pub fn owns(&self, path: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| is_below(path, prefix))
    }
}

/// Whether `path` is `directory` or lies below it; whole components are compared.
#[inline]
#[must_use]
pub fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.starts_with(directory) && (path.len() == directory.len() || path[directory.len()] == b'/')
}

/// Takes out `.`, `..` and doubled slashes by text alone. `path` is absolute; the root becomes the
/// empty string.
#[must_use]
pub fn normalise(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => out.truncate(out.iter().rposition(|&byte| byte == b'/').unwrap_or(0)),
            name => {
                out.push(b'/');
                out.extend_from_slice(name);
            }
        }
    }
    out
}

fn split(list: &[u8]) -> Vec<Vec<u8>> {
    list.split(|&byte| byte == b':').filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
}

fn absolute(variable: &'static str, paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, ConfigError> {
    paths
        .iter()
        .map(|path| {
            if path.starts_with(b"/") {
                Ok(normalise(path))
            } else {
                Err(ConfigError::NotAbsolute { variable, path: shown(path) })
            }
        })
        .collect()
}

fn shown(bytes: &[u8]) -> String {
    Shown(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Option<Config>, ConfigError> {
        Config::from_lookup(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.as_bytes().to_vec()))
    }

    #[test]
    fn nothing_set_means_not_asked_for() {
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&[("CXLRAID_PATHS", "/data")]), Ok(None));
    }

    #[test]
    fn the_thesis_variables_and_defaults() {
        let config = parse(&[("CXLRAID_LEVEL", "5"), ("CXLRAID_MOUNTS", "/a:/b/:/c//d")]).unwrap().unwrap();
        assert_eq!(config.mounts, [b"/a".to_vec(), b"/b".to_vec(), b"/c/d".to_vec()]);
        assert_eq!(config.prefixes, [b"/home".to_vec(), b"/root".to_vec()]);
        assert_eq!(config.chunk, None);
        assert!(config.owns(b"/home"));
        assert!(config.owns(b"/home/user/file"));
        assert!(!config.owns(b"/homestead"));
        assert!(!config.owns(b"/"));
        let similar =
            parse(&[("CXLRAID_LEVEL", "1"), ("CXLRAID_MOUNTS", "/a:/b"), ("CXLRAID_PATHS", "/.cxlraids:/data/.cxlraid")]);
        assert!(similar.unwrap().unwrap().owns(b"/data/.cxlraid/x"));
    }

    #[test]
    fn the_journal_is_a_path_or_internal() {
        let with = |journal| parse(&[("CXLRAID_LEVEL", "1"), ("CXLRAID_MOUNTS", "/a:/b"), ("CXLRAID_JOURNAL", journal)]);
        assert_eq!(with("internal").unwrap().unwrap().journal, Some(JournalPlace::Members));
        assert_eq!(with("/j//k/").unwrap().unwrap().journal, Some(JournalPlace::File(b"/j/k".to_vec())));
        assert_eq!(with("").unwrap().unwrap().journal, None);
    }

    #[test]
    fn each_mistake_is_named() {
        let three = ("CXLRAID_MOUNTS", "/a:/b:/c");
        let level = ("CXLRAID_LEVEL", "5");
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[level], "CXLRAID_MOUNTS is not set"),
            (&[three], "CXLRAID_LEVEL is not set"),
            (&[("CXLRAID_LEVEL", "7"), three], "CXLRAID_LEVEL=7: unknown RAID level"),
            (&[level, ("CXLRAID_MOUNTS", "/a:/b")], "needs at least 3 members, 2 given"),
            (&[level, ("CXLRAID_MOUNTS", "/a:/b:/a/")], "/a: member given twice"),
            (&[level, ("CXLRAID_MOUNTS", "/a:/b:/b/c")], "/b/c: lies inside member /b"),
            (&[level, ("CXLRAID_MOUNTS", "/a:b:/c")], "b: not an absolute path"),
            (&[level, three, ("CXLRAID_STRIPE_SIZE", "3000")], "not a chunk size"),
            (&[level, three, ("CXLRAID_CREATE", "yes")], "CXLRAID_CREATE=yes: neither 0 nor 1"),
            (&[level, three, ("CXLRAID_PATHS", "/b/data")], "/b/data: lies inside member /b"),
            (&[level, three, ("CXLRAID_PATHS", "/")], "would hold the whole system"),
            (&[level, three, ("CXLRAID_PATHS", "/.cxlraid")], "/.cxlraid: members keep"),
            (&[level, three, ("CXLRAID_PATHS", "/data:/x/..//.cxlraid/lanes/")], "/.cxlraid/lanes: members keep"),
            (&[level, three, ("CXLRAID_PATHS", "data")], "data: not an absolute path"),
            (&[level, three, ("CXLRAID_JOURNAL", "j")], "CXLRAID_JOURNAL: j: not an absolute path"),
            (&[level, three, ("CXLRAID_JOURNAL", "/b/j")], "/b/j: lies inside /b"),
            (&[level, ("CXLRAID_MOUNTS", "/a:/b:/b/\u{1b}[2J\nc\u{202e}")], "/b/\\x1b[2J\\nc\\u{202e}: lies inside member /b"),
            (&[("CXLRAID_LEVEL", "10"), ("CXLRAID_MOUNTS", "/a:/b:/c:/d:/e")], "even number of members"),
        ];
        for (pairs, expected) in cases {
            let message = parse(pairs).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn paths_normalise_by_text() {
        for (path, expected) in [("/", ""), ("/a/./b//c/", "/a/b/c"), ("/a/../../b", "/b"), ("/..", ""), ("/a/b/..", "/a")] {
            assert_eq!(normalise(path.as_bytes()), expected.as_bytes());
        }
    }
}
