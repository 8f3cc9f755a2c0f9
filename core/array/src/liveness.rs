//! Whether a process still lives: pid and start time, from proc(5).

use core::sync::atomic::AtomicU32;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::process::{Pid, getpid, test_kill_process};
use sys::{OsError, Result};

/// A process, so named that a reused pid is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot; 0 if proc is not mounted.
    pub(crate) start_ticks: u64,
}

/// State, thread count and start time of a process.
struct Stat {
    state: u8,
    thread_count: u64,
    start_ticks: u64,
}

impl ProcessId {
    pub(crate) fn current() -> Result<Self> {
        let pid = getpid().as_raw_nonzero().get() as u32;
        let start_ticks = read_stat(pid).map_or(0, |stat| stat.start_ticks);
        Ok(Self { pid, start_ticks })
    }
}

/// False only if the process is certainly gone: no such pid, a later process with the same pid, or a zombie whose threads have all
/// ended.
pub(crate) fn process_lives(process: ProcessId) -> bool {
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
    if test_kill_process(pid) == Err(OsError::SRCH) {
        return false;
    }
    match read_stat(process.pid) {
        Ok(stat) => {
            let dead = matches!(stat.state, b'Z' | b'X') && stat.thread_count <= 1;
            !dead && (process.start_ticks == 0 || stat.start_ticks == process.start_ticks)
        }
        Err(OsError::SRCH) => false,
        // NOENT: gone since the test above, or proc is not mounted.
        Err(_) => test_kill_process(pid) != Err(OsError::SRCH),
    }
}

fn read_stat(pid: u32) -> Result<Stat> {
    let path = alloc::format!("/proc/{pid}/stat");
    let file = open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0u8; 1024];
    let length = sys::rustix::io::read(&file, &mut buffer)?;
    parse_stat(&buffer[..length]).ok_or(OsError::INVAL)
}

/// Fields are counted from the state (field 3): the command name before it may hold anything, even parentheses.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = text.get(after_name..)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    let mut number = |index: usize| -> Option<u64> { core::str::from_utf8(fields.nth(index)?).ok()?.trim().parse().ok() };
    let thread_count = number(16)?;
    let start_ticks = number(1)?;
    Some(Stat { state, thread_count, start_ticks })
}

// The pid of a process fits the futex words of the runtime segment.
const _: () = assert!(size_of::<AtomicU32>() == size_of::<u32>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_are_found_behind_an_odd_command_name() {
        let text = b"42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 1 2 3 4 20 0 7 0 9876 1000 2 18446744073709551615 1 1";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.thread_count, stat.start_ticks), (b'S', 7, 9876));
    }

    #[test]
    fn this_process_lives_and_an_impostor_does_not() {
        let me = ProcessId::current().unwrap();
        assert!(process_lives(me));
        assert!(!process_lives(ProcessId { start_ticks: me.start_ticks + 1, ..me }));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = ProcessId { pid: child.id(), start_ticks: 0 };
        child.wait().unwrap();
        assert!(!process_lives(id));
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = ProcessId { pid: child.id(), start_ticks: 0 };
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!process_lives(id));
        child.wait().unwrap();
    }
}
