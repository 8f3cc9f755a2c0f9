//! Every kernel of every instruction set against arithmetic byte by byte: any length, any
//! alignment, nothing outside.

mod common;

use common::{Buffer, dot, mul, q_coefficients, variants};
use cxlraid_persist::{Flush, Isa, Kernels, fence, kernels, kernels_for, store_line, write_back};
use proptest::prelude::*;
use std::ptr::null_mut;

/// Content that depends on the seed and the index only.
fn bytes(seed: u64, index: usize, len: usize) -> Vec<u8> {
    let mut state = seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Length, content seed, and where the buffers start: all destinations alike modulo 64 (as on
/// media) or not.
#[derive(Debug, Clone)]
struct Shape {
    len: usize,
    seed: u64,
    starts: Vec<usize>,
}

impl Shape {
    fn start(&self, index: usize) -> usize {
        self.starts[index % self.starts.len()]
    }

    fn content(&self, index: usize) -> Vec<u8> {
        bytes(self.seed, index, self.len)
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![0usize..200, 0usize..5000, (0usize..80).prop_map(|lines| lines * 64)];
    let starts = prop_oneof![Just(vec![0]), (0usize..64).prop_map(|start| vec![start]), prop::collection::vec(0usize..64, 5),];
    (len, any::<u64>(), starts).prop_map(|(len, seed, starts)| Shape { len, seed, starts })
}

fn check_copies(k: &Kernels, s: &Shape, source_start: usize) {
    let src = Buffer::new(&s.content(0), source_start);
    let poison = s.content(9);
    for which in 0..4 {
        let mut dst = Buffer::new(&poison, s.start(1));
        // SAFETY: both buffers have `len` bytes.
        unsafe {
            match which {
                0 => k.copy_to_media(dst.as_mut_ptr(), src.as_ptr(), s.len),
                1 => k.copy_to_media_temporal(dst.as_mut_ptr(), src.as_ptr(), s.len),
                2 => k.copy_from_media(dst.as_mut_ptr(), src.as_ptr(), s.len),
                _ => k.zero_media(dst.as_mut_ptr(), s.len),
            }
        }
        let expected = if which == 3 { vec![0; s.len] } else { s.content(0) };
        assert_eq!(dst.content(), expected, "{k:?} copy {which}");
    }
    for count in 0..4 {
        let mut dsts: Vec<Buffer> = (0..count).map(|i| Buffer::new(&poison, s.start(i))).collect();
        let at: Vec<*mut u8> = dsts.iter_mut().map(Buffer::as_mut_ptr).collect();
        // SAFETY: all buffers have `len` bytes.
        unsafe { k.mirror_to_media(&at, src.as_ptr(), s.len) };
        assert!(dsts.iter().all(|dst| dst.content() == s.content(0)), "{k:?} mirror of {count}");
    }
    assert_eq!(src.content(), s.content(0));
}

/// All updates of data, P and Q.
fn check_updates(k: &Kernels, s: &Shape, source_start: usize, coefficient: u8) {
    let [old, new, p, q] = [0, 1, 2, 3].map(|index| s.content(index));
    let delta: Vec<u8> = old.iter().zip(&new).map(|(a, b)| a ^ b).collect();
    let p_after: Vec<u8> = p.iter().zip(&delta).map(|(p, d)| p ^ d).collect();
    let q_after: Vec<u8> = q.iter().zip(&delta).map(|(q, &d)| q ^ mul(coefficient, d)).collect();
    let source = Buffer::new(&new, source_start);
    for which in 0..3 {
        let mut d_buffer = Buffer::new(&old, s.start(0));
        let mut p_buffer = Buffer::new(&p, s.start(1));
        let mut q_buffer = Buffer::new(&q, s.start(2));
        let (d_at, p_at, q_at) = (d_buffer.as_mut_ptr(), p_buffer.as_mut_ptr(), q_buffer.as_mut_ptr());
        // SAFETY: all buffers have `len` bytes.
        let (has_p, has_q) = unsafe {
            match which {
                0 => (k.update_p(d_at, p_at, source.as_ptr(), s.len), (true, false)),
                1 => (k.update_q(d_at, q_at, source.as_ptr(), coefficient, s.len), (false, true)),
                _ => (k.update_pq(d_at, p_at, q_at, source.as_ptr(), coefficient, s.len), (true, true)),
            }
        }
        .1;
        assert_eq!(d_buffer.content(), new, "{k:?} update {which}");
        assert_eq!(p_buffer.content(), if has_p { &p_after } else { &p }, "{k:?} update {which}");
        assert_eq!(q_buffer.content(), if has_q { &q_after } else { &q }, "{k:?} update {which}");
    }
}

/// Full stripes and generation; `absent` (index into data columns, P, Q) has no place to go.
fn check_stripes(k: &Kernels, s: &Shape, source_start: usize, columns: usize, absent: usize) {
    let contents: Vec<Vec<u8>> = (0..columns).map(|column| s.content(column)).collect();
    let sources: Vec<Buffer> = contents.iter().map(|c| Buffer::new(c, source_start)).collect();
    let news: Vec<*const u8> = sources.iter().map(Buffer::as_ptr).collect();
    let poison = s.content(99);
    let p_after = dot(&vec![1; columns], &contents, s.len);
    let q_after = dot(&q_coefficients(columns), &contents, s.len);
    for which in 0..4 {
        let (with_data, with_q) = (which < 2, which % 2 == 1);
        let mut outs: Vec<Buffer> = (0..columns + 2).map(|i| Buffer::new(&poison, s.start(i))).collect();
        let mut at: Vec<*mut u8> = outs.iter_mut().map(Buffer::as_mut_ptr).collect();
        at[absent % (columns + 2)] = null_mut();
        let (datas, p, q) = (&at[..columns], at[columns], at[columns + 1]);
        // SAFETY: all buffers that are not null have `len` bytes.
        unsafe {
            match which {
                0 => k.stripe_p(&news, datas, p, s.len),
                1 => k.stripe_pq(&news, datas, p, q, s.len),
                2 => k.parity_p(&news, p, s.len),
                _ => k.parity_pq(&news, p, q, s.len),
            }
        }
        for (i, out) in outs.iter().enumerate() {
            let written = if i < columns { with_data } else { i == columns || with_q };
            let expected = match i {
                _ if at[i].is_null() || !written => &poison,
                i if i < columns => &contents[i],
                i if i == columns => &p_after,
                _ => &q_after,
            };
            assert_eq!(out.content(), expected, "{k:?} stripe {which} output {i} of {columns}+2, absent {absent}");
        }
    }
}

/// What fits is seen to fit, and one wrong byte of any operand is seen; what is null is not looked
/// at.
fn check_fits(k: &Kernels, s: &Shape, source_start: usize, columns: usize, wrong: usize, mask: u8) {
    let contents: Vec<Vec<u8>> = (0..columns).map(|column| s.content(column)).collect();
    let p = dot(&vec![1; columns], &contents, s.len);
    let q = dot(&q_coefficients(columns), &contents, s.len);
    let mut all: Vec<Buffer> = contents.iter().chain([&p, &q]).map(|content| Buffer::new(content, source_start)).collect();
    let look = |all: &[Buffer]| {
        let at: Vec<*const u8> = all.iter().map(Buffer::as_ptr).collect();
        let (news, p, q, null) = (&at[..columns], at[columns], at[columns + 1], std::ptr::null());
        // SAFETY: all buffers have `len` bytes.
        unsafe {
            [
                k.fits_p(news, p, s.len),
                k.fits_p(news, null, s.len),
                k.fits_pq(news, p, q, s.len),
                k.fits_pq(news, p, null, s.len),
                k.fits_pq(news, null, q, s.len),
            ]
        }
    };
    assert_eq!(look(&all), [true; 5], "{k:?}");
    if s.len > 0 && mask != 0 {
        let operand = wrong % (columns + 2);
        // SAFETY: the buffer has `len` bytes.
        unsafe { *all[operand].as_mut_ptr().add(wrong % s.len) ^= mask };
        let (data, in_p, in_q) = (operand < columns, operand == columns, operand == columns + 1);
        assert_eq!(look(&all), [!(data || in_p), true, false, !(data || in_p), !(data || in_q)], "{k:?} operand {operand}");
    }
}

fn check_dots(k: &Kernels, s: &Shape, source_start: usize, coefficients: &[u8]) {
    let contents: Vec<Vec<u8>> = (0..coefficients.len()).map(|i| s.content(i)).collect();
    let buffers: Vec<Buffer> = contents.iter().map(|c| Buffer::new(c, source_start)).collect();
    // What is not needed need not exist.
    let sources: Vec<*const u8> = buffers
        .iter()
        .zip(coefficients)
        .map(|(buffer, &coefficient)| if coefficient == 0 { std::ptr::null() } else { buffer.as_ptr() })
        .collect();
    let expected = dot(coefficients, &contents, s.len);
    let mut out = Buffer::new(&s.content(99), s.start(0));
    // SAFETY: all buffers that are not null have `len` bytes.
    unsafe { k.dot(coefficients, &sources, out.as_mut_ptr(), s.len) };
    assert_eq!(out.content(), expected, "{k:?} dot {coefficients:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn copies(shape in shape(), source_start in 0usize..64) {
        variants().iter().for_each(|k| check_copies(k, &shape, source_start));
    }

    #[test]
    fn updates(shape in shape(), source_start in 0usize..64, coefficient in any::<u8>()) {
        variants().iter().for_each(|k| check_updates(k, &shape, source_start, coefficient));
    }

    #[test]
    fn dots(shape in shape(), source_start in 0usize..64,
            coefficients in prop_oneof![prop::collection::vec(any::<u8>(), 0..12), prop::collection::vec(0u8..=1, 1..6),
                                        (1usize..32).prop_map(|n| vec![1; n])]) {
        variants().iter().for_each(|k| check_dots(k, &shape, source_start, &coefficients));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn stripes(shape in shape(), source_start in 0usize..64, columns in 1usize..=30, absent in 0usize..64) {
        variants().iter().for_each(|k| check_stripes(k, &shape, source_start, columns, absent));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn comparisons(shape in shape(), source_start in 0usize..64, columns in 1usize..=30, wrong in 0usize..100_000, mask in any::<u8>()) {
        variants().iter().for_each(|k| check_fits(k, &shape, source_start, columns, wrong, mask));
    }
}

#[test]
fn every_coefficient_multiplies_every_byte() {
    let every: Vec<u8> = (0..=255).collect();
    for isa in Isa::ALL {
        let Some(k) = Kernels::for_isa(isa, Flush::NotNeeded) else {
            println!("{} is not available here: not tested", isa.name());
            continue;
        };
        for coefficient in 0..=255 {
            let mut out = vec![0; 256];
            // SAFETY: both buffers have 256 bytes.
            unsafe { k.dot(&[coefficient], &[every.as_ptr()], out.as_mut_ptr(), 256) };
            assert_eq!(out, every.iter().map(|&byte| mul(coefficient, byte)).collect::<Vec<u8>>());
        }
    }
}

#[test]
fn a_column_may_be_written_onto_itself() {
    for k in variants() {
        let content = bytes(5, 0, 1000);
        let mut data = Buffer::new(&content, 8);
        let mut p = Buffer::new(&vec![0; 1000], 8);
        // SAFETY: all buffers have 1000 bytes; new and data are the same one.
        unsafe {
            k.stripe_p(&[data.as_ptr()], &[data.as_mut_ptr()], p.as_mut_ptr(), 1000);
        }
        assert_eq!(data.content(), content);
        assert_eq!(p.content(), content);
    }
}

#[test]
fn one_line_is_stored_and_written_back() {
    let mut buffer = Buffer::new(&[0; 192], 0);
    let line: [u8; 64] = std::array::from_fn(|i| i as u8);
    // SAFETY: the buffer starts at a line boundary and has three lines.
    unsafe {
        store_line(buffer.as_mut_ptr().add(64), &line);
        fence();
        write_back(buffer.as_ptr().add(63), 66);
        assert_eq!(buffer.content()[64..128], line);
        for k in variants() {
            buffer.as_mut_ptr().add(64).write_bytes(0, 64);
            k.store_line(buffer.as_mut_ptr().add(64), &line);
            assert_eq!(buffer.content()[64..128], line, "{k:?}");
        }
    }
    assert!(buffer.content()[..64].iter().chain(&buffer.content()[128..]).all(|&byte| byte == 0));
    assert_eq!(buffer.content()[64..128], line);
}

#[test]
fn the_best_kernels_are_chosen() {
    use cxlraid_persist::PersistenceDomain::{Adr, Eadr, PageCache, Volatile};
    assert_eq!(kernels().isa(), Isa::best());
    for (domain, flush) in
        [(Eadr, Flush::NotNeeded), (Adr, Flush::Needed), (PageCache, Flush::NotNeeded), (Volatile, Flush::NotNeeded)]
    {
        assert_eq!(kernels_for(domain).isa(), Isa::best());
        assert_eq!(kernels_for(domain).flush(), flush);
    }
    println!("instruction set: {}", kernels().isa().name());
}
