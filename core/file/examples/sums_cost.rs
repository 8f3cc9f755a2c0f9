//! Measures what sums of blocks cost: writes and reads of a file, by turns on an array with sums and
//! on one without. Prints the medians of the rounds, and the median of the ratios within a round.

use array::{Array, Config};
use cxlraid_file::{FileRef, Files};
use dax::Access;
use layout::Level;
use std::time::Instant;
use sys::rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, open};
use units::ChunkBytes;

const FILE_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 21;
const CALLS: u64 = 4000;

/// Makes an array with a file of [`FILE_BYTES`]; returns the file and the array's UUID.
fn made(directory: &std::path::Path, level: Level, members: usize, sums: bool) -> (FileRef, format::Uuid) {
    let mounts: Vec<_> = (0..members).map(|slot| directory.join(format!("{sums}{slot}"))).collect();
    mounts.iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let paths: Vec<Vec<u8>> = mounts.iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect();
    let config = Config::new(level, ChunkBytes::new(64 << 10), &paths, &[b"/data".to_vec()], String::new()).unwrap();
    let files = Files::new(Array::attach(&Config { sums, ..config }).unwrap()).unwrap();
    let attribute = files.create_inode(b"/file").unwrap();
    let make = |path: &std::path::PathBuf| {
        let made = open(path.join("data/f"), OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o600)).unwrap();
        fsetxattr(&made, format::ATTRIBUTE_NAME, &attribute.encode(), XattrFlags::empty()).unwrap();
        Some(made)
    };
    let file = files.open(attribute, true, || Ok((mounts.iter().map(make).collect(), Access::ReadWrite))).unwrap();
    let block = vec![7; 1 << 20];
    (0..FILE_BYTES).step_by(1 << 20).for_each(|at| assert_eq!(file.write_slice(at, &block), Ok(block.len())));
    (file, files.array().uuid())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Makes `calls` calls, each with a number at random, and returns the nanoseconds that one took.
fn timed(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    let mut state = 1u64;
    for _ in 0..calls {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        call(state >> 33);
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn main() {
    persist::fault::install_handlers().unwrap();
    println!("{:24} {:>10} {:>10} {:>7}", "ns a call, medians", "without", "with", "ratio");
    for (level, members) in [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid5, 5), (Level::Raid6, 5)] {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let files = [false, true].map(|sums| made(home.path(), level, members, sums));
        let (small, large) = (vec![3; 4096], vec![5; 1 << 20]);
        let mut buffer = vec![0; 4096];
        let mut times = [const { [const { Vec::new() }; 2] }; 4];
        for round in 0..ROUNDS {
            // Which array comes first changes with each round: the first one pays for what was left
            // in the caches before it.
            for which in [round % 2, 1 - round % 2] {
                let (file, _) = &files[which];
                let mut note = |row: usize, ns: f64| times[row][which].push(ns);
                note(0, timed(CALLS, |draw| _ = file.write_slice(draw % (FILE_BYTES / 4096) * 4096, &small).unwrap()));
                note(1, timed(CALLS, |draw| _ = file.write_slice(draw % (FILE_BYTES - 100), &small[..100]).unwrap()));
                note(2, timed(40, |draw| _ = file.write_slice((draw % 64) << 20, &large).unwrap()));
                note(3, timed(CALLS, |draw| _ = file.read_slice(draw % (FILE_BYTES / 4096) * 4096, &mut buffer).unwrap()));
            }
        }
        for (name, [without, with]) in ["4 KiB write", "100 B write", "1 MiB write", "4 KiB read"].iter().zip(times) {
            let ratio = median(with.iter().zip(&without).map(|(with, without)| with / without).collect());
            let (without, with) = (median(without), median(with));
            println!("RAID {level} of {members}, {name:12} {without:10.0} {with:10.0} {ratio:7.2}");
        }
        for (file, uuid) in files {
            drop(file);
            std::fs::remove_file(array::runtime::segment_path(uuid)).unwrap();
        }
    }
}
