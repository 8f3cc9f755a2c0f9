//! System calls of the recorded engine: the filter that makes them trap, and what they mean for the
//! members.
//!
//! Members are made to look as on a DAX file system: `fstatfs` says ext4, and a mapping may be
//! synchronous. So the engine finds out by its own code that it has to flush. Its mappings of
//! members become read-only; what it stores goes to a second mapping.

use super::{Recorder, Region, raw};
use crate::log::Event;
use std::io;

/// Calls that trap: those that can change a member, map or describe one.
const TRAPPED: [libc::c_long; 42] = [
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_write,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_msync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_mkdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_truncate,
    libc::SYS_copy_file_range,
    libc::SYS_sched_yield,
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_tgkill,
];
const SYS_FCHMODAT2: libc::c_long = 452;

const EXT4_MAGIC: u64 = 0xef53;
const MAP_SYNC: usize = 0x80000;
const MAP_TYPE: usize = 0xf;

type Statement = libc::sock_filter;

const fn statement(code: u32, k: u32) -> Statement {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> Statement {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Loads a word of seccomp_data: the number at 0, the instruction pointer at 8, arguments of 8
/// bytes from 16 on; low half first.
const fn load(at: u32) -> Statement {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const HAS_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const ALLOW: Statement = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
const TRAP: Statement = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_TRAP);

/// Lets pass what the recorder calls itself; leaves the number loaded.
fn but_ours() -> Vec<Statement> {
    let (start, bytes) = raw::place();
    vec![
        load(12),
        jump(EQUAL, (start >> 32) as u32, 0, 4),
        load(8),
        jump(AT_LEAST, start as u32, 0, 2),
        jump(AT_LEAST, (start + bytes) as u32, 1, 0),
        ALLOW,
        load(0),
    ]
}

/// Makes the calls above trap, from everywhere but the recorder.
pub(super) fn filter() -> Result<(), String> {
    let mut program = but_ours();
    for number in TRAPPED {
        program.extend([jump(EQUAL, number as u32, 0, 1), TRAP]);
    }
    program.push(ALLOW);
    install(program)
}

/// Makes those trap by which members look as on a DAX file system.
pub(super) fn disguise_filter() -> Result<(), String> {
    let mut program = but_ours();
    program.extend([jump(EQUAL, libc::SYS_fstatfs as u32, 0, 1), TRAP]);
    program.extend([
        jump(EQUAL, libc::SYS_mmap as u32, 1, 0),
        ALLOW,
        load(16 + 3 * 8),
        jump(HAS_BIT, MAP_SYNC as u32, 0, 1),
        TRAP,
        ALLOW,
    ]);
    install(program)
}

fn install(mut program: Vec<Statement>) -> Result<(), String> {
    let whole = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of that length; the calls change only this process.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const whole) != 0
    };
    if refused { Err(format!("seccomp: {}", io::Error::last_os_error())) } else { Ok(()) }
}

/// Does a call as on a DAX file system.
pub(super) fn disguised(number: libc::c_long, mut arguments: [usize; 6]) -> isize {
    if number == libc::SYS_mmap {
        arguments[3] = without_sync(arguments[3]);
    }
    let result = raw::call(number, arguments);
    if number == libc::SYS_fstatfs && result == 0 {
        // SAFETY: the kernel has just written a statfs there; its first word is the type.
        unsafe { (arguments[1] as *mut u64).write_unaligned(EXT4_MAGIC) };
    }
    result
}

/// Flags of mmap for which any file system serves.
const fn without_sync(flags: usize) -> usize {
    if flags & MAP_TYPE == libc::MAP_SHARED_VALIDATE as usize {
        flags & !(MAP_SYNC | MAP_TYPE) | libc::MAP_SHARED as usize
    } else {
        flags
    }
}

/// Does a call for the engine and notes what it did to the members. Returns what the kernel
/// returned.
pub(super) fn serve(recorder: &mut Recorder, number: libc::c_long, mut arguments: [usize; 6], stack: usize) -> isize {
    if number == libc::SYS_mmap {
        return map(recorder, arguments);
    }
    if number == libc::SYS_openat
        && let Some(path) = recorder.redirected(arguments[1])
    {
        arguments[1] = path;
    }
    if number == libc::SYS_munmap {
        recorder.forget(arguments[0], arguments[1]);
    }
    let result = disguised(number, arguments);
    if result < 0 {
        return result;
    }
    match number {
        libc::SYS_fstatfs | libc::SYS_write | libc::SYS_futex | libc::SYS_sched_yield | libc::SYS_munmap => {}
        _ if recorder.recording => note(recorder, number, arguments, result, stack),
        _ => {}
    }
    result
}

/// What a call that succeeded has changed.
fn note(recorder: &mut Recorder, number: libc::c_long, arguments: [usize; 6], result: isize, stack: usize) {
    let [fd, one, two, three, ..] = arguments;
    match number {
        libc::SYS_ftruncate => {
            if let Some(object) = recorder.object_of_fd(fd) {
                recorder.push(Event::Length { object, bytes: one as u64 });
            }
        }
        libc::SYS_fallocate => {
            if let Some(object) = recorder.object_of_fd(fd) {
                if one as i32 & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
                    recorder.push(Event::Zero { object, at: two as u64, bytes: three as u64 });
                }
                if let Some(bytes) = super::length_of(fd) {
                    recorder.push(Event::Length { object, bytes });
                }
            }
        }
        libc::SYS_pwrite64 => {
            if let Some(object) = recorder.object_of_fd(fd) {
                // SAFETY: the kernel has just read that many bytes from there.
                let bytes = unsafe { std::slice::from_raw_parts(one as *const u8, result as usize) }.to_vec();
                if let Some(length) = super::length_of(fd) {
                    recorder.push(Event::Length { object, bytes: length });
                }
                recorder.push(Event::Put { object, at: three as u64, bytes, stack });
            }
        }
        libc::SYS_fsync | libc::SYS_fdatasync => {
            if let Some(object) = recorder.object_of_fd(fd) {
                recorder.push(Event::Sync { object, start: 0, end: u64::MAX, stack });
            }
        }
        libc::SYS_msync => {
            let (address, bytes) = (fd, one as u64);
            if let Some((object, start)) =
                recorder.region(address).map(|region| (region.object, region.at + (address - region.start) as u64))
            {
                recorder.push(Event::Sync { object, start, end: start + bytes, stack });
            }
        }
        libc::SYS_openat | libc::SYS_openat2 if !creates(number, arguments) => {}
        libc::SYS_pwritev | libc::SYS_truncate | libc::SYS_copy_file_range => {
            recorder.fail(format!("system call {number} is not recorded"));
        }
        _ => recorder.look_at_trees(stack),
    }
}

fn creates(number: libc::c_long, arguments: [usize; 6]) -> bool {
    let flags = if number == libc::SYS_openat {
        arguments[2]
    } else {
        // SAFETY: the kernel has just read a struct open_how there, whose first word are the flags.
        unsafe { (arguments[2] as *const u64).read_unaligned() as usize }
    };
    flags & (libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE) as usize & !libc::O_DIRECTORY as usize != 0
}

/// mmap: of a member's file read-only, with a second mapping beside it.
fn map(recorder: &mut Recorder, mut arguments: [usize; 6]) -> isize {
    arguments[3] = without_sync(arguments[3]);
    let (protection, bytes) = (arguments[2], arguments[1]);
    let writes = protection & libc::PROT_WRITE as usize != 0 && arguments[3] & MAP_TYPE == libc::MAP_SHARED as usize;
    let object = if writes { recorder.object_of_fd(arguments[4]) } else { None };
    let Some(object) = object else { return raw::call(libc::SYS_mmap, arguments) };
    arguments[2] = libc::PROT_READ as usize;
    let start = raw::call(libc::SYS_mmap, arguments);
    if start < 0 {
        return start;
    }
    let mut second = arguments;
    (second[0], second[2], second[3]) = (0, protection, libc::MAP_SHARED as usize);
    let alias = raw::call(libc::SYS_mmap, second);
    let fd = raw::call(libc::SYS_dup, [arguments[4], 0, 0, 0, 0, 0]);
    if alias < 0 || fd < 0 {
        recorder.fail("no second mapping of a member".to_owned());
        return start;
    }
    let (start, alias, fd) = (start as usize, alias as usize, fd as usize);
    recorder.regions.push(Region { start, end: start + bytes, object, at: arguments[5] as u64, alias, fd });
    start as isize
}
