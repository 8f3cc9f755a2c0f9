//! Named arrays: one small TOML file each, per user or for the whole system.
//!
//! A user's array hides a system array of the same name. Nothing here touches a member: the
//! superblocks on the members are the truth, a TOML file only saves typing and may be lost without
//! loss.
//!
//! Invariants: what is written can be read back by [`Registry::find`], and files appear whole or
//! not at all. A file says which of the host's paths a program does not see any more, so it is
//! believed only if nobody but root and the caller can have written it: HOME may be another user's.

use crate::{
    args::parse_chunk,
    failure::Failure,
    name::ArrayName,
    names_lock::NamesLocks,
    new_name::{NewName, taken},
    spec::{ArraySpec, chunk_text},
};
use format::Uuid;
use serde::{Deserialize, Serialize};
use std::{
    cell::RefCell,
    env,
    ffi::OsString,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{
        ffi::OsStringExt as _,
        fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};
use sys::rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, statat, unlinkat};

const SYSTEM_DIRECTORY: &str = "/etc/cxlraid/arrays";
/// Says where system-wide names are instead: for tests, which must not see the machine's arrays.
const SYSTEM_VARIABLE: &str = "CXLRAID_SYSTEM_ARRAYS";

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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    spares: Vec<String>,
}

/// Where named arrays are kept.
pub(crate) struct Registry {
    user: Option<PathBuf>,
    system: PathBuf,
    /// Who uses it: an effective user id.
    caller: u32,
    /// Paths of directories and files that are not believed, and of which the user was told.
    told: RefCell<Vec<PathBuf>>,
}

impl Registry {
    /// The directories of this process' user.
    pub(crate) fn from_environment() -> Self {
        let absolute = |variable| env::var_os(variable).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
        let home = || home().map(|home| home.join(".config"));
        let config = absolute("XDG_CONFIG_HOME").or_else(home);
        let system = absolute(SYSTEM_VARIABLE).unwrap_or_else(|| PathBuf::from(SYSTEM_DIRECTORY));
        Self::new(config.map(|config| config.join("cxlraid/arrays")), system)
    }

    /// Given directories.
    pub(crate) fn new(user: Option<PathBuf>, system: PathBuf) -> Self {
        Self { user, system, caller: sys::rustix::process::geteuid().as_raw(), told: RefCell::default() }
    }

    /// The directories that are there, in the order they are looked at.
    fn directories(&self) -> Result<Vec<(&Path, fs::File)>, Failure> {
        let mut directories = Vec::new();
        for path in self.user.as_deref().into_iter().chain([self.system.as_path()]) {
            match fs::OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(path) {
                Ok(directory) => directories.push((path, directory)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot(path, "be read", &error)),
            }
        }
        Ok(directories)
    }

    /// Why `opened`, which lies at `path`, is not believed; `None` if only root and the caller can
    /// have written it.
    fn disbelief(&self, name: &ArrayName, path: &Path, opened: &fs::File) -> Result<Option<Disbelief>, Failure> {
        let metadata = opened.metadata().map_err(|error| cannot(path, "be read", &error))?;
        let why = distrust(&metadata, self.caller);
        Ok(why.map(|(what, todo)| Disbelief { name: name.clone(), path: path.to_owned(), what, todo }))
    }

    /// Tells once for each path that it is not believed, where something else is used instead of
    /// it.
    fn tell(&self, ignored: &[Disbelief]) {
        let mut told = self.told.borrow_mut();
        for ignored in ignored {
            if !told.contains(&ignored.path) {
                told.push(ignored.path.clone());
                say!("{}", Failure::new(ignored.path.display(), format!("ignored: {}", ignored.what), &ignored.todo));
            }
        }
    }

    /// What the file of the array called `name` in the open directory `path` comes to.
    fn read(&self, path: &Path, directory: &fs::File, name: &ArrayName) -> Result<File, Failure> {
        let file = file_of(path, name);
        let base = file.file_name().unwrap_or_default();
        if let Some(why) = self.disbelief(name, path, directory)? {
            let is_there = statat(directory, base, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            return Ok(if is_there { File::Ignored(why) } else { File::Absent });
        }
        // A pipe does not block, and is told for what it is below.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut opened = match openat(directory, base, flags, Mode::empty()).map(fs::File::from).map_err(io::Error::from) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(File::Absent),
            // Others may be able to change what a symbolic link leads through, so it is not
            // followed.
            Err(error) if error.raw_os_error() == Some(sys::OsError::LOOP.raw_os_error()) => {
                let what = "is a symbolic link, and such a file is not followed";
                return Err(Failure::new(file.display(), what, "put the file itself there"));
            }
            Err(error) => return Err(cannot(&file, "be read", &error)),
        };
        if let Some(why) = self.disbelief(name, &file, &opened)? {
            return Ok(File::Ignored(why));
        }
        let mut text = String::new();
        opened.read_to_string(&mut text).map_err(|error| cannot(&file, "be read", &error))?;
        from_toml(&text).map(|array| File::Array(Box::new(array))).map_err(|what| {
            Failure::new(file.display(), what, "correct the file, or forget the array and create it again under this name")
        })
    }

    /// Where the array called `name` is described, and how: by the user's file, else the system's.
    /// If a file has the name and none is believed, the failure says why.
    fn find_in(&self, name: &ArrayName) -> Result<(&Path, fs::File, NamedArray), Failure> {
        let mut ignored = Vec::new();
        for (path, directory) in self.directories()? {
            match self.read(path, &directory, name)? {
                File::Absent => {}
                File::Ignored(why) => ignored.push(why),
                File::Array(array) => {
                    self.tell(&ignored);
                    return Ok((path, directory, *array));
                }
            }
        }
        Err(ignored.first().map_or_else(|| unknown(name), Disbelief::failure))
    }

    /// The array called `name`: the user's, else the system's.
    pub(crate) fn find(&self, name: &ArrayName) -> Result<NamedArray, Failure> {
        self.find_in(name).map(|(_, _, array)| array)
    }

    /// Every name that a file has, ascending. [`Self::find`] says what is wrong with a file that is
    /// not believed or has mistakes.
    pub(crate) fn names(&self) -> Result<Vec<ArrayName>, Failure> {
        let mut names = Vec::new();
        for (path, directory) in self.directories()? {
            names.extend(names_in(path, &directory)?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// What there is to say of arrays that cannot be looked for: those of a user without a home
    /// directory.
    pub(crate) fn unseen(&self) -> Option<Failure> {
        let what = || {
            let user = self.caller;
            format!("arrays of user {user} are not looked for, since HOME is not set and /etc/passwd has no such user")
        };
        self.user.is_none().then(|| Failure::new("status", what(), "set HOME, or XDG_CONFIG_HOME"))
    }

    /// The file a new array would get, if that name is free there.
    pub(crate) fn free_file(&self, name: &ArrayName, system: bool) -> Result<PathBuf, Failure> {
        let directory = if system { Some(&self.system) } else { self.user.as_ref() };
        let directory = directory
            .ok_or_else(|| Failure::new(name, "there is no home directory to keep the name in", "set HOME, or use --system"))?;
        // In another user's directory the new array's file would not be believed, and links there
        // would lead elsewhere.
        let present = directory.ancestors().find_map(|path| Some((path, fs::symlink_metadata(path).ok()?)));
        if let Some((path, metadata)) = present {
            let target = fs::metadata(path).ok().filter(|_| path == directory);
            let why = || target.and_then(|target| distrust(&target, self.caller));
            if let Some((what, todo)) = foreign(&metadata, self.caller).or_else(why) {
                return Err(Failure::new(path.display(), what, todo));
            }
        }
        let file = file_of(directory, name);
        if fs::symlink_metadata(&file).is_ok() { Err(taken(name, &file)) } else { Ok(file) }
    }

    /// Reserves the file of a new array.
    pub(crate) fn begin_name(&self, name: &ArrayName, system: bool) -> Result<NewName, Failure> {
        NewName::begin_among(name, self.free_file(name, system)?, system, &self.believed())
    }

    /// The directories of names that are believed, in the order in which they are locked.
    fn believed(&self) -> Vec<PathBuf> {
        let is_believed = |path: &&PathBuf| {
            let found = fs::metadata(path).ok().filter(fs::Metadata::is_dir);
            found.is_some_and(|found| distrust(&found, self.caller).is_none())
        };
        self.user.iter().chain([&self.system]).filter(is_believed).cloned().collect()
    }

    /// Returns what every file of names that is believed says, with the file's directory. A system's
    /// file is among them that a user's file of the same name hides. A file that cannot be read is left
    /// out.
    pub(crate) fn all(&self) -> Result<Vec<(PathBuf, NamedArray)>, Failure> {
        let mut all = Vec::new();
        for (path, directory) in self.directories()? {
            for name in names_in(path, &directory)? {
                if let Ok(File::Array(array)) = self.read(path, &directory, &name) {
                    all.push((file_of(path, &name), *array));
                }
            }
        }
        Ok(all)
    }

    /// Keeps other commands from making and changing names, in the directory where [`Self::find`] finds
    /// a name and in the others that this user may write to.
    pub(crate) fn lock(&self, name: &ArrayName) -> Result<NamesLocks, Failure> {
        NamesLocks::take(name, &self.believed(), self.find_in(name)?.0)
    }

    /// Has `edit` change what the file of a named array says, where [`Self::find`] finds it, and then
    /// what other believed files say that name the same array (by its UUID). No other command changes
    /// them from the moment they are read for `edit` until they are written; the caller has the locks.
    /// If `edit` refuses for the named array, all stay as they are. A file of another name that could
    /// not be changed is told, with what is to be done: `todo`.
    pub(crate) fn change(
        &self,
        lock: &NamesLocks,
        name: &ArrayName,
        todo: &str,
        edit: impl Fn(&mut ArraySpec) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (path, directory, _) = self.find_in(name)?;
        let file = file_of(path, name);
        if !lock.is_of(path) {
            return Err(Failure::new(name, "its name was given up meanwhile", "give the command again"));
        }
        let File::Array(mut array) = self.read(path, &directory, name)? else { return Err(unknown(name)) };
        edit(&mut array.spec)?;
        write(&file, &array)?;
        for (other, mut array) in self.all()?.into_iter().filter(|(other, found)| *other != file && found.uuid == array.uuid) {
            let before = array.spec.clone();
            let changed = edit(&mut array.spec);
            let is_locked = other.parent().is_some_and(|directory| lock.is_of(directory));
            let written = match changed {
                Ok(()) if array.spec == before => Ok(()),
                Ok(()) if is_locked => write(&other, &array),
                Ok(()) => Err(Failure::new(other.display(), "this user may not write it", "")),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = written {
                let what = format!("is a name of the array of {name} too, and was not changed: {}", failure.what());
                say!("{}", Failure::new(other.display(), what, todo));
            }
        }
        Ok(())
    }

    /// Removes the name where [`Self::find`] finds it.
    pub(crate) fn forget(&self, name: &ArrayName) -> Result<PathBuf, Failure> {
        let mut ignored = None;
        for (path, directory) in self.directories()? {
            if let Some(why) = self.disbelief(name, path, &directory)? {
                ignored.get_or_insert(why);
                continue;
            }
            let file = file_of(path, name);
            match unlinkat(&directory, file.file_name().unwrap_or_default(), AtFlags::empty()).map_err(io::Error::from) {
                Ok(()) => return Ok(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot(&file, "be removed", &error)),
            }
        }
        Err(ignored.as_ref().map_or_else(|| unknown(name), Disbelief::failure))
    }
}

/// What a file that may describe an array comes to.
enum File {
    /// There is no such file.
    Absent,
    /// It is not believed.
    Ignored(Disbelief),
    Array(Box<NamedArray>),
}

/// Why a file, or the directory that holds it, is not believed.
struct Disbelief {
    /// The array that it may describe.
    name: ArrayName,
    path: PathBuf,
    what: String,
    todo: String,
}

impl Disbelief {
    /// The failure, if there is nothing else that describes the array.
    fn failure(&self) -> Failure {
        Failure::new(&self.name, format!("{} is not believed: {}", self.path.display(), self.what), &self.todo)
    }
}

fn unknown(name: &ArrayName) -> Failure {
    Failure::new(name, "no array has this name", "'cxlraid status' lists the arrays, 'cxlraid create' makes one")
}

/// Writes an array's file anew.
fn write(file: &Path, array: &NamedArray) -> Result<(), Failure> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let text = to_toml(array)?;
    let temporary = file.with_file_name(format!(".{stem}.{}", std::process::id()));
    // A crash may have left it, of a process with the same number.
    let _ = fs::remove_file(&temporary);
    replace(&temporary, file, &text).map_err(|error| {
        let _ = fs::remove_file(&temporary);
        cannot(file, "be written", &error)
    })
}

/// Gives `file` another text, whole or not at all, and the mode that it had. `temporary` is a name
/// beside it, which is not used.
fn replace(temporary: &Path, file: &Path, text: &str) -> io::Result<()> {
    let mut out = fs::File::options().write(true).create_new(true).open(temporary)?;
    out.set_permissions(fs::metadata(file)?.permissions())?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    fs::rename(temporary, file)?;
    fs::File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// The home directory of the caller: services have no HOME.
pub(crate) fn home() -> Option<PathBuf> {
    let given = env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    given.or_else(|| home_in(&fs::read_to_string("/etc/passwd").ok()?, sys::rustix::process::geteuid().as_raw()))
}

/// The home directory of a user, as passwd(5) has it.
fn home_in(passwd: &str, uid: u32) -> Option<PathBuf> {
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields.get(2).is_some_and(|field| field.parse() == Ok(uid)))?;
    fields.get(5).map(PathBuf::from).filter(|home| home.is_absolute())
}

/// Why what has these attributes is not believed by `caller`, and what to do: it must belong to
/// root or to the caller, and nobody else may write it.
fn distrust(metadata: &fs::Metadata, caller: u32) -> Option<(String, String)> {
    if let Some(why) = foreign(metadata, caller) {
        return Some(why);
    }
    if !metadata.is_file() && !metadata.is_dir() {
        return Some(("not a regular file".to_owned(), "remove it".to_owned()));
    }
    let others_write = metadata.mode() & 0o022 != 0;
    others_write.then(|| ("others than its owner may write to it".to_owned(), "take that right away by 'chmod go-w'".to_owned()))
}

/// The same of its owner alone.
fn foreign(metadata: &fs::Metadata, caller: u32) -> Option<(String, String)> {
    let owner = metadata.uid();
    let todo = || "set HOME and XDG_CONFIG_HOME to your own, or make it yours by 'chown'".to_owned();
    (owner != 0 && owner != caller).then(|| (format!("belongs to user {owner}, not to user {caller} or root"), todo()))
}

/// The names that files of a directory have.
fn names_in(path: &Path, directory: &fs::File) -> Result<Vec<ArrayName>, Failure> {
    let cannot = |error: sys::OsError| cannot(path, "be read", &error.into());
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(cannot)? {
        let file = OsString::from_vec(entry.map_err(cannot)?.file_name().to_bytes().to_vec());
        let stem = file.to_str().and_then(|file| file.strip_suffix(".toml"));
        names.extend(stem.and_then(|stem| stem.parse::<ArrayName>().ok()));
    }
    Ok(names)
}

fn file_of(directory: &Path, name: &ArrayName) -> PathBuf {
    directory.join(format!("{name}.toml"))
}

pub(crate) fn cannot(path: &Path, what: &str, error: &io::Error) -> Failure {
    let todo = match error.kind() {
        io::ErrorKind::PermissionDenied => "check its permissions, or run as its owner",
        io::ErrorKind::NotADirectory => "remove the file that is in a directory's place",
        io::ErrorKind::StorageFull => "make room there",
        _ => "check the path and its file system",
    };
    Failure::new(path.display(), format!("cannot {what}: {}", error), todo)
}

pub(crate) fn to_toml(array: &NamedArray) -> Result<String, Failure> {
    let strings = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let keys = ArrayToml {
        name: array.name.to_string(),
        uuid: array.uuid.clone(),
        level: array.spec.level.to_string(),
        chunk: chunk_text(array.spec.chunk),
        members: strings(&array.spec.members),
        paths: strings(&array.spec.paths),
        spares: strings(&array.spec.spares),
    };
    toml::to_string(&keys).map_err(|error| Failure::new(&array.name, error, "report this as a bug"))
}

pub(crate) fn from_toml(text: &str) -> Result<NamedArray, String> {
    let keys: ArrayToml = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message())
    })?;
    let spec = ArraySpec {
        level: keys.level.parse().map_err(|error| format!("level: {error}"))?,
        chunk: parse_chunk(&keys.chunk).map_err(|error| format!("chunk: {error}"))?,
        members: keys.members.into_iter().map(PathBuf::from).collect(),
        paths: keys.paths.into_iter().map(PathBuf::from).collect(),
        spares: keys.spares.into_iter().map(PathBuf::from).collect(),
    };
    spec.check().map_err(|failure| failure.to_string().replacen("cxlraid: ", "", 1))?;
    let is_uuid = Uuid::parse(keys.uuid.as_bytes()).is_some_and(|uuid| !uuid.is_nil());
    if !is_uuid {
        return Err(format!("uuid: {:?} is no array's UUID ('cxlraid examine' shows the one that the members have)", keys.uuid));
    }
    Ok(NamedArray { name: keys.name.parse().map_err(|error| format!("name: {error}"))?, uuid: keys.uuid, spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use std::os::unix::fs::PermissionsExt as _;
    use units::ChunkBytes;

    fn save(file: &Path, array: &NamedArray, for_all: bool) -> Result<(), Failure> {
        NewName::begin(&array.name, file.to_owned(), for_all)?.save(array)
    }

    fn array(name: &str) -> NamedArray {
        NamedArray {
            name: name.parse().unwrap(),
            uuid: "6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001".to_owned(),
            spec: ArraySpec {
                level: Level::Raid01,
                chunk: ChunkBytes::DEFAULT,
                members: ["/mnt/a", "/mnt/b \"x\"", "/mnt/c", "/mnt/ü"].map(PathBuf::from).into(),
                paths: vec!["/data".into()],
                spares: Vec::new(),
            },
        }
    }

    #[test]
    fn a_user_without_home_in_the_environment_has_the_one_of_passwd() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\ndb:x:1000:1000::/var/lib/db:/bin/sh\nodd:x:1001:1001::home:/bin/sh\n";
        assert_eq!(home_in(passwd, 1000), Some("/var/lib/db".into()));
        assert_eq!([home_in(passwd, 1001), home_in(passwd, 7)], [None, None]);
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
        let mut with_spare = array("db");
        with_spare.spec.spares.push("/mnt/s".into());
        let text = to_toml(&with_spare).unwrap();
        assert_eq!(text, expected.to_owned() + "spares = [\"/mnt/s\"]\n");
        assert_eq!(from_toml(&text).unwrap(), with_spare);
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
        // An empty UUID would say nothing of which array is meant, and let a start make a new one.
        for uuid in ["", "xyz", "00000000-0000-0000-0000-000000000000"] {
            let said = message(&good.replace("6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001", uuid));
            assert!(said.starts_with(&format!("uuid: \"{uuid}\" is no array's UUID")), "{said}");
        }
    }

    #[test]
    fn a_users_array_hides_the_systems() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::new(Some(home.path().join("user")), home.path().join("system"));
        let name: ArrayName = "db".parse().unwrap();
        assert!(registry.find(&name).is_err());
        assert_eq!(registry.names().unwrap(), []);

        let system = registry.free_file(&name, true).unwrap();
        save(&system, &array("db"), true).unwrap();
        assert!(registry.free_file(&name, true).is_err());
        let mut own = array("db");
        own.spec.level = Level::Raid10;
        save(&registry.free_file(&name, false).unwrap(), &own, false).unwrap();
        save(&registry.free_file(&"web".parse().unwrap(), false).unwrap(), &array("web"), false).unwrap();

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
        assert!(save(&file, &array("db"), false).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn commands_that_change_an_array_at_once_lose_nothing() {
        let home = tempfile::tempdir().unwrap();
        let user = home.path().join("user");
        fs::create_dir(&user).unwrap();
        let named = array("db");
        save(&file_of(&user, &named.name), &named, false).unwrap();
        let registry = || Registry::new(Some(user.clone()), home.path().join("system"));
        std::thread::scope(|scope| {
            for command in 0..8 {
                let (registry, name) = (registry(), &named.name);
                let change = move || {
                    for spare in 0..5 {
                        let spare = PathBuf::from(format!("/spares/{command}-{spare}"));
                        let added = registry.change(&registry.lock(name).unwrap(), name, "", |spec| {
                            spec.spares.push(spare.clone());
                            Ok(())
                        });
                        added.unwrap();
                    }
                };
                scope.spawn(change);
            }
        });
        assert_eq!(registry().find(&named.name).unwrap().spec.spares.len(), 40);
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("user");
        let registry = Registry::new(Some(directory.clone()), home.path().join("system"));
        let name: ArrayName = "db".parse().unwrap();
        let file = registry.free_file(&name, false).unwrap();
        save(&file, &array("db"), false).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (path, mode, usual) in [(&file, 0o664, 0o644), (&file, 0o646, 0o644), (&directory, 0o777, 0o755)] {
            set(path, mode);
            let message = registry.find(&name).unwrap_err().to_string();
            let why = format!("cxlraid: db: {} is not believed: others than its owner may write to it; ", path.display());
            assert!(message.starts_with(&why), "{message}");
            assert_eq!(registry.names().unwrap(), std::slice::from_ref(&name));
            set(path, usual);
            assert_eq!(registry.find(&name).unwrap(), array("db"));
        }
        assert_eq!(registry.told.borrow().len(), 0);

        set(&directory, 0o777);
        assert!(registry.forget(&name).is_err());
        let message = registry.free_file(&"web".parse().unwrap(), false).unwrap_err().to_string();
        assert!(message.ends_with("others than its owner may write to it; take that right away by 'chmod go-w'"), "{message}");
        set(&directory, 0o755);
        // A system array is found behind a user's file that is ignored.
        save(&registry.free_file(&name, true).unwrap(), &array("db"), true).unwrap();
        set(&file, 0o666);
        assert_eq!(registry.find(&name).unwrap(), array("db"));
        assert_eq!(*registry.told.borrow(), std::slice::from_ref(&file));

        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(home.path().join("system/db.toml"), &file).unwrap();
        assert!(registry.find(&name).is_err());
    }

    #[test]
    fn what_another_user_owns_is_not_believed() {
        let home = tempfile::tempdir().unwrap();
        let metadata = fs::metadata(home.path()).unwrap();
        let owner = metadata.uid();
        assert_eq!(distrust(&metadata, owner), None);
        assert_eq!(foreign(&metadata, owner + 1).is_some(), owner != 0);
        if owner != 0 {
            return;
        }
        // Root with the HOME of somebody else.
        let registry = Registry::new(Some(home.path().join("config/cxlraid/arrays")), home.path().join("system"));
        let name: ArrayName = "db".parse().unwrap();
        let file = registry.free_file(&name, false).unwrap();
        save(&file, &array("db"), false).unwrap();
        std::os::unix::fs::chown(file.parent().unwrap(), Some(1000), None).unwrap();
        assert!(registry.find(&name).is_err());
        assert!(registry.free_file(&"web".parse().unwrap(), false).is_err());
        std::os::unix::fs::chown(file.parent().unwrap(), Some(0), None).unwrap();
        std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
        assert!(registry.find(&name).is_err());
        fs::remove_dir_all(home.path().join("config/cxlraid")).unwrap();
        std::os::unix::fs::chown(home.path().join("config"), Some(1000), None).unwrap();
        let message = registry.free_file(&name, false).unwrap_err().to_string();
        assert!(message.contains("/config: belongs to user 1000, not to user 0 or root; set HOME"), "{message}");
    }

    #[test]
    fn the_systems_files_have_their_modes_whatever_the_umask() {
        std::thread::spawn(|| {
            #[allow(unsafe_code)]
            // SAFETY: descriptors stay shared with the other threads; this one gets a umask and a
            // working directory of its own.
            unsafe { sys::rustix::thread::unshare_unsafe(sys::rustix::thread::UnshareFlags::FS) }.unwrap();
            let home = tempfile::tempdir().unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
            for mask in [0o000, 0o077] {
                let (top, own) = (home.path().join(format!("system{mask}")), home.path().join(format!("user{mask}")));
                let file = top.join("arrays/db.toml");
                sys::rustix::process::umask(Mode::from_raw_mode(mask));
                save(&file, &array("db"), true).unwrap();
                save(&own.join("db.toml"), &array("db"), false).unwrap();
                assert_eq!([&top, &top.join("arrays"), &file].map(|path| mode(path)), [0o755, 0o755, 0o644]);
                assert_eq!([&own, &own.join("db.toml")].map(|path| mode(path)), [0o755 & !mask, 0o644 & !mask]);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn without_a_home_only_system_arrays_exist() {
        let registry = Registry::new(None, PathBuf::from("/nonexistent/arrays"));
        let failure = registry.free_file(&"db".parse().unwrap(), false).unwrap_err();
        assert!(failure.to_string().ends_with("set HOME, or use --system"));
        assert_eq!(registry.names().unwrap(), []);
        assert!(registry.unseen().unwrap().to_string().contains("HOME is not set and /etc/passwd has no such user; set HOME"));
        let registry = Registry::new(Some("/nonexistent/mine".into()), PathBuf::from("/nonexistent/arrays"));
        assert!(registry.unseen().is_none());
    }

    /// Whatever a file says, it is read or refused in one line, and what was read is written and
    /// read again as it was.
    #[test]
    fn no_text_of_a_file_does_harm() {
        let whole = to_toml(&array("db")).unwrap();
        let pieces = [
            "[",
            "]",
            "\"",
            "=",
            "\n",
            "\\u001b",
            "\u{1b}[2J",
            "\u{202e}",
            "\\u202e",
            "members",
            "level",
            "/",
            "..",
            "\0",
            "1e999",
            "99999999999999999999",
            "'''",
            "#",
            "inf",
            "[[members]]",
        ];
        let (mut state, mut accepted) = (1_u64, 0);
        let mut below = |limit: usize| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
        };
        for round in 0..50_000 {
            let mut text: Vec<char> = whole.chars().collect();
            for _ in 0..1 + below(4) {
                let at = below(text.len());
                let end = (at + below(12)).min(text.len());
                let piece = pieces[below(pieces.len())].chars();
                match below(3) {
                    0 => drop(text.drain(at..end)),
                    1 => drop(text.splice(at..at, piece)),
                    _ => drop(text.splice(at..end, piece)),
                }
            }
            let text: String = text.into_iter().collect();
            match from_toml(&text) {
                Ok(read) => {
                    accepted += 1;
                    assert_eq!(from_toml(&to_toml(&read).unwrap()).as_ref(), Ok(&read), "round {round}: {text:?}");
                }
                Err(said) => {
                    let shown = Failure::new("file", said, "correct it").to_string();
                    let directs = |character: char| character.is_control() || character == '\u{202e}';
                    assert!(!shown.contains(directs), "round {round}: {shown:?} of {text:?}");
                }
            }
        }
        assert!(accepted > 1000, "{accepted} of 50,000 are read: too few");
    }
}
