//! `fail` and `remove`: members are taken out by hand, while programs run.
//!
//! `fail` does what the failure of a member does, but in order, as mdadm's --fail: what a crash or
//! dead processes left half done and what was stored through mappings is made good with the
//! member's help, then every process serves from the others, and the superblocks say that the
//! member has failed. `remove` then empties its place, as mdadm's --remove: only of a member that
//! is out.

use crate::{events, failure::Failure, files::ArrayFiles, inspect, member, spec::Source};
use array::{Array, events::EventKind};
use format::Attribute;
use std::{io, path::Path};
use sys::OsError;
use units::{MemberSet, Shown, Slot};

/// How many files are named that would be lost.
const NAMED_MAX: usize = 10;

/// Takes a member out of use. Returns what is to be printed.
pub(crate) fn fail(source: &Source, thing: &str, member: &Path, force: bool) -> Result<String, Failure> {
    let (files, slot) = attach(source, thing, member)?;
    let array = files.core().array();
    let shown = array.members()[slot].shown();
    if !array.in_use().contains(slot) {
        return Err(Failure::new(
            shown,
            "is out of use already",
            "'cxlraid remove' empties its place, 'cxlraid rebuild' makes it anew",
        ));
    }
    let cannot = |error: OsError| inspect::refused(thing, &io::Error::from(error).to_string());
    let out = array.runtime().out().with(slot);
    let survives = array.bears(out);
    let lost = lost_with(&files, out, survives).map_err(cannot)?;
    if !force && (!survives || !lost.is_empty()) {
        return Err(Failure::new(
            shown,
            would_be_lost(&files, &lost),
            "rebuild the others first, or remove these files; --force takes it out all the same",
        ));
    }
    let is_only_backing =
        array.require_backing(array.in_use()).is_ok() && array.require_backing(array.in_use().without(slot)).is_err();
    if is_only_backing && !force {
        let what = "is the only member of the backing that is whole: without it fsync fails, and what is written then a restart \
                    of the machine loses";
        return Err(Failure::new(
            shown,
            what,
            "'cxlraid replace' it by a directory on a disk; --force takes it out all the same",
        ));
    }
    let waiting = agree(&files).map_err(cannot)?;
    if !force && !waiting.is_empty() {
        let what =
            format!("bytes that a crash left in {} files could not be made to agree with the member's help", waiting.len());
        let todo =
            "run it as a user who may write to every file; --force takes it out all the same, and these bytes may then be wrong";
        return Err(Failure::new(shown, what, todo));
    }
    // Another command may have taken another member out since.
    let is_borne = |out| {
        let loses_none = || files.core().lost_without(out).is_ok_and(|lost| lost.is_empty());
        array.bears(out) && (!array.may_have_shapes() || loses_none())
    };
    let taken = files.names().take_out(slot, |out| force || is_borne(out)).map_err(|error| match error {
        OsError::BUSY => Failure::new(
            shown.clone(),
            "stays: another member went out meanwhile, and the others cannot do without both",
            "rebuild the other one first; --force takes this one out all the same",
        ),
        error => cannot(error),
    });
    crate::runtime::unless_lost(taken)?;
    let is_recorded = array.is_enough_without(array.runtime().out());
    events::tell(EventKind::Fail, Some(&array.members()[slot].path), None, "member was taken out of use by hand");
    if is_recorded {
        return Ok(format!("{thing}: {shown} is out of use; 'cxlraid re-add' brings it back\n"));
    }
    Ok(format!(
        "{thing}: {shown} is out of use, and what only it has cannot be read until 'cxlraid stop'; nothing is on record\n"
    ))
}

/// Empties the place of a member that is out. Returns what is to be printed.
pub(crate) fn remove(source: &Source, thing: &str, member: &Path) -> Result<String, Failure> {
    let (files, slot) = attach(source, thing, member)?;
    let array = files.core().array();
    let found = &array.members()[slot];
    if array.in_use().contains(slot) {
        return Err(Failure::new(found.shown(), "is in use", "take it out with 'cxlraid fail' first"));
    }
    array.remove_member(slot).map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))?;
    crate::runtime::unless_lost(Ok(()))?;
    events::tell(EventKind::Removed, Some(&found.path), None, "the member's place was emptied by hand");
    let processes = crate::runtime::attached(array.uuid());
    let held = match &processes[..] {
        [] => String::new(),
        pids => {
            let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!("; processes may have it open until they end: {pids}")
        }
    };
    Ok(format!("{thing}: {} is removed{held}; 'cxlraid replace' puts another directory in its place\n", found.shown()))
}

fn attach(source: &Source, thing: &str, member: &Path) -> Result<(ArrayFiles, Slot), Failure> {
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let slot = member::slot_of(&array, member);
    // Whatever is wrong with the path, the array is left as by any other program.
    let tell = events::begin(source, thing, array.uuid());
    let files = ArrayFiles::open(array.telling(tell))?;
    Ok((files, slot?))
}

/// Has the parity of all files that wait for a resync after a crash computed: without the member
/// its bytes would be computed from parity that does not fit. Returns the inode numbers of files
/// that still wait, because they could not be opened.
fn agree(files: &ArrayFiles) -> Result<Vec<u64>, OsError> {
    let mut waiting = files.core().waiting_for_resync()?;
    if !waiting.is_empty() {
        files.open_each_to_write(|inode| {
            waiting.retain(|other| *other != inode);
            !waiting.is_empty()
        });
    }
    files.core().waiting_for_resync()
}

/// The files that could not be read any more with `out` out of use: all of the array's, unless it
/// `survives`, else those whose own level does not bear that, with what of them waits to be rebuilt
/// on what is left.
fn lost_with(files: &ArrayFiles, out: MemberSet, survives: bool) -> Result<Vec<Attribute>, OsError> {
    if !survives {
        return files.core().with_bytes();
    }
    files.core().lost_without(out)
}

/// The files that need what a member held which is out, and is not to be made anew for that; None if
/// there are none, or that cannot be told.
pub(crate) fn need_member(source: &Source, slot: Slot) -> Option<String> {
    let files = ArrayFiles::open(Array::attach(&inspect::config(source).ok()?).ok()?).ok()?;
    let lost = files.core().lost_without(files.core().array().runtime().out().with(slot)).ok()?;
    (!lost.is_empty()).then(|| would_be_lost(&files, &lost))
}

fn would_be_lost(files: &ArrayFiles, lost: &[Attribute]) -> String {
    if lost.is_empty() {
        return "the others cannot do without it".to_owned();
    }
    let mut named: Vec<String> = files.names().paths_of(lost, NAMED_MAX).iter().map(|path| Shown(path).to_string()).collect();
    if lost.len() > named.len() {
        named.push(format!("{} more", lost.len() - named.len()));
    }
    let noun = if lost.len() == 1 { "a file" } else { "files" };
    format!("{noun} would be lost: {}", named.join(", "))
}
