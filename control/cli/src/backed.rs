//! Backed arrays: fast members, which a restart of the machine empties, beside members that keep
//! what they hold, the backing. What `create` is told of them, and how blank fast members come to be
//! filled again.
//!
//! A fast member that is blank is filled like any member that is made anew. `cxlraid monitor` and
//! `cxlraid rebuild` do that. `cxlraid run` and `cxlraid mount` give it its names, if no program
//! uses the array, and start a process that copies the bytes in the background; until then the
//! backing is read.

use crate::{
    args::Create,
    commands::called,
    failure::{Exit, Failure},
    inspect::{self, Found, look},
    job::Pace,
    member, rebuild,
    repairing::{self, Repairing},
    runtime,
    spec::Source,
};
use array::{Array, Config, Standing, runtime::JobKind};
use layout::Level;
use namespace::{Content, FillError};
use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
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
            if runtime::is_volatile(path) {
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

/// Refuses a level at which not every member holds everything.
pub(crate) fn require_level(thing: &str, level: Level) -> Result<(), Failure> {
    if level == Level::Raid1 {
        return Ok(());
    }
    let what = format!("is RAID {level}, of which no member holds everything");
    Err(Failure::new(thing, what, "fast members are for RAID 1").with_exit(Exit::Usage))
}

/// The fast members that hold nothing, by slot and path; and with `begun` those as well which
/// somebody has begun to fill. Nothing if the members cannot be looked at: who uses the array then
/// says why.
pub(crate) fn blank(source: &Source, begun: bool) -> Vec<(Slot, PathBuf)> {
    let is_so = |member: &array::Member| {
        array::backed::is_blank(member) || begun && (array::backed::is_awaited(member) || member.is_rebuilding)
    };
    let place = |member: &array::Member| (member.slot, directory(&member.path).to_owned());
    let (Ok(newest), Ok(members)) = (inspect::newest(source, called(source)), rebuild::foreseen(source, called(source))) else {
        return Vec::new();
    };
    let fast = array::backed::fast(&newest);
    members.iter().filter(|member| fast.contains(member.slot) && is_so(member)).map(place).collect()
}

/// Tells by the members' own superblocks alone, which is soon done, whether all are there and in
/// sync.
fn looks_whole(config: &Config) -> bool {
    let is_whole = |path: &Vec<u8>| match look(directory(path)) {
        Found::Member(own) => own.members[own.slot].state == format::MemberState::InSync,
        _ => false,
    };
    config.mounts.iter().all(is_whole)
}

/// Sees to it that the directory of a blank fast member can be trusted like those of the backing: it
/// is made if a restart of the machine has taken it away. Anybody may have made one in a place like
/// /dev/shm, and would own what is put there.
fn prepare(config: &Config, path: &Path) -> Result<(), Failure> {
    let refused = |what: String, todo: &str| Err(Failure::new(path.display(), what, todo));
    if let Some(point) = array::awaited_mount(&[path.as_os_str().as_bytes().to_vec()]) {
        let what = format!("is not filled: a file system is to be mounted at {}, and none is", units::Shown(&point));
        return refused(what, "mount it, then 'cxlraid rebuild'");
    }
    let members = config.mounts.iter().map(|path| directory(path));
    let backing = members.filter(|path| matches!(look(path), Found::Member(_))).find_map(|path| fs::metadata(path).ok());
    let Some(like) = backing else { return refused("no other member is there".into(), "mount the backing") };
    let may_write = |mode: u32| mode & 0o022;
    if let Some((above, uid)) = untrusted_above(path, &like) {
        let what = format!("is not filled: user {uid} has made {} above it, or others may change that", above.display());
        return refused(what, "remove that, or give it the owner and mode of the backing");
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            if ![0, like.uid()].contains(&found.uid()) || may_write(found.mode()) & !may_write(like.mode()) != 0 {
                let what = format!("is not filled: user {} has made it, or others may change it", found.uid());
                return refused(what, "remove it, or give it the owner and mode of the backing");
            }
            Ok(())
        }
        Ok(_) => refused("is not filled: it is no directory".into(), "remove it, then 'cxlraid rebuild'"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path, &like).map_err(|error| {
            Failure::new(path.display(), error, "its directory is to be made by root or the owner of the backing's")
        }),
        Err(error) => refused(error.to_string(), "correct the cause, then 'cxlraid rebuild'"),
    }
}

/// Returns what lies above a path and could be exchanged by others than root and the owner of `like`,
/// and whose it is: what another user owns, and directories in which others may rename what is there.
fn untrusted_above(path: &Path, like: &fs::Metadata) -> Option<(PathBuf, u32)> {
    const STICKY: u32 = 0o1000;
    // Root may be another user's number in a user namespace.
    let root = fs::metadata("/").map_or(0, |found| found.uid());
    let is_trusted = |found: &fs::Metadata| {
        let others = found.mode() & 0o022 & !(like.mode() & 0o022);
        let is_kept = others == 0 || found.mode() & STICKY != 0 || found.is_symlink();
        [0, like.uid(), root].contains(&found.uid()) && is_kept
    };
    let path = std::path::absolute(path).ok()?;
    let parents: Vec<&Path> = path.ancestors().skip(1).collect();
    // Also where symlinks on the way lead.
    let target = parents.iter().find_map(|parent| fs::canonicalize(parent).ok()).unwrap_or_default();
    let mut above = parents.into_iter().chain(target.ancestors());
    above.find_map(|parent| {
        let found = fs::symlink_metadata(parent).ok()?;
        (!is_trusted(&found)).then(|| (parent.to_owned(), found.uid()))
    })
}

/// Makes a directory like another one, whole or not at all, and those above it.
fn make(path: &Path, like: &fs::Metadata) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(io::ErrorKind::NotFound.into()) };
    fs::create_dir_all(parent)?;
    // Somebody may have made one of them meanwhile.
    if untrusted_above(path, like).is_some() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let new = parent.join(format!(".{}.{}", name.display(), std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&new)?;
    let made = chown(&new, Some(like.uid()), Some(like.gid()))
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(like.mode() & 0o7777)))
        .and_then(|()| fs::rename(&new, path));
    made.inspect_err(|_| _ = fs::remove_dir(&new))
}

/// Makes the directories of blank fast members that a restart of the machine has taken away. Returns
/// the members that must not be filled, and why.
pub(crate) fn prepare_all(source: &Source) -> Result<Vec<(Slot, Failure)>, Failure> {
    let config = inspect::config(source)?;
    let refused = |(slot, path): (Slot, PathBuf)| Some((slot, prepare(&config, &path).err()?));
    Ok(blank(source, false).into_iter().filter_map(refused).collect())
}

/// Has blank fast members filled again, if there are any, and no other job runs. Where no program
/// uses the array they get all names first, so that a program which starts then uses them;
/// otherwise those that start later can. A process of this command goes on in the background.
/// Whatever goes wrong is told and keeps nobody from the array, which works without them.
pub(crate) fn refill(source: &Source) {
    let Source::Named(name, ..) = source else { return };
    let Ok(config) = inspect::config(source) else { return };
    if looks_whole(&config) {
        return;
    }
    let due = blank(source, true);
    if due.is_empty() || repairing::holding_process(source, name.as_str()).is_some() {
        return;
    }
    match fill(source, &config, name.as_str()).and_then(|filled| go_on(name.as_str()).map(|()| filled)) {
        Ok(filled) if filled.is_empty() => {}
        Ok(filled) => say!("cxlraid: {name}: {} is blank and is filled again from the backing", filled.join(", ")),
        Err(failure) => say!("{failure}"),
    }
}

/// Gives blank fast members all names, or begins them while programs use the array. Returns the
/// paths of these members.
fn fill(source: &Source, config: &Config, thing: &str) -> Result<Vec<String>, Failure> {
    let slots: MemberSet = blank(source, true).iter().map(|&(slot, _)| slot).collect();
    let pace = Pace { rate: None, gives_way: true, workers: 1 };
    let Ok(_alone) = Repairing::begin(source, thing, JobKind::Rebuild, slots, pace)? else { return Ok(Vec::new()) };
    let mut filled = Vec::new();
    // Another command may have filled them before this one could begin.
    for (slot, path) in blank(source, false) {
        prepare(config, &path)?;
        match namespace::fill(config, slot, Content::Anew) {
            Err(FillError::InUse) => begin(config, slot, thing)?,
            done => done.map_err(|error| rebuild::not_filled(thing, error))?,
        }
        filled.push(path.display().to_string());
    }
    Ok(filled)
}

/// Starts a process that goes on with what was begun. It is no child of this one, which may become a
/// program that waits for its children.
fn go_on(thing: &str) -> Result<(), Failure> {
    let cannot = |error| Failure::new(thing, format!("a rebuild cannot be started: {error}"), "run 'cxlraid rebuild'");
    let own = env::current_exe().map_err(cannot)?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", IN_BACKGROUND]).arg(own).args(["rebuild", thing, "--spares", "--detached", "--wait", "31536000"]);
    shell.process_group(0).current_dir("/").status().map(drop).map_err(cannot)
}

/// Refuses to make members anew if that would give up all that is durable: the last of the backing,
/// whose content other members of the backing do not have.
pub(crate) fn require_other_backing(source: &Source, slots: &[Slot], thing: &str) -> Result<(), Failure> {
    let fast = array::backed::fast(&inspect::newest(source, thing)?);
    let members = rebuild::foreseen(source, thing)?;
    let is_whole = |member: &&array::Member| member.standing == Standing::InSync && !member.is_rebuilding;
    let has_other = members.iter().filter(is_whole).any(|member| !fast.contains(member.slot));
    let Some(&slot) = slots.iter().find(|&&slot| !fast.contains(slot)).filter(|_| !fast.is_empty() && !has_other) else {
        return Ok(());
    };
    let path = members.iter().find(|member| member.slot == slot).map(array::Member::shown).unwrap_or_default();
    let what = format!("{path} has the only durable state of the array, which would be given up before a new one is whole");
    let todo = "'cxlraid replace' fills another directory and leaves this one; --force makes it anew";
    Err(Failure::new(thing, what, todo))
}

/// Refuses to put a volatile directory in the place of a member of the backing.
pub(crate) fn require_durable(source: &Source, thing: &str, old: &Path, new: &Path) -> Result<(), Failure> {
    let fast = array::backed::fast(&inspect::newest(source, thing)?);
    let members = rebuild::foreseen(source, thing)?;
    let is_backing = |member: &array::Member| rebuild::is_at(member, old) && !fast.contains(member.slot);
    if fast.is_empty() || runtime::is_volatile(old) || !members.iter().any(is_backing) {
        return Ok(());
    }
    if !runtime::is_volatile(new) {
        return Ok(());
    }
    let what = format!("is volatile, so it cannot take the place of {}, which backs fast members", old.display());
    Err(Failure::new(new.display(), what, "give a directory on a disk"))
}

fn begin(config: &Config, slot: Slot, thing: &str) -> Result<(), Failure> {
    namespace::begin(config, slot, Content::Anew).map_err(|error| rebuild::not_filled(thing, error))
}

fn directory(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}
