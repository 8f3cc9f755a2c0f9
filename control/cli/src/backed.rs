//! Backed arrays: fast members, which a restart of the machine empties, beside members that keep
//! what they hold, the backing. What `create` is told of them, and how blank fast members come to be
//! filled again.
//!
//! A fast member that is blank is filled like any member that is made anew. Who does that: `cxlraid
//! monitor` and `cxlraid rebuild`, and `cxlraid run` and `cxlraid mount` start a process for it,
//! which goes on in the background. Programs never wait for it: they read the backing until then.

use crate::{
    args::Create,
    commands::called,
    failure::{Exit, Failure},
    inspect::{self, Found, look},
    member, rebuild, runtime,
    spec::Source,
};
use array::{Array, Config};
use layout::Level;
use namespace::Content;
use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};
use units::{MemberSet, Slot};

/// Runs the command that follows, and does not wait for it.
const IN_BACKGROUND: &str = r#""$0" "$@" </dev/null >/dev/null 2>&1 &"#;

/// What the options of `create` say of members.
pub(crate) struct Members {
    /// All of them, the fast ones first.
    pub(crate) all: Vec<PathBuf>,
    fast: Vec<PathBuf>,
    pub(crate) backing: Vec<PathBuf>,
}

impl Members {
    /// The members that `create` is given.
    pub(crate) fn of(arguments: &Create) -> Result<Self, Failure> {
        let (fast, backing) = (arguments.fast.clone(), arguments.backing.clone());
        if fast.is_empty() && backing.is_empty() {
            if arguments.force {
                let failure = Failure::new("create", "--force is about a backing", "leave it out, or give --fast and --backing");
                return Err(failure.with_exit(Exit::Usage));
            }
            return Ok(Self { all: arguments.members.clone(), fast, backing });
        }
        let refused = |what: &str, todo: &str| Err(Failure::new("create", what, todo).with_exit(Exit::Usage));
        if fast.is_empty() || backing.is_empty() {
            return refused("a backed array has fast members and a backing", "give both --fast DIR and --backing DIR");
        }
        if arguments.level != Level::Raid1 {
            return refused("a backed array keeps a copy of every file on each member", "leave --level out, or say 1");
        }
        if let Some(place) = &arguments.journal {
            let what = format!("a backed array has no journal yet ({} was given)", Path::new(place).display());
            return refused(&what, "leave --journal out");
        }
        Ok(Self { all: fast.iter().chain(&backing).cloned().collect(), fast, backing })
    }

    /// Refuses a backing that would not outlive a restart of the machine.
    pub(crate) fn check(&self, force: bool) -> Result<(), Failure> {
        let device = |path: &PathBuf| fs::metadata(path).ok().map(|metadata| metadata.dev());
        for path in self.backing.iter().filter(|_| !force) {
            if runtime::persistence(path).is_some_and(|domain| domain == "volatile") {
                let what = "is volatile, so it cannot back fast members: a restart of the machine empties both";
                return Err(Failure::new(path.display(), what, "give a directory on a disk; --force takes it all the same"));
            }
            if let Some(other) = self.all.iter().find(|other| *other != path && device(other) == device(path)) {
                let what = format!("is on one device with {}, so it is no backing for it", other.display());
                let todo = "give directories on devices of their own; --force takes them all the same";
                return Err(Failure::new(path.display(), what, todo));
            }
        }
        Ok(())
    }

    /// Says of an array that was made which of its members are fast.
    pub(crate) fn set(&self, array: &Array, thing: &str) -> Result<(), Failure> {
        let slots = self.fast.iter().map(|path| member::slot_of(array, path)).collect::<Result<Vec<_>, _>>()?;
        slots.into_iter().try_for_each(|slot| set_fast(array, thing, slot, true))
    }
}

/// Says of a member that it is fast, or that it is not.
pub(crate) fn set_fast(array: &Array, thing: &str, slot: Slot, is_so: bool) -> Result<(), Failure> {
    let all = MemberSet::first(array.members().len());
    if is_so && all.minus(array.fast()).without(slot).is_empty() {
        let todo = "one member at least keeps what a restart of the machine takes from the others";
        return Err(Failure::new(array.members()[slot].shown(), "is the last member that is not fast", todo));
    }
    array.set_fast(slot, is_so).map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))
}

/// The fast members that hold nothing, by slot and path; and with `begun` those as well which
/// somebody has begun to make anew. Nothing if the members cannot be looked at: who uses the array
/// then says why.
pub(crate) fn blank(source: &Source, begun: bool) -> Vec<(Slot, PathBuf)> {
    let Ok(config) = inspect::config(source) else { return Vec::new() };
    // Nearly always every member has a superblock: then that is all that is asked.
    let has_none = |path: &Vec<u8>| !own(path).join("superblock").exists();
    if !begun && !config.mounts.iter().any(has_none) {
        return Vec::new();
    }
    let (Ok(newest), Ok(members)) = (inspect::newest(source, called(source)), rebuild::foreseen(source, called(source))) else {
        return Vec::new();
    };
    let fast = array::backed::fast(&newest);
    let is_wanted = |member: &&array::Member| {
        let is_so = if begun { array::backed::is_awaited(member) } else { array::backed::is_blank(member) };
        fast.contains(member.slot) && is_so
    };
    let place = |member: &array::Member| (member.slot, directory(&member.path).to_owned());
    members.iter().filter(is_wanted).map(place).collect()
}

/// Makes the directories of blank fast members that a restart of the machine has taken away, like
/// those of the backing.
pub(crate) fn make_directories(source: &Source) -> Result<(), Failure> {
    let blank = blank(source, false);
    if blank.is_empty() {
        return Ok(());
    }
    let config = inspect::config(source)?;
    let paths: Vec<&Path> = config.mounts.iter().map(|path| directory(path)).collect();
    let like = paths.iter().find(|path| matches!(look(path), Found::Member(_))).and_then(|path| fs::metadata(path).ok());
    for (_, path) in blank.iter().filter(|(_, path)| !path.exists()) {
        let cannot = |error: io::Error| Failure::new(path.display(), error, "make the directory of this fast member");
        fs::create_dir(path).map_err(cannot)?;
        if let Some(like) = &like {
            fs::set_permissions(path, fs::Permissions::from_mode(like.permissions().mode())).map_err(cannot)?;
            chown(path, Some(like.uid()), Some(like.gid())).map_err(cannot)?;
        }
    }
    Ok(())
}

/// Has blank fast members filled in the background, if there are any: they are begun, so that
/// programs which start from now on can use them, and a process of this command goes on. Whatever
/// goes wrong is told and keeps nobody from the array, which works without them.
pub(crate) fn refill(source: &Source) {
    let Source::Named(name, ..) = source else { return };
    let blank = blank(source, false);
    if blank.is_empty() {
        return;
    }
    let begin = || {
        make_directories(source)?;
        let config = inspect::config(source)?;
        blank.iter().try_for_each(|&(slot, _)| begin(&config, slot, name.as_str()))?;
        let cannot = |error| Failure::new(name, format!("a rebuild cannot be started: {error}"), "run 'cxlraid rebuild'");
        // A shell that ends at once: this process may become a program that waits for children.
        let own = env::current_exe().map_err(cannot)?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", IN_BACKGROUND]).arg(own).args(["rebuild", name.as_str(), "--spares", "--wait", "31536000"]);
        shell.process_group(0).current_dir("/").status().map(drop).map_err(cannot)
    };
    let begun: Result<(), Failure> = begin();
    match begun {
        Ok(()) => {
            let paths: Vec<String> = blank.iter().map(|(_, path)| path.display().to_string()).collect();
            eprintln!("cxlraid: {name}: {} is blank and is filled again from the backing", paths.join(", "));
        }
        Err(failure) => eprintln!("{failure}"),
    }
}

fn begin(config: &Config, slot: Slot, thing: &str) -> Result<(), Failure> {
    namespace::begin(config, slot, Content::Anew).map_err(|error| rebuild::not_filled(thing, error))
}

fn directory(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn own(path: &[u8]) -> PathBuf {
    directory(path).join(".cxlraid")
}
