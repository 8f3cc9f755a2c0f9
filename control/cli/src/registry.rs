//! Named arrays: one small TOML file each, per user or for the whole system.
//!
//! A user's array hides a system array of the same name. Nothing here touches a member: the superblocks on the members
//! are the truth, a TOML file only saves typing and may be lost without loss.
//!
//! Invariant: what is written can be read back by [`Registry::find`], and files appear whole or not at all.

use crate::{
    args::parse_chunk,
    failure::Failure,
    name::ArrayName,
    spec::{ArraySpec, chunk_text},
};
use serde::{Deserialize, Serialize};
use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

const SYSTEM_DIRECTORY: &str = "/etc/cxlraid/arrays";

/// An array with a name: what its file says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NamedArray {
    pub(crate) name: ArrayName,
    /// The array's uuid as its superblocks have it, in the usual 8-4-4-4-12 form.
    pub(crate) uuid: String,
    pub(crate) spec: ArraySpec,
}

/// The keys of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrayToml {
    name: String,
    uuid: String,
    level: String,
    chunk: String,
    members: Vec<String>,
    paths: Vec<String>,
}

/// Where named arrays are kept.
pub(crate) struct Registry {
    user: Option<PathBuf>,
    system: PathBuf,
}

impl Registry {
    /// The directories of this process' user.
    pub(crate) fn from_environment() -> Self {
        let absolute = |variable| env::var_os(variable).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
        let config = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
        Self::new(config.map(|config| config.join("cxlraid/arrays")), PathBuf::from(SYSTEM_DIRECTORY))
    }

    /// Given directories.
    pub(crate) fn new(user: Option<PathBuf>, system: PathBuf) -> Self {
        Self { user, system }
    }

    /// Directories in the order they are looked at.
    fn directories(&self) -> impl Iterator<Item = &Path> {
        self.user.as_deref().into_iter().chain([self.system.as_path()])
    }

    /// The array called `name`: the user's, else the system's.
    pub(crate) fn find(&self, name: &ArrayName) -> Result<NamedArray, Failure> {
        for directory in self.directories() {
            if let Some(array) = read(&file_of(directory, name))? {
                return Ok(array);
            }
        }
        Err(Failure::new(name, "no array has this name", "'cxlraid status' lists the arrays, 'cxlraid create' makes one"))
    }

    /// Every name that [`Self::find`] finds, ascending.
    pub(crate) fn names(&self) -> Result<Vec<ArrayName>, Failure> {
        let mut names = Vec::new();
        for directory in self.directories() {
            let entries = match fs::read_dir(directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(cannot(directory, "be read", &error)),
            };
            for entry in entries {
                let file = entry.map_err(|error| cannot(directory, "be read", &error))?.file_name();
                let stem = file.to_str().and_then(|file| file.strip_suffix(".toml"));
                names.extend(stem.and_then(|stem| stem.parse::<ArrayName>().ok()));
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The file a new array would get, if that name is free there.
    pub(crate) fn free_file(&self, name: &ArrayName, system: bool) -> Result<PathBuf, Failure> {
        let directory = if system { Some(&self.system) } else { self.user.as_ref() };
        let directory = directory
            .ok_or_else(|| Failure::new(name, "there is no home directory to keep the name in", "set HOME, or use --system"))?;
        let file = file_of(directory, name);
        if fs::symlink_metadata(&file).is_ok() {
            let todo = format!("choose another name, or 'cxlraid forget {name}' first");
            return Err(Failure::new(name, format!("{} exists", file.display()), todo));
        }
        Ok(file)
    }

    /// Removes the name where [`Self::find`] finds it.
    pub(crate) fn forget(&self, name: &ArrayName) -> Result<PathBuf, Failure> {
        for directory in self.directories() {
            let file = file_of(directory, name);
            match fs::remove_file(&file) {
                Ok(()) => return Ok(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot(&file, "be removed", &error)),
            }
        }
        Err(Failure::new(name, "no array has this name", "'cxlraid status' lists the arrays"))
    }
}

/// Writes the file of a new array, with the directories above it.
pub(crate) fn save(file: &Path, array: &NamedArray) -> Result<(), Failure> {
    let text = to_toml(array)?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(|error| cannot(directory, "be created", &error))?;
    // A name beginning with '.' is never an array's, so a leftover of a crash is not read.
    let temporary = directory.join(format!(".{}.{}", array.name, std::process::id()));
    let written = write_new(&temporary, &text).and_then(|()| fs::hard_link(&temporary, file));
    let _ = fs::remove_file(&temporary);
    written.map_err(|error| cannot(file, "be written", &error))
}

fn write_new(file: &Path, text: &str) -> io::Result<()> {
    let mut out = fs::File::create(file)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()
}

fn file_of(directory: &Path, name: &ArrayName) -> PathBuf {
    directory.join(format!("{name}.toml"))
}

fn cannot(path: &Path, what: &str, error: &io::Error) -> Failure {
    let todo = match error.kind() {
        io::ErrorKind::PermissionDenied => "check its permissions, or run as its owner",
        _ => "check the path and its file system",
    };
    Failure::new(path.display(), format!("cannot {what}: {error}"), todo)
}

/// The array a file describes; `None` if there is no file.
fn read(file: &Path) -> Result<Option<NamedArray>, Failure> {
    match fs::read_to_string(file) {
        Ok(text) => from_toml(&text).map(Some).map_err(|what| {
            Failure::new(file.display(), what, "correct the file, or forget the array and create it again under this name")
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot(file, "be read", &error)),
    }
}

fn to_toml(array: &NamedArray) -> Result<String, Failure> {
    let strings = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let keys = ArrayToml {
        name: array.name.to_string(),
        uuid: array.uuid.clone(),
        level: array.spec.level.to_string(),
        chunk: chunk_text(array.spec.chunk),
        members: strings(&array.spec.members),
        paths: strings(&array.spec.paths),
    };
    toml::to_string(&keys).map_err(|error| Failure::new(&array.name, error, "report this as a bug"))
}

fn from_toml(text: &str) -> Result<NamedArray, String> {
    let keys: ArrayToml = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message())
    })?;
    let spec = ArraySpec {
        level: keys.level.parse().map_err(|error| format!("level: {error}"))?,
        chunk: parse_chunk(&keys.chunk).map_err(|error| format!("chunk: {error}"))?,
        members: keys.members.into_iter().map(PathBuf::from).collect(),
        paths: keys.paths.into_iter().map(PathBuf::from).collect(),
    };
    spec.check().map_err(|failure| failure.to_string().replacen("cxlraid: ", "", 1))?;
    Ok(NamedArray { name: keys.name.parse().map_err(|error| format!("name: {error}"))?, uuid: keys.uuid, spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use units::ChunkBytes;

    fn array(name: &str) -> NamedArray {
        NamedArray {
            name: name.parse().unwrap(),
            uuid: "6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001".to_owned(),
            spec: ArraySpec {
                level: Level::Raid01,
                chunk: ChunkBytes::DEFAULT,
                members: ["/mnt/a", "/mnt/b \"x\"", "/mnt/c", "/mnt/ü"].map(PathBuf::from).into(),
                paths: vec!["/data".into()],
            },
        }
    }

    #[test]
    fn the_file_reads_back_and_looks_as_documented() {
        let text = to_toml(&array("db")).unwrap();
        let expected = r#"name = "db"
uuid = "6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001"
level = "01"
chunk = "64K"
members = ["/mnt/a", '/mnt/b "x"', "/mnt/c", "/mnt/ü"]
paths = ["/data"]
"#;
        assert_eq!(text, expected);
        assert_eq!(from_toml(&text).unwrap(), array("db"));
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let good = to_toml(&array("db")).unwrap();
        let message = |text: &str| from_toml(text).unwrap_err();
        assert!(message(&good.replace("\"01\"", "\"7\"")).starts_with("level: unknown RAID level"));
        assert!(message(&good.replace("64K", "65K")).starts_with("chunk: a chunk is a power of two"));
        assert!(message(&good.replace("paths", "prefixes")).starts_with("line 6: unknown field `prefixes`"));
        assert!(message(&good.replace("/mnt/c", "mnt/c")).starts_with("mnt/c: not an absolute path"));
        assert!(message(&good.replace("\"/mnt/c\", ", "")).contains("needs at least 4 members, 3 given"));
    }

    #[test]
    fn a_users_array_hides_the_systems() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::new(Some(home.path().join("user")), home.path().join("system"));
        let name: ArrayName = "db".parse().unwrap();
        assert!(registry.find(&name).is_err());
        assert_eq!(registry.names().unwrap(), []);

        let system = registry.free_file(&name, true).unwrap();
        save(&system, &array("db")).unwrap();
        assert!(registry.free_file(&name, true).is_err());
        let mut own = array("db");
        own.spec.level = Level::Raid10;
        save(&registry.free_file(&name, false).unwrap(), &own).unwrap();
        save(&registry.free_file(&"web".parse().unwrap(), false).unwrap(), &array("web")).unwrap();

        assert_eq!(registry.find(&name).unwrap(), own);
        assert_eq!(registry.names().unwrap().iter().map(ArrayName::as_str).collect::<Vec<_>>(), ["db", "web"]);
        registry.forget(&name).unwrap();
        assert_eq!(registry.find(&name).unwrap(), array("db"));
        registry.forget(&name).unwrap();
        assert!(registry.forget(&name).is_err());
    }

    #[test]
    fn saving_never_replaces_a_file() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("db.toml");
        fs::write(&file, "mine").unwrap();
        assert!(save(&file, &array("db")).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn without_a_home_only_system_arrays_exist() {
        let registry = Registry::new(None, PathBuf::from("/nonexistent/arrays"));
        let failure = registry.free_file(&"db".parse().unwrap(), false).unwrap_err();
        assert!(failure.to_string().ends_with("set HOME, or use --system"));
        assert_eq!(registry.names().unwrap(), []);
    }
}
