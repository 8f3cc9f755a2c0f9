//! Work done in a process of its own: what it leaves behind ends with it, and a crash of it is a
//! result like others.

use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A forked process whose result is still to be fetched.
pub(crate) struct Child {
    pid: libc::pid_t,
    from: File,
}

impl Child {
    /// Begins `work` in a forked process, which is killed by SIGALRM after `seconds_max`. The
    /// caller has one thread.
    pub(crate) fn start<T: Serialize>(seconds_max: u32, work: impl FnOnce() -> Result<T, String>) -> Result<Self, String> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(format!("pipe: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just given them to us.
        let [from, to] = ends.map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { libc::fork() } {
            0 => {
                drop(from);
                // SAFETY: these take integers; the child leaves without running anything of its
                // parent's.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::alarm(seconds_max);
                    deliver(to, &work());
                    libc::_exit(0)
                }
            }
            -1 => Err(format!("fork: {}", std::io::Error::last_os_error())),
            pid => Ok(Self { pid, from }),
        }
    }

    /// Which of several has its result ready, or has ended; waits until one has.
    pub(crate) fn first_ready<'a>(children: impl Iterator<Item = &'a Self>) -> usize {
        let wish = |child: &Self| libc::pollfd { fd: child.from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut wishes: Vec<_> = children.map(wish).collect();
        loop {
            // SAFETY: as many places as there are.
            unsafe { libc::poll(wishes.as_mut_ptr(), wishes.len() as libc::nfds_t, -1) };
            if let Some(ready) = wishes.iter().position(|wish| wish.revents != 0) {
                return ready;
            }
        }
    }

    /// Waits for the result.
    pub(crate) fn finish<T: DeserializeOwned>(mut self) -> Result<T, String> {
        let mut bytes = Vec::new();
        let read = self.from.read_to_end(&mut bytes);
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        read.map_err(|error| format!("read of a child's result: {error}"))?;
        if libc::WIFSIGNALED(status) {
            return Err(match libc::WTERMSIG(status) {
                libc::SIGALRM => "took too long: it waits for something, or loops".to_owned(),
                signal => format!("died by signal {signal}"),
            });
        }
        postcard::from_bytes::<Result<T, String>>(&bytes).map_err(|error| format!("a child's result: {error}"))?
    }
}

fn deliver<T: Serialize>(mut to: File, result: &Result<T, String>) {
    if let Ok(bytes) = postcard::to_stdvec(result) {
        let _ = to.write_all(&bytes);
    }
}

/// Does `work` in a forked process and waits for its result.
pub(crate) fn apart<T: Serialize + DeserializeOwned>(
    seconds_max: u32,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    Child::start(seconds_max, work)?.finish()
}
