//! Four processes change names at random, some are killed and replaced, and afterwards all members
//! hold the same tree. The seed is printed; `CXLRAID_TEST_SEED` repeats a run's choices, though not
//! how the processes meet.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, OFlags, RenameFlags};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROCESS_COUNT: usize = 4;
const ROUND_COUNT: usize = 12;
const ROUND: Duration = Duration::from_millis(120);

/// Few names on two levels, so that processes meet.
fn any_path(rng: &mut Rng) -> Vec<u8> {
    let name = |rng: &mut Rng| (b'a' + rng.below(4) as u8) as char;
    let first = name(rng);
    let path = if rng.below(2) == 0 { format!("/data/{first}") } else { format!("/data/{first}/{}", name(rng)) };
    path.into_bytes()
}

fn change(names: Namespace, rng: &mut Rng, open: &mut Vec<cxlraid_namespace::Opened>) {
    let (one, two) = (any_path(rng), any_path(rng));
    let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::NOREPLACE][rng.below(3) as usize];
    match rng.below(14) {
        0..=2 => {
            if let Ok(cxlraid_namespace::Reached::Array(opened)) =
                names.open(&one, CREATE | OFlags::NOFOLLOW, 0o600 + rng.below(64) as u32)
            {
                // Some stay open while their names come and go.
                if rng.below(3) == 0 {
                    open.push(opened);
                }
            }
        }
        3 => open.truncate(rng.below(4) as usize),
        4 | 5 => drop(names.mkdir(&one, 0o755)),
        6 => drop(names.rmdir(&one)),
        7 => drop(names.unlink(&one)),
        8..=10 => drop(names.rename(&one, &two, flags)),
        11 => drop(names.link(&one, &two, false)),
        12 => drop(names.symlink(b"a/b", &one)),
        _ => drop(names.chmod(&one, 0o700 + rng.below(64) as u32, false)),
    }
}

/// What the other processes do; not a test of its own.
#[test]
#[ignore = "run by the other test"]
fn role() {
    let Ok(seed) = std::env::var("CXLRAID_TEST_ROLE") else { return };
    sys::rustix::process::set_parent_process_death_signal(Some(sys::rustix::process::Signal::KILL)).unwrap();
    let names = attach_again(&std::env::var("CXLRAID_TEST_MOUNTS").unwrap());
    let (mut rng, mut open) = (Rng(seed.parse().unwrap()), Vec::new());
    loop {
        change(names, &mut rng, &mut open);
    }
}

fn spawn(array: &TestArray, seed: u64) -> Child {
    let mounts: Vec<&str> = array.members.iter().map(|member| member.to_str().unwrap()).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--ignored"])
        .env("CXLRAID_TEST_ROLE", (seed | 1).to_string())
        .env("CXLRAID_TEST_MOUNTS", mounts.join(":"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn members_stay_the_same_under_processes_that_change_names_and_are_killed() {
    let seed = std::env::var("CXLRAID_TEST_SEED").map_or(0x00c0_ffee, |text| text.parse().unwrap());
    println!("CXLRAID_TEST_SEED={seed}");
    let array = TestArray::new();
    let names = array.namespace;
    let mut rng = Rng(seed);
    let mut children: Vec<Child> = (0..PROCESS_COUNT).map(|_| spawn(&array, rng.below(u64::MAX >> 16))).collect();
    for round in 0..ROUND_COUNT {
        let begun = Instant::now();
        while begun.elapsed() < ROUND {
            std::thread::sleep(Duration::from_millis(20 + rng.below(20)));
            let victim = rng.below(PROCESS_COUNT as u64) as usize;
            children[victim].kill().unwrap();
            children[victim].wait().unwrap();
            children[victim] = spawn(&array, rng.below(u64::MAX >> 16));
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // The next change makes good what the last to die left behind, and the next start what they
        // had open.
        let _ = names.mkdir(b"/data/after", 0o700);
        let _ = names.rmdir(b"/data/after");
        names.files().array().runtime().reap();
        names.clear_nameless();
        let tree = array.assert_same_trees_after_deaths();
        assert_eq!(names.files().array().in_use().len(), 3, "seed {seed}, round {round}");
        for (path, entry) in tree.iter().filter(|(_, entry)| entry.kind == '-') {
            let same = tree.values().filter(|other| other.attribute == entry.attribute).count() as u64;
            assert_eq!(
                (entry.link_count, entry.attribute.is_some()),
                (same, true),
                "{}, seed {seed}, round {round}",
                path.display()
            );
        }
        children = (0..PROCESS_COUNT).map(|_| spawn(&array, rng.below(u64::MAX >> 16))).collect();
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
