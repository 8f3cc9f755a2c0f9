//! One file, many threads and processes: writes are seen whole, redundancy fits, and a process that
//! is killed leaves neither a stuck lock nor a stripe that does not fit.

mod common;

use common::{Random, TestArray, read, write};
use layout::Level;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use units::MemberSet;

const REGION_BYTES: usize = 24_000;
const CHILD: &str = "CXLRAID_TEST_CHILD";

#[test]
fn a_write_is_seen_whole_or_not_at_all() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[0; 4 * REGION_BYTES]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in 0..2u8 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                for round in 0..3000u64 {
                    write(file, (round % 4) * REGION_BYTES as u64, &[round as u8 ^ id << 7; REGION_BYTES]);
                }
                stop.store(true, Ordering::Release);
            });
        }
        let (file, stop) = (&file, &stop);
        scope.spawn(move || {
            let mut region = 0;
            while !stop.load(Ordering::Acquire) {
                let data = read(file, region * REGION_BYTES as u64, REGION_BYTES);
                assert!(data.iter().all(|&byte| byte == data[0]), "torn read of region {region}");
                region = (region + 1) % 4;
            }
        });
    });
    assert_eq!(file.verify(), Ok(0));
}

#[test]
fn appends_of_threads_never_overlap() {
    let array = TestArray::new(Level::Raid6, 5, 64);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    std::thread::scope(|scope| {
        for id in 1..=4u8 {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..500 {
                    // SAFETY: the buffer is ours.
                    unsafe { file.append([id; 333].as_ptr(), 333) }.unwrap();
                }
            });
        }
    });
    let data = read(&file, 0, 1 << 20);
    assert_eq!(data.len(), 4 * 500 * 333);
    assert!(data.chunks(333).all(|record| record.iter().all(|byte| byte == &record[0])));
    for id in 1..=4 {
        assert_eq!(data.chunks(333).filter(|record| record[0] == id).count(), 500);
    }
}

/// Starts this test binary again as another process that runs only `child_process`, attached to the
/// same array.
fn spawn_child(array: &TestArray, attribute: format::Attribute, role: &str) -> Child {
    let directory = array.member_path(0).parent().unwrap().to_path_buf();
    let task = format!("{role} {} {} {}", attribute.inode, attribute.generation, directory.display());
    let level = array.config.level.to_string();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
        .env(CHILD, task)
        .env("CXLRAID_TEST_LEVEL", level)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: what the other tests' child processes run. Without a task it only checks
/// that there is none.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else {
        assert!(std::env::var("CXLRAID_TEST_LEVEL").is_err());
        return;
    };
    let [role, inode, generation, directory] = task.splitn(4, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    persist::fault::install_handlers().unwrap();
    let mounts: Vec<Vec<u8>> = (0..4).map(|slot| format!("{directory}/m{slot}").into_bytes()).collect();
    let level: Level = std::env::var("CXLRAID_TEST_LEVEL").unwrap().parse().unwrap();
    let config = array::Config::new(level, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    let files = cxlraid_file::Files::new(array::Array::attach(&config).unwrap()).unwrap();
    let attribute = format::Attribute { inode: inode.parse().unwrap(), generation: generation.parse().unwrap() };
    let open = |slot: usize| {
        let path = format!("{directory}/m{slot}/data/f");
        Some(sys::rustix::fs::open(path.as_str(), sys::rustix::fs::OFlags::RDWR, sys::rustix::fs::Mode::empty()).unwrap())
    };
    let file = files.open(attribute, true, || Ok(((0..4).map(open).collect(), dax::Access::ReadWrite))).unwrap();
    match role {
        "odd" => interleaved_records(&file, 1),
        _ => {
            let mut random = Random(u64::from(std::process::id()));
            loop {
                let data = random.bytes(random_length(&mut Random(random.0)));
                write(&file, random.below(900_000), &data);
            }
        }
    }
}

fn random_length(random: &mut Random) -> usize {
    random.below(60_000) as usize + 1
}

/// Writes every second record of 100 bytes: neighbours in the same stripes belong to the other
/// process.
fn interleaved_records(file: &cxlraid_file::FileRef, phase: u64) {
    for round in 0..5u8 {
        for index in 0..2000u64 {
            write(file, (index * 2 + phase) * 100, &[round + phase as u8 * 100; 100]);
        }
    }
}

#[test]
fn two_processes_write_the_same_stripes() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
        let array = TestArray::new(level, 4, 4096);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &[0; 400_000]);
        let mut child = spawn_child(&array, attribute, "odd");
        interleaved_records(&file, 0);
        assert!(child.wait().unwrap().success(), "RAID {level}");
        assert_eq!(file.verify(), Ok(0), "RAID {level}");
        for out in 0..4 {
            let runtime = array.files.array().runtime();
            runtime.set_out(MemberSet::EMPTY.with(out), MemberSet::EMPTY.with(out));
            let data = read(&file, 0, 400_000);
            for (index, record) in data.chunks(100).enumerate() {
                let expected = 4 + (index as u8 % 2) * 100;
                assert!(record.iter().all(|&byte| byte == expected), "RAID {level} without {out}: record {index}");
            }
            runtime.set_out(MemberSet::EMPTY, MemberSet::EMPTY);
        }
    }
}

#[test]
fn killed_writers_leave_no_lock_and_no_mismatch() {
    let mut random = Random(0xdead);
    for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
        let array = TestArray::new(level, 4, 4096);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &[0; 1_000_000]);
        let mut waits = Vec::new();
        for round in 0..15 {
            let mut child = spawn_child(&array, attribute, "kill");
            std::thread::sleep(Duration::from_micros(20_000 + random.below(20_000)));
            child.kill().unwrap();
            let start = Instant::now();
            write(&file, random.below(900_000), &[round; 50_000]);
            waits.push(start.elapsed());
            child.wait().unwrap();
            assert_eq!(file.verify(), Ok(0), "RAID {level} round {round}");
        }
        // On a busy machine some wait for the processor as well.
        waits.sort();
        assert!(waits[7] < Duration::from_millis(100) && waits[14] < Duration::from_secs(5), "RAID {level}: waited {waits:?}");
    }
}
