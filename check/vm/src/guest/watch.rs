//! What every process is doing, in the log from time to time: all that is known of a job that
//! hangs.

use super::Port;
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Longer than jobs take on a quiet host.
const PERIOD: Duration = Duration::from_secs(240);

/// Never ends.
pub(super) fn run(log: &Port) -> ! {
    loop {
        thread::sleep(PERIOD);
        let lines: Vec<String> = entries(Path::new("/proc")).into_iter().filter_map(|process| shown(&process)).collect();
        // Nobody could be told that the log cannot be written.
        let _ = log.line(&format!("still at work:\n{}", lines.join("\n")));
    }
}

/// Numbered directories: processes, or threads.
fn entries(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let numbered = entries.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|letter| letter.is_ascii_digit()));
    numbered.map(|entry| entry.path()).collect()
}

/// Threads of a process with their system call and where the kernel waits. None for the kernel's
/// own.
fn shown(process: &Path) -> Option<String> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let words = read(process.join("cmdline")).replace('\0', " ");
    if words.is_empty() {
        return None;
    }
    let threads = entries(&process.join("task")).into_iter().map(|thread| {
        let stack = read(thread.join("stack"));
        let places: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).take(6).collect();
        let stat = read(thread.join("stat"));
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        format!("    {} {state}, system call {}, {}", name(&thread), read(thread.join("syscall")).trim(), places.join(" < "))
    });
    Some(format!("  {} {}\n{}", name(process), words.trim(), threads.collect::<Vec<_>>().join("\n")))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_threads_are_shown() {
        let text = shown(Path::new("/proc/self")).unwrap();
        assert!(text.lines().count() > 1, "{text}");
        assert!(text.contains(", system call "), "{text}");
    }
}
