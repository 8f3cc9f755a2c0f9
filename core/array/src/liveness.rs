//! Whether a process still lives: pid and start time, from proc(5).

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use sys::rustix::fs::{Mode, OFlags, RawDir, open};
use sys::rustix::process::{Pid, getpid, test_kill_process};
use sys::{OsError, Result};

/// A process, so named that a reused pid is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Its pid.
    pub pid: u32,
    /// Start time in clock ticks since boot; 0 if proc is not mounted.
    pub start_ticks: u64,
}

/// What proc(5) says of a process or thread.
struct Stat {
    state: u8,
    /// The kernel's PF_* flags.
    flags: u64,
    thread_count: u64,
    start_ticks: u64,
}

impl ProcessId {
    /// The calling process.
    #[must_use]
    pub fn current() -> Self {
        Self::of(getpid().as_raw_nonzero().get() as u32)
    }

    /// The living process `pid`.
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, start_ticks: read_stat(pid).map_or(0, |stat| stat.start_ticks) }
    }
}

/// The thread is in the kernel on its way out and will never run an instruction of its program
/// again. Until it is a zombie its memory is taken down, which takes long where much of it is
/// mapped.
const PF_EXITING: u64 = 4;

impl Stat {
    const fn is_exiting(&self) -> bool {
        matches!(self.state, b'Z' | b'X') || self.flags & PF_EXITING != 0
    }
}

/// False only if the process will certainly not run again: no such pid, a later process with the
/// same pid, or one whose threads are all on their way out.
#[must_use]
pub fn process_lives(process: ProcessId) -> bool {
    if !exists(process) {
        return false;
    }
    match read_stat(process.pid) {
        Ok(stat) => {
            let dead = stat.is_exiting() && (stat.thread_count <= 1 || threads_are_exiting(process.pid));
            !dead && (process.start_ticks == 0 || stat.start_ticks == process.start_ticks)
        }
        Err(OsError::SRCH) => false,
        // NOENT: gone since the test above, or proc is not mounted.
        Err(_) => exists(process),
    }
}

/// False only if there is no such process. One that has ended counts as long as its parent has not
/// waited for it, and so does a later one with its pid. This takes one system call, where
/// [`process_lives`] takes four.
pub(crate) fn exists(process: ProcessId) -> bool {
    i32::try_from(process.pid).ok().and_then(Pid::from_raw).is_some_and(|pid| test_kill_process(pid) != Err(OsError::SRCH))
}

/// Whether every thread of a process whose first one is on its way out is so too: a thread may
/// outlive the first.
fn threads_are_exiting(pid: u32) -> bool {
    let path = alloc::format!("/proc/{pid}/task");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open(path.as_str(), flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut threads = RawDir::new(directory, &mut buffer);
    while let Some(thread) = threads.next() {
        let Ok(thread) = thread else { return false };
        let name = thread.file_name().to_bytes();
        let Some(number) = core::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()) else { continue };
        match read_file(&alloc::format!("/proc/{pid}/task/{number}/stat")) {
            Ok(stat) if !stat.is_exiting() => return false,
            // Gone since it was listed.
            _ => {}
        }
    }
    true
}

fn read_stat(pid: u32) -> Result<Stat> {
    read_file(&alloc::format!("/proc/{pid}/stat"))
}

fn read_file(path: &str) -> Result<Stat> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0u8; 1024];
    let length = sys::rustix::io::read(&file, &mut buffer)?;
    parse_stat(&buffer[..length]).ok_or(OsError::INVAL)
}

/// Fields are counted from the state (field 3): the command name before it may hold anything, even
/// parentheses.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = text.get(after_name..)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    let mut number = |index: usize| -> Option<u64> { core::str::from_utf8(fields.nth(index)?).ok()?.trim().parse().ok() };
    let flags = number(5)?;
    let thread_count = number(10)?;
    let start_ticks = number(1)?;
    Some(Stat { state, flags, thread_count, start_ticks })
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
        assert_eq!(stat.flags, 4_194_304);
        assert!(!stat.is_exiting());
        let leaving = String::from_utf8(text.to_vec()).unwrap().replace("4194304", "4194308");
        assert!(parse_stat(leaving.as_bytes()).unwrap().is_exiting());
    }

    #[test]
    fn this_process_lives_and_an_impostor_does_not() {
        let me = ProcessId::current();
        assert!(process_lives(me));
        assert!(!process_lives(ProcessId { start_ticks: me.start_ticks + 1, ..me }));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = ProcessId { pid: child.id(), start_ticks: 0 };
        child.wait().unwrap();
        assert!(!process_lives(id));
        assert!(exists(me) && !exists(id));
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        // The first thread ends, another goes on.
        let script = "import threading, time, ctypes\n\
                      threading.Thread(target=lambda: (print('on', flush=True), time.sleep(60))).start()\n\
                      ctypes.CDLL(None).syscall(60, 0)";
        let mut command = std::process::Command::new("python3");
        let mut child = command.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let id = ProcessId { pid: child.id(), start_ticks: 0 };
        while !read_stat(id.pid).unwrap().is_exiting() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(process_lives(id));
        child.kill().unwrap();
        while process_lives(id) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
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
