//! One job at a time repairs or scrubs an array.
//!
//! A lock of the kernel (flock(2)) on the `.cxlraid` directories of the members in use keeps others
//! out, and ends with the process that holds it. What the job does is published for others
//! ([`crate::job`]); who holds the lock while nothing is published is told by /proc/locks.

use crate::{
    failure::Failure,
    inspect,
    job::{About, Pace, Running, said_of},
    rebuild::foreseen,
    spec::Source,
};
use array::{Member, Standing, runtime::JobKind};
use std::{
    ffi::OsStr,
    fs::{self, File, TryLockError},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};
use sys::rustix::fs::{major, minor};
use units::MemberSet;

/// Held by the only command that makes members of an array anew or scrubs it.
pub(crate) struct Repairing {
    /// What others see of it. It ends before another job can begin.
    running: Running,
    /// The `.cxlraid` directories of members in use, locked.
    _held: Vec<File>,
}

impl Repairing {
    /// Begins a job that makes `members` anew, or none of them. The error says who runs another
    /// one.
    pub(crate) fn begin(
        source: &Source,
        thing: &str,
        kind: JobKind,
        members: MemberSet,
        pace: Pace,
    ) -> Result<Result<Self, String>, Failure> {
        let mut held = Vec::new();
        for meta in lockable(&foreseen(source, thing)?) {
            // On a file system without locks nobody is kept out.
            let Ok(file) = File::open(meta) else { continue };
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(Err(holder(source, thing))),
                _ => held.push(file),
            }
        }
        let newest = inspect::newest(source, thing)?;
        let about = About { uuid: newest.array_uuid, access: newest.access, kind, members };
        Ok(Ok(Self { running: Running::begin(about, pace), _held: held }))
    }

    /// What is left can be paused.
    pub(crate) fn works(&self) {
        self.running.works();
    }
}

/// The refusal of a second job.
pub(crate) fn refused(thing: &str, holder: &str, waits: &str) -> Failure {
    Failure::new(
        thing,
        format!("{holder} runs on the array"),
        format!("wait until it has ended, or end it with 'cxlraid cancel {thing}'{waits}"),
    )
}

/// Who runs the job that keeps others out.
fn holder(source: &Source, thing: &str) -> String {
    let job = inspect::newest(source, thing).ok().and_then(|newest| array::runtime::look_for_job(newest.array_uuid));
    match (job, holding_process(source, thing)) {
        (Some(job), _) => said_of(&job),
        (None, Some(pid)) => format!("a job of process {pid}"),
        (None, None) => "another job".to_owned(),
    }
}

/// The process that holds the lock, by /proc/locks. None if that cannot be said, as of a process of
/// another PID namespace.
pub(crate) fn holding_process(source: &Source, thing: &str) -> Option<u32> {
    let members = foreseen(source, thing).ok()?;
    let identities: Vec<String> = lockable(&members)
        .filter_map(|meta| fs::metadata(meta).ok())
        .map(|stat| format!("{:02x}:{:02x}:{}", major(stat.dev()), minor(stat.dev()), stat.ino()))
        .collect();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // 1: FLOCK  ADVISORY  WRITE 4711 00:2d:12 0 EOF
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, identity, ..] = fields[..] else { return None };
        let pid = identities.iter().any(|own| own == identity).then(|| pid.parse().ok())??;
        (!is_dying(pid)).then_some(pid)
    })
}

/// Tells whether a process was killed and the kernel has not ended it yet. The process still holds its
/// locks, but does nothing more under them.
fn is_dying(pid: u32) -> bool {
    const KILL: u64 = 1 << (9 - 1);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |line: &str| line.split_once(':').and_then(|(_, mask)| u64::from_str_radix(mask.trim(), 16).ok());
    let masks = status.lines().filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"));
    let is_killed = masks.filter_map(pending).any(|mask| mask & KILL != 0);
    // A process that has given its memory back is past its last instruction.
    is_killed || !status.is_empty() && !status.contains("\nVmSize:")
}

fn lockable(members: &[Member]) -> impl Iterator<Item = PathBuf> {
    let in_sync = members.iter().filter(|member| member.standing == Standing::InSync && !member.is_rebuilding);
    in_sync.map(|member| Path::new(OsStr::from_bytes(&member.path)).join(OsStr::from_bytes(format::DIRECTORY.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_killed_is_dying_until_it_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_dying(child.id()) && !is_dying(std::process::id()));
        child.kill().unwrap();
        assert!(is_dying(child.id()), "killed, and not waited for");
        child.wait().unwrap();
    }
}
