//! Spares: empty directories that take the places of members that fail.
//!
//! Which spares an array has is in the file that keeps its name; nothing is written into a spare
//! before it takes a place. `cxlraid rebuild` puts spares in the places of members that are out,
//! and `cxlraid monitor` has that done as soon as it sees one that is out.

use crate::{
    backed, create,
    failure::{Exit, Failure},
    inspect::{self, Found, look},
    name::ArrayName,
    rebuild::{self, Begin},
    registry::{NamedArray, Registry},
    runtime,
    spec::{ArraySpec, Source, absolute},
    taken::require_free,
    view::{SpareState, SpareView, bytes_text},
};
use array::{AttachError, Standing};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};
use units::{Shown, Slot};

/// Notes a directory as a spare of an array. Returns what is to be printed.
pub(crate) fn add(registry: &Registry, name: &ArrayName, spare: &Path) -> Result<String, Failure> {
    let spare = absolute(spare);
    let mut array = registry.find(name)?;
    array.spec.spares.push(spare.clone());
    array.spec.check()?;
    // Until the name says so, no other command takes the directory.
    let lock = registry.lock(name)?;
    require_free(registry, Some(&array.uuid), std::slice::from_ref(&spare))?;
    require_blank(&spare)?;
    require_mounted(&spare)?;
    require_room(&array.spec, &spare)?;
    let todo = format!("add {} to its spares there, or forget that name", spare.display());
    registry.change(&lock, name, &todo, |spec| {
        if !spec.spares.contains(&spare) {
            spec.spares.push(spare.clone());
        }
        spec.check()
    })?;
    drop(lock);
    let devices: Vec<PathBuf> = array.spec.members.iter().cloned().chain([spare.clone()]).collect();
    for warning in create::shared_devices(&devices).iter().filter(|warning| warning.is_about(&spare)) {
        say!("{warning}");
    }
    let source = Source::Named(name.clone(), array.spec.clone(), Some(array.uuid.clone()));
    if runtime::is_volatile(&spare)
        && inspect::newest(&source, name.as_str()).is_ok_and(|it| !array::backed::fast(&it).is_empty())
    {
        let todo = "add one on a disk for the backing";
        say!("cxlraid: {}: warning: is volatile, so it takes the place of fast members only; {todo}", spare.display());
    }
    let todo = "'cxlraid monitor' and 'cxlraid rebuild' put it in the place of a member that fails";
    Ok(format!("{name}: {} is a spare; {todo}\n", spare.display()))
}

/// Takes a spare from an array that has it. Returns what is to be printed, None if it is no spare
/// of the array.
pub(crate) fn remove(registry: &Registry, name: &ArrayName, spare: &Path) -> Result<Option<String>, Failure> {
    let spare = absolute(spare);
    if !registry.find(name)?.spec.spares.contains(&spare) {
        return Ok(None);
    }
    let todo = format!("take {} from its spares there, or forget that name", spare.display());
    registry.change(&registry.lock(name)?, name, &todo, |spec| {
        spec.spares.retain(|path| *path != spare);
        Ok(())
    })?;
    Ok(Some(format!("{name}: {} is no spare any more; it is as it was\n", spare.display())))
}

/// The spares of an array, as found now.
pub(crate) fn views(source: &Source) -> Vec<SpareView> {
    let Source::Named(_, spec, uuid) = source else { return Vec::new() };
    spec.spares.iter().map(|path| view(path, uuid.as_deref())).collect()
}

fn view(path: &Path, uuid: Option<&str>) -> SpareView {
    let (state, note) = match look(path) {
        Found::Blank => match awaited(path) {
            Some(what) => (SpareState::Missing, Some(what)),
            None => (SpareState::Ready, None),
        },
        Found::Nothing("no superblock") => (SpareState::Failed, Some("the directory is not empty".to_owned())),
        Found::Nothing(what) => (SpareState::Missing, Some(what.to_owned())),
        Found::Member(own) if uuid.is_some_and(|uuid| own.array_uuid.to_string() == uuid) => {
            (SpareState::Begun, Some(format!("takes the place of member {}; 'cxlraid rebuild' goes on", own.slot)))
        }
        Found::Member(own) => (SpareState::Failed, Some(format!("belongs to array {}", own.array_uuid))),
        Found::Unusable(error) => (SpareState::Failed, Some(error.to_string())),
        Found::Failed(error) => (SpareState::Failed, Some(error.to_string())),
    };
    SpareView { path: path.display().to_string(), state, note }
}

/// Puts spares in the places of members that are out, as long as there are both. Returns what is to
/// be printed; nothing if there was nothing to do.
pub(crate) fn take(registry: &Registry, name: &ArrayName, begin: &Begin) -> Result<String, Failure> {
    let mut text = String::new();
    loop {
        let array = registry.find(name)?;
        let Some((old, spare)) = next(&array)? else { return Ok(text) };
        text += &rebuild::replace(registry, &array, &old, &spare, begin)?;
    }
}

/// A member that is out, and the spare for its place: the one that was begun for it, else the first
/// that is ready.
fn next(array: &NamedArray) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
    if array.spec.spares.is_empty() {
        return Ok(None);
    }
    let source = Source::Named(array.name.clone(), array.spec.clone(), Some(array.uuid.clone()));
    let members = rebuild::foreseen(&source, array.name.as_str())?;
    // A fast member that a restart has emptied is filled again where it is.
    let blank = backed::blank(&source, true);
    let is_due =
        |member: &&array::Member| member.standing != Standing::InSync && !blank.iter().any(|(slot, _)| *slot == member.slot);
    for member in members.iter().filter(is_due) {
        let is_begun = |path: &&PathBuf| begun_for(path, &array.uuid) == Some(member.slot);
        let old = Path::new(std::ffi::OsStr::from_bytes(&member.path));
        // A volatile one takes no place of the backing, and does not keep another one from it.
        let is_fit = |path: &Path| backed::require_durable(&source, array.name.as_str(), old, path).is_ok();
        let is_ready = |path: &&PathBuf| matches!(look(path), Found::Blank) && awaited(path).is_none() && is_fit(path);
        let spares = &array.spec.spares;
        if let Some(spare) = spares.iter().find(is_begun).or_else(|| spares.iter().find(is_ready)) {
            return Ok(Some((old.to_owned(), spare.clone())));
        }
    }
    Ok(None)
}

/// The place that a spare was being put in when that was cut short.
fn begun_for(spare: &Path, uuid: &str) -> Option<Slot> {
    match look(spare) {
        Found::Member(own) if own.array_uuid.to_string() == uuid => Some(own.slot),
        _ => None,
    }
}

/// Refuses a directory in which no member could be made.
fn require_blank(spare: &Path) -> Result<(), Failure> {
    let refused = |what: String, todo| Err(Failure::new(spare.display(), what, todo));
    match array::check_blank(spare.as_os_str().as_bytes()) {
        Ok(()) => Ok(()),
        Err(AttachError::NotThere { .. }) => refused("no such directory".to_owned(), "create it, or mount the device there"),
        Err(AttachError::OfArray { found, .. }) => {
            refused(format!("belongs to array {found}"), "give an empty directory that no array uses")
        }
        Err(error) => Err(inspect::refused(&spare.display().to_string(), &error.to_string())),
    }
}

/// What keeps a directory from becoming a member that is empty because its device is not mounted:
/// what lies there would be on another device, and covered by the mount. None if nothing is to be
/// mounted there or on the way to it, or all is.
fn awaited(directory: &Path) -> Option<String> {
    let point = array::awaited_mount(&[directory.as_os_str().as_bytes().to_vec()])?;
    Some(format!("a file system is to be mounted at {} (/etc/fstab, or a unit of systemd), and none is", Shown(&point)))
}

/// Refuses an empty directory on which, or on the way to which, a file system is to be mounted and
/// none is.
pub(crate) fn require_mounted(directory: &Path) -> Result<(), Failure> {
    match awaited(directory).filter(|_| matches!(look(directory), Found::Blank)) {
        Some(what) => Err(Failure::new(directory.display(), what, "mount it, and give the command again")),
        None => Ok(()),
    }
}

/// Refuses a directory without room for what the fullest member holds.
pub(crate) fn require_room(spec: &ArraySpec, spare: &Path) -> Result<(), Failure> {
    let Some((_, free)) = runtime::capacity(spare) else { return Ok(()) };
    let needed = spec.members.iter().map(|member| held_bytes(member)).max().unwrap_or(0);
    if needed <= free {
        return Ok(());
    }
    let what = format!("is too small: {} are free there, and a member holds {}", bytes_text(free), bytes_text(needed));
    Err(Failure::new(spare.display(), what, "give a directory on a larger device").with_exit(Exit::Error))
}

/// The space that what lies in a directory takes, as far as this user may look into it. A file with
/// several names counts once.
fn held_bytes(directory: &Path) -> u64 {
    let (mut bytes, mut known, mut left) = (0u64, BTreeSet::new(), vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        let Ok(entries) = fs::read_dir(directory) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            if metadata.is_dir() || metadata.nlink() == 1 || known.insert((metadata.dev(), metadata.ino())) {
                bytes = bytes.saturating_add(metadata.blocks() * 512);
            }
        }
    }
    bytes
}
