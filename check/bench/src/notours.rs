//! Measures calls that do not concern an array, in a process with the library and in one without.
//!
//! In each process the calls of the C library take turns with the bare instruction in a page that
//! nobody patches. What the C library's call costs more than the bare one is compared between the
//! processes, so that it does not matter how fast the kernel is today.

use crate::members::os;
use crate::places::{Order, Places};
use crate::plan::Plan;
use crate::report::{Check, Row};
use crate::rounds::{Calling, measure, median};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use sys::rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use units::PAGE_BYTES;

/// Bytes of a read: few, so that the call and not the copy is measured.
const READ_BYTES: usize = 64;
const PREAD64: usize = 17;
const GETPPID: usize = 110;

/// What one process measured, in nanoseconds per call.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Calls {
    pread: f64,
    bare_pread: f64,
    getppid: f64,
    bare_getppid: f64,
}

/// A system call instruction on a page of its own.
#[derive(Clone, Copy)]
struct Bare(unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize);

impl Bare {
    /// Takes the number of a call and four arguments in the C convention, moves them to where the
    /// kernel wants them, and makes the call.
    const CODE: [u8; 18] = [
        0x48, 0x89, 0xf8, // mov rax, rdi
        0x48, 0x89, 0xf7, // mov rdi, rsi
        0x48, 0x89, 0xd6, // mov rsi, rdx
        0x48, 0x89, 0xca, // mov rdx, rcx
        0x4d, 0x89, 0xc2, // mov r10, r8
        0x0f, 0x05, // syscall
        0xc3, // ret
    ];

    fn new() -> io::Result<Self> {
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new page, filled with the code above before it becomes executable; it is never
        // unmapped. The code keeps to the C convention for five integers.
        unsafe {
            let page = mmap_anonymous(null_mut(), PAGE_BYTES, read_write, MapFlags::PRIVATE).map_err(os)?;
            page.cast::<[u8; 18]>().write(Self::CODE);
            mprotect(page, PAGE_BYTES, MprotectFlags::READ | MprotectFlags::EXEC).map_err(os)?;
            Ok(Self(
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize>(
                    page,
                ),
            ))
        }
    }
}

/// Measures all calls in this process. `file` is an ordinary file with at least one page.
pub(crate) fn measure_here(plan: &Plan, file: &File) -> io::Result<Calls> {
    let bare = Bare::new()?;
    let (mut first, mut second) = ([0u8; READ_BYTES], [0u8; READ_BYTES]);
    let descriptor = file.as_raw_fd() as usize;
    let places = || Places::new(Order::Sequential, PAGE_BYTES as u64, READ_BYTES, 0, 1);
    let mut pread = Calling(|offset| assert_eq!(file.read_at(&mut first, offset).ok(), Some(READ_BYTES)));
    let mut bare_pread = Calling(|offset: u64| {
        // SAFETY: reads into a buffer of that length.
        let count = unsafe { (bare.0)(PREAD64, descriptor, second.as_mut_ptr() as usize, READ_BYTES, offset as usize) };
        assert_eq!(count, READ_BYTES as isize);
    });
    let mut getppid = Calling(|_| _ = black_box(std::os::unix::process::parent_id()));
    // SAFETY: takes and changes nothing.
    let mut bare_getppid = Calling(|_| _ = black_box(unsafe { (bare.0)(GETPPID, 0, 0, 0, 0) }));
    let (rounds, calls) = (plan.rounds, plan.small_calls);
    let preads = measure(&mut [(&mut pread, places()), (&mut bare_pread, places())], rounds, calls);
    let getppids = measure(&mut [(&mut getppid, places()), (&mut bare_getppid, places())], rounds, calls);
    Ok(Calls {
        pread: preads.nanoseconds(0),
        bare_pread: preads.nanoseconds(1),
        getppid: getppids.nanoseconds(0),
        bare_getppid: getppids.nanoseconds(1),
    })
}

/// Makes the rows of the report from pairs of processes (with the library, without it).
pub(crate) fn rows(pairs: &[(Calls, Calls)]) -> Vec<Row> {
    let row = |case: &str, call: fn(&Calls) -> f64, bare: fn(&Calls) -> f64| {
        let middle = |figure: &dyn Fn(&(Calls, Calls)) -> f64| median(pairs.iter().map(figure).collect());
        let added = middle(&|(with, without)| (call(with) - bare(with)) - (call(without) - bare(without)));
        Row {
            ours_ns: Some(middle(&|(with, _)| call(with))),
            kernel_ns: Some(middle(&|(_, without)| call(without))),
            checks: vec![Check::at_most("ns more", added, 10.0)],
            ..Row::new(case)
        }
    };
    vec![
        row("not ours: pread 64 B", |calls| calls.pread, |calls| calls.bare_pread),
        row("not ours: getppid", |calls| calls.getppid, |calls| calls.bare_getppid),
    ]
}
