//! ISA-L as an oracle, where libisal is installed: an independent implementation of the same P and
//! Q.

mod common;

use common::Buffer;
use cxlraid_persist::{Flush, Isa, Kernels};
use libloading::{Library, Symbol};
use std::ffi::{c_int, c_void};

type Generate = unsafe extern "C" fn(vects: c_int, len: c_int, array: *mut *mut c_void) -> c_int;
type VectMulInit = unsafe extern "C" fn(coefficient: u8, table: *mut u8);
type DotProd = unsafe extern "C" fn(len: c_int, vlen: c_int, tables: *mut u8, src: *mut *mut u8, dst: *mut u8);

fn isal() -> Option<Library> {
    // SAFETY: libisal has no constructors that do anything but select functions.
    let library = unsafe { Library::new("libisal.so.2") }.ok();
    if library.is_none() {
        println!("libisal.so.2 is not installed: NOTHING WAS COMPARED");
    }
    library
}

fn available() -> impl Iterator<Item = &'static Kernels> {
    Isa::ALL.into_iter().filter_map(|isa| Kernels::for_isa(isa, Flush::NotNeeded))
}

/// Columns whose bytes are all different from each other's, at line boundaries (ISA-L wants 32
/// bytes).
fn columns(count: usize, len: usize) -> Vec<Buffer> {
    (0..count)
        .map(|column| {
            let content: Vec<u8> = (0..len).map(|i| ((i * 2_654_435_761 + column * 40_503) >> 7) as u8 ^ column as u8).collect();
            Buffer::new(&content, 0)
        })
        .collect()
}

#[test]
fn p_and_q_equal_isal() {
    let Some(library) = isal() else { return };
    // SAFETY: these are the types in raid.h.
    let (xor_gen, pq_gen): (Symbol<'_, Generate>, Symbol<'_, Generate>) =
        unsafe { (library.get(b"xor_gen").unwrap(), library.get(b"pq_gen").unwrap()) };
    for count in [2usize, 3, 5, 8, 16, 30] {
        let len = 4096;
        let columns = columns(count, len);
        let news: Vec<*const u8> = columns.iter().map(Buffer::as_ptr).collect();
        let (mut p, mut q, mut x) = (Buffer::new(&vec![0; len], 0), Buffer::new(&vec![0; len], 0), Buffer::new(&vec![0; len], 0));
        let sources = news.iter().map(|source| source.cast_mut().cast::<c_void>());
        let mut for_pq: Vec<*mut c_void> = sources.clone().chain([p.as_mut_ptr().cast(), q.as_mut_ptr().cast()]).collect();
        let mut for_xor: Vec<*mut c_void> = sources.chain([x.as_mut_ptr().cast()]).collect();
        // SAFETY: `count` sources and the destinations have `len` bytes each and start at line
        // boundaries.
        unsafe {
            assert_eq!(pq_gen(count as c_int + 2, len as c_int, for_pq.as_mut_ptr()), 0);
            assert_eq!(xor_gen(count as c_int + 1, len as c_int, for_xor.as_mut_ptr()), 0);
        }
        for kernels in available() {
            let (mut our_p, mut our_q) = (Buffer::new(&vec![1; len], 0), Buffer::new(&vec![1; len], 0));
            // SAFETY: all buffers have `len` bytes.
            unsafe { kernels.parity_pq(&news, our_p.as_mut_ptr(), our_q.as_mut_ptr(), len) };
            assert_eq!(our_p.content(), p.content(), "{kernels:?} {count} columns");
            assert_eq!(our_q.content(), q.content(), "{kernels:?} {count} columns");
            assert_eq!(our_p.content(), x.content(), "{kernels:?} {count} columns");
        }
    }
}

#[test]
fn dot_products_equal_isal() {
    let Some(library) = isal() else { return };
    // SAFETY: these are the types in erasure_code.h and gf_vect_mul.h.
    let (init, dot_prod): (Symbol<'_, VectMulInit>, Symbol<'_, DotProd>) =
        unsafe { (library.get(b"gf_vect_mul_init").unwrap(), library.get(b"gf_vect_dot_prod").unwrap()) };
    let (count, len) = (7, 4096);
    let columns = columns(count, len);
    let sources: Vec<*const u8> = columns.iter().map(Buffer::as_ptr).collect();
    for round in 0..64u8 {
        let coefficients: Vec<u8> = (0..count as u8).map(|i| round.wrapping_mul(41).wrapping_add(i * 29)).collect();
        let mut tables = vec![0u8; 32 * count];
        let mut expected = Buffer::new(&vec![0; len], 0);
        let mut isal_sources: Vec<*mut u8> = sources.iter().map(|source| source.cast_mut()).collect();
        // SAFETY: one 32-byte table per coefficient; all buffers have `len` bytes.
        unsafe {
            for (table, &coefficient) in tables.chunks_mut(32).zip(&coefficients) {
                init(coefficient, table.as_mut_ptr());
            }
            let (tables, sources) = (tables.as_mut_ptr(), isal_sources.as_mut_ptr());
            dot_prod(len as c_int, count as c_int, tables, sources, expected.as_mut_ptr());
        }
        for kernels in available() {
            let mut out = Buffer::new(&vec![1; len], 0);
            // SAFETY: all buffers have `len` bytes.
            unsafe { kernels.dot(&coefficients, &sources, out.as_mut_ptr(), len) };
            assert_eq!(out.content(), expected.content(), "{kernels:?} {coefficients:?}");
        }
    }
}
