//! A process that keeps descriptors of the mount open which programs were given by a handing over
//! ([`crate::handover`]), so that their offsets can be read: the kernel tells who serves a mount
//! nothing of lseek(2), but everybody of the offset of a descriptor of their own (fdinfo,
//! proc_pid_fdinfo(5)).
//!
//! It is no thread of the process that serves the mount. The close of a descriptor of the mount
//! waits for that process, and cannot be killed; a thread of its own would wait for itself when the
//! process is killed, and the mount would never end. This one has no part of the mount's device. It
//! is started when the first program is handed over, has the memory of its parent as a copy, of
//! which it uses nothing, and ends with its parent, whose end of the socket is gone then.
#![allow(unsafe_code)] // It is made, and lives, without libc: other threads may hold locks when it is made.

use linux_raw_sys::general as nr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::raw::{check, syscall};

/// A request: what to do, and with what.
type Request = [u32; 3];
const REQUEST_BYTES: usize = size_of::<Request>();
/// Fetch the descriptor of this number of a process. The answer is a number of the keeper's, or an
/// error.
const FETCH: u32 = 1;
/// Close this number.
const CLOSE: u32 = 2;
/// A keeper that takes longer is not asked any more. It waits for the mount in a close, or for
/// another one that a caller has named.
const LIMIT: Duration = Duration::from_secs(1);

enum State {
    NotStarted,
    Running {
        socket: UnixStream,
        process: u32,
    },
    /// It could not be started, or has not answered. Offsets are followed without it, as far as that
    /// goes.
    Broken,
}

static STATE: Mutex<State> = Mutex::new(State::NotStarted);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that the keeper keeps open.
pub(crate) struct Kept {
    keeper: u32,
    number: u32,
}

impl Kept {
    /// Has the keeper open what a process has open by `number`. None if that cannot be.
    pub(crate) fn fetch(process: u32, number: u32) -> Option<Self> {
        let mut state = state();
        if matches!(*state, State::NotStarted) {
            *state = start().map_or(State::Broken, |(socket, process)| State::Running { socket, process });
        }
        let answer = ask(&mut state, [FETCH, process, number])?;
        let State::Running { process: keeper, .. } = *state else { return None };
        Some(Self { keeper, number: u32::try_from(answer).ok()? })
    }

    /// The offset. The lock that the kernel has for it, and that a read(2) of the program's holds, is
    /// not asked for.
    pub(crate) fn position(&self) -> Option<u64> {
        Some(Open::of(self.keeper, self.number)?.position)
    }

    /// Tells whether a process is the keeper.
    pub(crate) const fn is_by(&self, process: u32) -> bool {
        self.keeper == process
    }

    /// Tells whether a number of a process stands, by all that is seen, for the same open file.
    pub(crate) fn is_open_as(&self, (process, number): (u32, u32)) -> bool {
        let own = Open::of(self.keeper, self.number);
        own.is_some() && own == Open::of(process, number)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = ask(&mut state(), [CLOSE, self.number, 0]);
    }
}

/// Tells whether two numbers of this process are of one open file description (kcmp(2)). No, if the
/// kernel does not say.
pub(crate) fn have_one_description(one: i32, other: i32) -> bool {
    let own = std::process::id() as usize;
    // SAFETY: a question about descriptors of this process. 0 asks for open files.
    unsafe { syscall(nr::__NR_kcmp as usize, [own, own, 0, one as usize, other as usize, 0]) == 0 }
}

/// Ends the keeper. Who serves the mount needs nothing of it any more.
pub(crate) fn end() {
    let State::Running { socket, process } = std::mem::replace(&mut *state(), State::Broken) else { return };
    drop(socket);
    // SAFETY: waits for the child, and stores nothing.
    unsafe { syscall(nr::__NR_wait4 as usize, [process as usize, 0, nr::__WALL as usize, 0, 0, 0]) };
}

/// What the kernel says of an open file (proc_pid_fdinfo(5)).
#[derive(PartialEq, Eq)]
struct Open {
    position: u64,
    mount: u64,
    inode: u64,
}

impl Open {
    fn of(process: u32, number: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
        // Linux before 5.14 does not tell the inode's number.
        Some(Self { position: value("pos:")?, mount: value("mnt_id:")?, inode: value("ino:").unwrap_or(0) })
    }
}

fn ask(state: &mut State, request: Request) -> Option<i32> {
    let State::Running { socket, .. } = state else { return None };
    let mut answer = [0; 4];
    let mut bytes = [0; REQUEST_BYTES];
    bytes.chunks_exact_mut(4).zip(request).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
    let is_answered = socket.write_all(&bytes).and_then(|()| socket.read_exact(&mut answer)).is_ok();
    if !is_answered {
        *state = State::Broken;
        return None;
    }
    Some(i32::from_le_bytes(answer))
}

fn start() -> Option<(UnixStream, u32)> {
    let (own, other) = UnixStream::pair().ok()?;
    own.set_read_timeout(Some(LIMIT)).ok()?;
    // SAFETY: a copy of this process with memory of its own, which goes on here and sends no signal
    // at its end. It makes system calls and nothing else.
    let child = check(unsafe { syscall(nr::__NR_clone as usize, [0; 6]) }).ok()?;
    if child == 0 {
        keep(other.as_raw_fd());
    }
    Some((own, child as u32))
}

/// Runs as the keeper, from its start to its end.
fn keep(socket: i32) -> ! {
    // SAFETY: system calls of a process of one thread, on its own descriptors and on buffers here.
    unsafe {
        let all = u64::MAX;
        // A signal for all processes of a service is its parent's to follow.
        syscall(nr::__NR_rt_sigprocmask as usize, [nr::SIG_BLOCK as usize, &raw const all as usize, 0, 8, 0, 0]);
        syscall(nr::__NR_dup2 as usize, [socket as usize, 0, 0, 0, 0, 0]);
        syscall(nr::__NR_close_range as usize, [1, u32::MAX as usize, 0, 0, 0, 0]);
        loop {
            let mut request: Request = [0; 3];
            let bytes = syscall(nr::__NR_read as usize, [0, request.as_mut_ptr() as usize, REQUEST_BYTES, 0, 0, 0]);
            if bytes != REQUEST_BYTES as isize {
                syscall(nr::__NR_exit_group as usize, [0; 6]);
            }
            let [what, first, second] = request.map(|word| word as usize);
            let answer = match what as u32 {
                FETCH => fetch(first, second),
                // The socket is 0.
                CLOSE if first != 0 => syscall(nr::__NR_close as usize, [first, 0, 0, 0, 0, 0]),
                _ => -1,
            } as i32;
            syscall(nr::__NR_write as usize, [0, &raw const answer as usize, size_of::<i32>(), 0, 0, 0]);
        }
    }
}

/// Fetches a descriptor of a process.
fn fetch(process: usize, number: usize) -> isize {
    // SAFETY: system calls that make descriptors of this process, and close one of them.
    unsafe {
        let task = syscall(nr::__NR_pidfd_open as usize, [process, 0, 0, 0, 0, 0]);
        if task < 0 {
            return task;
        }
        let fetched = syscall(nr::__NR_pidfd_getfd as usize, [task as usize, number, 0, 0, 0, 0]);
        syscall(nr::__NR_close as usize, [task as usize, 0, 0, 0, 0, 0]);
        fetched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek as _, SeekFrom};

    #[test]
    fn offsets_are_read_without_the_process_that_moves_them() {
        let mut file = tempfile::tempfile().unwrap();
        let (process, number) = (std::process::id(), file.as_raw_fd() as u32);
        let kept = Kept::fetch(process, number).unwrap();
        for place in [7, 1 << 40, 0] {
            file.seek(SeekFrom::Start(place)).unwrap();
            assert_eq!(kept.position(), Some(place));
        }
        assert!(kept.is_open_as((process, number)));
        let other = tempfile::tempfile().unwrap();
        assert!(!kept.is_open_as((process, other.as_raw_fd() as u32)));
        let link = |kept: &Kept| fs::read_link(format!("/proc/{}/fd/{}", kept.keeper, kept.number));
        assert!(link(&kept).is_ok());
        let again = Kept { ..kept };
        drop(kept);
        assert!(link(&again).is_err(), "it was closed before the drop was over");
        std::mem::forget(again);
        assert!(Kept::fetch(process, 1 << 20).is_none());
        // What a request needs is there after an error, too.
        assert!(Kept::fetch(process, number).is_some());
    }
}
