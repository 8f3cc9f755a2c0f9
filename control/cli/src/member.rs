//! `cxlraid member`: how a member is used; and the option of `create` that says so.

use crate::{
    args::{Member as Command, Switch},
    backed,
    commands::called,
    failure::{Exit, Failure},
    inspect,
    spec::{Source, absolute},
};
use array::Array;
use layout::Level;
use std::{
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};
use units::Slot;

/// Shows how a member is used, or changes that. Returns what is to be printed.
pub(crate) fn member(source: &Source, command: &Command) -> Result<String, Failure> {
    let thing = called(source);
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let slot = slot_of(&array, &command.member)?;
    if let Some(switch) = command.write_mostly {
        require_copies_in(thing, &array, "members that are written mostly")?;
        set(&array, thing, slot, switch == Switch::On)?;
    }
    if let Some(switch) = command.fast {
        backed::require_level(thing, array.default_geometry().level())?;
        if switch == Switch::On && array.may_have_shapes() {
            let todo = "files may have levels that do not bear that a restart empties a member";
            return Err(
                Failure::new(thing, "has rules, or had them, so no member of it can be fast yet", todo).with_exit(Exit::Usage)
            );
        }
        backed::set_fast(&array, thing, slot, switch == Switch::On)?;
    }
    let shown = array.members()[slot].shown();
    let is_last = array.write_mostly().contains(slot);
    let is_fast = command.fast.map_or_else(|| array.fast().contains(slot), |switch| switch == Switch::On);
    let word = |is_so| if is_so { "on" } else { "off" };
    let fast = if is_fast { ", fast on" } else { "" };
    Ok(format!("{thing}: {shown}: write-mostly {}{fast}\n", word(is_last)))
}

/// The places of members that are to be written mostly, among the members of an array that is to be
/// made.
pub(crate) fn slots_among(members: &[PathBuf], wanted: &[PathBuf], level: Level) -> Result<Vec<Slot>, Failure> {
    let place = |path: &PathBuf| {
        let found = members.iter().position(|member| absolute(member) == absolute(path));
        found.ok_or_else(|| not_among(path, "name one of the members that are given").with_exit(Exit::Usage))
    };
    if !wanted.is_empty() {
        require_copies("--write-mostly", level, "members that are written mostly")?;
    }
    wanted.iter().map(place).collect()
}

/// Says that these members of an array are written mostly.
pub(crate) fn set_all(array: &Array, thing: &str, slots: &[Slot]) -> Result<(), Failure> {
    slots.iter().try_for_each(|&slot| set(array, thing, slot, true))
}

fn set(array: &Array, thing: &str, slot: Slot, is_so: bool) -> Result<(), Failure> {
    array.set_write_mostly(slot, is_so).map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))
}

/// Refuses what only levels that keep copies have, unless files may have levels of their own.
pub(crate) fn require_copies_in(thing: &str, array: &Array, have: &str) -> Result<(), Failure> {
    if array.may_have_shapes() { Ok(()) } else { require_copies(thing, array.default_geometry().level(), have) }
}

/// Refuses what only levels that keep copies have.
pub(crate) fn require_copies(thing: &str, level: Level, have: &str) -> Result<(), Failure> {
    if level.keeps_copies() {
        return Ok(());
    }
    let what = format!("RAID {level} keeps no copies to read from instead");
    Err(Failure::new(thing, what, format!("levels 1, 01 and 10 have {have}")).with_exit(Exit::Usage))
}

/// The place in the array of the member at a path.
pub(crate) fn slot_of(array: &Array, path: &Path) -> Result<Slot, Failure> {
    let wanted = absolute(path);
    let found = array.members().iter().find(|member| member.path == wanted.as_os_str().as_bytes());
    found.map_or_else(|| Err(not_among(path, "'cxlraid status' lists its members")), |member| Ok(member.slot))
}

fn not_among(path: &Path, todo: &str) -> Failure {
    Failure::new(path.display(), "not a member of the array", todo)
}
