//! A member that dies under load: programs on both doors work on files all the while, and none is
//! answered anything wrong.

use crate::{
    Options,
    ground::{Ground, succeed, wait},
    peer::Programs,
};
use std::{fs, path::Path, process::Command, thread, time::Duration};

/// How a member dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Its directory is renamed.
    Away,
    /// All of its files are removed.
    Removed,
    /// All of its files are cut to nothing, as memory that is lost: loads and stores end with
    /// SIGBUS.
    Cut,
    /// Its file system is shut down: every call fails (EIO).
    Shut,
    /// Its file system takes no changes any more, as after an error of its disk.
    ReadOnly,
    /// Nobody but root may enter it. The member stays in use.
    Barred,
}

impl Way {
    /// Returns the number that the program knows this way by (`enum harm` in peer.c).
    const fn harm(self) -> u8 {
        match self {
            Self::Cut => 1,
            Self::Removed => 2,
            _ => 0,
        }
    }
}

/// How long the programs are at work before a member dies, and after that.
const BEFORE: Duration = Duration::from_millis(250);
const AFTER: Duration = Duration::from_millis(500);

/// Scenes, by how a member dies.
pub(crate) fn away(options: &Options, programs: &Programs) -> Result<(), String> {
    members(options, programs, Way::Away)
}

pub(crate) fn removed(options: &Options, programs: &Programs) -> Result<(), String> {
    members(options, programs, Way::Removed)
}

pub(crate) fn cut(options: &Options, programs: &Programs) -> Result<(), String> {
    members(options, programs, Way::Cut)
}

pub(crate) fn shut(options: &Options, programs: &Programs) -> Result<(), String> {
    members(options, programs, Way::Shut)
}

pub(crate) fn read_only(options: &Options, programs: &Programs) -> Result<(), String> {
    members(options, programs, Way::ReadOnly)
}

pub(crate) fn barred(options: &Options, programs: &Programs) -> Result<(), String> {
    members(options, programs, Way::Barred)
}

/// The member whose answers count, and a later one.
fn members(options: &Options, programs: &Programs, way: Way) -> Result<(), String> {
    for slot in [0, 1] {
        die(options, programs, way, slot).map_err(|why| format!("member {slot}: {why}"))?;
    }
    Ok(())
}

fn die(options: &Options, programs: &Programs, way: Way, slot: usize) -> Result<(), String> {
    let disk = matches!(way, Way::Shut | Way::ReadOnly).then_some(slot);
    let mut ground = Ground::with_disk(options, programs, "5", 3, disk)?;
    ground.mount()?;
    let (mounted, data) = (ground.mounted().display().to_string(), ground.data().display().to_string());
    let stop = ground.path("stop");
    let mut crowd = [ground.through_mount()?, ground.intercepted()?, ground.through_mount()?];
    for (index, peer) in crowd.iter_mut().enumerate() {
        let home = if index == 1 { &data } else { &mounted };
        peer.tell(&format!("T {home}/home{index} {} 1 {} {index}", stop.display(), way.harm()))?;
    }
    thread::sleep(BEFORE);
    let member = ground.path(&format!("m{slot}"));
    let told = |error: std::io::Error| error.to_string();
    match way {
        Way::Away => fs::rename(&member, ground.path("away")).map_err(told)?,
        Way::Removed => each_file(&member, &|file| fs::remove_file(file)).map_err(told)?,
        Way::Cut => each_file(&member, &|file| fs::File::options().write(true).open(file)?.set_len(0)).map_err(told)?,
        Way::Shut => _ = ground.through_mount()?.ask(&format!("Z {}", member.display()))?,
        Way::ReadOnly => succeed(Command::new("mount").args(["-o", "remount,abort"]).arg(&member))?,
        Way::Barred => fs::set_permissions(&member, std::os::unix::fs::PermissionsExt::from_mode(0o0)).map_err(told)?,
    }
    thread::sleep(AFTER / 2);
    // A process that starts notices what those that there are need not have met.
    ground.intercepted()?.ask("s @")?;
    thread::sleep(AFTER / 2);
    fs::write(&stop, "").map_err(told)?;
    let mut failures = Vec::new();
    for (index, peer) in crowd.iter_mut().enumerate() {
        let answer = peer.answer()?;
        if !answer.parse::<u64>().is_ok_and(|rounds| rounds > 0) {
            failures.push(format!("{} {index}: {answer}", if index == 1 { "library" } else { "mount" }));
        }
    }
    drop(crowd);
    ground.unmount()?;
    wait(|| ground.good(&["stop", ground.name()]).is_ok())?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// Does something to every file below a directory. What programs have removed meanwhile is left
/// out.
fn each_file(directory: &Path, act: &impl Fn(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let unless_gone = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    for entry in fs::read_dir(directory)? {
        let Ok(entry) = entry else { continue };
        unless_gone(match entry.file_type() {
            Ok(kind) if kind.is_dir() => each_file(&entry.path(), act),
            Ok(kind) if kind.is_file() => act(&entry.path()),
            _ => Ok(()),
        })?;
    }
    Ok(())
}
