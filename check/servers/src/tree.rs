//! A process and all its descendants, as /proc tells them: how a whole server is killed at once.
//!
//! Servers give their children sessions and process groups of their own, so a group is not enough.
//! The head is stopped first: then it starts nobody new while the others are counted. This process
//! is a child subreaper, so that orphans come to it and can be waited for.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

/// Orphans of what we start become our children.
pub(crate) fn adopt_orphans() -> Result<(), String> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| format!("child subreaper: {error}"))
}

/// State and parent of a process; None if it is gone.
fn status(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_alive(pid: i32) -> bool {
    status(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// `head` first, then everything below it.
pub(crate) fn members(head: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![head] };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let parents: Vec<(i32, i32)> = pids.filter_map(|pid| Some((pid, status(pid)?.1))).collect();
    let mut tree = vec![head];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        next += 1;
        tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
    }
    tree
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may be gone already.
        let _ = kill_process(pid, signal);
    }
}

/// SIGKILL to `head` and everything below it. Returns how many there were, once all but `head`,
/// which its parent waits for, are gone.
pub(crate) fn kill(head: i32) -> Result<usize, String> {
    send(head, Signal::STOP);
    let stopped = Instant::now();
    while status(head).is_some_and(|(state, _)| !matches!(state, 'T' | 'Z' | 'X')) && stopped.elapsed() < Duration::from_secs(2) {
        sleep(Duration::from_micros(100));
    }
    let tree = members(head);
    tree.iter().for_each(|&pid| send(pid, Signal::KILL));
    let begun = Instant::now();
    while tree.iter().any(|&pid| is_alive(pid)) {
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(format!("processes survive SIGKILL for 20 s: {tree:?}"));
        }
        sleep(Duration::from_millis(1));
    }
    for &pid in &tree[1..] {
        // Those whose parents were killed are ours now.
        let _ = Pid::from_raw(pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
    }
    Ok(tree.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_with_sessions_of_their_own_are_killed_too() {
        adopt_orphans().unwrap();
        let mut head = Command::new("sh").args(["-c", "setsid sleep 61 & sleep 62 & wait"]).spawn().unwrap();
        let pid = i32::try_from(head.id()).unwrap();
        while members(pid).len() < 3 {
            sleep(Duration::from_millis(5));
        }
        let tree = members(pid);
        assert_eq!(kill(pid).unwrap(), 3);
        assert!(tree.iter().all(|&pid| !is_alive(pid)));
        assert!(!head.wait().unwrap().success());
    }
}
