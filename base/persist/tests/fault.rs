//! Tests of the guard, with faults that the kernel reports (SIGSEGV, SIGBUS).

use cxlraid_persist::fault::{Fault, guard, install_handlers, is_guarded};
use cxlraid_persist::kernels;
use std::ptr::{null_mut, write_volatile};
use sys::rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// A mapping and its length in bytes; unmapped on drop.
struct Pages(*mut u8, usize);

impl Pages {
    fn anonymous(bytes: usize, access: ProtFlags) -> Self {
        // SAFETY: a new mapping, wherever the kernel likes.
        Self(unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) }.unwrap().cast(), bytes)
    }

    /// Maps `bytes` of a new file that has `file_bytes`.
    fn of_file(bytes: usize, file_bytes: u64) -> Self {
        let file = memfd_create("fault", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, file_bytes).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        Self(unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }.unwrap().cast(), bytes)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and unused from here on.
        unsafe { munmap(self.0.cast(), self.1) }.unwrap();
    }
}

/// Copies inside a guard.
fn guarded_copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the kernel owns nothing; pointers that are not valid fault, which is what is tested.
    unsafe { guard(|| kernels().copy_to_media(dst, src, len)) }
}

#[test]
fn a_guard_without_a_fault_runs_to_its_end() {
    install_handlers().unwrap();
    let mut ran = 0;
    // SAFETY: an increment may be left half done.
    let result = unsafe {
        guard(|| {
            assert!(is_guarded());
            ran += 1;
        })
    };
    assert_eq!((result, ran), (Ok(()), 1));
    assert!(!is_guarded());
}

#[test]
fn a_read_without_permission_returns_the_address() {
    install_handlers().unwrap();
    let pages = Pages::anonymous(2 * PAGE, ProtFlags::empty());
    let mut buffer = [0u8; 256];
    let result = guarded_copy(buffer.as_mut_ptr(), pages.0.wrapping_add(128), 256);
    let fault = result.unwrap_err();
    assert!((pages.0 as usize + 128..pages.0 as usize + 384).contains(&fault.address), "{fault:x?}");
    assert!(!is_guarded());
}

#[test]
fn a_copy_stops_at_the_first_page_it_may_not_touch() {
    install_handlers().unwrap();
    let pages = Pages::of_file(2 * PAGE, PAGE as u64);
    let source = vec![7u8; 2 * PAGE];
    let fault = guarded_copy(pages.0, source.as_ptr(), 2 * PAGE).unwrap_err();
    assert_eq!(fault.address, pages.0 as usize + PAGE, "SIGBUS beyond the end of the file");
    // SAFETY: the first page is in the file.
    assert!((0..PAGE).all(|at| unsafe { pages.0.add(at).read() } == 7));
}

#[test]
fn a_write_to_read_only_memory_returns_the_address() {
    install_handlers().unwrap();
    let pages = Pages::anonymous(PAGE, ProtFlags::READ);
    let at = pages.0.wrapping_add(1000);
    // SAFETY: the store faults, which is what is tested.
    let result = unsafe { guard(|| write_volatile(at, 1)) };
    assert_eq!(result, Err(Fault { address: at as usize }));
}

#[test]
fn a_non_canonical_pointer_faults_too() {
    install_handlers().unwrap();
    let mut buffer = [0u8; 64];
    assert!(guarded_copy(buffer.as_mut_ptr(), (1usize << 60) as *const u8, 64).is_err());
}

#[test]
fn every_kernel_can_be_left_anywhere_and_registers_survive() {
    install_handlers().unwrap();
    let pages = Pages::of_file(2 * PAGE, PAGE as u64);
    let buffer = vec![1u8; 2 * PAGE];
    for round in 0..10_000usize {
        // Values that the compiler likes to keep in callee-saved registers across the call.
        let (a, b, c) = (round.wrapping_mul(3), round ^ 0x5555, round.rotate_left(7));
        let start = PAGE - 64 - round % 512;
        // SAFETY: kernels own nothing; the page beyond the file faults, which is what is tested.
        let result = unsafe {
            guard(|| {
                let data = pages.0.add(start);
                match round % 4 {
                    0 => kernels().update_p(data, pages.0.add(start % 64), buffer.as_ptr(), 2048),
                    1 => kernels().copy_to_media(data, buffer.as_ptr(), 2048),
                    2 => kernels().zero_media(data, 2048),
                    _ => kernels().dot(&[1, 2], &[buffer.as_ptr(), data], pages.0, 2048),
                }
            })
        };
        assert_eq!(result, Err(Fault { address: pages.0 as usize + PAGE }), "round {round}");
        assert_eq!((a, b, c), (round.wrapping_mul(3), round ^ 0x5555, round.rotate_left(7)));
    }
}

#[test]
fn threads_fault_independently() {
    install_handlers().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let pages = Pages::anonymous(PAGE, ProtFlags::empty());
                let good = [3u8; 64];
                for round in 0..2_000usize {
                    let mut out = [0u8; 64];
                    let at = pages.0.wrapping_add(round % 4000);
                    let fault = guarded_copy(out.as_mut_ptr(), at, 64).unwrap_err();
                    assert!((at as usize..at as usize + 64).contains(&fault.address));
                    assert_eq!(guarded_copy(out.as_mut_ptr(), good.as_ptr(), 64), Ok(()));
                    assert_eq!(out, good);
                }
            });
        }
    });
}

/// A process that faults outside a guard dies of the signal. The test starts itself again as a child
/// process, which faults.
#[test]
fn a_fault_outside_a_guard_still_kills() {
    const CHILD: &str = "CXLRAID_TEST_FAULT_CHILD";
    if std::env::var_os(CHILD).is_some() {
        install_handlers().unwrap();
        let pages = Pages::anonymous(PAGE, ProtFlags::empty());
        // SAFETY: none; the process is to die here.
        unsafe { write_volatile(pages.0, 1) };
        return;
    }
    let name = "a_fault_outside_a_guard_still_kills";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(11), "{status}");
}
