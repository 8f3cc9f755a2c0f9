//! A kernel that stores to buffers of any length reads and writes no byte outside of them: each buffer
//! lies against a page without access, at its end or its start. Not run here are the kernels that only
//! compare (`fits_p`, `fits_pq`), and those for one line or for whole blocks.

mod common;

use common::variants;
use cxlraid_persist::Kernels;
use std::ptr::null_mut;
use sys::rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;

/// One page of memory between two pages without access, the walls.
struct Walled(*mut u8);

impl Walled {
    fn new() -> Self {
        // SAFETY: a new mapping, wherever the kernel likes; its middle page is then made
        // accessible.
        unsafe {
            let base = mmap_anonymous(null_mut(), 3 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
            let page = base.cast::<u8>().add(PAGE);
            mprotect(page.cast(), PAGE, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            Self(page)
        }
    }

    /// Returns `len` bytes that end at the wall behind, or begin at the wall in front.
    fn buffer(&self, len: usize, behind: bool) -> *mut u8 {
        self.0.wrapping_add(if behind { PAGE - len } else { 0 })
    }
}

impl Drop for Walled {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and unused from here on.
        unsafe { munmap(self.0.sub(PAGE).cast(), 3 * PAGE) }.unwrap();
    }
}

/// Runs each kernel that stores to buffers of any length on `len` bytes of each buffer.
fn run_all(k: &Kernels, walled: &[Walled], len: usize, behind: bool) {
    let at: Vec<*mut u8> = walled.iter().map(|walled| walled.buffer(len, behind)).collect();
    let [a, b, p, q, new] = at[..] else { unreachable!() };
    // SAFETY: all buffers have `len` bytes.
    unsafe {
        k.copy_to_media(a, new, len);
        k.copy_to_media_temporal(a, new, len);
        k.mirror_to_media(&[a, b], new, len);
        k.copy_from_media(a, new, len);
        k.zero_media(a, len);
        k.update_p(a, p, new, len);
        k.update_q(a, q, new, 7, len);
        k.update_pq(a, p, q, new, 7, len);
        k.stripe_p(&[new, new], &[a, b], p, len);
        k.stripe_pq(&[new, new], &[a, b], p, q, len);
        k.parity_p(&[a, b, new], p, len);
        k.parity_pq(&[a, b, new], p, q, len);
        k.dot(&[1, 1], &[a, b], p, len);
        k.dot(&[3, 9], &[a, b], p, len);
    }
}

#[test]
fn no_kernel_touches_what_is_beside_its_buffers() {
    let walled: Vec<Walled> = (0..5).map(|_| Walled::new()).collect();
    for k in variants() {
        for len in (0..700).chain([1024, 2048, 4095, 4096]) {
            for behind in [false, true] {
                run_all(&k, &walled, len, behind);
            }
        }
    }
}
