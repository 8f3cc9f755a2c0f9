//! `cxlraid run`: the environment and the library for a program, then exec.
//!
//! Nothing of the array is touched here: the library attaches to it inside the program, and says
//! itself what is wrong.

use crate::{
    events,
    failure::{Exit, Failure},
    inspect,
    name::ArrayName,
    private, program,
    spec::{JOURNAL, Source},
};
use array::Config;
use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

const LIBRARY: &str = "libcxlraid.so";
/// Says where the library is, instead of looking for it beside the command.
const LIBRARY_VARIABLE: &str = "CXLRAID_LIB";
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
/// Tells the library that the mount namespace may end before the program (its `calls::apart`).
const APART: &str = "CXLRAID_APART";

/// Replaces this process by the program; comes back only when that fails. The array whose name is
/// `mounted` is mounted for the program first. When what serves the mount has said why it cannot,
/// the answer is what to end with.
pub(crate) fn run(source: &Source, mounted: Option<&ArrayName>, program: &[OsString]) -> Result<Exit, Failure> {
    if matches!(source, Source::Environment) && !Source::environment_is_set() {
        return Err(no_array());
    }
    let (name, arguments) = program.split_first().ok_or_else(|| Failure::new("run", "no program given", "name one after --"))?;
    let library = find_library(env::var_os(LIBRARY_VARIABLE), &own_directory()?)?;
    if let Some(why) = program::unreachable_because(name).filter(|_| mounted.is_none()) {
        let what = format!("{why}, so it does not see the array itself");
        say!("{}", Failure::new(Path::new(name).display(), what, "programs it starts may; 'run --mount' shows it to all"));
    }
    let mut command = Command::new(name);
    command.args(arguments).env(PRELOAD, preload_value(&library, env::var_os(PRELOAD).as_deref())?);
    if matches!(source, Source::Named(..)) {
        command.envs(source.variables()).env_remove(JOURNAL);
    }
    if let Source::Named(_, _, Some(uuid)) = source
        && let Ok(Some(log)) = events::made(source, uuid)
    {
        // Without a log nothing is said: standard error is the program's.
        command.env(events::EVENTS, log);
    }
    if mounted.is_some() {
        command.env(APART, "1");
    }
    let not_started = |failure: Failure| failure.with_exit(Exit::NotStarted);
    if let Some(array) = mounted
        && !private::mount(source, array).map_err(not_started)?
    {
        return Ok(Exit::NotStarted);
    }
    let error = command.exec();
    let thing = Path::new(name).display();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::new(thing, "no such program", "check its name and PATH").with_exit(Exit::NotFound),
        _ => Failure::new(thing, format!("cannot be started: {error}"), "check that it is an executable file")
            .with_exit(Exit::NotStarted),
    })
}

/// Neither a name nor variables.
pub(crate) fn no_array() -> Failure {
    Failure::new("array", "none named, and CXLRAID_LEVEL and CXLRAID_MOUNTS are not set", "name one, or set the variables")
        .with_exit(Exit::Usage)
}

fn own_directory() -> Result<PathBuf, Failure> {
    let own = env::current_exe().map_err(|error| Failure::new("cxlraid", error, "mount /proc, or set CXLRAID_LIB"))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_owned())
}

/// The library: where `given` says, else beside the command or in the lib directory of its prefix.
fn find_library(given: Option<OsString>, own_directory: &Path) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        let path = std::path::absolute(&given).unwrap_or_else(|_| given.into());
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Failure::new(path.display(), "no such library", "correct or unset CXLRAID_LIB"))
        };
    }
    let prefix = own_directory.parent().unwrap_or(Path::new("/"));
    let candidates = [own_directory.to_owned(), prefix.join("lib"), prefix.join("lib/cxlraid")];
    candidates.iter().map(|directory| directory.join(LIBRARY)).find(|path| path.is_file()).ok_or_else(|| {
        let places = candidates.each_ref().map(|directory| directory.display().to_string()).join(", ");
        Failure::new(LIBRARY, format!("not found in {places}"), "build it with 'cargo x build', or set CXLRAID_LIB")
    })
}

/// Our library first: its hooks must be in place before others' constructors run.
fn preload_value(library: &Path, existing: Option<&OsStr>) -> Result<OsString, Failure> {
    if library.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        let what = "its path contains a blank or ':', which LD_PRELOAD cannot carry";
        return Err(Failure::new(library.display(), what, "move it, or set CXLRAID_LIB to another path"));
    }
    let mut value = library.as_os_str().to_owned();
    // A nested `run` would otherwise list the library once per level.
    let others = existing.map_or(&b""[..], OsStr::as_bytes);
    for other in others.split(|byte| b": ".contains(byte)).filter(|other| !other.is_empty()) {
        if other != library.as_os_str().as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    Ok(value)
}

/// Refuses a command that would use an array, or change its members, which the library uses in this
/// process: each of the two takes what the other one does for its own, and they wait for each
/// other.
pub(crate) fn refuse_beside_library(config: &Config, thing: &str) -> Result<(), Failure> {
    if !serves_this_process(config) {
        return Ok(());
    }
    let what = "the library of 'cxlraid run' uses the array in this process already, and the two would wait for each other";
    Err(Failure::new(thing, what, "say it outside of 'cxlraid run'"))
}

/// Refuses a command whose process is to use an array on its own, and would be served by the library
/// of another array: that goes along to whatever this process executes.
pub(crate) fn refuse_below_library(thing: &str) -> Result<(), Failure> {
    if !has_library() || !Source::environment_is_set() {
        return Ok(());
    }
    let what = "the library of 'cxlraid run' serves this process, and would serve the process of the mount as well";
    Err(Failure::new(thing, what, "say it outside of 'cxlraid run'"))
}

/// Whether the library serves this process on the array with this configuration.
pub(crate) fn serves_this_process(config: &Config) -> bool {
    has_library() && inspect::config(&Source::Environment).is_ok_and(|own| is_same(&own, config))
}

/// Tells whether the library was loaded into this process.
fn has_library() -> bool {
    let value = env::var_os(PRELOAD).unwrap_or_default();
    let mut libraries = value.as_bytes().split(|byte| b": ".contains(byte)).map(OsStr::from_bytes);
    libraries.any(|path| Path::new(path).file_name() == Some(OsStr::new(LIBRARY)))
}

/// Whether two configurations mean one array. A member may have been replaced since the first was
/// given.
fn is_same(one: &Config, other: &Config) -> bool {
    one.mounts == other.mounts || one.uuid.is_some() && one.uuid == other.uuid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn library_comes_first_and_once() {
        let library = Path::new("/opt/lib/libcxlraid.so");
        let value = |existing: Option<&str>| preload_value(library, existing.map(OsStr::new)).unwrap();
        assert_eq!(value(None), "/opt/lib/libcxlraid.so");
        assert_eq!(value(Some("")), "/opt/lib/libcxlraid.so");
        assert_eq!(value(Some("/x/libjemalloc.so y.so")), "/opt/lib/libcxlraid.so:/x/libjemalloc.so:y.so");
        assert_eq!(value(Some("/x.so:/opt/lib/libcxlraid.so")), "/opt/lib/libcxlraid.so:/x.so");
        assert!(preload_value(Path::new("/my files/libcxlraid.so"), None).is_err());
    }

    #[test]
    fn library_is_found_where_it_is_installed() {
        let prefix = tempfile::tempdir().unwrap();
        let bin = prefix.path().join("bin");
        let lib = prefix.path().join("lib/cxlraid");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let message = find_library(None, &bin).unwrap_err().to_string();
        assert!(message.contains("libcxlraid.so: not found in") && message.contains("CXLRAID_LIB"), "{message}");

        fs::write(lib.join(LIBRARY), "").unwrap();
        assert_eq!(find_library(None, &bin).unwrap(), lib.join(LIBRARY));
        fs::write(bin.join(LIBRARY), "").unwrap();
        assert_eq!(find_library(None, &bin).unwrap(), bin.join(LIBRARY));
        let given = lib.join(LIBRARY);
        assert_eq!(find_library(Some(given.clone().into()), &bin).unwrap(), given);
        assert!(find_library(Some(lib.join("none").into()), &bin).is_err());
    }
}
