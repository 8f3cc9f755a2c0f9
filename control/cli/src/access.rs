//! `cxlraid access`: whom an array is open to; and the options of `create` that say so.

use crate::{
    args::{Access as Command, AccessOptions},
    commands::called,
    failure::{Exit, Failure},
    inspect, runtime,
    spec::Source,
};
use array::Array;
use format::Access;
use std::{fs, io::ErrorKind};
use sys::rustix::process::{getegid, geteuid};

/// What the options of a new array ask for; None if nothing is asked.
pub(crate) fn wanted(options: &AccessOptions) -> Result<Option<Access>, Failure> {
    let own = Access { owner_uid: geteuid().as_raw(), owner_gid: getegid().as_raw(), mode: 0o600 };
    let wanted = changed(options, own)?;
    Ok(options.is_given().then_some(wanted))
}

/// What the options make of `before`. A group that is named is let in, unless a mode says
/// otherwise.
fn changed(options: &AccessOptions, before: Access) -> Result<Access, Failure> {
    let id = |text: &Option<String>, file, kind| text.as_ref().map(|text| number_of(text, file, kind)).transpose();
    let mode = options.mode.or(options.group.is_some().then_some(before.mode | 0o060)).unwrap_or(before.mode);
    let access = Access {
        owner_uid: id(&options.owner, "/etc/passwd", "user")?.unwrap_or(before.owner_uid),
        owner_gid: id(&options.group, "/etc/group", "group")?.unwrap_or(before.owner_gid),
        mode,
    };
    let user = geteuid();
    if !user.is_root() && access.owner_uid != user.as_raw() {
        let thing = options.owner.clone().unwrap_or_else(|| access.owner_uid.to_string());
        return Err(Failure::new(thing, "only root may give an array to another user", "run as root, or leave --owner out"));
    }
    Ok(access)
}

/// A user's or group's number: by its name, as passwd(5) and group(5) have it, or as it is.
fn number_of(text: &str, file: &str, kind: &str) -> Result<u32, Failure> {
    let lines = fs::read_to_string(file).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(String::new()),
        _ => Err(Failure::new(file, error, "")),
    })?;
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        if fields.next()? == text { fields.nth(1)?.parse().ok() } else { None }
    };
    // The highest number says "none" to the kernel.
    let number = lines.lines().find_map(of_line).or_else(|| text.parse().ok()).filter(|&number| number != u32::MAX);
    number.ok_or_else(|| {
        Failure::new(text, format!("no such {kind}"), format!("name one that {file} has, or give its number"))
            .with_exit(Exit::Usage)
    })
}

/// Shows whom the array is open to, or changes that. Returns what is to be printed.
pub(crate) fn access(source: &Source, command: &Command) -> Result<String, Failure> {
    let thing = called(source);
    let superblock = inspect::newest(source, thing)?;
    let shown = |access| format!("{thing}: open to {}\n", array::access::shown(access));
    if !command.options.is_given() {
        return Ok(shown(superblock.access));
    }
    let user = geteuid();
    if !user.is_root() && superblock.access.owner_uid != user.as_raw() {
        let what =
            format!("only its owner and root may open it to others; it is open to {}", array::access::shown(superblock.access));
        return Err(Failure::new(thing, what, "run as one of them"));
    }
    let access = changed(&command.options, superblock.access)?;
    let pids = runtime::attached(superblock.array_uuid);
    let in_use = |pids: &[u32]| {
        Failure::new(
            thing,
            format!("is in use by {}", runtime::users(pids)),
            "end them first: what they have open they would keep",
        )
    };
    if !pids.is_empty() {
        return Err(in_use(&pids));
    }
    // What dead processes left is made good by who may, as long as everything is as they had it.
    runtime::stop(source, thing)?;
    let array = Array::attach_holding(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    if !array.was_alone() {
        return Err(in_use(&runtime::attached(superblock.array_uuid)));
    }
    let set = array.set_access(access).map_err(|error| inspect::refused(thing, &error.to_string()));
    let removed = array.runtime().remove();
    set?;
    removed.map_err(|error| inspect::refused(thing, &format!("its segment cannot be removed: {error}")))?;
    Ok(format!(
        "{}files and directories in it keep their owners and modes ('cxlraid run {thing} -- chgrp' and the like change them)\n",
        shown(access)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(owner: Option<&str>, group: Option<&str>, mode: Option<u32>) -> AccessOptions {
        AccessOptions { owner: owner.map(str::to_owned), group: group.map(str::to_owned), mode }
    }

    #[test]
    fn users_and_groups_have_names_or_numbers() {
        assert_eq!(number_of("root", "/etc/passwd", "user"), Ok(0));
        assert_eq!(number_of("4000000001", "/etc/passwd", "user"), Ok(4_000_000_001));
        for text in ["", "-1", "4294967295", "nobody-has-this-name"] {
            let line = number_of(text, "/etc/group", "group").unwrap_err().to_string();
            assert!(line.ends_with("no such group; name one that /etc/group has, or give its number"), "{line}");
        }
    }

    #[test]
    fn a_group_that_is_named_is_let_in() {
        let before = Access { owner_uid: geteuid().as_raw(), owner_gid: 5, mode: 0o600 };
        let after = |options| changed(&options, before).map(|access| (access.owner_gid, access.mode)).unwrap();
        assert_eq!(after(options(None, None, None)), (5, 0o600));
        assert_eq!(after(options(None, Some("7"), None)), (7, 0o660));
        assert_eq!(after(options(None, Some("7"), Some(0o600))), (7, 0o600));
        assert_eq!(after(options(None, None, Some(0o666))), (5, 0o666));
        assert_eq!(wanted(&options(None, None, None)), Ok(None));
    }
}
