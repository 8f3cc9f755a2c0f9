//! The table of descriptors while a thread is about to execute a program that must not inherit an
//! anchor ([`crate::exec::window`]).
//!
//! That thread may hold claims on many numbers until the exec. It claims them in ascending order,
//! so two such threads do not wait for each other.

use super::{Anchored, CLAIMED, Claim, Claimed, Description, Table};
use crate::process::{is_guest, may_be_guest, shares_tables};
use crate::thread::word;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{__NR_fcntl, F_GETFD, F_SETFD, FD_CLOEXEC};
use sys::RawFd;
use sys::raw::syscall;

/// The flags of a descriptor, read or set, as the kernel answers.
pub(crate) fn descriptor_flags(descriptor: RawFd, command: u32, flags: usize) -> isize {
    // SAFETY: reading and setting the flags of a descriptor concerns no memory.
    unsafe { syscall(__NR_fcntl as usize, [descriptor as usize, command as usize, flags, 0, 0, 0]) }
}

/// The flags of a descriptor (FD_CLOEXEC). Of a number that is closed there are none.
fn marks_of(descriptor: RawFd) -> usize {
    descriptor_flags(descriptor, F_GETFD, 0).max(0).cast_unsigned()
}

impl<N: Anchored + 'static> Table<N> {
    /// As [`Table::claim_of`], for a thread that has called [`Table::begin_exec`], and whose other
    /// claims are all on smaller numbers. Without `user` whatever file of ours the number means.
    pub(crate) fn claim_for_exec(&'static self, descriptor: RawFd, user: Option<&Description<N>>) -> Option<Claim<N>> {
        if shares_tables() || may_be_guest() && is_guest() {
            return None;
        }
        let slot = self.slot(descriptor)?;
        while !slot.load(Ordering::Acquire).is_null() {
            // A thread that forks waits for this thread already.
            self.claims.fetch_add(1, Ordering::SeqCst);
            match self.try_slot(descriptor, slot) {
                Ok(claim) => {
                    let is_wanted = user.map_or(!claim.meant.is_null(), |user| claim.means(user));
                    return Some(claim).filter(|_| is_wanted);
                }
                Err(Claimed) => self.wait_for(slot),
            }
        }
        None
    }

    /// The calling thread is about to execute a program that must not inherit an anchor. Until
    /// [`Table::end_exec`] no thread forks, and no thread goes on that has made another number
    /// ours: the caller looks at the table after this call, and finds every number that does not
    /// wait.
    pub(crate) fn begin_exec(&self) {
        self.begin_claiming();
        self.executing.fetch_add(1, Ordering::SeqCst);
        self.waiters.wait_while(|| self.flag_calls.load(Ordering::SeqCst) != 0);
    }

    /// Runs `call`, which reads or sets whether an exec closes a number of ours. The exec of
    /// another thread sets that, too, and looks at it once: so it is either over before `call`, or
    /// comes after it.
    pub(crate) fn apart_from_execs<R>(&self, call: impl FnOnce() -> R) -> R {
        self.flag_calls.fetch_add(1, Ordering::SeqCst);
        while self.executing.load(Ordering::SeqCst) != 0 {
            self.end_flag_call();
            self.waiters.wait_while(|| self.executing.load(Ordering::SeqCst) != 0);
            self.flag_calls.fetch_add(1, Ordering::SeqCst);
        }
        let result = call();
        self.end_flag_call();
        result
    }

    fn end_flag_call(&self) {
        self.flag_calls.fetch_sub(1, Ordering::SeqCst);
        if self.executing.load(Ordering::SeqCst) != 0 {
            self.waiters.wake();
        }
    }

    /// There will be no exec.
    pub(crate) fn end_exec(&self) {
        self.executing.fetch_sub(1, Ordering::SeqCst);
        self.end_claiming();
    }

    /// Waits while another thread is about to execute a program that must not inherit an anchor.
    /// That thread may not have seen `descriptor`, so its exec is to close it. A thread that is
    /// about to execute a program itself does not wait: it finds numbers that the table does not
    /// have yet ([`Table::discovers`]) while it looks at all of them for its exec, and would wait
    /// for itself.
    #[cold]
    pub(super) fn wait_for_execs(&self, descriptor: RawFd) {
        if word(word::EXECUTING).load(Ordering::Relaxed) != 0 {
            return;
        }
        while self.executing.load(Ordering::SeqCst) != 0 {
            let flags = marks_of(descriptor);
            let meaning = || self.slot(descriptor).map(|slot| slot.load(Ordering::SeqCst).map_addr(|address| address & !CLAIMED));
            let before = meaning();
            // A mark that is there may be that thread's, which takes it back.
            let marks = flags & FD_CLOEXEC as usize == 0;
            if marks {
                descriptor_flags(descriptor, F_SETFD, flags | FD_CLOEXEC as usize);
            }
            self.waiters.wait_while(|| self.executing.load(Ordering::SeqCst) != 0);
            // The exec of another thread may have begun meanwhile, and has taken the mark for the
            // program's. What another thread has given the number since is not ours to change.
            if marks {
                self.apart_from_execs(|| {
                    if meaning() == before {
                        _ = descriptor_flags(descriptor, F_SETFD, flags)
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::Use;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    struct Node;
    impl Anchored for Node {
        fn from_anchor(_: RawFd) -> Option<(Self, u32)> {
            None
        }
        fn share(_: RawFd, _: &Use<'static, Self>) {}
        fn leave(&self) {}
    }

    #[test]
    fn who_executes_does_not_wait_for_itself() {
        let table: &'static Table<Node> = std::boxed::Box::leak(std::boxed::Box::new(Table::new()));
        let number = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let executing = std::thread::spawn(move || {
            table.begin_exec();
            word(word::EXECUTING).store(1, Ordering::Relaxed);
            table.wait_for_execs(number);
            table.end_exec();
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(executing.is_finished(), "the thread waits for its own exec");
    }

    #[test]
    fn who_has_made_a_number_ours_waits_for_the_exec_which_closes_it() {
        let table: &'static Table<Node> = std::boxed::Box::leak(std::boxed::Box::new(Table::new()));
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd();
        let mark = || marks_of(number) & FD_CLOEXEC as usize;
        descriptor_flags(number, F_SETFD, 0);
        table.begin_exec();
        let waiting = std::thread::spawn(move || table.wait_for_execs(number));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished() && mark() != 0);
        table.end_exec();
        waiting.join().unwrap();
        assert_eq!(mark(), 0);
    }

    #[test]
    fn whether_an_exec_closes_a_number_is_read_and_set_before_or_after_an_exec() {
        let table: &'static Table<Node> = std::boxed::Box::leak(std::boxed::Box::new(Table::new()));
        let (inside, enters) = std::sync::mpsc::channel();
        let (leave, leaves) = std::sync::mpsc::channel::<()>();
        let setting = std::thread::spawn(move || {
            table.apart_from_execs(|| {
                inside.send(()).unwrap();
                leaves.recv().unwrap();
            });
        });
        enters.recv().unwrap();
        let executing = std::thread::spawn(move || table.begin_exec());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!executing.is_finished());
        leave.send(()).unwrap();
        setting.join().unwrap();
        executing.join().unwrap();
        let late = std::thread::spawn(|| table.apart_from_execs(|| ()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!late.is_finished());
        table.end_exec();
        late.join().unwrap();
    }

    #[test]
    fn numbers_are_claimed_though_a_thread_waits_to_fork() {
        let table: &'static Table<Node> = std::boxed::Box::leak(std::boxed::Box::new(Table::new()));
        assert!([5, 6].iter().all(|&number| table.install(number, table.describe(Node, 0))));
        let (five, six) = (table.lookup(5).unwrap(), table.lookup(6).unwrap());
        table.begin_exec();
        let forking = std::thread::spawn(|| table.around_fork(|| ()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(table.claim_for_exec(5, Some(&six)).is_none());
        let claims = [table.claim_for_exec(5, Some(&five)).unwrap(), table.claim_for_exec(6, None).unwrap()];
        let closing = std::thread::spawn(|| table.claim(6).is_some());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!forking.is_finished() && !closing.is_finished());
        drop(claims);
        table.end_exec();
        assert!(closing.join().unwrap());
        forking.join().unwrap();
    }
}
