//! What makes an array: level, chunk, members, paths; and its other form, the `CXLRAID_*`
//! environment (thesis, table 1).
//!
//! Invariant: after [`ArraySpec::check`] members and paths are absolute, without `.`, `..` or a
//! trailing slash, and contain nothing that the colon-separated variables could not carry.

use crate::{
    failure::{Exit, Failure},
    name::ArrayName,
};
use layout::{Geometry, Level};
use std::{
    env,
    ffi::OsString,
    path::{Component, Path, PathBuf},
};
use units::ChunkBytes;

/// The variables the library reads.
pub(crate) const LEVEL: &str = "CXLRAID_LEVEL";
/// Members, in order.
pub(crate) const MOUNTS: &str = "CXLRAID_MOUNTS";
/// Path prefixes.
pub(crate) const PATHS: &str = "CXLRAID_PATHS";
/// The chunk, in bytes.
pub(crate) const STRIPE_SIZE: &str = "CXLRAID_STRIPE_SIZE";
/// The array's name, for new superblocks and for messages.
pub(crate) const NAME: &str = "CXLRAID_NAME";
/// The UUID of the array that is meant.
pub(crate) const UUID: &str = "CXLRAID_UUID";
/// Where the journal is; the superblocks know it once the array is made.
pub(crate) const JOURNAL: &str = "CXLRAID_JOURNAL";

/// What an operator chose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ArraySpec {
    pub(crate) level: Level,
    pub(crate) chunk: ChunkBytes,
    /// By slot.
    pub(crate) members: Vec<PathBuf>,
    /// Programs see the array's files below these.
    pub(crate) paths: Vec<PathBuf>,
    /// Empty directories that take the places of members that fail.
    pub(crate) spares: Vec<PathBuf>,
}

impl ArraySpec {
    /// From words on the command line: relative members count from the working directory.
    pub(crate) fn from_arguments(
        level: Level,
        chunk: ChunkBytes,
        members: &[PathBuf],
        paths: &[PathBuf],
    ) -> Result<Self, Failure> {
        let members = members.iter().map(|member| normal(&std::path::absolute(member).unwrap_or_else(|_| member.clone())));
        let spec = Self {
            level,
            chunk,
            members: members.collect(),
            paths: paths.iter().map(|path| normal(path)).collect(),
            spares: Vec::new(),
        };
        spec.check()?;
        Ok(spec)
    }

    /// Everything that can be said without looking at a file system.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        for path in self.members.iter().chain(&self.paths).chain(&self.spares) {
            check_path(path)?;
        }
        Geometry::new(self.level, self.members.len(), self.chunk).map_err(|error| {
            let text = error.to_string();
            let (what, todo) = text.split_once("; ").unwrap_or((&text, ""));
            Failure::new("members", what, todo).with_exit(Exit::Usage)
        })?;
        for (slot, member) in self.members.iter().enumerate() {
            if self.members[..slot].contains(member) {
                return Err(usage(member, "given twice as a member", "give each member once"));
            }
            if let Some(outer) = self.members.iter().find(|other| *other != member && member.starts_with(other)) {
                let what = format!("lies inside the member {}", outer.display());
                return Err(usage(member, &what, "give members that do not contain each other"));
            }
            if let Some(path) = self.paths.iter().find(|path| path.starts_with(member)) {
                let what = format!("lies inside the member {}", member.display());
                return Err(usage(path, &what, "choose a path outside every member"));
            }
        }
        for (place, spare) in self.spares.iter().enumerate() {
            if self.members.contains(spare) {
                return Err(usage(spare, "is a member of the array", "a spare is a directory of its own"));
            }
            if self.spares[..place].contains(spare) {
                return Err(usage(spare, "is a spare of the array already", "'cxlraid status' lists its spares"));
            }
            let others = || self.members.iter().chain(&self.spares).filter(|other| *other != spare);
            if let Some(other) = others().find(|other| spare.starts_with(other) || other.starts_with(spare)) {
                let what = format!("lies inside {}, or that inside it", other.display());
                return Err(usage(spare, &what, "give a directory that contains no member and lies in none"));
            }
            if let Some(path) = self.paths.iter().find(|path| path.starts_with(spare) || spare.starts_with(path)) {
                let what = format!("programs see the array's files below {}", path.display());
                return Err(usage(spare, &what, "choose a directory outside the array's paths"));
            }
        }
        if self.paths.is_empty() {
            return Err(Failure::new("paths", "none given", "say with --at where programs see the array").with_exit(Exit::Usage));
        }
        Ok(())
    }

    /// The variables that describe this array to the library.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 4] {
        // With the slash at its end a prefix means the directory and never a longer name, in the
        // thesis' reading too.
        let paths: Vec<_> = self.paths.iter().map(|path| path.join("")).collect();
        [
            (LEVEL, self.level.to_string().into()),
            (MOUNTS, joined(&self.members)),
            (PATHS, joined(&paths)),
            (STRIPE_SIZE, self.chunk.bytes().to_string().into()),
        ]
    }
}

/// Where a command gets its array from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A named array, and its UUID if it has been made; the environment does not matter.
    Named(ArrayName, ArraySpec, Option<String>),
    /// The variables of this process.
    Environment,
}

impl Source {
    /// The value of a variable, as the library would find it.
    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        match self {
            Self::Environment => env::var_os(name),
            Self::Named(..) => self.variables().into_iter().find(|(key, _)| *key == name).map(|(_, value)| value),
        }
    }

    /// What a program needs besides its own environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        match self {
            Self::Environment => Vec::new(),
            Self::Named(name, spec, uuid) => {
                let own = [(NAME, name.as_str().into())].into_iter().chain(spec.environment());
                own.chain(uuid.iter().map(|uuid| (UUID, uuid.into()))).collect()
            }
        }
    }

    /// Whether the environment describes an array.
    pub(crate) fn environment_is_set() -> bool {
        env::var_os(LEVEL).is_some() || env::var_os(MOUNTS).is_some()
    }
}

/// "64K", "1M", "64": the shortest exact form.
pub(crate) fn chunk_text(chunk: ChunkBytes) -> String {
    match chunk.shift() {
        shift @ 20.. => format!("{}M", 1_u64 << (shift - 20)),
        shift @ 10.. => format!("{}K", 1_u64 << (shift - 10)),
        shift => (1_u64 << shift).to_string(),
    }
}

fn joined(paths: &[PathBuf]) -> OsString {
    let paths: Vec<&std::ffi::OsStr> = paths.iter().map(|path| path.as_os_str()).collect();
    paths.join(":".as_ref())
}

/// The absolute path of a member as it is recorded: without `.`, repeated or trailing slashes.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    normal(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// `path` without `.`, repeated or trailing slashes. `..` stays, and is refused by [`check_path`].
fn normal(path: &Path) -> PathBuf {
    path.components().collect()
}

fn usage(path: &Path, what: &str, todo: &str) -> Failure {
    Failure::new(path.display(), what, todo).with_exit(Exit::Usage)
}

fn check_path(path: &Path) -> Result<(), Failure> {
    let Some(text) = path.to_str() else {
        return Err(usage(path, "not valid UTF-8", "rename the directory"));
    };
    if !path.is_absolute() {
        return Err(usage(path, "not an absolute path", "write it from the root, beginning with '/'"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(usage(path, "contains '..'", "write the path without it"));
    }
    if text.contains(':') || text.chars().any(char::is_control) {
        let todo = "the library's variables are separated by colons: rename the directory";
        return Err(usage(path, "contains ':' or a control character", todo));
    }
    if path.parent().is_none() {
        return Err(usage(path, "is the root directory", "choose a directory below it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(members: &[&str], paths: &[&str]) -> Result<ArraySpec, Failure> {
        let list = |texts: &[&str]| texts.iter().map(PathBuf::from).collect::<Vec<_>>();
        ArraySpec::from_arguments(Level::Raid5, ChunkBytes::DEFAULT, &list(members), &list(paths))
    }

    #[test]
    fn environment_is_the_thesis_table() {
        let spec = spec(&["/mnt/a", "/mnt//b/", "/mnt/./c"], &["/data", "/home/"]).unwrap();
        let expected = [
            ("CXLRAID_LEVEL", "5"),
            ("CXLRAID_MOUNTS", "/mnt/a:/mnt/b:/mnt/c"),
            ("CXLRAID_PATHS", "/data/:/home/"),
            ("CXLRAID_STRIPE_SIZE", "65536"),
        ];
        assert_eq!(spec.environment(), expected.map(|(key, value)| (key, OsString::from(value))));
        let source = Source::Named("db".parse().unwrap(), spec, None);
        assert_eq!(source.variable(LEVEL), Some("5".into()));
        assert_eq!(source.variable(NAME), Some("db".into()));
        assert_eq!(source.variable(JOURNAL), None);
    }

    #[test]
    fn relative_members_count_from_the_working_directory() {
        let spec = spec(&["a", "b", "/c"], &["/data"]).unwrap();
        assert_eq!(spec.members[0], env::current_dir().unwrap().join("a"));
        assert_eq!(spec.members[2], Path::new("/c"));
    }

    #[test]
    fn refusals_name_the_thing_and_say_what_to_do() {
        let line = |members: &[&str], paths: &[&str]| spec(members, paths).unwrap_err().to_string();
        assert_eq!(line(&["/a", "/b", "/a/"], &["/d"]), "cxlraid: /a: given twice as a member; give each member once");
        assert_eq!(
            line(&["/a", "/b"], &["/d"]),
            "cxlraid: members: RAID 5 needs at least 3 members, 2 given; add members or choose another level"
        );
        assert!(line(&["/a", "/b:c", "/d"], &["/d"]).starts_with("cxlraid: /b:c: contains ':'"));
        assert!(line(&["/a", "/b\n", "/c"], &["/d"]).starts_with("cxlraid: /b\\n: contains ':' or a control character"));
        assert_eq!(
            line(&["/a", "/b", "/c"], &["/b/x"]),
            "cxlraid: /b/x: lies inside the member /b; choose a path outside every member"
        );
        assert!(line(&["/a", "/b", "/b/c"], &["/d"]).starts_with("cxlraid: /b/c: lies inside the member /b"));
        assert!(line(&["/a", "/b", "/c"], &["data"]).contains("not an absolute path"));
        assert!(line(&["/a", "/b", "/c"], &["/x/../y"]).contains("contains '..'"));
        assert!(line(&["/a", "/b", "/c"], &["/"]).contains("is the root directory"));
    }

    #[test]
    fn members_that_are_not_utf8_are_refused() {
        use std::os::unix::ffi::OsStringExt;
        let odd = PathBuf::from(OsString::from_vec(b"/m\xff".to_vec()));
        let members = [odd, "/b".into(), "/c".into()];
        let failure = ArraySpec::from_arguments(Level::Raid5, ChunkBytes::DEFAULT, &members, &["/d".into()]).unwrap_err();
        assert!(failure.to_string().contains("not valid UTF-8; rename the directory"));
        assert_eq!(failure.exit, Exit::Usage);
    }

    #[test]
    fn chunk_texts_are_short() {
        let text = |bytes| chunk_text(ChunkBytes::new(bytes).unwrap());
        assert_eq!([64, 512, 1024, 65536, 1 << 20, 64 << 20].map(text), ["64", "512", "1K", "64K", "1M", "64M"]);
    }
}
