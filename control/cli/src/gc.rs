//! `cxlraid gc`: what lies in shared memory and belongs to nobody.

use crate::{
    args::Gc,
    failure::{Exit, Failure},
    registry::Registry,
    view::{bytes_text, shown},
};
use array::runtime::litter::{Kept, Litter, Sweep, sweep};
use std::{collections::BTreeMap, io};

/// Removes it, and returns what is to be printed: a line for each file, and how much that was.
pub(crate) fn gc(arguments: &Gc) -> Result<(String, Exit), Failure> {
    let found = sweep(Sweep { dry_run: arguments.dry_run, idle_seconds: 0, of_all_users: true, only: arguments.uuid });
    let names = names();
    let text: String = found.iter().map(|litter| line(litter, arguments.dry_run, &names)).collect();
    let gone = || found.iter().filter(|litter| litter.kept.is_none());
    let (count, bytes) = (gone().count(), gone().map(|litter| litter.bytes).sum());
    let done = if arguments.dry_run { "would be removed" } else { "removed" };
    let failed = found.iter().any(|litter| matches!(litter.kept, Some(Kept::Error(_))));
    Ok((format!("{text}{count} files of {} {done}\n", bytes_text(bytes)), if failed { Exit::Error } else { Exit::Fine }))
}

/// The arrays that have a name, by UUID. Mistakes in their files are for `status` to tell.
fn names() -> BTreeMap<String, String> {
    let registry = Registry::from_environment();
    let names = registry.names().unwrap_or_default();
    names.iter().filter_map(|name| Some((registry.find(name).ok()?.uuid, name.to_string()))).collect()
}

fn line(litter: &Litter, dry_run: bool, names: &BTreeMap<String, String>) -> String {
    let name = names.get(&litter.array.to_string()).map(|name| format!(" ({name})")).unwrap_or_default();
    let what = match &litter.kept {
        None if dry_run => format!("would be removed, {}", bytes_text(litter.bytes)),
        None => format!("removed, {}", bytes_text(litter.bytes)),
        Some(Kept::InUse(pids)) if pids.is_empty() => "in use".to_owned(),
        Some(Kept::InUse(pids)) => format!("in use by {}", crate::runtime::users(pids)),
        Some(Kept::Unfinished(_)) => {
            "kept: processes died and left what only this file knows; 'cxlraid stop' the array, or remove the file if its members are gone for good".to_owned()
        }
        Some(Kept::OtherNamespace) => "kept: used by processes of another PID namespace (another container?) last".to_owned(),
        Some(Kept::OtherVersion) => "kept: made by another version of cxlraid; end its programs and 'cxlraid stop' the array".to_owned(),
        Some(Kept::OtherUser(user)) => format!("kept: belongs to user {user}; run as that user or root"),
        Some(Kept::Recent) => "kept: it is being made".to_owned(),
        Some(Kept::Error(error)) => crate::failure::without_numbers(format!("cannot be removed: {}", io::Error::from(*error))),
    };
    format!("{}{name}: {what}\n", shown(&litter.path))
}
