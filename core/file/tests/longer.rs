//! A file is made longer while another process gets space within it.
//!
//! The two processes are threads of this test, each of which has attached to the array for itself. A
//! filter of system calls (seccomp(2)) stops the first one before each ftruncate, until the second
//! one has done its part or waits for the first.

mod common;

use common::{TestArray, write};
use cxlraid_file::{FileRef, Mapped};
use layout::Level;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use sys::raw::{check, syscall};

const IOCTL: usize = 16;
const FTRUNCATE: u32 = 77;
const PRCTL: usize = 157;
const SECCOMP: usize = 317;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const SET_MODE_FILTER: usize = 1;
const NEW_LISTENER: usize = 8;
/// `_IOWR('!', 0, struct seccomp_notif)` and `_IOWR('!', 1, struct seccomp_notif_resp)`.
const RECEIVE: usize = 0xc050_2100;
const SEND: usize = 0xc018_2101;
/// The call goes on.
const CONTINUE: u64 = 1;
/// How long the second process has for its part, if it does not wait for the first.
const PATIENCE: Duration = Duration::from_millis(100);

/// An instruction of a filter: code, where to go on if a comparison holds and if not, and a number.
#[repr(C)]
struct Instruction(u16, u8, u8, u32);

#[repr(C)]
struct Program {
    count: u16,
    instructions: *const Instruction,
}

/// Makes each ftruncate of this thread wait from now on. Returns the descriptor that tells of these
/// calls and lets them go on.
fn stop_before_ftruncate() -> usize {
    let load_number = Instruction(0x20, 0, 0, 0);
    let is_ftruncate = Instruction(0x15, 0, 1, FTRUNCATE);
    let [tell, allow] = [0x7fc0_0000, 0x7fff_0000].map(|verdict| Instruction(0x06, 0, 0, verdict));
    let instructions = [load_number, is_ftruncate, tell, allow];
    let program = Program { count: 4, instructions: instructions.as_ptr() };
    // SAFETY: the filter is valid for both calls, and changes nothing for other threads.
    unsafe {
        check(syscall(PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0])).unwrap();
        check(syscall(SECCOMP, [SET_MODE_FILTER, NEW_LISTENER, &raw const program as usize, 0, 0, 0])).unwrap()
    }
}

/// Waits for a call that is stopped, and returns its id; None if the thread has ended.
fn stopped(listener: usize) -> Option<u64> {
    let mut call = [0u64; 10];
    // SAFETY: the kernel fills 80 bytes.
    let received = unsafe { syscall(IOCTL, [listener, RECEIVE, call.as_mut_ptr() as usize, 0, 0, 0]) };
    (received == 0).then_some(call[0])
}

/// Lets the call with this id go on.
fn go_on(listener: usize, id: u64) {
    let answer = [id, 0, CONTINUE << 32];
    // SAFETY: the kernel reads 24 bytes.
    check(unsafe { syscall(IOCTL, [listener, SEND, answer.as_ptr() as usize, 0, 0, 0]) }).unwrap();
}

/// What the first process does to a file of two stripes. The number is the bytes of a stripe.
type Change = fn(&FileRef, u64);

/// The second process has learnt that it has got space in the file. That still holds when the first
/// process has made the file longer, or has had the kernel take away the file's privileges.
#[test]
fn no_space_is_taken_away_that_another_process_has_just_got() {
    let changes: [(&str, Change); 3] = [
        ("truncate", |file, stripe| file.truncate(3 * stripe).unwrap()),
        ("zero range", |file, stripe| file.punch(stripe, 2 * stripe, true).unwrap()),
        ("drop privileges", |file, stripe| file.truncate(2 * stripe).unwrap()),
    ];
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid5, 3)] {
        for (name, change) in changes {
            let array = TestArray::new(level, member_count, 4096);
            let attribute = array.create("f");
            let (one, two) = (array.open("f", attribute), array.open_in(array.again(), "f", attribute));
            let stripe = if level.has_chunks() { one.geometry().stripe_bytes() } else { 4096 };
            one.truncate(2 * stripe).unwrap();
            for slot in 0..member_count {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
                std::fs::set_permissions(array.member_path(slot).join("data/f"), mode).unwrap();
            }
            // The library looked at the privileges before they were set, and looks again only if it
            // is told to.
            if name == "drop privileges" {
                one.note_privileges();
            }
            // A mapping gets space without a look at the privileges.
            let mapped = Mapped::new(&two).unwrap();
            std::thread::scope(|scope| {
                let (listens, listener) = channel();
                let one = &one;
                scope.spawn(move || {
                    listens.send(stop_before_ftruncate()).unwrap();
                    change(one, stripe);
                });
                let listener = listener.recv().unwrap();
                let (mut second, mut begin) = (None, Instant::now());
                while let Some(id) = stopped(listener) {
                    let second = second.get_or_insert_with(|| {
                        begin = Instant::now();
                        scope.spawn(|| mapped.follow([(0, 4096)]).unwrap())
                    });
                    while !second.is_finished() && begin.elapsed() < PATIENCE {
                        std::thread::yield_now();
                    }
                    go_on(listener, id);
                }
                assert!(second.is_some(), "{level}, {name}: no ftruncate");
            });
            drop(mapped);
            let size = two.size();
            write(&two, size, &[3; 4096]);
            write(&two, size + 4096, &[3; 4096]);
            assert_eq!(array.files.array().in_use().len(), member_count, "{level}, {name}");
        }
    }
}
