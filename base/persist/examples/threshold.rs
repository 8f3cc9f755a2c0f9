//! Measures from which length on non-temporal stores are faster, for the constants in
//! `src/kernels.rs`. It prints tables in nanoseconds per call.
//!
//!     cargo run --release -p cxlraid-persist --example threshold [DIRECTORY]
//!
//! It makes three member files of 512 MiB in DIRECTORY (/dev/shm if none is given) and unlinks them
//! at once. It needs a quiet machine: on a busy one only the figures of one row can be compared.
//!
//! Non-temporal stores are compared with ordinary ones for each length, *hot* (a region of 64 KiB
//! that is used over and over) and *cold* (random places in 512 MiB of each member). The
//! read-modify-write of RAID 5 is compared with a plain loop.

use cxlraid_persist::fault::guard;
use cxlraid_persist::{Kernels, PersistenceDomain, fence, kernels, kernels_for};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::path::Path;
use std::ptr::null_mut;
use std::time::Instant;
use sys::rustix::mm::{MapFlags, ProtFlags, mmap};

const MEMBER_BYTES: usize = 512 << 20;
const HOT_BYTES: usize = 64 << 10;

/// Makes a member file and maps it with all its pages. The file is unlinked, so it is gone when the
/// process ends.
fn member(directory: &Path, index: usize) -> *mut u8 {
    let path = directory.join(format!("cxlraid-threshold-{}-{index}", std::process::id()));
    let file: File = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create a member");
    std::fs::remove_file(&path).expect("unlink the member");
    file.set_len(MEMBER_BYTES as u64).expect("size the member");
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let map = unsafe { mmap(null_mut(), MEMBER_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0) };
    map.expect("map the member").cast()
}

/// The offsets at which a run makes its calls: in `0..region`, at multiples of the length rounded
/// up to lines.
struct Places {
    slots: u64,
    slot_bytes: usize,
    state: u64,
    random: bool,
}

impl Places {
    fn new(region: usize, len: usize, random: bool) -> Self {
        let slot_bytes = len.next_multiple_of(64);
        Self { slots: (region / slot_bytes).max(1) as u64, slot_bytes, state: 1, random }
    }

    #[inline(always)]
    fn next(&mut self) -> usize {
        self.state = if self.random {
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
        } else {
            self.state.wrapping_add(1 << 32)
        };
        let slot = if self.random {
            ((u128::from(self.state) * u128::from(self.slots)) >> 64) as usize
        } else {
            ((self.state >> 32) % self.slots) as usize
        };
        slot * self.slot_bytes
    }
}

/// Nanoseconds per call of `f(offset)`: the best of five runs. The longer `len`, the fewer calls a
/// run has, so that a run takes some 20 to 40 ms.
fn measure(mut places: Places, len: usize, mut f: impl FnMut(usize)) -> f64 {
    let calls = (40_000_000 / (len + 400)).max(100);
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..calls {
            f(places.next());
        }
        fence();
        best = best.min(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    best
}

/// The update of one chunk and its parity as a plain loop, with which the kernels are compared.
#[target_feature(enable = "avx512f")]
unsafe fn plain_update(data: *mut u8, p: *mut u8, new: *const u8, len: usize) {
    use std::arch::x86_64::*;
    for at in (0..len).step_by(64) {
        // SAFETY: the caller passes whole lines at line boundaries.
        unsafe {
            let n = _mm512_loadu_si512(new.add(at).cast());
            let parity = _mm512_xor_si512(_mm512_load_si512(data.add(at).cast()), _mm512_load_si512(p.add(at).cast()));
            _mm512_stream_si512(data.add(at).cast(), n);
            _mm512_stream_si512(p.add(at).cast(), _mm512_xor_si512(parity, n));
        }
    }
}

fn thresholds(members: &[*mut u8], new: *const u8, k: &Kernels, fenced: bool) {
    let [stream, cached] = [k.always_streaming(), k.never_streaming()];
    println!(
        "\nnon-temporal / ordinary stores, write-back {:?}{}",
        k.flush(),
        if fenced { ", a fence after each call" } else { "" }
    );
    println!("{:>8} | copy_to_media hot |              cold || update_p hot      |              cold", "bytes");
    for len in [64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 65536, 1 << 20] {
        let mut row = Vec::new();
        for update in [false, true] {
            for region in [HOT_BYTES.max(len), MEMBER_BYTES] {
                for k in [&stream, &cached] {
                    let run = |offset: usize| {
                        // SAFETY: offset + len is within the members; `new` has 1 MiB.
                        unsafe {
                            let (data, p) = (members[0].add(offset), members[2].add(offset));
                            if update { k.update_p(data, p, new, len) } else { k.copy_to_media(data, new, len) }
                        }
                        if fenced {
                            fence();
                        }
                    };
                    row.push(measure(Places::new(region, len, true), len, run));
                }
            }
        }
        let cell = |i: usize| format!("{:>8.0} {:>8.0}", row[i], row[i + 1]);
        println!("{len:>8} | {} | {} || {} | {}", cell(0), cell(2), cell(4), cell(6));
    }
}

fn read_modify_write(members: &[*mut u8], new: *mut u8) {
    println!("\n4 KiB on three members       sequential   random");
    let line = |name: &str, f: &dyn Fn(*mut u8, *mut u8)| {
        let run = |random: bool| {
            measure(Places::new(2 * MEMBER_BYTES, 4096, random), 4096, |offset| {
                // The bytes lie as on RAID 5: stripes of two data chunks of 64 KiB, each stripe's P
                // on the next member.
                let (chunk, within) = (offset >> 16, offset & 0xffff);
                let (stripe, column) = (chunk / 2, chunk % 2);
                let parity = 2 - stripe % 3;
                let at = (stripe << 16) + within;
                // SAFETY: `at` + 4096 is within each member.
                let (data, p) = unsafe { (members[(parity + 1 + column) % 3].add(at), members[parity].add(at)) };
                f(data, p);
            })
        };
        println!("{name:<28} {:>10.0} {:>8.0}", run(false), run(true));
    };
    let [stream, cached] = [kernels().always_streaming(), kernels().never_streaming()];
    // SAFETY: in every call below `data` and `p` have 4096 bytes at line boundaries, `new` has 1
    // MiB, and `out` is the upper half of that.
    unsafe {
        if std::is_x86_feature_detected!("avx512f") {
            line("plain loop", &|data, p| plain_update(data, p, new, 4096));
        }
        line("update_p nt", &|data, p| stream.update_p(data, p, new, 4096));
        line("update_p ordinary", &|data, p| cached.update_p(data, p, new, 4096));
        line("update_p guarded", &|data, p| {
            guard(|| kernels().update_p(data, p, new, 4096)).expect("no fault");
        });
        line("copy_to_media nt", &|data, _| stream.copy_to_media(data, new, 4096));
        let out = new.add(512 << 10);
        line("copy_from_media", &|data, _| kernels().copy_from_media(out, data, 4096));
        line("std memcpy from media", &|data, _| {
            std::ptr::copy_nonoverlapping(data, out, 4096);
            black_box(out);
        });
        line("dot of 2 (degraded read)", &|data, p| kernels().dot(&[1, 1], &[data, p], out, 4096));
    }
}

/// Times the arithmetic of every instruction set on 8 columns of 4 KiB, which stay in the caches.
fn arithmetic(new: *mut u8) {
    println!("\nin cache, 8 columns of 4 KiB   parity_p   parity_pq   dot (mixed)   stripe_pq   update_pq   ns");
    let buffer = |i: usize| new.wrapping_add(i * 4096);
    let sources: Vec<*const u8> = (0..8).map(|i| buffer(i).cast_const()).collect();
    let datas: Vec<*mut u8> = (10..18).map(buffer).collect();
    let (p, q) = (buffer(8), buffer(9));
    let coefficients = [1, 7, 19, 200, 3, 91, 2, 128];
    for isa in cxlraid_persist::Isa::ALL {
        let Some(k) = Kernels::for_isa(isa, cxlraid_persist::Flush::NotNeeded) else { continue };
        let k = k.never_streaming();
        let time = |f: &dyn Fn()| measure(Places::new(HOT_BYTES, 4096, false), 4096, |_| f());
        // SAFETY: `new` has 1 MiB: 18 buffers of 4 KiB.
        unsafe {
            println!(
                "{:<28} {:>10.0} {:>11.0} {:>13.0} {:>11.0} {:>11.0}",
                isa.name(),
                time(&|| k.parity_p(&sources, p, 4096)),
                time(&|| k.parity_pq(&sources, p, q, 4096)),
                time(&|| k.dot(&coefficients, &sources, p, 4096)),
                time(&|| k.stripe_pq(&sources, &datas, p, q, 4096)),
                time(&|| k.update_pq(datas[0], p, q, sources[0], 29, 4096)),
            );
        }
    }
}

fn guard_cost() {
    let mut count = 0u64;
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..20_000_000 {
            f();
        }
        start.elapsed().as_nanos() as f64 / 2e7
    };
    let bare = time(&mut || {
        *black_box(&mut count) += 1;
    });
    let guarded = time(&mut || {
        // SAFETY: the closure owns nothing, so it may be left at any instruction.
        let result = unsafe { guard(|| *black_box(&mut count) += 1) };
        black_box(&result);
    });
    println!("\nguard: {:.1} ns", guarded - bare);
}

fn main() {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".into());
    let members: Vec<*mut u8> = (0..3).map(|index| member(Path::new(&directory), index)).collect();
    let mut source = vec![0x5au8; (1 << 20) + 64];
    let new = source.as_mut_ptr();
    let new = new.wrapping_add(new.align_offset(64));
    println!("instruction set {}", kernels().isa().name());
    guard_cost();
    read_modify_write(&members, new);
    arithmetic(new);
    thresholds(&members, new, kernels(), false);
    thresholds(&members, new, kernels(), true);
    thresholds(&members, new, kernels_for(PersistenceDomain::Adr), true);
}
