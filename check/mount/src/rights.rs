//! Callers with other capabilities than their user usually has: programs with file capabilities, root
//! in a container. Through a mount they may do what they may do on a plain tmpfs.

use crate::{Options, ground::Ground, peer::Programs};
use std::fs;

/// Capabilities by their numbers (linux/capability.h): those that concern files, one at a time.
const SINGLE: [(&str, u32); 7] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_FOWNER", 3),
    ("CAP_FSETID", 4),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_MKNOD", 27),
];
/// All that concern files.
const ALL: u64 = 0b1_1111 | 1 << 21 | 1 << 27;
/// The user that owns some of the files; the others are root's and of another one.
const USER: u32 = 1000;

/// Each user tries the same calls on a mount and on tmpfs, with no capability, with each one alone,
/// with all, and with all but one.
pub(crate) fn capabilities(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount_with(&["--allow-other"])?;
    let plain = ground.path("plain").display().to_string();
    fs::create_dir(&plain).map_err(|error| error.to_string())?;
    let mut peer = ground.through_mount()?;
    let none = [("none".to_owned(), 0), ("all".to_owned(), ALL)].into_iter();
    let single = SINGLE.iter().map(|(name, number)| ((*name).to_owned(), 1 << number));
    let all_but = SINGLE.iter().map(|(name, number)| (format!("all but {name}"), ALL & !(1 << number)));
    let mut wrong = Vec::new();
    for (index, (name, capabilities)) in none.chain(single).chain(all_but).enumerate() {
        for user in [0, USER] {
            let mut tried = |root: &str| peer.ask(&format!("v {root}/tried{index}-{user} {user} {capabilities:x}"));
            let (here, there) = (tried("@")?, tried(&plain)?);
            if !there.starts_with("tried") {
                return Err(format!("on tmpfs: {there}"));
            }
            if here != there {
                wrong.push(format!("user {user}, {name}:\n  mount {here}\n  tmpfs {there}"));
            }
        }
    }
    drop(peer);
    ground.unmount()?;
    ground.conclude()?;
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
